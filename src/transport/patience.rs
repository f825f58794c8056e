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
const SPINS_PER_YIELD: u32 = 64;

/// Looks in vain between two checks, if each sleeps for [`SLEEP`]: about 3 ms.
const SPINS_PER_LOOK_ASLEEP: u32 = 64;

/// A sleep between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// Limits how long an end waits for another.
#[derive(Debug)]
pub(super) struct Patience {
    wait: Wait,
    spins: u32,
    spins_per_look: u32,
    limit: Duration,
    due: Option<clock::Moment>,
}

impl Patience {
    pub(super) fn new(wait: Wait, limit: Duration) -> Self {
        let spins_per_look = match wait {
            Wait::Spin => SPINS_PER_LOOK,
            Wait::Yield => SPINS_PER_LOOK_SHARED,
            Wait::Sleep => SPINS_PER_LOOK_ASLEEP,
        };
        Self { wait, spins: 0, spins_per_look, limit, due: None }
    }

    /// Restarts the time with the next check, because data has moved.
    #[inline]
    pub(super) fn renew(&mut self) {
        self.due = None;
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
        let due = *self.due.get_or_insert_with(|| now.after(self.limit));
        if now < due {
            return Ok(());
        }
        Err(Error::Stalled { rank: rank.0, waiting_for, waited: self.limit })
    }
}
