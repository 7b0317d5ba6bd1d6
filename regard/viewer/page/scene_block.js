/* One block of the model: norm, attention, +, feed-forward, each with its live numbers and shape. */

import { h, last, range, s } from "./dom.js";
import { describeRole, roleWords, shapeWords } from "./describe.js";
import { tensorOrNull } from "./scene_data.js";
import { place } from "./scene_layout.js";
import { headButtons } from "./scene_model.js";
import { asMatrix, paint } from "./scene_paint.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_layout.js").Box} Box */
/** @typedef {{ name: string, title: string, tensor: Tensor | null, shape: number[], words: string,
 *   heads: boolean, plus: boolean }} Card */

const KINDS = ["norm", "weights", "out", "hidden", "down", "residual"]; // of a block, worth a box
const MOST = 14; // boxes of a block
const MOST_CELLS = 60; // of recurrent cells: their gates in all layers, both ways
const SIDE = 512; // numbers each way
const PICKER = 40; // pixels of the images of heads below a card
const BELOW = 56; // pixels between two lines of boxes
const [LEAST, LEAST_ON_PHONES] = [94, 130]; // pixels of a box
/** @type {Record<string, string>} */
const SHORT = { norm: "Norm", out: "Heads joined", hidden: "Feed-forward", down: "Back to the width" };

/** @param {string} name */
const partOf = (name) => name.slice(0, name.lastIndexOf("."));

/**
 * The tensors that are shown as boxes, in the order of computation.
 * @param {Manifest} manifest
 * @param {Scene} scene
 */
function listNames({ tensors }, { items, open, recurrent, attention }) {
  const { boxes, title } = items[open];
  const parts = boxes.map(({ name }) => partOf(name));
  const all = Object.keys(tensors);
  const names = all.filter((name) => parts.includes(partOf(name)) && KINDS.includes(last(name.split("."))));
  const column = parts[0]?.split(".")[0];
  const isCell = (/** @type {string} */ name) =>
    /(^|\.)cells\.\d/.test(name) && !/previous|from_/.test(name);
  const cells = recurrent && (attention === null || title === "Attention")
    ? all.filter((name) => name.startsWith(`${column}.`) && isCell(name)) : [];
  return [...names.slice(0, MOST), ...cells.slice(0, MOST_CELLS)];
}

/**
 * The layer of a recurrent cell and its direction, where there are several.
 * @type {(name: string, all: string[]) => string}
 */
function cellWords(name, all) {
  const [, layer, way] = name.match(/(?:^|\.)cells\.(\d+)\.(forward|backward)?/) ?? [];
  const isDeep = all.some((one) => /(^|\.)cells\.1\./.test(one));
  return [isDeep && layer ? `layer ${layer}` : "", way ?? ""].filter(Boolean).join(", ");
}

/** @type {(app: App, scene: Scene) => Promise<import("./scene.js").Depth>} */
export async function blockDepth(app, scene) {
  const { manifest } = app;
  const names = listNames(manifest, scene);
  const cards = await Promise.all(names.map(async (name) => {
    const kind = last(name.split("."));
    const { shape } = manifest.tensors[name];
    const heads = kind === "weights";
    const tensor = await tensorOrNull(app, name, { most: SIDE, ...(heads ? { head: scene.head } : {}) });
    const { boxes } = scene.items[scene.open];
    const box = heads ? boxes.find((one) => partOf(one.name) === partOf(name)) : null;
    const title = box?.title ?? SHORT[kind] ?? manifest.texts[name].title;
    const words = [cellWords(name, names), shapeWords(shape)].filter(Boolean).join(": ");
    const plus = kind === "residual";
    return { name, title, tensor: tensor && asMatrix(tensor), shape, words, heads, plus };
  }));
  const { title, layer } = scene.items[scene.open];
  const where = layer === null ? title : `Block ${layer}`;
  return {
    draw: (root, width, height) => draw(root, app, scene, cards, width, height),
    sentence: () => [h("b", {}, `${where}: `), describeBlock(scene, cards), " ",
      h("span", { class: "pale" }, describeRole(scene))],
  };
}

