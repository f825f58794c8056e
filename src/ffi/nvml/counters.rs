//! A GPU's counters: bytes over its links, errors, and how long its clocks were throttled.
//!
//! Fields above 250 are not read: drivers from 580.82 on number them differently.

use std::ffi::c_uint;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{self as sys, field_id as field};
use serde::{Deserialize, Serialize};

use super::{Nvml, field::Value};

/// Fields that are of the GPU as a whole.
const OF_GPU: c_uint = 0;

/// What a GPU has counted since its driver was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// What its NVLinks have carried: those that count, in the order of their numbers; or why NVML
    /// does not report it.
    pub nvlinks: Result<Vec<LinkBytes>, String>,
    /// What its PCI Express link has carried, or why NVML does not report it.
    pub pcie: Result<PcieBytes, String>,
    /// Errors and the like.
    pub errors: Errors,
}

/// The data that an NVLink has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBytes {
    /// Its number on this GPU.
    pub number: u32,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
}

/// What a PCI Express link has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieBytes {
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// Bits of the counters, which begin at 0 again behind the largest number.
    pub bits: u32,
}

/// Errors of a GPU, and how long its clocks were throttled; `None` if NVML does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Errors {
    /// Errors of memory that were mended, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Errors of memory that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Packets that arrived wrong over NVLinks.
    pub nvlink_crc: Option<u64>,
    /// Packets that NVLinks sent again.
    pub nvlink_replays: Option<u64>,
    /// NVLinks that were trained again.
    pub nvlink_recoveries: Option<u64>,
    /// Packets that PCI Express sent again.
    pub pcie_replays: Option<u64>,
    /// How long the power limit has throttled clocks, in nanoseconds.
    pub power_throttled_ns: Option<u64>,
    /// For how long because of heat.
    pub thermal_throttled_ns: Option<u64>,
    /// For how long because of the board's limit.
    pub board_throttled_ns: Option<u64>,
}

impl Nvml {
    /// What the GPU at `pci_bus_id` has counted.
    ///
    /// # Errors
    ///
    /// There is no such GPU, or it does not answer: what the library says.
    pub fn counters(&self, pci_bus_id: &str) -> Result<Counters, String> {
        let device = self.library.device_by_pci_bus_id(pci_bus_id).map_err(words)?;
        let links = 0..sys::NVML_NVLINK_MAX_LINKS;
        let of_links = |ids: &[c_uint]| -> Vec<(c_uint, c_uint)> {
            links.clone().flat_map(|link| ids.iter().map(move |&id| (id, link))).collect()
        };
        let errors = [
            field::NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
            field::NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
            field::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            field::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            field::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            field::NVML_FI_DEV_PCIE_REPLAY_COUNTER,
            field::NVML_FI_DEV_PERF_POLICY_POWER,
            field::NVML_FI_DEV_PERF_POLICY_THERMAL,
            field::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
        ];
        let pcie = [field::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, field::NVML_FI_DEV_PCIE_COUNT_RX_BYTES];
        let data = [
            field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        ];
        let own = errors.iter().chain(&pcie).map(|&id| (id, OF_GPU));
        let asked: Vec<(c_uint, c_uint)> = own.chain(of_links(&data)).collect();
        let mut told = self.fields(&device, &asked).map_err(words)?;
        let data = told.split_off(errors.len() + pcie.len());
        let pcie = told.split_off(errors.len());
        let mut counted = errors_of(&told);
        // In KiB; older GPUs have only these.
        let mut nvlinks = link_bytes(&data, 1 << 10);
        if nvlinks.is_err() {
            let bytes = [
                field::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
                field::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
            ];
            nvlinks = link_bytes(&self.fields(&device, &of_links(&bytes)).map_err(words)?, 1);
        }
        if nvlinks.is_ok() && counted.nvlink_crc.is_none() {
            let ids = [
                field::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
                field::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
                field::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            ];
            let told = self.fields(&device, &of_links(&ids)).map_err(words)?;
            let sum = |place: usize| sum(told.iter().skip(place).step_by(ids.len()));
            counted = Errors {
                nvlink_crc: sum(0),
                nvlink_replays: sum(1),
                nvlink_recoveries: sum(2),
                ..counted
            };
        }
        Ok(Counters { nvlinks, pcie: pcie_bytes(&pcie), errors: counted })
    }
}

/// What the library says, as a part of a sentence.
fn words(err: NvmlError) -> String {
    err.to_string()
}

/// The bytes of links, from their values in turn: out and in, in units of `unit` bytes.
fn link_bytes(values: &[Value], unit: u64) -> Result<Vec<LinkBytes>, String> {
    let link = |(number, pair): (u32, &[Value])| match pair {
        [Ok(sent), Ok(received)] => Some(LinkBytes {
            number,
            sent: sent.value.saturating_mul(unit),
            received: received.value.saturating_mul(unit),
        }),
        _ => None,
    };
    let links: Vec<LinkBytes> = (0..).zip(values.chunks(2)).filter_map(link).collect();
    match values.first() {
        Some(Err(err)) if links.is_empty() => Err(err.to_string()),
        _ => Ok(links),
    }
}

fn pcie_bytes(values: &[Value]) -> Result<PcieBytes, String> {
    match values {
        [Ok(sent), Ok(received)] => Ok(PcieBytes {
            sent: sent.value,
            received: received.value,
            bits: sent.bits.min(received.bits),
        }),
        [Err(err), _] | [_, Err(err)] => Err(err.to_string()),
        _ => Err("the library gives no such values".to_owned()),
    }
}

fn errors_of(values: &[Value]) -> Errors {
    let value = |at: usize| values.get(at)?.as_ref().ok().map(|number| number.value);
    Errors {
        ecc_corrected: value(0),
        ecc_uncorrected: value(1),
        nvlink_crc: value(2),
        nvlink_replays: value(3),
        nvlink_recoveries: value(4),
        pcie_replays: value(5),
        power_throttled_ns: value(6),
        thermal_throttled_ns: value(7),
        board_throttled_ns: value(8),
    }
}

/// The sum of the values that NVML reports; `None` if it reports none.
fn sum<'a>(values: impl Iterator<Item = &'a Value>) -> Option<u64> {
    let told = values.filter_map(|value| value.as_ref().ok()).map(|number| number.value);
    told.reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::nvml::field::Number;

    const fn number(value: u64) -> Value {
        Ok(Number { value, bits: 64 })
    }

    #[test]
    fn links_that_count_are_told_and_else_why_none_does() {
        let values = [number(3), number(4), Err(NvmlError::InvalidArg), number(1), number(5)];
        let links = link_bytes(&values[..4], 1024).unwrap();
        assert_eq!(links, [LinkBytes { number: 0, sent: 3072, received: 4096 }]);
        let none = [Err(NvmlError::NotSupported), Err(NvmlError::NotSupported)];
        assert_eq!(link_bytes(&none, 1), Err(NvmlError::NotSupported.to_string()));
        assert_eq!(link_bytes(&[], 1), Ok(Vec::new()));
    }

    #[test]
    fn what_some_links_count_is_their_sum() {
        let values = [number(3), Err(NvmlError::NotSupported), number(4)];
        assert_eq!(sum(values.iter()), Some(7));
        assert_eq!(sum(values[1..2].iter()), None);
    }
}
