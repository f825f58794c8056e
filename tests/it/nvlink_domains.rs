//! Copies between GPUs of several hosts that are in one NVLink domain, on simulated machines.

use std::collections::BTreeSet;

use crate::common::{
    Rows,
    mpi::open_mpi,
    simulation::{Simulated, assert_near},
    text,
};

/// Short measurements, which are exact in simulated time, however long they last.
const QUICK: &str = "--samples 3 --time-limit 2ms --deadline 300s --quiet";

/// Two hosts with two GPUs each, whose pairs have known rates.
const TWO: &str = "schema = 1\nfrom = 'p6e-gb200.36xlarge'\nhosts = 2\ngpu_count = 2\n\
                   [[pair]]\nce_read = { gb_s = 600.0, latency_ns = 2000.0 }\n\
                   ce_write = { gb_s = 700.0, latency_ns = 2000.0 }\n";

fn hosts(rows: &Rows, row: usize) -> [&str; 2] {
    ["source_host", "target_host"].map(|name| rows.cell(row, name))
}

#[test]
fn every_pair_of_two_hosts_is_measured_by_fabric_handles_and_verified() {
    for (ranks, words) in [(2, "--operation copy,read-only,write-only,chase"), (4, "--engine ce")] {
        let run = Simulated::run_ranks(ranks, TWO, &format!("p2p --sizes 16M {words} {QUICK}"));
        let rows = run.rows();
        let mut between = BTreeSet::new();
        for row in 0..rows.len() {
            let cell = |name: &str| rows.cell(row, name);
            assert_eq!(cell("status"), "ok", "{}", run.stdout);
            let is_of_one_rank = cell("source_rank") == cell("target_rank");
            assert_eq!(
                cell("handle"),
                if is_of_one_rank { "" } else { "fabric" },
                "{}",
                run.stdout
            );
            let [source, target] = hosts(&rows, row);
            if source != target {
                between.insert([source, cell("source_gpu"), target, cell("target_gpu")]);
            }
            if cell("operation") == "chase" {
                continue;
            }
            assert_eq!(
                (cell("path"), cell("path_verdict")),
                ("nvlink", "proven"),
                "{}",
                run.stdout
            );
            if cell("engine") == "ce" {
                let gb_s = if cell("issuer") == "read" { 600.0 } else { 700.0 };
                let bytes = f64::from(16 << 20);
                let expected = bytes / (2000.0 + bytes / gb_s);
                assert_near(rows.number(row, "bandwidth_gb_s"), expected, 0.005, &run.stdout);
            }
        }
        assert_eq!(between.len(), 8, "{}", run.stdout);
    }
}

#[test]
fn hosts_that_cannot_share_memory_say_why_and_measure_their_own_pairs() {
    let no_channel = "[[host.file]]\npath = '/dev/nvidia-caps-imex-channels/channel0'\n\
                      absent = true\nprocess = 1\n";
    for (more, reason) in [
        (no_channel, "they have no IMEX channel in common"),
        ("[[gpu]]\nordinals = [2, 3]\nclique = 7\n", "they are in cliques 0 and 7"),
        (
            "[[gpu]]\nordinals = [2, 3]\ncluster_uuid = '00000000-0000-0000-0000-000000000001'\n",
            "they are in different NVLink domains",
        ),
        ("", "the driver is too old to share memory of GPUs between hosts: it takes 545 or newer"),
    ] {
        let driver = if more.is_empty() { "driver_version = 12020\n" } else { "" };
        let machine = TWO.replace("hosts = 2", &format!("{driver}hosts = 2")) + more;
        let run = Simulated::run_ranks(2, &machine, &format!("p2p --engine ce --sizes 1M {QUICK}"));
        let rows = run.rows();
        let skipped = (0..rows.len()).filter(|row| rows.cell(*row, "status") == "skipped");
        let reasons: Vec<&str> = skipped.map(|row| rows.cell(row, "reason")).collect();
        assert_eq!(reasons.len(), 1, "{}", run.stdout);
        assert!(reasons[0].starts_with("not between ip-10-0-0-1 and ip-10-0-0-2: "), "{reasons:?}");
        assert!(reasons[0].contains(reason), "{reasons:?}");
        let ok: Vec<usize> =
            (0..rows.len()).filter(|row| rows.cell(*row, "status") == "ok").collect();
        assert!(!ok.is_empty(), "{}", run.stdout);
        for row in ok {
            let [source, target] = hosts(&rows, row);
            assert_eq!(source, target, "{}", run.stdout);
        }
    }
}

#[test]
fn a_byte_that_arrives_wrong_on_another_host_is_found() {
    let machine =
        TWO.to_owned() + "[[fault.flip]]\nsource = 0\ntarget = 3\noffset = 4097\nalways = true\n";
    let line = format!("p2p --engine ce --issuer write --operation copy --sizes 1M {QUICK}");
    let run = Simulated::run_ranks(2, &machine, &line);
    let rows = run.rows_whatever_happened();
    let corrupt: Vec<usize> =
        (0..rows.len()).filter(|row| rows.cell(*row, "status") == "corrupt").collect();
    assert_eq!((run.code, corrupt.len()), (1, 1), "{}{}", run.stdout, run.stderr);
    assert_eq!(hosts(&rows, corrupt[0]), ["ip-10-0-0-1", "ip-10-0-0-2"]);
    assert!(rows.cell(corrupt[0], "reason").contains("offset 4097"), "{}", run.stdout);
}

