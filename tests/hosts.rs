//! Several hosts: namespaces of this machine, joined by links of known speed (`tests/hosts/lab`).

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    io::{self, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use common::{Rows, eventually, text};

/// A bound on what ends by itself within seconds, on a machine that is busy elsewhere.
const SOON: Duration = Duration::from_secs(100);

/// By this exit code `lab` says that it may not make namespaces.
const NO_RIGHT: i32 = 3;

/// Hosts, which are gone when this is.
struct Lab {
    name: String,
    hosts: usize,
}

impl Lab {
    /// Makes `hosts` whose links have `rate`; says why, past the test's captured output, where that
    /// is not allowed.
    fn up(hosts: usize, rate: &str) -> Option<Self> {
        let result = lab().arg("up").arg(hosts.to_string()).args(rate.split_whitespace()).output();
        let result = result.unwrap();
        let said = text(&result.stderr);
        if result.status.code() == Some(NO_RIGHT) {
            let test = thread::current().name().unwrap_or_default().to_owned();
            let sentence = format!("SKIPPED {test}: {}\n", said.trim());
            io::stderr().write_all(sentence.as_bytes()).unwrap();
            return None;
        }
        assert!(result.status.success(), "{said}");
        Some(Self { name: text(&result.stdout).trim().to_owned(), hosts })
    }

    fn host(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

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

    /// What runs on the hosts.
    fn processes(&self) -> String {
        let of_host = |host| {
            let result = lab().arg("processes").arg(self.host(host)).output().unwrap();
            assert!(result.status.success(), "{}", text(&result.stderr));
            text(&result.stdout)
        };
        (0..self.hosts).map(of_host).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let status = lab().arg("down").arg(&self.name).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays", self.name);
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

fn lab() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/lab"))
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
