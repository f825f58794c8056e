//! Copies by GPUs: NVLink, PCI Express, or neither.

use std::collections::BTreeMap;

use super::{
    ALL, BYTES_MIN, CountedPath, HOST_MEMORY, Moved, NONE, Seen, TOO_FEW, grown, name, ratio,
};
use crate::{
    machine::counters::OfGpu,
    nccl_log::Verdict,
    plan::{Case, Flow, Gpu, TransportKind},
};

/// NVLink's counters count data; on newer GPUs also what packs it up: 16 or 32 bytes for 128.
const NVLINK_MOST: f64 = 1.35;

/// PCI Express may be counted with its headers, which are up to a third of short packets, and with
/// the requests of reads.
const PCIE_LEAST: f64 = 0.90;
const PCIE_MOST: f64 = 1.50;

/// Bytes out of a GPU and into it.
type Ways = (u64, u64);

/// What the case asks of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    /// Over NVLink.
    nvlink: Ways,
    /// Over PCI Express.
    pcie: Ways,
    /// Within it.
    own: u64,
}

impl Load {
    const fn all(self) -> Ways {
        (self.nvlink.0 + self.pcie.0, self.nvlink.1 + self.pcie.1)
    }
}

/// The name of the way that the data of a case should go.
pub(super) fn asked(case: &Case, seen: &[Seen]) -> &'static str {
    let mut has_nvlink = false;
    let mut has_pcie = false;
    if case.transport == TransportKind::Local && uses_c2c(case, seen) {
        return "nvlink-c2c";
    }
    for flow in &case.flows {
        match (flow.source.gpu(), flow.target.gpu()) {
            (Some(source), Some(target)) if source == target && same_host(flow, seen) => {}
            (Some(source), Some(target)) => match joined(flow, (source, target), seen) {
                true if case.transport == TransportKind::P2p => has_nvlink = true,
                _ => has_pcie = true,
            },
            _ => has_pcie = true,
        }
    }
    match (case.transport, has_nvlink, has_pcie) {
        (TransportKind::Shm, ..) => HOST_MEMORY,
        (_, true, true) => "nvlink + pcie",
        (_, true, false) => "nvlink",
        (_, false, true) => "pcie",
        (_, false, false) => "gpu-memory",
    }
}

/// Whether data goes between a GPU and a CPU that NVLink-C2C joins.
fn uses_c2c(case: &Case, seen: &[Seen]) -> bool {
    let goes_to_host = |flow: &&Flow| {
        case.transport == TransportKind::Shm || flow.source.gpu().xor(flow.target.gpu()).is_some()
    };
    let has_c2c = |flow: &Flow| {
        let host = host_of(flow, seen);
        let gpus = [flow.source.gpu(), flow.target.gpu()].into_iter().flatten();
        host.is_some_and(|host| gpus.into_iter().any(|gpu| host.nvlinked.c2c.contains(&gpu)))
    };
    case.flows.iter().filter(goes_to_host).any(has_c2c)
}

fn same_host(flow: &Flow, seen: &[Seen]) -> bool {
    host_of(flow, seen).is_some_and(|host| host.ranks.contains(&flow.target.rank))
}

fn host_of<'a>(flow: &Flow, seen: &'a [Seen]) -> Option<&'a Seen> {
    seen.iter().find(|host| host.ranks.contains(&flow.source.rank))
}

fn joined(flow: &Flow, (source, target): (Gpu, Gpu), seen: &[Seen]) -> bool {
    host_of(flow, seen).is_some_and(|host| host.nvlinked.joins(source, target))
}

/// What the case asks of each GPU of a host.
fn loads(case: &Case, bytes: u64, host: &Seen) -> BTreeMap<Gpu, Load> {
    let mut loads: BTreeMap<Gpu, Load> = BTreeMap::new();
    for flow in case.flows.iter().filter(|flow| host.ranks.contains(&flow.source.rank)) {
        let (source, target) = (flow.source.gpu(), flow.target.gpu());
        if let (Some(own), true) = (source, source == target) {
            loads.entry(own).or_default().own += bytes;
            continue;
        }
        let by_nvlink = case.transport == TransportKind::P2p
            && source.zip(target).is_some_and(|(a, b)| host.nvlinked.joins(a, b));
        if let Some(source) = source {
            let load = loads.entry(source).or_default();
            if by_nvlink { load.nvlink.0 += bytes } else { load.pcie.0 += bytes }
        }
        if let Some(target) = target {
            let load = loads.entry(target).or_default();
            if by_nvlink { load.nvlink.1 += bytes } else { load.pcie.1 += bytes }
        }
    }
    loads
}

