//! One end of one flow: memory of a GPU, or pinned memory of the host.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{
    Gpus, PATIENCE, Ready,
    endpoints::{end, is_lent},
    kept::Kept,
};
use crate::{
    ffi::{
        CallError,
        cuda::{
            self, Context, Descriptor, FabricHandle, HostMemory, IpcHandle, Memory, SharedBuffer,
            Slice,
        },
        host,
    },
    plan::{Case, Endpoint, Handle, Place, Rank},
    transport::{Error, Mismatch, TryingTo, pattern},
    units::Bytes,
};

/// A sum of 64-bit words.
const CHECKSUM: Bytes = Bytes::new(8);

/// Which end of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Side {
    Source,
    Target,
    /// The sum of a source that is only read, instead of a target.
    Checksum,
}

/// A buffer of this rank.
#[derive(Debug)]
pub(in crate::transport) struct Buffer {
    /// The flow's place in the case.
    pub(in crate::transport) flow: usize,
    pub(in crate::transport) side: Side,
    /// What another rank needs to open it, if one is to work on it.
    pub(super) offer: Option<Offer>,
    memory: Owned,
}

#[derive(Debug)]
enum Owned {
    Gpu(Box<dyn Memory>, Rc<Ready>),
    Host(HostMemory),
}

/// What another rank needs to reach a buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::transport) enum Offer {
    /// Legacy CUDA IPC.
    Ipc(IpcHandle),
    /// `cuMemCreate` and a file descriptor.
    Cumem(Descriptor),
    /// `cuMemCreate` and a handle for all hosts of the NVLink domain.
    Fabric(FabricHandle),
}

impl Buffer {
    /// Allocates the buffer at one end of flow number `flow`.
    pub(in crate::transport) fn new(
        gpus: &Gpus,
        case: &Case,
        flow: usize,
        side: Side,
    ) -> Result<Self, Error> {
        let size = if side == Side::Checksum { CHECKSUM } else { case.size };
        // Without a way to share, each rank works on its own buffers only.
        let handle = case.handle.filter(|_| is_lent(case, flow, side));
        let (memory, offer) = match end(&case.flows[flow], side).place {
            Place::Gpu(gpu) => {
                let ready = gpus.ready(gpu)?;
                let (memory, offer) = of_gpu(&ready, size, handle)?;
                (Owned::Gpu(memory, ready), offer)
            }
            // Host memory is reached by its own rank only.
            Place::Pinned { numa_node } | Place::Host { numa_node, .. } => {
                let _bound = host::bind_thread(gpus.topology.cpus(numa_node))
                    .trying_to("run on the NUMA node of the case")?;
                let memory = HostMemory::new(&gpus.any()?.context, size);
                (Owned::Host(memory.trying_to("allocate a buffer")?), None)
            }
        };
        Ok(Self { flow, side, offer, memory })
    }

