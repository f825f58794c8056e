//! A comparison as text.

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::{
    page::{Column, Grid, Page},
    words,
};
use crate::{
    analysis::{
        compare::{Case, Comparison, Source},
        statistics::{ChangeVerdict, Estimate, Known, Quantity},
    },
    record::{Naming, Row},
    units::count,
};

/// Rows of a table; further ones are counted.
const SHOWN: usize = 30;

/// A column for programs: its name, and its value for each case.
type Member = (&'static str, fn(Line<'_>) -> Value);

/// The columns for programs: of the CSV text, and of the objects in JSON.
const COLUMNS: [Member; 15] = [
    ("a", |line| json!(line.comparison.a)),
    ("b", |line| json!(line.comparison.b)),
    ("case", |line| {
        let naming = line.naming(true);
        json!([line.row().kind(&naming), line.row().ends(&naming)].join(" ").trim_end())
    }),
    ("size_bytes", |line| json!(line.row().size_bytes)),
    ("quantity", |line| json!(line.case.quantity)),
    ("value_a", |line| json!(line.case.a.map(|estimate| estimate.value))),
    ("value_b", |line| json!(line.case.b.map(|estimate| estimate.value))),
    ("change", |line| json!(line.case.change.map(|change| change.share))),
    ("change_low", |line| json!(line.known().map(|known| known.low))),
    ("change_high", |line| json!(line.known().map(|known| known.high))),
    ("p", |line| json!(line.known().map(|known| known.p))),
    ("q", |line| json!(line.known().map(|known| known.q))),
    ("verdict", |line| json!(line.verdict())),
    ("reason", |line| json!(line.case.verdict.reason())),
    ("simulated", |line| json!(line.sources.iter().any(Source::is_simulated))),
];

/// A case with its comparison.
#[derive(Clone, Copy)]
struct Line<'a> {
    sources: &'a [Source],
    comparison: &'a Comparison,
    case: &'a Case,
}

impl<'a> Line<'a> {
    /// One of the rows of the case.
    fn row(self) -> &'a Row {
        let (source, row) = self.case.example;
        &self.sources[source].rows[row]
    }

    /// A name of the row, without the columns in which the sides differ.
    const fn naming(self, has_hosts: bool) -> Naming<'a> {
        Naming { has_hosts, without: self.comparison.by }
    }

    fn has_several_hosts(self) -> bool {
        self.sources[self.case.example.0].hosts.len() > 1
    }

    fn known(self) -> Option<Known> {
        self.case.change?.known
    }

    /// `slower`, or `slower (no interval)` where that is by the margin.
    fn verdict(self) -> String {
        match (&self.case.verdict, self.case.lacks_interval()) {
            (ChangeVerdict::Same, true) => "same (no interval)".to_owned(),
            (verdict, true) => format!("{verdict} (no interval)"),
            (verdict, false) => verdict.to_string(),
        }
    }

    /// `+3.1 %`
    fn change(self) -> Option<String> {
        self.case.change.map(|change| words::percent(change.share))
    }

    fn value(self, estimate: Option<Estimate>) -> String {
        words::or_dash(estimate.map(|estimate| match self.case.quantity {
            Quantity::Bandwidth => words::gb_s(estimate.value),
            Quantity::Latency => words::nanoseconds(estimate.value),
        }))
    }
}

fn lines<'a>(sources: &'a [Source], comparison: &'a Comparison) -> impl Iterator<Item = Line<'a>> {
    comparison.cases.iter().map(move |case| Line { sources, comparison, case })
}

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
    if let Some(grid) = overview(sources, comparison, is_whole) {
        page.lines("\n");
        page.grid(grid);
    }
    let (grid, left) = changed(sources, comparison, is_whole);
    if let Some(grid) = grid {
        page.lines("\n");
        page.grid(grid);
    }
    if left > 0 {
        page.lines(&format!("and {left} more: --all shows them, in their order\n"));
    }
    page.lines(&reasons(comparison));
}

/// A line for the cases of one kind and size, in the order of their first.
pub(super) fn overview(
    sources: &[Source],
    comparison: &Comparison,
    is_whole: bool,
) -> Option<Grid> {
    let mut groups: IndexMap<String, Vec<Line<'_>>> = IndexMap::new();
    for line in lines(sources, comparison) {
        let kind = line.row().kind(&line.naming(false));
        let size = line.row().size_bytes.map_or_else(String::new, |size| format!(", {size}"));
        groups.entry(kind + &size).or_default().push(line);
    }
    let numbers = ["cases", "slower", "faster", "same", "median"];
    let head = ["what"].into_iter().chain(numbers).chain(["worst"]);
    let mut grid = Grid::new(head).numbers(&numbers);
    // What one side cannot have is counted below.
    groups.retain(|_, lines| is_whole || lines.iter().any(|line| line.case.is_compared()));
    for (title, lines) in groups {
        grid.row(group(title, &lines));
    }
    (!grid.rows.is_empty()).then_some(grid)
}

