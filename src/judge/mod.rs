//! Judges a machine and the numbers measured on it.
//!
//! Owns what counters before and after a case prove, the health of GPUs, the rate to expect, and
//! the checks of `g2g doctor`. Pure: knows no device and no clock.

pub mod counters;
pub mod doctor;
pub mod expected;
pub mod health;
