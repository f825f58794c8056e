//! Runs that were ended early go on, and lose nothing that was finished.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use crate::common::{
    Rows, SOON, assert_nothing_stays, eventually, g2g, shared_memory_names, start, text,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tempfile::TempDir;

/// Two GPUs.
const MACHINE: &str = "schema = 1\ngpu_count = 2\n[[gpu]]\nmemory_mib = 256\n";

/// A folder for a run, and the words that it is begun with but for the output.
struct Place {
    folder: TempDir,
    words: String,
}

impl Place {
    /// Eight rows of two simulated GPUs.
    fn simulated() -> Self {
        Self::with(
            "p2p --operation copy --sizes 64K,4K --engine ce --samples 2 --time-limit 1ms \
             --simulate machine.toml",
        )
    }

    /// Words in which the machine file is named.
    fn with(words: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine.toml");
        fs::write(&machine, MACHINE).unwrap();
        let words = words.replace("machine.toml", machine.to_str().unwrap());
        Self { folder, words }
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.output().join(name)).unwrap()
    }

    /// The command, begun anew or gone on with.
    fn line(&self, flag: &str) -> String {
        format!("{} --quiet {flag} {}", self.words, self.output().display())
    }

    fn command(&self, flag: &str, more: &str) -> Command {
        let mut command = g2g();
        command.args(self.line(flag).split_whitespace()).args(more.split_whitespace());
        command
    }

    fn run(&self, flag: &str, more: &str) -> Output {
        self.command(flag, more).output().unwrap()
    }

    /// Goes on to a good end.
    fn go_on(&self, more: &str) {
        let result = self.run("--resume", more);
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    }

    /// Refused with one sentence, and nothing is changed.
    #[track_caller]
    fn assert_refused(&self, more: &str, part: &str) {
        let before = self.file("run.json");
        let result = self.run("--resume", more);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        assert_eq!(before, self.file("run.json"));
    }

    /// The rows of run.csv that are whole. Its header is none: a run without rows begins again.
    fn whole_rows(&self) -> String {
        let csv = fs::read_to_string(self.output().join("run.csv")).unwrap_or_default();
        let end = csv.rfind('\n').map_or(0, |end| end + 1);
        csv[..end].split_once('\n').map_or("", |(_, rows)| rows).to_owned()
    }

    /// A run that ended behind `rows` rows.
    fn cut_behind(&self, rows: usize) {
        let result = self.run("--output", "");
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        cut(&self.output(), rows);
    }
}

/// Makes of the run in `output` one that ended behind `rows` rows.
pub(crate) fn cut(output: &Path, rows: usize) {
    let first = |name: &str, is_row: &dyn Fn(&str) -> bool| {
        let mut count = 0;
        let keep = |line: &&str| {
            count += usize::from(is_row(line));
            count <= rows
        };
        let whole = fs::read_to_string(output.join(name)).unwrap();
        let kept: String = whole.split_inclusive('\n').take_while(keep).collect();
        fs::write(output.join(name), kept).unwrap();
    };
    first("run.csv", &|line| !line.starts_with("case"));
    first("run.json", &|line| line.starts_with("{\"case\""));
    first("latency.hlog", &|line| line.starts_with("Tag="));
}

/// A value of run.json as run.csv has it.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace(',', ";").replace('"', "'").replace('\n', " "),
        other => other.to_string(),
    }
}

