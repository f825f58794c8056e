//! Events and the times between them.

use super::{Code, Local, Out, driver, local::Event, queue::Queueing};
use crate::{
    execute::Executor,
    fabric,
    machine::Machine,
    state::World,
    timing::{
        event::{self, Latest},
        split_mix,
    },
};

/// Flags of `cuEventCreate`.
mod flag {
    pub(super) const DISABLE_TIMING: u32 = 2;
    pub(super) const INTERPROCESS: u32 = 4;
}

driver! {
    fn cuEventCreate(event: Out<u64>, flags: u32) |world| {
        let mut local = world.local();
        let gpu = local.current(world)?;
        let interprocess = flags & flag::INTERPROCESS != 0;
        let timing = flags & flag::DISABLE_TIMING == 0;
        if flags > 7 || (interprocess && timing) || event.pointer().is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let hint = local.event_hint;
        let mut plane = world.plane();
        let taken = plane.take_event(world.place, hint).or_else(|| {
            plane.bury_the_dead();
            plane.take_event(world.place, hint)
        });
        drop(plane);
        let slot = taken.ok_or(Code::OUT_OF_MEMORY)?;
        local.event_hint = slot + 1;
        event.set(local.events.add(Event { slot, gpu, timing }))
    }

    fn cuEventDestroy_v2(event: u64) |world| {
        let mut local = world.local();
        local.initialised()?;
        let event = local.events.remove(event).ok_or(Code::INVALID_HANDLE)?;
        // A record that is queued finds its version gone by when the event has another owner.
        world.plane().events[event.slot].used = false;
        local.event_hint = local.event_hint.min(event.slot);
        Ok(())
    }

    fn cuEventRecord(event: u64, stream: u64) |world| {
        record(world, event, stream)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) |world| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        record(world, event, stream)
    }

    fn cuEventSynchronize(event: u64) |world| {
        let local = world.local();
        let event = find(&local, event)?;
        drop(local);
        let latest = || event::latest(&world.plane().events[event.slot]);
        if let Latest::Queued { stream, sequence } | Latest::Timed { stream, sequence, .. } = latest() {
            world.await_executed(stream, sequence + 1);
            reach(world, &latest());
        }
        failed(&world.executor, event.gpu)
    }

    fn cuEventQuery(event: u64) |world| {
        let event = find(&world.local(), event)?;
        let latest = || event::latest(&world.plane().events[event.slot]);
        world.help(|| is_done(&world.executor, &latest()));
        let latest = latest();
        let time_ps = match latest {
            Latest::Never => Some(0),
            Latest::Queued { .. } => None,
            Latest::Timed { time_ps, .. } => Some(time_ps),
        };
        if fabric::looks_again(world, time_ps, || is_done(&world.executor, &latest)) {
            return Err(Code::NOT_READY);
        }
        reach(world, &latest);
        failed(&world.executor, event.gpu)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) |world| {
        elapsed(world, &milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) |world| {
        elapsed(world, &milliseconds, start, end)
    }
}

fn record(world: &World, event: u64, stream: u64) -> Result<(), Code> {
    let mut queueing = Queueing::on(world, stream)?;
    let event = find(&queueing.local, event)?;
    if event.gpu != queueing.gpu {
        return Err(Code::INVALID_HANDLE);
    }
    queueing.push_record(event.slot);
    Ok(())
}

fn find(local: &Local, event: u64) -> Result<Event, Code> {
    local.initialised()?;
    local.events.get(event).copied().ok_or(Code::INVALID_HANDLE)
}

/// Whether what an event recorded has been executed, or there was nothing.
fn is_done(executor: &Executor, latest: &Latest) -> bool {
    match *latest {
        Latest::Never => true,
        Latest::Queued { .. } => false,
        Latest::Timed { stream, sequence, .. } => executor.executed(stream) > sequence,
    }
}

/// The host has waited for what an event recorded.
fn reach(world: &World, latest: &Latest) {
    if let Latest::Timed { time_ps, .. } = *latest {
        world.reach(time_ps);
    }
}

fn failed(executor: &Executor, gpu: u32) -> Result<(), Code> {
    match executor.error(gpu) {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

fn elapsed(world: &World, milliseconds: &Out<f32>, start: u64, end: u64) -> Result<(), Code> {
    let local = world.local();
    let events = [find(&local, start)?, find(&local, end)?];
    let same_context = events[0].gpu == events[1].gpu;
    if !same_context || events.iter().any(|event| !event.timing) {
        return Err(Code::INVALID_HANDLE);
    }
    failed(&world.executor, events[0].gpu)?;
    let plane = world.plane();
    let latest = events.map(|event| event::latest(&plane.events[event.slot]));
    drop(plane);
    if latest.contains(&Latest::Never) {
        return Err(Code::INVALID_HANDLE);
    }
    if !latest.iter().all(|latest| is_done(&world.executor, latest)) {
        return Err(Code::NOT_READY);
    }
    let [start_ps, end_ps] = latest.map(|latest| match latest {
        Latest::Timed { time_ps, .. } => stamp(&world.machine, time_ps),
        _ => 0,
    });
    let difference_ps = end_ps as f64 - start_ps as f64;
    milliseconds.set((difference_ps / 1e9) as f32)
}

/// What an event says of a time. Of two times the later one is never said to be earlier.
fn stamp(machine: &Machine, time_ps: u64) -> u64 {
    // Two times are wrong by less than that each.
    let step_ps = machine.driver.event_error_ns * 500;
    let said_ps = time_ps
        .checked_div(step_ps)
        .map_or(time_ps, |step| step * step_ps + split_mix(step) % step_ps);
    let resolution_ps = machine.event_resolution_ns.max(1) * 1000;
    said_ps / resolution_ps * resolution_ps
}
