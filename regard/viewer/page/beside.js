/* The scene beside a panel: smaller, with the same token and head selected, and one can go on selecting. */

import { isDark } from "./colour.js";
import { completeState } from "./scene_data.js";
import { besideKey, drawScene } from "./scene.js";

// In narrower windows it is a small picture above the panel, which leads back to it.
const WIDE = matchMedia("(min-width: 1400px) and (min-height: 560px)");
/** What was drawn last, from which run and address, and what of the address that read.
 * @typedef {{ scene: App, manifest: Manifest, dark: boolean, state: State, read: Set<string> }} Drawn */
/** @type {Drawn | null} */
let drawn = null;
let turn = 0;

/** @type {(before: Drawn, app: App) => boolean} */
const isSame = (before, { manifest, state }) => before.manifest === manifest && before.dark === isDark()
  && [...before.read].every((name) => before.state[name] === state[name]);

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {() => boolean} isWanted whether nothing else is to be shown by now
 */
export async function showBeside(root, app, isWanted) {
  root.hidden = false;
  const mine = ++turn;
  if (drawn && root.children.length && isSame(drawn, app)) return;
  const focused = root.contains(document.activeElement) ? document.activeElement?.id : "";
  const inside = document.createElement("div");
  /** @type {Set<string>} */
  const read = new Set();
  const own = completed(app, read);
  const now = { scene: own, manifest: app.manifest, dark: isDark(), state: app.state, read };
  try {
    await drawScene(inside, own, true);
  } catch {
    root.replaceChildren(); // a saved file may not hold its numbers
    root.hidden = true;
    return;
  }
  if (!isWanted() || mine !== turn) return;
  drawn = now;
  root.replaceChildren(...inside.children);
  shrink(root);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/**
 * The same page for the scene: what the address leaves open is filled in, and becomes a part of the address
 * when something is selected.
 * @param {App} app
 * @param {Set<string>} read is told what of the address the scene reads
 * @returns {App}
 */
function completed(app, read) {
  const filled = /** @type {State} */ ({});
  for (const [name, value] of Object.entries(completeState(app))) {
    if (name !== "view" && value !== null) filled[name] = String(value);
  }
  const { ...given } = filled;
  return Object.create(app, {
    current: { value: null, writable: true },
    state: { get: () => {
      const state = { ...filled, ...app.state };
      delete state.cell; // the panel has the sum
      return new Proxy(state, { get: (all, name) => {
        read.add(String(name));
        return all[String(name)];
      } });
    } },
    go: { value: /** @type {Go} */ ((changes, how) => {
      if (!how?.quiet) app.go({ ...given, ...changes }, how);
      else if (changes.token !== undefined) given.token = filled.token = String(changes.token);
    }) },
  });
}

/**
 * Where it is small, a click on a token selects it, and one anywhere else leads back to the scene.
 * @param {HTMLElement} root
 */
function shrink(root) {
  const stage = /** @type {HTMLElement} */ (root.querySelector(".stage"));
  const fit = () => { stage.inert = !WIDE.matches; };
  WIDE.onchange = fit;
  root.onclick = ({ target, clientX, clientY }) => {
    if (!stage.inert || target !== root) return;
    const token = /** @type {HTMLElement[]} */ ([...stage.querySelectorAll(".chip, .patch")]).find((one) => {
      const { left, right, top, bottom } = one.getBoundingClientRect();
      return clientX >= left && clientX <= right && clientY >= top && clientY <= bottom;
    });
    if (token) token.click();
    else drawn?.scene.go({ view: "look" });
  };
  fit();
}

/**
 * A key that the panel has no use for.
 * @type {(key: string) => boolean}
 */
export const sceneKey = (key) => drawn !== null && besideKey(key, drawn.scene);
