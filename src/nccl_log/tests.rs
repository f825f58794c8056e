//! Lines of each family, as NCCL's versions write them.

use super::*;
use crate::units::Bytes;

fn read(text: &str) -> Log {
    let mut reader = Reader::default();
    reader.read("log", text.as_bytes()).unwrap();
    reader.finish()
}

/// Messages of one process, each a line.
fn lines(messages: &[&str]) -> String {
    messages.iter().map(|message| format!("node-a:10:11 [0] NCCL INFO {message}\n")).collect()
}

fn link(message: &str) -> Link {
    let log = read(&lines(&[message]));
    let [communicator] = &log.communicators[..] else { panic!("{message}: {log:?}") };
    let [link] = &communicator.links[..] else { panic!("{message}: {log:?}") };
    link.clone()
}

const FIXTURE: &str = include_str!("../../tests/fixtures/nccl-2.27.3-p4d-4pods-efa.log");

#[test]
fn channels_of_every_transport_are_read() {
    for (message, words) in [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 03/1 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "P2P/CUMEM"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read/CE", "P2P/CUMEM/read/CE"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/CE", "P2P/CUMEM/CE"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read", "P2P/IPC/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]/read", "P2P/indirect/3/read"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", "SHM/direct"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/CE/direct", "SHM/CE/direct"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/CE/CE", "SHM/CE/CE"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/2", "NET/Libfabric/2"),
        (
            "Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/2/GDRDMA/Shared",
            "NET/AWS Libfabric/2/GDRDMA/Shared",
        ),
        (
            "Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/0/GDRDMA(PCI)/Shared",
            "NET/IB/0/GDRDMA(PCI)/Shared",
        ),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0(5)/GDRDMA", "NET/IB/0(5)/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0", "NET/Socket/0"),
        ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/0/GDRDMA"),
    ] {
        assert_eq!(link(message).transport.to_string(), words, "{message}");
    }
    let proxied = link("Channel 07/0 : 0[0] -> 1[1] [send] via NET/IB/0(5)/GDRDMA");
    assert_eq!(proxied.transport.words(), "NET/IB/0/GDRDMA by PXN");
    assert_eq!((proxied.source, proxied.target, proxied.writer()), (0, Some(1), 0));
    assert_eq!((proxied.channels, proxied.gpus), (vec![7], Some((0, 1))));
    let received = link("Channel 07/0 : 0[0] -> 1[1] [receive] via NET/IB/0");
    assert_eq!(received.writer(), 1);
}

#[test]
fn a_channel_that_is_cut_or_garbled_proves_nothing() {
    for message in [
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUM",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/rea",
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/0/GDR",
        "Channel 00/0 : 0[0] -> 99999999999[1] via P2P/CUMEM",
        "Channel 00 : 0[0] -> 1[1] via SHM",
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/0/GDRDMA and more",
    ] {
        assert!(read(&lines(&[message])).communicators.is_empty(), "{message}");
    }
    let whole = lines(&["Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/0/GDRDMA"]);
    assert_eq!(read(&whole).communicators.len(), 1);
    let cut = whole.strip_suffix("/GDRDMA\n").unwrap();
    assert!(read(cut).communicators.is_empty(), "the end of the file may not be the line's");
}

#[test]
fn communicators_begin_alike_in_all_versions() {
    for begin in [
        "comm 0xa1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 101d0 commId 0xfeed - Init START",
        "ncclCommInitRank comm 0xa1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 101d0 commId 0xfeed - Init START",
        "[Rank 1] ncclCommInitRankConfig comm 0xa1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 101d0 commId 0xfeed - Init COMPLETE",
    ] {
        let log = read(&lines(&[begin]));
        let [communicator] = &log.communicators[..] else { panic!("{begin}: {log:?}") };
        assert_eq!((communicator.id.as_deref(), communicator.ranks), (Some("0xfeed"), Some(2)));
        let member = &communicator.members[&1];
        assert_eq!(member.bus_id.as_deref(), Some("0000:10:1d.0"));
        assert_eq!(member.is_complete, begin.ends_with("COMPLETE"));
        assert_eq!(communicator.missing(), [0]);
    }
}

