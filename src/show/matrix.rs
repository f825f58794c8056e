//! Pairs of GPUs or ranks at a glance: a matrix for reads, one for writes, and their ratio.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::{IndexMap, IndexSet};

use super::{
    page::{Grid, Page},
    verdicts, words,
};
use crate::{
    plan::{Issuer, Operation, Pattern, TransportKind},
    record::{Naming, Row, Status},
    units::{Bytes, readable_gb_s, readable_nanoseconds},
};

/// Whether `row` is one pair of GPUs, or of ranks that RDMA joins, one way.
pub(super) fn is_pair(row: &Row) -> bool {
    let is_of_gpus = row.source_gpu.is_some() && row.target_gpu.is_some();
    row.pattern == Some(Pattern::OneWay)
        && row.transport != TransportKind::Local
        && (is_of_gpus || row.transport.is_between_ranks())
}

/// The name of a row's kind, and the host of pairs within a host; `is_joined`: GPUs of several hosts
/// reach each other.
fn kind(row: &Row, is_joined: bool) -> (String, Option<&str>) {
    let is_within = !row.transport.is_across_hosts() && !is_joined;
    let host = row.source_host.as_deref().filter(|_| is_within);
    (row.kind(&Naming { has_hosts: false, without: &["issuer"] }), host)
}

/// What the ends of a row are.
const fn noun(transport: TransportKind) -> &'static str {
    if transport.is_between_ranks() { "rank" } else { "GPU" }
}

/// For each kind of transfer: the matrices of its largest size, and, where there are several
/// sizes, a table by size for each pair.
pub(super) fn matrices(rows: &[&Row], page: &mut Page) {
    let mut kinds: IndexMap<(String, Option<&str>), Vec<&Row>> = IndexMap::new();
    let is_p2p = |row: &Row| row.transport == TransportKind::P2p;
    let is_joined = rows.iter().any(|row| is_p2p(row) && row.source_host != row.target_host);
    for &row in rows {
        kinds.entry(kind(row, is_joined && is_p2p(row))).or_default().push(row);
    }
    let hosts: BTreeSet<Option<&str>> = kinds.keys().map(|(_, host)| *host).collect();
    for ((name, host), rows) in &kinds {
        if let Some(host) = host.filter(|_| hosts.len() > 1) {
            page.lines(&format!("On {host}:\n"));
        }
        let measured = rows.iter().filter(|row| row.status == Status::Ok);
        // A size that fits into no GPU has nothing to show.
        let size = measured.filter_map(|row| row.size_bytes).max();
        let size = size.or_else(|| rows.iter().filter_map(|row| row.size_bytes).max());
        let at_largest: Vec<&Row> =
            rows.iter().copied().filter(|row| row.size_bytes == size).collect();
        match sample(&at_largest) {
            Some(sample) => {
                of_sample(name, size.unwrap_or_default(), &sample, &at_largest, page);
            }
            None => at_size(name, size.unwrap_or_default(), &at_largest, page),
        }
        page.lines(&notes(rows));
        let paths = verdicts::paths(rows, &|row| which(row, rows));
        if !paths.is_empty() {
            page.lines(&format!("{paths}\n"));
        }
        if at_largest.len() < rows.len() && sample(rows).is_none() {
            by_size(name, rows, page);
        }
    }
}

/// The matrices of rows of one kind and size.
fn at_size(name: &str, size: Bytes, rows: &[&Row], page: &mut Page) {
    let Row { transport, operation, .. } = *rows[0];
    let noun = noun(transport);
    let axis = format!("rows: source {noun}, columns: target {noun}");
    let ending = ending(rows);
    let title = |what: &str| format!("{name}, {size}, {what}; {axis}{ending}");
    let bandwidth = |row: &Row| cell(row, row.bandwidth_gb_s.map(short_gb_s));
    if operation.is_some_and(Operation::is_latency_only) {
        page.title(title(if operation == Some(Operation::Chase) {
            "median latency of one load by the target"
        } else {
            "median latency one way"
        }));
        square(page, rows, &|row| cell(row, row.latency_ns_p50.map(readable_nanoseconds)));
    } else if transport == TransportKind::P2p && operation == Some(Operation::Copy) {
        let by = |issuer| -> Vec<&Row> {
            rows.iter().copied().filter(|row| row.issuer == Some(issuer)).collect()
        };
        let (reads, writes) = (by(Issuer::Read), by(Issuer::Write));
        for (of, name) in [(&reads, "read by the target"), (&writes, "written by the source")] {
            if !of.is_empty() {
                page.title(title(&format!("GB/s {name}")));
                square(page, of, &bandwidth);
            }
        }
        let ratio = |read: &Row| {
            let write = writes.iter().find(|write| ends(write) == ends(read))?;
            Ratio::of(read, write)
        };
        if reads.iter().any(|read| ratio(read).is_some()) {
            page.title(title("ratio read / write"));
            let median = |ratio: Ratio| format!("{:.3}", ratio.median);
            square(page, &reads, &|read| words::or_dash(ratio(read).map(median)));
            page.title(title("95 % interval of the ratio, ± % of it"));
            let width = |ratio: Ratio| Some(format!("{:.2}", 100.0 * ratio.half_width()?));
            square(page, &reads, &|read| words::or_dash(ratio(read).and_then(width)));
        }
    } else {
        page.title(title("GB/s"));
        square(page, rows, &bandwidth);
    }
}

