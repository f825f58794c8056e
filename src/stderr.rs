//! What is told beside the results.

use std::io::{self, Write};

/// Writes a line to standard error, if it takes one. It goes out whole: other processes write there
/// too, and `writeln!` would hand over each part of a sentence alone.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
