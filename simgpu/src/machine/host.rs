//! The host of a machine: its processors, its memory, and what is installed on it. The GPUs and
//! what connects them are none of its business.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Machine;

/// The kernel's release.
const KERNEL: &str = "6.8.0-1031-aws";

/// Processors of a machine that is no instance.
const CPUS: u32 = 8;

/// Memory of a machine that is no instance.
const MEMORY_MIB: u64 = 64 << 10;

/// The host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The instance type, or what else the firmware calls the machine.
    pub product: String,
    /// What the system runs on.
    pub platform: Platform,
    /// Whose processors it has.
    pub processor: Processor,
    /// Logical processors.
    pub cpus: u32,
    /// All memory.
    pub memory_mib: u64,
    /// NUMA nodes that have processors, at least; a node that a GPU is on is there in any case.
    pub numa_nodes: u32,
    /// The kernel's name for the host.
    pub hostname: String,
    /// The kernel's name for the boot.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel: String,
    /// Memory that a process may lock; 0: as much as there is.
    pub memlock_kib: u64,
    /// Size of `/dev/shm`.
    pub shm_mib: u64,
    /// Whether devices reach memory through an IOMMU.
    pub iommu: bool,
    /// How the processors' clocks are governed; `None`: the kernel does not.
    pub governor: Option<String>,
    /// NVSwitches that the host sees.
    pub nvswitches: u32,
    /// Whether a Fabric Manager runs.
    pub fabric_manager: bool,
    /// Whether there is an IMEX channel, which GPUs of several hosts share memory through.
    pub imex: bool,
    /// Whether network interfaces reach the memory of GPUs.
    pub gpudirect: bool,
    /// Version of libfabric; `None`: not installed. So it is for the three below.
    pub libfabric: Option<String>,
    /// Version of the plugin that NCCL reaches libfabric with.
    pub ofi_nccl: Option<String>,
    /// Version of NCCL.
    pub nccl: Option<String>,
    /// Version of CUDA's runtime.
    pub cuda_runtime: Option<String>,
    /// Modules that are not loaded though they would be.
    pub modules_absent: Vec<String>,
    /// Files that are not what they would be.
    pub files: Vec<Planted>,
}

/// What a system runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Platform {
    /// EC2's hypervisor.
    Nitro,
    /// EC2's former hypervisor.
    Xen,
    /// An EC2 machine without a hypervisor.
    Metal,
    /// No EC2 machine.
    Other,
}

/// Whose processors a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Processor {
    /// Two threads a core.
    Intel,
    /// Two threads a core.
    Amd,
    /// Amazon's, of Arm's Neoverse N1.
    Graviton,
    /// NVIDIA's, of Arm's Neoverse V2.
    Grace,
}

impl Platform {
    /// Whether it is one of EC2's.
    pub(crate) const fn is_ec2(self) -> bool {
        !matches!(self, Self::Other)
    }
}

impl Processor {
    /// Logical processors of a core.
    pub(crate) const fn threads(self) -> u32 {
        match self {
            Self::Intel | Self::Amd => 2,
            Self::Graviton | Self::Grace => 1,
        }
    }

    /// Whether it is one of Arm's.
    pub(crate) const fn is_arm(self) -> bool {
        matches!(self, Self::Graviton | Self::Grace)
    }
}

/// A file that a machine file describes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planted {
    /// Where; absolute.
    pub path: String,
    /// What is there.
    pub what: Plant,
    /// The place of the process that sees it; `None`: all do.
    pub process: Option<u32>,
}

/// What is at the path of a planted file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plant {
    /// A file with this text.
    Text(String),
    /// A symbolic link to this.
    Link(String),
    /// Nothing, nor below it.
    Absent,
    /// A file that only root may read.
    Denied,
}

impl Host {
    /// The host of a machine that is no instance.
    pub(super) fn plain() -> Self {
        Self {
            product: String::new(),
            platform: Platform::Other,
            processor: Processor::Intel,
            cpus: CPUS,
            memory_mib: MEMORY_MIB,
            numa_nodes: 1,
            hostname: "simulated".to_owned(),
            boot_id: String::new(),
            kernel: KERNEL.to_owned(),
            memlock_kib: 0,
            shm_mib: MEMORY_MIB / 2,
            iommu: false,
            governor: None,
            nvswitches: 0,
            fabric_manager: false,
            imex: false,
            gpudirect: false,
            libfabric: None,
            ofi_nccl: None,
            nccl: Some("2.27.7".to_owned()),
            cuda_runtime: Some("13.0.48".to_owned()),
            modules_absent: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Its cores; the last may have fewer threads than the others.
    pub(crate) const fn cores(&self) -> u32 {
        self.cpus.div_ceil(self.processor.threads())
    }

    /// The name of a machine's boot: the same whenever a machine of this name is simulated.
    pub(super) fn boot_of(machine: &str) -> String {
        let hash = super::hash(b"boot".iter().copied().chain(machine.bytes()));
        let digits = format!("{:032x}", u128::from_be_bytes(hash));
        // A random UUID says so by its thirteenth and its seventeenth digit.
        format!(
            "{}-{}-4{}-8{}-{}",
            &digits[..8],
            &digits[8..12],
            &digits[13..16],
            &digits[17..20],
            &digits[20..]
        )
    }
}

impl Machine {
    /// The NUMA nodes: those of the host and those that devices are on.
    pub(crate) fn numa_nodes(&self) -> BTreeSet<u32> {
        let devices = self.gpus.iter().map(|gpu| gpu.numa_node);
        let nics = self.nics.iter().map(|nic| nic.numa_node);
        (0..self.host.numa_nodes.max(1)).chain(devices).chain(nics).collect()
    }

    /// The logical processors of a NUMA node. Cores are shared evenly by the nodes in their order;
    /// the second threads of all cores are numbered behind the first ones, and where there are too
    /// few the last core has one thread.
    pub(crate) fn cpus_of(&self, node: u32) -> Vec<u32> {
        let nodes = self.numa_nodes();
        let Some(place) = nodes.iter().position(|&other| other == node) else { return Vec::new() };
        let count = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
        let place = u64::try_from(place).unwrap_or(u64::MAX);
        let threads = self.host.processor.threads();
        let cores = self.host.cores();
        let border = |place: u64| u32::try_from(u64::from(cores) * place / count).unwrap_or(cores);
        let own = border(place)..border(place + 1);
        let of_thread = |thread| own.clone().map(move |core| thread * cores + core);
        (0..threads).flat_map(of_thread).filter(|&cpu| cpu < self.host.cpus).collect()
    }
}

/// The kernel's form of a set of numbers in their order: `0-23,48-71`.
pub(crate) fn list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}
