//! The network interfaces that the kernel shows, for RDMA and for IP, and their PCI devices.
//!
//! The files are those of the kernel's `Documentation/ABI/stable/sysfs-class-infiniband` and
//! `Documentation/ABI/testing/sysfs-class-net`. [`super::offered_nics`] has what libfabric offers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    pci::{self, optional, told},
    system::{System, Unread},
};
use crate::units;

/// Where the kernel has its RDMA devices.
pub(super) const RDMA_DEVICES: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";

/// Amazon, as a vendor of PCI devices.
const AMAZON: u32 = 0x1d0f;

/// The number of Ethernet among the kinds of interfaces (`ARPHRD_ETHER` of if_arp.h).
const ETHERNET: u32 = 1;

/// A network interface that is a device: neither loopback nor virtual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// The kernel's name of it: `rdmap16s27`, `mlx5_0`, `ens5`.
    pub name: String,
    /// Its kind.
    pub kind: NicKind,
    /// The interfaces for IP of the same device.
    pub interfaces: Vec<String>,
    /// Its PCI device; `None` if it is none, or is not known.
    pub pci: Option<pci::Device>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// The version of its firmware, if it is an RDMA device.
    pub firmware: Option<String>,
    /// The largest packet of its interfaces for IP, in bytes.
    pub mtu_bytes: Option<u32>,
}

/// The kind of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
pub enum NicKind {
    /// Amazon's Elastic Fabric Adapter.
    #[strum(serialize = "EFA")]
    Efa,
    /// InfiniBand.
    #[strum(serialize = "InfiniBand")]
    Infiniband,
    /// RDMA over Ethernet.
    #[strum(serialize = "RoCE")]
    Roce,
    /// RDMA of an unknown kind.
    #[strum(serialize = "RDMA")]
    Rdma,
    /// IP alone.
    Ethernet,
}

/// A port of a network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its number.
    pub number: u32,
    /// The kernel's word for its state: `ACTIVE`, `DOWN`, `up`, …
    pub state: Option<String>,
    /// Whether it is up; `None` if the state does not say.
    pub is_up: Option<bool>,
    /// Its rate in one direction, in 10⁹ bits per second. EFA drivers that do not ask the device
    /// report 100 (Linux, `efa_query_port` in efa_verbs.c).
    pub rate_gbit_s: Option<f64>,
    /// The folders with its counters.
    pub counters: Vec<PathBuf>,
}

/// The network interfaces in the order of their names, those for RDMA first. `devices` are the
/// machine's PCI devices. Reasons for missing facts are added to `missing`.
pub fn nics(system: &System, devices: &[pci::Device], missing: &mut Vec<String>) -> Vec<Nic> {
    let mut nics: Vec<Nic> = Vec::new();
    for name in optional(system.names(RDMA_DEVICES), missing).unwrap_or_default() {
        nics.extend(rdma(system, &name, devices, missing));
    }
    for name in optional(system.names(NET), missing).unwrap_or_default() {
        let Some(place) = place(system, NET, &name, missing) else { continue };
        let address = pci_address(&place);
        let is_same = |nic: &&mut Nic| {
            address.is_some() && nic.pci.as_ref().map(|pci| pci.address.as_str()) == address
        };
        if let Some(nic) = nics.iter_mut().filter(|nic| nic.is_rdma()).find(is_same) {
            nic.mtu_bytes = nic.mtu_bytes.or(mtu_bytes(system, &name, missing));
            nic.interfaces.push(name);
        } else if optional(system.value(format!("{NET}/{name}/type")), missing) == Some(ETHERNET) {
            nics.push(Nic {
                kind: NicKind::Ethernet,
                interfaces: vec![name.clone()],
                pci: found(devices, address),
                ports: vec![ethernet_port(system, &name, missing)],
                firmware: None,
                mtu_bytes: mtu_bytes(system, &name, missing),
                name,
            });
        }
    }
    nics
}

