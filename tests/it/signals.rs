//! SIGINT and SIGTERM: a run ends in order and in time, whatever it is doing.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::common::{
    Rows, Running, SOON, assert_nothing_stays, children, eventually, g2g, shared_memory_names,
    signal, simulation::FREE_EVENTS, start, text, wait,
};
use serde_json::Value;
use tempfile::TempDir;

/// How long a run may take to end; it takes 5 s at most on a machine that is not busy elsewhere.
const END: Duration = Duration::from_secs(15);

const SIGNALS: [(&str, i32); 2] = [("INT", 130), ("TERM", 143)];

/// Rows that last for ever between two ranks.
const ENDLESS: &str = "shm --numa 0:0 --pattern one-way --sizes 64,4K,8K --slot-size 4K --deadline \
                       1h --samples 1000000000 --time-limit 1h";

/// A run in a folder of its own.
struct Run {
    child: Running,
    folder: TempDir,
    names: Vec<PathBuf>,
}

impl Run {
    fn start(words: &str) -> Self {
        Self::begin(&format!("{words} --no-report"))
    }

    /// With a page.
    fn begin(words: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = shared_memory_names();
        let output = folder.path().join("run");
        let child = start(&format!("{words} --output {}", output.display()));
        Self { child, folder, names }
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Waits until there are so many rows.
    fn wait_for(self, rows: usize) -> Self {
        let csv = self.output().join("run.csv");
        let lines = || fs::read_to_string(&csv).unwrap_or_default().lines().count();
        assert!(eventually(SOON, || lines() > rows), "no row {rows}");
        self
    }

    /// Rank 1 in the middle of its work, whenever it is there.
    fn rank(&self) -> u32 {
        assert!(eventually(SOON, || !children(&self.child).is_empty()), "no rank");
        std::thread::sleep(Duration::from_millis(500));
        children(&self.child)[0]
    }

    /// Waits for the end that a signal must have brought, `began` ago at most so long; what was
    /// said.
    fn ended(self, began: Instant, code: i32) -> (String, TempDir) {
        let (said, folder) = self.left(code);
        assert!(began.elapsed() < END, "after {:?}: {said}", began.elapsed());
        (said, folder)
    }

    /// Waits for the end, whenever it comes.
    fn left(self, code: i32) -> (String, TempDir) {
        let Self { child, folder, names } = self;
        let group = child.id();
        let result = wait(child);
        let said = format!("{}{}", text(&result.stdout), text(&result.stderr));
        assert_eq!(result.status.code(), Some(code), "{said}");
        assert_nothing_stays(group, &names);
        (said, folder)
    }
}

/// Fails unless the files are whole; how many rows they have.
fn rows(folder: &Path) -> usize {
    let output = folder.join("run");
    let rows = Rows::read(&output).len();
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), rows);
    let hlog = fs::read_to_string(output.join("latency.hlog")).unwrap();
    assert!(hlog.ends_with('\n'));
    rows
}

#[test]
fn a_run_that_is_interrupted_between_ranks_keeps_its_rows_and_prints_them() {
    for (name, code) in SIGNALS {
        let words = ENDLESS.replace("--samples 1000000000 --time-limit 1h", "--time-limit 1s");
        let run = Run::begin(&format!("{words} --precision 0.0001")).wait_for(2);
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, code);
        let told = format!("error: interrupted by SIG{name}; 1 row was not measured: the same");
        assert!(said.contains(&told), "{said}");
        assert!(
            said.contains(&format!("--resume {} goes on", folder.path().join("run").display()))
        );
        assert!(said.contains("shm copy host memory, ") && said.contains("verified"), "{said}");
        let at_once = format!("note: SIG{name}: the run ends, its rows so far are kept; the same");
        assert!(said.contains(&at_once), "{said}");
        assert_eq!(rows(folder.path()), 2);
        assert!(said.contains("page: ") && folder.path().join("run/report.html").is_file());
    }
}

#[test]
fn a_run_that_is_interrupted_before_its_first_row_keeps_whole_files() {
    for (name, code) in SIGNALS {
        let run = Run::start(ENDLESS).wait_for(0);
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, code);
        assert!(said.contains("3 rows were not measured"), "{said}");
        assert_eq!(rows(folder.path()), 0);
    }
}

