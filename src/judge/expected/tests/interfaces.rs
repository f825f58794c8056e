//! RDMA: interfaces and PCIe links that flows share.

use super::*;
use crate::plan::{Fabric, NicName};

/// Flows between ranks of two hosts; rank n of each host of p4d has GPU n and the interface that
/// `nic` gives it.
fn writes(
    machines: [&Machine; 2],
    flows: &[(u32, u32)],
    nic: &dyn Fn(u32) -> u32,
    chosen: Chosen<'_>,
) -> Expected {
    let ranks = [0, 8].map(|first| (first..first + 8).map(Rank).collect::<Vec<Rank>>());
    let [one, two] = machines;
    let sites = [Site { machine: one, ranks: &ranks[0] }, Site { machine: two, ranks: &ranks[1] }];
    let end = |rank: u32| Endpoint { rank: Rank(rank), ..of_gpu(rank % 8) };
    let name = |rank: u32| NicName {
        domain: format!("efa{}", nic(rank % 8)),
        fabric: "efa".to_owned(),
        device: None,
    };
    let fabric = Fabric {
        provider: "efa".to_owned(),
        nics: (0..16).map(|rank| (Rank(rank), vec![name(rank)])).collect(),
        window: 64,
        rails: 1,
        endpoints: 1,
        is_window_given: false,
        is_staged: false,
        is_one_host: false,
        meetings: Vec::new(),
    };
    let ends: Vec<(Endpoint, Endpoint)> =
        flows.iter().map(|&(source, target)| (end(source), end(target))).collect();
    let case = Case {
        operation: Operation::Write,
        fabric: Some(fabric),
        ..copy(TransportKind::Rdma, Engine::Nic, &ends)
    };
    expected(&case, &sites, chosen, Catalogue::built_in()).unwrap()
}

#[test]
fn ranks_with_one_interface_share_it_in_each_direction() {
    let p4d = machine("p4d.24xlarge");
    let found = |flows: &[(u32, u32)], nic: &dyn Fn(u32) -> u32| {
        writes([&p4d, &p4d], flows, nic, Chosen::default())
    };
    let of_pairs = |rank: u32| rank / 2;
    assert_near(found(&[(0, 8)], &of_pairs).gb_s, 0.95 * 12.5, "one flow");
    assert_near(found(&[(0, 8), (2, 10)], &of_pairs).gb_s, 0.95 * 12.5, "two interfaces");
    let shared = found(&[(0, 8), (1, 9)], &of_pairs);
    assert_near(shared.gb_s, 0.95 * 6.25, "one interface");
    assert!(shared.derivation.contains("/ 2 flows"), "{}", shared.derivation);
    assert_near(found(&[(0, 8), (9, 1)], &of_pairs).gb_s, 0.95 * 12.5, "one in, one out");
    // By names alone the hosts' interfaces are the same.
    assert_near(found(&[(0, 8), (9, 0)], &|_| 0).gb_s, 0.95 * 12.5, "one in, one out");
}

#[test]
fn flows_of_one_gpu_share_its_pcie_link() {
    let mut p4d = machine("p4d.24xlarge");
    for nic in &mut p4d.nics {
        nic.gb_s = Some(100.0);
    }
    let raw = 16.0 * 0.9846 * 256.0 / 280.0;
    let found = writes([&p4d, &p4d], &[(0, 8), (0, 9)], &|rank| rank, Chosen::default());
    assert_near(found.gb_s, 0.95 * raw / 2.0, &found.derivation);
}

#[test]
fn lanes_that_slow_nothing_are_not_lacked() {
    let mut narrow = machine("p4d.24xlarge");
    if let Some(HostWay::Pcie { lanes, lane_gb_s, .. }) = &mut narrow.gpus[0].host {
        (*lanes, *lane_gb_s) = (8, Some(3.6));
    }
    let found =
        |machine: &Machine| writes([machine, machine], &[(0, 8)], &|rank| rank, Chosen::default());
    assert_near(found(&narrow).gb_s, 0.95 * 12.5, "the interface");
    assert_eq!(found(&narrow).lacks, [] as [String; 0]);
    if let Some(HostWay::Pcie { lanes, .. }) = &mut narrow.gpus[0].host {
        *lanes = 2;
    }
    assert_eq!(found(&narrow).lacks, ["GPU 0 has 2 of 16 PCIe lanes"]);
}

#[test]
fn writes_that_are_emulated_are_messages() {
    let p4d = machine("p4d.24xlarge");
    for (is_emulated, share) in [(None, 0.95), (Some(false), 0.95), (Some(true), 0.9)] {
        let chosen = Chosen { is_emulated, ..Chosen::default() };
        let found = writes([&p4d, &p4d], &[(0, 8)], &|rank| rank, chosen);
        assert_near(found.gb_s, share * 12.5, &format!("{is_emulated:?}"));
    }
}
