//! Launching kernels.

use std::ffi::c_void;

use super::{
    Code, In, Local, driver, graph,
    local::Function,
    multicast,
    queue::Queueing,
    reach::{Access, may},
    rest::{First, at_first},
};
use crate::{
    execute::{Action, Kernel, Watched},
    kernels::{Effect, Launch, Multicast},
    machine::Machine,
    memory::Region,
    state::World,
    timing::{
        Gate, GateKind, Work,
        cost::{self, Cost, Place},
        words::{Condition, Test},
    },
};

driver! {
    #[allow(clippy::too_many_arguments, reason = "the ABI's arguments")]
    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        parameters: In<In<u8>>,
        extra: In<*mut c_void>,
    ) |world| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        check_size(grid, block, shared_bytes)?;
        let mut local = world.local();
        local.initialised()?;
        let handle = function;
        let function = *local.functions.get(handle).ok_or(Code::INVALID_HANDLE)?;
        // Parameters as one buffer, which g2g does not use.
        if parameters.is_null() && !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let parameters = values(&function, &parameters)?;
        let multicast = Multicast::default();
        let launch = Launch { kernel: function.kernel, grid, block, parameters, multicast };
        if graph::is_captured(&local, stream) {
            let again = move |world: &World, stream| queue(world, stream, function.gpu, launch.clone());
            graph::capture_call(&mut local, stream, again);
            return Ok(());
        }
        let is_loaded = local.is_eager;
        drop(local);
        if !is_loaded {
            at_first(world, stream, First::Function(handle))?;
        }
        queue(world, stream, function.gpu, launch)
    }
}

fn queue(world: &World, stream: u64, gpu: u32, launch: Launch) -> Result<(), Code> {
    let mut queueing = Queueing::on(world, stream)?;
    if gpu != queueing.gpu {
        return Err(Code::INVALID_HANDLE);
    }
    let (work, action) = match launch.effect() {
        Effect::StoreInAll { .. } | Effect::ReduceAll { .. } => {
            multicast::planned(world, &mut queueing.local, gpu, launch)
                .unwrap_or_else(|| illegal(gpu))
        }
        _ => planned(world, &queueing.local, gpu, launch),
    };
    queueing.push(work, Some(action));
    if queueing.local.is_launch_blocking { queueing.synchronize() } else { Ok(()) }
}

/// Refuses a launch that is larger than a GPU's limits.
fn check_size(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Result<(), Code> {
    let within = |sides: [u32; 3], limits: [u32; 3]| {
        sides.iter().zip(limits).all(|(side, limit)| (1..=limit).contains(side))
    };
    let threads: u64 = block.iter().map(|side| u64::from(*side)).product();
    let fits = within(grid, [i32::MAX as u32, 65_535, 65_535])
        && within(block, [1024, 1024, 64])
        && threads <= 1024
        && shared_bytes <= 48 << 10;
    if fits { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// The bytes of each parameter.
fn values(function: &Function, parameters: &In<In<u8>>) -> Result<Vec<Vec<u8>>, Code> {
    let sizes = function.kernel.parameters.iter().enumerate();
    sizes
        .map(|(at, &size)| {
            let value = parameters.get(at)?;
            (0..size).map(|byte| value.get(byte)).collect()
        })
        .collect()
}

/// Instead of a launch that touches what it may not touch.
fn illegal(gpu: u32) -> (Work, Action) {
    let code = Code::ILLEGAL_ADDRESS.0;
    (Work::Transfer(Cost::default()), Action::Fail { gpu, code })
}

/// What a launch without multimem instructions is in time and in deed.
fn planned(world: &World, local: &Local, gpu: u32, launch: Launch) -> (Work, Action) {
    let machine = &world.machine;
    let effect = launch.effect();
    let mut touched = touched(effect).into_iter().filter(|(_, bytes, _)| *bytes > 0);
    let may = |(address, bytes, access)| may_touch(machine, local, gpu, (address, bytes), access);
    if !touched.all(may) {
        return illegal(gpu);
    }
    let place = |address| match local.memory.find(address, 1) {
        Some(region) => region.place,
        None => Place::Gpu(gpu),
    };
    let own = Place::Gpu(gpu);
    let (places, cost) = match effect {
        Effect::Copy { target, source, bytes } => {
            let places = (place(source), place(target));
            (places, cost::kernel_copy(machine, gpu, places, bytes))
        }
        Effect::Read { source: found, bytes, .. } | Effect::Compare { found, bytes, .. } => {
            ((place(found), own), cost::kernel_read(machine, gpu, place(found), bytes))
        }
        Effect::Write { target, bytes, .. } => {
            ((own, place(target)), cost::kernel_write(machine, gpu, place(target), bytes))
        }
        Effect::Chase { list, hops, .. } => {
            ((place(list), own), cost::chase(machine, gpu, place(list), hops))
        }
        Effect::Spin { duration_ns, .. } => ((own, own), cost::spin(machine, gpu, duration_ns)),
        Effect::Hold { flag, .. } => ((place(flag), own), Cost::default()),
        Effect::StoreInAll { .. } | Effect::ReduceAll { .. } => return illegal(gpu),
    };
    let private = match effect {
        Effect::Copy { target, source, .. } => [target, source]
            .iter()
            .all(|&address| local.memory.find(address, 1).is_some_and(Region::is_private)),
        _ => false,
    };
    let kernel = Box::new(Kernel { launch, effect, gpu, places, private });
    let Effect::Hold { flag, ticket, .. } = effect else {
        return (Work::Transfer(cost), Action::Launch(kernel));
    };
    let condition = Condition { test: Test::Reached, wide: false };
    let key = local.memory.find(flag, 4).map_or_else(Default::default, |r| r.word(flag, 32));
    let operand = u64::from(ticket);
    let gate = Gate { kind: GateKind::Hold, key, condition, operand };
    (Work::Gate(gate), Action::Hold(kernel, Watched { address: flag, key, condition, operand }))
}

/// The memory that a kernel touches: where, how much, how.
fn touched(effect: Effect) -> Vec<(u64, u64, Access)> {
    use Access::{Load, Store};
    match effect {
        Effect::Copy { target, source, bytes } => {
            vec![(source, bytes, Load), (target, bytes, Store)]
        }
        Effect::Read { source, bytes, result } => vec![(source, bytes, Load), (result, 8, Store)],
        Effect::Write { target, bytes, .. } => vec![(target, bytes, Store)],
        Effect::Compare { found, bytes, result, .. } => {
            vec![(found, bytes, Load), (result, 16, Store)]
        }
        Effect::Hold { flag, timed_out, .. } => vec![(flag, 4, Load), (timed_out, 4, Store)],
        Effect::Chase { list, hops, cycles, result } => {
            vec![(list, 8, Load), (cycles, hops.saturating_mul(4), Store), (result, 24, Store)]
        }
        Effect::Spin { result, .. } => vec![(result, 16, Store)],
        Effect::StoreInAll { .. } | Effect::ReduceAll { .. } => vec![],
    }
}

fn may_touch(
    machine: &Machine,
    local: &Local,
    gpu: u32,
    (address, bytes): (u64, u64),
    access: Access,
) -> bool {
    let region = local.memory.find(address, bytes);
    region.is_some_and(|region| may(machine, local, gpu, region, access))
}
