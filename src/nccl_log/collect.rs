//! Puts together what single messages say: which communicator a line belongs to, and what it adds.

use std::collections::{HashMap, HashSet};

use super::{
    line::{Message, Sender},
    message::{Fact, Init, Layout, Seat},
    model::{
        Choice, Communicator, End, Graph, Link, Log, Member, Origin, Place, Process, Transport,
        Variable, Warning, WarningKind,
    },
    warning,
};

/// Facts that are kept. A log of thousands of ranks has fewer, and another file cannot fill the
/// memory.
const FACTS_MAX: usize = 1 << 20;

/// Channels of one link that are kept; NCCL has 64 at most (`MAXCHANNELS`, src/include/device.h).
const CHANNELS_MAX: usize = 1 << 10;

/// Communicators to which a line may belong, and to which it is added.
const OWNERS_MAX: usize = 64;

/// Communicators of one process that are kept.
const OWN_MAX: usize = 1 << 12;

/// Distinct graphs of one communicator that are kept; NCCL searches for six.
const GRAPHS_MAX: usize = 64;

/// Distinct warnings, and distinct variables, that are kept.
const SENTENCES_MAX: usize = 1 << 12;

/// Letters of the identity of a communicator of which parts are named by it.
const ID_LETTERS_MAX: usize = 200;

/// Ranks of a ring that count as one fact.
const RANKS_PER_FACT: usize = 16;

/// Letters of a warning that are kept.
const WARNING_LETTERS_MAX: usize = 400;

/// A communicator of a process.
#[derive(Clone, Copy, Debug)]
struct Own {
    communicator: usize,
    pointer: u64,
    device: Option<u32>,
    rank: u32,
}

/// What is known of a process while reading.
#[derive(Debug, Default)]
struct Known {
    own: Vec<Own>,
    /// The communicator that a thread is making.
    making: HashMap<u64, Own>,
}

type LinkKey = (usize, u32, Option<u32>, Transport, Option<End>);

/// Collects facts into a [`Log`].
#[derive(Default)]
pub(super) struct Collector {
    pub(super) log: Log,
    processes: HashMap<Process, Known>,
    by_id: HashMap<String, usize>,
    links: HashMap<LinkKey, usize>,
    choices: HashMap<(usize, Option<String>, u64, String, String), usize>,
    warnings: HashMap<(WarningKind, String), usize>,
    variables: HashSet<(String, String, Origin)>,
    facts: usize,
}

impl Collector {
    /// Whether there is room for one more fact.
    fn room(&mut self) -> bool {
        self.room_for(1)
    }

    fn room_for(&mut self, facts: usize) -> bool {
        let has_room = facts <= FACTS_MAX - self.facts;
        if has_room {
            self.facts += facts;
        } else {
            self.log.left_out += 1;
        }
        has_room
    }

    /// Adds a message, which can be a warning even if its form is unknown.
    pub(super) fn add(&mut self, message: &Message, fact: Option<Fact>, at: Place) {
        self.log.messages += u64::from(message.level.is_some());
        if let Some(kind) = warning::kind(message.level, message.text) {
            self.warn(kind, message, at);
        }
        if let Some(fact) = fact {
            self.add_fact(message.sender.as_ref(), fact, at);
        }
    }

    fn add_fact(&mut self, sender: Option<&Sender>, fact: Fact<'_>, at: Place) {
        match fact {
            Fact::Init(init) => self.init(sender, init, at),
            Fact::Layout(layout) => self.layout(sender, &layout, at),
            Fact::Channel(link) => self.channel(sender, &link),
            Fact::Ring { channel, ranks } => self.ring(sender, channel, &ranks),
            Fact::Choice(choice) => {
                for (index, _) in self.owners(sender, &[]) {
                    self.choice(index, choice.clone());
                }
            }
            Fact::Graph(graph) => {
                for (index, _) in self.owners(sender, &[]) {
                    self.graph(index, graph.clone());
                }
            }
            Fact::Nvls { pointer } => {
                for (index, _) in self.at_pointer(sender, pointer) {
                    self.log.communicators[index].nvls.get_or_insert(at);
                }
            }
            Fact::Variable(variable) => self.variable(variable),
            Fact::Communicator(captures, add) => {
                for (index, _) in self.owners(sender, &[]) {
                    add(&mut self.log.communicators[index], &captures, at);
                }
            }
            Fact::Log(captures, add) => add(&mut self.log, &captures, at),
            Fact::Plugin(told, slot) => {
                slot(self.log.plugin.get_or_insert_default()).get_or_insert(told);
            }
        }
    }

    pub(super) fn variable(&mut self, variable: Variable) {
        let key = (variable.name.clone(), variable.value.clone(), variable.origin);
        let has_room = self.log.variables.len() < SENTENCES_MAX;
        if !self.variables.contains(&key) && has_room && self.room() {
            self.variables.insert(key);
            self.log.variables.push(variable);
        }
    }

