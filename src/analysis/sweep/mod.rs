//! What the runs of a sweep say of each value that it varies, and what of it is noise.

mod cases;
mod effects;
#[cfg(test)]
mod tests;

pub use cases::{Case, RunRows, cases, sound};
pub use effects::{AxisEffect, Findings, Lead, Place, findings};
