//! Compares two runs, or parts of one.
//!
//! `docs/comparing.md`, "Comparing", has the method and its limits.

mod matching;

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    slice,
};

use indexmap::IndexMap;
use strum::VariantArray as _;

use crate::{
    measure::Scale,
    plan::{TransportKind, topology::Topology},
    record::{Error, Row, Run, Status, provenance::Provenance},
};

use super::statistics::{Change, ChangeVerdict, Estimate, Interval, Quantity, corrected};
use matching::{Matched, Member, matched};

pub use matching::By;

/// A run, or the results of another tool.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The rows.
    pub rows: Vec<Row>,
    /// Its hosts, in their order.
    pub hosts: Vec<String>,
    /// What its numbers depend on besides the case, as far as it is known.
    pub traits: Vec<(Trait, String)>,
    /// The 95 % confidence intervals of the medians of rows with a latency only, in nanoseconds.
    pub latencies: HashMap<usize, (f64, f64)>,
    /// Whether another tool has measured it.
    pub is_foreign: bool,
}

/// What numbers depend on besides the case.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, strum::Display, strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Trait {
    /// A real machine and a simulated one
    Simulated,
    /// The type of instance, the processor, the GPUs
    Machine,
    /// The version of NCCL
    Nccl,
    /// The version of libfabric
    Libfabric,
}

impl Trait {
    /// Whether the numbers of a transport depend on it.
    fn matters_to(self, transport: TransportKind) -> bool {
        match self {
            Self::Simulated | Self::Machine => true,
            Self::Nccl => transport == TransportKind::Nccl,
            Self::Libfabric => transport == TransportKind::Rdma,
        }
    }
}

impl Source {
    /// A run of g2g. Reads its `latency.hlog` where rows have a latency only.
    pub fn of_run(run: Run) -> Result<Self, Error> {
        let without_bandwidth = |row: &usize| {
            let row = &run.rows[*row];
            row.latency_ns_p50.is_some() && row.bandwidth_gb_s.is_none()
        };
        let wanted = (0..run.rows.len()).filter(without_bandwidth);
        let mut latencies = HashMap::new();
        run.latencies(wanted, |row, latency| {
            latencies.extend(latency.median_interval_ns().map(|interval| (row, interval)));
        })?;
        let Run { provenance, resumed, rows, .. } = run;
        let version = |name| {
            let library = provenance.libraries.iter().find(|library| library.name == name);
            library.map_or("none".to_owned(), |library| library.version.clone())
        };
        // A resumed run may have rows of several machines or versions.
        let changed: Vec<&str> =
            resumed.iter().flat_map(|again| &again.changed).map(String::as_str).collect();
        let later = match changed.is_empty() {
            true => String::new(),
            false => format!(", later changed: {}", changed.join("; ")),
        };
        let simulated = if provenance.simulated { "simulated" } else { "real" };
        let traits = vec![
            (Trait::Simulated, simulated.to_owned()),
            (Trait::Machine, machine(&provenance) + &later),
            (Trait::Nccl, version("NCCL")),
            (Trait::Libfabric, version("libfabric")),
        ];
        let hosts = provenance.hosts.iter().map(|host| host.name.clone()).collect();
        Ok(Self { rows, hosts, traits, latencies, is_foreign: false })
    }

    /// The results of another tool, which runs on real machines, with the version of NCCL if known.
    pub fn of_tool(rows: Vec<Row>, nccl: Option<&str>) -> Self {
        let real = Some((Trait::Simulated, "real".to_owned()));
        let nccl = nccl.map(|version| (Trait::Nccl, version.to_owned()));
        let traits = real.into_iter().chain(nccl).collect();
        Self { rows, traits, is_foreign: true, ..Self::default() }
    }

