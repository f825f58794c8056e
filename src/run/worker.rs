//! One rank at work: it measures its part of each step, and rank 0 hears what came of it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{
    Open,
    lookout::Lookout,
    ranks::Ranks,
    steps::{Job, Step},
};
use crate::{
    interrupt,
    judge::counters::Seen,
    machine::health::HostHealth,
    measure::{Experiment, Failed, Outcome, measure},
    plan::{Case, Effort, Rank, TransportKind, topology::Topology},
    stderr,
    transport::{self, Transport, nccl_env, pattern::part_seed},
    world::{self, Heard, World},
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
    /// Host by host, or of all together.
    pub(super) cases: Vec<CaseResult>,
    /// Why the run must end here, if it must.
    pub(super) lost: Option<String>,
}

/// One rank at work.
pub(super) struct Worker<'a> {
    pub(super) ranks: &'a mut Ranks,
    bench: Bench,
    /// Which of the hosts of a step this rank is on.
    host: usize,
    seed: u64,
    /// The number of the next step, by which its data differs from that of others.
    next: u64,
}

/// What a rank reports after the last step: its number, the end of its NCCL log, and the health of
/// its host's GPUs.
pub(super) type Leave = (Rank, Option<String>, Option<HostHealth>);

/// What a rank measures cases with.
struct Bench {
    transports: Transports,
    topology: Topology,
    lookout: Lookout,
    effort: Effort,
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
        let bench = Bench { transports, topology, lookout, effort: job.effort };
        Self { ranks, bench, host, seed: job.seed, next: job.first }
    }

    /// Does this rank's part of the next step. Fails if the other ranks are out of reach.
    pub(super) fn measure(&mut self, step: &Step) -> Result<StepResult, Failed> {
        let seed = part_seed(self.seed, self.next);
        self.next += 1;
        let case = step.case(self.host);
        if matches!(step, Step::OnEachHost(_)) && self.ranks.part.is_some() {
            return self.measure_on_each_host(case, seed);
        }
        let Some(case) = case else { return Ok(StepResult::default()) };
        let world = &mut self.ranks.world;
        let (mut result, mut lost) = self.bench.measure(world, case, seed);
        if lost.is_none() && self.ranks.part.is_some() {
            // Drops messages of a failed case.
            world.next_round();
            match world.gather(result.seen.clone()) {
                Ok(all) => result.seen = all.into_iter().flatten().flatten().collect(),
                // The case itself is complete.
                Err(err) => lost = Some(err.into()),
            }
        }
        match lost {
            Some(lost) if !world.is_root() => Err(lost),
            lost => {
                let lost = lost.map(|lost| lost.to_string());
                Ok(StepResult { cases: vec![result], lost })
            }
        }
    }

    /// Measures `case` on the ranks of this host, brings what came of each host's case to rank 0,
    /// and its decision to all.
    fn measure_on_each_host(
        &mut self,
        case: Option<&Case>,
        seed: u64,
    ) -> Result<StepResult, Failed> {
        let Ranks { world, part: Some(part), .. } = &mut *self.ranks else {
            return Ok(StepResult::default());
        };
        let (result, lost) = match case {
            Some(case) => self.bench.measure(part, case, seed),
            None => {
                part.next_round();
                (CaseResult::default(), None)
            }
        };
        // Other hosts may still be measuring; a signal does not wait for them.
        if interrupt::asked().is_some() {
            let lost = Some(transport::Error::Interrupted.to_string());
            return Ok(StepResult { cases: Vec::new(), lost });
        }
        // Drops messages of a failed case on the host where it failed.
        part.next_round();
        let met = part.barrier().err().map(Failed::from);
        let lost = lost.or(met).map(|lost| lost.to_string());
        let result = match &lost {
            Some(reason) => CaseResult::failed(reason.clone(), Vec::new()),
            None => result,
        };
        // Another host may still be measuring its own case.
        let (deadline, limit) = (world.deadline(), self.bench.effort.time_limit);
        world.set_deadline(deadline.saturating_add(limit.saturating_mul(4)));
        let all = world.gather((part.is_root(), result, lost));
        world.set_deadline(deadline);
        let mut cases = Vec::new();
        let mut first_lost = None;
        for (is_first, result, lost) in all?.into_iter().flatten() {
            first_lost = first_lost.or(lost);
            if is_first {
                cases.push(result);
            }
        }
        let lost = world.broadcast(world.is_root().then_some(first_lost))?;
        Ok(StepResult { cases, lost })
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
