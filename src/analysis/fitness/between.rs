//! What rows between two hosts say, and of which of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Compared, Fitness, Found, Places, Reason, Seen, Stage, faults, said_of};
use crate::{
    plan::{Operation, topology::Host},
    record::{Row, Status},
};

/// An end of a transfer between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct End {
    host: usize,
    /// Its GPU, with its interfaces, or its rank.
    part: String,
    is_source: bool,
}

impl End {
    fn both(row: &Row, places: &Places) -> Option<[Self; 2]> {
        let [from, to] = places.of_ends(row).filter(|[from, to]| from != to)?;
        let part = |gpu: Option<u32>, rank: Option<u32>, nic: &Option<String>| {
            let part = match (gpu, rank) {
                (Some(gpu), _) => format!("GPU {gpu}"),
                (None, rank) => format!("rank {}", rank.unwrap_or_default()),
            };
            let nic = nic.as_ref().map(|nic| format!(", interface {nic}"));
            part + &nic.unwrap_or_default()
        };
        let source = part(row.source_gpu, row.source_rank, &row.source_nic);
        let target = part(row.target_gpu, row.target_rank, &row.target_nic);
        Some([
            Self { host: from, part: source, is_source: true },
            Self { host: to, part: target, is_source: false },
        ])
    }
}

/// A row between two hosts with which something is wrong.
struct Bad<'a> {
    row: &'a Row,
    ends: [End; 2],
    what: String,
    shown: String,
}

/// What is wrong between hosts, by the host whose fault it is. An end that is well with other hosts
/// is not at fault; if both are, or neither was measured with others, both are suspect.
pub(super) fn reasons(
    rows: &[Seen<'_>],
    low: &Compared,
    places: &Places,
    hosts: &[Host],
) -> BTreeMap<usize, Vec<Reason>> {
    let mut bad: Vec<Bad<'_>> = Vec::new();
    let mut well: HashMap<(Option<Operation>, End), BTreeSet<usize>> = HashMap::new();
    let mut well_rails: BTreeSet<&str> = BTreeSet::new();
    for seen in rows {
        let Seen { row, is_replaced, .. } = seen;
        let Some([source, target]) = End::both(row, places) else { continue };
        match faults(seen, low).into_iter().next() {
            Some((what, shown)) => bad.push(Bad { row, ends: [source, target], what, shown }),
            None if row.status == Status::Ok && !is_replaced => {
                let (from, to) = (source.host, target.host);
                well_rails.extend(rail(row));
                well.entry((row.operation, source)).or_default().insert(to);
                well.entry((row.operation, target)).or_default().insert(from);
            }
            None => {}
        }
    }
    let rails = bad_rails(&bad, &well_rails);
    let is_well = |row: &Row, end: &End, partner: &End| {
        let others = well.get(&(row.operation, end.clone()));
        others.is_some_and(|others| others.iter().any(|other| *other != partner.host))
    };
    let mut at_fault: BTreeMap<(usize, Fitness, String), Found<'_>> = BTreeMap::new();
    for Bad { row, ends: [source, target], what, shown } in bad {
        let way = network_between(&hosts[source.host], &hosts[target.host]);
        let mut blame = |end: &End, verdict: Fitness| {
            let role = if end.is_source { "a source" } else { "a target" };
            let said = match (verdict, rail(row).and_then(|rail| rails.get(rail))) {
                (Fitness::Unfit, _) => format!("{} as {role}: ", end.part),
                (_, Some(said)) => said.clone(),
                _ => String::new(),
            };
            let found = at_fault.entry((end.host, verdict, said)).or_default();
            found.push((row, format!("{what}: {shown}{way}")));
        };
        match (is_well(row, &source, &target), is_well(row, &target, &source)) {
            (true, false) => blame(&target, Fitness::Unfit),
            (false, true) => blame(&source, Fitness::Unfit),
            (true, true) | (false, false) => {
                blame(&source, Fitness::Suspect);
                blame(&target, Fitness::Suspect);
            }
        }
    }
    let mut all: BTreeMap<usize, Vec<Reason>> = BTreeMap::new();
    for ((host, verdict, part), rows) in at_fault {
        let Some((said, shown)) = said_of("is wrong", &rows) else { continue };
        let reason = Reason { verdict, stage: Stage::Pairs, said: part + &said, shown };
        all.entry(host).or_default().push(reason);
    }
    all
}

/// The interfaces that a row goes over, where they have one name at both ends: so they are a rail of
/// the network, which joins the interfaces that have one place in their hosts.
fn rail(row: &Row) -> Option<&str> {
    row.source_nic.as_deref().filter(|nic| row.target_nic.as_deref() == Some(nic))
}

/// The rails over which nothing is well among three hosts or more, while other rails are well; with
/// what is said of each.
fn bad_rails<'a>(bad: &[Bad<'a>], well: &BTreeSet<&str>) -> BTreeMap<&'a str, String> {
    let mut hosts: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for Bad { row, ends, .. } in bad {
        let Some(rail) = rail(row).filter(|rail| !well.contains(rail)) else { continue };
        hosts.entry(rail).or_default().extend(ends.iter().map(|end| end.host));
    }
    let is_bad = |hosts: &BTreeSet<usize>| hosts.len() > 2 && !well.is_empty();
    let bad = hosts.into_iter().filter(|(_, hosts)| is_bad(hosts));
    bad.map(|(rail, hosts)| (rail, format!("the rail of {rail} in {} hosts: ", hosts.len())))
        .collect()
}

/// The nodes of the network above two hosts, if they are known.
fn network_between(one: &Host, other: &Host) -> String {
    let nodes = |host: &Host| format!("{} has {}", host.name, host.network_nodes.join(" / "));
    match one.network_nodes.is_empty() || other.network_nodes.is_empty() {
        true => String::new(),
        false => format!("; network nodes: {}, {}", nodes(one), nodes(other)),
    }
}
