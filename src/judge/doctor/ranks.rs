//! What only shows when ranks are held against each other: containers that keep ranks of one
//! machine apart, GPUs that several ranks have, versions that differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Facts, Finding, Located, count, examine};
use crate::machine::host::Identity;

/// What a rank tells of itself, and what it has found where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Its host in a line.
    pub host_line: String,
    /// Who its host is for others.
    pub identity: Identity,
    /// What NCCL takes for the host's identity, where it is told.
    pub nccl_host_id: Option<String>,
    /// The UUID of the GPU that it takes, if it has one.
    pub gpu: Option<String>,
    /// Versions, by what they are of.
    pub versions: BTreeMap<String, String>,
    /// What it has found.
    pub findings: Vec<Finding>,
    /// What could be seen besides.
    pub beyond: Vec<String>,
    /// Whether its machine is a simulated one.
    pub simulated: bool,
}

impl Member {
    /// The rank of this number, which is in this `place` on its host.
    pub fn new(rank: u32, place: usize, facts: &Facts) -> Self {
        let visible = &facts.survey.gpus;
        let gpu = visible.get(place % visible.len().max(1));
        let software = &facts.software;
        let versions = [
            ("the kernel", facts.host.kernel.clone().ok()),
            ("NVIDIA's driver", facts.host.driver_version.clone().ok()),
            ("NCCL", software.nccl.first().and_then(|library| library.version.clone())),
            ("libfabric", software.libfabric.first().and_then(|library| library.version.clone())),
            (
                "NCCL's plugin for EFA",
                software.nccl_plugins.first().and_then(|plugin| plugin.version.clone()),
            ),
            ("EFA's software", software.efa_installer.clone()),
        ];
        let known = |(name, version): (&str, Option<String>)| Some((name.to_owned(), version?));
        Self {
            rank,
            host_line: host_line(facts),
            identity: facts.host.identity.clone(),
            nccl_host_id: facts.setting("NCCL_HOSTID").map(|setting| setting.value.clone()),
            gpu: gpu.map(|gpu| gpu.node.uuid.clone()),
            versions: versions.into_iter().filter_map(known).collect(),
            findings: examine(facts),
            beyond: super::beyond(facts),
            simulated: facts.survey.simulated,
        }
    }

    fn host_name(&self) -> &str {
        self.identity.hostname.as_deref().unwrap_or("?")
    }

    /// What NCCL calls a host: its name, where it has the same boot, or what NCCL is told; `None`
    /// where that cannot be read.
    fn nccl_host(&self) -> Option<&str> {
        self.nccl_host_id.as_deref().or(self.identity.hostname.as_deref())
    }
}

/// The host's name, what it is, and what is on it.
fn host_line(facts: &Facts) -> String {
    let host = &facts.host;
    let name = host.identity.hostname.as_deref().unwrap_or("?");
    let mut line = name.to_owned();
    if let Ok(product) = &host.product {
        line.push_str(&format!(", {product}"));
    }
    if let Ok(kernel) = &host.kernel {
        line.push_str(&format!(", Linux {kernel}"));
    }
    let mut gpus: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &facts.survey.gpus {
        *gpus.entry(&gpu.node.name).or_insert(0) += 1;
    }
    for (name, number) in gpus {
        line.push_str(&format!(", {number} × {name}"));
    }
    let devices = facts.rdma_devices().count();
    if devices > 0 {
        line.push_str(&format!(", {}", count(devices, "RDMA device")));
    }
    if let Some(mark) = &host.container {
        line.push_str(&format!(", in a container ({mark})"));
    }
    line
}

/// A check of several ranks together.
type Check = fn(&[Member]) -> Vec<Located>;

/// All of them, by their names, in the order of what weighs most.
pub(super) const ALL: &[(&str, Check)] =
    &[("ranks-on-gpus", shared_gpus), ("ranks-apart", apart), ("versions", versions)];

/// What `members` show together.
pub fn compare(members: &[Member]) -> Vec<Located> {
    let mut findings = Vec::new();
    for (name, check) in ALL {
        let named = |found: Located| {
            let finding = Finding { check: (*name).to_owned(), ..found.finding };
            Located { finding, ..found }
        };
        findings.extend(check(members).into_iter().map(named));
    }
    findings
}

fn located(finding: Finding, ranks: &[&Member]) -> Located {
    Located { finding, ranks: ranks.iter().map(|member| member.rank).collect() }
}

fn numbers(members: &[&Member]) -> String {
    let numbers: Vec<String> = members.iter().map(|member| member.rank.to_string()).collect();
    numbers.join(", ")
}

