//! `g2g check` on simulated machines: healthy ones are fit, and each planted defect makes its host
//! unfit and is named.

use std::fs;

use serde_json::Value;

use crate::{
    common::{Rows, g2g, mpi, run, text},
    resume::cut,
    scripts::finish,
};

/// How a check has ended.
pub(super) struct Checked {
    pub(super) code: Option<i32>,
    /// The verdicts, the worst host first.
    pub(super) hosts: Value,
    /// Standard output, and standard error.
    pub(super) printed: String,
    pub(super) said: String,
}

/// Checks a machine made from `instance` with `more`, by so many ranks, each a host of its own.
pub(super) fn check_by(ranks: u32, instance: &str, more: &str, words: &str) -> Checked {
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

/// For 20 ms at a time all transfers take up to three times as long, as beside other work.
const BUSY: &str = "[[fault.jitter]]\nshare = 0.03\nextra_share = 1\nlasts_ns = 2e7\n";

#[test]
fn what_is_slow_once_is_measured_again_and_makes_no_host_unfit() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    fs::write(&machine, format!("schema = 1\nfrom = \"p5.48xlarge\"\n{BUSY}")).unwrap();
    let check = |seed: u32, output: &str| {
        let line = format!(
            "check --simulate {} --gpus 0,1,2,3 --seed {seed} --quiet --no-report {output}",
            machine.display()
        );
        let (result, said) = finish(g2g().args(line.split_whitespace()));
        assert_eq!(result.status.code(), Some(0), "{line}: {}{said}", text(&result.stdout));
    };
    let output = folder.path().join("run");
    // The numbers of all rows, and of those that were measured again.
    let numbers = || {
        let rows = Rows::read(&output);
        let is_second = |row: &usize| rows.cell(*row, "flags").contains("measured_again");
        (rows.len(), (0..rows.len()).filter(is_second).collect::<Vec<usize>>())
    };
    let busy_seed = (4..20).find(|seed| {
        let _ = fs::remove_dir_all(&output);
        check(*seed, &format!("--output {}", output.display()));
        !numbers().1.is_empty()
    });
    let (all, again) = numbers();
    assert_eq!(again, (all - again.len()..all).collect::<Vec<usize>>());
    // A run that was interrupted before them goes on with them.
    cut(&output, again[0]);
    assert_eq!(numbers(), (again[0], vec![]));
    check(busy_seed.unwrap(), &format!("--resume {}", output.display()));
    assert_eq!(numbers(), (all, again));
}

#[test]
fn a_run_of_such_a_machine_is_a_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let line = "local --simulate p4d.24xlarge --effort quick --quiet --no-report --gpus 0,1";
    let line = format!("{line} --output {}", before.display());
    assert!(run(g2g(), &line).status.success());
    let words = format!("--gpus 0,1 --baseline {}", before.display());
    let (code, hosts, said) = check("p4d.24xlarge", "", &words);
    assert_eq!((code, hosts[0]["verdict"].as_str()), (Some(0), Some("fit")), "{hosts:#} {said}");
    // Of two GPUs nobody says which is slow; the bounds allow for less than this.
    let slow = "[[gpu]]\nordinals = [1]\npcie_down_gb_s = 12.4\n";
    let (code, hosts, said) = check("p4d.24xlarge", slow, &words);
    assert_eq!((code, hosts[0]["verdict"].as_str()), (Some(1), Some("unfit")), "{hosts:#} {said}");
    let slower = said_of(&hosts).into_iter().find(|said| said.contains("in the baseline"));
    assert!(slower.is_some_and(|said| said.contains("GPU 1")), "{hosts:#}");
    // A run of another machine is none.
    let line = format!("check --simulate p5.48xlarge --quiet --no-report {words}");
    let result = run(g2g(), &line);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains(" is of another machine (simulated 8 x NVIDIA A100"), "{said}");
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
    // GPU 2 of the second host.
    let fault = "[[fault.slow]]\nsource = 10\nfraction = 0.59\n";
    let words = format!("--gpus 0,2 --exclude {}", list.display());
    let Checked { code, hosts, printed, said } = check_by(2, "p4d.24xlarge", fault, &words);
    assert_eq!(code, Some(1), "{printed}{said}");
    assert!(printed.contains("1 host unfit, 1 host fit."), "{printed}");
    assert_eq!((&hosts[0]["verdict"], &hosts[1]["verdict"]), (&"unfit".into(), &"fit".into()));
    let name = hosts[0]["host"].as_str().unwrap();
    assert_eq!(fs::read_to_string(&list).unwrap(), format!("{name}\n"));
    assert!(said_of(&hosts).iter().any(|said| said.contains("GPU 2 -> GPU 0")), "{hosts:#}");
}

