//! RDMA between ranks through libfabric: writes, reads and messages, on one host or between many.

mod affinity;
mod builder;
mod channel;
mod counters;
mod data;
mod inbox;
mod labels;
mod port;
mod runs;
mod samples;
mod signal;
mod stage;
mod transfer;
mod verb;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use serde::{Deserialize, Serialize};

use affinity::own_cpu;
use builder::Builder;
use data::Data;
use labels::network;
use port::{Port, PortCard};
pub use samples::{run_in, stream_time_min};
use signal::CHANNELS_MAX;
use transfer::Streams;
use verb::Verb;

use super::{
    Error, GpuPath, Network, Registration, SharedMemory, Staging, Support, Transfer, Transport,
    TryingTo, gpu::Gpus, lack_of_memory,
};
use crate::{
    ffi::{
        fabric::{Domain, Facts, Info, Library, Query, RemoteRegion},
        simulation,
    },
    machine,
    plan::{
        Case, Fabric, Flow, Gpu, NicName, Operation, Rank,
        rdma::{EFA, EFA_DIRECT, HARDWARE, UNSOLICITED, base, is_no},
        topology::Topology,
    },
    units::Bytes,
    world::World,
};

/// The most operations of one sample.
const OPERATIONS_MAX: u64 = 1 << 20;

/// The most data of a flow under way at once on each endpoint, unless the user gives a window. It
/// exceeds what a link of 400 Gbit/s holds with a round trip of 50 µs (2.5 MB). More gains nothing:
/// targets leave the caches, and runs take longer to end. Of staged data it is twice as much, most
/// of which is not on the network.
const UNDER_WAY_MAX: Bytes = Bytes::mib(4);

/// The fewest operations of a flow under way at once on each endpoint, unless the user gives a
/// window: one moves while the completion of the other is processed.
const UNDER_WAY_MIN: u64 = 2;

/// Operations of an endpoint that are reserved for signals.
const SIGNALS: usize = 32;

/// The size of a chunk of staged data, unless the user gives one: that of NCCL's network transport,
/// whose buffers of 4 MiB (`NCCL_BUFFSIZE`) have 8 steps ("NCCL User Guide", Environment Variables;
/// `NCCL_STEPS` in its `device.h`).
const CHUNK: Bytes = Bytes::kib(512);

/// The size of the data that travels with an operation and holds a signal.
const SIGNAL_SIZE: Bytes = Bytes::new(4);

/// RDMA through libfabric.
pub(super) struct Rdma {
    library: &'static Library,
    topology: Topology,
    gpus: Result<Gpus, String>,
    /// Interfaces stay open: by provider, interface, and whether they reach memory of GPUs.
    domains: RefCell<BTreeMap<(String, NicName, bool), Rc<Domain>>>,
}

/// What a rank's partners must know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    ports: Vec<PortCard>,
    /// Its flows in the order of its own numbers: source, target, and the memory that the other end
    /// accesses, through each port.
    flows: Vec<(Rank, Rank, Vec<RemoteRegion>)>,
    /// Slots of its targets.
    slots: u64,
    /// As in [`Report`].
    room: u64,
}

/// What rank 0 must know of each rank to describe the network.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    rank: Rank,
    protocol: String,
    registration: Registration,
    gpu_path: Option<GpuPath>,
    shared_memory: SharedMemory,
    is_emulated: Option<bool>,
    window: u64,
    /// Operations of a flow to this rank that may be unconfirmed.
    room: u64,
}

impl Rdma {
    /// RDMA, if there is a libfabric; otherwise what to do about it.
    pub(super) fn new(topology: &Topology) -> Result<Self, String> {
        Ok(Self {
            library: machine::fabric()?,
            topology: topology.clone(),
            gpus: Gpus::new(topology),
            domains: RefCell::default(),
        })
    }

