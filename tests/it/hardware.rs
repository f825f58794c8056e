//! `scripts/hardware`, rehearsed on simulated machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

use crate::{
    common::{Running, SOON, eventually, install, kernel_has_driver, program, signal, text, wait},
    scripts::{finish, script, write_program},
};

/// A machine of one GPU, of which no instance type has just one; `more` is what else it has.
fn one_h200(folder: &Path, more: &str) -> String {
    let file = folder.join("machine.toml");
    let text = format!("schema = 1\nfrom = \"p5en.48xlarge\"\ngpu_count = 1\n{more}\n");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// A rehearsal with the words of `line`, which goes on in `output` if that is there.
fn rehearsal(machine: &str, output: &Path, line: &str) -> Command {
    let mut command = script("hardware", line);
    if output.exists() {
        command.arg("--resume").arg(output);
    } else {
        command.args(["--quick", "--simulate", machine, "--output"]).arg(output);
    }
    command
}

/// What is recorded of each step, in the order in which they were begun.
fn steps(output: &Path) -> Vec<Value> {
    let json = fs::read(output.join("steps.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    json["steps"].as_array().unwrap().clone()
}

fn verdicts(output: &Path) -> BTreeMap<String, (String, String)> {
    let cell = |step: &Value, name| step[name].as_str().unwrap_or("none").to_owned();
    let steps = steps(output);
    let steps = steps.iter();
    steps.map(|step| (cell(step, "name"), (cell(step, "verdict"), cell(step, "reason")))).collect()
}

/// The ratios of the calibration by step, quantity and name.
fn ratios(output: &Path) -> Vec<(String, f64)> {
    let text = fs::read_to_string(output.join("calibration.toml")).unwrap();
    let calibration: toml::Table = text.parse().unwrap();
    let entries = calibration["entry"].as_array().unwrap();
    let ratio = |entry: &toml::Value| {
        let [step, quantity, name, _] =
            ["step", "quantity", "name", "unit"].map(|key| entry[key].as_str().unwrap());
        let number = |key: &str| entry.get(key).and_then(toml::Value::as_float);
        let [assumed, measured, ratio] =
            ["assumed", "measured", "ratio"].map(|key| number(key).expect(&text));
        assert!((measured / assumed - ratio).abs() < 1e-3, "{entry}");
        (format!("{step}: {quantity} of {name}"), ratio)
    };
    entries.iter().map(ratio).collect()
}

/// All parts but the tests of the driver, each by itself, with what is left out and why.
fn rehearse(machine: &str, output: &Path, path: &str, left_out: &[(&str, &str)]) {
    for part in [1, 3, 4, 5, 6, 7, 8, 9, 10] {
        let mut command = rehearsal(machine, output, &format!("--part {part}"));
        let (result, said) = finish(command.env("PATH", path));
        assert_eq!(result.status.code(), Some(0), "{said}");
    }
    let verdicts = verdicts(output);
    let left_out: BTreeMap<_, _> = left_out.iter().copied().collect();
    for (name, (verdict, reason)) in &verdicts {
        match left_out.get(name.trim_start_matches("assumed-")) {
            Some(why) => assert!(verdict == "skipped" && reason.contains(why), "{name}: {reason}"),
            None => assert_eq!(verdict, "passed", "{name}: {reason}"),
        }
    }
    let has = |part: &str| output.join(part).exists();
    for part in ["cold/clocks.csv", "topo/topo.json", "doctor/doctor.json", "copies/run-1/run.csv"]
    {
        assert!(has(part), "no {part}");
    }
    let clocks = fs::read_to_string(output.join("cold/clocks.csv")).unwrap();
    let cells: Vec<&str> = clocks.lines().nth(1).unwrap().split(',').collect();
    assert!(cells.len() == 7 && !cells.contains(&""), "{clocks}");
}

/// The search path, without what might be there of the programs that are compared with g2g.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

const ALWAYS_LEFT_OUT: [(&str, &str); 2] =
    [("fresh-lazy", "fresh has passed"), ("fresh-eager", "fresh has passed")];

#[test]
fn a_rehearsal_with_one_gpu_is_complete_and_shows_how_it_differs_from_what_is_assumed() {
    let folder = tempfile::tempdir().unwrap();
    let machine = one_h200(
        folder.path(),
        "[driver]\nqueue_entries = 512\nclock_rise_ms = 100\n[[gpu]]\nfrom_host_ce.gb_s = 26.2",
    );
    let output = folder.path().join("output");
    let one_gpu = ["p2p-ipc", "p2p-cumem", "shm-1", "shm-2", "p2p-all-pairs", "nccl-tests"];
    let mut left_out = ALWAYS_LEFT_OUT.to_vec();
    left_out.push(("nvidia-smi", "is not on PATH"));
    left_out.extend(one_gpu.map(|name| (name, "needs 2 GPUs")));
    rehearse(&machine, &output, PATH, &left_out);
    let peers = &verdicts(&output)["copies"].1;
    assert!(peers.contains("without nvbandwidth, which is not on PATH"), "{peers}");
    let found = ratios(&output);
    let ratio = |wanted: &[&str]| {
        let is_wanted = |name: &str| wanted.iter().all(|part| name.contains(part));
        let mut found = found.iter().filter(|(name, _)| is_wanted(name));
        found.next().unwrap_or_else(|| panic!("{wanted:?}: {found:?}")).1
    };
    let one_way = "pattern=one-way operation=copy engine=ce";
    for (wanted, expected, share) in [
        (&["queue-depth: ", "queue_entries"][..], 0.5, 0.001),
        (&["clock-ramp: ", "clock_rise_ms"], 0.25, 0.1),
        (&["clock-ramp: ", "idle_clock_percent"], 1.0, 0.05),
        (&["copies: rate", one_way, "source_memory=host"], 0.5, 0.02),
        (&["copies: rate", one_way, "source_memory=gpu target_memory=host"], 1.0, 0.02),
    ] {
        let ratio = ratio(wanted);
        assert!((ratio / expected - 1.0).abs() < share, "{wanted:?}: {ratio}");
    }
}

#[test]
fn each_part_lasts_nine_minutes_at_most() {
    let (result, said) = finish(&mut script("hardware", "--list"));
    let list = text(&result.stdout);
    let mut parts = BTreeMap::new();
    let mut names = BTreeSet::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        *parts.entry(words[0].parse::<u32>().unwrap()).or_insert(0) +=
            words[2].parse::<u32>().unwrap();
        assert!(names.insert(words[1]), "{said}");
    }
    assert_eq!(parts.keys().copied().collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>(), "{said}");
    assert!(parts.values().all(|&seconds| seconds <= 540), "{parts:?}");
}

#[test]
fn a_step_whose_time_is_over_is_ended_and_the_next_one_begins() {
    let folder = tempfile::tempdir().unwrap();
    let machine = one_h200(folder.path(), "");
    let output = folder.path().join("output");
    // The tests of the driver take longer.
    let mut command = rehearsal(&machine, &output, "--part 2 --limit 2");
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(1), "{said}");
    let verdicts = verdicts(&output);
    let (verdict, reason) = &verdicts["driver-tests"];
    assert_eq!(
        (&**verdict, reason.contains("within the step's 2 s")),
        ("timed out", true),
        "{said}"
    );
    assert_eq!(verdicts["gpu-tests"], ("skipped".to_owned(), "needs a real GPU".to_owned()));
    assert_eq!(processes("--test-threads 1 simulated::"), 0);
}

#[test]
fn a_killed_rehearsal_goes_on_with_the_step_that_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let [calls, hangs, own] = ["calls", "hangs", "g2g"].map(|name| folder.path().join(name));
    fs::write(&hangs, "").unwrap();
    let lines = format!(
        "echo \"$@\" >>{}\ncase \"$*\" in *'--sizes 16 '*) [ -e {} ] && exec tail -f {} ;; esac\n\
         exec {} \"$@\"",
        calls.display(),
        hangs.display(),
        hangs.display(),
        program()
    );
    write_program(&own, &lines);
    let machine = one_h200(folder.path(), "");
    let output = folder.path().join("output");
    let begin = || {
        let mut command = rehearsal(&machine, &output, "--part 5");
        command.env("G2G", &own).env("PATH", PATH);
        let before = count(&calls, "--sizes 16 ");
        let child = Running::start(&mut command);
        assert!(eventually(SOON, || count(&calls, "--sizes 16 ") > before), "{}", read(&calls));
        child
    };
    let hanging = format!("tail -f {}", hangs.display());
    let child = begin();
    signal("TERM", child.id());
    let result = wait(child);
    assert_eq!(result.status.code(), Some(143), "{}", text(&result.stderr));
    assert_eq!(processes(&hanging), 0);
    assert_eq!(verdicts(&output)["chase"].0, "passed");
    assert_eq!(verdicts(&output)["small"].0, "none");

    let mut child = begin();
    child.kill().unwrap();
    drop(wait(child));
    assert!(eventually(SOON, || processes(&hanging) == 0), "what it has started stays");
    assert_eq!(verdicts(&output)["small"].0, "none");

    fs::remove_file(&hangs).unwrap();
    let (result, said) = finish(rehearsal(&machine, &output, "--part 5").env("G2G", &own));
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert!(!said.contains("== chase") && said.contains("== small"), "{said}");
    assert_eq!(verdicts(&output)["small"].0, "passed");
    let calls = [count(&calls, "chase"), count(&calls, "--sizes 16 "), count(&calls, "doctor")];
    assert_eq!(calls, [1, 3, 1], "{said}");
}

