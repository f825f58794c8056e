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

use super::{Context, Slice, context::Handle};
use crate::ffi::{CallError, Cause, clock};

/// How long memory that is to be freed waits for streams that may use it. Longer than any
/// transfer that ends at all; shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a wait for a stream burns its CPU before it sleeps between two looks: most waits are
/// shorter, and a sleep costs about this much.
const SPIN: Duration = Duration::from_micros(50);

/// The answer of what is not done yet.
const BUSY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

/// The call by which a wait looks at a stream.
const QUERY: &str = "cuStreamQuery";

/// Longest sleep between two looks at a stream.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A queue of operations of one GPU, done one after another, and at once with other streams'.
#[derive(Debug)]
pub struct Stream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    context: Context,
    handle: Handle<CUstream_st>,
    /// Whether it was still busy when what it may use was to be freed.
    late: AtomicBool,
    /// Whether what is queued goes into a graph, whose memory others answer for. Held while that
    /// begins or ends, and while the driver is asked how far the stream is, which it does not say
    /// of one that is captured.
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
        let code = unsafe { driver.calls.cuStreamCreate(&raw mut handle, FLAGS) };
        driver.check("cuStreamCreate", code, || context.device().to_string())?;
        let inner = Arc::new(Inner {
            context: context.clone(),
            handle: Handle(handle),
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
        &self.inner.context
    }

    /// The handle, for the other wrappers.
    ///
    /// # Panics
    ///
    /// It is captured.
    pub(in crate::ffi) fn handle(&self) -> *mut CUstream_st {
        assert!(!*self.captured(), "{self} is captured");
        self.inner.handle.0
    }

    /// The handle, for who answers for the memory that a graph names.
    pub(in crate::ffi) fn captured_handle(&self) -> *mut CUstream_st {
        self.inner.handle.0
    }

    /// Whether what is queued goes into a graph.
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
        let code = unsafe {
            driver.calls.cuMemcpyAsync(
                target.address(),
                source.address(),
                source.length(),
                self.handle(),
            )
        };
        driver.check("cuMemcpyAsync", code, || format!("{} in {self}", source.size()))
    }

    /// Queues writing `value` into every byte of `target`.
    pub fn set(&self, target: Slice<'_>, value: u8) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: as in `copy`.
        let code = unsafe {
            driver.calls.cuMemsetD8Async(target.address(), value, target.length(), self.handle())
        };
        driver.check("cuMemsetD8Async", code, || format!("{} in {self}", target.size()))
    }

    /// Queues the record of `event`, whose time is when everything queued before it is done.
    ///
    /// # Errors
    ///
    /// As [`Stream::copy`], and an event of another context.
    pub fn record(&self, event: &Event) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: both handles are alive.
        let code = unsafe { driver.calls.cuEventRecord(event.handle.0, self.handle()) };
        driver.check("cuEventRecord", code, || format!("an event in {self}"))
    }

    /// Queues waiting for the last record of `event`, in whichever stream that is; no wait if
    /// there is none.
    pub fn wait(&self, event: &Event) -> Result<(), CallError> {
        let driver = self.context().current()?;
        // SAFETY: both handles are alive.
        let code = unsafe { driver.calls.cuStreamWaitEvent(self.handle(), event.handle.0, 0) };
        driver.check("cuStreamWaitEvent", code, || format!("an event in {self}"))
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
        let code = unsafe {
            driver.value_calls.as_ref()?.cuStreamWriteValue32_v2(
                self.handle(),
                word.value(4),
                value,
                0,
            )
        };
        driver.check("cuStreamWriteValue32", code, || format!("a word in {self}"))
    }

    /// Queues waiting until the 32-bit word at the beginning of `word` has reached `value`, in
    /// the cyclic order in which 0 follows the largest value.
    ///
    /// # Panics
    ///
    /// As [`Stream::write_value`].
    pub fn wait_value(&self, word: Slice<'_>, value: u32) -> Result<(), CallError> {
        const REACHED: u32 = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let driver = self.context().current()?;
        // SAFETY: as in `write_value`.
        let code = unsafe {
            driver.value_calls.as_ref()?.cuStreamWaitValue32_v2(
                self.handle(),
                word.value(4),
                value,
                REACHED,
            )
        };
        driver.check("cuStreamWaitValue32", code, || format!("a word in {self}"))
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
        let driver = self.context.current()?;
        let begin = clock::now();
        loop {
            let captured = self.captured();
            // Another thread may be capturing it: the driver would not say how far it is, and make
            // the graph invalid.
            if !*captured {
                // SAFETY: the stream is destroyed only when the last owner of this value is gone.
                let code = unsafe { driver.calls.cuStreamQuery(self.handle.0) };
                if code != BUSY {
                    return driver.check(QUERY, code, || self.to_string());
                }
            }
            drop(captured);
            let waited = clock::now().since(begin);
            if waited >= patience {
                let source = Cause::Late(patience);
                return Err(CallError { call: QUERY, object: self.to_string(), source });
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep((waited / 8).min(SLEEP_MAX));
            }
        }
    }

    /// Waits until nothing in it can use memory any more. A stream that answers an error is broken
    /// with its context: nothing in it goes on.
    pub(super) fn settle(&self, patience: Duration) -> Result<(), CallError> {
        // An error before it could be asked says nothing of the stream.
        match self.wait(patience) {
            Err(err) if matches!(err.source, Cause::Late(_)) || err.call != QUERY => Err(err),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// As [`Inner::settle`] with [`PATIENCE`], but only the first time that this is in vain: what
    /// else is to be freed must not wait as long again.
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
        write!(f, "a stream of {}", self.context.device())
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

impl Drop for Inner {
    fn drop(&mut self) {
        let destroyed = self.context.current().and_then(|driver| {
            // SAFETY: the handle came from `cuStreamCreate` and is destroyed only here.
            let code = unsafe { driver.calls.cuStreamDestroy_v2(self.handle.0) };
            driver.check("cuStreamDestroy", code, || self.to_string())
        });
        if let Err(err) = destroyed {
            crate::ffi::warn(&err);
        }
    }
}

/// A moment in a stream, by its GPU's clock.
#[derive(Debug)]
pub struct Event {
    context: Context,
    handle: Handle<CUevent_st>,
}

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
        let code = unsafe { driver.calls.cuEventCreate(&raw mut handle, FLAGS) };
        driver.check("cuEventCreate", code, || context.device().to_string())?;
        Ok(Self { context: context.clone(), handle: Handle(handle) })
    }

    /// Whether everything before its last record is done.
    pub fn is_reached(&self) -> Result<bool, CallError> {
        let driver = self.context.current()?;
        // SAFETY: the handle is alive.
        let code = unsafe { driver.calls.cuEventQuery(self.handle.0) };
        if code == BUSY {
            return Ok(false);
        }
        driver.check("cuEventQuery", code, || self.to_string()).map(|()| true)
    }

    /// The time from the record of `earlier` to the record of this event, both of one GPU: what
    /// was queued between them, and nothing of the host's. Zero if `earlier` is later.
    ///
    /// # Errors
    ///
    /// One of them was never recorded, or its record is not reached yet.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration, CallError> {
        let driver = self.context.current()?;
        let mut ms = 0_f32;
        // SAFETY: `ms` is a live local that the call only writes; both handles are alive.
        let code = unsafe {
            driver.calls.cuEventElapsedTime(&raw mut ms, earlier.handle.0, self.handle.0)
        };
        driver.check("cuEventElapsedTime", code, || self.to_string())?;
        // The one place where the driver's milliseconds become a time.
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an event of {}", self.context.device())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroyed = self.context.current().and_then(|driver| {
            // SAFETY: the handle came from `cuEventCreate` and is destroyed only here; a record
            // that is still queued keeps what it needs ("CUDA Driver API", cuEventDestroy).
            let code = unsafe { driver.calls.cuEventDestroy_v2(self.handle.0) };
            driver.check("cuEventDestroy", code, || self.to_string())
        });
        if let Err(err) = destroyed {
            crate::ffi::warn(&err);
        }
    }
}
