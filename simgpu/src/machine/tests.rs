use std::fs;

use super::*;

/// The machine of a file's text.
fn file(text: &str) -> Machine {
    load_text(text).unwrap_or_else(|err| panic!("{err}\n{text}"))
}

fn load_text(text: &str) -> Result<Machine, BadMachine> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.toml");
    fs::write(&path, text).unwrap();
    load(path.to_str().unwrap())
}

/// Asserts what holds for every machine, whatever it was made from.
fn is_whole(machine: &Machine) {
    let gpus = u32::try_from(machine.gpus.len()).unwrap();
    assert!((1..=GPUS_MAX).contains(&gpus), "{}", machine.name);
    let keys: Vec<(u32, u32)> = machine.pairs.iter().map(|p| (p.source, p.target)).collect();
    let all = (0..gpus).flat_map(|s| (0..gpus).map(move |t| (s, t))).filter(|(s, t)| s != t);
    assert_eq!(keys, all.collect::<Vec<_>>(), "{}", machine.name);
    for pair in &machine.pairs {
        for rate in [pair.ce_read, pair.ce_write, pair.sm_read, pair.sm_write] {
            assert!(rate.gb_s > 0.0 && rate.gb_s.is_finite() && rate.latency_ns >= 0.0, "{pair:?}");
        }
    }
    for gpu in &machine.gpus {
        for rates in [gpu.local, gpu.from_host, gpu.to_host] {
            assert!(rates.ce.gb_s > 0.0 && rates.sm.gb_s > 0.0, "{}: {gpu:?}", machine.name);
        }
        assert!(gpu.nvlinks.count <= NVLINKS_MAX, "{}", machine.name);
        assert_eq!(gpu.nvlinks.generation == 0, gpu.nvlinks.count == 0, "{}", machine.name);
        assert_eq!(machine.gpus.iter().filter(|other| other.pci == gpu.pci).count(), 1);
    }
}

#[test]
fn every_instance_of_the_catalogue_is_a_machine() {
    let mut count = 0;
    for name in instance::names() {
        let machine = load(name).unwrap();
        is_whole(&machine);
        let known = &catalogue::CATALOGUE.instance[name];
        assert_eq!(machine.gpus.len(), known.gpu_count as usize, "{name}");
        for gpu in &machine.gpus {
            assert_eq!(gpu.nvlinks.count, known.nvlink_links_per_gpu.unwrap_or(0), "{name}");
        }
        count += 1;
    }
    assert!(count >= 60, "{count}");
}

/// The links of each pair as `nvidia-smi topo -m` shows them, a row for each source.
fn shown(machine: &Machine) -> Vec<String> {
    let cell = |source: u32, target: u32| match machine.pair(source, target) {
        None => "X".to_owned(),
        Some(Pair { link: Link::NvLink(links), .. }) => format!("NV{links}"),
        Some(_) => {
            let [a, b] = [source, target].map(|ordinal| &machine.gpus[ordinal as usize]);
            match a.numa_node == b.numa_node {
                true if a.pcie_switch.is_some() && a.pcie_switch == b.pcie_switch => "PIX",
                true => "NODE",
                false => "SYS",
            }
            .to_owned()
        }
    };
    let gpus = 0..u32::try_from(machine.gpus.len()).unwrap();
    let rows = gpus.clone().map(|source| gpus.clone().map(|t| cell(source, t)).collect());
    rows.map(|cells: Vec<String>| cells.join(" ")).collect()
}

