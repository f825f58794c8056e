use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Normal};

use super::*;
use crate::{
    plan::{
        Collective, Engine, Issuer, Operation, Rank,
        topology::{self, Topology},
    },
    units::Bytes,
};

/// What is said of a healthy machine, among so many that are.
const SEEDS: u64 = 100;

/// Samples vary by 1 %, and the median of a row's 20 by so much.
const NOISE: f64 = 0.01 * 1.2533 / 4.472;

/// A host with so many GPUs, with one rank.
fn host(number: u32, gpus: u32) -> Host {
    Host {
        name: format!("host{number}"),
        ranks: vec![Rank(number)],
        topology: Topology { gpus: topology::tests::gpus(gpus), ..Topology::default() },
        ..Host::default()
    }
}

/// The rows of a check of each host with 8 GPUs; `slow` is the share of its rate that a row loses.
fn rows(hosts: &[Host], seed: u64, slow: &dyn Fn(&Row) -> f64) -> Vec<(Row, usize)> {
    let mut random = StdRng::seed_from_u64(seed);
    let noise = Normal::new(1.0, NOISE).unwrap();
    let mut all = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let gpus = u32::try_from(host.topology.gpus.len()).unwrap();
        let rank = Some(host.ranks[0].0);
        let name = Some(host.name.clone());
        let row = |transport, engine, gb_s| Row {
            transport,
            status: Status::Ok,
            flows: Some(1),
            operation: Some(Operation::Copy),
            engine: Some(engine),
            size_bytes: Some(Bytes::mib(64)),
            bandwidth_gb_s: Some(gb_s),
            source_rank: rank,
            target_rank: rank,
            source_host: name.clone().filter(|_| hosts.len() > 1),
            target_host: name.clone().filter(|_| hosts.len() > 1),
            ..Row::default()
        };
        let local = |gpu| {
            let both = |engine, gb_s| row(TransportKind::Local, engine, gb_s);
            [
                Row { source_gpu: Some(gpu), target_gpu: Some(gpu), ..both(Engine::Ce, 1200.0) },
                Row { target_gpu: Some(gpu), ..both(Engine::Ce, 52.0) },
                Row { source_gpu: Some(gpu), ..both(Engine::Ce, 52.5) },
            ]
        };
        let mut own: Vec<Row> = (0..gpus).flat_map(local).collect();
        for (source, target) in (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))) {
            for (issuer, gb_s) in [(Issuer::Write, 389.0), (Issuer::Read, 361.0)] {
                let ends = (Some(source), Some(target));
                let issuer = Some(issuer);
                if source != target {
                    let row = row(TransportKind::P2p, Engine::Ce, gb_s);
                    own.push(Row { source_gpu: ends.0, target_gpu: ends.1, issuer, ..row });
                }
            }
        }
        for of in [Collective::AllReduce, Collective::AllToAll] {
            own.push(Row {
                flows: None,
                operation: Some(Operation::Collective(of)),
                verdict: Some(RowVerdict::Expected),
                bandwidth_gb_s_bus: Some(430.0),
                engine: None,
                ..row(TransportKind::Nccl, Engine::Sm, 245.0)
            });
        }
        all.extend(own.into_iter().map(|row| (row, number)));
    }
    for (case, (row, _)) in (1..).zip(&mut all) {
        row.case = case;
        let factor = noise.sample(&mut random) * (1.0 - slow(row));
        let gb_s = row.bandwidth_gb_s.unwrap() * factor;
        row.bandwidth_gb_s = Some(gb_s);
        row.bandwidth_gb_s_low = Some(gb_s * (1.0 - 1.96 * NOISE));
        row.bandwidth_gb_s_high = Some(gb_s * (1.0 + 1.96 * NOISE));
        row.bandwidth_gb_s_bus = row.bandwidth_gb_s_bus.map(|bus| bus * factor);
    }
    all
}

