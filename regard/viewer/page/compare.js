/* Two runs side by side: of two inputs, of another model, or of an earlier checkpoint. */

import {
  alertBox, fileKind, formatCount, formatNumber, formatWeight, h, label, messageOf, numberMenu,
  numberTokens, pythonString, shortPath, stepMenu, toBase64, toggleButton,
} from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { textField } from "./input.js";
import { inputLiteral, loadLines } from "./python.js";
import {
  PART_TITLES, allAttentions, attentionParts, cellChanges, heading, layerMenu, maskReasons, parsePlace,
  rowChanges, selectHead, selectedToken, sideTokens, tokenRow,
} from "./selection.js";
import { drawVersus } from "./versus.js";

const MOST = 512; // numbers of a heat map each way
/** @type {{ key: string | null, manifest: Manifest | null }} */
let latest = { key: null, manifest: null }; // the other run, while only the head changes

/**
 * The other run that the address names, "model:1", "step:30" or "final"; null if it names none.
 * @param {App} app
 */
async function traceOther(app) {
  const { state, source, manifest } = app;
  if (!source.live) return null;
  const [kind, which] = (state.other ?? "").split(":");
  if (!["model", "step", "final"].includes(kind) && state.with === undefined && !app.beside) return null;
  const index = /^\d+$/.test(which ?? "") ? Number(which) : undefined;
  const { sees } = manifest.model;
  const sameAnswer = state.same !== undefined && manifest.tokens.written && manifest.answer !== null;
  const request = {
    input: sees ? undefined : state.with ?? manifest.input,
    model: kind === "model" ? index : undefined,
    checkpoint: kind === "step" ? index : kind === "" ? manifest.step ?? undefined : undefined,
    picture: sees ? app.beside ?? app.dropped ?? undefined : undefined,
    answer: sameAnswer ? manifest.answer : undefined,
    layers: manifest.layers ?? undefined,
  };
  const key = JSON.stringify([manifest.id, request]);
  if (latest.key !== key) latest = { key, manifest: await source.send("trace", request) };
  return latest.manifest;
}

/** @type {View} */
export const compare = {
  async show(root, app) {
    const { manifest, source } = app;
    app.current = { name: "compare", python: (input) => pythonLines(app, input) };
    if (!source.live) {
      const lines = [...loadLines(manifest), ...pythonLines(app, inputLiteral(manifest))];
      root.append(heading("Compare"),
        h("p", {}, "To compare, the model itself is needed, and this file holds the numbers of one run. "
          + "Open it with regard look; or in Python:"),
        h("pre", { tabindex: "0", id: "lines" }, lines.join("\n")));
      return;
    }
    const models = await source.get("models");
    root.append(heading("Compare", "this run, and another beside it"), compareForm(app, models));
    try {
      const other = await traceOther(app);
      if (other) await showBoth(root, app, other);
      else {
        root.append(h("p", { class: "pale" }, manifest.model.sees
          ? `Choose another ${fileKind(manifest.model).noun}, or another model, to see both.`
          : "Write another input, or choose another model or checkpoint, to see both."));
      }
    } catch (error) {
      root.append(alertBox(messageOf(error)));
    }
  },
};

/** @type {(root: HTMLElement, app: App, other: Manifest) => Promise<void>} */
async function showBoth(root, app, other) {
  const { manifest } = app;
  const thing = manifest.model.sees ? fileKind(manifest.model).noun : "input";
  const [mine, theirs] = [runName(manifest), runName(other)];
  /** @type {[string, string]} */
  const names = mine === theirs ? [`this ${thing}`, `the other ${thing}`] : [mine, theirs];
  const cards = [manifest, other].map(({ input, answer }, i) => h("div", { class: "card" },
    h("h3", {}, names[i]),
    h("p", { dir: "auto", class: "pale" }, input === null ? `a ${thing}` : label(input, 120)),
    answer === null ? null : h("p", {
      id: `says-${i}`, dir: "auto", class: i && answer !== manifest.answer ? "changed" : null,
    }, `→ ${label(answer, 120)}`)));
  root.append(h("div", { class: "cards" }, cards));
  await showMaps(root, app, other, names);
  await showPredictions(root, app, other);
}

/** @param {Manifest} manifest */
function runName({ model, step }) {
  const name = model.name === null ? model.class : shortPath(model.name);
  return step === null ? name : `${name}, step ${formatCount(step)}`;
}

