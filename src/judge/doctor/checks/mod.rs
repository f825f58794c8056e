//! The checks. Each looks at one thing and has its name; its messages are next to its conditions.

mod gpus;
mod host;
mod instance;
mod network;
mod variables;

use super::{Advice, Facts, Finding, alike};

/// A check of the facts of a host. It finds nothing if there is nothing to look at.
pub(super) enum Check {
    /// It finds one thing at most.
    One(fn(&Facts) -> Option<Finding>),
    /// It may find several things.
    Several(fn(&Facts) -> Vec<Finding>),
}

use Check::{One, Several};

impl Check {
    pub(super) fn findings(&self, facts: &Facts) -> Vec<Finding> {
        match self {
            One(check) => check(facts).into_iter().collect(),
            Several(check) => check(facts),
        }
    }
}

/// The first of these, and how many more there are.
fn first_of(mut all: Vec<String>, most: usize) -> Vec<String> {
    if let Some(more @ 1..) = all.len().checked_sub(most) {
        all.truncate(most);
        all.push(format!("{more} more"));
    }
    all
}

/// All checks, by their names.
pub(super) const ALL: &[(&str, Check)] = &[
    ("machine-files", Several(instance::unread)),
    ("instance", Several(instance::complete)),
    ("gpus-alike", Several(alike::gpus)),
    ("interfaces-alike", Several(alike::interfaces)),
    ("numa-nodes", One(instance::numa_nodes)),
    ("driver", One(gpus::driver)),
    ("visible-gpus", One(gpus::visible)),
    ("mig", One(gpus::mig)),
    ("gpu-condition", Several(gpus::condition)),
    ("xid", One(gpus::xids)),
    ("confidential-computing", One(gpus::confidential)),
    ("power-limit", One(gpus::power_limit)),
    ("fabric-manager", One(gpus::fabric)),
    ("fabric-manager-version", One(gpus::fabric_manager_version)),
    ("fabric", Several(gpus::clique)),
    ("imex", One(gpus::imex)),
    ("peer-access", One(gpus::peer_access)),
    ("persistence", One(gpus::persistence)),
    ("iommu", One(host::iommu)),
    ("acs", One(host::acs)),
    ("shared-memory", One(host::shared_memory)),
    ("locked-memory", One(host::locked_memory)),
    ("control-group", Several(host::control_group)),
    ("memory-policy", One(host::memory_policy)),
    ("cpu-governor", One(host::governor)),
    ("gpudirect-rdma", One(network::gpudirect)),
    ("rdma-devices", One(network::devices)),
    ("rdma-ports", Several(network::ports)),
    ("nccl", Several(network::nccl)),
    ("nccl-plugin", One(network::plugin)),
    ("libfabric", Several(network::libfabric)),
    ("nccl-variables", Several(variables::lint)),
    ("paths-switched-off", Several(variables::paths)),
    ("cuda-variables", Several(variables::cuda)),
];
