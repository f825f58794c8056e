//! The hosts of a run, and what each of them has.

use std::{collections::HashMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    Failure,
    examine::member,
    judge::{self, Judged},
    options::Options,
    ranks::{Entered, Ranks},
    worker::{Lost, Transports},
};
use crate::{
    judge::doctor::Member,
    machine::{self, survey, system::System},
    measure::Failed,
    plan::{
        Rank, TransportKind,
        topology::{Host, Topology},
    },
    stderr::say,
    transport::nccl_env,
    world::{self, Answers},
};

/// A host before planning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Site {
    /// Without a launcher the plan sets its ranks.
    pub(super) host: Host,
    /// The transports that cannot be used there, each with the reason.
    pub(super) absent: HashMap<TransportKind, String>,
    /// How to join its simulated machine, if it is one.
    pub(super) simulation: Option<String>,
    /// What its rates are compared with.
    pub(super) judged: Judged,
    /// What the doctor finds as each of its ranks, for a check.
    pub(super) examined: Vec<Member>,
    /// Its number as an instance of EC2, if it is one.
    pub(super) instance_id: Option<String>,
}

/// What one rank sees of its host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct View {
    topology: Topology,
    simulation: Option<String>,
    examined: Option<Member>,
}

/// What the ranks have found.
pub(super) struct Found {
    /// What is on this rank's host.
    pub(super) topology: Topology,
    /// All hosts; only rank 0 has them.
    pub(super) sites: Option<Sites>,
}

/// The hosts of a run.
pub(super) struct Sites {
    /// Those that measure.
    pub(super) all: Vec<Site>,
    /// Those of a check that do not answer, and why.
    pub(super) lost: Vec<(Host, Lost)>,
}

/// Why there is no site of a host, as its first rank tells rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Unmeasured {
    /// It cannot be measured, for this reason.
    Refused(String),
    /// One of its ranks does not answer.
    Lost(Lost),
}

/// What rank 0 has heard of all hosts.
#[derive(Default)]
struct Heard {
    sites: Vec<Result<Site, Unmeasured>>,
    lost: Vec<(Host, Lost)>,
}

/// Surveys the hosts of all ranks. Every rank calls it.
pub(super) fn find(
    ranks: &mut Ranks,
    options: &Options,
    transports: &mut Transports,
) -> Result<Found, Failure> {
    let entered = ranks.enter(options.simulate.as_deref(), options.seed, 1);
    let Entered { members, simulation } = entered.map_err(Failure::start)?;
    let name = world::host().name;
    let place = match &ranks.launcher {
        Some(launcher) => format!("rank {} on {name}: ", launcher.rank),
        None => String::new(),
    };
    let (rank, catalogue) = (ranks.world.rank(), options.catalogue.as_deref());
    let at = members.iter().position(|other| *other == rank).unwrap_or(0);
    let examine = || options.asked.is_check.then(|| member(catalogue, rank, at)).transpose();
    let view = simulation
        .and_then(|simulation| {
            Ok(View { topology: topology(options)?, simulation, examined: examine()? })
        })
        .map_err(|reason| format!("{place}{reason}"));
    let place = if ranks.launcher.is_some() { format!("{name}: ") } else { String::new() };
    let told = match ranks.on_this_host().gather(view.clone()) {
        Ok(views) => views.map(|views| {
            let host = Host { name, ranks: members, ..Host::default() };
            site(host, views, options, transports, &place).map_err(Unmeasured::Refused)
        }),
        Err(err) if options.asked.is_check && !ranks.is_first() => {
            Some(Err(Unmeasured::Lost(Failed::from(err).into())))
        }
        Err(err) => return Err(Failure::start(err)),
    };
    let heard = match options.asked.is_check {
        true => gather_from_some(ranks, told),
        false => ranks.world.gather(told).map(|all| {
            let sites = all?.into_iter().flatten().collect();
            Some(Heard { sites, ..Heard::default() })
        }),
    };
    let heard = match heard {
        // A rank that was left out; or rank 0 says why there is no run.
        Err(err) if !ranks.is_first() && Failure::is_told(&err) => None,
        heard => heard.map_err(Failure::start)?,
    };
    // A rank that fails here tells only rank 0, which ends the run for all.
    let sites = heard.map(|Heard { sites, lost }| {
        let all = sites.into_iter().filter_map(|site| match site {
            Ok(site) => Some(Ok(site)),
            Err(Unmeasured::Refused(reason)) => Some(Err(reason)),
            Err(Unmeasured::Lost(_)) => None,
        });
        Ok(Sites { all: all.collect::<Result<_, _>>()?, lost })
    });
    let sites = sites.transpose().map_err(Failure::Start)?;
    Ok(Found { topology: view.unwrap_or_default().topology, sites })
}

