//! What this process has: contexts, streams, events, modules, memory.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    os::fd::AsRawFd as _,
};

use super::{
    Code,
    graph::{Capture, Graph},
    multicast::TeamHandle,
    rest::First,
    table::Table,
};
use crate::{
    kernels::Kernel,
    memory::{Memory, Region},
    state::World,
    timing::GPUS,
};

/// What this process has.
#[derive(Debug)]
pub(crate) struct Local {
    /// Whether `cuInit` has been called.
    pub initialised: bool,
    /// Whether all kernels of a module are loaded with it (`CUDA_MODULE_LOADING`).
    pub is_eager: bool,
    /// Whether a launch returns only when its kernel has ended (`CUDA_LAUNCH_BLOCKING`, tools that
    /// inject a library).
    pub is_launch_blocking: bool,
    /// Connections to each GPU, among which its streams are divided
    /// (`CUDA_DEVICE_MAX_CONNECTIONS`).
    pub connections: usize,
    /// The GPUs that this process may use, in the order in which it counts them.
    pub visible: Vec<u32>,
    /// The primary context of each GPU.
    pub contexts: Vec<Context>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    /// Streams that are captured, by their handles.
    pub captures: HashMap<u64, Capture>,
    pub graphs: Table<Graph>,
    /// Graphs that can be launched.
    pub executables: Table<Graph>,
    /// The GPU of each module.
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub memory: Memory,
    /// Memory of `cuMemCreate`.
    pub physical: Table<Physical>,
    /// Multicast objects.
    pub teams: Table<TeamHandle>,
    /// Streams that were destroyed with work in them.
    pub closing: Vec<usize>,
    /// Streams that were ever created.
    pub stream_count: u64,
    /// Operations that were ever queued.
    pub queued: u64,
    /// Where to look for an event that is free.
    pub event_hint: usize,
}

/// The primary context of a GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    /// How often it is retained; 0: there is none.
    pub retained: u32,
    /// The how manieth it is.
    pub generation: u64,
    pub flags: u32,
    /// GPUs whose memory it may reach, a bit each.
    pub peers: u128,
    /// What was used in it, of that which waits at its first use.
    pub used: HashSet<First>,
    /// Streams that were ever created in it.
    pub stream_count: usize,
    /// The stream 0, once there is one.
    pub legacy: Option<Stream>,
}

/// A stream of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Its place among all streams of the machine.
    pub slot: usize,
    pub gpu: u32,
    /// Whether it waits for stream 0 and stream 0 for it.
    pub blocking: bool,
    pub priority: i32,
    /// Operations that were ever queued in its place.
    pub queued: u64,
    /// For a blocking stream: operations of stream 0 that it has waited for, and its own that
    /// stream 0 has waited for.
    pub followed: u64,
    pub leading: u64,
}

/// An event of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Its place among all events of the machine.
    pub slot: usize,
    pub gpu: u32,
    /// Whether it has a time.
    pub timing: bool,
}

/// A module.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub gpu: u32,
    pub kernels: Vec<&'static Kernel>,
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub module: u64,
    pub gpu: u32,
    pub kernel: &'static Kernel,
}

/// Memory of `cuMemCreate`, or imported.
#[derive(Debug)]
pub(crate) struct Physical {
    pub file: std::fs::File,
    pub gpu: u32,
    pub bytes: u64,
    /// Whether it counts as this process's.
    pub own: bool,
    /// The kinds of handles by which it may be exported.
    pub handle_types: u32,
    /// Its place in the list of exported memory, once it has a fabric handle.
    pub export: Option<(usize, u64)>,
    /// How often it is mapped, and whether its handle has been released.
    pub mapped: u32,
    pub released: bool,
}

impl Physical {
    /// New memory of this process.
    pub(crate) fn new(file: std::fs::File, gpu: u32, bytes: u64, handle_types: u32) -> Self {
        let (export, mapped, released) = (None, 0, false);
        Self { file, gpu, bytes, own: true, handle_types, export, mapped, released }
    }

    /// Its file, and where in it the memory is, as an export has it.
    pub(crate) fn file(&self) -> (i32, u64) {
        (self.file.as_raw_fd(), 0)
    }
}

