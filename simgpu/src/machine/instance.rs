//! Machines after instances of the catalogue. What the catalogue does not say is assumed here, in
//! [`super::rates`] and in [`super::models`]; `docs/machines.md`, "Instances", lists it.

use super::{
    Driver, Efa, Faults, Gpu, Health, Link, Machine, Nccl, NvLinks, Pair,
    catalogue::{self, CATALOGUE, HostLink, Instance, PeerAccess},
    models::{MODELS, Model},
    rates,
};

/// Version of the driver: 12.8.
pub(super) const DRIVER_VERSION: u32 = 12_080;

/// Granularity of event times.
pub(super) const EVENT_RESOLUTION_NS: u64 = 32;

/// The PCI bus of GPU 0; the others follow.
pub(super) const PCI_BUS_FIRST: u32 = 0x10;

/// GPUs from which on an instance has two NUMA nodes, where the catalogue does not say.
const GPUS_OF_TWO_NODES: u32 = 8;

/// Compute capability of a GPU where the catalogue does not say.
const COMPUTE_CAPABILITY: f64 = 12.0;

/// PCIe lanes of a GPU where the catalogue does not say.
const PCIE_LANES: u32 = 16;

/// V100 with 32 GB on SXM2, as a PCI device.
const V100_32_GB: u32 = 0x1db5;

/// Links of NVLink-C2C that each GPU has, where there are any.
const C2C_LINKS: u32 = 5;

/// What a kernel costs beside its traffic.
const LAUNCH_NS: f64 = 2000.0;

/// NVLinks between eight V100: the hybrid cube mesh. Eight-GPU V100 servers list it under
/// `nvidia-smi topo -m`.
const CUBE_MESH: [[u32; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// NVLinks between four V100 of four links each.
const QUAD_MESH: [[u32; 4]; 4] = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 1], [2, 1, 1, 0]];

/// The machine of an instance type; `None` if the catalogue lacks it.
pub(super) fn machine(name: &str) -> Option<Machine> {
    let instance = CATALOGUE.instance.get(name)?;
    let known = &CATALOGUE.gpu[&instance.gpu];
    let model = MODELS.iter().find(|model| model.key == instance.gpu);
    let model = model.expect("a test loads every instance of the catalogue");
    let builder = Builder { instance, known, model };
    let gpus: Vec<Gpu> = (0..instance.gpu_count).map(|ordinal| builder.gpu(ordinal)).collect();
    Some(Machine {
        name: name.to_owned(),
        hosts: 1,
        first_gpu: 0,
        first_nic: 0,
        event_resolution_ns: EVENT_RESOLUTION_NS,
        driver_version: DRIVER_VERSION,
        confidential_computing: false,
        symbolic_memory: true,
        driver: Driver::STRICT,
        pairs: super::pairs_of(instance.gpu_count, |pair| builder.connect(&gpus, pair)),
        nics: builder.nics(&gpus),
        efa: Efa {
            reads: instance.efa_rdma_read == Some(true),
            writes: instance.efa_rdma_write == Some(true),
            ..Efa::PLAIN
        },
        host: builder.host_of(name),
        gpus,
        nccl: builder.nccl(),
        faults: Faults::default(),
        report: None,
    })
}

/// The names of all instances.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CATALOGUE.instance.keys().map(String::as_str)
}

/// What is known of an instance.
pub(super) struct Builder {
    pub(super) instance: &'static Instance,
    known: &'static catalogue::Gpu,
    model: &'static Model,
}

