/* The model as a diagram, drawn from the trace itself; a box opens its first step. */

import { h, s, table, twin } from "./dom.js";

const [WIDE, HIGH, GAP, PAD] = [236, 38, 28, 18];
const APART = 110; // between two columns

const shaped = (shape) => shape.join(" × ");

export const map = {
  async show(root, app) {
    const { columns, model } = { columns: app.manifest.graph, model: app.manifest.model };
    const deep = Math.max(...columns.map((column) => column.boxes.length));
    const width = columns.length * (WIDE + APART) + 2 * PAD;
    const height = deep * (HIGH + GAP) + 2 * PAD + 34;
    const places = new Map();
    const parts = [];
    columns.forEach((column, c) => {
      const x = PAD + c * (WIDE + APART);
      if (columns.length > 1) parts.push(s("text", { x, y: PAD + 6, class: "small" }, column.title));
      let group = null;
      const close = (y) => {
        if (group) {
          parts.push(s("rect", { class: "group", x: x - 10, y: group.y - 8, width: WIDE + 20, height: y - group.y + 10, rx: 10 }),
            s("text", { class: "block", x: x + WIDE + 16, y: group.y + 6 }, group.name));
        }
      };
      column.boxes.forEach((box, b) => {
        const y = PAD + 24 + b * (HIGH + GAP);
        if (box.group !== group?.name) {
          close(y - GAP - 2);
          group = box.group ? { name: box.group, y } : null;
        }
        places.set(box.name, [x, y]);
        if (b > 0) {
          parts.push(s("path", { d: `M${x + WIDE / 2},${y - GAP} V${y - 2}`, "marker-end": "url(#tip)" }));
          parts.push(s("text", { x: x + WIDE / 2 + 8, y: y - GAP / 2 + 2, class: "small" }, shaped(column.boxes[b - 1].shape)));
        }
        const open = () => app.go({ view: "walk", step: box.name, cell: null, at: null });
        parts.push(s("g", {
          class: "box", tabindex: "0", role: "link", id: `box-${box.name}`,
          "aria-label": `${box.title}${box.group ? `, ${box.group}` : ""}, ${shaped(box.shape)}: walk through it`,
          onclick: open,
          onkeydown: (event) => {
            if (event.key !== "Enter" && event.key !== " ") return;
            event.preventDefault();
            open();
          },
        }, s("rect", { x, y, width: WIDE, height: HIGH, rx: 7 }),
        s("text", { x: x + 14, y: y + HIGH / 2 + 4.5 }, box.title),
        box.note ? s("text", { x: x + WIDE - 12, y: y + HIGH / 2 + 4, class: "small", "text-anchor": "end" }, box.note) : null));
        if (b === column.boxes.length - 1) {
          close(y + HIGH - 2);
          parts.push(s("text", { x: x + WIDE / 2, y: y + HIGH + 20, class: "small", "text-anchor": "middle" }, shaped(box.shape)));
        }
      });
    });
    // What one column hands to another.
    for (const column of columns) {
      for (const box of column.boxes) {
        const from = places.get(box.from);
        if (!from) continue;
        const [x, y] = places.get(box.name);
        const bend = x - 36;
        parts.push(s("path", { d: `M${from[0] + WIDE},${from[1] + HIGH / 2} H${bend} V${y + HIGH / 2} H${x - 2}`, "marker-end": "url(#tip)" }));
      }
    }
    const picture = s("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `The parts of this ${model.class}`,
      "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif",
    }, s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      s("path", { d: "M0,0 L8,4 L0,8 z" }))), parts);
    const rows = columns.flatMap((column) => column.boxes.map((box) => [box.title, box.group ?? "", shaped(box.shape), box.name]));
    const head = ["part", "in", "shape of what comes out", "name"];
    app.current = { name: "map", class: "map", python: () => ["trace.names"], svg: picture, csv: () => ({ head, rows }) };
    root.append(h("h2", {}, model.class, h("small", { class: "pale" }, "tokens × width on every edge; a box opens its numbers")),
      h("figure", {}, h("div", { class: "scroll" }, picture), twin(() => table("The parts of this model", head, rows))));
  },
};
