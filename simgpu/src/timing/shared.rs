//! What all processes of a machine share: the lock, and what there is beside the plane.

use std::{
    cell::UnsafeCell,
    io::{self, Write},
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    GPUS, PROCESSES, Plane, RING,
    clocks::Load,
    cost::{HOST, Leg, Medium, Place},
    futex::{timespec, wait, wake},
    settle::{After, Step, What},
    wire::ENDPOINTS,
};
use crate::machine::Machine;

/// For how many seconds a call waits for the lock.
const PATIENCE_S: u32 = 10;

/// Counters of writes to shared memory. Allocations take them by their place in memory; two that
/// meet in one make each other's copies look older than they are, which only costs time.
pub(crate) const WRITE_COUNTERS: usize = 4096;

/// What all processes share.
#[repr(C)]
pub(crate) struct Shared {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// The process that took the lock last.
    holder: AtomicU32,
    /// The time of each host of the machine.
    hosts_ps: [AtomicU64; GPUS],
    /// Changes when an endpoint of the network has something new, or its process is to look at all.
    told: [AtomicU32; ENDPOINTS],
    /// Bytes of each GPU: NVLink out and in, PCIe out and in.
    traffic: [[AtomicU64; 4]; GPUS],
    /// What each GPU's clocks depend on.
    loads: [Load; GPUS],
    /// Device memory that each process has on each GPU.
    memory: [[AtomicU64; GPUS]; PROCESSES],
    /// Beginnings and ends of writes to device memory that several processes see.
    writes: [AtomicU64; WRITE_COUNTERS],
    boards: [Board; PROCESSES],
    plane: UnsafeCell<Plane>,
}

