//! Machine files: what their keys are and what values they take. `docs/machines.md`, "Machine
//! files", is their description; a test holds it to this file.

use std::{fs, path::Path};

use serde::Deserialize;
use toml::Spanned;

use super::{
    BadMachine, ComputeMode, FabricState, GPUS_MAX, Machine, NVLINKS_MAX, NicFault, Rate, Throttle,
    apply,
    nics::PortState,
    problem::Problem,
    values::{
        AbsolutePath, Bits, CallName, Count, Fraction, Installed, Latency, Limit, PciAddress,
        Share, Speed, Uuid, Whole,
    },
};
use crate::timing::QUEUE;

/// A machine file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The version of this form of file.
    #[expect(dead_code, reason = "its one value is checked when it is read")]
    schema: Whole<1, 1>,
    pub name: Option<String>,
    pub from: Option<Spanned<String>>,
    pub hosts: Option<Spanned<Whole<1, { GPUS_MAX as u64 }>>>,
    pub gpu_count: Option<Spanned<Whole<1, { GPUS_MAX as u64 }>>>,
    pub nvswitch: Option<Spanned<bool>>,
    pub event_resolution_ns: Option<Whole<1, 1_000_000>>,
    pub driver_version: Option<Whole<11_000, 99_999>>,
    pub confidential_computing: Option<bool>,
    pub symbolic_memory: Option<bool>,
    pub report: Option<String>,
    #[serde(default)]
    pub gpu: Vec<GpuKeys>,
    #[serde(default)]
    pub pair: Vec<Spanned<PairKeys>>,
    #[serde(default)]
    pub nic: Vec<NicKeys>,
    #[serde(default)]
    pub host: HostKeys,
    pub driver: Option<DriverKeys>,
    pub efa: Option<EfaKeys>,
    pub nccl: Option<NcclKeys>,
    #[serde(default)]
    pub fault: FaultKeys,
}

/// `[[nic]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NicKeys {
    pub indices: Option<Vec<Spanned<i64>>>,
    #[serde(default)]
    pub missing: bool,
    pub state: Option<PortState>,
    pub rate_gbps: Option<Whole<1, 10_000>>,
    pub pcie_generation: Option<Whole<1, 7>>,
    pub pcie_generation_max: Option<Whole<1, 7>>,
    pub pcie_lanes: Option<Whole<1, 32>>,
    pub pcie_lanes_max: Option<Whole<1, 32>>,
    pub numa_node: Option<Whole<0, 1023>>,
}

/// `[host]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostKeys {
    pub product: Option<String>,
    pub hostname: Option<String>,
    pub boot_id: Option<String>,
    pub kernel: Option<String>,
    pub cpus: Option<Whole<1, 4096>>,
    pub memory_mib: Option<Whole<1, { 1 << 30 }>>,
    pub memlock_kib: Option<Whole<0, { 1 << 40 }>>,
    pub shm_mib: Option<Whole<1, { 1 << 30 }>>,
    pub iommu: Option<bool>,
    pub governor: Option<String>,
    pub fabric_manager: Option<bool>,
    pub imex: Option<bool>,
    pub libfabric: Option<Installed>,
    pub ofi_nccl: Option<Installed>,
    pub nccl: Option<Installed>,
    pub cuda_runtime: Option<Installed>,
    pub modules_absent: Option<Vec<String>>,
    #[serde(default)]
    pub file: Vec<Spanned<FileKeys>>,
}

/// `[[host.file]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileKeys {
    pub path: AbsolutePath,
    pub text: Option<String>,
    pub link: Option<String>,
    #[serde(default)]
    pub absent: bool,
    #[serde(default)]
    pub denied: bool,
    pub process: Option<Whole<0, 255>>,
}

/// `[driver]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DriverKeys {
    pub queue_entries: Option<Whole<16, { QUEUE as u64 }>>,
    pub call_ms: Option<Whole<0, 60_000>>,
    pub context_ms: Option<Whole<0, 60_000>>,
    pub pin_ms_per_gib: Option<Whole<0, 60_000>>,
    pub event_ns: Option<Whole<0, 1_000_000>>,
    pub event_error_ns: Option<Whole<0, 1_000_000>>,
    pub idle_clock_percent: Option<Whole<1, 100>>,
    pub clock_rise_ms: Option<Whole<0, 60_000>>,
    pub clock_fall_ms: Option<Whole<0, 60_000>>,
}

