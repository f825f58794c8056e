//! The flags of the commands that measure, and what they ask for.

mod fabric;
mod nccl;
pub(crate) mod values;

use std::{path::PathBuf, time::Duration};

use clap::{Args, FromArgMatches, Subcommand, ValueEnum};
use strum::VariantArray as _;

use fabric::FabricOptions;
use nccl::NcclOptions;
use values::{
    Gpus, RANKS_MAX, deadline, each_once, gpus, node_pair, operation, percent, slot_size, time,
};

use crate::{
    plan::{
        Effort, Engine, Handle, Issuer, Operation, Pattern, Request, Sizes, TransportKind,
        topology::NumaNode,
    },
    show::progress::Verbosity,
    units::Bytes,
};

/// The commands that measure.
#[derive(Clone, Debug, Subcommand)]
pub enum Measure {
    /// Measure every transport that can run here, and say why the others cannot
    Run(Options),
    /// Measure copies within each GPU, and between it and host memory
    Local(Options),
    /// Measure copies from each GPU to each other one, asked for by either
    P2p(Options),
    /// Measure the way through host memory: between two processes, and between two GPUs
    Shm(Options),
    /// Measure NCCL's collectives
    Nccl(Options),
    /// Measure RDMA between ranks, on one host or on many, through libfabric
    Rdma(Options),
}

impl Measure {
    /// What is to be measured, and how.
    pub fn options(self) -> Options {
        let (options, transports): (Options, &[TransportKind]) = match self {
            Self::Run(options) => (options, TransportKind::VARIANTS),
            Self::Local(options) => (options, &[TransportKind::Local]),
            Self::P2p(options) => (options, &[TransportKind::P2p]),
            Self::Shm(options) => (options, &[TransportKind::Shm]),
            Self::Nccl(options) => (options, &[TransportKind::Nccl]),
            Self::Rdma(options) => (options, &[TransportKind::Rdma]),
        };
        Options { transports, ..options }
    }

    /// What these words of a command line, the program's name first, ask to be measured.
    pub(super) fn read(words: &[String]) -> Option<Options> {
        let commands = Self::augment_subcommands(clap::Command::new("g2g"));
        let matches = commands.try_get_matches_from(words).ok()?;
        Self::from_arg_matches(&matches).ok().map(Self::options)
    }
}

