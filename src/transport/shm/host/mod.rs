//! Host memory to host memory between two processes, staged through shared memory.
//!
//! Each flow has a ring of slots in a segment of its own, which the target makes, so that it lies
//! on the target's NUMA node. The source copies a chunk into a slot and publishes it by counting
//! `head` up; the target copies it out and frees the slot by counting `tail` up. Both copy at the
//! same time. One thread serves all flows of its rank in turn, slot by slot.

mod layout;
mod ring_end;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use layout::Layout;
use ring_end::{RingEnd, Side};

use crate::{
    ffi::{
        clock, host,
        shm::{Address, Segment, Store},
    },
    machine,
    plan::{Case, Rank, topology::Topology},
    transport::{
        Clock, Error, Mismatch, Span, Staging, StoreKind, Support, Transfer, Wait,
        control::{self, Control},
        pattern,
        shm::tune,
    },
    units::Bytes,
    world::World,
};

/// What tuning moves at least for one timing, by several transfers where they are smaller.
const TUNING_MIN: Bytes = Bytes::mib(4);

/// What tuning moves at most for one timing: the beginning of a transfer that is larger.
const TUNING_MAX: Bytes = Bytes::mib(64);

/// Timings of one choice; the first is not counted.
const TUNING_SPANS: usize = 6;

