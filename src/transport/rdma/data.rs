//! Memory of one rank that interfaces reach, and what it must hold.

use std::rc::Rc;

use super::port::Port;
use crate::{
    ffi::{
        CallError,
        cuda::{self, HostMemory, Kernels, Memory as _, Stream},
        fabric::{Memory, Region, RemoteRegion, SharedMemory, Slice},
        host::HostBuffer,
    },
    plan::Rank,
    transport::{
        Error, Mismatch, Registration, TryingTo,
        gpu::{PATIENCE, Ready},
        pattern,
    },
    units::Bytes,
};

/// Host memory is filled and compared in parts of this size, which stay in a cache.
const PART: usize = 64 << 10;

const ALLOCATE: &str = "allocate a buffer";

/// Memory of one rank. Interfaces reach it if it is registered with every port of the rank.
pub(super) struct Data {
    pub(super) registration: Registration,
    size: Bytes,
    /// One for each port; none if only the GPU itself reaches it.
    regions: Vec<Region>,
    owner: Owner,
}

/// Who reaches it beside the interfaces.
enum Owner {
    Host,
    /// Page-locked: the host, and every GPU.
    Pinned(Rc<HostMemory>),
    Gpu(Rc<cuda::Buffer>, Rc<Ready>),
}

impl Data {
    /// Allocates memory that interfaces reach: of the GPU `ready`, or else of the host.
    pub(super) fn new(
        ports: &mut [Port],
        ready: Option<&Rc<Ready>>,
        size: Bytes,
    ) -> Result<Self, Error> {
        if let Some(ready) = ready {
            return Self::of_gpu(ports, ready, size);
        }
        let memory = Memory::Host(HostBuffer::new(size).trying_to(ALLOCATE)?);
        Self::of_host(ports, memory, size, Owner::Host)
    }

    /// Allocates page-locked host memory that the GPU `ready` reaches too.
    pub(super) fn of_pinned(ports: &mut [Port], ready: &Ready, size: Bytes) -> Result<Self, Error> {
        let memory = Rc::new(HostMemory::new(&ready.context, size).trying_to(ALLOCATE)?);
        Self::of_host(ports, Memory::Pinned(Rc::clone(&memory)), size, Owner::Pinned(memory))
    }

    fn of_host(
        ports: &mut [Port],
        memory: Memory,
        size: Bytes,
        owner: Owner,
    ) -> Result<Self, Error> {
        let regions = register(ports, memory).trying_to("register memory with the interface")?;
        Ok(Self { registration: Registration::Host, size, regions, owner })
    }

    /// Allocates memory of the GPU `ready` that the interfaces access directly. It is registered as
    /// a dma-buf if the driver exports one and the provider accepts it, otherwise by its address.
    pub(super) fn of_gpu(
        ports: &mut [Port],
        ready: &Rc<Ready>,
        size: Bytes,
    ) -> Result<Self, Error> {
        let buffer = Rc::new(cuda::Buffer::to_share(&ready.context, size).trying_to(ALLOCATE)?);
        let ordinal = ready.context.device().ordinal();
        let memory = || Rc::<cuda::Buffer>::clone(&buffer);
        let as_dma_buf = buffer.dma_buf().and_then(|descriptor| {
            let offset = Bytes::default();
            register(ports, Memory::DmaBuf { memory: memory(), ordinal, descriptor, offset })
        });
        let (regions, registration) = match as_dma_buf {
            Ok(regions) => (regions, Registration::DmaBuf),
            Err(_) => {
                let regions = register(ports, Memory::Gpu { memory: memory(), ordinal });
                (regions.trying_to("register memory of a GPU")?, Registration::Hmem)
            }
        };
        Ok(Self { registration, size, regions, owner: Owner::Gpu(buffer, Rc::clone(ready)) })
    }