#[test]
fn parts_of_a_communicator_are_known_by_how_they_were_cut() {
    let whole =
        "comm 0xa1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1c0 commId 0xfeed - Init START";
    for (part, id) in [
        (
            "ncclCommSplit comm 0xa2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 parent 0xa1 color 7 key 0 commId 0xbee - Init START",
            "0xbee",
        ),
        (
            "ncclCommSplit comm 0xa2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 parent 0xa1 splitCount 1 color 7 key 0- Init START",
            "0xfeed part 1 color 7",
        ),
        (
            "ncclCommSplit comm 0xa2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 parent 0xa1 childCount 1 color -7 key 0 - Init COMPLETE",
            "0xfeed part 1 color -7",
        ),
    ] {
        let log = read(&lines(&[whole, part]));
        assert_eq!(log.communicators.len(), 2, "{part}");
        assert_eq!(log.communicators[1].id.as_deref(), Some(id));
    }
}

#[test]
fn lines_about_a_communicator_are_read() {
    let log = read(&lines(&[
        "ncclCommInitRank comm 0xa1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 commId 0xf - Init START",
        "comm 0xa1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 1",
        "Channel 00/02 :    0   1",
        "Channel 01/02 : 1 0",
        "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
        "Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1",
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 0 ",
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1",
        "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1",
        "NVLS comm 0xa1 headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576 nvlsPerRankSize 1 nvlsTotalSize 1",
        "Connected all rings, use ring PXN 1 GDR 1",
        "AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "AllReduce: 1024 Bytes -> Algo 0 proto 1 time 12.5",
        "512 Bytes -> Algo 1 proto 0 time 12.5",
    ]));
    let [communicator] = &log.communicators[..] else { panic!("{log:?}") };
    assert_eq!((communicator.nodes, communicator.mnnvl), (Some(1), Some(true)));
    assert_eq!(communicator.members[&0].local_ranks, Some(2));
    assert_eq!(communicator.rings[&1], [1, 0]);
    assert!(communicator.has_trees && communicator.nvls.is_some());
    assert_eq!(communicator.all_direct, Some(true));
    assert_eq!(communicator.channels.unwrap().nvls, 16);
    let rings = communicator.rings_use.unwrap();
    assert_eq!((rings.pxn, rings.gpudirect, rings.at.line), (true, true, 13));
    assert_eq!(communicator.clique, Some(("7ffe".to_owned(), 8)));
    assert_eq!(communicator.gb_s_system, Some((240.0, 240.0)));
    let [graph] = &communicator.graphs[..] else { panic!("{log:?}") };
    assert_eq!((graph.pattern.as_str(), graph.gb_s_model), ("ring", (20.0, 20.0)));
    assert_eq!(graph.paths, ("NVL".to_owned(), "PIX".to_owned()));
    let choices: Vec<(Option<&str>, u64, &str, &str, u64)> = communicator
        .choices
        .iter()
        .map(|choice| {
            let function = choice.function.as_deref();
            let Choice { size_bytes, algorithm, protocol, lines, .. } = choice;
            (function, *size_bytes, algorithm.as_str(), protocol.as_str(), *lines)
        })
        .collect();
    let expected = [
        (Some("AllReduce"), 1 << 20, "NVLS", "SIMPLE", 2),
        (Some("AllReduce"), 1024, "TREE", "LL128", 1),
        (None, 512, "RING", "LL", 1),
    ];
    assert_eq!(choices, expected);
    assert_eq!(log.summary(Some(&asked(Bytes::mib(1)))).transports, ["NVLS"]);
    assert_eq!(log.summary(Some(&asked(Bytes::new(512)))).algorithm.as_deref(), Some("RING"));
    assert_eq!(log.summary(Some(&asked(Bytes::new(7)))).algorithm, None);
}

