/* Vectors as points: all tokens, or this run's tokens at a layer, with exact neighbours; and positions. */

import {
  alertBox, formatCount, formatNumber, h, label, last, messageOf, pythonString, range, stepMenu, tabs,
} from "./dom.js";
import { showPositions } from "./positions.js";
import { Scatter } from "./scatter.js";
import { heading, selectedSide, selectedToken } from "./selection.js";

/** @type {[string, string][]} */
const DISTANCES = [["cosine", "cosine"], ["euclidean", "Euclidean"]];
const NEIGHBOURS = 12;
/** @type {Record<string, string>} */
const NAMES = {
  embed: "embedding", input: "before the first block", states: "states", norm: "after the last norm",
};

/** What neighbours are asked of: a row of the map, or words and sums of words.
 * @typedef {{ row?: number, text?: string }} Query */

/** @type {Scatter | null} */
let scatter = null; // the map that n and p go through

/**
 * The name of a map as people read it.
 * @param {string} name
 */
function mapTitle(name) {
  if (name === "tokens") return "all tokens";
  const parts = name.split(".");
  const block = parts.findLast((part) => /^\d+$/.test(part));
  const side = ["encoder", "decoder"].includes(parts[0]) && parts.length > 1 ? `${parts[0]}, ` : "";
  return side + (block !== undefined ? `after block ${block}` : NAMES[last(parts)] ?? last(parts));
}

/** @type {View} */
export const space = {
  key(key) {
    const by = { n: 1, p: -1 }[key];
    if (by) scatter?.step(by);
    return Boolean(by && scatter);
  },

  async show(root, app) {
    const { manifest, source, state, go } = app;
    scatter = null;
    const maps = manifest.maps.filter((name) => source.live || source.saved.space.maps[name]);
    const layers = maps.filter((name) => name !== "tokens");
    /** @type {[string, string][]} */
    const forms = [["positions", "Positions"]];
    if (layers.length) forms.unshift(["run", "This run"]);
    if (maps.includes("tokens")) forms.unshift(["tokens", "All tokens"]);
    const isLayer = layers.includes(state.map ?? "");
    const form = forms.find(([name]) => name === state.map)?.[0] ?? (isLayer ? "run" : forms[0][0]);
    const bar = h("div", { class: "controls" },
      tabs("map", forms, form, (to) => go({ map: to, point: null, of: null, at: null })));
    root.append(bar);
    if (form === "positions") return showPositions(root, bar, app);
    const layer = layers.find((name) => name === state.map) ?? last(layers);
    if (form === "run") {
      bar.append(stepMenu("vectors", "layer-map", layers.map((name) => [name, mapTitle(name)]), layer,
        (to) => go({ map: to }, { replace: true })));
    }
    return showPoints(root, bar, app, form === "tokens" ? "tokens" : layer);
  },
};

/** @type {(root: HTMLElement, bar: HTMLElement, app: App, name: string) => Promise<void>} */
async function showPoints(root, bar, app, name) {
  const { manifest, source, state, go } = app;
  /** @type {PointMap} */
  const map = source.live ? await source.get("space", { name }) : source.saved.space.maps[name];
  const query = readQuery(app, name, map);
  const isTokens = name === "tokens";
  const side = manifest.tensors[name]?.rows ?? null;
  /** A token of this run is selected everywhere. @param {number} row */
  const choose = (row) => go(!isTokens && side !== null && side === selectedSide(app)
    ? { token: row, point: null, of: null } : { point: row, of: null }, { replace: true });
  /** @type {Neighbours | null} */
  let near = null;
  let problem = null;
  try {
    near = await nearest(app, name, query);
  } catch (error) {
    problem = messageOf(error);
  }
  bar.append(tabs("near", DISTANCES, near?.distance ?? state.near ?? "cosine",
    (to) => go({ near: to }, { replace: true })));
  const title = isTokens ? "Token embeddings" : `This run's tokens, ${mapTitle(name)}`;
  root.append(heading(title, mapSummary(map, isTokens)));
  scatter = new Scatter(title, map, near, choose);
  const panel = neighbourPanel(app, name, map, query, near, problem, choose);
  root.append(h("div", { class: "beside" }, scatter.root, panel));
  app.current = {
    name: `space-${name}`,
    ...scatter.output,
    tensor: isTokens ? undefined : [name],
    python: isTokens ? () => pythonLines(near, query.text) : null,
  };
}

