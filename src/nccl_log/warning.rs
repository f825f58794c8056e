//! Sentences that say something is wrong, or that a way is not taken.

use std::sync::LazyLock;

use regex::Regex;

use super::{line::Level, model::WarningKind};

/// Words of sentences, and what they say; the first that fits counts. NVIDIA/nccl, v2.18.6-1 to
/// v2.30.7-1: src/graph/paths.cc, src/transport.cc, src/transport/{p2p,shm,nvls}.cc,
/// src/misc/shmutils.cc, src/init.cc, src/proxy.cc, src/misc/socket.cc.
const KINDS: [(&str, WarningKind); 31] = [
    (DIAGNOSIS, WarningKind::Diagnosis),
    ("P2P is disabled between NVLINK connected GPUs", WarningKind::P2pDisabledOnNvLink),
    ("P2P is disabled between connected GPUs", WarningKind::P2pDisabled),
    ("Could not enable P2P between dev", WarningKind::P2pRefused),
    ("peer query failed between dev", WarningKind::P2pRefused),
    ("Legacy IPC not supported", WarningKind::LegacyIpc),
    ("No transport found for rank", WarningKind::NoTransport),
    ("shared memory", WarningKind::SharedMemory),
    ("/dev/shm", WarningKind::SharedMemory),
    ("failed to extend", WarningKind::SharedMemory),
    ("cuMem host allocations do not appear to be working", WarningKind::CuMemHost),
    ("ismatched NCCL version", WarningKind::VersionMismatch),
    ("NCCL version mismatch", WarningKind::VersionMismatch),
    ("Multiple Ranks are using the same GPU", WarningKind::SameGpu),
    ("Duplicate GPU detected", WarningKind::SameGpu),
    ("MNNVL", WarningKind::Mnnvl),
    ("IMEX", WarningKind::Mnnvl),
    ("closed by remote peer", WarningKind::Peer),
    ("collective operation timeout", WarningKind::Peer),
    ("is in abort state", WarningKind::Peer),
    ("Abort COMPLETE", WarningKind::Peer),
    ("Connection refused", WarningKind::Peer),
    ("timed out", WarningKind::Peer),
    ("NVLS", WarningKind::Nvls),
    ("multicast", WarningKind::Nvls),
    ("Cuda failure", WarningKind::Cuda),
    ("NET/OFI", WarningKind::Network),
    ("NET/", WarningKind::Network),
    ("network", WarningKind::Network),
    ("Network", WarningKind::Network),
    ("libnccl-net", WarningKind::Network),
];

/// Sentences that count though NCCL calls them information, or another program writes them.
const BELOW_WARNING: [&str; 10] = [
    "P2P is disabled between connected GPUs",
    "Could not enable P2P between dev",
    "peer query failed between dev",
    "Legacy IPC not supported",
    "cuMem host allocations do not appear to be working",
    "Could not find: libnccl-net",
    "No plugin found",
    "Abort COMPLETE",
    "collective operation timeout",
    "MNNVL is available but not working",
];

/// How lines of NCCL's diagnostics begin that tell more than that all is well.
const DIAGNOSIS: &str = " NCCL DIAG [INFO] ";

/// What of that is a fault, and not something that could not be looked at: strings of `libnccl.so.2`
/// 2.32.3 (wheel nvidia-nccl-cu13), NCCL user guide, Troubleshooting, Diagnostics. Variables of ranks
/// may differ.
const FAULTS: [&str; 16] = [
    "p2p: only ",
    "p2p: write mismatch",
    "p2p: read mismatch",
    "p2p: peer-memory import failed",
    "p2p: launch/check failed",
    "p2p: destination buffer unavailable",
    "p2p: local CUDA setup failed",
    "GPU inventory: count mismatch",
    "GPU inventory: model mismatch",
    "version: mismatch across",
    "ECC: uncorrected volatile errors on",
    "ECC: corrected volatile errors at or above threshold",
    "NVLink: link-count mismatch",
    "NVLink: inactive link(s)",
    "NVLink: inconsistent link speeds",
    " Gbit/s, >30% off median ",
];

/// What kind of warning `text` is; `None` if it is none.
pub(super) fn kind(level: Option<Level>, text: &str) -> Option<WarningKind> {
    let counts = match level {
        Some(Level::Warn) => true,
        Some(Level::Trace) => false,
        Some(Level::Info) | None => {
            let is_fault = text.split_once(DIAGNOSIS).is_some_and(|(_, found)| {
                FAULTS.iter().any(|words| found.trim_start().contains(words))
            });
            is_fault || BELOW_WARNING.iter().any(|words| text.contains(words))
        }
    };
    counts.then(|| {
        let found = KINDS.iter().find(|(words, _)| text.contains(words));
        found.map_or(WarningKind::Other, |&(_, kind)| kind)
    })
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new("[0-9]+").expect("a test matches it"));

/// `text` without its numbers, by which the same sentence of many ranks is known.
pub(super) fn without_numbers(text: &str) -> String {
    NUMBER.replace_all(text, "#").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_apart() {
        for (level, text, expected) in [
            (
                Some(Level::Info),
                "P2P is disabled between connected GPUs 1 and 0. You can repress this message",
                Some(WarningKind::P2pDisabled),
            ),
            (
                Some(Level::Warn),
                "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be",
                Some(WarningKind::P2pDisabledOnNvLink),
            ),
            (
                Some(Level::Info),
                "Could not enable P2P between dev 1(=1d0) and dev 0(=1c0)",
                Some(WarningKind::P2pRefused),
            ),
            (
                Some(Level::Warn),
                "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
                Some(WarningKind::SharedMemory),
            ),
            (Some(Level::Warn), "NET/OFI Couldn't open CQ. RC: -12", Some(WarningKind::Network)),
            (
                Some(Level::Warn),
                "socketProgress: Connection closed by remote peer a<1>",
                Some(WarningKind::Peer),
            ),
            (
                None,
                "node0:24563 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed \
                 verification",
                Some(WarningKind::Diagnosis),
            ),
            (None, "node0:24563 NCCL DIAG [OK]   p2p: verified P2P access", None),
            (
                None,
                "a:1 NCCL DIAG [INFO] net bw: cross-nic rank 3 (b): 265.1 Gbit/s, >30% off median 391.5 \
                 Gbit/s in comm 0x1",
                Some(WarningKind::Diagnosis),
            ),
            (None, "a:1 NCCL DIAG [INFO] net bw: required external tool missing in comm 0x1", None),
            (Some(Level::Warn), "something new", Some(WarningKind::Other)),
            (Some(Level::Info), "NVLS multicast support is available on dev 0", None),
            (Some(Level::Trace), "Could not enable P2P between dev", None),
            (
                None,
                "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2)",
                Some(WarningKind::Peer),
            ),
        ] {
            assert_eq!(kind(level, text), expected, "{text}");
        }
        assert_eq!(without_numbers("dev 12(=1d0) é 3"), "dev #(=#d#) é #");
    }
}
