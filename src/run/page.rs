//! The report page of runs and sweeps.

use std::{
    fs, iter,
    path::{Path, PathBuf},
};

use crate::{
    analysis::compare::{self, Allowance, Comparison, MARGIN, Runs, Source, Trait},
    record::{self, Run, files, sweep::Past},
    show::report::{self, Part},
    stderr::say,
};

/// The page's name in the folder of a run or a sweep.
const PAGE: &str = "report.html";

/// Writes the page of a run or a sweep that has just ended, and returns its path. A failure is only
/// a warning.
pub(crate) fn write_own(folder: &Path) -> Option<PathBuf> {
    let written = write_page(&[folder.to_owned()], None, &[]);
    written.inspect_err(|err| say(&format!("warning: no page of the results: {err}"))).ok()
}

/// Writes the page of the runs and sweeps in `folders` atomically, and returns its path. Several
/// runs are compared, each with the first; differences in the traits `across` are allowed.
pub(crate) fn write_page(
    folders: &[PathBuf],
    output: Option<&Path>,
    across: &[Trait],
) -> Result<PathBuf, record::Error> {
    let results = folders.iter().map(|folder| read(folder));
    let results = results.collect::<Result<Vec<Results>, record::Error>>()?;
    let is_run = |results: &&Results| matches!(results, Results::Run(_));
    let is_compared = results.iter().filter(is_run).count() > 1;
    let parts = results.iter().map(|results| match results {
        Results::Run(run) => Part::of_run(run, is_compared),
        Results::Sweep(sweep) => Ok(Part::of_sweep(sweep)),
    });
    let parts = parts.collect::<Result<Vec<Part>, record::Error>>()?;
    let comparison = is_compared.then(|| compared(results, across)).transpose()?;
    let page = report::html(parts, comparison);
    let path = match (output, folders) {
        (Some(path), _) => path.to_owned(),
        (None, [folder]) => folder.join(PAGE),
        (None, _) => new_page(),
    };
    match files::replace(&path, page.as_bytes()) {
        Ok(()) => Ok(path),
        Err(source) => Err(record::Error::Write { path, source }),
    }
}

/// What a folder holds.
enum Results {
    Run(Box<Run>),
    Sweep(Box<Past>),
}

/// Each further run against the first.
fn compared(results: Vec<Results>, across: &[Trait]) -> Result<Part, record::Error> {
    let (mut names, mut sources) = (Vec::new(), Vec::new());
    for results in results {
        let Results::Run(run) = results else { continue };
        names.push(run.folder.display().to_string());
        sources.push(Source::of_run(*run)?);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let allowance = Allowance { across: across.to_vec(), margin: MARGIN };
    let run = |at: usize| Runs { name: names[at], sources: at..at + 1 };
    let against_first = |at| compare::sides(&sources, run(0), run(at), &allowance);
    let comparisons: Vec<Comparison> = (1..sources.len()).map(against_first).collect();
    Ok(Part::of_comparisons(&names, &sources, &comparisons))
}

/// A name in the current folder that no page has: of several runs none is overwritten by theirs.
fn new_page() -> PathBuf {
    let others = (2..).map(|number| PathBuf::from(format!("report-{number}.html")));
    let mut names = iter::once(PathBuf::from(PAGE)).chain(others);
    names.find(|name| fs::symlink_metadata(name).is_err()).expect("there is always another number")
}

fn read(folder: &Path) -> Result<Results, record::Error> {
    if let Err(source) = fs::metadata(folder) {
        return Err(record::Error::Read { path: folder.to_owned(), source });
    }
    let has = |file: &str| folder.join(file).is_file();
    match (has("sweep.json"), has("run.json")) {
        (true, _) => Past::read(folder).map(|sweep| Results::Sweep(Box::new(sweep))),
        (_, true) => Run::read(folder).map(|run| Results::Run(Box::new(run))),
        _ => Err(record::Error::Content {
            path: folder.to_owned(),
            reason: "it holds neither a run (run.json) nor a sweep (sweep.json)".to_owned(),
        }),
    }
}
