//! Which GPU, interface, host or pair is slower than its like.
//!
//! `docs/measurement.md`, "Attribution", has the method, and what it cannot tell.

use std::collections::{BTreeMap, BTreeSet};

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::{
    plan::{Rank, topology::Host},
    record::Columns,
    units::Bytes,
};

/// The chance that a run in which all are alike has any finding.
const MISS: f64 = 0.05;

/// What differs by less is not told of, however certain: a share.
const DIFFERENCE_MIN: f64 = 0.05;

/// Standard deviation of a value that says nothing of its own, as a share of it.
const UNTOLD_DEVIATION: f64 = 0.02;

/// The smallest standard deviation that is believed, as a share.
const DEVIATION_MIN: f64 = 0.002;

/// From the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATIONS_PER_MEDIAN: f64 = 1.4826;

/// Standard errors of a median in those of a mean, for a normal distribution: √(π / 2).
const ERRORS_OF_MEDIAN: f64 = 1.2533;

/// Quantile of the standard normal distribution within which 95 % lie on both sides.
const NORMAL_95: f64 = 1.96;

/// So many of what a suspect was seen in are named; more are counted.
const WHAT_MAX: usize = 3;

/// On which side of a flow something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Where data comes from.
    Source,
    /// Where data goes.
    Target,
    /// On either.
    Either,
}

/// What is slow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// All flows with this part of a machine.
    Part {
        /// As which end.
        role: Role,
        /// Its name, such as `GPU 3`.
        name: String,
    },
    /// One flow.
    Flow {
        /// Where it starts.
        source: String,
        /// Where it ends.
        target: String,
    },
}

/// Something that is slower than its like.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What is slow.
    pub suspect: Suspect,
    /// How much: a share, 0 to 1, of the median of the flows that are not slow.
    pub slower: f64,
    /// How many flows it is seen in.
    pub flows: usize,
    /// The chance of such a difference, or a greater one, if all are alike.
    pub p: f64,
    /// Whether a part was also held against others by its flows in the other role alone.
    pub has_other_role: bool,
    /// What was measured, such as `p2p copy write ce, 64 MiB`.
    pub what: String,
}

/// One flow of a matrix.
#[derive(Clone, Debug)]
struct Cell {
    /// What is at its source, from the narrowest to the widest: a GPU, an interface, a host.
    source: Vec<String>,
    target: Vec<String>,
    /// Logarithm of its bandwidth over that of its like.
    value: f64,
    /// Standard deviation of `value` by the measurement itself.
    deviation: f64,
}

/// What is slower than its like in these rows. Flows are alike that have the same `class`, such as
/// the kind of way between the two.
pub fn find(rows: &Columns, class: &dyn Fn(usize) -> String) -> Vec<Finding> {
    let single = (0..rows.len()).filter(|row| is_single_flow(rows, *row));
    let single: Vec<usize> = single.collect();
    let hosts = single
        .iter()
        .flat_map(|row| ["source_host", "target_host"].map(|column| rows.text(*row, column)));
    let hosts: BTreeSet<&str> = hosts.filter(|host| !host.is_empty()).collect();
    let has_hosts = hosts.len() > 1;
    let mut matrices: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for row in single {
        matrices.entry(what(rows, row)).or_default().push(row);
    }
    let level = MISS / matrices.len().max(1) as f64;
    let of_matrix = |(what, members): (&String, &Vec<usize>)| {
        let found = suspects(cells(rows, members, class, has_hosts), level);
        let named = found.into_iter().map(|finding| Finding { what: what.clone(), ..finding });
        named.collect::<Vec<Finding>>()
    };
    matrices.iter().flat_map(of_matrix).collect()
}

/// The kind of way that a flow takes: what it is expected to reach, and whether it goes between hosts or,
/// on one, between processes, and how near two GPUs are to each other.
pub fn way(rows: &Columns, row: usize, hosts: &[Host]) -> String {
    let expected = rows.number(row, "expected_gb_s");
    let expected = expected.map_or_else(String::new, |gb_s| format!(", {gb_s:.3} GB/s"));
    format!("{}{expected}", nearness(rows, row, hosts))
}

