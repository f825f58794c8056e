//! Heat maps: what every pair reaches.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Chart, Section, Table, Variant, kinds};
use crate::{record::Columns, report::words, units::readable_gb_s};

/// With fewer ends a heat map shows nothing that a line does not.
const ENDS_MIN: usize = 3;

/// With more ends the numbers do not fit into the cells; they are in the table, and under the pointer.
const ENDS_WITH_NUMBERS: usize = 12;

/// Sizes that can be chosen.
const SIZES_MAX: usize = 12;

/// A scale of rates ends at least this far below the median, so that what is all alike looks alike.
const RANGE_MIN: f64 = 0.1;

/// A scale of ratios reaches at least this far to both sides of 1.
const RATIO_RANGE_MIN: f64 = 0.25;

/// An end of a flow: its host, and its number there.
type End = (String, u64);

/// One number for each ordered pair.
type Cells = BTreeMap<(End, End), Cell>;

#[derive(Clone, Copy)]
struct Cell {
    value: f64,
    expected: Option<f64>,
}

pub(super) fn section(rows: &Columns) -> Section {
    let mut charts = Vec::new();
    let mut of_gpus: BTreeMap<&str, BTreeMap<u64, Cells>> = BTreeMap::new();
    for kind in kinds(rows, "issuer") {
        let mut issuers: BTreeMap<&str, BTreeMap<u64, Cells>> = BTreeMap::new();
        for row in kind.rows.into_iter().filter(|row| rows.text(*row, "flows") == "1") {
            let Some((pair, size, cell)) = cell(rows, row) else { continue };
            let sizes = issuers.entry(rows.text(row, "issuer")).or_default();
            sizes.entry(size).or_default().insert(pair.clone(), cell);
            if !rows.text(row, "source_gpu").is_empty() {
                let best = of_gpus.entry(rows.text(row, "transport")).or_default();
                let best = best.entry(size).or_default().entry(pair).or_insert(cell);
                best.value = best.value.max(cell.value);
            }
        }
        for (issuer, sizes) in &issuers {
            let what = if issuer.is_empty() { String::new() } else { format!(", {issuer}") };
            charts.extend(rates(format!("{}{what}", kind.name.replace("->", "→")), sizes));
        }
        if let (Some(read), Some(write)) = (issuers.get("read"), issuers.get("write")) {
            let title = format!("{}: read over write", kind.name);
            charts.extend(ratios(title, ("reads", read), ("writes", write)));
        }
    }
    if let (Some(shm), Some(p2p)) = (of_gpus.get("shm"), of_gpus.get("p2p")) {
        let title = "p2p over shm, each by its best way".to_owned();
        charts.extend(ratios(title, ("p2p", p2p), ("shm", shm)));
    }
    Section {
        title: "Pairs",
        about: "Bandwidth in GB/s of each ordered pair, alone. A slow GPU is a dark row (as a source) \
                and a dark column (as a target).",
        charts,
        ..Section::default()
    }
}

/// A row's pair, its size and what it has reached, if it goes from one place to another.
fn cell(rows: &Columns, row: usize) -> Option<((End, End), u64, Cell)> {
    let end = |side: &str| {
        let of = |what: &str| format!("{side}_{what}");
        let number = rows
            .count(row, &of("gpu"))
            .or_else(|| rows.count(row, &of("rank")).filter(|_| is_between_ranks(rows, row)))?;
        Some((rows.text(row, &of("host")).to_owned(), number))
    };
    let pair = (end("source")?, end("target")?);
    let value = rows.number(row, "bandwidth_gb_s")?;
    let expected = rows.number(row, "expected_gb_s");
    let size = rows.count(row, "size_bytes")?;
    (pair.0 != pair.1).then_some((pair, size, Cell { value, expected }))
}

/// Whether both ends are known by their ranks.
fn is_between_ranks(rows: &Columns, row: usize) -> bool {
    ["source_gpu", "target_gpu"].iter().all(|column| rows.text(row, column).is_empty())
}

/// The names of all ends, in their order.
fn ends(cells: &Cells) -> Vec<(&End, String)> {
    let ends: BTreeSet<&End> = cells.keys().flat_map(|(source, target)| [source, target]).collect();
    let hosts: BTreeSet<&str> = ends.iter().map(|(host, _)| host.as_str()).collect();
    let name = |(host, number): &End| match hosts.len() {
        1 => number.to_string(),
        _ => format!("{number} of {host}"),
    };
    ends.into_iter().map(|end| (end, name(end))).collect()
}

/// The sizes that can be chosen: the largest, of which transfers' start weighs the least.
fn chosen<T>(sizes: &BTreeMap<u64, T>) -> impl Iterator<Item = (u64, &T)> {
    let left_out = sizes.len().saturating_sub(SIZES_MAX);
    sizes.iter().skip(left_out).map(|(size, cells)| (*size, cells))
}

