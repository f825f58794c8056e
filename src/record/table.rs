//! What is printed: the only place that writes to standard output.

use std::io::{self, Write};

use super::{
    Row, Status, matrix,
    page::{Grid, Page},
    verdicts,
};
use crate::{
    plan::{
        Allocator, DataType, Engine, Issuer, Operation, Pattern, Reduction, Registration,
        TransportKind,
    },
    stderr::visible,
    transport::GpuPath,
    units::{Bytes, readable_gb_s, readable_nanoseconds},
};

/// Prints `text`, with what a terminal would obey as escapes. A reader that has gone away, such as
/// `head`, is no error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(visible(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Matrices for pairs of GPUs, a table for each other set of rows that differ only in their size,
/// and a list of what was skipped.
pub fn tables(rows: &[Row]) -> Page {
    let mut page = Page::default();
    let (absent, measured): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.size_bytes.is_none());
    let of_rdma = measured.iter().filter(|row| row.transport == TransportKind::Rdma);
    let mut ranks: Vec<Option<u32>> =
        of_rdma.flat_map(|row| [row.source_rank, row.target_rank]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    // Two ranks are no matrix.
    let is_pair = |row: &&Row| {
        matrix::is_pair(row) && (row.transport != TransportKind::Rdma || ranks.len() > 2)
    };
    let (pairs, others): (Vec<&Row>, Vec<&Row>) = measured.into_iter().partition(is_pair);
    for rows in others.chunk_by(|a, b| title(a) == title(b)) {
        page.title(title(rows[0]));
        page.grid(sizes(rows));
        let of_size = |row: &Row| row.size_bytes.unwrap_or_default().to_string();
        page.lines(&format!("{}\n", verdicts::paths(rows, &of_size)));
    }
    matrix::matrices(&pairs, &mut page);
    page.lines(&verdicts::text(rows));
    if !absent.is_empty() {
        let reason = |row: &&Row| format!("  {:<5}  {}\n", row.transport.name(), row.reason);
        page.lines(&format!("Not measured:\n{}", absent.iter().map(reason).collect::<String>()));
    }
    page
}

pub(super) fn title(row: &Row) -> String {
    if let Some(ranks) = row.communicator_ranks {
        return collective(row, ranks);
    }
    let arrow = match row.pattern {
        Some(Pattern::BothWays) => "<->",
        _ => "->",
    };
    let more = match (row.pattern, row.flows) {
        (Some(Pattern::BothWays), _) | (_, None | Some(1)) => String::new(),
        (_, Some(2)) => " and 1 more flow at once".to_owned(),
        (_, Some(flows)) => format!(" and {} more flows at once", flows - 1),
    };
    let how = if row.engine == Some(Engine::Cpu) {
        String::new()
    } else if let Some(provider) = &row.provider {
        let path = gpu_path(row.gpu_path);
        format!(" {} {provider}{path}", row.operation.map_or("-", Operation::name))
    } else {
        let operation = row.operation.map(Operation::name);
        let issuer = row.issuer.map(Issuer::name);
        let words = [operation, issuer, row.engine.map(Engine::name)].into_iter().flatten();
        format!(" {}", words.collect::<Vec<&str>>().join(" "))
    };
    let simulated = if row.simulated { " [SIMULATED]" } else { "" };
    let (source, target) = (source(row), target(row));
    let (transport, pattern) = (row.transport.name(), row.pattern.map_or("-", Pattern::name));
    format!("{transport} {pattern}{how}: {source} {arrow} {target}{more}{simulated}")
}

/// `nccl all_reduce float sum in place: 8 GPUs`, `nccl sendrecv float both-ways: GPU 0 <-> GPU 1`
fn collective(row: &Row, ranks: u32) -> String {
    let simulated = if row.simulated { " [SIMULATED]" } else { "" };
    let among = match row.pattern {
        Some(Pattern::OneWay) => format!(" one-way: {} -> {}", source(row), target(row)),
        Some(Pattern::BothWays) => format!(" both-ways: {} <-> {}", source(row), target(row)),
        _ => format!(": {ranks} GPUs"),
    };
    let operation = row.operation.map_or("-", Operation::name);
    format!("{} {operation}{}{among}{simulated}", row.transport.name(), how_of_nccl(row))
}

/// What NCCL works on and how, as words behind its operation.
pub(super) fn how_of_nccl(row: &Row) -> String {
    let root = row.root.map(|root| format!("root {root}"));
    let graph = row.graph.filter(|&launches| launches > 0);
    let graph = graph.map(|launches| format!("graph launched {launches} times"));
    let split = row.split.as_ref().map(|split| format!("split {split}"));
    let registration = row.registration.filter(|&told| told != Registration::None);
    let registration = registration.map(|told| format!("registered {}", told.name()));
    let words = [
        row.data_type.map(DataType::name),
        row.reduction.map(Reduction::name),
        root.as_deref(),
        row.in_place.filter(|&is| is).map(|_| "in place"),
        row.buffer.filter(|&buffer| buffer == Allocator::Nccl).map(|_| "in memory of NCCL"),
        registration.as_deref(),
        graph.as_deref(),
        split.as_deref(),
    ];
    words.into_iter().flatten().map(|word| format!(" {word}")).collect()
}

