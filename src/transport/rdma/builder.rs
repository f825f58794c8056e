//! From a case to this rank's part of it: interfaces, memory, and the ways to its partners.

use std::collections::VecDeque;

use super::{
    Card, Rdma, Report, SIGNALS,
    affinity::Affinity,
    channel::{self, Channel, Memories, Peer, Target},
    chunk,
    counters::Counters,
    data::Data,
    inbox::Inbox,
    is_direct, is_staged, make, own_flows, own_nics, parts_under_way,
    port::{Port, rails},
    signal::Barrier,
    slots,
    stage::{Chunks, Stage},
    transfer::Streams,
    verb::Verb,
    window,
};
use crate::{
    ffi::fabric::Facts,
    plan::{Case, Fabric, Flow, Place, Rank},
    transport::{Error, GpuPath, Network, Wait},
    world::World,
};

/// The part of a rank that is being made.
pub(super) struct Builder<'a> {
    case: &'a Case,
    verb: Verb,
    fabric: &'a Fabric,
    rank: Rank,
    flows: Vec<Flow>,
    ports: Vec<Port>,
    facts: Facts,
    memories: Vec<Memories>,
    inbox: Option<Inbox>,
    window: u64,
    /// How an operation is cut, and the parts of a target or of a ring.
    chunks: Chunks,
    wait: Wait,
}

impl<'a> Builder<'a> {
    /// Opens the interfaces and makes the buffers.
    pub(super) fn new(
        rdma: &Rdma,
        case: &'a Case,
        rank: Rank,
        affinity: &Affinity,
    ) -> Result<Self, Error> {
        let missing = Error::Disagreement("a rank of the case has no interface");
        let (fabric, nics) = own_nics(case, rank).ok_or(missing)?;
        let has_gpu = is_direct(case, rank);
        // A provider's threads must not wait for the CPU on which this one never sleeps.
        affinity.release()?;
        let mut ports = Vec::new();
        let mut facts = None;
        for nic in nics {
            let domain = rdma.domain(fabric, nic, has_gpu)?;
            facts.get_or_insert_with(|| domain.info().facts().clone());
            ports.push(Port::open(&domain)?);
        }
        affinity.bind()?;
        let facts = facts.ok_or(Error::Disagreement("a rank of the case has no interface"))?;
        let flows = own_flows(case, rank);
        let room = ports.iter().map(|port| port.endpoint.operations_max()).min().unwrap_or(0);
        // Half of the places for what is received, half for what is asked for.
        let window = window(case, fabric, room.saturating_sub(SIGNALS) / (2 * flows.len()));
        let verb = Verb::of(case.operation)?;
        let slots = slots(case, verb, window, Some(&facts));
        let chunks = Chunks::new(case.size, chunk(case), slots);
        let mut builder = Self {
            case,
            verb,
            fabric,
            rank,
            flows,
            ports,
            facts,
            memories: Vec::new(),
            inbox: None,
            window,
            chunks,
            wait: affinity.wait(),
        };
        builder.allocate(rdma)?;
        Ok(builder)
    }

