//! Rows read back, a column at a time: a million of them fit into memory.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use super::{Error, Row, csv};

/// The columns that say what a case is.
pub const CASE_COLUMNS: [&str; 35] = [
    "transport",
    "operation",
    "data_type",
    "reduction",
    "root",
    "in_place",
    "buffer",
    "registration",
    "graph",
    "split",
    "communicator_ranks",
    "operations_per_group",
    "blocking",
    "nccl_env",
    "issuer",
    "engine",
    "handle",
    "provider",
    "gpu_path",
    "window",
    "pattern",
    "flows",
    "source_memory",
    "source_gpu",
    "source_rank",
    "source_host",
    "source_numa_node",
    "source_domain",
    "target_memory",
    "target_gpu",
    "target_rank",
    "target_host",
    "target_numa_node",
    "target_domain",
    "size_bytes",
];

/// Columns that hold a number of its own in nearly every row; all others are texts.
fn is_measured(column: &str) -> bool {
    column.contains("gb_s")
        || column.starts_with("latency_ns_")
        || ["case", "wire_bytes_per_payload_byte", "expected_fraction", "bandwidth_variation"]
            .contains(&column)
}

/// Rows, as columns of cells. A cell that is empty says nothing.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    names: HashMap<String, usize>,
    columns: Vec<Column>,
    length: usize,
}

/// The cells of a column.
#[derive(Clone, Debug)]
enum Column {
    /// What was measured: NaN where the cell is empty, and beyond the end.
    Numbers(Vec<f64>),
    /// Each different text once, and which of them stands in each row; beyond the end the first.
    Few { different: Vec<Box<str>>, places: HashMap<Box<str>, u16>, cells: Vec<u16> },
    /// The texts of all rows one behind the other, and where each ends.
    Many { text: String, ends: Vec<usize> },
    /// Nobody asks for it.
    Unread,
}

impl Column {
    fn new(name: &str) -> Self {
        match is_measured(name) {
            true => Self::Numbers(Vec::new()),
            false => Self::Few { different: Vec::new(), places: HashMap::new(), cells: Vec::new() },
        }
    }

    /// Puts a cell into the row behind all others; `None` if it is no number where one must stand.
    fn push(&mut self, row: usize, cell: &str) -> Option<()> {
        match self {
            // Columns that are empty, and there are many, take no room.
            Self::Numbers(_) if cell.is_empty() => {}
            Self::Numbers(numbers) => {
                numbers.resize(row, f64::NAN);
                numbers.push(cell.parse().ok().filter(|number: &f64| number.is_finite())?);
            }
            Self::Few { different, places, cells } => {
                let before = cells.get(row.wrapping_sub(1)).copied().unwrap_or(0);
                // Most cells are empty.
                let is_same = |of: &str| of.len() == cell.len() && (cell.is_empty() || of == cell);
                let is_before = different.get(usize::from(before)).is_some_and(|of| is_same(of));
                let place = match is_before.then_some(before).or_else(|| places.get(cell).copied())
                {
                    Some(place) => place,
                    None => match u16::try_from(different.len()) {
                        Ok(place) => {
                            different.push(cell.into());
                            places.insert(cell.into(), place);
                            place
                        }
                        Err(_) => {
                            *self = self.every_one(row);
                            return self.push(row, cell);
                        }
                    },
                };
                // A column that has one text only takes no room either.
                if place > 0 {
                    cells.resize(row, 0);
                    cells.push(place);
                }
            }
            Self::Many { text, ends } => {
                text.push_str(cell);
                ends.push(text.len());
            }
            Self::Unread => {}
        }
        Some(())
    }

    /// The same with the text of each row by itself.
    fn every_one(&self, rows: usize) -> Self {
        let mut text = String::new();
        let ends = (0..rows).map(|row| {
            text.push_str(self.text(row));
            text.len()
        });
        let ends = ends.collect();
        Self::Many { text, ends }
    }

    fn text(&self, row: usize) -> &str {
        match self {
            Self::Numbers(_) | Self::Unread => "",
            Self::Few { different, cells, .. } => {
                &different[usize::from(cells.get(row).copied().unwrap_or(0))]
            }
            Self::Many { text, ends } => {
                let start = row.checked_sub(1).map_or(0, |before| ends[before]);
                &text[start..ends[row]]
            }
        }
    }

    fn number(&self, row: usize) -> Option<f64> {
        match self {
            Self::Numbers(numbers) => numbers.get(row).copied().filter(|number| !number.is_nan()),
            texts => texts.text(row).parse().ok().filter(|number: &f64| number.is_finite()),
        }
    }
}

