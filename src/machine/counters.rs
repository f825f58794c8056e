//! Counters of the machine: bytes over the links of GPUs and over network interfaces.

use std::{collections::BTreeMap, path::Path, time::Duration};

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

/// The kernel's counters of network interfaces in this process's network namespace.
/// `/sys/class/net` may belong to another one.
const NETWORK_INTERFACES: &str = "/proc/self/net/dev";

/// InfiniBand's counters of data are in words of four bytes (Linux,
/// `Documentation/ABI/stable/sysfs-class-infiniband`).
const INFINIBAND_WORD: u64 = 4;

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The counters of each GPU, or why they cannot be read.
    pub gpus: BTreeMap<Gpu, Result<OfGpu, String>>,
    /// The counters of each network interface, by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// The bytes in `/dev/shm`, of all processes; `None`: not known.
    pub shared_memory: Option<Bytes>,
}

/// The counters of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfGpu {
    /// The bytes of each of its NVLinks, or why they are not known.
    pub nvlinks: Result<Vec<LinkBytes>, String>,
    /// The bytes of its PCI Express link, or why they are not known.
    pub pcie: Result<PcieBytes, String>,
    /// Its health.
    pub health: Health,
}

/// The counters of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its kind.
    pub kind: InterfaceKind,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
}

/// The kind of a network interface; as text, the name of a path over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum InterfaceKind {
    /// The kernel's loopback interface.
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
    /// The sum of two interfaces, with the kind of the first.
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

/// The GPUs that NVLinks join, by NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinked {
    /// The GPUs with NVLinks, up or not.
    pub gpus: Vec<Gpu>,
    /// The pairs that NVLinks which are up join, the lower number first.
    pub pairs: Vec<(Gpu, Gpu)>,
    /// The GPUs that NVLink-C2C joins with their CPU.
    pub c2c: Vec<Gpu>,
}

/// Reads the counters of this host.
#[derive(Debug)]
pub struct Reader {
    nvml: Result<&'static Nvml, String>,
    /// PCI addresses of the GPUs.
    addresses: BTreeMap<Gpu, String>,
    /// The GPUs that NVLinks join.
    pub nvlinked: NvLinked,
    /// Whether the kernel may show counters of the network as they were up to
    /// [`COUNTERS_CACHED`] ago.
    pub is_late: bool,
    /// Collects errors.
    watch: Option<Watch>,
}

/// For how long, and some more, the kernel shows again what it has read from an RDMA device: 10 ms
/// (Linux, `drivers/infiniband/core/sysfs.c`, `update_hw_stats`).
pub const COUNTERS_CACHED: Duration = Duration::from_millis(20);

impl Reader {
    /// A reader for the GPUs of `topology`. Errors of GPUs are collected from now on.
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
        let devices = System::here().names(RDMA_DEVICES).unwrap_or_default();
        let is_late = !devices.is_empty();
        Self { nvml, addresses, nvlinked: nvlinked.unwrap_or_default(), is_late, watch }
    }

    /// The GPUs that it can read.
    pub fn gpus(&self) -> Vec<Gpu> {
        self.addresses.keys().copied().collect()
    }

    /// The counters of these GPUs now, and those of the network if `with_network`.
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

    /// Errors that the driver has reported since the last call; `None`: it does not report them.
    pub fn xids(&self) -> Option<Vec<Xid>> {
        let told = self.watch.as_ref()?.take()?;
        let xid = |(address, number): (String, u64)| {
            let of = self.addresses.iter().find(|(_, own)| **own == address)?;
            Some(Xid { gpu: *of.0, number })
        };
        Some(told.into_iter().filter_map(xid).collect())
    }
}

/// The GPUs among these that NVLinks join.
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

/// The counters of the kernel's network interfaces and of the RDMA devices.
fn interfaces(system: &System) -> BTreeMap<String, Interface> {
    let text = system.text(NETWORK_INTERFACES).unwrap_or_default();
    let of_network = text.lines().filter_map(network_interface);
    let names = system.names(RDMA_DEVICES).unwrap_or_default().into_iter();
    let of_rdma = names.filter_map(|name| {
        let ports = Path::new(RDMA_DEVICES).join(&name).join("ports");
        let ports =
            system.names(&ports).unwrap_or_default().into_iter().map(|port| ports.join(port));
        let all = ports.filter_map(|port| rdma_port(system, &port));
        Some((name, all.reduce(Interface::plus)?))
    });
    of_network.chain(of_rdma).collect()
}

/// A line of the kernel's table: a name, eight numbers for what was received and eight for what was
/// sent, bytes first (Linux, `net/core/net-procfs.c`).
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

/// A port of an RDMA device, by InfiniBand's counters or by those of its driver. EFA, whose link
/// layer has no name (Linux, `drivers/infiniband/hw/efa/efa_verbs.c`), and some devices over
/// Ethernet only have the latter.
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
