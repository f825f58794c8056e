//! NCCL's collectives: the bus bandwidth among the GPUs of one host, and between hosts.

use std::collections::BTreeSet;

use super::{
    Chosen, Expected, Gpu, Machine, Raw, Site,
    copies::{host, lacking, nvlinks_of},
    network::among,
};
use crate::plan::{Case, Collective, Endpoint, Nccl, catalogue::Catalogue};

use Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
};

/// The members of one communicator on one host that take part.
struct Local<'a> {
    /// The index of the host.
    site: usize,
    machine: &'a Machine,
    gpus: Vec<u32>,
}

/// The members of one communicator that take part.
struct Part<'a> {
    locals: Vec<Local<'a>>,
    /// The number of hosts of the whole communicator.
    hosts: usize,
}

impl<'a> Local<'a> {
    fn known_gpus(&self) -> Result<Vec<&'a Gpu>, String> {
        self.gpus.iter().map(|&number| self.machine.gpu(number)).collect()
    }
}

/// A collective, what NCCL chose for it, and the catalogue with the shares.
struct Call<'a> {
    collective: Collective,
    nccl: Nccl,
    chosen: Chosen<'a>,
    catalogue: &'a Catalogue,
}

/// The bus bandwidth to expect.
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
    let has_protocol =
        |name| chosen.protocol.is_some_and(|told| told.split('+').any(|one| one == name));
    if has_protocol("LL") {
        return Err(
            "NCCL took its protocol LL, which is for small data: no figure is published of \
                    what it reaches with large"
                .to_owned(),
        );
    }
    let call = Call { collective, nccl, chosen, catalogue };
    let across = parts.iter().filter(|part| part.locals.len() > 1);
    let mut bounds: Vec<Expected> =
        across.map(|part| call.between_hosts(part, &parts)).collect::<Result<_, String>>()?;
    let has_network = !bounds.is_empty();
    for part in &parts {
        for local in part.locals.iter().filter(|local| local.gpus.len() > 1) {
            // Between hosts the network alone is the bound if a host is not known.
            match call.within_host(local, part.hosts) {
                Err(_) if has_network => {}
                within => bounds.push(within?),
            }
        }
    }
    let least = bounds.into_iter().reduce(lesser).ok_or("its GPUs are on no host that is known")?;
    if !has_protocol("LL128") {
        return Ok(least);
    }
    // NCCL plans with 0.92 of the ring, and 7/9 of the tree (N-TUNING).
    Ok(Expected {
        gb_s: least.gb_s * 0.92,
        low: least.low * 7.0 / 9.0,
        derivation: format!("{} x 0.92 for the protocol LL128", least.derivation),
        ..least
    })
}

/// The lesser of two. What the greater lacks has no effect.
fn lesser(one: Expected, other: Expected) -> Expected {
    let order = one.gb_s.total_cmp(&other.gb_s);
    let (mut less, more) = if order.is_gt() { (other, one) } else { (one, other) };
    if order.is_eq() {
        less.lacks.extend(more.lacks);
        less.lacks.sort();
        less.lacks.dedup();
    }
    less.low = less.low.min(more.low);
    less
}

/// The communicators, with the members that take part.
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

/// The members of one communicator, host by host.
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

impl Call<'_> {
    /// The bus bandwidth among the GPUs of one of `hosts` hosts.
    fn within_host(&self, local: &Local<'_>, hosts: usize) -> Result<Expected, String> {
        let Self { collective, nccl, chosen, catalogue } = self;
        let told = chosen.transports.unwrap_or_default();
        if told.contains("SHM") {
            return to_host(local)?.with_share("nccl_shm").reached(catalogue);
        }
        if hosts == 1 && told.contains("NET") {
            return Err("NCCL went over the network between GPUs of one host: no figure is \
                        published of such a way"
                .to_owned());
        }
        let Some(raw) = nvlinks(local)? else {
            if !told.contains("P2P") {
                return Err("nobody tells which way NCCL took".to_owned());
            }
            return to_host(local)?.with_share("nccl_pcie").reached(catalogue);
        };
        let gpus = local.known_gpus()?;
        let has_nvls = gpus.iter().all(|gpu| gpu.has_nvls);
        let is_newer = gpus.iter().flat_map(|gpu| gpu.nvlinks).all(|links| links.generation >= 5);
        let nvls = if is_newer { "nccl_nvls5" } else { "nccl_nvls4" };
        let by_switches = chosen.algorithm.is_some_and(|names| names.contains("NVLS"));
        // Each GPU of a host moves its data once, and a part of it once more.
        let (ranks, here) = (nccl.ranks, gpus.len());
        let (all, own) = (f64::from(ranks), here as f64);
        let cap = 2.0 * (all - 1.0) / all * own / (own + 1.0);
        match collective {
            AllReduce if by_switches || (hosts > 1 && has_nvls && chosen.algorithm.is_none()) => {
                let how = format!(
                    "x 2 x {} / {ranks} x {here} / {} for reducing switches",
                    ranks - 1,
                    here + 1
                );
                raw.times(cap, &how).with_share(nvls).reached(catalogue)
            }
            AllReduce => {
                let bound = raw.gb_s * cap.max(1.0);
                let ring = raw.with_share("nccl_ring").reached(catalogue)?;
                // Switches may reduce if the algorithm is not known.
                let may_be = has_nvls && chosen.algorithm.is_none();
                Ok(Expected { high: if may_be { bound } else { ring.high }, ..ring })
            }
            AllGather | ReduceScatter if by_switches => raw.with_share(nvls).reached(catalogue),
            AllGather | ReduceScatter | Broadcast | Reduce => {
                raw.with_share("nccl_ring").reached(catalogue)
            }
            AllToAll | Gather | Scatter | SendRecv => {
                raw.with_share("nccl_exchange").reached(catalogue)
            }
        }
    }

    /// The bus bandwidth of one communicator over the interfaces that all of them share.
    fn between_hosts(&self, part: &Part<'_>, parts: &[Part<'_>]) -> Result<Expected, String> {
        let Self { collective, nccl, chosen, catalogue } = self;
        // It may be either if the algorithm is not known.
        let names = || chosen.algorithm.unwrap_or("RING+TREE").split('+');
        let (may_be_ring, may_be_tree) = match collective {
            AllReduce => (names().any(|name| name == "RING"), names().any(|name| name != "RING")),
            AllGather | ReduceScatter | Broadcast | Reduce => (true, false),
            AllToAll | Gather | Scatter | SendRecv => {
                return Err("of messages between hosts no figure is published".to_owned());
            }
        };
        is_over_libfabric(chosen.transports)?;
        let raw = Raw::least(part.locals.iter().map(|local| out_of_host(local, parts)))?;
        let raw = raw.ok_or("it has no hosts")?;
        if chosen.algorithm.is_some_and(|names| names.contains("COLLNET")) {
            return Err("the network reduces: no figure is published of that".to_owned());
        }
        let ring = raw.clone().with_share("nccl_network").reached(catalogue)?;
        if !may_be_tree {
            return Ok(ring);
        }
        // In a ring each part of the data leaves a host twice, except the part that the host ends
        // with; in a tree of two hosts it leaves once.
        let (hosts, ranks) = (part.locals.len(), nccl.ranks);
        let (all_hosts, all_ranks) = (hosts as f64, f64::from(ranks));
        let factor = all_hosts / (all_hosts - 1.0) * (all_ranks - 1.0) / all_ranks;
        let how = format!("x {hosts} / {} x {} / {ranks}", hosts - 1, ranks - 1);
        let tree = raw.times(factor, &how).with_share("nccl_network").reached(catalogue)?;
        Ok(Expected { low: if may_be_ring { ring.low } else { tree.low }, ..tree })
    }
}

