//! The machine that this process is attached to, and this process's part of it.

use std::sync::{
    Mutex, MutexGuard, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use crate::{
    cuda::Local,
    execute::{Executor, lock},
    faults::{Flips, unknown_call, unknown_rank_call},
    machine::Machine,
    timing::{GPUS, Guard, Shared, State, cost, ps_of_ns},
};

/// This process's part of the machine.
#[derive(Debug)]
pub(crate) struct World {
    pub machine: Machine,
    /// The host of it that this process is on, and what that is by itself.
    pub host: u32,
    pub own: Machine,
    pub shared: &'static Shared,
    /// This process's place among those of the machine.
    pub place: usize,
    /// The file of the machine's state; open as long as this process lives.
    pub state: State,
    pub executor: Executor,
    local: Mutex<Local>,
    /// Whether this is a child that was forked from the process that attached.
    forked: AtomicBool,
}

static WORLD: OnceLock<World> = OnceLock::new();

/// Bytes that went over a GPU's links since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Out over NVLink.
    pub nvlink_tx_bytes: u64,
    /// In over NVLink.
    pub nvlink_rx_bytes: u64,
    /// Out over PCIe.
    pub pcie_tx_bytes: u64,
    /// In over PCIe.
    pub pcie_rx_bytes: u64,
}

/// Sends this process a signal that no process can refuse.
pub(crate) fn raise(signal: libc::c_int) {
    let own = std::process::id().cast_signed();
    // SAFETY: the call takes integers only.
    unsafe { libc::kill(own, signal) };
}

/// The host that this process is on. GPUs are numbered by their places in it here and below.
pub fn machine() -> Option<&'static Machine> {
    world().map(|world| &world.own)
}

/// What went over a GPU's links; nothing, if there is no such GPU.
pub fn traffic(gpu: u32) -> Traffic {
    let Some(world) = world().filter(|world| (gpu as usize) < world.own.gpus.len()) else {
        return Traffic::default();
    };
    let [nvlink_tx_bytes, nvlink_rx_bytes, pcie_tx_bytes, pcie_rx_bytes] =
        world.shared.traffic((world.own.first_gpu + gpu) as usize);
    Traffic { nvlink_tx_bytes, nvlink_rx_bytes, pcie_tx_bytes, pcie_rx_bytes }
}

/// A GPU's clocks now, as a share of the highest.
pub fn clock_share(gpu: u32) -> f64 {
    world().map_or(1.0, |world| {
        let load = world.shared.load(world.own.first_gpu + gpu);
        load.share(world.machine.driver, world.host_ps())
    })
}

/// Bytes of a GPU's memory that are allocated, by all processes.
pub fn memory_used(gpu: u32) -> u64 {
    world().map_or(0, |world| world.shared.memory_used(world.own.first_gpu + gpu))
}

/// This process's part of the machine, once it is attached.
pub(crate) fn world() -> Option<&'static World> {
    WORLD.get()
}

/// Attaches this process to a new machine, as a rank: ranks are dealt to its hosts in turn.
pub(crate) fn begin(machine: Machine, rank: u32) -> Result<&'static World, String> {
    if machine.gpus.len() > GPUS {
        return Err(format!("the machine has more than {GPUS} GPUs"));
    }
    if let Some(sentence) = unknown_call(&machine.faults.calls) {
        return Err(sentence);
    }
    if let Some(sentence) = unknown_rank_call(&machine.faults.ranks) {
        return Err(sentence);
    }
    let text = serde_json::to_string(&machine).map_err(|err| err.to_string())?;
    let state = State::create(&text).map_err(|err| format!("cannot make the state: {err}"))?;
    attach(machine, state, rank)
}

/// Attaches this process, as a rank, to the machine whose state another process has at `path`.
pub(crate) fn join(path: &str, rank: u32) -> Result<&'static World, String> {
    let refuse = |err: &dyn std::fmt::Display| format!("cannot open the state {path}: {err}");
    let state = State::open(path).map_err(|err| refuse(&err))?;
    let machine = serde_json::from_str(&state.text).map_err(|err| refuse(&err))?;
    attach(machine, state, rank)
}

fn attach(machine: Machine, state: State, rank: u32) -> Result<&'static World, String> {
    static ATTACHING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = lock(&ATTACHING);
    if WORLD.get().is_some() {
        return Err("this process is attached already".to_owned());
    }
    let shared = state.shared;
    let host = rank % machine.hosts;
    let place = shared.lock(&machine, host).join();
    let place = place.ok_or("the machine has as many processes as it can have")?;
    let executor = Executor::new(Flips::new(&machine.faults.flips));
    let local = Mutex::new(Local::new(machine.gpus.len()));
    let forked = AtomicBool::new(false);
    let own = machine.of_host(host);
    let world = WORLD.get_or_init(|| World {
        machine,
        host,
        own,
        shared,
        place,
        state,
        executor,
        local,
        forked,
    });
    Executor::start(world).map_err(|err| format!("cannot start a thread: {err}"))?;
    // SAFETY: the handler only stores to an atomic of a value that lives for ever.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    Ok(world)
}

extern "C" fn after_fork() {
    if let Some(world) = world() {
        world.forked.store(true, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    if let Some(world) = world().filter(|world| !world.is_forked()) {
        crate::report::write(world);
        // Without it others find out that this process has ended.
        if let Some(mut plane) = world.plane_unless_kept() {
            plane.leave(world.place);
        }
    }
}

impl World {
    /// The plane of time, for this thread alone.
    pub(crate) fn plane(&self) -> Guard<'_> {
        self.shared.lock(&self.machine, self.host)
    }

    /// The same; `None` if another process, which was stopped, keeps it.
    pub(crate) fn plane_unless_kept(&self) -> Option<Guard<'_>> {
        self.shared.lock_within(&self.machine, self.host, 2)
    }

    /// The time of this process's host.
    pub(crate) fn host_ps(&self) -> u64 {
        self.shared.host_ps(self.host)
    }

    /// This process's host has waited until `time_ps`.
    pub(crate) fn reach(&self, time_ps: u64) {
        self.shared.reach(self.host, time_ps);
    }

    /// This process's host is busy for so many milliseconds.
    pub(crate) fn take_ms(&self, ms: f64) {
        self.reach(self.host_ps() + ps_of_ns(ms * 1e6));
    }

    /// What this process has, for this thread alone.
    pub(crate) fn local(&self) -> MutexGuard<'_, Local> {
        lock(&self.local)
    }

    /// Whether this process was forked from the one that attached; the driver is of no use then.
    pub(crate) fn is_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// What a dependent load by a kernel on `gpu` of the memory at `address` takes.
    pub(crate) fn load_latency_ns(&self, gpu: u32, address: u64) -> f64 {
        let local = self.local();
        let place = local.memory.find(address, 1).map_or(cost::Place::Host, |region| region.place);
        cost::load_latency_ns(&self.machine, gpu, place)
    }
}
