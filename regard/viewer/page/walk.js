/* Step by step through the forward pass: each tensor with its formula, in the order of computation. */

import { openCell } from "./cell.js";
import { clampIndex, h, last, numberMenu, range, scrollInside, stepMenu } from "./dom.js";
import { drawFormula } from "./formula.js";
import { Heatmap } from "./heatmap.js";
import { largestWeights } from "./scene_data.js";
import {
  allAttentions, cellChanges, heading, maskReasons, parsePlace, selectHead, tokenRow,
} from "./selection.js";

const MOST = 768; // numbers each way
const UNSIGNED = ["weights", "probabilities", "rollout", "mask", "pixels"];
const SHARED = ["cos", "sin", "bias"]; // by all blocks of a stack
const ENDS = ["logits", "probabilities", "vector", "transform", "transform_norm", "pooled", "pooler"];
/** @type {Record<string, string>} */
const BLOCK_PARTS = { attn: "self-attention", cross: "cross-attention", ffn: "feed-forward" };

/** @param {string} name */
const lastPart = (name) => last(name.split("."));

/**
 * The tensors to walk through, without second names of the same numbers.
 * @param {Manifest} manifest
 */
function listSteps(manifest) {
  const all = Object.keys(manifest.tensors);
  for (const name of all.filter((one) => SHARED.includes(lastPart(one)))) { // before the first block
    const stack = name.slice(0, name.lastIndexOf(".") + 1);
    all.splice(all.indexOf(name), 1);
    const isBlock = (/** @type {string} */ other) => /^(blocks\.)?\d/.test(other.slice(stack.length));
    all.splice(all.findIndex((other) => other.startsWith(stack) && isBlock(other)), 0, name);
  }
  const masks = allAttentions(manifest).filter(({ masked }) => masked).map(({ name }) => `${name}.mask`);
  return all.filter((name) => {
    const what = lastPart(name);
    if (what === "reason" || what === "rollout") return false;
    if (what === "mask") return masks.includes(name);
    return !(manifest.sums[name]?.does === "same" && ["output", "input"].includes(what));
  });
}

/**
 * The part of the model that a step belongs to.
 * @param {string} name
 */
function groupOf(name) {
  const parts = name.split(".");
  const at = parts.findIndex((part) => /^\d+$/.test(part));
  const side = ["encoder", "decoder"].includes(parts[0]) ? `${parts[0]} ` : "";
  if (parts.includes("layers")) return `${side}convolutions`;
  if (at >= 0 && parts.length > at + 1) {
    return `${side}block ${parts[at]} ${BLOCK_PARTS[parts[at + 1]] ?? ""}`.trim();
  }
  if (parts.includes("look")) return `${side}attention`;
  if (ENDS.includes(parts[0])) return "the end";
  return side.trim() || "the beginning";
}

/**
 * All steps, and the number of the one that the address names.
 * @param {App} app
 */
function selectStep({ manifest, state }) {
  const all = listSteps(manifest);
  const exact = all.indexOf(state.step ?? "");
  const within = all.findIndex((name) => state.step && name.startsWith(`${state.step}.`));
  return { all, at: exact >= 0 ? exact : Math.max(0, within) };
}

/** @type {View} */
export const walk = {
  key(key, app) {
    const by = { n: 1, ArrowRight: 1, p: -1, ArrowLeft: -1 }[key];
    if (!by) return false;
    const { all, at } = selectStep(app);
    if (all[at + by]) app.go({ step: all[at + by], cell: null, at: null }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state } = app;
    const { all, at } = selectStep(app);
    const name = all[at];
    const { shape } = manifest.tensors[name];
    const { title, about, formula } = manifest.texts[name];
    const heads = shape.length > 2 ? shape[0] : 0;
    const usual = allAttentions(manifest).length ? selectHead(app).head : 0;
    const head = heads ? clampIndex(state.head, heads, usual) : undefined;
    const map = await stepMap(app, name, head, title);
    const list = stepList(app, all, at);
    root.append(list, h("div", {}, controls(app, all, at, heads, head),
      heading(title, `${groupOf(name)} · ${shape.join(" × ")}`),
      h("p", {}, about),
      formula ? h("div", { class: "formula" }, drawFormula(formula)) : null,
      h("div", { class: "beside" }, map.root, state.cell ? await openCell(app, state.cell) : null),
      h("p", { class: "name" }, name)));
    app.current = { name: name.replaceAll(".", "-"), tensor: [name, head], ...map.output };
    requestAnimationFrame(() => scrollInside(list, list.querySelector("[aria-current]")));
  },
};

