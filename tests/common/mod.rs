//! Running the program from outside, and reading what it leaves.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod lab;
pub(crate) mod mpi;
pub(crate) mod simulation;

use std::{
    collections::BTreeSet,
    fs,
    ops::{Deref, DerefMut},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use object::{
    Endianness, Object, ObjectSymbol,
    read::{ReadCache, elf::ElfFile64},
};

/// A bound on what ends by itself within a minute, on a machine that is busy elsewhere: dozens of
/// processes may share two CPUs.
pub(crate) const SOON: Duration = Duration::from_secs(900);

/// Where the program is: that which was built with this one, or, where that one is elsewhere than at
/// its build, what the variable `G2G_TEST_PROGRAM` names.
pub(crate) fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        std::env::var("G2G_TEST_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_g2g").to_owned())
    });
    &PROGRAM
}

/// The program.
pub(crate) fn g2g() -> Command {
    let mut command = Command::new(program());
    // Lines are whole; tests/it/answer.rs has what becomes of them where there is less room.
    command.env("COLUMNS", "1000");
    command
}

/// The program with transports that fail.
pub(crate) fn faulty() -> Command {
    example("faulty")
}

/// A program with transports of its own, built from `tests/programs`.
pub(crate) fn example(name: &str) -> Command {
    let program = Path::new(program()).with_file_name("examples").join(name);
    assert!(program.exists(), "`cargo test` builds it, and so does `cargo build --examples`");
    Command::new(program)
}

/// Copies a program, and makes a copy of any file one. Another process writes it: what this one had
/// open for writing, children that other tests start would hold open, and nobody could execute it.
pub(crate) fn install(from: &Path, to: &Path) {
    let status = Command::new("install").arg("--mode=755").args([from, to]).status();
    assert!(status.unwrap().success(), "{}", to.display());
}

/// Whether NVIDIA's driver is loaded. `/dev/nvidiactl` is no sign of it: `libcuda` makes that for
/// root.
pub(crate) fn kernel_has_driver() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
}

/// The names that a library exports.
pub(crate) fn exports(library: &Path) -> BTreeSet<String> {
    let data = ReadCache::new(fs::File::open(library).unwrap());
    let file = ElfFile64::<Endianness, _>::parse(&data).unwrap();
    let exports = file.dynamic_symbols().filter(|symbol| !symbol.is_undefined());
    exports.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs `command` with the words of `line`.
pub(crate) fn run(mut command: Command, line: &str) -> Output {
    command.args(line.split_whitespace()).output().unwrap()
}

/// Runs an ignored test of this program in a process of its own.
pub(crate) fn alone(test: &str) {
    let command = Command::new(std::env::current_exe().unwrap());
    let result = run(command, &format!("--exact {test} --ignored --nocapture"));
    let said = text(&result.stdout) + &text(&result.stderr);
    assert!(result.status.success() && said.contains("1 passed"), "{said}");
}

/// A process group that runs; killed when this is dropped before its end was waited for.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.process_group(0).stdin(Stdio::null());
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        let group = format!("-{}", child.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).output());
        drop(child.wait());
    }
}

/// Starts the program with the words of `line`.
pub(crate) fn start(line: &str) -> Running {
    Running::start(g2g().args(line.split_whitespace()))
}

/// Waits for the end of what was started, which must come.
pub(crate) fn wait(mut parent: Running) -> Output {
    assert!(eventually(SOON, || parent.try_wait().unwrap().is_some()), "rank 0 does not end");
    parent.0.take().unwrap().wait_with_output().unwrap()
}

/// The rows of a CSV text by their columns. Fails if a line has other cells than the header.
pub(crate) struct Rows(pub(crate) Vec<Vec<(String, String)>>);

impl Rows {
    pub(crate) fn read(folder: &Path) -> Self {
        Self::parse(&fs::read_to_string(folder.join("run.csv")).unwrap())
    }

