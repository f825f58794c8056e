//! The host and this process on it, as the kernel reports them: identity, limits, and settings.
//!
//! Judges nothing. The formats of the files are in the kernel's documentation: `proc(5)`,
//! `cgroups(7)`, `Documentation/filesystems/{proc,tmpfs}.rst`,
//! `Documentation/admin-guide/cgroup-v2.rst`, and `Documentation/ABI` for `/sys`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    system::{System, Unread, malformed},
    tally,
};
use crate::units::Bytes;

/// A value from a file, or why it could not be read.
pub type Fact<T> = Result<T, Unread>;

/// Capabilities of `linux/capability.h`, as bits of the sets in `/proc/self/status`.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

/// Namespaces that decide whether two processes can share memory and sockets.
const NET_NAMESPACE: &str = "/proc/self/ns/net";
const PID_NAMESPACE: &str = "/proc/self/ns/pid";

/// The capabilities of this process, and the filter of its system calls.
const STATUS: &str = "/proc/self/status";

/// The filter mode of `Seccomp:` in `/proc/self/status`.
const SECCOMP_FILTER: &str = "2";

/// Version 1 of control groups writes a number near this where there is no limit: the largest
/// signed one, in whole pages of any size that Linux has.
const NO_LIMIT: u64 = 1 << 62;

/// A host, and this process on it.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its identity for other processes.
    pub identity: Identity,
    /// Its product's name: on EC2 the instance type.
    pub product: Fact<String>,
    /// The kernel's release, such as `6.8.0-1021-aws`.
    pub kernel: Fact<String>,
    /// All memory.
    pub memory: Fact<Bytes>,
    /// The most memory that the control group may have; `None`: no limit.
    pub memory_limit: Fact<Option<Bytes>>,
    /// The CPU time that the control group may have, in CPUs; `None`: no limit.
    pub cpu_limit: Fact<Option<f64>>,
    /// The memory that this process may lock; `None`: no limit.
    pub locked_memory: Fact<Option<Bytes>>,
    /// What is mounted at `/dev/shm`.
    pub shared_memory: Fact<SharedMemory>,
    /// Whether system calls are filtered and this process lacks `CAP_SYS_NICE`, which Docker's
    /// filter requires for memory policies.
    pub is_filtered: Fact<bool>,
    /// Whether this process may lock more memory than that: the capability counts in the first user
    /// namespace only (`ib_umem_get` of the kernel's `drivers/infiniband/core/umem.c`).
    pub may_lock: bool,
    /// The sign of a container that this process is in.
    pub container: Option<String>,
    /// The IOMMUs that are on.
    pub iommus: Vec<String>,
    /// The domain type of each device behind an IOMMU, by PCI address: `DMA`,
    /// `DMA-FQ`, `identity`, …
    pub iommu_types: BTreeMap<String, Fact<String>>,
    /// The frequency governors, with the number of CPUs of each; empty if the kernel has none.
    pub governors: BTreeMap<String, usize>,
    /// The names of all processes that this one sees; the kernel cuts them to 15 letters.
    pub processes: Fact<BTreeSet<String>>,
    /// Whether this process sees only its own PID namespace, which is not the first one.
    pub sees_own_processes_only: bool,
    /// The modules of the kernel that are loaded, or built in with parameters.
    pub modules: Fact<BTreeSet<String>>,
    /// Names in `/dev/infiniband`.
    pub infiniband_files: Vec<String>,
    /// IMEX channels that this process sees, by number.
    pub imex_channels: BTreeSet<u32>,
    /// The GPUs that NVIDIA's kernel driver has, by PCI address.
    pub driver_gpus: Fact<Vec<String>>,
    /// The version of NVIDIA's kernel driver.
    pub driver_version: Fact<String>,
    /// The Xid errors in the kernel's log: the GPU's PCI address as the driver writes it, and the
    /// number.
    pub xids: Fact<Vec<(String, u64)>>,
}

/// The identity of a host for processes that look for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name, as it calls itself.
    pub hostname: Option<String>,
    /// The random identifier of this boot.
    pub boot_id: Option<String>,
    /// The device number of what is mounted at `/dev/shm`.
    pub shm_device: Option<String>,
    /// The network namespace.
    pub net_namespace: Option<String>,
    /// The PID namespace.
    pub pid_namespace: Option<String>,
}

/// What is mounted at `/dev/shm`, or holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Major and minor number of its device.
    pub device: String,
    /// The kind of file system.
    pub kind: String,
    /// The most that it holds; `None`: no limit, or it is no tmpfs.
    pub size: Option<Bytes>,
}

