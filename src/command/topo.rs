//! `g2g topo`: the machine as it is.

use clap::{Args, ValueEnum};

use super::{print, print_page};
use crate::{
    machine::{self, survey},
    record,
    run::Failure,
    show,
};

/// The flags of `g2g topo`.
#[derive(Clone, Debug, Args)]
pub struct Topo {
    /// Show a simulated machine: an EC2 instance type or a machine file (a path, or a name
    /// that ends in .toml); of several hosts (2xp5.48xlarge) the first
    #[arg(long, value_name = "MACHINE")]
    simulate: Option<String>,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = MachineFormat::Table)]
    format: MachineFormat,
}

/// The formats of a machine's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MachineFormat {
    /// Tables for a person
    Table,
    /// All that is known, as JSON
    Json,
    /// A picture of the GPUs, the switches, the network interfaces and their links
    Svg,
}

impl Topo {
    /// Shows the machine.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        if let Some(machine) = &self.simulate {
            // Nothing is measured, so the seed has no effect.
            machine::simulate(machine, 0, 0).map_err(Failure::Start)?;
        }
        let (survey, _) = survey::told();
        print(&match self.format {
            MachineFormat::Table => return print_page(&show::topology_page(&survey)),
            MachineFormat::Json => record::topology_json(&survey),
            MachineFormat::Svg => show::picture(&survey),
        })
    }
}
