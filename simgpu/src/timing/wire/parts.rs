//! What the network consists of: endpoints, interfaces, memory, operations and what is told of them.
//!
//! All of it is integers and starts as zeroes.

use super::pool::NONE;
use crate::{machine::NicFault, timing::cost::Place};

/// A thread that has endpoints, and what it waits for beside them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct User {
    /// The thread, by its number in the system; 0: nobody.
    pub thread: u32,
    /// Its process, by its place.
    pub place: u32,
    /// Its endpoints.
    pub endpoints: u32,
    /// Whether it waits for something that no endpoint brings.
    pub waits: bool,
    /// When something happens on a GPU that it looks for; 0: it looks for nothing.
    pub wake_ps: u64,
    /// Whether it has looked so often in vain that it waits for the GPU.
    pub looks: bool,
    /// When it has posted what it was asked to.
    pub posted_ps: u64,
}

/// Memory of a process, from an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Memory {
    pub address: u64,
    /// Where it is.
    pub place: Place,
    /// The counter of writes to it, of memory of a GPU.
    pub counter: u32,
    /// The process's descriptor of the file that it lies in, and where the file's beginning is;
    /// 0: in none that others may open.
    pub descriptor: i32,
    pub beginning: u64,
}

impl Memory {
    /// Nothing.
    pub(crate) const NONE: Self =
        Self { address: 0, place: Place::Host, counter: 0, descriptor: 0, beginning: 0 };
}

/// Memory that interfaces reach.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Region {
    pub(super) start: Memory,
    pub(super) bytes: u64,
    /// The number of its key; 0: nobody's.
    pub(super) number: u32,
}

/// When the parts of an interface are free, and what it has moved.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Nic {
    pub free_ps: u64,
    pub out: Link,
    pub into: Link,
    pub counts: Counts,
    /// What the kernel shows of them, and when it has last asked, by its monotonic clock.
    shown: Counts,
    shown_ns: u64,
    /// Operations that were ever started on it.
    pub started: u64,
}

/// One direction of an interface's link.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Link {
    /// When it is free of all operations, and of those of one packet.
    all_ps: u64,
    packets_ps: u64,
}

/// Bytes of the longest operation that is one packet: the MTU, less the headers.
pub(crate) const PACKET: u64 = 8928;

impl Link {
    /// When it is free for an operation of `bytes`. One packet goes between those of longer
    /// operations.
    pub(super) const fn free_ps(&self, bytes: u64) -> u64 {
        if bytes <= PACKET { self.packets_ps } else { self.all_ps }
    }

    /// An operation of `bytes` begins at `begin_ps` and takes so long; when it has passed.
    pub(super) fn pass(&mut self, bytes: u64, begin_ps: u64, takes_ps: u64) -> u64 {
        let end_ps = begin_ps + takes_ps;
        if bytes <= PACKET {
            self.packets_ps = end_ps;
        }
        self.all_ps = self.all_ps.max(begin_ps) + takes_ps;
        end_ps
    }
}

/// How long the kernel shows what it has read of an RDMA device's counters before it asks the device
/// again (Linux, `include/rdma/ib_verbs.h`, `RDMA_HW_STATS_DEFAULT_LIFESPAN`).
pub(crate) const LIFESPAN_MS: u32 = 10;

impl Nic {
    /// What the kernel shows to who reads the counters at `now_ns`.
    pub(crate) fn show(&mut self, now_ns: u64) -> Counts {
        if now_ns > self.shown_ns + u64::from(LIFESPAN_MS) * 1_000_000 {
            (self.shown, self.shown_ns) = (self.counts, now_ns);
        }
        self.shown
    }
}

/// What the driver of an interface counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Counts {
    pub tx_bytes: u64,
    pub rx_bytes: u64,
    pub rdma_write_bytes: u64,
    pub rdma_read_bytes: u64,
}

/// A list through places of a pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) length: u32,
}

