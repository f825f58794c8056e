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

    /// Go on measuring for TIME: a burn-in
    ///
    /// Measure all rows again and again until TIME is over, beside the first time. A row is added
    /// only where something has changed; rounds.csv has a line for each round and transport
    #[arg(long = "for", value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub burn_in: Option<Duration>,

    /// Folder of an earlier run: rows slower than there make a host unfit
    ///
    /// Folder of an earlier run of g2g on such a machine. A row that is slower than there, by more
    /// than 3 % and not by chance, makes its host unfit; one that is not is judged by that, even if
    /// nothing else is known of the machine
    #[arg(long, value_name = "FOLDER")]
    pub baseline: Option<PathBuf>,

    /// What `aws ec2 describe-instance-topology` prints, of all hosts
    ///
    /// File with what `aws ec2 describe-instance-topology` prints of all hosts: the nodes of the
    /// network above each of them. Ways between hosts are compared with those of as many nodes in
    /// common, and the nodes are told where one is wrong
    #[arg(long, value_name = "FILE")]
    pub placement: Option<PathBuf>,

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
        let all =
            [TransportKind::Local, TransportKind::P2p, TransportKind::Rdma, TransportKind::Nccl];
        let of_pairs = [TransportKind::P2p, TransportKind::Nccl];
        let transports = all.into_iter().filter(|kind| !is_alone || !of_pairs.contains(kind));
        let asked = Request {
            transports: transports.collect(),
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
