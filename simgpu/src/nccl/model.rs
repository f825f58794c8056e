//! How long collectives last, by which way, and which algorithm and protocol is chosen. Pure.
//!
//! `docs/simulation.md`, "Collectives", has the formulas. The constants are those with which the
//! real library plans (NVIDIA/nccl 2.30.7, src/graph/tuning.cc).

use super::{
    environment::{Environment, level},
    types::{Code, Course, Function, Refused},
};
use crate::{
    machine::{Link, Machine},
    timing::cost::pair,
};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    Tree,
    Ring,
    Nvls,
}

impl Algorithm {
    /// All names that the variable may give, whether there is such a one here or not.
    pub(super) const NAMES: [&'static str; 7] =
        ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];

    /// As the variable and the log have it; the log in capitals.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tree => "Tree",
            Self::Ring => "Ring",
            Self::Nvls => "NVLS",
        }
    }
}

/// How its bytes are signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Ll,
    Ll128,
    Simple,
}

impl Protocol {
    pub(super) const NAMES: [&'static str; 3] = ["LL", "LL128", "Simple"];

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Microseconds before the first step, by protocol.
const BASE_US: [(Algorithm, [f64; 3]); 3] = [
    (Algorithm::Tree, [6.8, 14.0, 8.4]),
    (Algorithm::Ring, [6.6, 14.0, 8.4]),
    (Algorithm::Nvls, [0.0, 0.0, 0.0]),
];

/// Microseconds of a step, by what it goes over, algorithm and protocol.
const HOP_US: [[[f64; 3]; 3]; 3] = [
    [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4], [0.0, 0.0, 25.0]],
    [[1.0, 1.9, 4.0], [1.0, 2.5, 5.7], [0.0, 0.0, 0.0]],
    [[5.0, 8.5, 14.0], [2.7, 4.0, 14.0], [0.0, 0.0, 18.0]],
];

/// What the protocol LL moves at most, in GB/s, by generation: Volta, Ampere, Hopper, Blackwell.
const LL_GB_S: [f64; 4] = [39.0, 87.7, 141.0, 282.0];

/// Channels over NVLink, and over anything else.
const CHANNELS: (u32, u32) = (24, 4);

/// Bytes for which one more channel is used.
const CHANNEL_BYTES: u64 = 64 << 10;

/// What a hop goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From memory to memory; whether the receiver reads.
    Peer { nvlink: bool, read: bool },
    /// Through host memory.
    Shm,
    /// The network, from host to host.
    Net,
}

impl Way {
    /// Its place in [`HOP_US`].
    fn medium(self) -> usize {
        match self {
            Self::Peer { nvlink: true, .. } => 0,
            Self::Peer { nvlink: false, .. } | Self::Shm => 1,
            Self::Net => 2,
        }
    }
}

/// What a rank tells the others of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    pub gpu: u32,
    pub host: u64,
    pub place: u32,
    /// What it allows, in the bits of [`Rank::ways_of`].
    pub ways: u64,
}

impl Rank {
    /// What an environment allows, as one number for the others.
    pub(crate) fn ways_of(environment: &Environment) -> u64 {
        let bit = |is: bool, at: u32| u64::from(is) << at;
        environment.p2p_level
            | bit(environment.shm, 8)
            | bit(environment.net_intra, 9)
            | bit(environment.nvls, 10)
    }

    fn p2p_level(self) -> u64 {
        self.ways & 0xFF
    }

    fn has(self, at: u32) -> bool {
        self.ways >> at & 1 == 1
    }
}

/// A communicator as far as time is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub ranks: Vec<Rank>,
    /// Ranks in the order of the ring.
    pub ring: Vec<usize>,
    /// From each of them to the next.
    pub hops: Vec<Way>,
    /// The slowest of them.
    pub ring_gb_s: f64,
    pub nodes: usize,
    pub channels: u32,
    /// What the NVSwitch could do, if it reduces: GB/s of one GPU, and how much of it is reached.
    pub nvls: Option<(f64, f64)>,
    generation: usize,
    /// Way and rate of every ordered pair, by rank; of a rank and itself its own memory's.
    pairs: Vec<Vec<(Way, f64)>>,
    own_latency_ns: f64,
}

/// What a collective is done by, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub algorithm: Algorithm,
    pub protocol: Protocol,
    pub ns: f64,
    pub channels: u32,
}

