//! The memory of collectives: allocated and registered with NCCL as the case says.

use std::rc::Rc;

use super::data::Part;
use crate::{
    ffi::{
        cuda::{Buffer, Memory},
        nccl::{self, Allocation, Communicator, Library, Window},
    },
    plan::{Allocator, Registration},
    transport::{Error, TryingTo, gpu::Ready},
    units::Bytes,
};

/// A GPU and its communicators.
#[derive(Clone)]
pub(super) struct RankDevice {
    pub(super) part: Part,
    pub(super) ready: Rc<Ready>,
    pub(super) communicator: Rc<Communicator>,
    /// The communicator of all ranks: another one if they are split.
    pub(super) all: Rc<Communicator>,
}

/// A GPU's buffers.
pub(super) struct Buffers {
    /// `None`: the operation is in place.
    pub(super) given: Option<Box<dyn Memory>>,
    pub(super) received: Box<dyn Memory>,
}

const ALLOCATE: &str = "allocate a buffer";

/// NCCL allocates in multiples of this.
const GRANULARITY: u64 = 2 << 20;

/// The memory that a buffer takes on its GPU.
pub(super) fn footprint(allocator: Allocator, size: Bytes) -> Bytes {
    match allocator {
        Allocator::Cuda => size,
        Allocator::Nccl => Bytes::new(size.get().div_ceil(GRANULARITY) * GRANULARITY),
    }
}

impl RankDevice {
    /// Memory for its part.
    pub(super) fn allocate(&self, library: &'static Library) -> Result<Buffers, Error> {
        let context = &self.ready.context;
        let allocate = |size: Bytes| -> Result<Box<dyn Memory>, Error> {
            Ok(match self.part.nccl.buffer {
                Allocator::Cuda => Box::new(Buffer::new(context, size).trying_to(ALLOCATE)?),
                Allocator::Nccl => {
                    Box::new(Allocation::new(library, context, size).trying_to(ALLOCATE)?)
                }
            })
        };
        let (given, received) = self.part.sizes();
        Ok(Buffers {
            given: (!self.part.nccl.is_in_place).then(|| allocate(given)).transpose()?,
            received: allocate(received)?,
        })
    }
}

/// Registers the buffers of this process's GPUs with NCCL as their case says; windows together with
/// the other ranks.
pub(super) fn registered(
    devices: &[RankDevice],
    buffers: Vec<Buffers>,
) -> Result<Vec<Buffers>, Error> {
    let mut given = Vec::new();
    let mut received = Vec::new();
    for (device, buffers) in devices.iter().zip(buffers) {
        given.extend(buffers.given.map(|memory| (device, memory)));
        received.push((device, buffers.received));
    }
    let mut given = register(given)?.into_iter();
    let received = register(received)?;
    Ok(received.into_iter().map(|received| Buffers { given: given.next(), received }).collect())
}

/// Registers the memory with NCCL.
fn register(buffers: Vec<(&RankDevice, Box<dyn Memory>)>) -> Result<Vec<Box<dyn Memory>>, Error> {
    const ACTION: &str = "register a buffer";
    let Some((first, _)) = buffers.first() else { return Ok(Vec::new()) };
    let how = first.part.nccl.registration;
    let members =
        buffers.into_iter().map(|(device, memory)| (Rc::clone(&device.communicator), memory));
    match how {
        Registration::None => Ok(members.map(|(_, memory)| memory).collect()),
        Registration::Local => members
            .map(|(of, memory)| {
                let registered = nccl::Registration::new(of, memory).trying_to(ACTION)?;
                Ok(Box::new(registered) as Box<dyn Memory>)
            })
            .collect(),
        Registration::Symmetric => {
            let windows = Window::symmetric(members.collect());
            let windows = windows.map_err(|source| Error::together(ACTION, source))?;
            if !windows.iter().all(Window::is_used) {
                return Err(Error::Unavailable(NO_WINDOWS.to_owned()));
            }
            Ok(windows.into_iter().map(|window| Box::new(window) as _).collect())
        }
    }
}

/// NCCL has none and says nothing (`symmetricSupport` in NVIDIA/nccl, `src/init.cc`).
const NO_WINDOWS: &str = "NCCL has no symmetric windows among these GPUs, and takes memory without \
                          one: it wants all of them to reach each other's memory, cuMem memory \
                          (NCCL_CUMEM_ENABLE) and NCCL_WIN_ENABLE; leave out --registration \
                          symmetric";
