//! The verdicts in short: a line for each path, and one for each row that is not as expected.

use indexmap::IndexMap;

use super::{table, words};
use crate::{
    judge::expected::Verdict,
    nccl_log::Verdict as PathVerdict,
    record::{Naming, Row},
    units::readable_gb_s,
};

/// Rows that are listed one by one; more are counted.
const LINES_MAX: usize = 20;

/// The common properties of the rows of one line.
fn kind(row: &Row) -> (String, Option<&str>) {
    let naming = Naming { has_hosts: false, without: &["issuer", "in_place"] };
    (row.kind(&naming), row.expected_from.as_deref())
}

/// The share of what is expected, for a table: `98 %`.
pub(super) fn percent(row: &Row) -> String {
    let known = row.expected_fraction.filter(|_| row.verdict != Some(Verdict::Unknown));
    words::or_dash(known.map(|fraction| format!("{:.0} %", 100.0 * fraction)))
}

/// All rows that are judged, in short; empty if there is none.
pub(super) fn text(rows: &[Row]) -> String {
    let judged: Vec<&Row> = rows
        .iter()
        .filter(|row| row.verdict.is_some_and(|verdict| verdict != Verdict::Unknown))
        .collect();
    if judged.is_empty() {
        return String::new();
    }
    let mut kinds: IndexMap<(String, Option<&str>), Vec<&Row>> = IndexMap::new();
    for &row in &judged {
        kinds.entry(kind(row)).or_default().push(row);
    }
    let simulated = words::mark(judged.iter().any(|row| row.simulated));
    let mut text = format!("Of what is expected here{simulated}\n");
    for ((name, from), of_kind) in &kinds {
        let shares = of_kind.iter().filter_map(|row| row.expected_fraction);
        let least = 100.0 * shares.clone().fold(f64::INFINITY, f64::min);
        let most = 100.0 * shares.fold(0.0, f64::max);
        let expected = of_kind[0].expected_gb_s.map_or_else(String::new, readable_gb_s);
        let range = if least.round() < most.round() {
            format!("{least:.0} to {most:.0} %")
        } else {
            format!("{most:.0} %")
        };
        let from = from.unwrap_or_default();
        text.push_str(&format!("  {name}: {range} of {expected} GB/s ({from})\n"));
    }
    let strange: Vec<&&Row> =
        judged.iter().filter(|row| row.verdict != Some(Verdict::Expected)).collect();
    for row in strange.iter().take(LINES_MAX) {
        let word = if row.verdict == Some(Verdict::Above) { "ABOVE" } else { "BELOW" };
        let gb_s =
            row.bandwidth_gb_s_bus.or(row.bandwidth_gb_s).map_or_else(String::new, readable_gb_s);
        let reason = row.verdict_reason.as_deref().unwrap_or_default();
        let size = row.size_bytes.unwrap_or_default();
        text.push_str(&format!(
            "  {word}: {}, {size}: {gb_s} GB/s, {}: {reason}\n",
            table::title(row),
            percent(row)
        ));
    }
    if strange.len() > LINES_MAX {
        let left = strange.len() - LINES_MAX;
        text.push_str(&format!("  and {left} more: see verdict in run.csv\n"));
    }
    text
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
