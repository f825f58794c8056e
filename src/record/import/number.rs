//! Numbers as they were printed: how much of them is known.

use crate::units::{self, Bytes};

/// A number, and how much the last of its digits counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Printed {
    pub(super) value: f64,
    step: f64,
}

impl Printed {
    /// A number that is not negative, as C's `%f`, `%g` and `%e` print it.
    pub(super) fn read(text: &str) -> Option<Self> {
        let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let exponent: i32 = exponent.parse().ok()?;
        let last = exponent.saturating_sub(i32::try_from(decimals).ok()?);
        Some(Self { value, step: 10_f64.powi(last) })
    }

    /// A number with so many decimals, which JSON does not keep.
    pub(super) fn rounded(value: f64, decimals: i32) -> Option<Self> {
        let is_one = value.is_finite() && value >= 0.0;
        is_one.then(|| Self { value, step: 10_f64.powi(-decimals) })
    }

    /// In another unit.
    pub(super) fn map(self, scale: impl Fn(f64) -> f64) -> Self {
        Self { value: scale(self.value), step: scale(self.step) }
    }

    /// How far off it may be, as a share of it.
    pub(super) fn uncertainty(self) -> f64 {
        self.step / self.value
    }
}

/// The rate of `size` from two numbers that both say it: a rate in GB/s and a time in
/// microseconds. Small transfers have a rate of few digits, large ones a time of few; the one that
/// has more is taken. `None` where nothing was moved, or in no time.
pub(super) fn rate(size: Bytes, gb_s: Option<Printed>, us: Option<Printed>) -> Option<Rate> {
    let is_closer = |us: Printed| gb_s.is_none_or(|gb_s| us.uncertainty() < gb_s.uncertainty());
    let by_time = us.filter(|us| us.value > 0.0 && is_closer(*us));
    let rate = match by_time {
        Some(us) => Rate { gb_s: units::gb_s_of_microseconds(size, us.value)?, is_by_time: true },
        None => Rate { gb_s: gb_s?.value, is_by_time: false },
    };
    (rate.gb_s > 0.0 && rate.gb_s.is_finite()).then_some(rate)
}

/// A rate, and which of two numbers it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) gb_s: f64,
    pub(super) is_by_time: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_with_more_digits_says_the_rate() {
        let of = |size, gb_s: &str, us: &str| {
            rate(Bytes::new(size), Printed::read(gb_s), Printed::read(us)).map(|rate| rate.gb_s)
        };
        assert_eq!(of(8, "0.00", "10.00"), Some(0.0008));
        assert_eq!(of(1 << 30, "234.56", "4578"), Some(234.56));
        assert_eq!(of(1 << 30, "234.56", "4.6e+03"), Some(234.56));
        assert_eq!(of(0, "0.00", "10.00"), None);
        assert_eq!(of(8, "0.00", "0.00"), None);
        assert_eq!(of(8, "inf", "N/A"), None);
        for text in ["-1.0", "nan", "1.0e", "1e99999", ""] {
            assert_eq!(Printed::read(text), None, "{text}");
        }
    }
}
