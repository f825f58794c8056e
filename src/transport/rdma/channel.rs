//! One flow, as one of its ends sees it.

use super::{
    data::Data,
    port::{Port, Rail},
    signal::{Signal, TURNS_MAX},
    stage::{Chunks, Stage},
    verb::Verb,
};
use crate::{
    ffi::{
        CallError,
        fabric::{Flags, Posted, RemoteRegion},
    },
    plan::{Flow, Rank},
    transport::{Error, Mismatch, first_mismatch, pattern},
    units::Bytes,
};

/// Each operation reads its source this much further on than the one before, so that no two
/// operations in a row leave the same data: one cache line of x86-64 and aarch64.
const SHIFT: u64 = 64;

/// After this many operations the data begins at the start again. It is prime, so a slot of a
/// target that gets every n-th operation also gets different data each time.
pub(super) const SHIFTS: u64 = 61;

/// A target, and what its slots must hold.
pub(super) struct Target {
    pub(super) data: Data,
    /// The channel and the turn of the operation that filled each slot last.
    pub(super) filled: Vec<Option<(usize, u64)>>,
    size: Bytes,
}

/// The other end of a flow.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) rank: Rank,
    /// The connections to it.
    pub(super) rails: Vec<Rail>,
    /// Its own number of the flow.
    pub(super) number: u32,
    /// Its memory, through each of its ports; empty for messages.
    pub(super) memory: Vec<RemoteRegion>,
    /// Operations to it that may be unconfirmed.
    pub(super) room: u64,
}

/// One operation for the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) number: u64,
    /// The bytes that it moves.
    pub(super) size: Bytes,
    /// Identifies its completion.
    pub(super) context: u64,
    pub(super) flags: Flags,
}

/// The memory of one end of a flow.
#[derive(Default)]
pub(super) struct Memories {
    /// The data that is read, written or sent from here.
    pub(super) source: Option<Data>,
    /// Where data is written or read into. Messages that are not staged arrive in the inbox
    /// instead.
    pub(super) target: Option<Target>,
    /// Where staged data lies between a GPU and an interface. Messages arrive in the inbox instead.
    pub(super) ring: Option<Data>,
    pub(super) stage: Option<Stage>,
}

/// One end of a flow.
pub(super) struct Channel {
    pub(super) flow: Flow,
    /// Whether this rank starts the operations.
    pub(super) initiates: bool,
    pub(super) peer: Peer,
    pub(super) memories: Memories,
    /// Slots of the target, or of the ring.
    slots: u64,
    /// The size of one of them.
    slot_size: Bytes,
    /// The slots with an operation under way. Operations may complete in any order, and no two may
    /// write the same slot at once. Empty if there is one slot, or if both ends synchronise by
    /// turns.
    busy: Vec<bool>,
    pub(super) count: Count,
}

/// What has happened since a run began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Operations started.
    pub(super) posted: u64,
    /// Operations that the provider has reported as done.
    pub(super) completed: u64,
    /// Operations that have arrived here.
    pub(super) delivered: u64,
    /// Groups that the target has confirmed: at the initiator received, at the target sent.
    pub(super) confirmed: u64,
    /// Turns received from the partner.
    pub(super) turns: u64,
    /// The number of groups in all, modulo 2^18, once all have been sent.
    pub(super) last: Option<u64>,
}

/// How large a source must be for operations of `size`.
pub(super) fn source_size(size: Bytes) -> Bytes {
    size.plus(Bytes::new(SHIFT * (SHIFTS - 1)))
}

/// The distance between a target's slots.
fn stride(size: Bytes) -> Bytes {
    Bytes::new(size.get().next_multiple_of(SHIFT))
}

/// Where slot `slot` for operations of `size` begins.
pub(super) fn slot(size: Bytes, slot: u64) -> Bytes {
    stride(size).times(slot)
}

/// Where the data of turn `turn` begins in its source.
pub(super) fn shift(turn: u64) -> Bytes {
    Bytes::new(turn % SHIFTS * SHIFT)
}

/// The channel that a partner's signal names.
#[inline]
pub(super) fn known(channels: &mut [Channel], number: u32) -> Result<&mut Channel, Error> {
    let unknown = Error::Disagreement("a word about a flow that is not there");
    channels.get_mut(number as usize).ok_or(unknown)
}

impl Count {
    /// Whether everything that the initiator announced has arrived.
    pub(super) fn has_all(&self, group: u64) -> bool {
        let groups = self.delivered / group % TURNS_MAX;
        self.last == Some(groups) && self.delivered.is_multiple_of(group)
    }
}

