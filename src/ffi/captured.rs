//! What libraries write to this process's standard output.

use std::{os::fd::OwnedFd, ptr};

use rustix::{
    io::dup,
    stdio::{dup2_stdout, stdout},
};

use super::{CallError, memory_file::MemoryFile};

/// Standard output goes to a file in memory as long as this lives.
#[derive(Debug)]
pub struct CapturedOutput {
    file: MemoryFile,
    before: OwnedFd,
}

impl CapturedOutput {
    /// Begins.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, most often for want of descriptors.
    pub fn begin() -> Result<Self, CallError> {
        flush();
        let before = dup(stdout());
        let before = before.map_err(|code| CallError::new("dup", "standard output", code))?;
        let file = MemoryFile::new()?;
        dup2_stdout(&file).map_err(|code| CallError::new("dup2", "standard output", code))?;
        Ok(Self { file, before })
    }

    /// What was written so far.
    pub fn text(&self) -> String {
        flush();
        let bytes = self.file.read_from(0).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for CapturedOutput {
    fn drop(&mut self) {
        flush();
        // If this fails, what follows is lost, and there is nowhere to say so.
        let _ = dup2_stdout(&self.before);
    }
}

/// Has the C library write what it holds back.
fn flush() {
    // SAFETY: null stands for all streams of the C library.
    unsafe { libc::fflush(ptr::null_mut()) };
}
