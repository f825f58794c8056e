//! What the machine has counted: bytes over the links of GPUs and over network interfaces.
//!
//! Two readings, before and after, tell what went where in between.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    health::{Health, Xid},
    nics::RDMA_DEVICES,
    survey::nvlinks,
    system::System,
};
use crate::{
    ffi::{
        host,
        nvml::{self, Counters, Nvml, Watch},
    },
    plan::{Gpu, topology::Topology},
    units::Bytes,
};

pub use crate::ffi::nvml::{LinkBytes, PcieBytes};

/// Where the kernel counts what its network interfaces carry: those of the network namespace that
/// this process is in, which `/sys/class/net` may not be of.
const NETWORK_INTERFACES: &str = "/proc/self/net/dev";

/// InfiniBand's counters of data are in words of four bytes (Linux,
/// `Documentation/ABI/stable/sysfs-class-infiniband`).
const INFINIBAND_WORD: u64 = 4;

/// What all counters said at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Of each GPU that was asked, or why it tells nothing.
    pub gpus: BTreeMap<Gpu, Result<OfGpu, String>>,
    /// Of each network interface, by its name.
    pub interfaces: BTreeMap<String, Interface>,
    /// What `/dev/shm` of this process holds, whoever's it is; `None`: it does not tell.
    pub shared_memory: Option<Bytes>,
}

/// What one GPU says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfGpu {
    /// What each of its NVLinks has carried, or why that is not told.
    pub nvlinks: Result<Vec<LinkBytes>, String>,
    /// What its PCI Express link has carried, or why that is not told.
    pub pcie: Result<PcieBytes, String>,
    /// How it is doing.
    pub health: Health,
}

/// What a network interface has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// What it is.
    pub kind: InterfaceKind,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
}

/// What a network interface is; as text the name of a path that goes over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum InterfaceKind {
    /// The kernel's way back to the same host.
    Loopback,
    /// An interface of the kernel's network, of whatever kind.
    #[strum(serialize = "tcp")]
    Ethernet,
    /// An Elastic Fabric Adapter.
    Efa,
    /// An InfiniBand port.
    InfiniBand,
    /// An RDMA device over Ethernet.
    Roce,
}

impl Interface {
    /// What two interfaces have carried together, with the kind of the first.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            ..self
        }
    }

    /// The bytes of the direction that carried less.
    pub fn least(self) -> u64 {
        self.sent.min(self.received)
    }

    /// The bytes of the direction that carried more.
    pub fn most(self) -> u64 {
        self.sent.max(self.received)
    }
}

/// Which GPUs NVLinks join, by NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinked {
    /// Those that have NVLinks, up or not.
    pub gpus: Vec<Gpu>,
    /// Pairs, the lower number first, that are joined by some that are up.
    pub pairs: Vec<(Gpu, Gpu)>,
    /// Those that NVLink-C2C joins with their CPU.
    pub c2c: Vec<Gpu>,
}

/// Reads the counters of this host.
#[derive(Debug)]
pub struct Reader {
    nvml: Result<&'static Nvml, String>,
    /// PCI addresses of the GPUs.
    addresses: BTreeMap<Gpu, String>,
    nvlinked: NvLinked,
    /// Waits for errors.
    watch: Option<Watch>,
}