impl Target {
    /// A target of `slots` slots for operations of `size`. `allocate` allocates the memory.
    pub(super) fn new(
        size: Bytes,
        slots: u64,
        allocate: impl FnOnce(Bytes) -> Result<Data, Error>,
    ) -> Result<Self, Error> {
        let data = allocate(stride(size).times(slots))?;
        let filled = (0..slots).map(|_| None).collect();
        Ok(Self { data, filled, size })
    }

    /// Starts over: nothing has arrived.
    pub(super) fn forget(&mut self) {
        self.filled.fill(None);
    }

    /// The offset and the size of slot `slot`.
    pub(super) fn part(&self, slot: u64) -> (Bytes, Bytes) {
        (self::slot(self.size, slot), self.size)
    }

    /// Compares each slot that was filled with the data of its last operation.
    pub(super) fn verify(
        &self,
        seeds: impl Fn(usize) -> u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let filled = (0..).zip(&self.filled).filter_map(|(slot, filled)| Some((slot, (*filled)?)));
        first_mismatch(filled.map(|(slot, (channel, turn))| {
            let seed = pattern::advanced(seeds(channel), shift(turn).get());
            let (offset, size) = self.part(slot);
            self.data.compare(seed, offset, size, rank)
        }))
    }
}

impl Channel {
    pub(super) fn new(
        flow: Flow,
        initiates: bool,
        peer: Peer,
        memories: Memories,
        chunks: Chunks,
    ) -> Self {
        let Chunks { slots, chunk: slot_size, .. } = chunks;
        let is_ordered = slots == 1 || memories.stage.is_some();
        #[allow(clippy::cast_possible_truncation, reason = "what memory was made for")]
        let busy = vec![false; if is_ordered { 0 } else { slots as usize }];
        let count = Count::default();
        Self { flow, initiates, peer, memories, slots, slot_size, busy, count }
    }

    /// Operations under way.
    #[inline]
    pub(super) fn under_way(&self) -> u64 {
        self.count.posted - self.count.completed
    }

    /// Operations, or chunks, that can be started now, if `window` of them may be under way: each once
    /// its slot [is free](Self::is_free).
    #[inline]
    pub(super) fn room(&self, window: u64, verb: Verb) -> u64 {
        let room = window.saturating_sub(self.under_way());
        match &self.memories.stage {
            None => room,
            Some(_) if verb == Verb::Read => room.min(self.slots - self.under_way()),
            // The target has not emptied the other slots.
            Some(_) => room.min(self.slots - (self.count.posted - self.count.turns)),
        }
    }

    /// Whether no operation is under way in the slot of operation number `number`.
    #[inline]
    pub(super) fn is_free(&self, number: u64) -> bool {
        self.busy.is_empty() || !self.busy[self.part(number)]
    }

    /// Hands an operation to the interface.
    #[inline]
    pub(super) fn post(&self, ports: &mut [Port], request: Request) -> Result<Posted, CallError> {
        let Request { verb, number, size, context, flags } = request;
        let turn = self.turn(number);
        let part = self.part(number);
        // All operations of a slot use one rail, because there is no order between two rails.
        let rail = &self.peer.rails[part % self.peer.rails.len()];
        let endpoint = &mut ports[rail.port].endpoint;
        let signal = Signal::Data { channel: self.peer.number, turn }.encode();
        let slot = slot(self.slot_size, part as u64);
        let Memories { source, target, ring, .. } = &self.memories;
        let (near, near_at, far_at) = match (ring, verb) {
            (Some(ring), _) => (Some(ring), slot, slot),
            (None, Verb::Read) => (target.as_ref().map(|target| &target.data), slot, shift(turn)),
            (None, Verb::Write | Verb::Send | Verb::PingPong) => {
                (source.as_ref(), shift(turn), slot)
            }
        };
        let Some(near) = near else { return Ok(Posted::Again) };
        let local = near.all(rail.port).slice(near_at, size);
        let remote = || self.peer.memory[rail.far_port].at(rail.peer, far_at);
        match verb {
            Verb::Read => endpoint.read(local, remote(), context, flags),
            Verb::Write => endpoint.write(local, remote(), context, flags.data(signal)),
            Verb::PingPong if endpoint.can_inject(local) => {
                endpoint.inject(local, rail.peer, signal)
            }
            Verb::Send | Verb::PingPong => {
                endpoint.send(local, rail.peer, context, flags.data(signal))
            }
        }
    }

    /// Notes that the next operation is under way.
    #[inline]
    pub(super) fn note_posted(&mut self) {
        self.mark(self.count.posted, true);
        self.count.posted += 1;
    }

