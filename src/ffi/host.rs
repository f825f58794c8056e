//! Host memory and the CPUs that touch it.
//!
//! Memory is placed by first touch: bind the thread to the CPUs of a NUMA node, then allocate.
//! That needs no privilege; `mbind` is refused in many containers.

use std::{
    ffi::{CStr, c_void},
    io,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr,
};

use rustix::{
    fs::{StatVfs, statvfs},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
    process::{Resource, getrlimit},
};

use super::{CallError, simulation};
use crate::units::Bytes;

/// Zeroed memory of this process, page-aligned, in place before the call returns; unmapped on
/// drop.
#[derive(Debug)]
pub struct HostBuffer {
    address: *mut c_void,
    mapped: usize,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and has no tie to the thread that made it.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Maps `size` bytes and touches every page from the calling thread.
    ///
    /// # Errors
    ///
    /// `mmap`'s refusal, most often for want of memory.
    pub fn new(size: Bytes) -> Result<Self, CallError> {
        let object = || format!("{size} of host memory");
        let length = size.to_len().map_err(|err| {
            CallError::new("mmap", object(), io::Error::new(io::ErrorKind::OutOfMemory, err))
        })?;
        let mapped = length.max(1);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }
            .map_err(|code| CallError::new("mmap", object(), code))?;
        // A refusal leaves pages of the usual size, which is no error: the setting is the
        // machine's, and provenance records it.
        // SAFETY: the range is the mapping made above.
        let _ = unsafe { madvise(address, mapped, Advice::LinuxHugepage) };
        let mut buffer = Self { address, mapped, length };
        buffer.fill(0);
        Ok(buffer)
    }

    /// Where it is, for a library that registers memory.
    pub(super) fn memory(&self) -> (*mut u8, usize) {
        (self.address.cast(), self.length)
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `length` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.cast::<u8>(), self.length) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast::<u8>(), self.length) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and is unmapped only here.
        if let Err(code) = unsafe { munmap(self.address, self.mapped) } {
            super::warn(&CallError::new("munmap", "a host buffer", code));
        }
    }
}

/// The NUMA node of the page at `place` of memory of this process. `None` where the kernel does
/// not say: it has no NUMA, the page is not in place, or a container forbids the question.
pub fn numa_node(memory: &[u8], place: usize) -> Option<u32> {
    numa_node_at(std::ptr::from_ref(memory.get(place)?))
}

/// The NUMA node of the page that holds `address`; the address is asked about, not read.
pub(super) fn numa_node_at(address: *const u8) -> Option<u32> {
    if simulation::hides(address) {
        return None;
    }
    let page = address.cast::<libc::c_void>().cast_mut();
    // The call takes the beginnings of pages.
    let page = page.map_addr(|address| address & !(PAGE - 1));
    let mut node: libc::c_int = -1;
    // SAFETY: with no list of nodes the call moves nothing: it reads one address, and writes one
    // live local.
    let code = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1,
            &raw const page,
            std::ptr::null::<libc::c_int>(),
            &raw mut node,
            0,
        )
    };
    if code == 0 { u32::try_from(node).ok() } else { None }
}

/// The smallest page of any Linux that g2g runs on; larger pages begin at multiples of it.
const PAGE: usize = 4096;

/// The CPUs on which the calling thread may run, in ascending order.
pub fn allowed_cpus() -> Result<Vec<u32>, CallError> {
    let mut set: CpuSet = [0; CPU_WORDS];
    // SAFETY: `set` is a live local of the size given, and the call only writes it.
    let code = unsafe {
        libc::sched_getaffinity(0, size_of::<CpuSet>(), (&raw mut set).cast::<libc::cpu_set_t>())
    };
    if code != 0 {
        return Err(CallError::last("sched_getaffinity", "this thread"));
    }
    let is_set = |cpu: &u32| set[(cpu / WORD_BITS) as usize] >> (cpu % WORD_BITS) & 1 == 1;
    Ok((0..CPUS).filter(is_set).collect())
}

/// A set of CPUs as the kernel takes it, of any length: the C library's own type ends at 1024.
type CpuSet = [libc::c_ulong; CPU_WORDS];

/// The most CPUs that Linux can be built for on any architecture.
const CPUS: u32 = 8192;

const WORD_BITS: u32 = libc::c_ulong::BITS;

const CPU_WORDS: usize = (CPUS / WORD_BITS) as usize;

