//! Whether each host is fit: what its examination, its rows and its siblings say.
//!
//! `docs/check.md` has the rules. All here is a function of rows and of what the doctor has found.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics};

use super::attribution::{self, Bar};
use crate::{
    judge::expected::Verdict as RowVerdict,
    nccl_log::Verdict as PathVerdict,
    plan::{TransportKind, topology::Host},
    record::{Naming, Row, Status},
    units::count,
};

/// Rows that are alike, so that each is judged by the others.
const SIBLINGS_MIN: usize = 3;

/// What makes a part unfit: a host in ten thousand may be called so by chance, and parts that are
/// slower than others by no more than 3 % are taken for alike.
const BAR: Bar = Bar { chance: 1e-4, slower: 0.03 };

/// Deviations from the median of its siblings that a row does not have by chance: of a normal
/// distribution 3 in 10 million are so far below.
const DEVIATIONS: f64 = 5.0;

/// From the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATIONS_PER_MEDIAN: f64 = 1.4826;

/// The smallest relative standard deviation that is taken for real.
const DEVIATION_MIN: f64 = 0.005;

/// Flags of a row that concern the machine and not the measurement.
pub const HEALTH: [&str; 6] =
    ["throttled", "new_ecc_errors", "new_nvlink_errors", "new_pcie_replays", "xid", "gpu_lost"];

/// Whether a host is fit; the worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Fitness {
    /// Something is wrong with it.
    Unfit,
    /// Nothing is known to be wrong, and not everything was measured and judged.
    Unknown,
    /// All that applies was measured, verified and judged, and nothing is wrong.
    Fit,
}

/// A part of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Stage {
    /// The doctor's examination, which measures nothing.
    Doctor,
    /// Each GPU: its memory, and the way between it and host memory.
    Local,
    /// Between GPUs.
    P2p,
    /// NCCL's collectives among the GPUs of the host.
    Nccl,
}

impl Stage {
    /// The stages that measure, with what they measure.
    const MEASURED: [(Self, TransportKind); 3] = [
        (Self::Local, TransportKind::Local),
        (Self::P2p, TransportKind::P2p),
        (Self::Nccl, TransportKind::Nccl),
    ];

    /// The stage that measures by `transport`.
    pub fn of(transport: TransportKind) -> Option<Self> {
        let mut all = Self::MEASURED.into_iter();
        all.find_map(|(stage, of)| (of == transport).then_some(stage))
    }

    /// Whether a host with so many GPUs has this stage.
    const fn applies(self, gpus: usize) -> bool {
        match self {
            Self::Doctor => true,
            Self::Local => gpus > 0,
            Self::P2p | Self::Nccl => gpus > 1,
        }
    }
}

/// Why a host is not fit, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Reason {
    /// What it makes of the host.
    pub verdict: Fitness,
    /// Where it was found.
    pub stage: Stage,
    /// What is wrong, with the part's name: a sentence without its full stop.
    pub said: String,
    /// What shows it.
    pub shown: String,
}

/// What is known of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFitness {
    /// Its name.
    pub host: String,
    /// The worst of its reasons; fit without any.
    pub verdict: Fitness,
    /// Why, the worst first.
    pub reasons: Vec<Reason>,
}

/// What a check has found.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Whether the hosts are those of a simulated machine.
    pub simulated: bool,
    /// The hosts, the worst first.
    pub hosts: Vec<HostFitness>,
}

/// A row of a check.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The row.
    pub row: &'a Row,
    /// Whose it is, by its place among the hosts; `None`: of all.
    pub host: Option<usize>,
    /// Whether a host is fit without it: such a machine cannot do it, or nobody says how fast it is.
    pub is_optional: bool,
}

/// What is wrong besides what rows say: what the doctor has found, or a rank that was lost.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Where it was found.
    pub stage: Stage,
    /// The ranks that have it; none: all.
    pub ranks: Vec<u32>,
    /// What was seen.
    pub said: String,
    /// What that means.
    pub shown: String,
}

