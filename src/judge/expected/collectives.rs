//! NCCL's collectives: the bus bandwidth among the GPUs of one host, and between hosts.

use std::collections::BTreeSet;

use super::{
    Chosen, Expected, Gpu, Machine, Raw, Site,
    copies::{Ports, host, lacking, nvlinks_of, through_host, unknown_gpu},
    network::among,
};
use crate::plan::{Case, Collective, Endpoint, Nccl, catalogue::Catalogue};

/// The members of one communicator on one host that have a part.
struct Local<'a> {
    /// The host, by its place among all.
    site: usize,
    machine: &'a Machine,
    gpus: Vec<u32>,
}

/// The members of one communicator that have a part.
struct Part<'a> {
    locals: Vec<Local<'a>>,
    /// The hosts of the communicator as a whole.
    hosts: usize,
}

impl<'a> Local<'a> {
    fn known_gpus(&self) -> Result<Vec<&'a Gpu>, String> {
        let known = |&number: &u32| self.machine.gpu(number).ok_or_else(|| unknown_gpu(number));
        self.gpus.iter().map(known).collect()
    }

    /// The NVLinks that are down, if that has left a GPU without any: then NCCL goes another way.
    fn cut_off(&self) -> Result<BTreeSet<String>, String> {
        let gpus = self.known_gpus()?;
        let has_none = |gpu: &&Gpu| gpu.nvlinks.is_some_and(|links| links.up == 0);
        if gpus.iter().any(has_none) { lacking(&gpus) } else { Ok(BTreeSet::new()) }
    }
}

/// What the bus bandwidth should be.
pub(super) fn expected(
    case: &Case,
    sites: &[Site<'_>],
    chosen: Chosen<'_>,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let (collective, nccl, _) = case.collective().ok_or("it is no collective")?;
    if nccl.ranks < 2 {
        return Err("one rank has no bus bandwidth".to_owned());
    }
    let parts = parts(case, &nccl, sites)?;
    if chosen.protocol.is_some_and(|protocol| protocol.split('+').any(|one| one == "LL")) {
        return Err(
            "NCCL took its protocol LL, which is for small data: no figure is published of \
                    what it reaches with large"
                .to_owned(),
        );
    }
    let mut least: Option<Expected> = None;
    let bounded = |least: Option<Expected>, by: Expected| match least {
        Some(least) => lesser(least, by),
        None => by,
    };
    for part in parts.iter().filter(|part| part.locals.len() > 1) {
        let between = between_hosts(collective, &nccl, (part, &parts), chosen, catalogue)?;
        least = Some(bounded(least, between));
    }
    let has_network = least.is_some();
    for part in &parts {
        for local in part.locals.iter().filter(|local| local.gpus.len() > 1) {
            let within = within_host((collective, &nccl), (local, part.hosts), chosen, catalogue);
            // Between hosts the network alone is expected where nothing is known of one of them.
            match within {
                Err(_) if has_network => {}
                other => least = Some(bounded(least, other?)),
            }
        }
    }
    let least = least.ok_or("its GPUs are on no host that is known")?;
    Ok(match chosen.protocol {
        // NCCL plans with 0.92 of the ring, and 7/9 of the tree (N-TUNING).
        Some(protocol) if protocol.split('+').any(|one| one == "LL128") => Expected {
            gb_s: least.gb_s * 0.92,
            low: least.low * 7.0 / 9.0,
            derivation: format!("{} x 0.92 for the protocol LL128", least.derivation),
            ..least
        },
        _ => least,
    })
}

/// The one that bounds the other: what the other lacks slows nothing.
fn lesser(one: Expected, other: Expected) -> Expected {
    let is_same = one.gb_s.total_cmp(&other.gb_s).is_eq();
    let (mut less, more) = if other.gb_s < one.gb_s { (other, one) } else { (one, other) };
    if is_same {
        less.lacks.extend(more.lacks);
        less.lacks.sort();
        less.lacks.dedup();
    }
    less.low = less.low.min(more.low);
    less
}

/// The communicators, with those members that have a part.
fn parts<'a>(case: &Case, nccl: &Nccl, sites: &[Site<'a>]) -> Result<Vec<Part<'a>>, String> {
    let part_of = |numbers: Vec<u32>| {
        let whole = members(case, &numbers, sites)?;
        let hosts = whole.len();
        let Some((source, target)) = nccl.pair else { return Ok(Part { locals: whole, hosts }) };
        let pair: Vec<u32> =
            [source, target].iter().filter_map(|&own| numbers.get(own as usize).copied()).collect();
        Ok(Part { locals: members(case, &pair, sites)?, hosts })
    };
    let parts: Vec<Part<'a>> =
        nccl.parts().into_iter().map(part_of).collect::<Result<_, String>>()?;
    let mut taken = BTreeSet::new();
    for local in parts.iter().flat_map(|part| &part.locals) {
        if let Some(gpu) = local.gpus.iter().find(|&&gpu| !taken.insert((local.site, gpu))) {
            return Err(format!(
                "ranks share a GPU: no figure is published of what those of GPU {gpu} reach"
            ));
        }
    }
    Ok(parts)
}

