//! What the kernel tells a process of itself: `/proc/self`, as proc(5) has it.

use super::tree::Tree;
use crate::machine::{Machine, host::list};

/// The namespaces that the kernel begins with, and their numbers: `PROC_IPC_INIT_INO` and its
/// like in Linux' `include/linux/proc_ns.h`; those of mounts and networks follow.
const NAMESPACES: [(&str, u32); 7] = [
    ("cgroup", 0xeffffffb),
    ("ipc", 0xefffffff),
    ("mnt", 0xf0000001),
    ("net", 0xf0000000),
    ("pid", 0xeffffffc),
    ("user", 0xeffffffd),
    ("uts", 0xeffffffe),
];

/// The cgroup of a user who has logged in.
const CGROUP: &str = "/user.slice/user-1000.slice/session-1.scope";

/// Writes all of it.
pub(super) fn describe(tree: &mut Tree, machine: &Machine) {
    for (name, number) in NAMESPACES {
        tree.link(format!("/proc/self/ns/{name}"), format!("{name}:[{number}]"));
    }
    tree.text("/proc/self/limits", limits(machine.host.memlock_kib));
    tree.text("/proc/self/status", status(machine));
    tree.line("/proc/self/cgroup", format_args!("0::{CGROUP}"));
    tree.text("/proc/self/mountinfo", mounts(machine));
    for (limit, value) in [("memory.max", "max"), ("pids.max", "max"), ("memory.high", "max")] {
        tree.line(format!("/sys/fs/cgroup{CGROUP}/{limit}"), value);
    }
    tree.line("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc");
    tree.folder("/dev/shm");
}

/// `proc_pid_limits` in Linux' `fs/proc/base.c`.
fn limits(memlock_kib: u64) -> String {
    let memlock = match memlock_kib {
        0 => "unlimited".to_owned(),
        kib => (kib << 10).to_string(),
    };
    let rows = [
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max file size", "unlimited", "unlimited", "bytes"),
        ("Max stack size", "8388608", "unlimited", "bytes"),
        ("Max core file size", "0", "unlimited", "bytes"),
        ("Max processes", "255000", "255000", "processes"),
        ("Max open files", "8192", "1048576", "files"),
        ("Max locked memory", &memlock, &memlock, "bytes"),
        ("Max address space", "unlimited", "unlimited", "bytes"),
    ];
    let mut text =
        format!("{:<25} {:<20} {:<20} {:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (name, soft, hard, units) in rows {
        text.push_str(&format!("{name:<25} {soft:<20} {hard:<20} {units:<10}\n"));
    }
    text
}

fn status(machine: &Machine) -> String {
    let cpus: Vec<u32> = (0..machine.host.cpus).collect();
    let nodes: Vec<u32> = machine.numa_nodes().into_iter().collect();
    format!(
        "Name:\tg2g\nUmask:\t0002\nState:\tR (running)\nTgid:\t2000\nNgid:\t0\nPid:\t2000\n\
         PPid:\t1999\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n\
         CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
         NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\nCpus_allowed_list:\t{}\n\
         Mems_allowed_list:\t{}\n",
        list(&cpus),
        list(&nodes)
    )
}

/// `show_mountinfo` in Linux' `fs/proc_namespace.c`.
fn mounts(machine: &Machine) -> String {
    let shm_kib = machine.host.shm_mib << 10;
    let udev_kib = (machine.host.memory_mib << 10) / 2;
    format!(
        "22 28 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n\
         23 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw\n\
         24 28 0:5 / /dev rw,nosuid,relatime shared:2 - devtmpfs udev \
         rw,size={udev_kib}k,mode=755,inode64\n\
         26 24 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size={shm_kib}k,inode64\n\
         28 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard\n\
         30 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
         rw,nsdelegate,memory_recursiveprot\n"
    )
}
