//! The tables of a run, and the only place that writes to standard output.

use std::io::{self, Write};

use anstream::AutoStream;
use indexmap::IndexMap;

use super::{
    page::{Column, Grid, Page},
    verdicts, words,
};
use crate::{
    plan::Pattern,
    record::{Naming, Row, Status},
    stderr::visible,
    units::{readable_gb_s, readable_nanoseconds},
};

/// Prints `text`, with control characters as escapes. It is no error if the reader has gone away,
/// as `head` does.
pub fn print(text: &str) -> io::Result<()> {
    write(io::stdout().lock(), &visible(text))
}

/// The same with what a terminal obeys to show styles, where one is that wants them.
pub fn print_page(page: &Page) -> io::Result<()> {
    write(AutoStream::auto(io::stdout().lock()), &page.styled())
}

fn write(mut stdout: impl Write, text: &str) -> io::Result<()> {
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A table for each kind of transfer, with a line for each row.
pub(super) fn add_rows(page: &mut Page, rows: &[&Row]) {
    let mut kinds: IndexMap<String, Vec<&Row>> = IndexMap::new();
    for &row in rows {
        kinds.entry(row.kind(&Naming::default())).or_default().push(row);
    }
    for (name, rows) in kinds {
        page.title(name + words::mark(rows.iter().any(|row| row.simulated)));
        page.grid(of_rows(&rows));
        page.lines("\n");
    }
}

/// A line for each row of one kind.
fn of_rows(rows: &[&Row]) -> Grid {
    let has_several_flows = rows.iter().any(|row| row.flows > Some(1));
    let rate = match rows[0].pattern {
        _ if rows[0].communicator_ranks.is_some() => "algbw GB/s",
        Some(Pattern::BothWays) if has_several_flows => "GB/s each way",
        _ if has_several_flows => "GB/s each",
        _ => "GB/s",
    };
    let columns: [Column<&Row>; 16] = [
        ("between", |row| row.ends(&Naming::default())),
        ("size", |row| row.size_bytes.unwrap_or_default().to_string()),
        (rate, |row| gb_s(row.bandwidth_gb_s)),
        ("95 % interval", |row| words::interval(row).unwrap_or_default()),
        ("GB/s total", |row| gb_s(row.bandwidth_gb_s_total.filter(|_| row.flows > Some(1)))),
        ("busbw GB/s", |row| gb_s(row.bandwidth_gb_s_bus)),
        ("10⁶ op/s", |row| gb_s(row.operations_per_s.map(|rate| rate / 1e6))),
        ("of expected", |row| verdicts::percent(verdicts::share(row))),
        ("p50", |row| time(row.latency_ns_p50)),
        ("p90", |row| time(row.latency_ns_p90)),
        ("p99", |row| time(row.latency_ns_p99)),
        ("p99.9", |row| time(row.latency_ns_p999)),
        ("max", |row| time(row.latency_ns_max)),
        ("empty span", |row| time(row.empty_span_ns)),
        ("empty kernel", |row| time(row.empty_kernel_ns)),
        ("status", status),
    ];
    let spare = [
        "empty kernel",
        "empty span",
        "95 % interval",
        "max",
        "p99.9",
        "p90",
        "10⁶ op/s",
        "GB/s total",
        "p99",
        "status",
    ];
    let grid = Grid::of(&columns, rows.iter().copied()).words(&["between", "status"]);
    grid.spare(&spare).without_empty()
}

fn gb_s(rate: Option<f64>) -> String {
    rate.map_or_else(String::new, readable_gb_s)
}

fn time(ns: Option<u64>) -> String {
    ns.map_or_else(String::new, readable_nanoseconds)
}

/// The status of a row with its remarks.
fn status(row: &Row) -> String {
    if row.status != Status::Ok {
        return format!("{}: {}", words::status(row.status), row.reason);
    }
    let mut words = vec!["verified".to_owned()];
    if let (Some(algorithm), Some(protocol)) = (&row.algorithm, &row.algorithm_protocol) {
        words.push(format!("{algorithm} {protocol}"));
    }
    if row.communicator_ranks == Some(1) {
        words.push("one rank has no bus bandwidth".to_owned());
    }
    if let (Some(rank), Some(gb_s)) = (row.slowest_rank, row.slowest_rank_gb_s) {
        words.push(format!("slowest: rank {rank} with {} GB/s", readable_gb_s(gb_s)));
    }
    if !row.flags.is_empty() {
        words.push(row.flags.replace(' ', ", ").replace('_', " "));
    }
    words.join("; ")
}
