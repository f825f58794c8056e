//! Several hosts: namespaces of this machine, joined by links of known speed (`tests/hosts/lab`).

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::{Child, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use common::{
    Rows, SOON, eventually,
    lab::{Lab, lab},
    text,
};

/// How often a row is measured that is slower than its link: the machine may be busy elsewhere.
const TRIES: u32 = 3;

impl Lab {
    /// Starts `per_host` ranks of g2g on each host, by Open MPI.
    fn start(&self, per_host: usize, line: &str) -> Started<'_> {
        let agent = format!("{} agent", lab().get_program().display());
        let slots: Vec<String> =
            (0..self.hosts).map(|host| format!("{}:{per_host}", self.host(host))).collect();
        let mut command = lab();
        command.args(["head", &self.name, "mpirun.openmpi", "--mca", "plm_rsh_agent", &agent]);
        // What ranks say through MPI has a link of its own, as beside the fabric of a cluster.
        command.args("--mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1".split(' '));
        command.args("--mca btl tcp,vader,self --oversubscribe --bind-to none -H".split(' '));
        command.arg(slots.join(",")).arg(env!("CARGO_BIN_EXE_g2g")).args(line.split_whitespace());
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Started { lab: self, child: command.spawn().unwrap(), what: line.to_owned() }
    }

    /// Runs g2g to its good end, and reads its rows.
    fn rows(&self, per_host: usize, line: &str) -> Rows {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let line = format!("{line} --quiet --output {}", output.display());
        let (result, said) = self.start(per_host, &line).wait();
        assert_eq!(result.status.code(), Some(0), "{said}");
        Rows::read(&output)
    }
}

/// A run that is under way.
struct Started<'a> {
    lab: &'a Lab,
    child: Child,
    what: String,
}

impl Started<'_> {
    /// Waits for the end, which must come, and for that of every process.
    fn wait(self) -> (Output, String) {
        let Self { lab, child, what } = self;
        let (send, receive) = mpsc::channel();
        thread::spawn(move || send.send(child.wait_with_output().unwrap()));
        let output = receive.recv_timeout(SOON);
        let output = output.unwrap_or_else(|_| panic!("{what} does not end: {}", lab.processes()));
        let is_gone = eventually(SOON, || lab.processes().is_empty());
        assert!(is_gone, "{what} leaves {}", lab.processes());
        let said = format!("{what}: {}{}", text(&output.stdout), text(&output.stderr));
        (output, said)
    }
}

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

/// The bandwidth of TCP's data on a link, in MB/s: of 1514 bytes of a full frame, which is what the
/// link counts, 1448 are data.
fn payload_mb_s(line_mb_s: f64) -> f64 {
    line_mb_s * 1448.0 / 1514.0
}

/// How many processes have wanted a CPU in the last minute, on average.
fn load() -> f64 {
    let loads = fs::read_to_string("/proc/loadavg").unwrap();
    loads.split_whitespace().next().unwrap().parse().unwrap()
}

/// Whether others want so much of the CPUs that the ranks, which are two, may not fill a link.
fn is_busy() -> bool {
    load() > 0.5 + thread::available_parallelism().unwrap().get() as f64
}

/// Measures rows, up to three times until each was as fast once as `share` of what the link
/// carries, which it must be unless the machine is busy elsewhere. None may ever be faster, by more
/// than a few milliseconds that the first word of a stream is seen late.
fn assert_at_line_rate(lab: &Lab, line_mb_s: f64, line: &str, share: f64) {
    let payload = payload_mb_s(line_mb_s);
    let mut best = Vec::new();
    for _ in 0..TRIES {
        let rows = lab.rows(1, &format!("rdma --provider tcp --nic eth0 --pattern one-way {line}"));
        let found: Vec<f64> =
            (0..rows.len()).map(|row| 1e3 * rows.number(row, "bandwidth_gb_s")).collect();
        let most = f64::min(1.03 * payload, line_mb_s);
        assert!(found.iter().all(|&mb_s| mb_s <= most), "{line}: {found:?} MB/s");
        best.resize(found.len(), 0.0);
        best.iter_mut().zip(found).for_each(|(best, mb_s): (&mut f64, f64)| *best = best.max(mb_s));
        if best.iter().all(|&mb_s| mb_s >= share * payload) {
            return;
        }
    }
    let sentence = format!("{line}: {best:?} MB/s of {payload}, {} processes want a CPU\n", load());
    assert!(is_busy(), "{sentence}");
    io::stderr().write_all(format!("TOO BUSY {sentence}").as_bytes()).unwrap();
}

