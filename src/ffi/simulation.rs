//! The simulated machine: finds simgpu's library and gives this process its place on a machine.
//!
//! The library's file is never called libcuda, so no search for the driver finds it by chance; it
//! is loaded by its path and only on request.

use std::{
    ffi::{CString, c_char, c_int},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::{library, text_in};

/// The library's file.
const FILE: &str = "libsimgpu.so";

/// Room for a sentence or a path, as the library writes them.
const TEXT_LENGTH: usize = 4096;

/// `simgpu_attach`: a machine or a state, the seed of a new machine's chance, this process's rank,
/// room for a sentence, its length.
type Attach =
    unsafe extern "C" fn(*const c_char, *const c_char, u64, u32, *mut c_char, usize) -> c_int;

/// `simgpu_host`: room for a name, its length; how many hosts there are.
type OwnHost = unsafe extern "C" fn(*mut c_char, usize) -> u32;

/// `simgpu_state`: room for a path, its length.
type State = unsafe extern "C" fn(*mut c_char, usize) -> c_int;

/// `simgpu_system`: room for the text, its length; how long the text is.
type Describe = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// `simgpu_file`: a path, room for the text, its length; how long the text is.
type Show = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

/// `simgpu_time_ns`
type Time = unsafe extern "C" fn() -> u64;

/// `simgpu_reach_ns`: a time.
type Reach = unsafe extern "C" fn(u64);

/// `simgpu_wait`: whether this process waits.
type Wait = unsafe extern "C" fn(c_int);

/// `simgpu_hides`: an address.
type Hides = unsafe extern "C" fn(u64) -> c_int;

static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// The loaded library.
static LOADED: OnceLock<Library> = OnceLock::new();

/// Makes this process the first on `machine`, an instance's name or a file's path, and returns
/// the path under which other processes [`join`] it while this one lives. What happens there by
/// chance follows from `seed`. Where the machine is several hosts, `rank` tells which of them this
/// process is on: ranks are dealt to them in turn. To be called once, and before the driver is first
/// asked for.
///
/// # Errors
///
/// The library is missing or does not load, or the machine is unknown or malformed.
pub fn attach(machine: &str, seed: u64, rank: u32) -> Result<String, String> {
    let library = load(Some(machine), None, seed, rank)?;
    // SAFETY: simgpu declares the function with this signature.
    let state = unsafe { library.get::<State>(b"simgpu_state") };
    let state = state.map_err(|err| err.to_string())?;
    let mut text = [0_u8; TEXT_LENGTH];
    // SAFETY: `text` is a live local of the length given, which the call writes a string into.
    let code = unsafe { state(text.as_mut_ptr().cast(), text.len()) };
    if code != 0 {
        return Err(format!("{FILE} does not say where its state is (code {code})"));
    }
    Ok(text_in(&text))
}

/// Makes this process one more on the machine whose first process got `state` from [`attach`].
///
/// # Errors
///
/// The library is missing or does not load, or the first process is gone.
pub fn join(state: &str, rank: u32) -> Result<(), String> {
    load(None, Some(state), 0, rank).map(|_| ())
}

/// The name of the simulated host that this process is on, and how many there are; `None` where it
/// is on none.
pub fn host() -> Option<(String, u32)> {
    // SAFETY: simgpu declares the function with this signature.
    let host = unsafe { LOADED.get()?.get::<OwnHost>(b"simgpu_host") }.ok()?;
    let mut name = [0_u8; TEXT_LENGTH];
    // SAFETY: `name` is a live local of the length given, which the call writes a string into.
    let hosts = unsafe { host(name.as_mut_ptr().cast(), name.len()) };
    (hosts > 0).then(|| (text_in(&name), hosts))
}

/// The library, where this process is on a simulated machine: it answers for NVML too.
pub fn library() -> Option<&'static Path> {
    LIBRARY.get().map(PathBuf::as_path)
}

