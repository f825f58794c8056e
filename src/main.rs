//! The program: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    g2g::command::main(g2g::transport::open)
}