/// Members of one communicator, host by host.
fn members<'a>(case: &Case, part: &[u32], sites: &[Site<'a>]) -> Result<Vec<Local<'a>>, String> {
    let member = |number: u32| case.flows.get(number as usize).map(|flow| flow.source);
    let ends: Vec<Endpoint> = part.iter().filter_map(|&number| member(number)).collect();
    let mut locals = Vec::new();
    for (place, site) in sites.iter().enumerate() {
        let own = ends.iter().filter(|end| site.ranks.contains(&end.rank));
        let gpus: Vec<u32> = own.filter_map(|end| Some(end.gpu()?.0)).collect();
        if !gpus.is_empty() {
            locals.push(Local { site: place, machine: site.machine, gpus });
        }
    }
    let found: usize = locals.iter().map(|local| local.gpus.len()).sum();
    if found < part.len() {
        Err("the host of one of its ranks is not known".to_owned())
    } else {
        Ok(locals)
    }
}

/// What the GPUs of one host reach among each other.
fn within_host(
    (collective, nccl): (Collective, &Nccl),
    (local, hosts): (&Local<'_>, usize),
    chosen: Chosen<'_>,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let told = chosen.transports.unwrap_or_default();
    if told.contains("SHM") {
        return shm(local)?.reached(catalogue, "nccl_shm");
    }
    if hosts == 1 && told.contains("NET") {
        return Err("NCCL went over the network between GPUs of one host: no figure is published \
                    of such a way"
            .to_owned());
    }
    let raw = nvlinks(local)?;
    let Some((raw, generation, has_nvls)) = raw else {
        if !told.contains("P2P") {
            return Err("nobody tells which way NCCL took".to_owned());
        }
        return pcie(local)?.reached(catalogue, "nccl_pcie");
    };
    let n = f64::from(nccl.ranks);
    let by_switches = chosen.algorithm.is_some_and(|names| names.contains("NVLS"));
    // Each GPU of a host moves its data once and a part of it once more.
    let here = local.gpus.len() as f64;
    let cap = 2.0 * (n - 1.0) / n * here / (here + 1.0);
    let nvls = if generation >= 5 { "nccl_nvls5" } else { "nccl_nvls4" };
    match collective {
        Collective::AllReduce
            if by_switches || (hosts > 1 && has_nvls && chosen.algorithm.is_none()) =>
        {
            let (ranks, here) = (nccl.ranks, local.gpus.len());
            let how = format!(
                "x 2 x {} / {ranks} x {here} / {} for reducing switches",
                ranks - 1,
                here + 1
            );
            raw.times(cap, &how).reached(catalogue, nvls)
        }
        Collective::AllReduce => {
            let bound = raw.gb_s * cap.max(1.0);
            let ring = raw.reached(catalogue, "nccl_ring")?;
            // Switches that reduce may be at work where nobody tells the algorithm.
            let may_be = has_nvls && chosen.algorithm.is_none();
            Ok(Expected { high: if may_be { bound } else { ring.high }, ..ring })
        }
        Collective::AllGather | Collective::ReduceScatter if by_switches => {
            raw.reached(catalogue, nvls)
        }
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Broadcast
        | Collective::Reduce => raw.reached(catalogue, "nccl_ring"),
        Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => {
            raw.reached(catalogue, "nccl_exchange")
        }
    }
}

/// The NVLinks of the GPU that has the fewest, their generation, and whether the switches reduce;
/// `None`: the GPUs have none.
fn nvlinks(local: &Local<'_>) -> Result<Option<(Raw, u32, bool)>, String> {
    let lacks = lacking(&local.known_gpus()?)?;
    let mut least: Option<(Raw, u32, bool)> = None;
    for &number in &local.gpus {
        let gpu = local.machine.gpu(number).ok_or_else(|| unknown_gpu(number))?;
        let Some(links) = gpu.nvlinks.filter(|links| links.up > 0) else { return Ok(None) };
        let up = if links.is_switched {
            links.up
        } else if local.gpus.len() == 2 {
            let peer = local.gpus.iter().copied().find(|&peer| peer != number).unwrap_or(number);
            match local.machine.pair(number, peer).map_or(0, |pair| pair.nvlinks) {
                0 => return Ok(None),
                links => links,
            }
        } else {
            return Err("NCCL lays several rings over NVLinks from GPU to GPU, and no figure is \
                        published of what they reach together"
                .to_owned());
        };
        let raw = nvlinks_of(&links, up);
        least = Some(match least.take() {
            Some((less, generation, has_nvls)) => {
                (less.or_less(raw), generation.min(links.generation), has_nvls && gpu.has_nvls)
            }
            None => (raw, links.generation, gpu.has_nvls),
        });
    }
    Ok(least.map(|(raw, generation, has_nvls)| (Raw { lacks, ..raw }, generation, has_nvls)))
}

/// The PCIe link of the GPU with the slowest.
fn pcie(local: &Local<'_>) -> Result<Raw, String> {
    let mut least: Option<Raw> = None;
    for &number in &local.gpus {
        let raw = host(local.machine.gpu(number).ok_or_else(|| unknown_gpu(number))?)?;
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    let mut raw = least.ok_or("it has no GPUs")?;
    raw.lacks.extend(local.cut_off()?);
    Ok(raw)
}

/// The way through host memory of the GPUs with the slowest.
fn shm(local: &Local<'_>) -> Result<Raw, String> {
    let mut least: Option<Raw> = None;
    for pair in local.gpus.windows(2) {
        let raw = through_host(local.machine, (pair[0], pair[1]), &Ports::default())?;
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    let mut raw = least.ok_or("it has one GPU on each host")?;
    raw.lacks.extend(local.cut_off()?);
    Ok(raw)
}

/// What the interfaces of the hosts let through to one communicator, while others use them too.
fn between_hosts(
    collective: Collective,
    nccl: &Nccl,
    (part, parts): (&Part<'_>, &[Part<'_>]),
    chosen: Chosen<'_>,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    use Collective::{AllToAll, Gather, Scatter, SendRecv};
    if matches!(collective, AllToAll | Gather | Scatter | SendRecv) {
        return Err("of messages between hosts no figure is published".to_owned());
    }
    is_over_libfabric(chosen.transports)?;
    let mut least: Option<Raw> = None;
    for local in &part.locals {
        let raw = out_of_host(local, parts)?;
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    let raw = least.ok_or("it has no hosts")?;
    let (all_hosts, all_ranks) = (part.locals.len(), nccl.ranks);
    // Around a ring each part of the data leaves a host twice, but for that which it ends with; up
    // and down a tree of two hosts once.
    let tree = |raw: Raw| {
        let (hosts, ranks) = (all_hosts as f64, f64::from(all_ranks));
        raw.times(
            hosts / (hosts - 1.0) * (ranks - 1.0) / ranks,
            &format!("x {all_hosts} / {} x {} / {all_ranks}", all_hosts - 1, all_ranks - 1),
        )
    };
    let reached = |raw: Raw| raw.reached(catalogue, "nccl_network");
    if chosen.algorithm.is_some_and(|names| names.contains("COLLNET")) {
        return Err("the network reduces: no figure is published of that".to_owned());
    }
    match collective {
        Collective::AllReduce => {
            // Where nobody tells, it may be either.
            let names = || chosen.algorithm.unwrap_or("RING+TREE").split('+');
            let has_tree = names().any(|name| name != "RING");
            match (names().any(|name| name == "RING"), has_tree) {
                (_, false) => reached(raw),
                (false, true) => reached(tree(raw)),
                (true, true) => {
                    Ok(Expected { low: reached(raw.clone())?.low, ..reached(tree(raw))? })
                }
            }
        }
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter
        | Collective::SendRecv => reached(raw),
    }
}

/// Whether NCCL went between hosts by libfabric, as far as its log tells.
fn is_over_libfabric(transports: Option<&str>) -> Result<(), String> {
    let Some(told) = transports else { return Ok(()) };
    let mut networks = told.split(" + ").filter(|words| words.contains("NET/")).peekable();
    if networks.peek().is_none() {
        return Err(format!(
            "NCCL's log tells of no network between the hosts ({told}): no figure is published of \
             such a way"
        ));
    }
    match networks.find(|words| !words.starts_with("NET/") || !words.contains("Libfabric")) {
        Some(other) => Err(format!(
            "NCCL went between the hosts by {other}: nothing is known of a network but EFA by \
             libfabric"
        )),
        None => Ok(()),
    }
}

/// What the interfaces of a host carry for each of the communicators that go through them.
fn out_of_host(local: &Local<'_>, parts: &[Part<'_>]) -> Result<Raw, String> {
    let efa = local.machine.nics.iter().filter(|nic| nic.is_efa);
    let rates: Option<Vec<f64>> = efa.map(|nic| nic.gb_s).collect();
    let rates = rates.filter(|rates| !rates.is_empty()).ok_or(
        "nothing is known of the network between the hosts but EFA, and one has none that tells its \
         rate",
    )?;
    let through = parts.iter().filter(|part| part.locals.len() > 1);
    let here = through.flat_map(|part| &part.locals).filter(|other| other.site == local.site);
    let (mut gpus, mut communicators) = (Vec::new(), 0);
    for other in here {
        gpus.extend(other.known_gpus()?);
        communicators += 1;
    }
    if gpus.len() < local.machine.gpus.len() {
        return Err(format!(
            "{} of the {} GPUs of a host take part: nobody tells which of its interfaces are theirs",
            gpus.len(),
            local.machine.gpus.len()
        ));
    }
    let mut raw = Raw { gb_s: rates.iter().sum(), how: among(&rates), ..Raw::default() };
    // A container may have all interfaces and few GPUs.
    if let Ok(links) = gpus.iter().map(|gpu| host(gpu)).collect::<Result<Vec<Raw>, String>>() {
        let gb_s = links.iter().map(|link| link.gb_s).sum();
        let how = format!("{gb_s:.1} GB/s between {} GPUs and their host", links.len());
        let lacks = links.into_iter().flat_map(|link| link.lacks).collect();
        raw = raw.or_less(Raw { gb_s, how, lacks, ..Raw::default() });
    }
    Ok(raw.shared_by(communicators, "communicators"))
}
