//! How many operations make a sample, and when there are enough samples.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{SAMPLES_FOR_INTERVAL, Summary};
use crate::{plan::Effort, transport::Clock};

/// An interval of fewer samples never ends a pass.
const SAMPLES_MIN: usize = 20;

/// Most latency samples of one case: 10 values lie above the 99.9th percentile.
const LATENCY_SAMPLES_MAX: usize = 10_000;

/// Samples of one step of the warm-up, which uses the shortest.
const WARM_UP_SPANS: usize = 3;

/// Samples of the last step of the warm-up. It confirms that a sample is long enough, because on
/// busy CPUs three samples can be long by chance.
const CONFIRMING_SPANS: usize = 12;

/// Samples of at least this length need no confirmation.
const CONFIRMED_TIME: Duration = Duration::from_millis(50);

/// Spans without operations, for the median of their times.
pub(super) const EMPTY_SPANS: usize = 21;

/// A span without operations is at most this share of the precision, or of 1 % if that is more.
const EMPTY_SHARE_OF_PRECISION: f64 = 0.4;

/// Single operations that are verified one by one before the bandwidth pass.
pub(super) const PROOFS: usize = 16;

/// Clocks of GPUs that have worked do not fall for this long.
pub(super) const LOOK_AGE: Duration = Duration::from_millis(50);

/// A batch lasts about this long. The first transfers after filling find the data in other caches
/// than later ones do, so they must be few.
const BATCH_TIME: Duration = Duration::from_millis(250);

/// The longest batch of a stream. Each batch also has a run-in, and an end in which queues drain.
const STREAM_TIME_MAX: Duration = Duration::from_secs(2);

/// Most samples of one batch, so that its message stays small.
const BATCH_MAX: usize = 2000;

/// The next, larger count of operations for a sample that is to last `wanted`. `None` if `time` is
/// long enough or `operations` has reached `most`.
fn more_operations(operations: u64, time: Duration, wanted: Duration, most: u64) -> Option<u64> {
    if time >= wanted || operations >= most {
        return None;
    }
    // A tenth more than needed, so that a slightly faster run needs no further step. At most 64
    // times as many, because the first operations are slow.
    let factor = 1.1 * wanted.as_secs_f64() / time.max(Duration::from_nanos(1)).as_secs_f64();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 2 to 64")]
    let factor = factor.clamp(2.0, 64.0).ceil() as u64;
    Some(operations.saturating_mul(factor).min(most))
}

/// One step of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trial {
    /// Operations of a sample; `None` for single operations.
    pub(super) operations: Option<u64>,
    pub(super) samples: usize,
}

/// Decides when to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    effort: Effort,
    clock: Clock,
    /// Operations of a sample, if the user has set them.
    operations: Option<u64>,
    /// Whether the case has a bandwidth pass.
    pub(super) has_bandwidth: bool,
    /// Whether GPUs time the samples, which a busy CPU does not make longer.
    pub(super) is_of_events: bool,
}

impl Stop {
    pub(super) fn new(effort: Effort, clock: Clock, operations: Option<u64>) -> Self {
        // A clock that times only single operations overrides the count.
        let operations = operations.map(|count| if clock.operations_max == 1 { 1 } else { count });
        Self { effort, clock, operations, has_bandwidth: true, is_of_events: false }
    }

    /// The shortest time of a sample.
    pub(super) fn sample_time(&self) -> Duration {
        let least = self.clock.sample_time_min;
        if !self.clock.is_streaming {
            return least;
        }
        let count = self.effort.samples.map_or(SAMPLES_MIN, |count| count as usize);
        least.max(self.clock.stream_time_min.div_f64(count.max(1) as f64))
    }

