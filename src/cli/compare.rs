//! The flags of `g2g compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::threshold;

/// The flags of `g2g compare`.
///
/// Exit code: 0 nothing got slower than --fail-on allows, 1 something did, 2 cannot start, bad
/// arguments, or with --fail-on nothing that could be compared.
#[derive(Clone, Debug, Args)]
pub struct CompareOptions {
    /// The results to compare with: the folder of a run or of a sweep, or a file of nccl-tests,
    /// nvbandwidth, fabtests or the OSU benchmarks
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The results that are compared with them
    #[arg(value_name = "B", required_unless_present = "by", conflicts_with = "by")]
    pub b: Option<PathBuf>,

    /// Compare the rows of A with each other: issuer (reads against writes), engine, host, or
    /// nccl-env:NAME (of a sweep, by the values of a variable of NCCL)
    #[arg(long, value_name = "WHAT")]
    pub by: Option<String>,

    /// Exit code 1 if a case is slower by more than this, 0% to 100%, and not by chance
    #[arg(long, value_name = "PERCENT", value_parser = threshold, allow_hyphen_values = true)]
    pub fail_on: Option<f64>,

    /// Compare although this differs between A and B
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub across: Vec<Across>,

    /// Show all cases, in their order; not only those that have changed, the worst first
    #[arg(long)]
    pub all: bool,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = CompareFormat::Table)]
    pub format: CompareFormat,
}

/// What may differ between two sides although they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Across {
    /// A real machine and a simulated one
    Simulated,
    /// The type of instance, the processor, the GPUs
    Machine,
    /// The version of NCCL
    Nccl,
    /// The version of libfabric
    Libfabric,
}

/// The forms of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    /// Tables for a person
    Table,
    /// A line for each case
    Csv,
    /// An object for each case
    Json,
    /// Tables of GitHub's Markdown
    Markdown,
}
