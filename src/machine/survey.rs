//! The whole machine: its GPUs, what they are connected to, and the paths between them, as the
//! kernel, the driver and NVML report them.

use serde::{Deserialize, Serialize};

use super::{
    Library,
    nics::{self, Nic},
    pci::{self, Kind, Way},
    system::{System, Unread},
};
use crate::{
    ffi::{
        CallError,
        cuda::{self, Device, Feature},
        nvml::{self, Nvml, PeerStatus, Remote},
    },
    plan::topology::{GpuNode, NumaNode, Topology, cpu_ranges},
};

/// Where the kernel describes the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// The vendor of EC2 instances in the firmware's description.
const EC2: &str = "Amazon EC2";

/// A machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Survey {
    /// Whether it is a simulated machine.
    pub simulated: bool,
    /// The vendor in the firmware's description.
    pub vendor: Option<String>,
    /// The product in the firmware's description: on EC2 the instance type.
    pub product: Option<String>,
    /// NVIDIA's driver, such as `570.86.15`.
    pub driver_version: Option<String>,
    /// The libraries that were loaded.
    pub libraries: Vec<Library>,
    /// Why facts are missing.
    pub missing: Vec<String>,
    /// The NUMA nodes, in the order of their numbers.
    pub nodes: Vec<SurveyedNode>,
    /// The GPUs that this process may use, in the order of their ordinals.
    pub gpus: Vec<SurveyedGpu>,
    /// GPUs that this process may not use.
    pub other_gpus: Vec<pci::Device>,
    /// The switches between NVLinks that are devices of this machine.
    pub switches: Vec<pci::Device>,
    /// The network interfaces, those for RDMA first.
    pub nics: Vec<SurveyedNic>,
    /// Every ordered pair of two different GPUs.
    pub pairs: Vec<SurveyedPair>,
}

/// A NUMA node of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedNode {
    /// Its number.
    pub number: u32,
    /// Its CPUs, as a list of the kernel's such as `0-23,48-71`.
    pub cpus: Option<String>,
    /// The kernel's distance to each node; 10 is its own.
    pub distances: Vec<u32>,
}

/// A GPU. `null`: not known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SurveyedGpu {
    /// What cases depend on.
    #[serde(flatten)]
    pub node: GpuNode,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The number of copies that it runs at once, beside kernels.
    pub copy_engines: u32,
    /// The CPUs that are nearest, as a list of the kernel's.
    pub cpus: Option<String>,
    /// The device, as the kernel shows it.
    pub pci: Option<pci::Device>,
    /// The GPU, as NVML describes it.
    pub nvml: Option<nvml::Gpu>,
    /// Its condition now.
    pub condition: Option<nvml::Condition>,
    /// What it has counted since its driver was loaded.
    pub errors: Option<nvml::Errors>,
}

/// A network interface and the GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SurveyedNic {
    /// The device, as the kernel shows it.
    #[serde(flatten)]
    pub nic: Nic,
    /// The way to each GPU that this process may use, in the order of their ordinals.
    pub ways: Vec<Option<Way>>,
    /// The ordinals of the GPUs with the shortest way.
    pub nearest_gpus: Vec<u32>,
}

/// How one GPU reaches another's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SurveyedPair {
    /// Ordinal of the GPU that accesses the memory.
    pub gpu: u32,
    /// Ordinal of the GPU whose memory it is.
    pub peer: u32,
    /// `NV18` for 18 NVLinks that are up; otherwise where their PCI Express paths meet, in the
    /// words of `nvidia-smi topo -m`, by NVML or else by the kernel.
    pub connection: Option<String>,
    /// The NVLinks between them that are up.
    pub nvlinks: u32,
    /// Where their PCI Express paths meet, by the kernel.
    pub way: Option<Way>,
    /// Whether the driver grants access.
    pub access: bool,
    /// Whether atomic operations run where the memory is; false if the driver is too old to report
    /// it, which `missing` says.
    pub native_atomics: bool,
    /// The pair, as NVML describes it.
    pub nvml: Option<nvml::Pair>,
}