/// The verdicts on `hosts`, the worst first.
pub fn judge(rows: &[Seen<'_>], problems: &[Problem], hosts: &[Host]) -> Vec<HostFitness> {
    let low = low_rows(rows, hosts);
    let told = slow_parts(rows, hosts);
    let mut all: Vec<HostFitness> = (0..hosts.len())
        .map(|number| {
            let mut reasons = of_problems(problems, &hosts[number]);
            reasons.extend(told.get(&number).into_iter().flatten().cloned());
            let gpus = hosts[number].topology.gpus.len();
            if gpus == 0 {
                reasons.push(unknown(Stage::Local, "no GPU is here to be judged", ""));
            }
            for (stage, transport) in Stage::MEASURED {
                if stage.applies(gpus) {
                    let is_own = |seen: &&Seen<'_>| {
                        seen.row.transport == transport
                            && (seen.host == Some(number) || seen.host.is_none())
                    };
                    let own: Vec<&Seen<'_>> = rows.iter().filter(is_own).collect();
                    reasons.extend(of_stage(stage, &own, &low));
                }
            }
            reasons.sort();
            let verdict = reasons.first().map_or(Fitness::Fit, |worst| worst.verdict);
            HostFitness { host: hosts[number].name.clone(), verdict, reasons }
        })
        .collect();
    all.sort_by_key(|host| host.verdict);
    all
}

fn unfit(stage: Stage, said: impl Into<String>, shown: impl Into<String>) -> Reason {
    Reason { verdict: Fitness::Unfit, stage, said: said.into(), shown: shown.into() }
}

fn unknown(stage: Stage, said: impl Into<String>, shown: impl Into<String>) -> Reason {
    Reason { verdict: Fitness::Unknown, stage, said: said.into(), shown: shown.into() }
}

fn of_problems(problems: &[Problem], host: &Host) -> Vec<Reason> {
    let is_here = |problem: &&Problem| {
        problem.ranks.is_empty() || host.ranks.iter().any(|rank| problem.ranks.contains(&rank.0))
    };
    problems
        .iter()
        .filter(is_here)
        .map(|problem| unfit(problem.stage, &problem.said, &problem.shown))
        .collect()
}

/// What a stage's own rows say; `low` are slower than their siblings.
fn of_stage(stage: Stage, rows: &[&Seen<'_>], low: &Siblings) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |verdict: Fitness, what: &str, of: &dyn Fn(&Seen<'_>) -> Option<String>| {
        let found: Vec<(&Row, String)> =
            rows.iter().filter_map(|seen| Some((seen.row, of(seen)?))).collect();
        let worst = found.iter().min_by(|(a, _), (b, _)| share(a).total_cmp(&share(b)));
        let Some((row, shown)) = worst else { return };
        let more = match found.len() {
            1 => String::new(),
            number => format!(" ({} so)", count(number, "row")),
        };
        let said = format!("{} {what}{more}", row.title(&Naming::default()));
        reasons.push(Reason { verdict, stage, said, shown: shown.clone() });
    };
    let with = |status: Status| {
        move |seen: &Seen<'_>| (seen.row.status == status).then(|| seen.row.reason.clone())
    };
    let judged = |verdict: RowVerdict| {
        let reason = |row: &Row| row.verdict_reason.clone().unwrap_or_default();
        move |seen: &Seen<'_>| (seen.row.verdict == Some(verdict)).then(|| reason(seen.row))
    };
    add(Fitness::Unfit, "is corrupt", &with(Status::Corrupt));
    add(Fitness::Unfit, "failed", &with(Status::Failed));
    add(Fitness::Unfit, "took another path than it should", &|Seen { row, .. }| {
        let is_other = row.path_verdict == Some(PathVerdict::Contradicted);
        is_other.then(|| row.path_reason.clone().unwrap_or_default())
    });
    add(Fitness::Unfit, "is below what is expected", &judged(RowVerdict::Below));
    add(Fitness::Unknown, "is above what can be", &judged(RowVerdict::Above));
    add(Fitness::Unfit, "is slower than its siblings", &|Seen { row, .. }| {
        low.slow.get(&row.case).cloned()
    });
    for flag in HEALTH {
        add(Fitness::Unfit, &format!("is flagged {flag}"), &|Seen { row, .. }| {
            row.flags.split(' ').any(|own| own == flag).then(String::new)
        });
    }
    add(Fitness::Unknown, "has nothing to be judged by", &|Seen { row, is_optional, .. }| {
        let is_judged = row.verdict.is_some_and(|verdict| verdict != RowVerdict::Unknown)
            || low.judged.contains(&row.case)
            || *is_optional;
        let reason = || row.verdict_reason.clone().unwrap_or_default();
        (row.status == Status::Ok && !is_judged).then(reason)
    });
    let skipped = rows.iter().filter(|seen| seen.row.status == Status::Skipped);
    let skipped: BTreeSet<&str> =
        skipped.filter(|seen| !seen.is_optional).map(|seen| &*seen.row.reason).collect();
    reasons.extend(skipped.iter().map(|reason| unknown(stage, "not measured", *reason)));
    if rows.is_empty() {
        reasons.push(unknown(stage, "not measured", "nothing was planned"));
    }
    reasons
}

