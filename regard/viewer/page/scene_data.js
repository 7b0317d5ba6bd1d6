/* What the scene shows: the selected token, layer and head, where the token looks, and the answer. */

import { clampIndex, label, last, range } from "./dom.js";
import { attentionParts, selectHead } from "./selection.js";
import { softmax } from "./softmax.js";

const MOST = 1024; // tokens each way; of longer inputs only the selected token's weights are read
const ANSWERS = 5;

/**
 * A part of the model in the order of computation: a block, or a box outside of blocks.
 * @typedef {object} SceneItem
 * @property {string} title
 * @property {GraphBox[]} boxes
 * @property {string} column "reads", "writes" or ""
 * @property {number | null} layer of a block
 */

/** @typedef {{ side: string, tokens: string[], grid: [number, number] | null, before: number }} SceneSide */
/** @typedef {{ word: string, p: number, id: number }} Answer */

/**
 * @typedef {object} Scene
 * @property {AttentionPart | null} part
 * @property {AttentionInfo[]} layers
 * @property {AttentionInfo | null} attention
 * @property {number} layer
 * @property {number} head
 * @property {SceneSide} keys what is looked at
 * @property {SceneSide} queries who looks
 * @property {number} token the selected query
 * @property {(query: number) => Numbers | null} weightsOf the weights of a query on all keys
 * @property {Tensor | null} images all heads of the layer, as bytes
 * @property {Tensor | null} pixels
 * @property {SceneItem[]} items
 * @property {number} open which of them is open
 * @property {{ title: string, list: Answer[], row: number | null } | null} answers
 * @property {boolean} recurrent
 */

/**
 * Fill in what the address leaves open: the most telling head, and the token whose answer comes next.
 * @param {App} app
 */
export function completeState(app) {
  const { manifest, state } = app;
  const { opening } = manifest;
  const names = attentionParts(manifest);
  const chosen = state.part !== undefined || state.layer !== undefined || state.head !== undefined;
  const head = chosen || !opening ? {} : opening;
  if (state.token !== undefined) return { view: "look", ...head };
  const side = names.length
    ? selectHead({ ...app, state: { ...state, ...stringify(head) } }).attention.rows
    : manifest.outputs?.rows;
  return { view: "look", ...head, token: usualToken(manifest, side ?? "text") };
}

/** @type {(changes: object) => State} */
const stringify = (changes) =>
  Object.fromEntries(Object.entries(changes).map(([name, value]) => [name, String(value)]));

/** @type {(manifest: Manifest, side: string) => SceneSide} */
export function sideOf({ tokens, grid }, side) {
  const words = tokens[side] ?? [];
  const patches = grid ? grid[0] * grid[1] : Infinity;
  const isPicture = grid !== null && words.length >= patches && (side === "source" || side === "text");
  const before = isPicture ? words.length - patches : 0;
  return { side, tokens: words, grid: isPicture ? grid : null, before };
}

/**
 * The blocks of the model and what is around them, from its map.
 * @param {GraphColumn[]} graph
 * @returns {SceneItem[]}
 */
export function listItems(graph) {
  return graph.flatMap(({ title: column, boxes }) => {
    /** @type {SceneItem[]} */
    const items = [];
    for (const box of boxes) {
      const before = items[items.length - 1];
      if (box.group && before?.title === box.group) before.boxes.push(box);
      else {
        const layer = box.group ? Number(last(box.group.split(" "))) : null;
        items.push({ title: box.group ?? box.title, boxes: [box], column, layer });
      }
    }
    return items;
  });
}

/**
 * The row of the logits that the answer is read from.
 * @param {Manifest} manifest
 * @param {string} side of the selected token
 * @param {number} token
 */
function answerRow(manifest, side, token) {
  const outputs = /** @type {Outputs} */ (manifest.outputs);
  const tokens = outputs.rows ? manifest.tokens[outputs.rows] : null;
  if (!tokens) return null;
  return outputs.rows === side ? token : usualToken(manifest, outputs.rows ?? "");
}

/**
 * The token that is selected first: the last of a text that goes on, a blank, the class token. Of a picture
 * without one, null: that depends on where its patches look.
 * @type {(manifest: Manifest, side: string) => number | null}
 */
export function usualToken(manifest, side) {
  const { tokens, outputs } = manifest;
  const words = tokens[side] ?? [];
  const { grid, before } = sideOf(manifest, side);
  if (grid && before === 0) return null;
  if (side === "target") return Math.max(0, words.length - 2); // the end says little
  if (outputs?.kind === "next") return Math.max(0, words.length - 1);
  return Math.max(0, words.indexOf("[MASK]"));
}

/**
 * The query that looks at another token most.
 * @type {(weightsOf: Scene["weightsOf"], count: number) => number}
 */
