//! The steps of a run, one after the other, and what each rank must know of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::sites::Site;
use crate::{
    plan::{
        self, BadRequest, Case, Effort, Endpoint, FabricRequest, Flow, Gpu, Memory, Operation,
        Pattern, Rank, Request, TransportKind, topology::Host,
    },
    record::{Naming, Row},
    units::Bytes,
};

/// Cases that run at the same time. Each case is a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// A transport that cannot be measured, on host number `host` or on none: a row that says why.
    Absent { transport: TransportKind, reason: String, host: Option<usize> },
    /// A case on each host; `None`: the host has no more. Other ranks than 0 know their own host's.
    OnEachHost(Vec<Option<Case>>),
    /// A case that all ranks of all hosts measure together. Other ranks than 0 know their own part.
    AcrossHosts(Box<Case>),
    /// Cases that are measured at the same time, each by ranks of its own, in the order of their
    /// roots. The other ranks wait. Other ranks than 0 know their own part.
    Apart(Vec<Part>),
}

/// A case that some ranks measure, wherever they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) case: Case,
    /// In the order of their numbers; the first is their root.
    pub(super) ranks: Vec<Rank>,
}

/// What a rank must know of the run: its part of the steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    /// The number of the first step, from which the seed of its data derives.
    pub(super) first: u64,
    pub(super) effort: Effort,
    pub(super) seed: u64,
}

impl Part {
    /// What each of its ranks must know of it: of RDMA its own flows, but for the root.
    fn of_ranks(&self) -> Vec<(Rank, Self)> {
        let mut parts = match self.case.fabric {
            Some(_) => self.case.parts(),
            None => BTreeMap::new(),
        };
        parts.retain(|rank, _| self.ranks.first() != Some(rank));
        let of_rank = |&rank: &Rank| {
            let case = parts.get(&rank).unwrap_or(&self.case).clone();
            (rank, Self { case, ranks: self.ranks.clone() })
        };
        self.ranks.iter().map(of_rank).collect()
    }
}

impl Step {
    /// The number of its rows.
    pub(super) fn rows(&self) -> usize {
        self.cases().count().max(1)
    }

    /// Its rows, with the columns that are known from the plan.
    pub(super) fn planned(&self) -> Vec<Row> {
        match self {
            Self::Absent { transport, reason, .. } => vec![Row::absent(0, *transport, reason)],
            Self::OnEachHost(_) | Self::AcrossHosts(_) | Self::Apart(_) => {
                self.cases().map(|case| Row::planned(0, case)).collect()
            }
        }
    }

