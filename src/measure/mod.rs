//! From a case to its numbers: support → prepare → warm up → (fill → run → verify) × batches.
//!
//! Owns the order of the steps and the decision when to stop. Rank 0 decides and tells the others.
//! Knows nothing of what moves the bytes.

mod latency;
mod sampling;
mod summary;
mod times;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use latency::Latency;
pub use sampling::time_beside_empty;
pub use summary::{SAMPLES_FOR_INTERVAL, Scale, Summary};
use times::{NO_TIME, Times};

use crate::{
    interrupt,
    plan::{Case, Effort, Operation, Rank},
    transport::{
        self, Clock, Conclusion, Empty, Error, Mismatch, Moment, Network, Span, Staging, Support,
        Transfer, Transport, pattern::part_seed,
    },
    units::{Bytes, gb_s},
    world::{self, World},
};

/// The outcome of a case.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It cannot run here, for this reason.
    Skipped(String),
    /// The timed transfers left wrong data, so there are no numbers.
    Corrupt(Mismatch, Option<Staging>),
    /// It was measured, and every byte was right.
    Measured(Box<Measurement>),
}

impl Outcome {
    /// The latencies, if it was measured: over all ranks, then of each rank if several ranks have
    /// flows.
    pub fn latencies(&self) -> Vec<(Option<Rank>, Latency)> {
        let Self::Measured(measured) = self else { return Vec::new() };
        let of_ranks = measured.rank_latencies.iter();
        std::iter::once((None, measured.latency.clone()))
            .chain(of_ranks.map(|(rank, latency)| (Some(*rank), latency.clone())))
            .collect()
    }
}

/// The numbers of a case.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The bandwidth; `None` for a pointer chase, which has only a latency.
    pub bandwidth: Option<Bulk>,
    /// The times of single operations, from the request of the first byte to the arrival of the
    /// last.
    pub latency: Latency,
    /// The same for each rank's own flows, if several ranks have flows.
    pub rank_latencies: Vec<(Rank, Latency)>,
    /// How the data was staged.
    pub staging: Option<Staging>,
    /// How libfabric carried it out.
    pub network: Option<Network>,
    /// The properties of the clock.
    pub clock: Clock,
    /// What a span of GPU work takes without operations, if events time it.
    pub empty: Option<EmptySpans>,
    /// Whether host memory lies on another NUMA node than the case says.
    pub is_misplaced: bool,
    /// Whether the work of a GPU began while it was queued.
    pub is_unheld: bool,
    /// Whether a GPU's clock rose while a batch was timed.
    pub clock_rose: bool,
    /// Whether it was measured a second time, because the first was slower than usual.
    pub is_second: bool,
    /// What the library logged on each rank, if it has a log.
    pub log: Option<Vec<(Rank, String)>>,
    /// Operations of each flow in all, with those of the warm-up and of the proof.
    pub operations: u64,
}

/// What spans of GPU work take in which nothing moves: medians. Each time that events tell holds
/// such a span beside the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptySpans {
    /// Nothing but the events, and the waits of streams for each other.
    pub span: Duration,
    /// The same with a kernel that does nothing.
    pub kernel: Duration,
}

/// A case, and how it is measured.
pub struct Experiment<'a> {
    /// What moves the bytes.
    pub transport: &'a dyn Transport,
    /// The case.
    pub case: &'a Case,
    /// How long it is measured.
    pub effort: Effort,
    /// The seed of the data.
    pub seed: u64,
}

/// Observes the machine before and after all operations of a case, while no data moves.
pub trait Witness {
    /// Called when all ranks are ready and all data of the preparation has arrived.
    fn look_before(&mut self);

    /// Called when the last operation has ended on all ranks.
    fn look_after(&mut self);
}

/// The phases of a case. The text completes "it failed …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Phase {
    /// Memory, peers and endpoints are acquired.
    #[strum(to_string = "while it was prepared")]
    Preparation,
    /// Finds how many operations make a sample.
    #[strum(to_string = "in the warm-up")]
    WarmUp,
    /// Verifies single operations.
    #[strum(to_string = "in the proof of single operations")]
    Proof,
    /// Times and verifies many operations at once.
    #[strum(to_string = "in the bandwidth pass")]
    Bandwidth,
    /// Times and verifies single operations.
    #[strum(to_string = "in the latency pass")]
    Latency,
    /// All is measured; resources are released.
    #[strum(to_string = "after the last sample")]
    Conclusion,
}

