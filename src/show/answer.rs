//! The answer of a run: the summary first, then a matrix or a table of each transport.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::{
    matrix::{self, middle, short_gb_s},
    page::{Column, Grid, Page, Sentence, Tone},
    summary::{self, Reached, kinds},
    table, verdicts, words,
};
use crate::{
    plan::TransportKind,
    record::{Naming, Row, Run, Status},
    units::{Bytes, microseconds_at},
};

/// Kinds of transfers, and things that are wrong, in a summary; further ones are counted.
const KINDS_MAX: usize = 4;
const WRONGS_MAX: usize = 2;

/// Reasons that are told in full.
const REASONS_MAX: usize = 6;

/// The results of a run: what `took` so long, as far as it was measured now. With `is_whole` a line
/// for every row.
pub fn answer(run: &Run, took: Option<&str>, is_whole: bool) -> Page {
    let mut page = Page::default();
    let rows = &run.rows;
    let wrong = summary::wrong(rows, &run.provenance.hosts);
    page.title(summary::machine(&run.provenance) + words::mark(run.provenance.simulated));
    page.sentence(summary::outcome(rows, took));
    add_kinds(&mut page, rows);
    for (number, told) in wrong.iter().take(WRONGS_MAX).enumerate() {
        let more = match wrong.len() - number {
            left @ 2.. if number + 1 == WRONGS_MAX => format!("; and {} more below", left - 1),
            _ => String::new(),
        };
        page.sentence(Sentence { tone: Tone::Bad, text: format!("{}{more}.", told.said) });
    }
    page.lines("\n");
    let measured: Vec<&Row> = rows.iter().filter(|row| row.size_bytes.is_some()).collect();
    let ranks: HashSet<Option<u32>> = measured
        .iter()
        .filter(|row| row.transport.is_between_ranks())
        .flat_map(|row| [row.source_rank, row.target_rank])
        .collect();
    // Two ranks are no matrix.
    let is_pair =
        |row: &&Row| matrix::is_pair(row) && (!row.transport.is_between_ranks() || ranks.len() > 2);
    let (pairs, others): (Vec<&Row>, Vec<&Row>) = measured.iter().partition(|row| is_pair(row));
    for rows in others.chunk_by(|a, b| a.transport == b.transport) {
        add_transport(&mut page, rows);
    }
    matrix::matrices(&pairs, &mut page, is_whole);
    if is_whole {
        table::add_rows(&mut page, &measured);
    }
    if !wrong.is_empty() {
        page.lines("What shows it:\n");
        let shown = if is_whole { wrong.len() } else { REASONS_MAX };
        for told in wrong.iter().take(shown) {
            page.lines(&format!("  {}: {}\n", told.said, told.why));
        }
        if wrong.len() > shown {
            let left = wrong.len() - shown;
            page.lines(&format!("  and {left} more, which --details shows\n"));
        }
        page.lines("\n");
    }
    let absent = rows.iter().filter(|row| row.size_bytes.is_none());
    let absent: String =
        absent.map(|row| format!("  {:<5}  {}\n", row.transport, row.reason)).collect();
    if !absent.is_empty() {
        page.lines(&format!("Not measured:\n{absent}\n"));
    }
    page
}

/// A line for each kind of transfer.
fn add_kinds(page: &mut Page, rows: &[Row]) {
    let kinds = kinds(rows, &["issuer"]);
    let all: Vec<Reached<'_>> = kinds.iter().filter_map(Reached::of).collect();
    // The first kind of each transport, then the second of each, and so on.
    let mut of_transport: IndexMap<TransportKind, usize> = IndexMap::new();
    let mut ranked: Vec<(usize, usize)> = Vec::new();
    for (at, reached) in all.iter().enumerate() {
        let before = of_transport.entry(reached.transport()).or_default();
        ranked.push((*before, at));
        *before += 1;
    }
    ranked.sort_unstable();
    ranked.truncate(KINDS_MAX);
    ranked.sort_unstable_by_key(|(_, at)| *at);
    let left = all.len() - ranked.len();
    let columns: [Column<&Reached<'_>>; 5] = [
        ("at the median", |reached| reached.name.to_owned()),
        ("size", |reached| words::short_size(reached.size)),
        ("", Reached::median),
        ("of expected", |reached| verdicts::percent(reached.share)),
        ("read / write", |reached| {
            reached.read_by_write.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
        }),
    ];
    let mut grid = Grid::of(&columns, ranked.iter().map(|(_, at)| &all[*at]));
    if left > 0 {
        let more = format!("and {left} more below");
        grid.row([more].into_iter().chain(std::iter::repeat_n(String::new(), 4)));
    }
    if !all.is_empty() {
        page.grid(grid.words(&["at the median"]).spare(&["read / write", "of expected"]));
    }
}

