//! Which part of a machine, or which flow of a matrix, is slower than the rest.
//!
//! A matrix can have a million flows and thousands of parts, so nothing here visits all flows once
//! for each part: the flows are sorted by value, and searched by bisection.

use std::cmp::Ordering;

use indexmap::IndexSet;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Bar, Outlier, Role, Suspect};

/// From the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATIONS_PER_MEDIAN: f64 = 1.4826;

/// Standard error of a median over that of a mean, for a normal distribution: √(π / 2).
const ERRORS_OF_MEDIAN: f64 = 1.2533;

/// Flows between ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Matrix {
    /// What is measured.
    what: String,
    /// The names of all parts.
    names: IndexSet<String>,
    /// For each end the indices of its names, from the narrowest to the widest: a GPU, an
    /// interface, a host.
    ends: IndexSet<Vec<usize>>,
    cells: Vec<Cell>,
}

/// One flow of a matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Indices of its ends.
    source: usize,
    target: usize,
    /// Logarithm of its bandwidth over the usual one of its class.
    value: f64,
    /// Standard deviation of `value` within the measurement.
    deviation: f64,
}

/// A part in a role, with the indices of its flows among the sorted values.
struct Part {
    role: Role,
    name: usize,
    flows: Vec<usize>,
    /// Its first position among the names of a flow's source and target.
    width: usize,
}

impl Matrix {
    pub(super) fn new(what: &str) -> Self {
        Self { what: what.to_owned(), ..Self::default() }
    }

    /// Adds a flow, with the names of the parts at its ends.
    pub(super) fn push(&mut self, [source, target]: [Vec<String>; 2], value: f64, deviation: f64) {
        let [source, target] = [source, target].map(|names| self.end(names));
        self.cells.push(Cell { source, target, value, deviation });
    }

    fn end(&mut self, names: Vec<String>) -> usize {
        let names = names.into_iter().map(|name| self.names.insert_full(name).0).collect();
        self.ends.insert_full(names).0
    }

    /// The outliers. Looks for parts first: removes the flows of the part that explains the most,
    /// and searches the rest again. Single flows come last.
    pub(super) fn suspects(mut self, bar: Bar) -> Vec<Outlier> {
        self.cells.sort_by(|a, b| a.value.total_cmp(&b.value));
        let mut found = Vec::new();
        while let Some(((role, name), outlier)) = self.slowest_part(bar) {
            let is_left = |cell: &Cell| !self.has(cell, role, name);
            self.cells = self.cells.iter().copied().filter(is_left).collect();
            found.push(outlier);
        }
        found.extend(self.slow_flows(bar));
        found
    }

    fn has(&self, cell: &Cell, role: Role, name: usize) -> bool {
        let [from, to] = [cell.source, cell.target].map(|end| self.ends[end].contains(&name));
        match role {
            Role::Source => from,
            Role::Target => to,
            Role::Either => from || to,
        }
    }

    fn values(&self) -> Vec<f64> {
        self.cells.iter().map(|cell| cell.value).collect()
    }

    /// The usual standard deviation within the measurement.
    fn deviation(&self) -> f64 {
        let mut deviations: Vec<f64> = self.cells.iter().map(|cell| cell.deviation).collect();
        deviations.sort_unstable_by(f64::total_cmp);
        middle(deviations.len(), |place| deviations[place])
    }

    /// Every part in every role, by its name.
    fn parts(&self) -> Vec<Part> {
        let roles = [Role::Source, Role::Target, Role::Either];
        let part = |name: usize| {
            roles.map(|role| Part { role, name, flows: Vec::new(), width: usize::MAX })
        };
        let mut parts: Vec<[Part; 3]> = (0..self.names.len()).map(part).collect();
        for (place, cell) in self.cells.iter().enumerate() {
            let [source, target] = [cell.source, cell.target].map(|end| &self.ends[end]);
            for (width, name) in source.iter().chain(target).enumerate() {
                let is_source = width < source.len();
                for part in &mut parts[*name] {
                    let is_its_own = match part.role {
                        Role::Source => is_source,
                        Role::Target => !is_source,
                        Role::Either => true,
                    };
                    // A part at both ends has the flow once.
                    if is_its_own && part.flows.last() != Some(&place) {
                        part.flows.push(place);
                    }
                    part.width = part.width.min(width);
                }
            }
        }
        // The flows of some parts have been removed.
        parts.retain(|[part, ..]| part.width < usize::MAX);
        parts.sort_by(|[a, ..], [b, ..]| self.names[a.name].cmp(&self.names[b.name]));
        parts.into_iter().flatten().collect()
    }

