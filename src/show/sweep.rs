//! A sweep's results: `sweep.json`, and tables.

use serde_json::{Value, json};

use super::{
    page::{Column, Grid, Page},
    words,
};
use crate::{
    analysis::{
        statistics::{Change, MISS, Quantity},
        sweep::{AxisEffect, Findings},
    },
    plan::sweep::{Axis, Plan},
    record::sweep::Ended,
    units::readable_gb_s,
};

/// The results of a sweep.
#[derive(Debug)]
pub struct Results<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The text of its file.
    pub text: &'a str,
    /// The origin of the sweep.
    pub provenance: &'a Value,
    /// The runs that have ended.
    pub ended: &'a [Ended],
    /// The findings of each case.
    pub findings: &'a [Findings],
    /// Whether a simulated machine was measured.
    pub simulated: bool,
}

impl Results<'_> {
    /// The text of `sweep.json`.
    pub fn json(&self) -> String {
        let Self { plan, text, provenance, simulated, .. } = self;
        let combinations = (1..).zip(&plan.combinations).map(|(number, combination)| {
            let values = plan.axes.iter().zip(&combination.values);
            let values = values.map(|(axis, &value)| (&*axis.name, &*axis.values[value]));
            let (values, words) = (values.collect::<Value>(), &combination.words);
            json!({ "combination": number, "values": values, "words": words })
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
        words::json(&document)
    }

    /// For each case the combinations, the best first, and the effect of each value.
    pub fn page(&self) -> Page {
        let mut page = Page::default();
        let simulated = words::mark(self.simulated);
        for found in self.findings.iter().filter(|found| !found.ranking.is_empty()) {
            let runs = match self.plan.repetitions {
                1 => "one run of each".to_owned(),
                count => format!("median of {count} runs"),
            };
            page.title(format!("{}: {runs}{simulated}", found.case));
            page.grid(ranking(self.plan, found));
            page.lines("\n");
            if !found.effects.is_empty() {
                page.grid(effects(self.plan, found));
                page.lines("\n");
            }
        }
        let changes = self.findings.iter().flat_map(|found| {
            let lead = found.lead.iter().map(|lead| &lead.change);
            lead.chain(found.effects.iter().map(|each| &each.change))
        });
        let count = changes.filter(|change| change.known.is_some()).count();
        if count > 0 {
            page.lines(&format!(
                "Of those of these {count} differences that are called faster or slower, {:.0} % are \
                 expected to be chance (Benjamini-Hochberg).\nMore repetitions make intervals \
                 narrower.\n",
                100.0 * MISS
            ));
        }
        let failed: String = self
            .ended
            .iter()
            .filter_map(|Ended { run, failure }| {
                let (what, reason) = (self.plan.describe(run.combination), failure.as_ref()?);
                Some(format!("  run {} ({what}): {reason}\n", run.number))
            })
            .collect();
        if !failed.is_empty() {
            page.lines("Failed, and left out with all of their combination:\n");
            page.lines(&failed);
        }
        page
    }
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
        .map(|lead| json!({ "next": lead.next + 1, "effect": change_json(found, &lead.change) }));
    let effects = found.effects.iter().map(|each| {
        let axis = &plan.axes[each.axis];
        json!({
            "axis": axis.name, "value": axis.values[each.value], "against": axis.values[0],
            "effect": change_json(found, &each.change),
        })
    });
    json!({
        "case": found.case,
        "quantity": found.quantity,
        "ranking": ranking.collect::<Vec<Value>>(),
        "lead": lead,
        "effects": effects.collect::<Vec<Value>>(),
    })
}

fn change_json(found: &Findings, change: &Change) -> Value {
    let known = change.known;
    json!({
        "ratio": 1.0 + change.share,
        "ratio_low": known.map(|known| 1.0 + known.low),
        "ratio_high": known.map(|known| 1.0 + known.high),
        "p": known.map(|known| known.p),
        "q": known.map(|known| known.q),
        "verdict": change.verdict(found.quantity).to_string(),
    })
}

fn ranking(plan: &Plan, found: &Findings) -> Grid {
    let unit = match found.quantity {
        Quantity::Bandwidth => "GB/s",
        Quantity::Latency => "p50",
    };
    let axes = plan.axes.iter().map(|axis| axis.name.as_str());
    let header = [unit, "range"].into_iter().chain(axes).chain([""]);
    let mut grid = Grid::new(header).numbers(&[unit, "range"]);
    for (order, place) in found.ranking.iter().enumerate() {
        let [median, min, max] =
            [place.median, place.min, place.max].map(|value| shown(found.quantity, value));
        let values = plan.axes.iter().zip(&plan.combinations[place.combination].values);
        let mut cells = vec![median, format!("{min} to {max}")];
        cells.extend(values.map(|(axis, &value)| axis.values[value].clone()));
        cells.push(match &found.lead {
            Some(lead) if order == 0 => {
                format!("best; against the next {}", sentence(found, &lead.change))
            }
            _ => String::new(),
        });
        grid.row(cells);
    }
    grid
}

fn effects(plan: &Plan, found: &Findings) -> Grid {
    let columns: [Column<(Quantity, &Axis, &AxisEffect)>; 5] = [
        ("change", |(.., effect)| percent(effect.change.share)),
        ("95 % interval", |(.., effect)| words::or_dash(interval(&effect.change))),
        ("", |(quantity, _, effect)| effect.change.verdict(quantity).to_string()),
        ("of", |(_, axis, effect)| format!("{}={}", axis.name, axis.values[effect.value])),
        ("against", |(_, axis, _)| axis.values[0].clone()),
    ];
    let effects = found.effects.iter().map(|each| (found.quantity, &plan.axes[each.axis], each));
    Grid::of(&columns, effects).numbers(&["change", "95 % interval"])
}

fn shown(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::Bandwidth => readable_gb_s(value),
        Quantity::Latency => words::nanoseconds(value),
    }
}

/// `+3.10 % (+2.50 to +3.70 %), faster`
fn sentence(found: &Findings, change: &Change) -> String {
    let interval = interval(change).map_or_else(String::new, |interval| format!(" ({interval})"));
    let verdict = change.verdict(found.quantity);
    format!("{}{interval}, {verdict}", percent(change.share))
}

fn interval(change: &Change) -> Option<String> {
    let [low, high] = change.known.map(|known| [known.low, known.high].map(percent))?;
    Some(format!("{} to {high}", low.trim_end_matches(" %")))
}

fn percent(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}
