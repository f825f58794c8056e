//! Who takes part: this process alone, ranks that it starts, or those of a launcher on many hosts.

use std::{
    collections::{BTreeSet, HashMap},
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Failure, steps::Job};
use crate::{
    interrupt, machine,
    plan::{Rank, topology::Topology},
    transport::nccl_env,
    world::{self, Launcher, Local, World},
};

/// The ranks of this run, as one of them sees them.
pub struct Ranks {
    pub(crate) world: World,
    /// Those of this host, where there are several hosts.
    pub(super) part: Option<World>,
    launcher: Option<Launcher>,
}

/// What rank 0 tells a rank that it has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Where the simulated machine is, if it is one.
    pub(crate) simulation: Option<String>,
    pub(crate) task: Task,
}

/// What a rank that rank 0 has started is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Measure with the others.
    Measure(Here),
    /// Examine the machine, with the user's own catalogue.
    Examine(Option<PathBuf>),
}

/// The machine of ranks that measure, which rank 0 has looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Here {
    pub(super) topology: Topology,
    /// The libfabric to use, where the user names one.
    pub(super) fabric_lib: Option<PathBuf>,
    /// The NCCL to use, where the user names one.
    pub(super) nccl_lib: Option<PathBuf>,
}

impl Ranks {
    /// This process, not yet connected to any other rank.
    pub(crate) fn of_process() -> Self {
        let launcher = world::launcher(|name| env::var(name).ok());
        Self { world: World::single(), part: None, launcher }
    }

    /// The launcher that has started this process as one of several ranks.
    pub(crate) const fn launcher(&self) -> Option<&Launcher> {
        self.launcher.as_ref()
    }

    /// Whether this process answers: it is the only one, or the first of a launcher's ranks.
    pub(crate) fn is_first(&self) -> bool {
        self.own_number() == Rank(0)
    }

    /// The number of this rank, which a launcher tells before the ranks are connected.
    pub(super) fn own_number(&self) -> Rank {
        Rank(self.launcher.as_ref().map_or(0, |launcher| launcher.rank))
    }

    /// The ranks of this host.
    pub(super) fn on_this_host(&mut self) -> &mut World {
        self.part.as_mut().unwrap_or(&mut self.world)
    }

    /// Connects to the other ranks of the launcher, if there is one; `count` is what `--ranks` says.
    /// From here on a call of the driver has the limit that follows from `deadline`.
    pub(crate) fn meet(
        &mut self,
        count: Option<u32>,
        mpi_lib: Option<&Path>,
        deadline: Duration,
    ) -> Result<(), Failure> {
        machine::limit_calls(deadline);
        let Some(launcher) = &self.launcher else { return Ok(()) };
        if let Some(count) = count {
            return Err(Failure::Words(format!(
                "a launcher has started {} ranks ({}): leave out --ranks {count}, or start g2g \
                 without a launcher",
                launcher.ranks, launcher.variable
            )));
        }
        let world = World::mpi(launcher, mpi_lib, deadline);
        let start = |err: world::Error| Failure::Start(format!("rank {}: {err}", launcher.rank));
        self.world = world.map_err(start)?;
        Ok(())
    }

    /// Finds the ranks of this host, in the order of their places there, and makes a part of the
    /// world of them where there are several hosts. Every rank calls it.
    pub(crate) fn find_host(&mut self) -> Result<Vec<Rank>, world::Error> {
        let local_rank = self.launcher.as_ref().and_then(|launcher| launcher.local_rank);
        let own = (world::host(), self.world.rank(), local_rank);
        let places = self.world.gather(own)?;
        let counted = places.map(|places| {
            let members = members(&places);
            let hosts = members.iter().collect::<BTreeSet<_>>().len();
            members.into_iter().map(|members| (hosts, members)).collect()
        });
        let (hosts, members): (usize, Vec<Rank>) = self.world.scatter(counted)?;
        if hosts > 1 {
            self.part = Some(self.world.part(&members)?);
        }
        Ok(members)
    }

    /// Enters the simulated machine `machine`, one for each host, which all its ranks are on; where
    /// it is, or why there is none. Every rank calls it.
    pub(crate) fn simulate(
        &mut self,
        machine: Option<&str>,
        seed: u64,
    ) -> Result<Result<Option<String>, String>, world::Error> {
        let Some(machine) = machine else { return Ok(Ok(None)) };
        let host = self.on_this_host();
        let own = host.is_root().then(|| machine::simulate(machine, seed));
        let is_joined = own.is_some();
        let state = host.broadcast(own)?;
        Ok(state.and_then(|state| match is_joined {
            true => Ok(Some(state)),
            false => machine::join_simulation(&state).map(|()| Some(state)),
        }))
    }