    /// Allocates memory of the GPU `ready` that no interface reaches.
    pub(super) fn of_gpu_alone(ready: &Rc<Ready>, size: Bytes) -> Result<Self, Error> {
        let buffer = cuda::Buffer::new(&ready.context, size).trying_to(ALLOCATE)?;
        let owner = Owner::Gpu(Rc::new(buffer), Rc::clone(ready));
        Ok(Self { registration: Registration::Host, size, regions: Vec::new(), owner })
    }

    /// `size` bytes from `offset` on, for a GPU's copies.
    pub(super) fn for_gpu(&self, offset: Bytes, size: Bytes) -> Result<cuda::Slice<'_>, Error> {
        match &self.owner {
            Owner::Gpu(buffer, _) => Ok(buffer.slice(offset, size)),
            Owner::Pinned(memory) => Ok(memory.slice(offset, size)),
            Owner::Host => Err(Error::Disagreement("memory that no GPU reaches")),
        }
    }

    /// All of it, for operations of one port.
    #[inline]
    pub(super) fn all(&self, port: usize) -> Slice {
        self.regions[port].all()
    }

    /// What other ranks must know to reach it through each port.
    pub(super) fn remote(&self) -> Vec<RemoteRegion> {
        self.regions.iter().map(Region::remote).collect()
    }

    /// Writes the pattern of `seed`.
    pub(super) fn fill(&self, seed: u64) -> Result<(), Error> {
        self.store(seed, pattern::fill, Kernels::fill)
    }

    /// Writes bytes that all differ from the pattern of `seed`.
    pub(super) fn poison(&self, seed: u64) -> Result<(), Error> {
        self.store(seed, pattern::poison, Kernels::poison)
    }

    fn store(
        &self,
        seed: u64,
        of_host: impl Fn(&mut [u8], u64),
        of_gpu: impl Fn(&Kernels, &Stream, cuda::Slice<'_>, u64) -> Result<(), CallError>,
    ) -> Result<(), Error> {
        if let Owner::Gpu(buffer, ready) = &self.owner {
            return of_gpu(&ready.kernels, &ready.stream, buffer.all(), seed)
                .and_then(|()| ready.stream.synchronize(PATIENCE))
                .trying_to("fill a buffer");
        }
        let mut part = vec![0; PART];
        for (offset, length) in parts(self.size) {
            let part = &mut part[..length];
            of_host(part, pattern::advanced(seed, offset));
            self.regions[0].write(Bytes::new(offset), part);
        }
        Ok(())
    }

    /// Compares `size` bytes from `offset` on with the pattern of `seed`. The mismatch counts from
    /// `offset` and names `rank` as the owner.
    pub(super) fn compare(
        &self,
        seed: u64,
        offset: Bytes,
        size: Bytes,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        if let Owner::Gpu(buffer, ready) = &self.owner {
            ready.context.flush_rdma_writes().trying_to("wait for what interfaces have written")?;
            return ready.compare(buffer.slice(offset, size), seed, rank);
        }
        let mut part = vec![0; PART];
        let mut first: Option<Mismatch> = None;
        for (begin, length) in parts(size) {
            let part = &mut part[..length];
            self.regions[0].read(offset.plus(Bytes::new(begin)), part);
            if let Some(found) = pattern::compare(part, pattern::advanced(seed, begin), rank.0) {
                let here = Mismatch { offset: begin + found.offset, count: 0, ..found };
                first.get_or_insert(here).count += found.count;
            }
        }
        Ok(first)
    }
}

/// Registers `memory` with each port.
fn register(ports: &mut [Port], memory: Memory) -> Result<Vec<Region>, CallError> {
    let memory = SharedMemory::from(memory);
    ports.iter_mut().map(|port| port.endpoint.register(memory.clone())).collect()
}

/// Where parts of `size` bytes begin, and how long they are.
fn parts(size: Bytes) -> impl Iterator<Item = (u64, usize)> {
    (0..size.get()).step_by(PART).map(move |offset| {
        let left = usize::try_from(size.get() - offset).unwrap_or(PART);
        (offset, left.min(PART))
    })
}
