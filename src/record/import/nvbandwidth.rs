//! The tests of nvbandwidth, by their names (`createTestcases` in `nvbandwidth.cpp` of 0.8).
//!
//! Its GB are 10⁹ bytes and its bandwidths and latencies medians of samples (`doMemcpyCore` in
//! `memcpy.cpp`); how many bytes a copy has is not in the file. Which end of a matrix is the source
//! is taken from its code, not from its titles, whose arrows point the other way: in a test that
//! reads, the GPU of the row pulls from that of the column; in one that writes, the GPU of the row
//! pushes (`testcases_ce.cpp`, `testcases_sm.cpp`, `testcase.cpp`).

use serde::Deserialize;

use super::{Program, Reader, Sink, quoted};
use crate::{
    plan::{Engine, Issuer, Operation, Pattern, TransportKind},
    record::{MemoryKind, Row, Status},
    units::whole_nanoseconds,
};

/// The program.
pub(super) const PROGRAM: Program = Program {
    name: "nvbandwidth",
    described: "nvbandwidth (text, or --json)",
    reader: |line| line.starts_with(TITLE).then(|| Box::<Text>::default() as Box<dyn Reader>),
};

/// How its text begins.
const TITLE: &str = "nvbandwidth Version: ";

/// What it reports when a byte of the target is not what it must be.
const WRONG_DATA: &str = "h_errorFlag == 0";

/// Why a test without a result has no numbers.
const NOT_ENDED: &str = "nvbandwidth began the test and did not end it";

/// A test.
#[derive(Deserialize)]
pub(super) struct Test {
    name: String,
    status: Option<String>,
    /// Numbers as text, `N/A` where nothing was measured.
    #[serde(default)]
    bandwidth_matrix: Vec<Option<Vec<String>>>,
}

/// The tests of a file, in their order.
#[derive(Default)]
pub(super) struct Tests {
    /// One that had begun and has no result yet.
    begun: Option<Test>,
}

impl Tests {
    /// Hands over the rows of the next test.
    pub(super) fn add(&mut self, test: Test, sink: &mut Sink<'_>) {
        // One that ends with an error is listed twice.
        if let Some(begun) = self.begun.take().filter(|begun| begun.name != test.name) {
            rowless(&begun, Status::Failed, NOT_ENDED, sink);
        }
        let status = test.status.as_deref().unwrap_or_default();
        match status {
            "Passed" => {
                if let Err(reason) = test.rows(sink) {
                    sink.leave_out(|| format!("{}: {reason}", quoted(&test.name)));
                }
            }
            "Running" => self.begun = Some(test),
            "Waived" => {
                let reason = "nvbandwidth waived the test: the machine lacks what it needs";
                rowless(&test, Status::Skipped, reason, sink);
            }
            "Error" => rowless(&test, Status::Failed, "nvbandwidth ended with an error", sink),
            _ => sink.leave_out(|| format!("{}: {}", quoted(&test.name), quoted(status))),
        }
    }

    /// Adds the row of a test that was running when nvbandwidth ended.
    pub(super) fn end(self, error: Option<&str>, sink: &mut Sink<'_>) {
        let Some(begun) = self.begun else { return };
        if error.is_some_and(|error| error.contains(WRONG_DATA)) {
            rowless(&begun, Status::Corrupt, "nvbandwidth found wrong data", sink);
        } else {
            rowless(&begun, Status::Failed, NOT_ENDED, sink);
        }
    }
}

/// Reads its text (`output.cpp`, and the matrix in `inline_common.h`).
#[derive(Default)]
struct Text {
    tests: Tests,
    /// The test at hand.
    test: Option<Test>,
    /// The columns of the matrix at hand; 0 outside of one.
    columns: usize,
    /// The error that it ended with.
    error: Option<String>,
}

