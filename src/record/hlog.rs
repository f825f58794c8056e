//! `latency.hlog`: a histogram for each row, in HdrHistogram's interval log format.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use base64::prelude::{BASE64_STANDARD, Engine};
use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag},
};

use super::{
    Error, Row, Status,
    files::{self, RecordFile},
    past::{Lines, damaged},
};
use crate::{measure::Latency, plan::Rank};

/// The open file.
#[derive(Debug)]
pub(super) struct Hlog {
    file: RecordFile,
    /// When this process opened it, and how long after the time in its head that was.
    opened: (Instant, Duration),
    /// When the last line was written, from that time on.
    last: Duration,
}

impl Hlog {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let mut beginning = Vec::new();
        IntervalLogWriterBuilder::new()
            .add_comment("[Latencies in nanoseconds; a line for each row of run.csv, by its tag]")
            .add_comment("[Histogram log format version 1.3]")
            .with_start_time(SystemTime::now())
            .begin_log_with(&mut beginning, &mut V2DeflateSerializer::new())
            .expect("memory takes every write");
        beginning.extend(
            b"\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\
              \"Interval_Compressed_Histogram\"\n",
        );
        let file = RecordFile::create(path, &beginning, "")?;
        Ok(Self { file, opened: (Instant::now(), Duration::ZERO), last: Duration::ZERO })
    }

    /// Opens the file of a run that goes on, and keeps only the lines of `rows`.
    pub(super) fn resume(path: &Path, rows: &[Row]) -> Result<Self, Error> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let file = files::open(path).map_err(read)?;
        let found = find(&file, rows).map_err(read)?;
        let Found { end, start, last } = found.map_err(|row| {
            damaged(path.parent().unwrap_or(path), &format!("latency.hlog lacks row {row}"))
        })?;
        // Times do not go back, even if the clock was set back.
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(start);
        let opened = (Instant::now(), since.max(last));
        Ok(Self { file: RecordFile::cut(path, file, end)?, opened, last: opened.1 })
    }

    /// Appends the histogram of `row`, over all ranks or of one, tagged with the row's number and
    /// what it is about. Its interval is the time since the line before.
    pub(super) fn append(
        &mut self,
        row: &Row,
        rank: Option<Rank>,
        latency: &Latency,
    ) -> Result<(), Error> {
        let of_rank = rank.map_or_else(String::new, |rank| format!("{OF_RANK}{}", rank.0));
        let tag = format!("{}{of_rank}", tag(row));
        let mut line = Vec::new();
        let (opened, before) = self.opened;
        let now = before + opened.elapsed();
        IntervalLogWriterBuilder::new()
            .begin_log_with(&mut line, &mut V2DeflateSerializer::new())
            .expect("memory takes every write")
            .write_histogram(
                latency.histogram(),
                self.last,
                now.saturating_sub(self.last),
                Tag::new(&tag),
            )
            .expect("memory takes every write, and the histogram's counts are in range");
        self.last = now;
        self.file.append(&line)
    }
}

/// Gives `each` the latencies over all ranks of every row whose number is wanted, as far as the log
/// has them.
pub(super) fn read(
    path: &Path,
    is_wanted: impl Fn(usize) -> bool,
    mut each: impl FnMut(usize, Latency),
) -> Result<(), Error> {
    let cannot = |source| Error::Read { path: path.to_owned(), source };
    let content = |reason: String| Error::Content { path: path.to_owned(), reason };
    let mut file = BufReader::new(File::open(path).map_err(cannot)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        file.read_until(b'\n', &mut line).map_err(cannot)?;
        // A kill may cut the last line.
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let tag = line.strip_prefix(b"Tag=case-").and_then(|tag| tag.split(|b| *b == b',').next());
        let Some(tag) = tag.and_then(|tag| std::str::from_utf8(tag).ok()) else { continue };
        let number = tag.split('_').next().and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| is_wanted(*number)) else { continue };
        if tag.contains(OF_RANK) {
            continue;
        }
        let histogram = line.trim_ascii_end().rsplit(|byte| *byte == b',').next();
        let latency = histogram.and_then(|text| Latency::read(&BASE64_STANDARD.decode(text).ok()?));
        let damaged = || content(format!("the histogram of row {number} is damaged"));
        each(number, latency.ok_or_else(damaged)?);
    }
}

