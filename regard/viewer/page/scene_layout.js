/* Where everything stands in the picture of the whole model. */

import { penOf } from "./colour.js";
import { FONT_FAMILY, label, range } from "./dom.js";
import { largestWeights } from "./scene_data.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_data.js").SceneItem} SceneItem */
/** @typedef {import("./scene_data.js").SceneSide} SceneSide */

/** Pixels: `at` is the point of a token that ribbons begin and end at. */
/** @typedef {{ shown: number[], at: (i: number) => [x: number, y: number] | null, step: number }} Rows */
/** @typedef {{ x: number, y: number, width: number, height: number }} Box */
/** @typedef {SceneItem & { times: number }} Slab */

/** Pixels of a slab and between two. */
export const SLAB = 32;
export const GAP = 9;
const MARGIN = 20;
const [LEAST_ROW, MOST_ROW] = [22, 110];
const RIBBONS = 140; // pixels that they need
const [LEAST_PICTURE, LEAST_CARD] = [180, 300];
const LEAST_HEAD = 26; // pixels of the image of a head with its frame
const NARROW = 720; // pixels, below which the answer is under the tokens
const [TOP, WIDE_TOP] = [112, 96]; // of the first row, below two lines of buttons, or one
const FOOT = 150; // below the last row, for the titles of slabs

/**
 * @typedef {object} Plan
 * @property {Scene} scene
 * @property {number} width
 * @property {number} height
 * @property {boolean} narrow
 * @property {number} top
 * @property {number} bottom
 * @property {number} end of the last row
 * @property {Slab[]} before the open block
 * @property {Slab[]} after
 * @property {number} beforeX
 * @property {GraphBox[]} innerBefore what the open block does before its attention
 * @property {GraphBox[]} innerAfter
 * @property {Box} card the open block
 * @property {Box} answer
 * @property {Box | null} picture
 * @property {number} left where ribbons begin
 * @property {number} keyX
 * @property {number} keyWidth
 * @property {number} queryX
 * @property {number} queryWidth
 * @property {Rows} keyRows
 * @property {Rows} queryRows
 */

/** @type {<E extends HTMLElement>(element: E, box: Partial<Box>) => E} */
export function place(element, { x, y, width, height }) {
  for (const [name, value] of Object.entries({ left: x, top: y, width, height })) {
    if (value !== undefined) element.style.setProperty(name, `${value}px`);
  }
  return element;
}

/**
 * The tokens to show, if not all fit: the chosen one, those it looks at most, and its neighbours.
 * @param {number} count
 * @param {number} most
 * @param {number} chosen
 * @param {Numbers | null} weights
 */
function pickTokens(count, most, chosen, weights) {
  if (count <= most) return range(count);
  const middle = Math.min(chosen, count - 1); // it may be a token of the other side
  const picked = new Set([middle]);
  for (const [key] of largestWeights(weights, Math.floor(most * 0.7))) picked.add(key);
  for (let by = 1; picked.size < most; by++) {
    if (middle - by >= 0) picked.add(middle - by);
    if (picked.size < most && middle + by < count) picked.add(middle + by);
  }
  return [...picked].sort((a, b) => a - b);
}

/** @type {(words: string[]) => number} */
function chipWidth(words) {
  const pen = penOf(document.createElement("canvas"));
  pen.font = `600 14px ${FONT_FAMILY}`;
  return Math.ceil(Math.max(0, ...words.map((word) => pen.measureText(word).width))) + 22;
}

/**
 * @param {Scene} scene
 * @param {number} width
 * @param {number} height
 * @param {boolean} [narrow] also where the other parts of the model would leave no room for the ribbons
 * @param {number} [top] of the first row
 * @returns {Plan}
 */
