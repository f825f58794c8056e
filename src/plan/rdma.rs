//! Cases of RDMA: between which ranks, by which provider, through which interfaces.

use serde::{Deserialize, Serialize};

use super::{
    Case, Endpoint, Engine, Fabric, Flow, Gpu, Operation, Pattern, Place, Rank, Request,
    TransportKind,
    flows::between,
    topology::{Host, NicNode, NumaNode},
};
use crate::units::Bytes;

/// What is measured of RDMA unless the user says otherwise.
const SIZES: [Bytes; 8] = [
    Bytes::new(8),
    Bytes::new(64),
    Bytes::kib(1),
    Bytes::kib(8),
    Bytes::kib(64),
    Bytes::mib(1),
    Bytes::mib(8),
    Bytes::mib(64),
];

/// And from this size on where flows meet: what they take from each other is bandwidth, which
/// smaller operations leave unused. Neighbours have all sizes: with many ranks nothing else tells
/// how many small operations they do.
const SIZE_WHERE_FLOWS_MEET: Bytes = Bytes::kib(64);

/// Operations of a flow under way at once on each endpoint, unless the user says otherwise: as many
/// as fi_rma_bw of libfabric's fabtests has.
pub(super) const WINDOW: u32 = 64;

/// Providers that are measured unless the user names some, by the first part of their name: RDMA
/// hardware; without any, what every host has.
pub(crate) const HARDWARE: [&str; 2] = ["efa", "verbs"];
const SOFTWARE: [&str; 2] = ["tcp", "shm"];

/// What provider verbs puts behind the name of a device whose connections share receive queues
/// (XRC; `suffix` in `prov/verbs/src/verbs_info.c` of libfabric).
const SHARED_CONNECTIONS: &str = "-xrc";

/// The provider between processes of one host.
pub(crate) const OF_ONE_HOST: &str = "shm";

/// Provider efa, and its fabrics on the same interfaces (fi_efa(7)): that of its own name, with a
/// protocol of libfabric's above the device, and one without.
pub(crate) const EFA: &str = "efa";
pub(crate) const EFA_DIRECT: &str = "efa-direct";

/// The variable by which efa's writes that are announced take up a receive each (fi_efa(7)).
pub(crate) const UNSOLICITED: &str = "FI_EFA_USE_UNSOLICITED_WRITE_RECV";

