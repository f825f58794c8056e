//! A libfabric that reports what is not true gives no number: `tests/programs/early.c` between g2g
//! and the real one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{QUICK, Rows, g2g, program, run, text, verified};
use tempfile::TempDir;

/// A size whose end is no whole word of the pattern.
const SIZE: usize = 70_001;

/// A size of messages that both providers inject.
const INJECTED: usize = 100;

/// What is moved before it is reported by the fault `early`.
const EARLY: usize = 8;

/// What the library exports, in the versions that g2g asks for.
const VERSIONS: &str = "FABRIC_1.1 { global: fi_fabric; local: *; };
                        FABRIC_1.3 { global: fi_getinfo; } FABRIC_1.1;";

/// Compiles the library into `folder`. All functions that it does not export are found in the real
/// library, which it depends on.
pub(crate) fn library(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/early.c");
    let (library, versions) = (folder.join("libearly.so"), folder.join("versions"));
    fs::write(&versions, VERSIONS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]).arg(&library);
    compiler.arg(source).arg(format!("-Wl,--version-script={}", versions.display()));
    let result = compiler.args(["-Wl,--no-as-needed", "-lfabric"]).output().unwrap();
    assert!(result.status.success(), "{}: scripts/test installs it", text(&result.stderr));
    library
}

/// A run with the library between.
struct Run {
    result: Output,
    said: String,
    folder: TempDir,
}

impl Run {
    /// Runs `program` over one way.
    fn of(mut program: Command, fault: &str, when: &str, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        program.env("FAULT", fault).env("WHEN", when);
        let line = format!(
            "rdma --pattern one-way {options} --fabric-lib {} --no-report --output {}",
            library(folder.path()).display(),
            folder.path().join("run").display()
        );
        let result = run(program, &line);
        let said = format!("{fault} {when}: {}{}", text(&result.stdout), text(&result.stderr));
        Self { result, said, folder }
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("run")
    }
}

/// Measures each of the operations over two providers.
fn measure(fault: &str, when: &str, operations: &str, size: usize) -> Run {
    let options = format!("--provider tcp,shm --sizes {size} --operation {operations} {QUICK}");
    Run::of(g2g(), fault, when, &options)
}

/// Every row must be corrupt, and have no number; where the first wrong byte is, and how many are
/// wrong, row by row.
fn corrupt(fault: &str, when: &str, operations: &str, size: usize) -> Vec<(usize, usize)> {
    let run = measure(fault, when, operations, size);
    let (rows, said) = (Rows::read(&run.output()), &run.said);
    assert_eq!(run.result.status.code(), Some(1), "{said}");
    assert_eq!(rows.len(), 2 * operations.split(',').count(), "{said}");
    let found = |row: usize| {
        assert_eq!(rows.cell(row, "status"), "corrupt", "{said}");
        for column in ["bandwidth_gb_s", "bandwidth_gb_s_total", "latency_ns_p50"] {
            assert_eq!(rows.cell(row, column), "", "{said}");
        }
        // Of a ping-pong the answer, too, is a message.
        let is_answered = rows.cell(row, "operation") == "ping-pong";
        assert!(is_answered || rows.cell(row, "corrupt_rank") == "1", "{said}");
        let number = |column| rows.cell(row, column).parse::<usize>().unwrap();
        (number("corrupt_offset_bytes"), number("corrupt_bytes"))
    };
    (0..rows.len()).map(found).collect()
}

/// Of random bytes 1 in 256 is right by chance.
fn assert_all_but(right: usize, (offset, count): (usize, usize)) {
    assert!((right..right + EARLY).contains(&offset), "{offset}");
    let wrong = SIZE - right;
    assert!(count > wrong * 98 / 100 && count <= wrong, "{count}");
}

#[test]
fn the_library_between_does_no_harm_by_itself() {
    for size in [INJECTED, SIZE] {
        let run = measure("none", "bulk", "write,read,send,ping-pong", size);
        let rows = verified(&run.result, &run.output(), &run.said);
        assert_eq!(rows.len(), 8, "{}", run.said);
    }
}

