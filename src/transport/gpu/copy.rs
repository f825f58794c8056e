//! Transfers whose flows are each one operation of one stream: copies by engines and by kernels,
//! and kernels that only read or only write. Of what NVLink switches do for several GPUs at once,
//! each GPU that issues has a stream.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Content, Copier, ENTRIES_MAX, Gpus, PATIENCE, Side, Start, agree_on_clock, elapsed,
    endpoints::{Endpoints, FlowBuffer, sides},
    join,
    team::Team,
};
use crate::{
    ffi::{CallError, cuda::Event},
    plan::{Case, Endpoint, Flow, Issuer, Rank},
    transport::{
        Clock, Conclusion, Empty, Error, Mismatch, Span, Transfer, TryingTo, first_mismatch,
        pattern,
    },
    units::Bytes,
    world::World,
};

/// The shortest sample of several flows. Flows do not begin and end together, and ranks that watch
/// one flag begin up to about a microsecond apart.
const SAMPLE_TIME_OF_SEVERAL: Duration = Duration::from_millis(1);

/// This rank's part of a case.
#[derive(Debug)]
pub(super) struct Copies {
    rank: Rank,
    /// The flows that this rank's GPUs execute. Dropped before the endpoints, which wait until
    /// other ranks have closed this rank's memory. In the other order two ranks would wait for each
    /// other.
    streams: Vec<FlowStream>,
    endpoints: Endpoints,
    /// The memory of an operation of switches.
    team: Option<Team>,
    /// The beginning and the end of each span of all flows, on the first flow's stream.
    boundaries: Vec<Event>,
    start: Start,
    /// Whether several ranks execute the flows.
    has_several_executors: bool,
    clock: Clock,
}

/// A flow that this rank's GPU executes, on a stream of its own.
#[derive(Debug)]
struct FlowStream {
    /// Its number; where switches do the work, the GPU's number among those that issue.
    flow: usize,
    copier: Copier,
    size: Bytes,
    /// What it works on; `None`: memory of the team.
    buffers: Option<Buffers>,
    /// The seed of the data, for a kernel that generates it.
    seed: u64,
    /// Operations since the buffers were filled.
    done: u64,
    /// The end of its part of each span.
    finished: Vec<Event>,
}

/// What a flow works on.
#[derive(Debug)]
struct Buffers {
    source: Option<FlowBuffer>,
    target: FlowBuffer,
    target_side: Side,
}

impl Copies {
    /// Acquires this rank's part of `case`; every rank calls it.
    pub(super) fn new(case: &Case, world: &mut World, gpus: &Gpus) -> Result<Self, Error> {
        let rank = world.rank();
        let endpoints = Endpoints::new(case, world, gpus)?;
        let executor = |flow: &Flow| flow.executor(case.issuer).rank;
        let is_switched = case.operation.is_switched();
        let streams: Result<Vec<FlowStream>, Error> = if is_switched {
            let issuers = case.issuers().into_iter().enumerate();
            let own = issuers.filter(|(_, end)| end.rank == rank);
            own.map(|(number, end)| FlowStream::issuing(case, number, end, gpus)).collect()
        } else {
            let own = (0..case.flows.len()).filter(|&flow| executor(&case.flows[flow]) == rank);
            own.map(|flow| FlowStream::new(case, flow, gpus, &endpoints)).collect()
        };
        let streams = streams?;
        let team = is_switched.then(|| Team::new(case, world, gpus)).transpose()?;
        let ready = streams.first().map(|first| &first.copier.ready);
        let executors: BTreeSet<Rank> = case.flows.iter().map(executor).collect();
        if endpoints.is_apart && executors.len() > 1 {
            return Err(Error::Disagreement("ranks of several hosts cannot start together"));
        }
        let start = Start::together(&executors, ready, world)?;
        let boundaries = ready.map(|ready| ready.events(spans_together(1, streams.len()) + 1));
        let is_single = case.flows.len() == 1 || is_switched && case.issuers().len() == 1;
        let sample_time_min = if is_single { Duration::ZERO } else { SAMPLE_TIME_OF_SEVERAL };
        let clock = ready.map(|ready| ready.clock(sample_time_min));
        let mut made = Self {
            rank,
            endpoints,
            team,
            boundaries: boundaries.transpose()?.unwrap_or_default(),
            streams,
            start,
            has_several_executors: executors.len() > 1,
            clock: agree_on_clock(clock, world)?,
        };
        // What the driver does at the first use of a kernel, or of a kind of copy, waits until the
        // GPU is at rest. Behind a hold that would be when the hold times out.
        made.run_if_member(Content::Operations(1), &mut [Span::default()], false)?;
        Ok(made)
    }

