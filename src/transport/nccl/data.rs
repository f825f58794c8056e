//! The data that a rank sends in a collective, and the data that it must receive.

use std::ops::Range;

use crate::{
    plan::{Collective, Layout, Nccl, Peers, Ranks, Share},
    transport::{pattern, values::Values},
    units::Bytes,
};

/// Each operation reads its source this much further on than the one before, so that no two leave
/// the same data. NCCL's fastest paths need an alignment of 16 bytes.
pub(super) const SHIFT: u64 = 64;

/// After this many operations the data begins at the start again.
pub(super) const SHIFTS: u64 = 61;

/// The alignment of buffers: that of the driver's.
const ALIGNMENT: u64 = 256;

/// Sets the seeds of communicators apart from those of ranks.
const COMMUNICATORS: u64 = 1 << 32;

/// One rank's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) collective: Collective,
    pub(super) nccl: Nccl,
    pub(super) layout: Layout,
    /// The rank's number in the communicator.
    pub(super) number: u32,
    /// The number of that communicator.
    pub(super) part: u32,
    /// The rank's number among the ranks of all communicators.
    pub(super) member: u32,
    /// Of messages: whom it sends to, and whom it receives from.
    pub(super) peers: Peers,
}

/// What some of a buffer must hold: of a reduction what it makes of numbers of a seed, otherwise
/// the pattern of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) range: Range<u64>,
    pub(super) seed: u64,
}

impl Part {
    /// The sizes of its buffers: of the data to send and of the data received. In place there is
    /// only the second.
    pub(super) fn sizes(&self) -> (Bytes, Bytes) {
        let element = self.nccl.data_type.size();
        let whole = self.layout.size(self.nccl.data_type);
        if self.nccl.is_in_place {
            return (Bytes::default(), whole);
        }
        let sent = element.times(self.layout.sent);
        let received = self.stride().times(self.slots() - 1);
        let received = received.plus(element.times(self.layout.received));
        (sent.plus(Bytes::new(SHIFT * (SHIFTS - 1))), received)
    }

    /// Places for received data: operations of a group run at the same time, so each has its own.
    /// Operations in place use the same bytes over and over.
    pub(super) fn slots(&self) -> u64 {
        if self.nccl.is_in_place { 1 } else { self.nccl.iterations.operations_per_group }
    }

    /// From one such place to the next one.
    fn stride(&self) -> Bytes {
        let received = self.nccl.data_type.size().times(self.layout.received);
        Bytes::new(received.get().next_multiple_of(ALIGNMENT))
    }

    /// The seed of its communicator's data. No two communicators have the same.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        match self.nccl.split {
            Some(_) => pattern::part_seed(seed, COMMUNICATORS | u64::from(self.part)),
            None => seed,
        }
    }

    /// How the numbers of a reduction are made.
    pub(super) fn values(&self) -> Option<Values> {
        let reduction = self.nccl.reduction?;
        Some(Values::new(self.nccl.data_type, reduction, self.nccl.ranks))
    }

    /// Whether an operation in place changes what the next one would be given.
    pub(super) fn consumes(&self) -> bool {
        self.nccl.is_in_place && self.collective.shape().reduces
    }

    /// Whether the rank sends or receives data.
    pub(super) fn moves(&self) -> bool {
        self.gives() || self.gets()
    }

    /// Whether the rank sends data.
    pub(super) fn gives(&self) -> bool {
        self.has_part(self.collective.shape().gives, self.peers.to)
    }

    /// Whether it receives data.
    fn gets(&self) -> bool {
        self.has_part(self.collective.shape().gets, self.peers.from)
    }

    fn has_part(&self, ranks: Ranks, peer: Option<u32>) -> bool {
        match ranks {
            Ranks::All => true,
            Ranks::Root => self.nccl.root == Some(self.number),
            Ranks::Peers => peer.is_some(),
        }
    }

    /// The offsets of the data that operation number `operation` sends and of the data that it
    /// receives, each in its own buffer; in place, both are in the same buffer.
    pub(super) fn offsets(&self, operation: u64) -> (Bytes, Bytes) {
        let element = self.nccl.data_type.size();
        if self.nccl.is_in_place {
            let sent = self.layout.sent_in_place(self.number).start;
            let received = self.layout.received_in_place(self.number).start;
            return (element.times(sent), element.times(received));
        }
        let received = self.stride().times(operation % self.slots());
        (Bytes::new(operation % SHIFTS * SHIFT), received)
    }

    /// What the receive buffer must hold after operation number `operation`, if the ranks' data
    /// comes from `seed`.
    pub(super) fn expected(&self, seed: u64, operation: u64) -> Vec<Expected> {
        if !self.gets() {
            return Vec::new();
        }
        let shape = self.collective.shape();
        let element = self.nccl.data_type.size().get();
        let shift = if self.nccl.is_in_place { 0 } else { operation % SHIFTS * SHIFT };
        let (_, begin) = self.offsets(operation);
        let length = element * self.layout.received;
        let range = begin.get()..begin.get() + length;
        let count = self.layout.count;
        if self.nccl.reduction.is_some() {
            // The elements of a part are those of its place among all.
            let first = match shape.received {
                Share::Part => u64::from(self.number) * count,
                Share::Whole | Share::Parts => 0,
            };
            let first = first + shift / element;
            return vec![Expected { range, seed: pattern::advanced(seed, 8 * first) }];
        }
        let of = |rank: u32, at: u64| pattern::advanced(source_seed(seed, rank), shift + at);
        let own = u64::from(self.number) * count * element;
        let at = if shape.sent == Share::Parts { own } else { 0 };
        if shape.received == Share::Parts {
            let part = |rank: u32| {
                let begin = range.start + u64::from(rank) * count * element;
                Expected { range: begin..begin + count * element, seed: of(rank, at) }
            };
            return (0..self.nccl.ranks).map(part).collect();
        }
        let giver = match shape.gives {
            Ranks::Peers => self.peers.from.unwrap_or(self.number),
            Ranks::All | Ranks::Root => self.nccl.root.unwrap_or(0),
        };
        vec![Expected { range, seed: of(giver, at) }]
    }
}