#[test]
fn the_context_of_a_peers_write_counts_for_nothing() {
    let run = measure("context", "bulk", "write,read,send,ping-pong", SIZE);
    let rows = verified(&run.result, &run.output(), &run.said);
    assert_eq!(rows.len(), 8, "{}", run.said);
}

#[test]
fn one_wrong_byte_is_found_in_single_operations_and_in_bulk() {
    for when in ["single", "bulk"] {
        for found in corrupt("flip", when, "write,send", SIZE) {
            assert_eq!(found, (SIZE / 2, 1), "{when}");
        }
        // Here it is a word, which another one has taken the place of.
        for (offset, count) in corrupt("flip", when, "read", SIZE) {
            assert!(offset < 8 && (1..=8).contains(&count), "{when}: {count} at {offset}");
        }
    }
    for size in [INJECTED, SIZE] {
        for found in corrupt("flip", "bulk", "ping-pong", size) {
            assert_eq!(found, (size / 2, 1));
        }
    }
}

#[test]
fn data_of_the_operation_before_is_found_in_single_operations_and_in_bulk() {
    for when in ["single", "bulk"] {
        for found in corrupt("stale", when, "write,send", SIZE) {
            assert_all_but(0, found);
        }
    }
}

#[test]
fn what_is_reported_before_it_is_there_is_found_in_single_operations_and_in_bulk() {
    for when in ["single", "bulk"] {
        for found in corrupt("early", when, "write,read,send", SIZE) {
            assert_all_but(EARLY, found);
        }
    }
}

