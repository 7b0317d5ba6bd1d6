/* Colours of numbers. The lightness of the ramp changes evenly, so that its order shows without colours and
   to colour-blind readers too. Signed numbers are blue and orange after Okabe and Ito. */

const RAMP = [
  "#fafbe8", "#c9e3b7", "#84cea0", "#1bb69f", "#0095a0", "#00749d", "#11558b", "#2b3864", "#1c2337",
];
const SIGNED = {
  light: ["#9c4300", "#d55e00", "#efa26b", "#f7f7f5", "#7db8de", "#0072b2", "#004a75"],
  dark: ["#f2a05c", "#c9641a", "#6e3a15", "#1b1f24", "#154a6b", "#2b8ac4", "#7cc3ee"],
};

export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

/**
 * A colour of the page's style sheet, such as --ink.
 * @param {string} name
 */
export const themeColour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * The context to draw on a canvas with.
 * @param {HTMLCanvasElement} canvas
 */
export const penOf = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/** @param {string[]} stops */
function interpolate(stops) {
  const parsed = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  const colours = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (parsed.length - 1);
    const low = Math.min(Math.floor(at), parsed.length - 2);
    const [from, to] = [parsed[low], parsed[low + 1]];
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(from[c] + (at - low) * (to[c] - from[c])));
    colours[i] = opaque(r, g, b);
  }
  return colours;
}

/** @type {Record<string, Uint32Array>} */
const PALETTES = {};

/**
 * 256 colours in the byte order of ImageData: from low to high, or from minus to plus. High stands out from
 * the background.
 * @param {boolean} signed
 */
export function palette(signed) {
  const dark = isDark();
  const ramp = dark ? [...RAMP].reverse() : RAMP;
  PALETTES[`${signed}${dark}`] ??= interpolate(signed ? SIGNED[dark ? "dark" : "light"] : ramp);
  return PALETTES[`${signed}${dark}`];
}

/**
 * A canvas of the pixels of an image.
 * @param {ImageData} image
 */
export function imageCanvas(image) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  penOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

/**
 * A matrix as an image with one pixel for each number. Where `blank` is not 0, and for -∞, the
 * pixel is `blankColour`.
 * @param {Tensor} matrix
 * @param {[low: number, high: number]} limits
 * @param {boolean} signed
 * @param {Numbers | null} blank
 * @param {number} blankColour
 */
export function paintMatrix({ shape: [rows, columns], data }, [low, high], signed, blank, blankColour) {
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = palette(signed);
  const times = high > low ? 255 / (high - low) : 0;
  for (let i = 0; i < pixels.length; i++) {
    const x = data[i];
    const hidden = (blank !== null && blank[i] !== 0) || !(x > -Infinity);
    pixels[i] = hidden ? blankColour : colours[Math.min(255, ((x - low) * times + 0.5) | 0)];
  }
  return imageCanvas(image);
}

/**
 * A pixel of ImageData.
 * @param {number} r
 * @param {number} g
 * @param {number} b
 */
export const opaque = (r, g, b) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
