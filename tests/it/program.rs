//! The program from outside: what it prints, what it leaves, and how it refuses.

use std::{fs, path::Path, process::Command};

use crate::common::{Rows, g2g, program, run, text};

/// A run that ends soon, with its folder.
fn quick(folder: &Path, more: &str) -> std::process::Output {
    measured("shm", folder, more)
}

fn measured(command: &str, folder: &Path, more: &str) -> std::process::Output {
    let line = format!(
        "{command} --numa 0:0 --sizes 64,70001 --samples 20 --time-limit 20ms --output {} {more}",
        folder.display()
    );
    run(g2g(), &line)
}

#[test]
fn the_binary_needs_nothing_but_libc_and_its_companions() {
    let ldd = Command::new("ldd").arg(program()).output().unwrap();
    for line in text(&ldd.stdout).lines() {
        let name = line.trim();
        let known = [
            "linux-vdso",
            "libgcc_s.so",
            "libc.so",
            "libm.so",
            "libpthread.so",
            "libdl.so",
            "ld-linux",
        ];
        assert!(known.iter().any(|known| name.contains(known)), "{line}");
    }
}

#[test]
fn a_run_leaves_a_folder_with_verified_rows_and_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("new/run");
    let result = measured("run", &output, "--operation copy,write");
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    // local, p2p; shm one way and both ways at two sizes; nccl; rdma over tcp and over shm one way
    // and both ways at two sizes.
    assert_eq!(rows.len(), 15);
    for row in 0..15 {
        assert_eq!(rows.cell(row, "case"), (row + 1).to_string());
        assert_eq!(rows.cell(row, "simulated"), "false");
        if ["shm", "rdma"].contains(&rows.cell(row, "transport")) {
            assert_eq!(rows.cell(row, "status"), "ok");
            let column = |name: &str| rows.number(row, name);
            assert!(column("bandwidth_gb_s_low") <= column("bandwidth_gb_s"));
            assert!(column("bandwidth_gb_s") <= column("bandwidth_gb_s_high"));
            let flows = column("flows");
            let total = column("bandwidth_gb_s_total");
            assert!((total / flows - column("bandwidth_gb_s")).abs() < 1e-9 * total);
            assert!(column("latency_ns_p50") <= column("latency_ns_max"));
            assert!(column("bandwidth_samples") >= 1.0 && column("latency_samples") >= 1.0);
        } else {
            assert_eq!(rows.cell(row, "status"), "skipped");
            assert!(rows.cell(row, "reason").contains(".so"), "{}", rows.cell(row, "reason"));
            assert_eq!(rows.cell(row, "bandwidth_gb_s"), "");
        }
    }
    let printed = text(&result.stdout);
    assert!(printed.contains(" rank 0 (NUMA node") && printed.contains("every byte verified"));
    assert!(printed.contains("Not measured:\n  local "), "{printed}");
    // A log has a line a row, and no bar.
    let log = text(&result.stderr);
    let is_third = |line: &str| {
        line.starts_with("[3/15, ")
            && line.contains(" left] shm copy host memory, rank 0 (")
            && line.contains(", 64 B: ")
    };
    assert!(log.lines().any(is_third), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains('\r'), "{log:?}");

    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(output.join("run.json")).unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 15);
    assert_eq!(json["rows"][2]["bandwidth_gb_s"].as_f64(), Some(rows.number(2, "bandwidth_gb_s")));
    assert_eq!(json["provenance"]["ranks"], 2);
}

#[test]
fn the_environment_is_recorded_by_an_allow_list() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let mut command = g2g();
    command.env("NCCL_P2P_LEVEL", "NVL").env("AWS_SECRET_ACCESS_KEY", "hidden-word");
    command.env("FI_PROVIDER", "efa");
    run(command, &format!("run --ranks 1 --quiet --output {}", output.display()));
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    assert!(!json.contains("hidden-word") && !json.contains("AWS_SECRET"), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // What g2g sets for itself, too.
    let expected = serde_json::json!([
        ["CUDA_DEVICE_MAX_CONNECTIONS", "32"],
        ["CUDA_LAUNCH_BLOCKING", "0"],
        ["CUDA_MODULE_LOADING", "EAGER"],
        ["FI_PROVIDER", "efa"],
        ["NCCL_P2P_LEVEL", "NVL"]
    ]);
    assert_eq!(json["provenance"]["environment"], expected);
}

