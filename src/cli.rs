//! The command line: what was typed, and what it means as a request.
//!
//! Knows only the plan and the units; refuses what cannot be meant.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};

use crate::{
    plan::{
        CollectiveRequest, DataType, Effort, Engine, FabricRequest, Gpu, Handle, Issuer, Memory,
        NcclRequest, NicChoice, Operation, Pattern, Reduction, Request, Sizes, TransportKind,
        topology::{NumaNode, cpu_list},
    },
    units::Bytes,
};

/// The most ranks that g2g starts by itself on one machine.
const RANKS_MAX: i64 = 1024;

/// No provider takes more operations at once.
const WINDOW_MAX: i64 = 1 << 16;

/// The shortest and the longest time that a flag takes.
const TIME_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Below it a rank could be late that is merely not scheduled.
const DEADLINE_MIN: Duration = Duration::from_millis(100);

/// Measures how fast GPUs, and the host memory between them, reach each other.
///
/// A number is recorded only after every byte of every target was compared with what the timed
/// transfers must have left there. Bandwidth is in GB/s, 10^9 bytes per second; sizes are powers of 1024; latency is in
/// nanoseconds. A run leaves a folder with run.csv, run.json and latency.hlog. Standard output
/// carries the results, standard error everything else.
///
/// Exit code: 0 all well, 1 a case was corrupt or failed, 2 cannot start or bad arguments.
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
    /// Show the GPUs, their links, and who reaches whom; measures nothing
    Topo(TopoOptions),
    /// Read NCCL's log and say which way its data took, why, and what to change
    Explain(ExplainOptions),
    /// A rank that g2g starts by itself.
    #[command(name = "internal-rank", hide = true)]
    Rank(RankArgs),
}

/// The flags of `g2g topo`.
#[derive(Clone, Debug, Args)]
pub struct TopoOptions {
    /// Show a simulated machine: an EC2 instance type or a machine file (a path, or a name
    /// that ends in .toml)
    #[arg(long, value_name = "MACHINE")]
    pub simulate: Option<String>,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = TopoFormat::Table)]
    pub format: TopoFormat,
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
    /// and both-ways between two ranks, one-way up to four, otherwise neighbours and bisection]
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

    /// What only RDMA has.
    #[command(flatten)]
    pub fabric: FabricOptions,

    /// What only NCCL has.
    #[command(flatten)]
    pub nccl: NcclOptions,

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
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = deadline,
          allow_hyphen_values = true)]
    pub deadline: Duration,

    /// Seed of the data patterns, 0 to 2^64 - 1
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

    /// Print the cases and measure nothing
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub dry_run: bool,

    /// No progress and no notes; errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// A line for each row on a terminal too, with how it was measured
    #[arg(short, long)]
    pub verbose: bool,
}

/// The flags that only RDMA has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "RDMA")]
pub struct FabricOptions {
    /// Providers of libfabric, such as efa, verbs, tcp or shm; several with commas [default: efa
    /// and verbs where they are, otherwise tcp, and shm within a host]
    #[arg(long, value_name = "PROVIDER", value_delimiter = ',')]
    pub provider: Vec<String>,

    /// Network interfaces of a rank: those nearest to its GPU over PCIe, all of its host in turn,
    /// or one by libfabric's name of its domain
    #[arg(long, value_name = "nearest|all|NAME", default_value = "nearest", value_parser = nic)]
    pub nic: NicChoice,

    /// Where the data lies; staged: in a GPU, but it travels through host memory at both ends;
    /// several with commas [default: gpu,staged where there are GPUs, otherwise host]
    #[arg(long, value_name = "MEMORY", value_enum, value_delimiter = ',')]
    pub memory: Vec<Memory>,

    /// Operations of a flow that are under way at once, 1 to 65536; fewer if the provider takes
    /// fewer [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub window: Option<u32>,

