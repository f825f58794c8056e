//! From one GPU to another through pinned host memory, chunk by chunk.
//!
//! Each flow has a ring of slots. The source's GPU copies a chunk into a slot and then counts the
//! word `head` up; the target's GPU waits for that, copies the chunk out and counts `tail` up,
//! which frees the slot. Both GPUs wait for and write these words by themselves, in the order of
//! their streams, whether one process has both or each its own.

use std::{collections::BTreeMap, ops::Range, rc::Rc, sync::atomic::Ordering, time::Duration};

use crate::{
    ffi::{
        CallError,
        cuda::{Event, Feature, HostMemory, Memory, Registered, Slice},
        host::{self, BoundThread},
        shm::{Address, Segment},
    },
    plan::{Case, Gpu, Rank, topology::Topology},
    transport::{
        Clock, Empty, Error, Mismatch, Span, Staging, Support, Transfer, TryingTo, control,
        first_mismatch,
        gpu::{self, Content, Copier, Endpoints, Gpus, PATIENCE, Side, Start},
        shm::{lack_of_slots, slot_sizes, tune},
    },
    units::Bytes,
    world::World,
};

/// The slot sizes that tuning tries. A smaller transfer takes one slot.
const SLOT_CHOICES: [Bytes; 6] = [
    Bytes::kib(128),
    Bytes::kib(256),
    Bytes::kib(512),
    Bytes::mib(1),
    Bytes::mib(2),
    Bytes::mib(4),
];

/// Slots of a ring. While one is filled and one emptied, one more of each is available, so neither
/// GPU waits for the other's signal.
const SLOTS: u64 = 4;

/// Where the counts and the slots are in a ring.
const HEAD: Bytes = Bytes::new(0);
const TAIL: Bytes = Bytes::new(control::LINE as u64);
const SLOTS_AT: Bytes = Bytes::kib(4);

/// Chunks queued behind a hold, at three operations of a stream for each. The rest is queued while
/// the first are under way.
const CHUNKS_BEHIND_A_HOLD: u64 = 40;

/// The most data for one timing of the tuning: of larger transfers only the beginning.
const TUNING_MAX: Bytes = Bytes::mib(16);

/// Timings of one slot size. The first does not count.
const TUNING_SPANS: usize = 4;

/// Signals between two processes' GPUs, and their common start, take some microseconds: below 1 %
/// of a sample.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(1);

/// Whether memory for this rank's part of `case` is here.
pub(super) fn support(case: &Case, world: &World, gpus: &Gpus) -> Result<Support, Error> {
    if let Some(lack) = Gpus::lack(Feature::StreamValues) {
        return Ok(Support::No(lack));
    }
    let rings = ring_size(case).times(case.flows.len() as u64);
    if case.members().len() > 1
        && let Some(reason) = lack_of_slots(rings)
    {
        return Ok(Support::No(reason));
    }
    gpus.room(case, world.rank(), case.size)
}

/// Acquires this rank's part of `case`.
pub(super) fn prepare(
    case: &Case,
    world: &mut World,
    gpus: &Gpus,
) -> Result<Box<dyn Transfer>, Error> {
    let mut transfer = Staged::new(case, world, gpus)?;
    // The best slot of an idle GPU is another one.
    gpu::warm(Some(gpus), case, world)?;
    transfer.tune(case, world)?;
    // Its last chunk may be of a kind that tuning did not have.
    transfer.run_if_member(Content::Operations(1), &mut [Span::default()], false)?;
    Ok(Box::new(transfer))
}

/// This rank's part of a case.
#[derive(Debug)]
struct Staged {
    rank: Rank,
    endpoints: Endpoints,
    /// This rank's ends of the flows: sources first.
    ring_ends: Vec<RingEnd>,
    /// How many of them are sources.
    sources: usize,
    /// When the first source's stream begins, and when all sources' flows have arrived; empty if
    /// this rank has no source.
    boundaries: Vec<Event>,
    start: Start,
    clock: Clock,
    slot: Bytes,
    length: Bytes,
}