    /// The confidence interval of a row's number.
    fn interval(&self, at: usize, quantity: Quantity) -> Option<Interval> {
        let row = &self.rows[at];
        let ((low, high), scale) = match quantity {
            Quantity::Bandwidth => {
                let count = row.bandwidth_samples?;
                let scale = match row.transport {
                    TransportKind::Rdma => Scale::of_stream(count),
                    TransportKind::Local
                    | TransportKind::P2p
                    | TransportKind::Shm
                    | TransportKind::Nccl => Scale::of_median(count),
                };
                (row.bandwidth_gb_s_low.zip(row.bandwidth_gb_s_high)?, scale?)
            }
            Quantity::Latency => {
                let count = usize::try_from(row.latency_samples?).ok()?;
                (self.latencies.get(&at).copied()?, Scale::of_median(count)?)
            }
        };
        Some(Interval { low, high, scale })
    }

    /// Whether it was taken on a simulated machine.
    pub(crate) fn is_simulated(&self) -> bool {
        self.rows.first().is_some_and(|row| row.simulated)
    }

    fn members(&self, source: usize) -> impl Iterator<Item = Member> {
        (0..self.rows.len()).map(move |row| (source, row))
    }
}

/// The properties of a machine that numbers depend on.
pub(crate) fn machine(provenance: &Provenance) -> String {
    let machine = &provenance.machine;
    // The machine that runs a simulation does not matter.
    let named = [&machine.product, &machine.cpu_model].into_iter().filter_map(Option::as_deref);
    let named = named.filter(|_| !provenance.simulated);
    let hosts = provenance.hosts.iter().map(|host| gpus(&host.topology));
    let mut hosts: Vec<String> = hosts.filter(|gpus| !gpus.is_empty()).collect();
    hosts.dedup();
    named.map(str::to_owned).chain(hosts).collect::<Vec<String>>().join(", ")
}

/// `8 x NVIDIA H100 80GB HBM3`
pub(crate) fn gpus(topology: &Topology) -> String {
    let mut counts: IndexMap<&str, usize> = IndexMap::new();
    for gpu in &topology.gpus {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let counted = counts.into_iter().map(|(name, count)| format!("{count} x {name}"));
    counted.collect::<Vec<String>>().join(" + ")
}

/// A case on both sides.
#[derive(Clone, Debug)]
pub struct Case {
    /// One of its rows: the index of its source, and its own there.
    pub example: (usize, usize),
    /// The quantity that is compared.
    pub quantity: Quantity,
    /// The estimate of A, if it has measured the case.
    pub a: Option<Estimate>,
    /// The estimate of B.
    pub b: Option<Estimate>,
    /// The change from A to B.
    pub change: Option<Change>,
    /// The verdict.
    pub verdict: ChangeVerdict,
}

impl Case {
    /// How much worse B is than A: 0.05 is 5 % less bandwidth or 5 % more latency.
    pub fn loss(&self) -> Option<f64> {
        Some(self.quantity.loss(&self.change?))
    }

    /// Whether there is a verdict.
    pub fn is_compared(&self) -> bool {
        use ChangeVerdict::{Faster, Same, Slower};
        matches!(self.verdict, Faster | Slower | Same)
    }

    /// Whether its verdict is by the margin, since a side does not say how well its number is known.
    pub fn lacks_interval(&self) -> bool {
        self.is_compared() && self.change.is_some_and(|change| change.known.is_none())
    }
}

/// The comparison of two sides.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The name of A.
    pub a: String,
    /// The name of B.
    pub b: String,
    /// The cases of either side.
    pub cases: Vec<Case>,
    /// The smaller number of runs of the two sides.
    pub runs: usize,
    /// That of its [`Allowance`].
    pub margin: f64,
    /// Differences between the sides that a reader must know.
    pub differences: Vec<String>,
    /// The columns in which the sides differ, if they are parts of the same runs.
    pub(crate) by: &'static [&'static str],
}

/// The margin if nobody says another.
pub(crate) const MARGIN: f64 = 0.05;

/// What a comparison allows for.
#[derive(Clone, Debug)]
pub struct Allowance {
    /// Traits in which the sides may differ.
    pub across: Vec<Trait>,
    /// The share of change up to which numbers without an interval are the same.
    pub margin: f64,
}

