//! What is to be measured: pure data and pure functions; no device, no clock, no file.

mod case;
pub mod catalogue;
mod collective;
mod flows;
mod nccl;
pub mod nccl_env;
mod operation;
mod rdma;
mod sizes;
pub mod sweep;
pub mod topology;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

pub use case::{
    Case, Endpoint, Engine, Fabric, Flow, Gpu, Handle, Issuer, Meeting, NicName, Pattern, Place,
    Rank,
};
pub use collective::{Collective, DataType, Layout, Ranks, Reduction, Shape, Share};
pub use nccl::{Allocator, CollectiveRequest, Iterations, Nccl, Peers, Registration, Split};
pub use nccl_env::NcclRequest;
pub use operation::Operation;
pub use rdma::{FabricRequest, Memory, NicChoice};
pub use sizes::{Sizes, Step};
use topology::{GpuNode, Host, NumaNode, Topology};

use crate::units::Bytes;

/// A way of moving bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum TransportKind {
    /// Within one GPU, and between it and its host.
    #[default]
    Local,
    /// Between two GPUs, directly.
    P2p,
    /// Through shared memory of the host.
    Shm,
    /// NCCL's collectives.
    Nccl,
    /// RDMA through libfabric.
    Rdma,
}

impl TransportKind {
    /// Whether all ranks of all hosts measure a case together. Otherwise each host measures its own.
    pub const fn is_across_hosts(self) -> bool {
        match self {
            Self::Local | Self::P2p | Self::Shm => false,
            Self::Nccl | Self::Rdma => true,
        }
    }

    /// Whether the ends of its flows are told apart by their ranks, since ranks can share a GPU.
    pub const fn is_between_ranks(self) -> bool {
        match self {
            Self::Local | Self::P2p | Self::Shm | Self::Nccl => false,
            Self::Rdma => true,
        }
    }

    /// Whether it measures collectives, which have a bus bandwidth.
    pub const fn is_collective(self) -> bool {
        match self {
            Self::Local | Self::P2p | Self::Shm | Self::Rdma => false,
            Self::Nccl => true,
        }
    }
}

/// What the user asks to have measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The transports, each once.
    pub transports: Vec<TransportKind>,
    /// The patterns, each once; empty: one way between GPUs, between ranks all that they allow.
    pub patterns: Vec<Pattern>,
    /// Data in one transfer, in the order of the rows; `None`: [`Sizes::of_host`] for copies by
    /// CPUs, [`SIZE_OF_GPU`] for those by GPUs.
    pub sizes: Option<Vec<Bytes>>,
    /// How many processes, at least 1; `None`: one for all GPUs, two for host memory.
    pub ranks: Option<u32>,
    /// The GPUs, each once; `None`: all.
    pub gpus: Option<Vec<Gpu>>,
    /// What is done with the data, each once; empty: what each transport has by default.
    pub operations: Vec<Operation>,
    /// What moves it, each once.
    pub engines: Vec<Engine>,
    /// Who asks for it, each once.
    pub issuers: Vec<Issuer>,
    /// How memory of a GPU reaches another process.
    pub handle: Handle,
    /// NUMA nodes of source and target of copies by CPUs; empty: the first node to itself, and to
    /// the farthest.
    pub numa: Vec<(NumaNode, NumaNode)>,
    /// Bytes of one slot of a staging ring; `None`: tuned for each case.
    pub slot: Option<Bytes>,
    /// What only RDMA has.
    pub fabric: FabricRequest,
    /// The variables that steer NCCL.
    pub nccl: NcclRequest,
    /// What only NCCL's collectives have.
    pub collectives: CollectiveRequest,
}

impl Request {
    /// All that can be measured of `transports`, with what each has by default.
    pub fn of(transports: &[TransportKind]) -> Self {
        Self {
            transports: transports.to_vec(),
            patterns: Vec::new(),
            sizes: None,
            ranks: None,
            gpus: None,
            operations: Vec::new(),
            engines: Engine::OF_GPU.to_vec(),
            issuers: Issuer::VARIANTS.to_vec(),
            handle: Handle::Ipc,
            numa: Vec::new(),
            slot: None,
            fabric: FabricRequest::default(),
            nccl: NcclRequest::default(),
            collectives: CollectiveRequest::default(),
        }
    }

    /// The operations asked for, or `default`.
    fn operations_or<'a>(&'a self, default: &'a [Operation]) -> &'a [Operation] {
        if self.operations.is_empty() { default } else { &self.operations }
    }
}

