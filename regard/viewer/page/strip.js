/* The tokens as running text above every view; what is pointed at lights up. */

import { arrowKeys, h, label, onKeys, range, scrollInside } from "./dom.js";
import { allAttentions, attentionParts, selectHead } from "./selection.js";

const MOST = 400; // tokens of a side

/** @type {Record<string, string>} */
const TITLES = { source: "It reads", target: "It writes", text: "Tokens" };

/**
 * Arrow keys move between the buttons of a group, of which one can be reached with Tab.
 * @param {HTMLElement} group
 */
export function rove(group) {
  const buttons = () => /** @type {HTMLElement[]} */ ([...group.querySelectorAll("button")]);
  /** @type {(by: number) => boolean} */
  const move = (by) => {
    const all = buttons();
    const next = all[all.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + by];
    next?.focus();
    return Boolean(next);
  };
  group.addEventListener("keydown", onKeys(arrowKeys((down, right) => move(down || right))));
  const all = buttons();
  const first = all.find((button) => button.getAttribute("aria-pressed") === "true") ?? all[0];
  for (const button of all) button.tabIndex = button === first ? 0 : -1;
}

/**
 * The changes of the address that select a token; null if nothing looks from there.
 * @param {App} app
 * @param {string} side
 * @param {number} i
 */
export function tokenChanges(app, side, i) {
  const { manifest } = app;
  const changes = {
    token: i, at: null, row: null, cell: null, word: null, point: null, from: null, patch: null,
  };
  if (!allAttentions(manifest).length) return side === manifest.outputs?.rows ? changes : null;
  if (selectHead(app).attention.rows === side) return changes;
  const part = attentionParts(manifest).find((name) => manifest.attentions[name]?.[0].rows === side);
  return part ? { ...changes, part, layer: null, head: null } : null;
}

/** @type {(app: App, side: string) => boolean} */
const isPicture = ({ manifest: { grid, tokens } }, side) =>
  grid !== null && side !== "target" && tokens[side].length >= grid[0] * grid[1];

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {string | null} side of the selected token
 * @param {number | null} token
 */
export function showStrip(root, app, side, token) {
  const { tokens } = app.manifest;
  const sides = ["source", "text", "target"].filter((name) => tokens[name] && !isPicture(app, name));
  const focused = root.contains(document.activeElement) ? document.activeElement?.id : null;
  root.hidden = sides.length === 0;
  root.replaceChildren(...sides.map((name) => {
    const chosen = name === side ? token : null;
    const from = Math.max(0, Math.min((chosen ?? 0) - MOST / 2, tokens[name].length - MOST));
    const group = h("span", { class: "side", role: "group", "aria-label": TITLES[name] },
      h("span", { class: "pale" }, TITLES[name]), from ? " …" : null,
      range(Math.min(MOST, tokens[name].length)).map((n) => tokenButton(app, name, from + n, chosen)),
      from + MOST < tokens[name].length ? " …" : null);
    rove(group);
    return group;
  }));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  scrollInside(root, root.querySelector("[aria-pressed=true]"));
  const line = Number.parseFloat(getComputedStyle(root).lineHeight);
  root.scrollTop = line * Math.round(root.scrollTop / line); // no line is cut
}

/** @type {(app: App, side: string, i: number, chosen: number | null) => Child[]} */
function tokenButton(app, side, i, chosen) {
  const point = (/** @type {number | null} */ at) => () => app.point(side, at);
  return [" ", h("button", {
    type: "button", id: `strip-${side}-${i}`, "data-side": side, "data-token": String(i),
    "aria-pressed": String(i === chosen),
    onclick: () => {
      const changes = tokenChanges(app, side, i);
      if (changes) app.go(changes, { replace: true });
    },
    onmouseenter: point(i), onmouseleave: point(null), onfocus: point(i), onblur: point(null),
  }, h("bdi", {}, label(app.manifest.tokens[side][i], 24)))];
}

/**
 * Light up what a token looks at.
 * @param {string} side of the keys
 * @param {Numbers | null} weights
 */
export function lightStrip(side, weights) {
  for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#strip button"))) {
    const weight = button.dataset.side === side ? weights?.[Number(button.dataset.token)] ?? 0 : 0;
    button.style.setProperty("--weight", String(Math.min(1, weight)));
  }
}
