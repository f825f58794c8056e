use std::collections::BTreeMap;

use super::*;
use crate::{
    machine::{
        counters::{Interface, InterfaceKind, LinkBytes, OfGpu, PcieBytes},
        health::{Condition, Errors, Health},
    },
    plan::{Endpoint, Fabric, Flow, Issuer, NicName, Pattern, Place, topology::NumaNode},
};

/// Data of one flow in all operations.
const BYTES: u64 = 1 << 30;

const OPERATIONS: u64 = 1 << 10;

const MOVED: Moved = Moved { operations: OPERATIONS, bytes: None };

fn at(place: Place) -> Endpoint {
    Endpoint { rank: Rank(0), place }
}

fn gpu(number: u32) -> Endpoint {
    at(Place::Gpu(Gpu(number)))
}

fn host() -> Endpoint {
    at(Place::Pinned { numa_node: NumaNode(0) })
}

fn case(transport: TransportKind, flows: &[(Endpoint, Endpoint)]) -> Case {
    Case {
        transport,
        pattern: Pattern::OneWay,
        flows: flows.iter().map(|&(source, target)| Flow { source, target }).collect(),
        operation: Operation::Copy,
        engine: Engine::Ce,
        issuer: Some(Issuer::Write),
        handle: None,
        size: Bytes::new(BYTES / OPERATIONS),
        slot: None,
        sample: None,
        fabric: None,
        nccl: None,
    }
}

fn p2p() -> Case {
    case(TransportKind::P2p, &[(gpu(0), gpu(1))])
}

/// What a GPU has counted: of two NVLinks out and in together, and of PCIe.
#[derive(Clone)]
struct Counted {
    nvlink: Result<(u64, u64), String>,
    pcie: Result<(u64, u64, u32), String>,
}

fn counted(nvlink: (u64, u64), pcie: (u64, u64)) -> Counted {
    Counted { nvlink: Ok(nvlink), pcie: Ok((pcie.0, pcie.1, 64)) }
}

fn of_gpu(counted: &Counted) -> OfGpu {
    let link = |number, (sent, received): (u64, u64)| LinkBytes { number, sent, received };
    OfGpu {
        nvlinks: counted.nvlink.clone().map(|(sent, received)| {
            vec![
                link(0, (sent / 2, received / 2)),
                link(3, (sent - sent / 2, received - received / 2)),
            ]
        }),
        pcie: counted.pcie.clone().map(|(sent, received, bits)| PcieBytes { sent, received, bits }),
        health: Health {
            condition: Condition {
                pcie_generation: None,
                pcie_lanes: None,
                sm_clock_mhz: None,
                memory_clock_mhz: None,
                throttle_reasons: None,
                temperature_c: None,
                power_mw: None,
                power_limit_mw: None,
            },
            errors: Errors::default(),
        },
    }
}

/// GPUs that count from an odd number on, all joined by NVLink if they have any.
fn seen(joined: bool, all: &[Counted]) -> Seen {
    const BEFORE: u64 = 12_345;
    let gpus: Vec<Gpu> = (0..).zip(all).map(|(number, _)| Gpu(number)).collect();
    let pairs = || gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| (a, b)));
    let before = counted((BEFORE, BEFORE), (BEFORE, BEFORE));
    let read = |of: &dyn Fn(&Counted) -> Counted| {
        let gpus = gpus.iter().zip(all).map(|(&gpu, counted)| (gpu, Ok(of_gpu(&of(counted)))));
        Reading { gpus: gpus.collect(), ..Reading::default() }
    };
    let begin = |counted: &Counted| Counted {
        nvlink: counted.nvlink.clone().and(before.nvlink.clone()),
        pcie: counted.pcie.clone().map(|(.., bits)| (BEFORE, BEFORE, bits)),
    };
    let end = |counted: &Counted| Counted {
        nvlink: counted.nvlink.clone().map(|(out, into)| (BEFORE + out, BEFORE + into)),
        pcie: counted.pcie.clone().map(|(out, into, bits)| (BEFORE + out, BEFORE + into, bits)),
    };
    let (before, after) = (read(&begin), read(&end));
    let nvlinked = NvLinked {
        pairs: pairs().filter(|(a, b)| joined && a < b).collect(),
        gpus: if joined { gpus } else { Vec::new() },
        c2c: Vec::new(),
    };
    Seen {
        ranks: vec![Rank(0)],
        before,
        after,
        between: Duration::from_secs(1),
        nvlinked,
        xids: Vec::new(),
    }
}

