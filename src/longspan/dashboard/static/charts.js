// A day of history as small line charts, each with the cursor on the keyboard, too, and a table behind it.

import { byId, el, keyed, remember, remembered, set, svg, text } from "./dom.js";
import { clock, dollars, moment, number, rate, seconds, share, short } from "./units.js";

const WIDTH = 360, HEIGHT = 120, LEFT = 4, RIGHT = 4, TOP = 16, BOTTOM = 18;
const REFRESH_SECONDS = 30, EMPTY_SECONDS = 5;
const HOURS = [1, 6, 24];
const latency = (prefix) => ["p50", "p95", "p99"].map((name) => [`${prefix}_${name}_seconds`, name]);
const CLUSTER = [
  ["Output tokens/s", short, [["generation_tokens_per_second", "tokens/s"]]],
  ["Requests", number, [["running", "running"], ["waiting", "waiting"]]],
  ["TTFT", seconds, latency("ttft")],
  ["TPOT", seconds, latency("tpot")],
  ["Memory", share, [["kv_use_share", "KV, fullest replica"], ["gpu_memory_share", "fullest GPU"]], 1],
  ["GPUs busy", share, [["gpu_utilisation_share", "mean"]], 1],
  ["Network, all ports", rate, [["network_bytes_per_second", "in and out"]]],
  ["Overflow", share, [["overflow_share", "share of requests"]]],
  ["Cost outside", (value) => `${dollars(value)}/h`, [["outside_usd_per_hour", "per hour"]]],
];
const REPLICA = [
  ["Output tokens/s", short, [["generation_tokens_per_second", "tokens/s"]]],
  ["Requests", number, [["running", "running"], ["waiting", "waiting"]]],
  ["TTFT", seconds, latency("ttft")],
  ["TPOT", seconds, latency("tpot")],
  ["KV use", share, [["kv_use_share", "KV use"]], 1],
  ["Prefix hits", share, [["prefix_hit_share", "share"]], 1],
];

let host, choices, grid, note, view, asked = 0, every = 0;
let hours = HOURS.includes(Number(remembered("hours", 1))) ? Number(remembered("hours", 1)) : 1;
let subject = "cluster";

export function start() {
  host = byId("history");
  const spans = HOURS.map((one) => {
    const radio = el("input", { type: "radio", name: "hours", value: one, onchange: () => { hours = one; remember("hours", String(one)); load(); } });
    radio.checked = one === hours;
    return el("label", { class: "choice" }, radio, el("span", {}, `${one} h`));
  });
  choices = el("select", { id: "of", onchange: () => { subject = choices.value; grid.replaceChildren(); grid.keyed = undefined; load(); } });
  note = el("p", { class: "hint", role: "status" });
  grid = el("div", { class: "charts" });
  host.append(
    el("div", { class: "controls" },
      el("fieldset", { class: "row" }, el("legend", { class: "hidden-text" }, "How far back"), ...spans),
      el("label", { for: "of" }, "of"), choices),
    note, grid);
}

export function draw(now) {
  view = now;
  const options = [["cluster", "the whole deployment"], ...view.replicas.map((one) => [`replica/${one.name}`, `replica ${one.name}`]),
    ...view.nodes.map((one) => [`node/${one.name}`, `node ${one.name}`])];
  keyed(choices, options, ([value]) => value, ([value, label]) => el("option", { value }, label));
  if (Date.now() / 1000 - asked > every) load();
}

// Chart definitions with whole series names.
function wanted() {
  const whole = (charts) => charts.map(([title, unit, lines, top]) => ({ title, unit, top, lines: lines.map(([name, label]) => [`${subject}/${name}`, label]) }));
  if (subject === "cluster") return whole(CLUSTER);
  if (subject.startsWith("replica/")) return whole(REPLICA);
  const name = subject.slice("node/".length);
  const node = view.nodes.find((one) => one.name === name);
  const gpus = node?.gpus ?? [];
  const ports = (node?.ports ?? []).filter((port) => !port.virtual);
  const each = (figure) => gpus.slice(0, 8).map((gpu) => [`gpu/${name}/${gpu.index}/${figure}`, `GPU ${gpu.index}`]);
  return [
    { title: "GPU memory", unit: share, top: 1, lines: each("memory_share") },
    { title: "GPUs busy", unit: share, top: 1, lines: each("utilisation_share") },
    { title: "GPU power", unit: (value) => `${number(value)} W`, lines: each("power_watts") },
    { title: "GPU heat", unit: (value) => `${number(value)} °C`, lines: each("temperature_celsius") },
    { title: "Network out", unit: rate, lines: ports.slice(0, 10).map((port) => [`port/${name}/${port.name}/tx_bytes_per_second`, port.name]) },
    { title: "Host", unit: share, top: 1, lines: [["cpu_share", "CPU"], ["ram_share", "RAM"], ["shm_share", "/dev/shm"]].map(([figure, label]) => [`node/${name}/${figure}`, label]) },
  ].filter((chart) => chart.lines.length);
}

async function load() {
  if (!view) return;
  every = REFRESH_SECONDS;
  asked = Date.now() / 1000;
  const charts = wanted(), of = subject;
  const names = [...new Set(charts.flatMap((chart) => chart.lines.map(([name]) => name)))];
  const found = { series: {}, until_unix_seconds: asked, bucket_seconds: 60 };
  try {
    for (let from = 0; from < names.length; from += 30) {
      const query = new URLSearchParams({ hours, points: 240 });
      names.slice(from, from + 30).forEach((name) => query.append("name", name));
      const answer = await fetch(`/api/history?${query}`);
      const read = await answer.json();
      if (!answer.ok) throw new Error(read.error.message);
      Object.assign(found.series, read.series);
      Object.assign(found, { until_unix_seconds: read.until_unix_seconds, bucket_seconds: read.bucket_seconds });
    }
    text(note, Object.keys(found.series).length ? "" : "Nothing is kept yet: the history begins when the dashboard is first started and fills up from now on.");
  } catch (error) {
    text(note, `The history cannot be shown: ${error.message}`);
  }
  if (of !== subject) return;
  every = Object.keys(found.series).length ? REFRESH_SECONDS : EMPTY_SECONDS;
  keyed(grid, charts, (chart) => chart.title, make, (figure, chart) => update(figure, chart, found));
}