#[test]
fn lines_about_the_process_are_read() {
    let log = read(&lines(&[
        "NCCL version 2.27.3+cuda12.9",
        "cudaDriverVersion 13000",
        "Using network AWS Libfabric",
        "DMA-BUF is available on GPU device 0",
        "CC Off, workFifoBytes 1048576",
        "MNNVL busId 0x101c0 fabric UUID 1a.2b cliqueId 0x7ffe state 3 healthMask 0x0",
        "NVLS multicast support is not available on dev 0",
        "NVLS multicast support is available on dev 1 (NVLS_NCHANNELS 16)",
        "NCCL_BUFFSIZE set by environment to 8388608.",
        "NCCL_SOCKET_IFNAME set by environment to ^docker0,lo",
        "NET/OFI Initializing aws-ofi-nccl 1.9.2-aws",
        "NET/OFI Using Libfabric version 1.22",
        "NET/OFI Running on p5.48xlarge platform, NCCL_TOPO_FILE environment variable is already set to x",
        "NET/OFI Using transport protocol RDMA (platform set)",
        "NET/OFI Selected Provider is efa (found 32 nics)",
        "NET/OFI Support for DMA-BUF registrations: true",
        "NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1",
        "NET/OFI Adding NCCL_BUFFSIZE=8388608 to environment",
        "NET/OFI Need to force simple protocol: byte delivery ordering not supported",
        "NET/OFI Disabling NVLS support due to NCCL version 21803",
    ]));
    let values = |told: &[Told]| told.iter().map(|told| told.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&log.versions), ["2.27.3+cuda12.9"]);
    assert_eq!(values(&log.drivers), ["13.0"]);
    assert_eq!(values(&log.networks), ["AWS Libfabric"]);
    assert!(log.dma_buf_gpus.is_some());
    assert_eq!(log.confidential.map(|(is_on, _)| is_on), Some(false));
    assert_eq!(log.fabric_states.keys().copied().collect::<Vec<u32>>(), [3]);
    let support = log.nvls_support.unwrap();
    assert_eq!((support.available, support.missing, support.at.line), (1, 1, 7));
    let variables: Vec<(&str, &str, Origin)> = log
        .variables
        .iter()
        .map(|variable| (variable.name.as_str(), variable.value.as_str(), variable.origin))
        .collect();
    let expected = [
        ("NCCL_BUFFSIZE", "8388608", Origin::Environment),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", Origin::Environment),
        ("FI_EFA_FORK_SAFE", "1", Origin::Plugin),
        ("NCCL_BUFFSIZE", "8388608", Origin::Plugin),
    ];
    assert_eq!(variables, expected);
    let plugin = log.plugin.unwrap();
    let told = |told: Option<Told>| told.unwrap().value;
    assert_eq!(told(plugin.version), "1.9.2-aws");
    assert_eq!(told(plugin.libfabric), "1.22");
    assert_eq!(told(plugin.platform), "p5.48xlarge");
    assert_eq!(told(plugin.protocol), "RDMA");
    assert_eq!(plugin.protocol_set_by.as_deref(), Some("platform"));
    assert_eq!((told(plugin.provider), plugin.fabric, plugin.nics), ("efa".into(), None, Some(32)));
    assert_eq!(told(plugin.dma_buf), "true");
    assert_eq!(told(plugin.forces_simple), "byte delivery ordering");
    assert_eq!(told(plugin.disables_nvls), "21803");
}

#[test]
fn text_of_others_gives_versions_and_variables() {
    let log = read("NCCL version 2.18.6+cuda12.2\nexport NCCL_P2P_DIRECT_READ=1; x\n");
    assert_eq!(log.versions[0].value, "2.18.6+cuda12.2");
    let [variable] = &log.variables[..] else { panic!("{log:?}") };
    assert_eq!((variable.name.as_str(), variable.value.as_str()), ("NCCL_P2P_DIRECT_READ", "1;"));
}

