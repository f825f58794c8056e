//! The report page of runs and sweeps.

use std::{
    fs, iter,
    path::{Path, PathBuf},
};

use crate::{
    record::{self, Run, files, sweep::Past},
    show::report::{self, Part},
    stderr::say,
};

/// The page's name in the folder of a run or a sweep.
const PAGE: &str = "report.html";

/// Writes the page of a run or a sweep that has just ended, and returns its path. A failure is only
/// a warning.
pub(crate) fn write_own(folder: &Path) -> Option<PathBuf> {
    let written = write_page(&[folder.to_owned()], None);
    written.inspect_err(|err| say(&format!("warning: no page of the results: {err}"))).ok()
}

/// Writes the page of the runs and sweeps in `folders` atomically, and returns its path.
pub(crate) fn write_page(
    folders: &[PathBuf],
    output: Option<&Path>,
) -> Result<PathBuf, record::Error> {
    let parts = folders.iter().map(|folder| part(folder));
    let page = report::html(parts.collect::<Result<Vec<Part>, record::Error>>()?);
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

/// A name in the current folder that no page has: of several runs none is overwritten by theirs.
fn new_page() -> PathBuf {
    let others = (2..).map(|number| PathBuf::from(format!("report-{number}.html")));
    let mut names = iter::once(PathBuf::from(PAGE)).chain(others);
    names.find(|name| fs::symlink_metadata(name).is_err()).expect("there is always another number")
}

fn part(folder: &Path) -> Result<Part, record::Error> {
    if let Err(source) = fs::metadata(folder) {
        return Err(record::Error::Read { path: folder.to_owned(), source });
    }
    let has = |file: &str| folder.join(file).is_file();
    match (has("sweep.json"), has("run.json")) {
        (true, _) => Past::read(folder).map(|sweep| Part::of_sweep(&sweep)),
        (_, true) => Run::read(folder).and_then(|run| Part::of_run(&run)),
        _ => Err(record::Error::Content {
            path: folder.to_owned(),
            reason: "it holds neither a run (run.json) nor a sweep (sweep.json)".to_owned(),
        }),
    }
}
