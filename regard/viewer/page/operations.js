/* How a number is computed from others: one entry for each operation that a sum can name. */

import { last } from "./dom.js";
import { allChannels, conv, patch, pixel, regions } from "./images.js";
import { ACTIVATIONS, at, constant, headOffset, innerProduct, lastPart, productTerm, productTerms,
  tokenName, totalOf } from "./operands.js";
import { before, blend, combine, concat, gate, multiply } from "./recurrence.js";

/** @typedef {import("./operands.js").Cell} Cell */
/** @typedef {import("./operands.js").Scalar} Scalar */
/** @typedef {import("./operands.js").Vector} Vector */
/** @typedef {import("./operands.js").SumTerm} SumTerm */
/** @typedef {import("./operands.js").Steps} Steps */
/** @typedef {import("./operands.js").Terms} Terms */

/**
 * @template {object} S the sum, with the names of its operands
 * @template V what is fetched for it
 * @typedef {object} Operation
 * @property {(cell: Cell, sum: S) => Promise<V>} operands fetch the numbers that go into a cell
 * @property {(values: V, sum: S, cell: Cell) => number} evaluate
 * @property {(values: V, sum: S, cell: Cell) => Steps | Terms} show
 */

/** @type {Operation<SumOf<"look up">, { id: number, x: Scalar }>} */
const lookUp = {
  async operands(cell, { W, side, by }) {
    const id = by === "position" ? cell.position(side ?? "")
      : by ? (await cell.one(by, cell.row, 0)).value
        : cell.manifest.ids[side ?? ""].slice(-cell.shape[cell.shape.length - 2])[cell.row];
    return { id, x: await cell.one(W, id) };
  },
  evaluate: ({ x }) => x.value,
  show: ({ id, x }, { by }, { column }) =>
    ({ steps: [[`vector of ${by ? lastPart(by) : "token"} ${id}, number ${column}`, x.value]] }),
};

/** @type {Operation<SumOf<"wave">, { position: number, frequency: Scalar, name: FunctionName }>} */
const wave = {
  async operands(cell, { W, side, f }) {
    const frequency = await cell.one(W, 0, Math.floor(cell.column / f.length));
    return { position: cell.position(side), frequency, name: f[cell.column % f.length] };
  },
  evaluate: ({ position, frequency, name }) => ACTIVATIONS[name](position * frequency.value),
  show({ position, frequency, name }) {
    const angle = position * frequency.value;
    return {
      steps: [["position", position], ["× frequency", frequency.value], [name, ACTIVATIONS[name](angle)]],
      size: Math.abs(angle),
    };
  },
};

/** @type {Operation<SumOf<"distance">, { distance: number, x: Scalar }>} */
const distance = {
  async operands(cell, { W, far }) {
    const [, queries, keys] = cell.shape;
    const distance = cell.column - (cell.row + keys - queries);
    if (far === undefined) return { distance, x: await cell.one(W, 0, cell.head) };
    const row = Math.max(-far, Math.min(far, distance)) + far;
    return { distance, x: await cell.one(W, row, cell.head) };
  },
  evaluate: ({ distance, x }, { far }) => (far === undefined ? -x.value * Math.abs(distance) : x.value),
  show: ({ distance, x }, { far }) => ({
    steps: [["distance", distance], [far === undefined ? "× − slope of the head" : "of the head", x.value]],
  }),
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
  operands(cell, { x, row = cell.row, column, share = 1 }) {
    if (column !== undefined) return cell.one(x, cell.column, column);
    return cell.one(x, cell.rowOf(x, row), cell.column, Math.floor(cell.head / share));
  },
  evaluate: ({ value }) => value,
  show: ({ value, link }, { x }) => ({ steps: [[`the same as ${x}`, value, link]] }),
};

