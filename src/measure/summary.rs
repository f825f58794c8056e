//! Summarises samples with a confidence interval.

use std::{cell::RefCell, collections::HashMap, time::Duration};

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal, StudentsT};

use crate::units::{Bytes, gb_s};

/// The probability that the interval misses the true median, on both sides together.
const MISS: f64 = 0.05;

/// With fewer samples no two of them bound a 95 % interval of the median.
pub const SAMPLES_FOR_INTERVAL: usize = 6;

/// With more samples the number of those below the median is normally distributed. Quantiles of the
/// binomial distribution take long there, and statrs panics in some.
const MANY: usize = 1_000_000;

/// The samples of a stream are divided into at least this many parts. The means of the parts give
/// the interval.
const PARTS: usize = 20;

/// A summary of samples.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// How many samples.
    pub count: usize,
    /// The median; of an even count the mean of the two in the middle. Of a stream the mean.
    pub estimate: f64,
    /// Lower end of the 95 % confidence interval of the estimate.
    pub low: f64,
    /// Upper end of the 95 % confidence interval of the estimate.
    pub high: f64,
    /// Coefficient of variation: standard deviation (of count - 1) over mean; 0 for one sample. Of
    /// a stream that of the times.
    pub variation: f64,
}

impl Summary {
    /// Summarises `samples`; `None` if there is none.
    ///
    /// The interval is non-parametric: the k-th smallest and the k-th largest sample, with the
    /// largest k for which both lie on one side of the true median with a chance of at most 5 %,
    /// by the binomial distribution with p = 1/2 (Conover, "Practical Nonparametric Statistics",
    /// 3rd ed., section 3.2). It asks nothing of the distribution but that samples are
    /// independent. Below 6 samples no such pair exists, and it is the whole range.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let place = interval_place(count);
        let (low, high) = (*sorted.get(place)?, sorted[count - 1 - place]);
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        Some(Self { count, estimate: median, low, high, variation: variation(&sorted) })
    }

    /// Summarises a stream in GB/s, whose samples of `bytes` lie one behind the other and lasted
    /// `times`: all bytes over all time. `None` if there is no time.
    ///
    /// One sample that ends late makes the next one short, so that samples are not independent,
    /// and their median is not the stream's rate. The interval is that of batch means (Law,
    /// "Simulation Modeling and Analysis", 5th ed., chapter 9): Student's, of 20 to 39 parts.
    pub fn of_stream(bytes: Bytes, times: &[Duration]) -> Option<Self> {
        let count = times.len();
        let all = times.iter().sum::<Duration>();
        let estimate = gb_s(bytes.times(count as u64), all)?;
        let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        let parts: Vec<f64> =
            times.chunks_exact(part_length(count)).map(|part| part.iter().sum()).collect();
        let share =
            Scale::of_stream(count)?.errors * variation(&parts) / (parts.len() as f64).sqrt();
        let (low, high) = (estimate * (1.0 - share).max(0.0), estimate * (1.0 + share));
        Some(Self { count, estimate, low, high, variation: variation(&times) })
    }

    /// The larger distance from the estimate to an end of the interval, as a share of the estimate.
    pub fn half_width(&self) -> f64 {
        let distance = (self.high - self.estimate).max(self.estimate - self.low);
        if distance == 0.0 { 0.0 } else { distance / self.estimate }
    }
}

/// How a 95 % confidence interval relates to its estimate's standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Half of the interval, in standard errors.
    pub errors: f64,
    /// Degrees of freedom of Student's distribution: how well the interval determines the standard
    /// error.
    pub freedom: f64,
}

impl Scale {
    /// Of an interval that [`Summary::of`] makes from `count` samples; `None` below 6.
    ///
    /// The interval's own probability to miss, which is below 5 %, gives its width in standard
    /// errors (McKean and Schrader, "A Comparison of Methods for Studentizing the Sample Median",
    /// Communications in Statistics B 13, 1984; Bonett and Price, "Statistical Inference for a
    /// Linear Function of Medians", Psychological Methods 7, 2002). Its width varies as the sum of
    /// the gaps between the samples in it does, each of which is about exponential: what is divided
    /// by a sum of *g* of them has the tails of Student's distribution with *g* degrees of freedom.
    pub fn of_median(count: usize) -> Option<Self> {
        thread_local!(static KNOWN: Known<Option<Scale>> = Known::default());
        KNOWN.with_borrow_mut(|known| *known.entry(count).or_insert_with(|| Self::median(count)))
    }

    fn median(count: usize) -> Option<Self> {
        if count < SAMPLES_FOR_INTERVAL {
            return None;
        }
        let place = interval_place(count);
        let below = match count {
            0..=MANY => Binomial::new(0.5, count as u64).ok()?.cdf(place as u64),
            _ => MISS / 2.0,
        };
        let errors = Normal::standard().inverse_cdf(1.0 - below);
        Some(Self { errors, freedom: (count - 1 - 2 * place) as f64 })
    }

