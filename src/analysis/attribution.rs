//! Finds the GPU, interface, host or pair that is slower than similar ones.
//!
//! `docs/comparing.md`, "Attribution", has the method and its limits.

mod suspects;

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use crate::{
    plan::{Rank, TransportKind, topology::Host},
    record::{Naming, Row, Status},
};

use suspects::Matrix;

/// What a difference must be to be told.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// The probability, 0 to 1, that a run without any real difference has an outlier.
    pub chance: f64,
    /// Smaller relative differences are not told, however certain: a share, 0 to 1.
    pub slower: f64,
}

/// The bar of runs that are looked at by a person.
pub const BAR: Bar = Bar { chance: 0.05, slower: 0.05 };

/// Relative standard deviation of a value that has no confidence interval.
const UNTOLD_DEVIATION: f64 = 0.02;

/// The smallest relative standard deviation that is taken for real.
const DEVIATION_MIN: f64 = 0.002;

/// Two-sided 95 % quantile of the standard normal distribution.
const NORMAL_95: f64 = 1.96;

/// Matrices that are named for one suspect; further ones are counted.
const WHAT_MAX: usize = 3;

/// The side of a flow that a part is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The data comes from it.
    Source,
    /// The data goes to it.
    Target,
    /// Either side.
    Either,
}

/// What is slow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// All flows with this part of a machine.
    Part {
        /// The side of the flows.
        role: Role,
        /// Its name, such as `GPU 3`.
        name: String,
    },
    /// One flow.
    Flow {
        /// Its source.
        source: String,
        /// Its target.
        target: String,
    },
}

/// A part or a flow that is slower than similar ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// What is slow.
    pub suspect: Suspect,
    /// By how much: a share, 0 to 1, of the median of the other flows.
    pub slower: f64,
    /// How many flows it affects.
    pub flows: usize,
    /// The probability of such a difference, or a larger one, by chance.
    pub p: f64,
    /// Whether the part has enough flows in the other role for a comparison.
    pub has_other_role: bool,
    /// What was measured, such as `p2p copy write ce, 64 MiB`.
    pub what: String,
}

/// The outliers of these rows that `bar` lets through. Flows of the same `class`, such as the same
/// kind of path, are compared with each other.
pub fn find(rows: &[Row], bar: Bar, class: &dyn Fn(&Row) -> String) -> Vec<Outlier> {
    let single: Vec<&Row> = rows.iter().filter(|row| is_single_flow(row)).collect();
    let hosts = single.iter().flat_map(|row| [&row.source_host, &row.target_host]);
    let hosts: BTreeSet<&String> = hosts.flatten().collect();
    let has_hosts = hosts.len() > 1;
    let mut matrices: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for row in single {
        let size = row.size_bytes.map_or_else(String::new, |size| format!(", {size}"));
        matrices.entry(row.kind(&Naming::default()) + &size).or_default().push(row);
    }
    let bar = Bar { chance: bar.chance / matrices.len().max(1) as f64, ..bar };
    let of_matrix = |(what, members): (&String, &Vec<&Row>)| {
        matrix(what, members, class, has_hosts).suspects(bar)
    };
    matrices.iter().flat_map(of_matrix).collect()
}

/// The class of a flow's path: its expected bandwidth, whether it connects hosts or processes, and
/// how near its GPUs are to each other.
pub fn way(row: &Row, hosts: &[Host]) -> String {
    // In an NVLink domain all are alike, but for links that are down.
    if row.transport == TransportKind::P2p && row.source_host != row.target_host {
        return "between hosts over NVLink".to_owned();
    }
    let expected = row.expected_gb_s;
    let expected = expected.map_or_else(String::new, |gb_s| format!(", {gb_s:.3} GB/s"));
    format!("{}{expected}", nearness(row, hosts))
}

