//! The steps of a run, one after the other, and what each rank must know of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::sites::Site;
use crate::{
    plan::{self, BadRequest, Case, Effort, Gpu, Rank, Request, TransportKind, topology::Host},
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
    /// A case that some ranks of several hosts measure, of whom the first is their root. The others
    /// know of none.
    Among { case: Box<Case>, ranks: Vec<Rank> },
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

impl Step {
    /// The number of its rows.
    pub(super) fn rows(&self) -> usize {
        self.cases().count().max(1)
    }

    /// Its rows, with the columns that are known from the plan.
    pub(super) fn planned(&self) -> Vec<Row> {
        match self {
            Self::Absent { transport, reason, .. } => vec![Row::absent(0, *transport, reason)],
            Self::OnEachHost(_) | Self::AcrossHosts(_) | Self::Among { .. } => {
                self.cases().map(|case| Row::planned(0, case)).collect()
            }
        }
    }

    /// Its cases, in the order of their rows.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        let (of_hosts, of_all) = match self {
            Self::Absent { .. } => (&[][..], None),
            Self::OnEachHost(cases) => (&cases[..], None),
            Self::AcrossHosts(case) | Self::Among { case, .. } => (&[][..], Some(&**case)),
        };
        of_hosts.iter().flatten().chain(of_all)
    }

    /// Its rows: the number of the host that has it by itself, and the case.
    pub(super) fn owned(&self) -> Vec<(Option<usize>, Option<&Case>)> {
        match self {
            Self::Absent { host, .. } => vec![(*host, None)],
            Self::OnEachHost(cases) => {
                let cases = cases.iter().enumerate();
                cases.filter_map(|(host, case)| Some((Some(host), Some(case.as_ref()?)))).collect()
            }
            Self::AcrossHosts(case) | Self::Among { case, .. } => vec![(None, Some(&**case))],
        }
    }

    /// The case of the ranks on host number `host`.
    pub(super) fn case(&self, host: usize) -> Option<&Case> {
        match self {
            Self::Absent { .. } => None,
            Self::OnEachHost(cases) => cases.get(host)?.as_ref(),
            Self::AcrossHosts(case) | Self::Among { case, .. } => Some(case),
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
        if request.transports.contains(&TransportKind::Rdma) && !is_absent {
            planner.ranks = planner.ranks.max(2);
        }
        sites[0].host.ranks = (0..request.ranks.unwrap_or(planner.ranks)).map(Rank).collect();
    }
    for transport in transports().filter(|transport| transport.is_across_hosts()) {
        steps.extend(match request.is_check {
            true => planner.by_host(transport, sites)?,
            false => planner.across_hosts(transport, sites)?,
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
            Step::Among { case: Box::new(case), ranks }
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
        let domains = match transport {
            TransportKind::P2p => plan::nvlink_domains(&all).0,
            TransportKind::Local
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
            Step::Among { case, ranks } => {
                let (part, bare) = (step, Box::new(case.without_flows()));
                for (rank, own) in members.iter().zip(&mut all) {
                    own.push(match ranks.contains(rank) {
                        true => part.clone(),
                        false => Step::Among { case: bare.clone(), ranks: Vec::new() },
                    });
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
    for case in steps.iter().filter_map(|step| step.case(host)) {
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
        Step::OnEachHost(_) | Step::AcrossHosts(_) | Step::Among { .. } => {
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
