//! The page of a run, in a real browser without a network, held against the run's files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{g2g, run, text};
use serde_json::Value;

/// Seconds for what a browser does in less than 20, and what `timeout` ends with after them. Beside
/// ranks that spin it takes minutes: some of its processes lower their own priority.
const LIMIT: &str = "400";
const ENDED: i32 = 124;
const KILLED: i32 = 137;

const SLOW: &str = "[[fault.slow]]\nsource = 2\nfraction = 0.59\n";

/// A run on a simulated machine with these faults, in `folder`.
fn measure(folder: &Path, faults: &str, words: &str) -> PathBuf {
    let machine = folder.join("machine.toml");
    fs::write(&machine, format!("schema = 1\nfrom = \"p4d.24xlarge\"\nname = \"test\"\n{faults}"))
        .unwrap();
    let output = folder.join("run");
    let line = format!(
        "{words} --simulate {} --gpus 0-3 --time-limit 3ms --quiet --output {}",
        machine.display(),
        output.display()
    );
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    output
}

/// What the browser finds on the page of `run`; pictures of it are below target.
fn look(run: &Path, name: &str) -> Result<Value, String> {
    look_at(&[], run, name)
}

/// What it finds on another page on which `run` is: the words are its path and the folder of the
/// sweep that is on it too.
fn look_at(words: &[&Path], run: &Path, name: &str) -> Result<Value, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("G2G_TEST_PYTHON")
        .map_or_else(|| root.join("target/python/bin/python"), PathBuf::from);
    assert!(python.exists(), "run scripts/test: it makes the Python environment of this test");
    let ask = || {
        let mut command = Command::new("timeout");
        // By this signal Python says where it is.
        command.args(["--signal=ABRT", "--kill-after=10", LIMIT]).arg(&python);
        command.args(["-B", "-X", "faulthandler"]).arg(root.join("tests/python/check_report.py"));
        command.arg(run).arg(root.join("target/report").join(name)).args(words).output().unwrap()
    };
    let mut answer = ask();
    if [ENDED, KILLED].map(Some).contains(&answer.status.code()) {
        // A browser that stands still says nothing of the page.
        answer = ask();
    }
    match answer.status.success() {
        true => Ok(serde_json::from_slice(&answer.stdout).unwrap()),
        false => Err(text(&answer.stderr)),
    }
}

#[test]
fn the_page_of_a_machine_with_a_slow_gpu_shows_what_the_files_say() {
    let folder = tempfile::tempdir().unwrap();
    let run = measure(folder.path(), SLOW, "run --sizes 64K,4M");
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    let against = page.lines().find(|line| line.contains("slower as a source to all")).unwrap();
    assert!(against.contains("GPU 2 is ") && against.contains(" to 38 %"), "{against}");
    let found = look(&run, "slow").unwrap();
    // Both engines, both issuers, twelve pairs and two sizes.
    assert_eq!(found["cells"], 2 * 2 * 12 * 2);
    assert!(found["points"].as_u64().unwrap() > 40, "{found}");
    assert!(found["latencies"].as_u64().unwrap() > 400, "{found}");

    // The check itself can fail.
    let csv = fs::read_to_string(run.join("run.csv")).unwrap();
    let row = csv.lines().find(|line| line.contains("p2p,one-way,1,copy,ce")).unwrap();
    let cells: Vec<&str> = row.split(',').collect();
    let header = csv.lines().next().unwrap();
    let place = header.split(',').position(|name| name == "bandwidth_gb_s").unwrap();
    let changed = csv.replacen(cells[place], "1.5", 1);
    fs::write(run.join("run.csv"), changed).unwrap();
    assert!(look(&run, "changed").is_err());
}

