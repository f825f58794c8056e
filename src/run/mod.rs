//! A whole run: from the command line to the exit code.

mod catalogue;
mod compare;
mod doctor;
mod explain;
mod items;
mod judge;
mod leader;
mod lookout;
mod proof;
mod ranks;
mod report;
mod resume;
mod steps;
mod sweep;
mod topo;

use std::{
    env, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use items::Item;
use judge::Judge;
use leader::Leader;
use lookout::{Lookout, Notes};
use proof::Proof;
use ranks::{Ranks, Site};
use steps::{Job, Transports};

use crate::{
    cli::{Answer, Cli, Command, Format, Options, RankArgs},
    interrupt,
    machine::{self, survey},
    measure::Failed,
    plan::{
        Case, Flow, Rank, TransportKind,
        topology::{Host, Topology},
    },
    progress::Progress,
    record::{
        self, Columns, NcclTests, Recorder, Status,
        provenance::{Provenance, Settings},
    },
    report::attribution,
    stderr::say,
    transport::{self, Transport, environment},
    world::{self, Launcher, Local, World},
};

/// How long a run may take to end when a signal asks for it.
const END: Duration = Duration::from_secs(4);

/// How a transport is opened; [`transport::open`] but in tests of what the pipeline refuses.
pub type Open = fn(TransportKind, &Topology) -> Result<Box<dyn Transport>, String>;

/// Why a run has no good end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Nothing was measured: exit code 2.
    #[error("{0}")]
    Start(String),
    /// Something was, and its rows are kept: exit code 1.
    #[error("{0}")]
    Middle(String),
}

/// Reads the command line, does what it says and returns the exit code.
pub fn main(open: Open) -> ExitCode {
    let launcher = world::launcher(|name| env::var(name).ok());
    // All ranks of a launcher read the same words, and one answers.
    let answers = launcher.as_ref().is_none_or(|launcher| launcher.rank == 0);
    // It ends behind the last sentence: a launcher ends all ranks when one leaves without order.
    let mut ranks = Ranks::of(World::single());
    let mut on_ranks = |options: &Options, kinds: &[TransportKind]| {
        let own = Rank(launcher.as_ref().map_or(0, |launcher| launcher.rank));
        let keeps_log = kinds.contains(&TransportKind::Nccl);
        environment::set(&options.nccl.request(), own, keeps_log).map_err(Failure::Start)?;
        let watched = if answers { interrupt::watch() } else { interrupt::leave_to_first_rank() };
        watched.map_err(unwatched)?;
        match &launcher {
            Some(launcher) => on_launched_ranks(options, kinds, open, launcher, &mut ranks),
            None => on_own_ranks(options, kinds, open, &mut ranks),
        }
    };
    let result = match Cli::read(env::args_os()) {
        Ok(cli) => match cli.command {
            Command::Run(options) => on_ranks(&options, &TransportKind::ALL),
            Command::Local(options) => on_ranks(&options, &[TransportKind::Local]),
            Command::P2p(options) => on_ranks(&options, &[TransportKind::P2p]),
            Command::Shm(options) => on_ranks(&options, &[TransportKind::Shm]),
            Command::Nccl(options) => on_ranks(&options, &[TransportKind::Nccl]),
            Command::Rdma(options) => on_ranks(&options, &[TransportKind::Rdma]),
            Command::Topo(options) => {
                if answers {
                    topo::topo(&options)
                } else {
                    Ok(true)
                }
            }
            Command::Sweep(options) if answers => interrupt::watch()
                .map_err(unwatched)
                .and_then(|()| sweep::sweep(&options, launcher.as_ref())),
            Command::Sweep(_) => Ok(true),
            Command::Report(options) if answers => report::report(&options),
            Command::Report(_) => Ok(true),
            Command::Compare(options) if answers => compare::compare(&options),
            Command::Compare(_) => Ok(true),
            Command::Explain(options) if answers => explain::explain(&options),
            Command::Explain(_) => Ok(true),
            Command::Catalogue(options) if answers => catalogue::catalogue(&options),
            Command::Catalogue(_) => Ok(true),
            Command::Doctor(options) => doctor::doctor(&options, launcher.as_ref(), &mut ranks),
            Command::Rank(rank) => join(rank, open, &mut ranks),
        },
        Err(_) if !answers => Ok(true),
        Err(Answer::Help(text)) => {
            record::print(&text).map_err(|err| Failure::Start(err.to_string())).map(|()| true)
        }
        Err(Answer::Usage(text)) => {
            say(text.trim_end());
            return ExitCode::from(2);
        }
        Err(Answer::Refused(sentence)) => Err(Failure::Start(sentence)),
    };
    if let Err(failure) = &result {
        say(&format!("error: {failure}"));
    }
    let Ranks { world, part } = ranks;
    drop(part);
    match result {
        // The other ranks are out of reach: there is no order to end in.
        Err(Failure::Middle(_)) => drop(world),
        _ => {
            if let Err(err) = world.finish() {
                say(&format!("error: {err}"));
                return ExitCode::from(1);
            }
        }
    }
    if let Some(signal) = interrupt::asked() {
        return ExitCode::from(signal.exit_code());
    }
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(Failure::Middle(_)) => ExitCode::from(1),
        Err(Failure::Start(_)) => ExitCode::from(2),
    }
}

