//! The readers of outside input, with real input that was damaged by chance: brief runs of what
//! `scripts/fuzz` runs for long. The number of inputs is fixed; a failure names its seed. Machine
//! files are fed by `simgpu/src/machine/damaged.rs`.

#![allow(clippy::print_stderr, reason = "a failure names its seed")]

#[path = "../common/mutation.rs"]
mod mutation;
#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    thread,
};

use crate::common::{g2g, run, simulation::simulated_system, text};
use targets::BETWEEN;

/// Inputs from each seed file.
const INPUTS: u64 = 400;

/// Gives `take` each of the texts, whole and damaged.
fn feed(name: &str, texts: &[Vec<u8>], inputs: u64, take: fn(&[u8]) -> bool) {
    for (place, text) in texts.iter().enumerate() {
        assert!(take(text), "{name}: input {place} is not taken whole");
        for seed in 0..inputs {
            let seed = seed << 8 | place as u64;
            let damaged = mutation::damaged(text, seed);
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| take(&damaged)));
            if let Err(panic) = outcome {
                let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}"));
                fs::write(&file, &damaged).unwrap();
                eprintln!("{name}: input {place}, seed {seed}: kept as {}", file.display());
                panic::resume_unwind(panic);
            }
        }
    }
}

/// Removes what a target has in memory, whatever becomes of its test.
struct Cleaned(&'static str, fn());

impl Drop for Cleaned {
    fn drop(&mut self) {
        let Self(target, clean) = self;
        let own = Path::new("/dev/shm").join(format!("g2g-fuzz-{}-{target}", std::process::id()));
        let was_there = own.exists();
        clean();
        assert!(thread::panicking() || was_there && !own.exists(), "{}", own.display());
    }
}

/// The files below a folder.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// What a run of these words leaves, as the input of `results`.
fn results(words: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!("{words} --samples 20 --time-limit 5ms --quiet --no-report");
    let result = run(g2g(), &format!("{line} --output {}", output.display()));
    assert!(result.status.code() <= Some(1), "{}", text(&result.stderr));
    let contents =
        targets::results::FILES.map(|name| fs::read(output.join(name)).unwrap_or_default());
    contents.join(&BETWEEN)
}

fn results_of_some() -> Vec<Vec<u8>> {
    let runs = [
        "p2p --simulate p4d.24xlarge --gpus 0,1 --sizes 4K,1M",
        "nccl --simulate g5.12xlarge --gpus 0-3 --sizes 8K --operation all_reduce",
        "shm --sizes 4K --pattern one-way",
    ];
    runs.map(results).to_vec()
}

#[test]
fn results_of_runs() {
    let _cleaned = Cleaned("results", targets::results::clean);
    feed("results", &results_of_some(), INPUTS / 2, targets::results::take);
}

fn sweeps() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("sweep");
    let plan = "command = \"shm\"\nflags = \"--sizes 4K --pattern one-way --samples 20 --time-limit 5ms\"\n\
        repetitions = 2\n[[axis]]\nname = \"slots\"\nvalues = [\n\
        { label = \"small\", flags = \"--slot-size 4K\" },\n\
        { label = \"large\", flags = \"--slot-size 64K\" },\n]\n";
    let file = folder.path().join("plan.toml");
    fs::write(&file, plan).unwrap();
    let line = format!("sweep {} --quiet --output {}", file.display(), output.display());
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let json = fs::read(output.join("sweep.json")).unwrap();
    let plans = files("scripts/plans").into_iter().chain([plan.as_bytes().to_vec()]);
    plans.map(|plan| [plan, json.clone()].join(&BETWEEN)).collect()
}

#[test]
fn plans_and_results_of_sweeps() {
    let _cleaned = Cleaned("sweep", targets::sweep::clean);
    feed("sweep", &sweeps(), INPUTS / 4, targets::sweep::take);
    // Most damage has hit the results, which are longer.
    feed("sweep-plan", &files("scripts/plans"), INPUTS, targets::sweep::take);
}

#[test]
fn files_of_the_catalogue() {
    feed("catalogue", &files("fuzz/seeds/catalogue"), 3 * INPUTS, targets::catalogue::take);
}

#[test]
fn files_of_the_kernel() {
    feed("system", &[simulated_system().as_bytes().to_vec()], INPUTS, targets::system::take);
}

#[test]
#[ignore = "no check: makes what scripts/fuzz begins with"]
fn seeds() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../fuzz/seeds");
    for (name, texts) in [
        ("results", results_of_some()),
        ("sweep", sweeps()),
        ("system", vec![simulated_system().as_bytes().to_vec()]),
    ] {
        fs::create_dir_all(folder.join(name)).unwrap();
        for (place, text) in texts.iter().enumerate() {
            fs::write(folder.join(name).join(place.to_string()), text).unwrap();
        }
    }
}

#[test]
fn command_lines_and_files_of_variables() {
    feed("words", &files("fuzz/seeds/words"), INPUTS / 2, targets::words::take);
}

#[test]
fn logs_of_nccl() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let mut logs: Vec<PathBuf> =
        fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).filter(is_log).collect();
    logs.sort();
    let logs: Vec<Vec<u8>> = logs.iter().map(|path| fs::read(path).unwrap()).collect();
    feed("explain", &logs, INPUTS / 4, targets::explain::take);
}

#[test]
fn results_of_other_programs() {
    feed("import", &files("tests/fixtures/import"), INPUTS, targets::import::take);
}

#[test]
fn every_target_is_named_where_it_is_looked_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (script, document) = (read("scripts/fuzz"), read("docs/security.md"));
    let mut count = 0;
    for entry in fs::read_dir(root.join("fuzz/src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_file() {
            count += 1;
            assert!(script.contains(&format!("{name}:")), "scripts/fuzz: {name}");
            assert!(document.contains(&format!("| `{name}` |")), "docs/security.md: {name}");
            assert!(read("fuzz/Cargo.toml").contains(&format!("name = \"{name}\"")), "{name}");
        }
    }
    assert_eq!(count, 8);
}
