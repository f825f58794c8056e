//! What a machine file says of the host, its files and its network interfaces.

use std::collections::BTreeSet;

use toml::Spanned;

use super::{
    Host, Machine,
    apply::set,
    file::{File, FileKeys, NicKeys},
    host::{Plant, Planted},
    pci,
    problem::Problem,
    values::Whole,
};

/// Makes the host what the file says; what it does not say follows from the rest.
pub(super) fn change_host(machine: &mut Machine, file: &File) -> Result<(), Problem> {
    let host = &mut machine.host;
    host.boot_id = Host::boot_of(&machine.name);
    if host.product.is_empty() {
        host.product.clone_from(&machine.name);
    }
    if let Some(switched) = &file.nvswitch {
        let switched = *switched.get_ref();
        host.nvswitches = if switched { host.nvswitches.max(1) } else { 0 };
        host.fabric_manager = switched;
    }
    let keys = &file.host;
    for (text, given) in [
        (&mut host.product, &keys.product),
        (&mut host.hostname, &keys.hostname),
        (&mut host.boot_id, &keys.boot_id),
        (&mut host.kernel, &keys.kernel),
    ] {
        set(text, given.clone());
    }
    set(&mut host.cpus, keys.cpus.map(Whole::get_u32));
    set(&mut host.memory_mib, keys.memory_mib.map(Whole::get));
    set(&mut host.memlock_kib, keys.memlock_kib.map(Whole::get));
    set(&mut host.shm_mib, keys.shm_mib.map(Whole::get));
    set(&mut host.iommu, keys.iommu);
    set(&mut host.governor, keys.governor.clone().map(Some));
    set(&mut host.fabric_manager, keys.fabric_manager);
    set(&mut host.imex, keys.imex);
    for (version, given) in [
        (&mut host.libfabric, &keys.libfabric),
        (&mut host.ofi_nccl, &keys.ofi_nccl),
        (&mut host.nccl, &keys.nccl),
        (&mut host.cuda_runtime, &keys.cuda_runtime),
    ] {
        set(version, given.clone().map(|installed| installed.0));
    }
    set(&mut host.modules_absent, keys.modules_absent.clone());
    host.files = keys.file.iter().map(planted).collect::<Result<_, _>>()?;
    Ok(())
}

/// A file that the machine file describes.
fn planted(entry: &Spanned<FileKeys>) -> Result<Planted, Problem> {
    let FileKeys { path, text, link, absent, denied, process } = entry.get_ref();
    let whats = [
        text.clone().map(Plant::Text),
        link.clone().map(Plant::Link),
        absent.then_some(Plant::Absent),
        denied.then_some(Plant::Denied),
    ];
    let mut whats = whats.into_iter().flatten();
    match (whats.next(), whats.next()) {
        (Some(what), None) => {
            Ok(Planted { path: path.0.clone(), what, process: process.map(Whole::get_u32) })
        }
        _ => {
            let text = "one of `text`, `link`, `absent = true` and `denied = true` must be given";
            Err(Problem::new(entry, "host.file", text.to_owned()))
        }
    }
}

/// Changes the network interfaces; those that are missing go when all is changed, so that the
/// numbers of the others stay as they are.
pub(super) fn change_nics(machine: &mut Machine, entries: &[NicKeys]) -> Result<(), Problem> {
    let mut missing = BTreeSet::new();
    for keys in entries {
        for number in chosen(machine, keys)? {
            if keys.missing {
                missing.insert(number);
            }
            let nic = &mut machine.nics[number];
            set(&mut nic.state, keys.state);
            set(&mut nic.rate_gbps, keys.rate_gbps.map(Whole::get_u32));
            set(&mut nic.numa_node, keys.numa_node.map(Whole::get_u32));
            // What a link can do is at least what it does.
            for (link, now, most) in [
                (
                    &mut nic.pcie_generation,
                    keys.pcie_generation.map(Whole::get_u32),
                    keys.pcie_generation_max.map(Whole::get_u32),
                ),
                (
                    &mut nic.pcie_lanes,
                    keys.pcie_lanes.map(Whole::get_u32),
                    keys.pcie_lanes_max.map(Whole::get_u32),
                ),
            ] {
                set(&mut link.0, now);
                set(&mut link.1, most);
                link.1 = link.1.max(link.0);
            }
        }
    }
    let mut number = 0..;
    machine.nics.retain(|_| number.next().is_none_or(|number| !missing.contains(&number)));
    Ok(())
}

/// The network interfaces of an entry.
fn chosen(machine: &Machine, keys: &NicKeys) -> Result<Vec<usize>, Problem> {
    let Some(indices) = &keys.indices else { return Ok((0..machine.nics.len()).collect()) };
    indices.iter().map(|index| nic(machine, index, "nic.indices")).collect()
}

/// The network interface that the key `at` names by its index.
pub(super) fn nic(machine: &Machine, named: &Spanned<i64>, at: &str) -> Result<usize, Problem> {
    let index = usize::try_from(*named.get_ref()).ok();
    index.filter(|&index| index < machine.nics.len()).ok_or_else(|| {
        let text = match machine.nics.len() {
            0 => "the machine has no network interfaces that do RDMA".to_owned(),
            count => {
                let (named, last) = (named.get_ref(), count - 1);
                format!("there is no network interface {named}: the last is {last}")
            }
        };
        Problem::new(named, at, text)
    })
}

/// Whether all devices have their places on PCI Express.
pub(super) fn has_places(machine: &Machine, file: &File) -> Result<(), Problem> {
    let mut hosts = (0..machine.hosts).map(|host| pci::located(&machine.of_host(host)));
    let Some(Err(text)) = hosts.find(Result::is_err) else { return Ok(()) };
    let last = file.gpu.iter().rev().find(|keys| keys.pci.is_some() || keys.pcie_switch.is_some());
    Err(match last.map(|keys| (&keys.pci, &keys.pcie_switch)) {
        Some((Some(address), _)) => Problem::new(address, "gpu.pci", text),
        Some((None, Some(switch))) => Problem::new(switch, "gpu.pcie_switch", text),
        Some((None, None)) | None => Problem::of_all(text),
    })
}