    /// Its cases, in the order of their rows.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        let (of_hosts, of_parts, of_all) = match self {
            Self::Absent { .. } => (&[][..], &[][..], None),
            Self::OnEachHost(cases) => (&cases[..], &[][..], None),
            Self::Apart(parts) => (&[][..], &parts[..], None),
            Self::AcrossHosts(case) => (&[][..], &[][..], Some(&**case)),
        };
        of_hosts.iter().flatten().chain(of_parts.iter().map(|part| &part.case)).chain(of_all)
    }

    /// Its rows: the number of the host that has it by itself, and the case.
    pub(super) fn owned(&self) -> Vec<(Option<usize>, Option<&Case>)> {
        match self {
            Self::Absent { host, .. } => vec![(*host, None)],
            Self::OnEachHost(cases) => {
                let cases = cases.iter().enumerate();
                cases.filter_map(|(host, case)| Some((Some(host), Some(case.as_ref()?)))).collect()
            }
            Self::AcrossHosts(_) | Self::Apart(_) => {
                self.cases().map(|case| (None, Some(case))).collect()
            }
        }
    }

    /// Each of its rows as a step of its own, in their order.
    pub(super) fn one_by_one(&self) -> Vec<Self> {
        match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => vec![self.clone()],
            Self::Apart(parts) => {
                parts.iter().map(|part| Self::Apart(vec![part.clone()])).collect()
            }
            Self::OnEachHost(cases) => {
                let only = |own: usize| {
                    let of_host =
                        |(host, case): (usize, &Option<Case>)| case.clone().filter(|_| host == own);
                    Self::OnEachHost(cases.iter().enumerate().map(of_host).collect())
                };
                (0..cases.len()).filter(|&host| cases[host].is_some()).map(only).collect()
            }
        }
    }

    /// How many places there are for cases that are measured at the same time.
    pub(super) fn places(&self) -> usize {
        match self {
            Self::Absent { .. } => 0,
            Self::OnEachHost(cases) => cases.len(),
            Self::Apart(parts) => parts.len(),
            Self::AcrossHosts(_) => 1,
        }
    }

    /// The case number `place` of those that are measured at the same time: of a host, or of a part.
    pub(super) fn case(&self, place: usize) -> Option<&Case> {
        match self {
            Self::Absent { .. } => None,
            Self::OnEachHost(cases) => cases.get(place)?.as_ref(),
            Self::Apart(parts) => parts.get(place).map(|part| &part.case),
            Self::AcrossHosts(case) => Some(case),
        }
    }

    /// The place of the case that `rank` measures, on one of `hosts`.
    pub(super) fn place(&self, rank: Rank, hosts: &[Vec<Rank>]) -> usize {
        let place = match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => None,
            Self::OnEachHost(_) => hosts.iter().position(|host| host.contains(&rank)),
            Self::Apart(parts) => parts.iter().position(|part| part.ranks.contains(&rank)),
        };
        place.unwrap_or_default()
    }

    /// The ranks that measure the case number `place`, on one of `hosts`; none: all.
    pub(super) fn ranks<'a>(&'a self, place: usize, hosts: &'a [Vec<Rank>]) -> &'a [Rank] {
        let ranks = match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => None,
            Self::OnEachHost(_) => hosts.get(place),
            Self::Apart(parts) => parts.get(place).map(|part| &part.ranks),
        };
        ranks.map_or(&[], Vec::as_slice)
    }

    /// The case of `rank`, which is on host number `host`.
    pub(super) fn case_of(&self, rank: Rank, host: usize) -> Option<&Case> {
        match self {
            Self::Apart(parts) => {
                parts.iter().find(|part| part.ranks.contains(&rank)).map(|part| &part.case)
            }
            Self::Absent { .. } | Self::OnEachHost(_) | Self::AcrossHosts(_) => self.case(host),
        }
    }
}

/// What is left of a run that has some rows already.
pub(super) struct Rest<'a> {
    /// The steps that are left; the first may have rows already.
    pub(super) steps: &'a [Step],
    /// The number of its first row.
    pub(super) row: usize,
    /// How many steps have been measured.
    pub(super) measured: u64,
}

impl<'a> Rest<'a> {
    /// What is left of `steps` after `finished` rows.
    pub(super) fn of(steps: &'a [Step], finished: usize) -> Self {
        let mut rest = Self { steps, row: 1, measured: 0 };
        while let [step, others @ ..] = rest.steps
            && rest.row + step.rows() <= finished + 1
        {
            rest.row += step.rows();
            rest.measured += u64::from(!matches!(step, Step::Absent { .. }));
            rest.steps = others;
        }
        rest
    }
}

/// The steps of a run, in the order of their rows. If this process starts the ranks, `--ranks` or
/// the cases decide how many, and `sites` is updated.
pub(super) fn plan(
    request: &Request,
    sites: &mut [Site],
    is_launched: bool,
) -> Result<Vec<Step>, String> {
    let is_simulated = sites[0].simulation.is_some();
    let mut planner = Planner { request, is_simulated, is_launched, ranks: 1 };
    if !is_launched && request.ranks.is_none() {
        check_named_gpus(request, &sites[0])?;
        plan::check_gpus(request, &sites[0].host.topology)?;
    }
    let mut steps = Vec::new();
    let transports = || request.transports.iter().copied();
    for transport in transports().filter(|transport| !transport.is_across_hosts()) {
        steps.extend(planner.on_each_host(transport, sites)?);
        if transport == TransportKind::P2p && !request.is_check {
            steps.extend(planner.within_domains(sites)?);
        }
    }
    if !is_launched {
        let is_absent = sites[0].absent.contains_key(&TransportKind::Rdma);
        let has_rdma = request.transports.contains(&TransportKind::Rdma) && !request.is_check;
        if has_rdma && !is_absent {
            planner.ranks = planner.ranks.max(2);
        }
        sites[0].host.ranks = (0..request.ranks.unwrap_or(planner.ranks)).map(Rank).collect();
    }
    for transport in transports().filter(|transport| transport.is_across_hosts()) {
        steps.extend(match (request.is_check, transport) {
            (false, _) => planner.across_hosts(transport, sites)?,
            (true, TransportKind::Rdma) => planner.in_pairs(transport, sites)?,
            (true, _) => planner.by_host(transport, sites)?,
        });
    }
    match (&request.transports[..], &steps[..]) {
        // A transport that is requested by name must have a row that can be measured.
        ([_], [Step::Absent { reason, .. }]) => Err(format!("nothing can be measured: {reason}")),
        _ => Ok(steps),
    }
}