#[test]
fn warnings_are_counted_by_their_words() {
    let log = read(
        "a:1:1 [0] transport/p2p.cc:1 NCCL WARN Cuda failure 12\n\
         a:2:2 [1] transport/p2p.cc:1 NCCL WARN Cuda failure 13\n",
    );
    let [warning] = &log.warnings[..] else { panic!("{log:?}") };
    assert_eq!((warning.kind, warning.lines, warning.at.line), (WarningKind::Cuda, 2, 1));
    assert_eq!(warning.text, "Cuda failure 12");
}

#[test]
fn the_fixture_is_two_communicators_of_four_nodes() {
    let log = read(FIXTURE);
    assert_eq!((log.lines, log.messages), (121, 121));
    assert_eq!(log.communicators.len(), 2);
    for communicator in &log.communicators {
        assert_eq!((communicator.ranks, communicator.nodes), (Some(4), Some(4)));
        assert_eq!(communicator.missing(), [1, 2, 3]);
        assert!(communicator.links.iter().all(|link| !link.is_certain));
        assert_eq!(communicator.links.len(), 6);
    }
    let summary = log.summary(None);
    assert_eq!(summary.transports, ["NET/Libfabric/0/GDRDMA x2"]);
    assert_eq!(summary.provider.as_deref(), Some("efa"));
    assert_eq!(summary.plugin_protocol.as_deref(), Some("SENDRECV"));
    assert!(log.warnings.is_empty());
}

/// Ranks of one communicator, one process each, with a channel to the next.
fn ring(transport: &str, writers: u32) -> String {
    let line = |rank: u32| {
        let next = (rank + 1) % 3;
        format!(
            "node:{rank}:9 [{rank}] NCCL INFO comm 0xa rank {rank} nranks 3 cudaDev {rank} nvmlDev {rank} busId 1c0 commId 0xf - Init START\n\
             node:{rank}:9 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {next}[{next}] via {transport}\n"
        )
    };
    (0..writers).map(line).collect()
}

fn asked(size: Bytes) -> Asked {
    Asked { function: "AllReduce", count: size, size }
}

/// What variables behind each other ask for.
fn wishes(text: &str) -> Wishes {
    Wishes::of(text.split_whitespace().map(|set| set.split_once('=').unwrap()))
}

#[test]
fn what_a_variable_asks_for_is_held_against_the_log() {
    let choice = "node:0:9 [0] NCCL INFO AllReduce: 8 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..1}\n";
    let text = |transport: &str| ring(transport, 3) + choice;
    let (p2p, shm) = (text("P2P/CUMEM/read"), text("SHM/direct"));
    let (net, alone) =
        (text("NET/Socket/0").replace(" via", " [send] via"), ring("P2P/CUMEM/read", 3));
    for (text, set, is_against) in [
        (&p2p, "NCCL_P2P_READ_ENABLE=0", true),
        (&p2p, "NCCL_P2P_READ_ENABLE=1", false),
        (&shm, "NCCL_P2P_READ_ENABLE=1", false),
        (&shm, "NCCL_P2P_LEVEL=SYS", true),
        (&shm, "NCCL_P2P_LEVEL=NVL", false),
        (&p2p, "NCCL_P2P_LEVEL=LOC", true),
        (&p2p, "NCCL_P2P_LEVEL=0", true),
        (&shm, "NCCL_SHM_DISABLE=1", true),
        (&shm, "NCCL_SHM_DISABLE=0", false),
        (&shm, "NCCL_P2P_DISABLE=1", true),
        (&alone, "NCCL_NVLS_ENABLE=0", false),
        (&p2p, "NCCL_NVLS_ENABLE=0", true),
        (&p2p, "NCCL_NVLS_ENABLE=1", false),
        (&net, "NCCL_NET=Socket", false),
        (&net, "NCCL_NET=IB", true),
        (&net, "NCCL_IB_DISABLE=1", false),
        (&p2p, "NCCL_ALGO=Ring,NVLSTree", false),
        (&p2p, "NCCL_ALGO=Ring", true),
        (&p2p, "NCCL_ALGO=^Ring", false),
        (&p2p, "NCCL_ALGO=ring;allreduce:^nvlstree", true),
        (&p2p, "NCCL_ALGO=broadcast:ring", false),
        (&p2p, "NCCL_PROTO=LL,LL128", true),
        (&p2p, "NCCL_PROTO=", false),
        (&p2p, "NCCL_DEBUG=INFO", false),
    ] {
        let verdict = read(text).path_verdict(Some(&asked(Bytes::new(8))), &wishes(set));
        assert_eq!(verdict.verdict == Verdict::Contradicted, is_against, "{set}: {verdict:?}");
        assert_eq!(verdict.reason.starts_with(&format!("{set} was set")), is_against);
    }
    // Another operation is not what it is asked of.
    let other = read(&p2p).path_verdict(Some(&asked(Bytes::new(9))), &wishes("NCCL_ALGO=Ring"));
    assert_eq!(other.verdict, Verdict::Proven);
}