/// The NVLinks of the GPU that has the fewest; `None`: the GPUs have none.
fn nvlinks(local: &Local<'_>) -> Result<Option<Raw>, String> {
    let gpus = local.known_gpus()?;
    let lacks = lacking(&gpus)?;
    let mut raws = Vec::new();
    for gpu in &gpus {
        let Some(links) = gpu.nvlinks.filter(|links| links.up > 0) else { return Ok(None) };
        let up = if links.is_switched {
            links.up
        } else if let [one, two] = gpus[..] {
            let peer = if gpu.ordinal == one.ordinal { two } else { one };
            let pair = local.machine.pair(gpu.ordinal, peer.ordinal);
            match pair.map_or(0, |pair| pair.nvlinks) {
                0 => return Ok(None),
                links => links,
            }
        } else {
            return Err("NCCL lays several rings over NVLinks from GPU to GPU, and no figure is \
                        published of what they reach together"
                .to_owned());
        };
        raws.push(nvlinks_of(&links, up));
    }
    Ok(raws.into_iter().reduce(Raw::or_less).map(|raw| Raw { lacks, ..raw }))
}

/// The slowest link between a GPU and the host. NCCL goes this way if a GPU has no NVLink left, so
/// NVLinks that are down are lacking then.
fn to_host(local: &Local<'_>) -> Result<Raw, String> {
    let gpus = local.known_gpus()?;
    let mut raw = Raw::least(gpus.iter().map(|gpu| host(gpu)))?.ok_or("it has no GPUs")?;
    if gpus.iter().any(|gpu| gpu.nvlinks.is_some_and(|links| links.up == 0)) {
        raw.lacks.extend(lacking(&gpus)?);
    }
    Ok(raw)
}

/// An error if NCCL's log shows another way between hosts than libfabric.
fn is_over_libfabric(transports: Option<&str>) -> Result<(), String> {
    let Some(told) = transports else { return Ok(()) };
    let networks = || told.split(" + ").filter(|words| words.contains("NET/"));
    if networks().next().is_none() {
        return Err(format!(
            "NCCL's log tells of no network between the hosts ({told}): no figure is published of \
             such a way"
        ));
    }
    match networks().find(|words| !words.starts_with("NET/") || !words.contains("Libfabric")) {
        Some(other) => Err(format!(
            "NCCL went between the hosts by {other}: nothing is known of a network but EFA by \
             libfabric"
        )),
        None => Ok(()),
    }
}

/// The rate of a host's interfaces for each of the communicators that use them.
fn out_of_host(local: &Local<'_>, parts: &[Part<'_>]) -> Result<Raw, String> {
    let efa = local.machine.nics.iter().filter(|nic| nic.is_efa);
    let rates: Option<Vec<f64>> = efa.map(|nic| nic.gb_s).collect();
    let rates = rates.filter(|rates| !rates.is_empty()).ok_or(
        "nothing is known of the network between the hosts but EFA, and one has none that tells \
         its rate",
    )?;
    let through = parts.iter().filter(|part| part.locals.len() > 1);
    let here = through.flat_map(|part| &part.locals).filter(|other| other.site == local.site);
    let here: Vec<Vec<&Gpu>> = here.map(Local::known_gpus).collect::<Result<_, String>>()?;
    let gpus = here.concat();
    if gpus.len() < local.machine.gpus.len() {
        return Err(format!(
            "{} of the {} GPUs of a host take part: nobody tells which of its interfaces are \
             theirs",
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
    Ok(raw.shared_by(here.len(), "communicators"))
}
