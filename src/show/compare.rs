//! A comparison as text.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{
    page::{Grid, Page},
    words,
};
use crate::{
    analysis::{
        compare::{Case, Comparison, Source},
        statistics::{ChangeVerdict, Estimate, Quantity},
    },
    record::{Naming, Row},
};

/// Rows of a table that a person reads; the others are counted.
const SHOWN: usize = 30;

/// The columns of the text for programs.
const COLUMNS: [&str; 15] = [
    "a",
    "b",
    "case",
    "size_bytes",
    "quantity",
    "value_a",
    "value_b",
    "change",
    "change_low",
    "change_high",
    "p",
    "q",
    "verdict",
    "reason",
    "simulated",
];

/// What has changed, the worst first; all cases if `is_whole`.
pub fn page(sources: &[Source], comparisons: &[Comparison], is_whole: bool) -> Page {
    let mut page = Page::default();
    for (place, comparison) in comparisons.iter().enumerate() {
        if place > 0 {
            page.lines("\n");
        }
        add(&mut page, sources, comparison, is_whole);
    }
    page
}

fn add(page: &mut Page, sources: &[Source], comparison: &Comparison, is_whole: bool) {
    heading(page, sources, comparison);
    let numbers = ["cases", "slower", "faster", "same", "median", "worst"];
    let mut grid = Grid::new(["what"].into_iter().chain(numbers)).numbers(&numbers);
    for (title, cases) in groups(sources, comparison) {
        grid.row(group(sources, comparison, title, &cases));
    }
    page.lines("\n");
    page.grid(grid);
    let is_told = |case: &&Case| {
        use ChangeVerdict::{Faster, Slower, Unknown};
        is_whole || matches!(case.verdict, Slower | Faster | Unknown)
    };
    let mut shown: Vec<&Case> = comparison.cases.iter().filter(is_told).collect();
    if !is_whole {
        let loss = |case: &Case| case.loss().unwrap_or_default();
        shown.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    }
    let left = if is_whole { 0 } else { shown.len().saturating_sub(SHOWN) };
    shown.truncate(shown.len() - left);
    if !shown.is_empty() {
        let header = ["case", "A", "B", "change", "95 % interval", "verdict"];
        let mut grid = Grid::new(header).words(&["case", "verdict"]);
        for case in shown {
            grid.row(cells(sources, comparison, case));
        }
        page.lines("\n");
        page.grid(grid);
    }
    if left > 0 {
        page.lines(&format!("and {left} more: --all shows them, in their order\n"));
    }
    page.lines(&reasons(comparison));
}

/// What is compared, and what stands against it.
fn heading(page: &mut Page, sources: &[Source], comparison: &Comparison) {
    let Comparison { a, b, cases, runs, differences, .. } = comparison;
    let is_simulated = sources.iter().any(Source::is_simulated);
    let simulated = if is_simulated { " [SIMULATED]" } else { "" };
    let cases = crate::units::count(cases.len(), "case");
    page.lines(&format!("B against A{simulated}: {cases}\nA: {a}\nB: {b}\n"));
    for difference in differences {
        page.lines(&format!("Differs: {difference}\n"));
    }
    if *runs < 2 {
        page.lines(
            "Intervals hold what varied within a run, not from run to run: for that compare sweeps \
             with repetitions.\n",
        );
    }
}

/// The cases of one kind and size, in the order of their first.
fn groups<'a>(sources: &[Source], comparison: &'a Comparison) -> Vec<(String, Vec<&'a Case>)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<(String, Vec<&Case>)> = Vec::new();
    for case in &comparison.cases {
        let (_, row) = example(sources, case);
        let kind = row.kind(&naming(comparison, false));
        let title = row.size_bytes.map_or_else(|| kind.clone(), |size| format!("{kind}, {size}"));
        let place = *places.entry(title.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((title, Vec::new()));
        }
        groups[place].1.push(case);
    }
    groups
}

