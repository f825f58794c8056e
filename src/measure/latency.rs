//! The latencies of a case as one histogram.

use std::time::Duration;

use hdrhistogram::{
    Histogram,
    serialization::{Deserializer as HistogramReader, Serializer as HistogramWriter, V2Serializer},
};
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use super::{SAMPLES_FOR_INTERVAL, summary::interval_place};
use crate::units::nanoseconds;

/// The longest latency that a histogram holds: 1 hour. Longer ones count as 1 hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The first bytes of a compressed histogram ("Internal format of V2" in HdrHistogram's wiki), and
/// the length of its header when it is decompressed.
const COMPRESSED: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];
const HEAD_BYTES: usize = 40;

/// The longest histogram that g2g writes: 64 times 1024 counts of up to nine bytes.
const BYTES_MAX: usize = HEAD_BYTES + 9 * 64 * 1024;

/// Latencies in nanoseconds, each within 0.1 %; from 1 ns to 1 hour.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Latency {
    /// Relative error of a value read from a histogram: below 1 in 1000.
    pub const SIGNIFICANT_DIGITS: u8 = 3;

    /// A histogram of `times`.
    pub fn of(times: &[Duration]) -> Self {
        let mut latency = Self::default();
        for &time in times {
            latency.record(time);
        }
        latency
    }

    /// Adds one latency. Allocates nothing.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(nanoseconds(time).max(1));
    }

    /// Reads HdrHistogram's compressed form; `None` if it is damaged or has other bounds.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (head, packed) = bytes.split_at_checked(8)?;
        let plain = decompress_to_vec_zlib_with_limit(packed, BYTES_MAX).ok()?;
        // The library allocates as much as the header says.
        let length = plain.get(4..8)?.try_into().map(u32::from_be_bytes).ok()?;
        if head[..4] != COMPRESSED || plain.len().checked_sub(HEAD_BYTES)? != length as usize {
            return None;
        }
        let histogram: Histogram<u64> = HistogramReader::new().deserialize(&mut &plain[..]).ok()?;
        let bounds = (histogram.low(), histogram.high(), histogram.sigfig());
        (bounds == (1, NS_MAX, Self::SIGNIFICANT_DIGITS)).then_some(Self { histogram })
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        // The library's `add` visits all 34,000 counts, though most histograms end far earlier.
        for counted in other.histogram.iter_recorded() {
            let (ns, count) = (counted.value_iterated_to(), counted.count_since_last_iteration());
            self.histogram.saturating_record_n(ns, count);
        }
    }

    /// How many latencies it holds.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The smallest, in nanoseconds.
    pub fn min_ns(&self) -> u64 {
        self.histogram.min()
    }

    /// The largest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.histogram.max()
    }

    /// The value that the share `quantile` (0 to 1) of the latencies does not exceed, in
    /// nanoseconds.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// The 95 % confidence interval of the median, in nanoseconds, computed as by
    /// [`super::Summary::of`]; `None` for fewer than [`SAMPLES_FOR_INTERVAL`].
    pub fn median_interval_ns(&self) -> Option<(f64, f64)> {
        let count = usize::try_from(self.count()).ok()?;
        let place = interval_place(count) as f64;
        let at = |place: f64| self.quantile_ns(place / count as f64) as f64;
        (count >= SAMPLES_FOR_INTERVAL).then(|| (at(place + 1.0), at(count as f64 - place)))
    }

    /// The histogram itself, to be written out or merged.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

