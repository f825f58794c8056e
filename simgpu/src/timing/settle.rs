//! Timing what is queued: which operation is next, when it starts, when it ends.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::atomic::{Ordering, compiler_fence},
};

use super::{
    Guard, STREAMS,
    cost::{Cost, HOST, Leg, Medium},
    plane::{Connection, Gate, GateKind, Operation, Stream, Work, link, linked, slot},
    ps_of_ns,
    words::{Key, Write},
};
use crate::machine::Jitter;

/// A stream whose head can be timed, smallest first: since when it is ready, its process, its
/// number there, and where it is.
type Turn = Reverse<(u64, u32, u64, usize)>;

/// Streams that may have become ready, the earliest first.
pub(super) type Turns = BinaryHeap<Turn>;

/// What the executor learns of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum What {
    /// It is done, and there is nothing to do for it.
    #[default]
    Done,
    /// It is done: execute it.
    Execute,
    /// It is a gate that has been reached: begin to look.
    Reached,
    /// It is a gate that was reached before and has opened.
    Opened,
}

/// A change of the plane that happens wholly, also if its process dies in the middle. Taking it
/// a second time changes nothing.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Step {
    pub armed: bool,
    pub what: What,
    pub stream: u32,
    pub sequence: u64,
    /// The operation's place in its connection, and when it begins; `None`: it has not begun.
    pub begun: Option<(u64, u64)>,
    pub end_ps: u64,
    /// The process that executes it, and the number in its order.
    pub place: u32,
    pub index: u64,
    /// What must have been executed before: a process and a number in its order.
    pub after: Option<After>,
}

/// A place in a process's order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct After {
    pub place: u32,
    pub index: u64,
}

/// What becomes of the head of a stream.
#[derive(Clone, Copy, Debug)]
struct Change {
    what: What,
    /// When it begins; `None`: it has not begun.
    begun_ps: Option<u64>,
    end_ps: u64,
    after: Option<After>,
}

impl Change {
    fn of(what: What, begun_ps: u64, end_ps: u64) -> Self {
        Self { what, begun_ps: Some(begun_ps), end_ps, after: None }
    }
}

