//! The PCI devices that carry data between GPUs and out of the machine, as `/sys/bus/pci` shows
//! them, and where the paths of two of them meet.
//!
//! The files are those of the kernel's `Documentation/ABI/testing/sysfs-bus-pci`.

use serde::{Deserialize, Serialize};

use super::system::{System, Unread};
use crate::{ffi::nvml::CommonAncestor, plan::topology::cpu_list};

/// Where the kernel lists the devices by their addresses.
const DEVICES: &str = "/sys/bus/pci/devices";

/// NVIDIA, as a vendor of PCI devices.
const NVIDIA: u32 = 0x10de;

/// The kernel's text of a link's speed, in GT/s, and the generation of PCI Express that has it.
const SPEEDS: [(f64, u32); 6] = [(2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6)];

/// The widths that a link can have; the kernel writes 0, 63 or 255 where it does not know.
const WIDTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];

/// A PCI device. `None`: not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its address in the kernel's form, such as `0000:1b:00.0`.
    pub address: String,
    /// What it is for.
    pub kind: Kind,
    /// The vendor's number.
    pub vendor: Option<u32>,
    /// The vendor's number for the device.
    pub device: Option<u32>,
    /// The host bridge, the bridges on the path, and the device; empty if it is not known.
    pub path: Vec<String>,
    /// The NUMA node that is nearest.
    pub numa_node: Option<u32>,
    /// The CPUs that are nearest, as a list of the kernel's such as `0-23,48-71`.
    pub cpus: Option<String>,
    /// Its link now; an idle GPU lowers the speed.
    pub link: Link,
    /// Its best link.
    pub link_max: Link,
    /// The driver that it is bound to.
    pub driver: Option<String>,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An NVIDIA GPU.
    Gpu,
    /// A switch between NVLinks.
    NvSwitch,
    /// A network interface, of whatever kind.
    Network,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The generation that has its speed.
    pub generation: Option<u32>,
    /// Its lanes.
    pub lanes: Option<u32>,
}

/// Where the paths of two devices meet, nearest first, in the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[derive(strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Way {
    /// At most one PCI Express bridge lies between them.
    Pix,
    /// Several bridges, and no host bridge.
    Pxb,
    /// A host bridge, which usually is the CPU.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

/// The devices that carry data. Reasons for missing facts are added to `missing`.
pub fn devices(system: &System, missing: &mut Vec<String>) -> Vec<Device> {
    // A machine without PCI has no such folder.
    let addresses = optional(system.names(DEVICES), missing).unwrap_or_default();
    addresses.iter().filter_map(|address| device(system, address, missing)).collect()
}

/// The device at an address; `None` if it carries no data between GPUs or out of the machine.
fn device(system: &System, address: &str, missing: &mut Vec<String>) -> Option<Device> {
    let file = |name: &str| format!("{DEVICES}/{address}/{name}");
    let class = told(hexadecimal(system, &file("class")), missing)?;
    let vendor = told(hexadecimal(system, &file("vendor")), missing);
    let kind = match (class >> 16, class >> 8, vendor) {
        // A display controller, or a processing accelerator.
        (0x03 | 0x12, _, Some(NVIDIA)) => Kind::Gpu,
        // A bridge of the kind "other".
        (_, 0x0680, Some(NVIDIA)) => Kind::NvSwitch,
        (0x02, ..) => Kind::Network,
        _ => return None,
    };
    let mut link = |which: &str| Link {
        generation: speed(system, &file(&format!("{which}_link_speed")), missing),
        lanes: width(system, &file(&format!("{which}_link_width")), missing),
    };
    let (now, most) = (link("current"), link("max"));
    let driver = system.link(file("driver")).ok();
    Some(Device {
        kind,
        vendor,
        device: optional(hexadecimal(system, &file("device")), missing),
        path: optional(path(system, address), missing).unwrap_or_default(),
        numa_node: numa_node(system, address, missing),
        cpus: optional(cpus(system, &file("local_cpulist")), missing)
            .filter(|cpus| !cpus.is_empty()),
        link: now,
        link_max: most,
        driver: driver.and_then(|to| to.rsplit('/').next().map(str::to_owned)),
        address: address.to_owned(),
    })
}

/// The host bridge, the bridges on the way to a device, and the device.
pub fn path(system: &System, address: &str) -> Result<Vec<String>, Unread> {
    let place = system.resolve(format!("{DEVICES}/{}", address.to_lowercase()))?;
    let parts = place.iter().filter_map(|part| part.to_str());
    let is_above = |part: &&str| !part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'));
    Ok(parts.skip_while(is_above).map(str::to_owned).collect())
}

/// The NUMA node next to a device.
pub fn numa_node(system: &System, address: &str, missing: &mut Vec<String>) -> Option<u32> {
    let node = system.value(format!("{DEVICES}/{}/numa_node", address.to_lowercase()));
    // The kernel writes -1 where it does not know, and has no such file without NUMA.
    optional::<i64>(node, missing).and_then(|node| u32::try_from(node).ok())
}

