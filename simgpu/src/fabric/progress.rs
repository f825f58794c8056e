//! Who moves time on, and when: all threads with endpoints wait for something.

use std::{
    cell::Cell,
    io::{self, Write},
    sync::{Once, OnceLock},
    thread,
    time::Duration,
};

use super::bytes::{carry, carry_but_one, release};
use crate::{
    state::World,
    timing::{
        Guard,
        cost::Place,
        monotonic_ns,
        wire::{Endpoint, Note, User, Wires},
    },
};

/// Polls in vain after which an endpoint's user waits: it has looked at everything since the first of
/// them, and has had its turns to do what follows, also where it goes from one loop to the next.
const POLLS: u32 = 3;

/// A thread that has not polled for so long of real time is not waited for: it is stopped.
const STOPPED_NS: u64 = 1_000_000_000;

/// Looks in vain for the same end of a GPU's work, and at no endpoint, after which a thread waits for
/// that alone.
const LOOKS: u32 = 2;

/// An endpoint that was told nothing is looked at again after so long of real time: a process may have
/// died or stopped meanwhile.
const REST_NS: u64 = 50_000_000;

/// A thread whose endpoints all had nothing sleeps until it is told something, or for so long: it may
/// have more to look at. To give way instead would cost a time slice each time where others use the
/// processors too.
const NAP: Duration = Duration::from_micros(200);

/// Before that it looks for so long, if all threads with endpoints have a processor each: mostly
/// another one runs, and is about to tell it something.
const SPIN_NS: u64 = 50_000;

/// And for so long where they share processors: the other thread may wait for this one's.
const SPIN_SHARED_NS: u64 = 2_000;

thread_local! {
    /// What this thread looks for on a GPU, and how often it has in vain since it last polled an
    /// endpoint.
    static LOOKED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// Polls of endpoints that were told nothing, one after the other since this thread last slept, and
    /// how often its process had been told anything.
    static IDLE: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// What a poll in vain has seen, after which its thread waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    told: u32,
    at_ns: u64,
    endpoints: u32,
    /// How long to look before it sleeps.
    spin_ns: u64,
}

/// Fetches what an endpoint is told next. Without anything, and while everybody waits, time goes to
/// what happens next.
pub(super) fn poll(world: &World, at: u32, seen: &mut Seen) -> Option<Note> {
    let now_ns = monotonic_ns();
    LOOKED.set((0, 0));
    // Polls in vain would keep the others from the lock, and from the processors.
    let rings = world.shared.board(world.place).rings();
    if seen.told == world.shared.told(at) && now_ns < seen.at_ns + REST_NS {
        rest(world, seen, rings);
        return None;
    }
    IDLE.set((0, rings));
    let mut plane = world.plane();
    if seen.at_ns != 0 && now_ns >= seen.at_ns + REST_NS {
        plane.bury_the_dead();
    }
    let user = plane.wires.endpoints[at as usize].user;
    let endpoints = plane.wires.users[user as usize].endpoints;
    // It does not wait, even if that could not be told.
    plane.wires.users[user as usize].waits = false;
    plane.wires.users[user as usize].looks = false;
    let mut until_ps = 0;
    loop {
        settle(world, &mut plane, until_ps);
        if let Some(note) = plane.wires.fetch(at) {
            *seen = Seen::default();
            return Some(note);
        }
        let endpoint = &mut plane.wires.endpoints[at as usize];
        endpoint.idle = endpoint.idle.saturating_add(1);
        endpoint.polled_ns = now_ns;
        if endpoint.idle < POLLS {
            return None;
        }
        let Some(next_ps) = next_ps(&plane, now_ns) else {
            let has_own = plane.wires.threads() <= processors();
            let spin_ns = if has_own { SPIN_NS } else { SPIN_SHARED_NS };
            *seen = Seen { told: world.shared.told(at), at_ns: now_ns, endpoints, spin_ns };
            return None;
        };
        until_ps = next_ps;
    }
}

/// Those that this process may use.
fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Leaves the processor to others once each endpoint has been polled in vain.
fn rest(world: &World, seen: &Seen, rings: u32) {
    let polls = match IDLE.get() {
        (polls, rung) if rung == rings => polls + 1,
        _ => 1,
    };
    IDLE.set((polls % seen.endpoints, rings));
    if polls < seen.endpoints {
        return;
    }
    let board = world.shared.board(world.place);
    let began_ns = monotonic_ns();
    while board.rings() == rings {
        if monotonic_ns() > began_ns + seen.spin_ns {
            return board.nap(rings, NAP);
        }
        std::hint::spin_loop();
    }
}

