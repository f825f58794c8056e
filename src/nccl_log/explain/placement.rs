//! What NCCL takes for nodes, and whether ranks of one machine are kept apart.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, count};
use crate::{
    nccl_log::{Communicator, Link, Log, Place, Transport, summary::ranks_named},
    plan::catalogue::Instance,
};

/// The first GPU on PCIe of instances of which AWS publishes a topology: aws/aws-ofi-nccl,
/// topology/p4d-24xl-topo.xml and p4de-24xl-topo.xml.
const FIRST_GPU: [(&str, &str); 2] =
    [("p4d.24xlarge", "0000:10:1c.0"), ("p4de.24xlarge", "0000:10:1c.0")];

/// NVIDIA/nccl, src/misc/utils.cc (`getHostHashOnce`), src/graph/paths.cc (`ncclTopoCheckP2p`),
/// src/transport/shm.cc (`shmCanConnect`).
const WHY_APART: &str = "NCCL puts two ranks on one node only if a hash of host name and \
    /proc/sys/kernel/random/boot_id is the same for both, and then lets them use each other's GPU \
    memory or shared memory only if /dev/shm is the same file system for both. Pods have host names \
    and a /dev/shm of their own, so that only the network is left";

/// Kubernetes' documentation of hostNetwork and hostIPC; src/os/linux_ipcsocket.cc of NVIDIA/nccl.
const HOW_TOGETHER: &str = "give one pod all the GPUs and start the ranks in it, which needs nothing \
    else. Or keep the pods and give each both hostNetwork: true and hostIPC: true. The first brings \
    the machine's host name and one network namespace, in which NCCL hands over GPU memory through \
    abstract UNIX sockets; the second the machine's /dev/shm. Neither is enough alone, and NCCL does \
    not need hostPID. NCCL_HOSTID, one value in all pods of a machine and another on each machine, \
    stands in for the host name only: with a /dev/shm for each pod the ranks still have nothing but \
    the network, and with one /dev/shm but a network namespace for each NCCL chooses P2P and cannot \
    hand the memory over. NCCL asks for no more, but CUDA must also map memory of a GPU that the pod \
    does not see: the next log shows whether it does";

/// Sizes of communicators with a finding of their own.
const SIZES_MAX: usize = 4;

/// How the ranks lie, of communicators that look alike.
pub(super) fn findings(log: &Log) -> Vec<Finding> {
    let mut seen: BTreeSet<(Option<u32>, Option<u32>)> = BTreeSet::new();
    let alone = log.communicators.iter().filter(|communicator| {
        let apart = communicator.ranks.is_some_and(|ranks| ranks > 1)
            && communicator.nodes == communicator.ranks;
        apart && seen.insert((communicator.ranks, communicator.nodes))
    });
    let mut findings: Vec<Finding> =
        alone.filter_map(|communicator| apart(log, communicator)).take(SIZES_MAX).collect();
    findings.extend(uneven(log));
    findings
}

/// Ranks that are each a node of their own, though they may be on one machine.
fn apart(log: &Log, communicator: &Communicator) -> Option<Finding> {
    let ranks = communicator.ranks?;
    let layout = communicator.layout_at.unwrap_or(communicator.at);
    let nodes = format!(
        "NCCL takes {} for {} with 1 rank each (localRanks 1)",
        count(ranks, "rank"),
        count(ranks, "node")
    );
    let platform = log.plugin.as_ref().and_then(|plugin| plugin.platform.as_ref());
    let known = platform.and_then(|told| Some((told, Instance::named(&told.value)?)));
    if has_same_address(communicator) {
        return None;
    }
    let Some((platform, instance)) = known else {
        return if_pods(communicator, &nodes, layout);
    };
    if ranks > instance.gpu_count.get() {
        return None;
    }
    let mut places = vec![layout, platform.at];
    let Some(signs) = signs(log, communicator, instance, &mut places) else {
        return if_pods(communicator, &nodes, layout);
    };
    let gpus = instance.gpu_name.as_deref().unwrap_or("GPU");
    let link = if instance.has_nvlink() { "NVLink" } else { "PCIe and shared memory" };
    let caution = match &communicator.missing()[..] {
        [] => String::new(),
        missing => format!(
            ". The log of {} is not here: that they are on the same machine as the others is likely, \
             not proven; if the GPU of another rank has the same busId, it is on another machine",
            ranks_named(missing)
        ),
    };
    let says = format!(
        "{nodes}, but they probably share one {} ({} {gpus}): {}. So {link} between its GPUs went \
         unused, and all data went out through the network interface and back{caution}",
        platform.value,
        instance.gpu_count.get(),
        signs.join("; ")
    );
    let finding = Finding::problem("one-machine-as-several-nodes", says, places);
    Some(finding.because(WHY_APART).remedy(HOW_TOGETHER))
}

/// Ranks of which only the names of their hosts suggest pods.
fn if_pods(communicator: &Communicator, nodes: &str, layout: Place) -> Option<Finding> {
    let hosts = hosts(communicator);
    let says = format!(
        "{nodes}; the hosts call themselves {}. If they are pods or containers of one machine, \
         NVLink, PCIe and shared memory between their GPUs go unused; if each has a machine of its \
         own, nothing is wrong",
        hosts.join(", ")
    );
    is_pod_like(&hosts).then(|| {
        Finding::note("ranks-apart", says, vec![layout]).because(WHY_APART).remedy(HOW_TOGETHER)
    })
}

