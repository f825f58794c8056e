//! The operations of the network.

use crate::{plan::Operation, transport::Error};

/// An operation of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// The source writes into the target's memory.
    Write,
    /// The target reads from the source's memory.
    Read,
    /// The source sends messages.
    Send,
    /// The source sends a message and the target sends it back.
    PingPong,
}

impl Verb {
    pub(super) fn of(operation: Operation) -> Result<Self, Error> {
        match operation {
            Operation::Write => Ok(Self::Write),
            Operation::Read => Ok(Self::Read),
            Operation::Send => Ok(Self::Send),
            Operation::PingPong => Ok(Self::PingPong),
            Operation::Copy
            | Operation::MulticastStore
            | Operation::MultimemReduce
            | Operation::MultimemAllReduce
            | Operation::ReadOnly
            | Operation::WriteOnly
            | Operation::Chase
            | Operation::Collective(_) => Err(Error::Disagreement("no operation of the network")),
        }
    }
}
