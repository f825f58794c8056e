//! `latency.hlog`: a histogram for each row, in HdrHistogram's interval log format.

use std::{
    path::Path,
    time::{Instant, SystemTime},
};

use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, Tag},
};

use super::{Error, Row, files::RecordFile};
use crate::{
    measure::Latency,
    plan::{Operation, Rank},
};

/// The open file.
#[derive(Debug)]
pub(super) struct Hlog {
    file: RecordFile,
    began: Instant,
    /// When the last line was written.
    last: Instant,
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
        let now = Instant::now();
        Ok(Self { file: RecordFile::create(path, &beginning, "")?, began: now, last: now })
    }

    /// Appends the histogram of `row`, over all ranks or of one, tagged with the row's number and
    /// what it is about. Its interval is the time since the line before.
    pub(super) fn append(
        &mut self,
        row: &Row,
        rank: Option<Rank>,
        latency: &Latency,
    ) -> Result<(), Error> {
        let tag = format!(
            "case-{}_{}_{}_{}B{}",
            row.case,
            row.transport.name(),
            row.pattern.or(row.operation.map(Operation::name)).unwrap_or("none"),
            row.size_bytes.unwrap_or_default().get(),
            rank.map_or_else(String::new, |rank| format!("_rank-{}", rank.0))
        );
        let mut line = Vec::new();
        let now = Instant::now();
        IntervalLogWriterBuilder::new()
            .begin_log_with(&mut line, &mut V2DeflateSerializer::new())
            .expect("memory takes every write")
            .write_histogram(
                latency.histogram(),
                self.last - self.began,
                now - self.last,
                Tag::new(&tag),
            )
            .expect("memory takes every write, and the histogram's counts are in range");
        self.last = now;
        self.file.append(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TransportKind;
    use base64::prelude::{BASE64_STANDARD, Engine};
    use hdrhistogram::{
        Histogram,
        serialization::{
            Deserializer,
            interval_log::{IntervalLogIterator, LogEntry},
        },
    };
    use std::time::Duration;

    #[test]
    fn every_row_reads_back_by_its_tag() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latency.hlog");
        let mut hlog = Hlog::create(&path).unwrap();
        for (case, ns) in [(1, 100), (2, 200)] {
            let times = vec![Duration::from_nanos(ns); 50];
            let row = Row::absent(case, TransportKind::Shm, "");
            hlog.append(&row, None, &Latency::of(&times)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // The legend is for readers in other languages; this one knows only the lines themselves.
        let lines: String =
            text.split_inclusive('\n').filter(|line| !line.starts_with('"')).collect();
        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(lines.as_bytes()) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let bytes = BASE64_STANDARD.decode(interval.encoded_histogram()).unwrap();
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                let tag = interval.tag().unwrap().as_str().to_owned();
                found.push((tag, histogram.len(), histogram.max()));
            }
        }
        assert_eq!(
            found,
            [
                ("case-1_shm_none_0B".to_owned(), 50, 100),
                ("case-2_shm_none_0B".to_owned(), 50, 200)
            ]
        );
    }
}
