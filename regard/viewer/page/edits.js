/* Changes of What if, made where one looks: at the head, and at the number. */

import { h, label } from "./dom.js";
import { parsePlace, readChanges, setChanges, sideTokens } from "./selection.js";

/**
 * Whether a head is silenced, and what changes that.
 * @type {(app: App, part: string, head: number) => { isSilenced: boolean, toggle: () => void }}
 */
export function toggleSilence(app, part, head) {
  const changes = readChanges(app.state);
  const isThis = (/** @type {Change} */ one) =>
    one.kind === "silence" && one.part === part && one.head === head;
  const isSilenced = changes.some(isThis);
  const toggle = () => setChanges(app, isSilenced ? changes.filter((one) => !isThis(one))
    : [...changes, { kind: "silence", part, head }]);
  return { isSilenced, toggle };
}

/**
 * Buttons that change the head and the cell that are looked at; call `update` when another cell is chosen.
 * @param {App} app
 * @param {AttentionInfo} attention
 * @param {number} head
 */
export function editButtons(app, attention, head) {
  const { manifest, source } = app;
  if (!source.live || !manifest.outputs) return { root: null, update: () => {} };
  const [rows, columns] = sideTokens(manifest, attention);
  const part = attention.name;
  const add = (/** @type {Change} */ change) => setChanges(app, [...readChanges(app.state), change]);
  const { isSilenced, toggle } = toggleSilence(app, part, head);
  const silence = h("button", {
    type: "button", id: "silence-head", "aria-pressed": String(isSilenced), onclick: toggle,
  }, isSilenced ? "Silenced: undo it" : "Silence this head");
  const place = () => parsePlace(app.state.at, [rows.length, columns.length]);
  const only = h("button", { type: "button", id: "look-only", onclick: () => {
    const at = place();
    if (at) add({ kind: "weights", part, head, query: at[0], to: at[1] });
  } });
  const hide = h("button", { type: "button", id: "hide-key", onclick: () => {
    const at = place();
    if (at) add({ kind: "hide", token: at[1] });
  } });
  const update = () => {
    const at = place();
    only.hidden = !at;
    hide.hidden = !at || !["text", "source"].includes(attention.columns);
    if (!at) return;
    only.textContent = `“${label(rows[at[0]])}” looks only at “${label(columns[at[1]])}”`;
    hide.textContent = `Hide “${label(columns[at[1]])}”`;
  };
  update();
  const words = h("span", { class: "pale" }, "What if:");
  return { root: h("div", { class: "controls edits" }, words, silence, only, hide), update };
}
