//! One rank at work: it measures its part of each step, and rank 0 hears what came of it.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Open,
    lookout::Lookout,
    ranks::Ranks,
    step::{Job, Part, Step},
    steps,
};
use crate::{
    interrupt,
    judge::counters::Seen,
    machine::health::HostHealth,
    measure::{Experiment, Failed, Outcome, measure},
    plan::{
        Case, Effort, Engine, Gpu, Issuer, Operation, Rank, TransportKind,
        topology::{Host, Topology},
    },
    stderr,
    transport::{self, Transport, nccl_env, pattern::part_seed},
    units::Bytes,
    world::{self, Answers, Heard, World},
};

/// What came of a case.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CaseResult {
    /// Its numbers, or why it went wrong. `None`: another rank knows, or there was no case.
    pub(super) outcome: Option<Result<Outcome, String>>,
    /// The counters of each host around it.
    pub(super) seen: Vec<Seen>,
}

/// What came of a step, as rank 0 hears it.
#[derive(Default)]
pub(super) struct StepResult {
    /// The cases, each with its place in the step; rank 0 has those of all.
    pub(super) cases: Vec<(usize, CaseResult)>,
    /// Why the run must end here, if it must.
    pub(super) lost: Option<Lost>,
    /// The ranks without which the run goes on, and why.
    pub(super) left_out: Option<LeftOut>,
}

/// Ranks without which a run goes on: those of the hosts of ranks that do not answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub(super) ranks: Vec<Rank>,
    /// What is known of those that do not answer.
    pub(super) lost: Vec<Lost>,
}

/// What rank 0 decides when all have measured their cases of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Decision {
    lost: Option<Lost>,
    left_out: Option<LeftOut>,
    /// For each case whether it is of a pair of a sample that is slower than the others.
    are_low: Vec<bool>,
}

/// Why a run ends before its last step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lost {
    pub(super) reason: String,
    /// The rank that does not answer, if it is known.
    pub(super) rank: Option<Rank>,
}

impl Lost {
    /// A rank that rank 0 has not heard in time.
    pub(super) fn silent(rank: Rank, err: &world::Error) -> Self {
        Self { reason: err.to_string(), rank: Some(rank) }
    }
}

impl From<Failed> for Lost {
    fn from(failed: Failed) -> Self {
        let rank = match &*failed.source {
            transport::Error::World(
                world::Error::Gone(rank)
                | world::Error::Late { rank, .. }
                | world::Error::Unreachable { rank, .. },
            ) => Some(Rank(*rank)),
            _ => None,
        };
        Self { reason: failed.to_string(), rank }
    }
}

/// One rank at work.
pub(super) struct Worker<'a> {
    pub(super) ranks: &'a mut Ranks,
    bench: Bench,
    seed: u64,
    /// The number of the next step, by which its data differs from that of others.
    next: u64,
    /// The ranks of each host; rank 0 knows them.
    hosts: Vec<Vec<Rank>>,
    /// Whether the run goes on without a host one of whose ranks does not answer.
    spares_hosts: bool,
}

/// What a rank reports after the last step: its number, the end of its NCCL log, and the health of
/// its host's GPUs.
pub(super) type Leave = (Rank, Option<String>, Option<HostHealth>);

/// What a rank measures cases with.
struct Bench {
    /// Which of the hosts of a step this rank is on.
    host: usize,
    transports: Transports,
    topology: Topology,
    lookout: Lookout,
    effort: Effort,
    usual: Usual,
    /// The GPUs that this rank uses with transports that it has not opened yet.
    used: HashMap<TransportKind, BTreeSet<Gpu>>,
}

/// How fast pairs of a sample are, by the kind of case; rank 0 knows it.
#[derive(Default)]
struct Usual(HashMap<(Operation, Engine, Option<Issuer>, Bytes), Vec<f64>>);

/// Pairs that are needed to tell what is usual.
const PAIRS_USUAL: usize = 8;

/// A pair that is slower than the median by more than this share is measured again.
const LOW: f64 = 0.05;