/// One end of a flow.
#[derive(Debug)]
struct RingEnd {
    is_source: bool,
    copier: Copier,
    /// Its place among this rank's buffers.
    buffer: usize,
    ring: Rc<Ring>,
    /// Chunks queued since the ring was created. It wraps as the GPUs' words do.
    queued: u32,
    /// When this source's flow has arrived.
    end: Event,
}

/// Pinned memory that both GPUs of a flow reach.
#[derive(Debug)]
enum Ring {
    /// Of one process.
    Own(HostMemory),
    /// Of two.
    Shared(Registered),
}

impl Staged {
    fn new(case: &Case, world: &mut World, gpus: &Gpus) -> Result<Self, Error> {
        let rank = world.rank();
        let endpoints = Endpoints::new(case, world, gpus)?;
        let rings = rings(case, world, gpus)?;
        let mut ring_ends: Vec<RingEnd> = Vec::new();
        for side in [Side::Source, Side::Target] {
            for (flow, ring) in &rings {
                let end = gpu::end(&case.flows[*flow], side);
                let Some(gpu) = end.gpu().filter(|_| end.rank == rank) else { continue };
                let at_once = case.ends().filter(|other| *other == end).count();
                let ready = gpus.ready(gpu)?;
                let is_source = side == Side::Source;
                ring_ends.push(RingEnd {
                    is_source,
                    end: Event::new(&ready.context).trying_to("make events")?,
                    copier: Copier::new(ready, case.engine, !is_source, at_once)?,
                    buffer: endpoints.own(*flow, side)?,
                    ring: Rc::clone(ring),
                    queued: 0,
                });
            }
        }
        let sources = ring_ends.iter().filter(|ring_end| ring_end.is_source).count();
        let ready = ring_ends[..sources].first().map(|first| &first.copier.ready);
        let starters = case.flows.iter().map(|flow| flow.source.rank).collect();
        let start = Start::together(&starters, ready, world)?;
        let boundaries = ready.map(|ready| ready.events(2)).transpose()?.unwrap_or_default();
        let sample_time_min =
            if case.members().len() > 1 { SAMPLE_TIME_MIN } else { Duration::ZERO };
        let clock = ready.map(|ready| ready.clock(sample_time_min));
        Ok(Self {
            rank,
            endpoints,
            sources,
            boundaries,
            start,
            clock: gpu::agree_on_clock(clock, world)?,
            slot: slot_sizes(case, &SLOT_CHOICES)[0],
            length: case.size,
            ring_ends,
        })
    }

    /// Tries every slot size on the real buffers and keeps the one with the best median.
    fn tune(&mut self, case: &Case, world: &mut World) -> Result<(), Error> {
        let slots = slot_sizes(case, &SLOT_CHOICES);
        self.length = case.size.min(TUNING_MAX);
        let best = tune(slots.len(), TUNING_SPANS, world, |choice, spans| {
            self.slot = slots[choice];
            let (first, others) = spans.split_at_mut(1);
            self.run_if_member(Content::Operations(1), first, false)?;
            self.run_if_member(Content::Operations(1), others, true)
        })?;
        self.length = case.size;
        self.slot = slots[best];
        Ok(())
    }

    fn run_if_member(
        &mut self,
        content: Content,
        spans: &mut [Span],
        is_held: bool,
    ) -> Result<(), Error> {
        if !self.endpoints.is_member {
            return Ok(());
        }
        self.run_as_member(content, spans, is_held).inspect_err(|_| {
            // Work that is held or waits for the other end would keep its GPU busy.
            self.start.release();
            self.ring_ends.iter().for_each(RingEnd::let_go);
            self.endpoints.give_up();
        })
    }

