//! Keeps NCCL's own log of this process in memory.
//!
//! NCCL reads `NCCL_DEBUG_FILE` once, before the folder of results is known. Ranks on other hosts
//! have no such folder at all.

use std::{
    collections::HashSet,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::ffi::{self, CallError, captured::CapturedOutput, memory_file::MemoryFile};

/// The file that NCCL writes its log to.
const FILE: &str = "NCCL_DEBUG_FILE";

/// The level of its log, and the subsystems.
const LEVEL: &str = "NCCL_DEBUG";
const SUBSYSTEMS: &str = "NCCL_DEBUG_SUBSYS";

/// The subsystems that prove a path: ranks and hosts, variables, channels, choices, and the network
/// plugin.
const WANTED: &str = "INIT,ENV,GRAPH,TUNING,NVLS,NET";

/// NCCL's own diagnostics, from 2.31 on: of the ways between GPUs, and of what ranks have in common.
/// Both tell standard output of the rank 0 of each new communicator what they find (NCCL user guide,
/// Troubleshooting, Diagnostics).
const DIAGNOSTICS: [&str; 2] = ["NCCL_RUN_DIAGNOSTICS", "NCCL_RUN_RAS_DIAGNOSTICS"];

/// The first line of what a thread of NCCL tells of a communicator soon after, and the beginning of the
/// last.
const LATER: [&str; 2] = ["=== RAS Diagnostics ===", "RAS diagnostics completed in"];

/// How long to wait for it. It takes some ten milliseconds.
const LATER_PATIENCE: Duration = Duration::from_secs(2);

/// What stands in the log where communicators are made: what is before it is of others.
pub const MARK: &str = "g2g: communicators are made from here on";

/// The most different lines, each of which is kept once: NCCL logs its choice for every operation.
const LINES_MAX: usize = 1 << 20;

static LOG: OnceLock<Mutex<Log>> = OnceLock::new();

/// This process's log.
#[derive(Debug)]
struct Log {
    file: MemoryFile,
    /// The offset up to which it was read.
    read: u64,
    /// Text that was not taken yet.
    text: String,
    seen: HashSet<u64>,
}

/// The variables, beside `given`, that keep NCCL's log, and with `diagnoses` those that have NCCL look
/// for faults. None if the user has set another file.
pub(in crate::transport) fn variables(
    given: &[(String, String)],
    diagnoses: bool,
) -> Result<Vec<(String, String)>, CallError> {
    let value = |name: &str| {
        let of = |(_, value): &(String, String)| value.clone();
        given.iter().find(|(known, _)| known == name).map(of).or_else(|| env::var(name).ok())
    };
    if value(FILE).is_some_and(|path| !path.starts_with(MemoryFile::FOLDER)) {
        return Ok(Vec::new());
    }
    let level = value(LEVEL).filter(|level| level.eq_ignore_ascii_case("trace"));
    let subsystems = match value(SUBSYSTEMS) {
        Some(list) if list.starts_with('^') || list.ends_with(WANTED) => list,
        Some(list) if !list.is_empty() => format!("{list},{WANTED}"),
        _ => WANTED.to_owned(),
    };
    let mut all = vec![
        (LEVEL.to_owned(), level.unwrap_or_else(|| "INFO".to_owned())),
        (SUBSYSTEMS.to_owned(), subsystems),
        own_file()?,
    ];
    let unset = DIAGNOSTICS.iter().filter(|name| diagnoses && value(name).is_none());
    all.extend(unset.map(|name| ((*name).to_owned(), "1".to_owned())));
    Ok(all)
}

/// The same for a rank whose parent has set them: it cannot use the parent's file.
pub(in crate::transport) fn variables_of_rank() -> Result<Vec<(String, String)>, CallError> {
    match env::var(FILE) {
        Ok(path) if path.starts_with(MemoryFile::FOLDER) => variables(&[], false),
        _ => Ok(Vec::new()),
    }
}

/// Whether g2g itself may have set the variable `name`, to keep NCCL's log.
pub fn sets(name: &str) -> bool {
    LOG.get().is_some()
        && [FILE, LEVEL, SUBSYSTEMS].iter().chain(&DIAGNOSTICS).any(|own| *own == name)
}

fn own_file() -> Result<(String, String), CallError> {
    let file = MemoryFile::new()?;
    let path = file.path();
    let log = Log { file, read: 0, text: String::new(), seen: HashSet::new() };
    // There is one at most: this is called once in a process.
    let _ = LOG.set(Mutex::new(log));
    Ok((FILE.to_owned(), path))
}

/// Marks where communicators are made.
pub(super) fn mark() {
    if let Some(mut log) = log() {
        log.read();
        log.text += &format!("{MARK}\n");
    }
}

/// What NCCL has written in this process since this was called last, each line once; `None`: its
/// log is not kept.
pub fn take() -> Option<String> {
    let mut log = log()?;
    log.read();
    Some(std::mem::take(&mut log.text))
}

/// Makes communicators. What NCCL's diagnostics print then, and all that is printed beside it, is kept
/// with its log.
pub(super) fn diagnosed<T>(make: impl FnOnce() -> T) -> T {
    let is_on =
        |name: &&str| env::var(name).is_ok_and(|value| !["", "0"].contains(&value.as_str()));
    if LOG.get().is_none() || !DIAGNOSTICS.iter().any(is_on) {
        return make();
    }
    let output = match CapturedOutput::begin() {
        Ok(output) => output,
        Err(err) => {
            ffi::warn(&err);
            return make();
        }
    };
    let made = make();
    let began = Instant::now();
    let [first, last] = LATER;
    let mut text = output.text();
    let is_whole = |text: &str| text.matches(first).count() <= text.matches(last).count();
    while !is_whole(&text) && began.elapsed() < LATER_PATIENCE {
        thread::sleep(Duration::from_millis(5));
        text = output.text();
    }
    drop(output);
    if let Some(mut log) = log() {
        text.lines().for_each(|line| log.add(format!("{line}\n").as_bytes()));
    }
    made
}

fn log() -> Option<MutexGuard<'static, Log>> {
    Some(LOG.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Log {
    fn read(&mut self) {
        // If the file cannot be read, its lines are missing and prove nothing.
        let bytes = self.file.read_from(self.read).unwrap_or_default();
        // An incomplete line is read later.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        for line in bytes[..whole].split_inclusive(|&byte| byte == b'\n') {
            self.add(line);
        }
        self.read += whole as u64;
        self.file.forget_before(self.read);
    }

    fn add(&mut self, line: &[u8]) {
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        if self.seen.len() >= LINES_MAX || self.seen.insert(hasher.finish()) {
            self.text += &String::from_utf8_lossy(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Write};

    #[test]
    fn each_line_is_kept_once_and_whole() {
        let file = MemoryFile::new().unwrap();
        let mut writer = File::create(file.path()).unwrap();
        let mut log = Log { file, read: 0, text: String::new(), seen: HashSet::new() };
        writer.write_all(b"chosen ring\nchosen ring\nchosen").unwrap();
        log.read();
        assert_eq!(log.text, "chosen ring\n");
        writer.write_all(b" tree\nchosen ring\n").unwrap();
        log.read();
        assert_eq!(log.text, "chosen ring\nchosen tree\n");
    }

    #[test]
    fn a_file_that_the_user_names_is_the_users() {
        let given = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(variables(&given(FILE, "/tmp/nccl.%p"), true).unwrap(), []);
        let set = variables(&given(SUBSYSTEMS, "COLL"), true).unwrap();
        assert_eq!(set[0], (LEVEL.to_owned(), "INFO".to_owned()));
        assert_eq!(set[1], (SUBSYSTEMS.to_owned(), format!("COLL,{WANTED}")));
        assert!(set[2].1.starts_with(MemoryFile::FOLDER));
        assert_eq!(set[3..].iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), DIAGNOSTICS);
        let set = variables(&given(DIAGNOSTICS[0], "0"), true).unwrap();
        assert_eq!(set[3..], [(DIAGNOSTICS[1].to_owned(), "1".to_owned())]);
    }
}
