//! The verdicts in short: the share of what is expected, and a line for each path.

use indexmap::IndexMap;

use super::words;
use crate::{judge::expected::Verdict, nccl_log::Verdict as PathVerdict, record::Row};

/// The share of what is expected, for a table: `98 %`.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
}

/// What a row reaches of what is expected, where there is a verdict on it.
pub(super) fn share(row: &Row) -> Option<f64> {
    row.expected_fraction.filter(|_| row.verdict != Some(Verdict::Unknown))
}

/// A line for each path that the data of rows took: how many rows took it, with the first as
/// `which` names it.
pub(super) fn paths(rows: &[&Row], which: &dyn Fn(&Row) -> String) -> String {
    let mut found: IndexMap<String, (String, &Row, usize)> = IndexMap::new();
    for row in rows {
        let Some(verdict) = row.path_verdict else { continue };
        let path = row.path.as_deref().unwrap_or_default();
        let reason = row.path_reason.as_deref().unwrap_or_default();
        let proof = if row.transport.is_collective() { "NCCL's log" } else { "counters" };
        let line = match verdict {
            PathVerdict::Proven => format!("path proven by {proof}: {path}"),
            PathVerdict::Contradicted => format!("path CONTRADICTED: {reason}"),
            PathVerdict::Unknown => format!("path unknown: {reason}"),
        };
        // Paths that differ in a number are different, reasons are not.
        let key = match verdict {
            PathVerdict::Proven => line.clone(),
            PathVerdict::Contradicted | PathVerdict::Unknown => words::unnumbered(&line),
        };
        found.entry(key).or_insert((line, row, 0)).2 += 1;
    }
    let all: usize = found.values().map(|(.., count)| count).sum();
    let line = |(line, first, count): &(String, &Row, usize)| match *count {
        count if count == all => format!("{line}\n"),
        1 => format!("{line} ({})\n", which(first)),
        count => format!("{line} ({count} of {all} rows, the first {})\n", which(first)),
    };
    found.values().map(line).collect()
}
