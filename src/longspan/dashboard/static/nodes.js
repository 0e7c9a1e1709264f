// One fold per node: GPUs with their memory, ports, processes, disks. Only what is open is drawn.

import { buttons } from "./actions.js";
import { el, keyed, set, style, text } from "./dom.js";
import { stateWords } from "./picture.js";
import { bytes, most, number, part, portLoad, rate, share, step, total } from "./units.js";

const OPEN_UP_TO = 2;
let host, latest, actions;

export function start(parent) {
  host = parent;
}

export function draw(view, allowed) {
  latest = view;
  actions = allowed;
  const first = !host.keyed;
  keyed(host, view.nodes, (node) => node.name, make, update);
  if (first && view.nodes.length <= OPEN_UP_TO) host.querySelectorAll("details.node-fold").forEach((one) => (one.open = true));
}

export function show(name) {
  const fold = host.keyed?.get(name);
  if (!fold) return;
  fold.open = true;
  fold.firstChild.focus({ preventScroll: true });
  fold.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function make(node) {
  const parts = { state: el("span", { class: "chip" }), strip: el("span", { class: "strip", "aria-hidden": true }) };
  for (const name of ["memory", "cpu", "ram", "shm", "net"]) parts[name] = el("span", { class: `s-${name}` });
  const summary = el("summary", {}, el("b", { class: "s-name" }, node.name), parts.state, parts.strip, parts.memory, parts.net, parts.cpu, parts.ram, parts.shm);
  const inside = el("div", { class: "inside" });
  const fold = el("details", { class: "node-fold card", ontoggle: () => fold.open && inner(fold, latest.nodes.find((one) => one.name === node.name)) }, summary, inside);
  return Object.assign(fold, { parts, inside, built: null });
}

function update(fold, node) {
  const { parts } = fold;
  const good = node.state === "up";
  set(parts.state, "class", `chip ${good ? "good" : node.state === "late" ? "warn" : "bad"}`);
  text(parts.state, `${good ? "●" : "▲"} ${stateWords(node)}`);
  set(fold, "class", `node-fold card ${good ? "" : "old"} ${node.gpus.length ? "" : "no-gpus"}`);
  const used = total(node.gpus.map((gpu) => gpu.memory_used_bytes));
  const all = total(node.gpus.map((gpu) => gpu.memory_total_bytes));
  text(parts.memory, node.gpus.length ? `GPU memory ${share(part(used, all))}` : node.gpu_source || "no GPUs");
  keyed(parts.strip, node.gpus, (gpu) => String(gpu.index), () => el("i", {}, el("i")), (bar, gpu) => {
    style(bar.firstChild, "height", `${(part(gpu.memory_used_bytes, gpu.memory_total_bytes) ?? 0) * 100}%`);
    set(bar.firstChild, "class", `load-${step(gpu.utilisation_share)}`);
  });
  const ports = node.ports.filter((port) => !port.virtual);
  text(parts.net, `network ${rate(total(ports.flatMap((port) => [port.rx_bytes_per_second, port.tx_bytes_per_second])))}, busiest port ${share(most(ports.map(portLoad)))}`);
  text(parts.cpu, `CPU ${share(node.cpu_share)}`);
  text(parts.ram, `RAM ${share(part(node.ram_used_bytes, node.ram_total_bytes))}`);
  text(parts.shm, `/dev/shm ${share(part(node.shm_used_bytes, node.shm_total_bytes))}`);
  if (fold.open) inner(fold, node);
}

function table(caption, columns) {
  const body = el("tbody");
  const head = el("tr", {}, ...columns.map((title) => el("th", { scope: "col" }, title)));
  return Object.assign(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {}, el("caption", {}, caption), el("thead", {}, head), body)), { body });
}

function rows(holder, items, key, cells) {
  keyed(holder.body, items, key, (item) => {
    const values = cells(item);
    return el("tr", {}, ...values.map((_, index) => (index ? el("td") : el("th", { scope: "row" }))));
  }, (row, item) => cells(item).forEach((value, index) => {
    const cell = row.children[index];
    if (value instanceof Function) value(cell);
    else text(cell, value);
  }));
  holder.hidden = !items.length;
}

