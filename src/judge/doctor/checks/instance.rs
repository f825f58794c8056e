//! Whether all parts that the machine should have are there and can be read.

use std::collections::BTreeSet;

use super::{Advice, Facts, Finding};
use crate::{
    judge::expected::{Difference, Machine, Part, differences},
    machine::{links::GpuLinks, pci::Device},
    units::count,
};

/// The most files that are listed.
const LISTED_MAX: usize = 8;

pub(super) fn unread(facts: &Facts) -> Vec<Finding> {
    // A missing driver has a check of its own.
    let by_kernel = |reason: &str| ["/sys/", "/proc/"].iter().any(|root| reason.contains(root));
    let by_driver = |reason: &&String| facts.refusal.is_some() && !by_kernel(reason);
    let missing: Vec<&String> =
        facts.survey.missing.iter().filter(|reason| !by_driver(reason)).collect();
    let mut findings: Vec<Finding> =
        missing.iter().take(LISTED_MAX).map(Finding::cannot_tell).collect();
    if missing.len() > LISTED_MAX {
        let more = missing.len() - LISTED_MAX;
        findings.push(Finding::cannot_tell(format!("{more} more files tell nothing")));
    }
    findings
}

pub(super) fn complete(facts: &Facts) -> Vec<Finding> {
    let mut found = differences(&facts.survey, &facts.catalogue);
    let rates = facts.rdma_devices().filter_map(|nic| nic.rate_gbit_s().map(f64::to_bits));
    if rates.collect::<BTreeSet<u64>>().len() > 1 {
        // `interfaces-alike` names those that are slower than the others.
        found.retain(|difference| difference.part != Part::EfaRate);
    }
    if !found.is_empty() {
        return found.into_iter().map(|difference| finding(difference, facts)).collect();
    }
    let parts = seen(facts);
    if parts.is_empty() {
        return Vec::new();
    }
    let parts = parts.join(", ");
    vec![match (&facts.host.product, facts.instance()) {
        (Ok(name), Some(_)) => Finding::ok(format!("as {name} should have them: {parts}")),
        _ => Finding::ok(format!("all there: {parts}")),
    }]
}

/// Devices of a machine with several NUMA nodes of which the kernel does not know the node.
pub(super) fn numa_nodes(facts: &Facts) -> Option<Finding> {
    let survey = &facts.survey;
    let has_cpus = |cpus: &Option<String>| cpus.as_ref().is_some_and(|list| !list.is_empty());
    let nodes = survey.nodes.iter().filter(|node| has_cpus(&node.cpus)).count();
    if nodes < 2 {
        return None;
    }
    let gpus = survey.gpus.iter().map(|gpu| (format!("GPU {}", gpu.node.gpu.0), &gpu.pci));
    let devices = gpus.chain(facts.rdma_devices().map(|nic| (nic.name.clone(), &nic.pci)));
    let known: Vec<(String, &Device)> =
        devices.filter_map(|(name, pci)| Some((name, pci.as_ref()?))).collect();
    // `machine-files` reports what could not be read.
    let is_unread = |device: &Device| {
        let file = format!("{}/numa_node", device.address);
        survey.missing.iter().any(|reason| reason.contains(&file))
    };
    let lost = known.iter().filter(|(_, pci)| pci.numa_node.is_none() && !is_unread(pci));
    let lost: Vec<&str> = lost.map(|(name, _)| name.as_str()).collect();
    if lost.is_empty() {
        let all = count(known.len(), "device");
        let seen = format!("the kernel knows the NUMA node of {all}");
        return (!known.is_empty()).then(|| Finding::ok(seen));
    }
    let seen = format!(
        "the kernel does not know the NUMA node of {} (numa_node is -1); there are {nodes}",
        lost.join(", ")
    );
    Some(Finding::problem(seen).with(Advice {
        means: "programs, NCCL too, may take the far half of the host's memory and its CPUs for it: \
                copies to and from host memory are slower",
        remedy: "see whether the firmware or the hypervisor hides it; as root: echo NODE > \
                 /sys/bus/pci/devices/ADDRESS/numa_node",
        source: "the kernel's ABI/testing/sysfs-bus-pci",
    }))
}