    fn warn(&mut self, kind: WarningKind, message: &Message, at: Place) {
        let text: String = message.text.trim().chars().take(WARNING_LETTERS_MAX).collect();
        let key = (kind, warning::without_numbers(&text));
        if let Some(&index) = self.warnings.get(&key) {
            self.log.warnings[index].lines += 1;
        } else if self.warnings.len() < SENTENCES_MAX && self.room() {
            self.warnings.insert(key, self.log.warnings.len());
            let process = message.sender.as_ref().map(|sender| sender.process.clone());
            self.log.warnings.push(Warning { kind, text, process, at, lines: 1 });
        }
    }

    fn init(&mut self, sender: Option<&Sender>, init: Init, at: Place) {
        let Some(sender) = sender else { return };
        if !self.room() {
            return;
        }
        let id = init.id.clone().or_else(|| {
            let (parent, part) = init.parent.as_ref()?;
            let whole = self.own(&sender.process, *parent, None);
            let whole = whole.and_then(|own| self.log.communicators[own.communicator].id.clone());
            let whole = whole.filter(|id| id.len() <= ID_LETTERS_MAX);
            Some(format!("{} {part}", whole.unwrap_or_else(|| "?".to_owned())))
        });
        let Init { seat, cuda_device, nvml_device, bus_id, is_complete, .. } = init;
        let Some(index) = self.communicator(id, seat, &sender.process, at) else { return };
        let own = Own {
            communicator: index,
            pointer: seat.pointer,
            device: Some(cuda_device),
            rank: seat.rank,
        };
        let member = self.join(&sender.process, own, at);
        member.cuda_device = Some(cuda_device);
        member.nvml_device = nvml_device;
        member.bus_id = Some(bus_id);
        member.is_complete |= is_complete;
        let making = &mut self.processes.entry(sender.process.clone()).or_default().making;
        if is_complete {
            making.remove(&sender.thread);
        } else {
            making.insert(sender.thread, own);
        }
    }

    /// A process has a rank of a communicator.
    fn join(&mut self, process: &Process, own: Own, at: Place) -> &mut Member {
        let known = self.processes.entry(process.clone()).or_default();
        let place = |own: &Own| (own.pointer, own.communicator, own.rank);
        let is_known = known.own.iter().any(|old| place(old) == place(&own));
        if !is_known && known.own.len() < OWN_MAX {
            known.own.push(own);
        }
        let member = self.log.communicators[own.communicator].members.entry(own.rank);
        member.or_insert_with(|| Member { process: process.clone(), at, ..Member::default() })
    }

    fn layout(&mut self, sender: Option<&Sender>, layout: &Layout, at: Place) {
        let Some(Sender { process, device, .. }) = sender else { return };
        let Seat { pointer, rank, .. } = layout.seat;
        // One whose beginning is not in the log is new.
        let index = match self.own(process, pointer, Some(rank)) {
            Some(own) => own.communicator,
            None => {
                let index = self.communicator(None, layout.seat, process, at);
                let Some(communicator) = index else { return };
                self.join(process, Own { communicator, pointer, device: *device, rank }, at);
                communicator
            }
        };
        let communicator = &mut self.log.communicators[index];
        communicator.nodes.get_or_insert(layout.nodes);
        communicator.mnnvl.get_or_insert(layout.mnnvl);
        communicator.layout_at.get_or_insert(at);
        if let Some(member) = communicator.members.get_mut(&rank) {
            member.local_ranks = Some(layout.local_ranks);
            member.local_rank = Some(layout.local_rank);
        }
    }

    /// The communicator of this identity that this rank of the process can be in: the known one,
    /// or a new one where another process has the rank already.
    fn communicator(
        &mut self,
        id: Option<String>,
        seat: Seat,
        process: &Process,
        at: Place,
    ) -> Option<usize> {
        let key = id.clone().unwrap_or_else(|| format!("unnamed {}", seat.ranks));
        let ranks = Some(seat.ranks);
        if let Some(&index) = self.by_id.get(&key) {
            let known = &self.log.communicators[index];
            let member = known.members.get(&seat.rank);
            let is_free = member.is_none_or(|member| member.process == *process);
            if is_free && known.ranks == ranks {
                return Some(index);
            }
        }
        self.room().then(|| {
            let index = self.log.communicators.len();
            self.by_id.insert(key, index);
            self.log.communicators.push(Communicator { id, ranks, at, ..Communicator::default() });
            index
        })
    }

    /// The latest communicator of a process at this address: addresses come again.
    fn own(&self, process: &Process, pointer: u64, rank: Option<u32>) -> Option<Own> {
        let known = self.processes.get(process)?;
        let mut latest_first = known.own.iter().rev();
        let found = latest_first
            .find(|own| own.pointer == pointer && rank.is_none_or(|rank| own.rank == rank));
        found.copied()
    }

