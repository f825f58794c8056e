//! What was measured, with what, and how the GPUs have done.

use super::{Section, Table, pairs::rounded};
use crate::{
    analysis::compare::gpus,
    machine::health::{GpuHealth, HostHealth},
    record::{COLUMNS, Cell, Column, Row, Run, provenance::Resumption},
    units::count,
};

/// Rows of the table of all rows, which a browser lays out at once; the others are in run.csv.
const ROWS_MAX: usize = 1000;

/// The machine in a few words.
pub(super) fn machine(run: &Run) -> String {
    let provenance = &run.provenance;
    let named = match &provenance.simulated_machine {
        Some(machine) => Some(machine),
        None => provenance.machine.product.as_ref().or(provenance.machine.cpu_model.as_ref()),
    };
    let hosts = &provenance.hosts;
    let several = (hosts.len() > 1).then(|| count(hosts.len(), "host"));
    let gpus = hosts.first().map(|host| gpus(&host.topology)).filter(|gpus| !gpus.is_empty());
    let parts = [several, named.cloned(), gpus, Some(count(provenance.ranks, "rank"))];
    parts.into_iter().flatten().collect::<Vec<String>>().join(", ")
}

/// What the machine consists of.
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
                .filter(|table| !table.rows.is_empty())
                .collect(),
            ..Section::default()
        },
        Section { title: "All rows", tables: vec![rows(&run.rows)], ..Section::default() },
    ]
}

fn health(host: &HostHealth) -> Table {
    let head =
        ["GPU", "°C", "W", "SM clock, MHz", "memory clock, MHz", "PCIe", "clocks held down by"];
    let pair =
        |value: &dyn Fn(&GpuHealth) -> Option<String>, start: &GpuHealth, end: &GpuHealth| {
            let [start, end] = [start, end].map(|at| value(at).unwrap_or_else(|| "-".to_owned()));
            if start == end { start } else { format!("{start} → {end}") }
        };
    let row = |start: &GpuHealth| {
        let end = host.end.iter().find(|end| end.gpu == start.gpu).unwrap_or(start);
        let condition = |of: &GpuHealth| of.health.as_ref().map(|health| health.condition.clone());
        let number = |value: fn(&crate::machine::health::Condition) -> Option<u32>| {
            pair(&|at| Some(value(&condition(at)?)?.to_string()), start, end)
        };
        vec![
            start.gpu.0.to_string(),
            number(|now| now.temperature_c),
            number(|now| now.power_mw.map(|power| power / 1000)),
            number(|now| now.sm_clock_mhz),
            number(|now| now.memory_clock_mhz),
            pair(
                &|at| {
                    let now = condition(at)?;
                    Some(format!("{} x{}", now.pcie_generation?, now.pcie_lanes?))
                },
                start,
                end,
            ),
            pair(&|at| Some(condition(at)?.throttle_reasons?.join(" ")), start, end),
        ]
    };
    Table {
        title: format!("{}: at the beginning → at the end", host.host),
        head: head.map(str::to_owned).to_vec(),
        rows: host.start.iter().map(row).collect(),
        ..Table::default()
    }
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
    Table {
        title: "Run".to_owned(),
        head: vec!["what".to_owned(), "value".to_owned()],
        rows: rows.map(|(what, value)| vec![what.to_owned(), value]).to_vec(),
        ..Table::default()
    }
}

/// What is about the rows from here on.
fn resumed(run: &Run) -> Table {
    let of = |again: &Resumption| {
        let changed = match again.changed.is_empty() {
            true => "nothing".to_owned(),
            false => again.changed.join("; "),
        };
        vec![again.time.clone(), (again.rows + 1).to_string(), changed, again.command.join(" ")]
    };
    Table {
        title: "Gone on with".to_owned(),
        about: "What is told above and below is as it was when the run began.",
        head: ["when", "from row", "changed since it began", "command"].map(str::to_owned).to_vec(),
        rows: run.resumed.iter().map(of).collect(),
    }
}

fn libraries(run: &Run) -> Table {
    let of = |library: &crate::machine::Library| {
        vec![library.name.clone(), library.version.clone(), library.path.clone()]
    };
    Table {
        title: "Libraries".to_owned(),
        head: ["library", "version", "file"].map(str::to_owned).to_vec(),
        rows: run.provenance.libraries.iter().map(of).collect(),
        ..Table::default()
    }
}

fn environment(run: &Run) -> Table {
    let of = |(name, value): &(String, String)| vec![name.clone(), value.clone()];
    Table {
        title: "Variables of the libraries".to_owned(),
        head: ["variable", "value"].map(str::to_owned).to_vec(),
        rows: run.provenance.environment.iter().map(of).collect(),
        ..Table::default()
    }
}

/// The rows with the columns in which something stands.
fn rows(rows: &[Row]) -> Table {
    let shown = &rows[..rows.len().min(ROWS_MAX)];
    let is_told = |column: &&Column| shown.iter().any(|row| (column.cell)(row) != Cell::Empty);
    let columns: Vec<&Column> = COLUMNS.iter().filter(is_told).collect();
    let cell = |row: &Row, column: &Column| match (column.cell)(row) {
        Cell::Number(number) => rounded(number, 9).to_string(),
        cell => cell.to_string(),
    };
    let cells = |row: &Row| columns.iter().map(|column| cell(row, column)).collect();
    Table {
        title: match rows.len() - shown.len() {
            0 => count(shown.len(), "row"),
            left => format!("The first {} rows; {left} more are in run.csv", shown.len()),
        },
        head: columns.iter().map(|column| column.name.to_owned()).collect(),
        rows: shown.iter().map(cells).collect(),
        ..Table::default()
    }
}
