//! RDMA between ranks.

use super::{Expected, Machine, Raw, Site, copies::host};
use crate::plan::{Case, Endpoint, Fabric, Operation, Rank, catalogue::Catalogue};

/// Operations over EFA.
pub(super) fn expected(
    case: &Case,
    sites: &[Site<'_>],
    catalogue: &Catalogue,
) -> Result<Expected, String> {
    let fabric = case.fabric.as_ref().ok_or("it has no provider")?;
    if !fabric.provider.split(';').any(|part| part.starts_with("efa")) {
        return Err(format!(
            "no figure is published for what libfabric's {} reaches on such a host",
            fabric.provider
        ));
    }
    let mut slowest: Option<Raw> = None;
    for flow in &case.flows {
        let sharing = |end: Endpoint| {
            let same = |other: &Endpoint| other.rank == end.rank;
            let sources = case.flows.iter().filter(|flow| same(&flow.source)).count();
            sources.max(case.flows.iter().filter(|flow| same(&flow.target)).count())
        };
        for end in [flow.source, flow.target] {
            let raw = interfaces(fabric, end.rank, sites)?.shared_by(sharing(end), "flows");
            slowest = Some(slowest.take().map_or(raw.clone(), |least| least.or_less(raw)));
            let Some(number) = end.gpu() else { continue };
            let gpu = site_of(sites, end.rank)?.gpu(number.0);
            // The interface reaches the GPU over its PCIe link, or data is copied over it.
            if let Some(Ok(link)) = gpu.map(host) {
                slowest = slowest.take().map(|least| least.or_less(link));
            }
        }
    }
    let key = match case.operation {
        Operation::Send => "efa_messages",
        _ => "efa",
    };
    slowest.ok_or("it has no flow")?.reached(catalogue, key)
}

fn site_of<'a>(sites: &[Site<'a>], rank: Rank) -> Result<&'a Machine, String> {
    let site = sites.iter().find(|site| site.ranks.contains(&rank));
    site.map(|site| site.machine).ok_or_else(|| format!("the host of rank {} is not known", rank.0))
}

/// What the interfaces of a rank carry together.
fn interfaces(fabric: &Fabric, rank: Rank, sites: &[Site<'_>]) -> Result<Raw, String> {
    let machine = site_of(sites, rank)?;
    let named = fabric.nics.iter().find(|(of, _)| *of == rank).map_or(&[][..], |(_, nics)| nics);
    let mut all = Raw::default();
    let mut rates = Vec::new();
    for nic in named {
        let name = nic.device.as_deref().unwrap_or(&nic.domain);
        let found = machine.nics.iter().find(|known| known.name == name);
        let rate = found.and_then(|known| known.gb_s);
        rates.push(rate.ok_or_else(|| format!("nobody tells the rate of {name}"))?);
    }
    all.gb_s = rates.iter().sum();
    all.how = among(&rates);
    if rates.is_empty() { Err("no interface is named".to_owned()) } else { Ok(all) }
}

/// `4 interfaces of EFA x 12.5 GB/s`
pub(super) fn among(rates: &[f64]) -> String {
    let count = rates.len();
    let first = rates.first().copied().unwrap_or_default();
    let plural = if count == 1 { "" } else { "s" };
    if rates.iter().all(|rate| (rate - first).abs() < f64::EPSILON) {
        return format!("{count} interface{plural} of EFA x {first} GB/s");
    }
    format!("{count} interfaces of EFA with {} GB/s together", rates.iter().sum::<f64>())
}
