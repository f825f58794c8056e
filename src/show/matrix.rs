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
    units::{Bytes, readable_gb_s},
};

/// Pairs are alike within this share of their median, and those without an interval within that.
const ALIKE: f64 = 0.01;
const UNTOLD: f64 = 0.02;

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

/// A matrix for each kind of transfer and each size, or a line where all pairs are alike; with
/// `is_whole` a matrix of all, and what reads reach of what writes do.
pub(super) fn matrices(rows: &[&Row], page: &mut Page, is_whole: bool) {
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
        let mut sizes: BTreeMap<Bytes, Vec<&Row>> = BTreeMap::new();
        for &row in rows {
            sizes.entry(row.size_bytes.unwrap_or_default()).or_default().push(row);
        }
        for (size, rows) in &sizes {
            match sample(rows) {
                Some(sample) => of_sample(name, *size, &sample, rows, page),
                None => at_size(&format!("{name}, {size}"), rows, page, is_whole),
            }
        }
    }
    if rows.is_empty() {
        return;
    }
    let text = notes(rows) + &verdicts::paths(rows, &|row| which(row, rows));
    if !text.is_empty() {
        page.lines(&(text + "\n"));
    }
}

/// The matrices of rows of one kind and size, `name`.
fn at_size(name: &str, rows: &[&Row], page: &mut Page, is_whole: bool) {
    let Row { transport, operation, .. } = *rows[0];
    let ending = ending(rows);
    let issued = [
        (Some(Issuer::Read), " read by the target"),
        (Some(Issuer::Write), " written by the source"),
        (None, ""),
    ];
    let has_issuers = transport == TransportKind::P2p && operation == Some(Operation::Copy);
    for (issuer, words) in issued {
        let rows: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|row| row.issuer.filter(|_| has_issuers) == issuer)
            .collect();
        let Some(first) = rows.first() else { continue };
        let is_latency = first.operation.is_some_and(Operation::is_latency_only);
        let shown = if is_latency { words::nanoseconds } else { short_gb_s };
        let unit = match (is_latency, first.operation == Some(Operation::Chase)) {
            (true, true) => "median latency of one load by the target",
            (true, false) => "median latency one way",
            (false, _) => "GB/s",
        };
        let is_alike = rows.iter().all(|row| value(row).is_some()) && least(&rows).is_none();
        let told = match is_alike {
            true => middle(&rows, value).map(shown),
            false => status_of_all(&rows).map(str::to_owned),
        };
        if let Some(told) = told.filter(|_| rows.len() > 2 && !is_whole) {
            let count = rows.len();
            page.lines(&format!("{name}, {unit}{words}: all {count} pairs {told}{ending}\n"));
            continue;
        }
        page.title(format!("{name}, {unit}{words}{ending}"));
        square(page, &rows, &|row| cell(row, value(row).map(shown)));
        let is_forth = |row: &&Row| row.source_rank < row.target_rank;
        let is_half = transport == TransportKind::Rdma && has_one_host(&rows);
        if is_half && rows.len() > 1 && rows.iter().all(is_forth) {
            page.lines("Within a host the way back is the same way: it is not measured.\n\n");
        }
    }
    let ratio = |read: &Row| {
        let write =
            rows.iter().find(|row| (row.issuer, ends(row)) == (Some(Issuer::Write), ends(read)))?;
        Ratio::of(read, write)
    };
    let reads: Vec<&Row> =
        rows.iter().copied().filter(|row| row.issuer == Some(Issuer::Read)).collect();
    if is_whole && has_issuers && reads.iter().any(|read| ratio(read).is_some()) {
        page.title(format!("{name}, ratio read / write{ending}"));
        let median = |ratio: Ratio| format!("{:.3}", ratio.median);
        square(page, &reads, &|read| words::or_dash(ratio(read).map(median)));
        page.title(format!("{name}, 95 % interval of the ratio, ± % of it{ending}"));
        let width = |ratio: Ratio| Some(format!("{:.2}", 100.0 * ratio.half_width()?));
        square(page, &reads, &|read| words::or_dash(ratio(read).and_then(width)));
    }
}

/// The number of a row in a matrix: its bandwidth, or if it has none its latency in ns.
fn value(row: &Row) -> Option<f64> {
    match row.operation.is_some_and(Operation::is_latency_only) {
        true => row.latency_ns_p50.map(|ns| ns as f64),
        false => row.bandwidth_gb_s,
    }
}

