//! A comparison as text.

use std::collections::HashMap;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::{Case, Comparison, Quantity, Source, Verdict};
use crate::report::words;

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

/// Tables for a person: what has changed, the worst first; all cases if `is_whole`.
pub fn tables(sources: &[Source], comparisons: &[Comparison], is_whole: bool) -> String {
    let texts = comparisons.iter().map(|comparison| table(sources, comparison, is_whole, false));
    texts.collect::<Vec<String>>().join("\n")
}

/// The same as tables of GitHub's Markdown.
pub fn markdown(sources: &[Source], comparisons: &[Comparison], is_whole: bool) -> String {
    let texts = comparisons.iter().map(|comparison| table(sources, comparison, is_whole, true));
    texts.collect::<Vec<String>>().join("\n")
}

fn table(sources: &[Source], comparison: &Comparison, is_whole: bool, is_markdown: bool) -> String {
    let preset = if is_markdown { presets::ASCII_MARKDOWN } else { presets::NOTHING };
    let mut text = heading(sources, comparison, is_markdown);
    let mut table = Table::new();
    table.load_style(preset);
    table.set_header(["what", "cases", "slower", "faster", "same", "median", "worst"]);
    for (title, cases) in groups(sources, comparison) {
        table.add_row(group(sources, title, &cases));
    }
    add(&mut text, table, 6);
    let mut shown: Vec<&Case> = comparison
        .cases
        .iter()
        .filter(|case| {
            let is_told =
                matches!(case.verdict, Verdict::Slower | Verdict::Faster | Verdict::Unknown);
            is_whole || is_told
        })
        .collect();
    if !is_whole {
        let loss = |case: &Case| case.loss().unwrap_or_default();
        shown.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    }
    let left = if is_whole { 0 } else { shown.len().saturating_sub(SHOWN) };
    shown.truncate(shown.len() - left);
    if !shown.is_empty() {
        let mut table = Table::new();
        table.load_style(preset);
        table.set_header(["case", "A", "B", "change", "95 % interval", "verdict"]);
        for case in shown {
            table.add_row(cells(sources, comparison, case));
        }
        add(&mut text, table, 4);
    }
    if left > 0 {
        text.push_str(&format!("and {left} more: --all shows them, in their order\n"));
    }
    text.push_str(&reasons(comparison));
    text
}

/// Appends a table whose columns but the first, so many, are numbers.
fn add(text: &mut String, mut table: Table, numbers: usize) {
    for column in table.column_iter_mut().skip(1).take(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    text.push_str(&format!("\n{}\n", table.trim_fmt()));
}

/// What is compared, and what stands against it.
fn heading(sources: &[Source], comparison: &Comparison, is_markdown: bool) -> String {
    let Comparison { a, b, cases, runs, differences, .. } = comparison;
    let is_simulated = sources.iter().any(Source::is_simulated);
    let simulated = if is_simulated { " [SIMULATED]" } else { "" };
    let cases = crate::units::count(cases.len(), "case");
    let mut lines =
        vec![format!("B against A{simulated}: {cases}"), format!("A: {a}"), format!("B: {b}")];
    lines.extend(differences.iter().map(|difference| format!("Differs: {difference}")));
    if *runs < 2 {
        lines.push(
            "Intervals hold what varied within a run, not from run to run: for that compare sweeps \
             with repetitions."
                .to_owned(),
        );
    }
    // Markdown joins lines that end without these.
    let end = if is_markdown { "  \n" } else { "\n" };
    lines.into_iter().map(|line| line + end).collect()
}

/// The cases of one kind and size, in the order of their first.
fn groups<'a>(sources: &[Source], comparison: &'a Comparison) -> Vec<(String, Vec<&'a Case>)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<(String, Vec<&Case>)> = Vec::new();
    for case in &comparison.cases {
        let (source, row) = case.example;
        let rows = &sources[source].rows;
        let title = [words::kind(rows, row, comparison.by), words::size(rows, row)];
        let title = title.join(", ").trim_end_matches(", ").to_owned();
        let place = *places.entry(title.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((title, Vec::new()));
        }
        groups[place].1.push(case);
    }
    groups
}

fn group(sources: &[Source], title: String, cases: &[&Case]) -> [String; 7] {
    let count = |verdict: &Verdict| {
        let count = cases.iter().filter(|case| case.verdict == *verdict).count();
        if count == 0 { "-".to_owned() } else { count.to_string() }
    };
    let [slower, faster, same] =
        [Verdict::Slower, Verdict::Faster, Verdict::Same].map(|v| count(&v));
    let changes = cases.iter().filter(|case| !matches!(case.verdict, Verdict::NotComparable(_)));
    let mut changes: Vec<&&Case> = changes.collect();
    let loss = |case: &Case| case.loss().unwrap_or_default();
    changes.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    let percent = |case: &Case| case.change.map(|change| words::percent(change.share));
    let median = changes.get(changes.len() / 2).and_then(|case| percent(case));
    let worst = changes.first().and_then(|case| {
        let (source, row) = case.example;
        let rows = &sources[source].rows;
        let ends = words::ends(rows, row, sources[source].hosts.len() > 1);
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
    let value = |value: Option<super::Estimate>| match (value, case.quantity) {
        (None, _) => "-".to_owned(),
        (Some(estimate), Quantity::Bandwidth) => words::gb_s(estimate.value),
        (Some(estimate), Quantity::Latency) => words::nanoseconds(estimate.value),
    };
    let change = case.change.map_or("-".to_owned(), |change| words::percent(change.share));
    let interval = case.change.and_then(|change| change.known).map_or("-".to_owned(), |known| {
        let [low, high] = [known.low, known.high].map(words::percent);
        format!("{} to {high}", low.trim_end_matches(" %"))
    });
    let (source, row) = case.example;
    let Source { rows, hosts, .. } = &sources[source];
    let ends = words::ends(rows, row, hosts.len() > 1);
    let parts = [words::kind(rows, row, comparison.by), ends, words::size(rows, row)];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    [
        parts.join(", "),
        value(case.a),
        value(case.b),
        change,
        interval,
        case.verdict.name().to_owned(),
    ]
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
    let (source, row) = case.example;
    let rows = &sources[source].rows;
    let known = case.change.and_then(|change| change.known);
    let title = [words::kind(rows, row, comparison.by), words::ends(rows, row, true)];
    json!({
        "a": comparison.a,
        "b": comparison.b,
        "case": title.join(" ").trim_end(),
        "size_bytes": rows.count(row, "size_bytes"),
        "quantity": case.quantity.column(),
        "value_a": case.a.map(|estimate| estimate.value),
        "value_b": case.b.map(|estimate| estimate.value),
        "change": case.change.map(|change| change.share),
        "change_low": known.map(|known| known.low),
        "change_high": known.map(|known| known.high),
        "p": known.map(|known| known.p),
        "q": known.map(|known| known.q),
        "verdict": case.verdict.name(),
        "reason": case.verdict.reason(),
        "simulated": sources.iter().any(Source::is_simulated),
    })
}
