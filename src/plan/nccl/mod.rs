//! Cases of NCCL: which collectives of which elements among which GPUs.

mod iterations;
mod memory;
mod split;

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::{
    Case, Collective, DataType, Endpoint, Engine, Flow, Operation, Pattern, Place, Reduction,
    Request, SIZE_OF_GPU, TransportKind, collective::Ranks, flows, topology::Host,
};
pub use iterations::Iterations;
pub use memory::{Allocator, Registration};
pub use split::Split;

use crate::units::Bytes;

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

/// The peers of a rank that sends and receives messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// It sends to this rank.
    pub to: Option<u32>,
    /// It receives from this one.
    pub from: Option<u32>,
}

/// What the user asks of NCCL's collectives: flags, with their help.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "NCCL")]
pub struct CollectiveRequest {
    /// Data types, or all (float)
    ///
    /// Data types; comma-separated, or all
    #[arg(short = 'd', long = "data-type", alias = "datatype", value_name = "TYPE",
          default_value = "float", value_parser = list_or_all::<DataType>)]
    pub data_types: std::vec::Vec<DataType>,

    /// Reduction operations, or all (sum)
    ///
    /// Reduction operations; comma-separated, or all
    #[arg(short = 'o', long = "reduction", alias = "op", value_name = "OP",
          default_value = "sum", value_parser = list_or_all::<Reduction>)]
    pub reductions: std::vec::Vec<Reduction>,

    // An empty list stands for all in turn.
    /// Root rank, or all in turn (0)
    ///
    /// Root rank, by its number in the communicator, or all in turn
    #[arg(short = 'r', long = "root", value_name = "RANK|all", default_value = "0",
          value_parser = roots)]
    pub roots: std::vec::Vec<u32>,

    /// out-of-place,in-place (out-of-place)
    ///
    /// Whether the receive buffer is the send buffer; comma-separated [default: out-of-place; both
    /// with --effort thorough or --format nccl-tests]
    #[arg(long = "place", value_name = "PLACE", value_delimiter = ',', value_parser = place())]
    pub in_place: Vec<bool>,

    /// Who allocates memory: cuda,nccl (cuda)
    ///
    /// Who allocates memory: the driver, or NCCL (ncclMemAlloc, as nccl-tests does);
    /// comma-separated [default: cuda, and nccl where --registration requires it]
    #[arg(long = "buffer", value_name = "ALLOCATOR", value_delimiter = ',')]
    pub buffers: Vec<Allocator>,

    /// How memory is registered (none)
    ///
    /// How memory is registered with NCCL; comma-separated
    #[arg(short = 'R', long = "registration", alias = "local_register",
          value_name = "HOW", value_delimiter = ',',
          default_values_t = [Registration::None])]
    pub registrations: Vec<Registration>,

    /// How operations follow each other.
    #[command(flatten)]
    pub iterations: Iterations,

    /// Several communicators at once, such as MOD:2
    ///
    /// Split the ranks into communicators that all do the same at once. Ranks with the same color
    /// are together: the rank's number AND, OR, MOD or DIV this one, as nccl-tests'
    /// NCCL_TESTS_SPLIT [default: one communicator of all]
    #[arg(long, value_name = "OP:N")]
    pub split: Option<Split>,
}

/// Values with commas between them, each once, among them `all`.
fn list_or_all<T: ValueEnum + PartialEq>(text: &str) -> Result<Vec<T>, String> {
    let all = T::value_variants();
    let mut list = Vec::new();
    for word in text.split(',') {
        let values = match (word, T::from_str(word, false)) {
            ("all", _) => all.to_vec(),
            (_, Ok(value)) => vec![value],
            (_, Err(_)) => {
                let names = all.iter().filter_map(ValueEnum::to_possible_value);
                let names: Vec<String> = names.map(|of| of.get_name().to_owned()).collect();
                return Err(format!("there are {} and all", names.join(", ")));
            }
        };
        for value in values {
            if !list.contains(&value) {
                list.push(value);
            }
        }
    }
    Ok(list)
}

fn place() -> impl TypedValueParser<Value = bool> {
    let apart = PossibleValue::new("out-of-place").help("In a separate buffer");
    let in_place = PossibleValue::new("in-place").help("In the send buffer");
    PossibleValuesParser::new([apart, in_place]).map(|place| place == "in-place")
}

fn roots(text: &str) -> Result<Vec<u32>, String> {
    // nccl-tests has -1 for all of them.
    if ["all", "-1"].contains(&text) {
        return Ok(Vec::new());
    }
    let root = text.parse().map(|root| vec![root]);
    root.map_err(|_| "write the number of a rank, from 0 on, or all".to_owned())
}