/// Path, verdict, and the ratio to two digits.
fn told(case: &Case, seen: Seen) -> (String, Verdict, String) {
    let found = path(case, MOVED, &[seen]).unwrap();
    let ratio = found.wire_bytes_per_payload_byte;
    let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    assert!(!found.reason.is_empty());
    (found.path.unwrap(), found.verdict, ratio)
}

fn assert_told(case: &Case, seen: Seen, expected: (&str, Verdict, &str)) {
    let (path, verdict, ratio) = told(case, seen);
    assert_eq!((path.as_str(), verdict, ratio.as_str()), expected);
}

use Verdict::{Contradicted, Proven, Unknown};

const OUT: (u64, u64) = (BYTES, 0);
const INTO: (u64, u64) = (0, BYTES);
const QUIET: (u64, u64) = (1000, 1000);

#[test]
fn what_nvlinks_carry_is_nvlink() {
    let both = [counted(OUT, QUIET), counted(INTO, QUIET)];
    assert_told(&p2p(), seen(true, &both), ("nvlink", Proven, "1.00"));
    // Counted with what packs it up.
    let packed = BYTES + BYTES / 4;
    let both = [counted((packed, 0), QUIET), counted((0, packed), QUIET)];
    assert_told(&p2p(), seen(true, &both), ("nvlink", Proven, "1.25"));
    // The counter of one end has hardly any of it: it may have begun anew.
    let one = [counted(OUT, QUIET), counted(QUIET, QUIET)];
    assert_told(&p2p(), seen(true, &one), ("nvlink", Unknown, "-"));
}

#[test]
fn what_nvlinks_should_carry_and_do_not_is_pcie() {
    let both = [counted(QUIET, OUT), counted(QUIET, INTO)];
    assert_told(&p2p(), seen(true, &both), ("pcie", Contradicted, "1.00"));
    let uncounted = both.map(|of| Counted { pcie: Err("not supported".to_owned()), ..of });
    assert_told(&p2p(), seen(true, &uncounted), ("nvlink", Unknown, "-"));
    // Counters that stand still have seen no other way.
    let still = [counted(QUIET, QUIET), counted(QUIET, QUIET)];
    assert_told(&p2p(), seen(true, &still), ("nvlink", Unknown, "-"));
    // Half here, half there.
    let half = (BYTES / 2, BYTES / 2);
    let both = [counted(half, half), counted(half, half)];
    assert_told(&p2p(), seen(true, &both), ("nvlink + pcie", Contradicted, "1.00"));
    let half = [counted((BYTES / 2, 0), QUIET), counted((0, BYTES / 2), QUIET)];
    assert_told(&p2p(), seen(true, &half), ("nvlink", Unknown, "-"));
}

#[test]
fn one_pair_of_many_that_goes_another_way_is_found() {
    let flows: Vec<(Endpoint, Endpoint)> = (0..4)
        .flat_map(|a| (0..4).filter(move |&b| a != b).map(move |b| (gpu(a), gpu(b))))
        .collect();
    let all_pairs = case(TransportKind::P2p, &flows);
    let well = counted((3 * BYTES, 3 * BYTES), QUIET);
    let all = || vec![well.clone(); 4];
    assert_told(&all_pairs, seen(true, &all()), ("nvlink", Proven, "1.00"));
    let mut one = all();
    one[0] = counted((2 * BYTES, 3 * BYTES), (BYTES, 0));
    one[1] = counted((3 * BYTES, 2 * BYTES), (0, BYTES));
    let (path, verdict, _) = told(&all_pairs, seen(true, &one));
    assert_eq!((path.as_str(), verdict), ("nvlink + pcie", Contradicted));
    one[0].pcie = Err("not supported".to_owned());
    one[1].pcie = Err("not supported".to_owned());
    let (path, verdict, _) = told(&all_pairs, seen(true, &one));
    assert_eq!((path.as_str(), verdict), ("nvlink", Unknown));
}

