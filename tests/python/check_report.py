#!/usr/bin/env python3
"""Opens a run's page as a person does, in Chromium without a network, and holds it against the
run's files: check_report.py FOLDER PICTURES [PAGE SWEEP]

PICTURES is a folder for pictures of the page: light, dark, narrow and printed. PAGE is a page on
which the run in FOLDER stands behind the sweep in the folder SWEEP."""

import csv
import html
import json
import math
import re
import shutil
import sys
from pathlib import Path

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from playwright.sync_api import sync_playwright

WIDE = {"width": 1400, "height": 1000}
NARROW = {"width": 360, "height": 740}

# More rows than these are not in the table of all rows.
ROWS_MAX = 1000


def require(condition, message):
    if not condition:
        sys.exit(message)


def near(one, other):
    """A heat map's numbers have six digits that count."""
    return abs(one - other) <= 1e-5 * abs(other)


class Page:
    """The page in a window of its own, with all that went wrong in it."""

    def __init__(self, browser, path, viewport=WIDE, scheme="light"):
        self.context = browser.new_context(
            viewport=viewport, color_scheme=scheme, offline=True, accept_downloads=True
        )
        # The usual 30 s are too few for a page of some MB on a busy machine.
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.wrong, self.asked = [], []
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def draw_all(self):
        """Scrolls through the page until every chart is drawn."""
        for chart in self.page.query_selector_all(".chart"):
            chart.scroll_into_view_if_needed()
            chart.wait_for_selector(".main-svg", state="attached")
        self.page.evaluate("scrollTo(0, 0)")

    def end(self):
        # What a button saves is a blob of the page itself.
        asked = [url for url in self.asked if not url.startswith("blob:")]
        require(len(asked) == 1, f"the page asks for more than itself: {asked[1:]}")
        require(not self.wrong, f"the browser says: {self.wrong}")
        self.context.close()


