//! Matches the rows of two sides that belong to the same case.

use std::{borrow::Cow, collections::HashMap, str::FromStr};

use indexmap::{IndexMap, IndexSet};

use super::Source;
use crate::{
    plan::TransportKind,
    record::{COLUMNS, Cell, Column, Row},
};

/// How the parts of a run that are compared differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The issuer of a copy: reads against writes.
    Issuer,
    /// The engine that moves the bytes.
    Engine,
    /// The host of both ends.
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
    /// The value of a row; `None` if the row takes no part in the comparison.
    pub(super) fn value<'a>(&self, row: &'a Row) -> Option<&'a str> {
        match self {
            Self::Issuer => row.issuer.map(Into::into),
            Self::Engine => row.engine.map(Into::into),
            Self::Host => row.source_host.as_deref().filter(|_| row.source_host == row.target_host),
            Self::NcclEnv(_) if row.transport != TransportKind::Nccl => None,
            Self::NcclEnv(name) => {
                let set = row.nccl_env.as_deref().unwrap_or_default().split(' ');
                let mut set = set.filter_map(|word| word.split_once('='));
                let value = set.find(|(of, _)| of == name).map_or("not set", |(_, value)| value);
                Some(value).filter(|value| !value.is_empty())
            }
        }
    }

    /// The columns that differ between the parts of a run that are compared.
    pub(super) const fn columns(&self) -> &'static [&'static str] {
        match self {
            Self::Issuer => &["issuer"],
            Self::Engine => &["engine"],
            // Ranks are counted over all hosts.
            Self::Host => &["source_host", "target_host", "source_rank", "target_rank"],
            // The other variables must be the same.
            Self::NcclEnv(_) => &[],
        }
    }
}

/// A row: the index of its source, and its own there.
pub(super) type Member = (usize, usize);

/// The rows of one case on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) a: Vec<Member>,
    pub(super) b: Vec<Member>,
    /// Whether several rows of one run match, because another tool says too little of its cases.
    pub(super) is_ambiguous: bool,
}

/// The cases, in the order of their first rows.
pub(super) fn matched(
    sources: &[Source],
    a: &[Member],
    b: &[Member],
    by: Option<&By>,
) -> Vec<Matched> {
    let is_foreign = a.iter().chain(b).any(|(source, _)| sources[*source].is_foreign);
    let columns = telling(sources, a, b, by, is_foreign);
    let mut cases: IndexSet<Vec<Cow<'_, str>>> = IndexSet::new();
    // Rows of one run that no column distinguishes come in the same order in every run: the second
    // one belongs to the second one of another run.
    let mut counts: HashMap<(usize, usize, bool), usize> = HashMap::new();
    let mut found: IndexMap<(usize, usize), Matched> = IndexMap::new();
    for (side, is_a) in [(a, true), (b, false)] {
        for &(of, row) in side {
            let source = &sources[of];
            let cells = columns.iter().map(|column| cell(source, &source.rows[row], column, by));
            let case = cases.insert_full(cells.collect()).0;
            let count = counts.entry((case, of, is_a)).or_default();
            let matched = found.entry((case, if is_foreign { 0 } else { *count })).or_default();
            matched.is_ambiguous |= is_foreign && *count > 0;
            *count += 1;
            if is_a { matched.a.push((of, row)) } else { matched.b.push((of, row)) }
        }
    }
    found.into_values().collect()
}

/// The columns that distinguish cases.
fn telling(
    sources: &[Source],
    a: &[Member],
    b: &[Member],
    by: Option<&By>,
    is_foreign: bool,
) -> Vec<&'static Column> {
    let is_host = |column: &Column| column.name.ends_with("_host");
    // A column that another tool leaves empty cannot distinguish cases.
    let is_told = |column: &Column, side: &[Member]| {
        side.iter().any(|(of, row)| (column.cell)(&sources[*of].rows[*row]) != Cell::Empty)
    };
    // Nor can a column that is the same in all rows.
    let is_one = |column: &Column| {
        let mut cells = sources.iter().flat_map(|source| &source.rows).map(column.cell);
        let first = cells.next();
        cells.all(|cell| Some(cell) == first)
    };
    let columns = COLUMNS.iter().filter(|column| {
        column.role.tells_cases()
            && by.is_none_or(|by| !by.columns().contains(&column.name))
            && (is_host(column) || !is_one(column))
            // The hosts of another tool have other names.
            && (!is_foreign || !is_host(column) && is_told(column, a) && is_told(column, b))
    });
    columns.collect()
}

/// The cell of a row in words that are the same in every run.
fn cell<'a>(source: &Source, row: &'a Row, column: &Column, by: Option<&By>) -> Cow<'a, str> {
    match ((column.cell)(row), column.name, by) {
        // The hosts of a cluster may have other names in the next run.
        (Cell::Text(text), "source_host" | "target_host", _) => {
            let place = source.hosts.iter().position(|host| host == text);
            place.map_or(text.into(), |place| place.to_string().into())
        }
        (Cell::Text(text), "nccl_env", Some(By::NcclEnv(name))) => {
            let others = text
                .split(' ')
                .filter(|word| word.split_once('=').is_none_or(|(of, _)| of != name));
            others.collect::<Vec<&str>>().join(" ").into()
        }
        (Cell::Text(text), ..) => text.into(),
        (cell, ..) => cell.to_string().into(),
    }
}
