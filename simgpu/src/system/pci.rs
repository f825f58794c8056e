//! `/sys/bus/pci` and the devices on it: `Documentation/ABI/testing/sysfs-bus-pci` of Linux.

use super::tree::Tree;
use crate::machine::{
    Gpu, Machine,
    host::list,
    pci::{Address, Function, Located},
};

/// NVIDIA, as a vendor of PCI devices.
const NVIDIA: u32 = 0x10de;

/// Amazon.
const AMAZON: u32 = 0x1d0f;

/// Intel.
const INTEL: u32 = 0x8086;

/// What a device says of itself.
struct Identity {
    class: u32,
    vendor: u32,
    device: u32,
    /// The kernel's driver for it.
    driver: Option<&'static str>,
}

/// A PCI Express link, each now and at most.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    generation: (u32, u32),
    lanes: (u32, u32),
}

impl Link {
    /// What is in common to links through one port.
    fn widest(self, other: Self) -> Self {
        let max = |a: (u32, u32), b: (u32, u32)| (a.0.max(b.0), a.1.max(b.1));
        Self {
            generation: max(self.generation, other.generation),
            lanes: max(self.lanes, other.lanes),
        }
    }
}

/// An address as the kernel writes it.
pub(super) fn name((domain, bus, device): Address) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

/// The folder of a device.
pub(super) fn folder(device: &Located) -> String {
    let (domain, bus) = device.root;
    let mut path = format!("/sys/devices/pci{domain:04x}:{bus:02x}");
    for address in device.bridges.iter().chain([&device.address]) {
        path.push('/');
        path.push_str(&name(*address));
    }
    path
}

/// The kernel's words for a generation: `pci_speed_string` in `drivers/pci/probe.c`.
fn speed(generation: u32) -> &'static str {
    match generation {
        1 => "2.5 GT/s PCIe",
        2 => "5.0 GT/s PCIe",
        3 => "8.0 GT/s PCIe",
        4 => "16.0 GT/s PCIe",
        5 => "32.0 GT/s PCIe",
        6 => "64.0 GT/s PCIe",
        _ => "Unknown",
    }
}

/// Writes all devices.
pub(super) fn describe(tree: &mut Tree, machine: &Machine, devices: &[Located]) {
    tree.folder("/sys/kernel/iommu_groups");
    tree.folder("/sys/class/iommu");
    if machine.host.iommu {
        tree.folder("/sys/devices/virtual/iommu/dmar0");
        tree.point("/sys/class/iommu/dmar0", "/sys/devices/virtual/iommu/dmar0");
    }
    for (group, device) in devices.iter().enumerate() {
        describe_device(tree, machine, device, link(machine, devices, device));
        if machine.host.iommu {
            let own = folder(device);
            let place = format!("/sys/kernel/iommu_groups/{group}");
            tree.line(format!("{place}/type"), "DMA");
            tree.point(format!("{place}/devices/{}", name(device.address)), &own);
            tree.point(format!("{own}/iommu_group"), &place);
        }
    }
}

fn describe_device(tree: &mut Tree, machine: &Machine, device: &Located, link: Option<Link>) {
    let Identity { class, vendor, device: id, driver } = identity(machine, device.function);
    let own = folder(device);
    let address = name(device.address);
    tree.line(format!("{own}/class"), format_args!("0x{class:06x}"));
    tree.line(format!("{own}/vendor"), format_args!("0x{vendor:04x}"));
    tree.line(format!("{own}/device"), format_args!("0x{id:04x}"));
    tree.line(format!("{own}/numa_node"), device.numa_node);
    let cpus = list(&machine.cpus_of(device.numa_node));
    tree.line(format!("{own}/local_cpulist"), cpus);
    if let Some(Link { generation, lanes }) = link {
        tree.line(format!("{own}/current_link_speed"), speed(generation.0));
        tree.line(format!("{own}/current_link_width"), lanes.0);
        tree.line(format!("{own}/max_link_speed"), speed(generation.1));
        tree.line(format!("{own}/max_link_width"), lanes.1);
    }
    if let Some(driver) = driver {
        let place = format!("/sys/bus/pci/drivers/{driver}");
        tree.point(format!("{own}/driver"), &place);
        tree.point(format!("{place}/{address}"), &own);
    }
    tree.point(format!("/sys/bus/pci/devices/{address}"), &own);
}

fn identity(machine: &Machine, function: Function) -> Identity {
    let of = |class, vendor, device, driver: &'static str| {
        let driver = Some(driver).filter(|driver| !driver.is_empty());
        Identity { class, vendor, device, driver }
    };
    match function {
        Function::Gpu(ordinal) => {
            let gpu = &machine.gpus[ordinal as usize];
            of(0x03_02_00, NVIDIA, gpu.pci_device_id, "nvidia")
        }
        Function::Nic(number) => of(0x02_00_00, AMAZON, machine.nics[number].pci_device_id, "efa"),
        Function::NvSwitch(_) => {
            let device = machine.gpus.first().map_or(0, Gpu::nvswitch_device_id);
            of(0x06_80_00, NVIDIA, device, "nvidia-nvswitch")
        }
        Function::Ena => of(0x02_00_00, AMAZON, 0xec20, "ena"),
        Function::Disk => of(0x01_08_02, AMAZON, 0x8061, "nvme"),
        Function::HostBridge => of(0x06_00_00, INTEL, 0x1237, ""),
        Function::Bridge => of(0x06_04_00, AMAZON, 0x0200, "pcieport"),
    }
}

/// The link of a device, if it is on PCI Express; of a bridge the widest of what is behind it.
fn link(machine: &Machine, devices: &[Located], device: &Located) -> Option<Link> {
    match device.function {
        Function::Gpu(ordinal) => {
            let gpu = &machine.gpus[ordinal as usize];
            Some(Link { generation: gpu.pcie_generation, lanes: gpu.pcie_lanes })
        }
        Function::Nic(number) => {
            let nic = &machine.nics[number];
            Some(Link { generation: nic.pcie_generation, lanes: nic.pcie_lanes })
        }
        Function::NvSwitch(_) => Some(Link { generation: (3, 3), lanes: (2, 2) }),
        Function::Ena | Function::Disk | Function::HostBridge => None,
        Function::Bridge => {
            let behind = devices.iter().filter(|other| {
                other.function != Function::Bridge && other.bridges.contains(&device.address)
            });
            let links = behind.filter_map(|other| link(machine, devices, other));
            Some(links.fold(Link::default(), Link::widest))
        }
    }
}
