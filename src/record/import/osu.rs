//! OSU's micro-benchmarks, MPI's and NCCL's: `print_only_header`, `print_stats*` in
//! `c/util/osu_util_mpi.c` and `print_header` in `c/util/osu_util.c` of 7.4, and the benchmarks'
//! own lines; before 7 the same with fewer columns.
//!
//! Its MB are 10⁶ bytes (`size / 1e6`), its latencies means in microseconds, half of a round trip
//! where there is one. `osu_bibw` counts both ways and `osu_mbw_mr` all pairs. The size of a
//! collective is what a rank gives to each other one, or of which all get the whole. Which way
//! MPI takes is not said: `protocol` is `mpi`, so that such a row is not one of libfabric's.

use super::{About, MEAN_LATENCY, Program, Reader, Sink, UNVERIFIED, begins_with_number, quoted};
use crate::{
    plan::{Collective, DataType, Issuer, Operation, Pattern, TransportKind},
    record::{MemoryKind, Row, Status},
    units::{Bytes, count, gb_s_of_mb_s, nanoseconds_of_microseconds},
};

/// The program.
pub(super) const PROGRAM: Program = Program {
    name: "OSU micro-benchmarks",
    form: "",
    reader: Some(|line| is_own(line).then(|| Box::<Text>::default() as Box<dyn Reader>)),
};

/// Whether only these benchmarks print such a line.
fn is_own(line: &str) -> bool {
    line.starts_with("# OSU ")
}

/// What a benchmark measures.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Benchmark {
    transport: TransportKind,
    operation: Operation,
    issuer: Option<Issuer>,
    pattern: Option<Pattern>,
    /// Where both buffers lie, if the title says so.
    memory: Option<MemoryKind>,
}

impl Benchmark {
    /// The benchmark of a title, such as `MPI-CUDA Bi-Directional Bandwidth Test`; `None` where g2g
    /// has nothing like it.
    fn titled(title: &str) -> Option<Self> {
        let (family, test) = title.split_once(' ')?;
        let (family, accelerator) =
            family.split_once('-').map_or((family, None), |(of, by)| (of, Some(by)));
        let test = test.to_ascii_lowercase();
        let of = |operation, issuer, pattern| Some((operation, issuer, pattern));
        let (one_way, both_ways) = (Some(Pattern::OneWay), Some(Pattern::BothWays));
        let pairs = Some(Pattern::Pairs);
        let (write, read) = (Some(Issuer::Write), Some(Issuer::Read));
        let (operation, issuer, pattern) = match (family, test.as_str()) {
            ("MPI", "bandwidth test") => of(Operation::Send, None, one_way),
            ("MPI", "bi-directional bandwidth test") => of(Operation::Send, None, both_ways),
            ("MPI", "latency test") => of(Operation::PingPong, None, one_way),
            ("MPI", "multi latency test") => of(Operation::PingPong, None, pairs),
            ("MPI", "multiple bandwidth / message rate test") => of(Operation::Send, None, pairs),
            ("MPI_Put", "bandwidth test" | "latency test") => of(Operation::Write, write, one_way),
            ("MPI_Put", "bi-directional bandwidth test") => of(Operation::Write, write, both_ways),
            ("MPI_Get", "bandwidth test" | "latency test") => of(Operation::Read, read, one_way),
            ("NCCL", "bandwidth test" | "latency test") => {
                of(Operation::Collective(Collective::SendRecv), None, one_way)
            }
            ("NCCL", "bi-directional bandwidth test") => {
                of(Operation::Collective(Collective::SendRecv), None, both_ways)
            }
            ("MPI" | "NCCL", "allreduce latency test") => {
                of(Operation::Collective(Collective::AllReduce), None, None)
            }
            ("MPI" | "NCCL", "broadcast latency test") => {
                of(Operation::Collective(Collective::Broadcast), None, None)
            }
            ("MPI" | "NCCL", "reduce latency test") => {
                of(Operation::Collective(Collective::Reduce), None, None)
            }
            // Of NCCL g2g has the size of all ranks' parts; here it is that of one.
            ("MPI", "allgather latency test") => {
                of(Operation::Collective(Collective::AllGather), None, None)
            }
            ("MPI", "reduce_scatter latency test") => {
                of(Operation::Collective(Collective::ReduceScatter), None, None)
            }
            ("MPI", "all-to-all personalized exchange latency test") => {
                of(Operation::Collective(Collective::AllToAll), None, None)
            }
            ("MPI", "gather latency test") => {
                of(Operation::Collective(Collective::Gather), None, None)
            }
            ("MPI", "scatter latency test") => {
                of(Operation::Collective(Collective::Scatter), None, None)
            }
            _ => None,
        }?;
        let is_nccl = family == "NCCL";
        Some(Self {
            transport: if is_nccl { TransportKind::Nccl } else { TransportKind::Rdma },
            operation,
            issuer,
            pattern,
            memory: match accelerator {
                // Its title has no place for the accelerator.
                None if pattern == pairs => None,
                None => Some(MemoryKind::Host),
                Some(_) if is_nccl || operation.collective().is_some() => Some(MemoryKind::Gpu),
                Some(_) => None,
            },
        })
    }
}