/// The kernel's files on the simulated machine, as JSON; `None` where this process is on none.
pub fn system() -> Option<String> {
    library()?;
    // SAFETY: simgpu declares the function with this signature.
    let describe = unsafe { LOADED.get()?.get::<Describe>(b"simgpu_system") }.ok()?;
    // SAFETY: no room at all: the call only counts.
    let length = unsafe { describe(std::ptr::null_mut(), 0) };
    let mut text = vec![0_u8; length + 1];
    // SAFETY: `text` is live and of the length given; the call writes a string into it.
    unsafe { describe(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// What a file of the simulated kernel shows now whose text changes; `path` has no links.
pub fn file(path: &Path) -> Option<String> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: simgpu declares the function with this signature.
    let show = unsafe { LOADED.get()?.get::<Show>(b"simgpu_file") }.ok()?;
    let mut text = [0_u8; TEXT_LENGTH];
    // SAFETY: the path ends in NUL; `text` is a live local of the length given.
    let length = unsafe { show(path.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    (length > 0).then(|| text_in(&text))
}

/// The host's time on the simulated machine, in nanoseconds; `None` where this process is on none.
pub fn time_ns() -> Option<u64> {
    // SAFETY: simgpu declares the function with this signature.
    let time = unsafe { LOADED.get()?.get::<Time>(b"simgpu_time_ns") }.ok()?;
    // SAFETY: the call takes nothing.
    Some(unsafe { time() })
}

/// What another process sent at `time_ns` has arrived: this host's time is that at least.
pub fn reach_ns(time_ns: u64) {
    // SAFETY: simgpu declares the function with this signature.
    let loaded =
        LOADED.get().and_then(|loaded| unsafe { loaded.get::<Reach>(b"simgpu_reach_ns") }.ok());
    if let Some(reach) = loaded {
        // SAFETY: the call takes an integer only.
        unsafe { reach(time_ns) };
    }
}

/// Does what waits for another process, in a way that no simulated network interface knows of. The
/// simulated machine's time goes on meanwhile.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let tell = |waits| {
        let loaded = LOADED.get()?;
        // SAFETY: simgpu declares the function with this signature.
        let tell = unsafe { loaded.get::<Wait>(b"simgpu_wait") }.ok()?;
        // SAFETY: the call takes an integer only.
        unsafe { tell(waits) };
        Some(())
    };
    tell(1);
    let done = wait();
    tell(0);
    done
}

/// Whether the simulated kernel does not say where the page at `address` lies: it is memory of the
/// simulated driver. `move_pages` answers EFAULT for that of a real one.
pub(super) fn hides(address: *const u8) -> bool {
    let Some(library) = LOADED.get() else { return false };
    // SAFETY: simgpu declares the function with this signature.
    let Ok(hides) = (unsafe { library.get::<Hides>(b"simgpu_hides") }) else { return false };
    // SAFETY: the call looks for the address in a table, and does not read there.
    unsafe { hides(address.addr() as u64) != 0 }
}

/// Loads the library for the life of the process, and attaches.
fn load(
    machine: Option<&str>,
    state: Option<&str>,
    seed: u64,
    rank: u32,
) -> Result<&'static Library, String> {
    let path = find()?;
    let library = library::load(&path, RTLD_NOW | RTLD_LOCAL)
        .map_err(|err| format!("cannot load the simulated machine's library: {err}"))?;
    let library = LOADED.get_or_init(|| library);
    // SAFETY: simgpu declares the function with this signature.
    let attach: Result<Symbol<Attach>, _> = unsafe { library.get(b"simgpu_attach") };
    let attach = attach.map_err(|err| format!("{} is not simgpu: {err}", path.display()))?;
    let machine = machine.map(CString::new).transpose().map_err(|err| err.to_string())?;
    let state = state.map(CString::new).transpose().map_err(|err| err.to_string())?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |c| c.as_ptr());
    let (machine, state) = (pointer(&machine), pointer(&state));
    let mut text = [0_u8; TEXT_LENGTH];
    // SAFETY: each string is null or ends in NUL, and `text` is a live local of the length given.
    let code = unsafe { attach(machine, state, seed, rank, text.as_mut_ptr().cast(), text.len()) };
    if code != 0 {
        return Err(text_in(&text));
    }
    let _ = LIBRARY.set(path);
    Ok(library)
}

/// The library beside this program, as cargo builds it, or in `../lib`, as it is installed.
fn find() -> Result<PathBuf, String> {
    let program = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|err| format!("cannot tell where this program is: {err}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let folders = [folder.to_owned(), folder.with_file_name("lib")];
    let found = folders.iter().map(|folder| folder.join(FILE)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let [beside, installed] = folders.map(|folder| folder.display().to_string());
        format!(
            "the simulated machine's library {FILE} is neither in {beside} nor in {installed}: \
             `cargo build --workspace` makes it"
        )
    })
}
