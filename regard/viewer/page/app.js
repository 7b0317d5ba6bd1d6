/* The page. The address holds what is looked at, so that a link opens the same view again. */

import { attention } from "./attention.js";
import {
  alertBox, fileKind, formatCount, h, label, messageOf, shortPath, stepMenu, toBase64,
} from "./dom.js";
import { allAttentions } from "./selection.js";
import { openSource } from "./source.js";

const OUTPUT_TITLES = { next: "Next token", fill: "Words", classes: "Classes" };

/**
 * @typedef {object} ViewEntry
 * @property {string} name
 * @property {string | ((app: App) => string)} title
 * @property {(app: App) => unknown} applies whether this model has the view
 * @property {() => Promise<any>} load only the first view is loaded from the start
 */

/** @type {ViewEntry[]} */
const VIEWS = [
  { name: "attention", title: "Attention", applies: hasAttention, load: async () => ({ attention }) },
  { name: "alignment", title: "Alignment", applies: alignsText, load: () => import("./alignment.js") },
  { name: "picture", title: "Picture", applies: seesPicture, load: () => import("./picture.js") },
  { name: "walk", title: "Walk", applies: () => true, load: () => import("./walk.js") },
  { name: "map", title: "Map", applies: () => true, load: () => import("./map.js") },
  { name: "next", title: outputTitle, applies: hasOutputs, load: () => import("./next.js") },
  { name: "space", title: "Space", applies: () => true, load: () => import("./space.js") },
  { name: "whatif", title: "What if", applies: () => true, load: () => import("./whatif.js") },
  { name: "compare", title: "Compare", applies: () => true, load: () => import("./compare.js") },
  { name: "talk", title: "Talk", applies: takesText, load: () => import("./talk.js") },
  { name: "training", title: "Training", applies: hasLog, load: () => import("./training.js") },
  { name: "take", title: "Take away", applies: () => true, load: () => import("./take.js") },
];

/** @param {App} app */
function hasAttention({ manifest }) {
  return allAttentions(manifest).length > 0;
}

/** @param {App} app */
function alignsText({ manifest }) {
  return manifest.attentions.cross && !manifest.grid;
}

/** @param {App} app */
function seesPicture({ manifest }) {
  return allAttentions(manifest).length > 0 && manifest.grid;
}

/** @param {App} app */
function hasOutputs({ manifest }) {
  return manifest.outputs;
}

/** @param {App} app */
function outputTitle({ manifest }) {
  return manifest.outputs ? OUTPUT_TITLES[manifest.outputs.kind] : "";
}

/** @param {App} app */
function takesText({ manifest }) {
  return source.live && !manifest.model.sees;
}

/** @param {App} app */
function hasLog({ manifest }) {
  return manifest.logged;
}

/** @type {(id: string) => HTMLElement | null} */
const findId = (id) => document.getElementById(id);
/** @type {(id: string) => HTMLElement} an element of index.html */
const byId = (id) => /** @type {HTMLElement} */ (findId(id));
/** @param {ViewEntry} view */
const titleOf = ({ title }) => (typeof title === "string" ? title : title(app));

const saved = findId("kept");
const source = openSource(saved && JSON.parse(saved.textContent ?? ""));
const framed = location.protocol === "about:"; // in a notebook's frame, where no address can hold anything

/** @type {App} */
const app = {
  source,
  manifest: /** @type {any} */ (null), // until the first trace
  state: {},
  current: null,
  dropped: null,
  go,
};

/** @returns {State} */
const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** @param {State} state */
const writeAddress = (state) => `#${new URLSearchParams(/** @type {Record<string, string>} */ (state))}`;

/**
 * Change the state; null removes a key. `quiet`: the view has already drawn the change.
 * @type {Go}
 */
function go(changes, { quiet = false, replace = quiet } = {}) {
  const state = { ...app.state };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete state[name];
    else state[name] = String(value);
  }
  app.state = state;
  const address = writeAddress(state);
  const write = replace ? "replaceState" : "pushState";
  if (!framed && address !== location.hash) history[write](null, "", address);
  if (!quiet) show();
}

/** @param {State} state */
const traceKey = ({ input, answer, layers, checkpoint }) =>
  JSON.stringify([input, answer, layers, checkpoint]);
/** @type {string | null} */
let traced = null;
let turn = 0;

/** Run the model on what the address says, if it has not run on that yet. False if a later call overtook. */
async function traceInput(/** @type {number} */ mine) {
  const key = traceKey(app.state);
  if (traced === key) return true;
  byId("main").setAttribute("aria-busy", "true");
  const { input, answer, layers, checkpoint } = app.state;
  const manifest = await source.trace({
    input,
    answer,
    layers: layers?.split(",").map(Number),
    checkpoint: checkpoint === undefined ? undefined : Number(checkpoint),
    picture: app.dropped ?? undefined,
  });
  if (mine !== turn) return false;
  app.manifest = manifest;
  traced = key;
  showHeader();
  return true;
}

