//! From a case to its numbers: support → prepare → warm up → (fill → run → verify) × batches.
//!
//! Owns the order of the steps and the decision when enough has been measured. Rank 0 decides and
//! tells the others. Knows nothing of what moves the bytes.

mod latency;
mod sampling;
mod summary;
mod times;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use latency::Latency;
pub use summary::{SAMPLES_FOR_INTERVAL, Scale, Summary};
use times::{NO_TIME, Times};

use crate::{
    interrupt,
    plan::{Case, Effort, Operation, Rank},
    transport::{
        self, Clock, Error, Mismatch, Network, Span, Staging, Support, Transfer, Transport,
        pattern::part_seed,
    },
    units::{Bytes, gb_s},
    world::{self, World},
};

/// What became of a case.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It cannot run here, and why.
    Skipped(String),
    /// The timed transfers left wrong data behind: there is no number.
    Corrupt(Mismatch, Option<Staging>),
    /// It was measured and every byte was right.
    Measured(Box<Measurement>),
}

impl Outcome {
    /// The latencies, if it was measured: over all ranks, then of each rank where several have
    /// flows of their own.
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
    /// How much moved in bulk; `None` where nothing does: a pointer chase has a latency only.
    pub bandwidth: Option<Bulk>,
    /// Time of one operation by itself: from its first byte asked for to its last byte in place.
    pub latency: Latency,
    /// The same of each rank's own flows, where several ranks have some.
    pub rank_latencies: Vec<(Rank, Latency)>,
    /// How the data was staged.
    pub staging: Option<Staging>,
    /// What libfabric has made of it.
    pub network: Option<Network>,
    /// What the clock can do.
    pub clock: Clock,
    /// Whether host memory lies on another NUMA node than the case says.
    pub is_misplaced: bool,
    /// What the library's log has had to say on each rank, if it has one.
    pub log: Option<Vec<(Rank, String)>>,
    /// Operations of each flow in all: those that warm up and those that prove too.
    pub operations: u64,
}

/// What is measured, and how.
pub struct Experiment<'a> {
    /// What moves the bytes.
    pub transport: &'a dyn Transport,
    /// What is moved, from where to where.
    pub case: &'a Case,
    /// How long it is measured.
    pub effort: Effort,
    /// What the data is made from.
    pub seed: u64,
}

/// Observes the machine before and after all operations of a case. Nothing is moved meanwhile.
pub trait Witness {
    /// All ranks are ready, and what has moved to make them so has arrived.
    fn look_before(&mut self);

    /// The last operation has ended on all ranks.
    fn look_after(&mut self);
}

/// Nobody looks.
impl Witness for () {
    fn look_before(&mut self) {}

    fn look_after(&mut self) {}
}

/// Where in a case something ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Memory, peers and endpoints are made ready.
    Preparation,
    /// It is found how many operations make a sample.
    WarmUp,
    /// Single operations are proven.
    Proof,
    /// Many operations at once are timed, and proven.
    Bandwidth,
    /// Single operations are timed, and proven.
    Latency,
    /// All is measured; what was acquired is given back.
    Conclusion,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Preparation => "while it was prepared",
            Self::WarmUp => "in the warm-up",
            Self::Proof => "in the proof of single operations",
            Self::Bandwidth => "in the bandwidth pass",
            Self::Latency => "in the latency pass",
            Self::Conclusion => "after the last sample",
        })
    }
}

/// Why a case has no outcome.
#[derive(Debug, thiserror::Error)]
pub struct Failed {
    /// Where; `None`: between two cases.
    pub phase: Option<Phase>,
    /// What ended it.
    pub source: Box<Error>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&*self.source, self.phase) {
            // Another rank has said so of itself.
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
    /// Bandwidth of all flows together, in GB/s (10⁹ bytes per second): bytes of all flows over
    /// the time from the first flow's first byte asked for to the last flow's last byte in place.
    pub gb_s: Summary,
    /// Operations of each flow in one sample, back to back.
    pub operations_per_sample: u64,
    /// Median time of a sample.
    pub sample_time: Duration,
    /// Whether the interval reached the precision that was asked for.
    pub converged: bool,
    /// Of several ranks with flows of their own: the one with the least bandwidth, and what it
    /// has, in GB/s, as the median of its samples.
    pub slowest: Option<(Rank, f64)>,
}

