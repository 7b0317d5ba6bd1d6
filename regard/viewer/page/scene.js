/* One scene: from the whole model to a single number, in continuous motion. */

import { dropDown, h, tableTwin } from "./dom.js";
import {
  describeAnswer, describeChoice, describeLook, describeRole, headName, nameToken,
} from "./describe.js";
import { evidence } from "./evidence.js";
import { completeState, readScene } from "./scene_data.js";
import { drawModel } from "./scene_model.js";
import { changer } from "./scene_parts.js";
import { canChange } from "./selection.js";
import { lightStrip } from "./strip.js";

/** @typedef {import("./scene_data.js").Scene} Scene */

/**
 * One depth of the scene.
 * @typedef {object} Depth
 * @property {(layer: HTMLElement, width: number, height: number) => ((query: number) => void) | void} draw
 * @property {(query: number) => Child[]} sentence
 * @property {Partial<Output>} [output]
 * @property {HTMLElement} [menu] of what can be chosen here
 * @property {Scene} [shown] with the weights that are shown, if they are not the head's
 */

const DEPTHS = ["model", "block", "head", "product", "number"];
const SECONDS = 0.52; // of a zoom
const ENTRANCE = 2.2; // seconds, which page.css divides among the parts of the picture

/** @type {{ depth: string, layer: HTMLElement } | null} what was drawn last */
let drawn = null;

/**
 * The depth that the address names.
 * @param {App} app
 */
const depthOf = ({ state }) =>
  (state.cell ? "number" : DEPTHS.find((name) => name === state.depth) ?? "model");

/**
 * The address one depth farther out, or in.
 * @param {App} app
 * @param {number} by
 */
function moveDepth(app, by) {
  const to = DEPTHS[DEPTHS.indexOf(depthOf(app)) + by];
  if (!to || (by > 0 && !lastScene?.attention && to !== "block") || to === "number") return;
  const scores = app.manifest.sums[`${lastScene?.attention?.name}.scores`];
  if (by > 0 && to === "product" && scores?.does !== "dot") return;
  app.go({ depth: to === "model" ? null : to, cell: null });
}

/** @type {{ light: (query: number | null) => void } | null} */
let current = null;

/** @type {View} */
export const look = {
  key(key, app) {
    const steps = /** @type {Record<string, () => void>} */ ({
      Escape: () => moveDepth(app, -1), "-": () => moveDepth(app, -1), "+": () => moveDepth(app, 1),
      n: () => moveHead(app, 1), p: () => moveHead(app, -1),
      j: () => moveLayer(app, 1), k: () => moveLayer(app, -1),
    });
    if (!steps[key]) return false;
    steps[key]();
    return true;
  },

  async show(root, app) {
    app.go(completeState(app), { quiet: true });
    return drawScene(root, app, false);
  },
};

/**
 * A token of a side is pointed at; null: no longer.
 * @type {(side: string, i: number | null) => void}
 */
export const pointAt = (side, i) =>
  current?.light(i !== null && side === lastScene?.queries.side ? i : null);

/**
 * The keys of the scene beside a panel, which Escape closes.
 * @type {(key: string, app: App) => boolean}
 */
export const besideKey = (key, app) => key !== "Escape" && Boolean(look.key?.(key, app));

/**
 * Draw the depth that the address names; beside a panel, without what only the scene alone has. Returns what
 * can be taken away once it is on the page.
 * @type {(root: HTMLElement, app: App, beside: boolean) => Promise<App["current"]>}
 */
export async function drawScene(root, app, beside) {
  const focused = document.activeElement?.closest(".stage") ? document.activeElement.id : "";
  const scene = await readScene(app);
  app.go({ token: scene.token }, { quiet: true });
  const name = depthOf(app);
  const depth = await readDepth(app, scene, name);
  lastScene = scene;
  const above = (/** @type {Child[]} */ ...more) =>
    h("div", { class: "above" }, crumbs(app, scene, name), h("span", { class: "row" }, depth.menu, more));
  const picture = drawStage(scene, depth, name, focused, (by) => moveDepth(app, by));
  if (beside) {
    const onclick = () => app.go({ view: "look" });
    root.append(above(h("button", { type: "button", id: "whole", onclick }, "Whole scene")), ...picture);
    return null;
  }
  const csv = () => weightTable(depth.shown ?? scene);
  const output = { name: `scene-${name}`, csv, layer: drawn?.layer, ...depth.output };
  const table = scene.attention ? tableTwin(`${headName(scene)}: who looks at whom`, csv)
    : tableTwin("The parts of this model", () => partTable(scene));
  root.append(h("h2", { class: "unseen" }, `Look: ${headName(scene)}`),
    above(changeButton(app, scene), questionMenu(app, scene), tourButton(app)), ...picture,
    h("div", { class: "below" }, evidence(app, scene, name === "head"), table));
  return output;
}

/** Once the picture is there. @type {(stage: HTMLElement, layer: HTMLElement, move: (by: number) => void) =>
 *   Promise<void>} */
