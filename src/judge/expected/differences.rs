//! Differences between the live machine and the catalogue's entry of its type, and between parts
//! of the machine that should be alike.

use serde::{Deserialize, Serialize};

use super::{HostWay, Machine};
use crate::{machine::survey::Survey, plan::catalogue::Catalogue, units::gb_s_of_gbit_s};

/// A part of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The count or the type of its GPUs.
    Gpus,
    /// NVLinks of a GPU, by its ordinal.
    NvLinks(u32),
    /// The PCIe link of a GPU.
    Pcie,
    /// The count of its EFA interfaces.
    Efa,
    /// The rate of all its EFA interfaces together.
    EfaRate,
    /// Its NUMA nodes.
    NumaNodes,
}

/// A fact that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The part that differs.
    pub part: Part,
    /// What it is about: `GPUs`, `NVLinks of GPU 3`, …
    pub what: String,
    /// What the live machine says.
    pub live: String,
    /// What it should be.
    pub known: String,
    /// The source of what it should be.
    pub source: String,
}

impl Difference {
    /// The difference as a sentence.
    pub fn sentence(&self) -> String {
        format!("{}: {} here, {} by {}", self.what, self.live, self.known, self.source)
    }
}

/// All differences; empty on a machine that is as its type should be.
pub fn differences(survey: &Survey, catalogue: &Catalogue) -> Vec<Difference> {
    let machine = Machine::surveyed(survey, catalogue);
    let mut found = within(&machine);
    let known =
        machine.instance.as_ref().and_then(|name| Some((name, catalogue.instance.get(name)?)));
    let Some((name, instance)) = known else { return found };
    let source = if catalogue.is_added(name) {
        format!("what the user says of {name}")
    } else {
        format!("the catalogue's entry of {name}")
    };
    let mut differ = |part, what: &str, live: String, known: String| {
        if live != known {
            let (what, source) = (what.to_owned(), source.clone());
            found.push(Difference { part, what, live, known, source });
        }
    };
    let all_gpus = survey.gpus.len() + survey.other_gpus.len();
    differ(Part::Gpus, "GPUs", all_gpus.to_string(), instance.gpu_count.to_string());
    for gpu in &survey.gpus {
        if let Some(key) = catalogue.key_of_driver_name(&gpu.node.name) {
            let what = format!("type of GPU {}", gpu.node.gpu.0);
            differ(Part::Gpus, &what, key.to_owned(), instance.gpu.clone());
        }
    }
    if let Some(due) = instance.efa_interfaces {
        let efa = machine.nics.iter().filter(|nic| nic.is_efa);
        let rates: Vec<Option<f64>> = efa.map(|nic| nic.gb_s).collect();
        differ(Part::Efa, "interfaces of EFA", rates.len().to_string(), due.to_string());
        let total = instance.efa_total_gbps.filter(|_| rates.len() == due as usize);
        let together: Option<f64> = rates.into_iter().sum();
        if let (Some(together), Some(total)) = (together, total) {
            let gb_s = |rate: f64| format!("{rate:.1} GB/s");
            differ(Part::EfaRate, "rate of EFA", gb_s(together), gb_s(gb_s_of_gbit_s(total.get())));
        }
    }
    if let Some(nodes) = instance.numa_nodes.filter(|_| !survey.nodes.is_empty()) {
        differ(Part::NumaNodes, "NUMA nodes", survey.nodes.len().to_string(), nodes.to_string());
    }
    for gpu in &machine.gpus {
        if let (Some(HostWay::Pcie { generation, .. }), Some(due)) =
            (gpu.host, instance.gpu_pcie_gen)
        {
            let what = format!("most of the PCIe link of GPU {}", gpu.ordinal);
            let most = generation.min(due);
            differ(Part::Pcie, &what, format!("generation {most}"), format!("generation {due}"));
        }
    }
    found
}

/// What the live machine itself shows to be less than it should be.
fn within(machine: &Machine) -> Vec<Difference> {
    let mut found = Vec::new();
    for gpu in &machine.gpus {
        if let Some(links) = gpu.nvlinks.filter(|links| links.up < links.due) {
            found.push(Difference {
                part: Part::NvLinks(gpu.ordinal),
                what: format!("NVLinks of GPU {}", gpu.ordinal),
                live: format!("{} up", links.up),
                known: format!("{} up", links.due),
                source: "what NVML lists, and the catalogue where a type has fewer".to_owned(),
            });
        }
        if let Some(HostWay::Pcie { lanes, lanes_due, .. }) = gpu.host
            && lanes < lanes_due
        {
            found.push(Difference {
                part: Part::Pcie,
                what: format!("PCIe lanes of GPU {}", gpu.ordinal),
                live: lanes.to_string(),
                known: lanes_due.to_string(),
                source: "the catalogue, or the other GPUs of its kind here".to_owned(),
            });
        }
    }
    found
}
