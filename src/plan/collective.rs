//! NCCL's collectives: how much each moves, what it makes of the data, and what its rate means.
//!
//! Counts, offsets and rates are those of nccl-tests 2.19.6 (`*GetCollByteCount` and `*GetBw` in
//! `src/*.cu`; `doc/PERFORMANCE.md` derives the factors), so that both print the same for the same
//! run.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Between the ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' data.
    AllReduce,
    /// Every rank gets all ranks' data, one behind the other.
    AllGather,
    /// Every rank gets its part of the reduction of all ranks' data.
    ReduceScatter,
    /// Every rank gets the root's data.
    Broadcast,
    /// The root gets the reduction of all ranks' data.
    Reduce,
    /// Every rank gets a part of each rank's data.
    AllToAll,
    /// The root gets all ranks' data, one behind the other.
    Gather,
    /// Every rank gets its part of the root's data.
    Scatter,
    /// Every rank sends its data to the next one, around.
    SendRecv,
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
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
    /// NCCL's name of its function.
    pub const fn function(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllToAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::SendRecv => "SendRecv",
        }
    }

    /// Whether it reduces.
    pub const fn has_reduction(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one rank has another part in it than the others.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether one buffer can be what is given and what is received.
    pub const fn can_be_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::SendRecv)
    }

    /// The bus bandwidth as a multiple of the algorithm bandwidth, among `ranks`: what goes through
    /// the busiest link at least, over the data of the operation (nccl-tests,
    /// `doc/PERFORMANCE.md`). `None` for one rank alone, where nothing goes through any link.
    pub fn busbw_factor(self, ranks: u32) -> Option<f64> {
        let n = f64::from(ranks);
        let all_but_own = (n - 1.0) / n;
        (ranks > 1).then_some(match self {
            Self::AllReduce => 2.0 * all_but_own,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter => all_but_own,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
        })
    }

    /// Elements of an operation of `size` among `ranks`. Where each rank has a part, parts are of
    /// whole 16 bytes, so that an operation can be smaller than asked for, or of nothing.
    pub fn layout(self, size: Bytes, data_type: DataType, ranks: u32) -> Layout {
        let ranks = u64::from(ranks.max(1));
        let all = size.get() / data_type.size().get();
        let in_16_bytes = 16 / data_type.size().get();
        let part = all / ranks / in_16_bytes * in_16_bytes;
        let whole = Layout { count: all, sent: all, received: all, sent_at: 0, received_at: 0 };
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => whole,
            Self::AllGather | Self::Gather => Layout {
                count: part,
                sent: part,
                received: part * ranks,
                sent_at: part,
                received_at: 0,
            },
            Self::ReduceScatter | Self::Scatter => Layout {
                count: part,
                sent: part * ranks,
                received: part,
                sent_at: 0,
                received_at: part,
            },
            Self::AllToAll => Layout {
                count: part,
                sent: part * ranks,
                received: part * ranks,
                sent_at: 0,
                received_at: 0,
            },
        }
    }
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
    /// All of them, in the order of nccl-tests.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Half,
        Self::Float,
        Self::Double,
        Self::Bfloat16,
        Self::F8e4m3,
        Self::F8e5m2,
    ];

    /// The name in flags and columns: that of nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Half => "half",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bfloat16 => "bfloat16",
            Self::F8e4m3 => "f8e4m3",
            Self::F8e5m2 => "f8e5m2",
        }
    }

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

impl Reduction {
    /// All of them, in the order of nccl-tests.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// The name in flags and columns: that of nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;

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
        let all = Operation::OF_NCCL.map(|operation| operation.collective().unwrap());
        assert_eq!(table.map(|(collective, _)| collective), all);
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

    #[test]
    fn names_are_those_that_are_read() {
        use clap::ValueEnum as _;
        for data_type in DataType::ALL {
            assert_eq!(DataType::from_str(data_type.name(), false), Ok(data_type));
        }
        for reduction in Reduction::ALL {
            assert_eq!(Reduction::from_str(reduction.name(), false), Ok(reduction));
        }
    }
}