#[test]
fn a_link_is_filled_and_never_seems_faster_than_it_is() {
    for (rate, line_mb_s) in [("200mbit", 25.0), ("1gbit", 125.0)] {
        let Some(lab) = Lab::up(2, rate) else { return };
        for (operation, share) in [("write", 0.97), ("send", 0.97), ("read", 0.95)] {
            let long = format!("--operation {operation} --sizes 64K,1M --time-limit 300ms");
            assert_at_line_rate(&lab, line_mb_s, &long, share);
        }
        // Few transfers, which a CPU that is busy can keep from filling the link.
        let short = "--operation write,send,read --sizes 4K --samples 3 --time-limit 100ms";
        assert_at_line_rate(&lab, line_mb_s, short, 0.0);
    }
}

#[test]
fn transfers_that_last_as_long_as_a_run_are_at_line_rate_too() {
    let Some(lab) = Lab::up(2, "1gbit") else { return };
    let line = "--operation write,send,read --sizes 16M --time-limit 500ms";
    assert_at_line_rate(&lab, 125.0, line, 0.95);
}

/// How a host loses a link.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It knows: the link is down.
    Cut,
    /// It only hears nothing any more.
    Unplug,
}

/// Measures a short case and a long one, in the middle of which host 1 loses `links`, and ends
/// when all ranks have; how `mpirun` ended and what was said, if it ended by itself.
fn lose(
    lab: &Lab,
    operation: &str,
    loss: Loss,
    links: &[&str],
    output: &Path,
) -> Option<(Output, String)> {
    let line = format!(
        "rdma --provider tcp --nic eth0 --pattern one-way --operation {operation} --sizes 4K,16M \
         --time-limit 5s --precision 0.0001 --deadline 3s --output {}",
        output.display()
    );
    let mut started = lab.start(1, &line);
    let rows = || fs::read_to_string(output.join("run.csv")).unwrap_or_default().lines().count();
    assert!(eventually(SOON, || rows() > 1), "{line}: no row");
    // An operation takes 134 ms, and its row some seconds.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(rows(), 2, "{line}: too soon");
    for link in links {
        let word = if matches!(loss, Loss::Cut) { "cut" } else { "unplug" };
        let status = common::lab::lab().arg(word).args([&lab.host(1), *link]).status().unwrap();
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
    assert!(rows.cell(1, "reason").contains("waiting for rank 1"), "{}", rows.cell(1, "reason"));
}

#[test]
fn a_lost_link_ends_the_run_with_the_name_of_the_lost_rank() {
    for (operation, loss) in [("write", Loss::Unplug), ("read", Loss::Cut), ("send", Loss::Cut)] {
        let Some(lab) = Lab::up(2, "1gbit") else { return };
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let (result, said) = lose(&lab, operation, loss, &["eth0"], &output).unwrap();
        assert_eq!(result.status.code(), Some(1), "{operation} {loss:?}: {said}");
        // Each rank says whom it has lost.
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("error: ")).collect();
        for lost in ["waiting for rank 0", "waiting for rank 1"] {
            let is_said = errors.iter().any(|line| line.contains(lost));
            assert!(is_said, "{operation} {loss:?}: {lost}: {said}");
        }
        assert_kept(&output);
    }
}

#[test]
fn a_host_that_is_lost_altogether_leaves_no_rank_behind() {
    for loss in [Loss::Cut, Loss::Unplug] {
        let Some(lab) = Lab::up(2, "1gbit") else { return };
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        assert!(lose(&lab, "write", loss, &["eth0", "eth1"], &output).is_none());
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
