//! Flags of operations, and their outcomes.

use super::bindings::{FI_DELIVERY_COMPLETE, FI_MORE, FI_REMOTE_CQ_DATA};
use crate::ffi::CallError;

/// How an operation is done. Without any of these it completes when the local memory is free
/// again, which says nothing of the data's arrival.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    pub(super) bits: u64,
    pub(super) data: u64,
}

/// What became of a call that asks for an operation.
#[must_use = "an operation that was not taken must be asked for again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is under way.
    Yes,
    /// It is done for this side: it has no completion.
    Over,
    /// There is no room now: poll, and ask again.
    Again,
}

/// An operation that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the caller gave the operation; `None` for a peer's write that brought data along.
    pub context: Option<u64>,
    /// What the peer's operation brought along.
    pub data: Option<u64>,
    /// Bytes received; of no meaning for other operations.
    pub length: usize,
}

/// An operation, or the queue itself, that failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct Failure {
    /// What the caller gave the operation; `None` if no operation of this side failed.
    pub context: Option<u64>,
    /// Why.
    #[source]
    pub source: CallError,
}

impl Flags {
    /// No flag.
    pub const NONE: Self = Self { bits: 0, data: 0 };

    /// Another operation follows at once, so that the provider can start several together
    /// (`FI_MORE`). The last of them must come without.
    pub const fn more(self) -> Self {
        Self { bits: self.bits | FI_MORE, ..self }
    }

    /// It completes when the data has arrived and can be seen at the target
    /// (`FI_DELIVERY_COMPLETE`).
    pub const fn delivery(self) -> Self {
        Self { bits: self.bits | FI_DELIVERY_COMPLETE, ..self }
    }

    /// `data` comes along, and a write is announced to the target with it
    /// (`FI_REMOTE_CQ_DATA`). It has at most
    /// [`Facts::cq_data_size`](super::Facts::cq_data_size) bytes.
    pub const fn data(self, data: u64) -> Self {
        Self { bits: self.bits | FI_REMOTE_CQ_DATA, data }
    }
}