    /// The first step of the warm-up. A stream runs more operations than its samples count, so if
    /// operations are slow, a single one shows it sooner.
    pub(super) fn first_trial(&self) -> Trial {
        let samples = WARM_UP_SPANS;
        match (self.operations, self.clock.is_streaming) {
            _ if !self.has_bandwidth => Trial { operations: None, samples },
            (Some(_), _) => Trial { operations: self.operations, samples },
            (None, true) => Trial { operations: None, samples: 1 },
            (None, false) => Trial { operations: Some(self.clock.operations_step), samples },
        }
    }

    /// The step of the warm-up after `trial`, whose samples lasted `each`; `None` at the end.
    pub(super) fn next_trial(&self, trial: Trial, each: Duration) -> Option<Trial> {
        if self.has_bandwidth && self.operations.is_some() {
            return None;
        }
        let (wanted, most) = (self.sample_time(), self.clock.operations_max);
        let step = self.clock.operations_step;
        let more = trial.operations.and_then(|count| more_operations(count, each, wanted, most));
        let more = more.map(|count| count.next_multiple_of(step).min(most));
        let is_sure =
            self.is_of_events || each >= CONFIRMED_TIME || trial.samples == CONFIRMING_SPANS;
        match (more, self.clock.is_streaming && self.has_bandwidth) {
            (Some(_), _) => Some(Trial { operations: more, samples: WARM_UP_SPANS }),
            // A long latency says little about the rate of the stream.
            (None, true)
                if trial.operations.is_none() && each < wanted.max(self.clock.stream_time_min) =>
            {
                Some(Trial { operations: Some(step), samples: WARM_UP_SPANS })
            }
            // Samples may be a little short: only their total counts.
            (None, true) => None,
            (None, false) if is_sure => None,
            (None, false) => Some(Trial { samples: CONFIRMING_SPANS, ..trial }),
        }
    }

    /// Whether the interval is as narrow as requested. With a fixed count sampling cannot have
    /// stopped at an interval that is narrow by chance, so fewer samples suffice.
    pub(super) fn is_converged(&self, summary: &Summary) -> bool {
        let least = self.effort.samples.map_or(SAMPLES_MIN, |_| SAMPLES_FOR_INTERVAL);
        summary.count >= least && summary.half_width() <= self.effort.precision
    }

    /// Samples of the next batch of the bandwidth pass, or `None` to stop. The pass so far has
    /// `count` samples with this `summary` and has lasted `elapsed`; a sample lasts about `each`.
    pub(super) fn bandwidth(
        &self,
        count: usize,
        summary: impl FnOnce() -> Option<Summary>,
        each: Duration,
        elapsed: Duration,
    ) -> Option<usize> {
        let batch = fitting(self.bandwidth_batch(elapsed), each);
        if let Some(wanted) = self.effort.samples {
            let missing = (wanted as usize).saturating_sub(count);
            return (missing > 0).then(|| batch.min(missing));
        }
        if elapsed >= self.effort.time_limit && count > 0 {
            return None;
        }
        // What changes more slowly than a pass lasts is not in its interval.
        if let Some(missing) = until_look(self.effort.bandwidth_time, count, each) {
            return Some(batch.min(missing));
        }
        let is_converged = |summary: Summary| self.is_converged(&summary);
        if summary().is_some_and(is_converged) { None } else { Some(batch.min(count)) }
    }

    /// The longest time of the next batch of the bandwidth pass, which has lasted `elapsed`. A stream
    /// that is cut short to end with the time limit is no shorter than a quarter of it, because its
    /// ends would be a large part of it.
    fn bandwidth_batch(&self, elapsed: Duration) -> Duration {
        let limit = self.effort.time_limit;
        let left = match self.effort.samples {
            Some(_) => limit,
            None => limit.saturating_sub(elapsed).max(limit / 4),
        };
        match self.clock.is_streaming {
            true => left.clamp(self.clock.stream_time_min, STREAM_TIME_MAX),
            false => BATCH_TIME.min(limit),
        }
    }

