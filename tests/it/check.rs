//! `g2g check` on simulated machines: healthy ones are fit, and each planted defect makes its host
//! unfit and is named.

use std::fs;

use serde_json::Value;

use crate::{
    common::{g2g, mpi, run, text},
    scripts::finish,
};

/// How a check has ended.
struct Checked {
    code: Option<i32>,
    /// The verdicts, the worst host first.
    hosts: Value,
    /// Standard output, and standard error.
    printed: String,
    said: String,
}

/// Checks a machine made from `instance` with `more`, by so many ranks, each a host of its own.
fn check_by(ranks: u32, instance: &str, more: &str, words: &str) -> Checked {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    let file =
        format!("schema = 1\nfrom = \"{instance}\"\nname = \"test\"\nhosts = {ranks}\n{more}");
    fs::write(&machine, file).unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "check --simulate {} --quiet --no-report --output {} {words}",
        machine.display(),
        output.display()
    );
    let (result, said) = match ranks {
        1 => finish(g2g().args(line.split_whitespace())),
        ranks => mpi::standard().outcome(ranks, &line),
    };
    let kept = fs::read_to_string(output.join("check.json")).unwrap_or_else(|_| panic!("{said}"));
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["simulated"], true);
    let printed = text(&result.stdout);
    if line.contains("--format json") {
        assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), kept);
    }
    Checked { code: result.status.code(), hosts: kept["hosts"].clone(), printed, said }
}

/// The exit code of a check of one host, the verdicts, and what was said.
fn check(instance: &str, more: &str, words: &str) -> (Option<i32>, Value, String) {
    let Checked { code, hosts, said, .. } =
        check_by(1, instance, more, &format!("--format json {words}"));
    (code, hosts, said)
}

