//! Cases within one host: copies by its CPUs and by its GPUs.

use strum::VariantArray as _;

use super::{
    BadRequest, Case, Endpoint, Engine, Flow, GPUS_SAMPLED, Gpu, Handle, Issuer, Operation, Pairs,
    Pattern, Place, Rank, Request, SIZE_OF_CHASE, SIZE_OF_GPU, Sample, TransportKind, flows,
    gpus as gpus_of, nvlink_domains, sizes,
    topology::{GpuNode, Host, Topology},
};
use crate::units::Bytes;

/// What one access of a kernel through NVLink switches moves.
const VECTOR: Bytes = Bytes::new(16);

/// Copies between processes by their CPUs. `is_alone`: there are no GPUs to copy instead.
pub(super) fn shm_of_host(
    request: &Request,
    topology: &Topology,
    is_alone: bool,
) -> Result<Vec<Case>, BadRequest> {
    let ranks = request.ranks.unwrap_or(2);
    let too_wide = request.patterns.iter().find(|pattern| pattern.ends_min() > ranks);
    if let Some(&pattern) = too_wide.filter(|pattern| is_alone && pattern.is_for_host()) {
        return Err(BadRequest::TooFewRanks(pattern));
    }
    let named = request.numa.iter().flat_map(|&(source, target)| [source, target]);
    if let Some(node) = named.into_iter().find(|&node| topology.cpus(node).is_empty()) {
        let (node, here) = (node.0, topology.usable_nodes());
        return Err(BadRequest::Other(format!(
            "--numa {node}: there is no NUMA node {node} with a CPU that g2g may use; here are: \
             {here}"
        )));
    }
    let near_and_far = topology.near_and_far();
    let node_pairs = if request.numa.is_empty() { &near_and_far } else { &request.numa };
    let sizes = request.sizes.clone().unwrap_or_else(sizes::of_host);
    let is_possible = |pattern: &&Pattern| pattern.is_for_host() && pattern.ends_min() <= ranks;
    let mut cases = Vec::new();
    for &(source, target) in node_pairs {
        for &pattern in request.patterns_or(Pattern::VARIANTS).iter().filter(is_possible) {
            let flows = flows::between_ranks(pattern, ranks, [source, target], topology);
            cases.extend(sizes.iter().map(|&size| Case {
                slot: request.slot,
                ..Case::copy(TransportKind::Shm, pattern, flows.clone(), Engine::Cpu, size)
            }));
        }
    }
    Ok(cases)
}

/// Copies from one GPU to another through host memory.
pub(super) fn shm_of_gpus(request: &Request, gpus: &[&GpuNode]) -> Vec<Case> {
    let of_set = |set: FlowSet| {
        let copies = by_gpus(request, TransportKind::Shm, set, &[Operation::Copy]);
        copies.into_iter().map(|case| Case { slot: request.slot, ..case })
    };
    flow_sets(request, &ends_here(request, gpus)).flat_map(of_set).collect()
}

/// Transfers from one GPU's memory to another's.
pub(super) fn p2p(request: &Request, gpus: &[&GpuNode]) -> Result<Vec<Case>, String> {
    p2p_between(request, &ends_here(request, gpus))
}

