//! Graphs: what a stream was asked to do while it was captured, to be launched as a whole.

use cudarc::driver::sys::{CUgraph_st, CUgraphExec_st, CUstreamCaptureMode_enum};

use super::{Stream, calls::Calls, context::Object};
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
/// It names memory by address: its owner keeps that memory.
///
/// A launch that is still under way when it is destroyed keeps what it needs ("CUDA Driver API",
/// cuGraphExecDestroy).
#[derive(Debug)]
pub(in crate::ffi) struct Graph(Object<CUgraphExec_st>);

impl<'a> Capture<'a> {
    /// Begins to capture; calls of other threads are not affected.
    pub(in crate::ffi) fn begin(stream: &'a Stream) -> Result<Self, CallError> {
        const MODE: u32 = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        let driver = stream.context().current()?;
        let mut captured = stream.captured();
        assert!(!*captured, "{stream} is captured");
        // SAFETY: the handle is alive.
        let answer =
            unsafe { driver.calls.cuStreamBeginCapture_v2(stream.captured_handle(), MODE) };
        driver.check(answer, || stream.to_string())?;
        *captured = true;
        drop(captured);
        Ok(Self { stream: Some(stream) })
    }

    /// Ends, and makes a graph of it.
    pub(in crate::ffi) fn end(mut self) -> Result<Graph, CallError> {
        let Some(stream) = self.stream.take() else { unreachable!("it ends only once") };
        let template = template(stream)?;
        let driver = stream.context().current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes; the template is alive.
        let answer = unsafe {
            driver.calls.cuGraphInstantiateWithFlags(&raw mut handle, template.handle(), 0)
        };
        driver.check(answer, || stream.to_string())?;
        let destroy = Calls::cuGraphExecDestroy;
        // SAFETY: the call has just made it, for this owner.
        Ok(Graph(unsafe { Object::own(stream.context(), "a graph", handle, destroy) }))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // It ends after a failure, which the driver may report again.
        if let Some(stream) = self.stream.take() {
            drop(template(stream));
        }
    }
}

/// Ends the capture of `stream`: what was captured, before it can be launched.
fn template(stream: &Stream) -> Result<Object<CUgraph_st>, CallError> {
    let mut captured = stream.captured();
    *captured = false;
    let driver = stream.context().current()?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` is a live local that the call only writes; the stream's is alive.
    let answer =
        unsafe { driver.calls.cuStreamEndCapture(stream.captured_handle(), &raw mut handle) };
    drop(captured);
    driver.check(answer, || stream.to_string())?;
    // SAFETY: the call has just made it, for this owner.
    Ok(unsafe { Object::own(stream.context(), "a graph", handle, Calls::cuGraphDestroy) })
}

impl Graph {
    /// Queues all of it in `stream`.
    pub(in crate::ffi) fn launch(&self, stream: &Stream) -> Result<(), CallError> {
        let driver = stream.context().current()?;
        // SAFETY: both handles are alive; the graph's owner keeps the memory until now, and the
        // memory's owner waits for this stream.
        let answer = unsafe { driver.calls.cuGraphLaunch(self.0.handle(), stream.handle()) };
        driver.check(answer, || format!("a graph in {stream}"))
    }
}