/// Measures one case from nothing to nothing: all it acquires is gone when it returns. Every rank
/// calls it; the outcome is rank 0's, the others get `None`.
///
/// # Errors
///
/// A failed call or a rank that does not do its part. A case that cannot run here, and data that
/// is wrong, are no errors but outcomes.
pub fn measure(
    world: &mut World,
    experiment: &Experiment<'_>,
    witness: &mut dyn Witness,
) -> Result<Option<Outcome>, Failed> {
    let mut phase = Phase::Preparation;
    let outcome = phases(world, experiment, witness, &mut phase);
    outcome.map_err(|source| Failed { phase: Some(phase), source: Box::new(source) })
}

/// All phases, one after the other.
fn phases(
    world: &mut World,
    experiment: &Experiment<'_>,
    witness: &mut dyn Witness,
    phase: &mut Phase,
) -> Result<Option<Outcome>, Error> {
    let &Experiment { transport, case, effort, seed } = experiment;
    // What the case before has held is free on every rank now.
    world.barrier()?;
    if let Some(reason) = objection(world, transport, case)? {
        return Ok(world.is_root().then_some(Outcome::Skipped(reason)));
    }
    let mut transfer = transport.prepare(case, world)?;
    // Preparing can move data, and ends sooner on one rank than on another.
    world.barrier()?;
    witness.look_before();
    // A rank without a part in the case may be the one that looks.
    world.barrier()?;
    *phase = Phase::WarmUp;
    let has_bandwidth = !case.operation.is_latency_only();
    let iterations = case.collective().map(|(_, nccl, _)| nccl.iterations).unwrap_or_default();
    if iterations.warm_up > 0 {
        transfer.run(iterations.warm_up, &mut [Span::default()])?;
    }
    let stop = sampling::Stop::new(effort, transfer.clock(), iterations.operations());
    let (operations, each, warmed_up) = warm_up(world, transfer.as_mut(), case, stop)?;
    let count = iterations.warm_up + warmed_up;
    let mut pass = Pass { world, transfer: transfer.as_mut(), case, seed, each, count };
    let mut bandwidth = None;
    // What a pointer chase has read is proven by each of its samples.
    if case.operation != Operation::Chase {
        *phase = Phase::Proof;
        pass.seed = part_seed(seed, 0);
        if let Some(mismatch) = prove(&mut pass)? {
            return Ok(pass.corrupt(mismatch));
        }
        pass.seed = seed;
    }
    if has_bandwidth {
        *phase = Phase::Bandwidth;
        match bulk(&mut pass, stop, operations)? {
            Ok(bulk) => bandwidth = bulk,
            Err(mismatch) => return Ok(pass.corrupt(mismatch)),
        }
    }
    *phase = Phase::Latency;
    pass.seed = part_seed(seed, 2);
    pass.each = each.div_f64(operations as f64);
    let next = |times: &[Duration], each, elapsed| stop.latency(times.len(), each, elapsed);
    let times = match pass.sample(None, next)? {
        Samples::Right(times) => times,
        Samples::Wrong(mismatch) => return Ok(pass.corrupt(mismatch)),
    };
    *phase = Phase::Conclusion;
    let count = pass.count;
    witness.look_after();
    transfer.conclude(world)?;
    let clock = transfer.clock();
    let of_rank = |(rank, times): &(Rank, Vec<Duration>)| (*rank, Latency::of(times));
    let is_one = times.ranks.len() < 2;
    Ok(world.is_root().then(|| {
        Outcome::Measured(Box::new(Measurement {
            bandwidth,
            latency: Latency::of(&times.singles(clock)),
            rank_latencies: times.ranks.iter().filter(|_| !is_one).map(of_rank).collect(),
            staging: transfer.staging(),
            network: transfer.network(),
            clock,
            is_misplaced: transfer.is_misplaced(),
            log: transfer.log(),
            operations: count,
        }))
    }))
}

/// Proves single operations: one after the other moves the same bytes, and a wrong one could be
/// mended by the next. What is wrong, if anything is.
fn prove(pass: &mut Pass<'_>) -> Result<Option<Mismatch>, Error> {
    let next = |times: &[Duration], _, elapsed| {
        let is_enough = times.len() >= sampling::PROOFS || elapsed >= sampling::PROOF_TIME;
        (times.is_empty() || !is_enough).then_some(1)
    };
    match pass.sample(None, next)? {
        Samples::Right(_) => Ok(None),
        Samples::Wrong(mismatch) => Ok(Some(mismatch)),
    }
}

