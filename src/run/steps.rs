//! One case after the other, on every rank: within each host by itself, and between all.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Open,
    lookout::{Found, Lookout},
    ranks::Ranks,
};
use crate::{
    evidence::counters::Seen,
    interrupt,
    measure::{Failed, Outcome, measure},
    plan::{Case, Effort, Rank, TransportKind, topology::Topology},
    stderr,
    transport::{self, Transport, pattern::part_seed},
    world::{self, Heard, World},
};

/// What a rank must know of the run: its own part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    /// The number of the first of them, by which its data differs from that of others.
    pub(super) first: u64,
    pub(super) effort: Effort,
    pub(super) seed: u64,
}

/// What is measured at the same time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// A case of this rank's host, beside those of the others; `None`: it has no more.
    Within(Option<Case>),
    /// This rank's part of a case between all ranks.
    Between(Case),
}

/// What became of a step, as rank 0 hears it: of each host, or of all together.
pub(super) type Results = Vec<Option<Found>>;

/// What a host tells rank 0.
#[derive(Serialize, Deserialize)]
enum Report {
    Nothing,
    Found(Found),
    /// Its ranks have lost each other.
    Lost(String),
}

impl Report {
    fn found(outcome: Result<Outcome, String>, seen: Option<Seen>) -> Self {
        Self::Found(Found { outcome, seen: seen.into_iter().collect() })
    }
}

impl Step {
    /// Does this rank's part of it, as step number `index`. The results are rank 0's, with the
    /// reason why the run must end here, if it must.
    ///
    /// # Errors
    ///
    /// The other ranks are out of reach.
    pub(super) fn measure(
        &self,
        ranks: &mut Ranks,
        job: &Job,
        index: u64,
        (transports, topology, lookout): (&mut Transports, &Topology, &mut Lookout),
    ) -> Result<(Results, Option<String>), Failed> {
        let how = (job.effort, part_seed(job.seed, index));
        let with = (transports, topology, lookout);
        let case = match self {
            Self::Between(case) | Self::Within(Some(case)) => Some(case),
            Self::Within(None) => None,
        };
        match (self, &mut ranks.part) {
            (Self::Within(_), Some(part)) => {
                let one = match case {
                    Some(case) => measure_one(part, case, how, with),
                    None => {
                        part.next_round();
                        (Ok(None), None)
                    }
                };
                ranks.gather(one, job.effort)
            }
            _ => {
                let Some(case) = case else { return Ok((Vec::new(), None)) };
                let (result, own) = measure_one(&mut ranks.world, case, how, with);
                let is_root = ranks.world.is_root();
                let (outcome, lost) = match result {
                    Ok(outcome) => (outcome.map(Ok), None),
                    Err(CaseError::Case(err)) => (Some(Err(err.to_string())), None),
                    Err(CaseError::Lost(err)) if is_root => {
                        (Some(Err(err.to_string())), Some(err.to_string()))
                    }
                    Err(CaseError::Lost(err)) => return Err(err),
                };
                let (seen, lost) = match lost {
                    None => match ranks.gather_seen(&own) {
                        Ok(seen) => (seen, None),
                        // The case came to its end all the same.
                        Err(err) if is_root => (own.into_iter().collect(), Some(err.to_string())),
                        Err(err) => return Err(err.into()),
                    },
                    lost => (own.into_iter().collect(), lost),
                };
                Ok((vec![outcome.map(|outcome| Found { outcome, seen })], lost))
            }
        }
    }
}

/// What became of a case on this rank, and what it has seen meanwhile.
type One = (Result<Option<Outcome>, CaseError>, Option<Seen>);

impl Ranks {
    /// Brings what was seen of a case between all ranks on each host to rank 0.
    fn gather_seen(&mut self, own: &Option<Seen>) -> Result<Vec<Seen>, world::Error> {
        if self.part.is_none() {
            return Ok(own.iter().cloned().collect());
        }
        // What is left of a failure is dropped.
        self.world.next_round();
        let all = self.world.gather(own.clone())?;
        Ok(all.into_iter().flatten().flatten().collect())
    }

