//! `g2g check --for` on simulated machines: what changes is found, with its time.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    check::{Checked, check_by},
    common::{Rows, g2g, text},
    scripts::finish,
};

/// Burns in one GPU of a p4d.24xlarge with `fault`, for so long, in `output`: what was said, and the
/// verdict on the host.
fn burn_in(fault: &str, time: &str, output: &Path, more: &str) -> (Option<i32>, Value, String) {
    let machine = output.with_extension("toml");
    fs::write(&machine, format!("schema = 1\nfrom = \"p4d.24xlarge\"\n{fault}")).unwrap();
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
    let (code, hosts, said) = burn_in("", "4s", &output, "--output");
    assert_eq!(code, Some(0), "{hosts:#} {said}");
    let all = Rows::read(&output).len();
    let healthy = rounds(&output);
    assert!(healthy.len() >= 2, "{healthy:?}");
    assert!(healthy.windows(2).all(|two| two[1].0 == two[0].0 + 1 && two[1].1 > two[0].1));
    assert!(healthy.iter().all(|(.., share)| *share > 0.99), "{healthy:?}");
    assert!(said.contains("round 1, "), "{said}");

    for (fault, flag, reason) in [
        ("[[fault.jitter]]\nshare = 1\nextra_share = 0.06\nafter_ns = 4e9\n", "drifted", " then"),
        (
            "[[fault.health]]\ngpu = 0\nwhat = 'ecc-uncorrected'\nafter_mib = 15000\n",
            "new_ecc_errors",
            " after the first rows",
        ),
    ] {
        let output = folder.path().join(flag);
        let (code, hosts, said) = burn_in(fault, "8s", &output, "--output");
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
fn a_burn_in_goes_on_where_it_was_interrupted_and_in_several_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let (code, ..) = burn_in("", "2s", &output, "--output");
    assert_eq!(code, Some(0));
    let first = rounds(&output);
    let rows = fs::read_to_string(output.join("run.csv")).unwrap();
    // A crash has cut its last line.
    let log = output.join("rounds.csv");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 3]).unwrap();
    let (code, _, said) = burn_in("", "6s", &output, "--resume");
    assert_eq!(code, Some(0), "{said}");
    let all = rounds(&output);
    assert_eq!(all[..first.len() - 1], first[..first.len() - 1]);
    assert!(all.len() > first.len() && all.last().unwrap().1 > 3.0, "{all:?}");
    assert!(all.windows(2).all(|two| two[1].0 == two[0].0 + 1), "{all:?}");
    assert_eq!(fs::read_to_string(output.join("run.csv")).unwrap(), rows);

    let words = "--gpus 0,2 --for 1s";
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
    fn a_burn_in_of_ten_minutes_finds_drift_and_errors_and_does_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let (machine, output) = (folder.path().join("machine.toml"), folder.path().join("run"));
        let fault = "[[fault.jitter]]\nshare = 1\nextra_share = 0.053\nafter_ns = 3e11\n\
                     [[fault.health]]\ngpu = 0\nwhat = 'ecc-corrected'\nafter_mib = 2000000\n";
        fs::write(&machine, format!("schema = 1\nfrom = \"p4d.24xlarge\"\n{fault}")).unwrap();
        let start = |more: &str| {
            let line = format!(
                "check --simulate {} --gpus 0 --for 10m --no-report --quiet {more} {}",
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
        until(&mut second, &output, 90.0);
        let bytes = || {
            let of = |name: &str| fs::metadata(output.join(name)).unwrap().len();
            of("run.csv") + of("run.json") + of("latency.hlog")
        };
        let (memory_kib, size) = (resident_kib(second.id()), bytes());
        until(&mut second, &output, 570.0);
        let memory_at_end_kib = resident_kib(second.id());
        assert_eq!(second.wait().unwrap().code(), Some(1));
        let rows = Rows::read(&output);
        let is = |flag: &str| {
            (0..rows.len()).filter(|row| rows.cell(*row, "flags").contains(flag)).count()
        };
        let further = is("drifted") + is("new_ecc_errors");
        assert!(is("drifted") > 0 && is("new_ecc_errors") > 0, "{further}");
        let found = (0..rows.len()).find(|row| rows.cell(*row, "flags").contains("drifted"));
        let reason = rows.cell(found.unwrap(), "reason");
        assert!(reason.contains(" after the first rows: "), "{reason}");
        // Rows that have changed, and nothing else, make the files longer.
        assert!(bytes() < 3 * size && further < 40, "{size} {} {further}", bytes());
        assert!(memory_at_end_kib < memory_kib * 6 / 5, "{memory_kib} {memory_at_end_kib}");
    }
}
