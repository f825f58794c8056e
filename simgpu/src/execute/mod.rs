//! Doing what has been timed: moving the bytes of all streams, in the order of time.
//!
//! A thread that waits for a stream does it itself, so that no other has to be woken for it. A
//! thread of this module does what nobody waits for, and what has to wait for other processes.

mod act;

use std::{
    collections::{HashMap, VecDeque},
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) use act::load;
use act::{act, launch};

use crate::{
    faults::Flips,
    kernels::{Effect, Launch},
    memory::contents::{Contents, range},
    nccl,
    state::{World, world},
    timing::{
        After, GPUS, STREAMS, Task, What,
        cost::Place,
        wait, wake,
        words::{Condition, Key},
    },
};

/// How often a wait of the driver for a word looks at it.
const POLL: Duration = Duration::from_micros(20);

/// What is to be done for an operation, with addresses as this process has them.
#[derive(Debug)]
pub(crate) enum Action {
    /// Moves bytes.
    Copy(Copy),
    /// Stores bytes that the caller had.
    Store { target: u64, data: Box<[u8]>, places: (Place, Place) },
    /// Sets `count` elements of `width` bytes.
    Set { target: u64, value: u32, width: u64, count: u64 },
    /// Runs a kernel.
    Launch(Box<Kernel>),
    /// Writes a word.
    Write { address: u64, value: u64, wide: bool },
    /// Holds its stream with a kernel.
    Hold(Box<Kernel>, Watched),
    /// Holds its stream until a word has a value.
    Watch(Watched),
    /// Calls a function of the program.
    Call(Function),
    /// Waits for the other ranks of a communicator, with the place of its post.
    Meet(usize),
    /// The operation cannot be done: fails its context.
    Fail { gpu: u32, code: u32 },
}

/// A copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub target: u64,
    pub source: u64,
    pub bytes: u64,
    /// Where source and target lie.
    pub places: (Place, Place),
    /// Whether only operations of this process write either range.
    pub private: bool,
}

/// A kernel that is to be run.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub launch: Launch,
    pub effect: Effect,
    pub gpu: u32,
    pub places: (Place, Place),
    pub private: bool,
}

/// A word that a stream waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub address: u64,
    pub key: Key,
    pub condition: Condition,
    pub operand: u64,
}

impl Watched {
    /// Whether the word has its value now.
    fn is_found(&self) -> bool {
        self.condition.holds(load(self.address, self.key.bits), self.operand)
    }
}

/// A function of the program, as `cuLaunchHostFunc` takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub function: extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

// SAFETY: the program has asked for the function to be called with this pointer on a thread of
// the driver's.
unsafe impl Send for Function {}

/// What this process has to do, and how far it is.
#[derive(Debug)]
pub(crate) struct Executor {
    /// Of the thread that executes.
    hand: Mutex<Hand>,
    /// Operations of all streams that were ever executed.
    total: AtomicU64,
    /// What is queued for each stream.
    actions: Mutex<Vec<VecDeque<Action>>>,
    progress: Vec<Progress>,
    contents: Mutex<Contents>,
    flips: Flips,
    /// Why the context of each GPU has failed, or 0.
    errors: [AtomicU32; GPUS],
    /// Words that streams wait for: stream, number of the operation, word.
    watched: Mutex<Vec<(usize, u64, Watched)>>,
    something_to_watch: Condvar,
}

/// What one thread at a time has, to execute.
#[derive(Debug, Default)]
struct Hand {
    /// Entries of this process's board that were ever executed.
    executed: u64,
    /// The threads of gates that were begun, by stream.
    helpers: HashMap<usize, JoinHandle<()>>,
}

/// How far a stream is.
#[derive(Debug, Default)]
struct Progress {
    /// The GPU whose context it is of.
    gpu: AtomicU32,
    /// Operations that were ever executed.
    executed: AtomicU64,
    /// When the last of them ended.
    end_ps: AtomicU64,
    /// What the threads wait for that sleep; at most this is told.
    wanted: AtomicU64,
    bell: AtomicU32,
}

