/* A product with its operands: the row of one matrix times the column of the other gives the cell. */

import { arrowKeys, formatNumber, h, onKeys, range } from "./dom.js";
import { nameToken } from "./describe.js";
import { largestWeights, tensorOrNull } from "./scene_data.js";
import { place } from "./scene_layout.js";
import { asMatrix, drawMatrix, labelWidth, transpose } from "./scene_paint.js";
import { parsePlace } from "./selection.js";
import { drawTick, fitsModel } from "./tick.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/**
 * The two operands (rows, inner) and (inner, columns) and their product.
 * @typedef {object} Product
 * @property {Tensor} a
 * @property {Tensor} b
 * @property {Tensor} c
 * @property {string} name
 * @property {number} head
 * @property {boolean} signed
 * @property {string[]} titles
 * @property {(r: number) => string} rowOf
 * @property {(c: number) => string} columnOf
 * @property {string[]} [rows]
 * @property {string[]} [columns]
 */

const LONGEST = 3; // times as wide as tall, or as tall as wide, a matrix may be for its numbers
const TICK = 160; // milliseconds a term, when it plays

/**
 * The scores, or what comes out of a head; null where they are no plain product, or not in the file.
 * @type {(app: App, scene: Scene, kind: "scores" | "heads") => Promise<Product | null>}
 */
async function readProduct(app, { attention, head, keys, queries }, kind) {
  const name = `${attention?.name}.${kind}`;
  const sum = app.manifest.sums[name];
  const operands = sum?.does === "dot" ? [sum.q, sum.k] : sum?.does === "average" ? [sum.w, sum.v] : null;
  if (!attention || !operands) return null;
  const [a, b, c] = await Promise.all([...operands, name].map(async (one) => {
    const heads = app.manifest.tensors[one]?.shape[0] ?? 1;
    const tensor = await tensorOrNull(app, one, { head: Math.floor((head * heads) / attention.heads) });
    return tensor && asMatrix(tensor);
  }));
  if (!a || !b || !c) return null;
  const isScores = kind === "scores";
  const right = isScores ? transpose(b) : b;
  if (a.shape[1] !== right.shape[0]) return null;
  const number = (/** @type {number} */ i) => `number ${i}`;
  return {
    a, b: right, c, name, head, signed: isScores,
    titles: isScores ? ["Q", "Kᵀ", "Q · Kᵀ"] : ["weights", "V", "weights × V"],
    rowOf: (r) => nameToken(queries, r), columnOf: isScores ? (i) => nameToken(keys, i) : number,
    rows: queries.grid ? undefined : queries.tokens,
    columns: isScores && !keys.grid ? keys.tokens : undefined,
  };
}

/** @type {(app: App, scene: Scene) => Promise<import("./scene.js").Depth>} */
export async function productDepth(app, scene) {
  const kind = app.state.product === "heads" ? "heads" : "scores";
  const product = await readProduct(app, scene, kind);
  if (!product) {
    const words = "These are not a plain product, or not in this file; walk through them step by step.";
    return { draw: () => {}, sentence: () => [words] };
  }
  const best = largestWeights(scene.weightsOf(scene.token), 1)[0]?.[0] ?? 0;
  /** @type {Place} */
  const at = parsePlace(app.state.at, product.c.shape)
    ?? [scene.token, Math.min(kind === "scores" ? best : 0, product.c.shape[1] - 1)];
  const { a, c, titles, rowOf, columnOf } = product;
  return {
    draw: (root, width, height) => new Drawing(root, app, product, at, width, height) && undefined,
    sentence: () => [h("b", {}, `${titles[2]}: `), `the row of ${rowOf(at[0])} in ${titles[0]} times the `,
      `column of ${columnOf(at[1])} in ${titles[1]}: ${a.shape[1]} products add up to `,
      h("b", {}, formatNumber(c.data[at[0] * c.shape[1] + at[1]])), "."],
    output: { tensor: [product.name, scene.head] },
  };
}

class Drawing {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   * @param {Product} product
   * @param {Place} at
   * @param {number} width
   * @param {number} height
   */
  constructor(root, app, product, at, width, height) {
    this.product = product;
    this.at = at;
    this.app = app;
    const { a, b, c, rows, columns, titles, signed } = product;
    const narrow = width < 720;
    const side = narrow ? 0 : Math.min(380, width * 0.28);
    const left = rows ? labelWidth(rows) : 16;
    const low = columns ? labelWidth(columns) : 16;
    const roomWide = width - side - left - 84;
    const roomTall = (narrow ? Math.min(height, width) : height) - low - 100;
    const [T, inner, S] = [c.shape[0], a.shape[1], c.shape[1]];
    const large = Math.max(1, Math.min(roomWide / 800, roomTall / 450)); // on a large screen
    const [thick, cell] = [36 * large, 110 * large]; // of a number, at most
    const deep = inner * Math.max(1, Math.min(thick, (0.45 * roomTall) / inner)); // of the second factor
    const long = Math.max(inner, Math.min(thick * inner, 0.45 * roomWide, LONGEST * deep)); // of the first
    const most = [Math.min(cell, (roomWide - long) / S), Math.min(cell, (roomTall - deep) / T)];
    const wide = S * Math.min(most[0], LONGEST * most[1]);
    const tall = T * Math.min(most[1], LONGEST * most[0]);
    const x0 = left + 16 + Math.max(0, (roomWide - long - wide) / 2);
    const y0 = 44 + Math.max(0, (roomTall - deep - tall) / 2);
    const [x1, y1] = [x0 + long + 44, y0 + deep + 44];
    this.boxes = {
      a: { x: x0, y: y1, width: long, height: tall },
      b: { x: x1, y: y0, width: wide, height: deep },
      c: { x: x1, y: y1, width: wide, height: tall },
    };
    root.append(
      ...drawMatrix({ title: titles[0], tensor: a, rows, row: at[0], signed }, this.boxes.a),
      ...drawMatrix({ title: titles[1], tensor: b, column: at[1] }, this.boxes.b),
      ...drawMatrix({
        title: titles[2], tensor: c, columns, row: at[0], column: at[1], numbers: true,
      }, this.boxes.c));
    this.cell = place(h("i", { class: "frame cell-frame", "data-zoom": "number" }), {
      x: x1 + (at[1] * wide) / S, y: y1 + (at[0] * tall) / T, width: wide / S, height: tall / T,
    });
    this.marks = [h("i", { class: "frame term" }), h("i", { class: "frame term" })];
    root.append(this.cell, this.grid(), ...this.marks);
    const below = { x: 12, y: y1 + tall + low + 16, width: width - 24 };
    root.append(place(this.panel(), narrow ? below : { x: width - side - 8, y: 30, width: side - 16 }));
  }