/** @type {(app: App, models: string[]) => HTMLElement} */
function compareForm(app, models) {
  const { manifest, state, go } = app;
  const { sees } = manifest.model;
  const { accept, noun } = fileKind(manifest.model);
  const values = [["", "this model"],
    ...(manifest.step === null ? [] : [["final", "this run at its end"]]),
    ...models.map((name, i) => [`model:${i}`, shortPath(name)]),
    ...(manifest.steps ?? []).map((step) => [`step:${step}`, `this run at step ${formatCount(step)}`])];
  const menu = h("select", { id: "other" }, values.map(([value, words]) =>
    h("option", { value, selected: value === (state.other ?? "") }, words)));
  const same = manifest.tokens.written ? toggleButton("the same answer", state.same !== undefined,
    () => go({ same: state.same === undefined ? 1 : null }, { replace: true }), { id: "same" }) : null;
  const field = sees
    ? h("input", {
      type: "file", id: "beside", accept, "aria-label": `Another ${noun}`,
    })
    : textField("with", "Another input", state.with ?? manifest.input ?? "");
  const onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const other = menu.value || null;
    if (!sees) {
      const isSame = menu.value && field.value === manifest.input;
      go({ other, with: isSame ? null : field.value, at: null, row2: null }, { replace: true });
      return;
    }
    const file = field instanceof HTMLInputElement ? field.files?.[0] : null;
    if (file) app.beside = await toBase64(file);
    go({ other, at: null }, { replace: true });
  };
  return h("form", { class: "controls with", onsubmit },
    values.length > 1 ? h("span", { class: "choice" }, h("label", { for: "other" }, "with"), menu)
      : h("span", { class: "pale" }, "with"),
    field, h("button", { type: "submit", id: "compare" }, "Compare"), same);
}

/** @param {App} app */
function headMenus(app) {
  const { manifest, go } = app;
  const { part, layers, layer, attention, head } = selectHead(app);
  const parts = attentionParts(manifest);
  return h("div", { class: "controls" },
    parts.length > 1 ? stepMenu("part", "part", parts.map((name) => [name, PART_TITLES[name]]), part,
      (to) => go({ part: to, layer: null, head: null, at: null }, { replace: true })) : null,
    stepMenu("layer", "layer", layerMenu(layers), layer, (to) => go({ layer: to }, { replace: true })),
    stepMenu("head", "head", numberMenu(attention.heads), head, (to) => go({ head: to }, { replace: true })));
}

/**
 * The same head of both runs, and the difference where both have as many tokens.
 * @type {(root: HTMLElement, app: App, other: Manifest, names: [string, string]) => Promise<void>}
 */
