//! The machine that g2g runs on, as the kernel, the driver and the libraries describe it.
//!
//! Owns all reading of `/proc`, `/sys`, the driver and NVML that describes the machine. Measures
//! nothing.

pub mod acs;
pub mod counters;
pub mod health;
pub mod host;
pub mod links;
pub mod nics;
pub mod pci;
pub mod software;
pub mod survey;
pub mod system;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

use crate::ffi::nvml::Nvml;
pub use crate::ffi::nvml::{Fabric, FabricState, Gpu as NvmlGpu, NvLink};
pub use crate::ffi::{
    simulation::{attach as simulate, host as simulated_host, join as join_simulation},
    watchdog::{limit_calls, stay_where_it_hangs},
};

use self::system::System;
use crate::{
    ffi::{self, cuda, fabric, host as own_host, nccl},
    plan::{
        Gpu, NicName,
        topology::{Domain, GpuNode, NicNode, Node, NumaNode, Topology, cpu_list},
    },
    units::Bytes,
};

/// The NUMA nodes, the CPUs and the GPUs that this process may use. A kernel without NUMA counts
/// as one node with all CPUs.
///
/// # Errors
///
/// The kernel does not say on which CPUs this process may run; the driver does not describe a GPU.
pub fn topology() -> Result<Topology, ffi::CallError> {
    let nodes = nodes(&System::Kernel, &own_host::allowed_cpus()?);
    Ok(Topology { nodes, gpus: gpus()?, ..Topology::default() })
}

/// The NVLink domain that all of these GPUs are in, with the GPUs of other hosts.
pub fn nvlink_domain(gpus: &[GpuNode]) -> Option<Domain> {
    let nvml = Nvml::load().ok()?;
    let fabrics: Option<Vec<Fabric>> =
        gpus.iter().map(|gpu| nvml.fabric_of(&gpu.pci_bus_id)).collect();
    let domain = domain(&fabrics?, host::imex_channels(System::here()))?;
    Some(Domain { lack: lack_of_fabric_handles(), ..domain })
}

/// The domain that all of these GPUs have joined, if it is one.
pub(crate) fn domain<'a>(
    fabrics: impl IntoIterator<Item = &'a Fabric>,
    imex_channels: BTreeSet<u32>,
) -> Option<Domain> {
    let joined = |fabric: &Fabric| {
        let is_joined = fabric.state == FabricState::Completed;
        Some((fabric.cluster_uuid.clone().filter(|_| is_joined)?, fabric.clique))
    };
    let parts: Option<BTreeSet<_>> = fabrics.into_iter().map(joined).collect();
    let parts = parts.filter(|parts| parts.len() == 1)?;
    let (cluster_uuid, clique) = parts.into_iter().next()?;
    Some(Domain { cluster_uuid, clique, imex_channels, lack: None })
}

/// What a driver says to a question that it does not know (`CUDA_ERROR_INVALID_VALUE`).
const INVALID_VALUE: u32 = 1;

/// Why the driver shares no memory of GPUs with other hosts, if so.
pub(crate) fn lack_of_fabric_handles() -> Option<String> {
    let driver = cuda::driver().ok()?;
    let lack = |device: &cuda::Device| match device.gives_fabric_handles() {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "the driver gives no fabric handles of {device}'s memory \
             (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED is 0)"
        )),
        Err(ffi::CallError { source: ffi::Cause::Library { code: INVALID_VALUE, .. }, .. }) => Some(
            "the driver is too old to share memory of GPUs between hosts: it takes 545 or newer \
             (fabric handles, CUDA 12.3)"
                .to_owned(),
        ),
        Err(err) => Some(err.to_string()),
    };
    driver.devices().ok()?.iter().find_map(lack)
}

/// The GPUs that the driver reports; none without a driver that works.
fn gpus() -> Result<Vec<GpuNode>, ffi::CallError> {
    let Ok(driver) = cuda::driver() else { return Ok(Vec::new()) };
    let describe = |device: cuda::Device| {
        let bus = device.pci_bus_id()?;
        let (numa_node, pcie_path) = place(&bus);
        Ok(GpuNode {
            gpu: Gpu(device.ordinal()),
            name: device.name()?,
            uuid: device.uuid()?,
            memory: device.total_memory()?,
            numa_node,
            pcie_path,
            pci_bus_id: bus,
        })
    };
    driver.devices()?.into_iter().map(describe).collect()
}

/// The NUMA node of the device with this PCI address, and its path below its root.
fn place(address: &str) -> (Option<NumaNode>, Vec<String>) {
    let system = System::here();
    let node = pci::numa_node(system, address, &mut Vec::new()).map(NumaNode);
    (node, pci::path(system, address).unwrap_or_default())
}

/// Why the driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code that it returned, if there is a driver that does not start.
    pub code: Option<u32>,
    /// The reason, and what to do: a sentence.
    pub reason: String,
}

