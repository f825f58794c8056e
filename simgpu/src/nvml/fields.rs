//! Values that are asked for by number: counters above all.

use std::time::{SystemTime, UNIX_EPOCH};

use libc::{c_int, c_uint};
use nvml_wrapper_sys::bindings::{
    self as nvml, field_id as field, nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t, nvmlValue_t,
    nvmlValueType_t,
};

use super::{
    Answer, answer,
    codes::{INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS},
    device::Device,
    exported,
    given::Argument,
    traffic,
};
use crate::{
    machine::{ErrorCounter, HealthFault, Incident, Throttle},
    state::Traffic,
};

/// The scope of a field that stands for all links together.
const ALL_LINKS: c_uint = c_uint::MAX;

/// What a link of NVLink-C2C carries in one direction: five have the 225 GB/s of a GPU.
const C2C_LINK_MB_S: c_uint = 45_000;

/// A field's value and its type.
type Value = (nvmlValueType_t, nvmlValue_t);

fn number(number: c_uint) -> Value {
    (nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, nvmlValue_t { uiVal: number })
}

fn long(number: u64) -> Value {
    let kind = nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    (kind, nvmlValue_t { ullVal: number })
}

impl Device {
    /// What its links have carried, as their counters have it.
    fn counted(&self) -> Traffic {
        let restarts = |fault: &&HealthFault| fault.what == Incident::CountersRestart;
        let of_gpu = |fault: &&HealthFault| fault.gpu.is_none_or(|gpu| gpu == self.ordinal);
        let mut faults = self.machine.faults.health.iter().filter(restarts).filter(of_gpu);
        let most = faults.next().map_or(u64::MAX, |fault| fault.after_bytes.max(1));
        let Traffic { nvlink_tx_bytes, nvlink_rx_bytes, pcie_tx_bytes, pcie_rx_bytes } =
            traffic(self.ordinal);
        let since = |bytes: u64| bytes % most;
        Traffic {
            nvlink_tx_bytes: since(nvlink_tx_bytes),
            nvlink_rx_bytes: since(nvlink_rx_bytes),
            pcie_tx_bytes: since(pcie_tx_bytes),
            pcie_rx_bytes: since(pcie_rx_bytes),
        }
    }

    /// The part of the GPU's NVLink traffic that a link carried, or all of it. Traffic is spread
    /// over the links that are up.
    fn link_bytes(&self, all: u64, scope: c_uint) -> Answer<u64> {
        let nvlinks = &self.gpu.nvlinks;
        if nvlinks.count == 0 || !self.gpu.health.nvlink_counters {
            return Err(NOT_SUPPORTED);
        }
        if scope == ALL_LINKS {
            return Ok(all);
        }
        if !self.is_up(scope)? {
            return Ok(0);
        }
        let up = u64::from(nvlinks.count) - nvlinks.down.len() as u64;
        let down_before = nvlinks.down.iter().filter(|&&link| link < scope).count() as u64;
        let place = u64::from(scope) - down_before;
        Ok(all / up + u64::from(place < all % up))
    }

    /// A counter of its PCIe link; one of 32 bits begins at 0 again after 4 GiB.
    fn pcie_bytes(&self, bytes: u64) -> Answer<Value> {
        match self.gpu.health.pcie_counter_bits {
            None => Err(NOT_SUPPORTED),
            Some(32) => Ok(number(c_uint::try_from(bytes & u64::from(c_uint::MAX)).unwrap_or(0))),
            Some(_) => Ok(long(bytes)),
        }
    }

    /// A counter of errors of all its NVLinks.
    fn nvlink_errors(&self, of: ErrorCounter) -> Answer<Value> {
        if self.gpu.nvlinks.count == 0 { Err(NOT_SUPPORTED) } else { Ok(long(self.errors(of))) }
    }

    /// A counter of errors of one of its NVLinks: the first that is up has them all.
    fn link_errors(&self, of: ErrorCounter, scope: c_uint) -> Answer<Value> {
        let is_up = self.is_up(scope)?;
        let is_first = (0..scope).all(|link| self.gpu.nvlinks.down.contains(&link));
        Ok(long(if is_up && is_first { self.errors(of) } else { 0 }))
    }

    /// For how many nanoseconds its clocks have been held down for one of these reasons: one for
    /// each byte that its links have carried in the meantime.
    fn throttled_ns(&self, reasons: &[Throttle]) -> Value {
        let carried = self.carried();
        let of = |&reason| self.machine.throttled_bytes(self.ordinal, carried, reason);
        long(reasons.iter().map(of).max().unwrap_or(0))
    }

    fn memory_errors(&self, of: ErrorCounter) -> Answer<Value> {
        if self.gpu.health.ecc { Ok(long(self.errors(of))) } else { Err(NOT_SUPPORTED) }
    }

