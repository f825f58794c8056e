//! Memory of one rank that interfaces reach, and what it must hold.

use std::rc::Rc;

use super::port::Port;
use crate::{
    ffi::{
        cuda::{self, Memory as _},
        fabric::{Memory, Region, RemoteRegion, SharedMemory, Slice},
        host::HostBuffer,
    },
    plan::Rank,
    transport::{Error, Mismatch, Registration, gpu::Ready, pattern},
    units::Bytes,
};

/// Host memory is filled and compared in parts of this size, which stay in a cache.
const PART: usize = 64 << 10;

/// Memory that is registered with every port of its rank.
pub(super) struct Data {
    pub(super) registration: Registration,
    size: Bytes,
    /// One for each port.
    regions: Vec<Region>,
    /// The GPU's own view of it.
    gpu: Option<(Rc<cuda::Buffer>, Rc<Ready>)>,
}

impl Data {
    /// Allocates host memory.
    pub(super) fn of_host(ports: &mut [Port], size: Bytes) -> Result<Self, Error> {
        let memory = HostBuffer::new(size);
        let memory = memory.map_err(|source| Error::call("allocate a buffer", source))?;
        let memory = SharedMemory::from(Memory::Host(memory));
        let regions = ports.iter_mut().map(|port| port.register(&memory)).collect();
        Ok(Self { registration: Registration::Host, size, regions: known(regions)?, gpu: None })
    }

    /// Allocates memory of the GPU `ready`, which the interfaces reach by themselves: by a dma-buf
    /// if the driver gives one, otherwise by the provider's own knowledge of CUDA.
    pub(super) fn of_gpu(
        ports: &mut [Port],
        ready: &Rc<Ready>,
        size: Bytes,
    ) -> Result<Self, Error> {
        let buffer = cuda::Buffer::new(&ready.context, size);
        let buffer = Rc::new(buffer.map_err(|source| Error::call("allocate a buffer", source))?);
        let (memory, registration) = super::gpu::memory(&buffer, ready, ports)?;
        let regions = ports.iter_mut().map(|port| port.register(&memory)).collect();
        let gpu = Some((buffer, Rc::clone(ready)));
        Ok(Self { registration, size, regions: known(regions)?, gpu })
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
        of_gpu: impl Fn(&Ready, cuda::Slice<'_>) -> Result<(), crate::ffi::CallError>,
    ) -> Result<(), Error> {
        if let Some((buffer, ready)) = &self.gpu {
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
        (offset, size): (Bytes, Bytes),
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        if let Some((buffer, ready)) = &self.gpu {
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

fn known(regions: Result<Vec<Region>, crate::ffi::CallError>) -> Result<Vec<Region>, Error> {
    regions.map_err(|source| Error::call("register memory with the interface", source))
}
