//! Where the devices of a machine are on PCI Express: host bridges, switches, what is behind them.
//!
//! The addresses of GPUs and network interfaces are given; those of bridges are whatever is free.

use std::collections::{BTreeMap, BTreeSet};

use super::{Machine, nics::Place};

/// PCI domain, bus, device.
pub(crate) type Address = (u32, u32, u32);

/// Buses of a PCI domain.
const BUSES: u32 = 256;

/// Devices of a PCI bus.
const DEVICES: u32 = 32;

/// Where the NVSwitches of a machine are: beyond the buses of its GPUs.
pub(crate) const NVSWITCH_BUS: (u32, u32) = (0, 0xff);

/// The first device number of the interface for everything but RDMA, on bus 0.
const ENA_DEVICE: u32 = 5;

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// The GPU of this ordinal.
    Gpu(u32),
    /// The network interface of this number.
    Nic(usize),
    /// The NVSwitch of this number.
    NvSwitch(u32),
    /// The interface for everything but RDMA.
    Ena,
    /// The disk.
    Disk,
    /// The host bridge itself.
    HostBridge,
    /// A bridge: to a switch, into it, or out of it.
    Bridge,
}

/// A device and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// The bus of the host bridge.
    pub root: (u32, u32),
    /// The bridges between the host bridge and the device.
    pub bridges: Vec<Address>,
    /// Its own address.
    pub address: Address,
    /// What it is.
    pub function: Function,
    /// The NUMA node that is nearest.
    pub numa_node: u32,
}

/// Where devices are that reach the host by one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// The switch of this number.
    Switch(u32),
    /// The GPU of this ordinal, and what is next to it.
    Gpu(u32),
    /// A device by itself.
    Alone(Address),
}

/// A device that has an address.
#[derive(Clone, Copy, Debug)]
struct Member {
    address: Address,
    function: Function,
    numa_node: u32,
}

/// All devices, bridges before what is behind them.
///
/// # Errors
///
/// A sentence: one bus would be in two places, or there is no bus left.
pub(crate) fn located(machine: &Machine) -> Result<Vec<Located>, String> {
    let mut groups: BTreeMap<Group, Vec<Member>> = BTreeMap::new();
    for (ordinal, gpu) in (0..).zip(&machine.gpus) {
        let group = gpu.pcie_switch.map_or(Group::Gpu(ordinal), Group::Switch);
        let function = Function::Gpu(ordinal);
        let member = Member { address: gpu.pci, function, numa_node: gpu.numa_node };
        groups.entry(group).or_default().push(member);
    }
    for (number, nic) in machine.nics.iter().enumerate() {
        let group = match nic.place {
            Place::Switch(switch) => Group::Switch(switch),
            Place::Gpu(ordinal) => Group::Gpu(ordinal),
            Place::Alone => Group::Alone(nic.pci),
        };
        let function = Function::Nic(number);
        let member = Member { address: nic.pci, function, numa_node: nic.numa_node };
        groups.entry(group).or_default().push(member);
    }
    let mut layout = Layout::new(machine, &groups);
    layout.chipset(machine);
    for (group, members) in &groups {
        match (group, members.as_slice()) {
            (Group::Gpu(_) | Group::Alone(_), [member]) => layout.beside_host_bridge(*member),
            _ => layout.behind_switch(members)?,
        }
    }
    layout.is_sound().map(|()| layout.devices)
}

/// Devices that have got their places.
struct Layout {
    devices: Vec<Located>,
    /// Buses that are in use.
    taken: BTreeSet<(u32, u32)>,
}

impl Layout {
    fn new(machine: &Machine, groups: &BTreeMap<Group, Vec<Member>>) -> Self {
        let members = groups.values().flatten();
        let mut taken: BTreeSet<(u32, u32)> =
            members.map(|member| (member.address.0, member.address.1)).collect();
        taken.insert((0, 0));
        if machine.host.nvswitches > 0 {
            taken.insert(NVSWITCH_BUS);
        }
        Self { devices: Vec::new(), taken }
    }

