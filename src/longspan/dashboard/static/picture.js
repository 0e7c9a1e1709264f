// The topology: a lane per replica, a box per node, a square per GPU, and a line per port down to the lane's fabric.

import { el, keyed, set, svg, text } from "./dom.js";
import { STEPS, part, portLoad, rate, share, step } from "./units.js";

const SIZES = [
  { most: 6, box: [236, 100], unit: 24, gap: 4, names: 26, ranks: true },
  { most: 20, box: [148, 72], unit: 14, gap: 3, names: 16, ranks: false },
  { most: Infinity, box: [100, 50], unit: 8, gap: 2, names: 11, ranks: false },
];
const LANE = { head: 24, stub: 22, gap: 14, pad: 12 };
const PORTS = 10;

let host, canvas, list, last, open;

export function start(parent, openNode) {
  host = parent;
  open = openNode;
  canvas = svg("svg", { role: "group", "aria-label": "Topology", class: "topology" });
  list = el("p", { class: "hint" }, "Arrow keys move between nodes; Enter opens one.");
  host.append(canvas, legend(), list);
  canvas.addEventListener("keydown", move);
  new ResizeObserver(() => last && draw(last)).observe(host);
}

function legend() {
  const items = STEPS.map((one) => el("li", {}, el("span", { class: `swatch load-${one.name}` }), one.label));
  return el(
    "div",
    { class: "legend" },
    el("p", {}, "A square is a GPU: its fill is memory, its colour how busy it is. A line is a network port, coloured by load."),
    el("ul", {}, ...items, el("li", {}, el("span", { class: "swatch load-unknown" }), "not known")),
  );
}

function lanes(view) {
  const nodes = new Map(view.nodes.map((node) => [node.name, node]));
  const placed = new Set();
  const found = view.replicas.map((replica) => {
    const names = replica.nodes.filter((name) => nodes.has(name));
    names.forEach((name) => placed.add(name));
    return { key: `r:${replica.name}`, replica, nodes: names.map((name) => nodes.get(name)) };
  });
  const spare = view.nodes.filter((node) => !placed.has(node.name));
  if (spare.length) found.push({ key: "spare", replica: null, nodes: spare });
  return found.filter((lane) => lane.nodes.length);
}

export function draw(view) {
  last = view;
  const width = Math.max(240, host.clientWidth - 32);
  const size = { ...SIZES.find((one) => view.nodes.length <= one.most) };
  if (width < 500 && size.box[0] > 100 && view.nodes.length > 2) Object.assign(size, SIZES[2]);
  grow(size, width, Math.max(1, ...view.replicas.map((replica) => replica.nodes.length)));
  const fitted = fit(lanes(view), width, size);
  const down = new Set(view.alarms.map((alarm) => alarm.finding.subject));
  set(canvas, "viewBox", `0 0 ${width} ${fitted.height}`);
  set(canvas, "width", width);
  set(canvas, "height", fitted.height);
  keyed(canvas, fitted.lanes, (lane) => lane.key, makeLane, (group, lane) => updateLane(group, lane, size, down));
  const nodes = [...canvas.querySelectorAll(".node")];
  if (nodes.length && !nodes.some((node) => node.getAttribute("tabindex") === "0")) set(nodes[0], "tabindex", 0);
}

// Boxes take the room that a row of lanes would leave empty, within reason.
function grow(size, width, longest) {
  const across = Math.min(longest, Math.floor((width - 2 * LANE.pad + 8) / (size.box[0] + 8))) || 1;
  const lane = (box) => across * (box + 8) - 8 + 2 * LANE.pad;
  const beside = Math.max(1, Math.floor((width + LANE.gap) / (lane(size.box[0]) + LANE.gap)));
  const box = Math.floor(((width + LANE.gap) / beside - LANE.gap - 2 * LANE.pad + 8) / across - 8);
  size.box = [Math.min(box, Math.round(size.box[0] * 1.7)), size.box[1]];
  const unit = Math.min(Math.floor((size.box[0] - 16) / 8) - size.gap, Math.round(size.unit * 1.6));
  size.box[1] += Math.max(0, unit - size.unit);
  size.unit = Math.max(size.unit, unit);
}