/// `[efa]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EfaKeys {
    pub reads: Option<bool>,
    pub writes: Option<bool>,
    pub queue_entries: Option<Whole<16, 8192>>,
    pub rate_share: Option<Fraction>,
    pub protocol_share: Option<Fraction>,
    pub latency_ns: Option<Whole<0, 1_000_000_000>>,
    pub protocol_ns: Option<Whole<0, 1_000_000_000>>,
    pub far_ns: Option<Whole<0, 1_000_000_000>>,
    pub post_ns: Option<Whole<0, 1_000_000_000>>,
    pub operation_ns: Option<Whole<0, 1_000_000_000>>,
    pub shuffle_ns: Option<Whole<0, 1_000_000_000>>,
}

/// `[nccl]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NcclKeys {
    pub nvls: Option<bool>,
    pub nvls_efficiency: Option<Fraction>,
    pub net_gb_s: Option<Speed>,
    pub init_ms: Option<Whole<0, 60_000>>,
    pub work_fifo_bytes: Option<Whole<512, { 1 << 30 }>>,
    pub net_name: Option<String>,
}

/// `[[gpu]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GpuKeys {
    pub ordinals: Option<Spanned<Vec<Spanned<i64>>>>,
    pub name: Option<String>,
    pub memory_mib: Option<Whole<1, { 1 << 24 }>>,
    pub compute_capability: Option<[Whole<0, 99>; 2]>,
    pub multiprocessors: Option<Whole<1, 65_535>>,
    pub sm_clock_mhz: Option<Whole<1, 65_535>>,
    pub memory_clock_mhz: Option<Whole<1, 65_535>>,
    pub memory_bus_bits: Option<Whole<1, 65_535>>,
    pub pci: Option<Spanned<PciAddress>>,
    pub pcie_generation: Option<Whole<1, 7>>,
    pub pcie_generation_max: Option<Whole<1, 7>>,
    pub pcie_lanes: Option<Whole<1, 32>>,
    pub pcie_lanes_max: Option<Whole<1, 32>>,
    pub pcie_switch: Option<Spanned<Whole<0, 63>>>,
    pub numa_node: Option<Whole<0, 1023>>,
    pub nvlinks: Option<Spanned<Whole<0, { NVLINKS_MAX as u64 }>>>,
    pub nvlink_generation: Option<Whole<1, 5>>,
    pub nvlinks_down: Option<Vec<Spanned<i64>>>,
    pub local_ce: Option<RateKeys>,
    pub local_sm: Option<RateKeys>,
    pub from_host_ce: Option<RateKeys>,
    pub from_host_sm: Option<RateKeys>,
    pub to_host_ce: Option<RateKeys>,
    pub to_host_sm: Option<RateKeys>,
    pub load_latency_ns: Option<Latency>,
    pub host_load_latency_ns: Option<Latency>,
    pub egress_gb_s: Option<Limit>,
    pub ingress_gb_s: Option<Limit>,
    pub pcie_up_gb_s: Option<Limit>,
    pub pcie_down_gb_s: Option<Limit>,
    pub launch_ns: Option<Latency>,
    pub throttle: Option<Vec<Throttle>>,
    pub mig: Option<Spanned<bool>>,
    pub ecc: Option<bool>,
    pub ecc_errors: Option<Count>,
    pub ecc_corrected_errors: Option<Count>,
    pub fabric: Option<FabricState>,
    pub fabric_status: Option<Whole<0, 999>>,
    pub clique: Option<Whole<0, 65_535>>,
    pub cluster_uuid: Option<Uuid>,
    pub temperature_c: Option<Whole<0, 150>>,
    pub power_w: Option<Whole<0, 9999>>,
    pub power_limit_w: Option<Whole<1, 9999>>,
    pub power_limit_default_w: Option<Whole<1, 9999>>,
    pub compute_mode: Option<ComputeMode>,
    pub persistence: Option<bool>,
    pub vbios: Option<String>,
    pub inforom: Option<String>,
    pub nvlink_counters: Option<bool>,
    pub pcie_counter_bits: Option<Bits>,
}

/// `[[pair]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    #[serde(default)]
    pub both_ways: bool,
    pub nvlinks: Option<Spanned<Whole<0, { NVLINKS_MAX as u64 }>>>,
    pub read_allowed: Option<bool>,
    pub write_allowed: Option<bool>,
    pub atomics: Option<bool>,
    pub ce_read: Option<RateKeys>,
    pub ce_write: Option<RateKeys>,
    pub sm_read: Option<RateKeys>,
    pub sm_write: Option<RateKeys>,
    pub load_latency_ns: Option<Latency>,
}

/// What is in the braces of a rate.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateKeys {
    gb_s: Option<Speed>,
    latency_ns: Option<Latency>,
}

