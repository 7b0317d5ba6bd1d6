/* What each token of an answer looked at in its source, as in Bahdanau et al. 2015; and the search. */

import { clampIndex, formatNumber, formatWeight, h, label, range, stepMenu, toggleButton } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import {
  MOST, cellChanges, heading, headOrMeanMenus, headWeights, parsePlace, rowChanges, selectHead, tokenRow,
} from "./selection.js";
import { drawTree, pathTo } from "./tree.js";

const BEAMS = [1, 2, 4, 8];

/**
 * What is selected: a candidate of the search (`node`), or a token of the answer (`word`), or all of it.
 * @typedef {object} Selection
 * @property {[number, number] | null} node
 * @property {boolean} offPath the candidate is not part of the answer
 * @property {number | null} word
 * @property {string[]} rows the tokens written on the way to it
 * @property {number[]} weightRows their rows among the weights
 */

/** The changes of the address that show the answer up to a token, which the query before it wrote.
 * @type {(app: App, word: number) => StateChanges} */
const wordChanges = (app, word) =>
  ({ ...rowChanges(app, "target", word), row: null, word, node: null, at: null });

/** @type {View} */
export const alignment = {
  key(key, app) {
    const by = { n: 1, p: -1 }[key];
    if (!by) return false;
    const count = app.manifest.tokens.written.length;
    const word = Number(app.state.word ?? (by > 0 ? -1 : count)) + by;
    app.go(wordChanges(app, Math.min(count - 1, Math.max(0, word))), { replace: true });
    return true;
  },

  async show(root, app) {
    const { go, source, state } = app;
    const { layers, layer, attention, oneHead: head } = selectHead(app, ["cross"]);
    const offered = offeredBeams(app);
    const beams = offered.find((count) => count === Number(state.beams)) ?? 1;
    const tree = await source.tree(beams);
    const name = beams > 1 ? `beams.${beams}.${attention.name}` : `${attention.name}.weights`;
    const weights = await source.tensor(name, { most: beams > 1 ? null : MOST });
    const selection = select(app, tree, beams, weights.shape[1]);
    const heads = weights.shape[0];
    const headName = head === null ? (heads > 1 ? `mean of ${heads} heads` : "attention") : `head ${head}`;
    const title = `Layer ${layer}, ${headName}`;
    const map = alignmentMap(app, selection, weights, head, title, beams > 1 ? null : attention.rows);
    const search = drawTree(tree, selection.node, (n, i) =>
      go({ node: `${n},${i}`, word: tree.chosen[n] === i ? n : null, at: null }, { replace: true }));
    app.current = {
      name: `alignment-${layer}`,
      ...map.output,
      python: (input) => pythonLines(input, beams, attention, head, map),
      more: [{ name: "search", svg: search.svg, csv: search.csv }],
    };
    const how = beams > 1 ? `${beams} beams; score ${formatNumber(tree.score)}` : "the likeliest candidates";
    const bar = h("div", { class: "controls" }, headOrMeanMenus(app, layers, attention, head),
      beamMenu(app, offered, beams), slider(app, selection));
    root.append(bar, heading(title, "rows: the answer; columns: the source"), writtenSoFar(selection),
      map.root, heading("The search", how), search.root);
  },
};

/** @param {App} app */
function offeredBeams({ manifest, source }) {
  if (!manifest.searches) return [1];
  return source.beams ?? BEAMS;
}

/** @type {(app: App, tree: SearchTree, beams: number, tall: number) => Selection} */
function select({ manifest, state }, tree, beams, tall) {
  const place = parsePlace(state.node, [tree.steps.length, Infinity]);
  const node = place && tree.steps[place[0]][place[1]] ? place : null;
  const offPath = node !== null && tree.chosen[node[0]] !== node[1];
  const path = (offPath ? pathTo(tree, ...node) : tree.chosen).map((i, n) => tree.steps[n][i]);
  const pooled = beams === 1 && tall !== manifest.tokens.written.length;
  const rows = pooled ? manifest.tokens.written : path.map(({ token }) => token);
  const word = state.word === undefined || offPath ? null : clampIndex(state.word, rows.length);
  return {
    offPath,
    rows,
    word,
    node: node ?? (word === null ? null : [word, tree.chosen[word]]),
    weightRows: pooled ? range(tall) : path.map(({ parent }, r) => (beams > 1 ? r * beams + parent : r)),
  };
}

