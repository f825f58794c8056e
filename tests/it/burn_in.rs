//! `g2g check --for` on simulated machines: what changes is found, with its time.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    check::{Checked, check_by},
    common::{Rows, g2g, text},
    scripts::finish,
};

const P4D: &str = "from = \"p4d.24xlarge\"\n";

/// A machine on which an hour has few bytes, because host memory, which is real, is slow to reach.
const SLOW: &str = "[[gpu]]\npcie_generation = 1\npcie_generation_max = 1\npcie_lanes = 4\n\
                    pcie_lanes_max = 4\npcie_up_gb_s = 0.8\npcie_down_gb_s = 0.8\n";

/// Burns in one GPU of `of` with `fault`, for so long, in `output`: what was said, and the verdict on
/// the host.
fn burn_in(
    [of, fault]: [&str; 2],
    time: &str,
    output: &Path,
    more: &str,
) -> (Option<i32>, Value, String) {
    let machine = output.with_extension("toml");
    fs::write(&machine, format!("schema = 1\n{of}{fault}")).unwrap();
    let line = format!(
        "check --simulate {} --gpus 0 --for {time} --no-report --format json {more} {}",
        machine.display(),
        output.display()
    );
    let (result, said) = finish(g2g().args(line.split_whitespace()));
    let printed: Value = serde_json::from_str(&text(&result.stdout)).unwrap_or_default();
    (result.status.code(), printed["hosts"].clone(), said)
}

/// The round, the seconds before it and the least share of each line of rounds.csv.
fn rounds(output: &Path) -> Vec<(u64, f64, f64)> {
    let text = fs::read_to_string(output.join("rounds.csv")).unwrap();
    let line = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        (cells[0].parse().unwrap(), cells[1].parse().unwrap(), cells[6].parse().unwrap())
    };
    text.lines().skip(1).map(line).collect()
}

#[test]
fn a_burn_in_says_what_changes_and_when() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("healthy");
    let (code, hosts, said) = burn_in([P4D, ""], "2s", &output, "--output");
    assert_eq!(code, Some(0), "{hosts:#} {said}");
    let healthy = rounds(&output);
    assert!(healthy.len() >= 2, "{healthy:?}");
    assert!(healthy.windows(2).all(|two| two[1].0 == two[0].0 + 1 && two[1].1 > two[0].1));
    assert!(healthy.iter().all(|(.., share)| *share > 0.99), "{healthy:?}");
    assert!(said.contains("round 1, "), "{said}");
    let all = Rows::read(&output).len();

    for (fault, flag, reason) in [
        ("[[fault.jitter]]\nshare = 1\nextra_ns = 6e3\nafter_ns = 4e9\n", "drifted", " then"),
        // While a case is prepared.
        (
            "[[fault.health]]\ngpu = 0\nwhat = 'ecc-uncorrected'\nafter_mib = 3100\n",
            "new_ecc_errors",
            " after the first rows",
        ),
    ] {
        let output = folder.path().join(flag);
        let (code, hosts, said) = burn_in([SLOW, fault], "10s", &output, "--output");
        assert_eq!(code, Some(1), "{flag}: {hosts:#} {said}");
        let is_it = |of: &&Value| of["said"].as_str().unwrap().contains(flag);
        let of_flag = hosts[0]["reasons"].as_array().unwrap().iter().find(is_it);
        let shown = of_flag.unwrap()["shown"].as_str().unwrap();
        assert!(shown.ends_with(reason) && shown.contains(" s after the first rows"), "{shown}");
        // Each case that has changed has one more row.
        let rows = Rows::read(&output);
        assert!(rows.len() > all && rows.len() <= 2 * all, "{}", rows.len());
        assert!((all..rows.len()).all(|row| rows.cell(row, "flags").contains(flag)));
    }
}

#[test]
fn a_burn_in_compares_every_operation() {
    // Each of these is one of many that a round makes of the same bytes.
    for after in [300, 301, 302] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let fault =
            format!("[[fault.flip]]\nsource = 0\ntarget = 0\noffset = 99\nafter = {after}\n");
        let (code, hosts, said) = burn_in([SLOW, &fault], "8s", &output, "--output");
        assert_eq!(code, Some(1), "{after}: {hosts:#} {said}");
        let rows = Rows::read(&output);
        let wrong = (0..rows.len()).filter(|row| rows.cell(*row, "status") == "corrupt");
        let reasons: Vec<&str> = wrong.map(|row| rows.cell(row, "reason")).collect();
        let [reason] = reasons[..] else { panic!("{after}: {reasons:?}") };
        assert!(reason.contains(" 1 wrong bytes; the first at offset 99 is "), "{reason}");
        assert!(reason.ends_with(" s after the first rows"), "{reason}");
    }
}

