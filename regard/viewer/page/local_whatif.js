/* What if, with a saved model: the same run with changes, and what each head contributes. */

import { messageOf } from "./dom.js";
import { argmax, pause, readInput, topIds, trace, write } from "./local_tasks.js";

const TOP = 12; // most probable tokens before, and after

/** @typedef {import("./local_manifest.js").Made} Made */
/** @typedef {import("./local_run.js").Edits} Edits */
/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {import("./local_tasks.js").Model} Model */
/** @typedef {(t: number, row: Float32Array) => void} RowEdit changes a row in place */

/** @type {(heads: number, head: number, fill: (part: Float32Array) => void) => RowEdit} */
const editHead = (heads, head, fill) => (_, row) => {
  const width = row.length / heads;
  fill(row.subarray(head * width, (head + 1) * width));
};

/** New weights of a query's row: the weight of one key, the others share the rest as before; or all of them.
 * @type {(to: Change["to"], weight?: number) => (part: Float32Array) => void} */
const replaceWeights = (to, weight) => (part) => {
  if (weight !== undefined && typeof to === "number") {
    part[to] = 0;
    const rest = (1 - weight) / Math.max(1e-30, part.reduce((a, b) => a + b, 0));
    part.forEach((p, s) => {
      part[s] = s === to ? weight : p * rest;
    });
  } else if (to === "even") {
    const count = part.reduce((sum, p) => sum + (p > 0 ? 1 : 0), 0);
    part.forEach((p, s) => {
      part[s] = p > 0 ? 1 / count : 0;
    });
  } else if (Array.isArray(to)) {
    const sum = to.reduce((a, b) => a + b, 0);
    part.forEach((_, s) => {
      part[s] = (to[s] ?? 0) / sum;
    });
  } else part.fill(0).fill(1, Number(to), Number(to) + 1);
};

/** @type {(model: Model, change: Change) => number} the heads of an attention */
function headsOf({ program }, { part = "", head = 0 }) {
  const step = program.byName.get(`${part}.weights`);
  if (!step) throw new Error(`${part}: not an attention of this model`);
  if (head >= step.heads) throw new Error(`${part}: there are heads 0 to ${step.heads - 1}, not ${head}`);
  return step.heads;
}

/** @type {(model: Model, made: Made, change: Change) => void} */
function checkWeights(model, { run }, change) {
  const { part = "", query = 0, to, weight = 0 } = change;
  const keys = run.row(`${part}.weights`, 0).length / headsOf(model, change);
  if (query >= run.count(`${part}.weights`)) throw new Error(`query: there is no token ${query}`);
  if (Array.isArray(to) && to.length !== keys) throw new Error(`to: give ${keys} weights, not ${to.length}`);
  if (Number(to) >= keys) throw new Error(`to: there is no token ${to}`);
  if (!(weight >= 0 && weight <= 1)) throw new Error(`weight: give a weight from 0 to 1, not ${weight}`);
}

/** The rows of a part on another input.
 * @type {(model: Model, made: Made, change: Change) => Promise<RowEdit>} */
async function takeRows(model, made, { part = "", at, input }) {
  if (input === undefined) throw new Error("input: give the other input");
  const reading = readInput(model, input);
  const { run } = await trace(model, { ...reading, written: made.written ?? undefined });
  const [here, there] = [made.run.count(part), run.count(part)];
  if (at === undefined && here !== there) {
    throw new Error(`the other input has ${there} tokens, this one ${here}; take one token's vector, or give `
      + "as many tokens");
  }
  return (t, row) => {
    if (at === undefined || at === t) row.set(run.row(part, t));
  };
}

/** Changes of the page as edits of a run.
 * @type {(model: Model, made: Made, changes: Change[]) => Promise<Edits>} */
async function toEdits(model, made, changes) {
  /** @type {Map<string, RowEdit[]>} */
  const edits = new Map();
  const add = (/** @type {string} */ name, /** @type {RowEdit} */ edit) =>
    edits.set(name, [...(edits.get(name) ?? []), edit]);
  const hide = changes.filter(({ kind }) => kind === "hide").map(({ token }) => Number(token));
  for (const change of changes) {
    const { kind, part = "", head = 0, query, to, weight } = change;
    if (kind === "silence") {
      add(`${part}.heads`, editHead(headsOf(model, change), head, (row) => row.fill(0)));
    } else if (kind === "weights") {
      checkWeights(model, made, change);
      const edit = editHead(headsOf(model, change), head, replaceWeights(to, weight));
      add(`${part}.weights`, (t, row) => (t === query ? edit(t, row) : undefined));
    } else if (kind === "take") add(part, await takeRows(model, made, change));
  }
  return {
    hide,
    edit(name, t, row) {
      const own = edits.get(name);
      if (!own) return row;
      const copy = row.slice();
      own.forEach((edit) => edit(t, copy));
      return copy;
    },
  };
}

