//! Parsers of flags' values.

use std::time::Duration;

/// The range of times that a flag accepts.
const TIME_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// With a shorter deadline a healthy rank that is not scheduled could be late.
const DEADLINE_MIN: Duration = Duration::from_millis(100);

/// Leaves only the first of equal items.
pub(super) fn each_once<T: Copy + PartialEq>(list: &mut Vec<T>) {
    let mut seen = Vec::new();
    list.retain(|item| {
        let is_new = !seen.contains(item);
        seen.push(*item);
        is_new
    });
}

pub(crate) fn precision(text: &str) -> Result<f64, String> {
    let share = share(text).filter(|&share| share > 0.0 && share <= 0.5);
    share.ok_or_else(|| "write a percentage above 0 and at most 50, such as 1% or 0.5%".to_owned())
}

pub(crate) fn threshold(text: &str) -> Result<f64, String> {
    let share = share(text).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a percentage from 0% to 100%, such as 5%".to_owned())
}

/// A percentage, with or without `%`, as a fraction.
fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%').unwrap_or(text).parse().ok()?;
    Some(percent / 100.0)
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let refused = || "write a time with its unit, such as 500ms, 2s or 1m; 1ms to 30d".to_owned();
    let time: jiff::SignedDuration = text.parse().map_err(|_| refused())?;
    let time = Duration::try_from(time).map_err(|_| refused())?;
    if (TIME_MIN..=TIME_MAX).contains(&time) { Ok(time) } else { Err(refused()) }
}

pub(crate) fn deadline(text: &str) -> Result<Duration, String> {
    match time(text) {
        Ok(time) if time < DEADLINE_MIN => Err("a healthy rank may need 100ms".to_owned()),
        other => other,
    }
}
