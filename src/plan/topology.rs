//! The parts of the machine that cases name: NUMA nodes and the CPUs that g2g may use.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Gpu, NicName, Rank};
use crate::units::Bytes;

/// A NUMA node by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NumaNode(pub u32);

/// One NUMA node, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Node {
    /// Its number.
    pub id: NumaNode,
    /// The CPUs of it that g2g may use: the first thread of each core, then the second ones.
    pub cpus: Vec<u32>,
    /// The kernel's distance to each node, in the order of the node numbers; 10 is its own.
    pub distances: Vec<u32>,
}

/// A GPU, as far as cases depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GpuNode {
    /// Its ordinal.
    pub gpu: Gpu,
    /// Its name by the driver.
    pub name: String,
    /// `GPU-` and 32 hexadecimal digits in five groups.
    pub uuid: String,
    /// Its place on PCIe, as `domain:bus:device.function` in hexadecimal.
    pub pci_bus_id: String,
    /// All of its memory.
    pub memory: Bytes,
    /// The NUMA node next to it; `None` where nobody says.
    pub numa_node: Option<NumaNode>,
    /// Its place below its PCIe root, bridge by bridge; empty where nobody says.
    pub pcie_path: Vec<String>,
}

/// A network interface, or what stands in its place, as one provider of libfabric offers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NicNode {
    /// The provider: `efa`, `verbs;ofi_rxm`, `tcp`, `shm`, …
    pub provider: String,
    /// Its names.
    pub name: NicName,
    /// Whether it only leads back to this host.
    pub is_loopback: bool,
    /// Whether other ranks' memory can be written and read through it.
    pub has_rma: bool,
    /// The most that one operation moves.
    pub message_max: Bytes,
    /// The NUMA node next to it; `None` where nobody says.
    pub numa_node: Option<NumaNode>,
    /// Its place below its PCIe root, bridge by bridge; empty where nobody says.
    pub pcie_path: Vec<String>,
}

/// The part of an NVLink domain that a host's GPUs are in, and how they may share memory there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Domain {
    /// The domain's UUID.
    pub cluster_uuid: String,
    /// The GPUs of one clique reach each other.
    pub clique: Option<u32>,
    /// Channels of IMEX that the host has.
    pub imex_channels: BTreeSet<u32>,
    /// Why the driver shares no memory of GPUs with other hosts, if so.
    pub lack: Option<String>,
}

impl Domain {
    /// Why GPUs of two hosts do not reach each other over NVLink, if so.
    pub fn refusal(&self, other: &Self) -> Option<String> {
        let part = |of: &Self| (of.cluster_uuid.clone(), of.clique);
        if self.cluster_uuid != other.cluster_uuid {
            return Some("they are in different NVLink domains".to_owned());
        }
        if part(self) != part(other) {
            let clique = |of: &Self| of.clique.map_or("?".to_owned(), |clique| clique.to_string());
            let [one, two] = [self, other].map(clique);
            return Some(format!("they are in cliques {one} and {two} of the NVLink domain"));
        }
        let lack = self.lack.clone().or_else(|| other.lack.clone());
        lack.or_else(|| {
            let none = self.imex_channels.is_disjoint(&other.imex_channels);
            none.then(|| {
                "they have no IMEX channel in common (/dev/nvidia-caps-imex-channels): start \
                 nvidia-imex on both, and give the job the same channel on both"
                    .to_owned()
            })
        })
    }
}

/// A host with the ranks on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Host {
    /// Its name in the network.
    pub name: String,
    /// The ranks that run on it and can share memory, in ascending order.
    pub ranks: Vec<Rank>,
    /// What is there.
    pub topology: Topology,
    /// The nodes of the network above it, the farthest first; none: they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_nodes: Vec<String>,
}

/// A machine, as far as cases depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Topology {
    /// All NUMA nodes in the order of their numbers; at least one on a real machine.
    pub nodes: Vec<Node>,
    /// The GPUs that g2g may use, in the order of their ordinals.
    pub gpus: Vec<GpuNode>,
    /// The network interfaces that libfabric offers; none where RDMA is not asked for.
    pub nics: Vec<NicNode>,
    /// The NVLink domain of the GPUs, if all are in one with other hosts; none where copies between
    /// GPUs are not asked for.
    #[serde(default)]
    pub domain: Option<Domain>,
}

impl Topology {
    /// The usable CPUs of `node`; empty where there is no such node.
    pub fn cpus(&self, node: NumaNode) -> &[u32] {
        self.nodes.iter().find(|here| here.id == node).map_or(&[], |here| &here.cpus)
    }

    /// Adds the CPUs that another process on this machine may use: a launcher may have bound each
    /// to some.
    pub fn add_cpus(&mut self, other: &Self) {
        for node in &mut self.nodes {
            let more = other.cpus(node.id).iter().filter(|cpu| !node.cpus.contains(cpu));
            let more: Vec<u32> = more.copied().collect();
            node.cpus.extend(more);
        }
    }