    /// All of it.
    pub(in crate::transport) fn all(&self) -> Slice<'_> {
        match &self.memory {
            Owned::Gpu(memory, _) => memory.all(),
            Owned::Host(memory) => memory.all(),
        }
    }

    /// Copies `list`, which is as long, into it.
    pub(super) fn store(&mut self, list: &mut HostMemory) -> Result<(), CallError> {
        match &mut self.memory {
            Owned::Host(memory) => {
                memory.bytes(PATIENCE)?.copy_from_slice(list.bytes(PATIENCE)?);
                Ok(())
            }
            Owned::Gpu(memory, ready) => {
                ready.stream.copy(memory.all(), list.all())?;
                ready.stream.synchronize(PATIENCE)
            }
        }
    }

    /// Whether a page of host memory is known to lie on another NUMA node than `end` says.
    pub(in crate::transport) fn is_misplaced(&mut self, end: Endpoint) -> Result<bool, Error> {
        let (Owned::Host(memory), Some(node)) = (&mut self.memory, end.numa_node()) else {
            return Ok(false);
        };
        let bytes = memory.bytes(PATIENCE).trying_to("look")?;
        let last = bytes.len() - 1;
        let found = [0, last / 2, last].map(|place| host::numa_node(bytes, place));
        Ok(found.into_iter().flatten().any(|found| found != node.0))
    }

    /// Writes the pattern of `seed` into a source, and bytes that all differ from it into a target.
    pub(in crate::transport) fn fill(&mut self, seed: u64) -> Result<(), Error> {
        let seed = pattern::part_seed(seed, self.flow as u64);
        let filled = match &mut self.memory {
            Owned::Host(memory) => memory.bytes(PATIENCE).map(|bytes| match self.side {
                Side::Source => pattern::fill(bytes, seed),
                Side::Target => pattern::poison(bytes, seed),
                Side::Checksum => bytes.fill(0),
            }),
            Owned::Gpu(memory, ready) => {
                let Ready { kernels, stream, .. } = &**ready;
                let queued = match self.side {
                    Side::Source => kernels.fill(stream, memory.all(), seed),
                    Side::Target => kernels.poison(stream, memory.all(), seed),
                    Side::Checksum => stream.set(memory.all(), 0),
                };
                queued.and_then(|()| stream.synchronize(PATIENCE))
            }
        };
        filled.trying_to("fill a buffer")
    }

    /// Compares every byte with the pattern of `seed`; the answer names `rank` as the owner.
    pub(in crate::transport) fn compare(
        &mut self,
        seed: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let seed = pattern::part_seed(seed, self.flow as u64);
        match &mut self.memory {
            Owned::Host(memory) => {
                let bytes = memory.bytes(PATIENCE).trying_to("verify a buffer")?;
                Ok(pattern::compare(bytes, seed, rank.0))
            }
            Owned::Gpu(memory, ready) => ready.compare(memory.all(), seed, rank),
        }
    }

    /// Compares the 64-bit word that it holds with `expected`.
    pub(in crate::transport) fn compare_word(
        &self,
        expected: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let Owned::Gpu(memory, ready) = &self.memory else { return Ok(None) };
        let word = memory.slice(Bytes::default(), Bytes::new(8));
        let found = ready.ask([0], |_, stream, answers| stream.copy(answers, word));
        let [found] = found.trying_to("verify a checksum")?;
        Ok(pattern::compare_words(found, expected, rank.0))
    }
}

/// Memory of the GPU `ready`, with the offer to another rank if it is shared by `handle`.
fn of_gpu(
    ready: &Rc<Ready>,
    size: Bytes,
    handle: Option<Handle>,
) -> Result<(Box<dyn Memory>, Option<Offer>), Error> {
    const ALLOCATE: &str = "allocate a buffer";
    const SHARE: &str = "share memory of a GPU";
    let context = &ready.context;
    if handle.is_some() {
        ready.buffers.clear();
    }
    Ok(match handle {
        None => {
            let make = || cuda::Buffer::new(context, size);
            let memory = Kept::new(ready, |ready| &ready.buffers, size, make);
            (Box::new(memory.trying_to(ALLOCATE)?), None)
        }
        Some(Handle::Ipc) => {
            let memory = cuda::Buffer::to_share(context, size).trying_to(ALLOCATE)?;
            let handle = memory.ipc_handle().trying_to(SHARE)?;
            (Box::new(memory), Some(Offer::Ipc(handle)))
        }
        Some(Handle::Cumem) => {
            let memory = SharedBuffer::create(context, size, &[]).trying_to(ALLOCATE)?;
            let descriptor = memory.export().trying_to(SHARE)?;
            (Box::new(memory), Some(Offer::Cumem(descriptor)))
        }
        Some(Handle::Fabric) => {
            let memory = SharedBuffer::create_in_fabric(context, size);
            let memory = memory.trying_to("allocate a buffer to share in the NVLink domain")?;
            let handle = memory.fabric_handle().trying_to(SHARE)?;
            (Box::new(memory), Some(Offer::Fabric(handle)))
        }
    })
}

impl Offer {
    /// Opens what another rank offers for the GPU of `context`; it can be larger than its buffer.
    pub(super) fn open(&self, context: &Context) -> Result<Box<dyn Memory>, Error> {
        const REACH: &str = "reach memory of another rank's GPU";
        Ok(match self {
            Self::Ipc(handle) => Box::new(cuda::Buffer::open(context, handle).trying_to(REACH)?),
            Self::Cumem(descriptor) => {
                Box::new(SharedBuffer::open(context, *descriptor, &[]).trying_to(REACH)?)
            }
            Self::Fabric(handle) => {
                Box::new(SharedBuffer::open_fabric(context, handle).trying_to(REACH)?)
            }
        })
    }
}