    /// What the provider offers on the interface `nic`, for memory of GPUs if `has_gpu`.
    fn offer(&self, fabric: &Fabric, nic: &NicName, has_gpu: bool) -> Result<Option<Info>, Error> {
        let query = Query {
            provider: Some(&fabric.provider),
            fabric: Some(&nic.fabric),
            domain: Some(&nic.domain),
            gpu_memory: has_gpu,
        };
        let offers = self.library.offers(&query).trying_to("ask libfabric")?;
        // libfabric matches a provider's name with that provider under any layer, too.
        let is_it = |offer: &Info| offer.facts().provider == fabric.provider;
        Ok(offers.into_iter().find(is_it))
    }

    fn domain(&self, fabric: &Fabric, nic: &NicName, has_gpu: bool) -> Result<Rc<Domain>, Error> {
        let key = (fabric.provider.clone(), nic.clone(), has_gpu);
        if let Some(domain) = self.domains.borrow().get(&key) {
            return Ok(Rc::clone(domain));
        }
        let gone = Error::Unavailable(format!("{} is no longer offered", nic.domain));
        let offer = self.offer(fabric, nic, has_gpu)?.ok_or(gone)?;
        let domain = Domain::open(&offer).trying_to("open the interface")?;
        self.domains.borrow_mut().insert(key, Rc::clone(&domain));
        Ok(domain)
    }

    /// Tries whether the provider accepts memory of `gpu` on the interface `nic`.
    fn reach(&self, fabric: &Fabric, nic: &NicName, gpu: Gpu) -> Result<(), Error> {
        let mut port = [Port::open(&self.domain(fabric, nic, true)?)?];
        let memory = Data::of_gpu(&mut port, &self.needed_gpus()?.ready(gpu)?, Bytes::kib(4))?;
        // The endpoint, which keeps the memory, is closed first.
        drop(port);
        drop(memory);
        Ok(())
    }

    /// Whether this rank has enough memory for `case`.
    fn room(&self, case: &Case, fabric: &Fabric, rank: Rank) -> Result<Support, Error> {
        let verb = Verb::of(case.operation)?;
        let flows = own_flows(case, rank).len() as u64;
        let slots = slots(case, verb, window(case, fabric, usize::MAX), None);
        let source = channel::source_size(case.size);
        let buffers = source.plus(case.size.times(slots));
        let ring = channel::slot(chunk(case), slots);
        let on_gpu = case.ends().any(|end| end.rank == rank && end.gpu().is_some());
        let (of_gpu, of_host) = match (on_gpu, fabric.is_staged) {
            (true, true) => (source, ring),
            (true, false) => (buffers, Bytes::default()),
            (false, _) => (Bytes::default(), buffers),
        };
        let remedy = ": give smaller --sizes or a smaller --window";
        let lack = lack_of_memory("sources and targets need", of_host.times(flows), remedy);
        match lack {
            Some(reason) => Ok(Support::No(reason)),
            None if on_gpu => self.needed_gpus()?.room(case, rank, of_gpu),
            None => Ok(Support::Yes),
        }
    }

    fn needed_gpus(&self) -> Result<&Gpus, Error> {
        self.gpus.as_ref().map_err(|reason| Error::Unavailable(reason.clone()))
    }
}

