//! The links of a GPU, from all sources.

use serde::Serialize;

use super::{
    pci::Link,
    survey::{Survey, SurveyedGpu},
    tally,
};
use crate::ffi::nvml::{NvLink, Remote};

/// The links of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuLinks {
    /// Its PCI Express link now, by NVML or else by the kernel.
    pub pcie: Link,
    /// Its best generation and width.
    pub pcie_max: Link,
    /// The generation of its NVLinks.
    pub nvlink_generation: Option<u32>,
    /// The rate of each of them in one direction, in GB/s.
    pub nvlink_gb_s: Option<f64>,
    /// How many of them are up.
    pub nvlinks_up: u32,
    /// The numbers of those that are down.
    pub nvlinks_down: Vec<u32>,
    /// The ends of those that are up, with the number of links to each.
    pub ends: Vec<(End, u32)>,
}

/// What an NVLink ends in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// A switch.
    Switch,
    /// A GPU that this process may use, by its ordinal.
    Gpu(u32),
    /// Another GPU or an unknown device, by its PCI address if that is known.
    Other(Option<String>),
    /// A CPU.
    Cpu,
}

impl GpuLinks {
    /// The links of a GPU of `survey`.
    pub fn of(gpu: &SurveyedGpu, survey: &Survey) -> Self {
        let (nvml, now, pci) = (gpu.nvml.as_ref(), gpu.condition.as_ref(), gpu.pci.as_ref());
        let (kernel, kernel_max) = pci.map(|pci| (pci.link, pci.link_max)).unwrap_or_default();
        let nvlinks = nvml.map_or(&[][..], |gpu| gpu.nvlinks.as_slice());
        let (up, down): (Vec<&NvLink>, Vec<&NvLink>) = nvlinks.iter().partition(|link| link.active);
        let ends = tally(up.into_iter().map(|link| end(link, survey))).into_iter();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let ends: Vec<(End, u32)> = ends.map(|(end, links)| (end, count(links))).collect();
        Self {
            pcie: Link {
                generation: now.and_then(|now| now.pcie_generation).or(kernel.generation),
                lanes: now.and_then(|now| now.pcie_lanes).or(kernel.lanes),
            },
            pcie_max: Link {
                generation: nvml.and_then(|gpu| gpu.pcie_generation_max).or(kernel_max.generation),
                lanes: nvml.and_then(|gpu| gpu.pcie_lanes_max).or(kernel_max.lanes),
            },
            nvlink_generation: nvlinks.iter().find_map(NvLink::generation),
            nvlink_gb_s: nvml.and_then(|gpu| gpu.nvlink_gb_s),
            nvlinks_up: ends.iter().map(|(_, count)| count).sum(),
            nvlinks_down: down.iter().map(|link| link.number).collect(),
            ends,
        }
    }

    /// The PCI Express link under load: an idle GPU lowers its speed, never its width.
    pub fn pcie_under_load(&self) -> Link {
        Link {
            generation: self.pcie.generation.max(self.pcie_max.generation),
            lanes: self.pcie.lanes.or(self.pcie_max.lanes),
        }
    }

    /// Whether the PCI Express link has fewer lanes than it can have.
    pub fn is_narrow(&self) -> bool {
        self.pcie.lanes.zip(self.pcie_max.lanes).is_some_and(|(now, most)| now < most)
    }

    /// All NVLinks, up or not.
    pub fn nvlinks(&self) -> u32 {
        let down = u32::try_from(self.nvlinks_down.len()).unwrap_or(u32::MAX);
        self.nvlinks_up.saturating_add(down)
    }

    /// The NVLinks that are up and end in a switch.
    pub fn to_switch(&self) -> u32 {
        self.ends.iter().find(|(end, _)| *end == End::Switch).map_or(0, |&(_, count)| count)
    }
}

fn end(link: &NvLink, survey: &Survey) -> End {
    let address = link.remote_pci_bus_id.as_deref();
    let is_there = |gpu: &&SurveyedGpu| {
        address.is_some_and(|address| gpu.node.pci_bus_id.eq_ignore_ascii_case(address))
    };
    match (link.remote, survey.gpus.iter().find(is_there)) {
        (_, Some(gpu)) => End::Gpu(gpu.node.gpu.0),
        (Some(Remote::Switch), None) => End::Switch,
        (Some(Remote::Cpu), None) => End::Cpu,
        (Some(Remote::Gpu) | None, None) => End::Other(address.map(str::to_owned)),
    }
}
