//! The path that the data of a case took, by counters read before and after it.
//!
//! Owns what counters prove and how inexact they may be; `docs/measurement.md`, "Proof of the
//! path", explains it. Knows no device.

mod gpu;
mod network;

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::nccl_log::Verdict;
use crate::{
    machine::{
        counters::{NvLinked, Reading},
        health::Xid,
    },
    plan::{Case, Engine, Gpu, Operation, Rank, TransportKind},
    units::Bytes,
};

/// What one host counted around the operations of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The ranks on the host.
    pub ranks: Vec<Rank>,
    /// Before the first operation.
    pub before: Reading,
    /// After the last one.
    pub after: Reading,
    /// The time between the two.
    pub between: Duration,
    /// The GPUs that NVLinks join.
    pub nvlinked: NvLinked,
    /// Errors that the driver has reported since the last case.
    pub xids: Vec<Xid>,
}

/// The operations and data between the two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Operations of each flow.
    pub operations: u64,
    /// Data of all flows together, if it does not follow from the operations.
    pub bytes: Option<Bytes>,
}

/// The path of the data, by the counters.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedPath {
    /// The path: by the counters unless the verdict is `unknown`, else the one that was asked for.
    pub path: Option<String>,
    /// Whether the counters prove it.
    pub verdict: Verdict,
    /// The reason.
    pub reason: String,
    /// Bytes counted on that path for each byte of data.
    pub wire_bytes_per_payload_byte: Option<f64>,
}

impl CountedPath {
    fn new(path: &str, verdict: Verdict, reason: String, per_byte: Option<f64>) -> Self {
        let path = Some(path.to_owned());
        Self { path, verdict, reason, wire_bytes_per_payload_byte: per_byte }
    }

    fn unknown(path: &str, reason: String) -> Self {
        Self::new(path, Verdict::Unknown, reason, None)
    }
}

/// The name of the path through host memory.
const HOST_MEMORY: &str = "host-memory";

/// With fewer bytes than this, other traffic on the machine may be as much as the data.
const BYTES_MIN: u64 = 16 << 20;

/// Why so few bytes prove nothing.
const TOO_FEW: &str = "too few bytes were moved to be told from what others move";

/// A counter that has seen this share of the data or more has seen all of it.
const ALL: f64 = 0.97;

/// One that has seen this share or less has seen none of it.
const NONE: f64 = 0.05;

/// The path that the data of a case took; `None` for collectives, whose path is in NCCL's log and
/// in [`nvlink_bytes_per_byte`].
pub fn path(case: &Case, moved: Moved, seen: &[Seen]) -> Option<CountedPath> {
    let mut found = match case.transport {
        TransportKind::Nccl => return None,
        TransportKind::Rdma => network::path(case, moved, seen),
        TransportKind::Shm if case.engine == Engine::Cpu => network::silence(case, moved, seen),
        TransportKind::Local | TransportKind::P2p | TransportKind::Shm
            if case.operation == Operation::Chase =>
        {
            let why = "single loads move too few bytes for counters";
            CountedPath::unknown(gpu::asked(case, seen), why.to_owned())
        }
        TransportKind::Local | TransportKind::P2p | TransportKind::Shm => {
            gpu::path(case, moved, seen)
        }
    };
    let held = seen.iter().filter_map(|host| host.after.shared_memory).max();
    if let Some(held) = held.filter(|_| found.path.as_deref() == Some(HOST_MEMORY)) {
        found.reason = format!("{}; /dev/shm held {}", found.reason, held.rounded());
    }
    Some(found)
}

/// Bytes that each GPU of a collective has sent over NVLink for each byte of the operation's size,
/// on average; `None` if NVLinks do not count.
pub fn nvlink_bytes_per_byte(case: &Case, operations: u64, seen: &[Seen]) -> Option<f64> {
    let (_, nccl, layout) = case.collective()?;
    let own: BTreeSet<(Rank, Gpu)> =
        case.ends().filter_map(|end| Some((end.rank, end.gpu()?))).collect();
    let mut sent = 0;
    for (rank, gpu) in &own {
        let host = seen.iter().find(|host| host.ranks.contains(rank))?;
        if !host.nvlinked.gpus.contains(gpu) {
            return None;
        }
        let [out, _] = gpu::nvlink(host, *gpu).ok()?;
        sent = u64::saturating_add(sent, out);
    }
    let all = layout.size(nccl.data_type).times(operations).times(own.len() as u64).get();
    (all > 0).then(|| sent as f64 / all as f64)
}

/// The growth of the counters of both directions. A counter that went back was reset or ran over.
fn grown(before: [u64; 2], after: [u64; 2]) -> Result<[u64; 2], String> {
    let [sent, received] = [0, 1].map(|way| after[way].checked_sub(before[way]));
    sent.zip(received).map(|(sent, received)| [sent, received]).ok_or("went back".to_owned())
}

/// A ratio, for a sentence.
fn ratio(counted: u64, payload: u64) -> String {
    format!("{:.2}", counted as f64 / payload.max(1) as f64)
}

#[cfg(test)]
mod tests;