impl Transport for Rdma {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        let rank = world.rank();
        let Some((fabric, nics)) = own_nics(case, rank) else { return Ok(Support::Yes) };
        let flows = own_flows(case, rank);
        if flows.len() > CHANNELS_MAX {
            return Ok(Support::No(format!(
                "a rank would have {} flows at once, more than {CHANNELS_MAX}: give fewer --ranks",
                flows.len()
            )));
        }
        let is_set = || std::env::var(UNSOLICITED).is_ok_and(|value| is_no(value.trim()));
        if base(&fabric.provider) == EFA && is_set() {
            return Ok(Support::No(format!(
                "{UNSOLICITED} makes writes wait for receives that are not posted here: unset it"
            )));
        }
        let has_gpu = is_direct(case, rank);
        for nic in nics {
            let (provider, domain) = (&fabric.provider, &nic.domain);
            let Some(offer) = self.offer(fabric, nic, has_gpu)? else {
                return Ok(Support::No(if has_gpu {
                    format!(
                        "provider {provider} does not reach GPU memory through {domain} here: \
                         libfabric does not offer FI_HMEM (it takes one made with CUDA, which \
                         looks for libcudart.so, without a version in its name)"
                    )
                } else {
                    format!("provider {provider} no longer offers {domain}")
                }));
            };
            let has_short_messages =
                case.operation.has_messages() && offer.facts().fabric == EFA_DIRECT;
            let message_max = match has_short_messages {
                true => Port::open(&self.domain(fabric, nic, has_gpu)?)?.endpoint.message_max(),
                false => None,
            };
            if let Some(reason) = lack(case, offer.facts(), message_max) {
                return Ok(Support::No(reason));
            }
            let gpu = case.endpoint(rank).and_then(|end| end.gpu()).filter(|_| has_gpu);
            if let Some(gpu) = gpu
                && let Err(err) = self.reach(fabric, nic, gpu)
            {
                return Ok(Support::No(format!(
                    "provider {provider} does not reach memory of GPU {} through {domain} here: \
                     {err} (it takes a libfabric made with CUDA, which finds libcudart.so)",
                    gpu.0
                )));
            }
        }
        self.room(case, fabric, rank)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        let rank = world.rank();
        let verb = Verb::of(case.operation)?;
        // Rank 0 has the whole case. The others have only their part of it.
        let parts = case.parts();
        let is_whole = world.is_root();
        let own = if is_whole { parts.get(&rank) } else { Some(case) };
        // A rank runs on the NUMA node of its memory if possible.
        let end = case.endpoint(rank);
        let of_gpu = |gpu| self.topology.gpus.iter().find(|node| node.gpu == gpu)?.numa_node;
        let near = end.and_then(|end| end.numa_node().or_else(|| of_gpu(end.gpu()?)));
        // A simulated machine's time waits for who looks, and its ranks share the CPUs.
        let wants_cpu = end.is_some() && simulation::library().is_none();
        let cpu = own_cpu(&self.topology, wants_cpu, near, world)?;
        let builder = match own {
            Some(own) if !own.flows.is_empty() => Some(Builder::new(self, own, rank, cpu)?),
            _ => None,
        };
        let card = builder.as_ref().map(Builder::card).transpose()?;
        let wants = |of: Rank| parts.get(&of).map_or_else(Vec::new, |part| part.partners(of));
        let cards: Vec<(Rank, Option<Card>)> = world.exchange(card, wants)?;
        let report = builder.as_ref().map(Builder::report);
        let reports = world.gather(report)?;
        let network = reports.map(|reports| network(case, verb, &reports));
        let network = world.broadcast(network)?;
        let streams = match builder {
            Some(builder) => builder.connect(&cards, world, network)?,
            None => Streams::idle(case, verb, world, network),
        };
        // A rank that could not connect reports it here, before others wait for it.
        world.barrier()?;
        Ok(Box::new(streams))
    }

    fn gpus(&self) -> Option<&Gpus> {
        self.gpus.as_ref().ok()
    }
}

/// Whether a device moves the data, and no software of the hosts.
fn is_of_hardware(fabric: &Fabric) -> bool {
    HARDWARE.contains(&base(&fabric.provider))
}

/// Operations of each of the `incoming` flows to a rank that may be unconfirmed, where completion
/// queues take the completions of `completions` writes. A device loses what its queue has no room
/// for; providers of software do not. Staged operations are bounded by the slots of their rings.
fn room(fabric: &Fabric, verb: Verb, completions: u64, incoming: u64) -> u64 {
    let is_lossy = is_of_hardware(fabric);
    match verb {
        Verb::Write | Verb::Send | Verb::PingPong if is_lossy && !fabric.is_staged => {
            (completions / incoming.max(1)).max(1)
        }
        _ => u64::MAX,
    }
}

/// The most operations between two confirmations where `room` may be unconfirmed and `window` are
/// under way: the target confirms one group while the next one comes.
fn group_max(room: Option<u64>, window: u64) -> u64 {
    (room.unwrap_or(u64::MAX).saturating_sub(window) / 2).clamp(1, OPERATIONS_MAX)
}

