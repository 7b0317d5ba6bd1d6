/* The four modes of the page, and the views of each: the scene, and panels that open beside it. */

import { h } from "./dom.js";
import { look } from "./scene.js";
import { allAttentions } from "./selection.js";

const OUTPUT_TITLES = { next: "Next token", fill: "Words", classes: "Classes" };

/**
 * @typedef {object} ViewEntry
 * @property {string} name
 * @property {string | ((app: App) => string)} title
 * @property {string} mode an empty one: in all of them
 * @property {(app: App) => unknown} applies whether this model has the view
 * @property {() => Promise<any>} load only the first view is loaded from the start
 */

/** @type {ViewEntry[]} */
const VIEWS = [
  { name: "look", title: "Scene", mode: "Look", applies: () => true, load: async () => ({ look }) },
  { name: "attention", title: "Attention", mode: "Look", applies: hasAttention,
    load: () => import("./attention.js") },
  { name: "alignment", title: "Alignment", mode: "Look", applies: alignsText,
    load: () => import("./alignment.js") },
  { name: "picture", title: "Picture", mode: "Look", applies: seesPicture,
    load: () => import("./picture.js") },
  { name: "map", title: "Map", mode: "Look", applies: () => true, load: () => import("./map.js") },
  { name: "walk", title: "Step by step", mode: "Walk", applies: () => true,
    load: () => import("./walk.js") },
  { name: "next", title: outputTitle, mode: "Look", applies: hasOutputs, load: () => import("./next.js") },
  { name: "space", title: "Space", mode: "Look", applies: () => true, load: () => import("./space.js") },
  { name: "whatif", title: "What if", mode: "Try", applies: () => true, load: () => import("./whatif.js") },
  { name: "compare", title: "Compare", mode: "Try", applies: () => true,
    load: () => import("./compare.js") },
  { name: "talk", title: "Talk", mode: "Try", applies: takesText, load: () => import("./talk.js") },
  { name: "take", title: "Take away", mode: "", applies: () => true, load: () => import("./take.js") },
  { name: "training", title: "Training", mode: "Train", applies: hasLog,
    load: () => import("./training.js") },
];

/** @param {App} app */
export function hasAttention({ manifest }) {
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
function takesText({ manifest, source }) {
  return source.live && !manifest.model.sees;
}

/** @param {App} app */
function hasLog({ manifest }) {
  return manifest.logged;
}

/**
 * The views that a model has.
 * @param {App} app
 */
export const listViews = (app) => VIEWS.filter((view) => view.applies(app));

/** @type {(view: ViewEntry, app: App) => string} */
export const titleOf = ({ title }, app) => (typeof title === "string" ? title : title(app));

let opened = "Look"; // the mode of the last view that has one

/**
 * The bar: the modes, and the views of the one that is open.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {ViewEntry} chosen
 * @param {(changes: StateChanges) => string} address of these changes
 */
export function showViews(root, app, chosen, address) {
  const focused = root.contains(document.activeElement) ? document.activeElement?.id : "";
  /** @type {(id: string, words: string, to: string, current: string | null) => HTMLElement} */
  const link = (id, words, to, current) => h("a", {
    href: address({ view: to }), id, "aria-current": current,
    onclick: (/** @type {MouseEvent} */ event) => {
      if (event.metaKey || event.ctrlKey) return;
      event.preventDefault();
      app.go({ view: to });
    },
  }, words);
  const views = listViews(app);
  opened = chosen.mode || opened;
  const modes = [...new Set(views.map(({ mode }) => mode))].filter(Boolean).map((mode) => {
    const first = /** @type {ViewEntry} */ (views.find((view) => view.mode === mode));
    return link(`mode-${mode.toLowerCase()}`, mode, first.name, mode === opened ? "true" : null);
  });
  const own = views.filter(({ mode }) => mode === opened);
  const panels = [...own, ...views.filter(({ mode }) => !mode)].map((view) =>
    link(`view-${view.name}`, titleOf(view, app), view.name, view === chosen ? "page" : null));
  root.replaceChildren(h("span", { class: "modes", role: "group", "aria-label": "Modes" }, modes),
    h("span", { class: "panels", role: "group", "aria-label": opened }, panels));
  if (focused) document.getElementById(focused)?.focus();
}
