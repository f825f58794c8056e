//! Communicators of this process: joining, splitting, leaving.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use super::{
    environment::environment,
    log::{self, Subsystem},
    model::{Algorithm, Model, Rank},
    types::{Code, DataType, Refused},
};
use crate::{
    cuda::table::Table,
    execute::lock,
    machine::{FailingRank, RankFault},
    state::World,
    timing::{
        meeting::{Communicator as Shared, Member},
        ps_of_ns, split_mix,
    },
};

/// How often a rank that waits for others looks for them.
const LOOK: Duration = Duration::from_micros(200);
/// How often it looks whether one of them has died.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(100);

/// A rank that this process has.
#[derive(Debug)]
pub(super) struct Communicator {
    /// Its place among all of the machine, and the name by which it is known there.
    pub slot: usize,
    pub nonce: u64,
    pub rank: u32,
    pub ranks: u32,
    pub gpu: u32,
    pub blocking: bool,
    /// Whether it has joined: on purpose one may not.
    pub state: State,
    /// Collectives, groups of messages and splits that it has begun.
    pub collectives: u64,
    pub groups: u64,
    pub splits: u64,
    /// Windows that it has begun to register.
    pub windows: u64,
    /// What it was asked to do and has not done, since it does not block and others are missing.
    pub pending: Vec<Pending>,
    /// Messages between two ranks that it has begun, by source and target.
    pub messages: HashMap<(u32, u32), u64>,
    /// Operations that the program has made, by their numbers: the type and the bits of the factor.
    pub operations: HashMap<u32, (DataType, u64)>,
    pub operations_made: u32,
    /// Memory that was registered.
    pub registered: Table<(u64, u64)>,
    /// Calls by function, for faults; the empty name counts all collectives.
    pub calls: HashMap<&'static str, u64>,
    /// Whether the log has told of its channels.
    pub connected: bool,
    /// What it has connected.
    pub connections: HashSet<Connection>,
    /// The last operation on each stream: its place and number.
    pub last: HashMap<usize, u64>,
    /// What lies in the queue of its work.
    pub work: Vec<QueuedWork>,
    /// The code that the program is to be told of.
    pub error: Option<Code>,
    /// Its handle.
    pub number: u64,
    /// The call that began it.
    pub made_by: &'static str,
}

/// An operation whose description lies in the queue of a rank's work until its kernel has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedWork {
    pub stream: usize,
    /// How many operations the stream has executed then.
    pub count: u64,
    pub bytes: u64,
}

/// What a rank connects when it first needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Connection {
    Algorithm(Algorithm),
    /// Messages with a rank.
    Peer(u32),
}

/// How far a rank is.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The others are not all there.
    Joining,
    /// It can be used.
    Ready(Arc<Model>),
    /// It cannot.
    Failed(Refused),
}

/// A communicator as threads share it.
pub(super) type Handle = Arc<Mutex<Communicator>>;

static OPEN: Mutex<Option<Table<Handle>>> = Mutex::new(None);

/// The function by which faults know joining, whichever it is done by.
const JOINING: &str = "ncclCommInitRank";

/// The tag of communicators' handles.
const TAG: u8 = 0x61;

fn with_open<R>(change: impl FnOnce(&mut Table<Handle>) -> R) -> R {
    change(lock(&OPEN).get_or_insert_with(|| Table::new(TAG)))
}

/// Communicators that were not given back.
pub(crate) fn open() -> usize {
    with_open(|open| open.all().count())
}

/// The communicator of a handle.
pub(super) fn find(handle: u64) -> Result<Handle, Refused> {
    with_open(|open| open.get(handle).cloned()).ok_or_else(|| {
        let text = if handle == 0 { "comm argument is NULL" } else { "no such communicator" };
        Refused::new(Code::INVALID_ARGUMENT, text)
    })
}

/// Whether calls of a communicator wait until they are done.
pub(super) fn blocks(handle: u64) -> Result<bool, Refused> {
    let found = find(handle)?;
    let blocking = lock(&found).blocking;
    Ok(blocking)
}

