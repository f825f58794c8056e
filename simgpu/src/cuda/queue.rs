//! Queueing operations on streams, and waiting for them.

use std::{sync::MutexGuard, thread, time::Duration};

use super::{
    Code, graph,
    local::{Local, Stream},
};
use crate::{
    execute::Action,
    fabric,
    state::World,
    timing::{
        CONNECTIONS, GPUS, Gate, GateKind, Guard, Operation, RING, STREAMS, Work,
        event::{self, Latest},
        meeting::{Post, Posted, Refusal},
        words::{Condition, Key, Test},
    },
};

/// A stream on which this thread may queue now; other threads wait.
pub(crate) struct Queueing<'w> {
    pub world: &'w World,
    pub local: MutexGuard<'w, Local>,
    /// Of whose context the stream is.
    pub gpu: u32,
    /// 0: stream 0.
    handle: u64,
}

impl<'w> Queueing<'w> {
    /// On the stream of a handle, or on stream 0 of the current context. Waits until there is room,
    /// however long that takes.
    pub(crate) fn on(world: &'w World, handle: u64) -> Result<Self, Code> {
        loop {
            let mut queueing = Self::find(world, handle)?;
            let Stream { slot, queued, .. } = *queueing.stream();
            let executed = world.executor.executed(slot);
            let all = queueing.local.queued - world.executor.executed_in_all();
            // The operation itself, and waits that are added before it.
            let places = 1 + queueing.followed();
            let room = queued - executed + places <= world.machine.driver.queue_entries;
            // A gate can be in the ring twice.
            let room_in_all = all + places + STREAMS as u64 <= RING as u64;
            if room && room_in_all {
                return Ok(queueing);
            }
            drop(queueing);
            if room {
                await_any(world);
            } else {
                synchronize(world, slot, executed + 1);
            }
        }
    }

    /// The same, whether there is room or not.
    pub(crate) fn find(world: &'w World, handle: u64) -> Result<Self, Code> {
        let mut local = world.local();
        let current = local.current(world)?;
        // CU_STREAM_LEGACY is another name of stream 0.
        let handle = if handle == 1 { 0 } else { handle };
        graph::refuse(&mut local, handle)?;
        let gpu = match handle {
            0 => {
                legacy(world, &mut local, current)?;
                current
            }
            _ => local.streams.get(handle).ok_or(Code::INVALID_HANDLE)?.gpu,
        };
        match world.executor.error(gpu) {
            0 => Ok(Self { world, local, gpu, handle }),
            code => Err(Code(code)),
        }
    }

    /// Queues an operation, with what it does; where it is: the stream's place and its number.
    pub(crate) fn push(&mut self, work: Work, action: Option<Action>) -> (usize, u64) {
        let world = self.world;
        let slot = self.stream().slot;
        let acts = action.is_some();
        if let Some(action) = action {
            world.executor.queue(slot, action);
        }
        let mut plane = world.plane();
        let queued_ps = self.follow(&mut plane, world.host_ps());
        let sequence = plane.enqueue(slot, Operation::new(queued_ps, work, acts));
        drop(plane);
        self.count(1);
        (slot, sequence)
    }

    /// Queues a rank's post, with its messages: the stream waits for the other ranks.
    pub(crate) fn push_post(&mut self, post: Post, messages: &[Posted]) -> Result<(), Refusal> {
        let world = self.world;
        let stream = *self.stream();
        let mut plane = world.plane();
        let post = Post { place: world.place as u32, stream: stream.slot as u32, ..post };
        let at = plane.meetings.add(post)?;
        for posted in messages {
            if let Err(refusal) = plane.meetings.add_message(at, *posted) {
                plane.meetings.remove(at);
                return Err(refusal);
            }
        }
        let queued_ps = self.follow(&mut plane, world.host_ps());
        plane.meetings.posts[at].sequence = plane.streams[stream.slot].queued;
        world.executor.queue(stream.slot, Action::Meet(at));
        let key = Key { offset: at as u64, ..Key::default() };
        let condition = Condition { test: Test::Equal, wide: false };
        let gate = Work::Gate(Gate { kind: GateKind::Meet, key, condition, operand: 0 });
        plane.enqueue(stream.slot, Operation::new(queued_ps, gate, true));
        drop(plane);
        self.count(1);
        Ok(())
    }

