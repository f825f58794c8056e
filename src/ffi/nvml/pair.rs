//! The ways between two GPUs.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use serde::{Deserialize, Serialize};

use super::Nvml;

/// The way from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