/// What the NVLinks of a GPU have carried between the readings.
///
/// # Errors
///
/// Why that is not known: a sentence without its subject, which is the GPU.
pub(super) fn nvlink(host: &Seen, gpu: Gpu) -> Result<Ways, String> {
    let (before, after) = readings(host, gpu)?;
    let links = |of: &OfGpu| {
        let told = of.nvlinks.clone();
        told.map_err(|why| format!("does not tell what its NVLinks have carried ({why})"))
    };
    let (before, after) = (links(before)?, links(after)?);
    let mut sum = (0, 0);
    for (before, after) in before.iter().zip(&after) {
        let went_back =
            |what: String| format!("has a counter of NVLink {} that {what}", after.number);
        if before.number != after.number {
            return Err("has other NVLinks than before".to_owned());
        }
        // A GPU that is gone reads as all ones.
        sum.0 = u64::saturating_add(sum.0, grown(before.sent, after.sent).map_err(went_back)?);
        let received = grown(before.received, after.received).map_err(went_back)?;
        sum.1 = u64::saturating_add(sum.1, received);
    }
    if before.len() == after.len() {
        Ok(sum)
    } else {
        Err("has other NVLinks than before".to_owned())
    }
}

/// What the PCI Express link of a GPU has carried, if `at_most` bytes are what can be expected.
fn pcie(host: &Seen, gpu: Gpu, at_most: u64) -> Result<Ways, String> {
    let (before, after) = readings(host, gpu)?;
    let told = |of: &OfGpu| {
        let told = of.pcie.clone();
        told.map_err(|why| format!("does not tell what PCIe has carried ({why})"))
    };
    let (before, after) = (told(before)?, told(after)?);
    if before.bits == u32::BITS {
        if at_most as f64 * PCIE_MOST >= f64::from(u32::MAX) {
            return Err("counts PCIe's bytes with 32 bits, which run over".to_owned());
        }
        let over = |before: u64, after: u64| after.wrapping_sub(before) & u64::from(u32::MAX);
        return Ok((over(before.sent, after.sent), over(before.received, after.received)));
    }
    let went_back = |what: String| format!("has a counter of PCIe that {what}");
    Ok((
        grown(before.sent, after.sent).map_err(went_back)?,
        grown(before.received, after.received).map_err(went_back)?,
    ))
}

fn readings(host: &Seen, gpu: Gpu) -> Result<(&OfGpu, &OfGpu), String> {
    let of = |reading: &'_ BTreeMap<Gpu, Result<OfGpu, String>>| match reading.get(&gpu) {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(format!("does not answer ({why})")),
        None => Some("was not asked".to_owned()),
    };
    if let Some(why) = of(&host.before.gpus).or_else(|| of(&host.after.gpus)) {
        return Err(why);
    }
    match (host.before.gpus.get(&gpu), host.after.gpus.get(&gpu)) {
        (Some(Ok(before)), Some(Ok(after))) => Ok((before, after)),
        _ => Err("was not asked".to_owned()),
    }
}

/// What a GPU should have carried and what it has, one way.
struct Way {
    name: String,
    /// Out of the GPU, or into it.
    is_out: bool,
    /// Whether the GPU has NVLinks.
    has_nvlinks: bool,
    /// Data by all ways.
    payload: u64,
    asked: u64,
    nvlink: u64,
    pcie: Option<u64>,
}

