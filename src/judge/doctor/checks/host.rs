//! What the kernel allows this process, and how it is set.

use super::{Advice, Facts, Finding};
use crate::{
    machine::tally,
    units::{Bytes, count},
};

/// What NCCL needs of `/dev/shm` for each rank of a host at least, as long as it does not take it
/// from the driver: some buffers of 4 MiB (`NCCL_BUFFSIZE`) for each peer and channel. Docker gives
/// 64 MiB, of which eight ranks need more.
const SHARED_MEMORY_MIN: Bytes = Bytes::mib(512);

/// Below this, registering the buffers of one endpoint of EFA fails already. Kernel and Docker
/// allow 64 KiB or 8 MiB where nobody has asked for more.
const LOCKED_MEMORY_MIN: Bytes = Bytes::mib(64);

pub(super) fn shared_memory(facts: &Facts) -> Option<Finding> {
    let shm = match &facts.host.shared_memory {
        Ok(shm) => shm,
        Err(unread) => return Some(Finding::cannot_tell(unread)),
    };
    if shm.kind != "tmpfs" {
        let seen = format!("/dev/shm is no tmpfs but part of a {}", shm.kind);
        return Some(Finding::problem(seen).with(Advice {
            means: "ranks of this host cannot share memory by it, or only as slowly as a disk",
            remedy: "mount a tmpfs at /dev/shm (in a container: --shm-size=8g)",
            source: "shm_overview(7)",
        }));
    }
    let Some(size) = shm.size else {
        return Some(Finding::ok("/dev/shm has no limit of its own"));
    };
    if size >= SHARED_MEMORY_MIN {
        return Some(Finding::ok(format!("/dev/shm holds {}", size.rounded())));
    }
    let seen = format!("/dev/shm holds {} at most", size.rounded());
    Some(Finding::problem(seen).with(Advice {
        means: "the path through host memory (SHM) needs it: NCCL fails with \"failed to extend \
                /dev/shm/nccl-…\", and g2g's own shm has no room",
        remedy: "in a container start it with --shm-size=8g, or --ipc=host; in Kubernetes mount an \
                 emptyDir of medium Memory at /dev/shm; elsewhere mount -o remount,size=8g \
                 /dev/shm",
        source: "NCCL's troubleshooting guide, Docker",
    }))
}

pub(super) fn locked_memory(facts: &Facts) -> Option<Finding> {
    let limit = match &facts.host.locked_memory {
        Ok(Some(limit)) => *limit,
        Ok(None) => return Some(Finding::ok("locked memory has no limit")),
        Err(unread) => return Some(Finding::cannot_tell(unread)),
    };
    let seen = format!("this process may lock {} of memory", limit.rounded());
    if limit >= LOCKED_MEMORY_MIN || !facts.has_rdma_devices() {
        return Some(Finding::ok(seen));
    }
    if facts.host.may_lock {
        let right = "and more by its right to (CAP_IPC_LOCK)";
        return Some(Finding::ok(format!("{seen}, {right}")));
    }
    Some(Finding::problem(seen).with(Advice {
        means: "EFA and InfiniBand register memory, which locks it: that fails, and the network \
                falls back to TCP or not at all",
        remedy: "ulimit -l unlimited, or a line in /etc/security/limits.d; in a container --ulimit \
                 memlock=-1; under Slurm PropagateResourceLimitsExcept=MEMLOCK",
        source: "getrlimit(2), fi_efa(7), NCCL's troubleshooting guide",
    }))
}

/// How the IOMMU treats devices that it lets through untouched.
const IDENTITY: &str = "identity";

pub(super) fn iommu(facts: &Facts) -> Option<Finding> {
    let host = &facts.host;
    if host.iommus.is_empty() {
        return Some(Finding::ok("no IOMMU is on"));
    }
    let gpus = host.driver_gpus.as_deref().unwrap_or_default();
    let of_survey = facts.survey.gpus.iter().map(|gpu| gpu.node.pci_bus_id.to_lowercase());
    let addresses: Vec<String> = gpus.iter().cloned().chain(of_survey).collect();
    if addresses.is_empty() {
        return Some(Finding::ok("an IOMMU is on, and no GPU is here"));
    }
    let types = host.iommu_types.iter().filter(|(address, _)| addresses.contains(address));
    let kinds = match types.map(|(_, kind)| kind.as_ref()).collect::<Result<Vec<_>, _>>() {
        Ok(kinds) => tally(kinds),
        Err(unread) => return Some(Finding::cannot_tell(unread)),
    };
    if kinds.is_empty() {
        return Some(Finding::ok("an IOMMU is on, and no GPU is behind it"));
    }
    if kinds.keys().all(|kind| *kind == IDENTITY) {
        return Some(Finding::ok("the IOMMU lets GPUs through untouched"));
    }
    let kinds = kinds.iter().map(|(kind, number)| format!("{kind} for {}", count(*number, "GPU")));
    let kinds = kinds.collect::<Vec<String>>().join(", ");
    let seen = format!("an IOMMU is on ({}): {kinds}", host.iommus.join(", "));
    Some(Finding::problem(seen).with(Advice {
        means: "what GPUs and network interfaces send to each other over PCIe goes by way of the \
                root complex to be translated: P2P over PCIe and GPUDirect RDMA are slow, hang or \
                give wrong data, though the driver says that they work; NVLink is not concerned",
        remedy: "start the kernel with iommu=pt (on Arm iommu.passthrough=1), or switch the IOMMU \
                 off in the firmware; in a virtual machine that is for its host to do",
        source: "NCCL's troubleshooting guide, PCI Access Control Services",
    }))
}

