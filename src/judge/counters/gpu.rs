//! Copies by GPUs: NVLink, PCI Express, or neither.

use std::collections::BTreeMap;

use super::{ALL, BYTES_MIN, CountedPath, HOST_MEMORY, Moved, NONE, Seen, TOO_FEW, grown, ratio};
use crate::{
    machine::counters::{OfGpu, PcieBytes, Reading},
    nccl_log::Verdict,
    plan::{Case, Flow, Gpu, TransportKind},
};

/// NVLink's counters count data; on newer GPUs also headers: 16 or 32 bytes for 128.
const NVLINK_MOST: f64 = 1.35;

/// PCI Express may be counted with its headers, which are up to a third of short packets, and with
/// the requests of reads.
const PCIE_LEAST: f64 = 0.90;
const PCIE_MOST: f64 = 1.50;

/// Bytes out of a GPU and into it.
pub(super) type OutAndIn = [u64; 2];

/// The data that a case moves through one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    nvlink: OutAndIn,
    pcie: OutAndIn,
    /// Data that does not leave its memory.
    own: u64,
}

/// What should carry a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    /// The memory of one GPU.
    Memory,
    NvLink,
    Pcie,
}

fn carrier(case: &Case, flow: &Flow, host: &Seen) -> Carrier {
    // Nothing else joins GPUs of two hosts.
    if !host.ranks.contains(&flow.target.rank) || !host.ranks.contains(&flow.source.rank) {
        return Carrier::NvLink;
    }
    match flow.source.gpu().zip(flow.target.gpu()) {
        Some((source, target)) if source == target => Carrier::Memory,
        Some((source, target))
            if case.transport == TransportKind::P2p && host.nvlinked.joins(source, target) =>
        {
            Carrier::NvLink
        }
        _ => Carrier::Pcie,
    }
}

/// The name of the path that the data of a case should take.
pub(super) fn asked(case: &Case, seen: &[Seen]) -> &'static str {
    let carriers = case.flows.iter().map(|flow| {
        let host = host_of(flow, seen);
        host.map_or(Carrier::Pcie, |host| carrier(case, flow, host))
    });
    let carriers: Vec<Carrier> = carriers.collect();
    match case.transport {
        TransportKind::Local if uses_c2c(case, seen) => return "nvlink-c2c",
        TransportKind::Shm => return HOST_MEMORY,
        TransportKind::Local | TransportKind::P2p | TransportKind::Nccl | TransportKind::Rdma => {}
    }
    match (carriers.contains(&Carrier::NvLink), carriers.contains(&Carrier::Pcie)) {
        (true, true) => "nvlink + pcie",
        (true, false) => "nvlink",
        (false, true) => "pcie",
        (false, false) => "gpu-memory",
    }
}

/// Whether data goes between a GPU and a CPU that NVLink-C2C joins.
fn uses_c2c(case: &Case, seen: &[Seen]) -> bool {
    let goes_to_host = |flow: &&Flow| {
        case.transport == TransportKind::Shm || flow.source.gpu().xor(flow.target.gpu()).is_some()
    };
    let has_c2c = |flow: &Flow| {
        let mut gpus = [flow.source.gpu(), flow.target.gpu()].into_iter().flatten();
        let host = host_of(flow, seen);
        host.is_some_and(|host| gpus.any(|gpu| host.nvlinked.c2c.contains(&gpu)))
    };
    case.flows.iter().filter(goes_to_host).any(has_c2c)
}

/// The host whose counters were read for a flow.
fn host_of<'a>(flow: &Flow, seen: &'a [Seen]) -> Option<&'a Seen> {
    seen.iter().find(|host| host.ranks.contains(&flow.source.rank))
}

