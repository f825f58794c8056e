//! Ranks that die or stop: who is named, what is kept, and that nothing is left behind.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::common::{
    Rows, SOON, assert_nothing_stays, children, eventually, group_members, shared_memory_names,
    signal, start, text, wait,
};

/// Every file of the folder reads back whole, however the run ended; how many rows it has.
fn whole(folder: &Path) -> usize {
    if !folder.join("run.csv").exists() {
        return 0;
    }
    let rows = Rows::read(folder);
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "case"), (row + 1).to_string());
        assert!(["ok", "failed"].contains(&rows.cell(row, "status")));
        if rows.cell(row, "status") == "failed" {
            assert!(rows.cell(row, "reason").contains("rank 1"), "{}", rows.cell(row, "reason"));
            assert_eq!(rows.cell(row, "bandwidth_gb_s"), "");
        }
    }
    if let Ok(json) = fs::read_to_string(folder.join("run.json"))
        && !json.is_empty()
    {
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["rows"].as_array().unwrap().len() >= rows.len());
    }
    rows.len()
}

#[test]
fn a_kill_at_any_of_24_moments_leaves_whole_rows_and_nothing_else() {
    let mut random = StdRng::seed_from_u64(20_261_121);
    let names = shared_memory_names();
    for moment in 0..24 {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let mut parent = start(&format!(
            "shm --numa 0:0 --sizes 64..1M --time-limit 10ms --deadline 60s --no-report --output {}",
            output.display()
        ));
        // Some while it starts; the others behind a row of their own, so that neither a fast nor
        // a slow machine makes all moments alike.
        let rows = random.random_range(0..10_usize);
        let lines = || fs::read_to_string(output.join("run.csv")).unwrap_or_default();
        let is_there = || rows == 0 || lines().lines().count() > rows;
        assert!(eventually(SOON, is_there), "moment {moment}: no row {rows}");
        std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
        let victim = if moment % 2 == 0 { None } else { children(&parent).first().copied() };
        match victim {
            // It may have ended by itself in between; then there is nothing to kill.
            Some(rank) => drop(Command::new("kill").args(["-KILL", &rank.to_string()]).output()),
            None => parent.kill().unwrap(),
        }
        let group = parent.id();
        wait(parent);
        assert_nothing_stays(group, &names);
        assert!(whole(&output) >= rows, "moment {moment}: rows are lost");
    }
}

#[test]
fn a_rank_that_dies_far_from_rank_0_is_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let names = shared_memory_names();
    let parent = start(&format!(
        "shm --numa 0:0 --ranks 4 --pattern pairs --sizes 64K --samples 1000000 --deadline 10m \
         --no-report --output {}",
        folder.path().join("run").display()
    ));
    let group = parent.id();
    assert!(eventually(SOON, || children(&parent).len() == 3), "not all ranks were started");
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    signal("KILL", children(&parent)[2]);
    let result = wait(parent);
    assert!(began.elapsed() < SOON);
    assert_eq!(result.status.code(), Some(1));
    assert!(text(&result.stderr).contains("error: rank 3 is gone"), "{}", text(&result.stderr));
    assert_nothing_stays(group, &names);
}

#[test]
fn a_rank_that_dies_is_named_and_the_rows_before_it_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let names = shared_memory_names();
    let output = folder.path().join("run");
    let parent = start(&format!(
        "shm --numa 0:0 --sizes 64,4K,64M --pattern one-way --time-limit 10s --precision 0.0001 \
         --deadline 10m --no-report --output {}",
        output.display()
    ));
    let has_row = || output.join("run.csv").exists() && Rows::read(&output).len() > 0;
    assert!(eventually(SOON, has_row), "no row was written");
    let group = parent.id();
    let began = Instant::now();
    signal("KILL", children(&parent)[0]);
    let result = wait(parent);
    // Long before the deadline: the death itself is noticed.
    assert!(began.elapsed() < SOON);
    assert_eq!(result.status.code(), Some(1));
    let said = text(&result.stderr);
    assert!(said.contains("error: rank 1 is gone"), "{said}");
    assert!(said.contains("not measured"), "{said}");
    let rows = Rows::read(&output);
    assert_eq!(rows.cell(0, "status"), "ok");
    assert_eq!(rows.cell(rows.len() - 1, "status"), "failed");
    assert!(text(&result.stdout).contains("FAILED: rank 1 is gone"), "{}", text(&result.stdout));
    assert_nothing_stays(group, &names);
}

#[test]
fn a_rank_that_stops_is_named_within_the_deadline_and_does_not_stay() {
    for stopped in [1, 0] {
        let folder = tempfile::tempdir().unwrap();
        let names = shared_memory_names();
        let parent = start(&format!(
            "shm --numa 0:0 --sizes 64 --pattern one-way --samples 1000000 --deadline 1s \
             --no-report --output {}",
            folder.path().join("run").display()
        ));
        assert!(eventually(SOON, || children(&parent).len() == 1), "no rank was started");
        std::thread::sleep(Duration::from_millis(300));
        let rank = children(&parent)[0];
        let victim = if stopped == 1 { rank } else { parent.id() };
        signal("STOP", victim);
        let group = parent.id();
        if stopped == 0 {
            // Rank 1 waits its second in vain and leaves; rank 0 is let go on and must end too.
            assert!(eventually(SOON, || !group_members(group).contains(&rank)), "rank 1 stays");
            signal("CONT", parent.id());
        }
        let result = wait(parent);
        assert_eq!(result.status.code(), Some(1));
        let said = text(&result.stderr);
        assert!(said.contains(&format!("rank {stopped}")), "{said}");
        assert_nothing_stays(group, &names);
    }
}

#[test]
fn a_rank_without_memory_fails_its_case_and_the_run_goes_on() {
    for poor in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let parent = start(&format!(
            "shm --numa 0:0 --pattern one-way --sizes 64,512M,4K --samples 100 --deadline 60s \
             --no-report --output {}",
            output.display()
        ));
        assert!(eventually(SOON, || children(&parent).len() == 1), "no rank was started");
        let victim = if poor == 0 { parent.id() } else { children(&parent)[0] };
        // 256 MiB of addresses: enough for all but the second case.
        let limit =
            Command::new("prlimit").args(["--as=268435456", "--pid", &victim.to_string()]).status();
        assert!(limit.unwrap().success());
        let result = wait(parent);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(1), "{said}");
        let rows = Rows::read(&output);
        assert_eq!(rows.len(), 3, "{said}");
        let status: Vec<&str> = (0..3).map(|row| rows.cell(row, "status")).collect();
        assert_eq!(status, ["ok", "failed", "ok"], "{said}");
        let reason = rows.cell(1, "reason");
        assert!(reason.contains("cannot allocate a buffer: mmap(512 MiB"), "{reason}");
        assert_eq!(reason.starts_with("rank 1: "), poor == 1, "{reason}");
    }
}
