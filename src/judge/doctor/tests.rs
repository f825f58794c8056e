use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Value, json};

use super::*;
use crate::{machine::system::System, plan::nccl_env::Origin};

/// Files of a machine that is well, as the kernel writes them.
const FILES: [(&str, &str); 22] = [
    ("/proc/sys/kernel/hostname", "node-a\n"),
    ("/proc/sys/kernel/osrelease", "6.8.0-1031-aws\n"),
    ("/proc/sys/kernel/random/boot_id", "5b3f9f1c-8f5e-4a55-9f0e-0d4f6f3f1f11\n"),
    ("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/root ro iommu=pt\n"),
    ("/proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\n"),
    ("/proc/self/limits", "Max locked memory         unlimited  unlimited  bytes\n"),
    ("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nSeccomp:\t0\n"),
    ("/proc/self/cgroup", "0::/user.slice\n"),
    ("/proc/self/mountinfo", "26 24 0:23 / /dev/shm rw shared:4 - tmpfs tmpfs rw,size=8388608k\n"),
    (
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  x\n",
    ),
    ("/proc/driver/nvidia/gpus/0000:10:00.0/information", "Model: \t\t A\n"),
    ("/proc/driver/nvidia/gpus/0000:20:00.0/information", "Model: \t\t A\n"),
    ("/proc/1/comm", "systemd\n"),
    ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
    ("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
    ("/sys/devices/virtual/dmi/id/product_name", "a-machine\n"),
    ("/sys/class/iommu/dmar0/address", "1\n"),
    ("/sys/bus/pci/devices/0000:10:00.0/iommu_group/type", "identity\n"),
    ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    (
        "/opt/amazon/efa_installed_packages",
        "# EFA installer version: 1.43.1\nlibfabric1-aws_2.1.0\n",
    ),
    ("/usr/lib/libnccl.so.2", ""),
    ("/etc/ld.so.conf.d/efa.conf", "/opt/amazon/efa/lib\n"),
];

/// The files as they are described, one by its path in another way.
fn described(changed: Option<(&str, Value)>) -> System {
    let entries = FILES.iter().map(|(path, text)| ((*path).to_owned(), json!({ "text": text })));
    let mut entries: BTreeMap<String, Value> = entries.collect();
    if let Some((path, entry)) = changed {
        match entry {
            Value::Null => entries.remove(path),
            entry => entries.insert(path.to_owned(), entry),
        };
    }
    System::described(&json!(entries).to_string()).unwrap()
}

/// A GPU as the driver alone tells it.
fn gpu(ordinal: u32, address: &str) -> Value {
    json!({
        "gpu": ordinal, "name": "A", "uuid": format!("GPU-{ordinal}"), "pci_bus_id": address,
        "memory": 1, "numa_node": null, "pcie_path": [], "compute_capability": [9, 0],
        "multiprocessors": 1, "copy_engines": 1, "cpus": null, "pci": null, "nvml": null,
        "condition": null,
    })
}

/// What is known of the machine with these files and two GPUs.
fn facts(system: &System, settings: &[(&str, &str)]) -> Facts {
    let gpus = [gpu(0, "0000:10:00.0"), gpu(1, "0000:20:00.0")];
    let survey = json!({
        "simulated": true, "vendor": null, "product": null, "driver_version": null,
        "libraries": [], "missing": [], "nodes": [], "gpus": gpus, "other_gpus": [],
        "switches": [], "nics": [], "pairs": [],
    });
    let setting = |(name, value): &(&str, &str)| Setting {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
        origin: Origin::Inherited,
    };
    Facts {
        host: Host::read(system),
        acs: Acs::default(),
        refusal: None,
        survey: serde_json::from_value(survey).unwrap(),
        confidential: None,
        dma_buf: None,
        software: Software::read(system, None),
        settings: settings.iter().map(setting).collect(),
        catalogue: Cow::Borrowed(Catalogue::built_in()),
        nccl: None,
        variables: BTreeMap::new(),
    }
}

/// The findings that are not fine.
fn bad(findings: &[Finding]) -> Vec<(&str, Verdict)> {
    let is_bad = |finding: &&Finding| finding.verdict != Verdict::Ok;
    findings.iter().filter(is_bad).map(|bad| (bad.check.as_str(), bad.verdict)).collect()
}

#[test]
fn a_machine_that_is_well_has_nothing_but_fine_findings() {
    let findings = examine(&facts(&described(None), &[]));
    assert_eq!(bad(&findings), []);
    assert!(findings.len() > 8, "{findings:#?}");
}

#[test]
fn the_documentation_lists_every_check_once_in_their_order() {
    let page = include_str!("../../../docs/troubleshooting.md");
    let (_, checks) = page.split_once("| check | looks at |").unwrap();
    let rows = checks.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let documented: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let own = checks::ALL.iter().map(|(name, _)| *name);
    let of_ranks = ranks::ALL.iter().map(|(name, _)| *name);
    assert_eq!(documented, own.chain(of_ranks).collect::<Vec<&str>>());
    assert_eq!(
        documented.iter().collect::<std::collections::BTreeSet<_>>().len(),
        documented.len()
    );
}

#[test]
fn files_that_are_cut_denied_or_nonsense_end_in_a_sentence_and_never_in_a_panic() {
    let mut untold = 0;
    for (path, text) in FILES {
        let cuts = (0..text.len()).step_by(3).map(|end| json!({ "text": &text[..end] }));
        let mut changes: Vec<Value> = cuts.collect();
        changes.extend([
            json!({ "text": "99999999999999999999999999 -1 :: - / \u{fffd}\u{0}\n" }),
            json!({ "text": text.replace([' ', '\t'], "  ").replace("1", "-") }),
            json!({ "text": text.to_uppercase().repeat(3) }),
            json!("denied"),
            json!("folder"),
            json!({ "link": path }),
            Value::Null,
        ]);
        for change in changes {
            let said = change.to_string();
            let facts = facts(&described(Some((path, change))), &[]);
            for finding in examine(&facts) {
                let sentence = &finding.seen;
                assert!(
                    !sentence.is_empty() && !sentence.ends_with('.'),
                    "{path} {said}: {finding:?}"
                );
                untold += usize::from(finding.verdict == Verdict::CannotTell);
            }
            // Ranks hand it to each other.
            let member = Member::new(0, 0, &facts);
            let back: Member =
                serde_json::from_str(&serde_json::to_string(&member).unwrap()).unwrap();
            assert_eq!(back.findings, member.findings);
        }
    }
    assert!(untold > 40, "only {untold} findings that cannot tell");
}

#[test]
fn the_iommu_is_a_problem_only_where_it_translates() {
    let group = "/sys/bus/pci/devices/0000:10:00.0/iommu_group/type";
    let of = |kind: &str| {
        let system = described(Some((group, json!({ "text": kind }))));
        bad(&examine(&facts(&system, &[]))).contains(&("iommu", Verdict::Problem))
    };
    assert!(!of("identity\n") && of("DMA-FQ\n") && of("DMA\n"));
}

#[test]
fn a_path_that_is_not_there_cannot_be_switched_off() {
    for (name, value) in [("NCCL_P2P_DISABLE", "1"), ("FI_PROVIDER", "tcp")] {
        let findings = examine(&facts(&described(None), &[(name, value)]));
        assert_eq!(bad(&findings), [], "{name}");
    }
}

#[test]
fn a_variable_that_one_rank_has_is_named_unless_it_is_its_own() {
    let one = facts(&described(None), &[("NCCL_DEBUG", "INFO")]);
    let other = facts(&described(None), &[("NCCL_ALGO", "Ring")]);
    let members: Vec<Member> = [(0, &one), (1, &one), (2, &other)]
        .map(|(rank, facts)| Member::new(rank, rank as usize, facts))
        .into();
    let report = Report::of(&members);
    let told = report.findings.iter().filter(|located| located.finding.check == "variables-alike");
    let told: Vec<(&str, &[u32])> =
        told.map(|located| (located.finding.seen.as_str(), &located.ranks[..])).collect();
    assert_eq!(told, [("NCCL_ALGO: Ring (rank 2), unset (the other 2)", &[2][..])]);
}

#[test]
fn what_all_ranks_say_is_told_once_and_what_one_says_with_its_number() {
    let one = facts(&described(None), &[]);
    let small = json!({ "text": "26 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=65536k\n" });
    let other = facts(&described(Some(("/proc/self/mountinfo", small))), &[]);
    let members = [Member::new(0, 0, &one), Member::new(1, 1, &other)];
    let report = Report::of(&members);
    let first = &report.findings[0];
    assert_eq!((first.finding.check.as_str(), &first.ranks[..]), ("shared-memory", &[1][..]));
    let of_all = |located: &&Located| located.ranks.is_empty();
    assert!(report.findings.iter().filter(of_all).count() > 6);
    assert_eq!((report.hosts.len(), report.count(Verdict::Problem)), (1, 1));
}
