//! A bound on calls that can hang for ever.

use std::{
    io::{self, Write},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// Ends the process with a sentence and exit code 1, unless it is dropped in time.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Its end tells the thread that all is well.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to wait. The thread calls no MPI: only the thread that has started MPI may.
    pub(super) fn start(limit: Duration, sentence: String) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        thread::Builder::new().name("mpi watchdog".to_owned()).spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let _ = writeln!(io::stderr(), "error: {sentence}");
                // SAFETY: the call ends the process and touches no memory. `exit` would run the
                // handlers of a library in which another thread hangs.
                unsafe { libc::_exit(1) }
            }
        })?;
        Ok(Self { _alive: alive })
    }
}
