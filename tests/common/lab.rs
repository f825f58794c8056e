//! Several hosts on this machine, made of namespaces by `tests/hosts/lab`.

use std::{
    io::{self, Write},
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use super::text;

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
}

impl Drop for Lab {
    fn drop(&mut self) {
        let status = lab().arg("down").arg(&self.name).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays", self.name);
    }
}

pub(crate) fn lab() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/lab"))
}
