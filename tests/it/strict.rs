//! What the driver and its variables make wait, on the simulated driver, which waits wherever any
//! driver does.

use std::{fs, path::Path, time::Instant};

use crate::common::{Rows, g2g, text};

/// Measures with these words and variables; the rows, and what was said.
fn measured(words: &str, variables: &[(&str, &str)]) -> (Rows, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let limit = if words.contains("--time-limit") { "" } else { "--time-limit 5ms" };
    let result = g2g()
        .args(words.split_whitespace())
        .args(limit.split_whitespace())
        .args(["--quiet", "--no-report", "--output"])
        .arg(&output)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(0), "{words} {variables:?}: {said}");
    let rows = Rows::read(&output);
    let statuses = (0..rows.len()).map(|row| rows.cell(row, "status"));
    assert!(statuses.clone().any(|status| status == "ok"), "{words}");
    for (row, status) in statuses.enumerate().filter(|(_, status)| *status != "skipped") {
        assert_eq!(status, "ok", "{words} {variables:?}: {}", rows.cell(row, "reason"));
    }
    (rows, said)
}

#[test]
fn the_first_work_of_each_kind_is_not_held() {
    for words in [
        "local --simulate p5.48xlarge --gpus 0 --sizes 4K,1000001,64M",
        "p2p --simulate p4d.24xlarge --gpus 0,1 --sizes 4K,1000001",
        "p2p --simulate p4d.24xlarge --ranks 2 --gpus 0,1 --pattern one-way,both-ways --sizes 1000001",
        "shm --simulate g5.12xlarge --gpus 0,1 --sizes 4K,1000001,20M",
        "shm --simulate g5.12xlarge --ranks 2 --sizes 1000001",
    ] {
        // Kernels of modules, too.
        measured(words, &[("CUDA_MODULE_LOADING", "LAZY")]);
    }
}

#[test]
fn many_flows_of_one_process_fit_into_its_queues() {
    let words = "p2p --simulate p5.48xlarge --pattern all-pairs --sizes 64K,8M";
    let (rows, _) = measured(words, &[]);
    for row in 0..rows.len() {
        assert!(!rows.cell(row, "flags").contains("unheld"), "{row}");
    }
}

#[test]
fn more_flows_than_a_queue_has_entries_are_held_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("many.toml");
    fs::write(&machine, "schema = 1\ngpu_count = 17\n").unwrap();
    let words = format!(
        "p2p --simulate {} --pattern all-pairs --engine ce --issuer write --operation copy --sizes 1M",
        machine.display()
    );
    let (rows, _) = measured(&words, &[]);
    assert_eq!((rows.cell(0, "flows"), rows.cell(0, "status")), ("272", "ok"));
    assert!(!rows.cell(0, "flags").contains("unheld"), "{}", rows.cell(0, "flags"));
}

#[test]
fn more_operations_than_a_queue_holds_run_without_a_hold_and_say_so() {
    for machine in ["p4d.24xlarge", "p5.48xlarge"] {
        for (count, is_unheld) in [(16, false), (256, true)] {
            let words = format!(
                "nccl --simulate {machine} --operation all_reduce,alltoall --place out-of-place \
                 -m {count} --sizes 64K"
            );
            let (rows, _) = measured(&words, &[]);
            for row in 0..rows.len() {
                let flags = rows.cell(row, "flags");
                assert_eq!(flags.contains("unheld"), is_unheld, "{words}: {flags}");
            }
        }
    }
}

#[test]
fn nccl_has_room_for_what_it_writes_of_held_operations() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("many.toml");
    fs::write(&machine, "schema = 1\ngpu_count = 40\nnvswitch = true\n[[gpu]]\nnvlinks = 12\n")
        .unwrap();
    for (flags, is_unheld) in [("-m 64", true), ("", false)] {
        let words = format!(
            "nccl --simulate {} --operation alltoall --sizes 4K --samples 2 {flags}",
            machine.display()
        );
        let (rows, _) = measured(&words, &[]);
        assert_eq!(rows.cell(0, "flags").contains("unheld"), is_unheld, "{flags}");
    }
}