/// Why no row has a number, if it is the same for all.
fn status_of_all(rows: &[&Row]) -> Option<&'static str> {
    let status = rows[0].status;
    let is_one = status != Status::Ok && rows.iter().all(|row| row.status == status);
    is_one.then(|| words::status(status))
}

/// The median of the numbers of rows that have one.
pub(super) fn middle(rows: &[&Row], number: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(|row| number(row)).collect();
    (!values.is_empty()).then(|| words::median(&values))
}

/// The worst of rows of which one is not like the others: farther from the median than 1 % of it,
/// and than the 95 % interval of the row reaches on both sides together; of a row without an
/// interval, 2 %. `None`: all are alike.
pub(super) fn least<'a>(rows: &[&'a Row]) -> Option<(&'a Row, f64)> {
    let middle = middle(rows, value)?;
    let valued = || rows.iter().filter_map(|row| Some((*row, value(row)?)));
    let is_unlike = |(row, value): (&Row, f64)| {
        let interval = row.bandwidth_gb_s_low.zip(row.bandwidth_gb_s_high);
        let width = interval.map_or(UNTOLD * middle, |(low, high)| high - low);
        (value - middle).abs() > width.max(ALIKE * middle)
    };
    let is_latency = rows[0].operation.is_some_and(Operation::is_latency_only);
    let worse = |a: &(&Row, f64), b: &(&Row, f64)| match is_latency {
        true => b.1.total_cmp(&a.1),
        false => a.1.total_cmp(&b.1),
    };
    valued().any(is_unlike).then(|| valued().min_by(worse)).flatten()
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
    let unit = if is_chase { "ns" } else { "GB/s" };
    let mut head = vec!["issuer".to_owned(), "pairs".to_owned()];
    head.extend(["least", "median", "most"].map(|which| format!("{which} {unit}")));
    head.extend(["least at".to_owned(), "measured again".to_owned()]);
    let mut grid = Grid::new(head);
    let issuers: IndexSet<Option<Issuer>> = rows.iter().map(|row| row.issuer).collect();
    for issuer in issuers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.issuer == issuer).collect();
        let mut values: Vec<(f64, &Row)> =
            own.iter().filter_map(|row| Some((value(row)?, *row))).collect();
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        let at = |place: usize| values.get(place).map(|(value, _)| short_gb_s(*value));
        let last = values.len().saturating_sub(1);
        let again =
            own.iter().filter(|row| row.flags.split(' ').any(|flag| flag == "measured_again"));
        let mut cells = vec![words::or_dash(issuer), values.len().to_string()];
        cells.extend([0, values.len() / 2, last].map(|place| words::or_dash(at(place))));
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

/// A bandwidth with two decimals, for a matrix, which must be narrow.
pub(super) fn short_gb_s(gb_s: f64) -> String {
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
    page.grid(Grid::square("from / to", &labels, |source, target| {
        let pair = [Some(places[source]), Some(places[target])];
        words::or_dash(rows.iter().find(|row| ends(row) == pair).map(|row| text(row)))
    }));
    page.lines("\n");
}

