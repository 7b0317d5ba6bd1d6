/* The whole model in one picture: the tokens enter, flow through its blocks, and the answer leaves. */

import { imageCanvas, palette, penOf } from "./colour.js";
import { formatWeight, h, range, s } from "./dom.js";
import { nameToken, roleWords } from "./describe.js";
import { largestWeights } from "./scene_data.js";
import { chipWords, place, planScene, roomForHeads } from "./scene_layout.js";
import {
  answerPanel, changer, drawPicture, hiddenTokens, lightKeys, rail, slabs, tokenHandlers,
} from "./scene_parts.js";
import { canChange, readChanges } from "./selection.js";
import { rove } from "./strip.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_layout.js").Plan} Plan */
/** @typedef {import("./scene_layout.js").Rows} Rows */

const CHIP = 30; // pixels
const LEAST_WEIGHT = 0.03;
const MOST_RIBBONS = 700;

/**
 * Draw the model into a layer; returns what lights up a token.
 * @param {HTMLElement} root
 * @param {Scene} scene
 * @param {App} app
 * @param {number} width
 * @param {number} height
 */
export function drawModel(root, scene, app, width, height) {
  const plan = planScene(scene, width, height);
  const size = { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" };
  const streams = s("svg", { ...size, class: "streams" });
  const faint = s("g", { class: "ribbons" });
  const strong = s("g", { class: "ribbons strong" });
  const drawing = s("svg", size, faint, strong);
  if (canChange(app) && !scene.keys.grid) changeRibbons(app, scene, strong);
  const card = place(h("div", { class: "card-open", "data-zoom": "block" }), plan.card);
  root.append(card);
  if (plan.picture) root.append(drawPicture(app, plan));
  root.append(streams, drawing, cardHead(app, plan));
  root.append(captions(app, plan));
  const keyChips = scene.keys.grid ? null : chips(app, plan, "keys");
  const queryChips = chips(app, plan, "queries");
  if (keyChips) root.append(keyChips);
  const parts = slabs(app, plan);
  root.append(queryChips, ...parts);
  if (scene.answers) root.append(answerPanel(app, plan));
  if (plan.narrow) root.append(rail(app, plan));
  streams.append(...drawStreams(plan, scene.token));
  faint.append(...drawFaint(plan));
  /** @type {(query: number) => void} */
  const light = (query) => {
    strong.replaceChildren(...drawRibbons(plan, query));
    lightKeys(root, scene, query);
    for (const chip of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-query]"))) {
      chip.classList.toggle("pointed", Number(chip.dataset.query) === query);
    }
  };
  light(scene.token);
  if (!plan.narrow) requestAnimationFrame(() => paintSlabs(app, plan, parts));
  return light;
}

/**
 * After the picture itself: the numbers that flow, where it is not only a small picture of it.
 * @type {(app: App, plan: Plan, parts: HTMLElement[]) => Promise<void>}
 */
async function paintSlabs(app, plan, parts) {
  if (!parts[0]?.isConnected || parts[0].closest("[inert]")) return;
  await (await import("./scene_beads.js")).drawBeads(app, plan, parts);
}

/**
 * A click on a ribbon opens what can be changed about it.
 * @type {(app: App, scene: Scene, ribbons: SVGElement) => void}
 */
function changeRibbons(app, scene, ribbons) {
  ribbons.classList.add("can-change");
  const open = changer(app, scene, ({ target }) => (target instanceof SVGPathElement
    ? { query: Number(target.dataset.query), key: Number(target.dataset.of) } : null));
  ribbons.addEventListener("click", open);
  ribbons.addEventListener("contextmenu", open);
}

/** @type {(x0: number, y0: number, x1: number, y1: number, thick: number) => string} */
function ribbon(x0, y0, x1, y1, thick) {
  const [t, m] = [thick / 2, (x0 + x1) / 2];
  return `M${x0},${y0 - t} C${m},${y0 - t} ${m},${y1 - t} ${x1},${y1 - t} V${y1 + t} C${m},${y1 + t} ${m},${
    y0 + t} ${x0},${y0 + t} Z`;
}

/**
 * The selected token's ribbons, side by side where they arrive.
 * @type {(plan: Plan, query: number) => SVGElement[]}
 */