fn unwatched(err: io::Error) -> Failure {
    Failure::Start(format!("cannot wait for signals: {err}"))
}

/// Measures on the ranks of a launcher, as the one of them that this process is.
fn on_launched_ranks(
    options: &Options,
    kinds: &[TransportKind],
    open: Open,
    launcher: &Launcher,
    ranks: &mut Ranks,
) -> Result<bool, Failure> {
    if let Some(count) = options.ranks {
        let reason = format!(
            "a launcher has started {} ranks ({}): leave out --ranks {count}, or start g2g without \
             a launcher",
            launcher.ranks, launcher.variable
        );
        return if launcher.rank == 0 { Err(Failure::Start(reason)) } else { Ok(true) };
    }
    let world = World::mpi(launcher, options.mpi_lib.as_deref(), options.deadline);
    let start = |err: world::Error| Failure::Start(format!("rank {}: {err}", launcher.rank));
    *ranks = Ranks::of(world.map_err(start)?);
    let mut transports = Transports::new(open);
    let met = ranks::meet(ranks, launcher, options, kinds, &mut transports);
    let (topology, sites) = match met {
        Ok(met) => met,
        Err(failure) if ranks.world.is_root() => return Err(dismiss(ranks, failure)),
        Err(failure) => return Err(failure),
    };
    match sites {
        Some(sites) => lead((options, kinds), (transports, sites), ranks, true),
        None => follow(ranks, transports, &topology),
    }
}

/// Tells the others that there is nothing to do, and hands back why.
fn dismiss(ranks: &mut Ranks, failure: Failure) -> Failure {
    let nothing = vec![None::<Job>; ranks.world.members().len()];
    // Who cannot be told will see that nobody comes.
    let _ = ranks.world.scatter(Some(nothing));
    failure
}

/// Measures on this machine alone, with ranks that this process starts.
fn on_own_ranks(
    options: &Options,
    kinds: &[TransportKind],
    open: Open,
    ranks: &mut Ranks,
) -> Result<bool, Failure> {
    let mut transports = Transports::new(open);
    let site = ranks::alone(options, kinds, &mut transports)?;
    lead((options, kinds), (transports, vec![site]), ranks, false)
}

