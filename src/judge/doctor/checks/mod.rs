//! The checks. Each looks at one thing and is named for it; the sentences that they find stand
//! beside what they ask.

mod gpus;
mod host;
mod instance;
mod network;
mod variables;

use super::{Facts, Finding};

/// A check: what it makes of what is known; nothing where there is nothing to look at.
type Check = fn(&Facts) -> Vec<Finding>;

/// All checks, by their names.
pub(super) const ALL: &[(&str, Check)] = &[
    ("machine-files", instance::unread),
    ("instance", instance::complete),
    ("driver", gpus::driver),
    ("visible-gpus", gpus::visible),
    ("mig", gpus::mig),
    ("gpu-condition", gpus::condition),
    ("xid", gpus::xids),
    ("confidential-computing", gpus::confidential),
    ("fabric-manager", gpus::fabric),
    ("fabric", gpus::clique),
    ("imex", gpus::imex),
    ("peer-access", gpus::peer_access),
    ("persistence", gpus::persistence),
    ("iommu", host::iommu),
    ("acs", host::acs),
    ("shared-memory", host::shared_memory),
    ("locked-memory", host::locked_memory),
    ("control-group", host::control_group),
    ("memory-policy", host::memory_policy),
    ("cpu-governor", host::governor),
    ("gpudirect-rdma", network::gpudirect),
    ("rdma-devices", network::devices),
    ("rdma-ports", network::ports),
    ("nccl", network::nccl),
    ("nccl-plugin", network::plugin),
    ("libfabric", network::libfabric),
    ("nccl-variables", variables::lint),
    ("paths-switched-off", variables::paths),
    ("cuda-variables", variables::cuda),
];
