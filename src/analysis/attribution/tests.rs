use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    plan::{
        self, Case, Endpoint, Engine, Flow, Issuer, Operation, Request, TransportKind,
        topology::{Domain, Topology, tests::gpus},
    },
    record::{Row, Status},
    units::Bytes,
};

/// Rows of all pairs of so many GPUs, at the rates that `gb_s` gives.
fn matrix(gpus: u32, gb_s: &mut dyn FnMut(u32, u32) -> f64) -> Vec<Row> {
    let pairs = (0..gpus).flat_map(|source| (0..gpus).map(move |target| (source, target)));
    let pairs = pairs.filter(|(source, target)| source != target);
    let row = |(source, target)| {
        let gb_s = gb_s(source, target);
        Row {
            transport: TransportKind::P2p,
            status: Status::Ok,
            flows: Some(1),
            operation: Some(Operation::Copy),
            source_gpu: Some(source),
            target_gpu: Some(target),
            source_rank: Some(0),
            target_rank: Some(0),
            size_bytes: Some(Bytes::mib(64)),
            bandwidth_gb_s: Some(gb_s),
            bandwidth_gb_s_low: Some(gb_s * 0.995),
            bandwidth_gb_s_high: Some(gb_s * 1.005),
            ..Row::default()
        }
    };
    pairs.map(row).collect()
}

fn alike(_: &Row) -> String {
    String::new()
}

fn said_of(rows: &[Row]) -> Vec<String> {
    told(&find(rows, BAR, &alike)).into_iter().map(|told| told.said).collect()
}

/// What is said of a matrix.
fn said(gpus: u32, gb_s: &mut dyn FnMut(u32, u32) -> f64) -> Vec<String> {
    said_of(&matrix(gpus, gb_s))
}

#[test]
fn a_slow_source_is_told_from_a_slow_target() {
    for gpus in [3, 4, 8, 16] {
        let slow = |is_slow: bool| if is_slow { 59.0 } else { 100.0 };
        let source = said(gpus, &mut |source, _| slow(source == 2));
        assert_eq!(
            source,
            ["GPU 2 is 41 % slower as a source to all, as a target normal"],
            "{gpus}"
        );
        let target = said(gpus, &mut |_, target| slow(target == 2));
        assert_eq!(
            target,
            ["GPU 2 is 41 % slower as a target of all, as a source normal"],
            "{gpus}"
        );
        let both = said(gpus, &mut |source, target| slow(source == 2 || target == 2));
        assert_eq!(both, ["GPU 2 is 41 % slower as a source and as a target"], "{gpus}");
    }
}

#[test]
fn a_gpu_with_flows_in_one_role_is_slow_in_that() {
    let mut rows = matrix(8, &mut |source, _| if source == 3 { 50.0 } else { 100.0 });
    // To host memory.
    rows.retain(|row| row.target_gpu == Some((row.source_gpu.unwrap() + 1) % 8));
    let rows: Vec<Row> = rows
        .into_iter()
        .flat_map(|row| [0, 1].map(|rank| Row { target_rank: Some(rank), ..row.clone() }))
        .map(|row| Row { target_gpu: None, ..row })
        .collect();
    assert_eq!(said_of(&rows), ["GPU 3 is 50 % slower as a source to all"]);
}

#[test]
fn a_gpu_that_is_slow_in_both_roles_is_normal_in_none() {
    let of = |operation: Operation, gb_s: &mut dyn FnMut(u32, u32) -> f64| {
        let rows = matrix(8, gb_s).into_iter();
        rows.map(|row| Row { operation: Some(operation), ..row }).collect::<Vec<Row>>()
    };
    let mut rows = of(Operation::Copy, &mut |from, _| if from == 3 { 50.0 } else { 100.0 });
    rows.extend(of(Operation::ReadOnly, &mut |from, to| {
        if from == 3 || to == 3 { 50.0 } else { 100.0 }
    }));
    let said = said_of(&rows);
    for way in ["a source to all", "a source and as a target"] {
        assert!(said.contains(&format!("GPU 3 is 50 % slower as {way}")), "{said:?}");
    }
}

