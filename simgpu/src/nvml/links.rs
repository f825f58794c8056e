//! Calls about what connects GPUs: NVLink, peer access, topology.

use libc::c_uint;
use nvml_wrapper_sys::bindings::{
    self as nvml, nvmlDevice_t, nvmlEnableState_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
    nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t,
    nvmlNvLinkCapability_t, nvmlPciInfo_t, nvmlReturn_t,
};

use super::{
    Answer, answer,
    codes::{ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED},
    device::{Device, pci_info, structure_version},
    exported,
    given::Argument,
};
use crate::machine::{FabricState, Link, Machine, NVLINKS_MAX, NvLinkEnd, pci::NVSWITCH_BUS};

/// Where the NVSwitch is in which all links end.
const SWITCH_PCI: (u32, u32, u32) = (NVSWITCH_BUS.0, NVSWITCH_BUS.1, 0);

impl Device {
    /// Whether there is a link of this number, and it is up.
    pub(super) fn is_up(&self, link: c_uint) -> Answer<bool> {
        let nvlinks = &self.gpu.nvlinks;
        match link {
            NVLINKS_MAX.. => Err(INVALID_ARGUMENT),
            _ if nvlinks.count == 0 => Err(NOT_SUPPORTED),
            _ if link >= nvlinks.count => Err(INVALID_ARGUMENT),
            _ => Ok(!nvlinks.down.contains(&link)),
        }
    }

    /// Where a link ends; one that is down ends nowhere.
    fn end(&self, link: c_uint) -> Answer<NvLinkEnd> {
        self.is_up(link)?;
        self.machine.nvlink_end(self.ordinal, link).ok_or(NOT_SUPPORTED)
    }

    /// NVML's number for its generation of NVLink.
    pub(super) fn nvlink_version(&self) -> c_uint {
        match self.gpu.nvlinks.generation {
            1 => nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0,
            2 => nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0,
            3 => nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_1,
            4 => nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0,
            _ => nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0,
        }
    }

    /// The raw rate of one link in one direction, in MB/s.
    pub(super) fn link_mb_s(&self) -> c_uint {
        match self.gpu.nvlinks.generation {
            1 => 20_000,
            2..=4 => 25_000,
            _ => 50_000,
        }
    }

    /// Whether this GPU can do to another what is asked.
    fn peer_status(
        &self,
        other: &Device,
        index: nvmlGpuP2PCapsIndex_t,
    ) -> Answer<nvmlGpuP2PStatus_t> {
        // Data goes from the other GPU in a read, and to it in a write.
        let read = self.machine.pair(other.ordinal, self.ordinal).ok_or(INVALID_ARGUMENT)?;
        let write = self.machine.pair(self.ordinal, other.ordinal).ok_or(INVALID_ARGUMENT)?;
        let reached = read.read_allowed || write.write_allowed;
        let can = match index {
            nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ => read.read_allowed,
            nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE => write.write_allowed,
            nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK => {
                reached && write.link != Link::Pcie
            }
            nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS => {
                write.write_allowed && write.atomics
            }
            nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_PROP => {
                reached && write.link == Link::Pcie
            }
            _ => return Err(INVALID_ARGUMENT),
        };
        Ok(match can {
            true => nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
            false => nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED,
        })
    }

    /// How its part of the NVSwitch fabric is. Before compute capability 9.0 GPUs report none.
    #[expect(clippy::cast_possible_truncation, reason = "states and summaries are 0 to 3")]
    fn fabric(&self, version: c_uint) -> nvmlGpuFabricInfoV_t {
        let nvlinks = &self.gpu.nvlinks;
        let health = &self.gpu.health;
        let usual = match nvlinks.switch && self.gpu.compute_capability >= (9, 0) {
            true => FabricState::Completed,
            false => FabricState::NotSupported,
        };
        let state = match health.fabric.unwrap_or(usual) {
            FabricState::NotSupported => nvml::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED,
            FabricState::NotStarted => nvml::NVML_GPU_FABRIC_STATE_NOT_STARTED,
            FabricState::InProgress => nvml::NVML_GPU_FABRIC_STATE_IN_PROGRESS,
            FabricState::Completed => nvml::NVML_GPU_FABRIC_STATE_COMPLETED,
        };
        let (degraded, summary) = match (state, nvlinks.down.is_empty()) {
            (nvml::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, _) => (
                nvml::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_NOT_SUPPORTED,
                nvml::NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED,
            ),
            (_, true) => (
                nvml::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE,
                nvml::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY,
            ),
            (_, false) => (
                nvml::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE,
                nvml::NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY,
            ),
        };
        nvmlGpuFabricInfoV_t {
            version,
            clusterUuid: health.cluster_uuid,
            status: health.fabric_status,
            cliqueId: health.clique,
            state: state as u8,
            healthMask: degraded << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
            healthSummary: summary as u8,
        }
    }
}