/// Fails unless the three files tell of the same `rows` rows, each once.
fn assert_whole(output: &Path, rows: usize) -> Value {
    let found = Rows::read(output);
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((found.len(), json["rows"].as_array().unwrap().len()), (rows, rows));
    let hlog = fs::read_to_string(output.join("latency.hlog")).unwrap();
    assert!(hlog.ends_with('\n'));
    let tags = hlog.lines().filter_map(|line| line.strip_prefix("Tag=")?.split(',').next());
    let tags: Vec<&str> = tags.collect();
    assert_eq!(tags.iter().collect::<BTreeSet<&&str>>().len(), tags.len(), "{tags:?}");
    for row in 0..rows {
        for (name, value) in json["rows"][row].as_object().unwrap() {
            assert_eq!(found.cell(row, name), cell(value), "row {row}, {name}");
        }
        assert_eq!(found.cell(row, "case"), (row + 1).to_string());
        let is_own = |tag: &&&str| {
            let of_row = tag.strip_prefix(&format!("case-{}_", row + 1));
            of_row.is_some_and(|rest| !rest.contains("_rank-"))
        };
        let is_measured = found.cell(row, "status") == "ok";
        assert_eq!(tags.iter().filter(is_own).count(), usize::from(is_measured), "{tags:?}");
    }
    json
}

/// Kills a run of `rows` rows, and often the one that goes on too, at so many random moments.
fn kill_at(moments: usize, rows: usize, place: impl Fn() -> Place) {
    let seed: u64 = rand::random();
    #[allow(clippy::print_stderr, reason = "who sees it fail needs it")]
    {
        eprintln!("seed {seed}");
    }
    let mut random = StdRng::seed_from_u64(seed);
    let names = shared_memory_names();
    let mut kills = 0;
    while kills < moments {
        let place = place();
        let mut flag = "--output";
        loop {
            let mut run = start(&place.line(flag));
            let before = place.whole_rows();
            // Some while it starts; the others behind a row of their own, so that neither a fast
            // nor a slow machine makes all moments alike.
            let target = before.lines().count() + random.random_range(0..rows);
            let has_come = || place.whole_rows().lines().count() >= target;
            let mut is_over = || has_come() || run.try_wait().unwrap().is_some();
            assert!(eventually(SOON, &mut is_over), "kill {kills}: no row {target}");
            std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
            run.kill().unwrap();
            let status = run.wait().unwrap();
            assert_nothing_stays(run.id(), &names);
            let after = place.whole_rows();
            assert!(after.starts_with(&before), "kill {kills}: a finished row has changed");
            if place.output().join("run.csv").exists() {
                flag = "--resume";
            }
            if status.success() {
                break;
            }
            kills += 1;
            if random.random_bool(0.5) {
                break;
            }
        }
        let before = place.whole_rows();
        let result = place.run(flag, "");
        assert_eq!(result.status.code(), Some(0), "kill {kills}: {}", text(&result.stderr));
        let after = place.whole_rows();
        assert!(after.starts_with(&before), "kill {kills}: a finished row has changed");
        assert_whole(&place.output(), rows);
    }
}

#[test]
fn a_simulated_run_that_is_killed_at_any_of_24_moments_goes_on() {
    kill_at(24, 8, Place::simulated);
}

#[test]
fn a_run_between_two_ranks_that_is_killed_at_any_of_24_moments_goes_on() {
    let words =
        "shm --numa 0:0 --sizes 64,4K --slot-size 4K --samples 2 --time-limit 1ms --ranks 2";
    kill_at(24, 4, || Place::with(words));
}

#[test]
fn what_goes_on_says_so_and_what_is_done_is_shown_again() {
    let place = Place::simulated();
    place.cut_behind(3);
    place.go_on("");
    let json = assert_whole(&place.output(), 8);
    let resumed = json["resumed"].as_array().unwrap();
    assert_eq!((resumed.len(), &resumed[0]["rows"]), (1, &Value::from(3)), "{resumed:?}");
    assert_eq!(resumed[0]["changed"], Value::Array(Vec::new()));
    assert!(resumed[0]["command"].as_array().unwrap().contains(&"--resume".into()));
    let files = || ["run.csv", "run.json", "latency.hlog"].map(|name| place.file(name));
    let before = files();
    // All of it is there: it is shown in every form, and nothing is touched.
    for (format, file) in [("csv", "run.csv"), ("json", "run.json")] {
        let result = place.run("--resume", &format!("--format {format}"));
        assert_eq!(text(&result.stdout), place.file(file));
    }
    let line = place.line("--resume").replace(" --quiet", "");
    let result = g2g().args(line.split_whitespace()).output().unwrap();
    assert!(text(&result.stderr).starts_with("all rows are there in "), "{}", text(&result.stderr));
    let shown = text(&result.stdout);
    assert!(shown.contains("8 rows measured, ") && shown.contains("p2p copy ce"), "{shown}");
    assert_eq!(files(), before);
}