#[test]
fn a_run_whose_words_nobody_reads_ends_in_time_too() {
    for (name, code) in SIGNALS {
        let mut run = Run::start(ENDLESS).wait_for(0);
        // Its standard error takes no more, and is not read before it has ended.
        let mut pipe = OpenOptions::new();
        pipe.write(true).custom_flags(libc::O_NONBLOCK);
        let mut pipe = pipe.open(format!("/proc/{}/fd/2", run.child.id())).unwrap();
        while pipe.write(b".").is_ok() {}
        drop(pipe);
        let began = Instant::now();
        signal(name, run.child.id());
        assert!(eventually(END, || run.child.try_wait().unwrap().is_some()), "it stays");
        let (_, folder) = run.ended(began, code);
        assert_eq!(rows(folder.path()), 0);
    }
}

#[test]
fn ranks_leave_the_decision_to_rank_0_when_a_terminal_tells_them_all() {
    for (name, code) in SIGNALS {
        let run = Run::start(&format!("{ENDLESS} --ranks 4")).wait_for(0);
        assert!(eventually(SOON, || children(&run.child).len() == 3));
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        signal(name, run.child.id());
        for rank in children(&run.child) {
            signal(name, rank);
        }
        let (said, folder) = run.ended(began, code);
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap();
        assert!(!error.contains("rank"), "{said}");
        rows(folder.path());
    }
}

#[test]
fn a_rank_that_is_told_alone_ends_and_is_named() {
    let run = Run::start(ENDLESS).wait_for(0);
    let rank = run.rank();
    let began = Instant::now();
    signal("TERM", rank);
    let (said, _folder) = run.ended(began, 1);
    assert!(said.contains("rank 1 is gone: it ended in the middle of the run"), "{said}");
}

/// Calls of a run on simulated GPUs, each for the so-and-so-many-th time, and the phase in which it
/// then is. Of a pass that a busy machine shortens it is one of the first calls.
const MOMENTS: [(&str, u64, &str); 6] = [
    ("cuMemAlloc", 0, "while it was prepared"),
    ("cuMemcpyAsync", 100, "in the warm-up"),
    ("cuMemcpyAsync", 165, "in the proof of single operations"),
    ("cuMemcpyAsync", 400, "in the bandwidth pass"),
    ("cuMemcpyAsync", 900, "in the latency pass"),
    ("cuMemcpyAsync", 1170, "in the warm-up"),
];

/// What becomes of a run of one process in a call.
fn in_call((call, after, _): (&str, u64, &str), what: &str) -> (Run, TempDir) {
    let machine = tempfile::tempdir().unwrap();
    let file = machine.path().join("machine.toml");
    let fault = format!(
        "schema = 1\nfrom = \"p4d.24xlarge\"\nname = \"test\"\n[[fault.call]]\nname = \"{call}\"\n\
         after = {after}\nwhat = {what}\n{FREE_EVENTS}"
    );
    fs::write(&file, fault).unwrap();
    let words = "p2p --gpus 0,1 --engine ce --operation copy --issuer read --pattern one-way \
                 --sizes 64K,128K --samples 20 --time-limit 1ms --simulate";
    (Run::start(&format!("{words} {}", file.display())), machine)
}

/// Tells a run that stands in a call, and lets it go on.
fn tell_and_let_go(run: &Run, name: &str, moment: (&str, u64, &str)) {
    let stat = || fs::read_to_string(format!("/proc/{}/stat", run.child.id())).unwrap_or_default();
    let mut is_there = false;
    let stands_or_ends = || {
        is_there = stat().contains(") T ");
        is_there || stat().contains(") Z ")
    };
    assert!(eventually(SOON, stands_or_ends) && is_there, "{moment:?}: it does not come so far");
    signal(name, run.child.id());
    signal("CONT", run.child.id());
}

