//! How operations follow each other, as nccl-tests has it.

use clap::{ArgAction, Args, builder::TypedValueParser, value_parser};
use serde::{Deserialize, Serialize};

/// More operations than this in a sample are a mistake.
const ITERATIONS_MAX: u64 = 1_000_000;

/// More operations than this in a group are a mistake.
const GROUP_MAX: u64 = 1024;

/// How operations follow each other: flags, with their help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Args)]
pub struct Iterations {
    /// Warm-up operations (0)
    ///
    /// Warm-up operations before anything is timed, 0 to 1000000; g2g runs some more to find the
    /// number of operations in a sample
    #[arg(short = 'w', long = "warmup-iters", alias = "warmup_iters", value_name = "N",
          default_value_t = 0, value_parser = value_parser!(u64).range(0..=ITERATIONS_MAX))]
    pub warm_up: u64,

    /// Operations in one sample (1 ms of them)
    ///
    /// Operations in one bandwidth sample, 1 to 1000000; in-place reductions have one [default: as
    /// many as last 1 ms]
    #[arg(short = 'n', long = "iters", value_name = "N",
          value_parser = value_parser!(u64).range(1..=ITERATIONS_MAX))]
    pub groups: Option<u64>,

    /// Operations in one group call (1)
    ///
    /// Operations in one NCCL group call, 1 to 1024; --iters counts groups
    #[arg(short = 'm', long = "agg-iters", alias = "agg_iters", value_name = "N",
          default_value_t = 1, value_parser = value_parser!(u64).range(1..=GROUP_MAX))]
    pub operations_per_group: u64,

    /// 1: wait for each group (0)
    ///
    /// Whether the CPU waits for each group before it starts the next one: 0 or 1. With 0, all
    /// groups are queued before the first starts
    #[arg(short = 'z', long = "blocking", value_name = "0|1", default_value = "0",
          action = ArgAction::Set,
          value_parser = value_parser!(u8).range(0..=1).map(|number| number == 1))]
    pub is_blocking: bool,

    /// CUDA graph launches of a sample (0: none)
    ///
    /// Capture the operations of a sample in a CUDA graph and launch it this many times, 0 to 64; 0
    /// queues them one by one
    #[arg(short = 'G', long, alias = "cudagraph", value_name = "LAUNCHES", default_value_t = 0,
          value_parser = value_parser!(u32).range(0..=64))]
    pub graph: u32,
}

impl Default for Iterations {
    fn default() -> Self {
        Self { warm_up: 0, groups: None, operations_per_group: 1, is_blocking: false, graph: 0 }
    }
}

impl Iterations {
    /// Operations of one bandwidth sample, if the user sets their number.
    pub fn operations(&self) -> Option<u64> {
        let of_group = self.operations_per_group.saturating_mul(self.launches());
        self.groups.map(|groups| groups.saturating_mul(of_group))
    }

    /// How often a bandwidth sample launches its operations.
    pub fn launches(&self) -> u64 {
        u64::from(self.graph.max(1))
    }
}
