//! Pairs of GPUs or ranks at a glance: a matrix for reads, one for writes, and their ratio.

use super::{
    page::{Grid, Page},
    table, verdicts,
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
        && (is_of_gpus || row.transport == TransportKind::Rdma)
}

/// What the rows of one set of matrices have in common.
#[derive(Clone, PartialEq, Eq)]
struct Kind {
    /// What they are called.
    name: String,
    transport: TransportKind,
    operation: Option<Operation>,
    /// Of pairs within a host.
    host: Option<String>,
}

impl Kind {
    fn of(row: &Row) -> Self {
        Self {
            name: row.kind(&Naming { has_hosts: false, without: &["issuer"] }),
            transport: row.transport,
            operation: row.operation,
            host: row.source_host.clone().filter(|_| !is_between_hosts(row.transport)),
        }
    }
}

/// What the ends of pairs are.
const fn end(transport: TransportKind) -> &'static str {
    match transport {
        TransportKind::Rdma => "rank",
        TransportKind::Local | TransportKind::P2p | TransportKind::Shm | TransportKind::Nccl => {
            "GPU"
        }
    }
}

/// For each kind of transfer: the matrices of its largest size, and, where there are several
/// sizes, a table by size for each pair.
pub(super) fn matrices(rows: &[&Row], page: &mut Page) {
    let mut kinds: Vec<Kind> = Vec::new();
    for row in rows {
        if !kinds.contains(&Kind::of(row)) {
            kinds.push(Kind::of(row));
        }
    }
    let has_several_hosts = kinds.iter().any(|kind| kind.host != kinds[0].host);
    for kind in &kinds {
        let of_kind: Vec<&Row> =
            rows.iter().copied().filter(|row| Kind::of(row) == *kind).collect();
        if let Some(host) = kind.host.as_ref().filter(|_| has_several_hosts) {
            page.lines(&format!("On {host}:\n"));
        }
        let largest = |is_wanted: &dyn Fn(&Row) -> bool| {
            let wanted = of_kind.iter().filter(|row| is_wanted(row));
            wanted.filter_map(|row| row.size_bytes).max()
        };
        // A size that fits into no GPU has nothing to show.
        let size = largest(&|row| row.status == Status::Ok).or_else(|| largest(&|_| true));
        let at_largest: Vec<&Row> =
            of_kind.iter().copied().filter(|row| row.size_bytes == size).collect();
        at_size(kind, size.unwrap_or_default(), &at_largest, page);
        page.lines(&notes(&of_kind));
        let paths = verdicts::paths(&of_kind, &|row| which(row, &of_kind));
        if !paths.is_empty() {
            page.lines(&format!("{paths}\n"));
        }
        if at_largest.len() < of_kind.len() {
            by_size(kind, &of_kind, page);
        }
    }
}

/// The matrices of rows of one kind and size.
fn at_size(kind: &Kind, size: Bytes, rows: &[&Row], page: &mut Page) {
    let end = end(kind.transport);
    let axis = format!("rows: source {end}, columns: target {end}");
    let ending = ending(rows);
    let title = |what: &str| format!("{}, {size}, {what}; {axis}{ending}", kind.name);
    let bandwidth = |row: &Row| row.bandwidth_gb_s.map(short_gb_s);
    if kind.operation.is_some_and(Operation::is_latency_only) {
        let latency = |row: &Row| row.latency_ns_p50.map(readable_nanoseconds);
        page.title(title(if kind.operation == Some(Operation::Chase) {
            "median latency of one load by the target"
        } else {
            "median latency one way"
        }));
        square(page, rows, &|row| cell(row, latency));
    } else if kind.transport == TransportKind::P2p && kind.operation == Some(Operation::Copy) {
        let by = |issuer| -> Vec<&Row> {
            rows.iter().copied().filter(|row| row.issuer == Some(issuer)).collect()
        };
        let (reads, writes) = (by(Issuer::Read), by(Issuer::Write));
        for (of, name) in [(&reads, "read by the target"), (&writes, "written by the source")] {
            if !of.is_empty() {
                page.title(title(&format!("GB/s {name}")));
                square(page, of, &|row| cell(row, bandwidth));
            }
        }
        let ratio = |read: &Row| {
            let write = writes.iter().find(|write| ends(write) == ends(read))?;
            Ratio::of(read, write)
        };
        if reads.iter().any(|read| ratio(read).is_some()) {
            let text_of = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            page.title(title("ratio read / write"));
            let median = |ratio: Ratio| format!("{:.3}", ratio.median);
            square(page, &reads, &|read| text_of(ratio(read).map(median)));
            page.title(title("95 % interval of the ratio, ± % of it"));
            let width = |ratio: Ratio| Some(format!("{:.2}", 100.0 * ratio.half_width()?));
            square(page, &reads, &|read| text_of(ratio(read).and_then(width)));
        }
    } else {
        page.title(title("GB/s"));
        square(page, rows, &|row| cell(row, bandwidth));
    }
}