/// The data that a case moves through each GPU of a host.
fn loads(case: &Case, bytes: u64, host: &Seen) -> BTreeMap<Gpu, Load> {
    let mut loads: BTreeMap<Gpu, Load> = BTreeMap::new();
    if case.operation.is_switched() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
        let bytes = |share: f64| (share * bytes as f64).round() as u64;
        let all = case.switched_bytes().into_iter();
        let here = all.filter(|((rank, _), _)| host.ranks.contains(rank));
        let load = |share: [f64; 2]| Load { nvlink: share.map(bytes), ..Load::default() };
        return here.map(|((_, gpu), share)| (gpu, load(share))).collect();
    }
    for flow in &case.flows {
        let carrier = carrier(case, flow, host);
        for (direction, end) in [flow.source, flow.target].into_iter().enumerate() {
            let Some(gpu) = end.gpu().filter(|_| host.ranks.contains(&end.rank)) else { continue };
            let load = loads.entry(gpu).or_default();
            match carrier {
                Carrier::Memory if direction == 0 => load.own += bytes,
                Carrier::Memory => {}
                Carrier::NvLink => load.nvlink[direction] += bytes,
                Carrier::Pcie => load.pcie[direction] += bytes,
            }
        }
    }
    loads
}

/// What the NVLinks of a GPU have carried between the readings, or why that is not known: a
/// sentence about the GPU, without its subject.
pub(super) fn nvlink(host: &Seen, gpu: Gpu) -> Result<OutAndIn, String> {
    let (before, after) = readings(host, gpu)?;
    let untold = |why: &String| format!("does not tell what its NVLinks have carried ({why})");
    let before = before.nvlinks.as_ref().map_err(untold)?;
    let after = after.nvlinks.as_ref().map_err(untold)?;
    if !before.iter().map(|link| link.number).eq(after.iter().map(|link| link.number)) {
        return Err("has other NVLinks than before".to_owned());
    }
    let mut sum = [0_u64; 2];
    for (before, after) in before.iter().zip(after) {
        let [sent, received] = grown([before.sent, before.received], [after.sent, after.received])
            .map_err(|what| format!("has a counter of NVLink {} that {what}", after.number))?;
        // A GPU that is gone reads as all ones.
        sum = [sum[0].saturating_add(sent), sum[1].saturating_add(received)];
    }
    Ok(sum)
}

/// What the PCI Express link of a GPU has carried; `at_most` bytes are expected.
fn pcie(host: &Seen, gpu: Gpu, at_most: u64) -> Result<OutAndIn, String> {
    let (before, after) = readings(host, gpu)?;
    let untold = |why: &String| format!("does not tell what PCIe has carried ({why})");
    let PcieBytes { sent, received, bits } = before.pcie.as_ref().map_err(untold)?;
    let after = after.pcie.as_ref().map_err(untold)?;
    if *bits == u32::BITS {
        if at_most as f64 * PCIE_MOST >= f64::from(u32::MAX) {
            return Err("counts PCIe's bytes with 32 bits, which run over".to_owned());
        }
        let over = |before: u64, after: u64| after.wrapping_sub(before) & u64::from(u32::MAX);
        return Ok([over(*sent, after.sent), over(*received, after.received)]);
    }
    grown([*sent, *received], [after.sent, after.received])
        .map_err(|what| format!("has a counter of PCIe that {what}"))
}

/// The readings of a GPU before and after.
fn readings(host: &Seen, gpu: Gpu) -> Result<(&OfGpu, &OfGpu), String> {
    fn of(reading: &Reading, gpu: Gpu) -> Result<&OfGpu, String> {
        match reading.gpus.get(&gpu) {
            Some(Ok(of)) => Ok(of),
            Some(Err(why)) => Err(format!("does not answer ({why})")),
            None => Err("was not asked".to_owned()),
        }
    }
    Ok((of(&host.before, gpu)?, of(&host.after, gpu)?))
}

/// The name of a GPU, with its host if there are several.
fn name(gpu: Gpu, seen: &[Seen], host: &Seen) -> String {
    match (seen.len(), host.ranks.first()) {
        (2.., Some(rank)) => format!("GPU {} of the host of rank {}", gpu.0, rank.0),
        _ => format!("GPU {}", gpu.0),
    }
}

/// What a GPU should have carried in one direction, and what it has.
struct Way {
    /// Such as `out of GPU 1`.
    name: String,
    is_out: bool,
    has_nvlinks: bool,
    /// All data.
    payload: u64,
    /// The part of it that NVLinks should carry.
    asked: u64,
    /// What NVLinks have counted.
    nvlink: u64,
    /// What PCI Express has counted; 0 where that is not known.
    pcie: u64,
}

