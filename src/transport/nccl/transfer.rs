//! One process's part of a collective: all of its GPUs together.
//!
//! Spans are queued behind a hold, so that launching them is outside of their time. Each begins
//! with a small reduction among all ranks, which none leaves before all have come to it; then each
//! GPU notes the time on its own clock, does its operations and notes the time again. So nothing
//! has to be agreed on beside NCCL itself, and it is the same on one host and on many. A span lasts
//! as long as it does on the GPU that takes longest.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    time::Duration,
};

use super::{log, rank_stream::RankStream};
use crate::{
    ffi::{
        CallError, Cause, clock,
        cuda::{Event, Stream},
        nccl::{Factor, Graph, Group, Library},
        watchdog::Watchdog,
    },
    plan::{Case, Iterations, Operation, Rank},
    transport::{
        Clock, Error, Mismatch, Span, Transfer,
        gpu::{Start, agree_on_clock, elapsed},
    },
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
    /// Is set when all is measured.
    is_sound: Rc<Cell<bool>>,
    ranks: Vec<RankStream>,
    start: RefCell<Option<Start>>,
    clock: Clock,
    deadline: Duration,
    /// Operations since the buffers were filled; those of a graph count once.
    done: Cell<u64>,
    /// NCCL's log of each rank.
    log: Option<Vec<(Rank, String)>>,
}

/// What a span does.
enum Work<'a> {
    /// So many operations, each queued by itself; of each GPU its factor.
    Queued(u64, &'a [Option<Factor<'a>>]),
    /// Launches of a graph of so many operations.
    Launched { launches: u64, operations: u64, graph: Graph<'a> },
}

impl Collectives {
    /// Connects the ranks by one operation; every rank calls it.
    pub(super) fn new(
        case: &Case,
        library: &'static Library,
        is_sound: Rc<Cell<bool>>,
        ranks: Vec<RankStream>,
        world: &mut World,
    ) -> Result<Self, Error> {
        let iterations = case.collective().map(|(_, nccl, _)| nccl.iterations).unwrap_or_default();
        let deadline = world.deadline();
        let first = ranks.first();
        let start = first.map(|rank| Start::alone(&rank.ready)).transpose()?;
        let clock = first.map(|rank| rank.ready.clock(SAMPLE_TIME_MIN));
        let clock = agree_on_clock(clock, world)?;
        let consumes = first.is_some_and(|rank| rank.part.consumes());
        let step = iterations.launches();
        let steps = if consumes { (1, 1) } else { (OPERATIONS_MAX / step * step, step) };
        let least = |all: Vec<(u64, u64)>| all.into_iter().min().unwrap_or((1, 1));
        let (operations_max, operations_step) = world.agree(steps, least)?;
        let clock = Clock { operations_max, operations_step, ..clock };
        let mut made = Self {
            operation: case.operation,
            iterations,
            library,
            is_sound,
            ranks,
            start: RefCell::new(start),
            clock,
            deadline,
            done: Cell::new(0),
            log: None,
        };
        made.connect()?;
        Ok(made)
    }

    /// The first operation between two ranks connects them, which nothing may stand before.
    fn connect(&mut self) -> Result<(), Error> {
        if self.ranks.is_empty() {
            return Ok(());
        }
        let connected = self.connected();
        self.kept(connected)
    }

    fn connected(&mut self) -> Result<(), Error> {
        self.events(1).map_err(|source| self.failed(source))?;
        let factors = self.factors().map_err(|source| self.failed(source))?;
        self.queue(&Work::Queued(1, &factors), 1, false)?;
        self.wait()
    }

    /// Has events for `spans`.
    fn events(&mut self, spans: usize) -> Result<(), CallError> {
        for rank in &mut self.ranks {
            while rank.begins.len() < spans {
                rank.begins.push(Event::new(&rank.ready.context)?);
                rank.ends.push(Event::new(&rank.ready.context)?);
            }
        }
        Ok(())
    }

    /// Runs spans of `operations` each, `together` of them at once.
    fn run_spans(
        &mut self,
        operations: u64,
        spans: &mut [Span],
        together: usize,
    ) -> Result<(), Error> {
        self.events(together.min(spans.len())).map_err(|source| self.failed(source))?;
        let factors = self.factors().map_err(|source| self.failed(source))?;
        let work = self.work(operations, &factors).map_err(|source| self.failed(source))?;
        spans.chunks_mut(together).try_for_each(|spans| self.run_group(&work, spans))
    }