/**
 * What is wrong with each change, on its own.
 * @type {(model: Model, made: Made, changes: Change[]) => Promise<(string | null)[]>}
 */
export async function findProblems(model, made, changes) {
  const problems = [];
  for (const change of changes) {
    problems.push(await toEdits(model, made, [change]).then(() => null, messageOf));
  }
  return problems;
}

/**
 * The whole run with changes.
 * @type {(model: Model, made: Made, changes: Change[]) => Promise<Made>}
 */
export async function traceChanged(model, made, changes) {
  const edits = await toEdits(model, made, changes);
  const { run } = await trace(model, { ...made.reading, written: made.written ?? undefined }, edits);
  return { ...made, run };
}

/** @param {Float32Array} row */
function logSoftmax(row) {
  const peak = row.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = row.reduce((total, x) => total + Math.exp(x - peak), 0);
  return Float64Array.from(row, (x) => x - peak - Math.log(sum));
}

/** Σ p log(p / q), in nats.
 * @type {(p: Float64Array, q: Float64Array) => number} */
const divergence = (p, q) =>
  p.reduce((sum, x, i) => sum + (x === -Infinity ? 0 : Math.exp(x) * (x - q[i])), 0);

/** @param {Run} run */
const logitRows = (run) => Array.from({ length: run.count("logits") }, (_, t) => run.row("logits", t));

/** The rows of the logits that are the answer.
 * @type {(model: Model, run: Run) => number[]} */
export function answerRows({ task }, run) {
  const all = Array.from(logitRows(run).keys());
  if (task.reads === "write") return all.slice(-1);
  const blanks = all.filter((t) => task.mask !== undefined && run.ids.text?.[t] === task.mask);
  return blanks.length ? blanks : all;
}

/** The most probable tokens of two rows of logits, with their logits and probabilities in both.
 * @type {(model: Model, before: Float32Array, after: Float32Array) => (WordChange & { id: number })[]} */
export function topTokens({ task, writer }, before, after) {
  const [p, q] = [before, after].map((row) => logSoftmax(row).map(Math.exp));
  const best = [p, q].flatMap((row) => topIds(row, TOP));
  const ids = [...new Set(best)].sort((a, b) => Math.max(p[b], q[b]) - Math.max(p[a], q[a]) || a - b);
  return ids.map((id) => ({
    id, word: task.labels ? task.labels[id] : writer.words([id])[0],
    before: p[id], after: q[id], logit_before: before[id], logit_after: after[id],
  }));
}

/**
 * The answer before and after changes.
 * @type {(model: Model, made: Made, changes: Change[], row?: number) =>
 *   Promise<Omit<ChangeResult, "patchable">>}
 */
export async function changeRun(model, made, changes, row) {
  const edits = await toEdits(model, made, changes);
  const { run } = await trace(model, { ...made.reading, written: made.written ?? undefined }, edits);
  const [before, after] = [made.run, run].map(logitRows);
  const kl = before.map((logits, t) => divergence(logSoftmax(logits), logSoftmax(after[t])));
  const rows = answerRows(model, made.run);
  const largest = rows.reduce((a, b) => (kl[b] > kl[a] ? b : a));
  const at = row === undefined ? largest : Math.min(Math.max(0, row), after.length - 1);
  const say = async (/** @type {Edits} */ how) =>
    (model.task.writes ? model.writer.decode(await write(model, made.reading, how)) : null);
  return {
    row: at, top: topTokens(model, before[at], after[at]), kl: kl.map((x) => (Number.isFinite(x) ? x : null)),
    mean: kl.every(Number.isFinite) ? rows.reduce((sum, t) => sum + kl[t], 0) / rows.length : null,
    text: { before: await say({}), after: await say(edits) },
  };
}

/**
 * How much silencing each head changes the answer, head after head.
 * @param {Model} model
 * @param {Made} made
 * @param {AttentionInfo[]} attentions
 * @returns {AsyncGenerator<HeadEffect>}
 */
export async function* measureHeads(model, made, attentions) {
  const rows = answerRows(model, made.run);
  const before = rows.map((t) => logSoftmax(made.run.row("logits", t)));
  for (const { name: part, heads } of attentions) {
    for (let head = 0; head < heads; head++) {
      const edits = await toEdits(model, made, [{ kind: "silence", part, head }]);
      const { run } = await trace(model, { ...made.reading, written: made.written ?? undefined }, edits);
      const after = rows.map((t) => logSoftmax(run.row("logits", t)));
      const answer = before.map((p, i) => made.written?.[rows[i]] ?? argmax(p));
      const mean = (/** @type {(i: number) => number} */ f) =>
        rows.reduce((sum, _, i) => sum + f(i), 0) / rows.length;
      yield {
        part, head, kl: mean((i) => divergence(before[i], after[i])),
        log_probability: mean((i) => after[i][answer[i]] - before[i][answer[i]]),
      };
      await pause();
    }
  }
}
