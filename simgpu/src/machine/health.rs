//! How GPUs are doing, by what NVML tells of them: at first, and as they work.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{
    Gpu, Machine, Throttle,
    apply::set,
    file::{GpuKeys, HealthKeys, HealthWhat},
    problem::Problem,
    values::{Count, Whole},
};

/// How a GPU is doing before it does anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether it is cut into instances.
    pub mig: bool,
    /// Whether its memory corrects errors.
    pub ecc: bool,
    /// Errors of its memory since the driver was loaded.
    pub ecc_errors: EccErrors,
    /// How far it has come in joining the NVLink fabric; `None`: as far as such a GPU comes.
    pub fabric: Option<FabricState>,
    /// NVML's code for how joining it ended.
    pub fabric_status: u32,
    /// The GPUs of the cluster that reach each other by NVLink.
    pub clique: u32,
    /// The cluster that its NVLink fabric belongs to; all zeros: none beyond its host.
    pub cluster_uuid: [u8; 16],
    /// In degrees Celsius.
    pub temperature_c: u32,
    /// What it takes.
    pub power_w: u32,
    /// The most that it may take.
    pub power_limit_w: u32,
    /// The same, as it is built.
    pub power_limit_default_w: u32,
    /// Whose contexts it takes.
    pub compute_mode: ComputeMode,
    /// Whether the driver keeps it ready while nobody uses it.
    pub persistence: bool,
    /// The version of its firmware for the start.
    pub vbios: String,
    /// The version of what is stored on its board.
    pub inforom: String,
    /// Whether the counters of its NVLinks can be read.
    pub nvlink_counters: bool,
    /// Bits of the counters of its PCIe link; `None`: they cannot be read.
    pub pcie_counter_bits: Option<u32>,
}

/// Errors of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccErrors {
    /// Those that it has mended.
    pub corrected: u64,
    /// Those that it could not mend.
    pub uncorrected: u64,
}

/// Whose contexts a GPU takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Everybody's.
    Default,
    /// Nobody's.
    Prohibited,
}

/// How far a GPU has come in joining the NVLink fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// There is none for it.
    NotSupported,
    /// It has not begun.
    NotStarted,
    /// It is under way.
    InProgress,
    /// It is done, well or not.
    Completed,
}

/// What happens to a GPU once its links have carried so much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthFault {
    /// `None`: any GPU.
    pub gpu: Option<u32>,
    /// Bytes that have gone over its NVLinks and its PCIe link, both ways together.
    pub after_bytes: u64,
    /// What happens then.
    pub what: Incident,
}

/// What happens to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Incident {
    /// So many errors are counted.
    Errors {
        /// By which counter.
        counter: ErrorCounter,
        /// How many.
        count: u64,
    },
    /// Its clocks are held down.
    Throttle {
        /// Why.
        reason: Throttle,
        /// Until so many bytes more have gone over its links; `None`: for ever.
        for_bytes: Option<u64>,
    },
    /// The driver tells of an error by this number.
    Xid {
        /// NVIDIA's number for the kind of error.
        number: u32,
    },
    /// The counters of its links, each by itself, begin at 0 again whenever they have come so far.
    CountersRestart,
    /// NVML reaches it no more.
    Lost,
}

/// What counts errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorCounter {
    /// Errors of memory that were mended.
    EccCorrected,
    /// Errors of memory that were not.
    EccUncorrected,
    /// Packets of NVLinks that arrived wrong.
    NvLinkCrc,
    /// Packets of NVLinks that were sent again.
    NvLinkReplay,
    /// NVLinks that were trained again.
    NvLinkRecovery,
    /// Packets of PCIe that were sent again.
    PcieReplay,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            mig: false,
            ecc: true,
            ecc_errors: EccErrors::default(),
            fabric: None,
            fabric_status: 0,
            clique: 0,
            cluster_uuid: [0; 16],
            temperature_c: 40,
            power_w: 100,
            power_limit_w: 700,
            power_limit_default_w: 700,
            compute_mode: ComputeMode::Default,
            persistence: true,
            vbios: "0.0".to_owned(),
            inforom: "0.0".to_owned(),
            nvlink_counters: true,
            pcie_counter_bits: Some(64),
        }
    }
}

impl Machine {
    /// What has happened to a GPU whose links have carried so much, with the place of each among
    /// all faults: it stays the same whatever else happens.
    pub fn incidents(
        &self,
        gpu: u32,
        carried_bytes: u64,
    ) -> impl Iterator<Item = (usize, &Incident)> {
        let has_come = move |(_, fault): &(usize, &HealthFault)| {
            fault.gpu.is_none_or(|named| named == gpu) && carried_bytes >= fault.after_bytes
        };
        let all = self.faults.health.iter().enumerate();
        all.filter(has_come).map(|(place, fault)| (place, &fault.what))
    }

    /// How many errors a counter of a GPU has beyond those of its beginning.
    pub fn errors(&self, gpu: u32, carried_bytes: u64, of: ErrorCounter) -> u64 {
        let counted = self.incidents(gpu, carried_bytes).map(|(_, incident)| match incident {
            Incident::Errors { counter, count } if *counter == of => *count,
            _ => 0,
        });
        counted.fold(0, u64::saturating_add)
    }

    /// Why a GPU's clocks are held down now: always, and since something has happened. A reason can
    /// be there more than once.
    pub fn throttle(&self, gpu: u32, carried_bytes: u64) -> Vec<Throttle> {
        let own = self.gpus[gpu as usize].throttle.iter().copied();
        let since = self.throttle_faults(gpu).filter_map(|(begin, end, reason)| {
            (carried_bytes >= begin && carried_bytes < end).then_some(reason)
        });
        own.chain(since).collect()
    }

