/* What the address selects of a model's attention: part, layer, head and cell; and why cells are masked. */

import { clampIndex, h, last, numberMenu, stepMenu } from "./dom.js";
import { poolIndex } from "./tensor_part.js";

/** @type {Record<AttentionPart, string>} */
export const PART_TITLES = {
  self: "Self", masked: "Masked self", encoder: "Encoder self", decoder: "Decoder masked", cross: "Cross",
};
export const MOST = 1024; // numbers of a heat map each way
const REASONS = [
  null, "masked: padding", "masked: it comes later (future)", "masked: farther than the window",
];

/**
 * What an address says. In older ones, `of` also named the product of the scene.
 * @param {string} text
 * @returns {State}
 */
export function readState(text) {
  const state = Object.fromEntries(new URLSearchParams(text));
  if (state.depth !== "product" || state.of !== "heads" || state.view === "space") return state;
  const { of, ...others } = state;
  return { ...others, product: of };
}

/**
 * The parts of a model that have attention.
 * @param {Manifest} manifest
 */
export const attentionParts = ({ attentions }) => /** @type {AttentionPart[]} */ (Object.keys(attentions));

/**
 * Every attention of a model.
 * @param {Manifest} manifest
 */
export const allAttentions = ({ attentions }) => Object.values(attentions).flat();

const PLACES = ["part", "layer", "head", "at", "cell"];

/** The most telling head, if the address names no place. @param {Pick<App, "manifest" | "state">} app */
const openingOf = ({ manifest, state }) =>
  (PLACES.some((name) => state[name] !== undefined) ? null : manifest.opening);

/**
 * The part, layer and head that the address names: the last layer and the first head, if it names a part of
 * this; the most telling head, if it names nothing. `oneHead` is null for the mean of all heads.
 * @param {App} app
 * @param {AttentionPart[]} [among] these only
 */
export function selectHead(app, among = attentionParts(app.manifest)) {
  const { manifest, state } = app;
  const opening = openingOf(app);
  const named = opening && among.includes(opening.part) ? opening : state;
  const part = among.find((name) => name === named.part) ?? among[0];
  const layers = manifest.attentions[part] ?? [];
  const attention = layers.find(({ layer }) => layer === Number(named.layer)) ?? last(layers);
  const head = clampIndex(named.head, attention.heads);
  const oneHead = named.head === undefined || attention.heads === 1 ? null : head;
  return { part, layers, layer: attention.layer, attention, head, oneHead };
}

/** The side (a key of `Manifest.tokens`) whose tokens are selected. @param {App} app */
export const selectedSide = (app) => (allAttentions(app.manifest).length
  ? selectHead(app).attention.rows : app.manifest.outputs?.rows ?? null);

/**
 * The token that the address selects, if its side (a key of `Manifest.tokens`) is this one; else null.
 * @param {App} app
 * @param {string | null} side
 */
export function selectedToken(app, side) {
  const { manifest, state } = app;
  if (state.token === undefined || side === null || !manifest.tokens[side]) return null;
  return selectedSide(app) === side ? clampIndex(state.token, manifest.tokens[side].length) : null;
}

/**
 * The row of the selected token in a matrix of the last `full` tokens of a side, pooled to `tall` rows.
 * @type {(app: App, side: string | null, full: number, tall?: number) => number | null}
 */
export function tokenRow(app, side, full, tall = full) {
  const token = selectedToken(app, side);
  if (token === null) return null;
  const row = token - (app.manifest.tokens[side ?? ""].length - full);
  return row >= 0 && row < full ? poolIndex(row, full, tall) : null;
}

/**
 * The changes of the address that choose a cell of such a matrix, and with it the token of its row.
 * @type {(app: App, place: Place, side: string | null, full: number, tall?: number) => StateChanges}
 */
export function cellChanges(app, [r, c], side, full, tall = full) {
  const { part, layer, head } = openingOf(app) ?? {};
  const chosen = { at: `${r},${c}`, ...(part === undefined ? {} : { part, layer, head }) };
  if (side === null || side !== selectedSide(app)) return chosen;
  return { ...chosen, token: app.manifest.tokens[side].length - full + Math.floor((r * full) / tall) };
}

/**
 * The changes of the address that choose a row of the logits, which is the selected token where both can be.
 * @type {(app: App, side: string | null, row: string | number) => StateChanges}
 */
export const rowChanges = (app, side, row) =>
  (side !== null && side === selectedSide(app) ? { token: row, row: null, at: null } : { row });

/**
 * Menus for the layer, and for a head or the mean of all; none where there is one of each.
 * @param {App} app
 * @param {AttentionInfo[]} layers
 * @param {AttentionInfo} attention
 * @param {number | null} head
 */
