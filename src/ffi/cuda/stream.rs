//! Streams, in which a GPU's operations follow each other, and events, which time them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cudarc::driver::sys::{
    CUevent_flags_enum, CUevent_st, CUresult, CUstream_flags_enum, CUstream_st,
    CUstreamWaitValue_flags_enum,
};

use super::{Context, Slice, calls::Calls, context::Object};
use crate::ffi::{CallError, Cause, clock};

/// How long freeing memory waits for streams that may use it: longer than any transfer that ends
/// at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// The driver's code for work that is not done yet.
const BUSY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

/// The call that a wait polls.
const QUERY: &str = "cuStreamQuery";

/// A queue of operations of one GPU, done one after another, and at once with other streams'.
#[derive(Debug)]
pub struct Stream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    object: Object<CUstream_st>,
    /// Whether it was still busy after the last wait to free memory that it may use.
    late: AtomicBool,
    /// Whether it is captured into a graph, whose owner keeps the memory. Locked while a capture
    /// begins or ends, and while the stream is queried, which the driver refuses during a capture.
    captured: Mutex<bool>,
}

impl Stream {
    /// Makes a stream that is independent of all others.
    ///
    /// # Errors
    ///
    /// The driver's refusal, most often for want of memory.
    pub fn new(context: &Context) -> Result<Self, CallError> {
        const FLAGS: u32 = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let driver = context.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuStreamCreate(&raw mut handle, FLAGS) };
        driver.check(answer, || context.device().to_string())?;
        let inner = Arc::new(Inner {
            // SAFETY: the call has just made it, for this owner.
            object: unsafe { Object::own(context, "a stream", handle, Calls::cuStreamDestroy_v2) },
            late: AtomicBool::new(false),
            captured: Mutex::new(false),
        });
        let mut streams = context.inner.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&inner));
        drop(streams);
        Ok(Self { inner })
    }

    /// The context that it belongs to: its GPU is the one that does the work.
    pub fn context(&self) -> &Context {
        &self.inner.object.context
    }

    /// The handle, for the other wrappers.
    ///
    /// # Panics
    ///
    /// It is captured.
    pub(in crate::ffi) fn handle(&self) -> *mut CUstream_st {
        assert!(!*self.captured(), "{self} is captured");
        self.inner.object.handle()
    }

    /// The handle, also of a captured stream: the caller keeps the memory that the graph names.
    pub(in crate::ffi) fn captured_handle(&self) -> *mut CUstream_st {
        self.inner.object.handle()
    }

    /// Whether it is captured into a graph.
    pub(super) fn captured(&self) -> MutexGuard<'_, bool> {
        self.inner.captured()
    }

    /// Queues a copy by a copy engine. Between two GPUs it is this stream's GPU that asks: it
    /// reads if it has the target, and writes if it has the source. Without peer access the
    /// driver stages the copy through the host.
    ///
    /// # Errors
    ///
    /// The driver's refusal, and what went wrong in operations queued earlier.
    ///
    /// # Panics
    ///
    /// The two are not equally long.
    pub fn copy(&self, target: Slice<'_>, source: Slice<'_>) -> Result<(), CallError> {
        assert_eq!(target.size(), source.size(), "a copy is as long as its source");
        let driver = self.context().current()?;
        // SAFETY: both ranges are whole and alive, and their owners wait for this stream before
        // they let go of them.
        let answer = unsafe {
            driver.calls.cuMemcpyAsync(
                target.address(),
                source.address(),
                source.length(),
                self.handle(),
            )
        };
        driver.check(answer, || format!("{} in {self}", source.size()))
    }

    /// Queues writing `value` into every byte of `target`.
    pub fn set(&self, target: Slice<'_>, value: u8) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: as in `copy`.
        let answer = unsafe {
            driver.calls.cuMemsetD8Async(target.address(), value, target.length(), self.handle())
        };
        driver.check(answer, || format!("{} in {self}", target.size()))
    }

    /// Queues the record of `event`, whose time is when everything queued before it is done.
    ///
    /// # Errors
    ///
    /// Like [`Stream::copy`], and an event of another context.
    pub fn record(&self, event: &Event) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: both handles are alive.
        let answer = unsafe { driver.calls.cuEventRecord(event.0.handle(), self.handle()) };
        driver.check(answer, || format!("an event in {self}"))
    }

    /// Queues waiting for the last record of `event`, in whichever stream that is; no wait if
    /// there is none.
    pub fn wait(&self, event: &Event) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: both handles are alive.
        let answer = unsafe { driver.calls.cuStreamWaitEvent(self.handle(), event.0.handle(), 0) };
        driver.check(answer, || format!("an event in {self}"))
    }

    /// Queues writing `value` into the 32-bit word at the beginning of `word`, after all that was
    /// queued before it has become visible.
    ///
    /// # Panics
    ///
    /// `word` has no 4 bytes, or is not aligned to 4.
    pub fn write_value(&self, word: Slice<'_>, value: u32) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: the word is aligned and alive, and its owner waits for this stream.
        let answer =
            unsafe { driver.calls.cuStreamWriteValue32_v2(self.handle(), word.value(4), value, 0) };
        driver.check(answer, || format!("a word in {self}"))
    }

    /// Queues waiting until the 32-bit word at the beginning of `word` has reached `value`, in
    /// the cyclic order in which 0 follows the largest value.
    ///
    /// # Panics
    ///
    /// Like [`Stream::write_value`].
    pub fn wait_value(&self, word: Slice<'_>, value: u32) -> Result<(), CallError> {
        const REACHED: u32 = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let driver = self.context().current()?;
        // SAFETY: as in `write_value`.
        let answer = unsafe {
            driver.calls.cuStreamWaitValue32_v2(self.handle(), word.value(4), value, REACHED)
        };
        driver.check(answer, || format!("a word in {self}"))
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    ///
    /// [`Cause::Late`] if it is not within `patience`; else what went wrong in it.
    pub fn synchronize(&self, patience: Duration) -> Result<(), CallError> {
        self.inner.wait(patience)
    }
}

