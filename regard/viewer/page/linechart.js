/* A chart of lines. */

import { themeColour } from "./colour.js";
import { s, svgRoot } from "./dom.js";

/** @typedef {{ words: string, points: [x: number, y: number][], colour: string, width?: number,
 *   dashed?: boolean, dots?: boolean }} Line */

/**
 * @typedef {object} ChartOptions
 * @property {string} label what screen readers say
 * @property {[width: number, height: number]} size
 * @property {{ left: number, right: number, top: number, bottom: number }} margin
 * @property {Line[]} lines
 * @property {string} axis the title of the x axis
 * @property {number} most the largest x; the smallest is 0
 * @property {[low: number, high: number]} limits of y
 * @property {[x: number, words: string][]} xTicks
 * @property {[y: number, words: string][]} yTicks
 */

/** @type {(x: number, y: number, words: string, anchor: string, fill?: string) => SVGTextElement} */
export const chartText = (x, y, words, anchor, fill = themeColour("--pale")) =>
  s("text", { x, y, "text-anchor": anchor, "font-size": 12.5, fill }, words);

/**
 * The chart, and the pixels of its x and y values.
 * @param {ChartOptions} options
 */
export function lineChart({ label, size, margin, lines, axis, most, limits, xTicks, yTicks }) {
  const [width, height] = size;
  const { left, right, top, bottom } = margin;
  const [low, high] = limits;
  const x = (/** @type {number} */ value) => left + ((width - left - right) * value) / most;
  const y = (/** @type {number} */ value) =>
    height - bottom - ((height - top - bottom) * (value - low)) / (high - low || 1);
  const svg = svgRoot(width, height, { role: "img", "aria-label": label },
    yTicks.map(([value, words]) => [
      s("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: themeColour("--edge") }),
      chartText(left - 8, y(value) + 4, words, "end")]),
    xTicks.map(([value, words]) => chartText(x(value), height - bottom + 20, words, "middle")),
    chartText((left + width - right) / 2, height - 6, axis, "middle"),
    lines.map(({ points, colour, width: thick = 2, dashed, dots }) => [
      s("polyline", {
        points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "),
        fill: "none", stroke: colour, "stroke-width": thick, "stroke-linejoin": "round",
        "stroke-dasharray": dashed ? "5 3" : null,
      }),
      dots ? points.map(([a, b]) => s("circle", { cx: x(a), cy: y(b), r: 3, fill: colour })) : null]));
  return { svg, x, y };
}
