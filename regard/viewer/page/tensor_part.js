/* A part of a tensor: a head, rows and columns, pooled or as bytes, as the server would send it. */

import { last } from "./dom.js";

/** @type {(name: string, tensor: Tensor, part: TensorPart) => Tensor} */
export function takePart(name, tensor, { head, rows, columns, most, as }) {
  let result = tensor;
  const heads = result.shape.length > 2;
  if (heads && head !== undefined && head !== null) result = sliceHead(result, Number(head));
  if (rows !== undefined || columns !== undefined) result = sliceRows(result, rows, columns);
  if (most) result = name.endsWith(".reason") ? poolReasons(result, most) : maxPool(result, most);
  return as === "uint8" && result.data instanceof Float32Array ? toBytes(result) : result;
}

/** @param {number[]} sizes */
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** @type {(numbers: Numbers, length: number) => Numbers} */
const emptyLike = (numbers, length) =>
  (numbers instanceof Uint8Array ? new Uint8Array(length) : new Float32Array(length));

/** @type {(tensor: Tensor, head: number) => Tensor} */
function sliceHead({ shape, data }, head) {
  const size = product(shape.slice(1));
  return { shape: shape.slice(1), data: data.subarray(head * size, (head + 1) * size) };
}

/**
 * "3:5" of n as [3, 5].
 * @param {string | undefined} text
 * @param {number} n
 */
function parseRange(text, n) {
  if (text === undefined || text === null) return [0, n];
  const [from, to] = String(text).split(":").map(Number);
  return [from, Math.min(to, n)];
}

/** @type {(tensor: Tensor, rows: string | undefined, columns: string | undefined) => Tensor} */
function sliceRows({ shape, data }, rows, columns) {
  const [height, width] = shape.slice(-2);
  const [top, bottom] = parseRange(rows, height);
  const [left, right] = parseRange(columns, width);
  const heads = data.length / (height * width);
  const result = emptyLike(data, heads * (bottom - top) * (right - left));
  let at = 0;
  for (let n = 0; n < heads; n++) {
    for (let y = top; y < bottom; y++) {
      const row = (n * height + y) * width;
      result.set(data.subarray(row + left, row + right), at);
      at += right - left;
    }
  }
  return { shape: [...shape.slice(0, -2), bottom - top, right - left], data: result };
}

/** How far from zero; what is masked (minus infinity) is not, what is no number is most. @param {number} x */
const sizeOf = (x) => (x === -Infinity ? -1 : Number.isNaN(x) ? Infinity : Math.abs(x));

/**
 * Max pooling to at most so many numbers each way: of neighbours, the one that is farthest from zero.
 * @param {Tensor} tensor
 * @param {number} most
 * @returns {Tensor}
 */
function maxPool({ shape, data }, most) {
  const [height, width] = shape.slice(-2);
  const [tall, wide] = [Math.min(height, most), Math.min(width, most)];
  if (tall === height && wide === width) return { shape, data };
  const heads = data.length / (height * width);
  const result = emptyLike(data, heads * tall * wide).fill(data instanceof Uint8Array ? 0 : -Infinity);
  const column = Int32Array.from({ length: width }, (_, x) => poolIndex(x, width, wide));
  for (let n = 0; n < heads; n++) {
    for (let y = 0; y < height; y++) {
      const to = (n * tall + poolIndex(y, height, tall)) * wide;
      const from = (n * height + y) * width;
      for (let x = 0; x < width; x++) {
        if (sizeOf(data[from + x]) > sizeOf(result[to + column[x]])) result[to + column[x]] = data[from + x];
      }
    }
  }
  return { shape: [...shape.slice(0, -2), tall, wide], data: result };
}

/**
 * Pooled reasons: a cell is masked where all its cells are.
 * @type {(tensor: Tensor, most: number) => Tensor}
 */
function poolReasons({ shape, data }, most) {
  const flipped = maxPool({ shape, data: data.map((x) => 255 - x) }, most);
  return { ...flipped, data: flipped.data.map((x) => 255 - x) };
}

/**
 * The group of the i-th of `many` numbers in `few` groups: group g begins at floor(g · many / few).
 * @param {number} i
 * @param {number} many
 * @param {number} few
 */
export const poolIndex = (i, many, few) => Math.floor(((i + 1) * few - 1) / many);

/**
 * Each head as bytes: 255 is its largest number.
 * @type {(tensor: Tensor) => Tensor}
 */
function toBytes({ shape, data }) {
  const size = last(shape) * shape[shape.length - 2];
  const result = new Uint8Array(data.length);
  for (let n = 0; n < data.length; n += size) {
    let peak = 0;
    for (let i = n; i < n + size; i++) peak = Math.max(peak, data[i]);
    for (let i = n; i < n + size; i++) result[i] = peak ? Math.round((255 * data[i]) / peak) : 0;
  }
  return { shape, data: result };
}
