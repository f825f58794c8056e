//! Estimates the time left of a run from the times of its finished cases.

use std::{collections::HashMap, time::Duration};

use crate::{plan::TransportKind, units::Bytes};

/// The properties of a case that its time depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) transport: TransportKind,
    pub(crate) size: Bytes,
}

/// The most seconds that a byte adds to a case: some fifty transfers at 1 GB/s, twice that. Times
/// of small sizes differ by chance.
const SECONDS_PER_BYTE_MAX: f64 = 1e-7;

/// The time left.
///
/// A case is measured for the time limit at most, and is prepared and verified in a time that grows
/// with its bytes: a regression line for each transport. Before its first case has finished, the
/// estimate of a transport is the limit.
#[derive(Debug)]
pub(crate) struct Left {
    limit: Duration,
    transports: HashMap<TransportKind, Work>,
}

/// The cases of one transport.
#[derive(Debug, Default)]
struct Work {
    /// The number of cases left, and their bytes.
    left: f64,
    left_bytes: f64,
    /// Sums over the finished cases: their number, bytes x and seconds y, x², xy.
    ended: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// The shortest time of a finished case.
    least: f64,
}

impl Left {
    /// Before the first of these cases, each of which samples its bandwidth for `limit` at most.
    pub(crate) fn new(cases: impl IntoIterator<Item = Weight>, limit: Duration) -> Self {
        let mut transports: HashMap<TransportKind, Work> = HashMap::new();
        for Weight { transport, size } in cases {
            let work = transports.entry(transport).or_default();
            work.left += 1.0;
            work.left_bytes += size.get() as f64;
        }
        Self { limit, transports }
    }

    /// A case has finished.
    pub(super) fn ended(&mut self, Weight { transport, size }: Weight, time: Duration) {
        let work = self.transports.entry(transport).or_default();
        let (x, y) = (size.get() as f64, time.as_secs_f64());
        work.least = if work.ended == 0.0 { y } else { work.least.min(y) };
        work.left -= 1.0;
        work.left_bytes -= x;
        work.ended += 1.0;
        work.x += x;
        work.y += y;
        work.xx += x * x;
        work.xy += x * y;
    }

    /// The time of all cases left; `None` if there are none.
    pub(super) fn seconds(&self) -> Option<f64> {
        let works = self.transports.values().filter(|work| work.left > 0.0);
        works.map(|work| work.seconds(self.limit)).reduce(|all, each| all + each)
    }
}

impl Work {
    fn seconds(&self, limit: Duration) -> f64 {
        if self.ended == 0.0 {
            // The latency is sampled for half of the limit at most.
            return self.left * 1.5 * limit.as_secs_f64();
        }
        let n = self.ended;
        let spread = self.xx - self.x * self.x / n;
        let slope = match spread > 0.0 {
            true => ((self.xy - self.x * self.y / n) / spread).clamp(0.0, SECONDS_PER_BYTE_MAX),
            false => 0.0,
        };
        let start = (self.y - slope * self.x) / n;
        (self.left * start + slope * self.left_bytes).max(self.left * self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn shm(mib: u64) -> Weight {
        Weight { transport: TransportKind::Shm, size: Bytes::mib(mib) }
    }

    #[track_caller]
    fn assert_near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-6 * expected, "{found}, not {expected}");
    }

    #[test]
    fn before_the_first_case_the_limit_is_all_that_is_known() {
        assert_near(Left::new([shm(1), shm(1024)], LIMIT).seconds(), 6.0);
        assert_eq!(Left::new([], LIMIT).seconds(), None);
    }

    #[test]
    fn large_sizes_take_longer_if_they_have_done_so() {
        let sizes = [1, 64, 1024, 4096];
        let mut left = Left::new(sizes.map(shm), LIMIT);
        // Half a second, and one for each GiB.
        let time = |mib: u64| Duration::from_secs_f64(0.5 + mib as f64 / 1024.0);
        left.ended(shm(1), time(1));
        assert_near(left.seconds(), 3.0 * time(1).as_secs_f64());
        left.ended(shm(64), time(64));
        assert_near(left.seconds(), time(1024).as_secs_f64() + time(4096).as_secs_f64());
        left.ended(shm(1024), time(1024));
        left.ended(shm(4096), time(4096));
        assert_eq!(left.seconds(), None);
    }

    #[test]
    fn no_size_is_thought_to_take_less_than_the_shortest_did() {
        let mut left = Left::new([8, 8, 64, 1, 1].map(shm), LIMIT);
        for (mib, seconds) in [(8, 1.0), (8, 1.2), (64, 4.0)] {
            left.ended(shm(mib), Duration::from_secs_f64(seconds));
        }
        assert_near(left.seconds(), 2.0);
    }

    #[test]
    fn what_small_sizes_differ_by_is_not_made_much_of() {
        let small = |bytes| Weight { transport: TransportKind::Shm, size: Bytes::new(bytes) };
        let mut left = Left::new([small(64), small(4096), shm(64)], LIMIT);
        left.ended(small(64), Duration::from_secs(1));
        left.ended(small(4096), Duration::from_secs(3));
        let found = left.seconds().unwrap();
        assert!((2.0..10.0).contains(&found), "{found}");
    }

    #[test]
    fn one_transport_says_nothing_of_another() {
        let p2p = Weight { transport: TransportKind::P2p, size: Bytes::mib(1) };
        let mut left = Left::new([shm(1), shm(1), p2p], LIMIT);
        left.ended(shm(1), Duration::from_secs(1));
        assert_near(left.seconds(), 1.0 + 3.0);
    }
}
