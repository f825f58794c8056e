//! What the firmware and the kernel say of the machine as a whole: DMI, `/proc` but for processes.

use super::tree::Tree;
use crate::machine::{
    Machine,
    host::{Host, Platform, Processor},
};

/// DMI's folder: `Documentation/ABI/testing/sysfs-class-dmi` of Linux.
const DMI: &str = "/sys/devices/virtual/dmi/id";

/// Huge pages that the installer of EFA's software reserves.
const HUGE_PAGES_OF_EFA: u32 = 5128;

/// Writes all of it.
pub(super) fn describe(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    dmi(tree, machine);
    kernel(tree, machine);
    tree.text("/proc/cpuinfo", processor(host));
    tree.text("/proc/meminfo", memory(host, !machine.nics.is_empty()));
    let clock = match (host.platform, host.processor.is_arm()) {
        (_, true) => "arch_sys_counter",
        (Platform::Nitro, false) => "kvm-clock",
        (Platform::Xen, false) => "xen",
        (Platform::Metal | Platform::Other, false) => "tsc",
    };
    tree.line("/sys/devices/system/clocksource/clocksource0/current_clocksource", clock);
}

fn dmi(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    let vendor = match host.platform {
        Platform::Nitro | Platform::Metal => "Amazon EC2",
        Platform::Xen => "Xen",
        Platform::Other => "simgpu",
    };
    tree.line(format!("{DMI}/sys_vendor"), vendor);
    tree.line(format!("{DMI}/bios_vendor"), vendor);
    tree.line(format!("{DMI}/product_name"), &host.product);
    if matches!(host.platform, Platform::Nitro | Platform::Metal) {
        tree.line(format!("{DMI}/board_vendor"), vendor);
        // Each host of a cluster is an instance of its own.
        let number = machine.first_gpu as usize / machine.gpus.len().max(1) + 1;
        tree.line(format!("{DMI}/board_asset_tag"), format!("i-{number:017x}"));
        tree.line(format!("{DMI}/chassis_asset_tag"), vendor);
    }
    for secret in ["board_serial", "product_serial", "product_uuid"] {
        tree.denied(format!("{DMI}/{secret}"));
    }
    tree.point("/sys/class/dmi/id", DMI);
}

/// The kernel and its settings.
fn kernel(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    let release = &host.kernel;
    let iommu = match (host.iommu, host.processor) {
        (false, _) => "",
        (true, Processor::Intel) => " intel_iommu=on",
        (true, Processor::Amd) => " amd_iommu=on",
        (true, Processor::Graviton | Processor::Grace) => " iommu.passthrough=0",
    };
    tree.line(
        "/proc/cmdline",
        format_args!(
            "BOOT_IMAGE=/boot/vmlinuz-{release} root=LABEL=cloudimg-rootfs ro console=tty1 \
             console=ttyS0 nvme_core.io_timeout=4294967295{iommu} panic=-1"
        ),
    );
    tree.line(
        "/proc/version",
        format_args!(
            "Linux version {release} (buildd@bos03) (gcc-12 (Ubuntu 12.3.0) 12.3.0, GNU ld 2.38) \
             #33~22.04.1-Ubuntu SMP"
        ),
    );
    tree.line("/proc/sys/kernel/ostype", "Linux");
    tree.line("/proc/sys/kernel/osrelease", release);
    tree.line("/proc/sys/kernel/hostname", &host.hostname);
    tree.line("/proc/sys/kernel/random/boot_id", &host.boot_id);
    tree.line("/proc/sys/kernel/numa_balancing", 0);
    tree.line("/proc/sys/kernel/yama/ptrace_scope", 1);
    tree.line("/proc/sys/vm/overcommit_memory", 0);
    tree.line("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    tree.text(
        "/etc/os-release",
        "PRETTY_NAME=\"Ubuntu 22.04.5 LTS\"\nNAME=\"Ubuntu\"\nVERSION_ID=\"22.04\"\nID=ubuntu\n",
    );
}

/// `/proc/cpuinfo`, of the first processor only: the others differ by their numbers.
fn processor(host: &Host) -> String {
    let (vendor, name) = match host.processor {
        Processor::Intel => ("GenuineIntel", "Intel(R) Xeon(R) Platinum Processor"),
        Processor::Amd => ("AuthenticAMD", "AMD EPYC 7R13 Processor"),
        Processor::Graviton => return arm(host, "0xd0c"),
        Processor::Grace => return arm(host, "0xd4f"),
    };
    let guest = match host.platform {
        Platform::Nitro | Platform::Xen => " hypervisor",
        Platform::Metal | Platform::Other => "",
    };
    format!(
        "processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: {name}\nsiblings\t: {}\n\
         cpu cores\t: {}\nflags\t\t: fpu vme de pse tsc msr pae cx8 sse sse2 ht constant_tsc \
         rep_good nopl nonstop_tsc ssse3 fma avx avx2{guest}\n\n",
        host.cpus / host.numa_nodes.max(1),
        (host.cpus / host.numa_nodes.max(1)).div_ceil(host.processor.threads()),
    )
}

/// The same of a processor by Arm, which has this number there.
fn arm(host: &Host, part: &str) -> String {
    let features = if host.processor == Processor::Grace { " sve sve2" } else { "" };
    format!(
        "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes atomics{features}\n\
         CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n\
         CPU revision\t: 1\n\n"
    )
}

fn memory(host: &Host, efa: bool) -> String {
    let total = host.memory_mib << 10;
    let free = total / 20 * 19;
    let huge = if efa { HUGE_PAGES_OF_EFA } else { 0 };
    let line = |name: &str, kib: u64| format!("{:<16}{kib:8} kB\n", format!("{name}:"));
    let mut text = line("MemTotal", total);
    for name in ["MemFree", "MemAvailable"] {
        text.push_str(&line(name, free));
    }
    text.push_str(&line("SwapTotal", 0));
    text.push_str(&format!("HugePages_Total:{huge:8}\nHugePages_Free: {huge:8}\n"));
    text.push_str(&line("Hugepagesize", 2048));
    text
}
