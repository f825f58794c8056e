//! The flags that only NCCL has.

use std::path::PathBuf;

use clap::Args;

use crate::{
    plan::{Gpu, Step},
    units::Bytes,
};

/// More sizes than this are a mistake.
const SIZES_MAX: usize = 10_000;

/// The defaults of nccl-tests: the size, and the step to the next size.
const SIZE: Bytes = Bytes::mib(32);
const STEP: Bytes = Bytes::mib(1);

/// The flags that only NCCL has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "NCCL")]
pub struct NcclOptions {
    /// NCCL to load
    ///
    /// NCCL to load [default: the dynamic loader's libnccl.so.2, otherwise that of the active
    /// Python environment, otherwise one in the usual places]
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub nccl_lib: Option<PathBuf>,

    /// Smallest size (32M)
    ///
    /// Smallest size; with --maxbytes and one of the next two instead of --sizes [default: 32M]
    #[arg(short = 'b', long, value_name = "SIZE", conflicts_with = "sizes")]
    pub minbytes: Option<Bytes>,

    /// Largest size (32M)
    ///
    /// Largest size [default: 32M, or --minbytes if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE", conflicts_with = "sizes")]
    pub maxbytes: Option<Bytes>,

    /// Bytes from each size to the next (1M)
    ///
    /// Bytes added from each size to the next [default: 1M]
    #[arg(short = 'i', long, value_name = "SIZE", conflicts_with_all = ["sizes", "stepfactor"])]
    pub stepbytes: Option<Bytes>,

    /// Factor from each size to the next
    ///
    /// Factor from each size to the next, 2 or more
    #[arg(short = 'f', long, value_name = "N", conflicts_with = "sizes",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub stepfactor: Option<u64>,

    /// Of nccl-tests; g2g always checks the data
    ///
    /// For nccl-tests' command lines: g2g always verifies all that it times, with 0 too
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    pub check: u32,

    /// Number of GPUs: the first N of the machine
    ///
    /// As in nccl-tests: so many GPUs for each thread (--nthreads) and each rank, the first of the
    /// machine. Under a launcher each rank has one GPU, so it is 1 there
    #[arg(short = 'g', long, value_name = "N", conflicts_with = "gpus",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ngpus: Option<u32>,

    /// Number of threads that have --ngpus GPUs each
    ///
    /// As in nccl-tests, for the number of GPUs: g2g needs no threads for them [default: 1]
    #[arg(short = 't', long, value_name = "N", conflicts_with = "gpus",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nthreads: Option<u32>,
}

impl NcclOptions {
    /// The sizes, if given by the flags of nccl-tests. Fails if there are none, or too many.
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

    /// The GPUs, if given as nccl-tests has them, of so many ranks that g2g starts; `None` under a
    /// launcher, whose ranks have one each.
    pub(super) fn gpus(
        &self,
        ranks: Option<u32>,
        is_launched: bool,
    ) -> Result<Option<Vec<Gpu>>, String> {
        if self.ngpus.is_none() && self.nthreads.is_none() {
            return Ok(None);
        }
        let of_rank = self.ngpus.unwrap_or(1) * self.nthreads.unwrap_or(1);
        match is_launched {
            true if of_rank == 1 => Ok(None),
            true => Err(format!(
                "--ngpus and --nthreads give {of_rank} GPUs to each rank, and under a launcher a \
                 rank has one: start more ranks instead"
            )),
            false => Ok(Some((0..of_rank.saturating_mul(ranks.unwrap_or(1))).map(Gpu).collect())),
        }
    }

    /// The step between sizes that nccl-tests would print.
    pub fn step(&self) -> Step {
        match (self.stepfactor, self.stepbytes) {
            (Some(factor), _) => Step::Factor(factor),
            (None, Some(bytes)) => Step::Bytes(bytes),
            (None, None) if self.minbytes.is_some() || self.maxbytes.is_some() => Step::Bytes(STEP),
            (None, None) => Step::Factor(2),
        }
    }
}