    /// The libfabric to use [default: the EFA installer's, otherwise the system's libfabric.so.1]
    #[arg(long, value_name = "FILE")]
    pub fabric_lib: Option<PathBuf>,
}

/// The flags that only NCCL has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "NCCL")]
pub struct NcclOptions {
    /// The NCCL to use [default: the dynamic loader's libnccl.so.2, otherwise that of the Python
    /// environment in use, otherwise one in the usual places]
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub nccl_lib: Option<PathBuf>,

    /// Set a variable of NCCL, of its plugin for EFA or of libfabric, in place of what it is in the
    /// environment; repeat for each. One that NCCL would not know, or would not read as it is
    /// written, is refused
    #[arg(long, value_name = "NAME=VALUE", value_parser = nccl_variable)]
    pub nccl_env: Vec<(String, String)>,

    /// Set also those that this NCCL does not know: what a plugin reads by itself
    #[arg(long)]
    pub allow_unknown_env: bool,

    /// What the elements are; several with commas, or all
    #[arg(short = 'd', long, value_name = "TYPE", value_delimiter = ',', default_value = "float",
          value_parser = each_or_all::<DataType>)]
    pub data_type: Vec<Each<DataType>>,

    /// What becomes of the elements of all ranks; several with commas, or all
    #[arg(short = 'o', long, value_name = "REDUCTION", value_delimiter = ',',
          default_value = "sum", value_parser = each_or_all::<Reduction>)]
    pub reduction: Vec<Each<Reduction>>,

    /// The rank that has another part than the others, by its number in the communicator, or all
    /// in turn
    #[arg(short = 'r', long, value_name = "RANK|all", default_value = "0", value_parser = root)]
    pub root: Root,

    /// Whether what is received takes the place of what was given; both with a comma
    #[arg(
        long,
        value_name = "PLACE",
        value_enum,
        value_delimiter = ',',
        default_value = "out-of-place,in-place"
    )]
    pub place: Vec<Place>,
}

/// Where a collective leaves what is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// In a buffer of its own
    OutOfPlace,
    /// Where the data was that was given
    InPlace,
}

/// A value, or all that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Each<T> {
    /// This one.
    One(T),
    /// All.
    All,
}

/// Which ranks are roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// This one.
    One(u32),
    /// Each in turn.
    All,
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
    pub fn request(&self, transports: &[TransportKind]) -> Request {
        Request {
            transports: transports.to_vec(),
            patterns: each_once(&self.pattern),
            sizes: self.sizes.clone().map(|sizes| sizes.0),
            ranks: self.ranks,
            gpus: self.gpus.clone().map(|gpus| gpus.0),
            operations: each_once(&self.operation),
            engines: each_once(&self.engine),
            issuers: each_once(&self.issuer),
            handle: self.handle,
            numa: self.numa.clone(),
            slot: self.slot_size,
            fabric: FabricRequest {
                providers: self.fabric.provider.clone(),
                nic: self.fabric.nic.clone(),
                memory: each_once(&self.fabric.memory),
                window: self.fabric.window,
            },
            nccl: self.nccl.request(),
            collectives: self.nccl.collectives(),
        }
    }

    /// How long each case is measured.
    pub fn effort(&self) -> Effort {
        Effort { precision: self.precision, time_limit: self.time_limit, samples: self.samples }
    }
}

impl NcclOptions {
    /// What is asked of NCCL.
    pub fn request(&self) -> NcclRequest {
        NcclRequest { variables: self.nccl_env.clone(), allows_unknown: self.allow_unknown_env }
    }

    /// What is asked of its collectives.
    fn collectives(&self) -> CollectiveRequest {
        CollectiveRequest {
            data_types: all_of(&self.data_type, &DataType::ALL),
            reductions: all_of(&self.reduction, &Reduction::ALL),
            roots: match self.root {
                Root::One(root) => vec![root],
                Root::All => Vec::new(),
            },
            in_place: each_once(&self.place).iter().map(|&place| place == Place::InPlace).collect(),
        }
    }
}

