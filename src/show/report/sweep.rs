//! A sweep on the page: what is best, and what each setting changes.

use serde_json::json;

use super::{Chart, Section, Sentence, Table, Variant};
use crate::{
    record::sweep::{Past, PastCase, PastEffect, PastPlace, PastRatio},
    show::words,
    units::{count, readable_gb_s},
};

/// Cases that can be chosen; the others are in sweep.json.
const CASES_MAX: usize = 40;

/// Sentences of what settings change.
const SENTENCES_MAX: usize = 12;

pub(super) fn machine(sweep: &Past) -> String {
    let machine = &sweep.provenance.machine;
    let named = machine.product.as_ref().or(machine.cpu_model.as_ref());
    let named = named.filter(|_| !sweep.simulated).cloned();
    let runs = count(sweep.runs.len(), "run");
    let combinations = count(sweep.combinations.len(), "combination");
    let parts = [named, Some(combinations), Some(runs)];
    parts.into_iter().flatten().collect::<Vec<String>>().join(", ")
}

pub(super) fn sentences(sweep: &Past) -> Vec<Sentence> {
    let with = |status: &str| sweep.runs.iter().filter(|run| run.status == status).count();
    let (failed, missing) = (with("failed"), with("missing"));
    let mut sentences = Vec::new();
    if failed > 0 {
        let text = format!("{} failed: see runs in sweep.json.", count(failed, "run"));
        sentences.push(Sentence { kind: "bad", text });
    }
    if missing > 0 {
        let text = format!(
            "{} of {} not made yet: g2g sweep --resume goes on.",
            missing,
            count(sweep.runs.len(), "run")
        );
        sentences.push(Sentence { kind: "bad", text });
    }
    if sentences.is_empty() {
        sentences.push(Sentence { kind: "good", text: "All runs ended well.".to_owned() });
    }
    // The first is all bandwidths together, where there are several.
    let Some(case) = sweep.cases.first() else { return sentences };
    if let Some(best) = case.ranking.first() {
        let lead = case.lead.as_ref().map(|lead| {
            let PastRatio { ratio, verdict, .. } = &lead.effect;
            format!("; against the next {} ({verdict})", words::percent(ratio - 1.0))
        });
        let text = format!(
            "Best of {}: {} with {}{}.",
            case.case,
            shown(case, best.median),
            combination(sweep, best),
            lead.unwrap_or_default()
        );
        sentences.push(Sentence { kind: "note", text });
    }
    let is_told = |effect: &&PastEffect| ["faster", "slower"].contains(&&*effect.effect.verdict);
    let told: Vec<&PastEffect> = case.effects.iter().filter(is_told).collect();
    sentences.extend(told.iter().take(SENTENCES_MAX).map(|effect| {
        let PastEffect { axis, value, against, effect: ratio } = effect;
        let text = format!(
            "{}: {axis}={value} is {} against {against} ({}).",
            case.case,
            words::percent(ratio.ratio - 1.0),
            ratio.verdict
        );
        Sentence { kind: "note", text }
    }));
    if let Some(left @ 1..) = told.len().checked_sub(SENTENCES_MAX) {
        let text = format!("And {left} more effects: the chart has them.");
        sentences.push(Sentence { kind: "note", text });
    }
    sentences
}

pub(super) fn sections(sweep: &Past) -> Vec<Section> {
    // The one that is shown first is the last of the variants.
    let cases: Vec<&PastCase> = sweep.cases.iter().take(CASES_MAX).rev().collect();
    let of = |variant: fn(&Past, &PastCase) -> Variant| {
        cases.iter().map(|case| (case.case.clone(), variant(sweep, case))).collect()
    };
    let left = match sweep.cases.len() - cases.len() {
        0 => String::new(),
        _ => format!("; {} of {} cases, all are in sweep.json", cases.len(), sweep.cases.len()),
    };
    let wide = |title: &str, about: &str, variants| Chart {
        by: "Case",
        is_wide: true,
        ..Chart::new(title.to_owned(), format!("{about}{left}"), variants)
    };
    let has_effects = cases.iter().any(|case| !case.effects.is_empty());
    let effects = has_effects.then(|| {
        let about = "what each value changes against the first of its axis, with the interval";
        wide("Effects", about, of(effects))
    });
    let ranking = (!cases.is_empty()).then(|| {
        let about = "median of the repetitions, with the smallest and the largest";
        wide("Combinations, the best first", about, of(ranking))
    });
    vec![Section {
        title: "Sweep",
        about: "What was tried, each combination in processes of its own and in a random order.",
        charts: effects.into_iter().chain(ranking).collect(),
        ..Section::default()
    }]
}

