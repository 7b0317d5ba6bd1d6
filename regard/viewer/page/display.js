/* How the weights of a head are shown: scaled, without the first token, by words, or with other heads. */

import { imageCanvas, isDark, opaque } from "./colour.js";
import { clampIndex, formatWeight, h, range, tabs, toggleButton } from "./dom.js";
import { MOST, maskReasons, sideTokens } from "./selection.js";

/** @type {[string, string][]} */
const SCALES = [["head", "0 to its largest"], ["one", "0 to 1"], ["log", "logarithmic"]];
const DECADES = 4; // of the logarithmic scale
const MOST_COLOURS = 8;
/** @type {[number, number, number][]} after Okabe and Ito, and one more */
const COLOURS = [
  [0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233], [120, 94, 240],
  [128, 128, 128],
];

/**
 * What the address says about the display. `heads` are all that are shown, in order.
 * @typedef {object} Choice
 * @property {string} scale
 * @property {boolean} sink without the first token
 * @property {boolean} words sub-words are merged
 * @property {boolean} root the scores are not divided by the root of the width
 * @property {number[]} heads
 * @property {boolean} mean
 */

/**
 * The numbers of a choice: `each` head's, and their mean `data`.
 * @typedef {{ shape: number[], data: Float32Array, each: Float32Array[], rows: string[], columns: string[],
 *   why: MaskReasons | null }} Display
 */

/** @type {(app: App, attention: AttentionInfo, head: number) => Choice} */
export function readChoice({ manifest, state }, attention, head) {
  const named = (state.also ?? "").split(",").filter(Boolean);
  const others = state.also === "all" ? range(attention.heads)
    : named.map((text) => clampIndex(text, attention.heads, head));
  const long = sideTokens(manifest, attention).some((tokens) => tokens.length > MOST);
  return {
    scale: SCALES.find(([name]) => name === state.scale)?.[0] ?? "head",
    sink: !long && state.sink === "without",
    words: !long && state.merge === "words" && hasWords(manifest, attention),
    root: !long && state.root === "without" && canUndivide(manifest, attention),
    heads: long ? [head] : [...new Set([head, ...others])].sort((a, b) => a - b),
    mean: state.blend === "mean",
  };
}

/**
 * Where a token stands, which may be a part of a word.
 * @type {(app: App, choice: Choice, side: string, token: number) => number}
 */
export const placeOf = ({ manifest }, { words }, side, token) =>
  (words ? manifest.words?.[side]?.[token] ?? token : token);

/** @type {(choice: Choice) => boolean} whether the numbers are those of the model */
export const isPlain = ({ sink, words, root, heads }) => !sink && !words && !root && heads.length === 1;

/** @type {(manifest: Manifest, attention: AttentionInfo) => boolean} */
const hasWords = ({ words = {} }, { rows, columns }) => Boolean(words[rows] ?? words[columns]);

/** @type {(manifest: Manifest, attention: AttentionInfo) => boolean} */
function canUndivide({ sums }, { name }) {
  const op = sums[`${name}.weights`];
  return sums[`${name}.scaled`]?.does === "scale" && op?.does === "softmax" && op.bias === undefined
    && op.x === `${name}.scaled`;
}

/**
 * Read the weights and make of them what is to be shown.
 * @type {(app: App, attention: AttentionInfo, choice: Choice) => Promise<Display>}
 */
export async function readDisplay(app, attention, choice) {
  const { manifest, source } = app;
  const kind = choice.root ? "scores" : "weights";
  const [why, ...tensors] = await Promise.all([maskReasons(app, attention), ...choice.heads.map((head) =>
    source.tensor(`${attention.name}.${kind}`, { head, most: MOST }))]);
  const [rows, columns] = sideTokens(manifest, attention);
  const shape = tensors[0].shape.slice(-2);
  /** @type {Display} */
  let shown = {
    shape, rows, columns, why, data: new Float32Array(0),
    each: tensors.map(({ data }) => Float32Array.from(data)),
  };
  if (shape[0] === rows.length && shape[1] === columns.length) {
    if (choice.root) shown.each = shown.each.map((scores) => softmaxRows(scores, shown));
    if (choice.sink) shown = dropFirst(shown);
    if (choice.words) shown = mergeWords(shown, manifest.words ?? {}, attention);
  }
  const { each } = shown;
  shown.data = each.length === 1 ? each[0]
    : each[0].map((_, i) => each.reduce((sum, one) => sum + one[i], 0) / each.length);
  return shown;
}

