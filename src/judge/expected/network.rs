//! RDMA between ranks.

use super::{Chosen, Load, Machine, Raw, Site, copies::host};
use crate::plan::{Case, Endpoint, Fabric, Operation};

/// Operations over EFA.
pub(super) fn expected(case: &Case, sites: &[Site<'_>], chosen: Chosen<'_>) -> Result<Raw, String> {
    let fabric = case.fabric.as_ref().ok_or("it has no provider")?;
    if !fabric.provider.split(';').any(|part| part.starts_with("efa")) {
        return Err(format!(
            "no figure is published for what libfabric's {} reaches on such a host",
            fabric.provider
        ));
    }
    let way = |end: Endpoint| Way::of(end, fabric, sites);
    let ways = case.flows.iter().map(|flow| Ok([way(flow.source)?, way(flow.target)?]));
    let ways: Vec<[Way<'_>; 2]> = ways.collect::<Result<_, String>>()?;
    let [out, into] = [0, 1].map(|end| Load::of(ways.iter().flat_map(|ends| ends[end].shared())));
    let raws = ways.iter().flat_map(|[source, target]| [source.raw(&out), target.raw(&into)]);
    let slowest = Raw::least(raws)?.ok_or("it has no flow")?;
    let has_messages = case.operation == Operation::Send || chosen.is_emulated == Some(true);
    let key = if has_messages { "efa_messages" } else { "efa" };
    Ok(slowest.with_share(key))
}

/// What a flow goes through at one of its ends.
struct Way<'a> {
    /// The index of the host.
    site: usize,
    machine: &'a Machine,
    /// The interfaces of its rank, by name.
    nics: Vec<&'a str>,
    gpu: Option<u32>,
}

/// A part of a host, by its index, that flows share.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Shared<'a> {
    Nic(usize, &'a str),
    Gpu(usize, u32),
}

impl<'a> Way<'a> {
    fn of(end: Endpoint, fabric: &'a Fabric, sites: &[Site<'a>]) -> Result<Self, String> {
        let rank = end.rank;
        let site = sites.iter().position(|site| site.ranks.contains(&rank));
        let site = site.ok_or_else(|| format!("the host of rank {} is not known", rank.0))?;
        let nics = fabric.nics.iter().find(|(of, _)| *of == rank);
        let nics = nics.into_iter().flat_map(|(_, nics)| nics);
        let nics: Vec<&str> =
            nics.map(|nic| nic.device.as_deref().unwrap_or(&nic.domain)).collect();
        if nics.is_empty() {
            return Err("no interface is named".to_owned());
        }
        Ok(Self { site, machine: sites[site].machine, nics, gpu: end.gpu().map(|gpu| gpu.0) })
    }

    /// The parts of the host that it goes through.
    fn shared(&self) -> impl Iterator<Item = Shared<'a>> {
        let nics = self.nics.iter().map(|name| Shared::Nic(self.site, name));
        nics.chain(self.gpu.map(|gpu| Shared::Gpu(self.site, gpu)))
    }

    /// The rate that is left for one flow.
    fn raw(&self, load: &Load<Shared<'a>>) -> Result<Raw, String> {
        let mut rates = Vec::new();
        let mut flows = Vec::new();
        for &name in &self.nics {
            let known = self.machine.nics.iter().find(|known| known.name == name);
            let rate = known.and_then(|known| known.gb_s);
            rates.push(rate.ok_or_else(|| format!("nobody tells the rate of {name}"))?);
            flows.push(load.flows(&Shared::Nic(self.site, name)));
        }
        let most = flows.iter().copied().max().unwrap_or(1);
        let all = Raw { gb_s: rates.iter().sum(), how: among(&rates), ..Raw::default() };
        let raw = if flows.iter().all(|&count| count == most) {
            all.shared_by(most, "flows")
        } else {
            let shares = rates.iter().zip(&flows).map(|(rate, &count)| rate / count as f64);
            let how = format!("{} / up to {most} flows", all.how);
            Raw { gb_s: shares.sum(), how, ..all }
        };
        // The interface reaches the GPU over its PCIe link, or data is copied over it.
        let Some(gpu) = self.gpu else { return Ok(raw) };
        let Ok(link) = self.machine.gpu(gpu).and_then(host) else { return Ok(raw) };
        let flows = load.flows(&Shared::Gpu(self.site, gpu));
        Ok(raw.or_less(link.shared_by(flows, "flows")))
    }
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
