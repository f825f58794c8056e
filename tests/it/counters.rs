//! The path of the data by counters, and what happens to GPUs meanwhile, on machines where both are
//! known.

use std::{
    io::{self, Write},
    process::Command,
};

use crate::common::{QUICK, Rows, program, simulation::Simulated, text, verified};

/// Two GPUs that copy 1 MiB each way by their engines.
const COPIES: &str =
    "p2p --gpus 0,1 --engine ce --operation copy --sizes 1M --time-limit 50ms --quiet";

fn machine(rest: &str) -> String {
    format!("schema = 1\n{rest}\n")
}

/// Path and verdict of each row, each once.
fn paths(rows: &Rows) -> Vec<(String, String)> {
    let of = |row| {
        assert_eq!(rows.cell(row, "status"), "ok", "{}", rows.cell(row, "reason"));
        assert!(!rows.cell(row, "path_reason").is_empty());
        (rows.cell(row, "path").to_owned(), rows.cell(row, "path_verdict").to_owned())
    };
    let mut paths: Vec<_> = (0..rows.len()).map(of).collect();
    paths.sort();
    paths.dedup();
    paths
}

fn assert_paths(run: &Simulated, path: &str, verdict: &str) {
    let said = format!("{}{}", run.stdout, run.stderr);
    assert_eq!(paths(&run.rows()), [(path.to_owned(), verdict.to_owned())], "{said}");
}

fn assert_carried(run: &Simulated, expected: f64) {
    let rows = run.rows();
    assert!(rows.len() > 0);
    for row in 0..rows.len() {
        let carried = rows.number(row, "wire_bytes_per_payload_byte");
        assert!((carried - expected).abs() < 1e-3, "{carried}, not {expected}");
    }
}

#[test]
fn nvlinks_prove_what_they_carry_in_one_process_and_between_two() {
    for ranks in [1, 2] {
        let line = format!("{COPIES} --ranks {ranks}");
        let run = Simulated::run(&machine("from = 'p4d.24xlarge'"), &line);
        assert_paths(&run, "nvlink", "proven");
        assert_carried(&run, 1.0);
        assert!(run.stdout.contains("path proven by counters: nvlink\n"), "{}", run.stdout);
    }
    let line = "p2p --gpus 0-3 --pattern all-pairs,one-to-all --sizes 1M --time-limit 50ms \
                --operation copy --quiet";
    assert_paths(&Simulated::run(&machine("from = 'p5.48xlarge'"), line), "nvlink", "proven");
}

#[test]
fn without_nvlinks_it_is_pcie_and_through_the_host_it_is_host_memory() {
    let run = Simulated::run(&machine("from = 'p2.8xlarge'"), COPIES);
    assert_paths(&run, "pcie", "proven");
    assert_carried(&run, 1.0);
    let line = "shm --gpus 0,1 --ranks 2 --sizes 4M --time-limit 50ms --pattern one-way --quiet";
    let rows = Simulated::run(&machine("from = 'p4d.24xlarge'"), line).rows();
    let of_gpus = (0..rows.len()).filter(|&row| !rows.cell(row, "source_gpu").is_empty());
    let of_gpus: Vec<usize> = of_gpus.collect();
    assert!(!of_gpus.is_empty());
    for row in of_gpus {
        let told = ["path", "path_verdict"].map(|column| rows.cell(row, column));
        let reason = rows.cell(row, "path_reason");
        assert_eq!(told, ["host-memory", "proven"], "{reason}");
        assert!(reason.contains("; /dev/shm held "), "{reason}");
    }
    let line = "local --gpus 0 --sizes 4M --operation copy --time-limit 50ms --quiet";
    let rows = Simulated::run(&machine("from = 'p4d.24xlarge'"), line).rows();
    assert!(rows.len() > 0);
    for row in 0..rows.len() {
        let is_within = rows.cell(row, "source_memory") == rows.cell(row, "target_memory")
            && rows.cell(row, "pattern") == "one-way";
        let expected = if is_within { "gpu-memory" } else { "pcie" };
        let told = ["path", "path_verdict"].map(|column| rows.cell(row, column));
        assert_eq!(told, [expected, "proven"], "{}", rows.cell(row, "path_reason"));
    }
}

