//! Transfers whose flows are each one operation of one stream: copies by engines and by kernels,
//! and kernels that only read or only write.

use std::{rc::Rc, time::Duration};

use super::{
    Gpus, PATIENCE, Ready, Side, Start,
    ends::{End, Ends},
    share_start,
};
use crate::{
    ffi::{
        CallError,
        cuda::{Event, Stream},
    },
    plan::{Case, Engine, Flow, Issuer, Operation, Rank, topology::Topology},
    transport::{Clock, Error, Mismatch, Span, Staging, Transfer, pattern},
    units::{Bytes, nanoseconds},
    world::World,
};

/// Spans that are queued behind one hold, of a flow by itself; of several flows each span takes
/// more places in the queues.
const SPANS_OF_ONE: usize = 128;
const SPANS_OF_SEVERAL: usize = 16;

/// Where flows share something, a sample begins and ends with some of it idle; and ranks whose GPUs
/// watch one flag begin within about a microsecond of each other.
const SAMPLE_TIME_OF_SEVERAL: Duration = Duration::from_millis(1);

/// This rank's part of a case.
#[derive(Debug)]
pub(in crate::transport) struct Copies {
    rank: Rank,
    /// The flows that this rank's GPUs do. They go before the ends, which wait until what they
    /// have lent is back: two ranks that do so before they give back would wait for each other.
    lanes: Vec<Lane>,
    ends: Ends,
    /// When all lanes begin and end, on the first lane's stream.
    boundaries: Vec<Event>,
    start: Option<Start>,
    /// Whether the flows are done by several ranks.
    has_several_executors: bool,
    /// Whether this rank lets all of them begin.
    is_first_executor: bool,
    clock: Clock,
}

/// A flow that this rank's GPU does.
#[derive(Debug)]
struct Lane {
    flow: usize,
    stream: Stream,
    ready: Rc<Ready>,
    engine: Engine,
    operation: Operation,
    /// Whether the far side is the source.
    reads: bool,
    size: Bytes,
    /// Lanes of this GPU, which run at the same time.
    at_once: u32,
    source: Option<End>,
    target: End,
    /// The seed of what is there, for a kernel that makes it up.
    seed: u64,
    /// Operations since the buffers were filled.
    done: u64,
    /// When it has done its part of each span.
    ends: Vec<Event>,
}

impl Copies {
    /// Acquires this rank's part of `case`; every rank calls it.
    pub(in crate::transport) fn new(
        case: &Case,
        world: &mut World,
        gpus: &Gpus,
        topology: &Topology,
    ) -> Result<Self, Error> {
        let rank = world.rank();
        let ends = Ends::new(case, world, gpus, topology)?;
        let executors = executors(case);
        let shared = if executors.len() > 1 { share_start(world)? } else { None };
        let mut lanes = Vec::new();
        for (flow, of_flow) in case.flows.iter().enumerate() {
            if of_flow.executor(case.issuer).rank == rank {
                lanes.push(Lane::new(case, flow, gpus, &ends)?);
            }
        }
        let is_executor = executors.contains(&rank);
        let start = match lanes.first().filter(|_| is_executor) {
            Some(lane) => Some(Start::new(&lane.ready.context, shared, PATIENCE / 2)?),
            None => None,
        };
        let boundaries = match lanes.first() {
            Some(lane) => events(&lane.ready, spans_behind_a_hold(lanes.len()) + 1)?,
            None => Vec::new(),
        };
        let has_several_executors = executors.len() > 1;
        let sample_time_min =
            if case.flows.len() > 1 { SAMPLE_TIME_OF_SEVERAL } else { Duration::ZERO };
        let clock = lanes.first().map(|lane| lane.ready.clock(sample_time_min));
        // Rank 0 decides by it, whether it has a GPU in this case or not; and every rank hears here
        // of one that could not get its part.
        let coarsest = |all: Vec<Option<Clock>>| {
            all.into_iter().flatten().max_by_key(|clock| clock.resolution)
        };
        let clock = world.agree(clock, coarsest)?;
        Ok(Self {
            rank,
            ends,
            lanes,
            boundaries,
            start,
            has_several_executors,
            is_first_executor: executors.first() == Some(&rank),
            clock: clock.ok_or(Error::Disagreement("no rank does the work of the case"))?,
        })
    }

