//! `g2g report`: the results of runs and sweeps as a page.

use std::path::Path;

use super::Failure;
use crate::{
    cli::ReportOptions,
    record::{self, Run, files, sweep::Past},
    report::{self, Part},
    stderr::say,
};

/// The page's name in the folder of a run or a sweep.
const PAGE: &str = "report.html";

/// Writes the page and prints its name.
pub(super) fn report(options: &ReportOptions) -> Result<bool, Failure> {
    let start = |err: record::Error| Failure::Start(err.to_string());
    let parts = options.runs.iter().map(|folder| part(folder));
    let parts = parts.collect::<Result<Vec<Part>, record::Error>>().map_err(start)?;
    let path = options.output.clone().unwrap_or_else(|| options.runs[0].join(PAGE));
    write(&path, parts).map_err(start)?;
    let printed = record::print(&format!("{}\n", path.display()));
    printed.map_err(|err| Failure::Start(format!("cannot print the page's name: {err}")))?;
    Ok(true)
}

/// Writes the page of a run or a sweep that has just ended. Its results are there without it.
pub(super) fn write_own(folder: &Path) {
    let written = part(folder).and_then(|part| write(&folder.join(PAGE), vec![part]));
    if let Err(err) = written {
        say(&format!("warning: no page of the results: {err}"));
    }
}

fn part(folder: &Path) -> Result<Part, record::Error> {
    let has = |file: &str| folder.join(file).is_file();
    match (has("sweep.json"), has("run.json")) {
        (true, _) => Past::read(folder).map(|sweep| Part::of_sweep(&sweep)),
        (_, true) => {
            Run::read_columns(folder, report::is_wanted).and_then(|run| Part::of_run(&run))
        }
        _ => Err(record::Error::Content {
            path: folder.to_owned(),
            reason: "it holds neither a run (run.json) nor a sweep (sweep.json)".to_owned(),
        }),
    }
}

/// Writes the page, whole or not at all.
fn write(path: &Path, parts: Vec<Part>) -> Result<(), record::Error> {
    let page = report::html(parts);
    files::replace(path, page.as_bytes())
        .map_err(|source| record::Error::Write { path: path.to_owned(), source })
}
