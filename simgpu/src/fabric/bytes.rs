//! Bytes from one process's memory to another's.

use std::{collections::BTreeMap, fs::File, io, ptr, sync::Mutex};

use crate::{
    execute::lock,
    memory::Mapping,
    timing::wire::{End, Held, Memory, Move},
};

/// Between two other processes, this much at a time.
const PART: usize = 1 << 20;

/// Lets every process of this user read and write this one's memory, as far as Yama keeps them from
/// it (prctl(2), PR_SET_PTRACER).
pub(super) fn open_to_all() {
    // SAFETY: the call takes integers only. Where the kernel has no Yama it refuses, and nothing
    // is closed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Moves bytes; the one in the middle is inverted if it is to arrive wrong.
///
/// # Errors
///
/// The memory or its process is gone, or the kernel does not let this process reach it.
pub(super) fn carry(order: Move) -> io::Result<()> {
    copy(order)?;
    if order.is_corrupt && order.bytes > 0 {
        let at = order.to.memory.address + order.bytes / 2;
        let mut byte = [0_u8];
        let place = byte.as_mut_ptr();
        let own = place.expose_provenance() as u64;
        whole(1, |_| vector(order.to.pid, at, own, 1, false))?;
        // SAFETY: it is a live local.
        unsafe { place.write(!place.read()) };
        whole(1, |_| vector(order.to.pid, at, own, 1, true))?;
    }
    Ok(())
}

/// Moves bytes.
///
/// # Errors
///
/// The memory or its process is gone, or the kernel does not let this process reach it.
fn copy(order: Move) -> io::Result<()> {
    let own = std::process::id();
    let ends = [order.from, order.to];
    let ([from, to], [source, target]) =
        (ends.map(|end| end.pid), ends.map(|end| end.memory.address));
    if order.bytes == 0 {
        return Ok(());
    }
    if let [Some(source), Some(target)] = ends.map(here) {
        // SAFETY: both are in files that are mapped for good, with all of their regions.
        unsafe { ptr::copy(source, target, order.bytes as usize) };
        return Ok(());
    }
    if from == own && to != own {
        return whole(order.bytes, |done| {
            vector(to, target + done, source + done, order.bytes - done, true)
        });
    }
    if to == own {
        return whole(order.bytes, |done| {
            vector(from, source + done, target + done, order.bytes - done, false)
        });
    }
    let mut buffer = vec![0_u8; PART.min(order.bytes as usize)];
    let mut done = 0;
    while done < order.bytes {
        let part = (order.bytes - done).min(PART as u64);
        let place = buffer.as_mut_ptr().expose_provenance() as u64;
        whole(part, |at| vector(from, source + done + at, place + at, part - at, false))?;
        whole(part, |at| vector(to, target + done + at, place + at, part - at, true))?;
        done += part;
    }
    Ok(())
}

/// Where memory of a GPU is seen in this process; `None`: it is other memory, or cannot be seen.
fn here(end: End) -> Option<*mut u8> {
    /// Files of other processes, by process and descriptor.
    static SEEN: Mutex<BTreeMap<(u32, i32), Option<Mapping>>> = Mutex::new(BTreeMap::new());
    let End { pid, memory } = end;
    if memory.descriptor == 0 {
        return None;
    }
    if pid == std::process::id() {
        return Some(ptr::with_exposed_provenance_mut(memory.address as usize));
    }
    let mut seen = lock(&SEEN);
    let mapping = seen.entry((pid, memory.descriptor)).or_insert_with(|| {
        let path = format!("/proc/{pid}/fd/{}", memory.descriptor);
        let file = File::options().read(true).write(true).open(path).ok()?;
        let length = file.metadata().ok()?.len();
        Mapping::of_file(&file, 0, length).ok()
    });
    let start = mapping.as_ref()?.start + (memory.address - memory.beginning);
    Some(ptr::with_exposed_provenance_mut(start as usize))
}

/// Carries bytes to memory of a GPU that does not order what devices write: the last byte is held
/// back, and the GPU sees what was there before. `held` has none yet.
pub(super) fn carry_but_one(order: Move, held: &mut Held) -> io::Result<()> {
    let memory = order.to.memory;
    let last = Memory { address: memory.address + order.bytes - 1, ..memory };
    let end = End { memory: last, ..order.to };
    let Some(place) = here(end) else { return carry(order) };
    // SAFETY: it is in a file that is mapped for good.
    let before = unsafe { place.read_volatile() };
    carry(order)?;
    // SAFETY: as above.
    let after = unsafe { place.read_volatile() };
    // SAFETY: as above.
    unsafe { place.write_volatile(before) };
    *held = Held { is_there: true, before, after, end };
    Ok(())
}

/// Lets a GPU see the byte that was held back, unless something else was written there since.
pub(super) fn release(held: &mut Held) {
    if !std::mem::take(&mut held.is_there) {
        return;
    }
    let Some(place) = here(held.end) else { return };
    // SAFETY: it is in a file that is mapped for good.
    if unsafe { place.read_volatile() } == held.before {
        // SAFETY: as above.
        unsafe { place.write_volatile(held.after) };
    }
}

/// Repeats `move_on`, which is told how much is done and answers how much more is, to the end.
fn whole(bytes: u64, move_on: impl Fn(u64) -> io::Result<u64>) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match move_on(done)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => done += more,
        }
    }
    Ok(())
}

/// Moves bytes between this process's memory at `near` and that of `pid` at `far`.
fn vector(pid: u32, far: u64, near: u64, bytes: u64, writes: bool) -> io::Result<u64> {
    let part = |address: u64| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes as usize,
    };
    let (near, far) = (part(near), part(far));
    let pid = pid.cast_signed();
    // SAFETY: the vectors are live locals. What they name is registered memory, which its owner
    // keeps until its endpoint is closed, or the kernel refuses.
    let moved = unsafe {
        match writes {
            true => libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0),
            false => libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0),
        }
    };
    u64::try_from(moved).map_err(|_| io::Error::last_os_error())
}