/// Why rows have no number, and their flags. Each note appears once, with the first row and the
/// number of rows.
pub(super) fn notes(rows: &[&Row]) -> String {
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

/// `p2p copy read ce, GPU 0 -> GPU 1, 1 MiB`
fn which(row: &Row, rows: &[&Row]) -> String {
    row.title(&Naming { has_hosts: !has_one_host(rows), ..Naming::default() })
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
        matrices(&rows.iter().collect::<Vec<&Row>>(), &mut page, true);
        page.text_within(80, false)
    }

    /// All pairs of so many GPUs, read and written.
    fn all_pairs(gpus: u32, rate: &dyn Fn(u32, u32) -> f64) -> Vec<Row> {
        let ends = (0..gpus * gpus).map(|n| (n / gpus, n % gpus)).filter(|(a, b)| a != b);
        let both = |(source, target)| {
            let rate = exactly(rate(source, target));
            [Issuer::Read, Issuer::Write].map(|issuer| row(issuer, source, target, &rate))
        };
        ends.flat_map(both).collect()
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
        assert_eq!(lines[0], "p2p copy ce, 64 MiB, GB/s read by the target [SIMULATED]");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "300.00"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["GPU", "1", "skipped", "-"]);
        assert!(lines[7].ends_with("400.00"), "{text}");
        assert!(lines[10].contains(", ratio read / write"), "{text}");
        assert_eq!(lines[12].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "0.750"]);
        assert!(lines[15].contains(", 95 % interval of the ratio, ± % of it"), "{text}");
        assert_eq!(lines[17].split_whitespace().collect::<Vec<_>>(), ["GPU", "0", "-", "0.00"]);
        let skipped = "skipped: p2p copy read ce, GPU 1 -> GPU 0, 64 MiB: no peer access";
        assert!(text.contains(skipped), "{text}");
    }

    #[test]
    fn pairs_that_all_lack_a_number_for_one_reason_are_one_line() {
        let skipped = |row: Row| Row {
            status: Status::Skipped,
            reason: "no peer access".to_owned(),
            bandwidth_gb_s: None,
            ..row
        };
        let mut rows: Vec<Row> = all_pairs(4, &|_, _| 1.0).into_iter().map(skipped).collect();
        let text = |rows: &[Row]| {
            let mut page = Page::default();
            matrices(&rows.iter().collect::<Vec<&Row>>(), &mut page, false);
            page.text_within(200, false)
        };
        let told = text(&rows);
        let line = "p2p copy ce, 64 MiB, GB/s read by the target: all 12 pairs skipped [SIMULATED]";
        assert_eq!(told.lines().next(), Some(line));
        assert_eq!(told.matches("no peer access").count(), 1, "{told}");
        assert!(!told.contains("GPU 3"), "{told}");
        rows[0] = row(Issuer::Read, 0, 1, &exactly(1.0));
        assert!(text(&rows).contains("GPU 3"));
    }

    #[test]
    fn eight_gpus_fit_a_terminal_of_eighty_columns() {
        let text = text(&all_pairs(8, &|_, _| 398.765));
        for line in text.lines().filter(|line| line.starts_with("   GPU")) {
            assert!(line.len() <= 80, "{line}");
        }
        assert!(text.contains("ratio read / write"), "{text}");
    }

    #[test]
    fn pairs_are_alike_within_their_intervals_or_a_hundredth() {
        let unlike = |rows: &[Row]| {
            let least = least(&rows.iter().collect::<Vec<&Row>>());
            least.map(|(row, value)| (row.source_gpu, row.target_gpu, value))
        };
        let of = |slow: f64| {
            all_pairs(3, &|source, target| if (source, target) == (2, 1) { slow } else { 100.0 })
        };
        assert_eq!(unlike(&of(99.1)), None);
        assert_eq!(unlike(&of(98.9)), Some((Some(2), Some(1), 98.9)));
        let wide = |row: Row| Row {
            bandwidth_gb_s_low: row.bandwidth_gb_s.map(|gb_s| gb_s - 2.0),
            bandwidth_gb_s_high: row.bandwidth_gb_s.map(|gb_s| gb_s + 2.0),
            ..row
        };
        let wide: Vec<Row> = of(97.0).into_iter().map(wide).collect();
        assert_eq!(unlike(&wide), None);
        let untold = |row: Row| Row { bandwidth_gb_s_low: None, ..row };
        let untold = |slow| of(slow).into_iter().map(untold).collect::<Vec<Row>>();
        assert_eq!(unlike(&untold(98.1)), None);
        assert!(unlike(&untold(97.9)).is_some());
        // Of latencies the largest is the worst.
        let chase = |row: Row| Row {
            operation: Some(Operation::Chase),
            latency_ns_p50: row.bandwidth_gb_s.and_then(crate::units::whole_nanoseconds),
            ..row
        };
        let chases: Vec<Row> = of(120.0).into_iter().map(chase).collect();
        assert_eq!(unlike(&chases), Some((Some(2), Some(1), 120.0)));
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
        let text = notes(&rows.iter().collect::<Vec<&Row>>());
        for line in [
            "  CORRUPT: 3 of 6 rows, the first p2p copy read ce, GPU 0 -> GPU 1, 4 KiB: rank 1 \
             found 3 wrong bytes",
            "  short samples: 2 of 6 rows, the first p2p copy write ce, GPU 0 -> GPU 1, 64 MiB",
            "  timer coarse: 2 of 6 rows, the first p2p copy write ce, GPU 0 -> GPU 1, 64 MiB",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
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
        assert!(
            text(&[ranks]).contains("read by the target; between ranks by cumem [SIMULATED]\n")
        );
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
        assert_eq!(Ratio::of(&read, &few).unwrap(), Ratio { median: 1.0, interval: None });
    }
}
