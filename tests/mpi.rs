//! Ranks of real MPI launchers: Open MPI 4 and 5, MPICH 4 and 5, and the standard's interface.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use common::{Rows, eventually, signal, text};

/// A bound on what ends by itself within seconds, on a machine that is busy elsewhere.
const SOON: Duration = Duration::from_secs(100);

/// By this variable the processes of one start are found, whatever group a launcher puts them in.
const MARK: &str = "G2G_TEST_START";

/// An MPI: what starts its ranks, and the library if it is not the launcher's usual one.
struct Mpi {
    launcher: PathBuf,
    library: Option<PathBuf>,
}

/// The folder of an environment that scripts/test makes.
fn environment(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(name)
}

fn open_mpi() -> [Mpi; 2] {
    ["mpirun.openmpi".into(), environment("openmpi").join("bin/mpirun")]
        .map(|launcher| Mpi { launcher, library: None })
}

fn mpich() -> [Mpi; 2] {
    ["mpirun.mpich".into(), environment("mpich").join("bin/mpirun")]
        .map(|launcher| Mpi { launcher, library: None })
}

fn standard() -> Mpi {
    Mpi {
        launcher: environment("mpich").join("bin/mpirun"),
        library: Some(environment("mpich").join("lib/libmpi_abi.so.1")),
    }
}

fn every_launcher() -> impl Iterator<Item = Mpi> {
    open_mpi().into_iter().chain(mpich())
}

fn every_mpi() -> impl Iterator<Item = Mpi> {
    every_launcher().chain([standard()])
}

/// What is started, and the mark of its processes.
struct Started {
    child: Child,
    mark: String,
    what: String,
}

impl Mpi {
    /// Starts `ranks` of a program, with the words of `line` and the library.
    fn start(&self, ranks: u32, program: &Path, line: &str) -> Started {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let start = STARTS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{start}", std::process::id());
        let mut command = Command::new(&self.launcher);
        // Open MPI refuses more ranks than CPUs, and root, if it is not told otherwise.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        if !self.is_mpich() {
            command.args(["--oversubscribe", "--bind-to", "none"]);
        }
        command.args(["-np", &ranks.to_string()]).arg(program).args(line.split_whitespace());
        command.env(MARK, &mark).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|err| {
            panic!("{}: {err}: scripts/test installs it", self.launcher.display())
        });
        Started { child, mark, what: format!("{} {ranks} {line}", self.launcher.display()) }
    }

    fn g2g(&self, ranks: u32, line: &str) -> Started {
        let library = self.library.as_ref();
        let library = library.map(|path| format!(" --mpi-lib {}", path.display()));
        let line = format!("{line}{}", library.unwrap_or_default());
        self.start(ranks, Path::new(env!("CARGO_BIN_EXE_g2g")), &line)
    }

    fn is_mpich(&self) -> bool {
        self.launcher.to_str().unwrap().contains("mpich")
    }
}

impl Started {
    /// The process of a rank.
    fn rank(&self, rank: u32) -> Option<u32> {
        let of_open_mpi = format!("OMPI_COMM_WORLD_RANK={rank}");
        let of_mpich = format!("PMI_RANK={rank}");
        let is_it = |&pid: &u32| has_variable(pid, &of_open_mpi) || has_variable(pid, &of_mpich);
        processes(&self.mark).into_iter().find(is_it)
    }

    /// Waits for a row, then sends a signal to a rank.
    fn signal_after_a_row(&self, output: &Path, name: &str, rank: u32) {
        let lines = || fs::read_to_string(output.join("run.csv")).unwrap_or_default();
        assert!(eventually(SOON, || lines().lines().count() > 1), "{}: no row", self.what);
        signal(name, self.rank(rank).unwrap());
    }

    /// Waits for the end, which must come, and for that of every process.
    fn wait(self) -> (Output, String) {
        let Self { child, mark, what } = self;
        let (send, receive) = mpsc::channel();
        thread::spawn(move || send.send(child.wait_with_output().unwrap()));
        let output = receive.recv_timeout(SOON);
        let output = output.unwrap_or_else(|_| panic!("{what} does not end"));
        let is_gone = eventually(SOON, || processes(&mark).is_empty());
        assert!(is_gone, "{what} leaves {:?}", processes(&mark));
        let said = format!("{what}: {}{}", text(&output.stdout), text(&output.stderr));
        (output, said)
    }
}

