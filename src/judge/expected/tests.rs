//! Expected values against arithmetic by hand.

mod communicators;
mod interfaces;

use super::*;
use crate::{
    plan::{
        Endpoint, Engine, Flow, Gpu as GpuNumber, Issuer, Operation, Pattern, Place,
        catalogue::Instance, topology::NumaNode,
    },
    units::Bytes,
};

fn machine(name: &str) -> Machine {
    Machine::catalogued(name, Instance::named(name).unwrap(), Catalogue::built_in())
}

const fn of_gpu(number: u32) -> Endpoint {
    Endpoint { rank: Rank(0), place: Place::Gpu(GpuNumber(number)) }
}

const fn pinned(node: u32) -> Endpoint {
    Endpoint { rank: Rank(0), place: Place::Pinned { numa_node: NumaNode(node) } }
}

/// A case of copies between these ends at once.
fn copy(transport: TransportKind, engine: Engine, ends: &[(Endpoint, Endpoint)]) -> Case {
    Case {
        transport,
        pattern: Pattern::OneWay,
        flows: ends.iter().map(|&(source, target)| Flow { source, target }).collect(),
        operation: Operation::Copy,
        engine,
        issuer: Some(Issuer::Write),
        handle: None,
        size: Bytes::mib(64),
        slot: None,
        sample: None,
        fabric: None,
        nccl: None,
    }
}

fn of(machine: &Machine, case: &Case) -> Result<Expected, String> {
    let sites = [Site { machine, ranks: &[Rank(0)] }];
    expected(case, &sites, Chosen::default(), Catalogue::built_in())
}

fn assert_near(found: f64, wanted: f64, what: &str) {
    assert!((found - wanted).abs() < 0.005 * wanted, "{what}: {found}, not {wanted}");
}

/// Usual, low and high in GB/s.
fn assert_band(found: &Expected, [usual, low, high]: [f64; 3], what: &str) {
    assert_near(found.gb_s, usual, what);
    assert_near(found.low, low, what);
    assert_near(found.high, high, what);
}

#[test]
fn nvlinks_between_two_gpus_are_links_times_rate_times_share() {
    let (p2p, to) = (TransportKind::P2p, [(of_gpu(0), of_gpu(5))]);
    for (name, engine, band) in [
        ("p4d.24xlarge", Engine::Ce, [276.0, 255.0, 300.0]),
        ("p4d.24xlarge", Engine::Sm, [240.0, 210.0, 300.0]),
        ("p5.48xlarge", Engine::Ce, [373.5, 333.0, 450.0]),
        ("p6-b200.48xlarge", Engine::Ce, [769.5, 684.0, 900.0]),
    ] {
        let found = of(&machine(name), &copy(p2p, engine, &to)).unwrap();
        assert_band(&found, band, name);
        assert_eq!(found.lacks, [] as [String; 0]);
    }
    let found = of(&machine("p5.48xlarge"), &copy(p2p, Engine::Ce, &to)).unwrap();
    assert_eq!(found.derivation, "18 NVLinks of generation 4 x 25 GB/s x 0.83");
    assert!(found.source.contains("NVIDIA/nccl issue 1264"), "{}", found.source);
}

#[test]
fn flows_through_one_port_share_it() {
    let p2p = TransportKind::P2p;
    let to_all: Vec<(Endpoint, Endpoint)> = (1..8).map(|peer| (of_gpu(0), of_gpu(peer))).collect();
    let found = of(&machine("p5.48xlarge"), &copy(p2p, Engine::Ce, &to_all)).unwrap();
    assert_near(found.gb_s, 450.0 / 7.0 * 0.83, "one to all");
    assert!(found.derivation.contains("/ 7 flows"), "{}", found.derivation);
    let both = [(of_gpu(0), of_gpu(1)), (of_gpu(1), of_gpu(0))];
    let found = of(&machine("p4d.24xlarge"), &copy(p2p, Engine::Ce, &both)).unwrap();
    assert_near(found.gb_s, 300.0 * 0.86, "both ways");
    let pairs = [(of_gpu(0), of_gpu(1)), (of_gpu(2), of_gpu(3))];
    let found = of(&machine("p4d.24xlarge"), &copy(p2p, Engine::Ce, &pairs)).unwrap();
    assert_near(found.gb_s, 300.0 * 0.92, "disjoint pairs");
}