#[test]
fn a_run_that_was_concluded_goes_on_and_what_it_knew_of_gpus_stays() {
    let place = Place::simulated();
    let line = place.line("--output").replace("64K,4K", "64K..64M").replace("1ms", "1s");
    let run = start(&line.replace("--samples 2", "--precision 0.0001"));
    assert!(eventually(SOON, || place.whole_rows().lines().count() > 1), "no row");
    crate::common::signal("TERM", run.id());
    let result = crate::common::wait(run);
    assert_eq!(result.status.code(), Some(143), "{}", text(&result.stderr));
    let json: Value = serde_json::from_str(&place.file("run.json")).unwrap();
    let rows = json["rows"].as_array().unwrap().len();
    let health = &json["health"];
    assert_eq!(health.as_array().unwrap().len(), 1, "{json}");
    let words = line.replace("--samples 2", "--precision 0.0001").replace("--output", "--resume");
    // One more row is enough.
    let mut run = start(&words);
    let is_there = || place.whole_rows().lines().count() > rows;
    assert!(eventually(SOON, is_there), "no row");
    run.kill().unwrap();
    run.wait().unwrap();
    let json: Value = serde_json::from_str(&place.file("run.json")).unwrap();
    assert_eq!(json["resumed"][0]["rows"], rows);
    assert_eq!(&json["resumed"][0]["health"], health);
    assert_eq!(json["health"], Value::Null);
}

#[test]
fn nccls_log_is_appended_to() {
    let place = Place::with(
        "nccl --operation all_reduce --sizes 4K,8K --place out-of-place --samples 2 --time-limit \
         1ms --simulate machine.toml",
    );
    place.cut_behind(1);
    let before = place.file("nccl/rank-0.log");
    place.go_on("");
    let json = assert_whole(&place.output(), 2);
    assert_eq!(json["rows"][1]["path_verdict"], "proven");
    let after = place.file("nccl/rank-0.log");
    assert!(after.len() > before.len() && after.starts_with(&before), "{after}");
}

#[test]
fn only_the_same_run_goes_on() {
    let place = Place::simulated();
    place.cut_behind(3);
    let again = "it was begun with other words: give `p2p --operation copy";
    let catalogue = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/catalogue/small.toml");
    assert!(catalogue.is_file());
    let catalogue = format!("--catalogue {}", catalogue.display());
    for more in ["--seed 2", "--issuer read", "--pattern both-ways", &catalogue] {
        place.assert_refused(more, again);
    }
    for (was, is) in [("--samples 2", "--samples 3"), ("p2p", "run"), ("1ms", "2ms")] {
        let line = place.line("--resume").replacen(was, is, 1);
        let result = g2g().args(line.split_whitespace()).output().unwrap();
        assert_eq!(result.status.code(), Some(2), "{line}");
        assert!(text(&result.stderr).contains(again), "{}", text(&result.stderr));
    }
    let mut command = place.command("--resume", "");
    let result = command.env("NCCL_ALGO", "Ring").output().unwrap();
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    let told = "the variable NCCL_ALGO was not set and is `Ring`: set it as it was";
    assert!(said.contains(told), "{said}");
    // A row that the plan does not have.
    let json = place.file("run.json");
    for name in ["run.csv", "run.json"] {
        let text = place.file(name).replace("4096", "8192");
        fs::write(place.output().join(name), text).unwrap();
    }
    let hlog = place.file("latency.hlog").replace("_4096B", "_8192B");
    fs::write(place.output().join("latency.hlog"), hlog).unwrap();
    place.assert_refused("", "in row 2 size_bytes was 8192 and would be 4096: begin anew");
    place.assert_refused("--resume-changed", "in row 2 size_bytes was 8192");
    fs::write(place.output().join("run.json"), json).unwrap();
    place.assert_refused("", "row 2 is not the same in run.csv and run.json");
    fs::remove_file(place.output().join("run.csv")).unwrap();
    place.assert_refused("", "it has no run.csv: name the folder of a run");
}