impl Reader {
    /// Of the GPUs of this `topology`. Errors of GPUs are told from now on.
    pub fn new(topology: &Topology) -> Self {
        let nvml =
            if topology.gpus.is_empty() { Err("there is no GPU".to_owned()) } else { Nvml::load() };
        let addresses: BTreeMap<Gpu, String> =
            topology.gpus.iter().map(|node| (node.gpu, node.pci_bus_id.clone())).collect();
        let read = |nvml: &&'static Nvml| {
            let gpu = |(gpu, address): (&Gpu, &String)| Some((*gpu, nvml.gpu(address)?));
            let told: Vec<(Gpu, nvml::Gpu)> = addresses.iter().filter_map(gpu).collect();
            let all: Vec<String> = addresses.values().cloned().collect();
            (nvlinked(&told), nvml.watch(&all))
        };
        let (nvlinked, watch) = nvml.as_ref().ok().map(read).unzip();
        Self { nvml, addresses, nvlinked: nvlinked.unwrap_or_default(), watch }
    }

    /// The GPUs that it can read.
    pub fn gpus(&self) -> Vec<Gpu> {
        self.addresses.keys().copied().collect()
    }

    /// Which of these GPUs NVLinks join.
    pub fn nvlinked(&self, gpus: &[Gpu]) -> NvLinked {
        let mut known = self.nvlinked.clone();
        known.gpus.retain(|gpu| gpus.contains(gpu));
        known.pairs.retain(|(a, b)| gpus.contains(a) && gpus.contains(b));
        known.c2c.retain(|gpu| gpus.contains(gpu));
        known
    }

    /// What the counters of these GPUs say now, and those of the network where it is asked for.
    pub fn read(&self, gpus: &[Gpu], with_network: bool) -> Reading {
        let read = |gpu: &Gpu| (*gpu, self.gpu(*gpu));
        Reading {
            gpus: gpus.iter().map(read).collect(),
            interfaces: if with_network { interfaces(System::here()) } else { BTreeMap::new() },
            shared_memory: host::used_space(c"/dev/shm").ok().flatten(),
        }
    }

    fn gpu(&self, gpu: Gpu) -> Result<OfGpu, String> {
        let nvml = self.nvml.clone()?;
        let address = self.addresses.get(&gpu).ok_or("it is not on this host")?;
        let Counters { nvlinks, pcie, errors } = nvml.counters(address)?;
        let condition = nvml.condition(address).ok_or("it does not answer")?;
        Ok(OfGpu { nvlinks, pcie, health: Health { condition, errors } })
    }

    /// Errors that the driver has told of since this was asked last; `None`: it does not tell.
    pub fn xids(&self) -> Option<Vec<Xid>> {
        let told = self.watch.as_ref()?.take()?;
        let xid = |(address, number): (String, u64)| {
            let of = self.addresses.iter().find(|(_, own)| **own == address)?;
            Some(Xid { gpu: *of.0, number })
        };
        Some(told.into_iter().filter_map(xid).collect())
    }
}

/// Which of these GPUs NVLinks join.
fn nvlinked(gpus: &[(Gpu, nvml::Gpu)]) -> NvLinked {
    let mut pairs = Vec::new();
    for (place, (gpu, here)) in gpus.iter().enumerate() {
        let others = gpus[place + 1..].iter().filter(|(_, there)| nvlinks(here, there) > 0);
        pairs.extend(others.map(|(other, _)| (*gpu, *other)));
    }
    let with = |has: fn(&nvml::Gpu) -> bool| {
        gpus.iter().filter(|(_, of)| has(of)).map(|(gpu, _)| *gpu).collect()
    };
    NvLinked {
        gpus: with(|of| !of.nvlinks.is_empty()),
        pairs,
        c2c: with(|of| of.c2c.is_some_and(|c2c| c2c.active > 0)),
    }
}

impl NvLinked {
    /// Whether NVLinks join these two.
    pub fn joins(&self, a: Gpu, b: Gpu) -> bool {
        self.pairs.contains(&(a.min(b), a.max(b)))
    }
}

/// What the interfaces of the kernel's network and the RDMA devices have carried.
fn interfaces(system: &System) -> BTreeMap<String, Interface> {
    let text = system.text(NETWORK_INTERFACES).unwrap_or_default();
    let of_network = text.lines().filter_map(network_interface).collect::<Vec<_>>();
    let names = system.names(RDMA_DEVICES).unwrap_or_default().into_iter();
    let of_rdma = names.filter_map(|name| {
        let ports = Path::new(RDMA_DEVICES).join(&name).join("ports");
        let ports =
            system.names(&ports).unwrap_or_default().into_iter().map(|port| ports.join(port));
        let all = ports.filter_map(|port| rdma_port(system, &port));
        Some((name, all.reduce(Interface::plus)?))
    });
    of_network.into_iter().chain(of_rdma).collect()
}

/// A line of the kernel's table: a name, eight numbers of what came in, as many of what went out,
/// bytes first (Linux, `net/core/net-procfs.c`).
fn network_interface(line: &str) -> Option<(String, Interface)> {
    const SENT: usize = 8;
    let (name, numbers) = line.split_once(':')?;
    let numbers: Vec<u64> =
        numbers.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let (received, sent) = (*numbers.first()?, *numbers.get(SENT)?);
    let kind = match name.trim() {
        "lo" => InterfaceKind::Loopback,
        _ => InterfaceKind::Ethernet,
    };
    Some((name.trim().to_owned(), Interface { kind, sent, received }))
}

