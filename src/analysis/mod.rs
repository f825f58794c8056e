//! Conclusions from many rows: which part is slow, what differs between runs, and whether a
//! difference is significant.
//!
//! Knows nothing of how rows were measured or how conclusions are shown.

pub mod attribution;
pub mod compare;
pub mod fitness;
pub mod statistics;
pub mod sweep;
pub mod training;
