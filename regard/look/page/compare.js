/* Two runs side by side: of two inputs, of another model, or of an earlier checkpoint. */

import { choice, encoded, folder, h, label, number, python, toggle } from "./dom.js";
import { PARTS, chosen, place, reasons, sides } from "./attention.js";
import { grid } from "./grid.js";
import { begun, given, versus } from "./whatif.js";

const MOST = 512; // numbers of a heat map each way
let last = { key: null, manifest: null }; // the other run, while only heads are changed

/** The other run, as the address tells it; null if it tells of none. */
async function other(app) {
  const { state, source, manifest } = app;
  const [kind, which] = (state.other ?? "").split(":");
  const number = /^\d+$/.test(which ?? "") ? Number(which) : undefined;
  const model = kind === "model" ? number : undefined;
  const checkpoint = { step: number, final: undefined, model: undefined, "": manifest.step ?? undefined }[kind];
  const picture = manifest.model.sees ? app.beside ?? app.dropped ?? undefined : undefined;
  if (!["model", "step", "final"].includes(kind) && state.with === undefined && !app.beside) return null;
  const sameAnswer = state.same !== undefined && manifest.tokens.written && manifest.answer !== null;
  const asked = {
    input: manifest.model.sees ? undefined : state.with ?? manifest.input, model, checkpoint, picture,
    answer: sameAnswer ? manifest.answer : undefined, layers: manifest.layers ?? undefined,
  };
  const key = JSON.stringify([manifest.id, asked]);
  if (last.key !== key) last = { key, manifest: await source.send("trace", asked) };
  return last.manifest;
}

export const compare = {
  async show(root, app) {
    const { manifest, source, go, state } = app;
    app.current = { name: "compare", python: (mine) => lines(app, mine) };
    if (!source.live) {
      root.append(h("h2", {}, "Compare"), h("p", {}, "To compare, the model itself is needed, and this file holds the numbers of one run. Open it with regard look; or in Python:"),
        h("pre", { tabindex: "0", id: "lines" }, [...begun(manifest), ...lines(app, given(manifest))].join("\n")));
      return;
    }
    const models = await source.get("models");
    let [found, wrong] = [null, null];
    try {
      found = await other(app);
    } catch (error) {
      wrong = error.message;
    }
    root.append(h("h2", {}, "Compare", h("small", { class: "pale" }, "this run, and another beside it")), form(app, models));
    if (wrong) root.append(h("p", { class: "wrong", role: "alert" }, wrong));
    if (!found) {
      if (!wrong) root.append(h("p", { class: "pale" }, manifest.model.sees ? "Choose another picture, or another model, to see both." : "Write another input, or choose another model or checkpoint, to see both."));
      return;
    }
    const alike = named(manifest) === named(found);
    const names = alike ? [`this ${thing(manifest)}`, `the other ${thing(manifest)}`] : [named(manifest), named(found)];
    const said = [manifest, found].map((one, i) => h("div", { class: "card" }, h("h3", {}, names[i]),
      h("p", { dir: "auto", class: "pale" }, one.input === null ? "a picture" : label(one.input, 120)), one.answer === null ? null : h("p", { id: `says-${i}`, dir: "auto", class: i && one.answer !== manifest.answer ? "changed" : null }, `→ ${label(one.answer, 120)}`)));
    root.append(h("div", { class: "cards" }, said));
    await maps(root, app, found, names);
    await expected(root, app, found);
  },
};

const thing = ({ model }) => (model.sees ? "picture" : "input");
const named = ({ model, step }) => `${model.name === null ? model.class : folder(model.name)}${step === null ? "" : `, step ${step.toLocaleString("en")}`}`;

