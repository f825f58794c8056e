//! The clocks of GPUs: they rise while there is load, and fall when there is none.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::machine::Driver;

const PS_PER_MS: u64 = 1_000_000_000;

/// How long a GPU has been under load. Only who has the plane writes it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Load {
    /// Since it was last idle.
    loaded_ps: AtomicU64,
    /// The end of what it did last.
    until_ps: AtomicU64,
    /// The clock during the last kernel that spins, in billionths of the highest.
    spun: AtomicU64,
}

impl Load {
    /// The share of the highest clock at `at_ps`.
    pub(crate) fn share(&self, driver: Driver, at_ps: u64) -> f64 {
        driver.share(self.loaded_ps(driver, at_ps))
    }

    /// The same, as the mean during the last kernel that spins.
    pub(crate) fn spun_share(&self) -> f64 {
        self.spun.load(Ordering::Acquire) as f64 / 1e9
    }

    /// The GPU works from `start_ps` to `end_ps`.
    pub(super) fn add(&self, driver: Driver, start_ps: u64, end_ps: u64) {
        let loaded_ps = self.loaded_ps(driver, start_ps);
        let until_ps = self.until_ps.load(Ordering::Relaxed);
        let more_ps = end_ps.saturating_sub(until_ps.max(start_ps));
        self.loaded_ps.store(loaded_ps + more_ps, Ordering::Relaxed);
        self.until_ps.store(until_ps.max(end_ps), Ordering::Release);
    }

    /// The GPU spins from `start_ps` to `end_ps`.
    pub(super) fn note_spin(&self, driver: Driver, start_ps: u64, end_ps: u64) {
        let loaded_ps = self.loaded_ps(driver, start_ps);
        let share = driver.mean_share(loaded_ps, loaded_ps + (end_ps - start_ps));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 1e9")]
        self.spun.store((share * 1e9).round() as u64, Ordering::Release);
    }

    fn loaded_ps(&self, driver: Driver, at_ps: u64) -> u64 {
        let fallen_ps = self.until_ps.load(Ordering::Acquire) + driver.clock_fall_ms * PS_PER_MS;
        if at_ps > fallen_ps { 0 } else { self.loaded_ps.load(Ordering::Relaxed) }
    }
}

impl Driver {
    /// The share of the highest clock after so much load.
    fn share(self, loaded_ps: u64) -> f64 {
        let rise_ps = self.clock_rise_ms * PS_PER_MS;
        if loaded_ps >= rise_ps {
            return 1.0;
        }
        let idle = self.idle_clock_percent as f64 / 100.0;
        idle + (1.0 - idle) * loaded_ps as f64 / rise_ps as f64
    }

    /// The mean of that between two loads.
    fn mean_share(self, from_ps: u64, to_ps: u64) -> f64 {
        if to_ps == from_ps {
            return self.share(from_ps);
        }
        // It rises in a straight line, and is 1 from then on.
        let risen_ps = (self.clock_rise_ms * PS_PER_MS).clamp(from_ps, to_ps);
        let rising = f64::midpoint(self.share(from_ps), self.share(risen_ps));
        let sum = rising * (risen_ps - from_ps) as f64 + (to_ps - risen_ps) as f64;
        sum / (to_ps - from_ps) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: Driver =
        Driver { idle_clock_percent: 20, clock_rise_ms: 400, clock_fall_ms: 500, ..Driver::STRICT };

    fn ms(count: u64) -> u64 {
        count * PS_PER_MS
    }

    #[test]
    fn a_clock_rises_with_load_and_falls_without() {
        let load = Load {
            loaded_ps: AtomicU64::new(0),
            until_ps: AtomicU64::new(0),
            spun: AtomicU64::new(0),
        };
        let share = |at| load.share(DRIVER, ms(at));
        assert_eq!(share(0), 0.2);
        load.add(DRIVER, 0, ms(100));
        assert_eq!(share(100), 0.4);
        // What overlaps counts once, and a short pause changes nothing.
        load.add(DRIVER, ms(50), ms(100));
        assert_eq!(share(600), 0.4);
        load.add(DRIVER, ms(600), ms(1000));
        assert_eq!([share(1000), share(1500), share(1501)], [1.0, 1.0, 0.2]);
        load.add(DRIVER, ms(2000), ms(2100));
        assert_eq!(share(2100), 0.4);
    }

    #[test]
    fn a_kernel_that_spins_has_the_mean_clock() {
        assert_eq!(DRIVER.mean_share(0, ms(400)), 0.6);
        assert_eq!(DRIVER.mean_share(0, ms(800)), 0.8);
        assert_eq!(DRIVER.mean_share(ms(500), ms(800)), 1.0);
        assert_eq!(DRIVER.mean_share(ms(100), ms(100)), 0.4);
    }
}
