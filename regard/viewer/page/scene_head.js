/* One head: queries, keys and values, their scores, the softmax, and what comes out. */

import {
  colourOptions, describeChoice, displayControls, isPlain, placeOf, readChoice, readDisplay,
} from "./display.js";
import { dropDown, formatWeight, h, s } from "./dom.js";
import { describeLook, describeRole } from "./describe.js";
import { largestWeights, tensorOrNull } from "./scene_data.js";
import { place } from "./scene_layout.js";
import { drawPicture, lightKeys } from "./scene_parts.js";
import { asMatrix, drawMatrix, labelWidth, matrixShape } from "./scene_paint.js";
import { maskReasons } from "./selection.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_layout.js").Box} Box */
/** @typedef {import("./display.js").Choice} Choice */

const SIDE = 512; // numbers each way
const NARROW = 720; // pixels, below which matrices stand below each other
/** @typedef {import("./scene_paint.js").Matrix} Matrix */

const NAMES = ["q", "k", "v", "scores", "weights", "heads"];

/** @type {(app: App, scene: Scene) => Promise<import("./scene.js").Depth>} */
export async function headDepth(app, scene) {
  const attention = /** @type {AttentionInfo} */ (scene.attention);
  const [tensors, why] = await Promise.all([Promise.all(NAMES.map(async (kind) => {
    const name = `${attention.name}.${kind}`;
    const { shape } = app.manifest.tensors[name] ?? { shape: [1] };
    const head = Math.floor((scene.head * shape[0]) / attention.heads); // keys may be shared by several heads
    const tensor = await tensorOrNull(app, name, { head, most: SIDE });
    return tensor && { tensor: asMatrix(tensor), full: matrixShape(shape) };
  })), maskReasons(app, attention, SIDE)]);
  const choice = readChoice(app, attention, scene.head);
  const asItIs = isPlain(choice) && choice.scale === "head";
  const display = asItIs ? null : await readDisplay(app, attention, choice);
  const { matrix, shown } = display ? arrange(app, scene, choice, display) : { matrix: {}, shown: scene };
  const remark = display ? `${describeChoice(choice, display)}. ` : "";
  const best = largestWeights(scene.weightsOf(scene.token), 1)[0];
  const fit = best ? `Its query fits that key best, so ${formatWeight(best[1])} of what comes out is that `
    + "token's value. " : "";
  return {
    draw: (root, width, height) =>
      draw(root, app, scene, [tensors, why?.blank ?? null, matrix], width, height),
    sentence: (query) => [...describeLook(scene, query), " ", h("span", { class: "pale" },
      query === scene.token ? fit : "", remark, describeRole(scene))],
    output: isPlain(choice) ? { tensor: [`${attention.name}.weights`, scene.head] } : {},
    menu: displayMenu(app, attention, scene.head, choice),
    shown,
  };
}

let isMenuOpen = false; // of the last one: a choice in it draws the scene anew

/** @type {(app: App, attention: AttentionInfo, head: number, choice: Choice) => HTMLElement} */
function displayMenu(app, attention, head, choice) {
  const controls = displayControls(app, attention, head, choice);
  const menu = dropDown("shown", "Display", h("div", {}, controls));
  menu.open = isMenuOpen;
  menu.addEventListener("toggle", () => { isMenuOpen = menu.open; });
  return menu;
}

/**
 * The matrix of the weights as it is to be shown, and a scene with these numbers.
 * @type {(app: App, scene: Scene, choice: Choice, display: import("./display.js").Display) =>
 *   { matrix: Partial<Matrix>, shown: Scene }}
 */
function arrange(app, scene, choice, display) {
  const { shape: [T, S], data, rows, columns, why } = display;
  const { image, shades, limits } = colourOptions(choice, display);
  const exact = T === rows.length && S === columns.length;
  const token = placeOf(app, choice, scene.queries.side, scene.token);
  const weightsOf = exact ? (/** @type {number} */ query) =>
    (query < T ? data.subarray(query * S, (query + 1) * S) : null) : scene.weightsOf;
  const keys = { ...scene.keys, tokens: columns };
  const queries = { ...scene.queries, tokens: rows };
  const { heads, mean } = choice;
  const note = heads.length > 1 ? `heads ${heads.join(", ")}${mean ? ": their mean" : ""}` : undefined;
  return {
    matrix: {
      tensor: { shape: [T, S], data: shades ?? data }, full: [rows.length, columns.length],
      limits: shades ? [0, 1] : limits, image,
      blank: why?.blank ?? null, ...(note ? { note } : {}),
      rows: queries.grid ? undefined : rows, columns: keys.grid ? undefined : columns,
      row: token, column: largestWeights(weightsOf(token), 1)[0]?.[0] ?? null,
    },
    shown: { ...scene, keys, queries, token, weightsOf },
  };
}

