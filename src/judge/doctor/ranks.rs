//! Checks that compare ranks: containers that keep ranks of one machine apart, GPUs that several
//! ranks share, versions that differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Advice, Facts, Finding, Located,
    alike::{self, Kind, Properties, Unlike, Value},
    examine,
};
use crate::{
    machine::{self, host::Identity, software::Installed, tally},
    plan::topology::Domain,
    units::count,
};

/// A rank's facts and findings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// A line that describes its host.
    pub host_line: String,
    /// The identity of its host.
    pub identity: Identity,
    /// The host identity that is set for NCCL, if any.
    pub nccl_host_id: Option<String>,
    /// The UUID of the GPU that it uses, if it has one.
    pub gpu: Option<String>,
    /// What its GPUs share NVLink with on other hosts, if they can.
    pub domain: Option<Domain>,
    /// Versions, by the name of the software.
    pub versions: BTreeMap<String, String>,
    /// The product in the firmware's description: on EC2 the instance type.
    pub product: Option<String>,
    /// What its host is compared with others by, by the name of the property.
    properties: Properties,
    /// The variables that should be the same for all ranks.
    variables: BTreeMap<String, String>,
    /// Its findings.
    pub findings: Vec<Finding>,
    /// What else could be checked.
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
        let first = |libraries: &[Installed]| libraries.first()?.version.clone();
        let versions = [
            ("the kernel", facts.host.kernel.clone().ok()),
            ("NVIDIA's driver", facts.host.driver_version.clone().ok()),
            ("NCCL", first(&software.nccl)),
            ("libfabric", first(&software.libfabric)),
            ("NCCL's plugin for EFA", first(&software.nccl_plugins)),
            ("EFA's software", software.efa_installer.clone()),
        ];
        let known = |(name, version): (&str, Option<String>)| Some((name.to_owned(), version?));
        Self {
            rank,
            host_line: host_line(facts),
            identity: facts.host.identity.clone(),
            nccl_host_id: facts.setting("NCCL_HOSTID").map(|setting| setting.value.clone()),
            gpu: gpu.map(|gpu| gpu.node.uuid.clone()),
            domain: domain(facts),
            versions: versions.into_iter().filter_map(known).collect(),
            product: facts.host.product.clone().ok(),
            properties: alike::of_host(facts),
            variables: common_variables(facts),
            findings: examine(facts),
            beyond: super::beyond(facts),
            simulated: facts.survey.simulated,
        }
    }

    /// The host's identity as NCCL sees it, among ranks of one boot: the one that is set, or the
    /// name; `None` if that cannot be read.
    fn nccl_host(&self) -> Option<&str> {
        self.nccl_host_id.as_deref().or(self.identity.hostname.as_deref())
    }
}

/// The host's name, its type, and its devices.
fn host_line(facts: &Facts) -> String {
    let host = &facts.host;
    let name = host.identity.hostname.as_deref().unwrap_or("?").to_owned();
    let kernel = host.kernel.as_ref().ok().map(|kernel| format!("Linux {kernel}"));
    let gpus = tally(facts.survey.gpus.iter().map(|gpu| &gpu.node.name));
    let gpus = gpus.into_iter().map(|(name, number)| format!("{number} × {name}"));
    let devices = facts.rdma_devices().count();
    let devices = (devices > 0).then(|| count(devices, "RDMA device"));
    let container = host.container.as_ref().map(|mark| format!("in a container ({mark})"));
    let parts = [Some(name), host.product.clone().ok(), kernel].into_iter().flatten();
    parts.chain(gpus).chain(devices).chain(container).collect::<Vec<String>>().join(", ")
}

/// A check of several ranks together.
type Check = fn(&[Member]) -> Vec<Located>;

/// All of them, by their names, the most important first.
pub(super) const ALL: &[(&str, Check)] = &[
    ("ranks-on-gpus", shared_gpus),
    ("ranks-apart", apart),
    ("nvlink-domain", domains),
    ("hosts-alike", hosts),
    ("variables-alike", variables),
    ("versions", versions),
];

