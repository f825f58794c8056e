use std::collections::BTreeSet;

use nvml_wrapper_sys::bindings as nvml;

use super::{
    tree::{Entry, Tree},
    *,
};
use crate::{machine, machine::host::list, nvml::common_ancestor};

/// Every instance of the catalogue.
fn instances() -> Vec<Machine> {
    let machines: Vec<Machine> = machine::names().map(load).collect();
    assert!(machines.len() >= 60);
    machines
}

fn load(name: &str) -> Machine {
    machine::load(name).unwrap()
}

fn of(name: &str) -> Tree {
    tree(&load(name), 0)
}

impl Tree {
    /// The text of a file, which must end its last line, without that end.
    fn read(&self, path: &str) -> &str {
        let place = self.resolve(path).unwrap();
        let Some(Entry::Text(text)) = self.0.get(&place) else { panic!("{path} is no file") };
        text.strip_suffix('\n').unwrap_or_else(|| panic!("{path} does not end"))
    }

    /// Whether something is at a path.
    fn has(&self, path: &str) -> bool {
        let place = self.resolve(path).unwrap();
        let below = format!("{place}/");
        self.0.contains_key(&place) || self.0.keys().any(|other| other.starts_with(&below))
    }

    /// The names in a folder.
    fn names(&self, path: &str) -> BTreeSet<String> {
        let folder = format!("{}/", self.resolve(path).unwrap());
        let names = self.0.keys().filter_map(|path| path.strip_prefix(&folder)?.split('/').next());
        names.map(str::to_owned).collect()
    }

    /// The PCI devices of a class and a vendor, by their addresses.
    fn devices(&self, class: &str, vendor: &str) -> Vec<String> {
        let devices = self.names("/sys/bus/pci/devices").into_iter();
        let is_it = |address: &String| {
            let said = |what| self.read(&format!("/sys/bus/pci/devices/{address}/{what}"));
            said("class") == class && said("vendor") == vendor
        };
        devices.filter(is_it).collect()
    }

    /// The host bridge, the bridges and the device.
    fn way(&self, address: &str) -> Vec<String> {
        let place = self.resolve(&format!("/sys/bus/pci/devices/{address}")).unwrap();
        let parts = place.strip_prefix("/sys/devices/").unwrap().split('/');
        parts.map(str::to_owned).collect()
    }

    /// NVML's number for what two devices have in common, by the folders that they are in.
    fn ancestor(&self, one: &str, other: &str) -> u32 {
        let (a, b) = (self.way(one), self.way(other));
        let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let node = |address| self.read(&format!("/sys/bus/pci/devices/{address}/numa_node"));
        match common {
            _ if one == other => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
            // The host bridge, the port of the root, the port into the switch.
            3.. => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
            1 | 2 => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
            0 if node(one) == node(other) => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
            0 => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
        }
    }
}

/// Asserts that the tree and NVML say the same of the GPUs.
fn agrees(machine: &Machine) {
    let tree = tree(machine, 0);
    let name = &machine.name;
    let addresses: Vec<String> = machine.gpus.iter().map(|gpu| pci::name(gpu.pci)).collect();
    let mut sorted = addresses.clone();
    sorted.sort();
    assert_eq!(tree.devices("0x030200", "0x10de"), sorted, "{name}");
    let counted = 0..u32::try_from(addresses.len()).unwrap();
    for (one, a) in counted.clone().zip(&addresses) {
        for (other, b) in counted.clone().zip(&addresses) {
            let level = common_ancestor(machine, one, other);
            assert_eq!(tree.ancestor(a, b), level, "{name}: {a} {b}");
        }
        let gpu = &machine.gpus[one as usize];
        let said = |what: &str| tree.read(&format!("/sys/bus/pci/devices/{a}/{what}")).to_owned();
        assert_eq!(said("numa_node"), gpu.numa_node.to_string());
        assert_eq!(said("local_cpulist"), list(&machine.cpus_of(gpu.numa_node)));
        let node = format!("/sys/devices/system/node/node{}/cpulist", gpu.numa_node);
        assert_eq!(said("local_cpulist"), tree.read(&node), "{name}");
        assert_eq!(said("current_link_width"), gpu.pcie_lanes.0.to_string());
        assert_eq!(said("max_link_width"), gpu.pcie_lanes.1.to_string());
        let information = format!("/proc/driver/nvidia/gpus/{a}/information");
        assert!(tree.read(&information).contains(&format!("Device Minor: \t {one}\n")), "{name}");
        assert!(tree.has(&format!("/dev/nvidia{one}")), "{name}");
    }
}