    /// Where the stream is among all of the machine, and how many operations it has had.
    pub(crate) fn position(&mut self) -> (usize, u64) {
        let stream = self.stream();
        (stream.slot, stream.queued)
    }

    /// Makes an event record when the stream gets here.
    pub(crate) fn push_record(&mut self, at: usize) {
        let slot = self.stream().slot;
        let mut plane = self.world.plane();
        let queued_ps = self.follow(&mut plane, self.world.host_ps());
        let sequence = plane.streams[slot].queued;
        let event = &mut plane.events[at];
        event.version += 1;
        event.timed = false;
        event.stream = slot as u32;
        event.sequence = sequence;
        let work = Work::Record { event: at as u32, version: event.version };
        plane.enqueue(slot, Operation::new(queued_ps, work, false));
        drop(plane);
        self.count(1);
    }

    /// Makes the stream wait for what an event has recorded last, if it has.
    pub(crate) fn push_wait(&mut self, event: usize) {
        let slot = self.stream().slot;
        let mut plane = self.world.plane();
        let latest = event::latest(&plane.events[event]);
        if latest == Latest::Never {
            return;
        }
        let queued_ps = self.follow(&mut plane, self.world.host_ps());
        match latest {
            Latest::Queued { stream, sequence } => {
                plane.enqueue_wait(slot, queued_ps, true, (stream, sequence));
            }
            Latest::Timed { time_ps: until_ps, .. } => {
                let work = Work::Wait { by_event: true, known: true, until_ps };
                plane.enqueue(slot, Operation::new(queued_ps, work, false));
            }
            Latest::Never => {}
        }
        drop(plane);
        self.count(1);
    }

