#!/usr/bin/env python3
"""Checks that the three files of a results folder agree with each other, read as a user of pandas
and HdrHistogram reads them, and that run.json is as its schema says: check_results.py FOLDER"""

import json
import math
import sys
from pathlib import Path

import jsonschema
import pandas
from hdrh.log import HistogramLogReader

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "run.schema.json"
BANDWIDTHS = ["bandwidth_gb_s_low", "bandwidth_gb_s", "bandwidth_gb_s_high"]
QUANTILES = {
    "latency_ns_p50": 0.5,
    "latency_ns_p90": 0.9,
    "latency_ns_p99": 0.99,
    "latency_ns_p999": 0.999,
}
LATENCIES = ["latency_ns_min", *QUANTILES, "latency_ns_max"]


def require(condition, message):
    if not condition:
        sys.exit(message)


def read_csv(path):
    require('"' not in path.read_text(encoding="utf-8"), "run.csv: a cell has quotes")
    rows = pandas.read_csv(path)
    for name in rows.columns:
        if "_ns" in name or name.endswith("_bytes") or "gb_s" in name:
            numeric = pandas.api.types.is_numeric_dtype(rows[name])
            require(numeric, f"run.csv: column {name} is not numeric")
    numbers = list(range(1, len(rows) + 1))
    require(list(rows["case"]) == numbers, f"run.csv: the cases are not 1 to {len(rows)}")
    return rows


def check_row(row):
    where = f"run.csv, case {row['case']}"
    if row["status"] == "ok":
        # Fewer than 6 samples have no interval.
        few = row["bandwidth_samples"] < 6
        bandwidths = ["bandwidth_gb_s"] if few else BANDWIDTHS
        # These have a latency only.
        if row["operation"] in ("chase", "ping-pong"):
            require(pandas.isna(row["bandwidth_gb_s"]), f"{where}: a bandwidth of no stream")
            bandwidths = []
        for names in filter(None, (bandwidths, LATENCIES)):
            # A percentile beyond which too few latencies lie is not told.
            values = [row[name] for name in names if pandas.notna(row[name])]
            require(values[0] >= 0, f"{where}: {names[0]} is {values[0]}, negative")
            # The interval of a rate that scatters widely begins at 0.
            least = names[1] if names is BANDWIDTHS else names[0]
            require(row[least] > 0, f"{where}: {least} is {row[least]}, not positive")
            rising = all(low <= high for low, high in zip(values, values[1:]))
            require(rising, f"{where}: {', '.join(names)} do not rise: {values}")
    else:
        require(pandas.notna(row["reason"]), f"{where}: {row['status']} without a reason")
        bare = all(pandas.isna(row[name]) for name in BANDWIDTHS)
        require(bare, f"{where}: {row['status']} with a bandwidth")


def read_histograms(path):
    histograms = {}
    # The second argument is only used to add histograms up.
    reader = HistogramLogReader(str(path), None)
    while histogram := reader.get_next_interval_histogram():
        tag = histogram.get_tag()
        require(tag not in histograms, f"latency.hlog: two histograms have the tag {tag}")
        histograms[tag] = histogram
    reader.close()
    return histograms


def tag_of(row):
    # A collective has no pattern.
    what = row["operation"] if pandas.isna(row["pattern"]) else row["pattern"]
    return f"case-{row['case']}_{row['transport']}_{what}_{row['size_bytes']:.0f}B"


def value_at(histogram, quantile):
    # get_value_at_percentile rounds to the nearest rank; g2g rounds up. This gives it that rank.
    total = histogram.get_total_count()
    rank = math.ceil(quantile * total)
    return histogram.get_value_at_percentile(100 * rank / total)


def check_histogram(row, tag, histogram):
    found = {
        "latency_samples": histogram.get_total_count(),
        "latency_ns_min": histogram.get_min_value(),
        "latency_ns_max": histogram.get_max_value(),
    }
    for name, quantile in QUANTILES.items():
        is_known = quantile == 0.5 or (1 - quantile) * found["latency_samples"] + 1e-6 >= 10
        same = is_known == pandas.notna(row[name])
        require(same, f"{tag}: {name} is {row[name]} of {found['latency_samples']} latencies")
        if is_known:
            found[name] = value_at(histogram, quantile)
    for name, value in found.items():
        same = value == row[name]
        require(same, f"{tag}: {name} is {value} in latency.hlog and {row[name]} in run.csv")


def check_ranks(row, tag, histograms):
    if pandas.notna(row["slowest_rank"]):
        require(len(histograms) > 1, f"{tag}: a slowest rank, and {len(histograms)} histograms")
    # Between ranks each operation is a value of its own.
    if histograms and row["transport"] == "rdma":
        total = sum(histogram.get_total_count() for histogram in histograms)
        same = total == row["latency_samples"]
        require(same, f"{tag}: the ranks have {total} latencies, the row {row['latency_samples']}")


def check_log(path, measured):
    histograms = read_histograms(path)
    tags = [tag_of(row) for row in measured]
    of_ranks = {}
    for tag in [tag for tag in histograms if "_rank-" in tag]:
        of_ranks.setdefault(tag.split("_rank-")[0], []).append(histograms.pop(tag))
    for row, tag in zip(measured, tags):
        check_ranks(row, tag, of_ranks.pop(tag, []))
    require(not of_ranks, f"ranks of no row: {sorted(of_ranks)}")
    odd = sorted(histograms.keys() ^ set(tags), key=str)
    require(not odd, f"not in both latency.hlog and the ok rows of run.csv: {odd}")
    for row, tag in zip(measured, tags):
        check_histogram(row, tag, histograms[tag])


def same_number(cell, value):
    if pandas.isna(cell) or value is None:
        return pandas.isna(cell) and value is None
    # Without options pandas can miss a number's last bit.
    return math.isclose(cell, value, rel_tol=1e-12)


def check_schema(run):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for error in jsonschema.Draft202012Validator(schema).iter_errors(run):
        sys.exit(f"run.json: {error.json_path}: {error.message}")


def check_json(path, rows):
    run = json.loads(path.read_text(encoding="utf-8"))
    check_schema(run)
    found = run["rows"]
    require(len(found) == len(rows), f"run.json has {len(found)} rows and run.csv {len(rows)}")
    for row, other in zip(rows, found):
        for name in BANDWIDTHS:
            same = same_number(row[name], other[name])
            where = f"case {row['case']}: {name}"
            require(same, f"{where} is {other[name]} in run.json and {row[name]} in run.csv")


def check(folder):
    rows = [row for _, row in read_csv(folder / "run.csv").iterrows()]
    measured = [row for row in rows if row["status"] == "ok"]
    require(measured, "run.csv: no row is ok")
    for row in rows:
        check_row(row)
    check_log(folder / "latency.hlog", measured)
    check_json(folder / "run.json", rows)
    return len(measured)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_results.py FOLDER")
    try:
        print(f"{check(Path(sys.argv[1]))} rows agree")
    except Exception as error:  # the libraries have many kinds for a broken file
        sys.exit(f"{sys.argv[1]}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