    /// What a span of so many operations does; a graph of them is captured here.
    fn work<'a>(
        &'a self,
        operations: u64,
        factors: &'a [Option<Factor<'a>>],
    ) -> Result<Work<'a>, CallError> {
        // A single one is launched once; warming up is not for graphs.
        let launches = if operations == 1 { 1 } else { self.iterations.launches() };
        if self.iterations.graph == 0 || !operations.is_multiple_of(launches) {
            return Ok(Work::Queued(operations, factors));
        }
        let _watched = self.watched()?;
        let (first, operations) = (self.done.get(), operations / launches);
        let each = self.iterations.operations_per_group;
        let streams: Vec<&Stream> = self.ranks.iter().map(|rank| &rank.stream).collect();
        let groups = operations.div_ceil(each);
        let graph = Graph::capture(self.library, &streams, groups, |group, number| {
            let end = operations.min((number + 1) * each);
            self.queue_operations(group, first + number * each..first + end, factors)
        })?;
        self.done.set(first + operations);
        Ok(Work::Launched { launches, operations, graph })
    }

    /// Queues spans, behind a hold unless the CPU is to wait in between, lets them begin and waits
    /// for them.
    fn run_group(&self, work: &Work<'_>, spans: &mut [Span]) -> Result<(), Error> {
        let queued = self.queue(work, spans.len(), !self.iterations.is_blocking);
        self.release();
        queued?;
        self.wait()?;
        self.check()?;
        // Who only waits for the others has no time of its own.
        let moves = self.ranks.iter().any(|rank| rank.part.gives() || rank.part.gets());
        for (index, span) in spans.iter_mut().enumerate().filter(|_| moves) {
            let mut longest = Duration::ZERO;
            for rank in &self.ranks {
                longest = longest.max(elapsed(&rank.begins[index], &rank.ends[index])?);
            }
            *span = Span::lasting(longest);
        }
        Ok(())
    }

    /// Watches over calls that must not block, and may hang nevertheless: a little longer than this
    /// rank's partners do, who know more.
    fn watched(&self) -> Result<Watchdog, CallError> {
        let limit = self.deadline.saturating_add(self.deadline / 4);
        let ranks: Vec<String> = self.ranks.iter().map(|rank| rank.to_string()).collect();
        let name = self.operation;
        Watchdog::start(limit, format!("{} hangs in a call of NCCL ({name})", ranks.join(" or ")))
    }

    fn queue(&self, work: &Work<'_>, spans: usize, is_held: bool) -> Result<(), Error> {
        let _watched = self.watched().map_err(|source| self.failed(source))?;
        if is_held {
            self.hold().map_err(|source| self.failed(source))?;
        }
        (0..spans).try_for_each(|span| self.queue_span(span, work))
    }

    fn failed(&self, source: CallError) -> Error {
        Error::together(&format!("queue {}", self.operation), source)
    }

    fn hold(&self) -> Result<(), CallError> {
        let mut start = self.start.borrow_mut();
        let (Some(first), Some(start)) = (self.ranks.first(), &mut *start) else {
            return Ok(());
        };
        start.hold(&first.ready.kernels, &first.stream)?;
        first.stream.record(&first.begins[0])?;
        self.ranks[1..].iter().try_for_each(|rank| rank.stream.wait(&first.begins[0]))
    }

    /// Lets begin what is held.
    fn release(&self) {
        if let Some(start) = &*self.start.borrow() {
            start.release();
        }
    }

    fn queue_span(&self, span: usize, work: &Work<'_>) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        self.begin_span(span).map_err(failed)?;
        match work {
            Work::Queued(operations, factors) => self.queue_groups(*operations, factors)?,
            Work::Launched { launches, operations, graph } => {
                for launch in 1..=*launches {
                    // There is no room for more that waits.
                    if launch * operations > OPERATIONS_MAX {
                        self.release();
                    }
                    graph.launch().map_err(failed)?;
                }
            }
        }
        let mut ranks = self.ranks.iter();
        ranks.try_for_each(|rank| rank.stream.record(&rank.ends[span])).map_err(failed)
    }

    /// Queues so many operations, group by group.
    fn queue_groups(&self, operations: u64, factors: &[Option<Factor<'_>>]) -> Result<(), Error> {
        let begin = self.done.get();
        let (mut first, end) = (begin, begin + operations);
        while first < end {
            let next = end.min(first + self.iterations.operations_per_group);
            let group = Group::start(self.library).and_then(|mut group| {
                self.queue_operations(&mut group, first..next, factors)?;
                group.end()
            });
            group.map_err(|source| self.failed(source))?;
            if self.iterations.is_blocking {
                self.wait()?;
            } else if next - begin >= OPERATIONS_MAX {
                // There is no room for more that waits.
                self.release();
            }
            first = next;
        }
        self.done.set(end);
        Ok(())
    }

    /// Queues a meeting of all ranks, and the beginning of a span behind it.
    fn begin_span(&self, span: usize) -> Result<(), CallError> {
        self.ranks.iter().try_for_each(RankStream::restore)?;
        let mut group = Group::start(self.library)?;
        for rank in &self.ranks {
            rank.meet(&mut group)?;
        }
        group.end()?;
        self.ranks.iter().try_for_each(|rank| rank.stream.record(&rank.begins[span]))
    }

    /// Queues operations that NCCL gets together.
    fn queue_operations<'a>(
        &'a self,
        group: &mut Group<'a>,
        mut operations: Range<u64>,
        factors: &'a [Option<Factor<'a>>],
    ) -> Result<(), CallError> {
        operations.try_for_each(|operation| {
            let mut ranks = self.ranks.iter().zip(factors);
            ranks.try_for_each(|(rank, factor)| rank.queue(group, operation, factor.as_ref()))
        })
    }

    fn factors(&self) -> Result<Vec<Option<Factor<'_>>>, CallError> {
        self.ranks.iter().map(RankStream::factor).collect()
    }

    /// What was done; if it went wrong, all is given up on all of this process's GPUs. NCCL waits
    /// for graphs when it gives something up: they must be gone by now.
    fn kept(&self, done: Result<(), Error>) -> Result<(), Error> {
        if done.is_err() {
            self.ranks.iter().for_each(RankStream::abort);
        }
        done
    }

    /// Whether NCCL has had no error that it tells of only later.
    fn check(&self) -> Result<(), Error> {
        let checked = self.ranks.iter().try_for_each(RankStream::async_error);
        checked.map_err(|source| Error::call(&format!("finish {}", self.operation), source))
    }

    /// Waits until all that was queued is done.
    fn wait(&self) -> Result<(), Error> {
        let action = format!("finish {}", self.operation);
        let failed = |source| Error::call(&action, source);
        let begin = clock::now();
        for rank in &self.ranks {
            loop {
                match rank.stream.synchronize(LOOK) {
                    Ok(()) => break,
                    Err(CallError { source: Cause::Late(_), .. }) => {}
                    Err(source) => return Err(failed(source)),
                }
                self.check()?;
                let waited = clock::now().since(begin);
                if waited >= self.deadline {
                    let waited = self.deadline;
                    return Err(Error::Unfinished { action, waited, missing: None });
                }
            }
        }
        self.start.borrow().as_ref().map_or(Ok(()), Start::check)
    }
}

impl Transfer for Collectives {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.done.set(0);
        self.ranks.iter_mut().try_for_each(|rank| rank.fill(seed))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if self.ranks.is_empty() {
            return Ok(());
        }
        // Each span has a meeting, two events, and perhaps a copy.
        let fitting = usize::try_from(OPERATIONS_MAX / (operations + 4)).unwrap_or(1).max(1);
        let done = self.run_spans(operations, spans, fitting);
        self.kept(done)
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let done = self.done.get();
        for rank in &self.ranks {
            // What the last ones have left, each in its own place.
            for operation in done.saturating_sub(rank.part.slots())..done {
                let wrong = rank.verify(seed, operation)?;
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
        self.is_sound.set(true);
        Ok(())
    }

    fn log(&mut self) -> Option<Vec<(Rank, String)>> {
        self.log.take()
    }
}
