//! The GPUs, their links, and what lies between this process and them.

use std::collections::BTreeMap;

use super::host::untold;
use crate::{
    judge::doctor::{Facts, Finding, count},
    judge::health::THROTTLING,
    machine::{
        Fabric, FabricState, NvmlGpu,
        survey::{Survey, SurveyedGpu},
    },
    plan::catalogue::PeerAccess,
};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const NOT_READY: u32 = 802;

/// Fabric Manager's process, cut as the kernel cuts names.
const FABRIC_MANAGER: &str = "nv-fabricmanage";

/// What is told of each of several GPUs, in one line.
fn listed(gpus: impl Iterator<Item = String>) -> String {
    gpus.collect::<Vec<String>>().join("; ")
}

fn nvml_of(survey: &Survey) -> impl Iterator<Item = (&SurveyedGpu, &NvmlGpu)> {
    survey.gpus.iter().filter_map(|gpu| Some((gpu, gpu.nvml.as_ref()?)))
}

pub(super) fn driver(facts: &Facts) -> Vec<Finding> {
    let survey = &facts.survey;
    match &facts.refusal {
        None => {
            let version = facts.host.driver_version.as_deref().unwrap_or("?");
            let gpus = count(survey.gpus.len(), "GPU");
            vec![Finding::ok(format!("the driver {version} works and has {gpus}"))]
        }
        // It has a check of its own.
        Some(refusal) if refusal.code == Some(NOT_READY) => Vec::new(),
        Some(refusal)
            if [None, Some(NO_DEVICE)].contains(&refusal.code) && facts.gpu_count() == 0 =>
        {
            vec![
                Finding::note("no NVIDIA GPU is here, or no driver of one")
                    .means("local, p2p, nccl and GPUDirect cannot be measured here")
                    .remedy(format!("on a machine with GPUs: {}", refusal.reason)),
            ]
        }
        Some(refusal) => vec![
            Finding::problem(format!("the driver does not work: {}", refusal.reason))
                .means("no GPU can be used")
                .source("CUDA driver API, CUresult"),
        ],
    }
}

pub(super) fn visible(facts: &Facts) -> Vec<Finding> {
    let all = facts.gpu_count();
    let visible = facts.survey.gpus.len();
    if facts.refusal.is_some() || all == 0 {
        return Vec::new();
    }
    if visible >= all {
        return vec![Finding::ok(format!("this process may use all {}", count(visible, "GPU")))];
    }
    let hidden = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"].into_iter().find_map(|name| {
        let value = facts.variables.get(name).filter(|value| !value.is_empty())?;
        Some(format!("{name}={value}"))
    });
    let by = hidden.as_ref().map_or_else(String::new, |by| format!(" ({by})"));
    let remedy = match hidden {
        Some(by) => format!("leave out {}", by.split('=').next().unwrap_or_default()),
        None => "give the container all GPUs (docker --gpus all, nvidia.com/gpu)".to_owned(),
    };
    vec![
        Finding::note(format!("this process may use {visible} of {all} GPUs{by}"))
            .means(
                "the others are neither measured nor seen by NCCL; since CUDA 10.1 a process still \
                 reaches the GPUs of others over P2P",
            )
            .remedy(remedy)
            .source("CUDA programming guide, CUDA_VISIBLE_DEVICES; /proc/driver/nvidia/gpus"),
    ]
}

