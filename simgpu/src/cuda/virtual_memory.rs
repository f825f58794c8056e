//! Memory and addresses apart: `cuMemCreate` and what goes with it.

use std::{
    ffi::CString,
    fs::File,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
};

use super::{
    Code, In, Local, Out, driver,
    ipc::{Handle, export_new},
    local::Physical,
    memory::{give_back, take},
    multicast,
    queue::idle,
    reach::can_enable,
};
use crate::{
    machine::Machine,
    memory::{Kind, Mapping, Region, Removed, file_key},
    state::World,
    timing::{WRITE_COUNTERS, cost::Place, memory_file, words::Key},
};

/// What such memory comes in multiples of.
pub(super) const GRANULARITY: u64 = 2 << 20;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
pub(super) const POSIX_FILE_DESCRIPTOR: u32 = 1;
/// CU_MEM_HANDLE_TYPE_FABRIC
pub(super) const FABRIC: u32 = 8;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE
const READ_WRITE: u32 = 3;

/// CUmemLocation
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Location {
    kind: u32,
    id: i32,
}

/// CUmemAllocationProp
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: *mut std::ffi::c_void,
    flags: [u8; 8],
}

/// CUmemAccessDesc
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: u32,
}

driver! {
    fn cuMemGetAllocationGranularity(
        bytes: Out<usize>,
        properties: In<Properties>,
        option: u32,
    ) |world| {
        check(world, properties.get(0)?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        bytes.set(GRANULARITY as usize)
    }

    fn cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) |world| {
        let properties = properties.get(0)?;
        let gpu = check(world, properties)?;
        let bytes = bytes as u64;
        let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
        if flags != 0 || !whole || handle.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        take(world, gpu, bytes, true)?;
        let Ok(file) = create(world, gpu, bytes) else {
            give_back(world, gpu, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        let Properties { handle_types, .. } = properties;
        handle.set(world.local().physical.add(Physical::new(file, gpu, bytes, handle_types)))
    }

    fn cuMemRelease(handle: u64) |world| {
        let mut local = world.local();
        local.initialised()?;
        if local.teams.get(handle).is_some() {
            return multicast::release(world, &mut local, handle);
        }
        let physical = local.physical.get_mut(handle).filter(|own| !own.released);
        physical.ok_or(Code::INVALID_VALUE)?.released = true;
        let_go_if_unused(world, &mut local, handle);
        Ok(())
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) |world| {
        let local = world.local();
        let physical = local.physical.get(handle).ok_or(Code::INVALID_VALUE)?;
        let Physical { gpu, handle_types, .. } = *physical;
        let location = Location { kind: 1, id: gpu as i32 };
        let windows = std::ptr::null_mut();
        properties.set(Properties { kind: 1, handle_types, location, windows, flags: [0; 8] })
    }

    fn cuMemAddressReserve(
        address: Out<u64>,
        bytes: usize,
        alignment: usize,
        _wanted: u64,
        flags: u64,
    ) |world| {
        let mut local = world.local();
        local.initialised()?;
        let bytes = bytes as u64;
        let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if flags != 0 || !whole || !aligned || address.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let alignment = (alignment as u64).max(GRANULARITY);
        let range = Mapping::reserve_aligned(bytes, alignment).map_err(|_| Code::OUT_OF_MEMORY)?;
        address.set(range.start)?;
        local.memory.reservations.push(range);
        Ok(())
    }

    fn cuMemAddressFree(address: u64, bytes: usize) |world| {
        let mut local = world.local();
        let bytes = bytes as u64;
        let is = |range: &Mapping| range.start == address && range.bytes == bytes;
        let found = local.memory.reservations.iter().position(is).ok_or(Code::INVALID_VALUE)?;
        if local.memory.overlaps(address, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        local.memory.reservations.swap_remove(found);
        Ok(())
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |world| {
        if multicast::is_one(world, handle) {
            let is_whole = offset == 0 && flags == 0;
            return match is_whole {
                true => multicast::map(world, (address, bytes as u64), handle),
                false => Err(Code::INVALID_VALUE),
            };
        }
        let key = map(&mut world.local(), (address, bytes as u64), offset, handle, flags)?;
        // The same memory can be mapped twice, here and in other processes.
        let counter = key.counter(WRITE_COUNTERS);
        world.executor.contents().repeats.share(address, bytes as u64, counter);
        Ok(())
    }

    fn cuMemUnmap(address: u64, bytes: usize) |world| {
        let end = address.checked_add(bytes as u64).ok_or(Code::INVALID_VALUE)?;
        let mut local = idle(world);
        if multicast::unmap(world, &mut local, (address, bytes as u64)) {
            return Ok(());
        }
        let whole = whole_regions(&local, address, end)?;
        for (start, handle) in whole {
            let Some(Removed { region, .. }) = local.memory.remove(start) else { continue };
            let ranges = &local.memory.reservations;
            if let Some(range) = ranges.iter().find(|range| range.contains(start)) {
                range.fill(start, region.bytes, None).map_err(|_| Code::UNMAP_FAILED)?;
            }
            world.executor.contents().repeats.freed(start, region.bytes);
            if let Some(physical) = local.physical.get_mut(handle) {
                physical.mapped -= 1;
            }
            let_go_if_unused(world, &mut local, handle);
        }
        Ok(())
    }

    fn cuMemSetAccess(address: u64, bytes: usize, access: In<Access>, count: usize) |world| {
        let end = address.checked_add(bytes as u64).ok_or(Code::INVALID_VALUE)?;
        let mut local = world.local();
        if let Some(found) = local.memory.teams.iter().position(|team| team.start == address) {
            for at in 0..count {
                let Access { location, flags } = access.get(at)?;
                let gpu = local.gpu(location.id)?;
                let team = &mut local.memory.teams[found];
                if location.kind != 1 || flags != READ_WRITE || bytes as u64 != team.bytes {
                    return Err(Code::INVALID_VALUE);
                }
                team.access |= 1 << gpu;
            }
            return Ok(());
        }
        let whole = whole_regions(&local, address, end)?;
        for at in 0..count {
            let Access { location, flags } = access.get(at)?;
            if location.kind != 1 {
                return Err(Code::INVALID_VALUE);
            }
            let gpu = local.gpu(location.id)?;
            for (start, _) in &whole {
                set_access(world, &mut local, *start, gpu, flags)?;
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) |world| {
        let local = world.local();
        let gpu = local.gpu(location.get(0)?.id)?;
        let region = local.memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped { access, .. } = region.kind else { return Err(Code::INVALID_VALUE) };
        flags.set(if access >> gpu & 1 == 1 { u64::from(READ_WRITE) } else { 0 })
    }

    fn cuMemExportToShareableHandle(
        shareable: Out<i32>,
        handle: u64,
        kind: u32,
        flags: u64,
    ) |world| {
        let mut local = world.local();
        if local.teams.get(handle).is_some() && flags == 0 {
            return multicast::export(world, &local, (&shareable, handle, kind));
        }
        let physical = local.physical.get_mut(handle).ok_or(Code::INVALID_VALUE)?;
        let is_one = kind == POSIX_FILE_DESCRIPTOR || kind == FABRIC;
        if !is_one || flags != 0 || physical.handle_types & kind == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if kind == FABRIC {
            let export = match physical.export {
                Some(export) => export,
                None => export_new(world, physical.gpu, physical.file(), physical.bytes)?,
            };
            physical.export = Some(export);
            return Out(shareable.pointer().cast()).set(Handle::of_fabric(export));
        }
        let descriptor = physical.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?;
        shareable.set(descriptor.into_raw_fd())
    }

    // These GPUs give no dma-buf, as those of a driver without the kernel's support.
    fn cuMemGetHandleForAddressRange(
        handle: Out<i32>,
        address: u64,
        bytes: usize,
        kind: u32,
        flags: u64,
    ) |world| {
        const DMA_BUF: u32 = 1;
        /// Of the host.
        const PAGE: u64 = 4096;
        let local = world.local();
        local.initialised()?;
        let is_whole = (address | bytes as u64).is_multiple_of(PAGE) && bytes > 0;
        let is_known = local.memory.find(address, bytes as u64).is_some();
        if handle.pointer().is_null() || kind != DMA_BUF || flags != 0 || !is_whole || !is_known {
            return Err(Code::INVALID_VALUE);
        }
        Err(Code::NOT_SUPPORTED)
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, shareable: usize, kind: u32) |world| {
        let mut local = world.local();
        local.initialised()?;
        if handle.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if kind == FABRIC {
            has_channel(world)?;
            let given = In(shareable as *const Handle).get(0)?;
            if let Some(team) = given.team() {
                let found = multicast::import(world, &mut local, team);
                return handle.set(found.ok_or(Code::INVALID_VALUE)?);
            }
            let imported = import_from_fabric(world, given)?;
            return handle.set(local.physical.add(imported));
        }
        if kind != POSIX_FILE_DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        // The descriptor itself is passed where a pointer is declared.
        let descriptor = i32::try_from(shareable).map_err(|_| Code::INVALID_VALUE)?;
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
        let link = link.map_err(|_| Code::INVALID_VALUE)?;
        let link = link.to_str().ok_or(Code::INVALID_VALUE)?;
        if let Some(team) = multicast::named(world, link) {
            let found = multicast::import(world, &mut local, team);
            return handle.set(found.ok_or(Code::INVALID_VALUE)?);
        }
        let imported = import(world, descriptor, link).ok_or(Code::INVALID_VALUE)?;
        handle.set(local.physical.add(imported))
    }
}

/// Refuses memory of other kinds than a GPU's; the GPU.
fn check(world: &World, properties: Properties) -> Result<u32, Code> {
    let gpu = world.local().gpu(properties.location.id)?;
    let pinned = properties.kind == 1 && properties.location.kind == 1;
    if properties.handle_types & !(POSIX_FILE_DESCRIPTOR | FABRIC) != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if properties.handle_types & FABRIC != 0 {
        if !gives_fabric_handles(&world.machine, gpu) {
            return Err(Code::NOT_SUPPORTED);
        }
        has_channel(world)?;
    }
    if pinned { Ok(gpu) } else { Err(Code::INVALID_VALUE) }
}

/// Whether memory of a GPU can be shared with other hosts: it is in an NVLink domain, and the driver
/// is of CUDA 12.3 or newer, whose cuda.h has such handles first.
pub(crate) fn gives_fabric_handles(machine: &Machine, gpu: u32) -> bool {
    let health = &machine.gpus[gpu as usize].health;
    machine.driver_version >= 12_030 && health.cluster_uuid != [0; 16]
}

/// Refuses where there is no IMEX channel.
pub(super) fn has_channel(world: &World) -> Result<(), Code> {
    if world.own.host.imex { Ok(()) } else { Err(Code::NOT_PERMITTED) }
}

/// Memory of a process of the same NVLink domain, be it on another host.
fn import_from_fabric(world: &World, handle: Handle) -> Result<Physical, Code> {
    let export = handle.in_fabric(world).ok_or(Code::INVALID_VALUE)?;
    let handle_types = POSIX_FILE_DESCRIPTOR | FABRIC;
    let imported = Physical::new(export.file()?, export.gpu, export.bytes, handle_types);
    Ok(Physical { own: false, ..imported })
}

/// What files with such memory are called, so that an importer knows whose it is.
fn name(world: &World, gpu: u32) -> String {
    let machine = file_key(&world.state.file, 0).inode;
    format!("g2g machine {machine} GPU {gpu}")
}

fn create(world: &World, gpu: u32, bytes: u64) -> std::io::Result<File> {
    let name = CString::new(name(world, gpu)).map_err(std::io::Error::other)?;
    let file = File::from(memory_file(&name)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// The memory behind a descriptor with this link, if it is of this machine.
fn import(world: &World, descriptor: i32, link: &str) -> Option<Physical> {
    let gpus = 0..world.machine.gpus.len() as u32;
    let names = |gpu: &u32| link == format!("/memfd:{} (deleted)", name(world, *gpu));
    let gpu = gpus.into_iter().find(names)?;
    // SAFETY: the link has just shown that the descriptor is open, and the program lends it for
    // the time of the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = File::from(borrowed.try_clone_to_owned().ok()?);
    let bytes = file.metadata().ok()?.len();
    debug_assert!(file.as_raw_fd() != descriptor);
    Some(Physical { own: false, ..Physical::new(file, gpu, bytes, POSIX_FILE_DESCRIPTOR) })
}

fn map(
    local: &mut Local,
    (address, bytes): (u64, u64),
    offset: usize,
    handle: u64,
    flags: u64,
) -> Result<Key, Code> {
    local.initialised()?;
    let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
    if flags != 0 || offset != 0 || !whole || !address.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    if local.memory.overlaps(address, bytes) {
        return Err(Code::ALREADY_MAPPED);
    }
    let physical = local.physical.get_mut(handle).filter(|own| !own.released);
    let physical = physical.ok_or(Code::INVALID_VALUE)?;
    let inside =
        |range: &&Mapping| range.contains(address) && bytes <= range.start + range.bytes - address;
    let range = local.memory.reservations.iter().find(inside).ok_or(Code::INVALID_VALUE)?;
    if bytes > physical.bytes {
        return Err(Code::INVALID_VALUE);
    }
    range.fill(address, bytes, Some(&physical.file)).map_err(|_| Code::MAP_FAILED)?;
    physical.mapped += 1;
    let (gpu, place) = (physical.gpu, Place::Gpu(physical.gpu));
    let key = file_key(&physical.file, 0);
    let kind = Kind::Mapped { handle, access: 0 };
    local.memory.add(Region { start: address, bytes, kind, gpu, place, key });
    Ok(key)
}

/// The mappings that make up a range wholly: where they begin, and their handles.
fn whole_regions(local: &Local, start: u64, end: u64) -> Result<Vec<(u64, u64)>, Code> {
    local.initialised()?;
    let mut at = start;
    let mut found = Vec::new();
    while at < end {
        let region = local.memory.find(at, 1).filter(|region| region.start == at);
        let region = region.filter(|region| region.end() <= end).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped { handle, .. } = region.kind else { return Err(Code::INVALID_VALUE) };
        found.push((at, handle));
        at = region.end();
    }
    if found.is_empty() { Err(Code::INVALID_VALUE) } else { Ok(found) }
}

fn set_access(
    world: &World,
    local: &mut Local,
    start: u64,
    gpu: u32,
    flags: u32,
) -> Result<(), Code> {
    let region = local.memory.at(start).ok_or(Code::INVALID_VALUE)?;
    let (place, Kind::Mapped { access, .. }) = (region.place, &mut region.kind) else {
        return Err(Code::INVALID_VALUE);
    };
    match (flags, place) {
        (0, _) => *access &= !(1 << gpu),
        (READ_WRITE, Place::Gpu(owner))
            if owner == gpu || can_enable(&world.machine, gpu, owner) =>
        {
            *access |= 1 << gpu;
        }
        // Access for reading only is refused, as the real driver does for a GPU's memory.
        _ => return Err(Code::INVALID_DEVICE),
    }
    Ok(())
}

/// Forgets memory whose handle has been released and that is mapped nowhere any more.
pub(super) fn let_go_if_unused(world: &World, local: &mut Local, handle: u64) {
    let unused = |physical: &Physical| physical.released && physical.mapped == 0;
    if local.physical.get(handle).is_some_and(unused)
        && let Some(physical) = local.physical.remove(handle)
    {
        if let Some((at, _)) = physical.export {
            world.plane().exports[at].nonce = 0;
        }
        if physical.own {
            give_back(world, physical.gpu, physical.bytes);
        }
    }
}