/// Results that are one side of a comparison.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    /// What they are called.
    pub name: &'a str,
    /// Which sources they are.
    pub sources: Range<usize>,
}

/// Compares some of the sources, A, with others, B.
pub fn sides(sources: &[Source], a: Runs<'_>, b: Runs<'_>, allowance: &Allowance) -> Comparison {
    let [a, b] = [a, b].map(|runs| {
        let members = runs.sources.flat_map(|source| sources[source].members(source));
        Side { name: runs.name, members: members.collect() }
    });
    let mut comparison = compared(sources, &a, &b, None, allowance);
    judge(slice::from_mut(&mut comparison));
    comparison
}

/// Compares the parts of the same sources, each with the first, with that margin.
pub fn parts(sources: &[Source], by: &By, margin: f64) -> Vec<Comparison> {
    let allowance = Allowance { across: Vec::new(), margin };
    let mut parts: IndexMap<&str, Vec<Member>> = IndexMap::new();
    for (at, source) in sources.iter().enumerate() {
        for member in source.members(at) {
            let Some(value) = by.value(&source.rows[member.1]) else { continue };
            parts.entry(value).or_default().push(member);
        }
    }
    let mut sides = parts.into_iter().map(|(name, members)| Side { name, members });
    let Some(first) = sides.next() else { return Vec::new() };
    let mut comparisons: Vec<Comparison> =
        sides.map(|side| compared(sources, &first, &side, Some(by), &allowance)).collect();
    judge(&mut comparisons);
    comparisons
}

/// One side of a comparison.
struct Side<'a> {
    name: &'a str,
    members: Vec<Member>,
}

/// All cases of two sides, with the reasons why some cannot be compared.
fn compared(
    sources: &[Source],
    a: &Side<'_>,
    b: &Side<'_>,
    by: Option<&By>,
    allowance: &Allowance,
) -> Comparison {
    let runs = |side: &Side<'_>| -> BTreeSet<usize> {
        side.members.iter().map(|(source, _)| *source).collect()
    };
    let (runs_of_a, runs_of_b) = (runs(a), runs(b));
    let differs = |kind: &Trait| {
        let values = |side: &BTreeSet<usize>| -> BTreeSet<&str> {
            let traits = side.iter().flat_map(|source| &sources[*source].traits);
            traits.filter(|(of, _)| of == kind).map(|(_, value)| value.as_str()).collect()
        };
        let (in_a, in_b) = (values(&runs_of_a), values(&runs_of_b));
        // Another tool does not name its machine.
        let is_other = in_a != in_b && !in_a.is_empty() && !in_b.is_empty();
        let told = |values: BTreeSet<&str>| values.into_iter().collect::<Vec<&str>>().join(" and ");
        (is_other && !allowance.across.contains(kind)).then(|| (*kind, [told(in_a), told(in_b)]))
    };
    let others: Vec<(Trait, [String; 2])> = Trait::VARIANTS.iter().filter_map(differs).collect();
    let differences = others.iter().map(|(kind, [a, b])| difference(*kind, a, b)).collect();
    Comparison {
        a: a.name.to_owned(),
        b: b.name.to_owned(),
        runs: runs_of_a.len().min(runs_of_b.len()),
        margin: allowance.margin,
        differences,
        by: by.map_or(&[], By::columns),
        cases: matched(sources, &a.members, &b.members, by)
            .into_iter()
            // Parts of a run need not have the same cases.
            .filter(|matched| by.is_none() || !matched.a.is_empty() && !matched.b.is_empty())
            .filter_map(|matched| case(sources, &matched, &others, allowance.margin))
            .collect(),
    }
}

fn difference(kind: Trait, a: &str, b: &str) -> String {
    let what = match kind {
        Trait::Simulated => "real and simulated",
        Trait::Machine => "other machine",
        Trait::Nccl => "other NCCL",
        Trait::Libfabric => "other libfabric",
    };
    format!("{what}: {a} against {b} (--across {kind})")
}

