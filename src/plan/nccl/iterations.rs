//! How operations follow each other, as nccl-tests has it.

use serde::{Deserialize, Serialize};

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iterations {
    /// Operations before anything else, beside those that find out how many a sample takes.
    pub warm_up: u64,
    /// Groups of operations in one bandwidth sample, or in the graph that it launches; `None`: as
    /// many as last long enough.
    pub groups: Option<u64>,
    /// Operations that are handed to NCCL together.
    pub operations_per_group: u64,
    /// Whether the CPU waits for each group before it begins the next one.
    pub is_blocking: bool,
    /// How often a graph of the operations of a bandwidth sample is launched; 0: they are queued
    /// one by one.
    pub graph: u32,
}

impl Default for Iterations {
    fn default() -> Self {
        Self { warm_up: 0, groups: None, operations_per_group: 1, is_blocking: false, graph: 0 }
    }
}

impl Iterations {
    /// Operations of one bandwidth sample, where that was asked for.
    pub const fn operations(&self) -> Option<u64> {
        match self.groups {
            Some(groups) => {
                let operations = groups.saturating_mul(self.operations_per_group);
                Some(operations.saturating_mul(self.launches()))
            }
            None => None,
        }
    }

    /// How often what is captured, or queued once, is done in a bandwidth sample.
    pub const fn launches(&self) -> u64 {
        if self.graph > 1 { self.graph as u64 } else { 1 }
    }
}
