//! The machine for a person: its GPUs, and a matrix for each thing that can be said of two.

use comfy_table::{Cell, CellAlignment, Table, presets};

use crate::machine::survey::{Survey, SurveyedGpu, SurveyedPair};

/// Tables of the GPUs and of the ways between them.
pub fn topology_text(survey: &Survey) -> String {
    let mut text = String::new();
    let simulated = if survey.simulated { " [SIMULATED]" } else { "" };
    for library in &survey.libraries {
        text.push_str(&format!(
            "{} {}: {}{simulated}\n",
            library.name, library.version, library.path
        ));
    }
    for reason in &survey.missing {
        text.push_str(&format!("missing: {reason}\n"));
    }
    if survey.gpus.is_empty() {
        text.push_str("no GPU is here\n");
        return text;
    }
    text.push_str(&format!("\nGPUs{simulated}\n{}\n", gpus(&survey.gpus)));
    if survey.gpus.len() > 1 {
        let connection =
            |pair: &SurveyedPair| pair.connection.clone().unwrap_or_else(|| "?".into());
        let driver = |pair: &SurveyedPair| match (pair.access, pair.native_atomics) {
            (true, true) => "yes+a".to_owned(),
            (true, false) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        let axes = "rows: the GPU that reaches out, columns: the GPU whose memory it is";
        for (title, cell) in [
            (
                "Connection: NV# for # NVLinks that are up, or where the ways over PCIe meet",
                &connection as &dyn Fn(&SurveyedPair) -> String,
            ),
            ("Peer access by the driver (a: native atomics)", &driver),
            ("Peer status by NVML: r reads, w writes, a atomics", &SurveyedPair::letters),
        ] {
            text.push_str(&format!("\n{title}; {axes}{simulated}\n{}\n", matrix(survey, cell)));
        }
    }
    text
}

/// The same as JSON.
pub fn topology_json(survey: &Survey) -> String {
    // Every value is a plain number or text.
    serde_json::to_string_pretty(survey).unwrap_or_default() + "\n"
}

fn gpus(gpus: &[SurveyedGpu]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "GPU",
        "name",
        "memory",
        "PCI address",
        "PCIe now",
        "at most",
        "NVLinks up",
        "NUMA node",
        "SMs",
        "SM MHz now",
        "at most",
        "held down by",
    ]);
    for gpu in gpus {
        let number = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let pcie = |generation: Option<u32>, lanes: Option<u32>| {
            format!("Gen{} x{}", number(generation), number(lanes))
        };
        let (nvml, now) = (gpu.nvml.as_ref(), gpu.condition.as_ref());
        let numa_node =
            gpu.node.numa_node.map(|node| node.0).or(nvml.and_then(|gpu| gpu.numa_node));
        let links = nvml.map(|gpu| {
            let up = gpu.nvlinks.iter().filter(|link| link.active).count();
            format!("{up} of {}", gpu.nvlinks.len())
        });
        let reasons = now.and_then(|now| now.throttle_reasons.as_ref());
        table.add_row(
            [
                gpu.node.gpu.0.to_string(),
                gpu.node.name.clone(),
                gpu.node.memory.rounded(),
                nvml.map_or_else(|| "?".to_owned(), |gpu| gpu.pci_bus_id.clone()),
                pcie(now.and_then(|now| now.pcie_generation), now.and_then(|now| now.pcie_lanes)),
                pcie(
                    nvml.and_then(|gpu| gpu.pcie_generation_max),
                    nvml.and_then(|gpu| gpu.pcie_lanes_max),
                ),
                links.unwrap_or_else(|| "?".to_owned()),
                number(numa_node),
                gpu.multiprocessors.to_string(),
                number(now.and_then(|now| now.sm_clock_mhz)),
                number(nvml.and_then(|gpu| gpu.sm_clock_mhz_max)),
                reasons.map_or_else(|| "?".to_owned(), |reasons| reasons.join(" ")),
            ]
            .map(Cell::new),
        );
    }
    table.trim_fmt()
}

fn matrix(survey: &Survey, cell: &dyn Fn(&SurveyedPair) -> String) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let ordinals: Vec<u32> = survey.gpus.iter().map(|gpu| gpu.node.gpu.0).collect();
    let heads = ordinals.iter().map(|gpu| format!("GPU {gpu}"));
    table.set_header(std::iter::once(String::new()).chain(heads).map(Cell::new));
    for &here in &ordinals {
        let pair = |there: &u32| {
            let found = survey.pairs.iter().find(|pair| (pair.gpu, pair.peer) == (here, *there));
            found.map_or_else(|| "X".to_owned(), cell)
        };
        let cells = ordinals.iter().map(pair);
        table.add_row(std::iter::once(format!("GPU {here}")).chain(cells).map(Cell::new));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
