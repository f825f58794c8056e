//! Bandwidth by size, with the cost of starting a transfer.

use std::{collections::BTreeMap, ops::RangeInclusive};

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::{COLOURS, Chart, MARKS, Section, Table, Variant, line_charts, pairs::range};
use crate::{
    record::Row,
    show::{
        page::{Column, Grid},
        summary::{Kind, kinds},
        words,
    },
    units::{Bytes, count, readable_gb_s},
};

/// Points of all lines together; a browser could not hold more.
const POINTS_MAX: usize = 20_000;

/// The least and the most points of a line that are drawn.
const POINTS_OF_LINE: RangeInclusive<usize> = 64..=512;

/// Names that fit below an axis.
const TICKS_MAX: f64 = 9.0;

/// Rates whose ends are less than this apart are drawn from 0.
const ALIKE: f64 = 4.0;

/// With fewer sizes a start and a rate cannot be distinguished.
const SIZES_FOR_FIT: usize = 3;

/// All rows of a kind and size together.
struct Point {
    size: u64,
    /// The median of the rows.
    gb_s: f64,
    /// The slowest and the fastest row, or the confidence interval of a single one.
    low: f64,
    high: f64,
    rows: usize,
    expected: Option<f64>,
    /// Seconds for each transfer: all bytes over all time.
    seconds: f64,
}

/// Rows that differ in their size and their ends only.
struct Line {
    name: String,
    /// What its transfers cost, by all sizes.
    fit: Option<Fit>,
    /// How many sizes there are.
    sizes: usize,
    /// The sizes that are drawn.
    points: Vec<Point>,
}

/// A line, and the place of its colour.
type Placed<'a> = (usize, &'a Line);

/// The cost of a transfer: a start, and a time for each byte.
struct Fit {
    start_s: f64,
    bytes_per_s: f64,
    /// The largest relative distance of a point from it.
    largest_miss: f64,
}

pub(super) fn sections(kinds: &[Kind]) -> [Section; 2] {
    let (collectives, copies): (Vec<&Kind>, Vec<&Kind>) =
        kinds.iter().partition(|kind| kind.rows[0].transport.is_collective());
    let most = POINTS_MAX / kinds.len().max(1);
    let most = most.clamp(*POINTS_OF_LINE.start(), *POINTS_OF_LINE.end());
    let lines = |kinds: &[&Kind], rate: fn(&Row) -> Option<f64>| -> Vec<Line> {
        kinds.iter().filter_map(|kind| line(kind, rate, most)).collect()
    };
    let copies = lines(&copies, |row| row.bandwidth_gb_s);
    let mut transports: IndexMap<&str, Vec<&Line>> = IndexMap::new();
    for line in &copies {
        let transport = line.name.split(' ').next().unwrap_or_default();
        transports.entry(transport).or_default().push(line);
    }
    let of_transport = |(transport, lines): (&&str, &Vec<&Line>)| {
        charts(transport, &lines.iter().copied().enumerate().collect::<Vec<Placed>>(), "GB/s")
    };
    let busses = lines(&collectives, |row| row.bandwidth_gb_s_bus);
    let algorithms = lines(&collectives, |row| row.bandwidth_gb_s);
    [
        Section {
            title: "Bandwidth by size",
            about: "One flow in one direction. A line is the median of all pairs, its band the slowest \
                    to the fastest pair; of a single pair the band is the 95 % confidence interval. \
                    Dashes: what a healthy machine is expected to reach with large transfers.",
            charts: transports.iter().flat_map(of_transport).collect(),
            tables: fits(&copies, "GB/s beyond it").into_iter().collect(),
            ..Section::default()
        },
        Section {
            title: "Collectives",
            about: "Bus bandwidth by nccl-tests' formulas: what one link would have to carry if the data \
                    went around a ring. With NVLS or trees it can be more than a link can carry.",
            charts: charts(
                "nccl",
                &busses.iter().enumerate().collect::<Vec<Placed>>(),
                "GB/s (bus)",
            ),
            tables: fits(&algorithms, "GB/s (algorithm) beyond it").into_iter().collect(),
            ..Section::default()
        },
    ]
}

