//! A row in a person's words.

use crate::{
    record::Columns,
    units::{Bytes, readable_gb_s, readable_nanoseconds},
};

/// The columns that [`kind`] looks at.
pub(super) const KIND: [&str; 17] = [
    "transport",
    "operation",
    "data_type",
    "reduction",
    "issuer",
    "engine",
    "provider",
    "root",
    "in_place",
    "buffer",
    "registration",
    "graph",
    "split",
    "gpu_path",
    "pattern",
    "source_memory",
    "target_memory",
];

/// What a row is about: `p2p copy read ce`, `nccl all_reduce float sum in place`; but for what
/// stands in the column `without`.
pub(super) fn kind(rows: &Columns, row: usize, without: &str) -> String {
    let told = |column: &str| {
        Some(rows.text(row, column)).filter(|cell| !cell.is_empty() && column != without)
    };
    let unusual = |column: &str, usual: &[&str]| told(column).filter(|cell| !usual.contains(cell));
    let named = |column: &str, name: &str, usual: &[&str]| {
        unusual(column, usual).map(|cell| format!("{name} {cell}"))
    };
    let plain = ["transport", "operation", "data_type", "reduction", "issuer"];
    let mut words: Vec<String> =
        plain.iter().filter_map(|column| told(column).map(str::to_owned)).collect();
    words.extend(unusual("engine", &["cpu", "nic"]).map(str::to_owned));
    words.extend(told("provider").map(str::to_owned));
    words.extend(named("root", "root", &[]));
    words.extend(told("in_place").filter(|cell| *cell == "true").map(|_| "in place".to_owned()));
    words.extend(named("buffer", "memory of", &["cuda"]));
    words.extend(named("registration", "registered", &["none"]));
    words.extend(named("graph", "graphs of", &["0"]));
    words.extend(named("split", "split", &[]));
    words.extend(told("gpu_path").map(str::to_owned));
    words.extend(unusual("pattern", &["one-way"]).map(str::to_owned));
    words.extend(match (told("source_memory"), told("target_memory")) {
        (Some(source), Some(target)) if source != target => Some(format!("{source} -> {target}")),
        (Some("host"), _) => Some("host memory".to_owned()),
        _ => None,
    });
    words.join(" ")
}

/// Between what it is: `GPU 0 -> GPU 3`, `8 ranks`; of several flows the first. `has_hosts`: the
/// run has several, so that each end is told with its own.
pub(super) fn ends(rows: &Columns, row: usize, has_hosts: bool) -> String {
    let told = |column: &str| Some(rows.text(row, column)).filter(|cell| !cell.is_empty());
    let differ = |what: &str| told(&format!("source_{what}")) != told(&format!("target_{what}"));
    let is_rdma = told("transport") == Some("rdma");
    // Ranks can share a GPU.
    let is_by_rank = is_rdma && differ("rank") && !differ("gpu");
    let has_hosts = has_hosts || differ("host");
    let end = |side: &str| {
        let of = |what: &str| told(&format!("{side}_{what}"));
        let place = match (of("gpu"), of("memory"), of("rank"), of("numa_node")) {
            (.., Some(rank), _) if is_by_rank => format!("rank {rank}"),
            (Some(gpu), ..) => format!("GPU {gpu}"),
            (None, Some("host"), _, Some(node)) if !is_rdma => format!("NUMA node {node}"),
            (None, _, Some(rank), _) => format!("rank {rank}"),
            _ => return None,
        };
        let host = of("host").filter(|_| has_hosts);
        Some(host.map_or(place.clone(), |host| format!("{place} of {host}")))
    };
    let more = match (rows.count(row, "flows"), told("pattern")) {
        (_, Some("both-ways")) | (None | Some(0 | 1), _) => String::new(),
        (Some(flows), _) => format!(" and {} more", flows - 1),
    };
    match (end("source"), end("target"), told("communicator_ranks")) {
        (Some(source), Some(target), _) if source == target => format!("within {source}{more}"),
        (Some(source), Some(target), _) => format!("{source} -> {target}{more}"),
        (_, _, Some(ranks)) => format!("{ranks} ranks"),
        _ => String::new(),
    }
}

/// Text as Plotly shows it: it takes what stands in angle brackets for markup, such as links.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The size, where there is one.
pub(super) fn size(rows: &Columns, row: usize) -> String {
    let size = rows.count(row, "size_bytes");
    size.map_or_else(String::new, |size| Bytes::new(size).to_string())
}

/// A size with few letters: exact where that is short, otherwise rounded.
pub(super) fn short_size(size: u64) -> String {
    let size = Bytes::new(size);
    let exact = size.to_string();
    if exact.len() <= "1000 KiB".len() { exact } else { size.rounded() }
}

/// `388 GB/s`, `2.1 µs`
pub(super) fn gb_s(value: f64) -> String {
    format!("{} GB/s", readable_gb_s(value))
}

/// A time of so many nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole nanoseconds")]
pub(super) fn nanoseconds(value: f64) -> String {
    readable_nanoseconds(value.round() as u64)
}

/// `+3.1 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Pattern, TransportKind},
        record::{MemoryKind, Row},
    };

    #[test]
    fn ends_that_are_not_the_same_are_not_called_one() {
        let ends = |row: Row, has_hosts| ends(&Columns::of_rows([row]), 0, has_hosts);
        let told = |text: &str| Some(text.to_owned());
        let gpus = |source, target| Row {
            transport: TransportKind::P2p,
            source_gpu: Some(source),
            target_gpu: Some(target),
            source_host: told("one"),
            target_host: told("one"),
            source_rank: Some(0),
            target_rank: Some(0),
            ..Row::default()
        };
        assert_eq!(ends(gpus(0, 3), false), "GPU 0 -> GPU 3");
        assert_eq!(ends(gpus(0, 3), true), "GPU 0 of one -> GPU 3 of one");
        assert_eq!(ends(gpus(0, 0), false), "within GPU 0");
        // GPUs of the same number on two hosts, and ranks that share one.
        let rdma = |row| Row { transport: TransportKind::Rdma, target_rank: Some(1), ..row };
        let hosts = Row { target_host: told("two"), ..gpus(0, 0) };
        assert_eq!(ends(hosts.clone(), false), "GPU 0 of one -> GPU 0 of two");
        assert_eq!(ends(rdma(hosts), false), "rank 0 of one -> rank 1 of two");
        assert_eq!(ends(rdma(gpus(0, 0)), false), "rank 0 -> rank 1");
        assert_eq!(ends(rdma(gpus(0, 1)), false), "GPU 0 -> GPU 1");
        // Memory of one NUMA node.
        let host = Row {
            source_gpu: None,
            target_gpu: None,
            source_memory: Some(MemoryKind::Host),
            target_memory: Some(MemoryKind::Host),
            source_numa_node: Some(0),
            target_numa_node: Some(0),
            ..gpus(0, 0)
        };
        assert_eq!(ends(host.clone(), false), "within NUMA node 0");
        let ring = Row { flows: Some(4), pattern: Some(Pattern::Neighbours), ..rdma(host) };
        assert_eq!(ends(ring, false), "rank 0 -> rank 1 and 3 more");
    }
}