pub(super) fn mig(facts: &Facts) -> Vec<Finding> {
    let modes: Vec<(u32, Option<bool>)> = facts
        .survey
        .gpus
        .iter()
        .map(|gpu| (gpu.node.gpu.0, gpu.nvml.as_ref().and_then(|nvml| nvml.mig)))
        .collect();
    let cut = modes.iter().filter(|(_, mode)| *mode == Some(true)).map(|(gpu, _)| *gpu);
    let cut: Vec<u32> = cut.collect();
    if cut.is_empty() {
        let is_known = !modes.is_empty() && modes.iter().all(|(_, mode)| mode.is_some());
        let ok = || Finding::ok("no GPU is cut into instances (MIG)");
        return is_known.then(ok).into_iter().collect();
    }
    vec![
        Finding::problem(format!("MIG is on: {}", gpus(&cut)))
            .means("an instance of a GPU has no P2P, no CUDA IPC and no NVLink")
            .remedy("as root: nvidia-smi -i GPU -mig 0, with no process on it")
            .source("NVIDIA MIG user guide; nvmlDeviceGetMigMode"),
    ]
}

/// What holds clocks down now, and memory that has lost data.
pub(super) fn condition(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let (mut clocks, mut memories) = (0, 0);
    for gpu in &facts.survey.gpus {
        let name = gpu.node.gpu.0;
        let reasons = gpu.condition.as_ref().and_then(|now| now.throttle_reasons.as_ref());
        let uncorrected = gpu.errors.as_ref().and_then(|errors| errors.ecc_uncorrected);
        clocks += usize::from(reasons.is_some());
        memories += usize::from(uncorrected.is_some());
        let slowing = reasons.into_iter().flatten().map(String::as_str);
        let slowing: Vec<&str> = slowing.filter(|reason| THROTTLING.contains(reason)).collect();
        if !slowing.is_empty() {
            let held = format!("the clocks of GPU {name} are held down: {}", slowing.join(", "));
            found.push(
                Finding::problem(held)
                    .means("kernels and reductions, and so collectives, are slower than they could be")
                    .remedy(
                        "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE shows what asks for it; if no \
                         work runs on the GPU, stop and start the instance to get another host",
                    )
                    .source("nvmlDeviceGetCurrentClocksEventReasons"),
            );
        }
        if let Some(errors) = uncorrected.filter(|&errors| errors > 0) {
            let lost =
                format!("the memory of GPU {name} has had {errors} errors that ECC could not mend");
            found.push(
                Finding::problem(lost)
                    .means("programs on it have been stopped, and will be again if the cells are bad")
                    .remedy(
                        "restart, so that bad rows are replaced; if they come back, stop and start the \
                         instance to get another host, or report it",
                    )
                    .source("NVML_FI_DEV_ECC_DBE_VOL_TOTAL; NVIDIA GPU memory error management"),
            );
        }
    }
    if found.is_empty() && !facts.survey.gpus.is_empty() {
        // Of all GPUs, or it is not said.
        let told =
            [(clocks, "no GPU's clock is held down"), (memories, "no GPU's memory has lost data")];
        let told = told.into_iter().filter(|(gpus, _)| *gpus == facts.survey.gpus.len());
        found.extend(told.map(|(_, said)| Finding::ok(said)));
    }
    found
}

/// Errors of a GPU, its memory or its links, which no program can cause (NVIDIA, "XID Errors").
const HARDWARE: [u64; 14] = [48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140, 145, 149];

pub(super) fn xids(facts: &Facts) -> Vec<Finding> {
    // Who may not read the log is told so; in a container there is often none.
    let Ok(all) = &facts.host.xids else { return Vec::new() };
    if facts.gpu_count() == 0 {
        return Vec::new();
    }
    if all.is_empty() {
        return vec![Finding::ok("the kernel's log tells of no error of a GPU (Xid)")];
    }
    let mut counts: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for (address, number) in all {
        *counts.entry((*number, address)).or_insert(0) += 1;
    }
    let listed = counts.iter().map(|((number, address), times)| {
        format!("Xid {number} of the GPU at {address}, {}", count(*times, "time"))
    });
    let seen = format!("the kernel's log has {}", listed.collect::<Vec<String>>().join("; "));
    let source = "NVIDIA, XID Errors; /dev/kmsg";
    if counts.keys().any(|(number, _)| HARDWARE.contains(number)) {
        return vec![
            Finding::problem(seen)
                .means("a GPU, its memory or its links have failed since the machine was started")
                .remedy(
                    "look the number up in NVIDIA's list; restart the machine, and if it comes back \
                     stop and start the instance to get another host",
                )
                .source(source),
        ];
    }
    vec![
        Finding::note(seen)
            .means("a program has failed on a GPU, or the driver has had to help it")
            .remedy("look the number up in NVIDIA's list")
            .source(source),
    ]
}

