//! Copies within one host: a GPU's own memory, to and from its host, from GPU to GPU.

use std::collections::BTreeSet;

use super::{Gpu, HostWay, Load, Machine, NvLinks, Raw, Site, rate};
use crate::{
    plan::{Case, Engine, Flow, Operation, Place, Rank},
    units::Bytes,
};

/// Two buffers of this size are more than any GPU's cache holds: that of B200, the largest, has
/// about 126 MB.
const CACHED_MAX: Bytes = Bytes::mib(256);

/// Whether data of a case may come from a GPU's cache.
pub(super) fn may_be_cached(case: &Case) -> bool {
    let is_own = |flow: &Flow| flow.source.gpu() == flow.target.gpu();
    case.flows.first().is_some_and(is_own) && case.size < CACHED_MAX
}

/// Within one GPU, or between a GPU and its host.
pub(super) fn local(case: &Case, machine: &Machine) -> Result<Raw, String> {
    let flow = case.flows.first().ok_or("it has no flow")?;
    let number = flow.source.gpu().or(flow.target.gpu()).ok_or("no GPU takes part")?;
    let gpu = machine.gpu(number.0)?;
    let is_kernel = case.engine == Engine::Sm;
    if flow.source.gpu() == flow.target.gpu() {
        if case.operation != Operation::Copy {
            return Err("no figure is published of kernels that only load or only store within a \
                        GPU"
            .to_owned());
        }
        let key = if is_kernel { "local_sm" } else { "local_ce" };
        return Ok(memory(gpu)?.shared_by(case.flows.len(), "flows").with_share(key));
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
    Ok(host(gpu)?.with_share(key))
}

/// From GPU to GPU.
pub(super) fn p2p(case: &Case, machine: &Machine) -> Result<Raw, String> {
    let ports = Ports::of(&case.flows);
    let ways = case.flows.iter().map(|flow| direct(machine, flow, &ports, case.engine));
    Ok(Raw::least(ways)?.ok_or("it has no flow")?)
}

/// From a GPU of one host to one of another, over NVLink; `None`: all is within a host.
pub(super) fn between_hosts(case: &Case, sites: &[Site<'_>]) -> Result<Option<Raw>, String> {
    let Some(flow) = case.flows.first() else { return Ok(None) };
    let site = |rank: Rank| sites.iter().position(|site| site.ranks.contains(&rank));
    let (from, to) = (site(flow.source.rank), site(flow.target.rank));
    let Some((from, to)) = from.zip(to).filter(|(from, to)| from != to) else { return Ok(None) };
    let (source, target) = gpus_of(flow)?;
    let (from, to) = (sites[from].machine.gpu(source)?, sites[to].machine.gpu(target)?);
    let links = [from, to].map(|gpu| gpu.nvlinks.filter(|links| links.is_switched));
    let [Some(one), Some(other)] = links else {
        return Err("NVML does not describe NVLinks that end in switches".to_owned());
    };
    // Their ordinals are of different hosts: they share no port.
    let (ports, links) = (Ports::of(&[]), one.up.min(other.up));
    over_nvlinks([from, to], links, &ports, case.engine).map(Some)
}

/// What NVLink switches do for several GPUs at once: the links of the GPU with the fewest carry what
/// the busiest carries.
pub(super) fn switched(case: &Case, sites: &[Site<'_>]) -> Result<Raw, String> {
    let bytes = case.switched_bytes();
    let ways = bytes.keys().map(|&(rank, ordinal)| {
        let site = sites.iter().find(|site| site.ranks.contains(&rank));
        let gpu = site.ok_or("the host of its ranks is not known")?.machine.gpu(ordinal.0)?;
        let links = gpu.nvlinks.filter(|links| links.is_switched);
        let links = links.ok_or("NVML does not describe NVLinks that end in switches")?;
        let key = format!("multicast{}", links.generation.clamp(4, 5));
        Ok(Raw { lacks: lacking(&[gpu])?, ..nvlinks_of(&links, links.up) }.with_share(key))
    });
    let raw = Raw::least(ways)?.ok_or("it has no GPU")?;
    let most = bytes.values().flatten().copied().fold(0.0, f64::max);
    Ok(match most {
        1.0 => raw,
        _ => raw.times(1.0 / most, &format!("/ {most:.4} bytes for each")),
    })
}

/// From GPU to GPU through host memory.
pub(super) fn shm(case: &Case, machine: &Machine) -> Result<Raw, String> {
    if case.engine == Engine::Cpu {
        return Err("what CPUs copy depends on their caches and memory, which nobody tells".into());
    }
    let ports = Ports::of(&case.flows);
    let ways = case.flows.iter().map(|flow| {
        let (source, target) = gpus_of(flow)?;
        through_host(machine.gpu(source)?, machine.gpu(target)?, &ports)
    });
    let key = match (ports.are_shared(), case.engine) {
        (true, _) => "shm_both",
        (false, Engine::Sm) => "shm_sm",
        (false, _) => "shm_ce",
    };
    Ok(Raw::least(ways)?.ok_or("it has no flow")?.with_share(key))
}

/// The ordinals of the GPUs at both ends of a flow.
fn gpus_of(flow: &Flow) -> Result<(u32, u32), String> {
    let ends = flow.source.gpu().zip(flow.target.gpu());
    ends.map(|(source, target)| (source.0, target.0)).ok_or("one of its ends is no GPU".to_owned())
}

/// The number of flows that leave each GPU, and that arrive there.
struct Ports {
    out: Load<u32>,
    into: Load<u32>,
}

impl Ports {
    fn of(flows: &[Flow]) -> Self {
        let (out, into): (Vec<u32>, Vec<u32>) = flows.iter().flat_map(gpus_of).unzip();
        Self { out: Load::of(out), into: Load::of(into) }
    }

    /// Whether some GPU takes part in more than one flow.
    fn are_shared(&self) -> bool {
        self.out.0.values().chain(self.into.0.values()).any(|&count| count > 1)
            || self.out.0.keys().any(|gpu| self.into.0.contains_key(gpu))
    }
}

/// The way of one flow between two GPUs.
fn direct(machine: &Machine, flow: &Flow, ports: &Ports, engine: Engine) -> Result<Raw, String> {
    let (source, target) = gpus_of(flow)?;
    let pair = machine.pair(source, target).or_else(|| machine.pair(target, source));
    let pair = pair.ok_or_else(|| {
        format!("GPUs {source} and {target} are not known to reach each other's memory")
    })?;
    let (from, to) = (machine.gpu(source)?, machine.gpu(target)?);
    if pair.nvlinks == 0 {
        let mut raw = through_host(from, to, ports)?;
        raw.lacks.extend(lacking(&[from, to])?);
        let near = if pair.is_near { "near" } else { "far" };
        let kind = match (ports.are_shared(), engine == Engine::Sm) {
            (true, _) => "both",
            (false, true) => "sm",
            (false, false) => "ce",
        };
        return Ok(raw.with_share(format!("pcie_{near}_{kind}")));
    }
    over_nvlinks([from, to], pair.nvlinks, ports, engine)
}

/// The way of one flow over so many NVLinks.
fn over_nvlinks(
    [from, to]: [&Gpu; 2],
    count: u32,
    ports: &Ports,
    engine: Engine,
) -> Result<Raw, String> {
    let (is_kernel, is_shared) = (engine == Engine::Sm, ports.are_shared());
    let lacks = lacking(&[from, to])?;
    let links = from.nvlinks.zip(to.nvlinks).ok_or("NVML does not describe their NVLinks")?;
    let mut raw = Raw { lacks, ..nvlinks_of(&links.0, count) };
    for (gpu, links, flows) in [
        (from, links.0, ports.out.flows(&from.ordinal)),
        (to, links.1, ports.into.flows(&to.ordinal)),
    ] {
        if links.is_switched {
            let port = Raw { lacks: lacking(&[gpu])?, ..nvlinks_of(&links, links.up) };
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
    Ok(raw.with_share(key))
}

/// The way of one flow through the host: each byte crosses the links of both GPUs to it.
fn through_host(from: &Gpu, to: &Gpu, ports: &Ports) -> Result<Raw, String> {
    let up = host(from)?.shared_by(ports.out.flows(&from.ordinal), "flows");
    let down = host(to)?.shared_by(ports.into.flows(&to.ordinal), "flows");
    Ok(up.or_less(down))
}

/// Half of what a GPU's memory moves: a copy loads and stores each byte.
fn memory(gpu: &Gpu) -> Result<Raw, String> {
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
    let Gpu { ordinal, host, .. } = gpu;
    match host.ok_or_else(|| format!("nobody tells the PCIe link of GPU {ordinal}"))? {
        HostWay::C2c { gb_s } => {
            Ok(Raw { gb_s, how: format!("{} GB/s of NVLink-C2C", rate(gb_s)), ..Raw::default() })
        }
        HostWay::Pcie { generation, generation_now, lanes, lanes_due, lane_gb_s } => {
            let lane_gb_s = lane_gb_s.ok_or_else(|| {
                format!(
                    "GPU {ordinal} is connected by PCIe {generation}, of which the catalogue knows \
                     no rate"
                )
            })?;
            let gb_s = f64::from(lanes) * lane_gb_s;
            let how = format!("PCIe {generation} x{lanes} = {} GB/s of data", rate(gb_s));
            let lacks = (lanes < lanes_due)
                .then(|| format!("GPU {ordinal} has {lanes} of {lanes_due} PCIe lanes"));
            let hints = generation_now.map(|now| {
                format!(
                    "the PCIe link of GPU {ordinal} was at generation {now} of {generation} when \
                     it was asked (an idle GPU goes back to an older one)"
                )
            });
            let (lacks, hints) = (lacks.into_iter().collect(), hints.into_iter().collect());
            Ok(Raw { gb_s, how, lacks, hints, ..Raw::default() })
        }
    }
}

/// The raw rate of `count` NVLinks.
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

/// The NVLinks between these GPUs that are down.
///
/// Without switches a link joins two GPUs and is down at both. If one GPU alone has links that are
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