/// The path of the device behind an interface; `None` if there is no device, and an empty path if
/// the kernel does not find it.
fn place(system: &System, class: &str, name: &str, missing: &mut Vec<String>) -> Option<PathBuf> {
    let device = format!("{class}/{name}/device");
    optional(system.link(&device), missing)?;
    Some(told(system.resolve(&device), missing).unwrap_or_default())
}

/// The last PCI address in a path: a virtio interface is below its PCI device.
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

/// An interface for RDMA; `None` for a virtual one.
fn rdma(
    system: &System,
    name: &str,
    devices: &[pci::Device],
    missing: &mut Vec<String>,
) -> Option<Nic> {
    let place = place(system, RDMA_DEVICES, name, missing)?;
    let pci = found(devices, pci_address(&place));
    let folder = format!("{RDMA_DEVICES}/{name}");
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
    let firmware = optional(system.text(format!("{folder}/fw_ver")), missing);
    let (name, interfaces) = (name.to_owned(), Vec::new());
    Some(Nic { name, kind, interfaces, pci, ports, firmware, mtu_bytes: None })
}

/// The largest packet of an interface for IP.
fn mtu_bytes(system: &System, name: &str, missing: &mut Vec<String>) -> Option<u32> {
    optional(system.value(format!("{NET}/{name}/mtu")), missing)
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
    // The file of an interface that is down cannot be read; -1 is not known.
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
    /// The rate of all its ports that are not down in one direction, in 10⁹ bits per second.
    pub fn rate_gbit_s(&self) -> Option<f64> {
        let usable = self.ports.iter().filter(|port| port.is_up != Some(false));
        let rates: Vec<f64> = usable.filter_map(|port| port.rate_gbit_s).collect();
        (!rates.is_empty()).then(|| rates.iter().sum())
    }

    /// Whether it is an RDMA device.
    pub fn is_rdma(&self) -> bool {
        self.kind != NicKind::Ethernet
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Names of files and what is in them.
    type Files<'a> = &'a [(&'a str, &'a str)];

    /// A machine with these interfaces: class, name, place below `/sys/devices`, files.
    fn machine(interfaces: &[(&str, &str, &str, Files<'_>)]) -> System {
        let mut tree = json!({});
        for &(class, name, place, files) in interfaces {
            let folder = format!("/sys/class/{class}/{name}");
            for (file, text) in files {
                tree[format!("{folder}/{file}")] = json!({"text": format!("{text}\n")});
            }
            if !place.is_empty() {
                tree[format!("{folder}/device")] = json!({"link": format!("/sys/devices/{place}")});
            }
        }
        System::described(&with_devices(tree).to_string()).unwrap()
    }

    /// With the PCI devices that are there.
    fn with_devices(mut tree: Value) -> Value {
        for (address, vendor, class) in [
            ("0000:00:05.0", "0x1d0f", "0x020000"),
            ("0000:00:06.0", "0x1d0f", "0x020000"),
            ("0000:00:07.0", "0x15b3", "0x020700"),
            ("0000:00:08.0", "0x1af4", "0x020000"),
        ] {
            let place = format!("/sys/devices/pci0000:00/{address}");
            tree[format!("{place}/vendor")] = json!({"text": vendor});
            tree[format!("{place}/class")] = json!({"text": class});
            tree[format!("/sys/bus/pci/devices/{address}")] = json!({"link": place});
        }
        tree["/sys/devices/pci0000:00/0000:00:08.0/virtio1/features"] = json!({"text": "0"});
        tree
    }

    fn found(system: &System) -> (Vec<Nic>, Vec<String>) {
        let mut missing = Vec::new();
        let devices = pci::devices(system, &mut missing);
        (nics(system, &devices, &mut missing), missing)
    }

    #[test]
    fn interfaces_are_told_apart_and_those_of_software_are_none() {
        let port: Files<'_> = &[
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/link_layer", "InfiniBand"),
            ("ports/1/hw_counters/tx_bytes", "0"),
        ];
        let net: Files<'_> =
            &[("type", "1"), ("operstate", "up"), ("speed", "25000"), ("statistics/tx_bytes", "0")];
        let (found, missing) = found(&machine(&[
            ("infiniband", "rdmap0s6", "pci0000:00/0000:00:06.0", port),
            ("infiniband", "mlx5_0", "pci0000:00/0000:00:07.0", port),
            ("infiniband", "rxe0", "", port),
            ("net", "lo", "", &[("type", "772")]),
            ("net", "docker0", "", net),
            ("net", "ib0", "pci0000:00/0000:00:07.0", &[("type", "32")]),
            ("net", "ens5", "pci0000:00/0000:00:05.0", net),
            ("net", "eth0", "pci0000:00/0000:00:08.0/virtio1", net),
        ]));
        assert!(missing.is_empty(), "{missing:?}");
        let told: Vec<(&str, NicKind)> =
            found.iter().map(|nic| (nic.name.as_str(), nic.kind)).collect();
        let expected = [
            ("mlx5_0", NicKind::Infiniband),
            ("rdmap0s6", NicKind::Efa),
            ("ens5", NicKind::Ethernet),
            ("eth0", NicKind::Ethernet),
        ];
        assert_eq!(told, expected);
        assert_eq!(found[0].interfaces, ["ib0"]);
        let addresses = found.iter().map(|nic| nic.pci.as_ref().unwrap().address.as_str());
        assert!(addresses.eq(["0000:00:07.0", "0000:00:06.0", "0000:00:05.0", "0000:00:08.0"]));
        assert_eq!([found[1].rate_gbit_s(), found[2].rate_gbit_s()], [Some(100.0), Some(25.0)]);
        let counters = Path::new("/sys/class/infiniband/rdmap0s6/ports/1/hw_counters");
        assert_eq!(found[1].ports[0].counters, [counters]);
        assert_eq!(found[2].ports[0].counters, [Path::new("/sys/class/net/ens5/statistics")]);
    }

    #[test]
    fn ethernet_with_rdma_is_one_interface() {
        let place = "pci0000:00/0000:00:07.0";
        let (found, _) = found(&machine(&[
            ("infiniband", "mlx5_0", place, &[("ports/1/link_layer", "Ethernet")]),
            ("net", "ens7", place, &[("type", "1"), ("operstate", "up")]),
        ]));
        assert_eq!((found.len(), found[0].kind), (1, NicKind::Roce));
        assert_eq!(found[0].interfaces, ["ens7"]);
    }

    #[test]
    fn what_is_down_carries_nothing_and_nonsense_is_listed() {
        let (found, missing) = found(&machine(&[
            (
                "infiniband",
                "rdmap0s6",
                "pci0000:00/0000:00:06.0",
                &[("ports/1/state", "1: DOWN"), ("ports/1/rate", "100 Gb/sec (4X EDR)")],
            ),
            (
                "infiniband",
                "rdmap9s9",
                "pci0000:00/0000:00:99.0",
                &[("ports/1/state", "ACTIVE"), ("ports/1/rate", "nan Gb/sec")],
            ),
            ("net", "ens5", "pci0000:00/0000:00:05.0", &[("type", "1"), ("speed", "-1")]),
        ]));
        assert_eq!((found[0].ports[0].is_up, found[0].rate_gbit_s()), (Some(false), None));
        let lost = &found[1];
        assert_eq!(
            (lost.pci.as_ref(), lost.ports[0].is_up, lost.rate_gbit_s()),
            (None, None, None)
        );
        assert_eq!((found[2].ports[0].is_up, found[2].rate_gbit_s()), (None, None));
        for said in ["rdmap9s9/device is not there", "state holds", "rate holds \"nan"] {
            assert!(missing.iter().any(|reason| reason.contains(said)), "{said}: {missing:?}");
        }
    }
}