/**
 * The alignment matrix; rows after the selected token are not shown.
 * @param {App} app
 * @param {Selection} selection
 * @param {Tensor} weights
 * @param {number | null} head
 * @param {string} title
 * @param {string | null} side of the queries, if they are those of the trace
 */
function alignmentMap(app, { rows, word, node, weightRows }, weights, head, title, side) {
  const { manifest, state, go } = app;
  const { S, data: all } = headWeights(weights, head);
  const data = new Float32Array(weightRows.length * S);
  weightRows.forEach((from, to) => data.set(all.subarray(from * S, (from + 1) * S), to * S));
  const shape = [weightRows.length, S];
  const later = (/** @type {number} */ r) => (word !== null && r > word ? "not written yet" : null);
  const blank = data.map((_, i) => Number(word !== null && i >= (word + 1) * S));
  let at = parsePlace(state.at, shape);
  const chosen = node && rows.length === weightRows.length ? node[0]
    : tokenRow(app, side, rows.length, weightRows.length);
  if (!at && chosen !== null) {
    const row = data.subarray(chosen * S, (chosen + 1) * S);
    at = [chosen, row.reduce((best, x, i) => (x > row[best] ? i : best), 0)];
  }
  return new Heatmap({
    rows, columns: manifest.tokens.source, data, shape, title, at, square: true,
    names: ["answer", "source"],
    limits: [0, data.reduce((a, b) => Math.max(a, b), 0)],
    why: word === null ? null : Object.assign(later, { blank }),
    format: formatWeight,
    move: (r, c) => go(cellChanges(app, [r, c], side, rows.length, weightRows.length), { quiet: true }),
  });
}

/** @type {(app: App, offered: number[], beams: number) => HTMLElement | null} */
function beamMenu({ go }, offered, beams) {
  if (offered.length < 2) return null;
  return stepMenu("search", "beams",
    offered.map((count) => [count, count > 1 ? `${count} beams` : "as traced: one path"]), beams,
    (to) => go({ beams: Number(to) > 1 ? to : null, node: null, word: null, at: null }, { replace: true }));
}

/** @type {(app: App, selection: Selection) => HTMLElement} */
function slider(app, { rows, word, offPath }) {
  const move = (/** @type {string | null} */ to) => app.go(to === null ? { word: to, node: null, at: null }
    : wordChanges(app, Number(to)), { replace: true });
  const slide = h("input", {
    type: "range", id: "word", min: 0, max: rows.length - 1, step: 1, "aria-label": "Decoding step",
    disabled: offPath, oninput: () => move(slide.value),
  });
  slide.value = String(word ?? rows.length - 1);
  return h("span", { class: "choice" }, h("label", { for: "word" }, "written so far"), slide,
    toggleButton("all", word === null && !offPath, () => move(null), { id: "all-words" }));
}

/** @type {(selection: Selection) => HTMLElement | ""} */
function writtenSoFar({ rows, word, offPath }) {
  if (word === null && !offPath) return "";
  const at = word ?? rows.length - 1;
  const where = offPath ? "a candidate of the search: " : `step ${at + 1} of ${rows.length}: `;
  return h("p", {}, h("span", { class: "pale" }, where),
    rows.slice(0, at).map((token) => `${label(token)} `), h("b", {}, label(rows[at])));
}

/**
 * @param {string} input
 * @param {number} beams
 * @param {AttentionInfo} attention
 * @param {number | null} head
 * @param {Heatmap} map
 */
function pythonLines(input, beams, { name }, head, { tall, wide }) {
  if (beams > 1) {
    return [`steps = regard.trace(model, ${input}, steps=True, num_beams=${beams})`,
      `[step.about["beam"] for step in steps]`];
  }
  return [`trace["${name}.weights"]${head === null ? ".mean(0)" : `[${head}]`}  # ${tall} × ${wide}`];
}