/// The cases that changed, the worst first, and how many more there are; all if `is_whole`, in their
/// order.
pub(super) fn changed(
    sources: &[Source],
    comparison: &Comparison,
    is_whole: bool,
) -> (Option<Grid>, usize) {
    let is_told = |line: &Line<'_>| {
        is_whole || matches!(line.case.verdict, ChangeVerdict::Slower | ChangeVerdict::Faster)
    };
    let mut shown: Vec<Line<'_>> = lines(sources, comparison).filter(is_told).collect();
    let mut left = 0;
    if !is_whole {
        sort_by_loss(&mut shown);
        left = shown.len().saturating_sub(SHOWN);
        shown.truncate(SHOWN);
    }
    ((!shown.is_empty()).then(|| cases(&shown)), left)
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
    if comparison.cases.iter().any(Case::lacks_interval) {
        let margin = 100.0 * comparison.margin;
        page.lines(&format!(
            "Numbers without an interval, as other tools' are, are the same up to {margin:.1} % \
             (--margin).\n"
        ));
    }
}

fn group(title: String, lines: &[Line<'_>]) -> [String; 7] {
    let [slower, faster, same] =
        [ChangeVerdict::Slower, ChangeVerdict::Faster, ChangeVerdict::Same].map(|verdict| {
            let count = lines.iter().filter(|line| line.case.verdict == verdict).count();
            words::or_dash((count > 0).then_some(count))
        });
    let compared = lines.iter().copied().filter(|line| line.case.is_compared());
    let mut compared: Vec<Line<'_>> = compared.collect();
    sort_by_loss(&mut compared);
    let median = compared.get(compared.len() / 2).and_then(|line| line.change());
    let worst = compared.first().and_then(|line| {
        let ends = line.row().ends(&line.naming(line.has_several_hosts()));
        Some(format!("{} {ends}", line.change()?).trim_end().to_owned())
    });
    let [median, worst] = [median, worst].map(words::or_dash);
    [title, lines.len().to_string(), slower, faster, same, median, worst]
}

fn sort_by_loss(lines: &mut [Line<'_>]) {
    let loss = |line: &Line<'_>| line.case.loss().unwrap_or_default();
    lines.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
}

/// The reasons why cases have no verdict, each once.
fn reasons(comparison: &Comparison) -> String {
    let reasons = without_verdict(comparison);
    if reasons.is_empty() {
        return String::new();
    }
    let lines = reasons.iter().take(SHOWN).map(|(reason, count)| format!("  {count}: {reason}\n"));
    format!("No verdict:\n{}", lines.collect::<String>())
}

/// Why cases have no verdict, and how many for each reason.
pub(super) fn without_verdict(comparison: &Comparison) -> IndexMap<&str, usize> {
    let mut reasons: IndexMap<&str, usize> = IndexMap::new();
    let all = comparison.cases.iter().map(|case| case.verdict.reason());
    for reason in all.filter(|reason| !reason.is_empty()) {
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

fn cases(lines: &[Line<'_>]) -> Grid {
    let columns: [Column<Line<'_>>; 6] = [
        ("case", |line| line.row().title(&line.naming(line.has_several_hosts()))),
        ("A", |line| line.value(line.case.a)),
        ("B", |line| line.value(line.case.b)),
        ("change", |line| words::or_dash(line.change())),
        ("95 % interval", |line| {
            words::or_dash(line.known().map(|known| {
                let [low, high] = [known.low, known.high].map(words::percent);
                format!("{} to {high}", low.trim_end_matches(" %"))
            }))
        }),
        ("verdict", |line| line.verdict()),
    ];
    Grid::of(&columns, lines.iter().copied()).words(&["case", "verdict"])
}

/// A line for each case.
pub fn csv(sources: &[Source], comparisons: &[Comparison]) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let head = COLUMNS.map(|(name, _)| name.to_owned());
    let lines = comparisons.iter().flat_map(|comparison| lines(sources, comparison));
    let cells = lines.map(|line| {
        COLUMNS.map(|(_, value)| match value(line) {
            Value::Null => String::new(),
            Value::String(text) => text,
            other => other.to_string(),
        })
    });
    for record in [head].into_iter().chain(cells) {
        writer.write_record(record).expect("memory takes every write");
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("every cell is text")
}

/// The same as a list in JSON.
pub fn json(sources: &[Source], comparisons: &[Comparison]) -> String {
    let object =
        |line| -> Value { COLUMNS.map(|(name, value)| (name, value(line))).into_iter().collect() };
    let lines = comparisons.iter().flat_map(|comparison| lines(sources, comparison));
    let objects: Vec<String> = lines.map(|line| format!("\n{}", object(line))).collect();
    format!("[{}\n]\n", objects.join(","))
}
