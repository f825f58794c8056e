//! A process that is no rank: it is run to its end.

use std::{
    io::{self, Read},
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use crate::{
    ffi::process::{end, end_with_parent},
    interrupt,
};

/// The time between two checks whether it has ended.
const TURN: Duration = Duration::from_millis(5);

/// Runs `command` to its end; how it ended, and what it wrote to standard error if that is a pipe.
/// It gets SIGTERM when this process is asked to end, and when this process ends in any way.
pub fn run(mut command: Command) -> io::Result<(ExitStatus, String)> {
    end_with_parent(&mut command);
    let mut child = command.spawn()?;
    let pipe = child.stderr.take();
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        // What cannot be read was not said.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    let mut is_told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if !is_told && interrupt::asked().is_some() {
            end(&child);
            is_told = true;
        }
        thread::sleep(TURN);
    };
    Ok((status, said.join().unwrap_or_default()))
}
