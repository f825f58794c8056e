//! The foreign boundary: the only `unsafe` of the program.
//!
//! Owns every call into the system and into the vendors' libraries, behind safe types that free
//! what they hold when dropped. Knows nothing of cases, ranks or results.

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

use std::time::Duration;

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
    System(#[from] std::io::Error),
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

/// Says what went wrong where no caller can be told; if that fails too, it is lost.
pub(crate) fn warn(err: &CallError) {
    stderr::say(&format!("warning: {err}"));
}

impl CallError {
    /// What the library answered, if it was one and did.
    pub const fn code(&self) -> Option<u32> {
        match self.source {
            Cause::Library { code, .. } => Some(code),
            Cause::System(_) | Cause::Late(_) => None,
        }
    }

    /// The error that the last system call of this thread left in `errno`.
    fn last(call: &'static str, object: impl Into<String>) -> Self {
        Self { call, object: object.into(), source: std::io::Error::last_os_error().into() }
    }
}
