//! Matches the rows of many runs that belong to the same case.

use std::collections::{BTreeSet, HashMap};

use indexmap::IndexMap;

use crate::{
    analysis::statistics::Quantity,
    plan::sweep::{Plan, Run},
    record::{COLUMNS, Column, Naming, Row, sweep::Ended},
};

/// A run that ended well, and its rows.
pub type RunRows = (Run, Vec<Row>);

/// The same case in all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Its title.
    pub title: String,
    /// The quantity that is compared.
    pub quantity: Quantity,
    /// The values of each combination, one for each repetition; `None` if one is missing.
    pub values: Vec<Option<Vec<f64>>>,
}

/// The cells that distinguish a case from the others of its run, and its number among rows with the
/// same cells. Ranks and hosts are no such cells: they change with the number of ranks, and rows
/// that differ in nothing else come in the same order in every run.
type Key = (Vec<String>, usize);

/// The rows of a case by their combination and repetition.
type Rows<'a> = HashMap<(usize, usize), &'a Row>;

/// The cases of a sweep, in the order of their rows. If there are several bandwidths, their
/// geometric mean comes first.
pub fn cases(plan: &Plan, runs: &[RunRows]) -> Vec<Case> {
    let (varied, columns) = columns(plan, runs);
    let varied: Vec<&str> = varied.iter().map(|column| column.name).collect();
    let naming = Naming { has_hosts: false, without: &varied };
    let mut found: IndexMap<Key, (String, Rows<'_>)> = IndexMap::new();
    for (run, rows) in runs {
        let mut seen: HashMap<Vec<String>, usize> = HashMap::new();
        for row in measured(rows) {
            let cells: Vec<String> =
                columns.iter().map(|column| (column.cell)(row).to_string()).collect();
            let count = seen.entry(cells.clone()).or_default();
            *count += 1;
            let (_, rows) = found.entry((cells, *count)).or_insert_with(|| {
                let title = row.title(&naming);
                let title = if *count > 1 { format!("{title} ({count})") } else { title };
                (title, HashMap::new())
            });
            rows.insert((run.combination, run.repetition), row);
        }
    }
    let cases: Vec<Case> =
        found.into_values().map(|(title, rows)| case(plan, title, &rows)).collect();
    together(plan, &cases).into_iter().chain(cases).collect()
}

/// The rows of cases. A transport that cannot run has a row without a size.
fn measured(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.size_bytes.is_some())
}

/// The columns that the axes vary, and those that distinguish cases. A varied column has one value
/// within each combination, and different values in different ones.
fn columns(plan: &Plan, runs: &[RunRows]) -> (Vec<&'static Column>, Vec<&'static Column>) {
    let is_varied = |column: &&Column| {
        let mut of_combinations = vec![BTreeSet::new(); plan.combinations.len()];
        for (run, rows) in runs {
            let cells = measured(rows).map(|row| (column.cell)(row).to_string());
            of_combinations[run.combination].extend(cells);
        }
        let all: BTreeSet<&String> = of_combinations.iter().flatten().collect();
        all.len() > 1 && of_combinations.iter().all(|values| values.len() <= 1)
    };
    COLUMNS.iter().filter(|column| column.role.tells_cases_of_sweep()).partition(is_varied)
}

fn case(plan: &Plan, title: String, rows: &Rows<'_>) -> Case {
    let has_bandwidth = rows.values().any(|row| row.bandwidth_gb_s.is_some());
    let quantity = if has_bandwidth { Quantity::Bandwidth } else { Quantity::Latency };
    let value = |combination, repetition| {
        let value = quantity.of(rows.get(&(combination, repetition))?)?;
        (value > 0.0).then_some(value)
    };
    let values = |combination| (1..=plan.repetitions).map(|n| value(combination, n)).collect();
    Case { title, quantity, values: (0..plan.combinations.len()).map(values).collect() }
}

/// The geometric mean of all bandwidths as a case; `None` if there are not several.
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

/// The cases of the combinations of which no run has failed.
pub fn sound(plan: &Plan, ended: &[Ended], rows: Vec<RunRows>) -> Vec<Case> {
    let is_sound = |(run, _): &RunRows| {
        let of_combination = |ended: &&Ended| ended.run.combination == run.combination;
        ended.iter().filter(of_combination).all(|ended| ended.failure.is_none())
    };
    let rows: Vec<RunRows> = rows.into_iter().filter(is_sound).collect();
    cases(plan, &rows)
}
