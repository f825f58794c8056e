//! Memory of a GPU that several processes reach.
//!
//! There are two ways, and machines on which only one works. The older one turns memory of
//! `cuMemAlloc` into 64 bytes that another process opens. The newer one makes memory that has a
//! file descriptor. The driver's descriptors cannot be opened through `/proc`, unlike those of
//! shared-memory segments; they are fetched out of their process with `pidfd_getfd`, which asks
//! for the permission to trace it. Processes of one user have it by default; where Yama's
//! `ptrace_scope` is 1 only ancestors do, so the owner allows every process to trace it while it
//! exports something (`PR_SET_PTRACER`); other users still may not. Containers that filter
//! the call need the capability `SYS_PTRACE`.
//!
//! Where GPUs of several hosts are in one NVLink domain, such memory can have a fabric handle instead:
//! 64 bytes that a process on another host opens, if both hosts have the same IMEX channel.
//!
//! In all these ways the exporter keeps the memory until the importers have let go of it.
//!
//! The kernel's drivers of other devices reach it in a way of their own, by a dma-buf.

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{
    CUipcMem_flags_enum, CUipcMemHandle, CUmemAccess_flags_enum, CUmemAccessDesc,
    CUmemAllocationGranularity_flags_enum, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType_enum, CUmemLocation,
    CUmemLocationType_enum, CUmemRangeHandleType, CUmemRangeHandleType_enum,
};
use rustix::{
    io::Errno,
    process::{PTracer, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, set_ptracer},
};
use serde::{Deserialize, Serialize};

use super::{
    Buffer, Context, Driver, Memory, Slice,
    calls::Calls,
    memory::{length, whole},
};
use crate::{
    ffi::{CallError, process::Descriptor},
    units::Bytes,
};

/// Handles that are file descriptors, and those of an NVLink domain.
pub(super) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub(super) const FABRIC: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

/// A handle by which a process on any host of an NVLink domain opens a [`SharedBuffer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricHandle {
    bytes: Vec<u8>,
    /// Of the whole mapping.
    pub(super) size: Bytes,
}

/// A handle by which another process opens a [`Buffer`], as long as its owner keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpcHandle {
    bytes: Vec<u8>,
    size: Bytes,
}