/// The flags of every command that measures.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The transports to measure, which the command names.
    #[arg(skip)]
    pub transports: &'static [TransportKind],

    /// Data in one transfer, in bytes; K, M and G are powers of 1024. A range doubles: 4K..64M.
    /// Ranges and sizes can be listed: 64,4K..64K,3M [default: 64M for GPUs, 64..64M for host
    /// memory, 8,64,1K,8K,64K,1M,8M,64M for rdma]
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<Sizes>,

    /// The GPUs to measure, by the driver's ordinals, such as 0,2 or 0-3 [default: all]
    #[arg(long, value_name = "GPUS", value_parser = gpus)]
    pub gpus: Option<Gpus>,

    /// Who asks for a copy between two GPUs: the target reads, or the source writes; several with
    /// commas
    #[arg(
        long,
        value_name = "ISSUER",
        value_enum,
        value_delimiter = ',',
        default_value = "read,write"
    )]
    pub issuer: Vec<Issuer>,

    /// What moves the bytes of GPUs: the copy engine, or a kernel; several with commas
    #[arg(long, value_name = "ENGINE", value_enum, value_delimiter = ',', default_value = "ce,sm")]
    pub engine: Vec<Engine>,

    /// What is done with the data; several with commas [default: copy,chase for GPUs,
    /// write,read,send,ping-pong for rdma]
    #[arg(long, value_name = "OPERATION", value_parser = operation(), value_delimiter = ',')]
    pub operation: Vec<Operation>,

    /// Which flows go at the same time; several with commas [default: one-way between GPUs;
    /// one-way, both-ways and pairs between ranks, as far as there are enough; for rdma one-way
    /// and both-ways between two ranks, one-way up to four, otherwise neighbours and bisection;
    /// for sendrecv of nccl neighbours, which also has one-way and both-ways]
    #[arg(long, value_name = "PATTERN", value_enum, value_delimiter = ',')]
    pub pattern: Vec<Pattern>,

    /// Number of processes, 1 to 1024; the GPUs are dealt to them in turn, and each takes a CPU for
    /// itself if there are enough [default: one for all GPUs, two for host memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    pub ranks: Option<u32>,

    /// How a process lets another one reach its GPU's memory
    #[arg(long, value_name = "HANDLE", value_enum, default_value_t = Handle::Ipc)]
    pub handle: Handle,

    /// Measure a simulated machine: an EC2 instance type or a machine file (a path, or a name
    /// that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    pub simulate: Option<String>,

    /// A file of the form of the catalogue (`g2g catalogue`) with more GPUs and machines, by which
    /// numbers are judged
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<PathBuf>,

    /// NUMA nodes of source and target of copies by CPUs, such as 0:1; several with commas
    /// [default: the first node to itself and to the farthest]
    #[arg(long, value_name = "SOURCE:TARGET", value_parser = node_pair, value_delimiter = ',')]
    pub numa: Vec<(NumaNode, NumaNode)>,

    /// Bytes of one slot of the staging ring, 64 or more [default: the fastest of several, tried
    /// anew for each case; 512K for rdma]
    #[arg(long, value_name = "SIZE", value_parser = slot_size)]
    pub slot_size: Option<Bytes>,

    /// Sample until the 95 % confidence interval of the median bandwidth lies within this many
    /// percent of the median on each side; above 0, at most 50
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent,
          allow_hyphen_values = true)]
    pub precision: f64,

    /// Stop sampling the bandwidth of a case after this time, converged or not, and its latency
    /// after half of it; such as 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time,
          allow_hyphen_values = true)]
    pub time_limit: Duration,

    /// Take exactly so many bandwidth samples, whatever --precision and --time-limit say; a sample
    /// lasts one transfer or longer: 100 µs within a process's GPUs, 1 ms between ranks, 2 ms for
    /// rdma, where all of them last 250 ms or longer
    #[arg(long, value_name = "N", conflicts_with = "precision",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,

    /// Longest wait for another rank before the run ends and names it, 100ms to 30 days
    #[arg(long, visible_alias = "timeout", value_name = "TIME", default_value = "60s",
          value_parser = deadline,
          allow_hyphen_values = true)]
    pub deadline: Duration,

    /// Seed of the data patterns, and of chance on a simulated machine, 0 to 2^64 - 1
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    pub seed: u64,

    /// The MPI library by which the ranks of mpirun or srun talk [default: the launcher's own]
    #[arg(long, value_name = "FILE")]
    pub mpi_lib: Option<PathBuf>,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Folder for the results, made anew [default: results/TIME-MACHINE,
    /// with the time in UTC]
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,

    /// Go on with the run in this folder, which has ended early: measure the rows that it lacks.
    /// All other words are those with which it began
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "dry_run"])]
    pub resume: Option<PathBuf>,

    /// With --resume: go on although the machine or the version of g2g has changed; run.json tells
    /// what has
    #[arg(long, requires = "resume")]
    pub resume_changed: bool,

    /// Write no page of the results; `g2g report` can do so later
    #[arg(long)]
    pub no_report: bool,

    /// Print the cases and measure nothing
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub dry_run: bool,

    /// No progress and no notes; errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// A line for each row on a terminal too, with how it was measured
    #[arg(short, long)]
    pub verbose: bool,

    /// What only RDMA has.
    #[command(flatten)]
    pub fabric: FabricOptions,

    /// What only NCCL has.
    #[command(flatten)]
    pub nccl: NcclOptions,
}

/// The forms of the results on standard output.
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
    /// What is to be measured.
    ///
    /// # Errors
    ///
    /// The sizes of nccl-tests make no sense together: a sentence.
    pub fn request(&self) -> Result<Request, String> {
        let sizes = match &self.sizes {
            Some(sizes) => Some(sizes.0.clone()),
            None => self.nccl.sizes()?,
        };
        Ok(Request {
            transports: self.transports.to_vec(),
            patterns: each_once(&self.pattern),
            sizes,
            ranks: self.ranks,
            gpus: self.gpus.clone().map(|gpus| gpus.0),
            operations: each_once(&self.operation),
            engines: each_once(&self.engine),
            issuers: each_once(&self.issuer),
            handle: self.handle,
            numa: self.numa.clone(),
            slot: self.slot_size,
            fabric: self.fabric.request(),
            nccl: self.nccl.request(),
            collectives: self.nccl.collectives(),
        })
    }

    /// How much is said on standard error.
    pub(super) const fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }

    /// How long each case is measured.
    pub fn effort(&self) -> Effort {
        Effort { precision: self.precision, time_limit: self.time_limit, samples: self.samples }
    }
}
