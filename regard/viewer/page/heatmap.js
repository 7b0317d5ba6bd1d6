/* A matrix as a heat map: tokens at its sides, arrow keys, a line that reads the numbers, and a table. */

import { Canvas } from "./canvas.js";
import { isDark, opaque, paintMatrix, penOf, themeColour } from "./colour.js";
import { FONT_FAMILY, arrowKeys, formatNumber, h, label, range, s, svgRoot, tableTwin } from "./dom.js";
import { cssColour, textColour } from "./ink.js";

const FONT = `12px ${FONT_FAMILY}`;
const DIGITS_FONT = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const LABEL_GAP = 12; // pixels between two labels, at least
const LABEL_WIDTH = 150; // of labels on the left, at most
const COLUMN_LABEL = 14; // letters above a column, at most
const MEASURED = 400; // labels whose width is measured
const TABLE = 64; // rows and columns of the table, around the chosen cell

/** @typedef {(row: number, column: number) => void} OnCell */

/**
 * @typedef {object} HeatmapOptions
 * @property {string} title
 * @property {string[]} rows labels of all rows; there may be fewer numbers, each the largest of neighbours
 * @property {string[]} columns
 * @property {number[]} shape (rows, columns) of the numbers
 * @property {Numbers} data
 * @property {string} [id]
 * @property {boolean} [signed] colours for both sides of zero
 * @property {[number, number]} [limits] of the colours; without it, those of the numbers
 * @property {[string, string]} [names] what a row and a column are called
 * @property {MaskReasons | null} [why] why a cell has no number
 * @property {boolean} [square]
 * @property {boolean} [numbers] false: no numbers inside the cells
 * @property {Place | null} [at] the chosen cell
 * @property {OnCell} [move] another cell is chosen
 * @property {OnCell} [open] a cell is opened
 * @property {(x: number) => string} [format]
 * @property {Numbers} [shades] of the colours, from 0 to 1; without them, as the numbers
 * @property {[low: string, high: string]} [ends] what the first and the last colour stand for
 * @property {HTMLCanvasElement} [image] the cells, painted already
 * @property {(x: number, r: number, c: number) => string} [note] what is said about a number
 */

/**
 * Pixels: `left` and `top` of the first cell, `cellWidth` and `cellHeight` of each.
 * @typedef {{ width: number, height: number, left: number, top: number,
 *   cellWidth: number, cellHeight: number, digits: boolean, flat: boolean }} HeatmapLayout
 */

export class Heatmap {
  /** @param {HeatmapOptions} options */
  constructor(options) {
    this.options = { signed: false, names: ["row", "column"], ...options };
    this.tall = options.shape[0];
    this.wide = options.shape[1];
    const { title, rows, columns, why = null } = options;
    this.exact = this.tall === rows.length && this.wide === columns.length;
    this.why = why;
    /** @type {Place | null} */
    this.at = options.at ?? null;
    this.limits = colourLimits(options);
    const masked = isDark() ? opaque(38, 43, 50) : opaque(228, 231, 235);
    const [cells, limits] = this.shades();
    this.image = options.image ?? paintMatrix({ shape: options.shape, data: cells }, limits,
      this.options.signed, this.why?.blank ?? null, masked);
    /** @type {Canvas<HeatmapLayout, Place>} */
    this.view = new Canvas({
      id: options.id ?? "matrix",
      role: "matrix",
      label: `${title}: ${rows.length} × ${columns.length}. Arrow keys move, Enter opens a number.`,
      layout: (room) => this.layout(room),
      draw: (pen, layout) => this.draw(pen, layout),
      hit: (x, y, layout) => this.hit(x, y, layout),
      hover: ([r, c]) => (this.isAt(r, c) ? null : this.look(r, c, true)),
      click: ([r, c]) => {
        this.look(r, c);
        this.open(r, c);
      },
      keys: this.keys(),
    });
    this.view.readout.textContent = this.at
      ? this.describe(...this.at) : "Point at a cell, or move with the arrow keys.";
    const caption = () => (this.numbers().cut ? `${title}: the part around the chosen cell` : title);
    this.root = this.view.figure({ class: "grid" }, this.scale(), tableTwin(caption, () => this.numbers()));
    /** What can be taken away. */
    this.output = {
      canvas: this.view.canvas, svg: () => this.svg(), csv: () => this.numbers(Infinity),
    };
  }