/// The findings of all checks of `members`.
pub(super) fn compare(members: &[Member]) -> Vec<Located> {
    let mut findings = Vec::new();
    for (name, check) in ALL {
        for mut found in check(members) {
            found.finding.check = (*name).to_owned();
            findings.push(found);
        }
    }
    findings
}

/// The members by their `key`, without those that have none.
fn grouped<'a>(
    members: &'a [Member],
    key: impl Fn(&'a Member) -> Option<&'a str>,
) -> BTreeMap<&'a str, Vec<&'a Member>> {
    let mut groups: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in members {
        if let Some(key) = key(member) {
            groups.entry(key).or_default().push(member);
        }
    }
    groups
}

fn located(finding: Finding, ranks: &[&Member]) -> Located {
    Located { finding, ranks: ranks.iter().map(|member| member.rank).collect() }
}

fn numbers(members: &[&Member]) -> String {
    let numbers: Vec<String> = members.iter().map(|member| member.rank.to_string()).collect();
    numbers.join(", ")
}

/// GPUs that several ranks use.
fn shared_gpus(members: &[Member]) -> Vec<Located> {
    let mut shared = grouped(members, |member| member.gpu.as_deref());
    shared.retain(|_, ranks| ranks.len() > 1);
    if shared.is_empty() {
        return Vec::new();
    }
    let all: Vec<&Member> = shared.values().flatten().copied().collect();
    let list: Vec<String> =
        shared.iter().map(|(gpu, ranks)| format!("ranks {} have {gpu}", numbers(ranks))).collect();
    let seen = format!("several ranks have one GPU: {}", list.join("; "));
    let finding = Finding::problem(seen).with(Advice {
        means: "NCCL ends with \"Duplicate GPU detected\", or from 2.30 on asks for \
                NCCL_MULTI_RANK_GPU_ENABLE; everything else shares the GPU's time",
        remedy: "start no more ranks on a host than it has GPUs, and let each rank see all of them \
                 or one of its own (CUDA_VISIBLE_DEVICES)",
        source: "NCCL's src/init.cc",
    });
    vec![located(finding, &all)]
}

/// What keeps the ranks of a machine, which have one boot, apart.
fn apart(members: &[Member]) -> Vec<Located> {
    let machines = grouped(members, |member| member.identity.boot_id.as_deref());
    machines.values().filter_map(|ranks| apart_on_one(ranks)).collect()
}

/// What keeps these ranks of one machine apart.
fn apart_on_one<'a>(ranks: &[&'a Member]) -> Option<Located> {
    // Ranks whose identity cannot be read are not counted.
    let hosts: BTreeSet<&str> = ranks.iter().filter_map(|member| member.nccl_host()).collect();
    let different = |of: fn(&Identity) -> &Option<String>| {
        let known: BTreeSet<&String> =
            ranks.iter().filter_map(|member| of(&member.identity).as_ref()).collect();
        known.len()
    };
    let shm = different(|identity| &identity.shm_device);
    let has_namespaces = different(|identity| &identity.pid_namespace) > 1
        || different(|identity| &identity.net_namespace) > 1;
    let (how, means) = if hosts.len() > 1 {
        let name = |member: &&'a Member| member.identity.hostname.as_deref().unwrap_or("?");
        let names: BTreeSet<&str> = ranks.iter().map(name).collect();
        let names = names.into_iter().collect::<Vec<&str>>().join(", ");
        (
            format!("(one boot) under {} names: {names}", hosts.len()),
            "NCCL takes them for different hosts: their GPUs do not use NVLink, P2P or host \
             memory, but the network, to the same machine",
        )
    } else if shm > 1 {
        (
            format!("with {shm} different /dev/shm"),
            "NCCL lets them use neither P2P nor host memory (SHM), but the network; g2g counts \
             them as different hosts",
        )
    } else if has_namespaces {
        (
            "in different PID or network namespaces".to_owned(),
            "processes hand each other GPU memory through sockets and by their numbers, neither of \
             which reaches across: P2P between them fails",
        )
    } else {
        return None;
    };
    let seen = format!("ranks {} are on one machine {how}", numbers(ranks));
    let finding = Finding::problem(seen).with(Advice {
        means,
        remedy: "put the ranks of a machine into one container, or start the containers with \
                 --ipc=host --network=host --pid=host --uts=host (in Kubernetes hostIPC, \
                 hostNetwork, hostPID); NCCL_HOSTID with one value for the machine joins names \
                 only",
        source: "NCCL's src/misc/utils.cc (getHostHash), src/init.cc (shmDev)",
    });
    Some(located(finding, ranks))
}