/// Which way the data went.
pub(super) fn path(case: &Case, moved: Moved, seen: &[Seen]) -> CountedPath {
    let asked = asked(case, seen);
    let unknown = |reason: String| CountedPath::unknown(asked, reason);
    if uses_c2c(case, seen) {
        let why = "NVLink-C2C joins GPU and CPU, and nothing counts what it carries";
        return unknown(why.to_owned());
    }
    let bytes = case.size.get().saturating_mul(moved.operations);
    if bytes < BYTES_MIN {
        return unknown(TOO_FEW.to_owned());
    }
    let mut ways = Vec::new();
    let mut pcie_unknown = None;
    let mut own = 0;
    for host in seen {
        for (gpu, load) in loads(case, bytes, host) {
            let name = name(gpu, seen, host);
            let has_nvlinks = host.nvlinked.gpus.contains(&gpu);
            // Without NVLinks nothing can go over them, whether or not they are asked.
            let by_nvlink = match nvlink(host, gpu) {
                Ok(ways) => ways,
                Err(_) if !has_nvlinks && readings(host, gpu).is_ok() => (0, 0),
                Err(why) => return unknown(format!("{name} {why}")),
            };
            let all = load.all();
            let by_pcie = pcie(host, gpu, all.0.max(all.1).max(load.own));
            if let Err(why) = &by_pcie {
                pcie_unknown.get_or_insert(format!("{name} {why}"));
            }
            let by_pcie = by_pcie.ok();
            own += load.own;
            for is_out in [true, false] {
                let of = |ways: Ways| if is_out { ways.0 } else { ways.1 };
                ways.push(Way {
                    name: format!("{} {name}", if is_out { "out of" } else { "into" }),
                    is_out,
                    has_nvlinks,
                    payload: of(all).max(load.own),
                    asked: of(load.nvlink),
                    nvlink: of(by_nvlink),
                    pcie: by_pcie.map(of),
                });
            }
        }
    }
    ways.retain(|way| way.payload > 0);
    if ways.is_empty() {
        return unknown("no GPU that was read has a part in it".to_owned());
    }
    if own > 0 { within(&ways, pcie_unknown, asked) } else { between(&ways, pcie_unknown, asked) }
}

/// Data that should not leave its GPU.
fn within(ways: &[Way], pcie_unknown: Option<String>, asked: &str) -> CountedPath {
    let left = |way: &&Way| {
        let most = NONE * way.payload as f64;
        way.nvlink as f64 > most || way.pcie.is_some_and(|bytes| bytes as f64 > most)
    };
    if let Some(way) = ways.iter().find(left) {
        let counted = way.nvlink.max(way.pcie.unwrap_or(0));
        let reason = format!(
            "{} bytes went {} for each byte of data that should stay in it: others use the GPU",
            ratio(counted, way.payload),
            way.name
        );
        return CountedPath::unknown(asked, reason);
    }
    if let Some(why) = pcie_unknown {
        return CountedPath::unknown(asked, format!("PCIe may have carried it: {why}"));
    }
    let reason = match ways.iter().any(|way| way.has_nvlinks) {
        true => "neither NVLinks nor PCIe carried any of it",
        false => "PCIe carried none of it, and the GPU has no NVLinks",
    };
    CountedPath {
        path: Some(asked.to_owned()),
        verdict: Verdict::Proven,
        reason: reason.to_owned(),
        wire_bytes_per_payload_byte: None,
    }
}