/// Data of one transfer between GPUs, unless the user says otherwise: large enough that the start
/// of a copy (about 2 µs) is some percent of it on the fastest links at most.
pub const SIZE_OF_GPU: Bytes = Bytes::mib(64);

/// Memory that a pointer chase goes through: more than the lines that one batch of hops touches,
/// and within reach of the translation caches.
pub const SIZE_OF_CHASE: Bytes = Bytes::mib(2);

/// How long a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Effort {
    /// Sampling stops when the 95 % interval of the median is within this share of the median, on
    /// each side; 0.01 is 1 %.
    pub precision: f64,
    /// Sampling of a case stops after this time, converged or not.
    pub time_limit: Duration,
    /// Exactly so many bandwidth samples instead of sampling until the precision is reached.
    pub samples: Option<u32>,
}

/// A request that this machine's topology cannot answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// A NUMA node that is not here, or has no CPU this process may use.
    #[error("--numa {0}: there is no NUMA node {0} with a CPU that g2g may use; here are: {1}")]
    NumaNode(u32, String),
    /// A pattern that takes more ranks, where nothing but ranks could take part.
    #[error("--pattern {0} needs more ranks: give --ranks {needed} or more", needed = .0.ends_min())]
    TooFewRanks(Pattern),
    /// A GPU that is not here.
    #[error("--gpus {0}: there is no GPU {0}; here are: {1}")]
    Gpu(u32, String),
    /// Fewer GPUs were named than a transport or a pattern takes.
    #[error("{what} needs {needed} GPUs or more: name more with --gpus")]
    TooFewGpus {
        /// The transport or the pattern.
        what: &'static str,
        /// How many it takes.
        needed: u32,
    },
    /// A transfer that does not fit into a GPU.
    #[error("--sizes {size}: GPU {gpu} has {memory} of memory", gpu = gpu.0, memory = memory.rounded())]
    Size {
        /// The transfer.
        size: Bytes,
        /// The GPU with the least memory.
        gpu: Gpu,
        /// Its memory.
        memory: Bytes,
    },
    /// Windows of memory that cannot be in one.
    #[error(
        "--registration symmetric takes memory of NCCL's own: give --buffer nccl, or leave --buffer \
         out"
    )]
    Window,
    /// Communicators of different sizes, whose numbers would mean different things.
    #[error(
        "--split {split}: {members} GPUs would be in communicators of {} ranks: take one that makes \
         equal ones",
        .sizes.iter().map(usize::to_string).collect::<Vec<String>>().join(" and ")
    )]
    UnequalParts {
        /// What was asked for.
        split: Split,
        /// The GPUs.
        members: u32,
        /// How many ranks there would be in a communicator.
        sizes: Vec<usize>,
    },
    /// Pairs of ranks, and several communicators.
    #[error("--pattern {0}: pairs are of the communicator of all ranks: leave out --split")]
    PairOfPart(Pattern),
    /// A graph, and a wait for each of its operations.
    #[error(
        "--blocking 1 waits for each operation, and --graph has them launched together: leave out one"
    )]
    BlockingGraph,
    /// A root that no communicator has.
    #[error("--root {0}: there are {1} GPUs, whose ranks are counted from 0")]
    Root(u32, u32),
    /// A provider that not every host has.
    #[error("--provider {0}: libfabric does not offer it here (on every host); here are: {1}")]
    Provider(String, String),
    /// A provider for one host, on several.
    #[error("--provider shm joins ranks of one host, and there are {0}")]
    ProviderOfOneHost(usize),
    /// A provider that can only send and receive.
    #[error("--provider {provider}: it has no RMA, which --operation {operation} takes")]
    ProviderWithoutRma {
        /// The provider.
        provider: String,
        /// The operation.
        operation: Operation,
    },
    /// An interface that a host does not have.
    #[error("--nic {nic}: provider {provider} has no such interface on {host}; here are: {here}")]
    Nic {
        /// The name.
        nic: String,
        /// The provider.
        provider: String,
        /// The host without it.
        host: String,
        /// What is there.
        here: String,
    },
    /// More than the provider moves at once.
    #[error("--sizes {size}: one operation of provider {provider} moves {} at most", .most.rounded())]
    Message {
        /// The transfer.
        size: Bytes,
        /// The provider.
        provider: String,
        /// Its limit.
        most: Bytes,
    },
    /// Memory of a GPU where there is none.
    #[error("--memory {memory}: no GPU is on {host}: give --memory host")]
    MemoryWithoutGpu {
        /// What was asked for.
        memory: Memory,
        /// Where.
        host: String,
    },
}

