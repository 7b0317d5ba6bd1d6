/* Points in the plane; arrow keys go to the next one in a direction. */

import { Canvas } from "./canvas.js";
import { themeColour } from "./colour.js";
import { FONT_FAMILY, arrowKeys, formatNumber, h, label, tableTwin } from "./dom.js";

const EDGE = 34; // pixels between the points and the border
const REACH = 16; // pixels within which a point is under the pointer
const UNPLACED = { width: 480, height: 326 }; // until it is known how much room there is
/** What matters most is drawn on top. @enum {number} */
const RANK = { CHOSEN: 0, NEAR: 1, OWN: 2, OTHER: 3 };

/** @typedef {{ row: number, word: string, point: Point, rank: number, value?: number }} Dot */
/** @typedef {[left: number, top: number, width: number, height: number]} Box */

/** @type {(a: Box, b: Box) => boolean} */
const overlap = (a, b) =>
  a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];

/**
 * All points of a map, with those of the neighbours that are not on it.
 * @type {(map: PointMap, near: Neighbours | null) => Dot[]}
 */
function listDots(map, near) {
  const shown = Math.max(3, Math.floor(map.rows.length / 3)); // of a small map, not every point is marked
  const chosen = new Set(near?.of.map(({ row }) => row));
  const neighbours = near ? [...near.of, ...near.found.slice(0, shown)] : [];
  const marked = new Map(neighbours.map((one) => [one.row, one]));
  const rankOf = (/** @type {number} */ row, /** @type {boolean} */ own) => {
    if (chosen.has(row)) return RANK.CHOSEN;
    return marked.has(row) ? RANK.NEAR : own ? RANK.OWN : RANK.OTHER;
  };
  const dots = map.rows.map((row, i) => ({
    row, word: map.words[i], point: map.points[i],
    rank: rankOf(row, i < map.own), value: marked.get(row)?.value,
  }));
  const known = new Set(map.rows);
  const outside = [...marked.values()].filter(({ row }) => !known.has(row));
  return [...dots, ...outside.map((one) => ({ ...one, rank: rankOf(one.row, false) }))];
}

export class Scatter {
  /**
   * @param {string} title
   * @param {PointMap} map
   * @param {Neighbours | null} near what is marked: the chosen point and its neighbours
   * @param {(row: number) => void} choose
   */
  constructor(title, map, near, choose) {
    this.near = near;
    this.dots = listDots(map, near);
    const xs = this.dots.map(({ point }) => point[0]);
    const ys = this.dots.map(({ point }) => point[1]);
    this.low = [Math.min(...xs), Math.min(...ys)];
    this.high = [Math.max(...xs), Math.max(...ys)];
    this.at = this.dots.findIndex(({ rank }) => rank === RANK.CHOSEN);
    const chooseThis = () => (this.dots[this.at] ? choose(this.dots[this.at].row) : false);
    /** @type {Canvas<import("./canvas.js").Size, number>} */
    this.view = new Canvas({
      id: "space",
      role: "map",
      label: `${title}: ${this.dots.length} points. Arrow keys move to the next one in a direction, `
        + "n and p go through all, Enter shows the neighbours of one.",
      layout: (room) => {
        const width = Math.min(room, 900);
        return { width, height: Math.round(Math.max(300, Math.min(0.68 * width, 560))) };
      },
      draw: (pen, size) => this.draw(pen, size),
      hit: (x, y) => this.hit(x, y),
      hover: (i) => (i === this.at ? null : this.look(i)),
      click: (i) => choose(this.dots[i].row),
      keys: {
        ...arrowKeys((down, right) => this.move(right, -down)), Enter: chooseThis, " ": chooseThis,
      },
    });
    this.view.readout.textContent =
      "Point at a dot, or move with the arrow keys; Enter shows its neighbours.";
    const csv = () => ({
      head: ["token", "first component", "second component"],
      rows: this.dots.map(({ word, point }) => [label(word, 40), ...point.map(formatNumber)]),
    });
    this.root = this.view.figure({}, this.scale(), tableTwin(title, csv));
    this.output = { ...this.view.output, csv };
  }

  /** What the axes and colours mean. */
  scale() {
    const [[left, bottom], [right, top]] = [this.low, this.high].map((ends) => ends.map(formatNumber));
    return h("p", { class: "scale" }, h("span", {}, `across ${left} to ${right}, up ${bottom} to ${top}`),
      h("span", { class: "own" }, "in this input"), h("span", { class: "marked" }, "chosen, and nearest"));
  }

  /**
   * The pixel of a dot.
   * @param {Dot} dot
   * @returns {[x: number, y: number]}
   */
  pixel({ point }) {
    const { width, height } = this.view.layout ?? UNPLACED;
    const [x, y] = point.map((v, axis) => (v - this.low[axis]) / (this.high[axis] - this.low[axis] || 1));
    return [EDGE + (width - 2 * EDGE) * x, height - EDGE - (height - 2 * EDGE) * y];
  }