#[test]
fn groups_and_graphs_of_nccl_are_connected_before_they_are_held() {
    for words in [
        "-m 16 --sizes 256K,1M",
        "-m 3 --sizes 4M",
        "-m 64 --sizes 64K",
        "-G 4 --sizes 4K,1M",
        "-G 4 -m 16 --sizes 64K",
        "--split MOD:2 --sizes 64K",
        "--registration symmetric --sizes 64K",
    ] {
        for machine in ["p4d.24xlarge", "p5.48xlarge"] {
            measured(
                &format!(
                    "nccl --simulate {machine} --operation all_reduce,all_gather,sendrecv {words}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn variables_that_make_launches_wait_are_replaced_with_a_note() {
    let words =
        "p2p --simulate p4d.24xlarge --gpus 0,1 --issuer write --operation copy --sizes 64K";
    for (name, value, instead) in
        [("CUDA_LAUNCH_BLOCKING", "1", "0"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "32")]
    {
        let (_, said) = measured(words, &[(name, value)]);
        let note = format!("note: {name}={value} is {instead} for this run: ");
        assert_eq!(said.matches(&note).count(), 1, "{said}");
    }
    let (_, said) = measured(words, &[("CUDA_DEVICE_MAX_CONNECTIONS", "32")]);
    assert!(!said.contains("note: "), "{said}");
}

#[test]
fn nothing_is_measured_under_a_profiler() {
    for name in ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"] {
        let began = Instant::now();
        let words = ["p2p", "--simulate", "p5.48xlarge", "--gpus", "0,1"];
        let result = g2g().args(words).env(name, "/opt/tool.so").output().unwrap();
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let words = [&format!("{name}=/opt/tool.so"), "run g2g without the tool"];
        assert!(words.iter().all(|word| said.contains(*word)), "{said}");
        assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    }
}

/// Words that measure on GPUs whose driver has these keys, at sizes that last long and short.
fn on_driver(folder: &Path, from: &str, keys: &str, words: &str) -> (Rows, String) {
    let machine = folder.join(format!("{from}.toml"));
    fs::write(&machine, format!("schema = 1\nfrom = \"{from}\"\n[driver]\n{keys}\n")).unwrap();
    measured(&format!("{words} --simulate {}", machine.display()), &[])
}

/// What can be measured on GPUs, each with its machine.
const WORDS: [(&str, &str); 4] = [
    ("p5.48xlarge", "local --gpus 0 --operation copy --sizes 64K,64M"),
    ("p4d.24xlarge", "p2p --gpus 0,1 --operation copy --issuer write --sizes 64K,64M"),
    ("g5.12xlarge", "shm --gpus 0,1 --pattern one-way --sizes 64K,64M"),
    ("p4d.24xlarge", "nccl --operation all_reduce --sizes 64K,64M"),
];

#[test]
fn clocks_have_risen_before_anything_is_timed() {
    let folder = tempfile::tempdir().unwrap();
    for (from, words) in WORDS {
        let keys = "event_error_ns = 0\nclock_rise_ms = 0";
        let (expected, _) = on_driver(folder.path(), from, keys, words);
        // With pauses of seconds between cases, in which clocks fall again.
        let keys = "event_error_ns = 0\nidle_clock_percent = 15\nclock_rise_ms = 400\n\
                    call_ms = 1500";
        let (rows, _) = on_driver(folder.path(), from, keys, words);
        assert_eq!(rows.len(), expected.len());
        for row in (0..rows.len()).filter(|&row| expected.cell(row, "status") == "ok") {
            assert!(!rows.cell(row, "flags").contains("clock_rose"), "{words}, row {row}");
            for column in ["bandwidth_gb_s", "latency_ns_p50"] {
                let of = rows.number(row, column) / expected.number(row, column);
                assert!((of - 1.0).abs() < 0.005, "{words}, row {row}: {column} is {of}");
            }
        }
    }
}

#[test]
fn a_clock_that_rises_while_it_is_measured_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let words = "local --gpus 0 --operation copy --engine ce --sizes 64M --samples 500 \
                 --time-limit 20ms";
    let (rows, _) = on_driver(folder.path(), "p5.48xlarge", "clock_rise_ms = 5000", words);
    assert!(rows.cell(0, "flags").contains("clock_rose"), "{}", rows.cell(0, "flags"));
}
