//! A communicator: one rank of several that work together, on one GPU.

use std::{cell::Cell, cmp, ffi::c_int, io, ptr, time::Duration};

use super::{
    Library, UniqueId,
    bindings::{self, ncclComm, ncclComm_t, ncclConfig_t, ncclResult_t},
    calls::required,
};
use crate::ffi::{CallError, Cause, clock, cuda::Context, watchdog::Watchdog};

/// How long NCCL may take to give up what it was told to: longer than its own timeouts of sockets.
const ABORT_PATIENCE: Duration = Duration::from_secs(120);

/// What a call that must not block has beyond its patience at least: the machine may be busy.
const SLACK: Duration = Duration::from_millis(500);

/// A setting that is left to NCCL (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;

/// One rank of a communicator. Dropping one that was not closed aborts it.
///
/// It belongs to one thread at a time, as NCCL demands.
#[derive(Debug)]
pub struct Communicator {
    pub(super) library: &'static Library,
    context: Context,
    /// NCCL's handle, null when it is gone. NCCL may write into it while the communicator is made.
    handle: Box<Cell<*mut ncclComm>>,
    patience: Duration,
    /// Its number among the ranks.
    pub(super) rank: u32,
    /// How many ranks there are.
    pub(super) size: u32,
}

impl Communicator {
    /// Makes several ranks of the communicator `id` of `size` ranks at once: those of this process,
    /// each with the context of its GPU. All ranks have to call it; `patience` is for each wait,
    /// here and later: what is late is aborted, and the communicator with it.
    ///
    /// # Errors
    ///
    /// NCCL's refusal, and [`Cause::Late`] if not all ranks have come in time.
    ///
    /// # Panics
    ///
    /// There is no member.
    pub fn all(
        library: &'static Library,
        members: &[(Context, u32)],
        id: &UniqueId,
        size: u32,
        patience: Duration,
    ) -> Result<Vec<Self>, CallError> {
        assert!(!members.is_empty(), "a communicator has a rank here");
        let member = |(context, rank): &(Context, u32)| Self {
            library,
            context: context.clone(),
            handle: Box::new(Cell::new(ptr::null_mut())),
            patience,
            rank: *rank,
            size,
        };
        let made: Vec<Self> = members.iter().map(member).collect();
        let _watched = made[0].watched("is not made")?;
        let ended =
            library.group(|| made.iter().try_for_each(|communicator| communicator.begin(id)))?;
        made.iter().try_for_each(|communicator| communicator.settle(ended, INIT))?;
        Ok(made)
    }

    /// Begins to make it, within a group.
    fn begin(&self, id: &UniqueId) -> Result<(), CallError> {
        self.context.current()?;
        let mut config = configuration();
        // SAFETY: the handle lies in a box that this communicator owns until NCCL is done with it;
        // the configuration is copied by the call.
        let code = unsafe {
            (self.library.calls.ncclCommInitRankConfig)(
                self.handle.as_ptr(),
                number(self.size),
                id.0,
                number(self.rank),
                &raw mut config,
            )
        };
        Context::forget_current();
        self.begun(INIT, code)
    }

    /// Reads its size from NCCL itself: memory is checked against it.
    fn ask(&mut self) -> Result<(), CallError> {
        const CALL: &str = "ncclCommCount";
        let handle = self.live(CALL)?;
        let mut size = 0;
        // SAFETY: `size` is a live local that the call only writes; the handle is alive.
        let code = unsafe { (self.library.calls.ncclCommCount)(handle, &raw mut size) };
        self.check(CALL, code)?;
        self.size = size.unsigned_abs();
        Ok(())
    }

    /// Whether it was not aborted yet.
    pub fn is_alive(&self) -> bool {
        !self.handle.get().is_null()
    }

