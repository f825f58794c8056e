//! Several hosts on this machine, made of namespaces by `tests/hosts/lab`.

use std::{
    io::{self, Write},
    path::Path,
    process::Command,
    thread,
};

use super::text;

/// By this exit code `lab` says that it may not make namespaces.
const NO_RIGHT: i32 = 3;

/// Hosts, which are gone when this is.
pub(crate) struct Lab {
    pub(crate) name: String,
}

impl Lab {
    /// Makes `hosts`; says why, past the test's captured output, where that is not allowed.
    pub(crate) fn up(hosts: usize) -> Option<Self> {
        let result = lab().arg("up").arg(hosts.to_string()).output().unwrap();
        let said = text(&result.stderr);
        if result.status.code() == Some(NO_RIGHT) {
            let test = thread::current().name().unwrap_or_default().to_owned();
            let reason = format!("SKIPPED {test}: {}\n", said.trim());
            io::stderr().write_all(reason.as_bytes()).unwrap();
            return None;
        }
        assert!(result.status.success(), "{said}");
        Some(Self { name: text(&result.stdout).trim().to_owned() })
    }

    pub(crate) fn host(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
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
