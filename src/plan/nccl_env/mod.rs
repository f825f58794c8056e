//! The variables that steer NCCL: which of them are set, what NCCL makes of them, and what was
//! probably meant.
//!
//! NCCL silently ignores a variable that it does not know, and reads a bad value as 0 or ignores
//! it. So g2g checks each variable: its name against those in the loaded library, its value against
//! the catalogue, which says how NCCL's source reads it.

mod catalogue;
mod recorded;
mod settings;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;

use super::{Rank, catalogue::Catalogue};
use catalogue::Lifetime;
pub use catalogue::Version;
pub(super) use catalogue::{Nonexistent, OtherVariable, Variable};
pub use recorded::is_setting;
pub use settings::{BEGINNINGS, Origin, Setting, settings};

/// What the user asks of NCCL: flags, with their help.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "NCCL")]
pub struct NcclRequest {
    /// A variable of NCCL; repeat for each
    ///
    /// Set a variable of NCCL, of its plugin for EFA or of libfabric, overriding the environment;
    /// repeat for each. {rank} in a value stands for the rank's number. g2g refuses a variable that
    /// NCCL does not know, and a value that NCCL does not read as written
    #[arg(long = "nccl-env", value_name = "VAR=VAL", value_parser = assignment)]
    pub variables: Vec<(String, String)>,

    /// Also variables that this NCCL does not know
    ///
    /// Also set variables that this NCCL does not know, such as those that only a plugin reads
    #[arg(long = "allow-unknown-env")]
    pub allows_unknown: bool,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("write a name and a value, such as NCCL_P2P_LEVEL=NVL".to_owned());
    };
    if !BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) {
        return Err("only names that begin with NCCL_, OFI_NCCL_ or FI_ can be set".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

impl NcclRequest {
    /// Whether NCCL is told to let several ranks have one GPU.
    pub fn shares_gpus(&self) -> bool {
        let is_it =
            |(name, value): &(String, String)| name == "NCCL_MULTI_RANK_GPU_ENABLE" && value == "1";
        self.variables.iter().any(is_it)
    }

    /// The placeholder for the rank's number in a value.
    const RANK: &'static str = "{rank}";

    /// The same with the number of `rank` in the values.
    pub fn of_rank(&self, rank: Rank) -> Self {
        let number = rank.0.to_string();
        let own = |value: &String| value.replace(Self::RANK, &number);
        let variables = self.variables.iter().map(|(name, value)| (name.clone(), own(value)));
        Self { variables: variables.collect(), ..*self }
    }
}

/// What is known about the loaded NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its version.
    pub version: Version,
    /// The names of the variables that it knows.
    pub names: Vec<String>,
}

impl Known {
    /// Whether it can look for faults itself, when a communicator is made.
    pub fn has_diagnostics(&self) -> bool {
        self.names.iter().any(|name| name == "NCCL_RUN_DIAGNOSTICS")
    }
}

/// What is wrong with a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub gravity: Gravity,
    /// The variable and where it comes from, what becomes of it, and what to write instead.
    pub sentence: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gravity {
    /// It does something, which may not be wanted.
    Doubtful,
    /// Nobody knows the name.
    Unknown,
    /// It does not do what it says.
    Wrong,
}

impl Finding {
    /// Whether it refuses the run, if the variable is from the command line.
    pub fn is_refused(&self, request: &NcclRequest) -> bool {
        match self.gravity {
            Gravity::Doubtful => false,
            Gravity::Unknown => !request.allows_unknown,
            Gravity::Wrong => true,
        }
    }
}

/// What is wrong with `settings`, for the loaded library, or else for any version in the catalogue.
/// Each finding comes with its setting.
pub fn findings<'a>(settings: &'a [Setting], known: Option<&Known>) -> Vec<(&'a Setting, Finding)> {
    let of_setting = |setting| Some((setting, finding(setting, known)?));
    settings.iter().filter_map(of_setting).collect()
}

