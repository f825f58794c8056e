//! Memory that GPUs reach: their own, and the host's where it is pinned.

use std::{
    ffi::c_uint, marker::PhantomData, mem::ManuallyDrop, ops::Deref, sync::atomic::AtomicU32,
    time::Duration,
};

use cudarc::driver::sys;

use super::{
    Context,
    calls::{Answer, Calls},
};
use crate::{
    ffi::{CallError, host::HostBuffer, shm::Segment},
    units::Bytes,
};

/// The block that the driver divides among small allocations.
const BLOCK: Bytes = Bytes::mib(2);

/// Memory that copies and kernels work on.
pub trait Memory: std::fmt::Debug {
    /// All of it.
    fn all(&self) -> Slice<'_>;

    /// How much it is.
    fn size(&self) -> Bytes {
        self.all().size()
    }

    /// `size` bytes of it from `offset` on.
    ///
    /// # Panics
    ///
    /// They are not all inside.
    fn slice(&self, offset: Bytes, size: Bytes) -> Slice<'_> {
        self.all().slice(offset, size)
    }
}

/// A part of some memory, borrowed from its owner. GPUs may write it at any time, so it is shared
/// freely and never a Rust slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    address: u64,
    size: Bytes,
    owner: PhantomData<&'a ()>,
}

impl Slice<'_> {
    /// The memory at `address`. The caller gives it the lifetime of the memory's owner.
    pub(in crate::ffi) fn new(address: u64, size: Bytes) -> Self {
        Self { address, size, owner: PhantomData }
    }

    /// How much it is.
    pub fn size(self) -> Bytes {
        self.size
    }

    /// `size` bytes of it from `offset` on.
    ///
    /// # Panics
    ///
    /// They are not all inside.
    pub fn slice(self, offset: Bytes, size: Bytes) -> Self {
        assert!(
            offset.get().checked_add(size.get()).is_some_and(|end| end <= self.size.get()),
            "{size} at {} are not inside {}",
            offset.get(),
            self.size
        );
        Self { address: self.address + offset.get(), size, owner: self.owner }
    }

    /// Where GPUs and the driver have it.
    #[inline]
    pub(in crate::ffi) fn address(self) -> u64 {
        self.address
    }

    /// Its size as the driver takes it.
    #[inline]
    pub(in crate::ffi) fn length(self) -> usize {
        length(self.size)
    }

    /// Where the value of `length` bytes at its beginning is.
    ///
    /// # Panics
    ///
    /// There is no room for it, or it would not be aligned.
    pub(super) fn value(self, length: u64) -> u64 {
        assert!(self.size.get() >= length, "{} have no room for {length} bytes", self.size);
        assert!(self.address.is_multiple_of(length.min(8)), "{:#x} is not aligned", self.address);
        self.address
    }
}

/// The size as a length. The driver refuses more than this machine can address.
pub(super) fn length(size: Bytes) -> usize {
    size.to_len().unwrap_or(usize::MAX)
}

/// `size` in whole blocks.
pub(super) fn whole(size: Bytes) -> Bytes {
    Bytes::new(size.get().div_ceil(BLOCK.get()).saturating_mul(BLOCK.get()))
}

/// Memory of one GPU, of this process or opened from another; given back on drop. Its contents are
/// undefined until something is written.
#[derive(Debug)]
pub struct Buffer {
    pub(super) context: Context,
    pub(super) address: u64,
    size: Bytes,
    free: unsafe fn(&Calls, u64) -> Answer,
}

impl Buffer {
    /// Allocates `size`.
    ///
    /// # Errors
    ///
    /// The driver's refusal, most often for want of memory, and of no bytes at all.
    pub fn new(context: &Context, size: Bytes) -> Result<Self, CallError> {
        let driver = context.current()?;
        let mut address = 0;
        // SAFETY: `address` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuMemAlloc_v2(&raw mut address, length(size)) };
        driver.check(answer, || format!("{size} on {}", context.device()))?;
        // SAFETY: the call has just made it, for this owner.
        Ok(unsafe { Self::own(context, address, size, Calls::cuMemFree_v2) })
    }