fn nearness(rows: &Columns, row: usize, hosts: &[Host]) -> String {
    let number = |column| Some(u32::try_from(rows.count(row, column)?).unwrap_or(u32::MAX));
    let (Some(source), Some(target)) = (number("source_rank"), number("target_rank")) else {
        return String::new();
    };
    let host = |rank| hosts.iter().position(|host| host.ranks.contains(&Rank(rank)));
    let (from, to) = (host(source), host(target));
    if from != to {
        return "between hosts".to_owned();
    }
    let gpu = |column| {
        let gpu = number(column)?;
        let gpus = &hosts.get(from?)?.topology.gpus;
        gpus.iter().find(|node| node.gpu.0 == gpu)
    };
    let Some((source, target)) = gpu("source_gpu").zip(gpu("target_gpu")) else {
        return "on a host".to_owned();
    };
    let is_one_process = rows.text(row, "source_rank") == rows.text(row, "target_rank");
    let steps = source.pcie_path.iter().zip(&target.pcie_path);
    let shared = steps.take_while(|(here, there)| here == there).count();
    let is_near = source.numa_node == target.numa_node;
    format!(
        "{shared} PCIe steps in common, one NUMA node: {is_near}, one process: {is_one_process}"
    )
}

/// Whether a row is the bandwidth of one flow from one place to another, with nothing beside it.
fn is_single_flow(rows: &Columns, row: usize) -> bool {
    rows.text(row, "status") == "ok"
        && rows.text(row, "flows") == "1"
        && rows.number(row, "bandwidth_gb_s").is_some()
        && ends(rows, row, true).is_some_and(|[source, target]| source.first() != target.first())
}

/// What two rows must have in common to be of one matrix.
fn what(rows: &Columns, row: usize) -> String {
    let columns = ["transport", "operation", "issuer", "engine", "source_memory", "provider"];
    let words = columns.map(|column| rows.text(row, column));
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let size =
        rows.count(row, "size_bytes").map(|size| format!(", {}", Bytes::new(size).rounded()));
    format!("{}{}", words.join(" "), size.unwrap_or_default())
}

/// What is at the source and at the target; with its host, if that is to be told.
fn ends(rows: &Columns, row: usize, has_hosts: bool) -> Option<[Vec<String>; 2]> {
    let end = |[gpu, rank, nic, host]: [&str; 4]| {
        let told = |column| Some(rows.text(row, column)).filter(|cell| !cell.is_empty());
        let narrow = match (told(gpu), told(rank)) {
            (Some(gpu), _) => format!("GPU {gpu}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => return None,
        };
        let host = told(host).filter(|_| has_hosts);
        let on = |name: String| match host {
            Some(host) => format!("{name} of {host}"),
            None => name,
        };
        let nic = told(nic).map(|nic| on(format!("interface {nic}")));
        let host = host.map(|host| format!("host {host}"));
        Some([Some(on(narrow)), nic, host].into_iter().flatten().collect())
    };
    Some([
        end(["source_gpu", "source_rank", "source_nic", "source_host"])?,
        end(["target_gpu", "target_rank", "target_nic", "target_host"])?,
    ])
}

fn cells(
    rows: &Columns,
    members: &[usize],
    class: &dyn Fn(usize) -> String,
    has_hosts: bool,
) -> Vec<Cell> {
    let mut classes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for &row in members {
        classes.entry(class(row)).or_default().extend(rows.number(row, "bandwidth_gb_s"));
    }
    let cell = |&row: &usize| {
        let [source, target] = ends(rows, row, has_hosts)?;
        let gb_s = rows.number(row, "bandwidth_gb_s").filter(|gb_s| *gb_s > 0.0)?;
        let [low, high] =
            ["bandwidth_gb_s_low", "bandwidth_gb_s_high"].map(|end| rows.number(row, end));
        let deviation = high.zip(low).map(|(high, low)| (high - low) / 2.0 / NORMAL_95 / gb_s);
        let like = upper_quartile(classes.get(&class(row))?);
        Some(Cell {
            source,
            target,
            value: (gb_s / like).ln(),
            deviation: deviation.unwrap_or(UNTOLD_DEVIATION).max(DEVIATION_MIN),
        })
    };
    members.iter().filter_map(cell).collect()
}

/// Of the values the one that a quarter reach: a place that many slow flows do not move.
fn upper_quartile(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() * 3).div_ceil(4).min(sorted.len() - 1)]
}

