//! A case: everything that has to be known to repeat a row.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use serde::{Deserialize, Serialize};

use super::{Collective, Layout, Nccl, Operation, TransportKind, topology::NumaNode};
use crate::units::Bytes;

/// One process of a run, by its number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Rank(pub u32);

/// A GPU of this machine by its ordinal, as the driver counts those that g2g may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Gpu(pub u32);

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Host memory that a CPU copies.
    Host {
        /// The NUMA node of the buffer and of the CPU that copies.
        numa_node: NumaNode,
        /// The CPU that copies, for itself alone; `None` where there are fewer CPUs than ranks,
        /// so that they share the CPUs of the node.
        cpu: Option<u32>,
    },
    /// Host memory that GPUs reach: page-locked and mapped.
    Pinned {
        /// The NUMA node of the buffer.
        numa_node: NumaNode,
    },
    /// Memory of a GPU.
    Gpu(Gpu),
}

/// Where a buffer lies and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The process that owns the buffer.
    pub rank: Rank,
    /// Where it lies.
    pub place: Place,
}

impl Endpoint {
    /// The GPU whose memory it is.
    pub const fn gpu(&self) -> Option<Gpu> {
        match self.place {
            Place::Gpu(gpu) => Some(gpu),
            Place::Host { .. } | Place::Pinned { .. } => None,
        }
    }

    /// The NUMA node of host memory.
    pub const fn numa_node(&self) -> Option<NumaNode> {
        match self.place {
            Place::Host { numa_node, .. } | Place::Pinned { numa_node } => Some(numa_node),
            Place::Gpu(_) => None,
        }
    }

    /// The CPU that copies, where it has one for itself.
    pub const fn cpu(&self) -> Option<u32> {
        match self.place {
            Place::Host { cpu, .. } => cpu,
            Place::Pinned { .. } | Place::Gpu(_) => None,
        }
    }
}

/// The path of the data, from a source buffer to a target buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// Where the data comes from.
    pub source: Endpoint,
    /// Where the data goes.
    pub target: Endpoint,
}

impl Flow {
    /// The same, the other way.
    pub const fn reversed(self) -> Self {
        Self { source: self.target, target: self.source }
    }

    /// The end whose GPU does the work: the target of a read, the source of a write. Between a
    /// GPU and host memory there is one GPU only; within one GPU both ends are the same.
    pub fn executor(&self, issuer: Option<Issuer>) -> Endpoint {
        match (self.source.gpu(), self.target.gpu(), issuer) {
            (None, _, _) | (_, Some(_), Some(Issuer::Read)) => self.target,
            (Some(_), _, _) => self.source,
        }
    }
}

/// Which flows go at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Pattern {
    /// One flow, from one end to another.
    OneWay,
    /// Two flows between two ends, one each way, at once.
    BothWays,
    /// All disjoint pairs (0→1, 2→3, …), one way, at once; from 4 ranks or GPUs.
    Pairs,
    /// From one GPU or rank to each of the others, at once.
    OneToAll,
    /// To one GPU or rank from each of the others, at once.
    AllToOne,
    /// Every ordered pair of GPUs or ranks, at once.
    AllPairs,
    /// From each GPU or host to the one half of all of them further, at once.
    Bisection,
    /// From each rank to the next one, around, at once; where there are several hosts, to a rank
    /// of the next host.
    Neighbours,
}

impl Pattern {
    /// How many ranks or GPUs it takes.
    pub const fn ends_min(self) -> u32 {
        match self {
            Self::Pairs => 4,
            _ => 2,
        }
    }

    /// Whether it is one of those between processes that copy host memory.
    pub const fn is_for_host(self) -> bool {
        matches!(self, Self::OneWay | Self::BothWays | Self::Pairs)
    }
}

/// Who asks for a copy between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Issuer {
    /// The target pulls.
    Read,
    /// The source pushes.
    Write,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Engine {
    /// CPUs.
    #[value(skip)]
    Cpu,
    /// A GPU's copy engine.
    Ce,
    /// A kernel on a GPU's multiprocessors.
    Sm,
    /// A network interface, or what its provider has in its place.
    #[value(skip)]
    Nic,
}

