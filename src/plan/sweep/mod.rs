//! A sweep: many runs that differ in what a plan varies. Reads the plan's file and orders its runs.

mod file;

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What starts a run, before g2g's own words; empty: nothing does.
    pub launcher: Vec<String>,
    /// What is varied.
    pub axes: Vec<Axis>,
    /// What is run, each as often as `repetitions` says.
    pub combinations: Vec<Combination>,
    /// How often.
    pub repetitions: usize,
}

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// What it is called.
    pub name: String,
    /// What its values are called; the others are compared with the first.
    pub values: Vec<String>,
}

/// A value of each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    /// For each axis the number of its value, from 0.
    pub values: Vec<usize>,
    /// The words that g2g is given, its command first.
    pub words: Vec<String>,
}

/// One run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its place in the order of all, from 1.
    pub number: usize,
    /// Of how often its combination is run: the number of this time, from 1.
    pub repetition: usize,
    /// The number of its combination, from 0.
    pub combination: usize,
}

impl Plan {
    /// All runs in their order. Each repetition runs every combination once, so that drift over
    /// time affects all alike, and in another random order, so that no combination always comes
    /// first or follows the same one. The order is reproducible.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for repetition in 1..=self.repetitions {
            let mut order: Vec<usize> = (0..self.combinations.len()).collect();
            order.shuffle(&mut StdRng::seed_from_u64(repetition as u64));
            for combination in order {
                runs.push(Run { number: runs.len() + 1, repetition, combination });
            }
        }
        runs
    }

    /// The values of a combination, as a person reads them: `NCCL_ALGO=Ring path=shm`.
    pub fn describe(&self, combination: usize) -> String {
        let values = &self.combinations[combination].values;
        let each = self.axes.iter().zip(values);
        let words = each.map(|(axis, &value)| format!("{}={}", axis.name, axis.values[value]));
        words.collect::<Vec<String>>().join(" ")
    }
}