#[test]
fn of_three_hosts_the_one_whose_gpu_cannot_take_what_others_send_is_unfit() {
    // The way of GPU 2 of the third host to its interface.
    let fault = "[[gpu]]\nordinals = [18]\npcie_down_gb_s = 6\n";
    let Checked { code, hosts, printed, said } = check_by(3, "p4d.24xlarge", fault, "--gpus 0,2");
    assert_eq!(code, Some(1), "{printed}{said}");
    let verdicts: Vec<&Value> = (0..3).map(|number| &hosts[number]["verdict"]).collect();
    assert_eq!(verdicts, ["unfit", "fit", "fit"], "{hosts:#}");
    let of_pairs = |reason: &&Value| reason["stage"] == "pairs" && reason["verdict"] == "unfit";
    let reason = hosts[0]["reasons"].as_array().unwrap().iter().find(of_pairs);
    let said = reason.unwrap()["said"].as_str().unwrap();
    assert!(said.starts_with("GPU 2, interface ") && said.contains(" as a target: "), "{said}");
}

#[test]
fn what_nccls_own_diagnostics_find_is_a_reason_and_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, output) = (folder.path().join("machine.toml"), folder.path().join("run"));
    let gpu = "[[gpu]]\nordinals = [2]\necc_errors = 4\n";
    fs::write(&machine, format!("schema = 1\nfrom = \"p4d.24xlarge\"\n{gpu}")).unwrap();
    let begin = |command: &str| {
        let line = format!(
            "{command} --simulate {} --gpus 1,2 --quiet --format json --no-report --output {}",
            machine.display(),
            output.join(command).display()
        );
        let mut program = g2g();
        program.args(line.split_whitespace());
        program
    };
    let (result, said) = finish(&mut begin("check"));
    let printed: Value = serde_json::from_str(&text(&result.stdout)).unwrap();
    let reasons = printed["hosts"][0]["reasons"].as_array().unwrap().clone();
    let is_it = |reason: &&Value| reason["said"].as_str().unwrap().contains("nccl_diagnosis");
    let shown = reasons.iter().find(is_it).unwrap_or_else(|| panic!("{printed:#} {said}"));
    let found = "ECC: uncorrected volatile errors on rank(s) {1}";
    assert!(shown["shown"].as_str().unwrap().contains(found), "{shown:#}");
    let log = |command: &str| {
        let file = fs::read_dir(output.join(command).join("nccl")).unwrap().next().unwrap();
        fs::read_to_string(file.unwrap().path()).unwrap()
    };
    let told = log("check");
    assert!(told.contains(" NCCL DIAG [OK]   p2p: verified P2P access"), "{told}");
    let (result, explained) =
        finish(g2g().arg("explain").arg(output.join("check").join("nccl").join("rank-0.log")));
    assert!(text(&result.stdout).contains("diagnostics have found a fault"), "{explained}");

    // Who does not ask for it gets none of it, and who does gets it in the same place.
    finish(&mut begin("nccl"));
    assert!(!log("nccl").contains("NCCL DIAG"));
    fs::remove_dir_all(output.join("nccl")).unwrap();
    let (result, said) = finish(begin("nccl").env("NCCL_RUN_RAS_DIAGNOSTICS", "1"));
    assert!(serde_json::from_str::<Value>(&text(&result.stdout)).is_ok(), "{said}");
    assert!(log("nccl").contains(found) && !log("nccl").contains("p2p: verified"));
}

/// What may be wrong with GPU 2 or the first interface of the third host, and what is named.
const DEFECTS_OF_A_HOST: [(&str, &str); 6] = [
    ("[[nic]]\nindices = [8]\npcie_lanes = 4\n", "rdmap64s0"),
    ("[[fault.slow]]\nsource = 18\nfraction = 0.59\n", "GPU 2"),
    ("[[gpu]]\nordinals = [18]\npcie_down_gb_s = 6\n", "GPU 2"),
    ("[[nic]]\nindices = [8]\nstate = 'down'\n", "rdmap64s0 is DOWN"),
    ("[[nic]]\nindices = [8]\nrate_gbps = 50\n", "rate: 50 Gbit/s (rdmap64s0)"),
    (
        "[[gpu]]\nordinals = [16, 18]\npcie_up_gb_s = 9\npcie_down_gb_s = 9\n\
         local_ce = { gb_s = 400 }\nlocal_sm = { gb_s = 400 }\n",
        "ip-10-0-0-3",
    ),
];

