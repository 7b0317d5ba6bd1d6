/* Colours of the palette for CSS, and what can be read on them. */

import { palette } from "./colour.js";

/** @type {(signed: boolean, share: number) => [number, number, number]} */
function channels(signed, share) {
  const c = palette(signed)[Math.round(255 * Math.min(1, Math.max(0, share)))];
  return [c & 255, (c >> 8) & 255, (c >> 16) & 255];
}

/**
 * A colour of the palette for CSS.
 * @param {boolean} signed
 * @param {number} share from 0 to 1
 */
export const cssColour = (signed, share) => `rgb(${channels(signed, share).join(" ")})`;

/**
 * Black or white, whichever is easier to read on a colour of the palette.
 * @param {boolean} signed
 * @param {number} share from 0 to 1
 */
export const textColour = (signed, share) => inkOn(...channels(signed, share));

/**
 * Black or white, whichever can be read better on a colour: at least 4.5 to 1.
 * @type {(r: number, g: number, b: number) => string}
 */
export function inkOn(...colour) {
  const [r, g, b] = colour.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
