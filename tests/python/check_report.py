#!/usr/bin/env python3
"""Opens a run's page as a person does, in Chromium without a network, and holds it against the
run's files: check_report.py FOLDER PICTURES

PICTURES is a folder for pictures of the page: light, dark, narrow and printed."""

import csv
import json
import shutil
import sys
from pathlib import Path

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
            sizes = {row["size_bytes"] for row in rows if row["transport"] == transport}
            size = next((s for s in sizes if not shown or text_of(int(s)) == shown), None)
            require(size, f"{title}: no size is {shown}")
            cells = 0
            for row in rows:
                ends = (row["transport"], row["operation"], row["engine"], row["issuer"])
                if ends != (transport, operation, engine, issuer) or row["size_bytes"] != size:
                    continue
                source = trace["y"].index(row["source_gpu"])
                target = trace["x"].index(row["target_gpu"])
                found = trace["z"][source][target]
                require(near(found, float(row["bandwidth_gb_s"])), f"{title}: {row['case']}")
                cells += 1
            filled = sum(cell is not None for line in trace["z"] for cell in line)
            require(cells == filled > 0, f"{title}: {filled} cells of {cells} rows")
            checked += cells
    return checked


def text_of(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def check_lines(page, rows):
    """Every point of a line is the median row of its kind and size."""
    checked = 0
    known = {round(float(row["bandwidth_gb_s"]), 9) for row in rows if row["bandwidth_gb_s"]}
    known |= {round(float(row["bandwidth_gb_s_bus"]), 9) for row in rows if row["bandwidth_gb_s_bus"]}
    for chart in page.query_selector_all("figure.wide .chart"):
        traces = chart.evaluate(
            "c => c.data.filter(t => t.marker && t.name).map(t => ({x: t.x, y: t.y, name: t.name}))"
        )
        if chart.evaluate("c => c.layout.xaxis.title.text") != "size":
            continue
        for trace in traces:
            for size, value in zip(trace["x"], trace["y"]):
                require(round(value, 9) in known, f"{trace['name']}: {value} is no row's")
                require(any(row["size_bytes"] == str(size) for row in rows), f"{size} is no size")
                checked += 1
    return checked


def check_table(page, rows):
    table = page.query_selector_all("section")[-1].query_selector("table")
    head = [cell.inner_text() for cell in table.query_selector_all("th")]
    lines = table.evaluate("t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))")
    shown = min(len(rows), ROWS_MAX)
    require(len(lines) == shown, f"{len(lines)} rows in the table of {len(rows)}")
    for line, row in zip(lines, rows):
        for name, cell in zip(head, line):
            told = row[name]
            is_same = cell == told or cell and told and abs(float(cell) - float(told)) <= 1e-6
            require(is_same, f"row {row['case']}: {name} is {told} and {cell} on the page")


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
        before = page.evaluate("s => document.getElementById(s.dataset.chart).data[0].z", select)
        page.keyboard.press("Home")
        page.wait_for_timeout(100)
        after = page.evaluate("s => document.getElementById(s.dataset.chart).data[0].z", select)
        require(before != after, "another size shows the same numbers")
    details = page.query_selector("details")
    details.query_selector("summary").focus()
    page.keyboard.press("Enter")
    details.wait_for_selector("table", state="attached")


def main(folder, pictures):
    pictures.mkdir(parents=True, exist_ok=True)
    rows = rows_of(folder)
    measured = [row for row in rows if row["status"] == "ok"]
    path = (folder / "report.html").resolve()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    require(chromium, "no chromium: install it")
    with sync_playwright() as playwright:
        # A container has no name spaces for the browser's own walls.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        window = Page(browser, path)
        page = window.page
        window.draw_all()
        check_keyboard(page)
        is_simulated = rows[0]["simulated"] == "true"
        require(("SIMULATED" in page.title()) == is_simulated, "the title does not say what it is")
        require(bool(page.query_selector(".simulated")) == is_simulated, "no sentence says it")
        cells = check_heat_maps(page, measured)
        points = check_lines(page, measured)
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
        browser.close()
    print(json.dumps({"rows": len(rows), "cells": cells, "points": points}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
