//! The CPUs of a thread that measures.

use g2g::{
    ffi::host,
    machine,
    measure::{self, Experiment},
    plan::{
        self, FabricRequest, Pattern, Rank, Request, TransportKind,
        topology::{Host, NumaNode, Topology},
    },
    transport,
    world::{Local, World},
};

use super::*;

/// This machine, but with one CPU on each of its NUMA nodes.
fn narrow_topology() -> Topology {
    let mut topology = machine::topology().unwrap();
    topology.nics = machine::offered_nics(None);
    for node in &mut topology.nodes {
        node.cpus.truncate(1);
    }
    topology
}

/// Measures all cases of `request` between `ranks` threads, and returns on which CPUs each may run
/// before and after.
fn cpus_around(ranks: u32, request: &Request) -> Vec<[Vec<u32>; 2]> {
    let _alone = rdma::alone();
    let topology = narrow_topology();
    let own = (0..ranks).map(Rank).collect();
    let host =
        Host { name: "here".to_owned(), ranks: own, topology: topology.clone(), ..Host::default() };
    let request = Request { ranks: Some(ranks), ..request.clone() };
    let mut cases = plan::cases(&request, &topology).unwrap();
    cases.extend(plan::cases_across_hosts(&request, &[host]).unwrap());
    assert!(!cases.is_empty(), "{request:?}");
    let run = |local: Local| {
        let before = host::allowed_cpus().unwrap();
        let mut world = World::local(local).unwrap();
        let transport = transport::open(request.transports[0], &topology).unwrap();
        for case in &cases {
            let own =
                if world.is_root() { case.clone() } else { case.parts()[&world.rank()].clone() };
            let (transport, effort) = (transport.as_ref(), rdma::QUICK);
            let experiment = Experiment { transport, case: &own, effort, seed: 7 };
            measure::measure(&mut world, &experiment, &mut rdma::Nobody).unwrap();
        }
        [before, host::allowed_cpus().unwrap()]
    };
    let worlds = Local::threads(ranks, PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|local| scope.spawn(|| run(local))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_transport_gives_its_threads_their_cpus_back() {
    simulated_gpus();
    let of = |kind| Request { sizes: Some(vec![Bytes::kib(64)]), ..Request::of(&[kind]) };
    let numa = vec![(NumaNode(0), NumaNode(0))];
    let fabric = FabricRequest { providers: vec![rdma::provider()], ..FabricRequest::default() };
    for (ranks, request) in [
        (1, of(TransportKind::Local)),
        (1, of(TransportKind::P2p)),
        (1, of(TransportKind::Shm)),
        (2, Request { numa, ..of(TransportKind::Shm) }),
        (1, of(TransportKind::Nccl)),
        (2, Request { fabric, patterns: vec![Pattern::OneWay], ..of(TransportKind::Rdma) }),
    ] {
        for [before, after] in cpus_around(ranks, &request) {
            assert_eq!(before, after, "{request:?}");
        }
    }
}