#[test]
fn links_that_are_down_lower_what_is_expected_and_make_a_row_below() {
    let mut p4d = machine("p4d.24xlarge");
    p4d.gpus[5].nvlinks.as_mut().unwrap().up = 10;
    for pair in p4d.pairs.iter_mut().filter(|pair| pair.gpu == 5 || pair.peer == 5) {
        pair.nvlinks = 10;
    }
    let (p2p, ce) = (TransportKind::P2p, Engine::Ce);
    let case = copy(p2p, ce, &[(of_gpu(0), of_gpu(5))]);
    let found = of(&p4d, &case).unwrap();
    assert_near(found.gb_s, 250.0 * 0.92, "10 links");
    assert_eq!(found.lacks, ["2 of the 12 NVLinks of GPU 5 are down"]);
    let judgement = judge(Some(measured(229.0, 64 << 20)), Ok(found));
    assert_eq!(judgement.verdict, Verdict::Below);
    assert_near(judgement.fraction.unwrap(), 0.996, "fraction");
    assert!(judgement.reason.ends_with("2 of the 12 NVLinks of GPU 5 are down"));
    let others = of(&p4d, &copy(p2p, ce, &[(of_gpu(0), of_gpu(1))])).unwrap();
    assert_near(others.gb_s, 276.0, "another pair");
    assert!(others.lacks.is_empty());
    // The port that two flows share is slower than the links that are left.
    let both = [(of_gpu(0), of_gpu(1)), (of_gpu(0), of_gpu(5))];
    let shared = of(&p4d, &copy(p2p, ce, &both)).unwrap();
    assert_near(shared.gb_s, 150.0 * 0.86, "two flows");
    assert!(shared.lacks.is_empty(), "{:?}", shared.lacks);
}

#[test]
fn a_gpu_without_any_of_its_nvlinks_is_said_to_lack_them_all() {
    let mut p4d = machine("p4d.24xlarge");
    // NVML tells no ends of links that are down.
    let links = p4d.gpus[2].nvlinks.as_mut().unwrap();
    (links.up, links.is_switched) = (0, false);
    for pair in p4d.pairs.iter_mut().filter(|pair| pair.gpu == 2 || pair.peer == 2) {
        pair.nvlinks = 0;
    }
    let p2p = |machine: &Machine, peer: u32| {
        let case = copy(TransportKind::P2p, Engine::Ce, &[(of_gpu(peer), of_gpu(2))]);
        of(machine, &case).map(|found| found.lacks)
    };
    assert_eq!(p2p(&p4d, 0).unwrap(), ["12 of the 12 NVLinks of GPU 2 are down"]);
    // Boards with connectors and no bridges.
    let mut boards = p4d.clone();
    for links in boards.gpus.iter_mut().filter_map(|gpu| gpu.nvlinks.as_mut()) {
        (links.up, links.is_switched, links.may_lack_bridge) = (0, false, true);
    }
    assert_eq!(p2p(&boards, 0).unwrap(), [] as [String; 0]);
    // Nobody tells them: that the way is PCIe is not known.
    (p4d.gpus[2].nvlinks, p4d.gpus[2].nvlinks_untold) = (None, true);
    assert_eq!(p2p(&p4d, 0).unwrap_err(), "NVML does not tell the NVLinks of GPU 2");
}

#[test]
fn a_link_between_two_gpus_is_lacked_by_these_two() {
    let mut meshed = machine("p4d.24xlarge");
    for gpu in &mut meshed.gpus {
        let links = gpu.nvlinks.as_mut().unwrap();
        (links.up, links.is_switched) = (if gpu.ordinal < 2 { 11 } else { 12 }, false);
    }
    for pair in &mut meshed.pairs {
        pair.nvlinks = if pair.gpu < 2 && pair.peer < 2 { 1 } else { 2 };
    }
    let p2p = |target: u32| {
        let case = copy(TransportKind::P2p, Engine::Ce, &[(of_gpu(0), of_gpu(target))]);
        of(&meshed, &case).unwrap()
    };
    assert_near(p2p(2).gb_s, 50.0 * 0.92, "2 links");
    assert_eq!(p2p(2).lacks, [] as [String; 0]);
    assert_eq!(p2p(1).lacks.len(), 2, "{:?}", p2p(1).lacks);
}

