//! Other people's programs read the results: pandas and Python's HdrHistogram.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use common::{g2g, run, text};

fn check(folder: &Path) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("G2G_TEST_PYTHON")
        .map_or_else(|| root.join("target/python/bin/python"), PathBuf::from);
    assert!(python.exists(), "run scripts/test: it makes the Python environment of this test");
    let script = root.join("tests/python/check_results.py");
    Command::new(python).arg("-B").arg(script).arg(folder).output().unwrap()
}

#[test]
fn rows_of_a_simulated_machine_are_read_too() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --simulate p4d.24xlarge --gpus 0,1 --sizes 1M --time-limit 50ms --ranks 2 --output {}",
        output.display()
    );
    assert_eq!(run(g2g(), &line).status.code(), Some(0));
    let answer = check(&output);
    assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
}

#[test]
fn pandas_and_pythons_hdrhistogram_read_what_a_run_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --numa 0:0 --sizes 64,64K,3M --operation copy,write,ping-pong --samples 20 \
         --time-limit 50ms --output {}",
        output.display()
    );
    assert_eq!(run(g2g(), &line).status.code(), Some(0));
    let answer = check(&output);
    assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
    assert_eq!(text(&answer.stdout).trim(), "24 rows agree");

    // The check itself can fail.
    let csv = fs::read_to_string(output.join("run.csv")).unwrap();
    fs::write(output.join("run.csv"), csv.replace(",65536,", ",65537,")).unwrap();
    assert!(!check(&output).status.success());
}