#[test]
fn a_burn_in_goes_on_where_it_was_interrupted_and_in_several_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    // A sample of its copies takes too long for as many as an interval needs.
    let unknown = Some(3);
    let (code, ..) = burn_in([SLOW, ""], "4s", &output, "--output");
    assert_eq!(code, unknown);
    let first = rounds(&output);
    let rows = fs::read_to_string(output.join("run.csv")).unwrap();
    // A crash has cut its last line.
    let log = output.join("rounds.csv");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 3]).unwrap();
    let (code, _, said) = burn_in([SLOW, ""], "8s", &output, "--resume");
    assert_eq!(code, unknown, "{said}");
    let all = rounds(&output);
    assert_eq!(all[..first.len() - 1], first[..first.len() - 1]);
    assert!(all.len() > first.len() && all.last().unwrap().1 > 3.0, "{all:?}");
    assert!(all.windows(2).all(|two| two[1].0 == two[0].0 + 1), "{all:?}");
    assert_eq!(fs::read_to_string(output.join("run.csv")).unwrap(), rows);

    let words = "--gpus 0 --for 1s";
    let Checked { code, hosts, said, .. } = check_by(2, "p4d.24xlarge", "", words);
    assert_eq!(code, Some(0), "{hosts:#} {said}");
}

mod long {
    use std::{
        process::Child,
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::common::signal;

    /// Resident memory of a process, in KiB.
    fn resident_kib(pid: u32) -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// The seconds before "after the first rows" in a reason.
    fn after_s(reason: &str) -> f64 {
        let (before, _) = reason.split_once(" after the first rows").unwrap();
        let time = before.rsplit([',', ';']).next().unwrap().trim();
        let parts = time.split(' ').collect::<Vec<_>>();
        let value = |part: &[&str]| {
            let unit = match part[1] {
                "s" => 1.0,
                "min" => 60.0,
                other => panic!("{other} in {reason}"),
            };
            unit * part[0].parse::<f64>().unwrap()
        };
        parts.chunks(2).map(value).sum()
    }

    /// Waits until rounds.csv has rounds of so many seconds.
    fn until(child: &mut Child, output: &Path, seconds: f64) {
        let began = Instant::now();
        loop {
            let has = output.join("rounds.csv").exists()
                && rounds(output).last().is_some_and(|(_, before, _)| *before > seconds);
            if has {
                return;
            }
            assert!(child.try_wait().unwrap().is_none(), "it has ended before {seconds} s");
            assert!(began.elapsed() < Duration::from_secs(7200), "no {seconds} s in two hours");
            thread::sleep(Duration::from_secs(1));
        }
    }

    #[test]
    #[ignore = "takes half an hour"]
    fn a_burn_in_of_an_hour_finds_drift_errors_and_one_flip_and_does_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let (machine, output) = (folder.path().join("machine.toml"), folder.path().join("run"));
        let fault = "[[fault.jitter]]\nshare = 1\nextra_ns = 4500\nafter_ns = 3e11\n\
                     [[fault.health]]\ngpu = 0\nwhat = 'ecc-corrected'\nafter_mib = 1000000\n\
                     [[fault.flip]]\nsource = 0\ntarget = 0\nafter = 100000\n";
        fs::write(&machine, format!("schema = 1\n{SLOW}{fault}")).unwrap();
        let start = |more: &str| {
            let line = format!(
                "check --simulate {} --gpus 0 --for 1h --no-report --quiet {more} {}",
                machine.display(),
                output.display()
            );
            g2g().args(line.split_whitespace()).spawn().unwrap()
        };
        let mut first = start("--output");
        until(&mut first, &output, 60.0);
        signal("KILL", first.id());
        first.wait().unwrap();
        // The machine of a resumed run begins anew.
        let mut second = start("--resume");
        until(&mut second, &output, 360.0);
        let bytes = || {
            let of = |name: &str| fs::metadata(output.join(name)).unwrap().len();
            of("run.csv") + of("run.json") + of("latency.hlog")
        };
        let (memory_kib, size) = (resident_kib(second.id()), bytes());
        until(&mut second, &output, 3590.0);
        let memory_at_end_kib = resident_kib(second.id());
        assert_eq!(second.wait().unwrap().code(), Some(1));
        let rows = Rows::read(&output);
        // Seconds after the first rows of those that have `text` in a column.
        let when = |column: &str, text: &str| -> Vec<f64> {
            let has_it = |row: &usize| rows.cell(*row, column).contains(text);
            let found = (0..rows.len()).filter(has_it).map(|row| rows.cell(row, "reason"));
            found.map(after_s).collect()
        };
        let drifted = when("flags", "drifted");
        let errors = when("flags", "new_ecc_errors");
        let [flipped] = when("status", "corrupt")[..] else { panic!("not one flip") };
        // A case that was corrupt meanwhile has drifted once more.
        let first = drifted.first().is_some_and(|at| (300.0..480.0).contains(at));
        assert!(first && !errors.is_empty(), "{drifted:?} {errors:?}");
        assert!((1200.0..3600.0).contains(&flipped), "{flipped}");
        println!("drift {drifted:?}, errors {errors:?}, flip {flipped} s after the first rows");
        println!("{memory_kib} to {memory_at_end_kib} KiB, {size} to {} bytes", bytes());
        // Rows that have changed, and nothing else, make the files longer.
        assert!(bytes() < 3 * size && rows.len() < 40, "{size} {} {}", bytes(), rows.len());
        assert!(memory_at_end_kib < memory_kib * 6 / 5, "{memory_kib} {memory_at_end_kib}");
    }
}