#[test]
fn without_nvlinks_it_is_pcie() {
    let none = |pcie| Counted { nvlink: Err("not supported".to_owned()), pcie };
    let both = [none(Ok((BYTES, 0, 64))), none(Ok((0, BYTES, 64)))];
    assert_told(&p2p(), seen(false, &both), ("pcie", Proven, "1.00"));
    let both = [none(Err("no".to_owned())), none(Err("no".to_owned()))];
    assert_told(&p2p(), seen(false, &both), ("pcie", Unknown, "-"));
    // 32 bits run over several times.
    let both = [none(Ok((5 * BYTES, 0, 32))), none(Ok((0, 5 * BYTES, 32)))];
    let many = Case { size: Bytes::new(5 * BYTES / OPERATIONS), ..p2p() };
    assert_told(&many, seen(false, &both), ("pcie", Unknown, "-"));
    let both = [none(Ok((BYTES / 8, 0, 64))), none(Ok((0, BYTES, 64)))];
    assert_told(&p2p(), seen(false, &both), ("pcie", Unknown, "-"));
    let both = [none(Ok((BYTES, 0, 64))), none(Ok((0, 4 * BYTES, 64)))];
    assert_told(&p2p(), seen(false, &both), ("pcie", Unknown, "-"));
}

#[test]
fn host_memory_is_behind_pcie() {
    let shm = case(TransportKind::Shm, &[(gpu(0), gpu(1))]);
    let both = [counted(QUIET, OUT), counted(QUIET, INTO)];
    assert_told(&shm, seen(true, &both), ("host-memory", Proven, "1.00"));
    let both = [counted(OUT, QUIET), counted(INTO, QUIET)];
    assert_told(&shm, seen(true, &both), ("nvlink", Contradicted, "1.00"));
    // What others move over NVLink is not the data, if PCIe has seen that.
    let both = [counted(OUT, OUT), counted(INTO, INTO)];
    assert_told(&shm, seen(true, &both), ("host-memory", Unknown, "-"));
    let busy = [counted((9 * BYTES, 0), QUIET), counted((0, 9 * BYTES), QUIET)];
    assert_told(&shm, seen(true, &busy), ("host-memory", Unknown, "-"));
    // Silence of NVLinks alone is no proof of PCIe.
    let silent = Counted { pcie: Err("no".to_owned()), ..counted(QUIET, QUIET) };
    let both = [silent.clone(), silent.clone()];
    assert_told(&shm, seen(true, &both), ("host-memory", Unknown, "-"));
    let alone = case(TransportKind::Local, &[(gpu(0), gpu(0))]);
    assert_told(&alone, seen(true, &[silent]), ("gpu-memory", Unknown, "-"));
    let up = case(TransportKind::Local, &[(gpu(0), host())]);
    assert_told(&up, seen(true, &[counted(QUIET, OUT)]), ("pcie", Proven, "1.00"));
    let mut grace = seen(true, &[counted(QUIET, QUIET)]);
    grace.nvlinked.c2c = vec![Gpu(0)];
    assert_told(&up, grace, ("nvlink-c2c", Unknown, "-"));
    let within = case(TransportKind::Local, &[(gpu(0), gpu(0))]);
    assert_told(&within, seen(true, &[counted(QUIET, QUIET)]), ("gpu-memory", Proven, "-"));
    assert_told(&within, seen(true, &[counted(OUT, QUIET)]), ("gpu-memory", Unknown, "-"));
    let mute = Counted { nvlink: Err("no".to_owned()), pcie: Err("no".to_owned()) };
    assert_told(&within, seen(false, &[mute]), ("gpu-memory", Unknown, "-"));
}

/// Why nothing is known.
fn doubt(case: &Case, moved: Moved, seen: Seen) -> String {
    let found = path(case, moved, &[seen]).unwrap();
    assert_eq!((found.verdict, found.wire_bytes_per_payload_byte), (Unknown, None));
    found.reason
}

