/* When a model learned what it says now: the probability of the token at every checkpoint of its run. */

import { themeColour } from "./colour.js";
import { formatCount, formatPercent, h, label, last, range, tableTwin } from "./dom.js";
import { lineChart } from "./linechart.js";
import { selectRow } from "./next.js";
import { heading } from "./selection.js";
import { softmax } from "./softmax.js";

const MOST = 24; // checkpoints
const SIZE = /** @type {[number, number]} */ ([820, 260]);

/** @typedef {{ step: number | null, p: number, rank: number, first: number }} Moment null: the final model */

/** @type {Map<string, Moment[]>} what was measured already */
const measured = new Map();

/** @param {App} app */
export async function showLearned(app) {
  const { manifest, source, state } = app;
  const { outputs, tokens, at } = selectRow(app);
  const now = (await source.tensor("logits", { rows: `${at}:${at + 1}` })).data;
  const id = clampToken(state.said, now);
  const key = JSON.stringify([manifest.id, at, id]);
  const moments = measured.get(key) ?? await measure(app, at, id, now);
  measured.set(key, moments);
  const ids = [...new Set([id, ...moments.map(({ first }) => first)])];
  const words = outputs.kind === "classes" ? ids.map((one) => manifest.tokens.label[one])
    : await source.words(ids);
  const wordOf = (/** @type {number} */ one) => label(words[ids.indexOf(one)]);
  const title = `When it learned to say “${wordOf(id)}”`;
  const where = tokens ? `${outputs.kind === "next" ? "after" : "at"} “${label(tokens[at])}”` : "";
  const table = () => ({
    head: ["step", "its probability", "its rank", "what it said"],
    rows: moments.map(({ step, p, rank, first }) =>
      [step ?? "final", p.toFixed(4), rank, wordOf(first)]),
  });
  return h("div", { id: "when" }, heading(title, where),
    h("p", { class: "sentence", role: "status" }, describe(moments, wordOf(id))),
    h("div", { class: "scroll" }, drawChart(moments, title)), tableTwin(title, table));
}

/** @type {(text: string | undefined, logits: Numbers) => number} the chosen token, or the likeliest */
function clampToken(text, logits) {
  const id = Number(text ?? NaN);
  return Number.isInteger(id) && id >= 0 && id < logits.length ? id : likeliest(logits);
}

/** @type {(logits: Numbers) => number} */
const likeliest = (logits) =>
  range(logits.length).reduce((best, i) => (logits[i] > logits[best] ? i : best), 0);

/** @type {(step: number | null, logits: Numbers, id: number) => Moment} */
const moment = (step, logits, id) => ({
  step, p: softmax(logits)[id], first: likeliest(logits),
  rank: 1 + range(logits.length).filter((i) => logits[i] > logits[id]).length,
});

/**
 * Run the model at its checkpoints on the same input.
 * @type {(app: App, at: number, id: number, now: Numbers) => Promise<Moment[]>}
 */
async function measure({ manifest, source, state, dropped }, at, id, now) {
  if (!source.live) return [];
  const numbers = (/** @type {string | undefined} */ text) => text?.split(",").map(Number);
  const run = {
    input: state.input, ids: numbers(state.ids), written: numbers(state.written),
    picture: dropped ?? undefined,
    answer: manifest.tokens.written && !state.ids ? manifest.answer : undefined,
  };
  const { steps } = manifest;
  const count = Math.min(MOST, steps.length);
  const apart = (steps.length - 1) / Math.max(1, count - 1);
  const chosen = range(count).map((i) => steps[Math.round(i * apart)]);
  const moments = [];
  for (const step of chosen) {
    const { id: trace } = await source.send("trace", { ...run, checkpoint: step });
    const { data } = await source.tensor("logits", { rows: `${at}:${at + 1}`, trace });
    moments.push(moment(step, data, id));
  }
  return manifest.step === null ? [...moments, moment(null, now, id)] : moments;
}

/** @type {(moments: Moment[], word: string) => string} */
function describe(moments, word) {
  const named = (/** @type {Moment} */ { step }) => (step === null ? "the end" : `step ${formatCount(step)}`);
  const since = moments.findLastIndex(({ rank }) => rank > 1) + 1;
  const start = moments[0];
  const before = `At ${named(start)} it gave “${word}” ${formatPercent(start.p)} (number ${
    formatCount(start.rank)}), at ${named(last(moments))} ${formatPercent(last(moments).p)}.`;
  if (since >= moments.length) return `${before} It does not put it first.`;
  if (since === 0) return `It puts “${word}” first at all ${moments.length} checkpoints. ${before}`;
  const when = since === moments.length - 1 ? `only at ${named(moments[since])}`
    : `from ${named(moments[since])} on`;
  return `It puts “${word}” first ${when}. ${before}`;
}

/** @type {(moments: Moment[], title: string) => SVGSVGElement} */
function drawChart(moments, title) {
  const steps = moments.map(({ step }) => step).filter((step) => step !== null);
  const apart = steps.length > 1 ? steps[steps.length - 1] - steps[steps.length - 2] : 1;
  const most = Math.max(...steps) + (moments.length > steps.length ? apart : 0);
  const points = moments.map(({ step, p }) => /** @type {[number, number]} */ ([step ?? most, p]));
  const high = Math.max(...points.map(([, p]) => p), 1e-9);
  return lineChart({
    label: title, size: SIZE, margin: { left: 60, right: 40, top: 16, bottom: 46 }, axis: "step", most,
    lines: [{ words: "probability", points, colour: themeColour("--line"), dots: true }],
    limits: [0, high],
    xTicks: moments.filter((_, i) => i % Math.ceil(moments.length / 8) === 0 || i === moments.length - 1)
      .map(({ step }) => [step ?? most, step === null ? "final" : formatCount(step)]),
    yTicks: [0, high / 2, high].map((p) => [p, p ? formatPercent(p) : "0 %"]),
  }).svg;
}
