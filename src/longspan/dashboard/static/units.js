// Numbers with their units. What is not known is "n/a", never 0.

export const NA = "n/a";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// Kept: a formatter that is made anew for each of 64 nodes' numbers took two thirds of the time of a frame.
const FORMATS = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }));

export function number(value, digits = 0) {
  return known(value) ? FORMATS[digits].format(value) : NA;
}

export function short(value) {
  if (!known(value)) return NA;
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6, 1)} M`;
  if (size >= 1e4) return `${number(value / 1e3, 1)} k`;
  return number(value, size < 10 && size % 1 ? 1 : 0);
}

export const share = (value, digits = 0) => (known(value) ? `${number(value * 100, digits)} %` : NA);

export function bytes(value) {
  if (!known(value)) return NA;
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${number(value / size, value / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${number(value)} B`;
}

export function rate(bytesPerSecond) {
  if (!known(bytesPerSecond)) return NA;
  const bits = bytesPerSecond * 8;
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (bits >= size) return `${number(bits / size, bits / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${number(bits)} bit/s`;
}

export function seconds(value) {
  if (!known(value)) return NA;
  if (value < 0.01) return `${number(value * 1000, 1)} ms`;
  if (value < 1) return `${number(value * 1000)} ms`;
  if (value < 120) return `${number(value, value < 10 ? 2 : 0)} s`;
  if (value < 7200) return `${number(value / 60)} min`;
  return `${number(value / 3600, 1)} h`;
}

// A quantile below the first bucket of its histogram is only known to be below it.
export function quantile(value) {
  if (!value) return NA;
  const mark = { below: "< ", above: "> " }[value.bound] ?? "";
  return mark + seconds(value.seconds);
}

export const dollars = (value) => (known(value) ? `$${number(value, value < 1000 ? 2 : 0)}` : NA);

export function clock(unixSeconds) {
  return known(unixSeconds) ? new Date(unixSeconds * 1000).toLocaleTimeString("en-GB") : NA;
}

export function moment(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString("en-GB") : `${at.toLocaleDateString("en-GB", { day: "2-digit", month: "short" })} ${at.toLocaleTimeString("en-GB")}`;
}

export function part(used, total) {
  return known(used) && known(total) && total > 0 ? used / total : null;
}

export function total(values) {
  const all = values.filter(known);
  return all.length ? all.reduce((sum, value) => sum + value, 0) : null;
}

export function most(values) {
  const all = values.filter(known);
  return all.length ? Math.max(...all) : null;
}

// The steps of the load scale; each has a width of line, too, for those who cannot tell the colours apart.
export const STEPS = [
  { below: 0.05, name: "idle", label: "below 5 %" },
  { below: 0.3, name: "low", label: "below 30 %" },
  { below: 0.6, name: "mid", label: "below 60 %" },
  { below: 0.85, name: "high", label: "below 85 %" },
  { below: Infinity, name: "full", label: "85 % and more" },
];
export const step = (value) => (known(value) ? STEPS.find((one) => value < one.below).name : "unknown");

export function portLoad(port) {
  const busiest = most([port.rx_bytes_per_second, port.tx_bytes_per_second]);
  return known(busiest) && port.rate_bits_per_second ? (busiest * 8) / port.rate_bits_per_second : null;
}