#[test]
fn what_goes_another_way_than_asked_is_found() {
    let detour = "\n[[fault.detour]]\nsource = 0\ntarget = 1\n";
    let run = Simulated::run(&machine(&format!("from = 'p4d.24xlarge'{detour}")), COPIES);
    for told in [
        "path CONTRADICTED: ",
        " (2 of 4 rows, the first p2p copy read ce, GPU 0 -> GPU 1, 1 MiB)\n",
    ] {
        assert!(run.stdout.contains(told), "{}", run.stdout);
    }
    let rows = run.rows();
    assert_eq!(rows.len(), 4);
    for row in 0..4 {
        let expected = match rows.cell(row, "source_gpu") {
            "0" => ["pcie", "contradicted"],
            _ => ["nvlink", "proven"],
        };
        let told = ["path", "path_verdict"].map(|column| rows.cell(row, column));
        assert_eq!(told, expected, "{}", rows.cell(row, "path_reason"));
    }
    // One pair of many.
    let line = "p2p --gpus 0-3 --pattern all-pairs --engine sm --sizes 1M --time-limit 50ms \
                --operation copy --quiet";
    let run = Simulated::run(&machine(&format!("from = 'p4d.24xlarge'{detour}")), line);
    assert_paths(&run, "nvlink + pcie", "contradicted");
}

#[test]
fn counters_that_do_not_count_prove_nothing() {
    for (defect, said) in [
        ("[[gpu]]\nordinals = [1]\nnvlink_counters = false", "does not tell what its NVLinks"),
        ("[[fault.health]]\nwhat = 'lost'\nafter_mib = 1", "does not answer"),
        (
            "[[fault.call]]\nname = 'nvmlDeviceGetFieldValues'\ncode = 999\nalways = true",
            "does not",
        ),
        ("[[fault.call]]\nname = 'nvmlInit'\ncode = 9\nalways = true", "does not answer"),
    ] {
        let run = Simulated::run(&machine(&format!("from = 'p4d.24xlarge'\n{defect}")), COPIES);
        let rows = run.rows();
        assert!(rows.len() > 0);
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "path_verdict"), "unknown", "{defect}");
            assert_eq!(rows.cell(row, "wire_bytes_per_payload_byte"), "", "{defect}");
            let reason = rows.cell(row, "path_reason");
            assert!(reason.contains(said), "{defect}: {reason}");
        }
    }
}

#[test]
fn counters_that_begin_anew_prove_nothing_wrong() {
    for after_mib in [1000, 1500, 2000] {
        let restart = format!(
            "from = 'p4d.24xlarge'\n[[fault.health]]\ngpu = 0\nwhat = 'counters-restart'\n\
             after_mib = {after_mib}"
        );
        let rows = Simulated::run(&machine(&restart), &format!("{COPIES} --samples 500")).rows();
        let verdicts: Vec<&str> =
            (0..rows.len()).map(|row| rows.cell(row, "path_verdict")).collect();
        assert!(verdicts.contains(&"unknown"), "{after_mib}: {verdicts:?}");
        assert!(!verdicts.contains(&"contradicted"), "{after_mib}: {verdicts:?}");
    }
}

#[test]
fn pcie_counters_that_run_over_or_are_not_there_prove_nothing() {
    // In the larger one the counters run over.
    let large = COPIES.replace("1M", "512M --issuer read").replace("50ms", "1s --samples 10");
    for (bits, line) in [(0, COPIES), (32, large.as_str())] {
        let file = machine(&format!("from = 'p2.8xlarge'\n[[gpu]]\npcie_counter_bits = {bits}"));
        let rows = Simulated::run(&file, line).rows();
        assert!(rows.len() > 0);
        for row in 0..rows.len() {
            let told = ["path", "path_verdict", "wire_bytes_per_payload_byte"]
                .map(|column| rows.cell(row, column));
            assert_eq!(told, ["pcie", "unknown", ""]);
            assert!(rows.cell(row, "path_reason").starts_with("there are no NVLinks"));
        }
    }
    let file = machine("from = 'p2.8xlarge'\n[[gpu]]\npcie_counter_bits = 32");
    let run = Simulated::run(&file, COPIES);
    assert_paths(&run, "pcie", "proven");
    assert_carried(&run, 1.0);
}

/// The flags of health in a run on a machine with a defect.
fn flags(defect: &str) -> (Vec<String>, Simulated) {
    let run = Simulated::run(&machine(&format!("from = 'p4d.24xlarge'\n{defect}")), COPIES);
    let rows = run.rows();
    let all = |row| rows.cell(row, "flags").split_whitespace().map(str::to_owned).collect();
    const OTHERS: [&str; 5] =
        ["not_converged", "few_bandwidth_samples", "short_samples", "timer_coarse", "shared_cpus"];
    let flags = (0..rows.len()).map(|row| {
        let all: Vec<String> = all(row);
        let own: Vec<String> =
            all.into_iter().filter(|flag| !OTHERS.contains(&flag.as_str())).collect();
        own.join(" ")
    });
    let flags = flags.collect();
    (flags, run)
}