const followGestures = async (...parts) => (await import("./scene_gestures.js")).zoomByGestures(...parts);

/**
 * The picture, which is drawn when its size is known, and the sentence above it.
 * @type {(scene: Scene, depth: Depth, name: string, focused: string,
 *   move: (by: number) => void) => HTMLElement[]}
 */
function drawStage(scene, depth, name, focused, move) {
  const layer = h("div", { class: `layer ${name}` });
  const stage = h("div", { class: "stage" }, layer);
  followGestures(stage, layer, move);
  const sentence = h("p", { class: "sentence", id: "sentence", "aria-live": "polite" });
  const before = drawn;
  drawn = { depth: name, layer };
  let [width, height] = [0, 0];
  /** @type {((query: number) => void) | void} */
  let light;
  const say = (/** @type {number} */ query) => {
    const { height: tall } = sentence.getBoundingClientRect();
    sentence.style.minHeight = `${tall}px`; // a shorter one does not move what is pointed at
    sentence.replaceChildren(...depth.sentence(query).filter((child) => child !== null).map((child) =>
      (child instanceof Node ? child : String(child))));
    lightStrip(scene.keys.side, scene.weightsOf(query));
  };
  new ResizeObserver(() => { // once it is left, the picture stays as it is: it moves away in a zoom
    if (!stage.isConnected || (stage.clientWidth === width && stage.clientHeight === height)) return;
    const isFirst = width === 0;
    if (width !== stage.clientWidth) sentence.style.minHeight = "";
    [width, height] = [stage.clientWidth, stage.clientHeight];
    const active = isFirst ? focused : layer.querySelector(":focus")?.id;
    layer.replaceChildren();
    light = depth.draw(layer, width, height);
    say(scene.token);
    if (isFirst && !before) enter(layer);
    if (isFirst) zoom(stage, layer, before, name);
    if (active) document.getElementById(active)?.focus({ preventScroll: true });
  }).observe(stage);
  current = {
    light: (query) => {
      light?.(query ?? scene.token);
      say(query ?? scene.token);
    },
  };
  say(scene.token);
  return [sentence, stage];
}

const PAPER = 1020; // pixels of a page across, without its margins

/** A handout has the picture as it is on the screen, as wide as the paper. */
addEventListener("beforeprint", () => {
  const stage = /** @type {HTMLElement | null} */ (document.querySelector(".stage"));
  if (!stage) return;
  stage.style.setProperty("--wide", `${stage.clientWidth}px`);
  stage.style.setProperty("--tall", `${stage.clientHeight}px`);
  stage.style.setProperty("--paper", String(PAPER / stage.clientWidth));
});

/** @type {Scene | null} */
let lastScene = null;

/** @type {(app: App, scene: Scene, name: string) => Promise<Depth>} */
async function readDepth(app, scene, name) {
  if (name === "block") return (await import("./scene_block.js")).blockDepth(app, scene);
  if (name === "number") return (await import("./scene_number.js")).numberDepth(app, scene);
  if (name === "head" && scene.attention) return (await import("./scene_head.js")).headDepth(app, scene);
  if (name === "product" && scene.attention) {
    return (await import("./scene_product.js")).productDepth(app, scene);
  }
  return {
    draw: (layer, width, height) => drawModel(layer, scene, app, width, height),
    sentence: (query) => [...describeLook(scene, query), " ",
      query === scene.token ? describeAnswer(scene) : null, " ", h("span", { class: "pale" },
        [describeRole(scene), describeChoice(scene, app.manifest)].filter(Boolean).join(" "))],
  };
}

/** @type {(app: App, by: number) => void} */
function moveHead(app, by) {
  const to = (lastScene?.head ?? 0) + by;
  if (to >= 0 && to < (lastScene?.attention?.heads ?? 0)) app.go({ head: to, cell: null }, { replace: true });
}

/** @type {(app: App, by: number) => void} */
function moveLayer(app, by) {
  const to = (lastScene?.layer ?? 0) + by;
  const exists = lastScene?.layers.some(({ layer }) => layer === to);
  if (exists) app.go({ layer: to, cell: null }, { replace: true });
}

/**
 * The way from the whole model to where one is.
 * @type {(app: App, scene: Scene, name: string) => HTMLElement}
 */
function crumbs(app, scene, name) {
  const { items, open, attention } = scene;
  /** @type {Record<string, string>} */
  const titles = {
    model: app.manifest.model.class,
    block: items[open].layer === null ? items[open].title : `Block ${items[open].layer}`,
    head: (attention?.heads ?? 1) > 1 ? `Head ${scene.head}` : "Scores and weights",
    product: app.state.product === "heads" ? "Weights × V" : "Q · Kᵀ", number: "One number",
  };
  const isProduct = app.state.product === "heads"
    || app.manifest.sums[`${attention?.name}.scores`]?.does === "dot"; // and not of another kind of scores
  const way = DEPTHS.slice(0, DEPTHS.indexOf(name) + 1)
    .filter((one) => (attention || one !== "head") && (isProduct || one !== "product"));
  return h("nav", { class: "crumbs", "aria-label": "Depth" }, h("ol", {}, way.map((one) => h("li", {},
    one === name ? h("span", { "aria-current": "step" }, titles[one])
      : h("button", {
        type: "button", id: `depth-${one}`,
        onclick: () => app.go({ depth: one === "model" ? null : one, cell: null }),
      }, titles[one])))));
}