/// Surveys the machine through the kernel, the driver and NVML.
pub fn survey(topology: &Topology) -> Result<Survey, CallError> {
    let mut missing = Vec::new();
    let driver = cuda::driver().inspect_err(|err| missing.push(err.to_string())).ok();
    let nvml = Nvml::load().inspect_err(|reason| missing.push(reason.clone())).ok();
    let mut survey = shown(System::here());
    survey.libraries = super::libraries();
    survey.driver_version = nvml.and_then(Nvml::driver_version);
    let devices = driver.map(cuda::Driver::devices).transpose()?.unwrap_or_default();
    for (device, node) in devices.iter().zip(&topology.gpus) {
        survey.gpus.push(gpu(*device, node, nvml, &survey.other_gpus)?);
    }
    let untold = driver.and_then(|driver| driver.lacks(Feature::NativeAtomics));
    missing.extend(untold.as_ref().map(ToString::to_string));
    let gpus = devices.iter().copied().zip(&survey.gpus);
    for (here, (device, gpu)) in gpus.clone().enumerate() {
        for (_, (peer, other)) in gpus.clone().enumerate().filter(|(there, _)| *there != here) {
            let access = device.can_access_peer(peer)?;
            let native_atomics = untold.is_none() && device.has_native_atomics(peer)?;
            let told =
                nvml.and_then(|nvml| nvml.pair(&gpu.node.pci_bus_id, &other.node.pci_bus_id));
            survey.pairs.push(gpu.pair(other, told, access, native_atomics));
        }
    }
    survey.connect();
    missing.extend(survey.gpus.iter().filter(|gpu| gpu.pci.is_none()).map(|gpu| {
        let (number, address) = (gpu.node.gpu.0, &gpu.node.pci_bus_id);
        format!("the kernel shows no device at {address}, where the driver has GPU {number}")
    }));
    missing.append(&mut survey.missing);
    survey.missing = missing;
    Ok(survey)
}

/// All that can be found out about this machine. If the driver does not describe a GPU: what the
/// kernel shows, and the driver's error.
pub fn told() -> (Survey, Option<CallError>) {
    match super::topology().and_then(|topology| survey(&topology)) {
        Ok(survey) => (survey, None),
        Err(err) => {
            let mut shown = shown(System::here());
            shown.missing.insert(0, err.to_string());
            (shown, Some(err))
        }
    }
}

/// What the kernel alone shows: all GPUs are in `other_gpus`.
pub fn shown(system: &System) -> Survey {
    let missing = &mut Vec::new();
    let devices = pci::devices(system, missing);
    let of_kind = |kind: Kind| devices.iter().filter(move |device| device.kind == kind).cloned();
    let mut dmi = |file: &str| {
        pci::optional(system.text(format!("/sys/devices/virtual/dmi/id/{file}")), missing)
            .filter(|text| !text.is_empty())
    };
    let (vendor, product) = (dmi("sys_vendor"), dmi("product_name"));
    let nodes = nodes(system, missing);
    let nics = nics::nics(system, &devices, missing).into_iter();
    let nics = nics.map(|nic| SurveyedNic { nic, ways: Vec::new(), nearest_gpus: Vec::new() });
    Survey {
        simulated: !system.is_real(),
        vendor,
        product,
        missing: std::mem::take(missing),
        nodes,
        other_gpus: of_kind(Kind::Gpu).collect(),
        switches: of_kind(Kind::NvSwitch).collect(),
        nics: nics.collect(),
        ..Survey::default()
    }
}

/// The number of this instance of EC2, as the firmware of its Nitro system has it; none elsewhere.
pub fn instance_id(system: &System) -> Option<String> {
    let tag = system.text("/sys/devices/virtual/dmi/id/board_asset_tag").ok()?;
    Some(tag).filter(|tag| tag.starts_with("i-"))
}

/// The NUMA nodes; none if the kernel has no such folder.
pub(super) fn nodes(system: &System, missing: &mut Vec<String>) -> Vec<SurveyedNode> {
    let names = pci::optional(system.names(NODES), missing).unwrap_or_default();
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let node = |number: u32| {
        let file = |name: &str| format!("{NODES}/node{number}/{name}");
        let distances = system.text(file("distance")).and_then(|text| {
            let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
            numbers.map_err(|_| Unread::holding(file("distance"), &text))
        });
        SurveyedNode {
            number,
            cpus: pci::optional(pci::cpus(system, &file("cpulist")), missing),
            distances: pci::optional(distances, missing).unwrap_or_default(),
        }
    };
    numbers.into_iter().map(node).collect()
}

/// A GPU; `shown` are the GPUs that the kernel shows.
fn gpu(
    device: Device,
    node: &GpuNode,
    nvml: Option<&Nvml>,
    shown: &[pci::Device],
) -> Result<SurveyedGpu, CallError> {
    let bus = &node.pci_bus_id;
    let pci = shown.iter().find(|shown| shown.address.eq_ignore_ascii_case(bus)).cloned();
    let by_nvml = nvml.and_then(|nvml| nvml.gpu(bus));
    let (of_kernel, of_nvml) = (pci.as_ref(), by_nvml.as_ref());
    let numa_node = of_kernel
        .and_then(|pci| pci.numa_node)
        .or_else(|| of_nvml.and_then(|gpu| gpu.numa_node))
        .map(NumaNode);
    let cpus = of_nvml.and_then(|gpu| gpu.cpus.as_ref()).map(|cpus| cpu_ranges(cpus));
    Ok(SurveyedGpu {
        node: GpuNode {
            numa_node: numa_node.or(node.numa_node),
            pcie_path: of_kernel.map_or_else(|| node.pcie_path.clone(), |pci| pci.path.clone()),
            ..node.clone()
        },
        compute_capability: device.compute_capability()?,
        multiprocessors: device.multiprocessors()?,
        copy_engines: device.copy_engines()?,
        cpus: cpus.or_else(|| of_kernel.and_then(|pci| pci.cpus.clone())),
        nvml: by_nvml,
        condition: nvml.and_then(|nvml| nvml.condition(bus)),
        errors: nvml.and_then(|nvml| Some(nvml.counters(bus).ok()?.errors)),
        pci,
    })
}