fn nearness(row: &Row, hosts: &[Host]) -> String {
    let (Some(source), Some(target)) = (row.source_rank, row.target_rank) else {
        return String::new();
    };
    let host = |rank| hosts.iter().position(|host| host.ranks.contains(&Rank(rank)));
    let (from, to) = (host(source), host(target));
    if from != to {
        let nodes = |host: Option<usize>| Some(&hosts.get(host?)?.network_nodes);
        let known =
            nodes(from).zip(nodes(to)).filter(|(from, to)| !from.is_empty() && !to.is_empty());
        return match known.map(|(from, to)| nodes_in_common(from, to)) {
            Some(nodes) => format!("between hosts, {nodes} network nodes in common"),
            None => "between hosts".to_owned(),
        };
    }
    let gpu = |gpu: Option<u32>| {
        let gpus = &hosts.get(from?)?.topology.gpus;
        gpus.iter().find(|node| Some(node.gpu.0) == gpu)
    };
    let is_one_process = source == target;
    let Some((source, target)) = gpu(row.source_gpu).zip(gpu(row.target_gpu)) else {
        return "on a host".to_owned();
    };
    let steps = source.pcie_path.iter().zip(&target.pcie_path);
    let shared = steps.take_while(|(here, there)| here == there).count();
    let is_near = source.numa_node == target.numa_node;
    format!(
        "{shared} PCIe steps in common, one NUMA node: {is_near}, one process: {is_one_process}"
    )
}

/// How many nodes of the network two hosts have in common, from the farthest on.
fn nodes_in_common(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Whether a row has the bandwidth of a single flow between two different places.
fn is_single_flow(row: &Row) -> bool {
    row.status == Status::Ok
        && row.flows == Some(1)
        && row.bandwidth_gb_s.is_some()
        && ends(row, true).is_some_and(|[source, target]| source.first() != target.first())
}

/// The names of what is at the source and at the target, with the host if `has_hosts`.
fn ends(row: &Row, has_hosts: bool) -> Option<[Vec<String>; 2]> {
    let end = |gpu: Option<u32>, rank: Option<u32>, nic: &Option<String>, host: &Option<String>| {
        let narrow = match (gpu, rank) {
            (Some(gpu), _) => format!("GPU {gpu}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => return None,
        };
        let host = host.as_ref().filter(|_| has_hosts);
        let on = |name: String| match host {
            Some(host) => format!("{name} of {host}"),
            None => name,
        };
        let nic = nic.as_ref().map(|nic| on(format!("interface {nic}")));
        let host = host.map(|host| format!("host {host}"));
        Some([Some(on(narrow)), nic, host].into_iter().flatten().collect())
    };
    Some([
        end(row.source_gpu, row.source_rank, &row.source_nic, &row.source_host)?,
        end(row.target_gpu, row.target_rank, &row.target_nic, &row.target_host)?,
    ])
}

fn matrix(what: &str, rows: &[&Row], class: &dyn Fn(&Row) -> String, has_hosts: bool) -> Matrix {
    let mut classes: IndexMap<String, Vec<f64>> = IndexMap::new();
    let mut class_of = |row: &&Row| {
        let entry = classes.entry(class(row));
        let index = entry.index();
        entry.or_default().extend(row.bandwidth_gb_s);
        index
    };
    let of_rows: Vec<usize> = rows.iter().map(&mut class_of).collect();
    let likes: Vec<f64> = classes.into_values().map(upper_quartile).collect();
    let mut matrix = Matrix::new(what);
    for (row, class) in rows.iter().zip(of_rows) {
        let gb_s = row.bandwidth_gb_s.filter(|gb_s| *gb_s > 0.0);
        let Some((ends, gb_s)) = ends(row, has_hosts).zip(gb_s) else { continue };
        let interval = row.bandwidth_gb_s_high.zip(row.bandwidth_gb_s_low);
        let deviation = interval.map(|(high, low)| (high - low) / 2.0 / NORMAL_95 / gb_s);
        let deviation = deviation.unwrap_or(UNTOLD_DEVIATION).max(DEVIATION_MIN);
        matrix.push(ends, (gb_s / likes[class]).ln(), deviation);
    }
    matrix
}

/// The upper quartile, which many slow flows do not move.
fn upper_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[(values.len() * 3).div_ceil(4).min(values.len() - 1)]
}

/// What is said of a part or a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// That it is slow, and how: a sentence without its full stop.
    pub said: String,
    /// What shows it: the probability by chance, and what was measured.
    pub shown: String,
    /// The part, or both ends of the flow, by their names.
    pub parts: Vec<String>,
    /// By how much at most: a share, 0 to 1.
    slower: f64,
}