    pub(crate) fn parse(csv: &str) -> Self {
        assert!(csv.is_empty() || csv.ends_with('\n'), "half a line at the end: {csv}");
        let mut lines = csv.lines();
        let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let row = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            assert_eq!(cells.len(), header.len(), "{line}");
            header.iter().zip(cells).map(|(&name, cell)| (name.into(), cell.into())).collect()
        };
        Self(lines.map(row).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().take(1).flatten().map(|(name, _)| &**name)
    }

    pub(crate) fn cell(&self, row: usize, column: &str) -> &str {
        let cell = self.0[row].iter().find(|(name, _)| name == column);
        &cell.unwrap_or_else(|| panic!("no column {column}")).1
    }

    pub(crate) fn number(&self, row: usize, column: &str) -> f64 {
        self.cell(row, column).parse().unwrap()
    }
}

/// Runs `g2g rdma` with the words of `line`, which must end well; its rows, each of which must be
/// verified.
pub(crate) fn verified_rdma(line: &str) -> Rows {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let result =
        run(g2g(), &format!("rdma {line} {QUICK} --no-report --output {}", output.display()));
    let said = format!("{line}: {}{}", text(&result.stdout), text(&result.stderr));
    verified(&result, &output, &said)
}

/// What makes a run of RDMA short.
pub(crate) const QUICK: &str = "--samples 20 --time-limit 20ms --quiet";

/// The rows of a run of RDMA that must have ended well, each of which must be verified.
pub(crate) fn verified(result: &Output, output: &Path, said: &str) -> Rows {
    assert_eq!(result.status.code(), Some(0), "{said}");
    let rows = Rows::read(output);
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "ok", "{said}");
        assert_eq!(rows.cell(row, "transport"), "rdma", "{said}");
        assert!(rows.number(row, "latency_ns_p50") > 0.0, "{said}");
        let has_bandwidth = rows.cell(row, "operation") != "ping-pong";
        assert_eq!(!rows.cell(row, "bandwidth_gb_s").is_empty(), has_bandwidth, "{said}");
    }
    rows
}

/// The other ranks of a run that was started by [`start`], in their order.
pub(crate) fn children(parent: &Running) -> Vec<u32> {
    // Numbers of processes start again from low ones, so their order says nothing.
    let rank = |pid: &u32| -> u32 {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.find(|word| word == "internal-rank");
        words.next().and_then(|rank| rank.parse().ok()).unwrap_or(u32::MAX)
    };
    let mut ranks = group_members(parent.id());
    ranks.retain(|&pid| pid != parent.id());
    ranks.sort_by_cached_key(rank);
    ranks
}

/// The processes of a process group.
pub(crate) fn group_members(group: u32) -> Vec<u32> {
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let is_member = |pid: &u32| {
        stat(*pid).is_some_and(|stat| {
            // The name in parentheses may hold anything; state, parent and group follow it.
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[0] != "Z" && fields[2] == group.to_string()
        })
    };
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(is_member).collect()
}

/// Waits until `done`, at most `limit`; whether it was.
pub(crate) fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let due = Instant::now() + limit;
    while Instant::now() < due {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    done()
}

/// Names in `/dev/shm`.
pub(crate) fn shared_memory_names() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev/shm").unwrap();
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

/// Sends a signal by name.
pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success() || group_members(pid).is_empty());
}

/// Fails unless the processes of the group end, and with them what they had in `/dev/shm`, where
/// `names` were before.
pub(crate) fn assert_nothing_stays(group: u32, names: &[PathBuf]) {
    let is_empty = eventually(SOON, || group_members(group).is_empty());
    assert!(is_empty, "processes stay: {:?}", group_members(group));
    // Other tests and programs make names too, and remove them.
    let mut new = shared_memory_names();
    new.retain(|name| !names.contains(name) && !is_of_mpi(name));
    let is_gone = eventually(SOON, || new.iter().all(|name| !name.exists()));
    assert!(is_gone, "shared memory stays: {new:?}");
}

/// Whether an MPI library has made it: other tests run beside these.
fn is_of_mpi(name: &Path) -> bool {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    ["mpich_", "vader_segment", "sm_segment", "psm"].iter().any(|begin| name.starts_with(begin))
}