/// NVLinks between two GPUs that are up: those that end at the other one, or, through switches, as
/// many as the GPU with fewer has.
pub(super) fn nvlinks(here: &nvml::Gpu, there: &nvml::Gpu) -> u32 {
    let up = |gpu: &nvml::Gpu, is_wanted: &dyn Fn(&nvml::NvLink) -> bool| {
        let links = gpu.nvlinks.iter().filter(|link| link.active && is_wanted(link));
        u32::try_from(links.count()).unwrap_or(u32::MAX)
    };
    let to_switch = |link: &nvml::NvLink| link.remote == Some(Remote::Switch);
    let direct = up(here, &|link| link.remote_pci_bus_id.as_ref() == Some(&there.pci_bus_id));
    if direct > 0 { direct } else { up(here, &to_switch).min(up(there, &to_switch)) }
}

impl Survey {
    /// Joins the parts: removes used GPUs from the others, and finds the GPUs of interfaces.
    fn connect(&mut self) {
        let used = |gpu: &SurveyedGpu| gpu.pci.as_ref().map(|pci| pci.address.clone());
        let used: Vec<String> = self.gpus.iter().filter_map(used).collect();
        self.other_gpus.retain(|other| !used.contains(&other.address));
        for nic in &mut self.nics {
            nic.find_gpus(&self.gpus);
        }
    }

    /// The EC2 instance type; `None` elsewhere.
    pub fn instance_type(&self) -> Option<&str> {
        // Guests of the older hypervisor have the product `HVM domU` of another vendor.
        self.product.as_deref().filter(|_| self.vendor.as_deref() == Some(EC2))
    }
}

impl SurveyedGpu {
    /// The way to another's memory; NVML has `told` of the pair.
    fn pair(
        &self,
        other: &Self,
        told: Option<nvml::Pair>,
        access: bool,
        native_atomics: bool,
    ) -> SurveyedPair {
        let by_nvml = self.nvml.as_ref().zip(other.nvml.as_ref());
        let nvlinks = by_nvml.map_or(0, |(here, there)| nvlinks(here, there));
        let pci = self.pci.as_ref().zip(other.pci.as_ref());
        let way = pci.and_then(|(here, there)| here.way(there));
        let meeting = told.and_then(|pair| pair.common_ancestor).map(Way::from).or(way);
        SurveyedPair {
            gpu: self.node.gpu.0,
            peer: other.node.gpu.0,
            connection: match nvlinks {
                0 => meeting.map(|way| way.to_string()),
                links => Some(format!("NV{links}")),
            },
            nvlinks,
            way,
            access,
            native_atomics,
            nvml: told,
        }
    }

    /// Whether its NVLinks that are up end in switches.
    pub fn has_switched_nvlinks(&self) -> bool {
        let mut links = self.nvml.iter().flat_map(|gpu| &gpu.nvlinks);
        links.any(|link| link.active && link.remote == Some(Remote::Switch))
    }
}

impl SurveyedNic {
    /// Finds the ways to the GPUs.
    fn find_gpus(&mut self, gpus: &[SurveyedGpu]) {
        let way = |gpu: &SurveyedGpu| self.nic.pci.as_ref()?.way(gpu.pci.as_ref()?);
        self.ways = gpus.iter().map(way).collect();
        let shortest = self.ways.iter().flatten().min();
        let is_nearest = |(_, way): &(&SurveyedGpu, &Option<Way>)| shortest == way.as_ref();
        let nearest = gpus.iter().zip(&self.ways).filter(|_| shortest.is_some()).filter(is_nearest);
        self.nearest_gpus = nearest.map(|(gpu, _)| gpu.node.gpu.0).collect();
    }
}

impl SurveyedPair {
    /// NVML's status of reads, writes and atomics: `rwa` if all work, `-` in the place of what does
    /// not, `?` in the place of what is not known.
    pub fn letters(&self) -> String {
        let letter = |status: Option<PeerStatus>, letter: char| match status {
            Some(PeerStatus::Ok) => letter,
            Some(PeerStatus::Unknown) | None => '?',
            Some(_) => '-',
        };
        let told = self.nvml.as_ref();
        let statuses = [
            (told.and_then(|pair| pair.read), 'r'),
            (told.and_then(|pair| pair.write), 'w'),
            (told.and_then(|pair| pair.atomics), 'a'),
        ];
        statuses.into_iter().map(|(status, word)| letter(status, word)).collect()
    }
}
