//! `g2g compare`: holds the results of two runs, or the parts of one, against each other.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use super::Failure;
use crate::{
    cli::{Across, CompareFormat, CompareOptions},
    record::{self, Columns, Run, import},
    report::compare::{self, By, Comparison, Source, Trait, Verdict},
    stderr::say,
};

/// Compares and prints; whether nothing has become slower than is allowed.
pub(super) fn compare(options: &CompareOptions) -> Result<bool, Failure> {
    let (sources, comparisons) = match &options.b {
        Some(b) => sides(&options.a, b, &options.across)?,
        None => parts(&options.a, options.by.as_deref().unwrap_or_default())?,
    };
    let text = match options.format {
        CompareFormat::Table => compare::tables(&sources, &comparisons, options.all),
        CompareFormat::Markdown => compare::markdown(&sources, &comparisons, options.all),
        CompareFormat::Csv => compare::csv(&sources, &comparisons),
        CompareFormat::Json => compare::json(&sources, &comparisons),
    };
    let Some(most) = options.fail_on else {
        return shown(&text).map(|()| true);
    };
    let cases = || comparisons.iter().flat_map(|comparison: &Comparison| &comparison.cases);
    let is_compared =
        |verdict: &Verdict| matches!(verdict, Verdict::Faster | Verdict::Slower | Verdict::Same);
    if !cases().any(|case| is_compared(&case.verdict)) {
        shown(&text)?;
        return Err(Failure::Start(
            "nothing could be compared, so nothing is known of what got slower: see the reasons above"
                .to_owned(),
        ));
    }
    let worse = cases().filter(|case| case.verdict == Verdict::Slower);
    let worse = worse.filter(|case| case.loss().is_some_and(|loss| loss > most)).count();
    shown(&text)?;
    if worse > 0 {
        let all = cases().count();
        say(&format!(
            "error: {worse} of {all} cases slower by more than {:.3} % (--fail-on)",
            100.0 * most
        ));
    }
    Ok(worse == 0)
}

/// What is compared, and what came of it.
type Compared = (Vec<Source>, Vec<Comparison>);

/// Two runs, or two sweeps.
fn sides(a: &Path, b: &Path, across: &[Across]) -> Result<Compared, Failure> {
    let names = [a, b].map(|path| path.display().to_string());
    if is_same(a, b) {
        let [a, b] = names;
        return Err(Failure::Start(format!(
            "{a} and {b} are the same results: nothing can differ"
        )));
    }
    // A million rows take seconds to read.
    let (of_a, of_b) = thread::scope(|scope| {
        let of_b = scope.spawn(|| sources(b));
        (sources(a), of_b.join().expect("what is wrong is an error"))
    });
    let mut sources = of_a?;
    let count = sources.len();
    sources.extend(of_b?);
    let across: Vec<Trait> = across.iter().map(|across| kind(*across)).collect();
    let comparisons = compare::sides(&sources, count, (&names[0], &names[1]), &across);
    Ok((sources, comparisons))
}

/// The parts of one.
fn parts(path: &Path, by: &str) -> Result<Compared, Failure> {
    let kind: By = by.parse().map_err(Failure::Start)?;
    let sources = sources(path)?;
    let comparisons = compare::parts(&sources, &kind);
    if comparisons.is_empty() {
        let shown = path.display();
        return Err(Failure::Start(format!(
            "no rows of {shown} differ by {by}: there is nothing to compare"
        )));
    }
    Ok((sources, comparisons))
}

/// Whether two paths lead to the same place.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn shown(text: &str) -> Result<(), Failure> {
    record::print(text).map_err(|err| Failure::Start(format!("cannot print the comparison: {err}")))
}

const fn kind(across: Across) -> Trait {
    match across {
        Across::Simulated => Trait::Simulated,
        Across::Machine => Trait::Machine,
        Across::Nccl => Trait::Nccl,
        Across::Libfabric => Trait::Libfabric,
    }
}

/// What stands under a path: a run, all runs of a sweep that have ended well, or another tool's
/// file.
fn sources(path: &Path) -> Result<Vec<Source>, Failure> {
    let start = |err: record::Error| Failure::Start(err.to_string());
    let of_run = |folder: &Path| {
        Run::read_columns(folder, compare::is_wanted).and_then(Source::of_run).map_err(start)
    };
    let shown = path.display();
    if path.join("run.json").is_file() {
        return Ok(vec![of_run(path)?]);
    }
    if path.is_dir() {
        let runs = runs_of_sweep(path);
        return match runs.is_empty() {
            true => Err(Failure::Start(format!(
                "{shown} holds neither a run (run.json) nor a sweep with a finished run (runs/001)"
            ))),
            false => runs.iter().map(|folder| of_run(folder)).collect(),
        };
    }
    of_tool(path).map(|source| vec![source])
}

/// The results of another tool in a file; what of it was not understood is said.
fn of_tool(path: &Path) -> Result<Source, Failure> {
    let shown = path.display();
    let unread = |reason: String| Failure::Start(format!("cannot read {shown}: {reason}"));
    let kind = fs::metadata(path).map_err(|err| unread(err.to_string()))?;
    if !kind.is_file() {
        return Err(unread("it is neither a folder nor a file".to_owned()));
    }
    let bytes = fs::read(path).map_err(|err| unread(err.to_string()))?;
    let mut rows = Columns::new();
    let imported =
        import::read(&bytes, &mut |row| rows.push(&row)).map_err(|err| unread(err.to_string()))?;
    for remark in imported.remarks() {
        say(&format!("warning: {shown}: {remark}"));
    }
    let nccl = imported.library.as_deref().and_then(|library| library.strip_prefix("NCCL "));
    Ok(Source::of_tool(&imported.tool.to_string(), rows, nccl))
}

/// The folders of a sweep's runs that have ended well, in their order.
fn runs_of_sweep(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("runs")).into_iter().flatten().flatten();
    let runs = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
    });
    let mut runs: Vec<PathBuf> = runs.collect();
    runs.sort();
    runs
}
