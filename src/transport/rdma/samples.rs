//! Determines when the samples of a stream begin and end.

use std::time::Duration;

use super::is_of_hardware;
use crate::{
    ffi::{self, simulation},
    plan::Case,
    transport::{Clock, Network, Span},
    units::nanoseconds,
};

/// The flows run for this long before the first sample, so that bursts after a pause are over and
/// queues are full: of providers of software, whose sockets and queues the kernel sizes as it goes,
/// and of hardware, some hundred round trips. Staged data takes several turns of its ring, each of
/// which lasts up to 0.7 ms (8 MiB over 100 Gbit/s).
const RUN_IN_OF_SOFTWARE: Duration = Duration::from_millis(20);
const RUN_IN_OF_HARDWARE: Duration = Duration::from_millis(2);
const RUN_IN_OF_STAGED: Duration = Duration::from_millis(10);

/// One more possible start of the first sample for each of this many samples.
const SAMPLES_PER_START: usize = 8;

/// The shortest bandwidth sample. A sample is the time between two confirmations, and the time that
/// a confirmation takes varies by some microseconds.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(2);

/// All samples together last at least this long: on busy CPUs the first and last confirmation may be
/// seen milliseconds late.
const ALL_SAMPLES_TIME_MIN: Duration = Duration::from_millis(250);

/// The clock of a case, and its limits for samples.
pub(super) fn clock(case: &Case, network: &Network) -> Clock {
    // Every interface has as many operations of a sample as any other.
    let rails = case.fabric.as_ref().map_or(1, |fabric| u64::from(fabric.rails));
    let operations_step = if rails <= network.group_max { rails } else { 1 };
    Clock {
        sample_time_min: SAMPLE_TIME_MIN,
        stream_time_min: stream_time_min(),
        operations_max: network.group_max / operations_step * operations_step,
        operations_step,
        is_streaming: true,
        ..Clock::of_host(ffi::clock::resolution())
    }
}

/// How long all samples of a bandwidth pass last together at least. A simulated machine's time waits
/// for who looks.
pub fn stream_time_min() -> Duration {
    match simulation::library() {
        None => ALL_SAMPLES_TIME_MIN,
        Some(_) => Duration::ZERO,
    }
}

/// How long the flows of `case` run before the first sample.
pub fn run_in(case: &Case) -> Duration {
    match &case.fabric {
        Some(fabric) if is_of_hardware(fabric) && fabric.is_staged => RUN_IN_OF_STAGED,
        Some(fabric) if is_of_hardware(fabric) => RUN_IN_OF_HARDWARE,
        _ => RUN_IN_OF_SOFTWARE,
    }
}

/// The samples of a streaming run, as its initiator takes them.
pub(super) struct Samples<'a> {
    spans: &'a mut [Span],
    /// When each group was confirmed, from the end of the run-in on.
    confirmed: Vec<u64>,
    /// How many of them are wanted.
    wanted: usize,
    /// Groups confirmed so far, and when that became known.
    groups: u64,
    since: u64,
    /// When the first sample may begin.
    due: u64,
}

impl<'a> Samples<'a> {
    /// The flows begin at `now`, in nanoseconds.
    pub(super) fn begin(spans: &'a mut [Span], now: u64, run_in: Duration) -> Self {
        let starts = 1 + spans.len().div_ceil(SAMPLES_PER_START);
        let wanted = spans.len() + starts;
        let confirmed = Vec::with_capacity(wanted);
        let due = now.saturating_add(nanoseconds(run_in));
        Self { spans, confirmed, wanted, groups: 0, since: now, due }
    }

    /// Whether every sample is taken.
    pub(super) fn are_all(&self) -> bool {
        self.confirmed.len() == self.wanted
    }

    /// Notes that `groups` have been confirmed by `now`. Groups that become known together count as
    /// equally long.
    pub(super) fn take(&mut self, groups: u64, now: impl FnOnce() -> u64) {
        if groups <= self.groups {
            return;
        }
        let (now, new) = (now(), groups - self.groups);
        let each = (now - self.since) / new;
        if self.confirmed.is_empty() {
            if now >= self.due {
                self.confirmed.push(now);
            }
        } else {
            let missing = self.wanted - self.confirmed.len();
            let times = (1..=new).map(|group| self.since + group * each);
            self.confirmed.extend(times.take(missing));
        }
        if self.are_all() {
            self.note();
        }
        self.groups = groups;
        self.since = now;
    }

    /// Starts the samples at the confirmation from which they last longest. If this rank or its
    /// partner polled late, the groups that piled up would seem faster than the link.
    fn note(&mut self) {
        let count = self.spans.len();
        let slowest = self.confirmed.windows(count + 1).max_by_key(|times| times[count] - times[0]);
        let ends = slowest.unwrap_or_default().windows(2);
        for (span, ends) in self.spans.iter_mut().zip(ends) {
            *span = Span { start_ns: Some(ends[0]), end_ns: Some(ends[1]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN_IN_NS: u64 = 20_000_000;

    /// Takes as many samples as `spans`, where one group more is confirmed at each of `times`.
    fn taken<const COUNT: usize>(times: &[(u64, u64)]) -> [(u64, u64); COUNT] {
        let mut spans = [Span::default(); COUNT];
        let mut samples = Samples::begin(&mut spans, 0, RUN_IN_OF_SOFTWARE);
        samples.take(0, || unreachable!("nothing has come"));
        for &(groups, now) in times {
            assert!(!samples.are_all());
            samples.take(groups, || now);
        }
        assert!(samples.are_all());
        spans.map(|span| (span.start_ns.unwrap() - RUN_IN_NS, span.end_ns.unwrap() - RUN_IN_NS))
    }

    #[test]
    fn samples_begin_after_the_run_in_and_what_is_seen_together_lasted_equally_long() {
        let confirmed = [1000, RUN_IN_NS, RUN_IN_NS + 300];
        let confirmed = [(1, confirmed[0]), (4, confirmed[1]), (5, confirmed[2])];
        let more = [(7, RUN_IN_NS + 500), (8, RUN_IN_NS + 600)];
        let spans = taken::<3>(&[&confirmed[..], &more[..]].concat());
        assert_eq!(spans, [(0, 300), (300, 400), (400, 500)]);
    }

    #[test]
    fn samples_do_not_begin_at_a_late_look() {
        // Each group takes 100, but the first after the run-in was seen 90 late.
        let confirmed: Vec<(u64, u64)> = (0..8).map(|n| (n + 1, RUN_IN_NS + 100 * n)).collect();
        let on_time = taken::<5>(&confirmed[..7]);
        assert_eq!((on_time[0].0, on_time[4].1), (100, 600));
        let mut late = confirmed;
        late[0].1 += 90;
        let late = taken::<5>(&late[..7]);
        assert_eq!((late[0].0, late[4].1), (100, 600));
        assert!(late.iter().all(|(start, end)| end - start == 100));
    }
}