/// Whether libfabric and AWS's plugin accept the value of a variable as no.
pub(crate) fn is_no(value: &str) -> bool {
    ["0", "false", "no", "off"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// With more ranks than these, pairs are not measured one by one by default.
const RANKS_FOR_PAIRS: usize = 4;

/// No provider has more operations in flight.
const WINDOW_MAX: i64 = 1 << 16;

/// What the user asks of RDMA: flags, with their help.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "RDMA")]
pub struct FabricRequest {
    /// libfabric providers: efa,verbs,tcp,shm
    ///
    /// libfabric providers, such as efa, verbs, tcp or shm; comma-separated [default: efa and verbs
    /// where available, otherwise tcp, and shm within a host]
    #[arg(long = "provider", value_name = "NAME", value_delimiter = ',')]
    pub providers: Vec<String>,

    /// libfabric fabric: efa, efa-direct
    ///
    /// libfabric fabric, such as efa or efa-direct of provider efa [default: efa-direct for writes
    /// and reads where it is offered, efa for messages]
    #[arg(long, value_name = "FABRIC")]
    pub fabric: Option<String>,

    /// Interfaces: nearest, all, or one by name
    ///
    /// Network interfaces of a rank: those nearest to its GPU over PCIe, all of its host in turn,
    /// or one by the name of its libfabric domain
    #[arg(long, value_name = "NIC", default_value = "nearest", value_parser = nic)]
    pub nic: NicChoice,

    /// Endpoints of a rank on each interface (1)
    ///
    /// Endpoints of a rank on each of its interfaces, 1 to 64, which operations take in turn
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub endpoints: Option<u32>,

    /// Where the data is: host,gpu,staged
    ///
    /// Where the data is; staged: on a GPU, copied through host memory at both ends;
    /// comma-separated [default: gpu,staged where there are GPUs, otherwise host]
    #[arg(long, value_name = "MEMORY", value_delimiter = ',')]
    pub memory: Vec<Memory>,

    /// Operations of a flow in flight at once
    ///
    /// Operations of a flow in flight at once, 1 to 65536; fewer if the provider allows fewer
    /// [default: 64 on each endpoint, of 4 MiB in all at most, but two]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub window: Option<u32>,
}

fn nic(text: &str) -> Result<NicChoice, String> {
    Ok(match text {
        "" => return Err("write nearest, all, or the name of a domain".to_owned()),
        "nearest" => NicChoice::Nearest,
        "all" => NicChoice::All,
        name => NicChoice::Named(name.to_owned()),
    })
}

/// Which interfaces of its host a rank uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NicChoice {
    /// Those with the shortest way over PCIe to its GPU, else those of its NUMA node; for host memory
    /// those of a node, dealt in turn.
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
pub(super) fn cases(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, String> {
    let ranks: usize = hosts.iter().map(|host| host.ranks.len()).sum();
    if ranks < 2 {
        return Ok(Vec::new());
    }
    let mut cases = Vec::new();
    for provider in providers(request, hosts)? {
        for memory in memories(request, hosts)? {
            let of_access = Ends::new(request, hosts, &provider, memory, false)?;
            let of_messages = Ends::new(request, hosts, &provider, memory, true)?;
            for (pattern, flows) in of_access.all_flows() {
                for operation in of_access.operations(pattern)? {
                    let ends = if operation.has_messages() { &of_messages } else { &of_access };
                    let case = |&size: &Bytes| Case {
                        operation,
                        issuer: operation.issuer(),
                        slot: request.slot.filter(|_| memory == Memory::Staged),
                        fabric: Some(ends.fabric(&flows)),
                        ..Case::copy(TransportKind::Rdma, pattern, flows.clone(), Engine::Nic, size)
                    };
                    cases.extend(ends.sizes(pattern).map(case));
                }
            }
        }
    }
    Ok(cases)
}

/// The first part of a provider's name: what moves the data, without the layer above it.
pub(crate) fn base(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

/// The providers to measure, by their whole names.
fn providers(request: &Request, hosts: &[Host]) -> Result<Vec<String>, String> {
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
        let unknown = || {
            let here = here.join(" ");
            format!(
                "--provider {wanted}: libfabric does not offer it here (on every host); here are: \
                 {here}"
            )
        };
        let provider = find(wanted).ok_or_else(unknown)?;
        match base(provider) {
            OF_ONE_HOST if hosts.len() > 1 => Err(format!(
                "--provider shm joins ranks of one host, and there are {}",
                hosts.len()
            )),
            _ => Ok(provider.to_owned()),
        }
    });
    named.collect()
}

/// The kinds of memory to measure.
fn memories(request: &Request, hosts: &[Host]) -> Result<Vec<Memory>, String> {
    let without_gpu = hosts.iter().find(|host| host.topology.gpus.is_empty());
    let wanted = &request.fabric.memory;
    match (without_gpu, wanted.iter().find(|memory| **memory != Memory::Host)) {
        (Some(host), Some(memory)) => {
            Err(format!("--memory {memory}: no GPU is on {}: give --memory host", host.name))
        }
        _ if !wanted.is_empty() => Ok(wanted.clone()),
        (Some(_), None) => Ok(vec![Memory::Host]),
        (None, _) => Ok(vec![Memory::Gpu, Memory::Staged]),
    }
}

/// Where the data lies on each rank, and which interfaces it takes.
struct Ends<'a> {
    request: &'a Request,
    provider: &'a str,
    memory: Memory,
    /// The ends of ranks with the same place on their hosts, host by host; on one host, of all.
    rings: Vec<Vec<Endpoint>>,
    nics: Vec<(Rank, Vec<&'a NicNode>)>,
    hosts: &'a [Host],
}

impl<'a> Ends<'a> {
    fn new(
        request: &'a Request,
        hosts: &'a [Host],
        provider: &'a str,
        memory: Memory,
        has_messages: bool,
    ) -> Result<Self, String> {
        let mut rings: Vec<Vec<Endpoint>> = Vec::new();
        let mut all_nics = Vec::new();
        for host in hosts {
            let usable = usable_nics(request, hosts, host, provider, has_messages)?;
            for (place, &rank) in host.ranks.iter().enumerate() {
                let gpu = gpu_of(request, host, place).filter(|_| memory != Memory::Host);
                let nics = match request.fabric.nic {
                    NicChoice::Nearest => nearest_nics(&usable, host, place, gpu),
                    NicChoice::All | NicChoice::Named(_) => usable.clone(),
                };
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
        let sizes = request.sizes.as_deref().unwrap_or(&SIZES);
        let most = all_nics.iter().flat_map(|(_, nics)| nics).map(|nic| nic.message_max).min();
        if let Some(most) = most
            && let Some(size) = sizes.iter().find(|&&size| size > most)
        {
            let most = most.rounded();
            return Err(format!(
                "--sizes {size}: one operation of provider {provider} moves {most} at most"
            ));
        }
        Ok(Self { request, provider, memory, rings, nics: all_nics, hosts })
    }

    /// Which of the hosts `rank` runs on.
    fn host_of(&self, rank: Rank) -> Option<usize> {
        self.hosts.iter().position(|host| host.ranks.contains(&rank))
    }

    /// The sizes to measure of `pattern`.
    fn sizes(&self, pattern: Pattern) -> impl Iterator<Item = &'a Bytes> {
        let has_small = self.request.sizes.is_some()
            || matches!(pattern, Pattern::OneWay | Pattern::Neighbours);
        let all = self.request.sizes.as_deref().unwrap_or(&SIZES);
        all.iter().filter(move |size| has_small || **size >= SIZE_WHERE_FLOWS_MEET)
    }

    /// The operations to measure of `pattern`.
    fn operations(&self, pattern: Pattern) -> Result<Vec<Operation>, String> {
        let request = self.request;
        let has_rma = self.nics.iter().flat_map(|(_, nics)| nics).all(|nic| nic.has_rma);
        let takes_rma =
            |operation: Operation| matches!(operation, Operation::Write | Operation::Read);
        let asked = request.operations_or(&Operation::OF_RDMA);
        let named = !request.operations.is_empty() && !request.fabric.providers.is_empty();
        if let Some(operation) = asked.iter().find(|&&operation| takes_rma(operation))
            && named
            && !has_rma
        {
            let provider = self.provider;
            return Err(format!(
                "--provider {provider}: it has no RMA, which --operation {operation} takes"
            ));
        }
        let fits = |operation: &Operation| {
            Operation::OF_RDMA.contains(operation)
                && (has_rma || !takes_rma(*operation))
                && (*operation != Operation::PingPong
                    || (pattern == Pattern::OneWay && self.memory != Memory::Staged))
        };
        Ok(asked.iter().copied().filter(fits).collect())
    }

    /// What the ranks of these flows ask of libfabric.
    fn fabric(&self, flows: &[Flow]) -> Fabric {
        let window = self.request.fabric.window;
        let takes_part = |rank: Rank| {
            flows.iter().any(|flow| [flow.source.rank, flow.target.rank].contains(&rank))
        };
        let names = |nics: &[&NicNode]| nics.iter().map(|nic| nic.name.clone()).collect();
        let members = self.nics.iter().filter(|(rank, _)| takes_part(*rank));
        let nics: Vec<(Rank, Vec<_>)> = members.map(|(rank, nics)| (*rank, names(nics))).collect();
        let rails = nics.iter().map(|(_, nics)| nics.len()).max();
        let endpoints = self.request.fabric.endpoints.unwrap_or(1);
        Fabric {
            provider: self.provider.to_owned(),
            rails: u32::try_from(rails.unwrap_or(1)).unwrap_or(u32::MAX) * endpoints,
            endpoints,
            nics,
            window: window.unwrap_or(WINDOW),
            is_window_given: window.is_some(),
            is_staged: self.memory == Memory::Staged,
            is_one_host: self.hosts.len() == 1,
            meetings: Vec::new(),
        }
    }

    /// The flows of each wanted pattern, a set for each case.
    fn all_flows(&self) -> Vec<(Pattern, Vec<Flow>)> {
        // The first rank of each host, then the second ones, and so on.
        let all = self.rings.concat();
        let default: &[Pattern] = match all.len() {
            0..=2 => &[Pattern::OneWay, Pattern::BothWays],
            3..=RANKS_FOR_PAIRS => &[Pattern::OneWay],
            _ => &[Pattern::Neighbours, Pattern::Bisection],
        };
        let wanted = self.request.patterns_or(default).iter();
        let possible = wanted.filter(|pattern| pattern.ends_min() as usize <= all.len());
        let sets = possible.flat_map(|&pattern| {
            self.flows(pattern, &all).into_iter().map(move |flows| (pattern, flows))
        });
        sets.filter(|(_, flows)| !flows.is_empty()).collect()
    }

    fn flows(&self, pattern: Pattern, all: &[Endpoint]) -> Vec<Vec<Flow>> {
        match pattern {
            Pattern::Neighbours | Pattern::Bisection => {
                // A rank whose host alone has so many has nobody across.
                let rings = self.rings.iter().filter(|ring| ring.len() > 1);
                vec![rings.flat_map(|ring| between(pattern, ring).concat()).collect()]
            }
            Pattern::OneWay | Pattern::BothWays => {
                let is_one_host = self.hosts.len() == 1;
                let is_apart = |flow: &Flow| {
                    is_one_host || self.host_of(flow.source.rank) != self.host_of(flow.target.rank)
                };
                // Within a host the way back is the same way.
                let both = !is_one_host || pattern == Pattern::BothWays;
                let is_wanted = |set: &Vec<Flow>| {
                    is_apart(&set[0]) && (both || set[0].source.rank < set[0].target.rank)
                };
                between(pattern, all).into_iter().filter(is_wanted).collect()
            }
            _ => between(pattern, all),
        }
    }
}

/// The GPU of the rank at `place` of its host: the requested GPUs in turn.
fn gpu_of(request: &Request, host: &Host, place: usize) -> Option<Gpu> {
    let is_wanted = |gpu: &Gpu| request.gpus.as_ref().is_none_or(|gpus| gpus.contains(gpu));
    let gpus = host.topology.gpus.iter().map(|node| node.gpu).filter(is_wanted);
    let gpus: Vec<Gpu> = gpus.collect();
    (!gpus.is_empty()).then(|| gpus[place % gpus.len()])
}

/// The interfaces of `host` that ranks can use with `provider`, one at least.
fn usable_nics<'a>(
    request: &Request,
    hosts: &[Host],
    host: &'a Host,
    provider: &str,
    has_messages: bool,
) -> Result<Vec<&'a NicNode>, String> {
    let all = host.topology.nics.iter().filter(|nic| nic.provider == provider);
    let all = on_fabric(request, host, all.collect(), has_messages)?;
    if let NicChoice::Named(wanted) = &request.fabric.nic {
        let named = all.iter().copied().find(|nic| nic.name.domain == *wanted);
        let mut names: Vec<&str> = all.iter().map(|nic| nic.name.domain.as_str()).collect();
        names.dedup();
        let absent = || {
            let (host, here) = (&host.name, names.join(" "));
            format!(
                "--nic {wanted}: provider {provider} has no such interface on {host}; here are: \
                 {here}"
            )
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
    // each once, though it may have addresses of two kinds, and verbs offers a device a second
    // time, for connections that need not be shared here.
    let known = &hosts[0].topology.nics;
    usable.sort_by_key(|nic| {
        let place = known.iter().position(|other| other.name.fabric == nic.name.fabric);
        (place, nic.name.domain.ends_with(SHARED_CONNECTIONS))
    });
    let mut seen = Vec::new();
    usable.retain(|nic| {
        let device = nic.name.device.as_ref().unwrap_or(&nic.name.domain);
        let is_new = !seen.contains(&device);
        seen.push(device);
        is_new
    });
    Ok(usable)
}

/// Those of the interfaces `all` of `host` on the fabric that the user names. Without one all, but
/// for messages not on `efa-direct` where the same interface has `efa`, which takes longer ones.
fn on_fabric<'a>(
    request: &Request,
    host: &Host,
    all: Vec<&'a NicNode>,
    has_messages: bool,
) -> Result<Vec<&'a NicNode>, String> {
    let Some(wanted) = &request.fabric.fabric else {
        let has_efa = |nic: &NicNode| {
            let mut others = all.iter().filter(|other| other.name.domain == nic.name.domain);
            others.any(|other| other.name.fabric == EFA)
        };
        let is_too_short =
            |nic: &NicNode| has_messages && nic.name.fabric == EFA_DIRECT && has_efa(nic);
        return Ok(all.iter().copied().filter(|nic| !is_too_short(nic)).collect());
    };
    let found: Vec<&NicNode> =
        all.iter().copied().filter(|nic| nic.name.fabric == *wanted).collect();
    if let (true, Some(nic)) = (found.is_empty(), all.first()) {
        let mut here: Vec<&str> = all.iter().map(|nic| nic.name.fabric.as_str()).collect();
        here.sort_unstable();
        here.dedup();
        return Err(format!(
            "--fabric {wanted}: provider {} has no such fabric on {}; here are: {}",
            nic.provider,
            host.name,
            here.join(" ")
        ));
    }
    Ok(found)
}

/// Those of the `usable` interfaces of `host` with the shortest way over PCIe to `gpu`, or without
/// such a way those of its NUMA node. For host memory those of a NUMA node, which the rank's `place`
/// on the host decides; one, where interfaces have no known node.
fn nearest_nics<'a>(
    usable: &[&'a NicNode],
    host: &Host,
    place: usize,
    gpu: Option<Gpu>,
) -> Vec<&'a NicNode> {
    let of_gpu = |gpu: Gpu| host.topology.gpus.iter().find(|node| node.gpu == gpu);
    let path = gpu.and_then(of_gpu).map_or(&[][..], |gpu| &gpu.pcie_path);
    let shared = |nic: &NicNode| {
        path.iter().zip(&nic.pcie_path).take_while(|(ours, theirs)| ours == theirs).count()
    };
    let nearest = usable.iter().map(|nic| shared(nic)).max().unwrap_or(0);
    if nearest > 0 {
        return usable.iter().copied().filter(|nic| shared(nic) == nearest).collect();
    }
    let fabric = usable.first().map(|nic| &nic.name.fabric);
    let of_fabric = usable.iter().copied().filter(|nic| Some(&nic.name.fabric) == fabric);
    let of_fabric: Vec<&NicNode> = of_fabric.collect();
    let mut nodes: Vec<NumaNode> = of_fabric.iter().filter_map(|nic| nic.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let of_gpu = gpu.and_then(of_gpu).and_then(|gpu| gpu.numa_node);
    let near = of_gpu.filter(|node| nodes.contains(node));
    match near.or_else(|| nodes.get(place % nodes.len().max(1)).copied()) {
        Some(node) => of_fabric.into_iter().filter(|nic| nic.numa_node == Some(node)).collect(),
        None => vec![of_fabric[place % of_fabric.len()]],
    }
}

#[cfg(test)]
mod tests;
