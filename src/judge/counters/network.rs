//! Data between processes: network interfaces, or host memory.

use std::collections::BTreeMap;

use super::{ALL, BYTES_MIN, CountedPath, HOST_MEMORY, Moved, NONE, Seen, TOO_FEW, grown, ratio};
use crate::{
    machine::counters::InterfaceKind,
    nccl_log::Verdict,
    plan::{Case, NicName, Operation},
};

/// Headers and acknowledgements of full packets.
const WIRE_MOST: f64 = 1.35;

/// Of each operation beside its data: headers, acknowledgements, and what ranks tell each other.
const BYTES_OF_OPERATION: f64 = 1024.0;

/// The provider that moves data within a host.
const OF_ONE_HOST: &str = "shm";

/// What an interface has carried on all hosts on which it is named.
#[derive(Clone, Copy, Debug)]
struct Carried {
    kind: InterfaceKind,
    sent: u64,
    received: u64,
}

impl Carried {
    fn most(self) -> u64 {
        self.sent.max(self.received)
    }
}

/// What the interfaces have carried: those of each host by their names, with the host's place.
///
/// # Errors
///
/// A counter that went back, or an interface that is gone.
fn carried(seen: &[Seen]) -> Result<BTreeMap<(usize, &str), Carried>, String> {
    let mut all = BTreeMap::new();
    for (place, host) in seen.iter().enumerate() {
        for (name, before) in &host.before.interfaces {
            let after = host.after.interfaces.get(name);
            let after = after.ok_or_else(|| format!("{name} does not count any more"))?;
            let went_back = |what: String| format!("a counter of {name} {what}");
            let sent = grown(before.sent, after.sent).map_err(went_back)?;
            let received = grown(before.received, after.received).map_err(went_back)?;
            all.insert((place, name.as_str()), Carried { kind: before.kind, sent, received });
        }
    }
    Ok(all)
}