/** @type {(scene: Scene, cards: Card[]) => string} */
function describeBlock(scene, cards) {
  const { attention, queries, recurrent } = scene;
  const hidden = cards.find(({ title }) => title === SHORT.hidden);
  if (recurrent && cards.some(({ name }) => name.includes("_gate"))) {
    const gates = "gates between 0 and 1 decide what stays of the old state and what comes in.";
    const what = scene.keys.grid ? "the picture" : "what was read";
    return attention ? `each step looks at ${what}; then ${gates}` : gates;
  }
  if (!attention) return `${cards.length} steps, each with its own numbers.`;
  const width = last(cards.find(({ plus }) => plus)?.shape ?? cards[0].shape);
  const named = attention.roles?.filter((role) => roleWords(role)).length ?? 0;
  const heads = attention.heads === 1 ? "one head lets" : `${attention.heads} heads let`;
  const whom = scene.keys.side === queries.side ? "look at each other" : "look at what was read";
  const names = named ? ` (${named} with a name)` : "";
  const parts = [`${heads} the ${queries.tokens.length} tokens ${whom}${names}`];
  if (hidden) parts.push(`then ${last(hidden.shape)} feed-forward numbers work on each token alone`);
  if (cards.some(({ plus }) => plus)) parts.push(`both are added to the token's ${width} numbers`);
  return `${parts.join("; ")}.`;
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {Scene} scene
 * @param {Card[]} cards
 * @param {number} width
 * @param {number} height
 */
function draw(root, app, scene, cards, width, height) {
  const narrow = width < 720;
  const gap = narrow ? 26 : 34;
  const margin = narrow ? 14 : 32;
  const columns = narrow ? 2 : countColumns(cards.length, width, height);
  const lines = Math.ceil(cards.length / columns);
  const cardWidth = (width - 2 * margin - (columns - 1) * gap) / columns;
  const at = cards.findIndex(({ name, heads }) => heads && partOf(name) === scene.attention?.name);
  const picker = at < 0 ? null : headButtons(app, scene, cardWidth - 20);
  const top = cards.some(({ plus }) => plus) ? 36 : 12; // for what goes around
  const pickerLine = picker ? Math.floor(at / columns) : lines; // below which the images of the heads stand
  const extra = picker ? PICKER + (pickerLine === lines - 1 ? 8 : 0) : 0;
  const least = narrow ? LEAST_ON_PHONES : LEAST;
  const lineHeight = Math.max(least + BELOW, (height - top - 12 + BELOW - extra) / lines);
  const end = top + lines * lineHeight + extra;
  const svg = s("svg", { width, height: Math.max(height, end), "aria-hidden": "true" });
  /** @type {Box[]} */
  const boxes = [];
  const buttons = cards.map((card, n) => {
    const line = Math.floor(n / columns);
    const box = {
      x: margin + (n % columns) * (cardWidth + gap),
      y: top + line * lineHeight + (line > pickerLine ? extra : 0),
      width: cardWidth, height: lineHeight - BELOW,
    };
    boxes.push(box);
    return place(cardButton(app, scene, card, box.height - 62), box);
  });
  svg.append(...arrows(boxes, columns), ...bypasses(cards, boxes, columns));
  root.append(svg, ...buttons);
  const { x, y, height: tall } = boxes[Math.max(0, at)];
  if (picker) root.append(place(picker, { x, y: y + tall + 6, width: cardWidth - 20 }));
}

/**
 * So many that cards of all lines together fill the stage and are about as wide as tall.
 * @type {(count: number, width: number, height: number) => number}
 */
function countColumns(count, width, height) {
  const shape = (/** @type {number} */ columns) => { // and no place is left empty
    const lines = Math.ceil(count / columns);
    return Math.abs(Math.log((width / columns) / (height / lines))) + 0.2 * (columns * lines - count);
  };
  const fits = range(count).map((n) => n + 1).filter((columns) => width / columns >= 190);
  return fits.reduce((best, columns) => (shape(columns) < shape(best) ? columns : best), 1);
}

/** @type {(app: App, scene: Scene, card: Card, room: number) => HTMLElement} */
function cardButton(app, scene, { name, title, tensor, words, heads, plus }, room) {
  const signed = !heads && !name.endsWith("_gate");
  const image = tensor ? place(paint({ tensor, signed }), { height: room }) : null;
  const isOpen = heads && partOf(name) === scene.attention?.name;
  const open = () => {
    if (!heads) return app.go({ view: "walk", step: name, cell: null, at: null });
    const [part] = Object.entries(app.manifest.attentions).find(([, layers]) =>
      layers.some((one) => one.name === partOf(name))) ?? [];
    return app.go({ depth: "head", part, token: isOpen ? app.state.token : null });
  };
  return h("button", {
    type: "button", class: `card-box${plus ? " plus" : ""}`, id: `card-${name}`, title: name,
    "data-zoom": isOpen ? "head" : null, onclick: open,
  }, h("b", {}, plus ? "+ what came in" : title), image, h("small", { class: "pale" }, words));
}

/** To the right, and at the end of a line to the next one, below the images of the heads.
 * @type {(boxes: Box[], columns: number) => SVGElement[]} */
const arrows = (boxes, columns) => boxes.slice(1).map((box, n) => {
  const from = boxes[n];
  const y = from.y + from.height / 2;
  if ((n + 1) % columns) {
    return s("path", { class: "arrow", d: `M${from.x + from.width},${y} H${box.x - 3} m-6,-4 l6,4 l-6,4` });
  }
  const down = box.y - 26;
  const [x0, x1] = [from.x + from.width - 10, box.x + box.width / 2];
  const d = `M${x0},${from.y + from.height} V${down} H${x1} V${box.y - 3} m-4,-6 l4,6 l4,-6`;
  return s("path", { class: "arrow", d });
});

/**
 * What goes around: a line from where a part begins to where it is added.
 * @type {(cards: Card[], boxes: Box[], columns: number) => SVGElement[]}
 */
function bypasses(cards, boxes, columns) {
  let start = 0;
  return cards.flatMap(({ plus }, n) => {
    if (!plus) return [];
    const [from, to] = [boxes[start], boxes[n]];
    const same = Math.floor(start / columns) === Math.floor(n / columns);
    const left = same ? from.x - 16 : to.x - 16;
    start = n + 1;
    if (!same && n % columns === 0) return [];
    const y = to.y - 20;
    return [s("path", { class: "arrow around", d: `M${left},${to.y + to.height / 2} V${y + 8} q0,-8 8,-8 H${
      to.x + to.width / 2 - 8} q8,0 8,8 V${to.y - 3} m-4,-6 l4,6 l4,-6` })];
  });
}
