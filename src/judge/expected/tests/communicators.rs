//! Communicators within one host, between hosts, of a pair and of several parts.

use super::{super::known::collective, *};
use crate::plan::{Collective, Nccl};

/// A machine, and the GPUs of it that take part, each with a rank of its own.
type Host<'a> = (&'a Machine, &'a [u32]);

/// What is expected among these GPUs of an all-reduce, or of what `change` makes of it.
fn among(
    hosts: &[Host<'_>],
    chosen: Chosen<'_>,
    change: impl Fn(&mut Case, &mut Nccl),
) -> Result<Expected, String> {
    let (mut ends, mut ranks) = (Vec::new(), Vec::new());
    for (_, gpus) in hosts {
        let first = ends.len();
        ends.extend(gpus.iter().enumerate().map(|(place, &gpu)| {
            let rank = Rank(u32::try_from(first + place).unwrap());
            Endpoint { rank, ..of_gpu(gpu) }
        }));
        ranks.push(ends[first..].iter().map(|end| end.rank).collect::<Vec<Rank>>());
    }
    let sites = hosts.iter().zip(&ranks);
    let sites: Vec<Site<'_>> = sites.map(|((machine, _), ranks)| Site { machine, ranks }).collect();
    let mut case = collective(ends);
    let mut nccl = case.nccl.unwrap();
    change(&mut case, &mut nccl);
    case.nccl = Some(nccl);
    expected(&case, &sites, chosen, Catalogue::built_in())
}

fn as_it_is(_: &mut Case, _: &mut Nccl) {}

const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const fn by(algorithm: &str) -> Chosen<'_> {
    Chosen { algorithm: Some(algorithm), protocol: None, transports: None, is_emulated: None }
}

const fn over(transports: &str) -> Chosen<'_> {
    Chosen { algorithm: None, protocol: None, transports: Some(transports), is_emulated: None }
}

/// p4d with so many of a GPU's NVLinks.
fn with_links(ordinal: usize, up: u32) -> Machine {
    let mut p4d = machine("p4d.24xlarge");
    p4d.gpus[ordinal].nvlinks.as_mut().unwrap().up = up;
    p4d
}