#[test]
fn instances_have_the_topology_that_nvidia_smi_shows_on_them() {
    for (name, links) in [("p4d.24xlarge", "NV12"), ("p5.48xlarge", "NV18")] {
        let machine = load(name).unwrap();
        for (at, row) in shown(&machine).into_iter().enumerate() {
            let mut cells = [links; 8];
            cells[at] = "X";
            assert_eq!(row, cells.join(" "), "{name}");
        }
        let nodes: Vec<u32> = machine.gpus.iter().map(|gpu| gpu.numa_node).collect();
        assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1], "{name}");
    }
    let g6e = load("g6e.12xlarge").unwrap();
    let rows = ["X NODE NODE NODE", "NODE X NODE NODE", "NODE NODE X NODE", "NODE NODE NODE X"];
    assert_eq!(shown(&g6e), rows);
    let p3 = load("p3.16xlarge").unwrap();
    assert_eq!(shown(&p3)[0], "X NV1 NV1 NV2 NV2 SYS SYS SYS");
    assert_eq!(shown(&p3)[6], "SYS SYS NV1 SYS NV1 NV2 X NV2");
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest_one() {
    let sentence = load("p5.48xlarg").unwrap_err().to_string();
    assert_eq!(
        sentence,
        "no machine is called `p5.48xlarg`: the nearest name is `p5.48xlarge`, and the path of a \
         machine file has a `/` or ends in `.toml`"
    );
    let sentence = load("p6-b2").unwrap_err().to_string();
    assert!(sentence.contains("nearest name is `p6-b200.48xlarge`"), "{sentence}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let sentence = load("nowhere/machine.toml").unwrap_err().to_string();
    let start = "cannot read machine file nowhere/machine.toml: No such file";
    assert!(sentence.starts_with(start), "{sentence}");
}

/// Malformed files; of each the line, the key and the sentence.
const MALFORMED: [(&str, usize, &str, &str); 64] = [
    ("", 1, "", "missing field `schema`"),
    ("schema = 2", 1, "schema", "2 is not 1, the only value there is"),
    ("schema = 1\nshema = 1", 2, "", "unknown field `shema`"),
    ("schema = 1\n[[gpu]\n", 2, "", "unclosed array table, expected `]`"),
    ("schema = 1\nname = 3", 2, "name", "expected a string"),
    ("schema = 1\ngpu_count = 0", 2, "gpu_count", "0 is not between 1 and 72"),
    ("schema = 1\ngpu_count = 73", 2, "gpu_count", "73 is not between 1 and 72"),
    ("schema = 1\nfrom = 'p4.24xlarge'", 2, "from", "no instance is called `p4.24xlarge`"),
    ("schema = 1\nfrom = 'p5.48xlarge'\ngpu_count = 9", 3, "gpu_count", "has 8 GPUs, no more"),
    ("schema = 1\nevent_resolution_ns = 0", 2, "event_resolution_ns", "0 is not between 1 and"),
    ("schema = 1\ndriver_version = 12", 2, "driver_version", "12 is not between"),
    ("schema = 1\n[gpu]\nname = 'x'", 2, "gpu", "expected a sequence"),
    ("schema = 1\n\n[[gpu]]\nmemory_gb = 3", 4, "gpu", "unknown field `memory_gb`"),
    ("schema = 1\n[[gpu]]\nordinals = [\n0,\n2]", 5, "gpu.ordinals", "no GPU 2: the last is GPU 1"),
    ("schema = 1\n[[gpu]]\nordinals = [-1]", 3, "gpu.ordinals", "there is no GPU -1"),
    ("schema = 1\n[[gpu]]\nmemory_mib = 0", 3, "gpu.memory_mib", "0 is not between 1 and"),
    ("schema = 1\n[[gpu]]\nthrottle = ['fan']", 3, "gpu.throttle", "unknown variant `fan`"),
    ("schema = 1\n[[gpu]]\nmig = 1", 3, "gpu.mig", "expected a boolean"),
    (
        "schema = 1\nfrom = 'g5.12xlarge'\n[[gpu]]\nmig = true",
        4,
        "gpu.mig",
        "such a GPU cannot be cut up",
    ),
    ("schema = 1\n[[gpu]]\ncluster_uuid = '1'", 3, "gpu.cluster_uuid", "`1` is not a UUID such"),
    ("schema = 1\n[[gpu]]\npcie_counter_bits = 16", 3, "gpu.pcie_counter_bits", "16 is not 0 (no"),
    ("schema = 1\n[[fault.health]]\nwhat = 'fire'", 3, "fault.health.what", "unknown variant"),
    ("schema = 1\n[[fault.health]]\nwhat = 'xid'", 2, "fault.health", "`count` is for what"),
    (
        "schema = 1\n[[fault.health]]\nwhat = 'lost'\ncount = 2",
        2,
        "fault.health",
        "`count` is for what counts errors",
    ),
    ("schema = 1\n[[fault.detour]]\nsource = 2", 3, "fault.detour.source", "there is no GPU 2"),
    ("schema = 1\n[[gpu]]\npci = '0000:1a'", 3, "gpu.pci", "is not a PCI address such as"),
    ("schema = 1\n[[gpu]]\nordinals = [0]\npci = '0000:11:00'", 4, "gpu.pci", "two GPUs have"),
    ("schema = 1\n[[gpu]]\nnvlinks = 4", 3, "gpu.nvlinks", "give `nvlinks` under `[[pair]]`"),
    ("schema = 1\n[[gpu]]\negress_gb_s = nan", 3, "gpu.egress_gb_s", "NaN is not a limit"),
    ("schema = 1\n[[gpu]]\nlocal_ce.gb_s = -1", 3, "gpu.local_ce.gb_s", "-1 is not a rate"),
    ("schema = 1\n[[gpu]]\nlaunch_ns = -0.5", 3, "gpu.launch_ns", "-0.5 is not a latency"),
    ("schema = 1\n[[gpu]]\nnvlinks_down = [0]", 3, "gpu.nvlinks_down", "has 0 NVLinks"),
    ("schema = 1\n[[pair]]\nce_read = { gb_s = 0 }", 3, "pair.ce_read.gb_s", "0 is not a rate"),
    ("schema = 1\n[[pair]]\nce_read.gb_s = inf", 3, "pair.ce_read.gb_s", "inf is not a rate"),
    ("schema = 1\n[[pair]]\nsm_read.latency_ns = nan", 3, "pair.sm_read.latency_ns", "NaN is not"),
    (
        "schema = 1\n[[fault.network]]\nsource = 1\nfraction = 1",
        3,
        "fault.network.source",
        "there is no host behind 0, not 1",
    ),
    (
        "schema = 1\n[[fault.network]]\nrail = 0\nfraction = 1",
        3,
        "fault.network.rail",
        "there is no network interface in a host, not 0",
    ),
    ("schema = 1\n[[pair]]\nsource = 2", 3, "pair.source", "there is no GPU 2"),
    ("schema = 1\n[[pair]]\nsource = 1\ntarget = 1", 4, "pair.target", "is source and target"),
    (
        "schema = 1\n[[pair]]\nsource = 1\n[[pair]]\ntarget = 0\n[[pair]]\nsource = 1\n",
        6,
        "pair",
        "there is an entry for this source and target already",
    ),
    (
        "schema = 1\nnvswitch = true\n[[pair]]\nnvlinks = 2",
        4,
        "pair.nvlinks",
        "give `nvlinks` under `[[gpu]]`",
    ),
    (
        "schema = 1\n[[pair]]\nsource = 0\ntarget = 1\nnvlinks = 2",
        5,
        "pair.nvlinks",
        "there are 2 from GPU 0 to 1 and 0 back",
    ),
    (
        "schema = 1\ngpu_count = 3\n[[pair]]\nnvlinks = 10",
        4,
        "pair.nvlinks",
        "GPU 0 would have 20 links: at most 18",
    ),
    ("schema = 1\n[[fault.slow]]\nfraction = 0", 3, "fault.slow.fraction", "above 0 and at most 1"),
    (
        "schema = 1\n[[fault.jitter]]\nextra_ns = 9\nshare = 1.1",
        4,
        "fault.jitter.share",
        "1.1 is not a share, which is between 0 and 1",
    ),
    (
        "schema = 1\n[[fault.jitter]]\nshare = 1\nlasts_ns = 5",
        2,
        "fault.jitter",
        "one of `extra_ns` and `extra_share` must be given",
    ),
    (
        "schema = 1\n[[fault.call]]\ncode = 2\nname = 'cuMemAlloc_v2'",
        4,
        "fault.call.name",
        "write `cuMemAlloc`",
    ),
    ("schema = 1\n[host]\nshm_mib = 0", 3, "host.shm_mib", "0 is not between 1 and"),
    ("schema = 1\n[host]\nshm = 64", 3, "host", "unknown field `shm`"),
    ("schema = 1\n[host]\nmemlock_kib = 'unlimited'", 3, "host.memlock_kib", "invalid type"),
    ("schema = 1\n[host]\nlibfabric = 'v1.9'", 3, "host.libfabric", "no version such as `2.1.0`"),
    ("schema = 1\n[[host.file]]\ntext = ''", 2, "host.file", "missing field `path`"),
    (
        "schema = 1\n[[host.file]]\npath = 'proc/cmdline'\ntext = ''",
        3,
        "host.file.path",
        "is no path such as `/proc/cmdline`",
    ),
    ("schema = 1\n[[host.file]]\npath = '/a/../b'\ntext = ''", 3, "host.file.path", "is no path"),
    ("schema = 1\n[[host.file]]\npath = '/'\nabsent = true", 3, "host.file.path", "is no path"),
    ("schema = 1\n[[host.file]]\npath = '/a'", 2, "host.file", "one of `text`, `link`"),
    (
        "schema = 1\n[[host.file]]\npath = '/a'\ntext = ''\ndenied = true",
        2,
        "host.file",
        "one of `text`, `link`",
    ),
    ("schema = 1\n[[nic]]\nindices = [0]", 3, "nic.indices", "the machine has no network"),
    (
        "schema = 1\nfrom = 'p4d.24xlarge'\n[[nic]]\nindices = [\n3,\n4]",
        6,
        "nic.indices",
        "there is no network interface 4: the last is 3",
    ),
    ("schema = 1\n[[nic]]\nstate = 'up'", 3, "nic.state", "unknown variant `up`"),
    (
        "schema = 1\n[[gpu]]\npcie_switch = 1\n[[gpu]]\nordinals = [1]\npci = '0001:11:00'",
        6,
        "gpu.pci",
        "PCI bus 0001:11 would be in two places",
    ),
    (
        "schema = 1\n[[gpu]]\nordinals = [0]\npci = '0000:11:01'\npcie_switch = 1\n",
        4,
        "gpu.pci",
        "PCI bus 0000:11 would be in two places",
    ),
    (
        "schema = 1\nfrom = 'p5.48xlarge'\n[[gpu]]\nordinals = [0]\npci = '0000:40:00'\n",
        5,
        "gpu.pci",
        "two devices are at 0000:40:00",
    ),
    ("schema = 1\n[[nic]]\nstate = \"-1\\n\"\n", 3, "nic.state", "unknown variant `-1 `"),
];

#[test]
fn a_malformed_file_is_one_sentence_with_line_and_key() {
    for (text, expected_line, expected_key, expected) in MALFORMED {
        let err = load_text(text).expect_err(text);
        let sentence = err.to_string();
        let BadMachine::Malformed { path, line, key, problem } = err else {
            panic!("{text}: {sentence}");
        };
        assert_eq!((line, key.as_str()), (expected_line, expected_key), "{text}: {problem}");
        assert!(problem.contains(expected), "{text}: {problem}");
        assert!(path.ends_with("given.toml") && !problem.contains('\n'), "{problem}");
        let place = if key.is_empty() { String::new() } else { format!(", `{key}`") };
        assert_eq!(sentence, format!("machine file {path}, line {line}{place}: {problem}"));
    }
}

#[test]
fn a_file_may_start_from_an_instance_and_change_some_of_it() {
    let machine = file(
        "schema = 1\nfrom = 'p5.48xlarge'\ngpu_count = 4\nname = 'half'\n\
         [[gpu]]\nlaunch_ns = 3000\n[[gpu]]\nordinals = [3]\nmemory_mib = 1024\n\
         egress_gb_s = inf\nfrom_host_ce = { gb_s = 10 }\n",
    );
    is_whole(&machine);
    let whole = load("p5.48xlarge").unwrap();
    assert_eq!((machine.name.as_str(), machine.gpus.len()), ("half", 4));
    assert!(machine.gpus.iter().all(|gpu| gpu.launch_ns == 3000.0));
    assert_eq!(machine.gpus[3].memory_bytes, 1 << 30);
    assert_eq!(machine.gpus[3].egress_gb_s, None);
    assert_eq!(machine.gpus[3].from_host.ce.gb_s, 10.0);
    assert_eq!(machine.gpus[3].from_host.ce.latency_ns, whole.gpus[3].from_host.ce.latency_ns);
    assert_eq!(Gpu { launch_ns: 2000.0, ..machine.gpus[1].clone() }, whole.gpus[1]);
    assert_eq!(machine.pair(1, 3), whole.pair(1, 3));
}

#[test]
fn a_machine_is_called_as_its_file_is() {
    assert_eq!(file("schema = 1").name, "given");
}

#[test]
fn later_entries_override_earlier_ones_key_by_key() {
    let machine = file(
        "schema = 1\ngpu_count = 3\n\
         [[pair]]\nce_read = { gb_s = 10, latency_ns = 5 }\n\
         [[pair]]\nsource = 0\nce_read.gb_s = 20\nread_allowed = false\n\
         [[pair]]\nsource = 0\ntarget = 2\nboth_ways = true\nce_read.gb_s = 30\n",
    );
    let read = |source, target| machine.pair(source, target).unwrap().ce_read;
    assert_eq!(read(1, 2), Rate { gb_s: 10.0, latency_ns: 5.0 });
    assert_eq!(read(0, 1), Rate { gb_s: 20.0, latency_ns: 5.0 });
    assert_eq!(read(0, 2), Rate { gb_s: 30.0, latency_ns: 5.0 });
    assert_eq!(read(2, 0), read(0, 2));
    let refused = machine.pairs.iter().filter(|pair| !pair.read_allowed);
    assert!(refused.clone().all(|pair| pair.source == 0 && pair.write_allowed));
    assert_eq!(refused.count(), 2);
}

#[test]
fn a_slow_pair_is_slow_with_both_engines_and_in_the_direction_that_is_named() {
    let text = "schema = 1\n[[fault.slow]]\nsource = 0\ntarget = 1\nfraction = 0.5\n";
    let (slow, both) = (file(text), file(&format!("{text}both_ways = true\n")));
    let sound = file("schema = 1");
    let rates = |machine: &Machine, source, target| {
        let pair = machine.pair(source, target).unwrap();
        [pair.ce_read, pair.ce_write, pair.sm_read, pair.sm_write]
    };
    let halved = |rates: [Rate; 4]| rates.map(|rate| Rate { gb_s: rate.gb_s / 2.0, ..rate });
    assert_eq!(rates(&slow, 0, 1), halved(rates(&sound, 0, 1)));
    assert_eq!(rates(&slow, 1, 0), rates(&sound, 1, 0));
    assert_eq!(rates(&both, 1, 0), halved(rates(&sound, 1, 0)));
}

#[test]
fn a_link_to_the_switch_that_is_down_takes_its_share_from_every_pair_and_port() {
    let sound = load("p5.48xlarge").unwrap();
    let machine =
        file("schema = 1\nfrom = 'p5.48xlarge'\n[[gpu]]\nordinals = [2]\nnvlinks_down = [17, 3]\n");
    assert_eq!(machine.gpus[2].nvlinks.down, [3, 17]);
    for (pair, before) in machine.pairs.iter().zip(&sound.pairs) {
        let (links, share) = match pair.source == 2 || pair.target == 2 {
            true => (16, 16.0 / 18.0),
            false => (18, 1.0),
        };
        assert_eq!(pair.link, Link::NvLink(links));
        assert_eq!(pair.sm_read.gb_s, before.sm_read.gb_s * share);
    }
    let port = |machine: &Machine| machine.gpus[2].egress_gb_s.unwrap();
    assert_eq!(port(&machine), port(&sound) * (16.0 / 18.0));
    assert_eq!(machine.gpus[1], sound.gpus[1]);
    assert_eq!(machine.nvlink_end(2, 3), None);
    assert_eq!(machine.nvlink_end(2, 4), Some(NvLinkEnd::Switch));
}

#[test]
fn a_link_between_two_gpus_that_is_down_is_down_at_both() {
    // GPU 3's links end in 0 0, 1, 2 2, 7; the last of the two from GPU 0 is its link 3.
    let machine =
        file("schema = 1\nfrom = 'p3.16xlarge'\n[[gpu]]\nordinals = [3]\nnvlinks_down = [1, 5]\n");
    let sound = load("p3.16xlarge").unwrap();
    assert_eq!(machine.gpus[0].nvlinks.down, [3]);
    assert_eq!(machine.gpus[3].nvlinks.down, [1, 5]);
    assert_eq!(machine.gpus[7].nvlinks.down, [0]);
    for (source, target) in [(0, 3), (3, 0)] {
        let pair = machine.pair(source, target).unwrap();
        assert_eq!(pair.link, Link::NvLink(1));
        assert_eq!(pair.ce_read.gb_s, sound.pair(source, target).unwrap().ce_read.gb_s / 2.0);
    }
    let lost = machine.pair(7, 3).unwrap();
    assert_eq!((lost.link, lost.read_allowed, lost.write_allowed), (Link::Pcie, false, false));
    assert_eq!(machine.pair(3, 2), sound.pair(3, 2));
    let ends: Vec<Option<NvLinkEnd>> = (0..7).map(|link| machine.nvlink_end(3, link)).collect();
    let [to_0, to_1, to_2] = [0, 1, 2].map(|peer| Some(NvLinkEnd::Gpu(peer)));
    assert_eq!(ends, [to_0, None, to_1, to_2, to_2, None, None]);
}

#[test]
fn links_without_a_switch_are_counted_from_their_pairs() {
    let machine = file("schema = 1\ngpu_count = 3\n[[pair]]\nnvlinks = 6\n");
    is_whole(&machine);
    assert!(machine.gpus.iter().all(|gpu| (gpu.nvlinks.count, gpu.nvlinks.generation) == (12, 4)));
}

#[test]
fn with_a_switch_a_pair_has_the_links_of_the_gpu_with_fewer() {
    let machine = file(
        "schema = 1\nnvswitch = true\n[[gpu]]\nnvlinks = 12\nnvlink_generation = 3\n\
         [[gpu]]\nordinals = [1]\nnvlinks = 6\n",
    );
    assert_eq!(machine.pair(0, 1).unwrap().link, Link::NvLink(6));
    assert_eq!(machine.gpus[0].nvlinks.generation, 3);
}

#[test]
fn faults_are_carried_over() {
    let machine = file(
        "schema = 1\n[[fault.jitter]]\nsource = 1\nshare = 0.25\nextra_ns = 700\n\
         [[fault.jitter]]\nshare = 1\nextra_share = 0.01\nlasts_ns = 5e6\nafter_ns = 9e8\n\
         [[fault.flip]]\ntarget = 0\noffset = 8\nafter = 2\nalways = true\n\
         [[fault.call]]\nname = 'cuMemAlloc'\ncode = 2\nafter = 3\n\
         [[fault.nic]]\nwhat = 'unreachable'\nafter = 7\nalways = true\n\
         [[fault.network]]\nsource = 0\nboth_ways = true\nfraction = 0.5\n",
    );
    let slow = |source, target| SlowWay { source, target, rail: None, fraction: 0.5 };
    let faults = Faults {
        health: Vec::new(),
        nics: vec![FailingNic { nic: None, what: NicFault::Unreachable, after: 7, always: true }],
        network: vec![slow(Some(0), None), slow(None, Some(0))],
        ranks: Vec::new(),
        jitter: vec![
            Jitter {
                source: Some(1),
                target: None,
                share: 0.25,
                extra_ns: 700.0,
                extra_share: 0.0,
                lasts_ns: 0.0,
                after_ns: 0.0,
                seed: 0,
            },
            Jitter {
                source: None,
                target: None,
                share: 1.0,
                extra_ns: 0.0,
                extra_share: 0.01,
                lasts_ns: 5e6,
                after_ns: 9e8,
                seed: 0,
            },
        ],
        flips: vec![Flip { source: None, target: Some(0), offset: 8, after: 2, always: true }],
        calls: vec![FailingCall {
            name: "cuMemAlloc".to_owned(),
            process: None,
            after: 3,
            what: CallFault::Refused { code: 2 },
            always: false,
        }],
    };
    assert_eq!(machine.faults, faults);
}

#[test]
fn a_call_may_be_the_end_of_a_process() {
    let machine = file(
        "schema = 1\n[[fault.call]]\nname = 'cuInit'\nwhat = 'killed'\nprocess = 1\n\
         [[fault.call]]\nname = 'cuInit'\nwhat = 'hung'\nalways = true\n\
         [[fault.call]]\nname = 'cuInit'\nwhat = 'stopped'\n",
    );
    let found = machine.faults.calls.iter().map(|call| (call.process, call.what, call.always));
    let expected = [
        (Some(1), CallFault::Killed, false),
        (None, CallFault::Hung, true),
        (None, CallFault::Stopped, false),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    for (entry, sentence) in [
        ("what = 'refused'", "`code` must be given, or another `what` than \"refused\""),
        ("what = 'killed'\ncode = 2", "`code` is for `what = \"refused\"`"),
    ] {
        let text = format!("schema = 1\n[[fault.call]]\nname = 'cuInit'\n{entry}\n");
        let problem = load_text(&text).unwrap_err();
        assert!(problem.to_string().contains(sentence), "{problem}");
    }
}

#[test]
fn what_collectives_find_is_carried_over() {
    let machine = file(
        "schema = 1\nfrom = 'p5.48xlarge'\n[nccl]\nnvls = false\nnvls_efficiency = 0.5\n\
         [[fault.rank]]\nrank = 3\nname = 'ncclAllReduce'\nwhat = 'wrong'\nelement = 7\nafter = 2\n\
         [[fault.rank]]\nwhat = 'absent'\nalways = true\n\
         [[fault.rank]]\nname = 'ncclCommInitRank'\nwhat = 'refused'\ncode = 2\nreason = 'why'\n\
         [[fault.rank]]\nwhat = 'asynchronous'\ncode = 6\n",
    );
    // Eight GPUs share 3200 Gbit/s.
    let nccl = Nccl {
        nvls: Some(false),
        nvls_efficiency: Some(0.5),
        net_gb_s: None,
        net_name: "Libfabric".to_owned(),
        ..Nccl::default()
    };
    assert_eq!(machine.nccl, nccl);
    let fault = |rank, name: Option<&str>, after, what, always| {
        let name = name.map(str::to_owned);
        FailingRank { rank, name, after, what, always }
    };
    let refused = RankFault::Refused { code: 2, reason: "why".to_owned() };
    let expected = [
        fault(Some(3), Some("ncclAllReduce"), 2, RankFault::Wrong { element: 7 }, false),
        fault(None, None, 0, RankFault::Absent, true),
        fault(None, Some("ncclCommInitRank"), 0, refused, false),
        fault(None, None, 0, RankFault::Asynchronous { code: 6 }, false),
    ];
    assert_eq!(machine.faults.ranks, expected);
    for (entry, sentence) in [
        ("what = 'refused'\ncode = 2", "`name` must be given with `what = \"refused\"`"),
        ("what = 'asynchronous'", "`code` must be given with this `what`"),
        ("what = 'absent'\ncode = 2", "`element` is for `what = \"wrong\"`"),
    ] {
        let text = format!("schema = 1\n[[fault.rank]]\n{entry}\n");
        let problem = load_text(&text).unwrap_err();
        assert!(problem.to_string().contains(sentence), "{problem}");
    }
}

#[test]
fn uuids_differ_between_gpus_and_machines_and_stay_the_same() {
    let [one, other] = ["p4d.24xlarge", "p5.48xlarge"].map(|name| load(name).unwrap());
    let mut uuids: Vec<[u8; 16]> =
        [&one, &other].into_iter().flat_map(|m| (0..8).map(|ordinal| m.uuid(ordinal))).collect();
    assert_eq!(one.uuid(3), load("p4d.24xlarge").unwrap().uuid(3));
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), 16);
}