    /// Notes that operation number `number` is done.
    #[inline]
    pub(super) fn complete(&mut self, number: u64) {
        self.count.completed += 1;
        self.mark(number, false);
    }

    /// Notes whether operation number `number` is under way.
    #[inline]
    fn mark(&mut self, number: u64, is_under_way: bool) {
        let part = self.part(number);
        if let Some(busy) = self.busy.get_mut(part) {
            *busy = is_under_way;
        }
    }

    /// The slot of the target, or of the ring, that operation number `number` uses.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below the count of slots")]
    fn part(&self, number: u64) -> usize {
        (self.turn(number) % self.slots) as usize
    }

    /// Notes which turn has filled the target.
    #[inline]
    pub(super) fn note_filled(&mut self, own: usize, turn: u64) {
        if let Some(target) = &mut self.memories.target {
            #[allow(clippy::cast_possible_truncation, reason = "below the count of slots")]
            let slot = (turn % self.slots) as usize;
            if let Some(filled) = target.filled.get_mut(slot) {
                *filled = Some((own, turn));
            }
        }
    }

    /// The turn of operation number `number`.
    #[inline]
    pub(super) fn turn(&self, number: u64) -> u64 {
        number % (self.slots * SHIFTS)
    }

    /// The seed of the flow's data, the same at both ends.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        let Flow { source, target } = self.flow;
        pattern::part_seed(seed, u64::from(source.rank.0) << 32 | u64::from(target.rank.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Endpoint, Place, topology::NumaNode},
        transport::rdma::parts_under_way,
    };

    #[test]
    fn no_part_takes_the_same_data_twice_in_a_row() {
        for window in [1, 2, 60, 61, 62, 64, 122, 976, 1000, 2032] {
            for rails in [1, 2, 3, 4, 8, 32] {
                let slots = parts_under_way(window, rails);
                let turns = slots * SHIFTS;
                assert!(slots >= window && turns <= TURNS_MAX, "{window} {rails}");
                assert!(slots.is_multiple_of(rails), "a rail has more: {window} {rails}");
                let next = |turn: u64| (turn + slots) % turns;
                assert!((0..turns).all(|turn| next(turn) % slots == turn % slots), "{window}");
                assert!((0..turns).all(|turn| shift(next(turn)) != shift(turn)), "{window}");
            }
        }
    }

    /// One end of a flow whose target has `slots` parts.
    fn channel(slots: u64) -> Channel {
        let end = |rank| {
            let place = Place::Pinned { numa_node: NumaNode(0) };
            Endpoint { rank: Rank(rank), place }
        };
        let flow = Flow { source: end(0), target: end(1) };
        let peer =
            Peer { rank: Rank(1), rails: Vec::new(), number: 0, memory: Vec::new(), room: 0 };
        let size = Bytes::kib(4);
        Channel::new(flow, true, peer, Memories::default(), Chunks::new(size, size, slots))
    }

    /// The operations that `channel` hands out now, of `window`: they are under way from here on.
    fn hand_out(channel: &mut Channel, window: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while channel.room(window, Verb::Write) > 0 && channel.is_free(channel.count.posted) {
            numbers.push(channel.count.posted);
            channel.note_posted();
        }
        numbers
    }

    #[test]
    fn no_operation_meets_one_that_is_under_way_in_its_part() {
        let window = 5;
        for rails in 1..=4 {
            let slots = parts_under_way(window, rails);
            let mut channel = channel(slots);
            assert_eq!(hand_out(&mut channel, window), [0, 1, 2, 3, 4]);
            // Only the first is not done, so that only its part is not free.
            (1..window).for_each(|number| channel.complete(number));
            let others: Vec<u64> = (window..slots).collect();
            assert_eq!(hand_out(&mut channel, window), others, "{rails}");
            others.iter().for_each(|&number| channel.complete(number));
            assert_eq!(channel.part(slots), channel.part(0));
            assert_eq!(hand_out(&mut channel, window), [] as [u64; 0], "{rails}");
            channel.complete(0);
            let next: Vec<u64> = (slots..slots + window).collect();
            assert_eq!(hand_out(&mut channel, window), next, "{rails}");
        }
    }

    #[test]
    fn where_there_is_one_part_only_the_window_counts() {
        let mut channel = channel(1);
        assert_eq!(hand_out(&mut channel, 3), [0, 1, 2]);
        assert_eq!(hand_out(&mut channel, 3), [] as [u64; 0]);
        channel.complete(2);
        assert_eq!(hand_out(&mut channel, 3), [3]);
    }
}
