//! A host as far as rates follow from it: what the live machine tells, and the catalogue where the
//! machine cannot tell.

use serde::{Deserialize, Serialize};

use crate::{
    machine::{
        NvLink,
        links::GpuLinks,
        nics::NicKind,
        survey::{Survey, SurveyedGpu, SurveyedNic, SurveyedPair},
    },
    plan::catalogue::{self, Catalogue, HostLink, Instance, PeerAccess, Positive},
    units::gb_s_of_gbit_s,
};

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its instance type, by its firmware.
    pub instance: Option<String>,
    /// The GPUs that g2g may use.
    pub gpus: Vec<Gpu>,
    /// Every ordered pair of two GPUs of which one reaches the other's memory.
    pub pairs: Vec<Pair>,
    /// The network interfaces.
    pub nics: Vec<Nic>,
}

/// A GPU. What is `None` is not known. Rates are in GB/s in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its ordinal.
    pub ordinal: u32,
    /// What the driver calls it.
    pub name: String,
    /// The NUMA node that is nearest.
    pub numa_node: Option<u32>,
    /// What its memory moves, loads and stores together.
    pub memory_gb_s: Option<f64>,
    /// Its NVLinks, if it has some.
    pub nvlinks: Option<NvLinks>,
    /// Whether it should have some, and nobody tells how many are up.
    pub nvlinks_untold: bool,
    /// What connects it to the host.
    pub host: Option<HostWay>,
    /// Whether NVSwitches reduce and multicast for it.
    pub has_nvls: bool,
}

/// The NVLinks of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NvLinks {
    /// Their generation.
    pub generation: u32,
    /// How many are up.
    pub up: u32,
    /// How many should be.
    pub due: u32,
    /// The raw rate of one.
    pub link_gb_s: f64,
    /// Whether they end in switches.
    pub is_switched: bool,
    /// Whether none is up and none has to be: the GPU may lack a bridge.
    pub may_lack_bridge: bool,
}

/// What connects a GPU to its host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum HostWay {
    /// PCIe.
    Pcie {
        /// The generation that it comes to under load.
        generation: u32,
        /// The generation when it was asked, if that was another one: an idle GPU goes back.
        generation_now: Option<u32>,
        /// Its lanes.
        lanes: u32,
        /// The lanes that it should have.
        lanes_due: u32,
        /// The data that a lane carries; `None`: the catalogue does not know the generation.
        lane_gb_s: Option<f64>,
    },
    /// NVLink from chip to chip: the GPU's part of it.
    C2c {
        /// Its raw rate.
        gb_s: f64,
    },
}

/// How one GPU reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Ordinal of one.
    pub gpu: u32,
    /// Ordinal of the other.
    pub peer: u32,
    /// The NVLinks between them that are up; 0: over PCIe.
    pub nvlinks: u32,
    /// Whether they are on one NUMA node.
    pub is_near: bool,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Its name by the kernel.
    pub name: String,
    /// Whether it is one of EFA.
    pub is_efa: bool,
    /// What it carries in one direction, in GB/s.
    pub gb_s: Option<f64>,
}

impl Machine {
    /// The machine that a survey has found.
    pub fn surveyed(survey: &Survey, catalogue: &Catalogue) -> Self {
        let instance = survey.instance_type().or(survey.product.as_deref());
        let known = instance.and_then(|name| catalogue.instance.get(name));
        let gpu = |gpu: &SurveyedGpu| surveyed_gpu(gpu, survey, known, catalogue);
        let node = |ordinal: u32| {
            let found = survey.gpus.iter().find(|gpu| gpu.node.gpu.0 == ordinal);
            found.and_then(|gpu| gpu.node.numa_node)
        };
        let pair = |pair: &SurveyedPair| Pair {
            gpu: pair.gpu,
            peer: pair.peer,
            nvlinks: pair.nvlinks,
            is_near: node(pair.gpu) == node(pair.peer),
        };
        let nic = |found: &SurveyedNic| {
            let is_efa = found.nic.kind == NicKind::Efa;
            // What drivers of EFA say that do not ask the device.
            let is_told = |rate: &f64| !is_efa || *rate != EFA_UNTOLD_GBIT_S;
            let told = found.nic.rate_gbit_s().filter(is_told).map(gb_s_of_gbit_s);
            let by_type = known.and_then(efa_gb_s).filter(|_| is_efa);
            Nic { name: found.nic.name.clone(), is_efa, gb_s: told.or(by_type) }
        };
        Self {
            instance: instance.map(str::to_owned),
            gpus: survey.gpus.iter().map(gpu).collect(),
            pairs: survey.pairs.iter().filter(|pair| pair.access).map(pair).collect(),
            nics: survey.nics.iter().map(nic).collect(),
        }
    }