#[test]
fn gpus_of_instances_are_what_their_driver_reports() {
    for (instance, name, memory_mib, capability, pcie) in [
        ("p2.xlarge", "Tesla K80", 12 << 10, (3, 7), (3, 16)),
        ("p3.2xlarge", "Tesla V100-SXM2-16GB", 16 << 10, (7, 0), (3, 16)),
        ("p3dn.24xlarge", "Tesla V100-SXM2-32GB", 32 << 10, (7, 0), (3, 16)),
        ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 40 << 10, (8, 0), (3, 16)),
        ("p5.48xlarge", "NVIDIA H100 80GB HBM3", 80 << 10, (9, 0), (5, 16)),
        ("p6-b300.48xlarge", "NVIDIA B300 SXM6 AC", 275_040, (10, 3), (5, 16)),
        ("g6.48xlarge", "NVIDIA L4", 22_888, (8, 9), (4, 8)),
    ] {
        let gpu = &load(instance).unwrap().gpus[0];
        assert_eq!((gpu.name.as_str(), gpu.memory_bytes), (name, memory_mib << 20), "{instance}");
        assert_eq!(gpu.compute_capability, capability, "{instance}");
        assert_eq!((gpu.pcie_generation.0, gpu.pcie_lanes.0), pcie, "{instance}");
    }
}

