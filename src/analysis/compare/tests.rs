use super::*;
use crate::{
    plan::{Collective, Engine, Issuer, Operation, TransportKind},
    record::{
        Recorder, Row, Run, Status,
        provenance::{Provenance, Resumption},
    },
    units::Bytes,
};

fn row(source: u32, target: u32, gb_s: f64) -> Row {
    Row {
        transport: TransportKind::P2p,
        status: Status::Ok,
        flows: Some(1),
        operation: Some(Operation::Copy),
        engine: Some(Engine::Ce),
        issuer: Some(Issuer::Read),
        source_gpu: Some(source),
        target_gpu: Some(target),
        source_host: Some("one".to_owned()),
        target_host: Some("one".to_owned()),
        size_bytes: Some(Bytes::mib(64)),
        bandwidth_gb_s: Some(gb_s),
        bandwidth_gb_s_low: Some(gb_s * 0.995),
        bandwidth_gb_s_high: Some(gb_s * 1.005),
        bandwidth_samples: Some(20),
        ..Row::default()
    }
}

fn source(rows: impl IntoIterator<Item = Row>) -> Source {
    let traits =
        [(Trait::Simulated, "real"), (Trait::Machine, "p5"), (Trait::Nccl, "2.27.3")].to_vec();
    Source {
        rows: rows.into_iter().collect(),
        hosts: vec!["one".to_owned(), "two".to_owned()],
        traits: traits.into_iter().map(|(kind, value)| (kind, value.to_owned())).collect(),
        ..Source::default()
    }
}

/// The first `count` sources against the others.
fn against(sources: &[Source], count: usize, across: &[Trait]) -> Comparison {
    let old = Runs { name: "old", sources: 0..count };
    let new = Runs { name: "new", sources: count..sources.len() };
    sides(sources, old, new, &Allowance { across: across.to_vec(), margin: 0.05 })
}

fn verdicts(sources: &[Source], count: usize, across: &[Trait]) -> Vec<ChangeVerdict> {
    against(sources, count, across).cases.iter().map(|case| case.verdict.clone()).collect()
}

fn because(reason: &str) -> ChangeVerdict {
    ChangeVerdict::NotComparable(reason.to_owned())
}

#[test]
fn a_row_is_faster_slower_or_the_same() {
    let old = source([row(0, 1, 100.0), row(0, 2, 100.0), row(1, 2, 100.0)]);
    // In another order, as another plan would have it.
    let new = source([row(1, 2, 100.3), row(0, 1, 97.0), row(0, 2, 103.0)]);
    let found = verdicts(&[old, new], 1, &[]);
    assert_eq!(found, [ChangeVerdict::Slower, ChangeVerdict::Faster, ChangeVerdict::Same]);
}

#[test]
fn what_cannot_be_compared_says_why() {
    let corrupt = Row {
        status: Status::Corrupt,
        reason: "rank 0 found 1 wrong byte".to_owned(),
        bandwidth_gb_s: None,
        ..row(2, 0, 0.0)
    };
    let skipped = Row { status: Status::Skipped, reason: "no room".to_owned(), ..corrupt.clone() };
    let untold = Row { bandwidth_gb_s_low: None, ..row(1, 2, 100.0) };
    let skip = |source| Row { source_gpu: Some(source), ..skipped.clone() };
    let old = source([row(0, 1, 100.0), row(1, 2, 100.0), row(2, 0, 100.0), skip(7), skip(3)]);
    let new = source([row(0, 2, 100.0), untold, corrupt, skip(7), row(3, 0, 1.0)]);
    assert_eq!(
        verdicts(&[old, new], 1, &[]),
        [
            because("not in B"),
            // Both are 100, and one has no interval.
            ChangeVerdict::Same,
            because("in B: corrupt: rank 0 found 1 wrong byte"),
            because("in A: skipped: no room"),
            because("not in A"),
        ]
    );
}

