//! Data of GPUs on its way through page-locked host memory, for interfaces that reach no GPU, and
//! to show what it is worth that others do.
//!
//! An operation goes in chunks, each of which is an operation of the network. Both ends of a flow
//! have a ring with a slot for each chunk that can be under way. The source's GPU copies a chunk
//! into a slot, the network moves it into the same slot of the target, and the target's GPU copies
//! it out; so both GPUs and the network work at the same time. The ends take turns by
//! [`Signal::Turn`]:
//!
//! * of writes and messages the target says it when a slot is empty again;
//! * of reads the target asks for the next chunk by it, and the source answers by it that the chunk
//!   can be read.

use super::{
    channel::{self, Request},
    data::Data,
    signal::Signal,
    transfer::{Streams, operation_context, with},
    verb::Verb,
};
use crate::{
    ffi::{
        CallError,
        cuda::{Event, Slice, Stream},
        fabric::{Flags, Posted},
    },
    transport::{Error, gpu::Ready},
    units::Bytes,
};

/// What one operation is cut into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    /// One operation.
    pub(super) size: Bytes,
    /// The most that goes through a slot.
    pub(super) chunk: Bytes,
    /// Slots of a ring.
    pub(super) slots: u64,
}

impl Chunks {
    pub(super) fn new(size: Bytes, chunk: Bytes, slots: u64) -> Self {
        Self { size, chunk: chunk.min(size), slots }
    }

    /// Chunks of one operation.
    pub(super) fn count(self) -> u64 {
        self.size.get().div_ceil(self.chunk.get()).max(1)
    }

    /// Which operation chunk number `number` belongs to, where it begins in that, and how much it
    /// is.
    pub(super) fn part(self, number: u64) -> (u64, Bytes, Bytes) {
        let (operation, place) = (number / self.count(), number % self.count());
        let offset = self.chunk.times(place);
        let left = Bytes::new(self.size.get() - offset.get());
        (operation, offset, left.min(self.chunk))
    }

    /// What the first `count` chunks are together.
    pub(super) fn total(self, count: u64) -> Bytes {
        let (operations, chunks) = (count / self.count(), count % self.count());
        self.size.times(operations).plus(self.chunk.times(chunks))
    }
}

/// One end of a flow that is staged: how far the GPU's copies are. The slots are in the channel's
/// ring, or of messages in their target's inbox.
pub(super) struct Stage {
    pub(super) chunks: Chunks,
    stream: Stream,
    /// When the last copy out of, or into, each slot of a ring was done.
    copied: Vec<Event>,
    /// Copies that were queued.
    begun: u64,
    /// Copies that are done, with what follows from that.
    done: u64,
    /// Reads that were asked of the interface.
    read: u64,
    /// Where the chunks are that have arrived, by the places of their numbers among the slots.
    arrived: Vec<Option<u64>>,
}

impl Stage {
    pub(super) fn new(ready: &Ready, chunks: Chunks) -> Result<Self, Error> {
        let call = |source| Error::call("make a stream", source);
        let events = (0..chunks.slots).map(|_| Event::new(&ready.context));
        Ok(Self {
            chunks,
            stream: Stream::new(&ready.context).map_err(call)?,
            copied: events.collect::<Result<_, _>>().map_err(call)?,
            begun: 0,
            done: 0,
            read: 0,
            arrived: (0..chunks.slots).map(|_| None).collect(),
        })
    }

    /// Nothing has been done yet.
    pub(super) fn forget(&mut self) {
        (self.begun, self.done, self.read) = (0, 0, 0);
        self.arrived.fill(None);
    }

    /// A chunk has arrived whose number is `number` modulo the slots: in `slot`, or in that of its
    /// number.
    #[inline]
    pub(super) fn note_arrived(&mut self, number: u64, slot: Option<u64>) {
        let place = self.place(number);
        self.arrived[place] = Some(slot.unwrap_or(place as u64));
    }

    /// Whether the GPU has something to do that is not done.
    pub(super) fn is_copying(&self) -> bool {
        self.done < self.begun
    }