/// The parts of the machine that could be compared.
fn seen(facts: &Facts) -> Vec<&'static str> {
    let machine = Machine::surveyed(&facts.survey, &facts.catalogue);
    let has_gpus = !machine.gpus.is_empty();
    let known = facts.instance();
    let with_efa = known.is_some_and(|known| known.efa_interfaces.is_some());
    [
        (has_gpus && known.is_some(), "GPUs"),
        (has_gpus && machine.gpus.iter().all(|gpu| gpu.nvlinks.is_some()), "NVLinks"),
        (has_gpus && machine.gpus.iter().all(|gpu| gpu.host.is_some()), "PCIe links"),
        (with_efa, "interfaces of EFA"),
    ]
    .into_iter()
    .filter_map(|(is_known, part)| is_known.then_some(part))
    .collect()
}

/// The finding for a difference.
fn finding(difference: Difference, facts: &Facts) -> Finding {
    let Difference { part, what, live, known, source } = difference;
    let lacks_efa = part == Part::Efa && !facts.has_efa();
    // GPUs with connectors for NVLinks and no bridge on them.
    let is_bridgeless = matches!(part, Part::NvLinks(_))
        && facts.instance().is_none()
        && facts.survey.pairs.iter().all(|pair| pair.nvlinks == 0);
    let is_note = part == Part::NumaNodes || lacks_efa || is_bridgeless;
    let verdict = if is_note { Finding::note } else { Finding::problem };
    let down = match part {
        Part::NvLinks(gpu) => down(facts, gpu),
        Part::Gpus | Part::Pcie | Part::Efa | Part::EfaRate | Part::NumaNodes => String::new(),
    };
    let (means, remedy) = match part {
        Part::Gpus => (
            "a GPU has fallen off the bus or is not the one that is expected, or this container \
             was not given all",
            "dmesg shows Xid 79 of one that fell off the bus: restart the machine, or take another \
             one (on EC2: stop and start the instance); give a container all GPUs",
        ),
        Part::NvLinks(_) => (
            "each link that is down takes its share of the bandwidth of every pair it serves",
            "nvidia-smi nvlink -s and -e show states and errors, dmesg shows Xid 74; restart the \
             machine, or take another one (on EC2: stop and start the instance)",
        ),
        Part::Pcie => (
            "copies between this GPU and host memory, shm and P2P over PCIe have that share of \
             their bandwidth; an idle GPU lowers its generation, never its lanes",
            "restart the machine; if it stays so, take another one (on EC2: stop and start the \
             instance)",
        ),
        Part::Efa if lacks_efa => (
            "other hosts are reached over TCP only",
            "attach interfaces of EFA when the instance is launched; load the kernel's module efa; \
             give a container the devices (vpc.amazonaws.com/efa)",
        ),
        Part::Efa | Part::EfaRate => (
            "the bandwidth between hosts is smaller, and GPUs share interfaces",
            "attach an interface of EFA to each network card when the instance is launched; give a \
             container all of them (vpc.amazonaws.com/efa)",
        ),
        Part::NumaNodes => (
            "copies from the far half of the host's memory may look like those from the near one",
            "see whether the firmware or the hypervisor hides NUMA nodes",
        ),
    };
    let advice = Advice { means, remedy, ..Advice::default() };
    let seen = format!("{what}: {live}, {known} expected{down}");
    Finding { source: Some(source), ..verdict(seen).with(advice) }
}

/// The numbers of the NVLinks of a GPU that are down, if NVML lists them.
fn down(facts: &Facts, ordinal: u32) -> String {
    let gpu = facts.survey.gpus.iter().find(|gpu| gpu.node.gpu.0 == ordinal);
    let links = gpu.map(|gpu| GpuLinks::of(gpu, &facts.survey)).unwrap_or_default();
    let down: Vec<String> = links.nvlinks_down.iter().map(u32::to_string).collect();
    if down.is_empty() { String::new() } else { format!("; down are {}", down.join(", ")) }
}
