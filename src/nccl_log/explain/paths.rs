//! What carries the data between GPUs of one node.

use super::{Finding, count};
use crate::{
    nccl_log::{Link, Log, Origin, P2pKind, Place, Transport, Variable, WarningKind},
    plan::catalogue::Instance,
};

pub(super) fn findings(log: &Log) -> Vec<Finding> {
    let found = [shared_memory(log), peer(log), read(log), indirect(log), nvls(log)];
    found.into_iter().flatten().collect()
}

/// The instance type, where the log names one that is known.
pub(super) fn instance(log: &Log) -> Option<(&str, &'static Instance)> {
    let platform = log.plugin.as_ref()?.platform.as_ref()?;
    Some((&platform.value, Instance::named(&platform.value)?))
}

/// A variable that NCCL says it has read.
pub(super) fn variable<'a>(log: &'a Log, name: &str) -> Option<&'a Variable> {
    let mut read = log.variables.iter().filter(|variable| variable.origin == Origin::Environment);
    read.find(|variable| variable.name == name)
}

fn warning(log: &Log, kind: WarningKind) -> Option<(&str, Place)> {
    let found = log.warnings.iter().find(|warning| warning.kind == kind)?;
    Some((&found.text, found.at))
}

fn shared_memory(log: &Log) -> Option<Finding> {
    let link = log.links().find(|link| matches!(link.transport, Transport::Shm { .. }))?;
    let pairs = log.links().filter(|link| matches!(link.transport, Transport::Shm { .. })).count();
    let mut at = vec![link.first];
    let (because, remedy) = match shared_memory_cause(log) {
        Some((because, remedy, place)) => {
            at.extend(place);
            (because, remedy)
        }
        None => (
            "the log does not say why. NCCL uses peer access up to the path PXB by default: GPUs \
             that are farther apart (PHB, SYS; NODE in nvidia-smi) go through host memory. A GPU \
             without peer access, MIG, and virtual machines have the same effect"
                .to_owned(),
            "look at the pair in `nvidia-smi topo -m` and `nvidia-smi topo -p2p rw`; NCCL_P2P_LEVEL=SYS \
             makes NCCL try, and `g2g p2p` against `g2g shm` says which is faster",
        ),
    };
    let says = format!(
        "{} through host memory instead of each other's GPU memory, such as rank {} to rank {} \
         ({})",
        match pairs {
            1 => "1 connection between ranks of a node goes".to_owned(),
            pairs => format!("{pairs} connections between ranks of a node go"),
        },
        link.source,
        link.target.unwrap_or_default(),
        link.transport
    );
    Some(Finding::problem("shared-memory", says, at).because(because).remedy(remedy))
}

/// Why there is no peer access, as far as the log says: the reason, what to do, and the line.
fn shared_memory_cause(log: &Log) -> Option<(String, &'static str, Option<Place>)> {
    let disabled = variable(log, "NCCL_P2P_DISABLE").filter(|variable| variable.value == "1");
    if let Some(variable) = disabled {
        return Some((
            "NCCL_P2P_DISABLE=1 switches peer access off".to_owned(),
            "unset NCCL_P2P_DISABLE",
            Some(variable.at),
        ));
    }
    if let Some(variable) = variable(log, "NCCL_P2P_LEVEL") {
        return Some((
            format!(
                "NCCL_P2P_LEVEL={} allows peer access up to that distance only",
                variable.value
            ),
            "unset NCCL_P2P_LEVEL, or set it to SYS",
            Some(variable.at),
        ));
    }
    let refusals = [WarningKind::P2pDisabledOnNvLink, WarningKind::P2pDisabled];
    if let Some((text, at)) = refusals.into_iter().find_map(|kind| warning(log, kind)) {
        return Some((
            format!("NVML reports that the driver allows no peer access: \"{}\"", sentence(text)),
            "`nvidia-smi topo -p2p rw` shows which pairs and why (CNS chipset, GNS GPU, TNS \
             topology, DR disabled by a registry key)",
            Some(at),
        ));
    }
    if let Some((text, at)) = warning(log, WarningKind::P2pRefused) {
        return Some((
            format!("CUDA refuses peer access: \"{}\"", sentence(text)),
            "`g2g topo` shows which GPUs reach each other; a consumer GPU or a virtual machine \
             may have no peer access at all",
            Some(at),
        ));
    }
    if let Some((_, at)) = warning(log, WarningKind::LegacyIpc) {
        return Some((
            "CUDA IPC does not work here".to_owned(),
            "leave NCCL_CUMEM_ENABLE unset or set it to 1, with a driver of CUDA 12.0 or newer",
            Some(at),
        ));
    }
    let (name, instance) = instance(log)?;
    instance.lacks_p2p().then(|| {
        (
            format!("the GPUs of {name} have no peer access that works"),
            "nothing is wrong: on this instance type host memory is the way",
            None,
        )
    })
}

/// The first sentence of a message.
fn sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

