//! The network interfaces of a machine.

use serde::{Deserialize, Serialize};

/// A network interface: an Elastic Fabric Adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// The host that it is in.
    pub host: u32,
    /// PCI domain, bus, device.
    pub pci: (u32, u32, u32),
    /// The identity of the device among those of its vendor.
    pub pci_device_id: u32,
    /// What it is next to.
    pub place: Place,
    /// NUMA node of the host that is nearest.
    pub numa_node: u32,
    /// Rate of its port, in Gbit/s.
    pub rate_gbps: u32,
    /// State of its port.
    pub state: PortState,
    /// PCI Express generation now and at most.
    pub pcie_generation: (u32, u32),
    /// PCI Express lanes now and at most.
    pub pcie_lanes: (u32, u32),
}

impl Nic {
    /// Whether its port carries data.
    pub(crate) fn is_up(&self) -> bool {
        self.state == PortState::Active
    }
}

/// What a network interface is next to on PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// On the switch of this number.
    Switch(u32),
    /// On a switch with the GPU of this ordinal, if that is on no other.
    Gpu(u32),
    /// On a host bridge of its own.
    Alone,
}

/// The state of a port; the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// `DOWN`
    Down,
    /// `INIT`
    Init,
    /// `ARMED`
    Armed,
    /// `ACTIVE`
    Active,
}
