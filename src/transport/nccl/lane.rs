//! One GPU's part in a collective: its buffers, its stream, and what is queued there.

use std::{fmt, rc::Rc};

use super::{
    buffers::{Buffers, Seat},
    data::{Expected, Part, source_seed},
    element,
};
use crate::{
    ffi::{
        CallError,
        cuda::{Buffer, Event, Memory as _, Slice, Stream},
        nccl::{Communicator, DataType, Factor, Feature, Group, Library, Reduction},
    },
    plan::{self, Collective, Rank},
    transport::{Error, Mismatch, gpu::Ready, values::Values},
    units::Bytes,
};

/// What all ranks reduce before a span, so that all begin it together.
const MEETING: Bytes = Bytes::new(16);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (GPU {})", self.part.number, self.ready.context.device().ordinal())
    }
}

/// One GPU's part.
pub(super) struct Lane {
    pub(super) part: Part,
    pub(super) ready: Rc<Ready>,
    pub(super) stream: Stream,
    pub(super) communicator: Rc<Communicator>,
    /// That of all ranks, where it is another one.
    pub(super) all: Rc<Communicator>,
    /// When each span begins and ends.
    pub(super) begins: Vec<Event>,
    pub(super) ends: Vec<Event>,
    buffers: Buffers,
    /// What is given in place, where an operation leaves something else there.
    kept: Option<Buffer>,
    meeting: Buffer,
}

impl Lane {
    pub(super) fn new(seat: Seat, buffers: Buffers) -> Result<Self, Error> {
        let Seat { part, ready, communicator, all } = seat;
        let allocate = |size| {
            Buffer::new(&ready.context, size)
                .map_err(|source| Error::call("allocate a buffer", source))
        };
        Ok(Self {
            part,
            stream: Stream::new(&ready.context)
                .map_err(|source| Error::call("make a stream", source))?,
            communicator,
            all,
            begins: Vec::new(),
            ends: Vec::new(),
            kept: part.consumes().then(|| allocate(buffers.received.size())).transpose()?,
            buffers,
            meeting: allocate(MEETING)?,
            ready,
        })
    }