impl Model {
    /// Of these ranks; refused if two cannot reach each other at all.
    pub(crate) fn new(
        machine: &Machine,
        environment: &Environment,
        ranks: Vec<Rank>,
    ) -> Result<Self, Refused> {
        let count = ranks.len();
        let mut pairs = Vec::new();
        for source in 0..count {
            let mut row = Vec::new();
            for target in 0..count {
                row.push(between(machine, environment, &ranks, source, target)?);
            }
            pairs.push(row);
        }
        let mut hosts: Vec<u64> = ranks.iter().map(|rank| rank.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let ring = ring(&ranks, &pairs);
        let next = |at: usize| ring[(at + 1) % count];
        let hops: Vec<Way> = (0..count).map(|at| pairs[ring[at]][next(at)].0).collect();
        // Its channels go through all GPUs of a host in turn, each by its own interfaces.
        let out_of = |host: u64| -> f64 {
            let own = ranks.iter().filter(|rank| rank.host == host);
            own.map(|rank| machine.net_gb_s(rank.gpu)).sum()
        };
        let rates = (0..count).map(|at| {
            let ends = [ring[at], next(at)];
            let [from, to] = ends.map(|rank| ranks[rank].host);
            let hosts = ends.map(|rank| machine.host_of(ranks[rank].gpu));
            let slowest = || out_of(from).min(out_of(to)) * machine.network_share(hosts, None);
            if from == to { pairs[ring[at]][next(at)].1 } else { slowest() }
        });
        let nvlink = hops.iter().all(|way| way.medium() == 0);
        let usual = if nvlink { CHANNELS.0 } else { CHANNELS.1 };
        let least = environment.channels_min.unwrap_or(1);
        let channels = usual.max(least).min(environment.channels_max.unwrap_or(64)).max(1);
        // Fewer channels move their share; more move no more than there is.
        let share = f64::from(channels.min(usual)) / f64::from(usual);
        let ring_gb_s = rates.fold(f64::INFINITY, f64::min) * share;
        let capability =
            ranks.iter().map(|rank| machine.gpus[rank.gpu as usize].compute_capability).min();
        let generation = match capability.unwrap_or_default() {
            (10.., _) => 3,
            (9, _) => 2,
            (8, _) => 1,
            _ => 0,
        };
        let switched = ranks.iter().all(|rank| machine.gpus[rank.gpu as usize].nvlinks.switch);
        let can = switched && nvlink && ranks.iter().all(|rank| machine.gives_multicast(rank.gpu));
        let nvls = (can && count > 1 && hosts.len() == 1 && ranks.iter().all(|rank| rank.has(10)))
            .then(|| (ring_gb_s, machine.nvls_efficiency(ranks[0].gpu)));
        let own_latency_ns = machine.gpus[ranks[0].gpu as usize].local.ce.latency_ns;
        let nodes = hosts.len();
        Ok(Self {
            ranks,
            ring,
            hops,
            ring_gb_s,
            nodes,
            channels,
            nvls,
            generation,
            pairs,
            own_latency_ns,
        })
    }

    /// Bytes that the library reckons with, of `bytes` that the call's count makes.
    pub(crate) fn total_bytes(&self, function: Function, bytes: u64) -> u64 {
        match function.shape().course {
            Course::RingOfParts => bytes * self.ranks.len() as u64,
            Course::RingTwice | Course::RingOfWhole | Course::Direct => bytes,
        }
    }

    /// How a collective of `bytes` (count times size) is done, in a group that has `together` for
    /// the same function.
    pub(crate) fn choose(
        &self,
        environment: &Environment,
        function: Function,
        bytes: u64,
        together: u64,
    ) -> Result<Choice, Refused> {
        let total = self.total_bytes(function, bytes);
        let all = self.total_bytes(function, together);
        let channels = total.div_ceil(CHANNEL_BYTES).clamp(1, u64::from(self.channels)) as u32;
        let simple =
            |ns| Choice { algorithm: Algorithm::Ring, protocol: Protocol::Simple, ns, channels };
        if self.ranks.len() == 1 {
            return Ok(simple(self.own_latency_ns + total as f64 / self.pairs[0][0].1));
        }
        if let Some(transfers) = self.transfers(function, bytes) {
            return Ok(simple(self.exchange_ns(&transfers)));
        }
        // The choice, and how long all of the group would last.
        let mut best: Option<(Choice, f64)> = None;
        for algorithm in [Algorithm::Tree, Algorithm::Ring, Algorithm::Nvls] {
            for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
                if !environment.allows(function, algorithm, protocol)? {
                    continue;
                }
                let Some(gb_s) = self.gb_s(function, algorithm, protocol) else { continue };
                let latency_ns = self.latency_ns(function, algorithm, protocol);
                let ns_of = |bytes: u64| latency_ns + bytes as f64 / gb_s;
                if best.is_none_or(|(_, ns)| ns_of(all) < ns) {
                    let choice = Choice { algorithm, protocol, ns: ns_of(total), channels };
                    best = Some((choice, ns_of(all)));
                }
            }
        }
        best.map(|(choice, _)| choice).ok_or_else(|| {
            let given = |name: &str, list: &Option<String>| {
                list.as_ref().map_or(String::new(), |list| format!(" {name} was set to {list}."))
            };
            let text = format!(
                "Error : no algorithm/protocol available for function {}.{}{}",
                function.shape().name,
                given("NCCL_ALGO", &environment.algorithms),
                given("NCCL_PROTO", &environment.protocols)
            );
            Refused::new(Code::INVALID_USAGE, text)
        })
    }