#[test]
fn a_slow_pair_is_no_slow_gpu() {
    for gpus in [2, 4, 8] {
        let one =
            said(gpus, &mut |source, target| if (source, target) == (1, 0) { 50.0 } else { 100.0 });
        assert_eq!(one, ["GPU 1 -> GPU 0 is 50 % slower than other pairs"], "{gpus}");
    }
    let both = said(8, &mut |source, target| match (source, target) {
        (1, 5) | (5, 1) => 50.0,
        _ => 100.0,
    });
    assert_eq!(
        both,
        [
            "GPU 1 -> GPU 5 is 50 % slower than other pairs",
            "GPU 5 -> GPU 1 is 50 % slower than other pairs"
        ]
    );
}

#[test]
fn several_defects_are_told_apart() {
    let found = said(8, &mut |source, target| match (source, target) {
        (3, _) => 60.0,
        (_, 6) => 80.0,
        (0, 1) => 30.0,
        _ => 100.0,
    });
    assert_eq!(
        found,
        [
            "GPU 3 is 40 % slower as a source to all, as a target normal",
            "GPU 6 is 20 % slower as a target of all, as a source normal",
            "GPU 0 -> GPU 1 is 70 % slower than other pairs",
        ]
    );
}

#[test]
fn ways_of_different_kinds_are_not_compared() {
    let mut gb_s = |source: u32, target: u32| match (source / 4 == target / 4, source) {
        (_, 5) => 10.0,
        (true, _) => 26.0,
        (false, _) => 21.0,
    };
    let rows = matrix(8, &mut gb_s);
    let near = |row: &Row| (row.source_gpu < Some(4), row.target_gpu < Some(4));
    let class = |row: &Row| (near(row).0 == near(row).1).to_string();
    let found = find(&rows, BAR, &class);
    let [Outlier { suspect, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*suspect, Suspect::Part { role: Role::Source, name: "GPU 5".to_owned() });
}

#[test]
fn a_host_with_several_gpus_is_named_as_one() {
    let mut rows = matrix(8, &mut |source, target| match (source / 4, target / 4) {
        (1, _) => 20.0,
        _ => 48.0,
    });
    for row in &mut rows {
        let host = |gpu: Option<u32>| gpu.map(|gpu| format!("node-{}", gpu / 4));
        (row.source_host, row.target_host) = (host(row.source_gpu), host(row.target_gpu));
    }
    let found = find(&rows, BAR, &alike);
    let [Outlier { suspect, flows, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*suspect, Suspect::Part { role: Role::Source, name: "host node-1".to_owned() });
    assert_eq!(*flows, 28);
}

/// Noise alone is taken for a defect in at most 5 of 100 runs.
#[test]
fn noise_is_no_defect() {
    let mut random = StdRng::seed_from_u64(5);
    let noise = rand_distr::Normal::new(0.0, 0.04).unwrap();
    let mut alarms = 0;
    for _ in 0..400 {
        let rows = matrix(8, &mut |_, _| 100.0 * random.sample::<f64, _>(noise).exp());
        alarms += u32::from(!find(&rows, BAR, &alike).is_empty());
    }
    assert!(alarms <= 20, "{alarms}");
}

#[test]
fn a_planted_difference_is_found_under_noise() {
    let mut random = StdRng::seed_from_u64(6);
    let noise = rand_distr::Normal::new(0.0, 0.02).unwrap();
    let mut found = 0;
    for _ in 0..100 {
        let mut gb_s = |source: u32, _: u32| {
            let right = if source == 3 { 90.0 } else { 100.0 };
            right * random.sample::<f64, _>(noise).exp()
        };
        found += u32::from(said(8, &mut gb_s).iter().any(|line| line.starts_with("GPU 3 is")));
    }
    assert!(found >= 95, "{found}");
}

#[test]
fn what_is_no_single_flow_or_has_no_number_is_passed_over() {
    let mut rows = matrix(4, &mut |source, _| if source == 1 { 50.0 } else { 100.0 });
    for row in &mut rows {
        row.flows = Some(2);
    }
    assert_eq!(said_of(&rows), [""; 0]);
    assert_eq!(find(&matrix(2, &mut |_, _| 0.0), BAR, &alike), []);
    assert_eq!(find(&[], BAR, &alike), []);
}

#[test]
fn memory_that_is_reached_directly_is_not_held_against_staged() {
    let direct = matrix(4, &mut |_, _| 45.0);
    let path = |name: &str, rows: Vec<Row>| {
        let gpu_path = serde_json::from_value(name.into()).unwrap();
        rows.into_iter().map(move |row| Row { gpu_path, ..row })
    };
    let staged = matrix(4, &mut |_, _| 20.0).into_iter().take(1).collect();
    let rows = path("direct", direct).chain(path("staged", staged));
    assert_eq!(find(&rows.collect::<Vec<Row>>(), BAR, &alike), []);
}

/// The rows of a sample of the pairs of 18 hosts with four GPUs each in one NVLink domain, at the rates
/// that `gb_s` gives two GPUs, which are counted over all hosts, with noise of 0.5 %.
fn sampled(seed: u64, gb_s: &dyn Fn(u32, u32) -> f64) -> Vec<Row> {
    let hosts: Vec<Host> = (0..18).map(domain_host).collect();
    let request = Request {
        operations: vec![Operation::Copy],
        engines: vec![Engine::Ce],
        issuers: vec![Issuer::Read],
        seed,
        ..Request::of(&[TransportKind::P2p])
    };
    let cases = plan::cases_across_hosts(&request, &hosts).unwrap();
    assert!(cases.len() as f64 <= 0.12 * 72.0 * 71.0);
    let mut random = StdRng::seed_from_u64(!seed);
    let number = |end: Endpoint| 4 * end.rank.0 + end.gpu().unwrap().0;
    let row = |case: &Case| {
        let Flow { source, target } = case.flows[0];
        let noise = 1.0 + random.random_range(-0.005..0.005);
        let gb_s = gb_s(number(source), number(target)) * noise;
        Row {
            bandwidth_gb_s: Some(gb_s),
            bandwidth_gb_s_low: Some(gb_s * 0.995),
            bandwidth_gb_s_high: Some(gb_s * 1.005),
            status: Status::Ok,
            ..Row::planned(0, case)
        }
        .on(&hosts)
    };
    cases.iter().map(row).collect()
}

fn domain_host(number: u32) -> Host {
    let domain = Domain {
        cluster_uuid: "domain".to_owned(),
        clique: Some(0),
        imex_channels: [0].into(),
        lack: None,
    };
    let topology = Topology { gpus: gpus(4), domain: Some(domain), ..Topology::default() };
    Host { name: format!("host-{number}"), ranks: vec![Rank(number)], topology, ..Host::default() }
}

#[test]
fn a_sample_of_72_gpus_finds_what_is_slow_whatever_the_seed() {
    let count = |is_found: &dyn Fn(u64) -> bool| (0..100).filter(|seed| is_found(*seed)).count();
    let names = |seed: u64, gb_s: &dyn Fn(u32, u32) -> f64| -> Vec<String> {
        let hosts: Vec<Host> = (0..18).map(domain_host).collect();
        let found = find(&sampled(seed, gb_s), BAR, &|row| way(row, &hosts));
        let name = |outlier: Outlier| match outlier.suspect {
            Suspect::Part { role: Role::Either, name } => name,
            other => format!("{other:?}"),
        };
        found.into_iter().map(name).collect()
    };
    // A slow GPU, and one with half of its NVLinks.
    for share in [0.9, 0.5] {
        let found = count(&|seed| {
            let slow = (seed * 37 % 72) as u32;
            let gb_s = |source, target| if [source, target].contains(&slow) { share } else { 1.0 };
            names(seed, &gb_s) == [format!("GPU {} of host-{}", slow % 4, slow / 4)]
        });
        assert!(found >= 99, "{share}: found with {found} of 100 seeds");
    }
    let found = count(&|seed| {
        let slow = (seed % 18) as u32;
        let gb_s = |source, target| {
            let is_slow = source / 4 != target / 4 && [source / 4, target / 4].contains(&slow);
            if is_slow { 0.9 } else { 1.0 }
        };
        names(seed, &gb_s) == [format!("host host-{slow}")]
    });
    assert!(found >= 99, "a host: found with {found} of 100 seeds");
    let found = count(&|seed| !names(seed, &|_, _| 1.0).is_empty());
    assert!(found <= 5, "something is found with {found} of 100 seeds where nothing is");
}
