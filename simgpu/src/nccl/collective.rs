//! Putting collectives and messages on streams.

use std::{
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    communicator::{Communicator, Connection, Handle, QueuedWork, find, ready},
    environment::environment,
    model::{Model, Way},
    report,
    types::{Amount, Code, Course, DataType, Function, OPERATIONS, Refused},
};
use crate::{
    cuda::{graph, local::with_current, queue::Queueing},
    execute::lock,
    machine::{Machine, RankFault},
    memory::Kind as Memory,
    state::World,
    timing::{
        cost::{HOST, Leg, Medium, Place, pair},
        meeting::{Call, Kind, Post, Posted, Refusal, Window},
        ps_of_ns,
    },
};

/// How long a caller waits for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// A collective as a program has called it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// As it was called, which for one function is not its name in the log.
    pub called: &'static str,
    pub function: Function,
    pub send: u64,
    pub receive: u64,
    pub count: u64,
    /// The sum of the counts of its group for the same function, type and operation.
    pub together: u64,
    pub data_type: u32,
    pub operation: u32,
    pub root: i32,
    pub communicator: u64,
    pub stream: u64,
}

/// A message as a program has called it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub called: &'static str,
    pub sends: bool,
    pub address: u64,
    pub count: u64,
    pub data_type: u32,
    pub peer: i32,
    pub communicator: u64,
    pub stream: u64,
}

fn invalid(text: String) -> Refused {
    Refused::new(Code::INVALID_ARGUMENT, text)
}

/// Refuses what no rank may call so, before anything is queued.
pub(super) fn check(world: &World, wanted: &Wanted) -> Result<(Handle, Arc<Model>), Refused> {
    let Wanted { called, root, data_type, operation, .. } = *wanted;
    let (handle, model) = ready(world, wanted.communicator)?;
    let own = lock(&handle);
    let end = i64::from(own.ranks);
    if i64::from(root) < 0 || i64::from(root) >= end {
        return Err(invalid(format!(
            "{called} : invalid root {root} (root should be in the 0..{end} range)"
        )));
    }
    let found = DataType::of(data_type);
    let found = found.ok_or_else(|| invalid(format!("{called} : invalid type {data_type}")))?;
    if wanted.function.shape().reduces && operation >= OPERATIONS {
        match operation_of(&own, operation) {
            Some((of, _)) if of == found => {}
            Some(_) => {
                return Err(invalid(format!(
                    "{called} : the operation was made for another type than {data_type}"
                )));
            }
            None => {
                return Err(invalid(format!(
                    "{called} : reduction operation {operation} unknown to this communicator"
                )));
            }
        }
    }
    drop(own);
    Ok((handle, model))
}

/// An operation that the program has made.
fn operation_of(own: &Communicator, number: u32) -> Option<(DataType, u64)> {
    own.operations.get(&number).copied()
}

/// Memory that a rank gives, which must be there as a whole and be its GPU's or the host's.
fn window(
    queueing: &Queueing<'_>,
    address: u64,
    bytes: u64,
    (called, what): (&str, &str),
) -> Result<Window, Refused> {
    if bytes == 0 {
        return Ok(Window { address, descriptor: -1, ..Window::default() });
    }
    let bad = || invalid(format!("{called} : {what} {address:#x} is not a valid pointer"));
    let memory = &queueing.local.memory;
    let region = memory.find(address, bytes).ok_or_else(bad)?;
    if let Place::Gpu(gpu) = region.place
        && gpu != queueing.gpu
    {
        return Err(invalid(format!(
            "{called} : {what} allocated on device {gpu} mismatchs with NCCL device {}",
            queueing.gpu
        )));
    }
    let inside = address - region.start;
    let file = match &region.kind {
        Memory::Allocated { .. } => memory.file(region.gpu, address),
        Memory::Mapped { handle, .. } if address + bytes <= region.end() => {
            let physical = queueing.local.physical.get(*handle);
            physical.map(|memory| (memory.file.as_raw_fd(), inside))
        }
        _ => None,
    };
    let (descriptor, offset) = file.unwrap_or((-1, 0));
    Ok(Window { address, bytes, pid: std::process::id(), descriptor, offset })
}