/// Why a case has no outcome.
#[derive(Debug, thiserror::Error)]
pub struct Failed {
    /// The phase it failed in; `None` between two cases.
    pub phase: Option<Phase>,
    /// The error.
    pub source: Box<Error>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&*self.source, self.phase) {
            // Another rank's error names its own phase.
            (Error::World(world::Error::Failed { .. }) | Error::Interrupted, _) | (_, None) => {
                self.source.fmt(f)
            }
            (source, Some(phase)) => write!(f, "{source} ({phase})"),
        }
    }
}

impl From<world::Error> for Failed {
    fn from(source: world::Error) -> Self {
        Self { phase: None, source: Box::new(source.into()) }
    }
}

/// The numbers of the bandwidth pass.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bulk {
    /// Bandwidth of all flows together, in GB/s (10⁹ bytes per second): bytes of all flows over the
    /// time from the first flow's request of its first byte to the arrival of the last flow's last
    /// byte.
    pub gb_s: Summary,
    /// Operations of each flow in one sample, back to back.
    pub operations_per_sample: u64,
    /// Median time of a sample.
    pub sample_time: Duration,
    /// Whether the interval reached the requested precision.
    pub converged: bool,
    /// If several ranks have flows: the slowest rank, and its bandwidth in GB/s, the median of its
    /// samples.
    pub slowest: Option<(Rank, f64)>,
}

/// Why a case ends before all of it is measured.
enum Ended {
    /// It has an outcome already.
    With(Outcome),
    Failed(Error),
}

impl<E> From<E> for Ended
where
    Error: From<E>,
{
    fn from(source: E) -> Self {
        Self::Failed(source.into())
    }
}

/// Measures one case and releases all that it acquires. Every rank calls it; rank 0 gets the
/// outcome, the others get `None`.
///
/// # Errors
///
/// A call failed, or a rank did not do its part. A case that cannot run here and wrong data are
/// outcomes, not errors.
pub fn measure(
    world: &mut World,
    experiment: &Experiment<'_>,
    witness: &mut dyn Witness,
) -> Result<Option<Outcome>, Failed> {
    let mut phase = Phase::Preparation;
    match phases(world, experiment, witness, &mut phase) {
        Ok(measurement) => Ok(measurement.map(|numbers| Outcome::Measured(Box::new(numbers)))),
        Err(Ended::With(outcome)) => Ok(world.is_root().then_some(outcome)),
        Err(Ended::Failed(source)) => Err(Failed { phase: Some(phase), source: Box::new(source) }),
    }
}

