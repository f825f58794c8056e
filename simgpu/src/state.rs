//! The machine that is simulated, as all its processes have it.

use crate::machine::Machine;

/// What has left and reached a GPU since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To other GPUs over NVLink.
    pub nvlink_tx_bytes: u64,
    /// From other GPUs over NVLink.
    pub nvlink_rx_bytes: u64,
    /// Over PCIe, to the host and to other GPUs.
    pub pcie_tx_bytes: u64,
    /// Over PCIe, from the host and from other GPUs.
    pub pcie_rx_bytes: u64,
}

/// The machine; `None` until there is one.
pub fn machine() -> Option<&'static Machine> {
    None
}

/// Traffic of the GPU of this ordinal.
pub fn traffic(_gpu: u32) -> Traffic {
    Traffic::default()
}

/// Bytes of the GPU's memory that are allocated, by all processes.
pub fn memory_used(_gpu: u32) -> u64 {
    0
}
