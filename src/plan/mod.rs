//! What is to be measured: pure data and pure functions; no device, no clock, no file.

mod sizes;
pub mod topology;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

pub use sizes::Sizes;
use topology::{NumaNode, Topology};

use crate::units::Bytes;

/// A way of moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// Within one GPU, and between it and its host.
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
    /// All of them, in the order in which they are measured and listed.
    pub const ALL: [Self; 5] = [Self::Local, Self::P2p, Self::Shm, Self::Nccl, Self::Rdma];

    /// The name in flags and columns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::P2p => "p2p",
            Self::Shm => "shm",
            Self::Nccl => "nccl",
            Self::Rdma => "rdma",
        }
    }
}

/// One process of a run, by its number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// Where a buffer lives and who handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The process that owns the buffer.
    pub rank: Rank,
    /// The NUMA node of the buffer and of the CPU that copies.
    pub numa_node: NumaNode,
    /// The CPU that copies, for itself alone; `None` where there are fewer CPUs than ranks, so
    /// that they share the CPUs of the node.
    pub cpu: Option<u32>,
}

/// The way of the data, from the buffer where it is at first to the buffer where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Where the data is at first.
    pub source: Endpoint,
    /// Where the data ends.
    pub target: Endpoint,
}

/// Which flows go at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One flow, from one rank to another.
    OneWay,
    /// Two flows between two ranks, one each way, at once.
    BothWays,
    /// All disjoint pairs of neighbouring ranks (0→1, 2→3, …), one way, at once; from 4 ranks.
    Pairs,
}

impl Pattern {
    /// All of them, in the order of the rows.
    pub const ALL: [Self; 3] = [Self::OneWay, Self::BothWays, Self::Pairs];

    /// How many ranks it takes.
    pub const fn ranks_min(self) -> u32 {
        match self {
            Self::OneWay | Self::BothWays => 2,
            Self::Pairs => 4,
        }
    }

    /// The name in flags and columns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneWay => "one-way",
            Self::BothWays => "both-ways",
            Self::Pairs => "pairs",
        }
    }
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
    /// Data in one transfer of one flow.
    pub size: Bytes,
    /// Bytes of one slot of a staging ring, where the user gave them; otherwise tuned.
    pub slot: Option<Bytes>,
}

impl Case {
    /// Where `rank`'s buffers lie in this case, if it sends or receives.
    pub fn endpoint(&self, rank: Rank) -> Option<Endpoint> {
        let ends = self.flows.iter().flat_map(|flow| [flow.source, flow.target]);
        ends.into_iter().find(|end| end.rank == rank)
    }

    /// What all flows move in one operation.
    pub fn bytes_per_operation(&self) -> Bytes {
        self.size.times(self.flows.len() as u64)
    }
}

impl fmt::Display for Case {
    /// `shm one-way rank 0 (NUMA node 0, CPU 0) -> rank 1 (NUMA node 0, CPU 1) 64 KiB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport.name(), self.pattern.name())?;
        for (index, flow) in self.flows.iter().enumerate() {
            write!(f, "{}{} -> {}", if index == 0 { " " } else { ", " }, flow.source, flow.target)?;
        }
        write!(f, " {}", self.size)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (NUMA node {}", self.rank.0, self.numa_node.0)?;
        match self.cpu {
            Some(cpu) => write!(f, ", CPU {cpu})"),
            None => write!(f, ", shared CPUs)"),
        }
    }
}

/// What the user asks to have measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The transports, each once.
    pub transports: Vec<TransportKind>,
    /// The patterns, each once; empty: all that the ranks allow.
    pub patterns: Vec<Pattern>,
    /// Data in one transfer, in the order of the rows.
    pub sizes: Vec<Bytes>,
    /// How many processes; at least 1.
    pub ranks: u32,
    /// NUMA nodes of source and target; empty: the first node to itself, and to the farthest.
    pub numa: Vec<(NumaNode, NumaNode)>,
    /// Bytes of one slot of a staging ring; `None`: tuned for each case.
    pub slot: Option<Bytes>,
}

/// How long a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// A pattern that takes more ranks.
    #[error("--pattern {pattern} needs more ranks: give --ranks {needed} or more", pattern = .0.name(), needed = .0.ranks_min())]
    TooFewRanks(Pattern),
}

