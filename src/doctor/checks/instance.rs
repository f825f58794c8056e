//! Whether all parts that the machine should have are there, and can be read.

use crate::{
    doctor::{Facts, Finding, count},
    machine::nics::NicKind,
};

/// Files that are named at most.
const LISTED_MAX: usize = 8;

pub(super) fn unread(facts: &Facts) -> Vec<Finding> {
    // Without a driver neither it nor NVML tells anything, which has a check of its own.
    let is_of_driver =
        |reason: &&String| facts.refusal.is_some() && !reason.trim_start().starts_with('/');
    let missing: Vec<&String> =
        facts.survey.missing.iter().filter(|reason| !is_of_driver(reason)).collect();
    let mut findings: Vec<Finding> =
        missing.iter().take(LISTED_MAX).map(Finding::cannot_tell).collect();
    if missing.len() > LISTED_MAX {
        let more = missing.len() - LISTED_MAX;
        findings.push(Finding::cannot_tell(format!("{more} more files tell nothing")));
    }
    findings
}

pub(super) fn complete(facts: &Facts) -> Vec<Finding> {
    let Some(known) = facts.instance() else { return Vec::new() };
    let name = facts.host.product.as_deref().unwrap_or_default();
    let mut findings = Vec::new();
    let wanted = known.gpu_count.get() as usize;
    let here = facts.gpu_count();
    if here < wanted {
        findings.push(
            Finding::problem(format!("{name} has {}, and {here} are here", count(wanted, "GPU")))
                .means("a GPU has fallen off the bus, or this container was not given all")
                .remedy(
                    "dmesg shows Xid 79 of one that fell off the bus: restart the machine, or take \
                     another one (on EC2: stop and start); give a container all GPUs",
                )
                .source("the catalogue (g2g catalogue), by the EC2 API; NVIDIA Xid catalogue"),
        );
    }
    let wanted = known.efa_interfaces.unwrap_or(0) as usize;
    let here = facts.rdma_devices().filter(|device| device.kind == NicKind::Efa).count();
    if here < wanted {
        let share = format!(
            "{name} can have {}, and {here} {} here",
            count(wanted, "EFA interface"),
            if here == 1 { "is" } else { "are" }
        );
        let verdict = if here == 0 { Finding::note } else { Finding::problem };
        findings.push(
            verdict(share)
                .means(if here == 0 {
                    "other hosts are reached over TCP only"
                } else {
                    "the network's bandwidth is that much smaller, and GPUs share interfaces"
                })
                .remedy(
                    "attach an interface of EFA to each network card when the instance is launched; \
                     load the kernel's module efa; give a container all devices \
                     (vpc.amazonaws.com/efa)",
                )
                .source("the catalogue (g2g catalogue), by the EC2 API"),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("{name} has all its GPUs and EFA interfaces")));
    }
    findings
}
