//! Graphs: what was called on a stream while it was captured, to be done again and again.

use std::{fmt, sync::Arc};

use super::{
    Code, Local, Out, driver,
    queue::Queueing,
    rest::{First, at_first},
};
use crate::state::World;

/// What one call does on a stream.
type Call = Arc<dyn Fn(&'static World, u64) -> Result<(), Code> + Send + Sync>;

/// Calls in their order, all of one GPU.
#[derive(Clone)]
pub(crate) struct Graph {
    gpu: u32,
    calls: Vec<Call>,
}

/// A stream that is captured.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    graph: Graph,
    /// Whether something was called that no graph can have.
    invalid: bool,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls of GPU {}", self.calls.len(), self.gpu)
    }
}

driver! {
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |world| {
        let mut local = world.local();
        local.current(world)?;
        if stream < 2 {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let gpu = local.streams.get(stream).ok_or(Code::INVALID_HANDLE)?.gpu;
        if mode > 2 {
            return Err(Code::INVALID_VALUE);
        }
        if local.captures.contains_key(&stream) {
            return Err(Code::ILLEGAL_STATE);
        }
        let graph = Graph { gpu, calls: Vec::new() };
        local.captures.insert(stream, Capture { graph, invalid: false });
        Ok(())
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) |world| {
        let mut local = world.local();
        local.streams.get(stream).ok_or(Code::INVALID_HANDLE)?;
        let Capture { graph: made, invalid } =
            local.captures.remove(&stream).ok_or(Code::ILLEGAL_STATE)?;
        if invalid {
            graph.set(0)?;
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if graph.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        graph.set(local.graphs.add(made))
    }

    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) |world| {
        let mut local = world.local();
        local.current(world)?;
        let found = local.graphs.get(graph).cloned().ok_or(Code::INVALID_HANDLE)?;
        if flags != 0 || executable.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        executable.set(local.executables.add(found))
    }

    fn cuGraphLaunch(executable: u64, stream: u64) |world| {
        let local = world.local();
        let graph = local.executables.get(executable).cloned().ok_or(Code::INVALID_HANDLE)?;
        drop(local);
        // A graph belongs to its GPU's context.
        if Queueing::find(world, stream)?.gpu != graph.gpu {
            return Err(Code::INVALID_CONTEXT);
        }
        at_first(world, stream, First::GraphLaunch)?;
        at_first(world, stream, First::Graph(executable))?;
        graph.calls.iter().try_for_each(|call| call(world, stream))
    }

    fn cuGraphUpload(executable: u64, stream: u64) |world| {
        world.local().executables.get(executable).ok_or(Code::INVALID_HANDLE)?;
        at_first(world, stream, First::Graph(executable))
    }

    fn cuGraphExecDestroy(executable: u64) |world| {
        let removed = world.local().executables.remove(executable);
        removed.map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    fn cuGraphDestroy(graph: u64) |world| {
        let removed = world.local().graphs.remove(graph);
        removed.map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
}

/// Whether `stream` is captured; then what is called on it goes into the graph.
pub(crate) fn is_captured(local: &Local, stream: u64) -> bool {
    local.captures.contains_key(&stream)
}

/// Puts a call into the graph of a stream that is captured.
pub(crate) fn capture_call(
    local: &mut Local,
    stream: u64,
    call: impl Fn(&'static World, u64) -> Result<(), Code> + Send + Sync + 'static,
) {
    if let Some(capture) = local.captures.get_mut(&stream) {
        capture.graph.calls.push(Arc::new(call));
    }
}

/// Refuses what no graph can have, if `stream` is captured.
pub(super) fn refuse(local: &mut Local, stream: u64) -> Result<(), Code> {
    match local.captures.get_mut(&stream) {
        Some(capture) => {
            capture.invalid = true;
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}
