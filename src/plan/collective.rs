//! NCCL's collectives: how much each moves, what it makes of the data, and what its rate means.
//!
//! Counts, offsets and rates are those of nccl-tests 2.19.6 (`*GetCollByteCount` and `*GetBw` in
//! `src/*.cu`; `doc/PERFORMANCE.md` derives the factors), so that both print the same for the same
//! run.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What the ranks of a communicator do together. The names are those of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Collective {
    /// NCCL: every rank gets the reduction of all ranks' data.
    #[value(aliases = ["allreduce", "all_reduce_perf"])]
    AllReduce,
    /// NCCL: every rank gets all ranks' data.
    #[value(aliases = ["allgather", "all_gather_perf"])]
    AllGather,
    /// NCCL: every rank gets its part of the reduction of all ranks' data.
    #[value(aliases = ["reducescatter", "reduce_scatter_perf"])]
    ReduceScatter,
    /// NCCL: every rank gets the root's data.
    #[value(aliases = ["broadcast_perf"])]
    Broadcast,
    /// NCCL: the root gets the reduction of all ranks' data.
    #[value(aliases = ["reduce_perf"])]
    Reduce,
    /// NCCL: every rank gets a part of each rank's data.
    #[value(name = "alltoall", aliases = ["all_to_all", "alltoall_perf"])]
    #[serde(rename = "alltoall")]
    #[strum(serialize = "alltoall")]
    AllToAll,
    /// NCCL: the root gets all ranks' data.
    #[value(aliases = ["gather_perf"])]
    Gather,
    /// NCCL: every rank gets its part of the root's data.
    #[value(aliases = ["scatter_perf"])]
    Scatter,
    /// NCCL: every rank sends its data to the next one, around.
    #[value(name = "sendrecv", aliases = ["send_recv", "sendrecv_perf"])]
    #[serde(rename = "sendrecv")]
    #[strum(serialize = "sendrecv")]
    SendRecv,
}

/// Which ranks give or get data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// All of them.
    All,
    /// The root.
    Root,
    /// Those that send to, or receive from, a peer.
    Peers,
}

/// How much of the data one rank gives or gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    Whole,
    /// One part, where each rank has its own.
    Part,
    /// The parts of all ranks, one behind the other.
    Parts,
}

/// What a collective does with the data: its row in the table of [`Collective::shape`].
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// NCCL's name of its function.
    pub function: &'static str,
    /// Who gives data.
    pub gives: Ranks,
    /// How much.
    pub sent: Share,
    /// Who gets data.
    pub gets: Ranks,
    /// How much.
    pub received: Share,
    /// Whether what is received is a reduction of what is sent.
    pub reduces: bool,
    /// The factor of the bus bandwidth among n ranks (nccl-tests, `doc/PERFORMANCE.md`).
    busbw: fn(f64) -> f64,
}

impl Shape {
    /// Whether each rank has a part of its own.
    pub fn is_divided(&self) -> bool {
        self.sent != Share::Whole || self.received != Share::Whole
    }
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DataType {
    /// Signed, 8 bits.
    Int8,
    /// Unsigned, 8 bits.
    Uint8,
    /// Signed, 32 bits.
    Int32,
    /// Unsigned, 32 bits.
    Uint32,
    /// Signed, 64 bits.
    Int64,
    /// Unsigned, 64 bits.
    Uint64,
    /// IEEE 754 binary16.
    Half,
    /// IEEE 754 binary32.
    Float,
    /// IEEE 754 binary64.
    Double,
    /// The upper half of a binary32.
    Bfloat16,
    /// 8 bits, 4 of them for the exponent.
    F8e4m3,
    /// 8 bits, 5 of them for the exponent.
    F8e5m2,
}

/// What becomes of the elements of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
#[derive(strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Their sum over their count.
    Avg,
    /// The sum of each with a factor of its rank's.
    MulSum,
}

/// Elements of one operation at each rank, and where they are when it works in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What NCCL is called with.
    pub count: u64,
    /// Elements that a rank gives.
    pub sent: u64,
    /// Elements that a rank gets.
    pub received: u64,
    /// In place: where what a rank gives begins, in a multiple of its rank.
    pub sent_at: u64,
    /// In place: where what a rank gets begins, in a multiple of its rank.
    pub received_at: u64,
}

