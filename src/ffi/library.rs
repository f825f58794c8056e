//! Whether a foreign library can be loaded here, and why not.

use std::{
    error::Error,
    ffi::{CStr, CString},
};

/// Loads the library `name` and lets go of it again.
///
/// # Errors
///
/// The dynamic loader's own sentence: what it looked for and why it did not load.
pub fn can_load(name: &str) -> Result<(), String> {
    let c_name = CString::new(name).map_err(|err| err.to_string())?;
    // SAFETY: `c_name` ends in NUL. Loading runs the library's initialisers; the names asked for
    // are the vendors' own, which are made to be loaded like this.
    let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the call takes no argument; its answer is read before any other loader call.
        let reason = unsafe { libc::dlerror() };
        if reason.is_null() {
            return Err(format!("{name}: the dynamic loader gives no reason"));
        }
        // SAFETY: a non-null answer of `dlerror` is a string that ends in NUL and lives until the
        // next loader call of this thread, which comes after the copy made here.
        let reason = unsafe { CStr::from_ptr(reason) };
        return Err(reason.to_string_lossy().into_owned());
    }
    // SAFETY: `handle` came from `dlopen` above and is closed only here.
    unsafe { libc::dlclose(handle) };
    Ok(())
}

/// The dynamic loader's own sentence: libloading's says no more than that it failed.
pub(super) fn reason_of(err: &libloading::Error) -> String {
    err.source().map_or_else(|| err.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_loads_and_an_absent_library_is_named_in_the_reason() {
        assert_eq!(can_load("libc.so.6"), Ok(()));
        let reason = can_load("libabsent.so.9").unwrap_err();
        assert!(reason.contains("libabsent.so.9"), "{reason}");
    }
}