/// What a caller needs to queue on a rank's stream.
fn queueing<'w>(world: &'w World, gpu: u32, stream: u64) -> Result<Queueing<'w>, Refused> {
    let context = {
        let local = world.local();
        if local.contexts[gpu as usize].retained == 0 {
            return Err(Refused::new(
                Code::UNHANDLED_CUDA_ERROR,
                "Cuda failure 'invalid device context'",
            ));
        }
        local.context_handle(gpu)
    };
    with_current(|stack| stack.push(context));
    let queueing = Queueing::on(world, stream);
    with_current(|stack| stack.pop());
    let queueing = queueing?;
    if queueing.gpu != gpu {
        let text = "Cuda failure 'invalid resource handle': the stream is another device's";
        return Err(Refused::new(Code::UNHANDLED_CUDA_ERROR, text));
    }
    Ok(queueing)
}

/// Connects what a rank needs for the first time: `what` says that of its model. Returns the GPU
/// that must be at rest for it.
fn connect(
    world: &World,
    communicator: u64,
    what: impl FnOnce(&Model) -> Option<Connection>,
) -> Option<u32> {
    let (handle, model) = ready(world, communicator).ok()?;
    let connection = what(&model).filter(|_| model.ranks.len() > 1)?;
    let mut own = lock(&handle);
    own.connections.insert(connection).then_some(own.gpu)
}

/// The same for a collective.
pub(super) fn connect_algorithm(world: &World, wanted: &Wanted) -> Option<u32> {
    let size = DataType::of(wanted.data_type)?.bytes();
    let bytes = |count: u64| count.saturating_mul(size);
    connect(world, wanted.communicator, |model| {
        let (one, all) = (bytes(wanted.count), bytes(wanted.together));
        let choice = model.choose(environment(), wanted.function, one, all).ok()?;
        Some(Connection::Algorithm(choice.algorithm))
    })
}

/// The same for a message.
pub(super) fn connect_peer(world: &World, message: &Message) -> Option<u32> {
    let peer = u32::try_from(message.peer).ok()?;
    connect(world, message.communicator, |_| Some(Connection::Peer(peer)))
}

/// Queues a collective of a rank, or puts it into the graph of a stream that is captured.
pub(super) fn post_or_capture(world: &World, wanted: Wanted) -> Result<(), Refused> {
    let mut local = world.local();
    if !graph::is_captured(&local, wanted.stream) {
        drop(local);
        return post(world, &wanted);
    }
    let again = move |world: &World, stream| launched(post(world, &Wanted { stream, ..wanted }));
    graph::capture_call(&mut local, wanted.stream, again);
    drop(local);
    check(world, &wanted).map(|_| ())
}

/// What a launch of a graph answers.
fn launched(posted: Result<(), Refused>) -> Result<(), crate::cuda::Code> {
    posted.map_err(|_| crate::cuda::Code::LAUNCH_FAILED)
}

/// Queues a collective of a rank.
fn post(world: &World, wanted: &Wanted) -> Result<(), Refused> {
    let (handle, model) = check(world, wanted)?;
    let environment = environment();
    let Wanted { called, function, count, root, .. } = *wanted;
    let data_type = DataType::of(wanted.data_type)
        .ok_or_else(|| invalid(format!("{called} : invalid type {}", wanted.data_type)))?;
    let size = data_type.bytes();
    let mut own = lock(&handle);
    let (ranks, rank) = (u64::from(own.ranks), own.rank);
    let root = root.cast_unsigned();
    let too_large = || invalid(format!("{called} : count {count} is too large"));
    let bytes = count.checked_mul(size).filter(|bytes| bytes.checked_mul(ranks).is_some());
    let bytes = bytes.ok_or_else(too_large)?;
    let fault = own.fault(world, called);
    match fault {
        Some(RankFault::Refused { code, reason }) => {
            return Err(Refused::new(Code(code.cast_signed()), reason));
        }
        Some(RankFault::Absent) => {
            drop(own);
            super::communicator::never_arrive();
        }
        _ => {}
    }
    if count == 0 {
        return Ok(());
    }
    let choice =
        model.choose(environment, function, bytes, wanted.together.saturating_mul(size))?;
    if !own.connected {
        own.connected = true;
        report::tell_of_channels(world, &own, &model, choice);
    }
    report::tell_of_choice(&own, function, bytes, choice);
    let shape = function.shape();
    let elements = |amount: Amount| amount.elements(count, ranks, rank == root);
    let (sends, receives) = (elements(shape.sends), elements(shape.receives));
    let next = model.next(rank as usize);
    let leg = leg(&world.machine, &model, rank as usize, next);
    let operation = wanted.operation;
    let scalar = operation_of(&own, operation).map_or(0, |(_, bits)| bits);
    let call = Call {
        function: function as u32,
        data_type: wanted.data_type,
        operation: if shape.reduces { operation.min(OPERATIONS) } else { 0 },
        root,
        count,
    };
    let mut post = Post {
        kind: Kind::Collective,
        communicator: own.slot as u32,
        rank,
        number: own.nonce.rotate_left(24).wrapping_add(own.collectives),
        call,
        scalar,
        duration_ps: ps_of_ns(choice.ns),
        leg,
        leg_bytes: model.sent_bytes(function, bytes, choice),
        wrong: match fault {
            Some(RankFault::Wrong { element }) => element + 1,
            _ => 0,
        },
        ..Post::default()
    };
    let (gpu, stream) = (own.gpu, wanted.stream);
    own.collectives += 1;
    if let Some(RankFault::Asynchronous { code }) = fault {
        own.error = Some(Code(code.cast_signed()));
    }
    drop(own);
    let peers = if shape.course == Course::Direct { ranks } else { 1 };
    let queued = with_room(world, (wanted.communicator, &handle), peers, || {
        let mut queueing = queueing(world, gpu, stream)?;
        post.send = window(&queueing, wanted.send, sends * size, (called, "sendbuff"))?;
        post.receive = window(&queueing, wanted.receive, receives * size, (called, "recvbuff"))?;
        push(&mut queueing, post, &[], called)
    });
    if queued.is_err() {
        // What was refused does not count: the other ranks may be called again with it.
        lock(&handle).collectives -= 1;
    }
    queued
}