#[test]
fn other_machines_and_libraries_are_not_compared_unless_asked_for() {
    let collective = || Row {
        transport: TransportKind::Nccl,
        operation: Some(Operation::Collective(Collective::AllReduce)),
        communicator_ranks: Some(8),
        issuer: None,
        engine: None,
        ..row(0, 0, 100.0)
    };
    let old = source([row(0, 1, 100.0), collective()]);
    let newer = Source {
        traits: [
            (Trait::Simulated, "real".to_owned()),
            (Trait::Machine, "p5".to_owned()),
            (Trait::Nccl, "2.28.1".to_owned()),
        ]
        .to_vec(),
        ..old.clone()
    };
    let other_nccl = "other NCCL: 2.27.3 against 2.28.1 (--across nccl)";
    let sources = [old.clone(), newer.clone()];
    assert_eq!(verdicts(&sources, 1, &[]), [ChangeVerdict::Same, because(other_nccl)]);
    assert_eq!(verdicts(&sources, 1, &[Trait::Nccl]), [ChangeVerdict::Same, ChangeVerdict::Same]);
    assert_eq!(against(&sources, 1, &[]).differences, [other_nccl]);

    let mut simulated = old.clone();
    simulated.traits[0].1 = "simulated".to_owned();
    let other = because("real and simulated: real against simulated (--across simulated)");
    assert_eq!(verdicts(&[old.clone(), simulated], 1, &[Trait::Nccl]), [other.clone(), other]);
    // Another tool does not say what it ran on.
    let foreign = |nccl| Source::of_tool(newer.rows.clone(), nccl);
    let found = verdicts(&[old.clone(), foreign(None)], 1, &[]);
    assert_eq!(found, [ChangeVerdict::Same, ChangeVerdict::Same]);
    let found = verdicts(&[old.clone(), foreign(Some("2.28.1"))], 1, &[]);
    assert_eq!(found, [ChangeVerdict::Same, because(other_nccl)]);
    let mut simulated = old;
    simulated.traits[0].1 = "simulated".to_owned();
    let reason = "real and simulated: simulated against real (--across simulated)";
    let found = verdicts(&[simulated, foreign(None)], 1, &[]);
    assert_eq!(found, [because(reason), because(reason)]);
}

#[test]
fn hosts_are_known_by_their_place() {
    let on = |host: &str| Row {
        source_host: Some(host.to_owned()),
        target_host: Some(host.to_owned()),
        ..row(0, 1, 100.0)
    };
    let old = source([on("one"), on("two")]);
    let new = Source {
        hosts: vec!["ip-10-0-0-7".to_owned(), "ip-10-0-0-3".to_owned()],
        ..source([on("ip-10-0-0-7"), on("ip-10-0-0-3")])
    };
    assert_eq!(verdicts(&[old, new], 1, &[]), [ChangeVerdict::Same, ChangeVerdict::Same]);
}

#[test]
fn rows_that_nothing_tells_apart_are_matched_in_their_order() {
    let old = source([row(0, 1, 100.0), row(0, 1, 50.0)]);
    let new = source([row(0, 1, 100.0), row(0, 1, 60.0)]);
    assert_eq!(
        verdicts(&[old.clone(), new.clone()], 1, &[]),
        [ChangeVerdict::Same, ChangeVerdict::Faster]
    );
    // Of another tool nobody knows which is which.
    let foreign = Source::of_tool(new.rows, None);
    let reason = "several rows of one side fit one of the other: the tool does not tell them apart";
    assert_eq!(verdicts(&[old, foreign], 1, &[]), [because(reason)]);
}

#[test]
fn another_tool_is_matched_by_what_it_says() {
    let old = source([row(0, 1, 100.0), row(1, 0, 100.0)]);
    let foreign = |source, target| Row { issuer: None, flows: None, ..row(source, target, 90.0) };
    let rows = vec![foreign(0, 1), foreign(1, 0)];
    let foreign = Source::of_tool(rows, None);
    assert_eq!(verdicts(&[old, foreign], 1, &[]), [ChangeVerdict::Slower, ChangeVerdict::Slower]);
}

