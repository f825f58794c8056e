//! Host memory to host memory between two processes, staged through shared memory.
//!
//! Each flow has a ring of slots in a segment of its own, which the target makes, so that it lies
//! on the target's NUMA node. The source copies a chunk into a slot and publishes it by counting
//! `head` up; the target copies it out and frees the slot by counting `tail` up. Both copy at the
//! same time. One thread serves all flows of its rank in turn, slot by slot.

mod lane;
mod layout;
mod patience;

use std::{sync::atomic::Ordering, time::Duration};

use serde::{Deserialize, Serialize};

use lane::{LINE, Lane, Side};
use layout::Layout;
use patience::Patience;

use super::{
    Error, Mismatch, Span, Staging, StoreKind, Support, Transfer, Transport, Wait, durations,
    machine, pattern,
};
use crate::{
    ffi::{
        clock, host,
        process::Peer,
        shm::{Address, Segment, Store},
    },
    plan::{Case, Rank, topology::Topology},
    units::Bytes,
    world::World,
};

/// What tuning moves at least for one timing, by several transfers where they are smaller.
const TUNING_MIN: Bytes = Bytes::mib(4);

/// What tuning moves at most for one timing: the beginning of a transfer that is larger.
const TUNING_MAX: Bytes = Bytes::mib(64);

