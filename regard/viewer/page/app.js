/* The page. The address holds what is looked at, so that a link opens the same view again. */

import {
  alertBox, fileKind, formatCount, h, label, messageOf, shortPath, stepMenu, toBase64,
} from "./dom.js";
import { LiveInput } from "./input.js";
import { listenToKeys } from "./keys.js";
import { pointAt } from "./scene.js";
import {
  canUndo, readChanges, readState, selectedSide, selectedToken, setChanges, undoChange,
} from "./selection.js";
import { openSource, StatusError } from "./source.js";
import { showStrip } from "./strip.js";
import { hasAttention, listViews, showViews, titleOf } from "./views.js";

const PATIENCE = 250; // milliseconds to wait for the scene's numbers before a motion begins
// An address without a view that selects something of an attention opens that, as it did before the scene.
const OF_ATTENTION = ["part", "layer", "head", "form", "at", "cell", "by"];

/** @type {(id: string) => HTMLElement | null} */
const findId = (id) => document.getElementById(id);
/** @type {(id: string) => HTMLElement} an element of index.html */
const byId = (id) => /** @type {HTMLElement} */ (findId(id));

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
  point: pointAt,
};

/**
 * The state in the address. The token that controls a training leaves it, and stays in this tab.
 * @returns {State}
 */
function readAddress() {
  const { control, ...state } = readState(location.hash.slice(1));
  if (control) {
    sessionStorage.setItem("control", control);
    history.replaceState(null, "", writeAddress(state));
  }
  return state;
}

/** @param {State} state */
const writeAddress = (state) => `#${new URLSearchParams(/** @type {Record<string, string>} */ (state))}`;

/** @type {(changes: StateChanges) => State} */
function applyChanges(changes) {
  const state = { ...app.state };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete state[name];
    else state[name] = String(value);
  }
  return state;
}

/**
 * Change the state; null removes a key. `quiet`: the view has already drawn the change.
 * @type {Go}
 */
function go(changes, { quiet = false, replace = quiet } = {}) {
  const state = applyChanges(changes);
  app.state = state;
  const address = writeAddress(state);
  const write = replace ? "replaceState" : "pushState";
  if (!framed && address !== location.hash) history[write](null, "", address);
  if (quiet) follow();
  else show();
}

/** What stands around a view that has drawn a change itself follows. */
async function follow() {
  const name = document.body.dataset.view ?? "look";
  if (name === "look" || byId("main").hasAttribute("aria-busy")) return; // it comes with the view
  const mine = turn;
  showSelection();
  await placeScene(name, () => mine === turn);
}

/** The strip of the tokens. */
function showSelection() {
  const side = selectedSide(app);
  showStrip(byId("strip"), app, side, selectedToken(app, side));
}

/** @param {string | undefined} text */
const readNumbers = (text) => (text === undefined ? undefined : text.split(",").map(Number));

/** @param {State} state */
const traceKey = ({ input, answer, layers, checkpoint, model, ids, written, changes }) =>
  JSON.stringify([input, answer, layers, checkpoint, model, ids, written, changes]);
/** @type {string | null} */
let traced = null;
let turn = 0;

