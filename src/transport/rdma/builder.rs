//! Builds a rank's part of a case: interfaces, memory, and the connections to its partners.

use std::rc::Rc;

use super::{
    Card, Rdma, Report, SIGNALS,
    channel::{self, Channel, Memories, Peer, Target},
    chunk,
    counters::Counters,
    data::Data,
    inbox::Inbox,
    is_direct, is_staged,
    labels::{gpu_path, shared_memory},
    own_flows, own_nics, parts_under_way,
    port::{Port, Rail, rails},
    posted_receives, room,
    signal::{Barrier, Outbox},
    slots,
    stage::{Chunks, Stage},
    transfer::Streams,
    verb::Verb,
    window,
};
use crate::{
    ffi::{
        fabric::Facts,
        host::{self, BoundThread},
    },
    plan::{Case, Fabric, Flow, Rank},
    transport::{Error, GpuPath, Network, Registration, SharedMemory, TryingTo, Wait, gpu::Ready},
    world::World,
};

/// A rank's part of a case while it is built.
pub(super) struct Builder<'a> {
    case: &'a Case,
    verb: Verb,
    fabric: &'a Fabric,
    rank: Rank,
    flows: Vec<Flow>,
    ports: Vec<Port>,
    facts: Facts,
    /// One for each flow.
    memories: Vec<Memories>,
    inbox: Option<Inbox>,
    window: u64,
    /// How an operation is divided, and the number of slots of a target or of a ring.
    chunks: Chunks,
    wait: Wait,
    bound: Option<BoundThread>,
}

/// Another rank of the case, as this rank reaches it.
struct Partner<'a> {
    rank: Rank,
    rails: Vec<Rail>,
    card: &'a Card,
}

