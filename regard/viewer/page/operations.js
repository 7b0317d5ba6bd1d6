/* How a number is computed from others: one entry for each operation that a sum can name. */

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

/**
 * @template {object} S the sum, with the names of its operands
 * @template V what is fetched for it
 * @typedef {object} Operation
 * @property {(cell: Cell, sum: S) => Promise<V>} operands fetch the numbers that go into a cell
 * @property {(values: V, sum: S, cell: Cell) => number} evaluate
 * @property {(values: V, sum: S, cell: Cell) => Steps | Terms} show
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
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** @type {Record<ActivationName, (x: number) => number>} */
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  sigmoid,
  tanh: Math.tanh,
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
const lastPart = (name) => last(name.split("."));

/** @type {(value: number) => Scalar} */
const constant = (value) => ({ value, link: null });

/** @type {(name: string | number, a: Scalar, b: Scalar) => SumTerm} */
const productTerm = (name, a, b) => ({ name, parts: [a, b], value: a.value * b.value });

/** @type {(vector: Vector, i: number) => Scalar} */
const at = ({ values, link }, i) => ({ value: values[i], link: link(i) });

/** @type {(a: Vector, b: Vector) => number} */
function innerProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.values.length; i++) sum += a.values[i] * b.values[i];
  return sum;
}

/** @type {(a: Vector, b: Vector, name?: (i: number) => string | number) => SumTerm[]} */
const productTerms = (a, b, name = (i) => i) =>
  Array.from(a.values, (_, i) => productTerm(name(i), at(a, i), at(b, i)));

/** @param {SumTerm[]} terms */
export const totalOf = (terms) => terms.reduce((sum, { value }) => sum + value, 0);

/**
 * Where the head of a cell begins in a row that holds all heads side by side.
 * @type {(cell: Cell, share?: number) => number}
 */
const headOffset = ({ shape, head }, share = 1) =>
  (shape.length > 2 ? Math.floor(head / share) * shape[2] : 0);

/** @type {Operation<SumOf<"look up">, { id: number, x: Scalar }>} */
const lookUp = {
  async operands(cell, { W, side }) {
    const ids = cell.manifest.ids[side];
    const id = ids[ids.length - cell.shape[cell.shape.length - 2] + cell.row];
    return { id, x: await cell.one(W, id) };
  },
  evaluate: ({ x }) => x.value,
  show: ({ id, x }, _, { column }) => ({ steps: [[`embedding of token ${id}, number ${column}`, x.value]] }),
};

/** @type {Operation<SumOf<"add">, { name: string, x: Scalar, factor: number }[]>} */
const add = {
  async operands(cell, { terms }) {
    const isWeight = (/** @type {string} */ name) => name.startsWith("@"); // added to row 0 only
    const used = terms.filter(([name, , first]) => cell.row >= first && !(isWeight(name) && cell.row > 0));
    return Promise.all(used.map(async ([name, factor, first]) =>
      ({ name, factor, x: await cell.one(name, isWeight(name) ? 0 : cell.row - first) })));
  },
  evaluate: (values) => values.reduce((sum, { x, factor }) => sum + x.value * factor, 0),
  show: (values) => ({
    head: ["part", "number", "times"],
    terms: values.map(({ name, x, factor }) => productTerm(name.replace("@", ""), x, constant(factor))),
  }),
};

/** @type {Operation<SumOf<"same">, Scalar>} */
const same = {
  operands: (cell, { x, row, share = 1 }) => cell.one(x, row, cell.column, Math.floor(cell.head / share)),
  evaluate: ({ value }) => value,
  show: ({ value, link }, { x }) => ({ steps: [[`the same as ${x}`, value, link]] }),
};