impl Builder {
    fn gpu(&self, ordinal: u32) -> Gpu {
        let nvlinks = self.nvlinks();
        let port_gb_s = nvlinks.switch.then(|| {
            let way = rates::nvlink(nvlinks.generation, true);
            way.writes(self.nvlink_gb_s(nvlinks.count)).ce.gb_s
        });
        let (host, host_gb_s) = self.host();
        let local_gb_s = self.memory_gb_s() / 2.0;
        let pcie = self.pcie();
        Gpu {
            name: self.name(),
            memory_bytes: self.memory_mib() << 20,
            compute_capability: self.compute_capability(),
            multiprocessors: self.model.multiprocessors,
            sm_clock_mhz: self.model.sm_clock_mhz,
            memory_clock_mhz: self.model.memory_clock_mhz,
            memory_bus_bits: self.model.memory_bus_bits,
            pci: (0, PCI_BUS_FIRST + ordinal, 0),
            pci_device_id: self.pci_device_id(),
            pcie_generation: (pcie.0, pcie.0),
            pcie_lanes: (pcie.1, pcie.1),
            pcie_switch: self.instance.gpus_per_pcie_switch.map(|gpus| ordinal / gpus),
            numa_node: ordinal * self.numa_nodes() / self.instance.gpu_count,
            nvlinks,
            local: rates::LOCAL.reads(local_gb_s),
            from_host: host.reads(host_gb_s),
            to_host: host.writes(host_gb_s),
            load_latency_ns: rates::LOCAL.load_latency_ns(),
            host_load_latency_ns: host.load_latency_ns(),
            egress_gb_s: port_gb_s,
            ingress_gb_s: port_gb_s,
            pcie_up_gb_s: Some(host_gb_s),
            pcie_down_gb_s: Some(host_gb_s),
            launch_ns: LAUNCH_NS,
            throttle: Vec::new(),
            c2c_links: self.c2c_links(),
            health: Health { cluster_uuid: self.domain(), ..Health::default() },
        }
    }

    /// The UUID of the NVLink domain that hosts of this type share: one for all that are simulated.
    fn domain(&self) -> [u8; 16] {
        match self.instance.imex_required {
            Some(true) => super::hash(b"domain".iter().copied().chain(self.instance.gpu.bytes())),
            _ => [0; 16],
        }
    }

    const fn c2c_links(&self) -> u32 {
        match self.instance.host_link {
            Some(HostLink::NvLinkC2c) => C2C_LINKS,
            _ => 0,
        }
    }

    /// The driver's name; V100 are told apart by their memory.
    fn name(&self) -> String {
        match self.instance.gpu.as_str() {
            "v100" => format!("{}-{}GB", self.model.name, self.memory_mib() >> 10),
            _ => self.model.name.to_owned(),
        }
    }

    /// V100 have another number with 32 GB.
    fn pci_device_id(&self) -> u32 {
        match (self.instance.gpu.as_str(), self.memory_mib() >> 10) {
            ("v100", 32) => V100_32_GB,
            _ => self.model.pci_device_id,
        }
    }

    fn memory_mib(&self) -> u64 {
        let labelled = self.instance.gpu_mem_gb.map(|gb| gb << 10);
        self.instance.gpu_mem_mib.or(labelled).expect("a test loads every instance")
    }

