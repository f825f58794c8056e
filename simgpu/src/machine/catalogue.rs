//! What the project's catalogue knows of EC2 instances and their GPUs. A key that it lacks is not
//! known: what stands in for it is decided in [`super::instance`].

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

/// The catalogue, as it was when this library was built.
pub(super) static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/plan/catalogue.toml"));
    toml::from_str(text).expect("a test loads every instance of the embedded catalogue")
});

/// The parts of the catalogue that describe a machine.
#[derive(Debug, Deserialize)]
pub(super) struct Catalogue {
    pub gpu: BTreeMap<String, Gpu>,
    pub instance: BTreeMap<String, Instance>,
    pub pcie: Pcie,
}

/// A type of GPU.
#[derive(Debug, Deserialize)]
pub(super) struct Gpu {
    pub compute_capability: Option<f64>,
    pub mem_bw_gbs: Option<f64>,
    pub nvlink_gbs_per_link_per_dir: Option<f64>,
    pub device_host_interface: Option<String>,
}

/// An instance type.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    pub gpu: String,
    pub gpu_count: u32,
    pub gpu_mem_mib: Option<u64>,
    pub gpu_mem_gb: Option<u64>,
    pub gpu_pcie_gen: Option<u32>,
    pub gpu_pcie_lanes: Option<u32>,
    pub gpus_per_pcie_switch: Option<u32>,
    pub host_link: Option<HostLink>,
    pub host_link_bidir_gbs: Option<f64>,
    pub numa_nodes: Option<u32>,
    pub nvlink_gen: Option<u32>,
    pub nvlink_links_per_gpu: Option<u32>,
    pub p2p: Option<PeerAccess>,
    pub network_gbps: Option<f64>,
    pub efa: Option<bool>,
    pub efa_gen: Option<u32>,
    pub efa_rdma_read: Option<bool>,
    pub efa_rdma_write: Option<bool>,
    pub efa_interfaces: Option<u32>,
    pub efa_total_gbps: Option<u32>,
    pub nitro: Option<u32>,
    pub gpudirect_rdma: Option<bool>,
    pub imex_required: Option<bool>,
    pub family: String,
    pub vcpus: Option<u32>,
    pub arch: Option<Architecture>,
    pub cpu_vendor: Option<CpuVendor>,
    pub host_mem_mib: Option<u64>,
    pub hypervisor: Option<Hypervisor>,
    pub bare_metal: Option<bool>,
}

/// The processors' instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Architecture {
    Amd64,
    Arm64,
}

/// Whose processors they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CpuVendor {
    Intel,
    Amd,
    Aws,
}

/// What an instance runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Hypervisor {
    Xen,
    Nitro,
}

/// What connects GPUs to the host where it is not PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum HostLink {
    #[serde(rename = "nvlink-c2c")]
    NvLinkC2c,
}

/// How GPUs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PeerAccess {
    NvswitchAllPairs,
    Nvlink,
    NvlinkHybridCubeMesh,
    Pcie,
    Unsupported,
    UnsupportedOrBroken,
}

/// PCIe by generation.
#[derive(Debug, Deserialize)]
pub(super) struct Pcie {
    tlp_overhead_bytes_4dw: f64,
    gen1: PcieGeneration,
    gen2: PcieGeneration,
    gen3: PcieGeneration,
    gen4: PcieGeneration,
    gen5: PcieGeneration,
}

#[derive(Debug, Deserialize)]
struct PcieGeneration {
    raw_gbs_per_lane_per_dir: f64,
}

impl Pcie {
    /// What a link carries of payload in one direction, in GB/s, in packets of 256 bytes.
    pub(super) fn payload_gb_s(&self, generation: u32, lanes: u32) -> f64 {
        let generation = match generation {
            1 => &self.gen1,
            2 => &self.gen2,
            3 => &self.gen3,
            4 => &self.gen4,
            _ => &self.gen5,
        };
        let payload = 256.0;
        let efficiency = payload / (payload + self.tlp_overhead_bytes_4dw);
        generation.raw_gbs_per_lane_per_dir * f64::from(lanes) * efficiency
    }
}
