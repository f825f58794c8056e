//! `g2g topo`: the machine as it is.

use super::Failure;
use crate::{
    cli::{MachineFormat, TopoOptions},
    machine::{self, survey},
    record,
};

/// Shows the machine.
pub(super) fn topo(options: &TopoOptions) -> Result<bool, Failure> {
    if let Some(machine) = &options.simulate {
        // Nothing is measured, so nothing happens by chance.
        machine::simulate(machine, 0).map_err(Failure::Start)?;
    }
    let (survey, _) = survey::told();
    let text = match options.format {
        MachineFormat::Table => record::topology_text(&survey),
        MachineFormat::Json => record::topology_json(&survey),
        MachineFormat::Svg => record::picture(&survey),
    };
    record::print(&text).map_err(|err| Failure::Start(err.to_string())).map(|()| true)
}