impl Default for CollectiveRequest {
    fn default() -> Self {
        Self {
            data_types: vec![DataType::Float],
            reductions: vec![Reduction::Sum],
            roots: vec![0],
            in_place: vec![false],
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
pub(super) fn cases(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, String> {
    let (members, sharers) = members(request, hosts)?;
    let Ok(count) = u32::try_from(members.len()) else { return Ok(Vec::new()) };
    if count == 0 {
        return Ok(Vec::new());
    }
    let wanted = &request.collectives;
    let ranks = wanted.ranks_of_one(count)?;
    wanted.check(ranks, &request.patterns)?;
    let flows = flows::between(Pattern::Neighbours, &members).concat();
    let sizes = request.sizes.as_deref().unwrap_or(&[SIZE_OF_GPU]);
    let memories = wanted.memories()?;
    let plain = Nccl {
        data_type: DataType::Float,
        reduction: None,
        root: None,
        pair: None,
        is_in_place: false,
        buffer: Allocator::Cuda,
        registration: Registration::None,
        iterations: wanted.iterations,
        split: wanted.split,
        ranks,
        members: count,
        sharers: u32::try_from(sharers).unwrap_or(u32::MAX),
        first: 0,
    };
    let mut cases = Vec::new();
    let asked: Vec<Collective> =
        request.operations.iter().filter_map(|operation| operation.collective()).collect();
    let collectives = if request.operations.is_empty() { Collective::VARIANTS } else { &asked };
    for &collective in collectives {
        for (pattern, pair) in messages(request, collective, ranks) {
            for &(buffer, registration) in &memories {
                let plain = Nccl { pair, buffer, registration, ..plain };
                for nccl in wanted.elements(collective, plain) {
                    let case = |&size: &Bytes| Case {
                        operation: Operation::Collective(collective),
                        nccl: Some(nccl),
                        ..Case::copy(TransportKind::Nccl, pattern, flows.clone(), Engine::Sm, size)
                    };
                    cases.extend(sizes.iter().map(case));
                }
            }
        }
    }
    Ok(cases)
}

impl CollectiveRequest {
    /// Refuses what makes no sense together, in communicators of `ranks`.
    fn check(&self, ranks: u32, patterns: &[Pattern]) -> Result<(), String> {
        if let Some(root) = self.roots.iter().find(|&&root| root >= ranks) {
            return Err(format!(
                "--root {root}: there are {ranks} GPUs, whose ranks are counted from 0"
            ));
        }
        if self.iterations.graph > 0 && self.iterations.is_blocking {
            let reason = "--blocking 1 waits for each operation, and --graph has them launched \
                          together: leave out one";
            return Err(reason.to_owned());
        }
        let is_pair = |pattern: &&Pattern| matches!(pattern, Pattern::OneWay | Pattern::BothWays);
        match patterns.iter().find(is_pair).filter(|_| self.split.is_some()) {
            Some(pattern) => Err(format!(
                "--pattern {pattern}: pairs are of the communicator of all ranks: leave out --split"
            )),
            None => Ok(()),
        }
    }

    /// How many ranks each communicator has, of `members` in all.
    fn ranks_of_one(&self, members: u32) -> Result<u32, String> {
        let Some(split) = self.split else { return Ok(members) };
        let mut sizes: Vec<usize> = split.parts(members).iter().map(Vec::len).collect();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes[..] {
            [size] => Ok(u32::try_from(size).unwrap_or(members)),
            _ => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                Err(format!(
                    "--split {split}: {members} GPUs would be in communicators of {} ranks: take \
                     one that makes equal ones",
                    sizes.join(" and ")
                ))
            }
        }
    }

    /// Where memory comes from, and what NCCL is told of it, in the order of the rows.
    fn memories(&self) -> Result<Vec<(Allocator, Registration)>, String> {
        let mut memories = Vec::new();
        for &registration in &self.registrations {
            let default = [Allocator::Cuda, Allocator::Nccl];
            let buffers = if self.buffers.is_empty() { &default } else { &self.buffers[..] };
            let suitable = buffers.iter().filter(|&&buffer| registration.suits(buffer));
            let most = if self.buffers.is_empty() { 1 } else { buffers.len() };
            let before = memories.len();
            memories.extend(suitable.take(most).map(|&buffer| (buffer, registration)));
            if memories.len() == before {
                let reason = "--registration symmetric takes memory of NCCL's own: give --buffer \
                              nccl, or leave --buffer out";
                return Err(reason.to_owned());
            }
        }
        Ok(memories)
    }

    /// What `collective` works on, in the order of the rows; all else is that of `plain`.
    fn elements(&self, collective: Collective, plain: Nccl) -> Vec<Nccl> {
        let reductions: Vec<Option<Reduction>> = match collective.shape().reduces {
            true => self.reductions.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let roots: Vec<Option<u32>> = match collective.has_root() {
            true if self.roots.is_empty() => (0..plain.ranks).map(Some).collect(),
            true => self.roots.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let mut elements = Vec::new();
        for &data_type in &self.data_types {
            for &reduction in &reductions {
                for &root in &roots {
                    let places = self.in_place.iter().copied();
                    let places = places.filter(|&place| !place || collective.can_be_in_place());
                    let with_place =
                        |is_in_place| Nccl { data_type, reduction, root, is_in_place, ..plain };
                    elements.extend(places.map(with_place));
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
    if collective.shape().gives != Ranks::Peers || request.patterns.is_empty() {
        return vec![around];
    }
    let all = || (0..ranks).flat_map(|source| (0..ranks).map(move |target| (source, target)));
    let of_pattern = |&pattern: &Pattern| {
        let is_pair = move |&(source, target): &(u32, u32)| match pattern {
            Pattern::OneWay => source != target,
            Pattern::BothWays => source < target,
            _ => false,
        };
        let around = Some(around).filter(|_| pattern == Pattern::Neighbours);
        around.into_iter().chain(all().filter(is_pair).map(move |pair| (pattern, Some(pair))))
    };
    request.patterns.iter().flat_map(of_pattern).collect()
}

/// The GPUs that take part, in the order of a communicator's ranks, and the most ranks that have
/// one GPU.
fn members(request: &Request, hosts: &[Host]) -> Result<(Vec<Endpoint>, usize), String> {
    let (mut members, mut sharers) = (Vec::new(), 1);
    for host in hosts {
        let gpus = super::gpus(request, &host.topology)?;
        for (place, &rank) in host.ranks.iter().enumerate() {
            let own = gpus.iter().skip(place).step_by(host.ranks.len());
            members.extend(own.map(|node| Endpoint { rank, place: Place::Gpu(node.gpu) }));
            // More ranks than GPUs: those without one take turns, where NCCL is told to let them.
            if place >= gpus.len() && request.nccl.shares_gpus() && !gpus.is_empty() {
                let gpu = gpus[place % gpus.len()].gpu;
                members.push(Endpoint { rank, place: Place::Gpu(gpu) });
                sharers = sharers.max(1 + place / gpus.len());
            }
        }
    }
    Ok((members, sharers))
}

impl Case {
    /// The peers of the rank with this `number` in its communicator.
    pub fn peers(&self, number: u32) -> Peers {
        let Some(Nccl { pair, ranks, .. }) = self.nccl else { return Peers::default() };
        let Some((source, target)) = pair else {
            let (next, last) = ((number + 1) % ranks, (number + ranks - 1) % ranks);
            return Peers { to: Some(next), from: Some(last) };
        };
        let is_both_ways = self.pattern == Pattern::BothWays;
        let other = match number {
            _ if number == source => Some(target),
            _ if number == target => Some(source),
            _ => None,
        };
        Peers {
            to: other.filter(|_| is_both_ways || number == source),
            from: other.filter(|_| is_both_ways || number == target),
        }
    }

    /// The flows of messages that run at the same time, in a whole case; `None`: it has no
    /// messages.
    pub fn messages(&self) -> Option<Vec<Flow>> {
        let (collective, nccl, _) = self.collective()?;
        if collective.shape().gives != Ranks::Peers {
            return None;
        }
        let member = |number: u32| self.flows.get(number as usize).map(|flow| flow.source);
        let Some((source, target)) = nccl.pair else {
            let parts = nccl.parts();
            let ring = |part: &Vec<u32>| {
                let members: Vec<Endpoint> = part.iter().filter_map(|&n| member(n)).collect();
                flows::between(Pattern::Neighbours, &members).concat()
            };
            return Some(parts.iter().flat_map(ring).collect());
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

    /// The number of the communicator of the member with this `number`, and its number there.
    pub fn place_of(&self, number: u32) -> (u32, u32) {
        let mut parts = (0..).zip(self.parts());
        let found = parts.find_map(|(part, members)| {
            let own = members.iter().position(|&member| member == number)?;
            Some((part, u32::try_from(own).unwrap_or(number)))
        });
        found.unwrap_or((0, number))
    }
}
