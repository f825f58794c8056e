//! The network between hosts: devices, their files, and the libraries that use them.

use super::{Advice, Facts, Finding, first_of};
use crate::{
    machine::{nics::Nic, software::Installed},
    units::{count, gb_s_of_gbit_s},
};

/// The first kernel that lets RDMA devices import GPU memory as dma-bufs.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);

/// Modules that let RDMA devices reach GPU memory.
const PEER_MODULES: [&str; 3] = ["nvidia_peermem", "efa_nv_peermem", "nv_peer_mem"];

/// The first libfabric that uses EFA's RDMA by default, and the first that registers dma-bufs.
const LIBFABRIC_RDMA: (u32, u32) = (1, 18);
const LIBFABRIC_DMA_BUF: (u32, u32) = (1, 20);

/// The most devices that are listed.
const LISTED_MAX: usize = 2;

pub(super) fn devices(facts: &Facts) -> Option<Finding> {
    let here = facts.rdma_devices().count();
    if here == 0 {
        return None;
    }
    let devices = count(here, "RDMA device");
    let files = facts.host.infiniband_files.iter();
    let files = files.filter(|name| name.starts_with("uverbs")).count();
    if files >= here {
        return Some(Finding::ok(format!("{devices} with as many files to open them by")));
    }
    let seen = format!(
        "the kernel has {devices}, and there are {files} files to open them by \
         (/dev/infiniband/uverbs*)"
    );
    Some(Finding::problem(seen).with(Advice {
        means: "libfabric does not see the others: the network falls back to TCP",
        remedy: "load ib_uverbs; give the container the devices (docker --device \
                 /dev/infiniband/uverbs0 …, vpc.amazonaws.com/efa in Kubernetes)",
        source: "fi_efa(7); AWS, EFA and containers",
    }))
}

pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let devices: Vec<&Nic> = facts.rdma_devices().collect();
    if devices.is_empty() {
        return Vec::new();
    }
    let down = |nic: &&Nic| {
        let port = nic.ports.iter().find(|port| port.is_up == Some(false))?;
        Some(format!("{} is {}", nic.name, port.state.as_deref().unwrap_or("down")))
    };
    let mut findings = Vec::new();
    let are_down: Vec<String> = devices.iter().filter_map(down).collect();
    if !are_down.is_empty() {
        let seen = format!("ports of RDMA devices are down: {}", are_down.join(", "));
        findings.push(Finding::problem(seen).with(Advice {
            means: "their share of the network's bandwidth is missing, or nothing goes out",
            remedy: "rdma link; dmesg; on EC2: stop and start the instance, or take another one",
            source: "the kernel's ABI/stable/sysfs-class-infiniband",
        }));
    }
    // What the device could send and its PCIe link cannot carry.
    let narrow = |nic: &Nic| {
        let (pci, rate) = (nic.pci.as_ref()?, nic.rate_gbit_s()?);
        let (generation, lanes) = (pci.link_max.generation?, pci.link.lanes?);
        let lane = facts.catalogue.pcie.generation(generation)?.raw_gbs_per_lane_per_dir.get();
        let most = lane * f64::from(lanes);
        let name = &nic.name;
        (gb_s_of_gbit_s(rate) > most).then(|| {
            format!("{name} has {rate} Gbit/s on PCIe{generation} x{lanes}, {most:.1} GB/s at most")
        })
    };
    let narrow: Vec<String> = devices.iter().filter_map(|nic| narrow(nic)).collect();
    if !narrow.is_empty() {
        let seen = format!(
            "PCIe links cannot carry the rate: {}",
            first_of(narrow, LISTED_MAX).join("; ")
        );
        findings.push(Finding::problem(seen).with(Advice {
            means: "what the device sends and receives is limited by its PCIe link",
            remedy: "lspci -vv shows LnkCap and LnkSta; restart the machine, or seat the card in a \
                     slot with more lanes; on EC2: stop and start the instance",
            source: "the kernel's ABI/testing/sysfs-bus-pci",
        }));
    }
    if findings.is_empty() {
        let up = count(devices.len(), "RDMA device");
        findings.push(Finding::ok(format!("no port of {up} is down")));
    }
    findings
}

