use std::{collections::BTreeSet, fs};

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
            Entry::Live => assert!(path.contains("/hw_counters/"), "{path}"),
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
        assert_eq!(tree.read(&format!("{port}/hw_counters/rx_drops")), "0");
        let counter = tree.resolve(&format!("{port}/hw_counters/rdma_read_bytes")).unwrap();
        assert_eq!(tree.0[&counter], Entry::Live);
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
    assert!(tree.has("/usr/local/cuda/lib64/libcudart.so"));
    assert!(tree.has("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"));
    assert!(of("p6e-gb200.36xlarge").has("/usr/lib/aarch64-linux-gnu/libnccl.so.2"));
    assert!(!of("g5.xlarge").has("/opt/amazon"));
}

/// The machine of a file's text.
fn described(text: &str) -> Machine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.toml");
    fs::write(&path, format!("schema = 1\n{text}")).unwrap();
    machine::load(path.to_str().unwrap()).unwrap_or_else(|err| panic!("{err}\n{text}"))
}

#[test]
fn each_processor_is_on_a_node_whatever_their_number() {
    for cpus in [1, 2, 3, 5, 95] {
        let machine = described(&format!("from = 'p4d.24xlarge'\n[host]\ncpus = {cpus}"));
        let nodes = machine.numa_nodes().into_iter();
        let mut all: Vec<u32> = nodes.flat_map(|node| machine.cpus_of(node)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..cpus).collect::<Vec<u32>>());
    }
    let tree = tree(&described("from = 'p4d.24xlarge'\n[host]\ncpus = 5"), 0);
    let siblings = |cpu: u32| {
        tree.read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    };
    assert_eq!([0, 1, 2, 3, 4].map(siblings), ["0,3", "1,4", "2", "0,3", "1,4"]);
    let tree = self::tree(&described("from = 'p4d.24xlarge'\n[host]\ncpus = 1"), 0);
    assert_eq!(tree.read("/sys/devices/system/node/has_cpu"), "1");
}

#[test]
fn machines_that_files_describe_have_whole_trees_that_agree_with_nvml() {
    for text in [
        "",
        "gpu_count = 4\nnvswitch = true\n[[gpu]]\nnvlinks = 12\n[[gpu]]\nordinals = [3]\nnuma_node = 1",
        "gpu_count = 4\n[[gpu]]\nordinals = [0, 3]\npcie_switch = 7",
        "[[gpu]]\nordinals = [1]\npci = '0000:10:1d'",
        "[[gpu]]\nordinals = [0]\npci = '0000:00:05'\n[[gpu]]\nordinals = [1]\nnuma_node = 1023",
        "[[gpu]]\nordinals = [0]\npci = '0001:ff:1f'\npcie_switch = 0",
        "gpu_count = 64\n[host]\ncpus = 1\niommu = true",
        "from = 'p5.48xlarge'\ngpu_count = 7\n[[nic]]\nindices = [31]\nmissing = true",
        "from = 'p4d.24xlarge'\n[[gpu]]\nordinals = [0]\npcie_switch = 3\n[host]\niommu = true",
        "from = 'p5en.48xlarge'\n[[gpu]]\npcie_lanes = 8\npcie_lanes_max = 16",
        "from = 'g6e.48xlarge'\nnvswitch = false\n[host]\ncpus = 4096",
    ] {
        let machine = described(text);
        is_whole(&machine);
        agrees(&machine);
    }
}

#[test]
fn a_missing_gpu_is_missing_and_the_product_stays() {
    let machine = described("from = 'p5.48xlarge'\nname = 'seven'\ngpu_count = 7");
    let tree = tree(&machine, 0);
    assert_eq!(tree.read("/sys/class/dmi/id/product_name"), "p5.48xlarge");
    assert_eq!(tree.devices("0x030200", "0x10de").len(), 7);
    assert_eq!(tree.names("/sys/class/infiniband").len(), 32);
    assert!(!tree.has("/dev/nvidia7"));
}

#[test]
fn defects_of_interfaces_are_seen_in_their_files() {
    let tree = tree(
        &described(
            "from = 'p4d.24xlarge'\n[[nic]]\nrate_gbps = 50\n[[nic]]\nindices = [0]\nmissing = true\n\
             [[nic]]\nindices = [1, 2]\nstate = 'down'\npcie_lanes = 4\nrate_gbps = 100",
        ),
        0,
    );
    let own = "/sys/class/infiniband";
    assert_eq!(tree.names(own), ["rdmap65s0", "rdmap66s0", "rdmap67s0"].map(str::to_owned).into());
    let port = |nic: &str, what: &str| tree.read(&format!("{own}/{nic}/ports/1/{what}")).to_owned();
    assert_eq!(port("rdmap66s0", "state"), "1: DOWN");
    assert_eq!(port("rdmap66s0", "phys_state"), "3: Disabled");
    assert_eq!(port("rdmap67s0", "state"), "4: ACTIVE");
    assert_eq!(port("rdmap67s0", "rate"), "50 Gb/sec (1X HDR)");
    let lanes =
        |what: &str| tree.read(&format!("{own}/rdmap65s0/device/{what}_link_width")).to_owned();
    assert_eq!((lanes("current"), lanes("max")), ("4".to_owned(), "16".to_owned()));
}