#[test]
fn standard_output_is_the_file_in_the_form_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for (format, file) in [("csv", "run.csv"), ("json", "run.json")] {
        let output = folder.path().join(format);
        let result = quick(&output, &format!("--quiet --format {format}"));
        assert_eq!(text(&result.stdout), fs::read_to_string(output.join(file)).unwrap());
        assert_eq!(text(&result.stderr), "");
    }
}

#[test]
fn a_dry_run_prints_the_cases_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = g2g();
    command.current_dir(&folder);
    let result = run(command, "shm --dry-run --numa 0:0 --sizes 64,1M --pattern one-way");
    assert_eq!(result.status.code(), Some(0));
    let printed = text(&result.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("1 shm copy host memory, rank 0 (NUMA node "), "{printed}");
    assert!(lines[1].ends_with(" 1 MiB"), "{printed}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn one_rank_alone_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let result = measured("run", &folder.path().join("run"), "--ranks 1");
    assert_eq!(result.status.code(), Some(0));
    assert_eq!(text(&result.stdout).matches("give --ranks 2 or more").count(), 2);
    for command in ["shm", "rdma"] {
        assert_refused(&format!("{command} --ranks 1"), "give --ranks 2 or more");
    }
}

#[test]
fn four_ranks_measure_two_pairs_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let result = quick(&output, "--ranks 4 --pattern pairs");
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    let measured: Vec<usize> =
        (0..rows.len()).filter(|&row| rows.cell(row, "status") == "ok").collect();
    assert_eq!(measured.len(), 2);
    assert!(measured.iter().all(|&row| rows.cell(row, "flows") == "2"));
}

/// One sentence on standard error, exit code 2, and nothing left behind.
fn assert_refused(line: &str, part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = g2g();
    command.current_dir(&folder);
    let result = run(command, line);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{line}: {said}");
    assert!(said.starts_with("error: ") && said.contains(part), "{line}: {said}");
    assert_eq!(said.lines().count(), 1, "{line}: {said}");
    assert_eq!(text(&result.stdout), "");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{line}");
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    for (line, part) in [
        ("run --sizes 0", "moves nothing"),
        ("run --sizes 64T", "`64T` is not a size"),
        ("run --sizes 1e6", "`1e6` is not a size"),
        ("run --sizes 8K..4K", "is empty"),
        ("run --sizes 18446744073709551616", "too large"),
        ("run --sizes 99999999999G", "too large"),
        ("run --ranks 0", "--ranks"),
        ("run --precision 0", "above 0"),
        ("run --numa 0:999", "no NUMA node 999"),
        ("run --numa 0-1", "such as 0:1"),
        ("shm --pattern pairs --ranks 3", "--ranks 4 or more"),
        ("run --output /proc/no-such-folder/run", "--output"),
        ("run --time-limit 1ns", "1ms to 30d"),
        ("run --deadline 1ms", "100ms"),
        ("run --output /dev/null", "it is a file"),
        ("run --output /dev/null/below", "--output"),
        ("run extra", "unexpected argument 'extra'"),
        ("walk", "'walk'"),
    ] {
        assert_refused(line, part);
    }
}

#[test]
fn a_folder_that_holds_a_run_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    assert_eq!(quick(&output, "--quiet").status.code(), Some(0));
    let before = fs::read(output.join("run.csv")).unwrap();
    let result = quick(&output, "--quiet");
    assert_eq!(result.status.code(), Some(2));
    assert!(text(&result.stderr).contains("already holds run.csv"), "{}", text(&result.stderr));
    assert_eq!(fs::read(output.join("run.csv")).unwrap(), before);
}

#[test]
fn files_that_another_run_has_just_made_are_left_alone() {
    // A link to nowhere: like a file made between the look and the making, it is not seen before.
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("run.csv");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let result = quick(folder.path(), "--quiet");
    assert_eq!(result.status.code(), Some(2), "{}", text(&result.stderr));
    assert!(text(&result.stderr).contains("name another with --output"));
    assert!(link.is_symlink());
}

#[test]
fn a_case_that_does_not_fit_is_skipped_and_the_others_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "shm --numa 0:0 --sizes 16384G,64 --pattern one-way --time-limit 20ms --output {}",
        output.display()
    );
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    assert_eq!(rows.cell(0, "status"), "skipped");
    assert!(rows.cell(0, "reason").contains("need 32768.0 GiB of memory"));
    assert_eq!(rows.cell(1, "status"), "ok");
}

