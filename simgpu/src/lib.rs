//! simgpu: a machine with GPUs that does not exist, behind the interfaces of NVIDIA's driver and
//! NVML. `docs/simulation.md` says what it does and how long everything lasts.

#![allow(unsafe_code, reason = "a library with C interfaces")]

pub mod faults;
pub mod kernels;
pub mod machine;
pub mod nvml;
pub mod state;
