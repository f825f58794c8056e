//! Memory of one process in another, by handles of bytes.

use std::fs::File;

use super::{Code, Out, driver, memory::free, reach::can_enable};
use crate::{
    memory::{Kind, Mapping, PAGE, Region, contents::range, file_key},
    state::World,
    timing::{Export, WRITE_COUNTERS, cost::Place},
};

/// A handle, as it is sent to the other process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Handle {
    magic: u64,
    /// Place and number of the export among those of the machine.
    at: u64,
    nonce: u64,
    rest: [u64; 5],
}

const MAGIC: u64 = 0x6732_6720_6970_6321;
const MAGIC_OF_FABRIC: u64 = 0x6732_6720_6661_6272;
const MAGIC_OF_TEAM: u64 = 0x6732_6720_7465_616d;

impl Handle {
    /// Of the fabric.
    pub(crate) fn of_fabric((at, nonce): (usize, u64)) -> Self {
        Self { magic: MAGIC_OF_FABRIC, at: at as u64, nonce, rest: [0; 5] }
    }

    /// Of a multicast object.
    pub(crate) fn of_team(team: (usize, u64)) -> Self {
        Self { magic: MAGIC_OF_TEAM, ..Self::of_fabric(team) }
    }

    /// The multicast object that it is of, if it is of one.
    pub(crate) fn team(self) -> Option<(usize, u64)> {
        (self.magic == MAGIC_OF_TEAM).then_some((usize::try_from(self.at).ok()?, self.nonce))
    }

    /// What it is of, if it is of the fabric and that still exists.
    pub(crate) fn in_fabric(self, world: &World) -> Option<Export> {
        (self.magic == MAGIC_OF_FABRIC).then(|| self.export(world))?
    }

    fn export(self, world: &World) -> Option<Export> {
        let mut plane = world.plane();
        plane.bury_the_dead();
        let export = usize::try_from(self.at).ok().and_then(|at| plane.exports.get(at).copied());
        export.filter(|export| export.nonce == self.nonce && self.nonce != 0)
    }
}

impl Export {
    /// The file that it is in.
    pub(crate) fn file(&self) -> Result<File, Code> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.descriptor);
        let file = File::options().read(true).write(true).open(path);
        file.map_err(|_| Code::INVALID_VALUE)
    }
}

driver! {
    fn cuIpcGetMemHandle(handle: Out<Handle>, address: u64) |world| {
        let mut local = world.local();
        local.current(world)?;
        let region = local.memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        let (start, bytes, gpu) = (region.start, region.bytes, region.gpu);
        let counter = region.key.counter(WRITE_COUNTERS);
        let Kind::Allocated { export } = region.kind else { return Err(Code::INVALID_VALUE) };
        let (at, nonce) = match export {
            Some(export) => export,
            None => {
                let file = local.memory.file(gpu, start).ok_or(Code::INVALID_VALUE)?;
                export_new(world, gpu, file, bytes)?
            }
        };
        // From now on the other process can read and write it unseen.
        let mut contents = world.executor.contents();
        if !contents.close(range(start, bytes)) {
            return Err(Code::OUT_OF_MEMORY);
        }
        contents.repeats.share(start, bytes, counter);
        drop(contents);
        if let Some(region) = local.memory.at(start) {
            region.kind = Kind::Allocated { export: Some((at, nonce)) };
        }
        handle.set(Handle { magic: MAGIC, at: at as u64, nonce, rest: [0; 5] })
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: Handle, flags: u32) |world| {
        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is demanded.
        if handle.magic != MAGIC || flags != 1 || address.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        address.set(open(world, handle)?)
    }

    fn cuIpcCloseMemHandle(address: u64) |world| {
        let mut local = world.local();
        local.current(world)?;
        let region = local.memory.at(address).ok_or(Code::INVALID_VALUE)?;
        match &mut region.kind {
            Kind::Imported { opened, .. } if *opened > 1 => *opened -= 1,
            Kind::Imported { .. } => {
                drop(local);
                return free(world, address, |region| matches!(region.kind, Kind::Imported { .. }));
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}

pub(crate) fn export_new(
    world: &World,
    gpu: u32,
    (descriptor, offset): (i32, u64),
    bytes: u64,
) -> Result<(usize, u64), Code> {
    let (place, pid) = (world.place as u32, std::process::id());
    let export = Export { nonce: 0, place, pid, descriptor, gpu, offset, bytes };
    let mut plane = world.plane();
    let exported = plane.export(export).or_else(|| {
        plane.bury_the_dead();
        plane.export(export)
    });
    exported.ok_or(Code::OUT_OF_MEMORY)
}

/// Opens memory of another process for the current context; its address here.
fn open(world: &World, handle: Handle) -> Result<u64, Code> {
    let mut local = world.local();
    let gpu = local.current(world)?;
    let export = handle.export(world).ok_or(Code::INVALID_VALUE)?;
    if world.machine.host_of(export.gpu) != world.host {
        return Err(Code::INVALID_VALUE);
    }
    if export.pid == std::process::id() {
        return Err(Code::INVALID_CONTEXT);
    }
    if export.gpu != gpu {
        if !can_enable(&world.machine, gpu, export.gpu) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        local.context(gpu).peers |= 1 << export.gpu;
    }
    let again = local.memory.all().find(|region| {
        region.gpu == gpu
            && matches!(region.kind, Kind::Imported { nonce, .. } if nonce == export.nonce)
    });
    if let Some(start) = again.map(|region| region.start) {
        if let Some(Region { kind: Kind::Imported { opened, .. }, .. }) = local.memory.at(start) {
            *opened += 1;
        }
        return Ok(start);
    }
    let file = export.file()?;
    // Mappings begin at whole pages, allocations need not.
    let before = export.offset % PAGE;
    let whole = (before + export.bytes).next_multiple_of(PAGE);
    let mapping = Mapping::of_file(&file, export.offset - before, whole);
    let mapping = mapping.map_err(|_| Code::MAP_FAILED)?;
    let start = mapping.start + before;
    let key = file_key(&file, export.offset);
    world.executor.contents().repeats.share(start, export.bytes, key.counter(WRITE_COUNTERS));
    local.memory.add(Region {
        start,
        bytes: export.bytes,
        kind: Kind::Imported { _mapping: mapping, nonce: export.nonce, opened: 1 },
        gpu,
        place: Place::Gpu(export.gpu),
        key,
    });
    Ok(start)
}
