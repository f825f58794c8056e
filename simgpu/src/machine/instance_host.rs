//! Hosts and network interfaces of instances. What the catalogue does not say is assumed here;
//! `docs/machines.md`, "Hosts", lists it.

use super::{
    Gpu, Host, Nic,
    catalogue::{Architecture, CpuVendor, HostLink, Hypervisor},
    host::{Platform, Processor},
    instance::Builder,
    nics::{Place, PortState},
};

/// The PCI bus of the first network interface where there are several; the others follow.
const NIC_BUS_FIRST: u32 = 0x40;

/// The address of the only network interface of an instance.
const NIC_ONLY: (u32, u32, u32) = (0, 0, 6);

/// Rate of an interface where the catalogue tells the instance's only, in Gbit/s.
const NIC_GBPS: u32 = 400;

/// Rate that the driver of the interfaces gives where the device tells none, in Gbit/s:
/// `efa_query_port` of Linux' `drivers/infiniband/hw/efa/efa_verbs.c`.
const NIC_GBPS_UNTOLD: u32 = 100;

/// Lanes of a network interface.
const NIC_LANES: u32 = 16;

/// Memory for each processor where the catalogue tells no memory, in MiB.
const MEMORY_MIB_PER_CPU: u64 = 8 << 10;

/// Families on EC2's former hypervisor where the catalogue does not say.
const XEN_FAMILIES: [&str; 2] = ["p2", "g3"];

impl Builder {
    /// The host of an instance type of this name.
    pub(super) fn host_of(&self, name: &str) -> Host {
        let instance = self.instance;
        let plain = Host::plain();
        let platform = self.platform();
        let cpus = instance.vcpus.unwrap_or(plain.cpus);
        let memory_mib = instance.host_mem_mib.unwrap_or(u64::from(cpus) * MEMORY_MIB_PER_CPU);
        let switched = self.nvlinks().switch;
        let efa = instance.efa == Some(true);
        let imex = instance.imex_required == Some(true);
        let installed = |version: &str| efa.then(|| version.to_owned());
        Host {
            // The former hypervisor does not tell the type.
            product: if platform == Platform::Xen { "HVM domU" } else { name }.to_owned(),
            platform,
            processor: self.processor(),
            cpus,
            memory_mib,
            numa_nodes: self.numa_nodes(),
            hostname: "ip-10-0-0-1".to_owned(),
            boot_id: Host::boot_of(name),
            shm_mib: memory_mib / 2,
            nvswitches: self.nvswitches(),
            // The switches of GPUs in several hosts are managed elsewhere.
            fabric_manager: switched && !imex,
            imex,
            gpudirect: instance.gpudirect_rdma == Some(true),
            libfabric: installed("2.1.0"),
            ofi_nccl: installed("1.16.2"),
            ..plain
        }
    }

    fn platform(&self) -> Platform {
        let instance = self.instance;
        if instance.bare_metal == Some(true) {
            return Platform::Metal;
        }
        match instance.hypervisor {
            Some(Hypervisor::Xen) => Platform::Xen,
            None if XEN_FAMILIES.contains(&instance.family.as_str()) => Platform::Xen,
            Some(Hypervisor::Nitro) | None => Platform::Nitro,
        }
    }

    fn processor(&self) -> Processor {
        let instance = self.instance;
        match (instance.cpu_vendor, instance.arch, instance.host_link) {
            (Some(CpuVendor::Amd), _, _) => Processor::Amd,
            (_, _, Some(HostLink::NvLinkC2c)) => Processor::Grace,
            (Some(CpuVendor::Aws), _, _) | (_, Some(Architecture::Arm64), _) => Processor::Graviton,
            (Some(CpuVendor::Intel) | None, _, _) => Processor::Intel,
        }
    }

    /// NVSwitches that are PCI devices of the host: six for A100, four for Hopper. Later ones are
    /// reached through interfaces of InfiniBand.
    fn nvswitches(&self) -> u32 {
        match (self.nvlinks().switch, self.nvlinks().generation) {
            (true, 3) => 6,
            (true, 4) => 4,
            _ => 0,
        }
    }

    /// The network interfaces that do RDMA. Those that reach the memory of GPUs are on the
    /// switches of these, shared out in their order.
    pub(super) fn nics(&self, gpus: &[Gpu]) -> Vec<Nic> {
        let instance = self.instance;
        if instance.efa != Some(true) {
            return Vec::new();
        }
        let total_gbps = instance.efa_total_gbps;
        let by_rate = total_gbps.map(|total_gbps| total_gbps / NIC_GBPS);
        let count = instance.efa_interfaces.or(by_rate).unwrap_or(1).max(1);
        // The only interface does what the network does.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "5 to 6400")]
        let of_network = instance.network_gbps.filter(|_| count == 1).map(|gbps| gbps as u32);
        let total_gbps = total_gbps.or(of_network);
        let rate_gbps = total_gbps.map_or(NIC_GBPS_UNTOLD, |total_gbps| total_gbps / count);
        let nic = |number: u32| {
            let near = &gpus[number as usize * gpus.len() / count as usize];
            let pcie = self.pcie();
            let place = match (instance.gpudirect_rdma, near.pcie_switch) {
                (Some(true), Some(switch)) => Place::Switch(switch),
                (Some(true), None) => Place::Gpu(number * instance.gpu_count / count),
                _ => Place::Alone,
            };
            let only = count == 1 && place == Place::Alone;
            Nic {
                host: 0,
                pci: if only { NIC_ONLY } else { (0, NIC_BUS_FIRST + number, 0) },
                pci_device_id: self.nic_device_id(),
                place,
                numa_node: near.numa_node,
                rate_gbps,
                state: PortState::Active,
                pcie_generation: (pcie.0, pcie.0),
                pcie_lanes: (NIC_LANES, NIC_LANES),
            }
        };
        (0..count).map(nic).collect()
    }

    /// Amazon's number for a generation of its interfaces.
    fn nic_device_id(&self) -> u32 {
        match (self.instance.efa_gen, self.instance.nitro) {
            (Some(3..), _) => 0xefa3,
            (Some(2), _) => 0xefa2,
            (None, Some(4..)) => 0xefa1,
            _ => 0xefa0,
        }
    }
}
