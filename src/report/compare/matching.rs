//! Which rows of two sides are of the same case.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    str::FromStr,
};

use super::Source;
use crate::record::{CASE_COLUMNS, Texts};

/// What is asked of a case beside that.
const RESULT: [&str; 10] = [
    "case",
    "status",
    "reason",
    "simulated",
    "bandwidth_gb_s",
    "bandwidth_gb_s_low",
    "bandwidth_gb_s_high",
    "bandwidth_samples",
    "latency_ns_p50",
    "latency_samples",
];

/// Whether a comparison asks for a column.
pub fn is_wanted(column: &str) -> bool {
    CASE_COLUMNS.contains(&column) || RESULT.contains(&column)
}

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
    let is_foreign = a.iter().chain(b).any(|member| source(sources, *member).is_foreign());
    let columns = telling(sources, (a, b), by, is_foreign);
    let cells = |member: Member| {
        let (source, row) = (source(sources, member), member.1);
        let texts = &columns[member.0];
        texts.iter().map(move |(column, texts)| cell(source, texts.text(row), column, by))
    };
    let mut found: Vec<Matched> = Vec::new();
    // Of those with equal cells the first, by the hash of the cells, or the next number that is
    // free.
    let mut firsts: HashMap<u64, usize> = HashMap::new();
    // Rows of one run that nothing tells apart come in the same order in every run: how many there
    // were of a run, on a side, and where the second and further ones are.
    let mut counts: Vec<((usize, bool), usize)> = Vec::new();
    let mut further: HashMap<(usize, usize), usize> = HashMap::new();
    for (side, is_a) in [(a, true), (b, false)] {
        for &member in side {
            let mut hasher = DefaultHasher::new();
            cells(member).for_each(|cell| cell.hash(&mut hasher));
            let mut hash = hasher.finish();
            let first = loop {
                let first = *firsts.entry(hash).or_insert(found.len());
                let Some(known) = found.get(first) else { break first };
                let known = *known.a.iter().chain(&known.b).next().expect("one at least");
                if cells(known).eq(cells(member)) {
                    break first;
                }
                hash = hash.wrapping_add(1);
            };
            if first == found.len() {
                found.push(Matched::default());
                counts.resize(found.len(), ((usize::MAX, false), 0));
            }
            let (of, count) = &mut counts[first];
            if *of != (member.0, is_a) {
                (*of, *count) = ((member.0, is_a), 0);
            }
            let at = match *count {
                0 => first,
                _ if is_foreign => first,
                count => *further.entry((first, count)).or_insert(found.len()),
            };
            *count += 1;
            let is_ambiguous = is_foreign && *count > 1;
            if at == found.len() {
                found.push(Matched::default());
                counts.resize(found.len(), ((usize::MAX, false), 0));
            }
            found[at].is_ambiguous |= is_ambiguous;
            if is_a { found[at].a.push(member) } else { found[at].b.push(member) }
        }
    }
    found
}

fn source(sources: &[Source], member: Member) -> &Source {
    &sources[member.0]
}

/// The columns that tell cases apart, as each source has them.
fn telling<'a>(
    sources: &'a [Source],
    (a, b): (&[Member], &[Member]),
    by: Option<&By>,
    is_foreign: bool,
) -> Vec<Vec<(&'static str, Texts<'a>)>> {
    let is_host = |column: &str| column.ends_with("_host");
    // What another tool does not tell of its cases cannot tell them apart.
    let is_told = |column: &str, side: &[Member]| {
        let mut texts =
            side.iter().map(|member| source(sources, *member).rows.text(member.1, column));
        texts.any(|text| !text.is_empty())
    };
    // Nor what is the same everywhere.
    let is_one = |column: &str| {
        let mut texts = sources.iter().map(|source| source.rows.texts(column).only());
        let first = texts.next().flatten();
        first.is_some() && texts.all(|text| text == first)
    };
    let columns = CASE_COLUMNS.into_iter().filter(|column| {
        by.is_none_or(|by| !by.ignores(column))
            && (is_host(column) || !is_one(column))
            // Hosts of another tool have no place among ours.
            && (!is_foreign || !is_host(column) && is_told(column, a) && is_told(column, b))
    });
    let columns: Vec<&str> = columns.collect();
    let of = |source: &'a Source| {
        columns.iter().map(|column| (*column, source.rows.texts(column))).collect()
    };
    sources.iter().map(of).collect()
}

/// What a row has in a column, in words that are the same in every run.
fn cell<'a>(source: &'a Source, text: &'a str, column: &str, by: Option<&By>) -> Cow<'a, str> {
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