#[test]
fn between_hosts_a_ring_is_bound_by_the_network_and_a_tree_by_more() {
    let p4d = machine("p4d.24xlarge");
    let hosts: [Host<'_>; 2] = [(&p4d, &ALL), (&p4d, &ALL)];
    // The usual, the lowest and the highest share of 50 GB/s, and of 50 x 2 / 1 x 15 / 16.
    let (ring, tree) = ([41.5, 27.5, 50.0], [77.8, 51.56, 93.75]);
    for (chosen, band) in [
        (by("RING"), ring),
        (by("TREE"), tree),
        (by("RING+TREE"), [tree[0], ring[1], tree[2]]),
        (Chosen::default(), [tree[0], ring[1], tree[2]]),
    ] {
        let found = among(&hosts, chosen, as_it_is).unwrap();
        assert_band(&found, band, &format!("{:?}", chosen.algorithm));
    }
    let gather = |case: &mut Case, _: &mut Nccl| {
        case.operation = Operation::Collective(Collective::AllGather)
    };
    assert_band(&among(&hosts, Chosen::default(), gather).unwrap(), ring, "all_gather");
    let told = among(&hosts, by("COLLNET_DIRECT"), as_it_is).unwrap_err();
    assert!(told.contains("the network reduces"), "{told}");
    // What was chosen is judged, though switches could reduce.
    let p5 = machine("p5.48xlarge");
    let found = among(&[(&p5, &ALL), (&p5, &ALL)], by("RING"), as_it_is).unwrap();
    assert_near(found.gb_s, 0.83 * 400.0, &found.derivation);
    let found = among(&[(&p5, &ALL), (&p5, &ALL)], by("TREE"), as_it_is).unwrap();
    assert_near(found.gb_s, 0.78 * 450.0, &found.derivation);
    let found = among(&[(&p5, &ALL), (&p5, &ALL)], by("NVLS_TREE"), as_it_is).unwrap();
    assert_near(found.gb_s, 514.5, &found.derivation);
}

#[test]
fn nothing_is_expected_of_some_of_the_gpus_of_hosts() {
    let p5 = machine("p5.48xlarge");
    let told = among(&[(&p5, &[0]), (&p5, &[0])], by("RING"), as_it_is).unwrap_err();
    assert!(told.starts_with("1 of the 8 GPUs of a host take part"), "{told}");
    // A container with one GPU and all interfaces.
    let mut one = p5;
    one.gpus.truncate(1);
    one.gpus[0].host = Some(HostWay::Pcie {
        generation: 5,
        generation_now: None,
        lanes: 16,
        lanes_due: 16,
        lane_gb_s: Some(3.6),
    });
    let found = among(&[(&one, &[0]), (&one, &[0])], by("RING"), as_it_is).unwrap();
    assert_near(found.high, 57.6, &found.derivation);
}

#[test]
fn between_hosts_only_libfabric_is_held_against_efa() {
    let p4d = machine("p4d.24xlarge");
    let hosts: [Host<'_>; 2] = [(&p4d, &ALL), (&p4d, &ALL)];
    for told in ["P2P/CUMEM/read x24 + NET/Libfabric/0/GDRDMA x4", "NET/AWS Libfabric/1 x2"] {
        assert!(among(&hosts, over(told), as_it_is).is_ok(), "{told}");
    }
    for (told, reason) in [
        ("P2P/MNNVL x24", "no network between the hosts (P2P/MNNVL x24)"),
        ("P2P/CUMEM x24 + NET/Socket/0 x2", "by NET/Socket/0 x2"),
        ("NET/Libfabric/0 x2 + NET/IB/0 x2", "by NET/IB/0 x2"),
    ] {
        let found = among(&hosts, over(told), as_it_is).unwrap_err();
        assert!(found.contains(reason), "{told}: {found}");
    }
}

#[test]
fn only_those_that_have_a_part_bound_a_pair() {
    let p4d = with_links(5, 10);
    let pair = |pair: (u32, u32)| {
        move |case: &mut Case, nccl: &mut Nccl| {
            (case.operation, case.pattern) =
                (Operation::Collective(Collective::SendRecv), Pattern::OneWay);
            nccl.pair = Some(pair);
        }
    };
    let found = |of| among(&[(&p4d, &[0, 1, 5])], over("P2P/CUMEM x24"), pair(of)).unwrap();
    assert_eq!(found((0, 1)).lacks, [] as [String; 0]);
    assert_near(found((0, 1)).gb_s, 0.6 * 300.0, "0 to 1");
    assert_eq!(found((0, 2)).lacks, ["2 of the 12 NVLinks of GPU 5 are down"]);
    // The second host has a part in other pairs.
    let two: [Host<'_>; 2] = [(&p4d, &[0, 1]), (&p4d, &[0, 1])];
    let told = over("P2P/CUMEM x24 + NET/Libfabric/0 x2");
    assert_near(among(&two, told, pair((0, 1))).unwrap().gb_s, 0.6 * 300.0, "on one host");
    let told = among(&two, told, pair((1, 2))).unwrap_err();
    assert!(told.starts_with("of messages between hosts"), "{told}");
}

#[test]
fn the_slowest_of_several_communicators_bounds_all() {
    let by_two = |_: &mut Case, nccl: &mut Nccl| {
        (nccl.split, nccl.ranks) = (Some("MOD:2".parse().unwrap()), nccl.ranks / 2);
    };
    let p4d = with_links(5, 10);
    let found = among(&[(&p4d, &ALL)], by("RING"), by_two).unwrap();
    assert_near(found.gb_s, 0.78 * 250.0, &found.derivation);
    // Two communicators share each host's 50 GB/s; half of each host's GPUs are in one.
    let found = among(&[(&p4d, &ALL), (&p4d, &ALL)], by("RING"), by_two).unwrap();
    assert_near(found.gb_s, 0.83 * 25.0, &found.derivation);
    assert_eq!(found.lacks, [] as [String; 0]);
    // Each has two hosts for itself.
    let by_hosts = |_: &mut Case, nccl: &mut Nccl| {
        (nccl.split, nccl.ranks) = (Some("DIV:16".parse().unwrap()), nccl.ranks / 2);
    };
    let four: [Host<'_>; 4] = [(&p4d, &ALL); 4];
    let found = among(&four, by("RING"), by_hosts).unwrap();
    assert_near(found.gb_s, 0.83 * 50.0, &found.derivation);
}

#[test]
fn of_ranks_that_share_a_gpu_nothing_is_expected() {
    let p4d = machine("p4d.24xlarge");
    let told = among(&[(&p4d, &[0, 0, 0, 0])], Chosen::default(), as_it_is).unwrap_err();
    assert!(told.starts_with("ranks share a GPU: "), "{told}");
}

#[test]
fn a_gpu_that_is_cut_off_is_said_to_be_where_nccl_goes_another_way() {
    let host_memory = over("SHM/direct x4");
    let cut_off = with_links(2, 0);
    let found = among(&[(&cut_off, &[0, 1, 2, 3])], host_memory, as_it_is).unwrap();
    assert_eq!(found.lacks, ["12 of the 12 NVLinks of GPU 2 are down"]);
    let found = among(&[(&cut_off, &[0, 1, 2, 3])], over("P2P/CUMEM x4"), as_it_is).unwrap();
    assert!(found.derivation.starts_with("PCIe 3"), "{}", found.derivation);
    assert_eq!(found.lacks, ["12 of the 12 NVLinks of GPU 2 are down"]);
    // The others have links, and NCCL was told not to take them.
    let found = among(&[(&with_links(2, 10), &ALL)], host_memory, as_it_is).unwrap();
    assert_eq!(found.lacks, [] as [String; 0]);
    let mut untold = cut_off;
    (untold.gpus[2].nvlinks, untold.gpus[2].nvlinks_untold) = (None, true);
    let told = among(&[(&untold, &ALL)], over("P2P/CUMEM x4"), as_it_is).unwrap_err();
    assert_eq!(told, "NVML does not tell the NVLinks of GPU 2");
}