/// The NVLink domain of a host's GPUs that have joined one.
fn domain(facts: &Facts) -> Option<Domain> {
    let fabrics = facts.survey.gpus.iter().filter_map(|gpu| gpu.nvml.as_ref()?.fabric.as_ref());
    let joined = fabrics.filter(|fabric| fabric.cluster_uuid.is_some()).take(1);
    machine::domain(joined, facts.host.imex_channels.clone())
}

/// A rank that speaks for its host, whose GPUs are in a domain.
type Speaker<'a> = (&'a Member, &'a Domain);

/// Whether the GPUs of several hosts can share NVLink, where they are in a domain for that.
fn domains(members: &[Member]) -> Vec<Located> {
    let hosts: BTreeMap<&Option<String>, &Member> =
        members.iter().map(|member| (&member.identity.hostname, member)).collect();
    let mut parts: BTreeMap<(&str, Option<u32>), Vec<Speaker<'_>>> = BTreeMap::new();
    for (member, domain) in hosts.into_values().filter_map(|of| Some((of, of.domain.as_ref()?))) {
        let part = (domain.cluster_uuid.as_str(), domain.clique);
        parts.entry(part).or_default().push((member, domain));
    }
    let names = |hosts: &[Speaker<'_>]| {
        let name = |member: &Member| member.identity.hostname.clone().unwrap_or("?".to_owned());
        hosts.iter().map(|(member, _)| name(member)).collect::<Vec<String>>().join(", ")
    };
    let all: Vec<&Member> = members.iter().filter(|member| member.domain.is_some()).collect();
    let mut found = Vec::new();
    if parts.len() > 1 {
        let list = parts.iter().map(|((cluster, clique), hosts)| {
            let clique = clique.map_or_else(|| "?".to_owned(), |number| number.to_string());
            format!("{} in clique {clique} of {cluster}", names(hosts))
        });
        let list = list.collect::<Vec<String>>().join("; ");
        let seen = format!("the hosts are in {} parts of the NVLink fabric: {list}", parts.len());
        found.push(located(
            Finding::note(seen).with(Advice {
                means: "GPUs of different parts reach each other over the network only",
                remedy: "take hosts of one NVLink domain and one partition, if NVLink is to be used \
                         between them",
                source: "nvmlDeviceGetGpuFabricInfoV; NCCL's src/mnnvl.cc",
            }),
            &all,
        ));
    }
    for hosts in parts.values().filter(|hosts| hosts.len() > 1) {
        let channels = |(_, domain): &Speaker<'_>| domain.imex_channels.clone();
        let common = hosts.iter().map(channels).reduce(|one, other| &one & &other);
        // A host without any has a problem of its own.
        if hosts.iter().any(|host| channels(host).is_empty()) {
            continue;
        }
        let names = names(hosts);
        let finding = match common.unwrap_or_default().first() {
            Some(channel) => Finding::ok(format!(
                "{names} are in one NVLink domain and have IMEX channel {channel}"
            )),
            None => Finding::problem(format!(
                "{names} are in one NVLink domain and have no IMEX channel in common"
            ))
            .with(Advice {
                means: "memory of GPUs cannot be shared between these hosts: NCCL takes the network \
                        instead of NVLink",
                remedy: "give the job the same channel on all hosts (in Kubernetes one \
                         ComputeDomain)",
                source: "NVIDIA IMEX service guide; NCCL_MNNVL_ENABLE",
            }),
        };
        let ranks: Vec<&Member> = hosts.iter().map(|(member, _)| *member).collect();
        found.push(located(finding, &ranks));
    }
    found
}

