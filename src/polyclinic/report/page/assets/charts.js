// Charts: plain data drawn by Plotly in the colours of the theme, and drawn again when the theme changes.
let page = JSON.parse(document.getElementById("data").textContent);
const hiddenMethods = new Set();
let library = null;
let printing = false;

function colour(token) {
  const [name, opacity] = token.slice(1).split("/");
  const value = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  if (opacity === undefined) return value;
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(value.slice(start, start + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

// Only keys that are colours: a site or a method may be called "@m0".
function coloured(value, key) {
  if (Array.isArray(value)) return value;
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, coloured(inner, name)]));
  }
  const isColour = key === "color" || key === "fillcolor";
  return isColour && typeof value === "string" && value.startsWith("@") ? colour(value) : value;
}

function styledAxis(axis) {
  const line = colour("@line"), muted = colour("@muted");
  return {
    automargin: true, gridcolor: colour("@grid"), linecolor: line, zeroline: false, tickcolor: line, fixedrange: !finePointer(),
    tickfont: { color: muted, size: 12 }, ...axis,
    title: { ...axis.title, font: { color: muted, size: 12.5 }, standoff: 10 },
  };
}

function finePointer() {
  return window.matchMedia("(pointer: fine)").matches;
}

function drawn(chart, width) {
  const layout = {
    ...chart.layout, height: chart.height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 12, b: 8, pad: 4 }, dragmode: finePointer() ? "zoom" : false,
    font: { family: getComputedStyle(document.body).fontFamily, color: colour("@ink"), size: 13 },
    hoverlabel: {
      bgcolor: colour("@raised"), bordercolor: colour("@line"), font: { color: colour("@ink"), size: 12.5 }, namelength: 40,
    },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("@ink"), size: 12.5 } },
  };
  for (const name of Object.keys(layout)) if (/^[xy]axis\d*$/.test(name)) layout[name] = styledAxis(layout[name]);
  const data = chart.data.map((trace) => {
    const visible = !(trace.meta && hiddenMethods.has(trace.meta.method));
    return { ...coloured(trace, ""), visible };
  });
  if (width < 560 && layout.grid) {
    const parts = layout.grid.columns;
    layout.grid = { ...layout.grid, rows: parts, columns: 1, ygap: 0.35 };
    layout.height = chart.height * (1 + 0.8 * (parts - 1));
  }
  return { data, layout };
}

function drawChart(element) {
  const chart = page.charts[element.dataset.chart];
  if (!library || !chart || element.offsetParent === null) return;
  const { data, layout } = drawn(chart, element.clientWidth);
  element.style.height = `${layout.height}px`;
  library.react(element, data, layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
}

function drawCharts() {
  document.querySelectorAll(".plot").forEach(drawChart);
}

function prepareChips() {
  document.querySelectorAll(".chips button").forEach((chip) => {
    const method = Number(chip.dataset.method);
    if (chip.getAttribute("aria-pressed") === "false") hiddenMethods.add(method);
    chip.addEventListener("click", () => {
      const shown = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!shown));
      if (shown) hiddenMethods.add(method);
      else hiddenMethods.delete(method);
      drawCharts();
    });
  });
}

function prepareTheme() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const say = () => (button.textContent = `Theme: ${root.dataset.theme || "auto"}`);
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("polyclinic-theme", next);
    } catch (error) {
      // Not allowed here; the choice lasts as long as the page.
    }
    say();
    drawCharts();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  say();
}

// On paper everything is light: charts are drawn so before, and as they were after.
function preparePrinting() {
  const root = document.documentElement;
  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    drawCharts();
  });
  window.addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    drawCharts();
  });
}

async function loadLibrary() {
  const packed = document.getElementById("library");
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  packed.remove();
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  library = window.Plotly;
}

function sayNoCharts() {
  document.querySelectorAll(".plot").forEach((element) => {
    element.style.height = "auto";
    element.textContent = "This browser is too old to draw the charts; one of 2023 or later can. The tables are complete.";
  });
}
