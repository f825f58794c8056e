//! Quantities, and the only place where they are scaled.
//!
//! Inside the program a value carries its quantity in its type. A unit appears in a name only
//! where a bare number leaves the program: an accessor, a CSV column, a flag's help text.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// All are powers of 1024, in capital letters or not, as in nccl-tests.
const SUFFIXES: [(&str, u64); 9] = [
    ("kib", KIB),
    ("mib", MIB),
    ("gib", GIB),
    ("kb", KIB),
    ("mb", MIB),
    ("gb", GIB),
    ("k", KIB),
    ("m", MIB),
    ("g", GIB),
];

/// An amount of data.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bytes(u64);

/// A size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    /// Not a number with one of the suffixes.
    #[error("`{0}` is not a size: write bytes, or a whole number with K, M or G (powers of 1024)")]
    Syntax(String),
    /// More than a 64-bit count of bytes holds.
    #[error("`{0}` is too large: a size is below 2^64 bytes")]
    Overflow(String),
}

impl Bytes {
    /// `n` bytes.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// `n` KiB, of 1024 bytes each.
    pub const fn kib(n: u64) -> Self {
        Self(n * KIB)
    }

    /// `n` MiB, of 1024² bytes each.
    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// The length of something in memory.
    pub const fn of_len(n: usize) -> Self {
        Self(n as u64)
    }

    /// The bare count, for a foreign call or a CSV cell.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The count as a length in memory; an error if addresses here cannot hold it.
    pub fn to_len(self) -> Result<usize, BadSize> {
        usize::try_from(self.0).map_err(|_| BadSize::Overflow(self.to_string()))
    }

    /// Rounded to a tenth of the largest binary unit, for a sentence: `31.9 GiB`.
    pub fn rounded(self) -> String {
        let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        match units.into_iter().find(|&(scale, _)| self.0 >= scale) {
            Some((scale, unit)) => format!("{:.1} {unit}", self.0 as f64 / scale as f64),
            None => self.to_string(),
        }
    }

    /// Both together; stays at the largest size rather than wrap.
    pub const fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// This many bytes `count` times over; stays at the largest size rather than wrap.
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

/// The rate at which `moved` crossed in `elapsed`, in GB/s, where 1 GB is 10⁹ bytes, as in vendors'
/// link rates and in nccl-tests; `None` if the clock did not advance.
pub fn gb_s(moved: Bytes, elapsed: Duration) -> Option<f64> {
    (!elapsed.is_zero()).then(|| moved.get() as f64 / elapsed.as_secs_f64() / 1e9)
}

/// A rate in 10⁹ bits per second, as networks have it, in 10⁹ bytes per second.
pub fn gb_s_of_gbit_s(gbit_s: f64) -> f64 {
    gbit_s / 8.0
}

/// What a transfer of `size` takes at `gb_s`, in microseconds.
pub fn microseconds_at(size: Bytes, gb_s: f64) -> f64 {
    size.get() as f64 / gb_s / 1e3
}

/// The rate that moves `size` in so many microseconds, in 10⁹ bytes per second; `None` if no time
/// passed.
pub fn gb_s_of_microseconds(size: Bytes, us: f64) -> Option<f64> {
    (us > 0.0).then(|| size.get() as f64 / us / 1e3)
}

/// A rate in 10⁶ bytes per second, as fabtests and OSU's benchmarks print theirs, in 10⁹.
pub fn gb_s_of_mb_s(mb_s: f64) -> f64 {
    mb_s / 1e3
}

/// A rate in 10⁹ bytes per second in bytes per second.
pub fn bytes_per_s_of_gb_s(gb_s: f64) -> f64 {
    gb_s * 1e9
}

/// Nanoseconds in seconds.
pub fn seconds_of_nanoseconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Microseconds in whole nanoseconds; `None` if negative or above 2⁵³ ns.
pub fn nanoseconds_of_microseconds(us: f64) -> Option<u64> {
    whole_nanoseconds(us * 1e3)
}

/// Nanoseconds, rounded; `None` if negative or above 2⁵³.
pub fn whole_nanoseconds(ns: f64) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^53")]
    (0.0..=(1u64 << f64::MANTISSA_DIGITS) as f64).contains(&ns).then(|| ns.round() as u64)
}

/// Whole nanoseconds; stays at the largest value rather than wrap (584 years).
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What is so many 10⁶ of something, in 10⁹ of it: MB/s in GB/s, Mbit/s in Gbit/s.
pub fn giga_of_mega(mega: u64) -> f64 {
    mega as f64 / 1e3
}

