/* Where each token looks: one head as a heat map or as arcs, or all heads of all layers as an atlas. */

import { colours } from "./colour.js";
import { choice, h, label, number, s, table, tabs, twin } from "./dom.js";
import { colour, grid } from "./grid.js";
import { cell } from "./cell.js";

const MOST = 1024; // numbers of a heat map each way
const SMALL = 96; // of a head in the atlas
const ARCS = 200; // words that arcs can still tell apart
const LINES = 2000;
const FAINT = 0.02;
export const PARTS = { self: "Self", masked: "Masked self", encoder: "Encoder self", decoder: "Decoder masked", cross: "Cross" };
const FORMS = [["map", "Heat map"], ["arcs", "Arcs"], ["atlas", "All heads"]];
const KINDS = [
  ["entropy", "entropy", "how many tokens it looks at, in bits"],
  ["diagonal", "itself", "how much goes to the token itself"],
  ["previous", "previous", "how much goes to the token before"],
  ["first", "first", "how much goes to the first token"],
];

/** The part, layer and head that the address names; the last layer, the first head without. */
export function chosen({ manifest, state }, only) {
  const parts = only ?? Object.keys(manifest.attentions);
  const part = parts.includes(state.part) ? state.part : parts[0];
  const layers = manifest.attentions[part];
  const one = layers.find(({ layer }) => layer === Number(state.layer)) ?? layers.at(-1);
  const head = Math.min(Math.max(0, Number(state.head ?? 0) | 0), one.heads - 1);
  return { part, layers, layer: one.layer, one, head };
}

export const sides = ({ tokens }, one) => [tokens[one.rows], tokens[one.columns]];

const WHY = [null, "masked: padding", "masked: it comes later (future)", "masked: farther than the window"];

/** Why a query may not see a key: a function of both that gives the reason, or null if it may. */
export async function reasons(app, one) {
  const [T, S] = app.manifest.tensors[`${one.name}.reason`].shape;
  if (!one.masked || Math.max(T, S) > MOST) return null; // where neighbours stand together, none has its own
  const { shape, data } = await app.source.tensor(`${one.name}.reason`);
  return Object.assign((r, c) => WHY[data[r * shape[1] + c]], { blank: data });
}

export const attention = {
  key(key, app) {
    const { layers, layer, one, head } = chosen(app);
    const to = { n: { head: head + 1 }, p: { head: head - 1 }, j: { layer: layer + 1 }, k: { layer: layer - 1 } }[key];
    if (!to) return false;
    if (to.head >= 0 && to.head < one.heads) app.go({ head: to.head, cell: null }, { replace: true });
    if (layers.some((other) => other.layer === to.layer)) app.go({ layer: to.layer, cell: null }, { replace: true });
    return true;
  },

  async show(root, app) {
    const { manifest, state, go } = app;
    const { part, layers, layer, one, head } = chosen(app);
    const form = FORMS.some(([name]) => name === state.form) ? state.form : "map";
    const bar = h("div", { class: "controls" });
    const parts = Object.keys(manifest.attentions);
    if (parts.length > 1) bar.append(tabs("part", parts.map((name) => [name, PARTS[name]]), part, (to) => go({ part: to, layer: null, head: null, at: null, cell: null })));
    bar.append(tabs("form", FORMS, form, (to) => go({ form: to, cell: null })));
    if (form !== "atlas") {
      bar.append(choice("layer", "layer", layers.map((other) => [other.layer, other.layer]), layer, (to) => go({ layer: to, cell: null }, { replace: true })));
      bar.append(choice("head", "head", Array.from({ length: one.heads }, (_, i) => [i, i]), head, (to) => go({ head: to, cell: null }, { replace: true })));
    }
    root.append(bar);
    if (manifest.layers) {
      const blocks = Array.from({ length: manifest.depth }, (_, i) => [i, i]);
      root.append(h("div", { class: "controls" }, h("span", { class: "pale" }, "This input is long: the numbers of one block are kept at a time."),
        app.source.live ? choice("block", "block", blocks, manifest.layers[0], (to) => go({ layers: to, layer: null, cell: null })) : null));
    }
    if (form === "atlas") return atlas(root, app, part, layers);
    const [rows, columns] = sides(manifest, one);
    const name = `${one.name}.weights`;
    const [weights, why] = await Promise.all([app.source.tensor(name, { head, most: MOST }), reasons(app, one)]);
    const title = `${PARTS[part]} attention, layer ${layer}, head ${head}`;
    root.append(h("h2", {}, title, does(one.kinds[head])));
    if (form === "arcs") return arcs(root, app, title, rows, columns, weights, why);
    const panel = h("div", { class: "beside" });
    const made = grid({
      rows, columns, title, why, ...weights, square: true, names: ["query", "key"],
      at: place(state.at, weights.shape),
      say: (x) => (x >= 0.005 || x === 0 ? x.toFixed(2) : number(x)),
      move: (r, c) => go({ at: `${r},${c}` }, { quiet: true }),
      open: (r, c) => go({ at: `${r},${c}`, cell: `${name}:${head},${r},${c}` }, { replace: true }),
    });
    app.current = { name: `attention-${part}-${layer}-${head}`, tensor: [name, head], canvas: made.canvas, svg: made.svg, csv: made.csv };
    panel.append(made.root);
    if (state.cell) panel.append(await cell(app, state.cell));
    root.append(panel);
  },
};