/** @type {Operation<SumOf<"linear">, { x: [string, Vector][], w: Vector, b: Scalar | null }>} */
const linear = {
  async operands(cell, { x, W, b, share, row = cell.row }) {
    const out = headOffset(cell, share) + cell.column;
    const names = [x].flat();
    const inputs = await Promise.all(names.map((name) => cell.along(name, row)));
    const [w, bias] = await Promise.all([cell.along(W, out), b ? cell.one(b, 0, out) : null]);
    return { x: names.map((name, i) => [name, inputs[i]]), w, b: bias };
  },
  evaluate(values, sum, cell) {
    const total = totalOf(/** @type {Terms} */ (linear.show(values, sum, cell)).terms);
    return sum.f ? ACTIVATIONS[sum.f](total) : total;
  },
  show({ x, w, b }, { f }) {
    /** @type {SumTerm[]} */
    const terms = [];
    for (const [name, vector] of x) {
      vector.values.forEach((_, i) => {
        const title = x.length > 1 ? `${lastPart(name)} ${i}` : i;
        terms.push(productTerm(title, at(vector, i), constant(w.values[terms.length])));
      });
    }
    if (b) terms.push(productTerm("bias", b, constant(1)));
    return { head: ["x", "number", "weight"], terms, note: f && `The result is ${f} of the sum.` };
  },
};

/** @type {Operation<SumOf<"turn">, { cosine: [Scalar, number], sine: [Scalar, number] }>} */
const turn = {
  async operands(cell, { x, cos, sin, share }) {
    const half = cell.shape[2] / 2;
    const pair = cell.column % half;
    const first = headOffset(cell, share) + pair;
    const flat = cell.manifest.tensors[x].shape.length < 3; // heads side by side, or each by itself
    const from = flat ? first : pair;
    const head = flat ? cell.head : Math.floor(cell.head / (share ?? 1));
    const [a, b, c, s] = await Promise.all([
      cell.one(x, cell.row, from, head), cell.one(x, cell.row, from + half, head),
      cell.one(cos, cell.row, pair), cell.one(sin, cell.row, pair)]);
    const upper = cell.column < half;
    return { cosine: [upper ? a : b, c.value], sine: upper ? [b, -s.value] : [a, s.value] };
  },
  evaluate: ({ cosine, sine }) => cosine[0].value * cosine[1] + sine[0].value * sine[1],
  show: ({ cosine, sine }, _, cell) => ({
    head: ["part", "number", "times"],
    terms: [productTerm("cosine", cosine[0], constant(cosine[1])),
      productTerm(cell.column < cell.shape[2] / 2 ? "− sine" : "sine", sine[0], constant(sine[1]))],
  }),
};

/** @type {Operation<SumOf<"norm">, { x: Vector, gamma: number, beta: number }>} */
const norm = {
  async operands(cell, { x, W, b, share = 1 }) {
    const perHead = (cell.manifest.tensors[x]?.shape.length ?? 2) > 2;
    let row = await cell.along(x, cell.row, perHead ? Math.floor(cell.head / share) : cell.head);
    if (!perHead && cell.shape.length > 2) { // heads side by side, each normalised by itself
      const { values, link } = row;
      const first = headOffset(cell, share);
      row = { values: values.subarray(first, first + cell.shape[2]), link: (i) => link(first + i) };
    }
    const [gamma, beta] = await Promise.all([cell.one(W, 0), b ? cell.one(b, 0) : constant(0)]);
    return { x: row, gamma: gamma.value, beta: beta.value };
  },
  evaluate(values, sum, { column }) {
    const { x, mean, deviation } = normalise(values.x, sum);
    return ((x[column] - mean) / deviation) * values.gamma + values.beta;
  },
  show({ x: vector, gamma, beta }, sum, { column }) {
    const { x, mean, deviation } = normalise(vector, sum);
    /** @type {Steps["steps"]} */
    const steps = [[sum.f ? `${sum.f} of ${lastPart(sum.x)}` : "x", x[column], vector.link(column)]];
    if (!sum.rms) steps.push([`− mean of ${x.length} numbers`, mean]);
    steps.push([sum.rms ? "÷ root mean square" : "÷ standard deviation", deviation]);
    steps.push(["× learned scale", gamma]);
    if (sum.b) steps.push(["+ learned shift", beta]);
    return { steps, size: Math.abs(gamma) + Math.abs(beta) };
  },
};

/** @type {(vector: Vector, sum: SumOf<"norm">) => { x: number[], mean: number, deviation: number }} */
function normalise({ values }, { f, rms, eps }) {
  const x = Array.from(values, f ? ACTIVATIONS[f] : (value) => value);
  const mean = rms ? 0 : x.reduce((a, b) => a + b, 0) / x.length;
  const square = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
  return { x, mean, deviation: Math.sqrt(square + (eps ?? 1.1920929e-7)) };
}

