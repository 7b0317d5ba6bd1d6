/* How a model encodes positions: as a heat map, as waves, and how alike positions are. */

import {
  clampIndex, formatCount, formatNumber, h, last, numberMenu, range, stepMenu, tableTwin, tabs,
} from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { chartText, lineChart } from "./linechart.js";
import { cellChanges, heading, parsePlace } from "./selection.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]; // Okabe and Ito
const WAVES = 6;
const SIZE = /** @type {[number, number]} */ ([860, 380]);
const MARGIN = { left: 58, right: 112, top: 16, bottom: 44 };
/** @type {Record<string, string>} */
const KINDS = {
  sinusoidal: "waves of growing length, added to the embeddings",
  learned: "a learned vector for each position, added to the embeddings",
  rotary: "the cosine of the angles by which queries and keys are rotated",
  alibi: "a penalty on the scores that grows with the distance, for each head",
  relative: "a learned number for each head and distance, added to the scores",
};
/** @type {Record<string, string>} */
const TABLES = {
  table: "", bias: "",
  dot: "the dot product of the vectors of two positions; ",
  cosine: "the cosine between the vectors of two positions; ",
};
/** @type {[string, string][]} */
const BIAS_FORMS = [["heat", "Heat map"], ["waves", "By distance"]];
/** @type {[string, string][]} */
const TABLE_FORMS = [
  ["heat", "Heat map"], ["waves", "Waves"], ["dot", "Dot products"], ["cosine", "Cosines"],
];

/**
 * @typedef {object} PositionView
 * @property {PositionInfo} info
 * @property {string} title
 * @property {string} table what is shown: "table", "dot", "cosine" or "bias"
 * @property {string} column what a column of the table is called
 * @property {Tensor} tensor
 */

/** @type {(info: PositionInfo) => boolean} */
const isBias = ({ kind }) => ["alibi", "relative"].includes(kind);

/**
 * @param {HTMLElement} root
 * @param {HTMLElement} bar
 * @param {App} app
 */
export async function showPositions(root, bar, app) {
  const { manifest, state, go, source } = app;
  const all = manifest.positions;
  if (!all.length) {
    root.append(heading("Positions"), h("p", {}, manifest.tensors["encoder.states"]
      ? "This model reads one token after another: its states hold the order, and no position is encoded."
      : "This model encodes no positions: it treats its input as a set."));
    return;
  }
  const info = all.find(({ part }) => part === state.places) ?? all[0];
  if (all.length > 1) {
    bar.append(tabs("places", all.map(({ part }) => [part, part]), info.part,
      (to) => go({ places: to, at: null }, { replace: true })));
  }
  const forms = isBias(info) ? BIAS_FORMS : TABLE_FORMS;
  const form = forms.find(([name]) => name === state.as)?.[0] ?? "heat";
  bar.append(tabs("as", forms, form, (to) => go({ as: to, at: null }, { replace: true })));
  const table = isBias(info) ? "bias" : ["dot", "cosine"].includes(form) ? form : "table";
  const tensor = await source.tensor(`~${info.part}.${table}`);
  const kind = info.kind.split(" ")[0];
  const name = info.kind === "alibi" ? "ALiBi" : info.kind[0].toUpperCase() + info.kind.slice(1);
  const tall = tensor.shape[tensor.shape.length - 2];
  const shown = tall < info.of ? `the first ${tall} of ${formatCount(info.of)}; ` : "";
  root.append(heading(`${name} positions`, `${shown}${TABLES[table]}${KINDS[kind]}`));
  const column = kind === "rotary" ? "pair" : "dimension";
  const view = { info, title: `${name} positions`, table, column, tensor };
  if (form === "waves") showWaves(root, bar, app, view);
  else showHeatmap(root, bar, app, view, form);
}

/** @type {(root: HTMLElement, bar: HTMLElement, app: App, view: PositionView, form: string) => void} */
function showHeatmap(root, bar, app, { info, title, table, column, tensor }, form) {
  const { manifest, state, go } = app;
  const [tall, wide] = tensor.shape.slice(-2);
  let { data } = tensor;
  if (isBias(info)) {
    const heads = tensor.shape[0];
    const head = clampIndex(state.head, heads);
    data = data.subarray(head * tall * wide, (head + 1) * tall * wide);
    bar.append(stepMenu("head", "head", numberMenu(heads), head,
      (to) => go({ head: to }, { replace: true })));
  }
  const isTable = table === "table";
  const text = manifest.grid ? manifest.tokens.text : null;
  const rows = text?.length === tall ? text : range(tall).map(String);
  const map = new Heatmap({
    rows, title, data, shape: [tall, wide],
    columns: !isTable && rows.length === wide ? rows : range(wide).map(String),
    signed: true,
    square: !isTable,
    names: isBias(info) ? ["query at", "key at"] : ["position", isTable ? column : "position"],
    at: parsePlace(state.at, [tall, wide]),
    move: (r, c) => go(cellChanges(app, [r, c], null, tall), { quiet: true }),
  });
  app.current = { name: `positions-${info.part}-${form}`, ...map.output };
  root.append(map.root);
}

