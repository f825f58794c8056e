//! Significance of differences. `docs/comparing.md` has the method.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::{measure::Scale, record::Row};

/// The quantity of a case that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Quantity {
    /// More is better.
    #[serde(rename = "bandwidth_gb_s")]
    Bandwidth,
    /// Less is better. For cases without a bandwidth.
    #[serde(rename = "latency_ns_p50")]
    Latency,
}

impl Quantity {
    /// How much worse a change makes it: 0.05 is 5 % less bandwidth or 5 % more latency.
    pub fn loss(self, change: &Change) -> f64 {
        if self == Self::Bandwidth { -change.share } else { change.share }
    }

    /// The value of a row.
    pub(crate) fn of(self, row: &Row) -> Option<f64> {
        match self {
            Self::Bandwidth => row.bandwidth_gb_s,
            Self::Latency => row.latency_ns_p50.map(|ns| ns as f64),
        }
    }
}

/// The result of one side for a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median; of several runs the geometric mean of their medians.
    pub value: f64,
    /// Its standard error; `None` if unknown.
    pub(crate) spread: Option<Spread>,
}

/// The 95 % confidence interval of a run's estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) scale: Scale,
}

/// The uncertainty of the logarithm of an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Standard error.
    error: f64,
    /// Degrees of freedom of the standard error.
    freedom: f64,
}

/// The difference between two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// How much more B is than A: 0.05 is 5 % more.
    pub share: f64,
    /// Its significance; `None` if the standard error of one side is unknown.
    pub known: Option<Known>,
}

/// The significance of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Lower end of the 95 % confidence interval of the share.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
    /// The probability of such a difference, or a larger one, by chance.
    pub p: f64,
    /// `p` corrected for the number of differences: the expected share of false discoveries among
    /// those with this value or a smaller one.
    pub q: f64,
}

/// The probability that an interval misses the truth, and the accepted share of false discoveries.
pub const MISS: f64 = 0.05;

/// The smallest relative standard error of a median: the interval of one run does not contain what
/// changes from run to run, such as the placement of memory.
const ERROR_MIN: f64 = 0.001;

impl Estimate {
    /// The median of one run with its 95 % confidence interval, if known.
    pub(crate) fn of_run(value: f64, interval: Option<Interval>) -> Self {
        let interval = interval.filter(|interval| interval.low > 0.0);
        let spread = interval.map(|Interval { low, high, scale }| {
            let error = (high / low).ln() / 2.0 / scale.errors;
            Spread { error: error.max(ERROR_MIN), freedom: scale.freedom }
        });
        Self { value, spread }
    }

    /// The mean of the medians of several runs, whose differences give the standard error.
    pub(crate) fn of_runs(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt().max(ERROR_MIN);
        let spread = (values.len() > 1).then_some(Spread { error, freedom: count - 1.0 });
        Self { value: mean.exp(), spread }
    }
}

impl Change {
    /// From `a` to `b`. Its `q` is its `p` until it is [`corrected`].
    pub(crate) fn between(a: Estimate, b: Estimate) -> Self {
        let difference = (b.value / a.value).ln();
        let known = a.spread.zip(b.spread).and_then(|(a, b)| {
            let error = (a.error.powi(2) + b.error.powi(2)).sqrt();
            // Welch and Satterthwaite: unequal variances with their own degrees of freedom.
            let parts = a.error.powi(4) / a.freedom + b.error.powi(4) / b.freedom;
            Known::of(difference, Spread { error, freedom: error.powi(4) / parts })
        });
        Self { share: difference.exp_m1(), known }
    }

    /// Between two settings that were measured in turn, from their ratios. Its `q` is its `p` until
    /// it is [`corrected`].
    pub(crate) fn of_ratios(ratios: &[f64]) -> Self {
        let Estimate { value, spread } = Estimate::of_runs(ratios);
        let known = spread.and_then(|spread| Known::of(value.ln(), spread));
        Self { share: value.ln().exp_m1(), known }
    }

    /// The verdict, once its `q` is corrected for the number of comparisons.
    pub fn verdict(&self, quantity: Quantity) -> ChangeVerdict {
        match self.known {
            None => ChangeVerdict::Unknown,
            Some(known) if known.q > MISS => ChangeVerdict::Same,
            _ if quantity.loss(self) > 0.0 => ChangeVerdict::Slower,
            _ => ChangeVerdict::Faster,
        }
    }

    /// The verdict without any statistics: whether it is beyond a margin either way.
    pub(crate) fn verdict_by(&self, margin: f64, quantity: Quantity) -> ChangeVerdict {
        match quantity.loss(self) {
            loss if loss > margin => ChangeVerdict::Slower,
            loss if loss < -margin => ChangeVerdict::Faster,
            _ => ChangeVerdict::Same,
        }
    }
}

impl Known {
    /// The significance of a difference of logarithms.
    fn of(difference: f64, Spread { error, freedom }: Spread) -> Option<Self> {
        let Scale { errors, freedom } = Scale::of_student(freedom)?;
        let far = errors * error;
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        let p = 2.0 * student.sf(difference.abs() / error);
        let [low, high] = [difference - far, difference + far].map(f64::exp_m1);
        Some(Self { low, high, p, q: p })
    }
}

/// The verdict on a change.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum ChangeVerdict {
    /// Significantly better.
    Faster,
    /// Significantly worse.
    Slower,
    /// Not significant.
    #[strum(serialize = "same within noise")]
    Same,
    /// The standard error of a side is unknown.
    Unknown,
    /// The numbers cannot be compared, for this reason.
    #[strum(serialize = "not comparable")]
    NotComparable(String),
}

