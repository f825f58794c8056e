//! What a machine's network interfaces can do, what that takes, and how they fail.

use serde::{Deserialize, Serialize};

/// What network interfaces can do, and what that takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Efa {
    /// Whether the device itself reads memory of a peer.
    pub reads: bool,
    /// Whether the device itself writes memory of a peer.
    pub writes: bool,
    /// Operations that can be under way on an endpoint.
    pub queue_entries: u32,
    /// What is left of a port's rate for data.
    pub rate_share: f64,
    /// What is left of that for data of messages with libfabric's protocol.
    pub protocol_share: f64,
    /// One way, in nanoseconds.
    pub latency_ns: f64,
    /// What is added to it by libfabric's protocol.
    pub protocol_ns: f64,
    /// What is added to it by memory of a GPU on another NUMA node, at each end.
    pub far_ns: f64,
    /// What each operation takes of the thread that posts it.
    pub post_ns: f64,
    /// What each operation takes of the interface that starts it.
    pub operation_ns: f64,
    /// The longest by which an operation falls behind later ones.
    pub shuffle_ns: f64,
    /// What the order of deliveries follows from: the run's seed.
    pub seed: u64,
}

impl Efa {
    /// Without what a generation has.
    pub const PLAIN: Self = Self {
        reads: false,
        writes: false,
        queue_entries: 1024,
        rate_share: 0.97,
        protocol_share: 0.93,
        latency_ns: 6000.0,
        protocol_ns: 2000.0,
        far_ns: 400.0,
        post_ns: 100.0,
        operation_ns: 150.0,
        shuffle_ns: 3000.0,
        seed: 0,
    };
}

/// What goes wrong with operations over a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingNic {
    /// `None`: any interface, each by its own operations.
    pub nic: Option<u32>,
    /// What happens.
    pub what: NicFault,
    /// How many operations are started on it before, in all processes.
    pub after: u64,
    /// Whether it happens to every later operation too, or only to that one.
    pub always: bool,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicFault {
    /// Its initiator is told that the device has refused it.
    Failed,
    /// Its initiator is told that the other end does not answer.
    Unreachable,
    /// Its data arrives, and its initiator is never told.
    Lost,
    /// A byte of its data arrives wrong.
    Corrupt,
    /// The provider reports an error that belongs to no operation.
    Event,
}
