//! Loading foreign libraries, and why one does not load.

use std::{
    error::Error,
    ffi::{OsStr, c_int},
    mem::{ManuallyDrop, MaybeUninit},
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{CallError, Cause, text_of};

/// Why a library cannot be used, as a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Absent {
    reason: String,
    code: Option<u32>,
}

impl Absent {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), code: None }
    }

    /// It is there but does not start: it answered with this code.
    pub(super) fn refused(reason: String, code: Option<u32>) -> Self {
        Self { reason, code }
    }

    /// What the library answered, if it is there but does not start.
    pub const fn code(&self) -> Option<u32> {
        self.code
    }
}

/// A function that a library does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{library} has no {name}: install {since} or newer")]
pub struct Missing {
    library: &'static str,
    name: &'static str,
    /// The first version of the library that has it.
    since: &'static str,
}

/// The functions of a library in groups, each with the first version that has all of it.
pub(super) type Groups = &'static [(&'static str, &'static [&'static str])];

impl Missing {
    /// Without the function `name`, which is in one of `groups`.
    pub(super) fn new(library: &'static str, groups: Groups, name: &'static str) -> Self {
        let group = groups.iter().find(|(_, names)| names.contains(&name));
        Self { library, name, since: group.map_or("", |(since, _)| since) }
    }
}

impl From<Missing> for CallError {
    fn from(missing: Missing) -> Self {
        Self::new(missing.name, "", Cause::unsupported(missing))
    }
}

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

/// Loads the library for the life of the process from the first of these places that has it; else
/// the dynamic loader's sentence on the name that it looked up itself, or on the first place.
pub(super) fn load_first<P: AsRef<Path>>(
    places: impl IntoIterator<Item = P>,
) -> Result<(P, ManuallyDrop<Library>), String> {
    let is_name = |place: &Path| place.components().count() == 1;
    let mut reason = None;
    for place in places {
        match load(place.as_ref(), RTLD_NOW | RTLD_LOCAL) {
            Ok(library) => return Ok((place, ManuallyDrop::new(library))),
            Err(err) if reason.is_none() || is_name(place.as_ref()) => reason = Some(err),
            Err(_) => {}
        }
    }
    Err(reason.unwrap_or_default())
}

/// The function `name`; else the name again.
///
/// # Safety
///
/// `F` is a pointer to a function with the signature that `name` has in `library`, and `library`
/// is not unloaded while it is used.
pub(super) unsafe fn find<F: Copy>(
    library: &Library,
    name: &'static str,
) -> Result<F, &'static str> {
    // SAFETY: the caller vouches for the signature.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| name)
}

/// Whether it is simgpu, which stands in for NVIDIA's libraries.
pub(super) fn is_simulated(library: &Library) -> bool {
    // SAFETY: the symbol is only asked about, never called or read.
    unsafe { library.get::<*const ()>(b"simgpu_state") }.is_ok()
}

/// The file that holds the function at `address`.
pub(super) fn path_of(address: *const ()) -> PathBuf {
    // SAFETY: an all-zero `Dl_info` is a valid value of that plain C struct.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only compared with those of the loaded libraries; `found` is a live
    // local that the call only writes.
    let code = unsafe { libc::dladdr(address.cast(), &raw mut found) };
    if code == 0 {
        return PathBuf::new();
    }
    // SAFETY: the loader's answer is a string that ends in NUL and lives as long as the library,
    // which is never unloaded.
    let path = PathBuf::from(unsafe { text_of(found.dli_fname) }.unwrap_or_default());
    path.canonicalize().unwrap_or(path)
}

/// While this lives, a bus error ends the process with a sentence and exit code 2. The dynamic
/// loader trusts the length in a file's header, and reads past the end of a file that was cut off.
#[derive(Debug)]
pub(super) struct Loading {
    before: libc::sigaction,
}

/// The sentence, and its length.
static SENTENCE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

impl Loading {
    pub(super) fn of(name: impl AsRef<OsStr>) -> Option<Self> {
        let sentence = format!(
            "error: loading {} ended in a bus error: its file is shorter than it says, as if a copy \
             of it was cut off; install it again\n",
            name.as_ref().display()
        );
        // Never freed: a library is loaded once.
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
        assert!(load("libc.so.6", RTLD_NOW | RTLD_LOCAL).is_ok());
        let reason = load("libabsent.so.9", RTLD_NOW | RTLD_LOCAL).unwrap_err();
        assert!(reason.contains("libabsent.so.9"), "{reason}");
    }
}
