//! Cases of NCCL: which collectives of which elements among which GPUs.

mod iterations;
mod memory;
mod split;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::{
    BadRequest, Case, Collective, DataType, Endpoint, Engine, Flow, Gpu, Operation, Pattern, Place,
    Rank, Reduction, Request, SIZE_OF_GPU, TransportKind, topology::Host,
};
pub use iterations::Iterations;
pub use memory::{Allocator, Registration};
pub use split::Split;

/// What a collective of NCCL works on. Its flows are the ways from each member, in the order of
/// their numbers, to the next one, around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Nccl {
    /// What the elements are.
    pub data_type: DataType,
    /// What becomes of those of all ranks; `None`: nothing, they are only moved.
    pub reduction: Option<Reduction>,
    /// The rank with another part than the others, by its number in the communicator.
    pub root: Option<u32>,
    /// The only ranks that send or receive, by their numbers; the second does nothing but receive
    /// where data goes one way. `None`: all have a part.
    pub pair: Option<(u32, u32)>,
    /// Whether what is received takes the place of what was given.
    pub is_in_place: bool,
    /// Where its memory comes from.
    pub buffer: Allocator,
    /// What NCCL is told of it.
    pub registration: Registration,
    /// How its operations follow each other.
    pub iterations: Iterations,
    /// How the members are divided into several communicators, which all do the same at the same
    /// time; `None`: they are in one.
    pub split: Option<Split>,
    /// Ranks of a communicator.
    pub ranks: u32,
    /// Ranks of all communicators together.
    pub members: u32,
    /// The most ranks that have one GPU: more than one only where NCCL is told to let them.
    pub sharers: u32,
    /// The number among all members of the first flow's source: 0 in a case as a whole.
    pub first: u32,
}

/// Of messages: whom a rank of a communicator sends to, and whom it receives from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// It sends to this rank.
    pub to: Option<u32>,
    /// It receives from this one.
    pub from: Option<u32>,
}

/// What the user asks of NCCL's collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// What the elements are, each once.
    pub data_types: Vec<DataType>,
    /// What becomes of the elements of all ranks, each once.
    pub reductions: Vec<Reduction>,
    /// The ranks with another part than the others, by their numbers in the communicator, each
    /// once; empty: every rank in turn.
    pub roots: Vec<u32>,
    /// Whether what is received takes the place of what was given, each once.
    pub in_place: Vec<bool>,
    /// Where memory comes from, each once; empty: from the driver, or from NCCL where it must.
    pub buffers: Vec<Allocator>,
    /// What NCCL is told of it, each once.
    pub registrations: Vec<Registration>,
    /// How operations follow each other.
    pub iterations: Iterations,
    /// How the ranks are divided.
    pub split: Option<Split>,
}

impl Default for CollectiveRequest {
    fn default() -> Self {
        Self {
            data_types: vec![DataType::Float],
            reductions: vec![Reduction::Sum],
            roots: vec![0],
            in_place: vec![false, true],
            buffers: Vec::new(),
            registrations: vec![Registration::None],
            iterations: Iterations::default(),
            split: None,
        }
    }
}

