//! The median of samples and how well it is known.

use statrs::distribution::{Binomial, DiscreteCDF};

/// The chance that the interval misses the true median, on both sides together.
const MISS: f64 = 0.05;

/// Below so many samples no two of them make a 95 % interval of the median.
pub const SAMPLES_FOR_INTERVAL: usize = 6;

/// What is kept of a list of samples.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// How many samples.
    pub count: usize,
    /// The median; of an even count the mean of the two in the middle.
    pub median: f64,
    /// Lower end of the 95 % confidence interval of the median.
    pub low: f64,
    /// Upper end of the 95 % confidence interval of the median.
    pub high: f64,
    /// Coefficient of variation: standard deviation (of count - 1) over mean; 0 for one sample.
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
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = (squares / (count.max(2) - 1) as f64).sqrt();
        let variation = if deviation == 0.0 { 0.0 } else { deviation / mean };
        Some(Self { count, median, low, high, variation })
    }

    /// The larger distance from the median to an end of the interval, as a share of the median.
    pub fn half_width(&self) -> f64 {
        let distance = (self.high - self.median).max(self.median - self.low);
        if distance == 0.0 { 0.0 } else { distance / self.median }
    }
}

/// How many samples lie below the lower end of the interval, and as many above the upper end.
fn interval_place(count: usize) -> usize {
    let Ok(below) = Binomial::new(0.5, count as u64) else { return 0 };
    // The smallest k whose chance of k or fewer samples below the median is 2.5 % or more: then
    // k - 1 or fewer has less, and the k-th smallest sample is the end.
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
    fn a_summary_by_hand() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.count, summary.median), (4, 2.5));
        assert_eq!((summary.low, summary.high), (1.0, 4.0));
        assert!((summary.variation - (5.0_f64 / 3.0).sqrt() / 2.5).abs() < 1e-12);
        assert_eq!(summary.half_width(), 0.6);
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.median, one.low, one.high, one.variation), (7.0, 7.0, 7.0, 0.0));
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
}
