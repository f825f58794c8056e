//! The state of virtual time that all processes share: streams, their queues, events, words.
//!
//! All of it is integers and starts as zeroes, since it lies in a file that all processes map.

use super::{
    CONNECTIONS, EVENTS, GPUS, PROCESSES, QUEUE, STREAMS,
    cost::{Cost, RESOURCES},
    meeting::Meetings,
    settle::Step,
    wire::Wires,
    words::{Condition, Key, Words},
};

/// What the lock guards.
#[repr(C)]
pub(crate) struct Plane {
    /// Transfers that have been timed on the machine.
    pub transfers: u64,
    /// Numbers given to exported memory.
    pub nonce: u64,
    /// When each resource is free.
    pub free_ps: [u64; RESOURCES],
    /// All streams.
    pub streams: [Stream; STREAMS],
    /// All connections: of each process to each GPU.
    pub connections: [Connection; PROCESSES * GPUS * CONNECTIONS],
    /// Which streams have a closed gate at their head, a bit each.
    pub gated: [u64; STREAMS / 64],
    /// All events.
    pub events: [Event; EVENTS],
    /// What streams have written to words.
    pub words: Words,
    /// Memory that has been exported.
    pub exports: [Export; super::EVENTS / 16],
    /// Multicast objects.
    pub teams: [Team; TEAMS],
    /// Communicators and what their ranks have posted.
    pub meetings: Meetings,
    /// What is under way on the network.
    pub wires: Wires,
    /// The step that is being taken, so that it can be finished by another if this process dies.
    pub step: Step,
    /// The queues.
    pub queues: [[Operation; QUEUE]; STREAMS],
}

/// A stream. Its counts never start again, also when it passes to another owner.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Stream {
    /// Whether it has an owner.
    pub used: bool,
    /// Whether the operation at its head is a gate that has been reached.
    pub gate: bool,
    /// The process that owns it.
    pub place: u32,
    /// The how manieth of its process.
    pub number: u64,
    /// Its place among all connections.
    pub connection: u32,
    /// Operations that were ever queued.
    pub queued: u64,
    /// Operations that were ever timed: the place of the head.
    pub timed: u64,
    /// When the last one that was timed ends; with a gate, when the gate was reached.
    pub end_ps: u64,
}

/// What carries a process's work to a GPU, of one stream or of several: what was queued first
/// begins first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Connection {
    /// Operations that were ever queued on its streams.
    pub queued: u64,
    /// How many of them have begun.
    pub begun: u64,
    /// When the last of those began.
    pub begun_ps: u64,
}

/// An event.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Event {
    /// Whether it has an owner.
    pub used: bool,
    /// Whether the latest record has been timed.
    pub timed: bool,
    /// The process that owns it.
    pub place: u32,
    /// Records that were ever queued, also of former owners.
    pub version: u64,
    /// Its value when this owner got it: with as many records it was never recorded.
    pub first_version: u64,
    /// Stream and number of the operation that recorded it last.
    pub stream: u32,
    pub sequence: u64,
    /// When.
    pub time_ps: u64,
}

/// Multicast objects of all processes.
const TEAMS: usize = 64;

/// A multicast object.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Team {
    /// Never given twice; 0: nobody's.
    pub nonce: u64,
    /// The process that made it.
    pub place: u32,
    /// How many GPUs are to be added.
    pub wanted: u32,
    /// The kinds of handles by which it may be exported.
    pub handle_types: u32,
    /// Memory of each GPU behind it, at most.
    pub bytes: u64,
    /// Whether each GPU of the machine is in it.
    pub added: [bool; GPUS],
    /// The memory of each.
    pub bound: [Bound; GPUS],
}

/// Memory that is bound to a multicast object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Bound {
    /// Its place in the list of exported memory, and its number there; 0: none is bound.
    pub at: u64,
    pub nonce: u64,
    /// How much of it.
    pub bytes: u64,
}

impl Team {
    /// Nobody's.
    pub(crate) const NONE: Self = Self {
        nonce: 0,
        place: 0,
        wanted: 0,
        handle_types: 0,
        bytes: 0,
        added: [false; GPUS],
        bound: [Bound { at: 0, nonce: 0, bytes: 0 }; GPUS],
    };

    /// Whether a GPU is in it.
    pub(crate) fn has(&self, gpu: u32) -> bool {
        self.added[gpu as usize]
    }

    /// How many GPUs are in it.
    pub(crate) fn count(&self) -> u32 {
        self.added.iter().map(|&added| u32::from(added)).sum()
    }
}

/// Memory that other processes may open.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Export {
    /// Never given twice; 0: nobody's.
    pub nonce: u64,
    /// The process that owns it.
    pub place: u32,
    pub pid: u32,
    /// Its descriptor of the file with the memory.
    pub descriptor: i32,
    pub gpu: u32,
    /// Where in the file.
    pub offset: u64,
    pub bytes: u64,
}

/// An operation in a queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Operation {
    /// The host's time when it was queued.
    pub queued_ps: u64,
    /// What it does, as far as time is concerned.
    pub work: Work,
    /// Whether the executor has something to do for it.
    pub acts: bool,
    /// The how manieth of its connection.
    pub number: u64,
    /// The first of the operations that wait for this one, and the next that waits for the same;
    /// [`link`]s, 0: none.
    pub first_waiter: u32,
    pub next_waiter: u32,
}