    /// The part whose flows differ the most from all others, if that is significant.
    fn slowest_part(&self, bar: Bar) -> Option<((Role, usize), Outlier)> {
        let (values, deviation) = (self.values(), self.deviation());
        let parts = self.parts();
        let tested = parts.iter().filter_map(|part| {
            // A part has more than one flow, and so must the rest.
            let can_be_held = part.flows.len() > 1 && values.len() > part.flows.len() + 1;
            Some((part, can_be_held.then(|| Difference::of(&values, &part.flows, deviation))?))
        });
        // The flows of a part that has one role only are the same in either role.
        let is_one_role = |part: &Part| part.role != Role::Either;
        // The best explanation; of equal ones the narrower part, whose name comes first in a flow.
        let better = |a: &(&Part, Difference), b: &(&Part, Difference)| -> Ordering {
            let narrower = || b.0.width.cmp(&a.0.width);
            let plainer = || is_one_role(a.0).cmp(&is_one_role(b.0));
            a.1.t.total_cmp(&b.1.t).then_with(narrower).then_with(plainer)
        };
        let (part, difference) = tested.max_by(better)?;
        let p = difference.significant(parts.len(), bar)?;
        let left = self.cells.iter().filter(|cell| !self.has(cell, part.role, part.name));
        let (other, rest): (Vec<&Cell>, Vec<&Cell>) =
            left.partition(|cell| self.has(cell, Role::Either, part.name));
        let outlier = Outlier {
            suspect: Suspect::Part { role: part.role, name: self.names[part.name].clone() },
            slower: difference.slower,
            flows: part.flows.len(),
            p,
            has_other_role: other.len() > 1 && rest.len() > 1,
            what: self.what.clone(),
        };
        Some(((part.role, part.name), outlier))
    }

    /// Flows that differ from all others.
    fn slow_flows(&self, bar: Bar) -> Vec<Outlier> {
        let (values, deviation) = (self.values(), self.deviation());
        // The slowest flow differs the most from the rest.
        let tested = self.cells.iter().enumerate().map_while(|(place, cell)| {
            let left = &values[place..];
            let difference = (left.len() > 1).then(|| Difference::of(left, &[0], deviation))?;
            let p = difference.significant(left.len(), bar)?;
            let [source, target] =
                [cell.source, cell.target].map(|end| self.names[self.ends[end][0]].clone());
            Some(Outlier {
                suspect: Suspect::Flow { source, target },
                slower: difference.slower,
                flows: 1,
                p,
                has_other_role: false,
                what: self.what.clone(),
            })
        });
        tested.collect()
    }
}

/// How much slower some flows are than others.
struct Difference {
    slower: f64,
    /// The difference of the medians in its standard errors; above 0: slower.
    t: f64,
    /// Degrees of freedom.
    freedom: f64,
}

impl Difference {
    /// Between the flows at the indices `own` and all others, with sorted `values`. `deviation` is
    /// the smallest standard deviation that is taken for real.
    fn of(values: &[f64], own: &[usize], deviation: f64) -> Self {
        let own_values: Vec<f64> = own.iter().map(|place| values[*place]).collect();
        let others = values.len() - own.len();
        let here = middle(own.len(), |place| own_values[place]);
        // How many of `own` precede the value that is at `place` among the others.
        let ahead = |place: usize| {
            own.iter().enumerate().take_while(|(index, own)| **own - index <= place).count()
        };
        let there = middle(others, |place| values[place + ahead(place)]);
        let within = |apart: f64| {
            near(values, there, apart) - near(&own_values, there, apart)
                + near(&own_values, here, apart)
        };
        let apart = middle(values.len(), |place| least(|apart| within(apart) > place));
        let deviation = (DEVIATIONS_PER_MEDIAN * apart).max(deviation);
        let (own, others) = (own.len() as f64, others as f64);
        let error = ERRORS_OF_MEDIAN * deviation * (1.0 / own + 1.0 / others).sqrt();
        Self {
            slower: 1.0 - (here - there).exp(),
            t: (there - here) / error,
            freedom: (own + others - 2.0).max(1.0),
        }
    }

    /// The probability of such a difference, or a larger one, by chance in one of `tests`
    /// (Bonferroni); `None` if it does not pass `bar`.
    fn significant(&self, tests: usize, bar: Bar) -> Option<f64> {
        let p = StudentsT::new(0.0, 1.0, self.freedom).map_or(1.0, |student| student.sf(self.t));
        let p = (p * tests as f64).min(1.0);
        (p < bar.chance && self.slower > bar.slower).then_some(p)
    }
}

/// How many of the sorted values are no farther from `centre` than `apart`.
fn near(values: &[f64], centre: f64, apart: f64) -> usize {
    let below = values.partition_point(|value| centre - value > apart);
    below.abs_diff(values.partition_point(|value| value - centre <= apart))
}

/// The smallest number, 0 or above, for which a condition holds that holds for all larger ones.
fn least(holds: impl Fn(f64) -> bool) -> f64 {
    // The bits of positive numbers sort as the numbers do.
    let (mut low, mut high) = (0, f64::MAX.to_bits());
    while low < high {
        let middle = low.midpoint(high);
        match holds(f64::from_bits(middle)) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    f64::from_bits(low)
}

/// The median of `count` sorted values; 0 if there are none.
fn middle(count: usize, value: impl Fn(usize) -> f64) -> f64 {
    match count {
        0 => 0.0,
        _ if count % 2 == 1 => value(count / 2),
        _ => (value(count / 2 - 1) + value(count / 2)) / 2.0,
    }
}
