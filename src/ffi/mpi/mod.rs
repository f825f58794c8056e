//! MPI, found at run time: messages between the ranks that a launcher has started.
//!
//! Three binary interfaces are in use: Open MPI's, whose handles are addresses of its own data;
//! that of MPICH and its relatives, whose handles are integers; and the one of the MPI 5 standard
//! (`libmpi_abi.so.1`), whose handles are small numbers in pointers. Only point-to-point messages
//! and no collectives are used (`messages`), by one thread.

mod calls;
mod messages;

use std::{
    ffi::{c_char, c_int, c_void},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

pub use messages::{MessageError, Outgoing};

use super::{
    CallError,
    library::{self, find},
    text_in,
    watchdog::Watchdog,
};
use calls::Calls;
use messages::{Messages, Session};

/// The name in the loader of the standard's interface.
const STANDARD: &str = "libmpi_abi.so.1";

/// Room for the version's text: `MPI_MAX_LIBRARY_VERSION_STRING` is 8192 at most.
const VERSION_LENGTH: usize = 16_384;

/// How long MPI may take to end the other ranks.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// Whose MPI it is, which says by whose launcher it can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Family {
    /// Open MPI, started through PMIx.
    #[strum(serialize = "Open MPI")]
    OpenMpi,
    /// MPICH and its relatives (Intel MPI, MVAPICH, Cray MPICH), started through PMI.
    #[strum(serialize = "MPICH")]
    Mpich,
}

/// A library's own values, `H` being the type of its handles.
#[derive(Clone, Copy, Debug)]
struct Constants<H> {
    /// `MPI_COMM_WORLD`.
    world: H,
    /// `MPI_BYTE`.
    byte: H,
    /// `MPI_ERRORS_RETURN`.
    errors_return: H,
    /// `MPI_THREAD_FUNNELED`: there are other threads, which call no MPI.
    thread_funneled: c_int,
}

/// MPICH's `mpi.h`, the same since its version 3.
const OF_MPICH: Constants<c_int> = Constants {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    errors_return: 0x5400_0001,
    thread_funneled: 1,
};

/// The MPI 5.0 standard, appendix A.
const OF_STANDARD: Constants<*mut c_void> = Constants {
    world: std::ptr::without_provenance_mut(0x101),
    byte: std::ptr::without_provenance_mut(0x247),
    errors_return: std::ptr::without_provenance_mut(0x143),
    thread_funneled: 1024,
};

/// An MPI library that is loaded but not started.
#[derive(Debug)]
pub struct Library {
    session: Box<dyn Session>,
    /// Whose it is.
    pub family: Family,
    /// What it says of its version, in one line.
    pub version: String,
    /// Where it was loaded from.
    pub path: PathBuf,
}

impl Library {
    /// Loads the library `path`, a file or a name for the loader to look up, for the life of the
    /// process.
    pub fn load(path: &Path) -> Result<Self, String> {
        // Components that Open MPI loads later look for its symbols among the global ones.
        let library = library::load(path, RTLD_NOW | RTLD_GLOBAL)?;
        let version = version(&library)?;
        let is_open_mpi = address(&library, "ompi_mpi_comm_world").is_some();
        let session = if is_standard(&library) {
            session(&library, OF_STANDARD)
        } else if is_open_mpi {
            session(&library, of_open_mpi(&library)?)
        } else if address(&library, "MPI_F_STATUS_IGNORE").is_some() {
            session(&library, OF_MPICH)
        } else {
            Err("it is no MPI whose binary interface g2g knows".to_owned())
        };
        let session = session?;
        // The functions are called from now on.
        std::mem::forget(library);
        let family = if is_open_mpi { Family::OpenMpi } else { Family::Mpich };
        Ok(Self { session, family, version, path: path.to_owned() })
    }

    /// Joins the other ranks; the process ends with a sentence if that takes longer than `limit`,
    /// as it does when one of them is missing.
    ///
    /// # Errors
    ///
    /// MPI's refusal. Most libraries do not refuse but end the process with a text of their own.
    pub fn start(self, limit: Duration) -> Result<Mpi, CallError> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        if STARTED.swap(true, Ordering::Relaxed) {
            let source = io::Error::other("MPI can be started once");
            return Err(CallError::new("MPI_Init_thread", self.path.display().to_string(), source));
        }
        let sentence = format!(
            "MPI_Init has not come back within {} s: a rank is missing or cannot be reached ({}, \
             {})",
            limit.as_secs(),
            self.version,
            self.path.display()
        );
        let watchdog = Watchdog::start(limit, sentence)?;
        self.session.initialize()?;
        drop(watchdog);
        Ok(Mpi { rank: self.session.rank()?, size: self.session.size()?, library: self })
    }
}

