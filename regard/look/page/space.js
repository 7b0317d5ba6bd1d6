/* Vectors as points: all tokens, or a run's own at a layer, with exact neighbours; and what tells positions apart. */

import { choice, h, label, number, python, s, table, tabs, twin } from "./dom.js";
import { colour, grid } from "./grid.js";
import { place } from "./attention.js";

const INKS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]; // Okabe and Ito
const FONT = "12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";
const EDGE = 34; // of the map
const WAVES = 6;
const DISTANCES = [["cosine", "cosine"], ["euclidean", "Euclidean"]];
const NAMED = { embed: "embedding", input: "before the first block", states: "states", norm: "after the last norm" };
const ADDED = {
  sinusoidal: "waves of growing length, added to the embeddings",
  learned: "a learned vector for each position, added to the embeddings",
  rotary: "angles by which queries and keys are turned: their cosine",
  alibi: "a penalty on the scores that grows with the distance, for each head",
  relative: "a learned number for each head and distance, added to the scores",
};

/** A map's name as people read it. */
function spoken(name) {
  if (name === "tokens") return "all tokens";
  const parts = name.split(".");
  const what = parts.pop();
  const block = parts.findLast((part) => /^\d+$/.test(part));
  const side = ["encoder", "decoder"].includes(parts[0]) ? `${parts[0]}, ` : "";
  return side + (block !== undefined ? `after block ${block}` : NAMED[what] ?? what);
}

export const space = {
  key(key, app) {
    return app.view.step?.(key) ?? false;
  },

  async show(root, app) {
    const { manifest, state, go } = app;
    space.step = null;
    const maps = manifest.maps.filter((name) => app.source.live || app.source.kept.space.maps[name]);
    const forms = [...(maps.includes("tokens") ? [["tokens", "All tokens"]] : []), ...(maps.some((name) => name !== "tokens") ? [["run", "This run"]] : []), ["positions", "Positions"]];
    const form = forms.some(([name]) => name === state.map) ? state.map : maps.includes(state.map) ? "run" : forms[0][0];
    const bar = h("div", { class: "controls" });
    bar.append(tabs("map", forms, form, (to) => go({ map: to, point: null, of: null, at: null })));
    root.append(bar);
    if (form === "positions") return positions(root, bar, app);
    const layers = maps.filter((name) => name !== "tokens");
    const name = form === "tokens" ? "tokens" : layers.includes(state.map) ? state.map : layers.at(-1);
    if (form === "run") bar.append(choice("vectors", "layer-map", layers.map((one) => [one, spoken(one)]), name, (to) => go({ map: to }, { replace: true })));
    return points(root, bar, app, name);
  },
};

/** The nearest to a point, or to what was typed. A page of one file knows those of the run's own tokens. */
async function nearest(app, name, asked) {
  const { source, state } = app;
  const distance = DISTANCES.some(([way]) => way === state.near) ? state.near : "cosine";
  if (source.live) return { distance, ...await source.get("near", { name, distance, ...asked }) };
  const { maps, near } = source.kept.space;
  if (asked.text !== undefined) throw new Error("In this file only the tokens of its input have neighbours; open the model with regard look to ask for others.");
  if (name === "tokens") {
    if (!near.tokens[asked.row]) throw new Error("This token is not one of the input's, and this file knows the neighbours of those; open the model with regard look to ask for others.");
    return { distance, ...near.tokens[asked.row][distance] };
  }
  const { shape: [many, wide], data } = await source.tensor(name);
  const row = (r) => data.subarray(r * wide, (r + 1) * wide);
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const own = row(asked.row);
  const value = (r) => (distance === "cosine" ? dot(row(r), own) / Math.sqrt(dot(row(r), row(r)) * dot(own, own)) : Math.sqrt(row(r).reduce((sum, x, i) => sum + (x - own[i]) ** 2, 0)));
  const told = (r, x) => ({ row: r, word: maps[name].words[r], point: maps[name].points[r], value: x });
  const others = Array.from({ length: Math.min(many, maps[name].rows.length) }, (_, r) => told(r, value(r))).filter((one) => one.row !== asked.row);
  others.sort((a, b) => (distance === "cosine" ? b.value - a.value : a.value - b.value));
  return { distance, of: [told(asked.row, 1)], found: others.slice(0, 12) };
}

