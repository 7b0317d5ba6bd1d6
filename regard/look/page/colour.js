/* Colours of numbers. The ramp's lightness changes evenly: also without colours, and to colour-blind eyes,
   its order is seen. Signs are blue and orange after Okabe and Ito. */

const RAMP = ["#fafbe8", "#c9e3b7", "#84cea0", "#1bb69f", "#0095a0", "#00749d", "#11558b", "#2b3864", "#1c2337"];
const SIGNED = {
  light: ["#9c4300", "#d55e00", "#efa26b", "#f7f7f5", "#7db8de", "#0072b2", "#004a75"],
  dark: ["#f2a05c", "#c9641a", "#6e3a15", "#1b1f24", "#154a6b", "#2b8ac4", "#7cc3ee"],
};

export const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;

function table(stops) {
  const parsed = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  const found = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (parsed.length - 1);
    const low = Math.min(Math.floor(at), parsed.length - 2);
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(parsed[low][c] + (at - low) * (parsed[low + 1][c] - parsed[low][c])));
    found[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return found;
}

const TABLES = {};

/** 256 colours as ImageData wants them: from little to much, or from minus to plus. Much stands out from the ground. */
export function colours(signed) {
  const key = `${signed}${dark()}`;
  TABLES[key] ??= table(signed ? SIGNED[dark() ? "dark" : "light"] : dark() ? [...RAMP].reverse() : RAMP);
  return TABLES[key];
}

export function css(signed, share) {
  const c = colours(signed)[Math.round(255 * Math.min(1, Math.max(0, share)))];
  return `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;
}

/** Black or white, whichever is read better on a colour. */
export function ink(signed, share) {
  const c = colours(signed)[Math.round(255 * Math.min(1, Math.max(0, share)))];
  return 0.299 * (c & 255) + 0.587 * ((c >> 8) & 255) + 0.114 * ((c >> 16) & 255) > 140 ? "#14181d" : "#ffffff";
}

/** A matrix as a picture of a pixel a number, from low to high; `blank` ones, and -∞, have no colour of the scale. */
export function painted(data, rows, columns, [low, high], signed, blank, none) {
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const scale = colours(signed);
  const times = high > low ? 255 / (high - low) : 0;
  for (let i = 0; i < pixels.length; i++) {
    const x = data[i];
    pixels[i] = (blank !== null && blank[i] !== 0) || !(x > -Infinity) ? none : scale[Math.min(255, ((x - low) * times + 0.5) | 0)];
  }
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

export const opaque = (r, g, b) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
