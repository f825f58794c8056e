//! Between which ranks and through which interfaces.

use super::*;
use crate::plan::{
    Meeting, NicName, cases_across_hosts,
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
        nic("tcp", "lo", "::1/128", &[]),
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
        Host {
            name: format!("host{number}"),
            ranks: own,
            topology: topology.clone(),
            ..Host::default()
        }
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
    let cases = cases_across_hosts(&request(), &plain(&[2])).unwrap();
    assert_eq!(cases.len(), 14);
    let told = |at: usize| {
        let case: &Case = &cases[at];
        let provider = case.fabric.as_ref().unwrap().provider.clone();
        (case.pattern, case.operation, provider, case.size)
    };
    let size = Bytes::new(8);
    let tcp = || "tcp".to_owned();
    assert_eq!(told(0), (Pattern::OneWay, Operation::Write, tcp(), size));
    assert_eq!(told(3), (Pattern::OneWay, Operation::PingPong, tcp(), size));
    assert_eq!(told(4), (Pattern::BothWays, Operation::Write, tcp(), size));
    assert_eq!(told(7), (Pattern::OneWay, Operation::Write, "shm".to_owned(), size));
    assert_eq!(pairs(&cases[0]), [(0, 1)]);
    let domains = |case: &Case| {
        let fabric = case.fabric.as_ref().unwrap();
        fabric.nics.iter().map(|(_, nics)| nics[0].domain.clone()).collect::<Vec<String>>()
    };
    assert_eq!(domains(&cases[0]), ["lo", "lo"]);
    assert_eq!(domains(&cases[7]), ["shm", "shm"]);
}

