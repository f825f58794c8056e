//! Doubts about a number, from the health of the GPUs that it was measured on.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    machine::{
        counters::Reading,
        health::{Errors, Health, Xid},
    },
    plan::Gpu,
};

/// Clocks that are throttled for less of the time do not change a number.
const THROTTLED_SHARE: f64 = 0.01;

/// NVML's names of the reasons that throttle a GPU's clocks. `gpu_idle` is none, nor are
/// `applications_clocks_setting`, `sync_boost` and `display_clock_setting`, which users choose
/// (NVML API reference, "nvmlClocksEventReasons").
pub const THROTTLING: [&str; 5] = [
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
];

/// Something that happened to a GPU during a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The flag of the row.
    pub flag: &'static str,
    /// Which GPU.
    pub gpu: Gpu,
    /// What happened: a clause about the GPU.
    pub what: String,
}

/// What happened to GPUs in the time `between` two readings, and the errors that the driver
/// reported meanwhile.
pub fn doubts(before: &Reading, after: &Reading, between: Duration, xids: &[Xid]) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    for (gpu, before) in &before.gpus {
        let Ok(before) = before else { continue };
        let found = match after.gpus.get(gpu) {
            Some(Ok(after)) => changes(&before.health, &after.health, between),
            Some(Err(reason)) => vec![("gpu_lost", format!("it answers no more: {reason}"))],
            None => Vec::new(),
        };
        doubts.extend(found.into_iter().map(|(flag, what)| Doubt { flag, gpu: *gpu, what }));
    }
    doubts.extend(xids.iter().map(|Xid { gpu, number }| Doubt {
        flag: "xid",
        gpu: *gpu,
        what: format!("the driver tells of Xid {number}"),
    }));
    doubts
}

/// One of the counts of errors.
type Count = fn(&Errors) -> Option<u64>;

/// What has changed, each with its flag.
fn changes(before: &Health, after: &Health, between: Duration) -> Vec<(&'static str, String)> {
    let more = |counts: &[Count]| -> u64 {
        let grown = |of: &Count| Some(of(&after.errors)?.saturating_sub(of(&before.errors)?));
        counts.iter().filter_map(grown).fold(0, u64::saturating_add)
    };
    let mut found = Vec::new();
    if let Some(why) = throttling(before, after, between) {
        found.push(("throttled", why));
    }
    let mended = more(&[|errors| errors.ecc_corrected]);
    let lasting = more(&[|errors| errors.ecc_uncorrected]);
    if mended > 0 || lasting > 0 {
        let what = format!("{mended} errors of its memory more were mended, {lasting} were not");
        found.push(("new_ecc_errors", what));
    }
    let links = more(&[
        |errors| errors.nvlink_crc,
        |errors| errors.nvlink_replays,
        |errors| errors.nvlink_recoveries,
    ]);
    if links > 0 {
        let what = format!("{links} errors more on its NVLinks (wrong, sent again, trained again)");
        found.push(("new_nvlink_errors", what));
    }
    let replays = more(&[|errors| errors.pcie_replays]);
    if replays > 0 {
        found.push(("new_pcie_replays", format!("PCIe has sent {replays} packets more again")));
    }
    found
}

/// What throttles the clocks now, or has done so in between.
fn throttling(before: &Health, after: &Health, between: Duration) -> Option<String> {
    // Not those before: `hw_slowdown` also appears for a moment while clocks change.
    let now = after.condition.throttle_reasons.iter().flatten().map(String::as_str);
    let reasons: Vec<&str> = now.filter(|reason| THROTTLING.contains(reason)).collect();
    if !reasons.is_empty() {
        return Some(format!("its clocks are held down ({})", reasons.join(" ")));
    }
    let kinds: [(&str, Count); 3] = [
        ("the power limit", |errors| errors.power_throttled_ns),
        ("heat", |errors| errors.thermal_throttled_ns),
        ("the board's limit", |errors| errors.board_throttled_ns),
    ];
    kinds.into_iter().find_map(|(name, of)| {
        let grown = of(&after.errors)?.checked_sub(of(&before.errors)?)?;
        let throttled = Duration::from_nanos(grown);
        let is_long = throttled.as_secs_f64() > THROTTLED_SHARE * between.as_secs_f64();
        let ms = throttled.as_millis();
        is_long.then(|| format!("its clocks were held down by {name} for {ms} ms"))
    })
}

