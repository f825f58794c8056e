//! `g2g doctor`: every rank examines its host; rank 0 compares the answers.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::{TextOrJson, print, print_page};
use crate::{
    judge::doctor::{Report, Verdict},
    plan::RANKS_MAX,
    run::{self, Entered, Failure, Ranks, Task, Told, examine, values::deadline},
    show,
};

/// The flags of `g2g doctor`.
///
/// Exit code: 0 no problem, 1 a problem, 2 cannot start or bad arguments.
#[derive(Clone, Debug, Args)]
pub struct Doctor {
    /// Examine a simulated machine: an EC2 instance type, several hosts of one (2xp5.48xlarge), or
    /// a machine file (a path, or a name that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    simulate: Option<String>,

    /// File in the format of the catalogue (`g2g catalogue`) with more GPUs and machines to judge
    /// this one by
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,

    /// Number of processes to compare, 1 to 1024; under mpirun or srun the launcher's ranks are
    /// compared
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: Option<u32>,

    /// Longest wait for another rank before the command ends and names it, 100ms to 30 days
    #[arg(long, visible_alias = "timeout", value_name = "TIME", default_value = "60s",
          value_parser = deadline,
          allow_hyphen_values = true)]
    deadline: Duration,

    /// MPI library that the ranks of mpirun or srun use [default: the launcher's own]
    #[arg(long, value_name = "FILE")]
    mpi_lib: Option<PathBuf>,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = TextOrJson::Table)]
    format: TextOrJson,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Show all checks, including those that find nothing wrong
    #[arg(short, long)]
    verbose: bool,
}

impl Doctor {
    /// Examines this machine, or those of all ranks; whether there is no problem.
    pub(super) fn run(&self, ranks: &mut Ranks) -> Result<bool, Failure> {
        ranks.meet(self.ranks, self.mpi_lib.as_deref(), self.deadline)?;
        if ranks.launcher.is_none() {
            // With a launcher each rank reads its own copy, and rank 0 reports what is wrong.
            run::catalogue(self.catalogue.as_deref())?;
        }
        // Nothing is measured, so the seed has no effect.
        let count = self.ranks.unwrap_or(1);
        let entered = ranks.enter(self.simulate.as_deref(), 0, count).map_err(Failure::start)?;
        let Entered { members: mut here, simulation } = entered;
        let simulation = simulation.map_err(Failure::Start)?;
        if ranks.launcher.is_none() {
            let told = Told { simulation, task: Task::Examine(self.catalogue.clone()) };
            let variables = |_| Vec::new();
            ranks.start(count, self.deadline, variables, told).map_err(Failure::start)?;
            here = ranks.find_host().map_err(Failure::start)?;
        }
        let examined = examine(self.catalogue.as_deref(), &here, ranks)?;
        let Some(members) = examined else { return Ok(true) };
        let report = Report::of(&members);
        let format = if self.json { TextOrJson::Json } else { self.format };
        match format {
            TextOrJson::Table => print_page(&show::doctor_page(&report, self.verbose))?,
            TextOrJson::Json => print(&show::json(&report))?,
        };
        Ok(report.count(Verdict::Problem) == 0)
    }
}

/// Examines as a rank that rank 0 has started, with the user's own catalogue.
pub(super) fn join(catalogue: Option<&Path>, ranks: &mut Ranks) -> Result<bool, Failure> {
    let here = ranks.find_host().map_err(Failure::start)?;
    examine(catalogue, &here, ranks).map(|_| true)
}
