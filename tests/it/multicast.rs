//! What NVLink switches do for several GPUs at once, on simulated machines.

use crate::common::{
    Rows, g2g,
    simulation::{LAUNCH_NS, Rate, Simulated, assert_latency, assert_near},
    text,
};

const ALL: &str = "multicast-store,multimem-reduce,multimem-all-reduce";
const QUICK: &str = "--time-limit 20ms --deadline 300s --quiet";
const SIZE: f64 = (4 << 20) as f64;

/// What the links reach through the switches: their rate times `nvls_efficiency`.
const WAY: Rate = Rate::new(200.0, 1000.0);

/// Four GPUs at switches that store to, and load from, all of them.
fn four_gpus(more: &str) -> String {
    format!(
        "schema = 1\nfrom = 'p5.48xlarge'\ngpu_count = 4\nevent_resolution_ns = 32\n[nccl]\n\
         nvls_efficiency = 0.8\n[[gpu]]\nlaunch_ns = {LAUNCH_NS:?}\n[[pair]]\n\
         sm_read = {{ gb_s = 250.0, latency_ns = 1000.0 }}\n\
         sm_write = {{ gb_s = 250.0, latency_ns = 1000.0 }}\n{more}"
    )
}

/// Two hosts of an NVLink domain, with two GPUs each.
fn two_hosts(more: &str) -> String {
    format!(
        "schema = 1\nfrom = 'p6e-gb200.36xlarge'\nhosts = 2\ngpu_count = 2\n[nccl]\n\
         nvls_efficiency = 0.8\n[[gpu]]\nlaunch_ns = {LAUNCH_NS:?}\n[[pair]]\n\
         sm_read = {{ gb_s = 250.0, latency_ns = 1000.0 }}\n\
         sm_write = {{ gb_s = 250.0, latency_ns = 1000.0 }}\n{more}"
    )
}

/// Compares a row of four GPUs with the known answer; its path must be proven.
fn assert_row(rows: &Rows, row: usize, stdout: &str) {
    let cell = |name: &str| rows.cell(row, name);
    let what = format!("{} {} {}\n{stdout}", cell("operation"), cell("pattern"), cell("handle"));
    assert_eq!(cell("status"), "ok", "{what}");
    assert_eq!((cell("path"), cell("path_verdict")), ("nvlink", "proven"), "{what}");
    let alone_ns = LAUNCH_NS + WAY.time_ns(SIZE);
    let operations = rows.number(row, "operations_per_sample");
    let (found, total) =
        (rows.number(row, "bandwidth_gb_s"), rows.number(row, "bandwidth_gb_s_total"));
    match (cell("operation"), cell("pattern")) {
        (_, "one-to-all" | "all-to-one") => {
            assert_near(found, SIZE / alone_ns, 0.005, &what);
            assert_latency(rows.number(row, "latency_ns_p50"), alone_ns, &what);
        }
        ("multimem-all-reduce", _) => {
            // Each GPU's links carry 1 + 1/4 bytes for each byte each way; the last part ends last.
            let part_ns = SIZE / 4.0 / WAY.gb_s;
            let time_ns = (5.0 * operations + 1.0) * part_ns + LAUNCH_NS + WAY.latency_ns;
            assert_near(total, operations * SIZE / time_ns, 0.02, &what);
            assert_near(found, total, 1e-9, &what);
        }
        (_, "all-pairs") => {
            // All that the four issue goes through each GPU's links, one behind another.
            let time_ns = (4.0 * operations - 1.0) * SIZE / WAY.gb_s + alone_ns;
            assert_near(total, 4.0 * operations * SIZE / time_ns, 0.005, &what);
            assert_near(found, total / 4.0, 1e-9, &what);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_operation_has_its_known_answer_in_one_process_and_between_ranks() {
    for (words, handle) in [("", ""), ("--ranks 4", "cumem"), ("--ranks 2", "cumem")] {
        let line = format!(
            "p2p --operation {ALL} --pattern one-to-all,all-to-one,all-pairs --sizes 4M {words} \
             {QUICK}"
        );
        let run = Simulated::run(&four_gpus(""), &line);
        let rows = run.rows();
        assert_eq!(rows.len(), 4 + 1 + 4 + 1 + 1, "{}", run.stdout);
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "handle"), handle, "{}", run.stdout);
            assert_row(&rows, row, &run.stdout);
        }
    }
}