/// While this lives, the thread that made it runs on chosen CPUs; afterwards on those that it had
/// before. Libraries start threads, which inherit the CPUs of the thread that calls them.
#[derive(Debug)]
#[must_use = "the thread gets its CPUs back when this is dropped"]
pub struct BoundThread {
    before: Vec<u32>,
    /// It stays in its thread.
    _thread: PhantomData<*const ()>,
}

/// Lets the calling thread run on `cpus` only.
///
/// # Errors
///
/// The kernel's refusal: none of `cpus` exists or is allowed here.
pub fn bind_thread(cpus: &[u32]) -> Result<BoundThread, CallError> {
    let before = allowed_cpus()?;
    set_cpus(cpus)?;
    Ok(BoundThread { before, _thread: PhantomData })
}

impl Drop for BoundThread {
    fn drop(&mut self) {
        if let Err(err) = set_cpus(&self.before) {
            super::warn(&err);
        }
    }
}

fn set_cpus(cpus: &[u32]) -> Result<(), CallError> {
    let mut set: CpuSet = [0; CPU_WORDS];
    for cpu in cpus {
        if let Some(word) = set.get_mut((cpu / WORD_BITS) as usize) {
            *word |= 1 << (cpu % WORD_BITS);
        }
    }
    // SAFETY: `set` is a live local of the size given, and the call only reads it.
    let code = unsafe {
        libc::sched_setaffinity(0, size_of::<CpuSet>(), (&raw const set).cast::<libc::cpu_set_t>())
    };
    if code != 0 {
        return Err(CallError::last("sched_setaffinity", format!("CPUs {cpus:?}")));
    }
    Ok(())
}

/// How much memory this process may lock, as interfaces do with what they reach; `None`: any.
pub fn lockable() -> Option<Bytes> {
    getrlimit(Resource::Memlock).current.map(Bytes::new)
}

/// Bytes free on the file system that holds `path`; the largest number for a tmpfs without a limit.
///
/// # Errors
///
/// `statvfs`'s refusal, most often because the path does not exist.
pub fn free_space(path: &CStr) -> Result<Bytes, CallError> {
    let answer = space(path)?;
    if answer.f_blocks == 0 {
        return Ok(Bytes::new(u64::MAX));
    }
    Ok(Bytes::new(answer.f_bavail).times(answer.f_frsize))
}

/// Bytes in use on the file system that holds `path`; `None` for a tmpfs without a limit, which
/// does not report them.
pub fn used_space(path: &CStr) -> Result<Option<Bytes>, CallError> {
    let answer = space(path)?;
    let used = answer.f_blocks.saturating_sub(answer.f_bfree);
    Ok((answer.f_blocks > 0).then(|| Bytes::new(used).times(answer.f_frsize)))
}

fn space(path: &CStr) -> Result<StatVfs, CallError> {
    statvfs(path).map_err(|code| CallError::new("statvfs", path.to_string_lossy(), code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_writable_to_its_last_byte() {
        for size in [0, 1, 4096, 100_001] {
            let mut buffer = HostBuffer::new(Bytes::new(size)).unwrap();
            assert_eq!(buffer.len() as u64, size);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn an_impossible_buffer_is_an_error_that_names_call_and_size() {
        let err = HostBuffer::new(Bytes::new(1 << 62)).unwrap_err().to_string();
        assert!(err.starts_with("mmap(4294967296 GiB of host memory) failed: "), "{err}");
    }

    #[test]
    fn the_node_of_a_page_is_one_of_this_machine() {
        let buffer = HostBuffer::new(Bytes::kib(64)).unwrap();
        for place in [0, 5000, 65_535] {
            // A kernel or a container that does not answer is allowed to.
            if let Some(node) = numa_node(&buffer, place) {
                let folder = format!("/sys/devices/system/node/node{node}");
                assert!(std::path::Path::new(&folder).exists(), "{folder}");
            }
        }
        assert_eq!(numa_node(&buffer, 65_536), None);
    }

    #[test]
    fn a_bound_thread_gets_its_cpus_back() {
        let all = allowed_cpus().unwrap();
        let last = *all.last().unwrap();
        let bound = bind_thread(&[last]).unwrap();
        assert_eq!(allowed_cpus().unwrap(), [last]);
        assert!(bind_thread(&[]).is_err());
        drop(bound);
        assert_eq!(allowed_cpus().unwrap(), all);
    }
}
