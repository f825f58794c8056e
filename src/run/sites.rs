//! The hosts that take part, and what is there.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{
    Failure,
    judge::{self, Judged},
    options::Options,
    ranks::Ranks,
    worker::Transports,
};
use crate::{
    machine,
    plan::{
        TransportKind,
        topology::{Host, Topology},
    },
    stderr::say,
    transport::nccl_env,
    world,
};

/// What is known of a host before anything is planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Site {
    /// Without a launcher its ranks follow from the plan.
    pub(super) host: Host,
    /// The transports that cannot be used there.
    pub(super) absent: Vec<Absent>,
    /// Where its simulated machine is, if it is one.
    pub(super) simulation: Option<String>,
    /// What is expected of it.
    pub(super) judged: Judged,
}

/// A transport that cannot be used on a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Absent {
    pub(super) transport: TransportKind,
    pub(super) reason: String,
}

/// What one rank sees of its host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct View {
    topology: Topology,
    simulation: Option<String>,
}

/// All that the ranks have found.
pub(super) struct Found {
    /// What is on this rank's host.
    pub(super) topology: Topology,
    /// All hosts; rank 0's alone.
    pub(super) sites: Option<Vec<Site>>,
}

/// Looks at the hosts of all ranks. Every rank calls it.
pub(super) fn find(
    ranks: &mut Ranks,
    options: &Options,
    transports: &mut Transports,
) -> Result<Found, Failure> {
    let start = |err: world::Error| Failure::Start(err.to_string());
    let members = ranks.find_host().map_err(start)?;
    let simulation = ranks.simulate(options.simulate.as_deref(), options.seed).map_err(start)?;
    let name = world::host().name;
    let place = match ranks.launcher() {
        Some(launcher) => format!("rank {} on {name}: ", launcher.rank),
        None => String::new(),
    };
    let view = simulation
        .and_then(|simulation| Ok(View { topology: topology(options)?, simulation }))
        .map_err(|reason| format!("{place}{reason}"));
    let views = ranks.on_this_host().gather(view.clone()).map_err(start)?;
    let place = if ranks.launcher().is_some() { format!("{name}: ") } else { String::new() };
    let site = views.map(|views| {
        let host = Host { name, ranks: members, topology: Topology::default() };
        site(host, views, options, transports, &place)
    });
    let sites = ranks.world.gather(site).map_err(start)?;
    let sites =
        sites.map(|sites| sites.into_iter().flatten().collect::<Result<Vec<Site>, String>>());
    // A rank that fails here tells only rank 0, which ends the run for all.
    let sites = sites.transpose().map_err(Failure::Start)?;
    Ok(Found { topology: view.unwrap_or_default().topology, sites })
}

/// What the first rank of a host makes of what its ranks see; `place` names the host.
fn site(
    host: Host,
    views: Vec<Result<View, String>>,
    options: &Options,
    transports: &mut Transports,
    place: &str,
) -> Result<Site, String> {
    let mut views = views.into_iter().collect::<Result<Vec<View>, String>>()?.into_iter();
    let View { mut topology, simulation } = views.next().unwrap_or_default();
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
        let takes_gpus_by_number = match transport {
            TransportKind::Local
            | TransportKind::P2p
            | TransportKind::Shm
            | TransportKind::Nccl => true,
            TransportKind::Rdma => false,
        };
        let reason = if takes_gpus_by_number && !sees_alike {
            format!(
                "the ranks on {} see different GPUs: let each see all (CUDA_VISIBLE_DEVICES, \
                 --gpus-per-task), and each takes one by itself",
                host.name
            )
        } else {
            transports.get(transport, &topology).err()?.to_owned()
        };
        Some(Absent { transport, reason })
    };
    let absent = options.transports.iter().filter_map(why_not).collect();
    let judged = judge::look(options, &topology).map_err(|reason| format!("{place}{reason}"))?;
    Ok(Site { host: Host { topology, ..host }, absent, simulation, judged })
}

/// What is on this machine, with its network interfaces and NCCL where they are asked for.
fn topology(options: &Options) -> Result<Topology, String> {
    let mut topology = machine::topology().map_err(|err| err.to_string())?;
    if options.transports.contains(&TransportKind::Rdma) {
        topology.nics = machine::offered_nics(options.fabric.fabric_lib.as_deref().map(Path::new));
    }
    if options.transports.contains(&TransportKind::Nccl) {
        machine::nccl(options.nccl.nccl_lib.as_deref());
    }
    Ok(topology)
}

/// If NCCL is measured: checks its variables on the host that `place` names.
fn check_nccl(options: &Options, place: &str) -> Result<(), String> {
    if !options.transports.contains(&TransportKind::Nccl) {
        return Ok(());
    }
    let request = options.nccl.request();
    let warnings = nccl_env::check(&request).map_err(|reason| format!("{place}{reason}"))?;
    for warning in warnings.iter().filter(|_| !options.quiet) {
        say(&format!("warning: {place}{warning}"));
    }
    Ok(())
}