impl Columns {
    /// The rows of a run's `run.csv`, with the columns that are wanted; to ask for another later is
    /// a mistake in the program, which ends it. A last line without its line break, as a kill may
    /// leave it, is no row.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let lines = File::open(path).and_then(whole_lines);
        let lines = lines.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::of(lines, is_wanted)
            .map_err(|reason| Error::Content { path: path.to_owned(), reason })
    }

    /// The same of rows that are at hand.
    pub fn of_rows(rows: impl IntoIterator<Item = Row>) -> Self {
        let mut columns = Self::new();
        rows.into_iter().for_each(|row| columns.push(&row));
        columns
    }

    /// The columns, and no row.
    pub fn new() -> Self {
        Self::of(csv::text(&[]).as_bytes(), |_| true).expect("what is written reads back")
    }

    /// Appends a row.
    pub fn push(&mut self, row: &Row) {
        let line = csv::line(row);
        // No cell has a comma in it.
        let cells = line.trim_end_matches('\n').split(',');
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(self.length, cell).expect("what is written reads back");
        }
        self.length += 1;
    }

    /// The rows of the text of a `run.csv`.
    ///
    /// # Errors
    ///
    /// It is something else: a sentence, with the line.
    pub fn of(text: impl Read, is_wanted: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut reader = ::csv::Reader::from_reader(text);
        let header = reader.headers().map_err(|err| told(&err))?.clone();
        let mut rows = Self {
            names: header.iter().enumerate().map(|(at, name)| (name.to_owned(), at)).collect(),
            columns: header
                .iter()
                .map(|name| if is_wanted(name) { Column::new(name) } else { Column::Unread })
                .collect(),
            length: 0,
        };
        for column in ["case", "transport", "status", "simulated"] {
            if !rows.names.contains_key(column) {
                return Err(format!("its first line has no column {column}"));
            }
        }
        let mut record = ::csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(|err| told(&err))? {
            for ((column, cell), name) in rows.columns.iter_mut().zip(&record).zip(&header) {
                column.push(rows.length, cell).ok_or_else(|| {
                    let line = record.position().map_or(0, ::csv::Position::line);
                    format!("line {line} has {cell:?} for {name}, which is a number")
                })?;
            }
            rows.length += 1;
        }
        Ok(rows)
    }

    /// How many rows there are.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The text of a row as it stands in the file. Empty of a measured number, and where the file,
    /// an older one, has no such column.
    pub fn text(&self, row: usize, column: &str) -> &str {
        self.column(column).map_or("", |column| column.text(row))
    }

    /// The cells of a column, to be looked at row by row.
    pub fn texts(&self, column: &str) -> Texts<'_> {
        Texts(self.column(column))
    }

    /// The number in a cell, if one stands there.
    pub fn number(&self, row: usize, column: &str) -> Option<f64> {
        self.column(column)?.number(row)
    }

    /// The whole number in a cell, if one stands there.
    pub fn count(&self, row: usize, column: &str) -> Option<u64> {
        self.text(row, column).parse().ok()
    }

    /// The rows that have this text in a column.
    pub fn with<'a>(
        &'a self,
        column: &str,
        text: &'a str,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let texts = self.texts(column);
        let rows = if texts.may_have(text) { self.length } else { 0 };
        (0..rows).filter(move |row| texts.text(*row) == text)
    }

    /// What tells whether two rows have the same texts in these columns.
    pub fn alike(&self, columns: &[&str]) -> impl Fn(usize, usize) -> bool {
        let columns = columns.iter().map(|column| self.texts(column));
        let differing: Vec<Texts> = columns.filter(|texts| texts.only().is_none()).collect();
        move |one, other| differing.iter().all(|texts| texts.are_same(one, other))
    }

    fn column(&self, name: &str) -> Option<&Column> {
        let column = self.columns.get(*self.names.get(name)?)?;
        assert!(!matches!(column, Column::Unread), "{name} was not wanted");
        Some(column)
    }
}

/// The texts, or the numbers, of a column.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a>(Option<&'a Column>);

impl<'a> Texts<'a> {
    /// As [`Columns::text`].
    pub fn text(self, row: usize) -> &'a str {
        self.0.map_or("", |column| column.text(row))
    }

    /// As [`Columns::number`].
    pub fn number(self, row: usize) -> Option<f64> {
        self.0?.number(row)
    }

    /// As [`Columns::count`].
    pub fn count(self, row: usize) -> Option<u64> {
        self.text(row).parse().ok()
    }

    /// Whether two rows have the same text.
    fn are_same(self, one: usize, other: usize) -> bool {
        match self.0 {
            Some(Column::Few { cells, .. }) => {
                let place = |row: usize| cells.get(row).copied().unwrap_or(0);
                place(one) == place(other)
            }
            _ => self.text(one) == self.text(other),
        }
    }

    /// Whether it is possible that a row has this text.
    fn may_have(self, text: &str) -> bool {
        match self.0 {
            Some(Column::Few { different, .. }) => different.iter().any(|of| **of == *text),
            _ => true,
        }
    }

    /// The text that all rows have; `None` where they differ, or may.
    pub fn only(self) -> Option<&'a str> {
        match self.0 {
            None => Some(""),
            Some(Column::Few { different, .. }) => match &different[..] {
                [only] => Some(only),
                _ => None,
            },
            Some(_) => None,
        }
    }
}

/// A file up to its last line break.
fn whole_lines(file: File) -> io::Result<impl Read> {
    let mut end = file.metadata()?.len();
    let mut piece = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(piece.len() as u64);
        let piece = &mut piece[..usize::try_from(end - start).unwrap_or_default()];
        file.read_exact_at(piece, start)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
    }
    Ok(file.take(end))
}

