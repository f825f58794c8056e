//! `g2g compare` from outside, on runs of simulated machines whose differences are planted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    thread,
};

use crate::common::{Rows, g2g, run, simulation::assert_near, text};
use serde_json::Value;
use tempfile::TempDir;

/// What a copy of 4 KiB lasts on a healthy machine of [`machine`], by the model: its latency, and
/// its bytes at 0.025 GB/s. One makes a sample, so that nothing averages out what it has by chance.
const COPY_NS: f64 = 2000.0 + 4096.0 / 0.025;

/// Every copy lasts longer by 0 to 2 % of its time.
const JITTER: &str = "[[fault.jitter]]\nshare = 1\nextra_share = 0.01\n";

/// What GPUs 0 and 1 send is 2 % slower, the latency apart.
const SLOWER_BY_2_PERCENT: &str = "[[fault.slow]]\nsource = 0\nfraction = 0.98\n\
                                   [[fault.slow]]\nsource = 1\nfraction = 0.98\n";

/// Four GPUs that all reach each other at 0.025 GB/s by their copy engines.
pub(super) fn machine(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four\"\ngpu_count = 4\n[[gpu]]\nmemory_mib = 1024\n[[pair]]\n\
         ce_read = {{ gb_s = 0.025, latency_ns = 2000 }}\n\
         ce_write = {{ gb_s = 0.025, latency_ns = 2000 }}\n\
         [driver]\nevent_ns = 0\nevent_error_ns = 0\n{rest}"
    )
}

/// All ordered pairs, read and written: 24 rows. A number of samples does not depend on how busy
/// this machine is.
pub(super) const PAIRS: &str =
    "p2p --engine ce --operation copy --sizes 4K --time-limit 1ms --quiet";

/// A folder in which runs lie side by side.
pub(super) struct Place(TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file; its path as a word.
    pub(super) fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// Runs g2g with the words of `line`; its results are in the folder `name`.
    pub(super) fn run(&self, name: &str, line: &str) {
        let mut command = g2g();
        command
            .args(line.split_whitespace())
            .args(["--no-report", "--output"])
            .arg(self.path(name));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    }

    /// A run on each of so many seeds of the machine in `file`, some at the same time; their
    /// folders.
    fn seeds(&self, file: &str, count: usize, words: &str) -> Vec<String> {
        let stem = Path::new(file).file_stem().unwrap().to_str().unwrap();
        let names: Vec<String> = (0..count).map(|seed| format!("{stem}-{seed}")).collect();
        thread::scope(|scope| {
            for part in 0..4 {
                let names = &names;
                scope.spawn(move || {
                    for seed in (part..count).step_by(4) {
                        let line = format!("{words} --simulate {file} --seed {seed}");
                        self.run(&names[seed], &line);
                    }
                });
            }
        });
        names
    }

    /// `g2g compare` with the words of `line`, in this folder.
    pub(super) fn compare(&self, line: &str) -> Output {
        let mut command = g2g();
        command.arg("compare").current_dir(self.0.path());
        run(command, line)
    }

    /// The same in JSON, and its exit code.
    pub(super) fn judged(&self, line: &str) -> (Vec<Value>, i32) {
        let output = self.compare(&format!("{line} --format json"));
        let cases = serde_json::from_slice(&output.stdout);
        let cases = cases.unwrap_or_else(|err| panic!("{line}: {err}: {}", text(&output.stderr)));
        (cases, output.status.code().unwrap())
    }
}

pub(super) fn verdict(case: &Value) -> &str {
    case["verdict"].as_str().unwrap()
}