/// All runs together: a chart for each kind, in which each run has a colour of its own. Runs have a
/// name and rows.
pub(super) fn together(runs: &[(&str, &[Row])]) -> Section {
    let mut all: IndexMap<String, Vec<(usize, Line)>> = IndexMap::new();
    for (place, (name, rows)) in runs.iter().enumerate() {
        for kind in kinds(rows, &[]) {
            let is_collective = kind.rows[0].transport.is_collective();
            let rate = if is_collective {
                |row: &Row| row.bandwidth_gb_s_bus
            } else {
                |row: &Row| row.bandwidth_gb_s
            };
            let Some(line) = line(&kind, rate, *POINTS_OF_LINE.start()) else { continue };
            let unit = if is_collective { " (bus)" } else { "" };
            let lines = all.entry(format!("{}, GB/s{unit}", line.name)).or_default();
            lines.push((place, Line { name: (*name).to_owned(), ..line }));
        }
    }
    let of_kind = |(kind, lines): (&String, &Vec<(usize, Line)>)| {
        let lines = lines.iter().map(|(place, line)| (*place, line));
        charts(kind, &lines.collect::<Vec<Placed>>(), "GB/s")
    };
    Section {
        title: "Bandwidth by size",
        about: "A line is a run: the median of all pairs, its band the slowest to the fastest pair; \
                of a single pair the band is the 95 % confidence interval. Dashes: what a healthy \
                machine is expected to reach with large transfers.",
        charts: all.iter().flat_map(of_kind).collect(),
        ..Section::default()
    }
}

fn line(kind: &Kind, rate: fn(&Row) -> Option<f64>, most: usize) -> Option<Line> {
    let mut sizes: BTreeMap<Bytes, Vec<&Row>> = BTreeMap::new();
    for row in kind.rows.iter().filter(|row| rate(row).is_some()) {
        sizes.entry(row.size_bytes?).or_default().push(row);
    }
    let point = |(size, members): (Bytes, Vec<&Row>)| {
        let values: Vec<f64> = members.iter().filter_map(|row| rate(row)).collect();
        let gb_s = words::median(&values);
        let (low, high) = match &values[..] {
            [value] => {
                // The interval is that of `bandwidth_gb_s`.
                let scale = value / members[0].bandwidth_gb_s.unwrap_or(*value);
                let end = |end: Option<f64>| end.map_or(*value, |end| end * scale);
                (end(members[0].bandwidth_gb_s_low), end(members[0].bandwidth_gb_s_high))
            }
            values => range(values),
        };
        let expected: Vec<f64> = members.iter().filter_map(|row| row.expected_gb_s).collect();
        Point {
            size: size.get(),
            gb_s,
            low,
            high,
            rows: members.len(),
            expected: (!expected.is_empty()).then(|| words::median(&expected)),
            seconds: size.get() as f64 / (gb_s * 1e9),
        }
    };
    let points: Vec<Point> =
        sizes.into_iter().map(point).filter(|point| point.gb_s > 0.0).collect();
    (!points.is_empty()).then(|| Line {
        name: kind.name.replace("->", "→"),
        fit: Fit::of(&points),
        sizes: points.len(),
        points: drawn(points, most),
    })
}

/// At most `most` of the points, evenly over a logarithmic axis.
fn drawn(points: Vec<Point>, most: usize) -> Vec<Point> {
    let [Some(first), Some(last)] = [points.first(), points.last()].map(|p| Some(p?.size as f64))
    else {
        return points;
    };
    if points.len() <= most {
        return points;
    }
    // The first point of each of `most - 1` equal parts of the axis, and the last of all.
    let part = |point: &Point| {
        let place = (point.size as f64 / first).ln() / (last / first).ln() * (most - 1) as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "up to most")]
        let part = place as usize;
        part
    };
    let end = points.len() - 1;
    let mut before = None;
    let is_first = |(place, point): &(usize, Point)| {
        before.replace(part(point)) != Some(part(point)) || *place == end
    };
    points.into_iter().enumerate().filter(is_first).map(|(_, point)| point).collect()
}

/// Lines that belong together, in as many charts as they need.
fn charts(title: &str, lines: &[Placed], unit: &'static str) -> Vec<Chart> {
    line_charts(title, lines, |placed| {
        let lines = &placed.iter().map(|(_, line)| *line).collect::<Vec<&Line>>();
        let best = lines.iter().flat_map(|line| &line.points).map(|point| point.gb_s);
        let best = readable_gb_s(best.fold(0.0, f64::max));
        let mut about = format!("bandwidth by size, up to {best} {unit}");
        let sizes = lines.iter().map(|line| (line.sizes, line.points.len()));
        if let Some((all, drawn)) = sizes.max().filter(|(all, drawn)| all > drawn) {
            about.push_str(&format!("; {drawn} of {all} sizes, all are in run.csv"));
        }
        let variant = Variant {
            traces: placed.iter().flat_map(traces).collect(),
            layout: layout(lines, unit),
            table: Some(table(lines, unit)),
        };
        (about, variant)
    })
}