/// What is wrong with a line, in one sentence.
fn told(err: &::csv::Error) -> String {
    let line = err.position().map_or(0, ::csv::Position::line);
    match err.kind() {
        ::csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("line {line} has {len} cells, and the first line {expected_len}")
        }
        ::csv::ErrorKind::Utf8 { .. } => format!("line {line} is no text"),
        _ => err.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::TransportKind, units::Bytes};

    fn row(case: usize, size: u64, gb_s: f64) -> Row {
        Row {
            bandwidth_gb_s: Some(gb_s),
            size_bytes: Some(Bytes::new(size)),
            ..Row::absent(case, TransportKind::P2p, "because")
        }
    }

    #[test]
    fn rows_are_what_they_were() {
        let rows = Columns::of_rows([row(1, 64, 0.1), row(2, 128, 1e-9), row(3, 64, 450.25)]);
        assert_eq!(rows.len(), 3);
        for (at, (size, gb_s)) in [(64, 0.1), (128, 1e-9), (64, 450.25)].into_iter().enumerate() {
            assert_eq!(rows.number(at, "case"), Some(at as f64 + 1.0));
            assert_eq!(rows.text(at, "transport"), "p2p");
            assert_eq!(rows.text(at, "reason"), "because");
            assert_eq!(rows.count(at, "size_bytes"), Some(size));
            assert_eq!(rows.number(at, "bandwidth_gb_s"), Some(gb_s));
            assert_eq!(rows.number(at, "bandwidth_gb_s_low"), None);
            assert_eq!(rows.text(at, "issuer"), "");
        }
    }

    #[test]
    fn cells_are_what_they_were_however_many_differ() {
        let row = |case: usize| {
            // Empty at first, then all different, more than a column counts, then alike again.
            let reason =
                if (10..70_000).contains(&case) { format!("case {case}") } else { String::new() };
            let mut row = Row { reason, ..row(case, 64, 0.1) };
            row.bandwidth_gb_s = (case == 5).then_some(0.5);
            row
        };
        let rows = Columns::of_rows((0..70_010).map(row));
        for at in [0, 4, 5, 6, 9, 10, 11, 65_535, 65_536, 65_545, 65_546, 69_999, 70_000, 70_009] {
            let Row { reason, bandwidth_gb_s, .. } = row(at);
            assert_eq!(rows.text(at, "reason"), reason, "{at}");
            assert_eq!(rows.number(at, "bandwidth_gb_s"), bandwidth_gb_s, "{at}");
            assert_eq!(rows.number(at, "case"), Some(at as f64));
            assert_eq!((rows.text(at, "transport"), rows.text(at, "issuer")), ("p2p", ""));
        }
    }

    #[test]
    fn what_is_measured_is_a_number_and_nothing_else_is() {
        let header = include_str!("../../tests/golden/header.csv").trim_end();
        let measured: Vec<&str> = header.split(',').filter(|name| is_measured(name)).collect();
        let expected = "case,wire_bytes_per_payload_byte,bandwidth_gb_s,bandwidth_gb_s_low,\
            bandwidth_gb_s_high,bandwidth_gb_s_total,bandwidth_gb_s_bus,expected_gb_s,\
            expected_gb_s_low,expected_gb_s_high,expected_fraction,slowest_rank_gb_s,\
            bandwidth_variation,latency_ns_min,latency_ns_p50,latency_ns_p90,latency_ns_p99,\
            latency_ns_p999,latency_ns_max";
        assert_eq!(measured.join(","), expected);
    }

    #[test]
    fn a_line_that_a_kill_has_cut_is_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.csv");
        let text = csv::text(&[row(1, 64, 0.1), row(2, 128, 0.2)]);
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for end in last..text.len() {
            std::fs::write(&path, &text[..end]).unwrap();
            assert_eq!(Columns::read(&path, |_| true).unwrap().len(), 1, "{end} bytes");
        }
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Columns::read(&path, |_| true).unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_run_is_refused_with_the_line() {
        let header = csv::text(&[]);
        let cells = header.matches(',').count();
        let refused = |text: &[u8]| Columns::of(text, |_| true).unwrap_err();
        assert_eq!(refused(b""), "its first line has no column case");
        assert_eq!(refused(b"name,value\na,1\n"), "its first line has no column case");
        let short = format!("{header}1,p2p\n");
        assert_eq!(refused(short.as_bytes()), "line 2 has 2 cells, and the first line 95");
        let wrong = format!("{header}one{}\n", ",".repeat(cells));
        assert_eq!(refused(wrong.as_bytes()), "line 2 has \"one\" for case, which is a number");
        let endless = wrong.replace("one", "inf");
        assert_eq!(refused(endless.as_bytes()), "line 2 has \"inf\" for case, which is a number");
        let binary = [header.as_bytes(), b"\xff", ",".repeat(cells).as_bytes(), b"\n"].concat();
        assert_eq!(refused(&binary), "line 2 is no text");
    }
}
