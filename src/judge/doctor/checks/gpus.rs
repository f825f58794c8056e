//! The GPUs, their links, and what may keep this process from using them.

use std::collections::BTreeMap;

use super::{Advice, Facts, Finding, first_of};
use crate::{
    judge::health::THROTTLING,
    machine::{
        Fabric, FabricState, NvmlGpu,
        survey::{Survey, SurveyedPair},
        tally,
    },
    plan::catalogue::{Instance, PeerAccess},
    units::count,
};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const NOT_READY: u32 = 802;

/// Fabric Manager's process, cut as the kernel cuts names.
const FABRIC_MANAGER: &str = "nv-fabricmanage";

/// The persistence daemon's process, cut likewise.
const PERSISTENCE_DAEMON: &str = "nvidia-persiste";

/// What NVML tells of each GPU that it knows, with the GPU's ordinal.
fn nvml_of(survey: &Survey) -> impl Iterator<Item = (u32, &NvmlGpu)> {
    survey.gpus.iter().filter_map(|gpu| Some((gpu.node.gpu.0, gpu.nvml.as_ref()?)))
}

pub(super) fn driver(facts: &Facts) -> Option<Finding> {
    let Some(refusal) = &facts.refusal else {
        let version = facts.host.driver_version.as_deref().unwrap_or("?");
        let gpus = count(facts.survey.gpus.len(), "GPU");
        return Some(Finding::ok(format!("the driver {version} works and has {gpus}")));
    };
    match refusal.code {
        // `fabric` reports it.
        Some(NOT_READY) => None,
        None | Some(NO_DEVICE) if facts.gpu_count() == 0 => {
            let none = Finding::note("no NVIDIA GPU is here, or no driver of one").with(Advice {
                means: "local, p2p, nccl and GPUDirect cannot be measured here",
                ..Advice::default()
            });
            Some(none.remedy(format!("on a machine with GPUs: {}", refusal.reason)))
        }
        _ => {
            let seen = format!("the driver does not work: {}", refusal.reason);
            Some(Finding::problem(seen).with(Advice {
                means: "no GPU can be used",
                source: "CUDA driver API, CUresult",
                ..Advice::default()
            }))
        }
    }
}

pub(super) fn visible(facts: &Facts) -> Option<Finding> {
    let all = facts.gpu_count();
    let visible = facts.survey.gpus.len();
    if facts.refusal.is_some() || all == 0 {
        return None;
    }
    if visible >= all {
        return Some(Finding::ok(format!("this process may use all {}", count(visible, "GPU"))));
    }
    let hiding = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"].into_iter().find_map(|name| {
        let value = facts.variables.get(name).filter(|value| !value.is_empty())?;
        Some((name, value))
    });
    let (by, remedy) = match hiding {
        Some((name, value)) => (format!(" ({name}={value})"), format!("leave out {name}")),
        None => {
            let remedy = "give the container all GPUs (docker --gpus all, nvidia.com/gpu)";
            (String::new(), remedy.to_owned())
        }
    };
    let seen = format!("this process may use {visible} of {all} GPUs{by}");
    let hidden = Finding::note(seen).with(Advice {
        means: "the others are neither measured nor seen by NCCL; since CUDA 10.1 a process still \
                reaches the GPUs of others over P2P",
        source: "CUDA programming guide, CUDA_VISIBLE_DEVICES; /proc/driver/nvidia/gpus",
        ..Advice::default()
    });
    Some(hidden.remedy(remedy))
}

pub(super) fn mig(facts: &Facts) -> Option<Finding> {
    let told: Vec<(u32, bool)> =
        nvml_of(&facts.survey).filter_map(|(gpu, nvml)| Some((gpu, nvml.mig?))).collect();
    let cut: Vec<u32> = told.iter().filter(|(_, is_on)| *is_on).map(|(gpu, _)| *gpu).collect();
    if cut.is_empty() {
        let is_known = !told.is_empty() && told.len() == facts.survey.gpus.len();
        return is_known.then(|| Finding::ok("no GPU is cut into instances (MIG)"));
    }
    Some(Finding::problem(format!("MIG is on: {}", gpus(&cut))).with(Advice {
        means: "an instance of a GPU has no P2P, no CUDA IPC and no NVLink",
        remedy: "as root: nvidia-smi -i GPU -mig 0, with no process on it",
        source: "NVIDIA MIG user guide; nvmlDeviceGetMigMode",
    }))
}