/// The rows of one pair of GPUs for every pair of so many, of which one is slow as a source.
fn spread(run: &Path, gpus: usize, slow: usize) {
    let csv = fs::read_to_string(run.join("run.csv")).unwrap();
    let (header, rows) = csv.split_once('\n').unwrap();
    let place = |name: &str| header.split(',').position(|of| of == name).unwrap();
    let ends = [place("source_gpu"), place("target_gpu")];
    let is_of_pair = |row: &&str| ends.map(|end| row.split(',').nth(end).unwrap()) == ["0", "1"];
    let rows: Vec<&str> = rows.lines().filter(is_of_pair).collect();
    let pairs = (0..gpus).flat_map(|source| (0..gpus).map(move |target| (source, target)));
    let mut text = format!("{header}\n");
    let mut case = 0;
    for (source, target) in pairs.filter(|(source, target)| source != target) {
        for row in &rows {
            case += 1;
            let share = 1.0 - (target as f64) / 1e4;
            let factor = if source == slow { 0.7 * share } else { share };
            let cell = |(name, cell): (&str, &str)| match (name, cell.parse::<f64>()) {
                ("case", _) => case.to_string(),
                ("source_gpu", _) => source.to_string(),
                ("target_gpu", _) => target.to_string(),
                ("bandwidth_gb_s" | "bandwidth_gb_s_low" | "bandwidth_gb_s_high", Ok(gb_s)) => {
                    (gb_s * factor).to_string()
                }
                _ => cell.to_owned(),
            };
            let cells: Vec<String> = header.split(',').zip(row.split(',')).map(cell).collect();
            text.push_str(&(cells.join(",") + "\n"));
        }
    }
    fs::write(run.join("run.csv"), text).unwrap();
}

#[test]
fn the_page_of_many_gpus_shows_every_pair() {
    let folder = tempfile::tempdir().unwrap();
    let words = "p2p --sizes 1M --operation copy --engine ce --pattern one-way";
    let run = measure(folder.path(), "", words);
    spread(&run, 72, 41);
    let result = crate::common::run(g2g(), &format!("report {}", run.display()));
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    let against = page.lines().find(|line| line.contains("slower as a source to all")).unwrap();
    assert!(against.contains("GPU 41 is 30 %"), "{against}");
    assert!(page.contains("The first 1000 rows; 9224 more are in run.csv"));
    // Both issuers.
    assert_eq!(look(&run, "many").unwrap()["cells"], 2 * 72 * 71);
}

#[test]
fn what_cannot_be_seen_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let words = "p2p --sizes 1M --operation copy --engine ce --issuer write --pattern one-way";
    let run = measure(folder.path(), "", words);
    spread(&run, 200, 150);
    let report = || {
        let result = crate::common::run(g2g(), &format!("report {}", run.display()));
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        fs::read_to_string(run.join("report.html")).unwrap()
    };
    let page = report();
    assert!(page.contains("GPU 150 is 30 % slower as a source to all"));
    let told = "39800 pairs from ";
    let about = page.lines().find(|line| line.contains(told)).unwrap();
    assert!(about.contains("up to 2 by 2 pairs share a cell"), "{about}");
    // The slow one is seen beside a fast one.
    assert!(about.contains("the slowest 150 → 199"), "{about}");

    // As many sizes as rows.
    let csv = fs::read_to_string(run.join("run.csv")).unwrap();
    let header = csv.lines().next().unwrap();
    let place = header.split(',').position(|name| name == "size_bytes").unwrap();
    let lines = csv.lines().skip(1).take(5000).enumerate().map(|(row, line)| {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        cells[place] = (4096 * (row + 1)).to_string();
        cells.join(",") + "\n"
    });
    let lines: String = lines.collect();
    fs::write(run.join("run.csv"), format!("{header}\n{lines}")).unwrap();
    let page = report();
    let about = page.lines().find(|line| line.contains("of 5000 sizes")).unwrap();
    assert!(about.contains("all are in run.csv"), "{about}");
    assert!(page.len() < 12 << 20, "{}", page.len());
}

