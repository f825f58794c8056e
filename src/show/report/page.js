"use strict";
(() => {
  const charts = new Map();
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // What every chart has in common, in the colours of the page. The cells of a heat map that are empty
  // must not look like dark ones.
  const themed = (layout, isHeatMap) => {
    const axis = (own) => ({
      automargin: true, gridcolor: colour("--line"), linecolor: colour("--line"),
      zerolinecolor: colour("--line"), ...own,
    });
    return {
      margin: { l: 50, r: 10, t: 10, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: isHeatMap ? colour("--line") : "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      hoverlabel: { align: "left" },
      ...layout,
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    };
  };
  const paper = matchMedia("print");
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  const draw = (chart) => {
    const { layout, traces } = chart.variants[chart.shown];
    chart.drawn = true;
    const theme = themed(structuredClone(layout), traces[0].type === "heatmap");
    // Paper is narrower than the window, and is not waited for.
    if (paper.matches) Object.assign(theme, { width: chart.div.clientWidth, height: chart.div.clientHeight });
    return Plotly.react(chart.div, structuredClone(traces), theme, config);
  };

  const cell = (name, text) => {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  };
  // Of a heat map its cells are the table. Names are as Plotly takes them: without markup.
  const plain = (name) => name.replaceAll("&lt;", "<").replaceAll("&amp;", "&");
  const matrix = ([{ x, y, z }]) => ({
    head: ["source \\ target", ...x.map(plain)],
    rows: y.map((name, at) => [plain(name), ...z[at].map((n) => n ?? "")]),
  });
  const tabulate = (chart) => {
    const { table: told, traces } = chart.variants[chart.shown];
    const { head, rows } = told ?? matrix(traces);
    const table = document.createElement("table");
    const titles = table.createTHead().insertRow();
    for (const text of head) titles.append(Object.assign(cell("th", text), { scope: "col" }));
    const body = table.createTBody();
    for (const row of rows) body.insertRow().append(...row.map((text) => cell("td", text)));
    chart.details.querySelector(".table").replaceChildren(table);
  };

  // A machine with many GPUs is looked at part by part.
  for (const picture of document.querySelectorAll(".picture")) {
    const { width } = picture.firstElementChild.viewBox.baseVal;
    picture.classList.toggle("long", width > 3 * picture.clientWidth);
  }

  // Charts are drawn when they come near the window: a page can have a hundred.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(entry.target);
      draw(charts.get(entry.target.id));
    }
  }, { rootMargin: "400px" });

  for (const div of document.querySelectorAll(".chart")) {
    const variants = read(`${div.id}-data`);
    const details = document.querySelector(`[data-table="${div.id}"]`);
    const chart = { div, details, variants, shown: variants.length - 1, drawn: false };
    charts.set(div.id, chart);
    details.addEventListener("toggle", () => details.open && tabulate(chart));
    seen.observe(div);
  }
  for (const select of document.querySelectorAll("select[data-chart]")) {
    const chart = charts.get(select.dataset.chart);
    select.selectedIndex = chart.shown;
    select.addEventListener("change", () => {
      chart.shown = Number(select.value);
      draw(chart);
      if (chart.details.open) tabulate(chart);
    });
  }

  const again = () => {
    for (const chart of charts.values()) if (chart.drawn) draw(chart);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  paper.addEventListener("change", () => charts.forEach(draw));

  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const url = URL.createObjectURL(new Blob([read(button.dataset.save)], { type: "text/csv" }));
      Object.assign(document.createElement("a"), { href: url, download: button.dataset.name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    });
  }
})();
