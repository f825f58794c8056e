//! g2g on a simulated machine.

use std::{fs, process::Output, sync::LazyLock};

use g2g::{ffi::simulation, machine};

use super::{Rows, g2g, mpi, text};

/// What a run on a simulated machine has left.
pub(crate) struct Simulated {
    /// Where its files are; gone when it is dropped.
    pub(crate) folder: tempfile::TempDir,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Simulated {
    /// Runs g2g with the words of `line` on the machine that `machine` describes.
    pub(crate) fn run(machine: &str, line: &str) -> Self {
        Self::run_by(machine, line, |line| g2g().args(line.split_whitespace()).output().unwrap())
    }

    /// The same, as so many ranks that a launcher starts: on a machine of several hosts they are
    /// dealt to these in turn.
    pub(crate) fn run_ranks(ranks: u32, machine: &str, line: &str) -> Self {
        let [mpi, _] = mpi::open_mpi();
        Self::run_by(machine, line, |line| mpi.outcome(ranks, line).0)
    }

    fn run_by(machine: &str, line: &str, run: impl FnOnce(&str) -> Output) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [file, report, output] =
            ["machine.toml", "report.jsonl", "run"].map(|name| folder.path().join(name));
        fs::write(&file, machine.replace("report.jsonl", report.to_str().unwrap())).unwrap();
        let output = run(&format!(
            "{line} --simulate {} --no-report --output {}",
            file.display(),
            output.display()
        ));
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr), folder }
    }

    /// Its rows; fails if it did not end well.
    pub(crate) fn rows(&self) -> Rows {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.rows_whatever_happened()
    }

    pub(crate) fn rows_whatever_happened(&self) -> Rows {
        Rows::read(&self.folder.path().join("run"))
    }

    /// What the machine's processes have reported at their ends, one line each.
    pub(crate) fn report(&self) -> Vec<serde_json::Value> {
        let lines = fs::read_to_string(self.folder.path().join("report.jsonl")).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// How long a transfer lasts: its latency, and its bytes at its rate in GB/s (bytes per ns).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) gb_s: f64,
    pub(crate) latency_ns: f64,
}

impl Rate {
    pub(crate) const fn new(gb_s: f64, latency_ns: f64) -> Self {
        Self { gb_s, latency_ns }
    }

    pub(crate) fn time_ns(self, bytes: f64) -> f64 {
        self.latency_ns + bytes / self.gb_s
    }

    fn toml(self) -> String {
        format!("{{ gb_s = {:?}, latency_ns = {:?} }}", self.gb_s, self.latency_ns)
    }
}

/// GPUs of the machines of these tests.
pub(crate) const GPUS: u32 = 4;

/// What a kernel costs on them beside its traffic.
pub(crate) const LAUNCH_NS: f64 = 700.0;

/// What recording an event takes on all machines that do not say otherwise.
pub(crate) const EVENT_NS: f64 = 1000.0;

/// For a machine file: events tell no wrong times.
pub(crate) const EXACT_EVENTS: &str = "\n[driver]\nevent_error_ns = 0\n";

/// The same, and they take no time: the first sample tells how many operations a sample has.
pub(crate) const FREE_EVENTS: &str = "\n[driver]\nevent_ns = 0\nevent_error_ns = 0\n";

/// Granularity of their event times.
pub(crate) const RESOLUTION_NS: f64 = 32.0;

/// The ways within each GPU and to its host.
pub(crate) const LOCAL_CE: Rate = Rate::new(1200.0, 1100.0);
pub(crate) const LOCAL_SM: Rate = Rate::new(1400.0, 300.0);
pub(crate) const FROM_HOST_CE: Rate = Rate::new(52.0, 1300.0);
pub(crate) const FROM_HOST_SM: Rate = Rate::new(44.0, 900.0);
pub(crate) const TO_HOST_CE: Rate = Rate::new(50.0, 1250.0);
pub(crate) const TO_HOST_SM: Rate = Rate::new(47.0, 600.0);
pub(crate) const LOAD_NS: f64 = 280.0;
pub(crate) const HOST_LOAD_NS: f64 = 1150.0;

/// The rates between two GPUs: no two of the twelve ways have one in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) source: u32,
    pub(crate) target: u32,
}

impl Way {
    pub(crate) fn all() -> Vec<Self> {
        let to = |source| (0..GPUS).map(move |target| Self { source, target });
        (0..GPUS).flat_map(to).filter(|way| way.source != way.target).collect()
    }

    fn number(self) -> f64 {
        f64::from(self.source * GPUS + self.target)
    }