function drawRibbons({ scene, keyRows, queryRows }, query) {
  const end = queryRows.at(query);
  const weights = scene.weightsOf(query);
  if (!end || !weights) return [];
  const full = Math.max(14, Math.min(56, queryRows.step * 0.86));
  const parts = largestWeights(weights, 60).filter(([key, w]) => w >= 0.01 && keyRows.at(key))
    .sort((a, b) => /** @type {Place} */ (keyRows.at(a[0]))[1] - /** @type {Place} */ (keyRows.at(b[0]))[1]);
  let y = end[1] - (full * parts.reduce((sum, [, w]) => sum + w, 0)) / 2;
  return parts.map(([key, w]) => {
    const start = /** @type {[number, number]} */ (keyRows.at(key));
    const thick = Math.max(0.75, full * w);
    const to = y + thick / 2;
    y += full * w;
    const weight = w >= 0.05 && !scene.keys.grid ? s("text", {
      x: start[0] + 10, y: start[1] - thick / 2 - 4, class: "weight",
    }, formatWeight(w)) : null;
    return s("g", {}, s("path", {
      d: ribbon(start[0], start[1], end[0], to, thick), "fill-opacity": (0.3 + 0.55 * w).toFixed(3),
      "data-weight": String(w), "data-of": String(key), "data-query": String(query),
    }, s("title", {}, `${nameToken(scene.queries, query)} looks at ${nameToken(scene.keys, key)}: ${
      formatWeight(w)}`)), weight);
  });
}

/** @type {(plan: Plan) => SVGElement[]} */
function drawFaint({ scene, keyRows, queryRows }) {
  if (scene.queries.grid) return [];
  const all = queryRows.shown.flatMap((query) => {
    const [end, weights] = [queryRows.at(query), scene.weightsOf(query)];
    if (!end || !weights || query === scene.token) return [];
    return keyRows.shown.filter((key) => weights[key] >= LEAST_WEIGHT)
      .map((key) => ({ end, start: /** @type {Place} */ (keyRows.at(key)), w: weights[key] }));
  });
  return all.sort((a, b) => b.w - a.w).slice(0, MOST_RIBBONS).map(({ start, end, w }) =>
    s("path", {
      d: ribbon(start[0], start[1], end[0], end[1], Math.max(0.5, queryRows.step * 0.5 * w)),
      "fill-opacity": (0.04 + 0.12 * w).toFixed(3),
    }));
}

/**
 * The lines along which tokens flow; that of the selected one goes on to the answer.
 * @type {(plan: Plan, token: number) => SVGElement[]}
 */
function drawStreams(plan, token) {
  const { scene, keyRows, queryRows, keyX, keyWidth, left, queryX, queryWidth, answer, narrow } = plan;
  const lines = [...timeArrows(plan)];
  if (!scene.keys.grid) {
    for (const i of keyRows.shown) {
      const y = /** @type {Place} */ (keyRows.at(i))[1];
      lines.push(s("path", { d: `M${keyX + keyWidth},${y} H${left}`, class: "stream" }));
    }
  }
  if (narrow) return lines;
  const target = answer.y + answer.height / 2;
  for (const i of queryRows.shown) {
    const y = /** @type {Place} */ (queryRows.at(i))[1];
    const [from, to] = [queryX + queryWidth, answer.x - 18];
    if (i !== token) lines.push(s("path", { d: `M${from},${y} H${to}`, class: "stream" }));
    else {
      const d = `M${from},${y} H${to - 30} C${to},${y} ${to - 12},${target} ${answer.x},${target}`;
      lines.push(s("path", { d, class: "stream chosen" }), s("path", { d, class: "flow" }));
    }
  }
  return lines;
}

/**
 * A recurrent model passes a state from each token to the next.
 * @type {(plan: Plan) => SVGElement[]}
 */
function timeArrows({ scene, keyRows, queryRows, keyX, keyWidth, queryX, queryWidth }) {
  if (!scene.recurrent) return [];
  const columns = /** @type {[Rows, number, boolean][]} */ ([
    [keyRows, keyX + keyWidth / 2, !scene.keys.grid], [queryRows, queryX + queryWidth / 2, true]]);
  return columns.filter(([, , isText]) => isText).flatMap(([rows, x]) => rows.shown.slice(1).map((i, n) => {
    const [from, to] = [rows.at(rows.shown[n]), rows.at(i)].map((at) => /** @type {Place} */ (at)[1]);
    return s("path", { class: "time", d: `M${x},${from} V${to - 17} m-4,-5 l4,5 l4,-5` });
  }));
}