function form(app, models) {
  const { manifest, state, go } = app;
  const steps = manifest.steps ?? [];
  const values = [["", "this model"], ...(manifest.step === null ? [] : [["final", "this run at its end"]]), ...models.map((name, i) => [`model:${i}`, folder(name)]), ...steps.map((step) => [`step:${step}`, `this run at step ${step.toLocaleString("en")}`])];
  const menu = h("select", { id: "other" }, values.map(([value, words]) => h("option", { value, selected: value === (state.other ?? "") }, words)));
  const same = manifest.tokens.written ? toggle("the same answer", state.same !== undefined, () => go({ same: state.same === undefined ? 1 : null }, { replace: true }), { id: "same" }) : null;
  const field = manifest.model.sees ? h("input", { type: "file", id: "beside", accept: "image/png,image/jpeg,image/webp", "aria-label": "Another picture" })
    : h("input", { type: "text", id: "with", "aria-label": "Another input", value: state.with ?? manifest.input, autocomplete: "off", spellcheck: "false", dir: "auto" });
  const submit = async (event) => {
    event.preventDefault();
    if (manifest.model.sees) {
      if (field.files[0]) app.beside = await encoded(field.files[0]);
      go({ other: menu.value || null, at: null }, { replace: true });
    } else go({ other: menu.value || null, with: menu.value && field.value === manifest.input ? null : field.value, at: null, row2: null }, { replace: true });
  };
  return h("form", { class: "controls with", onsubmit: submit }, values.length > 1 ? h("span", { class: "choice" }, h("label", { for: "other" }, "with"), menu) : h("span", { class: "pale" }, "with"),
    field, h("button", { type: "submit", id: "compare" }, "Compare"), same);
}

/** The same head of both, and the difference where both have as many tokens. */
async function maps(root, app, found, names) {
  const { manifest, state, go, source } = app;
  if (!Object.keys(manifest.attentions).length || !Object.keys(found.attentions).length) {
    root.append(h("p", { class: "pale" }, "There is no attention to compare."));
    return;
  }
  const { part, layers, layer, one, head } = chosen(app);
  const parts = Object.keys(manifest.attentions);
  const theirs = Object.values(found.attentions).flat().find(({ name }) => name === one.name);
  const bar = h("div", { class: "controls" });
  if (parts.length > 1) bar.append(choice("part", "part", parts.map((name) => [name, PARTS[name]]), part, (to) => go({ part: to, layer: null, head: null, at: null }, { replace: true })));
  bar.append(choice("layer", "layer", layers.map((other_) => [other_.layer, other_.layer]), layer, (to) => go({ layer: to }, { replace: true })),
    choice("head", "head", Array.from({ length: one.heads }, (_, i) => [i, i]), head, (to) => go({ head: to }, { replace: true })));
  const title = `${PARTS[part]} attention, layer ${layer}, head ${head}`;
  root.append(bar, h("h2", {}, title));
  if (!theirs || theirs.heads <= head) {
    root.append(h("p", { class: "pale" }, `The other has no ${one.name}, head ${head}.`));
    return;
  }
  const name = `${one.name}.weights`;
  const [a, b, why] = await Promise.all([source.tensor(name, { head, most: MOST }), source.tensor(name, { head, most: MOST, trace: found.id }), reasons(app, one)]);
  const masked = a.shape.every((n, i) => n === b.shape[i]) ? why : null; // the same tokens may be looked at
  const peak = Math.max(...[a, b].map(({ data }) => data.reduce((x, y) => Math.max(x, y), 0)));
  const made = [];
  const together = (r, c) => {
    go({ at: `${r},${c}` }, { quiet: true });
    for (const each of made) each.look(r, c, true);
  };
  const draw = (id, words, run, data, shape, more) => {
    const [rows, columns] = sides(run, one);
    const drawn = grid({ id, rows, columns, data, shape, title: `${words}: ${title}`, names: ["query", "key"], square: true, numbers: false, at: place(state.at, shape), why: masked, move: together, say: (x) => (Math.abs(x) >= 0.005 || x === 0 ? x.toFixed(2).replace("-", "−") : number(x)), ...more });
    made.push(drawn);
    return h("div", {}, h("h3", {}, words), drawn.root);
  };
  const panels = h("div", { class: "panels" }, draw("matrix", names[0], manifest, a.data, a.shape, { range: [0, peak], why }), draw("matrix-b", names[1], found, b.data, b.shape, { range: [0, peak] }));
  if (a.shape.every((n, i) => n === b.shape[i])) {
    const apart = a.data.map((x, i) => b.data[i] - x);
    const [rows, columns] = sides(manifest, one);
    const [there, here] = sides(found, one);
    const both = (mine, yours) => mine.map((word, i) => (word === yours[i] ? word : `${label(word, 9)} / ${label(yours[i], 9)}`));
    const drawn = draw("difference-map", "difference: the other less this", { tokens: { ...manifest.tokens, [one.rows]: both(rows, there), [one.columns]: both(columns, here) } }, apart, a.shape, { signed: true });
    panels.append(drawn);
    const most = Math.max(...apart.map((x) => (Number.isFinite(x) ? Math.abs(x) : 0)));
    root.append(panels, h("p", { class: "pale", id: "largest" }, `Largest difference of a weight: ${number(most)}.`));
  } else root.append(panels, h("p", { class: "pale", id: "largest" }, `No difference map: ${a.shape.join(" × ")} weights here, ${b.shape.join(" × ")} there.`));
  app.current = { ...app.current, canvas: made.at(-1).canvas, svg: made.at(-1).svg, csv: made.at(-1).csv };
}

