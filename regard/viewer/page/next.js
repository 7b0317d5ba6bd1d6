/* The exact softmax over the whole vocabulary, and what temperature, top-k and top-p leave of it. */

import { themeColour } from "./colour.js";
import {
  clampIndex, formatCount, formatNumber, formatPercent, h, label, numberTokens, readoutLine, s, stepMenu,
  svgRoot, tableTwin, tabs,
} from "./dom.js";
import { drawLens } from "./lens.js";
import { usualToken } from "./scene_data.js";
import { heading, rowChanges, selectedToken } from "./selection.js";
import { softmax } from "./softmax.js";

const SHOWN = 40;

/** @typedef {{ temperature: number, k: number, p: number }} Sampling */

/**
 * What is shown: the logits of one position, and the ids and words of the likeliest tokens.
 * @typedef {object} Prediction
 * @property {string} title
 * @property {ArrayLike<number>} logits
 * @property {Float64Array} exact the softmax
 * @property {number[]} ids
 * @property {string[]} words
 * @property {Sampling} sampling
 */

/**
 * The distribution that is sampled from: temperature first, then the k likeliest tokens, then the fewest that
 * make up p. `removedBy` says which setting removed a token.
 * @param {ArrayLike<number>} logits
 * @param {Sampling} sampling
 */
function applySampling(logits, { temperature, k, p }) {
  const order = Array.from(logits, (_, id) => id).sort((a, b) => logits[b] - logits[a] || a - b);
  /** @type {(string | null)[]} */
  const removedBy = new Array(logits.length).fill(null);
  const remaining = () => order.filter((id) => !removedBy[id]);
  const logitsOf = (/** @type {number[]} */ ids) => ids.map((id) => logits[id]);
  if (temperature < 1e-6) {
    for (const id of order.slice(1)) removedBy[id] = "temperature 0";
  } else {
    const least = k > 0 && k <= order.length ? logits[order[k - 1]] : -Infinity;
    for (const id of order.slice(k)) if (logits[id] < least) removedBy[id] = `top-k ${k}`;
    const left = remaining();
    const shares = softmax(logitsOf(left), temperature);
    let tail = 0; // the probability of this token and the less likely ones
    for (let i = left.length - 1; i > 0; i--) {
      tail += shares[i];
      if (tail > 1 - p) break;
      removedBy[left[i]] = `top-p ${p}`;
    }
  }
  const left = remaining();
  const shares = new Float64Array(logits.length);
  softmax(logitsOf(left), Math.max(temperature, 1e-6)).forEach((x, i) => { shares[left[i]] = x; });
  return { order, removedBy, shares, count: left.length };
}

/**
 * The row of the logits that the address selects.
 * @type {(app: App) => { outputs: Outputs, tokens: string[] | null, at: number }}
 */
export function selectRow(app) {
  const { manifest, state } = app;
  const outputs = /** @type {Outputs} */ (manifest.outputs);
  const tokens = outputs.rows ? manifest.tokens[outputs.rows] : null;
  if (!tokens) return { outputs, tokens: null, at: 0 };
  const token = selectedToken(app, outputs.rows) ?? usualToken(manifest, outputs.rows ?? "") ?? 0;
  return { outputs, tokens, at: clampIndex(state.row, tokens.length, token) };
}

/** @type {View} */
export const next = {
  key(key, app) {
    const by = { n: 1, p: -1 }[key];
    const { outputs, tokens, at } = selectRow(app);
    if (!by || !tokens) return false;
    if (tokens[at + by] !== undefined) app.go(rowChanges(app, outputs.rows, at + by), { replace: true });
    return true;
  },

  async show(root, app) {
    const { state } = app;
    const { outputs, tokens, at } = selectRow(app);
    const tab = wordTabs(outputs).find(([name]) => name === state.words)?.[0] ?? "all";
    const bar = controls(app, tab);
    if (bar.children.length) root.append(bar);
    const where = tokens ? `${outputs.kind === "next" ? "after" : "at"} “${label(tokens[at])}”` : "";
    if (tab === "layers") return showLens(root, app, at, where);
    const prediction = await predict(app, where);
    if (tab === "parts") {
      const { showParts } = await import("./parts.js");
      return showParts(root, app, at, [prediction.ids, prediction.words]);
    }
    const { exact, ids, logits, words, sampling, title } = prediction;
    const what = outputs.kind === "classes" ? "classes" : "tokens";
    root.append(heading(title, `softmax over ${formatCount(logits.length)} ${what}`));
    const list = h("div", { class: "bars" });
    const readout = readoutLine();
    const draw = () => {
      list.replaceChildren(...barList(app, prediction));
      readout.textContent = summary(prediction, outputs.kind);
    };
    if (outputs.kind === "next") root.append(sliders(app, prediction, draw));
    draw();
    const csv = () => numbers(prediction);
    app.current = {
      name: "next-token",
      python: () => [`trace["logits"]${tokens ? `[${at}]` : ""}.softmax(-1)  # ${logits.length}`],
      csv,
      svg: () => {
        const { shares } = applySampling(logits, sampling);
        const bar = (/** @type {number} */ id, /** @type {number} */ i) =>
          ({ word: words[i], before: exact[id], after: shares[id] });
        return drawBars(title, ids.map(bar));
      },
    };
    root.append(list, readout, tableTwin(title, csv));
  },
};