/// Whether clocks are throttled now, and whether memory has lost data.
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
            found.push(Finding::problem(held).with(Advice {
                means: "kernels and reductions, and so collectives, are slower than they could be",
                remedy: "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE shows what asks for it; if \
                         no work runs on the GPU, stop and start the instance to get another host",
                source: "nvmlDeviceGetCurrentClocksEventReasons",
            }));
        }
        if let Some(errors) = uncorrected.filter(|&errors| errors > 0) {
            let lost =
                format!("the memory of GPU {name} has had {errors} errors that ECC could not mend");
            found.push(Finding::problem(lost).with(Advice {
                means: "programs on it have been stopped, and will be again if the cells are bad",
                remedy: "restart, so that bad rows are replaced; if they come back, stop and start \
                         the instance to get another host, or report it",
                source: "NVML_FI_DEV_ECC_DBE_VOL_TOTAL; NVIDIA GPU memory error management",
            }));
        }
    }
    if found.is_empty() && !facts.survey.gpus.is_empty() {
        // Only where all GPUs were read.
        let told =
            [(clocks, "no GPU's clock is held down"), (memories, "no GPU's memory has lost data")];
        let told = told.into_iter().filter(|(gpus, _)| *gpus == facts.survey.gpus.len());
        found.extend(told.map(|(_, said)| Finding::ok(said)));
    }
    found
}

/// Whether somebody has lowered the power that a GPU may take.
pub(super) fn power_limit(facts: &Facts) -> Option<Finding> {
    let limits = facts.survey.gpus.iter().filter_map(|gpu| {
        let now = gpu.condition.as_ref()?.power_limit_mw?;
        Some((gpu.node.gpu.0, now, gpu.nvml.as_ref()?.power_limit_default_mw?))
    });
    let limits: Vec<(u32, u32, u32)> = limits.collect();
    let lowered = limits.iter().filter(|(_, now, default)| now < default);
    let lowered: Vec<String> = lowered
        .map(|(gpu, now, default)| format!("GPU {gpu} {} W of {} W", now / 1000, default / 1000))
        .collect();
    if lowered.is_empty() {
        let is_known = !limits.is_empty() && limits.len() == facts.survey.gpus.len();
        return is_known.then(|| Finding::ok("no GPU's power limit is below its default"));
    }
    let seen = format!("power limits are below their defaults: {}", lowered.join(", "));
    Some(Finding::problem(seen).with(Advice {
        means: "under load the clocks fall earlier: kernels and reductions, and so collectives, \
                are slower",
        remedy: "as root: nvidia-smi -i GPU -pl WATTS; if it comes back, whoever runs the board \
                 limits it: take another machine (on EC2: stop and start the instance)",
        source: "nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPowerManagementDefaultLimit",
    }))
}

/// Errors of the hardware, which no program can cause (NVIDIA, "XID Errors").
const HARDWARE: [u64; 14] = [48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140, 145, 149];

pub(super) fn xids(facts: &Facts) -> Option<Finding> {
    // `beyond` reports a log that only root may read; containers often have none.
    let all = facts.host.xids.as_ref().ok().filter(|_| facts.gpu_count() > 0)?;
    if all.is_empty() {
        return Some(Finding::ok("the kernel's log tells of no error of a GPU (Xid)"));
    }
    let counts = tally(all.iter().map(|(address, number)| (*number, address)));
    let listed = counts.iter().map(|((number, address), times)| {
        format!("Xid {number} of the GPU at {address}, {}", count(*times, "time"))
    });
    let seen = format!("the kernel's log has {}", listed.collect::<Vec<String>>().join("; "));
    let source = "NVIDIA, XID Errors; /dev/kmsg";
    Some(if counts.keys().any(|(number, _)| HARDWARE.contains(number)) {
        Finding::problem(seen).with(Advice {
            means: "a GPU, its memory or its links have failed since the machine was started",
            remedy: "look the number up in NVIDIA's list; restart the machine, and if it comes \
                     back stop and start the instance to get another host",
            source,
        })
    } else {
        Finding::note(seen).with(Advice {
            means: "a program has failed on a GPU, or the driver has had to help it",
            remedy: "look the number up in NVIDIA's list",
            source,
        })
    })
}

