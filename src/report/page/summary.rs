//! What a person reads first: what was reached, and what stands against it.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    Kind, Sentence,
    pairs::{median, short},
};
use crate::{
    record::{Columns, Run},
    report::{attribution, words},
    units::count,
};

/// Sentences of one sort; what is left is counted.
const SENTENCES_MAX: usize = 12;

/// Flags that say something of the machine and not of how it was measured.
const HEALTH: [&str; 6] =
    ["throttled", "new_ecc_errors", "new_nvlink_errors", "new_pcie_replays", "xid", "gpu_lost"];

pub(super) fn sentences(run: &Run, kinds: &[Kind]) -> Vec<Sentence> {
    let rows = &run.rows;
    let mut sentences = vec![outcome(rows)];
    sentences.extend(against(run));
    sentences.extend(limited(kinds.iter().filter_map(|kind| reached(rows, kind)), "note"));
    sentences.extend(limited(not_measured(rows).into_iter(), "note"));
    sentences
}

/// As many sentences as can be read, and how many are left.
fn limited(all: impl Iterator<Item = String>, kind: &'static str) -> Vec<Sentence> {
    let mut all: Vec<String> = all.collect();
    let left = all.len().saturating_sub(SENTENCES_MAX);
    all.truncate(SENTENCES_MAX);
    if left > 0 {
        all.push(format!("And {left} more, in the tables below."));
    }
    all.into_iter().map(|text| Sentence { kind, text: text.replace("->", "→") }).collect()
}

/// Whether what was to be measured was measured.
fn outcome(rows: &Columns) -> Sentence {
    let [ok, skipped, corrupt, failed] =
        ["ok", "skipped", "corrupt", "failed"].map(|status| rows.with("status", status).count());
    let mut text = format!("{} measured, every byte verified", count(ok, "row"));
    for (number, what) in [(skipped, "skipped"), (corrupt, "CORRUPT"), (failed, "FAILED")] {
        if number > 0 {
            text.push_str(&format!("; {number} {what}"));
        }
    }
    let kind = match (ok, corrupt + failed) {
        (_, 1..) => "bad",
        (0, _) => "note",
        _ => "good",
    };
    Sentence { kind, text: text + "." }
}

/// What a kind of transfer has reached with its largest size.
fn reached(rows: &Columns, kind: &Kind) -> Option<String> {
    let sizes = rows.texts("size_bytes");
    let largest = kind.rows.iter().filter_map(|row| sizes.count(*row)).max()?;
    let members = || kind.rows.iter().copied().filter(|row| sizes.count(*row) == Some(largest));
    let is_collective = rows.text(kind.rows[0], "transport") == "nccl";
    let column = if is_collective { "bandwidth_gb_s_bus" } else { "bandwidth_gb_s" };
    let values: Vec<(usize, f64)> =
        members().filter_map(|row| Some((row, rows.number(row, column)?))).collect();
    if values.is_empty() {
        let latencies: Vec<f64> =
            members().filter_map(|row| rows.number(row, "latency_ns_p50")).collect();
        let middle = words::nanoseconds(median(&latencies));
        return (!latencies.is_empty()).then(|| format!("{}: {middle} at the median.", kind.name));
    }
    let gb_s: Vec<f64> = values.iter().map(|(_, gb_s)| *gb_s).collect();
    let bus = if is_collective { " bus bandwidth" } else { "" };
    let mut text = format!(
        "{}, {}: {} GB/s{bus}",
        kind.name,
        words::short_size(largest),
        short(median(&gb_s)),
    );
    if let (Some((slow, low)), Some((_, high))) = (
        values.iter().min_by(|a, b| a.1.total_cmp(&b.1)),
        values.iter().max_by(|a, b| a.1.total_cmp(&b.1)),
    ) && values.len() > 1
    {
        let has_hosts = rows.text(*slow, "source_host") != rows.text(*slow, "target_host");
        text.push_str(&match short(*low) == short(*high) {
            true => format!(" each of {}", values.len()),
            false => format!(
                " at the median of {}, {} ({}) to {}",
                values.len(),
                short(*low),
                words::ends(rows, *slow, has_hosts),
                short(*high),
            ),
        });
    }
    let shares: Vec<f64> =
        values.iter().filter_map(|(row, _)| rows.number(*row, "expected_fraction")).collect();
    if !shares.is_empty() {
        text.push_str(&format!("; {:.0} % of what is expected", 100.0 * median(&shares)));
    }
    Some(text + ".")
}

/// What stands against the numbers, or against the machine.
fn against(run: &Run) -> Vec<Sentence> {
    let rows = &run.rows;
    let slow = attribution::find(rows, &|row| attribution::way(rows, row, &run.provenance.hosts));
    let mut all: Vec<String> =
        attribution::text(&slow).lines().skip(1).map(|line| format!("{}.", line.trim())).collect();
    for (column, text, reason, what) in [
        ("status", "corrupt", "reason", "CORRUPT"),
        ("status", "failed", "reason", "FAILED"),
        ("verdict", "below", "verdict_reason", "below what is expected"),
        ("verdict", "above", "verdict_reason", "above what is possible"),
        ("path_verdict", "contradicted", "path_reason", "took another path"),
    ] {
        let reasons = rows.texts(reason);
        let found = rows.with(column, text).map(|row| (row, reasons.text(row)));
        all.extend(grouped(rows, found, what));
    }
    let mut flags: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let told = rows.texts("flags");
    let told =
        (0..rows.len()).map(|row| (row, told.text(row))).filter(|(_, text)| !text.is_empty());
    for (row, text) in told {
        for flag in text.split(' ').filter(|flag| HEALTH.contains(flag)) {
            flags.entry(flag).or_insert((row, 0)).1 += 1;
        }
    }
    all.extend(flags.iter().map(|(flag, (row, number))| {
        format!("Flag {flag} on {}, the first row {}.", count(*number, "row"), row + 1)
    }));
    if all.is_empty() {
        let text = "Nothing stands against these numbers.".to_owned();
        return vec![Sentence { kind: "good", text }];
    }
    limited(all.into_iter(), "bad")
}

/// What rows have in common, as one sentence for each reason that differs in more than its numbers.
fn grouped<'a>(
    rows: &Columns,
    found: impl Iterator<Item = (usize, &'a str)>,
    what: &str,
) -> Vec<String> {
    let unnumbered = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    let mut groups: Vec<(usize, &str, usize)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (row, reason) in found {
        let place = *places.entry(unnumbered(reason)).or_insert_with(|| {
            groups.push((row, reason, 0));
            groups.len() - 1
        });
        groups[place].2 += 1;
    }
    let sentence = |(row, reason, number): (usize, &str, usize)| {
        let ends =
            [words::kind(rows, row, ""), words::ends(rows, row, false), words::size(rows, row)];
        let ends: Vec<String> = ends.into_iter().filter(|part| !part.is_empty()).collect();
        let more = match number {
            1 => String::new(),
            _ => format!(" ({number} rows, this is the first)"),
        };
        format!("{}: {what}{more}: {reason}.", ends.join(", "))
    };
    groups.into_iter().map(sentence).collect()
}

/// Transports that could not run here.
fn not_measured(rows: &Columns) -> Vec<String> {
    let [transports, reasons] = ["transport", "reason"].map(|column| rows.texts(column));
    let of = |row: usize| (transports.text(row), reasons.text(row));
    let mut known: HashSet<(&str, &str)> = HashSet::new();
    let first = rows.with("status", "skipped").map(of).filter(|told| known.insert(*told));
    first.map(|(transport, reason)| format!("Not measured: {transport}: {reason}.")).collect()
}
