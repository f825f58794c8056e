//! What the runs of a sweep say of each value, and what of it is noise.
//!
//! `docs/measurement.md`, "Sweeps", has the formulas and where they are from.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Case, Plan, Quantity};

/// The chance that any difference of a sweep is called real where there is none.
pub const MISS: f64 = 0.05;

/// What is found of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// What the case is.
    pub case: String,
    /// What is compared.
    pub quantity: Quantity,
    /// Combinations with a number in every repetition, the best first.
    pub ranking: Vec<Place>,
    /// The best against the next one; `None`: there is only one.
    pub lead: Option<Lead>,
    /// Each value of each axis against the axis's first.
    pub effects: Vec<AxisEffect>,
}

/// A combination among the others.
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

/// How far the best combination is before the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct Lead {
    /// The next one.
    pub next: usize,
    /// The best against it.
    pub effect: Effect,
}

/// What a value of an axis does.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisEffect {
    /// The axis's number, from 0.
    pub axis: usize,
    /// The value's; it is compared with value 0.
    pub value: usize,
    /// What becomes of the quantity.
    pub effect: Effect,
}

/// A difference between two settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// The quantity with the one over that with the other: of geometric means.
    pub ratio: f64,
    /// Lower end of its interval, at the level of [`Effect::level`]; `None`: there is one
    /// repetition only.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// The chance of such a difference, or a larger one, where there is none.
    pub p: Option<f64>,
    /// What `p` was held against: the chance that the interval misses.
    pub level: Option<f64>,
    /// What is to be thought of it.
    pub verdict: Verdict,
    /// Mean of the logarithms of the ratios.
    mean: f64,
    /// Its standard error, and how that is distributed; `None`: one repetition.
    student: Option<(f64, StudentsT)>,
}

/// What is to be thought of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is better.
    Faster,
    /// It is worse.
    Slower,
    /// No difference is shown.
    Noise,
    /// One repetition tells nothing of chance.
    Unknown,
}

impl Verdict {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Noise => "noise",
            Self::Unknown => "one run tells nothing of chance",
        }
    }
}

/// What is found of every case. All differences are judged together.
pub fn findings(plan: &Plan, cases: &[Case]) -> Vec<Findings> {
    let mut all: Vec<Findings> = cases.iter().map(|case| of_case(plan, case)).collect();
    judge(&mut all);
    all
}

/// What is found of a case, before anything is judged.
fn of_case(plan: &Plan, case: &Case) -> Findings {
    let ranking = ranking(case);
    let lead = match ranking.as_slice() {
        [best, next, ..] => {
            let pairs = [(best.combination, next.combination)];
            Some(Lead { next: next.combination, effect: Effect::of(case, &pairs) })
        }
        _ => None,
    };
    let mut effects = Vec::new();
    for (axis, of_axis) in plan.axes.iter().enumerate() {
        for value in 1..of_axis.values.len() {
            let pairs = pairs(plan, case, axis, value);
            if !pairs.is_empty() {
                effects.push(AxisEffect { axis, value, effect: Effect::of(case, &pairs) });
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

/// Combinations with this value of the axis, each with the one that has the axis's first and is the
/// same in all other axes; only those with numbers.
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

impl Effect {
    /// Of pairs of combinations: in each repetition the mean of all pairs' logarithms.
    fn of(case: &Case, pairs: &[(usize, usize)]) -> Self {
        let values = |combination: usize| case.values[combination].as_deref().unwrap_or_default();
        let repetitions = pairs.first().map_or(0, |&(with, _)| values(with).len());
        let of_repetition = |repetition: usize| {
            let each = pairs.iter().map(|&(with, without)| {
                values(with)[repetition].ln() - values(without)[repetition].ln()
            });
            each.sum::<f64>() / pairs.len() as f64
        };
        let logarithms: Vec<f64> = (0..repetitions).map(of_repetition).collect();
        Self::of_logarithms(&logarithms)
    }

    fn of_logarithms(logarithms: &[f64]) -> Self {
        let count = logarithms.len() as f64;
        let mean = logarithms.iter().sum::<f64>() / count;
        let squares: f64 = logarithms.iter().map(|each| (each - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        // Of one repetition there is no distribution.
        let student = StudentsT::new(0.0, 1.0, count - 1.0).ok().map(|student| (error, student));
        let p = student.as_ref().map(|(error, student)| match (mean == 0.0, *error == 0.0) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            (false, false) => 2.0 * student.sf(mean.abs() / error),
        });
        let verdict = Verdict::Unknown;
        Self { ratio: mean.exp(), low: None, high: None, p, level: None, verdict, mean, student }
    }

    /// Gives it the interval that misses with a chance of `level`.
    fn widen(&mut self, level: f64) {
        let Some((error, student)) = &self.student else { return };
        let far = if *error == 0.0 { 0.0 } else { student.inverse_cdf(1.0 - level / 2.0) * error };
        self.level = Some(level);
        self.low = Some((self.mean - far).exp());
        self.high = Some((self.mean + far).exp());
    }
}

/// Holm's procedure: the smallest p is held against the chance of a miss over the number of
/// differences, the next one against it over one less, and so on; from the first that is not below
/// on, all are noise. Each interval has the level that its p was held against, so that it leaves
/// out 1 exactly where the difference counts.
fn judge(all: &mut [Findings]) {
    let mut effects: Vec<(f64, Quantity, &mut Effect)> = Vec::new();
    for Findings { quantity, lead, effects: of_axes, .. } in all {
        let lead = lead.iter_mut().map(|lead| &mut lead.effect);
        let each = lead.chain(of_axes.iter_mut().map(|each| &mut each.effect));
        effects.extend(each.filter_map(|effect| Some((effect.p?, *quantity, effect))));
    }
    effects.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let count = effects.len();
    let mut failed_at = None;
    for (place, (p, quantity, effect)) in effects.into_iter().enumerate() {
        let level = failed_at.unwrap_or(MISS / (count - place) as f64);
        let counts = failed_at.is_none() && p < level;
        if !counts {
            failed_at = Some(level);
        }
        effect.widen(level);
        effect.verdict = match (counts, (effect.ratio > 1.0) == (quantity == Quantity::Bandwidth)) {
            (false, _) => Verdict::Noise,
            (true, true) => Verdict::Faster,
            (true, false) => Verdict::Slower,
        };
    }
}
