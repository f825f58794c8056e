//! The flags of the commands that measure, and the request that they make.

mod check;
pub(crate) mod heeded;
mod nccl;
pub(crate) mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, FromArgMatches, Subcommand, ValueEnum};
use strum::VariantArray as _;

use check::CheckOptions;
use nccl::NcclOptions;
use values::{deadline, each_once, precision, threshold, time};

use crate::{
    plan::{Effort, Level, Request, TransportKind},
    show::progress::Verbosity,
};

/// The commands that measure.
#[derive(Clone, Debug, Subcommand)]
pub enum Measure {
    /// Measure every transport that can run here, and say why the others cannot
    Run(Options),
    /// Measure copies within each GPU, and between it and host memory
    Local(Options),
    /// Measure copies from each GPU to each other one, issued by either
    P2p(Options),
    /// Measure copies through host memory: between two processes, and between two GPUs
    Shm(Options),
    /// Measure NCCL's collectives
    Nccl(Options),
    /// Measure RDMA between ranks, on one host or on many, through libfabric
    Rdma(Options),
    /// Tell in a minute whether each host is fit, and which part is not
    Check(Options),
}

impl Measure {
    /// The flags, with the transports that the command names.
    pub fn options(self) -> Options {
        let (options, transports): (Options, &[TransportKind]) = match self {
            Self::Run(options) => (options, TransportKind::VARIANTS),
            Self::Local(options) => (options, &[TransportKind::Local]),
            Self::P2p(options) => (options, &[TransportKind::P2p]),
            Self::Shm(options) => (options, &[TransportKind::Shm]),
            Self::Nccl(options) => (options, &[TransportKind::Nccl]),
            Self::Rdma(options) => (options, &[TransportKind::Rdma]),
            Self::Check(options) => return options.of_check(),
        };
        Options { asked: Request { transports: transports.to_vec(), ..options.asked }, ..options }
    }

    /// Reads a command line, the program's name first. `None`: it does not measure.
    pub(super) fn read(words: &[String]) -> Option<Options> {
        let commands = Self::augment_subcommands(clap::Command::new("g2g"));
        let words = heeded::in_order(words.iter().map(OsString::from).collect());
        let matches = commands.try_get_matches_from(words).ok()?;
        Self::from_arg_matches(&matches).ok().map(Self::options)
    }
}

