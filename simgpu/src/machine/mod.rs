//! The machine that is simulated: pure data.
//!
//! Rates are in GB/s, 10^9 bytes per second, which is bytes per nanosecond; one direction.

mod apply;
mod apply_host;
mod catalogue;
mod cluster;
mod efa;
mod faults;
mod file;
mod health;
pub(crate) mod host;
mod instance;
mod instance_host;
mod models;
pub(crate) mod nics;
mod nvlinks;
pub(crate) mod pci;
mod problem;
mod rates;
mod values;

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

pub use efa::{Efa, FailingNic, NicFault};
pub use faults::{CallFault, FailingCall, FailingRank, Faults, Flip, Jitter, RankFault, SlowWay};
pub use health::{
    ComputeMode, EccErrors, ErrorCounter, FabricState, Health, HealthFault, Incident, is_divisible,
};
pub(crate) use host::Host;
pub(crate) use nics::Nic;

use crate::timing::QUEUE;

/// Most GPUs that a machine has: those of the largest NVLink domain that is sold.
pub const GPUS_MAX: u32 = 72;

/// Most NVLinks that a GPU has.
pub const NVLINKS_MAX: u32 = 18;

/// A machine that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BadMachine {
    /// Not in the catalogue.
    #[error(
        "no machine is called `{name}`: the nearest name is `{nearest}`, and the path of a machine \
         file has a `/` or ends in `.toml`"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: String,
    },
    /// Too many hosts, or none.
    #[error("{hosts} hosts of {name} cannot be simulated: give 1 to {most}")]
    Large {
        /// What each of them is.
        name: String,
        /// How many were asked for.
        hosts: u32,
        /// How many there can be.
        most: u32,
    },
    /// A machine file that cannot be read.
    #[error("cannot read machine file {path}: {refusal}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's.
        refusal: io::Error,
    },
    /// A machine file that says something impossible.
    #[error("machine file {path}, line {line}{}: {problem}", in_key(.key))]
    Malformed {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// The key, with the tables it is in; empty if the line is no TOML.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

fn in_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(", `{key}`") }
}

/// The machine of an instance type, such as `p5.48xlarge`; several hosts of a type, such as
/// `2xp5.48xlarge`; or that of a machine file, which has a `/` in its path or a name that ends in
/// `.toml`.
///
/// # Errors
///
/// An unknown name, too many hosts, a file that cannot be read, or one that is malformed.
pub fn load(name_or_path: &str) -> Result<Machine, BadMachine> {
    if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
        return file::read(Path::new(name_or_path));
    }
    let counted = name_or_path.split_once('x').and_then(|(count, instance)| {
        Some((count.parse().ok()?, instance)).filter(|_| !instance.is_empty())
    });
    let (hosts, instance) = counted.unwrap_or((1, name_or_path));
    let machine = instance::machine(instance).ok_or_else(|| BadMachine::Unknown {
        name: instance.to_owned(),
        nearest: nearest_instance(instance),
    })?;
    let machine = machine.times(hosts).map_err(|most| BadMachine::Large {
        name: instance.to_owned(),
        hosts,
        most,
    })?;
    Ok(Machine { name: name_or_path.to_owned(), ..machine })
}

/// The names of all instance types.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    instance::names()
}

/// The instance type whose name is most like this one; nearest of all is one that begins with it.
fn nearest_instance(name: &str) -> String {
    let distance = |known: &&str| (!known.starts_with(name), strsim::osa_distance(name, known));
    let nearest = instance::names().min_by_key(distance);
    nearest.unwrap_or_default().to_owned()
}

/// What a driver's calls and queues are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Entries of a stream's queue.
    pub queue_entries: u64,
    /// What each call takes that waits for a context at rest, in milliseconds.
    pub call_ms: u64,
    /// What making a context takes, in milliseconds.
    pub context_ms: u64,
    /// What pinning host memory takes, in milliseconds for each GiB.
    pub pin_ms_per_gib: u64,
    /// What recording an event takes, and waiting for one, of the stream's time, in nanoseconds.
    pub event_ns: u64,
    /// By how much the time between two events may be wrong, in nanoseconds.
    pub event_error_ns: u64,
    /// A GPU's clocks without load, as a share of the highest, in percent.
    pub idle_clock_percent: u64,
    /// How long a GPU must be under load until its clocks are the highest, in milliseconds.
    pub clock_rise_ms: u64,
    /// How long a GPU is without load until its clocks have fallen, in milliseconds.
    pub clock_fall_ms: u64,
}