impl Buffer {
    /// A handle by which other processes open it; this one cannot. The memory is made by
    /// [`Buffer::to_share`].
    ///
    /// # Errors
    ///
    /// The driver's refusal, for instance because the system has no such sharing.
    pub fn ipc_handle(&self) -> Result<IpcHandle, CallError> {
        let driver = self.context.current()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the memory is alive; `handle` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuIpcGetMemHandle(&raw mut handle, self.address) };
        driver.check(answer, || self.to_string())?;
        let bytes = handle.reserved.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
        Ok(IpcHandle { bytes, size: self.size() })
    }

    /// Opens another process's memory for the GPU of `context`, to be closed on drop. If it is
    /// another GPU's, access to that is enabled.
    ///
    /// # Errors
    ///
    /// The exporter is gone or is this process, or the two GPUs have no way to each other.
    pub fn open(context: &Context, handle: &IpcHandle) -> Result<Self, CallError> {
        const FLAGS: u32 = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let driver = context.current()?;
        let mut bytes = CUipcMemHandle { reserved: [0; 64] };
        for (target, source) in bytes.reserved.iter_mut().zip(&handle.bytes) {
            *target = std::ffi::c_char::from_ne_bytes([*source]);
        }
        let mut address = 0;
        // SAFETY: `address` is a live local that the call only writes; the handle is passed by
        // value, and the driver looks at what it says before it trusts it.
        let answer = unsafe { driver.calls.cuIpcOpenMemHandle_v2(&raw mut address, bytes, FLAGS) };
        driver.check(answer, || format!("{} for {}", handle.size, context.device()))?;
        // SAFETY: the call has just opened it, for this owner.
        Ok(unsafe { Self::own(context, address, handle.size, Calls::cuIpcCloseMemHandle) })
    }

    /// A dma-buf that begins where this memory does, for another device of this machine. The
    /// memory is made by [`Buffer::to_share`], since a dma-buf is whole pages.
    ///
    /// # Errors
    ///
    /// The driver's refusal, most often because the GPU or the kernel has no such sharing.
    pub fn dma_buf(&self) -> Result<OwnedFd, CallError> {
        const KIND: CUmemRangeHandleType =
            CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let driver = self.context.current()?;
        let length = length(whole(self.size()));
        let mut descriptor: c_int = -1;
        // SAFETY: the range is memory of this owner, with what it has of its last block; the handle
        // of this kind is a descriptor, a live local that the call only writes.
        let answer = unsafe {
            driver.calls.cuMemGetHandleForAddressRange(
                (&raw mut descriptor).cast(),
                self.address,
                length,
                KIND,
                0,
            )
        };
        driver.check(answer, || self.to_string())?;
        // SAFETY: the driver has just opened it, for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// Memory of one GPU, mapped for some GPUs of this process, that other processes can map too;
/// unmapped on drop, gone when the last lets go.
#[derive(Debug)]
pub struct SharedBuffer {
    mapping: Mapping,
    size: Bytes,
    exported: Mutex<Option<Export>>,
}

impl SharedBuffer {
    /// Makes `size` of memory on the GPU of `context`, which that GPU and those of `peers` reach.
    ///
    /// # Errors
    ///
    /// The driver's refusal: want of memory, or a GPU with no way to this one.
    pub fn create(context: &Context, size: Bytes, peers: &[&Context]) -> Result<Self, CallError> {
        Self::new(context, size, peers, DESCRIPTOR)
    }

    /// The same for processes on all hosts of the GPU's NVLink domain.
    ///
    /// # Errors
    ///
    /// The driver's refusal: want of memory, or of an IMEX channel.
    pub fn create_in_fabric(context: &Context, size: Bytes) -> Result<Self, CallError> {
        Self::new(context, size, &[], FABRIC)
    }

    pub(super) fn new(
        context: &Context,
        size: Bytes,
        peers: &[&Context],
        handle_type: CUmemAllocationHandleType,
    ) -> Result<Self, CallError> {
        let driver = context.current()?;
        let object = || format!("{size} on {}", context.device());
        let properties = properties(context, handle_type);
        let mut grain = 0;
        // SAFETY: `properties` and `grain` are live locals; the call reads one, writes the other.
        let answer = unsafe {
            driver.calls.cuMemGetAllocationGranularity(
                &raw mut grain,
                &raw const properties,
                CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        };
        driver.check(answer, object)?;
        let whole = length(size).checked_next_multiple_of(grain).unwrap_or(usize::MAX);
        let mut handle = 0;
        // SAFETY: as above.
        let answer =
            unsafe { driver.calls.cuMemCreate(&raw mut handle, whole, &raw const properties, 0) };
        driver.check(answer, object)?;
        let allocation = Arc::new(Allocation { context: context.clone(), handle });
        let mapping = Mapping::new(allocation, whole, peers)?;
        Ok(Self { mapping, size, exported: Mutex::default() })
    }

    /// What it is made of.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.mapping.allocation
    }

    /// Maps the memory that another process exports, for the GPU of `context` and those of
    /// `peers`.
    ///
    /// # Errors
    ///
    /// The exporter is gone, this process may not look into it, or a GPU has no way to the
    /// memory's.
    pub fn open(
        context: &Context,
        descriptor: Descriptor,
        peers: &[&Context],
    ) -> Result<Self, CallError> {
        let size = descriptor.size;
        let allocation = Allocation::of_descriptor(context, descriptor)?;
        let mapping = Mapping::new(Arc::new(allocation), length(size), peers)?;
        Ok(Self { mapping, size, exported: Mutex::default() })
    }

    /// Maps the memory that a process on any host of the NVLink domain exports, for the GPU of
    /// `context`.
    ///
    /// # Errors
    ///
    /// The exporter is gone, the hosts have no IMEX channel in common, or the GPU has no way to the
    /// memory's.
    pub fn open_fabric(context: &Context, handle: &FabricHandle) -> Result<Self, CallError> {
        let allocation = Allocation::of_fabric(context, handle)?;
        let mapping = Mapping::new(Arc::new(allocation), length(handle.size), &[])?;
        Ok(Self { mapping, size: handle.size, exported: Mutex::default() })
    }

    /// What processes on all hosts of the NVLink domain open it with, as long as this value lives.
    pub fn fabric_handle(&self) -> Result<FabricHandle, CallError> {
        self.mapping.allocation.fabric_handle(Bytes::of_len(self.mapping.length))
    }

    /// What other processes open it with, as long as this value lives. As long any process of this
    /// user may trace this one, even if the system otherwise allows it only to ancestors.
    pub fn export(&self) -> Result<Descriptor, CallError> {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        let export = match exported.take() {
            Some(export) => export,
            None => Export::new(&self.mapping.allocation)?,
        };
        let descriptor = exported.insert(export).descriptor.as_raw_fd();
        // The whole mapping: importing less is refused.
        let size = Bytes::of_len(self.mapping.length);
        Ok(Descriptor { pid: std::process::id(), descriptor, size })
    }
}

impl Memory for SharedBuffer {
    fn all(&self) -> Slice<'_> {
        Slice::new(self.mapping.address, self.size)
    }
}