/** @type {(root: HTMLElement, app: App, at: number, where: string) => Promise<void>} */
async function showLens(root, app, at, where) {
  const { root: figure, svg, csv } = await drawLens(app, at);
  const python = () => ["from regard.viewer.lens import lens", `lens(model.model, trace, ${at})`];
  app.current = { name: "layers", python, svg, csv };
  const remark = "the last norm and the output matrix on every layer's output";
  root.append(heading(`What each layer would predict ${where}`, remark), figure);
}

/** @type {(outputs: Outputs) => [string, string][]} */
const wordTabs = ({ kind, lens, parts }) => [
  ["all", kind === "classes" ? "All classes" : "Whole vocabulary"],
  ...(lens ? /** @type {[string, string][]} */ ([["layers", "Layer by layer"]]) : []),
  ...(lens || parts ? /** @type {[string, string][]} */ ([["parts", "Which part said this?"]]) : [])];

/** @type {(app: App, tab: string) => HTMLElement} */
function controls(app, tab) {
  const { go } = app;
  const { outputs, tokens, at } = selectRow(app);
  const bar = h("div", { class: "controls" });
  if (tokens) {
    bar.append(stepMenu(outputs.kind === "next" ? "after" : "token", "row", numberTokens(tokens), at,
      (row) => go(rowChanges(app, outputs.rows, row), { replace: true })));
  }
  const choices = wordTabs(outputs);
  if (choices.length > 1) {
    bar.append(tabs("words", choices, tab,
      (to) => go({ words: to === "all" ? null : to }, { replace: true })));
  }
  return bar;
}

/** @type {(app: App, where: string) => Promise<Prediction>} */
async function predict(app, where) {
  const { manifest, state, source } = app;
  const { outputs, tokens, at } = selectRow(app);
  const logits = (await source.tensor("logits", { rows: `${at}:${at + 1}` })).data;
  const sampling = {
    temperature: readNumber(state.temperature, 0, 2, 1),
    k: readNumber(state.k, 0, logits.length, 0),
    p: readNumber(state.p, 0, 1, 1),
  };
  const ids = applySampling(logits, sampling).order.slice(0, SHOWN);
  const isClass = outputs.kind === "classes";
  const words = isClass ? ids.map((id) => manifest.tokens.label[id]) : await source.words(ids);
  const title = isClass && !tokens ? "The predicted class" : `What the model predicts ${where}`;
  return { title, logits, exact: softmax(logits), ids, words, sampling };
}

/**
 * Each token with its probability, and what the settings make of it.
 * @type {(app: App, prediction: Prediction) => HTMLElement[]}
 */
function barList(app, { logits, exact, ids, words, sampling }) {
  const { manifest, source, go } = app;
  const { outputs, tokens, at } = selectRow(app);
  const { removedBy, shares } = applySampling(logits, sampling);
  const continues = outputs.goes_on && source.live && tokens && at === tokens.length - 1;
  const peak = Math.max(exact[ids[0]], shares[ids[0]]);
  /** @type {(x: number, was?: boolean) => HTMLElement} */
  const bar = (x, was) => h("i", { class: was ? "was" : null, style: { width: `${(100 * x) / peak}%` } });
  return ids.flatMap((id, i) => {
    const [removed, word] = [removedBy[id], label(words[i], 28)];
    const input = `${manifest.input}${outputs.between ?? ""}${words[i]}`;
    const onclick = () => go({ input, row: null, at: null, cell: null });
    const changed = Math.abs(shares[id] - exact[id]) < 1e-9 ? "" : `now ${formatPercent(shares[id])}`;
    const button = { type: "button", title: "continue with this", class: removed ? "gone" : null, onclick };
    return [
      continues ? h("button", button, word) : h("span", { class: `word${removed ? " gone" : ""}` }, word),
      h("div", { class: "share", "aria-hidden": "true" }, bar(shares[id]), bar(exact[id], true)),
      h("span", { class: "exact" }, formatPercent(exact[id])),
      h("span", { class: "why" }, removed ? `removed by ${removed}` : changed)];
  });
}

