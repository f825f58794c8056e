//! The rates to expect of an instance type by the catalogue alone: the same formulas as for a live
//! machine, one line for each path.

use serde::Serialize;

use super::{Chosen, Expected, Machine, Site, expected};
use crate::{
    plan::{
        Allocator, Case, Collective, Endpoint, Engine, Fabric, Flow, Gpu, Issuer, Nccl, NicName,
        Operation, Pattern, Place, Rank, Registration, Request, TransportKind,
        catalogue::{Catalogue, Instance},
        topology::NumaNode,
    },
    units::Bytes,
};

/// The rate to expect of one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Known {
    /// The path, with the engine that moves the bytes.
    pub path: &'static str,
    /// The rate that most machines reach, in GB/s.
    pub gb_s: Option<f64>,
    /// The least rate of a healthy machine.
    pub gb_s_low: Option<f64>,
    /// The rate that no machine can exceed.
    pub gb_s_high: Option<f64>,
    /// The derivation, or why the rate is not known.
    pub derivation: String,
    /// The source of the shares.
    pub source: Option<String>,
}

/// The rates to expect of the paths that an instance type has.
pub fn known(name: &str, instance: &Instance, catalogue: &Catalogue) -> Vec<Known> {
    let machine = Machine::catalogued(name, instance, catalogue);
    paths(&machine).into_iter().map(|path| path.known(&machine, catalogue)).collect()
}

/// A path and a case that uses it.
struct Path {
    name: &'static str,
    case: Case,
    hosts: u32,
    chosen: Chosen<'static>,
}

impl Path {
    fn of(name: &'static str, case: Case) -> Self {
        Self { name, case, hosts: 1, chosen: Chosen::default() }
    }

    fn known(self, machine: &Machine, catalogue: &Catalogue) -> Known {
        let gpus = u32::try_from(machine.gpus.len()).unwrap_or(1);
        let ranks_of = |host| (host * gpus..(host + 1) * gpus).map(Rank).collect();
        let ranks: Vec<Vec<Rank>> = (0..self.hosts).map(ranks_of).collect();
        let sites: Vec<Site<'_>> = ranks.iter().map(|ranks| Site { machine, ranks }).collect();
        match expected(&self.case, &sites, self.chosen, catalogue) {
            Ok(Expected { gb_s, low, high, derivation, source, .. }) => Known {
                path: self.name,
                gb_s: Some(gb_s),
                gb_s_low: Some(low),
                gb_s_high: Some(high),
                derivation,
                source: Some(source),
            },
            Err(reason) => Known { path: self.name, derivation: reason, ..Known::default() },
        }
    }
}

/// Whether NCCL finds a path between GPUs that does not lead through host memory.
fn reaches(machine: &Machine) -> bool {
    machine.pair(0, 1).is_some() || machine.gpus.iter().any(|gpu| gpu.nvlinks.is_some())
}

/// The paths that a machine has.
fn paths(machine: &Machine) -> Vec<Path> {
    let of_gpu = |number: u32| Endpoint { rank: Rank(number), place: Place::Gpu(Gpu(number)) };
    let near = machine.gpus.first().and_then(|gpu| gpu.numa_node).unwrap_or(0);
    let pinned = Endpoint { rank: Rank(0), place: Place::Pinned { numa_node: NumaNode(near) } };
    let way = |source, target| vec![Flow { source, target }];
    let local = |source, target| {
        case(TransportKind::Local, Engine::Ce, Pattern::OneWay, way(source, target))
    };
    let (one, two) = (of_gpu(0), of_gpu(1));
    let mut paths = vec![
        Path::of("a GPU's own memory, copy engine", local(one, one)),
        Path::of("host to GPU, copy engine", local(pinned, one)),
        Path::of("GPU to host, copy engine", local(one, pinned)),
    ];
    let count = u32::try_from(machine.gpus.len()).unwrap_or(0);
    if count > 1 {
        if machine.pair(0, 1).is_some() {
            let p2p = |engine, pattern, flows| case(TransportKind::P2p, engine, pattern, flows);
            let copy = p2p(Engine::Ce, Pattern::OneWay, way(one, two));
            let kernel = p2p(Engine::Sm, Pattern::OneWay, way(one, two));
            let both = [way(one, two), way(two, one)].concat();
            let both = p2p(Engine::Ce, Pattern::BothWays, both);
            paths.extend([
                Path::of("GPU to GPU, copy engine", copy),
                Path::of("GPU to GPU, kernel", kernel),
                Path::of("GPU to GPU, both ways at once, copy engine", both),
            ]);
        }
        let shm = case(TransportKind::Shm, Engine::Ce, Pattern::OneWay, way(one, two));
        paths.push(Path::of("GPU to GPU through host memory, copy engines", shm));
        let ring = collective((0..count).map(of_gpu).collect());
        let transports = Some(if reaches(machine) { "P2P" } else { "SHM" });
        let chosen = Chosen { transports, ..Chosen::default() };
        paths.push(Path { chosen, ..Path::of("all_reduce, ring", ring.clone()) });
        if machine.gpus[0].has_nvls {
            let chosen = Chosen { algorithm: Some("NVLS"), ..chosen };
            paths.push(Path { chosen, ..Path::of("all_reduce, NVLS", ring) });
        }
    }
    if machine.nics.iter().any(|nic| nic.is_efa) {
        paths.extend(between_two_hosts(machine, count));
    }
    paths
}