#[test]
fn peers_reach_each_other_where_the_catalogue_says_so() {
    for (instance, expected) in [
        ("p2.8xlarge", 56),
        ("p3.16xlarge", 32),
        ("p4d.24xlarge", 56),
        ("g4dn.12xlarge", 0),
        ("g5.48xlarge", 0),
        ("g6.12xlarge", 0),
        ("g6e.12xlarge", 0),
        ("g7.12xlarge", 2),
        ("g7e.24xlarge", 12),
    ] {
        let machine = load(instance).unwrap();
        let allowed = machine.pairs.iter().filter(|pair| pair.read_allowed && pair.write_allowed);
        assert_eq!(allowed.count(), expected, "{instance}");
        let read_only = machine.pairs.iter().any(|pair| pair.read_allowed != pair.write_allowed);
        assert!(!read_only, "{instance}");
    }
}

#[test]
fn instances_are_as_fast_as_has_been_published() {
    let pair = |instance: &str, target| load(instance).unwrap().pair(0, target).unwrap().clone();
    let gpu = |instance: &str| load(instance).unwrap().gpus[0].clone();
    for (what, gb_s, published) in [
        ("A100 write", pair("p4d.24xlarge", 7).ce_write.gb_s, 274.9..=276.8),
        ("H100 write", pair("p5.48xlarge", 7).ce_write.gb_s, 371.0..=377.0),
        ("GB200 write", pair("p6e-gb200.36xlarge", 3).ce_write.gb_s, 765.0..=775.0),
        ("H100 to host", gpu("p5.48xlarge").to_host.ce.gb_s, 52.0..=53.0),
        ("H100 from host, kernel", gpu("p5.48xlarge").from_host.sm.gb_s, 35.0..=35.4),
        ("GB200 from host", gpu("p6e-gb200.36xlarge").from_host.ce.gb_s, 200.5..=201.5),
        ("RTX PRO 6000, near", pair("g7e.48xlarge", 3).ce_write.gb_s, 53.0..=57.0),
        ("RTX PRO 6000, far", pair("g7e.48xlarge", 4).ce_write.gb_s, 39.0..=51.0),
        ("H100 local", gpu("p5.48xlarge").local.ce.gb_s, 1237.0..=1289.0),
        ("H200 local, kernel", gpu("p5en.48xlarge").local.sm.gb_s, 1980.0..=2010.0),
        (
            "T4G local, without a published bandwidth",
            gpu("g5g.xlarge").local.ce.gb_s,
            119.0..=121.0,
        ),
    ] {
        assert!(published.contains(&gb_s), "{what}: {gb_s}");
    }
}