/// The interfaces of `rank` in `case`, if it has a part in it.
fn own_nics(case: &Case, rank: Rank) -> Option<(&Fabric, &[NicName])> {
    let fabric = case.fabric.as_ref()?;
    let (_, nics) = fabric.nics.iter().find(|(of, _)| *of == rank)?;
    Some((fabric, nics))
}

fn own_flows(case: &Case, rank: Rank) -> Vec<Flow> {
    let is_own = |flow: &&Flow| flow.source.rank == rank || flow.target.rank == rank;
    case.flows.iter().filter(is_own).copied().collect()
}

/// Whether the interfaces of `rank` access GPU memory directly.
fn is_direct(case: &Case, rank: Rank) -> bool {
    !is_staged(case) && case.ends().any(|end| end.rank == rank && end.gpu().is_some())
}

/// Operations of a flow under way at once, at most `room`.
fn window(case: &Case, fabric: &Fabric, room: usize) -> u64 {
    let wanted = match fabric.is_window_given {
        true => u64::from(fabric.window),
        false => {
            let rails = u64::from(fabric.rails);
            let most = if fabric.is_staged { 2 } else { 1 } * UNDER_WAY_MAX.times(rails).get();
            let most = most / chunk(case).get().max(1);
            (rails * u64::from(fabric.window)).min(most.max(UNDER_WAY_MIN * rails))
        }
    };
    let wanted = if case.operation == Operation::PingPong { 1 } else { wanted };
    wanted.min(room as u64).max(1)
}

/// Whether data of GPUs goes through host memory.
fn is_staged(case: &Case) -> bool {
    case.fabric.as_ref().is_some_and(|fabric| fabric.is_staged)
}

/// The data of one operation of the network.
fn chunk(case: &Case) -> Bytes {
    if is_staged(case) { case.slot.unwrap_or(CHUNK).min(case.size) } else { case.size }
}

/// How the data is staged, if it is.
fn staging(case: &Case, network: &Network) -> Option<Staging> {
    is_staged(case).then(|| Staging::by_gpus(chunk(case), u64::from(network.window)))
}

/// Slots of a target, or of a ring: one if operations arrive in order, which they never do over
/// several interfaces; otherwise one for each operation that can be under way.
fn slots(case: &Case, verb: Verb, window: u64, facts: Option<&Facts>) -> u64 {
    let is_ordered = facts.filter(|_| !is_staged(case)).is_some_and(|facts| match verb {
        Verb::Read => facts.msg_order.contains("FI_ORDER_RAR"),
        Verb::Write => {
            facts.msg_order.contains("FI_ORDER_WAW") && facts.max_order_waw_size >= case.size
        }
        Verb::Send | Verb::PingPong => facts.msg_order.contains("FI_ORDER_SAS"),
    });
    let rails = u64::from(case.fabric.as_ref().map_or(1, |fabric| fabric.rails));
    if is_ordered && rails == 1 { 1 } else { parts_under_way(window, rails) }
}

/// Slots for `window` operations under way, the same number for each of `rails`. The number makes
/// each slot get different data every time.
fn parts_under_way(window: u64, rails: u64) -> u64 {
    let parts = window.next_multiple_of(rails);
    if parts.is_multiple_of(channel::SHIFTS) { parts + rails } else { parts }
}

/// Receives of a flow on each of `ports` interfaces of its target, where `window` messages of `chunk`
/// may be under way over `rails`: those of the rails that end there, and as many again for messages
/// that came and whose receives are not posted anew, as far as they need little memory.
fn posted_receives(window: u64, rails: u64, ports: u64, chunk: Bytes) -> u64 {
    let under_way = window.div_ceil(rails) * rails.div_ceil(ports.max(1));
    let more = (UNDER_WAY_MAX.get() / chunk.get().max(1)).min(under_way);
    (under_way + more).min(window.max(under_way))
}