/// Rank 0: plans, measures with the others, records and prints; whether all went well.
fn lead(
    (options, kinds): (&Options, &[TransportKind]),
    (transports, sites): (Transports, Vec<Site>),
    ranks: &mut Ranks,
    is_launched: bool,
) -> Result<bool, Failure> {
    let start = |err: &dyn std::error::Error| Failure::Start(err.to_string());
    let prepared = prepare(options, kinds, sites, is_launched);
    let (items, sites) = match prepared {
        Ok(prepared) if !options.dry_run => prepared,
        Ok((items, _)) => {
            let shown = record::print(&items::listing(&items)).map_err(|err| start(&err));
            return match shown {
                Ok(()) if is_launched => Ok(dismiss_well(ranks)),
                Ok(()) => Ok(true),
                Err(failure) => Err(dismiss(ranks, failure)),
            };
        }
        Err(failure) => return Err(dismiss(ranks, failure)),
    };
    let hosts: Vec<Host> = sites.iter().map(|site| site.host.clone()).collect();
    let judged = sites.iter().map(|site| site.judged.clone()).collect();
    let judge = match Judge::of(options, judged) {
        Ok(judge) => judge,
        Err(failure) => return Err(dismiss(ranks, failure)),
    };
    let recorder = match files((options, kinds), &hosts, &items, ranks) {
        Ok(recorder) => recorder,
        Err(failure) => return Err(dismiss(ranks, failure)),
    };
    let communicator: Vec<Flow> =
        items.iter().flat_map(Item::cases).find_map(Case::communicator).unwrap_or_default();
    let about = about(options, &items);
    let (next, first, items) = items::left(items, recorder.rows().len());
    let (effort, seed) = (options.effort(), options.seed);
    let job = Job { steps: Vec::new(), first, effort, seed };
    let (recorder, measured) = if items.is_empty() {
        dismiss_well(ranks);
        if !options.quiet {
            say(&format!("all rows are there in {}", recorder.folder().display()));
        }
        (recorder, Ok(()))
    } else {
        if let Err(failure) = begin(options, (&items, &job), &sites, ranks, is_launched) {
            recorder.discard();
            return Err(failure);
        }
        // With other GPUs than it began with, the run has those that it began with.
        if !options.resume_changed
            && let Err(err) = record::keep_topology(recorder.folder(), &survey::told().0)
        {
            say(&format!("warning: {err}"));
        }
        let own = hosts.iter().position(|host| host.ranks.contains(&Rank(0))).unwrap_or(0);
        let rows = next - 1 + items.iter().map(Item::rows).sum::<usize>();
        let progress = Progress::new(
            (rows, recorder.rows().len()),
            items.iter().filter_map(Item::weight),
            effort.time_limit,
            (options.quiet, options.verbose),
        );
        progress.begin_run(recorder.folder());
        let leader = Leader {
            items,
            transports,
            recorder,
            progress,
            hosts: hosts.clone(),
            own,
            nccl_env: options.nccl.nccl_env.clone(),
            proof: Proof::default(),
            judge: &judge,
            lookout: Lookout::new(ranks, &hosts[own].topology),
            notes: Notes::default(),
            rows,
            next,
        };
        leader.lead(&job, ranks, options.simulate.is_some())
    };
    judge.conclude(recorder.rows(), &hosts, options.quiet);
    let shown = show(options, &recorder, (&about, &communicator), &hosts);
    // Whoever asks for the end has no time for a page, which `g2g report` makes too.
    if !options.no_report && interrupt::asked().is_none() {
        report::write_own(recorder.folder());
    }
    measured?;
    shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
    Ok(is_well(&recorder))
}

/// Opens the files of a new run, or of the one to go on with.
fn files(
    (options, kinds): (&Options, &[TransportKind]),
    hosts: &[Host],
    items: &[Item],
    ranks: &Ranks,
) -> Result<Recorder, Failure> {
    let settings = Settings {
        seed: options.seed,
        ranks: hosts.iter().map(|host| host.ranks.len()).sum(),
        effort: options.effort(),
        simulated_machine: options.simulate.clone(),
        mpi: ranks.world.library(),
    };
    let provenance = Provenance::collect(&settings, hosts);
    let given = options.resume.as_ref().or(options.output.as_ref());
    let folder = given.cloned().unwrap_or_else(|| default_folder(&provenance));
    interrupt::has_to_lose(END, leader::remedy(&folder));
    if options.resume.is_some() {
        return resume::take_up(&folder, (options, kinds), &provenance, items);
    }
    Recorder::create(&folder, &provenance).map_err(|err| Failure::Start(err.to_string()))
}

/// Prints the results in the form asked for.
fn show(
    options: &Options,
    recorder: &Recorder,
    (about, communicator): (&NcclTests, &[Flow]),
    hosts: &[Host],
) -> io::Result<()> {
    let rows = recorder.rows();
    let provenance = recorder.provenance();
    record::print(&match options.format {
        Format::Table | Format::Markdown => {
            let columns = Columns::of_rows(rows.iter().cloned());
            let slow = attribution::find(&columns, &|row| attribution::way(&columns, row, hosts));
            let mut page = record::tables(rows);
            page.lines(&attribution::text(&slow));
            if options.format == Format::Markdown { page.markdown() } else { page.text() }
        }
        Format::Csv => record::csv_text(rows),
        Format::Json => {
            record::json_text((provenance, recorder.resumed()), rows, recorder.health())
        }
        Format::NcclTests => record::nccl_tests_text(about, provenance, communicator, rows),
        Format::Prometheus => record::prometheus_text(provenance, rows),
    })
}

