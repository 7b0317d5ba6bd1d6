/* The loss curve of the run, from its log. */

import { h, number, s, table, twin } from "./dom.js";
import { colour } from "./grid.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [820, 420, 60, 24, 20, 46];

/** Round numbers from low to high, about so many. */
function ticks(low, high, about) {
  const rough = (high - low || Math.abs(high) || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough * (1 - 1e-9));
  const first = Math.floor(low / apart + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / apart - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * apart);
}

export const training = {
  async show(root, app) {
    const rows = await app.source.log();
    const kinds = [["loss", "training", "--line"], ["valid_loss", "validation", "--mark"]]
      .map(([key, words, ink]) => ({ key, words, ink, points: rows.filter((row) => Number.isFinite(row[key])).map((row) => [row.step, row[key]]) }))
      .filter(({ points }) => points.length);
    if (!kinds.length) {
      root.append(h("p", { class: "pale" }, "Nothing is logged yet."));
      return;
    }
    const every = kinds.flatMap(({ points }) => points);
    const last = Math.max(...every.map(([step]) => step), 1);
    const losses = ticks(Math.min(...every.map(([, x]) => x)), Math.max(...every.map(([, x]) => x)), 6);
    const [low, high] = [losses[0], losses.at(-1)];
    const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * step) / last;
    const y = (loss) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (loss - low)) / (high - low);
    const text = (at, up, words, anchor) => s("text", { x: at, y: up, "text-anchor": anchor, "font-size": 12.5, fill: colour("--pale") }, words);
    const digits = Math.max(0, -Math.floor(Math.log10(losses[1] - losses[0]) + 1e-9));
    const parts = losses.flatMap((loss) => [
      s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(loss), y2: y(loss), stroke: colour("--edge") }),
      text(LEFT - 8, y(loss) + 4, loss.toFixed(digits), "end")]);
    for (const step of ticks(0, last, 6)) if (step <= last) parts.push(text(x(step), HEIGHT - BOTTOM + 20, Math.round(step).toLocaleString("en"), "middle"));
    parts.push(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "step", "middle"));
    for (const { points, ink, key } of kinds) {
      const wide = key === "valid_loss" ? 2.5 : 1.5;
      parts.push(s("polyline", { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: "none", stroke: colour(ink), "stroke-width": wide, "stroke-linejoin": "round" }));
      if (points.length < 60 && key === "valid_loss") parts.push(...points.map(([a, b]) => s("circle", { cx: x(a), cy: y(b), r: 3, fill: colour(ink) })));
    }
    const told = ({ words, points, ink }) => {
      const best = points.reduce((a, b) => (b[1] < a[1] ? b : a));
      return h("span", { style: { color: colour(ink) } }, `${words}: last ${number(points.at(-1)[1])}, lowest ${number(best[1])} at step ${best[0].toLocaleString("en")}`);
    };
    const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `Loss over ${last} steps`, "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" }, parts);
    const head = ["step", "training loss", "validation loss"];
    const numbers = () => ({ head, rows: rows.map((row) => [row.step, row.loss === undefined ? "" : number(row.loss), row.valid_loss === undefined ? "" : number(row.valid_loss)]) });
    app.current = { name: "training", svg: picture, csv: numbers };
    root.append(h("h2", {}, "Loss", h("small", { class: "pale" }, "from the run's log.jsonl")),
      h("figure", {}, h("div", { class: "scroll" }, picture), h("figcaption", {}, h("p", { class: "scale" }, kinds.map(told)))),
      twin(() => table("Loss by step", head, numbers().rows.slice(-500))));
  },
};