impl Engine {
    /// Whether the rank that does the work times it from beginning to end; of copies by CPUs the
    /// source notes the beginning and the target the end.
    pub const fn has_own_clock(self) -> bool {
        !matches!(self, Self::Cpu)
    }

    /// Those of a GPU.
    pub const OF_GPU: [Self; 2] = [Self::Ce, Self::Sm];

    /// Whether it is part of a GPU.
    pub fn is_of_gpu(self) -> bool {
        Self::OF_GPU.contains(&self)
    }
}

/// How one process lets another reach its GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(Default, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Handle {
    /// CUDA IPC (`cuIpcGetMemHandle`).
    #[default]
    Ipc,
    /// `cuMemCreate` and a POSIX file descriptor.
    Cumem,
    /// `cuMemCreate` and a handle for all hosts of an NVLink domain; between two of them always
    /// this one.
    Fabric,
}

/// How many pairs of GPUs are measured, where not all are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Pairs in the sample: ordered ones of one-way flows, others of flows both ways.
    pub pairs: u32,
    /// All pairs.
    pub of: u32,
}

/// What a case asks of libfabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// The provider, as libfabric names it: `efa`, `tcp`, `tcp;ofi_rxm`.
    pub provider: String,
    /// The network interfaces of each rank with a part in the case.
    pub nics: Vec<(Rank, Vec<NicName>)>,
    /// The most endpoints that one of these ranks has, on all its interfaces.
    pub rails: u32,
    /// Endpoints on each interface.
    pub endpoints: u32,
    /// The most operations of a flow in flight at once.
    pub window: u32,
    /// Whether the user set the window; otherwise it is narrower for large data.
    pub is_window_given: bool,
    /// Whether data of GPUs goes through page-locked host memory at both ends.
    pub is_staged: bool,
    /// Whether the flows are between ranks of one host; else each is between two.
    pub is_one_host: bool,
    /// The rank's rounds of a dissemination barrier; empty in a whole case.
    pub meetings: Vec<Meeting>,
}

/// A network interface by libfabric's names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NicName {
    /// Domain, such as `rdmap79s0-rdm` or `eth0`.
    pub domain: String,
    /// Fabric: the network that it belongs to, such as `10.0.0.0/24`.
    pub fabric: String,
    /// The device, such as `rdmap79s0`, where the provider names one.
    pub device: Option<String>,
}

/// One round of a dissemination barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// The rank that it notifies.
    pub tell: Rank,
    /// The rank that notifies it.
    pub hear: Rank,
}

/// One row of the results: everything that has to be known to repeat it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// How the bytes are moved.
    pub transport: TransportKind,
    /// The name of the set of flows.
    pub pattern: Pattern,
    /// What moves at the same time; never empty.
    pub flows: Vec<Flow>,
    /// What is done with the data.
    pub operation: Operation,
    /// What moves the bytes.
    pub engine: Engine,
    /// Who asks for it; `None` where it makes no difference or both ends take part.
    pub issuer: Option<Issuer>,
    /// How memory of a GPU reaches another process, where it must.
    pub handle: Option<Handle>,
    /// Data in one transfer of one flow.
    pub size: Bytes,
    /// Bytes of one slot of a staging ring, where the user gave them; otherwise tuned.
    pub slot: Option<Bytes>,
    /// Where pairs are sampled: how many of them are measured.
    pub sample: Option<Sample>,
    /// RDMA: the provider, the interfaces, and how they are used.
    pub fabric: Option<Fabric>,
    /// NCCL: what the elements are, and what becomes of them.
    pub nccl: Option<Nccl>,
}

impl Case {
    /// A copy along `flows` with nothing special to it.
    pub(super) const fn copy(
        transport: TransportKind,
        pattern: Pattern,
        flows: Vec<Flow>,
        engine: Engine,
        size: Bytes,
    ) -> Self {
        Self {
            transport,
            pattern,
            flows,
            operation: Operation::Copy,
            engine,
            issuer: None,
            handle: None,
            size,
            slot: None,
            sample: None,
            fabric: None,
            nccl: None,
        }
    }

    /// Where `rank`'s first buffer lies in this case, if it sends or receives.
    pub fn endpoint(&self, rank: Rank) -> Option<Endpoint> {
        self.ends().find(|end| end.rank == rank)
    }

