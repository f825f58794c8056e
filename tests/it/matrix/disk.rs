//! Disks that fill up, folders that go away, and files that were cut or changed.

use std::{fs, path::Path, process::Command};

use crate::{
    common::{Rows, SOON, eventually, g2g, run, start, text, wait},
    matrix::in_own_mounts,
};

/// Rows between two ranks that take some 100 ms each.
const LINE: &str = "shm --numa 0:0 --pattern one-way --time-limit 100ms --precision 0.0001 --sizes";

const QUICK: &str = "shm --numa 0:0 --pattern one-way --time-limit 10ms --sizes";

#[test]
fn a_full_disk_ends_the_run_and_every_row_before_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let kept = folder.path().join("kept");
    // What is on the disk goes with the namespace.
    let result = in_own_mounts(&format!(
        "mount -t tmpfs -o size=60k tmpfs {0} && {{ $g2g {QUICK} 64..16M --output {0}/run; \
         code=$?; cp -r {0}/run {1}; exit $code; }}",
        disk.display(),
        kept.display()
    ));
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    let told = format!("error: cannot write {}/run/", disk.display());
    assert!(said.contains(&told), "{said}");
    assert!(said.contains("No space left on device (os error 28); "), "{said}");
    assert!(said.contains("rows were not measured: the same command with --resume"), "{said}");
    let rows = Rows::read(&kept);
    assert!(rows.len() > 3, "{said}");
    assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"));
    let json = fs::read_to_string(kept.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["rows"].as_array().unwrap().len() >= rows.len());
    assert!(fs::read_to_string(kept.join("latency.hlog")).unwrap().ends_with('\n'));
    // All that was measured is shown as well.
    let shown = text(&result.stdout);
    assert!(shown.contains(&format!("{} rows measured ", rows.len())), "{shown}");
    // With room it goes on.
    let line = format!("{QUICK} 64..16M --resume {} --quiet", kept.display());
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    assert_eq!(Rows::read(&kept).len(), 19);
}

#[test]
fn a_disk_that_is_full_from_the_start_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display();
    let result = in_own_mounts(&format!(
        "mount -t tmpfs -o size=4k tmpfs {disk} && head -c 4096 /dev/zero >{disk}/full 2>&1 && \
         $g2g {LINE} 64 --output {disk}/run"
    ));
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("name another with --output"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn an_output_folder_that_is_removed_is_made_anew_with_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let first = start(&format!("{LINE} 64,128,256,512,1K,2K,4K --output {}", output.display()));
    let lines = || fs::read_to_string(output.join("run.csv")).unwrap_or_default();
    assert!(eventually(SOON, || lines().lines().count() > 2), "no row");
    fs::remove_dir_all(&output).unwrap();
    assert!(eventually(SOON, || lines().lines().count() > 3), "no row more");
    // Nobody else can go on with it meanwhile.
    let other = run(g2g(), &format!("{LINE} 64 --resume {}", output.display()));
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    assert!(text(&other.stderr).contains("another g2g works in it"), "{}", text(&other.stderr));
    let result = wait(first);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(0), "{said}");
    for file in ["run.csv", "run.json", "latency.hlog"] {
        let told = format!("/run/{file} was removed meanwhile: it is made anew, whole");
        assert_eq!(said.matches(&told).count(), 1, "{said}");
    }
    let rows = Rows::read(&output);
    assert_eq!(rows.len(), 7);
    assert!((0..7).all(|row| rows.cell(row, "status") == "ok"));
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 7);
    let hlog = fs::read_to_string(output.join("latency.hlog")).unwrap();
    assert!((1..=7).all(|case| hlog.contains(&format!("Tag=case-{case}_"))), "{hlog}");
}

#[test]
fn an_output_folder_that_cannot_be_made_again_costs_no_row_that_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let run = start(&format!("{LINE} 64,128,256,512,1K,2K,4K --output {}", output.display()));
    let lines = || fs::read_to_string(output.join("run.csv")).unwrap_or_default();
    assert!(eventually(SOON, || lines().lines().count() > 2), "no row");
    let moved = folder.path().join("moved");
    fs::rename(&output, &moved).unwrap();
    fs::write(&output, "a file now").unwrap();
    fs::remove_dir_all(&moved).unwrap();
    let result = wait(run);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    assert!(said.contains("error: cannot write "), "{said}");
    assert!(said.contains("not measured"), "{said}");
    let shown = text(&result.stdout);
    let (_, measured) = shown.split_once('\n').unwrap();
    let rows: usize = measured.split(' ').next().unwrap().parse().unwrap();
    assert!(rows >= 2, "{shown}");
    assert_eq!(fs::read_to_string(&output).unwrap(), "a file now");
}

