//! The rows to be, and what each rank must know of them.

use std::collections::BTreeMap;

use super::{ranks::Site, steps::Step};
use crate::{
    plan::{self, BadRequest, Case, Engine, Rank, Request, TransportKind, topology::Host},
    progress::Weight,
    record::Row,
};

/// One row to be, or the rows of one case on each host.
pub(super) enum Item {
    /// It cannot be measured.
    Absent { kind: TransportKind, reason: String },
    /// A case of each host at the same time; `None`: the host has no more of them.
    Within(Vec<Option<Case>>),
    /// A case between all ranks.
    Between(Box<Case>),
}

impl Item {
    /// How many rows come of it.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Absent { .. } => 1,
            Self::Within(_) | Self::Between(_) => self.cases().count(),
        }
    }

    /// What its time depends on; `None`: it takes none.
    pub(super) fn weight(&self) -> Option<Weight> {
        let case = self.cases().max_by_key(|case| case.size)?;
        Some((case.transport, case.size))
    }

    /// Its rows as far as the plan goes.
    pub(super) fn planned(&self) -> Vec<Row> {
        match self {
            Self::Absent { kind, reason } => vec![Row::absent(0, *kind, reason)],
            Self::Within(_) | Self::Between(_) => {
                self.cases().map(|case| Row::planned(0, case)).collect()
            }
        }
    }

    /// Its cases, host by host.
    pub(super) fn all_cases(&self) -> Box<dyn Iterator<Item = Option<&Case>> + '_> {
        match self {
            Self::Absent { .. } => Box::new(std::iter::empty()),
            Self::Within(cases) => Box::new(cases.iter().map(Option::as_ref)),
            Self::Between(case) => Box::new(std::iter::once(Some(&**case))),
        }
    }

    /// Those that there are.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        self.all_cases().flatten()
    }

    /// What the first rank of host number `host` does.
    pub(super) fn step(&self, host: usize) -> Option<Step> {
        match self {
            Self::Absent { .. } => None,
            Self::Within(cases) => Some(Step::Within(cases.get(host).cloned().flatten())),
            Self::Between(case) => Some(Step::Between((**case).clone())),
        }
    }
}

/// What is left of the items when `finished` rows are there: the number of the first row of the
/// rest, the number of its first step, and the rest, which may begin with rows that are there too.
pub(super) fn left(items: Vec<Item>, finished: usize) -> (usize, u64, Vec<Item>) {
    let (mut row, mut step) = (1, 0);
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next_if(|item| row + item.rows() <= finished + 1) {
        row += item.rows();
        step += u64::from(!matches!(item, Item::Absent { .. }));
    }
    (row, step, items.collect())
}

/// How many ranks this process starts: as many as the user asks for, or as the cases name.
pub(super) fn ranks_alone(request: &Request, site: &Site) -> Result<u32, String> {
    if let Some(ranks) = request.ranks {
        return Ok(ranks);
    }
    if let Some(reason) = no_gpus(request, site) {
        return Err(reason);
    }
    let is_absent = |kind| site.absent.iter().any(|(absent, _)| *absent == kind);
    let mut kinds = request.transports.clone();
    kinds.retain(|&kind| !is_absent(kind));
    let request = Request { transports: kinds, ..request.clone() };
    let cases = plan::cases(&request, &site.host.topology).map_err(|err| err.to_string())?;
    let named = cases.iter().flat_map(Case::ends).map(|end| end.rank.0 + 1).max().unwrap_or(1);
    let of_rdma = if request.transports.contains(&TransportKind::Rdma) { 2 } else { 1 };
    Ok(named.max(of_rdma))
}

/// The rows to be, in their order.
///
/// # Errors
///
/// The request names what is not there.
pub(super) fn items(
    request: &Request,
    sites: &[Site],
    is_simulated: bool,
    is_launched: bool,
) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    for &kind in &request.transports {
        let of_kind = Request { transports: vec![kind], ..request.clone() };
        let made = match kind {
            TransportKind::Nccl | TransportKind::Rdma => between(&of_kind, sites, is_simulated),
            _ => within(&of_kind, sites, is_simulated, is_launched),
        };
        items.extend(made?);
    }
    Ok(items)
}

const NOT_SIMULATED: &str = "between processes it would be this machine's own memory and network \
                             that is measured, which is not simulated: leave out --simulate";

/// The rows of what is measured between all ranks.
fn between(request: &Request, sites: &[Site], is_simulated: bool) -> Result<Vec<Item>, String> {
    let kind = request.transports[0];
    let absent = |reason: String| vec![Item::Absent { kind, reason }];
    for site in sites {
        if let Some((_, reason)) = absence(site, kind) {
            return Ok(absent(on(site, sites, reason)));
        }
    }
    let hosts: Vec<Host> = sites.iter().map(|site| site.host.clone()).collect();
    let cases = plan::cases_between(request, &hosts).map_err(|err| err.to_string())?;
    if cases.is_empty() {
        let ranks = u32::try_from(hosts.iter().map(|host| host.ranks.len()).sum::<usize>()).ok();
        let request = Request { ranks, ..request.clone() };
        return Ok(absent(plan::why_none(kind, &request, &hosts[0].topology)));
    }
    if is_simulated && kind == TransportKind::Rdma {
        return Ok(absent(NOT_SIMULATED.to_owned()));
    }
    Ok(cases.into_iter().map(|case| Item::Between(Box::new(case))).collect())
}