/// The columns of a table behind its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Bandwidth,
    Latency,
    Validation,
    /// A percentile of the latencies of single operations.
    Percentile(u8),
    /// Something that a row has no place for.
    Other,
}

impl Column {
    fn named(name: &str) -> Self {
        let percentile = || {
            let (percent, what) = name.strip_prefix('P')?.split_once(' ')?;
            (what == "Tail Lat(us)").then_some(())?;
            percent.parse().ok()
        };
        match name {
            "Bandwidth (MB/s)" | "MB/s" => Self::Bandwidth,
            "Latency (us)" | "Avg Latency(us)" => Self::Latency,
            "Validation" => Self::Validation,
            _ => percentile().map_or(Self::Other, Self::Percentile),
        }
    }
}

/// The columns, if `line` is their heads, which are two spaces or more apart.
fn heads(line: &str) -> Option<Vec<Column>> {
    let names = line.strip_prefix("# Size")?.split("  ").map(str::trim);
    let columns = names.filter(|name| !name.is_empty()).map(Column::named);
    let columns: Vec<Column> = columns.collect();
    (!columns.is_empty()).then_some(columns)
}

/// Reads what these benchmarks print.
#[derive(Debug, Default)]
struct Text {
    version: Option<String>,
    /// The title of the benchmark at hand, for a reason.
    title: String,
    benchmark: Option<Benchmark>,
    memory: Option<(MemoryKind, MemoryKind)>,
    data_type: Option<DataType>,
    pairs: Option<usize>,
    window: Option<u32>,
    columns: Option<Vec<Column>>,
}

impl Reader for Text {
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        if let Some(title) = line.strip_prefix("# OSU ") {
            let (title, version) = title.rsplit_once(" v").unwrap_or((title, ""));
            let version = Some(version.to_owned()).filter(|version| !version.is_empty());
            let benchmark = Benchmark::titled(title);
            let memory = benchmark.as_ref().and_then(|benchmark| benchmark.memory);
            *self = Self {
                version: version.or_else(|| self.version.take()),
                title: title.to_owned(),
                benchmark,
                memory: memory.map(|memory| (memory, memory)),
                ..Self::default()
            };
        } else if let Some(columns) = heads(line) {
            self.columns = Some(columns);
        } else if let Some(comment) = line.strip_prefix('#') {
            self.comment(comment.trim());
        } else if begins_with_number(line) {
            return self.numbers(line, sink);
        }
        Ok(())
    }

    fn about(self: Box<Self>) -> About {
        let version = self.version;
        About { tool: PROGRAM.name, version, library: None, notes: Vec::new() }
    }
}

impl Text {
    fn comment(&mut self, comment: &str) {
        let memory = |text: &str| {
            [("DEVICE", MemoryKind::Gpu), ("HOST", MemoryKind::Host)]
                .into_iter()
                .find_map(|(word, memory)| text.starts_with(word).then_some(memory))
        };
        let two = comment
            .strip_prefix("Send Buffer on ")
            .and_then(|rest| rest.split_once(" and Receive Buffer on "))
            .or_else(|| {
                let rest = comment.strip_prefix("Rank 0 Memory on ")?;
                rest.split_once(" and Rank 1 Memory on ")
            });
        if let Some((source, target)) = two {
            self.memory = memory(source).zip(memory(target));
        } else if let Some(name) = comment.strip_prefix("Datatype: ") {
            self.data_type = match name.trim_end_matches('.') {
                "MPI_CHAR" => Some(DataType::Int8),
                "MPI_INT" => Some(DataType::Int32),
                "MPI_FLOAT" => Some(DataType::Float),
                _ => None,
            };
        } else if let Some(rest) = comment.strip_prefix("[ pairs: ") {
            let number = |text: &str| text.split_whitespace().next()?.parse().ok();
            self.pairs = number(rest).and_then(|pairs| usize::try_from(pairs).ok());
            self.window = rest.split_once("window size: ").and_then(|(_, size)| number(size));
        }
    }

