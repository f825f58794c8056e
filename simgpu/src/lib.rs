//! simgpu: a machine with GPUs that does not exist, behind the interfaces of NVIDIA's driver and
//! NVML. `docs/simulation.md` says what it does and how long everything lasts.

#![allow(unsafe_code, reason = "a library with C interfaces")]

pub mod attach;
mod contents;
mod cuda;
mod execute;
pub mod faults;
pub mod kernels;
pub mod machine;
mod memory;
pub mod nvml;
mod report;
pub mod state;
mod timing;

#[cfg(test)]
mod tests;
