//! The kernel's files on the machine, `/sys` and `/proc`, as far as they describe it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::Machine;

/// What lies at a path. Folders follow from the paths; an empty one is told.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Entry {
    /// A file.
    Text(String),
}

/// All files, by path, as JSON.
pub(crate) fn files(machine: &Machine) -> String {
    let name = format!("{}\n", machine.name);
    let files = [("/sys/devices/virtual/dmi/id/product_name", Entry::Text(name))];
    // Every value is text.
    serde_json::to_string(&BTreeMap::from(files)).unwrap_or_default()
}