/// Times many operations at once; the numbers are rank 0's, `Err` is wrong data.
fn bulk(
    pass: &mut Pass<'_>,
    stop: sampling::Stop,
    operations: u64,
) -> Result<Result<Option<Bulk>, Mismatch>, Error> {
    let seed = pass.seed;
    let bytes = pass.case.bytes_per_operation().times(operations);
    let clock = pass.transfer.clock();
    pass.seed = part_seed(seed, 1);
    // A sample that took no time has no rate, and what is left without it is too slow.
    let is_timed = |times: &[Duration]| !times.contains(&Duration::ZERO);
    let next = |times: &[Duration], each, elapsed| match is_timed(times) {
        true => stop.bandwidth(times.len(), || summary(bytes, times, clock), each, elapsed),
        false => None,
    };
    let mut times = match pass.sample(Some(operations), next)? {
        Samples::Right(times) => times,
        Samples::Wrong(mismatch) => return Ok(Err(mismatch)),
    };
    if !pass.world.is_root() {
        return Ok(Ok(None));
    }
    let no_time = || Error::Disagreement(NO_TIME);
    let gb_s = is_timed(&times.all).then(|| summary(bytes, &times.all, clock)).flatten();
    let gb_s = gb_s.ok_or_else(no_time)?;
    let case = pass.case;
    let rank_gb_s = |(rank, times): &(Rank, Vec<Duration>)| {
        let flows = case.flows.iter().filter(|flow| case.timed_by(flow) == *rank).count() as u64;
        let share = match case.collective() {
            // All have a part in each.
            Some(_) => bytes,
            None => case.size.times(flows).times(operations),
        };
        Some((*rank, summary(share, times, clock)?.estimate))
    };
    let slowest = times.ranks.iter().filter_map(rank_gb_s).min_by(|a, b| a.1.total_cmp(&b.1));
    times.all.sort_unstable();
    Ok(Ok(Some(Bulk {
        converged: stop.is_converged(&gb_s),
        gb_s,
        operations_per_sample: operations,
        sample_time: times.all[times.all.len() / 2],
        slowest: slowest.filter(|_| times.ranks.len() > 1),
    })))
}

/// The bandwidth of samples of `bytes` each.
fn summary(bytes: Bytes, times: &[Duration], clock: Clock) -> Option<Summary> {
    if clock.is_streaming {
        return Summary::of_stream(bytes, times);
    }
    let rates = times.iter().filter_map(|&time| gb_s(bytes, time));
    Summary::of(&rates.collect::<Vec<f64>>())
}

/// Why the case cannot run, if any rank says so.
fn objection(
    world: &mut World,
    transport: &dyn Transport,
    case: &Case,
) -> Result<Option<String>, Error> {
    let own = match transport.support(case, world)? {
        Support::Yes => None,
        Support::No(reason) => Some(reason),
    };
    let first = world.gather(own)?.map(|all| all.into_iter().flatten().next());
    Ok(world.broadcast(first)?)
}

/// Runs until a sample is long enough; how many operations that takes, on rank 0 how long, and how
/// many operations there were in all.
fn warm_up(
    world: &mut World,
    transfer: &mut dyn Transfer,
    case: &Case,
    stop: sampling::Stop,
) -> Result<(u64, Duration, u64), Error> {
    let has_bandwidth = !case.operation.is_latency_only();
    let clock = transfer.clock();
    let mut trial = stop.first_trial(has_bandwidth);
    let mut each = Duration::ZERO;
    let mut count = 0;
    loop {
        may_go_on()?;
        count += trial.operations.unwrap_or(1) * trial.samples as u64;
        let mut spans = vec![Span::default(); trial.samples];
        match trial.operations {
            Some(operations) => transfer.run(operations, &mut spans)?,
            None => transfer.run_singly(&mut spans)?,
        }
        let next = match world.gather((world.rank(), spans))? {
            Some(ranks) => {
                each = typical(&Times::of(case, clock, &ranks)?.all, clock);
                Some(stop.next_trial(trial, each, has_bandwidth))
            }
            None => None,
        };
        match world.broadcast(next)? {
            Some(next) => trial = next,
            None => return Ok((trial.operations.unwrap_or(1), each, count)),
        }
    }
}

