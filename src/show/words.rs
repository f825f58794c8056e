//! Numbers and texts as a person reads them.

use crate::units::{Bytes, readable_gb_s, readable_nanoseconds};

/// Text as Plotly shows it: it takes what stands in angle brackets for markup, such as links.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
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

/// A time of so many nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole nanoseconds")]
pub(super) fn nanoseconds(value: f64) -> String {
    readable_nanoseconds(value.round() as u64)
}

/// `+3.1 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}