/// The same as [`find`], once it can be used.
pub(super) fn ready(world: &World, handle: u64) -> Result<(Handle, Arc<Model>), Refused> {
    let found = find(handle)?;
    let state = progress(world, &found);
    let is_busy = !lock(&found).pending.is_empty();
    match state {
        State::Ready(model) if !is_busy => Ok((found, model)),
        State::Failed(refused) => Err(refused),
        State::Ready(_) | State::Joining => Err(Refused::new(
            Code::INVALID_ARGUMENT,
            "Attempt to use communicator before the previous operation returned ncclSuccess",
        )),
    }
}

/// What a communicator is to become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub nonce: u64,
    pub rank: u32,
    pub ranks: u32,
    pub gpu: u32,
    pub blocking: bool,
}

/// Adds a rank that has not joined yet; its handle.
pub(super) fn add(wanted: Wanted) -> u64 {
    let Wanted { nonce, rank, ranks, gpu, blocking } = wanted;
    let communicator = Communicator {
        slot: usize::MAX,
        nonce,
        rank,
        ranks,
        gpu,
        blocking,
        state: State::Joining,
        collectives: 0,
        groups: 0,
        splits: 0,
        windows: 0,
        pending: Vec::new(),
        messages: HashMap::new(),
        operations: HashMap::new(),
        operations_made: 0,
        registered: Table::new(0x63),
        calls: HashMap::new(),
        connected: false,
        connections: HashSet::new(),
        last: HashMap::new(),
        work: Vec::new(),
        error: None,
        number: 0,
        made_by: "",
    };
    with_open(|open| open.add(Arc::new(Mutex::new(communicator))))
}

/// What becomes of a rank that never arrives: its thread hangs in the call.
pub(super) fn never_arrive() -> ! {
    loop {
        thread::park();
    }
}

/// Makes a rank known to the others.
pub(super) fn join(world: &World, handle: u64, function: &'static str) -> Result<(), Refused> {
    let found = find(handle)?;
    let mut own = lock(&found);
    (own.number, own.made_by) = (handle, function);
    log::about(own.gpu);
    if own.rank == 0 {
        log::version();
    }
    let environment = environment();
    let fault = own.fault(world, JOINING);
    if matches!(fault, Some(RankFault::Absent)) {
        drop(own);
        never_arrive();
    }
    tell_of_init(world, &own, "Init START");
    if let Some(RankFault::Refused { code, reason }) = fault {
        let refused = Refused::new(Code(code.cast_signed()), reason);
        own.state = State::Failed(refused.clone());
        return Err(refused);
    }
    let mut plane = world.plane();
    let full = || Refused::new(Code::INTERNAL_ERROR, "the machine has no room for a communicator");
    let slot = plane.meetings.find_or_make(own.nonce, own.ranks).or_else(|| {
        plane.bury_the_dead();
        plane.meetings.find_or_make(own.nonce, own.ranks)
    });
    let slot = slot.ok_or_else(full)?;
    let shared = &mut plane.meetings.communicators[slot];
    if shared.ranks != own.ranks {
        let text =
            format!("{} ranks given by rank {}, {} by others", own.ranks, own.rank, shared.ranks);
        return Err(Refused::new(Code::INVALID_ARGUMENT, text));
    }
    let member = &mut shared.members[own.rank as usize];
    if member.joined {
        let text = format!("rank {} has joined this communicator already", own.rank);
        return Err(Refused::new(Code::INVALID_USAGE, text));
    }
    *member = Member {
        joined: true,
        place: world.place as u32,
        gpu: own.gpu,
        host: host(environment.host.as_deref(), world.host),
        joined_ps: world.host_ps(),
        ways: Rank::ways_of(environment),
        ..Member::default()
    };
    shared.joined += 1;
    own.slot = slot;
    Ok(())
}