/// What two GPUs have in common on the way to the host. Those on one bus share its host bridge.
pub(crate) fn common_ancestor(machine: &Machine, one: u32, other: u32) -> nvmlGpuTopologyLevel_t {
    let [a, b] = [one, other].map(|ordinal| &machine.gpus[ordinal as usize]);
    if one == other {
        nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL
    } else if a.pcie_switch.is_some() && a.pcie_switch == b.pcie_switch {
        nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE
    } else if (a.pci.0, a.pci.1) == (b.pci.0, b.pci.1) {
        nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE
    } else if a.numa_node == b.numa_node {
        nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE
    } else {
        nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM
    }
}

exported! {
    /// Whether a link is up.
    fn nvmlDeviceGetNvLinkState(
        device: nvmlDevice_t,
        link: c_uint,
        state: *mut nvmlEnableState_t
    ) {
        state.put(nvmlEnableState_t::from(device.device()?.is_up(link)?))
    }

    /// NVML's number for the generation of a link.
    fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, version: *mut c_uint) {
        let device = device.device()?;
        device.is_up(link)?;
        version.put(device.nvlink_version())
    }

    /// What a link that is up can do: peer access and its atomics.
    fn nvmlDeviceGetNvLinkCapability(
        device: nvmlDevice_t,
        link: c_uint,
        capability: nvmlNvLinkCapability_t,
        can: *mut c_uint
    ) {
        let up = device.device()?.is_up(link)?;
        let has = match capability {
            nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED
            | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS
            | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID => true,
            nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ACCESS
            | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ATOMICS
            | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SLI_BRIDGE => false,
            _ => return Err(INVALID_ARGUMENT),
        };
        can.put(c_uint::from(has && up))
    }

    /// The PCI address of what a link ends in.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t,
        link: c_uint,
        pci: *mut nvmlPciInfo_t
    ) {
        let device = device.device()?;
        pci.put(match device.end(link)? {
            NvLinkEnd::Switch => pci_info(SWITCH_PCI, device.gpu.nvswitch_device_id()),
            NvLinkEnd::Gpu(peer) => {
                let peer = &device.machine.gpus[peer as usize];
                pci_info(peer.pci, peer.pci_device_id)
            }
        })
    }

    /// What a link ends in.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t,
        link: c_uint,
        kind: *mut nvmlIntNvLinkDeviceType_t
    ) {
        kind.put(match device.device()?.end(link)? {
            NvLinkEnd::Switch => nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            NvLinkEnd::Gpu(_) => nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
        })
    }

    /// Whether the first GPU can reach the second as the index asks.
    fn nvmlDeviceGetP2PStatus(
        device: nvmlDevice_t,
        other: nvmlDevice_t,
        index: nvmlGpuP2PCapsIndex_t,
        status: *mut nvmlGpuP2PStatus_t
    ) {
        status.put(device.device()?.peer_status(&other.device()?, index)?)
    }

    /// How near two GPUs are to each other, NVLink aside.
    fn nvmlDeviceGetTopologyCommonAncestor(
        device: nvmlDevice_t,
        other: nvmlDevice_t,
        level: *mut nvmlGpuTopologyLevel_t
    ) {
        let (device, other) = (device.device()?, other.device()?);
        level.put(common_ancestor(device.machine, device.ordinal, other.ordinal))
    }

    /// How a GPU's part of the NVSwitch fabric is.
    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, info: *mut nvmlGpuFabricInfoV_t) {
        let device = device.device()?;
        let version = info.version()?;
        let fabric = device.fabric(version);
        if version == structure_version::<nvmlGpuFabricInfoV_t>(3) {
            info.put(fabric)
        } else if version == structure_version::<nvmlGpuFabricInfo_v2_t>(2) {
            info.older().put(nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: fabric.clusterUuid,
                status: fabric.status,
                cliqueId: fabric.cliqueId,
                state: fabric.state,
                healthMask: fabric.healthMask,
            })
        } else {
            Err(ARGUMENT_VERSION_MISMATCH)
        }
    }
}
