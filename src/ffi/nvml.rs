//! What the system knows of its GPUs and of their links, through NVIDIA's management library.
//!
//! NVML counts GPUs in another order than the driver, and knows nothing of `CUDA_VISIBLE_DEVICES`:
//! they are named by their PCI address here. What a GPU or a driver does not tell is `None`.

use std::{
    ffi::{c_uint, c_ulong},
    mem,
    path::Path,
    sync::OnceLock,
};

use nvml_wrapper::{
    self as wrapper, Device,
    enum_wrappers::device::{Clock, P2pCapabilitiesIndex, P2pStatus, TopologyLevel},
    error::NvmlError,
    struct_wrappers::device::PciInfo,
};
use nvml_wrapper_sys::bindings as sys;
use serde::Serialize;

use super::simulation;

/// The library, as its package names it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Words of a set of CPUs or NUMA nodes: room for the most that Linux can be built for.
const SET_WORDS: usize = 8192 / u64::BITS as usize;

/// `nvmlGpuFabricInfo_v2` of nvml.h: the struct's 36 bytes, and its version in the highest byte.
/// It is the beginning of the newer struct, and all that older drivers know.
const FABRIC_INFO_V2: c_uint = 36 | 2 << 24;

/// NVIDIA's management library, loaded and initialised.
#[derive(Debug)]
pub struct Nvml {
    library: wrapper::Nvml,
}

/// A GPU as it is built in, and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its PCI address in the kernel's form, such as `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// Its product name.
    pub name: Option<String>,
    /// `GPU-` and five groups of digits.
    pub uuid: Option<String>,
    /// The NUMA node of the host that is nearest.
    pub numa_node: Option<u32>,
    /// The CPUs that are nearest, in ascending order.
    pub cpus: Option<Vec<u32>>,
    /// The newest PCI Express generation that it and its slot have.
    pub pcie_generation_max: Option<u32>,
    /// The most PCI Express lanes that it and its slot have.
    pub pcie_lanes_max: Option<u32>,
    /// The highest clock of its multiprocessors, in MHz.
    pub sm_clock_mhz_max: Option<u32>,
    /// The highest clock of its memory, in MHz.
    pub memory_clock_mhz_max: Option<u32>,
    /// Whether it is cut into instances.
    pub mig: Option<bool>,
    /// Whether its memory corrects errors.
    pub ecc: Option<bool>,
    /// How far it has come in joining the NVLink fabric, where there is one.
    pub fabric: Option<Fabric>,
    /// Its NVLinks, in the order of their numbers; those that are down too.
    pub nvlinks: Vec<NvLink>,
}

/// What changes from moment to moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The PCI Express generation in use; an idle GPU goes back to an older one.
    pub pcie_generation: Option<u32>,
    /// The PCI Express lanes in use.
    pub pcie_lanes: Option<u32>,
    /// The clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// The clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Why clocks are held down, by NVML's names: `gpu_idle`, `sw_power_cap`, `hw_slowdown`, …
    pub throttle_reasons: Option<Vec<String>>,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvLink {
    /// Its number on this GPU, from 0.
    pub number: u32,
    /// Whether it is up.
    pub active: bool,
    /// NVML's number for its generation.
    pub version: Option<u32>,
    /// What is at its other end.
    pub remote: Option<Remote>,
    /// The PCI address of what is at its other end.
    pub remote_pci_bus_id: Option<String>,
}

/// What an NVLink ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU with NVLinks.
    Cpu,
}

/// How far a GPU has come in joining the NVLink fabric, which Fabric Manager arranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// There is none for it.
    NotSupported,
    /// It has not begun.
    NotStarted,
    /// It is under way.
    InProgress,
    /// It is done, well or not.
    Completed,
}

/// The way from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Whether one may read the other's memory.
    pub read: Option<PeerStatus>,
    /// Whether one may write the other's memory.
    pub write: Option<PeerStatus>,
    /// Whether NVLink carries it.
    pub nvlink: Option<PeerStatus>,
    /// Whether atomic operations work on the other's memory.
    pub atomics: Option<PeerStatus>,
    /// Where their ways over PCI Express meet.
    pub common_ancestor: Option<CommonAncestor>,
}

/// Whether something between two GPUs works, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerStatus {
    /// It works.
    Ok,
    /// The chipset does not support it.
    ChipsetNotSupported,
    /// One of the GPUs does not support it.
    GpuNotSupported,
    /// What lies between them does not support it.
    TopologyNotSupported,
    /// A setting of the driver forbids it.
    DisabledBySetting,
    /// It does not work, for no reason given.
    NotSupported,
    /// The library cannot tell.
    Unknown,
}