/// A number for a host that has been given a name.
fn host(name: Option<&str>, number: u32) -> u64 {
    let bytes = name.unwrap_or_default().bytes().chain(number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Looks whether all ranks have joined; the state then.
pub(super) fn progress(world: &World, handle: &Handle) -> State {
    let mut own = lock(handle);
    if !matches!(own.state, State::Joining) || own.slot == usize::MAX {
        return own.state.clone();
    }
    let shared = world.plane().meetings.communicators[own.slot];
    if let Some(dead) = shared.dead(own.nonce) {
        own.state = State::Failed(dead);
    } else if shared.is_whole() {
        own.state = match whole(world, &own, &shared) {
            Ok(model) => State::Ready(Arc::new(model)),
            Err(refused) => State::Failed(refused),
        };
        if let State::Ready(model) = &own.state {
            super::report::tell_of_layout(world, &own, model);
            super::diagnostics::tell(world, &own, model);
            tell_of_init(world, &own, "Init COMPLETE");
            // All ranks do it at the same time.
            let joined = shared.members[..own.ranks as usize].iter().map(|member| member.joined_ps);
            let init_ps = ps_of_ns(world.machine.nccl.init_ms as f64 * 1e6);
            world.reach(joined.max().unwrap_or(0) + init_ps);
        }
    }
    own.state.clone()
}

/// Waits until a rank that blocks can be used.
pub(super) fn await_ready(world: &World, handle: u64) -> Result<(), Refused> {
    let found = find(handle)?;
    let mut looked = Instant::now();
    loop {
        match progress(world, &found) {
            State::Ready(_) => return Ok(()),
            State::Failed(refused) => return Err(refused),
            State::Joining => {}
        }
        // Another thread may have aborted it.
        find(handle)?;
        thread::sleep(LOOK);
        if looked.elapsed() > LOOK_FOR_DEAD {
            world.plane().bury_the_dead();
            looked = Instant::now();
        }
    }
}

impl Shared {
    /// What is wrong with a communicator one of whose ranks has died.
    fn dead(&self, nonce: u64) -> Option<Refused> {
        let members = &self.members[..self.ranks as usize];
        let dead = members.iter().position(|member| member.dead);
        if self.nonce != nonce {
            return Some(Refused::new(Code::REMOTE_ERROR, "all other ranks have left"));
        }
        dead.map(|rank| Refused::new(Code::REMOTE_ERROR, format!("rank {rank} has died")))
    }
}

/// The model of a communicator whose ranks are all there.
fn whole(world: &World, own: &Communicator, shared: &Shared) -> Result<Model, Refused> {
    let members = &shared.members[..own.ranks as usize];
    let ranks: Vec<Rank> = members
        .iter()
        .map(|m| Rank { gpu: m.gpu, host: m.host, place: m.place, ways: m.ways })
        .collect();
    for (rank, one) in ranks.iter().enumerate() {
        let same = |other: &Rank| (other.gpu, other.host) == (one.gpu, one.host);
        let other = ranks[..rank].iter().position(same);
        if let Some(other) = other.filter(|_| !environment().shares_gpus) {
            let bus = super::report::bus_id(world, one.gpu);
            let text = format!(
                "Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {bus:x}"
            );
            return Err(Refused::new(Code::INVALID_USAGE, text));
        }
    }
    Model::new(&world.machine, environment(), ranks)
}

fn tell_of_init(world: &World, own: &Communicator, what: &str) {
    let (handle, function) = (own.number, own.made_by);
    let place = world.machine.place_of(own.gpu);
    log::about(own.gpu);
    let before = if what == "Init START" { format!("[Rank {}] ", own.rank) } else { String::new() };
    let line = format!(
        "{before}{function} comm {handle:#x} rank {} nranks {} cudaDev {} nvmlDev {} busId {:x} \
         commId {:#x} - {what}",
        own.rank,
        own.ranks,
        place,
        place,
        super::report::bus_id(world, own.gpu),
        own.nonce
    );
    log::info(Subsystem::Init, &line);
}

impl Communicator {
    /// Counts a call, and says what is to go wrong with it, if anything.
    pub(super) fn fault(&mut self, world: &World, function: &'static str) -> Option<RankFault> {
        let is_collective = !function.starts_with("ncclComm");
        let mut count = |name| {
            let count: &mut u64 = self.calls.entry(name).or_insert(0);
            *count += 1;
            *count - 1
        };
        let by_name = count(function);
        let of_all = if is_collective { count("") } else { 0 };
        let rank = self.rank;
        let hit = |fault: &&FailingRank| {
            let before = match &fault.name {
                Some(name) if name == function => by_name,
                None if is_collective => of_all,
                _ => return false,
            };
            let time = if fault.always { before >= fault.after } else { before == fault.after };
            fault.rank.is_none_or(|named| named == rank) && time
        };
        world.machine.faults.ranks.iter().find(hit).map(|fault| fault.what.clone())
    }
}

/// Takes a new name for a communicator that nobody else has.
pub(super) fn new_nonce(world: &World) -> u64 {
    let mut plane = world.plane();
    plane.nonce += 1;
    split_mix(plane.nonce) | 1
}

/// A rank's part of a split: its color and key, and the how manieth split it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub color: i32,
    pub key: i32,
    pub number: u64,
}

/// What all ranks of a communicator do together, and where its result is put when all have come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    /// A new communicator; `None` as its blocking is that of the old one.
    Split { split: Split, target: *mut u64, blocking: Option<bool> },
    /// Memory in a window, by its number, with its handle.
    Window { number: u64, target: *mut u64, window: u64 },
}