impl Usual {
    /// Whether a pair of a sample is slower than others so far; from now on it is one of them.
    fn is_low(&mut self, case: &Case, result: &CaseResult) -> bool {
        let Some(Ok(Outcome::Measured(measured))) = &result.outcome else { return false };
        let gb_s = measured.bandwidth.as_ref().map(|bulk| bulk.gb_s.estimate);
        let Some(gb_s) = gb_s.filter(|_| case.sample.is_some()) else { return false };
        let kind = (case.operation, case.engine, case.issuer, case.size);
        let others = self.0.entry(kind).or_default();
        let place = others.partition_point(|other| *other < gb_s);
        let is_low = others.len() >= PAIRS_USUAL && gb_s < others[others.len() / 2] * (1.0 - LOW);
        others.insert(place, gb_s);
        is_low
    }
}

impl<'a> Worker<'a> {
    /// This rank, which is on host number `host` of the steps of `job`; `topology` is the host's.
    pub(super) fn new(
        ranks: &'a mut Ranks,
        transports: Transports,
        topology: Topology,
        host: usize,
        job: &Job,
    ) -> Self {
        let lookout = Lookout::new(ranks, &topology);
        let (effort, usual) = (job.effort, Usual::default());
        let used = HashMap::new();
        let bench = Bench { host, transports, topology, lookout, effort, usual, used };
        let (hosts, spares_hosts) = (Vec::new(), false);
        Self { ranks, bench, seed: job.seed, next: job.first, hosts, spares_hosts }
    }

    /// Whether the case number `place` of `step` is of a rank without which the run goes on.
    pub(super) fn is_left_out(&self, step: &Step, place: usize) -> bool {
        let ranks = step.ranks(place, &self.hosts);
        ranks.iter().any(|rank| self.ranks.left_out.contains(rank))
    }

    /// This rank decides for all `hosts`; whether the run goes on without those that do not answer.
    pub(super) fn lead(&mut self, hosts: &[Host], spares_hosts: bool) {
        self.hosts = hosts.iter().map(|host| host.ranks.clone()).collect();
        self.spares_hosts = spares_hosts;
    }

    /// Keeps the clocks up of all GPUs that this rank uses in `steps`.
    pub(super) fn keep_up(&mut self, steps: &[Step]) {
        self.bench.used = steps::gpus(steps, self.bench.host, self.ranks.world.rank());
    }

    /// Does this rank's part of the next step. Pairs of a sample that are slower than the others are
    /// measured a second time. Fails if the other ranks are out of reach.
    pub(super) fn measure(&mut self, step: &Step) -> Result<StepResult, Failed> {
        let seed = part_seed(self.seed, self.next);
        self.next += 1;
        let (mut result, are_low) = self.measure_once(step, seed)?;
        if !are_low.contains(&true) {
            return Ok(result);
        }
        match self.measure_once(step, part_seed(seed, 1)) {
            Ok((second, _)) => {
                result.lost = second.lost;
                let cases = result.cases.iter_mut().zip(second.cases).zip(are_low);
                for ((case, mut second), _) in cases.filter(|(_, is_low)| *is_low) {
                    second.1.set_second();
                    *case = second;
                }
            }
            // The first measurement is complete.
            Err(err) if self.ranks.world.is_root() => result.lost = Some(err.into()),
            Err(err) => return Err(err),
        }
        Ok(result)
    }

