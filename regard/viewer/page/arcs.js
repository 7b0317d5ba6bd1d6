/* One head as arcs from queries to keys. */

import { penOf, themeColour } from "./colour.js";
import {
  arrowKeys, formatNumber, h, label, onKeys, readoutLine, s, svgRoot, tableTwin,
} from "./dom.js";
import { parsePlace, selectHead } from "./selection.js";

const MOST_TOKENS = 200; // between which arcs can be told apart
const MOST_LINES = 2000;
const LEAST_WEIGHT = 0.02;
const LINE_HEIGHT = 20;
const ACROSS = 340; // pixels between queries and keys

/** @typedef {{ weight: number, row: number, column: number }} Arc */

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {string} title
 * @param {[rows: string[], columns: string[]]} tokens
 * @param {Tensor} weights
 * @param {MaskReasons | null} why
 */
export function showArcs(root, app, title, [rows, columns], weights, why) {
  if (Math.max(rows.length, columns.length) > MOST_TOKENS) {
    const advice = `More than ${MOST_TOKENS} tokens are too many for arcs; the heat map shows them all.`;
    root.append(h("p", {}, advice));
    return;
  }
  const columnCount = weights.shape[1];
  const arcs = Array.from(weights.data, (weight, i) =>
    ({ weight, row: Math.floor(i / columnCount), column: i % columnCount }))
    .filter(({ weight }) => weight >= LEAST_WEIGHT)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, MOST_LINES);
  const readout = readoutLine("Point at a token, or move with the arrow keys.");
  const drawing = draw(title, rows, columns, arcs, readout);
  const start = parsePlace(app.state.at, weights.shape);
  if (start) drawing.look(start[0]);
  /** @type {(r: number, c: number) => string} */
  const value = (r, c) => (why?.(r, c) ? "masked" : formatNumber(weights.data[r * columnCount + c]));
  const numbers = () => ({
    head: ["", ...columns.map((word) => label(word))],
    rows: rows.map((word, r) => [label(word), ...columns.map((_, c) => value(r, c))]),
  });
  const { attention, head } = selectHead(app);
  app.current = { name: "arcs", tensor: [`${attention.name}.weights`, head], svg: drawing.svg, csv: numbers };
  const scale = `${arcs.length} lines: weights of at least ${LEAST_WEIGHT}; the wider, the larger`;
  root.append(h("figure", {}, h("div", { class: "scroll" }, drawing.svg),
    h("figcaption", {}, readout, h("p", { class: "scale pale" }, scale)), tableTwin(title, numbers)));
}

/** @type {(words: string[]) => number} */
function widthOf(words) {
  const pen = penOf(document.createElement("canvas"));
  pen.font = "13px system-ui";
  return Math.ceil(Math.max(...words.map((word) => pen.measureText(label(word)).width))) + 14;
}

/**
 * @param {string} title
 * @param {string[]} rows
 * @param {string[]} columns
 * @param {Arc[]} arcs
 * @param {HTMLElement} readout
 */
function draw(title, rows, columns, arcs, readout) {
  const left = widthOf(rows);
  const [right, middle] = [left + ACROSS, left + ACROSS / 2];
  const y = (/** @type {number} */ i) => LINE_HEIGHT * (i + 0.5) + 4;
  const lines = arcs.map(({ weight, row, column }) => s("path", {
    d: `M${left + 4},${y(row)} C${middle},${y(row)} ${middle},${y(column)} ${right - 4},${y(column)}`,
    fill: "none", stroke: themeColour("--line"), "stroke-width": (0.5 + 5 * weight).toFixed(2),
    "stroke-opacity": (0.12 + 0.88 * weight).toFixed(2), "data-row": row, "data-column": column,
  }));
  /** @type {(x: number, i: number, word: string, anchor: string, more?: Attributes) => SVGTextElement} */
  const text = (x, i, word, anchor, more) => s("text", {
    x, y: y(i), "dominant-baseline": "central", "text-anchor": anchor, "font-size": 13,
    fill: themeColour("--ink"), ...more,
  }, label(word));
  const words = rows.map((word, r) => text(left - 4, r, word, "end", { onmouseenter: () => look(r) }));
  /** @type {number | null} */
  let at = null;
  /** @param {number | null} r a query, or null for all */
  function look(r) {
    at = r;
    arcs.forEach(({ row }, i) => { lines[i].style.opacity = r === null || row === r ? "1" : "0.06"; });
    words.forEach((word, i) => word.classList.toggle("chosen", i === r));
    if (r === null) return;
    const top = arcs.filter(({ row }) => row === r).slice(0, 5);
    const keys = top.map(({ weight, column }) => `${label(columns[column])} ${weight.toFixed(2)}`);
    readout.textContent = `query ${label(rows[r])} looks at ${keys.join(", ")}`;
  }
  const { ArrowUp, ArrowDown } = arrowKeys((down) =>
    look(Math.min(rows.length - 1, Math.max(0, (at ?? (down > 0 ? -1 : rows.length)) + down))));
  const height = LINE_HEIGHT * Math.max(rows.length, columns.length) + 8;
  const svg = svgRoot(right + widthOf(columns), height, {
    id: "arcs", role: "application", "aria-roledescription": "arcs", tabindex: "0",
    "aria-label": `${title}, as arcs from ${rows.length} queries to ${columns.length} keys. Arrow keys move.`,
    onmouseleave: () => look(null),
    onkeydown: onKeys({ ArrowUp, ArrowDown, Escape: () => look(null) }),
  }, lines, words, columns.map((word, c) => text(right + 4, c, word, "start")));
  return { svg, look };
}
