//! From one end to another through host memory that both reach: by CPUs between two processes,
//! and by two GPUs.

mod host;
mod staged;

use super::{Error, Span, Support, Transfer, Transport, durations, gpu::Gpus};
use crate::{
    machine,
    plan::{Case, Engine, topology::Topology},
    units::Bytes,
    world::World,
};

/// The transport.
#[derive(Debug)]
pub(super) struct Shm {
    topology: Topology,
    /// The GPUs, or why there are none.
    gpus: Result<Gpus, String>,
}

impl Shm {
    pub(super) fn new(topology: &Topology) -> Self {
        Self { topology: topology.clone(), gpus: Gpus::new(topology) }
    }
}

impl Transport for Shm {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        match (case.engine, &self.gpus) {
            (Engine::Cpu, _) => Ok(host::support(case)),
            (Engine::Ce | Engine::Sm | Engine::Nic, Ok(gpus)) => staged::support(case, world, gpus),
            (Engine::Ce | Engine::Sm | Engine::Nic, Err(reason)) => Ok(Support::No(reason.clone())),
        }
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        match (case.engine, &self.gpus) {
            (Engine::Cpu, _) => host::prepare(case, world, &self.topology),
            (Engine::Ce | Engine::Sm | Engine::Nic, Ok(gpus)) => staged::prepare(case, world, gpus),
            (Engine::Ce | Engine::Sm | Engine::Nic, Err(reason)) => {
                Err(Error::Unavailable(reason.clone()))
            }
        }
    }

    fn gpus(&self) -> Option<&Gpus> {
        self.gpus.as_ref().ok()
    }
}

/// The slot sizes worth trying for `case`: the given one, or each of `choices`. Never empty.
fn slot_sizes(case: &Case, choices: &[Bytes]) -> Vec<Bytes> {
    // A slot is a whole number of 64-byte lines and no larger than a transfer needs.
    let whole = Bytes::new(case.size.get().div_ceil(64).saturating_mul(64));
    let mut slots: Vec<Bytes> = match case.slot {
        Some(given) => vec![given.min(whole)],
        None => choices.iter().map(|slot| (*slot).min(whole)).collect(),
    };
    slots.dedup();
    slots
}

/// Why `rings` of slots do not fit into shared memory, if so.
fn lack_of_slots(rings: Bytes) -> Option<String> {
    let reason = machine::lack_of_shared_memory("the slots need", rings)?;
    Some(format!("{reason} or give a smaller --slot-size"))
}

/// Times each of `count` choices and returns the number of the one with the best median. Every rank
/// calls it. `time` takes this rank's `spans` spans of one choice; the first is a warm-up.
fn tune(
    count: usize,
    spans: usize,
    world: &mut World,
    mut time: impl FnMut(usize, &mut [Span]) -> Result<(), Error>,
) -> Result<usize, Error> {
    if count < 2 {
        return Ok(0);
    }
    let mut medians = Vec::new();
    for choice in 0..count {
        let mut spans = vec![Span::default(); spans];
        time(choice, &mut spans)?;
        // Gathering also makes every rank wait until the rings are empty.
        if let Some(ranks) = world.gather(spans[1..].to_vec())? {
            let mut times = durations(&ranks)?;
            times.sort_unstable();
            medians.push((times[times.len() / 2], choice));
        }
        world.barrier()?;
    }
    let best = medians.into_iter().min().map(|(_, choice)| choice);
    Ok(world.broadcast(best)?)
}
