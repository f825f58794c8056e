//! What the network plugin says, and whether GPUs' memory goes to the network directly.

use std::collections::BTreeSet;

use super::{Finding, count, paths::instance};
use crate::nccl_log::{Link, Log, Transport, WarningKind, number_ranges};

pub(super) fn findings(log: &Log) -> Vec<Finding> {
    let found = [
        plugin(log),
        forced_simple(log),
        gpudirect(log),
        gpudirect_elsewhere(log),
        lacks_gpudirect(log),
        sockets(log),
        proxy(log),
    ];
    found.into_iter().flatten().collect()
}

fn plugin(log: &Log) -> Option<Finding> {
    let plugin = log.plugin.as_ref()?;
    let provider = plugin.provider.as_ref()?;
    let mut at = vec![provider.at];
    let mut says = format!("libfabric's provider is {}", provider.value);
    if let Some(protocol) = &plugin.protocol {
        at.push(protocol.at);
        says = format!("{}, with aws-ofi-nccl's {} protocol", says, protocol.value);
        says += match plugin.protocol_set_by.as_deref() {
            Some("user") => " (set by the user)",
            Some("platform") => " (its default for the platform)",
            _ => "",
        };
    }
    if let Some(nics) = plugin.nics {
        says = format!("{says}, over {}", count(nics, "interface"));
    }
    if plugin.protocol.as_ref().is_some_and(|told| told.value == "SENDRECV") {
        says +=
            ": NCCL's messages travel as libfabric's sends and receives, each over one interface";
        let known = instance(log).and_then(|(name, known)| Some((name, known.efa_rdma_write?)));
        if let Some((name, false)) = known {
            says = format!("{says}. The RDMA protocol writes, which EFA of {name} cannot");
        }
    }
    let is_efa = provider.value.starts_with("efa");
    let efa_is_there = instance(log).is_some_and(|(_, instance)| instance.efa_interfaces.is_some());
    if !is_efa && efa_is_there {
        says += ", and not efa, though the instance type can have EFA";
        let finding = Finding::problem("plugin", says, at);
        return Some(finding.remedy(
            "unset FI_PROVIDER, give the container the EFA devices (/dev/infiniband), and check \
             `fi_info -p efa`",
        ));
    }
    Some(Finding::note("plugin", says, at))
}

/// aws/aws-ofi-nccl, src/nccl_ofi_net.cpp (`nccl_net_ofi_configure_nccl_proto_simple`).
fn forced_simple(log: &Log) -> Option<Finding> {
    let told = log.plugin.as_ref()?.forces_simple.as_ref()?;
    let says = format!(
        "aws-ofi-nccl forces NCCL's simple protocol (NCCL_PROTO=simple), since {} is not supported: \
         NCCL's LL and LL128 need the bytes of a message to arrive in order, which this interface \
         does not promise. Small messages take longer for it; large ones use simple anyhow",
        told.value
    );
    let mut finding = Finding::note("simple-protocol", says, vec![told.at]);
    if let Some(within) = log.communicators.iter().find(|communicator| {
        communicator.nodes.zip(communicator.ranks).is_some_and(|(nodes, ranks)| nodes < ranks)
    }) {
        finding.at.push(within.at);
        finding.says += "; it also holds within a node, over NVLink";
    }
    Some(finding)
}

fn gpudirect(log: &Log) -> Option<Finding> {
    let network = |link: &&Link| matches!(link.transport, Transport::Net { .. });
    let bounced = |link: &&Link| matches!(link.transport, Transport::Net { gpudirect: false, .. });
    let first = log.links().find(network)?;
    let Some(bounced) = log.links().find(bounced) else {
        let how = match log.plugin.as_ref().and_then(|plugin| plugin.dma_buf.as_ref()) {
            Some(told) if told.value == "false" => {
                " (by the drivers' peer memory, since the plugin registers no dma-buf)"
            }
            _ => "",
        };
        let says = format!(
            "the network interface reads and writes the GPU's memory itself (GPUDirect RDMA) on \
             all connections that the log shows{how}"
        );
        return Some(Finding::note("gpudirect", says, vec![first.first]));
    };
    let says = format!(
        "data from rank {} to rank {} goes through host memory on its way to the network ({}, \
         without GDRDMA)",
        bounced.source,
        bounced.target.unwrap_or_default(),
        bounced.transport
    );
    let known = instance(log).and_then(|(name, known)| Some((name, known.gpudirect_rdma?)));
    if let Some((name, false)) = known {
        let says = format!("{says}: {name} has no GPUDirect RDMA, so nothing is wrong");
        return Some(Finding::note("gpudirect", says, vec![bounced.first]));
    }
    let finding = Finding::problem("gpudirect", says, vec![bounced.first]);
    Some(
        finding
            .because(
                "GPUDirect RDMA needs a driver module (nvidia-peermem, efa_nv_peermem) or dma-buf \
                 (Linux 5.12 and CUDA 11.7 or newer, and a plugin that registers it), and a network \
                 interface that is near enough to the GPU (NCCL_NET_GDR_LEVEL)",
            )
            .remedy(
                "look for nvidia_peermem or efa_nv_peermem in lsmod, for \"DMA-BUF is available\" in \
                 the log, and at the distance of GPU and interface in `nvidia-smi topo -m`",
            ),
    )
}