/** @type {(scores: Float32Array, shown: Display) => Float32Array} */
function softmaxRows(scores, { shape: [T, S], why }) {
  const weights = new Float32Array(T * S);
  for (let r = 0; r < T; r++) {
    const open = range(S).map((c) => r * S + c).filter((i) => !why?.blank[i]);
    const peak = Math.max(...open.map((i) => scores[i]));
    const total = open.reduce((sum, i) => sum + Math.exp(scores[i] - peak), 0);
    for (const i of open) weights[i] = Math.exp(scores[i] - peak) / total;
  }
  return weights;
}

/**
 * Without the first key: what is left of each row adds up to 1 again.
 * @param {Display} shown
 * @returns {Display}
 */
function dropFirst(shown) {
  const { shape: [T, S], why } = shown;
  const blank = new Uint8Array(T * S);
  for (let i = 0; i < blank.length; i++) blank[i] = i % S === 0 || why?.blank[i] ? 1 : 0;
  const each = shown.each.map((data) => data.map((x, i) => {
    const row = data.subarray(i - (i % S) + 1, i - (i % S) + S);
    const left = row.reduce((sum, w) => sum + w, 0);
    return i % S === 0 || left === 0 ? 0 : x / left;
  }));
  /** @type {(r: number, c: number) => string | null} */
  const reason = (r, c) => (c === 0 ? "left out: the first token" : why?.(r, c) ?? null);
  return { ...shown, each, why: Object.assign(reason, { blank }) };
}

/**
 * Sub-words as words: a word looks as its parts do on average, and is looked at as much as all of them.
 * @type {(shown: Display, words: Record<string, number[]>, attention: AttentionInfo) => Display}
 */
function mergeWords({ shape: [T, S], each, rows, columns, why }, words, attention) {
  const [down, right] = [words[attention.rows] ?? range(T), words[attention.columns] ?? range(S)];
  const [tall, wide] = [down[T - 1] + 1, right[S - 1] + 1];
  const counts = range(tall).map((word) => down.filter((one) => one === word).length);
  const merged = each.map((data) => {
    const sums = new Float32Array(tall * wide);
    for (let i = 0; i < data.length; i++) {
      const row = down[Math.floor(i / S)];
      sums[row * wide + right[i % S]] += data[i] / counts[row];
    }
    return sums;
  });
  /** @type {(string | null)[]} */
  const reasons = new Array(tall * wide).fill(null);
  const blank = new Uint8Array(tall * wide).fill(1);
  for (let i = 0; i < T * S; i++) {
    const [r, c] = [Math.floor(i / S), i % S];
    const at = down[r] * wide + right[c];
    if (why?.(r, c)) reasons[at] ??= why(r, c);
    else blank[at] = 0;
  }
  const reason = (/** @type {number} */ r, /** @type {number} */ c) =>
    (blank[r * wide + c] ? reasons[r * wide + c] : null);
  return {
    shape: [tall, wide], each: merged, rows: joinWords(rows, down), columns: joinWords(columns, right),
    why: why ? Object.assign(reason, { blank }) : null, data: merged[0],
  };
}

