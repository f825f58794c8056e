//! This process's environment, and other processes: their memory, ending with the parent, and
//! noticing that a peer has died.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open,
        set_parent_process_death_signal,
    },
};

use serde::{Deserialize, Serialize};

use super::{CallError, signal::unblock};
use crate::units::Bytes;

/// Asks the kernel to kill this process when the thread that started it ends, however it ends.
pub fn die_with_parent() -> Result<(), CallError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|code| CallError::new("prctl", "PR_SET_PDEATHSIG", code))
}

/// Has the process that `command` starts told to end (`SIGTERM`) when the thread that starts it
/// ends, however it ends.
pub fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let end_with_parent = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        // A launcher may not expect to start with signals blocked.
        unblock()
    };
    // SAFETY: between fork and exec it makes system calls and allocates nothing.
    unsafe { command.pre_exec(end_with_parent) };
}

/// Tells a process that was not waited for yet to end (`SIGTERM`).
pub fn end(child: &Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// Sets variables in the environment of this process, in place of what they were.
///
/// # Errors
///
/// The process has another thread, which might read the environment meanwhile.
///
/// # Panics
///
/// A name is empty or has an `=`, or a name or value has a NUL.
pub fn set_variables(variables: &[(String, String)]) -> Result<(), CallError> {
    let error = |source: io::Error| {
        let object = variables.first().map(|(name, _)| name.clone()).unwrap_or_default();
        CallError::new("setenv", object, source)
    };
    if variables.is_empty() {
        return Ok(());
    }
    let threads = fs::read_dir("/proc/self/task").map_err(error)?.count();
    if threads != 1 {
        return Err(error(io::Error::other(format!("{threads} threads run already"))));
    }
    for (name, value) in variables {
        // SAFETY: this is the only thread, as the kernel has said, and none can start meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// Calls `call` while what others write to standard output goes to standard error: a library's log
/// does not belong among results.
pub(super) fn with_output_on_stderr<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the call takes one integer; the descriptor that it makes is closed below.
    let output = unsafe { libc::dup(libc::STDOUT_FILENO) };
    if output < 0 {
        return call();
    }
    flush();
    // SAFETY: the call takes two integers; standard output is put back below.
    unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
    let answer = call();
    flush();
    // SAFETY: `output` is what standard output was.
    unsafe { libc::dup2(output, libc::STDOUT_FILENO) };
    // SAFETY: `output` was made above, and nothing else has it.
    unsafe { libc::close(output) };
    answer
}

/// Writes out what C's own output has kept back.
fn flush() {
    // SAFETY: a null pointer stands for all of them.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Memory behind a descriptor of a process, for other processes to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub descriptor: i32,
    /// The memory's size.
    pub size: Bytes,
}

/// A process whose end can be noticed, even while it is a zombie.
#[derive(Debug)]
pub struct Peer {
    handle: Option<OwnedFd>,
}

impl Peer {
    /// Watches the process `pid`. Where the kernel gives no handle on it (before Linux 5.3, or
    /// from another PID namespace) the peer counts as alive, and deadlines have to notice.
    pub fn watch(pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Self { handle: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let Some(handle) = &self.handle else { return false };
        let mut polled = [PollFd::new(handle, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_peer_that_ends_is_noticed_before_it_is_reaped() {
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let peer = Peer::watch(child.id());
        assert!(!peer.has_ended());
        child.kill().unwrap();
        let noticed = (0..5000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            peer.has_ended()
        });
        assert!(noticed);
        child.wait().unwrap();
    }
}
