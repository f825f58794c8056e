//! Graphs: what a stream was asked to do while it was captured, to be launched as a whole.

use cudarc::driver::sys::{CUgraph_st, CUgraphExec_st, CUstreamCaptureMode_enum};

use super::{Context, Stream, context::Handle};
use crate::ffi::CallError;

/// A stream that is captured: what is queued in it goes into a graph, until this is ended or
/// dropped. Only [`Stream::captured_handle`] gives the stream away meanwhile.
#[derive(Debug)]
pub(in crate::ffi) struct Capture<'a> {
    /// `None`: it has ended.
    stream: Option<&'a Stream>,
}

/// Work that can be launched in streams of its context, again and again.
///
/// It names memory by address: whoever has it keeps that memory.
#[derive(Debug)]
pub(in crate::ffi) struct Graph {
    context: Context,
    handle: Handle<CUgraphExec_st>,
}

impl<'a> Capture<'a> {
    /// Begins; other threads may do what they like meanwhile.
    pub(in crate::ffi) fn begin(stream: &'a Stream) -> Result<Self, CallError> {
        const MODE: u32 = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        let driver = stream.context().current()?;
        let calls = driver.graph_calls.as_ref()?;
        let mut captured = stream.captured();
        assert!(!*captured, "{stream} is captured");
        // SAFETY: the handle is alive.
        let code = unsafe { calls.cuStreamBeginCapture_v2(stream.captured_handle(), MODE) };
        driver.check("cuStreamBeginCapture", code, || stream.to_string())?;
        *captured = true;
        drop(captured);
        Ok(Self { stream: Some(stream) })
    }

    /// Ends, and makes a graph of it.
    pub(in crate::ffi) fn end(mut self) -> Result<Graph, CallError> {
        let Some(stream) = self.stream.take() else { unreachable!("it ends only once") };
        let template = Template::of(stream)?;
        let context = stream.context();
        let driver = context.current()?;
        let calls = driver.graph_calls.as_ref()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes; the template is alive.
        let code =
            unsafe { calls.cuGraphInstantiateWithFlags(&raw mut handle, template.handle.0, 0) };
        driver.check("cuGraphInstantiateWithFlags", code, || stream.to_string())?;
        Ok(Graph { context: context.clone(), handle: Handle(handle) })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // It ends after a failure, of which the driver may speak again.
        if let Some(stream) = self.stream.take() {
            drop(Template::of(stream));
        }
    }
}

/// What was captured, before it can be launched.
struct Template {
    context: Context,
    handle: Handle<CUgraph_st>,
}

impl Template {
    /// What was captured of `stream`, whose capture ends.
    fn of(stream: &Stream) -> Result<Self, CallError> {
        let mut captured = stream.captured();
        *captured = false;
        let context = stream.context();
        let driver = context.current()?;
        let calls = driver.graph_calls.as_ref()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes; the stream's is alive.
        let code = unsafe { calls.cuStreamEndCapture(stream.captured_handle(), &raw mut handle) };
        drop(captured);
        driver.check("cuStreamEndCapture", code, || stream.to_string())?;
        Ok(Self { context: context.clone(), handle: Handle(handle) })
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let destroyed = self.context.current().and_then(|driver| {
            // SAFETY: the handle came from `cuStreamEndCapture` and is destroyed only here.
            let code = unsafe { driver.graph_calls.as_ref()?.cuGraphDestroy(self.handle.0) };
            driver.check("cuGraphDestroy", code, || format!("a graph of {}", self.context.device()))
        });
        if let Err(err) = destroyed {
            crate::ffi::warn(&err);
        }
    }
}

impl Graph {
    /// Queues all of it in `stream`.
    pub(in crate::ffi) fn launch(&self, stream: &Stream) -> Result<(), CallError> {
        let driver = stream.context().current()?;
        // SAFETY: both handles are alive; whoever has the graph keeps its memory until now, and the
        // memory's owner waits for this stream.
        let code =
            unsafe { driver.graph_calls.as_ref()?.cuGraphLaunch(self.handle.0, stream.handle()) };
        driver.check("cuGraphLaunch", code, || format!("a graph in {stream}"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroyed = self.context.current().and_then(|driver| {
            // SAFETY: the handle came from `cuGraphInstantiateWithFlags` and is destroyed only
            // here; a launch that is still under way keeps what it needs ("CUDA Driver API",
            // cuGraphExecDestroy).
            let code = unsafe { driver.graph_calls.as_ref()?.cuGraphExecDestroy(self.handle.0) };
            driver.check("cuGraphExecDestroy", code, || {
                format!("a graph of {}", self.context.device())
            })
        });
        if let Err(err) = destroyed {
            crate::ffi::warn(&err);
        }
    }
}