#[test]
fn each_defect_has_its_flag_and_nothing_else_in_the_row_in_which_it_came() {
    let (none, run) = flags("");
    assert_eq!(none, ["", "", "", ""], "{}", run.stderr);
    assert!(!run.stderr.contains("note:"), "{}", run.stderr);
    for (what, flag, said) in [
        ("what = 'ecc-corrected'", "new_ecc_errors", "1 errors of its memory more were mended"),
        ("what = 'ecc-uncorrected'\ncount = 3", "new_ecc_errors", "3 were not"),
        ("what = 'nvlink-crc'", "new_nvlink_errors", "on its NVLinks"),
        ("what = 'nvlink-replay'", "new_nvlink_errors", "on its NVLinks"),
        ("what = 'nvlink-recovery'", "new_nvlink_errors", "on its NVLinks"),
        ("what = 'pcie-replay'\ncount = 7", "new_pcie_replays", "7 packets"),
        ("what = 'xid'\nxid = 79", "xid", "Xid 79"),
        (
            "what = 'throttle'\nreason = 'sw-power-cap'\nfor_mib = 50",
            "throttled",
            "held down by the power limit",
        ),
    ] {
        let (flags, run) = flags(&format!("[[fault.health]]\ngpu = 1\nafter_mib = 100\n{what}"));
        let raised: Vec<&String> = flags.iter().filter(|flags| !flags.is_empty()).collect();
        assert_eq!(raised, [flag], "{what}: {flags:?}");
        let note = run.stderr.lines().filter(|line| line.starts_with("note:")).collect::<Vec<_>>();
        assert_eq!(note.len(), 1, "{what}: {}", run.stderr);
        assert!(note[0].contains("GPU 1") && note[0].contains(said), "{what}: {note:?}");
    }
}

#[test]
fn what_happens_to_gpus_in_a_case_whose_data_is_wrong_is_told_there() {
    let file = "from = 'p4d.24xlarge'\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = 5\nalways = true\n\
                [[fault.health]]\ngpu = 1\nwhat = 'ecc-uncorrected'\nafter_mib = 2\n\
                [[fault.health]]\ngpu = 1\nwhat = 'xid'\nxid = 94\nafter_mib = 2";
    let run = Simulated::run(&machine(file), COPIES);
    let rows = run.rows_whatever_happened();
    let of = |row| (rows.cell(row, "status"), rows.cell(row, "flags"));
    let told: Vec<(&str, &str)> = (0..rows.len()).map(of).collect();
    assert_eq!(told[0], ("corrupt", "new_ecc_errors xid"), "{told:?}");
    assert!(told[1..].iter().all(|(_, flags)| !flags.contains("xid")), "{told:?}");
}

#[test]
fn a_gpu_without_a_part_in_a_collective_raises_no_flag() {
    let line = "nccl --gpus 0,1 --operation all_gather --sizes 1M --time-limit 50ms --quiet";
    let throttled = |gpu: u32| {
        let file = format!(
            "from = 'p4d.24xlarge'\n[[gpu]]\nordinals = [{gpu}]\nthrottle = ['sw-power-cap']"
        );
        let rows = Simulated::run(&machine(&file), line).rows();
        assert!(rows.len() > 0);
        (0..rows.len()).all(|row| rows.cell(row, "flags").contains("throttled"))
    };
    assert!(throttled(1) && !throttled(5));
}

