//! What is to be measured: pure data and pure functions; no device, no clock, no file.

mod bad_file;
mod case;
pub mod catalogue;
mod collective;
mod copies;
mod flags;
mod flows;
mod nccl;
pub mod nccl_env;
mod operation;
pub(crate) mod rdma;
mod rounds;
mod sizes;
pub mod sweep;
pub mod topology;
pub mod training;

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

pub use bad_file::BadFile;
pub use case::{
    Case, Endpoint, Engine, Fabric, Flow, Gpu, Handle, Issuer, Meeting, NicName, Pattern, Place,
    Rank, Sample,
};
pub use collective::{Collective, DataType, Layout, Ranks, Reduction, Shape, Share};
pub(crate) use copies::is_of_domain;
pub use flags::RANKS_MAX;
pub(crate) use flags::operation;
use flags::{gpu_list, node_pair, slot_size};
pub use nccl::{Allocator, CollectiveRequest, Iterations, Nccl, Peers, Registration, Split};
pub use nccl_env::NcclRequest;
pub use operation::Operation;
pub use rdma::{FabricRequest, Memory, NicChoice};
pub(crate) use rounds::{halves, rounds};
pub use sizes::Step;
use topology::{GpuNode, Host, NumaNode, Topology};

use crate::units::Bytes;

/// A way of moving bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
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
    /// Whether all ranks of all hosts measure a case together. Otherwise each host measures its
    /// own.
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

    /// Whether source and target are two GPUs, and either can ask for the transfer.
    const fn has_issuer(self) -> bool {
        match self {
            Self::P2p => true,
            Self::Local | Self::Shm | Self::Nccl | Self::Rdma => false,
        }
    }
}

/// What the user asks to have measured: flags, with their help.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Request {
    /// The transports, each once; the command names them.
    #[arg(skip)]
    pub transports: Vec<TransportKind>,

    /// Whether it is a check, in which each host measures by itself and is judged.
    #[arg(skip)]
    pub is_check: bool,

    /// Bytes of one transfer: 64,4K..64K,3M
    ///
    /// Bytes of one transfer; K, M and G are powers of 1024. A range doubles: 4K..64M. Separate
    /// sizes and ranges with commas: 64,4K..64K,3M [default: 64M for GPUs, 64..64M for host memory,
    /// 8,64,1K,8K,64K,1M,8M,64M for rdma, where flows at once, but for neighbours, begin at 64K]
    #[arg(long, value_name = "SIZES", value_parser = sizes::list)]
    pub sizes: Option<std::vec::Vec<Bytes>>,

    /// GPUs to measure, such as 0,2 or 0-3 (all)
    ///
    /// GPUs to measure, by the driver's ordinals, such as 0,2 or 0-3 [default: all]
    #[arg(long, value_name = "GPUS", value_parser = gpu_list)]
    pub gpus: Option<std::vec::Vec<Gpu>>,

    /// Who asks for a copy: read,write (both)
    ///
    /// Which GPU issues a copy between two GPUs: the target (read) or the source (write);
    /// comma-separated
    #[arg(
        long = "issuer",
        value_name = "ISSUER",
        value_delimiter = ',',
        default_value = "read,write"
    )]
    pub issuers: Vec<Issuer>,

    /// Who copies: ce (copy engine), sm (kernel) (both)
    ///
    /// What copies a GPU's data: the copy engine (ce) or a kernel (sm); comma-separated [default:
    /// both; ce with --effort quick]
    #[arg(long = "engine", value_name = "ENGINE", value_delimiter = ',')]
    pub engines: Vec<Engine>,

    /// What is done, such as copy,chase or all_reduce
    ///
    /// Operations to measure; comma-separated [default: copy,chase for GPUs,
    /// write,read,send,ping-pong for rdma]
    #[arg(long = "operation", value_name = "OP", value_delimiter = ',',
          value_parser = operation(None))]
    pub operations: Vec<Operation>,

    /// Which flows run at the same time
    ///
    /// Which flows run at the same time; comma-separated [default: one-way between GPUs; one-way,
    /// both-ways and pairs between ranks, as far as there are enough; for rdma one-way and
    /// both-ways between two ranks, one-way up to four, otherwise neighbours and bisection; for
    /// sendrecv of nccl neighbours, which also has one-way and both-ways]
    #[arg(long = "pattern", value_name = "PATTERN", value_delimiter = ',')]
    pub patterns: Vec<Pattern>,

    /// Which pairs of GPUs: all, sample
    ///
    /// Which pairs of GPUs to measure: all, or a sample in which each GPU has 8 partners at most
    /// [default: a sample from 24 GPUs on]
    #[arg(long, value_name = "PAIRS", value_enum)]
    pub pairs: Option<Pairs>,

    /// What a sample is drawn by: the seed of the run.
    #[arg(skip)]
    pub seed: u64,

    /// Number of processes
    ///
    /// Number of processes, 1 to 1024. They get the GPUs in turn, and each has a CPU for itself if
    /// there are enough [default: one for all GPUs, two for host memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    pub ranks: Option<u32>,

    /// How processes share GPU memory (ipc)
    ///
    /// How a process shares its GPU memory with another one
    #[arg(long, value_name = "HANDLE", value_enum, default_value_t = Handle::Ipc)]
    pub handle: Handle,

    /// NUMA nodes of copies by CPUs, such as 0:1
    ///
    /// NUMA nodes of source and target of copies by CPUs, such as 0:1; comma-separated [default:
    /// the first node to itself and to the farthest]
    #[arg(long, value_name = "FROM:TO", value_parser = node_pair, value_delimiter = ',')]
    pub numa: Vec<(NumaNode, NumaNode)>,

    /// Bytes of one slot of the staging ring
    ///
    /// Bytes of one slot of the staging ring, 64 or more [default: the fastest of several, found
    /// for each case; 512K for rdma]
    #[arg(long = "slot-size", value_name = "SIZE", value_parser = slot_size)]
    pub slot: Option<Bytes>,

    /// What only RDMA has.
    #[command(flatten)]
    pub fabric: FabricRequest,

    /// The variables that steer NCCL.
    #[command(flatten)]
    pub nccl: NcclRequest,

    /// What only NCCL's collectives have.
    #[command(flatten)]
    pub collectives: CollectiveRequest,
}

