//! What the library opens: owners that close, and the way to an object's functions.

use std::ffi::c_int;

use super::{
    Library,
    bindings::{FI_ENOSYS, fi_ops, fid},
};
use crate::ffi::{self, CallError};

/// An open object, whose type begins with a `fid`; closed on drop.
pub(super) struct Object<T: Copy> {
    library: &'static Library,
    /// What it is, for a warning.
    name: &'static str,
    raw: Option<*mut T>,
}

impl<T: Copy> Object<T> {
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

    /// The function of this object that `table` and `function` name, as the headers' inline
    /// functions find it; `call` is the name of theirs, for the error if the provider has none.
    pub(super) fn function<U: Copy, F>(
        &self,
        call: &'static str,
        table: fn(&T) -> *mut U,
        function: fn(&U) -> Option<F>,
    ) -> Result<F, CallError> {
        // SAFETY: the object is open, and of this type.
        let found = unsafe { lookup(self.raw(), table, function) };
        found.ok_or_else(|| self.lacks(call))
    }

    /// The function that every object has.
    fn common<F>(
        &self,
        call: &'static str,
        function: fn(&fi_ops) -> Option<F>,
    ) -> Result<F, CallError> {
        // SAFETY: the object is open, and begins with this.
        let found = unsafe { lookup(self.fid(), |fid| fid.ops, function) };
        found.ok_or_else(|| self.lacks(call))
    }

    fn lacks(&self, call: &'static str) -> CallError {
        self.library.error(call, -FI_ENOSYS, self.name.to_owned())
    }

    /// Closes the object before its time is over; whether that went well, as a warning says
    /// otherwise.
    pub(super) fn close(&mut self) -> bool {
        if self.raw.is_none() {
            return true;
        }
        let closed = self.common("fi_close", |ops| ops.close).and_then(|close| {
            // SAFETY: the object is closed only here, once: it is forgotten below.
            let code = unsafe { close(self.fid()) };
            self.library.check("fi_close", code, || self.name.to_owned())
        });
        self.raw = None;
        closed.inspect_err(ffi::warn).is_ok()
    }

    /// Ties `other` to this object.
    pub(super) fn bind<U: Copy>(
        &self,
        call: &'static str,
        other: &Object<U>,
        flags: u64,
    ) -> Result<(), CallError> {
        let bind = self.common(call, |ops| ops.bind)?;
        // SAFETY: both objects are open.
        let code = unsafe { bind(self.fid(), other.fid(), flags) };
        self.library.check(call, code, || format!("{} to {}", other.name, self.name))
    }

    /// Gives the object a command that has no argument.
    pub(super) fn control(&self, call: &'static str, command: c_int) -> Result<(), CallError> {
        let control = self.common(call, |ops| ops.control)?;
        // SAFETY: the object is open, and the command reads no argument.
        let code = unsafe { control(self.fid(), command, std::ptr::null_mut()) };
        self.library.check(call, code, || self.name.to_owned())
    }
}

impl<T: Copy> Drop for Object<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The function of an object that `table` and `function` name; `None` where the provider has
/// none.
///
/// # Safety
///
/// `object` is open, and of the type that its pointer says.
unsafe fn lookup<T: Copy, U: Copy, F>(
    object: *mut T,
    table: fn(&T) -> *mut U,
    function: fn(&U) -> Option<F>,
) -> Option<F> {
    // SAFETY: the caller's promise.
    let table = table(&unsafe { object.read() });
    if table.is_null() {
        return None;
    }
    // SAFETY: an open object's tables are complete: the provider fills what it does not have with
    // functions that refuse.
    function(&unsafe { table.read() })
}
