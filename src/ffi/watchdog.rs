//! A bound on calls that can hang for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use super::{CallError, signal::exit_now};
use crate::stderr;

/// How long a process that hangs stays, after it has said so, in milliseconds.
static STAY_MS: AtomicU64 = AtomicU64::new(0);

/// Lets this process stay for so long where it hangs, after it has said so: others go on without it,
/// and its end would end them.
pub fn stay_where_it_hangs(time: Duration) {
    STAY_MS.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn stay() -> Duration {
    Duration::from_millis(STAY_MS.load(Ordering::Relaxed))
}

/// Ends the process with a sentence and exit code 1, unless it is dropped in time or
/// [`Watchdog::beat`] is called again and again. See [`stay_where_it_hangs`].
#[derive(Debug)]
pub struct Watchdog {
    beats: Arc<AtomicU64>,
    /// Its end tells the thread that all is well.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to wait: `limit` for the end or the first beat, and as long for each beat after one,
    /// or at most twice that. Its thread calls no other library.
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
                    if ended.recv_timeout(stay()) == Err(RecvTimeoutError::Timeout) {
                        exit_now(1);
                    }
                    return;
                }
                before = now;
            }
        };
        let started = thread::Builder::new().name("watchdog".to_owned()).spawn(watch);
        started.map_err(|source| {
            CallError::new("pthread_create", "a thread that watches over calls", source)
        })?;
        Ok(Self { beats, _alive: alive })
    }

    /// The watched thread makes progress.
    #[inline]
    pub fn beat(&self) {
        // Only that thread counts.
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// How long a call of the driver may take unless [`limit_calls`] says otherwise, in milliseconds.
/// Starting a machine's GPUs takes seconds for each, and registering memory seconds for each 10 GB.
static CALL_LIMIT_MS: AtomicU64 = AtomicU64::new(120_000);

/// The shortest limit: healthy drivers may need seconds.
const CALL_LIMIT_MIN: Duration = Duration::from_secs(30);

/// How often within the limit the thread looks whether a call has returned. It counts looks: time
/// in which the whole process is stopped is not the driver's.
const CALL_LOOKS: u32 = 24;

/// The call that was begun last, until it ends, and how many were begun.
static CALL: AtomicPtr<&'static str> = AtomicPtr::new(std::ptr::null_mut());
static CALLS: AtomicU64 = AtomicU64::new(0);

/// A call of the driver that is under way. After [`watch_calls`] a call that never returns ends the
/// process, as a [`Watchdog`] does.
pub(super) struct Call;

impl Call {
    /// Of the function `name`.
    #[inline]
    pub(super) fn of(name: &'static &'static str) -> Self {
        // Where two threads call at the same time one is watched, and none taken for the other.
        CALLS.store(CALLS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        CALL.store(std::ptr::from_ref(name).cast_mut(), Ordering::Relaxed);
        Self
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        CALL.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Lets a call of the driver take twice the `deadline` of other waits, but 30 s at least.
pub fn limit_calls(deadline: Duration) {
    let limit = deadline.saturating_mul(2).max(CALL_LIMIT_MIN).as_millis();
    CALL_LIMIT_MS.store(u64::try_from(limit).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Watches over every [`Call`] of this process from now on.
pub(super) fn watch_calls() -> std::io::Result<()> {
    let watch = || {
        let (mut last, mut looks) = (0, 0);
        loop {
            let limit = Duration::from_millis(CALL_LIMIT_MS.load(Ordering::Relaxed));
            thread::sleep(limit / CALL_LOOKS);
            let (call, count) = (CALL.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
            if call.is_null() || count != last {
                (last, looks) = (count, 0);
                continue;
            }
            looks += 1;
            if looks == CALL_LOOKS {
                // SAFETY: a pointer that is not null is one to a static.
                let name = unsafe { *call };
                let limit = limit.as_secs();
                stderr::say(&format!(
                    "error: {name} has not come back within {limit} s: the driver hangs; `dmesg` \
                     and `nvidia-smi -q` may tell why"
                ));
            }
            if looks >= CALL_LOOKS && limit / CALL_LOOKS * (looks - CALL_LOOKS) >= stay() {
                exit_now(1);
            }
        }
    };
    thread::Builder::new().name("calls".to_owned()).spawn(watch).map(drop)
}
