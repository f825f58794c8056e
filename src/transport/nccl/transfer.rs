//! One process's part of a collective: all of its GPUs together.
//!
//! Spans are queued behind a hold, so that launching them is outside of their time. Each begins
//! with a small reduction among all ranks, which none leaves before all have come to it; then each
//! GPU notes the time on its own clock, does its operations and notes the time again. So nothing has
//! to be agreed on beside NCCL itself, and it is the same on one host and on many. A span lasts as
//! long as it does on the GPU that takes longest.

use std::{ops::Range, time::Duration};

use super::{lane::Lane, log};
use crate::{
    ffi::{
        CallError, Cause, clock,
        cuda::Event,
        nccl::{Factor, Group, Library},
        watchdog::Watchdog,
    },
    plan::{Iterations, Operation, Rank},
    transport::{
        Clock, Error, Mismatch, Span, Staging, Transfer,
        gpu::{PATIENCE, Start},
    },
    units::nanoseconds,
    world::World,
};

/// Operations that are queued behind one hold: a collective can take several places in the channel
/// through which the driver feeds a GPU.
const OPERATIONS_MAX: u64 = 64;

/// Ranks do not leave the reduction before a span at the same moment: some microseconds, below 1 %
/// of this.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(1);

/// Between two looks at whether NCCL has had an error.
const LOOK: Duration = Duration::from_millis(20);

/// This process's part.
pub(super) struct Collectives {
    operation: Operation,
    iterations: Iterations,
    library: &'static Library,
    lanes: Vec<Lane>,
    start: Option<Start>,
    clock: Clock,
    deadline: Duration,
    /// Operations since the buffers were filled.
    done: u64,
    /// What NCCL has had to say on each rank.
    log: Option<Vec<(Rank, String)>>,
}

impl Collectives {
    /// Connects the ranks, and so takes an operation of each; every rank calls it.
    pub(super) fn new(
        (operation, iterations): (Operation, Iterations),
        library: &'static Library,
        lanes: Vec<Lane>,
        world: &mut World,
    ) -> Result<Self, Error> {
        let deadline = world.deadline();
        let first = lanes.first();
        let start =
            first.map(|lane| Start::new(&lane.ready.context, None, PATIENCE / 2)).transpose()?;
        let clock = first.map(|lane| lane.ready.clock(SAMPLE_TIME_MIN));
        let coarsest = |all: Vec<Option<Clock>>| {
            all.into_iter().flatten().max_by_key(|clock| clock.resolution)
        };
        // Rank 0 decides by it, whether it has a GPU in this case or not; and every rank hears here
        // of one that could not get its part.
        let clock = world.agree(clock, coarsest)?;
        let clock = clock.ok_or(Error::Disagreement("no rank has a GPU of the case"))?;
        let consumes = first.is_some_and(|lane| lane.part.consumes());
        let most = if consumes { 1 } else { OPERATIONS_MAX };
        let operations_max = world.agree(most, |all| all.into_iter().min().unwrap_or(1))?;
        let clock = Clock { operations_max, ..clock };
        let mut made = Self {
            operation,
            iterations,
            library,
            lanes,
            start,
            clock,
            deadline,
            done: 0,
            log: None,
        };
        made.connect()?;
        Ok(made)
    }

    /// The first operation between two ranks connects them, which nothing may stand before.
    fn connect(&mut self) -> Result<(), Error> {
        if self.lanes.is_empty() {
            return Ok(());
        }
        let queued = self.queue(1, 1, false);
        self.settled(queued)
    }

    /// Has events for `spans`.
    fn events(&mut self, spans: usize) -> Result<(), CallError> {
        for lane in &mut self.lanes {
            while lane.begins.len() < spans {
                lane.begins.push(Event::new(&lane.ready.context)?);
                lane.ends.push(Event::new(&lane.ready.context)?);
            }
        }
        Ok(())
    }

    /// Queues `spans` of `operations` each, behind a hold unless the CPU is to wait in between, lets
    /// them begin and waits for them.
    fn run_group(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        let queued = self.queue(operations, spans.len(), !self.iterations.is_blocking);
        if let Some(start) = &self.start {
            start.release();
        }
        self.settled(queued)?;
        // Who only waits for the others has no time of its own.
        let moves = self.lanes.iter().any(|lane| lane.part.gives() || lane.part.gets());
        for (index, span) in spans.iter_mut().enumerate().filter(|_| moves) {
            let mut longest = Duration::ZERO;
            for lane in &self.lanes {
                let elapsed = lane.ends[index].elapsed_since(&lane.begins[index]);
                let elapsed = elapsed.map_err(|source| Error::call("read the time", source))?;
                longest = longest.max(elapsed);
            }
            *span = Span { start_ns: Some(0), end_ns: Some(nanoseconds(longest)) };
        }
        Ok(())
    }

    /// Watches over calls that must not block, and may hang nevertheless: a little longer than this
    /// rank's partners do, who know more.
    fn watched(&self) -> Result<Watchdog, CallError> {
        let limit = self.deadline.saturating_add(self.deadline / 4);
        let ranks: Vec<String> = self.lanes.iter().map(|lane| lane.to_string()).collect();
        let name = self.operation.name();
        Watchdog::start(limit, format!("{} hangs in a call of NCCL ({name})", ranks.join(" or ")))
    }

