//! Runs one rank's part of a case.
//!
//! For bandwidth all flows stream: each initiator keeps its window full, the target confirms each
//! group of operations that has arrived, and a sample is the time between two confirmations. No
//! rank stops before all ranks have their samples, so no sample is taken beside an idle neighbour.
//! For latency operations run one after the other, each timed from the call to the delivery.

use std::time::Duration;

use super::{
    channel::{Channel, Count, Request, known},
    counters::Counters,
    inbox::Inbox,
    port::{Port, Rail},
    samples::{self, Samples},
    signal::{Barrier, Outbox, Signal, TURNS_MAX},
    stage::Stage,
    staging,
    verb::Verb,
};
use crate::{
    ffi::{
        CallError, clock,
        fabric::{Completion, Failure, Flags, Posted},
        host::BoundThread,
        watchdog::Watchdog,
    },
    plan::{Case, Rank},
    transport::{
        Clock, Error, Network, Span, Staging, Wait,
        patience::{Patience, SPINS_PER_YIELD},
    },
    units::Bytes,
    world::World,
};

/// The target of writes waits this long between polls that find nothing, because polling a socket
/// keeps the kernel from filling it. With libfabric's tcp provider this makes writes of 1 MiB a
/// third faster; 5 µs would make writes of 64 MiB a tenth slower. Receivers of messages do not
/// wait: they must request long messages first.
const REST: Duration = Duration::from_micros(1);

/// An initiator runs at most its window and this many groups ahead of the target's confirmations.
/// In libfabric 2's shm provider the target's poll returns only when nothing is left to take, so an
/// initiator that always sends more would never receive a confirmation.
const GROUPS_AHEAD: u64 = 4;

/// Looks in vain before an operation that was refused is tried again, if ranks share CPUs: each of
/// the others has its turn meanwhile. What refuses an operation of libfabric's shm provider is the
/// queue of the target, which is full. If the initiator filled it again as soon as the target has
/// emptied it, the signals of all other ranks would be refused for ever.
const REST_REFUSED: u32 = 2 * SPINS_PER_YIELD;

/// Completions fetched by one poll.
const COMPLETIONS: usize = 32;

/// Polls in a row that find completions, before other work gets its turn.
pub(super) const POLLS: usize = 16;

/// The kinds of completions. A context holds the kind in its high bits, then the channel, then the
/// number.
const OF_OPERATION: u64 = 0;
const OF_SIGNAL: u64 = 1;
pub(super) const OF_RECEIVE: u64 = 2;
pub(super) const KIND_SHIFT: u32 = 56;
const CHANNEL_SHIFT: u32 = 32;

/// What a rank waits for another one to do.
const FLOW: &str = "go on with its flow";
const END: &str = "come to its end";

/// This rank's part of a case.
pub(super) struct Streams {
    pub(super) rank: Rank,
    pub(super) verb: Verb,
    /// What one operation of the network moves: of staged data one chunk.
    pub(super) size: Bytes,
    /// Chunks of one operation of the case.
    pub(super) chunks: u64,
    pub(super) staging: Option<Staging>,
    pub(super) window: u64,
    pub(super) channels: Vec<Channel>,
    pub(super) ports: Vec<Port>,
    /// Where messages are received.
    pub(super) inbox: Option<Inbox>,
    pub(super) barrier: Barrier,
    /// The connection to each partner.
    pub(super) ways: Vec<(Rank, Rail)>,
    pub(super) outbox: Outbox,
    pub(super) signals_under_way: u64,
    /// Looks in vain before operations are started again.
    pub(super) rest: u32,
    /// The completions fetched last.
    pub(super) completions: [Completion; COMPLETIONS],
    pub(super) wait: Wait,
    /// On its own CPU, if it has one.
    pub(super) _bound: Option<BoundThread>,
    pub(super) deadline: Duration,
    /// The other end of a flow that made no progress while others did.
    pub(super) standing: Option<Rank>,
    /// Present during a run.
    pub(super) watchdog: Option<Watchdog>,
    pub(super) clock: Clock,
    /// How long its flows run before the first sample.
    pub(super) run_in: Duration,
    pub(super) network: Network,
    /// Hardware counters of the interfaces, if this rank initiates operations and they exist.
    pub(super) counters: Option<Counters>,
    /// The data of all operations that this rank has initiated and completed, over all runs.
    pub(super) moved: Bytes,
}