/// What the first rank of each host tells, on rank 0. From then on all go on without the hosts where
/// a rank does not answer, of which rank 0's own is none.
fn gather_from_some(
    ranks: &mut Ranks,
    told: Option<Result<Site, Unmeasured>>,
) -> Result<Option<Heard>, world::Error> {
    let deadline = ranks.world.deadline();
    // A host waits for its own ranks first, and then all for rank 0.
    ranks.world.set_deadline(deadline.saturating_mul(if ranks.is_first() { 2 } else { 3 }));
    let heard = match ranks.world.gather_from_some(told)? {
        None => None,
        Some(answers) => Some(heard(ranks, answers)?),
    };
    let without = heard.as_ref().map(|heard| {
        let hosts = heard.lost.iter();
        hosts.flat_map(|(host, _)| host.ranks.clone()).collect::<Vec<Rank>>()
    });
    let without = ranks.world.broadcast(without)?;
    ranks.world.set_deadline(deadline);
    ranks.leave_out(&without)?;
    Ok(heard)
}

/// What rank 0 has heard, and which hosts are lost. Who was silent is told nothing more.
fn heard(
    ranks: &mut Ranks,
    answers: Answers<Option<Result<Site, Unmeasured>>>,
) -> Result<Heard, world::Error> {
    let Answers { values, silent } = answers;
    let own = ranks.hosts.iter().find(|host| host.ranks.contains(&Rank(0)));
    let (mut lost, mut without) = (Vec::new(), Vec::new());
    for (rank, err) in silent {
        if own.is_some_and(|own| own.ranks.contains(&rank)) {
            return Err(err);
        }
        lost.push(Lost::silent(rank, &err));
        without.push(rank);
    }
    ranks.world.leave_out(&without);
    for (rank, value) in &values {
        if let Some(Err(Unmeasured::Lost(why))) = value {
            lost.push(Lost { rank: why.rank.or(Some(*rank)), ..why.clone() });
        }
    }
    let why = |host: &Host| {
        let is_here = |lost: &&Lost| lost.rank.is_some_and(|rank| host.ranks.contains(&rank));
        lost.iter().find(is_here).cloned()
    };
    let hosts = ranks.hosts.iter().filter_map(|host| Some((host.clone(), why(host)?)));
    let lost = hosts.collect();
    Ok(Heard { sites: values.into_iter().filter_map(|(_, site)| site).collect(), lost })
}

/// Combines the views of a host's ranks, on its first rank; `place` names the host.
fn site(
    host: Host,
    views: Vec<Result<View, String>>,
    options: &Options,
    transports: &mut Transports,
    place: &str,
) -> Result<Site, String> {
    let mut views = views.into_iter().collect::<Result<Vec<View>, String>>()?;
    let examined = views.iter_mut().filter_map(|view| view.examined.take()).collect();
    let mut views = views.into_iter();
    let View { mut topology, simulation, .. } = views.next().unwrap_or_default();
    let uuids = |topology: &Topology| -> Vec<String> {
        topology.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    };
    let mut sees_alike = true;
    for other in views {
        sees_alike &= uuids(&other.topology) == uuids(&topology);
        topology.add_cpus(&other.topology);
    }
    check_nccl(options, place)?;
    let why_not = |&transport: &TransportKind| {
        // Ranks name GPUs by their numbers, unless they name each other.
        let reason = if !transport.is_between_ranks() && !sees_alike {
            format!(
                "the ranks on {} see different GPUs: let each see all (CUDA_VISIBLE_DEVICES, \
                 --gpus-per-task), and each takes one by itself",
                host.name
            )
        } else {
            transports.get(transport, &topology).err()?.to_owned()
        };
        Some((transport, reason))
    };
    let absent = options.asked.transports.iter().filter_map(why_not).collect();
    let judged = judge::look(options, &topology).map_err(|reason| format!("{place}{reason}"))?;
    let instance_id = survey::instance_id(System::here());
    Ok(Site { host: Host { topology, ..host }, absent, simulation, judged, examined, instance_id })
}

/// The topology of this machine. Loads libfabric and NCCL if the run measures them.
fn topology(options: &Options) -> Result<Topology, String> {
    let mut topology = machine::topology().map_err(|err| err.to_string())?;
    if options.asked.transports.contains(&TransportKind::P2p) {
        topology.domain = machine::nvlink_domain(&topology.gpus);
    }
    if options.asked.transports.contains(&TransportKind::Rdma) {
        topology.nics = machine::offered_nics(options.fabric_lib.as_deref().map(Path::new));
    }
    if options.asked.transports.contains(&TransportKind::Nccl) {
        machine::nccl(options.nccl.nccl_lib.as_deref());
    }
    Ok(topology)
}

/// If NCCL is measured: checks its variables on the host that `place` names.
fn check_nccl(options: &Options, place: &str) -> Result<(), String> {
    if !options.asked.transports.contains(&TransportKind::Nccl) {
        return Ok(());
    }
    let warnings =
        nccl_env::check(&options.asked.nccl).map_err(|reason| format!("{place}{reason}"))?;
    for warning in warnings.iter().filter(|_| !options.quiet) {
        say(&format!("warning: {place}{warning}"));
    }
    let lacking = nccl_env::known().filter(|known| !known.has_diagnostics());
    if let Some(known) = lacking.filter(|_| options.asked.is_check && !options.quiet) {
        say(&format!(
            "note: {place}NCCL {} has no diagnostics of its own, as it has from 2.31 on: the check \
             does without",
            known.version
        ));
    }
    Ok(())
}
