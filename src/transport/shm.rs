//! Host memory to host memory between two processes, staged through shared memory.
//!
//! Each flow has a ring of slots in a segment of its own, which the target makes, so that it lies
//! on the target's NUMA node. The source copies a chunk into a slot and publishes it by counting
//! `head` up; the target copies it out and frees the slot by counting `tail` up. Both copy at the
//! same time. One thread serves all flows of its rank in turn, slot by slot.

use std::{sync::atomic::Ordering, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Error, Mismatch, Span, Staging, StoreKind, Support, Transfer, Transport, Wait, durations,
    machine, pattern,
};
use crate::{
    ffi::{
        self, clock,
        host::{self, HostBuffer},
        process::Peer,
        shm::{Address, NON_TEMPORAL, Segment, Store},
    },
    plan::{Case, Rank, topology::Topology},
    units::Bytes,
    world::World,
};

/// Distance between words that different CPUs write: two cache lines of 64 bytes, since Intel's
/// prefetcher fetches lines in pairs (Intel 64 and IA-32 Optimization Reference Manual, "Data
/// Prefetching"), and one line of Apple's and some Arm cores.
const LINE: usize = 128;

/// Where the slots begin in a ring's segment; `head` is at 0 and `tail` at [`LINE`].
const SLOTS_AT: usize = 4096;

/// The smallest slot worth a choice; below, one slot holds one transfer.
const SLOT_MIN: Bytes = Bytes::kib(16);

/// The slots that tuning tries.
const SLOT_CHOICES: [Bytes; 6] =
    [SLOT_MIN, Bytes::kib(64), Bytes::kib(128), Bytes::kib(256), Bytes::kib(512), Bytes::mib(1)];

/// A ring is at least this large if its slots are many: below it, source and target meet in the
/// same cache lines too soon (measured 2026-11 on Sapphire Rapids: 64 KiB of slots 10 GB/s,
/// 512 KiB and more 18 GB/s).
const RING_MIN: Bytes = Bytes::mib(1);

/// Past this ring size only the fewest slots are made.
const RING_MAX: Bytes = Bytes::mib(8);

/// Non-temporal stores are tried from this transfer size on; below, source and target stay in the
/// caches of any current CPU, and storing past them only loses.
const NON_TEMPORAL_MIN: Bytes = Bytes::mib(1);

/// What tuning moves at least for one timing, by several transfers where they are smaller.
const TUNING_MIN: Bytes = Bytes::mib(4);

/// What tuning moves at most for one timing: the beginning of a transfer that is larger.
const TUNING_MAX: Bytes = Bytes::mib(64);

/// Timings of one choice; the first is not counted.
const TUNING_SPANS: usize = 6;

/// Looks at a ring in vain between two looks at the clock and at the peer: about 1 ms.
const SPINS_PER_LOOK: u32 = 1 << 16;

/// The same where ranks share CPUs, and each yield may last a time slice.
const SPINS_PER_LOOK_SHARED: u32 = 1 << 10;

/// Looks at a ring in vain between two offers of the CPU, where ranks share CPUs: about 1 µs.
const SPINS_PER_YIELD: u32 = 64;

/// The transport.
#[derive(Debug)]
pub(super) struct Shm {
    topology: Topology,
}

impl Shm {
    pub(super) fn new(topology: Topology) -> Self {
        Self { topology }
    }
}

impl Transport for Shm {
    fn support(&self, case: &Case) -> Support {
        let ring = Layout::all(case).iter().map(Layout::segment_size).max().unwrap_or_default();
        let rings = ring.times(case.flows.len() as u64);
        let shared = match machine::free_shared_memory() {
            Ok(free) => free,
            Err(err) => return Support::No(format!("no shared memory here: {err}")),
        };
        if rings > shared {
            return Support::No(format!(
                "the slots need {rings} of /dev/shm but {shared} are free: enlarge it (in a \
                 container: --shm-size) or give a smaller --slot-size"
            ));
        }
        let buffers = case.bytes_per_operation().times(2);
        match machine::available_memory() {
            Some(available) if buffers > available => Support::No(format!(
                "sources and targets need {buffers} of memory but {available} are available"
            )),
            _ => Support::Yes,
        }
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        let mut transfer = ShmTransfer::new(case, world, &self.topology)?;
        transfer.tune(case, world)?;
        Ok(Box::new(transfer))
    }
}

