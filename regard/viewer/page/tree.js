/* The search for an answer: the candidates at every step, which of them went on, and the path that won. */

import { penOf, themeColour } from "./colour.js";
import {
  FONT_FAMILY, formatNumber, formatPercent, h, label, onKeys, range, readoutLine, s, svgRoot, tableTwin,
} from "./dom.js";

const [BOX_HEIGHT, GAP, BETWEEN, TOP] = [24, 7, 44, 26];
const MOST = 2000; // elements

/** A candidate: its step, and its number there.
 * @typedef {[step: number, number: number]} Node */

/**
 * The numbers of the candidates on the way to number i of step n, its own last.
 * @param {SearchTree} tree
 * @param {number} n
 * @param {number} i
 */
export function pathTo(tree, n, i) {
  const path = [i];
  for (let at = n; at > 0; at--) path.unshift(tree.steps[at][path[0]].from);
  return path;
}

/**
 * @param {SearchTree} tree
 * @param {Node | null} at the candidate that is looked at
 * @param {(step: number, number: number) => void} choose
 */
export function drawTree(tree, at, choose) {
  const drawing = new TreeDrawing(tree, at, choose);
  const { steps } = tree;
  const { svg, first, shown } = drawing;
  const hint = "Click a token, or move with the arrow keys: the matrix shows where the model looked for it.";
  const scroll = h("div", { class: "scroll" }, svg);
  if (at) {
    const { x } = drawing.columns[at[0] - first];
    requestAnimationFrame(() => { scroll.scrollLeft = x - scroll.clientWidth / 2; });
  }
  const part = `steps ${first + 1} to ${first + shown.length} of ${steps.length}`;
  const scale = h("p", { class: "scale" },
    h("span", { class: "key won" }, "the answer"),
    h("span", { class: "key" }, "went on, or ended"),
    h("span", { class: "key gone" }, "dropped"),
    h("span", { class: "pale" }, "numbers: the probability of a token after those before it"),
    shown.length < steps.length ? h("span", { class: "pale" }, part) : null);
  const csv = () => drawing.numbers();
  const readout = readoutLine(at ? drawing.describe(...at) : hint);
  const root = h("figure", { class: "tree" }, scroll, h("figcaption", {}, readout, scale),
    tableTwin("All candidates", csv));
  return { root, svg, csv };
}

class TreeDrawing {
  /**
   * @param {SearchTree} tree
   * @param {Node | null} at
   * @param {(step: number, number: number) => void} choose
   */
  constructor(tree, at, choose) {
    this.tree = tree;
    this.at = at;
    this.choose = choose;
    this.path = at ? pathTo(tree, ...at) : [];
    const widest = Math.max(...tree.steps.map((step) => step.length));
    const count = Math.max(8, Math.floor(MOST / (4 * widest))); // steps that are drawn
    this.first = Math.max(0, Math.min((at?.[0] ?? 0) - (count >> 1), tree.steps.length - count));
    this.shown = tree.steps.slice(this.first, this.first + count);
    this.columns = columnWidths(this.shown);
    const { x, width } = this.columns[this.columns.length - 1];
    this.svg = svgRoot(x + width + 4, topOf(widest), {
      id: "tree", tabindex: "0", role: "application", "aria-roledescription": "tree",
      "aria-label": `The search, ${tree.steps.length} steps. Left and right go along it, `
        + "up and down to other tokens of a step.",
      onkeydown: onKeys(this.keys()),
    }, this.edges(), this.shown.map((step, k) => [
      s("text", { x: this.columns[k].x, y: 14, "font-size": 11.5, fill: themeColour("--pale") },
        `step ${this.first + k + 1}`),
      step.map((_, i) => this.box(k, i))]));
  }

  /** @type {(n: number, i: number) => boolean} */
  won(n, i) {
    return this.tree.chosen[n] === i;
  }

  /** @type {(n: number, i: number) => string} */
  fate(n, i) {
    if (this.won(n, i)) return "in the answer";
    const { ended, kept } = this.tree.steps[n][i];
    return ended ? "an end" : kept ? "went on" : "dropped";
  }

  /** @type {(n: number, i: number) => string} */
  previousToken(n, i) {
    const { steps } = this.tree;
    return n ? steps[n - 1][steps[n][i].from].token : "";
  }

  /** @type {(n: number, i: number) => string} */
  describe(n, i) {
    const { token, p, score } = this.tree.steps[n][i];
    const before = n ? label(this.previousToken(n, i)) : "the beginning";
    const end = `log-probability so far ${formatNumber(score)}, ${this.fate(n, i)}`;
    return `step ${n + 1}, ${label(token)}: ${formatPercent(p)} after ${before}, ${end}`;
  }

