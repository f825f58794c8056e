//! Allocating device and host memory, and what is known of an address.

use std::{ffi::c_void, sync::atomic::Ordering};

use super::{
    Code, Local, Out, driver,
    queue::{idle, synchronize_all},
};
use crate::{
    memory::{
        Kind, Mapping, PAGE, Region, Removed, content::Content, contents::range, host_lacks,
        taken_bytes, warn_of_lack,
    },
    state::World,
    timing::{cost::Place, words::Key},
};

/// How much of new memory is filled with [`JUNK`]; all of it would cost too much time where bytes
/// are stored.
const JUNK_BYTES: u64 = 64 << 10;
/// What new memory holds, so that nobody counts on zeroes.
const JUNK: u32 = 0xA5;

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |world| {
        let gpu = world.local().current(world)?;
        let all = world.machine.gpus[gpu as usize].memory_bytes;
        free.set_if_wanted(all.saturating_sub(world.shared.memory_used(gpu)) as usize);
        total.set_if_wanted(all as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |world| {
        let mut local = world.local();
        let gpu = local.current(world)?;
        if bytes == 0 || address.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        take(world, gpu, taken_bytes(bytes as u64), !world.machine.symbolic_memory)?;
        match local.memory.allocate(gpu, bytes as u64) {
            Some(start) => {
                let mut contents = world.executor.contents();
                contents.repeats.written(start, bytes as u64);
                let junk = range(start, taken_bytes(bytes as u64).min(JUNK_BYTES));
                contents.put(junk, &Content::set(JUNK, 1));
                drop(contents);
                address.set(start)
            }
            None => {
                give_back(world, gpu, taken_bytes(bytes as u64));
                Err(Code::OUT_OF_MEMORY)
            }
        }
    }

    fn cuMemFree_v2(address: u64) |world| {
        free(world, address, |region| matches!(region.kind, Kind::Allocated { .. }))
    }

    fn cuMemHostAlloc(address: Out<*mut c_void>, bytes: usize, flags: u32) |world| {
        host_alloc(world, &address, bytes, flags)
    }

    fn cuMemAllocHost_v2(address: Out<*mut c_void>, bytes: usize) |world| {
        host_alloc(world, &address, bytes, 0)
    }

    fn cuMemFreeHost(address: u64) |world| {
        free(world, address, |region| matches!(region.kind, Kind::Pinned { .. }))
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, flags: u32) |world| {
        let local = world.local();
        local.current(world)?;
        let host = local.memory.find(address, 1).filter(|region| region.place == Place::Host);
        if flags != 0 || host.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        device.set(address)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) |world| {
        let local = world.local();
        local.current(world)?;
        let region = local.memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        if region.place != Place::Host {
            return Err(Code::INVALID_VALUE);
        }
        // Portable and mapped, which all host memory is with one address space.
        flags.set(3)
    }

    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) |world| {
        let mut local = world.local();
        let gpu = local.current(world)?;
        let bytes = bytes as u64;
        if address == 0 || bytes == 0 || flags > 0xF || address.checked_add(bytes).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if local.memory.overlaps(address, bytes) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let key = mapped_key(address, bytes).ok_or(Code::INVALID_VALUE)?;
        pin(world, bytes);
        let (kind, place) = (Kind::Registered, Place::Host);
        local.memory.add(Region { start: address, bytes, kind, gpu, place, key });
        Ok(())
    }

    fn cuMemHostUnregister(address: u64) |world| {
        let code = Code::HOST_MEMORY_NOT_REGISTERED;
        let registered = |region: &Region| matches!(region.kind, Kind::Registered);
        free(world, address, registered).map_err(|err| {
            if err == Code::INVALID_VALUE { code } else { err }
        })
    }

    fn cuPointerGetAttribute(value: Out<u64>, attribute: i32, address: u64) |world| {
        let local = world.local();
        local.initialised()?;
        let region = local.memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        // The wanted value's size depends on the attribute.
        let narrow = Out(value.pointer().cast::<u32>());
        match attribute {
            1 => value.set(local.context_handle(region.gpu)),
            // CU_MEMORYTYPE_HOST or …_DEVICE
            2 => narrow.set(if region.place == Place::Host { 1 } else { 2 }),
            3 => value.set(address),
            4 if region.place == Place::Host => value.set(address),
            8 => Out(value.pointer().cast::<u8>()).set(0),
            9 => match region.place {
                Place::Gpu(gpu) => narrow.set(gpu),
                Place::Host => narrow.set(region.gpu),
            },
            10 => {
                let whole = matches!(region.kind, Kind::Allocated { .. });
                Out(value.pointer().cast::<u8>()).set(u8::from(whole))
            }
            11 => value.set(region.start),
            12 => value.set(region.bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) |world| {
        let local = world.local();
        local.current(world)?;
        let region = local.memory.find(address, 1).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(region.start);
        bytes.set_if_wanted(region.bytes as usize);
        Ok(())
    }
}

fn host_alloc(
    world: &World,
    address: &Out<*mut c_void>,
    bytes: usize,
    flags: u32,
) -> Result<(), Code> {
    let gpu = world.local().current(world)?;
    if bytes == 0 || address.pointer().is_null() || flags > 7 {
        return Err(Code::INVALID_VALUE);
    }
    let whole = (bytes as u64).checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let mapping = Mapping::private(whole).map_err(|_| Code::OUT_OF_MEMORY)?;
    let start = mapping.start;
    let mut local = world.local();
    local.current(world)?;
    local.memory.add(Region {
        start,
        bytes: bytes as u64,
        kind: Kind::Pinned { _mapping: mapping },
        gpu,
        place: Place::Host,
        key: private_key(start),
    });
    pin(world, bytes as u64);
    address.set(start as *mut c_void)
}

/// The host's time for pinning memory.
fn pin(world: &World, bytes: u64) {
    let gib = bytes as f64 / f64::from(1 << 30);
    world.take_ms(gib * world.machine.driver.pin_ms_per_gib as f64);
}

/// Lets go of the region that begins at `address`, if it is of the right kind, once nothing is
/// queued any more that may use it. As with the real driver, null is no mistake.
pub(crate) fn free(world: &World, address: u64, is: impl Fn(&Region) -> bool) -> Result<(), Code> {
    let gpu = world.local().current(world)?;
    if address == 0 {
        return Ok(());
    }
    let mut local = world.local();
    let found = local.memory.at(address).filter(|region| is(region));
    let region = found.ok_or(Code::INVALID_VALUE)?;
    // As with the real driver, freeing device memory waits for its own GPU; what is unmapped must
    // not be in use at all.
    let own = matches!(region.kind, Kind::Allocated { .. }).then_some(region.gpu);
    drop(local);
    let mut local = match own {
        Some(_) => {
            synchronize_all(world, own);
            world.local()
        }
        None => idle(world),
    };
    // Another thread may have been faster.
    if local.memory.at(address).is_none() {
        return Err(Code::INVALID_VALUE);
    }
    let_go(world, &mut local, address);
    match world.executor.error(gpu) {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// Takes a region out, and back what it took. Nothing that is queued uses it.
pub(crate) fn let_go(world: &World, local: &mut Local, start: u64) {
    let Some(Removed { region, cleared }) = local.memory.remove(start) else { return };
    let mut contents = world.executor.contents();
    contents.repeats.freed(region.start, region.bytes);
    cleared.iter().for_each(|range| contents.cleared(range));
    drop(contents);
    if let Kind::Allocated { export } = region.kind {
        give_back(world, region.gpu, taken_bytes(region.bytes));
        if let Some((at, _)) = export {
            world.plane().exports[at].nonce = 0;
        }
    }
}

/// Counts device memory of this process; refuses what the GPU has not, and of memory that is stored
/// what the host has not.
pub(crate) fn take(world: &World, gpu: u32, bytes: u64, is_stored: bool) -> Result<(), Code> {
    let total = world.machine.gpus[gpu as usize].memory_bytes;
    let mut plane = world.plane();
    let fits = || {
        let used = world.shared.memory_used(gpu);
        used.checked_add(bytes).is_some_and(|sum| sum <= total)
    };
    if !fits() {
        plane.bury_the_dead();
        if !fits() {
            return Err(Code::OUT_OF_MEMORY);
        }
    }
    let gpus = 0..world.machine.gpus.len() as u32;
    let used: u64 = gpus.map(|gpu| world.shared.memory_used(gpu)).sum();
    if is_stored && host_lacks(bytes, used) {
        // Without this the host would kill some process when the memory is used.
        warn_of_lack(bytes, &format!("on simulated GPU {gpu}"));
        return Err(Code::OUT_OF_MEMORY);
    }
    world.shared.memory(world.place, gpu).fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

/// Counts device memory of this process as free again.
pub(crate) fn give_back(world: &World, gpu: u32, bytes: u64) {
    world.shared.memory(world.place, gpu).fetch_sub(bytes, Ordering::Relaxed);
}

/// The word at an address that only this process has.
fn private_key(address: u64) -> Key {
    Key { device: 0, inode: u64::from(std::process::id()), offset: address, bits: 0 }
}

/// The word at `address`: of a file, if that is mapped there so that others see it. `None`: not
/// all of the range is there.
fn mapped_key(address: u64, bytes: u64) -> Option<Key> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut end = address;
    let mut key = None;
    for line in maps.lines() {
        let Some(mapped) = mapped(line) else { continue };
        if mapped.start <= end && end < mapped.end {
            if key.is_none() {
                key = Some(mapped.key(address));
            }
            end = mapped.end;
        }
        if end >= address + bytes {
            return key;
        }
    }
    None
}

/// A line of `/proc/self/maps`; proc(5).
struct Mapped {
    start: u64,
    end: u64,
    shared: bool,
    offset: u64,
    device: u64,
    inode: u64,
}

fn mapped(line: &str) -> Option<Mapped> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
    let inode = fields.next()?.parse().ok()?;
    Some(Mapped { start: hex(start)?, end: hex(end)?, shared, offset, device, inode })
}

impl Mapped {
    fn key(&self, address: u64) -> Key {
        if self.shared && self.inode != 0 {
            let offset = self.offset + (address - self.start);
            Key { device: self.device, inode: self.inode, offset, bits: 0 }
        } else {
            private_key(address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shared_file_is_known_by_the_file() {
        let line = "7f0000002000-7f0000004000 rw-s 00001000 00:1a 77   /dev/shm/#77 (deleted)";
        let key = mapped(line).unwrap().key(0x7f00_0000_2010);
        assert_eq!((key.device, key.inode, key.offset), (libc::makedev(0, 0x1a), 77, 0x1010));
        let line = "7f0000002000-7f0000004000 rw-p 00000000 00:00 0";
        let key = mapped(line).unwrap().key(0x7f00_0000_2010);
        assert_eq!(key, private_key(0x7f00_0000_2010));
    }

    #[test]
    fn memory_that_is_not_there_has_no_word() {
        let there = [0_u8; 64];
        assert!(mapped_key(there.as_ptr() as u64, 64).is_some());
        assert!(mapped_key(4096, 64).is_none());
        assert!(mapped_key(there.as_ptr() as u64, 1 << 50).is_none());
    }
}
