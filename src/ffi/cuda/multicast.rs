//! Memory of several GPUs behind one address: NVLink switches store what comes there in all of it,
//! and load from there the sum of all of it. Only multimem instructions may use such an address.
//!
//! The GPUs can be of several processes, also on several hosts of an NVLink domain. One process
//! makes the object, and the others open it; each adds its GPUs, and only when all have been added
//! may memory be bound, because the driver waits for them ("CUDA Driver API", multicast objects).

use std::sync::Arc;

use cudarc::driver::sys::{
    CUmemAllocationHandleType, CUmulticastGranularity_flags_enum, CUmulticastObjectProp,
};
use serde::{Deserialize, Serialize};

use super::{
    Context, Memory, SharedBuffer, Slice,
    memory::length,
    sharing::{Allocation, DESCRIPTOR, Export, FABRIC, FabricHandle, Mapping},
};
use crate::{
    ffi::{CallError, process::Descriptor},
    units::Bytes,
};

/// The processes whose GPUs are to be behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// This one.
    Own,
    /// Several of this host.
    Host,
    /// Several of an NVLink domain.
    Domain,
}

impl Sharing {
    const fn handle_type(self) -> CUmemAllocationHandleType {
        match self {
            Self::Own => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            Self::Host => DESCRIPTOR,
            Self::Domain => FABRIC,
        }
    }
}

/// What another process opens a [`Multicast`] with, as long as its maker keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MulticastHandle {
    /// On this host.
    Descriptor(Descriptor),
    /// On any host of the NVLink domain.
    Fabric(FabricHandle),
}

/// A multicast object with this process's part of the memory behind it.
#[derive(Debug)]
pub struct Multicast {
    /// Unmapped first, then what is bound is let go of, and the object last.
    mapping: Option<Mapping>,
    members: Vec<Member>,
    exported: Option<Export>,
    object: Arc<Allocation>,
    sharing: Sharing,
    /// Of the object, and of the memory of each GPU.
    size: Bytes,
}

/// Memory of one GPU of this process.
#[derive(Debug)]
struct Member {
    _bound: Bound,
    memory: SharedBuffer,
}

/// Memory that is bound to an object; no more on drop.
#[derive(Debug)]
struct Bound {
    object: Arc<Allocation>,
    context: Context,
    size: Bytes,
}

impl Multicast {
    /// Makes an object for `size` of memory, or a little more, of each of `gpus` GPUs. `context`:
    /// of one of them.
    ///
    /// # Errors
    ///
    /// The driver's refusal: no switches that do it, or, between hosts, no IMEX channel.
    pub fn create(
        context: &Context,
        size: Bytes,
        gpus: u32,
        sharing: Sharing,
    ) -> Result<Self, CallError> {
        let driver = context.current()?;
        let object = || format!("{size} on each of {gpus} GPUs");
        let mut properties = CUmulticastObjectProp {
            numDevices: gpus,
            size: length(size),
            handleTypes: u64::from(sharing.handle_type().0),
            flags: 0,
        };
        let mut grain = 0;
        // SAFETY: `properties` and `grain` are live locals; the call reads one, writes the other.
        let answer = unsafe {
            driver.calls.cuMulticastGetGranularity(
                &raw mut grain,
                &raw const properties,
                CUmulticastGranularity_flags_enum::CU_MULTICAST_GRANULARITY_RECOMMENDED,
            )
        };
        driver.check(answer, object)?;
        properties.size = properties.size.checked_next_multiple_of(grain).unwrap_or(usize::MAX);
        let mut handle = 0;
        // SAFETY: as above.
        let answer =
            unsafe { driver.calls.cuMulticastCreate(&raw mut handle, &raw const properties) };
        driver.check(answer, object)?;
        let made = Allocation { context: context.clone(), handle };
        Ok(Self::of(made, sharing, Bytes::of_len(properties.size)))
    }

    /// Opens another process's object. `context`: of a GPU of this process.
    ///
    /// # Errors
    ///
    /// The maker is gone, this process may not look into it, or the hosts have no IMEX channel in
    /// common.
    pub fn open(context: &Context, handle: &MulticastHandle) -> Result<Self, CallError> {
        Ok(match handle {
            MulticastHandle::Descriptor(descriptor) => {
                let opened = Allocation::of_descriptor(context, *descriptor)?;
                Self::of(opened, Sharing::Host, descriptor.size)
            }
            MulticastHandle::Fabric(handle) => {
                let opened = Allocation::of_fabric(context, handle)?;
                Self::of(opened, Sharing::Domain, handle.size)
            }
        })
    }