/** @type {Operation<SumOf<"linear">, { x: [string, Vector][], w: Vector, b: Scalar | null }>} */
const linear = {
  async operands(cell, { x, W, b, share, row = cell.row }) {
    const out = headOffset(cell, share) + cell.column;
    const names = [x].flat();
    const rows = names.map((name, i) => cell.rowOf(name, typeof row === "number" ? row : row[i]));
    const inputs = await Promise.all(names.map((name, i) => cell.along(name, rows[i])));
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

/** @type {Operation<SumOf<"norm">, { x: Vector, i: number, gamma: number, beta: number }>} */
const norm = {
  async operands(cell, { x, W, b, share = 1, channels }) {
    const [vector, i] = channels
      ? await allChannels(cell, x) : [await ownVector(cell, x, share), cell.column];
    const column = channels ? cell.head : cell.column;
    const [gamma, beta] = await Promise.all(
      [cell.one(W, 0, column), b ? cell.one(b, 0, column) : constant(0)]);
    return { x: vector, i, gamma: gamma.value, beta: beta.value };
  },
  evaluate(values, sum) {
    const { x, mean, deviation } = normalise(values.x, sum);
    return ((x[values.i] - mean) / deviation) * values.gamma + values.beta;
  },
  show({ x: vector, i, gamma, beta }, sum) {
    const { x, mean, deviation } = normalise(vector, sum);
    /** @type {Steps["steps"]} */
    const steps = [[sum.f ? `${sum.f} of ${lastPart(sum.x)}` : "x", x[i], vector.link(i)]];
    if (!sum.rms) steps.push([`− mean of ${x.length} numbers`, mean]);
    steps.push([sum.rms ? "÷ root mean square" : "÷ standard deviation", deviation]);
    steps.push(["× learned scale", gamma]);
    if (sum.b) steps.push(["+ learned shift", beta]);
    return { steps, size: Math.abs(gamma) + Math.abs(beta) };
  },
};

/**
 * The vector that a number is normalised in; if heads are side by side, that of its own head.
 * @type {(cell: Cell, x: string, share: number) => Promise<Vector>}
 */
async function ownVector(cell, x, share) {
  const perHead = (cell.manifest.tensors[x]?.shape.length ?? 2) > 2;
  const row = await cell.along(x, cell.row, perHead ? Math.floor(cell.head / share) : cell.head);
  if (perHead || cell.shape.length < 3) return row;
  const first = headOffset(cell, share);
  return { values: row.values.subarray(first, first + cell.shape[2]), link: (i) => row.link(first + i) };
}

/** @type {(vector: Vector, sum: SumOf<"norm">) => { x: number[], mean: number, deviation: number }} */
function normalise({ values }, { f, rms, eps }) {
  const x = Array.from(values, f ? ACTIVATIONS[f] : (value) => value);
  const mean = rms ? 0 : x.reduce((a, b) => a + b, 0) / x.length;
  const square = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
  return { x, mean, deviation: Math.sqrt(square + (eps ?? 1.1920929e-7)) };
}

/**
 * The operands of a global token, whose queries are the first of a tensor of their own; null of any other.
 * @type {(cell: Cell, sum: { global?: [string, string] }) => [string, string] | null}
 */
function globalOperands(cell, { global }) {
  return global && cell.row < cell.manifest.tensors[global[0]].shape[1] ? global : null;
}

/** @type {Operation<SumOf<"dot">, { q: Vector, k: Vector }>} */
const dot = {
  async operands(cell, sum) {
    const [q, k] = globalOperands(cell, sum) ?? [sum.q, sum.k];
    return { q: await cell.along(q, cell.row), k: await cell.along(k, cell.column) };
  },
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
  async operands(cell, sum) {
    const v = globalOperands(cell, sum)?.[1] ?? sum.v;
    return { w: await cell.along(sum.w, cell.row), v: await cell.down(v, cell.column) };
  },
  evaluate: ({ w, v }) => innerProduct(w, v),
  show({ w, v }, sum, cell) {
    const tokens = cell.tokens(sum.w, "columns");
    return { head: ["of", "weight", "value"], terms: productTerms(w, v, (i) => tokenName(tokens, i)) };
  },
};

/** @type {Operation<SumOf<"mean">, Vector>} */
const mean = {
  operands: (cell, { x }) => cell.down(x, cell.column),
  evaluate: ({ values }) => Array.from(values).reduce((sum, x) => sum + x, 0) / values.length,
  show(vector, { x }, cell) {
    const tokens = cell.tokens(x);
    const share = constant(1 / vector.values.length);
    return {
      head: ["of", "number", "share"],
      terms: Array.from(vector.values, (_, i) => productTerm(tokenName(tokens, i), at(vector, i), share)),
    };
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
  operands: async (cell, { x, times, row }) =>
    ({ x: await cell.one(x, row), times: times ? await cell.one(times) : null }),
  evaluate: ({ x, times }, { f }) => ACTIVATIONS[f](x.value) * (times?.value ?? 1),
  show({ x, times }, sum) {
    /** @type {Steps["steps"]} */
    const steps = [["x", x.value, x.link], [`${sum.f}(x)`, ACTIVATIONS[sum.f](x.value)]];
    if (times) steps.push([`× ${lastPart(sum.times ?? "")}`, times.value, times.link]);
    return { steps };
  },
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

/** @type {Operation<SumOf<"rows">, { sum: Sum, values: any }>} */
const rows = {
  async operands(cell, { of }) {
    const sum = of[cell.row];
    return { sum, values: await operationOf(sum).operands(cell, sum) };
  },
  evaluate: ({ sum, values }, _, cell) => operationOf(sum).evaluate(values, sum, cell),
  show: ({ sum, values }, _, cell) => operationOf(sum).show(values, sum, cell),
};

/** @type {{ [D in keyof SumOperations]: Operation<SumOf<D>, any> }} */
const OPERATIONS = {
  "look up": lookUp, wave, distance, add, same, linear, turn, norm, dot, additive, scale, softmax, average,
  mean, join, activate, gate, largest, multiply, blend, combine, concat, before, rows, pixel, patch, regions,
  conv,
};

/**
 * How a sum is computed; undefined if this page does not know its operation.
 * @param {Sum} sum
 * @returns {Operation<Sum, any>}
 */
export const operationOf = (sum) => /** @type {any} */ (OPERATIONS[sum.does]);