/// The outliers in words, each part and flow once: parts first, the slowest of each first.
pub fn told(outliers: &[Outlier]) -> Vec<Told> {
    let mut by_suspect: BTreeMap<&Suspect, Vec<&Outlier>> = BTreeMap::new();
    for outlier in outliers {
        by_suspect.entry(&outlier.suspect).or_default().push(outlier);
    }
    let suspects: BTreeSet<&Suspect> = by_suspect.keys().copied().collect();
    let tell = |(suspect, outliers): (&Suspect, Vec<&Outlier>)| {
        (matches!(suspect, Suspect::Flow { .. }), tell(suspect, outliers, &suspects))
    };
    let mut told: Vec<(bool, Told)> = by_suspect.into_iter().map(tell).collect();
    told.sort_by(|(a_flow, a), (b_flow, b)| {
        a_flow.cmp(b_flow).then_with(|| b.slower.total_cmp(&a.slower))
    });
    told.into_iter().map(|(_, told)| told).collect()
}

fn tell(suspect: &Suspect, mut outliers: Vec<&Outlier>, suspects: &BTreeSet<&Suspect>) -> Told {
    let shares = || outliers.iter().map(|outlier| (outlier.slower * 100.0).round());
    let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
    let share = if least < most { format!("{least} to {most}") } else { most.to_string() };
    let is_normal = |role: Role, name: &str| {
        let is_it = |other: &Suspect| {
            matches!(other, Suspect::Part { role: found, name: of }
            if of == name && (*found == role || *found == Role::Either))
        };
        outliers.iter().all(|outlier| outlier.has_other_role)
            && !suspects.iter().any(|suspect| is_it(suspect))
    };
    let said = match suspect {
        Suspect::Flow { source, target } => {
            format!("{source} -> {target} is {share} % slower than other pairs")
        }
        Suspect::Part { role, name } => {
            let (of, normal) = match role {
                Role::Source if is_normal(Role::Target, name) => {
                    ("source to all", ", as a target normal")
                }
                Role::Target if is_normal(Role::Source, name) => {
                    ("target of all", ", as a source normal")
                }
                Role::Source => ("source to all", ""),
                Role::Target => ("target of all", ""),
                Role::Either => ("source and as a target", ""),
            };
            format!("{name} is {share} % slower as a {of}{normal}")
        }
    };
    outliers.sort_by(|a, b| b.slower.total_cmp(&a.slower));
    let mut what: Vec<String> =
        outliers.iter().take(WHAT_MAX).map(|outlier| outlier.what.clone()).collect();
    if let Some(left @ 1..) = outliers.len().checked_sub(WHAT_MAX) {
        what.push(format!("and {left} more"));
    }
    let p = outliers.iter().map(|outlier| outlier.p).fold(0.0, f64::max);
    let shown = format!("p {}; {}", readable_p(p), what.join("; "));
    let parts = match suspect {
        Suspect::Flow { source, target } => vec![source.clone(), target.clone()],
        Suspect::Part { name, .. } => vec![name.clone()],
    };
    Told { said, shown, parts, slower: outliers.first().map_or(0.0, |worst| worst.slower) }
}

/// A probability with its significant digits.
fn readable_p(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

#[cfg(test)]
mod tests;