    /// Makes the memory of all flows.
    fn allocate(&mut self, rdma: &Rdma) -> Result<(), Error> {
        let (size, rank, verb) = (self.case.size, self.rank, self.verb);
        let has_messages = self.case.operation.has_messages();
        for flow in self.flows.clone() {
            let place = self.place(&flow);
            let sends = flow.source.rank == rank || verb == Verb::PingPong;
            let memories = if self.fabric.is_staged {
                self.stage(rdma, place, sends, !sends && has_messages)?
            } else {
                let mut make = |size| make(rdma, &mut self.ports, place, size);
                let source = sends.then(|| make(channel::source_size(size))).transpose()?;
                let takes = flow.target.rank == rank && !has_messages;
                let target =
                    takes.then(|| Target::new(size, self.chunks.slots, &mut make)).transpose()?;
                Memories { source, target, ..Memories::default() }
            };
            self.memories.push(memories);
        }
        let receives = |flow: &&Flow| flow.target.rank == rank || verb == Verb::PingPong;
        let incoming = self.flows.iter().filter(receives).count() as u64;
        if let Some(flow) = self.flows.iter().find(receives).filter(|_| has_messages) {
            let place = self.place(flow);
            let per_port = parts_under_way(self.window * incoming, 1).max(2);
            let is_shared = incoming == 1 && self.chunks.slots == 1;
            let ports = self.ports.len() as u64;
            let slots = if is_shared { 1 } else { per_port * ports };
            let target =
                Target::new(self.chunks.chunk, slots, |size| match self.fabric.is_staged {
                    true => Data::of_pinned(&mut self.ports, &*rdma.ready(place)?, size),
                    false => make(rdma, &mut self.ports, place, size),
                })?;
            self.inbox = Some(Inbox::new(target, per_port, ports, is_shared));
        }
        Ok(())
    }

    /// Where this rank's end of a flow is.
    fn place(&self, flow: &Flow) -> Place {
        if flow.source.rank == self.rank { flow.source.place } else { flow.target.place }
    }

    /// The memory of an end that is staged, which `sends` or takes; what `is_message` comes into
    /// the inbox.
    fn stage(
        &mut self,
        rdma: &Rdma,
        place: Place,
        sends: bool,
        is_message: bool,
    ) -> Result<Memories, Error> {
        let ready = rdma.ready(place)?;
        let size = self.case.size;
        let gpu = |size| Data::of_gpu_alone(&ready, size);
        let ring = || {
            let size = channel::slot(self.chunks.chunk, self.chunks.slots);
            Data::of_pinned(&mut self.ports, &ready, size)
        };
        Ok(Memories {
            source: sends.then(|| gpu(channel::source_size(size))).transpose()?,
            target: (!sends).then(|| Target::new(size, 1, gpu)).transpose()?,
            ring: (!is_message).then(ring).transpose()?,
            stage: Some(Stage::new(&ready, self.chunks)?),
        })
    }

    pub(super) fn card(&self) -> Result<Card, Error> {
        let is_read = self.verb == Verb::Read;
        let flows = self.flows.iter().zip(&self.memories).map(|(flow, memories)| {
            // What the other end reaches: the source of a read, the target of a write.
            let Memories { source, target, ring, .. } = memories;
            let own = if is_read { source.as_ref() } else { target.as_ref().map(|t| &t.data) };
            let is_reached = is_read == (flow.source.rank == self.rank);
            let reached = own.filter(|_| is_reached).map(|own| ring.as_ref().unwrap_or(own));
            (flow.source.rank, flow.target.rank, reached.map_or_else(Vec::new, Data::remote))
        });
        Ok(Card {
            flows: flows.collect(),
            ports: self.ports.iter().map(Port::card).collect::<Result<_, Error>>()?,
            slots: self.chunks.slots,
        })
    }

    pub(super) fn report(&self) -> Report {
        let first = self.memories.first();
        let data = first.and_then(|Memories { source, target, .. }| {
            let target = target.as_ref().map(|target| &target.data);
            source.as_ref().or(target).or(self.inbox.as_ref().map(|inbox| &inbox.target.data))
        });
        Report {
            rank: self.rank,
            protocol: Some(self.facts.protocol.clone()),
            registration: data.map(|data| data.registration),
            gpu_path: self.gpu_path(),
            is_emulated: self.ports.first().and_then(|port| match self.verb {
                Verb::Write => port.endpoint.emulates_writes(),
                Verb::Read => port.endpoint.emulates_reads(),
                Verb::Send | Verb::PingPong => None,
            }),
            window: self.window,
        }
    }

    /// Of the interfaces by which this rank asks for operations, if it does.
    fn counters(&self) -> Option<Counters> {
        self.flows.iter().find(|flow| self.case.timed_by(flow) == self.rank)?;
        Counters::of(own_nics(self.case, self.rank)?.1, self.verb)
    }