/// GPUs that several ranks take.
fn shared_gpus(members: &[Member]) -> Vec<Located> {
    let mut by_gpu: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in members {
        if let Some(gpu) = &member.gpu {
            by_gpu.entry(gpu).or_default().push(member);
        }
    }
    let shared: Vec<(&str, Vec<&Member>)> =
        by_gpu.into_iter().filter(|(_, ranks)| ranks.len() > 1).collect();
    let all: Vec<&Member> = shared.iter().flat_map(|(_, ranks)| ranks.clone()).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let list: Vec<String> =
        shared.iter().map(|(gpu, ranks)| format!("ranks {} have {gpu}", numbers(ranks))).collect();
    let finding = Finding::problem(format!("several ranks have one GPU: {}", list.join("; ")))
        .means(
            "NCCL ends with \"Duplicate GPU detected\", or from 2.30 on asks for \
             NCCL_MULTI_RANK_GPU_ENABLE; everything else shares the GPU's time",
        )
        .remedy(
            "start no more ranks on a host than it has GPUs, and let each rank see all of them or \
             one of its own (CUDA_VISIBLE_DEVICES)",
        )
        .source("NCCL's src/init.cc");
    vec![located(finding, &all)]
}

/// The ranks of each machine that has several: those of one boot.
fn machines(members: &[Member]) -> Vec<Vec<&Member>> {
    let mut by_boot: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in members {
        if let Some(boot) = &member.identity.boot_id {
            by_boot.entry(boot).or_default().push(member);
        }
    }
    by_boot.into_values().filter(|ranks| ranks.len() > 1).collect()
}

/// What keeps the ranks of a machine apart.
fn apart(members: &[Member]) -> Vec<Located> {
    machines(members).iter().filter_map(|ranks| apart_on_one(ranks)).collect()
}

/// What keeps these ranks of one machine apart.
fn apart_on_one(ranks: &[&Member]) -> Option<Located> {
    // What one of them cannot tell makes no difference.
    let hosts: BTreeSet<&str> = ranks.iter().filter_map(|member| member.nccl_host()).collect();
    let shm: BTreeSet<&String> =
        ranks.iter().filter_map(|member| member.identity.shm_device.as_ref()).collect();
    let space = |kind: &str| -> BTreeSet<&String> {
        ranks.iter().filter_map(|member| member.identity.namespaces.get(kind)).collect()
    };
    let names: BTreeSet<&str> = ranks.iter().map(|member| member.host_name()).collect();
    let names = names.into_iter().collect::<Vec<&str>>().join(", ");
    let (seen, means) = if hosts.len() > 1 {
        (
            format!(
                "ranks {} are on one machine (one boot) under {} names: {names}",
                numbers(ranks),
                hosts.len()
            ),
            "NCCL takes them for different hosts: their GPUs do not use NVLink, P2P or host memory, \
             but the network, to the same machine",
        )
    } else if shm.len() > 1 {
        (
            format!(
                "ranks {} are on one machine with {} different /dev/shm",
                numbers(ranks),
                shm.len()
            ),
            "NCCL lets them use neither P2P nor host memory (SHM), but the network; g2g counts them \
             as different hosts",
        )
    } else if space("pid").len() > 1 || space("net").len() > 1 {
        (
            format!(
                "ranks {} are on one machine in different PID or network namespaces",
                numbers(ranks)
            ),
            "processes hand each other GPU memory through sockets and by their numbers, neither of \
             which reaches across: P2P between them fails",
        )
    } else {
        return None;
    };
    let finding = Finding::problem(seen)
        .means(means)
        .remedy(
            "put the ranks of a machine into one container, or start the containers with \
             --ipc=host --network=host --pid=host --uts=host (in Kubernetes hostIPC, hostNetwork, \
             hostPID); NCCL_HOSTID with one value for the machine joins names only",
        )
        .source("NCCL's src/misc/utils.cc (getHostHash), src/init.cc (shmDev)");
    Some(located(finding, ranks))
}

/// Versions that are not the same everywhere.
fn versions(members: &[Member]) -> Vec<Located> {
    let kinds: BTreeSet<&String> =
        members.iter().flat_map(|member| member.versions.keys()).collect();
    let mut found = Vec::new();
    for kind in kinds {
        let mut by_version: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
        for member in members {
            let version = member.versions.get(kind).map_or("none", String::as_str);
            by_version.entry(version).or_default().push(member);
        }
        if by_version.len() < 2 {
            continue;
        }
        let list: Vec<String> = by_version
            .iter()
            .map(|(version, ranks)| format!("{version} on ranks {}", numbers(ranks)))
            .collect();
        let finding =
            Finding::note(format!("{kind} is not the same everywhere: {}", list.join("; ")))
                .means("ranks may take different paths, or not understand each other")
                .remedy("install one version on all hosts, in all containers");
        let all: Vec<&Member> = members.iter().collect();
        found.push(located(finding, &all));
    }
    found
}