/// A list of CPUs as the kernel writes it.
pub(super) fn cpus(system: &System, file: &str) -> Result<String, Unread> {
    let text = system.text(file)?;
    cpu_list(&text).map(|_| text.clone()).ok_or_else(|| Unread::holding(file, &text))
}

/// The value of a file; an error is added to `missing`.
pub(super) fn told<T>(result: Result<T, Unread>, missing: &mut Vec<String>) -> Option<T> {
    result.inspect_err(|err| missing.push(err.to_string())).ok()
}

/// The value of a file that may not exist; other errors are added to `missing`.
pub(super) fn optional<T>(result: Result<T, Unread>, missing: &mut Vec<String>) -> Option<T> {
    match result {
        Err(Unread::Absent(_)) => None,
        result => told(result, missing),
    }
}

/// A file with one number such as `0x10de`.
fn hexadecimal(system: &System, file: &str) -> Result<u32, Unread> {
    let text = system.text(file)?;
    let digits = text.strip_prefix("0x").unwrap_or("");
    u32::from_str_radix(digits, 16).map_err(|_| Unread::holding(file, &text))
}

/// The generation of a link that is written as `16.0 GT/s PCIe`.
fn speed(system: &System, file: &str, missing: &mut Vec<String>) -> Option<u32> {
    let text = optional(system.text(file), missing)?;
    if text.starts_with("Unknown") {
        return None;
    }
    let number = text.split_once(" GT/s").and_then(|(number, _)| number.parse::<f64>().ok());
    let known = number.and_then(|gt_s| SPEEDS.iter().find(|(speed, _)| (speed - gt_s).abs() < 0.1));
    let known = known.ok_or_else(|| Unread::holding(file, &text));
    told(known, missing).map(|(_, generation)| *generation)
}

/// The lanes of a link.
fn width(system: &System, file: &str, missing: &mut Vec<String>) -> Option<u32> {
    let lanes = optional(system.value::<u32>(file), missing)?;
    match lanes {
        0 | 63 | 255 => None,
        lanes if WIDTHS.contains(&lanes) => Some(lanes),
        lanes => told(Err(Unread::holding(file, &lanes.to_string())), missing),
    }
}

impl Device {
    /// Where the paths of two devices meet; `None` if the kernel does not report enough.
    pub fn way(&self, other: &Self) -> Option<Way> {
        let (ours, theirs) = (self.path.as_slice(), other.path.as_slice());
        if ours.is_empty() || theirs.is_empty() {
            return None;
        }
        let shared = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
        match shared {
            0 if self.numa_node == other.numa_node => Some(Way::Node),
            // The node of one device is not known.
            0 if self.numa_node.is_some() && other.numa_node.is_some() => Some(Way::Sys),
            0 => None,
            1 => Some(Way::Phb),
            // Below what they share: the ports of a switch, then the devices. A further switch has
            // two more.
            _ if ours.len().max(theirs.len()) - shared <= 2 => Some(Way::Pix),
            _ => Some(Way::Pxb),
        }
    }
}

impl Link {
    /// Its raw rate in one direction after line coding, in GB/s: 8 of 10 bits in generations 1 and
    /// 2, 128 of 130 from 3 to 5. `None` if it is not known, and for the packets of generation 6.
    pub fn gb_s(self) -> Option<f64> {
        let generation = self.generation?;
        let code = match generation {
            1 | 2 => 8.0 / 10.0,
            3..=5 => 128.0 / 130.0,
            _ => return None,
        };
        let (gt_s, _) = SPEEDS.iter().find(|(_, of)| *of == generation)?;
        Some(gt_s * code / 8.0 * f64::from(self.lanes?))
    }
}