impl Request {
    /// All that can be measured of `transports`, with what each has by default.
    pub fn of(transports: &[TransportKind]) -> Self {
        Self {
            transports: transports.to_vec(),
            engines: Engine::OF_GPU.to_vec(),
            issuers: Issuer::VARIANTS.to_vec(),
            ..Self::default()
        }
    }

    /// Fills in what the user leaves to `level`.
    pub fn at(self, level: Level) -> Self {
        let engines = match self.engines.is_empty() {
            true => level.engines().to_vec(),
            false => self.engines,
        };
        Self { engines, ..self }
    }

    /// The requested patterns, or `default`.
    fn patterns_or<'a>(&'a self, default: &'a [Pattern]) -> &'a [Pattern] {
        if self.patterns.is_empty() { default } else { &self.patterns }
    }

    /// The requested operations, or `default`.
    fn operations_or<'a>(&'a self, default: &'a [Operation]) -> &'a [Operation] {
        if self.operations.is_empty() { default } else { &self.operations }
    }
}

/// Which pairs of GPUs are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pairs {
    /// All.
    All,
    /// Some, drawn by lot.
    Sample,
}

/// From so many GPUs on pairs are sampled, unless the user says otherwise.
const GPUS_SAMPLED: usize = 24;

/// Data of one transfer between GPUs, unless the user says otherwise: large enough that the start
/// of a copy (about 2 µs) is some percent of it on the fastest links at most.
pub const SIZE_OF_GPU: Bytes = Bytes::mib(64);

/// Memory that a pointer chase goes through: more than the lines that one batch of hops touches,
/// and within reach of the translation caches.
pub const SIZE_OF_CHASE: Bytes = Bytes::mib(2);

/// How long a case is measured. Times are the machine's: on a simulated machine its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Effort {
    /// Sampling stops when the 95 % interval of the median is within this share of the median, on
    /// each side; 0.01 is 1 %.
    pub precision: f64,
    /// Sampling of a case stops after this time, converged or not.
    pub time_limit: Duration,
    /// Exactly so many bandwidth samples instead of sampling until the precision is reached.
    pub samples: Option<u32>,
    /// All bandwidth samples together last at least this long.
    pub bandwidth_time: Duration,
    /// Single operations are timed for this long, and longer until their median is known to
    /// `precision`. Before that at most as long are proven, each by itself.
    pub latency_time: Duration,
    /// Whether each operation is compared before the next one begins, but for those of a stream.
    pub compares_each: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Level::Normal.effort()
    }
}

/// How much time a run may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// A first look: copy engines only, and 3 ms of bandwidth and 1 ms of latency for each row
    Quick,
    /// 10 ms of bandwidth and 5 ms of latency for each row, and longer until both are precise
    #[default]
    Normal,
    /// 100 ms of bandwidth, precise to 0.5 %, and 10000 single operations, as far as they fit into
    /// 5 s
    Thorough,
}

impl Level {
    /// How long each case is measured.
    pub const fn effort(self) -> Effort {
        let ms = Duration::from_millis;
        let (precision, time_limit, bandwidth_time, latency_time) = match self {
            Self::Quick => (0.02, ms(200), ms(3), ms(1)),
            Self::Normal => (0.01, ms(1000), ms(10), ms(5)),
            Self::Thorough => (0.005, ms(10_000), ms(100), ms(5000)),
        };
        let (samples, compares_each) = (None, false);
        Effort { precision, time_limit, samples, bandwidth_time, latency_time, compares_each }
    }