/// How far a run goes.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// Operations of a group; `None` if operations run one after the other.
    group: Option<u64>,
    /// How many operations an initiator starts; `None` if it keeps its window full.
    stop: Option<u64>,
    /// Whether an initiator starts nothing until everything under way is done. Initiators of reads
    /// do so while they wait for other ranks: libfabric's tcp provider sends the data that is read
    /// from a rank before that rank's signals, so beside a full window no signal would arrive.
    pauses: bool,
    /// Whether no operations follow after `stop`.
    is_last: bool,
}

impl Streams {
    /// The part of a rank that has no flows.
    pub(super) fn idle(case: &Case, verb: Verb, world: &World, network: Network) -> Self {
        Self {
            rank: world.rank(),
            verb,
            size: case.size,
            chunks: 1,
            staging: staging(case, &network),
            window: 0,
            channels: Vec::new(),
            ports: Vec::new(),
            inbox: None,
            barrier: Barrier::new(Vec::new()),
            ways: Vec::new(),
            outbox: Outbox::default(),
            signals_under_way: 0,
            rest: 0,
            completions: [Completion::default(); COMPLETIONS],
            wait: Wait::Yield,
            _bound: None,
            deadline: world.deadline(),
            standing: None,
            watchdog: None,
            clock: samples::clock(case, &network),
            run_in: samples::run_in(case),
            network,
            counters: None,
            moved: Bytes::default(),
        }
    }

