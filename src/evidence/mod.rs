//! What proves the path of the bytes, beyond what was asked for.
//!
//! Owns the reading of NCCL's log, what counters before and after a case prove, and what follows
//! from both; knows no device and no clock.

pub mod counters;
pub mod explain;
pub mod health;
pub mod nccl_log;
