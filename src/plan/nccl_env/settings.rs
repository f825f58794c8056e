//! Which variables NCCL gets to see, and where each comes from.

use std::{fmt, path::PathBuf};

/// The prefixes of the variables that NCCL and the libraries below it read.
pub const BEGINNINGS: [&str; 3] = ["NCCL_", "OFI_NCCL_", "FI_"];

/// The longest name or value that NCCL takes from a file ("NVIDIA/nccl", `src/misc/param.cc`).
const LENGTH_MAX: usize = 1023;

/// A variable as NCCL gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a variable comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--nccl-env`.
    Given,
    /// The environment that the process was started with.
    Inherited,
    /// A file that NCCL reads by itself.
    File(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("--nccl-env"),
            Self::Inherited => f.write_str("from the environment"),
            Self::File(path) => write!(f, "from {}", path.display()),
        }
    }
}

/// The variables of NCCL and of the libraries below it, each once, by the rules of NCCL: what is
/// in the environment is not replaced by a file, nor by a later file what an earlier one has set.
/// `given` is in the environment before NCCL is. The files are in the order in which NCCL reads
/// them, with their texts.
pub fn settings(
    given: &[(String, String)],
    inherited: impl IntoIterator<Item = (String, String)>,
    files: &[(PathBuf, String)],
) -> Vec<Setting> {
    let given = given.iter().cloned().map(|pair| (pair, Origin::Given));
    let mut inherited: Vec<(String, String)> = inherited.into_iter().collect();
    inherited.sort_unstable();
    let inherited = inherited.into_iter().map(|pair| (pair, Origin::Inherited));
    let of_files = files.iter().flat_map(|(path, text)| {
        pairs(text).map(|pair| (pair, Origin::File(path.clone()))).collect::<Vec<_>>()
    });
    let mut settings: Vec<Setting> = Vec::new();
    for ((name, value), origin) in given.chain(inherited).chain(of_files) {
        let is_steering = match origin {
            // NCCL takes a blank or a word before a name for a part of it.
            Origin::File(_) => BEGINNINGS.iter().any(|beginning| name.contains(beginning)),
            _ => BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)),
        };
        if is_steering && !settings.iter().any(|setting| setting.name == name) {
            settings.push(Setting { name, value, origin });
        }
    }
    settings
}

/// The variables of a file, as NCCL reads it: nothing is trimmed, `#` begins a comment only at the
/// beginning of a line.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    let cut = |text: &str| text.chars().take(LENGTH_MAX).collect::<String>();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(move |line| {
        let (name, value) = line.split_once('=')?;
        Some((cut(name), cut(value)))
    })
}
