/* What each layer would predict if it were the last: the logit lens, nostalgebraist 2020. */

import { themeColour } from "./colour.js";
import {
  arrowKeys, formatCount, formatNumber, formatPercent, h, label, onKeys, range, readoutLine, s, svgRoot,
  tableTwin,
} from "./dom.js";
import { cssColour, textColour } from "./ink.js";

const [CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, RANK_WIDTH] = [128, 36, 92, 24, 110];
const CAPTION = "What each layer would predict";

/** @param {LensLayer} layer */
const layerName = ({ layer }) => (layer === "embedding" ? "embedding" : `layer ${layer}`);

/** @type {(x: number, y: number, words: string, more?: Attributes) => SVGTextElement} */
const text = (x, y, words, more) => s("text", {
  x, y, "dominant-baseline": "central", "font-size": 13, fill: themeColour("--pale"), ...more,
}, words);

/**
 * The likeliest tokens of each layer at a position, the last layer on top.
 * @param {App} app
 * @param {number} row
 */
export async function drawLens(app, row) {
  const { final, layers } = await app.source.lens(row);
  const above = [...layers].reverse();
  const count = layers[0].words.length;
  const right = LEFT + count * CELL_WIDTH;
  const readout = readoutLine("Point at a layer, or move with the arrow keys.");
  const frames = above.map((_, r) => s("rect", {
    x: 1, y: TOP + r * CELL_HEIGHT - 2, width: right + RANK_WIDTH - 2, height: CELL_HEIGHT, rx: 5,
    fill: "transparent", stroke: themeColour("--ink"), "stroke-opacity": 0, onmouseenter: () => look(r),
  }));
  let at = -1;
  /** @param {number} r */
  function look(r) {
    at = Math.max(0, Math.min(above.length - 1, r));
    frames.forEach((frame, i) => frame.setAttribute("stroke-opacity", i === at ? "1" : "0"));
    readout.textContent = describe(above[at], final);
  }
  const { ArrowUp, ArrowDown } = arrowKeys((down) => look(at + down));
  const svg = svgRoot(right + RANK_WIDTH, TOP + above.length * CELL_HEIGHT + 4, {
    id: "lens", tabindex: "0", role: "application", "aria-roledescription": "layers",
    "aria-label": `What each of ${layers.length} layers would predict. Arrow keys move.`,
    onkeydown: onKeys({ ArrowUp, ArrowDown }),
  },
  text(LEFT + 8, 10, "likeliest", { "font-size": 11.5 }),
  text(right + 14, 10, `rank of “${label(final, 10)}”`, { "font-size": 11.5 }),
  above.map((layer, r) => [drawLayer(layer, TOP + r * CELL_HEIGHT, final), frames[r]]));
  const csv = () => numbers(layers, final);
  const root = h("figure", { class: "lens" }, h("div", { class: "scroll" }, svg),
    h("figcaption", {}, readout), tableTwin(CAPTION, csv));
  return { root, svg, csv };
}

/** @type {(layer: LensLayer, final: string) => string} */
function describe(layer, final) {
  const words = layer.words.map((word, i) => `${label(word)} ${formatPercent(layer.p[i])}`).join(", ");
  const name = layer.layer === "embedding" ? "the embedding" : layerName(layer);
  const rank = `“${label(final)}” is number ${formatCount(layer.rank)}, ${formatPercent(layer.its)}`;
  return `${name}: ${words}; ${rank}`;
}

/** @type {(layer: LensLayer, y: number, final: string) => Child} */
function drawLayer(layer, y, final) {
  const middle = y + CELL_HEIGHT / 2 - 2;
  const cells = layer.words.map((word, i) => {
    const [x, p] = [LEFT + i * CELL_WIDTH, layer.p[i]];
    const [isFinal, fill] = [word === final, textColour(false, p)];
    return [
      s("rect", {
        x, y, width: CELL_WIDTH - 4, height: CELL_HEIGHT - 4, rx: 4, fill: cssColour(false, p),
        stroke: isFinal ? themeColour("--mark") : "none", "stroke-width": 2.5,
      }),
      text(x + 8, middle, label(word, 9), { fill, "font-weight": isFinal ? 600 : 400 }),
      text(x + CELL_WIDTH - 12, middle, p >= 0.0005 ? p.toFixed(3) : "< .001",
        { "text-anchor": "end", "font-size": 11, fill })];
  });
  const rank = { fill: themeColour("--ink"), "font-weight": layer.rank === 1 ? 600 : 400 };
  return [text(LEFT - 10, middle, layerName(layer), { "text-anchor": "end" }), cells,
    text(LEFT + layer.words.length * CELL_WIDTH + 14, middle, formatCount(layer.rank), rank)];
}

/** @type {(layers: LensLayer[], final: string) => TableData} */
function numbers(layers, final) {
  const pairs = range(layers[0].words.length).flatMap((i) => [`likeliest ${i + 1}`, "probability"]);
  return {
    head: ["layer", ...pairs, `rank of ${label(final, 40)}`, "its probability"],
    rows: layers.map(({ layer, words, p, rank, its }) => [
      layer, ...words.flatMap((word, i) => [label(word, 40), formatNumber(p[i])]), rank, formatNumber(its)]),
  };
}