/**
 * The columns that are drawn: the one that the address names, or a few.
 * @type {(text: string | undefined, wide: number) => { only: number | null, columns: number[] }}
 */
function selectColumns(text, wide) {
  const named = text !== undefined && Number(text) >= 0 && Number(text) < wide;
  if (named) return { only: Number(text) | 0, columns: [Number(text) | 0] };
  const few = Math.min(WAVES, wide);
  return { only: null, columns: [...new Set(range(few).map((i) => Math.floor((i * wide) / few)))] };
}

/**
 * Lines over the positions: of some columns, or of a bias each head's over the distance.
 * @type {(bar: HTMLElement, app: App, view: PositionView) => { words: string, values: number[] }[]}
 */
function waveLines(bar, { state, go }, { info, column, tensor: { shape, data } }) {
  const [tall, wide] = shape.slice(-2);
  if (isBias(info)) {
    return range(Math.min(shape[0], 2 * WAVES)).map((n) => ({
      words: `head ${n}`, values: range(wide).map((i) => data[(n * tall + tall - 1) * wide + (wide - 1 - i)]),
    }));
  }
  const { only, columns } = selectColumns(state.dim, wide);
  bar.append(stepMenu(column, "dim", [["", "a few"], ...numberMenu(wide)], only ?? "",
    (to) => go({ dim: to }, { replace: true })));
  return columns.map((c) => ({
    words: `${column} ${c}`, values: range(tall).map((r) => data[r * wide + c]),
  }));
}

/** @type {(root: HTMLElement, bar: HTMLElement, app: App, view: PositionView) => void} */
function showWaves(root, bar, app, view) {
  const waves = waveLines(bar, app, view);
  const values = waves.flatMap((wave) => wave.values);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const count = waves[0].values.length;
  const axis = isBias(view.info) ? "distance back from the query" : "position";
  /** @type {(v: number) => string} */
  const tick = (v) => (Math.abs(v) < 1e-3 * (high - low) ? "0" : v.toPrecision(3).replace("-", "−"));
  const { svg, y } = lineChart({
    label: `${view.title}: ${waves.map(({ words }) => words).join(", ")} over ${count} positions`,
    size: SIZE, margin: MARGIN, axis, most: Math.max(1, count - 1), limits: [low, high],
    lines: waves.map((wave, i) => ({
      words: wave.words, points: wave.values.map((v, at) => [at, v]), colour: COLOURS[i % COLOURS.length],
      dashed: i >= COLOURS.length,
    })),
    xTicks: [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const i = Math.round(share * (count - 1));
      return [i, String(i)];
    }),
    yTicks: [low, (low + high) / 2, high].map((v) => [v, tick(v)]),
  });
  svg.append(...waveNames(waves.map((wave) => ({ words: wave.words, y: y(last(wave.values)) }))));
  const csv = () => ({
    head: [axis, ...waves.map(({ words }) => words)],
    rows: range(count).map((i) => [String(i), ...waves.map((wave) => formatNumber(wave.values[i]))]),
  });
  app.current = { name: `positions-${view.info.part}-waves`, svg, csv };
  root.append(h("figure", { class: "wave" }, h("div", { class: "scroll" }, svg), tableTwin(view.title, csv)));
}

/**
 * The names of lines at their ends, moved apart so that they can be read.
 * @param {{ words: string, y: number }[]} ends
 */
function waveNames(ends) {
  const names = ends.map((end, i) => ({ ...end, colour: COLOURS[i % COLOURS.length] }));
  names.sort((a, b) => a.y - b.y);
  names.forEach((name, i) => { if (i) name.y = Math.max(name.y, names[i - 1].y + 15); });
  const over = Math.max(0, last(names).y - (SIZE[1] - MARGIN.bottom + 4));
  const x = SIZE[0] - MARGIN.right + 10;
  return names.map(({ words, y, colour }) => chartText(x, y - over + 4, words, "start", colour));
}
