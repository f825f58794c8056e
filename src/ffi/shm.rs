//! One segment of shared memory on `/dev/shm`, without a name.
//!
//! The segment is a file of the same tmpfs that `shm_open` uses, so it counts against the same
//! limit and is the same kind of memory; but it is made with `O_TMPFILE`, so that it has no name
//! that could be left behind however its processes end. Another process of the same user opens
//! it through `/proc/<pid>/fd/<n>` of its maker.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    ptr,
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub use super::process::Descriptor as Address;
use super::{CallError, Cause};
use crate::units::Bytes;

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StoreKind"))]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// Through the caches.
    // By the C library's `memcpy`.
    Cached,
    /// Past the caches.
    // With non-temporal stores. Without them (`NON_TEMPORAL`) the same as `Cached`.
    NonTemporal,
}

/// Whether this build has non-temporal stores.
pub const NON_TEMPORAL: bool = cfg!(target_arch = "x86_64");

/// Memory that several processes see at once; unmapped on drop, gone when the last lets go.
#[derive(Debug)]
pub struct Segment {
    file: File,
    address: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value and has no tie to the thread that made it.
unsafe impl Send for Segment {}

impl Segment {
    /// Makes a zeroed segment of `size`, with all its pages in place, on the NUMA node of the
    /// calling thread.
    ///
    /// # Errors
    ///
    /// `/dev/shm` is missing, not writable, or too small.
    pub fn create(size: Bytes) -> Result<Self, CallError> {
        let object = || format!("a segment of {size} on /dev/shm");
        let made = File::options()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open("/dev/shm");
        let file = made.map_err(|err| with_remedy(CallError::new("open", object(), err)))?;
        let length = libc::off_t::try_from(size.get()).unwrap_or(libc::off_t::MAX);
        // Without this, a full /dev/shm would be a SIGBUS at the first touch.
        // SAFETY: `file` is open for writing, and the call takes no pointer.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) };
        if code != 0 {
            let source = io::Error::from_raw_os_error(code);
            return Err(with_remedy(CallError::new("posix_fallocate", object(), source)));
        }
        Self::map(file, size)
    }