    /// The flows whose operations this rank starts.
    pub(super) fn initiated(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|channel| channel.initiates)
    }

    /// Streams until every rank has its samples.
    pub(super) fn stream(&mut self, group: u64, spans: &mut [Span]) -> Result<(), Error> {
        let mut samples = Samples::begin(spans, clock::machine_now().ns(), self.run_in);
        let initiates = self.initiated().next().is_some();
        let is_written = !initiates && self.verb == Verb::Write;
        let mut patience = Patience::new(self.wait, self.deadline);
        let mut is_ending = false;
        let group = group * self.chunks;
        let mut goal = Goal { group: Some(group), stop: None, pauses: false, is_last: false };
        let mut seen = vec![0; self.channels.len()];
        while !self.is_over(goal) {
            let moved = self.advance(goal)?;
            if is_written && !moved && self.wait == Wait::Spin {
                let due = clock::now().after(REST);
                while clock::now() < due {
                    std::hint::spin_loop();
                }
            }
            if initiates && !samples.are_all() {
                let groups = self.groups_done(group);
                samples.take(groups, || clock::machine_now().ns());
            } else if goal.stop.is_none() {
                if !is_ending {
                    is_ending = true;
                    goal.pauses = self.verb == Verb::Read;
                    self.barrier.begin();
                }
                if self.meet() {
                    let posted = self.initiated().map(|channel| channel.count.posted);
                    let most = posted.max().unwrap_or(0);
                    let stop = most.div_ceil(group).max(1) * group;
                    goal = Goal { stop: Some(stop), is_last: true, ..goal };
                }
            }
            let all_move = moved && self.have_all_moved(&mut seen);
            self.wait_on(&mut patience, all_move, if is_ending { END } else { FLOW }, goal)?;
        }
        Ok(())
    }

    /// Whether every unfinished flow has made progress since this last returned true. `seen` holds
    /// the progress at that time. A flow that moves must not hide another one that hangs.
    fn have_all_moved(&mut self, seen: &mut [u64]) -> bool {
        let moves = |channel: &Channel| {
            let Count { posted, completed, delivered, confirmed, turns, .. } = channel.count;
            posted + completed + delivered + confirmed + turns
        };
        let stands = |(channel, seen): &(&Channel, &u64)| {
            channel.count.last.is_none() && moves(channel) == **seen
        };
        let standing = self.channels.iter().zip(&*seen).find(stands);
        self.standing = standing.map(|(channel, _)| channel.peer.rank);
        if self.standing.is_some() {
            return false;
        }
        seen.iter_mut().zip(&self.channels).for_each(|(seen, channel)| *seen = moves(channel));
        true
    }

    /// Times single operations.
    pub(super) fn single(&mut self, spans: &mut [Span]) -> Result<(), Error> {
        let mut patience = Patience::new(self.wait, self.deadline);
        let initiates = self.initiated().next().is_some();
        let mut done = 0;
        for span in spans.iter_mut().filter(|_| initiates) {
            let start = clock::machine_now().ns();
            done += self.chunks;
            let is_done = |channel: &Channel, verb| match verb {
                Verb::PingPong => channel.count.delivered >= done,
                Verb::Write | Verb::Send if channel.memories.stage.is_some() => {
                    channel.count.turns >= done
                }
                Verb::Write | Verb::Read | Verb::Send => channel.count.completed >= done,
            };
            let goal = Goal { group: None, stop: Some(done), pauses: false, is_last: false };
            // Only one poll lies between the arrival and the reading of the clock.
            let mut moved = self.go_on(goal)?;
            loop {
                moved |= self.poll(1)?;
                if self.initiated().all(|channel| is_done(channel, self.verb)) {
                    break;
                }
                self.wait_on(&mut patience, moved, FLOW, goal)?;
                moved = self.go_on(goal)?;
            }
            let elapsed = clock::machine_now().ns().saturating_sub(start);
            let one_way = if self.verb == Verb::PingPong { elapsed / 2 } else { elapsed };
            *span = Span { start_ns: Some(start), end_ns: Some(start + one_way) };
        }
        let goal = Goal { group: None, stop: Some(done), pauses: false, is_last: true };
        while !self.is_over(goal) {
            let moved = self.advance(goal)?;
            self.wait_on(&mut patience, moved, END, goal)?;
        }
        Ok(())
    }

    /// Polls, then does what follows; whether anything moved.
    #[inline]
    fn advance(&mut self, goal: Goal) -> Result<bool, Error> {
        // A single operation goes on as soon as the poll has found what it waited for.
        let moved = self.poll(if goal.group.is_none() { 1 } else { POLLS })?;
        Ok(self.go_on(goal)? | moved)
    }

    /// Does what follows a poll; whether anything moved.
    #[inline]
    fn go_on(&mut self, goal: Goal) -> Result<bool, Error> {
        let mut moved = self.post(goal)?;
        moved |= self.stage()?;
        self.confirm(goal);
        moved |= self.signal()?;
        Ok(moved)
    }

    /// Fetches completions and partners' signals until there are none, with at most `looks` polls
    /// of each port: libfabric processes what comes in only when all completions of what went out
    /// are fetched. Receives are posted again before the next poll, so that they do not delay an
    /// answer.
    pub(super) fn poll(&mut self, looks: usize) -> Result<bool, Error> {
        self.watchdog.iter().for_each(Watchdog::beat);
        let mut moved = false;
        for port in 0..self.ports.len() {
            for _ in 0..looks {
                self.inbox.iter_mut().try_for_each(|inbox| inbox.receive(&mut self.ports))?;
                let count = match self.ports[port].endpoint.poll(&mut self.completions) {
                    Ok(count) => count,
                    Err(failure) => return Err(self.failed(failure)),
                };
                for place in 0..count {
                    self.complete(self.completions[place])?;
                }
                if count == 0 {
                    break;
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    #[inline]
    fn complete(&mut self, completion: Completion) -> Result<(), Error> {
        let mut slot = None;
        if let Some(context) = completion.context {
            let number = context & u64::from(u32::MAX);
            match context >> KIND_SHIFT {
                OF_OPERATION => {
                    let own = channel_of(context);
                    let channel = &mut self.channels[own];
                    match (&mut channel.memories.stage, self.verb) {
                        (Some(stage), Verb::Read) => stage.note_arrived(number, None),
                        (None, Verb::Read) => {
                            channel.complete(number);
                            let turn = channel.turn(number);
                            channel.note_filled(own, turn);
                        }
                        (_, Verb::Write | Verb::Send | Verb::PingPong) => channel.complete(number),
                    }
                }
                OF_SIGNAL => self.signals_under_way -= 1,
                _ => slot = Some(number),
            }
        }
        if let Some(word) = completion.data {
            let signal = Signal::decode(word);
            self.hear(signal.ok_or(Error::Disagreement("a word that no rank says"))?, slot)?;
        }
        if let (Some(slot), Some(inbox), None) = (slot, &mut self.inbox, &self.staging) {
            inbox.free(slot);
        }
        Ok(())
    }

    #[inline]
    fn hear(&mut self, signal: Signal, slot: Option<u64>) -> Result<(), Error> {
        match signal {
            Signal::Data { channel: own, turn } => {
                let channel = known(&mut self.channels, own)?;
                let own = own as usize;
                match (&mut channel.memories.stage, slot, &mut self.inbox) {
                    (Some(stage), slot, _) => stage.note_arrived(turn, slot),
                    (None, Some(slot), Some(inbox)) => {
                        channel.count.delivered += 1;
                        inbox.note_filled(slot, own, turn);
                    }
                    _ => {
                        channel.count.delivered += 1;
                        channel.note_filled(own, turn);
                    }
                }
            }
            Signal::Turn { channel } => known(&mut self.channels, channel)?.count.turns += 1,
            Signal::Confirm { channel } => known(&mut self.channels, channel)?.count.confirmed += 1,
            Signal::Final { channel, groups } => {
                known(&mut self.channels, channel)?.count.last = Some(groups);
            }
            Signal::Tell { round } => self.barrier.hear(round),
            Signal::GaveUp { rank } => return Err(Error::Abandoned(rank)),
        }
        Ok(())
    }

    /// Starts as many operations as the goal and the windows allow.
    fn post(&mut self, goal: Goal) -> Result<bool, Error> {
        let (size, verb) = (self.size, self.verb);
        let mut moved = false;
        if self.rest > 0 {
            return Ok(false);
        }
        for own in 0..self.channels.len() {
            let channel = &mut self.channels[own];
            let window = if goal.group.is_none() { self.chunks } else { self.window };
            let answers = verb == Verb::PingPong && !channel.initiates;
            let left = match goal.stop {
                // Each message that arrived is answered.
                _ if answers => channel.count.delivered - channel.count.posted,
                _ if !channel.initiates => 0,
                _ if goal.pauses && channel.under_way() > 0 => 0,
                Some(stop) => stop - channel.count.posted,
                None => u64::MAX,
            };
            let ahead = match goal.group {
                Some(group) if verb != Verb::Read => {
                    let confirmed = channel.count.confirmed * group;
                    let most = (GROUPS_AHEAD * group + window).min(channel.peer.room);
                    (confirmed + most).saturating_sub(channel.count.posted)
                }
                _ => u64::MAX,
            };
            let count = left.min(channel.room(window, verb)).min(ahead);
            if channel.memories.stage.is_some() {
                // The copies begin. The interface gets the chunks when they are done.
                channel.count.posted += count;
                moved |= count > 0;
                if verb == Verb::Read {
                    (0..count).for_each(|_| self.say_turn(own));
                }
                continue;
            }
            for next in 1..=count {
                let number = channel.count.posted;
                if !channel.is_free(number) {
                    break;
                }
                let has_next = || next < count && channel.is_free(number + 1);
                let flags = match goal.group {
                    None if matches!(verb, Verb::Write | Verb::Send) => Flags::NONE.delivery(),
                    Some(_) if channel.peer.rails.len() == 1 && has_next() => Flags::NONE.more(),
                    _ => Flags::NONE,
                };
                let context = operation_context(own, number);
                let request = Request { verb, number, size, context, flags };
                let posted = channel.post(&mut self.ports, request);
                let posted = posted.map_err(|source| with(channel.peer.rank, source))?;
                if posted == Posted::Again {
                    if self.wait == Wait::Yield {
                        self.rest = REST_REFUSED;
                    }
                    break;
                }
                channel.note_posted();
                if posted == Posted::Over {
                    channel.complete(number);
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Tells partners which groups have arrived here, and how many an initiator has sent in all.
    fn confirm(&mut self, goal: Goal) {
        let is_read = self.verb == Verb::Read;
        for channel in &mut self.channels {
            let (partner, there) = (channel.peer.rank, channel.peer.number);
            let count = &mut channel.count;
            if channel.initiates {
                let is_posted = goal.is_last && goal.stop == Some(count.posted);
                // After single operations the target verifies when it receives this, so the data
                // must be there. The source of reads may leave when it receives this.
                let is_done = goal.group.is_some() && !is_read || count.completed == count.posted;
                if is_posted && is_done && count.last.is_none() {
                    let groups = count.posted / goal.group.unwrap_or(1);
                    count.last = Some(groups % TURNS_MAX);
                    self.outbox.push(partner, Signal::Final { channel: there, groups });
                }
            } else if !is_read {
                let groups = match goal.group {
                    Some(group) => count.delivered / group,
                    None => u64::from(count.has_all(1)),
                };
                while count.confirmed < groups {
                    count.confirmed += 1;
                    self.outbox.push(partner, Signal::Confirm { channel: there });
                }
            }
        }
    }

    /// Hands signals to the provider.
    pub(super) fn signal(&mut self) -> Result<bool, Error> {
        let Self { outbox, ways, ports, .. } = self;
        let accepted = outbox.post(|partner, signal| {
            let way = ways.iter().find(|(rank, _)| *rank == partner);
            let (_, rail) = way.ok_or(Error::Disagreement("a rank that cannot be reached"))?;
            let posted = ports[rail.port].signal(rail, signal, OF_SIGNAL << KIND_SHIFT);
            posted.map_err(|source| with(partner, source))
        })?;
        self.signals_under_way += accepted;
        Ok(accepted > 0)
    }

    /// Advances the barrier; whether all ranks have come.
    pub(super) fn meet(&mut self) -> bool {
        let Self { barrier, outbox, .. } = self;
        barrier.step(|rank, round| outbox.push(rank, Signal::Tell { round }))
    }

    /// Groups that have arrived, of the slowest flow that this rank initiates.
    fn groups_done(&self, group: u64) -> u64 {
        let done = self.initiated().map(|channel| match self.verb {
            Verb::Read => channel.count.completed / group,
            Verb::Write | Verb::Send | Verb::PingPong => channel.count.confirmed,
        });
        done.min().unwrap_or(0)
    }

    /// Whether nothing is left to do or to receive.
    fn is_over(&self, goal: Goal) -> bool {
        goal.is_last
            && self.outbox.is_empty()
            && self.signals_under_way == 0
            && self.channels.iter().all(|channel| self.is_done(channel, goal))
    }

    /// Whether nothing is left to do or to receive for a flow.
    fn is_done(&self, channel: &Channel, goal: Goal) -> bool {
        let is_read = self.verb == Verb::Read;
        let count = &channel.count;
        let arrived = if channel.initiates { count.posted } else { count.delivered };
        let all_confirmed = match goal.group {
            _ if is_read => 0,
            Some(group) => arrived / group,
            None => 1,
        };
        let answers = self.verb == Verb::PingPong;
        let is_staged = channel.memories.stage.is_some() && channel.initiates;
        count.completed == count.posted
            && (!is_staged || count.turns == count.posted)
            && count.last.is_some()
            && count.confirmed == all_confirmed
            && match (channel.initiates, is_read) {
                (true, _) => goal.stop == Some(count.posted),
                (false, true) => true,
                (false, false) => {
                    count.has_all(goal.group.unwrap_or(1))
                        && (!answers || count.posted == count.delivered)
                }
            }
    }

    /// Waits between polls, and fails if nothing has moved for too long.
    #[inline]
    fn wait_on(
        &mut self,
        patience: &mut Patience,
        moved: bool,
        waiting_for: &'static str,
        goal: Goal,
    ) -> Result<(), Error> {
        self.wait_for(patience, moved, waiting_for, |streams| streams.missing(goal))
    }

    /// The same where `missing` says which rank this one waits for.
    pub(super) fn wait_for(
        &mut self,
        patience: &mut Patience,
        moved: bool,
        waiting_for: &'static str,
        missing: impl FnOnce(&Self) -> Rank,
    ) -> Result<(), Error> {
        if moved {
            patience.renew();
            return Ok(());
        }
        self.rest = self.rest.saturating_sub(1);
        if !patience.spin() {
            return Ok(());
        }
        patience.check(missing(self), waiting_for)
    }

    /// The rank that this one waits for.
    fn missing(&self, goal: Goal) -> Rank {
        // This rank itself, if its GPU hangs.
        let is_copying =
            |channel: &Channel| channel.memories.stage.as_ref().is_some_and(Stage::is_copying);
        if self.channels.iter().any(is_copying) {
            return self.rank;
        }
        if let Some(partner) = self.standing {
            return partner;
        }
        let undone = self.channels.iter().find(|channel| !self.is_done(channel, goal));
        undone.map_or_else(|| self.late(), |channel| channel.peer.rank)
    }

    /// The error of a failed operation, with the rank at its other end.
    fn failed(&self, failure: Failure) -> Error {
        let of_lane = failure.context.filter(|context| context >> KIND_SHIFT == OF_OPERATION);
        let channel = of_lane.and_then(|context| self.channels.get(channel_of(context)));
        match channel {
            Some(channel) => with(channel.peer.rank, failure.source),
            None => Error::call("go on with the other ranks", failure.source),
        }
    }
}

/// The context of operation number `number` of a channel.
pub(super) fn operation_context(channel: usize, number: u64) -> u64 {
    OF_OPERATION << KIND_SHIFT | (channel as u64) << CHANNEL_SHIFT | number & u64::from(u32::MAX)
}

#[allow(clippy::cast_possible_truncation, reason = "24 bits")]
const fn channel_of(context: u64) -> usize {
    (context >> CHANNEL_SHIFT & 0xff_ffff) as usize
}

pub(super) fn with(partner: Rank, source: CallError) -> Error {
    Error::Call { action: format!("move data between here and rank {}", partner.0), source }
}