  /**
   * The numbers that colours are chosen by, and those of the first and the last colour.
   * @returns {[Numbers, [number, number]]}
   */
  shades() {
    const { shades, data } = this.options;
    return shades ? [shades, [0, 1]] : [data, this.limits];
  }

  /** @returns {KeyHandlers} */
  keys() {
    const at = () => this.at ?? [0, -1];
    const open = () => this.open(...(this.at ?? /** @type {Place} */ ([0, 0])));
    return {
      ...arrowKeys((down, right) => this.look(at()[0] + down, at()[1] + right)),
      PageUp: () => this.look(at()[0] - 10, at()[1]),
      PageDown: () => this.look(at()[0] + 10, at()[1]),
      Home: ({ shiftKey }) => this.look(shiftKey ? 0 : at()[0], 0),
      End: ({ shiftKey }) => this.look(shiftKey ? this.tall - 1 : at()[0], this.wide - 1),
      Enter: open,
      " ": open,
    };
  }

  /** @type {(room: number) => HeatmapLayout} */
  layout(room) {
    const { tall, wide } = this;
    const { rows, columns, square, numbers } = this.options;
    const pen = penOf(this.view.canvas);
    pen.font = FONT;
    const left = Math.min(LABEL_WIDTH, Math.ceil(longest(pen, rows, tall, 20))) + 10;
    const fits = numbers !== false && this.exact && wide <= 16 && tall <= 64;
    let cellWidth = Math.min(fits ? 58 : 30, Math.floor(Math.max(120, room - left - 2) / wide));
    const digits = fits && cellWidth >= 42;
    if (!digits) cellWidth = Math.min(cellWidth, 30);
    let cellHeight = digits ? 26 : Math.max(cellWidth, Math.min(22, Math.floor(480 / tall)));
    if (square && !digits) {
      cellHeight = cellWidth = Math.max(1, Math.min(cellWidth, Math.max(Math.floor(640 / tall), 2)));
    }
    cellWidth = Math.max(1, cellWidth);
    cellHeight = Math.max(1, Math.min(cellHeight, 30));
    const high = longest(pen, columns, wide, COLUMN_LABEL);
    const flat = high + 6 <= cellWidth;
    const top = flat ? 20 : Math.ceil(high) + 10;
    const [width, height] = [left + wide * cellWidth + 2, top + tall * cellHeight + 2];
    return { left, top, cellWidth, cellHeight, digits, flat, width, height };
  }