/// How many processes have these words in their command lines.
fn processes(words: &str) -> usize {
    let list = Command::new("pgrep").args(["--full", "--", words]).output().unwrap();
    text(&list.stdout).lines().count()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn count(file: &Path, part: &str) -> usize {
    read(file).lines().filter(|line| line.contains(part)).count()
}

#[test]
fn hardware_refuses_bad_input_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().display().to_string();
    for (line, part) in [
        ("--prat 1", "unrecognized arguments: --prat"),
        ("--part x", "argument --part: invalid int value: 'x'"),
        ("--part 11", "there is no part 11: --list shows them"),
        ("--limit 0", "--limit takes a number of seconds"),
        ("--resume /absent", "/absent cannot be resumed: "),
        ("--resume /absent --quick", "--quick does not go with --resume"),
        ("--output THERE", "THERE is there already"),
        ("--simulate p5.47xlarge --output THERE/new", "p5.47xlarge"),
        ("--simulate p5.48xlarge --assume p5.47xlarge --output THERE/new", "p5.47xlarge"),
        ("cluster", "cluster takes a host file: scripts/hardware cluster HOSTFILE"),
        ("cluster /absent", "cannot read the host file /absent: "),
        ("cluster /dev/null", "/dev/null names 0 hosts: two are needed at least"),
        ("cluster here --simulate 2xp5.48xlarge", "here is not understood: --help shows what is"),
        ("pack arm", "pack takes one of x86_64 and aarch64"),
    ] {
        let (result, said) = finish(&mut script("hardware", &line.replace("THERE", &there)));
        assert_eq!(result.status.code(), Some(2), "{said}");
        let error = text(&result.stderr);
        let part = part.replace("THERE", &there);
        assert!(error.contains(&part) && error.lines().count() == 1, "{part}: {said}");
    }
    if !kernel_has_driver() {
        let (result, said) = finish(script("hardware", "").current_dir(&folder));
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains("no GPU is here; g2g doctor says why: libcuda.so.1: "), "{said}");
        assert!(!folder.path().join("results").exists(), "{said}");
    }
}

