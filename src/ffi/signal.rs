//! Signals that are waited for by one thread and interrupt no other.
//!
//! They are blocked and not handled: libraries put handlers of their own in place of others, as
//! those of Intel's PSM do, which come with libfabric and end the process.

use std::{io, mem::MaybeUninit, ptr, time::Duration};

/// The signals by which a person or a launcher ends a run.
pub const ENDINGS: [(i32, &str); 2] = [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM")];

/// Blocks [`ENDINGS`] in this thread and in the threads and processes that it starts from now on.
pub fn block() -> io::Result<()> {
    change(libc::SIG_BLOCK)
}

/// Lets [`ENDINGS`] through again.
pub(super) fn unblock() -> io::Result<()> {
    change(libc::SIG_UNBLOCK)
}

fn change(how: i32) -> io::Result<()> {
    let set = endings();
    // SAFETY: `set` is a live local, and a null pointer asks for no answer.
    let code = unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Waits for one of [`ENDINGS`], which must be blocked, at most `limit`; its number.
pub fn wait(limit: Duration) -> Option<i32> {
    let set = endings();
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: `set` and `limit` are live locals, and a null pointer asks for no more than the
    // number.
    let signal = unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const limit) };
    (signal > 0).then_some(signal)
}

/// Ends this process at once: what libraries have to do at its end could wait for a thread that
/// hangs.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: the call ends the process and touches no memory.
    unsafe { libc::_exit(code.into()) }
}

/// [`ENDINGS`] as a set.
fn endings() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call makes a set of the memory that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was made above.
    let mut set = unsafe { set.assume_init() };
    for (signal, _) in ENDINGS {
        // SAFETY: `set` is a live local that was made above, and the signals exist.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}