/// Whether two reasons differ in their numbers at most.
pub(super) fn is_alike(one: &str, other: &str) -> bool {
    let unnumbered = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    unnumbered(one) == unnumbered(other)
}

/// How data of GPUs comes to the interfaces, as a word behind others.
pub(super) const fn gpu_path(path: Option<GpuPath>) -> &'static str {
    match path {
        None => "",
        Some(GpuPath::Direct) => " GPUDirect",
        Some(GpuPath::Unproven) => " (GPUDirect unproven)",
        Some(GpuPath::Staged) => " staged",
    }
}

fn source(row: &Row) -> String {
    let end = end(row, row.source_gpu, row.source_rank, (row.source_numa_node, row.source_cpu));
    end + &place(row, row.source_host.as_ref(), row.source_domain.as_ref())
}

fn target(row: &Row) -> String {
    let end = end(row, row.target_gpu, row.target_rank, (row.target_numa_node, row.target_cpu));
    end + &place(row, row.target_host.as_ref(), row.target_domain.as_ref())
}

/// The host, where it is not plain, and the interfaces of RDMA.
fn place(row: &Row, host: Option<&String>, domain: Option<&String>) -> String {
    let host = host.filter(|_| row.source_host != row.target_host);
    let host = host.map_or_else(String::new, |host| format!(" on {host}"));
    let domain = domain.map_or_else(String::new, |domain| format!(" ({domain})"));
    host + &domain
}

fn end(
    row: &Row,
    gpu: Option<u32>,
    rank: Option<u32>,
    (node, cpu): (Option<u32>, Option<u32>),
) -> String {
    let number = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let rank = number(rank);
    match gpu {
        Some(gpu) if row.source_rank == row.target_rank => format!("GPU {gpu}"),
        Some(gpu) => format!("rank {rank} GPU {gpu}"),
        None if row.engine == Some(Engine::Nic) => format!("rank {rank} host memory"),
        None if row.engine == Some(Engine::Cpu) => {
            let cpu = cpu.map_or_else(|| "shared CPUs".to_owned(), |cpu| format!("CPU {cpu}"));
            format!("rank {rank} host memory (NUMA node {}, {cpu})", number(node))
        }
        None => format!("host memory (NUMA node {})", number(node)),
    }
}

fn sizes(rows: &[&Row]) -> Grid {
    let several = rows.iter().any(|row| row.flows > Some(1));
    let is_collective = rows[0].communicator_ranks.is_some();
    let mut header = vec!["size", "GB/s", "95 % interval"];
    if several {
        header[1] = "GB/s each way";
        if rows[0].pattern != Some(Pattern::BothWays) {
            header[1] = "GB/s each";
        }
        header.push("GB/s total");
    }
    if is_collective {
        header[1] = "algbw GB/s";
        header.push("busbw GB/s");
    }
    let is_judged = rows.iter().any(|row| verdicts::percent(row) != "-");
    if is_judged {
        header.push("of expected");
    }
    header.extend(["p50", "p90", "p99", "p99.9", "max", "status"]);
    let mut grid = Grid::new(header).ending_in_words();
    for row in rows {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), readable_gb_s);
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), readable_nanoseconds);
        let interval = match (row.bandwidth_gb_s_low, row.bandwidth_gb_s_high) {
            (Some(low), Some(high)) => {
                format!("{} to {}", readable_gb_s(low), readable_gb_s(high))
            }
            _ => "-".to_owned(),
        };
        let mut cells = vec![size(row.size_bytes), rate(row.bandwidth_gb_s), interval];
        if several {
            cells.push(rate(row.bandwidth_gb_s_total));
        }
        if is_collective {
            cells.push(rate(row.bandwidth_gb_s_bus));
        }
        if is_judged {
            cells.push(verdicts::percent(row));
        }
        let latencies = [
            row.latency_ns_p50,
            row.latency_ns_p90,
            row.latency_ns_p99,
            row.latency_ns_p999,
            row.latency_ns_max,
        ];
        cells.extend(latencies.map(time));
        cells.push(status(row));
        grid.row(cells);
    }
    grid
}

fn size(size: Option<Bytes>) -> String {
    size.unwrap_or_default().to_string()
}

/// What a person must know of a row, behind its numbers.
fn status(row: &Row) -> String {
    match row.status {
        Status::Ok => {
            let mut words = vec!["verified".to_owned()];
            let chosen = [&row.algorithm, &row.algorithm_protocol].map(Option::as_deref);
            if let [Some(algorithm), Some(protocol)] = chosen {
                words.push(format!("{algorithm} {protocol}"));
            }
            if row.communicator_ranks == Some(1) {
                words.push("one rank has no bus bandwidth".to_owned());
            }
            if let (Some(rank), Some(gb_s)) = (row.slowest_rank, row.slowest_rank_gb_s) {
                words.push(format!("slowest: rank {rank} with {} GB/s", readable_gb_s(gb_s)));
            }
            if !row.flags.is_empty() {
                words.push(row.flags.replace(' ', ", ").replace('_', " "));
            }
            words.join("; ")
        }
        Status::Skipped => format!("skipped: {}", row.reason),
        Status::Corrupt => format!("CORRUPT: {}", row.reason),
        Status::Failed => format!("FAILED: {}", row.reason),
    }
}
