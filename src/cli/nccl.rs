//! The flags that only NCCL has.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::each_once;
use crate::plan::{Allocator, CollectiveRequest, DataType, NcclRequest, Reduction, Registration};

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

    /// Where memory comes from: the driver, or NCCL (ncclMemAlloc, which nccl-tests takes); several
    /// with commas [default: cuda, and nccl where --registration takes it]
    #[arg(long, value_name = "ALLOCATOR", value_enum, value_delimiter = ',')]
    pub buffer: Vec<Allocator>,

    /// What NCCL is told of the memory beforehand; several with commas
    #[arg(
        short = 'R',
        long,
        value_name = "REGISTRATION",
        value_enum,
        value_delimiter = ',',
        default_value = "none"
    )]
    pub registration: Vec<Registration>,
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
            data_types: all_of(&self.data_type, &DataType::ALL),
            reductions: all_of(&self.reduction, &Reduction::ALL),
            roots: match self.root {
                Root::One(root) => vec![root],
                Root::All => Vec::new(),
            },
            in_place: each_once(&self.place).iter().map(|&place| place == Place::InPlace).collect(),
            buffers: each_once(&self.buffer),
            registrations: each_once(&self.registration),
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

fn nccl_variable(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("write a name and a value, such as NCCL_P2P_LEVEL=NVL".to_owned());
    };
    if !["NCCL_", "OFI_NCCL_", "FI_"].iter().any(|beginning| name.starts_with(beginning)) {
        return Err("only names that begin with NCCL_, OFI_NCCL_ or FI_ can be set".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}