/// The end of a title: what the rows have in common beside their kind.
fn ending(rows: &[&Row]) -> String {
    let mut ending = String::new();
    let is_shared = |row: &&&Row| row.handle.is_some() || row.provider.is_none();
    if rows.iter().filter(is_shared).any(|row| row.source_rank != row.target_rank) {
        let handle = rows.iter().find_map(|row| row.handle);
        ending.push_str("; between ranks");
        ending.extend(handle.map(|handle| format!(" by {handle}")));
    }
    if rows.iter().any(|row| row.simulated) {
        ending.push_str(" [SIMULATED]");
    }
    ending
}

/// A bandwidth for a matrix, which must be narrow.
fn short_gb_s(gb_s: f64) -> String {
    if gb_s < 1.0 { readable_gb_s(gb_s) } else { format!("{gb_s:.2}") }
}

/// Whether its pairs may be of different hosts.
const fn is_between_hosts(transport: TransportKind) -> bool {
    matches!(transport, TransportKind::Nccl | TransportKind::Rdma)
}

/// A GPU, of NCCL with its host, or a rank that RDMA joins.
type End<'a> = (Option<&'a str>, u32);

fn ends(row: &Row) -> (Option<End<'_>>, Option<End<'_>>) {
    let of_nccl = row.transport == TransportKind::Nccl;
    let source_host = row.source_host.as_deref().filter(|_| of_nccl);
    let target_host = row.target_host.as_deref().filter(|_| of_nccl);
    let (source, target) = match row.transport {
        TransportKind::Rdma => (row.source_rank, row.target_rank),
        TransportKind::Local | TransportKind::P2p | TransportKind::Shm | TransportKind::Nccl => {
            (row.source_gpu, row.target_gpu)
        }
    };
    (source.map(|source| (source_host, source)), target.map(|target| (target_host, target)))
}

/// A number, or what became of it.
fn cell(row: &Row, number: impl Fn(&Row) -> Option<String>) -> String {
    match row.status {
        Status::Ok => number(row).unwrap_or_else(|| "-".to_owned()),
        Status::Skipped => "skipped".to_owned(),
        Status::Corrupt => "CORRUPT".to_owned(),
        Status::Failed => "FAILED".to_owned(),
    }
}

