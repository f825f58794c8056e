//! Cases of RDMA: between which ranks, by which provider, through which interfaces.

use serde::{Deserialize, Serialize};

use super::{
    BadRequest, Case, Endpoint, Engine, Fabric, Flow, Gpu, Operation, Pattern, Place, Rank,
    Request, TransportKind,
    topology::{Host, NicNode, NumaNode},
};
use crate::units::Bytes;

/// What is measured of RDMA unless the user says otherwise.
pub(super) fn sizes() -> Vec<Bytes> {
    let small = [8, 64, 1 << 10, 8 << 10, 64 << 10].map(Bytes::new);
    let large = [1, 8, 64].map(Bytes::mib);
    small.into_iter().chain(large).collect()
}

/// Operations of a flow under way at once, unless the user says otherwise: as many as fi_rma_bw of
/// libfabric's fabtests.
pub(super) const WINDOW: u32 = 64;

/// Providers that are measured unless the user names some, by the first part of their name: RDMA
/// hardware; without any, what every host has.
const HARDWARE: [&str; 2] = ["efa", "verbs"];
const SOFTWARE: [&str; 2] = ["tcp", "shm"];

/// The provider between processes of one host.
const OF_ONE_HOST: &str = "shm";

/// With more ranks than these not every pair is measured by itself unless it is asked for.
const RANKS_FOR_PAIRS: usize = 4;

/// What the user asks of RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricRequest {
    /// Providers by their whole name or its first part; empty: all that apply.
    pub providers: Vec<String>,
    /// Which interfaces a rank uses.
    pub nic: NicChoice,
    /// Where the data lies, each once; empty: on GPUs both ways if every host has some, otherwise
    /// in host memory.
    pub memory: Vec<Memory>,
    /// Operations of a flow under way at once; `None`: 64.
    pub window: Option<u32>,
}

/// Which interfaces of its host a rank uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NicChoice {
    /// Those with the shortest way over PCIe to its GPU; for host memory one, dealt in turn.
    #[default]
    Nearest,
    /// All; operations take them in turn.
    All,
    /// The one of this name, on every host.
    Named(String),
}

/// Where data lies before and after RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Memory {
    /// Host memory.
    Host,
    /// GPU memory that the interface reaches by itself.
    Gpu,
    /// GPU memory whose data goes through page-locked host memory at both ends.
    Staged,
}

