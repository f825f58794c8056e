//! Following pointers through a GPU's memory: how long one dependent load lasts.

use std::{rc::Rc, time::Duration};

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::{
    Gpus, PATIENCE, Ready, Side,
    endpoints::{Endpoints, FlowBuffer},
};
use crate::{
    ffi::{
        CallError,
        cuda::{self, Chase, HostMemory, Memory},
    },
    plan::{Case, Rank},
    transport::{Clock, Conclusion, Error, Mismatch, Span, Transfer, TryingTo, pattern},
    units::Bytes,
    world::World,
};

/// Distance between pointers: no two in one line of 128 bytes, the largest line that a GPU fetches.
const LINE: usize = 128;
const STRIDE: u64 = LINE as u64;

/// Loads of one launch.
const LOADS_MAX: usize = 2048;

/// A cycle of a GPU's clock, the grain of the time of a load, is about half of it.
const RESOLUTION: Duration = Duration::from_nanos(1);

/// This rank's part of a case.
#[derive(Debug)]
pub(super) struct Pointers {
    rank: Rank,
    /// The list on its way into the source.
    list: Option<HostMemory>,
    /// Dropped before the endpoints, as the streams of copies are.
    reader: Option<Reader>,
    endpoints: Endpoints,
}

/// The GPU that follows the list.
#[derive(Debug)]
struct Reader {
    ready: Rc<Ready>,
    source: FlowBuffer,
    cycles: cuda::Buffer,
    /// What the kernel has written, for the host.
    copied: HostMemory,
    /// Where the list leads from each of its places.
    next: Vec<u64>,
    /// The offset from which it goes on.
    offset: u64,
    /// Where it must be by now.
    expected: u64,
}

impl Pointers {
    /// Acquires this rank's part of `case`; every rank calls it.
    pub(super) fn new(case: &Case, world: &mut World, gpus: &Gpus) -> Result<Self, Error> {
        let rank = world.rank();
        let endpoints = Endpoints::new(case, world, gpus)?;
        let list = match endpoints.buffers.is_empty() {
            true => None,
            false => {
                let list = HostMemory::new(&gpus.any()?.context, case.size);
                Some(list.trying_to("allocate a list")?)
            }
        };
        let executor = case.flows[0].executor(case.issuer);
        let reader = match executor.gpu().filter(|_| executor.rank == rank) {
            Some(gpu) => {
                let source = endpoints.reach(case, 0, Side::Source, gpus)?;
                let reader = Reader::new(gpus.ready(gpu)?, source, case.size);
                Some(reader.trying_to("prepare a chase")?)
            }
            None => None,
        };
        let mut pointers = Self { rank, endpoints, list, reader };
        // The warm-up follows a list too.
        pointers.fill(0)?;
        // Every rank learns here if another one could not prepare its part.
        world.barrier()?;
        Ok(pointers)
    }

    /// Follows the list, once all ranks have written theirs.
    fn follow(&mut self, spans: &mut [Span]) -> Result<(), Error> {
        self.endpoints.meet("write its list")?;
        if let Some(reader) = &mut self.reader {
            for spans in spans.chunks_mut(LOADS_MAX) {
                reader.follow(&self.endpoints, spans).trying_to("chase")?;
            }
        }
        self.endpoints.meet("follow the list")
    }
}

impl Reader {
    fn new(ready: Rc<Ready>, source: FlowBuffer, size: Bytes) -> Result<Self, CallError> {
        let words = Bytes::of_len(4 * LOADS_MAX);
        Ok(Self {
            cycles: cuda::Buffer::new(&ready.context, words)?,
            copied: HostMemory::new(&ready.context, words)?,
            ready,
            source,
            next: vec![0; place(size.get())],
            offset: 0,
            expected: 0,
        })
    }

