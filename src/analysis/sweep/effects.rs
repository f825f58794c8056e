//! The effect of each value of a sweep, and its significance.
//!
//! `docs/comparing.md`, "Sweeps", has the formulas and their sources.

use super::Case;
use crate::{
    analysis::statistics::{Change, Quantity, corrected},
    plan::sweep::Plan,
};

/// The findings of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// The title of the case.
    pub case: String,
    /// The quantity that is compared.
    pub quantity: Quantity,
    /// Combinations with a number in every repetition, the best first.
    pub ranking: Vec<Place>,
    /// The best against the next one; `None` if there is only one.
    pub lead: Option<Lead>,
    /// Each value of each axis against the axis's first.
    pub effects: Vec<AxisEffect>,
}

/// A combination in the ranking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Its number, from 0.
    pub combination: usize,
    /// Median over the repetitions.
    pub median: f64,
    /// The smallest of them.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// The lead of the best combination over the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct Lead {
    /// The number of the next one, from 0.
    pub next: usize,
    /// The change from it to the best.
    pub change: Change,
}

/// The effect of a value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisEffect {
    /// The axis's number, from 0.
    pub axis: usize,
    /// The value's; it is compared with value 0.
    pub value: usize,
    /// The change from value 0 to it.
    pub change: Change,
}

/// The findings of every case. All changes are corrected together.
pub fn findings(plan: &Plan, cases: &[Case]) -> Vec<Findings> {
    let mut all: Vec<Findings> = cases.iter().map(|case| of_case(plan, case)).collect();
    let changes = all.iter_mut().flat_map(|Findings { lead, effects, .. }| {
        let lead = lead.iter_mut().map(|lead| &mut lead.change);
        lead.chain(effects.iter_mut().map(|each| &mut each.change))
    });
    corrected(changes.collect());
    all
}

/// The findings of a case, before the correction.
fn of_case(plan: &Plan, case: &Case) -> Findings {
    let ranking = ranking(case);
    let lead = match ranking.as_slice() {
        [best, next, ..] => {
            let pairs = [(best.combination, next.combination)];
            Some(Lead { next: next.combination, change: change(case, &pairs) })
        }
        _ => None,
    };
    let mut effects = Vec::new();
    for (axis, of_axis) in plan.axes.iter().enumerate() {
        for value in 1..of_axis.values.len() {
            let pairs = pairs(plan, case, axis, value);
            if !pairs.is_empty() {
                effects.push(AxisEffect { axis, value, change: change(case, &pairs) });
            }
        }
    }
    Findings { case: case.title.clone(), quantity: case.quantity, ranking, lead, effects }
}

/// Combinations from the best to the worst median.
fn ranking(case: &Case) -> Vec<Place> {
    let place = |(combination, values): (usize, &Option<Vec<f64>>)| {
        let mut sorted = values.clone()?;
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        Some(Place { combination, median, min: sorted[0], max: sorted[count - 1] })
    };
    let mut places: Vec<Place> = case.values.iter().enumerate().filter_map(place).collect();
    places.sort_by(|a, b| match case.quantity {
        Quantity::Bandwidth => b.median.total_cmp(&a.median),
        Quantity::Latency => a.median.total_cmp(&b.median),
    });
    places
}

/// Pairs of measured combinations: one with this value of the axis, and the one with the first
/// value that is the same in all other axes.
fn pairs(plan: &Plan, case: &Case, axis: usize, value: usize) -> Vec<(usize, usize)> {
    let is_measured = |combination: &usize| case.values[*combination].is_some();
    let with = (0..plan.combinations.len()).filter(is_measured);
    let pair = |with: usize| {
        let values = &plan.combinations[with].values;
        if values[axis] != value {
            return None;
        }
        let mut first = values.clone();
        first[axis] = 0;
        let mut all = plan.combinations.iter();
        let without = all.position(|other| other.values == first).filter(is_measured)?;
        Some((with, without))
    };
    with.filter_map(pair).collect()
}

/// The change from the second to the first of the pairs: in each repetition the mean of all pairs.
fn change(case: &Case, pairs: &[(usize, usize)]) -> Change {
    let values = |combination: usize| case.values[combination].as_deref().unwrap_or_default();
    let repetitions = pairs.first().map_or(0, |&(with, _)| values(with).len());
    let of_repetition = |repetition: usize| {
        let each = pairs.iter().map(|&(with, without)| {
            values(with)[repetition].ln() - values(without)[repetition].ln()
        });
        (each.sum::<f64>() / pairs.len() as f64).exp()
    };
    Change::of_ratios(&(0..repetitions).map(of_repetition).collect::<Vec<f64>>())
}