/** @type {(tokens: string[], numbers: number[]) => string[]} */
const joinWords = (tokens, numbers) => range(numbers[numbers.length - 1] + 1).map((word) =>
  tokens.filter((_, i) => numbers[i] === word).map((token) => token.replace(/^##/, "")).join(""));

/**
 * What the numbers are, where they are not simply the head's; and how many bits they have.
 * @type {(choice: Choice, shown: Display) => string}
 */
export function describeChoice({ sink, words, root, heads }, { data, shape: [T, S] }) {
  const bits = range(T).map((r) => -data.subarray(r * S, (r + 1) * S).reduce((sum, w) =>
    sum + (w > 0 ? w * Math.log2(w) : 0), 0));
  const mean = bits.reduce((sum, x) => sum + x, 0) / T;
  return [
    `${mean.toFixed(1)} bits`, heads.length > 1 ? "numbers are their mean" : "",
    root ? "scores not divided by √d" : "", sink ? "without the first token: rows add up to 1 again" : "",
    words ? "sub-words merged to words" : ""].filter(Boolean).join(" · ");
}

/**
 * The options of the heat map that make these colours.
 * @type {(choice: Choice, shown: Display) => Partial<import("./heatmap.js").HeatmapOptions>}
 */
export function colourOptions({ scale, heads, mean }, shown) {
  /** @type {(w: number) => number} */
  const logShare = (w) => Math.max(0, 1 + Math.log10(Math.max(w, 1e-30)) / DECADES);
  const peak = Math.max(...shown.each.map((one) => one.reduce((a, b) => Math.max(a, b), 0)), 1e-30);
  const share = scale === "log" ? logShare : (/** @type {number} */ w) => (scale === "one" ? w : w / peak);
  /** @type {Partial<import("./heatmap.js").HeatmapOptions>} */
  const options = scale === "log"
    ? { shades: shown.data.map(logShare), ends: [`≤ ${10 ** -DECADES}`, "1"] }
    : scale === "one" ? { limits: [0, 1] } : {};
  if (heads.length === 1) return options;
  /** @type {(x: number, r: number, c: number) => string} */
  const note = (x, r, c) => `mean ${formatWeight(x)} (${heads.map((head, n) =>
    `head ${head}: ${formatWeight(shown.each[n][r * shown.shape[1] + c])}`).join(", ")})`;
  if (mean || heads.length > MOST_COLOURS) return { ...options, note };
  return { ...options, note, numbers: false, image: blendHeads(shown, share), ends: ["", ""] };
}

/**
 * Each cell has the colours of its heads, mixed as their weights are; the largest weight makes it strong.
 * @type {(shown: Display, share: (w: number) => number) => HTMLCanvasElement}
 */
function blendHeads({ shape: [T, S], each, why }, share) {
  const image = new ImageData(S, T);
  const pixels = new Uint32Array(image.data.buffer);
  const ground = isDark() ? 21 : 255;
  const grey = isDark() ? 43 : 231;
  for (let i = 0; i < pixels.length; i++) {
    if (why?.blank[i]) pixels[i] = opaque(grey, grey, grey);
    else {
      const shares = each.map((one) => share(one[i]));
      const [total, most] = [shares.reduce((sum, x) => sum + x, 1e-30), Math.min(1, Math.max(...shares))];
      const [r, g, b] = [0, 1, 2].map((channel) => {
        const mixed = shares.reduce((sum, x, n) => sum + (x / total) * COLOURS[n][channel], 0);
        return Math.round(ground + most * (mixed - ground));
      });
      pixels[i] = opaque(r, g, b);
    }
  }
  return imageCanvas(image);
}

/**
 * Buttons for all of this; the address keeps what is chosen.
 * @type {(app: App, attention: AttentionInfo, head: number, choice: Choice) => HTMLElement}
 */
export function displayControls(app, attention, head, choice) {
  const { manifest } = app;
  const { sink, words, root } = choice;
  const go = (/** @type {StateChanges} */ changes) => app.go({ ...changes, cell: null }, { replace: true });
  /** @type {(id: string, words: string, pressed: boolean, changes: StateChanges) => HTMLElement} */
  const toggle = (id, words, pressed, changes) => toggleButton(words, pressed, () => go(changes), { id });
  const bar = h("div", { class: "controls display", role: "group", "aria-label": "How it is shown" },
    h("span", { class: "pale" }, "colours"),
    tabs("scale", SCALES, choice.scale, (to) => go({ scale: to === "head" ? null : to })));
  if (sideTokens(manifest, attention).some((tokens) => tokens.length > MOST)) return bar;
  bar.append(toggle("sink", "Without the first token", sink, { sink: sink ? null : "without" }));
  if (hasWords(manifest, attention)) {
    bar.append(toggle("merge", "Whole words", words, { merge: words ? null : "words", at: null }));
  }
  if (canUndivide(manifest, attention)) {
    bar.append(toggle("root", "Not divided by √d", root, { root: root ? null : "without" }));
  }
  if (attention.heads > 1) bar.append(headToggles(attention, head, choice, go));
  return bar;
}

/** @type {(attention: AttentionInfo, head: number, choice: Choice, go: (c: StateChanges) => void) => Node} */
function headToggles({ heads: count }, head, { heads, mean }, go) {
  const coloured = heads.length > 1 && heads.length <= MOST_COLOURS && !mean;
  /** @type {(n: number) => string} */
  const colour = (n) => `rgb(${COLOURS[heads.indexOf(n)].join(" ")})`;
  const swatch = (/** @type {number} */ n) => (coloured && heads.includes(n)
    ? h("i", { class: "swatch", style: { background: colour(n) } }) : null);
  const group = h("span", { class: "with", role: "group", "aria-label": "Heads shown together" },
    h("span", { class: "pale" }, "together with head"), range(count).map((n) => h("button", {
      type: "button", id: `also-${n}`, "aria-pressed": String(heads.includes(n)), disabled: n === head,
      onclick: () => {
        const next = heads.includes(n) ? heads.filter((one) => one !== n) : [...heads, n];
        go({ also: next.filter((one) => one !== head).join(",") || null });
      },
    }, n, swatch(n))),
    toggleButton("all", heads.length === count, () => go({ also: heads.length === count ? null : "all" }),
      { id: "also-all" }));
  if (heads.length > 1 && heads.length <= MOST_COLOURS) {
    group.append(tabs("blend", [["colours", "In colours"], ["mean", "Their mean"]], mean ? "mean" : "colours",
      (to) => go({ blend: to === "mean" ? to : null })));
  }
  return group;
}
