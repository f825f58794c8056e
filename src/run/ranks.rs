//! Who takes part: this process alone, ranks that it starts, or those of a launcher on many hosts.

use std::{collections::HashMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    Failure,
    judge::{self, Judged},
    steps::Transports,
};
use crate::{
    cli::Options,
    machine,
    plan::{
        Rank, TransportKind,
        topology::{Host, Topology},
    },
    stderr::say,
    transport::environment,
    world::{self, Launcher, World},
};

/// The ranks of this run, as one of them sees them.
pub(super) struct Ranks {
    pub(super) world: World,
    /// Those of this host, where there are several hosts.
    pub(super) part: Option<World>,
}

/// What is known of a host before anything is planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Site {
    pub(super) host: Host,
    /// The transports that cannot be used there, and why.
    pub(super) absent: Vec<(TransportKind, String)>,
    /// Where its simulated machine is, if it is one.
    pub(super) simulation: Option<String>,
    /// What is expected of it.
    pub(super) judged: Judged,
}

impl Ranks {
    pub(super) const fn of(world: World) -> Self {
        Self { world, part: None }
    }

    /// The ranks of this host.
    pub(super) fn within(&mut self) -> &mut World {
        self.part.as_mut().unwrap_or(&mut self.world)
    }
}

/// This machine as the only one. How many ranks there are is not known yet.
pub(super) fn alone(
    options: &Options,
    kinds: &[TransportKind],
    transports: &mut Transports,
) -> Result<Site, Failure> {
    let simulate = |machine: &str| machine::simulate(machine, options.seed);
    let simulation = options.simulate.as_deref().map(simulate).transpose();
    let simulation = simulation.map_err(Failure::Start)?;
    let topology = topology(options, kinds).map_err(Failure::Start)?;
    let name = world::host().name;
    check_nccl(options, kinds, "").map_err(Failure::Start)?;
    let absent = absent(kinds, transports, &topology);
    let judged = judge::look(options, &topology).map_err(Failure::Start)?;
    Ok(Site { host: Host { name, ranks: Vec::new(), topology }, absent, simulation, judged })
}

/// Makes the ranks of a launcher known to each other, host by host; every rank calls it. The
/// topology is this host's, the list of all hosts rank 0's.
pub(super) fn meet(
    ranks: &mut Ranks,
    launcher: &Launcher,
    options: &Options,
    kinds: &[TransportKind],
    transports: &mut Transports,
) -> Result<(Topology, Option<Vec<Site>>), Failure> {
    let start = |err: world::Error| Failure::Start(err.to_string());
    let own = (world::host(), ranks.world.rank(), launcher.local_rank);
    let places = ranks.world.gather(own.clone()).map_err(start)?;
    let members = places.map(|places| members(&places));
    let counted = members.map(|members| {
        let hosts: std::collections::BTreeSet<&Vec<Rank>> = members.iter().collect();
        let hosts = hosts.len();
        members.into_iter().map(|members| (hosts, members)).collect()
    });
    let (hosts, members): (usize, Vec<Rank>) = ranks.world.scatter(counted).map_err(start)?;
    if hosts > 1 {
        ranks.part = Some(ranks.world.part(&members).map_err(start)?);
    }
    let within = ranks.within();
    let simulation = match &options.simulate {
        Some(machine) => {
            let own = within.is_root().then(|| machine::simulate(machine, options.seed));
            let state = within.broadcast(own).map_err(start)?;
            let is_first = within.is_root();
            Some(state.and_then(|state| {
                if is_first { Ok(state) } else { machine::join_simulation(&state).map(|()| state) }
            }))
        }
        None => None,
    };
    let known = match simulation {
        Some(Err(reason)) => Err(reason),
        Some(Ok(state)) => topology(options, kinds).map(|topology| (topology, Some(state))),
        None => topology(options, kinds).map(|topology| (topology, None)),
    };
    let known = known.map_err(|reason| format!("rank {} on {}: {reason}", own.1.0, own.0.name));
    let all = within.gather(known.clone()).map_err(start)?;
    let site = all.map(|all| site((&own.0.name, members), all, options, kinds, transports));
    let sites = ranks.world.gather(site).map_err(start)?;
    let sites =
        sites.map(|sites| sites.into_iter().flatten().collect::<Result<Vec<Site>, String>>());
    // A rank that has failed here says so to rank 0 only, which ends the run for all.
    let sites = sites.transpose().map_err(Failure::Start)?;
    let topology = known.map(|(topology, _)| topology).unwrap_or_default();
    Ok((topology, sites))
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

/// What the first rank of a host makes of what its ranks see.
fn site(
    (name, ranks): (&str, Vec<Rank>),
    all: Vec<Result<(Topology, Option<String>), String>>,
    options: &Options,
    kinds: &[TransportKind],
    transports: &mut Transports,
) -> Result<Site, String> {
    let mut seen = all.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter();
    let (mut topology, simulation) = seen.next().unwrap_or_default();
    let uuids = |topology: &Topology| -> Vec<String> {
        topology.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    };
    let mut sees_alike = true;
    for (other, _) in seen {
        sees_alike &= uuids(&other) == uuids(&topology);
        topology.add_cpus(&other);
    }
    check_nccl(options, kinds, &format!("{name}: "))?;
    let mut absent = absent(kinds, transports, &topology);
    if !sees_alike {
        let reason = format!(
            "the ranks on {name} see different GPUs: let each see all (CUDA_VISIBLE_DEVICES, \
             --gpus-per-task), and each takes one by itself"
        );
        let of_gpus = |kind: &&TransportKind| **kind != TransportKind::Rdma;
        absent.retain(|(kind, _)| !of_gpus(&kind));
        absent.extend(kinds.iter().filter(of_gpus).map(|kind| (*kind, reason.clone())));
    }
    let judged = judge::look(options, &topology).map_err(|reason| format!("{name}: {reason}"))?;
    Ok(Site { host: Host { name: name.to_owned(), ranks, topology }, absent, simulation, judged })
}

/// What is on this machine, with its network interfaces and NCCL where they are asked for.
fn topology(options: &Options, kinds: &[TransportKind]) -> Result<Topology, String> {
    let mut topology = machine::topology().map_err(|err| err.to_string())?;
    if kinds.contains(&TransportKind::Rdma) {
        topology.nics = machine::offered_nics(options.fabric.fabric_lib.as_deref().map(Path::new));
    }
    if kinds.contains(&TransportKind::Nccl) {
        machine::nccl(options.nccl.nccl_lib.as_deref());
    }
    Ok(topology)
}

/// Says, where NCCL is asked for, what is wrong with its variables on the host that
/// `place` names.
fn check_nccl(options: &Options, kinds: &[TransportKind], place: &str) -> Result<(), String> {
    if !kinds.contains(&TransportKind::Nccl) {
        return Ok(());
    }
    let request = options.nccl.request();
    let warnings = environment::check(&request).map_err(|reason| format!("{place}{reason}"))?;
    for warning in warnings.iter().filter(|_| !options.quiet) {
        say(&format!("warning: {place}{warning}"));
    }
    Ok(())
}

/// The transports that cannot be used here, and why.
fn absent(
    kinds: &[TransportKind],
    transports: &mut Transports,
    topology: &Topology,
) -> Vec<(TransportKind, String)> {
    let reason =
        |kind: &TransportKind| Some((*kind, transports.get(*kind, topology).err()?.to_owned()));
    kinds.iter().filter_map(reason).collect()
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
