//! The command line: what was typed, and what it means as a request.
//!
//! Knows only the plan and the units; refuses what cannot be meant.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};

use crate::{
    plan::{
        Effort, Engine, FabricRequest, Gpu, Handle, Issuer, Memory, NicChoice, Operation, Pattern,
        Request, Sizes, TransportKind,
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
    /// Measure RDMA between ranks, on one host or on many, through libfabric
    Rdma(Options),
    /// Show the GPUs, their links, and who reaches whom; measures nothing
    Topo(TopoOptions),
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

/// The forms of `g2g topo`'s answer.
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
        }
    }

    /// How long each case is measured.
    pub fn effort(&self) -> Effort {
        Effort { precision: self.precision, time_limit: self.time_limit, samples: self.samples }
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn read(line: &str) -> Result<Cli, Answer> {
        Cli::read(line.split_whitespace().map(OsString::from))
    }

    fn options(line: &str) -> Options {
        match read(line).unwrap().command {
            Command::Run(options)
            | Command::Local(options)
            | Command::P2p(options)
            | Command::Shm(options)
            | Command::Rdma(options) => options,
            Command::Topo(_) | Command::Rank(_) => panic!("not a command that measures"),
        }
    }

    fn refused(line: &str) -> String {
        match read(line) {
            Err(Answer::Refused(sentence)) => sentence,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_transports_own() {
        let options = options("g2g run");
        let request = options.request(&TransportKind::ALL);
        assert_eq!((request.sizes, request.gpus), (None, None));
        assert_eq!((request.ranks, request.slot), (None, None));
        assert_eq!(request.operations, []);
        assert_eq!(
            (request.engines, request.issuers),
            (Engine::OF_GPU.to_vec(), Issuer::ALL.to_vec())
        );
        let effort = options.effort();
        assert_eq!((effort.precision, effort.time_limit), (0.01, Duration::from_secs(2)));
    }

    #[test]
    fn what_was_typed_is_what_is_asked_for() {
        let options = options(
            "g2g shm --sizes 4K,1M --pattern pairs,pairs,one-way --ranks 4 --numa 0:1,1:0 \
             --slot-size 64K --precision 0.5 --time-limit 1m --gpus 3,0-1 --issuer write --engine sm \
             --operation chase,copy,chase --handle cumem",
        );
        let request = options.request(&[TransportKind::Shm]);
        assert_eq!(request.sizes, Some(vec![Bytes::kib(4), Bytes::mib(1)]));
        assert_eq!(request.patterns, [Pattern::Pairs, Pattern::OneWay]);
        assert_eq!(request.numa, [(NumaNode(0), NumaNode(1)), (NumaNode(1), NumaNode(0))]);
        assert_eq!(request.slot, Some(Bytes::kib(64)));
        assert_eq!(request.gpus, Some(vec![Gpu(3), Gpu(0), Gpu(1)]));
        assert_eq!((request.issuers, request.engines), (vec![Issuer::Write], vec![Engine::Sm]));
        assert_eq!(request.operations, [Operation::Chase, Operation::Copy]);
        assert_eq!(request.handle, Handle::Cumem);
        let effort = options.effort();
        assert_eq!((effort.precision, effort.time_limit), (0.005, Duration::from_secs(60)));
    }

    #[test]
    fn bad_words_are_refused_in_one_sentence_with_the_remedy() {
        for (line, part) in [
            ("g2g run --sizes 0", "a size of 0 moves nothing"),
            ("g2g run --sizes 64MB", "`64MB` is not a size: write bytes"),
            ("g2g run --sizes 1e6", "`1e6` is not a size"),
            ("g2g run --sizes 8K..4K", "the first size of a range is the smaller one"),
            ("g2g run --sizes 99999999999G", "too large"),
            ("g2g run --ranks 0", "0 is not in 1..=1024"),
            ("g2g run --ranks 1025", "1025 is not in 1..=1024"),
            ("g2g run --precision 0", "a percentage above 0"),
            ("g2g run --precision nan", "a percentage above 0"),
            ("g2g run --time-limit 2", "a time with its unit"),
            ("g2g run --time-limit 0s", "a time with its unit"),
            ("g2g run --time-limit -1s", "a time with its unit"),
            ("g2g run --time-limit 999us", "1ms to 30d"),
            ("g2g run --deadline 50ms", "100ms"),
            ("g2g run --deadline 9223372036854775807s", "1ms to 30d"),
            ("g2g run --samples 0", "0 is not in 1.."),
            ("g2g run --slot-size 100", "a multiple of 64 bytes"),
            ("g2g run --numa 1", "such as 0:1"),
            ("g2g p2p --gpus 0,1,0", "GPU 0 is named twice"),
            ("g2g p2p --gpus zero", "the ordinals of GPUs, such as 0,2 or 0-3"),
            ("g2g p2p --issuer pull", "[possible values: read, write]"),
            ("g2g p2p --engine cpu", "[possible values: ce, sm]"),
            ("g2g run --siz 4K", "--sizes"),
            ("g2g rnu", "'rnu'; --help lists what there is"),
            ("g2g run --quiet --verbose", "cannot be used with"),
            ("g2g run --samples 5 --precision 2%", "cannot be used with"),
            ("g2g run --dry-run --format csv", "cannot be used with"),
        ] {
            let sentence = refused(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
            assert!(!sentence.contains('\n') && !sentence.contains("Usage"), "{sentence}");
        }
    }

    #[test]
    fn every_flag_is_explained_within_80_columns() {
        let mut command = Cli::command();
        let shm = command.find_subcommand_mut("shm").unwrap();
        for flag in shm.get_arguments() {
            assert!(flag.get_help().is_some(), "{}", flag.get_id());
        }
        let Err(Answer::Help(help)) = read("g2g shm --help") else { panic!("no help") };
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