pub(super) fn acs(facts: &Facts) -> Option<Finding> {
    let acs = &facts.acs;
    if acs.read == 0 {
        return None;
    }
    if acs.redirecting.is_empty() {
        let read = count(acs.read, "PCIe bridge");
        return Some(Finding::ok(format!("none of {read} redirects (ACS)")));
    }
    let bridges = acs.redirecting.join(", ");
    let seen = format!("PCIe bridges redirect requests between devices (ACS): {bridges}");
    Some(Finding::problem(seen).with(Advice {
        means: "P2P over PCIe and GPUDirect RDMA go by way of the root complex: slower, or they \
                hang; NVLink is not concerned",
        remedy: "switch ACS off in the firmware, or as root: setpci -s BRIDGE ECAP_ACS+0x6.w=0000; \
                 a virtual machine's host has to do it",
        source: "NCCL's troubleshooting guide, PCI Access Control Services",
    }))
}

pub(super) fn control_group(facts: &Facts) -> Vec<Finding> {
    let host = &facts.host;
    let mut findings = Vec::new();
    match (&host.memory_limit, &host.memory) {
        (Err(unread), _) => findings.push(Finding::cannot_tell(unread)),
        (Ok(Some(limit)), Ok(all)) if limit < all => {
            let (limit, all) = (limit.rounded(), all.rounded());
            let seen = format!("this control group may have {limit} of {all} of memory");
            findings.push(Finding::note(seen).with(Advice {
                means: "pinned host memory and /dev/shm count too: a process that asks for more is \
                        killed",
                remedy: "give the container more memory (docker --memory, limits.memory)",
                source: "the kernel's cgroup-v2.rst, memory.max",
            }));
        }
        (Ok(_), _) => {}
    }
    match &host.cpu_limit {
        Err(unread) => findings.push(Finding::cannot_tell(unread)),
        Ok(Some(cpus)) => {
            let seen = format!("this control group may have the time of {cpus} CPUs");
            findings.push(Finding::note(seen).with(Advice {
                means: "when it is used up its processes stand still until the next period: copies \
                        by CPUs, proxies of NCCL and all latencies suffer",
                remedy: "leave out the limit of CPU time (docker --cpus, limits.cpu)",
                source: "the kernel's cgroup-v2.rst, cpu.max",
            }));
        }
        Ok(None) => {}
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no control group limits memory or CPU time"));
    }
    findings
}

pub(super) fn memory_policy(facts: &Facts) -> Option<Finding> {
    Some(match &facts.host.is_filtered {
        Ok(false) => Finding::ok("system calls for memory policies are not filtered"),
        Ok(true) => {
            let seen = "system calls are filtered and CAP_SYS_NICE is missing";
            Finding::note(seen).with(Advice {
                means: "Docker's own filter then refuses get_mempolicy and set_mempolicy: NCCL \
                        from 2.26.5 on takes /dev/shm instead of cuMem for its host buffers",
                remedy: "start the container with --cap-add SYS_NICE",
                source: "NCCL's source, Docker's default seccomp profile",
            })
        }
        Err(unread) => Finding::cannot_tell(unread),
    })
}

pub(super) fn governor(facts: &Facts) -> Option<Finding> {
    const SLOW: [&str; 3] = ["powersave", "conservative", "ondemand"];
    let governors = &facts.host.governors;
    if governors.is_empty() {
        return None;
    }
    let slow: Vec<String> = governors
        .iter()
        .filter(|(name, _)| SLOW.contains(&name.as_str()))
        .map(|(name, cpus)| format!("{name} on {}", count(*cpus, "CPU")))
        .collect();
    if slow.is_empty() {
        let names: Vec<&str> = governors.keys().map(String::as_str).collect();
        return Some(Finding::ok(format!("the CPUs' governor is {}", names.join(", "))));
    }
    let seen = format!("the CPUs' governor is {}", slow.join(", "));
    Some(Finding::note(seen).with(Advice {
        means: "CPUs raise their clocks late: latencies, copies by CPUs and the launch of kernels \
                are slower than they can be",
        remedy: "cpupower frequency-set -g performance",
        source: "the kernel's admin-guide/pm/cpufreq.rst",
    }))
}