    /// Follows the list for as many loads as there are spans.
    fn follow(&mut self, endpoints: &Endpoints, spans: &mut [Span]) -> Result<(), CallError> {
        let words = Bytes::of_len(4 * spans.len());
        let cycles = self.cycles.slice(Bytes::default(), words);
        let [offset, all_cycles, all_ns] = self.ready.ask([0; 3], |kernels, stream, result| {
            let list = self.source.all(endpoints);
            // Wrong data leads anywhere; what follows it begins inside all the same.
            let offset = Bytes::new(self.offset % list.size().get() / STRIDE * STRIDE);
            kernels.chase(stream, Chase { list, offset, cycles, result })?;
            stream.copy(self.copied.slice(Bytes::default(), words), cycles)
        })?;
        self.offset = offset;
        for _ in &*spans {
            self.expected = self.next[place(self.expected)];
        }
        // The clock that counts cycles is fine but of an unknown rate, the one that counts
        // nanoseconds is coarse: over the whole launch they tell how long a cycle is.
        let ns_per_cycle = all_ns as f64 / all_cycles.max(1) as f64;
        let (copied, _) = self.copied.bytes(PATIENCE)?.as_chunks::<4>();
        for (span, cycles) in spans.iter_mut().zip(copied) {
            let ns = f64::from(u32::from_ne_bytes(*cycles)) * ns_per_cycle;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
            let ns = ns.round() as u64;
            *span = Span::lasting(Duration::from_nanos(ns));
        }
        Ok(())
    }
}

impl Transfer for Pointers {
    fn clock(&self) -> Clock {
        let sample_time_min = Duration::ZERO;
        Clock { sample_time_min, operations_max: 1, ..Clock::of_host(RESOLUTION) }
    }

    fn is_misplaced(&self) -> bool {
        self.endpoints.is_misplaced
    }

    fn is_apart(&self) -> bool {
        self.endpoints.is_apart
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        if let (Some(list), Some(buffer)) = (&mut self.list, self.endpoints.buffers.first_mut()) {
            let bytes = list.bytes(PATIENCE).trying_to("write a list")?;
            let next = links(seed, bytes.len() as u64);
            for (line, next) in bytes.chunks_exact_mut(LINE).zip(next) {
                line[..8].copy_from_slice(&next.to_le_bytes());
            }
            buffer.store(list).trying_to("write a list")?;
        }
        if let Some(reader) = &mut self.reader {
            let size = reader.next.len() as u64 * STRIDE;
            reader.next = links(seed, size);
            (reader.offset, reader.expected) = (0, 0);
        }
        Ok(())
    }

    fn conclude(&mut self, world: &mut World) -> Result<Conclusion, Error> {
        if self.endpoints.is_apart {
            self.reader = None;
            world.barrier()?;
        }
        Ok(Conclusion::default())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        debug_assert_eq!(operations, 1, "a load is timed by itself");
        if !self.endpoints.is_member {
            return Ok(());
        }
        self.follow(spans).inspect_err(|_| self.endpoints.give_up())
    }

    fn verify(&mut self, _: u64) -> Result<Option<Mismatch>, Error> {
        let Some(Reader { offset, expected, .. }) = self.reader else { return Ok(None) };
        Ok(pattern::compare_words(offset, expected, self.rank.0))
    }
}

/// The place in a list of what lies at `offset`.
fn place(offset: u64) -> usize {
    usize::try_from(offset / STRIDE).unwrap_or(usize::MAX)
}

/// Where a list leads from each of its places: one round through all of them, in an order that
/// depends on the seed and that no prefetcher foresees.
fn links(seed: u64, size: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (1..size / STRIDE).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    let mut next = vec![0; order.len() + 1];
    let mut here = 0;
    for there in order {
        next[place(here * STRIDE)] = there * STRIDE;
        here = there;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_round_through_all_places_in_an_order_of_its_seed() {
        let next = links(7, 2 << 20);
        assert_eq!(next.len(), 16_384);
        let mut seen = vec![false; next.len()];
        let mut offset = 0;
        for _ in 0..next.len() {
            assert!(!std::mem::replace(&mut seen[place(offset)], true));
            offset = next[place(offset)];
        }
        assert_eq!(offset, 0);
        assert_ne!(links(8, 2 << 20), next);
        assert_eq!(links(8, STRIDE), [0]);
    }
}