/// Checks so many hosts, the third of which has a defect, for each of these.
fn of_hosts(count: u32, defects: &[(&str, &str)]) {
    for (defect, named) in defects {
        let Checked { code, hosts, printed, said } =
            check_by(count, "p4d.24xlarge", defect, "--gpus 0,2");
        assert_eq!(code, Some(1), "{defect}: {printed}{said}");
        let mut verdicts = hosts.as_array().unwrap().iter().map(|host| &host["verdict"]);
        assert_eq!(verdicts.next().unwrap(), "unfit", "{defect}: {hosts:#}");
        assert!(verdicts.all(|verdict| verdict == "fit"), "{defect}: {hosts:#}");
        assert!(said_of(&hosts).iter().any(|said| said.contains(named)), "{hosts:#}");
        // A host more takes a round more at most: 60 s for one, and 25 s each time it is twice as many.
        let (_, seconds) = printed.split_once(" rows measured in ").unwrap();
        let seconds: f64 = seconds.split_once(" s of ").unwrap().0.parse().unwrap();
        assert!(seconds <= 60.0 + 25.0 * f64::from(count).log2(), "{printed}");
    }
}

#[test]
fn of_four_hosts_the_one_with_a_defect_is_unfit_and_no_other() {
    of_hosts(4, &DEFECTS_OF_A_HOST[..1]);
}

/// What the third and the fourth of hosts with a GPU each take longer for one message of NCCL's ring.
const SLOW_TOGETHER: &str = "[[fault.jitter]]\nsource = 2\ntarget = 3\nshare = 1\nextra_ns = 3e7\n";

/// Checks so many hosts of a GPU each, of which these two are slow together though all pairs are well.
fn of_slow_two(count: u32, names: [&str; 2]) {
    let Checked { code, hosts, said, .. } = check_by(count, "g5.8xlarge", SLOW_TOGETHER, "");
    assert_eq!(code, Some(3), "{hosts:#} {said}");
    let all = hosts.as_array().unwrap();
    let (suspect, others) = all.split_at(2);
    assert!(others.iter().all(|host| host["verdict"] == "fit"), "{hosts:#}");
    for (host, name) in suspect.iter().zip(names) {
        assert_eq!((&host["host"], &host["verdict"]), (&name.into(), &"suspect".into()));
        let reason = &host["reasons"][0];
        assert_eq!(reason["stage"], "together", "{hosts:#}");
        let expected =
            format!("all_reduce of {} and {} is below what is expected", names[0], names[1]);
        assert_eq!(reason["said"], *expected, "{hosts:#}");
    }
}

#[test]
fn hosts_that_are_slow_only_together_are_found_by_halves() {
    of_slow_two(4, ["ip-10-0-0-3", "ip-10-0-0-4"]);
}

