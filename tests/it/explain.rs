//! `g2g explain` from outside.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::common::{g2g, text};
use g2g::nccl_log::{self, explain::Explanation};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

const FIXTURES: [&str; 5] = [
    "nccl-2.27.3-p4d-4pods-efa.log",
    "composed-2.18.6-g5-shm.log",
    "composed-2.22.3-p4d-p2p.log",
    "composed-2.27.3-p5en-two-nodes.log",
    "composed-2.30.7-p5-nvls.log",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn explain(words: &[&str], files: &[PathBuf]) -> Output {
    g2g().arg("explain").args(words).args(files).output().unwrap()
}

/// The answer with each run of white space as one space.
fn answer(files: &[PathBuf]) -> String {
    let output = explain(&[], files);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout).split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn json(files: &[PathBuf]) -> Value {
    let output = explain(&["--format", "json"], files);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn four_pods_of_one_p4d_are_found_out() {
    let answer = answer(&[fixture(FIXTURES[0])]);
    for part in [
        "121 messages of NCCL 2.27.3+cuda12.9",
        "4 ranks, which NCCL takes for 4 nodes",
        "NET/Libfabric/0/GDRDMA: between ranks 0->1 0->2 0->3 1->0 2->0 3->0",
        "probably share one p4d.24xlarge",
        "NVLink between its GPUs went unused",
        "host name and /proc/sys/kernel/random/boot_id",
        "both hostNetwork: true and hostIPC: true",
        "stands in for the host name only",
        "provider is efa, with aws-ofi-nccl's SENDRECV protocol",
        "forces NCCL's simple protocol (NCCL_PROTO=simple), since byte delivery ordering",
        "(GPUDirect RDMA) on all connections that the log shows",
        "at least one of ranks 1-3 sends or receives its ring through host memory",
        "not proven: the channels of ranks 1-3 are not in the log",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
}

#[test]
fn each_machine_is_told_by_its_own_words() {
    for (name, path, parts) in [
        (
            FIXTURES[1],
            "proven",
            &["SHM/direct: between ranks", "NVML reports that the driver allows no peer"][..],
        ),
        (
            FIXTURES[2],
            "proven",
            &[
                "P2P/CUMEM/read: between ranks 0->1",
                "channels 0-23",
                "8 ranks, which NCCL takes for 1 node with 8 each",
                "on p4d.24xlarge NVLink connects the GPUs",
                "NCCL's default between two GPUs of compute capability 8.0",
                "operations of 1 MiB: RING, SIMPLE",
                "operations of 1 KiB: TREE, LL",
                "is not available on the 8 GPUs that tell, as is right",
            ],
        ),
        (
            FIXTURES[3],
            "proven",
            &[
                "4 ranks, which NCCL takes for 2 nodes with 2 each",
                "with aws-ofi-nccl's RDMA protocol (its default for the platform)",
                "NET/Libfabric/0/GDRDMA by PXN: between ranks 1->2",
                "AllReduce of 64 MiB: NVLS_TREE, SIMPLE",
                "(PXN, through ranks 0)",
            ],
        ),
        (
            FIXTURES[4],
            "proven",
            &[
                "P2P/CUMEM: between ranks 0->1",
                "AllReduce of 64 MiB: NVLS, SIMPLE",
                "NVLink SHARP (NVLS) was chosen, for 67108864 bytes",
                "the rings that NCCL has found use NVLink (NVL)",
            ],
        ),
    ] {
        let answer = answer(&[fixture(name)]);
        for part in parts {
            assert!(answer.contains(part), "{name}: {part}: {answer}");
        }
        let json = json(&[fixture(name)]);
        assert_eq!(json["path"]["verdict"], path, "{name}");
    }
}

/// One host needs no network, whatever NCCL would use.
#[test]
fn a_network_that_is_not_needed_is_no_finding() {
    let names = |name: &str| {
        let json = json(&[fixture(name)]);
        let findings = json["findings"].as_array().unwrap().clone();
        findings.iter().map(|finding| finding["name"].to_string()).collect::<Vec<String>>()
    };
    assert!(!names(FIXTURES[1]).contains(&"\"sockets\"".to_owned()));
    assert_eq!(names(FIXTURES[0])[0], "\"one-machine-as-several-nodes\"");
}

#[test]
fn ranks_of_several_files_and_of_standard_input_are_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read_to_string(fixture(FIXTURES[2])).unwrap();
    let of = |pid: u32| -> String {
        let own = whole.lines().filter(|line| line.contains(&format!(":{pid}:")));
        own.map(|line| format!("{line}\n")).collect()
    };
    let files: Vec<PathBuf> = (0..8u32)
        .map(|rank| {
            let path = folder.path().join(format!("nccl.{rank}.log"));
            fs::write(&path, of(900 + rank)).unwrap();
            path
        })
        .collect();
    let all = json(&files);
    assert_eq!(all["path"]["verdict"], "proven");
    assert_eq!(all["log"]["communicators"].as_array().unwrap().len(), 1);
    assert_eq!(all["summary"]["transports"][0], "P2P/CUMEM/read x24");
    let seven = json(&files[..7]);
    assert_eq!(seven["path"]["verdict"], "unknown");
    assert_eq!(seven["path"]["reason"], "the channels of rank 7 are not in the log");
    assert!(answer(&files).contains("nccl.0.log:"), "lines are told with their file");

    let mut child = g2g()
        .args(["explain", "-", "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(whole.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["path"]["verdict"], "proven");
    assert_eq!(json["log"]["files"][0], "standard input");
}

/// The order in which ranks' lines arrive is chance.
#[test]
fn interleaved_ranks_are_the_same_job() {
    for name in FIXTURES {
        let whole = fs::read_to_string(fixture(name)).unwrap();
        let mut ranks: Vec<Vec<&str>> = Vec::new();
        for line in whole.lines() {
            let key =
                |line: &str| line.split(" [").next().unwrap().split(':').nth(1).map(str::to_owned);
            match ranks.iter_mut().find(|lines| key(lines[0]) == key(line)) {
                Some(lines) => lines.push(line),
                None => ranks.push(vec![line]),
            }
        }
        let mut random = StdRng::seed_from_u64(3);
        let mut mixed = String::new();
        let mut heads = vec![0; ranks.len()];
        while heads.iter().zip(&ranks).any(|(&head, lines)| head < lines.len()) {
            let rank = random.random_range(0..ranks.len());
            if let Some(line) = ranks[rank].get(heads[rank]) {
                mixed += line;
                mixed.push('\n');
                heads[rank] += 1;
            }
        }
        let (before, after) = (read(whole.as_bytes()), read(mixed.as_bytes()));
        assert_eq!(before.summary, after.summary, "{name}");
        assert_eq!(before.path.verdict, after.path.verdict, "{name}");
    }
}

#[test]
fn bad_input_is_one_sentence_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let missing = folder.path().join("missing");
    for (files, part) in [
        (vec![empty], "no line of NCCL is in the log: set NCCL_DEBUG=INFO"),
        (vec![missing], "cannot read"),
        (vec![folder.path().to_owned()], "cannot read"),
        (vec![], "<LOG>"),
    ] {
        let output = explain(&[], &files);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty());
    }
}

fn read(bytes: &[u8]) -> Explanation {
    let mut reader = nccl_log::Reader::default();
    reader.read("log", bytes).unwrap();
    Explanation::of(reader.finish())
}

#[test]
fn the_fuzzer_refuses_what_is_no_time() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fuzz");
    for words in [&["0"][..], &["soon"], &["1", "2"]] {
        let output = Command::new(&script).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{words:?}");
    }
}

/// A log of one line many times needs no more memory than one of it.
#[test]
fn what_is_kept_is_what_was_found() {
    let line = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
    let noise: String = (0..500)
        .map(|n| {
            format!("a:{n}:{n} [0] x.cc:1 NCCL WARN disk {n} of {n} is slow\nother text {n}\n")
        })
        .collect();
    let log = read((line.repeat(500) + &noise).as_bytes()).log;
    let links = &log.communicators[0].links;
    assert_eq!((links.len(), links[0].lines, links[0].channels.len()), (1, 500, 1));
    assert_eq!((log.warnings.len(), log.warnings[0].lines), (1, 500));
}
