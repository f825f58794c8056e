//! Calls about how a GPU is doing: clocks, temperature, power, errors; and its settings.

use libc::{c_char, c_uint, c_ulonglong};
use nvml_wrapper_sys::bindings::{
    self as nvml, nvmlClockType_t, nvmlComputeMode_t, nvmlDevice_t, nvmlEccCounterType_t,
    nvmlEnableState_t, nvmlMemoryErrorType_t, nvmlReturn_t, nvmlTemperatureSensors_t,
};

use super::{
    Answer, answer, clock_share,
    codes::{INVALID_ARGUMENT, NOT_SUPPORTED},
    device::{Device, clock_max},
    exported,
    given::Argument,
};
use crate::machine::{ComputeMode, ErrorCounter, Throttle, is_divisible};

impl Device {
    /// What holds its clocks down now.
    fn throttle(&self) -> Vec<Throttle> {
        self.machine.throttle(self.ordinal, self.carried())
    }

    /// The bits for it.
    fn throttle_bits(&self) -> c_ulonglong {
        let bit = |reason: Throttle| match reason {
            Throttle::GpuIdle => nvml::nvmlClocksThrottleReasonGpuIdle,
            Throttle::ApplicationsClocksSetting => {
                nvml::nvmlClocksThrottleReasonApplicationsClocksSetting
            }
            Throttle::SyncBoost => nvml::nvmlClocksThrottleReasonSyncBoost,
            Throttle::DisplayClockSetting => nvml::nvmlClocksThrottleReasonDisplayClockSetting,
            Throttle::SwPowerCap => nvml::nvmlClocksThrottleReasonSwPowerCap,
            Throttle::HwSlowdown => nvml::nvmlClocksThrottleReasonHwSlowdown,
            Throttle::SwThermalSlowdown => nvml::nvmlClocksThrottleReasonSwThermalSlowdown,
            Throttle::HwThermalSlowdown => nvml::nvmlClocksThrottleReasonHwThermalSlowdown,
            Throttle::HwPowerBrake => nvml::nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        };
        self.throttle().into_iter().map(bit).fold(0, |all, bit| all | c_ulonglong::from(bit))
    }

    /// The clock of this kind now, after the load so far. What holds a GPU down halves the clock of
    /// its multiprocessors.
    fn clock(&self, kind: nvmlClockType_t) -> Answer<c_uint> {
        let most = clock_max(self.gpu, kind)?;
        let is_memory = kind == nvml::nvmlClockType_enum_NVML_CLOCK_MEM;
        let most = if is_memory || self.throttle().is_empty() { most } else { most / 2 };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most MHz")]
        let mhz = (f64::from(most) * clock_share(self.ordinal)).round() as c_uint;
        Ok(mhz)
    }
}

exported! {
    /// A clock as it is now, in MHz.
    fn nvmlDeviceGetClockInfo(
        device: nvmlDevice_t,
        kind: nvmlClockType_t,
        mhz: *mut c_uint
    ) {
        mhz.put(device.device()?.clock(kind)?)
    }

    /// What holds its clocks down, by the older name.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(
        device: nvmlDevice_t,
        reasons: *mut c_ulonglong
    ) {
        reasons.put(device.device()?.throttle_bits())
    }

    /// What holds its clocks down.
    fn nvmlDeviceGetCurrentClocksEventReasons(
        device: nvmlDevice_t,
        reasons: *mut c_ulonglong
    ) {
        reasons.put(device.device()?.throttle_bits())
    }

    /// The temperature of its chip, in degrees Celsius.
    fn nvmlDeviceGetTemperature(
        device: nvmlDevice_t,
        sensor: nvmlTemperatureSensors_t,
        celsius: *mut c_uint
    ) {
        let device = device.device()?;
        if sensor >= nvml::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_COUNT {
            return Err(INVALID_ARGUMENT);
        }
        celsius.put(device.gpu.health.temperature_c)
    }

    /// What it takes.
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, milliwatts: *mut c_uint) {
        milliwatts.put(device.device()?.gpu.health.power_w * 1000)
    }

    /// The most that it may take.
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, milliwatts: *mut c_uint) {
        milliwatts.put(device.device()?.gpu.health.power_limit_w * 1000)
    }

    /// The same, as it is built.
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, milliwatts: *mut c_uint) {
        milliwatts.put(device.device()?.gpu.health.power_limit_default_w * 1000)
    }

    /// Whose contexts it takes.
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: *mut nvmlComputeMode_t) {
        mode.put(match device.device()?.gpu.health.compute_mode {
            ComputeMode::Default => nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
            ComputeMode::Prohibited => nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
        })
    }

    /// Whether the driver keeps it ready while nobody uses it.
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: *mut nvmlEnableState_t) {
        mode.put(nvmlEnableState_t::from(device.device()?.gpu.health.persistence))
    }

    /// The version of its firmware for the start.
    fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, version: *mut c_char, length: c_uint) {
        version.put_text(&device.device()?.gpu.health.vbios, length)
    }

    /// The version of what is stored on its board.
    fn nvmlDeviceGetInforomImageVersion(
        device: nvmlDevice_t,
        version: *mut c_char,
        length: c_uint
    ) {
        version.put_text(&device.device()?.gpu.health.inforom, length)
    }

    /// Whether it is cut into instances, where it could be.
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let gpu = device.device()?.gpu;
        pending.there()?;
        if !is_divisible(gpu.compute_capability) {
            current.there()?;
            return Err(NOT_SUPPORTED);
        }
        let mode = match gpu.health.mig {
            true => nvml::NVML_DEVICE_MIG_ENABLE,
            false => nvml::NVML_DEVICE_MIG_DISABLE,
        };
        current.put(mode)?;
        pending.put(mode)
    }

    /// Whether its memory corrects errors.
    fn nvmlDeviceGetEccMode(
        device: nvmlDevice_t,
        current: *mut nvmlEnableState_t,
        pending: *mut nvmlEnableState_t
    ) {
        let mode = nvmlEnableState_t::from(device.device()?.gpu.health.ecc);
        pending.there()?;
        current.put(mode)?;
        pending.put(mode)
    }

    /// Errors of its memory that it has noticed; what a machine corrupts on purpose is none.
    fn nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: *mut c_ulonglong
    ) {
        let device = device.device()?;
        let of = match kind {
            nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => {
                ErrorCounter::EccCorrected
            }
            nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => {
                ErrorCounter::EccUncorrected
            }
            _ => return Err(INVALID_ARGUMENT),
        };
        if counter >= nvml::nvmlEccCounterType_enum_NVML_ECC_COUNTER_TYPE_COUNT {
            return Err(INVALID_ARGUMENT);
        }
        if device.gpu.health.ecc { count.put(device.errors(of)) } else { Err(NOT_SUPPORTED) }
    }

    /// Packets that its PCIe link has sent again.
    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, count: *mut c_uint) {
        let replays = device.device()?.errors(ErrorCounter::PcieReplay);
        count.put(c_uint::try_from(replays).unwrap_or(c_uint::MAX))
    }
}
