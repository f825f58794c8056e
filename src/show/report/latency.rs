//! Latency distributions of all transports on one scale.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use serde_json::{Value, json};

use super::{COLOURS, MARKS, Section, Variant, line_charts};
use crate::{
    record::{Error, Latency, Run},
    show::{page::Grid, summary::Kind, words},
    units::{Bytes, count, readable_nanoseconds},
};

/// The ticks of the axis of shares, and their labels.
const SHARES: [(f64, &str); 5] =
    [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];

/// Points of a line from each tenth of the rest to the next.
const POINTS_PER_DECADE: i32 = 12;

/// The latencies of the smallest size of a kind of transfer.
struct Line {
    name: String,
    size: Bytes,
    latency: Latency,
}

pub(super) fn section(run: &Run, kinds: &[Kind]) -> Result<Section, Error> {
    let mut lines: Vec<Line> = Vec::new();
    // The line of each row, by the number of the row.
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut missing: HashSet<usize> = HashSet::new();
    for kind in kinds {
        let Some(size) = kind.rows.iter().filter_map(|row| row.size_bytes).min() else { continue };
        for row in kind.rows.iter().filter(|row| row.size_bytes == Some(size)) {
            places.insert(row.case, lines.len());
            missing.extend(row.latency_ns_p50.map(|_| row.case));
        }
        lines.push(Line { name: kind.name.clone(), size, latency: Latency::default() });
    }
    let wanted = (0..run.rows.len()).filter(|row| places.contains_key(&run.rows[*row].case));
    run.latencies(wanted, |row, latency| {
        let case = run.rows[row].case;
        lines[places[&case]].latency.merge(&latency);
        missing.remove(&case);
    })?;
    lines.retain(|line| line.latency.count() > 0);
    let low = lines.iter().map(|line| line.latency.min_ns()).min().unwrap_or(1);
    let high = lines.iter().map(|line| line.latency.max_ns()).max().unwrap_or(1);
    let scale = low..high;
    let charts = line_charts("Latency by percentile", &lines, |lines| {
        let variant = Variant {
            traces: lines.iter().enumerate().map(trace).collect(),
            layout: layout(&scale),
            table: Some(table(lines)),
        };
        ("latency by percentile".to_owned(), variant)
    });
    let missing = match missing.len() {
        0 => String::new(),
        rows => format!("latency.hlog lacks {} of these.", count(rows, "row")),
    };
    Ok(Section {
        title: "Latency",
        about: "Of each kind of transfer the smallest size that was measured, all pairs together: how \
                many of the transfers took no longer than that. All charts have one scale of latencies.",
        missing,
        charts,
        ..Section::default()
    })
}

fn named(Line { name, size, .. }: &Line) -> String {
    format!("{}, {}", name.replace("->", "→"), words::short_size(*size))
}

fn trace((place, line): (usize, &Line)) -> Value {
    let Line { latency, .. } = line;
    // A point is a number of transfers, one of which takes longer; the last one is the largest of
    // all.
    let last = f64::from(POINTS_PER_DECADE) * (latency.count() as f64).log10();
    let steps = (0..).map(f64::from).take_while(|step| *step < last);
    let mut points: Vec<f64> =
        steps.map(|step| 10f64.powf(step / f64::from(POINTS_PER_DECADE))).collect();
    points.push(latency.count() as f64);
    let share = |one_in: f64| 1.0 - 1.0 / one_in;
    let value = |one_in: &f64| latency.quantile_ns(share(*one_in));
    let hover = |one_in: &f64| {
        let shown = readable_nanoseconds(value(one_in));
        format!("{:.4} % within {shown}", 100.0 * share(*one_in))
    };
    json!({
        "type": "scatter",
        "name": words::escaped(&named(line)),
        "x": points,
        "y": points.iter().map(value).collect::<Vec<u64>>(),
        "text": points.iter().map(hover).collect::<Vec<String>>(),
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "mode": "lines+markers",
        "line": { "color": COLOURS[place], "width": 2, "shape": "hv" },
        "marker": { "color": COLOURS[place], "symbol": MARKS[place], "size": 6 },
    })
}

fn layout(scale: &Range<u64>) -> Value {
    let times = super::ticks(scale.start as f64, scale.end as f64);
    json!({
        "xaxis": {
            "type": "log",
            "title": { "text": "share of the transfers" },
            "tickangle": 0,
            "tickvals": SHARES.map(|(share, _)| 1.0 / (1.0 - share)),
            "ticktext": SHARES.map(|(_, name)| name),
        },
        "yaxis": {
            "type": "log",
            "title": { "text": "latency" },
            "range": [(scale.start as f64).log10() - 0.1, (scale.end as f64).log10() + 0.1],
            "tickvals": times,
            "ticktext": times.iter().map(|time| short(*time)).collect::<Vec<String>>(),
        },
        "legend": super::legend(),
    })
}

/// `10 µs`
fn short(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns} ns"),
        ..1e6 => format!("{} µs", ns / 1e3),
        ..1e9 => format!("{} ms", ns / 1e6),
        _ => format!("{} s", ns / 1e9),
    }
}

fn table(lines: &[Line]) -> Grid {
    let quantiles = SHARES.map(|(_, name)| name);
    let mut grid = Grid::new(["what", "latencies"].into_iter().chain(quantiles).chain(["largest"]));
    for line in lines {
        let latency = &line.latency;
        let quantiles = SHARES.iter().map(|(share, _)| latency.quantile_ns(*share));
        let shown = quantiles.chain([latency.max_ns()]).map(readable_nanoseconds);
        grid.row([named(line), latency.count().to_string()].into_iter().chain(shown));
    }
    grid
}
