/* What each word of an answer looked at in its source, the classic picture of Bahdanau et al. 2015; and the search. */

import { choice, h, label, number, toggle } from "./dom.js";
import { chosen, place } from "./attention.js";
import { grid } from "./grid.js";
import { branches, way } from "./tree.js";

const MOST = 1024;
const BEAMS = [1, 2, 4, 8];

export const alignment = {
  key(key, app) {
    const by = { n: 1, p: -1 }[key];
    if (!by) return false;
    const many = app.manifest.tokens.written.length;
    app.go({ word: Math.min(many - 1, Math.max(0, Number(app.state.word ?? (by > 0 ? -1 : many)) + by)), node: null, at: null }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state, go, source } = app;
    const { layers, layer, one } = chosen(app, ["cross"]);
    const head = state.head === undefined || one.heads === 1 ? null : Math.min(Math.max(0, Number(state.head) | 0), one.heads - 1);
    const offered = manifest.searches ? (source.live ? BEAMS : source.beams) : [1];
    const beams = offered.includes(Number(state.beams)) ? Number(state.beams) : 1;
    const tree = await source.tree(beams);
    const all = await source.tensor(beams > 1 ? `beams.${beams}.${one.name}` : `${one.name}.weights`, { most: beams > 1 ? null : MOST });
    // A word of the search, and the way to it: the answer's own, if it is on that.
    const spot = place(state.node, [tree.steps.length, Infinity]);
    let node = spot && tree.steps[spot[0]][spot[1]] ? spot : null;
    const astray = node && tree.chosen[node[0]] !== node[1];
    const path = astray ? way(tree, ...node) : tree.chosen;
    const taken = path.map((i, n) => tree.steps[n][i]);
    const exact = beams > 1 || all.shape[1] === manifest.tokens.written.length;
    const [H, T, S] = [all.shape[0], exact ? taken.length : all.shape[1], all.shape[2]];
    const data = new Float32Array(T * S);
    for (let r = 0; r < T; r++) {
      const row = beams > 1 ? r * beams + taken[r].parent : r;
      for (let n = head ?? 0; n < (head === null ? H : head + 1); n++) {
        const from = (n * all.shape[1] + row) * S;
        for (let i = 0; i < S; i++) data[r * S + i] += all.data[from + i] / (head === null ? H : 1);
      }
    }
    const [rows, columns] = [exact ? taken.map(({ token }) => token) : manifest.tokens.written, manifest.tokens.source];
    const last = rows.length - 1;
    const word = state.word === undefined || astray ? null : Math.min(Math.max(0, Number(state.word) | 0), last);
    node ??= word === null ? null : [word, tree.chosen[word]];
    let at = place(state.at, [T, S]);
    if (!at && node && exact) at = [node[0], data.subarray(node[0] * S, (node[0] + 1) * S).reduce((best, x, i, row) => (x > row[best] ? i : best), 0)];
    const bar = h("div", { class: "controls" });
    if (layers.length > 1) bar.append(choice("layer", "layer", layers.map((other) => [other.layer, other.layer]), layer, (to) => go({ layer: to }, { replace: true })));
    if (one.heads > 1) bar.append(choice("head", "head", [["", "mean of all"], ...Array.from({ length: one.heads }, (_, i) => [i, i])], head ?? "", (to) => go({ head: to }, { replace: true })));
    if (offered.length > 1) bar.append(choice("search", "beams", offered.map((many) => [many, many > 1 ? `${many} beams` : "as traced: one path"]), beams, (to) => go({ beams: Number(to) > 1 ? to : null, node: null, word: null, at: null }, { replace: true })));
    const slide = h("input", { type: "range", id: "word", min: 0, max: last, step: 1, "aria-label": "Decoding step", disabled: Boolean(astray), oninput: () => go({ word: slide.value, node: null, at: null }, { replace: true }) });
    slide.value = word ?? last;
    bar.append(h("span", { class: "choice" }, h("label", { for: "word" }, "written so far"), slide,
      toggle("all", word === null && !astray, () => go({ word: null, node: null, at: null }, { replace: true }), { id: "all-words" })));
    const title = `Layer ${layer}, ${head === null ? (H > 1 ? `mean of ${H} heads` : "attention") : `head ${head}`}`;
    const made = grid({
      rows, columns, data, shape: [T, S], title, square: true, names: ["written", "source"],
      range: [0, data.reduce((a, b) => Math.max(a, b), 0)],
      why: word === null ? null : Object.assign((r) => (r > word ? "not written yet" : null), { blank: data.map((_, i) => Number(i >= (word + 1) * S)) }),
      at,
      say: (x) => (x >= 0.005 || x === 0 ? x.toFixed(2) : number(x)),
      move: (r, c) => go({ at: `${r},${c}` }, { quiet: true }),
    });
    const grown = branches(tree, node, (n, i) => go({ node: `${n},${i}`, word: tree.chosen[n] === i ? n : null, at: null }, { replace: true }));
    const name = `${one.name}.weights`;
    const python = (given) => (beams > 1
      ? [`steps = regard.trace(model, ${given}, steps=True, num_beams=${beams})`, `[step.about["beam"] for step in steps]`]
      : [`trace["${name}"]${head === null ? ".mean(0)" : `[${head}]`}  # ${T} × ${S}`]);
    app.current = { name: `alignment-${layer}`, python, canvas: made.canvas, svg: made.svg, csv: made.csv, more: [{ name: "search", svg: grown.svg, csv: grown.csv }] };
    const so = word === null && !astray ? null : h("p", {}, h("span", { class: "pale" }, astray ? "on the way to a word that was weighed: " : `step ${word + 1} of ${rows.length}: `), rows.slice(0, astray ? -1 : word).map((w) => `${label(w)} `), h("b", {}, label(astray ? rows[last] : rows[word])));
    const how = beams > 1 ? `${beams} beams; score ${number(tree.score)}` : "what was written, and the likeliest others";
    root.append(bar, h("h2", {}, title, h("small", { class: "pale" }, "rows are written, columns are read")), so ?? "", made.root,
      h("h2", {}, "The search", h("small", { class: "pale" }, how)), grown.root);
  },
};
