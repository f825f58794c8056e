//! Copies within one host: a GPU's own memory, to and from its host, from GPU to GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::{Expected, Gpu, HostWay, Machine, NvLinks, Raw, rate};
use crate::{
    plan::{Case, Engine, Flow, Operation, Place, catalogue::Catalogue},
    units::Bytes,
};

/// Two buffers of this size are more than any GPU's cache holds: that of B200, the largest, has
/// about 126 MB.
const CACHED_MAX: Bytes = Bytes::mib(256);

/// One GPU by itself, and the way to its host.
pub(super) fn local(
    case: &Case,
    machine: &Machine,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let flow = case.flows.first().ok_or("it has no flow")?;
    let number = flow.source.gpu().or(flow.target.gpu()).ok_or("no GPU takes part")?;
    let gpu = machine.gpu(number.0).ok_or_else(|| unknown_gpu(number.0))?;
    let is_kernel = case.engine == Engine::Sm;
    if flow.source.gpu() == flow.target.gpu() {
        if case.operation != Operation::Copy {
            return Err("no figure is published of kernels that only load or only store within a \
                        GPU"
            .to_owned());
        }
        let key = if is_kernel { "local_sm" } else { "local_ce" };
        let own = memory(gpu)?.shared_by(case.flows.len(), "flows").reached(catalogue, key)?;
        return Ok(Expected { may_be_cached: case.size < CACHED_MAX, ..own });
    }
    let pinned = [flow.source, flow.target].into_iter().find_map(|end| match end.place {
        Place::Pinned { numa_node } => Some(numa_node.0),
        Place::Host { .. } | Place::Gpu(_) => None,
    });
    if let (Some(near), Some(used)) = (gpu.numa_node, pinned)
        && near != used
    {
        return Err(format!(
            "the host memory is on NUMA node {used} and GPU {} on node {near}: no figure is \
             published for the way between them",
            gpu.ordinal
        ));
    }
    let is_c2c = matches!(gpu.host, Some(HostWay::C2c { .. }));
    let key = match (is_c2c, case.flows.len() > 1, is_kernel) {
        (false, false, false) => "host_ce",
        (false, false, true) if flow.source.gpu().is_none() => "host_sm_read",
        (false, false, true) => "host_sm_write",
        (false, true, _) => "host_both",
        (true, false, false) => "c2c_ce",
        (true, false, true) => "c2c_sm",
        (true, true, _) => "c2c_both",
    };
    host(gpu)?.reached(catalogue, key)
}

/// From GPU to GPU.
pub(super) fn p2p(
    case: &Case,
    machine: &Machine,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let ports = Ports::of(&case.flows);
    let mut slowest: Option<(Raw, String)> = None;
    for flow in &case.flows {
        let (Some(source), Some(target)) = (flow.source.gpu(), flow.target.gpu()) else {
            return Err("one of its ends is no GPU".to_owned());
        };
        let (raw, key) = direct(machine, (source.0, target.0), &ports, case)?;
        slowest = Some(match slowest.take() {
            Some((least, least_key)) => {
                let key = if raw.gb_s < least.gb_s { key } else { least_key };
                (least.or_less(raw), key)
            }
            None => (raw, key),
        });
    }
    let (raw, key) = slowest.ok_or("it has no flow")?;
    raw.reached(catalogue, &key)
}

/// From GPU to GPU through host memory.
pub(super) fn shm(
    case: &Case,
    machine: &Machine,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    if case.engine == Engine::Cpu {
        return Err("what CPUs copy depends on their caches and memory, which nobody tells".into());
    }
    let ports = Ports::of(&case.flows);
    let mut slowest: Option<Raw> = None;
    for flow in &case.flows {
        let (Some(source), Some(target)) = (flow.source.gpu(), flow.target.gpu()) else {
            return Err("one of its ends is no GPU".to_owned());
        };
        let raw = through_host(machine, (source.0, target.0), &ports)?;
        slowest = Some(slowest.take().map_or(raw.clone(), |least| least.or_less(raw)));
    }
    let key = match (ports.are_shared(), case.engine) {
        (true, _) => "shm_both",
        (false, Engine::Sm) => "shm_sm",
        (false, _) => "shm_ce",
    };
    slowest.ok_or("it has no flow")?.reached(catalogue, key)
}

