//! Findings from logs.

use super::*;
use crate::nccl_log::Reader;

fn explain(text: &str) -> Explanation {
    let mut reader = Reader::default();
    reader.read("log", text.as_bytes()).unwrap();
    Explanation::of(reader.finish())
}

fn finding<'a>(explanation: &'a Explanation, name: &str) -> &'a Finding {
    let found = explanation.findings.iter().find(|finding| finding.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:#?}", explanation.findings))
}

fn names(explanation: &Explanation) -> Vec<&str> {
    explanation.findings.iter().map(|finding| finding.name).collect()
}

const FIXTURE: &str = include_str!("../../../tests/fixtures/nccl-2.27.3-p4d-4pods-efa.log");

/// Messages of one process.
fn process(host: &str, pid: u32, messages: &[&str]) -> String {
    let line = |message: &&str| format!("{host}:{pid}:{pid} [0] NCCL INFO {message}\n");
    messages.iter().map(line).collect()
}

/// Two ranks on the hosts, with a channel between them each way.
fn pair(hosts: [&str; 2], nodes: u32, transport: &str, more: &[&str]) -> String {
    let mut text = String::new();
    for rank in 0..2u32 {
        let peer = 1 - rank;
        let local = 2 / nodes;
        let channel = if transport.starts_with("SHM") { "00" } else { "00/0" };
        let send = if transport.starts_with("NET") { " [send]" } else { "" };
        let begin = format!(
            "comm 0xa rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}01c0 commId 0xf - Init"
        );
        let lines = [
            format!("{begin} START"),
            format!(
                "comm 0xa rank {rank} nRanks 2 nNodes {nodes} localRanks {local} localRank 0 MNNVL 0"
            ),
            format!("{begin} COMPLETE"),
            format!("Channel {channel} : {rank}[{rank}] -> {peer}[{peer}]{send} via {transport}"),
        ];
        let lines: Vec<&str> =
            lines.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let host = usize::from(rank == 1);
        text += &process(hosts[host], 100 + rank, &lines);
    }
    text
}

const ON_P4D: &str = "NET/OFI Running on p4d.24xlarge platform, topology file x";
const ON_P5: &str = "NET/OFI Running on p5.48xlarge platform, topology file x";

#[test]
fn the_fixture_is_four_pods_of_one_p4d() {
    let explanation = explain(FIXTURE);
    let found = finding(&explanation, "one-machine-as-several-nodes");
    for part in [
        "4 ranks for 4 nodes with 1 rank each (localRanks 1)",
        "share one p4d.24xlarge (8 A100-SXM4)",
        "llama-3-8b-node-0-0, as a pod does",
        "1 of its 4 EFA interfaces",
        "0000:10:1d.0, while the machine's first GPU is at 0000:10:1c.0",
        "each of the 4 ranks has a GPU that the driver numbers 0",
        "NVLink between its GPUs went unused",
        "The log of ranks 1-3 is not here",
    ] {
        assert!(found.says.contains(part), "{part}: {}", found.says);
    }
    let because = found.because.as_deref().unwrap();
    assert!(because.contains("boot_id") && because.contains("/dev/shm"), "{because}");
    let remedy = found.remedy.as_deref().unwrap();
    for part in ["one pod", "hostNetwork", "hostIPC", "Neither is enough alone", "NCCL_HOSTID"] {
        assert!(remedy.contains(part), "{part}: {remedy}");
    }
    let lines: Vec<u64> = found.at.iter().map(|at| at.line).collect();
    let line = |number: u64| FIXTURE.lines().nth(usize::try_from(number).unwrap() - 1).unwrap();
    assert!(line(lines[0]).contains("nNodes 4 localRanks 1"), "{lines:?}");
    assert!(line(lines[1]).contains("p4d.24xlarge platform"), "{lines:?}");
    assert!(finding(&explanation, "plugin").says.contains("SENDRECV"));
    assert!(finding(&explanation, "simple-protocol").says.contains("byte delivery ordering"));
    assert!(finding(&explanation, "gpudirect").says.contains("GPUDirect RDMA"));
    assert_eq!(finding(&explanation, "gpudirect").weight, Weight::Note);
    assert!(finding(&explanation, "plugin").says.contains("EFA of p4d.24xlarge cannot"));
    let elsewhere = finding(&explanation, "gpudirect-elsewhere");
    assert!(elsewhere.says.contains("ranks 1-3"), "{elsewhere:?}");
    assert!(line(elsewhere.at[0].line).ends_with("use ring PXN 0 GDR 0"));
    assert!(finding(&explanation, "ranks-missing").says.contains("1-3"));
    assert_eq!(explanation.findings.iter().filter(|f| f.weight == Weight::Problem).count(), 2);
}