thread_local! {
    /// The contexts of this thread; the last one is current.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Tags of handles.
mod tag {
    pub(super) const CONTEXT: u64 = 0x51;
    pub(super) const STREAM: u8 = 0x52;
    pub(super) const EVENT: u8 = 0x53;
    pub(super) const MODULE: u8 = 0x54;
    pub(super) const FUNCTION: u8 = 0x55;
    pub(super) const PHYSICAL: u8 = 0x56;
    pub(super) const GRAPH: u8 = 0x57;
    pub(super) const EXECUTABLE: u8 = 0x58;
    pub(super) const TEAM: u8 = 0x59;
}

impl Local {
    /// Of a process that has done nothing yet.
    pub(crate) fn new(gpus: usize) -> Self {
        Self {
            initialised: false,
            is_eager: false,
            is_launch_blocking: false,
            connections: 1,
            visible: Vec::new(),
            contexts: vec![Context::default(); gpus],
            streams: Table::new(tag::STREAM),
            events: Table::new(tag::EVENT),
            captures: HashMap::new(),
            graphs: Table::new(tag::GRAPH),
            executables: Table::new(tag::EXECUTABLE),
            modules: Table::new(tag::MODULE),
            functions: Table::new(tag::FUNCTION),
            memory: Memory::default(),
            physical: Table::new(tag::PHYSICAL),
            teams: Table::new(tag::TEAM),
            closing: Vec::new(),
            stream_count: 0,
            queued: 0,
            event_hint: 0,
        }
    }

    /// Refuses as long as `cuInit` has not been called.
    pub(crate) fn initialised(&self) -> Result<(), Code> {
        if self.initialised { Ok(()) } else { Err(Code::NOT_INITIALIZED) }
    }

    /// The GPU of a device that a caller gives: its number among all of the machine.
    pub(crate) fn gpu(&self, device: i32) -> Result<u32, Code> {
        self.initialised()?;
        let gpu = u32::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        if self.visible.contains(&gpu) { Ok(gpu) } else { Err(Code::INVALID_DEVICE) }
    }

    /// The context of a GPU.
    pub(crate) fn context(&mut self, gpu: u32) -> &mut Context {
        &mut self.contexts[gpu as usize]
    }

    /// The handle of a GPU's context.
    pub(crate) fn context_handle(&self, gpu: u32) -> u64 {
        tag::CONTEXT << 56 | self.contexts[gpu as usize].generation << 24 | u64::from(gpu)
    }

    /// The GPU of a context's handle; `None` if there is no such context any more.
    pub(crate) fn gpu_of_context(&self, handle: u64) -> Option<u32> {
        let gpu = (handle % (1 << 24)) as u32;
        let context = self.contexts.get(gpu as usize)?;
        (context.retained > 0 && self.context_handle(gpu) == handle).then_some(gpu)
    }

    /// The GPU of the current context, which has not failed.
    pub(crate) fn current(&self, world: &World) -> Result<u32, Code> {
        self.initialised()?;
        let handle = current_handle().ok_or(Code::INVALID_CONTEXT)?;
        let gpu = self.gpu_of_context(handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        match world.executor.error(gpu) {
            0 => Ok(gpu),
            code => Err(Code(code)),
        }
    }

    /// All streams of a GPU, also stream 0.
    pub(crate) fn streams_of(&self, gpu: u32) -> impl Iterator<Item = Stream> {
        let own = self.streams.all().map(|(_, stream)| *stream);
        let legacy = self.contexts[gpu as usize].legacy;
        own.filter(move |stream| stream.gpu == gpu).chain(legacy)
    }

    /// What a report counts as not given back.
    pub(crate) fn live(&self) -> Live {
        let count = |is: fn(&Region) -> bool| self.memory.all().filter(|region| is(region)).count();
        use crate::memory::Kind;
        Live {
            contexts: self.contexts.iter().filter(|context| context.retained > 0).count(),
            device_memory: count(|region| matches!(region.kind, Kind::Allocated { .. })),
            device_bytes: self
                .memory
                .all()
                .filter(|region| matches!(region.kind, Kind::Allocated { .. }))
                .map(|region| region.bytes)
                .sum::<u64>()
                + self
                    .physical
                    .all()
                    .filter(|(_, own)| own.own)
                    .map(|(_, own)| own.bytes)
                    .sum::<u64>(),
            host_memory: count(|region| matches!(region.kind, Kind::Pinned { .. })),
            registered: count(|region| matches!(region.kind, Kind::Registered)),
            streams: self.streams.all().count(),
            events: self.events.all().count(),
            graphs: self.graphs.all().count() + self.executables.all().count(),
            modules: self.modules.all().count(),
            reservations: self.memory.reservations.len(),
            handles: self.physical.all().filter(|(_, memory)| !memory.released).count()
                + self.teams.all().filter(|(_, team)| !team.released).count(),
            ipc: count(|region| matches!(region.kind, Kind::Imported { .. })),
            communicators: crate::nccl::open(),
        }
    }
}

/// What was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Live {
    pub contexts: usize,
    pub device_memory: usize,
    pub device_bytes: u64,
    pub host_memory: usize,
    pub registered: usize,
    pub streams: usize,
    pub events: usize,
    pub graphs: usize,
    pub modules: usize,
    pub reservations: usize,
    pub handles: usize,
    pub ipc: usize,
    pub communicators: usize,
}

/// The handle of this thread's current context.
pub(crate) fn current_handle() -> Option<u64> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

/// Changes this thread's contexts.
pub(crate) fn with_current<R>(change: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    CURRENT.with_borrow_mut(change)
}

const _: () = assert!(GPUS <= 128, "sets of GPUs are the bits of a u128");
