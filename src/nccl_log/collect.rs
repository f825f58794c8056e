//! Puts together what single messages say: which communicator a line belongs to, and what it adds.

use std::collections::HashMap;

use super::{
    line::{Message, Sender},
    message::{Channel, Fact, Init, PluginFact},
    model::{
        Choice, Communicator, Graph, Link, Log, Member, NvlsSupport, Origin, Place, Plugin,
        Process, RingsUse, Told, Transport, Variable, Warning, WarningKind,
    },
    warning,
};

/// Facts that are kept: a log of thousands of ranks has fewer, and what is no log cannot fill the
/// memory.
const FACTS_MAX: u64 = 1 << 20;

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
    pointer: Option<u64>,
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

type LinkKey = (usize, u32, Option<u32>, Transport, Option<super::model::End>);

/// Collects facts into a [`Log`].
#[derive(Default)]
pub(super) struct Collector {
    log: Log,
    processes: HashMap<Process, Known>,
    by_id: HashMap<String, usize>,
    links: HashMap<LinkKey, usize>,
    choices: HashMap<(usize, Option<String>, u64, String, String), usize>,
    warnings: HashMap<(WarningKind, String), usize>,
    variables: HashMap<(String, String, Origin), ()>,
    facts: u64,
}

impl Collector {
    pub(super) fn begin_file(&mut self, name: &str) -> u32 {
        self.log.files.push(name.to_owned());
        u32::try_from(self.log.files.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn count_line(&mut self, is_cut: bool) {
        self.log.lines += 1;
        self.log.cut_lines += u64::from(is_cut);
    }

    pub(super) fn finish(self) -> Log {
        self.log
    }

    /// Whether there is room for one more fact.
    fn room(&mut self) -> bool {
        self.room_for(1)
    }

    fn room_for(&mut self, facts: usize) -> bool {
        let facts = u64::try_from(facts).unwrap_or(FACTS_MAX);
        let has_room = self.facts.saturating_add(facts) <= FACTS_MAX;
        if has_room {
            self.facts += facts;
        } else {
            self.log.left_out += 1;
        }
        has_room
    }

    /// A message that says nothing, or nothing that is understood, can still be a warning.
    pub(super) fn add(&mut self, message: &Message, fact: Option<Fact>, at: Place) {
        self.log.messages += u64::from(message.level.is_some());
        if let Some(kind) = warning::kind(message.level, message.text) {
            self.warn(kind, message, at);
        }
        if let Some(fact) = fact {
            self.add_fact(message.sender.as_ref(), fact, at);
        }
    }

    fn add_fact(&mut self, sender: Option<&Sender>, fact: Fact, at: Place) {
        match fact {
            Fact::Init(init) => self.init(sender, init, at),
            Fact::Layout { pointer, rank, ranks, nodes, local_ranks, local_rank, mnnvl } => {
                let Some(sender) = sender else { return };
                let Some(index) = self.laid_out(sender, pointer, (rank, ranks), at) else { return };
                let communicator = &mut self.log.communicators[index];
                communicator.nodes.get_or_insert(nodes);
                communicator.mnnvl.get_or_insert(mnnvl);
                communicator.layout_at.get_or_insert(at);
                if let Some(member) = communicator.members.get_mut(&rank) {
                    member.local_ranks = Some(local_ranks);
                    member.local_rank = Some(local_rank);
                }
            }
            Fact::Channel(channel) => self.channel(sender, &channel, at),
            Fact::Choice { function, size_bytes, algorithm, protocol, channels } => {
                let lines = 1;
                let choice =
                    Choice { function, size_bytes, algorithm, protocol, channels, at, lines };
                for (index, _) in self.owners(sender, &[]) {
                    self.choice(index, choice.clone());
                }
            }
            Fact::Graph { pattern, channels, gb_s_model, paths } => {
                let graph = Graph { pattern, channels, gb_s_model, paths, at };
                for (index, _) in self.owners(sender, &[]) {
                    let graphs = &self.log.communicators[index].graphs;
                    let is_new = !graphs.iter().any(|old| Graph { at, ..old.clone() } == graph);
                    if is_new && graphs.len() < GRAPHS_MAX && self.room() {
                        self.log.communicators[index].graphs.push(graph.clone());
                    }
                }
            }
            Fact::Nvls { pointer } => {
                for (index, _) in self.at_pointer(sender, pointer) {
                    self.log.communicators[index].nvls.get_or_insert(at);
                }
            }
            Fact::Ring { channel, ranks } => {
                for (index, _) in self.owners(sender, &ranks) {
                    let rings = &self.log.communicators[index].rings;
                    let facts = 1 + ranks.len() / RANKS_PER_FACT;
                    if !rings.contains_key(&channel) && self.room_for(facts) {
                        self.log.communicators[index].rings.insert(channel, ranks.clone());
                    }
                }
            }
            Fact::Trees
            | Fact::Counts(_)
            | Fact::AllDirect(_)
            | Fact::RingsUse { .. }
            | Fact::System { .. }
            | Fact::Clique { .. } => {
                for (index, _) in self.owners(sender, &[]) {
                    shape(&mut self.log.communicators[index], &fact, at);
                }
            }
            other => self.whole_log(other, at),
        }
    }

    /// What belongs to no communicator.
    fn whole_log(&mut self, fact: Fact, at: Place) {
        let log = &mut self.log;
        match fact {
            Fact::NvlsSupport { is_available } => {
                let first = NvlsSupport { available: 0, missing: 0, at };
                let support = log.nvls_support.get_or_insert(first);
                support.available += u64::from(is_available);
                support.missing += u64::from(!is_available);
            }
            Fact::FabricState(state) if log.fabric_states.len() < TOLD_MAX => {
                log.fabric_states.entry(state).or_insert(at);
            }
            Fact::Version(version) => told(&mut log.versions, version, at),
            Fact::Driver(version) => told(&mut log.drivers, version, at),
            Fact::Network(name) => told(&mut log.networks, name, at),
            Fact::DmaBuf => {
                log.dma_buf_gpus.get_or_insert(at);
            }
            Fact::Confidential(is_on) => {
                log.confidential.get_or_insert((is_on, at));
            }
            Fact::Variable { name, value, by_plugin } => {
                let origin = if by_plugin { Origin::Plugin } else { Origin::Environment };
                self.variable(name, value, origin, at);
            }
            Fact::Plugin(fact) => plugin(log.plugin.get_or_insert_default(), fact, at),
            _ => {}
        }
    }

    pub(super) fn variable(&mut self, name: String, value: String, origin: Origin, at: Place) {
        let key = (name.clone(), value.clone(), origin);
        let has_room = self.log.variables.len() < SENTENCES_MAX;
        if !self.variables.contains_key(&key) && has_room && self.room() {
            self.variables.insert(key, ());
            self.log.variables.push(Variable { name, value, origin, at });
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
        let place = (init.rank, init.ranks);
        let Some(index) = self.communicator(id, place, &sender.process, at) else { return };
        let own = Own {
            communicator: index,
            pointer: Some(init.pointer),
            device: Some(init.cuda_device),
            rank: init.rank,
        };
        let known = self.processes.entry(sender.process.clone()).or_default();
        let is_known = known.own.iter().any(|old| {
            old.pointer == own.pointer && old.communicator == index && old.rank == own.rank
        });
        if !is_known && known.own.len() < OWN_MAX {
            known.own.push(own);
        }
        if init.is_complete {
            known.making.remove(&sender.thread);
        } else {
            known.making.insert(sender.thread, own);
        }
        let member = self.log.communicators[index].members.entry(init.rank);
        let member = member.or_insert_with(|| unknown_member(&sender.process, at));
        member.cuda_device = Some(init.cuda_device);
        member.nvml_device = init.nvml_device;
        member.bus_id = Some(init.bus_id);
        member.is_complete |= init.is_complete;
    }

    /// The communicator of this identity that this rank of the process can be in: the known one,
    /// or a new one where another process has the rank already.
    fn communicator(
        &mut self,
        id: Option<String>,
        (rank, ranks): (u32, u32),
        process: &Process,
        at: Place,
    ) -> Option<usize> {
        let key = id.clone().unwrap_or_else(|| format!("unnamed {ranks}"));
        if let Some(&index) = self.by_id.get(&key) {
            let known = &self.log.communicators[index];
            let is_free = known.members.get(&rank).is_none_or(|member| member.process == *process);
            if is_free && known.ranks == Some(ranks) {
                return Some(index);
            }
        }
        self.room().then(|| {
            let index = self.log.communicators.len();
            self.by_id.insert(key, index);
            let ranks = Some(ranks);
            self.log.communicators.push(Communicator { id, ranks, at, ..Communicator::default() });
            index
        })
    }

    /// The communicator whose layout is told: the known one at this address, or one whose beginning
    /// is not in the log.
    fn laid_out(
        &mut self,
        sender: &Sender,
        pointer: u64,
        (rank, ranks): (u32, u32),
        at: Place,
    ) -> Option<usize> {
        if let Some(own) = self.own(&sender.process, pointer, Some(rank)) {
            return Some(own.communicator);
        }
        let index = self.communicator(None, (rank, ranks), &sender.process, at)?;
        let own = Own { communicator: index, pointer: Some(pointer), device: sender.device, rank };
        let known = self.processes.entry(sender.process.clone()).or_default();
        known.own.push(own);
        let members = &mut self.log.communicators[index].members;
        members.entry(rank).or_insert_with(|| unknown_member(&sender.process, at));
        Some(index)
    }

    /// The latest communicator of a process at this address: addresses come again.
    fn own(&self, process: &Process, pointer: u64, rank: Option<u32>) -> Option<Own> {
        let known = self.processes.get(process)?;
        let mut latest_first = known.own.iter().rev();
        let found = latest_first
            .find(|own| own.pointer == Some(pointer) && rank.is_none_or(|rank| own.rank == rank));
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

    fn channel(&mut self, sender: Option<&Sender>, channel: &Channel, at: Place) {
        let mut ranks = vec![channel.source];
        ranks.extend(channel.target);
        for (index, is_certain) in self.owners(sender, &ranks) {
            let Channel { source, target, gpus, end, .. } = *channel;
            let key = (index, source, target, channel.transport.clone(), end);
            if !self.links.contains_key(&key) {
                if !self.room() {
                    continue;
                }
                let links = &mut self.log.communicators[index].links;
                let transport = channel.transport.clone();
                let (channels, lines) = (Vec::new(), 0);
                let (first, last) = (at, at);
                let link = Link {
                    source,
                    target,
                    transport,
                    end,
                    channels,
                    gpus,
                    is_certain,
                    first,
                    last,
                    lines,
                };
                self.links.insert(key.clone(), links.len());
                links.push(link);
            }
            let place = self.links[&key];
            let communicator = &mut self.log.communicators[index];
            if communicator.links.len() == 1 && communicator.at == Place::default() {
                communicator.at = at;
            }
            let link = &mut communicator.links[place];
            link.lines += 1;
            link.last = at;
            link.is_certain &= is_certain;
            if let Err(place) = link.channels.binary_search(&channel.channel)
                && link.channels.len() < CHANNELS_MAX
            {
                link.channels.insert(place, channel.channel);
            }
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

/// What a line adds to a communicator as a whole.
fn shape(communicator: &mut Communicator, fact: &Fact, at: Place) {
    match *fact {
        Fact::System { gb_s } => {
            communicator.gb_s_system.get_or_insert(gb_s);
        }
        Fact::Clique { ref id, ranks } => {
            communicator.clique.get_or_insert_with(|| (id.clone(), ranks));
        }
        Fact::Trees => communicator.has_trees = true,
        Fact::Counts(counts) => {
            communicator.channels.get_or_insert(counts);
        }
        Fact::AllDirect(all) => {
            communicator.all_direct.get_or_insert(all);
        }
        Fact::RingsUse { pxn, gpudirect } => {
            communicator.rings_use.get_or_insert(RingsUse { pxn, gpudirect, at });
        }
        _ => {}
    }
}

fn unknown_member(process: &Process, at: Place) -> Member {
    Member {
        process: process.clone(),
        cuda_device: None,
        nvml_device: None,
        bus_id: None,
        local_rank: None,
        local_ranks: None,
        is_complete: false,
        at,
    }
}

/// Versions and names that differ between ranks are few; a log of noise has no more.
const TOLD_MAX: usize = 64;

fn told(list: &mut Vec<Told>, value: String, at: Place) {
    if list.len() < TOLD_MAX && list.iter().all(|old| old.value != value) {
        list.push(Told { value, at });
    }
}

fn plugin(plugin: &mut Plugin, fact: PluginFact, at: Place) {
    let first = |slot: &mut Option<Told>, value: String| {
        slot.get_or_insert(Told { value, at });
    };
    match fact {
        PluginFact::Version(version) => first(&mut plugin.version, version),
        PluginFact::Libfabric(version) => first(&mut plugin.libfabric, version),
        PluginFact::Platform(name) => first(&mut plugin.platform, name),
        PluginFact::Protocol { name, set_by } => {
            first(&mut plugin.protocol, name);
            plugin.protocol_set_by = plugin.protocol_set_by.take().or(set_by);
        }
        PluginFact::Provider { name, fabric, nics } => {
            first(&mut plugin.provider, name);
            if let Some(fabric) = fabric {
                first(&mut plugin.fabric, fabric);
            }
            plugin.nics.get_or_insert(nics);
        }
        PluginFact::DmaBuf(word) => first(&mut plugin.dma_buf, word),
        PluginFact::ForcesSimple(reason) => first(&mut plugin.forces_simple, reason),
        PluginFact::DisablesNvls(version) => first(&mut plugin.disables_nvls, version),
        PluginFact::LacksGpudirect(platform) => first(&mut plugin.lacks_gpudirect, platform),
    }
}