/// How a ring is used: all that tuning chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    slot: Bytes,
    slots: u64,
    source_store: Store,
    target_store: Store,
}

impl Layout {
    fn of(slot: Bytes, source_store: Store, target_store: Store) -> Self {
        let fitting = |bytes: Bytes| bytes.get() / slot.get();
        let slots = if slot > RING_MIN {
            fitting(RING_MAX).clamp(2, 8)
        } else {
            fitting(RING_MIN).clamp(8, 1024)
        };
        Self { slot, slots, source_store, target_store }
    }

    /// All layouts that are worth trying for `case`; never empty.
    fn all(case: &Case) -> Vec<Self> {
        // A slot is a whole number of 64-byte lines and no larger than a transfer needs.
        let whole = Bytes::new(case.size.get().div_ceil(64).saturating_mul(64));
        let mut slots: Vec<Bytes> = match case.slot {
            Some(given) => vec![given.min(whole)],
            None => SLOT_CHOICES.into_iter().map(|slot| slot.min(whole)).collect(),
        };
        slots.dedup();
        let mut stores = vec![(Store::Cached, Store::Cached)];
        if NON_TEMPORAL && case.size >= NON_TEMPORAL_MIN {
            stores.push((Store::Cached, Store::NonTemporal));
            stores.push((Store::NonTemporal, Store::Cached));
        }
        let layouts = |&slot: &Bytes| {
            stores.iter().map(move |&(source, target)| Self::of(slot, source, target))
        };
        slots.iter().flat_map(layouts).collect()
    }

    fn segment_size(&self) -> Bytes {
        Bytes::new(self.slot.times(self.slots).get().saturating_add(SLOTS_AT as u64))
    }
}

/// This rank's part of a case.
struct ShmTransfer {
    rank: Rank,
    /// This rank's place in the control segment, if it has a part in the case.
    member: Option<usize>,
    /// One word for each member: the number of the last span it is ready for.
    control: Segment,
    /// The other members.
    peers: Vec<(Rank, Peer, usize)>,
    lanes: Vec<Lane>,
    layout: Layout,
    /// The number of the current span, from 1.
    turn: u64,
    sends: bool,
    receives: bool,
    wait: Wait,
    deadline: Duration,
    clock_resolution: Duration,
}

/// One end of one flow.
struct Lane {
    /// The flow's place in the case.
    flow: u64,
    side: Side,
    /// The rank at the other end.
    other: Rank,
    buffer: HostBuffer,
    /// Bytes of one operation; the whole buffer except while tuning.
    length: usize,
    ring: Segment,
    slot: usize,
    slots: u64,
    store: Store,
    /// Slots that this end has passed since the beginning.
    passed: u64,
    /// The other end's count of the same, as last seen.
    other_passed: u64,
    /// The next slot, below `slots`.
    place: u64,
    /// The next byte of the buffer.
    offset: usize,
    /// Operations of this span not yet done.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

/// What a rank tells the others so that they can open its segments.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    pid: u32,
    control: Option<Address>,
    /// The rings of the flows whose target is this rank, in the order of the flows.
    rings: Vec<Address>,
}