async function showMaps(root, app, other, names) {
  const { manifest, source } = app;
  if (!allAttentions(manifest).length || !allAttentions(other).length) {
    root.append(h("p", { class: "pale" }, "There is no attention to compare."));
    return;
  }
  const { part, layer, attention, head } = selectHead(app);
  const title = `${PART_TITLES[part]} attention, layer ${layer}, head ${head}`;
  root.append(headMenus(app), heading(title));
  const theirs = allAttentions(other).find(({ name }) => name === attention.name);
  if (!theirs || theirs.heads <= head) {
    root.append(h("p", { class: "pale" }, `The other has no ${attention.name}, head ${head}.`));
    return;
  }
  const name = `${attention.name}.weights`;
  const [a, b, why] = await Promise.all([source.tensor(name, { head, most: MOST }),
    source.tensor(name, { head, most: MOST, trace: other.id }), maskReasons(app, attention, MOST)]);
  drawMaps(root, app, other, names, title, [a, b], why);
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {Manifest} other
 * @param {[string, string]} names
 * @param {string} title
 * @param {[Tensor, Tensor]} weights
 * @param {MaskReasons | null} why of this run
 */
function drawMaps(root, app, other, names, title, [a, b], why) {
  const { manifest, state, go } = app;
  const { attention } = selectHead(app);
  const full = manifest.tokens[attention.rows].length;
  const row = tokenRow(app, attention.rows, full, a.shape[0]);
  const own = row === null ? [] : Array.from(a.data.subarray(row * a.shape[1], (row + 1) * a.shape[1]));
  const start = row === null ? undefined : `${row},${own.indexOf(Math.max(...own))}`;
  const alike = a.shape.every((n, i) => n === b.shape[i]); // the same cells are masked
  const peak = Math.max(...[a, b].map(({ data }) => largest(data)));
  /** @type {Heatmap[]} */
  const maps = [];
  const panels = h("div", { class: "panels" });
  /** @type {(id: string, words: string, tokens: string[][], tensor: Tensor, more: object) => void} */
  const draw = (id, words, [rows, columns], tensor, more) => {
    const map = new Heatmap({
      id, rows, columns, ...tensor, title: `${words}: ${title}`, names: ["query", "key"], square: true,
      numbers: false, at: parsePlace(state.at ?? start, tensor.shape), why: alike ? why : null,
      format: formatWeight,
      move: (r, c) => {
        const side = id === "matrix-b" && !alike ? null : attention.rows;
        go(cellChanges(app, [r, c], side, full, a.shape[0]), { quiet: true });
        for (const each of maps) each.look(r, c, true);
      },
      ...more,
    });
    maps.push(map);
    panels.append(h("div", {}, h("h3", {}, words), map.root));
  };
  const [mine, theirs] = [sideTokens(manifest, attention), sideTokens(other, attention)];
  draw("matrix", names[0], mine, a, { limits: [0, peak], why });
  draw("matrix-b", names[1], theirs, b, { limits: [0, peak] });
  let remark = `No difference map: ${a.shape.join(" × ")} weights here, ${b.shape.join(" × ")} there.`;
  if (alike) {
    const difference = a.data.map((x, i) => b.data[i] - x);
    const both = mine.map((tokens, side) => tokens.map((word, i) => bothWords(word, theirs[side][i])));
    draw("difference-map", "difference: the other minus this", both, { shape: a.shape, data: difference },
      { signed: true });
    remark = `Largest difference of a weight: ${formatNumber(largest(difference.map(Math.abs)))}.`;
  }
  root.append(panels, h("p", { class: "pale", id: "largest" }, remark));
  app.current = { name: "compare", ...app.current, ...maps[maps.length - 1].output };
}

/** @type {(a: string, b: string) => string} */
const bothWords = (a, b) => (a === b ? a : `${label(a, 9)} / ${label(b, 9)}`);

/** @param {Numbers} numbers */
function largest(numbers) {
  let most = 0;
  for (const x of numbers) if (Number.isFinite(x) && x > most) most = x;
  return most;
}

/**
 * What both predict at a position of each.
 * @type {(root: HTMLElement, app: App, other: Manifest) => Promise<void>}
 */
async function showPredictions(root, app, other) {
  const { manifest, state, go, source } = app;
  root.append(heading("What both predict"));
  if (!manifest.outputs || !other.outputs) {
    root.append(h("p", { class: "pale" }, "They don't both predict tokens or classes."));
    return;
  }
  if (!source.live) return;
  const rows = [manifest, other].map(({ outputs, tokens }) => (outputs?.rows ? tokens[outputs.rows] : null));
  const alike = rows[0]?.length === rows[1]?.length;
  const side = manifest.outputs.rows;
  const row = state.row ?? selectedToken(app, side)?.toString();
  const otherRow = alike ? row : state.row2;
  /** @type {Record<string, string>} */
  const query = { other: other.id };
  if (/^\d+$/.test(row ?? "")) query.row = row ?? "";
  if (/^\d+$/.test(otherRow ?? "")) query.other_row = otherRow ?? "";
  /** @type {Comparison} */
  let both;
  try {
    both = await source.get("versus", query);
  } catch (error) {
    root.append(h("p", { class: "pale" }, messageOf(error)));
    return;
  }
  const word = manifest.outputs.kind === "next" ? "after" : "token";
  /** @type {(i: number, id: string, words: string) => HTMLElement} */
  const menu = (i, id, words) => stepMenu(words, id, numberTokens(rows[i] ?? []), both.rows[i],
    (to) => go(i ? { row2: to } : rowChanges(app, side, to), { replace: true }));
  if (rows[0]) {
    root.append(h("div", { class: "controls" }, menu(0, "row", alike ? word : `${word}, here`),
      alike ? null : menu(1, "row2", `${word}, there`)));
  }
  const apart = both.kl === null ? "not comparable" : `${formatNumber(both.kl)} nats`;
  const versus = drawVersus(both.top, ["this", "other"], "What both predict");
  root.append(h("p", { class: "pale", id: "kl" }, `${apart} apart (KL)`), versus.root);
  app.current = { name: "compare", ...app.current, csv: app.current?.csv ?? versus.csv };
}

/** @type {(app: App, mine: string) => string[]} */
function pythonLines({ manifest, state }, mine) {
  const [kind, which] = (state.other ?? "").split(":");
  const load = `regard.load(${pythonString(manifest.model.name ?? "RUN")})`;
  const step = `regard.at_step(model, ${Number(which) || 0})`;
  const model = { final: load, step, model: 'regard.load("OTHER")' }[kind];
  const theirs = manifest.input === null ? '"other.png"' : pythonString(state.with ?? manifest.input);
  const first = allAttentions(manifest)[0];
  const tensor = pythonString(first ? `${first.name}.weights` : "logits");
  return [`other = ${model ?? "model"}`,
    `a, b = regard.trace(model, ${mine}), regard.trace(other, ${theirs})`,
    `b[${tensor}] - a[${tensor}]  # where both have as many tokens`];
}