// Lanes flow like words: as many beside each other as fit, a long one breaks into rows of its own.
function fit(found, width, size) {
  const [boxWidth, boxHeight] = size.box;
  const rowHeight = boxHeight + LANE.stub + 8;
  let x = 0, y = 0, tallest = 0;
  for (const lane of found) {
    const across = Math.max(1, Math.min(lane.nodes.length, Math.floor((width - 2 * LANE.pad + 8) / (boxWidth + 8))));
    lane.across = across;
    lane.width = across * (boxWidth + 8) - 8 + 2 * LANE.pad;
    lane.height = LANE.head + Math.ceil(lane.nodes.length / across) * rowHeight + LANE.pad - 4;
    if (x && x + lane.width > width) {
      x = 0;
      y += tallest + LANE.gap;
      tallest = 0;
    }
    Object.assign(lane, { x, y });
    x += lane.width + LANE.gap;
    tallest = Math.max(tallest, lane.height);
  }
  return { lanes: found, height: y + tallest };
}

function makeLane() {
  const title = svg("text", { x: LANE.pad, y: 17, class: "lane-name" });
  const rails = svg("g", { "aria-hidden": true });
  const nodes = svg("g");
  const group = svg("g", { class: "lane" }, svg("rect", { class: "lane-box", rx: 8 }), title, rails, nodes);
  Object.assign(group, { title_: title, rails, nodes });
  return group;
}

function updateLane(group, lane, size, down) {
  set(group, "transform", `translate(${lane.x} ${lane.y})`);
  set(group.firstChild, "width", lane.width);
  set(group.firstChild, "height", lane.height);
  const [boxWidth, boxHeight] = size.box;
  const replica = lane.replica;
  const bad = replica && replica.phase !== "serving";
  set(group, "class", `lane ${bad ? "lane-bad" : ""}`);
  text(group.title_, clip(replica ? `${replica.name} ${replica.phase}` : "no replica", Math.floor((lane.width - 20) / 7)));
  const at = (index) => [
    LANE.pad + (index % lane.across) * (boxWidth + 8),
    LANE.head + Math.floor(index / lane.across) * (boxHeight + LANE.stub + 8),
  ];
  const rows = Array.from({ length: Math.ceil(lane.nodes.length / lane.across) }, (_, row) => row);
  keyed(group.rails, replica ? rows : [], String, () => svg("line", { class: "rail" }), (line, row) => {
    const inRow = Math.min(lane.across, lane.nodes.length - row * lane.across);
    const y = at(row * lane.across)[1] + boxHeight + LANE.stub;
    set(line, "x1", LANE.pad + 6);
    set(line, "x2", LANE.pad + inRow * (boxWidth + 8) - 14);
    set(line, "y1", y);
    set(line, "y2", y);
  });
  const items = lane.nodes.map((node, index) => ({ node, at: at(index), replica }));
  keyed(group.nodes, items, (item) => item.node.name, makeNode, (box, item) => updateNode(box, item, size, down));
}

function makeNode(item) {
  const name = item.node.name;
  const box = svg("g", {
    class: "node", role: "button", tabindex: -1, "data-node": name,
    onclick: () => open(name),
    onfocus: () => {
      canvas.querySelectorAll('.node[tabindex="0"]').forEach((one) => set(one, "tabindex", -1));
      set(box, "tabindex", 0);
    },
  });
  box.frame = svg("rect", { class: "node-box", rx: 5 });
  box.label = svg("text", { class: "node-name", x: 8 });
  box.note = svg("text", { class: "node-note", x: 8 });
  box.units = svg("g");
  box.ports = svg("g");
  box.append(box.ports, box.frame, box.label, box.note, box.units);
  return box;
}

function units(item) {
  if (item.node.gpus.length) {
    return item.node.gpus.map((gpu) => ({
      key: `g${gpu.index}`, rank: gpu.rank, fill: part(gpu.memory_used_bytes, gpu.memory_total_bytes),
      load: step(gpu.utilisation_share), what: `GPU ${gpu.index}`,
    }));
  }
  const ranks = item.replica ? item.replica.ranks.filter((rank) => rank.node === item.node.name) : [];
  return ranks.map((rank) => ({ key: `r${rank.rank}`, rank: rank.rank, fill: null, load: "unknown", what: `rank ${rank.rank}` }));
}

