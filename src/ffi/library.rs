//! Loading foreign libraries, and why one does not load.

use std::{
    error::Error,
    ffi::{OsStr, c_int},
    mem::MaybeUninit,
    path::Path,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// Loads the library at a path, or of a name that the dynamic loader looks up.
///
/// # Errors
///
/// The dynamic loader's own sentence: what it looked for and why it did not load.
pub(super) fn load(name: impl AsRef<OsStr>, flags: c_int) -> Result<Library, String> {
    let name = name.as_ref();
    let _loading = Loading::of(name);
    // SAFETY: loading runs the library's initialisers; the names are the vendors' own, or what the
    // user asked for, and made to be loaded like this.
    let library = unsafe { Library::open(Some(Path::new(name)), flags) };
    // libloading's sentence says no more than that it failed; the loader's is the cause of it.
    library.map_err(|err| err.source().map_or_else(|| err.to_string(), ToString::to_string))
}

/// Loads the library `name` and lets go of it again.
///
/// # Errors
///
/// As of [`load`].
pub(super) fn can_load(name: &str) -> Result<(), String> {
    load(name, RTLD_LAZY | RTLD_LOCAL).map(drop)
}

/// As long as it is there, a bus error ends the process with a sentence and exit code 2. The
/// dynamic loader trusts what a file says of its own length: of one that was cut off it reads
/// behind the end.
#[derive(Debug)]
pub(super) struct Loading {
    before: libc::sigaction,
}

/// What is said then, and its length.
static SENTENCE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

impl Loading {
    pub(super) fn of(name: impl AsRef<OsStr>) -> Option<Self> {
        let sentence = format!(
            "error: loading {} ended in a bus error: its file is shorter than it says, as if a copy of \
             it was cut off; install it again\n",
            name.as_ref().display()
        );
        // It stays: a library is loaded once.
        let sentence = sentence.into_bytes().leak();
        LENGTH.store(0, Ordering::Release);
        SENTENCE.store(sentence.as_mut_ptr(), Ordering::Release);
        LENGTH.store(sentence.len(), Ordering::Release);
        // SAFETY: an all-zero `sigaction` is a valid value of that plain C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        let mut before = MaybeUninit::uninit();
        // SAFETY: the handler only writes and ends the process, and `before` is a live local.
        let code = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) };
        // SAFETY: the call has written it.
        (code == 0).then(|| Self { before: unsafe { before.assume_init() } })
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // SAFETY: it is what the call gave, and a null pointer asks for no answer.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const self.before, ptr::null_mut()) };
    }
}

extern "C" fn on_bus_error(_: c_int) {
    let length = LENGTH.load(Ordering::Acquire);
    let sentence = SENTENCE.load(Ordering::Acquire);
    // SAFETY: both calls may be made in a handler, and the sentence is never freed.
    unsafe { libc::write(libc::STDERR_FILENO, sentence.cast(), length) };
    // SAFETY: the call ends the process and touches no memory.
    unsafe { libc::_exit(2) }
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
