//! `g2g step`: the communication of a training step, and how long it takes by runs.

use std::path::Path;

use serde_json::Value;

use crate::common::{g2g, run, text};

/// The published case: Llama-3-8B by ZeRO-3 on four GPUs, with parameters and optimizer in host
/// memory, and four micro-batches.
const CASE: &str = "step --model llama-3-8b --ranks 4 --micro-batches 4 --offload params,optimizer";

fn measured(words: &str, output: &Path) {
    let line = format!(
        "{words} --simulate p4d.24xlarge --effort quick --quiet --no-report --output {}",
        output.display()
    );
    let result = run(g2g(), &line);
    assert!(result.status.success(), "{line}: {}", text(&result.stderr));
}

#[test]
fn a_step_is_listed_and_timed_by_what_runs_have_measured() {
    let listed = text(&run(g2g(), CASE).stdout);
    // 3 x 4 passes of 16.06 GB, of which three quarters are sent; a quarter is copied each time.
    assert!(listed.contains("A GPU sends 144.54 GB to others in a step"), "{listed}");
    assert!(listed.contains("copies 48.18 GB"), "{listed}");
    assert!(!listed.contains("seconds"), "{listed}");

    let folder = tempfile::tempdir().unwrap();
    let [collectives, copies] = ["nccl", "local"].map(|name| folder.path().join(name));
    measured("nccl -g 4 --operation all_gather,reduce_scatter --sizes 256M..512M", &collectives);
    let result = run(g2g(), &format!("{CASE} {}", collectives.display()));
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains("measure them with `g2g local --sizes 64MiB..128MiB`"), "{said}");
    assert!(result.stdout.is_empty());

    measured("local --gpus 0,1,2,3 --sizes 64M..128M", &copies);
    let line = format!("{CASE} {} {} --format json", collectives.display(), copies.display());
    let answer: Value = serde_json::from_str(&text(&run(g2g(), &line).stdout)).unwrap();
    assert_eq!(answer["simulated"], true);
    let seconds = |way: &str| -> f64 {
        let own = answer["step"].as_array().unwrap().iter().filter(|of| of["way"] == way);
        own.map(|of| of["seconds"].as_f64().unwrap()).sum()
    };
    // The simulated link to the host moves 13.1 GB/s down and 13.17 up, each of them alone.
    let (down, up) = (seconds("from_host"), seconds("to_host"));
    assert!((down / (32.12 / 13.1) - 1.0).abs() < 0.01, "{down}");
    assert!((up / (16.06 / 13.17) - 1.0).abs() < 0.01, "{up}");
    let among = seconds("all_gather") + seconds("reduce_scatter");
    let total = |key: &str| answer["total"][key].as_f64().unwrap();
    assert!((total("in_turn_s") - (down + up + among)).abs() < 1e-9);
    assert!((total("side_by_side_s") - down).abs() < 1e-9);
    let page = text(&run(g2g(), &line.replace(" --format json", "")).stdout);
    assert!(page.contains("[SIMULATED]") && page.contains("seconds"), "{page}");
}

#[test]
fn the_case_of_the_documentation_is_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/step.md")).unwrap();
    let shown = document.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let runs = root.join("results/examples/llama-3-8b-on-p4d");
    let mut command = g2g();
    command.args(CASE.split(' ')).args(["collectives", "copies"]).current_dir(runs);
    let printed = text(&command.output().unwrap().stdout);
    // A page of 80 columns does without the first one.
    let words = |text: &str| -> Vec<String> {
        let is_narrow = |word: &&str| !["when", "forward", "backward"].contains(word);
        text.split_whitespace().filter(is_narrow).map(str::to_owned).collect()
    };
    assert_eq!(words(shown), words(&printed));
}

#[test]
fn what_is_no_step_is_refused_with_a_sentence() {
    for (words, told) in [
        ("step", "which model? Give --parameters and --layers, or --model with one of llama-3-8b"),
        ("step --parameters 8e9", "which model? Give --parameters and --layers"),
        ("step --parameters none --layers 3", "write a number such as 8030261248 or 8.03e9"),
        ("step --model llama-3-8b --ranks 6 --tensor-parallel 4", "give --ranks that is one"),
        ("step --model llama-3-8b --micro-batches 0", "invalid value '0'"),
        ("step --model llama-3-8b --sharding ddp --offload params", "needs --sharding zero3"),
        ("step --model llama-3-8b nowhere", "nowhere"),
    ] {
        let result = run(g2g(), words);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{words}: {said}");
        assert!(said.contains(told) && said.lines().count() == 1, "{words}: {said}");
    }
}