function make(chart) {
  const figure = el("figure", { class: "card chart" });
  figure.readout = el("span", { class: "readout", role: "status" });
  figure.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img", class: "plot" });
  figure.layer = svg("g");
  figure.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
  figure.plot.append(figure.layer, figure.cursor);
  figure.keys = el("ul", { class: "keys" });
  figure.table = el("details", { ontoggle: () => figure.table.open && fillTable(figure) }, el("summary", {}, "Table"), (figure.rows = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${chart.title}, table` })));
  figure.append(el("figcaption", {}, el("b", {}, chart.title), figure.readout), figure.plot, figure.keys, figure.table);
  figure.plot.addEventListener("pointermove", (event) => point(figure, (event.offsetX / figure.plot.clientWidth) * WIDTH));
  figure.plot.addEventListener("pointerleave", () => point(figure, null));
  figure.plot.addEventListener("blur", () => point(figure, null));
  figure.plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const x = figure.at ?? WIDTH - RIGHT;
    point(figure, Math.min(WIDTH - RIGHT, Math.max(LEFT, x + (by * (WIDTH - LEFT - RIGHT)) / 40)));
  });
  return figure;
}

function update(figure, chart, found) {
  const until = found.until_unix_seconds, from = until - hours * 3600;
  const lines = chart.lines.map(([name, label], index) => ({ label, index, points: found.series[name] ?? [] }));
  const peak = Math.max(0, ...lines.flatMap((line) => line.points.map(([, , highest]) => highest)));
  const top = chart.top ?? (nice(peak) || 1);
  const x = (at) => LEFT + ((at - from) / (until - from)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - Math.min(1, value / top)) * (HEIGHT - TOP - BOTTOM);
  // A gap in what is known is a gap in the line.
  const gap = Math.max(2.5 * found.bucket_seconds, (2.5 * hours * 3600) / 240);
  figure.layer.replaceChildren(
    ...[0, 0.5, 1].map((at) => svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * at), y2: y(top * at) })),
    svg("text", { class: "axis", x: LEFT, y: TOP - 4 }, chart.unit(top)),
    svg("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, clock(from).slice(0, 5)),
    svg("text", { class: "axis end", x: WIDTH - RIGHT, y: HEIGHT - 5 }, clock(until).slice(0, 5)),
    ...lines.map((line) => svg("path", { class: `line line-${line.index}`, d: path(line.points, x, y, gap) })),
  );
  keyed(figure.keys, lines, (line) => line.label, (line) => el("li", {}, el("span", { class: `key line-${line.index}` }), line.label));
  figure.keys.hidden = lines.length < 2;
  Object.assign(figure, { lines, x, from, until, unit: chart.unit });
  const last = lines.map((line) => `${line.label} ${line.points.length ? chart.unit(line.points.at(-1)[1]) : "n/a"}`).join(", ");
  set(figure.plot, "aria-label", `${chart.title} over ${hours} h. Last: ${last}. Left and right move a cursor; the table is behind it.`);
  if (figure.at === undefined || figure.at === null) text(figure.readout, last.length > 44 ? "" : last);
  if (figure.table.open) fillTable(figure);
}

function path(points, x, y, gap) {
  let d = "", before = -Infinity;
  for (const [at, mean] of points) {
    d += `${at - before > gap ? "M" : "L"}${x(at).toFixed(1)} ${y(mean).toFixed(1)}`;
    if (at - before > gap) d += "h.1"; // a lone point shows as a dot
    before = at;
  }
  return d;
}

function nice(value) {
  if (!(value > 0)) return 0;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].find((one) => one * size >= value) * size;
}

function near(points, at, within) {
  const found = points.reduce((a, b) => (!a || Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a), null);
  return found && Math.abs(found[0] - at) <= within ? found : null;
}

function point(figure, at) {
  figure.at = at;
  set(figure.cursor, "class", `cursor ${at === null ? "" : "on"}`);
  if (at === null || !figure.lines) return;
  set(figure.cursor, "x1", at);
  set(figure.cursor, "x2", at);
  const when = figure.from + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (figure.until - figure.from);
  const values = figure.lines.map((line) => {
    const found = near(line.points, when, hours * 60);
    return `${figure.lines.length > 1 ? `${line.label} ` : ""}${found ? figure.unit(found[1]) : "n/a"}`;
  });
  text(figure.readout, `${clock(when).slice(0, 5)}: ${values.join(", ")}`);
}

function fillTable(figure) {
  if (!figure.lines) return;
  const steps = 24, width = (figure.until - figure.from) / steps;
  const rows = Array.from({ length: steps }, (_, row) => figure.until - (row + 0.5) * width);
  figure.rows.replaceChildren(
    el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Time"), ...figure.lines.map((line) => el("th", { scope: "col" }, line.label)))),
      el("tbody", {}, ...rows.map((at) => el("tr", {}, el("th", { scope: "row" }, moment(at)),
        ...figure.lines.map((line) => el("td", {}, figure.unit(near(line.points, at, width / 2)?.[1] ?? null))))))),
  );
}