#[test]
fn a_run_on_simulated_gpus_ends_in_each_phase() {
    for (moment, (name, code)) in MOMENTS.into_iter().zip(SIGNALS.iter().cycle()) {
        // The call is in that phase: one that fails there says so. How many calls come before it
        // depends on how many samples fit into real time.
        let (call, after, phase) = moment;
        let near = (0..8).flat_map(|step| [after + 40 * step, after.saturating_sub(40 * step)]);
        let moment = near.map(|after| (call, after, phase)).find(|&moment| is_in_phase(moment));
        let moment = moment.unwrap_or_else(|| panic!("no call near {call} {after} is {phase}"));

        let (run, _machine) = in_call(moment, "\"stopped\"");
        tell_and_let_go(&run, name, moment);
        let (said, folder) = run.ended(Instant::now(), *code);
        let measured = rows(folder.path());
        assert!(measured <= 1, "{moment:?}: {said}");
        let missing = 4 - measured;
        let told =
            format!("error: interrupted by SIG{name}; {missing} rows were not measured: the");
        assert!(said.contains(&told), "{moment:?}: {said}");
    }
}

/// Whether a run whose call fails at that moment says that it was in that phase.
fn is_in_phase(moment: (&str, u64, &str)) -> bool {
    let (run, _machine) = in_call(moment, "\"refused\"\ncode = 2");
    let (said, folder) = run.left(1);
    let failed = Rows::read(&folder.path().join("run"));
    let mut reasons = (0..failed.len()).map(|row| failed.cell(row, "reason"));
    let reason = reasons.find(|reason| !reason.is_empty());
    reason.unwrap_or_else(|| panic!("{moment:?}: {said}")).ends_with(&format!("({})", moment.2))
}

#[test]
fn a_run_on_simulated_gpus_ends_before_its_first_row_and_behind_its_last() {
    for (name, code) in SIGNALS {
        let first = ("cuInit", 0, "");
        let (run, _machine) = in_call(first, "\"stopped\"");
        tell_and_let_go(&run, name, first);
        let (said, folder) = run.ended(Instant::now(), code);
        assert_eq!(said, "");
        assert!(!folder.path().join("run").exists());

        let last = ("cuDevicePrimaryCtxRelease", 0, "");
        let (run, _machine) = in_call(last, "\"stopped\"");
        tell_and_let_go(&run, name, last);
        let (said, folder) = run.ended(Instant::now(), code);
        assert!(!said.contains("error: "), "{said}");
        assert_eq!(rows(folder.path()), 4);
    }
}

#[test]
fn a_run_on_simulated_gpus_ends_behind_any_row() {
    for (after, (name, code)) in [0, 0, 1, 5].into_iter().zip(SIGNALS.iter().cycle()) {
        let words = "p2p --simulate p4d.24xlarge --sizes 4K..1M --time-limit 50ms --precision \
                     0.0001";
        let run = Run::start(words).wait_for(after);
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, *code);
        assert!(said.contains("rows were not measured"), "{said}");
        assert!(rows(folder.path()) >= after);
    }
}

#[test]
fn a_rank_that_is_stopped_does_not_hold_up_the_end() {
    for (name, code) in SIGNALS {
        let run = Run::start(ENDLESS).wait_for(0);
        signal("STOP", run.rank());
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, code);
        let told =
            format!("error: interrupted by SIG{name}; what was under way has not ended within 4 s");
        assert!(said.contains(&told), "{said}");
        rows(folder.path());
    }
}

#[test]
fn a_call_that_does_not_come_back_does_not_hold_up_the_end() {
    let machine = tempfile::tempdir().unwrap();
    let file = machine.path().join("machine.toml");
    let fault = "schema = 1\ngpu_count = 2\n[[gpu]]\nmemory_mib = 256\n[[fault.rank]]\nrank = 1\n\
                 what = \"absent\"\nafter = 400\n";
    fs::write(&file, fault).unwrap();
    let words = "nccl --operation all_reduce --sizes 4K --samples 1000000 --time-limit 1h \
                 --deadline 1h --simulate";
    let run = Run::start(&format!("{words} {}", file.display())).wait_for(0);
    // Until the fault it has work without end, and behind it the first thread does nothing more.
    let done = || {
        let status = fs::read_to_string(format!("/proc/{}/status", run.child.id())).unwrap();
        let is_told = |line: &&str| line.starts_with("State:") || line.contains("ctxt_switches:");
        status.lines().filter(is_told).collect::<Vec<&str>>().join("; ")
    };
    let hangs = || {
        let before = done();
        std::thread::sleep(Duration::from_millis(500));
        before.contains("S (sleeping)") && before == done()
    };
    assert!(eventually(SOON, hangs), "it does not come to the fault: {}", done());
    let began = Instant::now();
    signal("TERM", run.child.id());
    let (said, folder) = run.ended(began, 143);
    let told = "error: interrupted by SIGTERM; what was under way has not ended within 4 s";
    assert!(said.contains(told), "{said}");
    rows(folder.path());
}