fn shown(case: &PastCase, value: f64) -> String {
    match case.quantity.as_str() {
        "bandwidth_gb_s" => words::gb_s(value),
        _ => words::nanoseconds(value),
    }
}

/// `algorithm=Ring protocol=LL`
fn combination(sweep: &Past, place: &PastPlace) -> String {
    let found = place.combination.checked_sub(1).and_then(|at| sweep.combinations.get(at));
    let values = found.iter().flat_map(|found| &found.values);
    let words =
        values.map(|(axis, value)| format!("{axis}={}", value.as_str().unwrap_or_default()));
    words.collect::<Vec<String>>().join(" ")
}

fn ranking(sweep: &Past, case: &PastCase) -> Variant {
    let names: Vec<String> = case.ranking.iter().map(|place| combination(sweep, place)).collect();
    let of = |value: &dyn Fn(&PastPlace) -> f64| -> Vec<f64> {
        case.ranking.iter().map(value).collect()
    };
    let unit = if case.quantity == "bandwidth_gb_s" { "GB/s" } else { "ns" };
    let row = |(place, name): (&PastPlace, &String)| {
        let [median, min, max] = [place.median, place.min, place.max].map(readable_gb_s);
        vec![name.clone(), median, min, max]
    };
    Variant {
        traces: vec![json!({
            "type": "bar",
            "orientation": "h",
            "x": of(&|place| place.median),
            "y": names.iter().map(|name| words::escaped(name)).collect::<Vec<String>>(),
            "marker": { "color": "#0072b2" },
            "error_x": {
                "type": "data",
                "symmetric": false,
                "array": of(&|place| place.max - place.median),
                "arrayminus": of(&|place| place.median - place.min),
                "color": "#7a7a7a",
            },
            "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
        })],
        layout: json!({
            "xaxis": { "title": { "text": unit } },
            "yaxis": { "type": "category", "autorange": "reversed" },
        }),
        table: Some(Table {
            head: ["combination", unit, "smallest", "largest"].map(str::to_owned).to_vec(),
            rows: case.ranking.iter().zip(&names).map(row).collect(),
            ..Table::default()
        }),
    }
}

fn effects(_: &Past, case: &PastCase) -> Variant {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let name = |effect: &PastEffect| {
        format!("{}={} against {}", effect.axis, effect.value, effect.against)
    };
    let names: Vec<String> = case.effects.iter().map(name).collect();
    let of = |value: &dyn Fn(&PastEffect) -> f64| -> Vec<f64> {
        case.effects.iter().map(value).collect()
    };
    let end = |effect: &PastEffect, end: Option<f64>| {
        (percent(end.unwrap_or(effect.effect.ratio)) - percent(effect.effect.ratio)).abs()
    };
    let changed = |effect: &PastEffect| words::percent(effect.effect.ratio - 1.0);
    let row = |(effect, name): (&PastEffect, &String)| {
        let ratio = &effect.effect;
        let [change, low, high] = [Some(ratio.ratio), ratio.ratio_low, ratio.ratio_high]
            .map(|ratio| ratio.map(|ratio| words::percent(ratio - 1.0)).unwrap_or_default());
        vec![name.clone(), change, low, high, ratio.verdict.clone()]
    };
    Variant {
        traces: vec![json!({
            "type": "scatter",
            "mode": "markers",
            "x": of(&|effect| percent(effect.effect.ratio)),
            "y": names.iter().map(|name| words::escaped(name)).collect::<Vec<String>>(),
            "marker": { "color": "#d55e00", "size": 10 },
            "error_x": {
                "type": "data",
                "symmetric": false,
                "array": of(&|effect| end(effect, effect.effect.ratio_high)),
                "arrayminus": of(&|effect| end(effect, effect.effect.ratio_low)),
            },
            "text": case.effects.iter().map(changed).collect::<Vec<String>>(),
            "hovertemplate": "%{y}: %{text}<extra></extra>",
        })],
        layout: json!({
            "xaxis": { "title": { "text": "change, %" } },
            "yaxis": { "type": "category", "autorange": "reversed" },
        }),
        table: Some(Table {
            head: ["what", "change", "from", "to", "verdict"].map(str::to_owned).to_vec(),
            rows: case.effects.iter().zip(&names).map(row).collect(),
            ..Table::default()
        }),
    }
}