/** Run the model on what the address says, if it has not run on that yet. False if a later call overtook. */
async function traceInput(/** @type {number} */ mine) {
  const key = traceKey(app.state);
  if (traced === key) return true;
  byId("main").classList.add("tracing");
  const { input, answer, layers, checkpoint, model } = app.state;
  const manifest = await source.trace({
    input,
    answer,
    layers: readNumbers(layers),
    checkpoint: checkpoint === undefined ? undefined : Number(checkpoint),
    model: Number(model) > 0 ? Number(model) - 1 : undefined, // of those after the first
    picture: app.dropped ?? undefined,
    ids: readNumbers(app.state.ids),
    written: readNumbers(app.state.written),
    changes: readChanges(app.state).filter(({ picture }) => !picture || app.taken)
      .map((change) => (change.picture ? { ...change, picture: app.taken ?? undefined } : change)),
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
  main.setAttribute("aria-busy", "true");
  try {
    if (!await traceInput(mine)) return;
    if (app.state.tour) await (await import("./tours.js")).enterTour(app);
    if (!await traceInput(mine)) return; // a step may change the model
    showCheckpoints();
    const views = listViews(app);
    const usual = OF_ATTENTION.some((name) => name in app.state) && hasAttention(app) ? "attention" : "look";
    const named = app.state.view ?? usual;
    const chosen = views.find(({ name }) => name === named) ?? views[0];
    showViews(byId("views"), app, chosen, (changes) => writeAddress(applyChanges(changes)));
    /** @type {View} */
    const view = (await chosen.load())[chosen.name];
    if (chosen.name !== "look" && chosen.name !== "take") app.current = null; // look returns its own
    const root = h("section", { class: chosen.name, "aria-label": titleOf(chosen, app) });
    const output = await view.show(root, app);
    if (mine !== turn) return;
    const moved = app.view !== view;
    document.body.classList.toggle("present", Boolean(app.state.present));
    showSelection();
    const isFirst = !app.view;
    app.view = view;
    await inMotion(moved && !isFirst, () => {
      if (mine !== turn) return;
      document.body.dataset.view = chosen.name;
      replaceView(main, root, moved);
      app.current = output ?? app.current;
      return placeScene(chosen.name, () => mine === turn);
    });
    if (mine !== turn) return;
    byId("tour").hidden = !app.state.tour && !app.state.tours;
    if (!byId("tour").hidden) (await import("./tours.js")).showTour(byId("tour"), app);
    if (source.live && app.manifest.film?.length) (await import("./film.js")).showFilm(byId("film"), app);
    document.title = `${titleOf(chosen, app)} · Regard`;
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof StatusError && error.status === 410 && traced) { // dropped, or the server is another
      traced = null;
      show();
      return;
    }
    const retry = h("button", { type: "button", id: "retry", onclick: show }, "Try again");
    const back = h("button", { type: "button", onclick: () => history.back() }, "Back");
    main.replaceChildren(alertBox(messageOf(error)), retry, ...(traced && !framed ? [" ", back] : []));
  } finally {
    if (mine === turn) {
      main.removeAttribute("aria-busy");
      main.classList.remove("tracing");
    }
  }
}

/**
 * Beside a panel, the scene stays.
 * @type {(name: string, isWanted: () => boolean) => Promise<void>}
 */
async function placeScene(name, isWanted) {
  const root = byId("scene");
  root.hidden = name === "look";
  if (root.hidden) root.replaceChildren();
  else await (await import("./beside.js")).showBeside(root, app, isWanted);
}

/**
 * Change what is shown: the scene moves to its new place, where browsers can do that.
 * @type {(moves: boolean, change: () => Promise<void> | void) => Promise<void>}
 */
async function inMotion(moves, change) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!moves || still || !document.startViewTransition) {
    change();
    return;
  }
  const late = new Promise((done) => { setTimeout(done, PATIENCE); });
  const transition = document.startViewTransition(async () => { await Promise.race([change(), late]); });
  transition.ready.catch(() => {}); // left out where the tab can't be seen
  await transition.updateCallbackDone;
}

/**
 * Put a view in its place. Neither the focus nor what stands under the reader's eyes moves, unless it is
 * another view.
 * @type {(main: HTMLElement, root: HTMLElement, moved: boolean) => void}
 */
function replaceView(main, root, moved) {
  const focused = document.activeElement;
  const inside = main.contains(focused) && focused !== main;
  const inCell = inside && focused?.closest(".cell");
  const [top, inner] = [window.scrollY, main.scrollTop];
  main.style.minHeight = `${main.offsetHeight}px`; // until the canvases have their size
  main.replaceChildren(root);
  const again = findId(focused?.id ?? "") ?? (inCell ? root.querySelector(".cell") : null) ?? main;
  const place = /** @type {HTMLElement | SVGElement} */ (again);
  if (inside) place.focus({ preventScroll: true });
  window.scrollTo(0, moved ? 0 : top);
  main.scrollTop = moved ? 0 : inner;
  requestAnimationFrame(() => requestAnimationFrame(() => { main.style.minHeight = ""; }));
}

/** What stands around a view: the model, its checkpoint, the input, and how exact the numbers are. */
function showHeader() {
  const { model, difference, models = [] } = app.manifest;
  const folder = model.name === null ? "" : `${shortPath(model.name)} · `;
  const words = `${model.class}, ${formatCount(model.parameters)} parameters`;
  byId("model").replaceChildren(...modelMenu(), models.length > 1 ? words : `${folder}${words}`);
  const apart = difference === 0 ? "exactly" : `within ${difference?.toExponential(1)}`;
  byId("difference").textContent = difference === null ? ""
    : `The numbers shown here agree ${apart} with the fast path that the model normally takes.`;
  byId("difference").dataset.value = String(difference);
  showInput(/** @type {HTMLFormElement} */ (byId("ask")));
}