impl ShmTransfer {
    /// Places this rank, allocates its buffers and connects it with the others.
    fn new(case: &Case, world: &mut World, topology: &Topology) -> Result<Self, Error> {
        let rank = world.rank();
        if let Some(end) = case.endpoint(rank) {
            let cpus =
                end.cpu.map_or_else(|| topology.cpus(end.numa_node).to_vec(), |cpu| vec![cpu]);
            host::bind_thread(&cpus).map_err(|source| call("take a CPU of the case", source))?;
        }
        let ring_size =
            Layout::all(case).iter().map(Layout::segment_size).max().unwrap_or_default();
        let create = |size| Segment::create(size).map_err(|source| call("share memory", source));

        // The target makes the ring: its pages are placed by the one who allocates them.
        let mut own_rings = Vec::new();
        for _ in case.flows.iter().filter(|flow| flow.target.rank == rank) {
            own_rings.push(create(ring_size)?);
        }
        let members = members(case);
        let own_control = match world.is_root() {
            true => Some(create(Bytes::of_len(members.len() * LINE))?),
            false => None,
        };
        let offers = world.all_gather(Offer {
            pid: std::process::id(),
            control: own_control.as_ref().map(Segment::address),
            rings: own_rings.iter().map(Segment::address).collect(),
        })?;
        let open = |address: Option<Address>| {
            let address = address.ok_or(Error::Times("a rank offers no segment"))?;
            Segment::open(address).map_err(|source| call("open a rank's shared memory", source))
        };
        let control = match own_control {
            Some(control) => control,
            None => open(offers.first().and_then(|offer| offer.control))?,
        };

        let mut lanes = Vec::new();
        let mut own_rings = own_rings.into_iter();
        for (flow, ends) in (0..).zip(&case.flows) {
            for (end, side, other) in [
                (ends.source, Side::Source, ends.target.rank),
                (ends.target, Side::Target, ends.source.rank),
            ] {
                if end.rank != rank {
                    continue;
                }
                let ring = match side {
                    Side::Target => own_rings.next().ok_or(Error::Times("a ring is missing"))?,
                    Side::Source => open(ring_of(case, &offers, flow))?,
                };
                lanes.push(Lane::new(flow, side, other, case.size, ring)?);
            }
        }
        let peer = |(place, &other): (usize, &Rank)| {
            let pid = offers.get(other.0 as usize).map_or(0, |offer| offer.pid);
            (other, Peer::watch(pid), place)
        };
        let shared = case.flows.iter().any(|flow| flow.source.cpu.is_none());
        Ok(Self {
            rank,
            member: members.iter().position(|&member| member == rank),
            control,
            peers: members
                .iter()
                .enumerate()
                .filter(|&(_, &other)| other != rank)
                .map(peer)
                .collect(),
            sends: lanes.iter().any(|lane| lane.side == Side::Source),
            receives: lanes.iter().any(|lane| lane.side == Side::Target),
            lanes,
            layout: Layout::all(case)[0],
            turn: 0,
            wait: if shared { Wait::Yield } else { Wait::Spin },
            deadline: world.deadline(),
            clock_resolution: clock::resolution(),
        })
    }

    /// Tries every layout on the real buffers and keeps the one with the best median.
    fn tune(&mut self, case: &Case, world: &mut World) -> Result<(), Error> {
        let layouts = Layout::all(case);
        let operations = (TUNING_MIN.get() / case.size.get()).max(1);
        self.set_length(case.size.min(TUNING_MAX))?;
        let mut best: Option<(Duration, usize)> = None;
        if layouts.len() > 1 {
            for (index, &layout) in layouts.iter().enumerate() {
                self.arrange(layout)?;
                let mut spans = [Span::default(); TUNING_SPANS];
                self.run(operations, &mut spans)?;
                // The gathering also holds every rank until the rings are empty.
                if let Some(ranks) = world.gather(spans[1..].to_vec())? {
                    let mut times = durations(&ranks)?;
                    times.sort_unstable();
                    let median = times[times.len() / 2];
                    if best.is_none_or(|(time, _)| median < time) {
                        best = Some((median, index));
                    }
                }
                world.barrier()?;
            }
        }
        let root_choice = world.is_root().then(|| best.map_or(0, |(_, index)| index));
        let choice = world.broadcast(root_choice)?;
        self.set_length(case.size)?;
        self.arrange(layouts[choice.min(layouts.len() - 1)])
    }

    /// Moves only the first `size` bytes of each buffer from now on.
    fn set_length(&mut self, size: Bytes) -> Result<(), Error> {
        for lane in &mut self.lanes {
            lane.length = size.to_len().map_err(|_| Error::Times("a transfer is too large"))?;
        }
        Ok(())
    }

