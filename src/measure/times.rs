//! Computes how long samples lasted from the spans of all ranks.

use std::time::Duration;

use crate::{
    plan::{Case, Rank},
    transport::{Clock, Error, Span, durations},
};

/// The message if a sample took no time.
pub(super) const NO_TIME: &str = "a sample took no time by its clock: give larger --sizes";

/// How long samples lasted.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Over all ranks.
    pub(super) all: Vec<Duration>,
    /// By each rank's own flows.
    pub(super) ranks: Vec<(Rank, Vec<Duration>)>,
}

impl Times {
    /// The times of one batch from the spans of each rank.
    pub(super) fn of(
        case: &Case,
        clock: Clock,
        batch: &[(Rank, Vec<Span>)],
    ) -> Result<Self, Error> {
        let ranks: Vec<(Rank, Vec<Duration>)> = batch
            .iter()
            .map(|(rank, spans)| (*rank, of_rank(case, *rank, spans, batch)))
            .filter(|(_, times)| !times.is_empty())
            .collect();
        let all = if clock.is_streaming {
            streaming(&ranks)?
        } else {
            let spans: Vec<Vec<Span>> = batch.iter().map(|(_, spans)| spans.clone()).collect();
            durations(&spans)?
        };
        Ok(Self { all, ranks })
    }

    /// Adds another batch.
    pub(super) fn extend(&mut self, more: Self) {
        self.all.extend(more.all);
        for (rank, times) in more.ranks {
            match self.ranks.iter_mut().find(|(known, _)| *known == rank) {
                Some((_, known)) => known.extend(times),
                None => self.ranks.push((rank, times)),
            }
        }
    }

    /// The times of single operations. If each rank times its own operations, those of all ranks.
    pub(super) fn singles(&self, clock: Clock) -> Vec<Duration> {
        if clock.is_streaming {
            self.ranks.iter().flat_map(|(_, times)| times).copied().collect()
        } else {
            self.all.clone()
        }
    }
}

/// How long the flows of `rank` lasted in each sample: until its own end, or, if targets note the
/// end, until the last end of its flows' targets. Empty for a rank without flows.
fn of_rank(case: &Case, rank: Rank, spans: &[Span], batch: &[(Rank, Vec<Span>)]) -> Vec<Duration> {
    let is_whole = spans.iter().all(|span| span.end_ns.is_some()) && case.engine.has_own_clock();
    let targets: Vec<&Vec<Span>> = batch
        .iter()
        .filter(|(other, _)| {
            case.flows.iter().any(|flow| flow.source.rank == rank && flow.target.rank == *other)
        })
        .map(|(_, spans)| spans)
        .collect();
    let of_sample = |(index, span): (usize, &Span)| {
        let end = if is_whole {
            span.end_ns
        } else {
            targets.iter().filter_map(|spans| spans.get(index)?.end_ns).max()
        };
        Some(Duration::from_nanos(end?.checked_sub(span.start_ns?)?))
    };
    spans.iter().enumerate().filter_map(of_sample).collect()
}

/// The time in which all ranks together would have moved one sample each at the sum of their rates:
/// on average the harmonic mean of their mean times. The harmonic mean of each sample's times would
/// be wrong: a sample that seems short because the one before was seen late would weigh too much.
fn streaming(ranks: &[(Rank, Vec<Duration>)]) -> Result<Vec<Duration>, Error> {
    let count = ranks.first().map_or(0, |(_, times)| times.len());
    if ranks.iter().any(|(_, times)| times.len() != count) {
        return Err(Error::Disagreement("one rank has more samples than another"));
    }
    let mean = |times: &[Duration]| times.iter().sum::<Duration>().as_secs_f64() / count as f64;
    let rates: Vec<f64> = ranks.iter().map(|(_, times)| 1.0 / mean(times)).collect();
    let of_sample = |sample: usize| {
        let weighed = ranks.iter().zip(&rates);
        let sum: f64 = weighed.map(|((_, times), rate)| times[sample].as_secs_f64() * rate).sum();
        // All samples of a rank may have taken no time.
        Duration::try_from_secs_f64(sum / rates.iter().sum::<f64>())
            .map_err(|_| Error::Disagreement(NO_TIME))
    };
    (0..count).map(of_sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Pattern, Request, TransportKind, cases, topology::tests::machine},
        units::Bytes,
    };

    fn span(start_ns: Option<u64>, end_ns: Option<u64>) -> Vec<Span> {
        vec![Span { start_ns, end_ns }]
    }

    fn pairs() -> Case {
        let request = Request {
            ranks: Some(4),
            patterns: vec![Pattern::Pairs],
            sizes: Some(vec![Bytes::new(64)]),
            ..Request::of(&[TransportKind::Shm])
        };
        cases(&request, &machine(&[&[0, 1]])).unwrap().remove(0)
    }

    #[test]
    fn a_source_has_the_time_until_its_own_target_ended() {
        let clock = Clock::of_host(Duration::from_nanos(1));
        let batch = [
            (Rank(0), span(Some(100), None)),
            (Rank(1), span(None, Some(150))),
            (Rank(2), span(Some(110), None)),
            (Rank(3), span(None, Some(400))),
        ];
        let times = Times::of(&pairs(), clock, &batch).unwrap();
        let ns = Duration::from_nanos;
        assert_eq!(times.all, [ns(300)]);
        assert_eq!(times.ranks, [(Rank(0), vec![ns(50)]), (Rank(2), vec![ns(290)])]);
        assert_eq!(times.singles(clock), [ns(300)]);
    }

    #[test]
    fn ranks_that_stream_add_up() {
        let clock = Clock { is_streaming: true, ..Clock::of_host(Duration::from_nanos(1)) };
        let case = Case { engine: crate::plan::Engine::Nic, ..pairs() };
        let batch = [
            (Rank(0), span(Some(0), Some(100))),
            (Rank(1), span(None, None)),
            (Rank(2), span(Some(7), Some(307))),
        ];
        let mut times = Times::of(&case, clock, &batch).unwrap();
        let ns = Duration::from_nanos;
        // A third and a whole of the rate: two thirds each.
        assert_eq!(times.all, [ns(150)]);
        assert_eq!(times.singles(clock), [ns(100), ns(300)]);
        times.extend(times.clone());
        assert_eq!(times.ranks[1], (Rank(2), vec![ns(300); 2]));
    }
}
