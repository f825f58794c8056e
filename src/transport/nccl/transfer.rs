//! One process's part of a collective: all of its GPUs together.
//!
//! Spans are queued behind a hold, so their launch is not timed. Each begins with a small reduction
//! among all ranks, which no rank leaves before all have entered it. Then each GPU records the time
//! on its own clock, runs its operations and records the time again. Ranks synchronise by NCCL
//! alone, on one host as on many. A span lasts as long as on the slowest GPU.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ops::Range,
    rc::Rc,
    time::Duration,
};

use super::{buffers::RankDevice, log, rank_stream::RankStream};
use crate::{
    ffi::{
        CallError, Cause, clock,
        cuda::Stream,
        nccl::{Factor, Graph, Group, Library},
        watchdog::Watchdog,
    },
    plan::{Case, Collective, Iterations, Operation, Rank},
    transport::{
        Clock, Conclusion, Empty, Error, Mismatch, Span, Transfer, TryingTo, first_mismatch,
        gpu::{ENTRIES_MAX, Start, agree_on_clock, elapsed},
    },
    world::World,
};

/// The most operations queued behind one hold: each can take several entries of a stream, the
/// kernel and events before and behind it.
const OPERATIONS_MAX: u64 = ENTRIES_MAX / 4;

/// The most that operations behind a hold take of the queue in which NCCL describes its work. That
/// holds 1 MiB by default (`NCCL_WORK_FIFO_BYTES`), and the call for which it lacks room waits until
/// kernels have ended (`waitWorkFifoAvailable` in NCCL's `enqueue.cc`).
const WORK_MAX: u64 = 512 << 10;

/// What an operation takes there for each rank that it has to do with, or less
/// (`ncclDevWorkCollReg`, `ncclDevWorkP2p` in NCCL's `device.h`).
const WORK_OF_A_PEER: u64 = 512;

/// The shortest sample. Ranks leave the reduction before a span some microseconds apart, which is
/// below 1 % of this.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(1);

/// The time between two checks for errors of NCCL.
const LOOK: Duration = Duration::from_millis(20);

/// This process's part.
pub(super) struct Collectives {
    operation: Operation,
    iterations: Iterations,
    library: &'static Library,
    /// Set when all is measured.
    is_sound: Rc<Cell<bool>>,
    ranks: Vec<RankStream>,
    start: RefCell<Start>,
    clock: Clock,
    /// The most operations that are queued behind a hold.
    held_max: u64,
    /// Whether a span had more.
    is_unheld: bool,
    deadline: Duration,
    /// Operations since the buffers were filled. Those of a graph count once.
    done: Cell<u64>,
    /// Numbers of operations of which a group was run.
    connected: BTreeSet<u64>,
}