/// How many pairs of how many rows of a sample are of, for a sentence.
pub(super) fn sample(rows: &[&Row]) -> Option<String> {
    let (measured, all) = rows
        .iter()
        .find_map(|row| Some((row.pairs_measured?, row.pairs.filter(|all| *all > 0)?)))?;
    Some(format!(
        "{measured} of {all} pairs, drawn by lot: a slow GPU or host shows, a single slow pair only if \
         it is among them."
    ))
}

/// What a sample of pairs tells: a matrix would be nearly empty.
fn of_sample(name: &str, size: Bytes, sample: &str, rows: &[&Row], page: &mut Page) {
    page.title(format!("{name}, {size}{}", ending(rows)));
    page.lines(&format!("{sample}\n"));
    let is_chase = rows[0].operation.is_some_and(Operation::is_latency_only);
    let of = |row: &Row| match is_chase {
        true => row.latency_ns_p50.map(|ns| ns as f64),
        false => row.bandwidth_gb_s,
    };
    let unit = if is_chase { "ns" } else { "GB/s" };
    let mut head = vec!["issuer".to_owned(), "pairs".to_owned()];
    head.extend(["least", "median", "most"].map(|which| format!("{which} {unit}")));
    head.extend(["least at".to_owned(), "measured again".to_owned()]);
    let mut grid = Grid::new(head);
    let issuers: IndexSet<Option<Issuer>> = rows.iter().map(|row| row.issuer).collect();
    for issuer in issuers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.issuer == issuer).collect();
        let mut values: Vec<(f64, &Row)> =
            own.iter().filter_map(|row| Some((of(row)?, *row))).collect();
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        let value = |at: usize| values.get(at).map(|(value, _)| short_gb_s(*value));
        let last = values.len().saturating_sub(1);
        let again =
            own.iter().filter(|row| row.flags.split(' ').any(|flag| flag == "measured_again"));
        let mut cells = vec![words::or_dash(issuer), values.len().to_string()];
        cells.extend([0, values.len() / 2, last].map(|at| words::or_dash(value(at))));
        cells.push(words::or_dash(values.first().map(|(_, row)| pair(row, rows))));
        cells.push(again.count().to_string());
        grid.row(cells);
    }
    page.grid(grid.words(&["issuer", "least at"]));
    page.lines("\n");
}

/// The end of a title: what the rows have in common besides their kind.
fn ending(rows: &[&Row]) -> String {
    let mut ending = String::new();
    let is_shared = |row: &&&Row| row.handle.is_some() || row.provider.is_none();
    if rows.iter().filter(is_shared).any(|row| row.source_rank != row.target_rank) {
        let handle = rows.iter().find_map(|row| row.handle);
        ending.push_str("; between ranks");
        ending.extend(handle.map(|handle| format!(" by {handle}")));
    }
    ending + words::mark(rows.iter().any(|row| row.simulated))
}

/// A bandwidth for a matrix, which must be narrow.
fn short_gb_s(gb_s: f64) -> String {
    if gb_s < 1.0 { readable_gb_s(gb_s) } else { format!("{gb_s:.2}") }
}

/// A GPU of a host, or a rank.
type End<'a> = (Option<&'a str>, u32);

/// The source and the target of a row.
fn ends(row: &Row) -> [Option<End<'_>>; 2] {
    if row.transport.is_between_ranks() {
        return [row.source_rank, row.target_rank].map(|rank| Some((None, rank?)));
    }
    [(&row.source_host, row.source_gpu), (&row.target_host, row.target_gpu)]
        .map(|(host, gpu)| Some((host.as_deref(), gpu?)))
}