/// What a package holds is enough: it is found beside the script, and nothing else is asked.
#[test]
fn an_unpacked_package_needs_nothing_of_the_repository() {
    let folder = tempfile::tempdir().unwrap();
    let built = Path::new(program());
    let library = built.with_file_name("libsimgpu.so");
    let from = script("hardware", "");
    for (source, name) in
        [(built, "g2g"), (&library, "libsimgpu.so"), (Path::new(from.get_program()), "hardware")]
    {
        install(source, &folder.path().join(name));
    }
    let mut command = Command::new(folder.path().join("hardware"));
    command.args(["--simulate", "p5.48xlarge", "--quick", "--part", "3", "--output", "first"]);
    command.env_clear().env("PATH", PATH).current_dir(&folder);
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(0), "{said}");
    let verdicts = verdicts(&folder.path().join("first"));
    assert_eq!(verdicts["copies"].0, "passed", "{said}");
    // Without the tests.
    assert_eq!(verdicts["queue-depth"].0, "skipped", "{said}");
    assert!(verdicts["queue-depth"].1.contains("no test program driver is beside g2g"), "{said}");
}

/// What `scripts/test --long` runs.
mod long {
    use super::*;

    #[test]
    #[ignore = "takes a minute"]
    fn a_rehearsal_with_eight_gpus_is_complete_and_agrees_with_itself() {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("bin");
        fs::create_dir(&programs).unwrap();
        write_program(&programs.join("nvidia-smi"), "echo \"$@\"");
        write_program(&programs.join("nvbandwidth"), "echo SUM device_local_copy 1234.5");
        let line = "echo ' 4096 1024 float sum -1 12.5 0.33 0.57 0 12.5 0.33 0.57 0'";
        write_program(&programs.join("all_reduce_perf"), line);
        let path = format!("{}:{PATH}", programs.display());
        let output = folder.path().join("output");
        rehearse("p5.48xlarge", &output, &path, &ALWAYS_LEFT_OUT);
        assert_eq!(verdicts(&output).len(), 37);
        let read = |name: &str| fs::read_to_string(output.join(name)).unwrap();
        assert!(read("copies/peers.csv").contains("1,nvbandwidth,device_local_copy,1234.5"));
        assert!(read("copies/peers.csv").contains("1,g2g,transport=local"));
        assert!(read("nccl-tests/peers.csv").contains("1,nccl-tests,4096,0.57"));
        assert_eq!(read("nvidia-smi/topom.out"), "topo -m\n");
        let ratios = ratios(&output);
        for wanted in
            ["queue-depth:", "clock-ramp:", "copies: rate", "nccl: rate", "p2p-ipc: latency"]
        {
            assert!(
                ratios.iter().any(|(name, _)| name.starts_with(wanted)),
                "{wanted}: {ratios:?}"
            );
        }
        for (name, ratio) in ratios {
            // The way through host memory takes real time; an empty span lasts a microsecond, and
            // events are wrong by half of that.
            let share = if name.contains(": empty") { 0.2 } else { 0.02 };
            assert!(name.starts_with("shm") || (ratio - 1.0).abs() < share, "{name}: {ratio}");
        }
    }
}