/// The cases of RDMA that answer `request` over `hosts`, in the order of the rows.
pub(super) fn cases(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, BadRequest> {
    let ranks: usize = hosts.iter().map(|host| host.ranks.len()).sum();
    if ranks < 2 {
        return Ok(Vec::new());
    }
    let mut cases = Vec::new();
    for provider in providers(request, hosts)? {
        for memory in memories(request, hosts)? {
            let ends = Ends::new(request, hosts, &provider, memory)?;
            for (pattern, flows) in all_flows(request, &ends) {
                for &operation in &ends.operations(request, pattern)? {
                    let of_size = |&size: &Bytes| Case {
                        transport: TransportKind::Rdma,
                        pattern,
                        flows: flows.clone(),
                        operation,
                        engine: Engine::Nic,
                        issuer: operation.issuer(),
                        handle: None,
                        size,
                        slot: request.slot.filter(|_| memory == Memory::Staged),
                        fabric: Some(ends.fabric(request, &flows)),
                        nccl: None,
                    };
                    cases.extend(ends.sizes.iter().map(of_size));
                }
            }
        }
    }
    Ok(cases)
}

/// The first part of a provider's name: what moves the data, without the layer above it.
fn base(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

/// The providers to measure, by their whole names.
fn providers(request: &Request, hosts: &[Host]) -> Result<Vec<String>, BadRequest> {
    let mut here: Vec<&str> = Vec::new();
    for nic in hosts.iter().flat_map(|host| &host.topology.nics) {
        let everywhere =
            |host: &Host| host.topology.nics.iter().any(|other| other.provider == nic.provider);
        if !here.contains(&nic.provider.as_str()) && hosts.iter().all(everywhere) {
            here.push(&nic.provider);
        }
    }
    // A provider by itself comes before the same one below another layer.
    here.sort_by_key(|provider| provider.contains(';'));
    let find = |wanted: &str| {
        let exact = here.iter().find(|provider| **provider == wanted);
        exact.or_else(|| here.iter().find(|provider| base(provider) == wanted)).copied()
    };
    if request.fabric.providers.is_empty() {
        let found = |list: &[&str]| -> Vec<String> {
            let apply = list.iter().filter(|name| hosts.len() == 1 || **name != OF_ONE_HOST);
            apply.filter_map(|name| find(name)).map(str::to_owned).collect()
        };
        let hardware = found(&HARDWARE);
        return Ok(if hardware.is_empty() { found(&SOFTWARE) } else { hardware });
    }
    let named = request.fabric.providers.iter().map(|wanted| {
        let unknown = || BadRequest::Provider(wanted.clone(), here.join(" "));
        let provider = find(wanted).ok_or_else(unknown)?;
        match base(provider) {
            OF_ONE_HOST if hosts.len() > 1 => Err(BadRequest::ProviderOfOneHost(hosts.len())),
            _ => Ok(provider.to_owned()),
        }
    });
    named.collect()
}

/// The kinds of memory to measure.
fn memories(request: &Request, hosts: &[Host]) -> Result<Vec<Memory>, BadRequest> {
    let without_gpu = hosts.iter().find(|host| host.topology.gpus.is_empty());
    let wanted = &request.fabric.memory;
    match (without_gpu, wanted.iter().find(|memory| **memory != Memory::Host)) {
        (Some(host), Some(memory)) => {
            Err(BadRequest::MemoryWithoutGpu { memory: *memory, host: host.name.clone() })
        }
        _ if !wanted.is_empty() => Ok(wanted.clone()),
        (Some(_), None) => Ok(vec![Memory::Host]),
        (None, _) => Ok(vec![Memory::Gpu, Memory::Staged]),
    }
}

/// Where the data lies on each rank, and which interfaces it takes.
struct Ends<'a> {
    provider: &'a str,
    memory: Memory,
    /// The ends of ranks with the same place on their hosts, host by host; on one host, of all.
    rings: Vec<Vec<Endpoint>>,
    nics: Vec<(Rank, Vec<&'a NicNode>)>,
    sizes: Vec<Bytes>,
    hosts: &'a [Host],
}

impl<'a> Ends<'a> {
    fn new(
        request: &Request,
        hosts: &'a [Host],
        provider: &'a str,
        memory: Memory,
    ) -> Result<Self, BadRequest> {
        let mut rings: Vec<Vec<Endpoint>> = Vec::new();
        let mut all_nics = Vec::new();
        for host in hosts {
            for (place, &rank) in host.ranks.iter().enumerate() {
                let gpu = gpu_of(request, host, place).filter(|_| memory != Memory::Host);
                let nics = nics(request, hosts, host, provider, (place, gpu))?;
                let numa_node = nics.first().and_then(|nic| nic.numa_node);
                let near = host.topology.nearest_and_farthest(numa_node).first().copied();
                let host_memory = Place::Host { numa_node: near.unwrap_or(NumaNode(0)), cpu: None };
                let ring = if hosts.len() == 1 { 0 } else { place };
                if rings.len() <= ring {
                    rings.push(Vec::new());
                }
                rings[ring].push(Endpoint { rank, place: gpu.map_or(host_memory, Place::Gpu) });
                all_nics.push((rank, nics));
            }
        }
        let sizes = request.sizes.clone().unwrap_or_else(sizes);
        let most = all_nics.iter().flat_map(|(_, nics)| nics).map(|nic| nic.message_max).min();
        if let Some(most) = most
            && let Some(&size) = sizes.iter().find(|&&size| size > most)
        {
            let provider = provider.to_owned();
            return Err(BadRequest::Message { size, provider, most });
        }
        Ok(Self { provider, memory, rings, nics: all_nics, sizes, hosts })
    }

    /// All ends: the first rank of each host, then the second ones, and so on.
    fn all(&self) -> Vec<Endpoint> {
        self.rings.concat()
    }

    /// Which of the hosts `rank` runs on.
    fn host_of(&self, rank: Rank) -> Option<usize> {
        self.hosts.iter().position(|host| host.ranks.contains(&rank))
    }

    fn operations(
        &self,
        request: &Request,
        pattern: Pattern,
    ) -> Result<Vec<Operation>, BadRequest> {
        let has_rma = self.nics.iter().flat_map(|(_, nics)| nics).all(|nic| nic.has_rma);
        let takes_rma =
            |operation: Operation| matches!(operation, Operation::Write | Operation::Read);
        let asked = request.operations_or(&Operation::OF_RDMA);
        let named = !request.operations.is_empty() && !request.fabric.providers.is_empty();
        if let Some(operation) = asked.iter().find(|&&operation| takes_rma(operation))
            && named
            && !has_rma
        {
            let provider = self.provider.to_owned();
            return Err(BadRequest::ProviderWithoutRma { provider, operation: *operation });
        }
        let fits = |operation: &Operation| {
            Operation::OF_RDMA.contains(operation)
                && (has_rma || !takes_rma(*operation))
                && (*operation != Operation::PingPong
                    || (pattern == Pattern::OneWay && self.memory != Memory::Staged))
        };
        Ok(asked.iter().copied().filter(fits).collect())
    }

    fn fabric(&self, request: &Request, flows: &[Flow]) -> Fabric {
        let takes_part = |rank: Rank| {
            flows.iter().any(|flow| [flow.source.rank, flow.target.rank].contains(&rank))
        };
        let names = |nics: &[&NicNode]| nics.iter().map(|nic| nic.name.clone()).collect();
        let members = self.nics.iter().filter(|(rank, _)| takes_part(*rank));
        let nics: Vec<(Rank, Vec<_>)> = members.map(|(rank, nics)| (*rank, names(nics))).collect();
        let rails = nics.iter().map(|(_, nics)| nics.len()).max();
        Fabric {
            provider: self.provider.to_owned(),
            rails: u32::try_from(rails.unwrap_or(1)).unwrap_or(u32::MAX),
            nics,
            window: request.fabric.window.unwrap_or(WINDOW),
            is_window_given: request.fabric.window.is_some(),
            is_staged: self.memory == Memory::Staged,
            meetings: Vec::new(),
        }
    }
}

/// The GPU of the rank at `place` of its host: in turn, of those asked for.
fn gpu_of(request: &Request, host: &Host, place: usize) -> Option<Gpu> {
    let is_wanted = |gpu: &Gpu| request.gpus.as_ref().is_none_or(|gpus| gpus.contains(gpu));
    let gpus = host.topology.gpus.iter().map(|node| node.gpu).filter(is_wanted);
    let gpus: Vec<Gpu> = gpus.collect();
    (!gpus.is_empty()).then(|| gpus[place % gpus.len()])
}

/// The interfaces that the rank at `place` of `host` uses with `provider`, one at least.
fn nics<'a>(
    request: &Request,
    hosts: &[Host],
    host: &'a Host,
    provider: &str,
    (place, gpu): (usize, Option<Gpu>),
) -> Result<Vec<&'a NicNode>, BadRequest> {
    let all: Vec<&NicNode> =
        host.topology.nics.iter().filter(|nic| nic.provider == provider).collect();
    if let NicChoice::Named(wanted) = &request.fabric.nic {
        let named = all.iter().copied().find(|nic| nic.name.domain == *wanted);
        let mut names: Vec<&str> = all.iter().map(|nic| nic.name.domain.as_str()).collect();
        names.dedup();
        let absent = || BadRequest::Nic {
            nic: wanted.clone(),
            provider: provider.to_owned(),
            host: host.name.clone(),
            here: names.join(" "),
        };
        return Ok(vec![named.ok_or_else(absent)?]);
    }
    // Within a host the way back is as good as any; between hosts, a network that all are in.
    let reaches = |nic: &&NicNode| {
        let is_common =
            |other: &Host| {
                other.topology.nics.iter().any(|theirs| {
                    theirs.provider == provider && theirs.name.fabric == nic.name.fabric
                })
            };
        !nic.is_loopback && hosts.iter().all(is_common)
    };
    let common: Vec<&NicNode> = all.iter().copied().filter(reaches).collect();
    let loops: Vec<&NicNode> = all.iter().copied().filter(|nic| nic.is_loopback).collect();
    let outward: Vec<&NicNode> = all.iter().copied().filter(|nic| !nic.is_loopback).collect();
    let mut usable = match hosts.len() {
        1 if !loops.is_empty() && request.fabric.nic == NicChoice::Nearest => loops,
        1 => all,
        _ if !common.is_empty() => common,
        _ if !outward.is_empty() => outward,
        _ => all,
    };
    // Interfaces with the same place are partners: in the order of their networks on one host, and
    // each once, though it may have addresses of two kinds.
    let known = &hosts[0].topology.nics;
    usable.sort_by_key(|nic| known.iter().position(|other| other.name.fabric == nic.name.fabric));
    let mut seen = Vec::new();
    usable.retain(|nic| {
        let is_new = !seen.contains(&&nic.name.domain);
        seen.push(&nic.name.domain);
        is_new
    });
    if request.fabric.nic == NicChoice::All {
        return Ok(usable);
    }
    let of_gpu = |gpu: Gpu| host.topology.gpus.iter().find(|node| node.gpu == gpu);
    let path = gpu.and_then(of_gpu).map_or(&[][..], |gpu| &gpu.pcie_path);
    let shared = |nic: &NicNode| {
        path.iter().zip(&nic.pcie_path).take_while(|(ours, theirs)| ours == theirs).count()
    };
    let nearest = usable.iter().map(|nic| shared(nic)).max().unwrap_or(0);
    if nearest == 0 {
        let fabric = usable.first().map(|nic| &nic.name.fabric);
        usable.retain(|nic| Some(&nic.name.fabric) == fabric);
        return Ok(vec![usable[place % usable.len()]]);
    }
    Ok(usable.into_iter().filter(|nic| shared(nic) == nearest).collect())
}