/// How many flows leave each GPU and arrive there.
#[derive(Debug, Default)]
pub(super) struct Ports {
    out: BTreeMap<u32, usize>,
    into: BTreeMap<u32, usize>,
}

impl Ports {
    pub(super) fn of(flows: &[Flow]) -> Self {
        let mut ports = Self::default();
        for flow in flows {
            if let (Some(source), Some(target)) = (flow.source.gpu(), flow.target.gpu()) {
                *ports.out.entry(source.0).or_default() += 1;
                *ports.into.entry(target.0).or_default() += 1;
            }
        }
        ports
    }

    /// Whether some GPU has more to do than to send, or to receive, one flow.
    fn are_shared(&self) -> bool {
        let several = |counts: &BTreeMap<u32, usize>| counts.values().any(|&count| count > 1);
        several(&self.out)
            || several(&self.into)
            || self.out.keys().any(|gpu| self.into.contains_key(gpu))
    }

    fn out(&self, gpu: u32) -> usize {
        self.out.get(&gpu).copied().unwrap_or(1)
    }

    fn into(&self, gpu: u32) -> usize {
        self.into.get(&gpu).copied().unwrap_or(1)
    }
}

/// The way of one flow between two GPUs, and the key of what is reached of it.
fn direct(
    machine: &Machine,
    (source, target): (u32, u32),
    ports: &Ports,
    case: &Case,
) -> Result<(Raw, String), String> {
    let pair = machine.pair(source, target).or_else(|| machine.pair(target, source));
    let pair = pair.ok_or_else(|| {
        format!("GPUs {source} and {target} are not known to reach each other's memory")
    })?;
    let [from, to] =
        [source, target].map(|number| machine.gpu(number).ok_or_else(|| unknown_gpu(number)));
    let (from, to) = (from?, to?);
    let (is_kernel, is_shared) = (case.engine == Engine::Sm, ports.are_shared());
    let lacks = lacking(&[from, to])?;
    if pair.nvlinks == 0 {
        let mut raw = host(from)?
            .shared_by(ports.out(source), "flows")
            .or_less(host(to)?.shared_by(ports.into(target), "flows"));
        raw.lacks.extend(lacks);
        let near = if pair.is_near { "near" } else { "far" };
        let kind = match (is_shared, is_kernel) {
            (true, _) => "both",
            (false, true) => "sm",
            (false, false) => "ce",
        };
        return Ok((raw, format!("pcie_{near}_{kind}")));
    }
    let links = from.nvlinks.zip(to.nvlinks).ok_or("NVML does not describe their NVLinks")?;
    let mut raw = Raw { lacks, ..nvlinks_of(&links.0, pair.nvlinks) };
    for (gpu, links, flows) in
        [(from, &links.0, ports.out(source)), (to, &links.1, ports.into(target))]
    {
        if links.is_switched {
            let port = Raw { lacks: lacking(&[gpu])?, ..nvlinks_of(links, links.up) };
            raw = raw.or_less(port.shared_by(flows, "flows"));
        }
    }
    let generation = links.0.generation.max(2);
    let key = match (is_kernel, is_shared) {
        (true, true) => "nvlink_sm_both".to_owned(),
        (true, false) => format!("nvlink{generation}_sm"),
        (false, true) => format!("nvlink{generation}_ce_both"),
        (false, false) => format!("nvlink{generation}_ce"),
    };
    Ok((raw, key))
}