#[test]
fn a_second_signal_ends_at_once_what_does_not_end_by_itself() {
    let run = Run::start(ENDLESS).wait_for(0);
    signal("STOP", run.rank());
    signal("INT", run.child.id());
    std::thread::sleep(Duration::from_secs(1));
    signal("TERM", run.child.id());
    let (said, folder) = run.ended(Instant::now(), 130);
    assert!(!said.contains("error: "), "{said}");
    rows(folder.path());
}

#[test]
fn libfabrics_providers_do_not_take_the_signals_away() {
    for (name, code) in SIGNALS {
        let words = "rdma --provider tcp --operation write --pattern one-way --sizes 64,4K \
                     --samples 1000000 --time-limit 1h --deadline 1h";
        let run = Run::start(words).wait_for(0);
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, code);
        assert!(said.contains("interrupted by SIG"), "{said}");
        rows(folder.path());
    }
}

#[test]
fn before_there_is_anything_to_lose_it_ends_at_once() {
    // A machine file that never ends: whoever reads it waits.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("machine.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (name, code) in SIGNALS {
        let run = Run::start(&format!("p2p --simulate {}", pipe.display()));
        let waits = || {
            let status = fs::read_to_string(format!("/proc/{}/status", run.child.id()));
            status.is_ok_and(|status| status.contains("Threads:\t2"))
        };
        assert!(eventually(SOON, waits), "it does not come to its machine");
        let began = Instant::now();
        signal(name, run.child.id());
        let (said, folder) = run.ended(began, code);
        assert_eq!(said, "");
        assert!(!folder.path().join("run").exists());
    }
}

/// A sweep of two runs that do not end.
fn sweep(folder: &Path, line: &str) -> Command {
    let plan = format!(
        "command = \"shm\"\nflags = \"{}\"\nrepetitions = 1\n[[axis]]\nname = \"--ranks\"\n\
         values = [2, 4]\n",
        ENDLESS.trim_start_matches("shm ")
    );
    fs::write(folder.join("plan.toml"), plan).unwrap();
    let mut command = g2g();
    command.arg("sweep").args(line.split_whitespace()).current_dir(folder);
    command
}

#[test]
fn a_sweep_has_its_run_end_first_and_goes_on_later() {
    for (name, code) in SIGNALS {
        let folder = tempfile::tempdir().unwrap();
        let names = shared_memory_names();
        let child = Running::start(&mut sweep(folder.path(), "plan.toml --output out"));
        let part = folder.path().join("out/runs/001.part");
        assert!(eventually(SOON, || part.join("latency.hlog").exists()), "no run");
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        let group = child.id();
        signal(name, group);
        let result: Output = wait(child);
        let said = text(&result.stderr);
        assert!(began.elapsed() < END, "{said}");
        assert_eq!(result.status.code(), Some(code), "{said}");
        let told = format!("error: interrupted by SIG{name}: `g2g sweep --resume out` goes on");
        assert!(said.contains(&told), "{said}");
        // The run has said why it ended, in order.
        let log = fs::read_to_string(part.join("stderr.log")).unwrap();
        assert!(log.contains("error: interrupted by SIGTERM"), "{log}");
        assert_nothing_stays(group, &names);
        let json = fs::read_to_string(folder.path().join("out/sweep.json")).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        let missing = |run: &Value| run["status"] == "missing";
        assert!(json["runs"].as_array().unwrap().iter().all(missing), "{json}");
        let page = fs::read_to_string(folder.path().join("out/report.html")).unwrap();
        assert!(page.contains("2 of 2 runs not made yet: g2g sweep --resume goes on."));
    }
}
