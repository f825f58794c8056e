//! Which cases answer which request.

use std::fmt::{Debug, Display};

use clap::ValueEnum;
use serde::de::DeserializeOwned;
use strum::VariantArray as _;

use super::*;
use topology::tests::machine;

fn request(ranks: u32) -> Request {
    Request {
        sizes: Some(vec![Bytes::new(64), Bytes::kib(64)]),
        ranks: Some(ranks),
        ..Request::of(TransportKind::VARIANTS)
    }
}

/// One NUMA node for each two GPUs of 16 GiB.
fn with_gpus(count: u32) -> Topology {
    let gpu = |number: u32| GpuNode {
        gpu: Gpu(number),
        name: "a GPU".to_owned(),
        uuid: format!("GPU-{number}"),
        memory: Bytes::mib(16 << 10),
        numa_node: Some(NumaNode(number / 2)),
        pci_bus_id: String::new(),
        pcie_path: Vec::new(),
    };
    Topology { gpus: (0..count).map(gpu).collect(), ..machine(&[&[0, 1], &[2, 3]]) }
}

fn names(cases: &[Case]) -> Vec<String> {
    cases.iter().map(name).collect()
}

fn name(case: &Case) -> String {
    let end = |end: &Endpoint| match end.place {
        Place::Host { numa_node, .. } => format!("rank {} node {}", end.rank.0, numa_node.0),
        Place::Pinned { numa_node } => format!("host (NUMA node {})", numa_node.0),
        Place::Gpu(gpu) => format!("GPU {}", gpu.0),
    };
    let flow = |flow: &Flow| format!("{} -> {}", end(&flow.source), end(&flow.target));
    let flows = case.flows.iter().map(flow).collect::<Vec<String>>().join(", ");
    let issuer = case.issuer.map_or_else(String::new, |issuer| format!("{issuer} "));
    let Case { transport, pattern, operation, engine, size, .. } = case;
    format!("{transport} {pattern} {operation} {issuer}{engine} {flows} {size}")
}

fn ends(case: &Case) -> Vec<(u32, u32, Option<u32>)> {
    case.ends().map(|end| (end.rank.0, end.numa_node().unwrap().0, end.cpu())).collect()
}

#[test]
fn two_ranks_on_one_node_give_one_way_and_both_ways_at_each_size() {
    let cases = cases(&request(2), &machine(&[&[0, 1]])).unwrap();
    let names: Vec<String> =
        cases.iter().map(|case| format!("{} {}", case.pattern, case.size)).collect();
    assert_eq!(names, ["one-way 64 B", "one-way 64 KiB", "both-ways 64 B", "both-ways 64 KiB"]);
    assert_eq!(ends(&cases[0]), [(0, 0, Some(0)), (1, 0, Some(1))]);
    assert_eq!(
        ends(&cases[2]),
        [(0, 0, Some(0)), (1, 0, Some(1)), (1, 0, Some(1)), (0, 0, Some(0))]
    );
    assert_eq!(cases[2].bytes_per_operation(), Bytes::new(128));
    assert!(cases[0].endpoint(Rank(1)).is_some() && cases[0].endpoint(Rank(2)).is_none());
}

#[test]
fn two_nodes_give_the_near_and_the_far_way() {
    let one_way = Request { patterns: vec![Pattern::OneWay], ..request(2) };
    let cases = cases(&one_way, &machine(&[&[0, 1], &[2, 3]])).unwrap();
    assert_eq!(cases.len(), 4);
    assert_eq!(ends(&cases[0]), [(0, 0, Some(0)), (1, 0, Some(1))]);
    assert_eq!(ends(&cases[2]), [(0, 0, Some(0)), (1, 1, Some(2))]);
}

