//! Heat maps: the bandwidth of every pair.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use indexmap::{IndexMap, IndexSet};
use serde_json::{Value, json};

use super::{Chart, Section, Variant, kinds};
use crate::{
    plan::{Issuer, Operation, TransportKind},
    record::{Naming, Row},
    show::{matrix, words},
    units::Bytes,
};

/// With fewer ends a heat map shows nothing that a line does not.
const ENDS_MIN: usize = 3;

/// With more ends the numbers do not fit into the cells; they are in the table, and under the
/// pointer.
const ENDS_WITH_NUMBERS: usize = 12;

/// With more ends a heat map takes the whole width, and its cells leave no gaps.
const ENDS_NARROW: usize = 32;

/// With more ends neighbours share a cell: smaller ones could not be seen.
const ENDS_MAX: usize = 128;

/// Sizes that can be chosen.
const SIZES_MAX: usize = 12;

/// Cells of all sizes of a heat map together; with many ends fewer sizes can be chosen.
const CELLS_MAX: usize = 1 << 16;

/// A scale of rates ends at least this far below the median, so that equal rates look equal.
const RANGE_MIN: f64 = 0.1;

/// A scale of ratios reaches at least this far to both sides of 1.
const RATIO_RANGE_MIN: f64 = 0.25;

/// An end of a flow: its place in the order of all ends.
type End = usize;

/// One number for each ordered pair.
type Cells = BTreeMap<(End, End), Cell>;

/// The numbers of each size.
type Sizes = BTreeMap<Bytes, Cells>;

#[derive(Clone, Copy)]
struct Cell {
    value: f64,
    expected: Option<f64>,
}

/// The host and the number of each end of a flow, in their order.
struct Ends<'a>(IndexSet<(&'a str, u32)>);

/// Whether the ends of a row are GPUs. They are ranks where neither end is a GPU, and for RDMA,
/// where ranks can share a GPU.
fn is_between_gpus(row: &Row) -> bool {
    row.source_gpu.or(row.target_gpu).is_some() && !row.transport.is_between_ranks()
}

/// The host and the number of a row's source and target.
fn named(row: &Row) -> Option<[(&str, u32); 2]> {
    let (source, target) = match is_between_gpus(row) {
        true => (row.source_gpu, row.target_gpu),
        false => (row.source_rank, row.target_rank),
    };
    let [from, to] =
        [&row.source_host, &row.target_host].map(|host| host.as_deref().unwrap_or_default());
    Some([(from, source?), (to, target?)])
}

impl<'a> Ends<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let mut all: IndexSet<(&str, u32)> = rows.iter().filter_map(named).flatten().collect();
        // Hosts are in the order of their first ranks; the rows of a sample are in none.
        let mut firsts: HashMap<&str, u32> = HashMap::new();
        for row in rows {
            let ranks = [row.source_rank, row.target_rank];
            for (host, rank) in [&row.source_host, &row.target_host].into_iter().zip(ranks) {
                let first = firsts.entry(host.as_deref().unwrap_or_default()).or_insert(u32::MAX);
                *first = rank.map_or(*first, |rank| rank.min(*first));
            }
        }
        all.sort_unstable_by_key(|(host, number)| (firsts.get(host), *host, *number));
        Self(all)
    }

    fn name(&self, end: End, has_host: bool) -> String {
        match self.0[end] {
            (host, number) if has_host => format!("{number} of {host}"),
            (_, number) => number.to_string(),
        }
    }

    /// The pair of a row, if its flow goes from one place to another.
    fn pair(&self, row: &Row) -> Option<(End, End)> {
        let [source, target] = named(row)?.map(|end| self.0.get_index_of(&end));
        source.zip(target).filter(|(source, target)| source != target)
    }
}

/// An axis of a heat map.
struct Axis {
    /// The place of each end on the axis.
    places: BTreeMap<End, usize>,
    names: Vec<String>,
    /// How many ends share a place.
    shared: usize,
    has_hosts: bool,
}