impl Guard<'_> {
    /// Queues an operation and times what can be timed; its number in its stream.
    pub(crate) fn enqueue(&mut self, stream: usize, operation: Operation) -> u64 {
        let sequence = self.streams[stream].queued;
        let connection = self.streams[stream].connection as usize;
        let number = self.connections[connection].queued;
        *self.operation(stream, sequence) = Operation { number, ..operation };
        // Whoever finishes the work of a process that died must see the operation before the count.
        compiler_fence(Ordering::SeqCst);
        self.connections[connection].queued = number + 1;
        self.streams[stream].queued = sequence + 1;
        let turn = self.turn(stream);
        self.settle(turn, BinaryHeap::new());
        sequence
    }

    /// Queues a wait for the operation `on` of another stream, which has not been overwritten.
    pub(crate) fn enqueue_wait(
        &mut self,
        stream: usize,
        queued_ps: u64,
        by_event: bool,
        on: (usize, u64),
    ) -> u64 {
        let sequence = self.streams[stream].queued;
        let work = Work::Wait { by_event, known: false, until_ps: 0 };
        let mut wait = Operation::new(queued_ps, work, false);
        let awaited = self.operation(on.0, on.1);
        wait.next_waiter = awaited.first_waiter;
        awaited.first_waiter = link(stream, sequence);
        self.enqueue(stream, wait)
    }

    /// Opens every gate on the word `key` that `value` satisfies. A gate of the driver opens at
    /// the host's time; held kernels end together, not before the last of them was queued.
    pub(crate) fn open(&mut self, key: Key, value: u64) {
        let now_ps = self.shared.host_ps(self.host);
        let open = self.gates(key, value);
        let held = open.iter().filter(|(_, gate)| gate.kind == GateKind::Hold);
        let together_ps = held.map(|&(stream, _)| self.head(stream).queued_ps).max().unwrap_or(0);
        let mut turns = BinaryHeap::new();
        for (stream, gate) in open {
            let at_ps = if gate.kind == GateKind::Hold { together_ps } else { now_ps };
            self.pass(stream, at_ps, None, &mut turns);
        }
        self.settle(None, turns);
    }

    /// Opens the gate that is the operation `sequence` of `stream`, if it is still closed.
    pub(crate) fn open_one(&mut self, stream: usize, sequence: u64) {
        if self.is_closed(stream, sequence) {
            let mut turns = BinaryHeap::new();
            self.pass(stream, 0, None, &mut turns);
            self.settle(None, turns);
        }
    }

    /// Whether the gate that is the operation `sequence` of `stream` is still closed.
    pub(crate) fn is_closed(&self, stream: usize, sequence: u64) -> bool {
        self.streams[stream].gate && self.streams[stream].timed == sequence
    }

    /// Finishes what a process began that died, and what it kept others from.
    pub(crate) fn finish(&mut self) {
        if self.step.armed {
            self.take_step();
        }
        let used = (0..STREAMS).filter(|&at| self.streams[at].used);
        let turns = used.filter_map(|at| self.turn(at)).collect();
        self.settle(None, turns);
        self.arrive_again();
    }

    /// Times heads until none is left that can be timed; only those given can be now.
    pub(super) fn settle(&mut self, first: Option<Turn>, mut turns: Turns) {
        let mut next = first.or_else(|| turns.pop());
        while let Some(turn) = next {
            let stream = turn.0.3;
            // A stream can be listed twice; the first time has changed what it waits for.
            if self.turn(stream) == Some(turn) {
                self.time(stream, turn.0.0, &mut turns);
            }
            next = match (self.turn(stream), turns.peek()) {
                (Some(again), Some(top)) if *top > again => {
                    turns.push(again);
                    turns.pop()
                }
                (Some(again), _) => Some(again),
                (None, _) => turns.pop(),
            };
        }
    }

    /// When the head of `stream` is ready, if it can be timed.
    fn turn(&self, at: usize) -> Option<Turn> {
        let stream = &self.streams[at];
        if stream.timed == stream.queued || stream.gate {
            return None;
        }
        let head = &self.queues[at][slot(stream.timed)];
        let connection = &self.connections[stream.connection as usize];
        if head.number != connection.begun {
            return None;
        }
        let ready_ps = stream.end_ps.max(head.queued_ps).max(connection.begun_ps);
        let ready_ps = match head.work {
            Work::Wait { known: false, .. } => return None,
            Work::Wait { until_ps, .. } => ready_ps.max(until_ps),
            _ => ready_ps,
        };
        Some(Reverse((ready_ps, stream.place, stream.number, at)))
    }

    /// Times the head of `stream`, which is ready; adds streams that it makes ready to `turns`.
    fn time(&mut self, stream: usize, ready_ps: u64, turns: &mut BinaryHeap<Turn>) {
        let head = self.head(stream);
        let done = if head.acts { What::Execute } else { What::Done };
        match head.work {
            Work::Transfer(cost) => {
                let end_ps = self.transfer(ready_ps, &cost);
                self.step(stream, Change::of(done, ready_ps, end_ps));
            }
            Work::Record { .. } | Work::Wait { by_event: true, .. } => {
                let event_ps = self.machine.driver.event_ns * 1000;
                self.step(stream, Change::of(done, ready_ps, ready_ps + event_ps));
            }
            Work::Wait { .. } => self.step(stream, Change::of(done, ready_ps, ready_ps)),
            Work::Write { key, value } => {
                self.step(stream, Change::of(done, ready_ps, ready_ps));
                self.written(key, value, turns);
            }
            Work::Gate(gate) if gate.kind == GateKind::Meet => {
                self.step(stream, Change::of(What::Reached, ready_ps, ready_ps));
                self.arrive(gate.key.offset as usize, turns);
            }
            Work::Gate(gate) => {
                let holds = |value| gate.condition.holds(value, gate.operand);
                let write = (gate.kind == GateKind::Value)
                    .then(|| self.words.satisfied(gate.key, ready_ps, holds))
                    .flatten();
                // A kernel that holds has begun; what the driver waits for keeps the connection.
                let begun_ps = (gate.kind == GateKind::Hold).then_some(ready_ps);
                match write {
                    Some(write) => {
                        let end_ps = ready_ps.max(write.time_ps);
                        let change = Change::of(What::Execute, end_ps, end_ps);
                        self.step(stream, Change { after: Some(write.after()), ..change });
                    }
                    None => {
                        let change = Change::of(What::Reached, ready_ps, ready_ps);
                        self.step(stream, Change { begun_ps, ..change });
                    }
                }
            }
        }
        self.tell_waiters(&head, turns);
        self.tell_connection(stream, turns);
    }

    /// Adds to `turns` the stream whose operation was kept from beginning by the one that has just
    /// begun on `stream`, through the same connection.
    fn tell_connection(&self, stream: usize, turns: &mut Turns) {
        let Stream { connection, timed, queued, .. } = self.streams[stream];
        let Connection { queued: all, begun, .. } = self.connections[connection as usize];
        let is_own = timed < queued && self.head(stream).number == begun;
        if begun == all || is_own {
            return;
        }
        let others = self.streams.iter().enumerate();
        let others = others.filter(|(_, other)| other.used && other.connection == connection);
        turns.extend(others.filter_map(|(at, _)| self.turn(at)));
    }

    /// Tells those that wait for `operation`, which has just been timed.
    fn tell_waiters(&mut self, operation: &Operation, turns: &mut BinaryHeap<Turn>) {
        let mut waiter = operation.first_waiter;
        while let Some((stream, slot)) = linked(waiter) {
            turns.extend(self.turn(stream));
            waiter = self.queues[stream][slot].next_waiter;
        }
    }

    /// When a transfer ends that is ready at `ready_ps`; keeps its resources busy.
    fn transfer(&mut self, ready_ps: u64, cost: &Cost) -> u64 {
        let resources = &cost.resources[..cost.count as usize];
        let free = resources.iter().map(|&at| self.free_ps[usize::from(at)]);
        let start_ps = free.fold(ready_ps, u64::max);
        let ends = [(cost.source, cost.target)];
        let clock = if cost.spins { 1.0 } else { self.clock_share(&ends, start_ps) };
        for (&at, busy_ps) in resources.iter().zip(cost.busy_ps) {
            self.free_ps[usize::from(at)] = start_ps + slower(busy_ps, clock);
        }
        for leg in cost.legs.iter().filter(|leg| leg.medium != Medium::None) {
            self.shared.count_traffic(*leg, cost.bytes);
        }
        for (gpu, [out, into]) in cost.team.by_gpu(cost.source) {
            let leg = |source, target| Leg { source, target, medium: Medium::NvLink };
            self.shared.count_traffic(leg(gpu, HOST), out);
            self.shared.count_traffic(leg(HOST, gpu), into);
        }
        if cost.spins {
            let end_ps = start_ps + cost.duration_ps;
            self.shared.load(u32::from(cost.source)).note_spin(
                self.machine.driver,
                start_ps,
                end_ps,
            );
        }
        self.end_ps(&ends, start_ps, slower(cost.duration_ps, clock))
    }

    /// The smallest clock of the GPUs at these ends, as a share of the highest.
    pub(super) fn clock_share(&self, ends: &[(u16, u16)], at_ps: u64) -> f64 {
        let shares = gpus(ends).map(|gpu| self.shared.load(gpu).share(self.machine.driver, at_ps));
        shares.fold(1.0, f64::min)
    }

    /// When a transfer ends that begins at `start_ps` and should last `duration_ps`, from end to end
    /// or over several such ways at once. The GPUs are under load until then.
    pub(super) fn end_ps(&mut self, ends: &[(u16, u16)], start_ps: u64, duration_ps: u64) -> u64 {
        let end_ps = start_ps + self.jittered_ps(ends, start_ps, duration_ps);
        gpus(ends).for_each(|gpu| {
            self.shared.load(gpu).add(self.machine.driver, start_ps, end_ps);
        });
        end_ps
    }

    /// Counts a transfer, from end to end or over several such ways at once, that begins at
    /// `start_ps` and should last `duration_ps`; how long it lasts by chance.
    fn jittered_ps(&mut self, ends: &[(u16, u16)], start_ps: u64, duration_ps: u64) -> u64 {
        let number = self.transfers;
        self.transfers += 1;
        duration_ps + jitter_ps(&self.machine.faults.jitter, ends, number, (start_ps, duration_ps))
    }

    /// The stream writes the word now: notes it and opens what waits for it.
    fn written(&mut self, key: Key, value: u64, turns: &mut BinaryHeap<Turn>) {
        let step = self.step;
        let (place, index) = (u64::from(step.place), step.index);
        let write = Write { value, time_ps: step.end_ps, place, index };
        self.words.note(key, write);
        for (stream, _) in self.gates(key, value) {
            self.pass(stream, write.time_ps, Some(write.after()), turns);
        }
    }

    /// The closed gates on the word `key` that `value` satisfies.
    fn gates(&self, key: Key, value: u64) -> Vec<(usize, Gate)> {
        let words = self.gated.iter().enumerate().filter(|(_, bits)| **bits != 0);
        let streams = words.flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        });
        let gates = streams.filter_map(|stream| match self.head(stream).work {
            Work::Gate(gate) => Some((stream, gate)),
            _ => None,
        });
        gates
            .filter(|(_, gate)| matches!(gate.kind, GateKind::Hold | GateKind::Value))
            .filter(|(_, gate)| gate.key == key)
            .filter(|(_, gate)| gate.condition.holds(value, gate.operand))
            .collect()
    }

    /// Lets a stream pass the gate that it has reached, at `at_ps` or when it was reached.
    pub(super) fn pass(
        &mut self,
        stream: usize,
        at_ps: u64,
        after: Option<After>,
        turns: &mut BinaryHeap<Turn>,
    ) {
        let head = self.head(stream);
        let end_ps = self.streams[stream].end_ps.max(at_ps);
        self.step(stream, Change { after, ..Change::of(What::Opened, end_ps, end_ps) });
        turns.extend(self.turn(stream));
        self.tell_waiters(&head, turns);
        self.tell_connection(stream, turns);
    }

    pub(super) fn head(&self, stream: usize) -> Operation {
        self.queues[stream][slot(self.streams[stream].timed)]
    }

    /// Changes the state of the head of `stream`, for good.
    fn step(&mut self, stream: usize, Change { what, begun_ps, end_ps, after }: Change) {
        let number = self.head(stream).number;
        let place = self.streams[stream].place;
        self.step = Step {
            armed: false,
            what,
            stream: stream as u32,
            sequence: self.streams[stream].timed,
            begun: begun_ps.map(|begun_ps| (number, begun_ps)),
            end_ps,
            place,
            index: self.shared.board(place as usize).timed(),
            after,
        };
        compiler_fence(Ordering::SeqCst);
        self.step.armed = true;
        compiler_fence(Ordering::SeqCst);
        self.take_step();
    }

    fn take_step(&mut self) {
        let step = self.step;
        let at = step.stream as usize;
        let gate = step.what == What::Reached;
        let operation = self.queues[at][slot(step.sequence)];
        if !gate {
            if let Work::Record { event, version } = operation.work {
                let event = &mut self.events[event as usize];
                // A later record, or another owner's, is what counts then.
                if event.version == version {
                    event.time_ps = step.end_ps;
                    event.timed = true;
                }
            }
            self.tell_time(&operation, step.end_ps);
        }
        let connection = self.streams[at].connection as usize;
        let connection = &mut self.connections[connection];
        // Of a gate that opens it is known already.
        if let Some((number, begun_ps)) = step.begun
            && number == connection.begun
        {
            (connection.begun, connection.begun_ps) = (number + 1, begun_ps);
        }
        let stream = &mut self.streams[at];
        stream.end_ps = step.end_ps;
        stream.gate = gate;
        stream.timed = step.sequence + u64::from(!gate);
        let bit = 1 << (at % 64);
        if gate {
            self.gated[at / 64] |= bit;
        } else {
            self.gated[at / 64] &= !bit;
        }
        self.shared.board(step.place as usize).push(&step);
        self.woken |= 1 << step.place;
        compiler_fence(Ordering::SeqCst);
        self.step.armed = false;
    }

    /// Writes the time into those that wait for `operation`.
    fn tell_time(&mut self, operation: &Operation, end_ps: u64) {
        let mut waiter = operation.first_waiter;
        while let Some((stream, slot)) = linked(waiter) {
            let waiting = &mut self.queues[stream][slot];
            if let Work::Wait { known, until_ps, .. } = &mut waiting.work {
                (*known, *until_ps) = (true, end_ps);
            }
            waiter = waiting.next_waiter;
        }
    }
}