impl Way {
    /// Whether NVLinks have carried nothing of what they should.
    fn is_missed(&self) -> bool {
        self.asked > 0 && self.nvlink as f64 <= NONE * self.asked as f64
    }

    /// What PCI Express should carry.
    fn rest(&self) -> u64 {
        self.payload - self.asked
    }

    /// Bytes of a counter, for a sentence.
    fn carried(&self, counted: u64) -> String {
        format!("carried {} bytes {} for each byte", ratio(counted, self.payload), self.name)
    }
}

/// All ways of a case.
struct Ways<'a> {
    /// The name of the path that was asked for.
    asked: &'a str,
    ways: Vec<Way>,
    /// Why PCI Express was not counted at a GPU.
    pcie_unknown: Option<String>,
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
            // A GPU without NVLinks carries nothing over them.
            let by_nvlink = match nvlink(host, gpu) {
                Ok(counted) => counted,
                Err(_) if !has_nvlinks && readings(host, gpu).is_ok() => [0; 2],
                Err(why) => return unknown(format!("{name} {why}")),
            };
            own += load.own;
            let payload = [0, 1].map(|way| load.own.max(load.nvlink[way] + load.pcie[way]));
            let by_pcie = pcie(host, gpu, payload[0].max(payload[1])).unwrap_or_else(|why| {
                pcie_unknown.get_or_insert(format!("{name} {why}"));
                [0; 2]
            });
            for (way, direction) in ["out of", "into"].into_iter().enumerate() {
                ways.push(Way {
                    name: format!("{direction} {name}"),
                    is_out: way == 0,
                    has_nvlinks,
                    payload: payload[way],
                    asked: load.nvlink[way],
                    nvlink: by_nvlink[way],
                    pcie: by_pcie[way],
                });
            }
        }
    }
    ways.retain(|way| way.payload > 0);
    if ways.is_empty() {
        return unknown("no GPU that was read has a part in it".to_owned());
    }
    let ways = Ways { asked, ways, pcie_unknown };
    if own > 0 { ways.within() } else { ways.between() }
}