    fn run_as_member(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.ends.meet("fill its buffers")?;
        if self.has_several_executors {
            for span in spans {
                self.run_with_others(operations, span)?;
            }
        } else if !self.lanes.is_empty() {
            let fitting = usize::try_from(super::OPERATIONS_MAX / operations).unwrap_or(1);
            let group = fitting.clamp(1, self.boundaries.len() - 1);
            for spans in spans.chunks_mut(group) {
                self.queue(operations, spans.len())?;
                self.go_on()?;
                self.read(spans)?;
            }
        }
        self.ends.meet("finish its flows")
    }

    /// One span that several ranks begin together.
    fn run_with_others(&mut self, operations: u64, span: &mut Span) -> Result<(), Error> {
        if !self.lanes.is_empty() {
            self.queue(operations, 1)?;
        }
        self.ends.meet("queue its flows")?;
        if self.lanes.is_empty() {
            return Ok(());
        }
        if self.is_first_executor {
            self.go_on()?;
        } else {
            self.finish()?;
        }
        self.read(std::slice::from_mut(span))
    }

    /// Queues `spans` times `operations` of every lane behind a hold. Each span begins for all
    /// lanes when the one before has ended for all.
    fn queue(&mut self, operations: u64, spans: usize) -> Result<(), Error> {
        self.queued(operations, spans).map_err(|source| Error::call("queue the work", source))
    }

    fn queued(&mut self, operations: u64, spans: usize) -> Result<(), CallError> {
        let Self { lanes, boundaries, ends, start, .. } = self;
        let Some(((first, others), start)) = lanes.split_first_mut().zip(start.as_mut()) else {
            return Ok(());
        };
        start.hold(&first.ready.kernels, &first.stream)?;
        first.stream.record(&boundaries[0])?;
        for span in 0..spans {
            for lane in &*others {
                lane.stream.wait(&boundaries[span])?;
            }
            for _ in 0..operations {
                first.queue(ends)?;
                for lane in &mut *others {
                    lane.queue(ends)?;
                }
            }
            for lane in &*others {
                lane.stream.record(&lane.ends[span])?;
                first.stream.wait(&lane.ends[span])?;
            }
            first.stream.record(&boundaries[span + 1])?;
        }
        Ok(())
    }

    /// Lets what is queued begin, and waits until it is done.
    fn go_on(&self) -> Result<(), Error> {
        if let Some(start) = &self.start {
            start.release();
        }
        self.finish()
    }

    fn finish(&self) -> Result<(), Error> {
        if let Some(lane) = self.lanes.first() {
            let finished = lane.stream.synchronize(PATIENCE);
            finished.map_err(|source| Error::call("wait for the GPU", source))?;
        }
        self.start.as_ref().map_or(Ok(()), Start::check)
    }

    /// Notes how long each span lasted.
    fn read(&self, spans: &mut [Span]) -> Result<(), Error> {
        for (span, boundary) in spans.iter_mut().zip(self.boundaries.windows(2)) {
            let elapsed = boundary[1].elapsed_since(&boundary[0]);
            let elapsed = elapsed.map_err(|source| Error::call("read the time", source))?;
            *span = Span { start_ns: Some(0), end_ns: Some(nanoseconds(elapsed)) };
        }
        Ok(())
    }
}