/// The flags of a row, each once.
pub fn flags(doubts: &[Doubt]) -> Vec<&'static str> {
    let mut seen = BTreeSet::new();
    doubts.iter().map(|doubt| doubt.flag).filter(|flag| seen.insert(*flag)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::{counters::OfGpu, health::Condition};

    fn health() -> Health {
        Health {
            condition: Condition {
                pcie_generation: Some(5),
                pcie_lanes: Some(16),
                sm_clock_mhz: Some(1980),
                memory_clock_mhz: Some(2619),
                throttle_reasons: Some(Vec::new()),
                temperature_c: Some(40),
                power_mw: Some(100_000),
                power_limit_mw: Some(700_000),
            },
            errors: Errors {
                ecc_corrected: Some(1),
                ecc_uncorrected: Some(1),
                nvlink_crc: Some(1),
                nvlink_replays: Some(1),
                nvlink_recoveries: Some(1),
                pcie_replays: Some(1),
                power_throttled_ns: Some(1),
                thermal_throttled_ns: Some(1),
                board_throttled_ns: Some(1),
            },
        }
    }

    fn reading(health: Health) -> Reading {
        let gpu = OfGpu {
            nvlinks: Err("not supported".to_owned()),
            pcie: Err("not supported".to_owned()),
            health,
        };
        Reading { gpus: BTreeMap::from([(Gpu(3), Ok(gpu))]), ..Reading::default() }
    }

    /// The flags of what changes from a GPU that is well.
    fn flags_of(change: impl FnOnce(&mut Health)) -> Vec<&'static str> {
        let mut after = health();
        change(&mut after);
        let second = Duration::from_secs(1);
        let doubts = doubts(&reading(health()), &reading(after), second, &[]);
        assert!(doubts.iter().all(|doubt| doubt.gpu == Gpu(3)));
        flags(&doubts)
    }

    fn held_down(reason: &str) -> impl FnOnce(&mut Health) {
        let reasons = Some(vec![reason.to_owned()]);
        |health| health.condition.throttle_reasons = reasons
    }

    #[test]
    fn each_change_has_its_flag_and_no_other() {
        assert!(flags_of(|_| {}).is_empty());
        assert_eq!(flags_of(|health| health.errors.ecc_corrected = Some(2)), ["new_ecc_errors"]);
        assert_eq!(flags_of(|health| health.errors.ecc_uncorrected = Some(2)), ["new_ecc_errors"]);
        for change in [
            |errors: &mut Errors| errors.nvlink_crc = Some(2),
            |errors: &mut Errors| errors.nvlink_replays = Some(2),
            |errors: &mut Errors| errors.nvlink_recoveries = Some(2),
        ] {
            assert_eq!(flags_of(|health| change(&mut health.errors)), ["new_nvlink_errors"]);
        }
        assert_eq!(flags_of(|health| health.errors.pcie_replays = Some(9)), ["new_pcie_replays"]);
        // A counter that goes back or is told no more has nothing new.
        assert!(flags_of(|health| health.errors.ecc_corrected = Some(0)).is_empty());
        assert!(flags_of(|health| health.errors.nvlink_crc = None).is_empty());
    }

    #[test]
    fn idle_gpus_and_chosen_clocks_are_not_throttled() {
        for reason in THROTTLING {
            assert_eq!(flags_of(held_down(reason)), ["throttled"], "{reason}");
        }
        let others =
            ["gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"];
        for reason in others {
            assert!(flags_of(held_down(reason)).is_empty(), "{reason}");
        }
    }

    #[test]
    fn clocks_that_were_held_down_in_between_count_from_a_hundredth_of_the_time_on() {
        let after =
            |ns: u64| flags_of(move |health| health.errors.thermal_throttled_ns = Some(1 + ns));
        assert!(after(9_000_000).is_empty());
        assert_eq!(after(11_000_000), ["throttled"]);
    }

    #[test]
    fn a_gpu_that_answers_no_more_is_lost_and_errors_of_the_driver_are_told() {
        let mut gone = reading(health());
        gone.gpus.insert(Gpu(3), Err("the GPU is lost".to_owned()));
        let xid = Xid { gpu: Gpu(1), number: 79 };
        let doubts = doubts(&reading(health()), &gone, Duration::ZERO, &[xid, xid]);
        assert_eq!(flags(&doubts), ["gpu_lost", "xid"]);
        assert_eq!(doubts[1].what, "the driver tells of Xid 79");
        // What was not there before is not lost now.
        assert!(super::doubts(&gone, &gone, Duration::ZERO, &[]).is_empty());
    }
}
