//! How GPUs are doing.

use serde::{Deserialize, Serialize};

use crate::plan::Gpu;

pub use crate::ffi::nvml::{Condition, Errors};

/// How a GPU is doing at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Health {
    /// What changes from moment to moment.
    #[serde(flatten)]
    pub condition: Condition,
    /// What it has counted since its driver was loaded.
    #[serde(flatten)]
    pub errors: Errors,
}

/// An error that the driver has told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Xid {
    /// The GPU.
    pub gpu: Gpu,
    /// NVIDIA's number for the kind of error.
    pub number: u64,
}

/// The health of a host's GPUs when the run began and when it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostHealth {
    /// The host's name.
    pub host: String,
    /// GPUs when the run began.
    pub start: Vec<GpuHealth>,
    /// GPUs when it ended.
    pub end: Vec<GpuHealth>,
    /// Errors that the driver told of in between; `None`: it does not tell.
    pub xids: Option<Vec<Xid>>,
}

/// The health of a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GpuHealth {
    /// Its ordinal.
    pub gpu: Gpu,
    /// How it is doing; `None`: it does not answer.
    #[serde(flatten)]
    pub health: Option<Health>,
}