    /// Takes over memory that the driver has made.
    ///
    /// # Safety
    ///
    /// It has this size; `free` gives it back, and nothing else does.
    pub(super) unsafe fn own(
        context: &Context,
        address: u64,
        size: Bytes,
        free: unsafe fn(&Calls, u64) -> Answer,
    ) -> Self {
        Self { context: context.clone(), address, size, free }
    }

    /// Allocates `size` for [`Buffer::ipc_handle`] or [`Buffer::dma_buf`]: whole blocks, with
    /// nothing else in them. What is smaller may share a block, and another process opens and
    /// closes blocks ("CUDA Programming Guide", Interprocess Communication).
    pub fn to_share(context: &Context, size: Bytes) -> Result<Self, CallError> {
        let mut buffer = Self::new(context, whole(size))?;
        buffer.size = size;
        Ok(buffer)
    }
}

impl Memory for Buffer {
    fn all(&self) -> Slice<'_> {
        Slice::new(self.address, self.size)
    }
}

impl std::fmt::Display for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.size, self.context.device())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.context.give_back(|driver| {
            // SAFETY: no stream uses the memory any more, and it is given back only here.
            let answer = unsafe { (self.free)(&driver.calls, self.address) };
            driver.check(answer, || self.to_string())
        });
    }
}

/// Memory of this process, pinned so that every GPU of it reaches it; given back on drop.
#[derive(Debug)]
pub struct Pinned<M: Mapped> {
    context: Context,
    address: u64,
    memory: ManuallyDrop<M>,
}

/// Memory that can be pinned.
///
/// # Safety
///
/// It stays mapped, readable and writable, at the place that it tells for as long as it lives.
pub unsafe trait Mapped {
    /// What errors call it.
    const NAME: &str;

    /// Where it begins, and its length.
    fn memory(&self) -> (*mut u8, usize);
}

/// Pinned host memory of this process alone, zeroed at first.
///
/// The driver registers it. Of memory that the driver allocates (`cuMemHostAlloc`) the kernel does
/// not say on which NUMA node it lies.
pub type HostMemory = Pinned<HostBuffer>;

// SAFETY: the mapping is made with the buffer and ends with it.
unsafe impl Mapped for HostBuffer {
    const NAME: &str = "pinned host memory";

    fn memory(&self) -> (*mut u8, usize) {
        self.memory()
    }
}

/// A shared-memory segment, pinned.
pub type Registered = Pinned<Segment>;

// SAFETY: the mapping is made with the segment and ends with it.
unsafe impl Mapped for Segment {
    const NAME: &str = "a shared segment";

    fn memory(&self) -> (*mut u8, usize) {
        self.memory()
    }
}

impl<M: Mapped> Pinned<M> {
    fn pin(context: &Context, memory: M) -> Result<Self, CallError> {
        const FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let driver = context.current()?;
        let (pointer, length) = Mapped::memory(&memory);
        // SAFETY: the range stays mapped until the memory is dropped, behind its registration.
        let answer = unsafe { driver.calls.cuMemHostRegister_v2(pointer.cast(), length, FLAGS) };
        driver.check(answer, || object::<M>(length))?;
        // From here on a failure unregisters it.
        let memory = ManuallyDrop::new(memory);
        let mut pinned = Self { context: context.clone(), address: 0, memory };
        pinned.address = device_address(context, pointer)?;
        Ok(pinned)
    }
}

/// What the driver is asked about, in errors.
fn object<M: Mapped>(length: usize) -> String {
    format!("{} of {}", Bytes::of_len(length), M::NAME)
}

impl<M: Mapped> Drop for Pinned<M> {
    fn drop(&mut self) {
        let (pointer, length) = Mapped::memory(&*self.memory);
        let unregistered = self.context.give_back(|driver| {
            // SAFETY: the range was registered in `pin`, no stream uses it any more, and it is
            // unregistered only here.
            let answer = unsafe { driver.calls.cuMemHostUnregister(pointer.cast()) };
            driver.check(answer, || object::<M>(length))
        });
        if unregistered {
            // SAFETY: this is the only drop of the memory, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl<M: Mapped + std::fmt::Debug> Memory for Pinned<M> {
    fn all(&self) -> Slice<'_> {
        Slice::new(self.address, Bytes::of_len(Mapped::memory(&*self.memory).1))
    }
}

impl HostMemory {
    /// Allocates `size` and touches all of it, so that it lies on the NUMA node of the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// `mmap`'s or the driver's refusal, most often for want of memory that can be pinned, and of
    /// no bytes at all.
    pub fn new(context: &Context, size: Bytes) -> Result<Self, CallError> {
        Self::pin(context, HostBuffer::new(size)?)
    }

