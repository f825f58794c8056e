//! What the collective of all hosts, and those of parts of them, say of a host.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{Fitness, HostFitness, Reason, Seen, Stage, rate, unknown};
use crate::{
    judge::expected::Verdict as RowVerdict,
    plan::topology::Host,
    record::{Row, Status},
    units::count,
};

/// Whether a collective is slow: below what is expected, or so far below that it needs no interval.
pub fn is_slow(row: &Row) -> bool {
    let is_far_below = rate(row)
        .zip(row.expected_gb_s_low)
        .is_some_and(|(gb_s, low)| row.status == Status::Ok && gb_s < low / 2.0);
    is_far_below || row.verdict == Some(RowVerdict::Below)
}

/// A collective of some hosts, by their places.
struct Group<'a> {
    hosts: RangeInclusive<usize>,
    row: &'a Row,
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
    fn fault(&self) -> Option<(&'static str, String)> {
        let reason = || self.row.reason.clone();
        match self.row.status {
            Status::Corrupt => Some(("is corrupt", reason())),
            Status::Failed => Some(("failed", reason())),
            Status::Ok if is_slow(self.row) => {
                let [own, least, expected] =
                    [rate(self.row), self.row.expected_gb_s_low, self.row.expected_gb_s]
                        .map(Option::unwrap_or_default);
                let from = self.row.expected_from.as_deref().unwrap_or_default();
                let shown = format!(
                    "{own:.3} GB/s of bus bandwidth; {expected:.3} GB/s, and at least \
                     {least:.3} GB/s, are expected: {from}"
                );
                Some(("is below what is expected", shown))
            }
            // What is wrong with a GPU or with NVLink is told by the rows of its host.
            Status::Ok if self.row.reason.contains("net bw: ") => {
                Some(("is flagged nccl_diagnosis", reason()))
            }
            Status::Ok | Status::Skipped => None,
        }
    }
}

/// Reasons by host, of which the other stages say what `known` has. Those of the smallest group in
/// which something is wrong are suspect, unless one of them is known to have a fault.
pub(super) fn reasons(
    rows: &[Seen<'_>],
    hosts: &[Host],
    known: &[HostFitness],
) -> BTreeMap<usize, Vec<Reason>> {
    let mut all: BTreeMap<usize, Vec<Reason>> = BTreeMap::new();
    let place =
        |name: &Option<String>| hosts.iter().position(|host| Some(&host.name) == name.as_ref());
    let own = rows.iter().filter(|seen| Stage::of_row(seen.row) == Some(Stage::Together));
    let groups: Vec<Group<'_>> = own
        .filter(|seen| !seen.is_replaced && !seen.is_optional)
        .filter_map(|Seen { row, .. }| {
            let [first, last] = [place(&row.source_host)?, place(&row.target_host)?];
            Some(Group { hosts: first..=last, row })
        })
        .collect();
    let bad = groups.iter().filter_map(|group| Some((group, group.fault()?)));
    let bad: Vec<(&Group<'_>, (&'static str, String))> = bad.collect();
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
    for Group { hosts, row } in &groups {
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
