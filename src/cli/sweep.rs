//! The flags of a sweep.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The flags of `g2g sweep`.
#[derive(Clone, Debug, Args)]
pub struct SweepOptions {
    /// What to run, as README.md explains; there are some in scripts/plans. Paths in it are from
    /// the folder in which g2g is called
    #[arg(value_name = "PLAN.toml", required_unless_present = "resume")]
    pub plan: Option<PathBuf>,

    /// Go on with the sweep in this folder: run what was not run to its end, or failed, by the plan
    /// that is there; then print the results of all
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "dry_run"])]
    pub resume: Option<PathBuf>,

    /// Folder for the results, made anew [default: results/TIME-sweep-MACHINE, with the time in
    /// UTC]
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value_t = SweepFormat::Table)]
    pub format: SweepFormat,

    /// Check every combination, print the runs in their order and run none
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub dry_run: bool,

    /// No progress; errors only
    #[arg(short, long)]
    pub quiet: bool,
}

/// The forms of a sweep's results on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SweepFormat {
    /// Tables for a person
    Table,
    /// The text of sweep.csv
    Csv,
    /// The text of sweep.json
    Json,
}