#[test]
fn a_changed_machine_or_version_goes_on_with_leave_only_and_run_json_says_so() {
    let place = Place::simulated();
    place.cut_behind(3);
    let own = place.file("run.json");
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    let changed = own.replacen(&version, "\"version\": \"0.0.0\"", 1);
    assert_ne!(changed, own);
    let changed = changed.replacen("\"uuid\": \"GPU-", "\"uuid\": \"GPU-f", 1);
    fs::write(place.output().join("run.json"), &changed).unwrap();
    let told = format!("the version of g2g was `0.0.0` and is `{}`", env!("CARGO_PKG_VERSION"));
    place.assert_refused("", &told);
    place.assert_refused("", "the list of GPUs was `GPU-f");
    place.assert_refused("", "begin anew with --output, or allow it with --resume-changed");
    place.go_on("--resume-changed");
    let json = assert_whole(&place.output(), 8);
    let changes = json["resumed"][0]["changed"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes.contains(&told.clone().into()), "{changes:?}");
    assert_eq!(json["provenance"]["version"], "0.0.0");
    // The page says from which row on.
    let page = fs::read_to_string(place.output().join("report.html")).unwrap();
    let page = page.replace("&#96;", "`");
    assert!(page.contains("Gone on with") && page.contains(&told), "{told}");
}

#[test]
fn two_runs_do_not_work_in_one_folder() {
    let place = Place::simulated();
    let line = place.line("--output").replace("--samples 2", "--samples 1000000");
    let mut run = start(&line.replace("64K,4K", "64M").replace("1ms", "10m"));
    // It locks the folder after run.csv is there, and before the other files are.
    let begins = || place.output().join("latency.hlog").exists();
    assert!(eventually(SOON, begins), "it does not begin");
    for (flag, part) in [
        ("--resume", "another g2g works in it: wait until it has ended, or name another"),
        ("--output", "it already holds run.csv"),
    ] {
        let result = place.run(flag, "");
        assert_eq!(result.status.code(), Some(2), "{}", text(&result.stderr));
        assert!(text(&result.stderr).contains(part), "{}", text(&result.stderr));
    }
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn a_run_that_has_lost_a_rank_goes_on_behind_the_row_that_failed() {
    let place = Place::with(
        "shm --numa 0:0 --sizes 64,4K,8K --pattern one-way --slot-size 4K --precision 0.0001 \
         --time-limit 1s --ranks 2",
    );
    let run = start(&place.line("--output"));
    assert!(eventually(SOON, || place.whole_rows().lines().count() == 1), "no row");
    crate::common::signal("KILL", crate::common::children(&run)[0]);
    let result = crate::common::wait(run);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    assert!(said.contains("1 row was not measured: the same command with --resume"), "{said}");
    let before = place.whole_rows();
    let result = place.run("--resume", "");
    // The row that failed is a row, and the exit code says so.
    assert_eq!(result.status.code(), Some(1), "{}", text(&result.stderr));
    assert!(place.whole_rows().starts_with(&before));
    assert_whole(&place.output(), 3);
    let rows = Rows::read(&place.output());
    assert_eq!([0, 1, 2].map(|row| rows.cell(row, "status")), ["ok", "failed", "ok"]);
}
