//! Sleeping until another process, or thread, has changed a word.

use std::{sync::atomic::AtomicU32, time::Duration};

/// Sleeps until `word` is not `seen`, or for `limit`.
pub(crate) fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = timespec(limit);
    // SAFETY: the word and the time are alive for the whole call; the call only reads them.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit)
    };
}

/// A time as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos() as _ }
}

/// Wakes all that sleep in [`wait`] on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word is alive for the whole call; only its address counts.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
