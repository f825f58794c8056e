//! What the rows of runs say together.
//!
//! Owns conclusions from many rows. Knows nothing of how they were measured or where they are kept.

pub mod attribution;
pub mod compare;
mod page;
mod words;

pub use page::{Part, html, is_wanted};
