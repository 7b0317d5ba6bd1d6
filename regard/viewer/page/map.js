/* The model as a diagram, drawn from the trace itself; a box opens its first step. */

import { h, onKeys, s, svgRoot, tableTwin } from "./dom.js";
import { allAttentions, heading, selectHead } from "./selection.js";

const [WIDTH, HEIGHT, GAP, PAD] = [236, 38, 28, 18]; // of boxes
const BETWEEN = 110; // two columns
const FIRST = PAD + 24; // the top of the first box

/** @param {number[]} shape */
const shapeWords = (shape) => shape.join(" × ");
/** @param {number} column */
const leftOf = (column) => PAD + column * (WIDTH + BETWEEN);
/** @param {number} box */
const topOf = (box) => FIRST + box * (HEIGHT + GAP);

/** @type {View} */
export const map = {
  show(root, app) {
    const { graph, model } = app.manifest;
    const deepest = Math.max(...graph.map(({ boxes }) => boxes.length));
    const tip = s("marker", {
      id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
    }, s("path", { d: "M0,0 L8,4 L0,8 z" }));
    const width = graph.length * (WIDTH + BETWEEN) + 2 * PAD;
    const drawing = svgRoot(width, deepest * (HEIGHT + GAP) + 2 * PAD + 34,
      { role: "group", "aria-label": `The parts of this ${model.class}` },
      s("defs", {}, tip),
      graph.map((column, c) => drawColumn(app, column, c, graph.length > 1)), crossings(graph));
    const data = {
      head: ["part", "in", "shape of its output", "name"],
      rows: graph.flatMap(({ boxes }) => boxes.map((box) =>
        [box.title, box.group ?? "", shapeWords(box.shape), box.name])),
    };
    app.current = {
      name: "map", class: "map", python: () => ["trace.names"], svg: drawing, csv: () => data,
    };
    root.append(heading(model.class, "tokens × width on every edge; a box opens its numbers"),
      h("figure", {}, h("div", { class: "scroll" }, drawing),
        tableTwin("The parts of this model", () => data)));
  },
};

/** @type {(app: App, column: GraphColumn, c: number, titled: boolean) => Child} */
function drawColumn(app, { title, boxes }, c, titled) {
  const x = leftOf(c);
  const middle = x + WIDTH / 2;
  const parts = boxes.map((box, b) => {
    const y = topOf(b);
    return [b > 0 ? [
      s("path", { d: `M${middle},${y - GAP} V${y - 2}`, "marker-end": "url(#tip)" }),
      s("text", { x: middle + 8, y: y - GAP / 2 + 2, class: "small" }, shapeWords(boxes[b - 1].shape)),
    ] : null, drawBox(app, box, x, y)];
  });
  const below = topOf(boxes.length - 1) + HEIGHT + 20;
  const end = { x: middle, y: below, class: "small", "text-anchor": "middle" };
  return [titled ? s("text", { x, y: PAD + 6, class: "small" }, title) : null, frames(boxes, x), parts,
    boxes.length ? s("text", end, shapeWords(boxes[boxes.length - 1].shape)) : null];
}

/**
 * A frame around the boxes of each block.
 * @type {(boxes: GraphBox[], x: number) => Child}
 */
function frames(boxes, x) {
  return boxes.map(({ group }, first) => {
    if (!group || boxes[first - 1]?.group === group) return null;
    const after = boxes.findIndex((box, b) => b > first && box.group !== group);
    const lastBox = (after < 0 ? boxes.length : after) - 1;
    const top = topOf(first);
    const height = topOf(lastBox) + HEIGHT - top + 8;
    return [
      s("rect", { class: "group", x: x - 10, y: top - 8, width: WIDTH + 20, height, rx: 10 }),
      s("text", { class: "block", x: x + WIDTH + 16, y: top + 6 }, group)];
  });
}

/** @type {(app: App, box: GraphBox, x: number, y: number) => SVGElement} */
function drawBox(app, box, x, y) {
  const open = () => app.go({ view: "walk", step: box.name, cell: null, at: null });
  const inside = box.group ? `, ${box.group}` : "";
  const selected = allAttentions(app.manifest).length ? selectHead(app).attention.name : null;
  const isHere = selected !== null && box.name.startsWith(`${selected}.`);
  return s("g", {
    class: isHere ? "box here" : "box", "aria-current": isHere ? "true" : null,
    tabindex: "0", role: "link", id: `box-${box.name}`,
    "aria-label": `${box.title}${inside}, ${shapeWords(box.shape)}: walk through it`,
    onclick: open, onkeydown: onKeys({ Enter: open, " ": open }),
  },
  s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 7 }),
  s("text", { x: x + 14, y: y + HEIGHT / 2 + 4.5 }, box.title),
  box.note ? s("text", {
    x: x + WIDTH - 12, y: y + HEIGHT / 2 + 4, class: "small", "text-anchor": "end",
  }, box.note) : null);
}

/**
 * What one column passes to another.
 * @type {(graph: GraphColumn[]) => Child}
 */
function crossings(graph) {
  /** @type {Map<string, [x: number, y: number]>} */
  const places = new Map(graph.flatMap(({ boxes }, c) =>
    boxes.map((box, b) => [box.name, [leftOf(c), topOf(b)]])));
  return graph.flatMap(({ boxes }) => boxes).map((box) => {
    const [from, to] = [places.get(box.from ?? ""), places.get(box.name)];
    if (!from || !to) return null;
    const [y, bend] = [to[1] + HEIGHT / 2, to[0] - 36];
    const d = `M${from[0] + WIDTH},${from[1] + HEIGHT / 2} H${bend} V${y} H${to[0] - 2}`;
    return s("path", { d, "marker-end": "url(#tip)" });
  });
}