/// The source's GPU in the name of a case such as `p2p copy read ce GPU 0 of vm -> GPU 1 of vm`.
fn source_gpu(case: &Value) -> u32 {
    let name = case["case"].as_str().unwrap();
    name.split("GPU ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_slow_gpu_fails_the_check_and_its_pairs_are_named() {
    let place = Place::new();
    let machine = |name: &str, rest: &str| {
        let text = format!("schema = 1\nfrom = \"p5.48xlarge\"\nname = \"test\"\n{JITTER}{rest}");
        let file = place.file(&format!("{name}.toml"), &text);
        place.run(name, &format!("p2p --simulate {file} --engine ce --operation copy --issuer write --sizes 1M --time-limit 50ms --quiet"));
    };
    machine("healthy", "");
    machine(
        "slow",
        "[[fault.slow]]\nsource = 3\nfraction = 0.59\n[[fault.slow]]\ntarget = 3\nfraction = 0.59\n",
    );
    let result = place.compare("healthy slow --fail-on 5%");
    let (printed, said) = (text(&result.stdout), text(&result.stderr));
    assert_eq!(result.status.code(), Some(1), "{printed}{said}");
    assert!(printed.contains("[SIMULATED]"), "{printed}");
    assert!(said.contains("14 of 56 cases slower by more than 5.000 % (--fail-on)"), "{said}");
    for gpu in (0..8).filter(|gpu| *gpu != 3) {
        for pair in [format!("GPU {gpu} -> GPU 3,"), format!("GPU 3 -> GPU {gpu},")] {
            let line = printed.lines().find(|line| line.contains(&pair));
            assert!(line.is_some_and(|line| line.ends_with("slower")), "{pair}\n{printed}");
        }
    }
    // The other way round nothing got slower.
    assert_eq!(place.compare("slow healthy --fail-on 5%").status.code(), Some(0));
    // What is slow by 35 % may be allowed.
    assert_eq!(place.compare("healthy slow --fail-on 50%").status.code(), Some(0));
}

/// What became of rows and of comparisons, of which the truth is known.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    rows: usize,
    /// Whose interval holds the truth.
    covered: usize,
    cases: usize,
    /// Whose difference's interval holds the truth.
    held: usize,
    planted: usize,
    found: usize,
    /// Called different, and are not.
    wrong: usize,
    /// Comparisons in which there was one such.
    comparisons_wrong: usize,
    /// Comparisons with `--fail-on 5%` whose exit code was 1.
    failed: usize,
}

fn share(so: usize, all: usize) -> f64 {
    so as f64 / all as f64
}

impl Tally {
    /// Each run of a healthy machine against the next one, in a ring; copies last longer by `extra`
    /// of their time in the mean.
    fn of_healthy(place: &Place, runs: &[String], extra: f64) -> Self {
        let mut tally = Self::default();
        let truth = 4096.0 / (COPY_NS * (1.0 + extra));
        for (at, name) in runs.iter().enumerate() {
            let rows = Rows::read(&place.path(name));
            tally.rows += rows.len();
            let number = |row: usize, column| rows.number(row, column);
            let holds = |row: &usize| {
                let ends = ["bandwidth_gb_s_low", "bandwidth_gb_s_high"];
                let [low, high] = ends.map(|column| number(*row, column));
                (low..=high).contains(&truth)
            };
            tally.covered += (0..rows.len()).filter(holds).count();
            tally.compare(place, (name, &runs[(at + 1) % runs.len()]), 0.0);
        }
        tally
    }

    /// A healthy run against one on which GPUs 0 and 1 send slower by `loss`.
    fn compare(&mut self, place: &Place, (a, b): (&str, &str), loss: f64) {
        let (cases, code) = place.judged(&format!("{a} {b} --fail-on 5%"));
        self.failed += usize::from(code == 1);
        let before = self.wrong;
        for case in cases {
            let is_planted = loss > 0.0 && source_gpu(&case) < 2;
            let truth = if is_planted { -loss } else { 0.0 };
            let number = |key: &str| case[key].as_f64().unwrap();
            self.cases += 1;
            self.held +=
                usize::from((number("change_low")..=number("change_high")).contains(&truth));
            self.planted += usize::from(is_planted);
            match verdict(&case) {
                "slower" if is_planted => self.found += 1,
                "same within noise" => {}
                _ => self.wrong += 1,
            }
        }
        self.comparisons_wrong += usize::from(self.wrong > before);
    }
}

/// By how much the rates of [`SLOWER_BY_2_PERCENT`] are less.
fn loss() -> f64 {
    1.0 - COPY_NS / (2000.0 + 4096.0 / 0.025 / 0.98)
}

#[test]
fn healthy_runs_pass_and_intervals_hold_the_truth() {
    let place = Place::new();
    let file = place.file("healthy.toml", &machine(JITTER));
    let runs = place.seeds(&file, 100, &format!("{PAIRS} --samples 37"));
    let tally = Tally::of_healthy(&place, &runs, 0.01);
    assert_eq!(tally.failed, 0, "{tally:?}");
    assert_eq!((tally.rows, tally.cases), (2400, 2400));
    // Of 37 samples the interval holds the median in 95.3 %, which 2400 rows show within 0.4 %.
    assert!((0.93..=0.97).contains(&share(tally.covered, tally.rows)), "{tally:?}");
    assert!((0.93..=0.97).contains(&share(tally.held, tally.cases)), "{tally:?}");
    // 5 % of 100, and what chance adds to it.
    assert!(tally.comparisons_wrong <= 14, "{tally:?}");
}