/// What is said of the first host, each reason in a line.
fn said_of(hosts: &Value) -> Vec<String> {
    let reasons = hosts[0]["reasons"].as_array().unwrap().iter();
    reasons.map(|reason| reason["said"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn healthy_machines_are_fit() {
    for (instance, words) in [
        ("p5.48xlarge", ""),
        ("p5.48xlarge", "--gpus 5"),
        ("p4d.24xlarge", "--gpus 0,1,2,3"),
        ("p5en.48xlarge", "--gpus 4,5,6,7"),
        ("p6-b200.48xlarge", "--gpus 0,1,2,3"),
    ] {
        let (code, hosts, said) = check(instance, "", words);
        assert_eq!(hosts[0]["verdict"], "fit", "{instance}: {hosts:#} {said}");
        assert_eq!(code, Some(0), "{instance}");
    }
}

/// What is planted, and the words of which a reason has all.
const DEFECTS: [(&str, &[&str]); 10] = [
    ("[[fault.slow]]\nsource = 3\nfraction = 0.59", &["GPU 3", "slower as a source"]),
    ("[[fault.slow]]\ntarget = 2\nfraction = 0.9", &["GPU 2", "slower as a target"]),
    (
        "[[fault.slow]]\nsource = 1\ntarget = 3\nboth_ways = true\nfraction = 0.05",
        &["GPU 1", "GPU 3"],
    ),
    (
        "[[gpu]]\nordinals = [1]\nlocal_ce = { gb_s = 900 }\nlocal_sm = { gb_s = 900 }",
        &["within GPU 1", "below"],
    ),
    (
        "[[gpu]]\nordinals = [3]\npcie_lanes = 8\nfrom_host_ce = { gb_s = 26 }\n\
         to_host_ce = { gb_s = 26 }\nfrom_host_sm = { gb_s = 26 }\nto_host_sm = { gb_s = 26 }",
        &["GPU 3", "below"],
    ),
    ("[[gpu]]\nordinals = [2]\nnvlinks_down = [2, 5]", &["NVLinks of GPU 2: 16 up"]),
    (
        "[[fault.flip]]\nsource = 0\ntarget = 2\nafter = 30\nalways = true",
        &["GPU 0", "GPU 2", "is corrupt"],
    ),
    (
        "[[fault.health]]\ngpu = 1\nwhat = 'throttle'\nreason = 'hw-slowdown'\nafter_mib = 3000",
        &["is flagged throttled"],
    ),
    (
        "[[fault.health]]\ngpu = 1\nwhat = 'ecc-uncorrected'\ncount = 4\nafter_mib = 3000",
        &["is flagged new_ecc_errors"],
    ),
    ("[[gpu]]\nordinals = [0]\nsm_clock_mhz = 1200", &["clock", "GPU 0"]),
];

/// Checks four GPUs with the defects of these numbers: each is named.
fn is_named(numbers: &[usize]) {
    let faults: Vec<&str> = numbers.iter().map(|number| DEFECTS[*number].0).collect();
    let (code, hosts, error) = check("p5.48xlarge", &faults.join("\n"), "--gpus 0,1,2,3");
    assert_eq!(hosts[0]["verdict"], "unfit", "{faults:?}: {hosts:#} {error}");
    assert_eq!(code, Some(1), "{faults:?}");
    for number in numbers {
        let has_all = |said: &&String| DEFECTS[*number].1.iter().all(|word| said.contains(word));
        assert!(said_of(&hosts).iter().find(has_all).is_some(), "{faults:?}: {hosts:#}");
    }
}

#[test]
fn each_defect_makes_its_host_unfit_and_is_named() {
    (0..DEFECTS.len()).for_each(|number| is_named(&[number]));
}

#[test]
fn two_defects_are_both_named() {
    [[0, 4], [1, 5], [6, 3]].iter().for_each(|numbers| is_named(numbers));
}

#[test]
fn a_check_that_has_too_little_time_leaves_rows_of_every_stage_out_and_knows_nothing() {
    let (code, hosts, error) = check("p5.48xlarge", "", "--budget 4s");
    assert_eq!((code, hosts[0]["verdict"].as_str()), (Some(3), Some("unknown")), "{error}");
    let reasons = hosts[0]["reasons"].as_array().unwrap().iter();
    let is_left_out = |reason: &&Value| {
        let shown = reason["shown"].as_str().unwrap();
        shown.starts_with("--budget 4 s leaves out ")
    };
    let stages: Vec<&str> =
        reasons.filter(is_left_out).map(|reason| reason["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["local", "p2p", "nccl"], "{hosts:#}");
}

#[test]
fn without_a_gpu_nothing_is_known() {
    if crate::common::kernel_has_driver() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let line = format!("check --quiet --output {}", folder.path().join("run").display());
    let result = run(g2g(), &line);
    let printed = text(&result.stdout);
    assert_eq!(result.status.code(), Some(3), "{printed}{}", text(&result.stderr));
    assert!(printed.contains("1 host unknown."), "{printed}");
    assert!(printed.contains("no GPU is here to be judged"), "{printed}");
}

#[test]
fn a_machine_whose_driver_has_lost_its_gpus_is_unfit() {
    let fault = "[[fault.call]]\nname = 'cuInit'\ncode = 802\nalways = true\n\
                 [host]\nfabric_manager = false\n";
    let (code, hosts, said) = check("p4d.24xlarge", fault, "");
    assert_eq!((code, hosts[0]["verdict"].as_str()), (Some(1), Some("unfit")), "{hosts:#} {said}");
    assert!(said_of(&hosts)[0].starts_with("fabric-manager: "), "{hosts:#}");
    assert!(
        said.contains("test is unfit: ") || said.contains(" is unfit: fabric-manager"),
        "{said}"
    );
    assert!(said.contains("[SIMULATED]"), "{said}");
}

#[test]
fn of_two_hosts_the_slow_one_is_named_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("unfit.txt");
    // GPU 3 of the second host.
    let fault = "[[fault.slow]]\nsource = 11\nfraction = 0.59\n";
    let words = format!("--exclude {}", list.display());
    let Checked { code, hosts, printed, said } = check_by(2, "p4d.24xlarge", fault, &words);
    assert_eq!(code, Some(1), "{printed}{said}");
    assert!(printed.contains("1 host unfit, 1 host fit."), "{printed}");
    assert_eq!((&hosts[0]["verdict"], &hosts[1]["verdict"]), (&"unfit".into(), &"fit".into()));
    let name = hosts[0]["host"].as_str().unwrap();
    assert_eq!(fs::read_to_string(&list).unwrap(), format!("{name}\n"));
    let named = format!("GPU 3 of {name}");
    assert!(said_of(&hosts).iter().any(|said| said.contains(&named)), "{hosts:#}");
}

#[test]
fn a_host_that_hangs_or_stops_is_unfit_and_the_other_is_not() {
    for (name, what, after, stage) in [
        ("cuMemcpyAsync", "hung", 40, "local"),
        ("cuMemcpyAsync", "stopped", 2000, "p2p"),
        ("ncclAllReduce", "stopped", 3, "nccl"),
    ] {
        let fault = format!(
            "[[fault.call]]\nname = '{name}'\nprocess = 1\nwhat = '{what}'\nafter = {after}\n"
        );
        let words = "--gpus 0,1,2,3 --deadline 5s";
        let Checked { code, hosts, printed, said } = check_by(2, "p4d.24xlarge", &fault, words);
        assert_ne!(code, Some(0), "{name}: {printed}{said}");
        let verdicts = (&hosts[0]["verdict"], &hosts[1]["verdict"]);
        assert_eq!(verdicts, (&"unfit".into(), &"unknown".into()), "{name}: {hosts:#}");
        let reason = &hosts[0]["reasons"][0];
        assert_eq!(reason["stage"], stage, "{name}: {hosts:#}");
        assert_eq!(reason["said"], "rank 1 does not answer", "{name}: {hosts:#}");
    }
}