/// What the provider lacks for `case`: a sentence. `message_max`: the longest message, where it is
/// shorter than the longest write or read.
fn lack(case: &Case, facts: &Facts, message_max: Option<Bytes>) -> Option<String> {
    let provider = &facts.provider;
    if facts.cq_data_size < SIGNAL_SIZE {
        return Some(format!(
            "provider {provider} lets no data come along with operations (cq_data_size {}), by \
             which their arrival is seen",
            facts.cq_data_size.get()
        ));
    }
    if chunk(case) > facts.max_msg_size {
        return Some(format!(
            "one operation of provider {provider} moves {} at most",
            facts.max_msg_size.rounded()
        ));
    }
    let most = message_max.filter(|most| chunk(case) > *most)?;
    Some(format!(
        "one message of provider {provider} on fabric {} has {} at most: give --fabric {EFA}",
        facts.fabric,
        most.rounded()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{
        Endpoint, Engine, Issuer, Pattern, Place, TransportKind, topology::NumaNode,
    };

    /// A write of `size` from rank 0 to rank 1, over so many interfaces of each.
    fn case(rails: u32, size: Bytes) -> (Case, Fabric) {
        let end = |rank| {
            let place = Place::Pinned { numa_node: NumaNode(0) };
            Endpoint { rank: Rank(rank), place }
        };
        let fabric = Fabric {
            provider: "efa".to_owned(),
            nics: Vec::new(),
            rails,
            endpoints: 1,
            window: 64,
            is_window_given: false,
            is_staged: false,
            is_one_host: false,
            meetings: Vec::new(),
        };
        let case = Case {
            transport: TransportKind::Rdma,
            pattern: Pattern::OneWay,
            flows: vec![Flow { source: end(0), target: end(1) }],
            operation: Operation::Write,
            engine: Engine::Nic,
            issuer: Some(Issuer::Write),
            handle: None,
            size,
            slot: None,
            sample: None,
            fabric: Some(fabric.clone()),
            nccl: None,
        };
        (case, fabric)
    }

    #[test]
    fn large_messages_take_no_more_memory_than_can_be_under_way() {
        let of = |window, rails, ports, chunk| posted_receives(window, rails, ports, chunk);
        // One rail: what is under way.
        assert_eq!(of(64, 1, 1, Bytes::new(8)), 64);
        assert_eq!(of(2, 1, 1, Bytes::mib(64)), 2);
        // Sixteen rails to as many ports.
        assert_eq!(of(1024, 16, 16, Bytes::new(8)), 128);
        assert_eq!(of(32, 16, 16, Bytes::mib(64)), 2);
        assert_eq!(of(64, 16, 16, Bytes::mib(1)), 8);
        // More rails than ports, and fewer.
        assert_eq!(of(8, 4, 1, Bytes::mib(64)), 8);
        assert_eq!(of(8, 4, 8, Bytes::mib(64)), 2);
        assert_eq!(of(1, 16, 16, Bytes::new(8)), 1);
    }

    #[test]
    fn each_interface_has_64_operations_under_way_but_4_mib_at_most_unless_those_are_fewer_than_two()
     {
        for (rails, size, expected) in [
            (1, Bytes::kib(1), 64),
            (1, Bytes::mib(1), 4),
            (1, Bytes::mib(8), 2),
            (2, Bytes::mib(1), 8),
            (4, Bytes::kib(8), 256),
            (4, Bytes::kib(512), 32),
            (4, Bytes::mib(8), 8),
            (4, Bytes::mib(1024), 8),
            (32, Bytes::mib(64), 64),
            (64, Bytes::mib(64), 128),
        ] {
            let (case, fabric) = case(rails, size);
            assert_eq!(window(&case, &fabric, usize::MAX), expected, "{rails} {size}");
            assert_eq!(window(&case, &fabric, 3), expected.min(3));
            let given = Fabric { window: 100, is_window_given: true, ..fabric };
            assert_eq!(window(&case, &given, usize::MAX), 100);
            assert!(slots(&case, Verb::Write, expected, None).is_multiple_of(u64::from(rails)));
        }
    }
}