#[test]
fn small_sizes_are_measured_of_single_flows_and_neighbours_unless_some_are_named() {
    let least = |request: &Request, ranks: &[u32], pattern: Pattern| {
        let cases = cases_across_hosts(request, &plain(ranks)).unwrap();
        let of_pattern = cases.into_iter().filter(|case| case.pattern == pattern);
        of_pattern.map(|case| case.size).min().unwrap()
    };
    let unnamed = Request::of(&[TransportKind::Rdma]);
    assert_eq!(least(&unnamed, &[2], Pattern::OneWay), Bytes::new(8));
    assert_eq!(least(&unnamed, &[2], Pattern::BothWays), Bytes::kib(64));
    assert_eq!(least(&unnamed, &[3, 3], Pattern::Neighbours), Bytes::new(8));
    assert_eq!(least(&unnamed, &[3, 3], Pattern::Bisection), Bytes::kib(64));
    assert_eq!(least(&request(), &[2], Pattern::BothWays), Bytes::new(8));
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
    let cases = cases_across_hosts(&one_way, &three).unwrap();
    let all: Vec<(u32, u32)> = cases.iter().flat_map(pairs).collect();
    assert_eq!(all, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
    let nics = &cases[1].fabric.as_ref().unwrap().nics;
    assert_eq!((nics[0].1[0].domain.as_str(), nics[1].1[0].domain.as_str()), ("eth0", "ens5"));
    // Ranks of one host are left to shm and p2p.
    let cases = cases_across_hosts(&one_way, &plain(&[2, 2])).unwrap();
    assert_eq!(cases.len(), 8);
}

#[test]
fn neighbours_and_bisection_cross_hosts_and_keep_the_place() {
    let around = |ranks: &[u32], pattern| {
        let request = Request {
            patterns: vec![pattern],
            operations: vec![Operation::Write],
            fabric: FabricRequest { providers: vec!["tcp".to_owned()], ..FabricRequest::default() },
            ..request()
        };
        pairs(&cases_across_hosts(&request, &plain(ranks)).unwrap()[0])
    };
    assert_eq!(around(&[2, 2], Pattern::Neighbours), [(0, 2), (2, 0), (1, 3), (3, 1)]);
    assert_eq!(around(&[1, 1, 1, 1], Pattern::Bisection), [(0, 2), (1, 3), (2, 0), (3, 1)]);
    assert_eq!(around(&[3], Pattern::Neighbours), [(0, 1), (1, 2), (2, 0)]);
    // The third rank has nobody across.
    assert_eq!(around(&[3, 2], Pattern::Neighbours), [(0, 3), (3, 0), (1, 4), (4, 1)]);
}

#[test]
fn with_many_ranks_the_cases_do_not_grow_with_their_square() {
    let cases = cases_across_hosts(&request(), &plain(&[64])).unwrap();
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
        let case = &cases_across_hosts(
            &Request { patterns: vec![Pattern::Neighbours], ..request() },
            &plain(&[count]),
        )
        .unwrap()[0];
        let meetings: Vec<Vec<Meeting>> =
            case.parts().into_values().map(|part| part.fabric.unwrap().meetings).collect();
        let mut heard: Vec<Vec<Rank>> = (0..count).map(|rank| vec![Rank(rank)]).collect();
        for (round, _) in meetings[0].iter().enumerate() {
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
    let cases = cases_across_hosts(&request(), &host).unwrap();
    assert!(cases.iter().all(|case| case.fabric.as_ref().unwrap().provider == "efa"));
    let fabric = FabricRequest { providers: vec!["tcp;ofi_rxm".to_owned()], ..Default::default() };
    let named = cases_across_hosts(&Request { fabric, ..request() }, &host).unwrap();
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
        pci_bus_id: String::new(),
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
        let case = cases_across_hosts(&Request { fabric, ..request() }, &hosts(&[2], &topology));
        let case = case.unwrap().remove(0);
        let names = |(_, nics): &(Rank, Vec<NicName>)| {
            nics.iter().map(|nic| nic.domain.clone()).collect::<Vec<String>>().join("+")
        };
        case.fabric.unwrap().nics.iter().map(names).collect::<Vec<String>>()
    };
    let of_rails = |endpoints| {
        let fabric = FabricRequest { endpoints, nic: NicChoice::All, ..Default::default() };
        let case = cases_across_hosts(&Request { fabric, ..request() }, &hosts(&[2], &topology));
        case.unwrap().remove(0).fabric.unwrap().rails
    };
    assert_eq!([None, Some(1), Some(4)].map(of_rails), [3, 3, 12]);
    assert_eq!(of(NicChoice::Nearest), ["one", "two+three"]);
    assert_eq!(of(NicChoice::All), ["one+two+three", "one+two+three"]);
    assert_eq!(of(NicChoice::Named("three".to_owned())), ["three", "three"]);
}

#[test]
fn efa_direct_carries_writes_and_reads_and_efa_messages_unless_a_fabric_is_named() {
    let device = |domain: &str, fabric: &str| NicNode {
        name: NicName {
            domain: domain.to_owned(),
            fabric: fabric.to_owned(),
            device: Some(domain.trim_end_matches("-xrc").to_owned()),
        },
        ..nic("efa", domain, fabric, &[])
    };
    let two = vec![device("a", "efa-direct"), device("a", "efa"), device("a-xrc", "efa")];
    let topology = |nics: &[NicNode]| Topology { nics: nics.to_vec(), ..machine(&[&[0]]) };
    let of = |nics: &[NicNode], fabric: Option<&str>| {
        let fabric = FabricRequest { fabric: fabric.map(str::to_owned), ..Default::default() };
        let operations = vec![Operation::Write, Operation::Send];
        let request = Request { fabric, operations, ..request() };
        let cases = cases_across_hosts(&request, &hosts(&[1, 1], &topology(nics)))?;
        let nics = |case: &Case| {
            let nics = &case.fabric.as_ref().unwrap().nics[0].1;
            nics.iter()
                .map(|nic| format!("{} {}", nic.domain, nic.fabric))
                .collect::<Vec<_>>()
                .join("+")
        };
        Ok::<_, String>([nics(&cases[0]), nics(&cases[1])])
    };
    // A device that is offered under two names is one interface.
    assert_eq!(of(&two, None).unwrap(), ["a efa-direct", "a efa"]);
    assert_eq!(of(&two[..1], None).unwrap(), ["a efa-direct", "a efa-direct"]);
    assert_eq!(of(&two, Some("efa")).unwrap(), ["a efa", "a efa"]);
    assert_eq!(of(&two, Some("efa-direct")).unwrap(), ["a efa-direct", "a efa-direct"]);
    assert_eq!(
        of(&two, Some("ib")).unwrap_err(),
        "--fabric ib: provider efa has no such fabric on host0; here are: efa efa-direct"
    );
}

#[test]
fn without_a_way_over_pcie_a_rank_takes_the_interfaces_of_a_numa_node() {
    let on =
        |name, node| NicNode { numa_node: Some(NumaNode(node)), ..nic("efa", name, "efa", &[]) };
    let topology = |numa_nodes: &[u32]| Topology {
        nics: vec![on("a", 0), on("b", 1), on("c", 0), on("d", 1)],
        gpus: (0..)
            .zip(numa_nodes)
            .map(|(number, &node)| GpuNode {
                gpu: Gpu(number),
                name: "a GPU".to_owned(),
                uuid: format!("GPU-{number}"),
                memory: Bytes::mib(1024),
                numa_node: Some(NumaNode(node)),
                pci_bus_id: String::new(),
                pcie_path: vec!["pci0".to_owned()],
            })
            .collect(),
        ..machine(&[&[0], &[1]])
    };
    let of = |topology: &Topology, memory| {
        let fabric = FabricRequest { memory: vec![memory], ..FabricRequest::default() };
        let case = cases_across_hosts(&Request { fabric, ..request() }, &hosts(&[4], topology));
        let fabric = case.unwrap().remove(0).fabric.unwrap();
        let of_rank = |rank: u32| {
            let nics = fabric.nics.iter().find(|(of, _)| *of == Rank(rank));
            let names = nics.map(|(_, nics)| nics.iter().map(|nic| nic.domain.as_str()));
            names.map(|names| names.collect::<Vec<_>>().join("+"))
        };
        [0, 1].map(|rank| of_rank(rank).unwrap())
    };
    // Host memory: the nodes in turn.
    assert_eq!(of(&topology(&[]), Memory::Host), ["a+c", "b+d"]);
    // Memory of GPUs: their own nodes, and of a GPU whose node has no interface any.
    assert_eq!(of(&topology(&[1, 0]), Memory::Gpu), ["b+d", "a+c"]);
    assert_eq!(of(&topology(&[1, 7]), Memory::Gpu), ["b+d", "b+d"]);
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    let fabric = FabricRequest::default();
    let refused = |fabric: FabricRequest, operations: &[Operation], ranks: &[u32]| {
        let sizes = Some(vec![Bytes::mib(2048)]);
        let request = Request { fabric, operations: operations.to_vec(), sizes, ..request() };
        cases_across_hosts(&request, &plain(ranks)).unwrap_err().to_string()
    };
    let provider =
        |name: &str| FabricRequest { providers: vec![name.to_owned()], ..FabricRequest::default() };
    assert_eq!(
        refused(provider("efa"), &[], &[2]),
        "--provider efa: libfabric does not offer it here (on every host); here are: tcp shm udp tcp;ofi_rxm"
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
