//! The verdicts of a check, and the rounds of a burn-in.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

use super::{COLOURS, Chart, MARKS, Section, Table, Variant, line_charts};
use crate::{
    analysis::fitness::Check,
    plan::TransportKind,
    record::{
        Error,
        rounds::{self, Round},
    },
    show::{fitness, page::Grid, progress::readable_wait},
};

/// The verdicts that a check has left in `folder`, if it is one.
pub(super) fn kept(folder: &Path) -> Result<Option<Check>, Error> {
    let path = folder.join(fitness::FILE);
    let text = match fs::read_to_string(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| Error::Read { path: path.clone(), source })?,
    };
    let check = serde_json::from_str(&text);
    check.map(Some).map_err(|err| Error::Content { path, reason: err.to_string() })
}

/// The hosts, the worst first.
pub(super) fn hosts(check: &Check) -> Section {
    let mut grid = Grid::new(["host", "verdict", "stage", "why", "what shows it"]);
    for host in &check.hosts {
        let name = host.host.clone();
        if host.reasons.is_empty() {
            let (verdict, why) = (host.verdict.to_string(), fitness::why(host));
            grid.row([name.clone(), verdict, String::new(), why, String::new()]);
        }
        for reason in &host.reasons {
            let (verdict, stage) = (reason.verdict.to_string(), reason.stage.to_string());
            grid.row([name.clone(), verdict, stage, reason.said.clone(), reason.shown.clone()]);
        }
    }
    Section {
        title: "Hosts",
        about: "The verdict on each host, the worst first, with all reasons.",
        tables: vec![Table { title: String::new(), about: "", grid }],
        ..Section::default()
    }
}

/// The rounds of a burn-in in `folder`, if it is one.
pub(super) fn rounds(folder: &Path) -> Result<Section, Error> {
    let (rounds, _) = rounds::read(folder)?;
    let mut lines: Vec<Line<'_>> = Vec::new();
    for round in &rounds {
        match lines.iter_mut().find(|line| line.transport == round.transport) {
            Some(line) => line.rounds.push(round),
            None => lines.push(Line { transport: round.transport, rounds: vec![round] }),
        }
    }
    let charts = [
        chart("Slowest case, % of its first rate", &lines, |round| {
            Some(100.0 * round.share_least?)
        }),
        chart("Hottest GPU, °C", &lines, |round| round.temperature_c_max.map(f64::from)),
        chart("Corrupt or failed rows", &lines, |round| {
            (round.wrong > 0).then_some(round.wrong as f64)
        }),
    ];
    Ok(Section {
        title: "Rounds of the burn-in",
        about: "All rows were measured again in each round. Each line is a transport.",
        charts: charts.into_iter().flatten().collect(),
        ..Section::default()
    })
}

/// The rounds of a transport.
struct Line<'a> {
    transport: TransportKind,
    rounds: Vec<&'a Round>,
}

/// A chart of a value over time; none without one.
fn chart(title: &str, lines: &[Line<'_>], value: fn(&Round) -> Option<f64>) -> Vec<Chart> {
    if !lines.iter().flat_map(|line| &line.rounds).any(|round| value(round).is_some()) {
        return Vec::new();
    }
    line_charts(title, lines, |lines| {
        let variant = Variant {
            traces: lines.iter().enumerate().map(|line| trace(line, value)).collect(),
            layout: json!({
                "xaxis": { "title": { "text": "time, min" }, "rangemode": "tozero" },
                "yaxis": { "title": { "text": title } },
                "legend": super::legend(),
            }),
            table: Some(table(lines, value)),
        };
        (format!("{title} by time"), variant)
    })
}

fn trace((place, line): (usize, &Line<'_>), value: fn(&Round) -> Option<f64>) -> Value {
    let minutes = |round: &&Round| (round.began_s + round.took_s) / 60.0;
    json!({
        "type": "scatter",
        "name": line.transport.to_string(),
        "x": line.rounds.iter().map(minutes).collect::<Vec<f64>>(),
        "y": line.rounds.iter().map(|round| value(round)).collect::<Vec<Option<f64>>>(),
        "mode": "lines+markers",
        "line": { "color": COLOURS[place], "width": 2 },
        "marker": { "color": COLOURS[place], "symbol": MARKS[place], "size": 5 },
    })
}

/// The first and the last value, and the least and the most with their time.
fn table(lines: &[Line<'_>], value: fn(&Round) -> Option<f64>) -> Grid {
    let mut grid = Grid::new(["transport", "rounds", "first", "last", "least", "most"]);
    for line in lines {
        let values = || line.rounds.iter().filter_map(|round| Some((*round, value(round)?)));
        let shown = |found: Option<(&Round, f64)>| {
            found.map_or_else(String::new, |(round, value)| {
                let after = readable_wait(round.began_s + round.took_s);
                format!("{value:.1} after {after}")
            })
        };
        let by = |(_, a): &(&Round, f64), (_, b): &(&Round, f64)| a.total_cmp(b);
        grid.row([
            line.transport.to_string(),
            line.rounds.len().to_string(),
            shown(values().next()),
            shown(values().next_back()),
            shown(values().min_by(by)),
            shown(values().max_by(by)),
        ]);
    }
    grid
}