    /// Runs the spans, each behind a hold if `is_held`. What the driver does at the first use of a
    /// kernel, of a kind of copy, or of a wait for a word, waits until the GPU is at rest; behind a
    /// hold that would be when the hold times out.
    fn run_as_member(
        &mut self,
        content: Content,
        spans: &mut [Span],
        is_held: bool,
    ) -> Result<(), Error> {
        const QUEUE: &str = "queue the work";
        let operations = if let Content::Operations(operations) = content { operations } else { 0 };
        let chunks = self.length.get().div_ceil(self.slot.get()) * operations;
        for span in spans {
            self.begin(is_held).trying_to(QUEUE)?;
            if let (Content::Empty(Empty::Kernel), Some(first)) = (content, self.first_source()) {
                first.ready.kernels.nothing(&first.stream).trying_to(QUEUE)?;
            }
            let first = chunks.min(CHUNKS_BEHIND_A_HOLD);
            self.queue(0..first).trying_to(QUEUE)?;
            self.endpoints.meet("queue its flows")?;
            if self.start.leads {
                self.start.release();
            }
            self.queue(first..chunks).trying_to(QUEUE)?;
            self.end().trying_to(QUEUE)?;
            for ring_end in &self.ring_ends {
                ring_end.copier.stream.synchronize(PATIENCE).trying_to("wait for the GPU")?;
            }
            self.start.check()?;
            *span = match &self.boundaries[..] {
                [began, ended] => Span::lasting(gpu::elapsed(began, ended)?),
                _ => Span::default(),
            };
        }
        self.endpoints.meet("finish its flows")
    }

    /// What the first source's data goes through.
    fn first_source(&self) -> Option<&Copier> {
        self.ring_ends[..self.sources].first().map(|source| &source.copier)
    }

    /// Begins on the first source's stream, behind a hold if `is_held`; the other sources wait for
    /// it.
    fn begin(&mut self, is_held: bool) -> Result<(), CallError> {
        let sources = &self.ring_ends[..self.sources];
        let Some((RingEnd { copier, .. }, others)) = sources.split_first() else { return Ok(()) };
        let began = &self.boundaries[0];
        self.start.begin(&copier.ready, &copier.stream, began, is_held)?;
        others.iter().try_for_each(|other| other.copier.stream.wait(began))
    }

    /// Queues these chunks, counted over all operations of a span, at all ends of this rank.
    fn queue(&mut self, chunks: Range<u64>) -> Result<(), CallError> {
        let Self { ring_ends, endpoints, slot, length, .. } = self;
        let in_one = length.get().div_ceil(slot.get());
        for chunk in chunks {
            let offset = Bytes::new(chunk % in_one * slot.get());
            let size = Bytes::new(slot.get().min(length.get() - offset.get()));
            for ring_end in &mut *ring_ends {
                let part = endpoints.buffers[ring_end.buffer].all().slice(offset, size);
                ring_end.queue(part, *slot)?;
            }
        }
        Ok(())
    }

    /// Lets every source wait until its flow has arrived, and the first one for all.
    fn end(&self) -> Result<(), CallError> {
        let sources = &self.ring_ends[..self.sources];
        for RingEnd { copier, ring, queued, .. } in sources {
            copier.stream.wait_value(ring.word(TAIL), *queued)?;
        }
        gpu::join(sources.len(), |place| match place {
            0 => (&sources[0].copier.stream, &self.boundaries[1]),
            _ => (&sources[place].copier.stream, &sources[place].end),
        })
    }
}

impl Transfer for Staged {
    fn staging(&self) -> Option<Staging> {
        Some(Staging::by_gpus(self.slot, SLOTS))
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.endpoints.buffers.iter_mut().try_for_each(|buffer| buffer.fill(seed))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.run_if_member(Content::Operations(operations), spans, true)
    }

    fn run_empty(&mut self, empty: Empty, spans: &mut [Span]) -> Result<(), Error> {
        self.run_if_member(Content::Empty(empty), spans, true)
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let buffers = self.endpoints.buffers.iter_mut();
        let targets = buffers.filter(|buffer| buffer.side == Side::Target);
        first_mismatch(targets.map(|target| target.compare(seed, self.rank)))
    }
}

