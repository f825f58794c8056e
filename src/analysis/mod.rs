//! What many rows say together: which part is slow, what differs between runs, and whether a
//! difference is real.
//!
//! Owns conclusions from rows. Knows nothing of how they were measured or how they are shown.

pub mod attribution;
pub mod compare;
pub mod statistics;
pub mod sweep;