/// The cases that all ranks of these hosts measure together, in the order of the rows.
pub fn cases_across_hosts(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, BadRequest> {
    let mut cases = Vec::new();
    for transport in &request.transports {
        match transport {
            TransportKind::Nccl => cases.extend(nccl::cases(request, hosts)?),
            TransportKind::Rdma => cases.extend(rdma::cases(request, hosts)?),
            TransportKind::Local | TransportKind::P2p | TransportKind::Shm => {}
        }
    }
    Ok(cases)
}

/// Checks that this machine has the GPUs of `request`, and that its sizes fit into them.
pub fn check_gpus(request: &Request, topology: &Topology) -> Result<(), BadRequest> {
    gpus(request, topology).map(drop)
}

/// The cases within one host that answer `request` on a machine of this `topology`, in the order
/// of the rows; its ranks are counted from 0.
///
/// A transport that has no pair of ranks or GPUs here has no case in the list; the caller says so.
pub fn cases(request: &Request, topology: &Topology) -> Result<Vec<Case>, BadRequest> {
    let gpus = gpus(request, topology)?;
    let mut cases = Vec::new();
    for transport in &request.transports {
        match transport {
            TransportKind::Local => cases.extend(local(request, topology, &gpus)),
            TransportKind::P2p => cases.extend(p2p(request, &gpus)),
            TransportKind::Shm => {
                cases.extend(shm_of_host(request, topology, gpus.is_empty())?);
                cases.extend(shm_of_gpus(request, &gpus));
            }
            TransportKind::Nccl | TransportKind::Rdma => {}
        }
    }
    Ok(cases)
}

/// Why [`cases`] and [`cases_across_hosts`] have none of `transport`: a sentence with the remedy.
pub fn why_none(transport: TransportKind, request: &Request, topology: &Topology) -> String {
    let count = request.gpus.as_ref().map_or(topology.gpus.len(), Vec::len);
    match transport {
        TransportKind::P2p if count < 2 => {
            let found = if count == 0 { "none is here" } else { "one is here" };
            format!("it takes place between two GPUs, and {found}")
        }
        TransportKind::Shm if request.ranks == Some(1) && count < 2 => BETWEEN_RANKS.to_owned(),
        TransportKind::Rdma if request.ranks == Some(1) => BETWEEN_RANKS.to_owned(),
        TransportKind::Rdma if topology.nics.is_empty() => {
            "libfabric offers no provider here that g2g measures (efa, verbs, tcp, shm)".to_owned()
        }
        TransportKind::Local
        | TransportKind::P2p
        | TransportKind::Shm
        | TransportKind::Nccl
        | TransportKind::Rdma => {
            "nothing of it fits --pattern, --operation, --engine and --issuer together, with the \
             ranks and GPUs that are here"
                .to_owned()
        }
    }
}

const BETWEEN_RANKS: &str = "it takes place between ranks: give --ranks 2 or more";

/// The GPUs that take part.
fn gpus<'a>(request: &Request, topology: &'a Topology) -> Result<Vec<&'a GpuNode>, BadRequest> {
    let known = || topology.gpus.iter().map(|gpu| gpu.gpu.0.to_string()).collect::<Vec<_>>();
    let find = |gpu: &Gpu| {
        let found = topology.gpus.iter().find(|here| here.gpu == *gpu);
        found.ok_or_else(|| BadRequest::Gpu(gpu.0, known().join(" ")))
    };
    let named = request.gpus.as_ref().map(|gpus| gpus.iter().map(find).collect());
    let gpus: Vec<&GpuNode> = named.unwrap_or_else(|| Ok(topology.gpus.iter().collect()))?;
    if request.gpus.is_some() {
        let count = gpus.len();
        let too_few = |what, needed| Err(BadRequest::TooFewGpus { what, needed });
        if request.transports == [TransportKind::P2p] && count < 2 {
            return too_few("p2p", 2);
        }
        let wide = request.patterns.iter().find(|pattern| pattern.ends_min() as usize > count);
        if let Some(pattern) = wide.filter(|pattern| !pattern.is_for_host()) {
            return too_few(pattern.into(), pattern.ends_min());
        }
    }
    if let (Some(sizes), Some(least)) = (&request.sizes, gpus.iter().min_by_key(|gpu| gpu.memory))
        && let Some(&size) = sizes.iter().find(|&&size| size > least.memory)
    {
        return Err(BadRequest::Size { size, gpu: least.gpu, memory: least.memory });
    }
    Ok(gpus)
}

