//! Whether each host is fit: what its examination, its rows and its siblings say.
//!
//! `docs/check.md` has the rules. All here is a function of rows and of what the doctor has found.

mod baseline;
mod between;
mod together;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    f64::consts::SQRT_2,
};

use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics};

pub use self::{baseline::Baseline, together::is_slow};
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

/// From the median absolute deviation of the upper half of a normal distribution to the standard
/// deviation of the whole: half of it is within 0.399 of 0.674.
const DEVIATIONS_PER_MEDIAN: f64 = 2.5;

/// Two-sided 95 % quantile of the standard normal distribution.
const NORMAL_95: f64 = 1.96;

/// The smallest relative standard deviation that is taken for real.
const DEVIATION_MIN: f64 = 0.005;

/// Flags of a row that make its host unfit: they concern the machine and not the measurement.
pub const HEALTH: [&str; 8] = [
    "throttled",
    "new_ecc_errors",
    "new_nvlink_errors",
    "new_pcie_replays",
    "xid",
    "gpu_lost",
    "nccl_diagnosis",
    "drifted",
];

/// Whether a host is fit; the worst comes first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Fitness {
    /// Something is wrong with it.
    Unfit,
    /// Something is wrong with it, or with another host, or with what lies between them.
    Suspect,
    /// Nothing is known to be wrong, and not everything was measured and judged.
    Unknown,
    /// All that applies was measured, verified and judged, and nothing is wrong.
    Fit,
}

/// A part of a check.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
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
    /// Pairs of hosts.
    Pairs,
    /// NCCL's all-reduce among all hosts.
    Together,
}

impl Stage {
    /// Those of which each host has rows of its own.
    const MEASURED: [Self; 4] = [Self::Local, Self::P2p, Self::Nccl, Self::Pairs];

    /// Where rows of `transport` belong; none: no part of a check.
    pub const fn of(transport: TransportKind) -> Option<Self> {
        match transport {
            TransportKind::Local => Some(Self::Local),
            TransportKind::P2p => Some(Self::P2p),
            TransportKind::Nccl => Some(Self::Nccl),
            TransportKind::Rdma => Some(Self::Pairs),
            TransportKind::Shm => None,
        }
    }

    /// Where a row belongs: one of NCCL between hosts names the first and the last of them.
    fn of_row(row: &Row) -> Option<Self> {
        let is_of_group =
            row.transport == TransportKind::Nccl && row.source_host != row.target_host;
        if is_of_group { Some(Self::Together) } else { Self::of(row.transport) }
    }

    /// Whether one of so many hosts, with so many GPUs, has this stage.
    const fn applies(self, gpus: usize, hosts: usize) -> bool {
        match self {
            Self::Doctor => true,
            Self::Local => gpus > 0,
            Self::P2p | Self::Nccl => gpus > 1,
            Self::Pairs | Self::Together => gpus > 0 && hosts > 1,
        }
    }
}

/// On which host each rank is.
struct Places {
    count: usize,
    of_rank: HashMap<u32, usize>,
}

impl Places {
    fn of(hosts: &[Host]) -> Self {
        let ranks = |(number, host): (usize, &'_ Host)| {
            host.ranks.iter().map(|rank| (rank.0, number)).collect::<Vec<_>>()
        };
        let of_rank = hosts.iter().enumerate().flat_map(ranks).collect();
        Self { count: hosts.len(), of_rank }
    }

    /// The hosts of a row's source and target.
    fn of_ends(&self, row: &Row) -> Option<[usize; 2]> {
        let host = |rank: Option<u32>| self.of_rank.get(&rank?).copied();
        Some([host(row.source_rank)?, host(row.target_rank)?])
    }

    /// Whose row it is; none: of all.
    fn of_row(&self, seen: &Seen<'_>) -> BTreeSet<usize> {
        match (seen.host, self.of_ends(seen.row)) {
            (Some(host), _) => BTreeSet::from([host]),
            (None, Some(ends)) => BTreeSet::from(ends),
            (None, None) => (0..self.count).collect(),
        }
    }
}

/// Why a host is not fit, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFitness {
    /// Its name.
    pub host: String,
    /// The worst of its reasons; fit without any.
    pub verdict: Fitness,
    /// Why, the worst first.
    pub reasons: Vec<Reason>,
}