/// The share of what is expected of a row, the least of which is told first.
fn share(row: &Row) -> f64 {
    row.expected_fraction.unwrap_or(f64::INFINITY)
}

/// What the rows of a check are among those that are alike.
#[derive(Default)]
struct Siblings {
    /// Those that are judged by others, by the numbers of their rows.
    judged: BTreeSet<usize>,
    /// Those that are slower than the others, and what shows it.
    slow: BTreeMap<usize, String>,
}

/// The rate that is judged.
fn rate(row: &Row) -> Option<f64> {
    row.bandwidth_gb_s_bus.or(row.bandwidth_gb_s)
}

/// Compares rows that are alike: of one kind, size and kind of path.
fn low_rows(rows: &[Seen<'_>], hosts: &[Host]) -> Siblings {
    let mut groups: BTreeMap<String, Vec<(&Row, f64)>> = BTreeMap::new();
    for Seen { row, .. } in rows.iter().filter(|seen| seen.row.status == Status::Ok) {
        let Some(rate) = rate(row) else { continue };
        let size = row.size_bytes.map_or_else(String::new, |size| size.to_string());
        let way = attribution::way(row, hosts);
        let group = format!("{}, {size}, {way}", row.kind(&Naming::default()));
        groups.entry(group).or_default().push((row, rate));
    }
    let mut siblings = Siblings::default();
    for group in groups.into_values().filter(|group| group.len() >= SIBLINGS_MIN) {
        siblings.judged.extend(group.iter().map(|(row, _)| row.case));
        let rates: Vec<f64> = group.iter().map(|(_, rate)| *rate).collect();
        let usual = Data::new(rates.clone()).median();
        let distances: Vec<f64> = rates.iter().map(|rate| (rate / usual - 1.0).abs()).collect();
        let deviation = (DEVIATIONS_PER_MEDIAN * Data::new(distances).median()).max(DEVIATION_MIN);
        let least = BAR.slower.max(DEVIATIONS * deviation);
        for (row, rate) in group.iter().filter(|(_, rate)| 1.0 - rate / usual > least) {
            let shown = format!(
                "{rate:.3} GB/s, and {usual:.3} GB/s at the median of {}",
                count(rates.len(), "row")
            );
            siblings.slow.insert(row.case, shown);
        }
    }
    siblings
}

/// The parts that are slow in all they do, by the host that they are on.
fn slow_parts(rows: &[Seen<'_>], hosts: &[Host]) -> BTreeMap<usize, Vec<Reason>> {
    let mut all: BTreeMap<usize, Vec<Reason>> = BTreeMap::new();
    for (stage, transport) in Stage::MEASURED {
        let own = || rows.iter().filter(|seen| seen.row.transport == transport);
        // Names have their host where there are rows of several.
        let measured = own().filter(|seen| seen.row.status == Status::Ok);
        let measured: BTreeSet<usize> = measured.filter_map(|seen| seen.host).collect();
        let own: Vec<Row> = own().map(|seen| seen.row.clone()).collect();
        let outliers = attribution::find(&own, BAR, &|row| attribution::way(row, hosts));
        for told in attribution::told(&outliers) {
            let is_on = |(number, host): &(usize, &Host)| {
                let name = format!(" {}", host.name);
                measured == BTreeSet::from([*number])
                    || told.parts.iter().any(|part| part.ends_with(&name))
            };
            for (number, _) in hosts.iter().enumerate().filter(is_on) {
                let reason = unfit(stage, &told.said, &told.shown);
                all.entry(number).or_default().push(reason);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