/** "3,4" within a matrix. */
export function place(text, shape) {
  const found = (text ?? "").split(",").map(Number);
  return found.length === 2 && found.every((x, i) => x >= 0 && x < shape[i] && Number.isInteger(x)) ? found : null;
}

/** What a head does, if it does one thing above all. */
function does(kinds) {
  const words = [];
  if (kinds.previous > 0.5) words.push("looks at the token before");
  if (kinds.diagonal > 0.5) words.push("looks at itself");
  if (kinds.first > 0.5) words.push("rests on the first token");
  return h("small", { class: "pale" }, [`${kinds.entropy.toFixed(1)} bits`, ...words].join(" · "));
}

function arcs(root, app, title, rows, columns, weights, why) {
  if (Math.max(rows.length, columns.length) > ARCS) {
    root.append(h("p", {}, `Arcs between more than ${ARCS} tokens can't be told apart; the heat map shows them all.`));
    return;
  }
  const [T, S] = weights.shape;
  const high = 20;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "13px system-ui";
  const room = (words) => Math.ceil(Math.max(...words.map((word) => pen.measureText(label(word)).width))) + 14;
  const left = room(rows);
  const right = left + 340;
  const width = right + room(columns);
  const height = high * Math.max(T, S) + 8;
  const y = (i) => high * (i + 0.5) + 4;
  const order = Array.from(weights.data, (w, i) => [w, i]).filter(([w]) => w >= FAINT).sort((a, b) => b[0] - a[0]).slice(0, LINES);
  const lines = order.map(([w, i]) => {
    const [r, c] = [Math.floor(i / S), i % S];
    const middle = (left + right) / 2;
    return s("path", {
      d: `M${left + 4},${y(r)} C${middle},${y(r)} ${middle},${y(c)} ${right - 4},${y(c)}`,
      fill: "none", stroke: colour("--line"), "stroke-width": (0.5 + 5 * w).toFixed(2), "stroke-opacity": (0.12 + 0.88 * w).toFixed(2),
      "data-row": r, "data-column": c,
    });
  });
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" }, "Point at a token, or move with the arrow keys.");
  let at = place(app.state.at, weights.shape)?.[0] ?? null;
  const look = (r) => {
    at = r;
    for (const line of lines) line.style.opacity = r === null || Number(line.dataset.row) === r ? "1" : "0.06";
    words.forEach((word, i) => word.classList.toggle("chosen", i === r));
    if (r === null) return;
    const top = order.filter(([, i]) => Math.floor(i / S) === r).slice(0, 5);
    readout.textContent = `query ${label(rows[r])} looks at ${top.map(([w, i]) => `${label(columns[i % S])} ${w.toFixed(2)}`).join(", ")}`;
  };
  const text = (x, i, word, anchor) => s("text", { x, y: y(i), "dominant-baseline": "central", "text-anchor": anchor, "font-size": 13, fill: colour("--ink") }, label(word));
  const words = rows.map((word, r) => {
    const made = text(left - 4, r, word, "end");
    made.addEventListener("mouseenter", () => look(r));
    return made;
  });
  const picture = s("svg", {
    id: "arcs", viewBox: `0 0 ${width} ${height}`, width, height, role: "application", "aria-roledescription": "arcs", tabindex: "0",
    "aria-label": `${title}, as arcs from ${T} queries to ${S} keys. Arrow keys move.`,
    "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif",
  }, lines, words, columns.map((word, c) => text(right + 4, c, word, "start")));
  picture.addEventListener("mouseleave", () => look(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") look(null);
    else if (step) look(Math.min(T - 1, Math.max(0, (at ?? (step > 0 ? -1 : T)) + step)));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  if (at !== null) look(at);
  const numbers = () => ({
    head: ["", ...columns.map((word) => label(word))],
    rows: rows.map((word, r) => [label(word), ...columns.map((_, c) => (why?.(r, c) ? "masked" : number(weights.data[r * S + c])))]),
  });
  const { one, head } = chosen(app);
  app.current = { name: "arcs", tensor: [`${one.name}.weights`, head], svg: picture, csv: numbers };
  root.append(h("figure", {}, h("div", { class: "scroll" }, picture), h("figcaption", {}, readout,
    h("p", { class: "scale pale" }, `${lines.length} lines: weights from ${FAINT} up, the wider the more`)),
  twin(() => table(title, numbers().head, numbers().rows))));
}

/** Every head of every layer at once; Enter or a click opens one. */
async function atlas(root, app, part, layers) {
  const { state, go } = app;
  const heads = Math.max(...layers.map((one) => one.heads));
  const all = await Promise.all(layers.map((one) => app.source.tensor(`${one.name}.weights`, { most: SMALL, as: "uint8" })));
  const sort = KINDS.find(([name]) => name === state.by)?.[0];
  root.append(h("div", { class: "controls" }, h("span", { class: "pale" }, "frame by"),
    tabs("by", [["none", "nothing"], ...KINDS.map(([name, words]) => [name, words])], sort ?? "none", (to) => go({ by: to === "none" ? null : to }, { replace: true }))));
  const title = `${PARTS[part]} attention: ${layers.length} layers × ${heads} heads`;
  root.append(h("h2", {}, title, h("small", { class: "pale" }, sort ? KINDS.find(([name]) => name === sort)[2] : "each from 0 to its largest")));
  const canvas = h("canvas", { id: "atlas", class: "matrix", tabindex: "0", role: "application", "aria-roledescription": "atlas",
    "aria-label": `${title}. Arrow keys move, Enter opens a head.` });
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" });
  const scroll = h("div", { class: "scroll" }, canvas);
  const peaks = sort ? Math.max(...layers.flatMap((one) => one.kinds.map((kind) => kind[sort]))) : 1;
  const pictures = all.map(({ shape: [H, T, S], data }) => {
    const image = new ImageData(S, H * T);
    const [pixels, scale] = [new Uint32Array(image.data.buffer), colours(false)];
    for (let i = 0; i < pixels.length; i++) pixels[i] = scale[data[i]];
    const made = document.createElement("canvas");
    [made.width, made.height] = [S, H * T];
    made.getContext("2d").putImageData(image, 0, 0);
    return { made, H, T, S };
  });
  let at = [layers.indexOf(chosen(app).one), chosen(app).head];
  let box = null; // until it has a size; then it is drawn
  const draw = () => {
    if (!box) return;
    const { side, gap, left, top, wide } = box;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [left + heads * (wide + gap), top + layers.length * (side + gap)];
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("--pale");
    pen.textAlign = "center";
    for (let i = 0; i < heads; i++) pen.fillText(wide > 44 ? `head ${i}` : i, left + i * (wide + gap) + wide / 2, top / 2);
    pen.textAlign = "left";
    layers.forEach((one, l) => {
      const y = top + l * (side + gap);
      pen.globalAlpha = 1;
      pen.fillStyle = colour("--pale");
      pen.fillText(`layer ${one.layer}`, 0, y + side / 2);
      const { made, T, S } = pictures[l];
      pen.imageSmoothingEnabled = T > side;
      for (let i = 0; i < one.heads; i++) {
        const x = left + i * (wide + gap);
        pen.globalAlpha = 1;
        pen.drawImage(made, 0, i * T, S, T, x, y, wide, side);
        if (sort) {
          pen.globalAlpha = one.kinds[i][sort] / (peaks || 1);
          pen.strokeStyle = colour("--mark");
          pen.lineWidth = 4;
          pen.strokeRect(x, y, wide, side);
        }
        if (l === at[0] && i === at[1]) {
          pen.globalAlpha = 1;
          pen.strokeStyle = colour("--ink");
          pen.lineWidth = 2;
          pen.strokeRect(x - 2, y - 2, wide + 4, side + 4);
        }
      }
    });
  };
  const told = ([l, i]) => {
    const kinds = layers[l].kinds[i];
    return `layer ${layers[l].layer}, head ${i}: ${KINDS.map(([name, words]) => `${words} ${kinds[name].toFixed(2)}`).join(", ")}`;
  };
  const look = (l, i) => {
    l = Math.max(0, Math.min(layers.length - 1, l));
    at = [l, Math.max(0, Math.min(layers[l].heads - 1, i))];
    readout.textContent = told(at);
    draw();
  };
  const under = (event) => {
    if (!box) return null;
    const frame = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientX - frame.left - box.left) / (box.wide + box.gap));
    const l = Math.floor((event.clientY - frame.top - box.top) / (box.side + box.gap));
    return layers[l] && i >= 0 && i < layers[l].heads ? [l, i] : null;
  };
  const open = () => go({ form: "map", layer: layers[at[0]].layer, head: at[1], cell: null });
  canvas.addEventListener("mousemove", (event) => {
    const found = under(event);
    if (found && (found[0] !== at[0] || found[1] !== at[1])) look(...found);
  });
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (!found) return;
    at = found;
    open();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) look(at[0] + step[0], at[1] + step[1]);
    else if (event.key === "Enter") open();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  new ResizeObserver(() => {
    if (!scroll.clientWidth || box?.room === scroll.clientWidth) return;
    const [left, top, gap] = [52, 22, 8];
    const { T, S } = pictures[0];
    const across = Math.max(24, Math.min(136, Math.floor((scroll.clientWidth - left) / heads) - gap));
    const side = Math.max(20, Math.min(200, Math.round((across * Math.min(2, Math.max(0.5, T / S))))));
    box = { room: scroll.clientWidth, left, top, gap, wide: across, side };
    draw();
  }).observe(scroll);
  readout.textContent = told(at);
  const numbers = () => ({
    head: ["layer, head", ...KINDS.map(([, words]) => words)],
    rows: layers.flatMap((one) => one.kinds.map((kinds, i) => [`${one.layer}, ${i}`, ...KINDS.map(([name]) => number(kinds[name]))])),
  });
  app.current = { name: `atlas-${part}`, canvas, csv: numbers };
  root.append(h("figure", {}, scroll, h("figcaption", {}, readout), twin(() => table(title, numbers().head, numbers().rows))));
}