/// Locks, whatever has become of a thread that had the lock before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// With nothing to do.
    pub(crate) fn new(flips: Flips) -> Self {
        Self {
            hand: Mutex::default(),
            total: AtomicU64::new(0),
            actions: Mutex::new((0..STREAMS).map(|_| VecDeque::new()).collect()),
            progress: (0..STREAMS).map(|_| Progress::default()).collect(),
            contents: Mutex::default(),
            flips,
            errors: std::array::from_fn(|_| AtomicU32::new(0)),
            watched: Mutex::default(),
            something_to_watch: Condvar::new(),
        }
    }

    /// Starts the threads.
    pub(crate) fn start(world: &'static World) -> std::io::Result<()> {
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        // Not what has been timed: the first operations may be quicker than the start of threads.
        lock(&world.executor.hand).executed = world.shared.board(world.place).executed();
        named("simgpu-execute").spawn(move || run(world))?;
        named("simgpu-watch").spawn(move || watch(world))?;
        Ok(())
    }

    /// A stream becomes one of this process's, for a GPU; it has had `queued` operations before.
    pub(crate) fn adopt(&self, stream: usize, gpu: u32, queued: u64) {
        lock(&self.actions)[stream].clear();
        self.progress[stream].gpu.store(gpu, Ordering::Relaxed);
        self.progress[stream].executed.store(queued, Ordering::Release);
        self.progress[stream].end_ps.store(0, Ordering::Release);
    }

    /// Queues what the next operation of a stream does that acts.
    pub(crate) fn queue(&self, stream: usize, action: Action) {
        lock(&self.actions)[stream].push_back(action);
    }

    /// Why the context of a GPU has failed, or 0.
    pub(crate) fn error(&self, gpu: u32) -> u32 {
        self.errors[gpu as usize].load(Ordering::Acquire)
    }

    /// The context of a GPU begins anew.
    pub(crate) fn forget_error(&self, gpu: u32) {
        self.errors[gpu as usize].store(0, Ordering::Release);
    }

    /// What memory holds. Who has this lock takes no other.
    pub(crate) fn contents(&self) -> MutexGuard<'_, Contents> {
        lock(&self.contents)
    }

    /// Operations of a stream that were ever executed.
    pub(crate) fn executed(&self, stream: usize) -> u64 {
        self.progress[stream].executed.load(Ordering::Acquire)
    }

    /// Operations of all streams of this process that were ever executed.
    pub(crate) fn executed_in_all(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// When the last operation of a stream ended that was executed.
    pub(crate) fn end_ps(&self, stream: usize) -> u64 {
        self.progress[stream].end_ps.load(Ordering::Acquire)
    }

    /// Fails every context, for a reason that is no program's.
    pub(crate) fn fail_all(&self) {
        self.errors.iter().for_each(|error| error.store(999, Ordering::Release));
    }

    fn pop(&self, stream: usize) -> Option<Action> {
        lock(&self.actions)[stream].pop_front()
    }
}

/// The longest that a thread which only asks executes, but for the operation that it is at.
const HELP: Duration = Duration::from_millis(1);

impl Progress {
    fn advance(&self, executed: u64, end_ps: u64) {
        self.end_ps.store(end_ps, Ordering::Release);
        self.executed.store(executed, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) <= executed {
            self.wanted.store(u64::MAX, Ordering::SeqCst);
            self.bell.fetch_add(1, Ordering::Release);
            wake(&self.bell);
        }
    }
}