#[test]
fn the_way_to_the_host_is_generation_times_lanes_times_data() {
    let (local, near) = (TransportKind::Local, pinned(0));
    let p4d = machine("p4d.24xlarge");
    // 16 lanes of 0.9846 GB/s, of which 256 / 280 is data.
    let raw = 16.0 * 0.9846 * 256.0 / 280.0;
    let found = of(&p4d, &copy(local, Engine::Ce, &[(near, of_gpu(0))])).unwrap();
    assert_band(&found, [0.91, 0.82, 1.1].map(|share| share * raw), "from the host");
    let found = of(&p4d, &copy(local, Engine::Sm, &[(near, of_gpu(0))])).unwrap();
    assert_near(found.gb_s, 0.61 * raw, "a kernel that loads");
    let found = of(&p4d, &copy(local, Engine::Sm, &[(of_gpu(0), near)])).unwrap();
    assert_near(found.gb_s, 0.915 * raw, "a kernel that stores");
    let far = of(&p4d, &copy(local, Engine::Ce, &[(pinned(1), of_gpu(0))])).unwrap_err();
    assert!(far.contains("NUMA node 1"), "{far}");
    let mut narrow = p4d.clone();
    if let Some(HostWay::Pcie { lanes, .. }) = &mut narrow.gpus[3].host {
        *lanes = 8;
    }
    let found = of(&narrow, &copy(local, Engine::Ce, &[(near, of_gpu(3))])).unwrap();
    assert_near(found.gb_s, 0.91 * raw / 2.0, "8 lanes");
    assert_eq!(found.lacks, ["GPU 3 has 8 of 16 PCIe lanes"]);
    let shm = copy(TransportKind::Shm, Engine::Ce, &[(of_gpu(0), of_gpu(3))]);
    assert_near(of(&narrow, &shm).unwrap().gb_s, 0.65 * raw / 2.0, "through host memory");
    let gb200 = of(&machine("p6e-gb200.36xlarge"), &copy(local, Engine::Ce, &[(near, of_gpu(0))]));
    // 900 GB/s are of both directions, and for two GPUs.
    assert_near(gb200.unwrap().gb_s, 0.875 * 225.0, "C2C");
}

#[test]
fn a_gpus_own_memory_is_loaded_and_stored() {
    let case = copy(TransportKind::Local, Engine::Ce, &[(of_gpu(0), of_gpu(0))]);
    let found = of(&machine("p5.48xlarge"), &case).unwrap();
    assert_near(found.gb_s, 3350.0 / 2.0 * 0.78, "H100");
    for operation in [Operation::ReadOnly, Operation::WriteOnly] {
        let kernel = copy(TransportKind::Local, Engine::Sm, &[(of_gpu(0), of_gpu(0))]);
        let told = of(&machine("p5.48xlarge"), &Case { operation, ..kernel }).unwrap_err();
        assert!(told.contains("only load or only store"), "{told}");
    }
    let cached = judge(Some(measured(2000.0, 64 << 20)), Ok(found.clone()));
    assert_eq!(cached.verdict, Verdict::Unknown, "{}", cached.reason);
    let large = Case { size: Bytes::mib(512), ..case };
    let found = of(&machine("p5.48xlarge"), &large).unwrap();
    assert_eq!(judge(Some(measured(2000.0, 512 << 20)), Ok(found)).verdict, Verdict::Above);
}

#[test]
fn where_nothing_is_known_nothing_is_expected_and_the_reason_is_said() {
    let mut unnamed = machine("p4d.24xlarge");
    unnamed.gpus[0].memory_gb_s = None;
    unnamed.gpus[0].host = None;
    if let Some(HostWay::Pcie { generation, lane_gb_s, .. }) = &mut unnamed.gpus[1].host {
        (*generation, *lane_gb_s) = (7, None);
    }
    let (local, ce) = (TransportKind::Local, Engine::Ce);
    for (case, reason) in [
        (copy(local, ce, &[(of_gpu(0), of_gpu(0))]), "no memory bandwidth of a GPU called"),
        (copy(local, ce, &[(pinned(0), of_gpu(0))]), "nobody tells the PCIe link of GPU 0"),
        (
            copy(local, ce, &[(pinned(0), of_gpu(1))]),
            "PCIe 7, of which the catalogue knows no rate",
        ),
        (copy(TransportKind::P2p, ce, &[(of_gpu(0), of_gpu(9))]), "GPUs 0 and 9"),
        (copy(TransportKind::Shm, Engine::Cpu, &[(pinned(0), pinned(0))]), "what CPUs copy"),
    ] {
        let told = of(&unnamed, &case).unwrap_err();
        assert!(told.contains(reason), "{told}");
        assert_eq!(judge(Some(measured(1.0, 1 << 30)), Err(told)).verdict, Verdict::Unknown);
    }
    let case = copy(local, ce, &[(of_gpu(0), of_gpu(0))]);
    let nowhere = expected(&case, &[], Chosen::default(), Catalogue::built_in()).unwrap_err();
    assert_eq!(nowhere, "the host of its ranks is not known");
}

