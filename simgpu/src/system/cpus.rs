//! Processors and NUMA nodes: `Documentation/ABI/stable/sysfs-devices-system-cpu` and
//! `sysfs-devices-node` of Linux.

use super::tree::Tree;
use crate::machine::{
    Machine,
    host::{Processor, list},
};

/// Writes all of it.
pub(super) fn describe(tree: &mut Tree, machine: &Machine) {
    let all: Vec<u32> = (0..machine.host.cpus).collect();
    for what in ["online", "possible", "present"] {
        tree.line(format!("/sys/devices/system/cpu/{what}"), list(&all));
    }
    let nodes: Vec<u32> = machine.numa_nodes().into_iter().collect();
    for what in ["online", "possible", "has_memory"] {
        tree.line(format!("/sys/devices/system/node/{what}"), list(&nodes));
    }
    let with_cpus: Vec<u32> =
        nodes.iter().copied().filter(|&node| !machine.cpus_of(node).is_empty()).collect();
    tree.line("/sys/devices/system/node/has_cpu", list(&with_cpus));
    for (place, &node) in nodes.iter().enumerate() {
        let own = format!("/sys/devices/system/node/node{node}");
        let cpus = machine.cpus_of(node);
        tree.line(format!("{own}/cpulist"), list(&cpus));
        tree.line(format!("{own}/distance"), distances(machine.host.processor, place, nodes.len()));
        tree.text(format!("{own}/meminfo"), memory(machine, node, nodes.len()));
        for cpu in cpus {
            describe_cpu(tree, machine, cpu, place);
        }
    }
}

/// A logical processor of the package that has this place.
fn describe_cpu(tree: &mut Tree, machine: &Machine, cpu: u32, package: usize) {
    let host = &machine.host;
    let cores = host.cores();
    let core = cpu % cores;
    let siblings = (0..host.processor.threads()).map(|thread| core + thread * cores);
    let siblings: Vec<u32> = siblings.filter(|&cpu| cpu < host.cpus).collect();
    let own = format!("/sys/devices/system/cpu/cpu{cpu}");

    tree.line(format!("{own}/topology/thread_siblings_list"), list(&siblings));
    tree.line(format!("{own}/topology/core_id"), core);
    tree.line(format!("{own}/topology/physical_package_id"), package);
    if let Some(governor) = &host.governor {
        tree.line(format!("{own}/cpufreq/scaling_governor"), governor);
    }
}

/// How far it is from the node that has this place to each: 10 to itself, by the firmware's table.
fn distances(processor: Processor, place: usize, nodes: usize) -> String {
    let far = match processor {
        Processor::Intel | Processor::Graviton => 21,
        Processor::Amd => 32,
        Processor::Grace => 40,
    };
    let distance = |other| if other == place { 10 } else { far };
    (0..nodes).map(|other| distance(other).to_string()).collect::<Vec<_>>().join(" ")
}

/// A node's share of the memory.
fn memory(machine: &Machine, node: u32, nodes: usize) -> String {
    let total_kib = (machine.host.memory_mib << 10) / nodes.max(1) as u64;
    let free_kib = total_kib / 20 * 19;
    format!(
        "Node {node} MemTotal:       {total_kib:8} kB\nNode {node} MemFree:        {free_kib:8} kB\n\
         Node {node} MemUsed:        {:8} kB\n",
        total_kib - free_kib
    )
}
