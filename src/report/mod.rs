//! What the rows of a run say together.
//!
//! Owns conclusions from many rows. Knows nothing of how they were measured or where they are kept.

pub mod attribution;
