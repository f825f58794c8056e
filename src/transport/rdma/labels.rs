//! What a row says of how libfabric carried out its case.

use super::{Report, group_max, is_staged, own_nics, verb::Verb};
use crate::{
    ffi::fabric::Facts,
    plan::{
        Case, Fabric, Rank,
        rdma::{EFA, EFA_DIRECT, OF_ONE_HOST, base},
    },
    transport::{Completion, GpuPath, Network, Registration, SharedMemory},
    units::Bytes,
};

/// Describes for the row how libfabric carries out the case.
pub(super) fn network(case: &Case, verb: Verb, reports: &[Option<Report>]) -> Network {
    let of = |rank: Option<Rank>| reports.iter().flatten().find(|report| Some(report.rank) == rank);
    let first = case.flows.first();
    let source = of(first.map(|flow| flow.source.rank));
    let target = of(first.map(|flow| flow.target.rank));
    let registration =
        |report: Option<&Report>| report.map_or(Registration::Host, |report| report.registration);
    let reports = || reports.iter().flatten();
    let window = reports().map(|report| report.window).min().unwrap_or(0);
    let gpu_paths = || reports().filter_map(|report| report.gpu_path);
    let is_proven = gpu_paths().all(|path| path != GpuPath::Unproven);
    let of_initiators = || {
        let asks = |report: &&Report| case.flows.iter().any(|f| case.timed_by(f) == report.rank);
        reports().filter(asks).filter_map(|report| report.is_emulated)
    };
    let is_emulated = of_initiators().max();
    let latency_completion = match verb {
        Verb::Read | Verb::PingPong => Completion::Arrival,
        Verb::Write | Verb::Send if is_staged(case) => Completion::Confirmed,
        Verb::Write | Verb::Send => {
            let nics = first.and_then(|flow| own_nics(case, flow.source.rank));
            let nic = nics.and_then(|(_, nics)| nics.first());
            word_of(nic.map_or("", |nic| &nic.fabric), verb, is_emulated)
        }
    };
    Network {
        protocol: source.map(|report| report.protocol.clone()).unwrap_or_default(),
        window: u32::try_from(window).unwrap_or(u32::MAX),
        group_max: group_max(reports().map(|report| report.room).min(), window),
        source_registration: registration(source),
        target_registration: registration(target),
        gpu_path: if is_proven { gpu_paths().next() } else { Some(GpuPath::Unproven) },
        shared_memory: source.map_or(SharedMemory::Possible, |report| report.shared_memory),
        is_emulated,
        bandwidth_completion: match verb {
            Verb::Write | Verb::Send => Completion::Confirmed,
            Verb::Read | Verb::PingPong => Completion::Arrival,
        },
        latency_completion,
        moved: Bytes::default(),
    }
}

/// What a provider's word means that an operation with `FI_DELIVERY_COMPLETE` is done. EFA's device
/// knows no such flag: its writes, and the messages of `efa-direct`, end when the other device has
/// them (libfabric, `prov/efa/src/efa_rma.c` and `rdm/efa_rdm_rma.h`).
fn word_of(fabric: &str, verb: Verb, is_emulated: Option<bool>) -> Completion {
    let by_device = match fabric {
        EFA_DIRECT => true,
        EFA => verb == Verb::Write && is_emulated != Some(true),
        _ => false,
    };
    if by_device { Completion::Transmit } else { Completion::Delivery }
}

/// How memory of a GPU that is registered with an interface of `facts` comes to it. `promises`: the
/// provider has promised to make no copies in host memory. `is_emulated`: it makes messages of the
/// operation, whose data it copies as that of others.
pub(super) fn gpu_path(
    facts: &Facts,
    verb: Verb,
    promises: bool,
    is_emulated: bool,
    shared_memory: SharedMemory,
) -> GpuPath {
    // verbs passes registered memory on to the device, and rxm above it does so too, but for short
    // messages; efa copies messages from its own buffers to the GPU.
    let hands_over = facts.provider.starts_with("verbs");
    let is_copied = match verb {
        Verb::Write | Verb::Read => is_emulated,
        Verb::Send | Verb::PingPong => facts.fabric != EFA_DIRECT,
    };
    let may_share = shared_memory != SharedMemory::No;
    let is_direct = (promises || hands_over) && !is_copied && !may_share;
    if is_direct { GpuPath::Direct } else { GpuPath::Unproven }
}

