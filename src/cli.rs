//! The command line: what was typed, and what it means as a request.
//!
//! Knows only the plan and the units; refuses what cannot be meant.

mod catalogue;
mod compare;
mod doctor;
mod fabric;
mod nccl;
mod report;
mod sweep;
mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};

pub use catalogue::CatalogueOptions;
pub use compare::{Across, CompareFormat, CompareOptions};
pub use doctor::DoctorOptions;
pub use fabric::FabricOptions;
pub use nccl::NcclOptions;
pub use report::ReportOptions;
pub use sweep::{SweepFormat, SweepOptions};
use values::{Gpus, deadline, each_once, gpus, node_pair, percent, slot_size, time};

use crate::{
    plan::{
        Effort, Engine, Handle, Issuer, Operation, Pattern, Request, Sizes, TransportKind,
        topology::NumaNode,
    },
    units::Bytes,
};

/// The most ranks that g2g starts by itself on one machine.
const RANKS_MAX: i64 = 1024;

/// Measures how fast GPUs, and the host memory between them, reach each other.
///
/// A number is recorded only after every byte of every target was compared with what the timed
/// transfers must have left there. Bandwidth is in GB/s, 10^9 bytes per second; sizes are powers of
/// 1024; latency is in nanoseconds. A run leaves a folder with run.csv, run.json and latency.hlog.
/// Standard output carries the results, standard error everything else.
///
/// Exit code: 0 all well, 1 a case was corrupt or failed, 2 cannot start or bad arguments, 130 and
/// 143 ended by SIGINT and SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "g2g", version, next_line_help = true, term_width = 80)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
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
    /// Show GPUs, network interfaces, what connects them, and who reaches whom; measures nothing
    Topo(TopoOptions),
    /// Say what is wrong with this machine before anything is measured; changes nothing
    Doctor(DoctorOptions),
    /// Run a plan of many settings, each in processes of its own, and say which differences count
    Sweep(SweepOptions),
    /// Write the results of runs as a page that needs nothing but itself
    Report(ReportOptions),
    /// Compare the results of two runs, or the parts of one, and say which differences are no
    /// chance
    Compare(CompareOptions),
    /// Read NCCL's log and say which way its data took, why, and what to change
    Explain(ExplainOptions),
    /// Show what is known of EC2 instance types and GPUs, and where from; measures nothing
    Catalogue(CatalogueOptions),
    /// A rank that g2g starts by itself.
    #[command(name = "internal-rank", hide = true)]
    Rank(RankArgs),
}

impl Command {
    /// What it measures, and over which transports; `None`: it measures nothing.
    pub const fn measured(&self) -> Option<(&Options, &'static [TransportKind])> {
        match self {
            Self::Run(options) => Some((options, &TransportKind::ALL)),
            Self::Local(options) => Some((options, &[TransportKind::Local])),
            Self::P2p(options) => Some((options, &[TransportKind::P2p])),
            Self::Shm(options) => Some((options, &[TransportKind::Shm])),
            Self::Nccl(options) => Some((options, &[TransportKind::Nccl])),
            Self::Rdma(options) => Some((options, &[TransportKind::Rdma])),
            Self::Topo(_)
            | Self::Doctor(_)
            | Self::Sweep(_)
            | Self::Compare(_)
            | Self::Report(_)
            | Self::Explain(_)
            | Self::Catalogue(_)
            | Self::Rank(_) => None,
        }
    }
}

/// The flags of `g2g topo`.
#[derive(Clone, Debug, Args)]
pub struct TopoOptions {
    /// Show a simulated machine: an EC2 instance type or a machine file (a path, or a name
    /// that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    pub simulate: Option<String>,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = MachineFormat::Table)]
    pub format: MachineFormat,
}

/// The forms in which a machine is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachineFormat {
    /// Tables for a person
    Table,
    /// All that is known, as JSON
    Json,
    /// A picture of the GPUs, the switches, the network interfaces and their links
    Svg,
}

/// The flags of `g2g explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainOptions {
    /// Logs of NCCL with NCCL_DEBUG=INFO, of one job: what its ranks print, or the files of
    /// NCCL_DEBUG_FILE; - is standard input
    #[arg(value_name = "LOG", required = true)]
    pub logs: Vec<PathBuf>,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = TopoFormat::Table)]
    pub format: TopoFormat,
}

/// The forms of an answer that is no result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopoFormat {
    /// Tables for a person
    Table,
    /// All that is known, as JSON
    Json,
}

/// What rank 0 tells a rank that it starts.
#[derive(Clone, Copy, Debug, Args)]
pub struct RankArgs {
    /// Its number.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// The longest wait for another rank, in milliseconds.
    pub deadline_ms: u64,
}

/// The flags of every command that measures.
#[derive(Clone, Debug, Args)]
pub struct Options {
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
    #[arg(long, value_name = "OPERATION", value_enum, value_delimiter = ',')]
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

/// Why there is nothing to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The user asked for this text.
    Help(String),
    /// The user gave no command, and this says which there are.
    Usage(String),
    /// The arguments make no sense, for this reason: one sentence.
    Refused(String),
}

impl Cli {
    /// Reads the words of a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// The words ask for help, or make no sense.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, Answer> {
        Self::try_parse_from(words).map_err(|err| match err.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Answer::Help(err.to_string()),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Answer::Usage(err.to_string()),
            ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument => {
                let sentence = sentence(&err.to_string());
                Answer::Refused(format!("{sentence}; --help lists what there is"))
            }
            _ => Answer::Refused(sentence(&err.to_string())),
        })
    }
}

impl Options {
    /// What is to be measured, over these transports.
    ///
    /// # Errors
    ///
    /// The sizes cannot be meant: a sentence.
    pub fn request(&self, transports: &[TransportKind]) -> Result<Request, String> {
        let sizes = match &self.sizes {
            Some(sizes) => Some(sizes.0.clone()),
            None => self.nccl.sizes()?,
        };
        Ok(Request {
            transports: transports.to_vec(),
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

    /// How long each case is measured.
    pub fn effort(&self) -> Effort {
        Effort { precision: self.precision, time_limit: self.time_limit, samples: self.samples }
    }
}

/// The reason and the tips of clap's message, without its usage lines, on one line.
fn sentence(message: &str) -> String {
    let told: Vec<&str> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    told.join("; ").trim_start_matches("error: ").replace(":; ", ": ")
}

#[cfg(test)]
mod tests;