impl World {
    /// Waits until a stream has executed `count` operations, however long that takes.
    pub(crate) fn await_executed(&self, stream: usize, count: u64) {
        let progress = &self.executor.progress[stream];
        let is_there = || progress.executed.load(Ordering::Acquire) >= count;
        loop {
            let seen = progress.bell.load(Ordering::Acquire);
            progress.wanted.fetch_min(count, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.help(is_there);
            if is_there() {
                return;
            }
            wait(&progress.bell, seen, Duration::from_millis(100));
            if progress.bell.load(Ordering::Acquire) == seen {
                // If a process died with the lock, what is waited for may be what it began.
                drop(self.plane());
            }
        }
    }

    /// Executes on this thread what can be at once, until it `is_enough`; the executor's thread
    /// does the rest. Of no use while another thread executes.
    pub(crate) fn help(&self, is_enough: impl Fn() -> bool) {
        let board = self.shared.board(self.place);
        let begin = Instant::now();
        while !is_enough() {
            let mut hand = match self.executor.hand.try_lock() {
                Ok(hand) => hand,
                Err(TryLockError::Poisoned(hand)) => hand.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            match board.next(hand.executed) {
                Some(task) if self.is_at_once(&task) && begin.elapsed() < HELP => {
                    self.execute(&mut hand, task);
                }
                Some(_) => return board.hurry(),
                None => return,
            }
        }
    }

    /// Whether nothing of another process has to be waited for.
    fn is_at_once(&self, task: &Task) -> bool {
        let is_over =
            |after: After| self.shared.board(after.place as usize).has_executed(after.index + 1);
        let post = match lock(&self.executor.actions)[task.stream].front() {
            Some(Action::Meet(post)) => Some(*post),
            _ => None,
        };
        let is_alone = |post: usize| {
            let meetings = &self.plane().meetings;
            meetings.is_alone(&meetings.posts[post], self.place)
        };
        task.after.is_none_or(is_over) && post.is_none_or(is_alone)
    }

    /// Executes the next entry of the board.
    fn execute(&self, hand: &mut Hand, task: Task) {
        let executor = &self.executor;
        if let Some(after) = task.after {
            self.shared.board(after.place as usize).await_executed(after.index + 1);
        }
        match task.what {
            What::Done => {}
            What::Reached => {
                let gate = lock(&executor.actions)[task.stream].front().and_then(Action::gate);
                let helper = match gate {
                    Some(Gate::Meet(post)) => {
                        nccl::movement::begin(self, post, hand.executed);
                        None
                    }
                    Some(gate) => begin(gate, task.stream, task.sequence),
                    None => None,
                };
                hand.helpers.extend(helper.map(|helper| (task.stream, helper)));
            }
            What::Opened => {
                let action = executor.pop(task.stream);
                lock(&executor.watched).retain(|watched| watched.0 != task.stream);
                if let Some(helper) = hand.helpers.remove(&task.stream) {
                    // Its end is what the program counts on: what it wrote is there then.
                    let _ = helper.join();
                }
                match action {
                    // It has written what it has; everybody is to know.
                    Some(Action::Hold(kernel, _)) => launch(self, &kernel, || ()),
                    Some(Action::Meet(post)) => nccl::movement::finish(self, post),
                    _ => {}
                }
            }
            What::Execute => {
                let gpu = executor.progress[task.stream].gpu.load(Ordering::Relaxed);
                // Nothing more is done in a context that has failed.
                let action = executor.pop(task.stream).filter(|_| executor.error(gpu) == 0);
                if let Some(action) = action {
                    let done = catch_unwind(AssertUnwindSafe(|| act(self, &action)));
                    if done.is_err() || executor.contents().is_starved {
                        // No context can be trusted then. No operation is known that panics.
                        executor.fail_all();
                    }
                }
            }
        }
        hand.executed += 1;
        if task.what != What::Reached {
            executor.total.fetch_add(1, Ordering::Release);
            executor.progress[task.stream].advance(task.sequence + 1, task.end_ps);
        }
        self.shared.board(self.place).finish(hand.executed);
    }
}

/// Executes for ever what no thread of the program does.
fn run(world: &'static World) {
    let board = world.shared.board(world.place);
    loop {
        board.await_left();
        let mut hand = lock(&world.executor.hand);
        while let Some(task) = board.next(hand.executed) {
            world.execute(&mut hand, task);
        }
    }
}

/// What keeps a stream from going on.
enum Gate {
    Hold(Launch, Watched),
    Watch(Watched),
    Call(Function),
    Meet(usize),
}

impl Action {
    fn gate(&self) -> Option<Gate> {
        match self {
            Self::Hold(kernel, watched) => Some(Gate::Hold(kernel.launch.clone(), *watched)),
            Self::Watch(watched) => Some(Gate::Watch(*watched)),
            Self::Call(function) => Some(Gate::Call(*function)),
            Self::Meet(post) => Some(Gate::Meet(*post)),
            _ => None,
        }
    }
}

/// Begins with a gate that has been reached; the thread that does it, if it is one.
fn begin(gate: Gate, stream: usize, sequence: u64) -> Option<JoinHandle<()>> {
    let world = world().expect("what is executed was queued by a process that is attached");
    let helper = thread::Builder::new().name("simgpu-hold".to_owned()).stack_size(256 << 10);
    if let Gate::Hold(launch, _) = &gate
        && let Effect::Hold { flag, timed_out, .. } = launch.effect()
    {
        let mut contents = world.executor.contents();
        for word in [flag, timed_out] {
            contents.close(range(word, 4));
        }
    }
    let hold = move |launch: Launch, watched: Watched| {
        // SAFETY: the memory was looked up when the kernel was launched, and is let go of only
        // after its stream has been waited for.
        unsafe { launch.run(&|_| 0.0) };
        let value = load(watched.address, watched.key.bits);
        let mut plane = world.plane();
        plane.open(watched.key, value);
        plane.open_one(stream, sequence);
    };
    let begun = match gate {
        // It has been let go of already.
        Gate::Hold(launch, watched) if watched.is_found() => {
            hold(launch, watched);
            return None;
        }
        Gate::Hold(launch, watched) => helper.spawn(move || hold(launch, watched)),
        Gate::Call(function) => helper.spawn(move || {
            // All of it has to move here, not only its parts.
            let function = function;
            (function.function)(function.data);
            world.plane().open_one(stream, sequence);
        }),
        // What has to be done for it is done at once, by the thread that executes.
        Gate::Meet(_) => return None,
        Gate::Watch(watched) => {
            lock(&world.executor.watched).push((stream, sequence, watched));
            world.executor.something_to_watch.notify_one();
            return None;
        }
    };
    if begun.is_err() {
        // Without a thread the stream could never go on; nothing after it can be trusted.
        world.executor.fail_all();
        world.plane().open_one(stream, sequence);
    }
    begun.ok()
}

/// Looks at words that streams wait for, for ever.
fn watch(world: &'static World) {
    let executor = &world.executor;
    loop {
        let mut watched = lock(&executor.watched);
        while watched.is_empty() {
            let woken = executor.something_to_watch.wait(watched);
            watched = woken.unwrap_or_else(PoisonError::into_inner);
        }
        watched.retain(|&(stream, sequence, word)| {
            let value = load(word.address, word.key.bits);
            let found = word.condition.holds(value, word.operand);
            if found {
                let mut plane = world.plane();
                plane.open(word.key, value);
                plane.open_one(stream, sequence);
            }
            !found
        });
        drop(watched);
        thread::sleep(POLL);
    }
}
