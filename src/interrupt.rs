//! SIGINT and SIGTERM.
//!
//! The first signal asks the run to end: the measuring thread polls for it and ends in order, and a
//! watcher ends the process if that takes too long. The second signal ends the process at once.
//! Only the first rank decides, because a signal to a group or from a launcher reaches all ranks.

use std::{
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    ffi::signal::{ENDINGS, block, exit_now, wait},
    stderr::say,
};

/// A shell's exit code for a process that a signal has ended is this plus the signal's number.
const EXIT_CODE: i32 = 128;

/// Signals this soon after the first are the same request: a terminal and a launcher, or
/// timeout(1), send it twice.
const SAME: Duration = Duration::from_millis(500);

/// How long a rank other than the first stays after a signal. If the first rank got it too, that
/// rank has ended the run by then.
const OBEDIENCE: Duration = Duration::from_secs(6);

/// How often a process that was asked to end checks its limit.
const TURN: Duration = Duration::from_millis(20);

/// How long a sentence may take where nobody reads standard error.
const SPEECH: Duration = Duration::from_millis(500);

/// How long one wait for a signal lasts; the value does not matter.
const LONG: Duration = Duration::from_secs(3600);

/// The signal that has asked for the end; 0: none has.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// The results that an unfinished end would lose, once there are any.
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

/// Starts to watch for signals. Until [`has_to_lose`] is called, a signal ends the process at once.
pub fn watch() -> io::Result<()> {
    watch_with(lead)
}

/// Starts to leave signals to the first rank: one ends this process only if the first rank has not
/// ended it before.
pub fn leave_to_first_rank() -> io::Result<()> {
    watch_with(|signal| {
        thread::sleep(OBEDIENCE);
        exit_now(signal.exit_code())
    })
}

/// Says that the process has results now. When asked to end, it has `limit` to do so in order;
/// after that the watcher ends it with a sentence and `remedy`.
pub fn has_to_lose(limit: Duration, remedy: String) {
    *ORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Order { limit, remedy });
}

/// The signal that asked this process to end, if any.
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

/// Says a sentence, but does not wait for ever where nobody reads it.
fn say_in_time(sentence: String) {
    let (told, heard) = mpsc::channel();
    let speak = move || {
        say(&sentence);
        let _ = told.send(());
    };
    if thread::Builder::new().spawn(speak).is_ok() {
        let _ = heard.recv_timeout(SPEECH);
    }
}

/// What a user can do after the end, where one is ordered. It holds no lock while it is said.
fn remedy_of_the_order() -> Option<String> {
    let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    order.as_ref().map(|order| order.remedy.clone())
}

/// Ends the process if it does not end itself.
fn lead(signal: Signal) -> ! {
    let began = Instant::now();
    if let Some(remedy) = remedy_of_the_order() {
        // At once: a launcher may not wait for the end.
        let name = signal.name();
        say_in_time(format!("note: {name}: the run ends, its rows so far are kept; {remedy}"));
    }
    ASKED.store(signal.0, Ordering::Relaxed);
    loop {
        let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Order { limit, remedy }) = &*order else { exit_now(signal.exit_code()) };
        if began.elapsed() >= *limit {
            let (name, limit) = (signal.name(), limit.as_secs_f64());
            say_in_time(format!(
                "error: interrupted by {name}; what was under way has not ended within {limit} s: \
                 {remedy}"
            ));
            exit_now(signal.exit_code());
        }
        drop(order);
        if wait(TURN).is_some() && began.elapsed() > SAME {
            exit_now(signal.exit_code());
        }
    }
}
