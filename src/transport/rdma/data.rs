//! Memory of one rank that interfaces reach, and what it must hold.

use std::rc::Rc;

use super::{gpu, port::Port};
use crate::{
    ffi::{
        CallError,
        cuda::{self, HostMemory, Memory as _},
        fabric::{Memory, Region, RemoteRegion, Slice},
        host::HostBuffer,
    },
    plan::Rank,
    transport::{Error, Mismatch, Registration, gpu::Ready, pattern},
    units::Bytes,
};

/// Host memory is filled and compared in parts of this size, which stay in a cache.
const PART: usize = 64 << 10;

/// Memory of one rank; interfaces reach what is registered with every port of the rank.
pub(super) struct Data {
    pub(super) registration: Registration,
    size: Bytes,
    /// One for each port; none if only the GPU itself reaches it.
    regions: Vec<Region>,
    owner: Owner,
}

/// Who else than the interfaces reaches it.
enum Owner {
    Host,
    /// Page-locked: the host, and every GPU.
    Pinned(Rc<HostMemory>),
    Gpu(Rc<cuda::Buffer>, Rc<Ready>),
}

impl Data {
    /// Allocates host memory.
    pub(super) fn of_host(ports: &mut [Port], size: Bytes) -> Result<Self, Error> {
        let memory = HostBuffer::new(size).map_err(allocating)?;
        let regions = gpu::with_all(ports, Memory::Host(memory)).map_err(registering)?;
        Ok(Self { registration: Registration::Host, size, regions, owner: Owner::Host })
    }

    /// Allocates page-locked host memory that the GPU `ready` reaches too.
    pub(super) fn of_pinned(ports: &mut [Port], ready: &Ready, size: Bytes) -> Result<Self, Error> {
        let memory = Rc::new(HostMemory::new(&ready.context, size).map_err(allocating)?);
        let regions = gpu::with_all(ports, Memory::Pinned(Rc::clone(&memory)));
        let (regions, owner) = (regions.map_err(registering)?, Owner::Pinned(memory));
        Ok(Self { registration: Registration::Host, size, regions, owner })
    }

    /// Allocates memory of the GPU `ready` that the interfaces reach by themselves.
    pub(super) fn of_gpu(
        ports: &mut [Port],
        ready: &Rc<Ready>,
        size: Bytes,
    ) -> Result<Self, Error> {
        let buffer = cuda::Buffer::to_share(&ready.context, size).map_err(allocating)?;
        let buffer = Rc::new(buffer);
        let (regions, registration) = gpu::register(ports, ready, &buffer)?;
        Ok(Self { registration, size, regions, owner: Owner::Gpu(buffer, Rc::clone(ready)) })
    }

    /// Allocates memory of the GPU `ready` that no interface reaches.
    pub(super) fn of_gpu_alone(ready: &Rc<Ready>, size: Bytes) -> Result<Self, Error> {
        let buffer = cuda::Buffer::new(&ready.context, size).map_err(allocating)?;
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
        self.store(seed, pattern::fill, |ready, slice| {
            ready.kernels.fill(&ready.stream, slice, seed)
        })
    }

    /// Writes what differs from the pattern of `seed` in every byte.
    pub(super) fn poison(&self, seed: u64) -> Result<(), Error> {
        self.store(seed, pattern::poison, |ready, slice| {
            ready.kernels.poison(&ready.stream, slice, seed)
        })
    }

    fn store(
        &self,
        seed: u64,
        of_host: impl Fn(&mut [u8], u64),
        of_gpu: impl Fn(&Ready, cuda::Slice<'_>) -> Result<(), CallError>,
    ) -> Result<(), Error> {
        if let Owner::Gpu(buffer, ready) = &self.owner {
            return of_gpu(ready, buffer.all())
                .and_then(|()| ready.stream.synchronize(crate::transport::gpu::PATIENCE))
                .map_err(|source| Error::call("fill a buffer", source));
        }
        let mut part = vec![0; PART];
        for (offset, length) in parts(self.size) {
            let part = &mut part[..length];
            of_host(part, pattern::advanced(seed, offset));
            self.regions[0].write(Bytes::new(offset), part);
        }
        Ok(())
    }

    /// Compares `size` bytes from `offset` on with the pattern of `seed`; the answer counts from
    /// `offset` and names `rank` as the owner.
    pub(super) fn compare(
        &self,
        seed: u64,
        offset: Bytes,
        size: Bytes,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        if let Owner::Gpu(buffer, ready) = &self.owner {
            return ready
                .compare(buffer.all().slice(offset, size), seed, rank)
                .map_err(|source| Error::call("verify a buffer", source));
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

/// Where parts of `size` bytes begin, and how long they are.
fn parts(size: Bytes) -> impl Iterator<Item = (u64, usize)> {
    (0..size.get()).step_by(PART).map(move |offset| {
        let left = usize::try_from(size.get() - offset).unwrap_or(PART);
        (offset, left.min(PART))
    })
}

fn allocating(source: CallError) -> Error {
    Error::call("allocate a buffer", source)
}

fn registering(source: CallError) -> Error {
    Error::call("register memory with the interface", source)
}