#[test]
fn what_stands_in_the_results_is_text_and_never_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = measure(folder.path(), "", "p2p --sizes 1M --operation copy --engine ce");
    let hostile =
        "</script><script>window.planted=1</script><img src=x onerror=window.planted=1>&\"'";
    let cell = hostile.replace('"', "'");
    let link = "<a href='https://evil.example'>node</a>";
    let csv = fs::read_to_string(run.join("run.csv")).unwrap();
    let header = csv.lines().next().unwrap().to_owned();
    let lines = csv.lines().skip(1).enumerate().map(|(row, line)| {
        // Reasons are told of what stands against the numbers.
        let is_against = row % 2 == 0;
        let cells = header.split(',').zip(line.split(',')).map(|(name, own)| match name {
            "source_host" => link,
            "target_host" | "path_reason" | "verdict_reason" | "flags" => &*cell,
            "verdict" if is_against => "below",
            "path_verdict" if is_against => "contradicted",
            _ => own,
        });
        cells.collect::<Vec<&str>>().join(",") + "\n"
    });
    let lines: String = lines.collect();
    fs::write(run.join("run.csv"), format!("{header}\n{lines}")).unwrap();
    for file in ["run.json", "topology.json"] {
        let mut value: Value =
            serde_json::from_str(&fs::read_to_string(run.join(file)).unwrap()).unwrap();
        plant(&mut value, hostile);
        let text = match file {
            // Its rows stand on lines of their own.
            "run.json" => format!(
                "{{\n\"provenance\": {},\n\"rows\": [\n]\n}}\n",
                serde_json::to_string_pretty(&value["provenance"]).unwrap()
            ),
            _ => value.to_string(),
        };
        fs::write(run.join(file), text).unwrap();
    }
    let result = crate::common::run(g2g(), &format!("report {}", run.display()));
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    look(&run, "hostile").unwrap();
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(!page.contains(hostile) && page.contains("window.planted"));
    for told in ["below what is expected", "took another path"] {
        let sentence = page.lines().find(|line| line.contains(told)).unwrap();
        assert!(sentence.contains("window.planted=1"), "{sentence}");
    }
    // Both names are on the axes of the charts.
    for name in [" of <a href='https://evil.example'>node", " of </script>"] {
        assert!(page.matches(&name.replace('<', "&lt;")).count() > 4, "{name}");
    }
}

/// Puts a text into every place of JSON where a name stands.
fn plant(value: &mut Value, text: &str) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let is_name = [
                    "name",
                    "hostname",
                    "product",
                    "cpu_model",
                    "kernel",
                    "path",
                    "vendor",
                    "version",
                ];
                if is_name.contains(&key.as_str()) && (value.is_string() || value.is_null()) {
                    *value = Value::String(text.to_owned());
                } else if key == "environment" {
                    *value = serde_json::json!([[text, text]]);
                } else if key == "command" {
                    *value = serde_json::json!([text]);
                }
                plant(value, text);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| plant(value, text)),
        _ => {}
    }
}

