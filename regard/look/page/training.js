/* The loss curve of the run, from its log; and the model as it was at every step that has a checkpoint. */

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

/** A slider over the checkpoints: the whole page shows the model as it was then. */
function replay({ manifest, source, go, move }) {
  const { steps, step } = manifest;
  if (!source.live) return step === null ? "" : h("p", { class: "pale" }, `These are the weights of step ${step.toLocaleString("en")}.`);
  if (!steps.length) return h("p", { class: "pale" }, "This run has no checkpoints to replay. Train with --set train.save=50 --set train.keep=40 to keep the model of every 50th step.");
  const stops = [...steps, null]; // and what came out in the end
  const named = (at) => (at === null ? "the model that came out in the end" : `step ${at.toLocaleString("en")}`);
  const told = h("output", {}, named(step));
  const slide = h("input", { type: "range", id: "replay", min: 0, max: stops.length - 1, step: 1, "aria-valuetext": named(step),
    oninput: () => {
      told.textContent = named(stops[slide.value]);
      slide.setAttribute("aria-valuetext", told.textContent);
      move(stops[slide.value]);
    },
    onchange: () => go({ checkpoint: stops[slide.value], cell: null }, { replace: true }) });
  slide.value = stops.indexOf(step);
  return h("div", { class: "replay" }, h("label", { for: "replay" }, "Replay", told), slide,
    h("p", { class: "pale" }, `${steps.length} checkpoints. All views then show the model as it was at that step. train.save sets every how many steps there is one, train.keep how many are kept.`));
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
    const { manifest, source, go } = app;
    const mark = s("line", { id: "mark", y1: TOP, y2: HEIGHT - BOTTOM, stroke: colour("--ink"), "stroke-width": 1.5, "stroke-dasharray": "4 3" });
    const move = (step) => {
      for (const end of ["x1", "x2"]) mark.setAttribute(end, x(Math.min(step ?? 0, last)));
      mark.setAttribute("visibility", step === null ? "hidden" : "visible");
    };
    picture.append(mark);
    move(manifest.step);
    const head = ["step", "training loss", "validation loss"];
    const numbers = () => ({ head, rows: rows.map((row) => [row.step, row.loss === undefined ? "" : number(row.loss), row.valid_loss === undefined ? "" : number(row.valid_loss)]) });
    const python = () => ["import json", "", `[json.loads(line) for line in (model.folder / "log.jsonl").read_text().splitlines()]`];
    app.current = { name: "training", python, svg: picture, csv: numbers };
    root.append(h("h2", {}, "Loss", h("small", { class: "pale" }, "from the run's log.jsonl")),
      h("figure", {}, h("div", { class: "scroll" }, picture), h("figcaption", {}, h("p", { class: "scale" }, kinds.map(told)))),
      replay({ manifest, source, go, move }),
      twin(() => table("Loss by step", head, numbers().rows.slice(-500))));
  },
};