impl Inner {
    fn captured(&self) -> MutexGuard<'_, bool> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, patience: Duration) -> Result<(), CallError> {
        let driver = self.object.context.current()?;
        let begin = clock::now();
        loop {
            let captured = self.captured();
            // Another thread may be capturing it: the driver would not say how far it is, and make
            // the graph invalid.
            if !*captured {
                // SAFETY: the stream is destroyed only when the last owner of this value is gone.
                let answer = unsafe { driver.calls.cuStreamQuery(self.object.handle()) };
                if !answer.is(BUSY) {
                    return driver.check(answer, || self.to_string());
                }
            }
            drop(captured);
            let waited = clock::now().since(begin);
            if waited >= patience {
                return Err(CallError::new(QUERY, self.to_string(), Cause::Late(patience)));
            }
            clock::pause(waited);
        }
    }

    /// Waits until nothing in it can use memory any more. A stream that answers an error is broken
    /// with its context: nothing in it goes on.
    pub(super) fn settle(&self, patience: Duration) -> Result<(), CallError> {
        // An error before the query says nothing about the stream.
        match self.wait(patience) {
            Err(err) if matches!(err.source, Cause::Late(_)) || err.call != QUERY => Err(err),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Like [`Inner::settle`] with [`PATIENCE`], but without any patience after the first timeout:
    /// freeing the next memory must not wait as long again.
    pub(super) fn settle_once(&self) -> Result<(), CallError> {
        let patience = if self.late.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
        let outcome = self.settle(patience);
        self.late.store(outcome.is_err(), Ordering::Relaxed);
        outcome
    }
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl std::fmt::Display for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.object.fmt(f)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Err(err) = self.inner.settle_once() {
            crate::ffi::warn(&err);
            // It stays in its context's list, so that memory which it may use stays too.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

/// A moment in a stream, by its GPU's clock. A record that is still queued when it is destroyed
/// keeps what it needs ("CUDA Driver API", cuEventDestroy).
#[derive(Debug)]
pub struct Event(Object<CUevent_st>);

impl Event {
    /// Makes an event that notes the time.
    ///
    /// # Errors
    ///
    /// The driver's refusal, most often for want of memory.
    pub fn new(context: &Context) -> Result<Self, CallError> {
        const FLAGS: u32 = CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
        let driver = context.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuEventCreate(&raw mut handle, FLAGS) };
        driver.check(answer, || context.device().to_string())?;
        // SAFETY: the call has just made it, for this owner.
        Ok(Self(unsafe { Object::own(context, "an event", handle, Calls::cuEventDestroy_v2) }))
    }

    /// Whether everything before its last record is done.
    pub fn is_reached(&self) -> Result<bool, CallError> {
        let driver = self.0.context.current()?;
        // SAFETY: the handle is alive.
        let answer = unsafe { driver.calls.cuEventQuery(self.0.handle()) };
        if answer.is(BUSY) {
            return Ok(false);
        }
        driver.check(answer, || self.0.to_string()).map(|()| true)
    }

    /// The time from the record of `earlier` to the record of this event, both of one GPU: what
    /// was queued between them, and nothing of the host's. Zero if `earlier` is later.
    ///
    /// # Errors
    ///
    /// One of them was never recorded, or its record is not reached yet.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration, CallError> {
        let driver = self.0.context.current()?;
        let mut ms = 0_f32;
        // SAFETY: `ms` is a live local that the call only writes; both handles are alive.
        let answer = unsafe {
            driver.calls.cuEventElapsedTime(&raw mut ms, earlier.0.handle(), self.0.handle())
        };
        driver.check(answer, || self.0.to_string())?;
        // The one place where the driver's milliseconds become a time.
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
    }
}