/// The paths between two machines with EFA.
fn between_two_hosts(machine: &Machine, count: u32) -> Vec<Path> {
    let members: Vec<Endpoint> = (0..2 * count)
        .map(|rank| Endpoint { rank: Rank(rank), place: Place::Gpu(Gpu(rank % count)) })
        .collect();
    let within = if reaches(machine) { "P2P + NET/Libfabric" } else { "SHM + NET/Libfabric" };
    let tree = match machine.gpus.first().is_some_and(|gpu| gpu.has_nvls) {
        true => ("all_reduce between 2 hosts, NVLS tree", "NVLS_TREE"),
        false => ("all_reduce between 2 hosts, tree", "TREE"),
    };
    let reduce = |(name, algorithm)| {
        let chosen =
            Chosen { algorithm: Some(algorithm), transports: Some(within), ..Chosen::default() };
        Path { hosts: 2, chosen, ..Path::of(name, collective(members.clone())) }
    };
    let to = Flow { source: members[0], target: members[count as usize] };
    vec![
        reduce(("all_reduce between 2 hosts, ring", "RING")),
        reduce(tree),
        Path { hosts: 2, ..Path::of("one interface of EFA", write(to)) },
    ]
}

fn case(transport: TransportKind, engine: Engine, pattern: Pattern, flows: Vec<Flow>) -> Case {
    Case {
        transport,
        pattern,
        flows,
        operation: Operation::Copy,
        engine,
        issuer: (transport == TransportKind::P2p).then_some(Issuer::Write),
        handle: None,
        size: Bytes::mib(1024),
        slot: None,
        sample: None,
        fabric: None,
        nccl: None,
    }
}

/// An all-reduce among these members.
pub(super) fn collective(members: Vec<Endpoint>) -> Case {
    let ranks = u32::try_from(members.len()).unwrap_or(0);
    let wanted = Request::of(&[TransportKind::Nccl]).collectives;
    let next = members.iter().cycle().skip(1).copied();
    let flows = members.iter().copied().zip(next).map(|(source, target)| Flow { source, target });
    let nccl = Nccl {
        data_type: wanted.data_types[0],
        reduction: wanted.reductions.first().copied(),
        root: None,
        pair: None,
        is_in_place: false,
        buffer: Allocator::Cuda,
        registration: Registration::None,
        iterations: wanted.iterations,
        split: None,
        ranks,
        members: ranks,
        sharers: 1,
        first: 0,
    };
    let flows = flows.collect();
    Case {
        operation: Operation::Collective(Collective::AllReduce),
        nccl: Some(nccl),
        ..case(TransportKind::Nccl, Engine::Sm, Pattern::Neighbours, flows)
    }
}

/// A write through one interface at each end.
fn write(flow: Flow) -> Case {
    let nic = NicName { domain: "efa0".to_owned(), fabric: "efa".to_owned(), device: None };
    let ends = [flow.source.rank, flow.target.rank];
    let fabric = Fabric {
        provider: "efa".to_owned(),
        nics: ends.iter().map(|&rank| (rank, vec![nic.clone()])).collect(),
        window: 64,
        rails: 1,
        endpoints: 1,
        is_window_given: false,
        is_staged: false,
        is_one_host: false,
        meetings: Vec::new(),
    };
    Case {
        operation: Operation::Write,
        fabric: Some(fabric),
        ..case(TransportKind::Rdma, Engine::Nic, Pattern::OneWay, vec![flow])
    }
}
