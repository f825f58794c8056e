//! OSU's micro-benchmarks, MPI's and NCCL's: `print_only_header`, `print_stats*` in
//! `c/util/osu_util_mpi.c` and `print_header` in `c/util/osu_util.c` of 7.4, and the benchmarks'
//! own lines; before 7 the same with fewer columns.
//!
//! Its MB are 10⁶ bytes (`size / 1e6`), its latencies means in microseconds, half of a round trip
//! where there is one. `osu_bibw` counts both ways and `osu_mbw_mr` all pairs. The size of a
//! collective is what a rank gives to each other one, or of which all get the whole. Which way
//! MPI takes is not said: `protocol` is `mpi`, so that such a row is not one of libfabric's.

use super::{
    MEAN_LATENCY, Program, Reader, Sink, UNVERIFIED, begins_with_number, number::Printed, quoted,
    words,
};
use crate::{
    plan::{Collective, DataType, Issuer, Operation, Pattern, TransportKind},
    record::{MemoryKind, Row, Status, row::raised},
    units::{Bytes, gb_s_of_mb_s, nanoseconds_of_microseconds},
};

/// The program.
pub(super) const PROGRAM: Program = Program {
    name: "OSU micro-benchmarks",
    described: "OSU micro-benchmarks",
    reader: |line| line.starts_with(TITLE).then(|| Box::<Text>::default() as Box<dyn Reader>),
};

/// How the line of a title begins, which no other program prints.
const TITLE: &str = "# OSU ";

/// What the rows of a benchmark have by its title, such as `MPI-CUDA Bi-Directional Bandwidth Test`;
/// `None` where g2g has nothing like it.
fn titled(title: &str) -> Option<Row> {
    let (family, test) = title.split_once(' ')?;
    let (family, accelerator) =
        family.split_once('-').map_or((family, None), |(of, by)| (of, Some(by)));
    let test = test.to_ascii_lowercase();
    let (one_way, both_ways) = (Some(Pattern::OneWay), Some(Pattern::BothWays));
    let pairs = Some(Pattern::Pairs);
    let (write, read) = (Some(Issuer::Write), Some(Issuer::Read));
    let send_recv = Operation::Collective(Collective::SendRecv);
    let (operation, issuer, pattern) = match (family, test.as_str()) {
        ("MPI", "bandwidth test") => (Operation::Send, None, one_way),
        ("MPI", "bi-directional bandwidth test") => (Operation::Send, None, both_ways),
        ("MPI", "latency test") => (Operation::PingPong, None, one_way),
        ("MPI", "multi latency test") => (Operation::PingPong, None, pairs),
        ("MPI", "multiple bandwidth / message rate test") => (Operation::Send, None, pairs),
        ("MPI_Put", "bandwidth test" | "latency test") => (Operation::Write, write, one_way),
        ("MPI_Put", "bi-directional bandwidth test") => (Operation::Write, write, both_ways),
        ("MPI_Get", "bandwidth test" | "latency test") => (Operation::Read, read, one_way),
        ("NCCL", "bandwidth test" | "latency test") => (send_recv, None, one_way),
        ("NCCL", "bi-directional bandwidth test") => (send_recv, None, both_ways),
        (_, test) => {
            let collective = collective(family, test.strip_suffix(" latency test")?)?;
            (Operation::Collective(collective), None, None)
        }
    };
    let is_nccl = family == "NCCL";
    let memory = match accelerator {
        // Its title has no place for the accelerator.
        None if pattern == pairs => None,
        None => Some(MemoryKind::Host),
        Some(_) if is_nccl || operation.collective().is_some() => Some(MemoryKind::Gpu),
        Some(_) => None,
    };
    Some(Row {
        transport: if is_nccl { TransportKind::Nccl } else { TransportKind::Rdma },
        protocol: (!is_nccl).then(|| "mpi".to_owned()),
        operation: Some(operation),
        issuer,
        pattern,
        flows: match pattern {
            Some(Pattern::OneWay) => Some(1),
            Some(Pattern::BothWays) => Some(2),
            _ => None,
        },
        source_memory: memory,
        target_memory: memory,
        ..Row::default()
    })
}

/// The collective of this name that has a counterpart.
fn collective(family: &str, name: &str) -> Option<Collective> {
    match (family, name) {
        ("MPI" | "NCCL", "allreduce") => Some(Collective::AllReduce),
        ("MPI" | "NCCL", "broadcast") => Some(Collective::Broadcast),
        ("MPI" | "NCCL", "reduce") => Some(Collective::Reduce),
        // Of NCCL g2g has the size of all ranks' parts; here it is that of one.
        ("MPI", "allgather") => Some(Collective::AllGather),
        ("MPI", "reduce_scatter") => Some(Collective::ReduceScatter),
        ("MPI", "all-to-all personalized exchange") => Some(Collective::AllToAll),
        ("MPI", "gather") => Some(Collective::Gather),
        ("MPI", "scatter") => Some(Collective::Scatter),
        _ => None,
    }
}