impl Driver {
    /// The strictest that there is.
    pub(crate) const STRICT: Self = Self {
        queue_entries: QUEUE as u64,
        call_ms: 1,
        context_ms: 300,
        pin_ms_per_gib: 250,
        event_ns: 1000,
        event_error_ns: 500,
        idle_clock_percent: 25,
        clock_rise_ms: 400,
        clock_fall_ms: 500,
    };
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name, such as `p5.48xlarge`.
    pub name: String,
    /// How many hosts it consists of, with as many GPUs each: the first has the first GPUs, and so on.
    pub hosts: u32,
    /// Where it is one host of several: which of all GPUs is its first.
    pub first_gpu: u32,
    /// The same of network interfaces.
    pub first_nic: usize,
    /// Granularity of event times, in nanoseconds; at least 1. Times are rounded down to it.
    pub event_resolution_ns: u64,
    /// Version of the driver as `cuDriverGetVersion` gives it: 12060 is 12.6.
    pub driver_version: u32,
    /// Whether what GPUs and CPUs say to each other is encrypted.
    pub confidential_computing: bool,
    /// Whether what GPUs' memory holds is described where that is enough, instead of stored.
    pub symbolic_memory: bool,
    /// What the driver's calls and queues are like.
    pub driver: Driver,
    /// The GPUs, in the order of their ordinals; at least one.
    pub gpus: Vec<Gpu>,
    /// Every ordered pair of two different GPUs, sorted by source, then target.
    pub pairs: Vec<Pair>,
    /// The network interfaces that do RDMA, in the order of their addresses.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// What they can do, and what that takes.
    pub efa: Efa,
    /// What the GPUs are in.
    pub host: Host,
    /// What the library of collectives finds.
    #[serde(default)]
    pub nccl: Nccl,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// File to which each process appends a JSON line when it ends normally: counts of calls and
    /// of what was not given back.
    pub report: Option<String>,
}

impl Machine {
    /// The way from one GPU to another; `None` if there are no such two.
    pub fn pair(&self, source: u32, target: u32) -> Option<&Pair> {
        let key = (source, target);
        let at = self.pairs.binary_search_by_key(&key, |pair| (pair.source, pair.target));
        at.ok().map(|at| &self.pairs[at])
    }

    /// The UUID of a GPU: the same whenever a machine of this name is simulated.
    pub fn uuid(&self, ordinal: u32) -> [u8; 16] {
        // With the ordinal in front, no two GPUs of a machine are alike.
        let ordinal = self.first_gpu + ordinal;
        hash(ordinal.to_le_bytes().into_iter().chain(self.name.bytes()))
    }

    /// Whether NVLink switches store to, and load the sum of, the memory of several GPUs, this one
    /// among them: multimem instructions came with compute capability 9.0, and their driver with
    /// CUDA 12.1.
    pub fn gives_multicast(&self, gpu: u32) -> bool {
        let Gpu { nvlinks, compute_capability, .. } = &self.gpus[gpu as usize];
        let usual = nvlinks.switch && *compute_capability >= (9, 0);
        self.driver_version >= 12_010 && self.nccl.nvls.unwrap_or(usual)
    }

    /// The share of NVLink's rate that is reached through switches that reduce: what NCCL's model
    /// reckons with, by the compute capability.
    pub(crate) fn nvls_efficiency(&self, gpu: u32) -> f64 {
        let usual = if self.gpus[gpu as usize].compute_capability >= (10, 0) { 0.74 } else { 0.85 };
        self.nccl.nvls_efficiency.unwrap_or(usual)
    }

    /// Where an NVLink of a GPU ends; `None` if it is down or there is none of this number.
    pub fn nvlink_end(&self, gpu: u32, link: u32) -> Option<NvLinkEnd> {
        let nvlinks = &self.gpus.get(gpu as usize)?.nvlinks;
        if link >= nvlinks.count || nvlinks.down.contains(&link) {
            return None;
        }
        if nvlinks.switch {
            return Some(NvLinkEnd::Switch);
        }
        // Links are numbered by the GPUs in which they end.
        let up = (0..link).filter(|other| !nvlinks.down.contains(other));
        let mut before = u32::try_from(up.count()).unwrap_or(u32::MAX);
        for pair in self.pairs.iter().filter(|pair| pair.source == gpu) {
            match pair.link {
                Link::NvLink(links) if before < links => return Some(NvLinkEnd::Gpu(pair.target)),
                Link::NvLink(links) => before -= links,
                Link::Pcie => {}
            }
        }
        None
    }
}