    /// What copies data of a GPU.
    const fn engines(self) -> &'static [Engine] {
        match self {
            Self::Quick => &[Engine::Ce],
            Self::Normal | Self::Thorough => &Engine::OF_GPU,
        }
    }
}

/// Why this machine's topology cannot answer a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// A pattern takes more ranks than there are, and nothing but ranks could take part.
    #[error("--pattern {0} needs more ranks: give --ranks {least} or more", least = .0.ends_min())]
    TooFewRanks(Pattern),
    /// Anything else: a sentence.
    #[error("{0}")]
    Other(String),
}

impl From<String> for BadRequest {
    fn from(sentence: String) -> Self {
        Self::Other(sentence)
    }
}

/// The cases that all ranks of these hosts measure together, in the order of the rows.
pub fn cases_across_hosts(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for transport in &request.transports {
        match transport {
            TransportKind::Nccl => cases.extend(nccl::cases(request, hosts)?),
            TransportKind::Rdma => cases.extend(rdma::cases(request, hosts)?),
            TransportKind::P2p => cases.extend(copies::p2p_between_hosts(request, hosts)?),
            TransportKind::Local | TransportKind::Shm => {}
        }
    }
    Ok(cases)
}

/// The hosts of one NVLink domain that reach each other's GPUs, in groups; and why others do not,
/// that are in a domain too.
pub fn nvlink_domains(hosts: &[Host]) -> (Vec<Vec<&Host>>, Vec<String>) {
    let mut groups: Vec<Vec<&Host>> = Vec::new();
    // The names of those that do not reach the first, by the reason.
    let mut apart: IndexMap<String, Vec<&str>> = IndexMap::new();
    for host in hosts {
        let Some(domain) = &host.topology.domain else { continue };
        let refusal = |first: &Host| first.topology.domain.as_ref()?.refusal(domain);
        let refusals: Vec<Option<String>> = groups.iter().map(|group| refusal(group[0])).collect();
        match refusals.iter().position(Option::is_none) {
            Some(at) => groups[at].push(host),
            None => {
                if let Some(reason) = refusals.into_iter().flatten().next() {
                    apart.entry(reason).or_default().push(&host.name);
                }
                groups.push(vec![host]);
            }
        }
    }
    let first = groups.first().map_or("", |group| &group[0].name);
    let sentence = |(reason, names): (String, Vec<&str>)| {
        format!("not between {first} and {}: {reason}", names.join(", "))
    };
    let reasons = apart.into_iter().map(sentence).collect();
    groups.retain(|group| group.len() > 1);
    (groups, reasons)
}

/// Checks that this machine has the GPUs of `request`, and that its sizes fit into them.
pub fn check_gpus(request: &Request, topology: &Topology) -> Result<(), String> {
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
            TransportKind::Local => cases.extend(copies::local(request, topology, &gpus)),
            TransportKind::P2p => cases.extend(copies::p2p(request, &gpus)?),
            TransportKind::Shm => {
                cases.extend(copies::shm_of_host(request, topology, gpus.is_empty())?);
                cases.extend(copies::shm_of_gpus(request, &gpus));
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
fn gpus<'a>(request: &Request, topology: &'a Topology) -> Result<Vec<&'a GpuNode>, String> {
    let known = || topology.gpus.iter().map(|gpu| gpu.gpu.0.to_string()).collect::<Vec<_>>();
    let find = |&gpu: &Gpu| {
        let found = topology.gpus.iter().find(|here| here.gpu == gpu);
        found.ok_or_else(|| {
            format!("--gpus {0}: there is no GPU {0}; here are: {1}", gpu.0, known().join(" "))
        })
    };
    let named = request.gpus.as_ref().map(|gpus| gpus.iter().map(find).collect());
    let gpus: Vec<&GpuNode> = named.unwrap_or_else(|| Ok(topology.gpus.iter().collect()))?;
    if request.gpus.is_some() {
        let count = gpus.len();
        let too_few = |what: &str, needed: u32| {
            Err(format!("{what} needs {needed} GPUs or more: name more with --gpus"))
        };
        if request.transports == [TransportKind::P2p] && count < 2 {
            return too_few("p2p", 2);
        }
        let wide = request.patterns.iter().find(|pattern| pattern.ends_min() as usize > count);
        if let Some(pattern) = wide.filter(|pattern| !pattern.is_for_host()) {
            return too_few(pattern.into(), pattern.ends_min());
        }
    }
    if let (Some(sizes), Some(least)) = (&request.sizes, gpus.iter().min_by_key(|gpu| gpu.memory))
        && let Some(size) = sizes.iter().find(|&&size| size > least.memory)
    {
        let (gpu, memory) = (least.gpu.0, least.memory.rounded());
        return Err(format!("--sizes {size}: GPU {gpu} has {memory} of memory"));
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests;