    /// Starts the other ranks on this machine, so that there are `count`, each with its own
    /// `variables`, and tells them what to do.
    pub(crate) fn start(
        &mut self,
        count: u32,
        deadline: Duration,
        variables: impl Fn(Rank) -> Vec<(String, String)>,
        told: Told,
    ) -> Result<(), world::Error> {
        if count < 2 {
            self.world.set_deadline(deadline);
            return Ok(());
        }
        let program = env::current_exe().map_err(|source| world::Error::Start {
            action: "find g2g's own program file".to_owned(),
            source,
        })?;
        self.world = World::local(Local::start(&program, count, deadline, variables)?)?;
        self.world.broadcast(Some(told)).map(drop)
    }

    /// Tells ranks that wait for their part that there is nothing to do, if this is rank 0.
    pub(super) fn dismiss(&mut self) {
        if self.world.is_root() {
            let nothing = vec![None::<Job>; self.world.members().len()];
            // A rank that cannot be told will see the connection end.
            let _ = self.world.scatter(Some(nothing));
        }
    }

    /// Ends in order, after the last message: a launcher kills all ranks if one leaves otherwise.
    /// With ranks out of reach no orderly end is possible.
    pub(crate) fn leave(self, is_out_of_reach: bool) -> Result<(), world::Error> {
        let Self { world, part, .. } = self;
        drop(part);
        if is_out_of_reach {
            drop(world);
            return Ok(());
        }
        world.finish()
    }
}

/// For each rank those on its host, in the order of their places there.
fn members(places: &[(world::Host, Rank, Option<u32>)]) -> Vec<Vec<Rank>> {
    let mut hosts: HashMap<&world::Host, Vec<(Option<u32>, Rank)>> = HashMap::new();
    for (host, rank, local_rank) in places {
        hosts.entry(host).or_default().push((*local_rank, *rank));
    }
    for ranks in hosts.values_mut() {
        ranks.sort_unstable();
    }
    let of = |host| hosts.get(host).into_iter().flatten().map(|(_, rank)| *rank).collect();
    places.iter().map(|(host, ..)| of(host)).collect()
}

/// The hidden command of a rank that rank 0 starts.
#[derive(Clone, Copy, Debug, Args)]
pub struct Join {
    /// Its number.
    rank: u32,
    /// How many ranks there are.
    size: u32,
    /// The longest wait for another rank, in milliseconds.
    deadline_ms: u64,
}

impl Join {
    /// Joins rank 0; the task, or `None` if rank 0 has ended already.
    pub(crate) fn run(self, ranks: &mut Ranks) -> Result<Option<Task>, Failure> {
        nccl_env::set_of_rank().map_err(Failure::Start)?;
        interrupt::leave_to_first_rank().map_err(Failure::unwatched)?;
        let deadline = Duration::from_millis(self.deadline_ms);
        machine::limit_calls(deadline);
        let world = Local::started(Rank(self.rank), self.size, deadline).and_then(World::local);
        ranks.world = world.map_err(|err| Failure::Start(err.to_string()))?;
        let told: Told = match ranks.world.broadcast(None) {
            Ok(told) => told,
            Err(err) => return Failure::of_rank(ranks.world.rank(), err).map_or(Ok(None), Err),
        };
        if let Some(Err(reason)) = told.simulation.as_deref().map(machine::join_simulation) {
            ranks.world.abandon(&reason);
            return Err(Failure::Start(reason));
        }
        Ok(Some(told.task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_are_in_the_order_of_their_places_there() {
        let here = world::host();
        let mut there = here.clone();
        there.name = "elsewhere".to_owned();
        let places = [
            (here.clone(), Rank(0), Some(1)),
            (there.clone(), Rank(1), None),
            (here, Rank(2), Some(0)),
            (there, Rank(3), None),
        ];
        let ranks = |numbers: [u32; 2]| numbers.map(Rank).to_vec();
        let (first, second) = (ranks([2, 0]), ranks([1, 3]));
        assert_eq!(members(&places), [&first, &second, &first, &second].map(Clone::clone));
    }
}