/// A port of an RDMA device, by InfiniBand's rules, or by its driver's own counters of bytes: EFA's
/// (Linux, `drivers/infiniband/hw/efa/efa_verbs.c`), whose link has no layer of a name, and those
/// of some devices over Ethernet.
fn rdma_port(system: &System, port: &Path) -> Option<Interface> {
    let bytes = |words: u64| words.saturating_mul(INFINIBAND_WORD);
    let by_rules = || both(system, &port.join("counters"), ["port_xmit_data", "port_rcv_data"]);
    let by_rules = || by_rules().map(|(sent, received)| (bytes(sent), bytes(received)));
    let by_driver = || both(system, &port.join("hw_counters"), ["tx_bytes", "rx_bytes"]);
    let told = |kind, (sent, received)| Interface { kind, sent, received };
    match system.text(port.join("link_layer")).as_deref() {
        Ok("Ethernet") => Some(told(InterfaceKind::Roce, by_rules().or_else(by_driver)?)),
        Ok("InfiniBand") => Some(told(InterfaceKind::InfiniBand, by_rules().or_else(by_driver)?)),
        _ => by_driver()
            .map(|bytes| told(InterfaceKind::Efa, bytes))
            .or_else(|| Some(told(InterfaceKind::InfiniBand, by_rules()?))),
    }
}

/// Two counters in a folder.
fn both(system: &System, folder: &Path, files: [&str; 2]) -> Option<(u64, u64)> {
    let [sent, received] = files.map(|file| system.value(folder.join(file)).ok());
    Some((sent?, received?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_each_kind_are_told_in_bytes() {
        let files = r#"{
            "/proc/self/net/dev": {"text": "Inter-|   Receive   |  Transmit\n face |bytes    packets\n    lo: 11 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n  ens5:30 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n   odd: many 1 0 0 0 0 0 0 20 1\n short: 1 2 3\n"},
            "/sys/class/infiniband/rdmap0s6/ports/1/hw_counters/tx_bytes": {"text": "5\n"},
            "/sys/class/infiniband/rdmap0s6/ports/1/hw_counters/rx_bytes": {"text": "6\n"},
            "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": {"text": "7\n"},
            "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": {"text": "8\n"},
            "/sys/class/infiniband/mlx5_0/ports/1/link_layer": {"text": "InfiniBand\n"},
            "/sys/class/infiniband/mlx5_0/ports/2/counters/port_xmit_data": {"text": "1\n"},
            "/sys/class/infiniband/mlx5_0/ports/2/counters/port_rcv_data": {"text": "1\n"},
            "/sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data": {"text": "1\n"},
            "/sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data": {"text": "2\n"},
            "/sys/class/infiniband/mlx5_1/ports/1/link_layer": {"text": "Ethernet\n"},
            "/sys/class/infiniband/bnxt_re0/ports/1/hw_counters/tx_bytes": {"text": "3\n"},
            "/sys/class/infiniband/bnxt_re0/ports/1/hw_counters/rx_bytes": {"text": "2\n"},
            "/sys/class/infiniband/bnxt_re0/ports/1/link_layer": {"text": "Ethernet\n"},
            "/sys/class/infiniband/mute/ports/1/state": {"text": "4: ACTIVE\n"}
        }"#;
        let found = interfaces(&System::described(files).unwrap());
        let told: Vec<(&str, &str, u64, u64)> = found
            .iter()
            .map(|(name, of)| (name.as_str(), of.kind.into(), of.sent, of.received))
            .collect();
        let expected = [
            ("bnxt_re0", "roce", 3, 2),
            ("ens5", "tcp", 20, 30),
            ("lo", "loopback", 12, 11),
            ("mlx5_0", "infiniband", 32, 36),
            ("mlx5_1", "roce", 4, 8),
            ("rdmap0s6", "efa", 5, 6),
        ];
        assert_eq!(told, expected);
        assert!(interfaces(&System::described("{}").unwrap()).is_empty());
    }
}
