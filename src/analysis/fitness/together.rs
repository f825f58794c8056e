//! What the collective of all hosts, and those of parts of them, say of a host.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{BELOW, Compared, Fitness, HostFitness, Reason, Seen, Stage, faults, rate, unknown};
use crate::{
    judge::expected::Verdict as RowVerdict,
    plan::topology::Host,
    record::{Row, Status},
    units::count,
};

/// Whether a collective is slow: below what is expected, or so far below that it needs no interval.
pub fn is_slow(row: &Row) -> bool {
    row.verdict == Some(RowVerdict::Below) || far_below(row).is_some()
}

/// What shows that a collective reaches less than half of what is expected at least.
fn far_below(row: &Row) -> Option<String> {
    let (gb_s, low) = (rate(row)?, row.expected_gb_s_low?);
    let from = row.expected_from.as_deref().unwrap_or_default();
    (row.status == Status::Ok && gb_s < low / 2.0)
        .then(|| format!("{gb_s:.3} GB/s, and {low:.3} GB/s at least are expected: {from}"))
}

/// A collective of some hosts, by their places.
struct Group<'a> {
    hosts: RangeInclusive<usize>,
    seen: &'a Seen<'a>,
}

impl Group<'_> {
    fn len(&self) -> usize {
        self.hosts.end() - self.hosts.start() + 1
    }

    fn is_within(&self, other: &Self) -> bool {
        self.len() < other.len()
            && other.hosts.contains(self.hosts.start())
            && other.hosts.contains(self.hosts.end())
    }

    /// What is wrong with it, and what shows it.
    fn fault(&self, low: &Compared) -> Option<(String, String)> {
        let far = far_below(self.seen.row).map(|shown| (BELOW.to_owned(), shown));
        far.or_else(|| faults(self.seen, low).into_iter().next())
    }
}

/// Reasons by host, of which the other stages say what `known` has. Those of the smallest group in
/// which something is wrong are suspect, unless one of them is known to have a fault.
pub(super) fn reasons(
    rows: &[Seen<'_>],
    low: &Compared,
    hosts: &[Host],
    known: &[HostFitness],
) -> BTreeMap<usize, Vec<Reason>> {
    let mut all: BTreeMap<usize, Vec<Reason>> = BTreeMap::new();
    let place =
        |name: &Option<String>| hosts.iter().position(|host| Some(&host.name) == name.as_ref());
    let own = rows.iter().filter(|seen| Stage::of_row(seen.row) == Some(Stage::Together));
    let groups: Vec<Group<'_>> = own
        .filter(|seen| !seen.is_replaced && !seen.is_optional)
        .filter_map(|seen| {
            let [first, last] = [&seen.row.source_host, &seen.row.target_host].map(place);
            Some(Group { hosts: first?..=last?, seen })
        })
        .collect();
    let bad = groups.iter().filter_map(|group| Some((group, group.fault(low)?)));
    let bad: Vec<(&Group<'_>, (String, String))> = bad.collect();
    let is_smallest = |group: &Group<'_>| !bad.iter().any(|(other, _)| other.is_within(group));
    let has_fault = |host: usize| known[host].verdict <= Fitness::Suspect;
    let smallest = bad.iter().filter(|(group, _)| is_smallest(group));
    for (group, (what, shown)) in smallest {
        if group.hosts.clone().any(has_fault) {
            continue;
        }
        let [first, last] = [group.hosts.start(), group.hosts.end()].map(|host| &hosts[*host].name);
        let of = match (group.len(), hosts.len()) {
            (2, _) => format!("{first} and {last}"),
            (some, all) if some == all => format!("all {}", count(all, "host")),
            (some, _) => format!("the {} from {first} to {last}", count(some, "host")),
        };
        let halves = groups.iter().any(|other| other.is_within(group));
        let though = if halves { ", though that of each half of them is not" } else { "" };
        let said = format!("all_reduce of {of} {what}{though}");
        for host in group.hosts.clone() {
            let (verdict, stage, shown) = (Fitness::Suspect, Stage::Together, shown.clone());
            let reason = Reason { verdict, stage, said: said.clone(), shown };
            all.entry(host).or_default().push(reason);
        }
    }
    for Group { hosts, seen } in &groups {
        let row = seen.row;
        let is_open = row.verdict == Some(RowVerdict::Unknown)
            && row.expected_gb_s.is_some()
            && !is_slow(row);
        let (said, shown) = match row.status {
            Status::Skipped => ("not measured", &row.reason),
            Status::Ok if is_open => (
                "all_reduce of hosts could not be judged",
                row.verdict_reason.as_ref().unwrap_or(&row.reason),
            ),
            Status::Ok | Status::Corrupt | Status::Failed => continue,
        };
        for host in hosts.clone() {
            all.entry(host).or_default().push(unknown(Stage::Together, said, shown));
        }
    }
    all
}