/// Each wanted pattern's flows, a set for each case.
fn all_flows(request: &Request, ends: &Ends<'_>) -> Vec<(Pattern, Vec<Flow>)> {
    let all = ends.all();
    let default: &[Pattern] = match all.len() {
        0..=2 => &[Pattern::OneWay, Pattern::BothWays],
        3..=RANKS_FOR_PAIRS => &[Pattern::OneWay],
        _ => &[Pattern::Neighbours, Pattern::Bisection],
    };
    let wanted = if request.patterns.is_empty() { default } else { &request.patterns };
    let possible = wanted.iter().filter(|pattern| pattern.ends_min() as usize <= all.len());
    let sets = possible.flat_map(|&pattern| {
        flows(pattern, &all, ends).into_iter().map(move |flows| (pattern, flows))
    });
    sets.filter(|(_, flows)| !flows.is_empty()).collect()
}

fn flows(pattern: Pattern, all: &[Endpoint], ends: &Ends<'_>) -> Vec<Vec<Flow>> {
    let around = |steps: &dyn Fn(usize) -> usize| {
        let ring = |ring: &Vec<Endpoint>| {
            let (ring, count) = (ring.clone(), ring.len());
            let to = move |from: usize, by: usize| ring[(from + by) % ring.len()];
            let by = steps(count);
            let flows = (0..count).map(|from| Flow { source: to(from, 0), target: to(from, by) });
            // A rank whose host alone has so many has nobody across.
            if count > 1 { flows.collect() } else { Vec::new() }
        };
        vec![ends.rings.iter().flat_map(ring).collect()]
    };
    match pattern {
        Pattern::Neighbours => around(&|_| 1),
        Pattern::Bisection => around(&|count| count / 2),
        Pattern::OneWay | Pattern::BothWays => {
            let is_one_host = ends.hosts.len() == 1;
            let is_apart = |flow: &Flow| {
                is_one_host || ends.host_of(flow.source.rank) != ends.host_of(flow.target.rank)
            };
            // Within a host the way back is the same way.
            let both = !is_one_host || pattern == Pattern::BothWays;
            let sets = super::flows::between(pattern, all).into_iter();
            let wanted = |set: &Vec<Flow>| {
                is_apart(&set[0]) && (both || set[0].source.rank < set[0].target.rank)
            };
            sets.filter(wanted).collect()
        }
        _ => super::flows::between(pattern, all),
    }
}

#[cfg(test)]
mod tests;
