//! Stages data of GPUs in page-locked host memory, for interfaces that cannot access GPU memory,
//! and to show how much direct access gains.
//!
//! An operation is divided into chunks. Each chunk is one operation of the network. Both ends of a
//! flow have a ring with a slot for each chunk that can be under way. The source's GPU copies a
//! chunk into a slot, the network moves it into the same slot of the target, and the target's GPU
//! copies it out. Both GPUs and the network work at the same time. The ends synchronise by
//! [`Signal::Turn`]:
//!
//! * For writes and messages the target sends it when a slot is free again.
//! * For reads the target requests the next chunk with it, and the source answers with it when the
//!   chunk can be read.
//!
//! These words leave by the same interfaces as chunks, and may wait behind all chunks that the
//! network has. So it has a quarter of the ring at most: a request, its answer and its chunk wait
//! for a quarter each, less in all than the ring lasts.

use super::{
    channel::{self, Channel, Memories, Request},
    data::Data,
    signal::Signal,
    transfer::{Streams, operation_context, with},
    verb::Verb,
};
use crate::{
    ffi::{
        cuda::{Event, Slice, Stream},
        fabric::{Flags, Posted},
    },
    transport::{Error, TryingTo, gpu::Ready},
    units::Bytes,
};

/// How one operation is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    /// The size of one operation.
    pub(super) size: Bytes,
    /// The size of a chunk; the last chunk of an operation may be smaller.
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

    /// The operation that chunk number `number` belongs to, its offset in that, and its size.
    pub(super) fn part(self, number: u64) -> (u64, Bytes, Bytes) {
        let (operation, place) = (number / self.count(), number % self.count());
        let offset = self.chunk.times(place);
        let left = Bytes::new(self.size.get() - offset.get());
        (operation, offset, left.min(self.chunk))
    }

    /// Whether the network takes one more chunk where it has `count`: of the ring a quarter, or two.
    fn have_room(self, count: u64) -> bool {
        count < (self.slots / 4).max(2)
    }

    /// The size of the first `count` chunks together.
    pub(super) fn total(self, count: u64) -> Bytes {
        let (operations, chunks) = (count / self.count(), count % self.count());
        self.size.times(operations).plus(self.chunk.times(chunks))
    }
}

/// One end of a staged flow: the progress of the GPU's copies. The slots are in the channel's ring,
/// or, where messages arrive, in the inbox.
pub(super) struct Stage {
    pub(super) chunks: Chunks,
    stream: Stream,
    /// Reached when the last copy out of or into each slot is done.
    copied: Vec<Event>,
    /// Copies queued.
    begun: u64,
    /// Copies that are done and handed on.
    done: u64,
    /// Reads handed to the interface.
    read: u64,
    /// The slots of chunks that have arrived, by the chunk's number modulo the slots.
    arrived: Vec<Option<u64>>,
}

impl Stage {
    pub(super) fn new(ready: &Ready, chunks: Chunks) -> Result<Self, Error> {
        let slots = usize::try_from(chunks.slots).unwrap_or(usize::MAX);
        Ok(Self {
            chunks,
            stream: ready.new_stream()?,
            copied: ready.events(slots)?,
            begun: 0,
            done: 0,
            read: 0,
            arrived: vec![None; slots],
        })
    }

    /// Starts over.
    pub(super) fn forget(&mut self) {
        (self.begun, self.done, self.read) = (0, 0, 0);
        self.arrived.fill(None);
    }

    /// Notes that chunk `number` (modulo the slots) has arrived: in `slot` if one is given,
    /// otherwise in the slot of its number.
    #[inline]
    pub(super) fn note_arrived(&mut self, number: u64, slot: Option<u64>) {
        let place = self.place(number);
        self.arrived[place] = Some(slot.unwrap_or(place as u64));
    }

    /// Whether the GPU is copying.
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
        queued.trying_to(COPY)
    }

    /// The slot of the next chunk to copy in, if it has arrived. Chunks are copied in order, so the
    /// last operation's data stays in the GPU.
    fn next_arrived(&self) -> Option<u64> {
        let has_room = self.begun - self.done < self.chunks.slots;
        self.arrived[self.place(self.begun)].filter(|_| has_room)
    }

    /// The number of the oldest queued copy, if it is done.
    fn next_done(&self) -> Result<Option<u64>, Error> {
        let is_done =
            self.is_copying() && self.copied[self.place(self.done)].is_reached().trying_to(COPY)?;
        Ok(is_done.then_some(self.done))
    }
}