/** @param {App} app */
function tourButton({ state, go }) {
  const onclick = () => go({ tours: state.tours ? null : "1" }, { replace: true });
  return state.tour ? null : h("button", { type: "button", id: "tours", onclick }, "Guided tours");
}

/** What can be changed about what is selected. @type {(app: App, scene: Scene) => HTMLElement | null} */
const changeButton = (app, scene) => (canChange(app) ? h("button", {
  type: "button", id: "change", "aria-haspopup": "dialog", onclick: changer(app, scene),
}, "Change") : null);

/** Questions about what is shown. @type {(app: App, scene: Scene) => HTMLElement} */
const questionMenu = (app, scene) => dropDown("questions", "Questions", async () => {
  const { listQuestions } = await import("./questions.js");
  return h("div", { role: "group", "aria-label": "Questions" }, listQuestions(app, scene));
});

/** @type {(scene: Scene) => TableData} */
function weightTable({ keys, queries, weightsOf, token }) {
  const near = (/** @type {number} */ n) => {
    const from = Math.max(0, Math.min(token - 32, n - 64));
    return Array.from({ length: Math.min(64, n) }, (_, i) => from + i);
  };
  const columns = near(keys.tokens.length);
  return {
    head: ["who looks ↓ at whom →", ...columns.map((i) => nameToken(keys, i))],
    rows: near(queries.tokens.length).map((q) => {
      const weights = weightsOf(q);
      return [nameToken(queries, q), ...columns.map((i) => (weights ? weights[i].toFixed(4) : ""))];
    }),
  };
}

/** @type {(scene: Scene) => TableData} */
const partTable = ({ items }) => ({
  head: ["part", "shape of its output"],
  rows: items.flatMap(({ boxes }) => boxes.map(({ title, shape }) => [title, shape.join(" × ")])),
});

/** The first picture of a page: what is read comes in, flows through the model, and the answer leaves.
 * @param {HTMLElement} layer */
function enter(layer) {
  layer.classList.add("enter");
  setTimeout(() => layer.classList.remove("enter"), 1000 * ENTRANCE);
}

/**
 * Move from one depth to another: the part that is opened grows until it fills the stage, or shrinks back.
 * @type {(stage: HTMLElement, layer: HTMLElement, before: typeof drawn, name: string) => void}
 */
function zoom(stage, layer, before, name) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!before || before.depth === name || still || !before.layer.children.length) return;
  const inward = DEPTHS.indexOf(name) > DEPTHS.indexOf(before.depth);
  const ghost = before.layer;
  ghost.inert = true;
  ghost.setAttribute("aria-hidden", "true");
  for (const element of ghost.querySelectorAll("[id]")) element.removeAttribute("id");
  stage.append(ghost);
  const frame = stage.getBoundingClientRect();
  const box = (inward ? ghost : layer).querySelector("[data-zoom]")?.getBoundingClientRect() ?? frame;
  const scale = Math.max(0.08, Math.min(0.9, Math.min(box.width / frame.width, box.height / frame.height)));
  const times = frame.width / stage.clientWidth; // larger than its pixels, on a projector
  const [cx, cy] = [box.x + box.width / 2 - frame.x, box.y + box.height / 2 - frame.y].map((x) => x / times);
  const [w, h2] = [frame.width / 2 / times, frame.height / 2 / times];
  const small = `translate(${cx - w * scale}px, ${cy - h2 * scale}px) scale(${scale})`;
  const large = `translate(${w - cx / scale}px, ${h2 - cy / scale}px) scale(${1 / scale})`;
  const [inner, outer] = inward ? [layer, ghost] : [ghost, layer];
  const rest = (/** @type {HTMLElement} */ one) => ({ transform: one.style.transform || "none", opacity: 1 });
  const inside = [{ transform: small, opacity: 0 }, { opacity: 1, offset: 0.7 }, rest(inner)];
  const outside = [rest(outer), { opacity: 0.3, offset: 0.6 }, { transform: large, opacity: 0 }];
  const how = /** @type {KeyframeAnimationOptions} */ ({
    duration: 1000 * SECONDS, easing: "cubic-bezier(.35,0,.15,1)", fill: "both",
    direction: inward ? "normal" : "reverse",
  });
  stage.classList.add("zooming"); // both are painted once, and only moved then
  outer.animate(outside, how);
  inner.animate(inside, how).finished.then((animation) => {
    ghost.remove();
    animation.cancel();
    for (const other of layer.getAnimations()) other.cancel();
  }, () => ghost.remove()).then(() => stage.classList.remove("zooming"));
}
