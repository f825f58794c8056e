//! `report.html`: a page that needs nothing but itself.

mod check;
mod compared;
mod facts;
mod latency;
mod pairs;
mod sizes;
mod sweep;

use askama::Template;
use plotly::Plot;
use serde::Serialize;
use serde_json::{Value, json};

use std::path::Path;

use super::{
    page::{Grid, Sentence},
    summary::{self, kinds},
};
use crate::{
    record::{Error, Run, sweep::Past},
    units::count,
};

/// A longer run.csv is not part of the page: the browser would have to hold it.
const CSV_MAX: u64 = 16 << 20;

/// Lines that one chart can hold and still be read; more stand in further charts.
const LINES_MAX: usize = 8;

/// Colours that colour-blind readers can distinguish: Okabe and Ito, "Color Universal Design"
/// (2008), without the yellow, which is hard to see on white, and with a grey that can be seen on
/// black and white.
const COLOURS: [&str; LINES_MAX] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#8c6d1f"];

/// Symbols that distinguish lines besides their colours.
const MARKS: [&str; LINES_MAX] = [
    "circle",
    "square-open",
    "diamond-open",
    "triangle-up-open",
    "x-open",
    "triangle-down-open",
    "cross-open",
    "star-open",
];

#[derive(Template)]
#[template(path = "page.html", config = "src/show/report/askama.toml")]
struct Page<'a> {
    title: String,
    is_simulated: bool,
    version: &'static str,
    parts: Vec<Part>,
    plotly: &'a str,
}

/// A run or a sweep on the page.
pub struct Part {
    /// Its number on the page, from 1.
    number: usize,
    name: String,
    is_simulated: bool,
    machine: String,
    started: String,
    sentences: Vec<Sentence>,
    sections: Vec<Section>,
    /// The text of run.csv as JSON, if it is not too long.
    csv: Option<String>,
    csv_name: String,
}

/// A part of the page.
#[derive(Default)]
struct Section {
    title: &'static str,
    about: &'static str,
    /// A sentence on what is not there of all that could be.
    missing: String,
    charts: Vec<Chart>,
    tables: Vec<Table>,
    /// A picture, in SVG.
    picture: String,
}

/// A chart in one or more variants, of which one is shown at a time.
#[derive(Default)]
struct Chart {
    title: String,
    /// A description for readers who cannot see the chart.
    about: String,
    /// The name of what differs between the variants.
    by: &'static str,
    /// The variants' names; the last is shown first.
    variants: Vec<String>,
    /// For each variant what Plotly draws and the table of its numbers, as JSON.
    data: String,
    /// Whether it takes the whole width.
    is_wide: bool,
    /// Whether it is as high as it is wide, as far as there is room.
    is_square: bool,
}

/// A table.
struct Table {
    title: String,
    about: &'static str,
    grid: Grid,
}

/// What a variant of a chart is made of.
#[derive(Serialize)]
struct Variant {
    traces: Vec<Value>,
    layout: Value,
    /// `None` for a heat map: the page makes the table from the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<Grid>,
}

impl Chart {
    fn new(title: String, about: String, variants: Vec<(String, Variant)>) -> Self {
        let (names, variants): (Vec<String>, Vec<Variant>) = variants.into_iter().unzip();
        Self { title, about, variants: names, data: script(&variants), ..Self::default() }
    }
}

/// Lines in as many charts of the whole width as they need; `chart` says what can be seen in one,
/// after the number of its lines, and draws it.
fn line_charts<T>(
    title: &str,
    lines: &[T],
    chart: impl Fn(&[T]) -> (String, Variant),
) -> Vec<Chart> {
    let parts = lines.len().div_ceil(LINES_MAX);
    let chart = |(part, lines): (usize, &[T])| {
        let title = match parts {
            1 => title.to_owned(),
            _ => format!("{title} ({} of {parts})", part + 1),
        };
        let (about, variant) = chart(lines);
        let about = format!("{} of {about}", count(lines.len(), "line"));
        Chart { is_wide: true, ..Chart::new(title, about, vec![(String::new(), variant)]) }
    };
    lines.chunks(LINES_MAX).enumerate().map(chart).collect()
}