/// What the slow cells have in common, the plainest first; every cell is explained once.
fn suspects(mut cells: Vec<Cell>, level: f64) -> Vec<Finding> {
    let mut found = Vec::new();
    while let Some((suspect, finding)) = slowest_part(&cells, level) {
        cells.retain(|cell| !suspect.has(cell));
        found.push(finding);
    }
    found.extend(slow_flows(&cells, level));
    found
}

/// A part in a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    role: Role,
    name: String,
}

impl Part {
    fn has(&self, cell: &Cell) -> bool {
        let (from, to) = (cell.source.contains(&self.name), cell.target.contains(&self.name));
        match self.role {
            Role::Source => from,
            Role::Target => to,
            Role::Either => from || to,
        }
    }
}

/// The part whose flows differ the most from all others, if it is no chance.
fn slowest_part(cells: &[Cell], level: f64) -> Option<(Part, Finding)> {
    let names: BTreeSet<&String> =
        cells.iter().flat_map(|cell| cell.source.iter().chain(&cell.target)).collect();
    let roles = [Role::Source, Role::Target, Role::Either];
    let parts =
        names.into_iter().flat_map(|name| roles.map(|role| Part { role, name: name.clone() }));
    let parts: Vec<Part> = parts.collect();
    let count = parts.len() as f64;
    let tested = parts.into_iter().filter_map(|part| {
        let (own, others): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(|cell| part.has(cell));
        // One flow is a flow, and one that is left is no norm.
        let difference = (own.len() > 1 && others.len() > 1).then(|| compare(&own, &others))?;
        Some((part, own.len(), difference))
    });
    // What explains the difference best; of equals the narrower, whose name comes first in a cell.
    let width = |part: &Part| {
        let place = |cell: &Cell| {
            cell.source.iter().chain(&cell.target).position(|name| *name == part.name)
        };
        cells.iter().filter_map(place).min()
    };
    // Where a part has flows in one role only, these are all there are in either.
    let is_one_role = |part: &Part| part.role != Role::Either;
    let better = |a: &(Part, usize, Difference), b: &(Part, usize, Difference)| {
        let narrower = || width(&b.0).cmp(&width(&a.0));
        let plainer = || is_one_role(&a.0).cmp(&is_one_role(&b.0));
        a.2.t.total_cmp(&b.2.t).then_with(narrower).then_with(plainer)
    };
    let (part, flows, difference) = tested.max_by(better)?;
    // Bonferroni: as many were tried.
    let p = (difference.p * count).min(1.0);
    (p < level && difference.slower > DIFFERENCE_MIN).then(|| {
        let suspect = Suspect::Part { role: part.role, name: part.name.clone() };
        let either = Part { role: Role::Either, name: part.name.clone() };
        let left = cells.iter().filter(|cell| !part.has(cell));
        let (other, rest): (Vec<&Cell>, Vec<&Cell>) = left.partition(|cell| either.has(cell));
        let has_other_role = other.len() > 1 && rest.len() > 1;
        let slower = difference.slower;
        (part, Finding { suspect, slower, flows, p, has_other_role, what: String::new() })
    })
}

/// Flows that differ from all others.
fn slow_flows(cells: &[Cell], level: f64) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut left: Vec<&Cell> = cells.iter().collect();
    loop {
        let tested = (0..left.len()).filter_map(|place| {
            let others: Vec<&Cell> =
                (0..left.len()).filter(|other| *other != place).map(|other| left[other]).collect();
            (!others.is_empty()).then(|| (place, compare(&[left[place]], &others)))
        });
        let Some((place, difference)) = tested.max_by(|a, b| a.1.t.total_cmp(&b.1.t)) else {
            return found;
        };
        let p = (difference.p * cells.len() as f64).min(1.0);
        if p >= level || difference.slower <= DIFFERENCE_MIN {
            return found;
        }
        let cell = left.remove(place);
        let suspect =
            Suspect::Flow { source: cell.source[0].clone(), target: cell.target[0].clone() };
        found.push(Finding {
            suspect,
            slower: difference.slower,
            flows: 1,
            p,
            has_other_role: false,
            what: String::new(),
        });
    }
}

