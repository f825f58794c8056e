//! What is done with the data of a case.

use serde::{Deserialize, Serialize};

use super::{Collective, Issuer};

/// What is done with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// It is read at the source and written at the target.
    Copy,
    /// A kernel on the target's GPU loads it and keeps only a checksum.
    ReadOnly,
    /// A kernel on the source's GPU makes it up and stores it at the target.
    WriteOnly,
    /// A kernel on the target's GPU follows a chain of pointers through it: latency of a load.
    Chase,
    /// RDMA: the source writes into the target's memory.
    Write,
    /// RDMA: the target reads out of the source's memory.
    Read,
    /// RDMA: the source sends, and the target receives into a buffer of its choice.
    Send,
    /// RDMA: a message to the target and one back; half of that is a latency.
    PingPong,
    /// NCCL: every rank gets the reduction of all ranks' data.
    #[value(name = "all_reduce")]
    #[serde(rename = "all_reduce")]
    AllReduce,
    /// NCCL: every rank gets all ranks' data.
    #[value(name = "all_gather")]
    #[serde(rename = "all_gather")]
    AllGather,
    /// NCCL: every rank gets its part of the reduction of all ranks' data.
    #[value(name = "reduce_scatter")]
    #[serde(rename = "reduce_scatter")]
    ReduceScatter,
    /// NCCL: every rank gets the root's data.
    #[value(name = "broadcast")]
    #[serde(rename = "broadcast")]
    Broadcast,
    /// NCCL: the root gets the reduction of all ranks' data.
    #[value(name = "reduce")]
    #[serde(rename = "reduce")]
    Reduce,
    /// NCCL: every rank gets a part of each rank's data.
    #[value(name = "alltoall")]
    #[serde(rename = "alltoall")]
    AllToAll,
    /// NCCL: the root gets all ranks' data.
    #[value(name = "gather")]
    #[serde(rename = "gather")]
    Gather,
    /// NCCL: every rank gets its part of the root's data.
    #[value(name = "scatter")]
    #[serde(rename = "scatter")]
    Scatter,
    /// NCCL: every rank sends its data to the next one, around.
    #[value(name = "sendrecv")]
    #[serde(rename = "sendrecv")]
    SendRecv,
}

impl Operation {
    /// What GPUs do unless the user says otherwise.
    pub const OF_GPU: [Self; 2] = [Self::Copy, Self::Chase];

    /// Those of NCCL.
    pub const OF_NCCL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
    ];

    /// Those of RDMA.
    pub const OF_RDMA: [Self; 4] = [Self::Write, Self::Read, Self::Send, Self::PingPong];

    /// Whether it has a latency only.
    pub const fn is_latency_only(self) -> bool {
        matches!(self, Self::Chase | Self::PingPong)
    }

    /// Whether the target, and not the source, chooses where its data goes.
    pub const fn has_messages(self) -> bool {
        matches!(self, Self::Send | Self::PingPong)
    }

    /// The name in flags and columns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::ReadOnly => "read-only",
            Self::WriteOnly => "write-only",
            Self::Chase => "chase",
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::PingPong => "ping-pong",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "sendrecv",
        }
    }

    /// Which of NCCL's collectives it is.
    pub const fn collective(self) -> Option<Collective> {
        Some(match self {
            Self::AllReduce => Collective::AllReduce,
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::Broadcast => Collective::Broadcast,
            Self::Reduce => Collective::Reduce,
            Self::AllToAll => Collective::AllToAll,
            Self::Gather => Collective::Gather,
            Self::Scatter => Collective::Scatter,
            Self::SendRecv => Collective::SendRecv,
            _ => return None,
        })
    }

    /// The only issuer that it can have; `None`: it can have either, or both ends take part.
    pub const fn issuer(self) -> Option<Issuer> {
        match self {
            Self::ReadOnly | Self::Chase | Self::Read => Some(Issuer::Read),
            Self::WriteOnly | Self::Write => Some(Issuer::Write),
            _ => None,
        }
    }
}