/// Ticks for a logarithmic axis from `low` to `high`: 1, 2 and 5 of each decade, or where that
/// would be too many the decades alone. None where an end has no place on such an axis: an interval
/// may reach down to 0.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (low.log10().floor(), high.log10().ceil());
    if !decades.0.is_finite() || !decades.1.is_finite() {
        return Vec::new();
    }
    let firsts: &[f64] = if decades.1 - decades.0 > 4.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = (0..).map(|step| decades.0 + f64::from(step));
    let all = all.take_while(|decade| *decade <= decades.1);
    all.flat_map(|decade| firsts.iter().map(move |first| first * 10f64.powf(decade))).collect()
}

/// Where the legend is: below, whatever the height.
fn legend() -> Value {
    json!({ "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom" })
}

/// JSON that is safe in a script element.
fn script(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("it is text, numbers and lists");
    json.replace('<', "\\u003c")
}

/// The page of some runs and sweeps; of several runs with their comparison first.
pub fn html(mut parts: Vec<Part>, comparison: Option<Part>) -> String {
    let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
    for (number, part) in (1..).zip(&mut parts) {
        part.number = number;
        if names.iter().filter(|name| **name == part.name).count() > 1 {
            if !part.csv_name.is_empty() {
                part.csv_name = format!("{}-{number}.csv", part.name);
            }
            part.name = format!("{} ({number})", part.name);
        }
    }
    let sources = Plot::offline_js_sources();
    // The first script is Plotly; the other one typesets formulas, which no chart has.
    let plotly = sources.split_once('>').and_then(|(_, rest)| rest.split_once("</script>"));
    let page = Page {
        title: match &parts[..] {
            [part] => part.name.clone(),
            parts => format!("{} sets of results", parts.len()),
        },
        is_simulated: parts.iter().any(|part| part.is_simulated),
        version: env!("CARGO_PKG_VERSION"),
        parts: comparison.into_iter().chain(parts).collect(),
        plotly: plotly.map_or("", |(script, _)| script),
    };
    page.render().expect("memory takes every write")
}

/// The last name of a folder.
fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
}

impl Part {
    /// A run; without the charts in which it stands beside others where it does.
    pub fn of_run(run: &Run, is_compared: bool) -> Result<Self, Error> {
        let rows = &run.rows;
        let is_simulated = run.provenance.simulated;
        let path = run.folder.join("run.csv");
        let read = |source| Error::Read { path: path.clone(), source };
        let is_short = std::fs::metadata(&path).map_err(read)?.len() <= CSV_MAX;
        let csv = is_short.then(|| std::fs::read_to_string(&path)).transpose().map_err(read)?;
        let kinds = kinds(rows, &[]);
        let mut sentences = summary::sentences(run, &kinds);
        let mut sections = Vec::new();
        if let Some(check) = check::kept(&run.folder)? {
            sentences.insert(0, super::fitness::outcome(&check.hosts));
            sections.extend([check::hosts(&check), check::rounds(&run.folder)?]);
        }
        sections.extend([facts::picture(run), pairs::section(rows)]);
        if !is_compared {
            sections.extend(sizes::sections(&kinds));
        }
        sections.push(latency::section(run, &kinds)?);
        sections.extend(facts::sections(run));
        sections.retain(|Section { charts, tables, picture, missing, .. }| {
            !(charts.is_empty() && tables.is_empty() && picture.is_empty() && missing.is_empty())
        });
        let name = name(&run.folder);
        Ok(Self {
            number: 0,
            csv_name: format!("{name}.csv"),
            name,
            is_simulated,
            machine: summary::machine(&run.provenance),
            started: run.provenance.started.clone(),
            sentences,
            sections,
            csv: csv.map(|text| script(&text)),
        })
    }

    /// A sweep.
    pub fn of_sweep(sweep: &Past) -> Self {
        Self {
            number: 0,
            csv: None,
            csv_name: String::new(),
            name: name(&sweep.folder),
            is_simulated: sweep.simulated,
            machine: sweep::machine(sweep),
            started: sweep.provenance.started.clone(),
            sentences: sweep::sentences(sweep),
            sections: sweep::sections(sweep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_ticks_of_each_decade_or_none_where_it_has_no_end() {
        assert_eq!(ticks(3.0, 40.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(ticks(0.5, 2e4).len(), 7);
        for (low, high) in [(0.0, 1.0), (-1.0, 1.0), (1.0, f64::INFINITY), (f64::NAN, 1.0)] {
            assert_eq!(ticks(low, high), [0.0; 0]);
        }
    }
}