#[test]
fn the_hosts_keys_change_every_file_that_tells_of_them() {
    let tree = tree(
        &described(
            "from = 'p5.48xlarge'\n[host]\nproduct = 'p5.4xlarge'\nhostname = 'a'\nboot_id = 'b'\n\
             kernel = '5.4.0-1'\ncpus = 4\nmemory_mib = 1024\nmemlock_kib = 64\nshm_mib = 64\n\
             iommu = true\ngovernor = 'powersave'\nfabric_manager = false\nimex = true\n\
             libfabric = '1.9.0'\nofi_nccl = 'none'\nnccl = 'none'\ncuda_runtime = 'none'\nmodules_absent = ['gdrdrv', 'efa']",
        ),
        0,
    );
    assert_eq!(tree.read("/sys/class/dmi/id/product_name"), "p5.4xlarge");
    assert_eq!(tree.read("/proc/sys/kernel/hostname"), "a");
    assert_eq!(tree.read("/proc/sys/kernel/random/boot_id"), "b");
    assert_eq!(tree.read("/proc/sys/kernel/osrelease"), "5.4.0-1");
    assert!(tree.read("/proc/version").starts_with("Linux version 5.4.0-1 "));
    assert!(tree.read("/proc/cmdline").contains("vmlinuz-5.4.0-1 "));
    assert!(tree.read("/proc/cmdline").contains(" amd_iommu=on"));
    assert_eq!(tree.read("/sys/devices/system/node/node1/cpulist"), "1,3");
    let governor = "/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor";
    assert_eq!(tree.read(governor), "powersave");
    assert!(tree.read("/proc/meminfo").starts_with("MemTotal:        1048576 kB\n"));
    let limits = "Max locked memory         65536                65536                bytes     ";
    assert!(tree.read("/proc/self/limits").contains(limits));
    assert!(tree.read("/proc/self/mountinfo").contains("size=65536k,"));
    assert!(!tree.has("/proc/802") && tree.has("/dev/nvidia-caps-imex-channels/channel0"));
    assert!(tree.has("/proc/803/comm"));
    let version = tree.read("/opt/amazon/efa/lib/pkgconfig/libfabric.pc");
    assert!(version.contains("Version: 1.9.0"));
    let packages = tree.read("/opt/amazon/efa_installed_packages");
    assert!(packages.contains(" libfabric1-aws_1.9.0") && !packages.contains("nccl"));
    assert!(!tree.has("/opt/amazon/ofi-nccl") && !tree.has("/usr/local/cuda"));
    assert!(!tree.has("/usr/lib/x86_64-linux-gnu/libnccl.so.2"));
    for module in ["gdrdrv", "efa"] {
        let is_it = |line: &str| line.starts_with(&format!("{module} "));
        assert!(!tree.read("/proc/modules").lines().any(is_it), "{module}");
        assert!(!tree.has(&format!("/sys/module/{module}")));
    }
    assert!(!tree.has("/dev/gdrdrv") && tree.has("/sys/module/efa_nv_peermem"));
    let groups = tree.names("/sys/kernel/iommu_groups");
    assert_eq!(groups.len(), tree.names("/sys/bus/pci/devices").len());
    let gpu = tree.resolve("/sys/bus/pci/devices/0000:10:00.0/iommu_group").unwrap();
    assert!(tree.has(&format!("{gpu}/devices/0000:10:00.0")));
    assert_eq!(tree.names("/sys/class/iommu").len(), 1);
}

#[test]
fn any_file_can_be_planted_for_all_processes_or_for_one() {
    let machine = described(
        "from = 'p5.48xlarge'\n[[host.file]]\npath = '/proc/cmdline'\ntext = 'cut of'\n\
         [[host.file]]\npath = '/sys/bus/pci/devices/0000:10:00.0/current_link_width'\ntext = '8'\n\
         [[host.file]]\npath = '/sys/class/infiniband'\nabsent = true\n\
         [[host.file]]\npath = '/proc/modules'\ndenied = true\n\
         [[host.file]]\npath = '/proc/self/ns/ipc'\nlink = 'ipc:[1]'\nprocess = 1\n\
         [[host.file]]\npath = '/.dockerenv'\ntext = ''\nprocess = 1",
    );
    let [first, second] = [0, 1].map(|process| tree(&machine, process));
    assert_eq!(first.0["/proc/cmdline"], Entry::Text("cut of".to_owned()));
    let width = "/sys/bus/pci/devices/0000:10:00.0/current_link_width";
    assert_eq!(first.0[&first.resolve(width).unwrap()], Entry::Text("8".to_owned()));
    assert_eq!(
        first.names("/sys/bus/pci/devices/0000:10:00.0"),
        of("p5.48xlarge").names("/sys/bus/pci/devices/0000:10:00.0")
    );
    assert!(!first.has("/sys/class/infiniband") && first.has("/sys/class/infiniband_verbs"));
    assert_eq!(first.0["/proc/modules"], Entry::Denied);
    let ipc = |tree: &Tree| tree.0["/proc/self/ns/ipc"].clone();
    assert_eq!(ipc(&first), Entry::Link("ipc:[4026531839]".to_owned()));
    assert_eq!(ipc(&second), Entry::Link("ipc:[1]".to_owned()));
    assert!(!first.has("/.dockerenv") && second.has("/.dockerenv"));
}