    /// Samples of the next batch of the latency pass, or `None` to stop. The pass so far has
    /// `count` samples, with this interval of their median, and has lasted `elapsed`; a sample lasts
    /// about `each`. It may last half of the time limit.
    pub(super) fn latency(
        &self,
        count: usize,
        median: impl FnOnce() -> Option<Summary>,
        each: Duration,
        elapsed: Duration,
    ) -> Option<usize> {
        let missing = LATENCY_SAMPLES_MAX.saturating_sub(count);
        if missing == 0 || (elapsed >= self.effort.time_limit / 2 && count > 0) {
            return None;
        }
        let batch = fitting(BATCH_TIME.min(self.effort.time_limit), each).min(missing);
        if let Some(more) = until_look(self.effort.latency_time, count, each) {
            return Some(batch.min(more));
        }
        let is_known = |median: Summary| median.half_width() <= self.effort.precision;
        if median().is_some_and(is_known) { None } else { Some(batch.min(count)) }
    }
}

/// How many samples are missing after `count` until the next look at the interval; `None`: this is
/// one. The first look is after as many as last `time` together, and [`SAMPLES_MIN`] at least. Each
/// look is a chance to stop at an interval that is narrow by chance, so looks are few, each at twice
/// as many samples as the one before.
fn until_look(time: Duration, count: usize, each: Duration) -> Option<usize> {
    let wanted = (time.as_secs_f64() / each.as_secs_f64().max(1e-9)).ceil();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let mut look = (wanted as usize).max(SAMPLES_MIN);
    // The time of a sample, and with it the first look, is known better after each batch.
    while look + look / 10 < count {
        look = look.saturating_mul(2);
    }
    (look > count + count / 10).then(|| look - count)
}

/// How long a sample lasts at least in which a span without operations takes `empty`.
pub fn time_beside_empty(empty: Duration, precision: f64) -> Duration {
    empty.div_f64(EMPTY_SHARE_OF_PRECISION * precision.max(0.01))
}

