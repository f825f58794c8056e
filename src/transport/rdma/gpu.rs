//! How an interface comes to reach memory of a GPU by itself.

use std::rc::Rc;

use super::port::Port;
use crate::{
    ffi::{
        CallError, cuda,
        fabric::{Memory, Region, SharedMemory},
    },
    transport::{Error, Registration, gpu::Ready},
    units::Bytes,
};

/// Registers `buffer`, which is of whole blocks, with all `ports`: as a dma-buf where the driver
/// gives one and the provider takes it, otherwise by its address, for a provider that asks the
/// driver itself.
pub(super) fn register(
    ports: &mut [Port],
    ready: &Ready,
    buffer: &Rc<cuda::Buffer>,
) -> Result<(Vec<Region>, Registration), Error> {
    let ordinal = ready.context.device().ordinal();
    let memory = || Rc::<cuda::Buffer>::clone(buffer);
    let of_descriptor = |descriptor| Memory::DmaBuf {
        memory: memory(),
        ordinal,
        descriptor,
        offset: Bytes::new(0),
    };
    if let Ok(descriptor) = buffer.dma_buf()
        && let Ok(regions) = with_all(ports, of_descriptor(descriptor))
    {
        return Ok((regions, Registration::DmaBuf));
    }
    let regions = with_all(ports, Memory::Gpu { memory: memory(), ordinal });
    let regions = regions.map_err(|source| Error::call("register memory of a GPU", source))?;
    Ok((regions, Registration::Hmem))
}

/// Registers `memory` with each port.
pub(super) fn with_all(ports: &mut [Port], memory: Memory) -> Result<Vec<Region>, CallError> {
    let memory = SharedMemory::from(memory);
    ports.iter_mut().map(|port| port.register(&memory)).collect()
}