/// A rehearsal of a cluster of two hosts like p5.48xlarge: of the steps that `choice` leaves, with more
/// in the machine's file.
fn rehearse_cluster(choice: &str, more: &str) -> BTreeMap<String, (String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let [machine, output] = ["two.toml", "results"].map(|name| folder.path().join(name));
    let text = format!("schema = 1\nfrom = \"p5.48xlarge\"\nhosts = 2\ngpu_count = 2\n{more}\n");
    fs::write(&machine, text).unwrap();
    let line = format!(
        "cluster --quick {choice} --simulate {} --output {}",
        machine.display(),
        output.display()
    );
    let (_, said) = finish(&mut script("hardware", &line));
    assert!(output.join("steps.json").exists(), "{said}");
    verdicts(&output)
}

#[test]
fn a_rehearsal_of_a_cluster_passes_and_finds_what_is_wrong_with_one() {
    let healthy = rehearse_cluster("", "");
    assert_eq!(healthy.len(), 11);
    for (step, (verdict, reason)) in &healthy {
        let is_asked_of_hosts = ["software", "baseline"].contains(&step.as_str());
        let expected = if is_asked_of_hosts { "skipped" } else { "passed" };
        assert_eq!(verdict, expected, "{step}: {reason}");
    }
    let is_said = |step: &str, words: &str| assert!(healthy[step].1.contains(words), "{healthy:?}");
    is_said("gpu-write", "48.");
    is_said("stopped", "stopped");
    let (_, ratio) = healthy["windows"].1.split_once("with 256 under way ").unwrap();
    let ratio: f64 = ratio.split(' ').next().unwrap().parse().unwrap();
    assert!((0.99..=1.01).contains(&ratio), "{healthy:?}");
    // Devices of a p5 write by themselves: here they do not. And bytes arrive wrong over an interface
    // that the GPU does not use.
    let fault = "[efa]\nwrites = false\n[[fault.nic]]\nnic = 15\nwhat = \"corrupt\"\nalways = true";
    let sick = rehearse_cluster("--part 2", fault);
    let (verdict, reason) = &sick["gpu-write"];
    assert_eq!(verdict, "failed", "{sick:?}");
    assert!(reason.contains("libfabric makes messages of it"), "{sick:?}");
    assert!(sick["host-write"].1.contains("corrupt"), "{sick:?}");
}
