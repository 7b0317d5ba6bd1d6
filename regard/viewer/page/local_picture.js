/* A picture as a saved model reads it: resized and cropped as Pillow does it, number for number. */

import { fromBase64 } from "./local_run.js";

const PRECISION = 2 ** 22; // of Pillow's weights, which are whole numbers
const A = -0.5; // of Pillow's bicubic filter

/** @param {number} distance */
function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return ((A + 2) * x - (A + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * A : 0;
}

/** @typedef {{ first: number, weights: number[] }} Filter */

/** The weights of the pixels from `first` on that make each new pixel.
 * @type {(size: number, from: number, to: number, count: number) => Filter[]} */
function filterWeights(size, from, to, count) {
  const scale = (to - from) / count;
  const wide = Math.max(1, scale);
  return Array.from({ length: count }, (_, i) => {
    const center = from + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - 2 * wide + 0.5));
    const end = Math.min(size, Math.trunc(center + 2 * wide + 0.5));
    const shares = Array.from({ length: end - first }, (_, x) => bicubic((x + first - center + 0.5) / wide));
    const sum = shares.reduce((a, b) => a + b, 0);
    const weights = shares.map((share) => {
      const exact = (share / sum) * PRECISION;
      return Math.trunc(exact + (exact < 0 ? -0.5 : 0.5));
    });
    return { first, weights };
  });
}

/** Every line of an image, resized.
 * @type {(data: Uint8Array, lines: number, width: number, filters: Filter[]) => Uint8Array} */
function resizeLines(data, lines, width, filters) {
  const result = new Uint8Array(lines * filters.length);
  for (let line = 0; line < lines; line++) {
    filters.forEach(({ first, weights }, i) => {
      const sum = weights.reduce((total, w, x) => total + w * data[line * width + first + x], PRECISION / 2);
      result[line * filters.length + i] = Math.max(0, Math.min(255, Math.floor(sum / PRECISION)));
    });
  }
  return result;
}

/** @type {(data: Uint8Array, height: number, width: number) => Uint8Array} */
function transpose(data, height, width) {
  return data.map((_, i) => data[(i % height) * width + Math.floor(i / height)]);
}

/**
 * One channel, cropped in the middle to the shape that is wanted, and resized.
 * @type {(channel: Uint8Array, size: [number, number], wanted: [number, number]) => Uint8Array}
 */
export function fitChannel(channel, [height, width], [H, W]) {
  if (height === H && width === W) return channel;
  const ratio = W / H;
  const wide = width / height >= ratio;
  const same = width / height === ratio;
  const [w, h] = [same || !wide ? width : ratio * height, same || wide ? height : width / ratio];
  const [left, top] = [(width - w) * 0.5, (height - h) * 0.5];
  const across = w === W && left === 0 && width === W ? channel
    : resizeLines(channel, height, width, filterWeights(width, left, left + w, W));
  if (h === H && top === 0 && height === H) return across;
  const down = resizeLines(transpose(across, height, W), W, height, filterWeights(height, top, top + h, H));
  return transpose(down, W, H);
}

/** The channels of RGBA pixels on white: red, green and blue, or grey as Pillow weighs them.
 * @type {(pixels: Uint8ClampedArray, channels: number) => Uint8Array[]} */
export function splitChannels(pixels, channels) {
  const count = pixels.length / 4;
  const colours = [0, 1, 2].map((c) => Uint8Array.from({ length: count }, (_, i) => {
    const [value, alpha] = [pixels[4 * i + c], pixels[4 * i + 3]];
    return Math.round((value * alpha + 255 * (255 - alpha)) / 255);
  }));
  if (channels === 3) return colours;
  const [r, g, b] = colours;
  return [r.map((_, i) => (r[i] * 19595 + g[i] * 38470 + b[i] * 7471 + 0x8000) >> 16)];
}

/**
 * The pixels (channels, height, width) of a PNG, JPEG or WebP in base64.
 * @type {(picture: string, shape: [number, number, number]) => Promise<Tensor>}
 */
export async function readPicture(picture, [channels, H, W]) {
  const bitmap = await createImageBitmap(new Blob([fromBase64(picture)]), {
    colorSpaceConversion: "none", premultiplyAlpha: "none",
  });
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(bitmap, 0, 0);
  const parts = splitChannels(context.getImageData(0, 0, width, height).data, channels);
  const data = new Uint8Array(channels * H * W);
  parts.forEach((channel, c) => data.set(fitChannel(channel, [height, width], [H, W]), c * H * W));
  return { shape: [channels, H, W], data };
}