    /// Sources and targets, flow by flow.
    pub fn ends(&self) -> impl Iterator<Item = Endpoint> {
        self.flows.iter().flat_map(|flow| [flow.source, flow.target])
    }

    /// The ranks with a part in it, each once, in ascending order.
    pub fn members(&self) -> Vec<Rank> {
        let ranks: BTreeSet<Rank> = self.ends().map(|end| end.rank).collect();
        ranks.into_iter().collect()
    }

    /// What each rank with a part in a case between all ranks must know of it: its own flows, and
    /// for RDMA its own interfaces and meetings. So the messages to all ranks grow with the number
    /// of flows, not with its square.
    pub fn parts(&self) -> BTreeMap<Rank, Self> {
        let members = self.members();
        let bare = self.without_flows();
        let mut parts: BTreeMap<Rank, Self> =
            members.iter().map(|&rank| (rank, bare.clone())).collect();
        for (place, part) in parts.values_mut().enumerate() {
            if let Some(fabric) = &mut part.fabric {
                fabric.meetings = meetings(&members, place);
            }
        }
        for (rank, nics) in self.fabric.iter().flat_map(|fabric| &fabric.nics) {
            let fabric = parts.get_mut(rank).and_then(|part| part.fabric.as_mut());
            fabric.into_iter().for_each(|fabric| fabric.nics.push((*rank, nics.clone())));
        }
        for (number, flow) in (0..).zip(&self.flows) {
            // A rank of a communicator knows the flows that begin at its own GPUs.
            let target = flow.target.rank;
            let ranks = [Some(flow.source.rank), Some(target).filter(|_| self.nccl.is_none())];
            for rank in ranks.into_iter().flatten() {
                let of_rank = parts.get_mut(&rank).filter(|part| part.flows.last() != Some(flow));
                let Some(part) = of_rank else { continue };
                if let Some(nccl) = part.nccl.as_mut().filter(|_| part.flows.is_empty()) {
                    nccl.first = number;
                }
                part.flows.push(*flow);
            }
        }
        parts
    }

    /// The case without its flows, for a rank without a part in it.
    pub fn without_flows(&self) -> Self {
        let fabric = self.fabric.clone().map(|fabric| Fabric {
            nics: Vec::new(),
            meetings: Vec::new(),
            ..fabric
        });
        Self { flows: Vec::new(), fabric, ..self.clone() }
    }

    /// The same, with the ranks numbered as `ranks` has them: the case counts them from 0.
    pub fn on(&self, ranks: &[Rank]) -> Self {
        let number = |rank: Rank| ranks.get(rank.0 as usize).copied().unwrap_or(rank);
        let end = |end: Endpoint| Endpoint { rank: number(end.rank), ..end };
        let flow = |flow: &Flow| Flow { source: end(flow.source), target: end(flow.target) };
        Self { flows: self.flows.iter().map(flow).collect(), ..self.clone() }
    }

    /// The other ranks that `rank` shares a flow with or meets, each once, in ascending order.
    pub fn partners(&self, rank: Rank) -> Vec<Rank> {
        let meetings = self.fabric.iter().flat_map(|fabric| &fabric.meetings);
        let met = meetings.flat_map(|meeting| [meeting.tell, meeting.hear]);
        let mut ranks: BTreeSet<Rank> = self.ends().map(|end| end.rank).chain(met).collect();
        ranks.remove(&rank);
        ranks.into_iter().collect()
    }

    /// The rank that times `flow`: whose GPU or interface does the work, or whose CPU begins it.
    pub fn timed_by(&self, flow: &Flow) -> Rank {
        match (self.engine, self.issuer) {
            (Engine::Cpu, _) => flow.source.rank,
            (Engine::Nic, Some(Issuer::Read)) => flow.target.rank,
            (Engine::Nic, _) => flow.source.rank,
            (Engine::Ce | Engine::Sm, issuer) => flow.executor(issuer).rank,
        }
    }

    /// What moves in one operation, where data counts once.
    pub fn bytes_per_operation(&self) -> Bytes {
        match self.collective() {
            Some((_, nccl, layout)) => layout.size(nccl.data_type),
            None => self.size.times(self.transfers() as u64),
        }
    }

