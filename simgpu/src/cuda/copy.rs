//! Copies by the copy engines, and setting memory.

use super::{
    Code, Local, driver, graph,
    queue::Queueing,
    reach::{is_enabled, way},
    rest::{First, at_first},
};
use crate::{
    execute::{Action, Copy},
    memory::{Kind, Region},
    state::World,
    timing::{
        Work,
        cost::{self, Cost, Place, Way},
    },
};

/// Pageable memory up to here is taken over when a copy is queued, as the real driver does; above,
/// the caller waits.
const TAKEN_OVER_BYTES: u64 = 64 << 10;

/// What a function says of the two ends of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Nothing; the addresses tell.
    Any,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// A copy as it was asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    target: u64,
    source: u64,
    bytes: u64,
    ends: Ends,
}

driver! {
    fn cuMemcpy(target: u64, source: u64, bytes: usize) |world| {
        copy(world, wanted(target, source, bytes, Ends::Any), 0, true)
    }

    fn cuMemcpyAsync(target: u64, source: u64, bytes: usize, stream: u64) |world| {
        copy(world, wanted(target, source, bytes, Ends::Any), stream, false)
    }

    fn cuMemcpyHtoD_v2(target: u64, source: u64, bytes: usize) |world| {
        copy(world, wanted(target, source, bytes, Ends::HostToDevice), 0, true)
    }

    fn cuMemcpyHtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) |world| {
        copy(world, wanted(target, source, bytes, Ends::HostToDevice), stream, false)
    }

    fn cuMemcpyDtoH_v2(target: u64, source: u64, bytes: usize) |world| {
        copy(world, wanted(target, source, bytes, Ends::DeviceToHost), 0, true)
    }

    fn cuMemcpyDtoHAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) |world| {
        copy(world, wanted(target, source, bytes, Ends::DeviceToHost), stream, false)
    }

    fn cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize) |world| {
        copy(world, wanted(target, source, bytes, Ends::DeviceToDevice), 0, true)
    }

    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) |world| {
        copy(world, wanted(target, source, bytes, Ends::DeviceToDevice), stream, false)
    }

    fn cuMemcpyPeer(
        target: u64,
        target_context: u64,
        source: u64,
        source_context: u64,
        bytes: usize,
    ) |world| {
        check_contexts(world, [(target, target_context), (source, source_context)])?;
        copy(world, wanted(target, source, bytes, Ends::DeviceToDevice), 0, true)
    }

    fn cuMemcpyPeerAsync(
        target: u64,
        target_context: u64,
        source: u64,
        source_context: u64,
        bytes: usize,
        stream: u64,
    ) |world| {
        check_contexts(world, [(target, target_context), (source, source_context)])?;
        copy(world, wanted(target, source, bytes, Ends::DeviceToDevice), stream, false)
    }

    fn cuMemsetD8_v2(target: u64, value: u8, count: usize) |world| {
        set(world, 0, target, (u32::from(value), 1), count as u64)
    }

    fn cuMemsetD8Async(target: u64, value: u8, count: usize, stream: u64) |world| {
        set(world, stream, target, (u32::from(value), 1), count as u64)
    }

    fn cuMemsetD16_v2(target: u64, value: u16, count: usize) |world| {
        set(world, 0, target, (u32::from(value), 2), count as u64)
    }

    fn cuMemsetD16Async(target: u64, value: u16, count: usize, stream: u64) |world| {
        set(world, stream, target, (u32::from(value), 2), count as u64)
    }

    fn cuMemsetD32_v2(target: u64, value: u32, count: usize) |world| {
        set(world, 0, target, (value, 4), count as u64)
    }

    fn cuMemsetD32Async(target: u64, value: u32, count: usize, stream: u64) |world| {
        set(world, stream, target, (value, 4), count as u64)
    }
}

/// Puts `call` into a graph, if `stream` is captured; whether it is.
fn capture(
    world: &World,
    stream: u64,
    call: impl Fn(&'static World, u64) -> Result<(), Code> + Send + Sync + 'static,
) -> bool {
    let mut local = world.local();
    let is_captured = graph::is_captured(&local, stream);
    if is_captured {
        graph::capture_call(&mut local, stream, call);
    }
    is_captured
}

fn wanted(target: u64, source: u64, bytes: usize, ends: Ends) -> Wanted {
    Wanted { target, source, bytes: bytes as u64, ends }
}

/// An end of a copy.
struct End<'l> {
    place: Place,
    /// `None`: pageable host memory.
    region: Option<&'l Region>,
}

