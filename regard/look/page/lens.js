/* What each layer would have said, if it were the last: the logit lens, nostalgebraist 2020. */

import { h, label, number, percent, s, table, twin } from "./dom.js";
import { css, ink } from "./colour.js";
import { colour } from "./grid.js";

const [WIDE, HIGH, LEFT, TOP, RANK] = [128, 36, 92, 24, 110];

/** {root, svg, csv} of a place's words by layer, the last one on top. */
export async function lens(app, row) {
  const { final, layers } = await app.source.lens(row);
  const above = [...layers].reverse();
  const many = layers[0].words.length;
  const [width, height] = [LEFT + many * WIDE + RANK, TOP + above.length * HIGH + 4];
  const text = (x, y, words, more) => s("text", { x, y, "dominant-baseline": "central", "font-size": 13, fill: colour("--pale"), ...more }, words);
  const parts = [text(LEFT + 8, 10, "likeliest", { "font-size": 11.5 }), text(LEFT + many * WIDE + 14, 10, `rank of “${label(final, 10)}”`, { "font-size": 11.5 })];
  const told = (one) => `${one.layer === "embedding" ? "the embedding" : `layer ${one.layer}`}: ${one.words.map((word, i) => `${label(word)} ${percent(one.p[i])}`).join(", ")}; “${label(final)}” is number ${one.rank.toLocaleString("en")}, ${percent(one.its)}`;
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" }, "Point at a layer, or move with the arrow keys.");
  const marks = [];
  const look = (r) => {
    marks.forEach((mark, i) => mark.setAttribute("stroke-opacity", i === r ? 1 : 0));
    readout.textContent = told(above[r]);
  };
  above.forEach((one, r) => {
    const y = TOP + r * HIGH;
    const middle = y + HIGH / 2 - 2;
    parts.push(text(LEFT - 10, middle, one.layer === "embedding" ? "embedding" : `layer ${one.layer}`, { "text-anchor": "end" }));
    one.words.forEach((word, i) => {
      const x = LEFT + i * WIDE;
      const own = word === final;
      parts.push(s("rect", { x, y, width: WIDE - 4, height: HIGH - 4, rx: 4, fill: css(false, one.p[i]), stroke: own ? colour("--mark") : "none", "stroke-width": 2.5 }),
        text(x + 8, middle, label(word, 9), { fill: ink(false, one.p[i]), "font-weight": own ? 600 : 400 }),
        text(x + WIDE - 12, middle, one.p[i] >= 0.0005 ? one.p[i].toFixed(3) : "< .001", { "text-anchor": "end", "font-size": 11, fill: ink(false, one.p[i]) }));
    });
    parts.push(text(LEFT + many * WIDE + 14, middle, one.rank.toLocaleString("en"), { fill: colour("--ink"), "font-weight": one.rank === 1 ? 600 : 400 }));
    const mark = s("rect", { x: 1, y: y - 2, width: width - 2, height: HIGH, rx: 5, fill: "transparent", stroke: colour("--ink"), "stroke-opacity": 0, onmouseenter: () => look(r) });
    marks.push(mark);
    parts.push(mark);
  });
  let at = -1;
  const picture = s("svg", {
    id: "lens", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: "0", role: "application", "aria-roledescription": "layers",
    "aria-label": `What each of ${layers.length} layers would have said. Arrow keys move.`,
    "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif",
    onkeydown: (event) => {
      const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      at = Math.max(0, Math.min(above.length - 1, at + by));
      look(at);
    },
  }, parts);
  const numbers = () => ({
    head: ["layer", ...Array.from({ length: many }, (_, i) => [`likeliest ${i + 1}`, "probability"]).flat(), `rank of ${label(final, 40)}`, "its probability"],
    rows: layers.map((one) => [one.layer, ...one.words.flatMap((word, i) => [label(word, 40), number(one.p[i])]), one.rank, number(one.its)]),
  });
  const root = h("figure", { class: "lens" }, h("div", { class: "scroll" }, picture), h("figcaption", {}, readout),
    twin(() => table("What each layer would have said", numbers().head, numbers().rows)));
  return { root, svg: picture, csv: numbers };
}