#[test]
fn two_runs_do_not_work_in_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let first = start(&format!("{LINE} 64,128,256,512,1K,2K,4K --output {}", output.display()));
    assert!(eventually(SOON, || output.join("run.csv").exists()), "it does not begin");
    for flag in ["--output", "--resume"] {
        let line = format!("{LINE} 64,128,256,512,1K,2K,4K {flag} {}", output.display());
        let second = run(g2g(), &line);
        assert_eq!(second.status.code(), Some(2), "{}", text(&second.stderr));
        assert_eq!(text(&second.stderr).lines().count(), 1, "{}", text(&second.stderr));
    }
    assert_eq!(wait(first).status.code(), Some(0));
    assert_eq!(Rows::read(&output).len(), 7);
}

/// A run of four rows in `folder`.
fn small_run(folder: &Path) {
    let line = format!(
        "p2p --simulate p4d.24xlarge --gpus 0,1 --engine ce --operation copy --sizes 4K,64K \
         --pattern one-way --samples 6 --time-limit 1ms --quiet --output {}",
        folder.display()
    );
    let result = run(g2g(), &line);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
}

/// Where a text stands in a file.
fn find_in(content: &[u8], text: &str) -> Option<usize> {
    content.windows(text.len()).position(|found| found == text.as_bytes())
}

#[test]
fn results_that_were_cut_or_changed_are_read_to_the_last_whole_row_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let [good, bad] = ["good", "bad"].map(|name| folder.path().join(name));
    small_run(&good);
    for file in ["run.csv", "run.json", "latency.hlog", "topology.json"] {
        let whole = fs::read(good.join(file)).unwrap();
        let half = whole[..whole.len() / 2].to_vec();
        let zeros = [&half[..], &[0; 4096][..]].concat();
        let mut contents =
            vec![half, zeros, b"{\"rows\": 1}".to_vec(), b"\xff\xfe".to_vec(), Vec::new()];
        // Cut before the rows, within the first, behind the last, and in what stands behind them.
        for (mark, behind) in
            [("\"rows\": [\n", 0), ("{\"case\":1", 40), ("\n],\n", 0), ("\"health\"", 30)]
        {
            contents.extend(find_in(&whole, mark).map(|place| whole[..place + behind].to_vec()));
        }
        assert_eq!(contents.len(), if file == "run.json" { 9 } else { 5 });
        for content in contents {
            let _ = fs::remove_dir_all(&bad);
            fs::create_dir(&bad).unwrap();
            for entry in fs::read_dir(&good).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), bad.join(entry.file_name())).unwrap();
            }
            fs::write(bad.join(file), &content).unwrap();
            let page = folder.path().join("page.html");
            for words in [
                vec!["report", bad.to_str().unwrap(), "-o", page.to_str().unwrap()],
                vec!["compare", good.to_str().unwrap(), bad.to_str().unwrap()],
            ] {
                let result = g2g().args(&words).output().unwrap();
                let said = text(&result.stderr);
                let code = result.status.code();
                assert!(code == Some(0) || code == Some(2), "{file} {words:?}: {code:?} {said}");
                if code == Some(2) {
                    assert!(said.starts_with("error: "), "{file}: {said}");
                    assert_eq!(said.lines().count(), 1, "{file}: {said}");
                    assert!(said.contains(bad.join(file).to_str().unwrap()), "{file}: {said}");
                }
                // Whole lines are rows; without histograms there are still rows, and without the
                // rows of run.json those of run.csv.
                let is_read = code == Some(0);
                let expected = match file {
                    "run.csv" => content.starts_with(b"case,"),
                    "run.json" => find_in(&content, "\n\"rows\": [").is_some(),
                    other => other == "latency.hlog",
                };
                assert_eq!(is_read, expected, "{file} {content:?}: {said}");
                let lacks = |page: &str| page.contains("latency.hlog lacks ");
                if is_read && words[0] == "report" {
                    assert_eq!(lacks(&fs::read_to_string(&page).unwrap()), file == "latency.hlog");
                }
            }
        }
    }
}

#[test]
fn results_with_numbers_that_nothing_measures_are_shown_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    small_run(&run);
    let csv = fs::read_to_string(run.join("run.csv")).unwrap();
    let (header, rows) = csv.split_once('\n').unwrap();
    let column = |name: &str| header.split(',').position(|column| column == name).unwrap();
    for name in ["bandwidth_gb_s_low", "bandwidth_gb_s", "latency_ns_p50", "size_bytes"] {
        for number in ["0", "-1", "inf", "nan", "1e308", "5e-324", "18446744073709551615"] {
            let changed = rows.lines().map(|row| {
                let mut cells: Vec<&str> = row.split(',').collect();
                cells[column(name)] = number;
                cells.join(",") + "\n"
            });
            let changed = format!("{header}\n{}", changed.collect::<String>());
            fs::write(run.join("run.csv"), changed).unwrap();
            // What has no end takes all memory: 4 GiB are enough for any page.
            let mut command = Command::new("prlimit");
            command.args(["--as=4294967296", crate::common::program(), "report"]).arg(&run);
            let result = command.arg("-o").arg(folder.path().join("page.html")).output().unwrap();
            let said = text(&result.stdout) + &text(&result.stderr);
            assert!(matches!(result.status.code(), Some(0 | 2)), "{name} {number}: {said}");
        }
    }
}