/// What is counted for bytes from rank to rank: nothing where both have the same GPU.
fn leg(machine: &Machine, model: &Model, source: usize, target: usize) -> Leg {
    let (from, to) = (model.ranks[source], model.ranks[target]);
    let medium = match model.way(source, target) {
        _ if (from.gpu, from.host) == (to.gpu, to.host) => Medium::None,
        Way::Peer { nvlink: true, .. } if !pair(machine, from.gpu, to.gpu).detour => Medium::NvLink,
        Way::Peer { .. } | Way::Shm | Way::Net => Medium::Pcie,
    };
    let number = |gpu: u32| u16::try_from(gpu).unwrap_or(HOST);
    Leg { source: number(from.gpu), target: number(to.gpu), medium }
}

/// Whether it is queued: the place of its stream and how many operations that has had; `None`:
/// there is no room.
type Queued = Result<Option<(usize, u64)>, Refused>;

fn push(queueing: &mut Queueing<'_>, post: Post, messages: &[Posted], called: &str) -> Queued {
    match queueing.push_post(post, messages) {
        Ok(()) => Ok(Some(queueing.position())),
        Err(Refusal::Full) => Ok(None),
        Err(Refusal::Differs(rank)) => Err(invalid(format!(
            "{called} : rank {} and rank {rank} differ in function, count, type, operation or root",
            post.rank
        ))),
    }
}

/// What the description of an operation takes for each rank that it has to do with.
const WORK_OF_A_PEER: u64 = 512;

/// Waits until the queue of a rank's work has room for `bytes` more, however long that takes.
fn await_room_for_work(
    world: &World,
    (number, handle): (u64, &Handle),
    bytes: u64,
) -> Result<(), Refused> {
    loop {
        // Another thread may have aborted it meanwhile.
        find(number)?;
        let mut own = lock(handle);
        own.work.retain(|work| world.executor.executed(work.stream) < work.count);
        let queued: u64 = own.work.iter().map(|work| work.bytes).sum();
        if queued == 0 || queued + bytes <= world.machine.nccl.work_fifo_bytes {
            return Ok(());
        }
        drop(own);
        thread::sleep(Duration::from_micros(100));
    }
}