    #[allow(clippy::cast_possible_truncation, reason = "below the count of slots")]
    fn place(&self, number: u64) -> usize {
        (number % self.chunks.slots) as usize
    }

    /// Queues the copy of the next chunk from the GPU's `source` into its slot of `ring`.
    fn copy_out(&mut self, source: &Data, ring: &Data) -> Result<(), Error> {
        let (operation, offset, size) = self.chunks.part(self.begun);
        let from = source.for_gpu(channel::shift(operation).plus(offset), size)?;
        let slot = channel::slot(self.chunks.chunk, self.begun % self.chunks.slots);
        self.copy(ring.for_gpu(slot, size)?, from)
    }

    /// Queues the copy of the next chunk from `slot` of `slots` to its place in the GPU's `target`.
    fn copy_in(&mut self, target: &Data, slots: &Data, slot: u64) -> Result<(), Error> {
        let (_, offset, size) = self.chunks.part(self.begun);
        let from = slots.for_gpu(channel::slot(self.chunks.chunk, slot), size)?;
        self.copy(target.for_gpu(offset, size)?, from)
    }

    fn copy(&mut self, target: Slice<'_>, source: Slice<'_>) -> Result<(), Error> {
        let event = &self.copied[self.place(self.begun)];
        let queued = self.stream.copy(target, source).and_then(|()| self.stream.record(event));
        self.begun += 1;
        queued.map_err(staging)
    }

    /// The slot of the next chunk to copy in, if it has arrived: in the order of their numbers, so
    /// that what stays in the GPU is the last operation's.
    fn next_arrived(&self) -> Option<u64> {
        let has_room = self.begun - self.done < self.chunks.slots;
        self.arrived[self.place(self.begun)].filter(|_| has_room)
    }

    /// The number of the oldest copy that was not done and is done now.
    fn next_done(&self) -> Result<Option<u64>, Error> {
        let is_done = self.is_copying()
            && self.copied[self.place(self.done)].is_reached().map_err(staging)?;
        Ok(is_done.then_some(self.done))
    }
}

fn staging(source: CallError) -> Error {
    Error::call("copy between a GPU and its interface's memory", source)
}

impl Streams {
    /// Moves on what is staged; whether anything moved.
    #[inline]
    pub(super) fn stage(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for own in 0..self.channels.len() {
            let channel = &self.channels[own];
            if channel.stage.is_some() {
                let is_source = channel.flow.source.rank == self.rank;
                moved |= if is_source { self.copy_out(own)? } else { self.copy_in(own)? };
            }
        }
        Ok(moved)
    }

    /// At a source: from the GPU into slots, and on.
    fn copy_out(&mut self, own: usize) -> Result<bool, Error> {
        let is_read = self.verb == Verb::Read;
        let channel = &mut self.channels[own];
        let (Some(stage), Some(source), Some(ring)) =
            (&mut channel.stage, &channel.source, &channel.ring)
        else {
            return Ok(false);
        };
        let mut moved = false;
        // What is to be read was asked for; what is to be written or sent has a slot.
        let wanted = if is_read { channel.count.turns } else { channel.count.posted };
        while stage.begun < wanted {
            stage.copy_out(source, ring)?;
            moved = true;
        }
        while let Some(number) = self.next_done(own)? {
            if is_read {
                self.say_turn(own);
            } else if !self.post_chunk(own, number)? {
                break;
            }
            self.note_done(own);
            moved = true;
        }
        Ok(moved)
    }

