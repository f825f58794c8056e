//! Whether the log is whole, what its warnings mean, and variables without effect.

use super::{Finding, count};
use crate::nccl_log::{Log, Origin, Path, Variable, Warning, WarningKind, summary::ranks_named};

/// Warnings that are listed; the rest are counted.
const WARNINGS_MAX: usize = 8;

pub(super) fn findings(log: &Log) -> Vec<Finding> {
    let mut findings = warnings(log);
    findings.extend(versions(log));
    findings.extend(missing(log));
    findings.extend(unfinished(log));
    findings.extend(confidential(log));
    findings.extend(fabric(log));
    findings.extend(log.variables.iter().filter_map(|variable| without_effect(log, variable)));
    findings
}

fn warnings(log: &Log) -> Vec<Finding> {
    // Where host memory is used instead, that finding says why.
    let is_told = log.links().any(|link| link.transport.path() == Path::Shm);
    let by_path = |warning: &&Warning| {
        let refusals = [WarningKind::P2pDisabled, WarningKind::P2pRefused, WarningKind::LegacyIpc];
        !(is_told && refusals.contains(&warning.kind))
    };
    let warnings: Vec<&Warning> = log.warnings.iter().filter(by_path).collect();
    let mut findings: Vec<Finding> =
        warnings.iter().take(WARNINGS_MAX).map(|warned| warning(warned)).collect();
    if let Some(first) = warnings.get(WARNINGS_MAX) {
        let more = count(warnings.len() - WARNINGS_MAX, "more warning");
        let says = format!("there are {more} that say other things, from this line on");
        findings.push(Finding::problem("more-warnings", says, vec![first.at]));
    }
    findings
}

/// A warning, with what it means if that is known.
fn warning(warning: &Warning) -> Finding {
    let Warning { kind, text, at, .. } = warning;
    let times = match warning.lines {
        1 => String::new(),
        lines => format!(" ({lines} lines)"),
    };
    let Some((name, means, remedy)) = meaning(*kind) else {
        return Finding::problem("warning", format!("NCCL warns{times}: \"{text}\""), vec![*at]);
    };
    let who = warning.process.as_ref().map_or_else(String::new, |process| {
        format!(", first process {} on {}", process.pid, process.host)
    });
    let is_harmless = *kind == WarningKind::CuMemHost;
    let finding = if is_harmless { Finding::note } else { Finding::problem };
    finding(name, format!("{means}{times}{who}: \"{text}\""), vec![*at]).remedy(remedy)
}