/// A rank whose log is not here has no GPUDirect RDMA: the line that rings are connected joins what
/// all ranks say (`ncclTransportRingConnect`, NVIDIA/nccl v2.24.3-1 to v2.30.7-1,
/// src/transport/generic.cc).
fn gpudirect_elsewhere(log: &Log) -> Option<Finding> {
    let (rings, missing) = log.communicators.iter().find_map(|communicator| {
        let rings = communicator.rings_use.filter(|rings| !rings.gpudirect)?;
        let mut networks = communicator.links.iter().filter_map(|link| match link.transport {
            Transport::Net { gpudirect, .. } => Some(gpudirect),
            _ => None,
        });
        let is_direct_here = networks.next()? && networks.all(|gpudirect| gpudirect);
        let missing = communicator.missing();
        (is_direct_here && !missing.is_empty()).then_some((rings, missing))
    })?;
    let says = format!(
        "not all ranks have GPUDirect RDMA: NCCL says \"use ring … GDR 0\", which joins the answers \
         of all ranks, and those in the log have it; so at least one of ranks {} sends or receives \
         its ring through host memory, and the ring is as slow as that",
        number_ranges(&missing)
    );
    let finding = Finding::problem("gpudirect-elsewhere", says, vec![rings.at]);
    Some(
        finding
            .because(
                "NCCL uses GPUDirect RDMA only if GPU and interface are near each other \
                 (NCCL_NET_GDR_LEVEL); a pod may have been given an interface behind another PCIe \
                 switch than its GPU",
            )
            .remedy(
                "look in the logs of those ranks for channels without GDRDMA; a pod with all GPUs \
                 and all interfaces of the machine has no such pair",
            ),
    )
}

fn lacks_gpudirect(log: &Log) -> Option<Finding> {
    let told = log.plugin.as_ref()?.lacks_gpudirect.as_ref()?;
    let says = format!(
        "aws-ofi-nccl gives up: GPUDirect RDMA does not work, though {} has it",
        told.value
    );
    let finding = Finding::problem("gpudirect-missing", says, vec![told.at]);
    Some(finding.remedy(
        "install the EFA driver with its peer memory or a kernel with dma-buf, and give the \
         container the devices; otherwise NCCL goes on over TCP (NET/Socket)",
    ))
}

/// TCP where there may be something better.
fn sockets(log: &Log) -> Option<Finding> {
    let of_sockets = |link: &&Link| match &link.transport {
        Transport::Net { plugin, .. } => plugin == "Socket",
        _ => false,
    };
    let link = log.links().find(of_sockets);
    let network = log.networks.iter().find(|told| told.value == "Socket");
    let is_needed =
        log.communicators.iter().any(|known| known.nodes.is_some_and(|nodes| nodes > 1));
    let at = link.map(|link| link.first).or(network.filter(|_| is_needed).map(|told| told.at))?;
    let mut places = vec![at];
    let failed = log.warnings.iter().find(|warning| warning.kind == WarningKind::Network);
    places.extend(failed.map(|warning| warning.at));
    let because = failed.map(|warning| format!("the log says: \"{}\"", warning.text));
    let says = "the network is TCP (NET/Socket): no RDMA, every byte passes the kernel".to_owned();
    let finding = Finding::problem("sockets", says, places);
    Some(Finding { because, ..finding }.remedy(
        "on EC2, install aws-ofi-nccl and put the folder of its libnccl-net.so on LD_LIBRARY_PATH; \
         then the log says NET/OFI and NET/Libfabric. Instance types without EFA have nothing better",
    ))
}

/// Another rank sends: PXN.
fn proxy(log: &Log) -> Option<Finding> {
    let of_link = |link: &Link| match link.transport {
        Transport::Net { proxy, .. } => proxy,
        _ => None,
    };
    let link = log.links().find(|link| of_link(link).is_some())?;
    let proxies: BTreeSet<u32> = log.links().filter_map(of_link).collect();
    let list: Vec<u32> = proxies.into_iter().collect();
    let says = format!(
        "some data takes NVLink to another GPU of the node and leaves by the interface next to that \
         one (PXN, through ranks {}), which saves the way over the CPU; NCCL_PXN_DISABLE=1 stops it",
        number_ranges(&list)
    );
    Some(Finding::note("pxn", says, vec![link.first]))
}
