/* A number opened: the sum behind it, term by term, computed again here and compared with the model's. */

import { formatNumber, h, last, messageOf } from "./dom.js";
import { drawFormula } from "./formula.js";
import { Cell, tokenName, totalOf } from "./operands.js";
import { operationOf } from "./operations.js";
import { drawTick, fitsModel } from "./tick.js";

/** @typedef {import("./operands.js").Steps} Steps */
/** @typedef {import("./operands.js").Terms} Terms */

const SHOWN = 40; // terms; the rest is added up
/** @type {Record<string, string>} */
const PRECISION = {
  bfloat16: "in bfloat16, which keeps 8 binary digits: right within 1/256 of what was added up",
  float16: "in float16, which keeps 11 binary digits: right within 1/2048 of what was added up",
  int8: "of inputs rounded to 8 bits: right within 1/64 of what was added up",
  int4: "of inputs rounded to bfloat16 or 8 bits: right within 1/64 of what was added up",
};

/**
 * A panel for the number that the address names as "name:head,row,column".
 * @param {Pick<App, "source" | "manifest" | "go">} app
 * @param {string} address
 * @param {(shown: Steps | Terms, result: number) => void} [onSum] is told what is added up
 */
export async function openCell(app, address, onSum) {
  const colon = address.lastIndexOf(":");
  const [name, at] = [address.slice(0, colon), address.slice(colon + 1).split(",").map(Number)];
  const root = panel(app);
  if (!exists(app.manifest.tensors[name], at)) {
    root.append(h("p", {}, "There is no such number."));
    return root;
  }
  const cell = new Cell(app, name, at);
  const sum = app.manifest.sums[name];
  const { title, formula } = app.manifest.texts[name];
  root.append(h("h3", {}, title, " ", h("span", { class: "pale" }, placeWords(cell))),
    h("p", { class: "name" }, name));
  try {
    const { value } = await cell.one(name);
    if (!sum) {
      root.append(h("p", {}, "This layer is not opened further."),
        h("p", { class: "total" }, `= ${formatNumber(value)}`));
      return root;
    }
    if (formula) root.append(h("div", { class: "formula" }, drawFormula(formula)));
    root.append(...await sumParts(app, cell, sum, value, onSum));
  } catch (error) {
    root.append(h("p", { class: "pale" }, messageOf(error)));
  }
  return root;
}

/** @param {Pick<App, "go">} app */
function panel({ go }) {
  const close = () => {
    go({ cell: null }, { replace: true });
    /** @type {HTMLElement | null} */ (document.querySelector("main canvas, main [tabindex]"))?.focus();
  };
  const onkeydown = (/** @type {KeyboardEvent} */ event) => (event.key === "Escape" ? close() : null);
  const label = "How this number was computed";
  return h("aside", { class: "cell", "aria-label": label, tabindex: "-1", onkeydown },
    h("button", { type: "button", class: "close", "aria-label": "Close", id: "close", onclick: close }, "×"));
}

/** @type {(tensor: TensorInfo | undefined, at: number[]) => boolean} */
function exists(tensor, at) {
  if (!tensor || at.length !== 3 || !at.every(Number.isInteger)) return false;
  const { shape } = tensor;
  const tall = shape.length > 1 ? shape[shape.length - 2] : 1;
  return at[1] >= 0 && at[2] >= 0 && at[1] < tall && at[2] < last(shape);
}

/** @param {Cell} cell */
function placeWords(cell) {
  const head = cell.shape.length > 2 ? [`head ${cell.head}`] : [];
  const row = tokenName(cell.tokens(cell.name), cell.row);
  return [...head, row, tokenName(cell.tokens(cell.name, "columns"), cell.column)].join(", ");
}

/**
 * The numbers that go into a cell, their result, and whether it is the model's.
 * @param {Pick<App, "manifest" | "go">} app
 * @param {Cell} cell
 * @param {Sum} sum
 * @param {number} value what the model computed
 * @param {(shown: Steps | Terms, result: number) => void} [onSum]
 */
