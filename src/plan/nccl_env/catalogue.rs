//! What the project's catalogue knows of variables.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Deserializer, de::Error};

use super::value::Takes;

/// The part of the catalogue that is about variables.
pub(super) static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    toml::from_str(include_str!("../catalogue.toml"))
        .expect("a test reads every entry of the embedded catalogue")
});

#[derive(Debug, Deserialize)]
pub(super) struct Catalogue {
    pub(super) nccl_env: BTreeMap<String, Variable>,
    pub(super) nccl_env_other: BTreeMap<String, Other>,
    pub(super) nccl_env_nonexistent: Nonexistent,
}

/// A variable whose values are known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    what: String,
    /// What holds without it.
    default: Option<String>,
    pub(super) takes: Takes,
    #[serde(default, deserialize_with = "version")]
    since: Option<[u32; 3]>,
    #[serde(default, deserialize_with = "version")]
    until: Option<[u32; 3]>,
    /// What becomes of a value that it does not take.
    pub(super) otherwise: Option<String>,
    pub(super) danger: Option<Danger>,
    /// What is better used.
    pub(super) deprecated: Option<String>,
    /// What happens whenever it is set.
    pub(super) never: Option<String>,
    #[allow(dead_code, reason = "every entry names its source; a test reads it")]
    pub(super) src: Vec<String>,
}

/// A word that does harm.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Danger {
    pub(super) word: String,
    pub(super) says: String,
}

/// A variable of which little is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Other {
    pub(super) integer: bool,
    #[serde(default, deserialize_with = "version")]
    since: Option<[u32; 3]>,
    #[serde(default, deserialize_with = "version")]
    until: Option<[u32; 3]>,
}

/// Names that are passed on and never existed.
#[derive(Debug, Deserialize)]
pub(super) struct Nonexistent {
    pub(super) names: Vec<String>,
    pub(super) instead: String,
}

impl Catalogue {
    /// The first and the last version that reads the variable, as far as either is known; `None`:
    /// none does.
    #[allow(clippy::type_complexity, reason = "two versions, each of three numbers")]
    pub(super) fn lifetime(&self, name: &str) -> Option<(Option<[u32; 3]>, Option<[u32; 3]>)> {
        let known = self.nccl_env.get(name).map(|variable| (variable.since, variable.until));
        known.or_else(|| self.nccl_env_other.get(name).map(|other| (other.since, other.until)))
    }

    /// All names of NCCL's own variables.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.nccl_env.keys().chain(self.nccl_env_other.keys());
        names.map(String::as_str).filter(|name| name.starts_with("NCCL_"))
    }
}

impl Variable {
    /// What it is for, and what holds without it.
    pub(super) fn explained(&self) -> String {
        let default = self.default.as_ref().map(|default| format!("; default: {default}"));
        format!("{}{}", self.what, default.unwrap_or_default())
    }
}

/// A version with two dots.
fn version<'de, D: Deserializer<'de>>(text: D) -> Result<Option<[u32; 3]>, D::Error> {
    let text = String::deserialize(text)?;
    let numbers: Vec<u32> = text.split('.').flat_map(str::parse).collect();
    let version = numbers.try_into().map_err(|_| D::Error::custom("not a version"))?;
    Ok(Some(version))
}