  /** A cover over the product that is clicked, and moved over with arrow keys. */
  grid() {
    const { c: box } = this.boxes;
    const { shape: [T, S] } = this.product.c;
    const move = (/** @type {number} */ r, /** @type {number} */ c) => {
      const [row, column] = [Math.max(0, Math.min(T - 1, r)), Math.max(0, Math.min(S - 1, c))];
      this.app.go({ at: `${row},${column}`, token: row }, { replace: true });
    };
    const { rowOf, columnOf, titles } = this.product;
    const where = `${rowOf(this.at[0])}, ${columnOf(this.at[1])}`;
    return place(h("button", {
      type: "button", class: "cover", id: "product",
      "aria-label": `${titles[2]}: ${where}. Arrow keys move, Enter opens the number.`,
      onclick: (/** @type {MouseEvent} */ event) => {
        if (event.detail === 0) return this.open();
        const frame = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
        return move(Math.floor(((event.clientY - frame.y) / frame.height) * T),
          Math.floor(((event.clientX - frame.x) / frame.width) * S));
      },
      onkeydown: onKeys(arrowKeys((down, right) => move(this.at[0] + down, this.at[1] + right))),
    }), box);
  }

  open() {
    const { name } = this.product;
    this.app.go({ cell: `${name}:${[this.product.head, ...this.at]}` });
  }

  /** The products, their running sum, and the model's number. */
  panel() {
    const { a, b, c } = this.product;
    const [r, k] = this.at;
    const inner = a.shape[1];
    const products = range(inner).map((i) => a.data[r * inner + i] * b.data[i * b.shape[1] + k]);
    const total = products.reduce((sum, x) => sum + x, 0);
    const value = c.data[r * c.shape[1] + k];
    const size = products.reduce((sum, x) => sum + Math.abs(x), 0);
    const line = h("p", { class: "running", "aria-live": "off" });
    const factor = (/** @type {number} */ i) =>
      `${formatNumber(a.data[r * inner + i])} × ${formatNumber(b.data[i * b.shape[1] + k])}`;
    const order = range(inner).sort((x, y) => Math.abs(products[y]) - Math.abs(products[x]));
    const list = h("ol", {}, order.slice(0, 6).map((i) => h("li", {}, h("span", { class: "pale" }, `${i}: `),
      factor(i), " = ", h("b", {}, formatNumber(products[i])))));
    return h("div", { class: "terms" },
      h("div", { class: "row" },
        h("button", { type: "button", id: "play", onclick: () => this.play(line, products, factor) },
          "▶ Play the sum"),
        h("button", { type: "button", id: "open-number", onclick: () => this.open() }, "All terms ⤢")),
      line, h("p", { class: "pale" }, inner > 6 ? `The 6 largest of ${inner} products` : `${inner} products`),
      list,
      h("p", { class: "total" }, `Sum of ${inner} = `, h("b", {}, formatNumber(total)), " ",
        drawTick(fitsModel(this.app.manifest, total, value, size)),
        h("span", { class: "pale" }, ` the model computed ${formatNumber(value)}`)));
  }

  /**
   * Term by term: both factors light up, and the sum grows.
   * @type {(line: HTMLElement, products: number[], factor: (i: number) => string) => void}
   */
  play(line, products, factor) {
    const { a, b, c } = this.boxes;
    const [T, inner] = this.product.a.shape;
    const S = this.product.c.shape[1];
    const each = Math.max(30, Math.min(TICK, 6000 / inner));
    const start = performance.now();
    const step = (/** @type {number} */ now) => {
      const i = Math.min(inner - 1, Math.floor((now - start) / each));
      const u = a.width / inner;
      const [tall, wide] = [a.height / T, c.width / S];
      place(this.marks[0], { x: a.x + i * u, y: a.y + this.at[0] * tall, width: u, height: tall });
      place(this.marks[1], { x: b.x + this.at[1] * wide, y: b.y + i * u, width: wide, height: u });
      const sum = products.slice(0, i + 1).reduce((x, y) => x + y, 0);
      line.replaceChildren(`${i + 1} of ${inner}: + ${factor(i)} → `, h("b", {}, formatNumber(sum)));
      line.dataset.done = String(i === inner - 1);
      if (i < inner - 1 && line.isConnected) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}
