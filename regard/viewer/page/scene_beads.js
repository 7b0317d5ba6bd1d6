/* The first numbers of each token as it leaves a part of the model, on the line that it flows along. */

import { penOf } from "./colour.js";
import { h, last } from "./dom.js";
import { tensorOrNull } from "./scene_data.js";
import { paint } from "./scene_paint.js";

/** @typedef {import("./scene_layout.js").Plan} Plan */
/** @typedef {import("./scene_layout.js").Rows} Rows */

export const NUMBERS = 24; // of a token
const [TALL, EDGE] = [26, 3]; // pixels

/**
 * Paint them into all slabs that name a tensor.
 * @type {(app: App, plan: Plan, slabs: HTMLElement[]) => Promise<void>}
 */
export async function drawBeads(app, plan, slabs) {
  await Promise.all(slabs.filter(({ dataset }) => dataset.tensor).map((slab) => drawSlab(app, plan, slab)));
}

/** @type {(app: App, plan: Plan, slab: HTMLElement) => Promise<void>} */
async function drawSlab(app, plan, slab) {
  const { tensor: name = "", reads } = slab.dataset;
  const rows = rowsOf(app.manifest.tensors[name]?.shape ?? [], plan, Boolean(reads));
  if (!rows?.shown.length) return;
  const [first, end] = [rows.shown[0], last(rows.shown) + 1];
  const tensor = await tensorOrNull(app, name, { rows: `${first}:${end}`, columns: `0:${NUMBERS}` });
  if (!tensor || !slab.isConnected || tensor.shape[0] !== end - first) return;
  const image = paint({ tensor });
  const [wide, tall] = [slab.clientWidth, slab.clientHeight];
  const sharp = 2; // pixels a pixel
  const size = { width: wide * sharp, height: tall * sharp };
  const canvas = h("canvas", { class: "beads", ...size, "aria-hidden": "true" });
  const pen = penOf(canvas);
  pen.scale(sharp, sharp);
  pen.imageSmoothingEnabled = false;
  const height = Math.min(TALL, rows.step - 4);
  for (const i of rows.shown) {
    const y = /** @type {Place} */ (rows.at(i))[1] - slab.offsetTop - height / 2;
    pen.drawImage(image, 0, i - first, tensor.shape[1], 1, EDGE, y, wide - 2 * EDGE, height);
  }
  slab.append(canvas);
}

/**
 * The rows of the tokens that a tensor (tokens, numbers) is of.
 * @type {(shape: number[], plan: Plan, reads: boolean) => Rows | null}
 */
function rowsOf(shape, { scene: { keys, queries }, keyRows, queryRows }, reads) {
  if (shape.length !== 2 || shape[1] < NUMBERS / 3) return null;
  if (!reads && shape[0] === queries.tokens.length) return queryRows;
  return shape[0] === keys.tokens.length && !keys.grid ? keyRows : null;
}