/// The verdicts without what goes between hosts, which has tests of its own.
fn judged(rows: &[(Row, usize)], problems: &[Problem], hosts: &[Host]) -> Vec<HostFitness> {
    let seen = |(row, host): &(Row, usize)| {
        // The rows outlive what is made of them.
        Seen {
            row: Box::leak(Box::new(row.clone())),
            host: Some(*host),
            is_optional: false,
            is_replaced: false,
        }
    };
    let mut all =
        judge(&rows.iter().map(seen).collect::<Vec<_>>(), &Baseline::default(), problems, hosts);
    for host in &mut all {
        host.reasons.retain(|reason| reason.stage != Stage::Pairs);
        host.verdict = host.reasons.first().map_or(Fitness::Fit, |worst| worst.verdict);
    }
    all.sort_by_key(|host| host.verdict);
    all
}

/// How many of the seeds say that host 0 is unfit, with all of `words` in a reason.
fn found(words: &[&str], hosts: &[Host], slow: &dyn Fn(&Row) -> f64) -> u64 {
    let is_found = |seed: &u64| {
        let all = judged(&rows(hosts, *seed, slow), &[], hosts);
        let mut others = all.iter().filter(|host| host.host != hosts[0].name);
        assert!(others.all(|host| host.verdict == Fitness::Fit), "seed {seed}: {all:?}");
        let own = all.iter().find(|host| host.host == hosts[0].name).unwrap();
        own.reasons.iter().any(|reason| {
            reason.verdict == Fitness::Unfit && words.iter().all(|word| reason.said.contains(word))
        })
    };
    (0..100).filter(is_found).count() as u64
}

#[test]
fn healthy_hosts_are_fit() {
    are_fit(SEEDS);
}

fn are_fit(seeds: u64) {
    for count in [1, 4] {
        let hosts: Vec<Host> = (0..count).map(|number| host(number, 8)).collect();
        for seed in 0..seeds / u64::from(count) {
            let all = judged(&rows(&hosts, seed, &|_| 0.0), &[], &hosts);
            assert!(all.iter().all(|host| host.verdict == Fitness::Fit), "seed {seed}: {all:?}");
        }
    }
}

#[test]
fn a_slow_part_is_found_and_named_and_no_other_host_is_blamed() {
    let of_gpu = |gpu: Option<u32>| gpu == Some(3);
    let is_first = |row: &Row| row.source_rank == Some(0);
    // The name of one host may be the end of another's.
    let longer = || Host { name: "a-host1".to_owned(), ..host(0, 8) };
    for hosts in [vec![host(0, 8)], vec![longer(), host(1, 8), host(2, 8)]] {
        let source = |share: f64| {
            move |row: &Row| {
                let is_it = row.transport == TransportKind::P2p && of_gpu(row.source_gpu);
                if is_it && is_first(row) { share } else { 0.0 }
            }
        };
        assert!(found(&["GPU 3", "source"], &hosts, &source(0.1)) >= 99);
        assert!(found(&["GPU 3", "source"], &hosts, &source(0.05)) >= 90);
        let memory = |share: f64| {
            move |row: &Row| {
                let is_it = row.transport == TransportKind::Local
                    && of_gpu(row.source_gpu)
                    && of_gpu(row.target_gpu);
                if is_it && is_first(row) { share } else { 0.0 }
            }
        };
        assert!(found(&["within GPU 3"], &hosts, &memory(0.1)) >= 99);
        assert!(found(&["within GPU 3"], &hosts, &memory(0.05)) >= 90);
        let one_flow = |row: &Row| {
            let is_it = (row.source_gpu, row.target_gpu) == (Some(2), Some(5));
            if is_it && is_first(row) { 0.1 } else { 0.0 }
        };
        assert!(found(&["GPU 2", "GPU 5"], &hosts, &one_flow) >= 99);
    }
}

