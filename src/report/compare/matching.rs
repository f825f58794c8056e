//! Which rows of two sides are of the same case.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    str::FromStr,
};

use super::Source;
use crate::record::CASE_COLUMNS;

/// What of a run is held against the rest of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Who asks for a copy: reads against writes.
    Issuer,
    /// What moves the bytes.
    Engine,
    /// The host that both ends are on.
    Host,
    /// A variable of NCCL.
    NcclEnv(String),
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "issuer" => Ok(Self::Issuer),
            None if text == "engine" => Ok(Self::Engine),
            None if text == "host" => Ok(Self::Host),
            Some(("nccl-env", name)) if !name.is_empty() => Ok(Self::NcclEnv(name.to_owned())),
            _ => Err(format!("unknown {text:?}: write issuer, engine, host or nccl-env:NAME")),
        }
    }
}

impl By {
    /// What a row has of it; `None`: the row has no part in the comparison.
    pub(super) fn value<'a>(&self, source: &'a Source, row: usize) -> Option<&'a str> {
        let text = |column| source.rows.text(row, column);
        let value = match self {
            Self::Issuer => text("issuer"),
            Self::Engine => text("engine"),
            Self::Host if text("source_host") == text("target_host") => text("source_host"),
            Self::Host => "",
            Self::NcclEnv(name) if text("transport") == "nccl" => {
                let set = text("nccl_env").split(' ').filter_map(|word| word.split_once('='));
                set.into_iter().find(|(of, _)| of == name).map_or("not set", |(_, value)| value)
            }
            Self::NcclEnv(_) => "",
        };
        Some(value).filter(|value| !value.is_empty())
    }

    /// The column that has it.
    pub(super) const fn column(&self) -> &'static str {
        match self {
            Self::Issuer => "issuer",
            Self::Engine => "engine",
            Self::Host => "host",
            Self::NcclEnv(_) => "nccl_env",
        }
    }

    /// Whether cases are the same that differ in this column.
    fn ignores(&self, column: &str) -> bool {
        match self {
            Self::Issuer | Self::Engine => column == self.column(),
            // Ranks are counted over all hosts.
            Self::Host => {
                ["source_host", "target_host", "source_rank", "target_rank"].contains(&column)
            }
            Self::NcclEnv(_) => false,
        }
    }
}

/// A row: which source it is of, and its place there.
pub(super) type Member = (usize, usize);

/// The rows of one case on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) a: Vec<Member>,
    pub(super) b: Vec<Member>,
    /// Whether several rows of one run fit, where another tool does not say enough of its cases.
    pub(super) is_ambiguous: bool,
}

/// Which rows are of the same case, in the order of the rows.
pub(super) fn matched(
    sources: &[Source],
    (a, b): (&[Member], &[Member]),
    by: Option<&By>,
) -> Vec<Matched> {
    let is_foreign = a.iter().chain(b).any(|(source, _)| sources[*source].is_foreign());
    let columns: Vec<&str> = CASE_COLUMNS
        .into_iter()
        .filter(|column| by.is_none_or(|by| !by.ignores(column)))
        .filter(|column| {
            // What another tool does not tell of its cases cannot tell them apart.
            let is_told = |side: &[Member]| {
                side.iter()
                    .any(|(source, row)| !sources[*source].rows.text(*row, column).is_empty())
            };
            // Its hosts have no place among ours.
            !is_foreign || !column.ends_with("_host") && is_told(a) && is_told(b)
        })
        .collect();
    let cells = |(source, row): Member| {
        let source = &sources[source];
        columns.iter().map(move |column| cell(source, row, column, by))
    };
    let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut found: Vec<Matched> = Vec::new();
    // Rows of one run that nothing tells apart come in the same order in every run.
    let mut counts: HashMap<(usize, usize, bool), usize> = HashMap::new();
    for (side, is_a) in [(a, true), (b, false)] {
        for &member in side {
            let mut hasher = DefaultHasher::new();
            cells(member).for_each(|cell| cell.hash(&mut hasher));
            let alike = places.entry(hasher.finish()).or_default();
            let first =
                |case: &Matched| *case.a.iter().chain(&case.b).next().expect("one at least");
            let same: Vec<usize> = alike
                .iter()
                .copied()
                .filter(|at| cells(first(&found[*at])).eq(cells(member)))
                .collect();
            let count =
                counts.entry((same.first().copied().unwrap_or(found.len()), member.0, is_a));
            let count = count.or_default();
            let place = if is_foreign { 0 } else { *count };
            *count += 1;
            let at = match same.get(place) {
                Some(at) => *at,
                None => {
                    alike.push(found.len());
                    found.push(Matched::default());
                    found.len() - 1
                }
            };
            found[at].is_ambiguous |= is_foreign && *count > 1;
            if is_a { found[at].a.push(member) } else { found[at].b.push(member) }
        }
    }
    found
}

/// What a row has in a column, in words that are the same in every run.
fn cell<'a>(source: &'a Source, row: usize, column: &str, by: Option<&By>) -> Cow<'a, str> {
    let text = source.rows.text(row, column);
    match (column, by) {
        // A cluster's hosts have other names the next time.
        ("source_host" | "target_host", _) => {
            let place = source.hosts.iter().position(|host| host == text);
            place.map_or(text.into(), |place| place.to_string().into())
        }
        ("nccl_env", Some(By::NcclEnv(name))) => {
            let others = text
                .split(' ')
                .filter(|word| word.split_once('=').is_none_or(|(of, _)| of != name));
            others.collect::<Vec<&str>>().join(" ").into()
        }
        _ => text.into(),
    }
}