/// What nccl-tests says of a run.
fn about(options: &Options, items: &[Item]) -> NcclTests {
    let sizes = || items.iter().flat_map(Item::cases).map(|case| case.size);
    let of_case = |case: &Case| case.nccl.map(|nccl| (nccl.iterations, nccl.split));
    let first = items.iter().flat_map(Item::cases).find_map(of_case);
    let (iterations, split) = first.unwrap_or_default();
    NcclTests {
        sizes: (sizes().min().unwrap_or_default(), sizes().max().unwrap_or_default()),
        step: options.nccl.step(),
        iterations,
        split,
    }
}

fn dismiss_well(ranks: &mut Ranks) -> bool {
    drop(dismiss(ranks, Failure::Start(String::new())));
    true
}

/// Says where the results are, and what of them has no number for a bad reason; whether all is
/// well.
fn is_well(recorder: &Recorder) -> bool {
    let count = |status| recorder.rows().iter().filter(|row| row.status == status).count();
    let (corrupt, failed) = (count(Status::Corrupt), count(Status::Failed));
    if corrupt + failed > 0 {
        say(&format!(
            "error: of {} rows {corrupt} are corrupt and {failed} failed: see status and reason in {}",
            recorder.rows().len(),
            recorder.folder().join("run.csv").display()
        ));
    }
    corrupt + failed == 0
}

/// The rows to be. What was asked for by name must have one that can be measured.
fn prepare(
    options: &Options,
    kinds: &[TransportKind],
    mut sites: Vec<Site>,
    is_launched: bool,
) -> Result<(Vec<Item>, Vec<Site>), Failure> {
    let request = options.request(kinds).map_err(Failure::Start)?;
    if !is_launched {
        let count = items::ranks_alone(&request, &sites[0]).map_err(Failure::Start)?;
        sites[0].host.ranks = (0..count).map(Rank).collect();
    }
    let items = items::items(&request, &sites, options.simulate.is_some(), is_launched);
    let items = items.map_err(Failure::Start)?;
    if let ([_], [Item::Absent { reason, .. }]) = (kinds, &items[..]) {
        return Err(Failure::Start(format!("nothing can be measured: {reason}")));
    }
    Ok((items, sites))
}

/// Starts the other ranks where nobody else has, and tells each its part; returns when all have
/// it.
fn begin(
    options: &Options,
    (items, job): (&[Item], &Job),
    sites: &[Site],
    ranks: &mut Ranks,
    is_launched: bool,
) -> Result<(), Failure> {
    let fail = |err: world::Error| match is_launched {
        true => Failure::Middle(err.to_string()),
        false => Failure::Start(err.to_string()),
    };
    let hosts: Vec<&Host> = sites.iter().map(|site| &site.host).collect();
    let world = &mut ranks.world;
    if !is_launched {
        *world = start_ranks(hosts[0].ranks.len(), options).map_err(fail)?;
        let here = Here {
            topology: hosts[0].topology.clone(),
            simulation: sites[0].simulation.clone(),
            fabric_lib: options.fabric.fabric_lib.clone(),
            nccl_lib: options.nccl.nccl_lib.clone(),
            examines: None,
        };
        world.broadcast(Some(here)).map_err(fail)?;
    }
    let members = world.members().to_vec();
    let jobs = items::steps(items, &hosts, &members);
    let jobs = jobs.into_iter().map(|steps| Some(Job { steps, ..job.clone() }));
    world.scatter(Some(jobs.collect())).map_err(fail)?;
    world.barrier().map_err(fail)
}

/// What a rank that rank 0 has started is told of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Here {
    topology: Topology,
    /// Where the simulated machine is, if it is one.
    simulation: Option<String>,
    /// The libfabric to use, where the user names one.
    fabric_lib: Option<PathBuf>,
    /// The NCCL to use, where the user names one.
    nccl_lib: Option<PathBuf>,
    /// Whether the machine is to be examined, and nothing measured.
    examines: Option<doctor::Examination>,
}

