/* Take away what was looked at last: a picture, its numbers, the whole page in one file, the Python lines. */

import { h } from "./dom.js";

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

/** A string as Python writes it. */
const python = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const take = {
  async show(root, app) {
    const { manifest, source, current } = app;
    const name = (current?.name ?? "regard").replaceAll(/[^\w-]/g, "-");
    const button = (words, id, onclick) => h("button", { type: "button", id, onclick }, words);
    const row = h("div", { class: "row" });
    if (current?.canvas) row.append(button("PNG", "png", () => current.canvas.toBlob((blob) => save(blob, `${name}.png`))));
    if (current?.svg) row.append(button("SVG", "svg", () => {
      const copy = current.svg.cloneNode(true);
      copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      save(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }), `${name}.svg`);
    }));
    if (current?.csv) row.append(button("CSV", "csv", () => save(new Blob([csv(current.csv())], { type: "text/csv" }), `${name}.csv`)));
    if (source.live) row.append(button("This page in one HTML file", "html", async () => save(await source.page(), "regard.html")));
    const [tensor, head] = current?.tensor ?? [Object.values(manifest.attentions)[0]?.[0] ? `${Object.values(manifest.attentions)[0][0].name}.weights` : "logits"];
    const given = manifest.input === null ? `"picture.png"` : manifest.tokens.written && manifest.answer !== null && manifest.model.task !== "classify" ? `(${python(manifest.input)}, ${python(manifest.answer)})` : python(manifest.input);
    const lines = ["import regard", "", `model = regard.load(${python(manifest.model.name ?? "RUN")})`, `trace = regard.trace(model, ${given})`,
      `trace[${python(tensor)}]${head === undefined ? "" : `[${head}]`}  # ${manifest.tensors[tensor].shape.join(" × ")}`].join("\n");
    const copied = h("span", { class: "right", role: "status" });
    root.append(h("h2", {}, "Take away", h("small", { class: "pale" }, current ? `what you looked at last: ${name}` : "open a view first to take its picture along")), row,
      h("h3", {}, "The same in Python"), h("pre", { id: "python", tabindex: "0" }, lines),
      button("Copy", "copy", async () => {
        await navigator.clipboard.writeText(lines);
        copied.textContent = " copied";
      }), copied);
  },
};