/// An allocation without an address; released on drop.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) context: Context,
    pub(super) handle: u64,
}

impl Allocation {
    /// That behind a descriptor of another process, for the GPU of `context`.
    pub(super) fn of_descriptor(
        context: &Context,
        descriptor: Descriptor,
    ) -> Result<Self, CallError> {
        let fetched = fetch(descriptor)?;
        // The call takes the number where other kinds of handles are addresses.
        let number =
            std::ptr::without_provenance_mut::<c_void>(fetched.as_raw_fd().unsigned_abs() as usize);
        let object = || format!("{} of process {}", descriptor.size, descriptor.pid);
        // SAFETY: the descriptor is open.
        unsafe { Self::import(context, number, DESCRIPTOR, object) }
    }

    /// That of another process, be it on another host, for the GPU of `context`.
    pub(super) fn of_fabric(context: &Context, handle: &FabricHandle) -> Result<Self, CallError> {
        let mut words = [0_u64; 8];
        for (word, bytes) in words.iter_mut().zip(handle.bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let object = || format!("{} of another process, for {}", handle.size, context.device());
        let given = words.as_mut_ptr().cast();
        // SAFETY: the call reads the 64 bytes of such a handle, a live local.
        unsafe { Self::import(context, given, FABRIC, object) }
    }

    /// What processes on all hosts of the NVLink domain open it with; it is of `size`.
    pub(super) fn fabric_handle(&self, size: Bytes) -> Result<FabricHandle, CallError> {
        let driver = self.context.current()?;
        let mut words = [0_u64; 8];
        // SAFETY: for this kind of handle the call writes 64 bytes, a live local.
        let answer = unsafe {
            driver.calls.cuMemExportToShareableHandle(
                words.as_mut_ptr().cast(),
                self.handle,
                FABRIC,
                0,
            )
        };
        driver.check(answer, || self.context.device().to_string())?;
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(FabricHandle { bytes, size })
    }

    /// Another process's, for the GPU of `context`.
    ///
    /// # Safety
    ///
    /// The pointer is what the driver asks for of a handle of this kind.
    unsafe fn import(
        context: &Context,
        given: *mut c_void,
        kind: CUmemAllocationHandleType,
        object: impl FnOnce() -> String,
    ) -> Result<Self, CallError> {
        let driver = context.current()?;
        let mut handle = 0;
        // SAFETY: the caller's promise; `handle` is a live local that the call only writes.
        let answer =
            unsafe { driver.calls.cuMemImportFromShareableHandle(&raw mut handle, given, kind) };
        driver.check(answer, object)?;
        Ok(Self { context: context.clone(), handle })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.context.give_back(|driver| {
            // SAFETY: the handle came from `cuMemCreate` or from an import, and is released only
            // here, after its mapping is gone.
            let answer = unsafe { driver.calls.cuMemRelease(self.handle) };
            driver.check(answer, || self.context.device().to_string())
        });
    }
}

/// Addresses with an allocation behind them.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) address: u64,
    length: usize,
    mapped: bool,
    allocation: Arc<Allocation>,
}