const NOT_SIMULATED: &str = "between processes it would be this machine's own memory that is \
                             measured, which is not simulated: leave out --simulate";

/// Data of a collective that a host measures by itself: its start is a small part of its time even
/// among the fastest GPUs.
const SIZE_BY_HOST: Bytes = Bytes::mib(256);

/// Data of an operation between two hosts: with a window of them in flight the start is hidden.
const SIZE_IN_PAIRS: Bytes = Bytes::mib(8);

/// Plans transport by transport.
struct Planner<'a> {
    request: &'a Request,
    is_simulated: bool,
    is_launched: bool,
    /// The number of ranks that cases within a host need, including cases that cannot be simulated.
    ranks: u32,
}

impl Planner<'_> {
    /// The request for one transport and this number of ranks.
    fn request_of(&self, transport: TransportKind, ranks: Option<u32>) -> Request {
        Request { transports: vec![transport], ranks, ..self.request.clone() }
    }

    /// The steps of a transport that all hosts measure together.
    fn across_hosts(&self, transport: TransportKind, sites: &[Site]) -> Result<Vec<Step>, String> {
        let (cases, reason) = self.of_all(transport, sites)?;
        let absent = reason.map(|reason| Step::Absent { transport, reason, host: None });
        let cases = cases.into_iter().map(|case| Step::AcrossHosts(Box::new(case)));
        Ok(absent.into_iter().chain(cases).collect())
    }

    /// The same, where each host measures by itself.
    fn by_host(&self, transport: TransportKind, sites: &[Site]) -> Result<Vec<Step>, String> {
        let request = Request { sizes: Some(vec![SIZE_BY_HOST]), ..self.request.clone() };
        let planner = Planner { request: &request, ..*self };
        let of_host = |site: &Site| planner.of_all(transport, std::slice::from_ref(site));
        side_by_side(transport, sites, of_host)
    }

    /// The cases of a transport that these hosts measure together, or why there are none.
    fn of_all(&self, transport: TransportKind, sites: &[Site]) -> Result<Cases, String> {
        for site in sites {
            if let Some(reason) = site.absent.get(&transport) {
                return Ok((Vec::new(), Some(on(site, sites, reason))));
            }
        }
        let hosts = hosts_of(sites);
        let ranks = hosts.iter().map(|host| host.ranks.len()).sum::<usize>();
        let request = self.request_of(transport, u32::try_from(ranks).ok());
        let cases = plan::cases_across_hosts(&request, &hosts)?;
        let why_none = || plan::why_none(transport, &request, &hosts[0].topology);
        let reason = cases.is_empty().then(why_none);
        Ok((cases, reason))
    }

    /// Pairs of hosts, disjoint ones at the same time: every GPU to its partner, by write and by
    /// read, in both directions.
    fn in_pairs(&self, transport: TransportKind, sites: &[Site]) -> Result<Vec<Step>, String> {
        let (mut steps, mut able) = (Vec::new(), Vec::new());
        for (number, site) in sites.iter().enumerate().filter(|_| sites.len() > 1) {
            match site.absent.get(&transport) {
                Some(reason) => {
                    let reason = on(site, sites, reason);
                    steps.push(Step::Absent { transport, reason, host: Some(number) });
                }
                None => able.push(&site.host),
            }
        }
        for round in plan::rounds(able.len()) {
            let mut cases = Vec::new();
            for pair in round {
                cases.extend(self.of_pair(transport, pair.map(|number| able[number].clone()))?);
            }
            steps.extend(at_once(cases));
        }
        Ok(steps)
    }

    /// The cases of two hosts. The ranks of a host take its GPUs in turn.
    fn of_pair(&self, transport: TransportKind, pair: [Host; 2]) -> Result<Vec<Case>, String> {
        let mut gpus: Vec<Gpu> = pair[0].topology.gpus.iter().map(|node| node.gpu).collect();
        gpus.retain(|gpu| self.request.gpus.as_ref().is_none_or(|named| named.contains(gpu)));
        let ranks = pair.iter().map(|host| host.ranks.len()).min().unwrap_or(1).max(1);
        let memory = if gpus.is_empty() { Memory::Host } else { Memory::Gpu };
        let turns: Vec<Option<Vec<Gpu>>> = match gpus.is_empty() {
            true => vec![None],
            false => gpus.chunks(ranks).map(|turn| Some(turn.to_vec())).collect(),
        };
        let mut cases = Vec::new();
        for gpus in turns {
            let request = Request {
                transports: vec![transport],
                operations: vec![Operation::Write, Operation::Read],
                patterns: vec![Pattern::OneWay],
                sizes: Some(vec![SIZE_IN_PAIRS]),
                fabric: FabricRequest { memory: vec![memory], ..self.request.fabric.clone() },
                gpus,
                ..self.request.clone()
            };
            let place = |end: &Endpoint| {
                let of_host = |host: &Host| host.ranks.iter().position(|rank| *rank == end.rank);
                pair.iter().find_map(of_host)
            };
            // A turn may have fewer GPUs than there are ranks.
            let most = request.gpus.as_ref().map_or(ranks, Vec::len);
            let is_of_partners = |case: &Case| {
                case.flows.iter().all(|Flow { source, target }| {
                    place(source) == place(target)
                        && place(source).is_some_and(|place| place < most)
                })
            };
            cases.extend(
                plan::cases_across_hosts(&request, &pair)?.into_iter().filter(is_of_partners),
            );
        }
        Ok(cases)
    }

    /// The steps of copies between GPUs of one NVLink domain in several hosts.
    fn within_domains(&self, sites: &[Site]) -> Result<Vec<Step>, String> {
        let transport = TransportKind::P2p;
        let hosts = hosts_of(sites);
        let (_, reasons) = plan::nvlink_domains(&hosts);
        let absent = |reason| Step::Absent { transport, reason, host: None };
        let mut steps: Vec<Step> = reasons.into_iter().map(absent).collect();
        let cases = plan::cases_across_hosts(&self.request_of(transport, None), &hosts)?;
        let step = |case: Case| {
            let mut ranks = case.members();
            // The first rank of a host reads its counters.
            let with_a_part =
                hosts.iter().filter(|host| host.ranks.iter().any(|rank| ranks.contains(rank)));
            let first: Vec<Rank> =
                with_a_part.filter_map(|host| host.ranks.first().copied()).collect();
            ranks.extend(first);
            ranks.sort_unstable();
            ranks.dedup();
            Step::Apart(vec![Part { case, ranks }])
        };
        steps.extend(cases.into_iter().map(step));
        Ok(steps)
    }

    /// The steps of a transport that each host measures by itself.
    fn on_each_host(
        &mut self,
        transport: TransportKind,
        sites: &[Site],
    ) -> Result<Vec<Step>, String> {
        let all = hosts_of(sites);
        // What hosts of a domain do together is no part of a check.
        let domains = match transport {
            TransportKind::P2p if !self.request.is_check => plan::nvlink_domains(&all).0,
            TransportKind::Local
            | TransportKind::P2p
            | TransportKind::Shm
            | TransportKind::Nccl
            | TransportKind::Rdma => Vec::new(),
        };
        side_by_side(transport, sites, |site| {
            let (mut cases, mut reason) = self.on_host(transport, site)?;
            if domains.iter().flatten().any(|host| host.ranks == site.host.ranks) {
                cases.retain(|case| !plan::is_of_domain(case));
                reason = reason.filter(|_| !cases.is_empty());
            }
            Ok((cases, reason))
        })
    }

    /// The cases of one host, and why there are none or not all of them.
    fn on_host(&mut self, transport: TransportKind, site: &Site) -> Result<Cases, String> {
        let Host { topology, ranks, .. } = &site.host;
        check_named_gpus(self.request, site)?;
        if let Some(reason) = site.absent.get(&transport) {
            return Ok((Vec::new(), Some(reason.clone())));
        }
        let count = u32::try_from(ranks.len()).ok().filter(|_| self.is_launched);
        let ranks_here = count.or(self.request.ranks);
        let request =
            Request { transports: vec![transport], ranks: ranks_here, ..self.request.clone() };
        let mut cases = plan::cases(&request, topology).or_else(|err| match err {
            // One host may have too few ranks for a pattern that others have enough for.
            BadRequest::TooFewRanks(_) if self.is_launched => Ok(Vec::new()),
            err => Err(err.to_string()),
        })?;
        let numbers = cases.iter().flat_map(Case::ends).map(|end| end.rank.0 + 1);
        self.ranks = numbers.fold(self.ranks, u32::max);
        let mut reason = None;
        if self.is_simulated && cases.iter().any(|case| !case.engine.is_of_gpu()) {
            cases.retain(|case| case.engine.is_of_gpu());
            reason = Some(NOT_SIMULATED.to_owned());
        } else if cases.is_empty() {
            reason = Some(plan::why_none(transport, &request, topology));
        }
        if self.is_launched {
            cases = cases.into_iter().map(|case| case.on(ranks)).collect();
        }
        Ok((cases, reason))
    }
}