/// Asserts what holds for every tree.
fn is_whole(machine: &Machine) {
    let tree = tree(machine, 0);
    for (path, entry) in &tree.0 {
        assert!(path.starts_with('/') && !path.ends_with('/') && !path.contains("//"), "{path}");
        let mut folders = path.as_str();
        while let Some((folder, _)) =
            folders.rsplit_once('/').filter(|(folder, _)| !folder.is_empty())
        {
            let above = tree.0.get(folder);
            assert!(matches!(above, None | Some(Entry::Folder)), "{path} is below {above:?}");
            folders = folder;
        }
        match entry {
            Entry::Link(_) if path.starts_with("/proc/self/ns/") => {}
            Entry::Link(target) => assert!(tree.has(path), "{path} leads to {target}"),
            Entry::Text(text) => assert!(
                text.is_empty() && (path.contains("/lib") || path.starts_with("/dev/"))
                    || text.ends_with('\n')
                    || path == "/proc/modules",
                "{path}"
            ),
            Entry::Folder | Entry::Denied => {}
        }
    }
    let json = files(machine, 0);
    assert!(json.len() < 2_000_000, "{}: {}", machine.name, json.len());
}

#[test]
fn every_instance_has_a_tree_in_which_every_link_leads_somewhere() {
    for machine in instances() {
        is_whole(&machine);
    }
}

#[test]
fn the_tree_and_nvml_tell_the_same_of_every_instance() {
    for machine in instances() {
        agrees(&machine);
    }
}

#[test]
fn every_instance_has_the_interfaces_and_processors_that_the_catalogue_knows() {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/plan/catalogue.toml"));
    let catalogue: toml::Table = text.parse().unwrap();
    let mut interfaces = 0;
    for (name, known) in catalogue["instance"].as_table().unwrap() {
        let tree = of(name);
        let efa = known.get("efa").and_then(toml::Value::as_bool).unwrap_or(false);
        let names = tree.names("/sys/class/infiniband");
        match known.get("efa_interfaces").and_then(toml::Value::as_integer) {
            Some(count) => assert_eq!(names.len(), usize::try_from(count).unwrap(), "{name}"),
            None => assert_eq!(!names.is_empty(), efa, "{name}"),
        }
        interfaces += names.len();
        for nic in names {
            let own = format!("/sys/class/infiniband/{nic}");
            assert_eq!(tree.read(&format!("{own}/device/vendor")), "0x1d0f");
            assert_eq!(tree.read(&format!("{own}/ports/1/state")), "4: ACTIVE");
        }
        let cpus = known["vcpus"].as_integer().unwrap();
        assert_eq!(tree.read("/sys/devices/system/cpu/online"), format!("0-{}", cpus - 1));
        let counted = tree.names("/sys/devices/system/cpu").len();
        assert_eq!(counted, usize::try_from(cpus).unwrap() + 3, "{name}");
    }
    assert!(interfaces > 100, "{interfaces}");
}

#[test]
fn processors_are_numbered_as_on_instances() {
    // The columns `CPU Affinity` of `nvidia-smi topo -m` on these instances.
    for (name, nodes) in [
        ("p4d.24xlarge", &["0-23,48-71", "24-47,72-95"][..]),
        ("p5.48xlarge", &["0-47,96-143", "48-95,144-191"]),
        ("g6e.12xlarge", &["0-47"]),
    ] {
        let tree = of(name);
        for (node, cpus) in nodes.iter().enumerate() {
            let path = format!("/sys/devices/system/node/node{node}/cpulist");
            assert_eq!(tree.read(&path), *cpus, "{name}");
        }
        assert!(!tree.has(&format!("/sys/devices/system/node/node{}", nodes.len())));
    }
    let p4d = of("p4d.24xlarge");
    let cpu = |what: &str| p4d.read(&format!("/sys/devices/system/cpu/cpu72/topology/{what}"));
    assert_eq!((cpu("thread_siblings_list"), cpu("physical_package_id")), ("24,72", "1"));
    assert_eq!(p4d.read("/sys/devices/system/node/node1/distance"), "21 10");
    let grace = of("p6e-gb200.36xlarge");
    assert_eq!(grace.read("/sys/devices/system/node/node0/cpulist"), "0-71");
    assert!(grace.read("/proc/cpuinfo").contains("CPU part\t: 0xd4f"));
    assert!(grace.has("/dev/nvidia-caps-imex-channels/channel0"));
}

