//! The files of a sweep, and what is printed of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use comfy_table::{CellAlignment, Table, presets};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Error, csv,
    files::{self, RecordFile},
    provenance::Machine,
    resume,
};
use crate::{
    sweep::{Case, Effect, Findings, Line, MISS, Plan, Quantity, Run, RunLines},
    units::{readable_gb_s, readable_nanoseconds},
};

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
    /// Makes the file anew.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn create(path: &Path, plan: &Plan) -> Result<Self, Error> {
        resume::remove(path)?;
        let axes: String = plan.axes.iter().map(|axis| format!("axis_{},", axis.name)).collect();
        let header = format!("run,repetition,combination,run_status,{axes}{}", csv::text(&[]));
        Ok(Self { file: RecordFile::create(path, header.as_bytes(), "")? })
    }

    /// Appends the rows of a run, which stand in its folder.
    ///
    /// # Errors
    ///
    /// The rows cannot be read, or not be written.
    pub fn append(
        &mut self,
        plan: &Plan,
        ended: &Ended,
        folder: &Path,
    ) -> Result<Vec<Line>, Error> {
        let path = folder.join("run.csv");
        let text = match fs::read_to_string(&path) {
            // A run that cannot start leaves none.
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| Error::Read { path, source })?,
        };
        let Ended { run, failure } = ended;
        let values = &plan.combinations[run.combination].values;
        let each = plan.axes.iter().zip(values);
        let labels: String =
            each.map(|(axis, &value)| format!("{},", axis.values[value])).collect();
        let status = if failure.is_some() { "failed" } else { "ok" };
        let (number, repetition, combination) = (run.number, run.repetition, run.combination + 1);
        let before = format!("{number},{repetition},{combination},{status},{labels}");
        // A line that was cut by a kill has no line break.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let rows: Vec<&str> = lines.collect();
        let record: String = rows.iter().map(|row| format!("{before}{row}\n")).collect();
        self.file.append(record.as_bytes())?;
        let cells = |row: &&str| -> Line {
            let cells = columns.iter().zip(row.split(','));
            cells.map(|(column, cell)| ((*column).to_owned(), cell.to_owned())).collect()
        };
        Ok(rows.iter().map(cells).collect())
    }
}

/// All that is known of a sweep.
#[derive(Debug)]
pub struct Results<'a> {
    /// What was to be run.
    pub plan: &'a Plan,
    /// The file that said so.
    pub text: &'a str,
    /// Where the sweep comes from.
    pub provenance: &'a Value,
    /// What became of the runs, as far as they were run.
    pub ended: &'a [Ended],
    /// What their numbers say.
    pub findings: &'a [Findings],
    /// Whether a simulated machine was measured.
    pub simulated: bool,
}

/// A sweep that was run, as far as a page shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Past {
    /// Its folder.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Where it comes from.
    pub provenance: PastProvenance,
    /// Whether a simulated machine was measured.
    pub simulated: bool,
    /// What was tried together.
    pub combinations: Vec<PastCombination>,
    /// What became of the runs.
    pub runs: Vec<PastRun>,
    /// What the numbers of each case say.
    pub cases: Vec<PastCase>,
}

/// Where a sweep that was run comes from.
#[derive(Clone, Debug, Deserialize)]
pub struct PastProvenance {
    /// When it began, in UTC.
    pub started: String,
    /// The machine that it was run from.
    pub machine: Machine,
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
    /// The value that it is held against.
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
    ///
    /// # Errors
    ///
    /// The file cannot be read, or holds something else.
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
///
/// # Errors
///
/// It cannot be written.
pub fn write_json(path: &Path, text: &str) -> Result<(), Error> {
    files::replace(path, text.as_bytes())
        .map_err(|source| Error::Write { path: path.to_owned(), source })
}

impl Results<'_> {
    /// The text of `sweep.json`.
    pub fn json(&self) -> String {
        let Self { plan, text, provenance, simulated, .. } = self;
        let values = |combination: usize| -> Value {
            let values = plan.axes.iter().zip(&plan.combinations[combination].values);
            let values =
                values.map(|(axis, &value)| (axis.name.clone(), json!(axis.values[value])));
            Value::Object(values.collect())
        };
        let combinations = plan.combinations.iter().enumerate().map(|(number, combination)| {
            json!({ "combination": number + 1, "values": values(number), "words": combination.words })
        });
        let runs = plan.runs().into_iter().map(|run| {
            let ended = self.ended.iter().find(|ended| ended.run == run);
            let (status, reason) = match ended.map(|ended| &ended.failure) {
                None => ("missing", ""),
                Some(None) => ("ok", ""),
                Some(Some(reason)) => ("failed", reason.as_str()),
            };
            json!({
                "run": run.number, "repetition": run.repetition, "combination": run.combination + 1,
                "status": status, "reason": reason,
            })
        });
        let document = json!({
            "provenance": provenance,
            "simulated": simulated,
            "plan": text,
            "axes": plan.axes.iter().map(|axis| json!({ "name": axis.name, "values": axis.values }))
                .collect::<Vec<Value>>(),
            "combinations": combinations.collect::<Vec<Value>>(),
            "runs": runs.collect::<Vec<Value>>(),
            "cases": self.findings.iter().map(|found| case_json(plan, found)).collect::<Vec<Value>>(),
        });
        let text = serde_json::to_string_pretty(&document);
        text.expect("a value of JSON always has a form in JSON") + "\n"
    }