/** @type {Operation<SumOf<"dot">, { q: Vector, k: Vector }>} */
const dot = {
  operands: async (cell, { q, k }) =>
    ({ q: await cell.along(q, cell.row), k: await cell.along(k, cell.column) }),
  evaluate: ({ q, k }) => innerProduct(q, k),
  show: ({ q, k }) => ({ head: ["number", "query", "key"], terms: productTerms(q, k) }),
};

/** @type {Operation<SumOf<"additive">, { tanh: Vector, w: Vector }>} */
const additive = {
  async operands(cell, { q, k, w }) {
    const [a, b, weights] = await Promise.all(
      [cell.along(q, cell.row), cell.along(k, cell.column), cell.along(w, 0)]);
    const sums = Float64Array.from(a.values, (x, i) => Math.tanh(x + b.values[i]));
    return { tanh: { values: /** @type {any} */ (sums), link: a.link }, w: weights };
  },
  evaluate: ({ tanh, w }) => innerProduct(tanh, w),
  show: ({ tanh, w }) => ({ head: ["number", "tanh(q + k)", "weight"], terms: productTerms(tanh, w) }),
};

/** @type {Operation<SumOf<"scale">, Scalar>} */
const scale = {
  operands: (cell, { x }) => cell.one(x),
  evaluate: ({ value }, { by }) => value * by,
  show: ({ value, link }, { by }) => ({ steps: [["score", value, link], ["÷ √d", 1 / by]] }),
};

/** @type {Operation<SumOf<"softmax">, { x: Vector, scores: Float64Array }>} */
const softmax = {
  async operands(cell, { x, bias, mask }) {
    const [row, added, allowed] = await Promise.all(
      [x, bias, mask].map((name) => (name ? cell.along(name, cell.row) : null)));
    const vector = /** @type {Vector} */ (row);
    const scores = Float64Array.from(vector.values, (score, i) =>
      (allowed && !allowed.values[i] ? -Infinity : score + (added?.values[i] ?? 0)));
    return { x: vector, scores };
  },
  evaluate({ scores }, _, { column }) {
    const { exps, divisor } = exponentials(scores);
    return divisor ? exps[column] / divisor : 0;
  },
  show({ x, scores }, { bias }, cell) {
    const { exps, divisor } = exponentials(scores);
    const tokens = cell.tokens(cell.name, "columns");
    const terms = Array.from(exps, (value, i) => ({
      name: tokenName(tokens, i),
      parts: [{ value: scores[i], link: x.link(i) }, constant(value)],
      value: divisor ? value / divisor : 0,
      chosen: i === cell.column,
    })).filter((_, i) => scores[i] !== -Infinity);
    const head = ["of", bias ? "score + bias" : "score", "exp(score − largest)"];
    return { head, terms, last: "share", size: 1, divisor };
  },
};

/** @param {Float64Array} scores */
function exponentials(scores) {
  const peak = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const exps = scores.map((score) => (peak === -Infinity ? 0 : Math.exp(score - peak)));
  return { exps, divisor: exps.reduce((a, b) => a + b, 0) };
}

/** @type {Operation<SumOf<"average">, { w: Vector, v: Vector }>} */
const average = {
  operands: async (cell, { w, v }) =>
    ({ w: await cell.along(w, cell.row), v: await cell.down(v, cell.column) }),
  evaluate: ({ w, v }) => innerProduct(w, v),
  show({ w, v }, sum, cell) {
    const tokens = cell.tokens(sum.w, "columns");
    return { head: ["of", "weight", "value"], terms: productTerms(w, v, (i) => tokenName(tokens, i)) };
  },
};

/** @type {Operation<SumOf<"join">, { x: Scalar, head: number, i: number }>} */
const join = {
  async operands(cell, { x }) {
    const width = last(cell.manifest.tensors[x].shape);
    const [head, i] = [Math.floor(cell.column / width), cell.column % width];
    return { x: await cell.one(x, cell.row, i, head), head, i };
  },
  evaluate: ({ x }) => x.value,
  show: ({ x, head, i }) => ({ steps: [[`number ${i} of head ${head}`, x.value, x.link]] }),
};

