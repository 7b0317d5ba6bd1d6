/* The operations of a saved model, row by row: one entry for each that a step of its program can name.

   A row holds the numbers of all heads side by side. Of scores and weights, that is a number for each key,
   head by head. */

import { ACTIVATIONS } from "./operands.js";

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {(run: Run, step: ProgramStep, t: number) => Float32Array} RowOperation */

/** @type {(x: number) => number} */
const identity = (x) => x;

/** @param {string | undefined} name */
const activation = (name) => (name ? ACTIVATIONS[/** @type {FunctionName} */ (name)] : identity);

/** Σ a[i + at] b[j + i], of `count` numbers.
 * @type {(a: Float32Array, at: number, b: Float32Array, from: number, count: number) => number} */
export function dotProduct(a, at, b, from, count) {
  let s0 = 0; // four sums, of which none waits for another
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  let i = 0;
  for (; i + 3 < count; i += 4) {
    s0 += a[at + i] * b[from + i];
    s1 += a[at + i + 1] * b[from + i + 1];
    s2 += a[at + i + 2] * b[from + i + 2];
    s3 += a[at + i + 3] * b[from + i + 3];
  }
  for (; i < count; i++) s0 += a[at + i] * b[from + i];
  return s0 + s1 + s2 + s3;
}

/** Each head of a row, so many times, if the result has more heads.
 * @type {(row: Float32Array, step: ProgramStep) => Float32Array} */
function repeatHeads(row, { heads, width, share = 1 }) {
  if (share === 1 || row.length === heads * width) return row;
  const result = new Float32Array(heads * width);
  for (let h = 0; h < heads; h++) {
    const from = Math.floor(h / share) * width;
    result.set(row.subarray(from, from + width), h * width);
  }
  return result;
}

/** The row that an operand has at t, or the one that the step names.
 * @type {(run: Run, name: string, row: number | undefined, t: number) => Float32Array} */
function operandRow(run, name, row, t) {
  return run.row(name, row === undefined ? t : row < 0 ? row + run.count(name) : row);
}

/** @type {(rows: Float32Array[]) => Float32Array} */
function sideBySide(rows) {
  if (rows.length === 1) return rows[0];
  const result = new Float32Array(rows.reduce((sum, row) => sum + row.length, 0));
  let at = 0;
  for (const row of rows) {
    result.set(row, at);
    at += row.length;
  }
  return result;
}

/** The operands of a linear layer, side by side.
 * @type {RowOperation} */
const concat = (run, { x, row }, t) => sideBySide(/** @type {string[]} */ ([x].flat()).map((name, i) =>
  operandRow(run, name, Array.isArray(row) ? row[i] : row, t)));

/** What a linear layer is applied to, in some rows.
 * @type {(run: Run, step: ProgramStep, from: number, to: number) => Float32Array[]} */
export const linearInputs = (run, step, from, to) =>
  Array.from({ length: Math.max(0, to - from) }, (_, i) => concat(run, step, from + i));

/** f(W x + b) of some rows at once: each row of W is read once for all of them; or W x is computed already.
 * @type {(run: Run, step: ProgramStep, inputs: Float32Array[], products?: Float32Array[] | null) =>
 *   Float32Array[]} */
export function linearRows(run, step, inputs, products = null) {
  const { data: W, shape: [N, K] } = run.weight(/** @type {string} */ (step.W));
  const b = step.b ? run.weight(/** @type {string} */ (step.b)).data : null;
  const f = activation(/** @type {string | undefined} */ (step.f));
  const rows = inputs.map(() => new Float32Array(N));
  for (let n = 0; n < N; n++) {
    for (let i = 0; i < inputs.length; i++) {
      const sum = products ? products[i][n] : dotProduct(inputs[i], 0, W, n * K, K);
      rows[i][n] = f(sum + (b ? b[n] : 0));
    }
  }
  return step.share ? rows.map((row) => repeatHeads(row, step)) : rows;
}

