//! A comparison as text.

use indexmap::IndexMap;
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
    units::count,
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

/// What is compared, and what limits the comparison.
fn heading(page: &mut Page, sources: &[Source], comparison: &Comparison) {
    let Comparison { a, b, cases, runs, differences, .. } = comparison;
    let simulated = words::mark(sources.iter().any(Source::is_simulated));
    let cases = count(cases.len(), "case");
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
fn groups<'a>(sources: &[Source], comparison: &'a Comparison) -> IndexMap<String, Vec<&'a Case>> {
    let mut groups: IndexMap<String, Vec<&Case>> = IndexMap::new();
    for case in &comparison.cases {
        let (_, row) = example(sources, case);
        let kind = row.kind(&naming(comparison, false));
        let title = row.size_bytes.map_or_else(|| kind.clone(), |size| format!("{kind}, {size}"));
        groups.entry(title).or_default().push(case);
    }
    groups
}

fn group(
    sources: &[Source],
    comparison: &Comparison,
    title: String,
    cases: &[&Case],
) -> [String; 7] {
    let [slower, faster, same] =
        [ChangeVerdict::Slower, ChangeVerdict::Faster, ChangeVerdict::Same].map(|verdict| {
            let count = cases.iter().filter(|case| case.verdict == verdict).count();
            words::or_dash((count > 0).then_some(count))
        });
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
    let [median, worst] = [median, worst].map(words::or_dash);
    [title, cases.len().to_string(), slower, faster, same, median, worst]
}

/// Why nothing can be said of cases, each reason once.
fn reasons(comparison: &Comparison) -> String {
    let mut reasons: IndexMap<&str, usize> = IndexMap::new();
    let told = comparison.cases.iter().map(|case| case.verdict.reason());
    for reason in told.filter(|reason| !reason.is_empty()) {
        *reasons.entry(reason).or_default() += 1;
    }
    if reasons.is_empty() {
        return String::new();
    }
    let lines = reasons.iter().take(SHOWN).map(|(reason, count)| format!("  {count}: {reason}\n"));
    format!("No verdict:\n{}", lines.collect::<String>())
}

fn cells(sources: &[Source], comparison: &Comparison, case: &Case) -> [String; 6] {
    let shown = match case.quantity {
        Quantity::Bandwidth => words::gb_s,
        Quantity::Latency => words::nanoseconds,
    };
    let value =
        |value: Option<Estimate>| words::or_dash(value.map(|estimate| shown(estimate.value)));
    let change = case.change.map(|change| words::percent(change.share));
    let interval = case.change.and_then(|change| change.known).map(|known| {
        let [low, high] = [known.low, known.high].map(words::percent);
        format!("{} to {high}", low.trim_end_matches(" %"))
    });
    let (source, row) = example(sources, case);
    [
        row.title(&naming(comparison, source.hosts.len() > 1)),
        value(case.a),
        value(case.b),
        words::or_dash(change),
        words::or_dash(interval),
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
    let head = COLUMNS.map(str::to_owned).to_vec();
    let lines = objects(sources, comparisons).map(|object| {
        let cell = |column: &&str| match &object[column] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        COLUMNS.iter().map(cell).collect()
    });
    for line in [head].into_iter().chain(lines) {
        writer.write_record(line).expect("memory takes every write");
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("every cell is text")
}

/// The same as a list in JSON.
pub fn json(sources: &[Source], comparisons: &[Comparison]) -> String {
    let objects: Vec<String> =
        objects(sources, comparisons).map(|object| format!("\n{object}")).collect();
    format!("[{}\n]\n", objects.join(","))
}

/// An object for each case.
fn objects(sources: &[Source], comparisons: &[Comparison]) -> impl Iterator<Item = Value> {
    let object = |comparison, case| object(sources, comparison, case);
    comparisons.iter().flat_map(move |comparison| {
        comparison.cases.iter().map(move |case| object(comparison, case))
    })
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
        "quantity": case.quantity,
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
