//! What a person reads first: what was reached, and what is wrong with it.

use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};

use super::{
    page::{Sentence, Tone},
    verdicts, words,
};
use crate::{
    analysis::{attribution, compare::gpus, fitness::HEALTH},
    judge::expected::Verdict,
    nccl_log::Verdict as PathVerdict,
    plan::{Issuer, TransportKind, topology::Host},
    record::{Naming, Row, Run, Status, provenance::Provenance},
    units::{Bytes, count},
};

/// Sentences of one kind; further ones are counted.
const SENTENCES_MAX: usize = 12;

/// Where to find further reasons.
const IN_REASON: &str = "the column reason of run.csv has them";

/// Rows that differ in their ends and sizes only.
pub(super) struct Kind<'a> {
    pub(super) name: String,
    pub(super) rows: Vec<&'a Row>,
}

/// All measured rows by their kinds, in the order of their first rows. Kinds that differ in the
/// columns `without` alone are one.
pub(super) fn kinds<'a>(rows: &'a [Row], without: &[&str]) -> Vec<Kind<'a>> {
    let naming = Naming { without, ..Naming::default() };
    let mut kinds: IndexMap<String, Vec<&Row>> = IndexMap::new();
    for row in rows.iter().filter(|row| row.status == Status::Ok) {
        kinds.entry(row.kind(&naming)).or_default().push(row);
    }
    kinds.into_iter().map(|(name, rows)| Kind { name, rows }).collect()
}