#[test]
fn two_gpus_and_one_interface_of_p4d_are_on_each_switch() {
    let tree = of("p4d.24xlarge");
    let nics: Vec<String> = tree.names("/sys/class/infiniband").into_iter().collect();
    assert_eq!(nics, ["rdmap64s0", "rdmap65s0", "rdmap66s0", "rdmap67s0"]);
    for (at, nic) in nics.iter().enumerate() {
        let device = tree.resolve(&format!("/sys/class/infiniband/{nic}/device")).unwrap();
        let address = device.rsplit('/').next().unwrap();
        let gpus = tree.devices("0x030200", "0x10de");
        let near = gpus.iter().filter(|gpu| tree.ancestor(address, gpu) == 10);
        let near: Vec<&String> = near.collect();
        assert_eq!(near, [&gpus[2 * at], &gpus[2 * at + 1]]);
        assert_eq!(tree.read(&format!("{device}/current_link_speed")), "8.0 GT/s PCIe");
        let port = format!("{device}/infiniband/{nic}/ports/1");
        assert_eq!(tree.read(&format!("{port}/rate")), "100 Gb/sec (4X EDR)");
        assert_eq!(tree.read(&format!("{port}/hw_counters/rdma_read_bytes")), "0");
        assert_eq!(tree.read(&format!("/sys/class/infiniband_verbs/uverbs{at}/ibdev")), *nic);
        assert!(tree.has(&format!("/dev/infiniband/uverbs{at}")));
    }
    assert_eq!(tree.devices("0x068000", "0x10de").len(), 6);
    assert_eq!(tree.read("/proc/802/comm"), "nv-fabricmanage");
}

#[test]
fn four_interfaces_of_p5_are_next_to_each_gpu() {
    let tree = of("p5.48xlarge");
    let nics = tree.devices("0x020000", "0x1d0f");
    for gpu in tree.devices("0x030200", "0x10de") {
        let near = nics.iter().filter(|nic| tree.ancestor(nic, &gpu) == 10);
        assert_eq!(near.count(), 4, "{gpu}");
    }
    let p5en = of("p5en.48xlarge");
    let rate = p5en.read("/sys/class/infiniband/rdmap64s0/ports/1/rate");
    assert_eq!(rate, "200 Gb/sec (4X HDR)");
}

#[test]
fn the_firmware_tells_the_instance_type_where_it_does() {
    for (name, vendor, product) in [
        ("p5.48xlarge", "Amazon EC2", "p5.48xlarge"),
        ("g4dn.metal", "Amazon EC2", "g4dn.metal"),
        ("p3.16xlarge", "Xen", "HVM domU"),
    ] {
        let tree = of(name);
        assert_eq!(tree.read("/sys/class/dmi/id/sys_vendor"), vendor);
        assert_eq!(tree.read("/sys/class/dmi/id/product_name"), product);
        let secret = tree.resolve("/sys/class/dmi/id/product_uuid").unwrap();
        assert_eq!(tree.0[&secret], Entry::Denied);
    }
    let has_hypervisor = |name: &str| of(name).read("/proc/cpuinfo").contains(" hypervisor");
    assert!(has_hypervisor("p5.48xlarge") && !has_hypervisor("g4dn.metal"));
}

#[test]
fn a_healthy_host_has_what_its_interfaces_need() {
    let tree = of("p5.48xlarge");
    assert!(tree.names("/sys/kernel/iommu_groups").is_empty());
    assert!(tree.has("/sys/class/iommu") && tree.names("/sys/class/iommu").is_empty());
    assert!(tree.read("/proc/self/limits").contains("Max locked memory         unlimited "));
    let shm = "/dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=1073741824k,inode64";
    assert!(tree.read("/proc/self/mountinfo").contains(shm));
    assert_eq!(tree.read("/sys/module/nvidia/version"), "570.00.00");
    let modules = tree.read("/proc/modules");
    assert!(modules.lines().any(|line| line.starts_with("efa_nv_peermem ")));
    assert!(tree.has("/opt/amazon/efa/lib/libfabric.so.1"));
    assert!(tree.has("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"));
    assert!(of("p6e-gb200.36xlarge").has("/usr/lib/aarch64-linux-gnu/libnccl.so.2"));
    assert!(!of("g5.xlarge").has("/opt/amazon"));
}
