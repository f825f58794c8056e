//! What operations do to memory: to its bytes, or to what is known of them.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::{Action, Copy, Kernel};
use crate::{
    kernels::{Effect, Expected},
    memory::{
        content::Content,
        contents::{Contents, range},
        repeats::Copied,
    },
    state::World,
    timing::cost::Place,
};

/// Does what an operation does.
pub(super) fn act(world: &World, action: &Action) {
    let executor = &world.executor;
    match action {
        Action::Copy(copy) => move_bytes(world, *copy, || {
            // SAFETY: both ranges were looked up when the copy was queued, or belong to the
            // program, which has promised them; memory is let go of only after its streams.
            unsafe {
                std::ptr::copy(
                    copy.source as *const u8,
                    copy.target as *mut u8,
                    copy.bytes as usize,
                );
            }
        }),
        Action::Store { target, data, places } => {
            let bytes = data.len() as u64;
            writing(world, *target, bytes, || {
                // SAFETY: the target was looked up when the copy was queued, and is let go of only
                // after its streams.
                unsafe { std::ptr::copy(data.as_ptr(), *target as *mut u8, data.len()) };
            });
            flip(world, *target, bytes, *places);
        }
        Action::Set { target, value, width, count } => {
            let content = Content::set(*value, *width);
            put(world, *target, width * count, &content, || set(*target, *value, *width, *count));
        }
        Action::Launch(kernel) => {
            let hop_ns = |address| world.load_latency_ns(kernel.gpu, address);
            // SAFETY: the memory was looked up when the kernel was launched, and is let go of only
            // after its stream has been waited for.
            launch(world, kernel, || unsafe { kernel.launch.run(&hop_ns) });
        }
        Action::Write { address, value, wide } => {
            let bytes = if *wide { 8 } else { 4 };
            writing(world, *address, bytes, || write(*address, *value, *wide));
        }
        Action::Fail { gpu, code } => {
            executor.errors[*gpu as usize].store(*code, Ordering::Release)
        }
        // These are gates; a watched word that was written before it was reached has opened.
        Action::Hold(..) | Action::Watch(_) | Action::Call(_) | Action::Meet(_) => {}
    }
}

/// Moves bytes: by what is known of them, or else by `really`, unless they are there already.
fn move_bytes(world: &World, copy: Copy, really: impl FnOnce()) {
    let Copy { target, source, bytes, places, private } = copy;
    let contents = || world.executor.contents();
    if is_copied_as_bytes(&mut contents(), copy) {
        let copied = Copied { target, source, bytes, what: 0 };
        let writes = || contents().repeats.writes(copied, |at| world.shared.writes(at));
        let before = writes();
        if !(private && contents().repeats.has(copied, before)) {
            let own = writing(world, target, bytes, really);
            // Beside this write's own beginning and end nobody's may lie between.
            let after = writes();
            if private && after == before + own {
                contents().repeats.copied(copied, after);
            }
        }
    } else {
        writing(world, target, bytes, || contents().copy(target, source, bytes));
    }
    flip(world, target, bytes, places);
}

/// Whether all of a source lies in memory as bytes; it does from now on, if the target's bytes are
/// needed.
fn is_copied_as_bytes(contents: &mut Contents, copy: Copy) -> bool {
    let [from, to] = [copy.source, copy.target].map(|start| range(start, copy.bytes));
    let overlap = from.start < to.end && to.start < from.end;
    if overlap || !contents.is_describable(&to) {
        contents.store(&from);
    }
    !contents.is_described(&from)
}

/// Notes that a range holds `content`, or lets `really` write it where its bytes are needed.
fn put(world: &World, start: u64, bytes: u64, content: &Content, really: impl FnOnce()) {
    let range = range(start, bytes);
    let is_described = world.executor.contents().is_describable(&range);
    writing(world, start, bytes, || {
        if is_described { world.executor.contents().put(range, content) } else { really() }
    });
}

/// Lets `really` write a range, and everybody know; how many times that was counted.
fn writing(world: &World, start: u64, bytes: u64, really: impl FnOnce()) -> u64 {
    writing_all(world, &[start], bytes, really).len() as u64
}