impl Mapping {
    /// Maps an allocation for its own GPU and those of `peers`.
    pub(super) fn new(
        allocation: Arc<Allocation>,
        length: usize,
        peers: &[&Context],
    ) -> Result<Self, CallError> {
        let context = allocation.context.clone();
        let driver = context.current()?;
        let object = || format!("{} on {}", Bytes::of_len(length), context.device());
        let mut address = 0;
        // SAFETY: `address` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuMemAddressReserve(&raw mut address, length, 0, 0, 0) };
        driver.check(answer, object)?;
        // From here on a failure frees what exists.
        let mut mapping = Self { address, length, mapped: false, allocation };
        // SAFETY: the range was just reserved and has nothing mapped in it.
        let answer =
            unsafe { driver.calls.cuMemMap(address, length, 0, mapping.allocation.handle, 0) };
        driver.check(answer, object)?;
        mapping.mapped = true;
        let allow = |context: &Context| CUmemAccessDesc {
            location: location(context),
            flags: CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let allowed: Vec<CUmemAccessDesc> =
            std::iter::once(&context).chain(peers.iter().copied()).map(allow).collect();
        // SAFETY: the range is mapped, and `allowed` is as long as is said.
        let answer = unsafe {
            driver.calls.cuMemSetAccess(address, length, allowed.as_ptr(), allowed.len())
        };
        driver.check(answer, object)?;
        Ok(mapping)
    }

    fn give_back(&self, driver: &Driver) -> Result<(), CallError> {
        let object = || Bytes::of_len(self.length).to_string();
        if self.mapped {
            // SAFETY: the range was mapped as a whole in `new`, and no stream uses it any more.
            let answer = unsafe { driver.calls.cuMemUnmap(self.address, self.length) };
            driver.check(answer, object)?;
        }
        // SAFETY: the range was reserved in `new`, has nothing mapped in it, and is freed only
        // here.
        let answer = unsafe { driver.calls.cuMemAddressFree(self.address, self.length) };
        driver.check(answer, object)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.allocation.context.give_back(|driver| self.give_back(driver));
    }
}

fn location(context: &Context) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.device().handle,
    }
}

fn properties(context: &Context, handle_type: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_type,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// A descriptor that others may fetch.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) descriptor: OwnedFd,
}

/// How many descriptors this process exports now.
static EXPORTS: Mutex<usize> = Mutex::new(0);

impl Export {
    pub(super) fn new(allocation: &Allocation) -> Result<Self, CallError> {
        let driver = allocation.context.current()?;
        let mut descriptor: c_int = -1;
        // SAFETY: for this kind of handle the call writes one integer, a live local.
        let answer = unsafe {
            driver.calls.cuMemExportToShareableHandle(
                (&raw mut descriptor).cast(),
                allocation.handle,
                DESCRIPTOR,
                0,
            )
        };
        let object = || allocation.context.device().to_string();
        driver.check(answer, object)?;
        // SAFETY: the driver has just made this descriptor for us, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mut exports = EXPORTS.lock().unwrap_or_else(PoisonError::into_inner);
        *exports += 1;
        allow_tracers(PTracer::Any);
        Ok(Self { descriptor })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let mut exports = EXPORTS.lock().unwrap_or_else(PoisonError::into_inner);
        *exports -= 1;
        if *exports == 0 {
            allow_tracers(PTracer::None);
        }
    }
}

/// Sets which process may trace this one in addition to its ancestors. A kernel without Yama
/// refuses, and allows it to every process of the user anyway.
fn allow_tracers(who: PTracer) {
    let _ = set_ptracer(who);
}

/// The other process's descriptor, as one of this process.
fn fetch(wanted: Descriptor) -> Result<OwnedFd, CallError> {
    let process = format!("process {}", wanted.pid);
    let refused = |call, object: &str, code: Errno| {
        let source = match code {
            Errno::PERM | Errno::ACCESS => io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{}: this process may not trace that one; a container needs the capability \
                     SYS_PTRACE, a system with kernel.yama.ptrace_scope above 1 a lower value",
                    io::Error::from(code)
                ),
            ),
            code => code.into(),
        };
        CallError::new(call, object, source)
    };
    let pid = i32::try_from(wanted.pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL);
    let handle = pid
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .map_err(|code| refused("pidfd_open", &process, code))?;
    pidfd_getfd(handle, wanted.descriptor, PidfdGetfdFlags::empty()).map_err(|code| {
        refused("pidfd_getfd", &format!("descriptor {} of {process}", wanted.descriptor), code)
    })
}