/// The cases that answer `request` on a machine of this `topology`, in the order of the rows.
///
/// With one rank there is no pair, and the list has no case of a transport that takes place
/// between ranks; the caller says so.
///
/// # Errors
///
/// The request names what the machine does not have.
pub fn cases(request: &Request, topology: &Topology) -> Result<Vec<Case>, BadRequest> {
    let mut cases = Vec::new();
    if let Some(&pattern) =
        request.patterns.iter().find(|pattern| pattern.ranks_min() > request.ranks)
    {
        return Err(BadRequest::TooFewRanks(pattern));
    }
    if !request.transports.contains(&TransportKind::Shm) {
        return Ok(cases);
    }
    let patterns =
        if request.patterns.is_empty() { &Pattern::ALL[..] } else { &request.patterns[..] };
    let node_pairs = if request.numa.is_empty() {
        topology.near_and_far()
    } else {
        check_nodes(&request.numa, topology)?;
        request.numa.clone()
    };
    for &nodes in &node_pairs {
        for &pattern in patterns.iter().filter(|pattern| pattern.ranks_min() <= request.ranks) {
            let flows = flows(pattern, request.ranks, nodes, topology);
            cases.extend(request.sizes.iter().map(|&size| Case {
                transport: TransportKind::Shm,
                pattern,
                flows: flows.clone(),
                size,
                slot: request.slot,
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

/// The flows of a pattern that the ranks allow: sources on the first node, targets on the second.
fn flows(
    pattern: Pattern,
    ranks: u32,
    (source, target): (NumaNode, NumaNode),
    topology: &Topology,
) -> Vec<Flow> {
    let pairs = match pattern {
        Pattern::OneWay | Pattern::BothWays => 1,
        Pattern::Pairs => ranks / 2,
    };
    // Sources first, then targets: with one node for both they must not share a CPU.
    let wanted: Vec<NumaNode> =
        (0..pairs).map(|_| source).chain((0..pairs).map(|_| target)).collect();
    let cpus = topology.assign(&wanted);
    let end = |rank: u32, numa_node, place: u32| Endpoint {
        rank: Rank(rank),
        numa_node,
        cpu: cpus.as_ref().map(|cpus| cpus[place as usize]),
    };
    let forth = (0..pairs).map(|pair| Flow {
        source: end(2 * pair, source, pair),
        target: end(2 * pair + 1, target, pairs + pair),
    });
    let mut flows: Vec<Flow> = forth.collect();
    if pattern == Pattern::BothWays {
        let there = flows[0];
        flows.push(Flow { source: there.target, target: there.source });
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::tests::machine;

    fn request(ranks: u32) -> Request {
        Request {
            transports: TransportKind::ALL.to_vec(),
            patterns: vec![],
            sizes: vec![Bytes::new(64), Bytes::kib(64)],
            ranks,
            numa: vec![],
            slot: None,
        }
    }

    fn ends(case: &Case) -> Vec<(u32, u32, Option<u32>)> {
        let ends = case.flows.iter().flat_map(|flow| [flow.source, flow.target]);
        ends.map(|end| (end.rank.0, end.numa_node.0, end.cpu)).collect()
    }

    #[test]
    fn two_ranks_on_one_node_give_one_way_and_both_ways_at_each_size() {
        let cases = cases(&request(2), &machine(&[&[0, 1]])).unwrap();
        let names: Vec<String> =
            cases.iter().map(|case| format!("{} {}", case.pattern.name(), case.size)).collect();
        assert_eq!(names, ["one-way 64 B", "one-way 64 KiB", "both-ways 64 B", "both-ways 64 KiB"]);
        assert_eq!(ends(&cases[0]), [(0, 0, Some(0)), (1, 0, Some(1))]);
        assert_eq!(
            ends(&cases[2]),
            [(0, 0, Some(0)), (1, 0, Some(1)), (1, 0, Some(1)), (0, 0, Some(0))]
        );
        assert_eq!(cases[2].bytes_per_operation(), Bytes::new(128));
        assert!(cases[0].endpoint(Rank(1)).is_some() && cases[0].endpoint(Rank(2)).is_none());
    }

    #[test]
    fn two_nodes_give_the_near_and_the_far_way() {
        let one_way = Request { patterns: vec![Pattern::OneWay], ..request(2) };
        let cases = cases(&one_way, &machine(&[&[0, 1], &[2, 3]])).unwrap();
        assert_eq!(cases.len(), 4);
        assert_eq!(ends(&cases[0]), [(0, 0, Some(0)), (1, 0, Some(1))]);
        assert_eq!(ends(&cases[2]), [(0, 0, Some(0)), (1, 1, Some(2))]);
    }

    #[test]
    fn pairs_need_four_ranks_and_share_cpus_only_when_they_must() {
        let pairs = Request { patterns: vec![Pattern::Pairs], ..request(3) };
        let err = cases(&pairs, &machine(&[&[0, 1]])).unwrap_err().to_string();
        assert_eq!(err, "--pattern pairs needs more ranks: give --ranks 4 or more");
        let pairs = Request { ranks: 5, sizes: vec![Bytes::new(1)], ..pairs };
        let roomy = cases(&pairs, &machine(&[&[0, 1, 2, 3]])).unwrap();
        assert_eq!(
            ends(&roomy[0]),
            [(0, 0, Some(0)), (1, 0, Some(2)), (2, 0, Some(1)), (3, 0, Some(3))]
        );
        let tight = cases(&pairs, &machine(&[&[0, 1]])).unwrap();
        assert_eq!(ends(&tight[0]), [(0, 0, None), (1, 0, None), (2, 0, None), (3, 0, None)]);
    }

    #[test]
    fn a_single_rank_has_no_pair() {
        assert_eq!(cases(&request(1), &machine(&[&[0, 1]])).unwrap(), []);
    }

    #[test]
    fn a_node_that_is_not_here_is_refused_by_name() {
        let absent = Request { numa: vec![(NumaNode(0), NumaNode(7))], ..request(2) };
        let err = cases(&absent, &machine(&[&[0], &[1]])).unwrap_err().to_string();
        assert!(err.contains("no NUMA node 7") && err.ends_with("here are: 0 1"), "{err}");
    }

    #[test]
    fn a_case_reads_as_a_sentence() {
        let cases = cases(&request(2), &machine(&[&[0, 1]])).unwrap();
        assert_eq!(
            cases[1].to_string(),
            "shm one-way rank 0 (NUMA node 0, CPU 0) -> rank 1 (NUMA node 0, CPU 1) 64 KiB"
        );
    }
}