    /// What came of the step, and for each of its cases whether it is of a pair of a sample that is
    /// slower than the others.
    fn measure_once(&mut self, step: &Step, seed: u64) -> Result<(StepResult, Vec<bool>), Failed> {
        let Ranks { world, part, left_out, .. } = &mut *self.ranks;
        let case = step.case_of(world.rank(), self.bench.host);
        match step {
            Step::OnEachHost(_) if part.is_some() => {
                let mut part = mem::take(part);
                let measured = self.measure_in_part(part.as_mut(), None, step, seed);
                self.ranks.part = part;
                return measured;
            }
            Step::Apart(parts) => {
                let is_own = |part: &&Part| part.ranks.contains(&world.rank());
                let is_whole =
                    |part: &&Part| !part.ranks.iter().any(|rank| left_out.contains(rank));
                let own = parts.iter().filter(is_whole).find(is_own);
                let (mut part, unmet) = match own.map(|own| world.part(&own.ranks)).transpose() {
                    Ok(part) => (part, None),
                    Err(err) => (None, Some(err.into())),
                };
                part.iter_mut().for_each(|part| part.set_spans_hosts(true));
                return self.measure_in_part(part.as_mut(), unmet, step, seed);
            }
            Step::Absent { .. } | Step::OnEachHost(_) | Step::AcrossHosts(_) => {}
        }
        let Some(case) = case else { return Ok(Default::default()) };
        let (mut result, mut lost) = self.bench.measure(world, case, seed);
        // What fails from here on leaves the case complete.
        if lost.is_none() && part.is_some() {
            // Drops messages of a failed case.
            world.next_round();
            match world.gather(result.seen.clone()) {
                Ok(all) => result.seen = all.into_iter().flatten().flatten().collect(),
                Err(err) => lost = Some(err.into()),
            }
        }
        let mut are_low = Vec::new();
        if lost.is_none() && case.sample.is_some() {
            world.next_round();
            let own = world.is_root().then(|| vec![self.bench.usual.is_low(case, &result)]);
            match world.broadcast(own) {
                Ok(all) => are_low = all,
                Err(err) => lost = Some(err.into()),
            }
        }
        match lost {
            Some(lost) if !world.is_root() => Err(lost),
            lost => {
                let lost = lost.map(Lost::from);
                let cases = vec![(0, result)];
                Ok((StepResult { cases, lost, left_out: None }, are_low))
            }
        }
    }

    /// After the steps of a job: this rank's part of further ones, of which rank 0 has the `parts` of
    /// all. None: those were the last.
    pub(super) fn go_on(
        &mut self,
        parts: Option<Vec<Vec<Step>>>,
    ) -> Result<Vec<Step>, world::Error> {
        self.ranks.world.next_round();
        self.ranks.world.scatter(parts)
    }

    /// After the last step: sends rank 0 the end of the NCCL log and the health of the GPUs. A
    /// barrier must follow, because a rank that leaves while rank 0 is busy looks dead.
    pub(super) fn take_leave(&mut self) -> Result<Option<Vec<Leave>>, world::Error> {
        self.ranks.world.next_round();
        let leave = self.own_leave();
        self.ranks.world.gather(leave)
    }

    /// The end of this rank's own NCCL log, and the health of this host's GPUs.
    pub(super) fn own_leave(&mut self) -> Leave {
        (self.ranks.world.rank(), nccl_env::take_log(), self.bench.lookout.health())
    }