    /// Of an interval that [`Summary::of_stream`] makes from `count` samples.
    pub fn of_stream(count: usize) -> Option<Self> {
        let parts = count / part_length(count);
        Self::of_student((parts.max(2) - 1) as f64)
    }

    /// Of an interval that is Student's. Its degrees of freedom, 1 or more, count in whole tenths:
    /// less freedom errs to the wide side. Beyond a million the distribution is the normal one.
    pub fn of_student(freedom: f64) -> Option<Self> {
        thread_local!(static KNOWN: Known<Option<Scale>> = Known::default());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "to 1e7")]
        let tenths = (10.0 * freedom).clamp(10.0, 1e7) as usize;
        KNOWN.with_borrow_mut(|known| *known.entry(tenths).or_insert_with(|| Self::student(tenths)))
    }

    fn student(tenths: usize) -> Option<Self> {
        let freedom = tenths as f64 / 10.0;
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        Some(Self { errors: student.inverse_cdf(1.0 - MISS / 2.0), freedom })
    }
}

/// The number of samples in a part of a stream.
fn part_length(count: usize) -> usize {
    (count / PARTS).max(1)
}

/// Standard deviation (of count - 1) over mean.
fn variation(samples: &[f64]) -> f64 {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    let deviation = (squares / (samples.len().max(2) - 1) as f64).sqrt();
    if deviation == 0.0 { 0.0 } else { deviation / mean }
}

/// How many samples lie below the lower end of the interval, and as many above the upper end.
pub(super) fn interval_place(count: usize) -> usize {
    thread_local!(static KNOWN: Known<usize> = Known::default());
    KNOWN.with_borrow_mut(|known| *known.entry(count).or_insert_with(|| place(count)))
}

/// Results for whole numbers, each computed once: quantiles take long, and a million rows have few
/// different numbers.
type Known<T> = RefCell<HashMap<usize, T>>;