impl Ways<'_> {
    fn unknown(&self, reason: String) -> CountedPath {
        CountedPath::unknown(self.asked, reason)
    }

    /// The sum of all ways.
    fn all(&self, of: impl Fn(&Way) -> u64) -> u64 {
        self.ways.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The data went over `path`, by what `of` has counted of each way.
    fn counted(
        &self,
        path: &str,
        verdict: Verdict,
        reason: String,
        of: impl Fn(&Way) -> u64,
    ) -> CountedPath {
        let per_byte = self.all(of) as f64 / self.all(|way| way.payload) as f64;
        CountedPath::new(path, verdict, reason, Some(per_byte))
    }

    fn has_nvlinks(&self) -> bool {
        self.ways.iter().any(|way| way.has_nvlinks)
    }

    /// Data that should not leave its GPU.
    fn within(self) -> CountedPath {
        let has_left = |way: &&Way| way.nvlink.max(way.pcie) as f64 > NONE * way.payload as f64;
        if let Some(way) = self.ways.iter().find(has_left) {
            let reason = format!(
                "{} bytes went {} for each byte of data that should stay in it: others use the GPU",
                ratio(way.nvlink.max(way.pcie), way.payload),
                way.name
            );
            return self.unknown(reason);
        }
        if let Some(why) = &self.pcie_unknown {
            return self.unknown(format!("PCIe may have carried it: {why}"));
        }
        let reason = match self.has_nvlinks() {
            true => "neither NVLinks nor PCIe carried any of it",
            false => "PCIe carried none of it, and the GPU has no NVLinks",
        };
        CountedPath::new(self.asked, Verdict::Proven, reason.to_owned(), None)
    }

    /// Data that leaves a GPU.
    fn between(self) -> CountedPath {
        let elsewhere =
            self.missed().or_else(|| self.ways.iter().find_map(|way| self.misplaced(way)));
        elsewhere.unwrap_or_else(|| self.as_asked())
    }

    /// The verdict if NVLinks did not carry what they should have. One counter that was reset may
    /// seem to have counted nothing, but not those of both ends.
    fn missed(&self) -> Option<CountedPath> {
        let missed = |is_out| self.ways.iter().find(|way| way.is_out == is_out && way.is_missed());
        let (out, into) = (missed(true)?, missed(false)?);
        let reason =
            format!("NVML says that NVLinks join the GPUs, and they {}", out.carried(out.nvlink));
        let went_over_pcie = |way: &Way| way.pcie as f64 >= PCIE_LEAST * way.asked as f64;
        if went_over_pcie(out) && went_over_pcie(into) {
            return Some(self.counted("pcie", Verdict::Contradicted, reason, |way| way.pcie));
        }
        let why = self.pcie_unknown.as_deref();
        let why = why.unwrap_or("nor did PCIe: counters stand still");
        Some(self.unknown(format!("{reason}; {why}")))
    }

    /// The verdict if NVLinks carried what they should not have, or less than they should have.
    fn misplaced(&self, way: &Way) -> Option<CountedPath> {
        let per_byte = |bytes: u64| bytes as f64 / way.payload as f64;
        let (share, wanted) = (per_byte(way.nvlink), per_byte(way.asked));
        let carried = format!("NVLinks {}", way.carried(way.nvlink));
        let is_over_pcie = way.pcie as f64 >= PCIE_LEAST * way.payload as f64;
        if way.asked == 0 && (ALL..=NVLINK_MOST).contains(&share) && !is_over_pcie {
            let reason = format!("{carried}, which should not go over them");
            return Some(self.counted("nvlink", Verdict::Contradicted, reason, |way| way.nvlink));
        }
        let is_too_little = share < ALL * wanted;
        if is_too_little && per_byte(way.pcie) >= PCIE_LEAST * (wanted - share).max(NONE) {
            let reason = format!("{carried}, and PCIe {}", ratio(way.pcie, way.payload));
            let both = |way: &Way| way.nvlink.saturating_add(way.pcie);
            return Some(self.counted("nvlink + pcie", Verdict::Contradicted, reason, both));
        }
        (is_too_little || share > NVLINK_MOST * wanted + NONE).then(|| {
            let doubt = "only a part of the data, or that of others too";
            self.unknown(format!("{carried}: {doubt}"))
        })
    }

    /// The verdict if NVLinks carried what they should have.
    fn as_asked(&self) -> CountedPath {
        let payload = self.all(|way| way.payload);
        let by_nvlink = ratio(self.all(|way| way.nvlink), payload);
        let nvlinks = format!("NVLinks carried {by_nvlink} bytes for each byte");
        if self.ways.iter().all(|way| way.rest() == 0) {
            return self.counted(self.asked, Verdict::Proven, nvlinks, |way| way.nvlink);
        }
        // PCIe must have counted what NVLinks did not carry.
        if let Some(why) = &self.pcie_unknown {
            let nvlinks =
                if self.has_nvlinks() { nvlinks } else { "there are no NVLinks".to_owned() };
            return self.unknown(format!("{nvlinks}; {why}"));
        }
        let is_less = |way: &&Way| (way.pcie as f64) < PCIE_LEAST * way.rest() as f64;
        let is_more = |way: &&Way| {
            way.pcie as f64 > PCIE_MOST * way.rest() as f64 + NONE * way.payload as f64
        };
        let ways = &self.ways;
        if let Some(way) = ways.iter().find(is_less).or_else(|| ways.iter().find(is_more)) {
            let doubt = "not all of the data, or that of others too";
            return self.unknown(format!("PCIe {}: {doubt}", way.carried(way.pcie)));
        }
        let by_pcie = ratio(self.all(|way| way.pcie), payload);
        let reason = format!("PCIe carried {by_pcie} bytes for each byte, NVLinks {by_nvlink}");
        let both = |way: &Way| way.nvlink.saturating_add(way.pcie);
        self.counted(self.asked, Verdict::Proven, reason, both)
    }
}
