//! Who takes part: this process alone, ranks that it starts, or those of a launcher on many hosts.

use std::{
    collections::{BTreeSet, HashMap},
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Failure, step::Job, watch};
use crate::{
    machine,
    plan::{
        Rank,
        topology::{Host, Topology},
    },
    transport::nccl_env,
    world::{self, Launcher, Local, World},
};

/// A rank of a host that was left out ends after so long, if rank 0 does not end it before: longer than
/// any burn-in.
const LEFT_OUT: Duration = Duration::from_secs(31 * 24 * 3600);

/// The ranks of this run, as seen by one of them.
pub struct Ranks {
    pub(crate) world: World,
    /// The ranks of this host, if there are several hosts.
    pub(super) part: Option<World>,
    /// The launcher that has started this process as one of several ranks.
    pub(crate) launcher: Option<Launcher>,
    /// Whether rank 0 has sent the others their jobs.
    are_told: bool,
    /// The ranks without which the run goes on.
    pub(super) left_out: BTreeSet<Rank>,
    /// The hosts of all ranks, by name; only rank 0 has them.
    pub(super) hosts: Vec<Host>,
}

/// What a rank finds before it measures or examines.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    /// The ranks of its host.
    pub(crate) members: Vec<Rank>,
    /// How to join its simulated machine, if it is on one, or why there is none.
    pub(crate) simulation: Result<Option<String>, String>,
}

/// What rank 0 sends to a rank that it has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The simulated machine to join, if any.
    pub(crate) simulation: Option<String>,
    pub(crate) task: Task,
}

/// The task of a rank that rank 0 has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Measure with the others.
    Measure(Here),
    /// Examine the machine, with the user's own catalogue.
    Examine(Option<PathBuf>),
}

/// What rank 0 has found on the machine of ranks that measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Here {
    pub(super) topology: Topology,
    /// The libfabric to load, if the user names one.
    pub(super) fabric_lib: Option<PathBuf>,
    /// The NCCL to load, if the user names one.
    pub(super) nccl_lib: Option<PathBuf>,
}

impl Ranks {
    /// This process, not yet connected to any other rank.
    pub(crate) fn of_process() -> Self {
        let launcher = world::launcher(|name| env::var(name).ok());
        let (world, left_out, hosts) = (World::single(), BTreeSet::new(), Vec::new());
        Self { world, part: None, launcher, are_told: false, left_out, hosts }
    }

    /// Whether this process prints answers: it is the only one, or the first of a launcher's ranks.
    pub(crate) fn is_first(&self) -> bool {
        self.own_number() == Rank(0)
    }

    /// The number of this rank. A launcher tells it before the ranks are connected.
    pub(super) fn own_number(&self) -> Rank {
        Rank(self.launcher.as_ref().map_or(0, |launcher| launcher.rank))
    }

    /// The ranks of this host.
    pub(super) fn on_this_host(&mut self) -> &mut World {
        self.part.as_mut().unwrap_or(&mut self.world)
    }