  /** @type {(pen: CanvasRenderingContext2D, size: { width: number, height: number }) => void} */
  draw(pen, { width, height }) {
    pen.strokeStyle = themeColour("--edge");
    pen.strokeRect(0.5, 0.5, width - 1, height - 1);
    this.drawLines(pen);
    const ordered = [...this.dots].sort((a, b) => a.rank - b.rank);
    const colours = ["--mark", "--mark", "--line", "--pale"].map(themeColour);
    for (const dot of [...ordered].reverse()) {
      pen.globalAlpha = dot.rank === RANK.OTHER ? 0.5 : 1;
      pen.fillStyle = colours[dot.rank];
      circle(pen, this.pixel(dot), [6, 4.5, 4, 2][dot.rank]);
      pen.fill();
    }
    this.drawWords(pen, ordered, width);
    pen.globalAlpha = 1;
    if (!this.dots[this.at]) return;
    for (const [line, colour] of /** @type {const} */ ([[4, "--ground"], [2, "--ink"]])) {
      [pen.lineWidth, pen.strokeStyle] = [line, themeColour(colour)];
      circle(pen, this.pixel(this.dots[this.at]), 8);
      pen.stroke();
    }
  }

  /**
   * Lines from the chosen point to its neighbours.
   * @param {CanvasRenderingContext2D} pen
   */
  drawLines(pen) {
    const chosen = this.dots.filter(({ rank }) => rank === RANK.CHOSEN);
    if (this.near?.of.length !== 1 || !chosen.length) return;
    pen.strokeStyle = themeColour("--mark");
    pen.globalAlpha = 0.45;
    for (const dot of this.dots.filter(({ rank }) => rank === RANK.NEAR)) {
      pen.beginPath();
      pen.moveTo(...this.pixel(chosen[0]));
      pen.lineTo(...this.pixel(dot));
      pen.stroke();
    }
  }

  /**
   * Words where they hide none that matters more.
   * @type {(pen: CanvasRenderingContext2D, ordered: Dot[], width: number) => void}
   */
  drawWords(pen, ordered, width) {
    const [ink, pale] = [themeColour("--ink"), themeColour("--pale")];
    /** @type {Box[]} */
    const taken = ordered.filter(({ rank }) => rank !== RANK.OTHER).map((dot) => {
      const [x, y] = this.pixel(dot);
      return [x - 4, y - 4, 8, 8];
    });
    for (const dot of ordered) {
      const other = dot.rank === RANK.OTHER;
      pen.font = `${dot.rank <= RANK.NEAR ? "600 " : ""}${other ? 11 : 12}px ${FONT_FAMILY}`;
      const word = label(dot.word, 18);
      const wide = pen.measureText(word).width;
      const [x, y] = this.pixel(dot);
      const off = dot.rank === RANK.CHOSEN ? 12 : 8;
      /** @type {Box[]} */
      const places = [[x + off, y - 7, wide, 14], [x - off - wide, y - 7, wide, 14],
        [x - wide / 2, y - 21, wide, 14], [x - wide / 2, y + 7, wide, 14]];
      const free = (other ? places.slice(0, 1) : places).find((box) =>
        box[0] > 2 && box[0] + wide < width - 2 && !taken.some((one) => overlap(box, one)));
      if (!free) continue;
      taken.push(free);
      pen.globalAlpha = other ? 0.75 : 1;
      pen.fillStyle = other ? pale : ink;
      pen.fillText(word, free[0], free[1] + 7);
    }
  }

  /** @param {number} i */
  look(i) {
    this.at = i;
    const { word, point, rank, value } = this.dots[i];
    const measure = this.near?.distance === "cosine" ? "cosine" : "distance";
    const near = rank === RANK.NEAR ? `, ${measure} ${formatNumber(value)}` : "";
    const [x, y] = point.map(formatNumber);
    this.view.readout.textContent = `${label(word, 40)}, at ${x} and ${y}${near}`;
    this.view.redraw();
  }

  /**
   * To the next or previous point of the list.
   * @param {number} by
   */
  step(by) {
    this.look((this.at + by + this.dots.length) % this.dots.length);
  }

  /**
   * To the nearest point in a direction.
   * @param {number} right
   * @param {number} up
   */
  move(right, up) {
    const from = this.dots[this.at] ? this.pixel(this.dots[this.at]) : [EDGE, UNPLACED.height];
    let [best, least] = [-1, Infinity];
    this.dots.forEach((dot, i) => {
      const [x, y] = this.pixel(dot);
      const [dx, dy] = [x - from[0], from[1] - y];
      const [along, aside] = [dx * right + dy * up, Math.abs(dx * up - dy * right)];
      const far = along + 2.5 * aside;
      if (i !== this.at && along > 0.01 && far < least) [best, least] = [i, far];
    });
    if (best >= 0) this.look(best);
  }

  /** @type {(x: number, y: number) => number | null} */
  hit(x, y) {
    const far = this.dots.map((dot) => {
      const [a, b] = this.pixel(dot);
      return Math.hypot(a - x, b - y);
    });
    const best = far.reduce((a, distance, i) => (distance < far[a] ? i : a), 0);
    return far[best] < REACH ? best : null;
  }
}

/** @type {(pen: CanvasRenderingContext2D, centre: [number, number], radius: number) => void} */
function circle(pen, [x, y], radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
}
