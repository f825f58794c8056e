//! The memory that collectives work on: where it comes from, and what NCCL is told of it.

use serde::{Deserialize, Serialize};

/// Where memory of a GPU comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[derive(strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Allocator {
    /// `cuMemAlloc`.
    Cuda,
    /// `ncclMemAlloc`, as nccl-tests has it.
    Nccl,
}

/// What NCCL is told of memory before it works on it; the numbers are nccl-tests'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[derive(strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Registration {
    /// 0: nothing.
    #[value(alias = "0")]
    None,
    /// 1: that it will be used, by `ncclCommRegister`.
    #[value(alias = "1")]
    Local,
    /// 2: that all ranks have such, in a symmetric window (`ncclCommWindowRegister`).
    #[value(alias = "2")]
    Symmetric,
}

impl Registration {
    /// Whether it can be of memory from there: a window takes memory that can be mapped anew.
    pub const fn suits(self, buffer: Allocator) -> bool {
        !matches!((self, buffer), (Self::Symmetric, Allocator::Cuda))
    }
}