  /** @type {(pen: CanvasRenderingContext2D, layout: HeatmapLayout) => void} */
  draw(pen, layout) {
    const { left, top, cellWidth, cellHeight } = layout;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, left, top, this.wide * cellWidth, this.tall * cellHeight);
    pen.font = FONT;
    this.drawLabels(pen, layout);
    if (layout.digits) this.drawDigits(pen, layout);
    if (!this.at) return;
    const [width, height] = [Math.max(cellWidth, 6), Math.max(cellHeight, 6)];
    const x = left + this.at[1] * cellWidth + (cellWidth - width) / 2;
    const y = top + this.at[0] * cellHeight + (cellHeight - height) / 2;
    for (const [line, colour] of /** @type {const} */ ([[4, "--ground"], [2, "--mark"]])) {
      pen.lineWidth = line;
      pen.strokeStyle = themeColour(colour);
      pen.strokeRect(x, y, width, height);
    }
  }

  /** @type {(pen: CanvasRenderingContext2D, layout: HeatmapLayout) => void} */
  drawLabels(pen, { left, top, cellWidth, cellHeight, flat }) {
    const [strong, pale] = [themeColour("--ink"), themeColour("--pale")];
    const { rows, columns } = this.options;
    for (const [i, word] of spreadLabels(rows, this.tall, cellHeight)) {
      pen.fillStyle = this.at?.[0] === i ? strong : pale;
      pen.textAlign = "right";
      pen.fillText(word, left - 6, top + (i + 0.5) * cellHeight, LABEL_WIDTH);
    }
    for (const [i, word] of spreadLabels(columns, this.wide, cellWidth, COLUMN_LABEL)) {
      pen.fillStyle = this.at?.[1] === i ? strong : pale;
      pen.save();
      pen.translate(left + (i + 0.5) * cellWidth, top - 6);
      if (flat) pen.translate(0, -4);
      else pen.rotate(-Math.PI / 2);
      pen.textAlign = flat ? "center" : "left";
      pen.fillText(word, 0, 0);
      pen.restore();
    }
  }

  /** @type {(pen: CanvasRenderingContext2D, layout: HeatmapLayout) => void} */
  drawDigits(pen, { left, top, cellWidth, cellHeight }) {
    pen.textAlign = "center";
    pen.font = DIGITS_FONT;
    for (const [r, c, words, colour] of this.digits()) {
      pen.fillStyle = colour;
      pen.fillText(words, left + (c + 0.5) * cellWidth, top + (r + 0.5) * cellHeight);
    }
  }

  /**
   * What is written inside each cell, and its colour.
   * @returns {[row: number, column: number, words: string, colour: string][]}
   */
  digits() {
    const { data, signed } = this.options;
    const [cells, [low, high]] = this.shades();
    const pale = themeColour("--pale");
    return range(this.tall * this.wide).map((i) => {
      const [r, c, x] = [Math.floor(i / this.wide), i % this.wide, data[i]];
      if (!(x > -Infinity) || this.why?.blank[i]) return [r, c, "·", pale];
      return [r, c, shortNumber(x), textColour(signed, high > low ? (cells[i] - low) / (high - low) : 0)];
    });
  }

  /** The same as a drawing with sharp labels; the matrix itself is an image in it. */
  svg() {
    const layout = this.view.layout ?? this.layout(900);
    const { left, top, cellWidth, cellHeight, width, height, flat } = layout;
    /** @type {(x: number, y: number, words: string, anchor: string, more?: Attributes) => SVGTextElement} */
    const text = (x, y, words, anchor, more) => s("text", {
      x, y, "text-anchor": anchor, "dominant-baseline": "central", fill: themeColour("--pale"), ...more,
    }, words);
    const { rows, columns } = this.options;
    return svgRoot(width, height, { "font-size": 12 },
      s("image", {
        href: this.image.toDataURL(), x: left, y: top,
        width: this.wide * cellWidth, height: this.tall * cellHeight,
        preserveAspectRatio: "none", "image-rendering": "pixelated",
      }),
      spreadLabels(rows, this.tall, cellHeight).map(([i, word]) =>
        text(left - 6, top + (i + 0.5) * cellHeight, word, "end")),
      spreadLabels(columns, this.wide, cellWidth, COLUMN_LABEL).map(([i, word]) => {
        const x = left + (i + 0.5) * cellWidth;
        const turned = { transform: `rotate(-90 ${x} ${top - 6})` };
        return flat ? text(x, top - 10, word, "middle") : text(x, top - 6, word, "start", turned);
      }),
      layout.digits ? this.digits().map(([r, c, words, fill]) =>
        text(left + (c + 0.5) * cellWidth, top + (r + 0.5) * cellHeight, words, "middle",
          { "font-size": 11, fill })) : null);
  }

  /** @type {(r: number, c: number) => string} */
  describe(r, c) {
    const { names, rows, columns, data, signed, format = formatNumber, note = format } = this.options;
    const x = data[r * this.wide + c];
    const pooled = signed ? "farthest from zero: " : "at most ";
    const value = x === undefined ? "" : `${this.exact ? "" : pooled}${note(x, r, c)}`;
    const [row, column] = [groupLabel(rows, r, this.tall), groupLabel(columns, c, this.wide)];
    return `${names[0]} ${row}, ${names[1]} ${column}, ${this.why?.(r, c) ?? value}`;
  }

  /** @type {(r: number, c: number) => boolean} */
  isAt(r, c) {
    return this.at !== null && this.at[0] === r && this.at[1] === c;
  }

  /**
   * Choose a cell.
   * @param {number} r
   * @param {number} c
   * @param {boolean} [quiet] do not call `move`
   */
  look(r, c, quiet) {
    const row = Math.max(0, Math.min(this.tall - 1, r));
    const column = Math.max(0, Math.min(this.wide - 1, c));
    this.at = [row, column];
    this.view.readout.textContent = this.describe(row, column);
    this.view.redraw();
    if (!quiet) this.options.move?.(row, column);
  }

  /** @type {(r: number, c: number) => void} */
  open(r, c) {
    if (this.exact && !this.why?.(r, c)) this.options.open?.(r, c);
  }

  /** @type {(x: number, y: number, layout: HeatmapLayout) => Place | null} */
  hit(x, y, { left, top, cellWidth, cellHeight }) {
    const [r, c] = [Math.floor((y - top) / cellHeight), Math.floor((x - left) / cellWidth)];
    return r >= 0 && c >= 0 && r < this.tall && c < this.wide ? [r, c] : null;
  }

  /**
   * The numbers around the chosen cell, at most so many each way.
   * @returns {TableData & { cut: boolean }}
   */
  numbers(most = TABLE) {
    const { rows, columns, data, shape } = this.options;
    const [r, c] = [0, 1].map((axis) => {
      const from = Math.max(0, Math.min((this.at?.[axis] ?? 0) - most / 2, shape[axis] - most)) | 0;
      return range(Math.min(most, shape[axis])).map((i) => from + i);
    });
    /** @type {(i: number, j: number) => string} */
    const value = (i, j) => (this.why?.(i, j) ? "masked" : formatNumber(data[i * this.wide + j]));
    return {
      cut: r.length < this.tall || c.length < this.wide,
      head: ["", ...c.map((j) => groupLabel(columns, j, this.wide))],
      rows: r.map((i) => [groupLabel(rows, i, this.tall), ...c.map((j) => value(i, j))]),
    };
  }

  /** What the colours mean. */
  scale() {
    const { rows, columns, signed, why, image } = this.options;
    const [low, high] = this.options.ends ?? this.limits.map(formatNumber);
    const [tall, wide] = [Math.ceil(rows.length / this.tall), Math.ceil(columns.length / this.wide)];
    return h("p", { class: "scale" }, low, image ? null : colourBar(signed), high,
      why ? h("span", { class: "masked" }, "masked") : null,
      this.exact ? null : h("span", { class: "pale" },
        `each the ${signed ? "one farthest from zero" : "largest"} of ${tall} × ${wide} neighbours`));
  }
}