/// FNV-1a, 128 bits.
fn hash(bytes: impl Iterator<Item = u8>) -> [u8; 16] {
    let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    hash.to_be_bytes()
}

/// Where an NVLink ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkEnd {
    /// In an NVSwitch.
    Switch,
    /// In the GPU of this ordinal.
    Gpu(u32),
}

/// Every ordered pair of so many GPUs, as `connect` makes it of one over PCIe that is refused.
fn pairs_of(gpus: u32, connect: impl Fn(&mut Pair)) -> Vec<Pair> {
    let rate = Rate { gb_s: 1.0, latency_ns: 0.0 };
    let ordered = (0..gpus).flat_map(|source| (0..gpus).map(move |target| (source, target)));
    let pairs = ordered.filter(|(source, target)| source != target).map(|(source, target)| {
        let mut pair = Pair {
            source,
            target,
            link: Link::Pcie,
            read_allowed: false,
            write_allowed: false,
            atomics: false,
            ce_read: rate,
            ce_write: rate,
            sm_read: rate,
            sm_write: rate,
            load_latency_ns: 0.0,
            detour: false,
        };
        connect(&mut pair);
        pair
    });
    pairs.collect()
}

/// Speed of one kind of transfer: n bytes last `latency_ns + n / gb_s` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Bytes per nanosecond.
    pub gb_s: f64,
    /// What every transfer costs, whatever its size.
    pub latency_ns: f64,
}

/// What the library of collectives finds beside GPUs and pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nccl {
    /// Whether the NVSwitch reduces; `None`: from NVLink 4 on, where GPUs have compute capability
    /// 9.0.
    pub nvls: Option<bool>,
    /// What is reached of the NVSwitch's bound; `None`: by the compute capability.
    pub nvls_efficiency: Option<f64>,
    /// What the network moves for each GPU, one way; `None`: what its interfaces do.
    pub net_gb_s: Option<f64>,
    /// The network's name in the log.
    pub net_name: String,
    /// What making a communicator takes, in milliseconds.
    pub init_ms: u64,
    /// The size of the queue in which each rank has the descriptions of its work.
    pub work_fifo_bytes: u64,
}

impl Default for Nccl {
    fn default() -> Self {
        Self {
            nvls: None,
            nvls_efficiency: None,
            net_gb_s: None,
            net_name: "Socket".to_owned(),
            init_ms: 500,
            work_fifo_bytes: 1 << 20,
        }
    }
}

/// The two engines' rates on the same way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Copy engines.
    pub ce: Rate,
    /// Kernels.
    pub sm: Rate,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// As the driver and NVML give it.
    pub name: String,
    /// All device memory, in bytes.
    pub memory_bytes: u64,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Highest clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: u32,
    /// Highest clock of the memory, in MHz.
    pub memory_clock_mhz: u32,
    /// Width of the memory bus, in bits.
    pub memory_bus_bits: u32,
    /// PCI domain, bus, device.
    pub pci: (u32, u32, u32),
    /// The identity of the device among those of its vendor.
    pub pci_device_id: u32,
    /// PCI Express generation now and at most.
    pub pcie_generation: (u32, u32),
    /// PCI Express lanes now and at most.
    pub pcie_lanes: (u32, u32),
    /// The PCIe switch that the GPU is on, by number; GPUs of one number share it. `None`: on
    /// the host bridge.
    pub pcie_switch: Option<u32>,
    /// NUMA node of the host that is nearest.
    pub numa_node: u32,
    /// NVLinks.
    pub nvlinks: NvLinks,
    /// Copies within its memory; bytes are counted once.
    pub local: Rates,
    /// From host memory: the copy engine; a kernel that loads host memory.
    pub from_host: Rates,
    /// To host memory: the copy engine; a kernel that stores to host memory.
    pub to_host: Rates,
    /// One dependent load of its own memory.
    pub load_latency_ns: f64,
    /// One dependent load of host memory.
    pub host_load_latency_ns: f64,
    /// All that leaves the GPU for other GPUs over NVLink together; `None`: no limit of its own.
    pub egress_gb_s: Option<f64>,
    /// All that arrives from other GPUs over NVLink together.
    pub ingress_gb_s: Option<f64>,
    /// All that leaves the GPU over PCIe: to the host, and to GPUs that are reached by PCIe.
    pub pcie_up_gb_s: Option<f64>,
    /// All that arrives over PCIe.
    pub pcie_down_gb_s: Option<f64>,
    /// What a kernel costs beside its memory traffic, from the end of what was before it in its
    /// stream.
    pub launch_ns: f64,
    /// Reasons for which its clocks are held down.
    pub throttle: Vec<Throttle>,
    /// Links of NVLink-C2C to its CPU, which then carry what would go over PCIe to the host.
    pub c2c_links: u32,
    /// What else NVML says of how it is doing.
    pub health: Health,
}

