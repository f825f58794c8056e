//! A sweep on the page: the best combinations, and the effect of each setting.

use serde_json::json;

use super::{Chart, Section, Sentence, Variant};
use crate::{
    record::sweep::{Past, PastCase, PastEffect, PastPlace, PastRatio},
    show::{
        page::{Column, Grid, Tone},
        summary::limited,
        words,
    },
    units::{count, readable_gb_s},
};

/// Cases that can be chosen; the others are in sweep.json.
const CASES_MAX: usize = 40;

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
        sentences.push(Sentence { tone: Tone::Bad, text });
    }
    if missing > 0 {
        let runs = count(sweep.runs.len(), "run");
        let text = format!("{missing} of {runs} not made yet: g2g sweep --resume goes on.");
        sentences.push(Sentence { tone: Tone::Bad, text });
    }
    if sentences.is_empty() {
        sentences.push(Sentence { tone: Tone::Good, text: "All runs ended well.".to_owned() });
    }
    // If there are several bandwidths, the first case is their mean.
    let Some(case) = sweep.cases.first() else { return sentences };
    if let Some(best) = case.ranking.first() {
        let lead = case.lead.as_ref().map(|lead| {
            let PastRatio { ratio, verdict, .. } = &lead.effect;
            format!("; against the next {} ({verdict})", changed(Some(*ratio)))
        });
        let text = format!(
            "Best of {}: {} with {}{}.",
            case.case,
            shown(case, best.median),
            combination(sweep, best),
            lead.unwrap_or_default()
        );
        sentences.push(Sentence { tone: Tone::Note, text });
    }
    let is_known = |effect: &&PastEffect| ["faster", "slower"].contains(&&*effect.effect.verdict);
    let effects = case.effects.iter().filter(is_known).map(|effect| {
        let PastEffect { axis, value, against, effect } = effect;
        let (change, verdict) = (changed(Some(effect.ratio)), &effect.verdict);
        format!("{}: {axis}={value} is {change} against {against} ({verdict}).", case.case)
    });
    sentences.extend(limited(effects, Tone::Note, "the chart of effects has them"));
    sentences
}

pub(super) fn sections(sweep: &Past) -> Vec<Section> {
    // The page shows the last variant first.
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

/// Values with the lower and upper ends of their intervals, from top to bottom.
fn intervals(names: &[String], values: &[[f64; 3]], unit: &str, table: Grid) -> Variant {
    let distance = |to: usize| -> Vec<f64> {
        values.iter().map(|value| (value[to] - value[0]).abs()).collect()
    };
    let trace = json!({
        "x": values.iter().map(|value| value[0]).collect::<Vec<f64>>(),
        "y": names.iter().map(|name| words::escaped(name)).collect::<Vec<String>>(),
        "error_x": {
            "type": "data",
            "symmetric": false,
            "array": distance(2),
            "arrayminus": distance(1),
        },
    });
    let layout = json!({
        "xaxis": { "title": { "text": unit } },
        "yaxis": { "type": "category", "autorange": "reversed" },
    });
    Variant { traces: vec![trace], layout, table: Some(table) }
}

fn ranking(sweep: &Past, case: &PastCase) -> Variant {
    let names: Vec<String> = case.ranking.iter().map(|place| combination(sweep, place)).collect();
    let values: Vec<[f64; 3]> =
        case.ranking.iter().map(|place| [place.median, place.min, place.max]).collect();
    let unit = if case.quantity == "bandwidth_gb_s" { "GB/s" } else { "ns" };
    let columns: [Column<(&String, &[f64; 3])>; 4] = [
        ("combination", |(name, _)| name.clone()),
        (unit, |(_, [median, ..])| readable_gb_s(*median)),
        ("smallest", |(_, [_, min, _])| readable_gb_s(*min)),
        ("largest", |(_, [.., max])| readable_gb_s(*max)),
    ];
    let table = Grid::of(&columns, names.iter().zip(&values));
    let mut variant = intervals(&names, &values, unit, table);
    let trace = &mut variant.traces[0];
    trace["type"] = json!("bar");
    trace["orientation"] = json!("h");
    trace["marker"] = json!({ "color": "#0072b2" });
    trace["error_x"]["color"] = json!("#7a7a7a");
    trace["hovertemplate"] = json!("%{y}: %{x:.4g}<extra></extra>");
    variant
}

fn effects(_: &Past, case: &PastCase) -> Variant {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let name = |effect: &PastEffect| {
        format!("{}={} against {}", effect.axis, effect.value, effect.against)
    };
    let names: Vec<String> = case.effects.iter().map(name).collect();
    let value = |PastEffect { effect, .. }: &PastEffect| {
        let [low, high] =
            [effect.ratio_low, effect.ratio_high].map(|end| end.unwrap_or(effect.ratio));
        [effect.ratio, low, high].map(percent)
    };
    let values: Vec<[f64; 3]> = case.effects.iter().map(value).collect();
    let columns: [Column<(&String, &PastRatio)>; 5] = [
        ("what", |(name, _)| name.clone()),
        ("change", |(_, effect)| changed(Some(effect.ratio))),
        ("from", |(_, effect)| changed(effect.ratio_low)),
        ("to", |(_, effect)| changed(effect.ratio_high)),
        ("verdict", |(_, effect)| effect.verdict.clone()),
    ];
    let ratios = case.effects.iter().map(|effect| &effect.effect);
    let table = Grid::of(&columns, names.iter().zip(ratios.clone()));
    let mut variant = intervals(&names, &values, "change, %", table);
    let trace = &mut variant.traces[0];
    trace["type"] = json!("scatter");
    trace["mode"] = json!("markers");
    trace["marker"] = json!({ "color": "#d55e00", "size": 10 });
    trace["text"] = ratios.map(|effect| changed(Some(effect.ratio))).collect();
    trace["hovertemplate"] = json!("%{y}: %{text}<extra></extra>");
    variant
}

/// `+3.1 %`
fn changed(ratio: Option<f64>) -> String {
    ratio.map(|ratio| words::percent(ratio - 1.0)).unwrap_or_default()
}