/// How much slower some cells are than others.
struct Difference {
    slower: f64,
    /// The difference of the medians in its standard errors; above 0: slower.
    t: f64,
    /// The chance of such a `t` or a greater one if both are alike.
    p: f64,
}

fn compare(own: &[&Cell], others: &[&Cell]) -> Difference {
    let middle = |cells: &[&Cell]| median(cells.iter().map(|cell| cell.value).collect());
    let (here, there) = (middle(own), middle(others));
    let from = |cells: &[&Cell], middle: f64| {
        cells.iter().map(|cell| (cell.value - middle).abs()).collect::<Vec<f64>>()
    };
    let mut apart = from(own, here);
    apart.extend(from(others, there));
    let measured: Vec<f64> = own.iter().chain(others).map(|cell| cell.deviation).collect();
    let deviation = (DEVIATIONS_PER_MEDIAN * median(apart)).max(median(measured));
    let count = |cells: &[&Cell]| cells.len() as f64;
    let error = ERRORS_OF_MEDIAN * deviation * (1.0 / count(own) + 1.0 / count(others)).sqrt();
    let t = (there - here) / error;
    let freedom = (count(own) + count(others) - 2.0).max(1.0);
    let student = StudentsT::new(0.0, 1.0, freedom).ok();
    let p = student.map_or(1.0, |student| student.sf(t));
    Difference { slower: 1.0 - (here - there).exp(), t, p }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count => (values[(count - 1) / 2] + values[count / 2]) / 2.0,
    }
}

/// What was found, as lines for a person; empty where nothing was.
pub fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut by_suspect: BTreeMap<&Suspect, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        by_suspect.entry(&finding.suspect).or_default().push(finding);
    }
    let mut text = "Slower than its like:\n".to_owned();
    for (suspect, findings) in &by_suspect {
        let shares = || findings.iter().map(|finding| (finding.slower * 100.0).round());
        let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
        let share = if least < most { format!("{least} to {most}") } else { most.to_string() };
        let is_normal = |role: Role, name: &str| {
            let is_it = |other: &Suspect| {
                matches!(other, Suspect::Part { role: found, name: of }
                if of == name && (*found == role || *found == Role::Either))
            };
            findings.iter().all(|finding| finding.has_other_role)
                && !by_suspect.keys().copied().any(is_it)
        };
        let said = match suspect {
            Suspect::Flow { source, target } => {
                format!("{source} -> {target} is {share} % slower than other pairs")
            }
            Suspect::Part { role: Role::Source, name } if is_normal(Role::Target, name) => {
                format!("{name} is {share} % slower as a source to all, as a target normal")
            }
            Suspect::Part { role: Role::Target, name } if is_normal(Role::Source, name) => {
                format!("{name} is {share} % slower as a target of all, as a source normal")
            }
            Suspect::Part { role: Role::Source, name } => {
                format!("{name} is {share} % slower as a source to all")
            }
            Suspect::Part { role: Role::Target, name } => {
                format!("{name} is {share} % slower as a target of all")
            }
            Suspect::Part { role: Role::Either, name } => {
                format!("{name} is {share} % slower as a source and as a target")
            }
        };
        let mut worst = findings.clone();
        worst.sort_by(|a, b| b.slower.total_cmp(&a.slower));
        let mut what: Vec<String> =
            worst.iter().take(WHAT_MAX).map(|finding| finding.what.clone()).collect();
        if let Some(left @ 1..) = worst.len().checked_sub(WHAT_MAX) {
            what.push(format!("and {left} more"));
        }
        let p = findings.iter().map(|finding| finding.p).fold(0.0, f64::max);
        text.push_str(&format!("  {said} (p {}; {})\n", readable_p(p), what.join("; ")));
    }
    text
}

/// A chance with as many digits as tell something.
fn readable_p(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

#[cfg(test)]
mod tests;
