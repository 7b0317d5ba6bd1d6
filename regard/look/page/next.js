/* The exact softmax over the whole vocabulary, and what temperature, top-k and top-p leave of it. */

import { choice, h, label, number, percent, s, table, tabs, twin } from "./dom.js";
import { colour } from "./grid.js";
import { lens } from "./lens.js";

const SHOWN = 40;

/** Logits with the largest at 0, as shares of 1. */
export function softmax(logits, temperature = 1) {
  const peak = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const shares = Float64Array.from(logits, (x) => Math.exp((x - peak) / temperature));
  const all = shares.reduce((a, b) => a + b, 0);
  return shares.map((x) => x / all);
}

/**
 * What is left to draw from: temperature first, then the k likeliest, then the fewest that make up p.
 * {share, gone} by token; gone says what removed it.
 */
export function drawn(logits, { temperature, k, p }) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
  const gone = new Array(logits.length).fill(null);
  if (temperature < 1e-6) {
    order.slice(1).forEach((id) => { gone[id] = "temperature 0"; });
  } else {
    if (k > 0) order.forEach((id, i) => { if (i >= k && logits[id] < logits[order[k - 1]]) gone[id] = `top-k ${k}`; });
    const left = order.filter((id) => !gone[id]);
    const shares = softmax(left.map((id) => logits[id]), temperature);
    let behind = 0; // what the less likely ones have together
    for (let i = left.length - 1; i > 0; i--) {
      behind += shares[i];
      if (behind > 1 - p) break;
      gone[left[i]] = `top-p ${p}`;
    }
  }
  const left = order.filter((id) => !gone[id]);
  const shares = new Float64Array(logits.length);
  softmax(left.map((id) => logits[id]), Math.max(temperature, 1e-6)).forEach((x, i) => { shares[left[i]] = x; });
  return { order, gone, shares, left: left.length };
}