    /// Bytes of the whole over the time that they take: the library's algorithm bandwidth.
    fn gb_s(&self, function: Function, algorithm: Algorithm, protocol: Protocol) -> Option<f64> {
        let ranks = self.ranks.len() as f64;
        let ring = self.ring_gb_s;
        let course = function.shape().course;
        // Bus bandwidth over this is algorithm bandwidth.
        let factor = match course {
            Course::RingTwice => 2.0 * (ranks - 1.0) / ranks,
            Course::RingOfParts => (ranks - 1.0) / ranks,
            Course::RingOfWhole | Course::Direct => 1.0,
        };
        let ll = LL_GB_S[self.generation];
        let nvlink = self.hops.iter().all(|way| way.medium() == 0);
        if protocol == Protocol::Ll128 && !nvlink {
            return None;
        }
        match algorithm {
            Algorithm::Ring => {
                let bus = match protocol {
                    Protocol::Ll => ll.min(0.5 * ring),
                    Protocol::Ll128 => 0.92 * ring,
                    Protocol::Simple => ring,
                };
                Some(bus / factor)
            }
            Algorithm::Tree if course == Course::RingTwice => {
                let tree = 0.92 * ring;
                let bus = match protocol {
                    Protocol::Ll => ll.min(tree / 3.8),
                    Protocol::Ll128 => tree * 7.0 / 9.0,
                    Protocol::Simple => tree,
                };
                Some(bus / 2.0)
            }
            Algorithm::Nvls if protocol == Protocol::Simple => {
                let (gb_s, efficiency) = self.nvls?;
                let bus = match course {
                    Course::RingTwice => gb_s * 2.0 * (ranks - 1.0) / (ranks + 1.0),
                    Course::RingOfParts => gb_s,
                    Course::RingOfWhole | Course::Direct => return None,
                };
                Some(efficiency * bus / factor)
            }
            Algorithm::Tree | Algorithm::Nvls => None,
        }
    }

    fn latency_ns(&self, function: Function, algorithm: Algorithm, protocol: Protocol) -> f64 {
        let at = protocol as usize;
        let (_, base) = BASE_US[algorithm as usize];
        let hop = |way: Way| HOP_US[way.medium()][algorithm as usize][at];
        let ranks = self.ranks.len();
        let inside = self.hops.iter().copied().filter(|way| *way != Way::Net || self.nodes == 1);
        let intra = inside.map(hop).fold(0.0, f64::max);
        let inter = hop(Way::Net);
        let us = match algorithm {
            Algorithm::Ring => {
                let rounds = if function.shape().course == Course::RingTwice { 2 } else { 1 };
                let (steps, between) = (rounds * (ranks - 1), rounds * (self.nodes - 1));
                (steps - between) as f64 * intra + between as f64 * inter
            }
            Algorithm::Tree => {
                let inside = (ranks / self.nodes).saturating_sub(1) as f64;
                2.0 * (inside * intra + f64::from(self.nodes.ilog2()) * inter)
            }
            Algorithm::Nvls => intra,
        };
        (base[at] + us) * 1000.0
    }

