/* Matrices of the scene: an image with a title, its shape, and the selected row and column framed. */

import { isDark, opaque, paintMatrix, penOf } from "./colour.js";
import { h, label, s } from "./dom.js";
import { inkOn } from "./ink.js";
import { shapeWords } from "./describe.js";
import { place } from "./scene_layout.js";
import { poolIndex } from "./tensor_part.js";

/** @typedef {import("./scene_layout.js").Box} Box */

const SAMPLE = 4096; // numbers that tell what is usual
const OUTLIER = 4; // times as large as 99 % of the numbers
const FRAME = 6; // pixels, at least

/**
 * @typedef {object} Matrix
 * @property {string} title
 * @property {Tensor} tensor (rows, columns)
 * @property {number[]} [full] its shape, if these are the largest of neighbouring numbers
 * @property {string} [note] instead of its shape
 * @property {string[]} [rows] labels
 * @property {string[]} [columns] labels
 * @property {boolean} [signed]
 * @property {[number, number]} [limits] of the colours; without them, those of the numbers
 * @property {HTMLCanvasElement} [image] painted already
 * @property {Numbers | null} [blank] not 0 where a cell is masked
 * @property {boolean} [numbers] in the cells, where there is room
 * @property {number | null} [row] of the full shape, to frame
 * @property {number | null} [column] of the full shape, to frame
 */

/** @type {(matrix: Tensor) => Tensor} */
export const transpose = ({ shape: [rows, columns], data }) => {
  const turned = new Float32Array(data.length);
  for (let i = 0; i < data.length; i++) turned[(i % columns) * rows + Math.floor(i / columns)] = data[i];
  return { shape: [columns, rows], data: turned };
};

/** @param {number[]} shape */
export const matrixShape = (shape) => (shape.length > 1 ? shape.slice(-2) : [1, shape[0]]);

/** @type {(tensor: Tensor) => Tensor} */
export const asMatrix = ({ shape, data }) => ({ shape: matrixShape(shape), data });

/** @param {Numbers} data */
function largest(data) {
  let peak = 1e-30;
  for (let i = 0; i < data.length; i++) {
    const x = Math.abs(data[i]);
    if (x > peak && x < Infinity) peak = x;
  }
  return peak;
}

/**
 * The end of the colours of signed numbers. Where a few are far larger than all others, as in the residual
 * stream of large models, these get the strongest colour, and the others can be told apart.
 * @param {Numbers} data
 */
function signedPeak(data) {
  const peak = largest(data);
  const sizes = [];
  const step = Math.ceil(data.length / SAMPLE);
  for (let i = 0; i < data.length; i += step) if (Math.abs(data[i]) < Infinity) sizes.push(Math.abs(data[i]));
  const usual = Float64Array.from(sizes).sort()[Math.floor(0.99 * (sizes.length - 1))] ?? 0;
  return usual > 0 && peak > OUTLIER * usual ? OUTLIER / 2 * usual : peak;
}

/** The numbers of each image of the scene. @type {WeakMap<HTMLElement, Tensor>} */
export const painted = new WeakMap();

/**
 * One pixel for each number, in the colours of the other matrices.
 * @param {Pick<Matrix, "tensor" | "signed" | "blank" | "limits" | "image">} matrix
 */
export function paint({ tensor, signed = true, blank = null, limits, image }) {
  const peak = signed ? signedPeak(tensor.data) : largest(tensor.data);
  const masked = isDark() ? opaque(38, 43, 50) : opaque(228, 231, 235);
  const canvas = image
    ?? paintMatrix(tensor, limits ?? [signed ? -peak : 0, peak], signed,
      blank?.length === tensor.data.length ? blank : null, masked); // a saved file may have pooled one only
  painted.set(canvas, tensor);
  canvas.className = "pixels";
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}

/** @type {(kind: string, word: string, on: boolean) => HTMLElement} */
const caption = (kind, word, on) =>
  h("span", { class: `caption ${kind}${on ? " on" : ""}` }, h("bdi", {}, label(word, 14)));

/**
 * A matrix in a box, with labels where there is room for them.
 * @param {Matrix} matrix
 * @param {Box} box of the image
 * @returns {HTMLElement[]}
 */
export function drawMatrix(matrix, { x, y, width, height }) {
  const { title, tensor, full = tensor.shape, note, rows, columns, row = null, column = null } = matrix;
  const [tall, wide] = tensor.shape;
  const words = note ?? shapeWords(full);
  const parts = [
    place(h("span", { class: "caption matrix-title" }, h("b", {}, title), ` ${words}`),
      { x, y: y - 24, width: width + 16 }),
    place(paint(matrix), { x, y, width, height })];
  if (matrix.numbers && width / wide >= 44 && height / tall >= 18) {
    parts.push(place(cellNumbers(matrix, width, height), { x, y, width, height }));
  }
  if (row !== null && row < full[0]) {
    const [from, size] = frameSpan(row, full[0], tall, height);
    parts.push(place(h("i", { class: "frame" }), { x, y: y + from, width, height: size }));
  }
  if (column !== null && column < full[1]) {
    const [from, size] = frameSpan(column, full[1], wide, width);
    parts.push(place(h("i", { class: "frame" }), { x: x + from, y, width: size, height }));
  }
  if (rows && height / full[0] >= 13) {
    rows.slice(0, full[0]).forEach((word, i) => parts.push(place(caption("end", word, i === row),
      { x: x - 106, width: 100, y: y + ((i + 0.5) * height) / full[0] - 9 })));
  }
  if (columns && width / full[1] >= 13) {
    columns.slice(0, full[1]).forEach((word, i) => parts.push(place(caption("turned", word, i === column),
      { x: x + ((i + 0.5) * width) / wide - 9, y: y + height + 6 })));
  }
  return parts;
}

/**
 * Where the frame of one of `many` rows lies, of which there are `few` in so many pixels.
 * @type {(i: number, many: number, few: number, pixels: number) => [from: number, size: number]}
 */
function frameSpan(i, many, few, pixels) {
  const each = pixels / few;
  const size = Math.max(each, FRAME);
  return [(poolIndex(i, many, few) + 0.5) * each - size / 2, size];
}

/** A number as short as a cell. @param {number} x */
const formatCell = (x) =>
  x.toFixed(Math.abs(x) < 9.995 ? 2 : Math.abs(x) < 99.95 ? 1 : 0).replace("-", "−");

/** @type {(matrix: Matrix, width: number, height: number) => any} */
function cellNumbers(matrix, width, height) {
  const { tensor: { shape: [tall, wide], data }, blank = null } = matrix;
  const { data: pixels } = penOf(paint(matrix)).getImageData(0, 0, wide, tall);
  const texts = Array.from(data, (x, i) => {
    if ((blank && blank[i]) || !Number.isFinite(x)) return null;
    const [r, g, b] = pixels.subarray(4 * i);
    return s("text", {
      x: ((i % wide) + 0.5) * (width / wide), y: (Math.floor(i / wide) + 0.5) * (height / tall) + 4.5,
      fill: inkOn(r, g, b),
    }, formatCell(x));
  });
  return s("svg", { class: "cell-numbers", width, height, "aria-hidden": "true" }, texts.filter(Boolean));
}

/** @param {string[]} words */
export function labelWidth(words) {
  const pen = penOf(document.createElement("canvas"));
  pen.font = "12px system-ui";
  return Math.min(100, Math.max(0, ...words.map((word) => pen.measureText(label(word, 14)).width))) + 12;
}
