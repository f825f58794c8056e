//! Waiting for another rank, with a bound.

use std::time::Duration;

use crate::{
    ffi::clock,
    plan::Rank,
    transport::{Error, Wait},
};

/// Looks in vain between two checks of the clock and of the peer: about 1 ms.
const SPINS_PER_LOOK: u32 = 1 << 16;

/// The same if ranks share CPUs, where each yield may last a time slice.
const SPINS_PER_LOOK_SHARED: u32 = 1 << 10;

/// Looks in vain between two yields, if ranks share CPUs: about 1 µs.
pub(super) const SPINS_PER_YIELD: u32 = 64;

/// Looks in vain between two checks, if each sleeps for [`SLEEP`]: about 3 ms.
const SPINS_PER_LOOK_ASLEEP: u32 = 64;

/// A sleep between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// The checks in vain before the other end is given up, at least: the time between two of them
/// counts up to this share of the limit. A rank that was stopped, or starved of its CPU, or whose
/// machine was suspended, has not waited meanwhile.
const CHECKS_MIN: u32 = 8;

/// Limits how long an end waits for another.
#[derive(Debug)]
pub(super) struct Patience {
    wait: Wait,
    spins: u32,
    spins_per_look: u32,
    limit: Duration,
    waited: Duration,
    /// The last check, if nothing has moved since.
    checked: Option<clock::Moment>,
}

impl Patience {
    pub(super) fn new(wait: Wait, limit: Duration) -> Self {
        let spins_per_look = match wait {
            Wait::Spin => SPINS_PER_LOOK,
            Wait::Yield => SPINS_PER_LOOK_SHARED,
            Wait::Sleep => SPINS_PER_LOOK_ASLEEP,
        };
        Self { wait, spins: 0, spins_per_look, limit, waited: Duration::ZERO, checked: None }
    }

    /// Restarts the time with the next check, because data has moved.
    #[inline]
    pub(super) fn renew(&mut self) {
        self.checked = None;
    }

    /// Called after each look in vain. Whether it is time to check the clock and the other ranks.
    #[inline]
    pub(super) fn spin(&mut self) -> bool {
        self.spins = self.spins.wrapping_add(1);
        if self.wait == Wait::Sleep {
            std::thread::sleep(SLEEP);
        }
        if self.wait == Wait::Yield && self.spins.is_multiple_of(SPINS_PER_YIELD) {
            std::thread::yield_now();
        }
        self.spins.is_multiple_of(self.spins_per_look)
    }

    /// An error if it has waited too long for `rank` to do what `waiting_for` says.
    pub(super) fn check(&mut self, rank: Rank, waiting_for: &'static str) -> Result<(), Error> {
        let now = clock::now();
        self.waited = match self.checked.replace(now) {
            None => Duration::ZERO,
            Some(checked) => self.waited + now.since(checked).min(self.limit / CHECKS_MIN),
        };
        if self.waited < self.limit {
            return Ok(());
        }
        Err(Error::Stalled { rank: rank.0, waiting_for, waited: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_this_rank_is_not_held_against_another() {
        let limit = Duration::from_millis(40);
        let mut patience = Patience::new(Wait::Yield, limit);
        let mut is_over = |slept| {
            std::thread::sleep(slept);
            patience.check(Rank(1), "answer").is_err()
        };
        assert!(!is_over(limit));
        for check in 1..CHECKS_MIN {
            assert!(!is_over(2 * limit / CHECKS_MIN), "{check}");
        }
        assert!(is_over(limit));
        patience.renew();
        assert!(patience.check(Rank(1), "answer").is_ok());
    }
}
