//! `g2g compare`: holds the results of two runs, or the parts of one, against each other.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Failure;
use crate::{
    cli::{Across, CompareFormat, CompareOptions},
    record::{self, Run},
    report::compare::{self, By, Comparison, Source, Trait, Verdict},
    stderr::say,
};

/// Compares and prints; whether nothing has become slower than is allowed.
pub(super) fn compare(options: &CompareOptions) -> Result<bool, Failure> {
    let mut sources = sources(&options.a)?;
    let comparisons = match (&options.b, &options.by) {
        (Some(b), _) => {
            let count = sources.len();
            sources.extend(self::sources(b)?);
            let across: Vec<Trait> = options.across.iter().map(|across| kind(*across)).collect();
            let names = [&options.a, b].map(|path| path.display().to_string());
            compare::sides(&sources, count, (&names[0], &names[1]), &across)
        }
        (None, by) => {
            let by: By = by.as_deref().unwrap_or_default().parse().map_err(Failure::Start)?;
            compare::parts(&sources, &by)
        }
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

/// What stands under a path: a run, all runs of a sweep that have ended well, or another tool's file.
fn sources(path: &Path) -> Result<Vec<Source>, Failure> {
    let start = |err: record::Error| Failure::Start(err.to_string());
    let of_run = |folder: &Path| Run::read(folder).and_then(Source::of_run).map_err(start);
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
    let text = fs::read_to_string(path)
        .map_err(|err| Failure::Start(format!("cannot read {shown}: {err}")))?;
    let _ = text;
    Err(Failure::Start(format!("{shown} is no folder of a run")))
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
