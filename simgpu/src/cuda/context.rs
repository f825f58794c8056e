//! Contexts, and access to peers.

use super::{
    Code, Local, Out, driver,
    local::{Context, current_handle, with_current},
    queue::{close_drained, idle, synchronize_all},
    reach::can_enable,
};
use crate::{fabric, machine::ComputeMode, state::World, timing::cost::Place};

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |world| {
        let mut local = world.local();
        let gpu = local.gpu(device)?;
        if local.context(gpu).retained == 0 {
            let mode = world.machine.gpus[gpu as usize].health.compute_mode;
            if mode == ComputeMode::Prohibited {
                return Err(Code::UNKNOWN);
            }
            let bytes = world.machine.gpus[gpu as usize].memory_bytes;
            let opened = local.memory.open(gpu, bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
            if let Some(range) = opened.filter(|_| world.machine.symbolic_memory) {
                world.executor.contents().open(range);
            }
            local.context(gpu).generation += 1;
            world.executor.forget_error(gpu);
            world.take_ms(world.machine.driver.context_ms as f64);
        }
        context.set(local.context_handle(gpu))?;
        local.context(gpu).retained += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |world| {
        let mut local = world.local();
        let gpu = local.gpu(device)?;
        if local.context(gpu).retained == 1 {
            drop(local);
            // Another thread may retain or release it meanwhile.
            local = idle(world);
        }
        match local.context(gpu).retained {
            0 => return Err(Code::INVALID_CONTEXT),
            1 => destroy(world, &mut local, gpu),
            _ => local.context(gpu).retained -= 1,
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) |world| {
        let gpu = world.local().gpu(device)?;
        let mut local = idle(world);
        if local.context(gpu).retained > 0 {
            destroy(world, &mut local, gpu);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |world| {
        let mut local = world.local();
        let gpu = local.gpu(device)?;
        let context = local.context(gpu);
        flags.set(context.flags)?;
        active.set(i32::from(context.retained > 0))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |world| {
        let mut local = world.local();
        let gpu = local.gpu(device)?;
        local.context(gpu).flags = flags;
        Ok(())
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) |world| {
        let gpu = world.local().current(world)?;
        if !world.machine.host.gpudirect {
            return Err(Code::NOT_SUPPORTED);
        }
        // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX; …_TO_OWNER, …_TO_ALL_DEVICES.
        if target != 0 || !matches!(scope, 100 | 200) {
            return Err(Code::INVALID_VALUE);
        }
        fabric::flush(world, gpu);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<u64>) |world| {
        world.local().initialised()?;
        context.set(current_handle().unwrap_or(0))
    }

    fn cuCtxSetCurrent(context: u64) |world| {
        check(world, context)?;
        with_current(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: u64) |world| {
        check(world, context)?;
        if context == 0 {
            return Err(Code::INVALID_VALUE);
        }
        with_current(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) |world| {
        world.local().initialised()?;
        let popped = with_current(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) |world| {
        let local = world.local();
        local.initialised()?;
        let handle = current_handle().ok_or(Code::INVALID_CONTEXT)?;
        let gpu = local.gpu_of_context(handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        device.set(gpu as i32)
    }

    fn cuCtxGetFlags(flags: Out<u32>) |world| {
        let mut local = world.local();
        let gpu = local.current(world)?;
        flags.set(local.context(gpu).flags)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) |world| {
        check(world, context)?;
        version.set(3020)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |world| {
        world.local().current(world)?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(super::stream::GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxSynchronize() |world| {
        let gpu = world.local().current(world)?;
        synchronize_all(world, Some(gpu));
        world.local().current(world).map(|_| ())
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) |world| {
        let mut local = world.local();
        let gpu = local.current(world)?;
        let other = local.gpu_of_context(peer).ok_or(Code::INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if other == gpu {
            return Err(Code::INVALID_DEVICE);
        }
        if !can_enable(&world.machine, gpu, other) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut local.context(gpu).peers;
        if *peers >> other & 1 == 1 {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        *peers |= 1 << other;
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: u64) |world| {
        let gpu = world.local().current(world)?;
        // What is queued was let through while there was access.
        synchronize_all(world, Some(gpu));
        let mut local = world.local();
        let other = local.gpu_of_context(peer).ok_or(Code::INVALID_CONTEXT)?;
        let peers = &mut local.context(gpu).peers;
        if *peers >> other & 1 == 0 {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        *peers &= !(1 << other);
        Ok(())
    }
}

/// Refuses a handle that is neither null nor of a context.
fn check(world: &World, context: u64) -> Result<(), Code> {
    let local = world.local();
    local.initialised()?;
    if context != 0 && local.gpu_of_context(context).is_none() {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(())
}

/// Destroys the context of a GPU with all that was made in it. Nothing is queued any more.
fn destroy(world: &World, local: &mut Local, gpu: u32) {
    let streams: Vec<_> = local.streams_of(gpu).map(|stream| stream.slot).collect();
    local.closing.extend(streams);
    local.streams.take(|stream| stream.gpu == gpu);
    close_drained(world, local);
    let events = local.events.take(|event| event.gpu == gpu);
    let mut plane = world.plane();
    for event in events {
        plane.events[event.slot].used = false;
    }
    drop(plane);
    local.modules.take(|module| module.gpu == gpu);
    local.functions.take(|function| function.gpu == gpu);
    let regions: Vec<u64> = local
        .memory
        .all()
        .filter(|region| region.gpu == gpu && region.goes_with_its_context())
        .map(|region| region.start)
        .collect();
    for start in regions {
        super::memory::let_go(world, local, start);
    }
    let old = local.context(gpu);
    *old = Context { generation: old.generation, flags: old.flags, ..Context::default() };
    debug_assert!(local.memory.all().all(|region| region.place != Place::Gpu(gpu)
        || !region.goes_with_its_context()
        || region.gpu != gpu));
}