    /// Opens the segment at `address`.
    ///
    /// # Errors
    ///
    /// Its maker is gone, belongs to another user, or lives in another PID namespace.
    pub fn open(address: Address) -> Result<Self, CallError> {
        let path = format!("/proc/{}/fd/{}", address.pid, address.descriptor);
        let refuse = |source: io::Error| CallError::new("open", path.clone(), source);
        let file = File::options().read(true).write(true).open(&path).map_err(refuse)?;
        // Memory past the end of the file would be a SIGBUS at the first touch.
        let length = file.metadata().map_err(refuse)?.len();
        if length < address.size.get() {
            let reason = format!("{length} bytes, where {} must be", address.size);
            return Err(refuse(io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        Self::map(file, address.size)
    }

    fn map(file: File, size: Bytes) -> Result<Self, CallError> {
        let object = || format!("a segment of {size}");
        let length = size.to_len().map_err(|err| {
            CallError::new("mmap", object(), io::Error::new(io::ErrorKind::OutOfMemory, err))
        })?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other, and the
        // file is at least `length` long: `create` has allocated it, `open` has looked.
        let address = unsafe { mmap(ptr::null_mut(), length, access, flags, &file, 0) }
            .map_err(|code| CallError::new("mmap", object(), code))?;
        Ok(Self { file, address: address.cast(), length })
    }

    /// What another process needs to open this segment, as long as this process holds it.
    pub fn address(&self) -> Address {
        Address {
            pid: std::process::id(),
            descriptor: self.file.as_raw_fd(),
            size: Bytes::of_len(self.length),
        }
    }

    /// The NUMA node of the page at `offset`, as [`super::host::numa_node`] tells it.
    ///
    /// # Panics
    ///
    /// `offset` is not inside the segment.
    pub fn numa_node(&self, offset: usize) -> Option<u32> {
        self.check(offset, 1);
        super::host::numa_node_at(self.address.wrapping_add(offset))
    }

    /// The 64-bit word at byte `offset`.
    ///
    /// # Panics
    ///
    /// `offset` is not a multiple of 8 or the word is not inside the segment.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "word at {offset} is not aligned");
        self.check(offset, 8);
        // SAFETY: the word is inside the mapping.
        let word = unsafe { self.address.add(offset) }.cast();
        // SAFETY: the mapping is page-aligned and `offset` a multiple of 8, so the word is
        // aligned; it is only ever reached as an atomic, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies `source` into the segment at `offset`. The caller's protocol must keep others from
    /// reading these bytes before it publishes them.
    ///
    /// # Panics
    ///
    /// The range is not inside the segment.
    pub fn write(&self, offset: usize, source: &[u8], store: Store) {
        self.check(offset, source.len());
        // SAFETY: the range is inside the mapping.
        let target = unsafe { self.address.add(offset) };
        // SAFETY: both ranges are `source.len()` long, and the segment is no part of any slice.
        unsafe { copy(target, source.as_ptr(), source.len(), store) };
    }

    /// Copies bytes at `offset` of the segment into `target`. The caller's protocol must keep
    /// others from writing them meanwhile.
    ///
    /// # Panics
    ///
    /// The range is not inside the segment.
    pub fn read(&self, offset: usize, target: &mut [u8], store: Store) {
        self.check(offset, target.len());
        // SAFETY: the range is inside the mapping.
        let source = unsafe { self.address.add(offset) };
        // SAFETY: both ranges are `target.len()` long, and the segment is no part of any slice.
        unsafe { copy(target.as_mut_ptr(), source, target.len(), store) };
    }

    /// Where this process has it, for a library that registers memory.
    pub(super) fn memory(&self) -> (*mut u8, usize) {
        (self.address, self.length)
    }

    fn check(&self, offset: usize, length: usize) {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} are not inside a segment of {}",
            self.length
        );
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` and is unmapped only here.
        if let Err(code) = unsafe { munmap(self.address.cast(), self.length) } {
            super::warn(&CallError::new("munmap", "a shared segment", code));
        }
    }
}

/// What can be done about a place that is missing or too small.
fn with_remedy(err: CallError) -> CallError {
    use io::ErrorKind as Kind;
    let Cause::System(source) = &err.source else { return err };
    let kinds = [
        Kind::NotFound,
        Kind::PermissionDenied,
        Kind::ReadOnlyFilesystem,
        Kind::StorageFull,
        Kind::Unsupported,
        Kind::IsADirectory,
    ];
    if !kinds.contains(&source.kind()) {
        return err;
    }
    let remedy = "a tmpfs must be mounted on it, writable and large enough (`mount -t tmpfs tmpfs \
                  /dev/shm`; of containers --shm-size)";
    let source = io::Error::new(source.kind(), format!("{source}: {remedy}"));
    CallError { source: source.into(), ..err }
}

/// Copies `length` bytes.
///
/// # Safety
///
/// Both ranges are valid for `length` bytes and do not overlap.
unsafe fn copy(target: *mut u8, source: *const u8, length: usize, store: Store) {
    #[cfg(target_arch = "x86_64")]
    if store == Store::NonTemporal {
        // SAFETY: the caller's promise is the same.
        return unsafe { copy_non_temporal(target, source, length) };
    }
    let _ = store;
    // SAFETY: the caller promises two valid ranges that do not overlap.
    unsafe { ptr::copy_nonoverlapping(source, target, length) };
}

/// Copies with SSE2's streaming stores, which every x86-64 has, a whole line of 64 bytes at a
/// time so that the write-combining buffers leave full; ordered before what follows.
///
/// # Safety
///
/// Those of [`copy`].
#[cfg(target_arch = "x86_64")]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one unrolled store sequence")]
unsafe fn copy_non_temporal(target: *mut u8, source: *const u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let head = target.align_offset(LINE).min(length);
    let lines = (length - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: `head` ≤ `length`, so this is the beginning of both ranges.
    unsafe { ptr::copy_nonoverlapping(source, target, head) };
    for line in 0..lines {
        let at = head + line * LINE;
        // SAFETY: `at + LINE` ≤ `tail` ≤ `length`, and `target + at` is aligned to 64 bytes.
        unsafe {
            let from = source.add(at).cast::<__m128i>();
            let to = target.add(at).cast::<__m128i>();
            let words = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, words[0]);
            _mm_stream_si128(to.add(1), words[1]);
            _mm_stream_si128(to.add(2), words[2]);
            _mm_stream_si128(to.add(3), words[3]);
        }
    }
    // SAFETY: the remaining `length - tail` bytes are the end of both ranges.
    unsafe { ptr::copy_nonoverlapping(source.add(tail), target.add(tail), length - tail) };
    // Streaming stores are weakly ordered; the flag that publishes them must not overtake them.
    // SAFETY: every x86-64 has SSE, and the instruction touches no memory of its own.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_writes_the_other_reads_at_every_alignment_and_length() {
        let near = Segment::create(Bytes::kib(64)).unwrap();
        let far = Segment::open(near.address()).unwrap();
        let source: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        for store in [Store::Cached, Store::NonTemporal] {
            for offset in [0, 1, 63, 64, 65, 4095] {
                for length in [0, 1, 63, 64, 65, 127, 1000, 20_000] {
                    near.write(0, &vec![0xEE; 65_536], Store::Cached);
                    near.write(offset, &source[..length], store);
                    let mut found = vec![0; length + 2];
                    far.read(offset, &mut found, store);
                    assert_eq!(found[..length], source[..length], "{store:?} {offset} {length}");
                    assert_eq!(found[length..], [0xEE; 2], "{store:?} {offset} {length}");
                }
            }
        }
    }

    #[test]
    fn words_are_shared_and_start_at_zero() {
        let near = Segment::create(Bytes::kib(4)).unwrap();
        let far = Segment::open(near.address()).unwrap();
        assert_eq!(far.word(128).load(Ordering::Acquire), 0);
        near.word(128).store(42, Ordering::Release);
        assert_eq!(far.word(128).load(Ordering::Acquire), 42);
    }

    #[test]
    #[should_panic(expected = "are not inside a segment of 4096")]
    fn a_copy_past_the_end_is_refused() {
        Segment::create(Bytes::kib(4)).unwrap().write(4090, &[0; 7], Store::Cached);
    }

    #[test]
    fn an_address_that_claims_too_much_is_refused() {
        let near = Segment::create(Bytes::kib(4)).unwrap();
        let claim = Address { size: Bytes::mib(1), ..near.address() };
        let err = Segment::open(claim).unwrap_err().to_string();
        assert!(err.ends_with("4096 bytes, where 1 MiB must be"), "{err}");
    }

    #[test]
    fn a_segment_larger_than_dev_shm_is_an_error_and_no_signal() {
        let err = Segment::create(Bytes::new(1 << 60)).unwrap_err().to_string();
        assert!(err.contains("posix_fallocate(a segment of 1073741824 GiB on /dev/shm)"), "{err}");
    }
}