/** What both expect at a place of each. */
async function expected(root, app, found) {
  const { manifest, state, go, source } = app;
  root.append(h("h2", {}, "What both expect"));
  if (!manifest.outputs || !found.outputs) {
    root.append(h("p", { class: "pale" }, "Their answers are no choice of words or classes."));
    return;
  }
  const rows = [manifest, found].map((one) => (one.outputs.rows ? one.tokens[one.outputs.rows] : null));
  const alike = rows[0]?.length === rows[1]?.length;
  const asked = { other: found.id };
  if (/^\d+$/.test(state.row ?? "")) asked.row = state.row;
  if (/^\d+$/.test((alike ? state.row : state.row2) ?? "")) asked.other_row = alike ? state.row : state.row2;
  let both;
  try {
    both = await source.get("versus", asked);
  } catch (error) {
    root.append(h("p", { class: "pale" }, error.message));
    return;
  }
  const word = manifest.outputs.kind === "next" ? "after" : "token";
  const pick = (i, id, words) => choice(words, id, rows[i].map((token, n) => [n, `${n} ${label(token)}`]), both.rows[i], (to) => go({ [id]: to }, { replace: true }));
  if (rows[0]) root.append(h("div", { class: "controls" }, pick(0, "row", alike ? word : `${word}, here`), alike ? null : pick(1, "row2", `${word}, there`)));
  root.append(h("p", { class: "pale", id: "kl" }, `${both.kl === null ? "not comparable" : `${number(both.kl)} nats`} apart (KL)`));
  const drawn = versus(both.top, ["this", "other"], "What both expect");
  root.append(drawn.root);
  app.current.csv ??= drawn.csv;
}

function lines({ manifest, state }, mine) {
  const [kind, which] = (state.other ?? "").split(":");
  const end = `regard.load(${python(manifest.model.name ?? "RUN")})`;
  const model = kind === "final" ? end : kind === "step" ? `regard.at_step(model, ${Number(which) || 0})` : kind === "model" ? 'regard.load("OTHER")' : "model";
  const theirs = manifest.input === null ? '"other.png"' : python(state.with ?? manifest.input ?? "");
  const name = Object.values(manifest.attentions)[0]?.[0]?.name;
  const what = name ? `${name}.weights` : "logits";
  return [`other = ${model}`, `a, b = regard.trace(model, ${mine}), regard.trace(other, ${theirs})`, `b[${python(what)}] - a[${python(what)}]  # where both have as many tokens`];
}
