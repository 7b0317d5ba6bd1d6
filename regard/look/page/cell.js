/* A number opened: the sum that made it, term by term, recomputed here and compared with the model's. */

import { h, label, number } from "./dom.js";
import { step } from "./formula.js";

const SHOWN = 40; // terms; the rest is told together
// How far the model may be from the float64 of this page, as a share of all that was added up.
const APART = { float32: 1e-5, bfloat16: 2 ** -8, float16: 2 ** -11 };
const TOLD = { bfloat16: "in bfloat16, which keeps 8 binary digits: right within 1/256 of what was added up", float16: "in float16, which keeps 11 binary digits: right within 1/2048 of what was added up" };

const erf = (x) => {
  // Series and continued fraction, to the last digits of float64.
  const z = Math.abs(x);
  if (z < 2.5) {
    let [term, sum] = [z, z];
    for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum) && k < 200; k++) {
      term *= (-z * z) / k;
      sum += term / (2 * k + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let f = 0;
  for (let k = 60; k > 0; k--) f = k / 2 / (z + f);
  return Math.sign(x) * (1 - Math.exp(-z * z) / (Math.sqrt(Math.PI) * (z + f)));
};
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const ACTIVE = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  tanh: Math.tanh,
};

/** The operands of a number at (head, row, column) of a tensor. */
class Operands {
  constructor(app, name, at) {
    [this.app, this.name, [this.head, this.row, this.column]] = [app, name, at];
    this.shape = app.manifest.tensors[name].shape;
  }

  async along(name, row, head = this.head) {
    return (await this.app.source.tensor(name, { head, rows: `${row}:${row + 1}` })).data;
  }

  async down(name, column, head = this.head) {
    return (await this.app.source.tensor(name, { head, columns: `${column}:${column + 1}` })).data;
  }

  async one(name, row, column, head = this.head) {
    return (await this.app.source.tensor(name, { head, rows: `${row}:${row + 1}`, columns: `${column}:${column + 1}` })).data[0];
  }

  /** A number that can be opened in its turn, if it is not a weight. */
  ref(name, row, column, head = this.head) {
    return name.startsWith("@") ? null : `${name}:${head},${row},${column}`;
  }

  words(name, axis = "rows") {
    const { tokens, tensors } = this.app.manifest;
    const { [axis]: side, shape } = tensors[name];
    const many = axis === "rows" ? shape.at(-2) : shape.at(-1);
    return tokens[side]?.slice(-many) ?? null;
  }

  named(i, words) {
    return words ? label(words[i]) : String(i);
  }
}

const product = (name, a, b, ra, rb) => ({ name, parts: [[a, ra], [b, rb]], value: a * b });

