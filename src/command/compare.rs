//! `g2g compare`: compares the results of two runs, or the parts of one.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use clap::{Args, ValueEnum};

use super::{print, print_page};
use crate::{
    analysis::{
        compare::{self, Allowance, By, Case, Comparison, Runs, Source, Trait},
        statistics::ChangeVerdict,
    },
    record::{Run, import},
    run::{Failure, values::threshold},
    show,
    stderr::say,
};

/// The flags of `g2g compare`.
///
/// Exit code: 0 nothing got slower than --fail-on allows, 1 something did, 2 cannot start, bad
/// arguments, or with --fail-on nothing that could be compared.
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// Baseline: the folder of a run or a sweep, or a file of nccl-tests, nvbandwidth, fabtests or
    /// the OSU benchmarks
    #[arg(value_name = "A")]
    a: PathBuf,

    /// Results to compare with the baseline
    #[arg(value_name = "B", required_unless_present = "by", conflicts_with = "by")]
    b: Option<PathBuf>,

    /// Compare the rows of A with each other: issuer (reads against writes), engine, host, or
    /// nccl-env:NAME (of a sweep, by the values of a variable of NCCL)
    #[arg(long, value_name = "WHAT")]
    by: Option<String>,

    /// Exit code 1 if a case is slower by more than this, 0% to 100%, and not by chance
    #[arg(long, value_name = "PERCENT", value_parser = threshold, allow_hyphen_values = true)]
    fail_on: Option<f64>,

    /// Call numbers without an interval, as other tools' are, the same up to this change, 0% to 100%
    /// [default: 5%]
    #[arg(long, value_name = "PERCENT", value_parser = threshold)]
    margin: Option<f64>,

    /// Compare even if this differs between A and B
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    across: Vec<Trait>,

    /// Show all cases, in their order, instead of only those that changed, worst first
    #[arg(long)]
    all: bool,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = CompareFormat::Table)]
    format: CompareFormat,
}

/// The formats of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompareFormat {
    /// Tables for a person
    Table,
    /// A line for each case
    Csv,
    /// An object for each case
    Json,
    /// Tables of GitHub's Markdown
    Markdown,
}

impl Compare {
    /// Compares and prints; whether nothing got slower than --fail-on allows.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let margin = self.margin.unwrap_or(compare::MARGIN);
        let (sources, comparisons) = match &self.b {
            Some(b) => sides(&self.a, b, &Allowance { across: self.across.clone(), margin })?,
            None => parts(&self.a, self.by.as_deref().unwrap_or_default(), margin)?,
        };
        let page = || show::compare::page(&sources, &comparisons, self.all);
        match self.format {
            CompareFormat::Table => print_page(&page())?,
            CompareFormat::Markdown => print(&page().markdown())?,
            CompareFormat::Csv => print(&show::compare::csv(&sources, &comparisons))?,
            CompareFormat::Json => print(&show::compare::json(&sources, &comparisons))?,
        };
        let Some(most) = self.fail_on else { return Ok(true) };
        let cases = || comparisons.iter().flat_map(|comparison: &Comparison| &comparison.cases);
        if !cases().any(Case::is_compared) {
            return Err(Failure::Start(
                "nothing could be compared, so nothing is known of what got slower: see the \
                 reasons above"
                    .to_owned(),
            ));
        }
        let worse = cases().filter(|case| case.verdict == ChangeVerdict::Slower);
        let worse = worse.filter(|case| case.loss().is_some_and(|loss| loss > most)).count();
        if worse > 0 {
            let all = cases().count();
            say(&format!(
                "error: {worse} of {all} cases slower by more than {:.3} % (--fail-on)",
                100.0 * most
            ));
        }
        Ok(worse == 0)
    }
}

/// What is compared, and the comparisons.
type Compared = (Vec<Source>, Vec<Comparison>);

/// Compares two runs, or two sweeps.
fn sides(a: &Path, b: &Path, allowance: &Allowance) -> Result<Compared, Failure> {
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
    let a = Runs { name: &names[0], sources: 0..count };
    let b = Runs { name: &names[1], sources: count..sources.len() };
    let comparison = compare::sides(&sources, a, b, allowance);
    Ok((sources, vec![comparison]))
}

/// Compares the parts of one run or sweep.
fn parts(path: &Path, by: &str, margin: f64) -> Result<Compared, Failure> {
    let kind: By = by.parse().map_err(Failure::Start)?;
    let sources = sources(path)?;
    let comparisons = compare::parts(&sources, &kind, margin);
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

/// The results at a path: a run, all successful runs of a sweep, or another tool's file.
fn sources(path: &Path) -> Result<Vec<Source>, Failure> {
    let of_run = |folder: &Path| Run::read(folder).and_then(Source::of_run).map_err(Failure::start);
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

/// The results of another tool in a file. Warns of what it cannot read.
fn of_tool(path: &Path) -> Result<Source, Failure> {
    let shown = path.display();
    let unread = |reason: String| Failure::Start(format!("cannot read {shown}: {reason}"));
    let kind = fs::metadata(path).map_err(|err| unread(err.to_string()))?;
    if !kind.is_file() {
        return Err(unread("it is neither a folder nor a file".to_owned()));
    }
    let bytes = fs::read(path).map_err(|err| unread(err.to_string()))?;
    let mut rows = Vec::new();
    let imported =
        import::read(&bytes, &mut |row| rows.push(row)).map_err(|err| unread(err.to_string()))?;
    for remark in imported.remarks() {
        say(&format!("warning: {shown}: {remark}"));
    }
    let nccl = imported.library.as_deref().and_then(|library| library.strip_prefix("NCCL "));
    Ok(Source::of_tool(rows, nccl))
}

/// The folders of a sweep's successful runs, in their order.
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