    /// What goes from rank to rank in a collective that only moves: source, target, bytes.
    fn transfers(&self, function: Function, bytes: u64) -> Option<Vec<(usize, usize, u64)>> {
        let shape = function.shape();
        if shape.course != Course::Direct {
            return None;
        }
        let ranks = self.ranks.len();
        // The roots differ only by who they are: the slowest one counts.
        let root = |transfers: fn(usize, usize) -> (usize, usize)| {
            let of = |root: usize| (0..ranks).map(move |other| transfers(root, other));
            let slowest = (0..ranks).max_by(|&a, &b| {
                let ns = |root| {
                    let list: Vec<_> = of(root).map(|(s, t)| (s, t, bytes)).collect();
                    self.exchange_ns(&list)
                };
                ns(a).total_cmp(&ns(b))
            });
            of(slowest.unwrap_or(0)).map(|(s, t)| (s, t, bytes)).collect()
        };
        Some(if shape.receives.is_at_root() {
            root(|root, other| (other, root))
        } else if shape.sends.is_at_root() {
            root(|root, other| (root, other))
        } else {
            let targets = |source| (0..ranks).map(move |target| (source, target, bytes));
            (0..ranks).flat_map(targets).collect()
        })
    }

    /// How long transfers between ranks last that go at once: the one whose rank has the most to
    /// send or to receive ends last.
    pub(crate) fn exchange_ns(&self, transfers: &[(usize, usize, u64)]) -> f64 {
        let mut busy = vec![[0.0_f64; 2]; self.ranks.len()];
        let mut hop_us = 0.0_f64;
        for &(source, target, bytes) in transfers {
            let (way, gb_s) = self.pairs[source][target];
            let ns = bytes as f64 / gb_s;
            busy[source][0] += ns;
            busy[target][1] += ns;
            if source != target {
                let at = (Algorithm::Ring as usize, Protocol::Simple as usize);
                hop_us = hop_us.max(HOP_US[way.medium()][at.0][at.1]);
            }
        }
        let longest = busy.into_iter().flatten().fold(0.0, f64::max);
        let (_, base) = BASE_US[Algorithm::Ring as usize];
        (base[Protocol::Simple as usize] + hop_us) * 1000.0 + longest
    }

    /// Whether all ranks reach each other from memory to memory.
    pub(crate) fn is_all_peer(&self) -> bool {
        let ranks = self.ranks.len();
        let pairs = (0..ranks).flat_map(|source| (0..ranks).map(move |target| (source, target)));
        pairs
            .filter(|(source, target)| source != target)
            .all(|(source, target)| matches!(self.way(source, target), Way::Peer { .. }))
    }

    /// The way from rank to rank.
    pub(crate) fn way(&self, source: usize, target: usize) -> Way {
        self.pairs[source][target].0
    }

    /// The rank behind one in the ring.
    pub(crate) fn next(&self, rank: usize) -> usize {
        let at = self.ring.iter().position(|found| *found == rank).unwrap_or(0);
        self.ring[(at + 1) % self.ring.len()]
    }

    /// Bytes that a rank sends on in a collective.
    pub(crate) fn sent_bytes(&self, function: Function, bytes: u64, choice: Choice) -> u64 {
        let ranks = self.ranks.len() as u64;
        if ranks == 1 {
            return 0;
        }
        let shape = function.shape();
        match (shape.course, choice.algorithm) {
            (Course::RingTwice, Algorithm::Nvls) => bytes + bytes / ranks,
            (Course::RingTwice, _) => 2 * bytes * (ranks - 1) / ranks,
            (Course::RingOfParts, _) => bytes * (ranks - 1),
            (Course::Direct, _) if !shape.sends.is_at_root() && !shape.receives.is_at_root() => {
                bytes * (ranks - 1)
            }
            (Course::RingOfWhole | Course::Direct, _) => bytes,
        }
    }
}