#[test]
fn pairs_need_four_ranks_and_share_cpus_only_when_they_must() {
    let pairs = Request { patterns: vec![Pattern::Pairs], ..request(3) };
    let err = cases(&pairs, &machine(&[&[0, 1]])).unwrap_err().to_string();
    assert_eq!(err, "--pattern pairs needs more ranks: give --ranks 4 or more");
    let pairs = Request { ranks: Some(5), sizes: Some(vec![Bytes::new(1)]), ..pairs };
    let roomy = cases(&pairs, &machine(&[&[0, 1, 2, 3]])).unwrap();
    assert_eq!(
        ends(&roomy[0]),
        [(0, 0, Some(0)), (1, 0, Some(2)), (2, 0, Some(1)), (3, 0, Some(3))]
    );
    let tight = cases(&pairs, &machine(&[&[0, 1]])).unwrap();
    assert_eq!(ends(&tight[0]), [(0, 0, None), (1, 0, None), (2, 0, None), (3, 0, None)]);
}

#[test]
fn a_single_rank_has_no_pair() {
    assert_eq!(cases(&request(1), &machine(&[&[0, 1]])).unwrap(), []);
}

#[test]
fn a_node_that_is_not_here_is_refused_by_name() {
    let absent = Request { numa: vec![(NumaNode(0), NumaNode(7))], ..request(2) };
    let err = cases(&absent, &machine(&[&[0], &[1]])).unwrap_err().to_string();
    assert!(err.contains("no NUMA node 7") && err.ends_with("here are: 0 1"), "{err}");
}

#[test]
fn a_pair_of_gpus_is_read_and_written_by_both_engines_and_chased() {
    let default = Request {
        transports: vec![TransportKind::P2p],
        sizes: None,
        ranks: None,
        gpus: Some(vec![Gpu(1), Gpu(0)]),
        ..request(1)
    };
    let cases = cases(&default, &with_gpus(4)).unwrap();
    assert_eq!(
        names(&cases)[..5],
        [
            "p2p one-way copy read ce GPU 1 -> GPU 0 64 MiB",
            "p2p one-way copy read sm GPU 1 -> GPU 0 64 MiB",
            "p2p one-way copy write ce GPU 1 -> GPU 0 64 MiB",
            "p2p one-way copy write sm GPU 1 -> GPU 0 64 MiB",
            "p2p one-way chase read sm GPU 1 -> GPU 0 2 MiB",
        ]
    );
    assert_eq!(cases.len(), 10);
    assert!(cases.iter().all(|case| case.handle.is_none()));
}

#[test]
fn gpus_of_different_ranks_are_reached_by_a_handle() {
    let spread = Request {
        transports: vec![TransportKind::P2p],
        patterns: vec![Pattern::Bisection],
        handle: Handle::Cumem,
        ..request(4)
    };
    let cases = cases(&spread, &with_gpus(4)).unwrap();
    assert!(cases.iter().all(|case| case.handle == Some(Handle::Cumem)));
    assert_eq!(cases[0].members(), [Rank(0), Rank(1), Rank(2), Rank(3)]);
}

#[test]
fn kernels_that_only_read_or_write_have_one_issuer() {
    let kernels = Request {
        transports: vec![TransportKind::P2p],
        operations: vec![Operation::ReadOnly, Operation::WriteOnly],
        gpus: Some(vec![Gpu(0), Gpu(1)]),
        ..request(1)
    };
    let of = |request: &Request| names(&cases(request, &with_gpus(2)).unwrap());
    assert_eq!(of(&kernels).len(), 2 * 2 * 2);
    assert_eq!(of(&kernels)[0], "p2p one-way read-only read sm GPU 0 -> GPU 1 64 B");
    assert_eq!(of(&Request { issuers: vec![Issuer::Write], ..kernels.clone() }).len(), 2 * 2);
    assert_eq!(of(&Request { engines: vec![Engine::Ce], ..kernels }), [""; 0]);
}

