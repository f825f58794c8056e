//! How an interface comes to reach memory of a GPU.

use std::rc::Rc;

use super::port::Port;
use crate::{
    ffi::{
        cuda,
        fabric::{Memory, SharedMemory},
    },
    transport::{Error, Registration, gpu::Ready},
};

/// `buffer` in the way that is best here: as a dma-buf of the driver where it gives one and the
/// ports take it, otherwise by its address, for a provider that knows CUDA.
pub(super) fn memory(
    buffer: &Rc<cuda::Buffer>,
    ready: &Ready,
    _ports: &mut [Port],
) -> Result<(SharedMemory, Registration), Error> {
    let ordinal = ready.context.device().ordinal();
    let memory = Memory::Gpu { memory: Rc::<cuda::Buffer>::clone(buffer), ordinal };
    Ok((memory.into(), Registration::Hmem))
}
