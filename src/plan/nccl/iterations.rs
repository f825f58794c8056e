//! How operations follow each other, as nccl-tests has it.

use serde::{Deserialize, Serialize};

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iterations {
    /// Operations before anything else, beside those that find out how many a sample takes.
    pub warm_up: u64,
    /// Groups of operations in one bandwidth sample; `None`: as many as last long enough.
    pub groups: Option<u64>,
    /// Operations that are handed to NCCL together.
    pub operations_per_group: u64,
    /// Whether the CPU waits for each group before it begins the next one.
    pub is_blocking: bool,
}

impl Default for Iterations {
    fn default() -> Self {
        Self { warm_up: 0, groups: None, operations_per_group: 1, is_blocking: false }
    }
}

impl Iterations {
    /// Operations of one bandwidth sample, where that was asked for.
    pub const fn operations(&self) -> Option<u64> {
        match self.groups {
            Some(groups) => Some(groups.saturating_mul(self.operations_per_group)),
            None => None,
        }
    }
}