/// What a kind of warning is called, what it means, and what to do.
const fn meaning(kind: WarningKind) -> Option<(&'static str, &'static str, &'static str)> {
    Some(match kind {
        WarningKind::P2pDisabled | WarningKind::P2pRefused | WarningKind::LegacyIpc => (
            "peer-access-refused",
            "GPUs of a node do not reach each other's memory: the driver or CUDA refuses",
            "`nvidia-smi topo -p2p rw` and `g2g topo` show which pairs, and why",
        ),
        WarningKind::P2pDisabledOnNvLink => (
            "nvlink-fault",
            "NVLink connects these GPUs, but the driver allows no peer access: NCCL ends with an \
             error",
            "look at `nvidia-smi nvlink -s` and dmesg for Xid errors; restart or replace the machine",
        ),
        WarningKind::NoTransport => (
            "no-transport",
            "two ranks have no way to each other: peer access, shared memory and network all say no",
            "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET, and see which plugin is loaded",
        ),
        WarningKind::SharedMemory => (
            "dev-shm",
            "shared memory could not be made: /dev/shm is too small, or not writable",
            "give the container more, such as --shm-size=1g, or in Kubernetes an emptyDir of medium \
             Memory at /dev/shm",
        ),
        WarningKind::CuMemHost => (
            "cumem-host",
            "host memory of cuMem does not work here, so that NCCL uses /dev/shm; get_mempolicy is \
             often what a container forbids",
            "docker: --cap-add SYS_NICE; GPU to GPU it makes no difference",
        ),
        WarningKind::Peer => (
            "peer-lost",
            "another rank has gone away, or was waited for in vain: this line is an effect, the \
             cause is in the log of the rank that stopped first",
            "find the rank whose log ends first, or that never came to the operation",
        ),
        WarningKind::Nvls => (
            "nvls-fault",
            "NVLink SHARP could not be set up",
            "check fabric manager (`nvidia-smi -q`, Fabric State); NCCL_NVLS_ENABLE=0 goes on without",
        ),
        WarningKind::Network => (
            "network-fault",
            "the network, or its plugin, does not do what was asked of it",
            "see whether the plugin of this machine is found (LD_LIBRARY_PATH), its devices are in \
             the container, and memory may be locked (ulimit -l unlimited)",
        ),
        WarningKind::VersionMismatch => (
            "version-mismatch",
            "ranks have different versions of NCCL",
            "use one image, or one NCCL, for all",
        ),
        WarningKind::SameGpu => (
            "same-gpu",
            "two ranks have the same GPU",
            "give each rank one of its own, such as by its local rank (CUDA_VISIBLE_DEVICES)",
        ),
        WarningKind::Cuda => (
            "cuda-failure",
            "CUDA has failed; what follows is an effect of it",
            "the number is CUDA's: 802 means that fabric manager does not run, 2 that memory is full",
        ),
        WarningKind::Mnnvl => (
            "mnnvl",
            "the hosts could share an NVLink domain, but that does not work",
            "check IMEX: the service on all hosts, and /dev/nvidia-caps-imex-channels in the container",
        ),
        WarningKind::Diagnosis => (
            "nccl-diagnosis",
            "NCCL's own diagnostics have found a fault when a communicator was made",
            "measure that part with `g2g check`, and replace what is broken",
        ),
        WarningKind::Other => return None,
    })
}

fn versions(log: &Log) -> Option<Finding> {
    let [first, second, ..] = &log.versions[..] else { return None };
    let all: Vec<&str> = log.versions.iter().map(|told| told.value.as_str()).collect();
    let says = format!("the log has several versions of NCCL: {}", all.join(", "));
    let finding = Finding::problem("several-versions", says, vec![first.at, second.at]);
    Some(
        finding
            .because("ranks load different libraries, or the file holds more than one run")
            .remedy("use one NCCL for all ranks"),
    )
}

/// Ranks of which the log says nothing, and channels that it lacks.
fn missing(log: &Log) -> Vec<Finding> {
    let mut findings = Vec::new();
    let of_ranks = log.communicators.iter().filter(|communicator| communicator.ranks.is_some());
    if let Some(communicator) = of_ranks.clone().find(|known| !known.missing().is_empty()) {
        let missing = communicator.missing();
        let says = format!(
            "the log has {} of {}; of {} nothing is known but what the others say",
            communicator.members.len(),
            count(communicator.ranks.unwrap_or_default(), "rank"),
            ranks_named(&missing)
        );
        let finding = Finding::note("ranks-missing", says, vec![communicator.at]);
        findings.push(finding.remedy(
            "give the logs of all ranks: NCCL_DEBUG_FILE=nccl.%h.%p.log writes one file for each",
        ));
    }
    let has_channels = log.communicators.iter().any(|known| !known.links.is_empty());
    if log.messages == 0 {
        let says = "there is no line of NCCL in what was read".to_owned();
        let finding = Finding::problem("no-nccl", says, Vec::new());
        findings.push(finding.remedy("set NCCL_DEBUG=INFO for the ranks and give what they print"));
    } else if !has_channels {
        let says = "no channel is in the log, so nothing says which way data took".to_owned();
        let at = log.communicators.iter().map(|communicator| communicator.at).take(1).collect();
        let finding = Finding::problem("no-channels", says, at);
        findings.push(
            finding
                .because(
                    "NCCL 2.22 and newer connect channels at the first operation, not when the \
                     communicator is made; or NCCL_DEBUG_SUBSYS leaves out INIT",
                )
                .remedy("give the log of a run that has done at least one operation"),
        );
    }
    findings
}