#[test]
fn gpus_of_one_address_are_on_two_machines() {
    let text = pair(["pod-0", "pod-1"], 2, "NET/Libfabric/0/GDRDMA", &[ON_P4D]);
    let shared = explain(&text);
    assert!(names(&shared).contains(&"one-machine-as-several-nodes"), "{:?}", names(&shared));
    let apart = explain(&text.replace("busId 101c0", "busId 001c0"));
    assert!(!names(&apart).contains(&"one-machine-as-several-nodes"), "{:?}", names(&apart));
}

#[test]
fn instances_of_their_own_are_no_finding() {
    let hosts = ["ip-10-0-0-1", "ip-10-0-0-2"];
    let text = pair(hosts, 2, "NET/Libfabric/0/GDRDMA", &[ON_P4D]);
    let explanation = explain(&text.replace("busId 101c0", "busId 001c0"));
    assert!(explanation.findings.iter().all(|f| f.weight == Weight::Note), "{explanation:#?}");
}

/// A pod that has a whole machine is called like one that has a part.
#[test]
fn the_name_of_a_pod_alone_is_no_sign_of_a_shared_machine() {
    let whole = "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)";
    let part = whole.replace("4 nics", "1 nics");
    for (nics, name, weight) in [
        (whole, "ranks-apart", Weight::Note),
        (&part, "one-machine-as-several-nodes", Weight::Problem),
    ] {
        let text = pair(["job-0", "job-1"], 2, "NET/Libfabric/0/GDRDMA", &[ON_P4D, nics]);
        let at_first = text.replace("nvmlDev 0 busId 001c0", "nvmlDev 0 busId 101c0");
        let explanation =
            explain(&at_first.replace("nvmlDev 1 busId 101c0", "nvmlDev 1 busId 101d0"));
        assert_eq!(finding(&explanation, name).weight, weight);
    }
}

#[test]
fn pods_on_an_unknown_machine_are_told_with_an_if() {
    let text = pair(["job-0", "job-1"], 2, "NET/Socket/0", &[]);
    let explanation = explain(&text);
    assert!(finding(&explanation, "ranks-apart").says.contains("If they are pods"));
    assert!(names(&explanation).contains(&"sockets"));
}

#[test]
fn shared_memory_names_its_cause() {
    for (more, part) in [
        ("NCCL_P2P_DISABLE set by environment to 1", "NCCL_P2P_DISABLE=1 switches"),
        ("NCCL_P2P_LEVEL set by environment to LOC", "NCCL_P2P_LEVEL=LOC"),
        (
            "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
            "NVML reports",
        ),
        ("Could not enable P2P between dev 1(=201c0) and dev 0(=101c0)", "CUDA refuses"),
        ("Legacy IPC not supported", "CUDA IPC does not work"),
        ("NET/OFI Running on g6.48xlarge platform, topology file x", "g6.48xlarge have no peer"),
        ("Using network Socket", "the log does not say why"),
    ] {
        let explanation = explain(&pair(["ip-1", "ip-1"], 1, "SHM/direct/direct", &[more]));
        let found = finding(&explanation, "shared-memory");
        let because = found.because.as_deref().unwrap();
        assert!(because.contains(part), "{more}: {because}");
        assert!(found.remedy.is_some());
    }
}

#[test]
fn peer_access_says_over_what_only_where_that_is_known() {
    for (more, part) in [
        (ON_P4D, "on p4d.24xlarge NVLink connects"),
        ("NET/OFI Running on g7e.48xlarge platform, topology file x", "g7e.48xlarge has no NVLink"),
        (
            "Pattern 4, crossNic 0, nChannels 1, bw 1.0/1.0, type PIX/PIX, sameChannels 1",
            "use PCIe at best (PIX)",
        ),
        (
            "Pattern 4, crossNic 0, nChannels 1, bw 1.0/1.0, type NVL/PIX, sameChannels 1",
            "use NVLink (NVL)",
        ),
        ("Using network Socket", "nvidia-smi topo -m"),
    ] {
        let explanation = explain(&pair(["ip-1", "ip-1"], 1, "P2P/CUMEM", &[more]));
        let says = &finding(&explanation, "peer-access").says;
        assert!(says.contains(part), "{more}: {says}");
    }
}