/// `[[fault.…]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultKeys {
    #[serde(default)]
    pub slow: Vec<SlowKeys>,
    #[serde(default)]
    pub jitter: Vec<Spanned<JitterKeys>>,
    #[serde(default)]
    pub flip: Vec<FlipKeys>,
    #[serde(default)]
    pub call: Vec<Spanned<CallKeys>>,
    #[serde(default)]
    pub rank: Vec<Spanned<RankKeys>>,
    #[serde(default)]
    pub health: Vec<Spanned<HealthKeys>>,
    #[serde(default)]
    pub detour: Vec<DetourKeys>,
    #[serde(default)]
    pub nic: Vec<NicFaultKeys>,
    #[serde(default)]
    pub network: Vec<NetworkKeys>,
}

/// `[[fault.slow]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlowKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    #[serde(default)]
    pub both_ways: bool,
    pub fraction: Fraction,
}

/// `[[fault.jitter]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JitterKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    pub share: Share,
    pub extra_ns: Option<Latency>,
    pub extra_share: Option<Share>,
    pub lasts_ns: Option<Latency>,
    pub after_ns: Option<Latency>,
}

/// `[[fault.flip]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlipKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    pub offset: Option<Count>,
    pub after: Option<Count>,
    #[serde(default)]
    pub always: bool,
}

/// `[[fault.call]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallKeys {
    pub name: CallName,
    pub process: Option<Whole<0, 63>>,
    #[serde(default)]
    pub what: CallWhat,
    pub after: Option<Count>,
    pub code: Option<Whole<1, 99_999>>,
    #[serde(default)]
    pub always: bool,
}

/// The values of `what` of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CallWhat {
    #[default]
    Refused,
    Hung,
    Killed,
    Stopped,
}

/// `[[fault.rank]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RankKeys {
    pub rank: Option<Whole<0, 63>>,
    pub name: Option<CallName>,
    pub what: RankWhat,
    pub element: Option<Count>,
    pub code: Option<Whole<1, 9>>,
    pub reason: Option<String>,
    pub after: Option<Count>,
    #[serde(default)]
    pub always: bool,
}

/// The values of `what`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RankWhat {
    Wrong,
    Absent,
    Asynchronous,
    Refused,
}

/// `[[fault.nic]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NicFaultKeys {
    pub nic: Option<Spanned<i64>>,
    pub what: NicFault,
    pub after: Option<Count>,
    #[serde(default)]
    pub always: bool,
}

/// `[[fault.network]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    #[serde(default)]
    pub both_ways: bool,
    pub rail: Option<Spanned<i64>>,
    pub fraction: Fraction,
}

/// `[[fault.detour]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DetourKeys {
    pub source: Option<Spanned<i64>>,
    pub target: Option<Spanned<i64>>,
    #[serde(default)]
    pub both_ways: bool,
}

/// `[[fault.health]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HealthKeys {
    pub gpu: Option<Spanned<i64>>,
    pub what: HealthWhat,
    pub after_mib: Option<Count>,
    pub count: Option<Count>,
    pub reason: Option<Throttle>,
    pub for_mib: Option<Count>,
    pub xid: Option<Whole<1, 999>>,
}

/// The values of `what` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HealthWhat {
    EccCorrected,
    EccUncorrected,
    NvlinkCrc,
    NvlinkReplay,
    NvlinkRecovery,
    PcieReplay,
    Throttle,
    Xid,
    CountersRestart,
    Lost,
}

impl Limit {
    /// `None`: no limit.
    pub(super) fn finite(self) -> Option<f64> {
        Some(self.get()).filter(|gb_s| gb_s.is_finite())
    }
}

impl RateKeys {
    /// Changes what is given.
    pub(super) fn change(self, rate: &mut Rate) {
        rate.gb_s = self.gb_s.map_or(rate.gb_s, Speed::get);
        rate.latency_ns = self.latency_ns.map_or(rate.latency_ns, Latency::get);
    }
}

/// Reads a machine file.
pub(super) fn read(path: &Path) -> Result<Machine, BadMachine> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|refusal| BadMachine::Unreadable { path: shown.clone(), refusal })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&text, &name).map_err(|Problem { at, key, text: problem }| {
        let line = 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        BadMachine::Malformed { path: shown, line, key, problem }
    })
}

/// The machine of a file's text; `name` is what it is called if the text does not say.
pub(super) fn parse(text: &str, name: &str) -> Result<Machine, Problem> {
    apply::machine(toml::from_str(text)?, name)
}
