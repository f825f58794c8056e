//! A rank other than 0: it measures with the others what rank 0 tells it.

use super::{
    Failure, Open,
    ranks::{Here, Ranks},
    step::Job,
    worker::{Transports, Worker},
};
use crate::{machine, measure::Failed, plan::topology::Topology, transport};

/// Measures as a rank that rank 0 has started.
pub(crate) fn join(open: Open, here: &Here, ranks: &mut Ranks) -> Result<bool, Failure> {
    if here.fabric_lib.is_some() {
        machine::offered_nics(here.fabric_lib.as_deref());
    }
    if here.nccl_lib.is_some() {
        machine::nccl(here.nccl_lib.as_deref());
    }
    follow(ranks, Transports::new(open), here.topology.clone())
}

/// Measures until rank 0 is done.
pub(super) fn follow(
    ranks: &mut Ranks,
    transports: Transports,
    topology: Topology,
) -> Result<bool, Failure> {
    let rank = ranks.world.rank();
    let told = ranks.world.scatter(None).and_then(|job: Option<Job>| {
        if job.is_some() { ranks.world.barrier().map(|()| job) } else { Ok(job) }
    });
    let job = match told {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(true),
        Err(err) => return Failure::of_rank(rank, err).map_or(Ok(true), Err),
    };
    let mut worker = Worker::new(ranks, transports, topology, 0, &job);
    worker.keep_up(&job.steps);
    let is_told = |err: &transport::Error| match err {
        transport::Error::World(err) => Failure::is_told(err),
        _ => false,
    };
    let of_rank = |err| Failure::of_rank(rank, err).map_or(Ok(true), Err);
    let mut steps = job.steps;
    loop {
        for step in &steps {
            match worker.measure(step) {
                Ok(result) if result.lost.is_none() => {}
                // Rank 0 says why.
                Ok(_) => return Ok(true),
                Err(Failed { source, .. }) if is_told(&source) => return Ok(true),
                Err(err) => return Err(Failure::Middle(format!("rank {}: {err}", rank.0))),
            }
        }
        steps = match worker.go_on(None) {
            Ok(steps) if steps.is_empty() => break,
            Ok(steps) => steps,
            Err(err) => return of_rank(err),
        };
    }
    let left = worker.take_leave().and_then(|_| worker.ranks.world.barrier());
    left.map(|()| true).or_else(of_rank)
}