/// GPUs by their ordinals, each once, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus(pub Vec<Gpu>);

fn gpus(text: &str) -> Result<Gpus, String> {
    // A number that no machine has would be a long list.
    let is_small = text.split([',', '-']).all(|number| number.trim().len() <= 4);
    let numbers = cpu_list(text).filter(|numbers| is_small && !numbers.is_empty());
    let numbers = numbers.ok_or("write the ordinals of GPUs, such as 0,2 or 0-3")?;
    let gpus: Vec<Gpu> = numbers.into_iter().map(Gpu).collect();
    match gpus.iter().enumerate().find(|&(place, gpu)| gpus[..place].contains(gpu)) {
        Some((_, gpu)) => Err(format!("GPU {} is named twice: name each once", gpu.0)),
        None => Ok(Gpus(gpus)),
    }
}

fn each_once<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut once: Vec<T> = Vec::new();
    for item in list {
        if !once.contains(item) {
            once.push(*item);
        }
    }
    once
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

fn node_pair(text: &str) -> Result<(NumaNode, NumaNode), String> {
    let node = |text: &str| text.parse().ok().map(NumaNode);
    text.split_once(':')
        .and_then(|(source, target)| Some((node(source)?, node(target)?)))
        .ok_or_else(|| "write the numbers of two NUMA nodes, such as 0:1".to_owned())
}

fn nic(text: &str) -> Result<NicChoice, String> {
    Ok(match text {
        "" => return Err("write nearest, all, or the name of a domain".to_owned()),
        "nearest" => NicChoice::Nearest,
        "all" => NicChoice::All,
        name => NicChoice::Named(name.to_owned()),
    })
}

fn all_of<T: Copy + PartialEq>(wanted: &[Each<T>], all: &[T]) -> Vec<T> {
    let list = wanted.iter().flat_map(|each| match each {
        Each::One(one) => vec![*one],
        Each::All => all.to_vec(),
    });
    each_once(&list.collect::<Vec<T>>())
}

fn each_or_all<T: ValueEnum>(text: &str) -> Result<Each<T>, String> {
    if text == "all" {
        return Ok(Each::All);
    }
    let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
    T::from_str(text, false)
        .map(Each::One)
        .map_err(|_| format!("there are {} and all", names.join(", ")))
}

fn root(text: &str) -> Result<Root, String> {
    match text {
        // nccl-tests has -1 for all of them.
        "all" | "-1" => Ok(Root::All),
        number => number
            .parse()
            .map(Root::One)
            .map_err(|_| "write the number of a rank, from 0 on, or all".to_owned()),
    }
}

fn nccl_variable(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("write a name and a value, such as NCCL_P2P_LEVEL=NVL".to_owned());
    };
    if !["NCCL_", "OFI_NCCL_", "FI_"].iter().any(|beginning| name.starts_with(beginning)) {
        return Err("only names that begin with NCCL_, OFI_NCCL_ or FI_ can be set".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn slot_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|err: crate::units::BadSize| err.to_string())?;
    if size < Bytes::new(64) || !size.get().is_multiple_of(64) {
        return Err("a slot is a multiple of 64 bytes, 64 or more".to_owned());
    }
    Ok(size)
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent / 100.0),
        _ => Err("write a percentage above 0 and at most 50, such as 1% or 0.5%".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let refused = || "write a time with its unit, such as 500ms, 2s or 1m; 1ms to 30d".to_owned();
    let time: jiff::SignedDuration = text.parse().map_err(|_| refused())?;
    let time = Duration::try_from(time).map_err(|_| refused())?;
    if (TIME_MIN..=TIME_MAX).contains(&time) { Ok(time) } else { Err(refused()) }
}

fn deadline(text: &str) -> Result<Duration, String> {
    match time(text) {
        Ok(time) if time < DEADLINE_MIN => Err("a healthy rank may need 100ms".to_owned()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
