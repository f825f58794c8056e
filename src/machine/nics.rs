//! The network interfaces that the kernel shows, for RDMA and for IP, and what they hang on.
//!
//! The files are those of the kernel's `Documentation/ABI/stable/sysfs-class-infiniband` and
//! `Documentation/ABI/testing/sysfs-class-net`. What libfabric offers is another question
//! ([`super::nics`]).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    pci::{self, optional},
    system::{System, Unread},
};
use crate::units;

const RDMA: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";

/// Amazon, as a vendor of PCI devices.
const AMAZON: u32 = 0x1d0f;

/// The number of Ethernet among the kinds of interfaces (`ARPHRD_ETHER` of if_arp.h).
const ETHERNET: u32 = 1;

/// A network interface that is a device; loopback and what software makes are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Its name by the kernel: `rdmap16s27`, `mlx5_0`, `ens5`.
    pub name: String,
    /// What it speaks.
    pub kind: NicKind,
    /// The interfaces for IP of the same device.
    pub interfaces: Vec<String>,
    /// Where it is; `None` where it is no PCI device, or is not told.
    pub pci: Option<pci::Device>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// What a network interface speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicKind {
    /// Amazon's Elastic Fabric Adapter.
    Efa,
    /// InfiniBand.
    Infiniband,
    /// RDMA over Ethernet.
    Roce,
    /// RDMA of a kind that the kernel does not tell.
    Rdma,
    /// IP alone.
    Ethernet,
}

/// A port of a network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its number.
    pub number: u32,
    /// Its state in the kernel's word: `ACTIVE`, `DOWN`, `up`, …
    pub state: Option<String>,
    /// Whether data goes through it; `None` where the state does not say.
    pub is_up: Option<bool>,
    /// What it carries in one direction, in 10⁹ bits per second.
    pub rate_gbit_s: Option<f64>,
    /// The folders with its counters.
    pub counters: Vec<PathBuf>,
}

/// The network interfaces in the order of their names, those for RDMA first. `devices` are the
/// machine's PCI devices. Why one of them tells less than it should is added to `missing`.
pub fn nics(system: &System, devices: &[pci::Device], missing: &mut Vec<String>) -> Vec<Nic> {
    let mut nics: Vec<Nic> = Vec::new();
    for name in optional(system.names(RDMA), missing).unwrap_or_default() {
        nics.extend(rdma(system, &name, devices, missing));
    }
    for name in optional(system.names(NET), missing).unwrap_or_default() {
        let Some(place) = place(system, NET, &name, missing) else { continue };
        let address = place.as_deref().and_then(pci_address);
        let is_same = |nic: &&mut Nic| {
            address.is_some() && nic.pci.as_ref().map(|pci| pci.address.as_str()) == address
        };
        let mut rdma = nics.iter_mut().filter(|nic| nic.kind != NicKind::Ethernet);
        if let Some(nic) = rdma.find(is_same) {
            nic.interfaces.push(name);
        } else if optional(system.value(format!("{NET}/{name}/type")), missing) == Some(ETHERNET) {
            nics.push(Nic {
                kind: NicKind::Ethernet,
                interfaces: vec![name.clone()],
                pci: found(devices, address),
                ports: vec![ethernet_port(system, &name, missing)],
                name,
            });
        }
    }
    nics
}

/// Where the device behind an interface is; `None` where there is no device behind it, and
/// `Some(None)` where the kernel does not find it.
#[expect(clippy::option_option, reason = "no device, a device that is lost, and one that is there")]
fn place(
    system: &System,
    class: &str,
    name: &str,
    missing: &mut Vec<String>,
) -> Option<Option<PathBuf>> {
    let device = format!("{class}/{name}/device");
    match system.link(&device) {
        Ok(_) => {
            let place = system.resolve(&device);
            Some(place.inspect_err(|err| missing.push(err.to_string())).ok())
        }
        Err(Unread::Absent(_)) => None,
        Err(err) => {
            missing.push(err.to_string());
            None
        }
    }
}

/// The PCI address nearest to the end of a path: a virtual interface hangs below its device.
fn pci_address(place: &Path) -> Option<&str> {
    let is_address = |part: &&str| {
        let form = [4, 7, 10].map(|at| part.as_bytes().get(at).copied());
        part.len() == 12 && form == [Some(b':'), Some(b':'), Some(b'.')]
    };
    let mut parts = place.iter().rev().filter_map(|part| part.to_str());
    parts.find(is_address)
}

