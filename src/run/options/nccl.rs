//! The flags that only NCCL has.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use strum::VariantArray as _;

use super::values::each_once;
use crate::{
    plan::{
        Allocator, CollectiveRequest, DataType, Iterations, NcclRequest, Reduction, Registration,
        Split, Step,
    },
    units::Bytes,
};

/// More operations than this in a sample are a mistake.
const ITERATIONS_MAX: u64 = 1_000_000;

/// What fits into the channel through which the driver feeds a GPU.
const GROUP_MAX: u64 = 64;

/// More sizes than this are a mistake.
const SIZES_MAX: usize = 10_000;

/// What nccl-tests has where no size is given, and from one size to the next one.
const SIZE: Bytes = Bytes::mib(32);
const STEP: Bytes = Bytes::mib(1);

/// The flags that only NCCL has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "NCCL")]
pub struct NcclOptions {
    /// The NCCL to use [default: the dynamic loader's libnccl.so.2, otherwise that of the Python
    /// environment in use, otherwise one in the usual places]
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub nccl_lib: Option<PathBuf>,

    /// Set a variable of NCCL, of its plugin for EFA or of libfabric, in place of what it is in the
    /// environment; repeat for each. {rank} in a value is the number of the rank that sets it. One
    /// that NCCL would not know, or would not read as it is written, is refused
    #[arg(long, value_name = "NAME=VALUE", value_parser = nccl_variable)]
    pub nccl_env: Vec<(String, String)>,

    /// Set also those that this NCCL does not know: what a plugin reads by itself
    #[arg(long)]
    pub allow_unknown_env: bool,

    /// What the elements are; several with commas, or all
    #[arg(short = 'd', long, alias = "datatype", value_name = "TYPE", value_delimiter = ',', default_value = "float",
          value_parser = each_or_all::<DataType>)]
    pub data_type: Vec<Each<DataType>>,

    /// What becomes of the elements of all ranks; several with commas, or all
    #[arg(short = 'o', long, alias = "op", value_name = "REDUCTION", value_delimiter = ',',
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

    /// The smallest size; with --maxbytes and one of the next two in place of --sizes [default:
    /// 32M]
    #[arg(short = 'b', long, value_name = "SIZE", conflicts_with = "sizes")]
    pub minbytes: Option<Bytes>,

    /// The largest size [default: 32M, or --minbytes if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE", conflicts_with = "sizes")]
    pub maxbytes: Option<Bytes>,

    /// From each size to the next one so many bytes more [default: 1M]
    #[arg(short = 'i', long, value_name = "SIZE", conflicts_with_all = ["sizes", "stepfactor"])]
    pub stepbytes: Option<Bytes>,

    /// From each size to the next one so many times more, 2 or more
    #[arg(short = 'f', long, value_name = "N", conflicts_with = "sizes",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub stepfactor: Option<u64>,

    /// Operations of one bandwidth sample, 1 to 1000000; reductions in place have one [default: as
    /// many as last 1 ms]
    #[arg(short = 'n', long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=ITERATIONS_MAX))]
    pub iters: Option<u64>,

    /// Operations before anything is timed, 0 to 1000000, beside those that find out how many a
    /// sample takes
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=ITERATIONS_MAX))]
    pub warmup_iters: u64,

    /// Operations that are handed to NCCL as one group, 1 to 64: --iters counts groups
    #[arg(short = 'm', long, alias = "agg_iters", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=GROUP_MAX))]
    pub agg_iters: u64,

    /// Whether the CPU waits for each group before it begins the next one: 0 or 1. Without, all is
    /// handed over before the first begins
    #[arg(short = 'z', long, value_name = "0|1", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    pub blocking: u8,

    /// For nccl-tests' command lines: all that is timed is verified, whatever stands here, and so 0
    /// is refused
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1, value_parser = check)]
    pub check: u32,

    /// Where memory comes from: the driver, or NCCL (ncclMemAlloc, which nccl-tests takes); several
    /// with commas [default: cuda, and nccl where --registration takes it]
    #[arg(long, value_name = "ALLOCATOR", value_enum, value_delimiter = ',')]
    pub buffer: Vec<Allocator>,

    /// What NCCL is told of the memory beforehand; several with commas
    #[arg(
        short = 'R',
        long,
        alias = "local_register",
        value_name = "REGISTRATION",
        value_enum,
        value_delimiter = ',',
        default_value = "none"
    )]
    pub registration: Vec<Registration>,

    /// Capture the operations of a sample in a CUDA graph that is launched so many times, 0 to 64;
    /// 0 queues them one by one
    #[arg(short = 'G', long, alias = "cudagraph", value_name = "LAUNCHES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=64))]
    pub graph: u32,

    /// Divide the ranks into communicators that all do the same at once: those with the same color,
    /// a rank's number AND, OR, MOD or DIV this one, as nccl-tests' NCCL_TESTS_SPLIT [default: one
    /// communicator of all]
    #[arg(long, value_name = "OPERATION:N")]
    pub split: Option<Split>,
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