    /// The transfers of its size that one operation is: each flow is one, or, where switches bring
    /// data to several GPUs, what each GPU issues; an all-reduce is one, of which each issues a part.
    pub fn transfers(&self) -> usize {
        match self.operation {
            Operation::Collective(_) | Operation::MultimemAllReduce => 1,
            Operation::MulticastStore | Operation::MultimemReduce => self.issuers().len(),
            Operation::Copy
            | Operation::ReadOnly
            | Operation::WriteOnly
            | Operation::Chase
            | Operation::Write
            | Operation::Read
            | Operation::Send
            | Operation::PingPong => self.flows.len(),
        }
    }

    /// The share of an operation that a rank times.
    pub fn share_of(&self, rank: Rank) -> f64 {
        let share = |own: usize, all: usize| own as f64 / all.max(1) as f64;
        if self.operation.is_switched() {
            let issuers = self.issuers();
            return share(issuers.iter().filter(|end| end.rank == rank).count(), issuers.len());
        }
        let own = self.flows.iter().filter(|flow| self.timed_by(flow) == rank);
        share(own.count(), self.flows.len())
    }

    /// The ends that do the work, each once, in the order of the flows.
    pub fn issuers(&self) -> Vec<Endpoint> {
        let issuers = self.flows.iter().map(|flow| flow.executor(self.issuer));
        issuers.collect::<IndexSet<Endpoint>>().into_iter().collect()
    }

    /// All ends, each once, in the order of their ranks and GPUs: of an operation of switches the
    /// GPUs that it reaches.
    pub fn team(&self) -> Vec<Endpoint> {
        let ends = self.ends().map(|end| ((end.rank, end.gpu()), end));
        ends.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// What an operation of switches brings out of each GPU and into it, for each byte of its size:
    /// switches load from every GPU, and store to every GPU, the one that issues among them.
    pub fn switched_bytes(&self) -> BTreeMap<(Rank, Gpu), [f64; 2]> {
        let (team, issuers) = (self.team(), self.issuers());
        let of_all = self.transfers() as f64;
        let of_one = of_all / issuers.len() as f64;
        let of = |end: &Endpoint| {
            let own = if issuers.contains(end) { of_one } else { 0.0 };
            let once = |is_done: bool, both: [f64; 2]| if is_done { both } else { [0.0; 2] };
            let stored = once(self.operation != Operation::MultimemReduce, [own, of_all]);
            let loaded = once(self.operation != Operation::MulticastStore, [of_all, own]);
            Some(((end.rank, end.gpu()?), [0, 1].map(|way| stored[way] + loaded[way])))
        };
        team.iter().filter_map(of).collect()
    }

    /// The collective that it is, what that works on, and how its elements lie.
    pub fn collective(&self) -> Option<(Collective, Nccl, Layout)> {
        let (collective, nccl) = (self.operation.collective()?, self.nccl?);
        Some((collective, nccl, collective.layout(self.size, nccl.data_type, nccl.ranks)))
    }
}

/// The rounds of a dissemination barrier (Hensgen, Finkel and Manber, 1988) of `members` for the
/// one at `place`: after round k it has heard, through others, of the 2^(k+1) before it.
fn meetings(members: &[Rank], place: usize) -> Vec<Meeting> {
    let count = members.len();
    let steps = std::iter::successors(Some(1), |step| Some(step * 2));
    steps
        .take_while(|&step| step < count)
        .map(|step| Meeting {
            tell: members[(place + step) % count],
            hear: members[(place + count - step) % count],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(gpu: u32) -> Endpoint {
        Endpoint { rank: Rank(0), place: Place::Gpu(Gpu(gpu)) }
    }

    #[test]
    fn a_read_is_executed_by_the_gpu_that_receives_and_a_write_by_the_one_that_sends() {
        let flow = Flow { source: gpu(1), target: gpu(2) };
        assert_eq!(flow.executor(Some(Issuer::Read)), gpu(2));
        assert_eq!(flow.executor(Some(Issuer::Write)), gpu(1));
        let host = Endpoint { rank: Rank(0), place: Place::Pinned { numa_node: NumaNode(0) } };
        for issuer in [None, Some(Issuer::Read), Some(Issuer::Write)] {
            assert_eq!(Flow { source: host, target: gpu(2) }.executor(issuer), gpu(2));
            assert_eq!(Flow { source: gpu(1), target: host }.executor(issuer), gpu(1));
        }
    }
}