/// How far two GPUs of a machine are from each other.
fn distance(machine: &Machine, source: u32, target: u32) -> u64 {
    let [from, to] = [source, target].map(|gpu| &machine.gpus[gpu as usize]);
    match pair(machine, source, target).link {
        Link::NvLink(_) => level::NVL,
        Link::Pcie if from.pcie_switch.is_some() && from.pcie_switch == to.pcie_switch => {
            level::PIX
        }
        Link::Pcie if from.numa_node == to.numa_node => level::PHB,
        Link::Pcie => level::SYS,
    }
}

/// The way between two ranks, and its rate in GB/s.
fn between(
    machine: &Machine,
    environment: &Environment,
    ranks: &[Rank],
    source: usize,
    target: usize,
) -> Result<(Way, f64), Refused> {
    let (from, to) = (ranks[source], ranks[target]);
    let [sender, receiver] = [from, to].map(|rank| &machine.gpus[rank.gpu as usize]);
    let least =
        |rates: &[Option<f64>]| rates.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    if (from.gpu, from.host) == (to.gpu, to.host) {
        return Ok((Way::Peer { nvlink: false, read: false }, sender.local.ce.gb_s));
    }
    let share = machine.network_share([from, to].map(|rank| machine.host_of(rank.gpu)), None);
    let net = (Way::Net, machine.net_gb_s(from.gpu).min(machine.net_gb_s(to.gpu)) * share);
    if from.host != to.host {
        return Ok(net);
    }
    let (there, back) = (pair(machine, from.gpu, to.gpu), pair(machine, to.gpu, from.gpu));
    let allowed = [there, back].iter().all(|pair| pair.read_allowed && pair.write_allowed);
    let limit = from.p2p_level().min(to.p2p_level());
    if allowed && distance(machine, from.gpu, to.gpu) <= limit {
        let nvlink = there.link != Link::Pcie;
        let both = [sender, receiver].iter().all(|gpu| gpu.compute_capability == (8, 0));
        let read = environment.p2p_read.unwrap_or(nvlink && both);
        let rate = if read { there.sm_read.gb_s } else { there.sm_write.gb_s };
        // Who plans knows nothing of a detour.
        let limits = if nvlink && !there.detour {
            [sender.egress_gb_s, receiver.ingress_gb_s]
        } else {
            [sender.pcie_up_gb_s, receiver.pcie_down_gb_s]
        };
        return Ok((Way::Peer { nvlink, read }, least(&[Some(rate), limits[0], limits[1]])));
    }
    if from.has(8) && to.has(8) {
        let rates = [
            Some(sender.to_host.sm.gb_s),
            Some(receiver.from_host.sm.gb_s),
            sender.pcie_up_gb_s,
            receiver.pcie_down_gb_s,
        ];
        return Ok((Way::Shm, least(&rates)));
    }
    if from.has(9) && to.has(9) {
        return Ok(net);
    }
    let text =
        format!("No transport found for rank {source}[{}] -> rank {target}[{}]", from.gpu, to.gpu);
    Err(Refused::new(Code::SYSTEM_ERROR, text))
}

/// Up to so many ranks of one host all orders are tried.
const TRIED: usize = 8;

/// The ring: hosts one after the other; within one, the first order whose slowest hop is fastest.
fn ring(ranks: &[Rank], pairs: &[Vec<(Way, f64)>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    let first = |host: u64| ranks.iter().position(|rank| rank.host == host);
    order.sort_by_key(|&rank| (first(ranks[rank].host), rank));
    let one_host = ranks.iter().all(|rank| rank.host == ranks[0].host);
    if !one_host || ranks.len() < 4 || ranks.len() > TRIED {
        return order;
    }
    let slowest = |order: &[usize]| {
        let hops = (0..order.len()).map(|at| (order[at], order[(at + 1) % order.len()]));
        hops.map(|(source, target)| pairs[source][target].1).fold(f64::INFINITY, f64::min)
    };
    let mut best = (slowest(&order), order.clone());
    permute(&mut order, 1, &mut |order| {
        let found = slowest(order);
        if found > best.0 {
            best = (found, order.to_vec());
        }
    });
    best.1
}

/// Every order of what lies from `at` on.
fn permute(order: &mut [usize], at: usize, seen: &mut impl FnMut(&[usize])) {
    if at + 1 >= order.len() {
        return seen(order);
    }
    for other in at..order.len() {
        order[at..=other].rotate_right(1);
        permute(order, at + 1, seen);
        order[at..=other].rotate_left(1);
    }
}
