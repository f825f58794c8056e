//! Which machine, and which part of it, a rank is on.

use std::{fs, os::unix::fs::MetadataExt};

use serde::{Deserialize, Serialize};

use crate::ffi::simulation;

/// What ranks that can share memory have in common, and no others: they reach one `/dev/shm`, and
/// see each other's processes. The boot alone would not tell: containers of one machine share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Host {
    /// The host's name, as it calls itself.
    pub name: String,
    /// The kernel's random number of this boot.
    pub boot: String,
    /// The device number of `/dev/shm`, anew for each file system that is mounted.
    shm_device: Option<u64>,
    /// The number of the PID namespace.
    pid_namespace: Option<u64>,
}

/// The host of this process: a simulated one if it is one of several.
pub fn host() -> Host {
    let line = |file| fs::read_to_string(file).unwrap_or_default().trim_end().to_owned();
    let simulated = simulation::host().filter(|(_, hosts)| *hosts > 1);
    Host {
        name: simulated.map_or_else(|| line("/proc/sys/kernel/hostname"), |(name, _)| name),
        boot: line("/proc/sys/kernel/random/boot_id"),
        shm_device: fs::metadata("/dev/shm").ok().map(|shm| shm.dev()),
        pid_namespace: fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_on_the_host_of_another_unless_it_has_its_own_dev_shm_or_processes() {
        let own = host();
        assert!(!own.name.is_empty() && own.boot.len() == 36, "{own:?}");
        assert_eq!(own, host());
        let seen = |words: &str| {
            let text = "stat -L -c %d /dev/shm; stat -L -c %i /proc/self/ns/pid";
            let mut words = words.split_whitespace();
            let output = Command::new(words.next().unwrap()).args(words).arg(text).output();
            let output = String::from_utf8(output.unwrap().stdout).unwrap();
            let numbers: Vec<u64> = output.lines().map(|line| line.parse().unwrap()).collect();
            Host { shm_device: Some(numbers[0]), pid_namespace: Some(numbers[1]), ..host() }
        };
        assert_eq!(own, seen("sh -c"));
        assert_ne!(own, seen("unshare -Ur --pid --fork --mount-proc sh -c"));
    }
}