/// Ranks that began and did not finish, and what was left out.
fn unfinished(log: &Log) -> Vec<Finding> {
    let mut findings = Vec::new();
    let begun = log.communicators.iter().find_map(|communicator| {
        let members = communicator.members.iter();
        let begun: Vec<u32> = members
            .filter(|(_, member)| !member.is_complete && member.bus_id.is_some())
            .map(|(&rank, _)| rank)
            .collect();
        Some((communicator.members[begun.first()?].at, begun))
    });
    if let Some((at, ranks)) = begun {
        let says = format!(
            "{} began to join a communicator and the log does not say that it was done: it hangs, \
             it failed, or the log is cut",
            ranks_named(&ranks)
        );
        findings.push(Finding::problem("unfinished", says, vec![at]));
    }
    if log.left_out > 0 {
        let says =
            format!("{} were left out, since there are too many", count(log.left_out, "fact"));
        findings.push(Finding::note("left-out", says, Vec::new()));
    }
    findings
}

fn confidential(log: &Log) -> Option<Finding> {
    let (is_on, at) = log.confidential?;
    let says = "confidential computing is on: transfers are encrypted, and slower".to_owned();
    is_on.then(|| Finding::note("confidential-computing", says, vec![at]))
}

/// NVML's states of the fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.
fn fabric(log: &Log) -> Option<Finding> {
    let (state, at) = log.fabric_states.iter().find(|(state, _)| matches!(state, 1 | 2))?;
    let word = if *state == 1 { "has not started" } else { "has not finished" };
    let says = format!("the NVLink fabric of a GPU {word} to set itself up (state {state})");
    let finding = Finding::problem("fabric-state", says, vec![*at]);
    Some(finding.remedy(
        "see that fabric manager, and IMEX where hosts share a domain, run: `nvidia-smi -q` shows \
         Fabric State Completed when they have done their part",
    ))
}

/// A variable that does nothing, or nothing here.
fn without_effect(log: &Log, given: &Variable) -> Option<Finding> {
    let says = match (given.name.as_str(), given.origin) {
        ("NCCL_P2P_DIRECT_READ" | "NCCL_P2P_DIRECT_WRITE", _) => format!(
            "{} does not exist in NCCL: reads or writes are chosen by NCCL_P2P_READ_ENABLE (1 or 0)",
            given.name
        ),
        (_, Origin::OtherText | Origin::Plugin) => return None,
        ("NCCL_P2P_DISABLE", _) if given.value.parse() != Ok(1) => format!(
            "NCCL_P2P_DISABLE={} does nothing: only 1 counts, which switches peer access off; \
             nothing forces it on",
            given.value
        ),
        ("NCCL_IB_DISABLE", _) if uses_ofi(log) => {
            "NCCL_IB_DISABLE has no effect: it is for NCCL's own InfiniBand network, and \
             aws-ofi-nccl is used"
                .to_owned()
        }
        ("NCCL_SHM_USE_CUDA_MEMCPY" | "NCCL_SHM_MEMCPY_MODE", _) if is_at_least(log, 2, 30, 7) => {
            format!("{} was removed with NCCL 2.30.7", given.name)
        }
        ("NCCL_P2P_LEVEL" | "NCCL_P2P_READ_ENABLE" | "NCCL_P2P_DISABLE", _) if no_peers(log) => {
            format!("{} has no effect: no two ranks are on one node, as NCCL sees it", given.name)
        }
        _ => return None,
    };
    Some(Finding::note("variable-without-effect", says, vec![given.at]))
}

fn uses_ofi(log: &Log) -> bool {
    log.networks.iter().any(|told| told.value.contains("Libfabric"))
}

/// All communicators whose layout is known have one rank on each node.
fn no_peers(log: &Log) -> bool {
    let mut told = log.communicators.iter().filter(|known| known.nodes.is_some()).peekable();
    told.peek().is_some() && told.all(|known| known.nodes == known.ranks)
}

fn is_at_least(log: &Log, major: u32, minor: u32, patch: u32) -> bool {
    log.versions.iter().any(|told| {
        let plain = told.value.split(['+', '-']).next().unwrap_or_default();
        let mut numbers = plain.split('.').map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        (next(), next(), next()) >= (major, minor, patch)
    })
}
