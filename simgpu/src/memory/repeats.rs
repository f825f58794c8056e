//! Which copies would change nothing, because their bytes are there already. Pure.
//!
//! A benchmark repeats the same copy; moving the same bytes again would cost time and change
//! nothing.

use std::collections::VecDeque;

/// Copies that are remembered.
const COPIES: usize = 1024;

/// A copy by its ranges, or a rank's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub target: u64,
    pub source: u64,
    pub bytes: u64,
    /// What was done: 0 for a copy.
    pub what: u64,
}

impl Copied {
    fn touches(&self, start: u64, bytes: u64) -> bool {
        let overlaps = |own: u64| own < start + bytes && start < own + self.bytes;
        overlaps(self.target) || overlaps(self.source)
    }
}

/// Copies after which neither their source nor their target has been written.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Each with the writes to shared memory of its ranges, by all processes, when it was made.
    copies: VecDeque<(Copied, u64)>,
    shared: Vec<SharedRange>,
}

/// Memory that other processes can write too.
#[derive(Clone, Copy, Debug)]
struct SharedRange {
    start: u64,
    bytes: u64,
    /// The number of the counter of its writes.
    counter: usize,
}

impl Repeats {
    /// How many writes to shared memory in the ranges of `copy` are counted; 0 where there is none.
    pub(crate) fn writes(&self, copy: Copied, counted: impl Fn(usize) -> u64) -> u64 {
        let touched = self.shared.iter().filter(|range| copy.touches(range.start, range.bytes));
        touched.map(|range| counted(range.counter)).sum()
    }

    /// Whether the target has the source's bytes already; `writes` is the count of this moment.
    pub(crate) fn has(&self, copy: Copied, writes: u64) -> bool {
        self.copies.contains(&(copy, writes))
    }

    /// The copy has been made, and nobody has written its ranges meanwhile. All writing is told
    /// here, or, by other processes, counted.
    pub(crate) fn copied(&mut self, copy: Copied, writes: u64) {
        let itself =
            copy.target < copy.source + copy.bytes && copy.source < copy.target + copy.bytes;
        if itself {
            return;
        }
        if self.copies.len() == COPIES {
            self.copies.pop_front();
        }
        self.copies.push_back((copy, writes));
    }

    /// The range has been written, or is about to be; the counters that other processes look at.
    pub(crate) fn written(&mut self, start: u64, bytes: u64) -> Vec<usize> {
        self.copies.retain(|(copy, _)| !copy.touches(start, bytes));
        let touched =
            |range: &&SharedRange| range.start < start + bytes && start < range.start + range.bytes;
        self.shared.iter().filter(touched).map(|range| range.counter).collect()
    }

    /// From now on others can write the range; its writes are counted by `counter`.
    pub(crate) fn share(&mut self, start: u64, bytes: u64, counter: usize) {
        self.freed(start, bytes);
        self.shared.push(SharedRange { start, bytes, counter });
    }

    /// The range is nobody's any more.
    pub(crate) fn freed(&mut self, start: u64, bytes: u64) {
        self.written(start, bytes);
        self.shared.retain(|range| (range.start, range.bytes) != (start, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Copied = Copied { target: 1000, source: 2000, bytes: 100, what: 0 };

    fn copied() -> Repeats {
        let mut repeats = Repeats::default();
        repeats.copied(COPY, 0);
        repeats
    }

    #[test]
    fn a_copy_is_there_until_its_source_or_its_target_is_written() {
        assert!(copied().has(COPY, 0));
        assert!(!copied().has(Copied { bytes: 99, ..COPY }, 0));
        assert!(!copied().has(Copied { what: 1, ..COPY }, 0));
        for (start, bytes, there) in
            [(1099, 1, false), (1100, 1, true), (999, 1, true), (900, 101, false), (2050, 1, false)]
        {
            let mut repeats = copied();
            assert!(repeats.written(start, bytes).is_empty());
            assert_eq!(repeats.has(COPY, 0), there, "{bytes} bytes at {start}");
        }
    }

    #[test]
    fn a_copy_onto_itself_is_made_again() {
        let mut repeats = Repeats::default();
        let itself = Copied { target: 1000, source: 1050, bytes: 100, what: 0 };
        repeats.copied(itself, 0);
        assert!(!repeats.has(itself, 0));
    }

    #[test]
    fn a_copy_in_memory_that_others_see_is_there_until_a_write_to_it_is_counted() {
        let mut repeats = Repeats::default();
        repeats.share(2000, 4096, 5);
        repeats.share(9000, 4096, 6);
        let counted = |counter| [0, 0, 0, 0, 0, 70, 1000][counter];
        assert_eq!(repeats.writes(COPY, counted), 70);
        repeats.copied(COPY, 70);
        assert!(repeats.has(COPY, 70) && !repeats.has(COPY, 71));
        assert_eq!(repeats.written(9100, 1), [6]);
        assert!(repeats.has(COPY, 70));
        assert_eq!(repeats.written(2050, 1), [5]);
        assert!(!repeats.has(COPY, 70));
        repeats.freed(2000, 4096);
        assert_eq!(repeats.writes(COPY, counted), 0);
        assert!(repeats.written(2050, 1).is_empty());
    }
}
