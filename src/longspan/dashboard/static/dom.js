// Small helpers. Text only ever becomes a text node: nothing here, and by the page's policy nothing anywhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(node, name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function set(node, name, value) {
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Only what changed is written, so that selections and screen readers are left in peace.
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

// Children of `parent` for `items`, kept by key: what stays keeps its element, and with it focus and open details.
export function keyed(parent, items, key, make, update) {
  const have = (parent.keyed ??= new Map());
  const wanted = new Set();
  let before = null;
  for (const item of items) {
    const name = key(item);
    if (wanted.has(name)) continue;
    wanted.add(name);
    let node = have.get(name);
    if (!node) have.set(name, (node = make(item)));
    const place = before ? before.nextSibling : parent.firstChild;
    if (place !== node) parent.insertBefore(node, place);
    update?.(node, item);
    before = node;
  }
  for (const [name, node] of have) {
    if (!wanted.has(name)) {
      node.remove();
      have.delete(name);
    }
  }
}

export function remembered(name, fallback) {
  try {
    return localStorage.getItem(`longspan:${name}`) ?? fallback;
  } catch {
    return fallback; // storage may be forbidden
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`longspan:${name}`, value);
  } catch {
    // then it is asked for again next time
  }
}
