//! One end of one flow: memory of a GPU, or pinned memory of the host.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{
    Gpus, PATIENCE, Ready,
    endpoints::{end, is_lent},
};
use crate::{
    ffi::{
        CallError,
        cuda::{self, Context, Descriptor, HostMemory, IpcHandle, Memory, SharedBuffer, Slice},
        host,
    },
    plan::{Case, Endpoint, Handle, Place, Rank},
    transport::{Error, Mismatch, pattern},
    units::Bytes,
};

/// A sum of 64-bit words.
const CHECKSUM: Bytes = Bytes::new(8);

/// Which end of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Side {
    Source,
    Target,
    /// In the place of a target, what a source that is only read adds up to.
    Checksum,
}

/// A buffer of this rank.
#[derive(Debug)]
pub(in crate::transport) struct Buffer {
    /// The flow's place in the case.
    pub(in crate::transport) flow: usize,
    pub(in crate::transport) side: Side,
    memory: Owned,
}

#[derive(Debug)]
enum Owned {
    Gpu(GpuMemory, Rc<Ready>),
    Host(HostMemory),
}

/// Memory of a GPU, by how it can be shared.
#[derive(Debug)]
enum GpuMemory {
    Plain(cuda::Buffer),
    Shared(SharedBuffer),
}

/// Memory of another rank's GPU.
#[derive(Debug)]
pub(in crate::transport) struct PeerBuffer {
    memory: Memories,
    size: Bytes,
}

#[derive(Debug)]
enum Memories {
    Ipc(cuda::Buffer),
    Cumem(SharedBuffer),
}

/// What another rank needs to reach a buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::transport) enum Offer {
    /// Legacy CUDA IPC.
    Ipc(IpcHandle),
    /// `cuMemCreate` and a file descriptor.
    Cumem(Descriptor),
}

impl Buffer {
    /// Allocates the buffer at one end of flow number `flow`; other ranks can reach it if they are
    /// to work on it.
    pub(in crate::transport) fn new(
        gpus: &Gpus,
        case: &Case,
        flow: usize,
        side: Side,
    ) -> Result<Self, Error> {
        let size = if side == Side::Checksum { CHECKSUM } else { case.size };
        let handle = case.handle.filter(|_| is_lent(case, flow, side));
        let allocate = |source| Error::call("allocate a buffer", source);
        let memory = match end(&case.flows[flow], side).place {
            Place::Gpu(gpu) => {
                let ready = gpus.ready(gpu)?;
                let memory = match handle {
                    Some(Handle::Cumem) => GpuMemory::Shared(
                        SharedBuffer::create(&ready.context, size, &[]).map_err(allocate)?,
                    ),
                    Some(Handle::Ipc) => GpuMemory::Plain(
                        cuda::Buffer::to_share(&ready.context, size).map_err(allocate)?,
                    ),
                    None => {
                        GpuMemory::Plain(cuda::Buffer::new(&ready.context, size).map_err(allocate)?)
                    }
                };
                Owned::Gpu(memory, ready)
            }
            Place::Pinned { numa_node } | Place::Host { numa_node, .. } => {
                host::bind_thread(gpus.topology.cpus(numa_node))
                    .map_err(|source| Error::call("run on the NUMA node of the case", source))?;
                let any = gpus.any()?;
                Owned::Host(HostMemory::new(&any.context, size).map_err(allocate)?)
            }
        };
        Ok(Self { flow, side, memory })
    }

