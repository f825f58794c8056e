//! What the system knows of its GPUs and of their links, through NVIDIA's management library.
//!
//! NVML counts GPUs in another order than the driver, and knows nothing of `CUDA_VISIBLE_DEVICES`:
//! they are named by their PCI address here. What a GPU or a driver does not report is `None`.

mod c2c;
mod condition;
mod confidential;
mod counters;
mod events;
mod fabric;
mod field;
mod link;
mod pair;

use std::{ffi::c_ulong, path::Path, sync::OnceLock};

use nvml_wrapper::{
    self as wrapper, Device,
    enum_wrappers::device::{Clock, ComputeMode},
    error::NvmlError,
    struct_wrappers::device::PciInfo,
};
use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

pub use self::{
    c2c::C2c,
    condition::Condition,
    counters::{Counters, Errors, LinkBytes, PcieBytes},
    events::Watch,
    fabric::{Fabric, FabricState},
    link::{NvLink, Remote},
    pair::{CommonAncestor, Pair, PeerStatus},
};
use super::{library::Loading, simulation};

/// The library, as its package names it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Words of a set of CPUs or NUMA nodes: room for the most that Linux can be built for.
const SET_WORDS: usize = 8192 / u64::BITS as usize;

/// NVIDIA's management library, loaded and initialised.
#[derive(Debug)]
pub struct Nvml {
    library: wrapper::Nvml,
}

/// A GPU as it is built in, and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its PCI address in the kernel's form, such as `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// Its product name.
    pub name: Option<String>,
    /// `GPU-` and five groups of digits.
    pub uuid: Option<String>,
    /// The NUMA node of the host that is nearest.
    pub numa_node: Option<u32>,
    /// The NUMA node that its own memory is, where the host uses it as one.
    pub memory_numa_node: Option<u32>,
    /// The CPUs that are nearest, in ascending order; a survey tells them as ranges.
    #[serde(skip)]
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
    /// Whether the driver keeps it ready while nobody uses it.
    pub persistence: Option<bool>,
    /// Whether its memory corrects errors.
    pub ecc: Option<bool>,
    /// Whose contexts it takes: `default`, `exclusive-process` or `prohibited`.
    pub compute_mode: Option<String>,
    /// The most that it may take, in thousandths of a watt, unless that has been changed.
    pub power_limit_default_mw: Option<u32>,
    /// The version of its firmware for the start.
    pub vbios: Option<String>,
    /// The version of what is stored on its board.
    pub inforom: Option<String>,
    /// How far it has come in joining the NVLink fabric, where there is one.
    pub fabric: Option<Fabric>,
    /// The links to a CPU on the same module.
    pub c2c: Option<C2c>,
    /// What an NVLink carries in one direction, in GB/s.
    pub nvlink_gb_s: Option<f64>,
    /// Its NVLinks, in the order of their numbers; those that are down too.
    pub nvlinks: Vec<NvLink>,
}

impl Gpu {
    /// Whether one of its NVLinks ends in a switch.
    pub fn has_switch(&self) -> bool {
        self.nvlinks.iter().any(|link| link.remote == Some(Remote::Switch))
    }

    /// Whether it has to join a fabric and has not.
    pub fn fabric_is_unready(&self) -> bool {
        let state = self.fabric.as_ref().map(|fabric| fabric.state);
        matches!(state, Some(FabricState::NotStarted | FabricState::InProgress))
    }
}

impl Nvml {
    /// The library of this machine, loaded by the first who asks.
    pub fn load() -> Result<&'static Self, String> {
        static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
        let load = || {
            let path = simulation::library().unwrap_or(Path::new(LIBRARY));
            let _loading = Loading::of(path);
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
            numa_node: numa_node(&device),
            memory_numa_node: device.numa_node_id().ok(),
            cpus: device.cpu_affinity(SET_WORDS).ok().map(|words| members(&words)),
            pcie_generation_max: device.max_pcie_link_gen().ok(),
            pcie_lanes_max: device.max_pcie_link_width().ok(),
            sm_clock_mhz_max: device.max_clock_info(Clock::SM).ok(),
            memory_clock_mhz_max: device.max_clock_info(Clock::Memory).ok(),
            mig: device.mig_mode().ok().map(|mode| mode.current != 0),
            persistence: device.is_in_persistent_mode().ok(),
            ecc: device.is_ecc_enabled().ok().map(|mode| mode.currently_enabled),
            compute_mode: device.compute_mode().ok().map(|mode| words(mode).to_owned()),
            power_limit_default_mw: device.power_management_limit_default().ok(),
            vbios: device.vbios_version().ok(),
            inforom: device.info_rom_image_version().ok(),
            fabric: self.fabric(&device),
            c2c: self.c2c(&device),
            nvlink_gb_s: self.nvlink_gb_s(&device),
            nvlinks: self.nvlinks(&device),
            pci_bus_id,
        })
    }

    /// How far the GPU at `pci_bus_id` has come in joining the NVLink fabric.
    pub fn fabric_of(&self, pci_bus_id: &str) -> Option<Fabric> {
        self.fabric(&self.device(pci_bus_id)?)
    }

    fn device(&self, pci_bus_id: &str) -> Option<Device<'_>> {
        self.library.device_by_pci_bus_id(pci_bus_id).ok()
    }
}

const fn words(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive-thread",
        ComputeMode::ExclusiveProcess => "exclusive-process",
        ComputeMode::Prohibited => "prohibited",
    }
}

/// The host's memory that is nearest. NVML's `NumaNodeId` is another: the GPU's own memory.
fn numa_node(device: &Device<'_>) -> Option<u32> {
    let nodes = device.memory_affinity(SET_WORDS, sys::NVML_AFFINITY_SCOPE_NODE).ok()?;
    members(&nodes).first().copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_of_a_set_are_the_numbers_of_its_bits() {
        assert!(members(&[]).is_empty());
        assert_eq!(members(&[0b1001, 0, 1 << 63]), [0, 3, 191]);
    }
}