#[test]
fn differences_of_two_percent_are_found_and_no_others() {
    let place = Place::new();
    let healthy = place.file("healthy.toml", &machine(JITTER));
    let slower = place.file("slower.toml", &machine(&format!("{SLOWER_BY_2_PERCENT}{JITTER}")));
    // As many as are taken by default where so many make an interval of ± 1 %.
    let words = format!("{PAIRS} --samples 20");
    let (old, new) = (place.seeds(&healthy, 12, &words), place.seeds(&slower, 12, &words));
    let mut tally = Tally::default();
    for (old, new) in old.iter().zip(&new) {
        tally.compare(&place, (old, new), loss());
    }
    assert_eq!(tally.planted, 12 * 12);
    assert!(share(tally.found, tally.planted) >= 0.95, "{tally:?}");
    // 5 % of what is called different, and what chance adds to it.
    assert!(tally.wrong <= 18, "{tally:?}");
    assert_eq!(tally.failed, 0, "2 % are less than 5 %: {tally:?}");
}

/// What the runs of one machine have by chance, and each run another: every pair its own share.
fn noise_of_runs(first: usize) -> String {
    let pairs = (0..4).flat_map(|source| (0..4).map(move |target| (source, target)));
    let pairs = pairs.filter(|(source, target)| source != target);
    let entry = |(source, target)| {
        format!(
            "[[fault.jitter]]\nsource = {source}\ntarget = {target}\nshare = 1\n\
             extra_share = 0.02\nlasts_ns = 1e12\n"
        )
    };
    // Entries draw by their place: others in front make another machine's luck.
    let others = "[[fault.jitter]]\nshare = 0\nextra_ns = 0\n".repeat(first);
    others + &pairs.map(entry).collect::<String>()
}

#[test]
fn what_differs_from_run_to_run_needs_several_runs() {
    let place = Place::new();
    for (name, first, rest) in [("old", 0, ""), ("same", 20, ""), ("slow", 40, SLOW_BY_A_TENTH)] {
        place.file(&format!("{name}.toml"), &machine(&(noise_of_runs(first) + rest)));
        let plan = format!(
            "command = \"p2p\"\nflags = \"--simulate {} --engine ce --operation copy --sizes 4K \
             --samples 6 --time-limit 1ms\"\nrepetitions = 5\n[[axis]]\nname = \"--issuer\"\n\
             values = [\"write\"]\n",
            place.path(&format!("{name}.toml")).display()
        );
        let plan = place.file(&format!("{name}-plan.toml"), &plan);
        let mut command = g2g();
        command.args(["sweep", &plan, "--quiet", "--output"]).arg(place.path(name));
        let result = command.output().unwrap();
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    }
    let called = |line: &str| {
        let (cases, code) = place.judged(line);
        assert_eq!(cases.len(), 12, "{line}");
        let called = cases.iter().filter(|case| verdict(case) != "same within noise");
        (called.map(source_gpu).collect::<Vec<u32>>(), code)
    };
    // One run of each knows nothing of it.
    let (single, _) = called("old/runs/001 same/runs/001");
    assert!(single.len() >= 6, "{single:?}");
    assert_eq!(called("old same --fail-on 5%"), (vec![], 0));
    // Of what is called different 5 % may be chance.
    let (slow, code) = called("old slow --fail-on 5%");
    let others = slow.iter().filter(|source| **source != 1).count();
    assert!(slow.len() - others == 3 && others <= 1 && code == 1, "{slow:?}");
    // Against a single run it is that one that does not know.
    let printed = text(&place.compare("old same/runs/001").stdout);
    assert!(printed.contains("for that compare sweeps with repetitions"), "{printed}");
    assert_eq!(place.compare("same/runs/001 old").status.code(), Some(0));
}

/// What GPU 1 sends is 10 % slower.
const SLOW_BY_A_TENTH: &str = "[[fault.slow]]\nsource = 1\nfraction = 0.9\n";

