//! NCCL: its library, found and loaded at run time, and the communicators that it makes.
//!
//! Owns the library's functions, behind a table of our own; a missing function is no panic, and no
//! return code is a Rust enum.
//!
//! # Why safe code cannot touch memory that is gone
//!
//! * What is queued names memory by [`Slice`](super::cuda::Slice), and only within a [`Group`],
//!   which borrows it until NCCL has put the work into its streams. From then on it is the streams'
//!   work: an owner of memory waits for them, as for all others (`ffi::cuda`).
//! * What a [`Graph`] captures it borrows until it is gone itself; nothing else can be queued in a
//!   stream that is captured.
//! * A group that is late is given up with its communicators: NCCL queues nothing of it afterwards.
//! * A [`Registration`] and a [`Window`] own the memory, and share the communicator.

#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    reason = "made from NCCL's header, by scripts/build-bindings"
)]
mod bindings;
mod calls;
mod communicator;
mod element;
mod graph;
mod group;
mod library;
mod memory;
mod names;

pub use calls::CALLS;
pub use communicator::Communicator;
pub use element::Factor;
pub use graph::Graph;
pub use group::{At, Call, Group};
pub use library::{Feature, Library, UniqueId, Version};
pub use memory::{Allocation, Registration, Window};

/// The version of the header of these bindings, as `ncclGetVersion` counts.
pub const HEADERS: u32 = bindings::NCCL_VERSION_CODE;