    /// Measures this rank's case with the ranks of `part`, if it is in one, brings what came of each
    /// part's case to rank 0, and its decision to all, as `measure_once` tells it; `unmet`: why there
    /// is no part.
    fn measure_in_part(
        &mut self,
        mut part: Option<&mut World>,
        unmet: Option<Failed>,
        step: &Step,
        seed: u64,
    ) -> Result<(StepResult, Vec<bool>), Failed> {
        let Self { ranks, bench, .. } = self;
        let world = &mut ranks.world;
        let (mut result, lost) = match (&mut part, step.case_of(world.rank(), bench.host)) {
            (Some(part), Some(case)) => bench.measure(part, case, seed),
            (Some(part), None) => {
                part.next_round();
                (CaseResult::default(), None)
            }
            (None, _) => (CaseResult::default(), unmet),
        };
        // Other parts may still be measuring; a signal does not wait for them.
        if interrupt::asked().is_some() {
            let lost = Some(Lost { reason: transport::Error::Interrupted.to_string(), rank: None });
            return Ok((StepResult { lost, ..StepResult::default() }, Vec::new()));
        }
        // Drops messages of a failed case in the part where it failed. The first rank of the part
        // reports what all of its hosts have counted. Who misses a rank there does not wait for it
        // once more.
        let met = part.as_mut().filter(|_| lost.is_none()).map_or(Ok(()), |part| {
            part.next_round();
            if part.spans_hosts() {
                let all = part.gather(mem::take(&mut result.seen))?;
                result.seen = all.into_iter().flatten().flatten().collect();
            }
            part.barrier()
        });
        let lost = lost.or(met.err().map(Failed::from)).map(Lost::from);
        let result = match &lost {
            Some(lost) => CaseResult::failed(lost.reason.clone(), Vec::new()),
            None => result,
        };
        // Another part may still be measuring its own case, or waiting for a rank that is lost.
        let (deadline, limit) = (world.deadline(), bench.effort.time_limit);
        let longest = deadline.saturating_mul(2).saturating_add(limit.saturating_mul(4));
        // Rank 0 waits so long when its own case is over, and the others for its decision.
        let own = if world.is_root() { Duration::ZERO } else { longest };
        world.set_deadline(longest.saturating_add(own));
        let is_first = part.is_some_and(|part| part.is_root());
        let (decision, cases) = match world.gather_from_some((is_first, result, lost))? {
            None => (None, Vec::new()),
            Some(answers) => {
                let (decision, cases) = self.decide(answers, step);
                (Some(decision), cases)
            }
        };
        let world = &mut self.ranks.world;
        let decided = world.broadcast(decision);
        world.set_deadline(deadline);
        let Decision { lost, left_out, are_low } = decided?;
        if let Some(LeftOut { ranks, .. }) = &left_out {
            self.ranks.leave_out(ranks)?;
        }
        Ok((StepResult { cases, lost, left_out }, are_low))
    }

    /// Rank 0's decision on what all have answered, and what came of the cases.
    fn decide(
        &mut self,
        answers: Answers<(bool, CaseResult, Option<Lost>)>,
        step: &Step,
    ) -> (Decision, Vec<(usize, CaseResult)>) {
        let Answers { values, silent } = answers;
        let missing = |(rank, err): &(Rank, world::Error)| Lost::silent(*rank, err);
        let mut lost: Vec<Lost> = silent.iter().map(missing).collect();
        let silent: Vec<Rank> = lost.iter().filter_map(|lost| lost.rank).collect();
        self.ranks.world.leave_out(&silent);
        let (mut cases, mut told) = (Vec::new(), Vec::new());
        for (rank, (is_first, result, lost)) in values {
            if is_first {
                cases.push((step.place(rank, &self.hosts), result));
            }
            told.extend(lost);
        }
        // Who misses another rank may miss one that is silent here too.
        if lost.is_empty() {
            lost = told;
        }
        let is_lost = |host: &&Vec<Rank>| {
            host.iter().any(|rank| lost.iter().any(|lost| lost.rank == Some(*rank)))
        };
        let ranks: Vec<Rank> = self.hosts.iter().filter(is_lost).flatten().copied().collect();
        let is_known = lost.iter().all(|lost| lost.rank.is_some()) && !lost.is_empty();
        if self.spares_hosts && is_known && !ranks.contains(&Rank(0)) {
            cases.retain(|(place, _)| {
                !step.ranks(*place, &self.hosts).iter().any(|rank| ranks.contains(rank))
            });
            let left_out = Some(LeftOut { ranks, lost });
            return (Decision { lost: None, left_out, are_low: Vec::new() }, cases);
        }
        let is_low = |(place, result): &(usize, CaseResult)| {
            step.case(*place).is_some_and(|case| self.bench.usual.is_low(case, result))
        };
        let are_low = match lost.is_empty() {
            true => cases.iter().map(is_low).collect(),
            false => Vec::new(),
        };
        (Decision { lost: lost.into_iter().next(), left_out: None, are_low }, cases)
    }
}