    /// What is on bus 0, and the NVSwitches.
    fn chipset(&mut self, machine: &Machine) {
        let numa_node = machine.numa_nodes().first().copied().unwrap_or(0);
        let mut on_root = |address: Address, function| {
            let root = (address.0, address.1);
            self.devices.push(Located { root, bridges: Vec::new(), address, function, numa_node });
        };
        let used: BTreeSet<Address> = machine
            .gpus
            .iter()
            .map(|gpu| gpu.pci)
            .chain(machine.nics.iter().map(|nic| nic.pci))
            .collect();
        let mut free =
            (ENA_DEVICE - 1..DEVICES).map(|at| (0, 0, at)).filter(|at| !used.contains(at));
        if !used.contains(&(0, 0, 0)) {
            on_root((0, 0, 0), Function::HostBridge);
        }
        if let Some(address) = free.next() {
            on_root(address, Function::Disk);
        }
        if let Some(address) = free.next().filter(|_| machine.host.platform.is_ec2()) {
            on_root(address, Function::Ena);
        }
        let (domain, bus) = NVSWITCH_BUS;
        for number in 0..machine.host.nvswitches {
            on_root((domain, bus, number), Function::NvSwitch(number));
        }
    }

    /// A device on the bus of a host bridge.
    fn beside_host_bridge(&mut self, member: Member) {
        let Member { address, function, numa_node } = member;
        let root = (address.0, address.1);
        self.devices.push(Located { root, bridges: Vec::new(), address, function, numa_node });
    }

    /// Devices that share a switch with a host bridge of its own: a port of the root, one into the
    /// switch, and one out of it for each bus.
    fn behind_switch(&mut self, members: &[Member]) -> Result<(), String> {
        let Some(first) = members.first() else { return Ok(()) };
        let (domain, numa_node) = (first.address.0, first.numa_node);
        let mut free = || {
            let bus = (1..BUSES).map(|bus| (domain, bus)).find(|bus| !self.taken.contains(bus));
            let bus = bus.ok_or_else(|| format!("PCI domain {domain:04x} has no bus left"))?;
            self.taken.insert(bus);
            Ok::<u32, String>(bus.1)
        };
        let [root, into, out] = [free()?, free()?, free()?];
        let root_bus = (domain, root);
        let mut bridges = vec![(domain, root, 1), (domain, into, 0)];
        let bridge = |bridges: &[Address], address| Located {
            root: root_bus,
            bridges: bridges.to_vec(),
            address,
            function: Function::Bridge,
            numa_node,
        };
        self.devices.push(bridge(&[], bridges[0]));
        self.devices.push(bridge(&bridges[..1], bridges[1]));
        let buses: BTreeSet<u32> = members.iter().map(|member| member.address.1).collect();
        for (port, bus) in (0..).zip(buses) {
            let address = (domain, out, port);
            if port >= DEVICES {
                return Err(format!("more than {DEVICES} buses would be behind one PCIe switch"));
            }
            self.devices.push(bridge(&bridges, address));
            bridges.push(address);
            for member in members.iter().filter(|member| member.address.1 == bus) {
                let Member { address, function, numa_node } = *member;
                let bridges = bridges.clone();
                self.devices.push(Located {
                    root: root_bus,
                    bridges,
                    address,
                    function,
                    numa_node,
                });
            }
            bridges.pop();
        }
        Ok(())
    }

    /// Whether each address is there once, and each bus is behind one bridge.
    fn is_sound(&self) -> Result<(), String> {
        let mut buses: BTreeMap<(u32, u32), &Located> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for device in &self.devices {
            let (domain, bus, slot) = device.address;
            if !seen.insert(device.address) {
                return Err(format!("two devices are at {domain:04x}:{bus:02x}:{slot:02x}"));
            }
            let first = *buses.entry((domain, bus)).or_insert(device);
            let same_way = (first.root, &first.bridges) == (device.root, &device.bridges);
            if !same_way || device.root.0 != domain {
                return Err(format!(
                    "PCI bus {domain:04x}:{bus:02x} would be in two places: devices of one bus are \
                     on one PCIe switch, and those of one switch in one domain"
                ));
            }
        }
        Ok(())
    }
}
