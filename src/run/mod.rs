//! A run: what is asked for becomes cases, cases are measured, and results become rows.

mod follower;
mod judge;
mod leader;
mod lookout;
mod options;
mod page;
mod proof;
mod ranks;
mod resume;
mod sites;
mod steps;
mod worker;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use follower::join;
use judge::Judge;
pub(crate) use judge::catalogue;
use leader::Leader;
pub(crate) use options::values;
pub use options::{Format, Measure, Options};
pub(crate) use page::{write_own, write_page};
use ranks::Here;
pub use ranks::{Join, Ranks};
pub(crate) use ranks::{Task, Told};
use sites::{Found, Site};
use steps::{Job, Rest, Step};
use worker::{Transports, Worker};

use crate::{
    analysis::attribution,
    interrupt,
    plan::{
        Case, Flow, Rank, Request, TransportKind,
        topology::{Host, Topology},
    },
    record::{self, Recorder, Status, provenance::Provenance},
    show,
    stderr::say,
    transport::{Transport, nccl_env},
    world,
};

/// How long a run may take to end after a signal.
pub(crate) const END: Duration = Duration::from_secs(4);

/// How a transport is opened: [`crate::transport::open`], except in tests with planted faults.
pub type Open = fn(TransportKind, &Topology) -> Result<Box<dyn Transport>, String>;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The words of the command line make no sense: exit code 2. All ranks read the same words.
    #[error("{0}")]
    Words(String),
    /// Nothing was measured: exit code 2.
    #[error("{0}")]
    Start(String),
    /// Something was, and its rows are kept: exit code 1.
    #[error("{0}")]
    Middle(String),
}

impl Failure {
    /// Signals cannot be waited for.
    fn unwatched(err: io::Error) -> Self {
        Self::Start(format!("cannot wait for signals: {err}"))
    }

    /// The failure of rank `rank`, which lost rank 0; `None` if rank 0 has reported it.
    fn of_rank(rank: Rank, err: world::Error) -> Option<Self> {
        (!Self::is_told(&err)).then(|| Self::Middle(format!("rank {}: {err}", rank.0)))
    }

    /// Whether rank 0 has reported the failure, or was killed.
    const fn is_told(err: &world::Error) -> bool {
        matches!(err, world::Error::Gone(0) | world::Error::Failed { .. })
    }
}

/// From now on signals end the run in order: on the first rank at once, on others after it.
pub(crate) fn watch(is_first: bool) -> Result<(), Failure> {
    let watched = if is_first { interrupt::watch() } else { interrupt::leave_to_first_rank() };
    watched.map_err(Failure::unwatched)
}

impl Measure {
    /// Measures with all ranks; whether all went well.
    pub(crate) fn run(self, open: Open, ranks: &mut Ranks) -> Result<bool, Failure> {
        let options = self.options();
        let request = options.request().map_err(Failure::Words)?;
        let keeps_log = options.transports.contains(&TransportKind::Nccl);
        nccl_env::set(&request.nccl, ranks.own_number(), keeps_log).map_err(Failure::Start)?;
        watch(ranks.is_first())?;
        ranks.meet(options.ranks, options.mpi_lib.as_deref(), options.deadline)?;
        let mut transports = Transports::new(open);
        let Found { topology, sites } = match sites::find(ranks, &options, &mut transports) {
            Ok(found) => found,
            Err(failure) => {
                ranks.dismiss();
                return Err(failure);
            }
        };
        match sites {
            Some(sites) => lead(&options, &request, transports, sites, ranks),
            None => follower::follow(ranks, transports, topology),
        }
    }
}

/// Rank 0: plans, measures with the others, records and prints; whether all went well.
fn lead(
    options: &Options,
    request: &Request,
    transports: Transports,
    mut sites: Vec<Site>,
    ranks: &mut Ranks,
) -> Result<bool, Failure> {
    let is_launched = ranks.launcher().is_some();
    let opened = steps::plan(request, &mut sites, is_launched)
        .map_err(Failure::Start)
        .and_then(|steps| Run::new(options, steps, sites, is_launched))
        .and_then(|run| Ok(run.open(ranks)?.map(|recorder| (run, recorder))));
    let (run, mut recorder) = match opened {
        Ok(Some(opened)) => opened,
        nothing => {
            ranks.dismiss();
            return nothing.map(|_| true);
        }
    };
    let rest = Rest::of(&run.steps, recorder.rows().len());
    if rest.steps.is_empty() {
        ranks.dismiss();
        if !options.quiet {
            say(&format!("all rows are there in {}", recorder.folder().display()));
        }
        return run.conclude(&recorder, Ok(()));
    }
    let (effort, seed) = (options.effort(), options.seed);
    let job = Job { steps: Vec::new(), first: rest.measured, effort, seed };
    if let Err(failure) = run.begin(&rest, &job, ranks) {
        recorder.discard();
        return Err(failure);
    }
    let host = run.hosts.iter().position(|host| host.ranks.contains(&Rank(0))).unwrap_or(0);
    let topology = run.hosts[host].topology.clone();
    let worker = Worker::new(ranks, transports, topology, host, &job);
    let mut leader = Leader::new(&run, worker, &mut recorder, &rest);
    let measured = leader.measure(rest.steps);
    let measured = leader.finish(measured);
    run.conclude(&recorder, measured)
}