impl Bench {
    /// Measures one case with the ranks of `world`. The failure, if any, ends the run: the other
    /// ranks are out of reach.
    fn measure(
        &mut self,
        world: &mut World,
        case: &Case,
        seed: u64,
    ) -> (CaseResult, Option<Failed>) {
        world.next_round();
        let mut look = self.lookout.around(case);
        let measured = match self.transports.get(case.transport, &self.topology) {
            Ok(transport) => {
                if let (Some(gpus), Some(used)) =
                    (transport.gpus(), self.used.remove(&case.transport))
                {
                    gpus.keep_up(used);
                }
                let experiment = Experiment { transport, case, effort: self.effort, seed };
                measure(world, &experiment, &mut look)
            }
            Err(reason) => {
                let source = Box::new(transport::Error::Unavailable(reason.to_owned()));
                Err(Failed { phase: None, source })
            }
        };
        match measured.map_err(|err| tell(world, err)) {
            Ok(outcome) => (CaseResult { outcome: outcome.map(Ok), seen: look.seen() }, None),
            Err(Ok(err)) => (CaseResult::failed(err.to_string(), look.seen()), None),
            Err(Err(lost)) => (CaseResult::failed(lost.to_string(), look.seen()), Some(lost)),
        }
    }
}

impl CaseResult {
    /// The case was measured before.
    pub(super) fn set_second(&mut self) {
        if let Some(Ok(Outcome::Measured(measured))) = &mut self.outcome {
            measured.is_second = true;
        }
    }

    fn failed(reason: String, seen: Vec<Seen>) -> Self {
        Self { outcome: Some(Err(reason)), seen }
    }
}

/// The transports of this rank, each opened once and kept, so that GPUs stay ready.
pub(super) struct Transports {
    open: Open,
    opened: HashMap<TransportKind, Result<Box<dyn Transport>, String>>,
}

impl Transports {
    pub(super) fn new(open: Open) -> Self {
        Self { open, opened: HashMap::new() }
    }

    /// The transport, or why it cannot be used here.
    pub(super) fn get(
        &mut self,
        kind: TransportKind,
        topology: &Topology,
    ) -> Result<&dyn Transport, &str> {
        let opened = self.opened.entry(kind).or_insert_with(|| (self.open)(kind, topology));
        opened.as_deref().map_err(String::as_str)
    }
}

/// Tells the other ranks of a failure if they do not know it. `Ok`: it concerns this case only, and
/// the ranks meet again in the next. `Err`: the other ranks are out of reach.
fn tell(world: &mut World, mut err: Failed) -> Result<Failed, Failed> {
    let own_links_hold = match &*err.source {
        transport::Error::World(world::Error::Failed { .. }) => return Ok(err),
        // The root is connected to every rank, the others to the root alone.
        transport::Error::World(world::Error::Gone(rank) | world::Error::Late { rank, .. }) => {
            !world.is_root() && Some(&Rank(*rank)) != world.members().first()
        }
        transport::Error::World(_) => false,
        // The run ends with the root's report. Before, the others report whom they miss, and the
        // one that did not answer may have told why.
        transport::Error::Stalled { .. } if world.is_root() => {
            let Heard { cause, .. } = world.abandon_after(&err.to_string());
            return Err(cause.map_or(err, Failed::from));
        }
        transport::Error::Stalled { .. } => {
            stderr::say(&format!("error: rank {}: {err}", world.rank().0));
            true
        }
        _ => true,
    };
    if own_links_hold {
        if !err.source.may_be_a_consequence() {
            world.abandon(&err.to_string());
            return Ok(err);
        }
        let Heard { cause, gone, silent } = world.abandon_after(&err.to_string());
        // Memory that a rank has shared disappears with the rank.
        if let (transport::Error::Open(_), None, Some(rank)) = (&*err.source, &cause, gone) {
            let source = Box::new(world::Error::Gone(rank.0).into());
            return Err(Failed { source, ..err });
        }
        if let transport::Error::Unfinished { missing, .. } = &mut *err.source {
            *missing = silent;
        }
        Ok(cause.map_or(err, Failed::from))
    } else {
        Err(err)
    }
}