/// The cases of NCCL that answer `request` over `hosts`, in the order of the rows.
///
/// A communicator's ranks are counted host by host, on each host rank by rank, and of each rank GPU
/// by GPU, as nccl-tests counts them.
pub(super) fn cases(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, BadRequest> {
    let members = members(request, hosts)?;
    let Ok(count) = u32::try_from(members.len()) else { return Ok(Vec::new()) };
    if count == 0 {
        return Ok(Vec::new());
    }
    let wanted = &request.collectives;
    let ranks = wanted.ranks_of_one(count)?;
    if let Some(&root) = wanted.roots.iter().find(|&&root| root >= ranks) {
        return Err(BadRequest::Root(root, ranks));
    }
    if wanted.iterations.graph > 0 && wanted.iterations.is_blocking {
        return Err(BadRequest::BlockingGraph);
    }
    let is_pair = |pattern: &&Pattern| matches!(pattern, Pattern::OneWay | Pattern::BothWays);
    if let (Some(_), Some(&pattern)) = (wanted.split, request.patterns.iter().find(is_pair)) {
        return Err(BadRequest::PairOfPart(pattern));
    }
    let flows = ring(&members);
    let sharers = sharers(&members, hosts);
    let sizes = request.sizes.clone().unwrap_or_else(|| vec![SIZE_OF_GPU]);
    let all_roots: Vec<u32> = (0..ranks).collect();
    let roots = if wanted.roots.is_empty() { &all_roots } else { &wanted.roots };
    let memories = wanted.memories()?;
    let mut cases = Vec::new();
    let asked: Vec<Collective> =
        request.operations.iter().filter_map(|operation| operation.collective()).collect();
    let collectives = if request.operations.is_empty() { Collective::VARIANTS } else { &asked };
    for &collective in collectives {
        for (pattern, pair) in messages(request, collective, ranks) {
            for &(buffer, registration) in &memories {
                for nccl in wanted.elements(collective, roots) {
                    let members = count;
                    let nccl = Nccl { pair, buffer, registration, ranks, members, sharers, ..nccl };
                    cases.extend(sizes.iter().map(|&size| Case {
                        transport: TransportKind::Nccl,
                        pattern,
                        flows: flows.clone(),
                        operation: Operation::Collective(collective),
                        engine: Engine::Sm,
                        issuer: None,
                        handle: None,
                        size,
                        slot: None,
                        fabric: None,
                        nccl: Some(nccl),
                    }));
                }
            }
        }
    }
    Ok(cases)
}

impl CollectiveRequest {
    /// How many ranks each communicator has, of `members` in all.
    fn ranks_of_one(&self, members: u32) -> Result<u32, BadRequest> {
        let Some(split) = self.split else { return Ok(members) };
        let mut sizes: Vec<usize> = split.parts(members).iter().map(Vec::len).collect();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes[..] {
            [size] => Ok(u32::try_from(size).unwrap_or(members)),
            _ => Err(BadRequest::UnequalParts { split, members, sizes }),
        }
    }

    /// Where memory comes from, and what NCCL is told of it, in the order of the rows.
    fn memories(&self) -> Result<Vec<(Allocator, Registration)>, BadRequest> {
        let mut memories = Vec::new();
        for &registration in &self.registrations {
            let default = [Allocator::Cuda, Allocator::Nccl];
            let suits = |buffer: &&Allocator| registration.suits(**buffer);
            if self.buffers.is_empty() {
                memories.extend(default.iter().find(suits).map(|&buffer| (buffer, registration)));
            } else if !self.buffers.iter().any(|buffer| suits(&buffer)) {
                return Err(BadRequest::Window);
            } else {
                let suitable = self.buffers.iter().filter(suits);
                memories.extend(suitable.map(|&buffer| (buffer, registration)));
            }
        }
        Ok(memories)
    }

    /// What `collective` works on, in the order of the rows; with what is left to the caller as in
    /// the plainest case.
    fn elements(&self, collective: Collective, roots: &[u32]) -> Vec<Nccl> {
        let reductions: Vec<Option<Reduction>> = match collective.shape().reduces {
            true => self.reductions.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let roots: Vec<Option<u32>> = match collective.has_root() {
            true => roots.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let mut elements = Vec::new();
        for &data_type in &self.data_types {
            for &reduction in &reductions {
                for &root in &roots {
                    let places = self.in_place.iter().copied();
                    let places = places.filter(|&place| !place || collective.can_be_in_place());
                    elements.extend(places.map(|is_in_place| Nccl {
                        data_type,
                        reduction,
                        root,
                        pair: None,
                        is_in_place,
                        buffer: Allocator::Cuda,
                        registration: Registration::None,
                        iterations: self.iterations,
                        split: self.split,
                        ranks: 1,
                        members: 1,
                        sharers: 1,
                        first: 0,
                    }));
                }
            }
        }
        elements
    }
}

/// Who sends to whom at the same time, in each case of `collective`: all to the next one, or the
/// ranks of a pair.
fn messages(
    request: &Request,
    collective: Collective,
    ranks: u32,
) -> Vec<(Pattern, Option<(u32, u32)>)> {
    let around = (Pattern::Neighbours, None);
    if collective != Collective::SendRecv || request.patterns.is_empty() {
        return vec![around];
    }
    let all = || (0..ranks).flat_map(|source| (0..ranks).map(move |target| (source, target)));
    let of_pattern = |&pattern: &Pattern| match pattern {
        Pattern::Neighbours => vec![around],
        Pattern::OneWay => {
            let pairs = all().filter(|(source, target)| source != target);
            pairs.map(|pair| (pattern, Some(pair))).collect()
        }
        Pattern::BothWays => {
            let pairs = all().filter(|(source, target)| source < target);
            pairs.map(|pair| (pattern, Some(pair))).collect()
        }
        _ => Vec::new(),
    };
    request.patterns.iter().flat_map(of_pattern).collect()
}

/// The GPUs that take part, in the order of a communicator's ranks.
fn members(request: &Request, hosts: &[Host]) -> Result<Vec<Endpoint>, BadRequest> {
    let mut members = Vec::new();
    for host in hosts {
        let gpus: Vec<Gpu> =
            super::gpus(request, &host.topology)?.iter().map(|node| node.gpu).collect();
        for (place, &rank) in host.ranks.iter().enumerate() {
            let own = gpus.iter().skip(place).step_by(host.ranks.len());
            let own = own.map(|&gpu| Endpoint { rank, place: Place::Gpu(gpu) });
            let before = members.len();
            members.extend(own);
            // More ranks than GPUs: those without one take turns, where NCCL is told to let them.
            if members.len() == before && request.nccl.shares_gpus() && !gpus.is_empty() {
                let gpu = gpus[place % gpus.len()];
                members.push(Endpoint { rank, place: Place::Gpu(gpu) });
            }
        }
    }
    Ok(members)
}

/// The most ranks that have one GPU.
fn sharers(members: &[Endpoint], hosts: &[Host]) -> u32 {
    let ranks = |(host, of): (usize, &Host)| of.ranks.clone().into_iter().map(move |r| (r, host));
    let host_of: BTreeMap<Rank, usize> = hosts.iter().enumerate().flat_map(ranks).collect();
    let mut counts = BTreeMap::new();
    for member in members {
        *counts.entry((host_of.get(&member.rank), member.gpu())).or_insert(0) += 1;
    }
    counts.into_values().max().unwrap_or(1)
}

/// From each member to the next one, around.
fn ring(members: &[Endpoint]) -> Vec<Flow> {
    let next = members.iter().cycle().skip(1);
    members.iter().zip(next).map(|(&source, &target)| Flow { source, target }).collect()
}

impl Case {
    /// The part of `rank` in a collective: the ways that begin at its own GPUs, and which numbers
    /// they have in the communicator.
    pub(super) fn part_of_collective(&self, nccl: Nccl, rank: Rank) -> Self {
        let is_own = |flow: &&Flow| flow.source.rank == rank;
        let first = self.flows.iter().position(|flow| flow.source.rank == rank).unwrap_or(0);
        let nccl = Nccl { first: u32::try_from(first).unwrap_or(0), ..nccl };
        let flows = self.flows.iter().filter(is_own).copied().collect();
        Self { flows, nccl: Some(nccl), ..self.clone_without_flows() }
    }

    /// Of messages: whom the rank with this `number` in its communicator sends to, and whom it
    /// receives from.
    pub fn peers(&self, number: u32) -> Peers {
        let Some(Nccl { pair, ranks, .. }) = self.nccl else { return Peers::default() };
        let peers = |to, from| Peers { to, from };
        match (pair, self.pattern) {
            (None, _) => peers(Some((number + 1) % ranks), Some((number + ranks - 1) % ranks)),
            (Some((source, target)), Pattern::BothWays) if number == target => {
                peers(Some(source), Some(source))
            }
            (Some((source, target)), Pattern::BothWays) if number == source => {
                peers(Some(target), Some(target))
            }
            (Some((source, target)), _) => peers(
                Some(target).filter(|_| number == source),
                Some(source).filter(|_| number == target),
            ),
        }
    }

    /// The ways from each rank of the communicator to the next one, if it is one of NCCL.
    pub fn communicator(&self) -> Option<Vec<Flow>> {
        self.nccl.map(|_| self.flows.clone())
    }

    /// The ways of messages that go at the same time, in a case as a whole; `None`: it has none.
    pub fn messages(&self) -> Option<Vec<Flow>> {
        let (collective, nccl, _) = self.collective()?;
        if collective != Collective::SendRecv {
            return None;
        }
        let member = |number: u32| self.flows.get(number as usize).map(|flow| flow.source);
        let Some((source, target)) = nccl.pair else {
            let parts = nccl.parts();
            let members = |part: &Vec<u32>| part.iter().filter_map(|&n| member(n)).collect();
            let members = parts.iter().map(members);
            return Some(members.flat_map(|members: Vec<Endpoint>| ring(&members)).collect());
        };
        let flow = Flow { source: member(source)?, target: member(target)? };
        match self.pattern {
            Pattern::BothWays => Some(vec![flow, flow.reversed()]),
            _ => Some(vec![flow]),
        }
    }
}

impl Nccl {
    /// The numbers among all members of the ranks of each communicator.
    pub fn parts(&self) -> Vec<Vec<u32>> {
        match self.split {
            Some(split) => split.parts(self.members),
            None => vec![(0..self.members).collect()],
        }
    }

    /// The how manieth communicator the member with this `number` is in, and its number there.
    pub fn place_of(&self, number: u32) -> (u32, u32) {
        for (part, members) in (0..).zip(self.parts()) {
            if let Some((own, _)) = (0..).zip(members).find(|(_, member)| *member == number) {
                return (part, own);
            }
        }
        (0, number)
    }
}