/// Serialised as the bytes of HdrHistogram's own format.
impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.histogram, &mut bytes).map_err(S::Error::custom)?;
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = Vec::deserialize(deserializer)?;
        let read = HistogramReader::new().deserialize(&mut &bytes[..]);
        read.map(|histogram| Self { histogram }).map_err(|err| D::Error::custom(err.to_string()))
    }
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, Self::SIGNIFICANT_DIGITS)
            .expect("1 ≤ 1, 2 × 1 ≤ NS_MAX and 3 ≤ 5 are all that the bounds must meet");
        Self { histogram }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::V2DeflateSerializer;
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, LogNormal};

    #[test]
    fn quantiles_agree_with_an_exact_sort_within_the_precision() {
        let mut random = StdRng::seed_from_u64(7);
        for (mu, sigma) in [(5.0, 0.1), (9.0, 1.0), (15.0, 2.5)] {
            let distribution = LogNormal::new(mu, sigma).unwrap();
            let mut times: Vec<Duration> = (0..10_000)
                .map(|_| Duration::from_secs_f64(1e-9 + distribution.sample(&mut random) * 1e-9))
                .collect();
            let latency = Latency::of(&times);
            times.sort_unstable();
            assert_eq!(latency.count(), 10_000);
            for (quantile, place) in
                [(0.5, 4_999), (0.9, 8_999), (0.99, 9_899), (0.999, 9_989), (1.0, 9_999)]
            {
                let exact = nanoseconds(times[place]) as f64;
                let read = latency.quantile_ns(quantile) as f64;
                assert!((read - exact).abs() <= exact * 1e-3, "{quantile}: {read} for {exact}");
            }
        }
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_the_samples() {
        let times = |count: u64| (1..=count).map(Duration::from_nanos).collect::<Vec<Duration>>();
        // Conover's table A3 with p = 0.5: of 20 the sixth smallest and the sixth largest.
        assert_eq!(Latency::of(&times(20)).median_interval_ns(), Some((6.0, 15.0)));
        assert_eq!(Latency::of(&times(100)).median_interval_ns(), Some((40.0, 61.0)));
        assert_eq!(Latency::of(&times(5)).median_interval_ns(), None);
        assert_eq!(Latency::of(&[]).median_interval_ns(), None);
    }

    #[test]
    fn a_histogram_travels_between_ranks_unchanged() {
        let latency = Latency::of(&[1, 3_000, 70_000_000].map(Duration::from_nanos));
        let text = serde_json::to_string(&latency).unwrap();
        let read: Latency = serde_json::from_str(&text).unwrap();
        assert_eq!(read.histogram(), latency.histogram());
        assert!(serde_json::from_str::<Latency>("[1,2]").is_err());
    }

    #[test]
    fn what_was_written_is_read_and_what_is_damaged_is_not() {
        let packed = |histogram: &Histogram<u64>| {
            let mut bytes = Vec::new();
            V2DeflateSerializer::new().serialize(histogram, &mut bytes).unwrap();
            bytes
        };
        let times: Vec<Duration> = (0..44).map(|bits| Duration::from_nanos(1 << bits)).collect();
        let latency = Latency::of(&times);
        let good = packed(latency.histogram());
        let mut twice = Latency::read(&good).unwrap();
        assert_eq!(twice.histogram(), latency.histogram());
        twice.merge(&latency);
        assert_eq!(twice.histogram(), Latency::of(&[&times[..], &times].concat()).histogram());
        for end in 0..good.len() {
            assert!(Latency::read(&good[..end]).is_none(), "{end}");
        }
        // Its head claims more than there is, or other bounds.
        let mut plain = Vec::new();
        V2Serializer::new().serialize(latency.histogram(), &mut plain).unwrap();
        for (at, byte) in [(4, 0xff), (7, plain[7] - 1), (15, 5), (24, 0x7f), (31, 1)] {
            let mut plain = plain.clone();
            plain[at] = byte;
            let packed = miniz_oxide::deflate::compress_to_vec_zlib(&plain, 6);
            assert!(Latency::read(&[&good[..8], &packed].concat()).is_none(), "{at}");
        }
        let other = Histogram::<u64>::new_with_bounds(1, 1000, 2).unwrap();
        assert!(Latency::read(&packed(&other)).is_none());
    }

    #[test]
    fn the_ends_of_the_range_are_held() {
        let latency = Latency::of(&[Duration::ZERO, Duration::from_secs(10 * 3600)]);
        assert_eq!(latency.count(), 2);
        assert_eq!(latency.min_ns(), 1);
        assert!(latency.max_ns().abs_diff(NS_MAX) <= NS_MAX / 1000);
    }
}
