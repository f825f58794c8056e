//! Ranks of real MPI launchers: Open MPI 4 and 5, MPICH 4 and 5, and the standard's interface.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use super::{SOON, eventually, program, signal, text};

/// By this variable the processes of one start are found, whatever group a launcher puts them in.
const MARK: &str = "G2G_TEST_START";

/// An MPI: what starts its ranks, and the library if it is not the launcher's usual one.
pub(crate) struct Mpi {
    launcher: PathBuf,
    pub(crate) library: Option<PathBuf>,
}

/// The folder of an environment that scripts/test makes.
pub(crate) fn environment(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(name)
}

pub(crate) fn open_mpi() -> [Mpi; 2] {
    ["mpirun.openmpi".into(), environment("openmpi").join("bin/mpirun")]
        .map(|launcher| Mpi { launcher, library: None })
}

pub(crate) fn mpich() -> [Mpi; 2] {
    ["mpirun.mpich".into(), environment("mpich").join("bin/mpirun")]
        .map(|launcher| Mpi { launcher, library: None })
}

pub(crate) fn standard() -> Mpi {
    Mpi {
        launcher: environment("mpich").join("bin/mpirun"),
        library: Some(environment("mpich").join("lib/libmpi_abi.so.1")),
    }
}

pub(crate) fn every_launcher() -> impl Iterator<Item = Mpi> {
    open_mpi().into_iter().chain(mpich())
}

pub(crate) fn every_mpi() -> impl Iterator<Item = Mpi> {
    every_launcher().chain([standard()])
}

/// What is started, and the mark of its processes.
pub(crate) struct Started {
    child: Child,
    mark: Mark,
    what: String,
}

/// The value of [`MARK`] of a start, whose processes are killed when this is dropped.
struct Mark(String);

impl Mpi {
    /// Starts `ranks` of a program, with the words of `line` and the library.
    pub(crate) fn start(&self, ranks: u32, program: &Path, line: &str) -> Started {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let start = STARTS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{start}", std::process::id());
        // MPICH's launcher may die of SIGPIPE where a rank ends early, with what the rank has said.
        let mut command = Command::new("env");
        command.arg("--ignore-signal=PIPE").arg(&self.launcher);
        // A launcher may give its ranks a terminal.
        command.env("COLUMNS", "1000").env("NO_COLOR", "1");
        // Open MPI refuses more ranks than CPUs, and root, if it is not told otherwise.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        if !self.is_mpich() {
            command.args(["--oversubscribe", "--bind-to", "none"]);
        }
        command.args(["-np", &ranks.to_string()]).arg(program).args(line.split_whitespace());
        command.env(MARK, &mark).stdin(Stdio::null());
        Started {
            child: command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
            mark: Mark(mark),
            what: format!("{} {ranks} {line}", self.launcher.display()),
        }
    }

    pub(crate) fn g2g(&self, ranks: u32, line: &str) -> Started {
        let library = self.library.as_ref();
        let library = library.map(|path| format!(" --mpi-lib {}", path.display()));
        let line = format!("{line}{}", library.unwrap_or_default());
        self.start(ranks, Path::new(program()), &line)
    }

    /// The same, to its end. Where ranks end at once, MPICH's launcher may fail to write to a part
    /// of itself that has ended, and what the ranks said is lost: then once more.
    pub(crate) fn outcome(&self, ranks: u32, line: &str) -> (Output, String) {
        let has_lost_itself = |said: &str| said.contains("HYDU_sock_write");
        let mut tries = (0..3).map(|_| self.g2g(ranks, line).wait());
        tries.find(|(_, said)| !has_lost_itself(said)).expect("MPICH's launcher fails each time")
    }

    pub(crate) fn is_mpich(&self) -> bool {
        self.launcher.to_str().unwrap().contains("mpich")
    }
}

impl Started {
    /// The process of a rank.
    pub(crate) fn rank(&self, rank: u32) -> Option<u32> {
        let of_open_mpi = format!("OMPI_COMM_WORLD_RANK={rank}");
        let of_mpich = format!("PMI_RANK={rank}");
        let is_it = |&pid: &u32| has_variable(pid, &of_open_mpi) || has_variable(pid, &of_mpich);
        self.mark.processes().into_iter().find(is_it)
    }

    /// The process that starts the ranks.
    pub(crate) fn launcher(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a row, or for the end, after which there must be one.
    pub(crate) fn wait_for_a_row(self, output: &Path) -> Self {
        let lines = || fs::read_to_string(output.join("run.csv")).unwrap_or_default();
        let has_row = || lines().lines().count() > 1;
        let stat = format!("/proc/{}/stat", self.launcher());
        let has_ended = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        let is_over = eventually(SOON, || has_row() || has_ended());
        assert!(is_over, "{} has no row and goes on", self.what);
        if has_row() { self } else { panic!("no row: {}", self.wait().1) }
    }

    /// Waits for a row, then sends a signal to a rank.
    pub(crate) fn signal_after_a_row(self, output: &Path, name: &str, rank: u32) -> Self {
        let started = self.wait_for_a_row(output);
        signal(name, started.rank(rank).unwrap());
        started
    }

    /// Waits for the end, which must come, and for that of every process.
    pub(crate) fn wait(self) -> (Output, String) {
        let Self { child, mark, what } = self;
        let (send, receive) = mpsc::channel();
        thread::spawn(move || send.send(child.wait_with_output().unwrap()));
        let output = receive.recv_timeout(SOON);
        let output = output.unwrap_or_else(|_| panic!("{what} does not end"));
        let is_gone = eventually(SOON, || mark.processes().is_empty());
        assert!(is_gone, "{what} leaves {:?}", mark.processes());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let said = format!("{what}: {}: {out}{err}", output.status);
        (output, said)
    }
}

impl Mark {
    fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.0);
        let pids = fs::read_dir("/proc").unwrap();
        let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(|&pid| has_variable(pid, &mark)).collect()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        for pid in self.processes() {
            // It may have ended by now.
            drop(Command::new("kill").args(["-KILL", &pid.to_string()]).output());
        }
    }
}

/// A process that has ended has no variables any more, be it a zombie.
fn has_variable(pid: u32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|other| other == variable.as_bytes())
}
