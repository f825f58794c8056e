//! The flags of `g2g report`.

use std::path::PathBuf;

use clap::Args;

/// The flags of `g2g report`.
#[derive(Clone, Debug, Args)]
pub struct ReportOptions {
    /// Folders of runs, or of sweeps
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// The page to write, in place of one that is there [default: report.html in the folder of the
    /// first run]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
