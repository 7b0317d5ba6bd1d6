/* The loss curve of the run, from its log; and the model as it was at every checkpoint. */

import { themeColour } from "./colour.js";
import { alertBox, formatCount, formatNumber, h, last, messageOf, s, tableTwin } from "./dom.js";
import { lineChart } from "./linechart.js";
import { heading } from "./selection.js";

const SIZE = /** @type {[number, number]} */ ([820, 420]);
const MARGIN = { left: 60, right: 24, top: 20, bottom: 46 };
const TABLE_ROWS = 500;
const POLL = 2000; // milliseconds between two looks at a run that is being trained

/** @typedef {import("./linechart.js").Line} Line */

/**
 * About so many round numbers from low to high.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
function roundTicks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = [1, 2, 5].map((x) => x * power).find((x) => x >= rough * (1 - 1e-9)) ?? 10 * power;
  const first = Math.floor(low / apart + 1e-9);
  const final = Math.max(first + 1, Math.ceil(high / apart - 1e-9));
  return Array.from({ length: final - first + 1 }, (_, i) => (first + i) * apart);
}

/**
 * @param {LogRow[]} rows
 * @returns {Line[]}
 */
function lossLines(rows) {
  /** @type {(key: "loss" | "valid_loss") => [number, number][]} */
  const points = (key) => rows.filter((row) => Number.isFinite(row[key]))
    .map((row) => [row.step, Number(row[key])]);
  const [training, validation] = [points("loss"), points("valid_loss")];
  return [
    { words: "training", points: training, colour: themeColour("--line"), width: 1.5 },
    { words: "validation", points: validation, colour: themeColour("--mark"), width: 2.5,
      dots: validation.length < 60 },
  ].filter((line) => line.points.length);
}

/** @param {Line[]} lines */
function lossChart(lines) {
  const points = lines.flatMap((line) => line.points);
  const losses = points.map(([, loss]) => loss);
  const steps = Math.max(...points.map(([step]) => step), 1);
  const ticks = roundTicks(Math.min(...losses), Math.max(...losses), 6);
  const digits = Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9));
  const chart = lineChart({
    label: `Loss over ${steps} steps`, size: SIZE, margin: MARGIN, lines, axis: "step", most: steps,
    limits: [ticks[0], last(ticks)],
    xTicks: roundTicks(0, steps, 6).filter((step) => step <= steps)
      .map((step) => [step, formatCount(Math.round(step))]),
    yTicks: ticks.map((loss) => [loss, loss.toFixed(digits)]),
  });
  const mark = s("line", {
    id: "mark", y1: MARGIN.top, y2: SIZE[1] - MARGIN.bottom,
    stroke: themeColour("--ink"), "stroke-width": 1.5, "stroke-dasharray": "4 3",
  });
  chart.svg.append(mark);
  /** Mark a step, or none. @type {(step: number | null) => void} */
  const markStep = (step) => {
    for (const end of ["x1", "x2"]) mark.setAttribute(end, String(chart.x(Math.min(step ?? 0, steps))));
    mark.setAttribute("visibility", step === null ? "hidden" : "visible");
  };
  return { svg: chart.svg, markStep };
}

/**
 * A slider over the checkpoints: the whole page shows the model as it was then.
 * @param {App} app
 * @param {(step: number | null) => void} markStep
 */
function replay({ manifest, source, go }, markStep) {
  const { steps, step } = manifest;
  if (!source.live) {
    if (step === null) return "";
    return h("p", { class: "pale" }, `These are the weights of step ${formatCount(step)}.`);
  }
  if (manifest.film?.length) {
    return h("p", { class: "pale" },
      `The bar above plays the film of this training, ${manifest.film.length} frames, in all views.`);
  }
  if (!steps.length) {
    return h("p", { class: "pale" }, "This run has no checkpoints to replay. Train with --set train.save=50 "
      + "--set train.keep=40 to keep the model of every 50th step.");
  }
  const stops = [...steps, null]; // the last is the model that the page was opened with
  const opened = manifest.training ? "the model when the page was opened" : "the final model";
  const named = (/** @type {number | null} */ at) => (at === null ? opened : `step ${formatCount(at)}`);
  const output = h("output", {}, named(step));
  const chosen = () => stops[Number(slider.value)];
  const slider = h("input", {
    type: "range", id: "replay", min: 0, max: stops.length - 1, step: 1, "aria-valuetext": named(step),
    oninput: () => {
      output.textContent = named(chosen());
      slider.setAttribute("aria-valuetext", named(chosen()));
      markStep(chosen());
    },
    onchange: () => go({ checkpoint: chosen(), cell: null }, { replace: true }),
  });
  slider.value = String(stops.indexOf(step));
  const remark = `${steps.length} checkpoints. All views then show the model as it was at that step. `
    + "train.save sets after how many steps one is saved, train.keep how many are kept.";
  return h("div", { class: "replay" }, h("label", { for: "replay" }, "Replay", output), slider,
    h("p", { class: "pale" }, remark));
}

const SAMPLES = 8; // frames whose answers are listed
/** @type {Map<string, string>} answers by input and step: the weights of a step never change */
const answered = new Map();

/**
 * Frames of a film at about equal distances; of those near by, one that is known.
 * @type {(film: number[], isKnown: (step: number) => boolean) => number[]}
 */
function pickFrames(film, isKnown) {
  const count = Math.min(SAMPLES, film.length);
  const apart = (last(film) - film[0]) / Math.max(1, count - 1);
  const picked = Array.from({ length: count }, (_, i) => {
    const target = film[0] + i * apart;
    const far = (/** @type {number} */ step) =>
      Math.abs(step - target) + (isKnown(step) ? 0 : apart / 3);
    return film.reduce((a, b) => (far(b) < far(a) ? b : a));
  });
  return [...new Set(picked)];
}

