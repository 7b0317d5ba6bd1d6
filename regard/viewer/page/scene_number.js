/* One number, with the sum that made it: each term moves it on from where the last one ended. */

import { formatNumber, h, label, s } from "./dom.js";
import { openCell } from "./cell.js";
import { totalOf } from "./operands.js";
import { place } from "./scene_layout.js";

/** @typedef {import("./operands.js").Terms} Terms */
/** @typedef {{ words: string, note: string, from: number, to: number }} Bar between two running sums */

const NARROW = 720; // pixels
const [ROW, TOP, PANEL] = [24, 56, 400];

/** @type {(app: App, scene: import("./scene_data.js").Scene) => Promise<import("./scene.js").Depth>} */
export async function numberDepth(app) {
  const address = app.state.cell ?? "";
  const text = app.manifest.texts[address.slice(0, address.lastIndexOf(":"))];
  /** @type {{ terms: Terms, result: number } | null} */
  let sum = null;
  const panel = await openCell(app, address, (shown, result) => {
    if ("terms" in shown && !shown.divisor && shown.terms.length > 1) sum = { terms: shown, result };
  });
  return {
    draw: (root, width, height) => draw(root, panel, sum, width, height),
    sentence: () => [h("b", {}, "One number: "), text?.about ?? "",
      " Every term is the model's own; the page adds them up again and ticks the sum off."],
  };
}

/** @type {(root: HTMLElement, panel: HTMLElement, sum: { terms: Terms, result: number } | null,
 *   width: number, height: number) => void} */
function draw(root, panel, sum, width, height) {
  if (!sum || width < NARROW) {
    const wide = Math.min(760, width - 24);
    root.append(place(panel, { x: (width - wide) / 2, y: 10, width: wide, height: height - 20 }));
    return;
  }
  const x = width - PANEL - 24;
  root.append(waterfall(sum.terms, sum.result, x - 8, height),
    place(panel, { x, y: 12, width: PANEL, height: height - 24 }));
}

/**
 * The largest terms one after another, then the others, and what they add up to.
 * @type {(terms: Terms, result: number, width: number, height: number) => SVGElement}
 */
function waterfall({ terms }, result, width, height) {
  const sorted = [...terms].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const most = Math.max(3, Math.floor((height - TOP - 70) / ROW));
  const shown = sorted.length <= most ? sorted : sorted.slice(0, most - 1);
  const rest = sorted.slice(shown.length);
  let at = 0;
  /** @type {(words: string, note: string, value: number) => Bar} */
  const step = (words, note, value) => ({ words, note, from: at, to: (at += value) });
  const bars = shown.map(({ name, parts, value }) => step(label(String(name), 14),
    `${parts.map((part) => formatNumber(part.value)).join(" × ")} = ${formatNumber(value)}`, value));
  if (rest.length) bars.push(step(`${rest.length} smaller`, formatNumber(totalOf(rest)), totalOf(rest)));
  const ends = [0, ...bars.map(({ to }) => to)];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const [left, right] = [130, width - 256];
  const place = (/** @type {number} */ value) => left + ((value - low) / (high - low || 1)) * (right - left);
  const tall = Math.min(40, (height - TOP - 70) / bars.length);
  const y = (/** @type {number} */ n) => TOP + n * tall;
  const foot = y(bars.length) + 6;
  return s("svg", { class: "waterfall", width, height, "aria-hidden": "true" },
    s("text", { x: 24, y: 20, class: "pale" }, "Largest first; each bar begins where the last one ended"),
    s("line", { x1: place(0), x2: place(0), y1: TOP - 12, y2: foot + 30 }),
    s("text", { x: place(0), y: TOP - 15, class: "pale", "text-anchor": "middle" }, "0"),
    ...bars.map(({ words, note, from, to }, n) => s("g", {},
      s("text", { x: left - 24, y: y(n) + tall / 2 + 4, "text-anchor": "end", class: "pale" }, words),
      s("rect", {
        "data-to": String(to), class: to < from ? "minus" : "plus", rx: 2,
        x: Math.min(place(from), place(to)), y: y(n) + 2,
        width: Math.max(1.5, Math.abs(place(to) - place(from))), height: tall - 4,
      }),
      s("line", { x1: place(to), x2: place(to), y1: y(n) + tall - 2, y2: y(n + 1) + 2 }),
      s("text", { x: right + 16, y: y(n) + tall / 2 + 4 }, note))),
    s("rect", {
      class: "result", x: Math.min(place(0), place(result)), y: foot, rx: 2, height: 22,
      width: Math.max(1.5, Math.abs(place(result) - place(0))),
    }),
    s("text", { x: right + 16, y: foot + 17, class: "total" }, `= ${formatNumber(result)}`));
}