/// A line with its band, and what is expected of it.
fn traces(&(place, line): &Placed) -> Vec<Value> {
    let place = place % COLOURS.len();
    let colour = COLOURS[place];
    let sizes = || line.points.iter().map(|point| point.size);
    let rates = |rate: fn(&Point) -> f64| line.points.iter().map(rate);
    let band = json!({
        "type": "scatter",
        "x": sizes().chain(sizes().rev()).collect::<Vec<u64>>(),
        "y": rates(|point| point.high)
            .chain(rates(|point| point.low).rev())
            .collect::<Vec<f64>>(),
        "fill": "toself",
        "fillcolor": format!("{colour}33"),
        "line": { "width": 0 },
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": false,
        "legendgroup": words::escaped(&line.name),
    });
    let hover = |point: &Point| {
        let range = [point.low, point.high].map(readable_gb_s).join(" to ");
        let rows = count(point.rows, "row");
        let size = words::short_size(Bytes::new(point.size));
        format!("{size}: {} GB/s<br>{range}, {rows}", readable_gb_s(point.gb_s))
    };
    let middle = json!({
        "type": "scatter",
        "name": words::escaped(&line.name),
        "legendgroup": words::escaped(&line.name),
        "x": sizes().collect::<Vec<u64>>(),
        "y": rates(|point| point.gb_s).collect::<Vec<f64>>(),
        "text": line.points.iter().map(hover).collect::<Vec<String>>(),
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "mode": "lines+markers",
        "line": { "color": colour, "width": 2 },
        "marker": { "color": colour, "symbol": MARKS[place], "size": 8 },
    });
    let told = line.points.iter().filter_map(|point| Some((point.size, point.expected?)));
    let (x, y): (Vec<u64>, Vec<f64>) = told.unzip();
    let expected = (!x.is_empty()).then(|| {
        json!({
            "type": "scatter",
            "x": x,
            "y": y,
            "mode": "lines",
            "line": { "color": colour, "width": 1, "dash": "dash" },
            "hovertemplate": "expected: %{y:.4g} GB/s<extra>%{fullData.legendgroup}</extra>",
            "showlegend": false,
            "legendgroup": words::escaped(&line.name),
        })
    });
    [band, middle].into_iter().chain(expected).collect()
}

fn layout(lines: &[&Line], unit: &str) -> Value {
    let mut sizes: Vec<u64> =
        lines.iter().flat_map(|line| &line.points).map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    // Skips sizes whose labels would overlap the next one.
    let far = (sizes.last().copied().unwrap_or(1) as f64).ln() - (sizes[0] as f64).ln();
    let mut chosen: Vec<u64> = Vec::new();
    for size in sizes.into_iter().rev() {
        let is_apart = |next: &u64| (*next as f64 / size as f64).ln() > far / TICKS_MAX;
        if chosen.last().is_none_or(is_apart) {
            chosen.push(size);
        }
    }
    let rates = || lines.iter().flat_map(|line| &line.points);
    // An interval that reaches down to 0 has no lower end on the axis.
    let lows = rates().map(|point| if point.low > 0.0 { point.low } else { point.gb_s });
    let low = lows.fold(f64::INFINITY, f64::min);
    let high = rates().map(|point| point.high).fold(0.0, f64::max);
    // A logarithmic axis has no ticks between rates that are alike.
    let rates = match high / low < ALIKE {
        true => json!({ "title": { "text": unit }, "rangemode": "tozero" }),
        false => {
            let ticks = super::ticks(low, high);
            json!({ "type": "log", "title": { "text": unit }, "tickvals": ticks })
        }
    };
    json!({
        "xaxis": {
            "type": "log",
            "title": { "text": "size" },
            "tickangle": 0,
            "tickvals": chosen,
            "ticktext": chosen.iter().map(|size| words::short_size(Bytes::new(*size))).collect::<Vec<String>>(),
        },
        "yaxis": rates,
        "legend": super::legend(),
    })
}

fn table(lines: &[&Line], unit: &'static str) -> Grid {
    let columns: [Column<(&Line, &Point)>; 7] = [
        ("what", |(line, _)| line.name.clone()),
        ("size", |(_, point)| Bytes::new(point.size).to_string()),
        (unit, |(_, point)| readable_gb_s(point.gb_s)),
        ("from", |(_, point)| readable_gb_s(point.low)),
        ("to", |(_, point)| readable_gb_s(point.high)),
        ("expected", |(_, point)| point.expected.map(readable_gb_s).unwrap_or_default()),
        ("rows", |(_, point)| point.rows.to_string()),
    ];
    let points = lines.iter().flat_map(|&line| line.points.iter().map(move |point| (line, point)));
    Grid::of(&columns, points)
}