/// Data that leaves a GPU.
fn between(ways: &[Way], pcie_unknown: Option<String>, asked: &str) -> CountedPath {
    let all = |of: fn(&Way) -> u64| ways.iter().map(of).fold(0, u64::saturating_add);
    let (payload, by_nvlink) = (all(|way| way.payload), all(|way| way.nvlink));
    let by_pcie = all(|way| way.pcie.unwrap_or(0));
    let found = |path: &str, verdict, counted: Option<u64>, reason: String| CountedPath {
        path: Some(path.to_owned()),
        verdict,
        reason,
        wire_bytes_per_payload_byte: counted.map(|bytes| bytes as f64 / payload as f64),
    };
    // A counter that begins anew can look as if it had seen nothing; those of both ends do not.
    let is_missed = |way: &&Way| way.asked > 0 && way.nvlink as f64 <= NONE * way.asked as f64;
    let missed = |is_out: bool| ways.iter().find(|way| way.is_out == is_out && is_missed(way));
    if let (Some(out), Some(into)) = (missed(true), missed(false)) {
        let reason = format!(
            "NVML says that NVLinks join the GPUs, and they carried {} bytes {} for each byte",
            ratio(out.nvlink, out.payload),
            out.name
        );
        let went_over =
            |way: &Way| way.pcie.is_some_and(|bytes| bytes as f64 >= PCIE_LEAST * way.asked as f64);
        if went_over(out) && went_over(into) {
            return found("pcie", Verdict::Contradicted, Some(by_pcie), reason);
        }
        let why = pcie_unknown.unwrap_or_else(|| "nor did PCIe: counters stand still".to_owned());
        return CountedPath::unknown(asked, format!("{reason}; {why}"));
    }
    for way in ways {
        let share = way.nvlink as f64 / way.payload as f64;
        let wanted = way.asked as f64 / way.payload as f64;
        let is_over_pcie =
            |bytes: u64| bytes as f64 >= PCIE_LEAST * (way.payload - way.asked) as f64;
        let could_be_it = share <= NVLINK_MOST && !way.pcie.is_some_and(is_over_pcie);
        if wanted == 0.0 && share >= ALL && could_be_it {
            let reason = format!(
                "NVLinks carried {} bytes {} for each byte, which should not go over them",
                ratio(way.nvlink, way.payload),
                way.name
            );
            return found("nvlink", Verdict::Contradicted, Some(by_nvlink), reason);
        }
        let is_too_little = share < ALL * wanted;
        let elsewhere = way.pcie.unwrap_or(0) as f64 / way.payload as f64;
        if is_too_little && elsewhere >= PCIE_LEAST * (wanted - share).max(NONE) {
            let reason = format!(
                "NVLinks carried {} bytes {} for each byte, and PCIe {}",
                ratio(way.nvlink, way.payload),
                way.name,
                ratio(way.pcie.unwrap_or(0), way.payload)
            );
            let counted = Some(by_nvlink.saturating_add(by_pcie));
            return found("nvlink + pcie", Verdict::Contradicted, counted, reason);
        }
        if is_too_little || share > NVLINK_MOST * wanted + NONE {
            let reason = format!(
                "NVLinks carried {} bytes {} for each byte: only a part of the data, or that of \
                 others too",
                ratio(way.nvlink, way.payload),
                way.name
            );
            return CountedPath::unknown(asked, reason);
        }
    }
    let of_nvlink = ratio(by_nvlink, payload);
    if ways.iter().all(|way| way.asked == way.payload) {
        let reason = format!("NVLinks carried {of_nvlink} bytes for each byte");
        return found(asked, Verdict::Proven, Some(by_nvlink), reason);
    }
    let over_pcie = |way: &Way| (way.payload - way.asked) as f64;
    // Whatever NVLinks have not carried, somebody must have seen.
    if let Some(why) = pcie_unknown {
        let nvlinks = match ways.iter().any(|way| way.has_nvlinks) {
            true => format!("NVLinks carried {of_nvlink} bytes for each byte"),
            false => "there are no NVLinks".to_owned(),
        };
        return CountedPath::unknown(asked, format!("{nvlinks}; {why}"));
    }
    let least = |way: &&Way| (way.pcie.unwrap_or(0) as f64) < PCIE_LEAST * over_pcie(way);
    let most = |way: &&Way| {
        way.pcie.unwrap_or(0) as f64 > PCIE_MOST * over_pcie(way) + way.payload as f64 * NONE
    };
    if let Some(way) = ways.iter().find(least).or_else(|| ways.iter().find(most)) {
        let reason = format!(
            "PCIe carried {} bytes {} for each byte: not all of the data, or that of others too",
            ratio(way.pcie.unwrap_or(0), way.payload),
            way.name
        );
        return CountedPath::unknown(asked, reason);
    }
    let reason = format!(
        "PCIe carried {} bytes for each byte, NVLinks {of_nvlink}",
        ratio(by_pcie, payload)
    );
    found(asked, Verdict::Proven, Some(by_pcie.saturating_add(by_nvlink)), reason)
}