fn found(devices: &[pci::Device], address: Option<&str>) -> Option<pci::Device> {
    devices.iter().find(|device| Some(device.address.as_str()) == address).cloned()
}

/// An interface for RDMA; `None` for one that software makes of another interface.
fn rdma(
    system: &System,
    name: &str,
    devices: &[pci::Device],
    missing: &mut Vec<String>,
) -> Option<Nic> {
    let place = place(system, RDMA, name, missing)?;
    let pci = found(devices, place.as_deref().and_then(pci_address));
    let folder = format!("{RDMA}/{name}");
    let mut layer = None;
    let mut ports = Vec::new();
    for number in optional(system.names(format!("{folder}/ports")), missing).unwrap_or_default() {
        let Ok(number) = number.parse() else { continue };
        let port = format!("{folder}/ports/{number}");
        layer = layer.or_else(|| optional(system.text(format!("{port}/link_layer")), missing));
        let state = optional(port_state(system, &port), missing);
        let counters = [
            format!("{port}/counters"),
            format!("{port}/hw_counters"),
            format!("{folder}/hw_counters"),
        ];
        ports.push(Port {
            number,
            is_up: state.as_deref().map(|state| state == "ACTIVE"),
            state,
            rate_gbit_s: optional(port_rate(system, &port), missing),
            counters: counters.map(PathBuf::from).into_iter().filter(|at| system.has(at)).collect(),
        });
    }
    let is_of_amazon = pci.as_ref().is_some_and(|pci| pci.vendor == Some(AMAZON));
    let kind = match layer.as_deref() {
        _ if is_of_amazon => NicKind::Efa,
        Some("InfiniBand") => NicKind::Infiniband,
        Some("Ethernet") => NicKind::Roce,
        _ => NicKind::Rdma,
    };
    Some(Nic { name: name.to_owned(), kind, interfaces: Vec::new(), pci, ports })
}

/// The word of a port's state, which is written as `4: ACTIVE`.
fn port_state(system: &System, port: &str) -> Result<String, Unread> {
    let file = format!("{port}/state");
    let text = system.text(&file)?;
    let word = text.split_once(": ").filter(|(number, _)| number.parse::<u8>().is_ok());
    word.map(|(_, word)| word.to_owned()).ok_or_else(|| Unread::holding(&file, &text))
}

/// The rate of a port, which is written as `100 Gb/sec (4X EDR)`.
fn port_rate(system: &System, port: &str) -> Result<f64, Unread> {
    let file = format!("{port}/rate");
    let text = system.text(&file)?;
    let number = text.split_once(" Gb/sec").and_then(|(number, _)| number.parse::<f64>().ok());
    let sensible = number.filter(|rate| rate.is_finite() && *rate >= 0.0);
    sensible.ok_or_else(|| Unread::holding(&file, &text))
}

fn ethernet_port(system: &System, name: &str, missing: &mut Vec<String>) -> Port {
    let file = |file: &str| format!("{NET}/{name}/{file}");
    let state = optional(system.text(file("operstate")), missing);
    let is_up = match state.as_deref() {
        Some("up") => Some(true),
        Some("unknown") | None => None,
        Some(_) => Some(false),
    };
    // One that is down refuses to say, and one that does not know says -1.
    let speed = system.value::<i64>(file("speed"));
    let speed = if is_up == Some(false) { speed.ok() } else { optional(speed, missing) };
    let speed = speed.and_then(|mbit_s| u64::try_from(mbit_s).ok()).filter(|&mbit_s| mbit_s > 0);
    let counters = PathBuf::from(file("statistics"));
    Port {
        number: 1,
        state,
        is_up,
        rate_gbit_s: speed.map(units::giga_of_mega),
        counters: Some(counters).filter(|at| system.has(at)).into_iter().collect(),
    }
}

impl Nic {
    /// What its ports that are not down carry together in one direction, in 10⁹ bits per second.
    pub fn rate_gbit_s(&self) -> Option<f64> {
        let usable = self.ports.iter().filter(|port| port.is_up != Some(false));
        let rates: Vec<f64> = usable.filter_map(|port| port.rate_gbit_s).collect();
        (!rates.is_empty()).then(|| rates.iter().sum())
    }

    /// Whether it writes into the memory of another host.
    pub fn is_rdma(&self) -> bool {
        self.kind != NicKind::Ethernet
    }
}

impl NicKind {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Efa => "EFA",
            Self::Infiniband => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Rdma => "RDMA",
            Self::Ethernet => "Ethernet",
        }
    }
}