#[test]
fn repeated_runs_say_how_well_they_are_known() {
    let run = |gb_s| source([row(0, 1, gb_s)]);
    // Within each run the number is known to half a percent, but runs differ by five.
    let sources = [100.0, 105.0, 95.0, 93.0, 98.0, 102.0].map(run);
    assert_eq!(verdicts(&sources, 3, &[]), [ChangeVerdict::Same]);
    assert_eq!(verdicts(&[run(100.0), run(93.0)], 1, &[]), [ChangeVerdict::Slower]);
    assert_eq!(against(&sources, 3, &[]).runs, 3);
}

#[test]
fn latencies_count_where_there_is_no_bandwidth() {
    let ping = |ns: u64| Row {
        operation: Some(Operation::PingPong),
        bandwidth_gb_s: None,
        latency_ns_p50: Some(ns),
        latency_samples: Some(1000),
        ..row(0, 1, 0.0)
    };
    let known = |ns: u64| Source {
        latencies: HashMap::from([(0, (ns as f64 * 0.99, ns as f64 * 1.01))]),
        ..source([ping(ns)])
    };
    assert_eq!(verdicts(&[known(1000), known(1100)], 1, &[]), [ChangeVerdict::Slower]);
    assert_eq!(verdicts(&[known(1000), known(900)], 1, &[]), [ChangeVerdict::Faster]);
    // Without an interval a margin decides.
    for (ns, verdict) in [
        (949, ChangeVerdict::Faster),
        (951, ChangeVerdict::Same),
        (1049, ChangeVerdict::Same),
        (1051, ChangeVerdict::Slower),
    ] {
        let case = &against(&[source([ping(1000)]), known(ns)], 1, &[]).cases[0];
        assert_eq!((&case.verdict, case.lacks_interval()), (&verdict, true), "{ns}");
    }
    let loss = against(&[known(1000), known(1100)], 1, &[]).cases[0].loss().unwrap();
    assert!((loss - 0.1).abs() < 1e-9);
}

#[test]
fn reads_are_held_against_writes_and_engines_against_each_other() {
    let of = |issuer, engine, gb_s| Row {
        issuer: Some(issuer),
        engine: Some(engine),
        ..row(0, 1, gb_s)
    };
    let rows = [
        of(Issuer::Read, Engine::Ce, 100.0),
        of(Issuer::Write, Engine::Ce, 110.0),
        of(Issuer::Read, Engine::Sm, 90.0),
        // It has no counterpart.
        Row { operation: Some(Operation::ReadOnly), ..of(Issuer::Read, Engine::Sm, 90.0) },
    ];
    let found = |by: &str| {
        let found = parts(&[source(rows.clone())], &by.parse().unwrap(), 0.05);
        let told = |comparison: &Comparison| {
            let Comparison { a, b, cases, .. } = comparison;
            (a.clone(), b.clone(), cases.iter().map(|case| (&case.verdict).into()).collect())
        };
        found.iter().map(told).collect::<Vec<(String, String, Vec<&str>)>>()
    };
    let [read, write, ce, sm] = ["read", "write", "ce", "sm"].map(str::to_owned);
    assert_eq!(found("issuer"), [(read, write, vec!["faster"])]);
    assert_eq!(found("engine"), [(ce, sm, vec!["slower"])]);
    assert_eq!(found("host"), []);
}

#[test]
fn hosts_are_held_against_the_first_of_them() {
    let on = |host: &str, rank, gb_s| Row {
        source_host: Some(host.to_owned()),
        target_host: Some(host.to_owned()),
        source_rank: Some(rank),
        target_rank: Some(rank + 1),
        ..row(0, 1, gb_s)
    };
    let between = Row { target_host: Some("two".to_owned()), ..on("one", 0, 12.0) };
    let rows = source([on("one", 0, 100.0), on("two", 8, 80.0), between, on("three", 16, 100.0)]);
    let found = parts(&[rows], &By::Host, 0.05);
    let told: Vec<(&str, &str)> =
        found.iter().map(|found| (found.b.as_str(), (&found.cases[0].verdict).into())).collect();
    assert_eq!(told, [("two", "slower"), ("three", "same within noise")]);
}

