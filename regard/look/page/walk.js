/* Step by step through the forward pass: each tensor with its formula, in the order of computing. */

import { choice, h } from "./dom.js";
import { place, reasons } from "./attention.js";
import { cell } from "./cell.js";
import { step } from "./formula.js";
import { grid } from "./grid.js";

const MOST = 768; // numbers each way
const SHARES = ["weights", "probabilities", "rollout"];

/** The steps that add something: no second name of the same numbers. */
function steps({ manifest }) {
  const all = Object.keys(manifest.tensors);
  // What all blocks of a stack share stands before the first of them.
  for (const name of all.filter((one) => ["cos", "sin", "bias"].includes(one.split(".").at(-1)))) {
    const stack = name.slice(0, name.lastIndexOf(".") + 1);
    all.splice(all.indexOf(name), 1);
    all.splice(all.findIndex((one) => one.startsWith(stack) && /^(blocks\.)?\d/.test(one.slice(stack.length))), 0, name);
  }
  return all.filter((name) => {
    const what = name.split(".").at(-1);
    if (what === "reason" || what === "rollout") return false;
    if (what === "mask") return Object.values(manifest.attentions).flat().some((one) => one.masked && name === `${one.name}.mask`);
    return !(manifest.sums[name]?.does === "same" && ["output", "input"].includes(what));
  });
}

/** Which part of the model a step belongs to. */
function group(name) {
  const parts = name.split(".");
  const at = parts.findIndex((part) => /^\d+$/.test(part));
  const side = ["encoder", "decoder"].includes(parts[0]) ? `${parts[0]} ` : "";
  if (parts.includes("layers")) return `${side}convolutions`;
  if (at >= 0 && parts.length > at + 1) {
    const what = { attn: "self-attention", cross: "cross-attention", ffn: "feed-forward" }[parts[at + 1]] ?? "";
    return `${side}block ${parts[at]} ${what}`.trim();
  }
  if (parts.includes("look")) return `${side}attention`;
  if (["logits", "probabilities", "vector", "transform", "transform_norm", "pooled", "pooler"].includes(parts[0])) return "the end";
  return side.trim() || "the beginning";
}

function chosen(app) {
  const all = steps(app);
  const wanted = app.state.step;
  const found = all.indexOf(wanted);
  return { all, at: found >= 0 ? found : Math.max(0, all.findIndex((name) => wanted && name.startsWith(`${wanted}.`))) };
}

export const walk = {
  key(key, app) {
    const by = { n: 1, ArrowRight: 1, p: -1, ArrowLeft: -1 }[key];
    if (!by) return false;
    const { all, at } = chosen(app);
    if (all[at + by]) app.go({ step: all[at + by], cell: null, at: null }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state, go } = app;
    const { all, at } = chosen(app);
    const name = all[at];
    const { shape, rows, columns } = manifest.tensors[name];
    const what = name.split(".").at(-1);
    const list = h("ol", { "aria-label": "Steps" });
    let last = null;
    all.forEach((one, i) => {
      const part = group(one);
      const item = h("li", {}, part === last ? null : h("h3", {}, part), h("a", {
        href: `#${new URLSearchParams({ ...state, view: "walk", step: one })}`, id: `step-${one}`, "aria-current": i === at ? "step" : null,
        onclick: (event) => {
          event.preventDefault();
          go({ step: one, cell: null, at: null });
        },
      }, step(one, manifest.sums[one]).title));
      last = part;
      list.append(item);
    });
    const heads = shape.length > 2 ? shape[0] : 0;
    const head = heads ? Math.min(Math.max(0, Number(state.head ?? 0) | 0), heads - 1) : undefined;
    const found = await app.source.tensor(name, { head, most: MOST });
    const [tall, wide] = [shape.length > 1 ? shape.at(-2) : 1, shape.at(-1)];
    const told = step(name, manifest.sums[name]);
    const words = (side, many) => (manifest.tokens[side] ?? []).slice(-many);
    const sides = [rows ? words(rows, tall) : count(tall), columns && columns !== "vocabulary" ? words(columns, wide) : count(wide)];
    const one = Object.values(manifest.attentions).flat().find((part) => name.startsWith(`${part.name}.`));
    const why = one && what === "weights" ? await reasons(app, one) : null;
    const panel = h("div", { class: "beside" });
    const made = grid({
      rows: sides[0], columns: sides[1], title: told.title, ...found, why,
      signed: !SHARES.includes(what) && what !== "mask" && name !== "pixels",
      names: one && columns ? ["query", "key"] : [rows ? "token" : "row", columns === "label" ? "class" : columns === "vocabulary" ? "token" : "number"],
      at: place(state.at, found.shape),
      square: Boolean(one && columns),
      move: (r, c) => go({ at: `${r},${c}` }, { quiet: true }),
      open: (r, c) => go({ at: `${r},${c}`, cell: `${name}:${head ?? 0},${r},${c}` }, { replace: true }),
    });
    panel.append(made.root);
    if (state.cell) panel.append(await cell(app, state.cell));
    const to = (by) => () => go({ step: all[at + by], cell: null, at: null });
    const kind = name === "pixels" || group(name).endsWith("convolutions") ? "channel" : "head";
    root.append(list, h("div", {},
      h("div", { class: "controls" },
        h("button", { type: "button", id: "previous", disabled: at === 0, onclick: to(-1) }, "‹ Previous"),
        h("button", { type: "button", id: "next", disabled: at === all.length - 1, onclick: to(1) }, "Next ›"),
        h("span", { class: "pale" }, `step ${at + 1} of ${all.length}`),
        heads > 1 ? choice(kind, "head", count(heads).map((i) => [i, i]), head, (value) => go({ head: value, cell: null }, { replace: true })) : null),
      h("h2", {}, told.title, h("small", { class: "pale" }, `${group(name)} · ${shape.join(" × ")}`)),
      h("p", {}, told.does),
      told.formula ? h("div", { class: "formula" }, told.formula) : null,
      panel,
      h("p", { class: "name" }, name)));
    app.current = { name: name.replaceAll(".", "-"), tensor: [name, head], canvas: made.canvas, svg: made.svg, csv: made.csv };
    requestAnimationFrame(() => list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }));
  },
};

const count = (many) => Array.from({ length: many }, (_, i) => String(i));