    /// Takes `layout` into use; every ring is empty, on every rank.
    fn arrange(&mut self, layout: Layout) -> Result<(), Error> {
        self.layout = layout;
        for lane in &mut self.lanes {
            lane.slot = layout.slot.to_len().map_err(|_| Error::Times("a slot is too large"))?;
            lane.slots = layout.slots;
            lane.place = 0;
            lane.store = match lane.side {
                Side::Source => layout.source_store,
                Side::Target => layout.target_store,
            };
        }
        Ok(())
    }

    fn staging_of(&self) -> Staging {
        let kind = |store| match store {
            Store::Cached => StoreKind::Cached,
            Store::NonTemporal => StoreKind::NonTemporal,
        };
        Staging {
            slot: self.layout.slot,
            slots: self.layout.slots,
            source_store: kind(self.layout.source_store),
            target_store: kind(self.layout.target_store),
            wait: self.wait,
        }
    }

    /// Returns when every member is ready for the current span.
    fn wait_until_all_ready(&self) -> Result<(), Error> {
        for (rank, peer, place) in &self.peers {
            let ready = self.control.word(place * LINE);
            let mut patience = Patience::new(self);
            while ready.load(Ordering::Acquire) < self.turn {
                patience.wait(|| (*rank, peer, "be ready"))?;
            }
        }
        Ok(())
    }

    /// Moves what all lanes have left.
    fn move_all(&mut self) -> Result<(), Error> {
        let mut patience = Patience::new(self);
        loop {
            let mut busy = None;
            let mut moved = false;
            for lane in self.lanes.iter_mut().filter(|lane| lane.left > 0) {
                if lane.step() {
                    moved = true;
                } else {
                    busy = Some(lane.other);
                }
            }
            if moved {
                patience.due = None;
            } else if let Some(other) = busy {
                patience.wait(|| self.whom(other))?;
            } else {
                return Ok(());
            }
        }
    }

    fn whom(&self, other: Rank) -> (Rank, &Peer, &'static str) {
        let peer = self.peers.iter().find(|(rank, ..)| *rank == other);
        let (_, peer, _) = peer.unwrap_or(&self.peers[0]);
        (other, peer, "fill or empty a slot")
    }
}

impl Transfer for ShmTransfer {
    fn staging(&self) -> Option<Staging> {
        Some(self.staging_of())
    }

    fn clock_resolution(&self) -> Duration {
        self.clock_resolution
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for lane in &mut self.lanes {
            let seed = pattern::part_seed(seed, lane.flow);
            match lane.side {
                Side::Source => pattern::fill(&mut lane.buffer, seed),
                Side::Target => pattern::poison(&mut lane.buffer, seed),
            }
        }
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        let Some(member) = self.member else { return Ok(()) };
        for span in spans {
            self.turn += 1;
            for lane in &mut self.lanes {
                lane.left = operations;
            }
            self.control.word(member * LINE).store(self.turn, Ordering::Release);
            if self.sends {
                self.wait_until_all_ready()?;
            }
            let start = clock::now();
            self.move_all()?;
            let end = clock::now();
            span.start_ns = self.sends.then_some(start.ns());
            span.end_ns = self.receives.then_some(end.ns());
        }
        Ok(())
    }

    fn verify(&self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let targets = self.lanes.iter().filter(|lane| lane.side == Side::Target);
        let mut mismatches = targets.filter_map(|lane| {
            pattern::compare(&lane.buffer, pattern::part_seed(seed, lane.flow), self.rank.0)
        });
        Ok(mismatches.next())
    }
}

impl Lane {
    fn new(flow: u64, side: Side, other: Rank, size: Bytes, ring: Segment) -> Result<Self, Error> {
        let buffer = HostBuffer::new(size).map_err(|source| call("allocate a buffer", source))?;
        Ok(Self {
            flow,
            side,
            other,
            length: buffer.len(),
            buffer,
            ring,
            slot: 0,
            slots: 0,
            store: Store::Cached,
            passed: 0,
            other_passed: 0,
            place: 0,
            offset: 0,
            left: 0,
        })
    }

