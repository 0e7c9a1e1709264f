// The page's beginning and end: log in, follow the stream, draw what comes.

import * as actions from "./actions.js";
import * as charts from "./charts.js";
import { byId, remember, remembered, set, text } from "./dom.js";
import * as nodes from "./nodes.js";
import * as notices from "./notices.js";
import * as picture from "./picture.js";
import * as replicas from "./replicas.js";
import { clock } from "./units.js";

// Longer than the dashboard waits for a controller that hangs (twice 5 s): until then its silence is not its own. A dashboard
// that ended is noticed at once, since its connection closes.
const SILENT_SECONDS = 12;
let stream = null, view = null, frame = null, heard = 0, linked = false, said = "";

function theme() {
  const names = ["system", "light", "dark"];
  const button = byId("theme");
  const use = (name) => {
    set(document.documentElement, "data-theme", name === "system" ? null : name);
    text(button, `Theme: ${name}`);
    remember("theme", name);
  };
  button.addEventListener("click", () => use(names[(names.indexOf(remembered("theme", "system")) + 1) % 3]));
  use(names.includes(remembered("theme", "system")) ? remembered("theme", "system") : "system");
}

async function enter(session) {
  actions.useToken(session.csrf);
  text(byId("deployment"), session.name);
  document.title = `${session.name} · Longspan`;
  byId("login").hidden = true;
  byId("content").hidden = false;
  byId("logout").hidden = false;
  follow();
}

function leave(why) {
  stream?.close();
  stream = null;
  byId("content").hidden = true;
  byId("logout").hidden = true;
  byId("login").hidden = false;
  text(byId("key-error"), why);
  text(byId("connection"), "");
  byId("key").focus();
}

async function login(event) {
  event.preventDefault();
  const key = byId("key");
  try {
    const answer = await fetch("/api/login", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key: key.value }),
    });
    const read = await answer.json();
    if (!answer.ok) {
      text(byId("key-error"), read.error.message);
      key.select();
      return;
    }
    key.value = "";
    text(byId("key-error"), "");
    await enter(read);
    byId("main").focus();
  } catch {
    text(byId("key-error"), "The dashboard does not answer.");
  }
}

function follow() {
  stream = new EventSource("/api/stream");
  stream.addEventListener("frame", (event) => {
    frame = JSON.parse(event.data);
    if (frame.view) view = frame.view;
    heard = Date.now();
    linked = true;
    requestAnimationFrame(draw);
  });
  stream.addEventListener("error", () => {
    linked = false;
    draw();
    // The browser tries again by itself, but not after an answer that is no stream: then the session is asked about.
    if (stream && stream.readyState === EventSource.CLOSED) setTimeout(again, 3000);
  });
}

async function again() {
  if (!stream) return;
  stream.close();
  try {
    const answer = await fetch("/api/session");
    if (answer.status === 204) return leave("The session has ended.");
    if (answer.ok) actions.useToken((await answer.json()).csrf);
  } catch {
    // still away
  }
  follow();
}

function draw() {
  if (!frame || document.hidden) return;
  notices.banner(frame, view, linked);
  const fresh = linked && !frame.lost_since_unix_seconds;
  text(byId("connection"), said || (fresh ? `live, ${clock(frame.seen_unix_seconds)}` : "not live"));
  set(byId("connection"), "class", fresh ? "good" : "bad");
  if (!view) return;
  // Nothing can be asked of a controller that does not answer.
  const allowed = fresh ? frame.actions : {};
  document.body.classList.toggle("many-nodes", view.nodes.length > 12);
  document.body.classList.toggle("many-replicas", view.replicas.length > 8);
  notices.draw(view);
  picture.draw(view);
  replicas.draw(view, allowed);
  nodes.draw(view, allowed);
  charts.draw(view);
}

setInterval(() => {
  if (linked && Date.now() - heard > SILENT_SECONDS * 1000) {
    linked = false;
    draw();
  }
}, 1000);

document.addEventListener("visibilitychange", () => !document.hidden && draw());
document.addEventListener("longspan:said", (event) => {
  said = event.detail;
  draw();
  setTimeout(() => { said = ""; draw(); }, 6000);
});
byId("login").addEventListener("submit", login);
byId("logout").addEventListener("click", async () => {
  await fetch("/api/logout", { method: "POST" }).catch(() => null);
  leave("");
});
theme();
actions.start();
picture.start(byId("picture"), nodes.show);
replicas.start(byId("replicas"));
nodes.start(byId("nodes"));
charts.start();
fetch("/api/session").then(async (answer) => (answer.status === 200 ? enter(await answer.json()) : leave("")), () => leave("The dashboard does not answer."));
