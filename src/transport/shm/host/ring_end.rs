//! One end of one flow: its buffer, its ring, and one step at a time.

use std::sync::atomic::Ordering;

use crate::{
    ffi::{
        host::{self, HostBuffer},
        shm::{Segment, Store},
    },
    plan::Rank,
    transport::{Error, TryingTo, control::LINE},
    units::Bytes,
};

/// Where the slots begin in a ring's segment; `head` is at 0 and `tail` at [`LINE`].
pub(super) const SLOTS_AT: usize = 4096;

/// One end of one flow.
pub(super) struct RingEnd {
    /// The flow's place in the case.
    pub(super) flow: u64,
    pub(super) is_source: bool,
    /// The rank at the other end.
    pub(super) other: Rank,
    pub(super) buffer: HostBuffer,
    /// Bytes of one operation; the whole buffer except while tuning.
    pub(super) length: usize,
    pub(super) ring: Segment,
    pub(super) slot: usize,
    pub(super) slots: u64,
    pub(super) store: Store,
    /// Slots that this end has passed since the beginning.
    pub(super) passed: u64,
    /// The other end's count of the same, as last seen.
    pub(super) other_passed: u64,
    /// The next slot, below `slots`.
    pub(super) place: u64,
    /// The next byte of the buffer.
    pub(super) offset: usize,
    /// Operations of this span not yet done.
    pub(super) left: u64,
}

impl RingEnd {
    pub(super) fn new(
        flow: u64,
        is_source: bool,
        other: Rank,
        size: Bytes,
        ring: Segment,
    ) -> Result<Self, Error> {
        let buffer = HostBuffer::new(size).trying_to("allocate a buffer")?;
        Ok(Self {
            flow,
            is_source,
            other,
            length: buffer.len(),
            buffer,
            ring,
            slot: 0,
            slots: 0,
            store: Store::Cached,
            passed: 0,
            other_passed: 0,
            place: 0,
            offset: 0,
            left: 0,
        })
    }

    /// Whether the first, middle or last page of the buffer, or on the target's side of the ring,
    /// is known to lie on another NUMA node than `node`.
    pub(super) fn is_off(&self, node: u32) -> bool {
        let last = self.buffer.len() - 1;
        let of_buffer = [0, last / 2, last].map(|place| host::numa_node(&self.buffer, place));
        let of_ring = if self.is_source { None } else { self.ring.numa_node(SLOTS_AT) };
        of_buffer.into_iter().chain([of_ring]).flatten().any(|found| found != node)
    }

    /// Copies one chunk if the ring lets it; whether it did.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        let (head, tail) = (0, LINE);
        let (mine, theirs, in_reach) =
            if self.is_source { (head, tail, self.slots) } else { (tail, head, 0) };
        // The source runs at most `slots` ahead of the target; the target at most 0 ahead of the
        // source. The other end's count is read again only when the last one seen is used up.
        // `>=`, since a ring that has just got fewer slots was further ahead of an old count.
        if self.passed >= self.other_passed + in_reach {
            self.other_passed = self.ring.word(theirs).load(Ordering::Acquire);
            if self.passed >= self.other_passed + in_reach {
                return false;
            }
        }
        let chunk = self.slot.min(self.length - self.offset);
        let bytes = self.offset..self.offset + chunk;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "below the count of slots, at most 1024"
        )]
        let at = SLOTS_AT + self.place as usize * self.slot;
        if self.is_source {
            self.ring.write(at, &self.buffer[bytes], self.store);
        } else {
            self.ring.read(at, &mut self.buffer[bytes], self.store);
        }
        self.passed += 1;
        self.ring.word(mine).store(self.passed, Ordering::Release);
        self.place += 1;
        if self.place == self.slots {
            self.place = 0;
        }
        self.offset += chunk;
        if self.offset == self.length {
            self.offset = 0;
            self.left -= 1;
        }
        true
    }
}
