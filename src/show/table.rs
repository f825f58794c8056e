//! What is printed: the only place that writes to standard output.

use std::io::{self, Write};

use super::{
    matrix,
    page::{Grid, Page},
    verdicts,
};
use crate::{
    plan::{Pattern, TransportKind},
    record::{Naming, Row, Status},
    stderr::visible,
    units::{Bytes, readable_gb_s, readable_nanoseconds},
};

/// Prints `text`, with what a terminal would obey as escapes. A reader that has gone away, such as
/// `head`, is no error.
///
/// # Errors
///
/// Standard output cannot be written.
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
    let of_rdma = measured.iter().filter(|row| row.transport == TransportKind::Rdma);
    let mut ranks: Vec<Option<u32>> =
        of_rdma.flat_map(|row| [row.source_rank, row.target_rank]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    // Two ranks are no matrix.
    let is_pair = |row: &&Row| {
        matrix::is_pair(row) && (row.transport != TransportKind::Rdma || ranks.len() > 2)
    };
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

/// What rows are about that differ only in their size.
pub(super) fn title(row: &Row) -> String {
    let simulated = if row.simulated { " [SIMULATED]" } else { "" };
    let naming = Naming { has_hosts: false, without: &["size_bytes"] };
    format!("{}{simulated}", row.title(&naming))
}

/// Whether two reasons differ in their numbers at most.
pub(super) fn is_alike(one: &str, other: &str) -> bool {
    let unnumbered = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    unnumbered(one) == unnumbered(other)
}

fn sizes(rows: &[&Row]) -> Grid {
    let several = rows.iter().any(|row| row.flows > Some(1));
    let is_collective = rows[0].communicator_ranks.is_some();
    let mut header = vec!["size", "GB/s", "95 % interval"];
    if several {
        header[1] = "GB/s each way";
        if rows[0].pattern != Some(Pattern::BothWays) {
            header[1] = "GB/s each";
        }
        header.push("GB/s total");
    }
    if is_collective {
        header[1] = "algbw GB/s";
        header.push("busbw GB/s");
    }
    let is_judged = rows.iter().any(|row| verdicts::percent(row) != "-");
    if is_judged {
        header.push("of expected");
    }
    header.extend(["p50", "p90", "p99", "p99.9", "max", "status"]);
    let mut grid = Grid::new(header).words(&["status"]);
    for row in rows {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), readable_gb_s);
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), readable_nanoseconds);
        let interval = match (row.bandwidth_gb_s_low, row.bandwidth_gb_s_high) {
            (Some(low), Some(high)) => {
                format!("{} to {}", readable_gb_s(low), readable_gb_s(high))
            }
            _ => "-".to_owned(),
        };
        let mut cells = vec![size(row.size_bytes), rate(row.bandwidth_gb_s), interval];
        if several {
            cells.push(rate(row.bandwidth_gb_s_total));
        }
        if is_collective {
            cells.push(rate(row.bandwidth_gb_s_bus));
        }
        if is_judged {
            cells.push(verdicts::percent(row));
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
        grid.row(cells);
    }
    grid
}

fn size(size: Option<Bytes>) -> String {
    size.unwrap_or_default().to_string()
}

/// What a person must know of a row, behind its numbers.
fn status(row: &Row) -> String {
    match row.status {
        Status::Ok => {
            let mut words = vec!["verified".to_owned()];
            let chosen = [&row.algorithm, &row.algorithm_protocol].map(Option::as_deref);
            if let [Some(algorithm), Some(protocol)] = chosen {
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
        Status::Skipped => format!("skipped: {}", row.reason),
        Status::Corrupt => format!("CORRUPT: {}", row.reason),
        Status::Failed => format!("FAILED: {}", row.reason),
    }
}
