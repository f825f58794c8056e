//! What is to be thought of the numbers, in short: a line for each way, and one for each row that is
//! not as it should be.

use super::{Row, table};
use crate::{
    evidence::nccl_log::Verdict as PathVerdict, expected::Verdict, plan::TransportKind,
    units::readable_gb_s,
};

/// Rows that are listed one by one; more are counted.
const LINES_MAX: usize = 20;

/// What rows of one line have in common.
fn kind(row: &Row) -> (String, Option<&str>) {
    let operation = row.operation.map_or("-", |operation| operation.name());
    let engine = row.engine.map_or("-", |engine| engine.name());
    let words = if row.communicator_ranks.is_some() {
        format!("{} {operation}", row.transport.name())
    } else {
        let pattern = row.pattern.unwrap_or("-");
        format!("{} {pattern} {operation} {engine}", row.transport.name())
    };
    (words, row.expected_from.as_deref())
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
            "  {word}: {} {size}: {gb_s} GB/s, {}: {reason}\n",
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
    let told: Vec<(PathVerdict, &Row)> =
        rows.iter().filter_map(|row| Some((row.path_verdict?, *row))).collect();
    let path = |row: &'_ Row| row.path.clone().unwrap_or_default();
    let reason = |row: &'_ Row| row.path_reason.clone().unwrap_or_default();
    let is_alike = |(verdict, first): &(PathVerdict, &Row), other: &(_, &Row)| {
        *verdict == other.0
            && match verdict {
                PathVerdict::Proven => path(first) == path(other.1),
                _ => table::is_alike(&reason(first), &reason(other.1)),
            }
    };
    let mut text = String::new();
    for (place, one) in told.iter().enumerate() {
        if told[..place].iter().any(|before| is_alike(before, one)) {
            continue;
        }
        let (verdict, row) = *one;
        text.push_str(&match (verdict, row.transport) {
            (PathVerdict::Proven, TransportKind::Nccl) => {
                format!("path proven by NCCL's log: {}", path(row))
            }
            (PathVerdict::Proven, _) => format!("path proven by counters: {}", path(row)),
            (PathVerdict::Contradicted, _) => format!("path CONTRADICTED: {}", reason(row)),
            (PathVerdict::Unknown, _) => format!("path unknown: {}", reason(row)),
        });
        let count = told.iter().filter(|other| is_alike(one, other)).count();
        text.push_str(&match count {
            _ if count == told.len() => "\n".to_owned(),
            1 => format!(" ({})\n", which(row)),
            _ => format!(" ({count} of {} rows, the first {})\n", told.len(), which(row)),
        });
    }
    text
}
