/* Take away what was looked at last: an image, its numbers, the page as one file, the lines of Python. */

import { changeLines } from "./changes.js";
import { penOf, themeColour } from "./colour.js";
import { h, pythonString, s, svgRoot } from "./dom.js";
import { inputLiteral, loadLines } from "./python.js";
import { sceneDrawing } from "./scene_svg.js";
import { allAttentions, heading, readChanges } from "./selection.js";
import { fromBase64 } from "./source.js";

const PNG_SIDE = 2000; // pixels of the longer side, at least
const PNG_MOST = 8000; // and at most
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight"];

/** @type {(blob: Blob | null, name: string) => void} */
function save(blob, name) {
  if (!blob) return;
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/**
 * A cell as spreadsheets read it; one that begins like a formula stays text.
 * @param {string | number} cell
 */
function quote(cell) {
  const text = String(cell).replace("−", "-");
  const isFormula = /^[=+@\t\r]/.test(text) || (/^-/.test(text) && Number.isNaN(Number(text)));
  return `"${(isFormula ? `'${text}` : text).replaceAll('"', '""')}"`;
}

/** @param {TableData} data */
const toCsv = ({ head, rows }) =>
  `${[head, ...rows].map((row) => row.map(quote).join(",")).join("\r\n")}\r\n`;

/** @type {(output: Output) => SVGSVGElement} */
function drawingOf({ svg, canvas }) {
  if (svg) return typeof svg === "function" ? svg() : svg;
  const { width, height } = /** @type {HTMLCanvasElement} */ (canvas);
  return svgRoot(width, height, {}, s("image", { href: canvas?.toDataURL(), width, height }));
}

/**
 * SVG that needs no style sheet; a canvas becomes an image in it.
 * @param {Output} output
 */
function toSvg(output) {
  const drawing = drawingOf(output);
  const around = h("div", { class: `unseen ${output.class ?? ""}`, "aria-hidden": "true" }, drawing);
  document.body.append(around);
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const shapes = "path, rect, text, line, circle, polyline";
  const [from, to] = [drawing.querySelectorAll(shapes), copy.querySelectorAll(shapes)];
  from.forEach((shape, i) => STYLES.forEach((key) =>
    to[i].setAttribute(key, getComputedStyle(shape).getPropertyValue(key))));
  around.remove();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(s("rect", { width: "100%", height: "100%", fill: themeColour("--ground") }));
  for (const key of ["tabindex", "id"]) copy.removeAttribute(key);
  const [width, height] = ["width", "height"].map((key) => Number(copy.getAttribute(key)));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

/**
 * How many times larger an image of this size is taken away: as large as slides need it.
 * @type {(width: number, height: number) => number}
 */
function enlargement(width, height) {
  const side = Math.max(width, height, 1);
  return Math.min(Math.max(2, PNG_SIDE / side), Math.max(1, PNG_MOST / side));
}

/**
 * A drawing or a canvas, large, on the background of the page.
 * @param {Output} output
 * @returns {Promise<Blob | null>}
 */
async function toPng(output) {
  const { svg, canvas, enlarge } = output;
  /** @type {HTMLImageElement | HTMLCanvasElement} */
  let image = canvas ?? new Image();
  let [width, height] = [image.width, image.height];
  if (svg || !canvas) {
    const drawing = toSvg(output);
    ({ width, height } = drawing);
    const address = URL.createObjectURL(new Blob([drawing.text], { type: "image/svg+xml" }));
    image = new Image();
    image.src = address;
    await image.decode();
    URL.revokeObjectURL(address);
  }
  const scale = enlargement(width, height);
  if (!svg && enlarge) image = enlarge(scale);
  const large = h("canvas", { width: Math.round(scale * width), height: Math.round(scale * height) });
  const pen = penOf(large);
  pen.fillStyle = themeColour("--ground");
  pen.fillRect(0, 0, large.width, large.height);
  pen.imageSmoothingEnabled = false; // the pixels of a picture stay squares
  pen.drawImage(image, 0, 0, large.width, large.height);
  // at once: toBlob waits until the browser is idle, for seconds where it draws no frames
  const [, data] = large.toDataURL("image/png").split(",");
  return new Blob([fromBase64(data)], { type: "image/png" });
}

/** @type {(words: string, id: string, onclick: () => void) => HTMLElement} */
const button = (words, id, onclick) => h("button", { type: "button", id, onclick }, words);

/**
 * One thing to take away; `number` tells its buttons from those of others.
 * @param {Output} output
 * @param {number} number
 */
function outputRow(output, number) {
  const name = output.name.replaceAll(/[^\w-]/g, "-");
  const after = number || "";
  const { canvas, svg, csv } = output;
  return h("div", { class: "row" }, h("span", { class: "pale" }, name),
    canvas || svg ? [
      button("PNG", `png${after}`, async () => save(await toPng(output), `${name}.png`)),
      button("SVG", `svg${after}`, () =>
        save(new Blob([toSvg(output).text], { type: "image/svg+xml" }), `${name}.svg`))] : null,
    csv ? button("CSV", `csv${after}`, () =>
      save(new Blob([toCsv(csv())], { type: "text/csv" }), `${name}.csv`)) : null);
}

/** @param {App} app */
function pythonLines({ manifest, current, state }) {
  const input = inputLiteral(manifest);
  const carried = manifest.base && current?.name !== "what-if";
  const changes = carried ? changeLines(manifest, readChanges(state), input) : [];
  const traced = changes.length ? [...changes.slice(0, -2), "trace = changed"]
    : [`trace = regard.trace(model, ${input})`];
  const lines = [...loadLines(manifest), ...traced];
  if (current?.python) return [...lines, ...current.python(input)].join("\n");
  const first = allAttentions(manifest)[0];
  const [tensor, head] = current?.tensor ?? [first ? `${first.name}.weights` : "logits"];
  const shape = manifest.tensors[tensor].shape.join(" × ");
  const index = head === undefined ? "" : `[${head}]`;
  return [...lines, `trace[${pythonString(tensor)}]${index}  # ${shape}`].join("\n");
}

/** @type {View} */
export const take = {
  show(root, app) {
    const { source, current } = app;
    if (current?.layer) { // as it is seen now, before this view takes its place
      current.svg = sceneDrawing(current.layer);
      delete current.layer;
    }
    const outputs = current ? [current, ...(current.more ?? [])] : [];
    const lines = pythonLines(app);
    const copied = h("span", { class: "right", role: "status" });
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(lines);
        copied.textContent = " copied";
      } catch {
        copied.textContent = " not allowed here: select the lines and copy them";
      }
    };
    const page = source.live ? h("div", { class: "row" }, h("span", { class: "pale" }, "everything"),
      button("This page in one HTML file", "html",
        async () => save(await source.page(), "regard.html"))) : "";
    const remark = current ? "what you looked at last" : "open a view first to take its image";
    root.append(heading("Take away", remark), ...outputs.map(outputRow), page,
      h("h3", {}, "The same in Python"), h("pre", { id: "python", tabindex: "0" }, lines),
      button("Copy", "copy", copy), copied);
  },
};