fn rates(title: String, sizes: &BTreeMap<u64, Cells>) -> Option<Chart> {
    let variant = |(size, cells): (u64, &Cells)| {
        let values: Vec<f64> = cells.values().map(|cell| cell.value).collect();
        let median = median(&values);
        let (low, high) = range(&values);
        let unit = json!({
            "colorscale": "Cividis",
            "zmin": low.min(median * (1.0 - RANGE_MIN)),
            "zmax": high,
            "colorbar": { "title": { "text": "GB/s" }, "thickness": 12 },
            "hovertemplate": "%{y} → %{x}<br>%{text} GB/s%{customdata}<extra></extra>",
        });
        let share = |cell: &Cell| match cell.expected {
            Some(expected) => format!("<br>{:.0} % of expected", 100.0 * cell.value / expected),
            None => String::new(),
        };
        (words::short_size(size), map(cells, unit, &|cell| short(cell.value), &share))
    };
    let (_, largest) = sizes.iter().next_back()?;
    if ends(largest).len() < ENDS_MIN {
        return None;
    }
    let values: Vec<f64> = largest.values().map(|cell| cell.value).collect();
    let (low, high) = range(&values);
    let (slowest, _) = largest.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let names = ends(largest);
    let name = |end: &End| names.iter().find(|(of, _)| *of == end).map_or("", |(_, name)| name);
    let about = match short(low) == short(high) {
        true => format!("{} pairs, all at {} GB/s", values.len(), short(high)),
        false => format!(
            "{} pairs from {} to {} GB/s, the slowest {} → {}",
            values.len(),
            short(low),
            short(high),
            name(&slowest.0),
            name(&slowest.1),
        ),
    };
    Some(Chart { by: "Size", ..Chart::new(title, about, chosen(sizes).map(variant).collect()) })
}

fn ratios(
    title: String,
    (name, above): (&str, &BTreeMap<u64, Cells>),
    (other, below): (&str, &BTreeMap<u64, Cells>),
) -> Option<Chart> {
    let mut sizes: BTreeMap<u64, Cells> = BTreeMap::new();
    for (size, cells) in above {
        let Some(others) = below.get(size) else { continue };
        let ratio = |(pair, cell): (&(End, End), &Cell)| {
            let value = cell.value / others.get(pair)?.value;
            Some((pair.clone(), Cell { value, expected: None }))
        };
        sizes.insert(*size, cells.iter().filter_map(ratio).collect());
    }
    let (_, largest) = sizes.iter().next_back()?;
    if ends(largest).len() < ENDS_MIN {
        return None;
    }
    let variant = |(size, cells): (u64, &Cells)| {
        let values: Vec<f64> = cells.values().map(|cell| cell.value).collect();
        let far = values.iter().map(|value| value.ln().abs()).fold(RATIO_RANGE_MIN, f64::max);
        let (low, high) = ((-far).exp(), far.exp());
        // Purple below 1, white at 1, orange above it: told apart by all eyes.
        let middle = (1.0 - low) / (high - low);
        let unit = json!({
            "colorscale": [[0, "#5e3c99"], [middle, "#f7f7f7"], [1, "#e66101"]],
            "zmin": low,
            "zmax": high,
            "colorbar": { "title": { "text": "ratio" }, "thickness": 12 },
            "hovertemplate": "%{y} → %{x}<br>%{text}<extra></extra>",
        });
        let text = |cell: &Cell| format!("{:.3}", cell.value);
        (words::short_size(size), map(cells, unit, &text, &|_| String::new()))
    };
    let values: Vec<f64> = largest.values().map(|cell| cell.value).collect();
    let (low, high) = range(&values);
    let about = format!(
        "the rate of {name} over that of {other}: {low:.3} to {high:.3}, median {:.3}; above 1 {name} \
         are faster",
        median(&values)
    );
    Some(Chart { by: "Size", ..Chart::new(title, about, chosen(&sizes).map(variant).collect()) })
}

/// A heat map of cells, and the table of its numbers.
fn map(
    cells: &Cells,
    unit: Value,
    text: &dyn Fn(&Cell) -> String,
    more: &dyn Fn(&Cell) -> String,
) -> Variant {
    let ends = ends(cells);
    let names: Vec<&str> = ends.iter().map(|(_, name)| name.as_str()).collect();
    let of = |source: &End, target: &End| cells.get(&(source.clone(), target.clone()));
    let matrix = |value: &dyn Fn(&Cell) -> Value, none: Value| -> Vec<Vec<Value>> {
        let row = |source: &End| {
            let cell =
                |(target, _): &(&End, String)| of(source, target).map_or(none.clone(), value);
            ends.iter().map(cell).collect()
        };
        ends.iter().map(|(source, _)| row(source)).collect()
    };
    let numbers = if names.len() <= ENDS_WITH_NUMBERS { "%{text}" } else { "" };
    let mut trace = json!({
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": matrix(&|cell| json!(cell.value), Value::Null),
        "text": matrix(&|cell| json!(text(cell)), json!("")),
        "customdata": matrix(&|cell| json!(more(cell)), json!("")),
        "texttemplate": numbers,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": false,
    });
    if let (Value::Object(trace), Value::Object(unit)) = (&mut trace, unit) {
        trace.extend(unit);
    }
    let axis =
        |title: &str| json!({ "title": { "text": title }, "type": "category", "showgrid": false });
    let mut sources = axis("source");
    sources["autorange"] = json!("reversed");
    let row = |(source, name): &(&End, String)| {
        let cell = |(target, _): &(&End, String)| {
            of(source, target).map(|cell| readable_gb_s(cell.value)).unwrap_or_default()
        };
        [name.clone()].into_iter().chain(ends.iter().map(cell)).collect()
    };
    Variant {
        traces: vec![trace],
        layout: json!({ "xaxis": axis("target"), "yaxis": sources }),
        table: Table {
            head: ["source \\ target".to_owned()]
                .into_iter()
                .chain(names.iter().map(|name| (*name).to_owned()))
                .collect(),
            rows: ends.iter().map(row).collect(),
            ..Table::default()
        },
    }
}

/// A rate with three digits that count.
pub(super) fn short(gb_s: f64) -> String {
    match gb_s {
        100.0.. => format!("{gb_s:.0}"),
        10.0.. => format!("{gb_s:.1}"),
        1.0.. => format!("{gb_s:.2}"),
        _ => readable_gb_s(gb_s),
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(*value), high.max(*value)))
}

/// The middle value, of an even count the upper of two; 0 of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
