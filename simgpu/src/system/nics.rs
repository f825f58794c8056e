//! Network interfaces: `/sys/class/infiniband`, `/sys/class/net` and their devices in `/dev`:
//! `Documentation/ABI/stable/sysfs-class-infiniband` and `testing/sysfs-class-net` of Linux.

use super::{pci::folder, tree::Tree};
use crate::{
    machine::{
        Machine, Nic,
        nics::PortState,
        pci::{Address, Function, Located},
    },
    state::World,
    timing::{
        monotonic_ns,
        wire::{Counts, LIFESPAN_MS},
    },
};

/// What the driver counts of a port, in its order: `EFA_DEFINE_PORT_STATS` in Linux'
/// `drivers/infiniband/hw/efa/efa_verbs.c`. Whatever the device counts, all of them are there.
const PORT_COUNTERS: [&str; 22] = [
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
];

/// What the driver counts of a device: `EFA_DEFINE_DEVICE_STATS` there.
const DEVICE_COUNTERS: [&str; 12] = [
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "alloc_pd_err",
    "create_qp_err",
    "create_cq_err",
    "reg_mr_err",
    "alloc_ucontext_err",
    "create_ah_err",
    "mmap_err",
];

/// The name that rdma-core's `rdma_rename` gives an interface by its address.
pub(crate) fn rdma_name((domain, bus, device): Address) -> String {
    match domain {
        0 => format!("rdmap{bus}s{device}"),
        _ => format!("rdmaP{domain}p{bus}s{device}"),
    }
}

/// The one of the counts that a counter shows; `None`: it stays at 0.
fn count(counter: &str, counts: Counts) -> Option<u64> {
    match counter {
        "tx_bytes" => Some(counts.tx_bytes),
        "rx_bytes" => Some(counts.rx_bytes),
        "rdma_read_bytes" => Some(counts.rdma_read_bytes),
        "rdma_write_bytes" => Some(counts.rdma_write_bytes),
        _ => None,
    }
}

/// What a file shows now whose text changes, without links on the way: the counters of interfaces, as
/// the kernel has read them last.
pub(crate) fn live(world: &World, path: &str) -> Option<String> {
    let (port, counter) = path.rsplit_once("/hw_counters/")?;
    let (device, _) = port.rsplit_once("/ports/")?;
    let (_, name) = device.rsplit_once('/')?;
    let own = &world.own;
    let number = own.nics.iter().position(|nic| rdma_name(nic.pci) == name)?;
    let mut plane = world.plane();
    let nic = plane.wires.nics.get_mut(own.first_nic + number)?;
    Some(format!("{}\n", count(counter, nic.show(monotonic_ns()))?))
}

/// Writes all interfaces.
pub(super) fn describe(tree: &mut Tree, machine: &Machine, devices: &[Located]) {
    for device in devices {
        match device.function {
            Function::Nic(number) => rdma(tree, &machine.nics[number], number, device),
            Function::Ena => {
                // systemd's name for what is on bus 0.
                let own = format!("{}/net/ens{}", folder(device), device.address.2);
                tree.point(format!("{own}/device"), &folder(device));
                tree.line(format!("{own}/speed"), -1);
                tree.line(format!("{own}/address"), "02:00:00:00:00:01");
                interface(tree, &own, "up", 9001, 1);
            }
            _ => {}
        }
    }
    interface(tree, "/sys/devices/virtual/net/lo", "unknown", 65_536, 772);
}

/// An interface of the kernel's own network.
fn interface(tree: &mut Tree, own: &str, state: &str, mtu: u32, kind: u32) {
    let name = own.rsplit('/').next().unwrap_or_default();
    tree.line(format!("{own}/operstate"), state);
    tree.line(format!("{own}/carrier"), 1);
    tree.line(format!("{own}/mtu"), mtu);
    tree.line(format!("{own}/type"), kind);
    for counter in ["rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors"] {
        tree.line(format!("{own}/statistics/{counter}"), 0);
    }
    tree.point(format!("/sys/class/net/{name}"), own);
}

/// An Elastic Fabric Adapter.
fn rdma(tree: &mut Tree, nic: &Nic, number: usize, device: &Located) {
    let device_folder = folder(device);
    let rdma_name = rdma_name(device.address);
    let own = format!("{device_folder}/infiniband/{rdma_name}");
    // RDMA_NODE_UNSPECIFIED in include/rdma/ib_verbs.h.
    tree.line(format!("{own}/node_type"), "7: unspecified");
    tree.line(format!("{own}/node_guid"), "0000:0000:0000:0000");
    tree.line(format!("{own}/node_desc"), &rdma_name);
    tree.line(format!("{own}/fw_ver"), "0.0.0.0");
    for counter in DEVICE_COUNTERS {
        tree.line(format!("{own}/hw_counters/{counter}"), 0);
    }
    let port = format!("{own}/ports/1");
    let (state, physical) = match nic.state {
        PortState::Down => ("1: DOWN", "3: Disabled"),
        PortState::Init => ("2: INIT", "5: LinkUp"),
        PortState::Armed => ("3: ARMED", "5: LinkUp"),
        PortState::Active => ("4: ACTIVE", "5: LinkUp"),
    };
    tree.line(format!("{port}/state"), state);
    tree.line(format!("{port}/phys_state"), physical);
    tree.line(format!("{port}/rate"), rate(nic.rate_gbps));
    // What the kernel says of what is neither InfiniBand nor Ethernet.
    tree.line(format!("{port}/link_layer"), "Unknown");
    let (_, bus, slot) = device.address;
    let gid = format!("fe80:0000:0000:0000:0000:00ff:fe00:{bus:02x}{slot:02x}");
    tree.line(format!("{port}/gids/0"), gid);
    for counter in PORT_COUNTERS {
        let path = format!("{port}/hw_counters/{counter}");
        match count(counter, Counts::default()) {
            Some(_) => tree.live(path),
            None => tree.line(path, 0),
        }
    }
    tree.line(format!("{port}/hw_counters/lifespan"), LIFESPAN_MS);
    tree.point(format!("{own}/device"), &device_folder);
    tree.point(format!("/sys/class/infiniband/{rdma_name}"), &own);

    let verbs = format!("{device_folder}/infiniband_verbs/uverbs{number}");
    tree.line(format!("{verbs}/ibdev"), &rdma_name);
    tree.point(format!("{verbs}/device"), &device_folder);
    tree.point(format!("/sys/class/infiniband_verbs/uverbs{number}"), &verbs);
    tree.text(format!("/dev/infiniband/uverbs{number}"), "");
}

/// A rate in the kernel's form, as so many lanes of InfiniBand of one speed: what the driver makes
/// of it in `efa_link_gbps_to_speed_and_width`.
fn rate(gbps: u32) -> &'static str {
    match gbps {
        1600.. => "1600 Gb/sec (8X XDR)",
        800.. => "800 Gb/sec (8X NDR)",
        400.. => "400 Gb/sec (8X HDR)",
        200.. => "200 Gb/sec (4X HDR)",
        120.. => "120 Gb/sec (12X FDR10)",
        100.. => "100 Gb/sec (4X EDR)",
        60.. => "60 Gb/sec (12X DDR)",
        50.. => "50 Gb/sec (1X HDR)",
        40.. => "40 Gb/sec (4X FDR10)",
        30.. => "30 Gb/sec (12X SDR)",
        _ => "25 Gb/sec (1X EDR)",
    }
}
