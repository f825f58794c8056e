//! What the driver and NVML tell of the GPUs and of the ways between them.

use serde::Serialize;

use super::Library;
use crate::{
    ffi::{
        CallError,
        cuda::{self, Device, Feature},
        nvml::{self, CommonAncestor, Nvml, PeerStatus, Remote},
    },
    plan::topology::{GpuNode, Topology},
};

/// The GPUs of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Whether it is a simulated machine.
    pub simulated: bool,
    /// The libraries that were asked.
    pub libraries: Vec<Library>,
    /// Why one of them tells nothing.
    pub missing: Vec<String>,
    /// The GPUs, in the order of their ordinals.
    pub gpus: Vec<SurveyedGpu>,
    /// Every ordered pair of two different GPUs.
    pub pairs: Vec<SurveyedPair>,
}

/// A GPU. `null`: neither the driver nor NVML tells it.
#[derive(Clone, Debug, Serialize)]
pub struct SurveyedGpu {
    /// What cases depend on.
    #[serde(flatten)]
    pub node: GpuNode,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copies that it does at once, beside kernels.
    pub copy_engines: u32,
    /// What NVML tells of it.
    pub nvml: Option<nvml::Gpu>,
    /// How it is doing now.
    pub condition: Option<nvml::Condition>,
}

/// The way by which one GPU reaches another's memory.
#[derive(Clone, Debug, Serialize)]
pub struct SurveyedPair {
    /// Ordinal of the GPU that reaches out.
    pub gpu: u32,
    /// Ordinal of the GPU whose memory it is.
    pub peer: u32,
    /// `NV18` for 18 NVLinks that are up; otherwise, in `nvidia-smi topo -m`'s words, where their
    /// ways over PCI Express meet.
    pub connection: Option<String>,
    /// Whether the driver lets it reach the memory.
    pub access: bool,
    /// Whether atomic operations are done where the memory is; not, where the driver is too old
    /// to tell, which `missing` says.
    pub native_atomics: bool,
    /// What NVML tells of the pair.
    pub nvml: Option<nvml::Pair>,
}

/// Asks the driver and NVML.
///
/// # Errors
///
/// The driver does not describe a GPU that it counts.
pub fn survey(topology: &Topology) -> Result<Survey, CallError> {
    let mut missing = Vec::new();
    let driver = cuda::driver().inspect_err(|err| missing.push(err.to_string())).ok();
    let nvml = Nvml::load().inspect_err(|reason| missing.push(reason.clone())).ok();
    let devices = driver.map(cuda::Driver::devices).transpose()?.unwrap_or_default();
    let mut gpus = Vec::new();
    for (device, node) in devices.iter().zip(&topology.gpus) {
        let bus = device.pci_bus_id()?;
        gpus.push(SurveyedGpu {
            node: node.clone(),
            compute_capability: device.compute_capability()?,
            multiprocessors: device.multiprocessors()?,
            copy_engines: device.copy_engines()?,
            nvml: nvml.and_then(|nvml| nvml.gpu(&bus)),
            condition: nvml.and_then(|nvml| nvml.condition(&bus)),
        });
    }
    let untold = driver.and_then(|driver| driver.lacks(Feature::NativeAtomics));
    missing.extend(untold.map(|untold| untold.to_string()));
    let told = (nvml, untold.is_none());
    let mut pairs = Vec::new();
    for (here, device) in devices.iter().enumerate() {
        for (there, peer) in devices.iter().enumerate().filter(|(there, _)| *there != here) {
            pairs.push(pair(*device, *peer, told, (&gpus[here], &gpus[there]))?);
        }
    }
    Ok(Survey {
        simulated: driver.is_some_and(cuda::Driver::is_simulated),
        libraries: super::libraries(),
        missing,
        gpus,
        pairs,
    })
}

fn pair(
    device: Device,
    peer: Device,
    (nvml, tells_atomics): (Option<&Nvml>, bool),
    (here, there): (&SurveyedGpu, &SurveyedGpu),
) -> Result<SurveyedPair, CallError> {
    let by_nvml = match nvml {
        Some(nvml) => nvml.pair(&device.pci_bus_id()?, &peer.pci_bus_id()?),
        None => None,
    };
    let links = here.nvml.as_ref().zip(there.nvml.as_ref()).map_or(0, |pair| links(pair.0, pair.1));
    let ancestor = by_nvml.and_then(|pair| pair.common_ancestor).map(word);
    Ok(SurveyedPair {
        gpu: device.ordinal(),
        peer: peer.ordinal(),
        connection: if links > 0 {
            Some(format!("NV{links}"))
        } else {
            ancestor.map(str::to_owned)
        },
        access: device.can_access_peer(peer)?,
        native_atomics: tells_atomics && device.has_native_atomics(peer)?,
        nvml: by_nvml,
    })
}

/// NVLinks between two GPUs that are up: those that end at the other one, or, through switches, as
/// many as the GPU with fewer has.
fn links(here: &nvml::Gpu, there: &nvml::Gpu) -> usize {
    let up = |gpu: &nvml::Gpu, is_wanted: &dyn Fn(&nvml::NvLink) -> bool| {
        gpu.nvlinks.iter().filter(|link| link.active && is_wanted(link)).count()
    };
    let to_switch = |link: &nvml::NvLink| link.remote == Some(Remote::Switch);
    let direct = up(here, &|link| link.remote_pci_bus_id.as_ref() == Some(&there.pci_bus_id));
    if direct > 0 { direct } else { up(here, &to_switch).min(up(there, &to_switch)) }
}

/// `nvidia-smi topo -m`'s word.
const fn word(ancestor: CommonAncestor) -> &'static str {
    match ancestor {
        // Two GPUs of one board meet in the switch on it.
        CommonAncestor::Internal | CommonAncestor::SingleSwitch => "PIX",
        CommonAncestor::MultipleSwitches => "PXB",
        CommonAncestor::HostBridge => "PHB",
        CommonAncestor::NumaNode => "NODE",
        CommonAncestor::System => "SYS",
    }
}

impl SurveyedPair {
    /// What NVML says of reads, writes and atomics, in one word: `rwa` where all work, a `-` in
    /// the place of what does not, a `?` where it is not told.
    pub fn letters(&self) -> String {
        let letter = |status: Option<PeerStatus>, letter: char| match status {
            Some(PeerStatus::Ok) => letter,
            Some(PeerStatus::Unknown) | None => '?',
            Some(_) => '-',
        };
        let status = |of: fn(&nvml::Pair) -> Option<PeerStatus>| self.nvml.as_ref().and_then(of);
        [
            letter(status(|pair| pair.read), 'r'),
            letter(status(|pair| pair.write), 'w'),
            letter(status(|pair| pair.atomics), 'a'),
        ]
        .iter()
        .collect()
    }
}
