//! The machine for a person: its parts in tables, and a matrix for each property of two GPUs.

use super::{
    page::{Column, Grid, Page},
    words::{self, or_dash, or_unknown},
};
use crate::{
    machine::{
        Fabric,
        links::{End, GpuLinks},
        pci::{Device, Link},
        survey::{Survey, SurveyedGpu, SurveyedNic, SurveyedPair},
    },
    units::count,
};

/// Reasons that are shown; further ones are in the JSON.
const REASONS_MAX: usize = 12;

/// What only root may read.
const NOT_READ: &str = "Root may know more: `sudo g2g doctor` whether PCIe bridges send packets \
    between GPUs by way of the CPU, `sudo lspci -vvv` how long a packet may be.";

/// Tables of the parts and of what connects them.
pub fn topology_page(survey: &Survey) -> Page {
    let simulated = words::mark(survey.simulated);
    let mut page = Page::default();
    page.lines(&format!("{}{simulated}\n", summary(survey)));
    for library in &survey.libraries {
        page.lines(&format!("{} {}: {}{simulated}\n", library.name, library.version, library.path));
    }
    for reason in survey.missing.iter().take(REASONS_MAX) {
        page.lines(&format!("missing: {reason}\n"));
    }
    if let Some(more @ 1..) = survey.missing.len().checked_sub(REASONS_MAX) {
        page.lines(&format!("missing: {more} more, which --format json lists\n"));
    }
    for (title, grid) in gpu_tables(survey).into_iter().chain(device_tables(survey)) {
        page.lines("\n");
        page.title(format!("{title}{simulated}"));
        page.grid(grid);
    }
    page.lines(&format!("\n{NOT_READ}\n"));
    page
}

