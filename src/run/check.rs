//! `g2g check`: what fits into its time, and the verdicts on the hosts.

use std::{collections::HashMap, fs, iter, ops::Range, path::Path};

use serde::Deserialize;

use super::{
    Ending, Failure, Format,
    estimate::Estimate,
    leader::Run,
    sites::Site,
    step::{Part, Step},
    steps,
    worker::Lost,
};
use crate::{
    analysis::{
        compare,
        fitness::{self, Baseline, Check, Fitness, Problem, Reason, Seen, Stage},
    },
    judge::doctor::{Member, Report, Verdict},
    plan::{self, Case, Endpoint, Flow, Place, TransportKind, topology::Host},
    record::{self, Recorder, Row, Status, provenance::Provenance},
    show::{
        self,
        progress::{Weight, readable_wait},
    },
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

/// What `aws ec2 describe-instance-topology` prints, as far as it counts here (EC2 API reference,
/// InstanceTopology).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Placement {
    instances: Vec<Placed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Placed {
    instance_id: String,
    /// The farthest first.
    network_nodes: Option<Vec<String>>,
}

/// Tells each host the nodes of the network above it, that `file` has.
pub(super) fn place(file: &Path, sites: &mut [Site]) -> Result<(), Failure> {
    let name = file.display();
    let fail = |reason: String| Failure::Start(format!("--placement {name}: {reason}"));
    let text = fs::read_to_string(file).map_err(|err| fail(err.to_string()))?;
    let placement: Placement = serde_json::from_str(&text).map_err(|err| {
        fail(format!("not what `aws ec2 describe-instance-topology` prints: {err}"))
    })?;
    for site in sites {
        let host = &site.host.name;
        let untold = "is no instance of EC2 that says which it is: leave the flag out";
        let own = site.instance_id.as_ref().ok_or_else(|| fail(format!("{host} {untold}")))?;
        let placed = placement.instances.iter().find(|placed| placed.instance_id == *own);
        let nodes = placed.and_then(|placed| placed.network_nodes.clone());
        site.host.network_nodes = nodes.filter(|nodes| !nodes.is_empty()).ok_or_else(|| {
            fail(format!("no network nodes of {own} ({host}): ask for all instances of the run"))
        })?;
    }
    Ok(())
}

/// What the run in `folder` measured, if it is of such a machine as `now`.
pub(super) fn baseline(folder: &Path, now: &Provenance) -> Result<Baseline, Failure> {
    let fail = |reason: String| Failure::Start(format!("--baseline: {reason}"));
    let run = record::Run::read(folder).map_err(|err| fail(err.to_string()))?;
    let kind = |of: &Provenance| {
        let simulated = if of.simulated { "simulated " } else { "" };
        simulated.to_owned() + &compare::machine(of)
    };
    let (then, now) = (kind(&run.provenance), kind(now));
    if then != now {
        return Err(fail(format!(
            "{} is of another machine ({then}) than this one ({now}): name a run of such a machine",
            folder.display()
        )));
    }
    Ok(Baseline::of(&run.rows))
}

/// Where the rows of `step` belong.
pub(super) fn stage(step: &Step) -> Option<Stage> {
    match step.is_together() {
        true => Some(Stage::Together),
        false => Stage::of(step.cases().next()?.transport),
    }
}

/// What is said when a check goes on without a host.
pub(super) fn without(host: &Host, lost: &Lost) -> String {
    format!("warning: {}: the check goes on without {}", lost.reason, host.name)
}

/// The problem of the host whose rank was lost in `stage`, if it is known which.
pub(super) fn lost_rank(lost: &Lost, stage: Stage) -> Option<Problem> {
    let rank = lost.rank?;
    let said = format!("rank {} does not answer", rank.0);
    Some(Problem { stage, ranks: vec![rank.0], said, shown: lost.reason.clone() })
}

/// Keeps the verdicts beside the rows.
pub(super) fn keep(check: &Check, folder: &Path) -> Result<(), Failure> {
    written(&folder.join(show::CHECK), show::json(check)).map_err(Failure::Middle)
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

    /// The steps of this run, of which `rows` are there. When all that is planned is measured, the
    /// rows of a check that make a host other than fit come again, each alone, as far as its time
    /// allows; and then what narrows down which hosts are slow together.
    pub(super) fn all_steps(&self, rows: &[Row]) -> Vec<Step> {
        let again = self.again(rows);
        let second = again.iter().map(|(_, step)| step);
        let mut steps: Vec<Step> = self.steps.iter().chain(second).cloned().collect();
        steps.extend(self.narrower(rows, &again, &steps));
        steps
    }

    /// Whether the row behind `before` of `rows` is measured a second time.
    pub(super) fn are_second(&self, rows: &[Row], before: usize) -> bool {
        let planned = self.planned_rows();
        before >= planned && before < planned + self.again(rows).len()
    }

    /// If the collective of all hosts is slow and nothing else says why: the same of each half of
    /// them at the same time, of each half of a slow half, and so on, as far as `rows` tell. `steps`
    /// come before.
    fn narrower(&self, rows: &[Row], again: &[(usize, Step)], steps: &[Step]) -> Vec<Step> {
        let planned = self.planned_rows();
        let mut next = planned + again.len();
        let of_all = self.steps.iter().position(Step::is_together);
        let Some(of_all) = of_all.filter(|_| rows.len() >= next) else { return Vec::new() };
        let place: usize = self.steps[..of_all].iter().map(Step::rows).sum();
        let second = again.iter().position(|(of, _)| *of == place);
        let row = &rows[second.map_or(place, |second| planned + second)];
        if !fitness::is_slow(row) {
            return Vec::new();
        }
        let seen = self.seen_of(rows, again, steps);
        let told = fitness::judge(&seen, &self.baseline, &self.problems, &self.hosts);
        let is_told =
            |reason: &Reason| reason.stage != Stage::Together && reason.verdict <= Fitness::Suspect;
        if told.iter().flat_map(|host| &host.reasons).any(is_told) {
            return Vec::new();
        }
        let mut slow: Vec<Range<usize>> = iter::once(0..self.hosts.len()).collect();
        let mut steps = Vec::new();
        loop {
            let halves = plan::halves(&slow);
            let part = |half: &Range<usize>| {
                steps::together(self.request, &self.hosts[half.clone()], row.size_bytes?).ok()?
            };
            let parts: Option<Vec<Part>> = halves.iter().map(part).collect();
            let Some(parts) = parts.filter(|parts| !parts.is_empty()) else { return steps };
            steps.push(Step::Apart(parts));
            let Some(measured) = rows.get(next..next + halves.len()) else { return steps };
            next += halves.len();
            let told = halves.into_iter().zip(measured);
            slow = told.filter(|(_, row)| fitness::is_slow(row)).map(|(half, _)| half).collect();
        }
    }

    /// What is measured again, with the place of its first row.
    fn again(&self, rows: &[Row]) -> Vec<(usize, Step)> {
        let Some(rows) = rows.get(..self.planned_rows()).filter(|_| self.options.asked.is_check)
        else {
            return Vec::new();
        };
        let seen = self.seen(rows, &self.steps);
        let doubtful = fitness::doubtful(&seen, &self.baseline, &self.hosts);
        let steps = self.steps.iter().flat_map(Step::one_by_one).enumerate();
        let again: Vec<_> =
            steps.filter(|(place, _)| doubtful.contains(&rows[*place].case)).collect();
        let planned = self.estimate(&self.steps).all;
        let mut left_s = self.options.check.budget.saturating_sub(planned).as_secs_f64();
        let estimate =
            self.estimate(&again.iter().map(|(_, step)| step.clone()).collect::<Vec<_>>());
        let fits = |weight: &&Option<Weight>| {
            left_s -= weight.map_or(0.0, |weight| weight.seconds);
            left_s >= 0.0
        };
        let number = estimate.weights.iter().take_while(fits).count();
        again.into_iter().take(number).collect()
    }

    /// The number of rows that are planned before any is measured.
    pub(super) fn planned_rows(&self) -> usize {
        self.steps.iter().map(Step::rows).sum()
    }

    /// The verdicts on the hosts.
    pub(super) fn check(&self, recorder: &Recorder) -> Check {
        let measured = recorder.rows();
        let steps = self.all_steps(measured);
        let planned = steps.iter().flat_map(Step::planned).skip(measured.len());
        let missing = planned.map(|row| match row.reason.is_empty() {
            true => Row { reason: "the check ended early".to_owned(), ..row },
            false => row,
        });
        let rows: Vec<Row> = measured.iter().cloned().chain(missing).collect();
        let mut seen = self.seen_of(&rows, &self.again(measured), &steps);
        // Later rows are of a burn-in, which has compared their rates with the first ones.
        let first: HashMap<String, Seen<'_>> =
            seen.iter().map(|seen| (seen.row.identity(), *seen)).collect();
        let later = measured.iter().skip(seen.len());
        seen.extend(later.filter_map(|row| {
            let first = first.get(&row.identity())?;
            Some(Seen { row, is_replaced: true, ..*first })
        }));
        let named = self.options.asked.gpus.as_ref();
        let mut hosts: Vec<Host> = self.hosts.iter().chain(&self.lost).cloned().collect();
        for host in &mut hosts {
            host.topology.gpus.retain(|node| named.is_none_or(|gpus| gpus.contains(&node.gpu)));
        }
        let hosts = fitness::judge(&seen, &self.baseline, &self.problems, &hosts);
        Check { simulated: self.options.simulate.is_some(), hosts }
    }

    /// What `rows` of `steps` are to a check, some of which were measured `again`.
    fn seen_of<'a>(
        &self,
        rows: &'a [Row],
        again: &[(usize, Step)],
        steps: &[Step],
    ) -> Vec<Seen<'a>> {
        let mut seen = self.seen(rows, steps);
        let second = rows.iter().skip(self.planned_rows());
        for ((place, _), row) in again.iter().zip(second) {
            seen[*place].is_replaced = row.status == Status::Ok;
        }
        seen
    }

    /// What `rows` of `steps` are to a check.
    fn seen<'a>(&self, rows: &'a [Row], steps: &[Step]) -> Vec<Seen<'a>> {
        let is_optional = |case: &Case| {
            self.judge.skips(case, &self.hosts)
                || self.crosses_nodes(case)
                || case.members().iter().any(|rank| self.left_out.contains(rank))
        };
        let owned = steps.iter().flat_map(Step::owned);
        let seen = rows.iter().zip(owned).map(|(row, (host, case))| Seen {
            row,
            host,
            is_optional: case.is_some_and(is_optional),
            is_replaced: false,
        });
        seen.collect()
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

    /// Writes the list of unfit hosts; how the check ends. Says which host is not fit where standard
    /// output is for programs.
    pub(super) fn conclude_check(&self, check: &Check) -> Result<Ending, Failure> {
        let write = |path: &Path, text| written(path, text).map_err(Failure::Middle);
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
            Fitness::Suspect | Fitness::Unknown => Ending::Undecided,
            Fitness::Fit => Ending::Well,
        })
    }
}
