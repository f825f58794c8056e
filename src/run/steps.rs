//! The steps of a run: what is to be measured, one after the other, and what each rank must know
//! of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sites::{Absent, Site};
use crate::{
    plan::{self, BadRequest, Case, Effort, Engine, Rank, Request, TransportKind, topology::Host},
    record::{Naming, Row},
    show::progress::Weight,
};

/// What is to be measured at the same time. Each case is a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// A transport that cannot be measured: a row that says why.
    Absent { transport: TransportKind, reason: String },
    /// A case on each host; `None`: the host has no more. Other ranks than 0 know their own host's.
    OnEachHost(Vec<Option<Case>>),
    /// A case that all ranks of all hosts measure together. Other ranks than 0 know their own part.
    AcrossHosts(Box<Case>),
}

/// What a rank must know of the run: its own part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    /// The number of the first of them, by which its data differs from that of others.
    pub(super) first: u64,
    pub(super) effort: Effort,
    pub(super) seed: u64,
}

impl Step {
    /// How many rows come of it.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Absent { .. } => 1,
            Self::OnEachHost(_) | Self::AcrossHosts(_) => self.cases().count(),
        }
    }

    /// What its time depends on; `None`: it takes no time.
    pub(super) fn weight(&self) -> Option<Weight> {
        let case = self.cases().max_by_key(|case| case.size)?;
        Some(Weight { transport: case.transport, size: case.size })
    }

    /// Its rows, with the columns that the plan fills.
    pub(super) fn planned(&self) -> Vec<Row> {
        match self {
            Self::Absent { transport, reason } => vec![Row::absent(0, *transport, reason)],
            Self::OnEachHost(_) | Self::AcrossHosts(_) => {
                self.cases().map(|case| Row::planned(0, case)).collect()
            }
        }
    }

    /// Its cases, host by host.
    pub(super) fn of_hosts(&self) -> Vec<Option<&Case>> {
        match self {
            Self::Absent { .. } => Vec::new(),
            Self::OnEachHost(cases) => cases.iter().map(Option::as_ref).collect(),
            Self::AcrossHosts(case) => vec![Some(case)],
        }
    }

    /// Those that there are.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        self.of_hosts().into_iter().flatten()
    }

    /// What ranks on host number `host` measure.
    pub(super) fn case(&self, host: usize) -> Option<&Case> {
        match self {
            Self::Absent { .. } => None,
            Self::OnEachHost(cases) => cases.get(host)?.as_ref(),
            Self::AcrossHosts(case) => Some(case),
        }
    }
}

/// What is left of a run of which some rows are there.
pub(super) struct Rest<'a> {
    /// The steps that are left; rows of the first may be there too.
    pub(super) steps: &'a [Step],
    /// The number of its first row.
    pub(super) row: usize,
    /// How many steps have been measured.
    pub(super) measured: u64,
}