/// Why the driver cannot be used here; `None`: it can.
pub fn driver_refusal() -> Option<Refusal> {
    let refused =
        |absent: ffi::library::Absent| Refusal { code: absent.code(), reason: absent.to_string() };
    cuda::driver().err().map(refused)
}

/// Whether traffic between GPUs and CPUs is encrypted; `None`: NVML does not report it.
pub fn confidential_computing() -> Option<bool> {
    Nvml::load().ok()?.confidential_computing()
}

/// Whether the driver exports memory of all GPUs as dma-bufs; `None`: it does not report it.
pub fn gives_dma_bufs() -> Option<bool> {
    let devices = cuda::driver().ok()?.devices().ok()?;
    let answers: Option<Vec<bool>> =
        devices.into_iter().map(|device| device.gives_dma_bufs().ok()).collect();
    answers.filter(|answers| !answers.is_empty()).map(|answers| answers.into_iter().all(|yes| yes))
}

/// libfabric, loaded on first use.
static FABRIC: OnceLock<Result<&'static fabric::Library, String>> = OnceLock::new();

/// libfabric, if it is here.
pub(crate) fn fabric() -> Result<&'static fabric::Library, String> {
    FABRIC.get_or_init(|| fabric::Library::load(None).map_err(|err| err.to_string())).clone()
}

/// The network interfaces that libfabric offers, by the library at `path` or else the first that
/// is found; none without a library. What is chosen here is used from now on.
pub fn offered_nics(path: Option<&Path>) -> Vec<NicNode> {
    let load = || fabric::Library::load(path).map_err(|err| err.to_string());
    let Ok(library) = FABRIC.get_or_init(load) else { return Vec::new() };
    let offers = library.offers(&fabric::Query::default()).unwrap_or_default();
    let mut nics: Vec<NicNode> = Vec::new();
    for offer in &offers {
        let facts = offer.facts();
        let name = NicName {
            domain: facts.domain.clone(),
            fabric: facts.fabric.clone(),
            device: facts.nic.as_ref().and_then(|nic| nic.name.clone()),
        };
        let is_known = |nic: &NicNode| nic.provider == facts.provider && nic.name == name;
        // A link-local address does not identify a network.
        if nics.iter().any(is_known) || name.fabric.starts_with("fe80:") {
            continue;
        }
        let address = facts.nic.as_ref().and_then(|nic| nic.pci_bus_id.clone());
        let (numa_node, pcie_path) = address.as_deref().map(place).unwrap_or_default();
        nics.push(NicNode {
            provider: facts.provider.clone(),
            is_loopback: is_loopback(&name),
            name,
            has_rma: facts.caps.contains("FI_RMA"),
            message_max: facts.max_msg_size,
            numa_node,
            pcie_path,
        });
    }
    nics
}

/// Loads the NCCL at `path`, if there is one, for all later uses.
pub fn nccl(path: Option<&Path>) {
    // A later use reports why it is missing.
    let _ = nccl::Library::load(path);
}

/// How often each item occurs.
pub(crate) fn tally<K: Ord>(items: impl IntoIterator<Item = K>) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    counts
}

/// Whether an interface only reaches this host.
fn is_loopback(nic: &NicName) -> bool {
    nic.domain == "lo" || nic.domain.starts_with("shm") || nic.fabric.starts_with("127.")
}

/// A foreign library that is used.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Library {
    /// What it is for.
    pub name: String,
    /// The file.
    pub path: String,
    /// Its version, as it says itself.
    pub version: String,
}

/// The version of NCCL's header that the program was built with, as `ncclGetVersion` counts.
pub const NCCL_HEADERS: u32 = nccl::HEADERS;

/// The foreign libraries that this process has loaded.
pub fn libraries() -> Vec<Library> {
    let driver = cuda::driver().ok().map(|driver| Library {
        name: "CUDA driver".to_owned(),
        path: driver.library.display().to_string(),
        version: format!("{}.{}", driver.version / 1000, driver.version % 1000 / 10),
    });
    let fabric = FABRIC.get().and_then(|found| found.as_ref().ok()).map(|library| Library {
        name: "libfabric".to_owned(),
        path: library.path.display().to_string(),
        version: library.version(),
    });
    let nccl = nccl::Library::loaded().map(|library| Library {
        name: "NCCL".to_owned(),
        path: library.path.display().to_string(),
        version: library.version().to_string(),
    });
    driver.into_iter().chain(fabric).chain(nccl).collect()
}

