//! What is due next: a heap in memory that starts as zeroes.

/// Things by when they are due; of those due together, the one that was added first.
#[repr(C)]
pub(super) struct Agenda<const N: usize> {
    length: u32,
    entries: [Entry; N],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Entry {
    due_ps: u64,
    turn: u64,
    item: u32,
}

impl<const N: usize> Agenda<N> {
    /// Adds a thing, of which there are never more than places.
    pub(super) fn push(&mut self, due_ps: u64, turn: u64, item: u32) {
        let mut at = self.length as usize;
        self.length += 1;
        self.entries[at] = Entry { due_ps, turn, item };
        while at > 0 && self.entries[at] < self.entries[(at - 1) / 2] {
            self.entries.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// The first thing, and when it is due.
    pub(super) fn first(&self) -> Option<(u64, u32)> {
        (self.length > 0).then(|| (self.entries[0].due_ps, self.entries[0].item))
    }

    /// Takes the first thing away.
    pub(super) fn pop(&mut self) {
        let Some(last) = (self.length as usize).checked_sub(1) else { return };
        self.length -= 1;
        self.entries[0] = self.entries[last];
        let mut at = 0;
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < last);
            let Some(child) = children.min_by_key(|child| self.entries[*child]) else { return };
            if self.entries[at] <= self.entries[child] {
                return;
            }
            self.entries.swap(at, child);
            at = child;
        }
    }
}