// SAFETY: the program has asked for the result to be put there by whichever thread sees that all
// ranks have come; until then the place is the library's.
unsafe impl Send for Pending {}

/// Tells the others that a rank has come to what all do together. On purpose it may never come.
pub(super) fn announce(world: &World, handle: u64, pending: &Pending) -> Result<(), Refused> {
    let found = find(handle)?;
    let mut own = lock(&found);
    let function = match pending {
        Pending::Split { .. } => "ncclCommSplit",
        Pending::Window { .. } => "ncclCommWindowRegister",
    };
    match own.fault(world, function) {
        Some(RankFault::Refused { code, reason }) => {
            return Err(Refused::new(Code(code.cast_signed()), reason));
        }
        Some(RankFault::Absent) => {
            drop(own);
            never_arrive();
        }
        _ => {}
    }
    let mut plane = world.plane();
    let member = &mut plane.meetings.communicators[own.slot].members[own.rank as usize];
    match pending {
        Pending::Split { split, .. } => {
            let said = (split.number + 1, i64::from(split.color), i64::from(split.key));
            member.splits[split.number as usize % 2] = said;
        }
        Pending::Window { number, .. } => member.windows = number + 1,
    }
    Ok(())
}

/// Whether all ranks have come; then the result is put where it belongs. The handle of a new
/// communicator, which is still to join.
fn finished(
    world: &World,
    own: &Communicator,
    pending: &Pending,
) -> Result<Option<Option<u64>>, Refused> {
    let shared = world.plane().meetings.communicators[own.slot];
    if let Some(dead) = shared.dead(own.nonce) {
        return Err(dead);
    }
    let members = &shared.members[..own.ranks as usize];
    let (target, result, made) = match *pending {
        Pending::Window { number, target, window } => {
            if members.iter().any(|member| member.windows <= number) {
                return Ok(None);
            }
            (target, window, None)
        }
        Pending::Split { split, target, blocking } => {
            let said = members.iter().map(|member| member.splits[split.number as usize % 2]);
            let said: Vec<(u64, i64, i64)> = said.collect();
            if said.iter().any(|said| said.0 != split.number + 1) {
                return Ok(None);
            }
            let made = part(own, &split, &said).map(|wanted| {
                add(Wanted { blocking: blocking.unwrap_or(wanted.blocking), ..wanted })
            });
            (target, made.unwrap_or(0), made)
        }
    };
    // SAFETY: by the contract of the function the place is valid until it is done.
    unsafe { target.write(result) };
    Ok(Some(made))
}

/// Waits until all ranks have come, and does what they do together; the handle of a new
/// communicator.
pub(super) fn await_finished(
    world: &World,
    handle: u64,
    pending: &Pending,
) -> Result<Option<u64>, Refused> {
    let found = find(handle)?;
    let mut looked = Instant::now();
    loop {
        if let Some(made) = finished(world, &lock(&found), pending)? {
            return Ok(made);
        }
        // Another thread may have aborted it.
        find(handle)?;
        thread::sleep(LOOK);
        if looked.elapsed() > LOOK_FOR_DEAD {
            world.plane().bury_the_dead();
            looked = Instant::now();
        }
    }
}