/** @type {(app: App, plan: Plan, which: "keys" | "queries") => HTMLElement} */
function chips(app, plan, which) {
  const { scene } = plan;
  const isQuery = which === "queries";
  const [side, rows] = isQuery ? [scene.queries, plan.queryRows] : [scene.keys, plan.keyRows];
  const [x, width] = isQuery ? [plan.queryX, plan.queryWidth] : [plan.keyX, plan.keyWidth];
  const height = Math.min(CHIP, rows.step - 3);
  const hidden = hiddenTokens(app, side);
  const group = h("div", {
    class: `chips ${which}`, role: "group",
    "aria-label": isQuery ? "Who looks" : "What is looked at",
  }, rows.shown.map((i) => place(h("button", {
    type: "button", class: hidden.includes(i) ? "chip gone" : "chip", id: `${which}-${i}`,
    title: nameToken(side, i),
    "aria-pressed": String(scene.queries.side === side.side && i === scene.token),
    ...(isQuery ? { "data-query": String(i) } : { "data-key": String(i) }),
    ...tokenHandlers(app, scene, side, i),
    onmouseenter: () => app.point(side.side, i),
    onmouseleave: () => app.point(side.side, null),
    onfocus: () => app.point(side.side, i),
    onblur: () => app.point(side.side, null),
  }, h("bdi", {}, chipWords(side, i))),
  { x, y: /** @type {Place} */ (rows.at(i))[1] - height / 2, width, height })));
  rove(group);
  group.append(...skippedMarks(rows, isQuery ? x + width + 3 : x - 11));
  return group;
}

/**
 * A mark between two tokens where others are left out.
 * @type {(rows: Rows, x: number) => HTMLElement[]}
 */
const skippedMarks = (rows, x) => rows.shown.slice(1).flatMap((i, n) => (i === rows.shown[n] + 1 ? []
  : [place(h("span", { class: "caption skipped", "aria-hidden": "true" }, "⋮"),
    { x, y: /** @type {Place} */ (rows.at(i))[1] - rows.step / 2 - 9 })]));

/** @type {(plan: Plan) => HTMLElement[]} */
function captionList({ scene, keyX, keyWidth, queryX, queryWidth, top, keyRows, queryRows, picture }) {
  const hidden = scene.keys.tokens.length - keyRows.shown.length;
  const same = scene.keys.side === scene.queries.side;
  const seen = "the more orange, the more it is looked at";
  const words = scene.keys.grid ? seen : same ? "tokens" : "it reads";
  const above = (/** @type {Rows} */ rows) => // the first chip
    (rows.shown.length ? /** @type {Place} */ (rows.at(rows.shown[0]))[1] - 38 : top - 24);
  const y = picture ? picture.y + picture.height + 4 : above(keyRows);
  const width = Math.max(keyWidth, 110);
  const some = hidden > 0 && !scene.keys.grid
    ? `${keyRows.shown.length} of ${scene.keys.tokens.length}${keyWidth < 100 ? "" : " tokens"}` : words;
  const list = [place(h("span", { class: "caption" }, some), { x: keyX, y, width })];
  const queryWords = scene.attention ? (same ? "who looks" : "it writes") : "it writes";
  const right = h("span", { class: "caption end" }, queryWords);
  if (queryRows.shown.length) {
    list.push(place(right, { x: queryX + queryWidth - 90, y: above(queryRows), width: 90 }));
  }
  return list;
}

/** How to read the picture. @type {(app: App, plan: Plan) => HTMLElement | null} */
function legend(app, { scene, narrow, left, queryX, end }) {
  const clicks = scene.keys.grid ? "" : " a ribbon, or on";
  if (narrow || queryX - left < 260) return null;
  const who = nameToken(scene.queries, scene.token);
  return place(h("p", { class: "legend" },
    scene.attention ? `The wider a ribbon, the more ${who} takes over from where it begins. ` : null,
    "The stripes on the lines are the first numbers of each token at that point: ",
    h("span", { class: "above-zero" }, "blue"), " above zero, ", h("span", { class: "below-zero" }, "orange"),
    " below.", scene.attention && canChange(app)
      ? ` A click on${clicks} the selected token or head changes it.` : null),
  { x: left + 8, y: end + 26, width: Math.min(560, queryX - left - 24) });
}

/** @type {(app: App, plan: Plan) => HTMLElement} */
const captions = (app, plan) => h("div", {}, captionList(plan), legend(app, plan));