/// MPI that runs, as this rank has it. Not [`Send`]: only the thread that has started MPI may call
/// it. When it is dropped MPI goes on running, and the launcher takes the process's end for a
/// failure; [`Mpi::finish`] is the orderly end.
#[derive(Debug)]
pub struct Mpi {
    /// The library.
    pub library: Library,
    /// This process's number.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
}

impl Mpi {
    /// Sends all `messages` side by side; returns when MPI has taken them, which for long ones
    /// means that they are received.
    ///
    /// # Errors
    ///
    /// MPI refuses one, or has not taken it by `due`; it is then lost. Names the rank.
    pub fn send(&self, messages: &[Outgoing], due: Instant) -> Result<(), (u32, MessageError)> {
        self.library.session.send(messages, due)
    }

    /// The next message of rank `from` with `tag`, of at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// It is not there by `due`, and is then the next one still; or is too long, or MPI refuses.
    pub fn receive(
        &self,
        from: u32,
        tag: u16,
        bytes_max: usize,
        due: Instant,
    ) -> Result<Vec<u8>, MessageError> {
        self.library.session.receive(from, tag, bytes_max, due)
    }

    /// Ends MPI in order, which every rank does; the process ends with a sentence if that takes
    /// longer than `limit`.
    pub fn finish(self, limit: Duration) -> Result<(), CallError> {
        let sentence = format!(
            "rank {}: MPI_Finalize has not come back within {} s: a rank is gone or has stopped",
            self.rank,
            limit.as_secs()
        );
        let _watchdog = Watchdog::start(limit, sentence)?;
        self.library.session.finalize()
    }

    /// Ends all ranks, this one too, with the exit code and without order, and does not come back.
    pub fn abort(&self, code: i32) -> ! {
        let sentence = format!("rank {}: MPI_Abort has not come back", self.rank);
        let _watchdog = Watchdog::start(ABORT_LIMIT, sentence);
        self.library.session.abort(code);
        std::process::exit(code)
    }
}

/// The functions of `library`, with handles as `constants` has them.
fn session<H: Copy + std::fmt::Debug + 'static>(
    library: &Loaded,
    constants: Constants<H>,
) -> Result<Box<dyn Session>, String> {
    // SAFETY: the caller has looked which interface the library has.
    let calls = unsafe { Calls::<H>::load(library) };
    let calls = calls.map_err(|name| format!("it has no {name}"))?;
    Ok(Box::new(Messages::new(calls, constants)))
}

/// Open MPI's handles are the addresses of its own objects.
fn of_open_mpi(library: &Loaded) -> Result<Constants<*mut c_void>, String> {
    let address = |name| address(library, name).ok_or_else(|| format!("it has no {name}"));
    Ok(Constants {
        world: address("ompi_mpi_comm_world")?,
        byte: address("ompi_mpi_byte")?,
        errors_return: address("ompi_mpi_errors_return")?,
        thread_funneled: 1,
    })
}

/// Whether the library's name in the loader is that of the standard's interface: what it is called
/// there decides what its functions take, wherever the file lies.
fn is_standard(library: &Loaded) -> bool {
    // SAFETY: nothing is loaded by this.
    let Ok(standard) = (unsafe { Loaded::open(Some(STANDARD), RTLD_NOW | libc::RTLD_NOLOAD) })
    else {
        return false;
    };
    let version = |library| address(library, "MPI_Get_library_version");
    version(&standard) == version(library)
}

/// Where a symbol is.
fn address(library: &Loaded, name: &str) -> Option<*mut c_void> {
    // SAFETY: only the address is taken.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    symbol.ok().map(|symbol| symbol.into_raw())
}

/// What the library says of its version, which it may be asked before it is started: the first
/// line, and no more than a line's length of it.
fn version(library: &Loaded) -> Result<String, String> {
    type GetLibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: the MPI standard gives the function this signature, which has no handles.
    let call = unsafe { find::<GetLibraryVersion>(library, "MPI_Get_library_version") };
    let call = call.map_err(|name| format!("it is no MPI library: it has no {name}"))?;
    let mut text = [0_u8; VERSION_LENGTH];
    let mut length = 0;
    // SAFETY: `text` has more room than any library's longest text, and both are live locals that
    // the call only writes.
    let code = unsafe { call(text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    if code != 0 {
        return Err(format!("MPI_Get_library_version failed ({code})"));
    }
    let text = text_in(&text);
    let line = text.lines().next().unwrap_or_default();
    let line: Vec<&str> = line.split(',').next().unwrap_or_default().split_whitespace().collect();
    Ok(line.join(" "))
}