/// Copies between processes by their CPUs.
fn shm_of_host(
    request: &Request,
    topology: &Topology,
    is_alone: bool,
) -> Result<Vec<Case>, BadRequest> {
    let ranks = request.ranks.unwrap_or(2);
    let patterns = wanted_patterns(request, Pattern::VARIANTS);
    let too_wide = request.patterns.iter().find(|pattern| pattern.ends_min() > ranks);
    if let Some(&pattern) = too_wide.filter(|pattern| is_alone && pattern.is_for_host()) {
        return Err(BadRequest::TooFewRanks(pattern));
    }
    let node_pairs = if request.numa.is_empty() {
        topology.near_and_far()
    } else {
        check_nodes(&request.numa, topology)?;
        request.numa.clone()
    };
    let mut cases = Vec::new();
    for &nodes in &node_pairs {
        let possible = |pattern: &&Pattern| pattern.is_for_host() && pattern.ends_min() <= ranks;
        for &pattern in patterns.iter().filter(possible) {
            let flows = flows::between_ranks(pattern, ranks, nodes, topology);
            let sizes = request.sizes.clone().unwrap_or_else(|| Sizes::of_host().0);
            cases.extend(sizes.into_iter().map(|size| Case {
                transport: TransportKind::Shm,
                pattern,
                flows: flows.clone(),
                operation: Operation::Copy,
                engine: Engine::Cpu,
                issuer: None,
                handle: None,
                size,
                slot: request.slot,
                fabric: None,
                nccl: None,
            }));
        }
    }
    Ok(cases)
}

fn check_nodes(pairs: &[(NumaNode, NumaNode)], topology: &Topology) -> Result<(), BadRequest> {
    for node in pairs.iter().flat_map(|&(source, target)| [source, target]) {
        if topology.cpus(node).is_empty() {
            return Err(BadRequest::NumaNode(node.0, topology.usable_nodes()));
        }
    }
    Ok(())
}

fn wanted_patterns<'a>(request: &'a Request, default: &'a [Pattern]) -> &'a [Pattern] {
    if request.patterns.is_empty() { default } else { &request.patterns }
}

/// Copies from one GPU to another through host memory.
fn shm_of_gpus(request: &Request, gpus: &[&GpuNode]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (pattern, flows) in flows_of_gpus(request, gpus) {
        for &engine in &request.engines {
            cases.extend(of_gpu(request, TransportKind::Shm, pattern, &flows, engine));
        }
    }
    if request.operations_or(&Operation::OF_GPU).contains(&Operation::Copy) {
        cases
    } else {
        Vec::new()
    }
}

/// Each wanted pattern's flows between the GPUs.
fn flows_of_gpus(request: &Request, gpus: &[&GpuNode]) -> Vec<(Pattern, Vec<Flow>)> {
    let gpus: Vec<Gpu> = gpus.iter().map(|gpu| gpu.gpu).collect();
    wanted_patterns(request, &[Pattern::OneWay])
        .iter()
        .filter(|pattern| pattern.ends_min() as usize <= gpus.len())
        .flat_map(|&pattern| {
            let cases = flows::between_gpus(pattern, &gpus, request.ranks.unwrap_or(1));
            cases.into_iter().map(move |flows| (pattern, flows))
        })
        .collect()
}

/// A case for each size of copies by `engine`.
fn of_gpu(
    request: &Request,
    transport: TransportKind,
    pattern: Pattern,
    flows: &[Flow],
    engine: Engine,
) -> Vec<Case> {
    let is_between_ranks = flows.iter().any(|flow| flow.source.rank != flow.target.rank);
    let sizes = request.sizes.clone().unwrap_or_else(|| vec![SIZE_OF_GPU]);
    let case = |size| Case {
        transport,
        pattern,
        flows: flows.to_vec(),
        operation: Operation::Copy,
        engine,
        issuer: None,
        handle: (transport == TransportKind::P2p && is_between_ranks).then_some(request.handle),
        size,
        slot: request.slot.filter(|_| transport == TransportKind::Shm),
        fabric: None,
        nccl: None,
    };
    sizes.into_iter().map(case).collect()
}

