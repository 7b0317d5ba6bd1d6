/* The scene beside a panel: smaller, with the same token and head selected, and one can go on selecting. */

import { completeState } from "./scene_data.js";
import { besideKey, drawScene } from "./scene.js";

// In narrower windows it is a small picture above the panel, which leads back to it.
const WIDE = matchMedia("(min-width: 1400px) and (min-height: 560px)");
// What of the address the scene shows.
const SHOWN = ["part", "layer", "head", "token", "depth", "of", "sink", "merge", "root", "also", "blend",
  "scale"];

let drawn = "";
/** @type {App | null} */
let scene = null;

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {string} traced what the model ran on
 * @param {() => boolean} isWanted whether nothing else is to be shown by now
 */
export async function showBeside(root, app, traced, isWanted) {
  const key = JSON.stringify([traced, SHOWN.map((name) => app.state[name])]);
  root.hidden = false;
  if (drawn === key && root.children.length) return;
  const focused = root.contains(document.activeElement) ? document.activeElement?.id : "";
  const inside = document.createElement("div");
  const own = completed(app);
  try {
    await drawScene(inside, own, true);
  } catch {
    root.replaceChildren(); // a saved file may not hold its numbers
    root.hidden = true;
    return;
  }
  if (!isWanted()) return;
  [drawn, scene] = [key, own];
  root.replaceChildren(...inside.children);
  shrink(root);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/**
 * The same page for the scene: what the address leaves open is filled in, and becomes a part of the address
 * when something is selected.
 * @param {App} app
 * @returns {App}
 */
function completed(app) {
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
      return state;
    } },
    go: { value: /** @type {Go} */ ((changes, how) => {
      if (!how?.quiet) app.go({ ...given, ...changes }, how);
      else if (changes.token !== undefined) given.token = filled.token = String(changes.token);
    }) },
  });
}

/**
 * Where it is small, a click anywhere on it leads back to it.
 * @param {HTMLElement} root
 */
function shrink(root) {
  const stage = /** @type {HTMLElement} */ (root.querySelector(".stage"));
  const fit = () => { stage.inert = !WIDE.matches; };
  WIDE.onchange = fit;
  root.onclick = ({ target }) => {
    if (stage.inert && target === root) scene?.go({ view: "look" });
  };
  fit();
}

/**
 * A key that the panel has no use for.
 * @type {(key: string) => boolean}
 */
export const sceneKey = (key) => scene !== null && besideKey(key, scene);
