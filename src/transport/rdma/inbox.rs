//! Where messages come to, and the receives that wait for them.

use super::{
    channel::Target,
    port::Port,
    transfer::{KIND_SHIFT, OF_RECEIVE},
};
use crate::{
    ffi::fabric::Posted,
    transport::{Error, TryingTo},
};

/// Memory for messages, in parts that are handed out as they come.
pub(super) struct Inbox {
    pub(super) target: Target,
    /// Receives on each port.
    per_port: u64,
    /// Whether all of them receive into the same part, since messages come one after the other.
    is_shared: bool,
    /// Parts whose messages were looked at, for which no receive waits yet.
    spent: Vec<u64>,
}

impl Inbox {
    /// `per_port` receives on each of `ports` interfaces, for which none waits yet.
    pub(super) fn new(target: Target, per_port: u64, ports: u64, is_shared: bool) -> Self {
        Self { target, per_port, is_shared, spent: (0..per_port * ports).rev().collect() }
    }

    /// Part `slot` holds a message of `channel`.
    #[inline]
    pub(super) fn note_filled(&mut self, slot: u64, channel: usize, turn: u64) {
        let slot = if self.is_shared { 0 } else { slot };
        #[allow(clippy::cast_possible_truncation, reason = "below the count of slots")]
        if let Some(filled) = self.target.filled.get_mut(slot as usize) {
            *filled = Some((channel, turn));
        }
    }

    /// Part `slot` is free for another message.
    #[inline]
    pub(super) fn free(&mut self, slot: u64) {
        self.spent.push(slot);
    }

    /// Lets a receive wait for each part that is free.
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