/** @type {RowOperation} */
const linear = (run, step, t) => linearRows(run, step, linearInputs(run, step, t, t + 1))[0];

/** @type {RowOperation} */
function lookUp(run, { W, side, by }, t) {
  const id = by === "position" ? t : by ? run.row(/** @type {string} */ (by), t)[0] : run.ids[side ?? ""][t];
  return run.row(W ?? "", id).slice();
}

/** @type {RowOperation} */
function wave(run, { W, f }, t) {
  const { data } = run.weight(W ?? "");
  const [name] = /** @type {FunctionName[]} */ (f);
  return Float32Array.from(data, (frequency) => ACTIVATIONS[name](Math.fround(t * frequency)));
}

/** @type {RowOperation} */
function distance(run, { W, far, rows, heads }, t) {
  const { data } = run.weight(W ?? "");
  const keys = run.count(rows);
  const result = new Float32Array(heads * keys);
  for (let h = 0; h < heads; h++) {
    for (let s = 0; s < keys; s++) {
      const near = far === undefined ? 0 : Math.max(-far, Math.min(far, s - t)) + far;
      result[h * keys + s] = far === undefined ? -data[h] * Math.abs(s - t) : data[near * heads + h];
    }
  }
  return result;
}

/** @type {RowOperation} */
function add(run, { terms, width, heads }, t) {
  const result = new Float32Array(heads * width);
  for (const [name, factor, first] of /** @type {Term[]} */ (terms)) {
    const row = t - first;
    if (row < 0 || (name.startsWith("@") && row > 0)) continue; // a weight is added to row 0 only
    const x = run.row(name, row);
    for (let i = 0; i < result.length; i++) result[i] += factor * x[i];
  }
  return result;
}

/** @type {RowOperation} */
function same(run, step, t) {
  const { column } = step;
  if (column !== undefined) { // one number of each row
    return Float32Array.from({ length: run.count(one(step.x)) }, (_, i) => run.row(one(step.x), i)[column]);
  }
  return repeatHeads(operandRow(run, one(step.x), /** @type {number | undefined} */ (step.row), t), step);
}

/** The logarithm of a softmax over the rows of a column, where an answer may begin or end.
 * @type {(run: Run, name: string, column: number) => number[]} */
export function logPlaces(run, name, column) {
  const scores = Array.from({ length: run.count(name) }, (_, t) =>
    (run.may?.[t] === false ? -Infinity : run.row(name, t)[column]));
  const peak = Math.max(...scores);
  const sum = scores.reduce((total, x) => total + Math.exp(x - peak), 0);
  return scores.map((x) => x - peak - Math.log(sum));
}

/** @type {(x: string | string[] | undefined) => string} */
const one = (x) => /** @type {string} */ (x);

/** @type {RowOperation} */
function turn(run, step, t) {
  const x = repeatHeads(run.row(one(step.x), t), step);
  const [cos, sin] = [run.row(step.cos ?? "", t), run.row(step.sin ?? "", t)];
  const half = step.width / 2;
  const result = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += step.width) {
    for (let i = at; i < at + half; i++) {
      const [c, s] = [cos[i - at], sin[i - at]];
      result[i] = x[i] * c - x[i + half] * s;
      result[i + half] = x[i + half] * c + x[i] * s;
    }
  }
  return result;
}

/** Of each head, or of the whole vector.
 * @type {RowOperation} */
function norm(run, { x, W, b, f, rms, eps }, t) {
  const values = Float64Array.from(run.row(one(x), t), activation(/** @type {string | undefined} */ (f)));
  const gamma = run.weight(W ?? "").data;
  const beta = b ? run.weight(b).data : null;
  const size = gamma.length;
  const result = new Float32Array(values.length);
  for (let at = 0; at < values.length; at += size) {
    const part = values.subarray(at, at + size);
    const mean = rms ? 0 : part.reduce((a, b) => a + b, 0) / size;
    const square = part.reduce((a, b) => a + (b - mean) ** 2, 0) / size;
    const deviation = Math.sqrt(square + (eps ?? 1.1920929e-7));
    for (let i = 0; i < size; i++) {
      result[at + i] = ((part[i] - mean) / deviation) * gamma[i] + (beta ? beta[i] : 0);
    }
  }
  return result;
}

