//! One GPU's part in a collective: its buffers, its stream, and the work queued there.

use std::fmt;

use super::{
    buffers::{Buffers, RankDevice},
    data::{Expected, source_seed},
};
use crate::{
    ffi::{
        CallError,
        cuda::{Buffer, Event, Memory as _, Slice, Stream},
        nccl::{At, Call, Factor, Group},
    },
    plan::{Collective, DataType, Peers, Rank, Reduction},
    transport::{Error, Mismatch, TryingTo, gpu::PATIENCE, values::Values},
    units::Bytes,
};

/// The data that all ranks reduce before a span, so that all begin it together.
const MEETING: Bytes = Bytes::new(16);

impl fmt::Display for RankStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankDevice { part, ready, .. } = &self.device;
        write!(f, "rank {} (GPU {})", part.number, ready.context.device().ordinal())
    }
}

/// One GPU's part.
pub(super) struct RankStream {
    pub(super) device: RankDevice,
    pub(super) stream: Stream,
    /// When each span begins and ends.
    pub(super) begins: Vec<Event>,
    pub(super) ends: Vec<Event>,
    buffers: Buffers,
    /// A copy of the data in place, if an operation overwrites it.
    kept: Option<Buffer>,
    meeting: Buffer,
}

impl RankStream {
    pub(super) fn new(device: RankDevice, buffers: Buffers) -> Result<Self, Error> {
        let RankDevice { part, ready, .. } = &device;
        let allocate = |size| Buffer::new(&ready.context, size).trying_to("allocate a buffer");
        Ok(Self {
            stream: ready.new_stream()?,
            begins: Vec::new(),
            ends: Vec::new(),
            kept: part.consumes().then(|| allocate(buffers.received.size())).transpose()?,
            buffers,
            meeting: allocate(MEETING)?,
            device,
        })
    }

    /// Writes the data to send, and poisons the memory to receive into.
    pub(super) fn fill(&self, seed: u64) -> Result<(), CallError> {
        let RankDevice { part, ready, .. } = &self.device;
        let (kernels, stream) = (&ready.kernels, &self.stream);
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
        stream.synchronize(PATIENCE)
    }

    /// The data that operation number `operation` sends.
    fn source(&self, operation: u64) -> Slice<'_> {
        let size = self.device.part.nccl.data_type.size().times(self.device.part.layout.sent);
        let (offset, _) = self.device.part.offsets(operation);
        self.buffers.given.as_ref().unwrap_or(&self.buffers.received).slice(offset, size)
    }

    /// Where operation number `operation` leaves its data.
    fn target(&self, operation: u64) -> Slice<'_> {
        let size = self.device.part.nccl.data_type.size().times(self.device.part.layout.received);
        let (_, offset) = self.device.part.offsets(operation);
        self.buffers.received.slice(offset, size)
    }

    /// Fails if queued work has had an error.
    pub(super) fn async_error(&self) -> Result<(), CallError> {
        self.device.communicator.async_error().and_then(|()| self.device.all.async_error())
    }

    /// Aborts everything under way.
    pub(super) fn abort(&self) {
        self.device.communicator.abort();
        self.device.all.abort();
    }

    /// Queues restoring the data that an operation in place has overwritten.
    pub(super) fn restore(&self) -> Result<(), CallError> {
        match &self.kept {
            Some(kept) => self.stream.copy(self.buffers.received.all(), kept.all()),
            None => Ok(()),
        }
    }

    /// Queues a reduction that no rank leaves before all have entered it.
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
        group.queue(At { communicator: &self.device.all, stream: &self.stream }, call)
    }

    /// This rank's factor in a sum of products.
    pub(super) fn factor(&self) -> Result<Option<Factor<'_>>, CallError> {
        let Some(values) = self.device.part.values() else { return Ok(None) };
        if self.device.part.nccl.reduction != Some(Reduction::MulSum) {
            return Ok(None);
        }
        let bits = values.encode(i64::from(Values::factor(self.device.part.number))).to_le_bytes();
        let data_type = self.device.part.nccl.data_type;
        let size = data_type.size().to_len().unwrap_or(bits.len());
        Factor::new(&self.device.communicator, data_type, &bits[..size]).map(Some)
    }

    /// Queues operation number `operation`.
    pub(super) fn queue<'a>(
        &'a self,
        group: &mut Group<'a>,
        operation: u64,
        factor: Option<&'a Factor<'a>>,
    ) -> Result<(), CallError> {
        let call = Call {
            collective: self.device.part.collective,
            source: self.source(operation),
            target: self.target(operation),
            data_type: self.device.part.nccl.data_type,
            reduction: self.device.part.nccl.reduction.unwrap_or(Reduction::Sum),
            factor,
            root: self.device.part.nccl.root,
            peers: self.device.part.peers,
        };
        group.queue(At { communicator: &self.device.communicator, stream: &self.stream }, call)
    }

    /// Compares what was received with what operation number `operation` must have left.
    pub(super) fn verify(&self, seed: u64, operation: u64) -> Result<Option<Mismatch>, Error> {
        let RankDevice { part, ready, .. } = &self.device;
        let rank = Rank(part.member);
        for Expected { range, seed } in part.expected(part.seed(seed), operation) {
            let memory = self
                .buffers
                .received
                .slice(Bytes::new(range.start), Bytes::new(range.end - range.start));
            let wrong = match part.values() {
                Some(values) => ready.compare_reduced(memory, &values, seed, rank)?,
                None => ready.compare(memory, seed, rank)?,
            };
            if let Some(wrong) = wrong {
                // The offset counts from the beginning of what was received.
                let (_, begin) = part.offsets(operation);
                let offset = range.start - begin.get() + wrong.offset;
                return Ok(Some(Mismatch { offset, ..wrong }));
            }
        }
        Ok(None)
    }
}