#[test]
fn values_of_a_variable_are_held_against_each_other() {
    let with = |env: Option<&str>, gb_s| {
        source([Row {
            transport: TransportKind::Nccl,
            nccl_env: env.map(str::to_owned),
            ..row(0, 1, gb_s)
        }])
    };
    let sources = [
        with(Some("NCCL_ALGO=Ring NCCL_PROTO=Simple"), 100.0),
        with(Some("NCCL_PROTO=Simple NCCL_ALGO=Tree"), 80.0),
        with(Some("NCCL_PROTO=Simple"), 100.0),
        with(Some("NCCL_ALGO=Tree NCCL_PROTO=LL"), 10.0),
    ];
    let found = parts(&sources, &"nccl-env:NCCL_ALGO".parse().unwrap(), 0.05);
    let told: Vec<(&str, Vec<&str>)> = found
        .iter()
        .map(|found| {
            (found.b.as_str(), found.cases.iter().map(|case| (&case.verdict).into()).collect())
        })
        .collect();
    assert_eq!(told, [("Tree", vec!["slower"]), ("not set", vec!["same within noise"])]);
    assert!("nccl-env:".parse::<By>().is_err());
}

#[test]
fn all_forms_say_the_same() {
    use crate::show::compare::{csv, json, page};

    let old = source([row(0, 1, 100.0), row(0, 2, 100.0), row(1, 2, 100.0)]);
    let new = source([row(0, 1, 97.0), row(0, 2, 100.0)]);
    let sources = [old, new];
    let found = [against(&sources, 1, &[])];
    let text = page(&sources, &found, false).markdown();
    for said in [
        "B against A: 3 cases",
        "p2p copy read ce, 64 MiB",
        "p2p copy read ce, GPU 0 of one -> GPU 1 of one, 64 MiB",
        "-3.0 %",
        "1: not in B",
    ] {
        assert!(text.contains(said), "{said}:\n{text}");
    }
    assert!(!text.contains("GPU 2 of one, 64 MiB"), "{text}");
    assert!(page(&sources, &found, true).markdown().contains("GPU 2 of one, 64 MiB"));
    assert!(page(&sources, &found, false).markdown().contains("| p2p copy read ce, 64 MiB"));
    let csv = csv(&sources, &found);
    let json: serde_json::Value = serde_json::from_str(&json(&sources, &found)).unwrap();
    let mut reader = ::csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let mut count = 0;
    for (record, object) in reader.records().zip(json.as_array().unwrap()) {
        for (name, cell) in header.iter().zip(&record.unwrap()) {
            let value = &object[name];
            let told = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(cell, if value.is_null() { "" } else { &told }, "{name}");
        }
        count += 1;
    }
    assert_eq!(count, 3);
    assert_eq!(json[0]["verdict"], "slower");
    assert_eq!(json[2]["reason"], "not in B");
}

#[test]
fn a_run_that_went_on_with_something_else_is_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(&folder.path().join("run"), &Provenance::example()).unwrap();
    let source = |changed: &[&str]| {
        let changed = changed.iter().map(|text| (*text).to_owned()).collect();
        let (time, command, health) = ("later".to_owned(), Vec::new(), Vec::new());
        let resumed = vec![Resumption { time, command, rows: 1, changed, health }];
        let rows = vec![row(0, 1, 100.0)];
        let run = Run { resumed, rows, ..Run::read(recorder.folder()).unwrap() };
        Source::of_run(run).unwrap()
    };
    let [whole, same] = [source(&[]), source(&[])];
    assert_eq!(verdicts(&[whole.clone(), same], 1, &[]), [ChangeVerdict::Same]);
    let other = source(&["NCCL: 2.28.1 in place of 2.27.3"]);
    let [ChangeVerdict::NotComparable(reason)] = &verdicts(&[whole, other], 1, &[])[..] else {
        panic!()
    };
    assert!(reason.contains("later changed: NCCL: 2.28.1 in place of 2.27.3"), "{reason}");
}