impl Axis {
    fn of(cells: &Cells, ends: &Ends) -> Self {
        let own: BTreeSet<End> =
            cells.keys().flat_map(|(source, target)| [*source, *target]).collect();
        let own: Vec<End> = own.into_iter().collect();
        let hosts: BTreeSet<&str> = own.iter().map(|end| ends.0[*end].0).collect();
        let has_hosts = hosts.len() > 1;
        let shared = own.len().div_ceil(ENDS_MAX).max(1);
        let name = |end: &End| ends.name(*end, has_hosts);
        let name_all = |group: &[End]| match group {
            [first, .., last] => format!("{} to {}", name(first), name(last)),
            group => group.iter().map(name).collect(),
        };
        Self {
            names: own.chunks(shared).map(name_all).collect(),
            places: own.iter().enumerate().map(|(at, end)| (*end, at / shared)).collect(),
            shared,
            has_hosts,
        }
    }
}

pub(super) fn section(rows: &[Row]) -> Section {
    let mut charts = Vec::new();
    let sample = matrix::sample(&rows.iter().collect::<Vec<&Row>>());
    let ends = &Ends::of(rows);
    let has = |transport| rows.iter().any(|row| row.transport == transport);
    let has_both = has(TransportKind::Shm) && has(TransportKind::P2p);
    let cell = |row: &Row| {
        let pair = ends.pair(row)?;
        let cell = Cell { value: row.bandwidth_gb_s?, expected: row.expected_gb_s };
        Some((pair, row.size_bytes?, cell))
    };
    let mut of_gpus: HashMap<TransportKind, Sizes> = HashMap::new();
    for kind in kinds(rows, &["issuer"]) {
        let noun = if is_between_gpus(kind.rows[0]) { "GPU" } else { "rank" };
        let mut issuers: BTreeMap<Option<&str>, Sizes> = BTreeMap::new();
        for row in kind.rows.into_iter().filter(|row| row.flows == Some(1)) {
            let Some((pair, size, cell)) = cell(row) else { continue };
            let sizes = issuers.entry(row.issuer.map(<&str>::from)).or_default();
            sizes.entry(size).or_default().insert(pair, cell);
            if has_both && row.source_gpu.is_some() && row.operation == Some(Operation::Copy) {
                let best = of_gpus.entry(row.transport).or_default();
                let best = best.entry(size).or_default().entry(pair).or_insert(cell);
                best.value = best.value.max(cell.value);
            }
        }
        for (issuer, sizes) in &issuers {
            let what = issuer.map_or_else(String::new, |issuer| format!(", {issuer}"));
            let title = format!("{}{what}", kind.name.replace("->", "→"));
            charts.extend(HeatMap { title, ends, noun, sizes }.rates());
        }
        let of = |issuer: Issuer| issuers.get(&Some(issuer.into()));
        if let (Some(read), Some(write)) = (of(Issuer::Read), of(Issuer::Write)) {
            let (title, sizes) = (format!("{}: read over write", kind.name), &ratios(read, write));
            charts.extend(HeatMap { title, ends, noun, sizes }.ratios("reads", "writes"));
        }
    }
    let [shm, p2p] = [TransportKind::Shm, TransportKind::P2p].map(|kind| of_gpus.get(&kind));
    if let (Some(shm), Some(p2p)) = (shm, p2p) {
        let title = "p2p over shm, each by its best way".to_owned();
        let sizes = &ratios(p2p, shm);
        charts.extend(HeatMap { title, ends, noun: "GPU", sizes }.ratios("p2p", "shm"));
    }
    Section {
        title: "Pairs",
        about: "Bandwidth in GB/s of each ordered pair, alone. A slow GPU or rank is a dark row (as a source) \
                and a dark column (as a target).",
        missing: sample.unwrap_or_default(),
        charts,
        ..Section::default()
    }
}