/// Whether memory for `case` is here.
pub(super) fn support(case: &Case) -> Support {
    let ring = Layout::all(case).iter().map(Layout::segment_size).max().unwrap_or_default();
    let rings = ring.times(case.flows.len() as u64);
    if let Some(reason) = machine::lack_of_shared_memory("the slots need", rings) {
        return Support::No(format!("{reason} or give a smaller --slot-size"));
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

/// Acquires this rank's part of `case`.
pub(super) fn prepare(
    case: &Case,
    world: &mut World,
    topology: &Topology,
) -> Result<Box<dyn Transfer>, Error> {
    let mut transfer = ShmTransfer::new(case, world, topology)?;
    transfer.tune(case, world)?;
    Ok(Box::new(transfer))
}

/// This rank's part of a case.
struct ShmTransfer {
    rank: Rank,
    control: Control,
    ring_ends: Vec<RingEnd>,
    layout: Layout,
    sends: bool,
    receives: bool,
    wait: Wait,
    clock_resolution: Duration,
    /// Whether memory of any rank lies on another NUMA node than the case wants.
    is_misplaced: bool,
}

/// What a rank tells the others so that they can open its segments.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    /// The rings of the flows whose target is this rank, in the order of the flows.
    rings: Vec<Address>,
}

impl ShmTransfer {
    /// Places this rank, allocates its buffers and connects it with the others.
    fn new(case: &Case, world: &mut World, topology: &Topology) -> Result<Self, Error> {
        let rank = world.rank();
        let own_node = case.endpoint(rank).and_then(|end| end.numa_node());
        if let (Some(end), Some(node)) = (case.endpoint(rank), own_node) {
            let cpus = end.cpu().map_or_else(|| topology.cpus(node).to_vec(), |cpu| vec![cpu]);
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
        let shared = case.flows.iter().any(|flow| flow.source.cpu().is_none());
        let wait = if shared { Wait::Yield } else { Wait::Spin };
        let control = Control::new(case, world, wait)?;
        let own = Offer { rings: own_rings.iter().map(Segment::address).collect() };
        let offers = world.exchange_among(own, &case.members())?;

        let mut ring_ends = Vec::new();
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
                    Side::Source => control::open(ring_of(case, &offers, flow))?,
                };
                ring_ends.push(RingEnd::new(flow, side, other, case.size, ring)?);
            }
        }
        let is_misplaced =
            ring_ends.iter().any(|ring_end| own_node.is_some_and(|node| ring_end.is_off(node.0)));
        // Every rank hears here of one that could not get its part.
        let is_misplaced = world.agree(is_misplaced, |all| all.contains(&true))?;
        Ok(Self {
            rank,
            control,
            sends: ring_ends.iter().any(|ring_end| ring_end.side == Side::Source),
            receives: ring_ends.iter().any(|ring_end| ring_end.side == Side::Target),
            ring_ends,
            layout: Layout::all(case)[0],
            wait,
            clock_resolution: clock::resolution(),
            is_misplaced,
        })
    }

    /// Tries every layout on the real buffers and keeps the one with the best median.
    fn tune(&mut self, case: &Case, world: &mut World) -> Result<(), Error> {
        let layouts = Layout::all(case);
        let operations = (TUNING_MIN.get() / case.size.get()).max(1);
        self.set_length(case.size.min(TUNING_MAX))?;
        let best = tune(layouts.len(), world, |choice| {
            self.arrange(layouts[choice])?;
            let mut spans = vec![Span::default(); TUNING_SPANS];
            self.run(operations, &mut spans)?;
            Ok(spans)
        })?;
        self.set_length(case.size)?;
        self.arrange(layouts[best])
    }

    /// Moves only the first `size` bytes of each buffer from now on.
    fn set_length(&mut self, size: Bytes) -> Result<(), Error> {
        for ring_end in &mut self.ring_ends {
            ring_end.length =
                size.to_len().map_err(|_| Error::Disagreement("a transfer is too large"))?;
        }
        Ok(())
    }

    /// Takes `layout` into use; every ring is empty, on every rank.
    fn arrange(&mut self, layout: Layout) -> Result<(), Error> {
        self.layout = layout;
        for ring_end in &mut self.ring_ends {
            ring_end.slot =
                layout.slot.to_len().map_err(|_| Error::Disagreement("a slot is too large"))?;
            ring_end.slots = layout.slots;
            ring_end.place = 0;
            ring_end.store = match ring_end.side {
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
            source_store: Some(kind(self.layout.source_store)),
            target_store: Some(kind(self.layout.target_store)),
            wait: Some(self.wait),
        }
    }

    /// Moves what is left of all flows.
    fn move_all(&mut self) -> Result<(), Error> {
        let mut patience = self.control.patience();
        loop {
            let mut busy = None;
            let mut moved = false;
            for ring_end in self.ring_ends.iter_mut().filter(|ring_end| ring_end.left > 0) {
                if ring_end.step() {
                    moved = true;
                } else {
                    busy = Some(ring_end.other);
                }
            }
            if moved {
                patience.renew();
            } else if let Some(other) = busy {
                self.control.look(&mut patience, other, "fill or empty a slot")?;
            } else {
                return Ok(());
            }
        }
    }

    fn run_as_member(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        for span in spans {
            for ring_end in &mut self.ring_ends {
                ring_end.left = operations;
            }
            self.control.step();
            if self.sends {
                self.control.wait_for_all("be ready")?;
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

    fn clock(&self) -> Clock {
        Clock::of_host(self.clock_resolution)
    }

    fn is_misplaced(&self) -> bool {
        self.is_misplaced
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for ring_end in &mut self.ring_ends {
            let seed = pattern::part_seed(seed, ring_end.flow);
            match ring_end.side {
                Side::Source => pattern::fill(&mut ring_end.buffer, seed),
                Side::Target => pattern::poison(&mut ring_end.buffer, seed),
            }
        }
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if !self.control.is_member() {
            return Ok(());
        }
        let result = self.run_as_member(operations, spans);
        if result.is_err() {
            self.control.give_up();
        }
        result
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let targets = self.ring_ends.iter().filter(|ring_end| ring_end.side == Side::Target);
        let mut mismatches = targets.filter_map(|ring_end| {
            pattern::compare(&ring_end.buffer, pattern::part_seed(seed, ring_end.flow), self.rank.0)
        });
        Ok(mismatches.next())
    }
}

/// The ring that the target of flow `flow` offers.
fn ring_of(case: &Case, offers: &BTreeMap<Rank, Offer>, flow: u64) -> Option<Address> {
    let flow = usize::try_from(flow).ok()?;
    let target = case.flows.get(flow)?.target.rank;
    let place = case.flows[..flow].iter().filter(|flow| flow.target.rank == target).count();
    offers.get(&target)?.rings.get(place).copied()
}

#[cfg(test)]
mod tests;
