//! The tables of a run, and the only place that writes to standard output.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use super::{
    matrix,
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
    let mut stdout = io::stdout().lock();
    match stdout.write_all(visible(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Matrices for pairs of GPUs, a table for each other set of rows that differ only in their size,
/// and a list of what was skipped.
pub fn tables(rows: &[Row]) -> Page {
    let mut page = Page::default();
    let (absent, measured): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.size_bytes.is_none());
    let of_ranks = measured.iter().filter(|row| row.transport.is_between_ranks());
    let ranks: HashSet<Option<u32>> =
        of_ranks.flat_map(|row| [row.source_rank, row.target_rank]).collect();
    // Two ranks are no matrix.
    let is_pair =
        |row: &&Row| matrix::is_pair(row) && (!row.transport.is_between_ranks() || ranks.len() > 2);
    let (pairs, others): (Vec<&Row>, Vec<&Row>) = measured.into_iter().partition(is_pair);
    for rows in others.chunk_by(|a, b| title(a) == title(b)) {
        page.title(title(rows[0]));
        page.grid(sizes(rows));
        let of_size = |row: &Row| row.size_bytes.unwrap_or_default().to_string();
        page.lines(&format!("{}\n", verdicts::paths(rows, &of_size)));
    }
    matrix::matrices(&pairs, &mut page);
    page.lines(&verdicts::text(rows));
    if !absent.is_empty() {
        let reason = |row: &&Row| format!("  {:<5}  {}\n", row.transport, row.reason);
        page.lines(&format!("Not measured:\n{}", absent.iter().map(reason).collect::<String>()));
    }
    page
}

/// The title of rows that differ only in their size.
pub(super) fn title(row: &Row) -> String {
    let naming = Naming { has_hosts: false, without: &["size_bytes"] };
    format!("{}{}", row.title(&naming), words::mark(row.simulated))
}

/// A row for each size.
fn sizes(rows: &[&Row]) -> Grid {
    let first = rows[0];
    let has_several_flows = rows.iter().any(|row| row.flows > Some(1));
    let is_judged = rows.iter().any(|row| verdicts::percent(row) != "-");
    let rate = match first.pattern {
        _ if first.communicator_ranks.is_some() => "algbw GB/s",
        Some(Pattern::BothWays) if has_several_flows => "GB/s each way",
        _ if has_several_flows => "GB/s each",
        _ => "GB/s",
    };
    let mut columns: Vec<Column<&Row>> = vec![
        ("size", |row| row.size_bytes.unwrap_or_default().to_string()),
        (rate, |row| gb_s(row.bandwidth_gb_s)),
        ("95 % interval", |row| words::or_dash(words::interval(row))),
    ];
    if has_several_flows {
        columns.push(("GB/s total", |row| gb_s(row.bandwidth_gb_s_total)));
    }
    if first.communicator_ranks.is_some() {
        columns.push(("busbw GB/s", |row| gb_s(row.bandwidth_gb_s_bus)));
    }
    if rows.iter().any(|row| row.operations_per_s.is_some()) {
        columns.push(("10⁶ op/s", |row| words::or_dash(row.operations_per_s.map(millions))));
    }
    if is_judged {
        columns.push(("of expected", verdicts::percent));
    }
    columns.extend::<[Column<&Row>; 5]>([
        ("p50", |row| time(row.latency_ns_p50)),
        ("p90", |row| time(row.latency_ns_p90)),
        ("p99", |row| time(row.latency_ns_p99)),
        ("p99.9", |row| time(row.latency_ns_p999)),
        ("max", |row| time(row.latency_ns_max)),
    ]);
    if rows.iter().any(|row| row.empty_span_ns.is_some()) {
        columns.push(("empty span", |row| time(row.empty_span_ns)));
        columns.push(("empty kernel", |row| time(row.empty_kernel_ns)));
    }
    columns.push(("status", status));
    Grid::of(&columns, rows.iter().copied()).words(&["status"])
}

fn gb_s(rate: Option<f64>) -> String {
    words::or_dash(rate.map(readable_gb_s))
}

/// A rate in millions, with four digits as bandwidths have.
fn millions(rate: f64) -> String {
    readable_gb_s(rate / 1e6)
}

fn time(ns: Option<u64>) -> String {
    words::or_dash(ns.map(readable_nanoseconds))
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