/// The same for several ranges of `bytes`; the counters, each as often as it was counted.
fn writing_all(world: &World, starts: &[u64], bytes: u64, really: impl FnOnce()) -> Vec<usize> {
    let count = || {
        let mut contents = world.executor.contents();
        let written = |&start| contents.repeats.written(start, bytes);
        let counters: Vec<usize> = starts.iter().flat_map(written).collect();
        counters.iter().for_each(|&at| world.shared.count_write(at));
        counters
    };
    let mut counted = count();
    starts.iter().for_each(|&start| world.executor.contents().forget(&range(start, bytes)));
    really();
    // Others may see the memory only since it began.
    counted.extend(count());
    counted
}

/// Lets `run` do what a kernel does by multimem instructions, unless that would change nothing.
fn through_switches(world: &World, kernel: &Kernel, run: impl FnOnce()) {
    let multicast = &kernel.launch.multicast;
    let at = |address: u64| {
        let offset = address.wrapping_sub(multicast.start);
        let members = multicast.members.iter();
        members.map(|&member| member.wrapping_add(offset)).collect::<Vec<u64>>()
    };
    // Where each GPU's memory is read, if it is; where memory is written.
    let (sources, targets, bytes) = match kernel.effect {
        Effect::StoreInAll { target, bytes } => (Vec::new(), at(target), bytes),
        Effect::ReduceAll { target, source, bytes, to_all } => {
            (at(source), if to_all { at(target) } else { vec![target] }, bytes)
        }
        _ => return,
    };
    // The parameters say what is done; so much that they can't be the same by chance.
    let mut hasher = DefaultHasher::new();
    (kernel.launch.kernel.name, &kernel.launch.parameters).hash(&mut hasher);
    let what = hasher.finish() | 1;
    // All sources and all targets are in one of these.
    let copies: Vec<Copied> = (0..sources.len().max(targets.len()))
        .map(|place| {
            let of = |list: &[u64]| list.get(place).or(list.last()).copied().unwrap_or(0);
            Copied { target: of(&targets), source: of(&sources), bytes, what }
        })
        .collect();
    let writes = |copied: Copied| {
        world.executor.contents().repeats.writes(copied, |at| world.shared.writes(at))
    };
    let before: Vec<u64> = copies.iter().map(|&copied| writes(copied)).collect();
    let has =
        |(copied, &writes): (&Copied, &u64)| world.executor.contents().repeats.has(*copied, writes);
    if !(kernel.private && copies.iter().zip(&before).all(has)) {
        let counted = writing_all(world, &targets, bytes, run);
        for (&copied, before) in copies.iter().zip(before) {
            let own = world.executor.contents().repeats.writes(copied, |counter| {
                counted.iter().filter(|&&at| at == counter).count() as u64
            });
            let after = writes(copied);
            if kernel.private && after == before + own {
                world.executor.contents().repeats.copied(copied, after);
            }
        }
    }
    let own = Place::Gpu(kernel.gpu);
    for (place, &member) in multicast.gpus.iter().enumerate() {
        match (kernel.effect, targets.get(place).or(targets.last())) {
            (Effect::StoreInAll { .. }, Some(&target)) => {
                flip(world, target, bytes, (own, Place::Gpu(member)));
            }
            (Effect::ReduceAll { to_all, .. }, Some(&target)) => {
                flip(world, target, bytes, (Place::Gpu(member), own));
                if to_all {
                    flip(world, target, bytes, (own, Place::Gpu(member)));
                }
            }
            _ => {}
        }
    }
}

/// Lets `run` do what a kernel does.
pub(super) fn launch(world: &World, kernel: &Kernel, run: impl FnOnce()) {
    match kernel.effect {
        Effect::Copy { target, source, bytes } => {
            let (places, private) = (kernel.places, kernel.private);
            move_bytes(world, Copy { target, source, bytes, places, private }, run);
        }
        Effect::Write { target, bytes, what } => {
            put(world, target, bytes, &Content::written(what, target), run);
            if kernel.places.0 != kernel.places.1 {
                flip(world, target, bytes, kernel.places);
            }
        }
        Effect::Read { source, bytes, result } => read(world, (source, bytes), result, run),
        Effect::Compare { found, bytes, expected, result } => {
            compare(world, (found, bytes), expected, result, run);
        }
        Effect::Hold { timed_out, .. } => {
            writing(world, timed_out, 4, run);
        }
        Effect::Chase { list, hops, cycles, result } => {
            let all = world.local().memory.find(list, 1).map(|all| all.start..all.end());
            world.executor.contents().store(&all.unwrap_or(list..list));
            writing(world, cycles, 4 * hops, || {
                writing(world, result, 24, run);
            });
        }
        Effect::Spin { duration_ns, result } => spin(world, kernel.gpu, duration_ns, result),
        Effect::StoreInAll { .. } | Effect::ReduceAll { .. } => {
            through_switches(world, kernel, run)
        }
    }
}