/**
 * The numbers that the first and the last colour stand for.
 * @param {HeatmapOptions} options
 * @returns {[number, number]}
 */
function colourLimits({ limits, data, signed }) {
  const [low, high] = limits ?? finiteLimits(data);
  if (!signed) return [Math.min(0, low), high];
  const peak = Math.max(-low, high, 1e-30);
  return [-peak, peak];
}

/** @type {(data: Numbers) => [number, number]} */
function finiteLimits(data) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < data.length; i++) {
    const x = data[i];
    if (x < low && x > -Infinity) low = x;
    if (x > high && x < Infinity) high = x;
  }
  return low <= high ? [low, high] : [0, 0];
}

/**
 * The labels that the i-th of `few` groups of neighbours stands for: the first, and one after the last.
 * @param {number} i
 * @param {number} many
 * @param {number} few
 */
const groupSpan = (i, many, few) => [Math.floor((i * many) / few), Math.floor(((i + 1) * many) / few)];

/** @type {(labels: string[], i: number, few: number) => string} */
function groupLabel(labels, i, few) {
  const [from, to] = groupSpan(i, labels.length, few);
  if (to - from <= 1) return label(labels[from]);
  return `${label(labels[from])} … ${label(labels[to - 1])} (${from} to ${to - 1})`;
}

/**
 * As many labels along a side as there is room for.
 * @param {string[]} labels
 * @param {number} few
 * @param {number} apart pixels from one cell to the next
 * @param {number} [letters]
 * @returns {[index: number, words: string][]}
 */
function spreadLabels(labels, few, apart, letters) {
  const every = Math.max(1, Math.ceil(LABEL_GAP / apart));
  const shown = range(few).filter((i) => i % every === 0);
  return shown.map((i) => [i, label(labels[groupSpan(i, labels.length, few)[0]], letters)]);
}

/**
 * The width of the longest label; of very many, some are measured.
 * @type {(pen: CanvasRenderingContext2D, labels: string[], few: number, letters: number) => number}
 */
function longest(pen, labels, few, letters) {
  const every = Math.ceil(labels.length / MEASURED);
  const measured = labels.filter((_, i) => i % Math.max(1, every) === 0).slice(0, Math.max(few, MEASURED));
  return Math.max(...measured.map((word) => pen.measureText(label(word, letters)).width), 0);
}

/** @param {boolean} signed */
function colourBar(signed) {
  const canvas = h("canvas", { class: "bar", width: 96, height: 1, "aria-hidden": "true" });
  const pen = penOf(canvas);
  for (let i = 0; i < 96; i++) {
    pen.fillStyle = cssColour(signed, i / 95);
    pen.fillRect(i, 0, 1, 1);
  }
  return canvas;
}

/**
 * A number that fits into a cell.
 * @param {number} x
 */
function shortNumber(x) {
  const size = Math.abs(x);
  const text = size >= 1000 ? x.toExponential(0) : x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  return text.replace("-", "−");
}
