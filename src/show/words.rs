//! Numbers and texts for readers.

use serde::Serialize;

use crate::{
    record::{Row, Status},
    units::{Bytes, readable_gb_s, readable_nanoseconds},
};

/// Text for Plotly, which takes text in angle brackets for markup, such as links.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The end of a title: whether a simulated machine was measured.
pub(super) const fn mark(is_simulated: bool) -> &'static str {
    if is_simulated { " [SIMULATED]" } else { "" }
}

/// A value, or a dash where there is none.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A value, or a question mark where it is unknown.
pub(super) fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

/// A size with few letters: exact where that is short, otherwise rounded.
pub(super) fn short_size(size: Bytes) -> String {
    let exact = size.to_string();
    if exact.len() <= "1000 KiB".len() { exact } else { size.rounded() }
}

/// `388 GB/s`, `2.1 µs`
pub(super) fn gb_s(value: f64) -> String {
    format!("{} GB/s", readable_gb_s(value))
}

/// A rate with three significant digits.
pub(super) fn short(gb_s: f64) -> String {
    match gb_s {
        100.0.. => format!("{gb_s:.0}"),
        10.0.. => format!("{gb_s:.1}"),
        1.0.. => format!("{gb_s:.2}"),
        _ => readable_gb_s(gb_s),
    }
}

/// The middle value, of an even count the upper of two; 0 of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The confidence interval of a row's bandwidth: `387.100 to 388.900`.
pub(super) fn interval(row: &Row) -> Option<String> {
    let (low, high) = row.bandwidth_gb_s_low.zip(row.bandwidth_gb_s_high)?;
    Some(format!("{} to {}", readable_gb_s(low), readable_gb_s(high)))
}

/// A time of so many nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole nanoseconds")]
pub(super) fn nanoseconds(value: f64) -> String {
    readable_nanoseconds(value.round() as u64)
}

/// `+3.1 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// A status, in capital letters if it is a fault.
pub(super) const fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Skipped => "skipped",
        Status::Corrupt => "CORRUPT",
        Status::Failed => "FAILED",
    }
}

/// A reason without its numbers, to recognise reasons that differ in nothing else.
pub(super) fn unnumbered(reason: &str) -> String {
    reason.replace(|letter: char| letter.is_ascii_digit(), "")
}

/// Indented JSON of plain numbers and texts.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
