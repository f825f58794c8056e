//! `g2g catalogue`: what is known of instance types and GPUs.

use std::path::PathBuf;

use clap::Args;

use super::{TextOrJson, print, print_page};
use crate::{
    run::{self, Failure},
    show,
};

/// The flags of `g2g catalogue`.
#[derive(Clone, Debug, Args)]
pub struct Catalogue {
    /// What to show: an EC2 instance type, a GPU by the name in the list, or an entry of the file
    /// of --catalogue [default: a list of all]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// File in the format of the catalogue with more GPUs and machines; its entries replace those
    /// of the same name
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = TextOrJson::Table)]
    format: TextOrJson,
}

impl Catalogue {
    /// Prints the list, or all of one entry.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let catalogue = run::catalogue(self.catalogue.as_deref())?;
        let text = match (&self.name, self.format) {
            (None, TextOrJson::Table) => return print_page(&show::catalogue_page(&catalogue)),
            (None, TextOrJson::Json) => show::catalogue_json(&catalogue),
            (Some(name), format) => {
                let unknown = || {
                    let near = catalogue.nearest(name).join(", ");
                    let reason =
                        format!("the catalogue has no `{name}`; the nearest names are {near}");
                    Failure::Start(format!("{reason}; `g2g catalogue` lists all"))
                };
                let entry = catalogue.entry(name).ok_or_else(unknown)?;
                match format {
                    TextOrJson::Table => {
                        let page = show::catalogue_entry_page(&catalogue, name, entry);
                        return print_page(&page);
                    }
                    TextOrJson::Json => show::catalogue_entry_json(&catalogue, name, entry),
                }
            }
        };
        print(&text)
    }
}