#[test]
fn parts_of_one_run_are_held_against_each_other() {
    let place = Place::new();
    let machine = machine(JITTER).replace("ce_read = { gb_s = 0.025", "ce_read = { gb_s = 0.0225");
    let file = place.file("four.toml", &machine);
    place.run("run", &format!("p2p --simulate {file} --operation copy --sizes 4K --samples 20 --time-limit 1ms --quiet"));
    let parts = |line: &str| {
        let (cases, code) = place.judged(line);
        assert_eq!(code, 0, "{line}");
        cases
    };
    let by_issuer = parts("run --by issuer --fail-on 50%");
    assert_eq!(by_issuer.len(), 24);
    for case in &by_issuer {
        assert_eq!((&case["a"], &case["b"]), (&"read".into(), &"write".into()));
        if case["case"].as_str().unwrap().contains(" ce ") {
            assert_eq!(verdict(case), "faster");
            let rate = |gb_s: f64| 4096.0 / (2000.0 + 4096.0 / gb_s);
            let change = 1.0 + case["change"].as_f64().unwrap();
            assert_near(change, rate(0.025) / rate(0.0225), 0.01, "writes against reads");
        }
    }
    let by_engine = parts("run --by engine");
    assert_eq!(by_engine.len(), 24);
    assert!(by_engine.iter().all(|case| case["b"] == "sm" && verdict(case) == "faster"));

    // A second host that does the same, but for one pair.
    let csv = fs::read_to_string(place.path("run/run.csv")).unwrap();
    let rows = Rows::read(&place.path("run"));
    let host = format!(",{},", rows.cell(0, "source_host"));
    let others =
        csv.lines().skip(1).map(|line| line.replace(&host, ",second,").replace(&host, ",second,"));
    let others: String = others.map(|line| line + "\n").collect();
    let slow = rows.cell(0, "bandwidth_gb_s");
    let half = |cell: &str| (cell.parse::<f64>().unwrap() / 2.0).to_string();
    let others = ["bandwidth_gb_s", "bandwidth_gb_s_low", "bandwidth_gb_s_high"]
        .iter()
        .fold(others, |others, column| {
            others.replacen(rows.cell(0, column), &half(rows.cell(0, column)), 1)
        });
    assert!(!slow.is_empty());
    fs::write(place.path("run/run.csv"), csv + &others).unwrap();
    let by_host = parts("run --by host --fail-on 60%");
    assert_eq!(by_host.len(), 48);
    let slower: Vec<&Value> = by_host.iter().filter(|case| verdict(case) == "slower").collect();
    assert_eq!(slower.len(), 1, "{slower:?}");
    assert_near(slower[0]["change"].as_f64().unwrap(), -0.5, 1e-6, "the slow host");
    assert_eq!(place.judged("run --by host --fail-on 5%").1, 1);
}

#[test]
fn values_of_a_variable_are_held_against_each_other_over_a_sweep() {
    let place = Place::new();
    let plan = place.file(
        "plan.toml",
        "command = \"nccl\"\nflags = \"--simulate p4d.24xlarge --gpus 0-3 --operation all_reduce \
         --place out-of-place --sizes 512K --samples 6 --time-limit 1ms\"\nrepetitions = 2\n\
         [[axis]]\nname = \"NCCL_ALGO\"\nvalues = [\"Ring\", \"Tree\"]\n\
         [[axis]]\nname = \"NCCL_PROTO\"\nvalues = [\"Simple\", \"LL\"]\n",
    );
    let mut command = g2g();
    command.args(["sweep", &plan, "--quiet", "--output"]).arg(place.path("sweep"));
    assert_eq!(command.output().unwrap().status.code(), Some(0));
    let (cases, code) = place.judged("sweep --by nccl-env:NCCL_ALGO --fail-on 5%");
    let told: Vec<(&str, &str)> =
        cases.iter().map(|case| (case["b"].as_str().unwrap(), verdict(case))).collect();
    // Tree is slower with both protocols (docs/simulation.md, "How long they last").
    assert_eq!((told, code), (vec![("Tree", "slower"); 2], 1));
}

