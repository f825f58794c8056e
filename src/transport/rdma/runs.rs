//! Starts and ends the runs of a rank's part, and fills and verifies its memory.

use std::time::Duration;

use super::{
    channel::{Count, Memories, Target},
    signal::Signal,
    stage::{Chunks, Stage},
    transfer::{POLLS, Streams},
};
use crate::{
    ffi::{clock, watchdog::Watchdog},
    plan::Rank,
    transport::{
        Clock, Conclusion, Error, Mismatch, Span, Staging, Transfer, TryingTo, first_mismatch,
        patience::Patience,
    },
    units::Bytes,
    world::World,
};

/// How long a rank that gives up tries to tell its partners.
const FAREWELL: Duration = Duration::from_millis(100);

impl Streams {
    /// Waits until every rank of the case is here.
    fn meet_all(&mut self) -> Result<(), Error> {
        let mut patience = Patience::new(self.wait, self.deadline);
        self.barrier.begin();
        while !(self.meet() && self.outbox.is_empty() && self.signals_under_way == 0) {
            let moved = self.poll(POLLS)? | self.signal()?;
            self.wait_for(&mut patience, moved, "be ready", Self::late)?;
        }
        Ok(())
    }

    /// The rank that has not come to the barrier, or does not take the word that this one has; where
    /// neither is known, the first partner.
    pub(super) fn late(&self) -> Rank {
        let first = || self.ways.first().map(|(rank, _)| *rank);
        let silent = self.barrier.missing().or_else(|| self.outbox.first()).or_else(first);
        silent.unwrap_or(self.rank)
    }

    fn run_with(
        &mut self,
        flows: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.ports.is_empty() {
            return Ok(());
        }
        for channel in &mut self.channels {
            channel.count = Count::default();
            channel.memories.target.iter_mut().for_each(Target::forget);
            channel.memories.stage.iter_mut().for_each(Stage::forget);
        }
        self.inbox.iter_mut().for_each(|inbox| inbox.target.forget());
        let sentence = format!(
            "rank {}: a call of libfabric has not come back within {} s",
            self.rank.0,
            self.deadline.as_secs_f64()
        );
        self.standing = None;
        // A provider can wait for a rank that has died with its lock.
        let watchdog = Watchdog::start(self.deadline, sentence).trying_to("watch over the run");
        let watched = watchdog.map(|watchdog| self.watchdog = Some(watchdog));
        let result = watched.and_then(|()| self.meet_all()).and_then(|()| flows(self));
        if result.is_err() {
            self.give_up();
            // Operations are under way to a rank that is out of reach. libfabric 1.17's ofi_rxm
            // crashes where such an endpoint is closed; it stays open until the process ends.
            std::mem::forget(std::mem::take(&mut self.ports));
        }
        self.watchdog = None;
        for channel in self.channels.iter().filter(|channel| channel.initiates) {
            let whole = Chunks::new(self.size, self.size, 1);
            let chunks = channel.memories.stage.as_ref().map_or(whole, |stage| stage.chunks);
            self.moved = self.moved.plus(chunks.total(channel.count.completed));
        }
        result
    }

    /// Tells all partners that this rank gives up; its own error says why. The partners give up
    /// too, so all ranks of the case learn of it. A partner that cannot be told runs into its
    /// deadline.
    fn give_up(&mut self) {
        self.outbox.clear();
        for (rank, _) in &self.ways {
            self.outbox.push(*rank, Signal::GaveUp { rank: self.rank.0 });
        }
        let due = clock::now().after(FAREWELL);
        while clock::now() < due && !(self.outbox.is_empty() && self.signals_under_way == 0) {
            let _ = self.signal();
            let _ = self.poll(POLLS);
        }
    }
}

impl Transfer for Streams {
    fn staging(&self) -> Option<Staging> {
        self.staging
    }

    fn conclude(&mut self, world: &mut World) -> Result<Conclusion, Error> {
        let denied = self.counters.as_ref().and_then(|counters| counters.deny(self.moved));
        let Some(all) = world.gather((denied, self.moved))? else {
            return Ok(Conclusion::default());
        };
        // What a device has counted is worth more than what its provider says of it.
        if let Some(is_denied) = all.iter().filter_map(|(denied, _)| *denied).max() {
            self.network.is_emulated = Some(is_denied);
        }
        self.network.moved = all.iter().fold(Bytes::default(), |sum, (_, moved)| sum.plus(*moved));
        Ok(Conclusion { network: Some(self.network.clone()), log: None })
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for channel in &self.channels {
            let seed = channel.seed(seed);
            let Memories { source, target, .. } = &channel.memories;
            source.iter().try_for_each(|source| source.fill(seed))?;
            target.iter().try_for_each(|target| target.data.poison(seed))?;
        }
        let first = self.channels.first().map_or(seed, |channel| channel.seed(seed));
        self.inbox.iter().try_for_each(|inbox| inbox.target.data.poison(first))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.run_with(|streams| streams.stream(operations, spans))
    }

    fn run_singly(&mut self, spans: &mut [Span]) -> Result<(), Error> {
        self.run_with(|streams| streams.single(spans))
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let seeds = |channel: usize| self.channels[channel].seed(seed);
        let own = self.channels.iter().filter_map(|channel| channel.memories.target.as_ref());
        let targets = own.chain(self.inbox.iter().map(|inbox| &inbox.target));
        first_mismatch(targets.map(|target| target.verify(seeds, self.rank)))
    }
}