/// A time in nanoseconds as a person reads it: `212 ns`, `4.52 µs`, `6.81 ms`, `1.20 s`.
pub fn readable_nanoseconds(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// A count with its noun, such as `1 GPU` or `4 GPUs`.
pub fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A bandwidth in GB/s for people: three decimals, and three digits that count below 1.
pub fn readable_gb_s(gb_s: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "3 to 9")]
    let decimals = (2.0 - gb_s.abs().log10().floor()).clamp(3.0, 9.0) as usize;
    let decimals = if gb_s.abs() < 1.0 && gb_s != 0.0 { decimals } else { 3 };
    format!("{gb_s:.decimals$}")
}

impl fmt::Display for Bytes {
    /// Exact: the largest binary unit that divides the size, so that nothing is rounded away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            n if n != 0 && n % GIB == 0 => (n / GIB, "GiB"),
            n if n != 0 && n % MIB == 0 => (n / MIB, "MiB"),
            n if n != 0 && n % KIB == 0 => (n / KIB, "KiB"),
            n => (n, "B"),
        };
        f.pad(&format!("{count} {unit}"))
    }
}

impl FromStr for Bytes {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let lower = text.to_ascii_lowercase();
        let (digits, scale) = SUFFIXES
            .into_iter()
            .find_map(|(suffix, scale)| Some((lower.strip_suffix(suffix)?, scale)))
            .unwrap_or((&lower, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadSize::Syntax(text.to_owned()));
        }
        digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(scale))
            .map(Self)
            .ok_or_else(|| BadSize::Overflow(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("4K", 4096),
            ("4KiB", 4096),
            ("128m", 128 << 20),
            ("8gb", 8 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_ambiguous_or_no_size_is_refused() {
        for text in ["", "K", "64B", "64T", "1e6", "1.5M", "-1", "+1", " 1", "0x10", "4 K"] {
            assert_eq!(text.parse::<Bytes>(), Err(BadSize::Syntax(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_size_past_64_bits_is_refused_and_not_wrapped() {
        for text in ["18446744073709551616", "17179869184G", "99999999999999999999K"] {
            assert_eq!(text.parse::<Bytes>(), Err(BadSize::Overflow(text.to_owned())));
        }
        assert_eq!("17179869183G".parse(), Ok(Bytes::new(17_179_869_183 << 30)));
    }

    #[test]
    fn a_size_is_shown_exactly() {
        for (bytes, text) in
            [(0, "0 B"), (1000, "1000 B"), (1025, "1025 B"), (4096, "4 KiB"), (3 << 30, "3 GiB")]
        {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_rounded_size_keeps_a_tenth() {
        for (bytes, text) in [(7, "7 B"), (1536, "1.5 KiB"), (34_252_000_000, "31.9 GiB")] {
            assert_eq!(Bytes::new(bytes).rounded(), text);
        }
    }

    #[test]
    fn bandwidth_is_decimal_and_needs_time() {
        assert_eq!(gb_s(Bytes::new(3_000_000), Duration::from_millis(1)), Some(3.0));
        assert_eq!(gb_s(Bytes::new(1), Duration::ZERO), None);
    }

    #[test]
    fn times_and_rates_of_other_programs_come_in_units_of_our_own() {
        assert_eq!(gb_s_of_microseconds(Bytes::new(8_000_000), 100.0), Some(80.0));
        assert_eq!(gb_s_of_microseconds(Bytes::new(8), 0.0), None);
        assert_eq!(gb_s_of_mb_s(12_500.0), 12.5);
        assert_eq!(nanoseconds_of_microseconds(1.2346), Some(1235));
        for no_time in [-1.0, f64::NAN, f64::INFINITY, 1e30] {
            assert_eq!(nanoseconds_of_microseconds(no_time), None);
        }
    }

    #[test]
    fn slow_rates_keep_three_digits() {
        let texts = [370.25, 1.0, 0.1, 0.02391, 0.00213, 0.0].map(readable_gb_s);
        assert_eq!(texts, ["370.250", "1.000", "0.100", "0.0239", "0.00213", "0.000"]);
    }

    #[test]
    fn times_are_readable_in_every_range() {
        for (ns, text) in [(0, "0 ns"), (999, "999 ns"), (4_520, "4.52 µs"), (6_810_000, "6.81 ms")]
        {
            assert_eq!(readable_nanoseconds(ns), text);
        }
        assert_eq!(readable_nanoseconds(1_200_000_000), "1.20 s");
    }
}