/// `GPU 1`, `GPUs 1, 2`.
fn gpus(ordinals: &[u32]) -> String {
    let numbers: Vec<String> = ordinals.iter().map(u32::to_string).collect();
    format!("GPU{} {}", if ordinals.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

pub(super) fn fabric(facts: &Facts) -> Option<Finding> {
    let is_not_ready = facts.refusal.as_ref().and_then(|refusal| refusal.code) == Some(NOT_READY);
    let unready: Vec<u32> = nvml_of(&facts.survey)
        .filter(|(_, nvml)| nvml.fabric_is_unready())
        .map(|(gpu, _)| gpu)
        .collect();
    let seen = if is_not_ready {
        "cuInit answers 802 (CUDA_ERROR_SYSTEM_NOT_READY)".to_owned()
    } else if unready.is_empty() {
        let ok = "the driver starts behind the NVSwitch: Fabric Manager has done its work";
        let has_switch = nvml_of(&facts.survey).any(|(_, nvml)| nvml.has_switch());
        return has_switch.then(|| Finding::ok(ok));
    } else {
        format!("NVML says that {} have not joined the fabric", gpus(&unready))
    };
    let runs = match &facts.host.processes {
        Ok(names) if names.contains(FABRIC_MANAGER) => "; nv-fabricmanager runs",
        Ok(_) if !facts.host.sees_own_processes_only => "; nv-fabricmanager does not run",
        Ok(_) | Err(_) => "",
    };
    Some(Finding::problem(format!("{seen}{runs}")).with(Advice {
        means: "GPUs behind an NVSwitch wait for Fabric Manager: no GPU can be used, or no NVLink",
        remedy: "systemctl status nvidia-fabricmanager; its version must be the driver's, and in a \
                 container it runs on the host",
        source: "NVIDIA Fabric Manager user guide; nvmlDeviceGetGpuFabricInfo",
    }))
}

/// Fabric Manager refuses to work with a driver of another version.
pub(super) fn fabric_manager_version(facts: &Facts) -> Option<Finding> {
    let installed = facts.software.fabric_manager.as_ref()?;
    let driver = facts.host.driver_version.as_ref().ok()?;
    if installed == driver {
        return Some(Finding::ok(format!("Fabric Manager has the driver's version {driver}")));
    }
    let seen = format!("Fabric Manager is {installed}, the driver {driver}");
    Some(Finding::problem(seen).with(Advice {
        means: "Fabric Manager does not start, and GPUs behind an NVSwitch wait for it: no GPU can \
                be used",
        remedy: "install the version of nvidia-fabricmanager that the driver has, and hold both",
        source: "NVIDIA Fabric Manager user guide; /var/lib/dpkg/status, /var/log/fabricmanager.log",
    }))
}

pub(super) fn confidential(facts: &Facts) -> Option<Finding> {
    if !facts.confidential? {
        return Some(Finding::ok("confidential computing is off"));
    }
    Some(Finding::problem("confidential computing is on").with(Advice {
        means: "what leaves a GPU over PCIe is encrypted by the CPU: copies to and from host \
                memory, shm and P2P over PCIe are many times slower or refused, and NCCL does \
                without its fifo of work",
        remedy: "switch it off for the GPUs (gpu_admin_tools, --set-cc-mode=off) and restart",
        source: "NVIDIA confidential computing guide; nvmlSystemGetConfComputeState",
    }))
}

pub(super) fn clique(facts: &Facts) -> Vec<Finding> {
    let joined: Vec<(u32, &NvmlGpu, &Fabric)> = nvml_of(&facts.survey)
        .filter_map(|(gpu, nvml)| Some((gpu, nvml, nvml.fabric.as_ref()?)))
        .filter(|(_, _, fabric)| fabric.state == FabricState::Completed)
        .collect();
    if joined.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut cliques: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (gpu, _, fabric) in &joined {
        cliques.entry((&fabric.cluster_uuid, fabric.clique)).or_default().push(*gpu);
    }
    if cliques.len() > 1 {
        let list = cliques.iter().map(|((_, clique), members)| {
            let number = clique.map_or_else(|| "?".to_owned(), |number| number.to_string());
            format!("{} in {number}", gpus(members))
        });
        let seen = format!(
            "GPUs of this machine are in several cliques of the NVLink fabric: {}",
            list.collect::<Vec<String>>().join("; ")
        );
        findings.push(Finding::problem(seen).with(Advice {
            means: "GPUs of different cliques do not reach each other over NVLink",
            remedy: "nvidia-smi -q shows Fabric, CliqueId; the fabric's manager has partitioned \
                     it, or links are down: ask for a whole partition, restart the machine",
            source: "nvmlDeviceGetGpuFabricInfoV; NCCL's src/mnnvl.cc",
        }));
    }
    let troubled = joined.iter().filter_map(|(gpu, nvml, fabric)| {
        let troubles = troubles(nvml, fabric);
        (!troubles.is_empty()).then(|| format!("GPU {gpu}: {}", troubles.join(", ")))
    });
    let troubled: Vec<String> = troubled.collect();
    if !troubled.is_empty() {
        let seen = format!("the NVLink fabric is not well: {}", troubled.join("; "));
        findings.push(Finding::problem(seen).with(Advice {
            means: "NVLink is slower, or not there at all",
            remedy: "systemctl status nvidia-fabricmanager; dmesg; restart the machine",
            source: "nvmlDeviceGetGpuFabricInfoV, healthMask",
        }));
    }
    // The check for Fabric Manager reports GPUs that have not joined.
    if findings.is_empty() && joined.len() == facts.survey.gpus.len() {
        findings.push(Finding::ok("all GPUs have joined the NVLink fabric, in one clique"));
    }
    findings
}

/// What the fabric reports of a GPU that has joined it.
fn troubles(nvml: &NvmlGpu, fabric: &Fabric) -> Vec<String> {
    // The check of the instance tells more of links that are down.
    let has_links_down = nvml.nvlinks.iter().any(|link| !link.active);
    let is_said = |trouble: &String| has_links_down && trouble == "degraded_bandwidth";
    let status = fabric.status.filter(|status| *status != 0);
    let status = status.map(|status| format!("NVML's code {status} when it joined"));
    fabric.troubles.iter().filter(|trouble| !is_said(trouble)).cloned().chain(status).collect()
}

pub(super) fn imex(facts: &Facts) -> Option<Finding> {
    let has_domain = nvml_of(&facts.survey)
        .any(|(_, nvml)| nvml.fabric.as_ref().is_some_and(|fabric| fabric.cluster_uuid.is_some()));
    let is_required = facts.instance().is_some_and(|known| known.imex_required == Some(true));
    if !is_required && !has_domain {
        return None;
    }
    let channels = facts.host.imex_channels.len();
    if channels > 0 {
        return Some(Finding::ok(format!("{} of IMEX", count(channels, "channel"))));
    }
    let seen = "there is no IMEX channel (/dev/nvidia-caps-imex-channels)";
    Some(Finding::problem(seen).with(Advice {
        means: "GPUs of other hosts in the NVLink domain cannot be reached over NVLink: NCCL takes \
                EFA between hosts",
        remedy: "start nvidia-imex on all hosts of the domain, and give the container its channel \
                 (in Kubernetes a ComputeDomain)",
        source: "NVIDIA IMEX service guide; NCCL_MNNVL_ENABLE",
    }))
}

/// Who refuses a GPU the memory of its peer; `None`: nobody.
fn refuser(pair: &SurveyedPair) -> Option<String> {
    let letters = pair.letters();
    let by_nvml = letters.starts_with("rw") || letters.starts_with('?');
    match (pair.access, by_nvml) {
        (true, true) => None,
        (true, false) => Some(format!("NVML ({letters})")),
        (false, true) => Some("the driver".to_owned()),
        (false, false) => Some(format!("driver and NVML ({letters})")),
    }
}

pub(super) fn peer_access(facts: &Facts) -> Option<Finding> {
    const LISTED_MAX: usize = 6;
    let pairs = &facts.survey.pairs;
    if pairs.is_empty() {
        return None;
    }
    let by_type = facts.instance().and_then(|known| known.p2p);
    // In a mesh only GPUs that NVLinks join reach each other.
    let is_meshed = matches!(by_type, Some(PeerAccess::Nvlink | PeerAccess::NvlinkHybridCubeMesh));
    let is_due = |pair: &&SurveyedPair| !is_meshed || pair.nvlinks > 0 || pair.access;
    let refused: Vec<(&SurveyedPair, String)> =
        pairs.iter().filter(is_due).filter_map(|pair| Some((pair, refuser(pair)?))).collect();
    let are_all_refused = refused.len() == pairs.len();
    if refused.is_empty() {
        let which = if is_meshed { "that NVLinks join" } else { "of GPUs" };
        return Some(Finding::ok(format!("all ordered pairs {which} have peer access")));
    }
    if are_all_refused && facts.instance().is_some_and(Instance::lacks_p2p) {
        let seen = "no pair of GPUs has peer access, which this instance type does not offer: NCCL \
                    goes through host memory (SHM)";
        return Some(Finding::ok(seen));
    }
    let shown = refused
        .iter()
        .map(|(pair, who)| format!("GPU {} to GPU {} by {who}", pair.gpu, pair.peer))
        .collect();
    let over_nvlink = refused.iter().any(|(pair, _)| pair.nvlinks > 0);
    let is_unknown = are_all_refused && !over_nvlink && by_type.is_none();
    let verdict = if is_unknown { Finding::note } else { Finding::problem };
    let seen = format!(
        "peer access: {} of {} ordered pairs are refused: {}",
        refused.len(),
        pairs.len(),
        first_of(shown, LISTED_MAX).join("; ")
    );
    Some(verdict(seen).with(Advice {
        means: if over_nvlink {
            "p2p cannot be measured there, and NCCL ends with an error where NVML refuses a pair \
             that NVLinks join"
        } else {
            "p2p cannot be measured there, and NCCL goes through host memory (SHM)"
        },
        remedy: "nvidia-smi topo -p2p r and -p2p w say why; MIG, an IOMMU, a virtual machine's \
                 host or the GPU's kind may forbid it; for NVLinks: Fabric Manager",
        source: "cuDeviceCanAccessPeer, nvmlDeviceGetP2PStatus; NCCL's src/graph/paths.cc",
    }))
}

pub(super) fn persistence(facts: &Facts) -> Option<Finding> {
    let modes: Vec<bool> =
        nvml_of(&facts.survey).filter_map(|(_, nvml)| nvml.persistence).collect();
    let is_told = !modes.is_empty();
    match &facts.host.processes {
        _ if facts.survey.gpus.is_empty() => None,
        // Where some have it and some do not, they are not alike.
        _ if modes.contains(&true) && modes.contains(&false) => None,
        _ if is_told && modes.iter().all(|on| *on) => Some(Finding::ok("persistence mode is on")),
        Ok(names) if names.contains(PERSISTENCE_DAEMON) => {
            Some(Finding::ok("nvidia-persistenced runs"))
        }
        _ if is_told => Some(Finding::note("persistence mode is off").with(Advice {
            means: "the driver lets go of a GPU when its last process ends: each start takes \
                    seconds, and settings of clocks are lost",
            remedy: "systemctl enable --now nvidia-persistenced",
            source: "NVIDIA driver persistence; nvmlDeviceGetPersistenceMode",
        })),
        Ok(_) => None,
        Err(unread) => Some(Finding::cannot_tell(unread)),
    }
}