/// Cases, and why there are none or not all of them.
type Cases = (Vec<Case>, Option<String>);

/// Steps in which the hosts measure the cases `of_host` at the same time.
fn side_by_side(
    transport: TransportKind,
    sites: &[Site],
    mut of_host: impl FnMut(&Site) -> Result<Cases, String>,
) -> Result<Vec<Step>, String> {
    let (mut steps, mut hosts) = (Vec::new(), Vec::new());
    for (number, site) in sites.iter().enumerate() {
        let (cases, reason) = of_host(site)?;
        hosts.push(cases.into_iter());
        let host = Some(number);
        steps.extend(reason.map(|reason| {
            let reason = on(site, sites, &reason);
            Step::Absent { transport, reason, host }
        }));
    }
    let most = hosts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let mut next = || hosts.iter_mut().map(Iterator::next).collect();
    steps.extend((0..most).map(|_| Step::OnEachHost(next())));
    Ok(steps)
}

/// Cases that are alike, at the same time as far as no rank has two of them.
fn at_once(cases: Vec<Case>) -> Vec<Step> {
    let mut steps: Vec<Vec<Part>> = Vec::new();
    for case in cases {
        let ranks = case.members();
        let is_free = |parts: &&mut Vec<Part>| {
            parts.iter().all(|part| {
                part.case.operation == case.operation
                    && !part.ranks.iter().any(|rank| ranks.contains(rank))
            })
        };
        match steps.iter_mut().find(is_free) {
            Some(parts) => parts.push(Part { case, ranks }),
            None => steps.push(vec![Part { case, ranks }]),
        }
    }
    for parts in &mut steps {
        parts.sort_by_key(|part| part.ranks.first().copied());
    }
    steps.into_iter().map(Step::Apart).collect()
}

