//! The entries of the catalogue, key by key as its file has them. A key that an entry lacks is not
//! known: it is never to be read as no or 0.

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// A number above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct Positive(f64);

impl Positive {
    /// The bare number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Positive {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let within = number.is_finite() && number > 0.0;
        within.then_some(Self(number)).ok_or_else(|| format!("{number} is not a number above 0"))
    }
}

/// The most GPUs, NUMA nodes or interfaces that one machine is taken to have.
const PARTS_MAX: u32 = 1024;

fn within_parts_max<'de, D: Deserializer<'de>>(count: u32) -> Result<u32, D::Error> {
    let within = (count <= PARTS_MAX).then_some(count);
    within.ok_or_else(|| Error::custom(format!("{count} is more than {PARTS_MAX}")))
}

/// A count of parts that a machine has.
fn parts<'de, D: Deserializer<'de>>(from: D) -> Result<NonZeroU32, D::Error> {
    let count = NonZeroU32::deserialize(from)?;
    within_parts_max::<D>(count.get()).map(|_| count)
}

/// A count of parts that may not be known.
fn known_parts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU32>, D::Error> {
    parts(from).map(Some)
}

/// A count of parts that may not be known, or of which a machine may have none.
fn parts_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    within_parts_max::<D>(u32::deserialize(from)?).map(Some)
}

/// How the GPUs of an instance reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerAccess {
    /// Each pair by all NVLinks of both, through switches.
    NvswitchAllPairs,
    /// By NVLinks from GPU to GPU.
    Nvlink,
    /// By NVLinks from GPU to GPU, which not every pair has.
    NvlinkHybridCubeMesh,
    /// Over PCIe.
    Pcie,
    /// Not at all.
    Unsupported,
    /// The driver refuses it, or grants it and it does not work.
    UnsupportedOrBroken,
}

/// What connects GPUs to their host where it is not PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostLink {
    /// NVLink from chip to chip.
    #[serde(rename = "nvlink-c2c")]
    NvLinkC2c,
}

/// A type of GPU. Rates are in GB/s in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// What it is called.
    pub name: String,
    /// What the driver calls it, without the `NVIDIA` or `Tesla` before it.
    #[serde(default)]
    pub driver_names: Vec<String>,
    /// Major and minor compute capability.
    pub compute_capability: Option<Positive>,
    /// The label of its memory under which it is sold.
    pub mem_gb: Option<NonZeroU32>,
    /// The kind of its memory.
    pub mem_type: Option<String>,
    /// What its memory moves.
    pub mem_bw_gbs: Option<Positive>,
    /// What its memory moves by its advertisement, where that is another number.
    pub mem_bw_marketing_gbs: Option<Positive>,
    /// Generation of its NVLinks; 0: it has none.
    pub nvlink_gen: Option<u32>,
    /// How many NVLinks it has.
    pub nvlink_links: Option<u32>,
    /// The raw rate of one of them.
    pub nvlink_gbs_per_link_per_dir: Option<Positive>,
    /// The raw rate of all of them.
    pub nvlink_gbs_per_gpu_per_dir: Option<Positive>,
    /// Whether NVSwitches reduce and multicast for it.
    pub nvls_multicast: Option<bool>,
    /// What connects it to the host: a generation of PCIe and its lanes, or another link.
    pub device_host_interface: Option<String>,
    /// Where this is from.
    #[serde(default)]
    pub src: Vec<String>,
}

