//! What is done with the data of a case.

use serde::{Deserialize, Serialize};

use super::{Collective, Issuer, Pattern, TransportKind};

/// What is done with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Operation {
    /// It is read at the source and written at the target.
    Copy,
    /// A kernel on the target's GPU loads it and keeps only a checksum.
    ReadOnly,
    /// A kernel on the source's GPU makes it up and stores it at the target.
    WriteOnly,
    /// A kernel on the target's GPU follows a chain of pointers through it: latency of a load.
    Chase,
    /// A kernel on the source's GPU makes it up and stores it in the memory of all GPUs at once,
    /// its own among them, through NVLink switches.
    MulticastStore,
    /// A kernel on the target's GPU loads the sum of what all GPUs have, its own among them, which
    /// NVLink switches add up.
    MultimemReduce,
    /// Each GPU loads the sums of its part, and stores them in the memory of all: an all-reduce.
    MultimemAllReduce,
    /// RDMA: the source writes into the target's memory.
    Write,
    /// RDMA: the target reads out of the source's memory.
    Read,
    /// RDMA: the source sends, and the target receives into a buffer of its choice.
    Send,
    /// RDMA: a message to the target and one back; half of that is a latency.
    PingPong,
    /// One of NCCL's collectives.
    #[value(skip)]
    #[serde(untagged)]
    #[strum(transparent)]
    Collective(Collective),
}

impl Operation {
    /// What GPUs do unless the user says otherwise.
    pub const OF_GPU: [Self; 2] = [Self::Copy, Self::Chase];

    /// The patterns that it has if NVLink switches carry it out, the usual one first.
    pub const fn switched_patterns(self) -> &'static [Pattern] {
        match self {
            Self::MulticastStore => &[Pattern::OneToAll, Pattern::AllPairs],
            Self::MultimemReduce => &[Pattern::AllToOne, Pattern::AllPairs],
            Self::MultimemAllReduce => &[Pattern::AllPairs],
            Self::Copy
            | Self::ReadOnly
            | Self::WriteOnly
            | Self::Chase
            | Self::Write
            | Self::Read
            | Self::Send
            | Self::PingPong
            | Self::Collective(_) => &[],
        }
    }

    /// Whether NVLink switches carry it out for several GPUs at once.
    pub const fn is_switched(self) -> bool {
        !self.switched_patterns().is_empty()
    }

    /// The transports that have it.
    pub const fn transports(self) -> &'static [TransportKind] {
        match self {
            Self::Copy | Self::ReadOnly | Self::WriteOnly | Self::Chase => {
                &[TransportKind::Local, TransportKind::P2p]
            }
            Self::MulticastStore | Self::MultimemReduce | Self::MultimemAllReduce => {
                &[TransportKind::P2p]
            }
            Self::Write | Self::Read | Self::Send | Self::PingPong => &[TransportKind::Rdma],
            Self::Collective(_) => &[TransportKind::Nccl],
        }
    }

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

    /// Which of NCCL's collectives it is.
    pub const fn collective(self) -> Option<Collective> {
        if let Self::Collective(collective) = self { Some(collective) } else { None }
    }

    /// The only issuer that it can have; `None`: it can have either, or both ends take part.
    pub const fn issuer(self) -> Option<Issuer> {
        match self {
            Self::ReadOnly | Self::Chase | Self::MultimemReduce | Self::Read => Some(Issuer::Read),
            Self::WriteOnly | Self::MulticastStore | Self::Write => Some(Issuer::Write),
            Self::Copy
            | Self::MultimemAllReduce
            | Self::Send
            | Self::PingPong
            | Self::Collective(_) => None,
        }
    }
}