/// Ends the case on the first rank if a signal has asked for it; the others hear of it from there.
fn may_go_on() -> Result<(), Error> {
    if interrupt::asked().is_some() { Err(Error::Interrupted) } else { Ok(()) }
}

/// How long one of these samples lasts. The shortest: a machine that is busy elsewhere makes others
/// longer than they are. In a stream short ones are beside long ones, which waited for the same
/// word: the mean.
fn typical(samples: &[Duration], clock: Clock) -> Duration {
    match clock.is_streaming {
        true => samples.iter().sum::<Duration>().div_f64(samples.len().max(1) as f64),
        false => samples.iter().min().copied().unwrap_or_default(),
    }
}

/// One pass over a prepared case: batches of samples, each filled anew and verified.
struct Pass<'a> {
    world: &'a mut World,
    transfer: &'a mut dyn Transfer,
    case: &'a Case,
    seed: u64,
    /// About how long a sample lasts, before there is one.
    each: Duration,
    /// Operations of each flow so far.
    count: u64,
}

/// What a pass gives; the same kind on every rank, the times on rank 0 only.
enum Samples {
    Right(Times),
    Wrong(Mismatch),
}

/// What a rank reports of a batch.
#[derive(Serialize, Deserialize)]
struct Batch {
    rank: Rank,
    spans: Vec<Span>,
    mismatch: Option<Mismatch>,
}

/// What rank 0 decides after a batch.
#[derive(Serialize, Deserialize)]
enum Decision {
    Sample(usize),
    Enough,
    Corrupt(Mismatch),
}

impl Pass<'_> {
    /// Takes batches of samples of `operations` each, or of single ones, until `next` (asked on
    /// rank 0 with all times so far, how long each lasts, and the time since the pass began) wants
    /// no more.
    fn sample(
        &mut self,
        operations: Option<u64>,
        next: impl Fn(&[Duration], Duration, Duration) -> Option<usize>,
    ) -> Result<Samples, Error> {
        let began = Instant::now();
        let mut times = Times::default();
        let wanted = |times: &Times, each| next(&times.all, each, began.elapsed());
        let mut decision = wanted(&times, self.each).map_or(Decision::Enough, Decision::Sample);
        for batch in 0.. {
            may_go_on()?;
            let count = match self.world.broadcast(Some(decision))? {
                Decision::Sample(count) => count,
                Decision::Enough => return Ok(Samples::Right(times)),
                Decision::Corrupt(mismatch) => return Ok(Samples::Wrong(mismatch)),
            };
            let seed = part_seed(self.seed, batch);
            let mut spans = vec![Span::default(); count];
            self.count += operations.unwrap_or(1) * count as u64;
            self.transfer.fill(seed)?;
            match operations {
                Some(operations) => self.transfer.run(operations, &mut spans)?,
                None => self.transfer.run_singly(&mut spans)?,
            }
            transport::check_clock()?;
            let mismatch = self.transfer.verify(seed)?;
            decision = Decision::Enough;
            let own = Batch { rank: self.world.rank(), spans, mismatch };
            if let Some(ranks) = self.world.gather(own)? {
                let wrong = ranks.iter().find_map(|rank| rank.mismatch);
                let ranks: Vec<(Rank, Vec<Span>)> =
                    ranks.into_iter().map(|batch| (batch.rank, batch.spans)).collect();
                times.extend(Times::of(self.case, self.transfer.clock(), &ranks)?);
                let all = &times.all;
                let each = all.iter().sum::<Duration>().div_f64(all.len().max(1) as f64);
                decision = match (wrong, wanted(&times, each)) {
                    (Some(mismatch), _) => Decision::Corrupt(mismatch),
                    (None, Some(count)) => Decision::Sample(count),
                    (None, None) => Decision::Enough,
                };
            }
        }
        Ok(Samples::Right(times))
    }

    fn corrupt(&self, mismatch: Mismatch) -> Option<Outcome> {
        self.world.is_root().then(|| Outcome::Corrupt(mismatch, self.transfer.staging()))
    }
}

#[cfg(test)]
mod tests;
