//! The files of a sweep.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    Error, Row, csv,
    files::{self, RecordFile},
    provenance::SweepProvenance,
    resume,
};
use crate::plan::sweep::{Plan, Run};

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which run.
    pub run: Run,
    /// Why it did not end well; `None`: it did.
    pub failure: Option<String>,
}

/// `sweep.csv`: the rows of all runs.
#[derive(Debug)]
pub struct Csv {
    file: RecordFile,
}

impl Csv {
    /// Creates the file, in place of an older one.
    pub fn create(path: &Path, plan: &Plan) -> Result<Self, Error> {
        resume::remove(path)?;
        let axes: String = plan.axes.iter().map(|axis| format!("axis_{},", axis.name)).collect();
        let header = format!("run,repetition,combination,run_status,{axes}{}", csv::text(&[]));
        Ok(Self { file: RecordFile::create(path, header.as_bytes(), "")? })
    }

    /// Appends the rows of a run, from its folder.
    pub fn append(&mut self, plan: &Plan, ended: &Ended, folder: &Path) -> Result<Vec<Row>, Error> {
        let path = folder.join("run.csv");
        // A run that cannot start leaves none.
        if !path.exists() {
            return Ok(Vec::new());
        }
        let rows = csv::read(&path)?;
        let Ended { run, failure } = ended;
        let values = &plan.combinations[run.combination].values;
        let each = plan.axes.iter().zip(values);
        let labels: String =
            each.map(|(axis, &value)| format!("{},", axis.values[value])).collect();
        let status = if failure.is_some() { "failed" } else { "ok" };
        let (number, repetition, combination) = (run.number, run.repetition, run.combination + 1);
        let before = format!("{number},{repetition},{combination},{status},{labels}");
        let record: String = rows.iter().map(|row| before.clone() + &csv::line(row)).collect();
        self.file.append(record.as_bytes())?;
        Ok(rows)
    }
}

/// A sweep that was run, as far as a page shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Past {
    /// Its folder.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Where it comes from.
    pub provenance: SweepProvenance,
    /// Whether a simulated machine was measured.
    pub simulated: bool,
    /// What was tried together.
    pub combinations: Vec<PastCombination>,
    /// What became of the runs.
    pub runs: Vec<PastRun>,
    /// What the numbers of each case say.
    pub cases: Vec<PastCase>,
}

/// What was tried together.
#[derive(Clone, Debug, Deserialize)]
pub struct PastCombination {
    /// The value of each axis.
    pub values: serde_json::Map<String, Value>,
}

/// What became of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct PastRun {
    /// `ok`, `failed`, or `missing`: it has not ended yet.
    pub status: String,
}

/// What the numbers of a case say.
#[derive(Clone, Debug, Deserialize)]
pub struct PastCase {
    /// What it is.
    pub case: String,
    /// The column that was compared.
    pub quantity: String,
    /// The combinations, the best first.
    pub ranking: Vec<PastPlace>,
    /// The best against the next, where there is one.
    pub lead: Option<PastLead>,
    /// What each value of an axis changes.
    pub effects: Vec<PastEffect>,
}

/// What a combination has reached.
#[derive(Clone, Debug, Deserialize)]
pub struct PastPlace {
    /// Its number, from 1.
    pub combination: usize,
    /// Median of the repetitions.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// The best combination against the next.
#[derive(Clone, Debug, Deserialize)]
pub struct PastLead {
    /// How much more it reaches.
    pub effect: PastRatio,
}

/// What a value of an axis changes.
#[derive(Clone, Debug, Deserialize)]
pub struct PastEffect {
    /// The axis.
    pub axis: String,
    /// The value.
    pub value: String,
    /// The value that it is compared with.
    pub against: String,
    /// How much it changes.
    pub effect: PastRatio,
}

/// A ratio of what two values reach.
#[derive(Clone, Debug, Deserialize)]
pub struct PastRatio {
    /// Above 1: more.
    pub ratio: f64,
    /// Lower end of its interval.
    pub ratio_low: Option<f64>,
    /// Upper end of its interval.
    pub ratio_high: Option<f64>,
    /// `faster`, `slower`, `noise`, …
    pub verdict: String,
}

impl Past {
    /// Reads the `sweep.json` of a folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("sweep.json");
        let text = fs::read_to_string(&path)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
        let read: Self = serde_json::from_str(&text).map_err(|err| {
            let reason = format!("no sweep of this version of g2g: {err}");
            Error::Content { path, reason }
        })?;
        Ok(Self { folder: folder.to_owned(), ..read })
    }
}

/// Writes `sweep.json` in place of the one that is there, at once.
pub fn write_json(path: &Path, text: &str) -> Result<(), Error> {
    files::replace(path, text.as_bytes())
        .map_err(|source| Error::Write { path: path.to_owned(), source })
}
