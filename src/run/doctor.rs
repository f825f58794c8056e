//! `g2g doctor`: every rank examines where it is; rank 0 holds the answers against each other.

use std::{borrow::Cow, env, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{Failure, Here, Ranks, catalogue};
use crate::{
    cli::{DoctorOptions, TopoFormat},
    doctor::{Facts, Member, Report, Verdict},
    machine::{self, Refusal, acs::Acs, host::Host, software::Software, survey, system::System},
    plan::catalogue::Catalogue,
    record,
    transport::environment,
    world::{self, Launcher, Local, World},
};

/// Variables of CUDA and of containers that checks look at.
const VARIABLES: [&str; 3] =
    ["CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// What all ranks are told of the examination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Examination {
    /// The user's own catalogue.
    catalogue: Option<PathBuf>,
}

impl Examination {
    fn catalogue(&self) -> Result<Cow<'static, Catalogue>, Failure> {
        catalogue::read(self.catalogue.as_deref())
    }
}

/// What every rank tells the others of where it is.
type Place = (world::Host, Option<u32>);

/// Examines this machine, or those of all ranks; whether there is no problem.
pub(super) fn doctor(
    options: &DoctorOptions,
    launcher: Option<&Launcher>,
    ranks: &mut Ranks,
) -> Result<bool, Failure> {
    let start = |err: world::Error| Failure::Start(err.to_string());
    let examination = Examination { catalogue: options.catalogue.clone() };
    let is_first = launcher.is_none_or(|launcher| launcher.rank == 0);
    let simulation = match launcher {
        Some(launcher) => {
            if let Some(count) = options.ranks {
                let reason = format!(
                    "a launcher has started {} ranks ({}): leave out --ranks {count}",
                    launcher.ranks, launcher.variable
                );
                return if is_first { Err(Failure::Start(reason)) } else { Ok(true) };
            }
            let world = World::mpi(launcher, options.mpi_lib.as_deref(), options.deadline);
            *ranks = Ranks::of(world.map_err(start)?);
            None
        }
        None => {
            // What a launcher's ranks have to say of theirs is gathered.
            examination.catalogue()?;
            simulate(options)?
        }
    };
    if launcher.is_some() {
        simulate_on_each_host(options, ranks)?;
    } else {
        start_ranks(options, (simulation, &examination), ranks).map_err(start)?;
    }
    let local_rank = launcher.and_then(|launcher| launcher.local_rank);
    let Some(members) = gather(ranks, local_rank, &examination)? else { return Ok(true) };
    let report = Report::of(&members);
    let format = if options.json { TopoFormat::Json } else { options.format };
    let text = match format {
        TopoFormat::Table => record::doctor_text(&report, options.verbose),
        TopoFormat::Json => record::doctor_json(&report),
    };
    record::print(&text).map_err(|err| Failure::Start(err.to_string()))?;
    Ok(report.count(Verdict::Problem) == 0)
}

/// A rank that rank 0 has started.
pub(super) fn follow(examination: &Examination, ranks: &mut Ranks) -> Result<bool, Failure> {
    gather(ranks, None, examination).map(|_| true)
}

/// Enters the simulated machine, if one is asked for.
fn simulate(options: &DoctorOptions) -> Result<Option<String>, Failure> {
    // Nothing is measured, so nothing happens by chance.
    let simulate = |machine: &str| machine::simulate(machine, 0);
    options.simulate.as_deref().map(simulate).transpose().map_err(Failure::Start)
}

/// Enters a simulated machine for each host, which all its ranks are on.
fn simulate_on_each_host(options: &DoctorOptions, ranks: &mut Ranks) -> Result<(), Failure> {
    if options.simulate.is_none() {
        return Ok(());
    }
    let start = |err: world::Error| Failure::Start(err.to_string());
    let own = world::host();
    let hosts = ranks.world.all_gather(own.clone()).map_err(start)?;
    let members = ranks.world.members().to_vec();
    let here = members.iter().zip(&hosts).filter(|(_, host)| **host == own);
    let here: Vec<crate::plan::Rank> = here.map(|(rank, _)| *rank).collect();
    if here.len() < members.len() {
        ranks.part = Some(ranks.world.part(&here).map_err(start)?);
    }
    let within = ranks.within();
    let is_first = within.is_root();
    let state =
        if is_first { Some(simulate(options).map_err(|err| err.to_string())) } else { None };
    let state = within.broadcast(state).map_err(start)?.map_err(Failure::Start)?;
    match state {
        Some(state) if !is_first => machine::join_simulation(&state).map_err(Failure::Start),
        _ => Ok(()),
    }
}

/// Starts the other ranks, if there are to be some.
fn start_ranks(
    options: &DoctorOptions,
    (simulation, examination): (Option<String>, &Examination),
    ranks: &mut Ranks,
) -> Result<(), world::Error> {
    let count = options.ranks.unwrap_or(1);
    if count < 2 {
        return Ok(());
    }
    let program = env::current_exe().map_err(|source| world::Error::Start {
        action: "find g2g's own program file".to_owned(),
        source,
    })?;
    let variables = |_| Vec::new();
    ranks.world = World::local(Local::start(&program, count, options.deadline, variables)?)?;
    let here = Here {
        topology: crate::plan::topology::Topology::default(),
        simulation,
        fabric_lib: None,
        nccl_lib: None,
        examines: Some(examination.clone()),
    };
    ranks.world.broadcast(Some(here)).map(|_| ())
}

/// Examines this rank's host and brings the answers of all to rank 0; `None` elsewhere.
fn gather(
    ranks: &mut Ranks,
    local_rank: Option<u32>,
    examination: &Examination,
) -> Result<Option<Vec<Member>>, Failure> {
    let start = |err: world::Error| Failure::Start(err.to_string());
    let rank = ranks.world.rank();
    let own: Place = (world::host(), local_rank);
    let places = ranks.world.all_gather(own.clone()).map_err(start)?;
    let before = ranks.world.members().iter().zip(&places);
    let before = before.filter(|(other, (host, _))| **other < rank && *host == own.0).count();
    let place = local_rank.map_or(before, |local| usize::try_from(local).unwrap_or(before));
    let member = examination
        .catalogue()
        .map(|catalogue| Member::new(rank.0, place, &facts(catalogue)))
        .map_err(|failure| format!("rank {}: {failure}", rank.0));
    let members = ranks.world.gather(member).map_err(start)?;
    ranks.world.barrier().map_err(start)?;
    let members: Option<Result<Vec<Member>, String>> =
        members.map(|members| members.into_iter().collect());
    members.transpose().map_err(Failure::Start)
}

/// All that checks look at.
fn facts(catalogue: Cow<'static, Catalogue>) -> Facts {
    let system = System::here();
    let variable = |name: &str| env::var(name).ok();
    let software = Software::read(system, variable("LD_LIBRARY_PATH").as_deref());
    machine::nccl(None);
    let (survey, undescribed) = survey::told();
    let refusal = undescribed.map(|err| Refusal { code: None, reason: err.to_string() });
    let variables = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
    Facts {
        acs: Acs::read(system, &survey),
        host: Host::read(system),
        refusal: machine::driver_refusal().or(refusal),
        survey,
        confidential: machine::confidential_computing(),
        dma_buf: machine::gives_dma_bufs(),
        software,
        settings: environment::seen(&[]),
        nccl: environment::known(),
        catalogue,
        variables: variables.collect(),
    }
}