/** What a global token uses instead.
 * @type {(run: Run, step: ProgramStep, t: number) => [string, string] | undefined} */
const globalOperands = (run, { global }, t) => (t < run.count("globals") ? global : undefined);

/** @type {RowOperation} */
function dot(run, step, t) {
  const { heads } = step;
  const [q, k] = globalOperands(run, step, t) ?? [step.q, step.k];
  const query = run.row(q ?? "", t);
  const keys = run.count(k ?? "");
  const d = query.length / heads;
  const result = new Float32Array(heads * keys);
  for (let s = 0; s < keys; s++) {
    const key = run.row(k ?? "", s);
    for (let h = 0; h < heads; h++) result[h * keys + s] = dotProduct(query, h * d, key, h * d, d);
  }
  return result;
}

/** @type {RowOperation} */
function additive(run, { q, k, w }, t) {
  const query = run.row(q ?? "", t);
  const weights = run.weight(w ?? "").data;
  const result = new Float32Array(run.count(k ?? ""));
  for (let s = 0; s < result.length; s++) {
    const key = run.row(k ?? "", s);
    let sum = 0;
    for (let i = 0; i < query.length; i++) sum += weights[i] * Math.tanh(query[i] + key[i]);
    result[s] = sum;
  }
  return result;
}

/** @type {RowOperation} */
const scale = (run, { x, by }, t) => run.row(one(x), t).map((value) => value * Number(by));

/** exp(x + bias) / Σ exp for each head, without what is masked.
 * @type {RowOperation} */
function softmax(run, { x, bias, mask, heads }, t) {
  const scores = run.row(one(x), t);
  const added = bias ? run.row(bias, t) : null;
  const allowed = mask ? run.row(mask, t) : null;
  const keys = scores.length / heads;
  const result = new Float32Array(scores.length);
  const exps = new Float64Array(keys);
  for (let at = 0; at < scores.length; at += keys) {
    let [peak, sum] = [-Infinity, 0];
    for (let s = 0; s < keys; s++) {
      exps[s] = allowed && !allowed[s] ? -Infinity : scores[at + s] + (added ? added[at + s] : 0);
      peak = Math.max(peak, exps[s]);
    }
    if (peak === -Infinity) continue; // nothing may be attended to
    for (let s = 0; s < keys; s++) sum += exps[s] = Math.exp(exps[s] - peak);
    for (let s = 0; s < keys; s++) result[at + s] = exps[s] / sum;
  }
  return result;
}

/** @type {RowOperation} */
function average(run, step, t) {
  const { w, heads, width } = step;
  const v = globalOperands(run, step, t)?.[1] ?? step.v;
  const weights = run.row(w ?? "", t);
  const keys = weights.length / heads;
  const sums = new Float64Array(heads * width);
  for (let s = 0; s < keys; s++) {
    const value = run.row(v ?? "", s);
    for (let h = 0; h < heads; h++) {
      const weight = weights[h * keys + s];
      if (weight === 0) continue;
      for (let i = h * width; i < (h + 1) * width; i++) sums[i] += weight * value[i];
    }
  }
  return Float32Array.from(sums);
}

/** @type {RowOperation} */
function mean(run, { x, width }) {
  const sums = new Float64Array(width);
  const count = run.count(one(x));
  for (let t = 0; t < count; t++) {
    const row = run.row(one(x), t);
    for (let i = 0; i < width; i++) sums[i] += row[i];
  }
  return Float32Array.from(sums, (sum) => sum / count);
}

