//! g2g measures how fast GPUs, and the host memory between them, reach each other, by every path
//! that a machine offers, and says whether the number is right.
//!
//! The modules in the order of their layers; a module imports only from those above its own line
//! (`tests/it/architecture.rs` holds the table, `docs/architecture.md` explains it).

mod stderr;
pub mod units;

pub mod plan;

#[allow(unsafe_code, reason = "the one place where foreign calls and shared memory are touched")]
pub mod ffi;
pub mod interrupt;

pub mod machine;
pub mod world;

pub mod transport;

pub mod measure;

pub mod nccl_log;

pub mod judge;

pub mod record;

pub mod analysis;

pub mod show;

pub mod run;

pub mod command;
