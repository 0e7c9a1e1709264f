// Tiles of the moment, alarms, events, and the banner that says what the page no longer knows.

import { byId, el, keyed, set, text } from "./dom.js";
import { clock, dollars, moment, most, number, quantile, seconds, share, short, total } from "./units.js";

function worst(values) {
  return values.filter(Boolean).reduce((a, b) => (!a || b.seconds > a.seconds ? b : a), null);
}

function tiles(view) {
  const { replicas, gateway } = view;
  const up = view.nodes.filter((node) => node.state === "up").length;
  const serving = replicas.filter((replica) => replica.phase === "serving").length;
  const tpot = (name) => quantile(worst(replicas.map((one) => one.tpot?.[name])));
  const ttft = (name) => quantile(gateway.ttft ? gateway.ttft[name] : worst(replicas.map((one) => one.ttft?.[name])));
  const queue = total([gateway.waiting, ...replicas.map((one) => one.waiting)]);
  return [
    ["Serving", `${serving} of ${replicas.length}`, `replicas; ${up} of ${view.nodes.length} nodes up`, serving < replicas.length || up < view.nodes.length],
    ["Tokens/s", short(total(replicas.map((one) => one.generation_tokens_per_second))), `output; prompt ${short(total(replicas.map((one) => one.prompt_tokens_per_second)))}/s`],
    ["Running", number(total(replicas.map((one) => one.running))), `${short(gateway.requests_per_second)} requests/s end`],
    ["Queue", number(queue), `${number(gateway.waiting)} in the gateway`],
    ["TTFT p95", ttft("p95"), `p50 ${ttft("p50")}, p99 ${ttft("p99")}`],
    ["TPOT p95", tpot("p95"), `p50 ${tpot("p50")}, p99 ${tpot("p99")}, worst replica`],
    ["KV use", share(most(replicas.map((one) => one.kv_use_share))), "fullest replica"],
    ["Overflow", share(gateway.overflow_share, 1), `${dollars(gateway.outside_usd_per_hour)}/h outside`],
    ["Cost", dollars(gateway.outside_usd), `outside; saved ${dollars(gateway.saved_usd)}`],
  ].map(([name, value, note, bad]) => ({ name, value, note, bad }));
}

export function draw(view) {
  keyed(byId("tiles"), tiles(view), (tile) => tile.name, makeTile, (node, tile) => {
    text(node.value, tile.value);
    text(node.note, tile.note);
    set(node, "class", `tile ${tile.bad ? "bad" : ""} ${tile.value === "n/a" ? "na" : ""}`);
  });
  alarms(view);
  events(view);
}

function makeTile(tile) {
  const node = el("div", { class: "tile" }, el("dt", {}, tile.name));
  node.value = el("dd", { class: "value" });
  node.note = el("dd", { class: "note" });
  node.append(node.value, node.note);
  return node;
}

const RANK = { error: 0, warning: 1, info: 2 };
let knownAlarms = null;

function alarms(view) {
  const sorted = [...view.alarms].sort((a, b) => RANK[a.finding.severity] - RANK[b.finding.severity] || b.since_unix_seconds - a.since_unix_seconds);
  text(byId("alarm-count"), sorted.length ? String(sorted.length) : "none");
  keyed(byId("alarms"), sorted, (alarm) => alarm.key, makeAlarm, (node, alarm) => {
    const { finding } = alarm;
    set(node, "class", `alarm severity-${finding.severity}`);
    text(node.mark, finding.severity);
    text(node.subject, finding.subject);
    text(node.what, finding.summary);
    text(node.since, `since ${moment(alarm.since_unix_seconds)} (${seconds(Math.max(0, view.taken_at_unix_seconds - alarm.since_unix_seconds))})`);
    text(node.remedy, finding.remedy ? `What to do: ${finding.remedy}` : "");
    text(node.undo, finding.undo ? `To take it back: ${finding.undo}` : "");
    keyed(node.evidence, finding.evidence, (one) => `${one.file}:${one.line}:${one.text}`, (one) =>
      el("li", {}, el("code", {}, `${one.file}${one.line ? `:${one.line}` : ""}`), ` ${one.text}`));
    node.more.hidden = !finding.remedy && !finding.evidence.length;
  });
  const now = new Map(sorted.map((alarm) => [alarm.key, alarm.finding.summary]));
  if (knownAlarms) {
    const news = [...now].filter(([key]) => !knownAlarms.has(key)).map(([, what]) => what);
    if (news.length) text(byId("alarm-news"), `New alarm: ${news.join(" ")}`);
  }
  knownAlarms = new Set(now.keys());
}

function makeAlarm() {
  const node = el("li");
  for (const name of ["mark", "subject", "what", "since", "remedy", "undo"]) node[name] = el(name === "remedy" || name === "undo" ? "p" : "span", { class: name });
  node.evidence = el("ul", { class: "evidence" });
  node.more = el("details", {}, el("summary", {}, "Remedy and evidence"), node.remedy, node.undo, node.evidence);
  node.append(el("p", { class: "line" }, node.mark, node.subject, node.since), el("p", { class: "what-line" }, node.what), node.more);
  return node;
}

function events(view) {
  const newest = view.events.slice(-60).reverse();
  keyed(byId("events"), newest, (event) => `${event.number}:${event.at_unix_seconds}`, (event) =>
    el("li", { class: `event kind-${/^[a-z-]+$/.test(event.kind) ? event.kind : "other"}` },
      el("time", { datetime: new Date(event.at_unix_seconds * 1000).toISOString() }, moment(event.at_unix_seconds)),
      el("span", { class: "kind" }, event.kind), el("b", {}, event.subject), " ", el("span", {}, event.text.startsWith(`${event.subject}: `) ? event.text.slice(event.subject.length + 2) : event.text)));
}

// What the page no longer knows stands at its top: nothing below may look fresher than it is.
export function banner(frame, view, linked) {
  const said = [];
  if (!linked) said.push("The dashboard itself does not answer; this page tries again.");
  else if (frame.lost_since_unix_seconds) {
    said.push(`No new picture since ${clock(frame.lost_since_unix_seconds)}: ${frame.reason}`);
  }
  if (said.length) {
    said.push(frame.seen_unix_seconds
      ? `What stands below is as it was at ${clock(frame.seen_unix_seconds)}; whether it still holds is not known.`
      : "There has been no picture yet.");
  } else if (view) said.push(...view.unknown);
  if (frame.history_trouble) said.push(`History: ${frame.history_trouble}`);
  const node = byId("banner");
  node.hidden = !said.length;
  set(node, "class", `banner ${!linked || frame.lost_since_unix_seconds ? "bad" : "warn"}`);
  text(node, said.join(" "));
  document.body.classList.toggle("stale", !linked || Boolean(frame.lost_since_unix_seconds));
}