    /// Copies one chunk if the ring lets it; whether it did.
    #[inline]
    fn step(&mut self) -> bool {
        let (head, tail) = (0, LINE);
        let (mine, theirs, in_reach) = match self.side {
            Side::Source => (head, tail, self.slots),
            Side::Target => (tail, head, 0),
        };
        // The source runs at most `slots` ahead of the target; the target at most 0 ahead of the
        // source. The other end's count is read again only when the last one seen is used up.
        // `>=`, since a ring that has just got fewer slots was further ahead of an old count.
        if self.passed >= self.other_passed + in_reach {
            self.other_passed = self.ring.word(theirs).load(Ordering::Acquire);
            if self.passed >= self.other_passed + in_reach {
                return false;
            }
        }
        let chunk = self.slot.min(self.length - self.offset);
        let bytes = self.offset..self.offset + chunk;
        // `place` < `slots` ≤ 1024 and `slot` fits in memory `slots` times over: see `arrange`.
        #[allow(clippy::cast_possible_truncation)]
        let at = SLOTS_AT + self.place as usize * self.slot;
        match self.side {
            Side::Source => self.ring.write(at, &self.buffer[bytes], self.store),
            Side::Target => self.ring.read(at, &mut self.buffer[bytes], self.store),
        }
        self.passed += 1;
        self.ring.word(mine).store(self.passed, Ordering::Release);
        self.place += 1;
        if self.place == self.slots {
            self.place = 0;
        }
        self.offset += chunk;
        if self.offset == self.length {
            self.offset = 0;
            self.left -= 1;
        }
        true
    }
}

/// How long an end goes on looking at a ring that does not change.
struct Patience {
    wait: Wait,
    spins: u32,
    spins_per_look: u32,
    limit: Duration,
    due: Option<clock::Moment>,
}

impl Patience {
    fn new(transfer: &ShmTransfer) -> Self {
        let spins_per_look = match transfer.wait {
            Wait::Spin => SPINS_PER_LOOK,
            Wait::Yield => SPINS_PER_LOOK_SHARED,
        };
        let limit = transfer.deadline;
        Self { wait: transfer.wait, spins: 0, spins_per_look, limit, due: None }
    }

    /// One look in vain. Now and then it looks at the clock, and whether the peer still lives.
    #[inline]
    fn wait<'a>(
        &mut self,
        whom: impl FnOnce() -> (Rank, &'a Peer, &'static str),
    ) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        std::hint::spin_loop();
        if self.wait == Wait::Yield && self.spins.is_multiple_of(SPINS_PER_YIELD) {
            std::thread::yield_now();
        }
        if !self.spins.is_multiple_of(self.spins_per_look) {
            return Ok(());
        }
        let (Rank(rank), peer, waiting_for) = whom();
        if peer.has_ended() {
            return Err(crate::world::Error::Gone(rank).into());
        }
        let now = clock::now();
        let due = *self.due.get_or_insert_with(|| now.after(self.limit));
        if now >= due {
            return Err(Error::Stalled { rank, waiting_for, waited: self.limit });
        }
        Ok(())
    }
}

/// The ranks with a part in `case`, each once, in ascending order.
fn members(case: &Case) -> Vec<Rank> {
    let mut ranks: Vec<Rank> =
        case.flows.iter().flat_map(|flow| [flow.source.rank, flow.target.rank]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The ring that the target of flow `flow` offers.
fn ring_of(case: &Case, offers: &[Offer], flow: u64) -> Option<Address> {
    let flow = usize::try_from(flow).ok()?;
    let target = case.flows.get(flow)?.target.rank;
    let place = case.flows[..flow].iter().filter(|flow| flow.target.rank == target).count();
    offers.get(target.0 as usize)?.rings.get(place).copied()
}

fn call(action: &str, source: ffi::CallError) -> Error {
    Error::Call { action: action.to_owned(), source }
}

#[cfg(test)]
mod tests;
