//! Sweeps from outside, on simulated machines whose answers are known.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{Running, SOON, eventually, g2g, signal, simulation::assert_near, text, wait};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a plan, in which g2g is run.
struct Place {
    folder: TempDir,
}

impl Place {
    fn with(plan: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("plan.toml"), plan).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = g2g();
        command.arg("sweep").args(line.split_whitespace()).current_dir(self.folder.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs to a good end; what sweep.json says.
    fn sweep(&self, line: &str) -> Value {
        let result = self.run(line);
        assert_eq!(result.status.code(), Some(0), "{}{}", text(&result.stdout), said(&result));
        self.json()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("out/sweep.json")).unwrap()).unwrap()
    }

    /// The rows of sweep.csv as their cells.
    fn rows(&self) -> Vec<Vec<String>> {
        let csv = fs::read_to_string(self.path("out/sweep.csv")).unwrap();
        csv.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    }

    /// The runs that have a folder under its final name.
    fn finished(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("out/runs")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.contains('.')).collect();
        names.sort();
        names
    }
}

fn said(result: &Output) -> String {
    text(&result.stderr)
}

/// The case of a sweep with this in its name.
fn case<'a>(json: &'a Value, name: &str) -> &'a Value {
    let mut cases = json["cases"].as_array().unwrap().iter();
    cases.find(|case| case["case"].as_str().unwrap().contains(name)).unwrap()
}

/// What is found of a value of an axis.
fn verdict(case: &Value, value: &str) -> String {
    let mut effects = case["effects"].as_array().unwrap().iter();
    let effect = effects.find(|effect| effect["value"] == value).unwrap();
    effect["effect"]["verdict"].as_str().unwrap().to_owned()
}

/// Two GPUs with a slow link, on which a copy of 64 KiB lasts 164 µs or longer: by six draws of
/// nothing or 1.3 µs, which is a standard deviation of 1 %.
fn machine(gb_s: f64) -> String {
    let jitter = "[[fault.jitter]]\nshare = 0.5\nextra_ns = 1300\n".repeat(6);
    format!(
        "schema = 1\ngpu_count = 2\n[[gpu]]\nmemory_mib = 1024\n[[pair]]\n\
         ce_write = {{ gb_s = {gb_s:?}, latency_ns = 2000 }}\n{jitter}"
    )
}

const COPY: &str = "command = \"p2p\"\nflags = \"--issuer write --engine ce --operation copy \
                    --sizes 64K --samples 1 --time-limit 5ms\"\n";