    /// How this rank's interfaces come to data of GPUs.
    fn gpu_path(&self) -> Option<GpuPath> {
        if is_staged(self.case) {
            return Some(GpuPath::Staged);
        }
        // These hand what is registered to the device, and never look at it themselves.
        let hands_over = self.facts.provider.starts_with("verbs");
        let promises = self.ports.iter().all(|port| port.endpoint.must_reach_gpus_itself());
        let path = if promises || hands_over { GpuPath::Direct } else { GpuPath::Unproven };
        is_direct(self.case, self.rank).then_some(path)
    }

    /// Reaches the partners.
    pub(super) fn connect(
        &mut self,
        cards: &[(Rank, Option<Card>)],
        world: &World,
        network: Network,
    ) -> Result<Streams, Error> {
        let rank = self.rank;
        let mut partners = Vec::new();
        let mut window = self.window;
        for (partner, card) in cards {
            let card = card.as_ref().ok_or(Error::Disagreement("a partner has no interface"))?;
            let rails = rails(&mut self.ports, &card.ports)?;
            // No operation may meet one in a part of the target that is still under way.
            window = if card.slots > 1 { window.min(card.slots) } else { window };
            partners.push((*partner, rails, card));
        }
        let mut channels = Vec::new();
        for (flow, mut memories) in self.flows.iter().zip(self.memories.drain(..)) {
            let other = if flow.source.rank == rank { flow.target.rank } else { flow.source.rank };
            let partner = partners.iter().find(|(partner, ..)| *partner == other);
            let (_, rails, card) = partner.ok_or(Error::Disagreement("a partner is silent"))?;
            let ends = (flow.source.rank, flow.target.rank);
            let number = card.flows.iter().position(|(from, to, _)| (*from, *to) == ends);
            let number = number.ok_or(Error::Disagreement("a partner does not know a flow"))?;
            let peer = Peer {
                rank: other,
                rails: rails.clone(),
                number: u32::try_from(number).unwrap_or(u32::MAX),
                memory: card.flows[number].2.clone(),
            };
            let initiates = self.case.timed_by(flow) == rank;
            let slots = match &mut memories.stage {
                // Both ends number the slots alike.
                Some(stage) => {
                    stage.chunks.slots = stage.chunks.slots.min(card.slots);
                    stage.chunks.slots
                }
                None if initiates && self.verb != Verb::Read => card.slots,
                None => self.chunks.slots,
            };
            let is_reached = initiates && !self.case.operation.has_messages();
            let wanted = if memories.stage.is_none() && self.verb == Verb::Read {
                channel::source_size(self.case.size)
            } else {
                channel::slot(self.chunks.chunk, slots)
            };
            let has_room = peer.memory.len() == card.ports.len()
                && peer.memory.iter().all(|memory| memory.size() >= wanted);
            if is_reached && !has_room {
                return Err(Error::Disagreement("a partner's memory is smaller than the case's"));
            }
            let chunks = Chunks { slots, ..self.chunks };
            channels.push(Channel::new(*flow, initiates, peer, memories, chunks));
        }
        let ways =
            partners.iter().filter_map(|(partner, rails, _)| Some((*partner, *rails.first()?)));
        let meetings = self.fabric.meetings.clone();
        let mut streams = Streams {
            size: self.chunks.chunk,
            chunks: self.chunks.count(),
            window,
            ways: ways.collect(),
            outbox: VecDeque::with_capacity(4 * channels.len() + meetings.len()),
            channels,
            ports: std::mem::take(&mut self.ports),
            inbox: self.inbox.take(),
            barrier: Barrier::new(meetings),
            wait: self.wait,
            counters: self.counters(),
            ..Streams::idle(self.case, self.verb, world, network)
        };
        let Streams { inbox, ports, .. } = &mut streams;
        inbox.iter_mut().try_for_each(|inbox| inbox.receive(ports))?;
        Ok(streams)
    }
}
