//! The interface's types: codes, data types, operations, collectives. The numbers are those of
//! `nccl.h` 2.32.3.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A code of the interface other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub i32);

impl Code {
    pub(crate) const UNHANDLED_CUDA_ERROR: Self = Self(1);
    pub(crate) const SYSTEM_ERROR: Self = Self(2);
    pub(crate) const INTERNAL_ERROR: Self = Self(3);
    pub(crate) const INVALID_ARGUMENT: Self = Self(4);
    pub(crate) const INVALID_USAGE: Self = Self(5);
    pub(crate) const REMOTE_ERROR: Self = Self(6);
    pub(crate) const IN_PROGRESS: Self = Self(7);
}

/// A refusal: the code, and the sentence that `ncclGetLastError` gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub code: Code,
    pub sentence: String,
}

impl Refused {
    pub(crate) fn new(code: Code, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }
}

impl From<crate::cuda::Code> for Refused {
    fn from(code: crate::cuda::Code) -> Self {
        Self::new(Code::UNHANDLED_CUDA_ERROR, format!("Cuda failure {}", code.0))
    }
}

/// A data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum DataType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

impl DataType {
    pub(crate) const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }
}

/// What reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// Multiplies by an element of the rank's own, then sums.
    PreMulSum,
}

/// The first number of an operation that the program has made.
pub(crate) const OPERATIONS: u32 = 5;

impl Operation {
    /// Those that the program has made multiply.
    pub(crate) fn of(number: u32) -> Self {
        match number {
            0 => Self::Sum,
            1 => Self::Prod,
            2 => Self::Max,
            3 => Self::Min,
            4 => Self::Avg,
            _ => Self::PreMulSum,
        }
    }
}

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Function {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AlltoAll,
    Gather,
    Scatter,
    SendRecv,
}

impl Function {
    pub(crate) const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AlltoAll,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
    ];

    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// As the library's log has it; the function is called so with `nccl` before it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AlltoAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::SendRecv => "SendRecv",
        }
    }

    /// Whether its elements are reduced.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Elements that a rank sends and receives, of `count` as the function is called with.
    pub(crate) fn elements(self, count: u64, ranks: u64, rank: u32, root: u32) -> (u64, u64) {
        let at_root = |elements| if rank == root { elements } else { 0 };
        let all = count.saturating_mul(ranks);
        match self {
            Self::AllReduce => (count, count),
            Self::AllGather => (count, all),
            Self::ReduceScatter => (all, count),
            Self::Broadcast => (at_root(count), count),
            Self::Reduce => (count, at_root(count)),
            Self::AlltoAll => (all, all),
            Self::Gather => (count, at_root(all)),
            Self::Scatter => (at_root(all), count),
            Self::SendRecv => (count, count),
        }
    }
}

/// `ncclUniqueId`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct UniqueId {
    pub magic: u64,
    pub nonce: u64,
    pub rest: [u64; 14],
}

/// What only this library writes at the beginning of a unique id.
pub(crate) const ID_MAGIC: u64 = 0x6732_675f_6e63_636c;

/// An integer of a [`Config`] that is not given.
pub(crate) const UNDEFINED: c_int = c_int::MIN;
/// What a [`Config`] that was initialised has.
pub(crate) const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_VERSION_CODE` of 2.32.3.
pub(crate) const VERSION: c_int = 23_203;
/// `NCCL_SPLIT_NOCOLOR`
pub(crate) const NO_COLOR: c_int = -1;

/// The members of `ncclConfig_t` up to those that mean something here; the others follow, as many
/// as `size` says.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
}

/// A pointer that a caller gives for its own use.
pub(crate) type Address = *mut c_void;