fn hosts_of(sites: &[Site]) -> Vec<Host> {
    sites.iter().map(|site| site.host.clone()).collect()
}

/// Refuses named GPUs on a host that has none at all, for the reason that it has none.
fn check_named_gpus(request: &Request, site: &Site) -> Result<(), String> {
    let is_named = request.gpus.is_some() && site.host.topology.gpus.is_empty();
    let kinds = [TransportKind::Local, TransportKind::P2p];
    match kinds.iter().find_map(|kind| site.absent.get(kind)).filter(|_| is_named) {
        Some(reason) => Err(format!("--gpus: {reason}")),
        None => Ok(()),
    }
}

/// `reason`, with the host that has it where there are several.
fn on(site: &Site, sites: &[Site], reason: &str) -> String {
    if sites.len() > 1 { format!("{}: {reason}", site.host.name) } else { reason.to_owned() }
}

/// The steps as each of `members` must know them.
pub(super) fn parts(steps: &[Step], hosts: &[Host], members: &[Rank]) -> Vec<Vec<Step>> {
    let host_of: BTreeMap<Rank, usize> = (0..)
        .zip(hosts)
        .flat_map(|(number, host)| host.ranks.iter().map(move |&rank| (rank, number)))
        .collect();
    let mut all: Vec<Vec<Step>> = vec![Vec::new(); members.len()];
    for step in steps {
        match step {
            Step::Absent { .. } => {}
            Step::OnEachHost(cases) => {
                for (rank, own) in members.iter().zip(&mut all) {
                    let host = host_of.get(rank).copied().unwrap_or(0);
                    own.push(Step::OnEachHost(vec![cases.get(host).cloned().flatten()]));
                }
            }
            Step::Apart(parts) => {
                let of_rank: HashMap<Rank, Part> = parts.iter().flat_map(Part::of_ranks).collect();
                for (rank, own) in members.iter().zip(&mut all) {
                    own.push(Step::Apart(of_rank.get(rank).cloned().into_iter().collect()));
                }
            }
            Step::AcrossHosts(case) => {
                let (mut parts, bare) = (case.parts(), case.without_flows());
                for (rank, own) in members.iter().zip(&mut all) {
                    let part = parts.remove(rank).unwrap_or_else(|| bare.clone());
                    own.push(Step::AcrossHosts(Box::new(part)));
                }
            }
        }
    }
    all
}