    fn numbers(&self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        let benchmark = self
            .benchmark
            .as_ref()
            .ok_or_else(|| format!("g2g has nothing like {}", quoted(&self.title)))?;
        let columns = self
            .columns
            .as_ref()
            .ok_or_else(|| format!("{} stands under no column that g2g has", quoted(line)))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != 1 + columns.len() {
            let found = count(words.len(), "column");
            return Err(format!("{} has {found} of {}", quoted(line), 1 + columns.len()));
        }
        let no_number = || format!("{} is no row", quoted(line));
        let size = Bytes::new(words[0].parse().map_err(|_| no_number())?);
        let mut row = Row { size_bytes: Some(size), status: Status::Ok, ..self.row(benchmark) };
        let (mut is_checked, mut is_mean) = (false, false);
        for (column, word) in columns.iter().zip(&words[1..]) {
            let number = || {
                let number = word.parse().ok();
                let is_one = |number: &f64| number.is_finite() && *number >= 0.0;
                number.filter(is_one).ok_or_else(no_number)
            };
            match column {
                Column::Bandwidth => row = self.with_bandwidth(row, number()?, benchmark.pattern),
                Column::Latency if row.latency_ns_p50.is_none() => {
                    row.latency_ns_p50 = nanoseconds_of_microseconds(number()?);
                    is_mean = true;
                }
                Column::Validation => match *word {
                    "Pass" => is_checked = true,
                    "Fail" => row.status = Status::Corrupt,
                    _ => return Err(no_number()),
                },
                Column::Percentile(percent) => {
                    let ns = nanoseconds_of_microseconds(number()?);
                    match percent {
                        50 => (row.latency_ns_p50, is_mean) = (ns, false),
                        90 => row.latency_ns_p90 = ns,
                        99 => row.latency_ns_p99 = ns,
                        _ => {}
                    }
                }
                Column::Latency | Column::Other => {}
            }
        }
        if row.status == Status::Corrupt {
            let reason = "the benchmark found wrong data".to_owned();
            let row = Row { size_bytes: Some(size), ..self.row(benchmark) };
            sink.row(Row { status: Status::Corrupt, reason, ..row });
            return Ok(());
        }
        let flags = [(!is_checked, UNVERIFIED), (is_mean, MEAN_LATENCY)];
        let flags = flags.into_iter().filter_map(|(raised, flag)| raised.then_some(flag));
        sink.row(row.with_flags(&flags.collect::<Vec<&str>>()));
        Ok(())
    }

    /// What all rows of a table say.
    fn row(&self, benchmark: &Benchmark) -> Row {
        let is_mpi = benchmark.transport == TransportKind::Rdma;
        let is_one_pair = benchmark.pattern == Some(Pattern::Pairs) && self.pairs == Some(1);
        let pattern = benchmark.pattern.filter(|_| !is_one_pair);
        let pattern = if is_one_pair { Some(Pattern::OneWay) } else { pattern };
        Row {
            transport: benchmark.transport,
            protocol: is_mpi.then(|| "mpi".to_owned()),
            operation: Some(benchmark.operation),
            issuer: benchmark.issuer,
            pattern,
            flows: match pattern {
                Some(Pattern::OneWay) => Some(1),
                Some(Pattern::BothWays) => Some(2),
                _ => self.pairs,
            },
            data_type: self.data_type.filter(|_| benchmark.operation.collective().is_some()),
            source_memory: self.memory.map(|(source, _)| source),
            target_memory: self.memory.map(|(_, target)| target),
            window: self.window,
            ..Row::default()
        }
    }

    /// The row with a rate, which is that of all of its flows.
    fn with_bandwidth(&self, row: Row, mb_s: f64, pattern: Option<Pattern>) -> Row {
        let total = gb_s_of_mb_s(mb_s);
        if total <= 0.0 {
            return row;
        }
        let flows = match pattern {
            Some(Pattern::BothWays) => Some(2.0),
            Some(Pattern::Pairs) => self.pairs.filter(|&pairs| pairs > 0).map(|pairs| pairs as f64),
            _ => Some(1.0),
        };
        Row {
            bandwidth_gb_s: flows.map(|flows| total / flows),
            bandwidth_gb_s_total: Some(total),
            ..row
        }
    }
}
