//! The flags that only `g2g check` has, and what it measures.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{Options, values::time};
use crate::plan::{Collective, Engine, Level, Operation, Request, TransportKind};

/// The flags of a check.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Check")]
pub struct CheckOptions {
    /// Time for all rows (60s)
    ///
    /// Time that all rows may take together, as it is estimated before. A check does without rows
    /// to keep it, of each stage as large a share, and a host whose rows were left out is not known
    /// to be fit
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time,
          allow_hyphen_values = true)]
    pub budget: Duration,

    /// File for the names of the hosts that are unfit
    ///
    /// File for the names of the hosts that are unfit, a line each; empty if none is
    #[arg(long, value_name = "FILE")]
    pub exclude: Option<PathBuf>,
}

impl Options {
    /// What a check measures: of each host its GPUs, the ways between them, and NCCL among them.
    pub(super) fn of_check(self) -> Self {
        // One GPU has no pairs.
        let is_alone = self.asked.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1);
        let between = [TransportKind::P2p, TransportKind::Nccl];
        let between = between.into_iter().filter(|_| !is_alone);
        let asked = Request {
            transports: [TransportKind::Local].into_iter().chain(between).collect(),
            engines: Engine::OF_GPU.to_vec(),
            operations: vec![
                Operation::Copy,
                Operation::Collective(Collective::AllReduce),
                Operation::Collective(Collective::AllToAll),
            ],
            is_check: true,
            ..self.asked
        };
        Self { asked, effort: Level::Quick, ..self }
    }
}