fn nodes(system: &System, allowed: &[u32]) -> Vec<Node> {
    let usable = |cpus: Vec<u32>| -> Vec<u32> {
        let mut cpus: Vec<u32> = cpus.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
        let siblings = |cpu: u32| {
            let cpu = format!("/sys/devices/system/cpu/cpu{cpu}");
            let text = system.text(format!("{cpu}/topology/thread_siblings_list"));
            text.ok().and_then(|text| cpu_list(&text)).unwrap_or_default()
        };
        // Whole cores first: a CPU comes late if a lower thread of its core is usable too.
        cpus.sort_by_key(|&cpu| {
            let lower = |&&other: &&u32| other < cpu && allowed.contains(&other);
            (siblings(cpu).iter().filter(lower).count(), cpu)
        });
        cpus
    };
    let told = survey::nodes(system, &mut Vec::new()).into_iter().map(|node| {
        let cpus = node.cpus.as_deref().and_then(cpu_list).unwrap_or_default();
        Node { id: NumaNode(node.number), cpus: usable(cpus), distances: node.distances }
    });
    let nodes: Vec<Node> = told.collect();
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        let cpus = usable(allowed.to_vec());
        return vec![Node { id: NumaNode(0), cpus, distances: vec![10] }];
    }
    nodes
}

/// Memory that can be taken without swapping, by the kernel's estimate, and no more than the
/// control group of a container has left.
pub fn available_memory() -> Option<Bytes> {
    let system = System::Kernel;
    let of_machine = host::meminfo(&system, "MemAvailable").ok()?;
    let of_group = host::memory_left(&system);
    Some(of_group.map_or(of_machine, |of_group| of_group.min(of_machine)))
}

/// All memory of the machine.
pub fn total_memory() -> Option<Bytes> {
    host::meminfo(&System::Kernel, "MemTotal").ok()
}

/// Room left for shared memory.
///
/// # Errors
///
/// There is no `/dev/shm`.
pub fn free_shared_memory() -> Result<Bytes, ffi::CallError> {
    own_host::free_space(c"/dev/shm")
}

/// Why `size` of shared memory cannot be taken; `None`: there is room.
pub(crate) fn lack_of_shared_memory(what_needs: &str, size: Bytes) -> Option<String> {
    match free_shared_memory() {
        Err(err) => Some(format!("no shared memory here: {err}")),
        Ok(free) if size > free => Some(format!(
            "{what_needs} {} of /dev/shm but {} are free: enlarge it (in a container: --shm-size)",
            size.rounded(),
            free.rounded()
        )),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A machine with these files.
    fn system(files: &[(String, &str)]) -> System {
        let files = files.iter().map(|(path, text)| (path.clone(), json!({ "text": text })));
        System::described(&Value::from(files.collect::<Map<_, _>>()).to_string()).unwrap()
    }

    #[test]
    fn nodes_distances_and_whole_cores_first_are_read() {
        const FOLDER: &str = "/sys/devices/system";
        let mut files = vec![(format!("{FOLDER}/node/possible"), "0-1\n")];
        for (node, cpus, distance) in [(0, "0-1,4-5\n", "10 21\n"), (1, "2-3,6-7\n", "21 10\n")] {
            files.push((format!("{FOLDER}/node/node{node}/cpulist"), cpus));
            files.push((format!("{FOLDER}/node/node{node}/distance"), distance));
        }
        for cpu in 0..8 {
            let siblings = ["0,4\n", "1,5\n", "2,6\n", "3,7\n"][cpu % 4];
            let folder = format!("{FOLDER}/cpu/cpu{cpu}/topology");
            files.push((format!("{folder}/thread_siblings_list"), siblings));
        }
        let node = |id, cpus: &[u32], distances: &[u32]| Node {
            id: NumaNode(id),
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
        };
        assert_eq!(
            nodes(&system(&files), &[0, 1, 4, 5, 6, 7]),
            [node(0, &[0, 1, 4, 5], &[10, 21]), node(1, &[6, 7], &[21, 10])]
        );
    }

    #[test]
    fn a_containers_limit_counts_without_its_cached_files() {
        let left = |most: &str| {
            let file = |name: &str| format!("/sys/fs/cgroup/{name}");
            host::memory_left(&system(&[
                (file("memory.max"), most),
                (file("memory.current"), "700\n"),
                (file("memory.stat"), "anon 100\ninactive_file 200\n"),
            ]))
        };
        assert_eq!(host::memory_left(&system(&[])), None);
        assert_eq!(left("1000\n"), Some(Bytes::new(500)));
        assert_eq!(left("max\n"), None);
    }

    #[test]
    fn a_kernel_without_numa_is_one_node() {
        let nodes = nodes(&system(&[]), &[3, 4]);
        assert_eq!((nodes.len(), nodes[0].id, &nodes[0].cpus[..]), (1, NumaNode(0), &[3, 4][..]));
    }

    #[test]
    fn this_machine_has_cpus_memory_and_shared_memory() {
        let topology = topology().unwrap();
        assert!(topology.nodes.iter().any(|node| !node.cpus.is_empty()));
        assert!(available_memory().unwrap() > Bytes::mib(1));
        assert!(total_memory() >= available_memory());
        assert!(free_shared_memory().unwrap() > Bytes::mib(1));
    }
}