export function headOrMeanMenus({ go }, layers, { layer, heads }, head) {
  const menus = [];
  if (layers.length > 1) {
    menus.push(stepMenu("layer", "layer", layerMenu(layers), layer,
      (to) => go({ layer: to, head }, { replace: true })));
  }
  if (heads > 1) {
    menus.push(stepMenu("head", "head", [["", "mean of all"], ...numberMenu(heads)], head ?? "",
      (to) => go({ layer, head: to }, { replace: true })));
  }
  return menus;
}

/**
 * @param {AttentionInfo[]} layers
 * @returns {[number, number][]}
 */
export const layerMenu = (layers) => layers.map(({ layer }) => [layer, layer]);

/**
 * One head (T × S) of weights (heads, T, S), or the mean of all.
 * @param {Tensor} tensor
 * @param {number | null} head
 */
export function headWeights({ shape: [heads, T, S], data }, head) {
  const weights = new Float32Array(T * S);
  for (let n = 0; n < heads; n++) {
    if (head !== null && n !== head) continue;
    for (let i = 0; i < weights.length; i++) weights[i] += data[n * T * S + i] / (head === null ? heads : 1);
  }
  return { T, S, data: weights };
}

/**
 * The tokens of the queries and of the keys.
 * @param {Pick<Manifest, "tokens">} manifest
 * @param {AttentionInfo} attention
 */
export const sideTokens = ({ tokens }, { rows, columns }) => [tokens[rows], tokens[columns]];

/**
 * Why a query may not attend to a key; null where nothing is masked.
 * @param {App} app
 * @param {AttentionInfo} attention
 * @param {number} [most] numbers of the heat map each way
 * @returns {Promise<MaskReasons | null>}
 */
export async function maskReasons({ source }, { name, masked }, most = MOST) {
  if (!masked) return null;
  // Pooled cells have a reason where they are masked as a whole.
  const { shape, data } = await source.tensor(`${name}.reason`, { most });
  /** @type {(r: number, c: number) => string | null} */
  const reason = (r, c) => REASONS[data[r * shape[1] + c]];
  return Object.assign(reason, { blank: data });
}

/**
 * "3,4" as the row and column of a matrix of this shape; null if it has no such cell.
 * @param {string | undefined} text
 * @param {number[]} shape
 * @returns {Place | null}
 */
export function parsePlace(text, shape) {
  const place = (text ?? "").split(",").map(Number);
  const inside = place.length === 2 && place.every((x, i) => x >= 0 && x < shape[i] && Number.isInteger(x));
  return inside ? [place[0], place[1]] : null;
}

/**
 * A heading with a smaller remark.
 * @param {string} title
 * @param {...Child} remark
 */
export const heading = (title, ...remark) =>
  h("h2", {}, title, remark.length ? h("small", { class: "pale" }, ...remark) : null);

/**
 * The changes that the address holds.
 * @param {State} state
 * @returns {Change[]}
 */
export function readChanges(state) {
  try {
    const changes = JSON.parse(state.changes ?? "[]");
    const isChange = (/** @type {unknown} */ one) => one instanceof Object && !Array.isArray(one);
    return Array.isArray(changes) ? changes.filter(isChange) : [];
  } catch {
    return [];
  }
}

/** Whether the model can be changed here. @param {Pick<App, "source" | "manifest">} app */
export const canChange = ({ source, manifest }) => Boolean(source.live && manifest.outputs);

/** What was changed of the address of a model, and what it was before.
 * @type {{ model?: string, before: State, after: State }[]} */
const past = [];

/**
 * The latest one that led to what the address holds now; -1: none, as in another model, or after going back.
 * @param {State} state
 */
const latest = (state) => {
  const fits = past.map(({ model, after }) => model === state.model
    && Object.entries(after).every(([name, value]) => state[name] === value));
  return fits.lastIndexOf(true);
};

/**
 * Change the address so that it can be undone.
 * @type {(app: App, after: State, more?: StateChanges) => void}
 */
function change({ state, go }, after, more) {
  const before = Object.fromEntries(Object.keys(after).map((name) => [name, state[name]]));
  past.push({ model: state.model, before, after });
  go({ ...after, ...more }, { replace: !more });
}

/**
 * Change what the model computes, in all views.
 * @param {App} app
 * @param {Change[]} changes
 * @param {StateChanges} [more] of the address
 */
export const setChanges = (app, changes, more) =>
  change(app, { changes: changes.length ? JSON.stringify(changes) : undefined }, more);

/** Another input or answer. @type {(app: App, after: { input?: string, answer?: string }) => void} */
export const setInput = (app, after) => change(app, { ...after, ids: undefined, written: undefined });

/** @type {(state: State) => boolean} */
export const canUndo = (state) => latest(state) >= 0;

/** @param {App} app */
export function undoChange({ state, go }) {
  const at = latest(state);
  if (at >= 0) go(past.splice(at)[0].before, { replace: true });
}
