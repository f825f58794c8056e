#!/usr/bin/env python3
"""Checks that what `--format prometheus` printed says the same as run.csv, read by Prometheus' own
parser for Python: check_prometheus.py FOLDER FILE"""

import csv
import math
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

RATES = {
    "g2g_bandwidth_bytes_per_second": "bandwidth_gb_s",
    "g2g_bandwidth_total_bytes_per_second": "bandwidth_gb_s_total",
    "g2g_bus_bandwidth_bytes_per_second": "bandwidth_gb_s_bus",
}
QUANTILES = {
    "0": "latency_ns_min",
    "0.5": "latency_ns_p50",
    "0.9": "latency_ns_p90",
    "0.99": "latency_ns_p99",
    "0.999": "latency_ns_p999",
    "1": "latency_ns_max",
}
# Labels that are no columns.
OWN = {"quantile", "status", "case"}


def require(condition, message):
    if not condition:
        sys.exit(message)


def of_row(sample, row, columns):
    # Of cases that are the same by their labels the later ones have a number.
    if "case" in sample.labels:
        return row["case"] == sample.labels["case"]
    return all(row[name] == sample.labels.get(name, "") for name in columns)


def expected(metric, sample, row):
    if metric in RATES:
        return row[RATES[metric]], 1e9
    if metric == "g2g_latency_seconds":
        return row[QUANTILES[sample.labels["quantile"]]], 1e-9
    if metric == "g2g_expected_ratio":
        return row["expected_fraction"], 1
    require(row["status"] == sample.labels["status"], f"{sample}: it is {row['status']}")
    return "1", 1


def check(folder, text):
    with open(folder / "run.csv", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    families = list(text_string_to_metric_families(text))
    described = [family.name for family in families[:2]]
    expected_first = ["g2g_run_info", "g2g_run_started_timestamp_seconds"]
    require(described == expected_first, "the run is not described")
    labels = {name for family in families[2:] for of in family.samples for name in of.labels}
    columns = labels - OWN
    count = 0
    for family in families:
        require(family.type == "gauge" and family.documentation, f"{family.name}: no TYPE or HELP")
        for sample in family.samples:
            require(sample.timestamp is None, f"{sample}: a timestamp")
            if family.name.startswith("g2g_run_"):
                continue
            matching = [row for row in rows if of_row(sample, row, columns)]
            require(matching, f"{sample} is of no row")
            cell, scale = expected(family.name, sample, matching[0])
            require(cell, f"{sample}: run.csv has nothing there")
            same = math.isclose(sample.value, float(cell) * scale, rel_tol=1e-12)
            require(same, f"{sample}: run.csv has {cell}")
            count += 1
    cells = [*RATES.values(), *QUANTILES.values(), "expected_fraction", "status"]
    told = sum(1 for row in rows for name in cells if row[name])
    require(count == told, f"{count} samples, and {told} cells of run.csv")
    return count


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: check_prometheus.py FOLDER FILE")
    text = Path(sys.argv[2]).read_text(encoding="utf-8")
    try:
        print(f"{check(Path(sys.argv[1]), text)} samples agree")
    except (KeyError, ValueError) as error:
        sys.exit(f"{sys.argv[2]}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