/// A number, or the status of a row that has none.
fn cell(row: &Row, number: Option<String>) -> String {
    match row.status {
        Status::Ok => words::or_dash(number),
        status => words::status(status).to_owned(),
    }
}

/// A matrix of sources and targets, with what `text` says of each pair.
fn square(page: &mut Page, rows: &[&Row], text: &dyn Fn(&Row) -> String) {
    let noun = rows.first().map_or("", |row| noun(row.transport));
    let places: BTreeSet<End<'_>> = rows.iter().flat_map(|row| ends(row)).flatten().collect();
    let places: Vec<End<'_>> = places.into_iter().collect();
    let has_one_host = has_one_host(rows);
    let label = |&(host, number): &End<'_>| match host.filter(|_| !has_one_host) {
        Some(host) => format!("{noun} {number} of {host}"),
        None => format!("{noun} {number}"),
    };
    let labels: Vec<String> = places.iter().map(label).collect();
    page.grid(Grid::square(&labels, |source, target| {
        let pair = [Some(places[source]), Some(places[target])];
        words::or_dash(rows.iter().find(|row| ends(row) == pair).map(|row| text(row)))
    }));
    page.lines("\n");
}

/// Why rows have no number, and their flags. Each note appears once, with the first row and the
/// number of rows.
fn notes(rows: &[&Row]) -> String {
    let mut notes: IndexMap<(String, String), (&Row, usize)> = IndexMap::new();
    for &row in rows {
        let words: Vec<String> = match row.status {
            Status::Ok => row.flags.split_whitespace().map(|flag| flag.replace('_', " ")).collect(),
            status => vec![words::status(status).to_owned()],
        };
        for word in words {
            notes.entry((word, words::unnumbered(&row.reason))).or_insert((row, 0)).1 += 1;
        }
    }
    let mut text = String::new();
    for ((word, _), (first, count)) in notes {
        let which = which(first, rows);
        text.push_str(&match count {
            1 => format!("  {word}: {which}"),
            _ => format!("  {word}: {count} of {} rows, the first {which}", rows.len()),
        });
        let colon = if first.reason.is_empty() { "" } else { ": " };
        text.push_str(&format!("{colon}{}\n", first.reason));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// `GPU 0 -> GPU 1 read 1 MiB`
fn which(row: &Row, rows: &[&Row]) -> String {
    let issuer = row.issuer.map_or(String::new(), |issuer| format!(" {issuer}"));
    format!("{}{issuer} {}", pair(row, rows), row.size_bytes.unwrap_or_default())
}

/// `GPU 0 -> GPU 1`; with their hosts, where `rows` have several.
fn pair(row: &Row, rows: &[&Row]) -> String {
    row.ends(&Naming { has_hosts: !has_one_host(rows), ..Naming::default() })
}

fn has_one_host(rows: &[&Row]) -> bool {
    let mut hosts = rows.iter().flat_map(|row| [&row.source_host, &row.target_host]);
    let first = hosts.next();
    hosts.all(|host| Some(host) == first)
}

/// A table by size for each pair, reads beside writes.
fn by_size(name: &str, rows: &[&Row], page: &mut Page) {
    let mut pairs: BTreeMap<[Option<End<'_>>; 2], Vec<&Row>> = BTreeMap::new();
    for &row in rows {
        pairs.entry(ends(row)).or_default().push(row);
    }
    for of_pair in pairs.values() {
        let ending = ending(of_pair);
        page.title(format!("{name}, {}{ending}", pair(of_pair[0], rows)));
        page.grid(sizes_of_pair(of_pair));
        page.lines("\n");
    }
}

fn sizes_of_pair(rows: &[&Row]) -> Grid {
    let sizes: IndexSet<Bytes> = rows.iter().filter_map(|row| row.size_bytes).collect();
    let issuers: IndexSet<Option<Issuer>> = rows.iter().map(|row| row.issuer).collect();
    let mut head = vec!["size".to_owned()];
    for issuer in &issuers {
        let name = issuer.map_or(String::new(), |issuer| format!("{issuer} "));
        head.extend([format!("{name}GB/s"), "95 % interval".to_owned(), format!("{name}p50")]);
    }
    let has_ratio = issuers.len() == 2;
    if has_ratio {
        head.push("read / write".to_owned());
    }
    let mut grid = Grid::new(head);
    for size in sizes {
        let find = |issuer: Option<Issuer>| {
            rows.iter().find(|row| row.size_bytes == Some(size) && row.issuer == issuer)
        };
        let mut cells = vec![size.to_string()];
        for &issuer in &issuers {
            cells.extend(find(issuer).map_or(["-", "-", "-"].map(str::to_owned), |row| {
                [
                    cell(row, row.bandwidth_gb_s.map(readable_gb_s)),
                    words::or_dash(words::interval(row)),
                    words::or_dash(row.latency_ns_p50.map(readable_nanoseconds)),
                ]
            }));
        }
        if has_ratio {
            let both = find(Some(Issuer::Read)).zip(find(Some(Issuer::Write)));
            cells.push(words::or_dash(both.and_then(|(read, write)| Ratio::of(read, write))));
        }
        grid.row(cells);
    }
    grid
}

/// The ratio of the bandwidths of two rows, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    median: f64,
    /// `None` where a row has too few samples for an interval of its own.
    interval: Option<(f64, f64)>,
}

impl Ratio {
    /// The medians' ratio. Its interval comes from those of both medians by the method of variance
    /// estimates recovery on the logarithms (Zou and Donner, "Construction of confidence limits
    /// about effect measures", Statistics in Medicine 27, 2008), for independent rows. `None` if
    /// one of them has no bandwidth.
    pub(super) fn of(over: &Row, under: &Row) -> Option<Self> {
        let (over_median, under_median) = (over.bandwidth_gb_s?, under.bandwidth_gb_s?);
        let median = over_median / under_median;
        let limits = |row: &Row, median: f64| {
            let low = (median / row.bandwidth_gb_s_low?).ln();
            let high = (row.bandwidth_gb_s_high? / median).ln();
            Some((low, high))
        };
        let both = limits(over, over_median).zip(limits(under, under_median));
        let interval = both.map(|((low, high), (under_low, under_high))| {
            let down = (low.powi(2) + under_high.powi(2)).sqrt();
            let up = (high.powi(2) + under_low.powi(2)).sqrt();
            (median * (-down).exp(), median * up.exp())
        });
        Some(Self { median, interval })
    }

    /// The larger distance from the ratio to an end of its interval, as a share of the ratio.
    fn half_width(self) -> Option<f64> {
        let (low, high) = self.interval?;
        Some((high - self.median).max(self.median - low) / self.median)
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}", self.median)?;
        match self.interval {
            Some((low, high)) => write!(f, " ({low:.3} to {high:.3})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, Normal};

    use super::*;
    use crate::{measure::Summary, plan::Engine};

    fn row(issuer: Issuer, source: u32, target: u32, summary: &Summary) -> Row {
        Row {
            status: Status::Ok,
            pattern: Some(Pattern::OneWay),
            operation: Some(Operation::Copy),
            engine: Some(Engine::Ce),
            issuer: Some(issuer),
            source_gpu: Some(source),
            target_gpu: Some(target),
            size_bytes: Some(Bytes::mib(64)),
            bandwidth_gb_s: Some(summary.estimate),
            bandwidth_gb_s_low: Some(summary.low),
            bandwidth_gb_s_high: Some(summary.high),
            simulated: true,
            ..Row::absent(1, TransportKind::P2p, "")
        }
    }

    fn exactly(rate: f64) -> Summary {
        Summary::of(&[rate; 20]).unwrap()
    }

    fn text(rows: &[Row]) -> String {
        let mut page = Page::default();
        matrices(&rows.iter().collect::<Vec<&Row>>(), &mut page);
        page.text()
    }

    #[test]
    fn reads_writes_and_their_ratio_stand_at_source_and_target() {
        let rows = [
            row(Issuer::Read, 0, 1, &exactly(300.0)),
            row(Issuer::Write, 0, 1, &exactly(400.0)),
            Row {
                status: Status::Skipped,
                reason: "no peer access".to_owned(),
                bandwidth_gb_s: None,
                ..row(Issuer::Read, 1, 0, &exactly(1.0))
            },
            row(Issuer::Write, 1, 0, &exactly(200.0)),
        ];
        let text = text(&rows);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines[0],
            "p2p copy ce, 64 MiB, GB/s read by the target; rows: source GPU, columns: target GPU \
             [SIMULATED]"
        );
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "300.00"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["GPU", "1", "skipped", "-"]);
        assert!(lines[7].ends_with("400.00"), "{text}");
        assert!(lines[10].contains(", ratio read / write;"), "{text}");
        assert_eq!(lines[12].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "0.750"]);
        assert!(lines[15].contains(", 95 % interval of the ratio, ± % of it;"), "{text}");
        assert_eq!(lines[17].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "0.00"]);
        assert!(text.contains("skipped: GPU 1 -> GPU 0 read 64 MiB: no peer access"), "{text}");
    }

    #[test]
    fn eight_gpus_fit_a_terminal_of_eighty_columns() {
        let rate = exactly(398.765);
        let pair = |n: u32| (n / 8, n % 8);
        let both = |n| {
            let (source, target) = pair(n);
            [Issuer::Read, Issuer::Write].map(|issuer| row(issuer, source, target, &rate))
        };
        let rows: Vec<Row> = (0..64).filter(|&n| pair(n).0 != pair(n).1).flat_map(both).collect();
        let text = text(&rows);
        for line in text.lines().filter(|line| line.starts_with(" GPU")) {
            assert!(line.len() <= 80, "{line}");
        }
        assert!(!text.contains("interval (") && text.contains("ratio read / write"), "{text}");
    }

    #[test]
    fn nothing_in_doubt_at_any_size_is_left_out() {
        let small = |row: Row| Row { size_bytes: Some(Bytes::kib(4)), ..row };
        let failed = |source: u32, target: u32| Row {
            status: Status::Corrupt,
            reason: format!("rank {target} found 3 wrong bytes"),
            bandwidth_gb_s: None,
            ..small(row(Issuer::Read, source, target, &exactly(1.0)))
        };
        let flagged = |row: Row| Row { flags: "short_samples timer_coarse".to_owned(), ..row };
        let huge = Row { size_bytes: Some(Bytes::mib(256)), ..failed(0, 1) };
        let rows = [
            row(Issuer::Read, 0, 1, &exactly(300.0)),
            failed(0, 1),
            failed(1, 0),
            flagged(row(Issuer::Write, 0, 1, &exactly(300.0))),
            flagged(small(row(Issuer::Write, 0, 1, &exactly(300.0)))),
            huge,
        ];
        let text = text(&rows);
        for line in [
            "  CORRUPT: 3 of 6 rows, the first GPU 0 -> GPU 1 read 4 KiB: rank 1 found 3 wrong bytes",
            "  short samples: 2 of 6 rows, the first GPU 0 -> GPU 1 write 64 MiB",
            "  timer coarse: 2 of 6 rows, the first GPU 0 -> GPU 1 write 64 MiB",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        // The matrices show the largest size that has a number.
        assert!(text.starts_with("p2p copy ce, 64 MiB, GB/s read"), "{text}");
    }

    #[test]
    fn a_table_says_how_ranks_reach_each_other() {
        let one = row(Issuer::Read, 0, 1, &exactly(1.0));
        let ranks = Row {
            source_rank: Some(0),
            target_rank: Some(1),
            handle: Some(crate::plan::Handle::Cumem),
            ..one
        };
        assert!(text(&[ranks]).contains("target GPU; between ranks by cumem [SIMULATED]\n"));
    }

    #[test]
    fn the_ratios_interval_covers_the_truth() {
        let mut random = StdRng::seed_from_u64(20_261_121);
        for (count, variation) in [(20, 0.05), (20, 1.0), (100, 0.5)] {
            let mut sample = |rate: f64| -> Summary {
                let normal = Normal::new(rate, variation).unwrap();
                let samples: Vec<f64> = (0..count).map(|_| normal.sample(&mut random)).collect();
                Summary::of(&samples).unwrap()
            };
            let covers = |_: &u32| {
                let read = row(Issuer::Read, 0, 1, &sample(8.0));
                let write = row(Issuer::Write, 0, 1, &sample(10.0));
                let (low, high) = Ratio::of(&read, &write).unwrap().interval.unwrap();
                low <= 0.8 && 0.8 <= high
            };
            let held = (0..2000).filter(covers).count();
            // Intervals of a median have at least 95 %; their steps make them somewhat wide.
            assert!((1890..=1990).contains(&held), "{count}, {variation}: {held} of 2000");
        }
    }

    #[test]
    fn a_row_without_a_number_has_no_ratio() {
        let read = row(Issuer::Read, 0, 1, &exactly(1.0));
        let none = Row { bandwidth_gb_s: None, ..read.clone() };
        assert_eq!(Ratio::of(&read, &none), None);
        let few = Row { bandwidth_gb_s_low: None, ..read.clone() };
        assert_eq!(Ratio::of(&read, &few).unwrap().to_string(), "1.000");
    }
}
