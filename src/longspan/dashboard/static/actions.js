// Drain, isolate, restore: a dialogue first, then one POST with the session's token.

import { byId, el, set, text } from "./dom.js";

const WORDS = {
  drain: ["Drain", "gets no new requests; what it works on is finished first."],
  isolate: ["Isolate", "gets no new requests, now, and is kept out until it is restored."],
  restore: ["Restore", "gets requests again, once it answers."],
};
let csrf = "";
let pending = null;

export const useToken = (token) => (csrf = token);

export const buttons = (subject, kind) => Object.keys(WORDS).map((verb) => button(verb, subject, kind));

function button(verb, subject, kind) {
  const [label] = WORDS[verb];
  const one = el("button", { type: "button", class: "small", "aria-label": `${label} ${kind} ${subject}`, onclick: () => ask(verb, subject, kind, one) }, label);
  // Not `disabled`: whoever uses the keyboard should still reach it and be told why it does nothing.
  one.allow = (actions) => {
    set(one, "aria-disabled", actions[verb] ? null : "true");
    set(one, "title", actions[verb] ? null : "This controller does not offer it, or does not answer.");
  };
  return one;
}

export function start() {
  const dialog = byId("confirm");
  byId("confirm-no").addEventListener("click", () => dialog.close());
  byId("confirm-yes").addEventListener("click", send);
  dialog.addEventListener("close", () => {
    pending?.from.focus();
    pending = null;
  });
}

function ask(verb, subject, kind, from) {
  if (from.getAttribute("aria-disabled") === "true") return;
  const [label, effect] = WORDS[verb];
  pending = { verb, subject, from };
  text(byId("confirm-title"), `${label} ${kind} ${subject}?`);
  text(byId("confirm-text"), `${subject} ${effect}`);
  text(byId("confirm-error"), "");
  text(byId("confirm-yes"), label);
  byId("confirm").showModal();
  byId("confirm-no").focus();
}

async function send() {
  const { verb, subject } = pending;
  const yes = byId("confirm-yes");
  yes.disabled = true;
  let trouble = "";
  try {
    const answer = await fetch("/api/act", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Longspan-CSRF": csrf },
      body: JSON.stringify({ verb, subject }),
    });
    if (!answer.ok) trouble = (await answer.json()).error.message;
  } catch {
    trouble = "The dashboard does not answer. Whether it was done is not known.";
  }
  yes.disabled = false;
  if (trouble) text(byId("confirm-error"), trouble);
  else {
    byId("confirm").close();
    document.dispatchEvent(new CustomEvent("longspan:said", { detail: `${WORDS[verb][0]} ${subject}: asked for.` }));
  }
}