function updateNode(box, item, size, down) {
  const { node } = item;
  const [width, height] = size.box;
  const gone = node.state === "silent" || node.state === "unseen";
  const ports = node.ports.filter((port) => !port.virtual).slice(0, PORTS);
  const alarmed = down.has(node.name);
  set(box, "transform", `translate(${item.at[0]} ${item.at[1]})`);
  set(box, "class", `node state-${node.state}${alarmed ? " alarmed" : ""}`);
  const busiest = Math.max(-1, ...ports.map((port) => portLoad(port) ?? -1));
  set(box, "aria-label", [
    node.name, stateWords(node), `${node.gpus.length} GPUs`,
    busiest >= 0 ? `busiest port ${share(busiest)}` : "network not known", alarmed ? "has an alarm" : "",
  ].filter(Boolean).join(", "));
  set(box.frame, "width", width);
  set(box.frame, "height", height);
  set(box.label, "y", size.ranks ? 20 : 15);
  text(box.label, clip((alarmed ? "▲ " : "") + node.name, size.names));
  text(box.note, gone ? stateWords(node) : size.ranks ? noteOf(node) : "");
  set(box.note, "y", height - (size.ranks ? 10 : 6));
  const across = Math.max(1, Math.floor((width - 12) / (size.unit + size.gap)));
  keyed(box.units, gone && !size.ranks ? [] : units(item).slice(0, across * 2), (unit) => unit.key, makeUnit, (mark, unit) => {
    const index = Number(mark.parentNode ? [...box.units.children].indexOf(mark) : 0);
    updateUnit(mark, unit, size, 8 + (index % across) * (size.unit + size.gap), (size.ranks ? 32 : 22) + Math.floor(index / across) * (size.unit + size.gap));
  });
  const room = (width - 16) / Math.max(1, ports.length);
  keyed(box.ports, ports, (port) => port.name, makePort, (line, port) => {
    const x = 8 + room * (ports.indexOf(port) + 0.5);
    const load = gone ? null : portLoad(port);
    set(line.line, "x1", x);
    set(line.line, "x2", x);
    set(line.line, "y1", height);
    set(line.line, "y2", height + LANE.stub);
    set(line.line, "class", `port ${port.up === false ? "port-down" : `load-${step(load)}`}`);
    const words = port.up === false ? "no link" : `${share(load)} of ${rate((port.rate_bits_per_second ?? NaN) / 8)}`;
    text(line.words, `${node.name} ${port.name}: ${words}`);
  });
}

function makePort() {
  const group = svg("g");
  group.words = svg("title");
  group.line = svg("line");
  group.append(group.words, group.line);
  return group;
}

function makeUnit() {
  const group = svg("g");
  group.words = svg("title");
  group.back = svg("rect", { class: "gpu", rx: 2 });
  group.bar = svg("rect", { class: "gpu-fill" });
  group.rank = svg("text", { class: "gpu-rank" });
  group.append(group.words, group.back, group.bar, group.rank);
  return group;
}

function updateUnit(mark, unit, size, x, y) {
  const side = size.unit;
  set(mark, "transform", `translate(${x} ${y})`);
  set(mark.back, "width", side);
  set(mark.back, "height", side);
  const tall = Math.round(side * (unit.fill ?? 0));
  set(mark.bar, "class", `gpu-fill load-${unit.load}`);
  set(mark.bar, "width", side);
  set(mark.bar, "height", tall);
  set(mark.bar, "y", side - tall);
  set(mark.rank, "x", side / 2);
  set(mark.rank, "y", side / 2 + 4);
  text(mark.rank, size.ranks && unit.rank !== null ? String(unit.rank) : "");
  text(mark.words, `${unit.what}: memory ${share(unit.fill)}${unit.rank === null ? "" : `, rank ${unit.rank}`}`);
}

export function stateWords(node) {
  if (node.state === "unseen") return "never heard of";
  if (node.state === "up") return "up";
  return `${node.state} for ${Math.round(node.age_seconds)} s`;
}

function noteOf(node) {
  if (!node.gpus.length) return node.gpu_source || "no GPUs";
  const used = part(node.gpus.reduce((sum, gpu) => sum + (gpu.memory_used_bytes ?? NaN), 0), node.gpus.reduce((sum, gpu) => sum + (gpu.memory_total_bytes ?? NaN), 0));
  return `${node.gpus.length} GPUs, memory ${share(used)}`;
}

const clip = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

function move(event) {
  const nodes = [...canvas.querySelectorAll(".node")];
  const here = nodes.indexOf(document.activeElement);
  if (here < 0) return;
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (by) nodes[Math.min(nodes.length - 1, Math.max(0, here + by))].focus();
  else if (event.key === "Home") nodes[0].focus();
  else if (event.key === "End") nodes.at(-1).focus();
  else if (event.key === "Enter" || event.key === " ") open(document.activeElement.dataset.node);
  else return;
  event.preventDefault();
}