/// The way over the interfaces of a case of RDMA.
pub(super) fn path(case: &Case, moved: Moved, seen: &[Seen]) -> CountedPath {
    let Some(fabric) = &case.fabric else {
        return CountedPath::unknown("network", "the case names no interface".to_owned());
    };
    let provider = fabric.provider.split(';').next().unwrap_or_default();
    if provider == OF_ONE_HOST {
        return silence(case, moved, seen);
    }
    let bytes = payload(case, moved);
    let carried = match carried(seen) {
        Ok(carried) => carried,
        Err(why) => return CountedPath::unknown(provider, why),
    };
    let mut own: Vec<(usize, &str)> = Vec::new();
    for (rank, nics) in &fabric.nics {
        let Some(place) = seen.iter().position(|host| host.ranks.contains(rank)) else { continue };
        for NicName { device, domain, .. } in nics {
            // It is named by its device, where the provider tells that, else by its domain.
            let is_it = |key: &&(usize, &str)| {
                key.0 == place && (Some(key.1) == device.as_deref() || key.1 == domain)
            };
            match carried.keys().find(is_it) {
                Some(key) if own.contains(key) => {}
                Some(key) => own.push(*key),
                None => {
                    let name = device.as_ref().unwrap_or(domain);
                    let why = format!("the kernel does not tell what {name} has carried");
                    return CountedPath::unknown(provider, why);
                }
            }
        }
    }
    let Some(kind) = own.first().map(|key| carried[key].kind) else {
        return CountedPath::unknown(provider, "the case names no interface".to_owned());
    };
    let path = path_over(kind, provider);
    if bytes < BYTES_MIN {
        return CountedPath::unknown(path, TOO_FEW.to_owned());
    }
    if BYTES_OF_OPERATION > (WIRE_MOST - 1.0) * case.size.get() as f64 {
        let why = "operations are so small that headers may be as much as the data";
        return CountedPath::unknown(path, why.to_owned());
    }
    let sum = |way: fn(&Carried) -> u64| {
        own.iter().map(|key| way(&carried[key])).fold(0, u64::saturating_add)
    };
    let (sent, received) = (sum(|of| of.sent), sum(|of| of.received));
    let mut names: Vec<&str> = own.iter().map(|(_, name)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let names = names.join(" and ");
    let least = sent.min(received) as f64 / bytes as f64;
    let most = sent.max(received);
    let found = |path: &str, verdict, counted: u64, reason: String| CountedPath {
        path: Some(path.to_owned()),
        verdict,
        reason,
        wire_bytes_per_payload_byte: Some(counted as f64 / bytes as f64),
    };
    if least >= ALL && most as f64 <= upper(case, bytes) {
        let reason = format!("{names} carried {} bytes for each byte", ratio(sent, bytes));
        return found(path, Verdict::Proven, sent, reason);
    }
    if most as f64 / bytes as f64 <= NONE {
        let others = carried.iter().filter(|(key, _)| !own.contains(key));
        let other = others.max_by_key(|(_, of)| of.most());
        if let Some(((_, name), of)) = other
            && of.sent.min(of.received) as f64 >= ALL * bytes as f64
        {
            let reason = format!(
                "{names} carried {} bytes for each byte, and {name} {}",
                ratio(most, bytes),
                ratio(of.most(), bytes)
            );
            return found(path_over(of.kind, provider), Verdict::Contradicted, of.most(), reason);
        }
        let is_still = other.is_none_or(|(_, of)| of.most() as f64 <= NONE * bytes as f64);
        if seen.len() == 1 && is_still {
            let reason = format!(
                "{names} carried {} bytes for each byte, and no other interface did: the ranks are \
                 on one host, where a provider may take memory that they share",
                ratio(most, bytes)
            );
            return CountedPath::unknown(path, reason);
        }
    }
    let reason = format!(
        "{names} carried {} bytes for each byte: only a part of the data, or that of others too",
        ratio(most, bytes)
    );
    CountedPath::unknown(path, reason)
}

/// The name of a path over an interface of this kind: that of the kernel's network has the name of
/// what the provider speaks there.
fn path_over(kind: InterfaceKind, provider: &str) -> &str {
    if kind == InterfaceKind::Ethernet { provider } else { kind.path() }
}

/// Data that goes through memory: no interface may have carried it.
pub(super) fn silence(case: &Case, moved: Moved, seen: &[Seen]) -> CountedPath {
    let unknown = |why: String| CountedPath::unknown(HOST_MEMORY, why);
    let bytes = payload(case, moved);
    if bytes < BYTES_MIN {
        return unknown(TOO_FEW.to_owned());
    }
    let carried = match carried(seen) {
        Ok(carried) => carried,
        Err(why) => return unknown(why),
    };
    let Some(((_, name), most)) = carried.iter().max_by_key(|(_, of)| of.most()) else {
        return unknown("the kernel counts no network interface".to_owned());
    };
    let share = most.most() as f64 / bytes as f64;
    let told = format!("{name} carried {} bytes for each byte", ratio(most.most(), bytes));
    if share <= NONE {
        return CountedPath {
            path: Some(HOST_MEMORY.to_owned()),
            verdict: Verdict::Proven,
            reason: format!("of all network interfaces {told}, and none more"),
            wire_bytes_per_payload_byte: None,
        };
    }
    if most.sent.min(most.received) as f64 >= ALL * bytes as f64 && share <= WIRE_MOST {
        return CountedPath {
            path: Some(most.kind.path().to_owned()),
            verdict: Verdict::Contradicted,
            reason: format!("{told}, which should go through memory"),
            wire_bytes_per_payload_byte: Some(share),
        };
    }
    unknown(format!("{told}: a part of the data, or that of others"))
}

/// Data of all flows; in a ping-pong each operation goes there and back.
fn payload(case: &Case, moved: Moved) -> u64 {
    let of_flows = case.bytes_per_operation().times(moved.operations);
    let bytes = moved.bytes.unwrap_or(of_flows);
    let ways = if case.operation == Operation::PingPong { 2 } else { 1 };
    bytes.times(ways).get()
}

/// The most that interfaces carry for so much data.
fn upper(case: &Case, bytes: u64) -> f64 {
    let operations = bytes as f64 / case.size.get().max(1) as f64;
    WIRE_MOST * bytes as f64 + BYTES_OF_OPERATION * operations
}
