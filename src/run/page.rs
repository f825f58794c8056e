//! The report page of runs and sweeps.

use std::{
    fs, iter,
    path::{Path, PathBuf},
};

use crate::{
    analysis::compare::{self, Allowance, MARGIN, Source, Trait},
    record::{self, Row, Run, files, sweep::Past},
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
    let runs: Vec<(String, &Run)> = results.iter().filter_map(Results::run).collect();
    let is_compared = runs.len() > 1;
    let parts = results.iter().map(|results| match results {
        Results::Run(run) => Part::of_run(run, is_compared),
        Results::Sweep(sweep) => Ok(Part::of_sweep(sweep)),
    });
    let parts = parts.collect::<Result<Vec<Part>, record::Error>>()?;
    let comparison = is_compared.then(|| compared(&runs, across)).transpose()?;
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

impl Results {
    /// The run, with its name.
    fn run(&self) -> Option<(String, &Run)> {
        match self {
            Self::Run(run) => Some((run.folder.display().to_string(), run)),
            Self::Sweep(_) => None,
        }
    }
}

/// Each further run against the first.
fn compared(runs: &[(String, &Run)], across: &[Trait]) -> Result<Part, record::Error> {
    let allowance = Allowance { across: across.to_vec(), margin: MARGIN };
    let (a, first) = &runs[0];
    let first = Source::of_run((*first).clone())?;
    let against = |(b, run): &(String, &Run)| {
        let sources = [first.clone(), Source::of_run((*run).clone())?];
        let comparisons = compare::sides(&sources, 1, a, b, &allowance);
        Ok(comparisons.into_iter().map(|comparison| (sources.clone(), comparison)).collect())
    };
    let comparisons: Vec<Vec<_>> =
        runs[1..].iter().map(against).collect::<Result<_, record::Error>>()?;
    let runs: Vec<(&str, &[Row])> =
        runs.iter().map(|(name, run)| (name.as_str(), &run.rows[..])).collect();
    Ok(Part::of_comparisons(&runs, &comparisons.concat()))
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
