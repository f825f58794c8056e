//! What goes wrong on a machine with GPUs is told, costs no row that was finished, and leaves
//! nothing behind.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::common::{
    Rows, g2g, program, run,
    simulation::{FREE_EVENTS, Simulated, four_gpus, four_plain_gpus},
    text,
};

/// The row of this transport between these GPUs.
fn find(rows: &Rows, wanted: &[(&str, &str)]) -> usize {
    let is_it = |row: &usize| wanted.iter().all(|(column, cell)| rows.cell(*row, column) == *cell);
    (0..rows.len()).find(is_it).unwrap_or_else(|| panic!("no row has {wanted:?}"))
}

#[test]
fn refused_peers_are_skipped_with_the_drivers_reason_and_measured_through_the_host() {
    let refused = "\n[[pair]]\nsource = 0\ntarget = 1\nboth_ways = true\nread_allowed = false\n\
                   write_allowed = false\n";
    let line = "run --gpus 0-2 --ranks 1 --sizes 1M --operation copy --time-limit 20ms";
    let run = Simulated::run(&four_plain_gpus(refused), line);
    let rows = run.rows();
    let pair = |transport, source, target| {
        [
            ("transport", transport),
            ("source_gpu", source),
            ("target_gpu", target),
            ("issuer", "read"),
        ]
    };
    for (source, target) in [("0", "1"), ("1", "0")] {
        let row = find(&rows, &pair("p2p", source, target));
        assert_eq!(rows.cell(row, "status"), "skipped");
        let reason = rows.cell(row, "reason");
        assert!(
            reason.starts_with(&format!("GPU {target} cannot reach GPU {source}'s memory: ")),
            "{reason}"
        );
        assert!(reason.contains("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED (217)"), "{reason}");
        let through_host = find(&rows, &pair("shm", source, target)[..3]);
        assert_eq!(rows.cell(through_host, "status"), "ok");
    }
    assert_eq!(rows.cell(find(&rows, &pair("p2p", "0", "2")), "status"), "ok");
    assert!(run.stdout.contains("skipped"), "{}", run.stdout);
}

#[test]
fn a_pair_refused_in_one_direction_is_told_so() {
    // GPU 1 reaches into GPU 0 neither to read nor to write; GPU 0 reaches into GPU 1.
    let refused = "\n[[pair]]\nsource = 0\ntarget = 1\nread_allowed = false\n\n[[pair]]\n\
                   source = 1\ntarget = 0\nwrite_allowed = false\n";
    let line = "p2p --gpus 0,1 --sizes 1M --engine ce --operation copy --time-limit 20ms";
    let rows = Simulated::run(&four_plain_gpus(refused), line).rows();
    for (source, issuer, status) in [
        ("0", "read", "skipped"),
        ("0", "write", "ok"),
        ("1", "read", "ok"),
        ("1", "write", "skipped"),
    ] {
        let row = find(&rows, &[("source_gpu", source), ("issuer", issuer)]);
        assert_eq!(rows.cell(row, "status"), status, "{source} {issuer}");
        if status == "skipped" {
            let reason = rows.cell(row, "reason");
            let told =
                "GPU 1 cannot reach GPU 0's memory; in this direction only: GPU 0 reaches GPU 1's";
            assert!(reason.starts_with(told), "{reason}");
        }
    }
}

/// Every call that a run makes and how often, by the report of its first process.
fn calls(line: &str) -> BTreeMap<String, u64> {
    let run = Simulated::run(&four_gpus("", ""), line);
    run.rows();
    let mut calls = BTreeMap::new();
    for process in run.report() {
        assert_eq!(lost(&process), [""; 0], "{line}");
        for (name, count) in process["calls"].as_object().unwrap() {
            let most: &mut u64 = calls.entry(name.clone()).or_default();
            *most = count.as_u64().unwrap().max(*most);
        }
    }
    calls
}

/// What a process has not given back.
fn lost(process: &serde_json::Value) -> Vec<String> {
    let live = process["live"].as_object().unwrap();
    let kept = live.iter().filter(|(_, count)| count.as_u64() != Some(0));
    kept.map(|(kind, count)| format!("{count} {kind}")).collect()
}

/// Calls that give something back: when they fail, it stays.
const RELEASES: [&str; 12] = [
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease",
    "cuEventDestroy",
    "cuIpcCloseMemHandle",
    "cuMemAddressFree",
    "cuMemFree",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuStreamDestroy",
    "cuStreamQuery",
];