    /// All of it.
    pub(in crate::transport) fn all(&self) -> Slice<'_> {
        match &self.memory {
            Owned::Gpu(GpuMemory::Plain(memory), _) => memory.all(),
            Owned::Gpu(GpuMemory::Shared(memory), _) => memory.all(),
            Owned::Host(memory) => memory.all(),
        }
    }

    /// What another rank needs to reach it; host memory is reached by its own rank only.
    pub(in crate::transport) fn offer(&self) -> Result<Option<Offer>, Error> {
        let offer = match &self.memory {
            Owned::Gpu(GpuMemory::Plain(memory), _) => memory.ipc_handle().map(Offer::Ipc),
            Owned::Gpu(GpuMemory::Shared(memory), _) => memory.export().map(Offer::Cumem),
            Owned::Host(_) => return Ok(None),
        };
        offer.map(Some).map_err(|source| Error::call("share memory of a GPU", source))
    }

    /// Copies `list`, which is as long, into it.
    pub(super) fn store(&mut self, list: &mut HostMemory) -> Result<(), CallError> {
        match &mut self.memory {
            Owned::Host(memory) => {
                memory.bytes(PATIENCE)?.copy_from_slice(list.bytes(PATIENCE)?);
                Ok(())
            }
            Owned::Gpu(_, ready) => {
                let ready = Rc::clone(ready);
                ready.stream.copy(self.all(), list.all())?;
                ready.stream.synchronize(PATIENCE)
            }
        }
    }

    /// Whether a page of host memory is known to lie on another NUMA node than `end` says.
    pub(in crate::transport) fn is_misplaced(&mut self, end: Endpoint) -> Result<bool, Error> {
        let (Owned::Host(memory), Some(node)) = (&mut self.memory, end.numa_node()) else {
            return Ok(false);
        };
        let bytes = memory.bytes(PATIENCE).map_err(|source| Error::call("look", source))?;
        let last = bytes.len() - 1;
        let found = [0, last / 2, last].map(|place| host::numa_node(bytes, place));
        Ok(found.into_iter().flatten().any(|found| found != node.0))
    }

    /// Writes the pattern of `seed` into a source, and what differs from it in every byte into a
    /// target.
    pub(in crate::transport) fn fill(&mut self, seed: u64) -> Result<(), Error> {
        let seed = pattern::part_seed(seed, self.flow as u64);
        self.filled(seed).map_err(|source| Error::call("fill a buffer", source))
    }

    fn filled(&mut self, seed: u64) -> Result<(), CallError> {
        let side = self.side;
        if let Owned::Host(memory) = &mut self.memory {
            let bytes = memory.bytes(PATIENCE)?;
            match side {
                Side::Source => pattern::fill(bytes, seed),
                Side::Target => pattern::poison(bytes, seed),
                Side::Checksum => bytes.fill(0),
            }
            return Ok(());
        }
        if let Owned::Gpu(_, ready) = &self.memory {
            match side {
                Side::Source => ready.kernels.fill(&ready.stream, self.all(), seed)?,
                Side::Target => ready.kernels.poison(&ready.stream, self.all(), seed)?,
                Side::Checksum => ready.stream.set(self.all(), 0)?,
            }
            ready.stream.synchronize(PATIENCE)?;
        }
        Ok(())
    }

    /// Compares every byte with the pattern of `seed`; the answer names `rank` as the owner.
    pub(in crate::transport) fn compare(
        &mut self,
        seed: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let seed = pattern::part_seed(seed, self.flow as u64);
        let compared = match &mut self.memory {
            Owned::Host(memory) => {
                memory.bytes(PATIENCE).map(|bytes| pattern::compare(bytes, seed, rank.0))
            }
            Owned::Gpu(_, ready) => {
                let ready = Rc::clone(ready);
                ready.compare(self.all(), seed, rank)
            }
        };
        compared.map_err(|source| Error::call("verify a buffer", source))
    }

    /// Compares the 64-bit word that it holds with `expected`.
    pub(in crate::transport) fn compare_word(
        &self,
        expected: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let Owned::Gpu(_, ready) = &self.memory else { return Ok(None) };
        let word = self.all().slice(Bytes::default(), Bytes::new(8));
        let [found] = ready
            .ask([0], |_, stream, answers| stream.copy(answers, word))
            .map_err(|source| Error::call("verify a checksum", source))?;
        Ok(pattern::compare_words(found, expected, rank.0))
    }
}

impl PeerBuffer {
    /// Reaches `size` of what another rank offers, from `context`.
    pub(in crate::transport) fn open(
        context: &Context,
        offer: &Offer,
        size: Bytes,
    ) -> Result<Self, Error> {
        let memory = match offer {
            Offer::Ipc(handle) => cuda::Buffer::open(context, handle).map(Memories::Ipc),
            Offer::Cumem(descriptor) => {
                SharedBuffer::open(context, *descriptor, &[]).map(Memories::Cumem)
            }
        };
        let memory =
            memory.map_err(|source| Error::call("reach memory of another rank's GPU", source))?;
        Ok(Self { memory, size })
    }

    /// All that was asked for: a mapping can be larger.
    pub(in crate::transport) fn all(&self) -> Slice<'_> {
        let all = match &self.memory {
            Memories::Ipc(memory) => memory.all(),
            Memories::Cumem(memory) => memory.all(),
        };
        all.slice(Bytes::default(), self.size)
    }
}
