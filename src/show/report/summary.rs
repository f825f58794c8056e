//! What a person reads first: what was reached, and what is wrong with it.

use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};

use super::{
    Kind, Sentence,
    pairs::{median, short},
};
use crate::{
    analysis::attribution,
    judge::expected::Verdict,
    nccl_log::Verdict as PathVerdict,
    record::{Naming, Row, Run, Status},
    show::words,
    units::count,
};

/// Sentences of one kind; further ones are counted.
const SENTENCES_MAX: usize = 12;

/// Where to find further reasons.
const IN_REASON: &str = "the column reason of run.csv has them";

/// Flags that concern the machine and not the measurement.
const HEALTH: [&str; 6] =
    ["throttled", "new_ecc_errors", "new_nvlink_errors", "new_pcie_replays", "xid", "gpu_lost"];

pub(super) fn sentences(run: &Run, kinds: &[Kind]) -> Vec<Sentence> {
    let rows = &run.rows;
    let has_hosts = run.provenance.hosts.len() > 1;
    let reached = kinds.iter().filter_map(|kind| reached(kind, has_hosts));
    let mut sentences = vec![outcome(rows)];
    sentences.extend(against(run, has_hosts));
    sentences.extend(limited(reached, "note", "the charts have them"));
    sentences.extend(limited(not_measured(rows).into_iter(), "note", IN_REASON));
    sentences
}

/// The first sentences, and how many more there are, with their place.
pub(super) fn limited(
    all: impl Iterator<Item = String>,
    kind: &'static str,
    place: &str,
) -> Vec<Sentence> {
    let mut all: Vec<String> = all.collect();
    let left = all.len().saturating_sub(SENTENCES_MAX);
    all.truncate(SENTENCES_MAX);
    if left > 0 {
        all.push(format!("And {left} more: {place}."));
    }
    all.into_iter().map(|text| Sentence { kind, text: text.replace("->", "→") }).collect()
}

/// How many rows were measured, and how many were not.
fn outcome(rows: &[Row]) -> Sentence {
    let with = |status| rows.iter().filter(|row| row.status == status).count();
    let ok = with(Status::Ok);
    let mut text = match ok {
        0 => "No row was measured".to_owned(),
        _ => format!("{} measured, every byte verified", count(ok, "row")),
    };
    for status in [Status::Skipped, Status::Corrupt, Status::Failed] {
        if with(status) > 0 {
            text.push_str(&format!("; {} {}", with(status), words::status(status)));
        }
    }
    let kind = match (ok, with(Status::Corrupt) + with(Status::Failed)) {
        (_, 1..) => "bad",
        (0, _) => "note",
        _ => "good",
    };
    Sentence { kind, text: text + "." }
}

/// The bandwidth of a kind of transfer at its largest size, or, if it has none, the latency at its
/// smallest.
fn reached(kind: &Kind, has_hosts: bool) -> Option<String> {
    let all = || kind.rows.iter().filter_map(|row| row.size_bytes);
    let (smallest, largest) = (all().min()?, all().max()?);
    let of_size = |size| kind.rows.iter().copied().filter(move |row| row.size_bytes == Some(size));
    let is_collective = kind.rows[0].transport.is_collective();
    let rate = |row: &Row| match is_collective {
        true => row.bandwidth_gb_s_bus,
        false => row.bandwidth_gb_s,
    };
    let mut values: Vec<(&Row, f64)> =
        of_size(largest).filter_map(|row| Some((row, rate(row)?))).collect();
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
    if values.is_empty() {
        let latencies = of_size(smallest).filter_map(|row| row.latency_ns_p50);
        let latencies: Vec<f64> = latencies.map(|ns| ns as f64).collect();
        let middle = words::nanoseconds(median(&latencies));
        let size = words::short_size(smallest);
        let text = || format!("{}, {size}: {middle} at the median.", kind.name);
        return (!latencies.is_empty()).then(text);
    }
    let gb_s: Vec<f64> = values.iter().map(|(_, gb_s)| *gb_s).collect();
    let bus = if is_collective { " bus bandwidth" } else { "" };
    let mut text = format!(
        "{}, {}: {} GB/s{bus}",
        kind.name,
        words::short_size(largest),
        short(median(&gb_s)),
    );
    if let [(slow, low), .., (_, high)] = &values[..] {
        text.push_str(&match short(*low) == short(*high) {
            true => format!(" each of {}", values.len()),
            false => format!(
                " at the median of {}, {} ({}) to {}",
                values.len(),
                short(*low),
                slow.ends(&Naming { has_hosts, ..Naming::default() }),
                short(*high),
            ),
        });
    }
    let shares: Vec<f64> = values.iter().filter_map(|(row, _)| row.expected_fraction).collect();
    if !shares.is_empty() {
        text.push_str(&format!("; {:.0} % of what is expected", 100.0 * median(&shares)));
    }
    Some(text + ".")
}