#[test]
fn several_runs_and_sweeps_go_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let first = measure(folder.path(), "", "p2p --sizes 1M --operation copy --engine ce");
    let plan = folder.path().join("plan.toml");
    fs::write(
        &plan,
        "command = \"nccl\"\n\
         flags = \"--simulate p4d.24xlarge --gpus 0-1 --operation all_reduce --place out-of-place,in-place --sizes 1M --time-limit 10ms\"\n\
         repetitions = 2\n\
         [[axis]]\nname = \"algorithm\"\n\
         values = [{ label = \"default\" }, { label = \"Tree\", env = { NCCL_ALGO = \"Tree\" } }]\n",
    )
    .unwrap();
    let sweep = folder.path().join("sweep");
    let line = format!("sweep {} --quiet --output {}", plan.display(), sweep.display());
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    // Each run of a sweep has no page of its own.
    assert!(sweep.join("report.html").is_file() && !sweep.join("runs/001/report.html").exists());
    let both = folder.path().join("both.html");
    let line = format!("report {} {} -o {}", sweep.display(), first.display(), both.display());
    let result = run(g2g(), &line);
    assert_eq!(text(&result.stdout).trim(), both.display().to_string());
    let found = look_at(&[&both, &sweep], &first, "both").unwrap();
    // Without -o it is a new page each time, here, and the runs' own stay what they are.
    let own = fs::read_to_string(sweep.join("report.html")).unwrap();
    for name in ["report.html", "report-2.html"] {
        let mut command = g2g();
        command.current_dir(folder.path());
        let result = run(command, &format!("report {} {}", sweep.display(), first.display()));
        assert_eq!(text(&result.stdout).trim(), name);
        assert!(folder.path().join(name).is_file());
    }
    assert_eq!(fs::read_to_string(sweep.join("report.html")).unwrap(), own);
    // Two issuers of twelve pairs; of three cases two combinations and an effect.
    assert_eq!((&found["cells"], &found["sweep"]), (&(2 * 12).into(), &(3 * 3).into()), "{found}");
    let page = fs::read_to_string(both).unwrap();
    for said in ["algorithm=Tree", "sweep: Summary", "run: Summary", "2 sets of results"] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn runs_on_one_page_are_compared_and_share_their_charts() {
    let folder = tempfile::tempdir().unwrap();
    let words = "p2p --sizes 1M,4M --operation copy --engine ce --no-report";
    let measured = |name: &str, faults: &str| {
        let run = measure(folder.path(), faults, words);
        fs::rename(run, folder.path().join(name)).unwrap();
    };
    measured("before", "");
    measured("after", SLOW);
    measured("again", SLOW);
    let report = |line: &str| {
        let mut command = g2g();
        command.current_dir(folder.path());
        let result = run(command, line);
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        fs::read_to_string(folder.path().join(text(&result.stdout).trim())).unwrap()
    };
    let page = report("report before after again");
    // Three pairs with two issuers, of which one reads, and two sizes have GPU 2 as their source.
    let verdict = page.lines().find(|line| line.contains("after against before: ")).unwrap();
    assert!(verdict.contains("12 of 48 cases slower, the worst -38"), "{verdict}");
    assert!(verdict.contains("GPU 2 → GPU ") && verdict.contains("bad"), "{verdict}");
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    assert!(place("after against before") < place("before: Summary"));
    for said in [
        "again against before: 12 of 48 cases slower",
        "p2p copy read ce: after over before",
        "p2p copy write ce: again over before",
        // A line for each run.
        "3 lines of bandwidth by size",
        "3 sets of results",
    ] {
        assert!(page.contains(said), "{said}");
    }
    // Each stands in the charts of all, and not in its own too.
    assert_eq!(page.matches("<h2>Bandwidth by size").count(), 1);
    assert!(
        report("report after again").contains("again against after: none of 48 cases is slower")
    );
}

#[test]
fn what_is_no_run_gets_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let run_folder =
        measure(folder.path(), "", "p2p --sizes 1M --operation copy --engine ce --no-report");
    assert!(!run_folder.join("report.html").exists());
    let shown = run_folder.display();
    let refused = |line: &str| {
        let result = run(g2g(), line);
        assert_eq!(result.status.code(), Some(2), "{line}");
        let said = text(&result.stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let missing = folder.path().join("missing");
    let said = refused(&format!("report {}", missing.display()));
    assert!(said.contains("No such file"), "{said}");
    let said = refused(&format!("report {}", folder.path().display()));
    assert!(said.contains("it holds neither a run (run.json) nor a sweep (sweep.json)"), "{said}");
    let said = refused(&format!("report {shown} -o {}/page.html", missing.display()));
    assert!(said.contains("cannot write"), "{said}");
    fs::write(run_folder.join("topology.json"), "{").unwrap();
    let said = refused(&format!("report {shown}"));
    assert!(said.contains("topology.json"), "{said}");
    fs::remove_file(run_folder.join("topology.json")).unwrap();
    // Without it there is no picture.
    assert_eq!(run(g2g(), &format!("report {shown}")).status.code(), Some(0));
    fs::write(run_folder.join("run.csv"), "case\n1\n").unwrap();
    let said = refused(&format!("report {shown}"));
    assert!(said.contains("run.csv: its first line has no column transport"), "{said}");
}
