/* Where each token looks: one head as a heat map or as arcs, or all heads of all layers as an atlas. */

import {
  colourOptions, describeChoice, displayControls, isPlain, readChoice, readDisplay,
} from "./display.js";
import { formatWeight, h, numberMenu, stepMenu, tabs } from "./dom.js";
import { editButtons } from "./edits.js";
import { Heatmap } from "./heatmap.js";
import {
  PART_TITLES, attentionParts, cellChanges, heading, layerMenu, parsePlace, selectHead, tokenRow,
} from "./selection.js";

/** @type {[string, string][]} */
const FORMS = [["map", "Heat map"], ["arcs", "Arcs"], ["atlas", "All heads"]];

/** @type {View} */
export const attention = {
  key(key, app) {
    const { layers, layer, attention: { heads }, head } = selectHead(app);
    /** @type {(to: number) => void} */
    const toHead = (to) => {
      if (to >= 0 && to < heads) app.go({ head: to, cell: null }, { replace: true });
    };
    /** @type {(to: number) => void} */
    const toLayer = (to) => {
      if (layers.some((other) => other.layer === to)) app.go({ layer: to, cell: null }, { replace: true });
    };
    if (key === "n") toHead(head + 1);
    else if (key === "p") toHead(head - 1);
    else if (key === "j") toLayer(layer + 1);
    else if (key === "k") toLayer(layer - 1);
    else return false;
    return true;
  },

  async show(root, app) {
    const { manifest, state } = app;
    const { part, layers, layer, attention: selected, head } = selectHead(app);
    const form = FORMS.find(([name]) => name === state.form)?.[0] ?? "map";
    root.append(controls(app, form));
    if (manifest.layers) root.append(blockMenu(app, manifest.layers[0]));
    if (form === "atlas") {
      const { showAtlas } = await import("./atlas.js");
      return showAtlas(root, app, part, layers);
    }
    const choice = readChoice(app, selected, head);
    root.append(displayControls(app, selected, head, choice));
    const shown = await readDisplay(app, selected, choice);
    const heads = choice.heads.length > 1 ? `heads ${choice.heads.join(", ")}` : `head ${head}`;
    const title = `${PART_TITLES[part]} attention, layer ${layer}, ${heads}`;
    const remark = isPlain(choice) ? describeHead(selected.kinds[head]) : describeChoice(choice, shown);
    root.append(heading(title, remark));
    if (form === "arcs") {
      const { showArcs } = await import("./arcs.js");
      return showArcs(root, app, title, [shown.rows, shown.columns], shown, shown.why);
    }
    return showMap(root, app, { ...shown, title, ...colourOptions(choice, shown) }, choice);
  },
};

/**
 * One head as a heat map, with the sum behind the number that is opened.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {import("./heatmap.js").HeatmapOptions} options
 * @param {import("./display.js").Choice} choice
 */
async function showMap(root, app, options, choice) {
  const { state, go } = app;
  const { part, layer, attention: selected, head } = selectHead(app);
  const name = `${selected.name}.weights`;
  const edits = choice.words ? { root: null, update: () => {} } : editButtons(app, selected, head);
  const side = choice.words ? null : selected.rows;
  /** @type {(r: number, c: number) => StateChanges} */
  const choose = (r, c) => cellChanges(app, [r, c], side, options.rows.length, options.shape[0]);
  const map = new Heatmap({
    ...options,
    square: true,
    names: ["query", "key"],
    at: parsePlace(state.at, options.shape) ?? (choice.words ? null : tokenPlace(app, options)),
    format: formatWeight,
    move: (r, c) => {
      go(choose(r, c), { quiet: true });
      edits.update();
    },
    open: (r, c) => (isPlain(choice)
      ? go({ ...choose(r, c), cell: `${name}:${head},${r},${c}` }, { replace: true }) : null),
  });
  const tensor = isPlain(choice) ? { tensor: /** @type {[string, number]} */ ([name, head]) } : {};
  app.current = { name: `attention-${part}-${layer}-${head}`, ...tensor, ...map.output };
  const cell = state.cell ? await (await import("./cell.js")).openCell(app, state.cell) : null;
  if (edits.root) root.append(edits.root);
  root.append(h("div", { class: "beside" }, map.root, cell));
}

/**
 * Where the selected token looks most, until a cell is chosen.
 * @param {App} app
 * @param {import("./heatmap.js").HeatmapOptions} options
 * @returns {Place | null}
 */
function tokenPlace(app, { shape: [T, S], rows, data }) {
  const row = tokenRow(app, selectHead(app).attention.rows, rows.length, T);
  if (row === null) return null;
  const weights = data.subarray(row * S, (row + 1) * S);
  return [row, weights.indexOf(Math.max(...weights))];
}

/**
 * @param {App} app
 * @param {string} form
 */
function controls(app, form) {
  const { manifest, go } = app;
  const { part, layers, layer, attention: { heads }, head } = selectHead(app);
  const bar = h("div", { class: "controls" });
  const parts = attentionParts(manifest);
  if (parts.length > 1) {
    bar.append(tabs("part", parts.map((name) => [name, PART_TITLES[name]]), part,
      (to) => go({ part: to, layer: null, head: null, at: null, cell: null })));
  }
  bar.append(tabs("form", FORMS, form, (to) => go({ form: to, cell: null })));
  if (form === "atlas") return bar;
  bar.append(
    stepMenu("layer", "layer", layerMenu(layers), layer,
      (to) => go({ layer: to, cell: null }, { replace: true })),
    stepMenu("head", "head", numberMenu(heads), head,
      (to) => go({ head: to, cell: null }, { replace: true })));
  return bar;
}

/**
 * Of a long input, the numbers of one block are kept at a time.
 * @param {App} app
 * @param {number} block
 */
function blockMenu({ manifest, source, go }, block) {
  return h("div", { class: "controls" },
    h("span", { class: "pale" }, "This input is long: the numbers of one block are kept at a time."),
    source.live ? stepMenu("block", "block", numberMenu(manifest.depth), block,
      (to) => go({ layers: to, layer: null, cell: null })) : null);
}

/**
 * What a head does, if it mostly does one thing.
 * @param {HeadKinds} kinds
 */
function describeHead({ entropy, previous = 0, diagonal = 0, first }) {
  const words = [`${entropy.toFixed(1)} bits`];
  if (previous > 0.5) words.push("looks at the previous token");
  if (diagonal > 0.5) words.push("looks at itself");
  if (first > 0.5) words.push("looks at the first token");
  return words.join(" · ");
}
