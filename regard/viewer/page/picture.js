/* Where a model looked in a picture: from the class token or any patch, or for each token of a caption. */

import { imageCanvas, penOf } from "./colour.js";
import {
  arrowKeys, clampIndex, formatNumber, h, label, onKeys, range, readoutLine, tableTwin, tabs,
} from "./dom.js";
import {
  heading, headOrMeanMenus, headWeights, selectHead, selectedSide, selectedToken,
} from "./selection.js";

const SIDE = 384; // pixels of a picture, about
const MARK = "#e69f00";
/** @type {[string, string][]} */
const FROM = [["class", "Whole picture"], ["patch", "A patch"], ["rollout", "Rollout"]];

/** @typedef {[rows: number, columns: number]} Grid */

/**
 * A picture (C, H, W), lit where the weights of its regions are large; without weights, as it is.
 * @param {Tensor} pixels
 * @param {Float32Array | null} weights
 * @param {Grid} grid
 * @param {number | null} [mark] a region to frame
 */
function drawPicture({ shape: [C, H, W], data }, weights, [rows, columns], mark = null) {
  const scale = Math.max(1, Math.round(SIDE / Math.max(H, W)));
  const image = new ImageData(W, H);
  const peak = weights ? Math.max(...weights, 1e-30) : 1;
  for (let y = 0; y < H; y++) {
    for (let x = 0; x < W; x++) {
      const region = Math.floor((y * rows) / H) * columns + Math.floor((x * columns) / W);
      const share = weights ? weights[region] / peak : null;
      for (let c = 0; c < 3; c++) {
        const v = data[((C === 1 ? 0 : c) * H + y) * W + x];
        image.data[4 * (y * W + x) + c] = share === null ? v : (0.3 + 0.4 * share) * v + 0.3 * share * 255;
      }
      image.data[4 * (y * W + x) + 3] = 255;
    }
  }
  const canvas = h("canvas", { width: W * scale, height: H * scale, "aria-hidden": "true" });
  const pen = penOf(canvas);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(imageCanvas(image), 0, 0, canvas.width, canvas.height);
  if (mark !== null) {
    pen.strokeStyle = MARK;
    pen.lineWidth = 4;
    const [width, height] = [canvas.width / columns, canvas.height / rows];
    const [x, y] = [(mark % columns) * width, Math.floor(mark / columns) * height];
    pen.strokeRect(x + 2, y + 2, width - 4, height - 4);
  }
  return canvas;
}

/** @type {(weights: Float32Array, grid: Grid) => TableData} */
const regionTable = (weights, [rows, columns]) => ({
  head: ["", ...range(columns).map((c) => `column ${c}`)],
  rows: range(rows).map((r) =>
    [`row ${r}`, ...range(columns).map((c) => formatNumber(weights[r * columns + c]))]),
});

/** @type {View} */
export const picture = {
  async show(root, app) {
    const pixels = await app.source.tensor("pixels");
    const grid = /** @type {Grid} */ (app.manifest.grid);
    const showIt = app.manifest.attentions.cross ? showCaption : showPatches;
    return showIt(root, app, pixels, grid);
  },
};

/**
 * Where each token of a caption looked.
 * @type {(root: HTMLElement, app: App, pixels: Tensor, grid: Grid) => Promise<void>}
 */
async function showCaption(root, app, pixels, grid) {
  const { manifest, state, go, source } = app;
  const { layers, attention, oneHead: head } = selectHead(app, ["cross"]);
  const { S, data } = headWeights(await source.tensor(`${attention.name}.weights`), head);
  const words = manifest.tokens.written;
  const word = clampIndex(state.word ?? selectedToken(app, "target") ?? 0, words.length);
  const weightsOf = (/** @type {number} */ i) => data.subarray(i * S, (i + 1) * S);
  const strip = h("div", { class: "strip" }, words.map((token, i) => h("button", {
    type: "button", id: `word-${i}`, "aria-pressed": String(i === word),
    onclick: () => go(selectedSide(app) === "target" ? { token: i, word: null } : { word: i },
      { replace: true }),
  }, drawPicture(pixels, weightsOf(i), grid), label(token))));
  const large = drawPicture(pixels, weightsOf(word), grid);
  const csv = () => regionTable(weightsOf(word), grid);
  app.current = { name: `picture-${word}`, canvas: large, csv };
  root.append(h("div", { class: "controls" }, headOrMeanMenus(app, layers, attention, head)),
    heading(manifest.answer ? label(manifest.answer, 80) : "Where each token looked",
      "the picture is lit where the token looked"),
    h("div", { class: "large" }, drawPicture(pixels, null, grid), large), strip,
    tableTwin(`Where “${label(words[word])}” looked`, csv));
}