/// The sentences at the top of a run's page.
pub(super) fn sentences(run: &Run, kinds: &[Kind<'_>]) -> Vec<Sentence> {
    let rows = &run.rows;
    let has_hosts = run.provenance.hosts.len() > 1;
    let mut sentences = vec![outcome(rows, None)];
    let wrong = wrong(rows, &run.provenance.hosts);
    let texts = wrong.iter().map(|Wrong { said, why }| format!("{said}: {why}."));
    let place = "the columns reason, verdict_reason, path_reason and flags of run.csv have them";
    sentences.extend(limited(texts, Tone::Bad, place));
    if wrong.is_empty() && rows.iter().any(|row| row.status == Status::Ok) {
        let text = "No problem was found with these numbers.".to_owned();
        sentences.push(Sentence { tone: Tone::Good, text });
    }
    let reached = kinds.iter().filter_map(Reached::of).map(|reached| reached.sentence(has_hosts));
    sentences.extend(limited(reached, Tone::Note, "the charts have them"));
    let absent = not_measured(rows).into_iter().map(|text| format!("Not measured: {text}."));
    sentences.extend(limited(absent, Tone::Note, IN_REASON));
    for sentence in &mut sentences {
        sentence.text = sentence.text.replace("->", "→");
    }
    sentences
}

/// The first sentences, and how many more there are, with their place.
pub(super) fn limited(all: impl Iterator<Item = String>, tone: Tone, place: &str) -> Vec<Sentence> {
    let mut all: Vec<String> = all.collect();
    let left = all.len().saturating_sub(SENTENCES_MAX);
    all.truncate(SENTENCES_MAX);
    if left > 0 {
        all.push(format!("And {left} more: {place}."));
    }
    all.into_iter().map(|text| Sentence { tone, text }).collect()
}

/// The machine in a few words.
pub(super) fn machine(provenance: &Provenance) -> String {
    let named = match &provenance.simulated_machine {
        Some(machine) => Some(machine),
        None => provenance.machine.product.as_ref().or(provenance.machine.cpu_model.as_ref()),
    };
    let hosts = &provenance.hosts;
    let several = (hosts.len() > 1).then(|| count(hosts.len(), "host"));
    let gpus = hosts.first().map(|host| gpus(&host.topology)).filter(|gpus| !gpus.is_empty());
    let parts = [several, named.cloned(), gpus, Some(count(provenance.ranks, "rank"))];
    parts.into_iter().flatten().collect::<Vec<String>>().join(", ")
}

/// How many rows were measured, in what time if that is known, and how many were not.
pub(super) fn outcome(rows: &[Row], took: Option<&str>) -> Sentence {
    let with = |status| rows.iter().filter(|row| row.status == status).count();
    let ok = with(Status::Ok);
    let mut text = match ok {
        0 => "No row was measured".to_owned(),
        _ => {
            let took = took.map_or_else(String::new, |time| format!(" in {time}"));
            format!("{} measured{took}, every byte verified", count(ok, "row"))
        }
    };
    for status in [Status::Skipped, Status::Corrupt, Status::Failed] {
        if with(status) > 0 {
            text.push_str(&format!("; {} {}", with(status), words::status(status)));
        }
    }
    let tone = match (ok, with(Status::Corrupt) + with(Status::Failed)) {
        (_, 1..) => Tone::Bad,
        (0, _) => Tone::Note,
        _ => Tone::Good,
    };
    Sentence { tone, text: text + "." }
}

/// What a kind of transfer has reached: its bandwidth at its largest size, or, if it has none, its
/// latency at its smallest.
pub(super) struct Reached<'a> {
    pub(super) name: &'a str,
    pub(super) size: Bytes,
    /// Whether it is a latency, in ns, and not a bandwidth, in GB/s.
    is_latency: bool,
    /// Whether the bandwidth is that of the bus.
    is_bus: bool,
    /// Of each row, the least first.
    values: Vec<(&'a Row, f64)>,
    /// The median share of what is expected.
    pub(super) share: Option<f64>,
    /// The median, over the pairs, of what reads reach of what writes do.
    pub(super) read_by_write: Option<f64>,
}

impl<'a> Reached<'a> {
    /// Of the measured rows of a kind, if they have a number.
    pub(super) fn of(kind: &'a Kind<'_>) -> Option<Self> {
        let all = || kind.rows.iter().filter_map(|row| row.size_bytes);
        let is_bus = kind.rows[0].transport.is_collective();
        let rate = |row: &Row| if is_bus { row.bandwidth_gb_s_bus } else { row.bandwidth_gb_s };
        let of_size = |size: Bytes, value: &dyn Fn(&Row) -> Option<f64>| {
            let rows = kind.rows.iter().copied().filter(|row| row.size_bytes == Some(size));
            let mut values: Vec<(&Row, f64)> =
                rows.filter_map(|row| Some((row, value(row)?))).collect();
            values.sort_by(|a, b| a.1.total_cmp(&b.1));
            (size, values)
        };
        let (mut size, mut values) = of_size(all().max()?, &rate);
        let is_latency = values.is_empty();
        if is_latency {
            (size, values) = of_size(all().min()?, &|row| Some(row.latency_ns_p50? as f64));
        }
        let shares: Vec<f64> = values.iter().filter_map(|(row, _)| verdicts::share(row)).collect();
        let share = (!shares.is_empty()).then(|| words::median(&shares));
        let read_by_write = (!is_latency).then(|| read_by_write(&values)).flatten();
        let name = &kind.name;
        (!values.is_empty()).then_some(Self {
            name,
            size,
            is_latency,
            is_bus,
            values,
            share,
            read_by_write,
        })
    }

    fn number(&self, value: f64) -> String {
        if self.is_latency { words::nanoseconds(value) } else { words::short(value) }
    }

    pub(super) fn transport(&self) -> TransportKind {
        self.values[0].0.transport
    }

    /// `389 GB/s`, `241 GB/s bus bandwidth`, `1.02 µs`
    pub(super) fn median(&self) -> String {
        let values: Vec<f64> = self.values.iter().map(|(_, value)| *value).collect();
        let number = self.number(words::median(&values));
        match (self.is_latency, self.is_bus) {
            (true, _) => number,
            (_, true) => format!("{number} GB/s bus bandwidth"),
            _ => format!("{number} GB/s"),
        }
    }

    fn sentence(&self, has_hosts: bool) -> String {
        let mut text =
            format!("{}, {}: {}", self.name, words::short_size(self.size), self.median());
        if self.is_latency {
            return text + " at the median.";
        }
        if let [(slow, low), .., (_, high)] = &self.values[..] {
            text.push_str(&match self.number(*low) == self.number(*high) {
                true => format!(" each of {}", self.values.len()),
                false => format!(
                    " at the median of {}, {} ({}) to {}",
                    self.values.len(),
                    self.number(*low),
                    slow.ends(&Naming { has_hosts, ..Naming::default() }),
                    self.number(*high),
                ),
            });
        }
        if let Some(share) = self.share {
            text.push_str(&format!("; {:.0} % of what is expected", 100.0 * share));
        }
        text + "."
    }
}

/// The median of what reads reach of what writes do, over the pairs that have both.
fn read_by_write(values: &[(&Row, f64)]) -> Option<f64> {
    let ends = |row: &Row| row.ends(&Naming { has_hosts: true, ..Naming::default() });
    let of = |issuer| values.iter().filter(move |(row, _)| row.issuer == Some(issuer));
    let writes: BTreeMap<String, f64> =
        of(Issuer::Write).map(|(row, value)| (ends(row), *value)).collect();
    let ratios: Vec<f64> =
        of(Issuer::Read).filter_map(|(row, value)| Some(value / writes.get(&ends(row))?)).collect();
    (!ratios.is_empty()).then(|| words::median(&ratios))
}

/// Something that is wrong with the numbers, or with the machine.
pub(super) struct Wrong {
    /// What: a sentence without its full stop.
    pub(super) said: String,
    /// What shows it.
    pub(super) why: String,
}

/// All that is wrong, each once, the worst first.
pub(super) fn wrong(rows: &[Row], hosts: &[Host]) -> Vec<Wrong> {
    let naming = Naming { has_hosts: hosts.len() > 1, ..Naming::default() };
    let mut all = Vec::new();
    let grouped =
        |what: &str, reason: fn(&Row) -> Option<&str>| grouped(rows, reason, what, naming);
    all.extend(grouped("is CORRUPT", |row| (row.status == Status::Corrupt).then_some(&row.reason)));
    all.extend(grouped("FAILED", |row| (row.status == Status::Failed).then_some(&row.reason)));
    all.extend(grouped("took another path", |row| {
        let is_other = row.path_verdict == Some(PathVerdict::Contradicted);
        is_other.then(|| row.path_reason.as_deref().unwrap_or_default())
    }));
    let slow = attribution::find(rows, attribution::BAR, &|row| attribution::way(row, hosts));
    let slow = attribution::told(&slow).into_iter();
    all.extend(slow.map(|told| Wrong { said: told.said, why: told.shown }));
    all.extend(grouped("is below what is expected", |row| of_verdict(row, Verdict::Below)));
    all.extend(grouped("is above what is possible", |row| of_verdict(row, Verdict::Above)));
    let mut flags: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in rows {
        for flag in row.flags.split(' ').filter(|flag| HEALTH.contains(flag)) {
            flags.entry(flag).or_insert((row.case, 0)).1 += 1;
        }
    }
    all.extend(flags.iter().map(|(flag, (row, number))| Wrong {
        said: format!("{} flagged {flag}", count(*number, "row")),
        why: format!("the first is row {row} of run.csv"),
    }));
    all
}

/// The reason of a row that has this verdict on its bandwidth.
fn of_verdict(row: &Row, verdict: Verdict) -> Option<&str> {
    let reason = row.verdict_reason.as_deref().unwrap_or_default();
    (row.verdict == Some(verdict)).then_some(reason)
}

/// The rows that have this reason, one for each reason; numbers do not count. Of rows with a share
/// of what is expected, the least is named, otherwise the first.
fn grouped(
    rows: &[Row],
    reason: fn(&Row) -> Option<&str>,
    what: &str,
    naming: Naming<'_>,
) -> Vec<Wrong> {
    let mut groups: IndexMap<String, (&Row, &str, usize)> = IndexMap::new();
    let share = |row: &Row| row.expected_fraction.unwrap_or(f64::INFINITY);
    for (row, reason) in rows.iter().filter_map(|row| Some((row, reason(row)?))) {
        let group = groups.entry(words::unnumbered(reason)).or_insert((row, reason, 0));
        if share(row) < share(group.0) {
            (group.0, group.1) = (row, reason);
        }
        group.2 += 1;
    }
    let told = |(row, why, number): (&Row, &str, usize)| {
        let share = verdicts::share(row).filter(|_| row.status == Status::Ok);
        let share = share.map_or_else(String::new, |share| format!(", {:.0} %", 100.0 * share));
        let more = match number {
            1 => String::new(),
            _ => format!(" ({number} rows)"),
        };
        let said = format!("{} {what}{share}{more}", row.title(&naming));
        Wrong { said, why: why.to_owned() }
    };
    groups.into_values().map(told).collect()
}

/// Transports that could not run here, with the reason.
pub(super) fn not_measured(rows: &[Row]) -> IndexSet<String> {
    let skipped = rows.iter().filter(|row| row.status == Status::Skipped);
    skipped.map(|row| format!("{}: {}", row.transport, row.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Operation, TransportKind},
        record::{Recorder, Row, provenance::Provenance},
        units::Bytes,
    };

    #[test]
    fn where_nothing_was_measured_nothing_is_praised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let mut recorder = Recorder::create(&path, &Provenance::example()).unwrap();
        let told = || {
            let sentences = sentences(&Run::read(&path).unwrap(), &[]);
            sentences.into_iter().map(|Sentence { tone, text }| (tone, text)).collect::<Vec<_>>()
        };
        let note = |text: &str| (Tone::Note, text.to_owned());
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
        let told = Reached::of(kind).unwrap().sentence(false);
        assert_eq!(told, "rdma ping-pong, 8 B: 1.20 µs at the median.");
    }
}