impl Host {
    /// Reads the host of `system`.
    pub fn read(system: &System) -> Self {
        let memory = meminfo(system, "MemTotal");
        let shared_memory = shared_memory(system, memory.as_ref().ok().copied());
        let line = |path: &str| system.text(path);
        Self {
            identity: Identity {
                hostname: line("/proc/sys/kernel/hostname").ok(),
                boot_id: line("/proc/sys/kernel/random/boot_id").ok(),
                shm_device: shared_memory.as_ref().ok().map(|shm| shm.device.clone()),
                net_namespace: system.link(NET_NAMESPACE).ok(),
                pid_namespace: system.link(PID_NAMESPACE).ok(),
            },
            product: line("/sys/devices/virtual/dmi/id/product_name"),
            kernel: line("/proc/sys/kernel/osrelease"),
            memory,
            memory_limit: memory_limit(system),
            cpu_limit: cpu_limit(system),
            locked_memory: locked_memory(system),
            shared_memory,
            is_filtered: is_filtered(system),
            may_lock: may_lock(system),
            container: container(system),
            iommus: system.names("/sys/class/iommu").unwrap_or_default(),
            iommu_types: iommu_types(system),
            governors: governors(system),
            processes: processes(system),
            sees_own_processes_only: sees_own_processes_only(system),
            modules: system.names("/sys/module").map(|names| names.into_iter().collect()),
            infiniband_files: system.names("/dev/infiniband").unwrap_or_default(),
            imex_channels: imex_channels(system),
            driver_gpus: system.names("/proc/driver/nvidia/gpus"),
            driver_version: driver_version(system),
            xids: system.kernel_log().map(|log| log.iter().filter_map(|line| xid(line)).collect()),
        }
    }

    /// The first two numbers of the kernel's release.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let release = self.kernel.as_ref().ok()?;
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// A line of `/proc/meminfo`.
pub(super) fn meminfo(system: &System, name: &str) -> Fact<Bytes> {
    const FILE: &str = "/proc/meminfo";
    let text = system.text(FILE)?;
    let value = field(&text, &format!("{name}:"));
    let value = value.and_then(|value| value.split_whitespace().next()).and_then(kib);
    value.ok_or_else(|| malformed(FILE, &format!("does not tell {name}")))
}

/// What a control group (version 2) with a limit has left; cached files count as free.
pub(super) fn memory_left(system: &System) -> Option<Bytes> {
    const GROUP: &str = "/sys/fs/cgroup";
    let number = |file: &str| system.value::<u64>(format!("{GROUP}/{file}")).ok();
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    let statistics = system.text(format!("{GROUP}/memory.stat")).unwrap_or_default();
    let cached = field(&statistics, "inactive_file ").and_then(|cached| cached.parse().ok());
    let left = most.saturating_sub(used).saturating_add(cached.unwrap_or(0));
    Some(Bytes::new(left.min(most)))
}

/// What stands behind `name` at the beginning of a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn locked_memory(system: &System) -> Fact<Option<Bytes>> {
    const FILE: &str = "/proc/self/limits";
    let text = system.text(FILE)?;
    let limits = field(&text, "Max locked memory");
    let soft = limits.and_then(|limits| limits.split_whitespace().next());
    let soft = soft.ok_or_else(|| malformed(FILE, "does not tell the limit of locked memory"))?;
    if soft == "unlimited" {
        return Ok(None);
    }
    let bytes = soft.parse().map_err(|_| malformed(FILE, "has no number for locked memory"))?;
    Ok(Some(Bytes::new(bytes)))
}

/// The fields of a line of `/proc/self/mountinfo` that are needed.
struct Mount<'a> {
    device: &'a str,
    place: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Number, parent, device, root, mount point, options and optional fields, a dash, then the
    /// type, the source and the file system's own options.
    fn of(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let (device, place) = (mount.next()?, mount.nth(1)?);
        let mut system = system.split(' ');
        let kind = system.next()?;
        Some(Self { device, place, kind, options: system.nth(1).unwrap_or_default() })
    }
}

