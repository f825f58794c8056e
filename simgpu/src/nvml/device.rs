//! Calls about one GPU.

use std::fmt::Write;

use libc::{c_char, c_int, c_uint, c_ulong};
use nvml_wrapper_sys::bindings::{
    self as nvml, nvmlAffinityScope_t, nvmlClockType_t, nvmlDevice_st, nvmlDevice_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlPciInfo_t, nvmlPcieUtilCounter_t, nvmlReturn_t,
};

use super::{
    Answer, answer,
    codes::{
        ARGUMENT_VERSION_MISMATCH, GPU_IS_LOST, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND,
        NOT_SUPPORTED,
    },
    exported,
    given::{Argument, Given, handle},
    initialised, memory_used, traffic,
};
use crate::{
    machine::{EccErrors, ErrorCounter, Gpu, Incident, Machine},
    state::Traffic,
};

/// NVIDIA, as a vendor of PCI devices.
const PCI_VENDOR: c_uint = 0x10de;

/// A GPU and what it is part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub machine: &'static Machine,
    pub ordinal: u32,
    pub gpu: &'static Gpu,
}

impl Device {
    /// The GPU with this number.
    pub(super) fn of(machine: &'static Machine, ordinal: u32) -> Option<Self> {
        let gpu = machine.gpus.get(ordinal as usize)?;
        Some(Self { machine, ordinal, gpu })
    }

    /// What its links have carried, in bytes, both ways together.
    pub(super) fn carried(&self) -> u64 {
        let Traffic { nvlink_tx_bytes, nvlink_rx_bytes, pcie_tx_bytes, pcie_rx_bytes } =
            traffic(self.ordinal);
        [nvlink_rx_bytes, pcie_tx_bytes, pcie_rx_bytes]
            .into_iter()
            .fold(nvlink_tx_bytes, u64::saturating_add)
    }

    /// What has happened to it, with the place of each among the machine's faults.
    pub(super) fn incidents(&self) -> impl Iterator<Item = (usize, &'static Incident)> {
        self.machine.incidents(self.ordinal, self.carried())
    }

    /// How many errors of a kind it has counted, from its beginning on.
    pub(super) fn errors(&self, of: ErrorCounter) -> u64 {
        let EccErrors { corrected, uncorrected } = self.gpu.health.ecc_errors;
        let before = match of {
            ErrorCounter::EccCorrected => corrected,
            ErrorCounter::EccUncorrected => uncorrected,
            _ => 0,
        };
        before.saturating_add(self.machine.errors(self.ordinal, self.carried(), of))
    }
}

impl Given<nvmlDevice_st> {
    /// The GPU that a handle stands for.
    pub(super) fn device(self) -> Answer<Device> {
        let machine = initialised()?;
        let ordinal = self.ordinal().ok_or(INVALID_ARGUMENT)?;
        let device = Device::of(machine, ordinal).ok_or(INVALID_ARGUMENT)?;
        if device.incidents().any(|(_, incident)| *incident == Incident::Lost) {
            return Err(GPU_IS_LOST);
        }
        Ok(device)
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
pub(super) fn clock_max(gpu: &Gpu, kind: nvmlClockType_t) -> Answer<c_uint> {
    match kind {
        nvml::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | nvml::nvmlClockType_enum_NVML_CLOCK_SM => {
            Ok(gpu.sm_clock_mhz)
        }
        nvml::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(gpu.memory_clock_mhz),
        nvml::nvmlClockType_enum_NVML_CLOCK_VIDEO => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
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

    /// A clock as it is at most, in MHz.
    fn nvmlDeviceGetMaxClockInfo(
        device: nvmlDevice_t,
        kind: nvmlClockType_t,
        mhz: *mut c_uint
    ) {
        mhz.put(clock_max(device.device()?.gpu, kind)?)
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
}

/// What a versioned structure of this type says in its first field.
#[expect(clippy::cast_possible_truncation, reason = "asserted in its first line")]
pub(super) const fn structure_version<T>(version: u32) -> u32 {
    assert!(size_of::<T>() < 1 << 24);
    size_of::<T>() as u32 | version << 24
}