def rows_of(folder):
    with open(folder / "run.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# What the page calls the ways to memory of GPUs.
GPU_PATHS = {
    "": [],
    "staged": ["staged"],
    "direct": ["GPUDirect"],
    "unproven": ["GPUDirect unproven"],
}


def kind_of(row):
    """What the page calls the rows that differ in their sizes and ends only."""

    def named(column, name, usual=()):
        return [f"{name} {row[column]}"] if row[column] and row[column] not in usual else []

    def unusual(column, *usual):
        return [row[column]] if row[column] and row[column] not in usual else []

    words = []
    for column in ("transport", "operation", "data_type", "reduction"):
        words += unusual(column)
    # Of other operations only one end can be the issuer.
    words += unusual("issuer") if row["operation"] == "copy" else []
    words += unusual("engine", "cpu", "nic") + unusual("provider") + named("root", "root")
    words += ["in place"] if row["in_place"] == "true" else []
    words += named("buffer", "memory of", ("cuda",))
    words += named("registration", "registered", ("none",))
    words += named("graph", "graphs of", ("0",)) + named("split", "split")
    words += GPU_PATHS[row["gpu_path"]] + unusual("pattern", "one-way")
    memories = row["source_memory"], row["target_memory"]
    if all(memories) and memories[0] != memories[1]:
        words.append(f"{memories[0]} → {memories[1]}")
    elif memories[0] == "host":
        words.append("host memory")
    return " ".join(words)


def groups_of(rows):
    """The rows of each kind and size."""
    groups = {}
    for row in rows:
        groups.setdefault((kind_of(row), int(row["size_bytes"])), []).append(row)
    return groups


def ends_of(rows):
    """The names that the rows of a heat map give their sources and targets."""
    hosts = {row[f"{side}_host"] for row in rows for side in ("source", "target")}
    names = []
    for row in rows:
        is_of_ranks = row["transport"] == "rdma" or not (row["source_gpu"] or row["target_gpu"])
        what = "rank" if is_of_ranks else "gpu"
        ends = [(row[f"{side}_{what}"], row[f"{side}_host"]) for side in ("source", "target")]
        several = len(hosts) > 1
        names.append([f"{number} of {host}" if several else number for number, host in ends])
    return names


def check_heat_maps(page, rows):
    """Every cell of every heat map of rates is the row's, at every size."""
    checked = 0
    for figure in page.query_selector_all("figure"):
        title = figure.query_selector("h3").inner_text()
        if ", read" not in title and ", write" not in title:
            continue
        kind, issuer = title.rsplit(", ", 1)
        transport, operation, engine = kind.split(" ")[:3]
        chart = figure.query_selector(".chart")
        select = figure.query_selector("select")
        for place in range(len(select.query_selector_all("option")) if select else 1):
            if select:
                select.select_option(str(place))
                page.wait_for_timeout(50)
            shown = select.evaluate("s => s.selectedOptions[0].text") if select else ""
            trace = chart.evaluate("c => ({x: c.data[0].x, y: c.data[0].y, z: c.data[0].z})")
            names = {axis: [html.unescape(name) for name in trace[axis]] for axis in "xy"}
            sizes = {row["size_bytes"] for row in rows if row["transport"] == transport}
            size = next((s for s in sizes if not shown or text_of(int(s)) == shown), None)
            require(size, f"{title}: no size is {shown}")
            wanted = transport, operation, engine, issuer, size
            columns = "transport", "operation", "engine", "issuer", "size_bytes"
            own = [row for row in rows if tuple(row[name] for name in columns) == wanted]
            for row, (source, target) in zip(own, ends_of(own)):
                found = trace["z"][names["y"].index(source)][names["x"].index(target)]
                require(near(found, float(row["bandwidth_gb_s"])), f"{title}: {row['case']}")
            filled = sum(cell is not None for line in trace["z"] for cell in line)
            require(len(own) == filled > 0, f"{title}: {filled} cells of {len(own)} rows")
            checked += len(own)
    return checked


def text_of(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def charts_over(page, title):
    """The lines of the charts that have this title at their first axis, with their unit, and the
    table of the same."""
    for chart in page.query_selector_all("figure.wide .chart"):
        if chart.evaluate("c => c.layout.xaxis.title.text") != title:
            continue
        read = "c => JSON.parse(document.getElementById(`${c.id}-data`).textContent)[0].table.rows"
        traces = chart.evaluate("c => c.data.map(({x, y, name, fill, marker}) => "
                                "({x, y, name, fill, marker: Boolean(marker)}))")
        for trace in traces:
            trace["name"] = html.unescape(trace["name"] or "")
        yield chart.evaluate("c => c.layout.yaxis.title.text"), traces, chart.evaluate(read)


def check_lines(page, rows):
    """Every point of a line is the median row of its kind and size, its band the slowest and the
    fastest or of one row its interval, and no kind and size that was measured is left out."""
    missing, checked = {}, 0
    for (kind, size), own in groups_of(rows).items():
        column = "bandwidth_gb_s_bus" if own[0]["transport"] == "nccl" else "bandwidth_gb_s"
        own = [row for row in own if row[column]]
        if own:
            missing[kind, size] = sorted(own, key=lambda row: float(row[column])), column
    for unit, traces, table in charts_over(page, "size"):
        told = {(line[0], line[1]): line for line in table}
        bands = [trace for trace in traces if trace["fill"] == "toself"]
        lines = [trace for trace in traces if trace["marker"] and trace["name"]]
        require(len(lines) == len(bands) > 0, f"{len(bands)} bands of {len(lines)} lines")
        for line, band in zip(lines, bands):
            lows = band["y"][: len(line["x"]) - 1 : -1]
            for size, value, high, low in zip(line["x"], line["y"], band["y"], lows, strict=False):
                where = f"{line['name']}, {size} B"
                own, column = missing.pop((line["name"], size), (None, None))
                require(own, f"{where}: a point more")
                require((column[-3:] == "bus") == ("bus" in unit), f"{where}: in {unit}")
                middle = own[len(own) // 2]
                require(same(value, middle[column]), f"{where}: {value}, not {middle[column]}")
                ends = own[0][column], own[-1][column]
                if len(own) == 1:
                    scale = float(middle[column]) / float(middle["bandwidth_gb_s"])
                    names = "bandwidth_gb_s_low", "bandwidth_gb_s_high"
                    ends = [float(middle[name] or middle["bandwidth_gb_s"]) * scale for name in names]
                require(same(low, ends[0]) and same(high, ends[1]), f"{where}: {low} to {high}")
                count = told[line["name"], text_of(size)][-1]
                require(int(count) == len(own), f"{where}: the table has {count} rows")
                checked += 1
    require(not missing, f"no point: {list(missing)[:3]}")
    return checked


def same(found, told):
    return math.isclose(found, float(told), rel_tol=1e-9)


def histograms_of(folder):
    """The latencies of each case over all ranks."""
    reader = HistogramLogReader(str(folder / "latency.hlog"), None)
    histograms = {}
    while histogram := reader.get_next_interval_histogram():
        tag = re.fullmatch(r"case-(\d+)_((?!_rank-).)*", histogram.get_tag())
        if tag:
            histograms[tag[1]] = histogram
    reader.close()
    return histograms


def check_latencies(page, rows, histograms):
    """Every point of a line of latencies is what latency.hlog has of the rows of its kind that are
    of the smallest size, and every kind is there."""
    smallest, checked = {}, 0
    for (kind, size), own in sorted(groups_of(rows).items(), reverse=True):
        smallest[kind] = size, [row["case"] for row in own if row["case"] in histograms]
    missing = {f"{kind}, {text_of(size)}": own for kind, (size, own) in smallest.items() if own}
    for _, traces, _ in charts_over(page, "share of the transfers"):
        for trace in traces:
            cases = missing.pop(trace["name"], None)
            require(cases, f"{trace['name']}: a line more")
            all_of_them = HdrHistogram(1, 1 << 62, 3)
            for case in cases:
                all_of_them.add(histograms[case])
            count = all_of_them.get_total_count()
            require(trace["x"][-1] == count, f"{trace['name']}: {trace['x'][-1]} of {count}")
            for one_in, value in zip(trace["x"], trace["y"]):
                # A share that is a whole rank may be rounded to either side of it.
                rank = (1 - 1 / one_in) * count
                ranks = {max(1, math.ceil(rank + error)) for error in (-1e-6, 1e-6)}
                told = [all_of_them.get_value_at_percentile(100 * rank / count) for rank in ranks]
                is_told = any(math.isclose(value, value_told, rel_tol=1e-3) for value_told in told)
                require(is_told, f"{trace['name']}, one in {one_in}: {value}, not {told}")
                checked += 1
    require(not missing, f"no line: {list(missing)[:3]}")
    return checked


def check_sweep(page, folder):
    """Every bar and every effect is what sweep.json says, of every case."""
    sweep = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    cases = {case["case"]: case for case in sweep["cases"]}
    values = [combination["values"] for combination in sweep["combinations"]]
    names = [" ".join(f"{axis}={value}" for axis, value in own.items()) for own in values]

    def bars(case):
        return {names[at["combination"] - 1]: at["median"] for at in case["ranking"]}

    def effects(case):
        said = "{axis}={value} against {against}"
        return {said.format(**at): 100 * (at["effect"]["ratio"] - 1) for at in case["effects"]}

    checked = 0
    for title, expected in (("Combinations, the best first", bars), ("Effects", effects)):
        figures = page.query_selector_all("figure")
        figures = [own for own in figures if own.query_selector("h3").inner_text() == title]
        require(len(figures) == 1, f"{len(figures)} charts are called {title}")
        select = figures[0].query_selector("select")
        options = [option.inner_text() for option in select.query_selector_all("option")]
        require(sorted(options) == sorted(cases), f"{title}: {options}")
        for place, option in enumerate(options):
            select.select_option(str(place))
            page.wait_for_timeout(50)
            chart = figures[0].query_selector(".chart")
            trace = chart.evaluate("c => ({x: c.data[0].x, y: c.data[0].y})")
            found = dict(zip(map(html.unescape, trace["y"]), trace["x"]))
            told = expected(cases[option])
            is_whole = list(found) == list(told) and len(found) == len(trace["x"])
            require(is_whole and all(same(found[name], told[name]) for name in told),
                    f"{title}, {option}: {found}, not {told}")
            checked += len(told)
    return checked


def is_near(cell, told):
    """The table has nine digits that count."""
    return math.isclose(float(cell), float(told), rel_tol=1e-8)


def check_table(page, rows):
    table = page.query_selector_all("section")[-1].query_selector("table")
    head = [cell.inner_text() for cell in table.query_selector_all("th")]
    lines = table.evaluate("t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))")
    shown = min(len(rows), ROWS_MAX)
    require(len(lines) == shown, f"{len(lines)} rows in the table of {len(rows)}")
    for line, row in zip(lines, rows):
        for name, cell in zip(head, line):
            told = row[name]
            is_same = cell == told or cell and told and is_near(cell, told)
            require(is_same, f"row {row['case']}: {name} is {told} and {cell} on the page")


def check_links(page):
    """No text of the results is a link, drawn or in what is shown at a point."""
    page.evaluate("""() => {
      for (const chart of document.querySelectorAll(".chart")) {
        const isHeatMap = chart.data[0].type === "heatmap";
        Plotly.Fx.hover(chart, [{ curveNumber: 0, pointNumber: isHeatMap ? [0, 0] : 0 }]);
      }
    }""")
    read = "a => a.getAttribute('href') ?? a.getAttribute('xlink:href')"
    links = page.eval_on_selector_all("a", f"links => links.map({read})")
    foreign = [link for link in links if link and not link.startswith("#")]
    require(not foreign, f"links that lead away: {foreign[:3]}")


def check_keyboard(page):
    """All that can be done can be done by keyboard, and what has the focus can be seen."""
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("Tab")
    require(page.evaluate("document.activeElement.className") == "skip", "no way past the links")
    page.keyboard.press("Enter")
    require(page.evaluate("document.activeElement.id").startswith("summary"), "the way leads nowhere")
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName"))
        if page.evaluate("document.activeElement.tagName") == "BODY":
            break
    require({"BUTTON", "SUMMARY"} <= reached, f"the keyboard reaches {reached} only")
    select = page.query_selector("select")
    if select:
        select.focus()
        shown = "s => (({x, y, z}) => [x, y, z])(document.getElementById(s.dataset.chart).data[0])"
        before = page.evaluate(shown, select)
        page.keyboard.press("Home")
        page.wait_for_timeout(100)
        after = page.evaluate(shown, select)
        require(before != after, "another size shows the same numbers")
    details = page.query_selector("details")
    details.query_selector("summary").focus()
    page.keyboard.press("Enter")
    details.wait_for_selector("table", state="attached")


def main(folder, pictures, path=None, sweep=None):
    pictures.mkdir(parents=True, exist_ok=True)
    rows = rows_of(folder)
    measured = [row for row in rows if row["status"] == "ok"]
    path = (path or folder / "report.html").resolve()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    require(chromium, "no chromium: install it")
    # A container has no name spaces for the browser's own walls.
    launch = {"executable_path": chromium, "args": ["--no-sandbox", "--disable-gpu"]}
    # Both are left in order where a check fails: a browser that still has pages may never end.
    with sync_playwright() as playwright, playwright.chromium.launch(**launch) as browser:
        window = Page(browser, path)
        page = window.page
        window.draw_all()
        check_links(page)
        check_keyboard(page)
        is_simulated = rows[0]["simulated"] == "true"
        require(("SIMULATED" in page.title()) == is_simulated, "the title does not say what it is")
        require(bool(page.query_selector(".simulated")) == is_simulated, "no sentence says it")
        cells = check_heat_maps(page, measured)
        found = {"rows": len(rows), "cells": cells, "points": check_lines(page, measured)}
        found["latencies"] = check_latencies(page, measured, histograms_of(folder))
        found["sweep"] = check_sweep(page, sweep) if sweep else 0
        check_table(page, rows)
        with page.expect_download() as download:
            page.click("button[data-save]")
        saved = Path(download.value.path()).read_bytes()
        require(saved == (folder / "run.csv").read_bytes(), "what the button saves is not run.csv")
        require(not page.evaluate("window.planted"), "a text of the results was run as a script")
        page.screenshot(path=pictures / "light.png", full_page=True)
        page.emulate_media(media="print")
        page.pdf(path=pictures / "printed.pdf")
        window.end()

        grounds = []
        for name, viewport, scheme in (("dark", WIDE, "dark"), ("narrow", NARROW, "light")):
            window = Page(browser, path, viewport, scheme)
            window.draw_all()
            wide = window.page.evaluate("document.documentElement.scrollWidth")
            require(wide <= viewport["width"], f"{name}: the page is {wide} wide")
            grounds.append(window.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            window.page.screenshot(path=pictures / f"{name}.png", full_page=True)
            window.end()
        require(grounds[0] != grounds[1], "dark is as light")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
