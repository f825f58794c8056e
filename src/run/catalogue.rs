//! `g2g catalogue`: what is known of instance types and GPUs.

use std::{borrow::Cow, fs, path::Path};

use super::Failure;
use crate::{
    cli::{CatalogueOptions, TopoFormat},
    plan::catalogue::Catalogue,
    record,
};

/// The catalogue with what the user's file adds.
pub(super) fn read(file: Option<&Path>) -> Result<Cow<'static, Catalogue>, Failure> {
    let Some(file) = file else { return Ok(Cow::Borrowed(Catalogue::built_in())) };
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|err| Failure::Start(format!("--catalogue {name}: {err}")))?;
    let whole = Catalogue::built_in().with(&text);
    whole.map(Cow::Owned).map_err(|bad| Failure::Start(format!("--catalogue {name}: {bad}")))
}

/// Prints the list, or all of one entry.
pub(super) fn catalogue(options: &CatalogueOptions) -> Result<bool, Failure> {
    let catalogue = read(options.catalogue.as_deref())?;
    let text = match (&options.name, options.format) {
        (None, TopoFormat::Table) => record::catalogue_text(&catalogue),
        (None, TopoFormat::Json) => record::catalogue_json(&catalogue),
        (Some(name), format) => {
            let unknown = || {
                let near = catalogue.nearest(name).join(", ");
                let reason = format!("the catalogue has no `{name}`; the nearest names are {near}");
                Failure::Start(format!("{reason}; `g2g catalogue` lists all"))
            };
            let entry = catalogue.entry(name).ok_or_else(unknown)?;
            match format {
                TopoFormat::Table => record::catalogue_entry_text(&catalogue, name, entry),
                TopoFormat::Json => record::catalogue_entry_json(&catalogue, name, entry),
            }
        }
    };
    record::print(&text).map_err(|err| Failure::Start(err.to_string())).map(|()| true)
}