/// Lets `call` fail once, after it went well `after` times, and looks at what becomes of it;
/// whether it was called so often.
fn assert_failing_call(line: &str, call: &str, after: u64) -> bool {
    let fault = format!("\n[[fault.call]]\nname = \"{call}\"\nafter = {after}\ncode = 719\n");
    let run = Simulated::run(&four_gpus("", &fault), line);
    let what = format!("{line}: {call} after {after}: {} {}{}", run.code, run.stdout, run.stderr);
    assert!((0..=2).contains(&run.code), "{what}");
    let so_often = |process: &Value| process["calls"][call].as_u64() > Some(after);
    if !run.report().iter().any(so_often) {
        run.rows();
        return false;
    }
    let told = if run.code == 2 {
        // Nothing could be measured, and nothing was left behind.
        assert!(!run.folder.path().join("run").exists(), "{what}");
        run.stderr.clone()
    } else {
        let rows = run.rows_whatever_happened();
        assert!(rows.len() > 0, "{what}");
        let bad = (0..rows.len()).filter(|&row| rows.cell(row, "status") == "failed").count();
        assert_eq!(run.code, i32::from(bad > 0), "{what}");
        let reasons = (0..rows.len()).map(|row| rows.cell(row, "reason").to_owned());
        // What is not known of the machine is listed beside what is.
        let topology = fs::read_to_string(run.folder.path().join("run/topology.json"));
        reasons.collect::<Vec<String>>().join("\n") + &run.stderr + &topology.unwrap_or_default()
    };
    // NVML's answers are facts that a table shows, and one that is missing is shown as such.
    if !call.starts_with("nvml") {
        assert!(told.contains(&format!("{call}(")), "{what}");
        assert!(told.contains("CUDA_ERROR_LAUNCH_FAILED (719): "), "{what}");
    }
    for process in run.report() {
        let lost = lost(&process);
        assert!(lost.is_empty() || RELEASES.contains(&call), "{what}: {lost:?} not given back");
    }
    true
}

#[test]
fn every_driver_call_may_fail_at_its_first_at_a_later_and_at_its_last_use() {
    let common = "--sizes 64K --time-limit 1ms";
    let mut seen: Vec<String> = Vec::new();
    let mut last = 0;
    // The cheapest first: each call is made to fail where it is met first.
    for line in [
        format!("p2p --gpus 0,1 --issuer read {common}"),
        format!("local --gpus 0 --operation copy,read-only,write-only {common}"),
        format!("shm --gpus 0,1 --ranks 1 --numa 0:0 {common}"),
        format!("p2p --gpus 0,1 --ranks 2 --engine ce --handle ipc {common}"),
        format!("p2p --gpus 0,1 --ranks 2 --engine ce --handle cumem {common}"),
        format!("p2p --gpus 0,1 --ranks 2 --engine ce --pattern both-ways {common}"),
        format!("shm --gpus 0,1 --ranks 2 --pattern one-way --numa 0:0 {common}"),
    ] {
        for (call, count) in calls(&line) {
            // These two only explain a failure that another call has had.
            if call.starts_with("cuGetError") || seen.contains(&call) {
                continue;
            }
            assert!(assert_failing_call(&line, &call, 0));
            // How often a call is made varies with the time that things take, but not so much.
            if count > 1 {
                assert!(assert_failing_call(&line, &call, (count / 4).clamp(1, 10)));
            }
            // The last of many queries may be one that waits for a release, which tells nobody.
            let is_polled = call == "cuStreamQuery";
            if count > 2 && !is_polled && assert_failing_call(&line, &call, count - 1) {
                last += 1;
            }
            seen.push(call);
        }
    }
    assert!(last > 30, "{last} of {} calls failed at their last use", seen.len());
    for needed in
        ["cuLaunchKernel", "cuMemcpyAsync", "cuIpcOpenMemHandle", "cuMemMap", "cuMemHostRegister"]
    {
        assert!(seen.iter().any(|call| call == needed), "{needed} was never called");
    }
}

#[test]
fn a_wrong_byte_in_a_gpus_memory_is_found_wherever_it_is() {
    let size = (1 << 20) + 5;
    for offset in [0, 1, size / 2, (size / 2) | 7, size - 5, size - 1] {
        let flip =
            format!("\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = {offset}\nalways = true\n");
        let line = format!("p2p --gpus 0-2 --sizes {size} --operation copy --time-limit 20ms");
        let run = Simulated::run(&four_gpus("", &flip), &line);
        assert_eq!(run.code, 1, "{}", run.stderr);
        let rows = run.rows_whatever_happened();
        for row in 0..rows.len() {
            let is_hit = (rows.cell(row, "source_gpu"), rows.cell(row, "target_gpu")) == ("0", "1");
            assert_eq!(rows.cell(row, "status"), if is_hit { "corrupt" } else { "ok" });
            if is_hit {
                assert_eq!(rows.cell(row, "corrupt_offset_bytes"), offset.to_string());
                assert_eq!(
                    (rows.cell(row, "corrupt_bytes"), rows.cell(row, "corrupt_rank")),
                    ("1", "0")
                );
                assert_ne!(rows.cell(row, "corrupt_expected"), rows.cell(row, "corrupt_found"));
                for empty in ["bandwidth_gb_s", "bandwidth_gb_s_total", "latency_ns_p50"] {
                    assert_eq!(rows.cell(row, empty), "", "{empty}");
                }
            }
        }
        assert!(run.stdout.contains("CORRUPT"), "{}", run.stdout);
    }
}