    /// Brings what became of each host's case to rank 0, and its decision to all.
    fn gather(
        &mut self,
        (result, seen): One,
        effort: Effort,
    ) -> Result<(Results, Option<String>), Failed> {
        let Some(part) = &mut self.part else { return Ok((Vec::new(), None)) };
        // Other hosts may still be measuring, and are not waited for.
        if interrupt::asked().is_some() {
            return Ok((Vec::new(), Some(transport::Error::Interrupted.to_string())));
        }
        // What is left of a failure is dropped where it happened.
        part.next_round();
        let (is_first, met) = (part.is_root(), part.barrier());
        let report = match (is_first, result, met) {
            (_, Err(CaseError::Lost(err)), _) => Report::Lost(err.to_string()),
            (_, _, Err(err)) => Report::Lost(err.to_string()),
            (true, Ok(Some(outcome)), _) => Report::found(Ok(outcome), seen),
            (true, Err(CaseError::Case(err)), _) => Report::found(Err(err.to_string()), seen),
            _ => Report::Nothing,
        };
        let report = (is_first, report);
        // Another host may still be measuring, for as long as its case may take.
        let deadline = self.world.deadline();
        self.world.set_deadline(deadline.saturating_add(effort.time_limit.saturating_mul(4)));
        let reports = self.world.gather(report);
        self.world.set_deadline(deadline);
        let mut results = Vec::new();
        let mut lost = None;
        for (is_first, report) in reports?.into_iter().flatten() {
            let result = match report {
                Report::Nothing => None,
                Report::Found(found) => Some(found),
                Report::Lost(reason) => {
                    lost.get_or_insert(reason.clone());
                    Some(Found { outcome: Err(reason), seen: Vec::new() })
                }
            };
            if is_first {
                results.push(result);
            }
        }
        let own = self.world.is_root().then_some(lost);
        let lost = self.world.broadcast(own)?;
        Ok((results, lost))
    }
}

/// The transports of this rank, each opened once and kept: a GPU that is ready stays so.
pub(super) struct Transports {
    open: Open,
    opened: Vec<Opened>,
}

struct Opened {
    kind: TransportKind,
    transport: Result<Box<dyn Transport>, String>,
}

impl Transports {
    pub(super) const fn new(open: Open) -> Self {
        Self { open, opened: Vec::new() }
    }

    /// The transport, or why it cannot be used here.
    pub(super) fn get(
        &mut self,
        kind: TransportKind,
        topology: &Topology,
    ) -> Result<&dyn Transport, &str> {
        let place = match self.opened.iter().position(|opened| opened.kind == kind) {
            Some(place) => place,
            None => {
                self.opened.push(Opened { kind, transport: (self.open)(kind, topology) });
                self.opened.len() - 1
            }
        };
        self.opened[place].transport.as_deref().map_err(String::as_str)
    }
}

/// What ended a case before its numbers.
pub(super) enum CaseError {
    /// This case only; the ranks meet again in the next.
    Case(Failed),
    /// The other ranks are out of reach.
    Lost(Failed),
}

/// One case on this rank, whatever becomes of it.
fn measure_one(
    world: &mut World,
    case: &Case,
    (effort, seed): (Effort, u64),
    (transports, topology, lookout): (&mut Transports, &Topology, &mut Lookout),
) -> One {
    world.next_round();
    let mut look = lookout.around(case);
    let result = match transports.get(case.transport, topology) {
        Ok(transport) => measure(world, transport, case, (effort, seed), &mut look),
        Err(reason) => {
            let source = Box::new(transport::Error::Unavailable(reason.to_owned()));
            Err(Failed { phase: None, source })
        }
    };
    (result.map_err(|err| told(world, err)), look.seen())
}

/// Tells the other ranks of a failure, where they do not know; whether they meet again.
fn told(world: &mut World, mut err: Failed) -> CaseError {
    let own_links_hold = match &*err.source {
        transport::Error::World(world::Error::Failed { .. }) => return CaseError::Case(err),
        // The root is connected to every rank, the others to the root alone.
        transport::Error::World(world::Error::Gone(rank) | world::Error::Late { rank, .. }) => {
            !world.is_root() && Some(&Rank(*rank)) != world.members().first()
        }
        transport::Error::World(_) => false,
        transport::Error::Stalled { .. } => !world.is_root(),
        _ => true,
    };
    if let transport::Error::Stalled { .. } = *err.source {
        say(world, &err);
    }
    if own_links_hold {
        if !err.source.may_be_a_consequence() {
            world.abandon(&err.to_string());
            return CaseError::Case(err);
        }
        let Heard { cause, gone, silent } = world.abandon_after(&err.to_string());
        // What a rank has shared is gone with it.
        if let (transport::Error::Open(_), None, Some(rank)) = (&*err.source, &cause, gone) {
            let source = Box::new(world::Error::Gone(rank.0).into());
            return CaseError::Lost(Failed { source, ..err });
        }
        if let transport::Error::Unfinished { missing, .. } = &mut *err.source {
            *missing = silent;
        }
        CaseError::Case(cause.map_or(err, Failed::from))
    } else {
        CaseError::Lost(err)
    }
}

/// Has each rank say whom it has lost. Rank 0's own words end the run, and all ranks with it: it
/// gives the others time, whose patience ends when its own does.
fn say(world: &World, err: &Failed) {
    const GRACE: Duration = Duration::from_secs(1);
    if world.is_root() {
        std::thread::sleep(GRACE);
    } else {
        stderr::say(&format!("error: rank {}: {err}", world.rank().0));
    }
}