/// Does what is pending and has all ranks now, in its order.
fn catch_up(world: &World, own: &mut Communicator) -> Result<(), Refused> {
    while let Some(first) = own.pending.first().copied() {
        let Some(made) = finished(world, own, &first)? else { break };
        own.pending.remove(0);
        if let Some(made) = made {
            join(world, made, "ncclCommSplit")?;
        }
    }
    Ok(())
}

/// What the communicator of a rank's color is to be, if it has one.
fn part(own: &Communicator, split: &Split, said: &[(u64, i64, i64)]) -> Option<Wanted> {
    if split.color < 0 {
        return None;
    }
    let same_color = |other: &usize| said[*other].1 == i64::from(split.color);
    let mut same: Vec<(i64, usize)> =
        (0..said.len()).filter(same_color).map(|other| (said[other].2, other)).collect();
    same.sort_unstable();
    let rank = same.iter().position(|&(_, other)| other == own.rank as usize).unwrap_or(0);
    let color = u64::from(split.color.cast_unsigned());
    Some(Wanted {
        nonce: split_mix(own.nonce ^ split.number << 32 ^ color) | 1,
        rank: rank as u32,
        ranks: same.len() as u32,
        gpu: own.gpu,
        blocking: own.blocking,
    })
}

/// Waits until all that a rank has begun is done, and lets it leave.
pub(super) fn destroy(world: &World, handle: u64) -> Result<(), Refused> {
    let found = find(handle)?;
    let own = lock(&found);
    let last: Vec<(usize, u64)> = own.last.iter().map(|(at, count)| (*at, *count)).collect();
    let (slot, rank, nonce) = (own.slot, own.rank as usize, own.nonce);
    drop(own);
    for (stream, count) in last {
        world.await_executed(stream, count);
    }
    with_open(|open| open.remove(handle));
    leave(&mut world.plane(), (slot, rank, nonce));
    Ok(())
}

/// Stops all that a rank waits for, and lets it leave at once.
pub(super) fn abort(world: &World, handle: u64) -> Result<(), Refused> {
    let found = find(handle)?;
    with_open(|open| open.remove(handle));
    // Whoever queues an operation at this moment has the lock only for short.
    let own = lock(&found);
    let (slot, rank, nonce) = (own.slot, own.rank as usize, own.nonce);
    let mut plane = world.plane();
    if slot != usize::MAX {
        plane.abort(slot, rank);
    }
    leave(&mut plane, (slot, rank, nonce));
    Ok(())
}

fn leave(plane: &mut crate::timing::Guard<'_>, (slot, rank, nonce): (usize, usize, u64)) {
    let there = plane.meetings.communicators.get(slot).is_some_and(|found| found.nonce == nonce);
    if there {
        plane.meetings.leave(slot, rank);
    }
}

/// The code that a program is to be told of.
pub(super) fn asynchronous(world: &World, handle: u64) -> Result<Option<Code>, Refused> {
    let found = find(handle)?;
    let state = progress(world, &found);
    let mut own: MutexGuard<'_, Communicator> = lock(&found);
    match state {
        State::Joining => return Ok(Some(Code::IN_PROGRESS)),
        State::Failed(refused) => return Ok(Some(refused.code)),
        State::Ready(_) => {}
    }
    if let Err(refused) = catch_up(world, &mut own) {
        return Ok(Some(refused.code));
    }
    if !own.pending.is_empty() {
        return Ok(Some(Code::IN_PROGRESS));
    }
    let mut plane = world.plane();
    plane.bury_the_dead();
    let shared = &plane.meetings.communicators[own.slot];
    let error = shared.members[own.rank as usize].error.cast_signed();
    let remote = shared.dead(own.nonce).map(|dead| dead.code);
    Ok(own.error.or((error != 0).then_some(Code(error))).or(remote))
}
