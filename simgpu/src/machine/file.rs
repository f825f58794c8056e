//! Machine files: what their keys are and what values they take. `docs/machines.md`, "Machine
//! files", is their description; a test holds it to this file.

use std::{fs, path::Path};

use serde::Deserialize;
use toml::Spanned;

use super::{
    BadMachine, FabricState, GPUS_MAX, Machine, NVLINKS_MAX, Rate, Throttle, apply,
    nics::PortState, problem::Problem,
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

/// A whole number within bounds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// For bounds below 2^32.
    pub(super) fn get_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<i64> for Whole<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let within = u64::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        within.map(Self).ok_or_else(|| match MIN == MAX {
            true => format!("{number} is not {MIN}, the only value there is"),
            false => format!("{number} is not between {MIN} and {MAX}"),
        })
    }
}

/// A whole number that is not negative.
pub(super) type Count = Whole<0, { i64::MAX as u64 }>;

/// Declares a type for numbers of which not all are allowed.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $allowed:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Deserialize)]
        #[serde(try_from = "f64")]
        pub(super) struct $name(f64);

        impl $name {
            pub(super) fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = String;

            fn try_from(number: f64) -> Result<Self, String> {
                let allowed: fn(f64) -> bool = $allowed;
                if allowed(number) { Ok(Self(number)) } else { Err(format!("{number} {}", $rule)) }
            }
        }
    };
}

number!(
    /// GB/s.
    Speed,
    |number| number > 0.0 && number.is_finite(),
    "is not a rate, which is above 0 and finite"
);
number!(
    /// Nanoseconds.
    Latency,
    |number| (0.0..=1e12).contains(&number),
    "is not a latency, which is between 0 and 1e12 nanoseconds"
);
number!(
    /// GB/s of all that shares a port; `inf` for none.
    Limit,
    |number| number > 0.0,
    "is not a limit, which is above 0, or `inf` for none"
);
number!(
    /// How many of all.
    Share,
    |number| (0.0..=1.0).contains(&number),
    "is not a share, which is between 0 and 1"
);
number!(
    /// What is left of a speed.
    Fraction,
    |number| number > 0.0 && number <= 1.0,
    "is not a fraction of a speed, which is above 0 and at most 1"
);

/// `DDDD:BB:DD`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PciAddress(pub (u32, u32, u32));

impl TryFrom<String> for PciAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |at: usize, digits: usize| {
            let part = parts.get(at).filter(|part| part.len() == digits)?;
            u32::from_str_radix(part, 16).ok()
        };
        match (number(0, 4), number(1, 2), number(2, 2)) {
            (Some(domain), Some(bus), Some(device)) if device < 32 && parts.len() == 3 => {
                Ok(Self((domain, bus, device)))
            }
            _ => Err(format!("`{text}` is not a PCI address such as `0000:1a:00`")),
        }
    }
}

/// The version of what is installed; `None`: it is not.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Installed(pub Option<String>);

impl TryFrom<String> for Installed {
    type Error = String;

    fn try_from(version: String) -> Result<Self, String> {
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        match version.as_str() {
            "none" => Ok(Self(None)),
            _ if version.split('.').all(is_part) => Ok(Self(Some(version))),
            _ => Err(format!("`{version}` is no version such as `2.1.0`, and not `none`")),
        }
    }
}

/// A path from the root, without detours.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct AbsolutePath(pub String);

impl TryFrom<String> for AbsolutePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let is_name = |part: &str| !["", ".", ".."].contains(&part);
        match path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_name)) {
            true => Ok(Self(path)),
            false => Err(format!("`{path}` is no path such as `/proc/cmdline`, from the root")),
        }
    }
}

/// Five groups of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Uuid(pub [u8; 16]);

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refusal =
            || format!("`{text}` is not a UUID such as `8f0c1a52-0000-4000-8000-000000000001`");
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        let digits: String = text.split('-').collect();
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if groups != [8, 4, 4, 4, 12] || !is_hex {
            return Err(refusal());
        }
        u128::from_str_radix(&digits, 16)
            .map(|uuid| Self(uuid.to_be_bytes()))
            .map_err(|_| refusal())
    }
}

/// Bits of a counter.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct Bits(u32);

impl Bits {
    /// 0: there is no counter.
    pub(super) const fn get_u32(self) -> u32 {
        self.0
    }
}

impl TryFrom<i64> for Bits {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match number {
            0 => Ok(Self(0)),
            32 => Ok(Self(32)),
            64 => Ok(Self(64)),
            _ => Err(format!("{number} is not 0 (no counter), 32 or 64")),
        }
    }
}

/// The name of a call, without a version suffix.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct CallName(pub String);

impl TryFrom<String> for CallName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if !["cu", "nvml", "nccl"].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(format!("`{name}` is not a call of the driver, of NVML or of NCCL"));
        }
        match name.rsplit_once("_v") {
            Some((base, version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => {
                Err(format!("calls have no version suffix here: write `{base}`"))
            }
            _ => Ok(Self(name)),
        }
    }
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
