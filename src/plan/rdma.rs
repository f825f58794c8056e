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
    /// Operations of a flow under way at once; `None`: [`WINDOW`].
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
pub enum Memory {
    /// Host memory.
    Host,
    /// GPU memory that the interface reaches by itself.
    Gpu,
    /// GPU memory whose data goes through page-locked host memory at both ends.
    Staged,
}

impl Memory {
    /// The name in flags.
    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Gpu => "gpu",
            Self::Staged => "staged",
        }
    }
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
                        slot: None,
                        fabric: Some(ends.fabric(request, &flows)),
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
            Err(BadRequest::MemoryWithoutGpu { memory: memory.name(), host: host.name.clone() })
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
            return Err(BadRequest::ProviderWithoutRma { provider, operation: operation.name() });
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
        Fabric {
            provider: self.provider.to_owned(),
            nics: members.map(|(rank, nics)| (*rank, names(nics))).collect(),
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
    let usable = match hosts.len() {
        1 if !loops.is_empty() && request.fabric.nic == NicChoice::Nearest => loops,
        1 => all,
        _ if !common.is_empty() => common,
        _ if !outward.is_empty() => outward,
        _ => all,
    };
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
mod tests {
    use super::*;
    use crate::plan::{
        Meeting, NicName, cases_between,
        topology::{GpuNode, Topology, tests::machine},
    };

    fn nic(provider: &str, domain: &str, fabric: &str, path: &[&str]) -> NicNode {
        NicNode {
            provider: provider.to_owned(),
            name: NicName { domain: domain.to_owned(), fabric: fabric.to_owned(), device: None },
            is_loopback: domain == "lo" || domain == "shm",
            has_rma: provider != "udp",
            message_max: Bytes::mib(1024),
            numa_node: None,
            pcie_path: path.iter().map(|&part| part.to_owned()).collect(),
        }
    }

    fn plain_nics() -> Vec<NicNode> {
        vec![
            nic("tcp;ofi_rxm", "eth0", "10.0.0.0/24", &[]),
            nic("tcp", "eth0", "10.0.0.0/24", &[]),
            nic("tcp", "docker0", "172.17.0.0/16", &[]),
            nic("tcp", "lo", "127.0.0.0/8", &[]),
            nic("shm", "shm", "shm", &[]),
            nic("udp", "eth0", "10.0.0.0/24", &[]),
        ]
    }

    /// Hosts with so many ranks each.
    fn hosts(ranks: &[u32], topology: &Topology) -> Vec<Host> {
        let mut next = 0;
        let host = |(number, &count): (usize, &u32)| {
            let own = (next..next + count).map(Rank).collect();
            next += count;
            Host { name: format!("host{number}"), ranks: own, topology: topology.clone() }
        };
        ranks.iter().enumerate().map(host).collect()
    }

    fn plain(ranks: &[u32]) -> Vec<Host> {
        hosts(ranks, &Topology { nics: plain_nics(), ..machine(&[&[0, 1]]) })
    }

    fn request() -> Request {
        let sizes = Some(vec![Bytes::new(8)]);
        Request { sizes, ..Request::of(&[TransportKind::Rdma]) }
    }

    fn pairs(case: &Case) -> Vec<(u32, u32)> {
        case.flows.iter().map(|flow| (flow.source.rank.0, flow.target.rank.0)).collect()
    }

    #[test]
    fn two_ranks_of_a_host_are_joined_by_tcp_and_shm_with_all_operations() {
        let cases = cases_between(&request(), &plain(&[2])).unwrap();
        let names: Vec<String> = cases.iter().map(Case::to_string).collect();
        assert_eq!(names.len(), 14);
        let ends = "rank 0 (NUMA node 0, shared CPUs) -> rank 1 (NUMA node 0, shared CPUs) 8 B";
        assert_eq!(names[0], format!("rdma one-way write tcp {ends}"));
        assert_eq!(names[3], format!("rdma one-way ping-pong tcp {ends}"));
        assert!(names[4].starts_with("rdma both-ways write tcp "), "{}", names[4]);
        assert!(names[7].starts_with("rdma one-way write shm "), "{}", names[7]);
        let domains = |case: &Case| {
            let fabric = case.fabric.as_ref().unwrap();
            fabric.nics.iter().map(|(_, nics)| nics[0].domain.clone()).collect::<Vec<String>>()
        };
        assert_eq!(domains(&cases[0]), ["lo", "lo"]);
        assert_eq!(domains(&cases[7]), ["shm", "shm"]);
    }

    #[test]
    fn between_hosts_every_ordered_pair_is_measured_on_the_network_they_share() {
        let one_way = Request {
            patterns: vec![Pattern::OneWay],
            operations: vec![Operation::Write],
            ..request()
        };
        let mut three = plain(&[1, 1, 1]);
        // The same network has another name for its interface here.
        three[2].topology.nics[1].name.domain = "ens5".to_owned();
        three[2].topology.nics[2].name.fabric = "172.18.0.0/16".to_owned();
        let cases = cases_between(&one_way, &three).unwrap();
        let all: Vec<(u32, u32)> = cases.iter().flat_map(pairs).collect();
        assert_eq!(all, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
        let nics = &cases[1].fabric.as_ref().unwrap().nics;
        assert_eq!((nics[0].1[0].domain.as_str(), nics[1].1[0].domain.as_str()), ("eth0", "ens5"));
        // Ranks of one host are left to shm and p2p.
        let cases = cases_between(&one_way, &plain(&[2, 2])).unwrap();
        assert_eq!(cases.len(), 8);
    }

    #[test]
    fn neighbours_and_bisection_cross_hosts_and_keep_the_place() {
        let around = |ranks: &[u32], pattern| {
            let request = Request {
                patterns: vec![pattern],
                operations: vec![Operation::Write],
                fabric: FabricRequest {
                    providers: vec!["tcp".to_owned()],
                    ..FabricRequest::default()
                },
                ..request()
            };
            pairs(&cases_between(&request, &plain(ranks)).unwrap()[0])
        };
        assert_eq!(around(&[2, 2], Pattern::Neighbours), [(0, 2), (2, 0), (1, 3), (3, 1)]);
        assert_eq!(around(&[1, 1, 1, 1], Pattern::Bisection), [(0, 2), (1, 3), (2, 0), (3, 1)]);
        assert_eq!(around(&[3], Pattern::Neighbours), [(0, 1), (1, 2), (2, 0)]);
        // The third rank has nobody across.
        assert_eq!(around(&[3, 2], Pattern::Neighbours), [(0, 3), (3, 0), (1, 4), (4, 1)]);
    }

    #[test]
    fn with_many_ranks_the_cases_do_not_grow_with_their_square() {
        let cases = cases_between(&request(), &plain(&[64])).unwrap();
        assert!(cases.iter().all(|case| case.flows.len() == 64), "{}", cases.len());
        let parts = cases[0].parts();
        let part = &parts[&Rank(5)];
        assert_eq!(pairs(part), [(4, 5), (5, 6)]);
        let fabric = part.fabric.as_ref().unwrap();
        assert_eq!((fabric.nics.len(), fabric.meetings.len()), (1, 6));
        let partners = part.partners(Rank(5));
        assert_eq!((partners.len(), partners[0]), (11, Rank(1)));
    }

    #[test]
    fn everybody_hears_of_everybody_by_the_end_of_the_meetings() {
        for count in 2..20 {
            let case = &cases_between(
                &Request { patterns: vec![Pattern::Neighbours], ..request() },
                &plain(&[count]),
            )
            .unwrap()[0];
            let meetings: Vec<Vec<Meeting>> =
                case.parts().into_values().map(|part| part.fabric.unwrap().meetings).collect();
            let mut heard: Vec<Vec<Rank>> = (0..count).map(|rank| vec![Rank(rank)]).collect();
            for round in 0..meetings[0].len() {
                let before = heard.clone();
                for (rank, heard) in (0..).map(Rank).zip(&mut heard) {
                    let Meeting { tell, hear } = meetings[rank.0 as usize][round];
                    assert_eq!(meetings[tell.0 as usize][round].hear, rank);
                    heard.extend(&before[hear.0 as usize]);
                }
            }
            for known in &mut heard {
                known.sort_unstable();
                known.dedup();
                assert_eq!(known.len(), count as usize);
            }
        }
    }

    #[test]
    fn hardware_is_taken_alone_unless_others_are_named() {
        let mut nics = plain_nics();
        nics.push(nic("efa", "rdmap0s6-rdm", "efa", &[]));
        let host = hosts(&[2], &Topology { nics, ..machine(&[&[0]]) });
        let cases = cases_between(&request(), &host).unwrap();
        assert!(cases.iter().all(|case| case.fabric.as_ref().unwrap().provider == "efa"));
        let fabric =
            FabricRequest { providers: vec!["tcp;ofi_rxm".to_owned()], ..Default::default() };
        let named = cases_between(&Request { fabric, ..request() }, &host).unwrap();
        assert_eq!(named[0].fabric.as_ref().unwrap().provider, "tcp;ofi_rxm");
    }

    #[test]
    fn a_gpu_takes_its_nearest_interfaces_and_all_are_dealt_with_all() {
        let gpu = |number: u32, switch: &str| GpuNode {
            gpu: Gpu(number),
            name: "a GPU".to_owned(),
            uuid: format!("GPU-{number}"),
            memory: Bytes::mib(1024),
            numa_node: None,
            pcie_path: ["pci0", switch, "gpu"].map(str::to_owned).to_vec(),
        };
        let topology = Topology {
            gpus: vec![gpu(0, "a"), gpu(1, "b")],
            nics: vec![
                nic("efa", "one", "efa", &["pci0", "a", "x"]),
                nic("efa", "two", "efa", &["pci0", "b", "y"]),
                nic("efa", "three", "efa", &["pci0", "b", "z"]),
            ],
            ..machine(&[&[0]])
        };
        let of = |nic| {
            let fabric = FabricRequest { nic, ..FabricRequest::default() };
            let case = cases_between(&Request { fabric, ..request() }, &hosts(&[2], &topology));
            let case = case.unwrap().remove(0);
            let names = |(_, nics): &(Rank, Vec<NicName>)| {
                nics.iter().map(|nic| nic.domain.clone()).collect::<Vec<String>>().join("+")
            };
            case.fabric.unwrap().nics.iter().map(names).collect::<Vec<String>>()
        };
        assert_eq!(of(NicChoice::Nearest), ["one", "two+three"]);
        assert_eq!(of(NicChoice::All), ["one+two+three", "one+two+three"]);
        assert_eq!(of(NicChoice::Named("three".to_owned())), ["three", "three"]);
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let fabric = FabricRequest::default();
        let refused = |fabric: FabricRequest, operations: &[Operation], ranks: &[u32]| {
            let sizes = Some(vec![Bytes::mib(2048)]);
            let request = Request { fabric, operations: operations.to_vec(), sizes, ..request() };
            cases_between(&request, &plain(ranks)).unwrap_err().to_string()
        };
        let provider = |name: &str| FabricRequest {
            providers: vec![name.to_owned()],
            ..FabricRequest::default()
        };
        assert_eq!(
            refused(provider("efa"), &[], &[2]),
            "--provider efa: libfabric offers it not on every host; here are: tcp shm udp tcp;ofi_rxm"
        );
        assert!(refused(provider("shm"), &[], &[1, 1]).contains("joins ranks of one host"));
        let without = refused(provider("udp"), &[Operation::Write], &[2]);
        assert!(without.contains("2 GiB") || without.contains("no RMA"), "{without}");
        assert!(refused(fabric.clone(), &[], &[2]).contains("moves 1.0 GiB at most"));
        let named = FabricRequest { nic: NicChoice::Named("ib0".to_owned()), ..fabric.clone() };
        let sentence = refused(named, &[], &[2]);
        assert!(sentence.contains("has no such interface on host0; here are: eth0 docker0 lo"));
        let gpu = FabricRequest { memory: vec![Memory::Gpu], ..fabric };
        assert!(refused(gpu, &[], &[2]).contains("no GPU is on host0"));
    }
}