/// Where the ways of two GPUs meet, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommonAncestor {
    /// On one board.
    Internal,
    /// In one PCI Express switch; `PIX` in `nvidia-smi topo`.
    SingleSwitch,
    /// In several PCI Express switches; `PXB`.
    MultipleSwitches,
    /// In a host bridge; `PHB`.
    HostBridge,
    /// In a NUMA node, between its host bridges; `NODE`.
    NumaNode,
    /// Between NUMA nodes; `SYS`.
    System,
}

impl Nvml {
    /// The library of this machine, loaded by the first who asks.
    ///
    /// # Errors
    ///
    /// There is none, or it does not start.
    pub fn load() -> Result<&'static Self, String> {
        static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
        let load = || {
            let path = simulation::library().unwrap_or(Path::new(LIBRARY));
            let library = wrapper::Nvml::builder().lib_path(path.as_os_str()).init();
            library.map(|library| Self { library }).map_err(|err| match err {
                NvmlError::LibloadingError(err) => format!("{err}: it comes with NVIDIA's driver"),
                err => format!("cannot start {}: {err}", path.display()),
            })
        };
        NVML.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// The driver's version, such as `570.86.15`.
    pub fn driver_version(&self) -> Option<String> {
        self.library.sys_driver_version().ok()
    }

    /// The GPU at `pci_bus_id`; `None` if there is none that this process may ask.
    pub fn gpu(&self, pci_bus_id: &str) -> Option<Gpu> {
        let device = self.device(pci_bus_id)?;
        let pci_bus_id = kernel_form(&device.pci_info().ok()?);
        Some(Gpu {
            name: device.name().ok(),
            uuid: device.uuid().ok(),
            numa_node: numa_node(&device, &pci_bus_id),
            cpus: device.cpu_affinity(SET_WORDS).ok().map(|words| members(&words)),
            pcie_generation_max: device.max_pcie_link_gen().ok(),
            pcie_lanes_max: device.max_pcie_link_width().ok(),
            sm_clock_mhz_max: device.max_clock_info(Clock::SM).ok(),
            memory_clock_mhz_max: device.max_clock_info(Clock::Memory).ok(),
            mig: device.mig_mode().ok().map(|mode| mode.current != 0),
            ecc: device.is_ecc_enabled().ok().map(|mode| mode.currently_enabled),
            fabric: self.fabric(&device),
            nvlinks: self.nvlinks(&device),
            pci_bus_id,
        })
    }

    /// How the GPU at `pci_bus_id` is doing now; `None` as for [`Nvml::gpu`].
    pub fn condition(&self, pci_bus_id: &str) -> Option<Condition> {
        let device = self.device(pci_bus_id)?;
        let reasons = device.current_throttle_reasons().ok();
        Some(Condition {
            pcie_generation: device.current_pcie_link_gen().ok(),
            pcie_lanes: device.current_pcie_link_width().ok(),
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            throttle_reasons: reasons.map(|reasons| {
                reasons.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
            }),
        })
    }

    /// The way from the GPU at one PCI address to that at another; `None` as for [`Nvml::gpu`].
    pub fn pair(&self, pci_bus_id: &str, peer_pci_bus_id: &str) -> Option<Pair> {
        let device = self.device(pci_bus_id)?;
        let peer = self.device(peer_pci_bus_id)?;
        let status = |index| device.p2p_status(&peer, index).ok().map(PeerStatus::from);
        Some(Pair {
            read: status(P2pCapabilitiesIndex::Read),
            write: status(P2pCapabilitiesIndex::Write),
            nvlink: status(P2pCapabilitiesIndex::NvLink),
            atomics: status(P2pCapabilitiesIndex::Atomics),
            common_ancestor: device.topology_common_ancestor(peer).ok().map(CommonAncestor::from),
        })
    }

