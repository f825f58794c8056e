//! NCCL's ways to work beside the plain ones, on simulated machines whose answers are known.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::simulation::{Simulated, assert_near};

/// Four GPUs behind an NVSwitch, each pair at 90 GB/s each way, but from GPU 1 to GPU 2 half.
fn machine(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four GPUs\"\ngpu_count = 4\nnvswitch = true\n\
         report = \"report.jsonl\"\n\n[[gpu]]\nmemory_mib = 8192\nnvlinks = 12\n\
         nvlink_generation = 4\ncompute_capability = [9, 0]\n\n[[pair]]\n\
         sm_write = {{ gb_s = 90.0 }}\n\n[[pair]]\nsource = 1\ntarget = 2\n\
         sm_write = {{ gb_s = 45.0 }}\n{rest}"
    )
}

/// What makes a run short.
const QUICK: &str = "--samples 6 --time-limit 5ms";

const BYTES: f64 = (1 << 20) as f64;

/// How long a message lasts by the model in docs/simulation.md: what begins it, its hop over NVLink,
/// and its data.
fn message_ns(gb_s: f64) -> f64 {
    8400.0 + 3400.0 + BYTES / gb_s
}

#[test]
fn messages_between_two_ranks_are_a_matrix() {
    for ranks in ["1", "4"] {
        let line = format!("nccl --operation sendrecv --pattern one-way --sizes 1M {QUICK}");
        let run = Simulated::run(&machine(""), &format!("{line} --ranks {ranks}"));
        let rows = run.rows();
        assert_eq!(rows.len(), 12);
        for row in 0..rows.len() {
            let ends = ["source_gpu", "target_gpu"].map(|name| rows.cell(row, name));
            assert_eq!((rows.cell(row, "status"), rows.cell(row, "flows")), ("ok", "1"));
            let gb_s = if ends == ["1", "2"] { 45.0 } else { 90.0 };
            let expected = BYTES / message_ns(gb_s);
            for column in ["bandwidth_gb_s", "bandwidth_gb_s_bus", "bandwidth_gb_s_total"] {
                assert_near(rows.number(row, column), expected, 0.005, &format!("{ends:?}"));
            }
            assert_eq!(rows.cell(row, "communicator_ranks"), "4");
        }
        let title = "nccl sendrecv float 1 MiB, GB/s; rows: source GPU, columns: target GPU";
        assert!(run.stdout.contains(title), "{}", run.stdout);
        let cells = run.stdout.lines().find(|line| line.starts_with(" GPU 1")).unwrap();
        let cells: Vec<&str> = cells.split_whitespace().collect();
        assert_eq!(cells, ["GPU", "1", "44.71", "-", "29.87", "44.71"]);
    }
}

#[test]
fn messages_cross_between_two_ranks() {
    let line =
        format!("nccl --operation sendrecv --pattern both-ways,neighbours --sizes 1M {QUICK}");
    let rows = Simulated::run(&machine(""), &format!("{line} --ranks 2")).rows();
    assert_eq!(rows.len(), 7);
    for row in 0..rows.len() {
        let (pattern, flows) = (rows.cell(row, "pattern"), rows.number(row, "flows"));
        let ends = ["source_gpu", "target_gpu"].map(|name| rows.cell(row, name));
        // The slower of the two ways ends it; the ring, of GPUs 0, 2, 1 and 3, does not have it.
        let is_slow = pattern == "both-ways" && (ends == ["1", "2"] || ends == ["2", "1"]);
        let each = BYTES / message_ns(if is_slow { 45.0 } else { 90.0 });
        let what = format!("{pattern} {ends:?}");
        assert_eq!(flows, if pattern == "neighbours" { 4.0 } else { 2.0 }, "{what}");
        assert_near(rows.number(row, "bandwidth_gb_s"), each, 0.005, &what);
        assert_near(rows.number(row, "bandwidth_gb_s_total"), flows * each, 0.005, &what);
    }
}
