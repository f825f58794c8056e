//! Memory that NCCL allocates, and memory that is registered with it.

use std::{ffi::c_void, io, ptr, rc::Rc};

use super::{
    Communicator, Library,
    bindings::{self, ncclWindow_t},
    calls::required,
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
        let allocate = required(CALL, library.calls.ncclMemAlloc)?;
        let object = || format!("{size} on {}", context.device());
        let length = size.to_len().map_err(|_| {
            CallError::new(CALL, object(), io::Error::from(io::ErrorKind::OutOfMemory))
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
pub struct Registration {
    communicator: Rc<Communicator>,
    handle: *mut c_void,
    memory: Box<dyn Memory>,
}

impl Registration {
    /// Registers all of `memory`, which must be of the communicator's GPU.
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Registration`](super::Feature::Registration)), or NCCL's
    /// refusal.
    pub fn new(communicator: Rc<Communicator>, memory: Box<dyn Memory>) -> Result<Self, CallError> {
        const CALL: &str = "ncclCommRegister";
        let register = required(CALL, communicator.library.calls.ncclCommRegister)?;
        let all = memory.all();
        let mut handle = ptr::null_mut();
        let code = communicator.call(CALL, |of| {
            // SAFETY: the memory is alive as long as this value; `handle` is a live local that the
            // call only writes.
            unsafe { register(of, pointer(all), all.length(), &raw mut handle) }
        })?;
        let object = || format!("{} of {communicator}", all.size());
        communicator.library.check(CALL, code, Some(communicator.live(CALL)?), object)?;
        Ok(Self { communicator, handle, memory })
    }
}

impl Memory for Registration {
    fn all(&self) -> Slice<'_> {
        self.memory.all()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        const CALL: &str = "ncclCommDeregister";
        let Some(deregister) = self.communicator.library.calls.ncclCommDeregister else { return };
        // It is gone with a communicator that was aborted.
        let Ok(of) = self.communicator.live(CALL) else { return };
        self.communicator.context().give_back(|_| {
            // SAFETY: the handle came from `ncclCommRegister` for this communicator, no stream uses
            // the memory any more, and it is given back only here.
            let code = unsafe { deregister(of, self.handle) };
            Context::forget_current();
            self.communicator.check(CALL, code)
        });
    }
}

/// Memory that all ranks of a communicator reach in each other, until this is dropped.
#[derive(Debug)]
pub struct Window {
    communicator: Rc<Communicator>,
    handle: ncclWindow_t,
    memory: Box<dyn Memory>,
}

impl Window {
    /// Puts memory of each of these communicators' GPUs into a window that has the same offsets on
    /// all ranks, which the fastest kernels want. All ranks have to call it with as much, those of
    /// one process at once; the memory is an [`Allocation`].
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Windows`](super::Feature::Windows)), NCCL's refusal, or not
    /// all ranks have come in time.
    pub fn symmetric(
        members: Vec<(Rc<Communicator>, Box<dyn Memory>)>,
    ) -> Result<Vec<Self>, CallError> {
        let Some((first, _)) = members.first() else { return Ok(Vec::new()) };
        let library = first.library;
        // NCCL writes them when it is done: too late, and they are left to NCCL for ever.
        let places: Vec<*mut ncclWindow_t> =
            members.iter().map(|_| Box::into_raw(Box::new(ptr::null_mut()))).collect();
        let _watched = first.watched("does not register its memory")?;
        let begin = || {
            members
                .iter()
                .zip(&places)
                .try_for_each(|((of, memory), &place)| begin(of, memory.all(), place))
        };
        let settled = library.group(begin).and_then(|ended| {
            members.iter().try_for_each(|(communicator, _)| communicator.settle(ended, WINDOW))
        });
        if let Err(err) = settled {
            // None may go on with memory that will be gone.
            members.iter().for_each(|(communicator, _)| communicator.abort());
            return Err(err);
        }
        let made = members.into_iter().zip(places).map(|((communicator, memory), place)| {
            // SAFETY: the call is done, so nobody writes it any more, and it was made above.
            let handle = *unsafe { Box::from_raw(place) };
            Self { communicator, handle, memory }
        });
        Ok(made.collect())
    }

    /// Whether NCCL makes use of it: where it cannot, it takes the memory without a window.
    pub fn is_used(&self) -> bool {
        !self.handle.is_null()
    }
}

/// Begins to put `memory` into a window, within a group; its handle will be at `place`.
fn begin(
    communicator: &Communicator,
    memory: Slice<'_>,
    place: *mut ncclWindow_t,
) -> Result<(), CallError> {
    let register = required(WINDOW, communicator.library.calls.ncclCommWindowRegister)?;
    let flags = bindings::NCCL_WIN_COLL_SYMMETRIC.cast_signed();
    let code = communicator.call(WINDOW, |of| {
        // SAFETY: the caller keeps the memory until the call is done, and then as long as the
        // window; what is written lives until the call is done, or for ever.
        unsafe { register(of, pointer(memory), memory.length(), place, flags) }
    })?;
    communicator.begun(WINDOW, code)
}

impl Memory for Window {
    fn all(&self) -> Slice<'_> {
        self.memory.all()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        const CALL: &str = "ncclCommWindowDeregister";
        let Some(deregister) = self.communicator.library.calls.ncclCommWindowDeregister else {
            return;
        };
        // It is gone with a communicator that was aborted.
        let Ok(of) = self.communicator.live(CALL) else { return };
        if self.handle.is_null() {
            return;
        }
        self.communicator.context().give_back(|_| {
            // SAFETY: the handle came from `ncclCommWindowRegister` for this communicator, no
            // stream uses the memory any more, and it is given back only here.
            let code = unsafe { deregister(of, self.handle) };
            Context::forget_current();
            self.communicator.settle(code, CALL)
        });
    }
}

/// The call by which memory is put into a window.
const WINDOW: &str = "ncclCommWindowRegister";

/// Where a slice begins, as C takes it.
pub(super) fn pointer(memory: Slice<'_>) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(memory.address()).unwrap_or(0))
}