#[test]
fn counters_that_do_not_count_prove_nothing() {
    let well = || [counted(OUT, QUIET), counted(INTO, QUIET)];
    let mut hidden = well();
    hidden[1].nvlink = Err("not supported".to_owned());
    let said = doubt(&p2p(), MOVED, seen(true, &hidden));
    assert_eq!(said, "GPU 1 does not tell what its NVLinks have carried (not supported)");
    let mut back = seen(true, &well());
    for reading in [&mut back.before, &mut back.after] {
        assert!(reading.gpus.contains_key(&Gpu(0)));
    }
    std::mem::swap(&mut back.before, &mut back.after);
    let said = doubt(&p2p(), MOVED, back);
    assert_eq!(said, "GPU 0 has a counter of NVLink 0 that went back");
    let mut lost = seen(true, &well());
    lost.after.gpus.insert(Gpu(0), Err("the GPU is lost".to_owned()));
    assert_eq!(doubt(&p2p(), MOVED, lost), "GPU 0 does not answer (the GPU is lost)");
    let mut gone = seen(true, &well());
    gone.after.gpus.remove(&Gpu(1));
    assert_eq!(doubt(&p2p(), MOVED, gone), "GPU 1 was not asked");
    let mut fewer = seen(true, &well());
    fewer.after.gpus.get_mut(&Gpu(0)).unwrap().as_mut().unwrap().nvlinks =
        Ok(vec![LinkBytes { number: 0, sent: u64::MAX, received: u64::MAX }]);
    assert_eq!(doubt(&p2p(), MOVED, fewer), "GPU 0 has other NVLinks than before");
    // Two links of a GPU that is gone read as all ones.
    let mut ones = seen(true, &well());
    let link = |number, sent| LinkBytes { number, sent, received: 0 };
    for (reading, sent) in [(&mut ones.before, 0), (&mut ones.after, u64::MAX)] {
        let of = reading.gpus.get_mut(&Gpu(0)).unwrap().as_mut().unwrap();
        of.nvlinks = Ok(vec![link(0, sent), link(1, sent)]);
    }
    assert!(doubt(&p2p(), MOVED, ones).contains("that of others"));
    let few = Moved { operations: 1, bytes: None };
    assert!(doubt(&p2p(), few, seen(true, &well())).starts_with("too few bytes"));
    let busy = [counted((3 * BYTES, 0), QUIET), counted(INTO, QUIET)];
    assert!(doubt(&p2p(), MOVED, seen(true, &busy)).contains("that of others"));
    let nobody = Seen::default();
    assert!(doubt(&p2p(), MOVED, nobody).starts_with("no GPU that was read"));
    let chase = Case { operation: Operation::Chase, ..p2p() };
    assert!(doubt(&chase, MOVED, seen(true, &well())).starts_with("single loads"));
}

/// A case of RDMA by this provider, between two ranks over this interface.
fn rdma(provider: &str, nic: &str) -> Case {
    let end = |rank| Endpoint { rank: Rank(rank), ..host() };
    let name = NicName {
        domain: format!("{nic}-rdm"),
        fabric: "any".to_owned(),
        device: Some(nic.to_owned()),
    };
    Case {
        operation: Operation::Write,
        engine: Engine::Nic,
        fabric: Some(Fabric {
            provider: provider.to_owned(),
            nics: [0, 1].map(|rank| (Rank(rank), vec![name.clone()])).to_vec(),
            window: 8,
            rails: 1,
            endpoints: 1,
            is_window_given: false,
            is_staged: false,
            is_one_host: false,
            meetings: Vec::new(),
        }),
        ..case(TransportKind::Rdma, &[(end(0), end(1))])
    }
}

/// A host of these ranks whose interfaces have carried so much out and in.
fn hosted(ranks: &[u32], interfaces: &[(&str, InterfaceKind, u64, u64)]) -> Seen {
    let read = |share: u64| Reading {
        gpus: BTreeMap::new(),
        shared_memory: Some(Bytes::mib(3)),
        interfaces: interfaces
            .iter()
            .map(|&(name, kind, sent, received)| {
                let interface =
                    Interface { kind, sent: 7 + share * sent, received: 7 + share * received };
                (name.to_owned(), interface)
            })
            .collect(),
    };
    let ranks = ranks.iter().copied().map(Rank).collect();
    Seen { ranks, before: read(0), after: read(1), ..Seen::default() }
}

fn of_network(case: &Case, seen: &[Seen]) -> (String, Verdict, String) {
    let found = path(case, MOVED, seen).unwrap();
    (found.path.unwrap(), found.verdict, found.reason)
}