#[test]
fn reading_is_no_fault() {
    let on_p4d = explain(&pair(["ip-1", "ip-1"], 1, "P2P/CUMEM/read", &[ON_P4D]));
    let found = finding(&on_p4d, "read");
    assert!(found.says.contains("default") && found.says.contains("p4d.24xlarge has those"));
    assert_eq!(found.weight, Weight::Note);
    let set = "NCCL_P2P_READ_ENABLE set by environment to 1.";
    let chosen = explain(&pair(["ip-1", "ip-1"], 1, "P2P/CUMEM/read", &[set]));
    assert!(finding(&chosen, "read").says.contains("NCCL_P2P_READ_ENABLE is 1"));
}

#[test]
fn nvlink_sharp_is_judged_by_the_machine() {
    let missing = "NVLS multicast support is not available on dev 0";
    for (more, weight, part) in [
        ([ON_P5, missing], Weight::Problem, "though the instance type has it"),
        ([ON_P4D, missing], Weight::Note, "as is right for these GPUs"),
        (["Using network x", missing], Weight::Note, "needs NVSwitch"),
        (
            [ON_P5, "NVLS multicast support is available on dev 0"],
            Weight::Note,
            "only told with NCCL_DEBUG_SUBSYS",
        ),
        (
            [ON_P5, "NCCL_NVLS_ENABLE set by environment to 0."],
            Weight::Note,
            "switches NVLink SHARP",
        ),
        (
            [ON_P5, "NET/OFI Disabling NVLS support due to NCCL version 21800"],
            Weight::Note,
            "switched NVLink SHARP (NVLS) off",
        ),
        (
            [ON_P5, "AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}"],
            Weight::Note,
            "was chosen, for 1048576 bytes",
        ),
    ] {
        let explanation = explain(&pair(["ip-1", "ip-1"], 1, "P2P/CUMEM", &more));
        let found = finding(&explanation, "nvls");
        assert_eq!(found.weight, weight, "{found:?}");
        assert!(found.says.contains(part), "{found:?}");
    }
}

#[test]
fn networks_are_judged() {
    let hosts = ["ip-10-0-0-1", "ip-10-0-0-2"];
    let bounced = pair(hosts, 2, "NET/Libfabric/0", &[ON_P4D]);
    assert_eq!(finding(&explain(&bounced), "gpudirect").weight, Weight::Problem);
    let g6e = bounced.replace("p4d.24xlarge", "g6e.48xlarge");
    assert_eq!(finding(&explain(&g6e), "gpudirect").weight, Weight::Note);
    let proxied = explain(&pair(hosts, 2, "NET/Libfabric/0(3)/GDRDMA", &[]));
    assert!(finding(&proxied, "pxn").says.contains("ranks 3"));
    let tcp = "NET/OFI Selected provider is tcp, fabric is x (found 1 nics)";
    let tcp = explain(&pair(hosts, 2, "NET/Libfabric/0", &[ON_P4D, tcp]));
    assert_eq!(finding(&tcp, "plugin").weight, Weight::Problem);
    let same = explain(&pair(["ip-1", "ip-1"], 2, "NET/Libfabric/0/GDRDMA", &[]));
    assert!(finding(&same, "network-within-a-host").says.contains("both on ip-1"));
    let lacking = "a:1:1 [0] x.cc:1 NCCL WARN NET/OFI GDR disabled on GDR-supported instance type p4d.24xlarge\n";
    assert!(finding(&explain(lacking), "gpudirect-missing").says.contains("p4d.24xlarge has it"));
}

#[test]
fn warnings_say_what_they_mean() {
    for (text, name) in [
        ("P2P is disabled between NVLINK connected GPUs 1 and 0. This should not", "nvlink-fault"),
        ("No transport found for rank 0[101c0] -> rank 1[101d0]", "no-transport"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 1)", "dev-shm"),
        ("socketProgress: Connection closed by remote peer a<1>", "peer-lost"),
        (
            "Mismatched NCCL version detected : rank 0 version 1 rank 1 version 2",
            "version-mismatch",
        ),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1c0", "same-gpu"),
        ("Cuda failure 802 'system not yet initialized'", "cuda-failure"),
        ("NET/OFI Unable to create CQ", "network-fault"),
        ("a sentence of tomorrow", "warning"),
    ] {
        let log = format!("a:1:1 [0] x.cc:1 NCCL WARN {text}\n").repeat(3);
        let explanation = explain(&log);
        let found = finding(&explanation, name);
        assert!(found.says.contains("3 lines"), "{found:?}");
        assert_eq!(found.at[0].line, 1);
    }
}