fn gpu_tables(survey: &Survey) -> Vec<(String, Grid)> {
    if survey.gpus.is_empty() {
        return vec![("no GPU is here that this process may use".to_owned(), Grid::default())];
    }
    let links_title = "Links of the GPUs: GB/s in one direction, nothing taken off for packets";
    let connections_title = "Connection: NV# for # NVLinks that are up, otherwise where the ways \
        over PCIe meet: PIX in one bridge, PXB in several, PHB in a host bridge, NODE in a NUMA \
        node, SYS between NUMA nodes";
    let mut tables = vec![
        ("GPUs".to_owned(), gpus(survey)),
        (links_title.to_owned(), links(survey)),
        (connections_title.to_owned(), connections(survey)),
    ];
    if survey.gpus.len() > 1 {
        let driver = |pair: &SurveyedPair| match (pair.access, pair.native_atomics) {
            (true, true) => "yes+a".to_owned(),
            (true, false) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        let axes = "rows: the GPU that reaches out, columns: the GPU whose memory it is";
        tables.push((
            format!("Peer access by the driver (a: native atomics); {axes}"),
            matrix(survey, &driver),
        ));
        tables.push((
            format!("Peer status by NVML: r reads, w writes, a atomics; {axes}"),
            matrix(survey, &SurveyedPair::letters),
        ));
    }
    tables
}

fn device_tables(survey: &Survey) -> Vec<(String, Grid)> {
    let mut tables = vec![match survey.nics.is_empty() {
        true => ("no network interface is here that is a device", Grid::default()),
        false => ("Network interfaces, and the ways from each to the GPUs", nics(survey)),
    }];
    for (title, devices) in [
        ("NVSwitches that are devices of this machine", &survey.switches),
        ("GPUs that are here and that this process may not use", &survey.other_gpus),
    ] {
        if !devices.is_empty() {
            tables.push((title, others(devices)));
        }
    }
    tables.into_iter().map(|(title, grid)| (title.to_owned(), grid)).collect()
}

/// What the machine is, in one line.
fn summary(survey: &Survey) -> String {
    let machine = match (survey.product.as_deref(), survey.vendor.as_deref()) {
        (Some(product), Some(vendor)) => format!("{product} ({vendor})"),
        (Some(name), None) | (None, Some(name)) => name.to_owned(),
        (None, None) => "this machine, whose firmware does not name it".to_owned(),
    };
    let mut parts = vec![
        count(survey.gpus.len(), "GPU"),
        count(survey.nics.len(), "network interface"),
        count(survey.nodes.len(), "NUMA node"),
    ];
    parts.extend(survey.driver_version.iter().map(|version| format!("NVIDIA driver {version}")));
    format!("{machine}: {}", parts.join(", "))
}

fn gpus(survey: &Survey) -> Grid {
    let columns: [Column<&SurveyedGpu>; 11] = [
        ("GPU", |gpu| gpu.node.gpu.0.to_string()),
        ("name", |gpu| gpu.node.name.clone()),
        ("memory", |gpu| gpu.node.memory.rounded()),
        ("capability", |gpu| {
            let (major, minor) = gpu.compute_capability;
            format!("{major}.{minor}")
        }),
        ("SMs", |gpu| gpu.multiprocessors.to_string()),
        ("ECC", |gpu| switch(gpu.nvml.as_ref().and_then(|nvml| nvml.ecc))),
        ("MIG", |gpu| switch(gpu.nvml.as_ref().and_then(|nvml| nvml.mig))),
        ("SM MHz", |gpu| or_unknown(gpu.condition.as_ref().and_then(|now| now.sm_clock_mhz))),
        ("at most", |gpu| or_unknown(gpu.nvml.as_ref().and_then(|nvml| nvml.sm_clock_mhz_max))),
        ("throttled by", |gpu| {
            let reasons = gpu.condition.as_ref().and_then(|now| now.throttle_reasons.as_ref());
            or_unknown(reasons.map(listed))
        }),
        ("UUID", |gpu| gpu.node.uuid.clone()),
    ];
    Grid::of(&columns, &survey.gpus).numbers(&["SMs", "SM MHz", "at most"])
}

fn links(survey: &Survey) -> Grid {
    let links: Vec<(&SurveyedGpu, GpuLinks)> =
        survey.gpus.iter().map(|gpu| (gpu, GpuLinks::of(gpu, survey))).collect();
    let columns: [Column<&(&SurveyedGpu, GpuLinks)>; 13] = [
        ("GPU", |(gpu, _)| gpu.node.gpu.0.to_string()),
        ("PCI address", |(gpu, _)| gpu.node.pci_bus_id.clone()),
        ("PCIe now", |(_, links)| pcie(links.pcie)),
        ("at most", |(_, links)| pcie(links.pcie_max)),
        ("GB/s", |(_, links)| rate(links.pcie_under_load().gb_s())),
        ("NVLinks up", |(gpu, links)| match links.nvlinks() {
            _ if gpu.nvml.is_none() => "?".to_owned(),
            0 => "none".to_owned(),
            all => format!("{} of {all}", links.nvlinks_up),
        }),
        ("down", |(_, links)| listed(&links.nvlinks_down)),
        ("generation", |(_, links)| or_dash(links.nvlink_generation)),
        ("GB/s each", |(_, links)| match links.nvlinks() {
            0 => "-".to_owned(),
            _ => rate(links.nvlink_gb_s),
        }),
        ("to", |(_, links)| listed(links.ends.iter().map(end))),
        ("fabric", |(gpu, _)| or_unknown(fabric(gpu).map(|fabric| &fabric.state))),
        ("clique", |(gpu, _)| or_dash(fabric(gpu).and_then(|fabric| fabric.clique))),
        ("C2C", |(gpu, _)| c2c(gpu)),
    ];
    Grid::of(&columns, &links).numbers(&["GB/s", "GB/s each"])
}

fn fabric(gpu: &SurveyedGpu) -> Option<&Fabric> {
    gpu.nvml.as_ref()?.fabric.as_ref()
}

fn c2c(gpu: &SurveyedGpu) -> String {
    match gpu.nvml.as_ref().map(|nvml| nvml.c2c) {
        None => "?".to_owned(),
        Some(None) => "none".to_owned(),
        Some(Some(c2c)) => {
            format!("{} of {} up, {} GB/s", c2c.active, c2c.links, rate(c2c.gb_s))
        }
    }
}

/// What NVLinks end in, and how many.
fn end((end, count): &(End, u32)) -> String {
    let name = match end {
        End::Switch => "NVSwitch".to_owned(),
        End::Gpu(ordinal) => format!("GPU{ordinal}"),
        End::Other(Some(address)) => address.clone(),
        End::Other(None) => "?".to_owned(),
        End::Cpu => "CPU".to_owned(),
    };
    format!("{count}x{name}")
}

/// The table of `nvidia-smi topo -m`.
fn connections(survey: &Survey) -> Grid {
    let affinities = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"].map(str::to_owned);
    let head = [String::new()].into_iter().chain(names(survey)).chain(affinities);
    let mut grid = Grid::new(head).numbers(&[]);
    for (gpu, name) in survey.gpus.iter().zip(names(survey)) {
        let connection = |there: &SurveyedGpu| {
            pair(survey, gpu, there)
                .map_or_else(|| "X".to_owned(), |pair| or_unknown(pair.connection.as_ref()))
        };
        let mut row = vec![name];
        row.extend(survey.gpus.iter().map(connection));
        row.push(or_unknown(gpu.cpus.as_ref()));
        row.push(or_unknown(gpu.node.numa_node.map(|node| node.0)));
        let memory = gpu.nvml.as_ref().and_then(|gpu| gpu.memory_numa_node);
        row.push(memory.map_or_else(|| "N/A".to_owned(), |node| node.to_string()));
        grid.row(row);
    }
    grid
}

fn matrix(survey: &Survey, cell: &dyn Fn(&SurveyedPair) -> String) -> Grid {
    let labels = survey.gpus.iter().map(|gpu| format!("GPU {}", gpu.node.gpu.0));
    Grid::square("", &labels.collect::<Vec<String>>(), |here, there| {
        pair(survey, &survey.gpus[here], &survey.gpus[there]).map_or_else(|| "X".to_owned(), cell)
    })
}

fn pair<'a>(survey: &'a Survey, gpu: &SurveyedGpu, peer: &SurveyedGpu) -> Option<&'a SurveyedPair> {
    let ends = (gpu.node.gpu.0, peer.node.gpu.0);
    survey.pairs.iter().find(|pair| (pair.gpu, pair.peer) == ends)
}

