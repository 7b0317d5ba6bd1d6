/* Which part said this, in a saved model: what the embedding, each head and each feed-forward layer add to a
   token's logit, as regard/viewer/attribution.py computes it. */

import { allAttentions } from "./selection.js";

const EPS = 2 ** -23; // of float32

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {{ does: "term", by: number, first: number }} Added */
/** @typedef {Added | SumOf<"same"> | SumOf<"scale"> | SumOf<"norm">} Step */

/**
 * A value that is added to the residual stream, and what happens to it on the way to the logits, the step
 * nearest to the logits first; `heads`: what it is computed from.
 * @typedef {{ name: string, steps: Step[], heads: string | null }} Part
 */

/** @typedef {(name: string, head: number | null, value: number) => void} Add */

/**
 * What each part adds to the logit of a token at a row of the logits.
 * @type {(manifest: Manifest, run: Run, row: number, token: number) => Attribution}
 */
export function attributeLogit(manifest, run, row, token) {
  const last = /** @type {SumOf<"linear">} */ (manifest.sums.logits);
  /** @type {Map<string, Contribution>} */
  const values = new Map();
  /** @type {Add} */
  const add = (name, head, value) => {
    const known = values.get(`${name} ${head}`) ?? { name, head, value: 0 };
    values.set(`${name} ${head}`, { ...known, value: known.value + value });
  };
  /** @type {Record<string, number[]>} */
  const words = {};
  if (last.b) add("bias", null, run.row(last.b, 0)[token]);
  for (const part of listParts(manifest.sums, last)) {
    const [g, at] = follow(run, part, Float64Array.from(run.row(last.W, token)), row);
    if (part.heads) addHeads(manifest, run, part, g, at, add, words);
    else {
      const isVector = part.name.startsWith("@") && run.weight(part.name).shape.length === 1;
      const x = at >= 0 || isVector ? run.row(part.name, isVector ? 0 : at) : undefined;
      if (x?.length) add(part.name.endsWith("bias") ? "bias" : part.name, null, dot(x, g, 0));
    }
  }
  const parts = [...values.values()];
  const total = parts.reduce((sum, { value }) => sum + value, 0);
  return { token, row, logit: run.row("logits", row)[token], total, parts, words };
}

/** Everything whose sum the logits are. @type {(sums: Manifest["sums"], last: SumOf<"linear">) => Part[]} */
function listParts(sums, last) {
  const x = /** @type {string} */ (last.x);
  return walkBack(sums, x, typeof last.row === "number" ? [{ does: "same", x, row: last.row }] : []);
}

/** The parts that a value is the sum of; the steps lead from it to the logits.
 * @type {(sums: Manifest["sums"], name: string, steps: Step[]) => Part[]} */
function walkBack(sums, name, steps) {
  const op = sums[name];
  if (op?.does === "same" && op.column === undefined && op.share === undefined) {
    return walkBack(sums, op.x, op.row === undefined ? steps : [...steps, op]);
  }
  if (op?.does === "scale") return walkBack(sums, op.x, [...steps, op]);
  if (op?.does === "add") {
    return op.terms.flatMap(([term, by, first]) =>
      walkBack(sums, term, [...steps, { does: "term", by, first }]));
  }
  const layer = /(?:^|\.)\d+\./.test(name);
  if (op?.does === "norm" && (layer || !steps.some(({ does }) => does === "norm"))) {
    return [...walkBack(sums, op.x, [...steps, op]), ...(op.b ? [{ name: op.b, steps, heads: null }] : [])];
  }
  const joined = op?.does === "linear" && op.f === undefined ? sums[String(op.x)] : undefined;
  if (op?.does === "linear" && joined?.does === "join") {
    return [{ name, steps, heads: joined.x }, ...(op.b ? [{ name: op.b, steps, heads: null }] : [])];
  }
  return [{ name, steps, heads: null }];
}

/** How much the logit changes with each number of a part, and the part's row.
 * @type {(run: Run, part: Part, g: Float64Array, row: number) => [g: Float64Array, row: number]} */
function follow(run, { steps }, g, row) {
  for (const step of steps) {
    if (step.does === "same") {
      const rows = run.count(step.x);
      row = ((/** @type {number} */ (step.row) % rows) + rows) % rows;
    } else if (step.does === "norm") g = throughNorm(run, step, g, row);
    else {
      const { by } = step;
      g = g.map((x) => x * by);
      if (step.does === "term") row -= step.first;
    }
  }
  return [g, row];
}

/** A norm is linear once its scale is known.
 * @type {(run: Run, norm: SumOf<"norm">, g: Float64Array, row: number) => Float64Array} */
function throughNorm(run, { x: name, W, eps, rms }, g, row) {
  const x = Float64Array.from(run.row(name, row));
  const mean = rms ? 0 : average(x);
  const scale = Math.sqrt(average(x.map((one) => (one - mean) ** 2)) + (eps ?? EPS));
  const weight = run.row(W, 0);
  const passed = g.map((one, i) => (one * weight[i]) / scale);
  const less = rms ? 0 : average(passed);
  return passed.map((one) => one - less);
}

/** @param {Float64Array} x */
const average = (x) => x.reduce((sum, one) => sum + one, 0) / x.length;

/** @type {(x: ArrayLike<number>, y: ArrayLike<number>, from: number) => number} x times a part of y */
function dot(x, y, from) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[from + i];
  return sum;
}

/**
 * What each head adds; and, in `words`, from which keys it was read.
 * @type {(manifest: Manifest, run: Run, part: Part, g: Float64Array, row: number,
 *   add: Add, words: Record<string, number[]>) => void}
 */
function addHeads(manifest, run, { name, heads }, g, row, add, words) {
  const { W } = /** @type {SumOf<"linear">} */ (manifest.sums[name]);
  const out = run.row(String(heads), row); // (H * d)
  const u = new Float64Array(out.length); // through the output projection
  for (let i = 0; i < g.length; i++) run.row(W, i).forEach((w, j) => { u[j] += g[i] * w; });
  const { heads: count } = /** @type {ProgramStep} */ (run.program.byName.get(String(heads)));
  const wide = out.length / count;
  for (let h = 0; h < count; h++) {
    const value = dot(out.subarray(h * wide, (h + 1) * wide), u, h * wide);
    add(name.slice(0, name.lastIndexOf(".")), h, value);
  }
  const op = manifest.sums[String(heads)];
  if (op?.does !== "average" || op.global) return;
  const side = allAttentions(manifest).find((one) => `${one.name}.weights` === op.w)?.columns;
  const keys = run.count(op.v);
  if (!side) return;
  words[side] ??= new Array(keys).fill(0);
  const weights = run.row(op.w, row); // (H * S)
  for (let s = 0; s < keys; s++) {
    const v = run.row(op.v, s); // (G * d): keys may be shared by several heads
    for (let h = 0; h < count; h++) {
      const from = Math.floor((h * v.length) / wide / count) * wide;
      words[side][s] += weights[h * keys + s] * dot(v.subarray(from, from + wide), u, h * wide);
    }
  }
}