/** @type {Operation<SumOf<"activate">, { x: Scalar, times: Scalar | null }>} */
const activate = {
  operands: async (cell, { x, times }) =>
    ({ x: await cell.one(x), times: times ? await cell.one(times) : null }),
  evaluate: ({ x, times }, { f }) => ACTIVATIONS[f](x.value) * (times?.value ?? 1),
  show({ x, times }, sum) {
    /** @type {Steps["steps"]} */
    const steps = [["x", x.value, x.link], [`${sum.f}(x)`, ACTIVATIONS[sum.f](x.value)]];
    if (times) steps.push([`× ${lastPart(sum.times ?? "")}`, times.value, times.link]);
    return { steps };
  },
};

/** @type {Operation<SumOf<"gate">, { x: Scalar, by: Scalar }>} */
const gate = {
  operands: async (cell, { x, by }) => ({ x: await cell.one(x), by: await cell.one(by, cell.row, 0) }),
  evaluate: ({ x, by }) => x.value * sigmoid(by.value),
  show: ({ x, by }) =>
    ({ steps: [["x", x.value, x.link], ["gate", by.value, by.link], ["× σ(gate)", sigmoid(by.value)]] }),
};

/** @type {Operation<SumOf<"largest">, Scalar[]>} */
const largest = {
  operands: (cell, { x }) => Promise.all([0, 1].map((i) => cell.one(x, cell.row, 2 * cell.column + i))),
  evaluate: (pair) => Math.max(...pair.map(({ value }) => value)),
  show: (pair, _, { column }) => ({
    steps: pair.map(({ value, link }, i) => [`number ${2 * column + i}`, value, link]),
    note: "The larger of two.",
  }),
};

/** @type {Operation<SumOf<"multiply">, { x: Scalar, by: Scalar }>} */
const multiply = {
  operands: async (cell, { x, by }) => ({ x: await cell.one(x), by: await cell.one(by) }),
  evaluate: ({ x, by }) => x.value * by.value,
  show: ({ x, by }, sum) =>
    ({ steps: [[lastPart(sum.x), x.value, x.link], [`× ${lastPart(sum.by)}`, by.value, by.link]] }),
};

/** @type {Operation<SumOf<"blend">, { x: Scalar, y: Scalar, by: Scalar }>} */
const blend = {
  operands: async (cell, { x, y, by }) =>
    ({ x: await cell.one(x), y: await cell.one(y), by: await cell.one(by) }),
  evaluate: ({ x, y, by }) => by.value * y.value + (1 - by.value) * x.value,
  show: ({ x, y, by }, sum) => ({
    head: ["of", "number", lastPart(sum.by)],
    terms: [productTerm(lastPart(sum.y), y, by),
      productTerm(`${lastPart(sum.x)}, by 1 − ${lastPart(sum.by)}`, x, { ...by, value: 1 - by.value })],
  }),
};

/** @type {Operation<SumOf<"combine">, { a: Scalar, b: Scalar }[]>} */
const combine = {
  operands: (cell, { terms }) =>
    Promise.all(terms.map(async ([a, b]) =>
      ({ a: await cell.one(a), b: b ? await cell.one(b) : constant(1) }))),
  evaluate(values, { f }) {
    const total = values.reduce((sum, { a, b }) => sum + a.value * b.value, 0);
    return f ? ACTIVATIONS[f](total) : total;
  },
  show: (values, { terms, f }) => ({
    head: ["product of", "first", "second"],
    terms: values.map(({ a, b }, i) =>
      productTerm(terms[i].filter((name) => name !== null).map(lastPart).join(" · "), a, b)),
    note: f && `The result is ${f} of the sum.`,
  }),
};

/** @type {Operation<SumOf<"concat">, { x: Scalar, name: string }>} */
const concat = {
  async operands(cell, { x }) {
    let column = cell.column;
    for (const name of x) {
      const width = last(cell.manifest.tensors[name].shape);
      if (column < width) return { x: await cell.one(name, cell.row, column), name };
      column -= width;
    }
    throw new Error("this number is beyond the values side by side");
  },
  evaluate: ({ x }) => x.value,
  show: ({ x, name }) => ({ steps: [[`a part of ${name}`, x.value, x.link]] }),
};

/** @type {{ [D in keyof SumOperations]: Operation<SumOf<D>, any> }} */
export const OPERATIONS = {
  "look up": lookUp, add, same, linear, turn, norm, dot, additive, scale, softmax, average, join, activate,
  gate, largest, multiply, blend, combine, concat,
};