/// Timings of one choice; the first is not counted.
const TUNING_SPANS: usize = 6;

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
                "the slots need {} of /dev/shm but {} are free: enlarge it (in a container: \
                 --shm-size) or give a smaller --slot-size",
                rings.rounded(),
                shared.rounded()
            ));
        }
        let memory = case.bytes_per_operation().times(2).plus(rings);
        match machine::available_memory() {
            Some(available) if memory > available => Support::No(format!(
                "sources, targets and slots need {} of memory but {} are available",
                memory.rounded(),
                available.rounded()
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

/// This rank's part of a case.
struct ShmTransfer {
    rank: Rank,
    /// This rank's place in the control segment, if it has a part in the case.
    member: Option<usize>,
    /// A line for each member: the number of the last span it is ready for, and behind it
    /// ([`GAVE_UP`]) whether it gave up.
    control: Segment,
    /// The other members.
    peers: Vec<Member>,
    lanes: Vec<Lane>,
    layout: Layout,
    /// The number of the current span, from 1.
    turn: u64,
    sends: bool,
    receives: bool,
    wait: Wait,
    deadline: Duration,
    clock_resolution: Duration,
    /// Whether memory of any rank lies on another NUMA node than the case wants.
    is_misplaced: bool,
}

/// Another rank with a part in the case.
struct Member {
    rank: Rank,
    process: Peer,
    /// Where its line begins in the control segment.
    line: usize,
}

/// Where in its line a member says that it gave up.
const GAVE_UP: usize = 8;

/// What opening another rank's segment is called in a message, with what usually stands against it.
const OPEN: &str = "open a rank's shared memory (all ranks need one user and one PID namespace, \
                    and g2g's file must be readable)";

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
            host::bind_thread(&cpus)
                .map_err(|source| Error::call("take a CPU of the case", source))?;
        }
        let ring_size =
            Layout::all(case).iter().map(Layout::segment_size).max().unwrap_or_default();
        let create =
            |size| Segment::create(size).map_err(|source| Error::call("share memory", source));

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
            let address = address.ok_or(Error::Disagreement("a rank offers no segment"))?;
            Segment::open(address).map_err(|source| Error::call(OPEN, source))
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
                    Side::Target => {
                        own_rings.next().ok_or(Error::Disagreement("a ring is missing"))?
                    }
                    Side::Source => open(ring_of(case, &offers, flow))?,
                };
                lanes.push(Lane::new(flow, side, other, case.size, ring)?);
            }
        }
        let member = |(place, &other): (usize, &Rank)| Member {
            rank: other,
            process: Peer::watch(offers.get(other.0 as usize).map_or(0, |offer| offer.pid)),
            line: place * LINE,
        };
        let others = members.iter().enumerate().filter(|&(_, &other)| other != rank);
        let shared = case.flows.iter().any(|flow| flow.source.cpu.is_none());
        let own_node = case.endpoint(rank).map(|end| end.numa_node.0);
        let is_misplaced = lanes.iter().any(|lane| own_node.is_some_and(|node| lane.is_off(node)));
        // Every rank hears here of one that could not get its part.
        let is_misplaced = world.all_gather(is_misplaced)?.contains(&true);
        Ok(Self {
            rank,
            member: members.iter().position(|&member| member == rank),
            control,
            peers: others.map(member).collect(),
            sends: lanes.iter().any(|lane| lane.side == Side::Source),
            receives: lanes.iter().any(|lane| lane.side == Side::Target),
            lanes,
            layout: Layout::all(case)[0],
            turn: 0,
            wait: if shared { Wait::Yield } else { Wait::Spin },
            deadline: world.deadline(),
            clock_resolution: clock::resolution(),
            is_misplaced,
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
            lane.length =
                size.to_len().map_err(|_| Error::Disagreement("a transfer is too large"))?;
        }
        Ok(())
    }

    /// Takes `layout` into use; every ring is empty, on every rank.
    fn arrange(&mut self, layout: Layout) -> Result<(), Error> {
        self.layout = layout;
        for lane in &mut self.lanes {
            lane.slot =
                layout.slot.to_len().map_err(|_| Error::Disagreement("a slot is too large"))?;
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
            is_misplaced: self.is_misplaced,
        }
    }

    /// Returns when every member is ready for the current span.
    fn wait_until_all_ready(&self) -> Result<(), Error> {
        for member in &self.peers {
            let ready = self.control.word(member.line);
            // A quarter longer than a rank in the middle of a flow waits: if that one has the
            // trouble, it knows the culprit, and gives up first.
            let mut patience = Patience::new(self.wait, self.deadline + self.deadline / 4);
            while ready.load(Ordering::Acquire) < self.turn {
                self.look(&mut patience, member.rank, "be ready")?;
            }
        }
        Ok(())
    }

    /// Moves what all lanes have left.
    fn move_all(&mut self) -> Result<(), Error> {
        let mut patience = Patience::new(self.wait, self.deadline);
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
                patience.renew();
            } else if let Some(other) = busy {
                self.look(&mut patience, other, "fill or empty a slot")?;
            } else {
                return Ok(());
            }
        }
    }

    /// One look in vain at what `rank` is to do. Now and then it looks at the clock, and whether
    /// all members still live and go on.
    #[inline]
    fn look(
        &self,
        patience: &mut Patience,
        rank: Rank,
        waiting_for: &'static str,
    ) -> Result<(), Error> {
        if !patience.spin() {
            return Ok(());
        }
        for member in &self.peers {
            if member.process.has_ended() {
                return Err(crate::world::Error::Gone(member.rank.0).into());
            }
            if self.control.word(member.line + GAVE_UP).load(Ordering::Acquire) != 0 {
                return Err(Error::Abandoned(member.rank.0));
            }
        }
        match patience.is_over() {
            Some(waited) => Err(Error::Stalled { rank: rank.0, waiting_for, waited }),
            None => Ok(()),
        }
    }

    fn run_as(&mut self, member: usize, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
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
        let result = self.run_as(member, operations, spans);
        if result.is_err() {
            self.control.word(member * LINE + GAVE_UP).store(1, Ordering::Release);
        }
        result
    }

    fn verify(&self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let targets = self.lanes.iter().filter(|lane| lane.side == Side::Target);
        let mut mismatches = targets.filter_map(|lane| {
            pattern::compare(&lane.buffer, pattern::part_seed(seed, lane.flow), self.rank.0)
        });
        Ok(mismatches.next())
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

#[cfg(test)]
mod tests;
