//! simgpu: a machine with GPUs that does not exist, behind the interfaces of NVIDIA's driver, NVML
//! and NCCL. `docs/simulation.md` says what it does and how long everything lasts.

#![allow(unsafe_code, reason = "a library with C interfaces")]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("addresses, sizes and handles of the driver have 64 bits here");

pub mod attach;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits; counts are small")]
#[allow(clippy::cast_sign_loss, reason = "what is cast has been found to be positive")]
mod cuda;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
mod execute;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits; counts are small")]
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "C's structures point to each other, and one promise of the caller is for all of them"
)]
mod fabric;
#[forbid(unsafe_code)]
pub mod faults;
pub mod kernels;
#[forbid(unsafe_code)]
pub mod machine;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
mod memory;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits; counts are small")]
#[allow(clippy::cast_sign_loss, reason = "what is cast has been found to be positive")]
mod nccl;
pub mod nvml;
#[forbid(unsafe_code)]
mod report;
pub mod state;
#[forbid(unsafe_code)]
mod system;
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits; counts are small")]
mod timing;

#[cfg(test)]
mod tests;
