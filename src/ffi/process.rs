//! Other processes: dying with the parent, and noticing that a peer has died.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::CallError;

/// Asks the kernel to kill this process when the thread that started it ends, however it ends.
///
/// # Errors
///
/// The kernel's refusal; none is documented for this request.
pub fn die_with_parent() -> Result<(), CallError> {
    // SAFETY: this request takes one integer and touches no memory.
    let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if code != 0 {
        return Err(CallError::last("prctl", "PR_SET_PDEATHSIG"));
    }
    Ok(())
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
    use std::process::{Command, Stdio};

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