export function planScene(scene, width, height, narrow = width < NARROW, top = narrow ? TOP : WIDE_TOP) {
  const { items, open, keys, queries } = scene;
  const before = narrow ? [] : foldItems(items.slice(0, open));
  const after = narrow ? [] : foldItems(items.slice(open + 1));
  const [innerBefore, innerAfter] = narrow ? [[], []] : splitBoxes(scene);
  const answer = answerBox(scene, width, height, narrow);
  const bottom = narrow ? answer.y - 52 : height - 20;
  const end = narrow ? bottom : bottom - FOOT;
  const right = narrow ? width - 8 : answer.x - 24 - after.length * (SLAB + GAP);
  const most = Math.max(3, Math.floor((end - top) / LEAST_ROW));
  const keyShown = pickTokens(keys.tokens.length, most, scene.token, scene.weightsOf(scene.token));
  const queryShown = keys.side === queries.side && !queries.grid ? keyShown
    : queries.grid ? [scene.token] : pickTokens(queries.tokens.length, most, scene.token, null);
  const longest = narrow ? width * 0.27 : 170;
  const widthOf = (/** @type {SceneSide} */ side, /** @type {number[]} */ shown) =>
    Math.max(52, Math.min(longest, chipWidth(shown.map((i) => chipWords(side, i)))));
  const queryWidth = widthOf(queries, queryShown);
  const keyX = narrow ? 14 : MARGIN;
  const above = keys.before ? 34 : 0; // for the class token
  const pictureTop = (narrow ? top : 20) + above;
  const room = bottom - pictureTop - 20;
  const inner = innerBefore.length + innerAfter.length;
  const taken = MARGIN + 22 + (before.length + inner) * (SLAB + GAP) + 16 + RIBBONS + queryWidth + 14;
  const side = Math.min(narrow ? width * 0.56 : Math.min(width * 0.3, right - taken), room);
  const middle = pictureTop + room / 2;
  const picture = keys.grid ? { x: keyX, y: middle - side / 2, width: side, height: side } : null;
  const keyWidth = picture ? side : widthOf(keys, keyShown);
  const beforeX = keyX + keyWidth + (narrow ? 0 : 22);
  const cardX = beforeX + before.length * (SLAB + GAP);
  const queryX = right - 14 - queryWidth - innerAfter.length * (SLAB + GAP);
  const left = (narrow ? cardX + 4 : cardX + 16) + innerBefore.length * (SLAB + GAP);
  const leastCard = (scene.attention?.heads ?? 1) > 1 ? LEAST_CARD : 0; // for the images of heads
  const tooSmall = queryX - left < RIBBONS || right - cardX < leastCard || (picture && side < LEAST_PICTURE);
  if (!narrow && tooSmall) return planScene(scene, width, height, true);
  const isTight = top < TOP && roomForHeads(scene, right - cardX) < 0;
  if (isTight) return planScene(scene, width, height, narrow, TOP);
  return {
    scene, width, height, narrow, top, bottom, end, before, after, beforeX, innerBefore, innerAfter, answer,
    card: { x: narrow ? 6 : cardX, y: 14, width: right - (narrow ? 6 : cardX), height: bottom - 6 },
    picture, left, keyX, keyWidth, queryX, queryWidth,
    keyRows: picture ? patchRows(keys, picture) : rowsAt(keyShown, left, top, end),
    queryRows: rowsAt(queryShown, queryX - 8, top, end),
  };
}

/**
 * Pixels that are left in the first line of a card if the images of the heads stand there, too.
 * @type {(scene: Scene, width: number) => number}
 */
export const roomForHeads = ({ attention }, width) =>
  width - 350 - (attention && attention.heads > 1 ? LEAST_HEAD * attention.heads : 0);

/** @type {(scene: Scene, width: number, height: number, narrow: boolean) => Box} */
function answerBox({ answers }, width, height, narrow) {
  const tall = answers ? 38 + 24 * answers.list.length : 0;
  const wide = narrow ? width - 2 * MARGIN : Math.min(340, Math.max(190, width * 0.17));
  return { x: width - MARGIN - wide, y: height - tall - 12, width: wide, height: tall };
}

/** @type {(side: SceneSide, picture: Box) => Rows} */
function patchRows({ grid, before, tokens }, { x, y, width, height }) {
  const [rows, columns] = /** @type {[number, number]} */ (grid);
  return {
    shown: range(tokens.length),
    step: height / rows,
    at: (i) => (i < before ? [x + 96, y - 17]
      : [x + (((i - before) % columns) + 0.5) * (width / columns),
        y + (Math.floor((i - before) / columns) + 0.5) * (height / rows)]),
  };
}

/** @type {(shown: number[], x: number, top: number, end: number) => Rows} */
function rowsAt(shown, x, top, end) {
  const step = Math.min(MOST_ROW, (end - top) / shown.length);
  const start = top + (end - top - step * shown.length) / 2 + step / 2;
  const places = new Map(shown.map((i, n) => [i, start + n * step]));
  return { shown, step, at: (i) => (places.has(i) ? [x, /** @type {number} */ (places.get(i))] : null) };
}

/** @type {(side: SceneSide, i: number) => string} */
export function chipWords({ tokens, grid, before }, i) {
  if (!grid) return label(tokens[i], 18);
  const n = i - before;
  return n < 0 ? "class token" : `patch ${Math.floor(n / grid[1]) + 1}, ${(n % grid[1]) + 1}`;
}

/**
 * The boxes of the open block before and after the attention that is shown.
 * @type {(scene: Scene) => [GraphBox[], GraphBox[]]}
 */
function splitBoxes({ items, open, attention }) {
  const { boxes } = items[open];
  const at = boxes.findIndex(({ name }) => attention && name.startsWith(`${attention.name}.`));
  return at < 0 ? [[], []] : [boxes.slice(0, at), boxes.slice(at + 1)];
}

/**
 * Items beside the open one; neighbouring blocks are folded into one.
 * @param {SceneItem[]} items
 * @returns {Slab[]}
 */
export function foldItems(items) {
  const all = items.map((item) => ({ ...item, times: 1 }));
  /** @type {Slab[]} */
  const folded = [];
  for (const item of all) {
    const before = folded[folded.length - 1];
    if (before && before.layer !== null && item.layer !== null && before.column === item.column) {
      before.times += 1;
      before.title = "blocks";
    } else folded.push(item);
  }
  return folded;
}