/// What an operation does, as far as time is concerned.
#[derive(Clone, Copy, Debug)]
#[repr(C, u32)]
pub(crate) enum Work {
    /// Lasts, and keeps resources busy.
    Transfer(Cost),
    /// Notes the time in an event.
    Record { event: u32, version: u64 },
    /// Waits for an operation of another stream; `by_event`: the program has asked for it.
    Wait { by_event: bool, known: bool, until_ps: u64 },
    /// Writes a word.
    Write { key: Key, value: u64 },
    /// Waits for something in the world outside.
    Gate(Gate),
}

/// What a stream waits for outside.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Gate {
    pub kind: GateKind,
    pub key: Key,
    pub condition: Condition,
    pub operand: u64,
}

/// What keeps a gate closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GateKind {
    /// A kernel that looks at a word.
    Hold,
    /// The driver, which looks at a word.
    Value,
    /// A function on the host.
    Function,
    /// The other ranks of a communicator; the key's offset is where the post is.
    Meet,
}

impl Operation {
    /// With nobody waiting for it.
    pub(crate) fn new(queued_ps: u64, work: Work, acts: bool) -> Self {
        Self { queued_ps, work, acts, number: 0, first_waiter: 0, next_waiter: 0 }
    }
}

impl Plane {
    /// The operation `sequence` of a stream, if it has not been overwritten.
    pub(crate) fn operation(&mut self, stream: usize, sequence: u64) -> &mut Operation {
        &mut self.queues[stream][slot(sequence)]
    }

    /// Takes a stream that nobody owns.
    pub(crate) fn take_stream(
        &mut self,
        place: usize,
        number: u64,
        connection: usize,
    ) -> Option<usize> {
        let free = self.streams.iter().position(|stream| !stream.used)?;
        let stream = &mut self.streams[free];
        stream.place = place as u32;
        stream.number = number;
        stream.connection = connection as u32;
        stream.end_ps = 0;
        stream.used = true;
        Some(free)
    }

    /// Takes an event that nobody owns; `hint` is where to look first.
    pub(crate) fn take_event(&mut self, place: usize, hint: usize) -> Option<usize> {
        let found = (hint..EVENTS).chain(0..hint.min(EVENTS)).find(|&at| !self.events[at].used)?;
        let event = &mut self.events[found];
        event.place = place as u32;
        event.first_version = event.version;
        event.timed = false;
        event.used = true;
        Some(found)
    }

    /// Takes a place in the list of exported memory.
    pub(crate) fn export(&mut self, export: Export) -> Option<(usize, u64)> {
        let free = self.exports.iter().position(|export| export.nonce == 0)?;
        self.nonce += 1;
        self.exports[free] = Export { nonce: self.nonce, ..export };
        Some((free, self.nonce))
    }

    /// Takes a place in the list of multicast objects.
    pub(crate) fn take_team(&mut self, team: Team) -> Option<(usize, u64)> {
        let free = self.teams.iter().position(|team| team.nonce == 0)?;
        self.nonce += 1;
        self.teams[free] = Team { nonce: self.nonce, ..team };
        Some((free, self.nonce))
    }

    /// Gives back all that a process owned, with what it had queued.
    pub(crate) fn bury(&mut self, place: usize) {
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if stream.used && stream.place as usize == place {
                self.gated[at / 64] &= !(1 << (at % 64));
                *stream = Stream { used: false, gate: false, timed: stream.queued, ..*stream };
            }
        }
        let own = place * GPUS * CONNECTIONS;
        self.connections[own..own + GPUS * CONNECTIONS].fill(Connection::default());
        for event in self.events.iter_mut().filter(|event| event.place as usize == place) {
            event.used = false;
        }
        for export in self.exports.iter_mut().filter(|export| export.place as usize == place) {
            export.nonce = 0;
        }
        for team in self.teams.iter_mut().filter(|team| team.place as usize == place) {
            team.nonce = 0;
        }
        self.meetings.bury(place);
        self.wires.bury(place);
    }
}

/// Where in its queue an operation is.
pub(crate) fn slot(sequence: u64) -> usize {
    (sequence % QUEUE as u64) as usize
}

/// An operation of any stream in one number; never 0.
pub(crate) fn link(stream: usize, sequence: u64) -> u32 {
    (stream * QUEUE + slot(sequence) + 1) as u32
}

/// The stream and the slot of a [`link`].
pub(crate) fn linked(link: u32) -> Option<(usize, usize)> {
    let number = (link as usize).checked_sub(1)?;
    Some((number / QUEUE, number % QUEUE))
}

/// What is known of an event.
pub(crate) mod event {
    use super::Event;

    /// The state of its latest record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Latest {
        /// There was none.
        Never,
        /// It is queued behind something that has not happened.
        Queued { stream: usize, sequence: u64 },
        /// It happens, or will, at this time.
        Timed { stream: usize, sequence: u64, time_ps: u64 },
    }

    /// The latest record of an event.
    pub(crate) fn latest(event: &Event) -> Latest {
        let (stream, sequence) = (event.stream as usize, event.sequence);
        if event.version == event.first_version {
            Latest::Never
        } else if event.timed {
            Latest::Timed { stream, sequence, time_ps: event.time_ps }
        } else {
            Latest::Queued { stream, sequence }
        }
    }
}