async function points(root, bar, app, name) {
  const { source, state, go } = app;
  const map = source.live ? await source.get("space", { name }) : source.kept.space.maps[name];
  const typed = state.of?.trim() && name === "tokens" ? state.of.trim() : null;
  const asked = typed ? { text: typed } : state.point !== undefined && Number(state.point) >= 0 ? { row: Number(state.point) | 0 } : { row: map.rows[0] };
  let found = null;
  let wrong = null;
  try {
    found = await nearest(app, name, asked);
  } catch (error) {
    wrong = error.message;
  }
  bar.append(tabs("near", DISTANCES, found?.distance ?? state.near ?? "cosine", (to) => go({ near: to }, { replace: true })));
  const [a, b] = map.shares.map((share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);
  const many = map.points.length;
  const which = name === "tokens" ? (many < map.of ? `${many.toLocaleString("en")} of ${map.of.toLocaleString("en")} tokens, the input's among them` : `all ${many.toLocaleString("en")}`) : `${many.toLocaleString("en")} tokens`;
  const title = name === "tokens" ? "Token embeddings" : `This run's tokens, ${spoken(name)}`;
  root.append(h("h2", {}, title, h("small", { class: "pale" }, `${which}; the two principal components hold ${a} and ${b} of what differs`)));
  const drawn = scatter(app, title, map, found, (row) => go({ point: row, of: null }, { replace: true }));
  root.append(h("div", { class: "beside" }, drawn.root, panel(app, name, map, asked, found, wrong)));
  app.current = { name: `space-${name}`, canvas: drawn.canvas, csv: drawn.csv, tensor: name === "tokens" ? undefined : [name], python: name === "tokens" ? () => lines(found, typed) : null };
}

/** The map: dots on a canvas; arrow keys go to the next one in that direction. */
function scatter(app, title, map, found, choose) {
  const many = Math.max(3, Math.floor(map.rows.length / 3)); // not everything is near
  const marks = new Map((found ? [...found.of, ...found.found.slice(0, many)] : []).map((one) => [one.row, one]));
  const all = map.rows.map((row, i) => ({ row, word: map.words[i], point: map.points[i], own: i < map.own }));
  const known = new Set(map.rows);
  for (const one of marks.values()) if (!known.has(one.row)) all.push({ ...one, own: false });
  const of = new Set(found?.of.map((one) => one.row));
  const canvas = h("canvas", { id: "space", class: "matrix", tabindex: "0", role: "application", "aria-roledescription": "map",
    "aria-label": `${title}: ${all.length} points. Arrow keys move to the next in a direction, n and p through all, Enter shows the neighbours of one.` });
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" }, "Point at a dot, or move with the arrow keys; Enter shows its neighbours.");
  const scroll = h("div", { class: "scroll" }, canvas);
  const [low, high] = [0, 1].map((axis) => all.map(({ point }) => point[axis])).reduce(([l, u], xs) => [[...l, Math.min(...xs)], [...u, Math.max(...xs)]], [[], []]);
  let at = all.findIndex(({ row }) => of.has(row));
  let box = { width: 480, height: 326 }; // until it is known how much room there is
  const x = ({ point }) => EDGE + ((box.width - 2 * EDGE) * (point[0] - low[0])) / (high[0] - low[0] || 1);
  const y = ({ point }) => box.height - EDGE - ((box.height - 2 * EDGE) * (point[1] - low[1])) / (high[1] - low[1] || 1);

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    canvas.style.width = `${box.width}px`;
    canvas.style.height = `${box.height}px`;
    const pen = canvas.getContext("2d");
    const [ink, pale, line, mark, edge, ground] = ["--ink", "--pale", "--line", "--mark", "--edge", "--ground"].map(colour);
    pen.scale(ratio, ratio);
    pen.strokeStyle = edge;
    pen.strokeRect(0.5, 0.5, box.width - 1, box.height - 1);
    pen.textBaseline = "middle";
    pen.direction = "ltr";
    if (found?.of.length === 1) {
      pen.strokeStyle = mark;
      pen.globalAlpha = 0.45;
      const from = all.find(({ row }) => of.has(row));
      for (const one of all) {
        if (!marks.has(one.row) || of.has(one.row)) continue;
        pen.beginPath();
        pen.moveTo(x(from), y(from));
        pen.lineTo(x(one), y(one));
        pen.stroke();
      }
    }
    const rank = (one) => (of.has(one.row) ? 0 : marks.has(one.row) ? 1 : one.own ? 2 : 3);
    const order = [...all].sort((p, q) => rank(p) - rank(q));
    for (const one of [...order].reverse()) {
      pen.globalAlpha = rank(one) === 3 ? 0.5 : 1;
      pen.fillStyle = [mark, mark, line, pale][rank(one)];
      pen.beginPath();
      pen.arc(x(one), y(one), [6, 4.5, 4, 2][rank(one)], 0, 7);
      pen.fill();
    }
    const taken = order.filter((one) => rank(one) < 3).map((one) => [x(one) - 4, y(one) - 4, 8, 8]);
    for (const one of order) { // words where they hide none that matters more
      const much = rank(one);
      pen.font = much < 2 ? `600 ${FONT}` : much === 3 ? FONT.replace("12px", "11px") : FONT;
      const word = label(one.word, 18);
      const wide = pen.measureText(word).width;
      const off = much ? 8 : 12;
      const spots = [[off, 0], [-off - wide, 0], [-wide / 2, -14], [-wide / 2, 14]].slice(0, much === 3 ? 1 : 4).map(([dx, dy]) => [x(one) + dx, y(one) + dy - 7, wide, 14]);
      const spot = spots.find(([l, t, w, tall]) => l > 2 && l + w < box.width - 2 && !taken.some(([l2, t2, w2, tall2]) => l < l2 + w2 && l2 < l + w && t < t2 + tall2 && t2 < t + tall));
      if (!spot) continue;
      taken.push(spot);
      pen.globalAlpha = much === 3 ? 0.75 : 1;
      pen.fillStyle = much === 3 ? pale : ink;
      pen.fillText(word, spot[0], spot[1] + 7);
    }
    pen.globalAlpha = 1;
    if (all[at]) {
      pen.lineWidth = 4;
      for (const [wide, style] of [[4, ground], [2, ink]]) {
        [pen.lineWidth, pen.strokeStyle] = [wide, style];
        pen.beginPath();
        pen.arc(x(all[at]), y(all[at]), 8, 0, 7);
        pen.stroke();
      }
    }
  }

  const look = (i) => {
    at = i;
    const { word, point, row } = all[i];
    const near = marks.has(row) && !of.has(row) ? `, ${found.distance === "cosine" ? "cosine" : "distance"} ${number(marks.get(row).value)}` : "";
    readout.textContent = `${label(word, 40)}, at ${number(point[0])} and ${number(point[1])}${near}`;
    draw();
  };
  const next = ([dx, dy]) => {
    const from = all[at] ?? { point: low };
    let [best, least] = [-1, Infinity];
    all.forEach((one, i) => {
      const [right, up] = [x(one) - x(from), y(from) - y(one)];
      const [along, aside] = [right * dx + up * dy, Math.abs(right * dy - up * dx)];
      if (i !== at && along > 0.01 && along + 2.5 * aside < least) [best, least] = [i, along + 2.5 * aside];
    });
    if (best >= 0) look(best);
  };
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (step) next(step);
    else if ((event.key === "Enter" || event.key === " ") && all[at]) choose(all[at].row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  space.step = (key) => {
    const by = { n: 1, p: -1 }[key];
    if (by) look((at + by + all.length) % all.length);
    return Boolean(by);
  };
  const under = (event) => {
    const frame = canvas.getBoundingClientRect();
    const far = (one) => Math.hypot(x(one) - (event.clientX - frame.left), y(one) - (event.clientY - frame.top));
    const best = all.reduce((a, one, i) => (far(one) < far(all[a]) ? i : a), 0);
    return far(all[best]) < 16 ? best : null;
  };
  canvas.addEventListener("mousemove", (event) => {
    const i = under(event);
    if (i !== null && i !== at) look(i);
  });
  canvas.addEventListener("click", (event) => {
    const i = under(event);
    if (i !== null) choose(all[i].row);
  });
  new ResizeObserver(() => {
    const room = Math.min(scroll.clientWidth, 900);
    if (!room || (box.width === room && canvas.style.width)) return;
    box = { width: room, height: Math.round(Math.max(300, Math.min(0.68 * room, 560))) };
    draw();
  }).observe(scroll);
  const numbers = () => ({ head: ["token", "first component", "second component"], rows: all.map(({ word, point }) => [label(word, 40), ...point.map(number)]) });
  const scale = h("p", { class: "scale" }, h("span", {}, `across ${number(low[0])} to ${number(high[0])}, up ${number(low[1])} to ${number(high[1])}`), h("span", { class: "own" }, "in this input"), h("span", { class: "marked" }, "chosen, and nearest"));
  return { canvas, csv: numbers, root: h("figure", {}, scroll, h("figcaption", {}, readout, scale), twin(() => table(title, numbers().head, numbers().rows))) };
}

/** What is near: a form for words and sums of words, and the list. */
function panel(app, name, map, asked, found, wrong) {
  const { go, source, state } = app;
  const parts = name === "tokens" ? (state.of ?? "").match(/^\s*(\S+)(?:\s+[-−]\s+(\S+)(?:\s+\+\s+(\S+))?)?\s*$/) : null;
  const root = h("aside", { class: "cell near", "aria-label": "Neighbours" });
  if (name === "tokens" && source.live) {
    const field = (id, words, value) => h("input", { type: "text", id, "aria-label": words, placeholder: words, value: value ?? "", autocomplete: "off", spellcheck: "false", dir: "auto" });
    const [a, b, c] = [field("of-a", "word", parts?.[1]), field("of-b", "minus", parts?.[2]), field("of-c", "plus", parts?.[3])];
    root.append(h("form", { class: "sum", onsubmit: (event) => {
      event.preventDefault();
      const [first, less, more] = [a, b, c].map((one) => one.value.trim());
      go({ of: [first, less && `- ${less}`, more && `+ ${more}`].filter(Boolean).join(" "), point: null }, { replace: true });
    } }, a, h("span", { class: "pale" }, "−"), b, h("span", { class: "pale" }, "+"), c, h("button", { type: "submit", id: "find" }, "Find")),
    h("p", { class: "pale small" }, "A word, or a sum: king − man + woman."));
  }
  if (wrong) root.append(h("p", { class: "wrong", role: "alert" }, wrong));
  if (!found) return root;
  const cosine = found.distance === "cosine";
  const sum = found.of.map((one, i) => `${i || one.value < 0 ? (one.value < 0 ? "− " : "+ ") : ""}${label(one.word)}`).join(" ");
  const peak = Math.max(...found.found.map(({ value }) => Math.abs(value)), 1e-30);
  root.append(h("h3", {}, `Nearest to ${asked.text ? sum : label(found.of[0].word, 28)}`),
    h("div", { class: "bars" }, found.found.flatMap((one) => [
      h("button", { type: "button", onclick: () => go({ point: one.row, of: null }, { replace: true }) }, label(one.word, 22)),
      h("div", { class: "share", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * Math.max(0, one.value)) / peak}%` } })),
      h("span", { class: "exact" }, number(one.value)), h("span", {}, "")])),
    h("p", { class: "pale small" }, `${cosine ? "cosine: 1 is the same direction" : "Euclidean distance: 0 is the same place"}; of ${map.of.toLocaleString("en")} ${name === "tokens" ? "tokens, all compared" : "tokens of this run"}`));
  return root;
}

function lines(found, typed) {
  return ["from regard.vectors import vectors", "", "words = vectors(model)", `words.nearest(${python(typed ?? (found ? found.of[0].word.trim() : "word"))}, distance=${python(found?.distance ?? "cosine")})`];
}

// Positions

async function positions(root, bar, app) {
  const { manifest, state, go, source } = app;
  const all = manifest.positions;
  if (!all.length) {
    const reads = manifest.tensors["encoder.states"] ? "This model reads one token after another: the order is in its states, and no position is encoded." : "This model encodes no positions: to it, its input is a set.";
    root.append(h("h2", {}, "Positions"), h("p", {}, reads));
    return;
  }
  const one = all.find(({ part }) => part === state.places) ?? all[0];
  if (all.length > 1) bar.append(tabs("places", all.map(({ part }) => [part, part]), one.part, (to) => go({ places: to, at: null }, { replace: true })));
  const biased = ["alibi", "relative"].includes(one.kind);
  const forms = biased ? [["heat", "Heat map"], ["waves", "By distance"]] : [["heat", "Heat map"], ["waves", "Waves"], ["dot", "Dot products"], ["cosine", "Cosines"]];
  const form = forms.some(([name]) => name === state.as) ? state.as : "heat";
  bar.append(tabs("as", forms, form, (to) => go({ as: to, at: null }, { replace: true })));
  const name = `~${one.part}.${biased ? "bias" : ["dot", "cosine"].includes(form) ? form : "table"}`;
  const { shape, data } = await source.tensor(name);
  const [tall, wide] = shape.slice(-2);
  const kind = one.kind.split(" ")[0];
  const title = `${one.kind === "alibi" ? "ALiBi" : one.kind[0].toUpperCase() + one.kind.slice(1)} positions`;
  const shown = tall < one.of ? `the first ${tall} of ${one.of.toLocaleString("en")}; ` : "";
  const count = (n, words) => Array.from({ length: n }, (_, i) => `${words}${i}`);
  const say = { table: "", dot: "each position's vector times each other's; ", cosine: "how alike the vectors of two positions are; ", bias: "" }[name.split(".").at(-1)];
  root.append(h("h2", {}, title, h("small", { class: "pale" }, `${shown}${say}${ADDED[kind]}`)));
  const rows = tall === manifest.tokens.text?.length && manifest.grid ? manifest.tokens.text : count(tall, "");
  if (form === "waves") return waves(root, bar, app, one, { shape, data }, biased, title);
  let [part, head] = [data, 0];
  if (biased) {
    head = Math.min(Math.max(0, Number(state.head ?? 0) | 0), shape[0] - 1);
    part = data.subarray(head * tall * wide, (head + 1) * tall * wide);
    bar.append(choice("head", "head", count(shape[0], "").map((i) => [i, i]), head, (to) => go({ head: to }, { replace: true })));
  }
  const table2 = name.endsWith("table");
  const made = grid({
    rows, columns: table2 ? count(wide, "") : rows.length === wide ? rows : count(wide, ""), data: part, shape: [tall, wide], title, signed: true, square: !table2,
    names: biased ? ["query at", "key at"] : table2 ? ["position", kind === "rotary" ? "pair" : "dimension"] : ["position", "position"],
    at: place(state.at, [tall, wide]), move: (r, c) => go({ at: `${r},${c}` }, { quiet: true }),
  });
  app.current = { name: `positions-${one.part}-${form}`, canvas: made.canvas, svg: made.svg, csv: made.csv };
  root.append(made.root);
}

/** Some columns as lines over the positions; of biases, each head's over the distance. */
function waves(root, bar, app, one, { shape, data }, biased, title) {
  const { state, go } = app;
  const [tall, wide] = shape.slice(-2);
  const lines = [];
  if (biased) {
    for (let n = 0; n < Math.min(shape[0], 2 * WAVES); n++) lines.push({ words: `head ${n}`, points: Array.from({ length: wide }, (_, i) => data[(n * tall + tall - 1) * wide + (wide - 1 - i)]) });
  } else {
    const only = state.dim !== undefined && Number(state.dim) >= 0 && Number(state.dim) < wide ? Number(state.dim) | 0 : null;
    const some = only !== null ? [only] : [...new Set(Array.from({ length: Math.min(WAVES, wide) }, (_, i) => Math.floor((i * wide) / Math.min(WAVES, wide))))];
    for (const c of some) lines.push({ words: `${one.kind === "rotary" ? "pair" : "dimension"} ${c}`, points: Array.from({ length: tall }, (_, r) => data[r * wide + c]) });
    bar.append(choice(one.kind === "rotary" ? "pair" : "dimension", "dim", [["", "a few"], ...Array.from({ length: wide }, (_, i) => [i, i])], only ?? "", (to) => go({ dim: to }, { replace: true })));
  }
  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [860, 380, 58, 112, 16, 44];
  const every = lines.flatMap(({ points: p }) => p);
  const [low, high] = [Math.min(...every), Math.max(...every)];
  const many = lines[0].points.length;
  const x = (i) => LEFT + ((WIDTH - LEFT - RIGHT) * i) / Math.max(1, many - 1);
  const y = (v) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (v - low)) / (high - low || 1);
  const text = (at, up, words, anchor, fill = colour("--pale")) => s("text", { x: at, y: up, "text-anchor": anchor, "font-size": 12.5, fill }, words);
  const spots = lines.map(({ points: p }, i) => [y(p.at(-1)), i]).sort((p, q) => p[0] - q[0]);
  for (let i = 1; i < spots.length; i++) spots[i][0] = Math.max(spots[i][0], spots[i - 1][0] + 15); // words that can be read
  const over = Math.max(0, (spots.at(-1)?.[0] ?? 0) - (HEIGHT - BOTTOM + 4));
  const level = Object.fromEntries(spots.map(([up, i]) => [i, up - over]));
  const axis = biased ? "distance back from the query" : "position";
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `${title}: ${lines.map(({ words }) => words).join(", ")} over ${many} positions`, "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" },
    [low, (low + high) / 2, high].flatMap((v) => [s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(v), y2: y(v), stroke: colour("--edge") }), text(LEFT - 8, y(v) + 4, Math.abs(v) < 1e-3 * (high - low) ? "0" : v.toPrecision(3).replace("-", "−"), "end")]),
    [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (many - 1))).map((i) => text(x(i), HEIGHT - BOTTOM + 20, i, "middle")),
    text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, axis, "middle"),
    lines.map(({ words, points: p }, i) => [
      s("polyline", { points: p.map((v, at) => `${x(at).toFixed(1)},${y(v).toFixed(1)}`).join(" "), fill: "none", stroke: INKS[i % INKS.length], "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": i < INKS.length ? null : "5 3" }),
      text(WIDTH - RIGHT + 10, level[i] + 4, words, "start", INKS[i % INKS.length])]));
  const numbers = () => ({ head: [axis, ...lines.map(({ words }) => words)], rows: Array.from({ length: many }, (_, i) => [String(i), ...lines.map(({ points: p }) => number(p[i]))]) });
  app.current = { name: `positions-${one.part}-waves`, svg: picture, csv: numbers };
  root.append(h("figure", { class: "wave" }, h("div", { class: "scroll" }, picture), twin(() => table(title, numbers().head, numbers().rows))));
}
