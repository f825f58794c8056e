//! Hosts that hang, stop or die in a check: told in time, and the others are judged.

use std::{fs, net::TcpListener};

use serde_json::Value;

use crate::{
    check::{Checked, check_by},
    common::SOON,
    tcp_ranks::{SECRET, end, rank, variables},
};

/// What happens to the second process that comes to the machine, in a call of this name.
fn fault(name: &str, what: &str, after: u32) -> String {
    format!("[[fault.call]]\nname = '{name}'\nprocess = 1\nwhat = '{what}'\nafter = {after}\n")
}

#[test]
fn a_host_that_hangs_or_stops_is_unfit_and_the_other_is_not() {
    // What the other one is: without a partner its pairs are unknown, unless they were measured.
    for (name, what, after, stage, other) in [
        ("cuMemcpyAsync", "hung", 40, "local", "unknown"),
        ("cuMemcpyAsync", "stopped", 2000, "p2p", "unknown"),
        ("ncclAllReduce", "stopped", 3, "nccl", "fit"),
    ] {
        let fault = fault(name, what, after);
        let words = "--gpus 0,1,2,3 --deadline 5s";
        let Checked { code, hosts, printed, said } = check_by(2, "p4d.24xlarge", &fault, words);
        assert_eq!(code, Some(1), "{name}: {printed}{said}");
        let verdicts = (&hosts[0]["verdict"], &hosts[1]["verdict"]);
        assert_eq!(verdicts, (&"unfit".into(), &other.into()), "{name}: {hosts:#}");
        let reason = &hosts[0]["reasons"][0];
        assert_eq!(reason["stage"], stage, "{name}: {hosts:#}");
        assert_eq!(reason["said"], "rank 1 does not answer", "{name}: {hosts:#}");
    }
}

/// Whether of three hosts exactly one is unfit, since it does not answer from one of these stages on.
fn is_left_out(hosts: &Value, stages: &[&str], said: &str) {
    let verdicts: Vec<&Value> = (0..3).map(|number| &hosts[number]["verdict"]).collect();
    assert_eq!(verdicts, ["unfit", "fit", "fit"], "{stages:?}: {hosts:#} {said}");
    let reason = &hosts[0]["reasons"][0];
    let lost = reason["said"].as_str().unwrap();
    assert!(stages.contains(&reason["stage"].as_str().unwrap()), "{hosts:#}");
    assert!(lost.ends_with(" does not answer"), "{hosts:#}");
    let name = hosts[0]["host"].as_str().unwrap();
    assert!(said.contains(&format!(": the check goes on without {name}")), "{said}");
}

#[test]
fn the_check_goes_on_without_a_host_that_does_not_answer() {
    // The second is somewhere between the first row and the last.
    for (instance, name, what, after, stages) in [
        ("p4d.24xlarge", "cuInit", "hung", 0, &["doctor"][..]),
        ("p4d.24xlarge", "cuMemcpyAsync", "hung", 40, &["local"]),
        ("p4d.24xlarge", "cuMemcpyAsync", "stopped", 600, &["local", "p2p", "nccl", "pairs"]),
        // Only what interfaces have written is waited for in this way.
        ("p4d.24xlarge", "cuFlushGPUDirectRDMAWrites", "hung", 3, &["pairs"]),
        // One GPU has nothing to do with NCCL but with other hosts.
        ("g5.8xlarge", "ncclAllReduce", "hung", 3, &["together"]),
    ] {
        let gpus = if instance == "g5.8xlarge" { "" } else { "--gpus 0,2" };
        // Long enough for ranks that share two processors with other tests.
        let words = format!("{gpus} --deadline 6s");
        let Checked { code, hosts, printed, said } =
            check_by(3, instance, &fault(name, what, after), &words);
        assert_eq!(code, Some(1), "{name}, {what}: {printed}{said}");
        is_left_out(&hosts, stages, &said);
    }
}

#[test]
fn without_mpi_the_check_goes_on_when_a_host_dies() {
    for (name, after, stages) in
        [("cuMemcpyAsync", 400, &["local"][..]), ("cuFlushGPUDirectRDMAWrites", 3, &["pairs"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let (machine, output) = (folder.path().join("machine.toml"), folder.path().join("run"));
        let file = "schema = 1\nfrom = \"p4d.24xlarge\"\nhosts = 3\n".to_owned();
        fs::write(&machine, file + &fault(name, "killed", after)).unwrap();
        let line = format!(
            "check --simulate {} --gpus 0,2 --quiet --no-report --deadline 6s --output {}",
            machine.display(),
            output.display()
        );
        let port = TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
        let start = |number: usize| {
            let mut variables = variables(number, 3, "localhost", port);
            variables.push(SECRET.to_owned());
            rank(&variables, &line)
        };
        let children = [0, 1, 2].map(start);
        let ends = children.map(|child| end(child, SOON));
        let (code, said) = &ends[0];
        assert_eq!(*code, Some(1), "{name}: {said}");
        assert_eq!(ends.iter().filter(|(code, _)| code.is_none()).count(), 1, "{name}: {ends:?}");
        let kept = fs::read_to_string(output.join("check.json")).unwrap();
        let kept: Value = serde_json::from_str(&kept).unwrap();
        is_left_out(&kept["hosts"], stages, said);
    }
}
