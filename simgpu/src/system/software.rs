//! What is installed and what runs: the kernel's modules, NVIDIA's driver by its own files in
//! `/proc` and `/dev`, the libraries, the daemons.

use super::{pci::name, tree::Tree};
use crate::{
    machine::{Machine, host::Host},
    nvml,
};

/// Where EC2's installer puts EFA's software.
const EFA: &str = "/opt/amazon/efa";

/// Where it puts NCCL's plugin for it.
const OFI_NCCL: &str = "/opt/amazon/ofi-nccl";

/// As many letters of a process' name as the kernel keeps: `TASK_COMM_LEN` less the end.
const NAME_LENGTH: usize = 15;

/// The compute capability from which on the driver's kernel part is the open one.
const OPEN_FROM: (u32, u32) = (7, 5);

/// Writes all of it.
pub(super) fn describe(tree: &mut Tree, machine: &Machine) {
    modules(tree, machine);
    driver(tree, machine);
    device_files(tree, machine);
    libraries(tree, machine);
    processes(tree, &machine.host);
}

/// The modules that are loaded, and their versions where they have one.
fn modules(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    let driver = nvml::driver_version(machine);
    let efa = !machine.nics.is_empty();
    let known = [
        ("nvidia", Some(driver.as_str()), true),
        ("nvidia_uvm", None, true),
        ("nvidia_modeset", Some(driver.as_str()), true),
        ("gdrdrv", Some("2.5"), host.gpudirect),
        ("efa_nv_peermem", Some("1.2.0"), efa),
        ("efa", Some("2.15.0"), efa),
        ("ib_uverbs", None, efa),
        ("ib_core", None, efa),
        ("ena", Some("2.14.1"), host.platform.is_ec2()),
    ];
    let mut list = String::new();
    for (module, version, usual) in known {
        if !usual || host.modules_absent.iter().any(|absent| absent == module) {
            continue;
        }
        list.push_str(&format!("{module} 1048576 1 - Live 0x0000000000000000\n"));
        tree.line(format!("/sys/module/{module}/initstate"), "live");
        tree.line(format!("/sys/module/{module}/refcnt"), 1);
        if let Some(version) = version {
            tree.line(format!("/sys/module/{module}/version"), version);
        }
    }
    tree.text("/proc/modules", list);
}

/// `/proc/driver/nvidia`.
fn driver(tree: &mut Tree, machine: &Machine) {
    let version = nvml::driver_version(machine);
    let arm = machine.host.processor.is_arm();
    let architecture = if arm { "aarch64" } else { "x86_64" };
    let open = machine.gpus.iter().all(|gpu| gpu.compute_capability >= OPEN_FROM);
    let kernel_part = match open {
        true => format!("NVIDIA UNIX Open Kernel Module for {architecture}"),
        false => format!("NVIDIA UNIX {architecture} Kernel Module"),
    };
    let own = "/proc/driver/nvidia";
    tree.text(
        format!("{own}/version"),
        format!(
            "NVRM version: {kernel_part}  {version}  Release Build\nGCC version:  gcc version \
             12.3.0\n"
        ),
    );
    tree.text(
        format!("{own}/params"),
        "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n\
         EnablePCIERelaxedOrderingMode: 0\nEnableGpuFirmware: 18\nRegistryDwords: \"\"\n\
         RegistryDwordsPerDevice: \"\"\nGrdmaPciTopoCheckOverride: 0\nPeerMappingOverride: 0\n",
    );
    for (ordinal, gpu) in (0..).zip(&machine.gpus) {
        let address = name(gpu.pci);
        let firmware = if open { version.as_str() } else { "N/A" };
        tree.text(
            format!("{own}/gpus/{address}/information"),
            format!(
                "Model: \t\t {}\nGPU UUID: \t {}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n\
                 Bus Location: \t {address}\nDevice Minor: \t {ordinal}\n\
                 GPU Firmware: \t {firmware}\nGPU Excluded:\t No\n",
                gpu.name,
                nvml::uuid(machine, ordinal)
            ),
        );
    }
}