    fn at_pointer(&mut self, sender: Option<&Sender>, pointer: Option<u64>) -> Vec<(usize, bool)> {
        let own = sender
            .zip(pointer)
            .and_then(|(sender, pointer)| self.own(&sender.process, pointer, None));
        match own {
            Some(own) => vec![(own.communicator, true)],
            None => self.owners(sender, &[]),
        }
    }

    /// The communicators that a line of `sender` about these ranks can belong to, and whether that
    /// is the only one. A thread that makes a communicator writes of this one; otherwise it can be
    /// any of the process that has those ranks.
    fn owners(&mut self, sender: Option<&Sender>, ranks: &[u32]) -> Vec<(usize, bool)> {
        let fits = |log: &Log, own: &Own| {
            let count = log.communicators[own.communicator].ranks.unwrap_or(u32::MAX);
            ranks.iter().all(|&rank| rank < count)
                && (ranks.is_empty() || ranks.contains(&own.rank))
        };
        let Some(known) = sender.and_then(|sender| self.processes.get(&sender.process)) else {
            return self.unnamed(ranks);
        };
        let making = sender.and_then(|sender| known.making.get(&sender.thread));
        if let Some(own) = making.filter(|own| fits(&self.log, own)) {
            return vec![(own.communicator, true)];
        }
        let device = sender.and_then(|sender| sender.device);
        let on_device =
            |own: &&Own| device.is_none() || own.device.is_none() || own.device == device;
        let mut found: Vec<usize> = Vec::new();
        for own in known.own.iter().rev().filter(on_device) {
            if found.len() < OWNERS_MAX
                && fits(&self.log, own)
                && !found.contains(&own.communicator)
            {
                found.push(own.communicator);
            }
        }
        if found.is_empty() {
            return self.unnamed(ranks);
        }
        let is_certain = found.len() == 1;
        found.into_iter().map(|index| (index, is_certain)).collect()
    }

    /// The communicator for lines between ranks whose own is not in the log.
    fn unnamed(&mut self, ranks: &[u32]) -> Vec<(usize, bool)> {
        if ranks.is_empty() {
            // A log of one communicator leaves no doubt.
            let is_only = self.log.communicators.len() == 1;
            return if is_only { vec![(0, true)] } else { Vec::new() };
        }
        let key = "unnamed".to_owned();
        if !self.by_id.contains_key(&key) {
            if !self.room() {
                return Vec::new();
            }
            self.by_id.insert(key.clone(), self.log.communicators.len());
            self.log.communicators.push(Communicator::default());
        }
        vec![(self.by_id[&key], false)]
    }

    fn channel(&mut self, sender: Option<&Sender>, link: &Link) {
        let ranks: Vec<u32> = [link.source].into_iter().chain(link.target).collect();
        for (index, is_certain) in self.owners(sender, &ranks) {
            let key = (index, link.source, link.target, link.transport.clone(), link.end);
            if let Some(&place) = self.links.get(&key) {
                let known = &mut self.log.communicators[index].links[place];
                known.lines += 1;
                known.last = link.last;
                known.is_certain &= is_certain;
                for channel in &link.channels {
                    if let Err(place) = known.channels.binary_search(channel)
                        && known.channels.len() < CHANNELS_MAX
                    {
                        known.channels.insert(place, *channel);
                    }
                }
            } else if self.room() {
                let communicator = &mut self.log.communicators[index];
                if communicator.links.is_empty() && communicator.at == Place::default() {
                    communicator.at = link.first;
                }
                self.links.insert(key, communicator.links.len());
                communicator.links.push(Link { is_certain, ..link.clone() });
            }
        }
    }

    fn ring(&mut self, sender: Option<&Sender>, channel: u32, ranks: &[u32]) {
        for (index, _) in self.owners(sender, ranks) {
            let rings = &self.log.communicators[index].rings;
            let facts = 1 + ranks.len() / RANKS_PER_FACT;
            if !rings.contains_key(&channel) && self.room_for(facts) {
                self.log.communicators[index].rings.insert(channel, ranks.to_vec());
            }
        }
    }

    fn graph(&mut self, index: usize, graph: Graph) {
        let graphs = &self.log.communicators[index].graphs;
        let is_new = !graphs.iter().any(|old| Graph { at: graph.at, ..old.clone() } == graph);
        if is_new && graphs.len() < GRAPHS_MAX && self.room() {
            self.log.communicators[index].graphs.push(graph);
        }
    }

    fn choice(&mut self, index: usize, choice: Choice) {
        let Choice { function, size_bytes, algorithm, protocol, .. } = choice.clone();
        let key = (index, function, size_bytes, algorithm, protocol);
        if let Some(&place) = self.choices.get(&key) {
            self.log.communicators[index].choices[place].lines += 1;
        } else if self.room() {
            let choices = &mut self.log.communicators[index].choices;
            self.choices.insert(key, choices.len());
            choices.push(choice);
        }
    }
}