impl NcclOptions {
    /// What is asked of NCCL.
    pub fn request(&self) -> NcclRequest {
        NcclRequest { variables: self.nccl_env.clone(), allows_unknown: self.allow_unknown_env }
    }

    /// What is asked of its collectives.
    pub(super) fn collectives(&self) -> CollectiveRequest {
        CollectiveRequest {
            data_types: all_of(&self.data_type, DataType::VARIANTS),
            reductions: all_of(&self.reduction, Reduction::VARIANTS),
            roots: match self.root {
                Root::One(root) => vec![root],
                Root::All => Vec::new(),
            },
            in_place: each_once(&self.place).iter().map(|&place| place == Place::InPlace).collect(),
            buffers: each_once(&self.buffer),
            registrations: each_once(&self.registration),
            split: self.split,
            iterations: Iterations {
                warm_up: self.warmup_iters,
                groups: self.iters,
                operations_per_group: self.agg_iters,
                is_blocking: self.blocking == 1,
                graph: self.graph,
            },
        }
    }

    /// The sizes, where they are given as nccl-tests takes them.
    ///
    /// # Errors
    ///
    /// There are none, or too many: a sentence.
    pub(super) fn sizes(&self) -> Result<Option<Vec<Bytes>>, String> {
        let Self { minbytes, maxbytes, stepbytes, stepfactor, .. } = *self;
        if (minbytes, maxbytes, stepbytes, stepfactor) == (None, None, None, None) {
            return Ok(None);
        }
        let first = minbytes.unwrap_or(SIZE);
        let last = maxbytes.unwrap_or(SIZE.max(first));
        let zero = Bytes::new(0);
        if first == zero || stepbytes == Some(zero) {
            return Err("--minbytes and --stepbytes are 1 or more".to_owned());
        }
        if first > last {
            return Err(format!("--minbytes {first} is more than --maxbytes {last}"));
        }
        let next = |size: &Bytes| match stepfactor {
            Some(factor) => size.get().checked_mul(factor).map(Bytes::new),
            None => size.get().checked_add(stepbytes.unwrap_or(STEP).get()).map(Bytes::new),
        };
        let sizes = std::iter::successors(Some(first), next).take_while(|size| *size <= last);
        let sizes: Vec<Bytes> = sizes.take(SIZES_MAX + 1).collect();
        match sizes.len() > SIZES_MAX {
            true => Err(format!(
                "--minbytes to --maxbytes are more than {SIZES_MAX} sizes: give larger steps, or \
                 --stepfactor 2"
            )),
            false => Ok(Some(sizes)),
        }
    }

    /// What nccl-tests would say of the steps between sizes.
    pub fn step(&self) -> Step {
        match (self.stepfactor, self.stepbytes) {
            (Some(factor), _) => Step::Factor(factor),
            (None, Some(bytes)) => Step::Bytes(bytes),
            (None, None) if self.minbytes.is_some() || self.maxbytes.is_some() => Step::Bytes(STEP),
            (None, None) => Step::Factor(2),
        }
    }
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

fn check(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("g2g gives no number that it has not verified: leave it out".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("write 1".to_owned()),
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