    /// Waits until all that is queued on the stream has been executed; others may go on meanwhile.
    pub(crate) fn synchronize(mut self) -> Result<(), Code> {
        let Stream { slot, queued, .. } = *self.stream();
        let (world, gpu) = (self.world, self.gpu);
        drop(self);
        synchronize(world, slot, queued);
        match world.executor.error(gpu) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Whether all that is queued on the stream has been executed; if so, the host has waited.
    pub(crate) fn query(mut self) -> Result<(), Code> {
        let Stream { slot, queued, .. } = *self.stream();
        let (world, gpu) = (self.world, self.gpu);
        drop(self);
        let is_done = || world.executor.executed(slot) >= queued;
        world.help(is_done);
        let end_ps = is_done().then(|| world.executor.end_ps(slot));
        if fabric::looks_again(world, end_ps, is_done) {
            return Err(Code::NOT_READY);
        }
        world.reach(world.executor.end_ps(slot));
        match world.executor.error(gpu) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    fn stream(&mut self) -> &mut Stream {
        let found = match self.handle {
            0 => self.local.contexts[self.gpu as usize].legacy.as_mut(),
            handle => self.local.streams.get_mut(handle),
        };
        // `find` has found it, and the lock has been held since.
        found.expect("the stream is there as long as the lock is held")
    }

    /// Streams for which the next operation may have to wait.
    fn followed(&mut self) -> u64 {
        let gpu = self.gpu;
        let blocking = |stream: &Stream| stream.blocking && stream.gpu == gpu;
        match self.handle {
            0 => self.local.streams.all().filter(|(_, stream)| blocking(stream)).count() as u64,
            _ => u64::from(self.stream().blocking),
        }
    }

    fn count(&mut self, operations: u64) {
        self.stream().queued += operations;
        self.local.queued += operations;
    }

    /// Makes the next operation wait as stream 0 demands: a blocking stream for stream 0, and
    /// stream 0 for all blocking streams. The time before which the operation can't begin.
    fn follow(&mut self, plane: &mut Guard<'_>, now_ps: u64) -> u64 {
        let own = *self.stream();
        let mut begin_ps = now_ps;
        let mut waits = 0;
        if self.handle == 0 {
            let gpu = self.gpu;
            let blocking = self.local.streams.all_mut();
            for other in blocking.filter(|other| other.blocking && other.gpu == gpu) {
                if other.leading < other.queued {
                    other.leading = other.queued;
                    begin_ps = begin_ps.max(after(plane, own.slot, other.slot, &mut waits));
                }
            }
        } else if own.blocking
            && let Some(legacy) = self.local.contexts[self.gpu as usize].legacy
            && own.followed < legacy.queued
        {
            self.stream().followed = legacy.queued;
            begin_ps = begin_ps.max(after(plane, own.slot, legacy.slot, &mut waits));
        }
        self.count(waits);
        begin_ps
    }
}

/// Makes the next operation of `slot` wait for the last one of `other`: by a wait that is queued,
/// if that has not been timed, else by the time that is returned.
fn after(plane: &mut Guard<'_>, slot: usize, other: usize, waits: &mut u64) -> u64 {
    let last = plane.streams[other];
    if last.timed == last.queued {
        return last.end_ps;
    }
    plane.enqueue_wait(slot, 0, false, (other, last.queued - 1));
    *waits += 1;
    0
}

/// Waits until anything has been executed. So many operations are queued then that a sleep between
/// two looks costs nothing.
fn await_any(world: &World) {
    let before = world.executor.executed_in_all();
    let is_there = || world.executor.executed_in_all() > before;
    loop {
        world.help(is_there);
        if is_there() {
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Stream 0 of a GPU's context, made when it is first needed.
fn legacy(world: &World, local: &mut Local, gpu: u32) -> Result<Stream, Code> {
    if let Some(stream) = local.context(gpu).legacy {
        return Ok(stream);
    }
    let stream = open(world, local, gpu, false, 0)?;
    local.context(gpu).legacy = Some(stream);
    Ok(stream)
}

/// Takes a stream of the machine for a GPU's context.
pub(crate) fn open(
    world: &World,
    local: &mut Local,
    gpu: u32,
    blocking: bool,
    priority: i32,
) -> Result<Stream, Code> {
    close_drained(world, local);
    local.stream_count += 1;
    let connections = local.connections;
    let context = local.context(gpu);
    let connection = context.stream_count % connections;
    context.stream_count += 1;
    let connection = (world.place * GPUS + gpu as usize) * CONNECTIONS + connection;
    let mut plane = world.plane();
    let taken = plane.take_stream(world.place, local.stream_count, connection).or_else(|| {
        plane.bury_the_dead();
        plane.take_stream(world.place, local.stream_count, connection)
    });
    let slot = taken.ok_or(Code::OUT_OF_MEMORY)?;
    let queued = plane.streams[slot].queued;
    drop(plane);
    world.executor.adopt(slot, gpu, queued);
    // The first operation waits for stream 0, whatever that has done before.
    Ok(Stream { slot, gpu, blocking, priority, queued, followed: 0, leading: queued })
}

/// Gives streams back that were destroyed and have nothing left to do.
pub(crate) fn close_drained(world: &World, local: &mut Local) {
    local.closing.retain(|&slot| {
        let mut plane = world.plane();
        let drained = world.executor.executed(slot) == plane.streams[slot].queued;
        if drained {
            plane.streams[slot].used = false;
        }
        !drained
    });
}

/// Waits until a stream has executed `count` operations; the host's time goes on to then.
pub(crate) fn synchronize(world: &World, slot: usize, count: u64) {
    world.await_executed(slot, count);
    world.reach(world.executor.end_ps(slot));
}

/// Waits until all has been executed that is queued on the streams of a GPU, or of all.
pub(crate) fn synchronize_all(world: &World, gpu: Option<u32>) {
    let local = world.local();
    let gpus = 0..local.contexts.len() as u32;
    let gpus = gpus.filter(|own| gpu.is_none_or(|gpu| gpu == *own));
    let mut all: Vec<(usize, u64)> = gpus
        .flat_map(|gpu| local.streams_of(gpu).collect::<Vec<_>>())
        .map(|stream| (stream.slot, stream.queued))
        .collect();
    let plane = world.plane();
    all.extend(local.closing.iter().map(|&slot| (slot, plane.streams[slot].queued)));
    drop(plane);
    drop(local);
    for (slot, queued) in all {
        synchronize(world, slot, queued);
    }
}

/// Waits until all has been executed that this process has queued; nothing more can be queued
/// before the lock is let go of.
pub(crate) fn idle(world: &World) -> MutexGuard<'_, Local> {
    loop {
        synchronize_all(world, None);
        let local = world.local();
        if local.queued == world.executor.executed_in_all() {
            return local;
        }
    }
}
