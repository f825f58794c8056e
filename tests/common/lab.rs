//! Several hosts on this machine, made of namespaces by `tests/hosts/lab`.

use std::{
    io::{self, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

use super::{Rows, SOON, eventually, program, text};

/// One lab at a time: their ranks spin, and would take each other's CPUs.
static TURN: Mutex<()> = Mutex::new(());

/// By this exit code `lab` says that it may not make namespaces.
const NO_RIGHT: i32 = 3;

/// Hosts, which are gone when this is.
pub(crate) struct Lab {
    pub(crate) name: String,
    pub(crate) hosts: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Makes `hosts` whose links have `rate`, if any; says why, past the test's captured output,
    /// where that is not allowed.
    pub(crate) fn up(hosts: usize, rate: &str) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let result = lab().arg("up").arg(hosts.to_string()).args(rate.split_whitespace()).output();
        let result = result.unwrap();
        let said = text(&result.stderr);
        if result.status.code() == Some(NO_RIGHT) {
            let test = thread::current().name().unwrap_or_default().to_owned();
            let reason = format!("SKIPPED {test}: {}\n", said.trim());
            io::stderr().write_all(reason.as_bytes()).unwrap();
            return None;
        }
        assert!(result.status.success(), "{said}");
        Some(Self { name: text(&result.stdout).trim().to_owned(), hosts, _turn: turn })
    }

    pub(crate) fn host(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// What runs on the hosts.
    pub(crate) fn processes(&self) -> String {
        let of_host = |host| {
            let result = lab().arg("processes").arg(self.host(host)).output().unwrap();
            assert!(result.status.success(), "{}", text(&result.stderr));
            text(&result.stdout)
        };
        (0..self.hosts).map(of_host).collect()
    }

    /// A command beside the hosts, where a launcher belongs; its arguments are to follow.
    pub(crate) fn head(&self) -> Command {
        let mut command = lab();
        command.args(["head", &self.name]);
        command
    }

    /// A command on a host, which must end well.
    pub(crate) fn on(&self, number: usize, line: &str) {
        let result = lab().arg("on").arg(self.host(number)).args(["sh", "-c", line]).output();
        let result = result.unwrap();
        assert!(result.status.success(), "{line}: {}", text(&result.stderr));
    }

    /// Starts `per_host` ranks of g2g on each host, by Open MPI.
    pub(crate) fn start(&self, per_host: usize, line: &str) -> Started<'_> {
        let agent = format!("{} agent", lab().get_program().display());
        let slots: Vec<String> =
            (0..self.hosts).map(|host| format!("{}:{per_host}", self.host(host))).collect();
        let mut command = lab();
        command.args(["head", &self.name, "mpirun.openmpi", "--mca", "plm_rsh_agent", &agent]);
        // What ranks say through MPI has a link of its own, as beside the fabric of a cluster.
        command.args("--mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1".split(' '));
        command.args("--mca btl tcp,vader,self --oversubscribe --bind-to none -H".split(' '));
        command.arg(slots.join(",")).arg(program()).args(line.split_whitespace());
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Started { lab: self, child: command.spawn().unwrap(), what: line.to_owned() }
    }

    /// Starts a command on a host, by its variables and words.
    pub(crate) fn start_on(&self, number: usize, words: &[String]) -> Child {
        let mut command = lab();
        command.arg("on").arg(self.host(number)).arg("env").args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs g2g to its good end, and reads its rows.
    pub(crate) fn rows(&self, per_host: usize, line: &str) -> Rows {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let line = format!("{line} --quiet --no-report --output {}", output.display());
        let (result, said) = self.start(per_host, &line).wait();
        assert_eq!(result.status.code(), Some(0), "{said}");
        Rows::read(&output)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let status = lab().arg("down").arg(&self.name).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays", self.name);
    }
}

/// A run that is under way.
pub(crate) struct Started<'a> {
    lab: &'a Lab,
    pub(crate) child: Child,
    what: String,
}

impl Started<'_> {
    /// Waits for the end, which must come, and for that of every process.
    pub(crate) fn wait(self) -> (Output, String) {
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

pub(crate) fn lab() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/lab"))
}