#[test]
fn an_interface_proves_what_it_carried() {
    use InterfaceKind::{Efa, Ethernet, Loopback};
    let wire = BYTES + BYTES / 50;
    let lo = ("lo", Loopback, wire, wire);
    let quiet = ("eth0", Ethernet, 100, 100);
    let (path, verdict, reason) = of_network(&rdma("tcp", "lo"), &[hosted(&[0, 1], &[lo, quiet])]);
    assert_eq!((path.as_str(), verdict), ("loopback", Proven));
    assert_eq!(reason, "lo carried 1.02 bytes for each byte");
    // Another interface than asked.
    let (path, verdict, reason) =
        of_network(&rdma("tcp;ofi_rxm", "eth0"), &[hosted(&[0, 1], &[lo, quiet])]);
    assert_eq!((path.as_str(), verdict), ("loopback", Contradicted));
    assert_eq!(reason, "eth0 carried 0.00 bytes for each byte, and lo 1.02");
    // Between two hosts.
    let sends = hosted(&[0], &[("rdmap0s6", Efa, wire, 9)]);
    let hears = hosted(&[1], &[("rdmap0s6", Efa, 9, wire)]);
    let case = rdma("efa", "rdmap0s6");
    let (path, verdict, _) = of_network(&case, &[sends.clone(), hears]);
    assert_eq!((path.as_str(), verdict), ("efa", Proven));
    let deaf = hosted(&[1], &[("rdmap0s6", Efa, 9, 9)]);
    let (path, verdict, _) = of_network(&case, &[sends, deaf]);
    assert_eq!((path.as_str(), verdict), ("efa", Unknown));
    // Two ranks of one host, whose provider took the short way.
    let idle = hosted(&[0, 1], &[("rdmap0s6", Efa, 9, 9), quiet]);
    let (path, verdict, reason) = of_network(&case, &[idle]);
    assert_eq!((path.as_str(), verdict), ("efa", Unknown));
    assert!(reason.ends_with("where a provider may take memory that they share"), "{reason}");
    // Headers of small operations are as much as the data.
    let small = Case { size: Bytes::new(64), ..rdma("tcp", "lo") };
    let moved = Moved { operations: BYTES / 64, bytes: None };
    let found = super::path(&small, moved, &[hosted(&[0, 1], &[lo, quiet])]).unwrap();
    assert_eq!(found.verdict, Unknown);
}

#[test]
fn interfaces_that_others_use_or_that_do_not_count_prove_nothing() {
    use InterfaceKind::Loopback;
    let case = rdma("tcp", "lo");
    for (bytes, said) in [(3 * BYTES, "that of others too"), (BYTES / 2, "only a part of the data")]
    {
        let (_, verdict, reason) =
            of_network(&case, &[hosted(&[0, 1], &[("lo", Loopback, bytes, bytes)])]);
        assert_eq!(verdict, Unknown);
        assert!(reason.contains(said), "{reason}");
    }
    let (_, verdict, reason) = of_network(&case, &[hosted(&[0, 1], &[])]);
    assert_eq!(
        (verdict, reason.as_str()),
        (Unknown, "the kernel does not tell what lo has carried")
    );
    let mut back = hosted(&[0, 1], &[("lo", Loopback, BYTES, BYTES)]);
    std::mem::swap(&mut back.before, &mut back.after);
    let (_, verdict, reason) = of_network(&case, &[back.clone()]);
    assert_eq!((verdict, reason.as_str()), (Unknown, "a counter of lo went back"));
    back.after.interfaces.clear();
    assert_eq!(of_network(&case, &[back]).2, "lo does not count any more");
    // A ping-pong goes there and back.
    let there_and_back = hosted(&[0, 1], &[("lo", Loopback, 2 * BYTES, 2 * BYTES)]);
    let pong = Case { operation: Operation::PingPong, ..case };
    assert_eq!(of_network(&pong, &[there_and_back]).1, Proven);
}

#[test]
fn memory_that_is_shared_leaves_the_network_silent() {
    use InterfaceKind::Loopback;
    let copies = Case { engine: Engine::Cpu, ..case(TransportKind::Shm, &[(host(), host())]) };
    for case in [rdma("shm", "shm"), copies] {
        let host = |bytes| hosted(&[0, 1], &[("lo", Loopback, bytes, bytes)]);
        let of = |bytes| {
            let (path, verdict, _) = of_network(&case, &[host(bytes)]);
            (path, verdict)
        };
        assert_eq!(of(1000), ("host-memory".to_owned(), Proven));
        assert_eq!(of(BYTES), ("loopback".to_owned(), Contradicted));
        assert_eq!(of(BYTES / 3), ("host-memory".to_owned(), Unknown));
        assert_eq!(of_network(&case, &[hosted(&[0, 1], &[])]).1, Unknown);
    }
}
