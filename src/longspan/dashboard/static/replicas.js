// The table of replicas, with what may be asked of each.

import { el, keyed, set, style, text } from "./dom.js";
import { buttons } from "./actions.js";
import { number, quantile, seconds, share, short } from "./units.js";

const COLUMNS = [
  ["Replica", "name"], ["Health", "health"], ["Nodes", "nodes"], ["Running", "running"], ["Waiting", "waiting"],
  ["KV use", "kv"], ["Tokens/s", "tokens"], ["TTFT p50 / p95 / p99", "ttft"], ["TPOT p50 / p95 / p99", "tpot"],
  ["Prefix hits", "prefix"], ["Actions", "actions"],
];
let body;

export function start(parent) {
  body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map(([title]) => el("th", { scope: "col" }, title)));
  parent.append(el("table", { class: "replicas" }, el("thead", {}, head), body));
}

export function draw(view, actions) {
  keyed(body, view.replicas, (replica) => replica.name, make, (row, replica) => update(row, replica, actions));
}

function make(replica) {
  const cells = {};
  const row = el("tr");
  for (const [title, name] of COLUMNS) {
    const tag = name === "name" ? "th" : "td";
    cells[name] = el(tag, { "data-title": title, scope: tag === "th" ? "row" : null, class: `c-${name}` });
    row.append(cells[name]);
  }
  cells.mark = el("span", { class: "chip" });
  cells.reason = el("span", { class: "reason" });
  cells.health.append(cells.mark, cells.reason);
  cells.meter = el("span", { class: "meter", "aria-hidden": true }, el("i"));
  cells.kvText = el("span");
  cells.kv.append(cells.kvText, cells.meter);
  cells.buttons = buttons(replica.name, "replica");
  cells.actions.append(el("span", { class: "row" }, ...cells.buttons));
  row.cells_ = cells;
  return row;
}

const three = (latency) => (latency ? [latency.p50, latency.p95, latency.p99].map(quantile).join(" / ") : "n/a");

function update(row, replica, actions) {
  const cells = row.cells_;
  text(cells.name, replica.name);
  const good = replica.phase === "serving";
  set(cells.mark, "class", `chip ${good ? "good" : replica.phase === "failed" ? "bad" : "warn"}`);
  text(cells.mark, `${good ? "●" : "▲"} ${replica.phase}`);
  const old = replica.age_seconds !== null && replica.age_seconds > 5 ? `figures are ${seconds(replica.age_seconds)} old` : "";
  const missing = replica.missing.length ? `no longer measured: ${replica.missing.join(", ")}` : "";
  text(cells.reason, [replica.reason, old, missing].filter(Boolean).join("; "));
  set(row, "class", old ? "old" : "");
  text(cells.nodes, replica.nodes.length > 3 ? `${replica.nodes[0]} … ${replica.nodes.at(-1)} (${replica.nodes.length})` : replica.nodes.join(", "));
  text(cells.running, number(replica.running));
  text(cells.waiting, number(replica.waiting));
  text(cells.kvText, share(replica.kv_use_share));
  style(cells.meter.firstChild, "width", `${(replica.kv_use_share ?? 0) * 100}%`);
  set(cells.meter, "class", `meter ${replica.kv_use_share > 0.9 ? "warn" : ""}`);
  text(cells.tokens, short(replica.generation_tokens_per_second));
  text(cells.ttft, three(replica.ttft));
  text(cells.tpot, three(replica.tpot));
  text(cells.prefix, share(replica.prefix_hit_share));
  cells.buttons.forEach((one) => one.allow(actions));
}
