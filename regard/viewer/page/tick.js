/* Whether a number that the page computes again is the model's: every tick on the page says so. */

import { h } from "./dom.js";

// How far the model may be from the float64 of this page, as a share of what was added up.
/** @type {Record<string, number>} */
const TOLERANCE = { float32: 1e-5, bfloat16: 2 ** -8, float16: 2 ** -11, int8: 2 ** -6, int4: 2 ** -6 };

/**
 * Is it the model's number? Never if one of them is not a number; infinity is infinity alone.
 * @param {Manifest} manifest
 * @param {number} result of this page
 * @param {number} value of the model
 * @param {number} size of what was added up, which rounding errors grow with
 */
export function fitsModel({ model: { dtype } }, result, value, size) {
  const tolerance = TOLERANCE[dtype] ?? TOLERANCE.float32;
  if (!Number.isFinite(result) || !Number.isFinite(value)) return result === value;
  return Math.abs(result - value) <= tolerance * (size + Math.abs(value)) + 1e-7;
}

/** @param {boolean} fits */
export const drawTick = (fits) =>
  h("span", { class: `tick ${fits ? "right" : "wrong"}`, "data-fits": String(fits) }, fits ? "✓" : "✗");