/// Runs all phases, one after the other. The numbers are rank 0's.
fn phases(
    world: &mut World,
    experiment: &Experiment<'_>,
    witness: &mut dyn Witness,
    phase: &mut Phase,
) -> Result<Option<Measurement>, Ended> {
    let &Experiment { transport, case, effort, seed } = experiment;
    // Every rank has now released what the previous case held.
    world.barrier()?;
    let own = match transport.support(case, world)? {
        Support::Yes => None,
        Support::No(reason) => Some(reason),
    };
    if let Some(reason) = world.agree(own, |all| all.into_iter().flatten().next())? {
        return Err(Ended::With(Outcome::Skipped(reason)));
    }
    let mut transfer = transport.prepare(case, world)?;
    // Preparing can move data, and ends sooner on one rank than on another.
    world.barrier()?;
    witness.look_before();
    // A rank without a part in the case may be the observer.
    world.barrier()?;
    *phase = Phase::WarmUp;
    let iterations = case.collective().map(|(_, nccl, _)| nccl.iterations).unwrap_or_default();
    let mut passes = Passes {
        transport,
        clock: transfer.clock(),
        transfer: transfer.as_mut(),
        case,
        effort,
        seed,
        each: Duration::ZERO,
        count: 0,
        // Other ranks know only their parts of the case.
        has_gpus: world.agree((), |_| case.ends().any(|end| end.gpu().is_some()))?,
        clock_rose: false,
        looked: None,
        world,
    };
    passes.clocks_rise()?;
    let empty = passes.empty_spans()?;
    if let Some(EmptySpans { span, .. }) = empty {
        let least = &mut passes.clock.sample_time_min;
        *least = sampling::time_beside_empty(span, effort.precision).max(*least);
    }
    let clock = passes.clock;
    let mut stop = sampling::Stop::new(effort, clock, iterations.operations());
    stop.has_bandwidth = !case.operation.is_latency_only();
    stop.is_of_events = empty.is_some();
    if iterations.warm_up > 0 {
        passes.run(Some(iterations.warm_up), 1)?;
    }
    let compares_each = effort.compares_each && !clock.is_streaming;
    let operations = match compares_each {
        true => clock.operations_step,
        false => passes.warm_up(stop)?,
    };
    // Each sample of a pointer chase verifies what it read.
    if case.operation != Operation::Chase && !compares_each {
        *phase = Phase::Proof;
        passes.prove()?;
    }
    let (mut bandwidth, mut times) = (None, None);
    if stop.has_bandwidth {
        *phase = Phase::Bandwidth;
        let of_bulk = passes.bulk(stop, operations)?;
        bandwidth = of_bulk.0;
        // A sample that is one operation is a latency.
        times = Some(of_bulk.1).filter(|_| operations == 1 && !clock.is_streaming);
    }
    let times = match times {
        Some(times) => times,
        None => {
            *phase = Phase::Latency;
            passes.latency(stop, operations)?
        }
    };
    *phase = Phase::Conclusion;
    let Passes { count: operations, clock_rose, .. } = passes;
    witness.look_after();
    let Conclusion { network, log } = transfer.conclude(world)?;
    let of_rank = |(rank, times): &(Rank, Vec<Duration>)| (*rank, Latency::of(times));
    let is_one = times.ranks.len() < 2;
    Ok(world.is_root().then(|| Measurement {
        bandwidth,
        latency: Latency::of(&times.singles(clock)),
        rank_latencies: times.ranks.iter().filter(|_| !is_one).map(of_rank).collect(),
        staging: transfer.staging(),
        network,
        clock,
        empty,
        is_misplaced: transfer.is_misplaced(),
        is_unheld: transfer.is_unheld(),
        clock_rose,
        is_second: false,
        log,
        operations,
    }))
}

/// The bandwidth of samples of `bytes` each.
fn summary(bytes: Bytes, times: &[Duration], clock: Clock) -> Option<Summary> {
    if clock.is_streaming {
        return Summary::of_stream(bytes, times);
    }
    let rates = times.iter().filter_map(|&time| gb_s(bytes, time));
    Summary::of(&rates.collect::<Vec<f64>>())
}

/// Ends the case on the first rank if a signal has requested it. The other ranks learn it from
/// there.
fn may_go_on() -> Result<(), Error> {
    if interrupt::asked().is_some() { Err(Error::Interrupted) } else { Ok(()) }
}

/// How long a sample lasts: the shortest of these, because other load on the machine makes samples
/// longer. In a stream the mean, because a sample that is seen late makes the next one short.
fn typical(samples: &[Duration], clock: Clock) -> Duration {
    match clock.is_streaming {
        true => samples.iter().sum::<Duration>().div_f64(samples.len().max(1) as f64),
        false => samples.iter().min().copied().unwrap_or_default(),
    }
}

/// The passes over a prepared case. Each takes batches of samples; each batch fills its buffers
/// anew and is verified.
struct Passes<'a> {
    world: &'a mut World,
    transport: &'a dyn Transport,
    transfer: &'a mut dyn Transfer,
    /// What times the spans.
    clock: Clock,
    case: &'a Case,
    effort: Effort,
    seed: u64,
    /// About how long a sample lasts: of the warm-up, then of the next pass.
    each: Duration,
    /// Operations of each flow so far.
    count: u64,
    /// Whether GPUs have a part in the case.
    has_gpus: bool,
    /// Whether a GPU's clock rose while a batch was timed.
    clock_rose: bool,
    /// When the clocks were looked at last.
    looked: Option<Moment>,
}

/// The next batch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Batch {
    samples: usize,
    /// Whether the clocks of GPUs may have fallen since they were looked at.
    may_be_slow: bool,
}

/// What rank 0 decides after a batch: what follows, if anything, or that data is wrong.
type Decision = Result<Option<Batch>, Mismatch>;

