//! The flags of `g2g catalogue`.

use std::path::PathBuf;

use clap::Args;

use super::TopoFormat;

/// The flags of `g2g catalogue`.
#[derive(Clone, Debug, Args)]
pub struct CatalogueOptions {
    /// What to show: an EC2 instance type, a GPU by the name in the list, or an entry of the file
    /// of --catalogue [default: a list of all]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// A file of the form of the catalogue with more GPUs and machines; its entries take the place
    /// of those of the same name
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<PathBuf>,

    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value_t = TopoFormat::Table)]
    pub format: TopoFormat,
}