fn shared_memory(system: &System, memory: Option<Bytes>) -> Fact<SharedMemory> {
    const FILE: &str = "/proc/self/mountinfo";
    let place = Path::new("/dev/shm");
    let text = system.text(FILE)?;
    // The last of several mounts at one place is visible.
    let holds = |mount: &Mount<'_>| place.starts_with(mount.place);
    let mounts = text.lines().filter_map(Mount::of).filter(holds);
    let mount = mounts.max_by_key(|mount| mount.place.len());
    let mount = mount.ok_or_else(|| malformed(FILE, "does not tell what holds /dev/shm"))?;
    let size = mount.options.split(',').find_map(|option| option.strip_prefix("size="));
    let size = match (mount.kind, size) {
        // The kernel omits its default: half of all memory.
        ("tmpfs", None) => memory.map(|memory| Bytes::new(memory.get() / 2)),
        ("tmpfs", Some(size)) => Some(
            size.strip_suffix('k')
                .and_then(kib)
                .ok_or_else(|| malformed(FILE, "has a size of /dev/shm that is no number"))?,
        )
        .filter(|size| size.get() > 0),
        _ => None,
    };
    Ok(SharedMemory { device: mount.device.to_owned(), kind: mount.kind.to_owned(), size })
}

/// A size that the kernel gives in KiB.
fn kib(text: &str) -> Option<Bytes> {
    let kib: u64 = text.parse().ok()?;
    (kib < NO_LIMIT >> 10).then(|| Bytes::kib(kib))
}

/// The folders of this process's control group and its ancestors, for one controller of version 1,
/// or for version 2.
fn groups(system: &System, controller: &str) -> Fact<Vec<PathBuf>> {
    let text = system.text("/proc/self/cgroup")?;
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => PathBuf::from("/sys/fs/cgroup"),
            several if several.split(',').any(|one| one == controller) => {
                Path::new("/sys/fs/cgroup").join(controller)
            }
            _ => continue,
        };
        let inner = mount.join(path.trim_start_matches('/'));
        let up = inner.ancestors().take_while(|folder| folder.starts_with(&mount));
        folders.extend(up.map(Path::to_owned));
    }
    Ok(folders)
}

/// The least limit of the groups. `files` has the files that are read together for each version; a
/// file that does not exist sets no limit.
fn least<T: PartialOrd>(
    system: &System,
    controller: &str,
    files: &[&[&str]],
    read: impl Fn(&str) -> Option<Option<T>>,
) -> Fact<Option<T>> {
    let mut least: Option<T> = None;
    for folder in groups(system, controller)? {
        for together in files {
            let texts: Fact<Vec<String>> =
                together.iter().map(|file| system.text(folder.join(file))).collect();
            let text = match texts {
                Ok(texts) => texts.join(" "),
                Err(Unread::Absent(_)) => continue,
                Err(unread) => return Err(unread),
            };
            let path = folder.join(together[0]);
            let limit = read(&text).ok_or_else(|| malformed(&path, "holds no limit"))?;
            if let Some(limit) = limit.filter(|limit| least.as_ref().is_none_or(|l| limit < l)) {
                least = Some(limit);
            }
        }
    }
    Ok(least)
}

fn memory_limit(system: &System) -> Fact<Option<Bytes>> {
    let files: [&[&str]; 2] = [&["memory.max"], &["memory.limit_in_bytes"]];
    least(system, "memory", &files, |text| match text {
        "max" => Some(None),
        number => {
            let bytes: u64 = number.parse().ok()?;
            Some((bytes < NO_LIMIT).then(|| Bytes::new(bytes)))
        }
    })
}

/// `cpu.max` holds quota and period in microseconds; version 1 has a file for each, with -1 for no
/// limit.
fn cpu_limit(system: &System) -> Fact<Option<f64>> {
    let files: [&[&str]; 2] = [&["cpu.max"], &["cpu.cfs_quota_us", "cpu.cfs_period_us"]];
    least(system, "cpu", &files, |text| {
        let (time, period) = text.split_once(' ')?;
        if ["max", "-1"].contains(&time) {
            return Some(None);
        }
        let (time, period): (f64, f64) = (time.parse().ok()?, period.trim().parse().ok()?);
        (time > 0.0 && period > 0.0).then_some(Some(time / period))
    })
}

fn is_filtered(system: &System) -> Fact<bool> {
    let text = system.text(STATUS)?;
    let Some(seccomp) = field(&text, "Seccomp:") else { return Ok(false) };
    let rights = rights(&text);
    let rights = rights.ok_or_else(|| malformed(STATUS, "does not tell this process's rights"))?;
    Ok(seccomp == SECCOMP_FILTER && rights >> CAP_SYS_NICE & 1 == 0)
}