/// An instance type, or a machine of the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The part of its name before the dot.
    pub family: Option<String>,
    /// Key of its type of GPU.
    pub gpu: String,
    /// What the GPU is called.
    pub gpu_name: Option<String>,
    /// GPUs in one instance.
    #[serde(deserialize_with = "parts")]
    pub gpu_count: NonZeroU32,
    /// Memory of one GPU, in MiB.
    pub gpu_mem_mib: Option<u64>,
    /// The label of a GPU's memory under which it is sold.
    pub gpu_mem_gb: Option<u64>,
    /// Processors that the guest sees.
    pub vcpus: Option<u32>,
    /// Architecture of the processors: `amd64` or `arm64`.
    pub arch: Option<String>,
    /// Who makes the processors.
    pub cpu_vendor: Option<String>,
    /// Memory of the host, in MiB.
    pub host_mem_mib: Option<u64>,
    /// What the guest runs on.
    pub hypervisor: Option<String>,
    /// Whether there is no hypervisor.
    pub bare_metal: Option<bool>,
    /// All of its network, in Gbit/s.
    pub network_gbps: Option<Positive>,
    /// Whether it has EFA.
    pub efa: Option<bool>,
    /// Interfaces of EFA.
    #[serde(default, deserialize_with = "parts_if_any")]
    pub efa_interfaces: Option<u32>,
    /// Network cards.
    pub network_cards: Option<u32>,
    /// Version of the Nitro cards.
    pub nitro: Option<u32>,
    /// Whether EFA reads memory of another host by itself.
    pub efa_rdma_read: Option<bool>,
    /// Whether EFA writes into memory of another host by itself.
    pub efa_rdma_write: Option<bool>,
    /// Generation of EFA.
    pub efa_gen: Option<u32>,
    /// What all EFA interfaces carry together, in Gbit/s.
    pub efa_total_gbps: Option<Positive>,
    /// A GPU's share of it, in Gbit/s.
    pub efa_gbps_per_gpu: Option<Positive>,
    /// Whether EFA's interfaces reach memory of GPUs.
    pub gpudirect_rdma: Option<bool>,
    /// NUMA nodes of the host.
    #[serde(default, deserialize_with = "known_parts")]
    pub numa_nodes: Option<NonZeroU32>,
    /// Generation of the NVLinks; 0: there are none.
    pub nvlink_gen: Option<u32>,
    /// NVLinks of one GPU.
    pub nvlink_links_per_gpu: Option<u32>,
    /// The raw rate of all NVLinks of one GPU, in GB/s in one direction.
    pub nvlink_gbs_per_gpu_per_dir: Option<Positive>,
    /// Whether NVLinks end in switches.
    pub nvswitch: Option<bool>,
    /// How the GPUs reach each other.
    pub p2p: Option<PeerAccess>,
    /// GPUs that NVLink joins, on all hosts.
    pub nvlink_domain_gpus: Option<u32>,
    /// The sizes of such a domain that there are.
    pub nvlink_domain_gpus_options: Option<Vec<u32>>,
    /// Instances in such a domain.
    pub nvlink_domain_instances: Option<u32>,
    /// Whether memory is shared with other hosts by NVIDIA's IMEX service.
    pub imex_required: Option<bool>,
    /// Generation of PCIe by which a GPU is connected.
    pub gpu_pcie_gen: Option<u32>,
    /// PCIe lanes of a GPU.
    pub gpu_pcie_lanes: Option<NonZeroU32>,
    /// GPUs below one PCIe switch.
    pub gpus_per_pcie_switch: Option<NonZeroU32>,
    /// EFA interfaces below one PCIe switch.
    pub efa_per_pcie_switch: Option<u32>,
    /// What connects GPUs to the host where it is not PCIe.
    pub host_link: Option<HostLink>,
    /// What that carries in both directions together, in GB/s.
    pub host_link_bidir_gbs: Option<Positive>,
    /// The description of its topology that aws-ofi-nccl hands to NCCL.
    pub ofi_nccl_topology_file: Option<String>,
    /// How aws-ofi-nccl sends.
    pub ofi_nccl_protocol: Option<String>,
    /// The way that NCCL takes unless it is told otherwise.
    pub nccl_default_path: Option<String>,
    /// Where sources differ.
    pub conflict: Option<String>,
    /// What else is to be known.
    pub note: Option<String>,
    /// Where this is from.
    #[serde(default)]
    pub src: Vec<String>,
}

/// A generation of NVLink. Rates are in GB/s in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// The GPUs that have it.
    pub arch: String,
    /// The most links of one GPU.
    pub max_links_per_gpu: NonZeroU32,
    /// The raw rate of a link.
    pub raw_gbs_per_link_per_dir: Positive,
    /// The raw rate of so many.
    pub raw_gbs_per_gpu_per_dir: Positive,
    /// What NCCL plans with for a link.
    pub nccl_model_gbs_per_link_per_dir: Positive,
    /// What NCCL plans with for so many.
    pub nccl_model_gbs_per_gpu_per_dir: Positive,
    /// Where this is from.
    pub src: Vec<String>,
}

/// PCIe: what all generations have in common, and each of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// What a packet has beside its data, with a header of three words.
    pub tlp_overhead_bytes_3dw: Positive,
    /// With a header of four words.
    pub tlp_overhead_bytes_4dw: Positive,
    /// Data in a packet between two GPUs that goes through a processor of Intel's.
    pub intel_p2p_tlp_payload_bytes: Positive,
    /// By how much NCCL takes such a way to be slower.
    pub intel_p2p_overhead_factor: Positive,
    /// Generation 1.
    pub gen1: PcieGeneration,
    /// Generation 2.
    pub gen2: PcieGeneration,
    /// Generation 3.
    pub gen3: PcieGeneration,
    /// Generation 4.
    pub gen4: PcieGeneration,
    /// Generation 5.
    pub gen5: PcieGeneration,
    /// Where this is from.
    pub src: Vec<String>,
}

