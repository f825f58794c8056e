//! Streams, waits for events and words, and functions of the host in streams.

use std::ffi::c_void;

use super::{
    Code, Out, driver,
    queue::{Queueing, close_drained, open},
    rest::{First, at_first},
};
use crate::{
    execute::{Action, Function, Watched, load},
    memory::contents::range,
    state::World,
    timing::{
        Gate, GateKind, Work,
        words::{Condition, Key, Test, Write},
    },
};

/// The smallest, which is the highest, priority of a stream; 0 is the lowest.
pub(super) const GREATEST_PRIORITY: i32 = -5;

driver! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) |world| {
        create(world, &stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |world| {
        create(world, &stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: u64) |world| {
        let mut local = world.local();
        local.initialised()?;
        let handle = stream;
        let stream = local.streams.remove(handle).ok_or(Code::INVALID_HANDLE)?;
        local.captures.remove(&handle);
        // What is queued goes on.
        local.closing.push(stream.slot);
        close_drained(world, &mut local);
        Ok(())
    }

    fn cuStreamSynchronize(stream: u64) |world| {
        Queueing::find(world, stream)?.synchronize()
    }

    fn cuStreamQuery(stream: u64) |world| {
        Queueing::find(world, stream)?.query()
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) |world| {
        let local = world.local();
        let stream = local.streams.get(stream).ok_or(Code::INVALID_HANDLE)?;
        flags.set(u32::from(!stream.blocking))
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) |world| {
        let local = world.local();
        priority.set(local.streams.get(stream).ok_or(Code::INVALID_HANDLE)?.priority)
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) |world| {
        let local = world.local();
        let gpu = match stream {
            0 | 1 => local.current(world)?,
            handle => local.streams.get(handle).ok_or(Code::INVALID_HANDLE)?.gpu,
        };
        context.set(local.context_handle(gpu))
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |world| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut queueing = Queueing::on(world, stream)?;
        let event = *queueing.local.events.get(event).ok_or(Code::INVALID_HANDLE)?;
        queueing.push_wait(event.slot);
        Ok(())
    }

    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) |world| {
        wait_value(world, stream, (address, 32), u64::from(value), flags)
    }

    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) |world| {
        wait_value(world, stream, (address, 64), value, flags)
    }

    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) |world| {
        write_value(world, stream, (address, 32), u64::from(value), flags)
    }

    fn cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32) |world| {
        write_value(world, stream, (address, 64), value, flags)
    }

    fn cuLaunchHostFunc(
        stream: u64,
        function: Option<extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) |world| {
        let mut queueing = Queueing::on(world, stream)?;
        let function = Function { function: function.ok_or(Code::INVALID_VALUE)?, data };
        let condition = Condition { test: Test::Equal, wide: false };
        let (kind, key) = (GateKind::Function, Key::default());
        let gate = Work::Gate(Gate { kind, key, condition, operand: 0 });
        queueing.push(gate, Some(Action::Call(function)));
        Ok(())
    }
}

fn create(world: &World, stream: &Out<u64>, flags: u32, priority: i32) -> Result<(), Code> {
    let mut local = world.local();
    let gpu = local.current(world)?;
    if flags > 1 || stream.pointer().is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let opened = open(world, &mut local, gpu, flags == 0, priority)?;
    stream.set(local.streams.add(opened))
}

/// The word of `bits` at `address`, which streams can reach.
fn word(queueing: &Queueing<'_>, address: u64, bits: u64) -> Result<Key, Code> {
    if !address.is_multiple_of(bits / 8) {
        return Err(Code::INVALID_VALUE);
    }
    let region = queueing.local.memory.find(address, bits / 8).ok_or(Code::INVALID_VALUE)?;
    Ok(region.word(address, bits))
}

fn wait_value(
    world: &World,
    stream: u64,
    (address, bits): (u64, u64),
    operand: u64,
    flags: u32,
) -> Result<(), Code> {
    at_first(world, stream, First::WaitValue)?;
    let mut queueing = Queueing::on(world, stream)?;
    // CU_STREAM_WAIT_VALUE_FLUSH is for writes by other devices, of which there are none.
    let test = match flags & !(1 << 30) {
        0 => Test::Reached,
        1 => Test::Equal,
        2 => Test::And,
        3 => Test::Nor,
        _ => return Err(Code::INVALID_VALUE),
    };
    let key = word(&queueing, address, bits)?;
    world.executor.contents().close(range(address, bits / 8));
    forget_what_was_overwritten(world, address, key);
    let condition = Condition { test, wide: bits == 64 };
    let gate = Gate { kind: GateKind::Value, key, condition, operand };
    let watched = Watched { address, key, condition, operand };
    queueing.push(Work::Gate(gate), Some(Action::Watch(watched)));
    Ok(())
}

/// What streams have written to the word counts no more, once another has written it since.
fn forget_what_was_overwritten(world: &World, address: u64, key: Key) {
    let mut plane = world.plane();
    let done =
        |write: &Write| world.shared.board(write.place as usize).has_executed(write.index + 1);
    plane.words.forget_if(key, |writes| {
        // What is not done yet may be done by the time the word is looked at.
        let (past, coming): (Vec<Write>, Vec<Write>) = writes.partition(done);
        let found = load(address, key.bits);
        past.last().is_some_and(|write| write.value != found)
            && coming.iter().all(|write| write.value != found)
    });
}

fn write_value(
    world: &World,
    stream: u64,
    (address, bits): (u64, u64),
    value: u64,
    flags: u32,
) -> Result<(), Code> {
    at_first(world, stream, First::WriteValue)?;
    let mut queueing = Queueing::on(world, stream)?;
    // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER allows less order than there is here.
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let key = word(&queueing, address, bits)?;
    let action = Action::Write { address, value, wide: bits == 64 };
    queueing.push(Work::Write { key, value }, Some(action));
    Ok(())
}
