//! What proves the path of the bytes, beyond what was asked for.
//!
//! Owns the reading of NCCL's log and what follows from it; knows no device, no rank and no clock.

pub mod explain;
pub mod nccl_log;