/// Heat maps of what changed: of each kind the rates of one run over those of another, with the
/// names of both. The rows are those of one run, of which each has its pair's ratio.
pub(super) fn changes<'a>(
    rows: &[Row],
    ratios: impl Iterator<Item = (&'a Row, f64)>,
    [above, below]: [&str; 2],
) -> Vec<Chart> {
    let ends = &Ends::of(rows);
    let mut kinds: IndexMap<String, (&'static str, Sizes)> = IndexMap::new();
    for (row, value) in ratios.filter(|(row, _)| row.flows == Some(1)) {
        let (Some(pair), Some(size)) = (ends.pair(row), row.size_bytes) else { continue };
        let noun = if is_between_gpus(row) { "GPU" } else { "rank" };
        let kind = row.kind(&Naming::default()).replace("->", "→");
        let (_, sizes) = kinds.entry(kind).or_insert_with(|| (noun, Sizes::new()));
        sizes.entry(size).or_default().insert(pair, Cell { value, expected: None });
    }
    let chart = |(kind, (noun, sizes)): (String, (&'static str, Sizes))| {
        let title = format!("{kind}: {above} over {below}");
        HeatMap { title, ends, noun, sizes: &sizes }.ratios(above, below)
    };
    kinds.into_iter().filter_map(chart).collect()
}

/// The ratios of the cells that both have.
fn ratios(above: &Sizes, below: &Sizes) -> Sizes {
    let of_size = |(size, cells): (&Bytes, &Cells)| {
        let others = below.get(size)?;
        let ratio = |(pair, cell): (&(End, End), &Cell)| {
            let value = cell.value / others.get(pair)?.value;
            Some((*pair, Cell { value, expected: None }))
        };
        let cells: Cells = cells.iter().filter_map(ratio).collect();
        (!cells.is_empty()).then_some((*size, cells))
    };
    above.iter().filter_map(of_size).collect()
}

/// A heat map for each size.
struct HeatMap<'a> {
    title: String,
    ends: &'a Ends<'a>,
    /// What the ends are.
    noun: &'static str,
    sizes: &'a Sizes,
}

/// How cells are drawn.
struct Style {
    /// The part of Plotly's trace that depends on the quantity.
    trace: Value,
    /// What the pointer shows besides the number.
    hover: Option<fn(&Cell) -> String>,
    /// Whether the first of two cells that share a place is shown, and not the second.
    stands_out: fn(&Cell, &Cell) -> bool,
}

impl HeatMap<'_> {
    fn rates(self) -> Option<Chart> {
        let about = |cells: &Cells, axis: &Axis| {
            let (values, low, high) = values(cells);
            if words::short(low) == words::short(high) {
                return format!("{} pairs, all at {} GB/s", values.len(), words::short(high));
            }
            let slowest = cells.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value));
            let (source, target) = slowest.map_or((0, 0), |(pair, _)| *pair);
            format!(
                "{} pairs from {} to {} GB/s, the slowest {} → {}",
                values.len(),
                words::short(low),
                words::short(high),
                self.ends.name(source, axis.has_hosts),
                self.ends.name(target, axis.has_hosts),
            )
        };
        let style = |cells: &Cells| {
            let (values, low, high) = values(cells);
            let has_expected = cells.values().any(|cell| cell.expected.is_some());
            let share = if has_expected { "<br>of what is expected: %{customdata}" } else { "" };
            let of_expected = |cell: &Cell| match cell.expected {
                Some(expected) => format!("{:.0} %", 100.0 * cell.value / expected),
                None => "unknown".to_owned(),
            };
            Style {
                trace: json!({
                    "colorscale": "Cividis",
                    "zmin": low.min(words::median(&values) * (1.0 - RANGE_MIN)),
                    "zmax": high,
                    "colorbar": { "title": { "text": "GB/s" }, "thickness": 12 },
                    "texttemplate": "%{z:.3r}",
                    "hovertemplate":
                        format!("%{{y}} → %{{x}}<br>%{{z:.4r}} GB/s{share}<extra></extra>"),
                }),
                hover: has_expected.then_some(of_expected),
                stands_out: |one, other| one.value < other.value,
            }
        };
        self.chart(about, style)
    }

    fn ratios(self, above: &str, below: &str) -> Option<Chart> {
        let about = |cells: &Cells, _: &Axis| {
            let (values, low, high) = values(cells);
            format!(
                "the rate of {above} over that of {below}, {low:.3} to {high:.3}, median {:.3}; \
                 above 1 {above} are faster",
                words::median(&values)
            )
        };
        let style = |cells: &Cells| {
            let logarithms = cells.values().map(|cell| cell.value.ln().abs());
            let far = logarithms.fold(RATIO_RANGE_MIN, f64::max);
            let (low, high) = ((-far).exp(), far.exp());
            // Purple below 1, white at 1, orange above: colour-blind readers can distinguish them.
            let middle = (1.0 - low) / (high - low);
            Style {
                trace: json!({
                    "colorscale": [[0, "#5e3c99"], [middle, "#f7f7f7"], [1, "#e66101"]],
                    "zmin": low,
                    "zmax": high,
                    "colorbar": { "title": { "text": "ratio" }, "thickness": 12 },
                    "texttemplate": "%{z:.3f}",
                    "hovertemplate": "%{y} → %{x}<br>%{z:.3f}<extra></extra>",
                }),
                hover: None,
                stands_out: |one, other| one.value.ln().abs() > other.value.ln().abs(),
            }
        };
        self.chart(about, style)
    }

    /// The chart of the sizes that can be chosen; `about` describes the largest one.
    fn chart(
        &self,
        about: impl Fn(&Cells, &Axis) -> String,
        style: impl Fn(&Cells) -> Style,
    ) -> Option<Chart> {
        let (size, largest) = self.sizes.iter().next_back()?;
        let axis = Axis::of(largest, self.ends);
        if axis.places.len() < ENDS_MIN {
            return None;
        }
        let mut about = format!("{}: {}", words::short_size(*size), about(largest, &axis));
        if axis.shared > 1 {
            about.push_str(&format!(
                "; up to {0} by {0} pairs share a cell, which shows the one that stands out most",
                axis.shared
            ));
        }
        // The start of a transfer affects the largest sizes the least.
        let cells = axis.names.len() * axis.names.len();
        let most = SIZES_MAX.min(CELLS_MAX / cells.max(1)).max(1);
        let left_out = self.sizes.len().saturating_sub(most);
        if left_out > 0 {
            about.push_str(&format!("; the largest {most} of {} sizes", self.sizes.len()));
        }
        let variant = |(size, cells): (&Bytes, &Cells)| {
            (words::short_size(*size), self.variant(cells, &style(cells)))
        };
        let variants = self.sizes.iter().skip(left_out).map(variant).collect();
        let is_wide = axis.names.len() > ENDS_NARROW;
        let chart = Chart::new(self.title.clone(), about, variants);
        Some(Chart { by: "Size", is_wide, is_square: is_wide, ..chart })
    }

    /// One size; the page makes the table of its numbers from the trace.
    fn variant(&self, cells: &Cells, style: &Style) -> Variant {
        let axis = Axis::of(cells, self.ends);
        let count = axis.names.len();
        let mut shown: Vec<Vec<Option<Cell>>> = vec![vec![None; count]; count];
        for ((source, target), cell) in cells {
            let place = &mut shown[axis.places[source]][axis.places[target]];
            if place.as_ref().is_none_or(|other| (style.stands_out)(cell, other)) {
                *place = Some(*cell);
            }
        }
        let matrix = |value: &dyn Fn(&Cell) -> Value| -> Vec<Vec<Value>> {
            let of = |cell: &Option<Cell>| cell.as_ref().map_or(Value::Null, value);
            shown.iter().map(|row| row.iter().map(of).collect()).collect()
        };
        let gap = u32::from(count <= ENDS_NARROW);
        let names: Vec<String> = axis.names.iter().map(|name| words::escaped(name)).collect();
        let mut trace = style.trace.clone();
        trace["type"] = json!("heatmap");
        trace["x"] = json!(names);
        trace["y"] = json!(names);
        trace["z"] = json!(matrix(&|cell| json!(rounded(cell.value, 6))));
        trace["xgap"] = json!(gap);
        trace["ygap"] = json!(gap);
        trace["hoverongaps"] = json!(false);
        if count > ENDS_WITH_NUMBERS {
            trace["texttemplate"] = json!("");
        }
        if let Some(hover) = style.hover {
            trace["customdata"] = json!(matrix(&|cell| json!(hover(cell))));
        }
        let label = |side: &str| {
            let title = format!("{side} {}", self.noun);
            json!({ "title": { "text": title }, "type": "category", "showgrid": false })
        };
        let mut sources = label("source");
        sources["autorange"] = json!("reversed");
        Variant {
            traces: vec![trace],
            layout: json!({ "xaxis": label("target"), "yaxis": sources }),
            table: None,
        }
    }
}

/// A number rounded to `digits` significant digits.
pub(super) fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.0$e}", digits - 1).parse().unwrap_or(value)
}

/// The numbers of cells, the least and the largest.
fn values(cells: &Cells) -> (Vec<f64>, f64, f64) {
    let values: Vec<f64> = cells.values().map(|cell| cell.value).collect();
    let (low, high) = range(&values);
    (values, low, high)
}

/// The least and the largest of numbers above 0.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(*value), high.max(*value)))
}