    /// The numbers of the nodes with a usable CPU, for a message.
    pub fn usable_nodes(&self) -> String {
        let names = self.usable().map(|node| node.id.0.to_string());
        names.collect::<Vec<String>>().join(" ")
    }

    /// The first node to itself and, where there are more, the first node to the farthest.
    pub fn near_and_far(&self) -> Vec<(NumaNode, NumaNode)> {
        let nodes = self.nearest_and_farthest(None);
        nodes.iter().map(|&node| (nodes[0], node)).collect()
    }

    /// The node `of` if g2g may use it, otherwise the first usable node; and the node farthest from
    /// it, if there are several.
    pub fn nearest_and_farthest(&self, of: Option<NumaNode>) -> Vec<NumaNode> {
        let named = self.usable().find(|node| Some(node.id) == of);
        let Some(first) = named.or_else(|| self.usable().next()) else { return Vec::new() };
        let distance = |to: &Node| {
            let place = self.nodes.iter().position(|node| node.id == to.id);
            place.and_then(|place| first.distances.get(place).copied()).unwrap_or(0)
        };
        let others = self.usable().filter(|node| node.id != first.id);
        // The first of several at the same distance, so that plans are reproducible.
        let far = others.rev().max_by_key(|node| distance(node));
        let mut nodes = vec![first.id];
        nodes.extend(far.map(|far| far.id));
        nodes
    }

    /// A CPU for each wanted place, none twice; `None` where a node has too few.
    pub fn assign(&self, wanted: &[NumaNode]) -> Option<Vec<u32>> {
        let mut used: BTreeMap<NumaNode, usize> = BTreeMap::new();
        wanted
            .iter()
            .map(|&node| {
                let place = used.entry(node).or_default();
                let cpu = self.cpus(node).get(*place).copied();
                *place += 1;
                cpu
            })
            .collect()
    }

    fn usable(&self) -> impl DoubleEndedIterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.cpus.is_empty())
    }
}

/// More CPUs than Linux can be built for: a list with others is none.
const CPUS_MAX: u32 = 1 << 16;

/// Reads the kernel's list format: `0-3,8,10-11`. `None` where it is not one.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < CPUS_MAX);
        cpus.extend(number(from)?..=number(to)?);
        if cpus.len() > CPUS_MAX as usize {
            return None;
        }
    }
    Some(cpus)
}

/// Ascending numbers in the kernel's list format.
pub fn cpu_ranges(cpus: &[u32]) -> String {
    let ranges = cpus.chunk_by(|here, next| here.checked_add(1) == Some(*next));
    let ranges = ranges.map(|range| match range {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    ranges.collect::<Vec<String>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// So many GPUs, of which nothing else is known.
    pub(crate) fn gpus(count: u32) -> Vec<GpuNode> {
        let gpu = |gpu| GpuNode {
            gpu: Gpu(gpu),
            name: String::new(),
            uuid: String::new(),
            pci_bus_id: String::new(),
            memory: Bytes::mib(1 << 16),
            numa_node: None,
            pcie_path: Vec::new(),
        };
        (0..count).map(gpu).collect()
    }

    /// A machine whose nodes have these CPUs and lie in a row.
    pub(crate) fn machine(nodes: &[&[u32]]) -> Topology {
        let node = |(id, cpus): (u32, &&[u32])| Node {
            id: NumaNode(id),
            cpus: cpus.to_vec(),
            distances: (0..).take(nodes.len()).map(|to: u32| 10 + 10 * id.abs_diff(to)).collect(),
        };
        Topology { nodes: (0..).zip(nodes).map(node).collect(), ..Topology::default() }
    }

    #[test]
    fn far_is_the_greatest_distance_and_the_first_of_equals() {
        let pairs = machine(&[&[0], &[1], &[2]]).near_and_far();
        assert_eq!(pairs, [(NumaNode(0), NumaNode(0)), (NumaNode(0), NumaNode(2))]);
        let mut flat = machine(&[&[0], &[1], &[2]]);
        flat.nodes[0].distances = vec![10, 20, 20];
        assert_eq!(flat.near_and_far()[1], (NumaNode(0), NumaNode(1)));
    }

    #[test]
    fn a_node_without_usable_cpus_is_passed_over() {
        let pairs = machine(&[&[], &[4, 5], &[]]).near_and_far();
        assert_eq!(pairs, [(NumaNode(1), NumaNode(1))]);
    }

    #[test]
    fn no_cpu_is_given_twice() {
        let machine = machine(&[&[3, 4], &[8]]);
        let (near, far) = (NumaNode(0), NumaNode(1));
        assert_eq!(machine.assign(&[near, far, near]), Some(vec![3, 8, 4]));
        assert_eq!(machine.assign(&[far, far]), None);
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(cpu_list("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        assert_eq!(cpu_list("0-"), None);
        assert_eq!(cpu_list("a"), None);
        assert_eq!(cpu_list("0-4294967295"), None);
        for text in ["0-2,8,10-11", "0-23,48-71", "7", ""] {
            assert_eq!(cpu_ranges(&cpu_list(text).unwrap()), text);
        }
    }
}
