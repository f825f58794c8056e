//! A GPU's primary context: what memory, streams and kernels of this process belong to.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use cudarc::driver::sys::{
    CUctx_st, CUflushGPUDirectRDMAWritesScope as Scope, CUflushGPUDirectRDMAWritesTarget as Target,
    CUresult,
};

use super::{
    Device, Driver, Feature,
    calls::{Answer, Calls},
    stream,
};
use crate::{ffi::CallError, units::Bytes};

/// A handle of the driver's.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

// SAFETY: handles have no tie to a thread. "CUDA Driver API", Context Management: a context may
// be current to several threads at once; what is made in it is used through it.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the driver orders calls that meet.
unsafe impl<T> Sync for Handle<T> {}

/// What the driver has made in a context; destroyed on drop.
#[derive(Debug)]
pub(super) struct Object<T> {
    pub(super) context: Context,
    handle: Handle<T>,
    /// What it is, for errors.
    name: &'static str,
    destroy: unsafe fn(&Calls, *mut T) -> Answer,
}

impl<T> Object<T> {
    /// Takes over what the driver has made in `context`.
    ///
    /// # Safety
    ///
    /// `destroy` destroys it, and nothing else does.
    pub(super) unsafe fn own(
        context: &Context,
        name: &'static str,
        handle: *mut T,
        destroy: unsafe fn(&Calls, *mut T) -> Answer,
    ) -> Self {
        Self { context: context.clone(), handle: Handle(handle), name, destroy }
    }

    /// Its handle, which is alive as long as this value.
    #[inline]
    pub(super) fn handle(&self) -> *mut T {
        self.handle.0
    }
}

impl<T> std::fmt::Display for Object<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.name, self.context.device())
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let destroyed = self.context.current().and_then(|driver| {
            // SAFETY: it is destroyed only here.
            let answer = unsafe { (self.destroy)(&driver.calls, self.handle.0) };
            driver.check(answer, || self.to_string())
        });
        if let Err(err) = destroyed {
            crate::ffi::warn(&err);
        }
    }
}

/// A GPU's primary context, retained until the last clone and all that was made in it are gone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    device: Device,
    handle: Handle<CUctx_st>,
    /// Never given twice in a process, unlike the handle.
    id: u64,
    pub(super) streams: Mutex<Vec<Weak<stream::Inner>>>,
}

thread_local! {
    /// The `id` of the context that this module last made current to the thread; 0 after a call of a
    /// library that may make another one current ([`Context::forget_current`]).
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl Context {
    /// The context of `device`: every caller in the process gets the same one.
    ///
    /// # Errors
    ///
    /// The driver's refusal, for instance because the GPU is in exclusive use or has no memory
    /// left for a context.
    pub fn retain(device: Device) -> Result<Self, CallError> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let driver = device.driver;
        let mut contexts = driver.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        let of_device = |inner: &Arc<Inner>| inner.device.ordinal() == device.ordinal();
        if let Some(inner) = contexts.iter().filter_map(Weak::upgrade).find(of_device) {
            return Ok(Self { inner });
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a live local that the call only writes.
        let answer =
            unsafe { driver.calls.cuDevicePrimaryCtxRetain(&raw mut handle, device.handle) };
        driver.check(answer, || device.to_string())?;
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let inner =
            Arc::new(Inner { device, handle: Handle(handle), id, streams: Mutex::default() });
        contexts.push(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// The GPU.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Lets this context's copies and kernels reach the memory of `peer` directly, from now on;
    /// asking again is no error.
    ///
    /// # Errors
    ///
    /// The two GPUs have no such way, or the driver has no room for one more.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<(), CallError> {
        let driver = self.current()?;
        // SAFETY: `peer` is a live context, and the flags must be 0.
        let answer = unsafe { driver.calls.cuCtxEnablePeerAccess(peer.inner.handle.0, 0) };
        if answer.is(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            return Ok(());
        }
        let pair = || format!("{} to {}", self.device(), peer.device());
        driver.check(answer, pair)
    }

    /// Makes what other devices have written to the GPU's memory so far visible to what the GPU does
    /// from now on, where it does not order the two itself and the driver can wait for it ("CUDA
    /// Driver API", `cuFlushGPUDirectRDMAWrites`; GPUs before Hopper).
    pub fn flush_rdma_writes(&self) -> Result<(), CallError> {
        let driver = self.current()?;
        let device = self.device();
        if driver.lacks(Feature::RdmaFlush).is_some() || !device.needs_flush() {
            return Ok(());
        }
        // SAFETY: the call takes enumerations only.
        let answer = unsafe {
            driver.calls.cuFlushGPUDirectRDMAWrites(
                Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            )
        };
        driver.check(answer, || device.to_string())
    }

    /// The GPU's memory that is free now; other processes may take it.
    pub fn free_memory(&self) -> Result<Bytes, CallError> {
        let driver = self.current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live locals that the call only writes.
        let answer = unsafe { driver.calls.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        driver.check(answer, || self.device().to_string())?;
        Ok(Bytes::of_len(free))
    }

    /// Whether both are the same.
    pub(in crate::ffi) fn is(&self, other: &Self) -> bool {
        self.inner.id == other.inner.id
    }

    /// Makes it the calling thread's current context, if it is not yet.
    #[inline]
    pub(in crate::ffi) fn current(&self) -> Result<&'static Driver, CallError> {
        let driver = self.inner.device.driver;
        if CURRENT.get() != self.inner.id {
            self.make_current(driver)?;
        }
        Ok(driver)
    }

    /// Another library may have made another context current to the calling thread.
    pub(in crate::ffi) fn forget_current() {
        CURRENT.set(0);
    }

    #[cold]
    fn make_current(&self, driver: &Driver) -> Result<(), CallError> {
        // SAFETY: the context is retained as long as `self` lives.
        let answer = unsafe { driver.calls.cuCtxSetCurrent(self.inner.handle.0) };
        driver.check(answer, || self.device().to_string())?;
        CURRENT.set(self.inner.id);
        Ok(())
    }

    /// Whether every stream of this process is idle, or becomes so soon.
    pub fn is_at_rest(&self) -> bool {
        self.inner.device.driver.settle(stream::Inner::settle_once).is_ok()
    }

    /// Frees something made in this context, by `free`, once no stream of this process can still be
    /// using it. If a stream stays busy or the driver refuses, it prints a warning and the memory
    /// stays until the process ends. Returns whether it was freed.
    pub(in crate::ffi) fn give_back(
        &self,
        free: impl FnOnce(&Driver) -> Result<(), CallError>,
    ) -> bool {
        // Waiting makes other contexts current, so this one is made so after it.
        let settled = self.inner.device.driver.settle(stream::Inner::settle_once);
        let outcome = settled.and_then(|()| free(self.current()?));
        outcome.inspect_err(crate::ffi::warn).is_ok()
    }
}

impl Driver {
    /// Waits, by `wait`, until every stream of this process is idle.
    pub(super) fn settle(
        &self,
        wait: impl Fn(&stream::Inner) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        live(&self.contexts)
            .iter()
            .flat_map(|context| live(&context.streams))
            .try_for_each(|stream| wait(&stream))
    }
}

/// The elements of `list` that are still alive.
fn live<T>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.iter().filter_map(Weak::upgrade).collect()
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.device.driver;
        // SAFETY: the context was retained once when this value was made, and all that was made
        // in it is gone: it holds this value.
        let answer = unsafe { driver.calls.cuDevicePrimaryCtxRelease_v2(self.device.handle) };
        let released = driver.check(answer, || self.device.to_string());
        if let Err(err) = released {
            crate::ffi::warn(&err);
        }
    }
}