#[test]
fn a_gpu_by_itself_is_measured_with_the_nearest_and_the_farthest_host_memory() {
    let local = Request { transports: vec![TransportKind::Local], sizes: None, ..request(1) };
    let local = Request { gpus: Some(vec![Gpu(3)]), engines: vec![Engine::Ce], ..local };
    let cases = cases(&local, &with_gpus(4)).unwrap();
    assert_eq!(
        names(&cases),
        [
            "local one-way copy ce GPU 3 -> GPU 3 64 MiB",
            "local one-way copy ce host (NUMA node 1) -> GPU 3 64 MiB",
            "local one-way copy ce GPU 3 -> host (NUMA node 1) 64 MiB",
            "local one-way copy ce host (NUMA node 0) -> GPU 3 64 MiB",
            "local one-way copy ce GPU 3 -> host (NUMA node 0) 64 MiB",
            "local both-ways copy ce host (NUMA node 1) -> GPU 3, GPU 3 -> host (NUMA node 1) 64 MiB",
            "local both-ways copy ce host (NUMA node 0) -> GPU 3, GPU 3 -> host (NUMA node 0) 64 MiB",
        ]
    );
}

#[test]
fn the_way_through_host_memory_is_measured_by_cpus_and_by_gpus() {
    let shm = Request { transports: vec![TransportKind::Shm], ranks: None, ..request(1) };
    let cases = cases(&shm, &with_gpus(2)).unwrap();
    let of = |engine| cases.iter().filter(|case| case.engine == engine).count();
    // Two node pairs, two patterns, two sizes; two ordered pairs, two sizes.
    assert_eq!((of(Engine::Cpu), of(Engine::Ce), of(Engine::Sm)), (8, 4, 4));
}

#[test]
fn gpus_and_sizes_that_are_not_here_are_refused_with_the_remedy() {
    let p2p = Request { transports: vec![TransportKind::P2p], ..request(1) };
    let refused = |request: &Request| cases(request, &with_gpus(2)).unwrap_err().to_string();
    let named = |gpus: &[u32]| Some(gpus.iter().map(|&gpu| Gpu(gpu)).collect::<Vec<Gpu>>());
    let absent = Request { gpus: named(&[0, 5]), ..p2p.clone() };
    assert_eq!(refused(&absent), "--gpus 5: there is no GPU 5; here are: 0 1");
    let one = Request { gpus: named(&[1]), ..p2p.clone() };
    assert_eq!(refused(&one), "p2p needs 2 GPUs or more: name more with --gpus");
    let large = Request { sizes: Some(vec![Bytes::mib(17 << 10)]), ..p2p };
    assert_eq!(refused(&large), "--sizes 17 GiB: GPU 0 has 16.0 GiB of memory");
}

#[test]
fn flags_columns_and_messages_have_the_same_names() {
    fn same<T: ValueEnum + Serialize + DeserializeOwned + Display + Debug + PartialEq>() {
        for value in T::value_variants() {
            let flag = value.to_possible_value().unwrap();
            assert_eq!(flag.get_name(), value.to_string());
            let message = serde_json::to_value(value).unwrap();
            assert_eq!(message, value.to_string());
            assert_eq!(&serde_json::from_value::<T>(message).unwrap(), value);
        }
    }
    same::<Pattern>();
    same::<Issuer>();
    same::<Engine>();
    same::<Handle>();
    same::<Operation>();
    same::<Memory>();
    same::<DataType>();
    same::<Reduction>();
    same::<Allocator>();
    same::<Registration>();
    same::<Collective>();
    for &collective in Collective::VARIANTS {
        let operation = Operation::Collective(collective);
        assert_eq!(operation.to_string(), collective.to_string());
        assert_eq!(<&str>::from(operation), <&str>::from(collective));
        let message = serde_json::to_value(operation).unwrap();
        assert_eq!(message, collective.to_string());
        assert_eq!(serde_json::from_value::<Operation>(message).unwrap(), operation);
    }
}