#[test]
fn who_waits_for_errors_in_vain_does_not_say_that_there_were_none() {
    let xids = |fault: &str| {
        let (_, run) = flags(fault);
        let text = std::fs::read_to_string(run.folder.path().join("run/run.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["health"][0]["xids"].clone()
    };
    let silent = "[[fault.call]]\nname = 'nvmlEventSetWait'\ncode = 999\nalways = true";
    assert!(xids(silent).is_null());
    // One that refuses keeps none of the others from it.
    let one = "[[fault.call]]\nname = 'nvmlDeviceRegisterEvents'\ncode = 3\n\
               [[fault.health]]\ngpu = 1\nwhat = 'xid'\nxid = 79\nafter_mib = 100";
    assert_eq!(xids(one)[0]["number"], 79);
}

#[test]
fn clocks_that_are_held_down_for_the_whole_run_are_a_flag_of_every_row() {
    for reason in ["sw-power-cap", "hw-slowdown", "sw-thermal-slowdown", "hw-power-brake"] {
        let (all, run) = flags(&format!("[[gpu]]\nordinals = [0]\nthrottle = ['{reason}']"));
        assert_eq!(all, ["throttled"; 4], "{reason}");
        let notes = run.stderr.lines().filter(|line| line.starts_with("note:")).count();
        assert_eq!(notes, 1, "{}", run.stderr);
    }
    for reason in ["gpu-idle", "applications-clocks-setting", "sync-boost"] {
        let (all, _) = flags(&format!("[[gpu]]\nordinals = [0]\nthrottle = ['{reason}']"));
        assert_eq!(all, [""; 4], "{reason}");
    }
}

#[test]
fn errors_from_before_the_run_are_told_and_no_doubt() {
    let (all, run) = flags("[[gpu]]\nordinals = [3]\necc_errors = 5\ntemperature_c = 77");
    assert_eq!(all, [""; 4]);
    let text = std::fs::read_to_string(run.folder.path().join("run/run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let host = &json["health"][0];
    for moment in ["start", "end"] {
        let gpu = &host[moment][3];
        assert_eq!(gpu["gpu"], 3);
        assert_eq!((&gpu["ecc_uncorrected"], &gpu["temperature_c"]), (&5.into(), &77.into()));
    }
    assert_eq!(host["start"].as_array().unwrap().len(), 8);
    assert!(host["xids"].as_array().unwrap().is_empty());
    let printed = Simulated::run(
        &machine("from = 'p4d.24xlarge'"),
        &format!("{COPIES} --format json --issuer read"),
    );
    let file = std::fs::read_to_string(printed.folder.path().join("run/run.json")).unwrap();
    assert_eq!(printed.stdout, file);
}

#[test]
fn a_lost_gpu_is_a_flag() {
    let (all, run) = flags("[[fault.health]]\ngpu = 1\nwhat = 'lost'\nafter_mib = 100");
    assert_eq!(all.iter().filter(|flags| *flags == "gpu_lost").count(), 1, "{all:?}");
    assert!(run.stderr.contains("it answers no more"), "{}", run.stderr);
}

#[test]
fn collectives_have_the_bytes_of_nvlinks_beside_their_log() {
    let line = "nccl --gpus 0-3 --operation all_gather --sizes 16M --time-limit 50ms --quiet";
    let rows = Simulated::run(&machine("from = 'p4d.24xlarge'"), line).rows();
    assert!(rows.len() > 0);
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "path_verdict"), "proven");
        let reason = rows.cell(row, "path_reason");
        assert!(reason.contains("bytes over NVLink for each byte of the size"), "{reason}");
        // In a ring of four each GPU sends three quarters.
        let carried = rows.number(row, "wire_bytes_per_payload_byte");
        assert!((carried - 0.75).abs() < 0.01, "{carried}");
    }
}

#[test]
fn the_real_network_of_this_host_is_counted() {
    // In a network of its own nobody else uses its loopback.
    let apart = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]);
        command
    };
    if !apart().arg("true").status().is_ok_and(|status| status.success()) {
        let said = "SKIPPED the_real_network: this user may make no namespaces\n";
        io::stderr().write_all(said.as_bytes()).unwrap();
        return;
    }
    for (provider, path) in [("tcp", "loopback"), ("shm", "host-memory")] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let line = format!(
            "rdma --ranks 2 --provider {provider} --memory host --sizes 1M --pattern one-way \
             {QUICK} --no-report --output {}",
            output.display()
        );
        let mut command = apart();
        command.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        command.arg(program()).args(line.split_whitespace());
        let result = command.output().unwrap();
        let said = format!("{}{}", text(&result.stdout), text(&result.stderr));
        let rows = verified(&result, &output, &said);
        assert!(rows.len() > 0);
        for row in 0..rows.len() {
            let told = ["path", "path_verdict"].map(|column| rows.cell(row, column));
            assert_eq!(told, [path, "proven"], "{}", rows.cell(row, "path_reason"));
            if provider == "tcp" {
                let carried = rows.number(row, "wire_bytes_per_payload_byte");
                assert!((1.0..1.2).contains(&carried), "{carried}");
            }
        }
    }
}
