//! What the log tells of a communicator: who is where, by which ways, and how each collective is
//! done.

use super::{
    communicator::Communicator,
    environment::environment,
    log::{self, Subsystem},
    model::{Algorithm, Choice, Model, Way},
    types::Function,
};
use crate::state::World;

/// A GPU's PCI address as one number.
pub(super) fn bus_id(world: &World, gpu: u32) -> u64 {
    let (domain, bus, device) = world.machine.gpus[gpu as usize].pci;
    u64::from(domain) << 20 | u64::from(bus) << 12 | u64::from(device) << 4
}

/// Tells of a communicator whose ranks are all there.
pub(super) fn tell_of_layout(world: &World, own: &Communicator, model: &Model) {
    log::about(own.gpu);
    let place = |gpu| world.machine.place_of(gpu);
    let init = |line: &str| log::info(Subsystem::Init, line);
    init(&format!("Using network {}", world.machine.nccl.net_name));
    let rank = own.rank as usize;
    let host = model.ranks[rank].host;
    let local = |until: usize| model.ranks[..until].iter().filter(|r| r.host == host).count();
    let available = if model.nvls.is_some() { "" } else { "not " };
    init(&format!("NVLS multicast support is {available}available on dev {}", place(own.gpu)));
    init(&format!(
        "comm {:#x} rank {} nRanks {} nNodes {} localRanks {} localRank {} MNNVL 0",
        own.number,
        own.rank,
        own.ranks,
        model.nodes,
        local(model.ranks.len()),
        local(rank)
    ));
    let peers = |what: fn(Way) -> bool| {
        let others = (0..model.ranks.len()).filter(|other| *other != rank);
        others
            .filter(|&other| model.ranks[other].host == host)
            .all(|other| what(model.way(rank, other)))
    };
    let direct = u8::from(peers(|way| matches!(way, Way::Peer { .. })));
    let places = model.ranks.iter().filter(|r| r.place == model.ranks[rank].place).count();
    let mode = u8::from(places > 1);
    init(&format!(
        "Check P2P Type isAllDirectP2p {direct} directMode {mode} isAllCudaP2p {direct}"
    ));
    init(&format!("P2P Chunksize set to {}", if direct == 1 { 524_288 } else { 131_072 }));
    init("CC Off, workFifoBytes 1048576");
    let nvls = if model.nvls.is_some() { 16 } else { 0 };
    init(&format!(
        "{} coll channels, {} collnet channels, {nvls} nvls channels, {} p2p channels, 2 p2p \
         channels per peer",
        model.channels, model.channels, model.channels
    ));
}

/// Tells of the ways of a communicator, at its first collective.
pub(super) fn tell_of_channels(world: &World, own: &Communicator, model: &Model, choice: Choice) {
    log::about(own.gpu);
    let rank = own.rank as usize;
    if choice.algorithm == Algorithm::Nvls {
        let size = 4 << 20;
        let line = format!(
            "NVLS comm {:#x} headRank {rank} nHeads {} nvlsRanks {} buffSize {size} \
             nvlsPerRankSize {} nvlsTotalSize {}",
            own.nonce,
            own.ranks,
            own.ranks,
            size * 16,
            u64::from(own.ranks) * size * 16
        );
        log::info(Subsystem::Init, &line);
        log::info(Subsystem::Init, "Connected NVLS tree");
        return;
    }
    let next = model.next(rank);
    if next == rank {
        return;
    }
    for channel in 0..model.channels {
        tell_of_way(world, model, (rank, next), channel, 0);
    }
    log::info(Subsystem::Init, "Connected all rings, use ring PXN 0 GDR 0");
    if choice.algorithm == Algorithm::Tree {
        log::info(Subsystem::Init, "Connected all trees");
    }
}

/// Tells of one way, from a rank of this process to another.
pub(super) fn tell_of_way(
    world: &World,
    model: &Model,
    (source, target): (usize, usize),
    channel: u32,
    connection: u32,
) {
    let environment = environment();
    let [from, to] = [source, target].map(|rank| model.ranks[rank]);
    let [near, far] = [from, to].map(|rank| world.machine.place_of(rank.gpu));
    let ends = format!("{source}[{near}] -> {target}[{far}]");
    match model.way(source, target) {
        Way::Peer { read, .. } => {
            let read = if read { "/read" } else { "" };
            let kind = if from.place == to.place && environment.p2p_direct {
                "direct pointer"
            } else if environment.cumem {
                "CUMEM"
            } else {
                "IPC"
            };
            let line = format!("Channel {channel:02}/{connection} : {ends} via P2P/{kind}{read}");
            tell_both(Subsystem::P2p, &line);
        }
        Way::Shm => {
            let line = format!("Channel {channel:02} : {ends} via SHM/direct");
            tell_both(Subsystem::Shm, &line);
        }
        Way::Net => {
            let name = &world.machine.nccl.net_name;
            let line =
                format!("Channel {channel:02}/{connection} : {ends} [send] via NET/{name}/0");
            tell_both(Subsystem::Net, &line);
        }
    }
}

/// Tells what is about a transport and about initialisation: once, if either is wanted.
fn tell_both(transport: Subsystem, line: &str) {
    if !log::info_if(Subsystem::Init, line) {
        log::info(transport, line);
    }
}

/// Tells how a collective is done; rank 0 alone does.
pub(super) fn tell_of_choice(own: &Communicator, function: Function, bytes: u64, choice: Choice) {
    if own.rank != 0 {
        return;
    }
    log::about(own.gpu);
    log::info(
        Subsystem::Tuning,
        &format!(
            "{}: {bytes} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}} cgaClusterSize 0",
            function.shape().name,
            choice.algorithm.name().to_uppercase(),
            choice.protocol.name().to_uppercase(),
            choice.channels - 1
        ),
    );
}
