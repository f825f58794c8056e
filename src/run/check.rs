//! `g2g check`: what fits into its time, and the verdicts on the hosts.

use std::{collections::HashMap, fs, path::Path};

use super::{
    Ending, Failure, Format,
    estimate::Estimate,
    leader::Run,
    steps::{Rest, Step},
    worker::Lost,
};
use crate::{
    analysis::fitness::{self, Check, Fitness, Problem, Seen, Stage},
    judge::doctor::{Member, Report, Verdict},
    plan::{Case, Endpoint, Flow, Place, TransportKind},
    record::{Recorder, Row},
    show::{self, progress::readable_wait},
    stderr::say,
    units::count,
};

/// The problems among what the doctor has found.
pub(super) fn problems(examined: &[Member]) -> Vec<Problem> {
    let found = Report::of(examined).findings.into_iter();
    let problems = found.filter(|located| located.finding.verdict == Verdict::Problem);
    let told = problems.map(|located| Problem {
        stage: Stage::Doctor,
        ranks: located.ranks,
        said: format!("{}: {}", located.finding.check, located.finding.seen),
        shown: located.finding.means.or(located.finding.remedy).unwrap_or_default(),
    });
    told.collect()
}

/// As many of `steps` of each transport as fit into `budget_s`, one at least, spread over all of
/// them; for the others a step that says how many rows they are.
fn within(steps: Vec<Step>, estimate: &Estimate, budget_s: f64) -> Vec<Step> {
    let rows_s: f64 = estimate.weights.iter().flatten().map(|weight| weight.seconds).sum();
    let once_s = estimate.all.as_secs_f64() - rows_s;
    let share = ((budget_s - once_s) / rows_s).max(0.0);
    if share >= 1.0 || rows_s == 0.0 {
        return steps;
    }
    let transport = |step: &Step| Some(step.cases().next()?.transport);
    let mut all: HashMap<TransportKind, usize> = HashMap::new();
    for of in steps.iter().filter_map(transport) {
        *all.entry(of).or_default() += 1;
    }
    let mut met: HashMap<TransportKind, usize> = HashMap::new();
    let mut left_out: Vec<(TransportKind, usize)> = Vec::new();
    let mut kept: Vec<Step> = Vec::new();
    for step in steps {
        let Some(of) = transport(&step) else {
            kept.push(step);
            continue;
        };
        let place = met.entry(of).or_default();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let wanted = ((all[&of] as f64 * share) as usize).max(1);
        let is_kept = (*place + 1) * wanted / all[&of] > *place * wanted / all[&of];
        *place += 1;
        if is_kept {
            kept.push(step);
        } else {
            match left_out.iter_mut().find(|(other, _)| *other == of) {
                Some((_, rows)) => *rows += step.rows(),
                None => left_out.push((of, step.rows())),
            }
        }
    }
    kept.extend(left_out.into_iter().map(|(transport, rows)| Step::Absent {
        transport,
        host: None,
        reason: format!(
            "--budget {} leaves out {} of it: give more",
            readable_wait(budget_s),
            count(rows, "row")
        ),
    }));
    kept
}

fn written(path: &Path, text: String) -> Result<(), String> {
    fs::write(path, text).map_err(|err| format!("cannot write {}: {err}", path.display()))
}

impl Run<'_> {
    /// Begins the list of unfit hosts, so that it can be written when all is measured.
    pub(super) fn begin_list(&self) -> Result<(), Failure> {
        let file = self.options.check.exclude.as_deref();
        let begun = file.map(|file| written(file, String::new()));
        begun.transpose().map(drop).map_err(|err| Failure::Start(format!("--exclude: {err}")))
    }

    /// Does without steps that do not fit into the time of a check.
    pub(super) fn keep_budget(&mut self) {
        let estimate = self.estimate(&self.steps);
        let steps = std::mem::take(&mut self.steps);
        self.steps = within(steps, &estimate, self.options.check.budget.as_secs_f64());
    }

    /// The problem of the host whose rank was lost after `rows` rows, if it is known which.
    pub(super) fn lost_rank(&self, lost: Lost, rows: usize) -> Option<Problem> {
        let rank = lost.rank?;
        let case = Rest::of(&self.steps, rows).steps.first()?.cases().next()?;
        let stage = Stage::of(case.transport).unwrap_or(Stage::Doctor);
        let said = format!("rank {} does not answer", rank.0);
        Some(Problem { stage, ranks: vec![rank.0], said, shown: lost.reason })
    }

    /// The verdicts on the hosts.
    pub(super) fn check(&self, recorder: &Recorder) -> Check {
        let measured = recorder.rows();
        let planned = self.steps.iter().flat_map(Step::planned).skip(measured.len());
        let missing = planned.map(|row| match row.reason.is_empty() {
            true => Row { reason: "the check ended early".to_owned(), ..row },
            false => row,
        });
        let missing: Vec<Row> = missing.collect();
        let owned = self.steps.iter().flat_map(Step::owned);
        let seen = measured.iter().chain(&missing).zip(owned).map(|(row, (host, case))| Seen {
            row,
            host,
            is_optional: case.is_some_and(|case| {
                self.judge.skips(case, &self.hosts) || self.crosses_nodes(case)
            }),
        });
        let named = self.options.asked.gpus.as_ref();
        let mut hosts = self.hosts.clone();
        for host in &mut hosts {
            host.topology.gpus.retain(|node| named.is_none_or(|gpus| gpus.contains(&node.gpu)));
        }
        let hosts = fitness::judge(&seen.collect::<Vec<_>>(), &self.problems, &hosts);
        Check { simulated: self.options.simulate.is_some(), hosts }
    }

    /// Whether `case` copies between a GPU and host memory of another NUMA node.
    fn crosses_nodes(&self, case: &Case) -> bool {
        let is_far = |pinned: &Endpoint, other: &Endpoint| {
            let host = self.hosts.iter().find(|host| host.ranks.contains(&other.rank));
            let gpus = host.map_or(&[][..], |host| &host.topology.gpus);
            let gpu = gpus.iter().find(|node| Some(node.gpu) == other.gpu());
            let near = gpu.and_then(|node| node.numa_node);
            matches!(pinned.place, Place::Pinned { numa_node }
                if near.is_some_and(|near| near != numa_node))
        };
        let either =
            |flow: &Flow| is_far(&flow.source, &flow.target) || is_far(&flow.target, &flow.source);
        case.transport == TransportKind::Local && case.flows.iter().any(either)
    }

    /// Writes the verdicts beside the rows, and the list of unfit hosts; how the check ends. Says
    /// which host is not fit where standard output is for programs.
    pub(super) fn conclude_check(
        &self,
        recorder: &Recorder,
        check: &Check,
    ) -> Result<Ending, Failure> {
        let path = recorder.folder().join("check.json");
        let write = |path: &Path, text| written(path, text).map_err(Failure::Middle);
        write(&path, show::json(check))?;
        if let Some(file) = &self.options.check.exclude {
            let unfit = check.hosts.iter().filter(|host| host.verdict == Fitness::Unfit);
            write(file, unfit.map(|host| format!("{}\n", host.host)).collect())?;
        }
        if !matches!(self.options.format, Format::Table | Format::Markdown) {
            show::unfit_lines(check).iter().for_each(|line| say(line));
        }
        let worst = check.hosts.first().map_or(Fitness::Unknown, |host| host.verdict);
        Ok(match worst {
            Fitness::Unfit => Ending::Badly,
            Fitness::Unknown => Ending::Undecided,
            Fitness::Fit => Ending::Well,
        })
    }
}