/// The first user namespace has a fixed number (`PROC_USER_INIT_INO` of the kernel's
/// `include/linux/proc_ns.h`).
fn may_lock(system: &System) -> bool {
    const FIRST: &str = "user:[4026531837]";
    system.link("/proc/self/ns/user").is_ok_and(|namespace| namespace == FIRST)
        && rights(&system.text(STATUS).unwrap_or_default())
            .is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// The effective capabilities.
fn rights(status: &str) -> Option<u64> {
    field(status, "CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok())
}

/// The marks that container engines leave.
fn container(system: &System) -> Option<String> {
    const MARKS: [&str; 3] =
        ["/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io/serviceaccount"];
    const ENGINES: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let mark = MARKS.into_iter().find(|mark| system.has(mark)).map(str::to_owned);
    let groups = system.text("/proc/self/cgroup").unwrap_or_default();
    let of_engine = || ENGINES.into_iter().any(|engine| groups.contains(engine));
    mark.or_else(|| of_engine().then(|| "/proc/self/cgroup".to_owned()))
}

fn iommu_types(system: &System) -> BTreeMap<String, Fact<String>> {
    let read = |address: String| {
        let group = Path::new("/sys/bus/pci/devices").join(&address).join("iommu_group");
        system.has(&group).then(|| (address, system.text(group.join("type"))))
    };
    let devices = system.names("/sys/bus/pci/devices").unwrap_or_default();
    devices.into_iter().filter_map(read).collect()
}

fn governors(system: &System) -> BTreeMap<String, usize> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let cpus = system.names(CPUS).unwrap_or_default().into_iter();
    let file = |cpu| Path::new(CPUS).join(cpu).join("cpufreq/scaling_governor");
    tally(cpus.filter_map(|cpu: String| system.text(file(cpu)).ok()))
}

fn processes(system: &System) -> Fact<BTreeSet<String>> {
    let is_number = |name: &String| name.bytes().all(|letter| letter.is_ascii_digit());
    let names = system.names("/proc")?;
    let name = |pid: String| system.text(format!("/proc/{pid}/comm")).ok();
    Ok(names.into_iter().filter(is_number).filter_map(name).collect())
}

/// The first PID namespace has a fixed number (`PROC_PID_INIT_INO` of the kernel's
/// `include/linux/proc_ns.h`).
fn sees_own_processes_only(system: &System) -> bool {
    const FIRST: &str = "pid:[4026531836]";
    system.link(PID_NAMESPACE).is_ok_and(|namespace| namespace != FIRST)
}

pub(super) fn imex_channels(system: &System) -> BTreeSet<u32> {
    let names = system.names("/dev/nvidia-caps-imex-channels").unwrap_or_default();
    names.iter().filter_map(|name| name.strip_prefix("channel")?.parse().ok()).collect()
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  …`, or the open module's line.
fn driver_version(system: &System) -> Fact<String> {
    const FILE: &str = "/proc/driver/nvidia/version";
    let text = system.text(FILE)?;
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        let is_number = |part: &&str| part.bytes().all(|letter| letter.is_ascii_digit());
        parts.len() >= 2 && parts.iter().all(|part| !part.is_empty() && is_number(part))
    };
    let line = text.lines().find_map(|line| line.strip_prefix("NVRM version:"));
    let version = line.and_then(|line| line.split_whitespace().find(is_version));
    version.map(str::to_owned).ok_or_else(|| malformed(FILE, "does not tell the driver's version"))
}

/// `NVRM: Xid (PCI:0000:07:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`
fn xid(line: &str) -> Option<(String, u64)> {
    let (address, rest) = line.split_once("NVRM: Xid (PCI:")?.1.split_once("): ")?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    Some((address.to_lowercase(), digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system of files with these texts.
    fn system(files: &[(&str, &str)]) -> System {
        let entry =
            |(path, text): &(&str, &str)| ((*path).to_owned(), serde_json::json!({ "text": text }));
        let files: serde_json::Map<String, serde_json::Value> = files.iter().map(entry).collect();
        System::described(&serde_json::Value::from(files).to_string()).unwrap()
    }

    #[test]
    fn a_containers_limits_are_the_least_of_its_group_and_of_those_around_it() {
        let inner = [
            ("/proc/self/cgroup", "0::/kubepods/pod1\n"),
            ("/sys/fs/cgroup/kubepods/pod1/memory.max", "max\n"),
            ("/sys/fs/cgroup/kubepods/memory.max", "4294967296\n"),
            ("/sys/fs/cgroup/kubepods/pod1/cpu.max", "150000 100000\n"),
        ];
        let host = Host::read(&system(&inner));
        assert_eq!(host.memory_limit, Ok(Some(Bytes::mib(4096))));
        assert_eq!(host.cpu_limit, Ok(Some(1.5)));
        assert_eq!(host.container.as_deref(), Some("/proc/self/cgroup"));
        let older = [
            ("/proc/self/cgroup", "4:cpu,cpuacct:/docker/a\n5:memory:/docker/a\n"),
            ("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "1048576\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "400000\n"),
            ("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        let host = Host::read(&system(&older));
        assert_eq!((host.memory_limit, host.cpu_limit), (Ok(Some(Bytes::mib(1))), Ok(Some(4.0))));
        assert!(Host::read(&system(&[])).cpu_limit.is_err(), "nobody has told");
        let odd = [("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "lots\n")];
        let told = Host::read(&system(&odd)).memory_limit.unwrap_err().to_string();
        assert_eq!(told, "/sys/fs/cgroup/memory.max holds no limit");
    }

    #[test]
    fn the_mount_that_holds_dev_shm_is_the_innermost_and_the_last() {
        let memory = ("/proc/meminfo", "MemTotal:       2048 kB\n");
        let of = |mounts: &str| {
            Host::read(&system(&[memory, ("/proc/self/mountinfo", mounts)])).shared_memory
        };
        let outer = "1 0 8:1 / / rw - ext4 /dev/root rw\n2 1 0:5 / /dev rw - devtmpfs dev rw\n";
        let first = "3 2 0:25 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,inode64\n";
        let second = "4 2 0:99 / /dev/shm rw - tmpfs shm rw,size=65536k\n";
        let shm = of(&format!("{outer}{first}")).unwrap();
        assert_eq!((shm.device.as_str(), shm.size), ("0:25", Some(Bytes::mib(1))));
        let shm = of(&format!("{outer}{first}{second}")).unwrap();
        assert_eq!((shm.device.as_str(), shm.size), ("0:99", Some(Bytes::mib(64))));
        let shm = of(outer).unwrap();
        assert_eq!((shm.kind.as_str(), shm.size), ("devtmpfs", None));
        assert!(of("nonsense\n").is_err() && of("").is_err());
        assert!(of("4 2 0:99 / /dev/shm rw - tmpfs shm rw,size=99999999999999999999k\n").is_err());
    }

    #[test]
    fn limits_rights_and_versions_are_read() {
        let limits = "Limit      Soft Limit   Hard Limit  Units\n\
                      Max locked memory         65536                unlimited            bytes\n";
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release \
                       Build  (dvs-builder@U16)\nGCC version:  gcc version 12.3.0\n";
        let host = Host::read(&system(&[
            ("/proc/self/limits", limits),
            ("/proc/self/status", "Name:\tg2g\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n"),
            ("/proc/driver/nvidia/version", version),
            ("/proc/sys/kernel/osrelease", "5.10.237-230.949.amzn2.x86_64\n"),
            ("/proc/7/comm", "nv-fabricmanage\n"),
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("/dev/nvidia-caps-imex-channels/channel0", ""),
        ]));
        assert_eq!(host.locked_memory, Ok(Some(Bytes::kib(64))));
        assert_eq!(host.is_filtered, Ok(true));
        assert_eq!(host.driver_version.as_deref(), Ok("570.86.15"));
        assert_eq!(host.kernel_version(), Some((5, 10)));
        assert!(host.processes.unwrap().contains("nv-fabricmanage"));
        assert_eq!(host.governors, BTreeMap::from([("powersave".to_owned(), 1)]));
        assert_eq!(host.imex_channels, BTreeSet::from([0]));
        assert!(!host.sees_own_processes_only && host.container.is_none());
    }

    #[test]
    fn errors_of_gpus_are_found_in_the_kernels_log() {
        let log = "6,1,99,-;eth0: link up\n4,2,100,-;NVRM: Xid (PCI:0000:0C:00): 79, pid=7\n\
                   4,3,101,-;NVRM: Xid (PCI:0000:0c:00): what\nnonsense\n";
        let host = Host::read(&system(&[("/dev/kmsg", log)]));
        assert_eq!(host.xids, Ok(vec![("0000:0c:00".to_owned(), 79)]));
        assert!(Host::read(&system(&[])).xids.is_err());
    }

    #[test]
    fn this_machine_is_read_too() {
        // The log may be for root alone; reading it comes to an end.
        let log = System::here().kernel_log();
        assert!(log.as_ref().map_or_else(|err| !err.to_string().is_empty(), |log| !log.is_empty()));
        let host = Host::read(System::here());
        assert!(host.identity.boot_id.is_some() && host.identity.shm_device.is_some());
        assert!(host.identity.net_namespace.is_some() && host.identity.pid_namespace.is_some());
        assert!(host.locked_memory.is_ok() && host.shared_memory.is_ok());
        assert!(host.kernel_version().is_some() && host.memory.is_ok());
        assert!(host.memory_limit.is_ok() && host.is_filtered.is_ok());
    }
}