/// The rows of a transport within each host.
fn within(
    request: &Request,
    sites: &[Site],
    is_simulated: bool,
    is_launched: bool,
) -> Result<Vec<Item>, String> {
    let kind = request.transports[0];
    let mut reasons: Vec<String> = Vec::new();
    let mut of_hosts = Vec::new();
    for site in sites {
        let made = within_host(request, site, is_simulated, is_launched)?;
        reasons.extend(made.reason.map(|reason| on(site, sites, &reason)));
        of_hosts.push(made.cases);
    }
    reasons.dedup();
    let absent = |reason| Item::Absent { kind, reason };
    let mut items: Vec<Item> = reasons.into_iter().map(absent).collect();
    let most = of_hosts.iter().map(Vec::len).max().unwrap_or(0);
    for number in 0..most {
        let of_host = |cases: &Vec<Case>| cases.get(number).cloned();
        items.push(Item::Within(of_hosts.iter().map(of_host).collect()));
    }
    Ok(items)
}

/// What a host has of a transport, and why not all of it.
struct OfHost {
    cases: Vec<Case>,
    reason: Option<String>,
}

fn within_host(
    request: &Request,
    site: &Site,
    is_simulated: bool,
    is_launched: bool,
) -> Result<OfHost, String> {
    let kind = request.transports[0];
    let Host { topology, ranks, .. } = &site.host;
    let none = |reason: String| Ok(OfHost { cases: Vec::new(), reason: Some(reason) });
    let absence = absence(site, kind);
    if let Some(reason) = no_gpus(request, site) {
        return Err(reason);
    }
    if let Some((_, reason)) = absence {
        return none(reason.clone());
    }
    let count = u32::try_from(ranks.len()).ok().filter(|_| is_launched).or(request.ranks);
    let request = Request { ranks: count, ..request.clone() };
    let mut cases = plan::cases(&request, topology).or_else(|err| match err {
        // Of several hosts one may have too few ranks for a pattern that others have enough for.
        BadRequest::TooFewRanks(_) if is_launched => Ok(Vec::new()),
        err => Err(err.to_string()),
    })?;
    let mut reason = None;
    if is_simulated && cases.iter().any(|case| case.engine == Engine::Cpu) {
        cases.retain(|case| case.engine != Engine::Cpu);
        reason = Some(NOT_SIMULATED.to_owned());
    } else if cases.is_empty() {
        reason = Some(plan::why_none(kind, &request, topology));
    }
    let cases = cases.into_iter().map(|case| case.on(ranks)).collect();
    Ok(OfHost { cases, reason })
}

/// Why GPUs that were named are not there, if there are none at all.
fn no_gpus(request: &Request, site: &Site) -> Option<String> {
    let is_named = request.gpus.is_some() && site.host.topology.gpus.is_empty();
    let of_gpus = |kind: &TransportKind| absence(site, *kind);
    let kinds = [TransportKind::Local, TransportKind::P2p];
    let (_, reason) = kinds.iter().find_map(of_gpus).filter(|_| is_named)?;
    Some(format!("--gpus: {reason}"))
}

fn absence(site: &Site, kind: TransportKind) -> Option<&(TransportKind, String)> {
    site.absent.iter().find(|(absent, _)| *absent == kind)
}

/// `reason`, with the host that has it where there are several.
fn on(site: &Site, sites: &[Site], reason: &str) -> String {
    if sites.len() > 1 { format!("{}: {reason}", site.host.name) } else { reason.to_owned() }
}

/// What each of `members` does, one after the other.
pub(super) fn steps(items: &[Item], hosts: &[&Host], members: &[Rank]) -> Vec<Vec<Step>> {
    let host_of: BTreeMap<Rank, usize> = (0..)
        .zip(hosts)
        .flat_map(|(number, host)| host.ranks.iter().map(move |&rank| (rank, number)))
        .collect();
    let mut all: Vec<Vec<Step>> = members.iter().map(|_| Vec::new()).collect();
    for item in items {
        let parts = match item {
            Item::Between(case) => case.parts(),
            _ => BTreeMap::new(),
        };
        for (rank, steps) in members.iter().zip(&mut all) {
            let host = host_of.get(rank).copied().unwrap_or(0);
            steps.extend(match item {
                // Rank 0 keeps the case whole.
                Item::Between(case) if members.first() == Some(rank) => {
                    Some(Step::Between((**case).clone()))
                }
                Item::Between(case) => {
                    let part = parts.get(rank).cloned();
                    Some(Step::Between(part.unwrap_or_else(|| case.clone_without_flows())))
                }
                item => item.step(host),
            });
        }
    }
    all
}

/// What `--dry-run` prints.
pub(super) fn listing(items: &[Item]) -> String {
    let lines = items.iter().flat_map(|item| match item {
        Item::Absent { kind, reason } => vec![format!("{} skipped: {reason}\n", kind.name())],
        item => item.cases().map(|case| format!("{case}\n")).collect(),
    });
    (1..).zip(lines).map(|(number, line)| format!("{number} {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::tests::machine;

    #[test]
    fn what_is_left_begins_with_the_first_item_that_lacks_a_row() {
        let cases = plan::cases(&Request::of(&[TransportKind::Shm]), &machine(&[&[0, 1]]));
        let case = || cases.as_ref().unwrap().first().cloned();
        let items = || {
            vec![
                Item::Within(vec![case(), case()]),
                Item::Absent { kind: TransportKind::P2p, reason: String::new() },
                Item::Within(vec![case(), None, case()]),
                Item::Between(Box::new(case().unwrap())),
            ]
        };
        // Rows 1 and 2 are of one step, 3 of none, 4 and 5 of the next, 6 of the last.
        let expected =
            [(1, 0, 4), (1, 0, 4), (3, 1, 3), (4, 1, 2), (4, 1, 2), (6, 2, 1), (7, 3, 0)];
        for (finished, expected) in (0..).zip(expected) {
            let (row, step, left) = left(items(), finished);
            assert_eq!((row, step, left.len()), expected, "{finished} rows");
        }
    }
}