/// Copies from one GPU's memory to another's.
fn p2p(request: &Request, gpus: &[&GpuNode]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (pattern, flows) in flows_of_gpus(request, gpus) {
        for &operation in request.operations_or(&Operation::OF_GPU) {
            let of = |engine| of_gpu(request, TransportKind::P2p, pattern, &flows, engine);
            match operation {
                Operation::Copy => {
                    for &issuer in &request.issuers {
                        let engines = request.engines.iter().flat_map(|&engine| of(engine));
                        cases.extend(engines.map(|case| Case { issuer: Some(issuer), ..case }));
                    }
                }
                Operation::ReadOnly | Operation::WriteOnly => {
                    let issuer = operation.issuer();
                    let wanted = issuer.is_some_and(|issuer| request.issuers.contains(&issuer))
                        && request.engines.contains(&Engine::Sm);
                    let kernels = of(Engine::Sm).into_iter().filter(|_| wanted);
                    cases.extend(kernels.map(|case| Case { issuer, operation, ..case }));
                }
                Operation::Chase => {
                    cases.extend(of(Engine::Sm).first().and_then(|case| chase(request, case)))
                }
                Operation::Write
                | Operation::Read
                | Operation::Send
                | Operation::PingPong
                | Operation::Collective(_) => {}
            }
        }
    }
    cases
}

/// The pointer chase along the only flow of `case`.
fn chase(request: &Request, case: &Case) -> Option<Case> {
    let is_wanted = case.pattern == Pattern::OneWay
        && request.engines.contains(&Engine::Sm)
        && request.issuers.contains(&Issuer::Read);
    is_wanted.then(|| Case {
        operation: Operation::Chase,
        engine: Engine::Sm,
        issuer: Some(Issuer::Read),
        size: SIZE_OF_CHASE,
        ..case.clone()
    })
}

/// Copies within a GPU, and between it and host memory on the nearest and the farthest NUMA node.
fn local(request: &Request, topology: &Topology, gpus: &[&GpuNode]) -> Vec<Case> {
    let ranks = request.ranks.unwrap_or(1);
    let patterns = wanted_patterns(request, &[Pattern::OneWay, Pattern::BothWays]);
    let mut cases = Vec::new();
    for (index, gpu) in (0..).zip(gpus) {
        let end = |place| Endpoint { rank: Rank(index % ranks), place };
        let own = end(Place::Gpu(gpu.gpu));
        let within = Flow { source: own, target: own };
        let hosts = topology.nearest_and_farthest(gpu.numa_node);
        let from = |numa_node| Flow { source: end(Place::Pinned { numa_node }), target: own };
        for &pattern in patterns {
            let flows: Vec<Vec<Flow>> = match pattern {
                Pattern::OneWay => std::iter::once(vec![within])
                    .chain(
                        hosts
                            .iter()
                            .flat_map(|&node| [vec![from(node)], vec![from(node).reversed()]]),
                    )
                    .collect(),
                Pattern::BothWays => {
                    hosts.iter().map(|&node| vec![from(node), from(node).reversed()]).collect()
                }
                _ => Vec::new(),
            };
            cases.extend(flows.iter().flat_map(|flows| local_of(request, pattern, flows)));
        }
    }
    cases
}

/// All wanted operations along `flows` of one GPU.
fn local_of(request: &Request, pattern: Pattern, flows: &[Flow]) -> Vec<Case> {
    let of = |engine| of_gpu(request, TransportKind::Local, pattern, flows, engine);
    let (to_host, from_host) = (flows[0].target.gpu().is_none(), flows[0].source.gpu().is_none());
    let mut cases = Vec::new();
    for &operation in request.operations_or(&Operation::OF_GPU) {
        let kernels = || {
            let cases = if request.engines.contains(&Engine::Sm) { of(Engine::Sm) } else { vec![] };
            cases.into_iter().map(move |case| Case { operation, ..case })
        };
        let is_one_way = pattern == Pattern::OneWay;
        match operation {
            Operation::Copy => cases.extend(request.engines.iter().flat_map(|&e| of(e))),
            Operation::ReadOnly if is_one_way && !to_host => cases.extend(kernels()),
            Operation::WriteOnly if is_one_way && !from_host => cases.extend(kernels()),
            Operation::Chase if is_one_way && !to_host => {
                let chases = of(Engine::Sm).first().and_then(|case| chase(request, case));
                cases.extend(chases.map(|case| Case { issuer: None, ..case }));
            }
            Operation::ReadOnly
            | Operation::WriteOnly
            | Operation::Chase
            | Operation::Write
            | Operation::Read
            | Operation::Send
            | Operation::PingPong
            | Operation::Collective(_) => {}
        }
    }
    cases
}

#[cfg(test)]
mod tests;