/** Draw what the address says. A later call overtakes an earlier one that still waits for numbers. */
async function show() {
  const mine = ++turn;
  const main = byId("main");
  try {
    if (!await traceInput(mine)) return;
    const views = VIEWS.filter((view) => view.applies(app));
    const chosen = views.find(({ name }) => name === app.state.view) ?? views[0];
    showViews(views, chosen);
    /** @type {View} */
    const view = (await chosen.load())[chosen.name];
    const focused = document.activeElement?.id;
    if (chosen.name !== "take") app.current = null;
    const root = h("section", { class: chosen.name, "aria-label": titleOf(chosen) });
    await view.show(root, app);
    if (mine !== turn) return;
    app.view = view;
    main.replaceChildren(root);
    if (focused && focused !== "main") findId(focused)?.focus({ preventScroll: true });
    document.title = `${titleOf(chosen)} · Regard`;
  } catch (error) {
    if (mine !== turn) return;
    const back = h("button", { type: "button", onclick: () => history.back() }, "Back");
    main.replaceChildren(alertBox(messageOf(error)), ...(traced && !framed ? [back] : []));
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

/** @type {(views: ViewEntry[], chosen: ViewEntry) => void} */
function showViews(views, chosen) {
  byId("views").replaceChildren(...views.map((view) => h("a", {
    href: writeAddress({ ...app.state, view: view.name }),
    id: `view-${view.name}`,
    "aria-current": view === chosen ? "page" : null,
    onclick: (/** @type {MouseEvent} */ event) => {
      if (event.metaKey || event.ctrlKey) return;
      event.preventDefault();
      go({ view: view.name });
    },
  }, titleOf(view))));
  byId("views").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** What stands around a view: the model, its checkpoint, the input, and how exact the numbers are. */
function showHeader() {
  const { model, difference } = app.manifest;
  const folder = model.name === null ? "" : `${shortPath(model.name)} · `;
  byId("model").textContent = `${folder}${model.class}, ${formatCount(model.parameters)} parameters`;
  showCheckpoints();
  const apart = difference === 0 ? "exactly" : `within ${difference?.toExponential(1)}`;
  byId("difference").textContent = difference === null ? ""
    : `The numbers shown here agree ${apart} with the fast path that the model normally takes.`;
  byId("difference").dataset.value = String(difference);
  showInput(/** @type {HTMLFormElement} */ (byId("ask")));
}

function showCheckpoints() {
  const { step, steps } = app.manifest;
  const focused = document.activeElement?.id;
  const at = step === null ? "" : h("span", { class: "pale" }, `at step ${formatCount(step)}`);
  byId("run").replaceChildren(source.live && steps.length
    ? stepMenu("checkpoint", "checkpoint",
      [...steps.map((n) => /** @type {[number, string]} */ ([n, `step ${formatCount(n)}`])), ["", "final"]],
      step ?? "", (to) => go({ checkpoint: to, cell: null }, { replace: true }))
    : at);
  if (focused?.startsWith("checkpoint")) findId(focused)?.focus();
}

/** @param {HTMLFormElement} form */
function showInput(form) {
  const { model, input, answer } = app.manifest;
  const output = answer ? [h("span", { class: "answer", title: answer }, `→ ${label(answer, 60)}`)] : [];
  if (!source.live) {
    form.replaceChildren(...(model.sees ? [] : [h("q", { class: "input" }, label(input, 60))]), ...output);
  } else if (model.sees) {
    const { accept, noun } = fileKind(model);
    const file = h("input", {
      type: "file", accept, id: "file", class: "unseen", onchange: () => drop(file.files?.[0]),
    });
    form.replaceChildren(...output, h("label", { for: "file", class: "button" }, `Another ${noun} …`), file);
  } else {
    const field = h("input", {
      type: "text", id: "input", "aria-label": "Input", value: input,
      autocomplete: "off", spellcheck: "false", dir: "auto",
    });
    form.replaceChildren(field, h("button", { type: "submit" }, "Look"), ...output);
    form.onsubmit = (event) => {
      event.preventDefault();
      go({ input: field.value, answer: null, at: null, cell: null, row: null });
    };
  }
}

/**
 * A picture or a recording from the user's disk.
 * @param {File | undefined} file
 */
async function drop(file) {
  if (!file) return;
  app.dropped = await toBase64(file);
  traced = null;
  go({ at: null, cell: null, answer: null });
}

const KEYS = [
  ["arrow keys", "move over a matrix, or between tabs"],
  ["Enter", "open the sum behind a number, or the head in the atlas"],
  ["n, p", "next and previous: the head, the step of the walk, the point of a map"],
  ["j, k", "next and previous layer"],
  ["1 … 9", "the views, in order"],
  ["/", "to the input"],
  ["Escape", "close"],
];

function showKeys() {
  const dialog = h("dialog", { "aria-label": "Keys", onclose: () => dialog.remove() }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, words]) => [h("dt", {}, key), h("dd", {}, words)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
  if (event.key === "?") showKeys();
  else if (event.key === "/") findId("input")?.focus();
  else if (/^[1-9]$/.test(event.key)) findId("views")?.querySelectorAll("a")[Number(event.key) - 1]?.click();
  else if (!app.view?.key?.(event.key, app)) return;
  event.preventDefault();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
window.addEventListener("popstate", () => {
  app.state = readAddress();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
app.state = location.hash.length > 1 || !("saved" in source) ? readAddress() : source.saved.state;
show();
