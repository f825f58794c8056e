//! The effect of each value that a sweep varies, and its significance.

mod cases;
mod effects;
#[cfg(test)]
mod tests;

pub use cases::{Case, RunRows, cases, sound};
pub use effects::{AxisEffect, Findings, Lead, Place, findings};