fn finding(setting: &Setting, known: Option<&Known>) -> Option<Finding> {
    let name = setting.name.as_str();
    let is_of_nccl = name.contains("NCCL_") && !name.starts_with("OFI_");
    let catalogue = Catalogue::built_in();
    let variable = catalogue.nccl_env.get(name);
    let found = absence(name, known).filter(|_| is_of_nccl).or_else(|| match variable {
        Some(variable) => judged(variable, setting),
        None if catalogue.nccl_env_other.get(name).is_some_and(|other| other.integer) => {
            let takes = value::Takes::integer();
            takes.objection(&setting.value, None).map(|text| (Gravity::Wrong, text))
        }
        None => None,
    });
    let (gravity, text) = found?;
    Some(Finding { gravity, sentence: format!("{setting}: {text}") })
}

/// Why this variable does nothing: the library does not know it.
fn absence(name: &str, known: Option<&Known>) -> Option<(Gravity, String)> {
    let lifetime = Catalogue::built_in().lifetime(name);
    let known = match (known, lifetime) {
        (Some(known), _) if known.names.iter().any(|known| known == name) => return None,
        (None, Some(_)) => return None,
        (Some(known), Some(_)) => known,
        (known, None) => return Some(unknown(name, known)),
    };
    let Lifetime { since, until } = lifetime.unwrap_or_default();
    let here = known.version;
    let text = match (since, until) {
        (_, Some(until)) if here > until => {
            format!("NCCL {here} does not read it any more, {until} was the last: leave it out")
        }
        (Some(since), _) if here < since => format!(
            "NCCL {here} does not read it yet, {since} was the first: leave it out, or take a \
             newer NCCL"
        ),
        _ => format!("this NCCL {here} does not read it: leave it out"),
    };
    Some((Gravity::Wrong, text))
}

fn unknown(name: &str, known: Option<&Known>) -> (Gravity, String) {
    let nonexistent = &Catalogue::built_in().nccl_env_nonexistent;
    if nonexistent.names.iter().any(|other| other == name) {
        let text = format!("no NCCL reads such a variable: {}", nonexistent.instead);
        return (Gravity::Unknown, text);
    }
    let of_whom = known.map_or_else(
        || "no NCCL that g2g knows reads it".to_owned(),
        |known| format!("NCCL {} does not know it", known.version),
    );
    let remedy = nearest(name, known)
        .map_or_else(|| "leave it out".to_owned(), |nearest| format!("was {nearest} meant?"));
    (Gravity::Unknown, format!("{of_whom} and says nothing: {remedy}"))
}

/// The known name that is most like `name`, if one is like it.
fn nearest(name: &str, known: Option<&Known>) -> Option<String> {
    let trimmed = name.trim();
    let most = (trimmed.len() / 4).max(2);
    let of_library = known.map(|known| known.names.iter().map(String::as_str).collect());
    let names: Vec<&str> =
        of_library.unwrap_or_else(|| Catalogue::built_in().variables().collect());
    let distance = |other: &&str| strsim::damerau_levenshtein(trimmed, other);
    let nearest = names.into_iter().min_by_key(distance)?;
    (distance(&nearest) <= most).then(|| nearest.to_owned())
}

/// What is wrong with a variable that is known.
fn judged(variable: &Variable, setting: &Setting) -> Option<(Gravity, String)> {
    if let Some(never) = &variable.never {
        return Some((Gravity::Wrong, format!("{never}: leave it out")));
    }
    let objection = variable.takes.objection(&setting.value, variable.otherwise.as_deref());
    if let Some(text) = objection {
        let default = variable.default.as_ref().map(|default| format!("; default: {default}"));
        let text = format!("{text} ({}{})", variable.what, default.unwrap_or_default());
        return Some((Gravity::Wrong, text));
    }
    if let Some(danger) = &variable.danger
        && variable.takes.holds(&setting.value, &danger.word)
    {
        return Some((Gravity::Doubtful, danger.says.clone()));
    }
    let replacement = variable.deprecated.as_ref()?;
    Some((Gravity::Doubtful, format!("it is deprecated: {replacement} takes its place")))
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What the user has typed may be shown to the user.
        match self.origin {
            Origin::Inherited | Origin::File(_) if !is_setting(&self.name) => {
                write!(f, "{} ({})", self.name, self.origin)
            }
            _ => write!(f, "{}={} ({})", self.name, self.value, self.origin),
        }
    }
}