#[test]
fn hosts_of_a_domain_measure_together_what_one_gpu_issues() {
    for ranks in [2, 4] {
        let line = format!("p2p --operation {ALL} --sizes 4M {QUICK}");
        let run = Simulated::run_ranks(ranks, &two_hosts(""), &line);
        let rows = run.rows();
        let of = |name: &str| -> Vec<usize> {
            (0..rows.len()).filter(|row| rows.cell(*row, "operation") == name).collect()
        };
        for operation in ["multicast-store", "multimem-reduce"] {
            assert_eq!(of(operation).len(), 4, "{}", run.stdout);
            for row in of(operation) {
                assert_eq!(rows.cell(row, "handle"), "fabric", "{}", run.stdout);
                assert_row(&rows, row, &run.stdout);
            }
        }
        // Several GPUs that begin together are of one host.
        let within = of("multimem-all-reduce");
        assert_eq!(within.len(), 2, "{}", run.stdout);
        for row in within {
            assert_eq!(rows.cell(row, "status"), "ok", "{}", run.stdout);
            assert_eq!(rows.cell(row, "source_host"), rows.cell(row, "target_host"));
        }
    }
}

#[test]
fn a_wrong_byte_of_one_gpu_is_found_in_each_operation() {
    let flip = "[[fault.flip]]\nsource = 1\ntarget = 3\noffset = 4097\nalways = true\n";
    let line = format!("p2p --operation {ALL} --sizes 1M {QUICK}");
    let run = Simulated::run(&four_gpus(flip), &line);
    let rows = run.rows_whatever_happened();
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let corrupt = (0..rows.len()).filter(|row| rows.cell(*row, "status") == "corrupt");
    let corrupt: Vec<&str> = corrupt.map(|row| rows.cell(row, "operation")).collect();
    assert_eq!(
        corrupt,
        ["multicast-store", "multimem-reduce", "multimem-all-reduce"],
        "{}",
        run.stdout
    );
}

#[test]
fn what_cannot_be_done_says_why() {
    let skipped = |machine: &str, reason: &str| {
        let line = format!("p2p --operation {ALL} --gpus 0,1 --sizes 1M {QUICK}");
        let run = Simulated::run(machine, &line);
        let rows = run.rows();
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "status"), "skipped", "{}", run.stdout);
            assert!(rows.cell(row, "reason").contains(reason), "{}", rows.cell(row, "reason"));
        }
    };
    skipped("schema = 1\nfrom = 'p4d.24xlarge'\n", "GPU 0 has no multicast");
    let old = four_gpus("").replace("gpu_count", "driver_version = 12000\ngpu_count");
    skipped(&old, "driver 530 or newer");
    for (line, sentence) in [
        ("--sizes 100", "--sizes 100 B: multicast-store moves multiples of 16 B only"),
        ("--sizes 1M --pattern one-way", "nothing can be measured"),
        ("--sizes 1M --engine ce", "nothing can be measured"),
    ] {
        let line = format!("p2p --simulate p5.48xlarge --operation multicast-store {line}");
        let output = g2g().args(line.split_whitespace()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(sentence), "{line}: {said}");
    }
}

#[test]
fn a_rank_that_cannot_bind_its_memory_fails_the_case_and_no_other() {
    let refused = "[[fault.call]]\nname = 'cuMulticastBindMem'\nprocess = 1\nafter = 1\n\
                   what = 'refused'\ncode = 2\n";
    let line = format!("p2p --operation multicast-store --ranks 2 --gpus 0,1 --sizes 1M {QUICK}");
    let run = Simulated::run(&four_gpus(refused), &line);
    let rows = run.rows_whatever_happened();
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let failed: Vec<usize> =
        (0..rows.len()).filter(|row| rows.cell(*row, "status") == "failed").collect();
    assert_eq!(failed.len(), 1, "{}", run.stdout);
    let reason = rows.cell(failed[0], "reason");
    assert!(reason.contains("cannot bind memory to a multicast address"), "{reason}");
}