/// A rank that rank 0 has started: measures with the others until rank 0 is done.
fn join(args: RankArgs, open: Open, ranks: &mut Ranks) -> Result<bool, Failure> {
    environment::set_of_rank().map_err(Failure::Start)?;
    interrupt::leave_to_first_rank().map_err(unwatched)?;
    let deadline = Duration::from_millis(args.deadline_ms);
    let world = Local::started(Rank(args.rank), args.size, deadline).and_then(World::local);
    *ranks = Ranks::of(world.map_err(|err| Failure::Start(err.to_string()))?);
    let here: Here = match ranks.world.broadcast(None) {
        Ok(here) => here,
        Err(err) => return end(Rank(args.rank), err),
    };
    if here.fabric_lib.is_some() {
        machine::offered_nics(here.fabric_lib.as_deref());
    }
    if let Some(Err(reason)) = here.simulation.as_deref().map(machine::join_simulation) {
        ranks.world.abandon(&reason);
        return Err(Failure::Start(reason));
    }
    if let Some(examination) = &here.examines {
        return doctor::follow(examination, ranks);
    }
    if here.nccl_lib.is_some() {
        machine::nccl(here.nccl_lib.as_deref());
    }
    follow(ranks, Transports::new(open), &here.topology)
}

/// A rank that is told what to measure.
fn follow(
    ranks: &mut Ranks,
    mut transports: Transports,
    topology: &Topology,
) -> Result<bool, Failure> {
    let rank = ranks.world.rank();
    let told = ranks.world.scatter(None).and_then(|job: Option<Job>| {
        if job.is_some() { ranks.world.barrier().map(|()| job) } else { Ok(job) }
    });
    let job: Job = match told {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(true),
        Err(err) => return end(rank, err),
    };
    let mut lookout = Lookout::new(ranks, topology);
    for (index, step) in (job.first..).zip(&job.steps) {
        match step.measure(ranks, &job, index, (&mut transports, topology, &mut lookout)) {
            Ok((_, None)) => {}
            // Rank 0 says why.
            Ok((_, Some(_))) => return Ok(true),
            Err(Failed { source, .. }) if matches!(&*source, transport::Error::World(err) if has_ended(err)) =>
            {
                return Ok(true);
            }
            Err(err) => return Err(Failure::Middle(format!("rank {}: {err}", rank.0))),
        }
    }
    // Rank 0 may still be busy with the last case: who leaves now would look dead to it.
    ranks.world.next_round();
    let left = ranks.world.gather((rank, environment::take_log(), lookout.health()));
    let left = left.and_then(|_| ranks.world.barrier());
    left.map(|()| true).or_else(|err| end(rank, err))
}

/// The end of a rank that hears no more.
fn end(rank: Rank, err: world::Error) -> Result<bool, Failure> {
    if has_ended(&err) {
        return Ok(true);
    }
    Err(Failure::Middle(format!("rank {}: {err}", rank.0)))
}

/// Whether rank 0 has said why, or was killed.
const fn has_ended(err: &world::Error) -> bool {
    matches!(err, world::Error::Gone(0) | world::Error::Failed { .. })
}

/// `results/<UTC time>-<machine>`, with a number behind it if that is taken.
fn default_folder(provenance: &Provenance) -> PathBuf {
    free_folder(&provenance.folder_name())
}

/// `results/<name>`, with a number behind it if that is taken.
fn free_folder(name: &str) -> PathBuf {
    let folder = Path::new("results").join(name);
    let next = |n: u32| Path::new("results").join(format!("{name}-{n}"));
    if !folder.exists() {
        return folder;
    }
    (2..u32::MAX).map(next).find(|folder| !folder.exists()).unwrap_or(folder)
}

/// Starts the other ranks, each with its own variables for NCCL.
fn start_ranks(ranks: usize, options: &Options) -> Result<World, world::Error> {
    if ranks <= 1 {
        let mut world = World::single();
        world.set_deadline(options.deadline);
        return Ok(world);
    }
    let program = env::current_exe().map_err(|source| world::Error::Start {
        action: "find g2g's own program file".to_owned(),
        source,
    })?;
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
    let request = options.nccl.request();
    let variables = |rank| request.of_rank(rank).variables;
    World::local(Local::start(&program, ranks, options.deadline, variables)?)
}
