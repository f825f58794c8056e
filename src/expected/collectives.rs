//! NCCL's collectives: the bus bandwidth among the GPUs of one host, and between hosts.

use super::{
    Chosen, Expected, Machine, Raw, Site,
    copies::{Ports, host, links_down, nvlinks_of, through_host, unknown_gpu},
    network::among,
};
use crate::plan::{Case, Collective, Endpoint, Nccl, catalogue::Catalogue};

/// The members of one communicator on one host.
struct Local<'a> {
    machine: &'a Machine,
    gpus: Vec<u32>,
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
    if chosen.protocol.is_some_and(|protocol| protocol.split('+').any(|one| one == "LL")) {
        return Err(
            "NCCL took its protocol LL, which is for small data: no figure is published of \
                    what it reaches with large"
                .to_owned(),
        );
    }
    let parts: Vec<Vec<Local<'_>>> = nccl
        .parts()
        .iter()
        .map(|part| members(case, part, sites))
        .collect::<Result<_, String>>()?;
    let first = parts.first().ok_or("it has no ranks")?;
    let within = first.iter().filter(|local| local.gpus.len() > 1);
    let within: Vec<Result<Expected, String>> = within
        .map(|local| within_host((collective, &nccl), (local, first.len()), chosen, catalogue))
        .collect();
    let between = if first.len() > 1 {
        let spread = parts.iter().filter(|part| part.len() > 1).count();
        Some(between_hosts(collective, &nccl, first, spread, catalogue)?)
    } else {
        None
    };
    let mut least = between;
    for of_host in within {
        // Between hosts the network alone is expected where nothing is known of one of them.
        let of_host = match of_host {
            Err(_) if least.is_some() => continue,
            other => other?,
        };
        least = Some(match least.take() {
            Some(least) => lesser(least, of_host),
            None => of_host,
        });
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

/// The one that bounds the other.
fn lesser(one: Expected, other: Expected) -> Expected {
    let (mut less, more) = if other.gb_s < one.gb_s { (other, one) } else { (one, other) };
    less.lacks.extend(more.lacks);
    less.low = less.low.min(more.low);
    less
}

/// The members of one communicator, host by host.
fn members<'a>(case: &Case, part: &[u32], sites: &[Site<'a>]) -> Result<Vec<Local<'a>>, String> {
    let member = |number: u32| case.flows.get(number as usize).map(|flow| flow.source);
    let ends: Vec<Endpoint> = part.iter().filter_map(|&number| member(number)).collect();
    let mut locals = Vec::new();
    for site in sites {
        let own = ends.iter().filter(|end| site.ranks.contains(&end.rank));
        let gpus: Vec<u32> = own.filter_map(|end| Some(end.gpu()?.0)).collect();
        if !gpus.is_empty() {
            locals.push(Local { machine: site.machine, gpus });
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
        Collective::AllReduce if by_switches || (hosts > 1 && has_nvls) => {
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
        let mut raw = nvlinks_of(&links, up);
        if links.up < links.due {
            raw.lacks.insert(links_down(gpu, &links));
        }
        least = Some(match least.take() {
            Some((less, generation, has_nvls)) => {
                (less.or_less(raw), generation.min(links.generation), has_nvls && gpu.has_nvls)
            }
            None => (raw, links.generation, gpu.has_nvls),
        });
    }
    Ok(least)
}

/// The PCIe link of the GPU with the slowest.
fn pcie(local: &Local<'_>) -> Result<Raw, String> {
    let mut least: Option<Raw> = None;
    for &number in &local.gpus {
        let raw = host(local.machine.gpu(number).ok_or_else(|| unknown_gpu(number))?)?;
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    least.ok_or_else(|| "it has no GPUs".to_owned())
}

/// The way through host memory of the GPUs with the slowest.
fn shm(local: &Local<'_>) -> Result<Raw, String> {
    let mut least: Option<Raw> = None;
    for pair in local.gpus.windows(2) {
        let raw = through_host(local.machine, (pair[0], pair[1]), &Ports::default())?;
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    least.ok_or_else(|| "it has one GPU on each host".to_owned())
}

/// What the interfaces of the hosts let through; `communicators` use them at the same time.
fn between_hosts(
    collective: Collective,
    nccl: &Nccl,
    locals: &[Local<'_>],
    communicators: usize,
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let mut least: Option<Raw> = None;
    for local in locals {
        let efa = local.machine.nics.iter().filter(|nic| nic.is_efa);
        let rates: Option<Vec<f64>> = efa.map(|nic| nic.gb_s).collect();
        let rates = rates.filter(|rates| !rates.is_empty()).ok_or(
            "nothing is known of the network between the hosts but EFA, and one has none that tells \
             its rate",
        )?;
        let raw = Raw { gb_s: rates.iter().sum(), how: among(&rates), ..Raw::default() };
        least = Some(least.take().map_or(raw.clone(), |less| less.or_less(raw)));
    }
    let raw = least.ok_or("it has no hosts")?.shared_by(communicators, "communicators");
    let (hosts, ranks) = (locals.len() as f64, f64::from(nccl.ranks));
    let (all_hosts, all_ranks) = (locals.len(), nccl.ranks);
    let bound = match collective {
        // Each host takes in what the others have, once.
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => raw.times(
            hosts / (hosts - 1.0) * (ranks - 1.0) / ranks,
            &format!("x {all_hosts} / {} x {} / {all_ranks}", all_hosts - 1, all_ranks - 1),
        ),
        Collective::Broadcast | Collective::Reduce => raw,
        Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => {
            return Err("of messages between hosts no figure is published".to_owned());
        }
    };
    bound.reached(catalogue, "nccl_network")
}