    /// At a target: out of slots into the GPU.
    fn copy_in(&mut self, own: usize) -> Result<bool, Error> {
        let mut moved = false;
        while self.verb == Verb::Read
            && let Some(number) = self.next_read(own)
            && self.post_chunk(own, number)?
        {
            self.channels[own].stage.iter_mut().for_each(|stage| stage.read += 1);
            moved = true;
        }
        let Self { channels, inbox, .. } = self;
        let channel = &mut channels[own];
        let slots = channel.ring.as_ref().or(inbox.as_ref().map(|inbox| &inbox.target.data));
        if let (Some(stage), Some(target), Some(slots)) =
            (&mut channel.stage, &channel.target, slots)
        {
            while let Some(slot) = stage.next_arrived() {
                stage.copy_in(&target.data, slots, slot)?;
                moved = true;
            }
        }
        while let Some(number) = self.next_done(own)? {
            self.take(own, number)?;
            self.note_done(own);
            moved = true;
        }
        Ok(moved)
    }

    /// Chunk number `number` is in the GPU's memory.
    fn take(&mut self, own: usize, number: u64) -> Result<(), Error> {
        let channel = &mut self.channels[own];
        let Some(stage) = &mut channel.stage else { return Ok(()) };
        let place = stage.place(number);
        let slot = stage.arrived[place].take();
        if let Some(target) = &mut channel.target {
            let (operation, ..) = stage.chunks.part(number);
            target.filled.fill(Some((own, operation)));
        }
        if self.verb == Verb::Read {
            channel.count.completed += 1;
            return Ok(());
        }
        channel.count.delivered += 1;
        self.say_turn(own);
        // Before the partner hears that it is its turn.
        if let (Some(slot), Some(inbox)) = (slot, &mut self.inbox) {
            inbox.free(slot);
            inbox.receive(&mut self.ports)?;
        }
        Ok(())
    }

    /// Asks the interface to move chunk number `number`; whether it took that.
    fn post_chunk(&mut self, own: usize, number: u64) -> Result<bool, Error> {
        let channel = &mut self.channels[own];
        let Some(stage) = &channel.stage else { return Ok(false) };
        let (_, _, size) = stage.chunks.part(number);
        let context = operation_context(own, number);
        let request = Request { verb: self.verb, number, size, context, flags: Flags::NONE };
        let posted = channel.post(&mut self.ports, request);
        let posted = posted.map_err(|source| with(channel.peer.rank, source))?;
        Ok(posted == Posted::Yes)
    }

    /// Tells the partner that it is its turn.
    pub(super) fn say_turn(&mut self, own: usize) {
        let channel = &self.channels[own];
        self.outbox.push_back((channel.peer.rank, Signal::Turn { channel: channel.peer.number }));
    }

    fn next_done(&self, own: usize) -> Result<Option<u64>, Error> {
        self.channels[own].stage.as_ref().map_or(Ok(None), Stage::next_done)
    }

    /// The next chunk that the source has offered to be read.
    fn next_read(&self, own: usize) -> Option<u64> {
        let channel = &self.channels[own];
        let read = channel.stage.as_ref()?.read;
        (read < channel.count.turns).then_some(read)
    }

    fn note_done(&mut self, own: usize) {
        self.channels[own].stage.iter_mut().for_each(|stage| stage.done += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_chunk_of_an_operation_is_what_is_left() {
        let chunks = Chunks::new(Bytes::new(2500), Bytes::new(1000), 4);
        assert_eq!(chunks.count(), 3);
        let part = |number| {
            let (operation, offset, size) = chunks.part(number);
            (operation, offset.get(), size.get())
        };
        assert_eq!([0, 1, 2].map(part), [(0, 0, 1000), (0, 1000, 1000), (0, 2000, 500)]);
        assert_eq!(part(7), (2, 1000, 1000));
        assert_eq!([0, 2, 3, 7].map(|count| chunks.total(count).get()), [0, 2000, 2500, 6000]);
        let one = Chunks::new(Bytes::new(8), Bytes::mib(1), 4);
        assert_eq!((one.count(), one.chunk), (1, Bytes::new(8)));
        assert_eq!(one.part(5), (5, Bytes::new(0), Bytes::new(8)));
        let whole = Chunks::new(Bytes::new(2000), Bytes::new(1000), 4);
        assert_eq!((whole.count(), whole.part(3)), (2, (1, Bytes::new(1000), Bytes::new(1000))));
    }
}
