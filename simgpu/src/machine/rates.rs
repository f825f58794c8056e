//! How fast ways to memory are, of those that are known by their raw rate only: shares of it that
//! transfers reach, and latencies. `docs/machines.md`, "Instances", gives the source of each, or
//! says that it is assumed.

use super::{Pair, Rate, Rates};

/// What transfers reach on a way, by engine and by who asks for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    shares: Shares,
    latencies: Latencies,
}

/// Shares of the raw rate.
#[derive(Clone, Copy, Debug)]
struct Shares {
    ce_read: f64,
    ce_write: f64,
    sm_read: f64,
    sm_write: f64,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    ce: f64,
    sm_read: f64,
    sm_write: f64,
    load: f64,
}

/// NVLink, generations 2 to 5.
const NVLINK: [Shares; 4] = [
    Shares { ce_read: 0.95, ce_write: 0.96, sm_read: 0.78, sm_write: 0.80 },
    Shares { ce_read: 0.90, ce_write: 0.92, sm_read: 0.82, sm_write: 0.80 },
    Shares { ce_read: 0.81, ce_write: 0.83, sm_read: 0.80, sm_write: 0.82 },
    Shares { ce_read: 0.84, ce_write: 0.855, sm_read: 0.785, sm_write: 0.80 },
];

/// From GPU to GPU.
const DIRECT: Latencies = Latencies { ce: 1900.0, sm_read: 1000.0, sm_write: 700.0, load: 750.0 };

/// From GPU to GPU by an NVSwitch.
const SWITCHED: Latencies =
    Latencies { ce: 2000.0, sm_read: 1250.0, sm_write: 850.0, load: 1000.0 };

/// PCIe between GPUs of one NUMA node.
pub(super) const PCIE_NEAR: Way = Way {
    shares: Shares { ce_read: 0.91, ce_write: 0.95, sm_read: 0.85, sm_write: 0.90 },
    latencies: Latencies { ce: 2400.0, sm_read: 1700.0, sm_write: 1000.0, load: 1500.0 },
};

/// PCIe between GPUs of different NUMA nodes.
pub(super) const PCIE_FAR: Way = Way {
    shares: Shares { ce_read: 0.77, ce_write: 0.78, sm_read: 0.70, sm_write: 0.72 },
    latencies: Latencies { ce: 2800.0, sm_read: 2300.0, sm_write: 1400.0, load: 2100.0 },
};

/// PCIe between a GPU and the host.
pub(super) const HOST_PCIE: Way = Way {
    shares: Shares { ce_read: 0.91, ce_write: 0.915, sm_read: 0.61, sm_write: 0.915 },
    latencies: Latencies { ce: 1700.0, sm_read: 1500.0, sm_write: 900.0, load: 1300.0 },
};

/// NVLink-C2C between a GPU and the host.
pub(super) const HOST_C2C: Way = Way {
    shares: Shares { ce_read: 0.893, ce_write: 0.858, sm_read: 0.85, sm_write: 0.85 },
    latencies: Latencies { ce: 1500.0, sm_read: 1000.0, sm_write: 700.0, load: 800.0 },
};

/// A GPU's own memory, of half its bandwidth: a copy loads and stores every byte.
pub(super) const LOCAL: Way = Way {
    shares: Shares { ce_read: 0.75, ce_write: 0.75, sm_read: 0.83, sm_write: 0.83 },
    latencies: Latencies { ce: 1400.0, sm_read: 500.0, sm_write: 500.0, load: 600.0 },
};

/// NVLink of this generation between GPUs.
pub(super) fn nvlink(generation: u32, switched: bool) -> Way {
    let shares = match generation {
        0..=2 => NVLINK[0],
        3 => NVLINK[1],
        4 => NVLINK[2],
        _ => NVLINK[3],
    };
    Way { shares, latencies: if switched { SWITCHED } else { DIRECT } }
}

impl Way {
    /// Rates of what the GPU reads on a way of this raw rate.
    pub(super) fn reads(&self, raw_gb_s: f64) -> Rates {
        Rates {
            ce: Rate { gb_s: raw_gb_s * self.shares.ce_read, latency_ns: self.latencies.ce },
            sm: Rate { gb_s: raw_gb_s * self.shares.sm_read, latency_ns: self.latencies.sm_read },
        }
    }

    /// Rates of what the GPU writes on a way of this raw rate.
    pub(super) fn writes(&self, raw_gb_s: f64) -> Rates {
        Rates {
            ce: Rate { gb_s: raw_gb_s * self.shares.ce_write, latency_ns: self.latencies.ce },
            sm: Rate { gb_s: raw_gb_s * self.shares.sm_write, latency_ns: self.latencies.sm_write },
        }
    }

    /// One dependent load.
    pub(super) fn load_latency_ns(&self) -> f64 {
        self.latencies.load
    }

    /// Gives a pair this way, of this raw rate.
    pub(super) fn give(&self, pair: &mut Pair, raw_gb_s: f64) {
        (pair.ce_read, pair.sm_read) = (self.reads(raw_gb_s).ce, self.reads(raw_gb_s).sm);
        (pair.ce_write, pair.sm_write) = (self.writes(raw_gb_s).ce, self.writes(raw_gb_s).sm);
        pair.load_latency_ns = self.load_latency_ns();
    }
}