#[test]
fn the_network_nodes_of_hosts_are_told_where_a_way_between_them_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let placement = folder.path().join("placement.json");
    let host = |number: u32, node: &str| {
        format!(
            r#"{{"InstanceId": "i-{number:017x}", "InstanceType": "p4d.24xlarge",
                "NetworkNodes": ["nn-1", "nn-2", "{node}"], "ZoneId": "use2-az3"}}"#
        )
    };
    let write = |hosts: &[String]| {
        fs::write(&placement, format!(r#"{{"Instances": [{}]}}"#, hosts.join(","))).unwrap();
    };
    write(&[host(1, "nn-3"), host(2, "nn-4")]);
    let words = format!("--gpus 0,2 --placement {}", placement.display());
    // The way of GPU 2 of the second host to its interface.
    let fault = "[[gpu]]\nordinals = [10]\npcie_down_gb_s = 6\n";
    let Checked { code, hosts, said, .. } = check_by(2, "p4d.24xlarge", fault, &words);
    assert_eq!(code, Some(1), "{hosts:#} {said}");
    let all = hosts.as_array().unwrap().iter().flat_map(|host| host["reasons"].as_array().unwrap());
    let found = all.filter(|reason| reason["stage"] == "pairs" && reason["verdict"] == "suspect");
    let found: Vec<&Value> = found.collect();
    assert!(!found.is_empty(), "{hosts:#}");
    let shown = found[0]["shown"].as_str().unwrap();
    for (host, node) in [("ip-10-0-0-1", "nn-3"), ("ip-10-0-0-2", "nn-4")] {
        assert!(shown.contains(&format!("{host} has nn-1 / nn-2 / {node}")), "{shown}");
    }

    let refused = |text: &str| {
        fs::write(&placement, text).unwrap();
        let line =
            format!("check --simulate 2xp4d.24xlarge --quiet --placement {}", placement.display());
        let (result, said) = mpi::standard().outcome(2, &line);
        assert_eq!(result.status.code(), Some(2), "{said}");
        said
    };
    let said = refused(&format!(r#"{{"Instances": [{}]}}"#, host(1, "nn-3")));
    assert!(said.contains("no network nodes of i-00000000000000002 (ip-10-0-0-2)"), "{said}");
    let said = refused("[]");
    assert!(said.contains("not what `aws ec2 describe-instance-topology` prints"), "{said}");
}

#[test]
fn what_one_host_lacks_makes_no_other_suspect_of_being_slow_together() {
    let Checked { code, hosts, said, .. } = check_by(3, "g5.8xlarge", "", "");
    assert_eq!(code, Some(0), "{hosts:#} {said}");
    let fault = "[[nic]]\nindices = [1]\nrate_gbps = 5\n";
    let Checked { code, hosts, said, .. } = check_by(3, "g5.8xlarge", fault, "");
    assert_eq!(code, Some(1), "{hosts:#} {said}");
    let verdicts: Vec<&Value> = (0..3).map(|number| &hosts[number]["verdict"]).collect();
    assert_eq!(verdicts, ["unfit", "fit", "fit"], "{hosts:#}");
    assert_eq!(hosts[0]["host"], "ip-10-0-0-2");
}

#[test]
fn hosts_of_one_nvlink_domain_are_each_checked() {
    let Checked { code, hosts, said, .. } = check_by(2, "p6e-gb200.36xlarge", "", "--gpus 0,1");
    assert_eq!(code, Some(0), "{hosts:#} {said}");
}

#[test]
fn a_slow_way_between_two_hosts_makes_both_suspect_and_no_other() {
    let fault = "[[fault.network]]\nsource = 0\ntarget = 2\nboth_ways = true\nfraction = 0.5\n";
    let Checked { code, hosts, printed, said } = check_by(4, "p4d.24xlarge", fault, "--gpus 0,2");
    assert_eq!(code, Some(3), "{printed}{said}");
    assert!(printed.contains("2 hosts suspect, 2 hosts fit."), "{printed}");
    for (place, name) in ["ip-10-0-0-1", "ip-10-0-0-3"].into_iter().enumerate() {
        assert_eq!(
            (&hosts[place]["host"], &hosts[place]["verdict"]),
            (&name.into(), &"suspect".into())
        );
        assert_eq!(hosts[place]["reasons"][0]["stage"], "pairs", "{hosts:#}");
    }
    // Four of six pairs meet in two rounds.
    assert!(printed.contains("4 of 6 pairs of hosts were measured"), "{printed}");
}

#[test]
fn a_slow_rail_is_named_as_a_rail() {
    let fault = "[[fault.network]]\nrail = 1\nfraction = 0.5\n";
    let Checked { code, hosts, printed, said } = check_by(4, "p4d.24xlarge", fault, "--gpus 0,2");
    assert_eq!(code, Some(3), "{printed}{said}");
    for host in hosts.as_array().unwrap() {
        assert_eq!(host["verdict"], "suspect", "{hosts:#}");
        let reasons = host["reasons"].as_array().unwrap();
        let is_named = |reason: &Value| {
            reason["said"].as_str().unwrap().starts_with("the rail of rdmap65s0 in 4 hosts: ")
        };
        assert!(!reasons.is_empty() && reasons.iter().all(is_named), "{hosts:#}");
    }
}

mod long {
    use super::*;

    #[test]
    #[ignore = "takes six minutes"]
    fn of_twenty_machines_with_noise_all_are_fit() {
        // Each transfer takes longer by 1 % of its time (standard deviation).
        let noise = "[[fault.jitter]]\nshare = 1\nextra_share = 0.0173\n";
        for (instance, gpus) in [
            ("p4d.24xlarge", "--gpus 0,1,2,3"),
            ("p5.48xlarge", "--gpus 0,3,5,6"),
            ("p6-b200.48xlarge", "--gpus 0,1,2"),
            ("g5.12xlarge", ""),
            ("g6e.12xlarge", ""),
        ] {
            for seed in 1..=4 {
                let words = format!("{gpus} --seed {seed}");
                let (code, hosts, said) = check(instance, noise, &words);
                assert_eq!(hosts[0]["verdict"], "fit", "{instance}, {seed}: {hosts:#} {said}");
                assert_eq!(code, Some(0), "{instance}, {seed}");
            }
        }
    }

    #[test]
    #[ignore = "takes three minutes"]
    fn of_eight_hosts_the_one_with_a_defect_is_unfit_and_no_other() {
        of_hosts(8, &DEFECTS_OF_A_HOST);
        of_slow_two(8, ["ip-10-0-0-3", "ip-10-0-0-4"]);
    }
}