    fn of(object: Allocation, sharing: Sharing, size: Bytes) -> Self {
        let (mapping, members, exported) = (None, Vec::new(), None);
        Self { mapping, members, exported, object: Arc::new(object), sharing, size }
    }

    /// What other processes open it with, as long as this value lives; `None` if it is for this one
    /// alone.
    pub fn handle(&mut self) -> Result<Option<MulticastHandle>, CallError> {
        use std::os::fd::AsRawFd as _;
        Ok(match self.sharing {
            Sharing::Own => None,
            Sharing::Host => {
                let export = self.exported.insert(Export::new(&self.object)?);
                let (pid, descriptor) = (std::process::id(), export.descriptor.as_raw_fd());
                let size = self.size;
                Some(MulticastHandle::Descriptor(Descriptor { pid, descriptor, size }))
            }
            Sharing::Domain => Some(MulticastHandle::Fabric(self.object.fabric_handle(self.size)?)),
        })
    }

    /// Adds the GPU of `context` to those behind it.
    ///
    /// # Errors
    ///
    /// Its NVLinks do not end in the switches of the others.
    pub fn add(&self, context: &Context) -> Result<(), CallError> {
        let driver = context.current()?;
        // SAFETY: the object is alive.
        let answer = unsafe {
            driver.calls.cuMulticastAddDevice(self.object.handle, context.device().handle)
        };
        driver.check(answer, || context.device().to_string())
    }

    /// Makes memory on the GPU of `context`, which has been added, as all others have, and binds it.
    ///
    /// # Errors
    ///
    /// Want of memory, or of what switches have for such objects.
    pub fn bind(&mut self, context: &Context) -> Result<(), CallError> {
        let memory = SharedBuffer::new(context, self.size, &[], self.sharing.handle_type())?;
        let driver = context.current()?;
        let whole = length(self.size);
        // SAFETY: object and memory are alive, and as long as is said.
        let answer = unsafe {
            driver.calls.cuMulticastBindMem(
                self.object.handle,
                0,
                memory.allocation().handle,
                0,
                whole,
                0,
            )
        };
        driver.check(answer, || format!("{} on {}", self.size, context.device()))?;
        let (object, context, size) = (Arc::clone(&self.object), context.clone(), self.size);
        self.members.push(Member { _bound: Bound { object, context, size }, memory });
        Ok(())
    }

    /// Maps it for the GPUs of this process that have memory behind it. Nothing may use the address
    /// before all others have bound theirs.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn map(&mut self) -> Result<(), CallError> {
        let contexts: Vec<&Context> =
            self.members.iter().map(|member| &member.memory.allocation().context).collect();
        let own = self.object.context.device().ordinal();
        let peers: Vec<&Context> =
            contexts.into_iter().filter(|context| context.device().ordinal() != own).collect();
        let object = Arc::clone(&self.object);
        let mapping = Mapping::new(object, length(self.size), &peers)?;
        self.mapping = Some(mapping);
        Ok(())
    }

    /// The memory of the GPU that was bound as number `place` of this process.
    ///
    /// # Panics
    ///
    /// There is none.
    pub fn member(&self, place: usize) -> Slice<'_> {
        self.members[place].memory.all()
    }
}

impl Memory for Multicast {
    /// The memory behind it at once.
    ///
    /// # Panics
    ///
    /// It is not mapped.
    fn all(&self) -> Slice<'_> {
        let mapping = self.mapping.as_ref().expect("what is used has been mapped");
        Slice::new(mapping.address, self.size)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.context.give_back(|driver| {
            let whole = length(self.size);
            // SAFETY: the memory was bound as a whole, and no stream uses it any more.
            let answer = unsafe {
                driver.calls.cuMulticastUnbind(
                    self.object.handle,
                    self.context.device().handle,
                    0,
                    whole,
                )
            };
            driver.check(answer, || self.context.device().to_string())
        });
    }
}