/// What a span does.
enum Work<'a> {
    /// Queues this many operations one by one; with the factor of each GPU.
    Queued(u64, &'a [Option<Factor<'a>>]),
    /// Nothing, or a kernel that does nothing.
    Empty(Empty),
    /// Launches a graph of this many operations.
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
        let first = ranks.first().map(|rank| &rank.device);
        let start = Start::new(first.map(|device| &device.ready), None)?;
        let held_max = held_max(case);
        let step = iterations.operations_per_group.saturating_mul(iterations.launches());
        let clock = first.map(|RankDevice { part, ready, .. }| {
            let (operations_max, operations_step) =
                if part.consumes() { (1, 1) } else { ((held_max / step).max(1) * step, step) };
            Clock { operations_max, operations_step, ..ready.clock(SAMPLE_TIME_MIN) }
        });
        let clock = agree_on_clock(clock, world)?;
        let mut made = Self {
            operation: case.operation,
            iterations,
            library,
            is_sound,
            ranks,
            start: RefCell::new(start),
            clock,
            held_max,
            is_unheld: false,
            deadline,
            done: Cell::new(0),
            connected: BTreeSet::new(),
        };
        if !made.ranks.is_empty() {
            made.connect(1).inspect_err(|_| made.give_up())?;
        }
        Ok(made)
    }

    /// Runs a group of each size that a span of `operations` has, where none was run before. NCCL
    /// chooses an algorithm by the data of a whole group, and connects it when it is first chosen
    /// (`ncclPrepareTasks`, `ncclCollPreconnect` in its `enqueue.cc` and `group.cc`), which waits
    /// for the GPU. Behind a hold that would be when the hold times out.
    fn connect(&mut self, operations: u64) -> Result<(), Error> {
        self.make_events(1)?;
        let each = self.iterations.operations_per_group;
        let sizes = [each.min(operations), operations % each].into_iter().filter(|size| *size > 0);
        for size in sizes.filter(|size| !self.connected.contains(size)).collect::<Vec<u64>>() {
            let factors = self.factors()?;
            self.run_group(&Work::Queued(size, &factors), &mut [Span::default()], false)?;
            drop(factors);
            self.connected.insert(size);
        }
        Ok(())
    }

    /// Makes the events that `spans` spans need.
    fn make_events(&mut self, spans: usize) -> Result<(), Error> {
        for rank in &mut self.ranks {
            let missing = spans.saturating_sub(rank.begins.len());
            rank.begins.extend(rank.device.ready.events(missing)?);
            rank.ends.extend(rank.device.ready.events(missing)?);
        }
        Ok(())
    }

    /// Runs spans of `operations` each, in groups that are queued together.
    fn run_spans(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        let together = self.spans_together(operations);
        self.is_unheld |= operations > self.held_max;
        self.connect(operations)?;
        self.make_events(together.min(spans.len()))?;
        let factors = self.factors()?;
        let work = self.queued(self.work(operations, &factors))?;
        if let Work::Launched { .. } = work {
            // The first launch of a graph brings it to the GPU.
            self.run_group(&work, &mut [Span::default()], false)?;
        }
        let is_held = self.can_hold(self.iterations.operations_per_group.min(operations));
        spans.chunks_mut(together).try_for_each(|spans| self.run_group(&work, spans, is_held))
    }

    /// How many spans of so many operations are queued together; one at least. Each also queues a
    /// meeting, two events, and perhaps a copy.
    fn spans_together(&self, operations: u64) -> usize {
        usize::try_from(self.held_max / (operations + 4)).unwrap_or(1).max(1)
    }

    /// Whether spans can be queued behind a hold whose groups have so many operations. Nothing is
    /// held if the CPU waits between groups.
    fn can_hold(&self, operations: u64) -> bool {
        !self.iterations.is_blocking && operations <= self.held_max
    }

    /// The work of a span of `operations`. Captures a graph if the case wants one.
    fn work<'a>(
        &'a self,
        operations: u64,
        factors: &'a [Option<Factor<'a>>],
    ) -> Result<Work<'a>, CallError> {
        // A single operation is launched once. The warm-up uses no graph.
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

    /// Queues spans, behind a hold if `is_held`, lets them begin and waits for them.
    fn run_group(&self, work: &Work<'_>, spans: &mut [Span], is_held: bool) -> Result<(), Error> {
        let queued = self.queue(work, spans.len(), is_held);
        self.start.borrow().release();
        queued?;
        self.wait()?;
        self.check()?;
        // A rank that neither sends nor receives has no time.
        let moves = self.ranks.iter().any(|rank| rank.device.part.moves());
        for (index, span) in spans.iter_mut().enumerate().filter(|_| moves) {
            let mut longest = Duration::ZERO;
            for rank in &self.ranks {
                longest = longest.max(elapsed(&rank.begins[index], &rank.ends[index])?);
            }
            *span = Span::lasting(longest);
        }
        Ok(())
    }

    /// Ends the process if calls that must not block hang. The limit is longer than that of this
    /// rank's partners, whose errors say more.
    fn watched(&self) -> Result<Watchdog, CallError> {
        let limit = self.deadline.saturating_add(self.deadline / 4);
        let ranks: Vec<String> = self.ranks.iter().map(|rank| rank.to_string()).collect();
        let name = self.operation;
        Watchdog::start(limit, format!("{} hangs in a call of NCCL ({name})", ranks.join(" or ")))
    }

    fn queue(&self, work: &Work<'_>, spans: usize, is_held: bool) -> Result<(), Error> {
        let _watched = self.queued(self.watched())?;
        if is_held {
            self.queued(self.hold())?;
        }
        (0..spans).try_for_each(|span| self.queue_span(span, work))
    }

    /// What was queued, or why not.
    fn queued<T>(&self, result: Result<T, CallError>) -> Result<T, Error> {
        result.map_err(|source| Error::together(&format!("queue {}", self.operation), source))
    }

    fn hold(&self) -> Result<(), CallError> {
        let Some((first, others)) = self.ranks.split_first() else { return Ok(()) };
        let began = &first.begins[0];
        self.start.borrow_mut().begin(&first.device.ready, &first.stream, began, true)?;
        others.iter().try_for_each(|rank| rank.stream.wait(began))
    }

    fn queue_span(&self, span: usize, work: &Work<'_>) -> Result<(), Error> {
        self.queued(self.begin_span(span))?;
        match work {
            Work::Queued(operations, factors) => self.queue_groups(*operations, factors)?,
            Work::Empty(Empty::Span) => {}
            Work::Empty(Empty::Kernel) => {
                let nothing = |rank: &RankStream| rank.device.ready.kernels.nothing(&rank.stream);
                self.queued(self.ranks.iter().try_for_each(nothing))?;
            }
            Work::Launched { launches, operations, graph } => {
                for launch in 1..=*launches {
                    // No more fits behind a hold.
                    if launch * operations > self.held_max {
                        self.start.borrow().release();
                    }
                    self.queued(graph.launch())?;
                }
            }
        }
        let mut ranks = self.ranks.iter();
        self.queued(ranks.try_for_each(|rank| rank.stream.record(&rank.ends[span])))
    }

    /// Queues `operations`, group by group.
    fn queue_groups(&self, operations: u64, factors: &[Option<Factor<'_>>]) -> Result<(), Error> {
        let begin = self.done.get();
        let (mut first, end) = (begin, begin + operations);
        while first < end {
            let next = end.min(first + self.iterations.operations_per_group);
            let group = Group::start(self.library).and_then(|mut group| {
                self.queue_operations(&mut group, first..next, factors)?;
                group.end()
            });
            self.queued(group)?;
            if self.iterations.is_blocking {
                self.wait()?;
            } else if next - begin >= self.held_max {
                // No more fits behind a hold.
                self.start.borrow().release();
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

    /// Queues operations in one group.
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

    fn factors(&self) -> Result<Vec<Option<Factor<'_>>>, Error> {
        self.queued(self.ranks.iter().map(RankStream::factor).collect())
    }

    /// Aborts the communicators of all GPUs of this process. NCCL then waits for graphs, so they
    /// must be gone.
    fn give_up(&self) {
        self.ranks.iter().for_each(RankStream::abort);
    }

    /// Fails if NCCL has had an asynchronous error.
    fn check(&self) -> Result<(), Error> {
        let checked = self.ranks.iter().try_for_each(RankStream::async_error);
        checked.map_err(|source| Error::call(&format!("finish {}", self.operation), source))
    }

    /// Waits until all that was queued is done.
    fn wait(&self) -> Result<(), Error> {
        let action = format!("finish {}", self.operation);
        let begin = clock::now();
        for rank in &self.ranks {
            loop {
                match rank.stream.synchronize(LOOK) {
                    Ok(()) => break,
                    Err(CallError { source: Cause::Late(_), .. }) => {}
                    Err(source) => return Err(Error::call(&action, source)),
                }
                self.check()?;
                let waited = clock::now().since(begin);
                if waited >= self.deadline {
                    let waited = self.deadline;
                    return Err(Error::Unfinished { action, waited, missing: None });
                }
            }
        }
        self.start.borrow().check()
    }
}

impl Transfer for Collectives {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.done.set(0);
        self.ranks.iter().try_for_each(|rank| rank.fill(seed)).trying_to("fill a buffer")
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if self.ranks.is_empty() {
            return Ok(());
        }
        self.run_spans(operations, spans).inspect_err(|_| self.give_up())
    }

    fn is_unheld(&self) -> bool {
        self.is_unheld
    }

    fn run_empty(&mut self, empty: Empty, spans: &mut [Span]) -> Result<(), Error> {
        if self.ranks.is_empty() {
            return Ok(());
        }
        let together = self.spans_together(1);
        let is_held = self.can_hold(1);
        let mut run = || {
            self.make_events(together)?;
            let mut groups = spans.chunks_mut(together);
            groups.try_for_each(|spans| self.run_group(&Work::Empty(empty), spans, is_held))
        };
        run().inspect_err(|_| self.give_up())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let done = self.done.get();
        // The data of the last operations, each in its own place.
        first_mismatch(self.ranks.iter().flat_map(|rank| {
            let last = done.saturating_sub(rank.device.part.slots())..done;
            last.map(move |operation| rank.verify(seed, operation))
        }))
    }

    fn conclude(&mut self, world: &mut World) -> Result<Conclusion, Error> {
        let all = world.gather((world.rank(), log::take()))?;
        let with_log = |(rank, text): (Rank, Option<String>)| Some((rank, text?));
        let log = all.and_then(|all| all.into_iter().map(with_log).collect());
        self.is_sound.set(true);
        Ok(Conclusion { log, ..Conclusion::default() })
    }
}

/// The most operations of `case` that are queued behind a hold.
fn held_max(case: &Case) -> u64 {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
    };
    let Some((of, nccl, _)) = case.collective() else { return OPERATIONS_MAX };
    let peers = match of {
        AllToAll | Gather | Scatter => u64::from(nccl.ranks),
        AllReduce | AllGather | ReduceScatter | Broadcast | Reduce | SendRecv => 2,
    };
    (WORK_MAX / (WORK_OF_A_PEER * peers)).clamp(1, OPERATIONS_MAX)
}
