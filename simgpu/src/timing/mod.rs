//! Virtual time: how long operations last and when they start, for all processes of the machine.
//!
//! Owns the shared state and the queues in it; knows nothing of handles, memory or bytes.
//! `docs/simulation.md`, section Time, has the formulas.

mod clocks;
pub(crate) mod cost;
mod file;
mod futex;
pub(crate) mod meeting;
pub(crate) mod plane;
mod settle;
mod shared;
pub(crate) mod wire;
pub(crate) mod words;

pub(crate) use file::{State, memory_file};
pub(crate) use futex::{wait, wake};
pub(crate) use plane::{Export, Gate, GateKind, Operation, Plane, Work, event};
pub(crate) use settle::{After, What, split_mix};
pub(crate) use shared::{Guard, Shared, Task, WRITE_COUNTERS};
#[cfg(test)]
pub(crate) use {plane::Stream, settle::Step};

/// GPUs of a machine at most.
pub(crate) const GPUS: usize = 72;
/// Processes that may be attached to a machine at once.
pub(crate) const PROCESSES: usize = 128;
/// Connections that a process has to a GPU at most.
pub(crate) const CONNECTIONS: usize = 32;
/// Streams of all processes together.
pub(crate) const STREAMS: usize = 1024;
/// Entries that a stream's queue can have.
pub(crate) const QUEUE: usize = 1024;
/// Events of all processes together.
pub(crate) const EVENTS: usize = 65536;
/// Operations of one process that are timed and not yet executed; above this callers wait.
pub(crate) const RING: usize = 1 << 18;

/// Nanoseconds as whole picoseconds, to the nearest.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub(crate) fn ps_of_ns(ns: f64) -> u64 {
    (ns * 1000.0).round() as u64
}

/// What `bytes` last at `gb_s` bytes per nanosecond, in whole picoseconds, to the nearest.
pub(crate) fn ps_of_bytes(bytes: u64, gb_s: f64) -> u64 {
    ps_of_ns(bytes as f64 / gb_s)
}

/// The kernel's monotonic clock, which all processes share.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
