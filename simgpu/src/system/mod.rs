//! The kernel's files on the machine, `/sys` and `/proc`, and what else lies where one looks for
//! it: all that describes the machine to a program that reads files.
//!
//! Paths, units and forms are Linux': `Documentation/ABI` and `Documentation/filesystems/proc.rst`
//! of its source, and proc(5). `docs/machines.md`, "Hosts", says what is there.

mod cpus;
mod firmware;
mod nics;
mod pci;
mod planted;
mod process;
mod software;
#[cfg(test)]
mod tests;
mod tree;

use crate::machine::{Machine, pci::located};
pub(crate) use nics::{live, rdma_name};
use tree::Tree;

/// All files that the process at this place sees, by path, as JSON.
pub(crate) fn files(machine: &Machine, process: usize) -> String {
    // Every value is text.
    serde_json::to_string(&tree(machine, process)).unwrap_or_default()
}

/// All files that the process at this place sees.
fn tree(machine: &Machine, process: usize) -> Tree {
    let mut tree = Tree::default();
    // Machines whose devices have no place are refused when they are loaded.
    let devices = located(machine).unwrap_or_default();
    pci::describe(&mut tree, machine, &devices);
    nics::describe(&mut tree, machine, &devices);
    cpus::describe(&mut tree, machine);
    firmware::describe(&mut tree, machine);
    process::describe(&mut tree, machine);
    software::describe(&mut tree, machine);
    planted::plant(&mut tree, &machine.host.files, process);
    tree
}
