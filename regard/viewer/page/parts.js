/* Which part said this: what the embedding, each head and each feed-forward layer add to a token's logit. */

import { themeColour } from "./colour.js";
import {
  formatNumber, formatWeight, h, label, messageOf, range, s, stepMenu, svgRoot, tableTwin,
} from "./dom.js";
import { sideOf } from "./scene_data.js";
import { chipWords } from "./scene_layout.js";
import { attentionParts } from "./selection.js";
import { drawTick, fitsModel } from "./tick.js";

const SHOWN = 20; // bars; the rest is added up
const WORDS = 12;

/** @typedef {{ words: string, id: string, value: number, go: StateChanges | null }} Bar */

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {number} row of the logits
 * @param {[ids: number[], words: string[]]} likely the tokens to choose from
 */
export async function showParts(root, app, row, [ids, words]) {
  const { outputs } = app.manifest;
  if (outputs?.unsplit) {
    root.append(h("p", { class: "note" }, capital(`${outputs.unsplit}.`)));
    return;
  }
  const said = ids.find((id) => id === Number(app.state.said)) ?? ids[0];
  const word = words[ids.indexOf(said)];
  const menu = ids.map((id, i) => /** @type {[number, string]} */ ([id, `“${label(words[i])}”`]));
  const kind = outputs?.kind === "classes" ? "class" : "token";
  root.append(h("div", { class: "controls" }, stepMenu(kind, "said", menu, said,
    (to) => app.go({ said: to }, { replace: true }))));
  /** @type {Attribution} */
  let found;
  try {
    found = await app.source.attribution(row, said);
  } catch (error) {
    root.append(h("p", { class: "note" }, messageOf(error)));
    return;
  }
  const bars = found.parts.map((part) => describePart(app, part, row))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const title = `Which part said “${label(word)}”`;
  const csv = () => ({
    head: ["part", "adds to the logit"], rows: bars.map((bar) => [bar.words, formatNumber(bar.value)]),
  });
  const python = (/** @type {string} */ input) =>
    [`regard.attribute(model, ${input}, token=${said}, row=${row})["parts"]`];
  app.current = { name: "parts", csv, python, svg: () => drawBars(title, bars) };
  const remark = "what each part adds to its logit; what it does by way of later parts counts as theirs";
  root.append(h("div", { class: "parts panels" },
    h("div", {}, h("h2", {}, title, h("small", { class: "pale" }, remark)),
      barGrid(app, shorten(bars)), totalLine(app, found), tableTwin(title, csv)), wordBars(app, found)));
}

/** @param {string} words */
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** @type {(bars: Bar[]) => Bar[]} */
function shorten(bars) {
  const rest = bars.slice(SHOWN);
  if (rest.length < 2) return bars;
  const value = rest.reduce((sum, bar) => sum + bar.value, 0);
  return [...bars.slice(0, SHOWN), { words: `${rest.length} others`, id: "others", value, go: null }];
}

/**
 * What a part is called, and where it is seen.
 * @type {(app: App, part: Contribution, row: number) => Bar}
 */
function describePart({ manifest }, { name, head, value }, row) {
  const { attentions, texts, tensors } = manifest;
  const id = `part-${name}${head === null ? "" : `-${head}`}`;
  const layer = name.match(/(?:^|\.)(\d+)\./)?.[1];
  if (head !== null) {
    const part = attentionParts(manifest).find((one) => attentions[one]?.some((a) => a.name === name));
    const cross = name.endsWith(".cross") ? " (cross)" : "";
    const go = part ? { view: "look", part, layer, head, token: row, depth: null, cell: null } : null;
    return { words: `layer ${layer}, head ${head}${cross}`, id, value, go };
  }
  const words = name === "bias" ? "biases" : name.startsWith("@first") ? "class token"
    : layer !== undefined && name.includes(".ffn") ? `layer ${layer}, feed-forward`
      : (texts[name]?.title ?? name).toLowerCase();
  return { words, id, value, go: tensors[name] ? { view: "walk", step: name, cell: null, at: null } : null };
}

/** @type {(app: App, bars: Bar[]) => HTMLElement} */
function barGrid(app, bars) {
  const peak = Math.max(...bars.map(({ value }) => Math.abs(value)), 1e-30);
  return h("div", { class: "bars signed" }, bars.flatMap(({ words, id, value, go }) => [
    go ? h("button", { type: "button", id, title: "see this part", onclick: () => app.go(go) }, words)
      : h("span", { class: "word" }, words),
    h("div", { class: "share", "aria-hidden": "true" }, h("i", {
      class: value < 0 ? "minus" : null,
      style: { width: `${(50 * Math.abs(value)) / peak}%`, [value < 0 ? "right" : "left"]: "50%" },
    })),
    h("span", { class: "exact" }, formatNumber(value))]));
}

/** @type {(app: App, found: Attribution) => HTMLElement} */
function totalLine({ manifest }, { parts, logit }) {
  const total = parts.reduce((sum, { value }) => sum + value, 0);
  const size = parts.reduce((sum, { value }) => sum + Math.abs(value), 0);
  return h("p", { class: "total" }, `Sum of ${parts.length} parts = `, h("b", {}, formatNumber(total)), " ",
    drawTick(fitsModel(manifest, total, logit, size)),
    h("span", { class: "pale" }, ` the model's logit is ${formatNumber(logit)}`));
}

/**
 * The words from which heads read what they added.
 * @type {(app: App, found: Attribution) => HTMLElement | null}
 */
function wordBars(app, { words }) {
  const { manifest } = app;
  const bars = Object.entries(words).flatMap(([side, values]) => values.map((value, i) => ({
    words: manifest.grid && side !== "target" ? chipWords(sideOf(manifest, side), i)
      : `${i} ${label(manifest.tokens[side][i])}`,
    id: `word-${side}-${i}`, value, go: null,
  })));
  if (bars.length < 2) return null;
  const best = bars.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, WORDS);
  const rest = bars.length > WORDS ? `the ${WORDS} that matter most` : "by size";
  return h("div", { id: "read-from" }, h("h2", {}, "Which token it was read from",
    h("small", { class: "pale" }, `what all heads together read there; ${rest}`)), barGrid(app, best));
}

/** @type {(title: string, bars: Bar[]) => SVGSVGElement} */
function drawBars(title, bars) {
  const [left, wide, high] = [190, 420, 22];
  const peak = Math.max(...bars.map(({ value }) => Math.abs(value)), 1e-30);
  const middle = left + wide / 2;
  /** @type {(x: number, y: number, words: string, more?: Attributes) => SVGTextElement} */
  const text = (x, y, words, more) => s("text", {
    x, y, "dominant-baseline": "central", "font-size": 13, fill: themeColour("--ink"), ...more,
  }, words);
  return svgRoot(left + wide + 90, 34 + high * bars.length, {}, text(10, 14, title),
    range(bars.length).map((i) => {
      const { words, value } = bars[i];
      const [y, width] = [34 + high * i, (wide / 2) * (Math.abs(value) / peak)];
      return [text(left - 10, y + 8, words, { "text-anchor": "end" }), s("rect", {
        x: value < 0 ? middle - width : middle, y, width, height: 15,
        fill: themeColour(value < 0 ? "--mark" : "--line"),
      }), text(left + wide + 8, y + 8, formatWeight(value))];
    }));
}