    /// Connects to the other ranks of the launcher, if there is one; `count` is `--ranks`. From
    /// here on the time of each driver call is limited, by `deadline`.
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
        let world = World::launched(launcher, mpi_lib, deadline);
        let start = |err: world::Error| Failure::Start(format!("rank {}: {err}", launcher.rank));
        self.world = world.map_err(start)?;
        Ok(())
    }

    /// Finds the ranks of this host, in the order of their local ranks. With several hosts they
    /// become a part of the world. Every rank calls it.
    pub(crate) fn find_host(&mut self) -> Result<Vec<Rank>, world::Error> {
        let local_rank = self.launcher.as_ref().and_then(|launcher| launcher.local_rank);
        let own = (world::host(), self.world.rank(), local_rank);
        let places = self.world.gather(own)?;
        let counted = places.map(|places| {
            let members = members(&places);
            let named = places.into_iter().map(|(host, ..)| host.name).zip(members.clone());
            let hosts: BTreeSet<(Vec<Rank>, String)> =
                named.map(|(name, ranks)| (ranks, name)).collect();
            let host = |(ranks, name)| Host { name, ranks, ..Host::default() };
            self.hosts = hosts.into_iter().map(host).collect();
            let count = self.hosts.len();
            members.into_iter().map(|members| (count, members)).collect()
        });
        let (hosts, members): (usize, Vec<Rank>) = self.world.scatter(counted)?;
        self.world.set_spans_hosts(hosts > 1);
        if hosts > 1 {
            self.part = Some(self.world.part(&members)?);
        }
        Ok(members)
    }

    /// Finds the ranks of this host, in the order of their local ranks, and enters the simulated
    /// `machine`, if it is one. Every rank calls it; without a launcher there are to be `count`.
    pub(crate) fn enter(
        &mut self,
        machine: Option<&str>,
        seed: u64,
        count: u32,
    ) -> Result<Entered, world::Error> {
        let members = self.find_host()?;
        let Some(machine) = machine else { return Ok(Entered { members, simulation: Ok(None) }) };
        let rank = self.own_number().0;
        let count = self.launcher.as_ref().map_or(count, |launcher| launcher.ranks);
        let is_one_host = self.part.is_none();
        let host = self.on_this_host();
        let own = host.is_root().then(|| machine::simulate(machine, seed, rank));
        let has_entered = own.is_some();
        let simulation = host.broadcast(own)?.and_then(|state| {
            if !has_entered {
                machine::join_simulation(&state, rank)?;
            }
            match machine::simulated_host() {
                Some((_, 2..)) if !is_one_host => Err("several simulated hosts are simulated on \
                    one: start all ranks there"
                    .to_owned()),
                Some((_, hosts)) if hosts > count => Err(format!(
                    "{machine} has {hosts} hosts, and each rank is on one of them: start {hosts} \
                     ranks or more by a launcher (mpirun -n {hosts} g2g ...)"
                )),
                _ => Ok(Some(state)),
            }
        });
        // Those that are on one host may have entered several.
        Ok(Entered { members: self.find_host()?, simulation })
    }

    /// Starts the other ranks on this machine, so that there are `count`, each with its own
    /// `variables`, and sends them their task.
    pub(crate) fn start(
        &mut self,
        count: u32,
        deadline: Duration,
        variables: impl Fn(Rank) -> Vec<(String, String)>,
        told: Told,
    ) -> Result<(), world::Error> {
        self.are_told = true;
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

    /// Goes on without `ranks`, after which each of the others calls it too. One of them waits for the
    /// end: if it ended, its launcher would end all.
    pub(super) fn leave_out(&mut self, ranks: &[Rank]) -> Result<(), world::Error> {
        self.left_out.extend(ranks);
        if !ranks.contains(&self.world.rank()) {
            self.world.leave_out(ranks);
            return Ok(());
        }
        self.world.set_deadline(LEFT_OUT);
        self.world.broadcast::<()>(None)?;
        Err(world::Error::Gone(0))
    }

    /// Sends each rank its job. Rank 0 calls it once.
    pub(super) fn tell(&mut self, jobs: Vec<Option<Job>>) -> Result<(), world::Error> {
        self.are_told = true;
        self.world.scatter(Some(jobs)).map(drop)
    }

    /// Tells ranks that still wait for a job that there is none, if this is rank 0.
    pub(super) fn dismiss(&mut self) {
        if self.world.is_root() && !self.are_told {
            // A rank that is out of reach sees the connection end.
            let _ = self.tell(vec![None; self.world.members().len()]);
        }
    }

    /// Leaves the world after the last message: a launcher kills all ranks if one leaves otherwise.
    /// With ranks out of reach no orderly end is possible.
    pub(crate) fn leave(self, is_out_of_reach: bool) -> Result<(), world::Error> {
        let Self { world, part, left_out, .. } = self;
        drop(part);
        if is_out_of_reach || !left_out.is_empty() {
            drop(world);
            return Ok(());
        }
        world.finish()
    }
}

/// For each rank the ranks on its host, in the order of their local ranks.
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
    /// Connects to rank 0 and returns the task; `None` if rank 0 has ended already.
    pub(crate) fn run(self, ranks: &mut Ranks) -> Result<Option<Task>, Failure> {
        nccl_env::set_of_rank().map_err(Failure::Start)?;
        watch(false)?;
        let deadline = Duration::from_millis(self.deadline_ms);
        machine::limit_calls(deadline);
        let world = Local::started(Rank(self.rank), self.size, deadline).and_then(World::local);
        ranks.world = world.map_err(Failure::start)?;
        let told: Told = match ranks.world.broadcast(None) {
            Ok(told) => told,
            Err(err) => return Failure::of_rank(ranks.world.rank(), err).map_or(Ok(None), Err),
        };
        let join = |state| machine::join_simulation(state, self.rank);
        if let Some(Err(reason)) = told.simulation.as_deref().map(join) {
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