/// What the lines' transfers cost, where it is known.
fn fits(lines: &[Line], rate: &'static str) -> Option<Table> {
    let columns: [Column<(&Line, &Fit)>; 5] = [
        ("what", |(line, _)| line.name.clone()),
        ("start", |(_, fit)| words::nanoseconds(fit.start_s * 1e9)),
        (rate, |(_, fit)| readable_gb_s(fit.bytes_per_s / 1e9)),
        ("half of that at", |(_, fit)| {
            let knee = fit.start_s * fit.bytes_per_s;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
            let knee = Bytes::new(knee as u64);
            knee.rounded()
        }),
        ("largest miss", |(_, fit)| format!("{:.0} %", 100.0 * fit.largest_miss)),
    ];
    let fitted = lines.iter().filter_map(|line| Some((line, line.fit.as_ref()?)));
    let grid = Grid::of(&columns, fitted);
    (!grid.rows.is_empty()).then(|| Table {
        title: "What a transfer costs".to_owned(),
        about: "Time = start + size / bandwidth, fitted over all sizes. Transfers follow each other \
                closely, so that a start is what one adds to the others, not its latency.",
        grid,
    })
}

impl Fit {
    /// The start and the rate that fit the times best: least squares of the relative distances.
    /// `None` if there are too few points, or none fits.
    fn of(points: &[Point]) -> Option<Self> {
        if points.len() < SIZES_FOR_FIT {
            return None;
        }
        let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
            points
                .iter()
                .map(|point| term(1.0 / point.seconds, point.size as f64 / point.seconds))
                .sum()
        };
        // Fits start · u + v / rate = 1 with u = 1 / time and v = size / time.
        let (uu, uv, vv) = (sum(&|u, _| u * u), sum(&|u, v| u * v), sum(&|_, v| v * v));
        let (u, v) = (sum(&|u, _| u), sum(&|_, v| v));
        let determinant = uu * vv - uv * uv;
        let start_s = (u * vv - v * uv) / determinant;
        let (start_s, per_byte) = match start_s > 0.0 {
            true => (start_s, (v * uu - u * uv) / determinant),
            // The start is too short to be seen.
            false => (0.0, v / vv),
        };
        let time = |point: &Point| start_s + point.size as f64 * per_byte;
        let misses = points.iter().map(|point| (time(point) / point.seconds - 1.0).abs());
        let largest_miss = misses.fold(0.0, f64::max);
        (per_byte > 0.0 && largest_miss.is_finite()).then(|| Self {
            start_s,
            bytes_per_s: 1.0 / per_byte,
            largest_miss,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(times: &[(u64, f64)]) -> Vec<Point> {
        let point = |&(size, seconds): &(u64, f64)| {
            let gb_s = size as f64 / seconds / 1e9;
            Point { size, gb_s, low: gb_s, high: gb_s, rows: 1, expected: None, seconds }
        };
        times.iter().map(point).collect()
    }

    #[test]
    fn a_start_and_a_rate_are_found_again() {
        for (start, rate) in [(2e-6, 400e9), (30e-6, 12.5e9), (0.0, 1e9)] {
            let sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 28];
            let times = sizes.map(|size| (size, start + size as f64 / rate));
            let fit = Fit::of(&points(&times)).unwrap();
            assert!((fit.start_s - start).abs() <= start * 1e-6 + 1e-15, "{}", fit.start_s);
            assert!((fit.bytes_per_s / rate - 1.0).abs() < 1e-6, "{}", fit.bytes_per_s);
            assert!(fit.largest_miss < 1e-6);
        }
    }

    #[test]
    fn as_many_points_are_drawn_as_can_be_seen() {
        let sizes = |sizes: &[u64]| points(&sizes.iter().map(|s| (*s, 1.0)).collect::<Vec<_>>());
        let kept = |all: &[u64]| -> Vec<u64> {
            drawn(sizes(all), 4).iter().map(|point| point.size).collect()
        };
        assert_eq!(kept(&[1, 2, 3]), [1, 2, 3]);
        let all: Vec<u64> = (0..=12).map(|power| 1 << power).collect();
        assert_eq!(kept(&all), [1, 16, 256, 4096]);
        // So near to each other that the axis cannot tell them apart.
        let last = u64::MAX / 2;
        assert_eq!(kept(&[last - 4, last - 3, last - 2, last - 1, last]), [last - 4, last]);
    }

    #[test]
    fn what_follows_no_such_law_says_so() {
        // The larger the faster by far: a start below zero would fit best.
        let fit = Fit::of(&points(&[(1, 1e-6), (10, 100e-6), (100, 1e-3)])).unwrap();
        assert!(fit.start_s >= 0.0 && fit.largest_miss > 0.1);
        assert!(Fit::of(&points(&[(1, 1e-6), (10, 1e-6)])).is_none());
        assert!(Fit::of(&points(&[(1, 0.0), (2, 0.0), (3, 0.0)])).is_none());
    }
}