/// Over what a peer's memory is reached: the line does not say.
fn peer(log: &Log) -> Option<Finding> {
    let link = log.links().find(|link| matches!(link.transport, Transport::P2p { .. }))?;
    let mut at = vec![link.first];
    let graphs = log.communicators.iter().flat_map(|communicator| &communicator.graphs);
    let within =
        graphs.filter(|graph| graph.paths.0 != "UNK").find(|graph| graph.pattern == "ring");
    let over = if let Some(graph) = within {
        at.push(graph.at);
        match graph.paths.0.as_str() {
            path @ ("NVL" | "NVB") => format!("the rings that NCCL has found use NVLink ({path})"),
            path => format!("the rings that NCCL has found use PCIe at best ({path})"),
        }
    } else if let Some((name, instance)) = instance(log) {
        match instance.has_nvlink() {
            true => format!("on {name} NVLink connects the GPUs, so it is NVLink"),
            false => format!("{name} has no NVLink, so it is PCIe"),
        }
    } else {
        "`nvidia-smi topo -m` does (NV12 or the like is NVLink), and so does NCCL with \
         NCCL_DEBUG_SUBSYS=INIT,GRAPH"
            .to_owned()
    };
    let says = format!(
        "ranks reach each other's GPU memory ({}). That is NVLink or PCIe; the line does not say \
         which: {over}",
        link.transport
    );
    Some(Finding::note("peer-access", says, at))
}

/// Reads are the default in one case and a choice in all others.
fn read(log: &Log) -> Option<Finding> {
    let is_read = |link: &&Link| matches!(link.transport, Transport::P2p { read: true, .. });
    let link = log.links().find(is_read)?;
    if let Some(variable) = variable(log, "NCCL_P2P_READ_ENABLE") {
        let says =
            format!("the target reads (/read), since NCCL_P2P_READ_ENABLE is {}", variable.value);
        return Some(Finding::note("read", says, vec![link.first, variable.at]));
    }
    let who = match instance(log) {
        Some((name, instance)) if instance.is_ampere() => format!(", and {name} has those"),
        _ => String::new(),
    };
    let says = format!(
        "the target reads (/read). This is NCCL's default between two GPUs of compute capability \
         8.0, such as A100, that NVLink connects{who}; it tells of no fault. NCCL_P2P_READ_ENABLE=0 \
         makes the source write; `g2g p2p` measures both"
    );
    Some(Finding::note("read", says, vec![link.first]))
}

fn indirect(log: &Log) -> Option<Finding> {
    let is_indirect =
        |link: &&Link| matches!(link.transport, Transport::P2p { kind: P2pKind::Indirect, .. });
    let link = log.links().find(is_indirect)?;
    let says = format!(
        "rank {} reaches rank {} through a GPU in between ({}): NVLink does not connect the two \
         directly, and the one in between shares its links",
        link.source,
        link.target.unwrap_or_default(),
        link.transport
    );
    Some(Finding::note("indirect", says, vec![link.first]))
}

/// NVLink SHARP: there or not, used or not.
fn nvls(log: &Log) -> Option<Finding> {
    let chosen = log.choices().find(|choice| choice.algorithm.starts_with("NVLS"));
    if let Some(choice) = chosen {
        let says = format!(
            "NVLink SHARP (NVLS) was chosen, for {} bytes at first: the switches reduce, so that the \
             bus bandwidth of a reduction can be above what one GPU's links carry; no line of a \
             channel tells of it",
            choice.size_bytes
        );
        return Some(Finding::note("nvls", says, vec![choice.at]));
    }
    let off = variable(log, "NCCL_NVLS_ENABLE").filter(|variable| variable.value == "0");
    let plugin = log.plugin.as_ref().and_then(|plugin| plugin.disables_nvls.as_ref());
    let known = instance(log).and_then(|(name, instance)| Some((name, instance.has_nvls()?)));
    if let Some(told) = plugin {
        let says = format!(
            "aws-ofi-nccl has switched NVLink SHARP (NVLS) off, since this version of NCCL ({}) \
             does not get along with it",
            told.value
        );
        let finding = Finding::note("nvls", says, vec![told.at]);
        return Some(finding.remedy("use a newer NCCL"));
    }
    if let (Some(off), Some((name, true))) = (off, known) {
        let says = format!("NCCL_NVLS_ENABLE=0 switches NVLink SHARP (NVLS) off, which {name} has");
        let finding = Finding::note("nvls", says, vec![off.at]);
        return Some(finding.remedy("unset NCCL_NVLS_ENABLE, unless you compare"));
    }
    let support = log.nvls_support?;
    let gpus = count(support.available + support.missing, "GPU");
    let (state, more) = match (support.missing, known) {
        (0, _) if log.choices().next().is_some() => {
            ("available", "; no operation in the log used it")
        }
        (0, _) => {
            ("available", "; whether it was used is only told with NCCL_DEBUG_SUBSYS=INIT,TUNING")
        }
        (_, Some((_, true))) => (
            "not available",
            ", though the instance type has it: fabric manager, driver or a container may be why",
        ),
        (_, Some((_, false))) => ("not available", ", as is right for these GPUs"),
        _ => ("not available", "; it needs NVSwitch and GPUs of Hopper or newer"),
    };
    let says = format!("NVLink SHARP (NVLS) is {state} on the {gpus} that tell{more}");
    let is_wrong = support.missing > 0 && known.is_some_and(|(_, has)| has);
    let finding = if is_wrong { Finding::problem } else { Finding::note };
    let finding = finding("nvls", says, vec![support.at]);
    Some(match is_wrong {
        true => finding.remedy("check `nvidia-smi -q` for Fabric State Completed, and the service"),
        false => finding,
    })
}