impl Reader for Text {
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(version) = line.strip_prefix(TITLE) {
            sink.about.version = Some(version.to_owned());
        } else if let Some(name) = line.strip_prefix("Running ") {
            self.hand_over(sink);
            let name = name.trim_end_matches('.').to_owned();
            self.test = Some(Test { name, status: None, bandwidth_matrix: Vec::new() });
        } else if line.starts_with("Waived:") {
            return Err("nvbandwidth waived a test, and its text does not say which".to_owned());
        } else if line.contains(WRONG_DATA) {
            self.error = Some(line.to_owned());
        } else if let Some(test) = &mut self.test {
            let is_number = |word: &&str| *word == "N/A" || word.parse::<f64>().is_ok();
            let is_head = || (0..).zip(&words).all(|(at, word)| word.parse() == Ok::<usize, _>(at));
            if line.starts_with("Error:") {
                test.status = Some("Error".to_owned());
            } else if words.is_empty() {
                self.columns = 0;
            } else if self.columns == 0 {
                self.columns = if is_head() { words.len() } else { 0 };
            } else if words.len() > self.columns {
                let numbers = &words[words.len() - self.columns..];
                if numbers.iter().all(is_number) {
                    let numbers = numbers.iter().map(|word| (*word).to_owned()).collect();
                    test.bandwidth_matrix.push(Some(numbers));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, sink: &mut Sink<'_>) {
        self.hand_over(sink);
        std::mem::take(&mut self.tests).end(self.error.as_deref(), sink);
    }
}

impl Text {
    /// Hands over the test at hand, which has ended if it has a matrix.
    fn hand_over(&mut self, sink: &mut Sink<'_>) {
        self.columns = 0;
        let Some(test) = self.test.take() else { return };
        let status = if test.bandwidth_matrix.is_empty() { "Running" } else { "Passed" };
        let status = test.status.or_else(|| Some(status.to_owned()));
        self.tests.add(Test { status, ..test }, sink);
    }
}

/// The row of a test without numbers.
fn rowless(test: &Test, status: Status, reason: &str, sink: &mut Sink<'_>) {
    match Kind::of(&test.name) {
        Some(kind) => {
            let reason = reason.to_owned();
            sink.row(Row { status, reason, ..kind.row() });
        }
        None => sink.leave_out(|| format!("{}: {reason}", quoted(&test.name))),
    }
}

/// What a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    ends: Ends,
    pattern: Pattern,
    engine: Engine,
    issuer: Option<Issuer>,
    is_latency: bool,
}

/// What the numbers of a row and a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Columns are GPUs, which copy within themselves.
    Within,
    /// Columns are GPUs, to which the host's data goes.
    HostToGpu,
    /// Columns are GPUs, whose data goes to the host.
    GpuToHost,
    /// Rows and columns are GPUs.
    Gpus,
    /// Rows and columns are ranks, with a GPU each.
    Ranks,
    /// Columns are GPUs, whose data goes to all others.
    FromOne,
    /// Columns are GPUs, to which the data of all others goes.
    ToOne,
}

impl Kind {
    /// The kind of the test of this name; `None` where g2g has nothing like it.
    fn of(name: &str) -> Option<Self> {
        let one_way = |ends, engine, issuer| Self {
            ends,
            pattern: Pattern::OneWay,
            engine,
            issuer,
            is_latency: false,
        };
        let read = Some(Issuer::Read);
        let latency = |ends, issuer| Self { is_latency: true, ..one_way(ends, Engine::Sm, issuer) };
        match name {
            "device_local_copy" => return Some(one_way(Ends::Within, Engine::Ce, None)),
            "host_device_latency_sm" => return Some(latency(Ends::HostToGpu, None)),
            "device_to_device_latency_sm" => return Some(latency(Ends::Gpus, read)),
            _ => {}
        }
        let (test, engine) = name.rsplit_once('_')?;
        let engine = match engine {
            "ce" => Engine::Ce,
            "sm" => Engine::Sm,
            _ => return None,
        };
        let (test, issuer) = match test.rsplit_once('_') {
            Some((test, "read")) => (test, read),
            Some((test, "write")) => (test, Some(Issuer::Write)),
            _ => (test, None),
        };
        let (pattern, ends) = match (test, issuer) {
            ("host_to_device_memcpy", None) => (Pattern::OneWay, Ends::HostToGpu),
            ("device_to_host_memcpy", None) => (Pattern::OneWay, Ends::GpuToHost),
            ("host_to_device_bidirectional_memcpy", None) => (Pattern::BothWays, Ends::HostToGpu),
            ("device_to_host_bidirectional_memcpy", None) => (Pattern::BothWays, Ends::GpuToHost),
            ("device_to_device_memcpy", Some(_)) => (Pattern::OneWay, Ends::Gpus),
            ("device_to_device_bidirectional_memcpy", Some(_)) => (Pattern::BothWays, Ends::Gpus),
            ("multinode_device_to_device_memcpy", Some(_)) => (Pattern::OneWay, Ends::Ranks),
            ("multinode_device_to_device_bidirectional_memcpy", Some(_)) => {
                (Pattern::BothWays, Ends::Ranks)
            }
            // Who reads pulls from the one, or the one pulls: the data goes against the name.
            ("all_to_one", Some(Issuer::Write)) | ("one_to_all", Some(Issuer::Read)) => {
                (Pattern::AllToOne, Ends::ToOne)
            }
            ("all_to_one", Some(Issuer::Read)) | ("one_to_all", Some(Issuer::Write)) => {
                (Pattern::OneToAll, Ends::FromOne)
            }
            _ => return None,
        };
        Some(Self { pattern, ..one_way(ends, engine, issuer) })
    }

