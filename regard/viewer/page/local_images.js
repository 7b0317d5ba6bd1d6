/* The operations of a saved model on images: whole ones, or from an image to rows of patches or regions. */

import { dotProduct } from "./local_ops.js";
import { ACTIVATIONS } from "./operands.js";

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {(run: Run, step: ProgramStep) => Tensor} ImageOperation */

/** @type {(step: ProgramStep) => (x: number) => number} */
const activation = ({ f }) => (f ? ACTIVATIONS[/** @type {FunctionName} */ (f)] : (x) => x);

/** @type {(shape: number[], data: Float32Array) => Tensor} */
const tensor = (shape, data) => ({ shape, data });

/** @type {ImageOperation} */
function pixel(run, { x, mean, std }) {
  const { shape, data } = run.image(/** @type {string} */ (x));
  const size = shape[1] * shape[2];
  const [means, stds] = /** @type {[number[], number[]]} */ ([mean, std]);
  return tensor(shape, Float32Array.from(data, (value, i) => {
    const channel = Math.floor(i / size) % means.length;
    return (value / 255 - means[channel]) / stds[channel];
  }));
}

/** Zeros around so that the result is as large as the image, over the stride; an odd one at the end.
 * @type {(side: number, step: ProgramStep) => { count: number, before: number }} */
function padding(side, { size = 1, stride = 1 }) {
  const count = Math.ceil(side / stride);
  return { count, before: Math.floor(Math.max((count - 1) * stride + size - side, 0) / 2) };
}

/** The numbers of all channels of a group under a square, 0 outside of the image.
 * @type {(image: Tensor, group: { from: number, count: number }, size: number, top: number, left: number,
 *   out: Float32Array) => void} */
function readSquare({ shape: [, height, width], data }, { from, count }, size, top, left, out) {
  let at = 0;
  for (let c = from; c < from + count; c++) {
    for (let y = top; y < top + size; y++) {
      for (let x = left; x < left + size; x++) {
        const inside = y >= 0 && y < height && x >= 0 && x < width;
        out[at++] = inside ? data[(c * height + y) * width + x] : 0;
      }
    }
  }
}

/** @type {ImageOperation} */
function conv(run, step) {
  const { W, b, size = 1, stride = 1, groups = 1 } = step;
  const given = run.image(/** @type {string} */ (step.x));
  const image = tensor(given.shape, Float32Array.from(given.data, activation(step)));
  const [channels, height, width] = given.shape;
  const [down, across] = [padding(height, step), padding(width, step)];
  const { data: weights, shape: [N, K] } = run.weight(W ?? "");
  const bias = b ? run.weight(b).data : null;
  const result = new Float32Array(N * down.count * across.count);
  const square = new Float32Array(K);
  const [each, share] = [N / groups, channels / groups];
  for (let y = 0; y < down.count; y++) {
    for (let x = 0; x < across.count; x++) {
      for (let g = 0; g < groups; g++) {
        const [top, left] = [y * stride - down.before, x * stride - across.before];
        readSquare(image, { from: g * share, count: share }, size, top, left, square);
        for (let n = g * each; n < (g + 1) * each; n++) {
          result[(n * down.count + y) * across.count + x] =
            dotProduct(square, 0, weights, n * K, K) + (bias ? bias[n] : 0);
        }
      }
    }
  }
  return tensor([N, down.count, across.count], result);
}

/** All channels, rows and columns together.
 * @type {ImageOperation} */
function norm(run, step) {
  const { shape, data } = run.image(/** @type {string} */ (step.x));
  const values = Float64Array.from(data, activation(step));
  const [gamma, beta] = [run.weight(step.W ?? "").data, step.b ? run.weight(step.b).data : null];
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const square = values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length;
  const deviation = Math.sqrt(square + (step.eps ?? 1.1920929e-7));
  const size = shape[1] * shape[2];
  return tensor(shape, Float32Array.from(values, (value, i) => {
    const channel = Math.floor(i / size);
    return ((value - mean) / deviation) * gamma[channel] + (beta ? beta[channel] : 0);
  }));
}

/** @type {ImageOperation} */
function add(run, { terms }) {
  const images = /** @type {Term[]} */ (terms).map(([name, factor]) => ({ ...run.image(name), factor }));
  const result = new Float32Array(images[0].data.length);
  for (const { data, factor } of images) {
    for (let i = 0; i < result.length; i++) result[i] += factor * data[i];
  }
  return tensor(images[0].shape, result);
}

/** @type {Record<string, ImageOperation>} */
export const IMAGE_OPERATIONS = { pixel, conv, norm, add };

/** The pixels of a patch, channel by channel; or the channels of a region.
 * @type {Record<string, (run: Run, step: ProgramStep, t: number) => Float32Array>} */
export const ROWS_OF_IMAGES = {
  patch(run, { x, side = 1, height = Number(side) }, t) {
    const { shape: [channels, , width], data } = run.image(/** @type {string} */ (x));
    const columns = width / Number(side);
    const [top, left] = [Math.floor(t / columns) * height, (t % columns) * Number(side)];
    const row = [];
    for (let c = 0; c < channels; c++) {
      for (let y = 0; y < height; y++) {
        const from = (c * run.image(/** @type {string} */ (x)).shape[1] + top + y) * width + left;
        row.push(...data.subarray(from, from + Number(side)));
      }
    }
    return Float32Array.from(row);
  },
  regions(run, step, t) {
    const { shape: [channels, height, width], data } = run.image(/** @type {string} */ (step.x));
    const f = activation(step);
    return Float32Array.from({ length: channels }, (_, c) => f(data[c * height * width + t]));
  },
};