// Weights, KV and the rest on one bar, in words for those who do not see it.
function memoryBar(gpu) {
  return (cell) => {
    if (!cell.bar) {
      cell.bar = el("span", { class: "stack", "aria-hidden": true }, el("i", { class: "weights" }), el("i", { class: "kv" }), el("i", { class: "other" }));
      cell.words = el("span", { class: "words" });
      cell.append(cell.bar, cell.words);
    }
    const split = gpu.weights_bytes !== null || gpu.kv_bytes !== null;
    const values = split ? [gpu.weights_bytes, gpu.kv_bytes, gpu.other_bytes] : [null, null, gpu.memory_used_bytes];
    values.forEach((value, index) => style(cell.bar.children[index], "width", `${(part(value, gpu.memory_total_bytes) ?? 0) * 100}%`));
    const how = split ? `: weights ${bytes(gpu.weights_bytes)}, KV ${bytes(gpu.kv_bytes)}, other ${bytes(gpu.other_bytes)}` : "";
    text(cell.words, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}${how}`);
  };
}

function inner(fold, node) {
  if (!node) return;
  const built = (fold.built ??= build(fold, node));
  const facts = [
    node.address, `${number(node.cpu_count)} CPUs, load ${number(node.load_1min, 1)}`,
    `RAM ${bytes(node.ram_used_bytes)} of ${bytes(node.ram_total_bytes)}`,
    `/dev/shm ${bytes(node.shm_used_bytes)} of ${bytes(node.shm_total_bytes)}`,
    ...node.disks.map((disk) => `${disk.path} ${bytes(disk.used_bytes)} of ${bytes(disk.total_bytes)}`),
    Math.abs(node.clock_skew_seconds ?? 0) > 1 ? `its clock is ${number(node.clock_skew_seconds, 1)} s off` : "",
    node.missing.length ? `no longer readable: ${node.missing.join(", ")}` : "",
  ];
  keyed(built.facts, facts.filter(Boolean), (fact) => fact.split(" ")[0], () => el("li"), text);
  rows(built.gpus, node.gpus, (gpu) => gpu.uuid || String(gpu.index), (gpu) => [
    `${gpu.index}`, gpu.rank === null ? "idle" : `${gpu.replica ?? ""} rank ${gpu.rank}`, memoryBar(gpu), share(gpu.utilisation_share),
    gpu.power_watts === null ? "n/a" : `${number(gpu.power_watts)} W`, gpu.temperature_celsius === null ? "n/a" : `${number(gpu.temperature_celsius)} °C`,
    gpu.sm_clock_mhz === null ? "n/a" : `${number(gpu.sm_clock_mhz)} MHz${gpu.throttled_by?.length ? `, held by ${gpu.throttled_by.join(", ")}` : ""}`,
    `${number(gpu.ecc_corrected)} / ${number(gpu.ecc_uncorrected)}${gpu.xid === null ? "" : `, Xid ${gpu.xid}`}`,
    `${rate(gpu.nvlink_rx_bytes_per_second)} / ${rate(gpu.nvlink_tx_bytes_per_second)}${gpu.nvlink_down ? `, ${gpu.nvlink_down} down` : ""}`,
  ]);
  rows(built.ports, node.ports, (port) => port.name, (port) => [
    port.name, port.kind === "rdma" ? "RDMA" : port.virtual ? "virtual" : "interface",
    port.up === null ? "n/a" : port.up ? rate((port.rate_bits_per_second ?? NaN) / 8) : "no link", share(portLoad(port)), rate(port.rx_bytes_per_second),
    rate(port.tx_bytes_per_second), `${number(port.drops_per_second, 1)} / ${number(port.errors_per_second, 1)}`, `${number(port.drops_total)} / ${number(port.errors_total)}`,
  ]);
  rows(built.processes, node.processes, (one) => String(one.pid), (one) => [one.name, String(one.pid), share(one.cpu_share), bytes(one.rss_bytes), bytes(one.gpu_memory_bytes)]);
  built.buttons.forEach((one) => one.allow(actions));
}

function build(fold, node) {
  const built = {
    facts: el("ul", { class: "facts" }),
    gpus: table(`GPUs of ${node.name}`, ["GPU", "Work", "Memory", "Busy", "Power", "Heat", "SM clock", "ECC corrected / not", "NVLink in / out"]),
    ports: table(`Network ports of ${node.name}`, ["Port", "Kind", "Link", "Load", "In", "Out", "Drops / errors per s", "in total"]),
    processes: table(`Processes on ${node.name}`, ["Process", "pid", "CPU", "Resident", "GPU memory"]),
    buttons: buttons(node.name, "node"),
  };
  fold.inside.append(built.facts, el("p", { class: "row" }, ...built.buttons), built.gpus, built.ports, built.processes);
  return built;
}