/** @typedef {{ tensor: Tensor, full: number[] }} Part */
/** @typedef {[parts: (Part | null)[], blank: Numbers | null, weights: Partial<Matrix>]} Numerals */

/** @type {(root: HTMLElement, app: App, scene: Scene, numbers: Numerals, width: number, height: number) =>
 *   ((query: number) => void)} */
function draw(root, app, scene, [[q, k, v, scores, weights, out], blank, changed], width, height) {
  const { keys, queries, token } = scene;
  const best = largestWeights(scene.weightsOf(token), 1)[0]?.[0] ?? null;
  const narrow = width < NARROW;
  const places = narrow ? stack(width, height, scene) : spread(width, height, scene);
  const rowsOf = { rows: queries.grid || narrow ? undefined : queries.tokens, row: token };
  const keyRows = { rows: keys.grid || narrow ? undefined : keys.tokens, row: best };
  const square = {
    row: token, column: best, blank, numbers: true,
    rows: queries.grid || !places.named ? undefined : queries.tokens,
    columns: keys.grid ? undefined : keys.tokens,
  };
  const isProduct = app.manifest.sums[`${scene.attention?.name}.scores`]?.does === "dot";
  /** @type {[string, import("./scene_paint.js").Matrix | null][]} */
  const all = [
    ["q", q && { title: narrow ? "Q" : "Q: what each asks for", ...q, ...rowsOf }],
    ["k", k && { title: narrow ? "K" : "K: what each offers", ...k, ...keyRows }],
    ["v", v && { title: narrow ? "V" : "V: what each hands on", ...v, ...keyRows }],
    ["scores", scores && {
      title: isProduct ? "Q · Kᵀ" : "scores", note: "who fits whom", ...scores, ...square,
    }],
    ["weights", weights && {
      title: "softmax", note: "who looks (row) at whom (column)", ...weights, signed: false,
      ...square, ...(changed.image ? { numbers: false } : {}), ...changed,
      ...(places.named ? {} : { rows: undefined }),
    }],
    ["heads", out && { title: "× V: what comes out", ...out, row: token }],
  ];
  root.append(s("svg", { width, height: places.height, "aria-hidden": "true" }, ...places.arrows.map((d) =>
    s("path", { class: "arrow", d }))));
  for (const [name, matrix] of all) {
    const box = places.boxes[name];
    if (!matrix) continue;
    root.append(...drawMatrix(matrix, box));
    root.append(place(openButton(app, scene, name), box));
  }
  const { picture } = places.boxes;
  if (!picture) return () => {};
  root.append(drawPicture(app, { scene, picture }));
  const light = (/** @type {number} */ query) => lightKeys(root, scene, query);
  light(token);
  return light;
}

/** @type {(app: App, scene: Scene, name: string) => HTMLElement} */
function openButton(app, { attention }, name) {
  const full = `${attention?.name}.${name}`;
  const product = name === "scores" ? "scores" : name === "heads" ? "heads" : null;
  const does = app.manifest.sums[full]?.does;
  const opens = product && (does === "dot" || does === "average");
  const words = opens ? "row times column" : "step by step";
  return h("button", {
    type: "button", class: "cover", id: `open-${name}`, "data-zoom": name === "scores" ? "product" : null,
    "aria-label": `${app.manifest.texts[full]?.title ?? name}: open, ${words}`, title: `Open: ${words}`,
    onclick: () => app.go(opens ? { depth: "product", product: name === "heads" ? "heads" : null, at: null }
      : { view: "walk", step: full, cell: null, at: null }),
  });
}

/** Whether the rows of scores and weights have names, and where all is.
 * @typedef {{ boxes: Record<string, Box>, arrows: string[], height: number, named: boolean }} Places */

/** @type {(...sides: import("./scene_data.js").SceneSide[]) => number} pixels of tokens beside a matrix */
const sideWidth = (...sides) => labelWidth(sides.flatMap(({ grid, tokens }) => (grid ? [] : tokens)));

/** @type {(side: import("./scene_data.js").SceneSide, height: number) => number} 0 without room for all */
const besides = (side, height) => (13 * side.tokens.length > height ? 0 : sideWidth(side));

/**
 * Side by side: Q, K and V, then the scores, the softmax, and what comes out.
 * @type {(width: number, height: number, scene: Scene) => Places}
 */