/// Whether data could go past the interface of `provider`, which has promised to `shun` that or not.
pub(super) fn shared_memory(fabric: &Fabric, shuns: bool) -> SharedMemory {
    match base(&fabric.provider) {
        _ if !fabric.is_one_host => SharedMemory::No,
        OF_ONE_HOST => SharedMemory::Yes,
        "tcp" | "verbs" => SharedMemory::No,
        _ if shuns => SharedMemory::No,
        _ => SharedMemory::Possible,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::room, *};

    fn facts(provider: &str, fabric: &str) -> Facts {
        Facts {
            provider: provider.to_owned(),
            fabric: fabric.to_owned(),
            domain: "a".to_owned(),
            nic: None,
            protocol: String::new(),
            caps: String::new(),
            mode: String::new(),
            mr_mode: String::new(),
            max_msg_size: Bytes::mib(1),
            inject_size: Bytes::default(),
            tx_size: 1,
            rx_size: 1,
            cq_data_size: Bytes::new(4),
            msg_order: String::new(),
            max_order_waw_size: Bytes::default(),
            threading: String::new(),
            control_progress: String::new(),
            data_progress: String::new(),
        }
    }

    #[test]
    fn messages_are_direct_only_where_nothing_is_above_the_device() {
        let path = |provider, fabric, verb, promises| {
            gpu_path(&facts(provider, fabric), verb, promises, false, SharedMemory::No)
        };
        for verb in [Verb::Write, Verb::Read] {
            assert_eq!(path("efa", "efa", verb, true), GpuPath::Direct);
            assert_eq!(path("efa", "efa", verb, false), GpuPath::Unproven);
            assert_eq!(path("efa", "efa-direct", verb, true), GpuPath::Direct);
            assert_eq!(path("verbs;ofi_rxm", "a", verb, false), GpuPath::Direct);
        }
        for verb in [Verb::Send, Verb::PingPong] {
            assert_eq!(path("efa", "efa", verb, true), GpuPath::Unproven);
            assert_eq!(path("efa", "efa-direct", verb, true), GpuPath::Direct);
            assert_eq!(path("verbs;ofi_rxm", "a", verb, true), GpuPath::Unproven);
        }
        let facts = facts("efa", "efa");
        for shared_memory in [SharedMemory::Possible, SharedMemory::Yes] {
            let path = gpu_path(&facts, Verb::Write, true, false, shared_memory);
            assert_eq!(path, GpuPath::Unproven);
        }
        let emulated = gpu_path(&facts, Verb::Write, true, true, SharedMemory::No);
        assert_eq!(emulated, GpuPath::Unproven);
    }

    fn fabric(provider: &str) -> Fabric {
        Fabric {
            provider: provider.to_owned(),
            nics: Vec::new(),
            rails: 1,
            endpoints: 1,
            window: 1,
            is_window_given: false,
            is_staged: false,
            is_one_host: true,
            meetings: Vec::new(),
        }
    }

    #[test]
    fn shared_memory_is_possible_within_a_host_unless_the_provider_has_none_or_promises() {
        let of = |provider: &str, is_one_host, shuns| {
            shared_memory(&Fabric { is_one_host, ..fabric(provider) }, shuns)
        };
        for provider in ["efa", "tcp", "tcp;ofi_rxm", "verbs;ofi_rxm", "psm3"] {
            assert_eq!(of(provider, false, false), SharedMemory::No);
            assert_eq!(of(provider, true, true), SharedMemory::No);
        }
        assert_eq!(of("tcp;ofi_rxm", true, false), SharedMemory::No);
        assert_eq!(of("verbs;ofi_rxm", true, false), SharedMemory::No);
        assert_eq!(of("efa", true, false), SharedMemory::Possible);
        assert_eq!(of("psm3", true, false), SharedMemory::Possible);
        assert_eq!(of("shm", true, false), SharedMemory::Yes);
    }

    #[test]
    fn what_the_device_ends_is_transmitted_and_not_delivered() {
        for (fabric, verb, is_emulated, expected) in [
            ("efa", Verb::Write, Some(false), Completion::Transmit),
            ("efa", Verb::Write, None, Completion::Transmit),
            ("efa", Verb::Write, Some(true), Completion::Delivery),
            ("efa", Verb::Send, None, Completion::Delivery),
            ("efa-direct", Verb::Write, Some(false), Completion::Transmit),
            ("efa-direct", Verb::Send, None, Completion::Transmit),
            ("10.0.0.0/24", Verb::Write, None, Completion::Delivery),
        ] {
            assert_eq!(word_of(fabric, verb, is_emulated), expected, "{fabric} {verb:?}");
        }
    }

    #[test]
    fn what_is_unconfirmed_fits_into_the_targets_queue() {
        assert_eq!(room(&fabric("efa"), Verb::Write, 8192, 2), 4096);
        assert_eq!(room(&fabric("verbs;ofi_rxm"), Verb::Send, 4, 9), 1);
        // Nothing is lost there, or nothing comes, or the slots of a ring are fewer.
        let staged = Fabric { is_staged: true, ..fabric("efa") };
        for (fabric, verb) in [
            (&fabric("tcp;ofi_rxm"), Verb::Write),
            (&fabric("efa"), Verb::Read),
            (&staged, Verb::Write),
            (&staged, Verb::Send),
        ] {
            assert_eq!(room(fabric, verb, 64, 1), u64::MAX);
        }
        assert_eq!(group_max(Some(4096), 64), 2016);
        assert_eq!(group_max(Some(64), 64), 1);
        assert_eq!(group_max(Some(u64::MAX), 64), 1 << 20);
        assert_eq!(group_max(None, 1), 1 << 20);
    }
}