impl Collective {
    /// What it does with the data.
    pub const fn shape(self) -> Shape {
        use {Ranks::*, Share::*};
        // NCCL's function, who gives, how much, who gets, how much, whether it reduces, bus factor
        match self {
            Self::AllReduce => shape("AllReduce", All, Whole, All, Whole, true, twice_others),
            Self::AllGather => shape("AllGather", All, Part, All, Parts, false, others),
            Self::ReduceScatter => shape("ReduceScatter", All, Parts, All, Part, true, others),
            Self::Broadcast => shape("Broadcast", Root, Whole, All, Whole, false, one),
            Self::Reduce => shape("Reduce", All, Whole, Root, Whole, true, one),
            Self::AllToAll => shape("AlltoAll", All, Parts, All, Parts, false, others),
            Self::Gather => shape("Gather", All, Part, Root, Parts, false, others),
            Self::Scatter => shape("Scatter", Root, Parts, All, Part, false, others),
            Self::SendRecv => shape("SendRecv", Peers, Whole, Peers, Whole, false, one),
        }
    }

    /// Whether it has a root rank.
    pub fn has_root(self) -> bool {
        let Shape { gives, gets, .. } = self.shape();
        gives == Ranks::Root || gets == Ranks::Root
    }

    /// Whether the send buffer can be the receive buffer.
    pub fn can_be_in_place(self) -> bool {
        let Shape { gives, sent, received, .. } = self.shape();
        gives != Ranks::Peers && (sent != Share::Parts || received != Share::Parts)
    }

    /// The bus bandwidth as a multiple of the algorithm bandwidth, among `ranks`: the least that
    /// goes through the busiest link, over the data of the operation (nccl-tests,
    /// `doc/PERFORMANCE.md`). `None` for a single rank, where nothing goes through a link.
    pub fn busbw_factor(self, ranks: u32) -> Option<f64> {
        (ranks > 1).then(|| (self.shape().busbw)(f64::from(ranks)))
    }

    /// Elements of an operation of `size` among `ranks`. Where each rank has a part, parts are of
    /// whole 16 bytes, so that an operation can be smaller than asked for, or empty.
    pub fn layout(self, size: Bytes, data_type: DataType, ranks: u32) -> Layout {
        let shape = self.shape();
        let ranks = u64::from(ranks.max(1));
        let all = size.get() / data_type.size().get();
        let in_16_bytes = 16 / data_type.size().get();
        let part = all / ranks / in_16_bytes * in_16_bytes;
        let elements = |share: Share| match share {
            Share::Whole => all,
            Share::Part => part,
            Share::Parts => part * ranks,
        };
        let in_place_at = |share: Share| if share == Share::Part { part } else { 0 };
        Layout {
            count: if shape.is_divided() { part } else { all },
            sent: elements(shape.sent),
            received: elements(shape.received),
            sent_at: in_place_at(shape.sent),
            received_at: in_place_at(shape.received),
        }
    }
}

/// A row of the table.
#[allow(clippy::too_many_arguments, reason = "they are its columns")]
const fn shape(
    function: &'static str,
    gives: Ranks,
    sent: Share,
    gets: Ranks,
    received: Share,
    reduces: bool,
    busbw: fn(f64) -> f64,
) -> Shape {
    Shape { function, gives, sent, gets, received, reduces, busbw }
}

const fn one(_: f64) -> f64 {
    1.0
}

const fn others(n: f64) -> f64 {
    (n - 1.0) / n
}

const fn twice_others(n: f64) -> f64 {
    2.0 * others(n)
}

impl Layout {
    /// The data of an operation: of what the larger of its two buffers holds, whose rate is the
    /// algorithm bandwidth.
    pub fn size(&self, data_type: DataType) -> Bytes {
        data_type.size().times(self.sent.max(self.received))
    }

    /// In place: the elements that rank number `rank` gives, in the buffer of [`Layout::size`].
    pub fn sent_in_place(&self, rank: u32) -> Range<u64> {
        let begin = self.sent_at * u64::from(rank);
        begin..begin + self.sent
    }

