//! What can go wrong on a machine, a line of the table in docs/reliability.md each: what is said,
//! that nothing that was finished is lost, and that nothing stays behind.

mod disk;
mod libraries;
mod processes;
mod system;

use std::process::{Command, Output};

/// Runs words of a shell that may mount what they like: it goes with them. `$g2g` is the program.
fn in_own_mounts(words: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", words]);
    command.env("g2g", crate::common::program()).output().unwrap()
}