/// The GPUs among these ends; one may come several times.
fn gpus(ends: &[(u16, u16)]) -> impl Iterator<Item = u32> {
    let all = ends.iter().flat_map(|(source, target)| [*source, *target]);
    all.filter(|end| *end != HOST).map(u32::from)
}

/// A duration at a share of the highest clock.
pub(super) fn slower(duration_ps: u64, clock: f64) -> u64 {
    if clock >= 1.0 {
        return duration_ps;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let slower_ps = (duration_ps as f64 / clock).round() as u64;
    slower_ps
}

impl Write {
    fn after(&self) -> After {
        After { place: self.place as u32, index: self.index }
    }
}

/// By how much transfer `number` of the machine, from end to end or over several such ways at once,
/// lasts longer than `duration_ps` if it begins at `start_ps`.
fn jitter_ps(
    jitter: &[Jitter],
    ends: &[(u16, u16)],
    number: u64,
    (start_ps, duration_ps): (u64, u64),
) -> u64 {
    let is = |wanted: Option<u32>, found: u16| {
        wanted.is_none_or(|gpu| found != HOST && gpu == u32::from(found))
    };
    let fits = |fault: &Jitter| {
        ends.iter().any(|&(source, target)| is(fault.source, source) && is(fault.target, target))
    };
    let extra_ps = |(at, fault): (usize, &Jitter)| {
        if start_ps < ps_of_ns(fault.after_ns) {
            return 0;
        }
        let number = start_ps.checked_div(ps_of_ns(fault.lasts_ns)).unwrap_or(number);
        // Faults that fit the same transfer are drawn independently.
        let drawn = split_mix_from(fault.seed, number ^ (at as u64) << 48);
        let drawn = (drawn >> 11) as f64 / ((1_u64 << 53) as f64);
        if drawn >= fault.share {
            return 0;
        }
        // What is drawn below `share` is uniform there.
        let share = 2.0 * fault.extra_share * drawn / fault.share;
        #[allow(clippy::cast_sign_loss, reason = "neither is below 0")]
        let extra_ps = (share * duration_ps as f64).round() as u64;
        ps_of_ns(fault.extra_ns) + extra_ps
    };
    jitter.iter().enumerate().filter(|(_, fault)| fits(fault)).map(extra_ps).sum()
}

/// SplitMix64's output number `number` from seed 0.
pub(crate) fn split_mix(number: u64) -> u64 {
    split_mix_from(0, number)
}

/// SplitMix64's output number `number` from `seed` (Steele, Lea, Flood 2014).
pub(super) fn split_mix_from(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
