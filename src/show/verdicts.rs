//! What is to be thought of the numbers, in short: a line for each way, and one for each row that
//! is not as it should be.

use super::table;
use crate::{
    judge::expected::Verdict,
    nccl_log::Verdict as PathVerdict,
    plan::TransportKind,
    record::{Naming, Row},
    units::readable_gb_s,
};

/// Rows that are listed one by one; more are counted.
const LINES_MAX: usize = 20;

/// What rows of one line have in common.
fn kind(row: &Row) -> (String, Option<&str>) {
    let naming = Naming { has_hosts: false, without: &["issuer", "in_place"] };
    (row.kind(&naming), row.expected_from.as_deref())
}

/// The share of what is expected, for a table: `98 %`.
pub(super) fn percent(row: &Row) -> String {
    let known = row.expected_fraction.filter(|_| row.verdict != Some(Verdict::Unknown));
    known.map_or_else(|| "-".to_owned(), |fraction| format!("{:.0} %", 100.0 * fraction))
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
    let mut kinds: Vec<(String, Option<&str>)> = Vec::new();
    for row in &judged {
        if !kinds.contains(&kind(row)) {
            kinds.push(kind(row));
        }
    }
    let simulated = if judged.iter().any(|row| row.simulated) { " [SIMULATED]" } else { "" };
    let mut text = format!("Of what is expected here{simulated}\n");
    for kind_of in &kinds {
        let of_kind: Vec<&&Row> = judged.iter().filter(|row| kind(row) == *kind_of).collect();
        let shares = of_kind.iter().filter_map(|row| row.expected_fraction);
        let least = 100.0 * shares.clone().fold(f64::INFINITY, f64::min);
        let most = 100.0 * shares.fold(0.0, f64::max);
        let (words, from) = kind_of;
        let expected = of_kind[0].expected_gb_s.map_or_else(String::new, readable_gb_s);
        let range = if least.round() < most.round() {
            format!("{least:.0} to {most:.0} %")
        } else {
            format!("{most:.0} %")
        };
        let from = from.unwrap_or_default();
        text.push_str(&format!("  {words}: {range} of {expected} GB/s ({from})\n"));
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

/// Which way the data of rows went, as a line for each way: how many of them went it, with the
/// first as `which` names it.
pub(super) fn paths(rows: &[&Row], which: &dyn Fn(&Row) -> String) -> String {
    struct Way<'a> {
        said: String,
        first: &'a Row,
        count: usize,
    }
    let mut ways: Vec<Way<'_>> = Vec::new();
    for row in rows {
        let Some(verdict) = row.path_verdict else { continue };
        let path = row.path.as_deref().unwrap_or_default();
        let reason = row.path_reason.as_deref().unwrap_or_default();
        let said = match (verdict, row.transport) {
            (PathVerdict::Proven, TransportKind::Nccl) => {
                format!("path proven by NCCL's log: {path}")
            }
            (PathVerdict::Proven, _) => format!("path proven by counters: {path}"),
            (PathVerdict::Contradicted, _) => format!("path CONTRADICTED: {reason}"),
            (PathVerdict::Unknown, _) => format!("path unknown: {reason}"),
        };
        // The numbers of a path count, those of a reason do not.
        let is_alike = |way: &&mut Way<'_>| {
            way.said == said || verdict != PathVerdict::Proven && table::is_alike(&way.said, &said)
        };
        match ways.iter_mut().find(is_alike) {
            Some(way) => way.count += 1,
            None => ways.push(Way { said, first: row, count: 1 }),
        }
    }
    let told: usize = ways.iter().map(|way| way.count).sum();
    let line = |Way { said, first, count }: &Way<'_>| match *count {
        count if count == told => format!("{said}\n"),
        1 => format!("{said} ({})\n", which(first)),
        count => format!("{said} ({count} of {told} rows, the first {})\n", which(first)),
    };
    ways.iter().map(line).collect()
}