impl Transfer for Copies {
    fn staging(&self) -> Option<Staging> {
        None
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn is_misplaced(&self) -> bool {
        self.ends.is_misplaced
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for lane in &mut self.lanes {
            lane.seed = pattern::part_seed(seed, lane.flow as u64);
            lane.done = 0;
        }
        self.ends.buffers.iter_mut().try_for_each(|buffer| buffer.fill(seed))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if !self.ends.is_member(!self.lanes.is_empty()) {
            return Ok(());
        }
        let result = self.run_as_member(operations, spans);
        if result.is_err() {
            // What is still held would keep its GPU busy until the hold gives up.
            if let Some(start) = &self.start {
                start.release();
            }
            self.ends.give_up();
        }
        result
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        for buffer in &mut self.ends.buffers {
            let mismatch = match buffer.side {
                Side::Source => None,
                Side::Target => buffer.compare(seed, self.rank)?,
                Side::Checksum => {
                    let lane = self.lanes.iter().find(|lane| lane.flow == buffer.flow);
                    let lane = lane.ok_or(Error::Disagreement("a checksum has no flow"))?;
                    let of_one = pattern::checksum(lane.seed, lane.size.get());
                    buffer.compare_word(of_one.wrapping_mul(lane.done), self.rank)?
                }
            };
            if mismatch.is_some() {
                return Ok(mismatch);
            }
        }
        Ok(None)
    }
}

impl Lane {
    fn new(case: &Case, flow: usize, gpus: &Gpus, ends: &Ends) -> Result<Self, Error> {
        let of_flow = case.flows[flow];
        let executor = of_flow.executor(case.issuer);
        let gpu = executor.gpu().ok_or(Error::Disagreement("a flow has no GPU"))?;
        let ready = gpus.ready(gpu)?;
        let of_rank = |flow: &&Flow| flow.executor(case.issuer).rank == executor.rank;
        let lanes = case.flows.iter().filter(of_rank).count();
        let of_gpu = case.flows.iter().filter(|flow| flow.executor(case.issuer) == executor);
        let reach = |side: Side| ends.reach(case, (flow, side), gpus, &ready);
        Ok(Self {
            flow,
            stream: Stream::new(&ready.context)
                .map_err(|source| Error::call("make a stream", source))?,
            engine: case.engine,
            operation: case.operation,
            reads: case.issuer == Some(Issuer::Read) || of_flow.source.gpu() != Some(gpu),
            size: case.size,
            at_once: u32::try_from(of_gpu.count()).unwrap_or(u32::MAX),
            source: match case.operation {
                Operation::WriteOnly => None,
                _ => Some(reach(Side::Source)?),
            },
            target: match case.operation {
                Operation::ReadOnly => reach(Side::Checksum)?,
                _ => reach(Side::Target)?,
            },
            seed: 0,
            done: 0,
            ends: events(&ready, spans_behind_a_hold(lanes))?,
            ready,
        })
    }

    /// Queues one operation.
    #[inline]
    fn queue(&mut self, ends: &Ends) -> Result<(), CallError> {
        self.done += 1;
        let (stream, kernels, at_once) = (&self.stream, &self.ready.kernels, self.at_once);
        let target = self.target.all(ends);
        let Some(source) = &self.source else {
            return kernels.write_only(stream, target, self.seed, at_once);
        };
        let source = source.all(ends);
        match (self.operation, self.engine) {
            (Operation::ReadOnly, _) => kernels.read_only(stream, source, target, at_once),
            (_, Engine::Sm) if self.reads => kernels.copy_by_read(stream, target, source, at_once),
            (_, Engine::Sm) => kernels.copy_by_write(stream, target, source, at_once),
            _ => stream.copy(target, source),
        }
    }
}

fn spans_behind_a_hold(lanes: usize) -> usize {
    if lanes > 1 { SPANS_OF_SEVERAL } else { SPANS_OF_ONE }
}

fn events(ready: &Ready, count: usize) -> Result<Vec<Event>, Error> {
    let events: Result<Vec<Event>, CallError> =
        (0..count).map(|_| Event::new(&ready.context)).collect();
    events.map_err(|source| Error::call("make events", source))
}

/// The ranks whose GPUs do the flows, each once, in ascending order.
fn executors(case: &Case) -> Vec<Rank> {
    let mut ranks: Vec<Rank> =
        case.flows.iter().map(|flow| flow.executor(case.issuer).rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}