export const next = {
  key(key, app) {
    const by = { n: 1, p: -1 }[key];
    const rows = app.manifest.tokens[app.manifest.outputs.rows];
    if (!by || !rows) return false;
    const at = row(app, rows) + by;
    if (rows[at]) app.go({ row: at }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state, go, source } = app;
    const { kind, rows: side, goes_on: goesOn } = manifest.outputs;
    const rows = manifest.tokens[side] ?? null;
    const at = rows ? row(app, rows) : 0;
    const bar = h("div", { class: "controls" });
    const layers = manifest.outputs.lens && state.words === "layers";
    const place = kind === "next" ? "after" : "at";
    if (rows) bar.append(choice(kind === "next" ? "after" : "token", "row", rows.map((word, i) => [i, `${i} ${label(word)}`]), at, (value) => go({ row: value }, { replace: true })));
    if (manifest.outputs.lens) bar.append(tabs("words", [["all", "Whole vocabulary"], ["layers", "Layer by layer"]], layers ? "layers" : "all", (to) => go({ words: to === "all" ? null : to }, { replace: true })));
    if (bar.children.length) root.append(bar);
    if (layers) {
      const found = await lens(app, at);
      const python = () => ["from regard.look.lens import lens", `lens(model.model, trace, ${at})`];
      app.current = { name: "layers", python, svg: found.svg, csv: found.csv };
      root.append(h("h2", {}, `What each layer would have said ${place} “${label(rows[at])}”`, h("small", { class: "pale" }, "the last norm and the output matrix on every layer's output")), found.root);
      return;
    }
    const logits = (await source.tensor("logits", { rows: `${at}:${at + 1}` })).data;
    const exact = softmax(logits);
    const set = { temperature: within(state.temperature, 0, 2, 1), k: within(state.k, 0, logits.length, 0), p: within(state.p, 0, 1, 1) };
    const ids = drawn(logits, set).order.slice(0, SHOWN);
    const words = kind === "classes" ? ids.map((id) => manifest.tokens.label[id]) : await source.words(ids);
    const title = kind === "classes" && !rows ? "What it is taken for" : `What stands ${place} “${label(rows[at])}”`;
    root.append(h("h2", {}, title, h("small", { class: "pale" }, `softmax over ${logits.length.toLocaleString("en")} ${kind === "classes" ? "classes" : "tokens"}`)));
    const list = h("div", { class: "bars" });
    const told = h("p", { class: "readout", role: "status", "aria-live": "polite" });
    const draw = () => {
      const now = drawn(logits, set);
      const peak = Math.max(exact[ids[0]], now.shares[ids[0]]);
      list.replaceChildren(...ids.flatMap((id, i) => {
        const gone = now.gone[id];
        const shown = label(words[i], 28);
        const word = goesOn && source.live && at === rows.length - 1
          ? h("button", { type: "button", title: "go on with this", class: gone ? "gone" : null, onclick: () => go({ input: manifest.input + words[i], row: null, at: null, cell: null }) }, shown)
          : h("span", { class: `word${gone ? " gone" : ""}` }, shown);
        const share = (x, was) => h("i", { class: was ? "was" : null, style: { width: `${(100 * x) / peak}%` } });
        return [word, h("div", { class: "share", "aria-hidden": "true" }, share(now.shares[id]), share(exact[id], true)),
          h("span", { class: "exact" }, percent(exact[id])), h("span", { class: "why" }, gone ? `removed by ${gone}` : Math.abs(now.shares[id] - exact[id]) < 1e-9 ? "" : `now ${percent(now.shares[id])}`)];
      }));
      const entropy = -exact.reduce((sum, x) => sum + (x > 0 ? x * Math.log2(x) : 0), 0);
      told.textContent = kind !== "next" ? `${entropy.toFixed(2)} bits` : `${now.left.toLocaleString("en")} of ${logits.length.toLocaleString("en")} tokens are left to draw from; as the model has it, ${entropy.toFixed(2)} bits.`;
    };
    if (kind === "next") {
      const slider = (name, words, low, high, by, shown) => {
        const output = h("output", {}, shown(set[name]));
        const range = h("input", { type: "range", id: `slide-${name}`, min: low, max: high, step: by, value: set[name], oninput: () => {
          set[name] = Number(range.value);
          output.textContent = shown(set[name]);
          draw();
          go({ [name]: range.value }, { quiet: true });
        } });
        range.value = set[name];
        return h("div", {}, h("label", { for: range.id }, words, output), range);
      };
      root.append(h("div", { class: "sliders" },
        slider("temperature", "Temperature", 0, 2, 0.05, (x) => (x < 1e-6 ? "0: always the likeliest" : x.toFixed(2))),
        slider("k", "Top-k", 0, Math.min(100, logits.length), 1, (x) => (x ? `the ${x} likeliest` : "off")),
        slider("p", "Top-p", 0, 1, 0.01, (x) => (x >= 1 ? "off" : x.toFixed(2)))));
    }
    draw();
    const numbers = () => {
      const now = drawn(logits, set);
      return { head: ["token", "logit", "probability", "after the settings", "removed by"], rows: ids.map((id, i) => [label(words[i], 40), number(logits[id]), number(exact[id]), number(now.shares[id]), now.gone[id] ?? ""]) };
    };
    const python = () => [`trace["logits"]${rows ? `[${at}]` : ""}.softmax(-1)  # ${logits.length}`];
    app.current = { name: "next-token", python, csv: numbers, svg: () => bars(title, ids.map((id, i) => [words[i], exact[id], drawn(logits, set).shares[id]])) };
    root.append(list, told, twin(() => table(title, numbers().head, numbers().rows)));
  },
};

/** Words with their shares, before and after the settings, as a drawing. */
function bars(title, all) {
  const [left, wide, high] = [190, 420, 22];
  const peak = Math.max(...all.flatMap(([, ...shares]) => shares));
  const text = (x, y, words, more) => s("text", { x, y, "dominant-baseline": "central", fill: colour("--ink"), ...more }, words);
  return s("svg", { viewBox: `0 0 720 ${high * (all.length + 1) + 8}`, width: 720, height: high * (all.length + 1) + 8, "font-size": 13, "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" },
    text(4, high / 2, title, { "font-weight": 600 }), all.map(([word, was, now], i) => {
      const y = high * (i + 1) + 3;
      return [text(left - 10, y + high / 2 - 2, label(word, 24), { "text-anchor": "end" }),
        s("rect", { x: left, y, width: (wide * now) / peak, height: high - 5, rx: 3, fill: colour("--line") }),
        s("rect", { x: left, y, width: (wide * was) / peak, height: high - 5, rx: 3, fill: "none", stroke: colour("--pale") }),
        text(left + wide + 10, y + high / 2 - 2, percent(was), { fill: colour("--pale") })];
    }));
}

function row(app, rows) {
  const { kind } = app.manifest.outputs;
  const last = kind === "next" && !app.manifest.tokens.written ? rows.length - 1 : Math.max(0, rows.indexOf("[MASK]"));
  return Math.min(Math.max(0, Number(app.state.row ?? last) | 0), rows.length - 1);
}

function within(text, low, high, usual) {
  const found = Number(text ?? usual);
  return Number.isFinite(found) ? Math.min(high, Math.max(low, found)) : usual;
}