    /// How many bytes a GPU's links have carried while something held its clocks down for a reason.
    pub fn throttled_bytes(&self, gpu: u32, carried_bytes: u64, of: Throttle) -> u64 {
        let always = self.gpus[gpu as usize].throttle.contains(&of).then_some(carried_bytes);
        let since = self.throttle_faults(gpu).filter(|(.., reason)| *reason == of);
        let spans = since.map(|(begin, end, _)| carried_bytes.min(end).saturating_sub(begin));
        always.into_iter().chain(spans).max().unwrap_or(0)
    }

    /// From how many bytes on to how many a GPU's clocks are held down, and why.
    fn throttle_faults(&self, gpu: u32) -> impl Iterator<Item = (u64, u64, Throttle)> {
        let of_gpu = move |fault: &&HealthFault| fault.gpu.is_none_or(|named| named == gpu);
        self.faults.health.iter().filter(of_gpu).filter_map(|fault| match fault.what {
            Incident::Throttle { reason, for_bytes } => {
                let end = for_bytes.map_or(u64::MAX, |more| fault.after_bytes.saturating_add(more));
                Some((fault.after_bytes, end, reason))
            }
            _ => None,
        })
    }
}

/// Changes what an entry gives.
pub(super) fn change(gpu: &mut Gpu, keys: &GpuKeys) -> Result<(), Problem> {
    let health = &mut gpu.health;
    if let Some(mig) = &keys.mig {
        let is_divisible = is_divisible(gpu.compute_capability);
        if *mig.get_ref() && !is_divisible {
            let text = "such a GPU cannot be cut up: that takes compute capability 8.0, 9, 10 or \
                        12.0";
            return Err(Problem::new(mig, "gpu.mig", text.to_owned()));
        }
        health.mig = *mig.get_ref();
    }
    set(&mut health.ecc, keys.ecc);
    set(&mut health.ecc_errors.uncorrected, keys.ecc_errors.map(Whole::get));
    set(&mut health.ecc_errors.corrected, keys.ecc_corrected_errors.map(Whole::get));
    set(&mut health.fabric, keys.fabric.map(Some));
    set(&mut health.fabric_status, keys.fabric_status.map(Whole::get_u32));
    set(&mut health.clique, keys.clique.map(Whole::get_u32));
    set(&mut health.cluster_uuid, keys.cluster_uuid.map(|uuid| uuid.0));
    set(&mut health.temperature_c, keys.temperature_c.map(Whole::get_u32));
    set(&mut health.power_w, keys.power_w.map(Whole::get_u32));
    set(&mut health.power_limit_w, keys.power_limit_w.map(Whole::get_u32));
    set(&mut health.power_limit_default_w, keys.power_limit_default_w.map(Whole::get_u32));
    set(&mut health.compute_mode, keys.compute_mode);
    set(&mut health.persistence, keys.persistence);
    set(&mut health.vbios, keys.vbios.clone());
    set(&mut health.inforom, keys.inforom.clone());
    set(&mut health.nvlink_counters, keys.nvlink_counters);
    let bits = keys.pcie_counter_bits.map(|bits| Some(bits.get_u32()).filter(|&bits| bits > 0));
    set(&mut health.pcie_counter_bits, bits);
    Ok(())
}

/// Whether GPUs of this compute capability can be cut into instances: "NVIDIA Multi-Instance GPU
/// User Guide", Supported GPUs.
pub const fn is_divisible(compute_capability: (u32, u32)) -> bool {
    matches!(compute_capability, (8, 0) | (9..=10, _) | (12, 0))
}

/// What an entry says of a GPU to which something happens: one thing, and what belongs to it.
pub(super) fn fault(entry: &Spanned<HealthKeys>, gpu: Option<u32>) -> Result<HealthFault, Problem> {
    let keys = entry.get_ref();
    let bytes = |mib: Count| mib.get().saturating_mul(1 << 20);
    let counter = match keys.what {
        HealthWhat::EccCorrected => Some(ErrorCounter::EccCorrected),
        HealthWhat::EccUncorrected => Some(ErrorCounter::EccUncorrected),
        HealthWhat::NvlinkCrc => Some(ErrorCounter::NvLinkCrc),
        HealthWhat::NvlinkReplay => Some(ErrorCounter::NvLinkReplay),
        HealthWhat::NvlinkRecovery => Some(ErrorCounter::NvLinkRecovery),
        HealthWhat::PcieReplay => Some(ErrorCounter::PcieReplay),
        _ => None,
    };
    let what = match (keys.what, counter, keys.count, keys.reason, keys.for_mib, keys.xid) {
        (_, Some(counter), count, None, None, None) => {
            Some(Incident::Errors { counter, count: count.map_or(1, Whole::get) })
        }
        (HealthWhat::Throttle, _, None, Some(reason), for_mib, None) => {
            Some(Incident::Throttle { reason, for_bytes: for_mib.map(bytes) })
        }
        (HealthWhat::Xid, _, None, None, None, Some(number)) => {
            Some(Incident::Xid { number: number.get_u32() })
        }
        (HealthWhat::CountersRestart, _, None, None, None, None) => Some(Incident::CountersRestart),
        (HealthWhat::Lost, _, None, None, None, None) => Some(Incident::Lost),
        _ => None,
    };
    let what = what.ok_or_else(|| {
        let text = "`count` is for what counts errors, `reason`, which must be given, and \
                    `for_mib` for `what = \"throttle\"`, `xid` for \"xid\", which must have it";
        Problem::new(entry, "fault.health", text.to_owned())
    })?;
    Ok(HealthFault { gpu, after_bytes: keys.after_mib.map_or(0, bytes), what })
}
