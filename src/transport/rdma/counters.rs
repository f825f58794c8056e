//! The hardware counters of RDMA devices: they show whether the device itself moved the data.

use std::{
    path::{Path, PathBuf},
    thread,
};

use super::verb::Verb;
use crate::{
    machine::{counters::COUNTERS_CACHED, system::System},
    plan::NicName,
    units::Bytes,
};

/// Where the kernel lists its RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The counters of one rank's devices, with their values before the case.
#[derive(Debug)]
pub(super) struct Counters {
    files: Vec<PathBuf>,
    before: u64,
}

impl Counters {
    /// The counters of bytes that the devices of `nics` move by `verb`; `None` if a device has
    /// none.
    pub(super) fn of(nics: &[NicName], verb: Verb) -> Option<Self> {
        Self::below(Path::new(DEVICES), nics, verb)
    }

    /// The names are those of EFA's driver, which counts the RDMA operations that the device itself
    /// initiates (Linux, `drivers/infiniband/hw/efa/efa_verbs.c`).
    fn below(devices: &Path, nics: &[NicName], verb: Verb) -> Option<Self> {
        let name = match verb {
            Verb::Write => "rdma_write_bytes",
            Verb::Read => "rdma_read_bytes",
            Verb::Send | Verb::PingPong => return None,
        };
        let file = |nic: &NicName| {
            let device = devices.join(nic.device.as_ref()?);
            Some(device.join("ports/1/hw_counters").join(name))
        };
        let files = nics.iter().map(file).collect::<Option<Vec<_>>>()?;
        let before = total(&files)?;
        Some(Self { files, before })
    }

    /// Whether the devices did not move the `moved` bytes by RDMA: they have counted less than half
    /// of them. A higher count proves nothing for this rank, because others may use the device too.
    pub(super) fn deny(&self, moved: Bytes) -> Option<bool> {
        self.deny_after(moved, || thread::sleep(COUNTERS_CACHED))
    }

    /// The same where `rest` passes the time after which the kernel shows newer counts.
    fn deny_after(&self, moved: Bytes, rest: impl FnOnce()) -> Option<bool> {
        if moved == Bytes::default() {
            return None;
        }
        let denies = || Some(total(&self.files)?.saturating_sub(self.before) < moved.get() / 2);
        if denies()? {
            rest();
        }
        denies()
    }
}

fn total(files: &[PathBuf]) -> Option<u64> {
    let value = |file: &PathBuf| System::here().value::<u64>(file).ok();
    files.iter().map(value).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn nic(device: Option<&str>) -> NicName {
        NicName {
            domain: "rdmap0s6-rdm".to_owned(),
            fabric: "efa".to_owned(),
            device: device.map(str::to_owned),
        }
    }

    fn count(devices: &Path, device: &str, value: u64) {
        let folder = devices.join(device).join("ports/1/hw_counters");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("rdma_write_bytes"), format!("{value}\n")).unwrap();
    }

    #[test]
    fn what_the_devices_have_not_counted_was_made_of_messages() {
        let devices = tempfile::tempdir().unwrap();
        let devices = devices.path();
        count(devices, "a", 1_000_000);
        count(devices, "b", 5);
        let both = [nic(Some("a")), nic(Some("b"))];
        let counters = Counters::below(devices, &both, Verb::Write).unwrap();
        let moved = Bytes::new(1000);
        assert_eq!(counters.deny(Bytes::default()), None);
        assert_eq!(counters.deny(moved), Some(true));
        count(devices, "a", 1_000_400);
        assert_eq!(counters.deny(moved), Some(true));
        count(devices, "b", 605);
        assert_eq!(counters.deny(moved), Some(false));
        // What the device has done is shown late.
        let late = || count(devices, "a", 1_005_000);
        assert_eq!(counters.deny_after(Bytes::new(8000), late), Some(false));
        // What is counted of reads is not there, and messages are no RDMA.
        assert!(Counters::below(devices, &both, Verb::Read).is_none());
        assert!(Counters::below(devices, &both, Verb::Send).is_none());
        for other in [nic(None), nic(Some("c"))] {
            assert!(Counters::below(devices, &[other], Verb::Write).is_none());
        }
    }
}