/**
 * Where the class token or a patch looked, or the rollout of all layers.
 * @type {(root: HTMLElement, app: App, pixels: Tensor, grid: Grid) => Promise<void>}
 */
async function showPatches(root, app, pixels, grid) {
  const { manifest, state, go } = app;
  const { layers, attention, oneHead: head } = selectHead(app, ["self"]);
  const [rows, columns] = grid;
  const count = rows * columns;
  const first = manifest.tokens[attention.rows].length - count;
  const token = selectedToken(app, attention.rows);
  const own = token !== null && token >= first ? token - first : null;
  const from = FROM.find(([name]) => name === state.from)?.[0] ?? (own === null ? "class" : "patch");
  const patch = clampIndex(state.patch, count, own ?? Math.floor(count / 2));
  const weights = await patchWeights(app, attention.name, head, from, count, patch);
  const mark = from === "patch" ? patch : null;
  const choose = (/** @type {number} */ n) => {
    if (n >= 0 && n < count) go({ from: "patch", patch: null, token: first + n }, { replace: true });
  };
  const left = drawPicture(pixels, null, grid, mark);
  makeChoosable(left, grid, patch, choose);
  const lit = drawPicture(pixels, weights, grid, mark);
  const csv = () => regionTable(weights, grid);
  app.current = { name: `picture-${from}`, canvas: lit, csv };
  root.append(h("div", { class: "controls" },
    tabs("from", FROM, from, (to) => go({ from: to }, { replace: true })),
    from === "rollout" ? null : headOrMeanMenus(app, layers, attention, head)),
  heading(manifest.answer ?? "Where it looked", "click a patch of the picture on the left"),
  h("div", { class: "large" }, left, lit), readoutLine(summary(weights, columns, from, patch)),
  tableTwin("Weights of the patches", csv));
}

/**
 * A weight for each patch. The class token, if there is one, stands before the patches.
 * @param {App} app
 * @param {string} name
 * @param {number | null} head
 * @param {string} from
 * @param {number} count
 * @param {number} patch
 */
async function patchWeights({ source }, name, head, from, count, patch) {
  const data = from === "rollout" ? (await source.tensor("rollout")).data
    : headWeights(await source.tensor(`${name}.weights`), head).data;
  const T = Math.sqrt(data.length);
  const first = T - count;
  const rowOf = (/** @type {number} */ r) => Float32Array.from(data.subarray(r * T + first, (r + 1) * T));
  if (from === "patch") return rowOf(first + patch);
  if (first) return rowOf(0);
  const mean = new Float32Array(count); // of all patches, where there is no class token
  for (const r of range(T)) rowOf(r).forEach((x, i) => { mean[i] += x / T; });
  return mean;
}

/** @type {(weights: Float32Array, columns: number, from: string, patch: number) => string} */
function summary(weights, columns, from, patch) {
  const place = (/** @type {number} */ i) => `row ${Math.floor(i / columns)}, column ${i % columns}`;
  const best = weights.indexOf(Math.max(...weights));
  const start = from === "patch" ? `patch ${patch} (${place(patch)}) looks most at`
    : from === "rollout" ? "through all layers, most came from" : "it looks most at";
  return `${start} ${place(best)}: ${formatNumber(weights[best])}`;
}

/** @type {(canvas: HTMLCanvasElement, grid: Grid, patch: number, choose: (n: number) => void) => void} */
function makeChoosable(canvas, [rows, columns], patch, choose) {
  const attributes = {
    id: "patches", tabindex: "0", role: "application", "aria-roledescription": "patches",
    "aria-label": `The picture, ${rows} × ${columns} patches. Arrow keys choose one.`,
  };
  Object.entries(attributes).forEach(([name, value]) => canvas.setAttribute(name, value));
  canvas.removeAttribute("aria-hidden");
  canvas.addEventListener("click", (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - top) / height) * rows);
    choose(row * columns + Math.floor(((event.clientX - left) / width) * columns));
  });
  const move = arrowKeys((down, right) => choose(patch + down * columns + right));
  canvas.addEventListener("keydown", onKeys(move));
}