fn names(survey: &Survey) -> impl Iterator<Item = String> {
    survey.gpus.iter().map(|gpu| format!("GPU{}", gpu.node.gpu.0))
}

fn nics(survey: &Survey) -> Grid {
    let fixed = ["name", "kind", "Gbit/s", "state", "PCI address", "PCIe now", "NUMA node"];
    let mut grid =
        Grid::new(fixed.map(str::to_owned).into_iter().chain(names(survey))).numbers(&[]);
    for SurveyedNic { nic, ways, .. } in &survey.nics {
        let pci = nic.pci.as_ref();
        let mut row = vec![
            nic.name.clone(),
            nic.kind.to_string(),
            or_unknown(nic.rate_gbit_s()),
            listed(nic.ports.iter().map(|port| or_unknown(port.state.as_ref()))),
            or_unknown(pci.map(|pci| &pci.address)),
            or_unknown(pci.map(|pci| pcie(pci.link))),
            or_unknown(pci.and_then(|pci| pci.numa_node)),
        ];
        row.extend(ways.iter().map(|way| way.map_or("?", Into::into).to_owned()));
        grid.row(row);
    }
    grid
}

fn others(devices: &[Device]) -> Grid {
    let columns: [Column<&Device>; 4] = [
        ("PCI address", |device| device.address.clone()),
        ("PCIe now", |device| pcie(device.link)),
        ("NUMA node", |device| or_unknown(device.numa_node)),
        ("kernel's driver", |device| device.driver.clone().unwrap_or_else(|| "none".to_owned())),
    ];
    Grid::of(&columns, devices).numbers(&[])
}

/// `Gen4 x16`.
pub(super) fn pcie(link: Link) -> String {
    match (link.generation, link.lanes) {
        (None, None) => "?".to_owned(),
        (generation, lanes) => format!("Gen{} x{}", or_unknown(generation), or_unknown(lanes)),
    }
}

fn rate(gb_s: Option<f64>) -> String {
    or_unknown(gb_s.map(|gb_s| format!("{gb_s:.1}")))
}

fn switch(is_on: Option<bool>) -> String {
    or_unknown(is_on.map(|is_on| if is_on { "on" } else { "off" }))
}

fn listed(items: impl IntoIterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(" ") }
}
