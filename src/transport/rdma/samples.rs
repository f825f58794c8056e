//! When samples of a stream begin and end.

use std::time::Duration;

use crate::transport::Span;

/// Before the first sample the flows run for so long: what a link lets through at once after a
/// pause, and what fills its queues, is over by then.
const RUN_IN: Duration = Duration::from_millis(20);

/// The samples of a streaming run, as its initiator takes them.
pub(super) struct Samples<'a> {
    spans: &'a mut [Span],
    taken: usize,
    /// Groups that were confirmed when the last one ended.
    groups: u64,
    since: u64,
    began: u64,
    has_run_in: bool,
}

impl<'a> Samples<'a> {
    /// The flows begin at `now`, in nanoseconds.
    pub(super) fn begin(spans: &'a mut [Span], now: u64) -> Self {
        Self { spans, taken: 0, groups: 0, since: now, began: now, has_run_in: false }
    }

    /// Whether every sample is taken.
    pub(super) fn are_all(&self) -> bool {
        self.taken == self.spans.len()
    }

    /// It is known `now` that `groups` have arrived. Those that became known together are taken
    /// to have lasted equally long.
    pub(super) fn take(&mut self, groups: u64, now: impl FnOnce() -> u64) {
        if groups <= self.groups {
            return;
        }
        let (now, new) = (now(), groups - self.groups);
        if self.has_run_in {
            let each = (now - self.since) / new;
            for group in 0..new {
                if let Some(span) = self.spans.get_mut(self.taken) {
                    let start = self.since + group * each;
                    *span = Span { start_ns: Some(start), end_ns: Some(start + each) };
                    self.taken += 1;
                }
            }
        }
        self.has_run_in |= Duration::from_nanos(now - self.began) >= RUN_IN;
        self.groups = groups;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_begin_after_the_run_in_and_what_is_seen_together_lasted_equally_long() {
        let run_in = u64::try_from(RUN_IN.as_nanos()).unwrap();
        let mut spans = [Span::default(); 3];
        let mut samples = Samples::begin(&mut spans, 1000);
        samples.take(0, || unreachable!("nothing has come"));
        samples.take(1, || 2000);
        samples.take(4, || 1000 + run_in);
        samples.take(5, || 1300 + run_in);
        assert!(!samples.are_all());
        samples.take(7, || 1500 + run_in);
        assert!(samples.are_all());
        let lasted = spans.map(|span| span.end_ns.unwrap() - span.start_ns.unwrap());
        assert_eq!(lasted, [300, 100, 100]);
        assert_eq!(spans[2].start_ns, Some(1400 + run_in));
    }
}
