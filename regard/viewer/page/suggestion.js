/* How the model would go on with what is being typed: Tab, or a click, takes it over. */

import { h, label } from "./dom.js";

const PAUSE = 250; // milliseconds after a trace
const TOKENS = 8;
const LONGEST = 70; // letters

/** @type {{ stopper: AbortController, box: HTMLElement } | null} */
let shown = null;

/** Take a suggestion away, and stop the work on it. */
function withdraw() {
  shown?.stopper.abort();
  shown?.box.remove();
  shown = null;
}

/**
 * Suggest how the text of a field goes on, until somebody types or leaves.
 * @type {(app: App, field: HTMLTextAreaElement) => Promise<void>}
 */
export async function suggest(app, field) {
  withdraw();
    const stopper = new AbortController();
  const text = h("bdi");
  const box = h("button", {
    type: "button", class: "suggestion", id: "suggestion", tabindex: "-1", title: "Go on with this (Tab)",
    onmousedown: (/** @type {Event} */ event) => event.preventDefault(), // the field keeps the focus
    onclick: () => accept(),
  }, text, h("kbd", {}, "Tab"));
  shown = { stopper, box };
  const { signal } = stopper;
  let more = "";
  const accept = () => {
    field.value += more;
    field.dispatchEvent(new Event("input")); // withdraws this one
  };
  field.addEventListener("input", withdraw, { signal });
  field.addEventListener("blur", withdraw, { signal });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "Enter") withdraw();
    if (event.key !== "Tab" || event.shiftKey || !box.isConnected) return;
    event.preventDefault();
    accept();
  }, { signal });
  await new Promise((resolve) => { setTimeout(resolve, PAUSE); });
  if (signal.aborted || document.activeElement !== field) return;
  for await (const said of continuation(app, field.value, signal)) {
    if (signal.aborted) return;
    more = said;
    text.textContent = label(more, LONGEST);
    if (more.trim() && !box.isConnected) field.after(box);
  }
}

/**
 * How a text goes on, token by token: a few of them.
 * @param {App} app
 * @param {string} input
 * @param {AbortSignal} signal
 */
async function* continuation({ source, manifest }, input, signal) {
  if (!source.live) return;
  const { step, models, chosen, outputs } = manifest;
  const model = chosen ? models?.[chosen] : undefined;
  const work = new AbortController(); // ends with the last token that is shown
  signal.addEventListener("abort", () => work.abort());
  let said = "";
  let count = 0;
  try {
    const body = { turns: [input], checkpoint: step ?? undefined, model };
    for await (const { text } of source.lines("talk", body, work.signal)) {
      const between = said || /\s$/.test(input) || /^\s/.test(text ?? "") ? "" : outputs?.between ?? "";
      if (text) said += between + text;
      yield said;
      count += 1;
      if (count > TOKENS) work.abort();
    }
  } catch {
    // it was a suggestion only, and may have been stopped
  }
}
