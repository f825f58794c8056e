//! The steps of a run, in the order of their rows.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    sites::Site,
    step::{Part, Step},
};
use crate::{
    plan::{
        self, BadRequest, Case, Collective, Endpoint, FabricRequest, Flow, Gpu, Memory, Operation,
        Pattern, Rank, Request, TransportKind, topology::Host,
    },
    record::{Naming, Row},
    units::Bytes,
};

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
    let has_nccl = |site: &Site| !site.absent.contains_key(&TransportKind::Nccl);
    if request.is_check && sites.len() > 1 && sites.iter().all(has_nccl) {
        let part = together(request, &hosts_of(sites), size_together(sites))?;
        steps.extend(part.map(|part| Step::Apart(vec![part])));
    }
    match (&request.transports[..], &steps[..]) {
        // A transport that is requested by name must have a row that can be measured.
        ([_], [Step::Absent { reason, .. }]) => Err(format!("nothing can be measured: {reason}")),
        _ => Ok(steps),
    }
}

/// What a check measures of `hosts` together: all-reduce among all of their GPUs. None where it takes
/// only some of them, whose interfaces are unknown.
pub(super) fn together(
    request: &Request,
    hosts: &[Host],
    size: Bytes,
) -> Result<Option<Part>, String> {
    if request.gpus.is_some() || !request.transports.contains(&TransportKind::Nccl) {
        return Ok(None);
    }
    let mut ranks: Vec<Rank> = hosts.iter().flat_map(|host| host.ranks.iter().copied()).collect();
    ranks.sort_unstable();
    let request = Request {
        transports: vec![TransportKind::Nccl],
        operations: vec![Operation::Collective(Collective::AllReduce)],
        sizes: Some(vec![size]),
        ranks: u32::try_from(ranks.len()).ok(),
        ..request.clone()
    };
    let case = plan::cases_across_hosts(&request, hosts)?.pop();
    Ok(case.map(|case| Part { case, ranks }))
}

/// Data of what hosts do together: what the interfaces of the slowest move in 10 ms, as far as is
/// known, so that its start is a small part of its time and many fit into a second.
fn size_together(sites: &[Site]) -> Bytes {
    const SECONDS: f64 = 0.01;
    let gb_s = sites.iter().filter_map(|site| site.judged.network_gb_s());
    let Some(gb_s) = gb_s.min_by(f64::total_cmp) else { return SIZE_OF_COLLECTIVE };
    let fits = |size: &Bytes| size.get() as f64 <= gb_s * 1e9 * SECONDS;
    let sizes = [256, 128, 64, 32].map(Bytes::mib);
    sizes.into_iter().find(fits).unwrap_or(Bytes::mib(16))
}

const NOT_SIMULATED: &str = "between processes it would be this machine's own memory that is \
                             measured, which is not simulated: leave out --simulate";

/// Data of a collective of a check: its start is a small part of its time even among the fastest GPUs.
const SIZE_OF_COLLECTIVE: Bytes = Bytes::mib(256);

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
        let request = Request { sizes: Some(vec![SIZE_OF_COLLECTIVE]), ..self.request.clone() };
        let planner = Planner { request: &request, ..*self };
        let of_host = |site: &Site| match site.host.topology.gpus.len() {
            // A GPU alone has nothing to say to others.
            1 => Ok((Vec::new(), None)),
            _ => planner.of_all(transport, std::slice::from_ref(site)),
        };
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
    /// read, in both directions; host memory, where interfaces do not reach that of GPUs.
    fn in_pairs(&self, transport: TransportKind, sites: &[Site]) -> Result<Vec<Step>, String> {
        let (mut steps, mut able) = (Vec::new(), Vec::new());
        for (number, site) in sites.iter().enumerate().filter(|_| sites.len() > 1) {
            match site.absent.get(&transport) {
                Some(reason) => {
                    let reason = on(site, sites, reason);
                    steps.push(Step::Absent { transport, reason, host: Some(number) });
                }
                None => able.push(site),
            }
        }
        for round in plan::rounds(able.len()) {
            let mut cases = Vec::new();
            for pair in round {
                cases.extend(self.of_pair(transport, pair.map(|number| able[number]))?);
            }
            steps.extend(at_once(cases));
        }
        Ok(steps)
    }

    /// The cases of two hosts. The ranks of a host take its GPUs in turn.
    fn of_pair(&self, transport: TransportKind, sites: [&Site; 2]) -> Result<Vec<Case>, String> {
        let pair = sites.map(|site| site.host.clone());
        let mut gpus: Vec<Gpu> = pair[0].topology.gpus.iter().map(|node| node.gpu).collect();
        gpus.retain(|gpu| self.request.gpus.as_ref().is_none_or(|named| named.contains(gpu)));
        if !sites.iter().all(|site| site.judged.reaches_gpus()) {
            gpus.clear();
        }
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