/** @type {(prediction: Prediction, kind: string) => string} */
function summary({ logits, exact, sampling }, kind) {
  const entropy = -exact.reduce((sum, x) => sum + (x > 0 ? x * Math.log2(x) : 0), 0);
  if (kind !== "next") return `Entropy: ${entropy.toFixed(2)} bits.`;
  const { count } = applySampling(logits, sampling);
  const tokens = `${formatCount(count)} of ${formatCount(logits.length)} tokens`;
  return `${tokens} are left to sample from. Entropy before the settings: ${entropy.toFixed(2)} bits.`;
}

/** @type {(app: App, prediction: Prediction, draw: () => void) => HTMLElement} */
function sliders({ go }, { sampling, logits }, draw) {
  /**
   * @param {keyof Sampling} name
   * @param {string} words
   * @param {[max: number, step: number]} range from 0
   * @param {(x: number) => string} format
   */
  const slider = (name, words, [max, step], format) => {
    const output = h("output", {}, format(sampling[name]));
    const range = h("input", { type: "range", id: `slide-${name}`, min: 0, max, step, oninput: () => {
      sampling[name] = Number(range.value);
      output.textContent = format(sampling[name]);
      draw();
      go({ [name]: range.value }, { quiet: true });
    } });
    range.value = String(sampling[name]);
    return h("div", {}, h("label", { for: range.id }, words, output), range);
  };
  return h("div", { class: "sliders" },
    slider("temperature", "Temperature", [2, 0.05],
      (x) => (x < 1e-6 ? "0: always the likeliest" : x.toFixed(2))),
    slider("k", "Top-k", [Math.min(100, logits.length), 1], (x) => (x ? `the ${x} likeliest` : "off")),
    slider("p", "Top-p", [1, 0.01], (x) => (x >= 1 ? "off" : x.toFixed(2))));
}

/** @type {(prediction: Prediction) => TableData} */
function numbers({ logits, exact, ids, words, sampling }) {
  const { shares, removedBy } = applySampling(logits, sampling);
  return {
    head: ["token", "logit", "probability", "after the settings", "removed by"],
    rows: ids.map((id, i) => [label(words[i], 40), formatNumber(logits[id]), formatNumber(exact[id]),
      formatNumber(shares[id]), removedBy[id] ?? ""]),
  };
}

/**
 * Tokens with their probabilities before and after the settings, as a drawing.
 * @type {(title: string, bars: { word: string, before: number, after: number }[]) => SVGSVGElement}
 */
function drawBars(title, bars) {
  const [left, wide, high] = [190, 420, 22];
  const peak = Math.max(...bars.flatMap(({ before, after }) => [before, after]));
  /** @type {(x: number, y: number, words: string, more?: Attributes) => SVGTextElement} */
  const text = (x, y, words, more) =>
    s("text", { x, y, "dominant-baseline": "central", fill: themeColour("--ink"), ...more }, words);
  return svgRoot(720, high * (bars.length + 1) + 8, { "font-size": 13 },
    text(4, high / 2, title, { "font-weight": 600 }),
    bars.map(({ word, before, after }, i) => {
      const y = high * (i + 1) + 3;
      const box = { x: left, y, height: high - 5, rx: 3 };
      return [
        text(left - 10, y + high / 2 - 2, label(word, 24), { "text-anchor": "end" }),
        s("rect", { ...box, width: (wide * after) / peak, fill: themeColour("--line") }),
        s("rect", { ...box, width: (wide * before) / peak, fill: "none", stroke: themeColour("--pale") }),
        text(left + wide + 10, y + high / 2 - 2, formatPercent(before), { fill: themeColour("--pale") })];
    }));
}

/** @type {(text: string | undefined, low: number, high: number, usual: number) => number} */
function readNumber(text, low, high, usual) {
  const x = Number(text ?? usual);
  return Number.isFinite(x) ? Math.min(high, Math.max(low, x)) : usual;
}