/// The processes of a start.
fn processes(mark: &str) -> Vec<u32> {
    let mark = format!("{MARK}={mark}");
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|&pid| has_variable(pid, &mark)).collect()
}

/// A process that has ended has no variables any more, be it a zombie.
fn has_variable(pid: u32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|other| other == variable.as_bytes())
}

fn count(said: &str, sentence: &str) -> usize {
    said.matches(sentence).count()
}

#[test]
fn every_mpi_measures_between_two_and_between_three_ranks() {
    for mpi in every_mpi() {
        for ranks in [2, 3] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi.g2g(
                ranks,
                &format!("shm --numa 0:0 --sizes 64K --samples 5 --output {}", output.display()),
            );
            let (result, said) = started.wait();
            assert_eq!(result.status.code(), Some(0), "{said}");
            let rows = Rows::read(&output);
            assert_eq!(rows.len(), 2, "{said}");
            assert!((0..2).all(|row| rows.cell(row, "status") == "ok"), "{said}");
            // Rank 0 alone prints.
            assert_eq!(count(&text(&result.stdout), "shm one-way:"), 1, "{said}");
            let json = fs::read_to_string(output.join("run.json")).unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["provenance"]["ranks"], ranks, "{said}");
        }
    }
}

#[test]
fn every_message_of_every_mpi_arrives_where_it_belongs() {
    let program = Path::new(env!("CARGO_BIN_EXE_g2g")).with_file_name("examples").join("messages");
    assert!(program.exists(), "`cargo test` builds it, and so does `cargo build --examples`");
    for mpi in every_mpi() {
        for line in ["all", "late"] {
            let library = mpi.library.as_ref();
            let library = library.map(|path| path.display().to_string()).unwrap_or_default();
            let (result, said) = mpi.start(3, &program, &format!("{line} {library}")).wait();
            assert_eq!(result.status.code(), Some(0), "{said}");
            assert_eq!(text(&result.stdout), "all was right\n", "{said}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_run_and_the_rows_before_it_are_kept() {
    for mpi in every_launcher() {
        for victim in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi.g2g(3, &long_run(&output, "60s"));
            started.signal_after_a_row(&output, "KILL", victim);
            let (result, said) = started.wait();
            assert_ne!(result.status.code(), Some(0), "{said}");
            assert_eq!(Rows::read(&output).cell(0, "status"), "ok", "{said}");
        }
    }
}

#[test]
fn a_rank_that_stops_is_named_and_does_not_stay() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let started = mpi.g2g(2, &long_run(&output, "4s"));
        started.signal_after_a_row(&output, "STOP", 1);
        let (result, said) = started.wait();
        assert_eq!(result.status.code(), Some(1), "{said}");
        assert!(is_error(&result, "rank 1"), "{said}");
        // Rank 0 has had the time to write and to print what it has.
        let rows = Rows::read(&output);
        assert_eq!((rows.cell(0, "status"), rows.cell(1, "status")), ("ok", "failed"), "{said}");
        assert!(text(&result.stdout).contains("FAILED: "), "{said}");
    }
}

#[test]
fn every_rank_says_that_rank_0_has_stopped_before_all_end() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let started = mpi.g2g(3, &long_run(&output, "6s"));
        started.signal_after_a_row(&output, "STOP", 0);
        let (result, said) = started.wait();
        assert_eq!(result.status.code(), Some(1), "{said}");
        assert!(is_error(&result, "rank 1: "), "{said}");
        assert!(is_error(&result, "rank 2: rank 0 did not answer"), "{said}");
        assert_eq!(Rows::read(&output).cell(0, "status"), "ok", "{said}");
    }
}

/// Whether a line of standard error is an error that names `part`.
fn is_error(result: &Output, part: &str) -> bool {
    let is_it = |line: &str| line.starts_with("error: ") && line.contains(part);
    text(&result.stderr).lines().any(is_it)
}

/// A short case and a long one.
fn long_run(output: &Path, deadline: &str) -> String {
    format!(
        "shm --numa 0:0 --pattern one-way --sizes 64,64M --time-limit 2s --precision 0.0001 \
         --deadline {deadline} --output {}",
        output.display()
    )
}