    /// In place: those that it gets.
    pub fn received_in_place(&self, rank: u32) -> Range<u64> {
        let begin = self.received_at * u64::from(rank);
        begin..begin + self.received
    }
}

impl DataType {
    /// One element.
    pub const fn size(self) -> Bytes {
        Bytes::new(match self {
            Self::Int8 | Self::Uint8 | Self::F8e4m3 | Self::F8e5m2 => 1,
            Self::Half | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        })
    }

    /// The least compute capability that reduces it, times ten: 8-bit floats take Hopper.
    pub const fn compute_capability(self) -> u32 {
        if matches!(self, Self::F8e4m3 | Self::F8e5m2) { 90 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        // Of 1 GB/s, by the formulas in nccl-tests' sources, worked out by hand.
        let table = [
            (Collective::AllReduce, [1.0, 4.0 / 3.0, 1.75, 142.0 / 72.0]),
            (Collective::AllGather, [0.5, 2.0 / 3.0, 0.875, 71.0 / 72.0]),
            (Collective::ReduceScatter, [0.5, 2.0 / 3.0, 0.875, 71.0 / 72.0]),
            (Collective::Broadcast, [1.0; 4]),
            (Collective::Reduce, [1.0; 4]),
            (Collective::AllToAll, [0.5, 2.0 / 3.0, 0.875, 71.0 / 72.0]),
            (Collective::Gather, [0.5, 2.0 / 3.0, 0.875, 71.0 / 72.0]),
            (Collective::Scatter, [0.5, 2.0 / 3.0, 0.875, 71.0 / 72.0]),
            (Collective::SendRecv, [1.0; 4]),
        ];
        assert_eq!(table.map(|(collective, _)| collective), Collective::VARIANTS);
        for (collective, factors) in table {
            for (ranks, expected) in [2, 3, 8, 72].into_iter().zip(factors) {
                let found = collective.busbw_factor(ranks).unwrap();
                assert!((found - expected).abs() < 1e-12, "{collective:?} {ranks}: {found}");
            }
            assert_eq!(collective.busbw_factor(1), None);
        }
    }

    #[test]
    fn counts_are_those_of_nccl_tests() {
        let layout = |collective: Collective, bytes, data_type, ranks| {
            let layout = collective.layout(Bytes::new(bytes), data_type, ranks);
            (layout.count, layout.sent, layout.received, layout.sent_at, layout.received_at)
        };
        use Collective as C;
        use DataType as T;
        assert_eq!(layout(C::AllReduce, 1001, T::Float, 8), (250, 250, 250, 0, 0));
        // 250 elements for 8 ranks are 31 each, of which 28 are whole 16 bytes.
        assert_eq!(layout(C::AllGather, 1001, T::Float, 8), (28, 28, 224, 28, 0));
        assert_eq!(layout(C::ReduceScatter, 1001, T::Float, 8), (28, 224, 28, 0, 28));
        assert_eq!(layout(C::AllToAll, 1001, T::Float, 8), (28, 224, 224, 0, 0));
        assert_eq!(layout(C::Gather, 1001, T::Double, 3), (40, 40, 120, 40, 0));
        assert_eq!(layout(C::Scatter, 1001, T::Int8, 3), (320, 960, 320, 0, 320));
        // Below 16 bytes a rank there is nothing to move.
        assert_eq!(layout(C::AllGather, 64, T::Half, 8), (0, 0, 0, 0, 0));
        assert_eq!(layout(C::SendRecv, 64, T::Half, 8), (32, 32, 32, 0, 0));
        let gather = C::AllGather.layout(Bytes::new(1001), T::Float, 8);
        assert_eq!(gather.size(T::Float), Bytes::new(896));
        assert_eq!((gather.sent_in_place(2), gather.received_in_place(2)), (56..84, 0..224));
        let scatter = C::ReduceScatter.layout(Bytes::new(1001), T::Float, 8);
        assert_eq!((scatter.sent_in_place(2), scatter.received_in_place(2)), (0..224, 56..84));
    }
}
