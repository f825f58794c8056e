//! What a transfer should reach here, and what to think of a number.
//!
//! Owns the formulas; the shares that transfers reach, with their sources, are in the catalogue.
//! Everything begins with the live machine: a rate follows from the links that are up, not from
//! the name of the machine. `docs/measurement.md`, "Expected values", has it in words.

mod collectives;
mod copies;
mod differences;
mod judgement;
mod known;
mod machine;
mod network;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, cmp::Ordering, collections::BTreeSet};

pub use differences::{Difference, Part, differences};
pub use judgement::{Judgement, Measured, Verdict, judge};
pub use known::{Known, known};
pub use machine::{Gpu, HostWay, Machine, Nic, NvLinks, Pair};

use crate::{
    plan::{
        Case, Rank, TransportKind,
        catalogue::{Attainable, Catalogue},
    },
    units::readable_gb_s,
};

/// What a transfer should reach. Rates are in GB/s, in one direction of one flow; of collectives
/// the bus bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// What most machines reach with large transfers.
    pub gb_s: f64,
    /// What a healthy one reaches at least.
    pub low: f64,
    /// What none can exceed.
    pub high: f64,
    /// How it comes about: `18 NVLinks of generation 4 x 25 GB/s x 0.83`.
    pub derivation: String,
    /// Where the shares are from.
    pub source: String,
    /// What an operation takes beside its data, in microseconds.
    pub start_us: f64,
    /// What is less here than this machine should have: the rest of a sentence.
    pub lacks: Vec<String>,
    /// What else there is to know if a number is too low: the rest of a sentence.
    pub hints: Vec<String>,
    /// Whether data of this size may come from a cache.
    pub may_be_cached: bool,
}

/// A host with the ranks on it.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// What it is.
    pub machine: &'a Machine,
    /// Who is on it.
    pub ranks: &'a [Rank],
}

/// What a library has chosen by itself, as far as its log tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen<'a> {
    /// The algorithm.
    pub algorithm: Option<&'a str>,
    /// The protocol.
    pub protocol: Option<&'a str>,
    /// The transports of its channels.
    pub transports: Option<&'a str>,
    /// Whether libfabric emulates the operation by messages.
    pub is_emulated: Option<bool>,
}

/// A raw rate, and how it comes about.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw {
    gb_s: f64,
    how: String,
    /// The catalogue's key of the share that transfers reach of it.
    share: Cow<'static, str>,
    lacks: BTreeSet<String>,
    hints: BTreeSet<String>,
}

impl Raw {
    /// The least of several; `None` where there are none.
    fn least(raws: impl Iterator<Item = Result<Self, String>>) -> Result<Option<Self>, String> {
        let raws: Vec<Self> = raws.collect::<Result<_, String>>()?;
        Ok(raws.into_iter().reduce(Self::or_less))
    }

    /// The lesser of two: what the greater lacks slows nothing.
    fn or_less(self, other: Self) -> Self {
        let hints = &self.hints | &other.hints;
        let lacks = match self.gb_s.total_cmp(&other.gb_s) {
            Ordering::Less => self.lacks.clone(),
            Ordering::Equal => &self.lacks | &other.lacks,
            Ordering::Greater => other.lacks.clone(),
        };
        let less = if other.gb_s < self.gb_s { other } else { self };
        Self { lacks, hints, ..less }
    }

    /// One of so many equal parts.
    fn shared_by(self, count: usize, what: &str) -> Self {
        if count <= 1 {
            return self;
        }
        let how = format!("{} / {count} {what}", self.how);
        Self { gb_s: self.gb_s / count as f64, how, ..self }
    }

    /// So many times as much.
    fn times(self, factor: f64, how: &str) -> Self {
        Self { gb_s: self.gb_s * factor, how: format!("{} {how}", self.how), ..self }
    }

    /// With the catalogue's key of the share that transfers reach of it.
    fn with_share(self, key: impl Into<Cow<'static, str>>) -> Self {
        Self { share: key.into(), ..self }
    }

    /// What transfers reach of it.
    fn reached(self, catalogue: &Catalogue) -> Result<Expected, String> {
        let key = &*self.share;
        let share: &Attainable = catalogue
            .attainable
            .get(key)
            .ok_or_else(|| format!("the catalogue does not say what is reached of {key}"))?;
        let sources: Vec<&str> = share.src.iter().map(|name| catalogue.words_of(name)).collect();
        Ok(Expected {
            gb_s: self.gb_s * share.usual.get(),
            low: self.gb_s * share.low.get(),
            high: self.gb_s * share.high.get(),
            derivation: format!("{} x {}", self.how, share.usual.get()),
            source: sources.join("; "),
            start_us: share.start_us.get(),
            lacks: self.lacks.into_iter().collect(),
            hints: self.hints.into_iter().collect(),
            may_be_cached: false,
        })
    }
}

/// What `case` should reach between `sites`.
pub fn expected(
    case: &Case,
    sites: &[Site<'_>],
    chosen: Chosen<'_>,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    if case.operation.is_latency_only() {
        return Err("it has a latency and no bandwidth".to_owned());
    }
    let here = || {
        let rank = case.flows.first().map(|flow| flow.source.rank);
        let site = sites.iter().find(|site| rank.is_some_and(|rank| site.ranks.contains(&rank)));
        site.map(|site| site.machine).ok_or_else(|| "the host of its ranks is not known".to_owned())
    };
    match case.transport {
        TransportKind::Local => {
            let found = copies::local(case, here()?)?.reached(catalogue)?;
            Ok(Expected { may_be_cached: copies::may_be_cached(case), ..found })
        }
        TransportKind::P2p => copies::p2p(case, here()?)?.reached(catalogue),
        TransportKind::Shm => copies::shm(case, here()?)?.reached(catalogue),
        TransportKind::Nccl => collectives::expected(case, sites, chosen, catalogue),
        TransportKind::Rdma => network::expected(case, sites, chosen)?.reached(catalogue),
    }
}

/// A rate within a sentence.
fn rate(gb_s: f64) -> String {
    if gb_s < 1.0 { readable_gb_s(gb_s) } else { format!("{gb_s:.1}") }
}
