//! Which rows of many runs are of the same case.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Plan, Run};
use crate::units::Bytes;

/// A row of run.csv: its cells by their columns.
pub type Line = BTreeMap<String, String>;

/// A run that ended well, and its rows.
pub type RunLines = (Run, Vec<Line>);

/// The columns that tell cases of one run apart, in the order in which a person reads them. Ranks
/// and hosts are not among them: they change with the number of ranks, and rows that differ in
/// nothing else come in the same order in every run.
const COLUMNS: [&str; 20] = [
    "transport",
    "pattern",
    "operation",
    "data_type",
    "reduction",
    "root",
    "in_place",
    "buffer",
    "registration",
    "issuer",
    "engine",
    "handle",
    "provider",
    "source_memory",
    "source_gpu",
    "source_numa_node",
    "target_memory",
    "target_gpu",
    "target_numa_node",
    "size_bytes",
];

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// `bandwidth_gb_s`: more is better.
    Bandwidth,
    /// `latency_ns_p50`, of cases that have no bandwidth: less is better.
    Latency,
}

/// The same case in all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it is.
    pub title: String,
    /// What of it is compared.
    pub quantity: Quantity,
    /// For each combination what each repetition has measured; `None` if one has not.
    pub values: Vec<Option<Vec<f64>>>,
}

impl Quantity {
    /// The column.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth_gb_s",
            Self::Latency => "latency_ns_p50",
        }
    }
}

/// The cells that tell a case from the others of its run, and its place among those that have the
/// same.
type Key<'a> = (Vec<&'a str>, usize);

/// The rows of a case by their combination and repetition.
type Rows<'a> = HashMap<(usize, usize), &'a Line>;

/// The cases of a sweep, in the order of their rows. Where there are several bandwidths, what all
/// of them are together comes first.
pub fn cases(plan: &Plan, runs: &[RunLines]) -> Vec<Case> {
    let columns = columns(plan, runs);
    let mut places: HashMap<Key<'_>, usize> = HashMap::new();
    let mut found: Vec<(Key<'_>, Rows<'_>)> = Vec::new();
    for (run, lines) in runs {
        let mut seen: HashMap<Vec<&str>, usize> = HashMap::new();
        for line in lines.iter().filter(|line| !cell(line, "size_bytes").is_empty()) {
            let cells: Vec<&str> = columns.iter().map(|column| cell(line, column)).collect();
            let count = seen.entry(cells.clone()).or_default();
            *count += 1;
            let key = (cells, *count);
            let place = *places.entry(key.clone()).or_insert(found.len());
            if place == found.len() {
                found.push((key, HashMap::new()));
            }
            found[place].1.insert((run.combination, run.repetition), line);
        }
    }
    let cases = found.iter().map(|(key, lines)| case(plan, title(&columns, key), lines));
    let cases: Vec<Case> = cases.collect();
    together(plan, &cases).into_iter().chain(cases).collect()
}

/// The columns that tell cases apart. One that the axes vary does not: it has a single value within
/// each combination, and not the same in all.
fn columns(plan: &Plan, runs: &[RunLines]) -> Vec<&'static str> {
    let is_varied = |column: &str| {
        let mut of_combinations = vec![BTreeSet::new(); plan.combinations.len()];
        for (run, lines) in runs {
            let measured = lines.iter().filter(|line| !cell(line, "size_bytes").is_empty());
            of_combinations[run.combination].extend(measured.map(|line| cell(line, column)));
        }
        let all: BTreeSet<&str> = of_combinations.iter().flatten().copied().collect();
        all.len() > 1 && of_combinations.iter().all(|values| values.len() <= 1)
    };
    COLUMNS.into_iter().filter(|column| !is_varied(column)).collect()
}

fn cell<'a>(line: &'a Line, column: &str) -> &'a str {
    line.get(column).map_or("", String::as_str)
}

fn case(plan: &Plan, title: String, lines: &Rows<'_>) -> Case {
    let has_bandwidth = lines.values().any(|line| !cell(line, "bandwidth_gb_s").is_empty());
    let quantity = if has_bandwidth { Quantity::Bandwidth } else { Quantity::Latency };
    let value = |combination, repetition| {
        let value: f64 =
            cell(lines.get(&(combination, repetition))?, quantity.column()).parse().ok()?;
        (value > 0.0).then_some(value)
    };
    let values = |combination| (1..=plan.repetitions).map(|n| value(combination, n)).collect();
    Case { title, quantity, values: (0..plan.combinations.len()).map(values).collect() }
}

/// All bandwidths as one case, by their geometric mean; `None` if there are not several.
fn together(plan: &Plan, cases: &[Case]) -> Option<Case> {
    let all = cases.iter().filter(|case| case.quantity == Quantity::Bandwidth);
    let all: Vec<&Case> = all.collect();
    if all.len() < 2 {
        return None;
    }
    let mean = |combination: usize, repetition: usize| {
        let of_case = |case: &&Case| Some(case.values[combination].as_ref()?[repetition].ln());
        let logarithms: Option<Vec<f64>> = all.iter().map(of_case).collect();
        Some((logarithms?.iter().sum::<f64>() / all.len() as f64).exp())
    };
    let values = |combination| (0..plan.repetitions).map(|n| mean(combination, n)).collect();
    Some(Case {
        title: format!("all {} bandwidths, geometric mean", all.len()),
        quantity: Quantity::Bandwidth,
        values: (0..plan.combinations.len()).map(values).collect(),
    })
}

/// `nccl all_reduce float sum 64 MiB`
fn title(columns: &[&str], (cells, count): &Key<'_>) -> String {
    let of = |wanted: &str| {
        let place = columns.iter().position(|column| *column == wanted)?;
        Some(cells[place]).filter(|cell| !cell.is_empty())
    };
    let mut words = Vec::new();
    for &column in columns {
        let Some(cell) = of(column) else { continue };
        words.push(match column {
            "root" => format!("root {cell}"),
            "buffer" if cell == "cuda" => continue,
            "registration" if cell == "none" => continue,
            "buffer" => format!("{cell} memory"),
            "registration" => format!("{cell} registration"),
            "in_place" if cell == "true" => "in place".to_owned(),
            "in_place" => continue,
            "source_memory" if cell == "gpu" => continue,
            "target_memory" if cell == "gpu" => "->".to_owned(),
            "target_memory" => format!("-> {cell}"),
            "source_gpu" | "target_gpu" => format!("GPU {cell}"),
            "source_numa_node" | "target_numa_node" => format!("NUMA node {cell}"),
            "size_bytes" => cell.parse().map_or(cell.to_owned(), |n| Bytes::new(n).to_string()),
            _ => cell.to_owned(),
        });
    }
    if *count > 1 {
        words.push(format!("({count})"));
    }
    words.join(" ")
}
