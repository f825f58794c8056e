//! A whole run: from the command line to the exit code.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cli::{Answer, Cli, Command, Format, Options, RankArgs, TopoFormat, TopoOptions},
    measure::{Outcome, measure},
    plan::{self, Case, Effort, Engine, Rank, TransportKind, topology::Topology},
    progress::{Progress, say},
    record::{
        self, Recorder, Row, Status,
        provenance::{Provenance, Settings},
    },
    transport::{self, Transport, machine, pattern::part_seed, survey},
    world::{self, Launcher, Local, World},
};

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

/// What every rank must know of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    cases: Vec<Case>,
    effort: Effort,
    seed: u64,
    topology: Topology,
    /// Where the simulated machine is, if it is one.
    simulation: Option<String>,
}

/// A row to be.
enum Item {
    Absent(TransportKind, String),
    Case(Case),
}

/// Reads the command line, does what it says and returns the exit code.
pub fn main(open: Open) -> ExitCode {
    let launcher = world::launcher(|name| env::var(name).ok());
    // All ranks of a launcher read the same words, and one answers.
    let answers = launcher.as_ref().is_none_or(|launcher| launcher.rank == 0);
    // It ends behind the last sentence: a launcher ends all ranks when one leaves without order.
    let mut world = World::single();
    let mut on_ranks = |options: &Options, transports: &[TransportKind]| match &launcher {
        Some(launcher) => on_launched_ranks(options, transports, open, launcher, &mut world),
        None => lead(options, transports, open, None, &mut world),
    };
    let result = match Cli::read(env::args_os()) {
        Ok(cli) => match cli.command {
            Command::Run(options) => on_ranks(&options, &TransportKind::ALL),
            Command::Local(options) => on_ranks(&options, &[TransportKind::Local]),
            Command::P2p(options) => on_ranks(&options, &[TransportKind::P2p]),
            Command::Shm(options) => on_ranks(&options, &[TransportKind::Shm]),
            Command::Rdma(options) => on_ranks(&options, &[TransportKind::Rdma]),
            Command::Topo(options) => {
                if answers {
                    topo(&options)
                } else {
                    Ok(true)
                }
            }
            Command::Rank(rank) => join(rank, open, &mut world),
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
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(Failure::Middle(_)) => ExitCode::from(1),
        Err(Failure::Start(_)) => ExitCode::from(2),
    }
}

/// Measures on the ranks of a launcher, as the one of them that this process is.
fn on_launched_ranks(
    options: &Options,
    transports: &[TransportKind],
    open: Open,
    launcher: &Launcher,
    world: &mut World,
) -> Result<bool, Failure> {
    if launcher.rank != 0 && (options.dry_run || options.ranks.is_some()) {
        return Ok(true);
    }
    if let Some(ranks) = options.ranks {
        return Err(Failure::Start(format!(
            "a launcher has started {} ranks ({}): leave out --ranks {ranks}, or start g2g without \
             a launcher",
            launcher.ranks, launcher.variable
        )));
    }
    let join = || {
        World::mpi(launcher, options.mpi_lib.as_deref(), options.deadline)
            .map_err(|err| Failure::Start(format!("rank {}: {err}", launcher.rank)))
    };
    if launcher.rank != 0 {
        *world = join()?;
        return follow(world, open);
    }
    let options = Options { ranks: Some(launcher.ranks), ..options.clone() };
    let result = lead(&options, transports, open, Some(&join), world);
    if let Err(Failure::Start(reason)) = &result
        && !options.dry_run
        && world.size() == 1
        && let Ok(joined) = join()
    {
        // The others have joined, and wait to be told what to do.
        *world = joined;
        world.abandon(reason);
    }
    result
}

/// Joins the other ranks of a launcher.
type Join<'a> = &'a dyn Fn() -> Result<World, Failure>;

/// Rank 0: plans, measures with the others, records and prints; whether all went well.
fn lead(
    options: &Options,
    transports: &[TransportKind],
    open: Open,
    join: Option<Join<'_>>,
    world: &mut World,
) -> Result<bool, Failure> {
    let start = |err: &dyn std::error::Error| Failure::Start(err.to_string());
    let simulation = options.simulate.as_deref().map(machine::simulate).transpose();
    let simulation = simulation.map_err(Failure::Start)?;
    let topology = machine::topology().map_err(|err| start(&err))?;
    let mut opened = Transports::new(open);
    let items = items(options, transports, &topology, &mut opened)?;
    if options.dry_run {
        return record::print(&listing(&items)).map_err(|err| start(&err)).map(|()| true);
    }
    let job = Job {
        cases: items.iter().filter_map(Item::case).cloned().collect(),
        effort: options.effort(),
        seed: options.seed,
        topology,
        simulation,
    };
    let ranks = match join {
        Some(_) => options.ranks.unwrap_or(1),
        None => ranks(options, &job.cases),
    };
    let settings = Settings {
        seed: job.seed,
        ranks,
        effort: job.effort,
        simulated_machine: options.simulate.clone(),
    };
    let provenance = Provenance::collect(&settings, &job.topology);
    let folder = options.output.clone().unwrap_or_else(|| default_folder(&provenance));
    let recorder = Recorder::create(&folder, &provenance).map_err(|err| start(&err))?;
    let started = match join {
        Some(join) => join(),
        None => start_ranks(ranks, options.deadline).map_err(|err| start(&err)),
    };
    let told = started.and_then(|started| {
        *world = started;
        tell(world, &job).map_err(|err| match join {
            Some(_) => Failure::Middle(err.to_string()),
            None => start(&err),
        })
    });
    if let Err(failure) = told {
        recorder.discard();
        return Err(failure);
    }
    let progress = Progress::new(items.len(), options.quiet, options.verbose);
    let mut leader = Leader { items, transports: opened, recorder, progress };
    let measured = leader.measure_all(&job, world);
    // Dropping the transports gives the GPUs back.
    let Leader { recorder, progress, .. } = leader;
    progress.finish(recorder.folder());

    let printed = match options.format {
        Format::Table => record::tables(recorder.rows()),
        Format::Csv => record::csv_text(recorder.rows()),
        Format::Json => record::json_text(&provenance, recorder.rows()),
    };
    let shown = record::print(&printed);
    measured?;
    shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
    let is_well = |row: &Row| matches!(row.status, Status::Ok | Status::Skipped);
    Ok(recorder.rows().iter().all(is_well))
}

/// Shows the machine.
fn topo(options: &TopoOptions) -> Result<bool, Failure> {
    let start = |err: &dyn std::error::Error| Failure::Start(err.to_string());
    let simulation = options.simulate.as_deref().map(machine::simulate).transpose();
    simulation.map_err(Failure::Start)?;
    let topology = machine::topology().map_err(|err| start(&err))?;
    let survey = survey::survey(&topology).map_err(|err| start(&err))?;
    let text = match options.format {
        TopoFormat::Table => record::topology_text(&survey),
        TopoFormat::Json => record::topology_json(&survey),
    };
    record::print(&text).map_err(|err| start(&err)).map(|()| true)
}

/// A rank that rank 0 has started: measures with the others until rank 0 is done.
fn join(args: RankArgs, open: Open, world: &mut World) -> Result<bool, Failure> {
    let deadline = Duration::from_millis(args.deadline_ms);
    *world = Local::started(Rank(args.rank), args.size, deadline)
        .and_then(World::local)
        .map_err(|err| Failure::Start(err.to_string()))?;
    follow(world, open)
}

/// A rank that is told what to measure.
fn follow(world: &mut World, open: Open) -> Result<bool, Failure> {
    let rank = world.rank().0;
    let end = |err: world::Error| match err {
        // Rank 0 has said why, or was killed.
        world::Error::Gone(0) | world::Error::Failed { .. } => Ok(true),
        err => Err(Failure::Middle(format!("rank {rank}: {err}"))),
    };
    let job: Job = match world.broadcast(None) {
        Ok(job) => job,
        Err(err) => return end(err),
    };
    if let Some(Err(reason)) = job.simulation.as_deref().map(machine::join_simulation) {
        world.abandon(&reason);
        return Err(Failure::Start(reason));
    }
    if let Err(err) = world.barrier() {
        return end(err);
    }
    let mut transports = Transports::new(open);
    for (index, case) in (0..).zip(&job.cases) {
        if let Err(err) = measure_one(world, &job, index, case, &mut transports)
            && let CaseError::Lost(transport::Error::World(err)) = err
        {
            return end(err);
        }
    }
    // Rank 0 may still be busy with the last case: who leaves now would look dead to it.
    world.next_round();
    world.barrier().map(|()| true).or_else(end)
}

/// The transports of this rank, each opened once and kept: a GPU that is ready stays so.
struct Transports {
    open: Open,
    opened: Vec<Opened>,
}

struct Opened {
    kind: TransportKind,
    transport: Result<Box<dyn Transport>, String>,
}

impl Transports {
    const fn new(open: Open) -> Self {
        Self { open, opened: Vec::new() }
    }

    /// The transport, or why it cannot be used here.
    fn get(&mut self, kind: TransportKind, topology: &Topology) -> Result<&dyn Transport, &str> {
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
enum CaseError {
    /// This case only; the ranks meet again in the next.
    Case(transport::Error),
    /// The other ranks are out of reach.
    Lost(transport::Error),
}

/// One case on this rank, whatever becomes of it.
fn measure_one(
    world: &mut World,
    job: &Job,
    index: u64,
    case: &Case,
    transports: &mut Transports,
) -> Result<Option<Outcome>, CaseError> {
    world.next_round();
    let seed = part_seed(job.seed, index);
    let result = match transports.get(case.transport, &job.topology) {
        Ok(transport) => measure(world, transport, case, job.effort, seed),
        Err(reason) => Err(transport::Error::Unavailable(reason.to_owned())),
    };
    let err = match result {
        Ok(outcome) => return Ok(outcome),
        Err(err) => err,
    };
    let own_links_hold = match &err {
        transport::Error::World(world::Error::Failed { .. }) => return Err(CaseError::Case(err)),
        // Rank 0 is connected to every rank, the others to rank 0 alone.
        transport::Error::World(world::Error::Gone(rank) | world::Error::Late { rank, .. }) => {
            !world.is_root() && *rank != 0
        }
        transport::Error::World(_) => false,
        transport::Error::Stalled { .. } => !world.is_root(),
        _ => true,
    };
    if own_links_hold {
        world.abandon(&err.to_string());
        Err(CaseError::Case(err))
    } else {
        Err(CaseError::Lost(err))
    }
}

/// What rank 0 works with beside the other ranks.
struct Leader {
    items: Vec<Item>,
    transports: Transports,
    recorder: Recorder,
    progress: Progress,
}

impl Leader {
    /// Measures and records every item, until one cannot be recorded or a rank is out of reach.
    fn measure_all(&mut self, job: &Job, world: &mut World) -> Result<(), Failure> {
        let mut index = 0;
        for (number, item) in (1..).zip(&self.items) {
            let (mut lost, mut latencies) = (None, Vec::new());
            let row = match item {
                Item::Absent(kind, reason) => Row::absent(number, *kind, reason),
                Item::Case(case) => {
                    self.progress.begin(case);
                    let result = measure_one(world, job, index, case, &mut self.transports);
                    index += 1;
                    match result {
                        Ok(Some(outcome)) => {
                            latencies = outcome.latencies();
                            Row::new(number, case, &outcome)
                        }
                        Ok(None) => Row::failed(number, case, "this is not the rank that decides"),
                        Err(CaseError::Case(err)) => Row::failed(number, case, &err.to_string()),
                        Err(CaseError::Lost(err)) => {
                            lost = Some(err.to_string());
                            Row::failed(number, case, &err.to_string())
                        }
                    }
                }
            };
            let row = Row { simulated: job.simulation.is_some(), ..row };
            let written = self.recorder.append(row.clone(), &latencies);
            written.map_err(|err| Failure::Middle(err.to_string()))?;
            self.progress.row(&row);
            if let Some(reason) = lost {
                return Err(Failure::Middle(match self.items.len() - number {
                    0 => reason,
                    left => format!("{reason}; {left} rows were not measured"),
                }));
            }
        }
        world.next_round();
        world.barrier().map_err(|err| Failure::Middle(err.to_string()))
    }
}

/// The rows to be, in their order.
fn items(
    options: &Options,
    transports: &[TransportKind],
    topology: &Topology,
    opened: &mut Transports,
) -> Result<Vec<Item>, Failure> {
    let request = options.request(transports);
    if request.gpus.is_some()
        && topology.gpus.is_empty()
        && let Err(reason) = opened.get(TransportKind::Local, topology)
    {
        return Err(Failure::Start(format!("--gpus: {reason}")));
    }
    let cases = plan::cases(&request, topology).map_err(|err| Failure::Start(err.to_string()))?;
    let mut items = Vec::new();
    for &kind in transports {
        let mut here: Vec<Case> =
            cases.iter().filter(|case| case.transport == kind).cloned().collect();
        if options.simulate.is_some() && here.iter().any(|case| case.engine == Engine::Cpu) {
            here.retain(|case| case.engine != Engine::Cpu);
            let reason = "between processes it would be this machine's own memory that is \
                          measured, which is not simulated: leave out --simulate";
            items.push(Item::Absent(kind, reason.to_owned()));
            if here.is_empty() {
                continue;
            }
        }
        match opened.get(kind, topology) {
            Err(reason) => items.push(Item::Absent(kind, reason.to_owned())),
            Ok(_) if here.is_empty() => {
                let reason = plan::why_none(kind, &request, topology);
                items.push(Item::Absent(kind, reason));
            }
            Ok(_) => items.extend(here.into_iter().map(Item::Case)),
        }
    }
    Ok(items)
}

impl Item {
    fn case(&self) -> Option<&Case> {
        match self {
            Self::Absent(..) => None,
            Self::Case(case) => Some(case),
        }
    }
}

fn listing(items: &[Item]) -> String {
    let line = |(number, item): (usize, &Item)| match item {
        Item::Absent(kind, reason) => format!("{number} {} skipped: {reason}\n", kind.name()),
        Item::Case(case) => format!("{number} {case}\n"),
    };
    (1..).zip(items).map(line).collect()
}

/// `results/<UTC time>-<machine>`, with a number behind it if that is taken.
fn default_folder(provenance: &Provenance) -> PathBuf {
    let name = provenance.folder_name();
    let folder = Path::new("results").join(&name);
    let next = |n: u32| Path::new("results").join(format!("{name}-{n}"));
    if !folder.exists() {
        return folder;
    }
    (2..u32::MAX).map(next).find(|folder| !folder.exists()).unwrap_or(folder)
}

/// As many processes as the user asks for, or as the cases name.
fn ranks(options: &Options, cases: &[Case]) -> u32 {
    let named = cases.iter().flat_map(Case::ends).map(|end| end.rank.0 + 1).max().unwrap_or(1);
    // A run without cases needs no other ranks.
    if cases.is_empty() { 1 } else { options.ranks.unwrap_or(named) }
}

/// Starts the other ranks.
fn start_ranks(ranks: u32, deadline: Duration) -> Result<World, world::Error> {
    if ranks == 1 {
        return Ok(World::single());
    }
    let program = env::current_exe().map_err(|source| world::Error::Start {
        action: "find g2g's own program file".to_owned(),
        source,
    })?;
    World::local(Local::start(&program, ranks, deadline)?)
}

/// Tells the other ranks the job; returns when all have it.
fn tell(world: &mut World, job: &Job) -> Result<(), world::Error> {
    world.broadcast(Some(job.clone()))?;
    world.barrier()
}