    /// The value of a field.
    fn field(&self, id: c_uint, scope: c_uint) -> Answer<Value> {
        let nvlinks = &self.gpu.nvlinks;
        match id {
            field::NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(number(nvlinks.count)),
            field::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON if nvlinks.count == 0 => Err(NOT_SUPPORTED),
            field::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => Ok(number(self.link_mb_s())),
            field::NVML_FI_DEV_NVLINK_GET_SPEED => {
                Ok(number(if self.is_up(scope)? { self.link_mb_s() } else { 0 }))
            }
            field::NVML_FI_DEV_NVLINK_GET_STATE => Ok(number(c_uint::from(self.is_up(scope)?))),
            field::NVML_FI_DEV_NVLINK_GET_VERSION => {
                self.is_up(scope)?;
                Ok(number(self.nvlink_version()))
            }
            // These two count in KiB.
            field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => {
                Ok(long(self.link_bytes(self.counted().nvlink_tx_bytes, scope)? >> 10))
            }
            field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => {
                Ok(long(self.link_bytes(self.counted().nvlink_rx_bytes, scope)? >> 10))
            }
            field::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES => {
                Ok(long(self.link_bytes(self.counted().nvlink_tx_bytes, scope)?))
            }
            field::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES => {
                Ok(long(self.link_bytes(self.counted().nvlink_rx_bytes, scope)?))
            }
            field::NVML_FI_DEV_PCIE_COUNT_TX_BYTES => self.pcie_bytes(self.counted().pcie_tx_bytes),
            field::NVML_FI_DEV_PCIE_COUNT_RX_BYTES => self.pcie_bytes(self.counted().pcie_rx_bytes),
            field::NVML_FI_DEV_C2C_LINK_COUNT if self.gpu.c2c_links > 0 => {
                Ok(number(self.gpu.c2c_links))
            }
            field::NVML_FI_DEV_C2C_LINK_GET_STATUS if scope < self.gpu.c2c_links => Ok(number(1)),
            field::NVML_FI_DEV_C2C_LINK_GET_MAX_BW if scope < self.gpu.c2c_links => {
                Ok(number(C2C_LINK_MB_S))
            }
            _ => self.health_field(id, scope),
        }
    }

    /// The value of a field that tells how it is doing.
    fn health_field(&self, id: c_uint, scope: c_uint) -> Answer<Value> {
        use Throttle::{
            HwPowerBrake, HwSlowdown, HwThermalSlowdown, SwPowerCap, SwThermalSlowdown,
        };
        match id {
            field::NVML_FI_DEV_PCIE_REPLAY_COUNTER => {
                Ok(long(self.errors(ErrorCounter::PcieReplay)))
            }
            field::NVML_FI_DEV_ECC_SBE_VOL_TOTAL | field::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => {
                self.memory_errors(ErrorCounter::EccCorrected)
            }
            field::NVML_FI_DEV_ECC_DBE_VOL_TOTAL | field::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => {
                self.memory_errors(ErrorCounter::EccUncorrected)
            }
            field::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => {
                self.nvlink_errors(ErrorCounter::NvLinkCrc)
            }
            field::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => {
                self.nvlink_errors(ErrorCounter::NvLinkReplay)
            }
            field::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => {
                self.nvlink_errors(ErrorCounter::NvLinkRecovery)
            }
            field::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => {
                self.link_errors(ErrorCounter::NvLinkCrc, scope)
            }
            field::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => {
                self.link_errors(ErrorCounter::NvLinkReplay, scope)
            }
            field::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => {
                self.link_errors(ErrorCounter::NvLinkRecovery, scope)
            }
            field::NVML_FI_DEV_PERF_POLICY_POWER => Ok(self.throttled_ns(&[SwPowerCap])),
            field::NVML_FI_DEV_PERF_POLICY_THERMAL => {
                Ok(self.throttled_ns(&[SwThermalSlowdown, HwThermalSlowdown, HwSlowdown]))
            }
            field::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT => Ok(self.throttled_ns(&[HwPowerBrake])),
            field::NVML_FI_DEV_POWER_INSTANT | field::NVML_FI_DEV_POWER_AVERAGE => {
                Ok(number(self.gpu.health.power_w * 1000))
            }
            field::NVML_FI_DEV_POWER_CURRENT_LIMIT => {
                Ok(number(self.gpu.health.power_limit_w * 1000))
            }
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// Microseconds since 1970.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

exported! {
    /// Values of many kinds, each with a code of its own.
    fn nvmlDeviceGetFieldValues(
        device: nvmlDevice_t,
        count: c_int,
        values: *mut nvmlFieldValue_t
    ) {
        let device = device.device()?;
        values.there()?;
        let count = usize::try_from(count).ok().filter(|&count| count > 0);
        values.change_all(count.ok_or(INVALID_ARGUMENT)?, |asked| {
            let (nvmlReturn, (valueType, value)) = match device.field(asked.fieldId, asked.scopeId) {
                Ok(value) => (SUCCESS, value),
                Err(code) => (code, (0, nvmlValue_t { ullVal: 0 })),
            };
            let timestamp = now_us();
            nvmlFieldValue_t { timestamp, latencyUsec: 0, valueType, nvmlReturn, value, ..asked }
        });
        Ok(())
    }
}
