//! One GPU's part in a collective: its buffers, its stream, and the work queued there.

use std::{fmt, rc::Rc};

use super::{
    buffers::{Buffers, RankDevice},
    data::{Expected, Part, source_seed},
};
use crate::{
    ffi::{
        CallError,
        cuda::{Buffer, Event, Memory as _, Slice, Stream},
        nccl::{At, Call, Communicator, Factor, Group},
    },
    plan::{Collective, DataType, Peers, Rank, Reduction},
    transport::{Error, Mismatch, gpu::Ready, values::Values},
    units::Bytes,
};

/// What all ranks reduce before a span, so that all begin it together.
const MEETING: Bytes = Bytes::new(16);

impl fmt::Display for RankStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (GPU {})", self.part.number, self.ready.context.device().ordinal())
    }
}

/// One GPU's part.
pub(super) struct RankStream {
    pub(super) part: Part,
    pub(super) ready: Rc<Ready>,
    pub(super) stream: Stream,
    pub(super) communicator: Rc<Communicator>,
    /// The communicator of all ranks: another one if they are split.
    pub(super) all: Rc<Communicator>,
    /// When each span begins and ends.
    pub(super) begins: Vec<Event>,
    pub(super) ends: Vec<Event>,
    buffers: Buffers,
    /// What is given in place, where an operation leaves something else there.
    kept: Option<Buffer>,
    meeting: Buffer,
}

impl RankStream {
    pub(super) fn new(device: RankDevice, buffers: Buffers) -> Result<Self, Error> {
        let RankDevice { part, ready, communicator, all } = device;
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
        let (offset, _) = self.part.offsets(operation);
        self.buffers.given.as_ref().unwrap_or(&self.buffers.received).slice(offset, size)
    }

    /// Where operation number `operation` leaves its data.
    fn target(&self, operation: u64) -> Slice<'_> {
        let size = self.part.nccl.data_type.size().times(self.part.layout.received);
        let (_, offset) = self.part.offsets(operation);
        self.buffers.received.slice(offset, size)
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
        let all = self.meeting.all();
        let call = Call {
            collective: Collective::AllReduce,
            source: all,
            target: all,
            data_type: DataType::Int32,
            reduction: Reduction::Sum,
            factor: None,
            root: None,
            peers: Peers::default(),
        };
        group.queue(At { communicator: &self.all, stream: &self.stream }, call)
    }

    /// This rank's factor in a sum of products.
    pub(super) fn factor(&self) -> Result<Option<Factor<'_>>, CallError> {
        let Some(values) = self.part.values() else { return Ok(None) };
        if self.part.nccl.reduction != Some(Reduction::MulSum) {
            return Ok(None);
        }
        let bits = values.encode(i64::from(Values::factor(self.part.number))).to_le_bytes();
        let data_type = self.part.nccl.data_type;
        let size = data_type.size().to_len().unwrap_or(bits.len());
        Factor::new(&self.communicator, data_type, &bits[..size]).map(Some)
    }

    /// Queues operation number `operation`.
    pub(super) fn queue<'a>(
        &'a self,
        group: &mut Group<'a>,
        operation: u64,
        factor: Option<&'a Factor<'a>>,
    ) -> Result<(), CallError> {
        let call = Call {
            collective: self.part.collective,
            source: self.source(operation),
            target: self.target(operation),
            data_type: self.part.nccl.data_type,
            reduction: self.part.nccl.reduction.unwrap_or(Reduction::Sum),
            factor,
            root: self.part.nccl.root,
            peers: self.part.peers,
        };
        group.queue(At { communicator: &self.communicator, stream: &self.stream }, call)
    }

    /// Compares what was received with what operation number `operation` must have left.
    pub(super) fn verify(&self, seed: u64, operation: u64) -> Result<Option<Mismatch>, Error> {
        let rank = Rank(self.part.member);
        for expected in self.part.expected(self.part.seed(seed), operation) {
            let wrong = match (expected, self.part.values()) {
                (Expected::Pattern { range, seed }, _) => {
                    self.ready.compare(self.at(&range), seed, rank).map(|wrong| (wrong, range))
                }
                (Expected::Reduced { range, seed }, Some(values)) => {
                    let found = self.ready.compare_reduced(self.at(&range), &values, seed, rank);
                    found.map(|wrong| (wrong, range))
                }
                (Expected::Reduced { .. }, None) => {
                    return Err(Error::Disagreement("a reduction has no numbers"));
                }
            };
            let (wrong, range) = wrong.map_err(|source| Error::call("verify a buffer", source))?;
            if let Some(wrong) = wrong {
                // The offset counts from the beginning of what was received.
                let (_, begin) = self.part.offsets(operation);
                let offset = range.start - begin.get() + wrong.offset;
                return Ok(Some(Mismatch { offset, ..wrong }));
            }
        }
        Ok(None)
    }

    fn at(&self, range: &std::ops::Range<u64>) -> Slice<'_> {
        self.buffers.received.slice(Bytes::new(range.start), Bytes::new(range.end - range.start))
    }
}
