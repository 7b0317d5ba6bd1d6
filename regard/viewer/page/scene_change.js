/* What if, made in the scene itself: a menu at the token, head or ribbon that is clicked. */

import { toggleSilence } from "./edits.js";
import { formatWeight, h } from "./dom.js";
import { nameToken, quote } from "./describe.js";
import { largestWeights } from "./scene_data.js";
import { allAttentions, readChanges, setChanges, setInput } from "./selection.js";
import { locateTokens } from "./spans.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_data.js").SceneSide} SceneSide */
/**
 * What is to be changed: a token of a side, a head, the weight of a query on a key.
 * @typedef {{ side?: SceneSide, token?: number, head?: number, query?: number, key?: number }} Target
 */

const GAP = 6; // pixels between a thing and its menu

/**
 * Open the menu of a thing, below where it stands; without one, of all that is selected.
 * @type {(app: App, scene: Scene, target: Target | null, at: DOMRect) => void}
 */
export function openChanges(app, scene, target, at) {
  const dialog = h("dialog", {
    class: "change-menu", "aria-label": "What if", onclose: () => dialog.remove(),
    onclick: (/** @type {MouseEvent} */ event) => { if (event.target === dialog) dialog.close(); },
  }, ...sections(app, scene, target ?? selectedTarget(scene), () => dialog.close()));
  document.body.append(dialog);
  dialog.showModal();
  const { width, height } = dialog.getBoundingClientRect();
  const below = at.bottom + GAP + height <= innerHeight ? at.bottom + GAP : at.top - GAP - height;
  dialog.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  dialog.style.top = `${Math.max(8, Math.min(below, innerHeight - height - 8))}px`;
}

/** All that can be changed about what is selected: the token, the head, the strongest ribbon.
 * @type {(scene: Scene) => Target} */
const selectedTarget = ({ queries, token, head, weightsOf }) => {
  const key = largestWeights(weightsOf(token), 1)[0]?.[0];
  return { side: queries, token, head, ...(key === undefined ? {} : { query: token, key }) };
};

/** @type {(app: App, scene: Scene, target: Target, close: () => void) => HTMLElement[]} */
function sections(app, scene, { side, token, head, query, key }, close) {
  const done = (/** @type {() => void} */ change) => () => {
    close();
    change();
  };
  const parts = [];
  if (side && token !== undefined) parts.push(tokenSection(app, side, token, done));
  if (query !== undefined && key !== undefined) parts.push(edgeSection(app, scene, query, key, done));
  if (head !== undefined && scene.attention) parts.push(headSection(app, scene, head, done));
  return parts.filter((part) => part.children.length > 1);
}

/** @typedef {(change: () => void) => () => void} Done */

/** @type {(words: string, id: string, onclick: () => void, pressed?: boolean) => HTMLElement} */
const choice = (words, id, onclick, pressed) =>
  h("button", { type: "button", id, onclick, "aria-pressed": pressed === undefined ? null : String(pressed) },
    words);

/** @type {(app: App, side: SceneSide, token: number, done: Done) => HTMLElement} */
function tokenSection(app, side, token, done) {
  const changes = readChanges(app.state);
  const isThis = (/** @type {Change} */ one) => one.kind === "hide" && one.token === token;
  const isHidden = changes.some(isThis);
  const hide = () => setChanges(app, isHidden ? changes.filter((one) => !isThis(one))
    : [...changes, { kind: "hide", token }]);
  return h("section", {}, h("h3", {}, nameToken(side, token)),
    side.side === "target" || !allAttentions(app.manifest).length ? null
      : choice(isHidden ? "Hidden: show it again" : "Hide it: nothing may look at it", "change-hide",
        done(hide), isHidden),
    replaceForm(app, side, token, done));
}

/** @type {(app: App, side: SceneSide, token: number, done: Done) => HTMLElement | null} */
function replaceForm(app, { side, tokens, grid }, token, done) {
  const { input, answer, exact } = app.manifest;
  const text = side === "target" ? answer : input;
  const span = grid || exact || text === null ? null : locateTokens(text, tokens)[token];
  if (text === null || !span) return null;
  const [from, to] = span;
  const field = h("input", {
    type: "text", id: "change-word", "aria-label": `Instead of ${quote(tokens[token])}`,
    value: text.slice(from, to), autocomplete: "off", size: 12,
  });
  const replace = done(() => {
    const changed = text.slice(0, from) + field.value + text.slice(to);
    setInput(app, side === "target" ? { answer: changed } : { input: changed, answer: undefined });
  });
  return h("form", { onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    if (field.value.trim()) replace();
  } }, field, h("button", { type: "submit", id: "change-replace" }, "Replace it"));
}

/** @type {(app: App, scene: Scene, query: number, key: number, done: Done) => HTMLElement} */
function edgeSection(app, { attention, head, queries, keys, weightsOf }, query, key, done) {
  const part = attention?.name ?? "";
  const set = (/** @type {Partial<Change>} */ how) => setChanges(app, [
    ...readChanges(app.state).filter((one) => !(one.kind === "weights" && one.part === part
      && one.head === head && one.query === query && (one.to === key || how.weight === undefined))),
    { kind: "weights", part, head, query, to: key, ...how }]);
  const weight = weightsOf(query)?.[key] ?? 0;
  const number = h("output", { for: "change-weight" }, formatWeight(weight));
  const slider = h("input", {
    type: "range", id: "change-weight", min: 0, max: 1, step: 0.01, value: weight.toFixed(2),
    "aria-label": "Weight", oninput: () => { number.value = Number(slider.value).toFixed(2); },
    onchange: () => set({ weight: Number(slider.value) }),
  });
  return h("section", {}, h("h3", {}, `${nameToken(queries, query)} looks at ${nameToken(keys, key)}`),
    h("label", { class: "weight-line" }, slider, number),
    choice("Cut it: the others share its weight", "change-cut", done(() => set({ weight: 0 }))),
    choice("It looks nowhere else", "change-only", done(() => set({}))));
}

/** @type {(app: App, scene: Scene, head: number, done: Done) => HTMLElement} */
function headSection(app, { attention }, head, done) {
  const { isSilenced, toggle } = toggleSilence(app, attention?.name ?? "", head);
  return h("section", {}, h("h3", {}, `Head ${head}`),
    choice(isSilenced ? "Silenced: let it speak again" : "Silence it", "change-silence", done(toggle),
      isSilenced));
}
