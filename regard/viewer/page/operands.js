/* The numbers that go into another: how they are fetched, named and shown. */

import { label, last } from "./dom.js";

/** One number, and its place as the address names it, if it can be opened in its turn.
 * @typedef {{ value: number, link: string | null }} Scalar */

/** Numbers along a row or a column.
 * @typedef {{ values: Numbers, link: (i: number) => string | null }} Vector */

/** @typedef {{ name: string | number, parts: Scalar[], value: number, chosen?: boolean }} SumTerm */

/**
 * What the page shows: `steps` one after another, or the `terms` of a sum below the titles `head`.
 * `size`: the magnitude of what was added up, if it is not that of the terms. `divisor`: of each term.
 * @typedef {{ steps: [words: string, value: number, link?: string | null][],
 *   size?: number, note?: string }} Steps
 * @typedef {{ head: string[], terms: SumTerm[], last?: string, size?: number, divisor?: number,
 *   note?: string }} Terms
 */

/** @type {(x: number) => number} */
function erf(x) {
  // A series and a continued fraction, exact to the last digits of float64.
  const z = Math.abs(x);
  if (z < 2.5) {
    let [term, sum] = [z, z];
    for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum) && k < 200; k++) {
      term *= (-z * z) / k;
      sum += term / (2 * k + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let f = 0;
  for (let k = 60; k > 0; k--) f = k / 2 / (z + f);
  return Math.sign(x) * (1 - Math.exp(-z * z) / (Math.sqrt(Math.PI) * (z + f)));
}

/** @param {number} x */
export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** @type {Record<FunctionName, (x: number) => number>} */
export const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  relu6: (x) => Math.min(6, Math.max(0, x)),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  sigmoid,
  tanh: Math.tanh,
  sin: Math.sin,
  cos: Math.cos,
};

/** The place of a number in a tensor, and how to fetch others. */
export class Cell {
  /**
   * @param {Pick<App, "source" | "manifest">} app
   * @param {string} name
   * @param {number[]} at head, row and column
   */
  constructor({ source, manifest }, name, [head, row, column]) {
    this.source = source;
    this.manifest = manifest;
    this.name = name;
    this.head = head;
    this.row = row;
    this.column = column;
    this.shape = manifest.tensors[name].shape;
  }

  /**
   * A row of a tensor.
   * @param {string} name
   * @param {number} row
   * @param {number} [head]
   * @returns {Promise<Vector>}
   */
  async along(name, row, head = this.head) {
    const { data } = await this.source.tensor(name, { head, rows: `${row}:${row + 1}` });
    return { values: data, link: (i) => this.link(name, row, i, head) };
  }

  /**
   * A column of a tensor.
   * @param {string} name
   * @param {number} column
   * @returns {Promise<Vector>}
   */
  async down(name, column) {
    const { data } = await this.source.tensor(name, { head: this.head, columns: `${column}:${column + 1}` });
    return { values: data, link: (i) => this.link(name, i, column) };
  }

  /**
   * The row of a tensor that a number names: below 0, counted from the end.
   * @type {(name: string, row: number) => number}
   */
  rowOf(name, row) {
    const { shape } = this.manifest.tensors[name];
    return row >= 0 ? row : row + (shape.length > 1 ? shape[shape.length - 2] : 1);
  }

  /**
   * The position of this row, which is one of the last tokens of a side.
   * @param {string} side
   */
  position(side) {
    return this.manifest.tokens[side].length - this.shape[this.shape.length - 2] + this.row;
  }

  /**
   * One number of a tensor: at the same place as this one, unless another is given.
   * @param {string} name
   * @param {number} [row]
   * @param {number} [column]
   * @param {number} [head]
   * @returns {Promise<Scalar>}
   */
  async one(name, row = this.row, column = this.column, head = this.head) {
    const part = { head, rows: `${row}:${row + 1}`, columns: `${column}:${column + 1}` };
    const { data } = await this.source.tensor(name, part);
    return { value: data[0], link: this.link(name, row, column, head) };
  }

  /**
   * The address of a number that can be opened in its turn; weights can't.
   * @type {(name: string, row: number, column: number, head?: number) => string | null}
   */
  link(name, row, column, head = this.head) {
    return name.startsWith("@") ? null : `${name}:${head},${row},${column}`;
  }

  /**
   * The tokens at the rows or columns of a tensor.
   * @param {string} name
   * @param {"rows" | "columns"} [axis]
   */
  tokens(name, axis = "rows") {
    const { [axis]: side, shape } = this.manifest.tensors[name];
    const count = axis === "rows" ? shape[shape.length - 2] : last(shape);
    return this.manifest.tokens[side ?? ""]?.slice(-count) ?? null;
  }
}

/**
 * The i-th token, or its number where there are no tokens.
 * @param {string[] | null} tokens
 * @param {number} i
 */
export const tokenName = (tokens, i) => (tokens ? label(tokens[i]) : String(i));

/** @param {string} name */
export const lastPart = (name) => last(name.split("."));

/** @type {(value: number) => Scalar} */
export const constant = (value) => ({ value, link: null });

/** @type {(name: string | number, a: Scalar, b: Scalar) => SumTerm} */
export const productTerm = (name, a, b) => ({ name, parts: [a, b], value: a.value * b.value });

/** @type {(vector: Vector, i: number) => Scalar} */
export const at = ({ values, link }, i) => ({ value: values[i], link: link(i) });

/** @type {(a: Vector, b: Vector) => number} */
export function innerProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.values.length; i++) sum += a.values[i] * b.values[i];
  return sum;
}

/** @type {(a: Vector, b: Vector, name?: (i: number) => string | number) => SumTerm[]} */
export const productTerms = (a, b, name = (i) => i) =>
  Array.from(a.values, (_, i) => productTerm(name(i), at(a, i), at(b, i)));

/** @param {SumTerm[]} terms */
export const totalOf = (terms) => terms.reduce((sum, { value }) => sum + value, 0);

/**
 * Where the head of a cell begins in a row that holds all heads side by side.
 * @type {(cell: Cell, share?: number) => number}
 */
export const headOffset = ({ shape, head }, share = 1) =>
  (shape.length > 2 ? Math.floor(head / share) * shape[2] : 0);