function tellingQuery(weightsOf, count) {
  const most = range(count).map((query) => {
    const [[key, weight]] = [...largestWeights(weightsOf(query), 1), [query, 0]];
    return key === query ? 0 : weight;
  });
  return most.indexOf(Math.max(...most));
}

/**
 * The likeliest answers, and what they are answers to.
 * @type {(app: App, side: string, token: number) => Promise<Scene["answers"]>}
 */
async function readAnswers({ manifest, source }, side, token) {
  const { outputs, tokens } = manifest;
  if (!outputs) return null;
  const row = answerRow(manifest, side, token);
  try {
    const { data } = await source.tensor("logits", row === null ? {} : { rows: `${row}:${row + 1}` });
    const exact = softmax(data);
    const ids = range(exact.length).sort((a, b) => exact[b] - exact[a]).slice(0, ANSWERS);
    const words = outputs.kind === "classes" ? ids.map((id) => tokens.label[id]) : await source.words(ids);
    const at = row === null ? "" : `“${label(tokens[outputs.rows ?? ""][row])}”`;
    const where = outputs.kind === "next" ? "After" : "At";
    const title = outputs.kind === "classes" ? "The answer" : `${where} ${at}`;
    return { title, row, list: ids.map((id, i) => ({ word: words[i], p: exact[id], id })) };
  } catch {
    return null; // a saved file may not hold them
  }
}

/**
 * A tensor, or null where a saved file does not hold it.
 * @type {(app: App, name: string, part?: TensorPart) => Promise<Tensor | null>}
 */
export async function tensorOrNull({ source, manifest }, name, part) {
  if (!manifest.tensors[name]) return null;
  try {
    return await source.tensor(name, part);
  } catch {
    return null;
  }
}

/**
 * @param {App} app
 * @returns {Promise<Scene>}
 */
export async function readScene(app) {
  const { manifest, state } = app;
  const items = listItems(manifest.graph);
  const pixels = manifest.grid ? await tensorOrNull(app, "pixels") : null;
  const recurrent = Object.keys(manifest.tensors).some((name) => /(^|\.)cells\.\d/.test(name));
  const has = attentionParts(manifest).length > 0;
  const chosen = has ? selectHead(app) : null;
  const sides = Object.keys(manifest.tokens).filter((side) => side !== "label" && side !== "written");
  const queries = sideOf(manifest, chosen?.attention.rows ?? last(sides));
  const keys = sideOf(manifest, chosen?.attention.columns ?? sides[0]);
  const usual = usualToken(manifest, queries.side);
  const start = clampIndex(state.token, queries.tokens.length, usual ?? 0);
  const small = { most: 48, as: /** @type {const} */ ("uint8") };
  const [weights, answers, images] = await Promise.all([
    readWeights(app, chosen, keys, queries, start), readAnswers(app, queries.side, start),
    chosen ? tensorOrNull(app, `${chosen.attention.name}.weights`, small) : null]);
  const token = usual === null && state.token === undefined
    ? tellingQuery(weights, queries.tokens.length) : start;
  const prefix = chosen ? `${chosen.attention.name}.` : "";
  const open = chosen
    ? items.findIndex(({ boxes }) => boxes.some(({ name }) => name.startsWith(prefix)))
    : items.findIndex(({ title }) => title.startsWith("Recurrent"));
  return {
    part: chosen?.part ?? null, layers: chosen?.layers ?? [], attention: chosen?.attention ?? null,
    layer: chosen?.layer ?? 0, head: chosen?.head ?? 0,
    keys, queries, token, weightsOf: weights, images, pixels, items, open: Math.max(0, open), answers,
    recurrent,
  };
}

/**
 * @type {(app: App, chosen: ReturnType<typeof selectHead> | null, keys: SceneSide, queries: SceneSide,
 *   token: number) => Promise<Scene["weightsOf"]>}
 */
async function readWeights(app, chosen, keys, queries, token) {
  if (!chosen) return () => null;
  const [T, S] = [queries.tokens.length, keys.tokens.length];
  const name = `${chosen.attention.name}.weights`;
  const small = Math.max(T, S) <= MOST;
  const part = small ? {} : { rows: `${token}:${token + 1}` };
  const tensor = await tensorOrNull(app, name, { head: chosen.head, ...part });
  const [rows, columns] = tensor?.shape.slice(-2) ?? [0, 0];
  if (!tensor || columns !== S || rows !== (small ? T : 1)) return () => null;
  return (query) => {
    const at = small ? query : query - token;
    return at >= 0 && at < rows ? tensor.data.subarray(at * S, (at + 1) * S) : null;
  };
}

/**
 * The largest of a query's weights: [key, weight], largest first.
 * @param {Numbers | null} weights
 * @param {number} most
 * @returns {[number, number][]}
 */
export function largestWeights(weights, most) {
  if (!weights) return [];
  return Array.from(weights, (w, i) => /** @type {[number, number]} */ ([i, w]))
    .sort((a, b) => b[1] - a[1]).slice(0, most);
}