/** @type {(app: App, all: string[], at: number) => HTMLElement} */
function stepList({ manifest, state, go }, all, at) {
  const items = all.map((name, i) => {
    const group = groupOf(name);
    const isNew = i === 0 || group !== groupOf(all[i - 1]);
    return h("li", {}, isNew ? h("b", {}, group) : null, h("a", {
      href: `#${new URLSearchParams(/** @type {any} */ ({ ...state, view: "walk", step: name }))}`,
      id: `step-${name}`,
      "aria-current": i === at ? "step" : null,
      onclick: (/** @type {MouseEvent} */ event) => {
        event.preventDefault();
        go({ step: name, cell: null, at: null });
      },
    }, manifest.texts[name].title));
  });
  return h("ol", { "aria-label": "Steps" }, items);
}

/** @type {(app: App, all: string[], at: number, heads: number, head: number | undefined) => HTMLElement} */
function controls({ go }, all, at, heads, head) {
  const step = (/** @type {number} */ by) => () => go({ step: all[at + by], cell: null, at: null });
  const image = ["pixels", "image"].includes(lastPart(all[at])) || groupOf(all[at]).endsWith("convolutions");
  return h("div", { class: "controls" },
    h("button", { type: "button", id: "previous", disabled: at === 0, onclick: step(-1) }, "‹ Previous"),
    h("button", { type: "button", id: "next", disabled: at === all.length - 1, onclick: step(1) }, "Next ›"),
    h("span", { class: "pale" }, `step ${at + 1} of ${all.length}`),
    heads > 1 ? stepMenu(image ? "channel" : "head", "head", numberMenu(heads), head ?? 0,
      (to) => go({ head: to, cell: null }, { replace: true })) : null);
}

/**
 * The tensor of a step as a heat map.
 * @param {App} app
 * @param {string} name
 * @param {number | undefined} head
 * @param {string} title
 */
async function stepMap(app, name, head, title) {
  const { manifest, state, go, source } = app;
  const { shape, rows, columns } = manifest.tensors[name];
  const tensor = await source.tensor(name, { head, most: MOST });
  const attention = allAttentions(manifest).find((part) => name.startsWith(`${part.name}.`));
  const isProduct = Boolean(attention && columns);
  /** @type {(side: string | null, size: number) => string[]} */
  const labels = (side, size) => (side && side !== "vocabulary"
    ? (manifest.tokens[side] ?? []).slice(-size) : range(size).map(String));
  const full = shape.length > 1 ? shape[shape.length - 2] : 1;
  const [tall, wide] = tensor.shape.slice(-2);
  const row = tokenRow(app, rows, full, tall);
  const own = row === null || !isProduct ? null : tensor.data.subarray(row * wide, (row + 1) * wide);
  const best = largestWeights(own, 1)[0]?.[0] ?? 0;
  /** @type {(r: number, c: number) => StateChanges} */
  const choose = (r, c) => cellChanges(app, [r, c], rows, full, tall);
  const columnName = columns === "label" ? "class" : columns === "vocabulary" ? "token" : "number";
  return new Heatmap({
    ...tensor,
    title,
    rows: labels(rows, full),
    columns: labels(columns, last(shape)),
    why: attention && lastPart(name) === "weights" ? await maskReasons(app, attention, MOST) : null,
    signed: !UNSIGNED.includes(lastPart(name)),
    names: isProduct ? ["query", "key"] : [rows ? "token" : "row", columnName],
    at: parsePlace(state.at, tensor.shape) ?? (row === null ? null : [row, best]),
    square: isProduct,
    move: (r, c) => go(choose(r, c), { quiet: true }),
    open: (r, c) => go({ ...choose(r, c), cell: `${name}:${head ?? 0},${r},${c}` }, { replace: true }),
  });
}