    /// An instance in good health, by the catalogue alone.
    pub fn catalogued(name: &str, instance: &Instance, catalogue: &Catalogue) -> Self {
        let known = catalogue.gpu_of(instance);
        let count = instance.gpu_count.get();
        let nodes = instance.numa_nodes.map_or(1, std::num::NonZeroU32::get);
        let node_of = |ordinal: u32| ordinal * nodes / count;
        let is_switched = instance.p2p == Some(PeerAccess::NvswitchAllPairs);
        let links = instance.nvlink_links_per_gpu.unwrap_or(0);
        let gpu = |ordinal: u32| Gpu {
            ordinal,
            name: instance.gpu_name.clone().unwrap_or_else(|| instance.gpu.clone()),
            numa_node: instance.numa_nodes.map(|_| node_of(ordinal)),
            memory_gb_s: known.and_then(|gpu| gpu.mem_bw_gbs).map(Positive::get),
            nvlinks: nvlinks(
                catalogue,
                instance.nvlink_gen.unwrap_or(0),
                (links, links),
                is_switched,
            ),
            nvlinks_untold: false,
            host: catalogued_host(instance, known, catalogue),
            has_nvls: is_switched && known.and_then(|gpu| gpu.nvls_multicast) == Some(true),
        };
        let reached = is_switched || instance.p2p == Some(PeerAccess::Pcie);
        let all = || (0..count).flat_map(|gpu| (0..count).map(move |peer| (gpu, peer)));
        let pair = |(gpu, peer): (u32, u32)| Pair {
            gpu,
            peer,
            nvlinks: if is_switched { links } else { 0 },
            is_near: node_of(gpu) == node_of(peer),
        };
        let pairs = all().filter(|(gpu, peer)| reached && gpu != peer).map(pair);
        let interfaces = instance.efa_interfaces.unwrap_or(0);
        let gb_s = efa_gb_s(instance);
        let nic = |number: u32| Nic { name: format!("efa{number}"), is_efa: true, gb_s };
        Self {
            instance: Some(name.to_owned()),
            gpus: (0..count).map(gpu).collect(),
            pairs: pairs.collect(),
            nics: (0..interfaces).map(nic).collect(),
        }
    }

    /// The GPU of this ordinal.
    pub fn gpu(&self, ordinal: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.ordinal == ordinal)
    }

    /// The way from one GPU to another's memory.
    pub fn pair(&self, gpu: u32, peer: u32) -> Option<&Pair> {
        self.pairs.iter().find(|pair| (pair.gpu, pair.peer) == (gpu, peer))
    }
}

/// The rate that drivers of EFA write of every port if they do not ask the device (Linux,
/// `efa_query_port` in efa_verbs.c).
const EFA_UNTOLD_GBIT_S: f64 = 100.0;

/// What each interface of EFA of this type carries in one direction, in GB/s.
fn efa_gb_s(instance: &Instance) -> Option<f64> {
    let interfaces = instance.efa_interfaces.filter(|&interfaces| interfaces > 0)?;
    let all = instance.efa_total_gbps.or(instance.network_gbps.filter(|_| interfaces == 1))?;
    Some(gb_s_of_gbit_s(all.get()) / f64::from(interfaces))
}

/// The NVLinks of a GPU, of which (`up`, `due`) are up and should be.
fn nvlinks(
    catalogue: &Catalogue,
    generation: u32,
    (up, due): (u32, u32),
    is_switched: bool,
) -> Option<NvLinks> {
    let link_gb_s = catalogue.nvlink_generation(generation)?.raw_gbs_per_link_per_dir.get();
    let may_lack_bridge = false;
    (due > 0).then_some(NvLinks { generation, up, due, link_gb_s, is_switched, may_lack_bridge })
}

fn surveyed_gpu(
    gpu: &SurveyedGpu,
    survey: &Survey,
    instance: Option<&Instance>,
    catalogue: &Catalogue,
) -> Gpu {
    let key = catalogue.key_of_driver_name(&gpu.node.name);
    let known = key.and_then(|key| catalogue.gpu.get(key));
    let links = gpu.nvml.iter().flat_map(|nvml| &nvml.nvlinks);
    let told = links.clone().find_map(NvLink::generation);
    let generation = told.or(known.and_then(|gpu| gpu.nvlink_gen)).unwrap_or(0);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let up = count(links.clone().filter(|link| link.active).count());
    // An instance type may have fewer by design than its GPUs could have.
    let by_type = instance.and_then(|known| known.nvlink_links_per_gpu);
    let due = by_type.unwrap_or_else(|| count(links.clone().count())).max(up);
    let is_switched = gpu.has_switched_nvlinks();
    let must_be_up = by_type.is_some() || survey.gpus.iter().any(SurveyedGpu::has_switched_nvlinks);
    let nvlinks = gpu.nvml.as_ref().filter(|nvml| !nvml.nvlinks.is_empty()).and_then(|_| {
        let links = nvlinks(catalogue, generation, (up, due), is_switched)?;
        Some(NvLinks { may_lack_bridge: up == 0 && !must_be_up, ..links })
    });
    let has_none = instance.is_some_and(|known| known.nvlink_gen == Some(0)).then_some(0);
    let by_catalogue = by_type.or(has_none).or(known.and_then(|gpu| gpu.nvlink_links));
    let is_known = instance.is_some() || known.is_some();
    let should_have = by_catalogue.map_or(!is_known && gpu.nvml.is_none(), |links| links > 0);
    Gpu {
        ordinal: gpu.node.gpu.0,
        name: gpu.node.name.clone(),
        numa_node: gpu.node.numa_node.map(|node| node.0),
        memory_gb_s: known.and_then(|gpu| gpu.mem_bw_gbs).map(Positive::get),
        nvlinks,
        nvlinks_untold: nvlinks.is_none() && should_have,
        host: surveyed_host(gpu, survey, (instance, known), catalogue),
        has_nvls: is_switched && known.and_then(|gpu| gpu.nvls_multicast) == Some(true),
    }
}

