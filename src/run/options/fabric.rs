//! The flags that only RDMA has.

use std::path::PathBuf;

use clap::Args;

use super::values::each_once;
use crate::plan::{FabricRequest, Memory, NicChoice};

/// No provider takes more operations at once.
const WINDOW_MAX: i64 = 1 << 16;

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

impl FabricOptions {
    /// What is asked of RDMA.
    pub(super) fn request(&self) -> FabricRequest {
        FabricRequest {
            providers: self.provider.clone(),
            nic: self.nic.clone(),
            memory: each_once(&self.memory),
            window: self.window,
        }
    }
}

fn nic(text: &str) -> Result<NicChoice, String> {
    Ok(match text {
        "" => return Err("write nearest, all, or the name of a domain".to_owned()),
        "nearest" => NicChoice::Nearest,
        "all" => NicChoice::All,
        name => NicChoice::Named(name.to_owned()),
    })
}