async function sumParts(app, cell, sum, value, onSum) {
  const operation = operationOf(sum);
  if (!operation) return [h("p", { class: "pale" }, `This page does not know the operation “${sum.does}”.`)];
  const values = await operation.operands(cell, sum);
  const result = operation.evaluate(values, sum, cell);
  const shown = operation.show(values, sum, cell);
  onSum?.(shown, result);
  const parts = ["steps" in shown ? stepsTable(app, shown) : termsTable(app, shown)];
  if ("divisor" in shown && shown.divisor) {
    parts.push(h("p", { class: "pale" }, `Each is divided by their sum, ${formatNumber(shown.divisor)}.`));
  }
  if ("note" in shown && shown.note) parts.push(h("p", { class: "pale" }, shown.note));
  const fits = fitsModel(app.manifest, result, value, magnitude(shown));
  const isSum = "terms" in shown && !shown.divisor;
  if (!fits && app.manifest.base) { // What if has put another number here
    return [...parts, h("p", { class: "total" }, `= ${formatNumber(result)} `,
      h("span", { class: "tick", "data-fits": "changed" }, `changed to ${formatNumber(value)}`))];
  }
  const precision = PRECISION[app.manifest.model.dtype];
  parts.push(h("p", { class: "total" }, isSum ? `Sum of ${shown.terms.length} = ` : "= ",
    h("b", {}, formatNumber(result)), " ", drawTick(fits),
    h("span", { class: "pale" }, ` the model computed ${formatNumber(value)}${
      precision ? `, ${precision}` : ""}`)));
  return parts;
}

/**
 * The size of what was added up, which rounding errors grow with.
 * @param {Steps | Terms} shown
 */
function magnitude(shown) {
  if (shown.size) return shown.size;
  if ("steps" in shown) return Math.max(...shown.steps.map(([, value]) => Math.abs(value)));
  return shown.terms.reduce((sum, { value }) => sum + Math.abs(value), 0);
}

/**
 * A cell of a table with a number; if it can be opened, as a button.
 * @param {Pick<App, "manifest" | "go">} app
 * @param {number} value
 * @param {string | null | undefined} link
 */
function numberCell({ manifest, go }, value, link) {
  const opens = link && manifest.tensors[link.slice(0, link.lastIndexOf(":"))];
  const onclick = () => go({ cell: link });
  const text = formatNumber(value);
  return h("td", {}, opens
    ? h("button", { type: "button", class: "deeper", title: "open this number", onclick }, text) : text);
}

/** @type {(app: Pick<App, "manifest" | "go">, shown: Steps) => HTMLElement} */
const stepsTable = (app, { steps }) => h("table", {}, h("tbody", {}, steps.map(([words, value, link]) =>
  h("tr", {}, h("th", { scope: "row" }, words), numberCell(app, value, link)))));

/** @type {(app: Pick<App, "manifest" | "go">, shown: Terms) => HTMLElement} */
function termsTable(app, { head, terms, last: lastTitle = "term" }) {
  const sorted = [...terms].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const rest = sorted.slice(SHOWN);
  const rows = sorted.slice(0, SHOWN).map((term) => h("tr", { class: term.chosen ? "chosen" : null },
    h("th", { scope: "row" }, String(term.name)),
    term.parts.map(({ value, link }) => numberCell(app, value, link)),
    h("td", {}, formatNumber(term.value))));
  if (rest.length) {
    rows.push(h("tr", {}, h("th", { scope: "row", colspan: head.length }, `${rest.length} smaller ones`),
      h("td", {}, formatNumber(totalOf(rest)))));
  }
  return h("div", { class: "scroll", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, [...head, lastTitle].map((word) => h("th", { scope: "col" }, word)))),
    h("tbody", {}, rows)));
}
