//! Transfers whose flows are each one operation of one stream: copies by engines and by kernels,
//! and kernels that only read or only write.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use super::{
    Gpus, PATIENCE, Ready, Side, Start, agree_on_clock, elapsed,
    endpoints::{Endpoints, FlowBuffer, sides},
};
use crate::{
    ffi::{
        CallError,
        cuda::{Event, Stream},
    },
    plan::{Case, Engine, Flow, Issuer, Rank},
    transport::{Clock, Error, Mismatch, Span, Transfer, pattern},
    units::Bytes,
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
    /// The flows that this rank's GPUs do. Dropped before the endpoints, which wait until other
    /// ranks have closed what they opened here: otherwise two ranks would wait for each other.
    streams: Vec<FlowStream>,
    endpoints: Endpoints,
    /// The beginning and the end of each span of all flows, on the first flow's stream.
    boundaries: Vec<Event>,
    start: Option<Start>,
    /// Whether the flows are done by several ranks.
    has_several_executors: bool,
    clock: Clock,
}

/// A flow that this rank's GPU does, on a stream of its own.
#[derive(Debug)]
struct FlowStream {
    flow: usize,
    stream: Stream,
    ready: Rc<Ready>,
    engine: Engine,
    /// Whether the source is in the other endpoint's memory.
    reads: bool,
    size: Bytes,
    /// Flows of this GPU, which run at the same time.
    at_once: u32,
    source: Option<FlowBuffer>,
    target: FlowBuffer,
    target_side: Side,
    /// The seed of what is there, for a kernel that makes it up.
    seed: u64,
    /// Operations since the buffers were filled.
    done: u64,
    /// The end of its part of each span.
    finished: Vec<Event>,
}

impl Copies {
    /// Acquires this rank's part of `case`; every rank calls it.
    pub(in crate::transport) fn new(
        case: &Case,
        world: &mut World,
        gpus: &Gpus,
    ) -> Result<Self, Error> {
        let rank = world.rank();
        let endpoints = Endpoints::new(case, world, gpus)?;
        let mut streams = Vec::new();
        for (flow, of_flow) in case.flows.iter().enumerate() {
            if of_flow.executor(case.issuer).rank == rank {
                streams.push(FlowStream::new(case, flow, gpus, &endpoints)?);
            }
        }
        let ready = streams.first().map(|first: &FlowStream| Rc::clone(&first.ready));
        let executors: BTreeSet<Rank> =
            case.flows.iter().map(|flow| flow.executor(case.issuer).rank).collect();
        let start = Start::together(&executors, ready.as_deref(), world)?;
        let boundaries = match &ready {
            Some(ready) => events(ready, spans_behind_a_hold(streams.len()) + 1)?,
            None => Vec::new(),
        };
        let has_several_executors = executors.len() > 1;
        let sample_time_min =
            if case.flows.len() > 1 { SAMPLE_TIME_OF_SEVERAL } else { Duration::ZERO };
        let clock = ready.map(|ready| ready.clock(sample_time_min));
        Ok(Self {
            rank,
            endpoints,
            streams,
            boundaries,
            start,
            has_several_executors,
            clock: agree_on_clock(clock, world)?,
        })
    }

    fn run_as_member(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.endpoints.meet("fill its buffers")?;
        if self.has_several_executors {
            for span in spans {
                self.run_with_others(operations, span)?;
            }
        } else if !self.streams.is_empty() {
            let fitting = usize::try_from(super::OPERATIONS_MAX / operations).unwrap_or(1);
            let group = fitting.clamp(1, self.boundaries.len() - 1);
            for spans in spans.chunks_mut(group) {
                self.queue(operations, spans.len())?;
                self.go_on()?;
                self.read(spans)?;
            }
        }
        self.endpoints.meet("finish its flows")
    }

    /// One span that several ranks begin together.
    fn run_with_others(&mut self, operations: u64, span: &mut Span) -> Result<(), Error> {
        if !self.streams.is_empty() {
            self.queue(operations, 1)?;
        }
        self.endpoints.meet("queue its flows")?;
        if self.streams.is_empty() {
            return Ok(());
        }
        match &self.start {
            Some(start) if start.leads => self.go_on()?,
            _ => self.finish()?,
        }
        self.read(std::slice::from_mut(span))
    }

    /// Queues `spans` times `operations` of every flow behind a hold. Each span begins for all
    /// flows when the one before has ended for all.
    fn queue(&mut self, operations: u64, spans: usize) -> Result<(), Error> {
        self.queued(operations, spans).map_err(|source| Error::call("queue the work", source))
    }