fn group(
    sources: &[Source],
    comparison: &Comparison,
    title: String,
    cases: &[&Case],
) -> [String; 7] {
    let count = |verdict: &ChangeVerdict| {
        let count = cases.iter().filter(|case| case.verdict == *verdict).count();
        if count == 0 { "-".to_owned() } else { count.to_string() }
    };
    let [slower, faster, same] =
        [ChangeVerdict::Slower, ChangeVerdict::Faster, ChangeVerdict::Same].map(|v| count(&v));
    let changes =
        cases.iter().filter(|case| !matches!(case.verdict, ChangeVerdict::NotComparable(_)));
    let mut changes: Vec<&&Case> = changes.collect();
    let loss = |case: &Case| case.loss().unwrap_or_default();
    changes.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    let percent = |case: &Case| case.change.map(|change| words::percent(change.share));
    let median = changes.get(changes.len() / 2).and_then(|case| percent(case));
    let worst = changes.first().and_then(|case| {
        let (source, row) = example(sources, case);
        let ends = row.ends(&naming(comparison, source.hosts.len() > 1));
        Some(format!("{} {ends}", percent(case)?).trim_end().to_owned())
    });
    let [median, worst] = [median, worst].map(|text| text.unwrap_or_else(|| "-".to_owned()));
    [title, cases.len().to_string(), slower, faster, same, median, worst]
}

/// Why nothing can be said of cases, each reason once.
fn reasons(comparison: &Comparison) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    let told = comparison.cases.iter().map(|case| case.verdict.reason());
    for reason in told.filter(|reason| !reason.is_empty()) {
        match reasons.iter_mut().find(|(of, _)| *of == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    let lines = reasons.iter().take(SHOWN).map(|(reason, count)| format!("  {count}: {reason}\n"));
    format!("No verdict:\n{}", lines.collect::<String>())
}

fn cells(sources: &[Source], comparison: &Comparison, case: &Case) -> [String; 6] {
    let value = |value: Option<Estimate>| match (value, case.quantity) {
        (None, _) => "-".to_owned(),
        (Some(estimate), Quantity::Bandwidth) => words::gb_s(estimate.value),
        (Some(estimate), Quantity::Latency) => words::nanoseconds(estimate.value),
    };
    let change = case.change.map_or("-".to_owned(), |change| words::percent(change.share));
    let interval = case.change.and_then(|change| change.known).map_or("-".to_owned(), |known| {
        let [low, high] = [known.low, known.high].map(words::percent);
        format!("{} to {high}", low.trim_end_matches(" %"))
    });
    let (source, row) = example(sources, case);
    [
        row.title(&naming(comparison, source.hosts.len() > 1)),
        value(case.a),
        value(case.b),
        change,
        interval,
        case.verdict.to_string(),
    ]
}

/// How cases are called that differ in what the sides differ in.
const fn naming(comparison: &Comparison, has_hosts: bool) -> Naming<'_> {
    Naming { has_hosts, without: comparison.by }
}

/// One of a case's rows, and what it is of.
fn example<'a>(sources: &'a [Source], case: &Case) -> (&'a Source, &'a Row) {
    let (source, row) = case.example;
    (&sources[source], &sources[source].rows[row])
}

/// A line for each case.
pub fn csv(sources: &[Source], comparisons: &[Comparison]) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let mut write = |cells: Vec<String>| {
        writer.write_record(cells).expect("memory takes every write");
    };
    write(COLUMNS.map(str::to_owned).to_vec());
    for comparison in comparisons {
        for case in &comparison.cases {
            let value = object(sources, comparison, case);
            let cell = |column: &&str| match &value[column] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            write(COLUMNS.iter().map(cell).collect());
        }
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("every cell is text")
}

/// The same as a list in JSON.
pub fn json(sources: &[Source], comparisons: &[Comparison]) -> String {
    let mut text = String::from("[");
    for comparison in comparisons {
        for case in &comparison.cases {
            text.push_str(if text.len() > 1 { ",\n" } else { "\n" });
            text.push_str(&object(sources, comparison, case).to_string());
        }
    }
    text + "\n]\n"
}

fn object(sources: &[Source], comparison: &Comparison, case: &Case) -> Value {
    let (_, row) = example(sources, case);
    let known = case.change.and_then(|change| change.known);
    let naming = naming(comparison, true);
    let title = [row.kind(&naming), row.ends(&naming)];
    json!({
        "a": comparison.a,
        "b": comparison.b,
        "case": title.join(" ").trim_end(),
        "size_bytes": row.size_bytes,
        "quantity": case.quantity.column(),
        "value_a": case.a.map(|estimate| estimate.value),
        "value_b": case.b.map(|estimate| estimate.value),
        "change": case.change.map(|change| change.share),
        "change_low": known.map(|known| known.low),
        "change_high": known.map(|known| known.high),
        "p": known.map(|known| known.p),
        "q": known.map(|known| known.q),
        "verdict": case.verdict.to_string(),
        "reason": case.verdict.reason(),
        "simulated": sources.iter().any(Source::is_simulated),
    })
}
