//! `g2g topo`: the machine as it is.

use super::Failure;
use crate::{
    cli::{MachineFormat, TopoOptions},
    machine::{self, survey},
    record,
};

/// Shows the machine.
pub(super) fn topo(options: &TopoOptions) -> Result<bool, Failure> {
    let start = |err: &dyn std::error::Error| Failure::Start(err.to_string());
    if let Some(machine) = &options.simulate {
        // Nothing is measured, so nothing happens by chance.
        machine::simulate(machine, 0).map_err(Failure::Start)?;
    }
    let topology = machine::topology().map_err(|err| start(&err))?;
    let survey = survey::survey(&topology).map_err(|err| start(&err))?;
    let text = match options.format {
        MachineFormat::Table => record::topology_text(&survey),
        MachineFormat::Json => record::topology_json(&survey),
        MachineFormat::Svg => record::picture(&survey),
    };
    record::print(&text).map_err(|err| start(&err)).map(|()| true)
}
