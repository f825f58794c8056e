//! Calls about one GPU.

use std::fmt::Write;

use libc::{c_char, c_int, c_uint, c_ulong, c_ulonglong};
use nvml_wrapper_sys::bindings::{
    self as nvml, nvmlAffinityScope_t, nvmlClockType_t, nvmlDevice_st, nvmlDevice_t,
    nvmlEccCounterType_t, nvmlEnableState_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlMemoryErrorType_t,
    nvmlPciInfo_t, nvmlPcieUtilCounter_t, nvmlReturn_t, nvmlTemperatureSensors_t,
};

use super::{
    Answer, answer,
    codes::{
        ARGUMENT_VERSION_MISMATCH, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED,
    },
    exported,
    given::{Argument, Given, handle},
    initialised, memory_used,
};
use crate::machine::{Gpu, Machine, Throttle};

/// NVIDIA, as a vendor of PCI devices.
const PCI_VENDOR: c_uint = 0x10de;

/// A GPU and what it is part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub machine: &'static Machine,
    pub ordinal: u32,
    pub gpu: &'static Gpu,
}

impl Given<nvmlDevice_st> {
    /// The GPU that a handle stands for.
    pub(super) fn device(self) -> Answer<Device> {
        let machine = initialised()?;
        let ordinal = self.ordinal().ok_or(INVALID_ARGUMENT)?;
        let gpu = machine.gpus.get(ordinal as usize).ok_or(INVALID_ARGUMENT)?;
        Ok(Device { machine, ordinal, gpu })
    }
}

/// The GPU of which this holds.
fn find(is_it: impl Fn(&Machine, u32, &Gpu) -> bool) -> Answer<nvmlDevice_t> {
    let machine = initialised()?;
    let mut gpus = (0..).zip(&machine.gpus);
    let found = gpus.find(|&(ordinal, gpu)| is_it(machine, ordinal, gpu));
    found.map(|(ordinal, _)| handle(ordinal)).ok_or(NOT_FOUND)
}

