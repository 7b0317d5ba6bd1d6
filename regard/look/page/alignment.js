/* What each word of an answer looked at in its source: the classic picture of Bahdanau et al. 2015. */

import { choice, h, label, number, toggle } from "./dom.js";
import { chosen, place } from "./attention.js";
import { grid } from "./grid.js";

const MOST = 1024;

export const alignment = {
  key(key, app) {
    const by = { n: 1, p: -1 }[key];
    if (!by) return false;
    const many = app.manifest.tokens.written.length;
    app.go({ word: Math.min(many - 1, Math.max(0, Number(app.state.word ?? (by > 0 ? -1 : many)) + by)) }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state, go, source } = app;
    const { layers, layer, one } = chosen(app, ["cross"]);
    const head = state.head === undefined || one.heads === 1 ? null : Math.min(Math.max(0, Number(state.head) | 0), one.heads - 1);
    const all = await source.tensor(`${one.name}.weights`, { most: MOST });
    const [H, T, S] = all.shape;
    const data = new Float32Array(T * S);
    for (let i = 0; i < data.length; i++) {
      if (head !== null) data[i] = all.data[head * T * S + i];
      else for (let n = 0; n < H; n++) data[i] += all.data[n * T * S + i] / H;
    }
    const [rows, columns] = [manifest.tokens.written, manifest.tokens.source];
    const bar = h("div", { class: "controls" });
    if (layers.length > 1) bar.append(choice("layer", "layer", layers.map((other) => [other.layer, other.layer]), layer, (to) => go({ layer: to }, { replace: true })));
    if (one.heads > 1) bar.append(choice("head", "head", [["", "mean of all"], ...Array.from({ length: one.heads }, (_, i) => [i, i])], head ?? "", (to) => go({ head: to }, { replace: true })));
    const last = rows.length - 1;
    const word = state.word === undefined ? null : Math.min(Math.max(0, Number(state.word) | 0), last);
    const slide = h("input", { type: "range", id: "word", min: 0, max: last, step: 1, "aria-label": "Decoding step", oninput: () => go({ word: slide.value }, { replace: true }) });
    slide.value = word ?? last;
    bar.append(h("span", { class: "choice" }, h("label", { for: "word" }, "written so far"), slide,
      toggle("all", word === null, () => go({ word: null }, { replace: true }), { id: "all-words" })));
    const title = `Layer ${layer}, ${head === null ? (H > 1 ? `mean of ${H} heads` : "attention") : `head ${head}`}`;
    const made = grid({
      rows, columns, data, shape: [T, S], title, square: true, names: ["written", "source"],
      range: [0, data.reduce((a, b) => Math.max(a, b), 0)],
      why: word === null ? null : Object.assign((r) => (r > word ? "not written yet" : null), { blank: data.map((_, i) => Number(i >= (word + 1) * S)) }),
      at: place(state.at, [T, S]),
      say: (x) => (x >= 0.005 || x === 0 ? x.toFixed(2) : number(x)),
      move: (r, c) => go({ at: `${r},${c}` }, { quiet: true }),
    });
    app.current = { name: `alignment-${layer}`, canvas: made.canvas, csv: made.csv };
    const so = word === null ? null : h("p", {}, h("span", { class: "pale" }, `step ${word + 1} of ${rows.length}: `), rows.slice(0, word).map((w) => `${label(w)} `), h("b", {}, label(rows[word])));
    root.append(bar, h("h2", {}, title, h("small", { class: "pale" }, "rows are written, columns are read")), so ?? "", made.root);
  },
};