#[test]
fn a_full_disk_in_the_middle_keeps_the_rows_before_it() {
    // A file system of six pages in a namespace of its own; the files are copied out at the end.
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs -o size=24k tmpfs "$1/small" || exit 99
        "$0" shm --numa 0:0 --sizes 1..64K --time-limit 2ms --output "$1/small/run" > "$1/stdout" 2> "$1/stderr"
        code=$?
        cp -r "$1/small/run" "$1/kept"
        exit $code"#;
    fs::create_dir(folder.path().join("small")).unwrap();
    let status = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, program()])
        .arg(folder.path())
        .status()
        .unwrap();
    let said = fs::read_to_string(folder.path().join("stderr")).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: cannot write ") && last.contains("No space left"), "{said}");
    let kept = folder.path().join("kept");
    let rows = Rows::read(&kept);
    assert!(rows.len() > 1, "{}", rows.len());
    let printed = fs::read_to_string(folder.path().join("stdout")).unwrap();
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "ok");
        assert_eq!(rows.cell(row, "case"), (row + 1).to_string());
    }
    // What was measured is printed as well, and the other files are whole too.
    assert!(printed.contains("verified"), "{printed}");
    let json = fs::read_to_string(kept.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["rows"].as_array().unwrap().len() >= rows.len());
    assert!(fs::read_to_string(kept.join("latency.hlog")).unwrap().ends_with('\n'));
}

#[test]
fn help_and_version_are_results() {
    for (line, part) in [
        ("--help", "Exit code: 0 all well"),
        ("--version", "g2g 0."),
        ("shm --help", "--slot-size"),
    ] {
        let result = run(g2g(), line);
        assert_eq!(result.status.code(), Some(0), "{line}");
        assert!(text(&result.stdout).contains(part), "{}", text(&result.stdout));
        assert!(!text(&result.stdout).contains("internal-rank"));
    }
    let result = run(g2g(), "");
    assert_eq!(result.status.code(), Some(2));
    assert!(text(&result.stderr).contains("Usage"), "{}", text(&result.stderr));
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "shm --numa 0:0 --sizes 64..1K --pattern one-way --time-limit 5ms --output {}",
        output.display()
    );
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = g2g()
        .args(line.split_whitespace())
        .stderr(full())
        .stdout(std::process::Stdio::null())
        .status();
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(Rows::read(&output).len(), 5);
    let refused = g2g().args(["shm", "--sizes", "0"]).stderr(full()).status();
    assert_eq!(refused.unwrap().code(), Some(2));
}

#[test]
fn ranks_that_cannot_be_started_leave_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let script = format!(
        "ulimit -n 40; exec \"$0\" shm --numa 0:0 --ranks 64 --output {}",
        output.display()
    );
    let result = Command::new("sh").args(["-c", &script, program()]).output().unwrap();
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot start rank"), "{said}");
    assert!(!output.exists());
}

#[test]
fn too_few_samples_have_no_interval() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "shm --numa 0:0 --sizes 64K --pattern one-way --samples 3 --time-limit 5ms --output {}",
        output.display()
    );
    assert_eq!(run(g2g(), &line).status.code(), Some(0));
    let rows = Rows::read(&output);
    assert_eq!(rows.cell(0, "bandwidth_samples"), "3");
    assert_eq!(rows.cell(0, "bandwidth_gb_s_low"), "");
    assert!(rows.cell(0, "flags").contains("few_bandwidth_samples"));
}

#[test]
fn ranks_of_its_own_under_a_launcher_are_refused() {
    let mut command = g2g();
    command.env("OMPI_COMM_WORLD_SIZE", "8");
    let result = run(command, "run --dry-run --ranks 2");
    assert_eq!(result.status.code(), Some(2));
    assert!(text(&result.stderr).contains("leave out --ranks 2"), "{}", text(&result.stderr));
}

#[test]
fn a_rank_by_hand_is_refused() {
    let result = run(g2g(), "internal-rank 1 2 1000");
    assert_eq!(result.status.code(), Some(2));
    assert!(text(&result.stderr).contains("rank 0"), "{}", text(&result.stderr));
}