/// What is wrong with the numbers, or with the machine.
fn against(run: &Run, has_hosts: bool) -> Vec<Sentence> {
    let rows = &run.rows;
    let slow = attribution::find(rows, &|row| attribution::way(row, &run.provenance.hosts));
    let slow = attribution::text(&slow);
    let slow = slow.lines().skip(1).map(|line| format!("{}.", line.trim()));
    let mut sentences = limited(slow, "bad", "the heat maps show them");
    let mut all: Vec<String> = Vec::new();
    type Reason = fn(&Row) -> Option<&str>;
    let groups: [(&str, Reason); 5] = [
        ("CORRUPT", |row| (row.status == Status::Corrupt).then_some(&row.reason)),
        ("FAILED", |row| (row.status == Status::Failed).then_some(&row.reason)),
        ("below what is expected", |row| of_verdict(row, Verdict::Below)),
        ("above what is possible", |row| of_verdict(row, Verdict::Above)),
        ("took another path", |row| {
            let is_other = row.path_verdict == Some(PathVerdict::Contradicted);
            is_other.then(|| row.path_reason.as_deref().unwrap_or_default())
        }),
    ];
    for (what, reason) in groups {
        all.extend(grouped(rows, reason, what, has_hosts));
    }
    let mut flags: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in rows {
        for flag in row.flags.split(' ').filter(|flag| HEALTH.contains(flag)) {
            flags.entry(flag).or_insert((row.case, 0)).1 += 1;
        }
    }
    all.extend(flags.iter().map(|(flag, (row, number))| {
        format!("Flag {flag} on {}, the first row {}.", count(*number, "row"), row)
    }));
    let place = "the columns reason, verdict_reason, path_reason and flags of run.csv have them";
    sentences.extend(limited(all.into_iter(), "bad", place));
    if sentences.is_empty() && rows.iter().any(|row| row.status == Status::Ok) {
        let text = "No problem was found with these numbers.".to_owned();
        sentences.push(Sentence { kind: "good", text });
    }
    sentences
}

/// The reason of a row that has this verdict on its bandwidth.
fn of_verdict(row: &Row, verdict: Verdict) -> Option<&str> {
    let reason = row.verdict_reason.as_deref().unwrap_or_default();
    (row.verdict == Some(verdict)).then_some(reason)
}

/// The rows that have this reason, one sentence for each reason; numbers do not count.
fn grouped(
    rows: &[Row],
    reason: fn(&Row) -> Option<&str>,
    what: &str,
    has_hosts: bool,
) -> Vec<String> {
    let mut groups: IndexMap<String, (&Row, &str, usize)> = IndexMap::new();
    for (row, reason) in rows.iter().filter_map(|row| Some((row, reason(row)?))) {
        groups.entry(words::unnumbered(reason)).or_insert((row, reason, 0)).2 += 1;
    }
    let sentence = |(row, reason, number): (&Row, &str, usize)| {
        let more = match number {
            1 => String::new(),
            _ => format!(" ({number} rows, this is the first)"),
        };
        format!(
            "{}: {what}{more}: {reason}.",
            row.title(&Naming { has_hosts, ..Naming::default() })
        )
    };
    groups.into_values().map(sentence).collect()
}

/// Transports that could not run here.
fn not_measured(rows: &[Row]) -> Vec<String> {
    let skipped = rows.iter().filter(|row| row.status == Status::Skipped);
    let sentence = |row: &Row| format!("Not measured: {}: {}.", row.transport, row.reason);
    skipped.map(sentence).collect::<IndexSet<String>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Operation, TransportKind},
        record::{Recorder, Row, provenance::Provenance},
        show::report::kinds,
        units::Bytes,
    };

    #[test]
    fn where_nothing_was_measured_nothing_is_praised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let mut recorder = Recorder::create(&path, &Provenance::example()).unwrap();
        let told = || {
            let sentences = sentences(&Run::read(&path).unwrap(), &[]);
            sentences.into_iter().map(|Sentence { kind, text }| (kind, text)).collect::<Vec<_>>()
        };
        let note = |text: &str| ("note", text.to_owned());
        assert_eq!(told(), [note("No row was measured.")]);
        recorder.append(Row::absent(1, TransportKind::Nccl, "no library"), &[]).unwrap();
        let skipped = note("No row was measured; 1 skipped.");
        assert_eq!(told(), [skipped, note("Not measured: nccl: no library.")]);
    }

    #[test]
    fn latencies_are_those_of_the_smallest_size() {
        let row = |size, ns| Row {
            transport: TransportKind::Rdma,
            status: crate::record::Status::Ok,
            operation: Some(Operation::PingPong),
            size_bytes: Some(Bytes::new(size)),
            latency_ns_p50: Some(ns),
            ..Row::default()
        };
        let rows = [row(64 << 20, 6_810_000), row(8, 1200), row(64, 1300)];
        let [kind] = &kinds(&rows, &[])[..] else { panic!("one kind") };
        let told = reached(kind, false).unwrap();
        assert_eq!(told, "rdma ping-pong, 8 B: 1.20 µs at the median.");
    }
}