impl HostFitness {
    fn of(host: &Host, mut reasons: Vec<Reason>) -> Self {
        reasons.sort();
        let verdict = reasons.first().map_or(Fitness::Fit, |worst| worst.verdict);
        Self { host: host.name.clone(), verdict, reasons }
    }
}

/// What a check has found.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Whether it was measured again, so that its rate says nothing.
    pub is_replaced: bool,
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

/// The numbers of the rows whose rate would make a host unfit or unknown: one that was slow by chance
/// is not so again.
pub fn doubtful(rows: &[Seen<'_>], baseline: &Baseline, hosts: &[Host]) -> BTreeSet<usize> {
    let is_out = |verdict| [RowVerdict::Below, RowVerdict::Above].contains(&verdict);
    let low = low_rows(rows, baseline, hosts);
    let mut doubtful: BTreeSet<usize> = low.slow.into_keys().chain(low.fast.into_keys()).collect();
    let is_out = |seen: &&Seen<'_>| !seen.is_replaced && seen.row.verdict.is_some_and(is_out);
    let out = rows.iter().filter(is_out);
    doubtful.extend(out.map(|seen| seen.row.case));
    doubtful
}

/// The verdicts on `hosts`, the worst first.
pub fn judge(
    rows: &[Seen<'_>],
    baseline: &Baseline,
    problems: &[Problem],
    hosts: &[Host],
) -> Vec<HostFitness> {
    let places = Places::of(hosts);
    let low = low_rows(rows, baseline, hosts);
    let mut own: HashMap<(usize, Stage), Vec<&Seen<'_>>> = HashMap::new();
    for seen in rows {
        let Some(stage) = Stage::of_row(seen.row) else { continue };
        for host in places.of_row(seen) {
            own.entry((host, stage)).or_default().push(seen);
        }
    }
    let mut told = slow_parts(rows, hosts);
    for (host, reasons) in between::reasons(rows, &low, &places, hosts) {
        told.entry(host).or_default().extend(reasons);
    }
    let mut all: Vec<HostFitness> = (0..hosts.len())
        .map(|number| {
            let mut reasons = of_problems(problems, &hosts[number]);
            reasons.extend(told.remove(&number).unwrap_or_default());
            let gpus = hosts[number].topology.gpus.len();
            if gpus == 0 && reasons.is_empty() {
                reasons.push(unknown(Stage::Local, "no GPU is here to be judged", ""));
            }
            for stage in Stage::MEASURED {
                if stage.applies(gpus, hosts.len()) {
                    let own = own.get(&(number, stage)).map_or(&[][..], Vec::as_slice);
                    reasons.extend(of_stage(stage, own, &low));
                }
            }
            HostFitness::of(&hosts[number], reasons)
        })
        .collect();
    for (host, reasons) in together::reasons(rows, &low, hosts, &all) {
        let known = std::mem::take(&mut all[host].reasons);
        all[host] = HostFitness::of(&hosts[host], [known, reasons].concat());
    }
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

/// What is said of a row that is slower than it should be.
const BELOW: &str = "is below what is expected";

/// What is wrong with a row, and what shows it.
fn faults(seen: &Seen<'_>, low: &Compared) -> Vec<(String, String)> {
    let Seen { row, is_replaced, .. } = seen;
    let mut all = Vec::new();
    let mut add = |what: &str, shown: Option<String>| {
        all.extend(shown.map(|shown| (what.to_owned(), shown)));
    };
    let with = |status: Status| (row.status == status).then(|| row.reason.clone());
    add("is corrupt", with(Status::Corrupt));
    add("failed", with(Status::Failed));
    let is_other = row.path_verdict == Some(PathVerdict::Contradicted);
    let shown = row.path_reason.clone().unwrap_or_default();
    add("took another path than it should", is_other.then_some(shown));
    let is_below = row.verdict == Some(RowVerdict::Below) && !is_replaced;
    let shown = row.verdict_reason.clone().unwrap_or_default();
    add(BELOW, is_below.then_some(shown));
    if let Some((what, shown)) = low.slow.get(&row.case) {
        add(what, Some(shown.clone()));
    }
    for flag in HEALTH {
        let has_it = row.flags.split(' ').any(|own| own == flag);
        add(&format!("is flagged {flag}"), has_it.then(|| row.reason.clone()));
    }
    all
}

/// Rows that have the same to be said of them, and what shows it.
type Found<'a> = Vec<(&'a Row, String)>;

/// The worst of rows that have the same to be said of them, and how many there are.
fn said_of(what: &str, rows: &Found<'_>) -> Option<(String, String)> {
    let (row, shown) = rows.iter().min_by(|(a, _), (b, _)| share(a).total_cmp(&share(b)))?;
    let more = match rows.len() {
        1 => String::new(),
        number => format!(" ({} so)", count(number, "row")),
    };
    Some((format!("{} {what}{more}", row.title(&Naming::default())), shown.clone()))
}

/// What a stage's own rows say; `low` are slower than their siblings.
fn of_stage(stage: Stage, rows: &[&Seen<'_>], low: &Compared) -> Vec<Reason> {
    let mut found: BTreeMap<(Fitness, String), Found<'_>> = BTreeMap::new();
    for seen in rows {
        let Seen { row, is_optional, .. } = seen;
        let mut add = |verdict: Fitness, what: String, shown: String| {
            found.entry((verdict, what)).or_default().push((*row, shown));
        };
        // Whose the fault is between hosts takes more than a row.
        if stage != Stage::Pairs {
            let faults = faults(seen, low).into_iter();
            faults.for_each(|(what, shown)| add(Fitness::Unfit, what, shown));
        }
        let reason = row.verdict_reason.clone().unwrap_or_default();
        match row.verdict.filter(|_| !seen.is_replaced) {
            Some(RowVerdict::Above) => add(Fitness::Unknown, "is above what can be".into(), reason),
            Some(RowVerdict::Expected | RowVerdict::Below) => {}
            None | Some(RowVerdict::Unknown) if low.fast.contains_key(&row.case) => {
                let what = "is more than twice as fast as its siblings".to_owned();
                add(Fitness::Unknown, what, low.fast[&row.case].clone());
            }
            None | Some(RowVerdict::Unknown) => {
                let is_judged = *is_optional || seen.is_replaced || low.judged.contains(&row.case);
                if row.status == Status::Ok && !is_judged {
                    add(Fitness::Unknown, "has nothing to be judged by".into(), reason);
                }
            }
        }
    }
    let told = found.iter().filter_map(|((verdict, what), rows)| {
        let (said, shown) = said_of(what, rows)?;
        Some(Reason { verdict: *verdict, stage, said, shown })
    });
    let mut reasons: Vec<Reason> = told.collect();
    let skipped = rows.iter().filter(|seen| seen.row.status == Status::Skipped);
    let skipped: BTreeSet<&str> =
        skipped.filter(|seen| !seen.is_optional).map(|seen| &*seen.row.reason).collect();
    reasons.extend(skipped.iter().map(|reason| unknown(stage, "not measured", *reason)));
    let is_measured = |seen: &&Seen<'_>| seen.row.status != Status::Skipped;
    // One partner that is well is enough, and there must be one.
    let is_without = stage == Stage::Pairs && !rows.iter().any(is_measured) && skipped.is_empty();
    if rows.is_empty() || is_without {
        let why = rows.first().map_or("nothing was planned", |seen| &seen.row.reason);
        reasons.push(unknown(stage, "not measured", why));
    }
    reasons
}

/// The share of what is expected of a row, the least of which is told first.
fn share(row: &Row) -> f64 {
    row.expected_fraction.unwrap_or(f64::INFINITY)
}

/// What the rows of a check are beside others: those that are alike, and those of a baseline.
#[derive(Default)]
struct Compared {
    /// Those that are judged by others, by the numbers of their rows.
    judged: BTreeSet<usize>,
    /// Those that are more than twice as fast as their siblings, with no bound that says how fast
    /// they can be, and what shows it.
    fast: BTreeMap<usize, String>,
    /// Those that are slower than the others, than which, and what shows it.
    slow: BTreeMap<usize, (&'static str, String)>,
}

/// The rate that is judged.
pub fn rate(row: &Row) -> Option<f64> {
    row.bandwidth_gb_s_bus.or(row.bandwidth_gb_s)
}

/// The standard error of a row's bandwidth, as a share of it.
fn error(row: &Row) -> Option<f64> {
    let half = (row.bandwidth_gb_s_high? - row.bandwidth_gb_s_low?) / 2.0;
    Some(half / NORMAL_95 / row.bandwidth_gb_s?)
}

/// By which share a row is slower or faster than another measurement of its case, that is known as
/// well, by chance.
pub fn allowance(row: &Row) -> f64 {
    let deviation = SQRT_2 * error(row).unwrap_or_default().max(DEVIATION_MIN);
    BAR.slower.max(DEVIATIONS * deviation)
}

/// Compares rows that are alike: of one kind, size and kind of path. Compares each with the
/// baseline too.
fn low_rows(rows: &[Seen<'_>], baseline: &Baseline, hosts: &[Host]) -> Compared {
    let mut groups: BTreeMap<String, Vec<(&Row, f64)>> = BTreeMap::new();
    let is_ok = |seen: &&Seen<'_>| seen.row.status == Status::Ok && !seen.is_replaced;
    for Seen { row, .. } in rows.iter().filter(is_ok) {
        let Some(rate) = rate(row) else { continue };
        let size = row.size_bytes.map_or_else(String::new, |size| size.to_string());
        let way = attribution::way(row, hosts);
        let group = format!("{}, {size}, {way}", row.kind(&Naming::default()));
        groups.entry(group).or_default().push((row, rate));
    }
    let mut compared = Compared::default();
    for (row, own) in groups.values().flatten() {
        let Some(before) = baseline.rate(row) else { continue };
        compared.judged.insert(row.case);
        if 1.0 - own / before > allowance(row) {
            let shown = format!("{own:.3} GB/s, and {before:.3} GB/s in the baseline");
            compared.slow.insert(row.case, ("is slower than in the baseline", shown));
        }
    }
    for group in groups.into_values().filter(|group| group.len() >= SIBLINGS_MIN) {
        compared.judged.extend(group.iter().map(|(row, _)| row.case));
        let mut rates: Vec<f64> = group.iter().map(|(_, rate)| *rate).collect();
        rates.sort_unstable_by(f64::total_cmp);
        // Slow rows, up to half of all, do not move the better half.
        let better = rates.split_off(rates.len() / 2);
        let usual = Data::new(better.clone()).median();
        let distances: Vec<f64> = better.iter().map(|rate| (rate / usual - 1.0).abs()).collect();
        let within: Vec<f64> = group.iter().filter_map(|(row, _)| error(row)).collect();
        let within = if within.is_empty() { 0.0 } else { Data::new(within).median() };
        let spread = DEVIATIONS_PER_MEDIAN * Data::new(distances).median();
        let deviation = spread.max(within).max(DEVIATION_MIN);
        let least = BAR.slower.max(DEVIATIONS * deviation);
        for (row, rate) in group.iter().filter(|(_, rate)| 1.0 - rate / usual > least) {
            let shown = format!(
                "{rate:.3} GB/s, and {usual:.3} GB/s at the upper quartile of {}",
                count(group.len(), "row")
            );
            compared.slow.insert(row.case, ("is slower than its siblings", shown));
        }
        let is_untold = |row: &Row| row.verdict.is_none_or(|told| told == RowVerdict::Unknown);
        // Of two the lower one, which is none that is too high.
        let lower = better[(better.len() - 1) / 2];
        for (row, rate) in group.iter().filter(|(row, rate)| is_untold(row) && *rate > 2.0 * lower)
        {
            let shown = format!(
                "{rate:.3} GB/s, and {lower:.3} GB/s at the upper quartile of {}",
                count(group.len(), "row")
            );
            compared.fast.insert(row.case, shown);
        }
    }
    compared
}

/// The parts that are slow in all they do, by the host that they are on.
fn slow_parts(rows: &[Seen<'_>], hosts: &[Host]) -> BTreeMap<usize, Vec<Reason>> {
    let mut all: BTreeMap<usize, Vec<Reason>> = BTreeMap::new();
    for stage in [Stage::Local, Stage::P2p] {
        let of_stage = |seen: &&Seen<'_>| Stage::of(seen.row.transport) == Some(stage);
        let own = || rows.iter().filter(of_stage).filter(|seen| !seen.is_replaced);
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