/// `GPU-` and the UUID in its usual form.
pub(crate) fn uuid(machine: &Machine, ordinal: u32) -> String {
    let mut text = String::from("GPU");
    let bytes = machine.uuid(ordinal);
    for group in [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]] {
        text.push('-');
        for byte in group {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

/// Domain, bus and device of an address such as `00000000:1A:00.0`; the domain may be left out.
fn pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    let (text, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let mut parts = text.rsplit(':');
    let device = hex(parts.next()?)?;
    let bus = hex(parts.next()?)?;
    let domain = parts.next().map_or(Some(0), hex)?;
    (parts.next().is_none() && hex(function)? == 0).then_some((domain, bus, device))
}

/// A PCI address as NVML gives it.
pub(super) fn pci_info((domain, bus, device): (u32, u32, u32), device_id: u32) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: device_id << 16 | PCI_VENDOR,
        pciSubSystemId: PCI_VENDOR,
        busId: text(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

/// A short text in a field of fixed length, with zeros behind it.
fn text<const LENGTH: usize>(of: &str) -> [c_char; LENGTH] {
    let mut field = [0; LENGTH];
    for (place, byte) in field[..LENGTH - 1].iter_mut().zip(of.bytes()) {
        *place = byte as c_char;
    }
    field
}

/// The clock of this kind, as it is at most.
fn clock_max(gpu: &Gpu, kind: nvmlClockType_t) -> Answer<c_uint> {
    match kind {
        nvml::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | nvml::nvmlClockType_enum_NVML_CLOCK_SM => {
            Ok(gpu.sm_clock_mhz)
        }
        nvml::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(gpu.memory_clock_mhz),
        nvml::nvmlClockType_enum_NVML_CLOCK_VIDEO => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The clock of this kind now: what holds a GPU down halves the clock of its multiprocessors.
fn clock(gpu: &Gpu, kind: nvmlClockType_t) -> Answer<c_uint> {
    let held_down = !gpu.throttle.is_empty() && kind != nvml::nvmlClockType_enum_NVML_CLOCK_MEM;
    Ok(if held_down { clock_max(gpu, kind)? / 2 } else { clock_max(gpu, kind)? })
}

/// The bits for what holds a GPU's clocks down.
fn throttle_reasons(gpu: &Gpu) -> c_ulonglong {
    let bit = |reason: &Throttle| match reason {
        Throttle::SwPowerCap => nvml::nvmlClocksThrottleReasonSwPowerCap,
        Throttle::HwSlowdown => nvml::nvmlClocksThrottleReasonHwSlowdown,
        Throttle::SwThermalSlowdown => nvml::nvmlClocksThrottleReasonSwThermalSlowdown,
        Throttle::HwThermalSlowdown => nvml::nvmlClocksThrottleReasonHwThermalSlowdown,
        Throttle::HwPowerBrake => nvml::nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    };
    gpu.throttle.iter().map(bit).fold(0, |all, bit| all | c_ulonglong::from(bit))
}

/// A set of processors or NUMA nodes, in as many words as the caller has.
fn put_set(members: &[u32], words: Given<c_ulong>, count: c_uint) -> Answer {
    let mut set = vec![0; count as usize];
    for member in members {
        let word = set.get_mut((member / c_ulong::BITS) as usize).ok_or(INSUFFICIENT_SIZE)?;
        *word |= 1 << (member % c_ulong::BITS);
    }
    words.put_all(&set, count)
}

exported! {
    /// The GPU of this ordinal.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) {
        match initialised()?.gpus.get(index as usize) {
            Some(_) => device.put(handle(index)),
            None => Err(INVALID_ARGUMENT),
        }
    }

    /// The GPU of this UUID, `GPU-` in front.
    fn nvmlDeviceGetHandleByUUID(asked: *const c_char, device: *mut nvmlDevice_t) {
        initialised()?;
        let asked = asked?;
        device.put(find(|machine, ordinal, _| uuid(machine, ordinal) == asked)?)
    }

    /// The GPU at this PCI address.
    fn nvmlDeviceGetHandleByPciBusId_v2(asked: *const c_char, device: *mut nvmlDevice_t) {
        initialised()?;
        let address = pci_address(&asked?).ok_or(INVALID_ARGUMENT)?;
        device.put(find(|_, _, gpu| gpu.pci == address)?)
    }

    /// Its name.
    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        name.put_text(&device.device()?.gpu.name, length)
    }

    /// Its UUID, which the driver gives too.
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, text: *mut c_char, length: c_uint) {
        let Device { machine, ordinal, .. } = device.device()?;
        text.put_text(&uuid(machine, ordinal), length)
    }

    /// Its ordinal, which is the driver's.
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) {
        index.put(device.device()?.ordinal)
    }

    /// Its PCI address and identity.
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let gpu = device.device()?.gpu;
        pci.put(pci_info(gpu.pci, gpu.pci_device_id))
    }

    /// Its memory.
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let Device { ordinal, gpu, .. } = device.device()?;
        let (total, used) = (gpu.memory_bytes, memory_used(ordinal));
        memory.put(nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    /// Its memory, none of which is reserved.
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let Device { ordinal, gpu, .. } = device.device()?;
        let version = memory.version()?;
        if version != structure_version::<nvmlMemory_v2_t>(2) {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let (total, used) = (gpu.memory_bytes, memory_used(ordinal));
        let free = total.saturating_sub(used);
        memory.put(nvmlMemory_v2_t { version, total, reserved: 0, free, used })
    }

    /// Generation of its PCIe link now.
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, generation: *mut c_uint) {
        generation.put(device.device()?.gpu.pcie_generation.0)
    }

    /// Generation of its PCIe link at most.
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, generation: *mut c_uint) {
        generation.put(device.device()?.gpu.pcie_generation.1)
    }

    /// Lanes of its PCIe link now.
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, lanes: *mut c_uint) {
        lanes.put(device.device()?.gpu.pcie_lanes.0)
    }

    /// Lanes of its PCIe link at most.
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, lanes: *mut c_uint) {
        lanes.put(device.device()?.gpu.pcie_lanes.1)
    }

    /// Not simulated: it is a rate over real time.
    fn nvmlDeviceGetPcieThroughput(
        device: nvmlDevice_t,
        counter: nvmlPcieUtilCounter_t,
        value: *mut c_uint
    ) {
        device.device()?;
        value.there()?;
        let known = counter < nvml::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT;
        Err(if known { NOT_SUPPORTED } else { INVALID_ARGUMENT })
    }

    /// A clock as it is now, in MHz.
    fn nvmlDeviceGetClockInfo(
        device: nvmlDevice_t,
        kind: nvmlClockType_t,
        mhz: *mut c_uint
    ) {
        mhz.put(clock(device.device()?.gpu, kind)?)
    }

    /// A clock as it is at most, in MHz.
    fn nvmlDeviceGetMaxClockInfo(
        device: nvmlDevice_t,
        kind: nvmlClockType_t,
        mhz: *mut c_uint
    ) {
        mhz.put(clock_max(device.device()?.gpu, kind)?)
    }

    /// What holds its clocks down, by the older name.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(
        device: nvmlDevice_t,
        reasons: *mut c_ulonglong
    ) {
        reasons.put(throttle_reasons(device.device()?.gpu))
    }

    /// What holds its clocks down.
    fn nvmlDeviceGetCurrentClocksEventReasons(
        device: nvmlDevice_t,
        reasons: *mut c_ulonglong
    ) {
        reasons.put(throttle_reasons(device.device()?.gpu))
    }

    /// Not simulated.
    fn nvmlDeviceGetTemperature(
        device: nvmlDevice_t,
        sensor: nvmlTemperatureSensors_t,
        celsius: *mut c_uint
    ) {
        device.device()?;
        celsius.there()?;
        let known = sensor < nvml::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_COUNT;
        Err(if known { NOT_SUPPORTED } else { INVALID_ARGUMENT })
    }

    /// Not simulated.
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, milliwatts: *mut c_uint) {
        device.device()?;
        milliwatts.there()?;
        Err(NOT_SUPPORTED)
    }

    /// Not simulated.
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, milliwatts: *mut c_uint) {
        device.device()?;
        milliwatts.there()?;
        Err(NOT_SUPPORTED)
    }

    /// Its compute capability.
    fn nvmlDeviceGetCudaComputeCapability(
        device: nvmlDevice_t,
        major: *mut c_int,
        minor: *mut c_int
    ) {
        let capability = device.device()?.gpu.compute_capability;
        minor.there()?;
        major.put(capability.0.cast_signed())?;
        minor.put(capability.1.cast_signed())
    }

    /// For GPUs whose memory is a NUMA node of the host; none here is.
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, node: *mut c_uint) {
        device.device()?;
        node.there()?;
        Err(NOT_SUPPORTED)
    }

    /// The NUMA node of the host that is nearest.
    fn nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t,
        words: c_uint,
        set: *mut c_ulong,
        scope: nvmlAffinityScope_t
    ) {
        let gpu = device.device()?.gpu;
        match scope {
            nvml::NVML_AFFINITY_SCOPE_NODE | nvml::NVML_AFFINITY_SCOPE_SOCKET => {
                put_set(&[gpu.numa_node], set, words)
            }
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// The simulated host's processors that are nearest.
    fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, set: *mut c_ulong) {
        let Device { machine, gpu, .. } = device.device()?;
        set.there()?;
        if words == 0 {
            return Err(INVALID_ARGUMENT);
        }
        put_set(&machine.cpus_of(gpu.numa_node), set, words)
    }

    /// Off, where the GPU could be divided.
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let gpu = device.device()?.gpu;
        pending.there()?;
        let divisible = matches!(gpu.compute_capability, (8, 0) | (9..=10, _));
        if !divisible {
            current.there()?;
            return Err(NOT_SUPPORTED);
        }
        current.put(nvml::NVML_DEVICE_MIG_DISABLE)?;
        pending.put(nvml::NVML_DEVICE_MIG_DISABLE)
    }

    /// On.
    fn nvmlDeviceGetEccMode(
        device: nvmlDevice_t,
        current: *mut nvmlEnableState_t,
        pending: *mut nvmlEnableState_t
    ) {
        device.device()?;
        pending.there()?;
        current.put(nvml::nvmlEnableState_enum_NVML_FEATURE_ENABLED)?;
        pending.put(nvml::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    /// None: what a machine corrupts on purpose, no memory has noticed.
    fn nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: *mut c_ulonglong
    ) {
        device.device()?;
        let known = kind < nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_COUNT
            && counter < nvml::nvmlEccCounterType_enum_NVML_ECC_COUNTER_TYPE_COUNT;
        if known { count.put(0) } else { Err(INVALID_ARGUMENT) }
    }

    /// None.
    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, count: *mut c_uint) {
        device.device()?;
        count.put(0)
    }
}

/// What a versioned structure of this type says in its first field.
#[expect(clippy::cast_possible_truncation, reason = "asserted in its first line")]
pub(super) const fn structure_version<T>(version: u32) -> u32 {
    assert!(size_of::<T>() < 1 << 24);
    size_of::<T>() as u32 | version << 24
}