/// What connects a GPU that a survey has found to its host.
fn surveyed_host(
    gpu: &SurveyedGpu,
    survey: &Survey,
    (instance, known): (Option<&Instance>, Option<&catalogue::Gpu>),
    catalogue: &Catalogue,
) -> Option<HostWay> {
    let by_nvml = gpu.nvml.as_ref().and_then(|nvml| nvml.c2c?.gb_s);
    if let Some(way) =
        by_nvml.map(|gb_s| HostWay::C2c { gb_s }).or_else(|| c2c(instance, known, catalogue))
    {
        return Some(way);
    }
    let links = GpuLinks::of(gpu, survey);
    let lanes_of = |gpu: &SurveyedGpu| GpuLinks::of(gpu, survey).pcie.lanes;
    let by_type = (
        instance.and_then(|known| known.gpu_pcie_gen),
        instance.and_then(|known| known.gpu_pcie_lanes).map(std::num::NonZeroU32::get),
    );
    let now_generation = links.pcie.generation;
    // What is told may be more than the machine around the GPU has.
    let most = match (links.pcie_max.generation, by_type.0) {
        (Some(most), Some(by_type)) => Some(most.min(by_type)),
        (most, by_type) => most.or(by_type),
    };
    let generation = most.max(now_generation)?;
    let lanes = links.pcie.lanes.or(by_type.1)?;
    let alike = survey.gpus.iter().filter(|other| other.node.name == gpu.node.name);
    let widest = alike.filter_map(lanes_of).max().unwrap_or(lanes);
    Some(HostWay::Pcie {
        generation,
        generation_now: now_generation.filter(|&now| now < generation),
        lanes,
        lanes_due: by_type.1.unwrap_or(widest).max(lanes),
        lane_gb_s: lane_gb_s(catalogue, generation),
    })
}

/// What connects a GPU to its host by the catalogue.
fn catalogued_host(
    instance: &Instance,
    known: Option<&catalogue::Gpu>,
    catalogue: &Catalogue,
) -> Option<HostWay> {
    if let Some(way) = c2c(Some(instance), known, catalogue) {
        return Some(way);
    }
    let generation = instance.gpu_pcie_gen?;
    let lanes = instance.gpu_pcie_lanes?.get();
    let lane_gb_s = lane_gb_s(catalogue, generation);
    Some(HostWay::Pcie { generation, generation_now: None, lanes, lanes_due: lanes, lane_gb_s })
}

/// The data that a lane of PCIe carries.
fn lane_gb_s(catalogue: &Catalogue, generation: u32) -> Option<f64> {
    let raw = catalogue.pcie.generation(generation)?.raw_gbs_per_lane_per_dir;
    Some(raw.get() * catalogue.pcie.efficiency())
}

/// A GPU's part of a link from chip to chip, where there is one: half of it is for each direction,
/// and the GPUs of a processor share it.
fn c2c(
    instance: Option<&Instance>,
    known: Option<&catalogue::Gpu>,
    catalogue: &Catalogue,
) -> Option<HostWay> {
    let by_type = instance.is_some_and(|known| known.host_link == Some(HostLink::NvLinkC2c));
    let by_gpu = known.and_then(|gpu| gpu.device_host_interface.as_deref()) == Some("NVLink-C2C");
    if !by_type && !by_gpu {
        return None;
    }
    let both_ways = instance
        .and_then(|known| known.host_link_bidir_gbs)
        .or(catalogue.host_link.get("nvlink_c2c").map(|link| link.bidir_gbs))?;
    let sharing = instance.and_then(|known| {
        Some(f64::from(known.gpu_count.get()) / f64::from(known.numa_nodes?.get()))
    });
    // A processor of this kind has two GPUs.
    Some(HostWay::C2c { gb_s: both_ways.get() / 2.0 / sharing.unwrap_or(2.0) })
}
