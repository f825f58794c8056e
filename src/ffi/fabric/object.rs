//! What the library opens: owners that close, and the way to an object's functions.

use std::ffi::c_int;

use super::{
    Library,
    bindings::{FI_ENOSYS, fi_ops, fid},
};
use crate::ffi::{self, CallError};

/// An open object, whose type begins with a `fid`; closed on drop.
pub(super) struct Object<T> {
    library: &'static Library,
    /// What it is, for a warning.
    name: &'static str,
    raw: Option<*mut T>,
}

impl<T> Object<T> {
    /// Takes over an object.
    ///
    /// # Safety
    ///
    /// `raw` has just been opened, nothing else closes it, and it begins with a `fid`.
    pub(super) unsafe fn own(library: &'static Library, name: &'static str, raw: *mut T) -> Self {
        Self { library, name, raw: Some(raw) }
    }

    /// Where the library has it.
    ///
    /// # Panics
    ///
    /// It was closed.
    #[inline]
    pub(super) fn raw(&self) -> *mut T {
        self.raw.expect("only the owner's drop closes an object")
    }

    /// What every object begins with.
    pub(super) fn fid(&self) -> *mut fid {
        self.raw().cast()
    }

    /// Closes the object before its time is over; whether that went well, as a warning says
    /// otherwise.
    pub(super) fn close(&mut self) -> bool {
        let Some(raw) = self.raw.take() else { return true };
        let fid: *mut fid = raw.cast();
        // SAFETY: the object is open, and begins with this.
        let close = unsafe { function(fid, |fid| fid.ops, |ops: &fi_ops| ops.close) };
        let code = close.map_or(-FI_ENOSYS, |close| {
            // SAFETY: the object is closed only here, once: `raw` has been taken.
            unsafe { close(fid) }
        });
        let closed = self.library.check("fi_close", code, || self.name.to_owned());
        if let Err(err) = &closed {
            ffi::warn(err);
        }
        closed.is_ok()
    }

    /// Ties `other` to this object.
    pub(super) fn bind<U>(
        &self,
        call: &'static str,
        other: &Object<U>,
        flags: u64,
    ) -> Result<(), CallError> {
        let fid = self.fid();
        // SAFETY: the object is open, and begins with this.
        let bind = unsafe { function(fid, |fid| fid.ops, |ops: &fi_ops| ops.bind) };
        let code = bind.map_or(-FI_ENOSYS, |bind| {
            // SAFETY: both objects are open.
            unsafe { bind(fid, other.fid(), flags) }
        });
        self.library.check(call, code, || format!("{} to {}", other.name, self.name))
    }

    /// Gives the object a command that has no argument.
    pub(super) fn control(&self, call: &'static str, command: c_int) -> Result<(), CallError> {
        let fid = self.fid();
        // SAFETY: the object is open, and begins with this.
        let control = unsafe { function(fid, |fid| fid.ops, |ops: &fi_ops| ops.control) };
        let code = control.map_or(-FI_ENOSYS, |control| {
            // SAFETY: the object is open, and the command reads no argument.
            unsafe { control(fid, command, std::ptr::null_mut()) }
        });
        self.library.check(call, code, || self.name.to_owned())
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The function of an object that `table` and `function` name; `None` where the provider has
/// none. This is what the headers' inline functions do before they call it.
///
/// # Safety
///
/// `object` is open, and of the type that its pointer says.
pub(super) unsafe fn function<O: Copy, T: Copy, F>(
    object: *mut O,
    table: fn(&O) -> *mut T,
    function: fn(&T) -> Option<F>,
) -> Option<F> {
    // SAFETY: the caller's promise.
    let object = unsafe { object.read() };
    let table = table(&object);
    if table.is_null() {
        return None;
    }
    // SAFETY: an open object's tables are complete: the provider fills what it does not have with
    // functions that refuse.
    function(&unsafe { table.read() })
}
