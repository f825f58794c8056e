//! `g2g report`: the results of runs as a page.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Failure;
use crate::{
    cli::ReportOptions,
    record::{self, Run},
    report,
};

/// The page's name in the folder of a run.
pub(super) const PAGE: &str = "report.html";

/// Writes the page and prints its name.
pub(super) fn report(options: &ReportOptions) -> Result<bool, Failure> {
    let start = |err: record::Error| Failure::Start(err.to_string());
    let mut runs = Vec::new();
    for folder in &options.runs {
        runs.push(Run::read(folder).map_err(start)?);
    }
    let path = options.output.clone().unwrap_or_else(|| options.runs[0].join(PAGE));
    write(&path, &runs).map_err(start)?;
    let printed = record::print(&format!("{}\n", path.display()));
    printed.map_err(|err| Failure::Start(format!("cannot print the page's name: {err}")))?;
    Ok(true)
}

/// Writes the page of some runs, whole or not at all.
pub(super) fn write(path: &Path, runs: &[Run]) -> Result<(), record::Error> {
    let page = report::html(runs)?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, page)
        .and_then(|()| fs::rename(&new, path))
        .map_err(|source| record::Error::Write { path: path.to_owned(), source })
}