#[test]
fn communicators_that_were_made_before_do_not_count() {
    let mut log = read(&(ring("SHM/direct", 3) + &ring("P2P/IPC", 3).replace("0xf", "0xe")));
    assert_eq!(log.summary(None).transports, ["P2P/IPC x1", "SHM/direct x1"]);
    log.keep_behind(&[6]);
    assert_eq!(log.summary(None).transports, ["P2P/IPC x1"]);
}

#[test]
fn a_path_is_proven_by_all_ranks_and_contradicted_by_one() {
    for (text, asked, expected, part) in [
        (
            ring("P2P/CUMEM", 3),
            "NCCL_P2P_LEVEL=SYS NCCL_NET=other",
            Verdict::Proven,
            "P2P/CUMEM x1",
        ),
        (ring("P2P/CUMEM", 3), "", Verdict::Proven, "P2P/CUMEM x1"),
        (
            ring("P2P/CUMEM", 2),
            "NCCL_P2P_LEVEL=SYS NCCL_NET=other",
            Verdict::Unknown,
            "channels of rank 2 are not in",
        ),
        (ring("P2P/CUMEM", 1), "", Verdict::Unknown, "channels of ranks 1,2 are not in"),
        (
            ring("P2P/CUMEM", 1),
            "NCCL_P2P_DISABLE=1",
            Verdict::Contradicted,
            "0 to 1 went over P2P/CUMEM",
        ),
        (
            ring("P2P/IPC", 3),
            "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
            Verdict::Contradicted,
            "went over P2P/IPC",
        ),
        (String::new(), "NCCL_P2P_LEVEL=SYS NCCL_NET=other", Verdict::Unknown, "no line of NCCL"),
        (lines(&["Using network IB"]), "", Verdict::Unknown, "no channel is in the log"),
        (
            FIXTURE.to_owned(),
            "NCCL_P2P_LEVEL=SYS NCCL_NET=other",
            Verdict::Contradicted,
            "NET/Libfabric/0/GDRDMA",
        ),
        (
            FIXTURE.to_owned(),
            "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
            Verdict::Unknown,
            "ranks 1-3 are not in the log",
        ),
    ] {
        let verdict = read(&text).path_verdict(None, &wishes(asked));
        assert_eq!(verdict.verdict, expected, "{asked:?} {verdict:?}");
        assert!(verdict.reason.contains(part), "{verdict:?}");
    }
}

#[test]
fn an_operation_over_nvlink_sharp_is_not_one_over_host_memory() {
    let choice = "node:0:9 [0] NCCL INFO AllReduce: 8 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..1}\n";
    let verdict = |asked| {
        read(&(ring("SHM/direct", 0) + &ring("P2P/CUMEM", 3) + choice))
            .path_verdict(None, &wishes(asked))
    };
    assert_eq!(verdict("NCCL_P2P_LEVEL=SYS NCCL_NET=other").verdict, Verdict::Proven);
    assert_eq!(verdict("NCCL_P2P_DISABLE=1").verdict, Verdict::Contradicted);
}