/// The columns after the size, if `line` is their heads, which are two spaces or more apart.
fn heads(line: &str) -> Option<Vec<String>> {
    let names = line.strip_prefix("# Size")?.split("  ").map(str::trim);
    let columns: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    (!columns.is_empty()).then_some(columns)
}

/// Reads what these benchmarks print.
#[derive(Debug, Default)]
struct Text {
    /// The title of the benchmark at hand, for a reason.
    title: String,
    /// What all rows of its table have.
    row: Option<Row>,
    columns: Option<Vec<String>>,
}

impl Reader for Text {
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        if let Some(title) = line.strip_prefix(TITLE) {
            let (title, version) = title.rsplit_once(" v").unwrap_or((title, ""));
            if !version.is_empty() {
                sink.about.version = Some(version.to_owned());
            }
            *self = Self { title: title.to_owned(), row: titled(title), columns: None };
        } else if let Some(columns) = heads(line) {
            self.columns = Some(columns);
        } else if let Some(comment) = line.strip_prefix('#') {
            self.comment(comment.trim());
        } else if begins_with_number(line) {
            return self.numbers(line, sink);
        }
        Ok(())
    }
}

impl Text {
    fn comment(&mut self, comment: &str) {
        let Some(row) = &mut self.row else { return };
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
            (row.source_memory, row.target_memory) = memory(source).zip(memory(target)).unzip();
        } else if let Some(name) = comment.strip_prefix("Datatype: ") {
            let is_collective = row.operation.is_some_and(|of| of.collective().is_some());
            row.data_type = match name.trim_end_matches('.') {
                "MPI_CHAR" if is_collective => Some(DataType::Int8),
                "MPI_INT" if is_collective => Some(DataType::Int32),
                "MPI_FLOAT" if is_collective => Some(DataType::Float),
                _ => None,
            };
        } else if let Some(rest) = comment.strip_prefix("[ pairs: ") {
            let number = |text: &str| text.split_whitespace().next()?.parse().ok();
            let pairs = number(rest).and_then(|pairs| usize::try_from(pairs).ok());
            row.window = rest.split_once("window size: ").and_then(|(_, size)| number(size));
            if row.pattern == Some(Pattern::Pairs) {
                row.flows = pairs;
                if pairs == Some(1) {
                    row.pattern = Some(Pattern::OneWay);
                }
            }
        }
    }

    fn numbers(&self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        let about = self
            .row
            .as_ref()
            .ok_or_else(|| format!("g2g has nothing like {}", quoted(&self.title)))?;
        let columns = self
            .columns
            .as_ref()
            .ok_or_else(|| format!("{} stands under no column that g2g has", quoted(line)))?;
        let words = words(line, 1 + columns.len())?;
        let no_number = || format!("{} is no row", quoted(line));
        let size = Bytes::new(words[0].parse().map_err(|_| no_number())?);
        let about = Row { size_bytes: Some(size), ..about.clone() };
        let mut row = Row { status: Status::Ok, ..about.clone() };
        let (mut is_checked, mut is_mean) = (false, false);
        for (column, word) in columns.iter().zip(&words[1..]) {
            let number = || Printed::read(word).map(|read| read.value).ok_or_else(no_number);
            let ns = || number().map(nanoseconds_of_microseconds);
            match column.as_str() {
                "Bandwidth (MB/s)" | "MB/s" => {
                    row = with_bandwidth(row, number()?);
                }
                "Latency (us)" | "Avg Latency(us)" if row.latency_ns_p50.is_none() => {
                    row.latency_ns_p50 = ns()?;
                    is_mean = true;
                }
                "Validation" => match *word {
                    "Pass" => is_checked = true,
                    "Fail" => row.status = Status::Corrupt,
                    _ => return Err(no_number()),
                },
                "P50 Tail Lat(us)" => (row.latency_ns_p50, is_mean) = (ns()?, false),
                "P90 Tail Lat(us)" => row.latency_ns_p90 = ns()?,
                "P99 Tail Lat(us)" => row.latency_ns_p99 = ns()?,
                other if other.ends_with(" Tail Lat(us)") => {
                    number()?;
                }
                // Something that a row has no place for.
                _ => {}
            }
        }
        if row.status == Status::Corrupt {
            let reason = "the benchmark found wrong data".to_owned();
            sink.row(Row { status: Status::Corrupt, reason, ..about });
            return Ok(());
        }
        let flags = [(!is_checked, UNVERIFIED), (is_mean, MEAN_LATENCY)];
        sink.row(row.with_flags(&raised(&flags)));
        Ok(())
    }
}

/// The row with a rate, which is that of all of its flows.
fn with_bandwidth(row: Row, mb_s: f64) -> Row {
    let total = gb_s_of_mb_s(mb_s);
    if total <= 0.0 {
        return row;
    }
    let flows = match row.pattern {
        None => Some(1),
        Some(_) => row.flows.filter(|&flows| flows > 0),
    };
    Row {
        bandwidth_gb_s: flows.map(|flows| total / flows as f64),
        bandwidth_gb_s_total: Some(total),
        ..row
    }
}
