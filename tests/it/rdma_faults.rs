//! Ranks that die or stop in the middle of RDMA: who is named, what is kept, and that nobody stays.
//!
//! Over tcp: libfabric's shared memory has locks that a process may hold when it is killed, and
//! then the others wait inside the library.

use std::{
    fs,
    path::Path,
    process::Output,
    time::{Duration, Instant},
};

use super::rdma_corrupt::library;
use crate::common::{
    Rows, Running, SOON, children, eventually, g2g, group_members, mpi::every_launcher, signal,
    start, text, wait,
};

/// Within each host one row for each pair of ranks: 0 and 1, 0 and 2, 1 and 2.
fn line(output: &Path) -> String {
    format!(
        "rdma --provider tcp --memory host --operation write --pattern one-way --sizes 64K \
         --time-limit 1s --precision 0.0001 --deadline 40s --no-report --output {}",
        output.display()
    )
}

/// The process of rank 2, once the row of ranks 0 and 1 is there.
fn rank_2(parent: &Running, output: &Path) -> u32 {
    let rows = || fs::read_to_string(output.join("run.csv")).unwrap_or_default().lines().count();
    assert!(eventually(SOON, || rows() > 1), "no row");
    // Now they measure the next one.
    std::thread::sleep(Duration::from_millis(300));
    children(parent)[1]
}

/// The end, which must come; then nobody is left.
fn end(parent: Running) -> (Output, String) {
    let group = parent.id();
    let result = wait(parent);
    let is_empty = eventually(SOON, || group_members(group).is_empty());
    assert!(is_empty, "processes stay: {:?}", group_members(group));
    let said = format!("{}{}", text(&result.stdout), text(&result.stderr));
    (result, said)
}

/// Whether an error names rank 2: its connection has ended, or the deadline is over.
fn is_named(said: &str) -> bool {
    said.lines().any(|line| line.starts_with("error: ") && line.contains("rank 2"))
}

fn assert_kept(result: &Output, output: &Path, said: &str) {
    assert_eq!(result.status.code(), Some(1), "{said}");
    let rows = Rows::read(output);
    assert_eq!(rows.cell(0, "status"), "ok", "{said}");
    assert_eq!(rows.cell(rows.len() - 1, "status"), "failed", "{said}");
    assert_eq!(rows.cell(rows.len() - 1, "bandwidth_gb_s"), "", "{said}");
}

#[test]
fn a_rank_that_is_killed_or_stops_is_named_and_the_rows_before_are_kept() {
    for name in ["KILL", "STOP"] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let parent = start(&format!("{} --ranks 3", line(&output)));
        let victim = rank_2(&parent, &output);
        signal(name, victim);
        let began = Instant::now();
        let (result, said) = end(parent);
        assert!(began.elapsed() < SOON / 2, "{name}");
        assert!(is_named(&said), "{name}: {said}");
        assert_kept(&result, &output, &said);
    }
}

#[test]
fn every_launchers_ranks_end_when_one_is_killed_or_stops() {
    for mpi in every_launcher() {
        for name in ["KILL", "STOP"] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi.g2g(3, &line(&output)).signal_after_a_row(&output, name, 2);
            let (result, said) = started.wait();
            assert_ne!(result.status.code(), Some(0), "{said}");
            assert_eq!(Rows::read(&output).cell(0, "status"), "ok", "{said}");
            if name == "STOP" {
                assert!(is_named(&said), "{said}");
                assert_kept(&result, &output, &said);
            }
        }
    }
}

#[test]
fn a_rank_that_stops_on_its_way_to_a_barrier_or_before_it_confirms_the_last_data_is_named() {
    for fault in ["halt", "halt-last"] {
        let folder = tempfile::tempdir().unwrap();
        let (output, halt) = (folder.path().join("run"), folder.path().join("halt"));
        let line = line(&output).replace("one-way", "neighbours").replace("limit 1s", "limit 60s");
        let line = format!("{line} --ranks 3 --fabric-lib {}", library(folder.path()).display());
        let mut command = g2g();
        command.args(line.split_whitespace()).env("FAULT", fault).env("WHEN", "bulk");
        command.env("HALT", &halt);
        let parent = Running::start(&mut command);
        assert!(eventually(SOON, || children(&parent).len() == 2), "not all ranks started");
        fs::write(&halt, children(&parent)[1].to_string()).unwrap();
        let (result, said) = end(parent);
        assert_eq!(result.status.code(), Some(1), "{said}");
        let is_other_named = ["for rank 0 ", "for rank 1 "].iter().any(|rank| said.contains(rank));
        assert!(is_named(&said) && !is_other_named, "{fault}: {said}");
    }
}

#[test]
fn a_rank_that_stops_is_not_hidden_by_flows_that_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = line(&output).replace("one-way", "neighbours").replace("limit 1s", "limit 60s");
    let parent = start(&format!("{line} --ranks 3"));
    assert!(eventually(SOON, || children(&parent).len() == 2), "not all ranks started");
    std::thread::sleep(Duration::from_secs(2));
    signal("STOP", children(&parent)[1]);
    let (result, said) = end(parent);
    assert_eq!(result.status.code(), Some(1), "{said}");
    assert!(is_named(&said), "{said}");
}
