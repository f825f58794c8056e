//! The facts of a host that rates follow from: from the live machine, and from the catalogue where
//! the machine does not report them.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{
    machine::{
        links::GpuLinks,
        nics::NicKind,
        survey::{Survey, SurveyedGpu, SurveyedNic, SurveyedPair},
    },
    plan::catalogue::{self, Catalogue, HostLink, Instance, PeerAccess},
    units::gb_s_of_gbit_s,
};

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its instance type, as its firmware reports it.
    pub instance: Option<String>,
    /// The GPUs that g2g may use.
    pub gpus: Vec<Gpu>,
    /// Every ordered pair of two GPUs of which one reaches the other's memory.
    pub pairs: Vec<Pair>,
    /// The network interfaces.
    pub nics: Vec<Nic>,
    /// Whether they reach memory of GPUs on its type.
    pub gpudirect_rdma: Option<bool>,
}

/// A GPU. What is `None` is not known. Rates are in GB/s in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its ordinal.
    pub ordinal: u32,
    /// Its name, as the driver reports it.
    pub name: String,
    /// The NUMA node that is nearest.
    pub numa_node: Option<u32>,
    /// The rate of its memory, loads and stores together.
    pub memory_gb_s: Option<f64>,
    /// Its NVLinks, if it has some.
    pub nvlinks: Option<NvLinks>,
    /// Whether it should have some, and it is not known how many are up.
    pub nvlinks_untold: bool,
    /// What connects it to the host.
    pub host: Option<HostWay>,
    /// Whether NVSwitches reduce and multicast for it.
    pub has_nvls: bool,
}

/// The NVLinks of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
        /// The generation under load.
        generation: u32,
        /// The current generation, if that is lower: an idle GPU lowers it.
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
    /// The kernel's name of it.
    pub name: String,
    /// Whether it is an EFA interface.
    pub is_efa: bool,
    /// Its rate in one direction, in GB/s.
    pub gb_s: Option<f64>,
}

impl Machine {
    /// The machine that a survey has found.
    pub fn surveyed(survey: &Survey, catalogue: &Catalogue) -> Self {
        let name = survey.instance_type().or(survey.product.as_deref());
        let instance = name.and_then(|name| catalogue.instance.get(name));
        let gpu = |gpu: &SurveyedGpu| {
            let key = catalogue.key_of_driver_name(&gpu.node.name);
            let known = key.and_then(|key| catalogue.gpu.get(key));
            Entries { catalogue, instance, gpu: known }.surveyed(gpu, survey)
        };
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
            // Some EFA drivers report this rate without asking the device.
            let is_told = |rate: &f64| !is_efa || *rate != EFA_UNTOLD_GBIT_S;
            let told = found.nic.rate_gbit_s().filter(is_told).map(gb_s_of_gbit_s);
            let by_type = instance.and_then(efa_gb_s).filter(|_| is_efa);
            Nic { name: found.nic.name.clone(), is_efa, gb_s: told.or(by_type) }
        };
        Self {
            instance: name.map(str::to_owned),
            gpus: survey.gpus.iter().map(gpu).collect(),
            pairs: survey.pairs.iter().filter(|pair| pair.access).map(pair).collect(),
            nics: survey.nics.iter().map(nic).collect(),
            gpudirect_rdma: instance.and_then(|known| known.gpudirect_rdma),
        }
    }

    /// An instance in good health, by the catalogue alone.
    pub fn catalogued(name: &str, instance: &Instance, catalogue: &Catalogue) -> Self {
        let entries =
            Entries { catalogue, instance: Some(instance), gpu: catalogue.gpu_of(instance) };
        let count = instance.gpu_count.get();
        let nodes = instance.numa_nodes.map_or(1, NonZeroU32::get);
        let node_of = |ordinal: u32| ordinal * nodes / count;
        let is_switched = instance.p2p == Some(PeerAccess::NvswitchAllPairs);
        let links = instance.nvlink_links_per_gpu.unwrap_or(0);
        let nvlinks = entries.nvlinks(NvLinks {
            generation: instance.nvlink_gen.unwrap_or(0),
            up: links,
            due: links,
            is_switched,
            ..NvLinks::default()
        });
        let host = entries.c2c().or_else(|| {
            let (generation, lanes) = (instance.gpu_pcie_gen?, instance.gpu_pcie_lanes?.get());
            Some(entries.pcie(generation, None, lanes, lanes))
        });
        let gpu = |ordinal: u32| Gpu {
            ordinal,
            name: instance.gpu_name.clone().unwrap_or_else(|| instance.gpu.clone()),
            numa_node: instance.numa_nodes.map(|_| node_of(ordinal)),
            memory_gb_s: entries.memory_gb_s(),
            nvlinks,
            nvlinks_untold: false,
            host,
            has_nvls: is_switched && entries.has_nvls(),
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
            gpudirect_rdma: instance.gpudirect_rdma,
            nics: (0..interfaces).map(nic).collect(),
        }
    }

    /// The GPU of this ordinal.
    pub fn gpu(&self, ordinal: u32) -> Result<&Gpu, String> {
        let gpu = self.gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        gpu.ok_or_else(|| format!("nothing is known of GPU {ordinal}"))
    }

    /// Whether neither of two GPUs that it knows reaches the other's memory.
    pub fn keeps_apart(&self, gpu: u32, other: u32) -> bool {
        let is_known = gpu != other && self.gpu(gpu).is_ok() && self.gpu(other).is_ok();
        is_known && self.pair(gpu, other).is_none() && self.pair(other, gpu).is_none()
    }

    /// The way from one GPU to another's memory.
    pub fn pair(&self, gpu: u32, peer: u32) -> Option<&Pair> {
        self.pairs.iter().find(|pair| (pair.gpu, pair.peer) == (gpu, peer))
    }
}