/// Separates a row's tag from the number of a rank.
const OF_RANK: &str = "_rank-";

/// What a row's lines begin with.
fn tag(row: &Row) -> String {
    let pattern = row.pattern.map(<&str>::from);
    format!(
        "case-{}_{}_{}_{}B",
        row.case,
        row.transport,
        pattern.or(row.operation.map(<&str>::from)).unwrap_or("none"),
        row.size_bytes.unwrap_or_default().get()
    )
}

/// What a file holds of a run's rows.
struct Found {
    /// Bytes up to the end of the last row's lines.
    end: u64,
    /// The time in its head, since 1970.
    start: Duration,
    /// When the last row's line was written, from then on.
    last: Duration,
}

/// Finds the lines of `rows`: one of each row that was measured, and after it those of its ranks.
/// The inner `Err` is the number of the first row without a line.
fn find(file: &File, rows: &[Row]) -> io::Result<Result<Found, usize>> {
    let mut found = Found { end: 0, start: Duration::ZERO, last: Duration::ZERO };
    let mut measured = rows.iter().filter(|row| row.status == Status::Ok).peekable();
    let mut ranks = None;
    let mut lines = Lines::of(file);
    while let Some(text) = lines.next_whole()? {
        match IntervalLogIterator::new(&[text, b"\n"].concat()).next() {
            Some(Ok(LogEntry::StartTime(start))) => found.start = start,
            Some(Ok(LogEntry::Interval(interval))) => {
                let own = interval.tag().map(|tag| tag.as_str().to_owned()).unwrap_or_default();
                let is_of_rank = ranks.as_ref().is_some_and(|ranks| own.starts_with(ranks));
                match measured.peek() {
                    _ if is_of_rank => {}
                    Some(row) if own == tag(row) => {
                        ranks = Some(format!("{own}{OF_RANK}"));
                        measured.next();
                    }
                    _ => break,
                }
                found.last = interval.start_timestamp().saturating_add(interval.duration());
            }
            _ if text.starts_with(b"#") || text.starts_with(b"\"") => {}
            _ => break,
        }
        found.end = lines.at;
    }
    if found.start.is_zero() {
        // Its head is gone.
        return Ok(Err(1));
    }
    Ok(measured.next().map_or(Ok(found), |row| Err(row.case)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TransportKind;

    #[test]
    fn every_row_reads_back_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latency.hlog");
        let mut hlog = Hlog::create(&path).unwrap();
        for (case, ns) in [(1, 100), (2, 200), (3, 300)] {
            let times = vec![Duration::from_nanos(ns); 50];
            let row = Row::absent(case, TransportKind::Shm, "");
            hlog.append(&row, None, &Latency::of(&times)).unwrap();
            hlog.append(&row, Some(Rank(1)), &Latency::of(&times[..1])).unwrap();
        }
        let found = |wanted: &[usize]| {
            let mut found = Vec::new();
            let is_wanted = |case| wanted.contains(&case);
            read(&path, is_wanted, |case, latency| {
                found.push((case, latency.count(), latency.max_ns()));
            })?;
            Ok::<_, Error>(found)
        };
        assert_eq!(found(&[1, 3, 4]).unwrap(), [(1, 50, 100), (3, 50, 300)]);

        // What a kill has cut is not there; what is damaged is told.
        let text = std::fs::read_to_string(&path).unwrap();
        let third = text.find("Tag=case-3").unwrap();
        std::fs::write(&path, &text[..third + 60]).unwrap();
        assert_eq!(found(&[1, 3]).unwrap().len(), 1);
        std::fs::write(&path, text.replace("HISTFAAA", "HISTFAA,")).unwrap();
        let told = found(&[1]).unwrap_err().to_string();
        assert!(told.ends_with("the histogram of row 1 is damaged"), "{told}");
    }
}