/** By what was done: {head, terms} of a sum, or {steps} one after another; and the total. */
const DOES = {
  async "look up"(it, { W, side }) {
    const ids = it.app.manifest.ids[side];
    const id = ids[ids.length - it.shape.at(-2) + it.row];
    const value = await it.one(W, id, it.column);
    return { steps: [[`embedding of token ${id}, number ${it.column}`, value]], total: value };
  },
  async add(it, { terms }) {
    const rows = [];
    for (const [name, times, first] of terms) {
      const only = name.startsWith("@");
      if ((only && it.row > 0) || it.row < first) continue;
      const value = await it.one(name, only ? 0 : it.row - first, it.column);
      rows.push({ name: name.replace("@", ""), parts: [[value, it.ref(name, it.row - first, it.column)], [times, null]], value: value * times });
    }
    return { head: ["part", "number", "times"], terms: rows, total: total(rows) };
  },
  async same(it, { x, row }) {
    const value = await it.one(x, row ?? it.row, it.column);
    return { steps: [[`the same as ${x}`, value, it.ref(x, row ?? it.row, it.column)]], total: value };
  },
  async linear(it, { x, W, b, share, row }) {
    const at = row ?? it.row;
    const out = it.shape.length > 2 ? Math.floor(it.head / (share ?? 1)) * it.shape[2] + it.column : it.column;
    const w = await it.along(W, out);
    const rows = [];
    for (const name of [x].flat()) {
      const values = await it.along(name, at);
      for (let i = 0; i < values.length; i++) {
        const from = Array.isArray(x) ? `${name.split(".").at(-1)} ${i}` : i;
        rows.push(product(from, values[i], w[rows.length], it.ref(name, at, i)));
      }
    }
    if (b) {
      const value = await it.one(b, 0, out);
      rows.push({ name: "bias", parts: [[value, null], [1, null]], value });
    }
    return { head: ["x", "number", "weight"], terms: rows, total: total(rows) };
  },
  async turn(it, { x, cos, sin, share }) {
    const d = it.shape[2];
    const j = it.column % (d / 2);
    const first = Math.floor(it.head / (share ?? 1)) * d + j;
    const [a, b] = [await it.one(x, it.row, first), await it.one(x, it.row, first + d / 2)];
    const [c, s] = [await it.one(cos, it.row, j), await it.one(sin, it.row, j)];
    const [ra, rb] = [it.ref(x, it.row, first), it.ref(x, it.row, first + d / 2)];
    const rows = it.column < d / 2 ? [product("cosine", a, c, ra), product("− sine", b, -s, rb)] : [product("cosine", b, c, rb), product("sine", a, s, ra)];
    return { head: ["part", "number", "times"], terms: rows, total: total(rows) };
  },
  async norm(it, { x, W, b, eps, f, rms }) {
    const raw = await it.along(x, it.row);
    const values = Array.from(raw, f ? ACTIVE[f] : (v) => v);
    const many = values.length;
    const mean = rms ? 0 : values.reduce((a, v) => a + v, 0) / many;
    const size = Math.sqrt(values.reduce((a, v) => a + (v - mean) ** 2, 0) / many + (eps ?? 1.1920929e-7));
    const [gamma, beta] = [await it.one(W, 0, it.column), b ? await it.one(b, 0, it.column) : 0];
    const v = values[it.column];
    const steps = [[f ? `${f} of ${x.split(".").at(-1)}` : "x", v, it.ref(x, it.row, it.column)]];
    if (!rms) steps.push([`− mean of ${many} numbers`, mean]);
    steps.push([rms ? "÷ root of their mean square" : "÷ their deviation", size], ["× learned scale", gamma]);
    if (b) steps.push(["+ learned shift", beta]);
    return { steps, total: ((v - mean) / size) * gamma + beta, size: Math.abs(gamma) + Math.abs(beta) };
  },
  async dot(it, { q, k }) {
    const [a, b] = [await it.along(q, it.row), await it.along(k, it.column)];
    const rows = Array.from(a, (value, i) => product(i, value, b[i], it.ref(q, it.row, i), it.ref(k, it.column, i)));
    return { head: ["number", "query", "key"], terms: rows, total: total(rows) };
  },
  async additive(it, { q, k, w }) {
    const [a, b, c] = [await it.along(q, it.row), await it.along(k, it.column), await it.along(w, 0)];
    const rows = Array.from(a, (value, i) => product(i, Math.tanh(value + b[i]), c[i], it.ref(q, it.row, i)));
    return { head: ["number", "tanh(q + k)", "weight"], terms: rows, total: total(rows) };
  },
  async scale(it, { x, by }) {
    const value = await it.one(x, it.row, it.column);
    return { steps: [["score", value, it.ref(x, it.row, it.column)], ["÷ √d", 1 / by]], total: value * by };
  },
  async softmax(it, { x, bias, mask }) {
    const scores = Float64Array.from(await it.along(x, it.row));
    const more = bias ? await it.along(bias, it.row) : null;
    const may = mask ? await it.along(mask, it.row) : null;
    if (more) scores.forEach((_, i) => { scores[i] += more[i]; });
    if (may) scores.forEach((_, i) => { if (!may[i]) scores[i] = -Infinity; });
    const peak = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const shares = scores.map((value) => (peak === -Infinity ? 0 : Math.exp(value - peak)));
    const all = shares.reduce((a, b) => a + b, 0);
    const words = it.words(it.name, "columns");
    const rows = Array.from(shares, (value, i) => ({ name: it.named(i, words), parts: [[scores[i], it.ref(x, it.row, i)], [value, null]], value: all ? value / all : 0, chosen: i === it.column }))
      .filter(({ parts }) => parts[0][0] !== -Infinity);
    return { head: ["of", more ? "score + bias" : "score", "exp(score − largest)"], last: "share", terms: rows, total: all ? shares[it.column] / all : 0, size: 1, divided: all };
  },
  async average(it, { w, v }) {
    const [a, b] = [await it.along(w, it.row), await it.down(v, it.column)];
    const words = it.words(w, "columns");
    const rows = Array.from(a, (value, i) => product(it.named(i, words), value, b[i], it.ref(w, it.row, i), it.ref(v, i, it.column)));
    return { head: ["of", "weight", "value"], terms: rows, total: total(rows) };
  },
  async join(it, { x }) {
    const d = it.app.manifest.tensors[x].shape.at(-1);
    const [head, i] = [Math.floor(it.column / d), it.column % d];
    const value = await it.one(x, it.row, i, head);
    return { steps: [[`number ${i} of head ${head}`, value, it.ref(x, it.row, i, head)]], total: value };
  },
  async activate(it, { x, f, times }) {
    const value = await it.one(x, it.row, it.column);
    const steps = [["x", value, it.ref(x, it.row, it.column)], [`${f}(x)`, ACTIVE[f](value)]];
    if (!times) return { steps, total: ACTIVE[f](value) };
    const by = await it.one(times, it.row, it.column);
    steps.push([`× ${times.split(".").at(-1)}`, by, it.ref(times, it.row, it.column)]);
    return { steps, total: ACTIVE[f](value) * by };
  },
  async gate(it, { x, by }) {
    const [value, open] = [await it.one(x, it.row, it.column), await it.one(by, it.row, 0)];
    return { steps: [["x", value, it.ref(x, it.row, it.column, 0)], ["gate", open, it.ref(by, it.row, 0)], ["× σ(gate)", sigmoid(open)]], total: value * sigmoid(open) };
  },
  async largest(it, { x }) {
    const pair = [await it.one(x, it.row, 2 * it.column), await it.one(x, it.row, 2 * it.column + 1)];
    return { steps: pair.map((value, i) => [`number ${2 * it.column + i}`, value, it.ref(x, it.row, 2 * it.column + i)]), total: Math.max(...pair), note: "The larger of two." };
  },
};