const COPY: &str = "copy between a GPU and its interface's memory";

impl Streams {
    /// Advances all staged flows; whether anything moved.
    #[inline]
    pub(super) fn stage(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for own in 0..self.channels.len() {
            let Channel { flow, memories, .. } = &mut self.channels[own];
            let Some(mut stage) = memories.stage.take() else { continue };
            let advanced = if flow.source.rank == self.rank {
                self.copy_out(own, &mut stage)
            } else {
                self.copy_in(own, &mut stage)
            };
            self.channels[own].memories.stage = Some(stage);
            moved |= advanced?;
        }
        Ok(moved)
    }

    /// At a source: copies from the GPU into slots, and hands full slots on.
    fn copy_out(&mut self, own: usize, stage: &mut Stage) -> Result<bool, Error> {
        let Channel { memories, count, .. } = &self.channels[own];
        let Memories { source: Some(source), ring: Some(ring), .. } = memories else {
            return Ok(false);
        };
        let is_read = self.verb == Verb::Read;
        // A chunk to be read was requested. A chunk to be written or sent has a free slot.
        let wanted = if is_read { count.turns } else { count.posted };
        let mut moved = false;
        while stage.begun < wanted {
            stage.copy_out(source, ring)?;
            moved = true;
        }
        while let Some(number) = stage.next_done()? {
            let completed = self.channels[own].count.completed;
            if is_read {
                self.say_turn(own);
            } else if !stage.chunks.have_room(number - completed)
                || !self.post_chunk(own, number, stage.chunks)?
            {
                break;
            }
            stage.done += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// At a target: copies out of slots into the GPU.
    fn copy_in(&mut self, own: usize, stage: &mut Stage) -> Result<bool, Error> {
        let mut moved = false;
        // The source has said how many chunks can be read.
        while self.verb == Verb::Read
            && stage.read < self.channels[own].count.turns
            && stage.chunks.have_room(stage.read - stage.begun)
            && self.post_chunk(own, stage.read, stage.chunks)?
        {
            stage.read += 1;
            moved = true;
        }
        let Memories { target, ring, .. } = &self.channels[own].memories;
        let slots = ring.as_ref().or(self.inbox.as_ref().map(|inbox| &inbox.target.data));
        if let (Some(target), Some(slots)) = (target, slots) {
            while let Some(slot) = stage.next_arrived() {
                stage.copy_in(&target.data, slots, slot)?;
                moved = true;
            }
        }
        while let Some(number) = stage.next_done()? {
            let place = stage.place(number);
            let slot = stage.arrived[place].take();
            let (operation, ..) = stage.chunks.part(number);
            self.take(own, operation, slot)?;
            stage.done += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Notes that a chunk of `operation`, which arrived in `slot`, is in the GPU's memory.
    fn take(&mut self, own: usize, operation: u64, slot: Option<u64>) -> Result<(), Error> {
        let Channel { memories, count, .. } = &mut self.channels[own];
        if let Some(target) = &mut memories.target {
            target.filled.fill(Some((own, operation)));
        }
        if self.verb == Verb::Read {
            count.completed += 1;
            return Ok(());
        }
        count.delivered += 1;
        self.say_turn(own);
        // A receive must wait in the slot before the partner learns that the slot is free.
        if let (Some(slot), Some(inbox)) = (slot, &mut self.inbox) {
            inbox.free(slot);
            inbox.receive(&mut self.ports)?;
        }
        Ok(())
    }

    /// Hands chunk number `number` to the interface; whether the interface accepted it.
    fn post_chunk(&mut self, own: usize, number: u64, chunks: Chunks) -> Result<bool, Error> {
        let (_, _, size) = chunks.part(number);
        let context = operation_context(own, number);
        let request = Request { verb: self.verb, number, size, context, flags: Flags::NONE };
        let channel = &self.channels[own];
        let posted = channel.post(&mut self.ports, request);
        Ok(posted.map_err(|source| with(channel.peer.rank, source))? == Posted::Yes)
    }

    /// Tells the partner that it may go on by one chunk.
    pub(super) fn say_turn(&mut self, own: usize) {
        let peer = &self.channels[own].peer;
        self.outbox.push(peer.rank, Signal::Turn { channel: peer.number });
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