/// A generation of PCIe. Rates are in GB/s in one direction; `mps` is the data of a packet, in
/// bytes, with a header of four words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieGeneration {
    /// Transfers a second, in 10⁹, of one lane.
    pub gt_per_s: Positive,
    /// The raw rate of one lane.
    pub raw_gbs_per_lane_per_dir: Positive,
    /// The raw rate of 4 lanes.
    pub x4_raw_gbs: Positive,
    /// The data of 4 lanes in packets of 256 bytes.
    pub x4_mps256_gbs: Positive,
    /// In packets of 128 bytes.
    pub x4_mps128_gbs: Positive,
    /// In packets of 64 bytes.
    pub x4_mps64_gbs: Positive,
    /// The raw rate of 8 lanes.
    pub x8_raw_gbs: Positive,
    /// The data of 8 lanes in packets of 256 bytes.
    pub x8_mps256_gbs: Positive,
    /// In packets of 128 bytes.
    pub x8_mps128_gbs: Positive,
    /// In packets of 64 bytes.
    pub x8_mps64_gbs: Positive,
    /// The raw rate of 16 lanes.
    pub x16_raw_gbs: Positive,
    /// The data of 16 lanes in packets of 256 bytes.
    pub x16_mps256_gbs: Positive,
    /// In packets of 128 bytes.
    pub x16_mps128_gbs: Positive,
    /// In packets of 64 bytes.
    pub x16_mps64_gbs: Positive,
    /// What NCCL plans with for 16 lanes.
    pub nccl_model_x16_gbs: Option<Positive>,
    /// Where this is from.
    pub src: Vec<String>,
}

/// A link between GPUs and their host that is not PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLinkFacts {
    /// What it carries in both directions together, in GB/s.
    pub bidir_gbs: Positive,
    /// Of what this is the rate.
    pub scope: String,
    /// Where this is from.
    pub src: Vec<String>,
}

/// What transfers reach of a way, as shares of its raw rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attainable {
    /// The way, and what moves the bytes.
    pub what: String,
    /// What most figures are near.
    pub usual: Positive,
    /// What a healthy machine reaches at least.
    pub low: Positive,
    /// What none can exceed.
    pub high: Positive,
    /// What an operation takes beside its data, in microseconds; rather too much than too little.
    pub start_us: Positive,
    /// Where this is from.
    pub src: Vec<String>,
}

/// A figure that somebody published. Rates are in GB/s in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The entry of what transfers reach that it bears on.
    pub attainable: String,
    /// What was measured.
    pub machine: String,
    /// The least of several figures.
    pub least: Positive,
    /// The most of them.
    pub most: Positive,
    /// The raw rate of the way.
    pub raw: Positive,
    /// Where it is from.
    pub src: String,
    /// Why it does not count, if it is outside what transfers reach.
    pub outside: Option<String>,
}

/// Collectives: what their rates mean, what bounds them, and what others measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collectives {
    /// Bus bandwidth over algorithm bandwidth among `n` ranks, as a formula.
    pub busbw_factor: BTreeMap<String, String>,
    /// What bounds the bus bandwidth of an all-reduce: formulas of a GPU's rate `B` in one
    /// direction and of `n` ranks.
    pub bound: toml::Table,
    /// What is known of one machine.
    pub reference: BTreeMap<String, CollectiveReference>,
}

/// What is known of collectives on one machine, in GB/s of bus bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveReference {
    /// By the raw rate.
    pub bound_raw_gbs: Option<Positive>,
    /// By the rate that NCCL plans with.
    pub nccl_model_gbs: Option<Positive>,
    /// What somebody measured.
    pub observed_gbs: Option<Positive>,
    /// What a maintainer of NCCL calls the target.
    pub maintainer_target_gbs: Option<Positive>,
    /// The bound of switches that reduce, by the raw rate.
    pub derived_cap_raw_gbs: Option<Positive>,
    /// By the rate that NCCL plans with.
    pub derived_cap_nccl_model_gbs: Option<Positive>,
    /// The algorithm.
    pub algo: Option<String>,
    /// Where this is from.
    pub src: Vec<String>,
}
