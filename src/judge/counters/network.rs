//! Data between processes: network interfaces, or host memory.

use std::collections::{BTreeMap, BTreeSet};

use super::{ALL, BYTES_MIN, CountedPath, HOST_MEMORY, Moved, NONE, Seen, TOO_FEW, grown, ratio};
use crate::{
    machine::counters::{Interface, InterfaceKind},
    nccl_log::Verdict,
    plan::{Case, Fabric, NicName, Operation},
};

/// Headers and acknowledgements of full packets.
const WIRE_MOST: f64 = 1.35;

/// Bytes of each operation beside its data: headers, acknowledgements, and messages of ranks.
const BYTES_OF_OPERATION: f64 = 1024.0;

/// The provider that moves data within a host.
const OF_ONE_HOST: &str = "shm";

const NO_INTERFACE: &str = "the case names no interface";

/// What the interfaces have carried, by the index of the host and their name.
type Carried<'a> = BTreeMap<(usize, &'a str), Interface>;

fn carried(seen: &[Seen]) -> Result<Carried<'_>, String> {
    let mut all = BTreeMap::new();
    for (place, host) in seen.iter().enumerate() {
        for (name, before) in &host.before.interfaces {
            let after = host.after.interfaces.get(name);
            let after = after.ok_or_else(|| format!("{name} does not count any more"))?;
            let [sent, received] =
                grown([before.sent, before.received], [after.sent, after.received])
                    .map_err(|what| format!("a counter of {name} {what}"))?;
            all.insert((place, name.as_str()), Interface { sent, received, ..*before });
        }
    }
    Ok(all)
}

/// What the interfaces of a case have carried.
struct Own<'a> {
    names: BTreeSet<&'a str>,
    /// All of them together, with the kind of the first.
    together: Interface,
    /// The other interface that has carried the most.
    other: Option<(&'a str, Interface)>,
}

impl<'a> Own<'a> {
    fn of(fabric: &Fabric, seen: &'a [Seen]) -> Result<Self, String> {
        let carried = carried(seen)?;
        let mut own: Vec<(usize, &str)> = Vec::new();
        for (rank, nics) in &fabric.nics {
            let Some(place) = seen.iter().position(|host| host.ranks.contains(rank)) else {
                continue;
            };
            for NicName { device, domain, .. } in nics {
                // The kernel's name is that of the device, or of the domain if that is not known.
                let is_it = |(at, name): &&(usize, &str)| {
                    *at == place && (Some(*name) == device.as_deref() || name == domain)
                };
                let key = carried.keys().find(is_it).ok_or_else(|| {
                    let name = device.as_ref().unwrap_or(domain);
                    format!("the kernel does not tell what {name} has carried")
                })?;
                if !own.contains(key) {
                    own.push(*key);
                }
            }
        }
        let together = own.iter().map(|key| carried[key]).reduce(Interface::plus);
        let others = carried.iter().filter(|(key, _)| !own.contains(key));
        let other = others.max_by_key(|(_, of)| of.most());
        Ok(Self {
            names: own.iter().map(|(_, name)| *name).collect(),
            together: together.ok_or(NO_INTERFACE)?,
            other: other.map(|((_, name), of)| (*name, *of)),
        })
    }
}

/// The path of an RDMA case.
pub(super) fn path(case: &Case, moved: Moved, seen: &[Seen]) -> CountedPath {
    let Some(fabric) = &case.fabric else {
        return CountedPath::unknown("network", NO_INTERFACE.to_owned());
    };
    let provider = fabric.provider.split(';').next().unwrap_or_default();
    if provider == OF_ONE_HOST {
        return silence(case, moved, seen);
    }
    let Own { names, together, other } = match Own::of(fabric, seen) {
        Ok(own) => own,
        Err(why) => return CountedPath::unknown(provider, why),
    };
    let path = path_over(together.kind, provider);
    let unknown = |reason: String| CountedPath::unknown(path, reason);
    let bytes = payload(case, moved);
    if bytes < BYTES_MIN {
        return unknown(TOO_FEW.to_owned());
    }
    if BYTES_OF_OPERATION > (WIRE_MOST - 1.0) * case.size.get() as f64 {
        let why = "operations are so small that headers may be as much as the data";
        return unknown(why.to_owned());
    }
    let per_byte = |counted: u64| counted as f64 / bytes as f64;
    let (sent, most) = (together.sent, together.most());
    let names = names.into_iter().collect::<Vec<&str>>().join(" and ");
    let carried =
        |counted| format!("{names} carried {} bytes for each byte", ratio(counted, bytes));
    if per_byte(together.least()) >= ALL && most as f64 <= upper(case, bytes) {
        return CountedPath::new(path, Verdict::Proven, carried(sent), Some(per_byte(sent)));
    }
    let carried = carried(most);
    if per_byte(most) <= NONE {
        if let Some((name, of)) = other
            && of.least() as f64 >= ALL * bytes as f64
        {
            let path = path_over(of.kind, provider);
            let reason = format!("{carried}, and {name} {}", ratio(of.most(), bytes));
            let per_byte = Some(per_byte(of.most()));
            return CountedPath::new(path, Verdict::Contradicted, reason, per_byte);
        }
        let is_still = other.is_none_or(|(_, of)| of.most() as f64 <= NONE * bytes as f64);
        if seen.len() == 1 && is_still {
            return unknown(format!(
                "{carried}, and no other interface did: the ranks are on one host, where a \
                 provider may take memory that they share"
            ));
        }
    }
    unknown(format!("{carried}: only a part of the data, or that of others too"))
}

/// The name of a path over an interface of this kind: over the kernel's network, the name of the
/// provider.
fn path_over(kind: InterfaceKind, provider: &str) -> &str {
    if kind == InterfaceKind::Ethernet { provider } else { kind.into() }
}

/// The path of data that should go through memory: no interface may have carried it.
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
        let reason = format!("of all network interfaces {told}, and none more");
        return CountedPath::new(HOST_MEMORY, Verdict::Proven, reason, None);
    }
    if most.least() as f64 >= ALL * bytes as f64 && share <= WIRE_MOST {
        let reason = format!("{told}, which should go through memory");
        let path = most.kind.into();
        return CountedPath::new(path, Verdict::Contradicted, reason, Some(share));
    }
    unknown(format!("{told}: a part of the data, or that of others"))
}

/// Data of all flows. A ping-pong moves it there and back.
fn payload(case: &Case, moved: Moved) -> u64 {
    let of_flows = case.bytes_per_operation().times(moved.operations);
    let bytes = moved.bytes.unwrap_or(of_flows);
    let ways = if case.operation == Operation::PingPong { 2 } else { 1 };
    bytes.times(ways).get()
}

/// The most bytes that interfaces carry for this much data.
fn upper(case: &Case, bytes: u64) -> f64 {
    let operations = bytes as f64 / case.size.get().max(1) as f64;
    WIRE_MOST * bytes as f64 + BYTES_OF_OPERATION * operations
}
