//! The name of a case in texts for people.

use super::{
    MemoryKind, Row,
    columns::{Cell, Value},
};
use crate::{
    plan::{Allocator, Engine, Pattern, Registration, TransportKind},
    transport::GpuPath,
};

/// What of a case its name leaves out or adds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Naming<'a> {
    /// Whether each end is named with its host. It always is where the hosts differ.
    pub has_hosts: bool,
    /// Columns to leave out: those in which the cases of a list differ.
    pub without: &'a [&'a str],
}

impl Naming<'_> {
    fn has(&self, column: &str) -> bool {
        !self.without.contains(&column)
    }
}

impl Row {
    /// The case: `p2p copy read ce, GPU 0 -> GPU 3, 64 MiB`.
    pub fn title(&self, naming: &Naming<'_>) -> String {
        let size = self.size_bytes.filter(|_| naming.has("size_bytes"));
        let size = size.map_or_else(String::new, |size| size.to_string());
        let parts = [self.kind(naming), self.ends(naming), size];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(", ")
    }

    /// What is done and how: `p2p copy read ce`, `nccl all_reduce float sum in place`.
    pub fn kind(&self, naming: &Naming<'_>) -> String {
        let memory = match (self.source_memory, self.target_memory) {
            (Some(source), Some(target)) if source != target => {
                Some(format!("{} -> {}", source.cell(), target.cell()))
            }
            (Some(MemoryKind::Host), _) => Some("host memory".to_owned()),
            _ => None,
        };
        let words = [
            ("transport", word(&self.transport)),
            ("operation", word(&self.operation)),
            ("data_type", word(&self.data_type)),
            ("reduction", word(&self.reduction)),
            ("issuer", word(&self.issuer.filter(|_| self.has_issuers()))),
            ("engine", unless(self.engine, &[Engine::Cpu, Engine::Nic])),
            ("provider", word(&self.provider)),
            ("endpoints", unless(self.endpoints, &[1]).map(|count| format!("{count} endpoints"))),
            ("root", word(&self.root).map(|root| format!("root {root}"))),
            ("in_place", unless(self.in_place, &[false]).map(|_| "in place".to_owned())),
            (
                "buffer",
                unless(self.buffer, &[Allocator::Cuda]).map(|_| "in memory of NCCL".to_owned()),
            ),
            (
                "registration",
                unless(self.registration, &[Registration::None])
                    .map(|told| format!("registered {told}")),
            ),
            (
                "graph",
                unless(self.graph, &[0]).map(|times| format!("graph launched {times} times")),
            ),
            ("split", word(&self.split).map(|split| format!("split {split}"))),
            ("gpu_path", self.gpu_path.map(|path| gpu_path(path).to_owned())),
            ("pattern", unless(self.pattern, &[Pattern::OneWay])),
            ("source_memory", memory),
        ];
        let told = words.into_iter().filter(|(column, _)| naming.has(column));
        told.filter_map(|(_, word)| word).collect::<Vec<String>>().join(" ")
    }

    /// Whether another issuer could have done it.
    fn has_issuers(&self) -> bool {
        self.operation.is_none_or(|operation| operation.issuer().is_none())
    }

    /// Between what: `GPU 0 -> GPU 3`, `8 ranks`; of several flows the first.
    pub fn ends(&self, naming: &Naming<'_>) -> String {
        let source = End {
            gpu: self.source_gpu.filter(|_| naming.has("source_gpu")),
            memory: self.source_memory,
            rank: self.source_rank,
            host: self.source_host.as_deref(),
            numa_node: self.source_numa_node.filter(|_| naming.has("source_numa_node")),
            cpu: self.source_cpu,
            domain: self.source_domain.as_deref(),
        };
        let target = End {
            gpu: self.target_gpu.filter(|_| naming.has("target_gpu")),
            memory: self.target_memory,
            rank: self.target_rank,
            host: self.target_host.as_deref(),
            numa_node: self.target_numa_node.filter(|_| naming.has("target_numa_node")),
            cpu: self.target_cpu,
            domain: self.target_domain.as_deref(),
        };
        let has_hosts = naming.has_hosts || source.host != target.host;
        let is_rdma = self.transport == TransportKind::Rdma;
        // Ranks can share a GPU.
        let is_by_rank = source.rank != target.rank
            && if is_rdma { source.gpu == target.gpu } else { source.gpu.or(target.gpu).is_none() };
        let [from, to] = [&source, &target].map(|end| end.name(is_by_rank, is_rdma, has_hosts));
        let arrow = if self.pattern == Some(Pattern::BothWays) { "<->" } else { "->" };
        let more = match (self.flows, self.pattern) {
            (_, Some(Pattern::BothWays)) | (None | Some(0 | 1), _) => String::new(),
            (Some(flows), _) => format!(" and {} more", flows - 1),
        };
        match (from, to, self.communicator_ranks) {
            (Some(source), Some(target), _) if source == target => format!("within {source}{more}"),
            (Some(source), Some(target), _) => format!("{source} {arrow} {target}{more}"),
            (_, _, Some(ranks)) => format!("{ranks} ranks"),
            _ => String::new(),
        }
    }
}

/// Where a flow begins or ends.
struct End<'a> {
    gpu: Option<u32>,
    memory: Option<MemoryKind>,
    rank: Option<u32>,
    host: Option<&'a str>,
    numa_node: Option<u32>,
    cpu: Option<u32>,
    domain: Option<&'a str>,
}

impl End<'_> {
    fn name(&self, is_by_rank: bool, is_rdma: bool, has_host: bool) -> Option<String> {
        let is_host = self.memory == Some(MemoryKind::Host);
        let node = self.numa_node.filter(|_| is_host && !is_rdma);
        let (place, more) = match (self.gpu, self.rank, node) {
            (_, Some(rank), Some(node)) if is_by_rank => {
                let cpu = self.cpu.map_or("shared CPUs".to_owned(), |cpu| format!("CPU {cpu}"));
                (format!("rank {rank}"), Some(format!("NUMA node {node}, {cpu}")))
            }
            (_, Some(rank), None) if is_by_rank => (format!("rank {rank}"), None),
            (Some(gpu), ..) => (format!("GPU {gpu}"), None),
            (None, _, Some(node)) => (format!("NUMA node {node}"), None),
            (None, Some(rank), None) => (format!("rank {rank}"), None),
            (None, None, None) => return None,
        };
        let host = self.host.filter(|_| has_host).map(|host| format!(" of {host}"));
        let more = more.or_else(|| self.domain.map(str::to_owned)).map(|more| format!(" ({more})"));
        Some(place + &host.unwrap_or_default() + &more.unwrap_or_default())
    }
}

/// The text of a column, if it has any.
fn word(value: &impl Value) -> Option<String> {
    match value.cell() {
        Cell::Empty => None,
        cell => Some(cell.to_string()),
    }
}

/// The text of a column, unless it has the usual value.
fn unless<T: Value + PartialEq>(value: Option<T>, usual: &[T]) -> Option<String> {
    word(&value.filter(|value| !usual.contains(value)))
}

/// How data of GPUs comes to the interfaces.
const fn gpu_path(path: GpuPath) -> &'static str {
    match path {
        GpuPath::Direct => "GPUDirect",
        GpuPath::Unproven => "GPUDirect unproven",
        GpuPath::Staged => "staged",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn ends_that_are_not_the_same_are_not_called_one() {
        let ends = |row: Row, has_hosts| row.ends(&Naming { has_hosts, ..Naming::default() });
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
