//! Several hosts: namespaces of this machine (`tests/hosts/lab`).

use std::{fs, path::Path, process::Output, thread, time::Duration};

use crate::common::{Rows, SOON, eventually, lab::Lab};

#[test]
fn every_pair_of_three_hosts_is_measured_and_named() {
    let Some(lab) = Lab::up(3, "") else { return };
    let line = "rdma --provider tcp --nic eth0 --sizes 64K --operation write,read,send --samples 5 --time-limit 50ms";
    let rows = lab.rows(1, line);
    let mut found: Vec<[&str; 5]> = (0..rows.len())
        .map(|row| {
            assert_eq!(rows.cell(row, "status"), "ok");
            ["operation", "source_host", "target_host", "source_domain", "target_domain"]
                .map(|name| rows.cell(row, name))
        })
        .collect();
    found.sort_unstable();
    let hosts: Vec<String> = (0..3).map(|host| lab.host(host)).collect();
    let mut expected = Vec::new();
    for operation in ["read", "send", "write"] {
        for source in &hosts {
            for target in hosts.iter().filter(|&target| target != source) {
                expected.push([operation, source.as_str(), target.as_str(), "eth0", "eth0"]);
            }
        }
    }
    assert_eq!(found, expected);
}

/// How a host loses a link.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It knows: the link is down.
    Cut,
    /// It only hears nothing any more.
    Unplug,
}

/// Measures a short case and a long one, in which host 1 loses `links` after `wait`, and ends when
/// all ranks have; how `mpirun` ended and what was said, if it ended by itself.
fn lose(
    lab: &Lab,
    operation: &str,
    (loss, wait): (Loss, Duration),
    links: &[&str],
    output: &Path,
) -> Option<(Output, String)> {
    let line = format!(
        "rdma --provider tcp --nic eth0 --pattern one-way --operation {operation} --sizes 4K,16M \
         --time-limit 5s --precision 0.0001 --deadline 8s --no-report --output {}",
        output.display()
    );
    let mut started = lab.start(1, &line);
    let rows = || fs::read_to_string(output.join("run.csv")).unwrap_or_default().lines().count();
    assert!(eventually(SOON, || rows() > 1), "{line}: no row");
    // An operation takes 134 ms, and its row some seconds.
    thread::sleep(wait);
    assert_eq!(rows(), 2, "{line}: too soon");
    for link in links {
        let word = if matches!(loss, Loss::Cut) { "cut" } else { "unplug" };
        let status =
            crate::common::lab::lab().arg(word).args([&lab.host(1), *link]).status().unwrap();
        assert!(status.success());
    }
    if links.contains(&"eth1") {
        // Open MPI's launcher waits for its daemon on the lost host; the ranks do not.
        let is_gone = eventually(SOON, || !lab.processes().contains("g2g rdma"));
        assert!(is_gone, "{line}: {}", lab.processes());
        started.child.kill().unwrap();
        started.child.wait().unwrap();
        return None;
    }
    Some(started.wait())
}

/// The row before the loss is there, and the one after names the lost rank.
fn assert_kept(output: &Path) {
    let rows = Rows::read(output);
    assert_eq!(rows.len(), 2, "{}", output.display());
    assert_eq!((rows.cell(0, "status"), rows.cell(1, "status")), ("ok", "failed"));
    let reason = rows.cell(1, "reason");
    // Unless rank 1 has seen it first, and told, or was lost while the case was prepared.
    let is_told = reason.contains("rank 1: ") && reason.contains("Network is unreachable");
    let is_lost =
        ["waiting for rank 1", "rank 1 did not answer"].iter().any(|w| reason.contains(w));
    assert!(is_told || is_lost, "{reason}");
}

#[test]
fn a_lost_link_ends_the_run_with_the_name_of_the_lost_rank() {
    for (operation, loss, wait_ms) in [
        ("write", Loss::Unplug, 500),
        ("read", Loss::Cut, 500),
        ("send", Loss::Cut, 500),
        // While the case is prepared.
        ("read", Loss::Cut, 20),
    ] {
        let Some(lab) = Lab::up(2, "1gbit") else { return };
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let when = (loss, Duration::from_millis(wait_ms));
        let (result, said) = lose(&lab, operation, when, &["eth0"], &output).unwrap();
        assert_eq!(result.status.code(), Some(1), "{operation} {when:?}: {said}");
        // A rank says whom it has lost, perhaps before the other can: the first ends both. Or rank 0
        // says what rank 1 has told.
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("error: ")).collect();
        let is_said = |words: &str| errors.iter().any(|line| line.contains(words));
        let is_named = is_said("waiting for rank 0") || is_said("waiting for rank 1");
        let is_told = is_said("rank 1: cannot move data between here and rank 0");
        assert!(is_named || is_told, "{operation} {when:?}: {said}");
        assert_kept(&output);
    }
}

#[test]
fn a_host_that_is_lost_altogether_leaves_no_rank_behind() {
    for loss in [Loss::Cut, Loss::Unplug] {
        let Some(lab) = Lab::up(2, "1gbit") else { return };
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let when = (loss, Duration::from_millis(500));
        assert!(lose(&lab, "write", when, &["eth0", "eth1"], &output).is_none());
        assert_kept(&output);
    }
}

#[test]
fn gpus_are_paired_within_each_of_two_hosts() {
    let Some(lab) = Lab::up(2, "") else { return };
    let line = "p2p --simulate p4d.24xlarge --pattern one-way --gpus 0,1 --issuer read --engine ce \
                --operation copy --sizes 1M --time-limit 50ms";
    let rows = lab.rows(2, line);
    let found: Vec<Vec<&str>> = (0..rows.len())
        .map(|row| {
            assert_eq!((rows.cell(row, "status"), rows.cell(row, "simulated")), ("ok", "true"));
            ["source_host", "source_rank", "source_gpu", "target_host", "target_rank", "target_gpu"]
                .map(|name| rows.cell(row, name))
                .to_vec()
        })
        .collect();
    let hosts = [lab.host(0), lab.host(1)];
    let [first, second] = hosts.each_ref().map(String::as_str);
    // Each pair at the same time on both hosts, and no pair of two hosts.
    let expected = [
        [first, "0", "0", first, "1", "1"],
        [second, "2", "0", second, "3", "1"],
        [first, "1", "1", first, "0", "0"],
        [second, "3", "1", second, "2", "0"],
    ];
    assert_eq!(found, expected);
}
