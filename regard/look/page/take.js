/* Take away what was looked at last: a picture, its numbers, the whole page in one file, the Python lines. */

import { h, python, s } from "./dom.js";
import { colour } from "./grid.js";

const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight"];

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** A cell as spreadsheets read it; one that begins like a formula stays text. */
const quoted = (cell) => {
  const text = String(cell).replace("−", "-");
  const safe = /^[=+@\t\r]/.test(text) || (/^-/.test(text) && Number.isNaN(Number(text))) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
};

export const csv = ({ head, rows }) => `${[head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n")}\r\n`;

/** A picture as SVG that needs no style of the page's; a canvas becomes a picture in one. */
function svg({ svg: drawn, canvas, class: name }) {
  const { width, height } = canvas ?? {};
  const picture = typeof drawn === "function" ? drawn() : drawn ?? s("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, s("image", { href: canvas.toDataURL(), width, height }));
  const around = h("div", { class: `unseen ${name ?? ""}`, "aria-hidden": "true" }, picture);
  document.body.append(around);
  const copy = picture.cloneNode(true);
  const [from, to] = [picture, copy].map((root) => root.querySelectorAll("path, rect, text, line, circle, polyline"));
  from.forEach((one, i) => STYLED.forEach((key) => to[i].setAttribute(key, getComputedStyle(one).getPropertyValue(key))));
  around.remove();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  for (const key of ["tabindex", "id"]) copy.removeAttribute(key);
  return { text: new XMLSerializer().serializeToString(copy), width: Number(copy.getAttribute("width")), height: Number(copy.getAttribute("height")) };
}

/** A canvas as it is; a drawing twice as large, on the page's ground. */
async function png(one) {
  let { canvas } = one;
  if (!canvas) {
    const { text, width, height } = svg(one);
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    const image = new Image();
    image.src = address;
    await image.decode();
    canvas = h("canvas", { width: 2 * width, height: 2 * height });
    const pen = canvas.getContext("2d");
    pen.fillStyle = colour("--ground");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(address);
  }
  return new Promise((done) => { canvas.toBlob(done); });
}

export const take = {
  async show(root, app) {
    const { manifest, source, current } = app;
    const named = (one) => one.name.replaceAll(/[^\w-]/g, "-");
    const button = (words, id, onclick) => h("button", { type: "button", id, onclick }, words);
    const row = (one, after = "") => h("div", { class: "row" }, h("span", { class: "pale" }, named(one)),
      one.canvas || one.svg ? [button("PNG", `png${after}`, async () => save(await png(one), `${named(one)}.png`)),
        button("SVG", `svg${after}`, () => save(new Blob([svg(one).text], { type: "image/svg+xml" }), `${named(one)}.svg`))] : null,
      one.csv ? button("CSV", `csv${after}`, () => save(new Blob([csv(one.csv())], { type: "text/csv" }), `${named(one)}.csv`)) : null);
    const file = source.live ? h("div", { class: "row" }, h("span", { class: "pale" }, "everything"), button("This page in one HTML file", "html", async () => save(await source.page(), "regard.html"))) : "";
    const [tensor, head] = current?.tensor ?? [Object.values(manifest.attentions)[0]?.[0] ? `${Object.values(manifest.attentions)[0][0].name}.weights` : "logits"];
    const given = manifest.input === null ? `"picture.png"` : manifest.tokens.written && manifest.answer !== null && manifest.model.task !== "classify" ? `(${python(manifest.input)}, ${python(manifest.answer)})` : python(manifest.input);
    const load = `regard.load(${python(manifest.model.name ?? "RUN")})`;
    const lines = ["import regard", "", `model = ${manifest.step === null ? load : `regard.at_step(${load}, ${manifest.step})`}`, `trace = regard.trace(model, ${given})`,
      ...(current?.python?.(given) ?? [`trace[${python(tensor)}]${head === undefined ? "" : `[${head}]`}  # ${manifest.tensors[tensor].shape.join(" × ")}`])].join("\n");
    const copied = h("span", { class: "right", role: "status" });
    root.append(h("h2", {}, "Take away", h("small", { class: "pale" }, current ? "what you looked at last" : "open a view first to take its picture along")),
      ...(current ? [current, ...(current.more ?? [])].map((one, i) => row(one, i || "")) : []), file,
      h("h3", {}, "The same in Python"), h("pre", { id: "python", tabindex: "0" }, lines),
      button("Copy", "copy", async () => {
        try {
          await navigator.clipboard.writeText(lines);
          copied.textContent = " copied";
        } catch {
          copied.textContent = " not allowed here: choose the lines and copy them";
        }
      }), copied);
  },
};