#[test]
fn what_cannot_start_is_said_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.csv"), "").unwrap();
    let taken = format!("shm --sizes 64 --samples 2 --output {}", folder.path().display());
    for mpi in every_mpi() {
        for (line, part) in [
            ("shm --siz 64", "unexpected argument '--siz' found"),
            ("shm --ranks 2", "a launcher has started 3 ranks"),
            // The other ranks have joined by now.
            (&taken, "it already holds run.csv"),
        ] {
            let (result, said) = mpi.g2g(3, line).wait();
            assert_eq!(result.status.code(), Some(2), "{said}");
            assert_eq!(count(&said, part), 1, "{said}");
            assert_eq!(count(&said, "error: "), 1, "{said}");
        }
        for (line, part) in [("--version", "g2g 0"), ("shm --sizes 64 --dry-run", "1 shm one-way")]
        {
            let (result, said) = mpi.g2g(2, line).wait();
            assert_eq!(result.status.code(), Some(0), "{said}");
            assert_eq!(count(&text(&result.stdout), part), 1, "{said}");
        }
    }
}

#[test]
fn a_library_that_does_not_fit_the_launcher_is_refused_before_it_is_started() {
    let [_, open_mpi_5] = open_mpi();
    let [_, mpich_5] = mpich();
    let of_open_mpi = environment("openmpi").join("lib/libmpi.so.40");
    let of_mpich = environment("mpich").join("lib/libmpi.so.12");
    for (mpi, library, part) in [
        (&open_mpi_5, of_mpich, "is MPICH Version: 5"),
        (&open_mpi_5, environment("mpich").join("lib/libmpi_abi.so.1"), "is MPICH Version: 5"),
        (&mpich_5, of_open_mpi, "is Open MPI v5"),
        (&mpich_5, "/absent/libmpi.so".into(), "No such file or directory"),
        (&mpich_5, "libc.so.6".into(), "it is no MPI library"),
    ] {
        let line = format!("shm --sizes 64 --samples 2 --mpi-lib {}", library.display());
        let (result, said) = mpi.g2g(2, &line).wait();
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
        assert!(said.contains("or leave it out"), "{said}");
    }
}

#[test]
fn copies_that_mpi_does_not_join_are_refused() {
    for (count, rank) in
        [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut command = common::g2g();
        command.env(count, "2").env(rank, "0").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        let output = folder.path().join("run");
        let line = format!("shm --sizes 64 --samples 2 --output {}", output.display());
        let result = common::run(command, &line);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("rank 0 of 2 ({count}), but rank 0 of 1 to")), "{said}");
        assert!(!output.exists(), "{said}");
    }
}

#[test]
fn eight_ranks_on_a_simulated_machine_find_what_one_process_finds() {
    let folder = tempfile::tempdir().unwrap();
    let line = "p2p --simulate p4d.24xlarge --pattern one-way,bisection --issuer read --sizes 1M \
                --operation copy --time-limit 50ms --quiet --output";
    let alone = folder.path().join("alone");
    let mut command = Command::new(env!("CARGO_BIN_EXE_g2g"));
    let result = command.args(line.split_whitespace()).arg(&alone).output().unwrap();
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let alone = Rows::read(&alone);
    // By copy engine and by kernels: every ordered pair, and all of them at once.
    assert_eq!(alone.len(), 2 * 57);
    for mpi in [&open_mpi()[0], &mpich()[1]] {
        let output = folder.path().join(format!("mpich-{}", mpi.is_mpich()));
        let (result, said) = mpi.g2g(8, &format!("{line} {}", output.display())).wait();
        assert_eq!(result.status.code(), Some(0), "{said}");
        let rows = Rows::read(&output);
        assert_eq!(rows.len(), alone.len(), "{said}");
        for row in 0..rows.len() {
            let cells = |rows: &Rows| {
                ["pattern", "engine", "source_gpu", "target_gpu", "simulated", "flows"]
                    .map(|name| rows.cell(row, name).to_owned())
            };
            assert_eq!(cells(&rows), cells(&alone), "{said}");
            assert_eq!(rows.cell(row, "source_rank"), rows.cell(row, "source_gpu"));
            let rate = |rows: &Rows| rows.number(row, "bandwidth_gb_s_total");
            let (found, expected) = (rate(&rows), rate(&alone));
            assert!((found - expected).abs() <= 0.005 * expected, "{found} for {expected}");
        }
    }
}
