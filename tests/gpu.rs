//! What needs a real GPU. Ignored where there is none; `scripts/test --gpu` runs it, and it fails
//! there if the GPU is absent.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Rows, g2g, run, text};

/// Runs g2g on the real machine; its rows, all of which must be measured and verified.
fn rows(line: &str) -> Rows {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let result = run(g2g(), &format!("{line} --output {}", output.display()));
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "ok", "{}", rows.cell(row, "reason"));
        assert_eq!(rows.cell(row, "simulated"), "false");
        assert!(rows.number(row, "latency_ns_p50") > 0.0);
    }
    rows
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_real_gpu_and_its_host_memory_are_measured_by_both_engines() {
    let rows = rows("local --gpus 0 --sizes 4K,1000001,64M --operation copy,read-only,write-only");
    // Three ways and both at once, by two engines; what only reads or writes by one, two ways each.
    assert!(rows.len() >= 3 * (4 * 2 + 4));
    for row in 0..rows.len() {
        // Faster than any memory that is sold: then nothing was moved.
        let rate = rows.number(row, "bandwidth_gb_s");
        assert!(rate > 0.0 && rate < 20_000.0, "{rate}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn loads_of_a_real_gpus_memory_last_as_long_as_such_loads_do() {
    let rows = rows("local --gpus 0 --operation chase");
    for row in 0..rows.len() {
        let latency_ns = rows.number(row, "latency_ns_p50");
        assert!((50.0..100_000.0).contains(&latency_ns), "{latency_ns}");
    }
    assert!(rows.len() >= 2);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_real_gpu_is_described_and_examined() {
    let json = |line: &str| -> serde_json::Value {
        let result = run(g2g(), line);
        assert!(result.status.code().is_some_and(|code| code < 2), "{}", text(&result.stderr));
        serde_json::from_str(&text(&result.stdout)).unwrap()
    };
    let topology = json("topo --format json");
    assert_eq!(topology["simulated"], false);
    let gpu = &topology["gpus"][0];
    assert!(gpu["uuid"].as_str().unwrap().starts_with("GPU-"), "{gpu:#}");
    assert!(gpu["nvml"].is_object() && gpu["condition"].is_object(), "{gpu:#}");
    let doctor = json("doctor --json");
    let findings = doctor["findings"].as_array().unwrap();
    let driver = findings.iter().find(|finding| finding["check"] == "driver").unwrap();
    assert_eq!(driver["verdict"], "ok", "{driver:#}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_counters_say_of_a_real_gpus_copies_does_not_contradict_them() {
    let rows = rows("local --gpus 0 --sizes 64M --operation copy");
    for row in 0..rows.len() {
        let reason = rows.cell(row, "path_reason");
        assert!(!reason.is_empty());
        assert_ne!(rows.cell(row, "path_verdict"), "contradicted", "{reason}");
        assert_ne!(rows.cell(row, "verdict"), "above", "{}", rows.cell(row, "verdict_reason"));
        assert!(!rows.cell(row, "flags").contains("xid"), "{}", rows.cell(row, "flags"));
    }
}

mod two_gpus {
    use super::*;

    #[test]
    #[ignore = "needs two NVIDIA GPUs"]
    fn two_real_gpus_reach_each_other_through_the_host_and_directly_if_they_can() {
        rows("shm --gpus 0,1 --ranks 1 --sizes 1M,64M");
        // A machine whose GPUs do not reach each other ends well too, with reasons instead of numbers.
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let line = format!("p2p --gpus 0,1 --sizes 1M,64M --output {}", output.display());
        let result = run(g2g(), &line);
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        let rows = Rows::read(&output);
        assert_eq!(rows.len(), 2 * (2 * 2 * 2 + 1));
        let is_told = |row| match rows.cell(row, "status") {
            "ok" => rows.cell(row, "reason").is_empty(),
            "skipped" => rows.cell(row, "reason").contains("cannot reach"),
            _ => false,
        };
        assert!((0..rows.len()).all(is_told));
    }
}

mod nccl {
    use super::*;

    #[test]
    #[ignore = "needs an NVIDIA GPU and NCCL"]
    fn a_real_communicator_of_one_rank_does_every_collective() {
        let rows = rows(
            "nccl --gpus 0 --operation all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall,\
             gather,scatter,sendrecv -d all -o all --sizes 4K,1000001,16M --time-limit 20ms",
        );
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "communicator_ranks"), "1");
            assert_eq!(rows.cell(row, "bandwidth_gb_s_bus"), "");
        }
        assert!(rows.len() > 9 * 3);
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU and NCCL 2.30.3 or newer"]
    fn several_ranks_on_one_real_gpu_do_every_collective() {
        let rows = rows(
            "nccl --gpus 0 --ranks 4 --nccl-env NCCL_MULTI_RANK_GPU_ENABLE=1 --operation all_reduce,\
             all_gather,reduce_scatter,broadcast,reduce,alltoall,gather,scatter,sendrecv \
             --sizes 4K,1M,16M --time-limit 100ms",
        );
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "communicator_ranks"), "4");
            assert!(rows.number(row, "bandwidth_gb_s_bus") > 0.0);
            assert_eq!(
                rows.cell(row, "path_verdict"),
                "proven",
                "{}",
                rows.cell(row, "path_reason")
            );
        }
    }
}
