//! Memory that NCCL allocates, and memory that it is told of.

use std::{ffi::c_void, io, ptr};

use super::{
    Communicator, Library, Missing,
    bindings::{self, ncclWindow_t},
};
use crate::{
    ffi::{
        CallError,
        cuda::{Context, Memory, Slice},
    },
    units::Bytes,
};

/// Memory of one GPU from NCCL's own allocator, which can be in a [`Window`]; freed on drop. Its
/// contents are undefined until something is written.
#[derive(Debug)]
pub struct Allocation {
    library: &'static Library,
    context: Context,
    address: u64,
    size: Bytes,
}

impl Allocation {
    /// Allocates `size`.
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Allocation`](super::Feature::Allocation)), or there is not so
    /// much memory.
    pub fn new(
        library: &'static Library,
        context: &Context,
        size: Bytes,
    ) -> Result<Self, CallError> {
        const CALL: &str = "ncclMemAlloc";
        let allocate = library.calls.ncclMemAlloc.ok_or(Missing(CALL))?;
        let object = || format!("{size} on {}", context.device());
        let length = size.to_len().map_err(|_| CallError {
            call: CALL,
            object: object(),
            source: io::Error::from(io::ErrorKind::OutOfMemory).into(),
        })?;
        context.current()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: `pointer` is a live local that the call only writes.
        let code = unsafe { allocate(&raw mut pointer, length) };
        Context::forget_current();
        library.check(CALL, code, None, object)?;
        let address = pointer.expose_provenance() as u64;
        Ok(Self { library, context: context.clone(), address, size })
    }
}

impl Memory for Allocation {
    fn all(&self) -> Slice<'_> {
        Slice::new(self.address, self.size)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        const CALL: &str = "ncclMemFree";
        let Some(free) = self.library.calls.ncclMemFree else { return };
        self.context.give_back(|_| {
            // SAFETY: the memory came from `ncclMemAlloc`, no stream uses it any more, and it is
            // freed only here.
            let code = unsafe { free(pointer(self.all())) };
            Context::forget_current();
            let object = || format!("{} on {}", self.size, self.context.device());
            self.library.check(CALL, code, None, object)
        });
    }
}

/// Memory that a communicator may use without copying it first, until this is dropped.
#[derive(Debug)]
pub struct Registration<'a> {
    communicator: &'a Communicator,
    handle: *mut c_void,
}

impl<'a> Registration<'a> {
    /// Registers `memory`, which must be of the communicator's GPU.
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Registration`](super::Feature::Registration)), or NCCL's
    /// refusal.
    pub fn new(communicator: &'a Communicator, memory: Slice<'a>) -> Result<Self, CallError> {
        const CALL: &str = "ncclCommRegister";
        let library = communicator.library;
        let register = library.calls.ncclCommRegister.ok_or(Missing(CALL))?;
        let of = communicator.live(CALL)?;
        communicator.context().current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the memory is alive as long as this value; `handle` is a live local that the call
        // only writes.
        let code = unsafe { register(of, pointer(memory), memory.length(), &raw mut handle) };
        Context::forget_current();
        library.check(CALL, code, Some(of), || format!("{} of {communicator}", memory.size()))?;
        Ok(Self { communicator, handle })
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        const CALL: &str = "ncclCommDeregister";
        let library = self.communicator.library;
        let Some(deregister) = library.calls.ncclCommDeregister else { return };
        // It is gone with a communicator that was aborted.
        let Ok(of) = self.communicator.live(CALL) else { return };
        // SAFETY: the handle came from `ncclCommRegister` for this communicator, and is given back
        // only here.
        let code = unsafe { deregister(of, self.handle) };
        Context::forget_current();
        let object = || self.communicator.to_string();
        if let Err(err) = library.check(CALL, code, Some(of), object) {
            crate::ffi::warn(&err);
        }
    }
}

/// Memory that all ranks of a communicator reach in each other, until this is dropped.
#[derive(Debug)]
pub struct Window<'a> {
    communicator: &'a Communicator,
    handle: ncclWindow_t,
}

impl<'a> Window<'a> {
    /// Puts `memory` of the communicator's GPU into a window; all ranks have to call it with as
    /// much. A symmetric one has the same offsets on all ranks, which the fastest kernels want; the
    /// memory is then an [`Allocation`].
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Windows`](super::Feature::Windows)), NCCL's refusal, or not
    /// all ranks have come in time.
    pub fn new(
        communicator: &'a Communicator,
        memory: Slice<'a>,
        is_symmetric: bool,
    ) -> Result<Self, CallError> {
        const CALL: &str = "ncclCommWindowRegister";
        let library = communicator.library;
        let register = library.calls.ncclCommWindowRegister.ok_or(Missing(CALL))?;
        let of = communicator.live(CALL)?;
        communicator.context().current()?;
        let flags = match is_symmetric {
            true => bindings::NCCL_WIN_COLL_SYMMETRIC,
            false => bindings::NCCL_WIN_DEFAULT,
        };
        // NCCL writes it when it is done: too late, and it is left to NCCL for ever.
        let handle: &'static mut ncclWindow_t = Box::leak(Box::new(ptr::null_mut()));
        let place = &raw mut *handle;
        // SAFETY: the memory is alive as long as this value, and what is written lives for ever.
        let code =
            unsafe { register(of, pointer(memory), memory.length(), place, flags.cast_signed()) };
        Context::forget_current();
        communicator.settle(code, CALL)?;
        // SAFETY: the call is done, so nobody writes it any more.
        let handle = unsafe { place.read_volatile() };
        Ok(Self { communicator, handle })
    }

    /// Whether NCCL makes use of it: where it cannot, it takes the memory without a window.
    pub fn is_used(&self) -> bool {
        !self.handle.is_null()
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        const CALL: &str = "ncclCommWindowDeregister";
        let library = self.communicator.library;
        let Some(deregister) = library.calls.ncclCommWindowDeregister else { return };
        // It is gone with a communicator that was aborted.
        let Ok(of) = self.communicator.live(CALL) else { return };
        if self.handle.is_null() {
            return;
        }
        // SAFETY: the handle came from `ncclCommWindowRegister` for this communicator, and is given
        // back only here.
        let code = unsafe { deregister(of, self.handle) };
        Context::forget_current();
        if let Err(err) = self.communicator.settle(code, CALL) {
            crate::ffi::warn(&err);
        }
    }
}

/// Where a slice begins, as C takes it.
fn pointer(memory: Slice<'_>) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(memory.address()).unwrap_or(0))
}
