//! A bound on calls that can hang for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use super::CallError;
use crate::stderr;

/// Ends the process with a sentence and exit code 1, unless it is dropped in time or hears a beat
/// again and again.
#[derive(Debug)]
pub struct Watchdog {
    beats: Arc<AtomicU64>,
    /// Its end tells the thread that all is well.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to wait: `limit` for the end or the first beat, and as long for each beat after one,
    /// or at most twice that. Its thread calls no other library.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start(limit: Duration, sentence: String) -> Result<Self, CallError> {
        let (alive, ended) = mpsc::channel::<()>();
        let beats = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&beats);
        let watch = move || {
            let mut before = 0;
            while ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let now = heard.load(Ordering::Relaxed);
                if now == before {
                    stderr::say(&format!("error: {sentence}"));
                    // SAFETY: the call ends the process and touches no memory. `exit` would run the
                    // handlers of a library in which another thread hangs.
                    unsafe { libc::_exit(1) }
                }
                before = now;
            }
        };
        let started = thread::Builder::new().name("watchdog".to_owned()).spawn(watch);
        started.map_err(|source| CallError {
            call: "pthread_create",
            object: "a thread that watches over calls".to_owned(),
            source: source.into(),
        })?;
        Ok(Self { beats, _alive: alive })
    }

    /// The thread that is watched goes on.
    #[inline]
    pub fn beat(&self) {
        // Only that thread counts.
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