/// Rows of one kind and size.
type Line<'a> = Vec<&'a Row>;

/// The table of a transport that has no matrix.
fn add_transport(page: &mut Page, rows: &[&Row]) {
    let mut lines: IndexMap<(String, Option<Bytes>), Line<'_>> = IndexMap::new();
    for &row in rows {
        lines.entry((kind(row), row.size_bytes)).or_default().push(row);
    }
    let transport = rows[0].transport;
    let simulated = words::mark(rows.iter().any(|row| row.simulated));
    page.title(format!("{transport}{simulated}"));
    let lines = lines.values();
    page.grid(match transport.is_collective() {
        true => Grid::of(&collectives(), lines)
            .words(&["operation", "type", "redop", "between", "by"])
            .spare(&["root", "between", "type", "redop", "by", "algbw GB/s"])
            .without_empty(),
        false => Grid::of(&copies(), lines)
            .words(&["what", "between"])
            .spare(&["total", "10⁶ op/s", "between"])
            .without_empty(),
    });
    page.lines("\n");
    let paths = verdicts::paths(rows, &|row| row.title(&Naming::default()));
    page.lines(&(matrix::notes(rows) + &paths));
    if !paths.is_empty() {
        page.lines("\n");
    }
}

/// The columns of all but collectives. Rates are those of one flow.
fn copies<'a>() -> [Column<&'a Line<'a>>; 8] {
    [
        ("what", |rows| kind(rows[0])),
        ("size", |rows| rows[0].size_bytes.unwrap_or_default().to_string()),
        ("between", between),
        ("GB/s", |rows| number(rows, |row| row.bandwidth_gb_s)),
        ("total", |rows| {
            let total = |row: &Row| row.bandwidth_gb_s_total.filter(|_| row.flows > Some(1));
            middle(rows, total).map_or_else(String::new, short_gb_s)
        }),
        ("of expected", share),
        ("10⁶ op/s", |rows| {
            let millions = middle(rows, |row| Some(row.operations_per_s? / 1e6));
            millions.map_or_else(String::new, short_gb_s)
        }),
        ("p50", |rows| {
            let p50 = middle(rows, |row| Some(row.latency_ns_p50? as f64));
            p50.map_or_else(String::new, words::nanoseconds)
        }),
    ]
}

/// The columns of collectives: those of nccl-tests.
fn collectives<'a>() -> [Column<&'a Line<'a>>; 11] {
    [
        ("operation", |rows| kind(rows[0])),
        ("size", |rows| rows[0].size_bytes.unwrap_or_default().to_string()),
        ("type", |rows| words::or_dash(rows[0].data_type)),
        ("redop", |rows| words::or_dash(rows[0].reduction)),
        ("root", |rows| rows[0].root.map_or_else(String::new, |root| root.to_string())),
        ("between", between),
        ("time µs", |rows| {
            number(rows, |row| Some(microseconds_at(row.size_bytes?, row.bandwidth_gb_s?)))
        }),
        ("algbw GB/s", |rows| number(rows, |row| row.bandwidth_gb_s)),
        ("busbw GB/s", |rows| number(rows, |row| row.bandwidth_gb_s_bus)),
        ("of expected", share),
        ("by", |rows| {
            let row = rows[0];
            let how = [row.algorithm.as_deref(), row.algorithm_protocol.as_deref()];
            how.into_iter().flatten().collect::<Vec<&str>>().join(" ")
        }),
    ]
}

/// What is done, without what has a column of its own.
fn kind(row: &Row) -> String {
    let without: &[&str] = match row.transport.is_collective() {
        true => &["transport", "data_type", "reduction", "root"],
        false => &["transport"],
    };
    row.kind(&Naming { has_hosts: false, without })
}

/// The ends of a single row; of several that all are alike, or the least.
fn between(rows: &Line<'_>) -> String {
    let ends = |row: &Row| row.ends(&Naming::default());
    if let [row] = rows[..] {
        return ends(row);
    }
    match matrix::least(rows) {
        None => format!("{} alike", rows.len()),
        Some((row, least)) => {
            format!("{}, least {} at {}", rows.len(), short_gb_s(least), ends(row))
        }
    }
}

/// The median share of what is expected.
fn share(rows: &Line<'_>) -> String {
    verdicts::percent(middle(rows, verdicts::share))
}

/// The median of a number; of rows without one their status.
fn number(rows: &Line<'_>, value: impl Fn(&Row) -> Option<f64>) -> String {
    match middle(rows, value) {
        Some(value) => short_gb_s(value),
        None if rows[0].status != Status::Ok => words::status(rows[0].status).to_owned(),
        None => String::new(),
    }
}
