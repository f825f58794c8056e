//! The memory that messages arrive in, and the receives that wait for them.

use super::{
    channel::Target,
    port::Port,
    transfer::{KIND_SHIFT, OF_RECEIVE},
};
use crate::{
    ffi::fabric::Posted,
    transport::{Error, TryingTo},
};

/// Memory for messages, in slots that any message may use.
pub(super) struct Inbox {
    pub(super) target: Target,
    /// Receives on each port.
    per_port: u64,
    /// Whether all of them use the same slot, because messages arrive in order.
    is_shared: bool,
    /// Slots whose messages were processed, and in which no receive waits yet.
    spent: Vec<u64>,
}

impl Inbox {
    /// An inbox for `per_port` receives on each of `ports` interfaces. None waits yet.
    pub(super) fn new(target: Target, per_port: u64, ports: u64, is_shared: bool) -> Self {
        Self { target, per_port, is_shared, spent: (0..per_port * ports).rev().collect() }
    }

    /// Notes that slot `slot` holds a message of `channel`.
    #[inline]
    pub(super) fn note_filled(&mut self, slot: u64, channel: usize, turn: u64) {
        let slot = if self.is_shared { 0 } else { slot };
        #[allow(clippy::cast_possible_truncation, reason = "below the count of slots")]
        if let Some(filled) = self.target.filled.get_mut(slot as usize) {
            *filled = Some((channel, turn));
        }
    }

    /// Frees slot `slot` for another message.
    #[inline]
    pub(super) fn free(&mut self, slot: u64) {
        self.spent.push(slot);
    }

    /// Posts a receive for each free slot.
    #[inline]
    pub(super) fn receive(&mut self, ports: &mut [Port]) -> Result<(), Error> {
        while let Some(slot) = self.spent.pop() {
            #[allow(clippy::cast_possible_truncation, reason = "a handful of ports")]
            let port = (slot / self.per_port) as usize;
            let (offset, size) = self.target.part(if self.is_shared { 0 } else { slot });
            let local = self.target.data.all(port).slice(offset, size);
            let context = OF_RECEIVE << KIND_SHIFT | slot;
            if ports[port].endpoint.receive(local, context).trying_to("receive")? == Posted::Again {
                return Err(Error::Disagreement("the provider takes too few receives"));
            }
        }
        Ok(())
    }
}