/// The rate that EFA drivers report of every port if they do not ask the device (Linux,
/// `efa_query_port` in efa_verbs.c).
const EFA_UNTOLD_GBIT_S: f64 = 100.0;

/// The rate of each EFA interface of this type in one direction, in GB/s.
fn efa_gb_s(instance: &Instance) -> Option<f64> {
    let interfaces = instance.efa_interfaces.filter(|&interfaces| interfaces > 0)?;
    let all = instance.efa_total_gbps.or(instance.network_gbps.filter(|_| interfaces == 1))?;
    Some(gb_s_of_gbit_s(all.get()) / f64::from(interfaces))
}

/// What the catalogue knows of a GPU and of the instance type that it is in.
#[derive(Clone, Copy)]
struct Entries<'a> {
    catalogue: &'a Catalogue,
    instance: Option<&'a Instance>,
    gpu: Option<&'a catalogue::Gpu>,
}

impl Entries<'_> {
    fn memory_gb_s(self) -> Option<f64> {
        Some(self.gpu?.mem_bw_gbs?.get())
    }

    fn has_nvls(self) -> bool {
        self.gpu.and_then(|gpu| gpu.nvls_multicast) == Some(true)
    }

    /// NVLinks with the rate of their generation, if there should be some.
    fn nvlinks(self, links: NvLinks) -> Option<NvLinks> {
        let generation = self.catalogue.nvlink_generation(links.generation)?;
        let link_gb_s = generation.raw_gbs_per_link_per_dir.get();
        (links.due > 0).then_some(NvLinks { link_gb_s, ..links })
    }

    fn pcie(
        self,
        generation: u32,
        generation_now: Option<u32>,
        lanes: u32,
        lanes_due: u32,
    ) -> HostWay {
        let pcie = &self.catalogue.pcie;
        let raw = pcie.generation(generation).map(|known| known.raw_gbs_per_lane_per_dir.get());
        let lane_gb_s = raw.map(|raw| raw * pcie.efficiency());
        HostWay::Pcie { generation, generation_now, lanes, lanes_due, lane_gb_s }
    }

    /// A GPU's part of a link from chip to chip, where there is one: half of it is for each
    /// direction, and the GPUs of a processor share it.
    fn c2c(self) -> Option<HostWay> {
        let by_type = self.instance.and_then(|known| known.host_link) == Some(HostLink::NvLinkC2c);
        let by_gpu = self.gpu.and_then(|gpu| gpu.device_host_interface.as_deref());
        if !by_type && by_gpu != Some("NVLink-C2C") {
            return None;
        }
        let both_ways = self.instance.and_then(|known| known.host_link_bidir_gbs).or(self
            .catalogue
            .host_link
            .get("nvlink_c2c")
            .map(|link| link.bidir_gbs))?;
        let sharing = self.instance.and_then(|known| {
            Some(f64::from(known.gpu_count.get()) / f64::from(known.numa_nodes?.get()))
        });
        // A processor of this kind has two GPUs.
        Some(HostWay::C2c { gb_s: both_ways.get() / 2.0 / sharing.unwrap_or(2.0) })
    }

    /// A GPU that a survey has found.
    fn surveyed(self, gpu: &SurveyedGpu, survey: &Survey) -> Gpu {
        let Self { instance, gpu: known, .. } = self;
        let links = GpuLinks::of(gpu, survey);
        // An instance type may have fewer by design than its GPUs could have.
        let by_type = instance.and_then(|known| known.nvlink_links_per_gpu);
        let up = links.nvlinks_up;
        let generation = links.nvlink_generation.or(known.and_then(|gpu| gpu.nvlink_gen));
        let is_switched = gpu.has_switched_nvlinks();
        let must_be_up =
            by_type.is_some() || survey.gpus.iter().any(SurveyedGpu::has_switched_nvlinks);
        let told = NvLinks {
            generation: generation.unwrap_or(0),
            up,
            due: by_type.unwrap_or_else(|| links.nvlinks()).max(up),
            is_switched,
            may_lack_bridge: up == 0 && !must_be_up,
            ..NvLinks::default()
        };
        let nvlinks = if links.nvlinks() > 0 { self.nvlinks(told) } else { None };
        let has_none = instance.is_some_and(|known| known.nvlink_gen == Some(0)).then_some(0);
        let by_catalogue = by_type.or(has_none).or(known.and_then(|gpu| gpu.nvlink_links));
        let is_known = instance.is_some() || known.is_some();
        let should_have = by_catalogue.map_or(!is_known && gpu.nvml.is_none(), |links| links > 0);
        Gpu {
            ordinal: gpu.node.gpu.0,
            name: gpu.node.name.clone(),
            numa_node: gpu.node.numa_node.map(|node| node.0),
            memory_gb_s: self.memory_gb_s(),
            nvlinks,
            nvlinks_untold: nvlinks.is_none() && should_have,
            host: self.surveyed_host(gpu, survey),
            has_nvls: is_switched && self.has_nvls(),
        }
    }

    /// What connects a GPU that a survey has found to its host.
    fn surveyed_host(self, gpu: &SurveyedGpu, survey: &Survey) -> Option<HostWay> {
        let by_nvml = gpu.nvml.as_ref().and_then(|nvml| nvml.c2c?.gb_s);
        if let Some(way) = by_nvml.map(|gb_s| HostWay::C2c { gb_s }).or_else(|| self.c2c()) {
            return Some(way);
        }
        let links = GpuLinks::of(gpu, survey);
        let generation_by_type = self.instance.and_then(|known| known.gpu_pcie_gen);
        let lanes_by_type = self.instance.and_then(|known| known.gpu_pcie_lanes);
        let lanes_by_type = lanes_by_type.map(NonZeroU32::get);
        // The GPU may report more than the machine around it supports.
        let most = match (links.pcie_max.generation, generation_by_type) {
            (Some(most), Some(by_type)) => Some(most.min(by_type)),
            (most, by_type) => most.or(by_type),
        };
        let now = links.pcie.generation;
        let generation = most.max(now)?;
        let lanes = links.pcie.lanes.or(lanes_by_type)?;
        let lanes_of = |gpu: &SurveyedGpu| GpuLinks::of(gpu, survey).pcie.lanes;
        let alike = survey.gpus.iter().filter(|other| other.node.name == gpu.node.name);
        let widest = alike.filter_map(lanes_of).max().unwrap_or(lanes);
        let due = lanes_by_type.unwrap_or(widest).max(lanes);
        Some(self.pcie(generation, now.filter(|&now| now < generation), lanes, due))
    }
}
