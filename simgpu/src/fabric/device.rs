//! What a machine's interfaces can do, by their generation, and what an operation on them takes.

use crate::{
    machine::Machine,
    timing::{
        cost::{Place, pcie_of},
        wire::{Kind, PACKET, Pcie, Side, Way},
    },
};

/// The longest message of `efa-direct` is one packet.
pub(super) const MESSAGE_MAX: u64 = PACKET;

/// The longest write or read of the device.
pub(super) const RDMA_MAX: u64 = 1 << 30;

/// Whether libfabric makes messages of operations of this kind on a machine's interfaces.
pub(super) fn emulates(machine: &Machine, kind: Kind) -> bool {
    match kind {
        Kind::Write => !machine.efa.writes,
        Kind::Read => !machine.efa.reads,
        Kind::Message => false,
    }
}

/// The ends of an operation, the initiator's first: interfaces by their numbers, and places of data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub nics: [usize; 2],
    pub places: [Place; 2],
}

/// What an operation takes on a machine.
pub(super) fn way(machine: &Machine, kind: Kind, ends: Ends, is_direct: bool) -> Way {
    let efa = machine.efa;
    let source = usize::from(kind == Kind::Read);
    let has_protocol = !is_direct && (kind == Kind::Message || emulates(machine, kind));
    let far = |end: usize| match ends.places[end] {
        Place::Gpu(gpu) => {
            machine.gpus[gpu as usize].numa_node != machine.nics[ends.nics[end]].numa_node
        }
        Place::Host => false,
    };
    let protocol = if has_protocol { efa.protocol_share } else { 1.0 };
    let sides = [source, 1 - source];
    let rails = machine.nics_of_host();
    let hosts = sides.map(|end| machine.nics[ends.nics[end]].host);
    let share = machine.network_share(hosts, Some(sides.map(|end| ends.nics[end] % rails)));
    let side = |end: usize| {
        let nic = &machine.nics[ends.nics[end]];
        Side {
            link_gb_s: f64::from(nic.rate_gbps) / 8.0 * efa.rate_share * protocol * share,
            pcie: match ends.places[end] {
                Place::Gpu(gpu) => pcie(machine, gpu, end == source),
                Place::Host => None,
            },
        }
    };
    let far_ns = (0..2).filter(|end| far(*end)).count() as f64 * efa.far_ns;
    Way {
        sides: sides.map(side),
        latency_ns: efa.latency_ns + far_ns + if has_protocol { efa.protocol_ns } else { 0.0 },
        post_ns: efa.post_ns,
        operation_ns: efa.operation_ns,
        shuffle_ns: efa.shuffle_ns,
        seed: efa.seed,
    }
}

/// The PCIe link of a GPU in one direction, if it has a limit.
fn pcie(machine: &Machine, gpu: u32, goes_up: bool) -> Option<Pcie> {
    let of = machine.gpus.get(gpu as usize)?;
    let [up, down] = pcie_of(gpu);
    let (resource, gb_s) = if goes_up { (up, of.pcie_up_gb_s) } else { (down, of.pcie_down_gb_s) };
    Some(Pcie { resource, gb_s: gb_s? })
}