/** Where the server has several models: which one the page shows. */
function modelMenu() {
  const { models = [], chosen = 0 } = app.manifest;
  if (models.length < 2 || !source.live) return [];
  const menu = h("select", { id: "models", "aria-label": "Model", onchange: () => {
    app.dropped = null;
    const { input, view } = app.state; // the rest is of the other model
    app.state = {};
    go({ input, view, model: menu.value === "0" ? null : menu.value });
  } }, models.map((name, i) => h("option", { value: i, selected: i === chosen }, shortPath(name))));
  return [menu, " "];
}

function showCheckpoints() {
  const { step, steps, training } = app.manifest;
  const focused = document.activeElement?.id;
  const at = step === null ? "" : h("span", { class: "pale" }, `at step ${formatCount(step)}`);
  byId("run").replaceChildren(source.live && steps.length
    ? stepMenu("checkpoint", "checkpoint",
      [...steps.map((n) => /** @type {[number, string]} */ ([n, `step ${formatCount(n)}`])),
        ["", training ? "when opened" : "final"]],
      step ?? "", (to) => go({ checkpoint: to, cell: null }, { replace: true }))
    : at);
  byId("run").append(...changesNote());
  if (focused?.startsWith("checkpoint")) findId(focused)?.focus();
}

/** How the model is changed at the moment, and the ways back. */
function changesNote() {
  const count = readChanges(app.state).length;
  if (!source.live || (!count && !canUndo(app.state))) return [];
  const words = count === 1 ? "1 change" : `${count} changes`;
  const button = (/** @type {string} */ id, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
    h("button", { type: "button", id, onclick }, text);
  return [h("span", { class: "changed-note", role: "status" },
    count ? button("changes-note", words, () => go({ view: "whatif" })) : "",
    canUndo(app.state) ? button("undo", "Undo", () => undoChange(app)) : "",
    count ? button("unchange", "Remove all", () => setChanges(app, [])) : "")];
}

const loadMicrophone = () => import("./microphone.js");

/** @param {HTMLFormElement} form */
function showInput(form) {
  const { model, input, answer } = app.manifest;
  const output = answer ? [h("span", { class: "answer", title: answer }, `→ ${label(answer, 60)}`)] : [];
  if (!source.live) {
    form.replaceChildren(...(model.sees ? [] : [h("q", { class: "input" }, label(input, 60))]), ...output,
      unreadNote());
  } else if (model.sees) {
    const { accept, noun } = fileKind(model);
    const more = h("span", {});
    const file = h("input", {
      type: "file", accept, id: "file", class: "unseen", onchange: () => drop(file.files?.[0]),
    });
    const words = h("label", { for: "file", class: "button" }, `Another ${noun} …`);
    form.replaceChildren(...output, words, file, more);
    if (model.hears && navigator.mediaDevices) {
      loadMicrophone().then(({ recordButton }) => more.replaceChildren(recordButton(drop)));
    }
  } else {
    const look = h("button", { type: "submit" }, "Look");
    if (!live.root.isConnected) form.replaceChildren(live.root, look, told);
    const exact = app.manifest.exact ? "token by token, as the model read it" : "";
    told.replaceChildren(...output, h("span", { class: "pale exact" }, exact), unreadNote());
    live.show(input ?? "");
    const { outputs, base } = app.manifest;
    if (live.typing && outputs?.goes_on && !model.talks && !base) suggestMore();
    form.onsubmit = (event) => {
      event.preventDefault();
      live.submit();
    };
  }
}

const told = h("span", { class: "told" });
const live = new LiveInput((input, typing) => {
  const others = { answer: null, ids: null, written: null, at: null, cell: null, row: null, token: null };
  go({ input, ...others }, { replace: typing });
});

const suggestMore = async () => (await import("./suggestion.js")).suggest(app, live.field);

/** What of the text the model does not read. */
function unreadNote() {
  const { unread, context } = app.manifest;
  if (!unread) return "";
  const tokens = unread === 1 ? "1 token" : `${formatCount(unread)} tokens`;
  return h("span", { class: "unread", role: "status" },
    `Not read: ${tokens} that the model's context of ${formatCount(context ?? 0)} has no room for.`);
}

/**
 * A picture or a recording from the user's disk.
 * @param {File | undefined} file
 */
async function drop(file) {
  if (!file) return;
  app.dropped = await toBase64(file);
  traced = null;
  go({ at: null, cell: null, answer: null, token: null });
}

listenToKeys(app);
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