    fn run_if_member(
        &mut self,
        content: Content,
        spans: &mut [Span],
        is_held: bool,
    ) -> Result<(), Error> {
        if !self.endpoints.is_member {
            return Ok(());
        }
        self.run_as_member(content, spans, is_held).inspect_err(|_| {
            // Held work would keep its GPU busy until the hold times out.
            self.start.release();
            self.endpoints.give_up();
        })
    }

    /// Runs the spans in groups that are queued together, each behind a hold if `is_held`. If
    /// several ranks execute flows, a group is one span.
    fn run_as_member(
        &mut self,
        content: Content,
        spans: &mut [Span],
        is_held: bool,
    ) -> Result<(), Error> {
        self.endpoints.meet("fill its buffers")?;
        let group = if self.has_several_executors {
            1
        } else {
            spans_together(content.entries(), self.streams.len())
        };
        for spans in spans.chunks_mut(group) {
            self.queue(content, spans.len(), is_held).trying_to("queue the work")?;
            if self.has_several_executors {
                self.endpoints.meet("queue its flows")?;
            }
            if self.start.leads {
                self.start.release();
            }
            if let Some(first) = self.streams.first() {
                first.copier.stream.synchronize(PATIENCE).trying_to("wait for the GPU")?;
            }
            self.start.check()?;
            for (span, boundary) in spans.iter_mut().zip(self.boundaries.windows(2)) {
                *span = Span::lasting(elapsed(&boundary[0], &boundary[1])?);
            }
        }
        self.endpoints.meet("finish its flows")
    }