/**
 * What the model answers at some frames of its film, asked one after the other.
 * @param {App} app
 */
function answers({ manifest, source, state }) {
  const film = (manifest.film ?? []).map(([step]) => step);
  if (!source.live || !film.length || manifest.model.sees || manifest.input === null) return "";
  const key = (/** @type {number} */ step) => JSON.stringify([manifest.input, step, state.model]);
  const steps = pickFrames(film, (step) => answered.has(key(step)));
  const cells = steps.map((step) => h("td", {}, answered.get(key(step)) ?? "…"));
  const table = h("table", { class: "answers" },
    h("thead", {}, h("tr", {}, h("th", {}, "step"), h("th", {}, "answer"))),
    h("tbody", {}, steps.map((step, i) => h("tr", {}, h("th", {}, formatCount(step)), cells[i]))));
  const fill = async () => {
    for (const [i, step] of steps.entries()) {
      if (!answered.has(key(step))) {
        const { output } = await source.send("ask", { input: manifest.input, checkpoint: step });
        answered.set(key(step), output);
        if (!table.isConnected) return;
      }
      cells[i].textContent = answered.get(key(step)) ?? "";
    }
  };
  setTimeout(() => fill().catch((error) => table.after(alertBox(messageOf(error)))));
  return h("div", {}, h("h3", {}, "Answers while it learned"), table);
}

/**
 * What happened: a learning rate that was changed, a pause, what the training noticed.
 * @param {LogRow[]} log
 */
function notices(log) {
  const rows = log.filter(({ notice }) => notice);
  if (!rows.length) return "";
  return h("div", {}, h("h3", {}, "Notices"), h("ul", { class: "notices" },
    rows.map(({ step, notice }) => h("li", {}, `step ${formatCount(step)}: ${notice}`))));
}

/** @param {Line} line */
function summary({ words, points, colour }) {
  const best = points.reduce((a, b) => (b[1] < a[1] ? b : a));
  const [final, lowest] = [last(points)[1], best[1]].map(formatNumber);
  return h("span", {}, h("i", { class: "swatch", style: { background: colour } }),
    `${words}: last ${final}, lowest ${lowest} at step ${formatCount(best[0])}`);
}

/**
 * Why the validation loss can be the lower one, if it is.
 * @param {Line[]} lines
 */
function lowerNote(lines) {
  const [training, validation] = ["training", "validation"].map((words) =>
    lines.find((line) => line.words === words));
  if (!training || !validation || last(validation.points)[1] >= last(training.points)[1]) return "";
  return h("p", { class: "pale", id: "lower" },
    "The validation loss is below the training loss. That is usual: dropout, label smoothing and changed "
    + "inputs make the task harder in training only, and the training loss was measured while the weights "
    + "were still being improved. The two also come from other examples.");
}

/**
 * While the run is being trained, look now and then how far it is.
 * @type {(root: HTMLElement, app: App, rows: number) => void}
 */
function follow(root, app, rows) {
  const { manifest, source, go } = app;
  if (!source.live || !manifest.training) return;
  setTimeout(async () => {
    if (!root.isConnected) return;
    try {
      const [progress, log] = await Promise.all([source.progress(), source.log()]);
      if (!root.isConnected) return;
      const changed = log.length !== rows || JSON.stringify([progress.steps, progress.training])
        !== JSON.stringify([manifest.steps, manifest.training]);
      Object.assign(manifest, progress);
      if (changed) go({}, { replace: true });
      else follow(root, app, rows);
    } catch (error) {
      root.append(alertBox(messageOf(error)));
    }
  }, POLL);
}

/**
 * When the model learned what it says now: a button, or the answer if it was asked for.
 * @param {App} app
 */
async function learned(app) {
  const { manifest, source, state, go } = app;
  if (!source.live || !manifest.steps.length || !manifest.outputs) return "";
  if (state.learned) return (await import("./learned.js")).showLearned(app);
  const onclick = () => go({ learned: 1 }, { replace: true });
  return h("p", {}, h("button", { type: "button", id: "learned", onclick }, "When did it learn this?"));
}

/** @type {View} */
export const training = {
  async show(root, app) {
    const log = await app.source.log();
    const lines = lossLines(log);
    follow(root, app, log.length);
    if (!lines.length) {
      root.append(h("p", { class: "pale" }, "Nothing is logged yet."));
      return;
    }
    const { svg, markStep } = lossChart(lines);
    markStep(app.manifest.step);
    const cell = (/** @type {number | undefined} */ loss) => (loss === undefined ? "" : formatNumber(loss));
    const head = ["step", "training loss", "validation loss"];
    const rows = () => log.filter(({ notice }) => !notice)
      .map(({ step, loss, valid_loss: valid }) => [step, cell(loss), cell(valid)]);
    app.current = {
      name: "training",
      svg,
      csv: () => ({ head, rows: rows() }),
      python: () => ["import json", "",
        `[json.loads(line) for line in (model.folder / "log.jsonl").read_text().splitlines()]`],
    };
    const remark = `from the run's log.jsonl${app.manifest.training ? "; it is being trained" : ""}`;
    const when = await learned(app);
    root.append(...(app.state.learned ? [when] : []), heading("Loss", remark),
      h("figure", {}, h("div", { class: "scroll" }, svg),
        h("figcaption", {}, h("p", { class: "scale" }, lines.map(summary)), lowerNote(lines))),
      replay(app, markStep), ...(app.state.learned ? [] : [when]), answers(app), notices(log),
      tableTwin("Loss by step", () => ({ head, rows: rows().slice(-TABLE_ROWS) })));
  },
};