impl<'a> Rest<'a> {
    /// What is left of `steps` when `finished` rows are there.
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
/// the cases decide how many, and `sites` gets them.
pub(super) fn plan(
    request: &Request,
    sites: &mut [Site],
    is_launched: bool,
) -> Result<Vec<Step>, String> {
    let is_simulated = sites[0].simulation.is_some();
    if !is_launched && request.ranks.is_none() {
        no_gpus(request, &sites[0]).map_or(Ok(()), Err)?;
        plan::check_gpus(request, &sites[0].host.topology).map_err(|err| err.to_string())?;
    }
    let mut steps = Vec::new();
    let is_across_hosts = |transport: &&TransportKind| transport.is_across_hosts();
    let (across_hosts, on_each_host): (Vec<_>, Vec<_>) =
        request.transports.iter().partition(is_across_hosts);
    let mut named = 1;
    for &transport in on_each_host {
        let request = Request { transports: vec![transport], ..request.clone() };
        let planner = Planner { request, transport, is_simulated, is_launched };
        let of_hosts = sites.iter().map(|site| planner.on_host(site));
        let of_hosts = of_hosts.collect::<Result<Vec<OfHost>, String>>()?;
        named = of_hosts.iter().map(|of_host| of_host.ranks).fold(named, u32::max);
        steps.extend(planner.on_each_host(of_hosts, sites));
    }
    if !is_launched {
        let is_absent = absence(&sites[0], TransportKind::Rdma).is_some();
        if request.transports.contains(&TransportKind::Rdma) && !is_absent {
            named = named.max(2);
        }
        sites[0].host.ranks = (0..request.ranks.unwrap_or(named)).map(Rank).collect();
    }
    for &transport in across_hosts {
        let request = Request { transports: vec![transport], ..request.clone() };
        let planner = Planner { request, transport, is_simulated, is_launched };
        steps.extend(planner.across_hosts(sites)?);
    }
    match (&request.transports[..], &steps[..]) {
        // A transport that was asked for by name must have a row that can be measured.
        ([_], [Step::Absent { reason, .. }]) => Err(format!("nothing can be measured: {reason}")),
        _ => Ok(steps),
    }
}

const NOT_SIMULATED: &str = "between processes it would be this machine's own memory and network \
                             that is measured, which is not simulated: leave out --simulate";

/// What is planned of one transport.
struct Planner {
    transport: TransportKind,
    /// What is asked of it, and of no other.
    request: Request,
    is_simulated: bool,
    is_launched: bool,
}

/// What a host has of a transport, and why not all of it.
struct OfHost {
    cases: Vec<Case>,
    reason: Option<String>,
    /// How many ranks they take, those that cannot be simulated too.
    ranks: u32,
}

impl Planner {
    /// The row of a transport that cannot be measured.
    fn absent(&self, reason: String) -> Step {
        Step::Absent { transport: self.transport, reason }
    }

    /// The steps that all ranks of all hosts take together.
    fn across_hosts(&self, sites: &[Site]) -> Result<Vec<Step>, String> {
        for site in sites {
            if let Some(reason) = absence(site, self.transport) {
                return Ok(vec![self.absent(on(site, sites, reason))]);
            }
        }
        let hosts: Vec<Host> = sites.iter().map(|site| site.host.clone()).collect();
        let cases =
            plan::cases_across_hosts(&self.request, &hosts).map_err(|err| err.to_string())?;
        if cases.is_empty() {
            let ranks = hosts.iter().map(|host| host.ranks.len()).sum::<usize>();
            let request = Request { ranks: u32::try_from(ranks).ok(), ..self.request.clone() };
            let reason = plan::why_none(self.transport, &request, &hosts[0].topology);
            return Ok(vec![self.absent(reason)]);
        }
        if self.is_simulated && self.transport == TransportKind::Rdma {
            return Ok(vec![self.absent(NOT_SIMULATED.to_owned())]);
        }
        Ok(cases.into_iter().map(|case| Step::AcrossHosts(Box::new(case))).collect())
    }

    /// The steps on each host, side by side.
    fn on_each_host(&self, of_hosts: Vec<OfHost>, sites: &[Site]) -> Vec<Step> {
        let reasons = of_hosts.iter().zip(sites).filter_map(|(of_host, site)| {
            of_host.reason.as_ref().map(|reason| on(site, sites, reason))
        });
        let mut reasons: Vec<String> = reasons.collect();
        reasons.dedup();
        let mut steps: Vec<Step> = reasons.into_iter().map(|reason| self.absent(reason)).collect();
        let most = of_hosts.iter().map(|of_host| of_host.cases.len()).max().unwrap_or(0);
        let mut hosts: Vec<_> =
            of_hosts.into_iter().map(|of_host| of_host.cases.into_iter()).collect();
        steps.extend(
            (0..most).map(|_| Step::OnEachHost(hosts.iter_mut().map(Iterator::next).collect())),
        );
        steps
    }