#[test]
fn all_forms_tell_the_same_and_that_it_is_simulated() {
    let place = Place::new();
    let file = place.file("four.toml", &machine(JITTER));
    place.seeds(&file, 2, &format!("{PAIRS} --samples 20"));
    let of =
        |form: &str| text(&place.compare(&format!("four-0 four-1 --all --format {form}")).stdout);
    let json: Vec<Value> = serde_json::from_str(&of("json")).unwrap();
    let csv = Rows::parse(&of("csv"));
    assert_eq!((json.len(), csv.len()), (24, 24));
    for (row, case) in json.iter().enumerate() {
        assert_eq!(case["simulated"], true);
        assert_eq!(csv.cell(row, "simulated"), "true");
        assert_eq!(csv.cell(row, "case"), case["case"]);
        assert_eq!(csv.number(row, "change"), case["change"].as_f64().unwrap());
    }
    let (table, markdown) = (of("table"), of("markdown"));
    let is_pair = |line: &&str| line.contains(" -> GPU ") && line.contains("same within noise");
    for (text, mark) in [(&table, "[SIMULATED]"), (&markdown, "\\[SIMULATED\\]")] {
        assert!(text.starts_with(&format!("B against A {mark}: 24 cases")), "{text}");
        assert_eq!(text.lines().filter(is_pair).count(), 24, "{text}");
    }
    assert!(markdown.lines().any(|line| line.starts_with("| ---")), "{markdown}");
}