    /// What the GPU's own memory moves, in GB/s.
    fn memory_gb_s(&self) -> f64 {
        let model = self.model;
        let bytes = f64::from(model.memory_bus_bits) / 8.0;
        self.known.mem_bw_gbs.unwrap_or(2e-3 * f64::from(model.memory_clock_mhz) * bytes)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "3.7 to 12.0")]
    fn compute_capability(&self) -> (u32, u32) {
        let tenths = self.known.compute_capability.unwrap_or(COMPUTE_CAPABILITY) * 10.0;
        (tenths.round() as u32 / 10, tenths.round() as u32 % 10)
    }

    /// Generation and lanes.
    pub(super) fn pcie(&self) -> (u32, u32) {
        // "PCIe4 x16", and more in brackets where it is a board's.
        let interface = self.known.device_host_interface.as_deref().unwrap_or_default();
        let mut words = interface.split(' ');
        let generation = words.next().and_then(|word| word.strip_prefix("PCIe")?.parse().ok());
        let lanes = words.next().and_then(|word| word.strip_prefix('x')?.parse().ok());
        let instance = self.instance;
        (
            instance.gpu_pcie_gen.or(generation).unwrap_or(self.model.pcie_generation),
            instance.gpu_pcie_lanes.or(lanes).unwrap_or(PCIE_LANES),
        )
    }

    /// The way to the host, and its rate in GB/s in one direction.
    fn host(&self) -> (rates::Way, f64) {
        let (generation, lanes) = self.pcie();
        match (self.instance.host_link, self.instance.host_link_bidir_gbs) {
            // One Grace processor has two GPUs, which share its link.
            (Some(HostLink::NvLinkC2c), Some(both_ways)) => {
                (rates::HOST_C2C, both_ways / 2.0 / 2.0)
            }
            _ => (rates::HOST_PCIE, CATALOGUE.pcie.payload_gb_s(generation, lanes)),
        }
    }

    pub(super) fn numa_nodes(&self) -> u32 {
        let assumed = if self.instance.gpu_count >= GPUS_OF_TWO_NODES { 2 } else { 1 };
        self.instance.numa_nodes.unwrap_or(assumed)
    }

    pub(super) fn nvlinks(&self) -> NvLinks {
        let count = self.instance.nvlink_links_per_gpu.unwrap_or(0);
        let generation = if count == 0 { 0 } else { self.instance.nvlink_gen.unwrap_or(0) };
        let switch = self.instance.p2p == Some(PeerAccess::NvswitchAllPairs);
        NvLinks { generation, count, down: Vec::new(), switch }
    }

    /// What collectives find. Without interfaces for RDMA the GPUs share the network evenly.
    fn nccl(&self) -> Nccl {
        let assumed = Nccl::default();
        if self.instance.efa == Some(true) {
            return Nccl { net_name: "Libfabric".to_owned(), ..assumed };
        }
        let share_gb_s = |gbps: f64| gbps / 8.0 / f64::from(self.instance.gpu_count);
        Nccl { net_gb_s: self.instance.network_gbps.map(share_gb_s), ..assumed }
    }

    /// The raw rate of so many NVLinks, in GB/s.
    fn nvlink_gb_s(&self, links: u32) -> f64 {
        f64::from(links) * self.known.nvlink_gbs_per_link_per_dir.unwrap_or(0.0)
    }

    /// NVLinks between two GPUs.
    fn links(&self, source: u32, target: u32) -> u32 {
        let at = |mesh: &[&[u32]]| mesh[source as usize][target as usize];
        match (self.instance.p2p, self.instance.gpu_count) {
            (Some(PeerAccess::NvswitchAllPairs), _) => self.nvlinks().count,
            (Some(PeerAccess::Nvlink | PeerAccess::NvlinkHybridCubeMesh), 4) => {
                at(&QUAD_MESH.each_ref().map(<[u32; 4]>::as_slice))
            }
            (Some(PeerAccess::Nvlink | PeerAccess::NvlinkHybridCubeMesh), _) => {
                at(&CUBE_MESH.each_ref().map(<[u32; 8]>::as_slice))
            }
            _ => 0,
        }
    }

    /// Fills in what connects two of the GPUs.
    fn connect(&self, gpus: &[Gpu], pair: &mut Pair) {
        let [source, target] = [pair.source, pair.target].map(|ordinal| &gpus[ordinal as usize]);
        let links = self.links(pair.source, pair.target);
        let allowed = links > 0 || self.instance.p2p == Some(PeerAccess::Pcie);
        (pair.read_allowed, pair.write_allowed, pair.atomics) = (allowed, allowed, links > 0);
        if links > 0 {
            pair.link = Link::NvLink(links);
            let way = rates::nvlink(source.nvlinks.generation, source.nvlinks.switch);
            way.give(pair, self.nvlink_gb_s(links));
        } else {
            let near = source.numa_node == target.numa_node;
            let way = if near { rates::PCIE_NEAR } else { rates::PCIE_FAR };
            let (generation, lanes) = self.pcie();
            way.give(pair, CATALOGUE.pcie.payload_gb_s(generation, lanes));
        }
    }
}
