//! Multicast objects: memory of several GPUs behind one address, which NVLink switches store to, and
//! load the sum of, all at once.
//!
//! Memory is bound from the beginning of an object on, never in parts. What is not done by a
//! kernel's multimem instructions finds no memory at such an address, as it would be undefined.

use std::{ffi::CString, fs::File, os::fd::IntoRawFd, thread, time::Duration};

use super::{
    Code, In, Local, Out, driver,
    ipc::{Handle, export_new},
    reach::may,
    virtual_memory::{
        FABRIC, GRANULARITY, POSIX_FILE_DESCRIPTOR, gives_fabric_handles, has_channel,
    },
};
use crate::{
    execute::{Action, Kernel},
    kernels::{Effect, Launch, Multicast},
    memory::{Mapping, Region, TeamMapping, file_key},
    state::World,
    timing::{
        GPUS, Guard, WRITE_COUNTERS, Work,
        cost::{self, Place},
        memory_file,
        plane::{Bound, Team},
    },
};

/// How often a call that waits for GPUs to be added looks.
const LOOK: Duration = Duration::from_millis(1);

/// CUmulticastObjectProp
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Properties {
    gpus: u32,
    bytes: usize,
    handle_types: u64,
    flags: u64,
}

/// A multicast object as this process has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TeamHandle {
    /// Its place among those of the machine, and its number.
    pub at: usize,
    pub nonce: u64,
    /// Whether this process has made it.
    pub own: bool,
    /// How often it is mapped, and whether its handle has been released.
    pub mapped: u32,
    pub released: bool,
}

