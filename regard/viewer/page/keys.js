/* What the keys do. */

import { undoChange } from "./selection.js";
import { listViews } from "./views.js";

const showKeys = async () => (await import("./keys_list.js")).showKeys();

/** @type {(app: App, which: (at: number, count: number) => number) => void} */
function openView(app, which) {
  const names = listViews(app).map(({ name }) => name);
  const to = names[which(names.indexOf(document.body.dataset.view ?? ""), names.length)];
  if (to) app.go({ view: to });
}

/**
 * A key for the scene, beside a panel that has no use for it.
 * @type {(key: string, app: App) => boolean}
 */
function besideKey(key, app) {
  if (document.body.dataset.view === "look") return false;
  if (key === "Escape") app.go({ view: "look" });
  else import("./beside.js").then(({ sceneKey }) => sceneKey(key));
  return key === "Escape";
}

/**
 * The keys of a tour; returns whether one was used.
 * @type {(key: string, app: App) => boolean}
 */
function tourKey(key, app) {
  const by = { n: 1, p: -1 }[key];
  if (by && app.state.tour) import("./tours.js").then(({ moveTour }) => moveTour(app, by));
  return Boolean(by && app.state.tour);
}

/** @type {(event: KeyboardEvent, app: App) => void} */
function handleKey(event, app) {
  if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && app.state.cell !== undefined) {
    app.go({ cell: null }, { replace: true });
    return;
  }
  if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
  if (event.key === "?") showKeys();
  else if (event.key === "/") document.getElementById("input")?.focus();
  else if (event.key === "t") app.go({ tours: app.state.tours ? null : "1", tour: null, stop: null });
  else if (event.key === "f") app.go({ present: app.state.present ? null : "1" }, { replace: true });
  else if (event.key === "u") undoChange(app);
  else if (/^\d$/.test(event.key)) openView(app, () => (Number(event.key) || 10) - 1);
  else if (event.key === "v") openView(app, (at, count) => (at + 1) % count);
  else if (event.key === "V") openView(app, (at, count) => (at + count - 1) % count);
  else if (!tourKey(event.key, app) && !app.view?.key?.(event.key, app) && !besideKey(event.key, app)) return;
  event.preventDefault();
}

/** @param {App} app */
export function listenToKeys(app) {
  document.addEventListener("keydown", (event) => handleKey(event, app));
}