/// Whether a thread has to look again for what happens on a GPU at `time_ps`, or, without a time,
/// may never happen; `is_done` says whether it is carried out. If the thread has endpoints, time
/// goes there by those, or while it looks at nothing else, and no further before it is done.
pub(crate) fn looks_again(world: &World, time_ps: Option<u64>, is_done: impl Fn() -> bool) -> bool {
    let Some(time_ps) = time_ps else { return true };
    let is_later = || time_ps > world.host_ps();
    if !is_later() && is_done() {
        return false;
    }
    let looks = match LOOKED.get() {
        (looked_ps, looks) if looked_ps == time_ps => looks + 1,
        _ => 1,
    };
    LOOKED.set((time_ps, looks));
    let mut plane = world.plane();
    let Some(user) = plane.wires.user(world.place, own_thread()) else { return !is_done() };
    if is_later() {
        plane.wires.look(user, time_ps, looks >= LOOKS);
        while is_later()
            && let Some(next_ps) = next_ps(&plane, monotonic_ns())
        {
            settle(world, &mut plane, next_ps);
        }
        if is_later() {
            return true;
        }
    }
    if is_done() {
        return false;
    }
    plane.wires.rouse(user);
    settle(world, &mut plane, 0);
    true
}

/// This thread waits from now on for something that no endpoint brings, or no longer. What it waits
/// for may be a process that was stopped in the middle of a call, and then no time goes on anyway.
pub(crate) fn wait(world: &World, waits: bool) {
    let Some(mut plane) = world.plane_unless_kept() else { return };
    let Some(user) = plane.wires.user(world.place, own_thread()) else { return };
    plane.wires.users[user].waits = waits;
    while waits && let Some(next_ps) = next_ps(&plane, monotonic_ns()) {
        settle(world, &mut plane, next_ps);
    }
}

/// When the next thing happens, if there is anything and everybody waits.
fn next_ps(plane: &Guard<'_>, now_ns: u64) -> Option<u64> {
    plane.wires.next_ps().filter(|_| those_at_work(&plane.wires, now_ns).next().is_none())
}

/// Does what is due at this host's time, or by `until_ps`; time on the hosts that it happens on goes
/// there. What another host may still do comes first.
fn settle(world: &World, plane: &mut Guard<'_>, until_ps: u64) {
    let host = |user: &User| world.shared.board(user.place as usize).host();
    let mut due_ps = world.host_ps();
    if world.machine.hosts > 1 && plane.wires.next_ps().is_some_and(|next_ps| next_ps <= due_ps) {
        let at_work = those_at_work(&plane.wires, monotonic_ns());
        let times_ps = at_work.map(|user| world.shared.host_ps(host(user)));
        due_ps = times_ps.fold(due_ps, u64::min);
    }
    let due_ps = due_ps.max(until_ps);
    for (user, wake_ps) in plane.wires.wake(due_ps) {
        world.shared.reach(host(&user), wake_ps);
    }
    while let Some((step_ps, users)) = plane.wires.due(due_ps) {
        users.iter().flatten().for_each(|user| world.shared.reach(host(user), step_ps));
        let Some(order) = plane.wires.step() else { continue };
        let counter = order.to.memory.counter as usize;
        world.shared.count_write(counter);
        let carried = match order.to.memory.place {
            Place::Gpu(gpu) => {
                let held = &mut plane.wires.held[gpu as usize];
                release(held);
                let is_seen = world.machine.gpus[gpu as usize].orders_writes();
                match order.is_of_device && !is_seen && order.bytes > 0 {
                    true => carry_but_one(order, held),
                    false => carry(order),
                }
            }
            Place::Host => carry(order),
        };
        if let Err(err) = carried {
            // Mostly its process has died: what it has is buried with it.
            plane.bury_the_dead();
            warn_if_forbidden(&err);
        }
        world.shared.count_write(counter);
        let places = [order.from, order.to].map(|end| end.memory.place);
        world.shared.count_network(places, order.bytes);
    }
    world.shared.tell(plane.wires.take_told());
}

/// Lets a GPU see all that devices have written to its memory.
pub(crate) fn flush(world: &World, gpu: u32) {
    let mut plane = world.plane();
    let held = &mut plane.wires.held[gpu as usize];
    let counter = held.end.memory.counter as usize;
    world.shared.count_write(counter);
    release(held);
    world.shared.count_write(counter);
}

/// Says once that the kernel keeps processes from each other's memory: what has arrived is not there.
fn warn_if_forbidden(err: &io::Error) {
    static ONCE: Once = Once::new();
    if matches!(err.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        let sentence = format!(
            "warning: the simulated network cannot move data, because the kernel does not let one \
             process reach another's memory (process_vm_readv: {err}): run in a container that \
             allows it (--cap-add SYS_PTRACE)"
        );
        ONCE.call_once(|| drop(writeln!(io::stderr(), "{sentence}")));
    }
}

/// This thread's number in the system.
pub(super) fn own_thread() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// The threads with endpoints that do not wait, each as often as it has endpoints at which it works.
fn those_at_work(wires: &Wires, now_ns: u64) -> impl Iterator<Item = &User> {
    wires.open_endpoints().filter_map(move |endpoint: &Endpoint| {
        let user = &wires.users[endpoint.user as usize];
        let waits = endpoint.idle >= POLLS
            || user.waits
            || user.looks
            || endpoint.polled_ns.saturating_add(STOPPED_NS) < now_ns;
        (!waits).then_some(user)
    })
}