    /// For each case the combinations, the best first, and what each value does.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let simulated = if self.simulated { " [SIMULATED]" } else { "" };
        for found in self.findings.iter().filter(|found| !found.ranking.is_empty()) {
            let runs = match self.plan.repetitions {
                1 => "one run of each".to_owned(),
                count => format!("median of {count} runs"),
            };
            text.push_str(&format!("{}: {runs}{simulated}\n", found.case));
            text.push_str(&ranking(self.plan, found));
            text.push_str("\n\n");
            if !found.effects.is_empty() {
                text.push_str(&effects(self.plan, found));
                text.push_str("\n\n");
            }
        }
        let lead =
            self.findings.iter().filter_map(|found| found.lead.as_ref()).map(|lead| &lead.effect);
        let of_axes =
            self.findings.iter().flat_map(|found| &found.effects).map(|each| &each.effect);
        let count = lead.chain(of_axes).filter(|effect| effect.p.is_some()).count();
        if count > 0 {
            text.push_str(&format!(
                "The chance that any of these {count} differences is called one and is none is {:.0} \
                 % (Holm).\nAn interval that holds 0 % is noise; more repetitions make it narrower.\n",
                100.0 * MISS
            ));
        }
        let failed: Vec<&Ended> =
            self.ended.iter().filter(|ended| ended.failure.is_some()).collect();
        if !failed.is_empty() {
            text.push_str("Failed, and left out with all of their combination:\n");
        }
        for Ended { run, failure } in failed {
            let what = self.plan.describe(run.combination);
            let reason = failure.as_deref().unwrap_or_default();
            text.push_str(&format!("  run {} ({what}): {reason}\n", run.number));
        }
        text
    }
}

/// The cases of runs of which none of the same combination has failed.
pub fn sound(plan: &Plan, ended: &[Ended], lines: Vec<RunLines>) -> Vec<Case> {
    let is_sound = |(run, _): &RunLines| {
        let of_combination = |ended: &&Ended| ended.run.combination == run.combination;
        ended.iter().filter(of_combination).all(|ended| ended.failure.is_none())
    };
    let lines: Vec<RunLines> = lines.into_iter().filter(is_sound).collect();
    crate::sweep::cases(plan, &lines)
}

fn case_json(plan: &Plan, found: &Findings) -> Value {
    let ranking = found.ranking.iter().map(|place| {
        json!({
            "combination": place.combination + 1, "median": place.median, "min": place.min,
            "max": place.max,
        })
    });
    let lead = found
        .lead
        .as_ref()
        .map(|lead| json!({ "next": lead.next + 1, "effect": effect_json(&lead.effect) }));
    let effects = found.effects.iter().map(|each| {
        let axis = &plan.axes[each.axis];
        json!({
            "axis": axis.name, "value": axis.values[each.value], "against": axis.values[0],
            "effect": effect_json(&each.effect),
        })
    });
    json!({
        "case": found.case,
        "quantity": found.quantity.column(),
        "ranking": ranking.collect::<Vec<Value>>(),
        "lead": lead,
        "effects": effects.collect::<Vec<Value>>(),
    })
}

fn effect_json(effect: &Effect) -> Value {
    json!({
        "ratio": effect.ratio, "ratio_low": effect.low, "ratio_high": effect.high,
        "p": effect.p, "level": effect.level, "verdict": effect.verdict.name(),
    })
}

fn ranking(plan: &Plan, found: &Findings) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let unit = match found.quantity {
        Quantity::Bandwidth => "GB/s",
        Quantity::Latency => "p50",
    };
    let axes = plan.axes.iter().map(|axis| axis.name.as_str());
    table.set_header([unit, "range"].into_iter().chain(axes).chain([""]));
    for (order, place) in found.ranking.iter().enumerate() {
        let [median, min, max] =
            [place.median, place.min, place.max].map(|value| shown(found.quantity, value));
        let values = plan.axes.iter().zip(&plan.combinations[place.combination].values);
        let mut cells = vec![median, format!("{min} to {max}")];
        cells.extend(values.map(|(axis, &value)| axis.values[value].clone()));
        cells.push(match &found.lead {
            Some(lead) if order == 0 => {
                format!("best; against the next {}", sentence(&lead.effect))
            }
            _ => String::new(),
        });
        table.add_row(cells);
    }
    right(&mut table, 2);
    table.trim_fmt()
}

fn effects(plan: &Plan, found: &Findings) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["change", "interval", "", "of", "against"]);
    for each in &found.effects {
        let axis = &plan.axes[each.axis];
        table.add_row([
            percent(each.effect.ratio),
            interval(&each.effect),
            each.effect.verdict.name().to_owned(),
            format!("{}={}", axis.name, axis.values[each.value]),
            axis.values[0].clone(),
        ]);
    }
    right(&mut table, 2);
    table.trim_fmt()
}

fn right(table: &mut Table, columns: usize) {
    for column in table.column_iter_mut().take(columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn shown(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::Bandwidth => readable_gb_s(value),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "nanoseconds")]
        Quantity::Latency => readable_nanoseconds(value as u64),
    }
}

/// `+3.10 % (+2.50 to +3.70 %), faster`
fn sentence(effect: &Effect) -> String {
    let interval = match effect.low {
        Some(_) => format!(" ({})", interval(effect)),
        None => String::new(),
    };
    format!("{}{interval}, {}", percent(effect.ratio), effect.verdict.name())
}

fn interval(effect: &Effect) -> String {
    match (effect.low, effect.high) {
        (Some(low), Some(high)) => {
            format!("{} to {}", percent(low).trim_end_matches(" %"), percent(high))
        }
        _ => "-".to_owned(),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:+.2} %", 100.0 * (ratio - 1.0))
}