/// Writes how many cycles of its GPU's clock a kernel has spun for, and for how long.
fn spin(world: &World, gpu: u32, duration_ns: u64, result: u64) {
    let highest = f64::from(world.machine.gpus[gpu as usize].sm_clock_mhz) / 1000.0;
    let cycles = duration_ns as f64 * highest * world.shared.load(gpu).spun_share();
    #[allow(clippy::cast_sign_loss, reason = "no factor is below 0")]
    let cycles = cycles.round() as u64;
    writing(world, result, 16, || {
        write(result, cycles, true);
        write(result + 8, duration_ns, true);
    });
}

/// Adds what a kernel reads to its result.
fn read(world: &World, (source, bytes): (u64, u64), result: u64, run: impl FnOnce()) {
    let mut contents = world.executor.contents();
    contents.store(&range(result, 8));
    let sum = contents.sum(&range(source, bytes));
    if sum.is_none() {
        contents.store(&range(source, bytes));
    }
    drop(contents);
    writing(world, result, 8, || match sum {
        Some(sum) => write(result, load(result, 64).wrapping_add(sum), true),
        None => run(),
    });
}

/// Compares what memory holds with what is expected.
fn compare(
    world: &World,
    (found, bytes): (u64, u64),
    expected: Expected,
    result: u64,
    run: impl FnOnce(),
) {
    let found = range(found, bytes);
    let mut contents = world.executor.contents();
    contents.store(&range(result, 16));
    let wrong = contents.is_described(&found).then(|| contents.compare(&found, expected));
    drop(contents);
    writing(world, result, 16, || match wrong {
        Some(wrong) if wrong.count > 0 => {
            write(result, load(result, 64).wrapping_add(wrong.count), true);
            write(result + 8, load(result + 8, 64).min(wrong.first), true);
        }
        Some(_) => {}
        None => run(),
    });
}

fn flip(world: &World, target: u64, bytes: u64, places: (Place, Place)) {
    world.executor.flips.after_transfer(places, bytes, |offset| {
        world.executor.contents().store(&range(target + offset, 1));
        writing(world, target + offset, 1, || {
            let byte = (target + offset) as *mut u8;
            // SAFETY: the byte is inside the target of the transfer that has just been made.
            let value = unsafe { byte.read() };
            // SAFETY: as above.
            unsafe { byte.write(value ^ 1) };
        });
    });
}

fn set(target: u64, value: u32, width: u64, count: u64) {
    let count = count as usize;
    match width {
        // SAFETY: the range was looked up when the operation was queued.
        1 => unsafe { std::ptr::write_bytes(target as *mut u8, value as u8, count) },
        2 => {
            // SAFETY: as above; the driver has refused an address that is not a multiple.
            unsafe { std::slice::from_raw_parts_mut(target as *mut u16, count) }.fill(value as u16);
        }
        // SAFETY: as above.
        _ => unsafe { std::slice::from_raw_parts_mut(target as *mut u32, count) }.fill(value),
    }
}

fn write(address: u64, value: u64, wide: bool) {
    if wide {
        // SAFETY: the word was looked up when the write was queued, and is aligned; the program
        // may read it at the same time, and others write it, so it is touched as an atomic.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
    } else {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, Ordering::Release);
    }
}

/// The word of `bits` at `address`.
pub(crate) fn load(address: u64, bits: u64) -> u64 {
    if bits == 64 {
        // SAFETY: the word was looked up, and is aligned; whoever else touches it may do so at
        // the same time, so it is read as an atomic.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
    } else {
        // SAFETY: as above.
        u64::from(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire))
    }
}