    /// What all of its rows say.
    fn row(self) -> Row {
        let memory = |is_host| Some(if is_host { MemoryKind::Host } else { MemoryKind::Gpu });
        let is_local = matches!(self.ends, Ends::Within | Ends::HostToGpu | Ends::GpuToHost);
        Row {
            transport: if is_local { TransportKind::Local } else { TransportKind::P2p },
            pattern: Some(self.pattern),
            flows: match self.pattern {
                Pattern::OneWay => Some(1),
                Pattern::BothWays => Some(2),
                // One for each GPU that reaches the other, which the file does not say.
                _ => None,
            },
            operation: Some(if self.is_latency { Operation::Chase } else { Operation::Copy }),
            engine: Some(self.engine),
            issuer: self.issuer,
            source_memory: memory(self.ends == Ends::HostToGpu),
            target_memory: memory(self.ends == Ends::GpuToHost),
            ..Row::default()
        }
    }

    /// The row with the ends that a row and a column of the matrix name.
    fn between(self, row: Row, first: u32, second: u32) -> Row {
        let (first, second) = (Some(first), Some(second));
        let (source, target) = match self.issuer {
            Some(Issuer::Read) => (second, first),
            _ => (first, second),
        };
        match self.ends {
            Ends::Within => Row { source_gpu: second, target_gpu: second, ..row },
            Ends::HostToGpu | Ends::ToOne => Row { target_gpu: second, ..row },
            Ends::GpuToHost | Ends::FromOne => Row { source_gpu: second, ..row },
            Ends::Gpus => Row { source_gpu: source, target_gpu: target, ..row },
            Ends::Ranks => Row { source_rank: source, target_rank: target, ..row },
        }
    }

    /// The row with the number of its cell.
    fn with(self, row: Row, number: f64, is_sum: bool) -> Row {
        let row = Row { status: Status::Ok, ..row };
        if self.is_latency {
            return Row { latency_ns_p50: whole_nanoseconds(number), ..row };
        }
        match self.pattern {
            Pattern::OneWay => {
                Row { bandwidth_gb_s: Some(number), bandwidth_gb_s_total: Some(number), ..row }
            }
            Pattern::BothWays if is_sum => Row {
                bandwidth_gb_s: Some(number / 2.0),
                bandwidth_gb_s_total: Some(number),
                ..row
            },
            // The rate of one of the two ways.
            Pattern::BothWays => Row { bandwidth_gb_s: Some(number), ..row },
            _ => Row { bandwidth_gb_s_total: Some(number), ..row },
        }
    }
}

impl Test {
    fn rows(&self, sink: &mut Sink<'_>) -> Result<(), String> {
        let kind = Kind::of(&self.name).ok_or("g2g has nothing like it")?;
        let matrix: Vec<&[String]> =
            self.bandwidth_matrix.iter().map(|row| row.as_deref().unwrap_or_default()).collect();
        let columns = matrix.first().map_or(0, |row| row.len());
        let is_square = matches!(kind.ends, Ends::Gpus | Ends::Ranks);
        let height = if is_square { columns } else { 1 };
        // Both ways from 0.6 on: a matrix for each way and one of their sum, one after the other.
        let has_sum = is_square && kind.pattern == Pattern::BothWays && matrix.len() == 3 * height;
        if columns == 0 || !(has_sum || matrix.len() == height) {
            return Err(format!("its matrix has {} rows and {columns} columns", matrix.len()));
        }
        let numbers = if has_sum { &matrix[2 * height..] } else { &matrix[..] };
        for (first, row) in (0..).zip(numbers) {
            for (second, text) in (0..).zip(*row) {
                let is_self = is_square && first == second;
                if text == "N/A" || is_self {
                    continue;
                }
                let number =
                    text.parse().ok().filter(|&number: &f64| number > 0.0 && number.is_finite());
                match number {
                    Some(number) => {
                        let row = kind.between(kind.row(), first, second);
                        sink.row(kind.with(row, number, has_sum));
                    }
                    None => sink.leave_out(|| {
                        let name = quoted(&self.name);
                        format!(
                            "{name}: {} is no rate, in row {first}, column {second}",
                            quoted(text)
                        )
                    }),
                }
            }
        }
        Ok(())
    }
}