impl RingEnd {
    /// Queues the next chunk, which is `part` of this end's buffer.
    fn queue(&mut self, part: Slice<'_>, slot: Bytes) -> Result<(), CallError> {
        let Self { copier, ring, .. } = self;
        let place = u64::from(self.queued) % SLOTS;
        let staged = ring.all().slice(SLOTS_AT.plus(slot.times(place)), part.size());
        self.queued = self.queued.wrapping_add(1);
        if self.is_source {
            // The slot is free when its previous chunk has been copied out.
            #[allow(clippy::cast_possible_truncation, reason = "a handful of slots")]
            let emptied = self.queued.wrapping_sub(SLOTS as u32);
            copier.stream.wait_value(ring.word(TAIL), emptied)?;
            copier.copy(staged, part)?;
            copier.stream.write_value(ring.word(HEAD), self.queued)
        } else {
            copier.stream.wait_value(ring.word(HEAD), self.queued)?;
            copier.copy(part, staged)?;
            copier.stream.write_value(ring.word(TAIL), self.queued)
        }
    }

    /// Releases every wait that is queued at either end of this ring.
    fn let_go(&self) {
        self.ring.set(HEAD, self.queued);
        self.ring.set(TAIL, self.queued);
    }
}

impl Ring {
    fn all(&self) -> Slice<'_> {
        match self {
            Self::Own(memory) => memory.all(),
            Self::Shared(memory) => memory.all(),
        }
    }

    fn word(&self, offset: Bytes) -> Slice<'_> {
        self.all().slice(offset, Bytes::new(4))
    }

    /// Stores a count from the host.
    fn set(&self, offset: Bytes, count: u32) {
        match self {
            Self::Own(memory) => memory.word(offset).store(count.to_le(), Ordering::Release),
            Self::Shared(memory) => {
                let place = usize::try_from(offset.get()).unwrap_or(0);
                memory.word(place).store(u64::from(count).to_le(), Ordering::Release);
            }
        }
    }
}

fn ring_size(case: &Case) -> Bytes {
    let largest = slot_sizes(case, &SLOT_CHOICES).into_iter().max().unwrap_or_default();
    largest.times(SLOTS).plus(SLOTS_AT)
}

/// The rings of the flows in which this rank has an end, by flow; each lies next to its target's
/// GPU. Where two ranks share one, the target makes it.
fn rings(case: &Case, world: &mut World, gpus: &Gpus) -> Result<Vec<(usize, Rc<Ring>)>, Error> {
    const PIN: &str = "pin a ring of slots";
    let (rank, size) = (world.rank(), ring_size(case));
    let pinned = |segment| Registered::new(&gpus.any()?.context, segment).trying_to(PIN);
    let mut made = BTreeMap::new();
    for (flow, ends) in case.flows.iter().enumerate() {
        if ends.target.rank == rank && ends.source.rank != rank {
            let _bound = run_near(ends.target.gpu(), &gpus.topology)?;
            made.insert(flow, pinned(Segment::create(size).trying_to("share memory")?)?);
        }
    }
    // Other ranks open them from here on, so all steps that can fail come before.
    let addresses = made.iter().map(|(flow, segment)| (*flow, segment.address()));
    let addresses: BTreeMap<usize, Address> = addresses.collect();
    let offers = world.exchange_among(addresses, &case.members())?;
    let mut rings = Vec::new();
    for (flow, ends) in case.flows.iter().enumerate() {
        let (source, target) = (ends.source.rank, ends.target.rank);
        if source != rank && target != rank {
            continue;
        }
        let ring = if source == target {
            let _bound = run_near(ends.target.gpu(), &gpus.topology)?;
            Ring::Own(HostMemory::new(&gpus.any()?.context, size).trying_to(PIN)?)
        } else if let Some(ring) = made.remove(&flow) {
            Ring::Shared(ring)
        } else {
            let theirs = offers.get(&target).and_then(|rings| rings.get(&flow));
            Ring::Shared(pinned(control::open(theirs.copied())?)?)
        };
        rings.push((flow, Rc::new(ring)));
    }
    Ok(rings)
}

/// Binds this thread to the NUMA node next to `gpu`, so that its allocations lie there.
fn run_near(gpu: Option<Gpu>, topology: &Topology) -> Result<BoundThread, Error> {
    let node = topology.gpus.iter().find(|node| Some(node.gpu) == gpu);
    let nodes = topology.nearest_and_farthest(node.and_then(|node| node.numa_node));
    let cpus = nodes.first().map_or(&[][..], |&node| topology.cpus(node));
    host::bind_thread(cpus).trying_to("run on the GPU's NUMA node")
}