/// An endpoint with its completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Endpoint {
    /// Its number among all that were ever opened; 0: nobody's.
    pub number: u64,
    /// Who uses it, and its process by its number in the system.
    pub user: u32,
    pub pid: u32,
    pub nic: u32,
    /// Completions that its queue takes; what is more is lost.
    pub queue_size: u32,
    /// Operations from here that were accepted and are not over, and how many of them the device
    /// was not told of.
    pub under_way: u32,
    pub unrung: u32,
    /// Polls in vain since it was last told anything or told anything itself, and when the last of
    /// all was, by the kernel's monotonic clock.
    pub idle: u32,
    pub polled_ns: u64,
    pub(super) queue: List,
    pub(super) receives: List,
    /// Operations that are over whose data was a copy.
    pub(super) spent: List,
    /// Messages that wait for a receive.
    pub(super) early: List,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Writes memory of the target.
    Write,
    /// Reads memory of the target.
    Read,
    /// Sends a message to the target.
    Message,
}

/// The PCIe link of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pcie {
    /// Its number among the machine's resources.
    pub resource: usize,
    /// Bytes per nanosecond.
    pub gb_s: f64,
}

/// What the data of an operation passes at one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Bytes per nanosecond of the interface's link.
    pub link_gb_s: f64,
    /// Of memory of a GPU.
    pub pcie: Option<Pcie>,
}

/// How an operation is carried out, and what that takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Where the data is, and where it goes.
    pub sides: [Side; 2],
    /// One way.
    pub latency_ns: f64,
    /// What each operation takes of the thread that posts it, and of the interface that starts it.
    pub post_ns: f64,
    pub operation_ns: f64,
    /// The longest by which an operation can fall behind later ones, and what chance begins with.
    pub shuffle_ns: f64,
    pub seed: u64,
}

/// An operation to start.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Order {
    pub kind: Kind,
    pub from: u32,
    pub to: u32,
    pub to_number: u64,
    pub bytes: u64,
    /// Whether the device does it, and not libfabric by messages.
    pub is_of_device: bool,
    /// Where the data is and goes, in the initiator's memory and in the target's.
    pub near: Memory,
    pub far: Memory,
    /// What comes along, if anything does.
    pub data: u64,
    pub has_data: bool,
    /// Whether the initiator's queue is told of the end.
    pub is_told: bool,
    /// Whether the data is a copy at the address `context` that the initiator keeps until the end.
    pub is_injected: bool,
    /// What the initiator knows it by.
    pub context: u64,
    /// How it fails, if it does.
    pub fault: Option<NicFault>,
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Flight {
    pub order: Order,
    pub from_number: u64,
    /// Whether the data is where it goes.
    pub is_there: bool,
    /// When the initiator is told, after the data is there.
    pub back_ps: u64,
    pub(super) next: u32,
}

/// A completion in a queue, or a receive that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Note {
    pub kind: NoteKind,
    pub context: u64,
    pub bytes: u64,
    pub data: u64,
    pub has_data: bool,
    /// Of a receive: where a message goes.
    pub memory: Memory,
    pub(super) next: u32,
}

impl Note {
    /// Of `kind`, with what its initiator or receiver knows it by, and its bytes.
    pub(super) fn new(kind: NoteKind, context: u64, bytes: u64) -> Self {
        let memory = Memory::NONE;
        Self { kind, context, bytes, data: 0, has_data: false, memory, next: NONE }
    }

    /// A receive for a message of so many bytes.
    pub(crate) fn receive(context: u64, memory: Memory, bytes: u64) -> Self {
        Self { memory, ..Self::new(NoteKind::Received, context, bytes) }
    }

    /// With the data that has come along.
    pub(super) fn with(self, order: &Order) -> Self {
        Self { data: order.data, has_data: order.has_data, ..self }
    }
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, u32)]
pub(crate) enum NoteKind {
    /// An operation that this side has started.
    Over(Kind),
    /// A message that has come.
    Received,
    /// A write of a peer that brought data along.
    Written,
    /// An operation that the device has refused.
    Failed,
    /// An operation whose other end does not answer.
    Unreachable,
}

/// One end of a move: the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct End {
    pub pid: u32,
    pub memory: Memory,
}

/// Where bytes are to be moved: from one process's memory to another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub from: End,
    pub to: End,
    pub bytes: u64,
    /// Whether a device writes it there, and not libfabric.
    pub is_of_device: bool,
    /// Whether a byte arrives wrong.
    pub is_corrupt: bool,
}

/// A byte in memory of a GPU that a device has written and the GPU does not see yet.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Held {
    /// Whether there is one.
    pub is_there: bool,
    /// What the GPU sees, and what is written.
    pub before: u8,
    pub after: u8,
    pub end: End,
}