    fn device(&self, pci_bus_id: &str) -> Option<Device<'_>> {
        self.library.device_by_pci_bus_id(pci_bus_id).ok()
    }

    fn nvlinks(&self, device: &Device<'_>) -> Vec<NvLink> {
        // A GPU without NVLinks, or with fewer, answers an error for those that it has not.
        let link = |number| {
            let link = device.link_wrapper_for(number);
            Some(NvLink {
                number,
                active: link.is_active().ok()?,
                version: link.version().ok(),
                remote: self.remote(device, number),
                remote_pci_bus_id: link.remote_pci_info().ok().map(|remote| kernel_form(&remote)),
            })
        };
        (0..sys::NVML_NVLINK_MAX_LINKS).filter_map(link).collect()
    }

    /// What a link ends in; the wrapper's own call gives its answer away.
    fn remote(&self, device: &Device<'_>, number: c_uint) -> Option<Remote> {
        let ask = self.library.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        // SAFETY: the handle is a device's; `kind` is a live local that the call only writes.
        let code = unsafe { ask(handle, number, &raw mut kind) };
        if code != sys::nvmlReturn_enum_NVML_SUCCESS {
            return None;
        }
        match kind {
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => Some(Remote::Gpu),
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => {
                Some(Remote::Switch)
            }
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU => Some(Remote::Cpu),
            _ => None,
        }
    }

    /// The wrapper has no call for it.
    fn fabric(&self, device: &Device<'_>) -> Option<Fabric> {
        let ask = self.library.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        // SAFETY: an all-zero value is a valid one of this plain C struct.
        let mut info: sys::nvmlGpuFabricInfoV_t = unsafe { mem::zeroed() };
        info.version = FABRIC_INFO_V2;
        // SAFETY: the handle is a device's; `info` is a live local, larger than what the call
        // writes for the version that it names.
        let code = unsafe { ask(handle, &raw mut info) };
        if code != sys::nvmlReturn_enum_NVML_SUCCESS {
            return None;
        }
        match u32::from(info.state) {
            sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => Some(Fabric::NotSupported),
            sys::NVML_GPU_FABRIC_STATE_NOT_STARTED => Some(Fabric::NotStarted),
            sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS => Some(Fabric::InProgress),
            sys::NVML_GPU_FABRIC_STATE_COMPLETED => Some(Fabric::Completed),
            _ => None,
        }
    }
}

/// The kernel's own word about a real GPU; else what NVML says. NVML's `NumaNodeId` is not asked:
/// it is the node that the GPU's own memory is, on machines where it is one.
fn numa_node(device: &Device<'_>, pci_bus_id: &str) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{pci_bus_id}/numa_node");
    let text = simulation::library().is_none().then(|| std::fs::read_to_string(path).ok());
    // The kernel writes -1 where it does not know.
    let told = text.flatten().and_then(|text| text.trim().parse().ok());
    told.or_else(|| {
        let nodes = device.memory_affinity(SET_WORDS, sys::NVML_AFFINITY_SCOPE_NODE).ok()?;
        members(&nodes).first().copied()
    })
}

/// The numbers of the bits that are set.
fn members(words: &[c_ulong]) -> Vec<u32> {
    let bits = c_ulong::BITS;
    let is_set = |number: &u32| words[(number / bits) as usize] >> (number % bits) & 1 == 1;
    (0..).take(words.len() * bits as usize).filter(is_set).collect()
}

/// A PCI address as Linux writes it; NVML's own has four more digits, and capitals.
fn kernel_form(pci: &PciInfo) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
}

impl From<P2pStatus> for PeerStatus {
    fn from(status: P2pStatus) -> Self {
        match status {
            P2pStatus::Ok => Self::Ok,
            P2pStatus::ChipsetNotSupported => Self::ChipsetNotSupported,
            P2pStatus::GpuNotSupported => Self::GpuNotSupported,
            P2pStatus::IohTopologyNotSupported => Self::TopologyNotSupported,
            P2pStatus::DisabledByRegkey => Self::DisabledBySetting,
            P2pStatus::NotSupported => Self::NotSupported,
            P2pStatus::Unknown => Self::Unknown,
        }
    }
}

impl From<TopologyLevel> for CommonAncestor {
    fn from(level: TopologyLevel) -> Self {
        match level {
            TopologyLevel::Internal => Self::Internal,
            TopologyLevel::Single => Self::SingleSwitch,
            TopologyLevel::Multiple => Self::MultipleSwitches,
            TopologyLevel::HostBridge => Self::HostBridge,
            TopologyLevel::Node => Self::NumaNode,
            TopologyLevel::System => Self::System,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_of_a_set_are_the_numbers_of_its_bits() {
        assert!(members(&[]).is_empty());
        assert_eq!(members(&[0b1001, 0, 1 << 63]), [0, 3, 191]);
    }
}
