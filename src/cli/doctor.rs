//! The flags of `g2g doctor`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{RANKS_MAX, TopoFormat, values::deadline};

/// The flags of `g2g doctor`.
///
/// Exit code: 0 no problem, 1 a problem, 2 cannot start or bad arguments.
#[derive(Clone, Debug, Args)]
pub struct DoctorOptions {
    /// Examine a simulated machine: an EC2 instance type or a machine file (a path, or a name
    /// that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    pub simulate: Option<String>,

    /// A file of the form of the catalogue (`g2g catalogue`) with more GPUs and machines, by which
    /// this one is judged
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<PathBuf>,

    /// Number of processes, 1 to 1024, which are held against each other; under mpirun or srun
    /// those are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    pub ranks: Option<u32>,

    /// Longest wait for another rank before the command ends and names it, 100ms to 30 days
    #[arg(long, visible_alias = "timeout", value_name = "TIME", default_value = "60s",
          value_parser = deadline,
          allow_hyphen_values = true)]
    pub deadline: Duration,

    /// The MPI library by which the ranks of mpirun or srun talk [default: the launcher's own]
    #[arg(long, value_name = "FILE")]
    pub mpi_lib: Option<PathBuf>,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = TopoFormat::Table)]
    pub format: TopoFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// Show all checks, also those that find nothing wrong
    #[arg(short, long)]
    pub verbose: bool,
}