/// A case of both sides; `None` if both have skipped it.
fn case(
    sources: &[Source],
    matched: &Matched,
    others: &[(Trait, [String; 2])],
    margin: f64,
) -> Option<Case> {
    let Matched { a, b, is_ambiguous } = matched;
    let example = *a.iter().chain(b).next()?;
    let row = |(source, row): Member| &sources[source].rows[row];
    if a.iter().chain(b).all(|member| row(*member).status == Status::Skipped) {
        return None;
    }
    let has = |side: &[Member], quantity| {
        side.iter().any(|member| number(row(*member), quantity).is_some())
    };
    let quantities = [Quantity::Bandwidth, Quantity::Latency];
    let both = quantities.into_iter().find(|of| has(a, *of) && has(b, *of));
    let either = || quantities.into_iter().find(|of| has(a, *of) || has(b, *of));
    let quantity = both.or_else(either).unwrap_or(Quantity::Latency);
    let (in_a, in_b) = (estimate(sources, a, quantity), estimate(sources, b, quantity));
    let missing = |side: &[Member], name: &str| {
        let mut rows = side.iter().map(|member| row(*member));
        let without = rows.find(|row| number(row, quantity).is_none());
        without.map_or(format!("not in {name}"), |row| format!("in {name}: {}", lack(row)))
    };
    let other = others.iter().find(|(kind, _)| kind.matters_to(row(example).transport));
    let both = in_a.zip(in_b).filter(|_| !is_ambiguous);
    let change = both.map(|(a, b)| Change::between(a, b));
    let verdict = match (in_a, in_b, other) {
        (None, _, _) => ChangeVerdict::NotComparable(missing(a, "A")),
        (_, None, _) => ChangeVerdict::NotComparable(missing(b, "B")),
        _ if *is_ambiguous => ChangeVerdict::NotComparable(
            "several rows of one side fit one of the other: the tool does not tell them apart"
                .to_owned(),
        ),
        (_, _, Some((kind, [a, b]))) => ChangeVerdict::NotComparable(difference(*kind, a, b)),
        // The others' are corrected together.
        _ => match change.filter(|change| change.known.is_none()) {
            Some(change) => change.verdict_by(margin, quantity),
            None => ChangeVerdict::Unknown,
        },
    };
    Some(Case { example, quantity, a: in_a, b: in_b, change, verdict })
}

/// The number of a row, if it can be compared.
fn number(row: &Row, quantity: Quantity) -> Option<f64> {
    quantity.of(row).filter(|number| *number > 0.0 && row.status == Status::Ok)
}

/// Why a row has no number.
fn lack(row: &Row) -> String {
    let status: &str = row.status.into();
    match (row.status, row.reason.as_str()) {
        (Status::Ok, "") => "no number".to_owned(),
        (Status::Ok, reason) => reason.to_owned(),
        (_, "") => status.to_owned(),
        (_, reason) => format!("{status}: {reason}"),
    }
}

/// The estimate of a side.
fn estimate(sources: &[Source], side: &[Member], quantity: Quantity) -> Option<Estimate> {
    let value = |&(source, row): &Member| number(&sources[source].rows[row], quantity);
    let told: Vec<(Member, f64)> =
        side.iter().filter_map(|member| Some((*member, value(member)?))).collect();
    match told[..] {
        [] => None,
        [((source, row), value)] => {
            Some(Estimate::of_run(value, sources[source].interval(row, quantity)))
        }
        _ => Some(Estimate::of_runs(&told.iter().map(|(_, value)| *value).collect::<Vec<f64>>())),
    }
}

/// Adds the verdicts of what has intervals, corrected for the number of cases.
fn judge(comparisons: &mut [Comparison]) {
    let mut cases: Vec<&mut Case> = comparisons
        .iter_mut()
        .flat_map(|comparison| &mut comparison.cases)
        .filter(|case| case.verdict == ChangeVerdict::Unknown)
        .collect();
    corrected(cases.iter_mut().filter_map(|case| case.change.as_mut()).collect());
    for case in cases {
        if let Some(change) = &case.change {
            case.verdict = change.verdict(case.quantity);
        }
    }
}

#[cfg(test)]
mod tests;
