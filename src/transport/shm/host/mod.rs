//! Host memory to host memory between two processes, staged through shared memory.
//!
//! Each flow has a ring of slots in a segment of its own, which the target makes, so that it lies
//! on the target's NUMA node. The source copies a chunk into a slot and publishes it by counting
//! `head` up; the target copies it out and frees the slot by counting `tail` up. Both copy at the
//! same time. One thread serves all flows of its rank in turn, slot by slot.

mod layout;
mod ring_end;

use std::{collections::BTreeMap, time::Duration};

use layout::Layout;
use ring_end::RingEnd;

use crate::{
    ffi::{
        clock,
        host::{self, BoundThread},
        shm::{Address, Segment},
    },
    plan::{Case, Rank, topology::Topology},
    transport::{
        Clock, Error, Mismatch, Span, Staging, Support, Transfer, TryingTo, Wait,
        control::{self, Control},
        lack_of_memory, pattern,
        shm::{lack_of_slots, tune},
    },
    units::Bytes,
    world::World,
};

/// The least data for one timing of the tuning: smaller transfers are repeated.
const TUNING_MIN: Bytes = Bytes::mib(4);

/// The most data for one timing of the tuning: of larger transfers only the beginning.
const TUNING_MAX: Bytes = Bytes::mib(64);

/// Timings of one choice. The first does not count.
const TUNING_SPANS: usize = 6;

/// Whether there is enough memory for `case`.
pub(super) fn support(case: &Case) -> Support {
    let rings = ring_size(case).times(case.flows.len() as u64);
    let memory = case.bytes_per_operation().times(2).plus(rings);
    let lack = lack_of_slots(rings)
        .or_else(|| lack_of_memory("sources, targets and slots need", memory, ""));
    lack.map_or(Support::Yes, Support::No)
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
    wait: Wait,
    clock_resolution: Duration,
    /// Whether memory of any rank lies on another NUMA node than the case wants.
    is_misplaced: bool,
    /// On the CPUs of the case.
    _bound: Option<BoundThread>,
}

impl ShmTransfer {
    /// Places this rank, allocates its buffers and connects it with the others.
    fn new(case: &Case, world: &mut World, topology: &Topology) -> Result<Self, Error> {
        let rank = world.rank();
        let own_node = case.endpoint(rank).and_then(|end| end.numa_node());
        let bound = case.endpoint(rank).zip(own_node).map(|(end, node)| {
            let cpus = end.cpu().map_or_else(|| topology.cpus(node).to_vec(), |cpu| vec![cpu]);
            host::bind_thread(&cpus)
        });
        let bound = bound.transpose().trying_to("take a CPU of the case")?;
        let size = ring_size(case);
        // The target creates the ring, because pages lie on the NUMA node of the thread that
        // allocates them.
        let mut own_rings = BTreeMap::new();
        for (flow, _) in (0..).zip(&case.flows).filter(|(_, flow)| flow.target.rank == rank) {
            own_rings.insert(flow, Segment::create(size).trying_to("share memory")?);
        }
        let shared = case.flows.iter().any(|flow| flow.source.cpu().is_none());
        let wait = if shared { Wait::Yield } else { Wait::Spin };
        let control = Control::new(case, world, wait)?;
        let addresses = own_rings.iter().map(|(flow, ring)| (*flow, ring.address()));
        let addresses: BTreeMap<u64, Address> = addresses.collect();
        let offers = world.exchange_among(addresses, &case.members())?;

        let mut ring_ends = Vec::new();
        for (flow, ends) in (0..).zip(&case.flows) {
            let (source, target) = (ends.source.rank, ends.target.rank);
            if source == rank {
                let ring = offers.get(&target).and_then(|rings| rings.get(&flow));
                let ring = control::open(ring.copied())?;
                ring_ends.push(RingEnd::new(flow, true, target, case.size, ring)?);
            }
            if let Some(ring) = own_rings.remove(&flow) {
                ring_ends.push(RingEnd::new(flow, false, source, case.size, ring)?);
            }
        }
        let is_misplaced =
            ring_ends.iter().any(|ring_end| own_node.is_some_and(|node| ring_end.is_off(node.0)));
        // Every rank learns here if another one could not prepare its part.
        let is_misplaced = world.agree(is_misplaced, |all| all.contains(&true))?;
        Ok(Self {
            rank,
            control,
            ring_ends,
            layout: Layout::all(case)[0],
            wait,
            clock_resolution: clock::resolution(),
            is_misplaced,
            _bound: bound,
        })
    }

    /// Tries every layout on the real buffers and keeps the one with the best median.
    fn tune(&mut self, case: &Case, world: &mut World) -> Result<(), Error> {
        let layouts = Layout::all(case);
        let operations = (TUNING_MIN.get() / case.size.get()).max(1);
        self.set_length(case.size.min(TUNING_MAX));
        let best = tune(layouts.len(), TUNING_SPANS, world, |choice, spans| {
            self.arrange(layouts[choice]);
            self.run(operations, spans)
        })?;
        self.set_length(case.size);
        self.arrange(layouts[best]);
        Ok(())
    }

    /// Moves only the first `size` bytes of each buffer from now on.
    fn set_length(&mut self, size: Bytes) {
        for ring_end in &mut self.ring_ends {
            ring_end.length = size.to_len().unwrap_or(usize::MAX).min(ring_end.buffer.len());
        }
    }

    /// Takes `layout` into use; every ring is empty, on every rank.
    fn arrange(&mut self, layout: Layout) {
        self.layout = layout;
        for ring_end in &mut self.ring_ends {
            ring_end.slot = layout.slot.to_len().unwrap_or(usize::MAX);
            ring_end.slots = layout.slots;
            ring_end.place = 0;
            ring_end.store =
                if ring_end.is_source { layout.source_store } else { layout.target_store };
        }
    }

    /// Moves the remaining data of all flows.
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
        let sends = self.ring_ends.iter().any(|ring_end| ring_end.is_source);
        let receives = self.ring_ends.iter().any(|ring_end| !ring_end.is_source);
        for span in spans {
            for ring_end in &mut self.ring_ends {
                ring_end.left = operations;
            }
            self.control.step();
            if sends {
                self.control.wait_for_all("be ready")?;
            }
            let start = clock::now();
            self.move_all()?;
            let end = clock::now();
            span.start_ns = sends.then_some(start.ns());
            span.end_ns = receives.then_some(end.ns());
        }
        Ok(())
    }
}

impl Transfer for ShmTransfer {
    fn staging(&self) -> Option<Staging> {
        Some(Staging {
            slot: self.layout.slot,
            slots: self.layout.slots,
            source_store: Some(self.layout.source_store),
            target_store: Some(self.layout.target_store),
            wait: Some(self.wait),
        })
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
            match ring_end.is_source {
                true => pattern::fill(&mut ring_end.buffer, seed),
                false => pattern::poison(&mut ring_end.buffer, seed),
            }
        }
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if !self.control.is_member() {
            return Ok(());
        }
        self.run_as_member(operations, spans).inspect_err(|_| self.control.give_up())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let targets = self.ring_ends.iter().filter(|ring_end| !ring_end.is_source);
        let mut mismatches = targets.filter_map(|ring_end| {
            pattern::compare(&ring_end.buffer, pattern::part_seed(seed, ring_end.flow), self.rank.0)
        });
        Ok(mismatches.next())
    }
}

/// The size of a ring that holds every layout.
fn ring_size(case: &Case) -> Bytes {
    Layout::all(case).iter().map(Layout::segment_size).max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