    fn queued(&mut self, operations: u64, spans: usize) -> Result<(), CallError> {
        let Self { streams, boundaries, endpoints, start, .. } = self;
        let Some(((first, others), start)) = streams.split_first_mut().zip(start.as_mut()) else {
            return Ok(());
        };
        start.hold(&first.ready.kernels, &first.stream)?;
        first.stream.record(&boundaries[0])?;
        for span in 0..spans {
            for other in &*others {
                other.stream.wait(&boundaries[span])?;
            }
            for _ in 0..operations {
                first.queue(endpoints)?;
                for other in &mut *others {
                    other.queue(endpoints)?;
                }
            }
            for other in &*others {
                other.stream.record(&other.finished[span])?;
                first.stream.wait(&other.finished[span])?;
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
        if let Some(first) = self.streams.first() {
            let finished = first.stream.synchronize(PATIENCE);
            finished.map_err(|source| Error::call("wait for the GPU", source))?;
        }
        self.start.as_ref().map_or(Ok(()), Start::check)
    }

    /// Notes how long each span lasted.
    fn read(&self, spans: &mut [Span]) -> Result<(), Error> {
        for (span, boundary) in spans.iter_mut().zip(self.boundaries.windows(2)) {
            *span = Span::lasting(elapsed(&boundary[0], &boundary[1])?);
        }
        Ok(())
    }
}

impl Transfer for Copies {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn is_misplaced(&self) -> bool {
        self.endpoints.is_misplaced
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for stream in &mut self.streams {
            stream.seed = pattern::part_seed(seed, stream.flow as u64);
            stream.done = 0;
        }
        self.endpoints.buffers.iter_mut().try_for_each(|buffer| buffer.fill(seed))
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        if !self.endpoints.is_member(!self.streams.is_empty()) {
            return Ok(());
        }
        let result = self.run_as_member(operations, spans);
        if result.is_err() {
            // What is still held would keep its GPU busy until the hold gives up.
            if let Some(start) = &self.start {
                start.release();
            }
            self.endpoints.give_up();
        }
        result
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        for buffer in &mut self.endpoints.buffers {
            let mismatch = match buffer.side {
                Side::Source => None,
                Side::Target => buffer.compare(seed, self.rank)?,
                Side::Checksum => {
                    let stream = self.streams.iter().find(|stream| stream.flow == buffer.flow);
                    let stream = stream.ok_or(Error::Disagreement("a checksum has no flow"))?;
                    let of_one = pattern::checksum(stream.seed, stream.size.get());
                    buffer.compare_word(of_one.wrapping_mul(stream.done), self.rank)?
                }
            };
            if mismatch.is_some() {
                return Ok(mismatch);
            }
        }
        Ok(None)
    }
}

impl FlowStream {
    fn new(case: &Case, flow: usize, gpus: &Gpus, endpoints: &Endpoints) -> Result<Self, Error> {
        let of_flow = case.flows[flow];
        let executor = of_flow.executor(case.issuer);
        let gpu = executor.gpu().ok_or(Error::Disagreement("a flow has no GPU"))?;
        let ready = gpus.ready(gpu)?;
        let of_rank = |flow: &&Flow| flow.executor(case.issuer).rank == executor.rank;
        let streams = case.flows.iter().filter(of_rank).count();
        let of_gpu = case.flows.iter().filter(|flow| flow.executor(case.issuer) == executor);
        let sides = sides(case.operation)?;
        let target_side =
            if sides.contains(&Side::Checksum) { Side::Checksum } else { Side::Target };
        let reach = |side: Side| endpoints.reach(case, flow, side, gpus);
        Ok(Self {
            flow,
            stream: Stream::new(&ready.context)
                .map_err(|source| Error::call("make a stream", source))?,
            engine: case.engine,
            reads: case.issuer == Some(Issuer::Read) || of_flow.source.gpu() != Some(gpu),
            size: case.size,
            at_once: u32::try_from(of_gpu.count()).unwrap_or(u32::MAX),
            source: match sides.contains(&Side::Source) {
                true => Some(reach(Side::Source)?),
                false => None,
            },
            target: reach(target_side)?,
            target_side,
            seed: 0,
            done: 0,
            finished: events(&ready, spans_behind_a_hold(streams))?,
            ready,
        })
    }

    /// Queues one operation.
    #[inline]
    fn queue(&mut self, endpoints: &Endpoints) -> Result<(), CallError> {
        self.done += 1;
        let (stream, kernels, at_once) = (&self.stream, &self.ready.kernels, self.at_once);
        let target = self.target.all(endpoints);
        let Some(source) = &self.source else {
            return kernels.write_only(stream, target, self.seed, at_once);
        };
        let source = source.all(endpoints);
        if self.target_side == Side::Checksum {
            return kernels.read_only(stream, source, target, at_once);
        }
        match self.engine {
            Engine::Sm if self.reads => kernels.copy_by_read(stream, target, source, at_once),
            Engine::Sm => kernels.copy_by_write(stream, target, source, at_once),
            Engine::Ce | Engine::Cpu | Engine::Nic => stream.copy(target, source),
        }
    }
}

fn spans_behind_a_hold(streams: usize) -> usize {
    if streams > 1 { SPANS_OF_SEVERAL } else { SPANS_OF_ONE }
}

fn events(ready: &Ready, count: usize) -> Result<Vec<Event>, Error> {
    let events: Result<Vec<Event>, CallError> =
        (0..count).map(|_| Event::new(&ready.context)).collect();
    events.map_err(|source| Error::call("make events", source))
}