/** @type {RowOperation} */
function activate(run, { x, f, times, row }, t) {
  const values = operandRow(run, one(x), /** @type {number | undefined} */ (row), t);
  const g = activation(/** @type {string} */ (f));
  const factor = times ? run.row(times, t) : null;
  return values.map((value, i) => g(value) * (factor ? factor[i] : 1));
}

/** @type {RowOperation} */
function gate(run, { x, by }, t) {
  const open = ACTIVATIONS.sigmoid(run.row(String(by), t)[0]);
  return run.row(one(x), t).map((value) => value * open);
}

/** @type {RowOperation} */
function largest(run, { x, width }, t) {
  const row = run.row(one(x), t);
  return Float32Array.from({ length: width }, (_, i) => Math.max(row[2 * i], row[2 * i + 1]));
}

/** @type {RowOperation} */
function multiply(run, { x, by }, t) {
  const factor = run.row(String(by), t);
  return run.row(one(x), t).map((value, i) => value * factor[i]);
}

/** @type {RowOperation} */
function blend(run, { x, y, by }, t) {
  const [from, share] = [run.row(one(x), t), run.row(String(by), t)];
  return run.row(y ?? "", t).map((value, i) => share[i] * value + (1 - share[i]) * from[i]);
}

/** @type {RowOperation} */
function combine(run, { terms, f, width }, t) {
  const g = activation(/** @type {string | undefined} */ (f));
  const sums = new Float64Array(width);
  for (const [a, b] of /** @type {[string, string | null][]} */ (terms)) {
    const [first, second] = [run.row(a, t), b === null ? null : run.row(b, t)];
    for (let i = 0; i < width; i++) sums[i] += first[i] * (second ? second[i] : 1);
  }
  return Float32Array.from(sums, g);
}

/** The state before, or behind; at the end the first one.
 * @type {RowOperation} */
function before(run, { x, first, row = 0, back, rows, width }, t) {
  const from = t + (back ? 1 : -1);
  if (from >= 0 && from < run.count(rows)) return run.row(one(x), from);
  return first ? run.row(first, /** @type {number} */ (row)) : new Float32Array(width);
}

/** @type {RowOperation} */
function rows(run, { of, width }, t) {
  const step = /** @type {ProgramStep} */ ({ heads: 1, width, ...(/** @type {object[]} */ (of))[t] });
  return rowOperation(step)(run, step, 0);
}

/** 1 where a query may attend; and why it may not: padding or hidden 1, future 2, window 3.
 * @type {(run: Run, step: ProgramStep, t: number) => { may: Float32Array, reason: Float32Array }} */
function maskRow(run, { name, causal, window, globals = 0 }, t) {
  const keys = run.keys(name);
  const hidden = run.hidden(name);
  const first = run.program.globals === null ? globals : run.count("globals");
  const reason = Float32Array.from({ length: keys }, (_, s) => {
    if (causal && s > t) return 2;
    if (window !== undefined && Math.abs(s - t) > window && s >= first && t >= first) return 3;
    return hidden.includes(s) ? 1 : 0;
  });
  return { may: reason.map((value) => (value ? 0 : 1)), reason };
}

/** @type {RowOperation} */
const segment = (run, _, t) => Float32Array.of(t >= run.second ? 1 : 0);

/** @type {Record<string, RowOperation>} */
const OPERATIONS = {
  "look up": lookUp, wave, distance, add, same, join: same, linear, turn, norm, dot, additive, scale, softmax,
  average, mean, activate, gate, largest, multiply, blend, combine, concat, before, rows, segment,
  places: (run, { x }, t) => Float32Array.from(run.row(one(x), t), (_, c) =>
    Math.exp(logPlaces(run, one(x), c)[t])),
  mask: (run, step, t) => maskRow(run, step, t).may,
  reason: (run, step, t) => maskRow(run, step, t).reason,
};

/** @param {ProgramStep} step */
export const rowOperation = (step) => OPERATIONS[step.does];
