//! Signals that ask for the end: SIGINT and SIGTERM.
//!
//! The first one asks; whoever measures looks here and comes to an end in order, and the process
//! ends itself if it does not. The second one ends the process at once. Only the first rank
//! decides: a signal to a group or from a launcher reaches all of them.

use std::{
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    ffi::signal::{ENDINGS, block, exit_now, wait},
    stderr::say,
};

/// A shell's exit code for a process that a signal has ended is the signal's number behind this.
const EXIT_CODE: i32 = 128;

/// Signals that come so soon after the first are the same wish: a terminal and a launcher, or
/// timeout(1), send it twice.
const SAME: Duration = Duration::from_millis(500);

/// How long a rank other than the first stays after a signal. The first, if it was meant too, has
/// ended by then, and all others with it.
const OBEDIENCE: Duration = Duration::from_secs(6);

/// How often a process that was asked looks whether its time is over.
const TURN: Duration = Duration::from_millis(20);

/// How long it waits at once to be asked; any other time would do.
const LONG: Duration = Duration::from_secs(3600);

/// The signal that has asked for the end; 0: none has.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// What there is to lose, once there is something.
static ORDER: Mutex<Option<Order>> = Mutex::new(None);

/// How to end in order.
struct Order {
    limit: Duration,
    remedy: String,
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// The exit code of what it ends.
    pub fn exit_code(self) -> u8 {
        u8::try_from(EXIT_CODE + self.0).unwrap_or(u8::MAX)
    }

    /// `SIGINT`
    pub fn name(self) -> &'static str {
        ENDINGS.iter().find(|(number, _)| *number == self.0).map_or("a signal", |(_, name)| name)
    }
}

/// From now on signals ask this process for the end. Until [`has_to_lose`] is called it ends at
/// once.
///
/// # Errors
///
/// The system gives no thread.
pub fn watch() -> io::Result<()> {
    watch_with(lead)
}

/// From now on signals end this process only if the first rank has not ended it before.
///
/// # Errors
///
/// The system gives no thread.
pub fn leave_to_first_rank() -> io::Result<()> {
    watch_with(|signal| {
        thread::sleep(OBEDIENCE);
        exit_now(signal.exit_code())
    })
}

/// From now on the process has results: when it is asked to end it has time until `limit`, and then
/// says that it has not, and `remedy`.
pub fn has_to_lose(limit: Duration, remedy: String) {
    *ORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Order { limit, remedy });
}

/// The signal that has asked this process for the end, if one has.
pub fn asked() -> Option<Signal> {
    Some(ASKED.load(Ordering::Relaxed)).filter(|&signal| signal != 0).map(Signal)
}

fn watch_with(end: fn(Signal) -> !) -> io::Result<()> {
    block()?;
    let watch = move || {
        loop {
            if let Some(signal) = wait(LONG) {
                end(Signal(signal))
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// Ends the process if it does not end itself.
fn lead(signal: Signal) -> ! {
    ASKED.store(signal.0, Ordering::Relaxed);
    let began = Instant::now();
    loop {
        let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Order { limit, remedy }) = &*order else { exit_now(signal.exit_code()) };
        if began.elapsed() >= *limit {
            let (name, limit) = (signal.name(), limit.as_secs_f64());
            say(&format!(
                "error: interrupted by {name}; what was under way has not ended within {limit} s: {remedy}"
            ));
            exit_now(signal.exit_code());
        }
        drop(order);
        if wait(TURN).is_some() && began.elapsed() > SAME {
            exit_now(signal.exit_code());
        }
    }
}
