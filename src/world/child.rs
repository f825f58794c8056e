//! A process that is no rank: it is run to its end.

use std::{
    io,
    process::{Command, ExitStatus},
};

use crate::ffi::process::end_with_parent;

/// Runs `command` to its end; how it ended, and what it wrote to standard error if that is a pipe. If
/// this process ends before, however it does, the other is told to end (`SIGTERM`).
///
/// # Errors
///
/// It cannot be started.
pub fn run(mut command: Command) -> io::Result<(ExitStatus, String)> {
    end_with_parent(&mut command);
    let output = command.spawn()?.wait_with_output()?;
    Ok((output.status, String::from_utf8_lossy(&output.stderr).into_owned()))
}