impl From<CommonAncestor> for Way {
    fn from(ancestor: CommonAncestor) -> Self {
        match ancestor {
            // Two GPUs of one board meet in its switch.
            CommonAncestor::Internal | CommonAncestor::SingleSwitch => Self::Pix,
            CommonAncestor::MultipleSwitches => Self::Pxb,
            CommonAncestor::HostBridge => Self::Phb,
            CommonAncestor::NumaNode => Self::Node,
            CommonAncestor::System => Self::Sys,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Bridges and a device, as the kernel shows them.
    const NESTED: [&str; 5] =
        ["pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"];

    fn at(path: &[&str], numa_node: Option<u32>) -> Device {
        Device {
            address: (*path.last().unwrap()).to_owned(),
            kind: Kind::Gpu,
            vendor: Some(NVIDIA),
            device: None,
            path: path.iter().map(|&part| part.to_owned()).collect(),
            numa_node,
            cpus: None,
            link: Link::default(),
            link_max: Link::default(),
            driver: None,
        }
    }

    #[test]
    fn ways_are_called_as_nvidia_smi_calls_them() {
        let gpu = at(&NESTED, Some(0));
        let way = |path: &[&str], node| gpu.way(&at(path, node));
        let mut beside = NESTED;
        (beside[3], beside[4]) = ("0000:12:04.0", "0000:14:00.0");
        assert_eq!(way(&beside, Some(0)), Some(Way::Pix));
        let below =
            [&NESTED[..3], &["0000:12:08.0", "0000:15:00.0", "0000:16:00.0", "0000:17:00.0"]];
        assert_eq!(way(&below.concat(), Some(0)), Some(Way::Pxb));
        assert_eq!(way(&["pci0000:10", "0000:10:03.0", "0000:20:00.0"], Some(0)), Some(Way::Phb));
        assert_eq!(way(&["pci0000:10", "0000:10:1f.0"], Some(0)), Some(Way::Phb));
        assert_eq!(way(&["pci0000:80", "0000:80:1f.0"], Some(0)), Some(Way::Node));
        assert_eq!(way(&["pci0000:80", "0000:80:1f.0"], Some(1)), Some(Way::Sys));
        assert_eq!(way(&["pci0000:80", "0000:80:1f.0"], None), None);
        let untold = Device { path: Vec::new(), ..gpu.clone() };
        assert_eq!([gpu.way(&untold), untold.way(&gpu)], [None, None]);
        let alone = at(&["pci0000:00", "0000:00:1e.0"], None);
        assert_eq!(alone.way(&at(&["pci0000:30", "0000:30:00.0"], None)), Some(Way::Node));
    }

    #[test]
    fn a_links_rate_is_that_of_its_lanes() {
        let rate = |generation, lanes| {
            let link = Link { generation: Some(generation), lanes: Some(lanes) };
            link.gb_s().map(|gb_s| (gb_s * 100.0).round() / 100.0)
        };
        assert_eq!([rate(1, 1), rate(2, 4)], [Some(0.25), Some(2.0)]);
        assert_eq!([rate(3, 16), rate(4, 16), rate(5, 8)], [Some(15.75), Some(31.51), Some(31.51)]);
        assert_eq!([rate(6, 16), rate(9, 16)], [None, None]);
        assert_eq!(Link { generation: Some(3), lanes: None }.gb_s(), None);
    }

    /// A GPU with these texts in its files, and why they tell nothing.
    fn gpu(files: &[(&str, &str)]) -> (Option<Device>, Vec<String>) {
        let place = "/sys/devices/pci0000:00/0000:00:1e.0";
        let mut tree = json!({
            "/sys/bus/pci/devices/0000:00:1e.0": {"link": "../../../devices/pci0000:00/0000:00:1e.0"},
        });
        for (name, text) in files {
            tree[format!("{place}/{name}")] = json!({"text": format!("{text}\n")});
        }
        let mut missing = Vec::new();
        let system = System::described(&tree.to_string()).unwrap();
        (devices(&system, &mut missing).pop(), missing)
    }

    #[test]
    fn a_device_is_what_its_files_say() {
        let (found, missing) = gpu(&[
            ("class", "0x030200"),
            ("vendor", "0x10de"),
            ("device", "0x2330"),
            ("numa_node", "-1"),
            ("local_cpulist", "0-47"),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("current_link_width", "8"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ]);
        let found = found.unwrap();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!((found.kind, found.device, found.numa_node), (Kind::Gpu, Some(0x2330), None));
        assert_eq!(found.path, ["pci0000:00", "0000:00:1e.0"]);
        assert_eq!(found.cpus.as_deref(), Some("0-47"));
        assert_eq!(found.link, Link { generation: Some(1), lanes: Some(8) });
        assert_eq!(found.link_max, Link { generation: Some(5), lanes: Some(16) });
    }

    #[test]
    fn nonsense_is_not_told_and_listed() {
        let (found, missing) = gpu(&[
            ("class", "0x030200"),
            ("vendor", "0x10de"),
            ("numa_node", "99999999999999999999"),
            ("current_link_speed", "Unknown"),
            ("current_link_width", "255"),
            ("max_link_speed", "fast"),
            ("max_link_width", "7"),
        ]);
        let found = found.unwrap();
        assert_eq!(found.numa_node, None);
        assert_eq!([found.link, found.link_max], [Link::default(); 2]);
        assert_eq!(missing.len(), 3, "{missing:?}");
        for said in ["numa_node holds \"9", "max_link_speed holds \"fast\"", "max_link_width holds"]
        {
            assert!(missing.iter().any(|reason| reason.contains(said)), "{missing:?}");
        }
        let (found, missing) = gpu(&[("vendor", "0x10de")]);
        assert!(found.is_none() && missing[0].contains("class is not there"), "{missing:?}");
    }

    #[test]
    fn what_carries_no_data_is_left_out() {
        for (class, vendor) in
            [("0x030000", "0x1234"), ("0x010802", "0x10de"), ("0x060400", "0x10de")]
        {
            assert_eq!(gpu(&[("class", class), ("vendor", vendor)]), (None, vec![]));
        }
        let kind = |class, vendor| gpu(&[("class", class), ("vendor", vendor)]).0.unwrap().kind;
        assert_eq!(kind("0x068000", "0x10de"), Kind::NvSwitch);
        assert_eq!(kind("0x020700", "0x15b3"), Kind::Network);
        assert_eq!(kind("0x030000", "0x10de"), Kind::Gpu);
    }
}