/// Variables that ranks may have for themselves: what they see, what they log, and who they are.
const OF_A_RANK: [&str; 5] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_HOSTID",
];

/// The variables that should be the same for all ranks.
fn common_variables(facts: &Facts) -> BTreeMap<String, String> {
    let settings = facts.settings.iter().map(|setting| (&setting.name, &setting.value));
    let all = settings.chain(&facts.variables);
    let is_common = |(name, _): &(&String, &String)| !OF_A_RANK.contains(&name.as_str());
    all.filter(is_common).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Hosts of one type that are not alike.
fn hosts(members: &[Member]) -> Vec<Located> {
    let hosts: BTreeMap<&Option<String>, &Member> =
        members.iter().rev().map(|member| (&member.identity.hostname, member)).collect();
    let mut types: BTreeMap<&Option<String>, Vec<&Member>> = BTreeMap::new();
    for member in hosts.into_values() {
        types.entry(&member.product).or_default().push(member);
    }
    let mut found = Vec::new();
    for alike in types.into_values() {
        let properties: Vec<_> = alike.iter().map(|member| member.properties.clone()).collect();
        for unlike in Unlike::among(&properties) {
            let name = |place: usize| alike[place].identity.hostname.clone().unwrap_or("?".into());
            let odd: Vec<&Member> = unlike.odd().into_iter().map(|place| alike[place]).collect();
            found.push(located(unlike.finding(name), &odd));
        }
    }
    found
}

/// Variables that are not the same for all ranks.
fn variables(members: &[Member]) -> Vec<Located> {
    let names: BTreeSet<&String> =
        members.iter().flat_map(|member| member.variables.keys()).collect();
    let of = |member: &Member| {
        let text = |name: &String| member.variables.get(name).map_or("unset", String::as_str);
        let value = |name| Value { kind: Kind::Variable, text: text(name).to_owned() };
        names.iter().map(|&name| (name.clone(), value(name))).collect()
    };
    let all: Vec<Properties> = members.iter().map(of).collect();
    let finding = |unlike: Unlike| {
        let odd: Vec<&Member> = unlike.odd().into_iter().map(|place| &members[place]).collect();
        located(unlike.finding(|place| format!("rank {}", members[place].rank)), &odd)
    };
    Unlike::among(&all).into_iter().map(finding).collect()
}

/// Versions that are not the same everywhere.
fn versions(members: &[Member]) -> Vec<Located> {
    let all: Vec<&Member> = members.iter().collect();
    let kinds: BTreeSet<&String> =
        members.iter().flat_map(|member| member.versions.keys()).collect();
    let mut found = Vec::new();
    for kind in kinds {
        let by_version = grouped(members, |member| {
            Some(member.versions.get(kind).map_or("none", String::as_str))
        });
        if by_version.len() < 2 {
            continue;
        }
        let list = by_version
            .iter()
            .map(|(version, ranks)| format!("{version} on ranks {}", numbers(ranks)));
        let list = list.collect::<Vec<String>>().join("; ");
        let seen = format!("{kind} is not the same everywhere: {list}");
        let finding = Finding::note(seen).with(Advice {
            means: "ranks may take different paths, or not understand each other",
            remedy: "install one version on all hosts, in all containers",
            ..Advice::default()
        });
        found.push(located(finding, &all));
    }
    found
}