fn device_files(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    for ordinal in 0..machine.gpus.len() {
        tree.text(format!("/dev/nvidia{ordinal}"), "");
    }
    for device in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"] {
        tree.text(format!("/dev/{device}"), "");
    }
    for number in 0..host.nvswitches {
        tree.text("/dev/nvidia-nvswitchctl", "");
        tree.text(format!("/dev/nvidia-nvswitch{number}"), "");
    }
    if host.imex {
        tree.text("/dev/nvidia-caps-imex-channels/channel0", "");
    }
    if tree.0.contains_key("/sys/module/gdrdrv/initstate") {
        tree.text("/dev/gdrdrv", "");
    }
}

/// The libraries, by their files, of which only names and links matter.
fn libraries(tree: &mut Tree, machine: &Machine) {
    let host = &machine.host;
    let (system, architecture) = match host.processor.is_arm() {
        true => ("aarch64-linux-gnu", "arm64"),
        false => ("x86_64-linux-gnu", "amd64"),
    };
    let driver = nvml::driver_version(machine);
    for library in ["libcuda", "libnvidia-ml"] {
        shared_object(tree, &format!("/usr/lib/{system}"), library, 1, &driver);
    }
    if let Some(version) = &host.nccl {
        shared_object(tree, &format!("/usr/lib/{system}"), "libnccl", 2, version);
    }
    if let Some(version) = &host.cuda_runtime {
        let toolkit = "/usr/local/cuda/lib64";
        shared_object(tree, toolkit, "libcudart", 13, version);
        tree.link(format!("{toolkit}/libcudart.so"), "libcudart.so.13");
        tree.line("/etc/ld.so.conf.d/988_cuda.conf", toolkit);
    }
    let mut packages = Vec::new();
    if let Some(version) = &host.libfabric {
        shared_object(tree, &format!("{EFA}/lib"), "libfabric", 1, "1.27.0");
        tree.text(
            format!("{EFA}/lib/pkgconfig/libfabric.pc"),
            format!("Name: libfabric\nVersion: {version}amzn1.0\nLibs: -L{EFA}/lib -lfabric\n"),
        );
        tree.line("/etc/ld.so.conf.d/000_efa.conf", format_args!("{EFA}/lib"));
        packages.push(format!("libfabric1-aws_{version}amzn1.0_{architecture}"));
    }
    if let Some(version) = &host.ofi_nccl {
        let own = format!("{OFI_NCCL}/lib/{system}");
        tree.text(format!("{own}/libnccl-net-ofi.so"), "");
        tree.link(format!("{own}/libnccl-net.so"), "libnccl-net-ofi.so");
        tree.line("/etc/ld.so.conf.d/100_ofinccl.conf", &own);
        packages.push(format!("libnccl-ofi_{version}-1_{architecture}"));
    }
    if !packages.is_empty() {
        tree.text(
            "/opt/amazon/efa_installed_packages",
            format!(
                "# EFA installer version: 1.43.1\n# Debug packages installed: no\n\
                 # Packages installed:\nefa-config_1.18_all {}\n",
                packages.join(" ")
            ),
        );
    }
}

/// A library and the link by which programs ask for it.
fn shared_object(tree: &mut Tree, folder: &str, library: &str, major: u32, version: &str) {
    let file = format!("{library}.so.{version}");
    tree.text(format!("{folder}/{file}"), "");
    tree.link(format!("{folder}/{library}.so.{major}"), file);
}

/// Daemons, by their names as the kernel keeps them.
fn processes(tree: &mut Tree, host: &Host) {
    let daemons = [
        (1, "systemd", true),
        (801, "nvidia-persistenced", true),
        (802, "nv-fabricmanager", host.fabric_manager),
        (803, "nvidia-imex", host.imex),
    ];
    for (number, daemon, _) in daemons.into_iter().filter(|&(.., runs)| runs) {
        let kept = &daemon[..daemon.len().min(NAME_LENGTH)];
        tree.line(format!("/proc/{number}/comm"), kept);
    }
}