const total = (rows) => rows.reduce((sum, { value }) => sum + value, 0);

/** A panel for "name:head,row,column". */
export async function cell(app, text) {
  const colon = text.lastIndexOf(":");
  const [name, at] = [text.slice(0, colon), text.slice(colon + 1).split(",").map(Number)];
  const known = app.manifest.tensors[name];
  const close = () => {
    app.go({ cell: null }, { replace: true });
    document.querySelector("main canvas, main [tabindex]")?.focus();
  };
  const root = h("aside", { class: "cell", "aria-label": "How this number was made", tabindex: "-1", onkeydown: (event) => {
    if (event.key === "Escape") close();
  } }, h("button", { type: "button", class: "close", "aria-label": "Close", id: "close", onclick: close }, "×"));
  const [tall, wide] = [known?.shape.at(-2) ?? 1, known?.shape.at(-1)];
  const inside = known && at.length === 3 && at.every(Number.isInteger) && at[1] >= 0 && at[2] >= 0 && at[1] < (known.shape.length > 1 ? tall : 1) && at[2] < wide;
  if (!inside) {
    root.append(h("p", {}, "There is no such number."));
    return root;
  }
  const it = new Operands(app, name, at);
  const [row, column] = [it.words(name), it.words(name, "columns")];
  const where = [known.shape.length > 2 ? `head ${at[0]}` : null, it.named(at[1], row), it.named(at[2], column)].filter((part) => part !== null);
  const made = app.manifest.sums[name];
  const told = step(name, made);
  root.append(h("h3", {}, told.title, " ", h("span", { class: "pale" }, where.join(", "))), h("p", { class: "name" }, name));
  try {
    const own = await it.one(name, at[1], at[2]);
    if (!made) {
      root.append(h("p", {}, "This layer is not opened up further."), h("p", { class: "total" }, `= ${number(own)}`));
      return root;
    }
    if (told.formula) root.append(h("div", { class: "formula" }, told.formula));
    root.append(...body(app, await DOES[made.does](it, made), own));
  } catch (error) {
    root.append(h("p", { class: "pale" }, error.message));
  }
  return root;
}

function body(app, found, own) {
  const link = ([value, to]) => h("td", {}, to && app.manifest.tensors[to.slice(0, to.lastIndexOf(":"))] ? h("button", { type: "button", class: "deeper", title: "open this number", onclick: () => app.go({ cell: to }) }, number(value)) : number(value));
  const parts = [];
  let size = found.size ?? 0;
  if (found.steps) {
    parts.push(h("table", {}, h("tbody", {}, found.steps.map(([name, value, to]) => h("tr", {}, h("th", { scope: "row" }, name), link([value, to]))))));
    size ||= Math.max(...found.steps.map(([, value]) => Math.abs(value)));
  } else {
    const sorted = [...found.terms].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const rest = sorted.slice(SHOWN);
    size ||= sorted.reduce((sum, { value }) => sum + Math.abs(value), 0);
    parts.push(h("div", { class: "scroll", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, [...found.head, found.last ?? "term"].map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", {}, sorted.slice(0, SHOWN).map((term) => h("tr", { class: term.chosen ? "chosen" : null },
        h("th", { scope: "row" }, String(term.name)), term.parts.map(link), h("td", {}, number(term.value)))),
      rest.length ? h("tr", {}, h("th", { scope: "row" }, `${rest.length} smaller ones`), h("td"), h("td"), h("td", {}, number(total(rest)))) : null))));
  }
  const kind = app.manifest.model.dtype;
  const fits = Math.abs(found.total - own) <= (APART[kind] ?? APART.float32) * (size + Math.abs(own)) + 1e-7;
  if (found.divided) parts.push(h("p", { class: "pale" }, `Each is divided by their sum, ${number(found.divided)}.`));
  if (found.note) parts.push(h("p", { class: "pale" }, found.note));
  parts.push(h("p", { class: "total" }, `${found.steps || found.divided ? "=" : `Sum of ${found.terms.length} =`} `, h("b", {}, number(found.total)), " ",
    h("span", { class: `tick ${fits ? "right" : "wrong"}`, "data-fits": String(fits) }, fits ? "✓" : "✗"), " ",
    h("span", { class: "pale" }, `the model computed ${number(own)}${TOLD[kind] ? `, ${TOLD[kind]}` : ""}`)));
  return parts;
}