/** @type {(app: App, plan: Plan) => HTMLElement} */
function cardHead(app, { scene, card }) {
  const item = scene.items[scene.open];
  const title = item.layer === null ? item.title : `Block ${item.layer}`;
  const kind = item.boxes.find(({ name }) => scene.attention && name.startsWith(`${scene.attention.name}.`));
  const left = roomForHeads(scene, card.width);
  const name = kind && item.layer !== null && card.width > 460 ? ` ${kind.title.toLowerCase()}` : "";
  const words = left - 7 * name.length >= 0 ? name : "";
  const open = h("button", {
    type: "button", id: "open-block", class: "open-block",
    onclick: () => app.go({ depth: "block" }),
  }, h("b", {}, title), words, h("span", { "aria-hidden": "true" }, " ⤢"));
  const openHead = scene.attention ? h("button", {
    type: "button", id: "open-head", class: "open-head", onclick: () => app.go({ depth: "head" }),
  }, scene.attention.heads > 1 ? `Open head ${scene.head}` : "Open the attention",
  h("span", { "aria-hidden": "true" }, " ⤢")) : null;
  const heads = headButtons(app, scene, left < 0 ? 0 : card.width - 350 - 7 * words.length);
  const head = h("div", { class: "card-head" }, h("span", { class: "stepper" }, layerButton(app, scene, -1),
    open, layerButton(app, scene, 1)), left < 0 ? [openHead, heads] : [heads, openHead]);
  return place(head, { x: card.x + 12, y: card.y + 8, width: card.width - 24 });
}

/** @type {(app: App, scene: Scene, by: number) => HTMLElement | null} */
function layerButton(app, { layers, layer }, by) {
  if (layers.length < 2) return null;
  const to = layers.find((one) => one.layer === layer + by);
  return h("button", {
    type: "button", id: by < 0 ? "layer-back" : "layer-on", disabled: !to,
    "aria-label": by < 0 ? "Previous block" : "Next block",
    onclick: () => to && app.go({ layer: to.layer, cell: null }, { replace: true }),
  }, by < 0 ? "‹" : "›");
}

/**
 * All heads of the layer as small images to choose from, in so many pixels.
 * @type {(app: App, scene: Scene, room: number) => HTMLElement | null}
 */
export function headButtons(app, scene, room) {
  const { attention, images } = scene;
  if (!attention || !images || attention.heads < 2) return null;
  const size = Math.max(16, Math.min(38, Math.floor(room / attention.heads) - 10));
  const group = h("div", { class: "heads", role: "group", "aria-label": "Heads" },
    range(attention.heads).map((i) => headButton(app, scene, i, paintHead(images, i, size))));
  rove(group);
  return group;
}

/**
 * Selects a head; of the selected one, opens what can be changed about it.
 * @type {(app: App, scene: Scene, i: number, image: HTMLElement) => HTMLElement}
 */
function headButton(app, scene, i, image) {
  const name = roleWords(scene.attention?.roles?.[i])?.[0];
  const isSilenced = readChanges(app.state).some(({ kind, part, head }) =>
    kind === "silence" && part === scene.attention?.name && head === i);
  const words = `${name ? `, ${name}` : ""}${isSilenced ? ", silenced" : ""}`;
  const change = changer(app, scene, () => ({ head: i }));
  const canOpen = canChange(app);
  const isSelected = i === scene.head && app.state.view === "look";
  return h("button", {
    type: "button", id: `head-${i}`, class: isSilenced ? "gone" : null, title: `head ${i}${words}`,
    "aria-label": `head ${i}${words}`, "aria-pressed": String(i === scene.head),
    onclick: (/** @type {Event} */ event) => (isSelected && canOpen ? change(event)
      : app.go({ head: i, cell: null }, { replace: true })),
    ...(canOpen ? { oncontextmenu: change } : {}),
  }, image);
}

/** @type {(images: Tensor, head: number, size: number) => HTMLCanvasElement} */
function paintHead({ shape: [, T, S], data }, head, size) {
  const image = new ImageData(S, T);
  const [pixels, colours] = [new Uint32Array(image.data.buffer), palette(false)];
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[data[head * T * S + i]];
  const canvas = h("canvas", { width: 2 * size, height: 2 * size, "aria-hidden": "true" });
  place(canvas, { width: size, height: size });
  const pen = penOf(canvas);
  pen.imageSmoothingEnabled = T > 2 * size;
  pen.drawImage(imageCanvas(image), 0, 0, 2 * size, 2 * size);
  return canvas;
}
