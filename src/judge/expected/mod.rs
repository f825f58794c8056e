//! The rate that a transfer should reach on this machine, and whether a measured one does.
//!
//! Owns the formulas; the shares that transfers reach, with their sources, are in the catalogue.
//! Everything begins with the live machine: a rate follows from the links that are up, not from
//! the name of the machine. `docs/measurement.md`, "Expected values", explains them.

mod collectives;
mod copies;
mod differences;
mod judgement;
mod known;
mod machine;
mod network;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

pub use differences::{Difference, Part, differences};
pub use judgement::{Judgement, Measured, Verdict, judge};
pub use known::{Known, known};
pub use machine::{Gpu, HostWay, Machine, Nic, NvLinks, Pair};

use crate::{
    machine::tally,
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
    /// The rate that most machines reach with large transfers.
    pub gb_s: f64,
    /// The least rate of a healthy machine.
    pub low: f64,
    /// The rate that no machine can exceed.
    pub high: f64,
    /// The derivation: `18 NVLinks of generation 4 x 25 GB/s x 0.83`.
    pub derivation: String,
    /// The source of the shares.
    pub source: String,
    /// The time that an operation takes beside its data, in microseconds.
    pub start_us: f64,
    /// What this machine has less of than it should: a clause each.
    pub lacks: Vec<String>,
    /// What else may explain a number that is too low: a clause each.
    pub hints: Vec<String>,
    /// Whether data of this size may come from a cache.
    pub may_be_cached: bool,
}

/// A host with the ranks on it.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The host.
    pub machine: &'a Machine,
    /// The ranks on it.
    pub ranks: &'a [Rank],
}

/// What a library has chosen by itself, as far as its log shows it.
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

/// A raw rate and its derivation.
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

    /// The lesser of two. What the greater lacks has no effect.
    fn or_less(self, other: Self) -> Self {
        let order = self.gb_s.total_cmp(&other.gb_s);
        let (mut less, more) = if order.is_gt() { (other, self) } else { (self, other) };
        if order.is_eq() {
            less.lacks.extend(more.lacks);
        }
        less.hints.extend(more.hints);
        less
    }

    /// One of `count` equal parts.
    fn shared_by(self, count: usize, what: &str) -> Self {
        if count <= 1 {
            return self;
        }
        let how = format!("{} / {count} {what}", self.how);
        Self { gb_s: self.gb_s / count as f64, how, ..self }
    }

    /// Multiplied by `factor`; `how` is appended to the derivation.
    fn times(self, factor: f64, how: &str) -> Self {
        Self { gb_s: self.gb_s * factor, how: format!("{} {how}", self.how), ..self }
    }

    /// With the catalogue's key of the share that transfers reach of it.
    fn with_share(self, key: impl Into<Cow<'static, str>>) -> Self {
        Self { share: key.into(), ..self }
    }

    /// The rate that transfers reach.
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

/// The number of flows through each of several places.
struct Load<K>(BTreeMap<K, usize>);

impl<K: Ord> Load<K> {
    fn of(places: impl IntoIterator<Item = K>) -> Self {
        Self(tally(places))
    }

    fn flows(&self, place: &K) -> usize {
        self.0.get(place).copied().unwrap_or(1)
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
        TransportKind::P2p if case.operation.is_switched() => {
            copies::switched(case, sites)?.reached(catalogue)
        }
        TransportKind::P2p => match copies::between_hosts(case, sites)? {
            Some(raw) => raw.reached(catalogue),
            None => copies::p2p(case, here()?)?.reached(catalogue),
        },
        TransportKind::Shm => copies::shm(case, here()?)?.reached(catalogue),
        TransportKind::Nccl => collectives::expected(case, sites, chosen, catalogue),
        TransportKind::Rdma => network::expected(case, sites, chosen)?.reached(catalogue),
    }
}

/// A rate, for a sentence.
fn rate(gb_s: f64) -> String {
    if gb_s < 1.0 { readable_gb_s(gb_s) } else { format!("{gb_s:.1}") }
}