#[test]
fn a_limit_of_locked_memory_is_told_with_the_need_and_the_remedy() {
    let mut limited = Command::new("prlimit");
    limited.args(["--memlock=1048576:1048576", program()]);
    let options = format!("--provider tcp --operation write --sizes 64K,4M,4K {QUICK}");
    let run = Run::of(limited, "memlock", "bulk", &options);
    assert_eq!(run.result.status.code(), Some(1), "{}", run.said);
    let rows = Rows::read(&run.output());
    let status: Vec<&str> = (0..rows.len()).map(|row| rows.cell(row, "status")).collect();
    assert_eq!(status, ["ok", "failed", "ok"], "{}", run.said);
    let reason = rows.cell(1, "reason");
    for part in ["fi_mr_regattr(", " B with tcp", "FI_ENOMEM (12)", "may lock 1 MiB", "ulimit -l"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

#[test]
fn a_message_above_the_providers_limit_is_refused_with_the_limit() {
    let options = "--provider tcp --operation write --sizes 64K,2M";
    let run = Run::of(g2g(), "small", "bulk", options);
    let said = text(&run.result.stderr);
    assert_eq!(run.result.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.starts_with("error: ") && said.contains("2 MiB"), "{said}");
    assert!(said.contains("1.0 MiB") && !run.output().exists(), "{said}");
}

#[test]
fn a_provider_that_cannot_announce_data_is_skipped_with_the_reason() {
    let options = "--provider tcp --operation write --sizes 64K";
    let run = Run::of(g2g(), "silent", "bulk", options);
    assert_eq!(run.result.status.code(), Some(0), "{}", run.said);
    let rows = Rows::read(&run.output());
    assert_eq!((rows.len(), rows.cell(0, "status")), (1, "skipped"), "{}", run.said);
    assert!(rows.cell(0, "reason").contains("cq_data_size 0"), "{}", run.said);
}

#[test]
fn messages_go_over_efa_and_the_rest_over_efa_direct_unless_the_user_names_a_fabric() {
    let measure = |fault: &str, options: &str| {
        let options = format!("--provider efa --sizes 64,64K {options} {QUICK}");
        let run = Run::of(g2g(), fault, "bulk", &options);
        assert_eq!(run.result.status.code(), Some(0), "{}", run.said);
        Rows::read(&run.output())
    };
    let rows = measure("efa", "--operation write,read,send,ping-pong");
    let found = |rows: &Rows| -> Vec<String> {
        let cells =
            |row| ["operation", "fabric", "status"].map(|name| rows.cell(row, name)).join(" ");
        (0..rows.len()).map(cells).collect()
    };
    assert_eq!(
        found(&rows),
        [
            "write efa-direct ok",
            "write efa-direct ok",
            "read efa-direct ok",
            "read efa-direct ok",
            "send efa ok",
            "send efa ok",
            "ping-pong efa ok",
            "ping-pong efa ok"
        ]
    );
    let labels = |rows: &Rows| {
        ["shared_memory", "latency_completion"].map(|name| rows.cell(0, name).to_owned())
    };
    assert_eq!(labels(&rows), ["no", "transmit"]);
    assert_eq!(rows.cell(4, "latency_completion"), "delivery");
    let rows = measure("efa", "--operation write,send --fabric efa-direct");
    let expected = [
        "write efa-direct ok",
        "write efa-direct ok",
        "send efa-direct ok",
        "send efa-direct skipped",
    ];
    assert_eq!(found(&rows), expected);
    let reason = rows.cell(3, "reason");
    for part in ["fabric efa-direct has 8.7 KiB at most", "give --fabric efa"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert_eq!(rows.cell(2, "latency_completion"), "transmit");
    // A libfabric that does not know the wish may take shared memory.
    let rows = measure("efa-shared", "--operation write --fabric efa");
    assert_eq!(found(&rows), ["write efa ok", "write efa ok"]);
    assert_eq!(labels(&rows), ["possible", "transmit"]);
}

#[test]
fn a_device_that_verbs_offers_twice_is_one_interface() {
    for nic in ["nearest", "all"] {
        let options = format!(
            "--provider verbs --nic {nic} --sizes 64,64K --operation write,read,send,ping-pong \
             {QUICK}"
        );
        let run = Run::of(g2g(), "verbs", "bulk", &options);
        let rows = verified(&run.result, &run.output(), &run.said);
        assert_eq!(rows.len(), 8, "{}", run.said);
        for row in 0..rows.len() {
            let cells = ["provider", "source_domain", "target_domain", "latency_completion"];
            let [provider, source, target, completion] = cells.map(|name| rows.cell(row, name));
            assert_eq!([provider, source, target], ["verbs;ofi_rxm", "mlx5_0", "mlx5_0"], "{nic}");
            let is_told = matches!(rows.cell(row, "operation"), "write" | "send");
            assert_eq!(completion, if is_told { "delivery" } else { "arrival" }, "{nic}");
        }
    }
}

#[test]
fn a_variable_by_which_efas_writes_wait_for_ever_is_refused() {
    let mut program = g2g();
    program.env("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0");
    let run = Run::of(program, "efa", "bulk", "--provider efa --operation write --sizes 64");
    let rows = Rows::read(&run.output());
    assert_eq!((rows.len(), rows.cell(0, "status")), (1, "skipped"), "{}", run.said);
    let reason = rows.cell(0, "reason");
    assert!(
        reason.contains("WRITE_RECV makes writes wait") && reason.contains("unset it"),
        "{reason}"
    );
}

#[test]
fn an_error_that_belongs_to_no_operation_is_told_and_does_not_end_the_process() {
    let options = format!("--provider tcp --operation write --sizes 64K,4K {QUICK}");
    let run = Run::of(g2g(), "event", "bulk", &options);
    assert_eq!(run.result.status.code(), Some(1), "{}", run.said);
    let rows = Rows::read(&run.output());
    assert_eq!((rows.len(), rows.cell(0, "status")), (2, "failed"), "{}", run.said);
    let reason = rows.cell(0, "reason");
    assert!(
        reason.contains("outside of operations") && reason.contains("FI_EHOSTUNREACH"),
        "{reason}"
    );
}
