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

/// Deviations from the median of its siblings that a row does not have by chance: among a hundred
/// rows of healthy parts that happens once in ten thousand runs.
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

/// A row of a check.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The row.
    pub row: &'a Row,
    /// Whose it is, by its place among the hosts; `None`: of a transport that none of them has.
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
    // Nothing without GPUs is unfit for GPUs.
    let has_gpus = !host.topology.gpus.is_empty();
    let here = problems.iter().filter(is_here).filter(|_| has_gpus);
    here.map(|problem| unfit(problem.stage, &problem.said, &problem.shown)).collect()
}

/// What a stage's own rows say; `low` are slower than their siblings.
fn of_stage(stage: Stage, rows: &[&Seen<'_>], low: &Siblings) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |verdict: Fitness, what: &str, of: &dyn Fn(&Row) -> Option<String>| {
        let found: Vec<(&Row, String)> =
            rows.iter().filter_map(|seen| Some((seen.row, of(seen.row)?))).collect();
        let worst = found.iter().min_by(|(a, _), (b, _)| share(a).total_cmp(&share(b)));
        let Some((row, shown)) = worst else { return };
        let more = match found.len() {
            1 => String::new(),
            number => format!(" ({} so)", count(number, "row")),
        };
        let said = format!("{} {what}{more}", row.title(&Naming::default()));
        reasons.push(Reason { verdict, stage, said, shown: shown.clone() });
    };
    let ok = |row: &Row| row.status == Status::Ok;
    add(Fitness::Unfit, "is corrupt", &|row| {
        (row.status == Status::Corrupt).then(|| row.reason.clone())
    });
    add(Fitness::Unfit, "failed", &|row| {
        (row.status == Status::Failed).then(|| row.reason.clone())
    });
    add(Fitness::Unfit, "took another path than it should", &|row| {
        let is_other = row.path_verdict == Some(PathVerdict::Contradicted);
        is_other.then(|| row.path_reason.clone().unwrap_or_default())
    });
    add(Fitness::Unfit, "is below what is expected", &|row| {
        let reason = row.verdict_reason.clone().unwrap_or_default();
        (row.verdict == Some(RowVerdict::Below)).then_some(reason)
    });
    add(Fitness::Unknown, "is above what can be", &|row| {
        let reason = row.verdict_reason.clone().unwrap_or_default();
        (row.verdict == Some(RowVerdict::Above)).then_some(reason)
    });
    add(Fitness::Unfit, "is slower than its siblings", &|row| low.slow.get(&row.case).cloned());
    for flag in HEALTH {
        add(Fitness::Unfit, &format!("is flagged {flag}"), &|row| {
            row.flags.split(' ').any(|own| own == flag).then(String::new)
        });
    }
    let optional: BTreeSet<usize> =
        rows.iter().filter(|seen| seen.is_optional).map(|seen| seen.row.case).collect();
    add(Fitness::Unknown, "has nothing to be judged by", &|row| {
        let is_judged = row.verdict.is_some_and(|verdict| verdict != RowVerdict::Unknown)
            || low.judged.contains(&row.case)
            || optional.contains(&row.case);
        let reason = row.verdict_reason.clone().unwrap_or_default();
        (ok(row) && !is_judged).then_some(reason)
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
        let own = rows.iter().filter(|seen| seen.row.transport == transport);
        let own: Vec<Row> = own.map(|seen| seen.row.clone()).collect();
        let outliers = attribution::find(&own, BAR, &|row| attribution::way(row, hosts));
        for told in attribution::told(&outliers) {
            let is_on = |(_, host): &(usize, &Host)| {
                hosts.len() == 1 || told.parts.iter().any(|part| part.ends_with(&host.name))
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
