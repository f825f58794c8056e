//! The machine, the health of its GPUs, the origin of the numbers, and all rows.

use super::{Section, Table, pairs::rounded};
use crate::{
    machine::{
        Library,
        health::{Condition, GpuHealth, HostHealth},
    },
    record::{COLUMNS, Cell, Row, Run, provenance::Resumption},
    show::{
        page::{Column, Grid},
        words,
    },
    units::count,
};

/// Rows of the table of all rows, which a browser lays out at once; the others are in run.csv.
const ROWS_MAX: usize = 1000;

/// The picture of the machine.
pub(super) fn picture(run: &Run) -> Section {
    Section {
        title: "Machine",
        about: "The host of rank 0 when the run began: its GPUs, what connects them, and its network \
                interfaces.",
        picture: run.topology.as_ref().map(crate::show::picture).unwrap_or_default(),
        ..Section::default()
    }
}

pub(super) fn sections(run: &Run) -> [Section; 3] {
    let healths = run.resumed.iter().flat_map(|before| &before.health).chain(&run.health);
    [
        Section {
            title: "Health of the GPUs",
            about: "When the run began and when it ended. What happened in between is a flag of a row.",
            tables: healths.map(health).collect(),
            ..Section::default()
        },
        Section {
            title: "Where the numbers come from",
            tables: vec![origin(run), resumed(run), libraries(run), environment(run)]
                .into_iter()
                .filter(|table| !table.grid.rows.is_empty())
                .collect(),
            ..Section::default()
        },
        Section { title: "All rows", tables: vec![rows(&run.rows)], ..Section::default() },
    ]
}

/// A GPU when the run began and when it ended.
type Ends<'a> = (&'a GpuHealth, &'a GpuHealth);

fn health<'a>(host: &'a HostHealth) -> Table {
    let columns: [Column<Ends<'_>>; 7] = [
        ("GPU", |(start, _)| start.gpu.0.to_string()),
        ("°C", |ends| change(ends, |now| Some(now.temperature_c?.to_string()))),
        ("W", |ends| change(ends, |now| Some((now.power_mw? / 1000).to_string()))),
        ("SM clock, MHz", |ends| change(ends, |now| Some(now.sm_clock_mhz?.to_string()))),
        ("memory clock, MHz", |ends| change(ends, |now| Some(now.memory_clock_mhz?.to_string()))),
        ("PCIe", |ends| {
            change(ends, |now| Some(format!("{} x{}", now.pcie_generation?, now.pcie_lanes?)))
        }),
        ("clocks throttled by", |ends| {
            change(ends, |now| Some(now.throttle_reasons.as_ref()?.join(" ")))
        }),
    ];
    let both = |start: &'a GpuHealth| {
        (start, host.end.iter().find(|end| end.gpu == start.gpu).unwrap_or(start))
    };
    Table {
        title: format!("{}: at the beginning → at the end", host.host),
        about: "",
        grid: Grid::of(&columns, host.start.iter().map(both)),
    }
}

/// A value at the beginning and, if it has changed, at the end.
fn change((start, end): Ends<'_>, value: fn(&Condition) -> Option<String>) -> String {
    let [start, end] = [start, end]
        .map(|at| words::or_dash(at.health.as_ref().and_then(|health| value(&health.condition))));
    if start == end { start } else { format!("{start} → {end}") }
}

fn origin(run: &Run) -> Table {
    let provenance = &run.provenance;
    let machine = &provenance.machine;
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not told".to_owned());
    let memory = machine.memory_bytes.map_or("not told".to_owned(), |bytes| bytes.rounded());
    let simulated = provenance
        .simulated_machine
        .as_ref()
        .map_or("no".to_owned(), |machine| format!("yes: {machine}, on the machine below"));
    let hosts = provenance
        .hosts
        .iter()
        .map(|host| format!("{} ({})", host.name, count(host.ranks.len(), "rank")));
    let rows = [
        ("simulated", simulated),
        ("command", provenance.command.join(" ")),
        ("began", provenance.started.clone()),
        ("g2g", format!("{} ({})", provenance.version, provenance.git_revision)),
        ("hosts", hosts.collect::<Vec<String>>().join(", ")),
        ("machine", text(&machine.product)),
        ("processor", text(&machine.cpu_model)),
        ("kernel", text(&machine.kernel)),
        ("memory", memory),
        ("huge pages", text(&machine.huge_pages)),
        ("seed", provenance.seed.to_string()),
    ];
    let columns: [Column<&(&str, String)>; 2] =
        [("what", |(what, _)| (*what).to_owned()), ("value", |(_, value)| value.clone())];
    Table { title: "Run".to_owned(), about: "", grid: Grid::of(&columns, &rows) }
}

/// The resumptions of the run.
fn resumed(run: &Run) -> Table {
    let columns: [Column<&Resumption>; 4] = [
        ("when", |again| again.time.clone()),
        ("from row", |again| (again.rows + 1).to_string()),
        ("changed since it began", |again| match again.changed.is_empty() {
            true => "nothing".to_owned(),
            false => again.changed.join("; "),
        }),
        ("command", |again| again.command.join(" ")),
    ];
    Table {
        title: "Gone on with".to_owned(),
        about: "What is told above and below is as it was when the run began.",
        grid: Grid::of(&columns, &run.resumed),
    }
}

fn libraries(run: &Run) -> Table {
    let columns: [Column<&Library>; 3] = [
        ("library", |library| library.name.clone()),
        ("version", |library| library.version.clone()),
        ("file", |library| library.path.clone()),
    ];
    let grid = Grid::of(&columns, &run.provenance.libraries);
    Table { title: "Libraries".to_owned(), about: "", grid }
}

fn environment(run: &Run) -> Table {
    let columns: [Column<&(String, String)>; 2] =
        [("variable", |(name, _)| name.clone()), ("value", |(_, value)| value.clone())];
    let grid = Grid::of(&columns, &run.provenance.environment);
    Table { title: "Variables of the libraries".to_owned(), about: "", grid }
}

/// The rows, without empty columns.
fn rows(rows: &[Row]) -> Table {
    let shown = &rows[..rows.len().min(ROWS_MAX)];
    let mut grid = Grid::new(COLUMNS.iter().map(|column| column.name));
    for row in shown {
        grid.row(COLUMNS.iter().map(|column| match (column.cell)(row) {
            Cell::Number(number) => rounded(number, 9).to_string(),
            cell => cell.to_string(),
        }));
    }
    let title = match rows.len() - shown.len() {
        0 => count(shown.len(), "row"),
        left => format!("The first {} rows; {left} more are in run.csv", shown.len()),
    };
    Table { title, about: "", grid: grid.without_empty() }
}