    /// How long one operation of the engine that the issuer asks takes.
    pub(crate) fn rate(self, engine: &str, issuer: &str) -> Rate {
        let number = self.number();
        match (engine, issuer) {
            ("ce", "read") => Rate::new(200.0 + 7.0 * number, 1500.0 + 41.0 * number),
            ("ce", "write") => Rate::new(230.0 + 9.0 * number, 1400.0 + 31.0 * number),
            ("sm", "read") => Rate::new(170.0 + 5.0 * number, 900.0 + 23.0 * number),
            ("sm", "write") => Rate::new(190.0 + 11.0 * number, 800.0 + 17.0 * number),
            _ => panic!("no engine {engine} asked by {issuer}"),
        }
    }

    /// The time of one operation, with what a kernel costs to launch.
    pub(crate) fn time_ns(self, engine: &str, issuer: &str, bytes: f64) -> f64 {
        let launch = if engine == "sm" { LAUNCH_NS } else { 0.0 };
        launch + self.rate(engine, issuer).time_ns(bytes)
    }

    pub(crate) fn load_latency_ns(self) -> f64 {
        600.0 + 25.0 * self.number()
    }
}

/// The files of a p4d.24xlarge, as the kernel would show them. A process attaches one simulated
/// machine, so all tests that want these files share it.
pub(crate) fn simulated_system() -> &'static str {
    static SYSTEM: LazyLock<String> = LazyLock::new(|| {
        machine::simulate("p4d.24xlarge", 0, 0).unwrap();
        simulation::system().unwrap()
    });
    &SYSTEM
}

/// A machine file of four GPUs with NVLinks, whose twelve ways all differ; `more` is added to
/// what it says of all GPUs, and `rest` at its end. Each process reports at its end.
pub(crate) fn four_gpus(more: &str, rest: &str) -> String {
    let mut file = format!(
        "schema = 1\nname = \"four GPUs\"\ngpu_count = {GPUS}\nnvswitch = true\nreport = \"report.jsonl\"\n\
         event_resolution_ns = {RESOLUTION_NS:.0}\n\n[[gpu]]\nname = \"Simulated GPU\"\n\
         memory_mib = 8192\nlaunch_ns = {LAUNCH_NS:?}\nlocal_ce = {}\nlocal_sm = {}\n\
         from_host_ce = {}\nfrom_host_sm = {}\nto_host_ce = {}\nto_host_sm = {}\n\
         load_latency_ns = {LOAD_NS:?}\nhost_load_latency_ns = {HOST_LOAD_NS:?}\nnvlinks = 12\n\
         nvlink_generation = 4\npcie_up_gb_s = 90.0\npcie_down_gb_s = 80.0\n{more}\n",
        LOCAL_CE.toml(),
        LOCAL_SM.toml(),
        FROM_HOST_CE.toml(),
        FROM_HOST_SM.toml(),
        TO_HOST_CE.toml(),
        TO_HOST_SM.toml(),
    );
    for way in Way::all() {
        file.push_str(&format!(
            "\n[[pair]]\nsource = {}\ntarget = {}\nce_read = {}\nce_write = {}\nsm_read = {}\n\
             sm_write = {}\nload_latency_ns = {:?}\n",
            way.source,
            way.target,
            way.rate("ce", "read").toml(),
            way.rate("ce", "write").toml(),
            way.rate("sm", "read").toml(),
            way.rate("sm", "write").toml(),
            way.load_latency_ns(),
        ));
    }
    file + rest
}

/// A machine file of four GPUs, two of which have something to say of their way; with `rest` at
/// its end. Each process reports at its end.
pub(crate) fn four_plain_gpus(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four plain GPUs\"\ngpu_count = {GPUS}\nreport = \"report.jsonl\"\n\n\
         [[gpu]]\nmemory_mib = 8192\n{rest}"
    )
}

/// Fails unless `found` is within `share` of `expected`.
pub(crate) fn assert_near(found: f64, expected: f64, share: f64, what: &str) {
    let distance = (found - expected).abs() / expected;
    assert!(distance <= share, "{what}: {found}, not {expected} ({:.2} % off)", 100.0 * distance);
}

/// Fails unless `found` is the median latency of operations of `operation_ns`: those, and the event
/// at their end. A median of times that are wrong by half a microsecond is wrong by less.
pub(crate) fn assert_latency(found: f64, operation_ns: f64, what: &str) {
    let expected = operation_ns + EVENT_NS;
    let tolerance = f64::max(0.002 * expected, 200.0);
    assert!((found - expected).abs() <= tolerance, "{what}: {found}, not {expected} ns");
}