driver! {
    fn cuMulticastGetGranularity(bytes: Out<usize>, properties: In<Properties>, option: u32) |world| {
        world.local().initialised()?;
        check(world, properties.get(0)?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        bytes.set(GRANULARITY as usize)
    }

    fn cuMulticastCreate(handle: Out<u64>, properties: In<Properties>) |world| {
        let mut local = world.local();
        local.initialised()?;
        let properties = properties.get(0)?;
        check(world, properties)?;
        let bytes = properties.bytes as u64;
        if handle.pointer().is_null() || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        let team = Team {
            place: world.place as u32,
            wanted: properties.gpus,
            handle_types: properties.handle_types as u32,
            bytes,
            ..Team::NONE
        };
        let mut plane = world.plane();
        let taken = plane.take_team(team).or_else(|| {
            plane.bury_the_dead();
            plane.take_team(team)
        });
        drop(plane);
        let (at, nonce) = taken.ok_or(Code::OUT_OF_MEMORY)?;
        let team = TeamHandle { at, nonce, own: true, mapped: 0, released: false };
        handle.set(local.teams.add(team))
    }

    fn cuMulticastAddDevice(handle: u64, device: i32) |world| {
        let local = world.local();
        let gpu = local.gpu(device)?;
        let mut plane = world.plane();
        let team = of(&local, &mut plane, handle)?;
        if !world.machine.gives_multicast(gpu) {
            return Err(Code::NOT_SUPPORTED);
        }
        if (0..GPUS as u32).any(|other| team.has(other) && !world.machine.shares_nvlinks(gpu, other)) {
            return Err(Code::INVALID_DEVICE);
        }
        if team.has(gpu) || team.count() == team.wanted {
            return Err(Code::INVALID_VALUE);
        }
        team.added[gpu as usize] = true;
        Ok(())
    }

    fn cuMulticastBindMem(
        handle: u64,
        offset: usize,
        memory: u64,
        memory_offset: usize,
        bytes: usize,
        flags: u64,
    ) |world| {
        wait_for_all(world, handle)?;
        let mut local = world.local();
        let physical = local.physical.get_mut(memory).filter(|own| !own.released);
        let physical = physical.ok_or(Code::INVALID_VALUE)?;
        let bytes = bytes as u64;
        let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && bytes <= physical.bytes;
        if flags != 0 || !whole {
            return Err(Code::INVALID_VALUE);
        }
        if offset != 0 || memory_offset != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (at, nonce) = match physical.export {
            Some(export) => export,
            None => export_new(world, physical.gpu, physical.file(), physical.bytes)?,
        };
        physical.export = Some((at, nonce));
        let gpu = physical.gpu;
        let mut plane = world.plane();
        let team = of(&local, &mut plane, handle)?;
        if !team.has(gpu) || bytes > team.bytes {
            return Err(Code::INVALID_VALUE);
        }
        let bound = &mut team.bound[gpu as usize];
        if bound.nonce != 0 {
            return Err(Code::ALREADY_MAPPED);
        }
        *bound = Bound { at: at as u64, nonce, bytes };
        drop(plane);
        if let Some(physical) = local.physical.get_mut(memory) {
            physical.mapped += 1;
        }
        Ok(())
    }

    fn cuMulticastUnbind(handle: u64, device: i32, offset: usize, bytes: usize) |world| {
        let mut local = super::queue::idle(world);
        let gpu = local.gpu(device)?;
        let mut plane = world.plane();
        let bound = &mut of(&local, &mut plane, handle)?.bound[gpu as usize];
        if bound.nonce == 0 || offset != 0 || bytes as u64 != bound.bytes {
            return Err(Code::INVALID_VALUE);
        }
        let export = (bound.at as usize, bound.nonce);
        *bound = Bound::default();
        drop(plane);
        let found = local.physical.all().find(|(_, own)| own.export == Some(export));
        let Some(memory) = found.map(|(memory, _)| memory) else { return Ok(()) };
        if let Some(physical) = local.physical.get_mut(memory) {
            physical.mapped -= 1;
        }
        super::virtual_memory::let_go_if_unused(world, &mut local, memory);
        Ok(())
    }
}

/// Refuses what no GPU here has.
fn check(world: &World, properties: Properties) -> Result<(), Code> {
    let Properties { gpus, handle_types, flags, .. } = properties;
    let known = u64::from(POSIX_FILE_DESCRIPTOR | FABRIC);
    if gpus < 2 || gpus as usize > GPUS || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let first = world.own.first_gpu;
    if !world.machine.gives_multicast(first) || handle_types & !known != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if handle_types & u64::from(FABRIC) != 0 {
        if !gives_fabric_handles(&world.machine, first) {
            return Err(Code::NOT_SUPPORTED);
        }
        has_channel(world)?;
    }
    Ok(())
}

/// The object of a handle.
fn of<'a>(local: &Local, plane: &'a mut Guard<'_>, handle: u64) -> Result<&'a mut Team, Code> {
    let own = local.teams.get(handle).ok_or(Code::INVALID_VALUE)?;
    let team = &mut plane.teams[own.at];
    if team.nonce == own.nonce { Ok(team) } else { Err(Code::INVALID_VALUE) }
}

/// Waits until all GPUs are in the object, for ever, as the real driver does.
fn wait_for_all(world: &World, handle: u64) -> Result<(), Code> {
    loop {
        let local = world.local();
        let mut plane = world.plane();
        let team = of(&local, &mut plane, handle)?;
        if team.count() == team.wanted {
            return Ok(());
        }
        drop(plane);
        drop(local);
        thread::sleep(LOOK);
    }
}

/// Whether a handle is of a multicast object.
pub(super) fn is_one(world: &World, handle: u64) -> bool {
    world.local().teams.get(handle).is_some()
}

/// `cuMemRelease` of an object.
pub(super) fn release(world: &World, local: &mut Local, handle: u64) -> Result<(), Code> {
    let own = local.teams.get_mut(handle).filter(|own| !own.released);
    own.ok_or(Code::INVALID_VALUE)?.released = true;
    let_go_if_unused(world, local, handle);
    Ok(())
}

fn let_go_if_unused(world: &World, local: &mut Local, handle: u64) {
    if local.teams.get(handle).is_some_and(|own| own.released && own.mapped == 0)
        && let Some(own) = local.teams.remove(handle).filter(|own| own.own)
    {
        world.plane().teams[own.at].nonce = 0;
    }
}

/// `cuMemMap` of an object.
pub(super) fn map(world: &World, (address, bytes): (u64, u64), handle: u64) -> Result<(), Code> {
    wait_for_all(world, handle)?;
    let mut local = world.local();
    let whole = bytes > 0 && (bytes | address).is_multiple_of(GRANULARITY);
    let inside =
        |range: &Mapping| range.contains(address) && bytes <= range.start + range.bytes - address;
    if !whole
        || bytes > of(&local, &mut world.plane(), handle)?.bytes
        || !local.memory.reservations.iter().any(inside)
    {
        return Err(Code::INVALID_VALUE);
    }
    if local.memory.overlaps(address, bytes) {
        return Err(Code::ALREADY_MAPPED);
    }
    let own = local.teams.get_mut(handle).filter(|own| !own.released);
    own.ok_or(Code::INVALID_VALUE)?.mapped += 1;
    let members = Vec::new();
    local.memory.teams.push(TeamMapping { start: address, bytes, handle, access: 0, members });
    Ok(())
}

/// `cuMemUnmap` of an object's mapping; whether there is one.
pub(super) fn unmap(world: &World, local: &mut Local, (address, bytes): (u64, u64)) -> bool {
    let is = |team: &TeamMapping| team.start == address && team.bytes == bytes;
    let Some(found) = local.memory.teams.iter().position(is) else { return false };
    let mapping = local.memory.teams.swap_remove(found);
    for (_, member) in &mapping.members {
        world.executor.contents().repeats.freed(member.start, member.bytes);
    }
    if let Some(own) = local.teams.get_mut(mapping.handle) {
        own.mapped -= 1;
    }
    let_go_if_unused(world, local, mapping.handle);
    true
}

/// `cuMemExportToShareableHandle` of an object.
pub(super) fn export(
    world: &World,
    local: &Local,
    (shareable, handle, kind): (&Out<i32>, u64, u32),
) -> Result<(), Code> {
    let own = *local.teams.get(handle).ok_or(Code::INVALID_VALUE)?;
    if of(local, &mut world.plane(), handle)?.handle_types & kind == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if kind == FABRIC {
        return Out(shareable.pointer().cast()).set(Handle::of_team((own.at, own.nonce)));
    }
    let name =
        CString::new(name(world, (own.at, own.nonce))).map_err(|_| Code::OPERATING_SYSTEM)?;
    let file = memory_file(&name).map_err(|_| Code::OPERATING_SYSTEM)?;
    shareable.set(File::from(file).into_raw_fd())
}

/// The object behind a descriptor or a handle of another process, if it is one of this machine; its
/// handle here.
pub(super) fn import(world: &World, local: &mut Local, (at, nonce): (usize, u64)) -> Option<u64> {
    let is_there =
        world.plane().teams.get(at).is_some_and(|team| team.nonce == nonce && nonce != 0);
    let team = TeamHandle { at, nonce, own: false, mapped: 0, released: false };
    is_there.then(|| local.teams.add(team))
}

/// What an object's descriptor is called, so that an importer knows which it is of.
fn name(world: &World, (at, nonce): (usize, u64)) -> String {
    let machine = file_key(&world.state.file, 0).inode;
    format!("g2g machine {machine} multicast {at} {nonce}")
}

/// The object that a descriptor with this link is of.
pub(super) fn named(world: &World, link: &str) -> Option<(usize, u64)> {
    let name = link.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    let machine = file_key(&world.state.file, 0).inode;
    let rest = name.strip_prefix(&format!("g2g machine {machine} multicast "))?;
    let (at, nonce) = rest.split_once(' ')?;
    Some((at.parse().ok()?, nonce.parse().ok()?))
}

/// What is behind a multicast address, for a kernel on `gpu`; `None` if it may not be touched: it is
/// no such address, or memory of a GPU is not bound, or gone.
fn behind(
    world: &World,
    local: &mut Local,
    gpu: u32,
    (address, bytes): (u64, u64),
) -> Option<Multicast> {
    let inside = |team: &TeamMapping| {
        address >= team.start && bytes <= (team.start + team.bytes).saturating_sub(address)
    };
    let found = local.memory.teams.iter().position(inside)?;
    let TeamMapping { start, handle, access, .. } = local.memory.teams[found];
    if access >> gpu & 1 == 0 {
        return None;
    }
    let mut plane = world.plane();
    let team = *of(local, &mut plane, handle).ok()?;
    drop(plane);
    let mut members = Vec::new();
    for other in (0..GPUS as u32).filter(|&other| team.has(other)) {
        let bound = team.bound[other as usize];
        if bound.nonce == 0 || address + bytes > start + bound.bytes {
            return None;
        }
        let known = local.memory.teams[found].members.iter().find(|(gpu, _)| *gpu == other);
        let at = match known {
            Some((_, mapping)) => mapping.start,
            None => {
                let file = Handle::of_fabric((bound.at as usize, bound.nonce)).in_fabric(world)?;
                let file = file.file().ok()?;
                let mapping = Mapping::of_file(&file, 0, bound.bytes).ok()?;
                let counter = file_key(&file, 0).counter(WRITE_COUNTERS);
                let at = mapping.start;
                world.executor.contents().repeats.share(at, bound.bytes, counter);
                local.memory.teams[found].members.push((other, mapping));
                at
            }
        };
        members.push((other, at));
    }
    let (gpus, members) = members.into_iter().unzip();
    Some(Multicast { start, gpus, members })
}

/// What the launch of a kernel with multimem instructions is in time and in deed; `None` if it
/// touches what it may not touch.
pub(super) fn planned(
    world: &World,
    local: &mut Local,
    gpu: u32,
    mut launch: Launch,
) -> Option<(Work, Action)> {
    let effect = launch.effect();
    let private = |region: &Region| region.is_private();
    let (multicast, is_private, traffic) = match effect {
        Effect::StoreInAll { target, bytes } => {
            (behind(world, local, gpu, (target, bytes))?, true, cost::STORE_IN_ALL)
        }
        Effect::ReduceAll { target, source, bytes, to_all: true } => {
            let multicast = behind(world, local, gpu, (source, bytes))?;
            // One object has both.
            if behind(world, local, gpu, (target, bytes))? != multicast {
                return None;
            }
            (multicast, true, cost::ALL_REDUCE)
        }
        Effect::ReduceAll { target, source, bytes, to_all: false } => {
            let multicast = behind(world, local, gpu, (source, bytes))?;
            let region = local.memory.find(target, bytes.max(1));
            let store = super::reach::Access::Store;
            let region = region.filter(|to| may(&world.machine, local, gpu, to, store))?;
            (multicast, private(region), cost::REDUCE_ALL)
        }
        _ => return None,
    };
    let (Effect::StoreInAll { bytes, .. } | Effect::ReduceAll { bytes, .. }) = effect else {
        return None;
    };
    let cost = cost::through_switches(&world.machine, gpu, &multicast.gpus, (traffic, bytes));
    launch.multicast = multicast;
    let places = (Place::Gpu(gpu), Place::Gpu(gpu));
    let kernel = Kernel { launch, effect, gpu, places, private: is_private };
    Some((Work::Transfer(cost), Action::Launch(Box::new(kernel))))
}