// SAFETY: the plane is only reached through a `Guard`, and there is one at a time; the lock is
// made for use from everywhere; the rest is atomic.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("hosts_ps", &self.hosts_ps).finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes the lock, one that outlives a process that dies with it.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "four calls on one local attribute")]
    pub(super) fn make_lock(&self) -> io::Result<()> {
        let mut attribute = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attribute = attribute.as_mut_ptr();
        // SAFETY: `attribute` is a live local that the first call initialises, and nobody else
        // has mapped the state yet.
        let codes = unsafe {
            [
                libc::pthread_mutexattr_init(attribute),
                libc::pthread_mutexattr_setpshared(attribute, libc::PTHREAD_PROCESS_SHARED),
                libc::pthread_mutexattr_setrobust(attribute, libc::PTHREAD_MUTEX_ROBUST),
                libc::pthread_mutex_init(self.lock.get(), attribute),
            ]
        };
        match codes.into_iter().find(|code| *code != 0) {
            None => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// Takes the lock, or gives up after some seconds in which this process ran: all of a machine may
    /// be stopped at once, and go on. The lock is mostly held for less than a microsecond, and to
    /// sleep takes longer.
    fn take_lock(&self, seconds: u32) -> libc::c_int {
        const TRIES: usize = 64;
        for _ in 0..TRIES {
            // SAFETY: `make_lock` has made it before anybody could get here.
            match unsafe { libc::pthread_mutex_trylock(self.lock.get()) } {
                libc::EBUSY => std::hint::spin_loop(),
                code => return code,
            }
        }
        let wait_a_second = |_| {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let end = timespec(since_1970 + Duration::from_secs(1));
            // SAFETY: as above, and the time is a live local.
            unsafe { libc::pthread_mutex_timedlock(self.lock.get(), &raw const end) }
        };
        let mut codes = (0..seconds).map(wait_a_second);
        codes.find(|code| *code != libc::ETIMEDOUT).unwrap_or(libc::ETIMEDOUT)
    }

    /// The plane, for this thread of a host alone; repairs what a process left that died with the lock. A
    /// process that was stopped with it keeps it: then this one ends with a sentence, because most
    /// calls have no code for that.
    pub(crate) fn lock<'a>(&'a self, machine: &'a Machine, host: u32) -> Guard<'a> {
        self.lock_within(machine, host, PATIENCE_S).unwrap_or_else(|| {
            let holder = self.holder.load(Ordering::Relaxed);
            let _ = writeln!(
                io::stderr(),
                "error: the simulated machine does not answer: process {holder} was stopped in the \
                 middle of a call: let it go on (kill -CONT {holder}) or end it, and run again"
            );
            // SAFETY: the call takes a number and does not return.
            unsafe { libc::_exit(1) }
        })
    }

    /// The same; `None` if another process keeps the lock for so long.
    pub(crate) fn lock_within<'a>(
        &'a self,
        machine: &'a Machine,
        host: u32,
        seconds: u32,
    ) -> Option<Guard<'a>> {
        let code = self.take_lock(seconds);
        if code == libc::ETIMEDOUT {
            return None;
        }
        self.holder.store(own_pid(), Ordering::Relaxed);
        let mut guard = Guard { shared: self, machine, host, woken: 0 };
        if code == libc::EOWNERDEAD {
            guard.repair();
            // SAFETY: this thread has the lock, whose last owner died.
            unsafe { libc::pthread_mutex_consistent(self.lock.get()) };
        }
        Some(guard)
    }

    /// A host's time.
    pub(crate) fn host_ps(&self, host: u32) -> u64 {
        self.hosts_ps[host as usize].load(Ordering::Acquire)
    }

    /// A host has waited until `time_ps`.
    pub(crate) fn reach(&self, host: u32, time_ps: u64) {
        self.hosts_ps[host as usize].fetch_max(time_ps, Ordering::AcqRel);
    }

    /// What a process shows of itself.
    pub(crate) fn board(&self, place: usize) -> &Board {
        &self.boards[place % PROCESSES]
    }

    /// Changes when an endpoint of the network has something new, or its process is to look at all.
    pub(crate) fn told(&self, endpoint: u32) -> u32 {
        self.told[endpoint as usize].load(Ordering::Acquire)
    }

    /// Endpoints of the network, each of the process at a place, have something new.
    pub(crate) fn tell(&self, endpoints: impl IntoIterator<Item = (u32, u32)>) {
        for (endpoint, place) in endpoints {
            self.told[endpoint as usize].fetch_add(1, Ordering::AcqRel);
            self.board(place as usize).done.ring();
        }
    }

    /// Device memory that a process has on a GPU, in bytes.
    pub(crate) fn memory(&self, place: usize, gpu: u32) -> &AtomicU64 {
        &self.memory[place][gpu as usize]
    }

    /// Device memory that all processes have on a GPU.
    pub(crate) fn memory_used(&self, gpu: u32) -> u64 {
        (0..PROCESSES).map(|place| self.memory(place, gpu).load(Ordering::Relaxed)).sum()
    }

    /// Beginnings and ends of writes that counter number `at` has seen.
    pub(crate) fn writes(&self, at: usize) -> u64 {
        self.writes[at].load(Ordering::SeqCst)
    }

    /// A write begins or has ended.
    pub(crate) fn count_write(&self, at: usize) {
        self.writes[at].fetch_add(1, Ordering::SeqCst);
    }

    /// What a GPU's clocks depend on.
    pub(crate) fn load(&self, gpu: u32) -> &Load {
        &self.loads[gpu as usize]
    }

    /// Bytes of a GPU: NVLink out and in, PCIe out and in.
    pub(crate) fn traffic(&self, gpu: usize) -> [u64; 4] {
        std::array::from_fn(|at| self.traffic[gpu][at].load(Ordering::Relaxed))
    }

    /// Data has gone from the one place to the other by way of network interfaces.
    pub(crate) fn count_network(&self, places: [Place; 2], bytes: u64) {
        for (place, counter) in places.into_iter().zip([2, 3]) {
            if let Place::Gpu(gpu) = place {
                self.traffic[gpu as usize][counter].fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn count_traffic(&self, leg: Leg, bytes: u64) {
        let first = if leg.medium == Medium::NvLink { 0 } else { 2 };
        for (gpu, counter) in [(leg.source, first), (leg.target, first + 1)] {
            if gpu != HOST {
                self.traffic[usize::from(gpu)][counter].fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

/// The plane, while this thread has it.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    pub(super) shared: &'a Shared,
    pub(super) machine: &'a Machine,
    /// The host that this thread is on.
    pub(super) host: u32,
    /// Processes that have got something to execute, a bit each.
    pub(super) woken: u64,
}

impl Deref for Guard<'_> {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        // SAFETY: there is one guard at a time, and it gives the plane out by its own borrow.
        unsafe { &*self.shared.plane.get() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Plane {
        // SAFETY: there is one guard at a time, and it gives the plane out by its own borrow.
        unsafe { &mut *self.shared.plane.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread has locked it to make the guard.
        unsafe { libc::pthread_mutex_unlock(self.shared.lock.get()) };
        let mut woken = self.woken;
        while woken != 0 {
            self.shared.boards[woken.trailing_zeros() as usize].ring();
            woken &= woken - 1;
        }
    }
}

/// This process, which has asked the system when it took its place, and not at each call: a child
/// that it forks may not use the driver.
fn own_pid() -> u32 {
    match OWN_PID.load(Ordering::Relaxed) {
        0 => std::process::id(),
        pid => pid,
    }
}

static OWN_PID: AtomicU32 = AtomicU32::new(0);

impl Guard<'_> {
    /// Takes a place for this process, which must not have one.
    pub(crate) fn join(&mut self) -> Option<usize> {
        self.bury_the_dead();
        let place = self.shared.boards.iter().position(|board| !board.is_taken())?;
        let board = &self.shared.boards[place];
        let pid = std::process::id();
        OWN_PID.store(pid, Ordering::Relaxed);
        board.host.store(self.host, Ordering::Relaxed);
        board.started.store(start_of(pid).unwrap_or(0), Ordering::Relaxed);
        board.done.executed.store(board.timed(), Ordering::Relaxed);
        board.pid.store(pid, Ordering::Release);
        Some(place)
    }

    /// Gives back all that a process owns; not its place, in which its executor may still be at
    /// work as long as it lives.
    pub(crate) fn leave(&mut self, place: usize) {
        self.bury(place);
        let board = &self.shared.boards[place];
        for gpu in 0..GPUS {
            self.shared.memory[place][gpu].store(0, Ordering::Relaxed);
        }
        board.finish(board.timed());
    }

    /// Gives back what processes own that have died.
    pub(crate) fn bury_the_dead(&mut self) {
        for place in 0..PROCESSES {
            let board = &self.shared.boards[place];
            if board.is_taken() && !board.lives() {
                self.leave(place);
                board.pid.store(0, Ordering::Release);
            }
        }
    }

    fn repair(&mut self) {
        self.finish();
        self.bury_the_dead();
    }
}

/// What a process shows of itself to the others: that it is there, and its order of execution.
#[repr(C, align(64))]
pub(crate) struct Board {
    /// 0: nobody has this place.
    pid: AtomicU32,
    /// The host that the process is on.
    host: AtomicU32,
    /// Whether the executor sleeps until somebody wakes it, or is about to.
    sleeping: AtomicU32,
    /// Whether somebody waits for what is there to be executed.
    hurried: AtomicU32,
    /// Changes when the executor has something to do.
    bell: AtomicU32,
    /// When the process started, as the kernel counts it: processes' numbers come again.
    started: AtomicU64,
    /// Entries that have been pushed.
    timed: AtomicU64,
    done: Done,
    entries: [Entry; RING],
}

/// How far an executor is; on a cache line of its own, since another thread writes the rest.
#[repr(C, align(64))]
struct Done {
    /// Entries that have been executed.
    executed: AtomicU64,
    /// How many threads wait for `executed`, or for what their endpoints are told, and what changes
    /// when they should look.
    watchers: AtomicU32,
    progress: AtomicU32,
}

impl Done {
    fn ring(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        if self.watchers.load(Ordering::SeqCst) > 0 {
            wake(&self.progress);
        }
    }
}

/// An operation in the order of execution.
#[repr(C)]
struct Entry {
    /// Its stream, what is to be done, and the process of `after` plus 1, or 0.
    what: AtomicU64,
    sequence: AtomicU64,
    end_ps: AtomicU64,
    after: AtomicU64,
}

/// What an executor is given to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub stream: usize,
    pub what: What,
    pub sequence: u64,
    pub end_ps: u64,
    pub after: Option<After>,
}

impl Board {
    /// The host that its process is on.
    pub(crate) fn host(&self) -> u32 {
        self.host.load(Ordering::Relaxed)
    }

    /// Entries that have been pushed.
    pub(crate) fn timed(&self) -> u64 {
        self.timed.load(Ordering::Acquire)
    }

    /// Entries that have been executed.
    pub(crate) fn executed(&self) -> u64 {
        self.done.executed.load(Ordering::Acquire)
    }

    /// Whether the first `count` entries have been executed.
    pub(crate) fn has_executed(&self, count: u64) -> bool {
        self.executed() >= count
    }

    /// Pushes the step at its index. The caller has the plane, and keeps the ring from running
    /// over by not queueing more than [`RING`].
    pub(super) fn push(&self, step: &Step) {
        let entry = &self.entries[(step.index % RING as u64) as usize];
        let after_place = step.after.map_or(0, |after| u64::from(after.place) + 1);
        let what = u64::from(step.stream) | (step.what as u64) << 16 | after_place << 32;
        entry.what.store(what, Ordering::Relaxed);
        entry.sequence.store(step.sequence, Ordering::Relaxed);
        entry.end_ps.store(step.end_ps, Ordering::Relaxed);
        entry.after.store(step.after.map_or(0, |after| after.index), Ordering::Relaxed);
        self.timed.store(step.index + 1, Ordering::Release);
    }

    /// The entry after the first `executed`, if there is one.
    pub(crate) fn next(&self, executed: u64) -> Option<Task> {
        (self.timed() > executed).then(|| self.task(executed))
    }

    /// Waits for an entry that nobody executes: it has been there for [`DOZE`], or somebody has
    /// called [`Board::hurry`].
    pub(crate) fn await_left(&self) {
        // How often this has looked since anything was executed.
        let (mut last, mut looks) = (self.executed(), 0);
        loop {
            // The bell before the words that it answers: who changes one of those rings later.
            let seen = self.bell.load(Ordering::Acquire);
            // While there is something to do now and then, this looks by itself, and nobody has to
            // wake it.
            let sleeps = looks > DOZES;
            self.sleeping.store(sleeps.into(), Ordering::Relaxed);
            // Either this sees the entry, or who pushes it sees that this sleeps.
            fence(Ordering::SeqCst);
            let executed = self.executed();
            let is_left = self.timed() > executed;
            if executed != last {
                (last, looks) = (executed, 0);
                continue;
            }
            let is_hurried = self.hurried.swap(0, Ordering::SeqCst) == 1;
            if is_left && (is_hurried || looks > 0) {
                break;
            }
            wait(&self.bell, seen, if sleeps { Duration::from_secs(1) } else { DOZE });
            looks += 1;
        }
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// Has the executor do at once what is there.
    pub(crate) fn hurry(&self) {
        if self.hurried.swap(1, Ordering::SeqCst) == 0 {
            self.bell.fetch_add(1, Ordering::Release);
            wake(&self.bell);
        }
    }

    /// Another entry has been executed.
    pub(crate) fn finish(&self, executed: u64) {
        self.done.executed.store(executed, Ordering::Release);
        self.done.ring();
    }

    /// Changes when another entry has been executed, or an endpoint of the process has something new.
    pub(crate) fn rings(&self) -> u32 {
        self.done.progress.load(Ordering::Acquire)
    }

    /// Sleeps until there are other `rings` than those, or for `limit`.
    pub(crate) fn nap(&self, rings: u32, limit: Duration) {
        self.done.watchers.fetch_add(1, Ordering::SeqCst);
        wait(&self.done.progress, rings, limit);
        self.done.watchers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until the first `count` entries have been executed, or their process has died.
    pub(crate) fn await_executed(&self, count: u64) {
        if self.has_executed(count) {
            return;
        }
        self.hurry();
        self.done.watchers.fetch_add(1, Ordering::SeqCst);
        loop {
            let seen = self.done.progress.load(Ordering::Acquire);
            fence(Ordering::SeqCst);
            if self.has_executed(count) || !self.lives() {
                break;
            }
            wait(&self.done.progress, seen, Duration::from_millis(100));
        }
        self.done.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    fn task(&self, index: u64) -> Task {
        let entry = &self.entries[(index % RING as u64) as usize];
        let what = entry.what.load(Ordering::Relaxed);
        let after = entry.after.load(Ordering::Relaxed);
        Task {
            stream: (what & 0xFFFF) as usize,
            what: match what >> 16 & 0xFFFF {
                1 => What::Execute,
                2 => What::Reached,
                3 => What::Opened,
                _ => What::Done,
            },
            sequence: entry.sequence.load(Ordering::Relaxed),
            end_ps: entry.end_ps.load(Ordering::Relaxed),
            after: (what >> 32)
                .checked_sub(1)
                .map(|place| After { place: place as u32, index: after }),
        }
    }

    /// Wakes the executor, if it sleeps.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) == 1 {
            self.sleeping.store(0, Ordering::Relaxed);
            self.bell.fetch_add(1, Ordering::Release);
            wake(&self.bell);
        }
    }

    fn is_taken(&self) -> bool {
        self.pid.load(Ordering::Acquire) != 0
    }

    /// Whether the process that has this place is still running.
    fn lives(&self) -> bool {
        let pid = self.pid.load(Ordering::Acquire);
        let is_same = || start_of(pid) == Some(self.started.load(Ordering::Relaxed));
        pid != 0 && (pid == own_pid() || is_same())
    }
}

/// How long the executor leaves what there is to those that wait for it.
const DOZE: Duration = Duration::from_micros(200);

/// So often it looks without finding anything before it sleeps until somebody wakes it.
const DOZES: u32 = 25;

/// When a process started, in the kernel's ticks; `None` if it is gone or only a zombie.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in brackets and may contain anything; proc(5).
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
