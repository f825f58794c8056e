//! What the project's catalogue knows of variables.

use std::fmt;

use serde::Deserialize;

use super::value::Takes;
use crate::plan::catalogue::Catalogue;

/// A version of NCCL: major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Version(pub [u32; 3]);

impl TryFrom<String> for Version {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let numbers: Vec<u32> = text.split('.').flat_map(str::parse).collect();
        numbers.try_into().map(Self).map_err(|_| "not a version")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The first and the last version that reads a variable, if known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lifetime {
    pub(super) since: Option<Version>,
    pub(super) until: Option<Version>,
}

/// A variable whose values are known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct Variable {
    pub(super) what: String,
    /// What NCCL does without it.
    pub(super) default: Option<String>,
    pub(super) takes: Takes,
    since: Option<Version>,
    until: Option<Version>,
    /// What happens to a bad value.
    pub(super) otherwise: Option<String>,
    pub(super) danger: Option<Danger>,
    /// The replacement of a deprecated variable.
    pub(super) deprecated: Option<String>,
    /// What happens whenever it is set.
    pub(super) never: Option<String>,
    #[allow(dead_code, reason = "every entry names its source; a test reads it")]
    pub(super) src: Vec<String>,
}

/// A harmful value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Danger {
    pub(super) word: String,
    pub(super) says: String,
}

/// A variable of which little is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct OtherVariable {
    pub(super) integer: bool,
    since: Option<Version>,
    until: Option<Version>,
}

/// Names that circulate although no NCCL reads them.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::plan) struct Nonexistent {
    pub(super) names: Vec<String>,
    pub(super) instead: String,
}

impl Catalogue {
    /// Which versions read the variable; `None`: none does.
    pub(super) fn lifetime(&self, name: &str) -> Option<Lifetime> {
        let known = self.nccl_env.get(name).map(|variable| (variable.since, variable.until));
        let known =
            known.or_else(|| self.nccl_env_other.get(name).map(|other| (other.since, other.until)));
        known.map(|(since, until)| Lifetime { since, until })
    }

    /// All names of NCCL's own variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        let names = self.nccl_env.keys().chain(self.nccl_env_other.keys());
        names.map(String::as_str).filter(|name| name.starts_with("NCCL_"))
    }
}
