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

    /// What it is: the row of the table of collectives.
    pub(crate) const fn shape(self) -> Shape {
        use Amount::{All, AllAtRoot, Count, CountAtRoot};
        use Course::{Direct, RingOfParts, RingOfWhole, RingTwice};
        match self {
            Self::AllReduce => shape("AllReduce", true, Count, Count, RingTwice),
            Self::AllGather => shape("AllGather", false, Count, All, RingOfParts),
            Self::ReduceScatter => shape("ReduceScatter", true, All, Count, RingOfParts),
            Self::Broadcast => shape("Broadcast", false, CountAtRoot, Count, RingOfWhole),
            Self::Reduce => shape("Reduce", true, Count, CountAtRoot, RingOfWhole),
            Self::AlltoAll => shape("AlltoAll", false, All, All, Direct),
            Self::Gather => shape("Gather", false, Count, AllAtRoot, Direct),
            Self::Scatter => shape("Scatter", false, AllAtRoot, Count, Direct),
            Self::SendRecv => shape("SendRecv", false, Count, Count, Direct),
        }
    }
}

const fn shape(
    name: &'static str,
    reduces: bool,
    sends: Amount,
    receives: Amount,
    course: Course,
) -> Shape {
    Shape { name, reduces, sends, receives, course }
}

/// A row of the table of collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// As the library's log has it; the function is called so with `nccl` before it.
    pub name: &'static str,
    /// Whether its elements are reduced.
    pub reduces: bool,
    pub sends: Amount,
    pub receives: Amount,
    pub course: Course,
}

/// How many elements a rank sends or receives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// As many as the function is called with.
    Count,
    /// As many for every rank.
    All,
    /// `Count` at the root, elsewhere none.
    CountAtRoot,
    /// `All` at the root, elsewhere none.
    AllAtRoot,
}

impl Amount {
    pub(crate) fn elements(self, count: u64, ranks: u64, is_root: bool) -> u64 {
        match (self.is_at_root(), is_root) {
            (true, false) => 0,
            _ if self.is_for_all() => count.saturating_mul(ranks),
            _ => count,
        }
    }

    pub(crate) fn is_at_root(self) -> bool {
        matches!(self, Self::CountAtRoot | Self::AllAtRoot)
    }

    /// Whether there is a block for every rank.
    pub(crate) fn is_for_all(self) -> bool {
        matches!(self, Self::All | Self::AllAtRoot)
    }
}

/// How a collective goes from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Around a ring twice: reduced, then gathered.
    RingTwice,
    /// Around a ring once, each rank's part.
    RingOfParts,
    /// Along a ring, from a root or to it.
    RingOfWhole,
    /// From each rank straight to those that want it.
    Direct,
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