#[test]
fn a_refusal_without_its_effect_is_told_by_itself() {
    let refusal = "Could not enable P2P between dev 1(=201c0) and dev 0(=101c0)";
    let alone = explain(&process("a", 1, &[refusal]));
    assert_eq!(finding(&alone, "peer-access-refused").weight, Weight::Problem);
    let explained = explain(&pair(["ip-1", "ip-1"], 1, "SHM/direct", &[refusal]));
    assert!(!names(&explained).contains(&"peer-access-refused"));
}

#[test]
fn warnings_beyond_the_first_are_counted() {
    let log: String =
        ('a'..='k').map(|word| format!("a:1:1 [0] x.cc:1 NCCL WARN {word}\n")).collect();
    let explanation = explain(&log);
    assert_eq!(names(&explanation).iter().filter(|name| **name == "warning").count(), 8);
    let more = finding(&explanation, "more-warnings");
    assert!(more.says.contains("3 more warnings"), "{more:?}");
    assert_eq!(more.at[0].line, 9);
}

#[test]
fn a_log_that_is_not_whole_is_told() {
    assert!(names(&explain("hello\n")).contains(&"no-nccl"));
    let begun =
        process("a", 1, &["comm 0xa rank 0 nranks 2 cudaDev 0 busId 1c0 commId 0xf - Init START"]);
    let explanation = explain(&begun);
    for name in ["no-channels", "ranks-missing", "unfinished"] {
        assert!(names(&explanation).contains(&name), "{name}");
    }
    let two = "a:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\na:2:2 [0] NCCL INFO NCCL version 2.18.6+cuda12.2\n";
    assert!(finding(&explain(two), "several-versions").says.contains("2.18.6"));
    let confidential = process("a", 1, &["CC On, workFifoBytes 1048576"]);
    assert!(names(&explain(&confidential)).contains(&"confidential-computing"));
    let state = |state| {
        let line =
            format!("MNNVL busId 0x1 fabric UUID 1.2 cliqueId 0x7 state {state} healthMask 0x0");
        names(&explain(&process("a", 1, &[&line]))).contains(&"fabric-state")
    };
    assert!(state(1) && state(2) && !state(0) && !state(3));
}

#[test]
fn variables_without_effect_are_told() {
    for (text, part) in [
        ("export NCCL_P2P_DIRECT_READ=1\n".to_owned(), "does not exist"),
        (process("a", 1, &["NCCL_P2P_DISABLE set by environment to 0"]), "only 1 counts"),
        (
            process(
                "a",
                1,
                &["Using network Libfabric", "NCCL_IB_DISABLE set by environment to 1."],
            ),
            "NCCL_IB_DISABLE has no effect",
        ),
        (
            process(
                "a",
                1,
                &[
                    "NCCL version 2.30.7+cuda12.9",
                    "NCCL_SHM_USE_CUDA_MEMCPY set by environment to 1.",
                ],
            ),
            "removed with NCCL 2.30.7",
        ),
        (
            pair(["a-1", "a-2"], 2, "NET/IB/0", &["NCCL_P2P_LEVEL set by environment to NVL"]),
            "no two ranks are on one node",
        ),
    ] {
        let explanation = explain(&text);
        let says = &finding(&explanation, "variable-without-effect").says;
        assert!(says.contains(part), "{says}");
    }
    let right = process("a", 1, &["NCCL_P2P_DISABLE set by environment to 1"]);
    assert!(!names(&explain(&right)).contains(&"variable-without-effect"));
}

#[test]
fn the_text_obeys_nobody() {
    let text = explain(&(FIXTURE.to_owned() + "a:1:1 [0] x.cc:1 NCCL WARN \u{1b}[31mred\n")).text();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("NET/Libfabric/0/GDRDMA: between ranks 0->1 0->2 0->3"), "{text}");
}