/// A run that is planned, as rank 0 knows it.
struct Run<'a> {
    options: &'a Options,
    hosts: Vec<Host>,
    /// Where the simulated machine is, if it is one: for ranks that this process starts.
    simulation: Option<String>,
    judge: Judge,
    steps: Vec<Step>,
    is_launched: bool,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Options,
        steps: Vec<Step>,
        mut sites: Vec<Site>,
        is_launched: bool,
    ) -> Result<Self, Failure> {
        let simulation = sites[0].simulation.take();
        let (hosts, judged) = sites.into_iter().map(|site| (site.host, site.judged)).unzip();
        let judge = Judge::of(options, judged)?;
        Ok(Self { options, hosts, simulation, judge, steps, is_launched })
    }

    /// Opens the files of a new run, or of the one to go on with. `None`: `--dry-run` has printed
    /// the steps, and nothing is to be measured.
    fn open(&self, ranks: &Ranks) -> Result<Option<Recorder>, Failure> {
        let options = self.options;
        let start = |err: &dyn std::error::Error| Failure::Start(err.to_string());
        if options.dry_run {
            show::print(&steps::listing(&self.steps)).map_err(|err| start(&err))?;
            return Ok(None);
        }
        let provenance = Provenance::collect(
            options.seed,
            options.effort(),
            options.simulate.clone(),
            ranks.world.library(),
            &self.hosts,
        );
        let given = options.resume.as_ref().or(options.output.as_ref()).cloned();
        let folder = given.unwrap_or_else(|| free_folder(&provenance.folder_name()));
        interrupt::has_to_lose(END, remedy(&folder));
        let recorder = match options.resume {
            Some(_) => resume::take_up(&folder, options, &provenance, &self.steps)?,
            None => Recorder::create(&folder, &provenance).map_err(|err| start(&err))?,
        };
        Ok(Some(recorder))
    }

    /// Starts the other ranks where no launcher has, and tells each its part; returns when all have
    /// it.
    fn begin(&self, rest: &Rest<'_>, job: &Job, ranks: &mut Ranks) -> Result<(), Failure> {
        let fail = |err: world::Error| match self.is_launched {
            true => Failure::Middle(err.to_string()),
            false => Failure::Start(err.to_string()),
        };
        let Options { deadline, fabric, nccl, .. } = self.options;
        if !self.is_launched {
            let Host { ranks: own, topology, .. } = &self.hosts[0];
            let here = Here {
                topology: topology.clone(),
                fabric_lib: fabric.fabric_lib.clone(),
                nccl_lib: nccl.nccl_lib.clone(),
            };
            let told = Told { simulation: self.simulation.clone(), task: Task::Measure(here) };
            let count = u32::try_from(own.len()).unwrap_or(u32::MAX);
            let request = nccl.request();
            let variables = |rank| request.of_rank(rank).variables;
            ranks.start(count, *deadline, variables, told).map_err(fail)?;
        }
        let parts = steps::parts(rest.steps, &self.hosts, ranks.world.members());
        let jobs = parts.into_iter().map(|steps| Some(Job { steps, ..job.clone() }));
        ranks.world.scatter(Some(jobs.collect())).map_err(fail)?;
        ranks.world.barrier().map_err(fail)
    }

    /// Shows and judges the results, even of a run that failed; whether all is well.
    fn conclude(
        &self,
        recorder: &Recorder,
        measured: Result<(), Failure>,
    ) -> Result<bool, Failure> {
        self.judge.conclude(recorder.rows(), &self.hosts, self.options.quiet);
        let shown = self.show(recorder);
        // After a signal there is no time for a page; `g2g report` can write it later.
        if !self.options.no_report && interrupt::asked().is_none() {
            write_own(recorder.folder());
        }
        measured?;
        shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
        Ok(is_well(recorder))
    }

    /// Prints the results in the form asked for.
    fn show(&self, recorder: &Recorder) -> io::Result<()> {
        let (rows, provenance) = (recorder.rows(), &recorder.run().provenance);
        show::print(&match self.options.format {
            Format::Table | Format::Markdown => {
                let slow = attribution::find(rows, &|row| attribution::way(row, &self.hosts));
                let mut page = show::tables(rows);
                page.lines(&attribution::text(&slow));
                match self.options.format {
                    Format::Markdown => page.markdown(),
                    _ => page.text(),
                }
            }
            Format::Csv => record::csv_text(rows),
            Format::Json => record::json_text(recorder.run()),
            Format::NcclTests => {
                let mut communicators = self.cases().filter_map(Case::communicator);
                let communicator: Vec<Flow> = communicators.next().unwrap_or_default();
                show::nccl_tests_text(&self.about(), provenance, &communicator, rows)
            }
            Format::Prometheus => show::prometheus_text(provenance, rows),
        })
    }

    /// What the header of nccl-tests' output says.
    fn about(&self) -> show::NcclTests {
        let sizes = || self.cases().map(|case| case.size);
        let first = self.cases().find_map(|case| case.nccl);
        let (iterations, split) =
            first.map(|nccl| (nccl.iterations, nccl.split)).unwrap_or_default();
        show::NcclTests {
            sizes: (sizes().min().unwrap_or_default(), sizes().max().unwrap_or_default()),
            step: self.options.nccl.step(),
            iterations,
            split,
        }
    }

    fn cases(&self) -> impl Iterator<Item = &Case> {
        self.steps.iter().flat_map(Step::cases)
    }
}

/// Reports corrupt and failed rows; whether there are none.
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

/// How to resume a run that has ended early.
fn remedy(folder: &Path) -> String {
    format!("the same command with --resume {} goes on", folder.display())
}

/// `results/<name>`, with a number appended if that exists.
pub(crate) fn free_folder(name: &str) -> PathBuf {
    let folder = Path::new("results").join(name);
    let next = |n: u32| Path::new("results").join(format!("{name}-{n}"));
    if !folder.exists() {
        return folder;
    }
    (2..u32::MAX).map(next).find(|folder| !folder.exists()).unwrap_or(folder)
}
