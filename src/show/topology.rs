//! The machine for a person: its parts in tables, a matrix for each thing that can be said of two
//! GPUs, and a picture.

use super::page::{Grid, Page};
use crate::{
    machine::{
        links::{End, GpuLinks},
        pci::{Device, Link},
        survey::{Survey, SurveyedGpu, SurveyedNic, SurveyedPair},
    },
    units::count,
};

/// Reasons that are shown; the others are in the JSON.
const REASONS_MAX: usize = 12;

/// What a person may want to know next, and only root may read.
const NOT_READ: &str = "Root may know more: `sudo g2g doctor` whether PCIe bridges send packets \
    between GPUs by way of the CPU, `sudo lspci -vvv` how long a packet may be.";

/// Tables of the parts and of the ways between them.
pub fn topology_text(survey: &Survey) -> String {
    let simulated = if survey.simulated { " [SIMULATED]" } else { "" };
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
    let mut add = |title: &str, grid: Option<Grid>| {
        page.lines("\n");
        page.title(format!("{title}{simulated}"));
        match grid {
            Some(grid) => page.grid(grid),
            None => page.lines("\n"),
        }
    };
    if survey.gpus.is_empty() {
        add("no GPU is here that this process may use", None);
    } else {
        add("GPUs", Some(gpus(survey)));
        add(
            "Links of the GPUs: GB/s in one direction, nothing taken off for packets",
            Some(links(survey)),
        );
        add(
            "Connection: NV# for # NVLinks that are up, otherwise where the ways over PCIe meet: \
             PIX in one bridge, PXB in several, PHB in a host bridge, NODE in a NUMA node, SYS \
             between NUMA nodes",
            Some(connections(survey)),
        );
    }
    if survey.gpus.len() > 1 {
        let driver = |pair: &SurveyedPair| match (pair.access, pair.native_atomics) {
            (true, true) => "yes+a".to_owned(),
            (true, false) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        let axes = "rows: the GPU that reaches out, columns: the GPU whose memory it is";
        for (title, cell) in [
            (
                "Peer access by the driver (a: native atomics)",
                &driver as &dyn Fn(&SurveyedPair) -> String,
            ),
            ("Peer status by NVML: r reads, w writes, a atomics", &SurveyedPair::letters),
        ] {
            add(&format!("{title}; {axes}"), Some(matrix(survey, cell)));
        }
    }
    if survey.nics.is_empty() {
        add("no network interface is here that is a device", None);
    } else {
        add("Network interfaces, and the ways from each to the GPUs", Some(nics(survey)));
    }
    for (title, devices) in [
        ("NVSwitches that are devices of this machine", &survey.switches),
        ("GPUs that are here and that this process may not use", &survey.other_gpus),
    ] {
        if !devices.is_empty() {
            add(title, Some(others(devices)));
        }
    }
    page.lines(&format!("\n{NOT_READ}\n"));
    page.text()
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

/// A table; the columns named in `numbers` are numbers.
fn table<const N: usize>(head: [&str; N], rows: Vec<Vec<String>>, numbers: &[&str]) -> Grid {
    let mut grid = Grid::new(head).numbers(numbers);
    for row in rows {
        grid.row(row);
    }
    grid
}

fn gpus(survey: &Survey) -> Grid {
    let row = |gpu: &SurveyedGpu| {
        let (nvml, now) = (gpu.nvml.as_ref(), gpu.condition.as_ref());
        let reasons = now.and_then(|now| now.throttle_reasons.as_ref());
        let (major, minor) = gpu.compute_capability;
        vec![
            gpu.node.gpu.0.to_string(),
            gpu.node.name.clone(),
            gpu.node.memory.rounded(),
            format!("{major}.{minor}"),
            gpu.multiprocessors.to_string(),
            switch(nvml.and_then(|gpu| gpu.ecc)),
            switch(nvml.and_then(|gpu| gpu.mig)),
            told(now.and_then(|now| now.sm_clock_mhz)),
            told(nvml.and_then(|gpu| gpu.sm_clock_mhz_max)),
            reasons.map_or_else(|| "?".to_owned(), |reasons| listed(reasons.clone())),
            gpu.node.uuid.clone(),
        ]
    };
    let head = [
        "GPU",
        "name",
        "memory",
        "capability",
        "SMs",
        "ECC",
        "MIG",
        "SM MHz",
        "at most",
        "held down by",
        "UUID",
    ];
    table(head, survey.gpus.iter().map(row).collect(), &["SMs", "SM MHz", "at most"])
}

fn links(survey: &Survey) -> Grid {
    let row = |gpu: &SurveyedGpu| {
        let links = GpuLinks::of(gpu, survey);
        let nvml = gpu.nvml.as_ref();
        let fabric = nvml.and_then(|gpu| gpu.fabric.as_ref());
        let up = match (nvml, links.nvlinks()) {
            (None, _) => "?".to_owned(),
            (_, 0) => "none".to_owned(),
            (_, all) => format!("{} of {all}", links.nvlinks_up),
        };
        let c2c = nvml.map_or_else(
            || "?".to_owned(),
            |gpu| {
                gpu.c2c.map_or_else(
                    || "none".to_owned(),
                    |c2c| format!("{} of {} up, {} GB/s", c2c.active, c2c.links, rate(c2c.gb_s)),
                )
            },
        );
        vec![
            gpu.node.gpu.0.to_string(),
            gpu.node.pci_bus_id.clone(),
            pcie(links.pcie),
            pcie(links.pcie_max),
            rate(links.pcie_under_load().gb_s()),
            up,
            listed(links.nvlinks_down.iter().map(u32::to_string).collect()),
            listed(links.nvlink_generation.iter().map(u32::to_string).collect()),
            if links.nvlinks() == 0 { "-".to_owned() } else { rate(links.nvlink_gb_s) },
            listed(links.ends.iter().map(end).collect()),
            fabric.map_or_else(|| "?".to_owned(), |fabric| fabric.state.to_string()),
            fabric.and_then(|fabric| fabric.clique).map_or("-".to_owned(), |id| id.to_string()),
            c2c,
        ]
    };
    let head = [
        "GPU",
        "PCI address",
        "PCIe now",
        "at most",
        "GB/s",
        "NVLinks up",
        "down",
        "generation",
        "GB/s each",
        "to",
        "fabric",
        "clique",
        "C2C",
    ];
    table(head, survey.gpus.iter().map(row).collect(), &["GB/s", "GB/s each"])
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
    let heads = survey.gpus.iter().map(|gpu| format!("GPU{}", gpu.node.gpu.0));
    let affinities = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"].map(str::to_owned);
    let header = std::iter::once(String::new()).chain(heads).chain(affinities);
    let mut grid = Grid::new(header).numbers(&[]);
    for gpu in &survey.gpus {
        let here = gpu.node.gpu.0;
        let connection = |there: &SurveyedGpu| {
            let is_wanted =
                |pair: &&SurveyedPair| (pair.gpu, pair.peer) == (here, there.node.gpu.0);
            let pair = survey.pairs.iter().find(is_wanted);
            let told = |pair: &SurveyedPair| pair.connection.clone().unwrap_or_else(|| "?".into());
            pair.map_or_else(|| "X".to_owned(), told)
        };
        let mut row = vec![format!("GPU{here}")];
        row.extend(survey.gpus.iter().map(connection));
        row.push(gpu.cpus.clone().unwrap_or_else(|| "?".to_owned()));
        row.push(told(gpu.node.numa_node.map(|node| node.0)));
        let memory = gpu.nvml.as_ref().and_then(|gpu| gpu.memory_numa_node);
        row.push(memory.map_or_else(|| "N/A".to_owned(), |node| node.to_string()));
        grid.row(row);
    }
    grid
}

fn matrix(survey: &Survey, cell: &dyn Fn(&SurveyedPair) -> String) -> Grid {
    let ordinals: Vec<u32> = survey.gpus.iter().map(|gpu| gpu.node.gpu.0).collect();
    let heads = ordinals.iter().map(|gpu| format!("GPU {gpu}"));
    let mut grid = Grid::new(std::iter::once(String::new()).chain(heads));
    for &here in &ordinals {
        let pair = |there: &u32| {
            let found = survey.pairs.iter().find(|pair| (pair.gpu, pair.peer) == (here, *there));
            found.map_or_else(|| "X".to_owned(), cell)
        };
        let cells = ordinals.iter().map(pair);
        grid.row(std::iter::once(format!("GPU {here}")).chain(cells));
    }
    grid
}

fn nics(survey: &Survey) -> Grid {
    let heads = survey.gpus.iter().map(|gpu| format!("GPU{}", gpu.node.gpu.0));
    let fixed = ["name", "kind", "Gbit/s", "state", "PCI address", "PCIe now", "NUMA node"];
    let mut grid = Grid::new(fixed.map(str::to_owned).into_iter().chain(heads)).numbers(&[]);
    for nic in &survey.nics {
        let SurveyedNic { nic, ways, .. } = nic;
        let states = nic.ports.iter().map(|port| port.state.clone().unwrap_or_else(|| "?".into()));
        let pci = nic.pci.as_ref();
        let mut row = vec![
            nic.name.clone(),
            nic.kind.to_string(),
            nic.rate_gbit_s().map_or_else(|| "?".to_owned(), |gbit_s| gbit_s.to_string()),
            listed(states.collect()),
            pci.map_or_else(|| "?".to_owned(), |pci| pci.address.clone()),
            pci.map_or_else(|| "?".to_owned(), |pci| pcie(pci.link)),
            told(pci.and_then(|pci| pci.numa_node)),
        ];
        row.extend(ways.iter().map(|way| way.map_or("?", Into::into).to_owned()));
        grid.row(row);
    }
    grid
}

fn others(devices: &[Device]) -> Grid {
    let row = |device: &Device| {
        vec![
            device.address.clone(),
            pcie(device.link),
            told(device.numa_node),
            device.driver.clone().unwrap_or_else(|| "none".to_owned()),
        ]
    };
    let head = ["PCI address", "PCIe now", "NUMA node", "kernel's driver"];
    table(head, devices.iter().map(row).collect(), &[])
}

/// `Gen4 x16`.
pub(super) fn pcie(link: Link) -> String {
    match (link.generation, link.lanes) {
        (None, None) => "?".to_owned(),
        (generation, lanes) => format!("Gen{} x{}", told(generation), told(lanes)),
    }
}

fn told(number: Option<u32>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

fn rate(gb_s: Option<f64>) -> String {
    gb_s.map_or_else(|| "?".to_owned(), |gb_s| format!("{gb_s:.1}"))
}

fn switch(is_on: Option<bool>) -> String {
    is_on.map_or("?", |is_on| if is_on { "on" } else { "off" }).to_owned()
}

fn listed(names: Vec<String>) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}