#[test]
fn the_planted_best_setting_is_found() {
    // By the model in docs/simulation.md four GPUs of a p4d reduce 512 KiB in a ring with the
    // protocol LL, from memory to memory, in 10.2 µs and 8.97 µs for the data, and with Simple in
    // 28.8 µs and more; Tree is slower with both.
    let place = Place::with(
        r#"
command = "nccl"
flags = "--simulate p4d.24xlarge --gpus 0-3 --operation all_reduce --place out-of-place --sizes 512K --samples 1 --time-limit 1ms"
repetitions = 2

[[axis]]
name = "NCCL_ALGO"
values = ["Tree", "Ring"]

[[axis]]
name = "NCCL_PROTO"
values = ["Simple", "LL"]

[[axis]]
name = "path"
values = [
    { label = "p2p" },
    { label = "shm", env = { NCCL_P2P_DISABLE = 1 } },
]
"#,
    );
    let json = place.sweep("plan.toml --output out --quiet");
    let case = case(&json, "nccl all_reduce float sum, 4 ranks, 512 KiB");
    let best = &case["ranking"][0];
    let combinations = json["combinations"].as_array().unwrap();
    let of_best = combinations.iter().find(|each| each["combination"] == best["combination"]);
    let values = serde_json::json!({ "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "path": "p2p" });
    assert_eq!(of_best.unwrap()["values"], values, "{case}");
    assert_near(best["median"].as_f64().unwrap(), 524_288.0 / 19_170.0, 0.01, "the best");
    assert_eq!(case["ranking"].as_array().unwrap().len(), 8);
    assert_eq!(case["lead"]["effect"]["verdict"], "faster");
    // LL is slower through host memory, and so on the average of both ways: what is best is not put
    // together from what is best on the average.
    let verdicts = ["Ring", "LL", "shm"].map(|value| verdict(case, value));
    assert_eq!(verdicts, ["faster", "slower", "slower"], "{case}");
    // Each run is a folder of its own, in the order of the plan, all combinations in turn.
    assert_eq!(place.finished().len(), 16);
    let rows = place.rows();
    assert_eq!(rows.len(), 17);
    assert_eq!(
        rows[0][..8].join(","),
        "run,repetition,combination,run_status,axis_NCCL_ALGO,axis_NCCL_PROTO,axis_path,case"
    );
    let mut first: Vec<&str> = rows[1..9].iter().map(|row| row[2].as_str()).collect();
    first.sort_unstable();
    assert_eq!(first, ["1", "2", "3", "4", "5", "6", "7", "8"]);
}

#[test]
fn a_difference_below_the_jitter_is_noise() {
    let plan = format!(
        "{COPY}repetitions = 6\n[[axis]]\nname = \"--simulate\"\nvalues = [\"a.toml\", \"b.toml\", \
         \"c.toml\"]\n"
    );
    let place = Place::with(&plan);
    for (name, gb_s) in [("a.toml", 0.4), ("b.toml", 0.4008), ("c.toml", 0.5)] {
        fs::write(place.path(name), machine(gb_s)).unwrap();
    }
    let json = place.sweep("plan.toml --output out --quiet");
    let all = case(&json, "all 2 bandwidths");
    assert_eq!(verdict(all, "b.toml"), "same within noise", "0.2 % under 1 % of jitter: {all}");
    assert_eq!(verdict(all, "c.toml"), "faster", "25 % under 1 % of jitter: {all}");
    assert_eq!(json["simulated"], true);
    // The jitter is there, and is not the same in any two runs.
    let of_a = &case(&json, "GPU 0 -> GPU 1")["ranking"][2];
    let spread = of_a["max"].as_f64().unwrap() / of_a["min"].as_f64().unwrap();
    assert!(spread > 1.002 && spread < 1.1, "{of_a}");
    let table = text(&place.run("--resume out --quiet").stdout);
    assert!(
        table.contains("[SIMULATED]") && table.contains("noise") && table.contains("Benjamini"),
        "{table}"
    );
    let csv = text(&place.run("--resume out --quiet --format csv").stdout);
    assert_eq!(csv, fs::read_to_string(place.path("out/sweep.csv")).unwrap());
}

/// Two machines, each run four times by way of the script `launch`.
fn two_machines(launch: &str) -> Place {
    let place = Place::with("");
    let plan = format!(
        "launcher = \"sh {}\"\n{COPY}repetitions = 4\n[[axis]]\nname = \"--simulate\"\nvalues = \
         [\"a.toml\", \"b.toml\"]\n",
        place.path("launch").display()
    );
    for (name, text) in [
        ("plan.toml", plan.as_str()),
        ("launch", launch),
        ("a.toml", &machine(0.4)),
        ("b.toml", &machine(0.5)),
    ] {
        fs::write(place.path(name), text).unwrap();
    }
    place
}

/// Runs all that it is given.
const LAUNCH: &str = "exec \"$@\"\n";

#[test]
fn what_was_interrupted_goes_on_with_the_rest() {
    // The fifth run does not end until it is told to.
    let place = two_machines(
        "case \"$*\" in *005.part*) ;; *) exec \"$@\" ;; esac\n\
         trap 'touch told; exit 1' TERM\necho half > out/runs/005.part/run.csv\n\
         touch begun\nwhile :; do sleep 0.05; done\n",
    );
    let mut command = place.command("plan.toml --output out --quiet");
    let child = Running::start(&mut command);
    assert!(eventually(SOON, || place.path("begun").exists()), "the fifth run does not begin");
    signal("TERM", child.id());
    assert_eq!(wait(child).status.code(), Some(143));
    assert!(eventually(SOON, || place.path("told").exists()), "the run goes on");
    let before = place.finished();
    assert_eq!(before, ["001", "002", "003", "004"]);
    let made = |name: &String| fs::metadata(place.path("out/runs").join(name)).unwrap().ino();
    let folders: Vec<u64> = before.iter().map(made).collect();

    fs::write(place.path("launch"), LAUNCH).unwrap();
    let result = place.run("--resume out plan.toml");
    assert_eq!(result.status.code(), Some(0), "{}", said(&result));
    let lines = said(&result);
    assert!(lines.contains("run 1 of 4:") && lines.contains("run 4 of 4, about "), "{lines}");
    assert_eq!(folders, before.iter().map(made).collect::<Vec<u64>>(), "they were run again");
    assert_eq!(place.finished().len(), 8);
    assert_eq!(place.rows().len(), 1 + 8 * 2);
    let runs = place.json()["runs"].as_array().unwrap().clone();
    assert!(runs.iter().all(|run| run["status"] == "ok"), "{runs:?}");
}

#[test]
fn a_plan_is_run_on_the_simulated_machine_that_is_named() {
    let plan = format!("{COPY}repetitions = 2\n[[axis]]\nname = \"--gpus\"\nvalues = [\"0-1\"]\n");
    let place = Place::with(&plan);
    fs::write(place.path("machine.toml"), machine(0.4)).unwrap();
    let json = place.sweep("plan.toml --simulate machine.toml --output out --quiet");
    assert_eq!(json["provenance"]["simulated_machine"], "machine.toml");
    assert_eq!((&json["simulated"], place.rows().len()), (&Value::Bool(true), 5));
    // What goes on has it from the folder.
    fs::rename(place.path("out/runs/001"), place.path("out/runs/001.part")).unwrap();
    let json = place.sweep("--resume out --quiet");
    assert_eq!((&json["simulated"], place.rows().len()), (&Value::Bool(true), 5));
    let result = place.run("--resume out --simulate machine.toml");
    assert_eq!(result.status.code(), Some(2), "{}", said(&result));
    let twice = plan.replace("--issuer", "--simulate p5.48xlarge --issuer");
    fs::write(place.path("twice.toml"), twice).unwrap();
    let result = place.run("twice.toml --simulate machine.toml");
    assert!(said(&result).contains("--simulate"), "{}", said(&result));
    assert_eq!(result.status.code(), Some(2));
}

#[test]
fn only_the_same_sweep_goes_on() {
    let place = two_machines(LAUNCH);
    place.sweep("plan.toml --output out --quiet");
    let refused = |line: &str, part: &str| {
        let result = place.run(line);
        assert_eq!(result.status.code(), Some(2), "{line}");
        assert!(
            said(&result).contains(part) && said(&result).lines().count() == 1,
            "{}",
            said(&result)
        );
    };
    refused("plan.toml --output out", "it already holds a sweep: go on with --resume");
    refused("--resume elsewhere", "it has no sweep.toml");
    let plan = fs::read_to_string(place.path("plan.toml")).unwrap();
    fs::write(place.path("other.toml"), plan.replace("= 4", "= 3")).unwrap();
    refused("--resume out other.toml", "other.toml is another plan");
    let json = place.path("out/sweep.json");
    let text = fs::read_to_string(&json).unwrap();
    let here = place.json()["provenance"]["machine"]["hostname"].as_str().unwrap().to_owned();
    fs::write(&json, text.replace(&format!("\"hostname\": \"{here}\""), "\"hostname\": \"x\""))
        .unwrap();
    refused("--resume out", &format!("the host was `x` and is `{here}`"));
    fs::write(&json, "{").unwrap();
    refused("--resume out", "sweep.json is not as g2g writes it");
    fs::write(&json, text).unwrap();
    fs::write(place.path("out/sweep.toml"), plan.replace("= 4", "= 3")).unwrap();
    refused("--resume out", "sweep.toml is not the plan that it began with");
}

#[test]
fn a_run_that_dies_fails_its_combination_and_no_other() {
    // The launcher kills what runs on the machine b.toml, and passes on all else.
    let place =
        two_machines("case \"$*\" in *--dry-run*) ;; *b.toml*) kill -9 $$ ;; esac\nexec \"$@\"\n");
    let result = place.run("plan.toml --output out");
    assert_eq!(result.status.code(), Some(1), "{}", said(&result));
    assert!(said(&result).contains("error: killed by signal 9"), "{}", said(&result));
    let table = text(&result.stdout);
    assert!(table.contains("Failed, and left out with all of their combination:"), "{table}");
    assert!(table.contains("(--simulate=b.toml): killed by signal 9"), "{table}");
    let json = place.json();
    let ranking = case(&json, "GPU 0 -> GPU 1")["ranking"].as_array().unwrap().clone();
    assert_eq!((ranking.len(), &ranking[0]["combination"]), (1, &1.into()));
    let failed = json["runs"].as_array().unwrap().iter().filter(|run| run["status"] == "failed");
    assert_eq!(failed.count(), 4);
    // What failed is run again: now it is let live.
    fs::write(place.path("launch"), LAUNCH).unwrap();
    let json = place.sweep("--resume out");
    assert_eq!(case(&json, "GPU 0 -> GPU 1")["ranking"].as_array().unwrap().len(), 2);
}

#[test]
fn a_combination_with_wrong_data_is_kept_said_and_not_compared() {
    let place = two_machines(LAUNCH);
    let flip = "[[fault.flip]]\nsource = 0\ntarget = 1\nalways = true\n";
    fs::write(place.path("b.toml"), machine(0.5) + flip).unwrap();
    let result = place.run("plan.toml --output out --quiet");
    assert_eq!(result.status.code(), Some(1), "{}", said(&result));
    let rows = place.rows();
    assert_eq!(rows.len(), 1 + 8 * 2);
    let of = |wanted: &str| rows[0].iter().position(|column| column == wanted).unwrap();
    let (status, source) = (of("status"), of("source_gpu"));
    for row in &rows[1..] {
        let is_b = row[4] == "b.toml";
        assert_eq!(row[3], if is_b { "failed" } else { "ok" }, "{row:?}");
        let is_wrong = is_b && row[source] == "0";
        assert_eq!(row[status], if is_wrong { "corrupt" } else { "ok" }, "{row:?}");
    }
    assert!(text(&result.stdout).contains("of 2 rows 1 are corrupt and 0 failed"));
    // Its other rows are well, and faster; but who wants it?
    let json = place.json();
    let ranking = case(&json, "GPU 1 -> GPU 0")["ranking"].as_array().unwrap();
    assert_eq!((ranking.len(), &ranking[0]["combination"]), (1, &1.into()));
}

#[test]
fn what_g2g_refuses_is_named_before_anything_runs() {
    let axis = |name: &str, value: &str| {
        format!("{COPY}[[axis]]\nname = \"{name}\"\nvalues = [\"{value}\"]\n")
    };
    let simulated = COPY.replace("command = \"p2p\"", "command = \"nccl\"");
    let nccl = simulated
        .replace("--issuer", "--simulate p4d.24xlarge --issuer")
        .replace("copy", "all_reduce");
    for (plan, part) in [
        (
            axis("--simulate", "none.toml"),
            "combination --simulate=none.toml: cannot read machine file",
        ),
        (axis("--sizes", "x"), "combination --sizes=x: "),
        (axis("--samples", "0"), "combination --samples=0: "),
        (
            axis("--output", "x"),
            "--output, --resume, --dry-run, --format, --quiet and --verbose are the sweep's own",
        ),
        (
            format!("{nccl}[[axis]]\nname = \"NCCL_P2P_DISABLE\"\nvalues = [\"yes\"]\n"),
            "combination NCCL_P2P_DISABLE=yes: ",
        ),
        (
            "repetition = 3\n".to_owned() + COPY,
            "plan plan.toml, line 1: unknown field `repetition`",
        ),
        (format!("{COPY}[[axis]]\nname = \"--sizes\"\nvalues = []\n"), "`--sizes` has no value"),
        (
            format!("launcher = \"/none/mpirun\"\n{}", axis("--seed", "1")),
            "cannot start /none/mpirun",
        ),
    ] {
        let place = Place::with(&plan);
        let result = place.run("plan.toml --output out");
        assert_eq!(result.status.code(), Some(2), "{plan}: {}", said(&result));
        let sentence = said(&result);
        assert!(
            sentence.starts_with("error: plan plan.toml, ") && sentence.contains(part),
            "{sentence}"
        );
        assert_eq!(sentence.trim_end().lines().count(), 1, "{sentence}");
        assert!(!place.path("out").exists(), "{plan}");
    }
    let place = Place::with(COPY);
    let result = place
        .command("plan.toml")
        .envs([("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")])
        .output()
        .unwrap();
    assert_eq!(result.status.code(), Some(2));
    assert!(said(&result).contains("launcher = \"mpirun -np 2\""), "{}", said(&result));
}

#[test]
fn a_dry_run_lists_all_runs_and_leaves_nothing() {
    let place = two_machines(LAUNCH);
    let result = place.run("plan.toml --dry-run");
    assert_eq!(result.status.code(), Some(0), "{}", said(&result));
    let listed = text(&result.stdout);
    assert!(listed.starts_with("8 runs: 2 combinations × 4\n"), "{listed}");
    assert_eq!(listed.lines().count(), 9);
    let last = listed.lines().last().unwrap();
    assert!(last.contains("8  repetition 4  --simulate=b.toml  sh "), "{last}");
    assert!(last.ends_with("g2g p2p --issuer write --engine ce --operation copy --sizes 64K --samples 1 --time-limit 5ms --simulate b.toml --seed 8"), "{last}");
    assert!(!place.path("results").exists());
}

#[test]
fn the_plans_that_come_along_are_taken() {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/plans");
    let mut count = 0;
    for plan in fs::read_dir(plans).unwrap() {
        let plan = fs::read_to_string(plan.unwrap().path()).unwrap();
        let plan = plan.replace("flags = \"", "flags = \"--simulate p4d.24xlarge ");
        let result = Place::with(&plan).run("plan.toml --dry-run");
        assert_eq!(result.status.code(), Some(0), "{plan}: {}", said(&result));
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn each_rank_has_its_own_number_in_a_variable() {
    // With a host id for each rank, ranks are on hosts of their own and go over the network.
    let rates = |host: &str| {
        let folder = tempfile::tempdir().unwrap();
        let line = format!(
            "nccl --simulate p4d.24xlarge --gpus 0,1 --ranks 2 --operation all_reduce --place \
             out-of-place --sizes 64K --samples 1 --time-limit 1ms --nccl-env NCCL_HOSTID={host} \
             --output"
        );
        let mut command = g2g();
        command.args(line.split_whitespace()).arg(folder.path().join("run"));
        let result = command.output().unwrap();
        assert_eq!(result.status.code(), Some(0), "{}", said(&result));
        crate::common::Rows::read(&folder.path().join("run")).number(0, "bandwidth_gb_s")
    };
    let (one, each) = (rates("pod"), rates("pod-{rank}"));
    assert!(one > 1.5 * each, "one host {one} GB/s, two hosts {each} GB/s");
}

#[test]
fn a_launcher_of_the_plan_starts_the_ranks_of_every_run() {
    let place = Place::with(
        r#"
launcher = "mpirun.openmpi -np 2 --oversubscribe --bind-to none"
command = "nccl"
flags = "--simulate p4d.24xlarge --gpus 0,1 --operation all_reduce --place out-of-place --sizes 64K --samples 1 --time-limit 1ms"
repetitions = 2

[[axis]]
name = "pods"
values = [
    { label = "one-for-all" },
    { label = "one-for-each", env = { NCCL_HOSTID = "pod-{rank}" } },
]
"#,
    );
    // Open MPI refuses root if it is not told otherwise.
    let mut command = place.command("plan.toml --output out --quiet");
    let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    let result = command.envs(allowed.map(|name| (name, "1"))).output().unwrap();
    assert_eq!(result.status.code(), Some(0), "{}", said(&result));
    let json = place.json();
    assert_eq!(verdict(case(&json, "64 KiB"), "one-for-each"), "slower", "{json}");
    let run = fs::read_to_string(place.path("out/runs/001/run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    assert_eq!(run["provenance"]["ranks"], 2);
}
