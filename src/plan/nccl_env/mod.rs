//! The variables that steer NCCL: which of them are set, what NCCL makes of them, and what was
//! probably meant.
//!
//! NCCL says nothing of a variable that it does not know, and little of a value that it cannot
//! read: it takes it for 0, or ignores it. So each is held against the names that the loaded
//! library knows and against the catalogue of what NCCL's source does with their values.

mod catalogue;
mod recorded;
mod settings;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;

use super::Rank;
use catalogue::{CATALOGUE, Variable};
pub use recorded::is_setting;
pub use settings::{Origin, Setting, settings};

/// What the user asks of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclRequest {
    /// Variables to be set for it, in the order in which they were given.
    pub variables: Vec<(String, String)>,
    /// Whether variables that are not known are no reason to refuse.
    pub allows_unknown: bool,
}

impl NcclRequest {
    /// Whether NCCL is told to let several ranks have one GPU.
    pub fn shares_gpus(&self) -> bool {
        let is_it =
            |(name, value): &(String, String)| name == "NCCL_MULTI_RANK_GPU_ENABLE" && value == "1";
        self.variables.iter().any(is_it)
    }

    /// What stands in a value for the number of the rank that sets it.
    const RANK: &'static str = "{rank}";

    /// As rank `rank` has it.
    pub fn of_rank(&self, rank: Rank) -> Self {
        let number = rank.0.to_string();
        let own = |value: &String| value.replace(Self::RANK, &number);
        let variables = self.variables.iter().map(|(name, value)| (name.clone(), own(value)));
        Self { variables: variables.collect(), ..*self }
    }
}

/// What is known of a library of NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its version: major, minor, patch.
    pub version: [u32; 3],
    /// The names of the variables that it knows.
    pub names: Vec<String>,
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
    /// Whether it is a reason not to run, if it is of a variable that the user has given.
    pub fn is_refused(&self, request: &NcclRequest) -> bool {
        match self.gravity {
            Gravity::Doubtful => false,
            Gravity::Unknown => !request.allows_unknown,
            Gravity::Wrong => true,
        }
    }
}

/// What is wrong with `settings`, for a library of which this much is `known`; without one, for
/// any that the catalogue knows. Each finding is with the setting that it is of.
pub fn findings<'a>(settings: &'a [Setting], known: Option<&Known>) -> Vec<(&'a Setting, Finding)> {
    let of_setting = |setting| Some((setting, finding(setting, known)?));
    settings.iter().filter_map(of_setting).collect()
}

fn finding(setting: &Setting, known: Option<&Known>) -> Option<Finding> {
    let name = setting.name.as_str();
    let is_of_nccl = name.contains("NCCL_") && !name.starts_with("OFI_");
    let variable = CATALOGUE.nccl_env.get(name);
    let found = absence(name, known).filter(|_| is_of_nccl).or_else(|| match variable {
        Some(variable) => judged(variable, setting),
        None if CATALOGUE.nccl_env_other.get(name).is_some_and(|other| other.integer) => {
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
    let in_catalogue = CATALOGUE.lifetime(name);
    match known {
        Some(known) if known.names.iter().any(|known| known == name) => None,
        None if in_catalogue.is_some() => None,
        Some(known) if in_catalogue.is_some() => {
            let here = Dotted(known.version);
            let (since, until) = in_catalogue.unwrap_or_default();
            let text = match (since, until) {
                (_, Some(until)) if known.version > until => format!(
                    "NCCL {here} does not read it any more, {} was the last: leave it out",
                    Dotted(until)
                ),
                (Some(since), _) if known.version < since => format!(
                    "NCCL {here} does not read it yet, {} was the first: leave it out, or take a \
                     newer NCCL",
                    Dotted(since)
                ),
                _ => format!("this NCCL {here} does not read it: leave it out"),
            };
            Some((Gravity::Wrong, text))
        }
        _ => Some(unknown(name, known)),
    }
}

fn unknown(name: &str, known: Option<&Known>) -> (Gravity, String) {
    let nonexistent = &CATALOGUE.nccl_env_nonexistent;
    if nonexistent.names.iter().any(|other| other == name) {
        let text = format!("no NCCL reads such a variable: {}", nonexistent.instead);
        return (Gravity::Unknown, text);
    }
    let of_whom = known.map_or_else(
        || "no NCCL that g2g knows reads it".to_owned(),
        |known| format!("NCCL {} does not know it", Dotted(known.version)),
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
    let names: Vec<&str> = of_library.unwrap_or_else(|| CATALOGUE.names().collect());
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
        return Some((Gravity::Wrong, format!("{text} ({})", variable.explained())));
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

/// A version as a person writes it.
struct Dotted([u32; 3]);

impl fmt::Display for Dotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}