    fn on_host(&self, site: &Site) -> Result<OfHost, String> {
        let Host { topology, ranks, .. } = &site.host;
        no_gpus(&self.request, site).map_or(Ok(()), Err)?;
        if let Some(reason) = absence(site, self.transport) {
            return Ok(OfHost { cases: Vec::new(), reason: Some(reason.to_owned()), ranks: 1 });
        }
        let count = u32::try_from(ranks.len()).ok().filter(|_| self.is_launched);
        let request = Request { ranks: count.or(self.request.ranks), ..self.request.clone() };
        let mut cases = plan::cases(&request, topology).or_else(|err| match err {
            // One host may have too few ranks for a pattern that others have enough for.
            BadRequest::TooFewRanks(_) if self.is_launched => Ok(Vec::new()),
            err => Err(err.to_string()),
        })?;
        let named = cases.iter().flat_map(Case::ends).map(|end| end.rank.0 + 1).max().unwrap_or(1);
        let mut reason = None;
        if self.is_simulated && cases.iter().any(|case| case.engine == Engine::Cpu) {
            cases.retain(|case| case.engine != Engine::Cpu);
            reason = Some(NOT_SIMULATED.to_owned());
        } else if cases.is_empty() {
            reason = Some(plan::why_none(self.transport, &request, topology));
        }
        if self.is_launched {
            cases = cases.into_iter().map(|case| case.on(ranks)).collect();
        }
        Ok(OfHost { cases, reason, ranks: named })
    }
}

/// Why GPUs that were named are not there, if there are none at all.
fn no_gpus(request: &Request, site: &Site) -> Option<String> {
    let is_named = request.gpus.is_some() && site.host.topology.gpus.is_empty();
    let kinds = [TransportKind::Local, TransportKind::P2p];
    let reason = kinds.into_iter().find_map(|kind| absence(site, kind)).filter(|_| is_named)?;
    Some(format!("--gpus: {reason}"))
}

/// Why `transport` cannot be used on a host, if it cannot.
fn absence(site: &Site, transport: TransportKind) -> Option<&str> {
    let absent = site.absent.iter().find(|absent: &&Absent| absent.transport == transport)?;
    Some(&absent.reason)
}

/// `reason`, with the host that has it where there are several.
fn on(site: &Site, sites: &[Site], reason: &str) -> String {
    if sites.len() > 1 { format!("{}: {reason}", site.host.name) } else { reason.to_owned() }
}

/// What each of `members` does, one after the other.
pub(super) fn parts(steps: &[Step], hosts: &[Host], members: &[Rank]) -> Vec<Vec<Step>> {
    let host_of: BTreeMap<Rank, usize> = (0..)
        .zip(hosts)
        .flat_map(|(number, host)| host.ranks.iter().map(move |&rank| (rank, number)))
        .collect();
    let mut all: Vec<Vec<Step>> = members.iter().map(|_| Vec::new()).collect();
    for step in steps {
        let parts = match step {
            Step::AcrossHosts(case) => case.parts(),
            Step::Absent { .. } | Step::OnEachHost(_) => BTreeMap::new(),
        };
        for (rank, own) in members.iter().zip(&mut all) {
            let host = host_of.get(rank).copied().unwrap_or(0);
            own.extend(match step {
                Step::Absent { .. } => None,
                Step::OnEachHost(_) => Some(Step::OnEachHost(vec![step.case(host).cloned()])),
                // Rank 0 keeps the case whole.
                Step::AcrossHosts(_) if members.first() == Some(rank) => Some(step.clone()),
                Step::AcrossHosts(case) => {
                    let part = parts.get(rank).cloned();
                    Some(Step::AcrossHosts(Box::new(
                        part.unwrap_or_else(|| case.clone_without_flows()),
                    )))
                }
            });
        }
    }
    all
}

/// What `--dry-run` prints.
pub(super) fn listing(steps: &[Step]) -> String {
    let listed = |row: &Row| row.title(&Naming::default()) + "\n";
    let lines = steps.iter().flat_map(|step| match step {
        Step::Absent { transport, reason } => {
            vec![format!("{transport} skipped: {reason}\n")]
        }
        Step::OnEachHost(_) | Step::AcrossHosts(_) => step.planned().iter().map(listed).collect(),
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
            Step::Absent { transport: TransportKind::P2p, reason: String::new() },
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