impl Passes<'_> {
    /// Runs `samples` of `operations` each, or of single ones.
    fn run(&mut self, operations: Option<u64>, samples: usize) -> Result<Vec<Span>, Error> {
        self.count += operations.unwrap_or(1) * samples as u64;
        let mut spans = vec![Span::default(); samples];
        if self.transfer.is_apart() {
            self.world.barrier()?;
        }
        match operations {
            Some(operations) => self.transfer.run(operations, &mut spans)?,
            None => self.transfer.run_singly(&mut spans)?,
        }
        if self.transfer.is_apart() {
            self.world.barrier()?;
        }
        Ok(spans)
    }

    /// Loads the GPUs, if there are any, until their clocks have risen.
    fn clocks_rise(&mut self) -> Result<(), Error> {
        if self.has_gpus {
            transport::warm(self.transport.gpus(), self.case, self.world)?;
            self.looked = Some(transport::machine_now());
        }
        Ok(())
    }

    /// A batch of so many samples, which follows now.
    fn batch(&self, samples: usize) -> Batch {
        Batch { samples, may_be_slow: self.may_have_fallen() }
    }

    /// Whether the clocks of GPUs may have fallen since they were looked at.
    fn may_have_fallen(&self) -> bool {
        let is_old = |looked| transport::machine_now().since(looked) > sampling::LOOK_AGE;
        self.looked.is_none_or(is_old)
    }

    /// What spans take in which nothing moves, if events of a GPU time them.
    fn empty_spans(&mut self) -> Result<Option<EmptySpans>, Error> {
        if !self.has_gpus {
            return Ok(None);
        }
        let span = self.empty_span(Empty::Span)?;
        let kernel = self.empty_span(Empty::Kernel)?;
        Ok(span.zip(kernel).map(|(span, kernel)| EmptySpans { span, kernel }))
    }

    /// The median time of such a span, over all ranks.
    fn empty_span(&mut self, empty: Empty) -> Result<Option<Duration>, Error> {
        let mut spans = vec![Span::default(); sampling::EMPTY_SPANS];
        self.transfer.run_empty(empty, &mut spans)?;
        let median = |ranks: Vec<Vec<Span>>| -> Result<Option<Duration>, Error> {
            if ranks.iter().flatten().all(|span| span.end_ns.is_none()) {
                return Ok(None);
            }
            let mut times = transport::durations(&ranks)?;
            times.sort_unstable();
            Ok(times.get(times.len() / 2).copied())
        };
        let all = self.world.gather(spans)?.map(median).transpose()?;
        Ok(self.world.broadcast(all)?)
    }

    /// Runs until a sample is long enough, and returns how many operations it then has.
    fn warm_up(&mut self, stop: sampling::Stop) -> Result<u64, Error> {
        let clock = self.clock;
        let mut trial = stop.first_trial();
        loop {
            may_go_on()?;
            let spans = self.run(trial.operations, trial.samples)?;
            let next = match self.world.gather((self.world.rank(), spans))? {
                Some(ranks) => {
                    self.each = typical(&Times::of(self.case, clock, &ranks)?.all, clock);
                    Some(stop.next_trial(trial, self.each))
                }
                None => None,
            };
            match self.world.broadcast(next)? {
                Some(next) => trial = next,
                None => return Ok(trial.operations.unwrap_or(clock.operations_step)),
            }
        }
    }

    /// Verifies single operations. Operations that run back to back move the same bytes, so the
    /// next one could hide what one left wrong.
    fn prove(&mut self) -> Result<(), Ended> {
        let longest = self.effort.latency_time;
        let next = |times: &[Duration], _, elapsed| {
            let is_enough = times.len() >= sampling::PROOFS || elapsed >= longest;
            (times.is_empty() || !is_enough).then_some(1)
        };
        self.sample(0, None, next).map(drop)
    }

    /// Times many operations at once; what they reached, and the times of the samples. The numbers
    /// are rank 0's.
    fn bulk(
        &mut self,
        stop: sampling::Stop,
        operations: u64,
    ) -> Result<(Option<Bulk>, Times), Ended> {
        let case = self.case;
        let bytes = case.bytes_per_operation().times(operations);
        let clock = self.clock;
        // A sample that took no time has no rate, and the other samples alone are too slow.
        let is_timed = |times: &[Duration]| !times.contains(&Duration::ZERO);
        let next = |times: &[Duration], each, elapsed| match is_timed(times) {
            true => stop.bandwidth(times.len(), || summary(bytes, times, clock), each, elapsed),
            false => None,
        };
        let mut times = self.sample(1, Some(operations), next)?;
        if !self.world.is_root() {
            return Ok((None, times));
        }
        let gb_s = is_timed(&times.all).then(|| summary(bytes, &times.all, clock)).flatten();
        let gb_s = gb_s.ok_or(Error::Disagreement(NO_TIME))?;
        let rank_gb_s = |(rank, times): &(Rank, Vec<Duration>)| {
            // All ranks have a part in each collective.
            let share = if case.collective().is_some() { 1.0 } else { case.share_of(*rank) };
            Some((*rank, share * summary(bytes, times, clock)?.estimate))
        };
        let slowest = times.ranks.iter().filter_map(rank_gb_s).min_by(|a, b| a.1.total_cmp(&b.1));
        times.all.sort_unstable();
        let bulk = Bulk {
            converged: stop.is_converged(&gb_s),
            gb_s,
            operations_per_sample: operations,
            sample_time: times.all[times.all.len() / 2],
            slowest: slowest.filter(|_| times.ranks.len() > 1),
        };
        Ok((Some(bulk), times))
    }

    /// Times single operations, after samples of the bandwidth pass had `operations`.
    fn latency(&mut self, stop: sampling::Stop, operations: u64) -> Result<Times, Ended> {
        self.each = self.each.div_f64(operations as f64);
        let median = |times: &[Duration]| {
            Summary::of(&times.iter().map(Duration::as_secs_f64).collect::<Vec<f64>>())
        };
        let next = |times: &[Duration], each, elapsed| {
            stop.latency(times.len(), || median(times), each, elapsed)
        };
        self.sample(2, None, next)
    }

    /// Takes batches of samples of `operations` each, or of single ones, until `next` wants no
    /// more. Rank 0 calls `next` with all times so far, how long a sample lasts, and the time since
    /// the pass began. The times are rank 0's. The data derives from the `number` of the pass.
    fn sample(
        &mut self,
        number: u64,
        operations: Option<u64>,
        next: impl Fn(&[Duration], Duration, Duration) -> Option<usize>,
    ) -> Result<Times, Ended> {
        let began = transport::machine_now();
        let mut times = Times::default();
        let is_stream = operations.is_some() && self.clock.is_streaming;
        let most = if self.effort.compares_each && !is_stream { 1 } else { usize::MAX };
        let wanted = |times: &Times, each| {
            let samples = next(&times.all, each, transport::machine_now().since(began));
            samples.map(|count| count.min(most))
        };
        let mut decision: Decision = Ok(wanted(&times, self.each).map(|count| self.batch(count)));
        for batch in 0.. {
            may_go_on()?;
            let Batch { samples, may_be_slow } = match self.world.broadcast(Some(decision))? {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(mismatch) => {
                    let staging = self.transfer.staging();
                    return Err(Ended::With(Outcome::Corrupt(mismatch, staging)));
                }
            };
            let seed = part_seed(part_seed(self.seed, number), batch);
            self.transfer.fill(seed)?;
            let rank = self.world.rank();
            // A proof is not timed.
            let is_timed = number > 0;
            if is_timed && may_be_slow {
                self.clocks_rise()?;
            }
            let spans = self.run(operations, samples)?;
            transport::check_clock()?;
            let is_looked_at = is_timed && self.may_have_fallen();
            let gpus = self.transport.gpus();
            let rose = is_looked_at && transport::clock_rose(gpus, self.case, rank)?;
            self.looked = is_looked_at.then(transport::machine_now).or(self.looked);
            let mismatch = self.transfer.verify(seed)?;
            decision = Ok(None);
            let own = ((rank, spans), (mismatch, rose));
            if let Some(ranks) = self.world.gather(own)? {
                let (spans, (mismatches, rose)): (Vec<_>, (Vec<Option<Mismatch>>, Vec<bool>)) =
                    ranks.into_iter().unzip();
                self.clock_rose |= rose.contains(&true);
                times.extend(Times::of(self.case, self.clock, &spans)?);
                let all = &times.all;
                let each = all.iter().sum::<Duration>().div_f64(all.len().max(1) as f64);
                decision = match mismatches.into_iter().flatten().next() {
                    Some(mismatch) => Err(mismatch),
                    None => Ok(wanted(&times, each).map(|count| self.batch(count))),
                };
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests;