    /// The context of its GPU.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Divides communicators: makes one of those ranks that come with the same color. Each of these
    /// comes with its color and its number in the new one; all ranks have to call it, those of one
    /// process at once.
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::Split`](super::Feature::Split)), or not all ranks have come
    /// in time.
    pub fn divide(members: &[(&Self, (u32, u32))]) -> Result<Vec<Self>, CallError> {
        let Some((first, _)) = members.first() else { return Ok(Vec::new()) };
        let library = first.library;
        let _watched = first.watched("is not divided")?;
        // NCCL writes the handles when it is done: too late, and they are left to NCCL for ever.
        let places: Vec<&'static Cell<*mut ncclComm>> =
            members.iter().map(|_| &*Box::leak(Box::new(Cell::new(ptr::null_mut())))).collect();
        let begin = || {
            members.iter().zip(&places).try_for_each(|((parent, (color, rank)), part)| {
                parent.begin_split(*color, *rank, part)
            })
        };
        let divided = library.group(begin).and_then(|ended| {
            members.iter().try_for_each(|(parent, _)| parent.settle(ended, SPLIT))
        });
        if let Err(err) = divided {
            members.iter().for_each(|(parent, _)| parent.abort());
            return Err(err);
        }
        let mut made = Vec::new();
        for ((parent, (_, rank)), part) in members.iter().zip(&places) {
            made.push(Self {
                library,
                context: parent.context.clone(),
                handle: Box::new(Cell::new(part.get())),
                patience: parent.patience,
                rank: *rank,
                size: parent.size,
            });
        }
        for part in &mut made {
            part.settle(bindings::ncclInProgress, SPLIT)?;
            part.ask()?;
        }
        Ok(made)
    }

    /// Begins to divide it, within a group; the new handle will be in `part`.
    fn begin_split(
        &self,
        color: u32,
        rank: u32,
        part: &'static Cell<*mut ncclComm>,
    ) -> Result<(), CallError> {
        let split = required(SPLIT, self.library.calls.ncclCommSplit)?;
        let code = self.call(SPLIT, |handle| {
            // SAFETY: the handle is alive, and what is written lives for ever; without a
            // configuration the new communicator has that of this one.
            unsafe { split(handle, number(color), number(rank), part.as_ptr(), ptr::null_mut()) }
        })?;
        self.begun(SPLIT, code)
    }

    /// An error of queued work that came after its call had returned.
    pub fn async_error(&self) -> Result<(), CallError> {
        let handle = self.live(ASYNC)?;
        self.begun(ASYNC, self.state(handle)?)
    }

    /// Aborts all that is under way; afterwards it can only be dropped.
    pub fn abort(&self) {
        let handle = self.handle.replace(ptr::null_mut());
        if handle.is_null() {
            return;
        }
        let watched =
            Watchdog::start(ABORT_PATIENCE, format!("{self} does not let go: NCCL hangs"));
        let ended = watched.and_then(|_watched| {
            self.context.current()?;
            // SAFETY: the handle is alive, and given up for good: nothing can use it any more.
            let code = unsafe { (self.library.calls.ncclCommAbort)(handle) };
            Context::forget_current();
            // What was late before the abort still counts as under way.
            self.begun("ncclCommAbort", code)
        });
        if let Err(err) = ended {
            crate::ffi::warn(&err);
        }
    }

    /// Ends communicators of one process in order, after all that was queued is done; all ranks
    /// should call it. If that is not so in time, they are aborted.
    pub fn close(communicators: Vec<Self>) -> Result<(), CallError> {
        const FINALIZE: &str = "ncclCommFinalize";
        let mut begun = Vec::new();
        for communicator in &communicators {
            let _watched = communicator.watched("is not closed")?;
            begun.push(communicator.call(FINALIZE, |handle| {
                // SAFETY: the handle is alive.
                unsafe { (communicator.library.calls.ncclCommFinalize)(handle) }
            })?);
        }
        for (communicator, code) in communicators.iter().zip(begun) {
            communicator.settle(code, FINALIZE)?;
        }
        communicators.into_iter().try_for_each(Self::destroy)
    }

    /// Lets go of what has come to its end.
    fn destroy(self) -> Result<(), CallError> {
        const DESTROY: &str = "ncclCommDestroy";
        let _hangs = Watchdog::start(ABORT_PATIENCE, format!("{self} does not end: NCCL hangs"))?;
        let code = self.call(DESTROY, |handle| {
            self.handle.set(ptr::null_mut());
            // SAFETY: the handle is alive, and given up for good.
            unsafe { (self.library.calls.ncclCommDestroy)(handle) }
        })?;
        self.begun(DESTROY, code)
    }

    /// Makes a call that takes the handle: with the GPU's context, which NCCL may leave for
    /// another.
    pub(super) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(ncclComm_t) -> ncclResult_t,
    ) -> Result<ncclResult_t, CallError> {
        let handle = self.live(name)?;
        self.context.current()?;
        let code = call(handle);
        Context::forget_current();
        Ok(code)
    }

    /// Turns a return code into an error of this communicator.
    pub(super) fn check(&self, call: &'static str, code: ncclResult_t) -> Result<(), CallError> {
        let handle = Some(self.handle.get()).filter(|handle| !handle.is_null());
        self.library.check(call, code, handle, || self.to_string())
    }

    /// The same of a call that may still be under way.
    pub(super) fn begun(&self, call: &'static str, code: ncclResult_t) -> Result<(), CallError> {
        if code == bindings::ncclInProgress { Ok(()) } else { self.check(call, code) }
    }

    /// The handle, for a call that takes it.
    pub(super) fn live(&self, call: &'static str) -> Result<ncclComm_t, CallError> {
        let handle = self.handle.get();
        if handle.is_null() {
            let gone = io::Error::other("the communicator was aborted before");
            return Err(CallError::new(call, self.to_string(), gone));
        }
        Ok(handle)
    }

    /// Waits until a call that returned `code` is done; its outcome. If it is late, the
    /// communicator is aborted.
    pub(super) fn settle(&self, code: ncclResult_t, call: &'static str) -> Result<(), CallError> {
        let mut code = code;
        let begin = clock::now();
        while code == bindings::ncclInProgress {
            let waited = clock::now().since(begin);
            if waited >= self.patience {
                self.abort();
                return Err(CallError::new(call, self.to_string(), Cause::Late(self.patience)));
            }
            clock::pause(waited);
            code = self.state(self.live(call)?)?;
        }
        self.check(call, code)
    }

    /// The state of the operation under way.
    fn state(&self, handle: ncclComm_t) -> Result<ncclResult_t, CallError> {
        let mut state = bindings::ncclSuccess;
        // SAFETY: `state` is a live local that the call only writes; the handle is alive.
        let code = unsafe { (self.library.calls.ncclCommGetAsyncError)(handle, &raw mut state) };
        self.check(ASYNC, code)?;
        Ok(state)
    }

    /// Watches over calls that must not block.
    pub(super) fn watched(&self, what: &str) -> Result<Watchdog, CallError> {
        // Calls that must not block are given up first.
        let limit = self.patience.saturating_add(cmp::max(self.patience / 4, SLACK));
        let sentence =
            format!("{self} {what} within {} s: is a rank missing?", limit.as_secs_f64());
        Watchdog::start(limit, sentence)
    }
}

impl std::fmt::Display for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.context.device();
        write!(f, "rank {} of {} of a communicator, {device}", self.rank, self.size)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Library {
    /// Runs `queue` within a group, which is ended in any case; the return code of its end.
    pub(super) fn group(
        &self,
        queue: impl FnOnce() -> Result<(), CallError>,
    ) -> Result<ncclResult_t, CallError> {
        self.start_group()?;
        let queued = queue();
        let ended = self.end_group();
        queued.map(|()| ended)
    }

    /// Opens a group: what is queued begins when it is ended.
    pub(super) fn start_group(&self) -> Result<(), CallError> {
        // SAFETY: the call takes nothing, and counts for this thread.
        let code = unsafe { (self.calls.ncclGroupStart)() };
        self.check("ncclGroupStart", code, None, String::new)
    }

    /// Ends a group.
    pub(super) fn end_group(&self) -> ncclResult_t {
        // SAFETY: the call takes nothing; the caller has opened a group on this thread.
        let code = unsafe { (self.calls.ncclGroupEnd)() };
        Context::forget_current();
        code
    }
}

const INIT: &str = "ncclCommInitRankConfig";
const SPLIT: &str = "ncclCommSplit";
const ASYNC: &str = "ncclCommGetAsyncError";

/// A configuration that leaves all to NCCL but that calls return at once
/// (`NCCL_CONFIG_INITIALIZER`).
fn configuration() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: bindings::NCCL_API_MAGIC,
        version: bindings::NCCL_VERSION_CODE,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
        graphStreamOrdering: UNDEFINED,
        launchOrderImplicit: UNDEFINED,
        numRmaSig: UNDEFINED,
        rmaEagerInit: UNDEFINED,
        hostCftMode: UNDEFINED,
        nvlsHostMode: UNDEFINED,
    }
}

/// A rank, or a count of ranks, as C takes it; NCCL refuses one that is too large.
pub(super) fn number(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