#[test]
fn several_gpus_of_one_process_are_told_apart_by_their_number() {
    let mut text = String::new();
    for rank in 0..2 {
        text += &format!(
            "n:1:9 [{rank}] NCCL INFO comm 0x{rank}a rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1c0 commId 0xf - Init COMPLETE\n\
             n:1:9 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {}[0] via P2P/direct pointer\n",
            1 - rank
        );
    }
    let log = read(&text);
    let [communicator] = &log.communicators[..] else { panic!("{log:?}") };
    assert_eq!((communicator.members.len(), communicator.links.len()), (2, 2));
    assert!(communicator.links.iter().all(|link| link.is_certain));
}

/// One process with two GPUs, each in a communicator of its own with GPUs of others.
#[test]
fn a_line_belongs_to_the_communicator_of_its_gpu() {
    let begin = |gpu: u32, id: &str, end: &str| {
        format!(
            "n:1:9 [{gpu}] NCCL INFO comm 0x{id} rank 0 nranks 2 cudaDev {gpu} nvmlDev {gpu} busId 1c0 commId 0x{id} - Init {end}\n"
        )
    };
    let channel = "n:1:7 [1] NCCL INFO Channel 00/0 : 0[1] -> 1[0] via P2P/CUMEM\n";
    let log = read(&(begin(0, "a", "COMPLETE") + &begin(1, "b", "COMPLETE") + channel));
    let counts: Vec<usize> = log.communicators.iter().map(|known| known.links.len()).collect();
    assert_eq!(counts, [0, 1]);
    assert!(log.communicators[1].links[0].is_certain);
}

#[test]
fn a_thread_writes_of_what_it_makes_until_that_is_done() {
    let begin = |id: &str, end: &str| {
        format!(
            "n:1:9 [0] NCCL INFO comm 0x{id} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 commId 0x{id} - Init {end}\n"
        )
    };
    let channel = "n:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
    let first = begin("a", "START") + &begin("a", "COMPLETE") + &begin("b", "START");
    let during = read(&(first.clone() + channel));
    let counts: Vec<usize> = during.communicators.iter().map(|known| known.links.len()).collect();
    assert_eq!(counts, [0, 1]);
    assert!(during.communicators[1].links[0].is_certain);
    let after = read(&(first + &begin("b", "COMPLETE") + channel));
    let counts: Vec<usize> = after.communicators.iter().map(|known| known.links.len()).collect();
    assert_eq!(counts, [1, 1]);
    assert!(after.communicators.iter().all(|known| !known.links[0].is_certain));
}

#[test]
fn one_rank_has_one_process() {
    let begin = |pid: u32| {
        format!(
            "n:{pid}:9 [0] NCCL INFO comm 0xa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c0 commId 0xf - Init START\n"
        )
    };
    assert_eq!(read(&(begin(1) + &begin(1))).communicators.len(), 1);
    assert_eq!(read(&(begin(1) + &begin(2))).communicators.len(), 2, "two runs in one file");
}

#[test]
fn a_progress_bar_in_the_line_is_other_text() {
    let text = "n:1:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct\r 10% done\r\n";
    assert_eq!(read(text).summary(None).transports, ["SHM/direct x1"]);
}

#[test]
fn numbers_in_order_become_ranges() {
    let numbers = summary::number_ranges;
    assert_eq!(numbers(&[0, 1, 2, 5, 7, 8]), "0-2,5,7,8");
    let odd: Vec<u32> = (0..20).map(|number| 2 * number + 1).collect();
    assert_eq!(numbers(&odd), "1,3,5,7,9,11,13,15,…");
    assert_eq!((numbers(&[]), numbers(&[u32::MAX])), (String::new(), u32::MAX.to_string()));
}
