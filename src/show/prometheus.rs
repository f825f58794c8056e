//! Rows as metrics of Prometheus, for the textfile collector of its node exporter: the text format,
//! version 0.0.4, without timestamps, which that collector refuses.

use std::{collections::HashSet, fmt::Write};

use crate::record::{COLUMNS, Cell, Column, Row, provenance::Provenance};
use crate::units::{bytes_per_s_of_gb_s, seconds_of_nanoseconds};

/// A metric of rows.
struct Metric {
    name: &'static str,
    help: &'static str,
    values: fn(&Row) -> Vec<Value>,
}

/// A value of a row, with a label beside those of the row if there are several.
type Value = (Option<(&'static str, &'static str)>, f64);

/// All of them, in base units, as Prometheus names them.
const METRICS: [Metric; 6] = [
    Metric {
        name: "g2g_bandwidth_bytes_per_second",
        help: "Bandwidth of one flow in one direction: the median of the samples, for rdma all bytes \
               over all time.",
        values: |row| rate(row.bandwidth_gb_s),
    },
    Metric {
        name: "g2g_bandwidth_total_bytes_per_second",
        help: "Bandwidth of all flows of the case together: the median of the samples, for rdma \
               all bytes over all time.",
        values: |row| rate(row.bandwidth_gb_s_total),
    },
    Metric {
        name: "g2g_bus_bandwidth_bytes_per_second",
        help: "Bus bandwidth of a collective, as nccl-tests defines it.",
        values: |row| rate(row.bandwidth_gb_s_bus),
    },
    Metric {
        name: "g2g_expected_ratio",
        help: "Measured bandwidth over the one that is expected here.",
        values: |row| row.expected_fraction.map(|ratio| (None, ratio)).into_iter().collect(),
    },
    Metric {
        name: "g2g_latency_seconds",
        help: "Latency of one operation, at quantiles; 0 is the least and 1 the largest.",
        values: latencies,
    },
    Metric {
        name: "g2g_case_status",
        help: "1 for what became of the case: ok (measured and verified), skipped, corrupt, failed.",
        values: |row| vec![(Some(("status", row.status.into())), 1.0)],
    },
];

fn rate(gb_s: Option<f64>) -> Vec<Value> {
    gb_s.map(|gb_s| (None, bytes_per_s_of_gb_s(gb_s))).into_iter().collect()
}

fn latencies(row: &Row) -> Vec<Value> {
    let quantiles = [
        ("0", row.latency_ns_min),
        ("0.5", row.latency_ns_p50),
        ("0.9", row.latency_ns_p90),
        ("0.99", row.latency_ns_p99),
        ("0.999", row.latency_ns_p999),
        ("1", row.latency_ns_max),
    ];
    let known = quantiles.into_iter().filter_map(|(quantile, ns)| Some((quantile, ns?)));
    known.map(|(of, ns)| (Some(("quantile", of)), seconds_of_nanoseconds(ns))).collect()
}

/// What `--format prometheus` prints.
pub fn text(provenance: &Provenance, rows: &[Row]) -> String {
    let labels = labels(rows);
    let mut text = about(provenance);
    for metric in METRICS {
        let mut lines = String::new();
        for (row, labels) in rows.iter().zip(&labels) {
            for (own, value) in (metric.values)(row) {
                let own = own.map(|(name, value)| format!(",{name}=\"{value}\""));
                let own = own.unwrap_or_default();
                let _ = writeln!(lines, "{}{{{labels}{own}}} {value}", metric.name);
            }
        }
        if !lines.is_empty() {
            text += &head(metric.name, metric.help);
            text += &lines;
        }
    }
    text
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n")
}

/// What is said of the run as a whole.
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

/// The labels of each row: the columns that say what the case is, as far as it has them. Two cases
/// that are the same by them are told apart by their numbers.
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