impl ChangeVerdict {
    /// Why there is no verdict; empty if there is one.
    pub fn reason(&self) -> &str {
        match self {
            Self::Faster | Self::Slower | Self::Same | Self::Unknown => "",
            Self::NotComparable(reason) => reason,
        }
    }
}

/// Corrects changes for their number: Benjamini and Hochberg, "Controlling the False Discovery
/// Rate", Journal of the Royal Statistical Society B 57 (1995).
pub(crate) fn corrected(changes: Vec<&mut Change>) {
    let mut all: Vec<&mut Known> =
        changes.into_iter().filter_map(|change| change.known.as_mut()).collect();
    all.sort_unstable_by(|a, b| b.p.total_cmp(&a.p));
    let count = all.len() as f64;
    let mut least: f64 = 1.0;
    for (place, known) in all.iter_mut().enumerate() {
        least = least.min(known.p * count / (count - place as f64));
        known.q = least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Summary;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, Normal};

    /// The median of samples with its interval.
    fn median(samples: &[f64]) -> Estimate {
        let Summary { count, estimate, low, high, .. } = Summary::of(samples).unwrap();
        let scale = Scale::of_median(count).unwrap();
        Estimate::of_run(estimate, Some(Interval { low, high, scale }))
    }

    fn coverage(mut side: impl FnMut(f64, &mut StdRng) -> Estimate) -> f64 {
        let mut random = StdRng::seed_from_u64(1);
        let mut within = 0;
        for _ in 0..4000 {
            let truth = random.random_range(-0.05..0.05);
            let (a, b) = (side(100.0, &mut random), side(100.0 * (1.0 + truth), &mut random));
            let change = Change::between(a, b);
            let known = change.known.unwrap();
            within += u32::from((known.low..=known.high).contains(&truth));
        }
        f64::from(within) / 4000.0
    }

    #[test]
    fn the_interval_of_a_difference_holds_the_truth() {
        let noise = Normal::new(0.0, 0.01).unwrap();
        for count in [20, 100] {
            let covered = coverage(|truth, random| {
                let sample = |_| truth * (1.0 + noise.sample(random));
                median(&(0..count).map(sample).collect::<Vec<f64>>())
            });
            assert!((0.93..0.97).contains(&covered), "{count} samples: {covered}");
        }
        for runs in [2, 3, 10] {
            let covered = coverage(|truth, random| {
                let run = |_| truth * (1.0 + noise.sample(random));
                Estimate::of_runs(&(0..runs).map(run).collect::<Vec<f64>>())
            });
            assert!((0.93..0.98).contains(&covered), "{runs} runs: {covered}");
        }
    }

    /// In how many of so many comparisons of cases that are alike one is called different.
    fn wrong(comparisons: u32, cases: usize, sample: impl Fn(&mut StdRng) -> f64) -> usize {
        let mut random = StdRng::seed_from_u64(2);
        let mut side = || median(&[(); 20].map(|()| 50.0 / (1.0 + sample(&mut random))));
        let mut is_wrong = |_: &u32| {
            let change = |_| Change::between(side(), side());
            let mut changes: Vec<Change> = (0..cases).map(change).collect();
            corrected(changes.iter_mut().collect());
            changes.iter().any(|change| change.known.unwrap().q <= MISS)
        };
        (0..comparisons).filter(&mut is_wrong).count()
    }

    #[test]
    fn what_is_alike_is_seldom_called_different() {
        // 5 % of 200 and of 40, and what chance adds to it. Of many differences the greatest count,
        // for which it matters that 20 samples do not tell their error well.
        let normal = Normal::new(0.0, 0.01).unwrap();
        let few = wrong(200, 50, |random| normal.sample(random));
        assert!(few <= 18, "{few} of 200 comparisons of what is alike found a difference");
        let many = wrong(40, 1000, |random| random.random_range(0.0..0.02));
        assert!(many <= 6, "{many} of 40 comparisons of 1000 cases each");
    }

    #[test]
    fn chances_are_corrected_as_published() {
        // The fifteen of the paper's section 3.2, of which four stay at 0.05.
        let published = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let known = |p| Some(Known { low: 0.0, high: 0.0, p, q: p });
        let mut all = published.map(|p| Change { share: 0.0, known: known(p) });
        corrected(all.iter_mut().collect());
        let all = all.map(|change| change.known.unwrap());
        let stay: Vec<f64> =
            all.iter().filter(|known| known.q <= 0.05).map(|known| known.p).collect();
        assert_eq!(stay, published[..4]);
        assert!((all[0].q - 0.0015).abs() < 1e-12, "{}", all[0].q);
        corrected(Vec::new());
    }

    #[test]
    fn an_estimate_without_an_interval_has_a_change_that_nothing_vouches_for() {
        let scale = Scale::of_median(20).unwrap();
        let interval = |low, high| Some(Interval { low, high, scale });
        let told = Estimate::of_run(10.0, interval(9.9, 10.1));
        for untold in [
            Estimate::of_run(11.0, None),
            Estimate::of_runs(&[11.0]),
            Estimate::of_run(11.0, interval(0.0, 12.0)),
        ] {
            let change = Change::between(told, untold);
            assert!((change.share - 0.1).abs() < 1e-12);
            assert_eq!(change.known, None);
        }
    }
}