/// The same where GPUs of several hosts reach each other's memory: what one GPU issues, also within
/// a host. What several issue at once is of one host, whose ranks start together.
pub(super) fn p2p_between_hosts(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, String> {
    let request = Request { handle: Handle::Fabric, ..request.clone() };
    let mut cases = Vec::new();
    for domain in nvlink_domains(hosts).0 {
        let mut ends = Vec::new();
        for host in domain {
            let gpus: Vec<Gpu> =
                gpus_of(&request, &host.topology)?.into_iter().map(|gpu| gpu.gpu).collect();
            ends.extend(flows::of_gpus(&gpus, &host.ranks));
        }
        cases.extend(p2p_between(&request, &ends)?);
    }
    cases.retain(is_of_domain);
    Ok(cases)
}

/// Whether the hosts of an NVLink domain measure a case of p2p together, if there is one.
pub(crate) fn is_of_domain(case: &Case) -> bool {
    case.transport == TransportKind::P2p
        && (case.pattern == Pattern::OneWay
            || case.operation.is_switched() && case.issuers().len() == 1)
}

fn p2p_between(request: &Request, ends: &[Endpoint]) -> Result<Vec<Case>, String> {
    let of_set = |set: FlowSet| {
        let mut possible = vec![Operation::Copy, Operation::ReadOnly, Operation::WriteOnly];
        possible.extend((set.pattern == Pattern::OneWay).then_some(Operation::Chase));
        by_gpus(request, TransportKind::P2p, set, &possible)
    };
    let mut cases: Vec<Case> = flow_sets(request, ends).flat_map(of_set).collect();
    cases.extend(switched(request, ends)?);
    Ok(cases)
}

/// What NVLink switches do for all of `ends` at once.
fn switched(request: &Request, ends: &[Endpoint]) -> Result<Vec<Case>, String> {
    let sizes = request.sizes.as_deref().unwrap_or(&[SIZE_OF_GPU]);
    let is_possible = |operation: &Operation| {
        let issues = |issuer| request.issuers.contains(&issuer);
        operation.issuer().is_none_or(issues) && request.engines.contains(&Engine::Sm)
    };
    let mut cases = Vec::new();
    for &operation in request.operations.iter().filter(|operation| operation.is_switched()) {
        if let Some(size) = sizes.iter().find(|size| !size.get().is_multiple_of(VECTOR.get())) {
            return Err(format!("--sizes {size}: {operation} moves multiples of {VECTOR} only"));
        }
        if ends.len() < 2 || !is_possible(&operation) {
            continue;
        }
        let possible = operation.switched_patterns();
        let wanted = request.patterns_or(&possible[..1]).iter();
        for &pattern in wanted.filter(|pattern| possible.contains(pattern)) {
            for flows in flows::between(pattern, ends) {
                let is_between_ranks =
                    flows.iter().any(|flow| flow.source.rank != flow.target.rank);
                let handle = match request.handle {
                    // CUDA IPC knows no such memory.
                    Handle::Ipc => Handle::Cumem,
                    handle => handle,
                };
                cases.extend(sizes.iter().map(|&size| Case {
                    operation,
                    issuer: operation.issuer(),
                    handle: is_between_ranks.then_some(handle),
                    ..Case::copy(TransportKind::P2p, pattern, flows.clone(), Engine::Sm, size)
                }));
            }
        }
    }
    Ok(cases)
}

/// Transfers within a GPU, and between it and host memory on the nearest and the farthest NUMA
/// node.
pub(super) fn local(request: &Request, topology: &Topology, gpus: &[&GpuNode]) -> Vec<Case> {
    use Operation::{Chase, Copy, ReadOnly, WriteOnly};
    let ranks = request.ranks.unwrap_or(1);
    let mut cases = Vec::new();
    for (index, gpu) in (0..).zip(gpus) {
        let end = |place| Endpoint { rank: Rank(index % ranks), place };
        let own = end(Place::Gpu(gpu.gpu));
        let from_hosts = topology
            .nearest_and_farthest(gpu.numa_node)
            .into_iter()
            .map(|numa_node| Flow { source: end(Place::Pinned { numa_node }), target: own });
        for &pattern in request.patterns_or(&[Pattern::OneWay, Pattern::BothWays]) {
            let mut add = |flows: Vec<Flow>, possible: &[Operation]| {
                let set = FlowSet { pattern, flows, sample: None };
                cases.extend(by_gpus(request, TransportKind::Local, set, possible));
            };
            match pattern {
                Pattern::OneWay => {
                    let within = Flow { source: own, target: own };
                    add(vec![within], &[Copy, ReadOnly, WriteOnly, Chase]);
                    for flow in from_hosts.clone() {
                        add(vec![flow], &[Copy, ReadOnly, Chase]);
                        add(vec![flow.reversed()], &[Copy, WriteOnly]);
                    }
                }
                Pattern::BothWays => {
                    from_hosts.clone().for_each(|flow| add(vec![flow, flow.reversed()], &[Copy]));
                }
                _ => {}
            }
        }
    }
    cases
}

/// Flows at the same time.
struct FlowSet {
    pattern: Pattern,
    flows: Vec<Flow>,
    sample: Option<Sample>,
}

/// The buffers of this host's GPUs, whose ranks are counted from 0.
fn ends_here(request: &Request, gpus: &[&GpuNode]) -> Vec<Endpoint> {
    let gpus: Vec<Gpu> = gpus.iter().map(|gpu| gpu.gpu).collect();
    let ranks: Vec<Rank> = (0..request.ranks.unwrap_or(1)).map(Rank).collect();
    flows::of_gpus(&gpus, &ranks)
}

/// Each wanted pattern's flows between the GPUs.
fn flow_sets(request: &Request, ends: &[Endpoint]) -> impl Iterator<Item = FlowSet> {
    let patterns = request.patterns_or(&[Pattern::OneWay]).iter();
    let possible = patterns.filter(|pattern| pattern.ends_min() as usize <= ends.len());
    let is_sampled = match request.pairs {
        Some(pairs) => pairs == Pairs::Sample,
        None => ends.len() >= GPUS_SAMPLED,
    };
    possible.flat_map(move |&pattern| {
        let all = flows::between(pattern, ends);
        let is_of_pairs = matches!(pattern, Pattern::OneWay | Pattern::BothWays);
        let (sets, sample) = if is_sampled && is_of_pairs {
            let drawn = flows::sampled(ends, request.seed).into_iter();
            let sets: Vec<Vec<Flow>> =
                drawn.flat_map(|pair| flows::between(pattern, &pair)).collect();
            let count = |sets: &[Vec<Flow>]| u32::try_from(sets.len()).unwrap_or(u32::MAX);
            let sample = Sample { pairs: count(&sets), of: count(&all) };
            (sets, Some(sample))
        } else {
            (all, None)
        };
        sets.into_iter().map(move |flows| FlowSet { pattern, flows, sample })
    })
}

/// What GPUs do along the flows: a case for each wanted operation of those that are `possible`,
/// issuer, engine and size.
fn by_gpus(
    request: &Request,
    transport: TransportKind,
    FlowSet { pattern, flows, sample }: FlowSet,
    possible: &[Operation],
) -> Vec<Case> {
    let is_between_ranks = flows.iter().any(|flow| flow.source.rank != flow.target.rank);
    let plain = Case {
        handle: (transport.has_issuer() && is_between_ranks).then_some(request.handle),
        sample,
        ..Case::copy(transport, pattern, flows, Engine::Sm, SIZE_OF_GPU)
    };
    let sizes = request.sizes.as_deref().unwrap_or(&[SIZE_OF_GPU]);
    let wanted = request.operations_or(&Operation::OF_GPU).iter();
    let mut cases = Vec::new();
    for &operation in wanted.filter(|operation| possible.contains(operation)) {
        let sizes = if operation == Operation::Chase { &[SIZE_OF_CHASE] } else { sizes };
        let is_wanted = |issuer: &&Issuer| operation.issuer().is_none_or(|only| only == **issuer);
        let issuers = request.issuers.iter().filter(is_wanted).copied().map(Some);
        let issuers: Vec<Option<Issuer>> = match transport.has_issuer() {
            true => issuers.collect(),
            // A chase is a read, also where nobody else could ask for it.
            false if operation == Operation::Chase => issuers.map(|_| None).collect(),
            false => vec![None],
        };
        for issuer in issuers {
            let can = |engine: &&Engine| operation == Operation::Copy || **engine == Engine::Sm;
            for &engine in request.engines.iter().filter(can) {
                let plain = Case { operation, engine, issuer, ..plain.clone() };
                cases.extend(sizes.iter().map(|&size| Case { size, ..plain.clone() }));
            }
        }
    }
    cases
}
