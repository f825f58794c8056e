//! The library's log, in its own form: `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`, `NCCL_DEBUG_FILE`.

use std::{
    cell::Cell,
    fs::File,
    io::Write,
    os::fd::{FromRawFd, IntoRawFd},
    sync::OnceLock,
};

use super::environment;
use crate::state::world;

/// What a line is about; the real library's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Subsystem {
    Init = 1,
    P2p = 4,
    Shm = 8,
    Net = 16,
    Tuning = 64,
    Env = 128,
    All = !0,
}

/// Names that `NCCL_DEBUG_SUBSYS` takes, in the order of their bits.
const SUBSYSTEMS: [&str; 17] = [
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
    "DESTROY",
];

/// `INIT`, `ENV` and `BOOTSTRAP`.
const DEFAULT: u32 = 1 | 128 | 1 << 12;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    None,
    Version,
    Warn,
    Info,
}

struct Log {
    level: Level,
    mask: u32,
    /// Where it goes to, if not to standard output.
    file: Option<File>,
    host: String,
}

thread_local! {
    /// The GPU that this thread speaks of.
    static GPU: Cell<u32> = const { Cell::new(0) };
}

/// From now on lines of this thread are about this GPU.
pub(super) fn about(gpu: u32) {
    GPU.set(world().map_or(gpu, |world| world.machine.place_of(gpu)));
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let level = match environment::text("NCCL_DEBUG").map(|text| text.to_ascii_uppercase()) {
            Some(text) => match text.as_str() {
                "VERSION" => Level::Version,
                "WARN" => Level::Warn,
                "INFO" | "ABORT" | "TRACE" => Level::Info,
                _ => Level::None,
            },
            None => Level::None,
        };
        let mask = environment::text("NCCL_DEBUG_SUBSYS").map_or(DEFAULT, |list| mask(&list));
        let own = world().filter(|world| world.machine.hosts > 1);
        let host = own.map(|world| world.own.host.hostname.clone());
        let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
        let host = host.unwrap_or_default();
        let host = host.trim().split('.').next().unwrap_or_default().to_owned();
        let path = environment::text("NCCL_DEBUG_FILE").filter(|_| level > Level::Version);
        let file = path.and_then(|path| File::create(expanded(&path, &host)).ok());
        Log { level, mask, file, host }
    })
}

/// The bits of a list of subsystems; `^` before it excludes them from all.
fn mask(list: &str) -> u32 {
    let (excludes, names) = match list.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let bits = names.split(',').map(|name| {
        if name.eq_ignore_ascii_case("ALL") {
            return !0;
        }
        let at = SUBSYSTEMS.iter().position(|known| known.eq_ignore_ascii_case(name));
        at.map_or(0, |at| 1 << at)
    });
    let named = bits.fold(0, |mask, bit| mask | bit);
    if excludes { !named } else { named }
}

/// The path of a log: `%h` is the host, `%p` the process, `%%` a percent sign.
fn expanded(path: &str, host: &str) -> String {
    let mut text = String::new();
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => match letters.next() {
                Some('h') => text.push_str(host),
                Some('p') => text.push_str(&std::process::id().to_string()),
                Some('%') | None => text.push('%'),
                Some(other) => text.extend(['%', other]),
            },
            other => text.push(other),
        }
    }
    text
}

/// This process as a line that is not of the log begins.
pub(super) fn process() -> String {
    format!("{}:{}", log().host, std::process::id())
}

/// Tells something, if the subsystem is wanted.
pub(super) fn info(subsystem: Subsystem, line: &str) {
    info_if(subsystem, line);
}

/// The same; whether the subsystem is wanted.
pub(super) fn info_if(subsystem: Subsystem, line: &str) -> bool {
    let log = log();
    let wanted = log.level == Level::Info && log.mask & subsystem as u32 != 0;
    if wanted {
        log.put(&format!("{}[{}] NCCL INFO {line}\n", log.prefix(), GPU.get()));
    }
    wanted
}

/// Warns.
pub(super) fn warn(line: &str) {
    let log = log();
    if log.level >= Level::Warn {
        log.put(&format!("\n{}[{}] simgpu:0 NCCL WARN {line}\n", log.prefix(), GPU.get()));
    }
}

/// Tells the library's version, once in a process.
pub(super) fn version() {
    static TOLD: OnceLock<()> = OnceLock::new();
    TOLD.get_or_init(|| {
        let log = log();
        let line = "NCCL version 2.32.3+cuda13.0";
        match log.level {
            Level::None => {}
            Level::Version | Level::Warn => log.put(&format!("{line}\n")),
            Level::Info => info(Subsystem::All, line),
        }
    });
}

impl Log {
    fn prefix(&self) -> String {
        // SAFETY: the call has no arguments and touches no memory.
        let thread = unsafe { libc::gettid() };
        format!("{}:{}:{thread} ", self.host, std::process::id())
    }

    /// Writes a line at once, so that those of several threads do not mix.
    fn put(&self, line: &str) {
        match &self.file {
            Some(file) => {
                let mut file: &File = file;
                let _ = file.write_all(line.as_bytes());
            }
            None => {
                // SAFETY: standard output is lent for this write and given back unclosed.
                let mut output = unsafe { File::from_raw_fd(libc::STDOUT_FILENO) };
                let _ = output.write_all(line.as_bytes());
                let _ = output.into_raw_fd();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_are_named_or_excluded() {
        assert_eq!(mask("INIT,env"), 1 | 128);
        assert_eq!(mask("^TUNING") & 64, 0);
        assert_eq!(mask("^TUNING") & 1, 1);
        assert_eq!(mask("ALL"), !0);
        assert_eq!(mask("TUNING"), Subsystem::Tuning as u32);
    }

    #[test]
    fn the_path_of_a_log_names_host_and_process() {
        let process = std::process::id();
        assert_eq!(expanded("/x/%h.%p%%.log", "node"), format!("/x/node.{process}%.log"));
    }
}