#[test]
fn a_pair_that_fails_on_one_rank_fails_alone_and_says_where() {
    let machine = TWO.to_owned()
        + "[[fault.call]]\nname = 'cuMemImportFromShareableHandle'\nprocess = 1\nafter = 1\n\
           what = 'refused'\ncode = 2\n";
    let line = format!("p2p --engine ce --issuer read --sizes 1M {QUICK}");
    let run = Simulated::run_ranks(2, &machine, &line);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let rows = run.rows_whatever_happened();
    let failed = (0..rows.len()).filter(|row| rows.cell(*row, "status") == "failed");
    let failed: Vec<usize> = failed.collect();
    assert_eq!((rows.len(), failed.len()), (12, 1), "{}", run.stdout);
    let [source, target] = hosts(&rows, failed[0]);
    assert_ne!(source, target, "{}", run.stdout);
    let reason = rows.cell(failed[0], "reason");
    assert!(reason.contains("rank 1: ") && reason.contains("OUT_OF_MEMORY"), "{reason}");
}

#[test]
fn a_sample_of_72_gpus_names_the_slow_one() {
    let run = sample(18, "[[gpu]]\nordinals = [37]\nnvlinks_down = [0, 1, 2, 3, 4, 5, 6, 7, 8]\n");
    let rows = run.rows();
    assert_eq!(rows.len(), 576);
    for row in 0..rows.len() {
        let cells = ["status", "pairs_measured", "pairs"].map(|name| rows.cell(row, name));
        assert_eq!(cells, ["ok", "576", "5112"]);
    }
    assert!(run.stdout.contains("576 of 5112 pairs, drawn by lot"), "{}", run.stdout);
    let named = "GPU 1 of ip-10-0-0-10 is ";
    let mut slow = run.stdout.lines().filter(|line| line.contains(" % slower ")).peekable();
    assert!(slow.peek().is_some() && slow.all(|line| line.contains(named)), "{}", run.stdout);
    let again = (0..rows.len()).filter(|row| rows.cell(*row, "flags").contains("measured_again"));
    let again: Vec<usize> = again.collect();
    // The first pairs have nothing to be compared with.
    assert!((8..=16).contains(&again.len()), "{again:?}");
    for row in again {
        let ends = ["source", "target"].map(|end| {
            let cell = |name: &str| rows.cell(row, &format!("{end}_{name}"));
            (cell("host"), cell("gpu"))
        });
        assert!(ends.contains(&("ip-10-0-0-10", "1")), "{ends:?}");
    }
    // Each further GPU takes as long as those before, and not longer for the number of pairs.
    let seconds = |run: &Simulated| {
        let times = run.report().into_iter().map(|line| line["host_ns"].as_u64().unwrap());
        times.max().unwrap() as f64 / 1e9
    };
    let [few, more] = [4, 9].map(|hosts| seconds(&sample(hosts, "")));
    let many = seconds(&run);
    let each = [(more - few) / 20.0, (many - more) / 36.0];
    assert!(each[1] <= 1.1 * each[0], "{few}, {more}, {many} s; {each:?} s for each further GPU");
}

/// A sample of the pairs of so many hosts with four GPUs each, with what `more` says of them.
fn sample(hosts: u32, more: &str) -> Simulated {
    let machine = format!(
        "schema = 1\nfrom = 'p6e-gb200.36xlarge'\nhosts = {hosts}\nreport = 'report.jsonl'\n{more}"
    );
    let line =
        format!("p2p --engine ce --issuer read --operation copy --pairs sample --sizes 1M {QUICK}");
    Simulated::run_ranks(hosts, &machine, &line)
}

#[test]
fn all_pairs_or_a_sample_are_measured_as_the_user_says() {
    let plan = |ranks: u32, words: &str| {
        let [mpi, _] = open_mpi();
        let line = format!("p2p --engine ce --issuer read --operation copy --dry-run {words}");
        text(&mpi.outcome(ranks, &line).0.stdout).lines().count()
    };
    for (hosts, gpus, by_default) in [(2, 8, 56), (4, 16, 240), (9, 36, 288)] {
        let plan =
            |words: &str| plan(hosts, &format!("--simulate {hosts}xp6e-gb200.36xlarge {words}"));
        let counts = ["", "--pairs all", "--pairs sample"].map(plan);
        // Eight partners of each GPU, where it has so many, both ways.
        let sampled = gpus * usize::min(8, gpus - 1);
        assert_eq!(counts, [by_default, gpus * (gpus - 1), sampled], "{gpus} GPUs");
    }
    // Within one host too.
    assert_eq!(plan(1, "--simulate p4d.24xlarge --pairs sample"), 56);
}