/// `GPU 1`, `GPUs 1, 2`.
fn gpus(ordinals: &[u32]) -> String {
    let numbers: Vec<String> = ordinals.iter().map(u32::to_string).collect();
    format!("GPU{} {}", if ordinals.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

pub(super) fn fabric(facts: &Facts) -> Vec<Finding> {
    let is_not_ready = facts.refusal.as_ref().and_then(|refusal| refusal.code) == Some(NOT_READY);
    let unready: Vec<u32> = nvml_of(&facts.survey)
        .filter(|(_, nvml)| nvml.fabric_is_unready())
        .map(|(gpu, _)| gpu.node.gpu.0)
        .collect();
    let seen = match (is_not_ready, &unready[..]) {
        (false, []) => {
            let through_switch = facts
                .survey
                .gpus
                .iter()
                .any(|gpu| gpu.nvml.as_ref().is_some_and(NvmlGpu::has_switch));
            let ok = "the driver starts behind the NVSwitch: Fabric Manager has done its work";
            return through_switch.then(|| Finding::ok(ok)).into_iter().collect();
        }
        (true, _) => "cuInit answers 802 (CUDA_ERROR_SYSTEM_NOT_READY)".to_owned(),
        (false, unready) => format!("NVML says that {} have not joined the fabric", gpus(unready)),
    };
    let runs = match &facts.host.processes {
        Ok(names) if names.contains(FABRIC_MANAGER) => "; nv-fabricmanager runs",
        Ok(_) if facts.host.sees_own_processes_only => "",
        Ok(_) => "; nv-fabricmanager does not run",
        Err(_) => "",
    };
    vec![
        Finding::problem(format!("{seen}{runs}"))
            .means(
                "GPUs behind an NVSwitch wait for Fabric Manager: no GPU can be used, or no NVLink",
            )
            .remedy(
                "systemctl status nvidia-fabricmanager; its version must be the driver's, and in a \
                 container it runs on the host",
            )
            .source("NVIDIA Fabric Manager user guide; nvmlDeviceGetGpuFabricInfo"),
    ]
}

pub(super) fn confidential(facts: &Facts) -> Vec<Finding> {
    match facts.confidential {
        None => Vec::new(),
        Some(false) => vec![Finding::ok("confidential computing is off")],
        Some(true) => vec![
            Finding::problem("confidential computing is on")
                .means(
                    "what leaves a GPU over PCIe is encrypted by the CPU: copies to and from host \
                     memory, shm and P2P over PCIe are many times slower or refused, and NCCL does \
                     without its fifo of work",
                )
                .remedy(
                    "switch it off for the GPUs (gpu_admin_tools, --set-cc-mode=off) and restart",
                )
                .source("NVIDIA confidential computing guide; nvmlSystemGetConfComputeState"),
        ],
    }
}

pub(super) fn clique(facts: &Facts) -> Vec<Finding> {
    let joined: Vec<(u32, &Fabric)> = nvml_of(&facts.survey)
        .filter_map(|(gpu, nvml)| Some((gpu.node.gpu.0, nvml.fabric.as_ref()?)))
        .filter(|(_, fabric)| fabric.state == FabricState::Completed)
        .collect();
    if joined.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut cliques: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (gpu, fabric) in &joined {
        cliques.entry((&fabric.cluster_uuid, fabric.clique)).or_default().push(*gpu);
    }
    if cliques.len() > 1 {
        let number = |clique: Option<u32>| clique.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let list = cliques
            .iter()
            .map(|((_, clique), members)| format!("{} in {}", gpus(members), number(*clique)));
        findings.push(
            Finding::problem(format!(
                "GPUs of this machine are in several cliques of the NVLink fabric: {}",
                listed(list)
            ))
            .means("GPUs of different cliques do not reach each other over NVLink")
            .remedy(
                "nvidia-smi -q shows Fabric, CliqueId; the fabric's manager has partitioned it, or \
                 links are down: ask for a whole partition, restart the machine",
            )
            .source("nvmlDeviceGetGpuFabricInfoV; NCCL's src/mnnvl.cc"),
        );
    }
    let troubled = joined.iter().filter_map(|(gpu, fabric)| {
        // Of links that are down another check tells more.
        let has_links_down = nvml_of(&facts.survey).any(|(other, nvml)| {
            other.node.gpu.0 == *gpu && nvml.nvlinks.iter().any(|link| !link.active)
        });
        let is_said = |trouble: &&String| has_links_down && *trouble == "degraded_bandwidth";
        let mut troubles: Vec<String> =
            fabric.troubles.iter().filter(|trouble| !is_said(trouble)).cloned().collect();
        let status = fabric.status.filter(|status| *status != 0);
        troubles.extend(status.map(|status| format!("NVML's code {status} when it joined")));
        (!troubles.is_empty()).then(|| format!("GPU {gpu}: {}", troubles.join(", ")))
    });
    let troubled: Vec<String> = troubled.collect();
    if !troubled.is_empty() {
        findings.push(
            Finding::problem(format!("the NVLink fabric is not well: {}", troubled.join("; ")))
                .means("NVLink is slower, or not there at all")
                .remedy("systemctl status nvidia-fabricmanager; dmesg; restart the machine")
                .source("nvmlDeviceGetGpuFabricInfoV, healthMask"),
        );
    }
    // Of those that have not joined another check tells.
    if findings.is_empty() && joined.len() == facts.survey.gpus.len() {
        findings.push(Finding::ok("all GPUs have joined the NVLink fabric, in one clique"));
    }
    findings
}

pub(super) fn imex(facts: &Facts) -> Vec<Finding> {
    let has_domain = nvml_of(&facts.survey)
        .any(|(_, nvml)| nvml.fabric.as_ref().is_some_and(|fabric| fabric.cluster_uuid.is_some()));
    let is_required = facts.instance().is_some_and(|known| known.imex_required == Some(true));
    if !is_required && !has_domain {
        return Vec::new();
    }
    if facts.host.imex_channels.is_empty() {
        return vec![
            Finding::problem("there is no IMEX channel (/dev/nvidia-caps-imex-channels)")
                .means(
                    "GPUs of other hosts in the NVLink domain cannot be reached over NVLink: NCCL \
                     takes EFA between hosts",
                )
                .remedy(
                    "start nvidia-imex on all hosts of the domain, and give the container its \
                     channel (in Kubernetes a ComputeDomain)",
                )
                .source("NVIDIA IMEX service guide; NCCL_MNNVL_ENABLE"),
        ];
    }
    let channels = facts.host.imex_channels.len();
    vec![Finding::ok(format!("{} of IMEX", count(channels, "channel")))]
}

pub(super) fn peer_access(facts: &Facts) -> Vec<Finding> {
    let survey = &facts.survey;
    if survey.pairs.is_empty() {
        return Vec::new();
    }
    let is_nvlink = |connection: &Option<String>| {
        connection.as_ref().is_some_and(|connection| connection.starts_with("NV"))
    };
    let mut refused = Vec::new();
    let mut over_nvlink = false;
    // There only GPUs that NVLinks join reach each other.
    let is_meshed = matches!(
        facts.instance().and_then(|known| known.p2p),
        Some(PeerAccess::Nvlink | PeerAccess::NvlinkHybridCubeMesh)
    );
    for pair in &survey.pairs {
        let letters = pair.letters();
        let by_nvml = letters.starts_with("rw") || letters.starts_with('?');
        if pair.access && by_nvml {
            continue;
        }
        if is_meshed && !is_nvlink(&pair.connection) && !pair.access {
            continue;
        }
        over_nvlink |= is_nvlink(&pair.connection);
        let who = match (pair.access, by_nvml) {
            (false, true) => "the driver".to_owned(),
            (true, _) => format!("NVML ({letters})"),
            (false, false) => format!("driver and NVML ({letters})"),
        };
        refused.push((pair.gpu, pair.peer, who));
    }
    let all = survey.pairs.len();
    if refused.is_empty() {
        let which = if is_meshed { "that NVLinks join" } else { "of GPUs" };
        return vec![Finding::ok(format!("all ordered pairs {which} have peer access"))];
    }
    let is_by_design = facts.instance().is_some_and(|known| known.lacks_p2p());
    let is_untold = facts.instance().is_none_or(|known| known.p2p.is_none());
    if refused.len() == all && is_by_design {
        let seen = "no pair of GPUs has peer access, which this instance type does not offer: NCCL \
                    goes through host memory (SHM)";
        return vec![Finding::ok(seen)];
    }
    const LISTED_MAX: usize = 6;
    let shown = refused.iter().take(LISTED_MAX);
    let mut shown: Vec<String> =
        shown.map(|(gpu, peer, who)| format!("GPU {gpu} to GPU {peer} by {who}")).collect();
    if refused.len() > LISTED_MAX {
        shown.push(format!("{} more", refused.len() - LISTED_MAX));
    }
    let is_unknown = refused.len() == all && !over_nvlink && is_untold;
    let verdict = if is_unknown { Finding::note } else { Finding::problem };
    let seen =
        format!("{} of {all} ordered pairs are refused: {}", refused.len(), shown.join("; "));
    let means = if over_nvlink {
        "p2p cannot be measured there, and NCCL ends with an error where NVML refuses a pair that \
         NVLinks join"
    } else {
        "p2p cannot be measured there, and NCCL goes through host memory (SHM)"
    };
    vec![
        verdict(format!("peer access: {seen}"))
            .means(means)
            .remedy(
                "nvidia-smi topo -p2p r and -p2p w say why; MIG, an IOMMU, a virtual machine's host \
                 or the GPU's kind may forbid it; for NVLinks: Fabric Manager",
            )
            .source("cuDeviceCanAccessPeer, nvmlDeviceGetP2PStatus; NCCL's src/graph/paths.cc"),
    ]
}

pub(super) fn persistence(facts: &Facts) -> Vec<Finding> {
    const DAEMON: &str = "nvidia-persiste";
    if facts.survey.gpus.is_empty() {
        return Vec::new();
    }
    let modes: Vec<bool> =
        nvml_of(&facts.survey).filter_map(|(_, nvml)| nvml.persistence).collect();
    match (&modes[..], &facts.host.processes) {
        ([], Err(_)) => {
            untold(&facts.host.processes).map(Finding::cannot_tell).into_iter().collect()
        }
        (modes, _) if !modes.is_empty() && modes.iter().all(|on| *on) => {
            vec![Finding::ok("persistence mode is on")]
        }
        (_, Ok(names)) if names.contains(DAEMON) => {
            vec![Finding::ok("nvidia-persistenced runs")]
        }
        ([], Ok(_)) => Vec::new(),
        _ => vec![
            Finding::note("persistence mode is off")
                .means(
                    "the driver lets go of a GPU when its last process ends: each start takes \
                     seconds, and settings of clocks are lost",
                )
                .remedy("systemctl enable --now nvidia-persistenced")
                .source("NVIDIA driver persistence; nvmlDeviceGetPersistenceMode"),
        ],
    }
}
