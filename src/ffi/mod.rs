//! The foreign boundary: the only `unsafe` of the program.
//!
//! Owns every call into the system and, later, into the vendors' libraries, behind safe types
//! that free what they hold when dropped. Knows nothing of cases, ranks or results.

pub mod clock;
pub mod host;
pub mod library;
pub mod process;
pub mod shm;

use std::io::Write;

/// A foreign call that did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{call}({object}) failed: {source}")]
pub struct CallError {
    /// The C function, so that its manual can be looked up.
    pub call: &'static str,
    /// What it was called on.
    pub object: String,
    /// The system's code and its own sentence about it.
    pub source: std::io::Error,
}

/// Says what went wrong where no caller can be told; if that fails too, it is lost.
fn warn(err: &CallError) {
    let _ = writeln!(std::io::stderr(), "warning: {err}");
}

impl CallError {
    /// The error that the last system call of this thread left in `errno`.
    fn last(call: &'static str, object: impl Into<String>) -> Self {
        Self { call, object: object.into(), source: std::io::Error::last_os_error() }
    }
}
