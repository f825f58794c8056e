//! What a log means: findings as sentences, each with what it rests on, why it is so, and what to
//! change.
//!
//! Where a log suggests something and does not prove it, the sentence says so.

mod network;
mod paths;
mod placement;
mod state;
mod text;

use serde::Serialize;

pub(crate) use text::{line, upper};

use crate::units::count;

use super::{Log, Origin, PathVerdict, Place, Summary, Variable, Wishes};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// Data goes a slower way than the machine has, or nothing goes.
    Problem,
    /// Worth knowing.
    Note,
}

/// Something that a log says, and what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A name for programs.
    pub name: &'static str,
    /// How much it matters.
    pub weight: Weight,
    /// What is so, in sentences.
    pub says: String,
    /// Why it is probably so.
    pub because: Option<String>,
    /// What to change.
    pub remedy: Option<String>,
    /// The lines that it rests on.
    pub at: Vec<Place>,
}

impl Finding {
    fn problem(name: &'static str, says: String, at: Vec<Place>) -> Self {
        Self { name, weight: Weight::Problem, says, because: None, remedy: None, at }
    }

    fn note(name: &'static str, says: String, at: Vec<Place>) -> Self {
        Self { weight: Weight::Note, ..Self::problem(name, says, at) }
    }

    fn because(self, because: impl Into<String>) -> Self {
        Self { because: Some(because.into()), ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// A log with what it means.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The path in a few words.
    pub summary: Summary,
    /// Whether the log says for all ranks where the data went.
    pub path: PathVerdict,
    /// What it means, problems first.
    pub findings: Vec<Finding>,
    /// What it says.
    pub log: Log,
}

impl Explanation {
    /// Judges `log`.
    #[must_use]
    pub fn of(log: Log) -> Self {
        let mut findings = placement::findings(&log);
        findings.extend(paths::findings(&log));
        findings.extend(network::findings(&log));
        findings.extend(state::findings(&log));
        findings.sort_by_key(|finding| finding.weight);
        let from_environment = |variable: &&Variable| variable.origin == Origin::Environment;
        let set = log.variables.iter().filter(from_environment);
        let wishes =
            Wishes::of(set.map(|variable| (variable.name.as_str(), variable.value.as_str())));
        Self { summary: log.summary(None), path: log.path_verdict(None, &wishes), findings, log }
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        text::text(self)
    }
}

#[cfg(test)]
mod tests;