pub(super) fn gpudirect(facts: &Facts) -> Option<Finding> {
    let is_barred = facts.instance().is_some_and(|known| known.gpudirect_rdma == Some(false));
    if !facts.has_rdma_devices() || facts.gpu_count() == 0 || is_barred {
        return None;
    }
    let modules = match &facts.host.modules {
        Ok(modules) => modules,
        Err(unread) => return Some(Finding::cannot_tell(unread)),
    };
    if let Some(module) = PEER_MODULES.into_iter().find(|module| modules.contains(*module)) {
        return Some(Finding::ok(format!("{module} lets the network reach memory of GPUs")));
    }
    let Some(kernel) = facts.host.kernel_version() else {
        return Some(Finding::cannot_tell("the kernel does not tell its version"));
    };
    let release = facts.host.kernel.as_deref().unwrap_or_default();
    let why = match facts.dma_buf {
        _ if kernel < DMA_BUF_KERNEL => {
            let (major, minor) = DMA_BUF_KERNEL;
            format!("the kernel {release} has no dma-bufs for it, which come with {major}.{minor}")
        }
        Some(true) => {
            return Some(Finding::ok(format!(
                "the driver and the kernel {release} know dma-bufs, by which the network reaches \
                 GPUs"
            )));
        }
        Some(false) => "the driver gives no dma-bufs".to_owned(),
        // A missing driver has a check of its own.
        None if facts.refusal.is_some() => return None,
        None => {
            let why = "the driver does not say whether it gives dma-bufs";
            return Some(Finding::cannot_tell(why));
        }
    };
    let seen = format!("no module such as nvidia_peermem is loaded, and {why}");
    Some(Finding::problem(seen).with(Advice {
        means: "the network cannot reach memory of GPUs: what goes to other hosts is copied \
                through host memory, and AWS's plugin for NCCL refuses to start where GPUDirect is \
                expected",
        remedy: "modprobe nvidia_peermem, or take a kernel from 5.12 on with NVIDIA's open kernel \
                 modules",
        source: "NVIDIA GPUDirect RDMA guide; aws-ofi-nccl, gdr_required",
    }))
}

pub(super) fn nccl(facts: &Facts) -> Vec<Finding> {
    let installed = &facts.software.nccl;
    match installed.first() {
        Some(found) => {
            let ok = Finding::ok(format!("NCCL {}", told(found)));
            std::iter::once(ok).chain(several("NCCL", installed)).collect()
        }
        None if facts.gpu_count() < 2 => Vec::new(),
        None => vec![Finding::problem("no NCCL is found (libnccl.so.2)").with(Advice {
            means: "collectives cannot be measured here",
            remedy: "install libnccl2, or the nvidia-nccl-cu12 package in the Python environment \
                     in use, or give --nccl-lib",
            ..Advice::default()
        })],
    }
}

/// The version and the file of a library.
fn told(library: &Installed) -> String {
    let version = library.version.as_deref().unwrap_or("of unknown version");
    format!("{version} at {}", library.path)
}

/// A note if the loader's path has several versions of a library.
fn several(name: &str, libraries: &[Installed]) -> Option<Finding> {
    let is_usable = |library: &&Installed| library.is_on_path && library.version.is_some();
    let mut on_path = libraries.iter().filter(is_usable);
    let first = on_path.next()?;
    let others = on_path.filter(|library| library.version != first.version);
    let others: Vec<String> = others.map(told).collect();
    if others.is_empty() {
        return None;
    }
    let seen = format!("there are several of {name}: {}, and {}", told(first), others.join(", "));
    Some(Finding::note(seen).with(Advice {
        means: "which one a program gets depends on its LD_LIBRARY_PATH and RPATH",
        remedy: "remove the others, or name the one that is meant",
        source: "ld.so(8)",
    }))
}

