//! The foreign boundary: the only `unsafe` of the program.
//!
//! Owns every call into the system and into the vendors' libraries, behind safe types that free
//! what they hold when dropped. Knows nothing of cases, ranks or results.

pub mod captured;
pub mod clock;
pub mod cuda;
pub mod fabric;
pub mod host;
pub mod library;
pub mod memory_file;
pub mod mpi;
pub mod nccl;
pub mod nvml;
pub mod process;
pub mod shm;
pub mod signal;
pub mod simulation;
pub mod watchdog;

use std::{
    error::Error,
    ffi::{CStr, c_char},
    io,
    time::Duration,
};

use crate::stderr;

/// A foreign call that did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{call}({object}) failed: {source}")]
pub struct CallError {
    /// The C function, so that its manual can be looked up.
    pub call: &'static str,
    /// What it was called on.
    pub object: String,
    /// What it answered.
    pub source: Cause,
}

/// Why a foreign call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system's code and its own sentence about it.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A library's code, and the library's own name and sentence for it.
    #[error("{name} ({code}): {text}")]
    Library {
        /// As the library returned it.
        code: u32,
        /// Such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// Such as `out of memory`.
        text: String,
    },
    /// What was waited for did not come in this time.
    #[error("not done within {} s", .0.as_secs_f64())]
    Late(Duration),
}

impl CallError {
    fn new(call: &'static str, object: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self { call, object: object.into(), source: source.into() }
    }

    /// What the library answered, if it was one and did.
    pub const fn code(&self) -> Option<u32> {
        match self.source {
            Cause::Library { code, .. } => Some(code),
            Cause::System(_) | Cause::Late(_) => None,
        }
    }

    /// The error that the last system call of this thread left in `errno`.
    fn last(call: &'static str, object: impl Into<String>) -> Self {
        Self::new(call, object, io::Error::last_os_error())
    }
}

impl Cause {
    /// That of a call which is not made, for this reason.
    fn unsupported(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        io::Error::new(io::ErrorKind::Unsupported, reason).into()
    }
}

impl From<rustix::io::Errno> for Cause {
    fn from(code: rustix::io::Errno) -> Self {
        Self::System(code.into())
    }
}

/// Prints an error as a warning where no caller can handle it.
pub(crate) fn warn(err: &CallError) {
    stderr::say(&format!("warning: {err}"));
}

/// A C string as a string of ours; `None` for a null pointer.
///
/// # Safety
///
/// `text` is null or points to a string that ends in NUL.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The string that a call has written into `buffer`.
fn text_in(buffer: &[u8]) -> String {
    CStr::from_bytes_until_nul(buffer).unwrap_or_default().to_string_lossy().into_owned()
}

/// A UUID in its usual form: five groups of digits.
fn uuid_text(bytes: [u8; 16]) -> String {
    let groups = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    let digits =
        |group: &[u8]| -> String { group.iter().map(|byte| format!("{byte:02x}")).collect() };
    groups.map(digits).join("-")
}