fn place(count: usize) -> usize {
    if count > MANY {
        // The normal distribution with a correction of half a sample (Conover, section 3.2).
        let deviation = (count as f64).sqrt() / 2.0;
        let k = count as f64 / 2.0 - 0.5 + Normal::standard().inverse_cdf(MISS / 2.0) * deviation;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole")]
        return k.ceil() as usize - 1;
    }
    let Ok(below) = Binomial::new(0.5, count as u64) else { return 0 };
    // The smallest k for which k or fewer samples lie below the median with a probability of 2.5 %
    // or more. For k - 1 it is less, so the k-th smallest sample is the end.
    let k = below.inverse_cdf(MISS / 2.0);
    usize::try_from(k).unwrap_or(0).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, LogNormal, Normal};

    #[test]
    fn interval_places_are_those_of_the_published_table() {
        // Order-statistic intervals for the median, e.g. Conover's table A3 with p = 0.5.
        for (count, place) in [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (25, 7), (100, 39)] {
            assert_eq!(interval_place(count), place, "{count} samples");
        }
    }

    #[test]
    fn intervals_of_very_many_samples_are_those_of_the_normal_distribution() {
        // 500 000 - 979.98: the binomial distribution's, and the normal one's of one sample more.
        assert_eq!(interval_place(MANY), 499_019);
        assert_eq!(interval_place(MANY + 1), 499_020);
        let [below, above] = [MANY, MANY + 1].map(|count| Scale::of_median(count).unwrap().errors);
        assert!((below - above).abs() < 0.002, "{below} {above}");
        for count in [usize::MAX >> 11, usize::MAX] {
            assert!(Scale::of_median(count).is_some_and(|scale| scale.errors == above));
        }
    }

    #[test]
    fn intervals_have_the_published_scale() {
        // P(X ≤ 5) of 20 is 0.02069, P(X ≤ 0) of 6 is 1/64; and so much is beyond these of a normal
        // distribution.
        for (count, errors, freedom) in [(20, 2.0396, 9.0), (6, 2.1539, 5.0)] {
            let scale = Scale::of_median(count).unwrap();
            assert!((scale.errors - errors).abs() < 1e-4, "{scale:?}");
            assert_eq!(scale.freedom, freedom);
        }
        assert_eq!(Scale::of_median(5), None);
        // Of 47 samples, 23 parts of two: Student's quantile for 22 is 2.0739.
        let stream = Scale::of_stream(47).unwrap();
        assert!((stream.errors - 2.0739).abs() < 1e-4 && stream.freedom == 22.0, "{stream:?}");
    }

    #[test]
    fn a_summary_by_hand() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.count, summary.estimate), (4, 2.5));
        assert_eq!((summary.low, summary.high), (1.0, 4.0));
        assert!((summary.variation - (5.0_f64 / 3.0).sqrt() / 2.5).abs() < 1e-12);
        assert_eq!(summary.half_width(), 0.6);
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.estimate, one.low, one.high, one.variation), (7.0, 7.0, 7.0, 0.0));
    }

    /// In how many of 1000 trials of `count` samples the interval holds `truth`.
    fn coverage(count: usize, truth: f64, mut sample: impl FnMut(&mut StdRng) -> f64) -> usize {
        let mut random = StdRng::seed_from_u64(20_261_121);
        let holds = |_: &usize| {
            let samples: Vec<f64> = (0..count).map(|_| sample(&mut random)).collect();
            let summary = Summary::of(&samples).unwrap();
            summary.low <= truth && truth <= summary.high
        };
        (0..1000).filter(holds).count()
    }

    /// The sample sizes that sampling stops at most often, and larger ones.
    const COUNTS: [usize; 5] = [20, 25, 40, 100, 301];

    fn assert_covers(name: &str, truth: f64, mut sample: impl FnMut(&mut StdRng) -> f64) {
        for count in COUNTS {
            let held = coverage(count, truth, &mut sample);
            assert!((930..=970).contains(&held), "{name}, {count} samples: {held} of 1000");
        }
    }

    #[test]
    fn the_interval_covers_the_median_of_a_normal_distribution() {
        let normal = Normal::new(10.0, 1.0).unwrap();
        assert_covers("normal", 10.0, |random| normal.sample(random));
    }

    #[test]
    fn the_interval_covers_the_median_of_a_log_normal_distribution() {
        let log_normal = LogNormal::new(2.0, 1.0).unwrap();
        assert_covers("log-normal", 2.0_f64.exp(), |random| log_normal.sample(random));
    }

    #[test]
    fn the_interval_covers_the_median_of_two_modes() {
        // 60 % around 10, 40 % around 20: the median is where the lower mode has 5/6 of its mass,
        // 0.96742 standard deviations above its mean; the upper mode begins far above.
        let (lower, upper) = (Normal::new(10.0, 0.5).unwrap(), Normal::new(20.0, 0.5).unwrap());
        assert_covers("bimodal", 10.0 + 0.5 * 0.967_421_566, |random| {
            if random.random_bool(0.6) { lower.sample(random) } else { upper.sample(random) }
        });
    }

    #[test]
    fn the_interval_covers_the_median_with_one_percent_of_outliers() {
        // 1 % lies far above, so that the median of all is the 0.5 / 0.99 quantile of the rest:
        // 0.012659 standard deviations above the mean.
        let normal = Normal::new(10.0, 1.0).unwrap();
        assert_covers("outliers", 10.0 + 0.012_659, |random| {
            if random.random_bool(0.01) { 1000.0 } else { normal.sample(random) }
        });
    }

    #[test]
    fn the_interval_of_a_constant_is_the_constant() {
        // There is nothing to miss: it holds the truth in every trial, with no width.
        assert_eq!(coverage(20, 10.0, |_| 10.0), 1000);
        assert_eq!(Summary::of(&[10.0; 20]).unwrap().half_width(), 0.0);
    }

    #[test]
    fn a_stream_is_all_bytes_over_all_time() {
        let bytes = Bytes::new(1_000_000);
        let ms = Duration::from_millis;
        // One that was seen late makes the next one short: 4 MB in 4 ms, where the median of the
        // rates is 1 GB/s, and their mean 1.17.
        let times = [ms(1), Duration::from_micros(1500), Duration::from_micros(500), ms(1)];
        let stream = Summary::of_stream(bytes, &times).unwrap();
        assert!((stream.estimate - 1.0).abs() < 1e-12, "{stream:?}");
        let slow = Summary::of_stream(bytes, &[ms(1), ms(1), ms(1), ms(5)]).unwrap();
        assert!((slow.estimate - 0.5).abs() < 1e-12, "{slow:?}");
        assert!(Summary::of_stream(bytes, &[Duration::ZERO; 3]).is_none());
        assert!(Summary::of_stream(bytes, &[]).is_none());
        let even = Summary::of_stream(bytes, &[ms(1); 40]).unwrap();
        assert!(even.count == 40 && even.half_width() < 1e-12, "{even:?}");
    }

    #[test]
    fn the_interval_of_a_stream_covers_its_rate_though_each_late_look_moves_two_samples() {
        let mut random = StdRng::seed_from_u64(20_261_121);
        let late = LogNormal::new(-1.0, 1.0).unwrap();
        for count in [20, 40, 160] {
            let mut holds = |_: &u32| {
                // A confirmation each ms, seen up to some ms late, and then all that are due.
                let seen: Vec<f64> = (0..=count)
                    .map(|n| f64::from(n) + late.sample(&mut random))
                    .scan(0.0_f64, |last, time| {
                        *last = last.max(time);
                        Some(*last)
                    })
                    .collect();
                let time = |ends: &[f64]| Duration::from_secs_f64((ends[1] - ends[0]) / 1e3);
                let times: Vec<Duration> = seen.windows(2).map(time).collect();
                let stream = Summary::of_stream(Bytes::new(1_000_000), &times).unwrap();
                stream.low <= 1.0 && 1.0 <= stream.high
            };
            let held = (0..1000).filter(&mut holds).count();
            // More than it should: what one sample loses the next one gains.
            assert!(held >= 930, "{count} samples: {held} of 1000");
        }
    }
}