/// As many samples as fit into the `time` of a batch.
fn fitting(time: Duration, each: Duration) -> usize {
    let fitting = (time.as_secs_f64() / each.as_secs_f64().max(1e-9)).min(BATCH_MAX as f64);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2000")]
    let fitting = fitting as usize;
    fitting.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, Normal};

    const MS: Duration = Duration::from_millis(1);
    const STREAM_TIME_MIN: Duration = Duration::from_millis(250);

    fn stop(samples: Option<u32>) -> Stop {
        let effort = Effort { samples, ..Effort::default() };
        Stop::new(effort, Clock::of_host(Duration::from_nanos(20)), None)
    }

    fn of_stream(samples: Option<u32>, time_limit: Duration) -> Stop {
        let Stop { effort, clock, .. } = stop(samples);
        let clock = Clock {
            is_streaming: true,
            sample_time_min: 2 * MS,
            stream_time_min: STREAM_TIME_MIN,
            ..clock
        };
        Stop::new(Effort { time_limit, ..effort }, clock, None)
    }

    fn bandwidth(stop: Stop, samples: &[f64], each: Duration, elapsed: Duration) -> Option<usize> {
        stop.bandwidth(samples.len(), || Summary::of(samples), each, elapsed)
    }

    #[test]
    fn the_samples_of_a_stream_last_long_enough_together() {
        for (samples, time_limit) in [(None, 50), (None, 2000), (Some(3), 100), (Some(200), 50)] {
            let stop = of_stream(samples, time_limit * MS);
            let each = stop.sample_time();
            let count = bandwidth(stop, &[], each, Duration::ZERO).unwrap();
            let all = each * u32::try_from(count).unwrap();
            assert!(all >= STREAM_TIME_MIN - MS, "{samples:?} {time_limit}: {all:?}");
        }
        assert_eq!(of_stream(None, MS).sample_time(), 12 * MS + MS / 2);
        assert_eq!(of_stream(Some(1000), MS).sample_time(), 2 * MS);
        // Later batches are longer, so that fewer have to begin.
        let wide: Vec<f64> = (0..80).map(|n| 10.0 + f64::from(n % 7)).collect();
        assert_eq!(bandwidth(of_stream(None, 5000 * MS), &wide, 12 * MS, MS), Some(80));
        assert_eq!(bandwidth(of_stream(None, 500 * MS), &wide, 12 * MS, MS), Some(41));
        // But end with the time limit, or are a quarter of it.
        let late = |elapsed| bandwidth(of_stream(None, 2000 * MS), &wide, 12 * MS, elapsed * MS);
        assert_eq!(late(1400), Some(50));
        assert_eq!(late(1999), Some(41));
        assert_eq!(late(2000), None);
    }

    #[test]
    fn operations_grow_until_a_sample_lasts_a_millisecond_and_a_hundred_resolutions() {
        let more = |operations, time, clock: Clock| {
            more_operations(operations, time, clock.sample_time_min, clock.operations_max)
        };
        let fine = Clock::of_host(Duration::from_nanos(20));
        assert_eq!(more(1, MS, fine), None);
        assert_eq!(more(10, MS / 2, fine), Some(30));
        assert_eq!(more(1, Duration::ZERO, fine), Some(64));
        assert_eq!(more(1, 50 * MS, Clock::of_host(MS)), Some(3));
        let few = Clock { operations_max: 128, ..fine };
        assert_eq!(more(100, MS / 2, few), Some(128));
        assert_eq!(more(128, Duration::ZERO, few), None);
    }

    #[test]
    fn twenty_samples_at_least_then_until_the_interval_is_narrow() {
        assert_eq!(bandwidth(stop(None), &[], MS, Duration::ZERO), Some(20));
        assert_eq!(bandwidth(stop(None), &[10.0; 5], MS, 5 * MS), Some(15));
        assert_eq!(bandwidth(stop(None), &[10.0; 20], MS, 20 * MS), None);
        let wide: Vec<f64> = (0..40).map(|n| 10.0 + f64::from(n % 7)).collect();
        assert_eq!(bandwidth(stop(None), &wide, MS, 40 * MS), Some(40));
        assert_eq!(bandwidth(stop(None), &wide, MS, 2000 * MS), None);
        // Samples that are short together do not end it.
        assert_eq!(bandwidth(stop(None), &[10.0; 40], MS / 10, 4 * MS), Some(60));
        assert_eq!(bandwidth(stop(None), &[10.0; 200], MS / 10, 20 * MS), None);
        // Between two looks nothing is decided, however narrow the interval.
        assert_eq!(bandwidth(stop(None), &[10.0; 50], MS, 50 * MS), Some(30));
    }

    #[test]
    fn slow_samples_come_in_short_batches_and_end_with_the_limit() {
        assert_eq!(bandwidth(stop(None), &[1.0; 2], 100 * MS, 200 * MS), Some(2));
        assert_eq!(bandwidth(stop(None), &[1.0; 2], 450 * MS, 900 * MS), Some(1));
        assert_eq!(bandwidth(stop(None), &[1.0; 3], 450 * MS, 1000 * MS), None);
    }

    #[test]
    fn a_given_count_is_taken_exactly() {
        assert_eq!(bandwidth(stop(Some(7)), &[10.0; 5], MS, 5 * MS), Some(2));
        assert_eq!(bandwidth(stop(Some(7)), &[10.0; 7], MS, 7 * MS), None);
        assert_eq!(bandwidth(stop(Some(500)), &[10.0; 100], MS, 100 * MS), Some(250));
        assert_eq!(bandwidth(stop(Some(500)), &[10.0; 100], MS, 9000 * MS), Some(250));
    }

    #[test]
    fn a_given_count_converges_when_its_interval_is_narrow() {
        let summary = |count| Summary::of(&vec![10.0; count]).unwrap();
        assert!(stop(Some(7)).is_converged(&summary(7)));
        assert!(!stop(Some(5)).is_converged(&summary(5)));
        assert!(!stop(None).is_converged(&summary(19)));
        assert!(
            !stop(Some(7))
                .is_converged(&Summary::of(&[9.0, 10.0, 10.0, 10.0, 10.0, 11.0]).unwrap())
        );
    }

    fn latency(samples: &[f64], each: Duration, elapsed: Duration) -> Option<usize> {
        stop(None).latency(samples.len(), || Summary::of(samples), each, elapsed)
    }

    #[test]
    fn single_operations_are_timed_for_a_time_and_until_their_median_is_known() {
        // As many as fit into 5 ms, 20 at least, 2000 of them in a batch.
        assert_eq!(latency(&[], MS / 1000, Duration::ZERO), Some(2000));
        assert_eq!(latency(&[], MS / 8, Duration::ZERO), Some(40));
        assert_eq!(latency(&[], MS, Duration::ZERO), Some(20));
        assert_eq!(latency(&[1.0; 5], MS, 5 * MS), Some(15));
        assert_eq!(latency(&[1.0; 9_500], MS / 10_000, MS), Some(500));
        assert_eq!(latency(&[1.0; 10_000], MS / 10_000, MS), None);
        assert_eq!(latency(&[1.0; 20], MS, 20 * MS), None);
        // They last a little longer than was thought.
        assert_eq!(latency(&[1.0; 37], MS / 8, 9 * MS), None);
        // Until the next look at an interval that is too wide.
        let wide: Vec<f64> = (0..40).map(|n| 10.0 + f64::from(n % 7)).collect();
        assert_eq!(latency(&wide, MS, 40 * MS), Some(40));
        assert_eq!(latency(&[1.0; 50], MS, 50 * MS), Some(30));
        // Long ones in batches, and to half of the limit; one at least.
        assert_eq!(latency(&[], 20 * MS, Duration::ZERO), Some(12));
        assert_eq!(latency(&[1.0; 10], 100 * MS, 499 * MS), Some(2));
        assert_eq!(latency(&[1.0; 10], 100 * MS, 500 * MS), None);
        assert_eq!(latency(&[], 400 * MS, 500 * MS), Some(1));
        assert_eq!(bandwidth(stop(None), &[], 900 * MS, 1000 * MS), Some(1));
    }

    #[test]
    fn the_interval_still_covers_the_median_when_sampling_stops_by_it() {
        // The loops of both passes, on synthetic times that vary by 1 % to 4 %: they stop after
        // about 22 to 200 samples, whether a batch holds many of them or one.
        let of_bandwidth = |samples: &[f64], each| bandwidth(stop(None), samples, each, MS);
        let of_latency = |samples: &[f64], each| latency(samples, each, 10 * MS);
        type Pass<'a> = &'a dyn Fn(&[f64], Duration) -> Option<usize>;
        let passes: [Pass<'_>; 2] = [&of_bandwidth, &of_latency];
        for ((variation, each), more) in
            [(0.1, MS), (0.2, MS), (0.3, MS), (0.4, MS), (0.2, 20 * MS), (0.3, 300 * MS)]
                .into_iter()
                .flat_map(|case| passes.map(|pass| (case, pass)))
        {
            let normal = Normal::new(10.0, variation).unwrap();
            let mut random = StdRng::seed_from_u64(20_261_121);
            let covers = |_: &u32| {
                let mut samples = Vec::new();
                while let Some(more) = more(&samples, each) {
                    samples.extend((0..more).map(|_| normal.sample(&mut random)));
                }
                let summary = Summary::of(&samples).unwrap();
                summary.low <= 10.0 && 10.0 <= summary.high
            };
            let held = (0..1000).filter(covers).count();
            assert!((930..=970).contains(&held), "{variation}, {each:?}: {held} of 1000");
        }
    }
}
