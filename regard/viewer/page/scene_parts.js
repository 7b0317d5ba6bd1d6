/* The other parts of the model, the picture that it sees, and its answer. */

import { penOf } from "./colour.js";
import { formatPercent, h, label, last, range } from "./dom.js";
import { nameToken, quote } from "./describe.js";
import { GAP, SLAB, foldItems, place } from "./scene_layout.js";
import { canChange, readChanges } from "./selection.js";
import { rove, tokenChanges } from "./strip.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_layout.js").Box} Box */
/** @typedef {import("./scene_layout.js").Plan} Plan */
/** @typedef {import("./scene_layout.js").Slab} Slab */

/**
 * The other parts of the model, before and after the open block.
 * @type {(app: App, plan: Plan) => HTMLElement[]}
 */
export function slabs(app, plan) {
  const { before, after, beforeX, card, innerBefore, innerAfter, queryX, queryWidth, top, bottom } = plan;
  const tall = { y: 14, height: bottom - 6, width: SLAB };
  const inside = { y: top - 8, height: bottom - top, width: SLAB - 2 };
  const { column } = plan.scene.items[plan.scene.open];
  const boxSlab = (/** @type {GraphBox} */ box) => h("button", {
    type: "button", class: "slab inner", id: `slab-${box.name}`, ...outputOf(app, [box], column),
    title: `${box.title}: ${[...(box.note ? [box.note] : []), box.shape.join(" × ")].join(", ")}`,
    onclick: () => selectBox(app, plan, box),
  }, h("span", {}, box.title));
  return [
    ...before.map((item, n) => place(itemSlab(app, plan, item), { x: beforeX + n * (SLAB + GAP), ...tall })),
    ...innerBefore.map((box, n) => place(boxSlab(box), { x: card.x + 10 + n * (SLAB + GAP), ...inside })),
    ...innerAfter.map((box, n) =>
      place(boxSlab(box), { x: queryX + queryWidth + 10 + n * (SLAB + GAP), ...inside })),
    ...after.map((item, n) =>
      place(itemSlab(app, plan, item), { x: card.x + card.width + GAP + n * (SLAB + GAP), ...tall })),
  ];
}

/**
 * What leaves a part of the model: the last tensor of its last box, which has a row for each token.
 * @type {(app: App, boxes: GraphBox[], column: string) => Attributes}
 */
function outputOf({ manifest }, boxes, column) {
  const { name, group, shape } = last(boxes);
  if (manifest.outputs && ["logits", "probabilities"].includes(name)) return {}; // not of a token
  const part = name.slice(0, name.lastIndexOf(".") + 1);
  const inside = group ? Object.keys(manifest.tensors).filter((one) => one.startsWith(part)
    && String(manifest.tensors[one].shape) === String(shape)) : [];
  return { "data-tensor": inside[inside.length - 1] ?? name, "data-reads": column === "reads" ? "1" : null };
}

/**
 * Select the attention of a box, or open the step that it begins with.
 * @type {(app: App, plan: Plan, box: GraphBox) => void}
 */
function selectBox(app, plan, box) {
  const { manifest, go } = app;
  for (const [part, layers] of Object.entries(manifest.attentions)) {
    const found = layers.find(({ name }) => box.name.startsWith(`${name}.`));
    if (found) return go({ part, layer: found.layer, cell: null, at: null }, { replace: true });
  }
  const { title, layer } = plan.scene.items[plan.scene.open];
  const inside = box.group === title && layer !== null;
  return go(inside ? { depth: "block" } : { view: "walk", step: box.name });
}

/** @type {(app: App, plan: Plan, item: Slab) => HTMLElement} */
function itemSlab(app, plan, item) {
  const times = item.times > 1 ? h("b", {}, `× ${item.times}`) : null;
  const words = item.layer === null ? item.title : `${item.column ? `${item.column} · ` : ""}${item.title}`;
  const box = item.boxes.find(({ title }) => /attention/i.test(title)) ?? item.boxes[0];
  return h("button", {
    type: "button", class: `slab${item.layer === null ? "" : " block"}`, id: `slab-${item.boxes[0].name}`,
    title: `${words}: ${item.boxes[0].shape.join(" × ")}`, ...outputOf(app, item.boxes, item.column),
    onclick: () => selectBox(app, plan, box),
  }, h("span", {}, words), times);
}

/**
 * On a narrow screen the other parts stand in a row.
 * @type {(app: App, plan: Plan) => HTMLElement}
 */
export function rail(app, plan) {
  const { items, open } = plan.scene;
  const folded = [...foldItems(items.slice(0, open)), null, ...foldItems(items.slice(open + 1))];
  const list = h("div", { class: "rail", role: "group", "aria-label": "Parts of the model" },
    folded.map((item) => (item ? itemSlab(app, plan, item)
      : h("b", { class: "slab here" }, items[open].title))));
  rove(list);
  requestAnimationFrame(() => {
    const here = /** @type {HTMLElement | null} */ (list.querySelector(".here"));
    if (here) list.scrollLeft = here.offsetLeft - list.clientWidth / 2 + here.offsetWidth / 2;
  });
  return place(list, { x: 6, y: plan.bottom + 16, width: plan.width - 12 });
}