  /** @type {(n: number, i: number) => string} */
  lineColour(n, i) {
    const { kept, ended } = this.tree.steps[n][i];
    return themeColour(this.won(n, i) ? "--line" : kept || ended ? "--pale" : "--edge");
  }

  /** The lines from each candidate to the next, those of the answer on top. */
  edges() {
    /** @type {[number, SVGElement][]} */
    const edges = [];
    this.shown.slice(1).forEach((step, k) => step.forEach(({ from }, i) => {
      const [n, { x, width }] = [this.first + k + 1, this.columns[k]];
      const [left, right] = [x + width, this.columns[k + 1].x];
      const [middle, y1, y2] = [(left + right) / 2, topOf(from) + BOX_HEIGHT / 2, topOf(i) + BOX_HEIGHT / 2];
      const won = this.won(n, i);
      edges.push([won ? 1 : 0, s("path", {
        d: `M${left},${y1} C${middle},${y1} ${middle},${y2} ${right},${y2}`,
        fill: "none", stroke: this.lineColour(n, i), "stroke-width": won ? 2.5 : 1,
      })]);
    }));
    return edges.sort((a, b) => a[0] - b[0]).map(([, edge]) => edge);
  }

  /** @type {(k: number, i: number) => SVGElement} */
  box(k, i) {
    const [n, { x, width }, y] = [this.first + k, this.columns[k], topOf(i)];
    const { token, p, kept, ended } = this.shown[k][i];
    const won = this.won(n, i);
    const here = this.at !== null && this.at[0] === n && this.at[1] === i;
    const strong = won || kept || ended;
    const text = { y: y + BOX_HEIGHT / 2, "dominant-baseline": "central" };
    return s("g", { class: "node", "data-step": n, "data-number": i, onclick: () => this.choose(n, i) },
      s("title", {}, this.describe(n, i)),
      s("rect", {
        x, y, width, height: BOX_HEIGHT, rx: 5,
        fill: themeColour(here || this.path[n] === i ? "--raised" : "--ground"),
        stroke: here ? themeColour("--mark") : this.lineColour(n, i),
        "stroke-width": here ? 2.5 : won ? 2 : 1,
        "stroke-dasharray": strong || here ? null : "3 3",
      }),
      s("text", {
        x: x + 8, ...text, "font-size": 13, "font-weight": won ? 600 : 400,
        fill: themeColour(strong ? "--ink" : "--pale"),
      }, label(token, 14)),
      s("text", {
        x: x + width - 8, ...text, "text-anchor": "end", "font-size": 11.5, fill: themeColour("--pale"),
      }, p >= 0.001 ? p.toFixed(3) : "< .001"));
  }

  /** @returns {KeyHandlers} */
  keys() {
    const { steps, chosen } = this.tree;
    /** @type {(next: (n: number, i: number) => Node | false | undefined) => () => void} */
    const move = (next) => () => {
      this.at = next(...(this.at ?? /** @type {Node} */ ([-1, 0]))) || this.at;
      if (this.at) this.choose(...this.at);
    };
    return {
      ArrowLeft: move((n, i) => n > 0 && [n - 1, steps[n][i].from]),
      ArrowRight: move((n, i) => {
        const next = steps[n + 1]?.findIndex(({ from }) => n < 0 || from === i) ?? -1;
        const onAnswer = n < 0 || chosen[n] === i;
        return next >= 0 && [n + 1, onAnswer ? chosen[n + 1] ?? next : next];
      }),
      ArrowUp: move((n, i) => i > 0 && [n, i - 1]),
      ArrowDown: move((n, i) => n >= 0 && i < steps[n].length - 1 && [n, i + 1]),
    };
  }

  /** @returns {TableData} */
  numbers() {
    const { steps } = this.tree;
    return {
      head: ["step", "token", "after", "probability", "log-probability so far", ""],
      rows: range(steps.length).flatMap((n) => steps[n].map(({ token, p, score }, i) => [
        n + 1, label(token, 40), n ? label(this.previousToken(n, i), 40) : "", formatNumber(p),
        formatNumber(score), this.fate(n, i)])),
    };
  }
}

/** @param {number} i */
const topOf = (i) => TOP + i * (BOX_HEIGHT + GAP);

/**
 * The left edge and the width of each step.
 * @param {Candidate[][]} steps
 */
function columnWidths(steps) {
  const pen = penOf(document.createElement("canvas"));
  pen.font = `600 13px ${FONT_FAMILY}`;
  let x = 4;
  return steps.map((step) => {
    const words = step.map(({ token }) => pen.measureText(label(token, 14)).width);
    const column = { x, width: Math.ceil(Math.max(...words)) + 62 };
    x += column.width + BETWEEN;
    return column;
  });
}