/// Queues as soon as there is room, also for the description, which is of `peers` ranks.
fn with_room(
    world: &World,
    (number, handle): (u64, &Handle),
    peers: u64,
    mut attempt: impl FnMut() -> Queued,
) -> Result<(), Refused> {
    let bytes = peers * WORK_OF_A_PEER;
    await_room_for_work(world, (number, handle), bytes)?;
    let began = Instant::now();
    loop {
        // Another thread may have aborted it meanwhile.
        find(number)?;
        if let Some((stream, count)) = attempt()? {
            let mut own = lock(handle);
            own.last.insert(stream, count);
            own.work.push(QueuedWork { stream, count, bytes });
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            let text = "too many operations are queued whose partners have not come";
            return Err(Refused::new(Code::INTERNAL_ERROR, text));
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Queues the messages of one rank that belong together, or puts them into the graph of a stream
/// that is captured.
pub(super) fn post_or_capture_messages(
    world: &World,
    messages: Vec<Message>,
) -> Result<(), Refused> {
    let Some(first) = messages.first().copied() else { return Ok(()) };
    let mut local = world.local();
    if !graph::is_captured(&local, first.stream) {
        drop(local);
        return post_messages(world, &messages);
    }
    let again = move |world: &World, stream| {
        let messages: Vec<Message> =
            messages.iter().map(|message| Message { stream, ..*message }).collect();
        launched(post_messages(world, &messages))
    };
    graph::capture_call(&mut local, first.stream, again);
    drop(local);
    ready(world, first.communicator).map(|_| ())
}

/// Queues the messages of one rank that belong together.
fn post_messages(world: &World, messages: &[Message]) -> Result<(), Refused> {
    let Some(first) = messages.first() else { return Ok(()) };
    let (handle, model) = ready(world, first.communicator)?;
    let mut own = lock(&handle);
    let rank = own.rank;
    let mut posted = Vec::new();
    let mut transfers = Vec::new();
    for message in messages {
        let Message { called, sends, peer, count, .. } = *message;
        let peer = u32::try_from(peer).ok().filter(|peer| *peer < own.ranks).ok_or_else(|| {
            invalid(format!(
                "{called} : invalid root {peer} (root should be in the 0..{} range)",
                own.ranks
            ))
        })?;
        let data_type = DataType::of(message.data_type)
            .ok_or_else(|| invalid(format!("{called} : invalid type {}", message.data_type)))?;
        let bytes = count.checked_mul(data_type.bytes());
        let bytes =
            bytes.ok_or_else(|| invalid(format!("{called} : count {count} is too large")))?;
        match own.fault(world, called) {
            Some(RankFault::Refused { code, reason }) => {
                return Err(Refused::new(Code(code.cast_signed()), reason));
            }
            Some(RankFault::Absent) => {
                drop(own);
                super::communicator::never_arrive();
            }
            Some(RankFault::Asynchronous { code }) => own.error = Some(Code(code.cast_signed())),
            _ => {}
        }
        if bytes == 0 {
            continue;
        }
        let (source, target) = if sends { (rank, peer) } else { (peer, rank) };
        // A message to oneself is counted at each of its ends.
        let key = if source == target {
            (source, if sends { target } else { u32::MAX })
        } else {
            (source, target)
        };
        let number = own.messages.entry(key).or_insert(0);
        *number += 1;
        let number = *number;
        transfers.push((source as usize, target as usize, bytes));
        posted.push((message, source, target, number, bytes));
        if !own.connected && sends && source != target {
            report::tell_of_way(world, &model, (source as usize, target as usize), 0, 1);
        }
    }
    if posted.is_empty() {
        return Ok(());
    }
    own.connected = true;
    let number = own.nonce.rotate_left(24).wrapping_add(own.groups);
    own.groups += 1;
    let nonce = own.nonce;
    let post = Post {
        kind: Kind::Messages,
        communicator: own.slot as u32,
        rank,
        number,
        duration_ps: ps_of_ns(model.exchange_ns(&own_part(rank as usize, &transfers))),
        ..Post::default()
    };
    let (gpu, stream) = (own.gpu, first.stream);
    drop(own);
    with_room(world, (first.communicator, &handle), posted.len() as u64, || {
        let mut queueing = queueing(world, gpu, stream)?;
        let mut ends = Vec::new();
        for (message, source, target, number, bytes) in &posted {
            let window = window(&queueing, message.address, *bytes, (message.called, "buff"))?;
            let end = usize::from(!message.sends);
            let leg = leg(&world.machine, &model, *source as usize, *target as usize);
            let number = nonce.rotate_left(24).wrapping_add(*number);
            ends.push(Posted { source: *source, target: *target, number, end, window, leg });
        }
        push(&mut queueing, post, &ends, first.called)
    })
}

/// A rank's transfers, of which one to itself is there from both its ends.
fn own_part(rank: usize, transfers: &[(usize, usize, u64)]) -> Vec<(usize, usize, u64)> {
    let mut own = 0;
    let once = |&(source, target, _): &(usize, usize, u64)| {
        let same = source == rank && target == rank;
        own += usize::from(same);
        !same || own % 2 == 1
    };
    transfers.iter().copied().filter(once).collect()
}