fn measured(gb_s: f64, bytes: u64) -> Measured {
    Measured { gb_s, interval: Some((gb_s, gb_s)), size: Bytes::new(bytes), factor: 1.0 }
}

#[test]
fn verdicts_are_those_of_the_band_where_the_start_does_not_count() {
    let found = || {
        let case = copy(TransportKind::P2p, Engine::Ce, &[(of_gpu(0), of_gpu(1))]);
        of(&machine("p5.48xlarge"), &case)
    };
    for (gb_s, bytes, verdict) in [
        (371.0, 64 << 20, Verdict::Expected),
        (320.0, 64 << 20, Verdict::Below),
        (451.0, 64 << 20, Verdict::Above),
        // 4 µs of start are 2 % of 180 µs, by which the low end is lower.
        (328.0, 64 << 20, Verdict::Expected),
        // 1 MiB takes 2.8 µs.
        (100.0, 1 << 20, Verdict::Unknown),
        (451.0, 1 << 20, Verdict::Above),
    ] {
        let judgement = judge(Some(measured(gb_s, bytes)), found());
        assert_eq!(judgement.verdict, verdict, "{gb_s} {bytes}: {}", judgement.reason);
    }
    // An interval that is on both sides of an end of the band tells as much as its median.
    for (gb_s, interval, verdict, reason) in [
        (320.0, Some((300.0, 340.0)), Verdict::Unknown, "the interval from 300.0 to 340.0 GB/s"),
        (455.0, Some((440.0, 470.0)), Verdict::Unknown, "straddles 450.0 GB/s"),
        (335.0, Some((320.0, 350.0)), Verdict::Expected, "as on a healthy machine"),
        (371.0, None, Verdict::Unknown, "too few samples for an interval"),
        (100.0, None, Verdict::Unknown, "too few samples for an interval"),
        (500.0, None, Verdict::Unknown, "too few samples for an interval"),
    ] {
        let measured = Measured { interval, ..measured(gb_s, 64 << 20) };
        let judgement = judge(Some(measured), found());
        assert_eq!(judgement.verdict, verdict, "{gb_s}: {}", judgement.reason);
        assert!(judgement.reason.contains(reason), "{gb_s}: {}", judgement.reason);
    }
    let none = judge(None, found());
    assert_eq!((none.verdict, none.fraction), (Verdict::Unknown, None));
    assert!(none.expected.is_some());
}

/// What is expected of one path of an instance type.
fn path(name: &str, path: &str) -> Known {
    let all = known(name, Instance::named(name).unwrap(), Catalogue::built_in());
    all.into_iter().find(|known| known.path == path).unwrap()
}

#[test]
fn collectives_are_bound_by_rings_by_reducing_switches_and_by_the_network() {
    let rate = |name: &str, of: &str| path(name, of).gb_s.unwrap();
    assert_near(rate("p4d.24xlarge", "all_reduce, ring"), 0.78 * 300.0, "A100");
    // 450 x 2 x 7 / 9 = 700, of which 480 were seen.
    assert_near(rate("p5.48xlarge", "all_reduce, NVLS"), 480.0, "H100");
    assert_near(rate("p6-b300.48xlarge", "all_reduce, NVLS"), 840.0, "B300");
    // 50 GB/s x 2 / 1 x 15 / 16.
    let two = path("p4de.24xlarge", "all_reduce between 2 hosts, tree");
    assert_near(two.gb_s.unwrap(), 0.83 * 93.75, &two.derivation);
    assert_near(rate("p4de.24xlarge", "all_reduce between 2 hosts, ring"), 0.83 * 50.0, "a ring");
    // There the switches bound it, and not 750 GB/s of network; 487 were seen.
    let two = path("p5.48xlarge", "all_reduce between 2 hosts, NVLS tree");
    assert_near(two.gb_s.unwrap(), 0.686 * 450.0 * 2.0 * 15.0 / 16.0 * 8.0 / 9.0, &two.derivation);
    assert_near(rate("p5.48xlarge", "one interface of EFA"), 0.95 * 12.5, "EFA");
    assert!(path("p3dn.24xlarge", "all_reduce, ring").gb_s.is_none());
}
