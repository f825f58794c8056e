//! What can go wrong on a machine, a line of the table in docs/reliability.md each: what is said, that
//! nothing that was finished is lost, and that nothing stays behind.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod libraries;
mod processes;
mod system;