/// The flags of every command that measures.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A simulated machine, such as p5.48xlarge
    ///
    /// Measure a simulated machine: an EC2 instance type, several hosts of one (2xp5.48xlarge), or
    /// a machine file (a path, or a name that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    pub simulate: Option<String>,

    /// More GPUs and machines to judge numbers by
    ///
    /// File in the format of the catalogue (`g2g catalogue`) with more GPUs and machines to judge
    /// numbers by
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<PathBuf>,

    /// Time for each row: quick, normal, thorough
    ///
    /// How much time each row may take; the defaults of the next two, and of what is measured,
    /// follow from it
    #[arg(long, value_enum, default_value_t = Level::Normal)]
    pub effort: Level,

    /// Stop sampling at this precision (2, 1, 0.5 %)
    ///
    /// Sample until the 95 % confidence interval of the median bandwidth is within this percentage
    /// of the median on each side, and that of the median latency too; above 0, at most 50
    /// [default: 2%, 1% or 0.5%, by the effort]
    #[arg(long, value_name = "%", value_parser = precision, allow_hyphen_values = true)]
    pub precision: Option<f64>,

    /// Longest sampling of a row (200ms, 1s, 10s)
    ///
    /// Stop sampling the bandwidth of a case after this time, converged or not, and its latency
    /// after half of it; for example 500ms, 2s or 1m [default: 200ms, 1s or 10s, by the effort]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub time_limit: Option<Duration>,

    /// Exactly so many bandwidth samples of a row
    ///
    /// Take exactly this many bandwidth samples, regardless of --precision and --time-limit. A
    /// sample lasts one transfer or longer: 100 µs within a process's GPUs, 1 ms between ranks, 2
    /// ms for rdma, where all samples together last 250 ms or longer
    #[arg(long, value_name = "N", conflicts_with = "precision",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,

    /// Longest wait for another rank (60s)
    ///
    /// Longest wait for another rank before the run ends and names it, 100ms to 30 days
    #[arg(long, visible_alias = "timeout", value_name = "TIME", default_value = "60s",
          value_parser = deadline,
          allow_hyphen_values = true)]
    pub deadline: Duration,

    /// Seed of all that is drawn by lot
    ///
    /// Seed of the data patterns, of samples of pairs, and of randomness on a simulated machine, 0 to
    /// 2^64 - 1
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    pub seed: u64,

    /// MPI library of the launcher's ranks
    ///
    /// MPI library that the ranks of mpirun or srun use [default: the launcher's own]
    #[arg(long, value_name = "FILE")]
    pub mpi_lib: Option<PathBuf>,

    /// table, csv, json, markdown, nccl-tests, ...
    ///
    /// Format of the results on standard output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Print every row with its percentiles too
    #[arg(long)]
    pub details: bool,

    /// Exit code 1 if a row is below what is expected
    ///
    /// Exit with code 1 if a row is below what is expected of this machine, or below this percentage
    /// of it
    #[arg(long, value_name = "%", num_args = 0..=1, require_equals = true,
          value_parser = threshold)]
    pub fail_below: Option<Option<f64>>,

    /// New folder for the results (results/...)
    ///
    /// New folder for the results [default: results/TIME-MACHINE, with the time in UTC]
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,

    /// Go on with the interrupted run in this folder
    ///
    /// Continue the interrupted run in this folder: measure the rows that are missing. All other
    /// options must be those that the run began with
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "dry_run"])]
    pub resume: Option<PathBuf>,

    /// Go on though the machine has changed
    ///
    /// With --resume: continue even if the machine or the version of g2g has changed; run.json
    /// records what changed
    #[arg(long, requires = "resume")]
    pub resume_changed: bool,

    /// Do not write report.html; `g2g report` can write it later
    #[arg(long)]
    pub no_report: bool,

    /// Print the rows and the time, measure nothing
    ///
    /// Print the cases and measure nothing
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub dry_run: bool,

    /// No progress and no notes; errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// A line for each row, on a terminal too
    ///
    /// Print a line for each row, with how it was measured, on a terminal too
    #[arg(short, long)]
    pub verbose: bool,

    /// libfabric to load
    ///
    /// libfabric to load [default: the EFA installer's, otherwise the system's libfabric.so.1]
    #[arg(long, value_name = "FILE", help_heading = "RDMA")]
    pub fabric_lib: Option<PathBuf>,

    // Those with headings come last: a heading goes on to all flags behind it.
    /// What to measure.
    #[command(flatten)]
    pub asked: Request,

    /// The flags of NCCL.
    #[command(flatten)]
    pub nccl: NcclOptions,

    /// The flags of a check.
    #[command(flatten)]
    pub check: CheckOptions,
}

/// The formats of the results on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for a person
    Table,
    /// The text of run.csv
    Csv,
    /// The text of run.json
    Json,
    /// Collectives as nccl-tests 2.19 prints them
    NcclTests,
    /// The tables in Markdown, for GitHub
    Markdown,
    /// Metrics of Prometheus, for the textfile collector of its node exporter
    Prometheus,
}

impl Options {
    /// What to measure, by ranks of a launcher or not. Fails if what is given as nccl-tests has it
    /// contradicts itself.
    pub fn request(&self, is_launched: bool) -> Result<Request, String> {
        let mut request = Request { seed: self.seed, ..self.asked.clone() }.at(self.effort);
        if request.sizes.is_none() {
            request.sizes = self.nccl.sizes()?;
        }
        if let Some(gpus) = self.nccl.gpus(request.ranks, is_launched)? {
            request.gpus = Some(gpus);
        }
        each_once(&mut request.patterns);
        each_once(&mut request.operations);
        each_once(&mut request.engines);
        each_once(&mut request.issuers);
        each_once(&mut request.fabric.memory);
        let collectives = &mut request.collectives;
        if collectives.in_place.is_empty() {
            // nccl-tests shows both.
            let has_both = self.effort == Level::Thorough || self.format == Format::NcclTests;
            collectives.in_place = if has_both { vec![false, true] } else { vec![false] };
        }
        each_once(&mut collectives.in_place);
        each_once(&mut collectives.buffers);
        each_once(&mut collectives.registrations);
        Ok(request)
    }

    /// How much to print on standard error.
    pub(super) const fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }

    /// How long to measure each case.
    pub fn effort(&self) -> Effort {
        let of_level = self.effort.effort();
        let time_limit = self.time_limit.unwrap_or(of_level.time_limit);
        // Single operations of a burn-in are compared, and those of a stream are not.
        let compares_each = self.check.burn_in.is_some();
        let latency_time = if compares_each { time_limit / 2 } else { of_level.latency_time };
        Effort {
            precision: self.precision.unwrap_or(of_level.precision),
            time_limit,
            samples: self.samples,
            latency_time,
            compares_each,
            ..of_level
        }
    }
}
