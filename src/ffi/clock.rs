//! The clock of all host-side times: `CLOCK_MONOTONIC_RAW`.
//!
//! It is not steered by NTP, and every process on one host reads the same one, so a moment taken
//! in one process can be subtracted from a moment taken in another.

use std::{cell::Cell, time::Duration};

/// A point in time, comparable between the processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    ns: u64,
}

impl Moment {
    /// Nanoseconds since an arbitrary point, the same for all processes of this host.
    pub fn ns(self) -> u64 {
        self.ns
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }

    /// The moment `wait` after this one.
    pub fn after(self, wait: Duration) -> Self {
        Self { ns: self.ns.saturating_add(crate::units::nanoseconds(wait)) }
    }
}

thread_local! {
    /// The last reading of this thread.
    static LAST: Cell<u64> = const { Cell::new(0) };
    /// How far readings of this thread have gone back, at most.
    static BACK: Cell<u64> = const { Cell::new(0) };
}

/// How far the clock has gone back at most between two readings of this thread since it was last
/// asked, if it has. A kernel promises that it never does; where a hypervisor or a processor breaks
/// that, nothing that was timed meanwhile is right.
pub fn went_back() -> Option<Duration> {
    match BACK.take() {
        0 => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// The current moment.
pub fn now() -> Moment {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live local that the call only writes. The clock exists since Linux
    // 2.6.28, so the call cannot fail with these arguments.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    let ns = seconds * 1_000_000_000 + nanoseconds;
    let last = LAST.replace(ns);
    if ns < last {
        BACK.set(BACK.get().max(last - ns));
    }
    Moment { ns }
}

/// The machine's time: on a simulated machine its own, which goes on as that of a real one would,
/// however slow the simulation is.
pub fn machine_now() -> Moment {
    super::simulation::time_ns().map_or_else(now, |ns| Moment { ns })
}

/// Rests between two looks at what has been waited for since `waited` ago: spins at first, since
/// most waits are shorter than a sleep, and then sleeps an eighth of the wait, a millisecond at
/// most.
pub(super) fn pause(waited: Duration) {
    const SPIN: Duration = Duration::from_micros(50);
    const SLEEP_MAX: Duration = Duration::from_millis(1);
    if waited < SPIN {
        std::hint::spin_loop();
    } else {
        std::thread::sleep((waited / 8).min(SLEEP_MAX));
    }
}

/// What two readings of the clock can tell apart: the median step between readings that differ,
/// over 2000 readings. It holds the cost of reading the clock as well as its grain.
pub fn resolution() -> Duration {
    const READINGS: usize = 2000;
    let mut moments = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        moments.push(now());
    }
    let mut steps: Vec<Duration> = moments
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .filter(|step| !step.is_zero())
        .collect();
    steps.sort_unstable();
    // A clock that never advances over 2000 readings has a grain coarser than all of them.
    steps.get(steps.len() / 2).copied().unwrap_or_else(|| Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_and_has_a_resolution() {
        let before = now();
        let resolution = resolution();
        let after = now();
        assert!(after > before);
        assert!(resolution > Duration::ZERO && resolution <= Duration::from_millis(1));
        assert_eq!(before.since(after), Duration::ZERO);
        assert_eq!(before.after(after.since(before)), after);
    }
}