/// Signs that each rank sees only a part of one machine; `None` without a conclusive one.
fn signs(
    log: &Log,
    communicator: &Communicator,
    instance: &Instance,
    places: &mut Vec<Place>,
) -> Option<Vec<String>> {
    let mut signs = Vec::new();
    let mut is_part = false;
    let plugin = log.plugin.as_ref();
    let hosts = hosts(communicator);
    if is_pod_like(&hosts) {
        signs.push(format!("the host calls itself {}, as a pod does", hosts[0]));
    }
    let nics = plugin.and_then(|plugin| plugin.nics.zip(plugin.provider.as_ref()));
    if let Some((nics, provider)) = nics
        && let Some(all) = instance.efa_interfaces
        && nics < all
        && provider.value.starts_with("efa")
    {
        is_part = true;
        places.push(provider.at);
        signs.push(format!("{nics} of its {} is there", count(all, "EFA interface")));
    }
    let first = plugin.and_then(|plugin| plugin.platform.as_ref()).and_then(|platform| {
        FIRST_GPU.iter().find(|(name, _)| *name == platform.value).map(|(_, address)| *address)
    });
    let hidden = communicator.members.iter().find(|(_, member)| {
        let bus_id = member.bus_id.as_deref();
        member.nvml_device == Some(0) && first.is_some() && bus_id.is_some() && bus_id != first
    });
    if let Some((rank, member)) = hidden {
        is_part = true;
        places.push(member.at);
        let (bus_id, first) = (member.bus_id.as_deref().unwrap_or("-"), first.unwrap_or("-"));
        signs.push(format!(
            "rank {rank}'s GPU is the driver's number 0 at {bus_id}, while the machine's first GPU \
             is at {first} and hidden"
        ));
    }
    let gpus = gpu_numbers(communicator);
    if gpus.len() > 1 && gpus.values().all(|&(gpu, _)| gpu == 0) {
        places.extend(gpus.values().next().map(|&(_, at)| at));
        signs.push(format!(
            "each of the {} has a GPU that the driver numbers 0, the only one that it sees",
            count(gpus.len(), "rank")
        ));
    }
    let addresses: BTreeSet<&str> =
        communicator.members.values().filter_map(|member| member.bus_id.as_deref()).collect();
    if addresses.len() > 1 {
        let list: Vec<&str> = addresses.into_iter().collect();
        signs.push(format!("no two of their GPUs have the same address ({})", list.join(", ")));
    }
    is_part.then_some(signs)
}

/// The driver's number of each rank's GPU, as the lines of channels tell it.
fn gpu_numbers(communicator: &Communicator) -> BTreeMap<u32, (u32, Place)> {
    let mut numbers = BTreeMap::new();
    for link in &communicator.links {
        if let (Some((source, target)), Some(to)) = (link.gpus, link.target) {
            numbers.entry(link.source).or_insert((source, link.first));
            numbers.entry(to).or_insert((target, link.first));
        }
    }
    numbers
}

/// Whether GPUs of two hosts have the same address: they are on two machines.
fn has_same_address(communicator: &Communicator) -> bool {
    let mut hosts: BTreeMap<&str, &str> = BTreeMap::new();
    communicator.members.values().any(|member| {
        let host = member.process.host.as_str();
        let bus_id = member.bus_id.as_deref();
        bus_id.is_some_and(|bus_id| *hosts.entry(bus_id).or_insert(host) != host)
    })
}

fn hosts(communicator: &Communicator) -> Vec<&str> {
    let members = communicator.members.values();
    let hosts: BTreeSet<&str> = members.map(|member| member.process.host.as_str()).collect();
    hosts.into_iter().collect()
}

/// EC2 names an instance `ip-10-0-0-1` or by its id; the name of a pod ends with a number or random
/// letters.
fn is_pod_like(hosts: &[&str]) -> bool {
    let of_instance = |host: &str| host.starts_with("ip-") || host.starts_with("i-");
    !hosts.is_empty() && hosts.iter().all(|host| host.contains('-') && !of_instance(host))
}

/// Ranks of one host that NCCL takes for several nodes, or whose data takes the network.
fn uneven(log: &Log) -> Option<Finding> {
    let (link, target, host) = log.communicators.iter().find_map(|communicator| {
        let host = |rank: u32| Some(&communicator.members.get(&rank)?.process.host);
        let network = |link: &&Link| matches!(link.transport, Transport::Net { .. });
        communicator.links.iter().filter(network).find_map(|link| {
            let (source, target) = (host(link.source)?, link.target?);
            (source == host(target)?).then_some((link, target, source))
        })
    })?;
    let says = format!(
        "rank {} and rank {target} are both on {host}, but their data goes over the network ({})",
        link.source, link.transport
    );
    let finding = Finding::problem("network-within-a-host", says, vec![link.first]);
    Some(
        finding
            .because(
                "either /dev/shm is not the same file system for both (containers), or peer access \
                 and shared memory are both switched off (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, \
                 NCCL_SHM_DISABLE), or NCCL counts on more bandwidth from a network interface that \
                 is near to both GPUs than from the way between them",
            )
            .remedy(
                "compare `stat -c %d /dev/shm` in both, unset those variables, and try \
                 NCCL_NET_DISABLE_INTRA=1, which takes the network out of the choice",
            ),
    )
}