    /// Writes what is given, and over what is to be received.
    pub(super) fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.filled(seed).map_err(|source| Error::call("fill a buffer", source))
    }

    fn filled(&self, seed: u64) -> Result<(), CallError> {
        let (kernels, stream, part) = (&self.ready.kernels, &self.stream, self.part);
        let seed = part.seed(seed);
        let own = source_seed(seed, part.number);
        kernels.poison(stream, self.buffers.received.all(), own)?;
        if part.gives() {
            let target = match &self.buffers.given {
                Some(given) => given.all(),
                None => self.source(0),
            };
            match part.values() {
                Some(values) => {
                    kernels.give(stream, target, values.reduced(seed), part.number)?;
                }
                None => kernels.fill(stream, target, own)?,
            }
        }
        if let Some(kept) = &self.kept {
            stream.copy(kept.all(), self.buffers.received.all())?;
        }
        stream.synchronize(crate::transport::gpu::PATIENCE)
    }

    /// What operation number `operation` takes.
    fn source(&self, operation: u64) -> Slice<'_> {
        let size = self.part.nccl.data_type.size().times(self.part.layout.sent);
        let (place, _) = self.part.places(operation);
        self.buffers.given.as_ref().unwrap_or(&self.buffers.received).slice(place, size)
    }

    /// Where operation number `operation` leaves its data.
    fn target(&self, operation: u64) -> Slice<'_> {
        let size = self.part.nccl.data_type.size().times(self.part.layout.received);
        let (_, place) = self.part.places(operation);
        self.buffers.received.slice(place, size)
    }

    /// Whether all is well with what was queued.
    pub(super) fn async_error(&self) -> Result<(), CallError> {
        self.communicator.async_error().and_then(|()| self.all.async_error())
    }

    /// Gives up all that is under way.
    pub(super) fn abort(&self) {
        self.communicator.abort();
        self.all.abort();
    }

    /// Queues bringing back what an operation in place has taken.
    pub(super) fn restore(&self) -> Result<(), CallError> {
        match &self.kept {
            Some(kept) => self.stream.copy(self.buffers.received.all(), kept.all()),
            None => Ok(()),
        }
    }

    /// Queues a reduction that no rank leaves before all have come.
    pub(super) fn meet<'a>(&'a self, group: &mut Group<'a>) -> Result<(), CallError> {
        let all = (self.meeting.all(), self.meeting.all());
        group.all_reduce((&self.all, &self.stream), all, DataType::Int32, Reduction::Sum)
    }

    /// This rank's factor in a sum of products.
    pub(super) fn factor(&self) -> Result<Option<Factor<'_>>, CallError> {
        let Some(values) = self.part.values() else { return Ok(None) };
        if self.part.nccl.reduction != Some(plan::Reduction::MulSum) {
            return Ok(None);
        }
        let bits = values.encode(i64::from(Values::factor(self.part.number))).to_le_bytes();
        let kind = element(self.part.nccl.data_type);
        let size = self.part.nccl.data_type.size().to_len().unwrap_or(bits.len());
        Factor::new(&self.communicator, kind, &bits[..size]).map(Some)
    }

    /// Queues operation number `operation`.
    pub(super) fn queue<'a>(
        &'a self,
        group: &mut Group<'a>,
        library: &Library,
        operation: u64,
        factor: Option<&'a Factor<'a>>,
    ) -> Result<(), CallError> {
        let at = (&*self.communicator, &self.stream);
        let kind = element(self.part.nccl.data_type);
        let both = (self.source(operation), self.target(operation));
        let root = self.part.nccl.root.unwrap_or(0);
        let reduction = self.reduction(factor);
        match self.part.collective {
            Collective::AllReduce => group.all_reduce(at, both, kind, reduction),
            Collective::AllGather => group.all_gather(at, both, kind),
            Collective::ReduceScatter => group.reduce_scatter(at, both, kind, reduction),
            Collective::Broadcast => group.broadcast(at, both, kind, root),
            Collective::Reduce => group.reduce(at, both, kind, (reduction, root)),
            Collective::AllToAll if library.lacks(Feature::AllToAll).is_none() => {
                group.all_to_all(at, both, kind)
            }
            Collective::Gather if library.lacks(Feature::Gather).is_none() => {
                group.gather(at, both, kind, root)
            }
            Collective::Scatter if library.lacks(Feature::Scatter).is_none() => {
                group.scatter(at, both, kind, root)
            }
            Collective::SendRecv => {
                let (to, from) = self.part.peers;
                to.map_or(Ok(()), |to| group.send(at, both.0, kind, to))?;
                from.map_or(Ok(()), |from| group.receive(at, both.1, kind, from))
            }
            Collective::AllToAll | Collective::Gather | Collective::Scatter => {
                self.queue_parts(group, both)
            }
        }
    }

    /// The same by messages, part by part, for a library that has no call for it.
    fn queue_parts<'a>(
        &'a self,
        group: &mut Group<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
    ) -> Result<(), CallError> {
        let at = (&*self.communicator, &self.stream);
        let kind = element(self.part.nccl.data_type);
        let size = self.part.nccl.data_type.size().times(self.part.layout.count);
        let is_root = |rank| self.part.nccl.root.is_none_or(|root| root == rank);
        let of = |memory: Slice<'a>, rank: u32| match memory.size() == size {
            true => memory,
            false => memory.slice(size.times(u64::from(rank)), size),
        };
        let own = self.part.number;
        for peer in 0..self.part.nccl.ranks {
            let (sends, receives) = match self.part.collective {
                Collective::Gather => (is_root(peer), is_root(own)),
                Collective::Scatter => (is_root(own), is_root(peer)),
                _ => (true, true),
            };
            if sends {
                group.send(at, of(source, peer), kind, peer)?;
            }
            if receives {
                group.receive(at, of(target, peer), kind, peer)?;
            }
        }
        Ok(())
    }

    fn reduction<'a>(&self, factor: Option<&'a Factor<'a>>) -> Reduction<'a> {
        match (self.part.nccl.reduction, factor) {
            (_, Some(factor)) => Reduction::Scaled(factor),
            (Some(plan::Reduction::Prod), _) => Reduction::Product,
            (Some(plan::Reduction::Max), _) => Reduction::Maximum,
            (Some(plan::Reduction::Min), _) => Reduction::Minimum,
            (Some(plan::Reduction::Avg), _) => Reduction::Average,
            _ => Reduction::Sum,
        }
    }

    /// Compares what was received with what operation number `operation` must have left.
    pub(super) fn verify(&self, seed: u64, operation: u64) -> Result<Option<Mismatch>, Error> {
        let rank = Rank(self.part.member);
        for expected in self.part.expected(self.part.seed(seed), operation) {
            let wrong = match (expected, self.part.values()) {
                (Expected::Pattern { place, seed }, _) => {
                    self.ready.compare(self.at(&place), seed, rank).map(|wrong| (wrong, place))
                }
                (Expected::Reduced { place, seed }, Some(values)) => {
                    let found = self.ready.compare_reduced(self.at(&place), &values, seed, rank);
                    found.map(|wrong| (wrong, place))
                }
                (Expected::Reduced { .. }, None) => {
                    return Err(Error::Disagreement("a reduction has no numbers"));
                }
            };
            let (wrong, place) = wrong.map_err(|source| Error::call("verify a buffer", source))?;
            if let Some(wrong) = wrong {
                // The offset counts from the beginning of what was received.
                let (_, begin) = self.part.places(operation);
                let offset = place.start - begin.get() + wrong.offset;
                return Ok(Some(Mismatch { offset, ..wrong }));
            }
        }
        Ok(None)
    }

    fn at(&self, place: &std::ops::Range<u64>) -> Slice<'_> {
        self.buffers.received.slice(Bytes::new(place.start), Bytes::new(place.end - place.start))
    }
}