/** @type {(app: App, plan: Plan) => HTMLElement} */
export function answerPanel(app, plan) {
  const { scene, answer, queryRows, narrow } = plan;
  const { title, list, row: said } = /** @type {NonNullable<Scene["answers"]>} */ (scene.answers);
  const why = app.manifest.outputs?.parts;
  const peak = list[0].p;
  const panel = h("div", { class: "leaves" },
    h("button", { type: "button", id: "answers", onclick: () => app.go({ view: "next" }) }, h("b", {}, title),
      h("span", { "aria-hidden": "true" }, " ⤢")),
    list.map(({ word, p, id }, i) => h(why ? "button" : "div", {
      class: i ? "leaf" : "leaf best", "data-p": String(p), ...(why ? {
        type: "button", id: `leaf-${i}`, title: `Why ${quote(word)}?`,
        onclick: () => app.go({ view: "next", words: "parts", row: said, said: id }),
      } : {}),
    },
      h("bdi", {}, label(word, 16)),
      h("span", { class: "share" }, h("i", { style: { width: `${(100 * p) / peak}%` } })),
      h("span", { class: "num" }, formatPercent(p)))));
  const row = queryRows.at(scene.token);
  if (!narrow) {
    const middle = (row?.[1] ?? plan.height / 2) - answer.height / 2;
    answer.y = Math.max(24, Math.min(plan.bottom - answer.height, middle));
  }
  return place(panel, { x: answer.x, y: answer.y, width: answer.width });
}

/**
 * The tokens of a side that What if hides.
 * @type {(app: App, side: import("./scene_data.js").SceneSide) => unknown[]}
 */
export const hiddenTokens = (app, { side }) => (side === "target" ? []
  : readChanges(app.state).filter(({ kind }) => kind === "hide").map(({ token }) => token));

/**
 * Opens what can be changed about a thing; without one, about all that is selected.
 * @type {(app: App, scene: Scene, target?: (event: Event) => import("./scene_change.js").Target | null) =>
 *   (event: Event) => Promise<void>}
 */
export const changer = (app, scene, target) => async (event) => {
  const about = target ? target(event) : null;
  if (target && !about) return;
  event.preventDefault();
  const on = /** @type {Element} */ (event.target);
  const at = on instanceof SVGElement && event instanceof MouseEvent // a ribbon is long
    ? new DOMRect(event.clientX, event.clientY) : on.getBoundingClientRect();
  (await import("./scene_change.js")).openChanges(app, scene, about, at);
};

/**
 * A click on a token selects it; one on the selected token of the scene alone opens what can be changed about
 * it, and so does a right click.
 * @type {(app: App, scene: Scene, side: import("./scene_data.js").SceneSide, i: number) => Attributes}
 */
export function tokenHandlers(app, scene, side, i) {
  const change = changer(app, scene, () => ({ side, token: i }));
  const isSelected = side.side === scene.queries.side && i === scene.token && app.state.view === "look";
  return {
    onclick: (/** @type {Event} */ event) => {
      if (isSelected && canChange(app)) return change(event);
      const changes = tokenChanges(app, side.side, i);
      return changes && app.go(changes, { replace: true });
    },
    ...(canChange(app) ? { oncontextmenu: change } : {}),
  };
}

/**
 * The picture that the model sees, with what the selected token looks at in colour.
 * @type {(app: App, plan: Pick<Plan, "scene" | "picture">) => HTMLElement}
 */
export function drawPicture(app, plan) {
  const { scene, picture } = plan;
  const { grid, tokens, before } = scene.keys;
  const [rows, columns] = /** @type {[number, number]} */ (grid);
  const { x, y, width, height } = /** @type {Box} */ (picture);
  const root = h("div", { class: "picture-in", role: "group", "aria-label": "The picture, patch by patch" },
    scene.pixels ? paintPixels(scene.pixels) : null);
  const hidden = hiddenTokens(app, scene.keys);
  for (const i of range(tokens.length)) {
    const [r, c] = [Math.floor((i - before) / columns), (i - before) % columns];
    const isPatch = i >= before;
    root.append(place(h("button", {
      type: "button", id: `keys-${i}`, "data-key": String(i),
      class: `${isPatch ? "patch" : "chip class"}${hidden.includes(i) ? " gone" : ""}`,
      title: nameToken(scene.keys, i), "aria-label": nameToken(scene.keys, i),
      "aria-pressed": String(scene.queries.side === scene.keys.side && i === scene.token),
      ...tokenHandlers(app, scene, scene.keys, i),
    }, isPatch ? null : "class token"), isPatch
      ? { x: (c * width) / columns, y: (r * height) / rows, width: width / columns, height: height / rows }
      : { x: 0, y: -30, width: 96, height: 24 }));
  }
  rove(root);
  return place(root, { x, y, width, height });
}

/**
 * Colour what a token looks at: patches by their share of the largest weight.
 * @type {(root: HTMLElement, scene: Scene, query: number) => void}
 */
export function lightKeys(root, scene, query) {
  const weights = scene.weightsOf(query);
  const peak = weights ? Math.max(...weights.subarray(scene.keys.before), 1e-30) : 1;
  for (const chip of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-key]"))) {
    const weight = weights?.[Number(chip.dataset.key)] ?? 0;
    const isPatch = chip.classList.contains("patch");
    chip.style.setProperty("--weight", String(isPatch ? weight / peak : weight));
  }
}

/**
 * @param {Tensor} pixels (channels, height, width), from 0 to 255
 */
function paintPixels({ shape: [C, H, W], data }) {
  const image = new ImageData(W, H);
  for (let i = 0; i < H * W; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = data[(C === 1 ? 0 : c) * H * W + i];
    image.data[4 * i + 3] = 255;
  }
  const canvas = h("canvas", { width: W, height: H, "aria-hidden": "true" });
  penOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