/// A matrix of sources and targets, with what `text` says of each pair.
fn square(page: &mut Page, rows: &[&Row], text: &dyn Fn(&Row) -> String) {
    let name = rows.first().map_or("", |row| end(row.transport));
    let mut gpus: Vec<End<'_>> =
        rows.iter().flat_map(|row| <[Option<End<'_>>; 2]>::from(ends(row))).flatten().collect();
    gpus.sort_unstable();
    gpus.dedup();
    let has_one_host = has_one_host(rows);
    let label = |end: &End<'_>| label(name, *end, has_one_host);
    let heads = gpus.iter().map(label);
    let mut grid = Grid::new(std::iter::once(String::new()).chain(heads));
    for source in &gpus {
        let pair = |target: &End<'_>| {
            let found = rows.iter().find(|row| ends(row) == (Some(*source), Some(*target)));
            found.map_or_else(|| "-".to_owned(), |row| text(row))
        };
        let cells = gpus.iter().map(pair);
        grid.row(std::iter::once(label(source)).chain(cells));
    }
    page.grid(grid);
    page.lines("\n");
}

/// What the numbers do not say: why a row has none, and what is in doubt about one that has. Each
/// once, however many GPUs it names, with the first row and how many there are.
fn notes(rows: &[&Row]) -> String {
    struct Note<'a> {
        word: String,
        reason: &'a str,
        first: &'a Row,
        count: usize,
    }
    let mut notes: Vec<Note<'_>> = Vec::new();
    for row in rows {
        let words: Vec<String> = match row.status {
            Status::Ok => row.flags.split_whitespace().map(|flag| flag.replace('_', " ")).collect(),
            _ => vec![cell(row, |_| None)],
        };
        for word in words {
            let is_alike = |note: &&mut Note<'_>| {
                note.word == word && table::is_alike(note.reason, &row.reason)
            };
            match notes.iter_mut().find(is_alike) {
                Some(note) => note.count += 1,
                None => notes.push(Note { word, reason: &row.reason, first: row, count: 1 }),
            }
        }
    }
    let mut text = String::new();
    for Note { word, reason, first, count } in notes {
        let which = which(first, rows);
        text.push_str(&match count {
            1 => format!("  {word}: {which}"),
            _ => format!("  {word}: {count} of {} rows, the first {which}", rows.len()),
        });
        let colon = if reason.is_empty() { "" } else { ": " };
        text.push_str(&format!("{colon}{reason}\n"));
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

fn label(name: &str, (host, number): End<'_>, has_one_host: bool) -> String {
    match host.filter(|_| !has_one_host) {
        Some(host) => format!("{name} {number} of {host}"),
        None => format!("{name} {number}"),
    }
}

/// A table by size for each pair, reads beside writes.
fn by_size(kind: &Kind, rows: &[&Row], page: &mut Page) {
    let mut pairs: Vec<(Option<End<'_>>, Option<End<'_>>)> =
        rows.iter().map(|row| ends(row)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    for ends_of_pair in pairs {
        let of_pair: Vec<&Row> =
            rows.iter().copied().filter(|row| ends(row) == ends_of_pair).collect();
        let mut sizes: Vec<Bytes> = Vec::new();
        for size in of_pair.iter().filter_map(|row| row.size_bytes) {
            if !sizes.contains(&size) {
                sizes.push(size);
            }
        }
        let ending = ending(&of_pair);
        page.title(format!("{}, {}{ending}", kind.name, pair(of_pair[0], rows)));
        page.grid(sizes_of_pair(&sizes, &of_pair));
        page.lines("\n");
    }
}

fn sizes_of_pair(sizes: &[Bytes], rows: &[&Row]) -> Grid {
    let mut issuers: Vec<Option<Issuer>> = Vec::new();
    for row in rows {
        if !issuers.contains(&row.issuer) {
            issuers.push(row.issuer);
        }
    }
    let mut header = vec!["size".to_owned()];
    for issuer in &issuers {
        let name = issuer.map_or(String::new(), |issuer| format!("{issuer} "));
        header.extend([format!("{name}GB/s"), "95 % interval".to_owned(), format!("{name}p50")]);
    }
    let has_ratio = issuers.len() == 2;
    if has_ratio {
        header.extend(["read / write".to_owned()]);
    }
    let mut grid = Grid::new(header);
    for &size in sizes {
        let find = |issuer: Option<Issuer>| {
            rows.iter().find(|row| row.size_bytes == Some(size) && row.issuer == issuer)
        };
        let mut cells = vec![size.to_string()];
        for &issuer in &issuers {
            let Some(row) = find(issuer) else {
                cells.extend(["-", "-", "-"].map(str::to_owned));
                continue;
            };
            cells.push(cell(row, |row| row.bandwidth_gb_s.map(readable_gb_s)));
            cells.push(match (row.bandwidth_gb_s_low, row.bandwidth_gb_s_high) {
                (Some(low), Some(high)) => {
                    format!("{} to {}", readable_gb_s(low), readable_gb_s(high))
                }
                _ => "-".to_owned(),
            });
            cells.push(row.latency_ns_p50.map_or_else(|| "-".to_owned(), readable_nanoseconds));
        }
        if has_ratio {
            let both = find(Some(Issuer::Read)).zip(find(Some(Issuer::Write)));
            let ratio = both.and_then(|(read, write)| Ratio::of(read, write));
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string()));
        }
        grid.row(cells);
    }
    grid
}

/// How many times as fast one row is as another, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    median: f64,
    /// `None` where a row has too few samples for an interval of its own.
    interval: Option<(f64, f64)>,
}

impl Ratio {
    /// The medians' ratio. Its interval comes from those of both medians by the method of variance
    /// estimates recovery on the logarithms (Zou and Donner, "Construction of confidence limits
    /// about effect measures", Statistics in Medicine 27, 2008), which asks only that the rows are
    /// independent. `None` if one of them has no bandwidth.
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
            let down = low.hypot(under_high);
            let up = high.hypot(under_low);
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