/// What is at an end of a copy, if all of it is there.
fn end(local: &Local, address: u64, bytes: u64, device: Option<bool>) -> Result<End<'_>, Code> {
    let memory = &local.memory;
    let region = memory.find(address, bytes);
    // Memory that was freed, or the end of which lies outside of its allocation.
    let known = memory.find(address, 1).is_some() || memory.is_device_address(address);
    if address == 0 || (region.is_none() && known) {
        return Err(Code::INVALID_VALUE);
    }
    let place = region.map_or(Place::Host, |region| region.place);
    // Mapped host memory passes as device memory, since it has a device address too.
    if device == Some(true) && region.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(End { place, region })
}

fn copy(world: &World, wanted: Wanted, stream: u64, wait: bool) -> Result<(), Code> {
    let Wanted { target, source, bytes, ends } = wanted;
    if capture(world, stream, move |world, stream| copy(world, wanted, stream, false)) {
        return Ok(());
    }
    at_first(world, stream, First::copy(target, source, bytes))?;
    let mut queueing = Queueing::on(world, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let local = &queueing.local;
    let device = |sides: &[Ends]| sides.contains(&ends).then_some(true);
    let from = end(local, source, bytes, device(&[Ends::DeviceToHost, Ends::DeviceToDevice]))?;
    let to = end(local, target, bytes, device(&[Ends::HostToDevice, Ends::DeviceToDevice]))?;
    let way = match (from.region, to.region) {
        (Some(source), Some(target)) => way(&world.machine, local, queueing.gpu, (source, target))?,
        _ => Some(Way::Write),
    };
    check_mapped(local, queueing.gpu, [&from, &to])?;
    let is_private = |end: &End<'_>| end.region.is_some_and(Region::is_private);
    let private = is_private(&from) && is_private(&to);
    let places = (from.place, to.place);
    let host = places.0 == Place::Host || places.1 == Place::Host;
    let (pageable_source, pageable_target) = (from.region.is_none(), to.region.is_none());
    let Some(way) = way else {
        let action = Action::Fail { gpu: queueing.gpu, code: Code::ILLEGAL_ADDRESS.0 };
        queueing.push(Work::Transfer(Cost::default()), Some(action));
        return Ok(());
    };
    let cost = cost::copy(&world.machine, queueing.gpu, places, way, bytes);
    let taken_over = pageable_source && !pageable_target && bytes <= TAKEN_OVER_BYTES;
    let action = if taken_over && !wait {
        // SAFETY: by the contract of the copy the source has that many bytes.
        let data = unsafe { std::slice::from_raw_parts(source as *const u8, bytes as usize) };
        Action::Store { target, data: data.into(), places }
    } else {
        Action::Copy(Copy { target, source, bytes, places, private })
    };
    queueing.push(Work::Transfer(cost), Some(action));
    // Between GPUs even the functions without a stream do not wait.
    let wait = wait && host;
    if wait || pageable_target || (pageable_source && !taken_over) {
        return queueing.synchronize();
    }
    Ok(())
}

/// Memory of `cuMemMap` is only there for GPUs that have been given access.
fn check_mapped(local: &Local, gpu: u32, ends: [&End<'_>; 2]) -> Result<(), Code> {
    let engines = ends.iter().filter_map(|end| match end.place {
        Place::Gpu(gpu) => Some(gpu),
        Place::Host => None,
    });
    let engines: Vec<u32> = engines.chain([gpu]).collect();
    let reached = |region: &Region| {
        !matches!(region.kind, Kind::Mapped { .. })
            || engines.iter().any(|&engine| is_enabled(local, engine, region))
    };
    let all = ends.iter().filter_map(|end| end.region).all(reached);
    if all { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Refuses memory that is not of the context that is given with it.
fn check_contexts(world: &World, ends: [(u64, u64); 2]) -> Result<(), Code> {
    let local = world.local();
    local.current(world)?;
    for (address, context) in ends {
        let gpu = local.gpu_of_context(context).ok_or(Code::INVALID_CONTEXT)?;
        let region = local.memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        if region.place != Place::Gpu(gpu) {
            return Err(Code::INVALID_VALUE);
        }
    }
    Ok(())
}

/// Sets `count` elements of a value with a width.
fn set(
    world: &World,
    stream: u64,
    target: u64,
    (value, width): (u32, u64),
    count: u64,
) -> Result<(), Code> {
    if capture(world, stream, move |world, to| set(world, to, target, (value, width), count)) {
        return Ok(());
    }
    at_first(world, stream, First::Memset(width))?;
    let mut queueing = Queueing::on(world, stream)?;
    if count == 0 {
        return Ok(());
    }
    let bytes = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
    if !target.is_multiple_of(width) {
        return Err(Code::INVALID_VALUE);
    }
    let end = end(&queueing.local, target, bytes, Some(true))?;
    check_mapped(&queueing.local, queueing.gpu, [&end, &end])?;
    let cost = cost::set(&world.machine, queueing.gpu, end.place, bytes);
    let action = Action::Set { target, value, width, count };
    queueing.push(Work::Transfer(cost), Some(action));
    Ok(())
}