/// The seed of the data that a rank sends.
pub(super) fn source_seed(seed: u64, rank: u32) -> u64 {
    pattern::part_seed(seed, u64::from(rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantArray as _;

    use crate::plan::{Allocator, DataType, Iterations, Reduction, Registration};

    const SEED: u64 = 5;

    fn part(collective: Collective, number: u32, is_in_place: bool) -> Part {
        let nccl = Nccl {
            data_type: DataType::Float,
            reduction: collective.shape().reduces.then_some(Reduction::Sum),
            root: collective.has_root().then_some(1),
            pair: None,
            is_in_place,
            buffer: Allocator::Cuda,
            registration: Registration::None,
            iterations: Iterations::default(),
            split: None,
            ranks: 3,
            members: 3,
            sharers: 1,
            first: 0,
        };
        let layout = collective.layout(Bytes::new(960), DataType::Float, 3);
        let peers = Peers { to: Some((number + 1) % 3), from: Some((number + 2) % 3) };
        Part { collective, nccl, layout, number, part: 0, member: number, peers }
    }

    /// Carries out the collective on plain memory, as its definition has it, and looks at every
    /// byte that is expected.
    fn assert_expected(collective: Collective, is_in_place: bool, operation: u64) {
        let parts: Vec<Part> = (0..3).map(|rank| part(collective, rank, is_in_place)).collect();
        let given: Vec<Vec<u8>> = parts.iter().map(|part| given(part, operation)).collect();
        for part in &parts {
            let expected = part.expected(SEED, operation);
            assert_eq!(expected.is_empty(), !part.gets());
            let result = carried_out(part, &given);
            let (_, place) = part.offsets(operation);
            let begin = usize::try_from(place.get()).unwrap();
            let mut seen = 0;
            for Expected { range, seed } in expected {
                let holds = |offset: u64| match part.values() {
                    None => pattern::byte(seed, offset),
                    Some(values) => {
                        let bytes = values.result(seed, offset / 4).to_le_bytes();
                        bytes[usize::try_from(offset % 4).unwrap()]
                    }
                };
                for (offset, at) in (0..).zip(range) {
                    let found = result[usize::try_from(at).unwrap() - begin];
                    assert_eq!(found, holds(offset), "{part:?} {operation} {at}");
                    seen += 1;
                }
            }
            assert!(!part.gets() || seen == 4 * part.layout.received, "{part:?}");
        }
    }

    /// What a rank gives, byte by byte.
    fn given(part: &Part, operation: u64) -> Vec<u8> {
        let (place, _) = part.offsets(operation);
        let shift = if part.nccl.is_in_place { 0 } else { place.get() };
        let length = 4 * part.layout.sent;
        match part.values() {
            Some(values) => (shift / 4..(shift + length) / 4)
                .flat_map(|index| {
                    values.given(SEED, index, part.number).to_le_bytes()[..4].to_vec()
                })
                .collect(),
            None => {
                let seed = source_seed(SEED, part.number);
                (shift..shift + length).map(|offset| pattern::byte(seed, offset)).collect()
            }
        }
    }

    /// What it gets, by the collective's definition.
    fn carried_out(part: &Part, given: &[Vec<u8>]) -> Vec<u8> {
        let length = usize::try_from(4 * part.layout.count).unwrap();
        let own = usize::try_from(part.number).unwrap();
        let sum = || -> Vec<u8> {
            let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            (0..given[0].len())
                .step_by(4)
                .flat_map(|at| {
                    let all: f32 = given.iter().map(|of| float(&of[at..at + 4])).sum();
                    all.to_le_bytes()
                })
                .collect()
        };
        match part.collective {
            Collective::AllReduce | Collective::Reduce => sum(),
            Collective::ReduceScatter => sum()[own * length..][..length].to_vec(),
            Collective::AllGather | Collective::Gather => given.concat(),
            Collective::Broadcast => given[1].clone(),
            Collective::AllToAll => {
                given.iter().flat_map(|of| of[own * length..][..length].to_vec()).collect()
            }
            Collective::Scatter => given[1][own * length..][..length].to_vec(),
            Collective::SendRecv => given[(own + 2) % 3].clone(),
        }
    }

    #[test]
    fn what_is_expected_is_what_the_collective_makes() {
        for &collective in Collective::VARIANTS {
            for operation in [0, 1, SHIFTS - 1, SHIFTS + 7] {
                assert_expected(collective, false, operation);
                if collective.can_be_in_place() {
                    assert_expected(collective, true, operation);
                }
            }
        }
    }

    #[test]
    fn two_operations_that_follow_each_other_leave_different_data() {
        for &collective in Collective::VARIANTS {
            let part = part(collective, 1, false);
            for operation in 0..2 * SHIFTS {
                let now = part.expected(SEED, operation);
                assert!(part.expected(SEED, operation + 1) != now, "{collective:?} {operation}");
            }
        }
    }
}