pub(super) fn plugin(facts: &Facts) -> Option<Finding> {
    const SOURCE: &str = "aws-ofi-nccl; NCCL_NET_PLUGIN";
    if !facts.has_efa() || facts.gpu_count() == 0 {
        return None;
    }
    let software = &facts.software;
    let Some(found) = software.nccl_plugins.first() else {
        let seen = "NCCL's plugin for EFA (libnccl-net.so of aws-ofi-nccl) is not found";
        return Some(Finding::problem(seen).with(Advice {
            means: "NCCL does not know EFA by itself: between hosts it uses TCP sockets, many \
                    times slower",
            remedy: "install it (EFA's installer brings it from 1.37 on)",
            source: SOURCE,
        }));
    };
    let plugin = format!("NCCL's plugin for EFA {}", told(found));
    let is_found = software.nccl_plugins.iter().any(|plugin| plugin.is_on_path);
    if is_found || !software.knows_loader {
        return Some(Finding::ok(plugin));
    }
    let seen = format!("{plugin} is not where the loader looks");
    Some(Finding::problem(seen).with(Advice {
        means: "NCCL does not find it and uses TCP sockets between hosts",
        remedy: "add its folder to LD_LIBRARY_PATH, or to /etc/ld.so.conf.d and run ldconfig",
        source: SOURCE,
    }))
}

pub(super) fn libfabric(facts: &Facts) -> Vec<Finding> {
    if !facts.has_efa() {
        return Vec::new();
    }
    let software = &facts.software;
    let Some(used) = software.libfabric.first() else {
        let seen = "EFA is here and no libfabric (libfabric.so.1)";
        return vec![Finding::problem(seen).with(Advice {
            means: "EFA cannot be used, neither by g2g's rdma nor by NCCL",
            remedy: "install EFA's software: efa_installer.sh -y",
            source: "fi_efa(7)",
        })];
    };
    let mut findings = Vec::new();
    if let Some(providers) = &software.providers
        && !providers.contains_key("efa")
    {
        let seen = format!("libfabric {} does not offer EFA", told(used));
        findings.push(Finding::problem(seen).with(Advice {
            means: "rdma and NCCL use TCP between hosts",
            remedy: "use the libfabric of EFA's installer (/opt/amazon/efa), and see whether this \
                     process may open /dev/infiniband/uverbs* and lock memory",
            source: "fi_efa(7)",
        }));
    }
    // Where EFA has no RDMA, an old libfabric lacks nothing.
    let version = used.numbers().filter(|_| facts.has_efa_rdma());
    let remedy = "install a newer one with EFA's installer";
    if version.is_some_and(|version| version < LIBFABRIC_RDMA) {
        let seen = format!("libfabric {} is old", told(used));
        findings.push(Finding::problem(seen).with(Advice {
            means: "before 1.18 the provider efa uses the device's RDMA only if it is told so: \
                    reads and writes are made of messages",
            remedy,
            source: "libfabric, prov/efa/src/efa_env.c",
        }));
    } else if version.is_some_and(|version| version < LIBFABRIC_DMA_BUF) {
        let seen = format!("libfabric {} is older than 1.20", told(used));
        findings.push(Finding::note(seen).with(Advice {
            means: "it takes no dma-bufs: GPUDirect RDMA needs nvidia_peermem then",
            remedy,
            source: "libfabric, FI_MR_DMABUF",
        }));
    }
    let is_found = software.cuda_runtime.iter().any(|library| library.is_on_path);
    if !is_found && software.knows_loader && facts.gpu_count() > 0 {
        let elsewhere = software.cuda_runtime.first().map(|library| &library.path);
        let seen = match elsewhere {
            Some(path) => format!("{path} is not where the loader looks"),
            None => "the loader finds no libcudart.so".to_owned(),
        };
        findings.push(Finding::problem(seen).with(Advice {
            means: "libfabric, which asks for that name without a version, does not offer memory of \
                    GPUs (FI_HMEM): no GPUDirect RDMA",
            remedy: "install the CUDA toolkit's libcudart.so, and add its folder to \
                     LD_LIBRARY_PATH, or to /etc/ld.so.conf.d and run ldconfig",
            source: "libfabric, src/hmem_cuda.c",
        }));
    }
    if findings.is_empty() {
        let fabrics = software.providers.as_ref().and_then(|providers| providers.get("efa"));
        let way = match fabrics {
            Some(fabrics) if fabrics.contains("efa-direct") => {
                ": writes and reads go over its fabric efa-direct, messages over efa"
            }
            Some(_) => ": all goes over its fabric efa",
            None => "",
        };
        findings.push(Finding::ok(format!("libfabric {}{way}", told(used))));
    }
    findings.extend(several("libfabric", &software.libfabric));
    findings
}
