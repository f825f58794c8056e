//! `g2g report`: the results of runs and sweeps as a page.

use std::path::PathBuf;

use clap::Args;

use crate::{
    run::{Failure, write_page},
    show,
};

/// The flags of `g2g report`.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Folders of runs, or of sweeps
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// The page to write, in place of one that is there [default: report.html in the folder of the
    /// first run]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Report {
    /// Writes the page and prints its name.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let path = write_page(&self.runs, self.output.as_deref());
        let path = path.map_err(|err| Failure::Start(err.to_string()))?;
        let printed = show::print(&format!("{}\n", path.display()));
        printed.map_err(|err| Failure::Start(format!("cannot print the page's name: {err}")))?;
        Ok(true)
    }
}
