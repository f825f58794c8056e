//! Rows as metrics of Prometheus, for the textfile collector of its node exporter: the text format,
//! version 0.0.4, without timestamps, which that collector refuses.

use std::{collections::HashSet, fmt::Write};

use crate::analysis::fitness::Check;
use crate::record::{COLUMNS, Cell, Column, Row, Status, provenance::Provenance};
use crate::units::{bytes_per_s_of_gb_s, seconds_of_nanoseconds};

/// A metric of rows: its name, its help, and its values, each with its label if there are several.
type Metric = (&'static str, &'static str, &'static [(&'static str, fn(&Row) -> Option<f64>)]);

/// All of them, in base units, as Prometheus names them.
const METRICS: [Metric; 6] = [
    (
        "g2g_bandwidth_bytes_per_second",
        "Bandwidth of one flow in one direction: the median of the samples, for rdma all bytes over \
         all time.",
        &[("", |row| row.bandwidth_gb_s.map(bytes_per_s_of_gb_s))],
    ),
    (
        "g2g_bandwidth_total_bytes_per_second",
        "Bandwidth of all flows of the case together: the median of the samples, for rdma all bytes \
         over all time.",
        &[("", |row| row.bandwidth_gb_s_total.map(bytes_per_s_of_gb_s))],
    ),
    (
        "g2g_bus_bandwidth_bytes_per_second",
        "Bus bandwidth of a collective, as nccl-tests defines it.",
        &[("", |row| row.bandwidth_gb_s_bus.map(bytes_per_s_of_gb_s))],
    ),
    (
        "g2g_expected_ratio",
        "Measured bandwidth over the one that is expected here.",
        &[("", |row| row.expected_fraction)],
    ),
    (
        "g2g_latency_seconds",
        "Latency of one operation, at quantiles; 0 is the least and 1 the largest.",
        &[
            (",quantile=\"0\"", |row| row.latency_ns_min.map(seconds_of_nanoseconds)),
            (",quantile=\"0.5\"", |row| row.latency_ns_p50.map(seconds_of_nanoseconds)),
            (",quantile=\"0.9\"", |row| row.latency_ns_p90.map(seconds_of_nanoseconds)),
            (",quantile=\"0.99\"", |row| row.latency_ns_p99.map(seconds_of_nanoseconds)),
            (",quantile=\"0.999\"", |row| row.latency_ns_p999.map(seconds_of_nanoseconds)),
            (",quantile=\"1\"", |row| row.latency_ns_max.map(seconds_of_nanoseconds)),
        ],
    ),
    (
        "g2g_case_status",
        "1 for what became of the case: ok (measured and verified), skipped, corrupt, failed.",
        &[
            (",status=\"ok\"", |row| (row.status == Status::Ok).then_some(1.0)),
            (",status=\"skipped\"", |row| (row.status == Status::Skipped).then_some(1.0)),
            (",status=\"corrupt\"", |row| (row.status == Status::Corrupt).then_some(1.0)),
            (",status=\"failed\"", |row| (row.status == Status::Failed).then_some(1.0)),
        ],
    ),
];

/// What `--format prometheus` prints.
pub fn text(provenance: &Provenance, rows: &[Row]) -> String {
    let labels = labels(rows);
    let mut text = about(provenance);
    for (name, help, values) in METRICS {
        let mut lines = String::new();
        for (row, labels) in rows.iter().zip(&labels) {
            for (own, value) in values {
                if let Some(value) = value(row) {
                    let _ = writeln!(lines, "{name}{{{labels}{own}}} {value}");
                }
            }
        }
        if !lines.is_empty() {
            text += &head(name, help);
            text += &lines;
        }
    }
    text
}

/// The verdicts of a check.
pub fn check_text(check: &Check) -> String {
    let name = "g2g_host_fitness";
    let help = "1 for the verdict on the host: unfit, suspect, unknown, fit.";
    let mut text = head(name, help);
    for host in &check.hosts {
        let (verdict, simulated) = (host.verdict.to_string(), check.simulated.to_string());
        let labels = [("host", &host.host), ("verdict", &verdict), ("simulated", &simulated)];
        let labels = labels.map(|(name, value)| label(name, value)).join(",");
        let _ = writeln!(text, "{name}{{{labels}}} 1");
    }
    text
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n")
}

/// The metrics of the run as a whole.
fn about(provenance: &Provenance) -> String {
    let machine = &provenance.machine;
    let labels = [
        ("version", Some(provenance.version.as_ref())),
        ("hostname", machine.hostname.as_deref()),
        ("product", machine.product.as_deref()),
        ("simulated_machine", provenance.simulated_machine.as_deref()),
        ("simulated", Some(if provenance.simulated { "true" } else { "false" })),
    ];
    let labels = labels.into_iter().filter_map(|(name, value)| Some(label(name, value?)));
    let labels = labels.collect::<Vec<String>>().join(",");
    let name = "g2g_run_info";
    let mut text = head(name, "The run whose results these are; always 1.");
    let _ = writeln!(text, "{name}{{{labels}}} 1");
    if let Ok(started) = provenance.started.parse::<jiff::Timestamp>() {
        let name = "g2g_run_started_timestamp_seconds";
        text += &head(name, "When the run began, in seconds since 1970 in UTC.");
        let _ = writeln!(text, "{name} {}", started.as_second());
    }
    text
}

/// The labels of each row: the columns that distinguish cases, where they are not empty. A case
/// with the same labels as an earlier one has its number as another label.
fn labels(rows: &[Row]) -> Vec<String> {
    let is_label = |column: &&Column| column.role.tells_cases() || column.name == "simulated";
    let columns: Vec<&Column> = COLUMNS.iter().filter(is_label).collect();
    let mut seen = HashSet::new();
    let labels = |row: &Row| {
        let cells = columns.iter().map(|column| (column.name, (column.cell)(row)));
        let told = cells.filter(|(_, cell)| *cell != Cell::Empty);
        let labels = told.map(|(name, cell)| label(name, &cell.to_string()));
        let labels = labels.collect::<Vec<String>>().join(",");
        match seen.insert(labels.clone()) {
            true => labels,
            false => format!("{labels},case=\"{}\"", row.case),
        }
    };
    rows.iter().map(labels).collect()
}

/// `name="value"`, with what the format asks to be escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}
