//! Estimates the time left of a run: from what its cases were thought to take, and what those that
//! are over did take.

use std::{collections::HashMap, time::Duration};

use crate::plan::TransportKind;

/// What a case is thought to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) transport: TransportKind,
    pub(crate) seconds: f64,
}

/// The time left.
///
/// The cases of a transport take as much longer than was thought as those before them.
#[derive(Debug)]
pub(crate) struct Left(HashMap<TransportKind, Work>);

/// The seconds of the cases of one transport.
#[derive(Debug, Default)]
struct Work {
    /// What those left are thought to take.
    left: f64,
    /// What those that are over were thought to take, and did take.
    thought: f64,
    took: f64,
}

impl Left {
    /// Before the first of these cases.
    pub(crate) fn new(cases: impl IntoIterator<Item = Weight>) -> Self {
        let mut left = Self(HashMap::new());
        left.more(cases);
        left
    }

    /// These cases are to come too.
    pub(super) fn more(&mut self, cases: impl IntoIterator<Item = Weight>) {
        for Weight { transport, seconds } in cases {
            self.0.entry(transport).or_default().left += seconds;
        }
    }

    /// A case has finished.
    pub(super) fn ended(&mut self, Weight { transport, seconds }: Weight, time: Duration) {
        let work = self.0.entry(transport).or_default();
        work.left -= seconds;
        work.thought += seconds;
        work.took += time.as_secs_f64();
    }

    /// The time of all cases left; `None` if there are none.
    pub(super) fn seconds(&self) -> Option<f64> {
        // What rounding leaves is no case.
        let works = self.0.values().filter(|work| work.left > 1e-9);
        works.map(Work::seconds).reduce(|all, each| all + each)
    }
}

impl Work {
    fn seconds(&self) -> f64 {
        let factor = if self.thought > 0.0 { self.took / self.thought } else { 1.0 };
        self.left * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(transport: TransportKind, seconds: f64) -> Weight {
        Weight { transport, seconds }
    }

    #[track_caller]
    fn assert_near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-6 * expected, "{found}, not {expected}");
    }

    #[test]
    fn what_is_over_says_how_much_longer_the_rest_takes() {
        let shm = |seconds| of(TransportKind::Shm, seconds);
        let mut left = Left::new([0.1, 0.3, 0.6].map(shm));
        assert_near(left.seconds(), 1.0);
        left.ended(shm(0.1), Duration::from_millis(200));
        assert_near(left.seconds(), 1.8);
        left.ended(shm(0.3), Duration::from_millis(200));
        assert_near(left.seconds(), 0.6);
        left.ended(shm(0.6), Duration::from_millis(600));
        assert_eq!(left.seconds(), None);
        assert_eq!(Left::new([]).seconds(), None);
    }

    #[test]
    fn one_transport_says_nothing_of_another() {
        let mut left = Left::new([
            of(TransportKind::Shm, 1.0),
            of(TransportKind::Shm, 1.0),
            of(TransportKind::P2p, 3.0),
        ]);
        left.ended(of(TransportKind::Shm, 1.0), Duration::from_secs(2));
        assert_near(left.seconds(), 2.0 + 3.0);
    }
}
