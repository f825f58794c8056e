//! What a process says of itself when it ends: how often it called what, and what it never gave
//! back.

use std::{collections::BTreeMap, fs::OpenOptions, io::Write};

use crate::{cuda::Live, faults, state::World};

#[derive(serde::Serialize)]
struct Report {
    pid: u32,
    /// The host's time.
    host_ns: u64,
    calls: BTreeMap<String, u64>,
    live: Live,
}

/// Appends the report to the machine's file, if it has one.
pub(crate) fn write(world: &World) {
    let Some(path) = &world.machine.report else { return };
    let live = world.local().live();
    let host_ns = world.host_ps() / 1000;
    let report = Report { pid: std::process::id(), host_ns, calls: faults::counts(), live };
    let Ok(mut line) = serde_json::to_string(&report) else { return };
    line.push('\n');
    // One write, so that lines of processes that end together do not mix.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(err) = written {
        let _ = writeln!(std::io::stderr(), "warning: cannot write the report {path}: {err}");
    }
}
