//! What is printed: the only place that writes to standard output.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::{Row, Status};
use crate::units::{Bytes, readable_nanoseconds};

/// Prints `text` as it is. A reader that has gone away, such as `head`, is no error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A table for each set of rows that differ only in their size, and a list of what was skipped.
pub fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    let (absent, measured): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.size_bytes.is_none());
    for rows in measured.chunk_by(|a, b| title(a) == title(b)) {
        text.push_str(&title(rows[0]));
        text.push('\n');
        text.push_str(&sizes(rows));
        text.push_str("\n\n");
    }
    if !absent.is_empty() {
        text.push_str("Not measured:\n");
        for row in absent {
            text.push_str(&format!("  {:<5}  {}\n", row.transport.name(), row.reason));
        }
    }
    text
}

fn title(row: &Row) -> String {
    let end = |rank: Option<u32>, node: Option<u32>, cpu: Option<u32>| {
        let number = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let cpu = cpu.map_or_else(|| "shared CPUs".to_owned(), |cpu| format!("CPU {cpu}"));
        format!("rank {} (NUMA node {}, {cpu})", number(rank), number(node))
    };
    let arrow = match row.pattern {
        Some("both-ways") => "<->",
        _ => "->",
    };
    let more = match (row.pattern, row.flows) {
        (Some("pairs"), Some(flows)) => format!(" and {} more pairs at once", flows - 1),
        _ => String::new(),
    };
    let simulated = if row.simulated { " [SIMULATED]" } else { "" };
    format!(
        "{} {}: {} memory, {} {arrow} {}{more}{simulated}",
        row.transport.name(),
        row.pattern.unwrap_or("-"),
        row.memory.unwrap_or("-"),
        end(row.source_rank, row.source_numa_node, row.source_cpu),
        end(row.target_rank, row.target_numa_node, row.target_cpu),
    )
}

fn sizes(rows: &[&Row]) -> String {
    let several = rows.iter().any(|row| row.flows > Some(1));
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["size", "GB/s", "95 % interval"];
    if several {
        header[1] = "GB/s each way";
        if rows[0].pattern == Some("pairs") {
            header[1] = "GB/s each";
        }
        header.push("GB/s total");
    }
    header.extend(["p50", "p90", "p99", "p99.9", "max", "status"]);
    table.set_header(header);
    for row in rows {
        let rate =
            |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.3}"));
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), readable_nanoseconds);
        let interval = match (row.bandwidth_gb_s_low, row.bandwidth_gb_s_high) {
            (Some(low), Some(high)) => format!("{low:.3} to {high:.3}"),
            _ => "-".to_owned(),
        };
        let mut cells = vec![size(row.size_bytes), rate(row.bandwidth_gb_s), interval];
        if several {
            cells.push(rate(row.bandwidth_gb_s_total));
        }
        let latencies = [
            row.latency_ns_p50,
            row.latency_ns_p90,
            row.latency_ns_p99,
            row.latency_ns_p999,
            row.latency_ns_max,
        ];
        cells.extend(latencies.map(time));
        cells.push(status(row));
        table.add_row(cells.into_iter().map(Cell::new));
    }
    let status_column = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        if index != status_column {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn size(size: Option<Bytes>) -> String {
    size.unwrap_or_default().to_string()
}

/// What a person must know of a row, behind its numbers.
fn status(row: &Row) -> String {
    match row.status {
        Status::Ok if row.flags.is_empty() => "verified".to_owned(),
        Status::Ok => format!("verified; {}", row.flags.replace(' ', ", ").replace('_', " ")),
        Status::Skipped => format!("skipped: {}", row.reason),
        Status::Corrupt => format!("CORRUPT: {}", row.reason),
        Status::Failed => format!("FAILED: {}", row.reason),
    }
}