    fn queue(&mut self, operations: u64, spans: usize, is_held: bool) -> Result<(), Error> {
        let _watched = self.watched().map_err(|source| self.failed(source))?;
        let made = self.events(spans);
        let begun = made.and_then(|()| if is_held { self.hold() } else { Ok(()) });
        begun.map_err(|source| self.failed(source))?;
        (0..spans).try_for_each(|span| self.queue_span(span, operations))
    }

    fn failed(&self, source: CallError) -> Error {
        Error::together(&format!("queue {}", self.operation.name()), source)
    }

    fn hold(&mut self) -> Result<(), CallError> {
        let (Some(first), Some(start)) = (self.lanes.first(), &mut self.start) else {
            return Ok(());
        };
        start.hold(&first.ready.kernels, &first.stream)?;
        first.stream.record(&first.begins[0])?;
        self.lanes[1..].iter().try_for_each(|lane| lane.stream.wait(&first.begins[0]))
    }

    fn queue_span(&mut self, span: usize, operations: u64) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        self.begin_span(span).map_err(failed)?;
        let factors = self.lanes.iter().map(Lane::factor);
        let factors = factors.collect::<Result<Vec<_>, CallError>>().map_err(failed)?;
        let (mut first, end) = (self.done, self.done + operations);
        while first < end {
            let next = end.min(first + self.iterations.operations_per_group);
            self.queue_group(first..next, &factors).map_err(failed)?;
            if self.iterations.is_blocking {
                self.wait()?;
            } else if next - self.done >= OPERATIONS_MAX
                && let Some(start) = &self.start
            {
                // There is no room for more that waits.
                start.release();
            }
            first = next;
        }
        let mut lanes = self.lanes.iter();
        lanes.try_for_each(|lane| lane.stream.record(&lane.ends[span])).map_err(failed)?;
        drop(factors);
        self.done = end;
        Ok(())
    }

    /// Queues a meeting of all ranks, and the beginning of a span behind it.
    fn begin_span(&self, span: usize) -> Result<(), CallError> {
        self.lanes.iter().try_for_each(Lane::restore)?;
        let mut group = Group::start(self.library)?;
        for lane in &self.lanes {
            lane.meet(&mut group)?;
        }
        group.end()?;
        self.lanes.iter().try_for_each(|lane| lane.stream.record(&lane.begins[span]))
    }

    /// Queues operations that NCCL gets together.
    fn queue_group(
        &self,
        operations: Range<u64>,
        factors: &[Option<Factor<'_>>],
    ) -> Result<(), CallError> {
        let mut group = Group::start(self.library)?;
        for operation in operations {
            for (lane, factor) in self.lanes.iter().zip(factors) {
                lane.queue(&mut group, self.library, operation, factor.as_ref())?;
            }
        }
        group.end()
    }

    /// Waits until all that was queued is done; if it is not in time, or something is wrong, gives
    /// it up on all of this process's GPUs.
    fn settled(&self, queued: Result<(), Error>) -> Result<(), Error> {
        let done = queued.and_then(|()| self.wait());
        if done.is_err() {
            self.lanes.iter().for_each(Lane::abort);
        }
        done
    }

    fn wait(&self) -> Result<(), Error> {
        let action = format!("finish {}", self.operation.name());
        let failed = |source| Error::call(&action, source);
        let begin = clock::now();
        for lane in &self.lanes {
            loop {
                match lane.stream.synchronize(LOOK) {
                    Ok(()) => break,
                    Err(CallError { source: Cause::Late(_), .. }) => {}
                    Err(source) => return Err(failed(source)),
                }
                for lane in &self.lanes {
                    lane.async_error().map_err(failed)?;
                }
                let waited = clock::now().since(begin);
                if waited >= self.deadline {
                    let waited = self.deadline;
                    return Err(Error::Unfinished { action, waited, missing: None });
                }
            }
        }
        self.start.as_ref().map_or(Ok(()), Start::check)
    }
}

impl Transfer for Collectives {
    fn staging(&self) -> Option<Staging> {
        None
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn is_misplaced(&self) -> bool {
        false
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.done = 0;
        self.lanes.iter_mut().try_for_each(|lane| lane.fill(seed))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if self.lanes.is_empty() {
            return Ok(());
        }
        // Each span has a meeting, two events, and perhaps a copy.
        let fitting = usize::try_from(OPERATIONS_MAX / (operations + 4)).unwrap_or(1).max(1);
        spans.chunks_mut(fitting).try_for_each(|spans| self.run_group(operations, spans))
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        for lane in &self.lanes {
            // What the last ones have left, each in its own place.
            for operation in self.done.saturating_sub(lane.part.slots())..self.done {
                let wrong = lane.verify(seed, operation)?;
                if wrong.is_some() {
                    return Ok(wrong);
                }
            }
        }
        Ok(None)
    }

    fn conclude(&mut self, world: &mut World) -> Result<(), Error> {
        let all = world.gather((world.rank(), log::take()))?;
        let with_log = |(rank, text): (Rank, Option<String>)| Some((rank, text?));
        self.log = all.and_then(|all| all.into_iter().map(with_log).collect());
        Ok(())
    }

    fn log(&mut self) -> Option<Vec<(Rank, String)>> {
        self.log.take()
    }
}