impl<'a> Builder<'a> {
    /// Opens the interfaces and allocates the buffers.
    pub(super) fn new(
        rdma: &Rdma,
        case: &'a Case,
        rank: Rank,
        cpu: Option<u32>,
    ) -> Result<Self, Error> {
        let missing = || Error::Disagreement("a rank of the case has no interface");
        let (fabric, nics) = own_nics(case, rank).ok_or_else(missing)?;
        let has_gpu = is_direct(case, rank);
        let mut ports = Vec::new();
        let mut facts = None;
        // Operations take the endpoints in turn, so each goes through another interface.
        for nic in nics.iter().cycle().take(nics.len() * fabric.endpoints as usize) {
            let domain = rdma.domain(fabric, nic, has_gpu)?;
            facts.get_or_insert_with(|| domain.info().facts().clone());
            ports.push(Port::open(&domain)?);
        }
        // A provider's threads, which it has started by now, must not wait for the CPU on which this
        // thread never sleeps.
        let bound = cpu.map(|cpu| host::bind_thread(&[cpu])).transpose().trying_to("take a CPU")?;
        let facts = facts.ok_or_else(missing)?;
        let flows = own_flows(case, rank);
        let room = ports.iter().map(|port| port.endpoint.operations_max()).min().unwrap_or(0);
        // Half of the places are for receives, half for operations of this rank.
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
            wait: if bound.is_some() { Wait::Spin } else { Wait::Yield },
            bound,
        };
        builder.allocate(rdma)?;
        Ok(builder)
    }

    /// Allocates the memory of all flows.
    fn allocate(&mut self, rdma: &Rdma) -> Result<(), Error> {
        let (size, rank, verb) = (self.case.size, self.rank, self.verb);
        let has_messages = self.case.operation.has_messages();
        for flow in self.flows.clone() {
            let ready = self.ready(rdma, &flow)?;
            let sends = flow.source.rank == rank || verb == Verb::PingPong;
            let memories = if self.fabric.is_staged {
                self.stage(ready.as_ref(), sends)?
            } else {
                let mut allocate = |size| Data::new(&mut self.ports, ready.as_ref(), size);
                let source = sends.then(|| allocate(channel::source_size(size))).transpose()?;
                let takes = flow.target.rank == rank && !has_messages;
                let target = takes
                    .then(|| Target::new(size, self.chunks.slots, &mut allocate))
                    .transpose()?;
                Memories { source, target, ..Memories::default() }
            };
            self.memories.push(memories);
        }
        if has_messages {
            self.inbox = self.inbox(rdma)?;
        }
        Ok(())
    }

    /// The memory that messages arrive in, if this rank receives any.
    fn inbox(&mut self, rdma: &Rdma) -> Result<Option<Inbox>, Error> {
        let receives = |flow: &&Flow| flow.target.rank == self.rank || self.verb == Verb::PingPong;
        let incoming = self.flows.iter().filter(receives).count() as u64;
        let Some(flow) = self.flows.iter().find(receives).copied() else { return Ok(None) };
        let is_shared = incoming == 1 && self.chunks.slots == 1;
        let (ports, rails) = (self.ports.len() as u64, u64::from(self.fabric.rails).max(1));
        let per_port = posted_receives(self.window, rails, ports, self.chunks.chunk) * incoming;
        let per_port = parts_under_way(per_port, 1).max(2);
        let slots = if is_shared { 1 } else { per_port * ports };
        let ready = self.ready(rdma, &flow)?;
        let target = Target::new(self.chunks.chunk, slots, |size| {
            match ready.as_ref().filter(|_| self.fabric.is_staged) {
                Some(ready) => Data::of_pinned(&mut self.ports, ready, size),
                None => Data::new(&mut self.ports, ready.as_ref(), size),
            }
        })?;
        Ok(Some(Inbox::new(target, per_port, ports, is_shared)))
    }

    /// The GPU at this rank's end of a flow, if the flow ends in one.
    fn ready(&self, rdma: &Rdma, flow: &Flow) -> Result<Option<Rc<Ready>>, Error> {
        let end = if flow.source.rank == self.rank { flow.source } else { flow.target };
        end.gpu().map(|gpu| rdma.needed_gpus()?.ready(gpu)).transpose()
    }

    /// The memory of a staged end. Messages arrive in the inbox, so their receiver needs no ring.
    fn stage(&mut self, ready: Option<&Rc<Ready>>, sends: bool) -> Result<Memories, Error> {
        let ready = ready.ok_or(Error::Disagreement("a flow of GPUs ends in host memory"))?;
        let size = self.case.size;
        let gpu = |size| Data::of_gpu_alone(ready, size);
        let ring = || {
            let size = channel::slot(self.chunks.chunk, self.chunks.slots);
            Data::of_pinned(&mut self.ports, ready, size)
        };
        let has_ring = sends || !self.case.operation.has_messages();
        Ok(Memories {
            source: sends.then(|| gpu(channel::source_size(size))).transpose()?,
            target: (!sends).then(|| Target::new(size, 1, gpu)).transpose()?,
            ring: has_ring.then(ring).transpose()?,
            stage: Some(Stage::new(ready, self.chunks)?),
        })
    }

    pub(super) fn card(&self) -> Result<Card, Error> {
        let is_read = self.verb == Verb::Read;
        let flows = self.flows.iter().zip(&self.memories).map(|(flow, memories)| {
            // The other end accesses the source of a read and the target of a write.
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
            room: self.room(),
        })
    }

    /// Operations of a flow to this rank that may be unconfirmed.
    fn room(&self) -> u64 {
        let each = self.ports.iter().map(|port| port.endpoint.operations_max()).min().unwrap_or(0);
        let incoming = self.flows.iter().filter(|flow| flow.target.rank == self.rank).count();
        room(self.fabric, self.verb, (self.ports.len() * each) as u64, incoming as u64)
    }

    pub(super) fn report(&self) -> Report {
        let first = self.memories.first();
        let data = first.and_then(|Memories { source, target, .. }| {
            let target = target.as_ref().or(self.inbox.as_ref().map(|inbox| &inbox.target));
            source.as_ref().or(target.map(|target| &target.data))
        });
        Report {
            shared_memory: self.shared_memory(),
            rank: self.rank,
            protocol: self.facts.protocol.clone(),
            registration: data.map_or(Registration::Host, |data| data.registration),
            gpu_path: self.gpu_path(),
            is_emulated: self.is_emulated(),
            window: self.window,
            room: self.room(),
        }
    }

    /// The counters of this rank's interfaces, if it initiates operations.
    fn counters(&self) -> Option<Counters> {
        self.flows.iter().find(|flow| self.case.timed_by(flow) == self.rank)?;
        Counters::of(own_nics(self.case, self.rank)?.1, self.verb)
    }

    /// Whether libfabric makes messages of the operation, as far as its provider says.
    fn is_emulated(&self) -> Option<bool> {
        self.ports.first().and_then(|port| match self.verb {
            Verb::Write => port.endpoint.emulates_writes(),
            Verb::Read => port.endpoint.emulates_reads(),
            Verb::Send | Verb::PingPong => None,
        })
    }

    /// How this rank's interfaces access the data of GPUs.
    fn gpu_path(&self) -> Option<GpuPath> {
        if is_staged(self.case) {
            return Some(GpuPath::Staged);
        }
        let promises = self.ports.iter().all(|port| port.endpoint.must_reach_gpus_itself());
        let is_emulated = self.is_emulated() == Some(true);
        let path = gpu_path(&self.facts, self.verb, promises, is_emulated, self.shared_memory());
        is_direct(self.case, self.rank).then_some(path)
    }

    fn shared_memory(&self) -> SharedMemory {
        let shuns = self.ports.iter().all(|port| port.endpoint.shuns_shared_memory());
        shared_memory(self.fabric, shuns)
    }

    /// Connects this rank with its partners.
    pub(super) fn connect(
        mut self,
        cards: &[(Rank, Option<Card>)],
        world: &World,
        network: Network,
    ) -> Result<Streams, Error> {
        let mut partners = Vec::new();
        let mut window = self.window;
        for (rank, card) in cards {
            let card = card.as_ref().ok_or(Error::Disagreement("a partner has no interface"))?;
            let rails = rails(&mut self.ports, &card.ports)?;
            // No two operations under way may write the same slot of a target.
            window = if card.slots > 1 { window.min(card.slots) } else { window };
            partners.push(Partner { rank: *rank, rails, card });
        }
        let memories = std::mem::take(&mut self.memories);
        let channels = self.flows.iter().zip(memories);
        let channels = channels
            .map(|(flow, memories)| self.channel(*flow, memories, &partners))
            .collect::<Result<Vec<Channel>, Error>>()?;
        let first_rail = |partner: &Partner<'_>| Some((partner.rank, *partner.rails.first()?));
        let meetings = self.fabric.meetings.clone();
        let mut streams = Streams {
            size: self.chunks.chunk,
            chunks: self.chunks.count(),
            window,
            ways: partners.iter().filter_map(first_rail).collect(),
            outbox: Outbox::with_capacity(4 * channels.len() + meetings.len()),
            channels,
            counters: self.counters(),
            ports: self.ports,
            inbox: self.inbox,
            barrier: Barrier::new(meetings),
            wait: self.wait,
            _bound: self.bound,
            ..Streams::idle(self.case, self.verb, world, network)
        };
        let Streams { inbox, ports, .. } = &mut streams;
        inbox.iter_mut().try_for_each(|inbox| inbox.receive(ports))?;
        Ok(streams)
    }

    /// This rank's end of a flow with one of the `partners`.
    fn channel(
        &self,
        flow: Flow,
        mut memories: Memories,
        partners: &[Partner<'_>],
    ) -> Result<Channel, Error> {
        let (source, target) = (flow.source.rank, flow.target.rank);
        let other = if source == self.rank { target } else { source };
        let partner = partners.iter().find(|partner| partner.rank == other);
        let Partner { rails, card, .. } =
            partner.ok_or(Error::Disagreement("a partner is silent"))?;
        let mut numbered = (0..).zip(&card.flows);
        let theirs = numbered.find(|(_, (from, to, _))| (*from, *to) == (source, target));
        let (number, (.., memory)) =
            theirs.ok_or(Error::Disagreement("a partner does not know a flow"))?;
        let initiates = self.case.timed_by(&flow) == self.rank;
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
        let has_room =
            memory.len() == card.ports.len() && memory.iter().all(|memory| memory.size() >= wanted);
        if is_reached && !has_room {
            return Err(Error::Disagreement("a partner's memory is smaller than the case's"));
        }
        let peer = Peer {
            rank: other,
            rails: rails.clone(),
            number,
            memory: memory.clone(),
            room: card.room,
        };
        let chunks = Chunks { slots, ..self.chunks };
        Ok(Channel::new(flow, initiates, peer, memories, chunks))
    }
}