#[test]
fn one_wrong_byte_among_good_transfers_is_found_where_single_ones_are_proven() {
    let line = "p2p --gpus 0,1 --engine ce --issuer write --sizes 64K --operation copy \
                --time-limit 50ms";
    let clean = Simulated::run(&four_gpus("", FREE_EVENTS), line).rows();
    let operations = clean.number(0, "operations_per_sample");
    // The warm-up takes samples of one operation, then 3 of what a sample holds. What it
    // leaves behind is not what is verified; the 16 single operations behind it are.
    let warm_up = 3.0 + 3.0 * operations;
    for (after, status) in [(1.0, "ok"), (warm_up - 1.0, "ok"), (warm_up + 5.0, "corrupt")] {
        let flip =
            format!("\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = 4242\nafter = {after}\n");
        let rows = Simulated::run(&four_gpus("", &format!("{flip}{FREE_EVENTS}")), line)
            .rows_whatever_happened();
        let row = find(&rows, &[("source_gpu", "0")]);
        assert_eq!(rows.cell(row, "status"), status, "after {after} of {warm_up}");
        assert_eq!(rows.cell(find(&rows, &[("source_gpu", "1")]), "status"), "ok");
    }
}

#[test]
fn bad_input_is_refused_in_one_sentence_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, machine: &str| {
        let path = folder.path().join(name);
        fs::write(&path, machine).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = write("good.toml", &four_gpus("", "").replace("report", "# report"));
    let key = write("key.toml", "schema = 1\n\n[[gpu]]\nmemori_mib = 8\n");
    let value = write("value.toml", "schema = 1\n\n[[pair]]\nsource = 0\ntarget = 9\n");
    let output = folder.path().join("run");
    for (line, parts) in [
        (format!("p2p --simulate {good} --gpus 0,7"), vec!["no GPU 7", "0 1 2 3"]),
        (format!("p2p --simulate {good} --gpus 1,1"), vec!["GPU 1 is named twice"]),
        (format!("p2p --simulate {good} --gpus 1"), vec!["p2p needs 2 GPUs or more"]),
        (format!("p2p --simulate {good} --sizes 9G"), vec!["9 GiB", "8.0 GiB of memory"]),
        (format!("p2p --simulate {good} --gpus 0,1,2 --pattern pairs"), vec!["nothing of it fits"]),
        ("p2p --simulate p5.48xlagre".to_owned(), vec!["p5.48xlagre", "p5.48xlarge"]),
        (format!("topo --simulate {key}"), vec!["key.toml", "line 4", "memori_mib"]),
        (format!("topo --simulate {value}"), vec!["value.toml", "line 5", "target"]),
        ("topo --simulate absent.toml".to_owned(), vec!["absent.toml"]),
    ] {
        let mut command = g2g();
        command.args(line.split_whitespace());
        if !line.starts_with("topo") {
            command.arg("--output").arg(&output);
        }
        let result = command.output().unwrap();
        let told = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{line}: {told}");
        assert_eq!(told.lines().count(), 1, "{line}: {told}");
        for part in parts {
            assert!(told.contains(part), "{line}: {told}");
        }
        assert!(!output.exists(), "{line}");
    }
}

#[test]
fn this_machines_own_memory_is_not_passed_for_a_simulated_ones() {
    let line = "shm --gpus 0,1 --sizes 64K --engine ce --time-limit 5ms";
    let rows = Simulated::run(&four_gpus("", ""), line).rows();
    assert!((0..rows.len()).all(|row| rows.cell(row, "engine") != "cpu"));
    let absent = find(&rows, &[("status", "skipped")]);
    assert!(rows.cell(absent, "reason").contains("this machine's own memory"));
    assert_eq!(rows.len(), 3);
}

#[test]
fn a_simulated_run_says_so_everywhere() {
    let run = Simulated::run(&four_gpus("", ""), "p2p --gpus 0,1 --sizes 1M --time-limit 20ms");
    let rows = run.rows();
    assert!((0..rows.len()).all(|row| rows.cell(row, "simulated") == "true"));
    let json = fs::read_to_string(run.folder.path().join("run/run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["provenance"]["simulated"], true);
    assert!(json["provenance"]["libraries"][0]["path"].as_str().unwrap().ends_with("libsimgpu.so"));
    for title in
        run.stdout.lines().filter(|line| line.contains("p2p copy") && line.contains(", GB/s "))
    {
        assert!(title.ends_with("[SIMULATED]"), "{title}");
    }
}

#[test]
fn nothing_brings_the_simulated_machine_in_but_the_flag() {
    let build = Path::new(program()).parent().unwrap();
    assert!(build.join("libsimgpu.so").exists(), "`cargo build --workspace` makes it");
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for folder in [build.to_owned(), build.join("deps")] {
        let wrong =
            |name: &String| name.starts_with("libcuda.so") || name.starts_with("libnvidia-ml");
        assert_eq!(names(&folder).into_iter().filter(wrong).count(), 0, "{}", folder.display());
    }
    // What cargo sets for the programs that it runs, and more.
    let path = format!("{0}:{0}/deps", build.display());
    let mut command = g2g();
    command.env("LD_LIBRARY_PATH", path);
    let result = run(command, "run --dry-run --ranks 1");
    let listed = text(&result.stdout);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    assert!(!listed.contains("GPU 0"), "{listed}");
    assert!(listed.contains("1 local skipped: libcuda.so"), "{listed}");
}
