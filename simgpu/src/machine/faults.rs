//! What goes wrong with a machine on purpose.

use serde::{Deserialize, Serialize};

use super::{FailingNic, HealthFault};

/// What goes wrong on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// Operations that last longer than they should.
    pub jitter: Vec<Jitter>,
    /// Bytes that arrive wrong.
    pub flips: Vec<Flip>,
    /// Calls that fail.
    pub calls: Vec<FailingCall>,
    /// Ranks of communicators that fail.
    #[serde(default)]
    pub ranks: Vec<FailingRank>,
    /// What happens to GPUs as they work.
    #[serde(default)]
    pub health: Vec<HealthFault>,
    /// What goes wrong with operations over network interfaces.
    #[serde(default)]
    pub nics: Vec<FailingNic>,
    /// Ways between hosts that are slow.
    #[serde(default)]
    pub network: Vec<SlowWay>,
}

/// The way from a host to another, over some of their interfaces or all, at a part of its speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowWay {
    /// The host where the data is; `None`: any.
    pub source: Option<u32>,
    /// The host where the data goes; `None`: any.
    pub target: Option<u32>,
    /// The place of an interface in its host; `None`: all interfaces.
    pub rail: Option<u32>,
    /// The share of its speed that is left.
    pub fraction: f64,
}

/// A rank of a communicator that fails, in one way or another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingRank {
    /// `None`: any rank.
    pub rank: Option<u32>,
    /// A function such as `ncclAllReduce`, or `ncclCommInitRank` for joining; `None`: any
    /// collective.
    pub name: Option<String>,
    /// How many calls of it go well before; counted for each communicator.
    pub after: u64,
    /// What happens.
    pub what: RankFault,
    /// Whether it happens at every later call too, or only at that one.
    pub always: bool,
}

/// How a rank fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankFault {
    /// One element that it receives is wrong.
    Wrong {
        /// Counted from 0; shorter collectives are spared.
        element: u64,
    },
    /// It never arrives.
    Absent,
    /// `ncclCommGetAsyncError` tells of this code from then on.
    Asynchronous {
        /// The library's code.
        code: u32,
    },
    /// The call answers this code, with a reason.
    Refused {
        /// The library's code.
        code: u32,
        /// What `ncclGetLastError` says.
        reason: String,
    },
}

/// A share of the transfers from `source` to `target` that last longer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// GPU where the data is; `None`: any, and the host.
    pub source: Option<u32>,
    /// GPU where the data goes; `None`: any, and the host.
    pub target: Option<u32>,
    /// 0 to 1.
    pub share: f64,
    /// How much longer.
    pub extra_ns: f64,
    /// By how much more, as a share of its own time: uniform from 0 to twice this.
    pub extra_share: f64,
    /// For how long transfers share what was drawn; 0: each has its own.
    pub lasts_ns: f64,
    /// How long after the machine's start the first of them begins.
    pub after_ns: f64,
    /// What chance begins with: the run's seed.
    pub seed: u64,
}

/// A transfer from `source` to `target` that leaves one byte wrong in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flip {
    /// GPU where the data is; `None`: any, and the host.
    pub source: Option<u32>,
    /// GPU where the data goes; `None`: any, and the host.
    pub target: Option<u32>,
    /// Bytes from the beginning of the transfer; transfers that are shorter are spared.
    pub offset: u64,
    /// How many transfers go well before it; counted in each process.
    pub after: u64,
    /// Whether every later transfer is hit too, or only that one.
    pub always: bool,
}

/// A driver call that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingCall {
    /// Name without a version suffix, such as `cuMemAlloc`; NVML's too.
    pub name: String,
    /// In which process, in the order in which they came to the machine; `None`: in each.
    pub process: Option<usize>,
    /// How many calls go well before it; counted in each process.
    pub after: u64,
    /// What happens.
    pub what: CallFault,
    /// Whether it happens at every later call too, or only at that one.
    pub always: bool,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFault {
    /// It answers this code, and does nothing.
    Refused {
        /// The library's code.
        code: u32,
    },
    /// It never comes back.
    Hung,
    /// Its process is killed in it.
    Killed,
    /// Its process is stopped in it.
    Stopped,
}