function spread(width, height, { keys, queries }) {
  const third = (height - 110) / 3;
  const narrow = Math.min(230, width * 0.15);
  const first = 24 + Math.max(...[keys, queries].map((side) => besides(side, third - 12)));
  const low = keys.grid || 13 * keys.tokens.length > height - 60 ? 40 : labelWidth(keys.tokens) + 24;
  const sizeBeside = (/** @type {number} */ labels) =>
    Math.min((width - first - 2 * labels - 2 * narrow - 170) / 2, height - 60 - low);
  const words = besides(queries, sizeBeside(24 + sideWidth(queries)));
  const left = 24 + words;
  const square = sizeBeside(left);
  const used = first + narrow + 2 * (left + 40 + square) + 60 + narrow;
  const x0 = first + Math.max(0, (width - used - 20) / 2);
  const [x1, top] = [x0 + narrow + 50 + left, Math.max(44, (height - low - square) / 2)];
  const x2 = x1 + square + 40 + left;
  const x3 = x2 + square + 60;
  const small = (/** @type {number} */ n) =>
    ({ x: x0, y: 44 + n * (third + 30), width: narrow, height: third - 12 });
  const middle = top + square / 2;
  const last = Math.min(narrow, width - x3 - 16);
  const seen = keys.grid ? Math.max(0, Math.min(last, square - 130)) : 0; // the picture, below what comes out
  const tall = seen ? square - seen - 44 : square;
  const [fromX, under] = [x0 + narrow + 4, height - 8]; // the values pass below the names of columns
  const start = `M${fromX},${44 + 2.5 * third + 60} C${fromX + 30},${under} ${x1 - 30},${under} ${x1},${
    under} H`;
  return {
    height,
    named: words > 0,
    boxes: {
      ...(seen ? { picture: { x: x3, y: top + tall + 44, width: seen, height: seen } } : {}),
      q: small(0), k: small(1), v: small(2),
      scores: { x: x1, y: top, width: square, height: square },
      weights: { x: x2, y: top, width: square, height: square },
      heads: { x: x3, y: top, width: last, height: tall },
    },
    arrows: [
      `M${x0 + narrow + 4},${44 + third / 2} C${x1 - left},${44 + third / 2} ${x1 - left - 20},${middle} ${
        x1 - left},${middle}`,
      `M${x0 + narrow + 4},${44 + third * 1.5 + 30} C${x1 - left},${44 + third * 1.5 + 30} ${
        x1 - left - 20},${middle} ${x1 - left},${middle}`,
      `M${x1 + square + 8},${middle} H${x2 - left} m-6,-4 l6,4 l-6,4`,
      `M${x2 + square + 8},${top + tall / 2} H${x3 - 8} m-6,-4 l6,4 l-6,4`,
      seen ? `${start}${x3 - 40} Q${x3 - 24},${under} ${x3 - 24},${under - 16} V${
        top + tall - 8} m-4,8 l4,-8 l4,8`
        : `${start}${x3 - 20} Q${x3 + last / 2},${under} ${x3 + last / 2},${
          top + square + 8} m-4,8 l4,-8 l4,8`,
    ],
  };
}

/**
 * Below each other, on a phone.
 * @type {(width: number, height: number, scene: Scene) => Places}
 */
function stack(width, height, { keys, queries }) {
  const dense = 13 * queries.tokens.length > width - 24 - sideWidth(queries); // no room for labels
  const left = 14 + (dense ? 0 : sideWidth(keys, queries));
  const low = keys.grid ? 30 : labelWidth(keys.tokens);
  const third = (width - 20 - 24) / 3;
  const seen = keys.grid ? width - 2 * left : 0;
  const square = width - left - 14;
  const tall = Math.min(120, height / 4);
  const y1 = 44 + tall + 40;
  const y2 = y1 + square + low + 40;
  const y3 = y2 + square + low + 40;
  const small = (/** @type {number} */ n) =>
    ({ x: 10 + n * (third + 12), y: 44, width: third, height: tall });
  return {
    height: y3 + tall + 20 + (seen ? seen + 54 : 0),
    named: !dense,
    arrows: [],
    boxes: {
      ...(seen ? { picture: { x: left, y: y3 + tall + 54, width: seen, height: seen } } : {}),
      q: small(0), k: small(1), v: small(2),
      scores: { x: left, y: y1, width: square, height: square },
      weights: { x: left, y: y2, width: square, height: square },
      heads: { x: left, y: y3, width: square, height: tall },
    },
  };
}