#[test]
fn what_is_corrupt_failed_flagged_or_a_problem_makes_its_host_unfit() {
    let hosts = [host(0, 8), host(1, 8)];
    let spoil = |change: &dyn Fn(&mut Row)| {
        let mut rows = rows(&hosts, 1, &|_| 0.0);
        let row =
            rows.iter_mut().find(|(row, host)| *host == 1 && row.transport == TransportKind::P2p);
        change(&mut row.unwrap().0);
        judged(&rows, &[], &hosts)
    };
    type Change<'a> = &'a dyn Fn(&mut Row);
    let cases: [(&str, Change<'_>); 5] = [
        ("is corrupt", &|row| row.status = Status::Corrupt),
        ("failed", &|row| row.status = Status::Failed),
        ("is flagged xid", &|row| row.flags = "short_samples xid".to_owned()),
        ("is below what is expected", &|row| row.verdict = Some(RowVerdict::Below)),
        ("took another path than it should", &|row| {
            row.path_verdict = Some(PathVerdict::Contradicted);
        }),
    ];
    for (said, change) in cases {
        let all = spoil(change);
        let verdicts: Vec<(&str, Fitness)> =
            all.iter().map(|host| (host.host.as_str(), host.verdict)).collect();
        assert_eq!(verdicts, [("host1", Fitness::Unfit), ("host0", Fitness::Fit)], "{said}");
        let [reason] = &all[0].reasons[..] else { panic!("{said}: {all:?}") };
        assert!(reason.said.ends_with(said), "{}", reason.said);
    }
    let said = "fabric-manager: none".into();
    let problem = Problem { stage: Stage::Doctor, ranks: vec![0], said, shown: "".into() };
    let all = judged(&rows(&hosts, 1, &|_| 0.0), &[problem], &hosts);
    assert_eq!(all[0].host, "host0");
    assert_eq!(all[0].reasons[0].said, "fabric-manager: none");
    assert_eq!(all[1].verdict, Fitness::Fit);
}

#[test]
fn a_row_that_is_slow_once_is_measured_again_and_then_counts_no_more() {
    let hosts = [host(0, 8)];
    let rows: Vec<Row> = rows(&hosts, 1, &|_| 0.0).into_iter().map(|(row, _)| row).collect();
    let verdict = |rows: &[Row], is_replaced: &dyn Fn(&Row) -> bool| {
        let seen =
            |row| Seen { row, host: Some(0), is_optional: false, is_replaced: is_replaced(row) };
        let seen: Vec<Seen<'_>> = rows.iter().map(seen).collect();
        let doubtful: Vec<usize> =
            doubtful(&seen, &Baseline::default(), &hosts).into_iter().collect();
        (doubtful, judge(&seen, &Baseline::default(), &[], &hosts)[0].verdict)
    };
    let first = rows.iter().position(|row| row.transport == TransportKind::P2p).unwrap();
    let mut once = rows.clone();
    once[first].bandwidth_gb_s = Some(once[first].bandwidth_gb_s.unwrap() / 2.0);
    once[first].verdict = Some(RowVerdict::Below);
    once[0].verdict = Some(RowVerdict::Above);
    let case = once[first].case;
    assert_eq!(verdict(&once, &|_| false), (vec![1, case], Fitness::Unfit));

    let number = rows.len() + 1;
    let again = [(0, number), (first, number + 1)].map(|(place, case)| Row {
        case,
        flags: "measured_again".to_owned(),
        ..rows[place].clone()
    });
    let is_first = |row: &Row| [1, case].contains(&row.case);
    let mut both = [&once[..], &again].concat();
    assert_eq!(verdict(&both, &is_first), (vec![], Fitness::Fit));
    // As a baseline it has the second rate, whatever a burn-in has added.
    let drifted = Row { flags: "drifted".to_owned(), ..once[first].clone() };
    let baseline = Baseline::of(&[&both[..], &[drifted]].concat());
    assert_eq!(baseline.rate(&once[first]), rows[first].bandwidth_gb_s);
    // What is wrong with it and no matter of its rate still counts.
    both[first].flags = "throttled".to_owned();
    assert_eq!(verdict(&both, &is_first), (vec![], Fitness::Unfit));
    both[first].flags.clear();
    // So does the second measurement.
    both[number].bandwidth_gb_s = once[first].bandwidth_gb_s;
    assert_eq!(verdict(&both, &is_first), (vec![number + 1], Fitness::Unfit));
}

#[test]
fn what_is_not_measured_or_not_judged_is_unknown() {
    let alone = [host(0, 8)];
    let mut left_out = rows(&alone, 1, &|_| 0.0);
    left_out.retain(|(row, _)| row.transport != TransportKind::Nccl);
    let all = judged(&left_out, &[], &alone);
    assert_eq!(all[0].verdict, Fitness::Unknown);
    assert_eq!((all[0].reasons[0].stage, all[0].reasons.len()), (Stage::Nccl, 1));

    // Nothing says what its collectives should reach.
    let mut untold = rows(&alone, 1, &|_| 0.0);
    untold.iter_mut().for_each(|(row, _)| row.verdict = None);
    let all = judged(&untold, &[], &alone);
    assert_eq!(all[0].verdict, Fitness::Unknown);
    assert!(all[0].reasons[0].said.contains("has nothing to be judged by"), "{all:?}");

    // More than can be is no number to rely on.
    let mut above = rows(&alone, 1, &|_| 0.0);
    above[4].0.verdict = Some(RowVerdict::Above);
    let all = judged(&above, &[], &alone);
    assert_eq!(all[0].verdict, Fitness::Unknown);
    assert!(all[0].reasons[0].said.ends_with("is above what can be"), "{all:?}");

    // Nor is one of which only its siblings say that, and it makes none of them slow.
    for gpus in [3, 8] {
        let hosts = [host(0, gpus)];
        let mut wild = rows(&hosts, 1, &|_| 0.0);
        wild[0].0.bandwidth_gb_s = Some(1e6);
        let all = judged(&wild, &[], &hosts);
        assert_eq!((all[0].verdict, all[0].reasons.len()), (Fitness::Unknown, 1), "{all:?}");
        assert!(all[0].reasons[0].said.ends_with("twice as fast as its siblings"), "{all:?}");
    }

    // One GPU has no pairs and no collectives, and no siblings either.
    let lone = [host(0, 1)];
    let mut few = rows(&lone, 1, &|_| 0.0);
    few.retain(|(row, _)| row.transport == TransportKind::Local);
    assert_eq!(judged(&few, &[], &lone)[0].verdict, Fitness::Unknown);
    few.iter_mut().for_each(|(row, _)| row.verdict = Some(RowVerdict::Expected));
    assert_eq!(judged(&few, &[], &lone)[0].verdict, Fitness::Fit);

    // What one host lacks is nothing to another.
    let two = [host(0, 8), host(1, 8)];
    let mut without = rows(&two, 1, &|_| 0.0);
    let is_lost = |(row, host): &(Row, usize)| *host == 1 && row.transport == TransportKind::Nccl;
    without.iter_mut().filter(|row| is_lost(row)).for_each(|(row, _)| row.status = Status::Skipped);
    let all = judged(&without, &[], &two);
    assert_eq!((&*all[0].host, all[0].verdict), ("host1", Fitness::Unknown));
    assert_eq!((&*all[1].host, all[1].verdict), ("host0", Fitness::Fit));

    let bare = [host(0, 0)];
    let all = judged(&[], &[], &bare);
    assert_eq!(all[0].verdict, Fitness::Unknown);
    assert_eq!(all[0].reasons[0].said, "no GPU is here to be judged");
    // Its driver may have lost them.
    let said = "fabric-manager: no GPU can be used".into();
    let problem = Problem { stage: Stage::Doctor, ranks: vec![0], said, shown: "".into() };
    assert_eq!(judged(&[], &[problem], &bare)[0].verdict, Fitness::Unfit);
}

/// What is planted between hosts.
#[derive(Clone, Copy, Debug)]
enum Planted {
    /// All that comes from a GPU, or goes to it.
    End { host: usize, gpu: u32, is_source: bool },
    /// All that a host does with others.
    Host(usize),
    /// Two hosts, with each other only.
    Pair(usize, usize),
    /// All that goes over the interfaces of one place.
    Rail(u32),
}

impl Planted {
    fn slows(self, from: usize, to: usize, gpu: u32) -> bool {
        match self {
            Self::End { host, gpu: slow, is_source } => {
                gpu == slow && host == if is_source { from } else { to }
            }
            Self::Host(host) => host == from || host == to,
            Self::Pair(a, b) => [(a, b), (b, a)].contains(&(from, to)),
            Self::Rail(slow) => gpu == slow,
        }
    }
}

const RAILS: u32 = 2;

/// Between hosts samples vary by 3 %.
const NOISE_BETWEEN: f64 = 0.03 * 1.2533 / 4.472;

/// The rows of the rounds between so many hosts, with a rank for each GPU.
fn between_rows(hosts: &[Host], seed: u64, planted: &[Planted], share: f64) -> Vec<Row> {
    let mut random = StdRng::seed_from_u64(seed);
    let noise = Normal::new(1.0, NOISE_BETWEEN).unwrap();
    let mut rows = Vec::new();
    for [a, b] in crate::plan::rounds(hosts.len()).into_iter().flatten() {
        for (operation, [from, to]) in [Operation::Write, Operation::Read]
            .into_iter()
            .flat_map(|of| [(of, [a, b]), (of, [b, a])])
        {
            for gpu in 0..RAILS {
                let is_slow = planted.iter().any(|planted| planted.slows(from, to, gpu));
                let gb_s =
                    47.0 * noise.sample(&mut random) * if is_slow { 1.0 - share } else { 1.0 };
                let rank = |host: usize| Some(hosts[host].ranks[gpu as usize].0);
                rows.push(Row {
                    case: rows.len() + 1,
                    transport: TransportKind::Rdma,
                    status: Status::Ok,
                    flows: Some(1),
                    operation: Some(operation),
                    size_bytes: Some(Bytes::mib(8)),
                    bandwidth_gb_s: Some(gb_s),
                    bandwidth_gb_s_low: Some(gb_s * (1.0 - NORMAL_95 * NOISE_BETWEEN)),
                    bandwidth_gb_s_high: Some(gb_s * (1.0 + NORMAL_95 * NOISE_BETWEEN)),
                    source_rank: rank(from),
                    target_rank: rank(to),
                    source_gpu: Some(gpu),
                    target_gpu: Some(gpu),
                    source_nic: Some(format!("rdmap{gpu}s0")),
                    target_nic: Some(format!("rdmap{gpu}s0")),
                    source_host: Some(hosts[from].name.clone()),
                    target_host: Some(hosts[to].name.clone()),
                    ..Row::default()
                });
            }
        }
    }
    rows
}

/// Hosts with a rank for each GPU, as many as there are rails.
fn cluster(count: usize) -> Vec<Host> {
    let with_ranks = |number: u32| Host {
        ranks: (0..RAILS).map(|gpu| Rank(number * RAILS + gpu)).collect(),
        ..host(number, RAILS)
    };
    (0..u32::try_from(count).unwrap()).map(with_ranks).collect()
}

/// What is said of the pairs of hosts: by host, the verdict and the reasons.
fn of_pairs(hosts: &[Host], rows: &[Row]) -> BTreeMap<usize, Vec<Reason>> {
    let seen = |row| Seen { row, host: None, is_optional: false, is_replaced: false };
    let seen: Vec<Seen<'_>> = rows.iter().map(seen).collect();
    between::reasons(
        &seen,
        &low_rows(&seen, &Baseline::default(), hosts),
        &Places::of(hosts),
        hosts,
    )
}

#[test]
fn hosts_that_are_well_with_each_other_are_not_blamed() {
    are_not_blamed(30);
}

fn are_not_blamed(seeds: u64) {
    for count in [2, 3, 4, 7, 8, 64] {
        let hosts = cluster(count);
        for seed in 0..if count > 8 { seeds / 10 } else { seeds } {
            let mut rows = between_rows(&hosts, seed, &[], 0.0);
            // Rows that are slow by chance come again, as in a check.
            let seen = |row| Seen { row, host: None, is_optional: false, is_replaced: false };
            let seen: Vec<Seen<'_>> = rows.iter().map(seen).collect();
            let again = doubtful(&seen, &Baseline::default(), &hosts);
            drop(seen);
            let second = between_rows(&hosts, seeds + seed, &[], 0.0);
            again.iter().for_each(|case| rows[case - 1] = second[case - 1].clone());
            let told = of_pairs(&hosts, &rows);
            assert!(told.is_empty(), "{count} hosts, seed {seed}: {told:?}");
        }
    }
}

#[test]
fn up_to_three_defects_among_hosts_are_found() {
    are_found(&[4, 5, 8, 13, 32]);
}

fn are_found(counts: &[usize]) {
    let (source, target) = (true, false);
    for &count in counts {
        let hosts = cluster(count);
        let pair = crate::plan::rounds(count)[1][0];
        let far = count - 1;
        let end = |host, gpu, is_source| Planted::End { host, gpu, is_source };
        for planted in [
            vec![end(far, 1, source)],
            vec![end(1, 0, target)],
            vec![Planted::Host(2)],
            vec![end(1, 0, target), end(far, 1, source)],
            vec![end(1, 0, target), end(1, 1, target), end(1, 1, source)],
            vec![Planted::Host(far), end(1, 0, source)],
            vec![Planted::Pair(pair[0], pair[1])],
            vec![Planted::Rail(1)],
            vec![Planted::Rail(1), end(1, 0, target)],
        ] {
            let told = of_pairs(&hosts, &between_rows(&hosts, count as u64, &planted, 0.4));
            let with = |verdict: Fitness| -> BTreeSet<usize> {
                let has_it = |(_, reasons): &(&usize, &Vec<Reason>)| {
                    reasons.iter().any(|reason| reason.verdict == verdict)
                };
                told.iter().filter(has_it).map(|(host, _)| *host).collect()
            };
            let (mut unfit, mut suspect) = (BTreeSet::new(), BTreeSet::new());
            for planted in &planted {
                match *planted {
                    Planted::End { host, gpu, is_source } => {
                        unfit.insert(host);
                        let role = if is_source { "a source" } else { "a target" };
                        let part = format!("GPU {gpu}, interface rdmap{gpu}s0 as {role}: ");
                        let is_named = |reason: &Reason| reason.said.starts_with(&part);
                        assert!(told[&host].iter().any(is_named), "{count}: {part} {told:?}");
                    }
                    Planted::Host(host) => _ = unfit.insert(host),
                    Planted::Pair(a, b) => suspect.extend([a, b]),
                    Planted::Rail(gpu) => {
                        suspect.extend(0..count);
                        let rail = format!("the rail of rdmap{gpu}s0 in {count} hosts: ");
                        let is_named = |reason: &Reason| {
                            reason.verdict == Fitness::Unfit || reason.said.starts_with(&rail)
                        };
                        let all = told.values().flatten().collect::<Vec<_>>();
                        assert!(all.iter().all(|reason| is_named(reason)), "{count}: {told:?}");
                    }
                }
            }
            assert_eq!(with(Fitness::Unfit), unfit, "{count} hosts, {planted:?}");
            // A defect that meets another one may leave a doubt, on those two hosts only.
            let doubted = with(Fitness::Suspect);
            assert!(doubted.is_subset(&(&suspect | &unfit)), "{count}, {planted:?}: {doubted:?}");
            assert!(suspect.is_subset(&doubted), "{count}, {planted:?}: {doubted:?}");
        }
    }
}

#[test]
fn a_defect_of_a_tenth_between_hosts_is_found_and_of_two_hosts_neither_is_blamed_alone() {
    let hosts = cluster(8);
    let planted = [Planted::End { host: 5, gpu: 1, is_source: false }];
    let is_found = |seed: &u64| {
        let told = of_pairs(&hosts, &between_rows(&hosts, *seed, &planted, 0.1));
        let unfit =
            |reasons: &&Vec<Reason>| reasons.iter().any(|reason| reason.verdict == Fitness::Unfit);
        assert!(told.keys().all(|host| *host == 5), "seed {seed}: {told:?}");
        told.get(&5).filter(unfit).is_some()
    };
    assert!((0..100).filter(is_found).count() >= 99);

    // Of three each has two partners.
    let hosts = cluster(3);
    let told = of_pairs(&hosts, &between_rows(&hosts, 1, &[planted_of_two()], 0.4));
    assert_eq!(told.keys().copied().collect::<Vec<_>>(), [1]);
    assert!(told[&1].iter().all(|reason| reason.verdict == Fitness::Unfit), "{told:?}");

    let hosts = cluster(2);
    let told = of_pairs(&hosts, &between_rows(&hosts, 1, &[planted_of_two()], 0.4));
    assert_eq!(told.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert!(told.values().flatten().all(|reason| reason.verdict == Fitness::Suspect), "{told:?}");
}

const fn planted_of_two() -> Planted {
    Planted::End { host: 1, gpu: 1, is_source: false }
}

mod long {
    use super::*;

    #[test]
    #[ignore = "takes minutes where it is emulated"]
    fn of_a_thousand_healthy_machines_none_is_unfit_and_of_a_thousand_hosts_three_are_found() {
        are_fit(1000);
        are_not_blamed(1000);
        are_found(&[64, 200, 512, 1024]);
    }
}

/// The collective of hosts `first` to `last`, which reaches so much; at least 90 GB/s are expected.
fn together(hosts: &[Host], (first, last): (usize, usize), gb_s: f64) -> Row {
    Row {
        transport: TransportKind::Nccl,
        status: Status::Ok,
        operation: Some(Operation::Collective(Collective::AllReduce)),
        size_bytes: Some(Bytes::mib(256)),
        bandwidth_gb_s_bus: Some(gb_s),
        expected_gb_s: Some(100.0),
        expected_gb_s_low: Some(90.0),
        verdict: Some(if gb_s < 90.0 { RowVerdict::Below } else { RowVerdict::Expected }),
        source_host: Some(hosts[first].name.clone()),
        target_host: Some(hosts[last].name.clone()),
        ..Row::default()
    }
}

#[test]
fn of_hosts_that_are_slow_together_the_smallest_group_is_suspect() {
    let hosts = cluster(8);
    let known = |fault: Option<usize>| -> Vec<HostFitness> {
        let reasons = |host| match fault == Some(host) {
            true => vec![unfit(Stage::Pairs, "slow", "")],
            false => Vec::new(),
        };
        (0..8).map(|host| HostFitness::of(&hosts[host], reasons(host))).collect()
    };
    let told = |rows: &[Row], fault| {
        let seen = |row| Seen { row, host: None, is_optional: false, is_replaced: false };
        let seen: Vec<Seen<'_>> = rows.iter().map(seen).collect();
        let reasons = together::reasons(&seen, &Compared::default(), &hosts, &known(fault));
        let said = |(host, all): (usize, Vec<Reason>)| (host, all[0].verdict, all[0].said.clone());
        reasons.into_iter().map(said).collect::<Vec<_>>()
    };
    let rows = |rates: &[((usize, usize), f64)]| -> Vec<Row> {
        rates.iter().map(|(group, gb_s)| together(&hosts, *group, *gb_s)).collect()
    };
    assert_eq!(told(&rows(&[((0, 7), 95.0)]), None), []);
    let halves = rows(&[((0, 7), 50.0), ((0, 3), 95.0), ((4, 7), 50.0), ((4, 5), 50.0)]);
    let said = "all_reduce of host4 and host5 is below what is expected".to_owned();
    let expected = [4, 5].map(|host| (host, Fitness::Suspect, said.clone()));
    assert_eq!(told(&halves, None), expected);
    // Where one of them is known to have a fault, it explains the rest.
    assert_eq!(told(&halves, Some(5)), []);
    let whole = told(&rows(&[((0, 7), 50.0), ((0, 3), 95.0), ((4, 7), 95.0)]), None);
    assert_eq!(whole.len(), 8);
    let said = "all_reduce of all 8 hosts is below what is expected, though that of each half of \
                them is not";
    assert!(whole.iter().all(|(_, verdict, own)| (*verdict, &**own) == (Fitness::Suspect, said)));
    // What happens to a GPU meanwhile is not passed over.
    let flagged = Row { flags: "xid".to_owned(), ..together(&hosts, (0, 7), 95.0) };
    assert!(told(&[flagged], None).iter().all(|(.., said)| said.ends_with("is flagged xid")));
    // So few samples that there is no interval: far below is slow, and else nothing is known.
    let few = |gb_s| Row { verdict: Some(RowVerdict::Unknown), ..together(&hosts, (0, 7), gb_s) };
    assert_eq!(told(&[few(40.0)], None)[0].1, Fitness::Suspect);
    assert_eq!(told(&[few(80.0)], None)[0].1, Fitness::Unknown);
}
