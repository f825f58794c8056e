//! This process's environment, and other processes: ending with the parent, and noticing that a
//! peer has died.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
};

use super::{CallError, signal::unblock};

/// Asks the kernel to kill this process when the thread that started it ends, however it ends.
pub fn die_with_parent() -> Result<(), CallError> {
    // SAFETY: this request takes one integer and touches no memory.
    let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if code != 0 {
        return Err(CallError::last("prctl", "PR_SET_PDEATHSIG"));
    }
    Ok(())
}

/// Has the process that `command` starts told to end (`SIGTERM`) when the thread that starts it
/// ends, however it ends.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let end_with_parent = move || {
        // SAFETY: this request takes one integer and touches no memory.
        let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        // SAFETY: the call takes nothing and cannot fail.
        let is_orphan = u32::try_from(unsafe { libc::getppid() }) != Ok(parent);
        match code == 0 && !is_orphan {
            // A launcher may not expect to start with signals blocked.
            true => unblock(),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: between fork and exec it makes system calls and allocates nothing.
    unsafe { command.pre_exec(end_with_parent) };
}

/// Tells a process that was not waited for yet to end (`SIGTERM`).
pub fn end(child: &Child) {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else { return };
    // SAFETY: the call takes two integers; the process is our own, and its number nobody else's
    // before it is waited for.
    unsafe { libc::kill(pid, libc::SIGTERM) };
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
    let error = |source: io::Error| CallError {
        call: "setenv",
        object: variables.first().map(|(name, _)| name.clone()).unwrap_or_default(),
        source: source.into(),
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

/// A process whose end can be noticed, even while it is a zombie.
#[derive(Debug)]
pub struct Peer {
    handle: Option<OwnedFd>,
}

impl Peer {
    /// Watches the process `pid`. Where the kernel gives no handle on it (before Linux 5.3, or
    /// from another PID namespace) the peer counts as alive, and deadlines have to notice.
    pub fn watch(pid: u32) -> Self {
        // SAFETY: the call takes two integers and touches no memory.
        let code = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
        let handle = i32::try_from(code).ok().filter(|&fd| fd >= 0).map(|fd| {
            // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(fd) }
        });
        Self { handle }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let Some(handle) = &self.handle else { return false };
        let mut poll = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one live local, as the count says; with no time to wait the call
        // returns at once.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & libc::POLLIN != 0
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