#[test]
fn real_runs_compare_and_simulated_ones_do_not_with_them() {
    let place = Place::new();
    let line = "shm --sizes 4K --numa 0:0 --samples 6 --time-limit 10ms --quiet";
    place.run("old", line);
    place.run("new", line);
    let (cases, code) = place.judged("old new");
    assert_eq!((cases.len(), code), (2, 0));
    for case in &cases {
        assert_eq!(case["simulated"], false);
        assert!(["faster", "slower", "same within noise"].contains(&verdict(case)), "{case}");
    }
    assert!(!text(&place.compare("old new").stdout).contains("SIMULATED"));
    let simulated = fs::read_to_string(place.path("new/run.json")).unwrap();
    let simulated = simulated.replacen("\"simulated\": false", "\"simulated\": true", 1);
    fs::write(place.path("new/run.json"), simulated).unwrap();
    let (cases, _) = place.judged("old new");
    let reason = "real and simulated: real against simulated (--across simulated)";
    assert!(cases.iter().all(|case| case["reason"] == reason), "{cases:?}");
    let output = place.compare("old new --fail-on 5%");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let place = Place::new();
    let file = place.file("four.toml", &machine(""));
    let line = format!(
        "p2p --simulate {file} --gpus 0-1 --engine ce --operation copy --sizes 4K --samples 6 --time-limit 1ms --quiet"
    );
    place.run("run", &line);
    place.run("read", &format!("{line} --issuer read"));
    place.run("write", &format!("{line} --issuer write"));
    let copy = |name: &str, file: &str, change: &dyn Fn(&str) -> Option<String>| {
        fs::create_dir(place.path(name)).unwrap();
        for each in ["run.csv", "run.json", "latency.hlog"] {
            let text = fs::read_to_string(place.path("run").join(each)).unwrap();
            let text = if each == file { change(&text) } else { Some(text) };
            text.into_iter().for_each(|text| fs::write(place.path(name).join(each), text).unwrap());
        }
    };
    copy("half", "run.csv", &|_| None);
    copy("headless", "run.csv", &|text| Some(text[..100].to_owned()));
    copy("torn", "run.csv", &|text| Some(text.replacen(",ok,", ",ok", 1)));
    copy("wordy", "run.csv", &|text| Some(text.replacen("\n1,p2p", "\none,p2p", 1)));
    copy("cut", "run.json", &|text| Some(text[..500].to_owned()));
    copy("other", "run.json", &|text| Some(text.replace("\"hosts\"", "\"nodes\"")));
    fs::create_dir(place.path("empty")).unwrap();
    let header = fs::read_to_string(place.path("run/run.csv")).unwrap();
    let columns = header.lines().next().unwrap().split(',').count();
    let torn = format!(
        "error: cannot read torn/run.csv: line 2 has {} cells, and the first line {columns}",
        columns - 1
    );
    place.file("words.txt", "nothing that any tool prints\n");
    for (line, sentence) in [
        ("run nowhere", "error: cannot read nowhere: No such file or directory"),
        (
            "run empty",
            "error: empty holds neither a run (run.json) nor a sweep with a finished run",
        ),
        ("half run", "error: cannot read half/run.csv: No such file or directory"),
        ("run headless", "error: cannot read headless/run.csv: its first line has no column case"),
        ("run torn", &torn),
        (
            "run wordy",
            "error: cannot read wordy/run.csv: line 2 has \"one\" for case: invalid digit",
        ),
        (
            "run cut",
            "error: cannot read cut/run.json: no run of this version of g2g: it ends before its rows",
        ),
        (
            "run other",
            "error: cannot read other/run.json: no run of this version of g2g: missing field `hosts`",
        ),
        ("run run", "error: run and run are the same results: nothing can differ"),
        ("run run/.", "error: run and run/. are the same results: nothing can differ"),
        ("run words.txt", "error: cannot read words.txt: it is not the output of nccl-tests"),
        ("run /dev/zero", "error: cannot read /dev/zero: it is neither a folder nor a file"),
        ("run read --fail-on much", "error: invalid value 'much' for '--fail-on <PERCENT>'"),
        ("run read --fail-on 101%", "error: invalid value '101%' for '--fail-on <PERCENT>'"),
        ("run read --fail-on -1%", "error: invalid value '-1%' for '--fail-on <PERCENT>'"),
        ("run read --across moon", "error: invalid value 'moon' for '--across <WHAT>'"),
        ("run read --by issuer", "error: the argument '[B]' cannot be used with '--by <WHAT>'"),
        ("run", "error: the following required arguments were not provided: <B>"),
        ("run --by color", "error: unknown \"color\": write issuer, engine, host or nccl-env:NAME"),
        ("run --by nccl-env:", "error: unknown \"nccl-env:\": write issuer"),
        ("run --by nccl-env:NCCL_ALGO", "error: no rows of run differ by nccl-env:NCCL_ALGO"),
        ("run --by host", "error: no rows of run differ by host: there is nothing to compare"),
        (
            "read --by issuer",
            "error: no rows of read differ by issuer: there is nothing to compare",
        ),
        ("read write --fail-on 5%", "error: nothing could be compared, so nothing is known"),
    ] {
        let output = place.compare(line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with(sentence), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
    // What a kill has cut in its last line is a run with a row less.
    let csv = fs::read_to_string(place.path("half/../run/run.csv")).unwrap();
    fs::write(place.path("half/run.csv"), &csv[..csv.len() - 9]).unwrap();
    let (cases, code) = place.judged("run half");
    assert_eq!((cases.len(), code), (4, 0));
    assert_eq!(cases[3]["reason"], "not in B");
}

/// What `scripts/test --long` runs.
mod long {
    use super::*;

    #[test]
    #[ignore = "takes minutes: 600 runs, with as many samples as g2g takes by itself"]
    fn by_default_chance_does_what_is_promised() {
        let words = "p2p --engine ce --operation copy --sizes 4K --time-limit 30ms --quiet";
        // The second has a standard deviation of 1 %, and so much narrower intervals are asked for. There
        // sampling ends when the interval is narrow enough, some are so by luck, and differences pay
        // for it: docs/comparing.md says how much.
        for (extra, precision, least) in [(0.01, "1%", 0.93), (0.01 * 3_f64.sqrt(), "0.5%", 0.91)] {
            let place = Place::new();
            let jitter = format!("[[fault.jitter]]\nshare = 1\nextra_share = {extra}\n");
            let healthy = place.file("healthy.toml", &machine(&jitter));
            let slower =
                place.file("slower.toml", &machine(&format!("{SLOWER_BY_2_PERCENT}{jitter}")));
            let words = format!("{words} --precision {precision}");
            let (old, new) =
                (place.seeds(&healthy, 100, &words), place.seeds(&slower, 100, &words));
            let alike = Tally::of_healthy(&place, &old, extra);
            let mut planted = Tally::default();
            for (old, new) in old.iter().zip(&new) {
                planted.compare(&place, (old, new), loss());
            }
            println!("± {precision}: alike {alike:?}\nplanted {planted:?}");
            assert_eq!((alike.failed, planted.failed), (0, 0));
            assert!((0.93..=0.97).contains(&share(alike.covered, alike.rows)));
            for tally in [alike, planted] {
                assert!((least..=0.97).contains(&share(tally.held, tally.cases)));
            }
            assert!(alike.comparisons_wrong <= 14);
            assert!(share(planted.found, planted.planted) >= 0.95);
            assert!(share(planted.wrong, planted.found + planted.wrong) <= 0.05);
        }
    }
}