/// The NVLinks of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NvLinks {
    /// Marketing generation, 1 to 5; 0 without any.
    pub generation: u32,
    /// How many there are, at most 18.
    pub count: u32,
    /// Numbers of those that are down.
    pub down: Vec<u32>,
    /// Whether they end in an NVSwitch rather than in other GPUs.
    pub switch: bool,
}

impl Gpu {
    /// Whether what it does sees all that other devices have written to its memory before. NCCL
    /// waits for them on GPUs before Hopper (NVIDIA/nccl 2.30.7, src/graph/paths.cc,
    /// `ncclTopoNeedFlush`).
    pub(crate) const fn orders_writes(&self) -> bool {
        self.compute_capability.0 >= 9
    }

    /// NVIDIA's number for the NVSwitch that its links end in: pci.ids for that of A100.
    pub(crate) const fn nvswitch_device_id(&self) -> u32 {
        if self.nvlinks.generation <= 3 { 0x1af1 } else { 0x22a3 }
    }
}

/// Why clocks are held down; NVML's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Throttle {
    /// `nvmlClocksThrottleReasonGpuIdle`
    GpuIdle,
    /// `nvmlClocksThrottleReasonApplicationsClocksSetting`
    ApplicationsClocksSetting,
    /// `nvmlClocksThrottleReasonSyncBoost`
    SyncBoost,
    /// `nvmlClocksThrottleReasonDisplayClockSetting`
    DisplayClockSetting,
    /// `nvmlClocksThrottleReasonSwPowerCap`
    SwPowerCap,
    /// `nvmlClocksThrottleReasonHwSlowdown`
    HwSlowdown,
    /// `nvmlClocksThrottleReasonSwThermalSlowdown`
    SwThermalSlowdown,
    /// `nvmlClocksThrottleReasonHwThermalSlowdown`
    HwThermalSlowdown,
    /// `nvmlClocksThrottleReasonHwPowerBrakeSlowdown`
    HwPowerBrake,
}

/// The way from one GPU to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Ordinal of the GPU where the data is.
    pub source: u32,
    /// Ordinal of the GPU where the data goes.
    pub target: u32,
    /// What it goes over.
    pub link: Link,
    /// Whether the target's contexts may reach the source's memory (a read).
    pub read_allowed: bool,
    /// Whether the source's contexts may reach the target's memory (a write).
    pub write_allowed: bool,
    /// Whether atomics work natively on it.
    pub atomics: bool,
    /// Copy engine of the target.
    pub ce_read: Rate,
    /// Copy engine of the source.
    pub ce_write: Rate,
    /// Kernel on the target that loads the source's memory.
    pub sm_read: Rate,
    /// Kernel on the source that stores to the target's memory.
    pub sm_write: Rate,
    /// One dependent load by the target of the source's memory.
    pub load_latency_ns: f64,
    /// Whether its data goes over PCIe though there are NVLinks, and nothing says so.
    #[serde(default)]
    pub detour: bool,
}

impl Pair {
    /// Whether both GPUs are in one host, if hosts have so many.
    pub(crate) const fn is_within_host(&self, gpus_of_host: u32) -> bool {
        self.source / gpus_of_host == self.target / gpus_of_host
    }
}

/// What connects two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// So many NVLinks, directly or through an NVSwitch.
    NvLink(u32),
    /// PCIe.
    Pcie,
}

#[cfg(test)]
pub(crate) fn of_file(text: &str) -> Machine {
    file::parse(text, "machine").unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

#[cfg(test)]
mod damaged;
#[cfg(test)]
mod documentation;
#[cfg(test)]
mod tests;