/// The GPUs that `rank`, on host number `host`, uses in `steps`, by transport.
pub(super) fn gpus(
    steps: &[Step],
    host: usize,
    rank: Rank,
) -> HashMap<TransportKind, BTreeSet<Gpu>> {
    let mut used: HashMap<TransportKind, BTreeSet<Gpu>> = HashMap::new();
    for case in steps.iter().filter_map(|step| step.case_of(rank, host)) {
        let own = case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu());
        used.entry(case.transport).or_default().extend(own);
    }
    used
}

/// What `--dry-run` prints.
pub(super) fn listing(steps: &[Step]) -> String {
    let listed = |row: &Row| row.title(&Naming::default()) + "\n";
    let lines = steps.iter().flat_map(|step| match step {
        Step::Absent { transport, reason, .. } => vec![format!("{transport} skipped: {reason}\n")],
        Step::OnEachHost(_) | Step::AcrossHosts(_) | Step::Apart(_) => {
            step.planned().iter().map(listed).collect()
        }
    });
    (1..).zip(lines).map(|(number, line)| format!("{number} {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::tests::machine;

    #[test]
    fn what_is_left_begins_with_the_first_step_that_lacks_a_row() {
        let cases = plan::cases(&Request::of(&[TransportKind::Shm]), &machine(&[&[0, 1]]));
        let case = || cases.as_ref().unwrap().first().cloned();
        let steps = [
            Step::OnEachHost(vec![case(), case()]),
            Step::Absent { transport: TransportKind::P2p, reason: String::new(), host: None },
            Step::OnEachHost(vec![case(), None, case()]),
            Step::AcrossHosts(Box::new(case().unwrap())),
        ];
        // Rows 1 and 2 are of one step, 3 of none, 4 and 5 of the next, 6 of the last.
        let expected =
            [(1, 0, 4), (1, 0, 4), (3, 1, 3), (4, 1, 2), (4, 1, 2), (6, 2, 1), (7, 3, 0)];
        for (finished, expected) in (0..).zip(expected) {
            let Rest { row, measured, steps: left } = Rest::of(&steps, finished);
            assert_eq!((row, measured, left.len()), expected, "{finished} rows");
        }
    }
}