/// The way of one flow through host memory: each byte crosses PCIe twice, once at each GPU.
pub(super) fn through_host(
    machine: &Machine,
    (source, target): (u32, u32),
    ports: &Ports,
) -> Result<Raw, String> {
    let [from, to] =
        [source, target].map(|number| machine.gpu(number).ok_or_else(|| unknown_gpu(number)));
    let up = host(from?)?.shared_by(ports.out(source), "flows");
    let down = host(to?)?.shared_by(ports.into(target), "flows");
    Ok(up.or_less(down))
}

/// Half of what a GPU's memory moves: a copy loads and stores each byte.
pub(super) fn memory(gpu: &Gpu) -> Result<Raw, String> {
    let both = gpu.memory_gb_s.ok_or_else(|| {
        format!("the catalogue knows no memory bandwidth of a GPU called {}", gpu.name)
    })?;
    Ok(Raw {
        gb_s: both / 2.0,
        how: format!("{} GB/s of memory / 2", rate(both)),
        ..Raw::default()
    })
}

/// The way between a GPU and its host.
pub(super) fn host(gpu: &Gpu) -> Result<Raw, String> {
    let way =
        gpu.host.ok_or_else(|| format!("nobody tells the PCIe link of GPU {}", gpu.ordinal))?;
    let mut raw = Raw::default();
    match way {
        HostWay::C2c { gb_s } => {
            raw.gb_s = gb_s;
            raw.how = format!("{} GB/s of NVLink-C2C", rate(gb_s));
        }
        HostWay::Pcie { generation, generation_now, lanes, lanes_due, lane_gb_s } => {
            let lane_gb_s = lane_gb_s.ok_or_else(|| {
                format!(
                    "GPU {} is connected by PCIe {generation}, of which the catalogue knows no rate",
                    gpu.ordinal
                )
            })?;
            raw.gb_s = f64::from(lanes) * lane_gb_s;
            raw.how = format!("PCIe {generation} x{lanes} = {} GB/s of data", rate(raw.gb_s));
            if lanes < lanes_due {
                raw.lacks
                    .insert(format!("GPU {} has {lanes} of {lanes_due} PCIe lanes", gpu.ordinal));
            }
            raw.hints.extend(generation_now.map(|now| {
                format!(
                    "the PCIe link of GPU {} was at generation {now} of {generation} when it was \
                     asked (an idle GPU goes back to an older one)",
                    gpu.ordinal
                )
            }));
        }
    }
    Ok(raw)
}

/// The raw rate of so many NVLinks.
pub(super) fn nvlinks_of(links: &NvLinks, count: u32) -> Raw {
    let plural = if count == 1 { "" } else { "s" };
    Raw {
        gb_s: f64::from(count) * links.link_gb_s,
        how: format!(
            "{count} NVLink{plural} of generation {} x {} GB/s",
            links.generation, links.link_gb_s
        ),
        ..Raw::default()
    }
}

/// Which NVLinks between these GPUs are down.
///
/// Without switches a link is between two GPUs and then down at both: where one GPU alone has links
/// down, they end at none of the others.
pub(super) fn lacking(gpus: &[&Gpu]) -> Result<BTreeSet<String>, String> {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.nvlinks_untold) {
        return Err(format!("NVML does not tell the NVLinks of GPU {}", gpu.ordinal));
    }
    let links = || gpus.iter().filter_map(|gpu| Some((gpu.ordinal, gpu.nvlinks?)));
    let is_switched = links().any(|(_, links)| links.is_switched);
    let down = links().filter(|(_, links)| links.up < links.due && !links.may_lack_bridge);
    let down: BTreeSet<String> = down
        .map(|(ordinal, NvLinks { up, due, .. })| {
            format!("{} of the {due} NVLinks of GPU {ordinal} are down", due - up)
        })
        .collect();
    Ok(if is_switched || down.len() > 1 { down } else { BTreeSet::new() })
}

/// What is said of a GPU that no survey has found.
pub(super) fn unknown_gpu(number: u32) -> String {
    format!("nothing is known of GPU {number}")
}