    /// Its bytes, once all streams of this process are idle: nothing queued writes them any more,
    /// and nothing can be queued that does while they are borrowed.
    ///
    /// # Errors
    ///
    /// A stream is still busy after `patience`.
    pub fn bytes(&mut self, patience: Duration) -> Result<&mut [u8], CallError> {
        self.context.current()?.settle(|stream| stream.settle(patience))?;
        // No stream works on it, and what could queue more or reach its words would have to borrow
        // `self`.
        Ok(&mut self.memory)
    }

    /// The 32-bit word at `offset`, which GPUs may watch or write meanwhile.
    ///
    /// # Panics
    ///
    /// `offset` is not a multiple of 4, or the word is not inside.
    pub fn word(&self, offset: Bytes) -> &AtomicU32 {
        let inside = self.slice(offset, Bytes::new(4));
        assert!(inside.address().is_multiple_of(4), "word at {} is not aligned", offset.get());
        // SAFETY: the word is inside the memory, as the slice has checked.
        let word = unsafe { self.memory().0.add(length(offset)) }.cast();
        // SAFETY: the memory begins at a page for the host as for GPUs, so the word is aligned;
        // while `self` is borrowed it is reached from here as an atomic only.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Where this process has it, for a library that registers memory.
    pub(in crate::ffi) fn memory(&self) -> (*mut u8, usize) {
        self.memory.memory()
    }
}

impl Registered {
    /// Pins `segment`. Other processes that have it open pin it for their own GPUs.
    ///
    /// # Errors
    ///
    /// The driver's refusal, most often for want of memory that can be pinned
    /// (`ulimit -l`, or the container's limit).
    pub fn new(context: &Context, segment: Segment) -> Result<Self, CallError> {
        Self::pin(context, segment)
    }
}

impl Deref for Registered {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.memory
    }
}

/// Where GPUs have the pinned memory at `pointer`.
fn device_address(context: &Context, pointer: *mut u8) -> Result<u64, CallError> {
    let driver = context.current()?;
    let mut address = 0;
    // SAFETY: `pointer` is the beginning of memory pinned with a device mapping; `address` is a
    // live local that the call only writes.
    let answer =
        unsafe { driver.calls.cuMemHostGetDevicePointer_v2(&raw mut address, pointer.cast(), 0) };
    driver.check(answer, || "pinned host memory".to_owned())?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_is_counted_from_its_beginning() {
        let whole = Slice::new(0x1000, Bytes::new(100));
        let part = whole.slice(Bytes::new(10), Bytes::new(90)).slice(Bytes::new(6), Bytes::new(84));
        assert_eq!((part.address(), part.length()), (0x1010, 84));
        assert_eq!(part.value(8), 0x1010);
        assert_eq!(whole.slice(Bytes::new(100), Bytes::new(0)).length(), 0);
    }

    #[test]
    #[should_panic(expected = "11 B at 90 are not inside 100 B")]
    fn a_slice_does_not_reach_past_the_end() {
        Slice::new(0x1000, Bytes::new(100)).slice(Bytes::new(90), Bytes::new(11));
    }

    #[test]
    #[should_panic(expected = "are not inside 100 B")]
    fn a_slice_does_not_wrap() {
        Slice::new(0x1000, Bytes::new(100)).slice(Bytes::new(2), Bytes::new(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "0x1004 is not aligned")]
    fn a_value_is_aligned() {
        let whole = Slice::new(0x1000, Bytes::new(100));
        whole.slice(Bytes::new(4), Bytes::new(8)).value(8);
    }

    #[test]
    #[should_panic(expected = "15 B have no room for 16 bytes")]
    fn a_value_is_inside() {
        Slice::new(0x1000, Bytes::new(15)).value(16);
    }
}