/** @type {(map: PointMap, isTokens: boolean) => string} */
function mapSummary({ points, of, shares }, isTokens) {
  const count = formatCount(points.length);
  const [a, b] = shares.map((share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);
  const tokens = points.length < of ? `${count} of ${formatCount(of)} tokens, including those of the input`
    : `all ${count}`;
  const which = isTokens ? tokens : `${count} tokens`;
  return `${which}; the two principal components have ${a} and ${b} of the variance`;
}

/** The chosen point, or else the selected token. @type {(app: App, name: string, map: PointMap) => Query} */
function readQuery(app, name, { rows }) {
  const { state: { of, point }, manifest } = app;
  if (of?.trim() && name === "tokens") return { text: of.trim() };
  if (point !== undefined && Number(point) >= 0) return { row: Number(point) | 0 };
  const side = name === "tokens" ? selectedSide(app) : manifest.tensors[name]?.rows ?? null;
  const token = selectedToken(app, side);
  if (token === null) return { row: rows[0] };
  return { row: name === "tokens" ? manifest.ids[side ?? ""]?.[token] ?? rows[0] : token };
}

/**
 * The nearest to a point, or to what was typed. A page of one file knows the neighbours of its own tokens.
 * @type {(app: App, name: string, query: Query) => Promise<Neighbours>}
 */
async function nearest({ source, state }, name, query) {
  const distance = DISTANCES.find(([way]) => way === state.near)?.[0] ?? "cosine";
  if (source.live) return { distance, ...await source.get("near", { name, distance, ...query }) };
  const advice = "open the model with regard look to ask for others.";
  if (query.row === undefined) {
    throw new Error(`In this file only the tokens of its input have neighbours; ${advice}`);
  }
  const { maps, near } = source.saved.space;
  if (name === "tokens") {
    const saved = near.tokens[query.row];
    if (!saved) throw new Error(`This token is not one of the input's, which this file knows; ${advice}`);
    return { distance, ...saved[distance] };
  }
  return nearestRows(await source.tensor(name), maps[name], distance, query.row);
}

/** @type {(tensor: Tensor, map: PointMap, distance: string, own: number) => Neighbours} */
function nearestRows({ shape: [count, width], data }, map, distance, own) {
  const rowOf = (/** @type {number} */ r) => Float64Array.from(data.subarray(r * width, (r + 1) * width));
  /** @type {(a: Float64Array, b: Float64Array) => number} */
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const y = rowOf(own);
  const valueOf = (/** @type {Float64Array} */ x) => {
    if (distance === "cosine") return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
    return Math.sqrt(x.reduce((sum, value, i) => sum + (value - y[i]) ** 2, 0));
  };
  /** @type {(row: number, value: number) => Neighbour} */
  const neighbour = (row, value) => ({ row, word: map.words[row], point: map.points[row], value });
  const neighbours = range(Math.min(count, map.rows.length))
    .filter((row) => row !== own)
    .map((row) => neighbour(row, valueOf(rowOf(row))))
    .sort((a, b) => (distance === "cosine" ? b.value - a.value : a.value - b.value));
  return { distance, of: [neighbour(own, 1)], found: neighbours.slice(0, NEIGHBOURS) };
}

/**
 * The neighbours: a form for words and sums of words, and the list.
 * @param {App} app
 * @param {string} name
 * @param {PointMap} map
 * @param {Query} query
 * @param {Neighbours | null} near
 * @param {string | null} problem
 * @param {(row: number) => void} choose
 */
function neighbourPanel(app, name, map, query, near, problem, choose) {
  const isTokens = name === "tokens";
  const root = h("aside", { class: "cell near", "aria-label": "Neighbours" });
  if (isTokens && app.source.live) {
    root.append(sumForm(app), h("p", { class: "pale small" }, "A word, or a sum: king − man + woman."));
  }
  if (problem) root.append(alertBox(problem));
  if (!near) return root;
  const sum = near.of.map(({ word, value }, i) => {
    const sign = value < 0 ? "− " : i ? "+ " : "";
    return `${sign}${label(word)}`;
  }).join(" ");
  const scale = near.distance === "cosine"
    ? "cosine: 1 is the same direction" : "Euclidean distance: 0 is the same place";
  const among = isTokens ? "tokens, all compared" : "tokens of this run";
  root.append(h("h3", {}, `Nearest to ${query.text ? sum : label(near.of[0].word, 28)}`),
    neighbourBars(near, choose),
    h("p", { class: "pale small" }, `${scale}; of ${formatCount(map.of)} ${among}`));
  return root;
}

/** @type {(near: Neighbours, choose: (row: number) => void) => HTMLElement} */
function neighbourBars({ found: neighbours }, choose) {
  const peak = Math.max(...neighbours.map(({ value }) => Math.abs(value)), 1e-30);
  return h("div", { class: "bars" }, neighbours.map(({ row, word, value }) => [
    h("button", { type: "button", onclick: () => choose(row) }, label(word, 22)),
    h("div", { class: "share", "aria-hidden": "true" },
      h("i", { style: { width: `${(100 * Math.max(0, value)) / peak}%` } })),
    h("span", { class: "exact" }, formatNumber(value)), h("span", {}, "")]));
}

/** @param {App} app */
function sumForm({ state, go }) {
  const parts = (state.of ?? "").match(/^\s*(\S+)(?:\s+[-−]\s+(\S+)(?:\s+\+\s+(\S+))?)?\s*$/);
  /** @type {(id: string, words: string, value: string | undefined) => HTMLInputElement} */
  const field = (id, words, value) => h("input", {
    type: "text", id, "aria-label": words, placeholder: words, value: value ?? "",
    autocomplete: "off", spellcheck: "false", dir: "auto",
  });
  const fields = [["of-a", "word"], ["of-b", "minus"], ["of-c", "plus"]]
    .map(([id, words], i) => field(id, words, parts?.[i + 1]));
  const onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const [first, minus, plus] = fields.map(({ value }) => value.trim());
    const of = [first, minus && `- ${minus}`, plus && `+ ${plus}`].filter(Boolean).join(" ");
    go({ of, point: null }, { replace: true });
  };
  const sign = (/** @type {string} */ words) => h("span", { class: "pale" }, words);
  return h("form", { class: "sum", onsubmit }, fields[0], sign("−"), fields[1], sign("+"), fields[2],
    h("button", { type: "submit", id: "find" }, "Find"));
}

/** @type {(near: Neighbours | null, typed: string | undefined) => string[]} */
function pythonLines(near, typed) {
  const word = typed ?? near?.of[0].word.trim() ?? "word";
  const distance = pythonString(near?.distance ?? "cosine");
  return ["words = regard.vectors(model)", `words.nearest(${pythonString(word)}, distance=${distance})`];
}