    /// Queues `spans` times the `content`, behind a hold if `is_held`. Each span begins for all
    /// flows when the one before has ended for all.
    fn queue(&mut self, content: Content, spans: usize, is_held: bool) -> Result<(), CallError> {
        let Self { streams, boundaries, endpoints, team, start, .. } = self;
        let team = team.as_ref();
        let Some(first) = streams.first() else { return Ok(()) };
        start.begin(&first.copier.ready, &first.copier.stream, &boundaries[0], is_held)?;
        for span in 0..spans {
            for other in &streams[1..] {
                other.copier.stream.wait(&boundaries[span])?;
            }
            match content {
                Content::Operations(operations) => {
                    for _ in 0..operations {
                        let queue = |stream: &mut FlowStream| stream.queue(endpoints, team);
                        streams.iter_mut().try_for_each(queue)?;
                    }
                }
                Content::Empty(Empty::Span) => {}
                Content::Empty(Empty::Kernel) => {
                    let Copier { ready, stream, .. } = &streams[0].copier;
                    ready.kernels.nothing(stream)?;
                }
            }
            join(streams.len(), |place| match place {
                0 => (&streams[0].copier.stream, &boundaries[span + 1]),
                _ => (&streams[place].copier.stream, &streams[place].finished[span]),
            })?;
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

    fn is_apart(&self) -> bool {
        self.endpoints.is_apart
    }

    fn fill(&mut self, seed: u64) -> Result<(), Error> {
        for stream in &mut self.streams {
            stream.seed = pattern::part_seed(seed, stream.flow as u64);
            stream.done = 0;
        }
        self.team.iter_mut().try_for_each(|team| team.fill(seed))?;
        self.endpoints.buffers.iter_mut().try_for_each(|buffer| buffer.fill(seed))
    }

    fn conclude(&mut self, world: &mut World) -> Result<Conclusion, Error> {
        if self.endpoints.is_apart || self.team.is_some() {
            // Nobody frees what another host has open.
            self.streams.clear();
            world.barrier()?;
        }
        Ok(Conclusion::default())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.run_if_member(Content::Operations(operations), spans, true)
    }

    fn run_empty(&mut self, empty: Empty, spans: &mut [Span]) -> Result<(), Error> {
        self.run_if_member(Content::Empty(empty), spans, true)
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let Self { rank, streams, endpoints, team, .. } = self;
        if let Some(team) = team {
            return team.verify(seed);
        }
        first_mismatch(endpoints.buffers.iter_mut().map(|buffer| match buffer.side {
            Side::Source => Ok(None),
            Side::Target => buffer.compare(seed, *rank),
            Side::Checksum => {
                let stream = streams.iter().find(|stream| stream.flow == buffer.flow);
                let stream = stream.ok_or(Error::Disagreement("a checksum has no flow"))?;
                let of_one = pattern::checksum(stream.seed, stream.size.get());
                buffer.compare_word(of_one.wrapping_mul(stream.done), *rank)
            }
        }))
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
        let reads = case.issuer == Some(Issuer::Read) || of_flow.source.gpu() != Some(gpu);
        let sides = sides(case.operation)?;
        let target_side =
            if sides.contains(&Side::Checksum) { Side::Checksum } else { Side::Target };
        let reach = |side: Side| endpoints.reach(case, flow, side, gpus);
        let has_source = sides.contains(&Side::Source);
        let buffers = Buffers {
            source: has_source.then(|| reach(Side::Source)).transpose()?,
            target: reach(target_side)?,
            target_side,
        };
        Ok(Self {
            flow,
            finished: ready.events(spans_together(1, streams))?,
            copier: Copier::new(ready, case.engine, reads, of_gpu.count())?,
            size: case.size,
            buffers: Some(buffers),
            seed: 0,
            done: 0,
        })
    }

    /// The stream of a GPU of this rank that issues an operation of switches.
    fn issuing(case: &Case, number: usize, end: Endpoint, gpus: &Gpus) -> Result<Self, Error> {
        let gpu = end.gpu().ok_or(Error::Disagreement("a flow has no GPU"))?;
        let ready = gpus.ready(gpu)?;
        let streams = case.issuers().iter().filter(|issuer| issuer.rank == end.rank).count();
        Ok(Self {
            flow: number,
            finished: ready.events(spans_together(1, streams))?,
            copier: Copier::new(ready, case.engine, false, 1)?,
            size: case.size,
            buffers: None,
            seed: 0,
            done: 0,
        })
    }

    /// Queues one operation.
    #[inline]
    fn queue(&mut self, endpoints: &Endpoints, team: Option<&Team>) -> Result<(), CallError> {
        self.done += 1;
        let Some(buffers) = &self.buffers else {
            return team.map_or(Ok(()), |team| team.queue(self.flow, &self.copier, self.seed));
        };
        let Copier { ready, stream, at_once, .. } = &self.copier;
        let target = buffers.target.all(endpoints);
        let Some(source) = &buffers.source else {
            return ready.kernels.write_only(stream, target, self.seed, *at_once);
        };
        let source = source.all(endpoints);
        match buffers.target_side {
            Side::Checksum => ready.kernels.read_only(stream, source, target, *at_once),
            Side::Source | Side::Target => self.copier.copy(target, source),
        }
    }
}

impl Content {
    /// What it takes of each stream's queue.
    fn entries(self) -> u64 {
        match self {
            Self::Operations(operations) => operations,
            Self::Empty(_) => 1,
        }
    }
}

/// What a span takes of a stream's queue beside its content: of one stream the record of its end,
/// of several also a wait for its beginning, and for two other streams.
const fn entries_of_a_span(streams: usize) -> u64 {
    if streams > 1 { 4 } else { 1 }
}

/// How many spans of so many `entries` of each of `streams` are queued together; one at least.
/// Beside them the first stream takes the hold and the beginning.
fn spans_together(entries: u64, streams: usize) -> usize {
    let fitting = (ENTRIES_MAX - 2) / (entries + entries_of_a_span(streams));
    usize::try_from(fitting).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::gpu::OPERATIONS_MAX;

    #[test]
    fn what_is_queued_behind_a_hold_fits_into_a_queue() {
        for (operations, streams) in [(1, 1), (1, 240), (3, 56), (100, 2), (OPERATIONS_MAX, 7)] {
            let spans = spans_together(operations, streams) as u64;
            let entries = 2 + spans * (operations + entries_of_a_span(streams));
            assert!(spans > 0 && entries <= ENTRIES_MAX, "{operations}: {entries}");
        }
        assert_eq!([1, OPERATIONS_MAX].map(|count| spans_together(count, 1)), [127, 1]);
    }
}
