//! `g2g report`: the results of runs and sweeps as a page.

use std::path::PathBuf;

use clap::Args;

use super::print;
use crate::{
    analysis::compare::Trait,
    run::{Failure, write_page},
};

/// The flags of `g2g report`.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Folders of runs, or of sweeps
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// Page to write; replaces an existing file [default: report.html in the run's folder; of
    /// several runs a new file in the current folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Compare runs even if this differs between them
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    across: Vec<Trait>,
}

impl Report {
    /// Writes the page and prints its name.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let path =
            write_page(&self.runs, self.output.as_deref(), &self.across).map_err(Failure::start)?;
        print(&format!("{}\n", path.display()))
    }
}
