//! Other people's programs read the results: pandas, Python's HdrHistogram, a validator of JSON by
//! its schema, and Prometheus' own parser.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{
    g2g, run,
    simulation::{Simulated, four_gpus},
    text,
};

fn check(folder: &Path) -> Output {
    python("check_results.py", &[folder])
}

/// The answer of a script of `tests/python`.
fn python(script: &str, words: &[&Path]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("G2G_TEST_PYTHON")
        .map_or_else(|| root.join("target/python/bin/python"), PathBuf::from);
    assert!(python.exists(), "run scripts/test: it makes the Python environment of this test");
    let script = root.join("tests/python").join(script);
    Command::new(python).arg("-B").arg(script).args(words).output().unwrap()
}

#[test]
fn rows_of_a_simulated_machine_are_read_too() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --simulate p4d.24xlarge --gpus 0,1 --sizes 1M --time-limit 50ms --samples 20 --ranks 2 \
         --output {}",
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

    // The check itself can fail: of a key that is missing, and of a number that differs.
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    fs::write(output.join("run.json"), json.replace("\"operation\":", "\"op\":")).unwrap();
    let answer = text(&check(&output).stderr);
    assert!(answer.contains("'operation' is a required property"), "{answer}");
    fs::write(output.join("run.json"), json).unwrap();
    let csv = fs::read_to_string(output.join("run.csv")).unwrap();
    fs::write(output.join("run.csv"), csv.replace(",65536,", ",65537,")).unwrap();
    assert!(!check(&output).status.success());
}

#[test]
fn collectives_and_corrupt_rows_are_as_the_schema_says() {
    let line = "nccl --gpus 0,1 --operation all_reduce,sendrecv --sizes 64K --samples 3 --quiet";
    let flip = "\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = 5\nalways = true\n";
    for (fault, line, code) in
        [("", line, 0), (flip, "p2p --gpus 0,1 --sizes 1M --samples 3 --quiet", 1)]
    {
        let run = Simulated::run(&four_gpus("", fault), line);
        assert_eq!(run.code, code, "{}", run.stderr);
        let answer = check(&run.folder.path().join("run"));
        assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
    }
}

#[test]
fn prometheus_reads_what_is_printed_for_it() {
    let flip = "\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = 5\nalways = true\n";
    let line = "run --gpus 0,1 --engine ce --operation copy --sizes 1M --samples 3 --quiet --format prometheus";
    let run = Simulated::run(&four_gpus("", flip), line);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let file = run.folder.path().join("g2g.prom");
    fs::write(&file, &run.stdout).unwrap();
    let output = run.folder.path().join("run");
    let agree = || python("check_prometheus.py", &[&output, &file]);
    let answer = agree();
    assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
    let lines = || run.stdout.lines().filter(|line| !line.starts_with('#'));
    let of_rows = || lines().filter(|line| !line.starts_with("g2g_run_"));
    assert!(of_rows().all(|line| line.contains("simulated=\"true\"")));
    for status in ["ok", "skipped", "corrupt"] {
        let label = format!("status=\"{status}\"");
        assert!(of_rows().any(|line| line.contains(&label)), "{status}");
    }

    // The check itself can fail.
    fs::write(&file, run.stdout.replace("size_bytes=\"1048576\"", "size_bytes=\"1\"")).unwrap();
    assert!(!agree().status.success());
}
